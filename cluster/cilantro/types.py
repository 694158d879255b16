"""Values that Cilantro's learners, forecasters and policies hand to each other.

Units: alloc in the resource's unit (whole percent points of one GPU in the fleet, CPUs in the paper); load in requests (frames) per
second, 1 for jobs without one; x = alloc / load, the one dimension in which a curve is learned (card section 2); performance and its
goal (SLO) in the job's own measure, 0-1 for quality and deadlines, items per second for throughput.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One window of a job. sigma: standard deviation of `value`."""

    alloc: float
    load: float
    value: float
    sigma: float

    @property
    def x(self) -> float:
        """Allocation per unit load."""
        return self.alloc / self.load if self.load > 0 else math.inf

    @property
    def usable(self) -> bool:
        """Whether anything can be learned from it: positive x and sigma, everything finite (card 5.1)."""
        finite = all(map(math.isfinite, (self.alloc, self.load, self.value, self.sigma)))
        return finite and self.alloc > 0 and self.load > 0 and self.sigma > 0


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Performance at some x: lower confidence bound, estimate, upper one. low <= middle <= high everywhere."""

    low: FloatArray
    middle: FloatArray
    high: FloatArray


@dataclass(frozen=True, kw_only=True)
class Need:
    """Unit demand: alloc per unit load that reaches the goal. low: by the optimistic curve, the least that could be enough; high: by
    the pessimistic one, surely enough; middle: where a measurement would tell most. low <= middle <= high; inf: not in the range."""

    low: float
    middle: float
    high: float


class Learner(Protocol):
    """A curve from alloc per unit load to performance, never falling. A value: `updated` gives another one.

    One contract test runs over all of them (tests/unit/cluster/cilantro/test_learner_contract.py)."""

    def updated(self, samples: Sequence[Sample]) -> Self:
        """With these samples taken in; what is not `usable` is left out."""
        ...

    def bounds(self, x: FloatArray) -> Bounds:
        """At each x >= 0."""
        ...

    def need(self, goal: float) -> Need:
        """For the performance `goal`."""
        ...

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values; `learners.from_dict` is the inverse."""
        ...


def ordered(low: FloatArray, high: FloatArray, middle: FloatArray | None = None) -> Bounds:
    """Bounds that may have crossed, put in order (card W7: bounds that are only ever tightened invert under noise). The smaller and
    the larger of two curves that never fall never fall either. middle: clipped in between, default half way."""
    lower, upper = np.minimum(low, high), np.maximum(low, high)
    inner = (lower + upper) / 2 if middle is None else np.clip(middle, lower, upper)
    return Bounds(low=lower, middle=inner, high=upper)
