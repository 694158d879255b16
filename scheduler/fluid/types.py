"""What Fluid speaks of: trials, groups, the devices they may have, widths, and what a width costs.

Source: P. Yu, University of Michigan 2022, chapter 3 and appendix B (papers/fluid.md), also MLSys 2021. The cost model, eq. 3.2:

    h_w = h_1 * alpha^(1/w - 1)          0 < w < 1     w = 1/p: p trials share one GPU; alpha: overhead of one more of them
    h_w = (h_1 / w) * beta^(w - 1)       w = 1, 2, ..  whole GPUs, data parallel; beta: overhead of one more GPU

alpha and beta are measured, not predicted. What we changed: a width is a `Fraction`, so that a third is a third; the ranges of alpha
and beta are no precondition: outside of them the model still holds, and `scheduler.fluid.packing` keeps widths where they pay.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from configs.errors import UsageError

#: GPUs a trial is given: 1/p (shares one with up to p - 1 others), or a whole number.
Width = Fraction

#: A share that misses a whole number by rounding alone counts as that number.
ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """One configuration with a training budget. h_s: h_{i,1}, what is left of its run time on exactly one GPU, seconds (measured
    seconds per iteration times the iterations left); alpha: >= 1, per additional co-resident; beta: >= 1, per additional GPU."""

    id: str
    h_s: float
    alpha: float = 1.0
    beta: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.h_s) and self.h_s >= 0):
            raise UsageError(f"trial '{self.id}': h_s must be a number of seconds, 0 or more, got {self.h_s}", subject=self.id)
        for name in ("alpha", "beta"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 1):
                raise UsageError(f"trial '{self.id}': {name} must be a number, 1 or more, got {value}", subject=self.id)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialGroup:
    """Trials that are wanted as early as possible together: the unit of scheduling. Raises UsageError for two trials with one id."""

    id: str
    trials: tuple[Trial, ...]

    def __post_init__(self) -> None:
        check_ids(self.trials)


@dataclass(frozen=True, kw_only=True, slots=True)
class Pool:
    """The devices. gpus: n, identical GPUs that are usable now; share_max: c, most trials that may share one; width_max: d, most GPUs
    that one trial may have. Raises UsageError for a number out of range."""

    gpus: int
    share_max: int = 1
    width_max: int = 1

    def __post_init__(self) -> None:
        if self.gpus < 0 or self.share_max < 1 or self.width_max < 1:
            raise UsageError(f"gpus must be 0 or more, share_max and width_max 1 or more, got {self}", subject="fluid")

    @property
    def least(self) -> Width:
        """1/c, the smallest width."""
        return Fraction(1, self.share_max)


def check_ids(trials: Sequence[Trial]) -> None:
    """Raises UsageError for two trials with one id."""
    if len({t.id for t in trials}) < len(trials):
        raise UsageError("two trials with one id", subject="fluid", remedy="give each trial of a group its own id")


def speed(trial: Trial, width: Width) -> float:
    """Seconds of its one-GPU run time that `trial` gets done per second at `width` > 0: h_1 / h_w of eq. 3.2."""
    if width <= 0:
        raise ValueError(f"a trial runs at a width above 0, got {width}")
    if width < 1:
        return trial.alpha ** -float(1 / width - 1)
    return float(width) * trial.beta ** -float(width - 1)


def time_s(trial: Trial, width: Width) -> float:
    """h_{i,w}: seconds that the rest of `trial` takes at `width` (eq. 3.2)."""
    return trial.h_s / speed(trial, width)


def longest_first(trials: Sequence[Trial]) -> list[Trial]:
    """By falling h_{i,1}; of equal ones the earlier first."""
    return sorted(trials, key=lambda t: -t.h_s)
