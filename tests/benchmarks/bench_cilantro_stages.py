"""Would a box gain if Cilantro divided it between the stages of its pipelines? Against what the box does now, and what could be at best.

    driftbox bench cilantro_stages [--part frames|windows] [--rounds 60] [--windows 36]

frames: detect, classify and track of four recorded cameras on 70 % of a core (`serving_costs.json`; tracking as docs/serving.md has it),
in virtual time, 30 s a round. One queue: what a box does, a frame's stages after each other on one share. Split: a share per stage, held
(as lanes hold them) or lent to whoever has work (as cgroup weights do); fair, in proportion to what each stage was metered to need, as
Cilantro's form for stages finds from the P99 of the whole alone, and the best that one fixed split can do, known afterwards.
windows: the two stages that a plan divides a box between, live inference and learning, on the authors' recorded profiles: fixed splits,
the split as Cilantro finds it from each window's quality alone, and the box's plans, which know what each camera would gain.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from cluster.cilantro.pipeline import StageRound, StageSettings, baseline_units, next_units
from cluster.cilantro.types import FloatArray, IntArray
from edge.simulate.source import TABLE_OVERHEAD_S, read_source
from edge.simulate.sweep import Setting, engine_config_of, fixed_by_hold_out, run_policy, varied
from scheduler.ekya.baselines import uniform
from scheduler.registry import POLICIES, UNIFORM_FAMILY
from scheduler.sim.trace_world import virtual_box
from scheduler.types import Plan, Snapshot

COSTS = Path(__file__).with_name("serving_costs.json")
TABLE = Path(__file__).resolve().parents[3] / "shared/data/traces/ekya_cityscapes_microprofiles.csv"

Chooser = Callable[[list[StageRound]], IntArray]

# --- frames -----------------------------------------------------------------------------------------------------------

CAMERAS = ("shopfront_cctv", "pets09_s2l1_view1", "ua_detrac_mvi40201", "one_by_one_person")
STAGES = ("detect", "classify", "track")
#: Percent of a core that live inference has; the rest learns.
LIVE_PCT = 70
FRAMES_PER_S = 1.5
DEADLINE_MS = 1000.0
ROUND_MS = 30_000.0
#: Recorded frames that a round moves on by: scenes change slowly.
ROWS_PER_ROUND = 2
LEAST = 3


def arrivals(round_index: int, recorded: dict[str, list[list[float]]], seed: int) -> tuple[FloatArray, FloatArray]:
    """(when, ms after the round began; compute per stage, ms) of a round's frames. Cameras are not in step."""
    rng = np.random.default_rng((seed, round_index))
    when, work = [], []
    for camera in CAMERAS:
        rows = recorded[camera]
        times = np.arange(rng.uniform(0, 1000 / FRAMES_PER_S), ROUND_MS, 1000 / FRAMES_PER_S)
        for number, at in enumerate(times):
            detect_ms, crops, classify_ms = rows[(round_index * ROWS_PER_ROUND + number % 12) % len(rows)]
            when.append(at)
            work.append((detect_ms, classify_ms, 0.8 + 0.06 * crops))
    order = np.argsort(when, kind="stable")
    return np.array(when)[order], np.array(work)[order]


def latencies_ms(when: FloatArray, work: FloatArray, shares_pct: FloatArray, *, lend: bool) -> FloatArray:
    """Of each frame through all stages, each of which takes frames in order. lend: shares of stages without work go to the others."""
    costs, shares, arriving = work.tolist(), (shares_pct / 100).tolist(), [*when.tolist(), math.inf]
    stages, frames = len(shares), len(costs)
    waiting: list[deque[int]] = [deque() for _ in shares]
    left = [math.inf] * stages  # compute that the frame at each stage's head still needs
    done, now, coming = np.zeros(frames), 0.0, 0
    while coming < frames or any(waiting):
        busy = sum(share for share, queue in zip(shares, waiting, strict=True) if queue)
        lent = sum(shares) / busy if lend and busy else 1.0
        took, stage = min((left[i] / (shares[i] * lent), i) for i in range(stages))
        took = min(took, arriving[coming] - now)
        now += took
        left = [need - took * share * lent for need, share in zip(left, shares, strict=True)]
        frame, to = coming, 0
        if now >= arriving[coming] - 1e-9:
            coming += 1
        else:
            frame, to = waiting[stage].popleft(), stage + 1
            left[stage] = costs[waiting[stage][0]][stage] if waiting[stage] else math.inf
        if to == stages:
            done[frame] = now
            continue
        if not waiting[to]:
            left[to] = costs[frame][to]
        waiting[to].append(frame)
    return done - when


def frames_experiment(rounds: int) -> None:
    recorded = json.loads(COSTS.read_text())["cameras"]
    days = [arrivals(index, recorded, seed=1) for index in range(rounds)]
    metered = np.mean([work.mean(axis=0) for _, work in days], axis=0)
    load = sum(work.sum() for _, work in days) / (rounds * ROUND_MS)
    print(
        f"four cameras, {FRAMES_PER_S} frames/s each, on {LIVE_PCT} % of a core, of which their frames need {100 * load / LIVE_PCT:.0%};"
    )
    print(
        f"mean ms: {', '.join(f'{s} {m:.1f}' for s, m in zip(STAGES, metered, strict=True))}. From round {rounds // 4} of {rounds} on"
    )
    print(f"{'':<34}{'mean ms':>9}{'P99 ms':>9}{'within 1 s':>12}")
    count, total = len(STAGES), LIVE_PCT
    ours = StageSettings(least=LEAST)
    splits: dict[str, Chooser] = {
        "fair": lambda h: baseline_units("resource-fair", h, stages=count, total=total, seed=1),
        "as metered": lambda h: whole(metered),
        "Cilantro": lambda h: next_units(h, stages=count, total=total, load=1.0, seed=1, settings=ours),
    }
    _print(
        "one queue (the box)",
        *_frames(lambda h: np.array([total]), [(w, c.sum(axis=1, keepdims=True)) for w, c in days], False),
    )
    for lend in (False, True):
        for name, choose in splits.items():
            _print(f"split, {'lent' if lend else 'held'}: {name}", *_frames(choose, days, lend))
        best = min(
            _every_split(total, step=5), key=lambda u: _frames(lambda h, u=u: u, days[rounds // 4 :: 6], lend, first=0)[1]
        )
        _print(f"split, {'lent' if lend else 'held'}: best {best.tolist()}", *_frames(lambda h, u=best: u, days, lend))


def whole(metered: FloatArray) -> IntArray:
    """Units in proportion to what stages need, at least `LEAST` each; what rounding leaves goes to the first."""
    units = np.maximum(LEAST, np.floor(LIVE_PCT * metered / metered.sum())).astype(np.int64)
    units[0] += LIVE_PCT - units.sum()
    return units


def _every_split(total: int, step: int) -> list[IntArray]:
    return [
        np.array([first, second, total - first - second])
        for first in range(LEAST, total, step)
        for second in range(LEAST, total - first - LEAST + 1, step)
    ]


def _frames(
    choose: Chooser, days: Sequence[tuple[FloatArray, FloatArray]], lend: bool, first: int | None = None
) -> tuple[float, float, float]:
    """(mean, mean of the rounds' P99, part within the deadline) from the first quarter on; each round is told its P99."""
    history: list[StageRound] = []
    kept: list[FloatArray] = []
    for when, work in days:
        units = choose(history)
        found = latencies_ms(when, work, units.astype(np.float64), lend=lend)
        kept.append(found)
        history.append(StageRound(units=tuple(int(u) for u in units), load=1.0, value=-float(np.percentile(found, 99))))
    kept = kept[len(days) // 4 if first is None else first :]
    every = np.concatenate(kept)
    return float(every.mean()), statistics.mean(float(np.percentile(k, 99)) for k in kept), float((every <= DEADLINE_MS).mean())


def _print(name: str, mean_ms: float, p99_ms: float, within: float) -> None:
    print(f"{name:<34}{mean_ms:9.0f}{p99_ms:9.0f}{within:12.1%}", flush=True)


# --- windows ----------------------------------------------------------------------------------------------------------

STREAMS = 10
#: Parts of the capacity that the two stages are divided into: 5 % each.
PARTS = 20
#: There are 19 splits of two stages: no long search.
FEW = StageSettings(least=1, iterations=200)


class SplitFound:
    """A policy for the simulator: uniform plans, whose split Cilantro chooses window by window from the quality of the windows so far.
    shown: mean quality of each window that has ended."""

    def __init__(self, config: str) -> None:
        self.config = config
        self.shown: Callable[[], list[float]] = list
        self._history: list[StageRound] = []
        self._units: IntArray | None = None

    def __call__(self, snapshot: Snapshot) -> Plan:
        """The plan with this window's split."""
        ended = self.shown()
        if self._units is None or len(ended) > len(self._history):
            if self._units is not None:
                self._history.append(StageRound(units=tuple(int(u) for u in self._units), load=1.0, value=ended[-1]))
            self._units = next_units(self._history, stages=2, total=PARTS, load=1.0, seed=1, settings=FEW)
        return uniform(snapshot, config=self.config, infer_pct=round(100 * int(self._units[0]) / PARTS))


def found_split(setting: Setting, config: str, windows: int) -> float:
    """Mean quality, as `simulate` has it."""
    recorded = read_source(TABLE, windows).trace
    trace = varied(recorded, setting)
    policy = SplitFound(fixed_by_hold_out(recorded, setting.seed)[config])
    POLICIES[f"stages-{config}"] = policy
    driver, world, events = virtual_box(trace, f"stages-{config}", engine_config_of(setting), setting.overhead_s)
    driver.keep_log = False
    policy.shown = lambda: np.mean(list(world.shown(driver.now_s).values()), axis=0).tolist()
    end_s = trace.windows * trace.window_s
    driver.run(events, until_s=end_s - 1e-6 * trace.window_s)
    return float(np.mean([values[1:] for values in world.shown(end_s).values()]))


def windows_experiment(windows: int, seeds: int) -> None:
    gpus = (1, 2, 4)
    print(f"\n{STREAMS} recorded streams, {windows} windows, {seeds} orders: mean quality")
    print(f"{'GPUs':<34}" + "".join(f"{g:>9}" for g in gpus))
    base = Setting(profiles="true", min_quality=0.0, overhead_s=TABLE_OVERHEAD_S, prune=False, streams=STREAMS)

    def settings(count: int) -> list[Setting]:
        return [Setting(**{**vars(base), "gpus": float(count), "seed": seed}) for seed in range(seeds)]

    def show(name: str, found: Callable[[Setting], float]) -> list[float]:
        cells = [statistics.mean(found(setting) for setting in settings(count)) for count in gpus]
        print(f"{name:<34}" + "".join(f"{cell:9.3f}" for cell in cells), flush=True)
        return cells

    trace = read_source(TABLE, windows).trace
    for name in (*UNIFORM_FAMILY, "thief-repeat", "lookahead"):
        show(name, lambda s, name=name: run_policy(trace, name, s).mean_quality)
    for config in ("low", "high"):
        show(f"uniform({config}, Cilantro's split)", lambda s, config=config: found_split(s, config, windows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("all", "frames", "windows"), default="all")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--windows", type=int, default=36)
    parser.add_argument("--seeds", type=int, default=2)
    given = parser.parse_args()
    if given.part in ("all", "frames"):
        frames_experiment(given.rounds)
    if given.part in ("all", "windows"):
        windows_experiment(given.windows, given.seeds)


if __name__ == "__main__":
    main()
