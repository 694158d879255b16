"""A running retraining as SLAQ sees it, and what makes a question about such jobs impossible to answer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from configs.errors import UsageError
from scheduler.slaq.forecast import Declared, Source

Goal = Literal["sum", "minmax", "finish"]


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


def check_question(
    jobs: Sequence[SlaqJob],
    total_pct: int,
    quantum_pct: int,
    epoch_s: float,
    objective: str,
    min_pct: int,
    now_s: float,
    age_s: float | None,
) -> None:
    """Errors: UsageError naming everything that makes no sense. Losses are checked by `forecast.Source`."""
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
