"""The training budget of a box, moved between running retrainings: SLAQ inside Ekya's window.

Ekya plans at the start of a window and when a job ends; in between, each finished training epoch is news about one loss curve.
`reallocate` answers that news with new training shares inside the budget that the plan gave to training. One iteration of the text
is one training epoch here, a core is one quantum of GPU share, and n(a) = s(a) * T / (c*S) with the measured speed curve s.

What a window changes (ours; SLAQ knows no deadlines, and in S6 it delays the jobs that are about to end):
  * A retraining counts only when it has *ended* before its deadline. The share that a job needs for that, constant until then, is
    its minimum as long as the budget lasts: need = the least whole quanta with s(need) * (deadline - now) >= GPU-seconds left.
    Where the budget covers all needs now, it covers them at every later call, because a share at or above the need never lets the
    need grow. If it does not, the smallest needs per weight are covered first: most jobs end.
    `finish` runs jobs one after another, which constant shares forbid. There a job is promised its end while the budget suffices for
    all promised jobs up to each deadline in turn, and it may be put off until it, or they, could not end any more (REACH).
    This leans on the caller to divide anew as soon as a job ends.
  * A job that cannot end in time whatever it gets gains nothing. It gets what nobody else can use.
  * Beyond the needs, objective `sum` or `minmax` as in the text, or `finish` (ours): a swap counts from the moment the training
    ends, so a quantum is worth  w * (first loss - predicted last loss) / GPU-seconds left, Smith's rule for weighted completion
    times. It compares plain losses, so they must mean the same for all jobs (1 - quality does).
  * No share idles while a job can use it: what is left when all gains have vanished is spread evenly.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from configs.errors import UsageError
from scheduler.ekya.estimate import SpeedCurve
from scheduler.slaq.allocate import Bidder, allocate, doubled, floors, spread, turns
from scheduler.slaq.forecast import Declared, Forecast, Forecasts, Source

Goal = Literal["sum", "minmax", "finish"]

#: `finish` may put a job off as long as it could still end when it is served again only after this many epochs.
REACH = 2.0

#: Slack in comparing GPU-seconds that come out of divisions.
_TOL_FRAC = 1e-9


@dataclass(frozen=True, kw_only=True, slots=True)
class SlaqJob:
    """A running retraining as SLAQ sees it.

    losses: after each epoch, oldest first (1 - held-out quality, or the training loss); may start with the one before training.
    gpu_s_per_epoch: c*S, GPU-seconds at 100 pct that one epoch takes, > 0 (`history.cost_per_iteration`).
    kind, target, refit_from: see `forecast.Source`.
    epochs_left: still to do, None: not known (then there is no need). into_epoch_gpu_s: spent on the epoch in progress.
    deadline_s: when it must have ended, in the clock of `now_s`; None: no deadline.
    min_pct: least share, None: the one of the call. max_pct: most it can turn into speed, None: no limit.
    planned_pct: share to keep until it has two losses, None: the fair one. weight: > 0, of its gains.
    since_s: when it started; the older job wins a tie. below_fair_s: how long it has waited below its fair share (`waited`).
    """

    id: str
    losses: tuple[float, ...]
    gpu_s_per_epoch: float
    kind: Declared = "unknown"
    target: float | None = None
    refit_from: int = 0
    epochs_left: float | None = None
    into_epoch_gpu_s: float = 0.0
    deadline_s: float | None = None
    min_pct: int | None = None
    max_pct: int | None = None
    planned_pct: int | None = None
    weight: float = 1.0
    since_s: float = 0.0
    below_fair_s: float = 0.0

    @property
    def source(self) -> Source:
        return Source(losses=self.losses, kind=self.kind, target=self.target, refit_from=self.refit_from)

    @property
    def left_gpu_s(self) -> float:
        """GPU-seconds until it has ended, infinite when nobody knows."""
        if self.epochs_left is None:
            return math.inf
        return max(0.0, self.epochs_left * self.gpu_s_per_epoch - self.into_epoch_gpu_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class JobShare:
    """What one job gets and why. need_pct: what it must have to end in time, None: nothing asked of it, or it cannot.
    gain: predicted normalised reduction (objective `finish`: loss) by its share, times weight; one_more: what one quantum more would
    add; one_less: what one quantum less would lose."""

    id: str
    pct: int
    need_pct: int | None
    can_end: bool
    iterations: float
    predicted_loss: float | None
    gain: float
    one_more: float
    one_less: float
    forecast: Forecast | None
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Reallocation:
    """Shares of all jobs in the order asked; sum of pct + spare_pct = total_pct, always."""

    jobs: tuple[JobShare, ...]
    spare_pct: int

    @property
    def shares(self) -> dict[str, int]:
        return {job.id: job.pct for job in self.jobs}


def reallocate(
    jobs: Sequence[SlaqJob],
    *,
    total_pct: int,
    quantum_pct: int,
    epoch_s: float,
    objective: Goal = "sum",
    min_pct: int = 0,
    now_s: float = 0.0,
    speed: Sequence[tuple[float, float]] = (),
    age_s: float | None = None,
    forecasts: Forecasts | None = None,
) -> dict[str, int]:
    """Training share per job id, whole percent in quanta; the sum never exceeds total_pct.

    total_pct: what the plan gave to training. epoch_s: T, seconds over which gains are predicted (until about the next call).
    min_pct: least share of every job that can end (rounded up to quanta, as far as the budget goes). speed: measured points of the
    throughput of a training job at a share, as in `Snapshot.speed`. age_s: ageing, see `allocate.doubled`; None: off.
    forecasts: keeps fits between calls (one per box); None: everything is fitted anew.
    Errors: UsageError for a number that makes no sense or two jobs with one id; ConfigError for a wrong speed curve.
    """
    return decide_shares(
        jobs, total_pct=total_pct, quantum_pct=quantum_pct, epoch_s=epoch_s, objective=objective, min_pct=min_pct, now_s=now_s,
        speed=speed, age_s=age_s, forecasts=forecasts,
    ).shares  # fmt: skip


def decide_shares(
    jobs: Sequence[SlaqJob],
    *,
    total_pct: int,
    quantum_pct: int,
    epoch_s: float,
    objective: Goal = "sum",
    min_pct: int = 0,
    now_s: float = 0.0,
    speed: Sequence[tuple[float, float]] = (),
    age_s: float | None = None,
    forecasts: Forecasts | None = None,
) -> Reallocation:
    """`reallocate` with everything that explains it. Arguments and errors as there."""
    _check(jobs, total_pct, quantum_pct, epoch_s, objective, min_pct, now_s, age_s)
    units = total_pct // quantum_pct
    asked = _Asked(
        units=units, quantum_pct=quantum_pct, epoch_s=epoch_s, objective=objective, min_pct=min_pct, now_s=now_s,
        speed=SpeedCurve(speed), age_s=age_s, jobs=len(jobs),
    )  # fmt: skip
    futures = (forecasts or Forecasts()).of([job.source for job in jobs])
    # ties go to the earlier bidder, so the older job stands first
    order = sorted(range(len(jobs)), key=lambda j: (jobs[j].since_s, jobs[j].id))
    cases = [_Case.of(jobs[j], futures[j], asked) for j in order]
    promised = _latest_needs(cases, asked) if objective == "finish" else _constant_needs(cases, units)
    # a need that the budget cannot cover makes the job as hopeless as one that no share could save
    cases = [replace(c, need=need, can_end=need is not None) for c, need in zip(cases, promised, strict=True)]
    granted = [need or 0 for need in promised]
    shares = _divide(cases, granted, asked)
    answers = {c.job.id: _explained(c, share, asked) for c, share in zip(cases, shares, strict=True)}
    return Reallocation(
        jobs=tuple(answers[job.id] for job in jobs),
        spare_pct=total_pct - sum(shares) * quantum_pct,
    )


def waited(before: Mapping[str, float], shares: Mapping[str, int], *, elapsed_s: float) -> dict[str, float]:
    """`below_fair_s` of each job after `elapsed_s` at `shares`: grows below the fair share (the mean of all), is paid back second for
    second at or above it."""
    fair_pct = sum(shares.values()) / max(1, len(shares))
    return {job: max(0.0, before.get(job, 0.0) + (elapsed_s if pct < fair_pct else -elapsed_s)) for job, pct in shares.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Asked:
    """The question, in quanta."""

    units: int
    quantum_pct: int
    epoch_s: float
    objective: Goal
    min_pct: int
    now_s: float
    speed: SpeedCurve
    age_s: float | None
    jobs: int

    def gpu_s(self, units: int, seconds: float) -> float:
        """GPU-seconds at 100 pct that `units` quanta deliver in `seconds`."""
        return self.speed.at(units * self.quantum_pct) * seconds


@dataclass(frozen=True, kw_only=True, slots=True)
class _Case:
    """A job, its future, and what it may and must have in quanta. need None: nothing asked of it, or more than it could get."""

    job: SlaqJob
    future: Forecast | None
    cap: int
    useful: int
    need: int | None
    can_end: bool
    timed: bool
    ends_in_s: float

    @staticmethod
    def of(job: SlaqJob, future: Forecast | None, asked: _Asked) -> _Case:
        cap = asked.units if job.max_pct is None else min(asked.units, job.max_pct // asked.quantum_pct)
        cap = cap if job.left_gpu_s > 0 else 0
        timed = job.deadline_s is not None and job.epochs_left is not None
        ends_in_s = (job.deadline_s or 0.0) - asked.now_s if timed else math.inf
        need = _least_units(asked, cap, job.left_gpu_s, ends_in_s) if timed else 0
        useful = _least_units(asked, cap, job.left_gpu_s, asked.epoch_s)
        return _Case(
            job=job, future=future, cap=cap, useful=cap if useful is None else useful, need=need, can_end=need is not None,
            timed=timed, ends_in_s=ends_in_s,
        )  # fmt: skip


def _least_units(asked: _Asked, cap: int, gpu_s: float, seconds: float) -> int | None:
    """Fewest quanta that deliver `gpu_s` in `seconds`; None when `cap` do not. Throughput is taken as never falling with the share."""
    if gpu_s <= 0:
        return 0
    enough = gpu_s * (1 - _TOL_FRAC)
    found = 1 + bisect_left(range(1, cap + 1), enough, key=lambda units: asked.gpu_s(units, seconds))
    return found if found <= cap else None


def _constant_needs(cases: Sequence[_Case], units: int) -> list[int | None]:
    """Quanta set aside so that jobs end in time at a constant share, None: not promised. Smallest need per weight first."""
    granted: list[int | None] = [None] * len(cases)
    for j in _by_need(cases):
        need = cases[j].need or 0
        if need <= units:
            granted[j] = need
            units -= need
    return granted


def _latest_needs(cases: Sequence[_Case], asked: _Asked) -> list[int | None]:
    """For `finish`, which runs jobs one after another: quanta without which a job, or all jobs up to some deadline together, could not
    end in time any more if they were served again only after REACH epochs. None: not promised."""
    found: list[int | None] = [None if case.timed else 0 for case in cases]
    promised = _in_time(cases, asked)
    latest_s = max((case.ends_in_s for case in cases), default=0.0)
    free, work_gpu_s, done_gpu_s = asked.units, 0.0, 0.0
    for place, j in enumerate(promised):
        case = cases[j]
        reach_s = min(REACH * asked.epoch_s, case.ends_in_s)
        after_s = case.ends_in_s - reach_s
        work_gpu_s += case.job.left_gpu_s
        need = _least_units(asked, case.cap, case.job.left_gpu_s - asked.gpu_s(case.cap, after_s), reach_s) or 0
        # all jobs up to a deadline share the budget afterwards; what they cannot do then, they must do now, before later ones
        last_of_its_time = place + 1 == len(promised) or cases[promised[place + 1]].ends_in_s > case.ends_in_s
        if last_of_its_time and case.ends_in_s < latest_s:
            together_gpu_s = work_gpu_s - asked.gpu_s(asked.units, after_s) - done_gpu_s
            rest = _least_units(asked, case.cap, together_gpu_s, reach_s)
            need = max(need, case.cap if rest is None else rest)
        found[j] = need = min(free, need)
        free -= need
        done_gpu_s += asked.gpu_s(need, reach_s)
    return found


def _in_time(cases: Sequence[_Case], asked: _Asked) -> list[int]:
    """Jobs that the budget can bring to their deadlines all together, served earliest deadline first, in that order; chosen by need."""
    order = [j for j in sorted(range(len(cases)), key=lambda j: cases[j].ends_in_s) if cases[j].timed]
    place = {j: i for i, j in enumerate(order)}
    # GPU-seconds that may still be promised up to each deadline
    slack_gpu_s = np.array([asked.gpu_s(asked.units, max(0.0, cases[j].ends_in_s)) for j in order]) * (1 + _TOL_FRAC)
    chosen = set()
    for j in _by_need(cases):
        work_gpu_s = cases[j].job.left_gpu_s
        if cases[j].timed and slack_gpu_s[place[j] :].min() >= work_gpu_s:
            slack_gpu_s[place[j] :] -= work_gpu_s
            chosen.add(j)
    return [j for j in order if j in chosen]


def _by_need(cases: Sequence[_Case]) -> list[int]:
    """Jobs that could end in time were they alone, smallest need per weight first: so most jobs end."""
    possible = [j for j, case in enumerate(cases) if case.need is not None]
    return sorted(possible, key=lambda j: ((cases[j].need or 0) / cases[j].job.weight, j))


def _divide(cases: Sequence[_Case], granted: Sequence[int], asked: _Asked) -> list[int]:
    """Needs, then minimum shares, then the objective, then what is left over."""
    bidders = [_bidder(case, asked) for case in cases]
    above = [replace(b, least=max(0, b.least - g)) for b, g in zip(bidders, granted, strict=True)]
    least = [g + more for g, more in zip(granted, floors(above, asked.units - sum(granted)), strict=True)]
    final = [
        replace(b, least=low, most=low if case.future is None else case.cap)
        for b, case, low in zip(bidders, cases, least, strict=True)
    ]
    shares = allocate(final, asked.units, "minmax" if asked.objective == "minmax" else "sum")
    for caps in (
        [case.useful if case.can_end else 0 for case in cases],
        [case.cap if case.can_end else 0 for case in cases],
        [case.cap for case in cases],
    ):
        shares = spread(shares, caps, asked.units - sum(shares))
    return shares


def _bidder(case: _Case, asked: _Asked) -> Bidder:
    gain = _gain(case, asked)
    weight = doubled(case.job.weight, case.job.below_fair_s, asked.age_s)

    def remaining(units: int) -> float:
        if case.future is None or not case.can_end:
            return 0.0
        return weight * case.future.remaining_frac(_iterations(case, asked, units))

    return Bidder(
        gain=lambda units: weight * gain(units),
        remaining=remaining,
        least=_least(case, asked),
        most=case.cap,
        waited_turns=turns(case.job.below_fair_s, asked.epoch_s, asked.jobs, asked.units),
    )


def _least(case: _Case, asked: _Asked) -> int:
    """Minimum share in quanta, needs not counted."""
    if not case.can_end:
        return 0
    if case.future is None:
        planned = case.job.planned_pct
        own = asked.units // asked.jobs if planned is None else planned // asked.quantum_pct
        return min(case.cap, max(1, own))
    pct = asked.min_pct if case.job.min_pct is None else case.job.min_pct
    return min(case.cap, math.ceil(pct / asked.quantum_pct))


def _gain(case: _Case, asked: _Asked) -> Callable[[int], float]:
    """Units -> worth over the next epoch_s, weight not included."""
    future, job = case.future, case.job
    if future is None or not case.can_end:
        return lambda units: 0.0
    if asked.objective != "finish":
        return lambda units: future.gain(_iterations(case, asked, units))
    ends_at = future.loss_after(job.epochs_left or 0.0)
    worth = max(0.0, future.first - ends_at) / job.left_gpu_s if 0 < job.left_gpu_s < math.inf else 0.0
    return lambda units: worth * min(job.left_gpu_s, asked.gpu_s(units, asked.epoch_s))


def _iterations(case: _Case, asked: _Asked, units: int) -> float:
    """n(a), fractional, at most what is left to do."""
    n = asked.gpu_s(units, asked.epoch_s) / case.job.gpu_s_per_epoch
    return n if case.job.epochs_left is None else min(n, case.job.epochs_left)


def _explained(case: _Case, share: int, asked: _Asked) -> JobShare:
    gain = _gain(case, asked)
    iterations = _iterations(case, asked, share)
    return JobShare(
        id=case.job.id,
        pct=share * asked.quantum_pct,
        need_pct=case.need * asked.quantum_pct if case.need and case.can_end else None,
        can_end=case.can_end,
        iterations=iterations,
        predicted_loss=case.future.loss_after(iterations) if case.future else None,
        gain=case.job.weight * gain(share),
        one_more=case.job.weight * (gain(share + 1) - gain(share)),
        one_less=case.job.weight * (gain(share) - gain(share - 1)) if share > 0 else 0.0,
        forecast=case.future,
        why=_why(case, share, asked, gain),
    )


def _why(case: _Case, share: int, asked: _Asked, gain: Callable[[int], float]) -> str:
    """One sentence an operator understands."""
    pct = share * asked.quantum_pct
    if case.job.left_gpu_s <= 0:
        return "nothing is left to train"
    if not case.can_end:
        return f"cannot end in time; gets {pct} pct that nobody else can use"
    if case.future is None:
        return f"fewer than two losses: no forecast yet, keeps {pct} pct"
    if share == 0:
        return "no share is left for it; its turn comes" if asked.units else "there is no budget"
    if case.need and share == case.need:
        return f"{pct} pct is the least with which it ends in time"
    unit = "loss, by ending sooner" if asked.objective == "finish" else "of its largest step"
    least = "its minimum share, " if share == _least(case, asked) else ""
    last = gain(share) - gain(share - 1)
    return f"{pct} pct: {least}worth {gain(share):.4g} {unit}; the last {asked.quantum_pct} pct of it {last:.4g}"


def _check(
    jobs: Sequence[SlaqJob],
    total_pct: int,
    quantum_pct: int,
    epoch_s: float,
    objective: str,
    min_pct: int,
    now_s: float,
    age_s: float | None,
) -> None:
    problems = []
    if total_pct < 0 or quantum_pct <= 0 or min_pct < 0:
        problems.append(f"total_pct {total_pct} and min_pct {min_pct} must be >= 0, quantum_pct {quantum_pct} > 0")
    if not (math.isfinite(epoch_s) and epoch_s > 0 and math.isfinite(now_s)):
        problems.append(f"epoch_s {epoch_s} must be > 0 and now_s {now_s} finite")
    if age_s is not None and not (math.isfinite(age_s) and age_s > 0):
        problems.append(f"age_s {age_s} must be > 0")
    if objective not in ("sum", "minmax", "finish"):
        problems.append(f"unknown objective '{objective}'; known: sum, minmax, finish")
    if len({job.id for job in jobs}) < len(jobs):
        problems.append("two jobs with one id")
    problems += [f"job '{job.id}': {what}" for job in jobs for what in job_problems(job, quantum_pct, objective)]
    if problems:
        raise UsageError("; ".join(problems), subject="slaq")


def job_problems(job: SlaqJob, quantum_pct: int, objective: str) -> list[str]:
    """What makes a job impossible to decide on (its losses are checked by `Source`); empty when nothing does."""
    positive = {"gpu_s_per_epoch": job.gpu_s_per_epoch, "weight": job.weight}
    optional = {"epochs_left": job.epochs_left, "into_epoch_gpu_s": job.into_epoch_gpu_s, "below_fair_s": job.below_fair_s}
    problems = [f"{name} must be finite and > 0" for name, v in positive.items() if not (math.isfinite(v) and v > 0)]
    problems += [
        f"{name} must be finite and >= 0" for name, v in optional.items() if v is not None and not (math.isfinite(v) and v >= 0)
    ]
    problems += [f"{name} must be finite" for name, v in _times(job).items() if v is not None and not math.isfinite(v)]
    problems += [f"{name} must be >= 0" for name, v in _least_shares(job).items() if v is not None and v < 0]
    if job.max_pct is not None and job.max_pct < quantum_pct:
        problems.append(f"max_pct {job.max_pct} is less than a quantum of {quantum_pct}")
    if objective == "finish" and job.epochs_left is None:
        problems.append("objective finish needs epochs_left")
    return problems


def _times(job: SlaqJob) -> dict[str, float | None]:
    return {"deadline_s": job.deadline_s, "since_s": job.since_s}


def _least_shares(job: SlaqJob) -> dict[str, int | None]:
    return {"min_pct": job.min_pct, "planned_pct": job.planned_pct}
