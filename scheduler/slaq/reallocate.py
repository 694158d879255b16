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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from scheduler.ekya.estimate import SpeedCurve
from scheduler.slaq.allocate import Bidder, allocate, doubled, floors, spread, turns
from scheduler.slaq.forecast import Forecast, Forecasts
from scheduler.slaq.job import Goal, SlaqJob, check_question
from scheduler.slaq.needs import Asked, Case, constant_needs, latest_needs

__all__ = ["Goal", "JobShare", "Reallocation", "SlaqJob", "decide_shares", "reallocate", "waited"]


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
    check_question(jobs, total_pct, quantum_pct, epoch_s, objective, min_pct, now_s, age_s)
    units = total_pct // quantum_pct
    asked = Asked(
        units=units, quantum_pct=quantum_pct, epoch_s=epoch_s, objective=objective, min_pct=min_pct, now_s=now_s,
        speed=SpeedCurve(speed), age_s=age_s, jobs=len(jobs),
    )  # fmt: skip
    futures = (forecasts or Forecasts()).of([job.source for job in jobs])
    # ties go to the earlier bidder, so the older job stands first
    order = sorted(range(len(jobs)), key=lambda j: (jobs[j].since_s, jobs[j].id))
    cases = [Case.of(jobs[j], futures[j], asked) for j in order]
    promised = latest_needs(cases, asked) if objective == "finish" else constant_needs(cases, units)
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


def _divide(cases: Sequence[Case], granted: Sequence[int], asked: Asked) -> list[int]:
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


def _bidder(case: Case, asked: Asked) -> Bidder:
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


def _least(case: Case, asked: Asked) -> int:
    """Minimum share in quanta, needs not counted."""
    if not case.can_end:
        return 0
    if case.future is None:
        planned = case.job.planned_pct
        own = asked.units // asked.jobs if planned is None else planned // asked.quantum_pct
        return min(case.cap, max(1, own))
    pct = asked.min_pct if case.job.min_pct is None else case.job.min_pct
    return min(case.cap, math.ceil(pct / asked.quantum_pct))


def _gain(case: Case, asked: Asked) -> Callable[[int], float]:
    """Units -> worth over the next epoch_s, weight not included."""
    future, job = case.future, case.job
    if future is None or not case.can_end:
        return lambda units: 0.0
    if asked.objective != "finish":
        return lambda units: future.gain(_iterations(case, asked, units))
    ends_at = future.loss_after(job.epochs_left or 0.0)
    worth = max(0.0, future.first - ends_at) / job.left_gpu_s if 0 < job.left_gpu_s < math.inf else 0.0
    return lambda units: worth * min(job.left_gpu_s, asked.gpu_s(units, asked.epoch_s))


def _iterations(case: Case, asked: Asked, units: int) -> float:
    """n(a), fractional, at most what is left to do."""
    n = asked.gpu_s(units, asked.epoch_s) / case.job.gpu_s_per_epoch
    return n if case.job.epochs_left is None else min(n, case.job.epochs_left)


def _explained(case: Case, share: int, asked: Asked) -> JobShare:
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


def _why(case: Case, share: int, asked: Asked, gain: Callable[[int], float]) -> str:
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
