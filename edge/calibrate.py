"""`driftbox calibrate`: how fast this box's own jobs run at a share, alone and beside each other, through its own backend.

Three kinds of job, as the box has them: a camera's inference, golden labelling, a training step. Each runs in a lane at one share
after the other, several times, in turns, so that what else the machine does meets all shares alike. Speed is counted between the first
and the last iteration that ended in the span: a lane that pays a long iteration back before the next starts is then measured exactly
with a few iterations. What follows from the measurements is `scheduler.speed`; where they are kept is `edge.speed_file`.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from configs.errors import JobCancelled, JobError
from edge.clock import Clock
from edge.gpu.base import ComputeBackend, Lane, Role
from edge.speed_file import JobKind, MeasuredSpeed, SpeedFile
from models.detector import Detector
from models.labelled import LabelledImage
from models.retrain import retrain
from models.tasks.base import Picture, Task
from scheduler.speed import SpeedFit, SpeedSample, fit, planned
from scheduler.types import RetrainConfig

#: A job that received less than this part of its share, on cores that others use too, says nothing about shares.
DELIVERED_MIN_FRAC = 0.9
#: Most that one job on CPU lanes can receive: a thread has one core.
THREAD_PCT = 100.0
LEAST_OTHER_PCT = 10.0
#: Longest wait for a job's last iteration.
JOIN_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A job to be measured. steps: an endless run of it in a lane, one iteration per `next`, with checkpoints of the lane inside."""

    kind: JobKind
    model: str
    steps: Callable[[Lane], Iterator[None]]

    @property
    def role(self) -> Role:
        return "infer" if self.kind == "inference" else "learn"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is measured. shares_pct: each kind at each of them; repeats: of each; span_s: least time of one measurement; most_s:
    after that it counts as too slow; iterations: at least so many in a measurement, because turns
    fall differently beside another job."""

    shares_pct: tuple[float, ...] = (10.0, 25.0, 50.0, 75.0, 100.0)
    repeats: int = 3
    span_s: float = 3.0
    most_s: float = 24.0
    iterations: int = 8


FULL = Plan()
QUICK = Plan(shares_pct=(25.0, 50.0, 100.0), repeats=2, span_s=1.0, most_s=10.0, iterations=5)


class Bench:
    """Where it is measured: a backend, and threads in real time. Tests measure in virtual time."""

    def __init__(self, backend: ComputeBackend, clock: Clock) -> None:
        self.backend, self.clock = backend, clock
        self._threads: list[threading.Thread] = []

    def spawn(self, body: Callable[[], None]) -> None:
        started = threading.Thread(target=body, name="calibrate", daemon=True)
        self._threads.append(started)
        started.start()

    def rest(self, seconds: float) -> None:
        """Lets the jobs run."""
        time.sleep(seconds)

    def join(self) -> None:
        """Waits until all jobs, which were cancelled, have ended."""
        for started in self._threads:
            started.join(JOIN_S)
        self._threads.clear()


# --- what is measured -------------------------------------------------------------------------------------------------


def subjects(task: Task, edge: Detector, golden: Detector, pictures: Sequence[Picture], lessons: Sequence[LabelledImage], *,
    names: tuple[str, str], score_min: float) -> list[Subject]:  # fmt: skip
    """The three jobs of a task's cameras. names: of the edge and the golden model, as the configuration has them."""

    def infer(lane: Lane) -> Iterator[None]:
        while True:
            for picture in pictures:
                task.predict(edge, [picture], score_min=score_min)
                yield

    def label(lane: Lane) -> Iterator[None]:
        while True:
            for picture in pictures:
                task.labels(golden, [picture], score_min=0.5, yield_point=lane.checkpoint)
                yield

    def train(lane: Lane) -> Iterator[None]:
        config = RetrainConfig(name="calibrate", epochs=1_000_000, batch=4, lr=1e-6)
        for _ in retrain(edge.clone(), lessons, config, seed=0, task=task):
            yield

    return [
        Subject(kind="inference", model=names[0], steps=infer),
        Subject(kind="training", model=names[0], steps=train),
        Subject(kind="labelling", model=names[1], steps=label),
    ]


def beside_of(subject: Subject, others: Sequence[Subject]) -> Subject | None:
    """Whom a job meets on a box that runs: learning meets inference, inference meets training."""
    wanted: JobKind = "training" if subject.kind == "inference" else "inference"
    return next((other for other in others if other.kind == wanted), None)


# --- measuring --------------------------------------------------------------------------------------------------------


class _Runner:
    """One job in its lane, in a thread of its own. ended_s: when each iteration ended; error: why it stopped before it was told to."""

    def __init__(self, subject: Subject, lane: Lane, clock: Clock) -> None:
        self._subject, self._lane, self._clock = subject, lane, clock
        self.ended_s: list[float] = []
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            steps = self._subject.steps(self._lane)
            while True:
                with self._lane.iteration():
                    next(steps)
                self.ended_s.append(self._clock.monotonic_s())
        except JobCancelled:
            return
        except Exception as error:
            self.error = error


def measure(bench: Bench, subject: Subject, share_pct: float, other: Subject | None, plan: Plan) -> MeasuredSpeed | None:
    """One measurement. other: runs beside it with what is left of the capacity, at most 100 pct. None: too slow to be measured, or there
    is no room for the other. Raises JobError when a job fails."""
    backend = bench.backend
    shares = {"calibrate": share_pct}
    if other is not None:
        left_pct = min(THREAD_PCT, backend.capacity_pct - share_pct)
        if left_pct < LEAST_OTHER_PCT:
            return None
        shares["calibrate-other"] = left_pct
    runners: dict[str, _Runner] = {}
    try:
        for job, who in zip(shares, (subject, other), strict=False):
            assert who is not None
            runners[job] = _Runner(who, backend.open_lane(job, role=who.role), bench.clock)
        backend.set_shares(shares)
        for runner in runners.values():
            bench.spawn(runner.run)
        found = _watch(bench, runners, plan)
        report = backend.report(found[1] if found else plan.span_s).get("calibrate")
    finally:
        for job in runners:
            backend.cancel(job)
        bench.join()
        for job in runners:
            backend.close_lane(job)
    if found is None:
        return None
    return MeasuredSpeed(
        job=subject.kind, model=subject.model, beside="" if other is None else f"{other.kind} {other.model}", share_pct=share_pct,
        throughput=found[0], received_pct=max(0.0, report.received_pct) if report else 0.0, span_s=found[1],
    )  # fmt: skip


def _watch(bench: Bench, runners: dict[str, _Runner], plan: Plan) -> tuple[float, float] | None:
    """(iterations per second, span in seconds) of the first job once it has run for long enough."""
    subject = next(iter(runners.values()))
    started_s = bench.clock.monotonic_s()
    while True:
        bench.rest(plan.span_s / 8)
        for runner in runners.values():
            if runner.error is not None:
                raise JobError(
                    f"a {runner._subject.kind} job failed: {runner.error}", subject=runner._subject.model
                ) from runner.error
        ended_s = list(subject.ended_s)
        # The first iteration holds what only happens once: memory, caches, a full bucket.
        span_s = ended_s[-1] - ended_s[1] if len(ended_s) > 2 else 0.0
        elapsed_s = bench.clock.monotonic_s() - started_s
        if (span_s >= plan.span_s and len(ended_s) >= plan.iterations + 2) or (elapsed_s >= plan.most_s and span_s > 0):
            return (len(ended_s) - 2) / span_s, span_s
        if elapsed_s >= plan.most_s:
            return None


def shares_of(plan: Plan, capacity_pct: int) -> tuple[float, ...]:
    """The plan's shares up to the capacity, and the capacity itself: beyond the largest share nothing is known."""
    inside = [share for share in plan.shares_pct if share <= capacity_pct]
    return tuple(sorted({*inside, float(capacity_pct)}))


def run(
    bench: Bench, found: Sequence[Subject], plan: Plan, *, progress: Callable[[str, float], None] = lambda what, frac: None
) -> list[MeasuredSpeed]:
    """All measurements, in turns. Raises JobError when a job fails, or when one is too slow at every share."""
    shares = shares_of(plan, bench.backend.capacity_pct)
    todo = [
        (subject, share, other)
        for _ in range(plan.repeats)
        for subject in found
        for other in dict.fromkeys((None, beside_of(subject, found)))
        for share in shares
    ]
    seen: list[MeasuredSpeed] = []
    slow: set[tuple[str, str, float, bool]] = set()
    for number, (subject, share, other) in enumerate(todo):
        key = (subject.kind, subject.model, share, other is not None)
        progress(f"{subject.kind} {subject.model} at {share:g} pct{' beside another' if other else ''}", number / len(todo))
        one = None if key in slow else measure(bench, subject, share, other, plan)
        if one is None:
            slow.add(key)
        else:
            seen.append(one)
    for subject in found:
        if not any(s.job == subject.kind and s.model == subject.model and s.share_pct >= THREAD_PCT for s in seen):
            raise JobError(
                f"{subject.kind} with {subject.model} is too slow to be measured: under three iterations in {plan.most_s:g} s",
                subject=subject.model, remedy="use a smaller model, or a faster machine",
            )  # fmt: skip
    return seen


# --- what follows from it ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class JobSpeed:
    """One job's curves. beside: None when it was not measured beside another; slowdown_frac: how much slower it is beside another at the
    same share, median over the shares, None: not measured."""

    kind: JobKind
    model: str
    alone: SpeedFit
    beside: SpeedFit | None
    slowdown_frac: float | None


def grouped(
    seen: Sequence[MeasuredSpeed], *, beside: bool, kind: JobKind | None = None
) -> dict[tuple[JobKind, str], list[SpeedSample]]:
    """Samples per (kind, model)."""
    groups: dict[tuple[JobKind, str], list[SpeedSample]] = {}
    for s in seen:
        if bool(s.beside) is beside and kind in (None, s.job):
            groups.setdefault((s.job, s.model), []).append(SpeedSample(share_pct=s.share_pct, throughput=s.throughput))
    return groups


def job_speeds(seen: Sequence[MeasuredSpeed]) -> list[JobSpeed]:
    together = grouped(seen, beside=True)
    made = []
    for (kind, model), samples in grouped(seen, beside=False).items():
        alone, other = fit(samples), together.get((kind, model))
        made.append(
            JobSpeed(
                kind=kind, model=model, alone=alone, beside=fit(other, along=alone) if other else None,
                slowdown_frac=_slowdown(samples, other) if other else None,
            )
        )  # fmt: skip
    return made


def _slowdown(alone: Sequence[SpeedSample], beside: Sequence[SpeedSample]) -> float:
    def middle(samples: Sequence[SpeedSample], share_pct: float) -> float:
        return statistics.median(s.throughput for s in samples if s.share_pct == share_pct)

    shares = {s.share_pct for s in alone} & {s.share_pct for s in beside}
    return 1.0 - statistics.median(middle(beside, x) / middle(alone, x) for x in shares) if shares else 0.0


def concluded(
    seen: Sequence[MeasuredSpeed],
    *,
    machine: str,
    devices: Sequence[str],
    backend: str,
    capacity_pct: int,
    quick: bool,
    utc_s: float,
) -> SpeedFile:
    """What is kept: the curve of training, pooled over models, because training is what plans give shares to by its speed.
    Raises JobError when the measurements make no curve."""
    try:
        curve = planned(
            list(grouped(seen, beside=False, kind="training").values()),
            list(grouped(seen, beside=True, kind="training").values()),
        )
    except ValueError as error:
        raise JobError(f"the measurements make no speed curve: {error}", remedy="run driftbox calibrate again") from None
    return SpeedFile(
        measured_utc=datetime.fromtimestamp(utc_s, UTC).isoformat(timespec="seconds"), machine=machine, devices=tuple(devices),
        backend=backend, capacity_pct=capacity_pct, models=tuple(sorted({s.model for s in seen})), quick=quick, speed=curve.curve,
        known=curve.known, error_frac=round(curve.error_frac, 4), samples=tuple(seen),
        problem=problem_of(seen, curve, on_cpu=not devices),
    )  # fmt: skip


def problem_of(seen: Sequence[MeasuredSpeed], curve: SpeedFit, *, on_cpu: bool) -> str:
    """Why plans must not use what was measured; empty: they may. On a CPU a share that was not delivered was taken by other programs."""
    short = _undelivered(seen) if on_cpu else None
    if short is not None:
        share_pct, got_pct = short
        return (
            f"other programs kept the machine busy while it was measured (a job with {share_pct:g} pct received {got_pct:.0f})"
        )
    if curve.known == "badly":
        return f"the measurements differ too much from each other ({100 * curve.error_frac:.0f} %)"
    return ""


def _undelivered(seen: Sequence[MeasuredSpeed]) -> tuple[float, float] | None:
    """(share, median received) of the training that received least of its share, when that is too little."""
    found: dict[tuple[float, bool], list[MeasuredSpeed]] = {}
    for s in seen:
        if s.job == "training":
            found.setdefault((s.share_pct, bool(s.beside)), []).append(s)
    got = [(share, statistics.median(s.received_pct for s in group)) for (share, _), group in sorted(found.items())]
    worst = min(got, key=lambda one: one[1] / min(one[0], THREAD_PCT), default=None)
    if worst is None or worst[1] >= DELIVERED_MIN_FRAC * min(worst[0], THREAD_PCT):
        return None
    return worst


def table(found: SpeedFile) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
    """Columns and rows for people: a row per job and share."""
    rows: list[tuple[object, ...]] = []
    for job in job_speeds(found.samples):
        beside = {p.share_pct: p for p in job.beside.points} if job.beside else {}
        for point in job.alone.points:
            other = beside.get(point.share_pct)
            rows.append(
                (
                    job.kind, job.model, f"{point.share_pct:g}", f"{point.factor * job.alone.full:.2f}", point.factor,
                    f"{100 * point.spread_frac:.1f}", other.factor if other else None,
                    f"{100 * job.slowdown_frac:.0f}" if other and job.slowdown_frac is not None else None,
                )
            )  # fmt: skip
    return ("job", "model", "share %", "iterations/s", "speed", "spread %", "speed beside", "slower beside %"), rows
