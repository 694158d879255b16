"""Planning ahead against the static planners and the clairvoyant optimum: windows played out, on recorded and random profiles.

Run: driftbox bench lookahead [INSTANCES]          (default 20 windows a row; the first two tables need ../shared/data/traces)

A window: 198 s, true profiles, shares in 10 pct, frame sampling knobs, planned anew at each completion. Recorded: streams drawn
from the 37 city-windows of the authors' table. Quality in points, mean over windows. Anchor: the clairvoyant optimum, which is
exact (`scheduler.ekya.clairvoyant`); to reach: within 0.5 points of it, and above thief-repeat.
"""

from __future__ import annotations

import itertools
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from configs.errors import ConfigError
from scheduler.ekya.baselines import pareto_front
from scheduler.ekya.clairvoyant import clairvoyant
from scheduler.ekya.timeline import held_by, play_window, replan
from scheduler.registry import make_policy
from scheduler.sim.random_profiles import linear_knobs, random_snapshot, sampled_knobs
from scheduler.trace import TraceKnobs, TraceWindow, trace_of_ekya_table
from scheduler.types import KnobProfile, RetrainOption, Snapshot, StreamView

TABLE = Path(__file__).resolve().parents[3] / "shared/data/traces/ekya_cityscapes_microprofiles.csv"
POLICIES = ("no-retrain", "uniform(high,50)", "thief", "thief-repeat", "optimal", "lookahead")
SIZES = ((2, 1), (4, 1), (4, 2), (6, 2), (8, 2), (10, 2), (10, 4))
SMALL = ((2, 1), (3, 1), (4, 1), (4, 2), (5, 2))
WINDOW_S = 198.0
#: Measured under MPS, by share in steps of 10 pct (one ResNet18 trainer; the card's section 4.3).
MPS = (0.0, 0.3596, 0.5088, 0.6483, 0.7433, 0.8322, 0.8574, 0.8638, 0.9730, 0.9786, 1.0)
MPS_SPEED = tuple((10.0 * n, factor) for n, factor in enumerate(MPS))

Source = Callable[[int, int, float], Snapshot]


def recorded() -> list[StreamView]:
    """Every recorded stream-window as a stream."""
    lines = TABLE.read_text().splitlines()
    knobs = tuple(TraceKnobs(name=k.name, demand_pct=k.demand_pct, quality_frac=k.quality_frac) for k in sampled_knobs())
    views: list[StreamView] = []
    for number in itertools.count(1):
        try:
            trace = trace_of_ekya_table(lines, knobs=knobs, windows=number, subject=TABLE.name)
        except ConfigError:  # no city has as many windows
            return views
        views += [_view(f"{stream.id}-{number}", stream.windows[number]) for stream in trace.streams]
    return views


def _view(name: str, window: TraceWindow) -> StreamView:
    options = (
        RetrainOption(name=o.name, end_quality=o.quality, cost_gpu_s=o.cost_gpu_s)
        for o in window.options
        if o.quality is not None
    )
    return StreamView(id=name, quality=window.start_quality, knobs=sampled_knobs(), retrain=tuple(options))


def from_table(views: Sequence[StreamView]) -> Source:
    def draw(seed: int, streams: int, gpus: float) -> Snapshot:
        picked = random.Random(seed).sample(list(views), streams)
        capacity_pct = round(100 * gpus)
        return Snapshot(
            remaining_s=WINDOW_S, capacity_pct=capacity_pct, quantum_pct=10, min_quality=0.0, streams=tuple(picked)
        )  # fmt: skip

    return draw


def from_family(knobs: tuple[KnobProfile, ...]) -> Source:
    return lambda seed, streams, gpus: random_snapshot(seed, streams=streams, gpus=gpus, knobs=knobs, window_s=WINDOW_S)


def came_to(name: str, snapshot: Snapshot) -> float:
    """Points that a window comes to under the policy `name`."""
    policy = make_policy(name)
    return 100 * play_window(snapshot, held_by(policy(snapshot)), replan(policy)).quality


def compare(title: str, source: Source, instances: int, **changed: object) -> None:
    print(f"\n{title}")
    print(f"{'streams':>7} {'GPUs':>4} " + " ".join(f"{name:>16}" for name in POLICIES) + f" {'+repeat':>8} {'worst':>7}")
    for streams, gpus in SIZES:
        made = [replace(source(seed, streams, gpus), **changed) for seed in range(instances)]  # type: ignore[arg-type]
        came = {name: [came_to(name, snapshot) for snapshot in made] for name in POLICIES}
        gains = [a - b for a, b in zip(came["lookahead"], came["thief-repeat"], strict=True)]
        print(
            f"{streams:>7} {gpus:>4} "
            + " ".join(f"{statistics.mean(came[name]):>16.2f}" for name in POLICIES)
            + f" {statistics.mean(gains):>8.2f} {min(gains):>7.2f}"
        )


def gaps(title: str, source: Source, instances: int, sizes: Sequence[tuple[int, float]], **changed: object) -> None:
    """Distance to the clairvoyant optimum, mean / max."""
    names = ("thief-repeat", "optimal", "lookahead")
    print(f"\n{title}")
    print(f"{'streams':>7} {'GPUs':>4} {'optimum':>8} " + " ".join(f"{name:>15}" for name in names) + f" {'slowest s':>10}")
    for streams, gpus in sizes:
        made = [_thinned(replace(source(seed, streams, gpus), **changed), seed) for seed in range(instances)]  # type: ignore[arg-type]
        best, taken_s = [], []
        for snapshot in made:
            started_s = time.perf_counter()
            best.append(100 * clairvoyant(snapshot).quality)
            taken_s.append(time.perf_counter() - started_s)
        columns = []
        for name in names:
            short = [b - came_to(name, snapshot) for b, snapshot in zip(best, made, strict=True)]
            columns.append(f"{statistics.mean(short):.3f} / {max(short):.3f}")
        mean = statistics.mean(best)
        print(f"{streams:>7} {gpus:>4} {mean:>8.2f} " + " ".join(f"{c:>15}" for c in columns) + f" {max(taken_s):>10.2f}")


def _thinned(snapshot: Snapshot, seed: int) -> Snapshot:
    """Only options that may be in the optimum; of those, where speed is not proportional, four (three of three streams)."""
    most = None if not snapshot.speed and snapshot.train_max_pct is None else 6 - len(snapshot.streams)
    rng = random.Random(seed)

    def thin(view: StreamView) -> StreamView:
        options = tuple(o for o in pareto_front(view.retrain) if o.end_quality > view.quality)
        return replace(view, retrain=options if most is None else tuple(rng.sample(options, min(most, len(options)))))

    return replace(snapshot, streams=tuple(thin(view) for view in snapshot.streams))


def times() -> None:
    print("\nprocessor time of one plan, random family, 18 options (median of 5; aims: 50 ms for 10 streams, 1 s for 60)")
    print(f"{'streams':>7} {'GPUs':>4} {'lookahead ms':>13} {'with MPS ms':>12} {'optimal ms':>11}")
    for streams, gpus, count in ((10, 2, 5), (10, 8, 5), (60, 8, 3), (200, 20, 1), (1000, 100, 1)):
        made = [random_snapshot(seed, streams=streams, gpus=gpus, configs=18) for seed in range(count)]
        curved = [replace(snapshot, speed=MPS_SPEED, train_max_pct=100) for snapshot in made]
        taken = [_median_ms(name, given) for name, given in (("lookahead", made), ("lookahead", curved), ("optimal", made))]
        print(f"{streams:>7} {gpus:>4} {taken[0]:>13.1f} {taken[1]:>12.1f} {taken[2]:>11.1f}")


def _median_ms(name: str, snapshots: Sequence[Snapshot]) -> float:
    policy, taken_ms = make_policy(name), []
    for snapshot in snapshots:
        started_s = time.process_time()
        policy(snapshot)
        taken_ms.append(1000 * (time.process_time() - started_s))
    return statistics.median(taken_ms)


def main(instances: int) -> None:
    print(f"{instances} windows a row; '+repeat': mean gain of lookahead over thief-repeat, 'worst': its least")
    if TABLE.exists():
        table = from_table(recorded())
        for estimate in ("static", "hand-back"):
            compare(f"recorded profiles, estimate {estimate}", table, instances, estimate=estimate)
        compare("recorded profiles, speed under MPS, one GPU per job", table, instances, speed=MPS_SPEED, train_max_pct=100)
        gaps("recorded profiles: short of the clairvoyant optimum, mean / max", table, instances, SMALL)
        curved = {"speed": MPS_SPEED, "train_max_pct": 100}
        gaps("the same, speed under MPS, 3-4 options", table, max(1, instances // 2), ((2, 1), (3, 1)), **curved)
    for shape, knobs in (("frame sampling", sampled_knobs()), ("linear", linear_knobs())):
        family = from_family(knobs)
        compare(f"random family, {shape} knobs", family, max(1, instances // 2))
        gaps(f"random family, {shape} knobs: short of the clairvoyant optimum", family, max(1, instances // 2), SMALL)
    times()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
