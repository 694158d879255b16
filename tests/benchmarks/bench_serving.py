"""Finish rates of every serving policy: the card's workloads beside the published figures, our own cascade, and what a decision costs.

    driftbox bench serving [--part card|cascade|cost] [--count 3000] [--seeds 4] [--first-seed 0] [--load 0.7] [--policies ...]
                           [--plots DIR]

card: 25 workloads at 5 SLOs (multiples of the 99th percentile of a stand-alone run), one worker in virtual time, the same requests for
every policy. The thesis gives neither its load nor its batch laws (see scheduler/orloj/workloads.py), so it is the shape that compares:
who leads whom, and where.
cascade: detect and classify crops, costs measured on eight real videos (tests/benchmarks/serving_costs.py), in two ways: each frame one
request whose run time depends on what is in the picture; and each picture and each crop a request of its model, as in the pool. Beside
it what is possible at most (`scheduler/orloj/hindsight.py`): for whole frames exactly what could be finished by whoever knew all run
times and arrivals beforehand, for pictures and crops a bound that nobody reaches.
Leads are told with a 95 % interval over the draws (Student's t, the same draws for every policy).
cost: thread time of one decision with 1,000 requests waiting and 8 batch sizes.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats
from serving_costs import CLASSIFY_SIZES, COSTS, DETECT_SIZES

from scheduler.orloj.fit import BatchRun, fit_cost
from scheduler.orloj.hindsight import possible
from scheduler.orloj.registry import POLICIES, make_batch_policy
from scheduler.orloj.simulate import Job, Stage, World, simulate
from scheduler.orloj.types import ModelCost, Request
from scheduler.orloj.workloads import SLOS, WORKLOADS, Case, make_case

BASELINES = ("clockwork", "nexus", "clipper", "edf", "fifo")
PUBLISHED_BASELINES = ("clipper", "nexus", "clockwork")


def rates(cases: Sequence[Case], names: Sequence[str]) -> dict[str, list[float]]:
    """Finish rate in percent of each policy in each of the same cases."""
    return {
        name: [100 * simulate(make_batch_policy(name), case.world, case.jobs).finish_rate for case in cases] for name in names
    }


def means(cell: Mapping[str, Sequence[float]]) -> dict[str, float]:
    return {name: statistics.fmean(drawn) for name, drawn in cell.items()}


@dataclass(frozen=True, kw_only=True)
class Lead:
    """Points that ours is ahead of the best baseline. half: half of the 95 % interval; nan with one draw."""

    points: float
    half: float

    @staticmethod
    def of(cell: Mapping[str, Sequence[float]]) -> Lead:
        best = max((name for name in cell if name in BASELINES), key=lambda name: statistics.fmean(cell[name]))
        ahead = [ours - theirs for ours, theirs in zip(cell["orloj"], cell[best], strict=True)]
        n = len(ahead)
        half = stats.t.ppf(0.975, n - 1) * statistics.stdev(ahead) / n**0.5 if n > 1 else float("nan")
        return Lead(points=statistics.fmean(ahead), half=float(half))


# --- the card's workloads -----------------------------------------------------------------------------------------------


def card(asked: argparse.Namespace) -> None:
    names = asked.policies
    print(
        f"finish rate in percent at SLO = {' / '.join(f'{s:g}' for s in SLOS)} x p99; load {asked.load:g}; published Orloj in brackets"
    )
    found: dict[str, list[dict[str, float]]] = {}
    leads: list[Lead] = []
    for workload in WORKLOADS:
        drawn = [
            rates([make_case(workload, slo, load=asked.load, count=asked.count, seed=s) for s in seeds(asked)], names)
            for slo in SLOS
        ]
        leads += [Lead.of(cell) for cell in drawn]
        cells = [means(cell) for cell in drawn]
        found[workload.name] = cells
        print(f"{workload.name}")
        for name in names:
            paper = f"   [{' '.join(f'{x:3d}' for x in workload.paper[name])}]" if name in workload.paper else ""
            print(f"  {name:<14}{' '.join(f'{cell[name]:5.1f}' for cell in cells)}{paper}")
    print()
    card_summary(found, names)
    print(f"95 % intervals of a cell's lead: +-{statistics.fmean(one.half for one in leads):.1f} points in the mean", end=", ")
    print(f"+-{max(one.half for one in leads):.1f} at most ({asked.seeds} draws)")
    if asked.plots:
        plot_card(found, names, asked.plots)


def card_summary(found: Mapping[str, Sequence[Mapping[str, float]]], names: Sequence[str]) -> None:
    baselines = [name for name in BASELINES if name in names]
    dynamic = [w for w in WORKLOADS if not w.static]
    for i, slo in enumerate(SLOS):
        ours = statistics.fmean(_gain(found[w.name][i]["orloj"], max(found[w.name][i][b] for b in baselines)) for w in dynamic)
        theirs = statistics.fmean(_gain(w.paper["orloj"][i], max(w.paper[b][i] for b in PUBLISHED_BASELINES)) for w in dynamic)
        print(
            f"SLO {slo:g}: orloj over the best baseline, mean over dynamic workloads: {ours:+.0f} % (published table: {theirs:+.0f} %)"
        )
    leads = [c["orloj"] - max(c[b] for b in baselines) for w in dynamic for c in found[w.name]]
    print(f"dynamic cells: best in {sum(d >= 0 for d in leads)} of {len(leads)}, worst gap {min(leads):+.1f} points")
    if "orloj-printed" in names:
        over = [c["orloj"] - c["orloj-printed"] for w in WORKLOADS for c in found[w.name]]
        print(
            f"ours against printed, all cells: mean {statistics.fmean(over):+.1f} points, worst {min(over):+.1f}, best {max(over):+.1f}"
        )
    static = min(c["orloj"] - max(c[b] for b in baselines) for w in WORKLOADS if w.static for c in found[w.name])
    mark = "reached" if static >= -2 else "MISSED"
    print(f"{mark}: static loads, orloj against the best baseline, worst cell {static:+.1f} points (to reach: -2.0)")


def _gain(ours: float, best: float) -> float:
    return 100 * (ours / max(best, 0.1) - 1)


def plot_card(found: Mapping[str, Sequence[Mapping[str, float]]], names: Sequence[str], folder: Path) -> None:
    from edge.plotting import picture

    folder.mkdir(parents=True, exist_ok=True)
    shown = ("bimodal sd 1", "8 modes", "static ResNet")
    with picture(folder / "serving_card.svg", len(shown)) as panels:
        for panel, workload in zip(panels, (w for w in WORKLOADS if w.name in shown), strict=True):
            for name in names:
                panel.plot(SLOS, [cell[name] for cell in found[workload.name]], label=name, **_line(name))
            panel.plot(SLOS, workload.paper["orloj"], label="published Orloj", **_line("paper"))
            _finish(panel, workload.name)


def _line(name: str) -> dict[str, object]:
    if name == "paper":
        return {"marker": "x", "ms": 5, "lw": 1.2, "ls": ":"}
    ours = name.startswith("orloj")
    return {"marker": "o", "ms": 4, "lw": 2.5 if ours else 1.2, "ls": "-" if ours else "--"}


def _finish(panel: object, title: str) -> None:
    panel.set_xlabel("SLO / p99 of a stand-alone run")  # type: ignore[attr-defined]
    panel.set_ylabel("finish rate, percent")  # type: ignore[attr-defined]
    panel.set_title(title, fontsize=10)  # type: ignore[attr-defined]
    panel.grid(alpha=0.3)  # type: ignore[attr-defined]
    panel.legend(fontsize=7)  # type: ignore[attr-defined]


# --- our own cascade ----------------------------------------------------------------------------------------------------

CASCADE_SLOS = (1.5, 2.0, 2.5, 3.0)
CASCADE_LOADS = (0.8, 1.0, 1.25, 1.5)


@dataclass(frozen=True, kw_only=True)
class Cascade:
    """What was measured. frames: camera -> rows of (detect_s, crops, classify_s); costs: fitted batch laws of both models;
    crop_s: one crop alone."""

    frames: Mapping[str, np.ndarray]
    costs: Mapping[str, ModelCost]
    crop_s: float

    @staticmethod
    def read(path: Path = COSTS) -> Cascade:
        told = json.loads(path.read_text(encoding="utf-8"))
        runs = {
            model: [BatchRun(size=int(size), longest_s=alone / 1000, took_s=took / 1000) for size, took, alone in rows]
            for model, rows in told["batches"].items()
        }
        sizes = {"detect": DETECT_SIZES, "classify": CLASSIFY_SIZES}
        return Cascade(
            frames={camera: np.array(rows) / (1000, 1, 1000) for camera, rows in told["cameras"].items()},
            costs={model: fit_cost(rows, sizes[model]) for model, rows in runs.items()},
            crop_s=statistics.median(run.longest_s for run in runs["classify"]),
        )

    def alone_s(self, camera: str) -> np.ndarray:
        """What each measured frame takes through the whole cascade."""
        return self.frames[camera][:, 0] + self.frames[camera][:, 2]

    def p99_s(self) -> float:
        return float(np.quantile(np.concatenate([self.alone_s(c) for c in self.frames]), 0.99))


def arrivals(
    cascade: Cascade, load: float, seconds: float, rng: np.random.Generator, work_s: float
) -> list[tuple[float, str, int]]:
    """(time, camera, measured frame): every camera at the same rate, out of step, a little unsteady; frames in the video's order."""
    cameras = list(cascade.frames)
    gap_s = len(cameras) * work_s / load
    found = []
    for camera in cameras:
        n = int(seconds / gap_s)
        at = rng.uniform(0, gap_s) + gap_s * (np.arange(n) + rng.normal(0, 0.1, n))
        first = int(rng.integers(len(cascade.frames[camera])))
        found += [(float(t), camera, (first + i) % len(cascade.frames[camera])) for i, t in enumerate(at)]
    return sorted(found)


def whole_case(cascade: Cascade, slo: float, load: float, seed: int, count: int) -> Case:
    """A frame is one request of a model 'cascade'. On a processor a batch saves nothing, so its one size is 1."""
    rng = np.random.default_rng(seed)
    alone = {camera: cascade.alone_s(camera) for camera in cascade.frames}
    work_s = float(np.mean([a.mean() for a in alone.values()]))
    slo_s = slo * cascade.p99_s()
    jobs = tuple(
        Job(
            app=camera, released_s=t, deadline_s=t + slo_s,
            stages=(Stage(model="cascade", alone_s=(float(alone[camera][i] * _noise(rng)),)),),
        )
        for t, camera, i in arrivals(cascade, load, count * work_s / load, rng, work_s)
    )  # fmt: skip
    told = {("cascade", camera): (rng.choice(a, 64) * _noise(rng, 64)).tolist() for camera, a in alone.items()}
    return Case(world=World(costs={"cascade": ModelCost()}, told=told), jobs=jobs)


def staged_case(cascade: Cascade, slo: float, load: float, seed: int, count: int) -> Case:
    """A frame asks the detector once, then the classifier once per crop; batches of each model by its measured law. Work is counted at
    the largest sizes."""
    rng = np.random.default_rng(seed)
    per = {m: (c.c0_s + c.c1 * c.sizes[-1] * a) / c.sizes[-1] for m, c, a in _both(cascade)}
    work_s = float(np.mean([per["detect"] + rows[:, 1].mean() * per["classify"] for rows in cascade.frames.values()]))
    slo_s = slo * cascade.p99_s()
    detect_s = float(np.median(np.concatenate([rows[:, 0] for rows in cascade.frames.values()])))

    usual = {camera: float(rows[:, 1].mean()) for camera, rows in cascade.frames.items()}

    def stages(camera: str, i: int) -> tuple[Stage, ...]:
        crops = int(cascade.frames[camera][i, 1])
        return (
            Stage(model="detect", alone_s=(detect_s * float(_noise(rng)),), after_s=per["classify"] * usual[camera]),
            Stage(model="classify", alone_s=tuple((cascade.crop_s * _noise(rng, crops)).tolist())),
        )

    jobs = tuple(
        Job(app=camera, released_s=t, deadline_s=t + slo_s, stages=stages(camera, i))
        for t, camera, i in arrivals(cascade, load, count * work_s / load, rng, work_s)
    )
    told = {
        (model, camera): (alone_s * _noise(rng, 64)).tolist()
        for model, alone_s in (("detect", detect_s), ("classify", cascade.crop_s))
        for camera in cascade.frames
    }
    return Case(world=World(costs=cascade.costs, told=told), jobs=jobs)


def _both(cascade: Cascade) -> list[tuple[str, ModelCost, float]]:
    detect_s = float(np.median(np.concatenate([rows[:, 0] for rows in cascade.frames.values()])))
    return [("detect", cascade.costs["detect"], detect_s), ("classify", cascade.costs["classify"], cascade.crop_s)]


def _noise(rng: np.random.Generator, n: int | None = None) -> np.ndarray:
    """Run times of the same work differ by some percent."""
    return np.exp(rng.normal(0.0, 0.05, n))


def cascade(asked: argparse.Namespace) -> None:
    measured = Cascade.read()
    for camera, rows in measured.frames.items():
        alone_ms = 1000 * measured.alone_s(camera)
        mean_ms, p99_ms = alone_ms.mean(), np.quantile(alone_ms, 0.99)
        print(f"  {camera:<26} crops {rows[:, 1].mean():4.1f}, alone mean {mean_ms:6.1f} ms, p99 {p99_ms:6.1f} ms")
    for model, cost in measured.costs.items():
        print(f"  {model}: c0 {1000 * cost.c0_s:.2f} ms, c1 {cost.c1:.3f}")
    found = {}
    for how, make in (("whole frames", whole_case), ("pictures and crops", staged_case)):
        print(f"\n{how}: finish rate of frames in percent, SLO in p99 of a frame alone ({1000 * measured.p99_s():.0f} ms)")
        print(
            f"  {'load':>5} {'SLO':>4} " + " ".join(f"{name:>13}" for name in asked.policies) + f" {'possible':>9} {'lead':>13}"
        )
        cells = []
        for load, slo in itertools.product(CASCADE_LOADS, CASCADE_SLOS):
            cell = Cell.of([make(measured, slo, load, s, asked.count) for s in seeds(asked)], asked.policies, load, slo)
            columns = " ".join(f"{cell.mean[name]:13.1f}" for name in asked.policies)
            lead = Lead.of(cell.drawn)
            print(f"  {load:5.2f} {slo:4.1f} {columns} {cell.possible:9.1f} {lead.points:+6.1f} +-{lead.half:4.1f}", flush=True)
            cells.append(cell)
        cascade_summary(cells, asked.policies)
        found[how] = [(cell.load, cell.slo, cell.mean) for cell in cells]
    if asked.plots:
        plot_cascade(found, asked.policies, asked.plots)


def seeds(asked: argparse.Namespace) -> range:
    return range(asked.first_seed, asked.first_seed + asked.seeds)


@dataclass(frozen=True, kw_only=True)
class Cell:
    """drawn: finish rates in percent by policy and draw; possible: the most that any policy could finish, mean over the draws."""

    load: float
    slo: float
    drawn: Mapping[str, Sequence[float]]
    possible: float

    @staticmethod
    def of(cases: Sequence[Case], names: Sequence[str], load: float, slo: float) -> Cell:
        most = statistics.fmean(100 * possible(case.world, case.jobs) / len(case.jobs) for case in cases)
        return Cell(load=load, slo=slo, drawn=rates(cases, names), possible=most)

    @property
    def mean(self) -> dict[str, float]:
        return means(self.drawn)


def cascade_summary(cells: Sequence[Cell], names: Sequence[str]) -> None:
    leads = [Lead.of(cell.drawn) for cell in cells]
    near, worst = sum(lead.points >= -1 for lead in leads), min(leads, key=lambda lead: lead.points)
    surely = sum(lead.points - lead.half >= -1 for lead in leads)
    mark = "reached" if near == len(cells) else "MISSED"
    print(
        f"  {mark}: best or within 1 point of best in {near} of {len(cells)} cells ({surely} with the whole interval),"
        f" worst {worst.points:+.1f} +-{worst.half:.1f}"
    )
    for rival in (n for n in ("edf", "clockwork") if n in names):
        ahead = sum(_gain(cell.mean["orloj"], cell.mean[rival]) >= 15 for cell in cells)
        could = sum(_gain(cell.possible, cell.mean[rival]) >= 15 for cell in cells)
        mark = "reached" if 2 * ahead >= len(cells) else "MISSED" if 2 * could >= len(cells) else "out of reach"
        print(
            f"  {mark}: at least +15 % on {rival} in {ahead} of {len(cells)} cells (to reach: half; possible at most in {could})"
        )
    for name in names:
        parts = [100 * cell.mean[name] / cell.possible for cell in cells]
        print(f"  {name}: {min(parts):.0f} to {max(parts):.0f} % of what was possible, mean {statistics.fmean(parts):.1f} %")


def plot_cascade(
    found: Mapping[str, Sequence[tuple[float, float, Mapping[str, float]]]], names: Sequence[str], folder: Path
) -> None:
    from edge.plotting import picture

    folder.mkdir(parents=True, exist_ok=True)
    with picture(folder / "serving_cascade.svg", len(CASCADE_LOADS)) as panels:
        for panel, load in zip(panels, CASCADE_LOADS, strict=True):
            for name in names:
                line = [cell[name] for at, _, cell in found["whole frames"] if at == load]
                panel.plot(CASCADE_SLOS, line, label=name, **_line(name))
            _finish(panel, f"whole frames, load {load:g}")


# --- what a decision costs ----------------------------------------------------------------------------------------------

COST_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
COST_WAITING, COST_TO_REACH_MS = 1000, 0.3


def cost(asked: argparse.Namespace) -> None:
    print(
        f"one decision with {COST_WAITING:,} waiting and {len(COST_SIZES)} sizes, thread time (published: < 0.5 ms per insertion, C++)"
    )
    for name in asked.policies:
        for apps in (1, 8):
            decide_ms, submit_ms = decision_ms(name, apps)
            part = round(decide_ms / COST_TO_REACH_MS, 3)  # what is shown is what is judged
            mark = "" if name != "orloj" else "reached: " if part <= 1.0 else "MISSED: "
            print(
                f"  {mark}{name}, {apps} applications: {decide_ms:.3f} ms a decision"
                f" ({part:.3f} of {COST_TO_REACH_MS} ms), {submit_ms:.4f} ms an insertion"
            )


def decision_ms(name: str, apps: int, decisions: int = 200) -> tuple[float, float]:
    """(median of a decision, median of an insertion) in ms, with the queue filled up before every decision."""
    rng, policy = np.random.default_rng(0), make_batch_policy(name)
    policy.add_model("m", ModelCost(c0_s=0.008, c1=0.15, sizes=COST_SIZES))
    for app in range(apps):
        for alone_s in rng.normal(0.02 * (app + 1), 0.003, 200):
            policy.sample("m", f"app{app}", abs(float(alone_s)), 0.0)
    now_s, decided, submitted = 0.0, [], []
    for id_ in itertools.count():
        while policy.waiting() >= COST_WAITING:
            decide_ms, decision = _timed_ms(policy.decide, now_s)
            decided.append(decide_ms)
            now_s += decision.batch.expected_s if decision.batch else 0.01
        if len(decided) >= decisions:
            return statistics.median(decided), statistics.median(submitted)
        deadline_s = now_s + float(rng.uniform(0.1, 20))
        request = Request(id=id_, app=f"app{id_ % apps}", model="m", released_s=now_s, deadline_s=deadline_s)
        submitted.append(_timed_ms(policy.submit, request, now_s)[0])
    raise AssertionError


def _timed_ms(call: Callable[..., Any], *given: object) -> tuple[float, Any]:
    started_s = time.thread_time()
    answer = call(*given)
    return 1000 * (time.thread_time() - started_s), answer


PARTS: dict[str, Callable[[argparse.Namespace], None]] = {"cost": cost, "cascade": cascade, "card": card}


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=sorted(PARTS), help="this part only")
    parser.add_argument("--count", type=int, default=3000, help="requests (card) or frames (cascade) per case (default 3,000)")
    parser.add_argument("--seeds", type=int, default=4, help="cases per cell (default 4)")
    parser.add_argument("--first-seed", type=int, default=0, help="of the draws (default 0)")
    parser.add_argument("--load", type=float, default=0.7, help="of the card's workloads (default 0.7)")
    parser.add_argument(
        "--policies", type=lambda s: s.split(","), default=list(POLICIES), help="separated by commas (default all)"
    )
    parser.add_argument("--plots", type=Path, help="folder for pictures")
    asked = parser.parse_args(words)
    for name in [asked.part] if asked.part else PARTS:
        PARTS[name](asked)
        print()


if __name__ == "__main__":
    main()
