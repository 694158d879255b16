"""Fluid: the card's examples, and the makespan of an 18-configuration trial group at once, one per core and one by one, as ratios.

Run: driftbox bench fluid [--model mobilenetv2@64] [--rounds 3] [--lanes 2] [--pictures 20] [--epochs 1,3,6]
     [--examples] [--widths] [--tuners]

--widths: instead of the group of 18, profiles of one and of three families as a box runs them, each trial on one core, and as wide as
StaticFluid and DynamicFluid make it by the beta that was measured (docs/trials.md). --tuners: what grid, successive halving, Hyperband,
ASHA and PBT ask for, carried out one by one and as many at once as pay.

The group is Ekya's (papers/ekya.md section 5): last layers or all layers, data fraction 0.1, 0.5, 1, epochs 5, 15, 30 (here 1, 3, 6):
18 real trainings of a real network, each a trial of its own, one thread each. Ways, in turns within a round, so that what else the
machine does hits all alike:

    one-by-one   a lane, the trials in the order given
    FIFO         a trial per core in the order given: what a tuner does
    Fluid        the longest first; how many at once is measured during the run (eq. 3.1), one by one where that does not pay

A ratio is taken within a round, and the median over the rounds is printed. Trained weights are compared: they must not depend on the
way. The load of the machine is printed: where more is running than there are cores, two threads also get twice the part of the machine
that one gets, so that a gain is to be believed only where one by one has about one CPU second per second. The CPU seconds of the lane
that had most do not depend on that: they are the makespan if each lane had a core for itself, but for waits for Python's lock. The
pictures are drawn; the work of an iteration is real.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import torch

from configs.errors import WeightsError
from models.detector import Detector
from models.fake import scripted_image
from models.labelled import LabelledImage
from models.microprofile_run import ProfileGroup, judged
from models.retrain import n_used, retrain, student
from models.tasks.base import Task
from models.tasks.classification import CLASSIFICATION
from models.tasks.detection import DETECTION
from models.trial_pack import PackReport, Piece, run_packed, shape_of
from models.tuned import TunedGroup
from models.wide import CPU, Ranks
from models.wide_trials import WideTrials
from scheduler.fluid import AS_PRINTED, Pool, Trial, fifo, fluid, leftover_widths, packing_gains, plan_group, share_max
from scheduler.fluid.groups import Asha, Grid, Hyperband, Pbt, Report, SuccessiveHalving, Tuner, group_of
from scheduler.fluid.observe import Verdict
from scheduler.types import RetrainConfig

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
#: Fluid's published gain, and what is to be reached on two cores where packing pays.
PAPER, WANTED_FRAC = "10-70 % shorter", 0.30
WAYS = ("one-by-one", "FIFO", "Fluid")


def configurations(epochs: Sequence[int]) -> tuple[RetrainConfig, ...]:
    return tuple(
        RetrainConfig(
            name=f"{layers}-{data_frac:g}-{n}", epochs=n, batch=2, layers_frac=layers_frac, data_frac=data_frac, lr=3e-4
        )
        for layers, layers_frac in (("head", 0.1), ("all", 1.0))
        for data_frac in (0.1, 0.5, 1.0)
        for n in epochs
    )


# --- one trial --------------------------------------------------------------------------------------------------------


class Training:
    """A trial as one piece of work (`models.trial_pack.Piece`)."""

    def __init__(self, serving: Detector, samples: Sequence[LabelledImage], config: RetrainConfig, task: Task) -> None:
        self.trial, self.shape, self.doing, self.width = config.name, shape_of(config), "train", 1
        self.detector = student(serving, config, seed=0)
        self._steps = retrain(self.detector, samples, config, seed=0, task=task, teacher=serving)
        self.left = config.epochs * n_used(config, len(samples))
        self.lane_cpu_s: dict[int, float] = {}

    def step(self) -> bool:
        lane, cpu_s = threading.get_ident(), time.thread_time()
        next(self._steps)
        self.lane_cpu_s[lane] = self.lane_cpu_s.get(lane, 0.0) + time.thread_time() - cpu_s
        self.left -= 1
        return self.left > 0

    def digest(self) -> str:
        state = self.detector.state()
        return hashlib.sha256(b"".join(state[name].numpy().tobytes() for name in sorted(state))).hexdigest()


class Queue:
    """Trials in an order (`models.trial_pack.Work`)."""

    def __init__(self, pieces: Sequence[Training]) -> None:
        self._waiting, self._running = list(pieces), 0

    def take(self, room: int = 1, alone: bool = False) -> Piece | None:
        if not self._waiting:
            return None
        self._running += 1
        return self._waiting.pop(0)

    def ended(self, piece: Piece) -> None:
        self._running -= 1

    @property
    def done(self) -> bool:
        return not self._waiting and not self._running


class OpenGate:
    """A lane without a share: the whole machine."""

    @contextmanager
    def iteration(self) -> Iterator[None]:
        yield

    def checkpoint(self) -> None: ...


# --- one run ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Run:
    """cpu_s: of each trial; busiest_s: CPU seconds of the lane that had most; digests: of the trained weights."""

    report: PackReport
    cpu_s: dict[str, float]
    busiest_s: float
    digests: dict[str, str]

    @property
    def cpu_per_wall(self) -> float:
        return sum(self.cpu_s.values()) / self.report.wall_s


@dataclass(frozen=True, kw_only=True)
class Bench:
    serving: Detector
    task: Task
    samples: Sequence[LabelledImage]
    configs: tuple[RetrainConfig, ...]
    lanes: int

    def run(self, way: str) -> Run:
        pieces = [Training(self.serving, self.samples, config, self.task) for config in self.configs]
        order, lanes, share = list(pieces), self.lanes, None
        if way == "Fluid":
            order.sort(key=self._length)
        elif way == "FIFO":
            share = self.lanes
        else:
            lanes = 1
        gates = [OpenGate() for _ in range(lanes)]
        report = run_packed(Queue(order), gates, share=share, on_thread=lambda gate: torch.set_num_threads(1))
        lanes_cpu_s: Counter[int] = Counter()  # seconds add up as counts do
        for piece in pieces:
            lanes_cpu_s.update(piece.lane_cpu_s)
        return Run(
            report=report,
            cpu_s={piece.trial: sum(piece.lane_cpu_s.values()) for piece in pieces},
            busiest_s=max(lanes_cpu_s.values()),
            digests={piece.trial: piece.digest() for piece in pieces},
        )

    def _length(self, piece: Training) -> tuple[float, str]:
        """What is known before anything was measured: iterations, and that a backward pass through all layers takes twice more."""
        config = next(c for c in self.configs if c.name == piece.trial)
        return -piece.left * (1 + 2 * config.layers_frac), piece.trial


def loaded(name: str, weights: Path) -> tuple[Detector, Task]:
    """The wanted classifier, or the built-in detector where its weights are missing."""
    os.environ.setdefault("DRIFTBOX_WEIGHTS", str(weights))
    if name.startswith("tinydet"):
        return DETECTION.load(name), DETECTION
    try:
        return CLASSIFICATION.load(name), CLASSIFICATION
    except WeightsError as error:
        print(f"({name}: {error}; tinydet-edge instead)")
        return DETECTION.load("tinydet-edge"), DETECTION


def measure(bench: Bench, rounds: int) -> None:
    first = bench.run("one-by-one")  # warms up, and says what each trial takes
    found: dict[str, list[Run]] = {way: [] for way in WAYS}
    for number in range(rounds):
        for way in WAYS[number % len(WAYS) :] + WAYS[: number % len(WAYS)]:
            found[way].append(bench.run(way))
        line = ", ".join(f"{way} {found[way][-1].report.wall_s:.1f} s" for way in WAYS)
        print(f"round {number + 1}: {line}; load {os.getloadavg()[0]:.1f}", flush=True)
    base = found["one-by-one"]
    columns = (("wall s", 8), ("to one by one", 15), ("busiest lane, CPU-s", 21), ("to one by one", 15), ("CPU-s per s", 13))
    print(f"\n{'way':<12}" + "".join(f"{name:>{width}}" for name, width in (*columns, ("at once", 10))))
    for way in WAYS:
        runs = found[way]
        ratio = statistics.median(r.report.wall_s / b.report.wall_s for r, b in zip(runs, base, strict=True))
        wall_s, rate = (statistics.median(x) for x in ([r.report.wall_s for r in runs], [r.cpu_per_wall for r in runs]))
        cpu_s, cpu = statistics.median(r.busiest_s for r in runs), _median_ratio(runs, base, "busiest_s")
        at_once = "/".join(str(r.report.share_max) for r in runs)
        print(f"{way:<12}{wall_s:>8.1f}{ratio:>15.2f}{cpu_s:>21.1f}{cpu:>15.2f}{rate:>13.2f}{at_once:>10}")
    by_fifo = statistics.median(
        r.report.wall_s / b.report.wall_s for r, b in zip(found["Fluid"], found["FIFO"], strict=True)
    )  # fmt: skip
    shorter = 1 - statistics.median(r.report.wall_s / b.report.wall_s for r, b in zip(found["Fluid"], base, strict=True))
    print(
        f"\nFluid against one by one: {shorter:+.0%} shorter (published: {PAPER}; to reach: {WANTED_FRAC:.0%} where packing pays)"
    )
    print(f"Fluid against FIFO: ratio {by_fifo:.2f}")
    for run in found["Fluid"]:
        gains = ", ".join(f"O^{p} {gain:.2f}" for p, gain in enumerate(run.report.gains, start=2))
        looks = "; ".join(_look(verdict) for verdict in run.report.verdicts)
        print(f"  measured in the run: {gains or 'nothing'}; alpha {run.report.alpha:.2f}, c {run.report.share_max} ({looks})")
    every = [run.digests for runs in found.values() for run in runs]
    print(f"trained weights the same whatever the way: {all(d == first.digests for d in every)}")
    _predicted(first, found["Fluid"][-1].report, bench.lanes)


def _look(verdict: Verdict) -> str:
    """What one look at p at once said, by round."""
    return f"{verdict.level}: {'yes' if verdict.pays else 'no'} by {' '.join(f'{gain:.2f}' for gain in verdict.gains)}"


def _median_ratio(runs: Sequence[Run], base: Sequence[Run], name: str) -> float:
    return statistics.median(getattr(r, name) / getattr(b, name) for r, b in zip(runs, base, strict=True))


def _predicted(alone: Run, packed: PackReport, lanes: int) -> None:
    """What the pure model says of the group on one device, from what each trial takes alone and the alpha that was measured."""
    trials = [Trial(id=name, h_s=seconds, alpha=packed.alpha) for name, seconds in alone.cpu_s.items()]
    plan = plan_group(trials, Pool(gpus=1, share_max=min(lanes, packed.share_max)))
    shown = ", ".join(f"{way} {seconds / plan.makespan_s['one-by-one']:.2f}" for way, seconds in plan.makespan_s.items())
    print(f"predicted ratios, one device: {shown} -> {plan.way}")


# --- widths ---------------------------------------------------------------------------------------------------------------


def families(count: int) -> list[RetrainConfig]:
    return [RetrainConfig(name=f"all-{i}", epochs=4, batch=4, layers_frac=1.0, lr=3e-4 * (1 + i)) for i in range(count)]


def measure_widths(bench: Bench, rounds: int) -> None:
    ranks = Ranks([CPU] * bench.lanes)
    try:
        while not ranks.ready():
            time.sleep(0.1)
        trials = WideTrials(ranks)
        with trials.of_a_job() as widths:
            assert widths is not None
            config = families(1)[0]
            for _ in widths.compare(bench.serving.clone(), bench.samples, config, seed=0, task=bench.task):
                pass
            arch = bench.serving.spec.arch
            print(
                f"measured: beta {widths.beta(arch):.2f}, so that a trial may have {widths.width_max(arch)} of {bench.lanes} cores"
            )
        for count in (1, 3):
            found = [
                (_profiled(bench, trials, count, wide=False), _profiled(bench, trials, count, wide=True)) for _ in range(rounds)
            ]
            for (one_s, _, one), (wide_s, used, wide) in found:
                apart = max(abs(a - b) for a, b in zip(one, wide, strict=True))
                said = f"one core each {one_s:.1f} s, as wide as pays {wide_s:.1f} s: {wide_s / one_s:.2f}; widths of the epochs {used}"
                print(
                    f"families {count}: {said}; qualities at most {apart:.3f} apart; load {os.getloadavg()[0]:.1f}", flush=True
                )
            print(f"  beta {trials.scaling(arch).beta:.2f} by then; a change takes {trials.epsilon_s:.2f} s")
    finally:
        ranks.close()


def _profiled(bench: Bench, trials: WideTrials, count: int, *, wide: bool) -> tuple[float, str, list[float]]:
    """(seconds, widths of all epochs in the order of their beginning, qualities)."""
    lanes, begun = min(bench.lanes, count), list[int]()
    with trials.of_a_job() as widths:
        group = ProfileGroup(
            bench.serving, bench.samples, bench.samples[:6], families(count), epochs=4, data_frac=1.0, budget_gpu_s=1e9, seed=0,
            timer=time.thread_time, task=bench.task, apart=True, widths=widths if wide else None, lanes=lanes,
        )  # fmt: skip
        for _ in group.prelude():
            pass
        take = group.take

        def noted(room: int = 1, alone: bool = False) -> Piece | None:
            piece = take(room, alone)
            begun.extend([piece.width] if piece is not None else [])
            return piece

        group.take = noted  # type: ignore[method-assign]
        report = run_packed(
            group, [OpenGate() for _ in range(lanes)], seats=bench.lanes if wide else None,
            on_thread=lambda gate: torch.set_num_threads(1),
        )  # fmt: skip
        group.close()
    return report.wall_s, "".join(map(str, begun)), [q for trial in group.results() for q in trial.quality]


# --- tuners ---------------------------------------------------------------------------------------------------------------

#: Epochs that a tuner gives one trial at most.
EPOCHS_MOST = 9


def tuners() -> dict[str, Tuner]:
    nine = tuple(f"t{i}" for i in range(9))
    return {
        "grid": Grid(trials=nine[:4], budget=3),
        "halving": SuccessiveHalving(trials=nine, r=1, eta=3),
        "hyperband": Hyperband(budget_max=3, eta=3),
        "asha": Asha(trials=nine, r=1, budget_max=9, eta=3, concurrency=4),
        "pbt": Pbt(population=nine[:4], interval=1, budget=3, seed=1),
    }


def measure_tuners(bench: Bench) -> None:
    print(f"{'tuner':<12}{'asked':>8}{'epochs':>8}{'one by one s':>14}{'at once s':>11}{'ratio':>7}  scores the same")
    for name, tuner in tuners().items():
        alone_s, alone = _tuned(bench, tuner, 1)
        packed_s, packed = _tuned(bench, tuner, bench.lanes)
        best: dict[str, float] = {}
        for report in alone:
            best[report.trial] = max(best.get(report.trial, 0.0), report.budget)
        same = {(r.trial, r.budget, r.score) for r in alone} == {(r.trial, r.budget, r.score) for r in packed}
        print(
            f"{name:<12}{len(alone):>8}{sum(best.values()):>8.0f}{alone_s:>14.1f}{packed_s:>11.1f}{packed_s / alone_s:>7.2f}  {same}",
            flush=True,
        )


def _tuned(bench: Bench, tuner: Tuner, lanes: int) -> tuple[float, list[Report]]:
    names = [t for b in tuner.brackets() for t in b.trials] if isinstance(tuner, Hyperband) else [f"t{i}" for i in range(9)]
    drawn = [
        RetrainConfig(name=name, epochs=EPOCHS_MOST, batch=4, layers_frac=1.0, data_frac=0.5, lr=1e-4 * 1.5**i)
        for i, name in enumerate(names)
    ]
    group = TunedGroup(
        tuner, {c.name: c for c in drawn}, bench.serving, bench.samples, judged(bench.samples[:4], task=bench.task),
        epochs=EPOCHS_MOST, seed=0, task=bench.task, lanes=lanes,
    )  # fmt: skip
    report = run_packed(group, [OpenGate() for _ in range(lanes)], on_thread=lambda gate: torch.set_num_threads(1))
    group.close()
    return report.wall_s, group.told


# --- the card ---------------------------------------------------------------------------------------------------------


def examples() -> None:
    """Section 9 of papers/fluid.md, computed now."""
    rows = list(_examples())
    print(f"{'example':<46}{'card':>24}{'here':>24}")
    for name, card, here in rows:
        print(f"{name:<46}{card:>24}{here:>24}{'' if card == here else '   DIFFERS'}")


def _examples() -> Iterator[tuple[str, str, str]]:
    toy, pool = _trials(4, 4, 12, 30), Pool(gpus=5, share_max=2, width_max=4)
    course = fluid(toy, pool, AS_PRINTED)
    yield "F1 widths", "1/2 1/2 1 3", " ".join(str(course.stages[t.id][0].width) for t in toy)
    yield "F1 makespan, FIFO", "12 30", _numbers(course.makespan_s, fifo(toy, 5).makespan_s)
    over = [replace(t, alpha=1.2, beta=1.1) for t in toy]
    yield "F1 with alpha 1.2, beta 1.1", "12.1", _numbers(fluid(over, pool, AS_PRINTED).makespan_s)
    six, two = _trials(6, 5, 4, 3, 2, 1), Pool(gpus=2, share_max=2)
    slower = [replace(t, alpha=1.3) for t in six]
    shelves = (fluid(six, two, AS_PRINTED), fluid(slower, two, AS_PRINTED), fifo(six, 2))
    yield "F2 makespan, with alpha 1.3, FIFO", "6 7.8 11", _numbers(*(c.makespan_s for c in shelves))
    times = [100.0, 120.0, 150.0, 210.0]
    gains = [str(Fraction(g).limit_denominator(100)) for g in packing_gains(times)]
    yield "F3 O^2 O^3 O^4, c", "2/5 1/6 -1/20 3", f"{' '.join(gains)} {share_max(times, gain_min=0.1)}"
    yield "F5 successive halving, FIFO", "5.5 11", _numbers(*_halving())
    rounding, narrow = _trials(199, 1), Pool(gpus=2, share_max=2, width_max=2)
    wide = fluid(rounding, narrow, AS_PRINTED, widths=leftover_widths(rounding, narrow, AS_PRINTED))
    yield (
        "F6 StaticFluid, with the leftover pass",
        "199 100.5",
        _numbers(fluid(rounding, narrow, AS_PRINTED).makespan_s, wide.makespan_s),
    )


def _trials(*h_s: float) -> list[Trial]:
    return [Trial(id=f"t{i}", h_s=h) for i, h in enumerate(h_s)]


def _numbers(*values: float) -> str:
    return " ".join(f"{value:.4g}" for value in values)


def _halving() -> tuple[float, float]:
    tuner, pool = SuccessiveHalving(trials=tuple(f"t{i}" for i in range(9)), r=1), Pool(gpus=4, share_max=2, width_max=4)
    told: list[Report] = []
    ours = theirs = 0.0
    while asks := tuner.ask(told):
        group = group_of("rung", asks, {a.trial: 1.0 for a in asks})
        ours += fluid(group.trials, pool, AS_PRINTED).makespan_s
        theirs += fifo(group.trials, pool.gpus).makespan_s
        told += [Report(trial=a.trial, budget=a.budget, score=-int(a.trial[1:])) for a in asks]
    return ours, theirs


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="mobilenetv2@64", help="a classifier, or tinydet-edge")
    parser.add_argument("--weights", type=Path, default=DATA / "weights")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--lanes", type=int, default=2, help="most trials at once")
    parser.add_argument("--pictures", type=int, default=20)
    parser.add_argument("--epochs", default="1,3,6", help="three numbers, for the card's 5, 15 and 30")
    parser.add_argument("--widths", action="store_true", help="trials on several cores")
    parser.add_argument("--tuners", action="store_true", help="every tuner's groups, carried out")
    parser.add_argument("--examples", action="store_true", help="only the card's examples")
    options = parser.parse_args()
    examples()
    if options.examples:
        return
    torch.set_num_threads(1)
    serving, task = loaded(options.model, options.weights)
    pictures = [LabelledImage(image=image, labels=labels) for image, labels in map(scripted_image, range(options.pictures))]
    configs = configurations([int(n) for n in options.epochs.split(",")])
    cores = len(os.sched_getaffinity(0))
    what = "profiles" if options.widths else "tuners" if options.tuners else f"{len(configs)} trials"
    print(f"\n{serving.spec.arch}@{serving.spec.input_px}: {what} on {options.pictures} pictures; {cores} cores")
    bench = Bench(serving=serving, task=task, samples=pictures, configs=configs, lanes=options.lanes)
    if options.widths:
        measure_widths(bench, options.rounds)
    elif options.tuners:
        measure_tuners(bench)
    else:
        measure(bench, options.rounds)


if __name__ == "__main__":
    main()
