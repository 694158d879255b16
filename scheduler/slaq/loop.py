"""Jobs that come, train and leave under an allocation policy, epoch by epoch, in virtual time: how SLAQ and fair compare (section 9).

A job runs cS core-seconds per iteration; with a cores for T seconds it advances a*T/(cS) iterations, fractional (section 4). After
every whole iteration it reports its loss; policies see only that. The truth, a loss curve over fractional iterations, stays here.
Times to x percent of the reduction count from arrival and are taken at epoch ends, as in worked example S6.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from scheduler.slaq.allocate import Bidder, allocate, fair_fractional
from scheduler.slaq.forecast import Declared, Forecasts
from scheduler.slaq.reallocate import Goal, SlaqJob, decide_shares

_TOL = 1e-12


@dataclass(frozen=True, kw_only=True)
class LoopJob:
    """A job of the loop. loss: after iteration k >= 1, any fractional k. cost: cS, core-seconds per iteration, > 0.
    converged: loss that counts as 100 percent of the reduction. ends: leaves when the loss is at or below this; ends_k: or here.
    told: what it reports after whole iteration k when that is not `loss(k)`, such as a noisy measurement. deadline_s: counts only when
    it has reached ends_k by then, and policies know both; None: they know neither."""

    id: str
    arrival_s: float
    loss: Callable[[float], float]
    cost: float
    converged: float
    ends: float = -math.inf
    ends_k: float = math.inf
    kind: Declared = "unknown"
    told: Callable[[int], float] | None = None
    deadline_s: float | None = None

    def left_frac(self, k: float) -> float:
        """(l - converged) / (l_first - converged), the normalised loss of the evaluation: 1 at the start."""
        span = self.loss(1.0) - self.converged
        return (self.loss(k) - self.converged) / span if span > 0 else 0.0


@dataclass(kw_only=True)
class Active:
    """A running job as policies see it: k is how far it is, reported what it has told."""

    job: LoopJob
    k: float = 1.0
    reported: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.report()

    def report(self) -> None:
        """Losses of the whole iterations that have ended since."""
        while len(self.reported) + 1 <= self.k + _TOL:
            k = len(self.reported) + 1
            self.reported.append(self.job.loss(k) if self.job.told is None else self.job.told(k))


#: (active jobs in order of arrival, cores, epoch in s, now in s) -> cores per job
Policy = Callable[[Sequence[Active], int, float, float], Sequence[float]]


@dataclass(frozen=True, kw_only=True)
class Tick:
    """One epoch: cores and normalised loss of every active job at its start."""

    at_s: float
    cores: tuple[float, ...]
    left_frac: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class LoopResult:
    """reached_s[mark][job]: seconds from arrival until `mark` of the reduction; ended_s[job]: when it left; ticks: one per epoch with
    jobs."""

    reached_s: dict[float, dict[str, float]]
    ended_s: dict[str, float]
    ticks: tuple[Tick, ...]

    def mean_s(self, mark: float) -> float:
        """Mean time to `mark` over all jobs."""
        times = self.reached_s[mark].values()
        return sum(times) / len(times)


def run_loop(
    jobs: Sequence[LoopJob],
    policy: Policy,
    *,
    cores: int,
    epoch_s: float,
    marks: Sequence[float] = (0.9,),
    until_s: float = math.inf,
) -> LoopResult:
    """Run until every job has left, or until `until_s`. Without that, every job must have an end that it can reach. A job's end is
    known to the second (its last epoch is not rounded up), but what it frees is given out at the next epoch."""
    waiting = sorted(jobs, key=lambda j: (j.arrival_s, j.id))
    active: list[Active] = []
    result = LoopResult(reached_s={mark: {} for mark in marks}, ended_s={}, ticks=())
    ticks: list[Tick] = []
    epoch = 0
    while (waiting or active) and epoch * epoch_s < until_s:
        now_s = epoch * epoch_s
        while waiting and waiting[0].arrival_s <= now_s + _TOL:
            active.append(Active(job=waiting.pop(0)))
        if active:
            shares = policy(active, cores, epoch_s, now_s)
            ticks.append(Tick(at_s=now_s, cores=tuple(shares), left_frac=tuple(a.job.left_frac(a.k) for a in active)))
            for a, share in zip(active, shares, strict=True):
                _advance(a, share, epoch_s, now_s, result)
            active = [a for a in active if a.job.id not in result.ended_s]
        epoch += 1
    return LoopResult(reached_s=result.reached_s, ended_s=result.ended_s, ticks=tuple(ticks))


def _advance(active: Active, share: float, epoch_s: float, now_s: float, result: LoopResult) -> None:
    """One epoch of one job."""
    job, before = active.job, active.k
    rate = share / job.cost
    active.k = min(before + rate * epoch_s, job.ends_k)
    active.report()
    _mark(result.reached_s, active, now_s + epoch_s)
    if active.k >= job.ends_k:
        result.ended_s[job.id] = now_s + ((job.ends_k - before) / rate if rate > 0 else 0.0)
    elif job.loss(active.k) <= job.ends + 1e-15:
        result.ended_s[job.id] = now_s + epoch_s


def fair_policy(active: Sequence[Active], cores: int, epoch_s: float, now_s: float) -> Sequence[float]:
    """C/J cores to each active job."""
    return fair_fractional(len(active), cores)


def exact_policy(active: Sequence[Active], cores: int, epoch_s: float, now_s: float) -> Sequence[float]:
    """SLAQ's sum objective with the true curves: what perfect predictions would give. At least one core each."""
    return allocate([_exact_bidder(a, epoch_s) for a in active], cores)


def slaq_policy(objective: Goal = "sum", *, min_cores: int = 1, forecasts: Forecasts | None = None) -> Policy:
    """SLAQ on what the jobs have reported, through the same code as on the box (one core = one quantum of 100 pct)."""
    made = forecasts or Forecasts()

    def policy(active: Sequence[Active], cores: int, epoch_s: float, now_s: float) -> Sequence[float]:
        answer = decide_shares(
            [_as_seen(a) for a in active], total_pct=100 * cores, quantum_pct=100, epoch_s=epoch_s, objective=objective,
            min_pct=100 * min_cores, now_s=now_s, forecasts=made,
        )  # fmt: skip
        return [job.pct / 100 for job in answer.jobs]

    return policy


def _as_seen(active: Active) -> SlaqJob:
    job = active.job
    timed = job.deadline_s is not None
    whole = len(active.reported)
    return SlaqJob(
        id=job.id,
        losses=tuple(active.reported),
        gpu_s_per_epoch=job.cost,
        kind=job.kind,
        since_s=job.arrival_s,
        deadline_s=job.deadline_s,
        epochs_left=job.ends_k - whole if timed else None,
        into_epoch_gpu_s=max(0.0, active.k - whole) * job.cost if timed else 0.0,
    )


def _exact_bidder(active: Active, epoch_s: float) -> Bidder:
    job, k = active.job, active.k
    unit = job.loss(1.0) - job.loss(2.0)
    return Bidder(gain=lambda cores: (job.loss(k) - job.loss(k + cores * epoch_s / job.cost)) / unit)


def _mark(reached: dict[float, dict[str, float]], active: Active, now_s: float) -> None:
    done_frac = 1.0 - active.job.left_frac(active.k)
    for mark, times in reached.items():
        if done_frac >= mark - _TOL:
            times.setdefault(active.job.id, now_s - active.job.arrival_s)
