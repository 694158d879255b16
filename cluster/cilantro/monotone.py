"""The learner that Driftbox uses: what is measured, that performance never falls, and that returns diminish. Not in the paper.

The tree (card 5.1) needs to be told the range and the steepest slope of every curve, and its bounds are as wide as slope times cell.
Here nothing needs to be told. Samples fall into narrow bins (a fixed ratio of x wide). Two facts turn them into bounds everywhere:

  never falls          f(x) <= f(x') for x <= x': any run of neighbouring bins bounds everything left of it from above, right of it
                       from below; long runs have little noise, short ones little bias, all lengths 1, 2, 4, ... are tried
  diminishing returns  f(x) / x never grows: one measured point bounds the curve in both directions,
                       f(x) >= f(x') x / x' left of it, f(x) <= (f(x') + slack) x / x' - slack right of it

`slack` lets a curve that starts with a threshold be explored in spite of the second. Where measurements contradict it, they win.
Noise: a job's own sigma says how samples compare; how large it is in truth is measured from samples that lie in one bin (the
clients' formula overstates it five- to tenfold, card section 3).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy.optimize import isotonic_regression

from cluster.cilantro.types import Bounds, FloatArray, Need, Sample, ordered

#: Most bins kept; the lightest goes first. A ratio of 1.02 covers a factor of 50,000 in 550.
MOST_BINS = 600
#: Samples that the stated sigma is worth against the measured spread.
TRUST = 4.0
#: The slope at the end of a curve is measured from this part of its largest x.
LAST_PART = 0.75
#: Points of a curve on which a unit demand is looked for.
NEED_POINTS = 512


@dataclass(frozen=True, kw_only=True)
class MonotoneSettings:
    """high: the largest performance there can be, inf where nobody knows; width: ratio of a bin's ends; z: standard errors of a
    bound (1.64: 90 percent, as the paper); slack: see the module; keep: part of the old weight kept with each batch, below 1 forgets;
    least_sd: a bound is never surer than this part of the value, however many samples there are (curves wander)."""

    high: float = 1.0
    width: float = 1.02
    z: float = 1.64
    slack: float = 0.05
    keep: float = 1.0
    least_sd: float = 0.0

    def __post_init__(self) -> None:
        if not (self.high > 0 and self.width > 1 and self.z >= 0 and self.slack >= 0 and 0 < self.keep <= 1):
            raise ValueError(f"settings of a monotone learner out of range: {self}")


@dataclass(frozen=True, kw_only=True)
class _Bin:
    """Sums over samples, each weighing 1 / sigma^2: weight, of x, of y, of y^2; count counts them."""

    weight: float = 0.0
    of_x: float = 0.0
    of_y: float = 0.0
    of_yy: float = 0.0
    count: float = 0.0

    def plus(self, sample: Sample) -> _Bin:
        w = sample.sigma**-2
        return _Bin(
            weight=self.weight + w, of_x=self.of_x + w * sample.x, of_y=self.of_y + w * sample.value,
            of_yy=self.of_yy + w * sample.value**2, count=self.count + 1,
        )  # fmt: skip

    def faded(self, keep: float) -> _Bin:
        return _Bin(**{name: value * keep for name, value in vars(self).items()})


@dataclass(frozen=True, kw_only=True)
class _Shape:
    """Bins from left to right: x, mean, bounds there, and the fit that never falls."""

    x: FloatArray
    fit: FloatArray
    low: FloatArray
    high: FloatArray


@dataclass(frozen=True, kw_only=True)
class MonotoneLearner:
    """Never changes; `updated` copies."""

    settings: MonotoneSettings = field(default_factory=MonotoneSettings)
    bins: dict[int, _Bin] = field(default_factory=dict)

    def updated(self, samples: Sequence[Sample]) -> MonotoneLearner:
        """With the samples in their bins."""
        usable = [sample for sample in samples if sample.usable]
        if not usable:
            return self
        keep = self.settings.keep
        bins = {i: b.faded(keep) for i, b in self.bins.items()} if keep < 1 else dict(self.bins)
        for sample in usable:
            at = math.floor(math.log(sample.x) / math.log(self.settings.width))
            bins[at] = bins.get(at, _Bin()).plus(sample)
        while len(bins) > MOST_BINS:
            del bins[min(bins, key=lambda i: (bins[i].weight, i))]
        return replace(self, bins=bins)

    @property
    def noise_factor(self) -> float:
        """Measured variance within bins over the one that the samples' sigma says. 1 while there is little to measure it by."""
        spread = sum(b.of_yy - b.of_y**2 / b.weight for b in self.bins.values())
        free = sum(max(0.0, b.count - 1) for b in self.bins.values())
        return max(1e-9, (TRUST * 1.0 + max(0.0, spread)) / (TRUST + free)) if free < TRUST else max(1e-9, spread / free)

    @cached_property
    def _shape(self) -> _Shape:
        rows = [b for _, b in sorted(self.bins.items())]
        weight = np.array([b.weight for b in rows])
        x = np.array([b.of_x for b in rows]) / weight
        total = np.array([b.of_y for b in rows])
        low, high = _runs(weight, total, self.settings.z * math.sqrt(self.noise_factor), self.settings.least_sd)
        return _Shape(x=x, fit=never_falling(total / weight, weight), low=low, high=high)

    def bounds(self, x: FloatArray) -> Bounds:
        """Bounds by both facts of the module; the estimate goes straight between bins, and half way between the bounds outside."""
        at = np.asarray(x, dtype=np.float64)
        cap = self.settings.high
        if not self.bins:
            top = np.where(at > 0, cap, 0.0)
            return ordered(np.zeros_like(at), top, np.zeros_like(at) if math.isinf(cap) else None)
        shape, slack = self._shape, self.settings.slack
        # of the bins at or left of x, and at or right of it
        left, right = np.searchsorted(shape.x, at, side="right"), np.searchsorted(shape.x, at, side="left")
        rising = np.concatenate([[0.0], np.maximum.accumulate(shape.low)])[left]
        falling = np.concatenate([np.minimum.accumulate(shape.high[::-1])[::-1], [cap]])[right]
        least = np.concatenate([np.maximum.accumulate((shape.low / shape.x)[::-1])[::-1], [0.0]])[right] * at
        slopes = np.concatenate([[np.inf], np.minimum.accumulate((shape.high + slack) / shape.x)])[left]
        with np.errstate(invalid="ignore"):
            most = np.where(left > 0, slopes * at - slack, np.inf)
        # where returns were seen to grow, only that performance never falls is left to go by
        refuted = least > most
        least, most = np.where(refuted, -np.inf, least), np.where(refuted, np.inf, most)
        low = np.maximum(rising, np.minimum(least, falling))
        high = np.minimum(falling, np.maximum(most, low))
        low, high = np.clip(low, 0.0, cap), np.clip(high, 0.0, cap)
        inside = (at >= shape.x[0]) & (at <= shape.x[-1])
        between = np.interp(at, shape.x, np.clip(shape.fit, 0.0, cap))
        finite = np.where(np.isinf(high), low, high)
        outside = np.minimum((low + finite) / 2, np.where(at > shape.x[-1], self._straight_on(at), np.inf))
        found = ordered(low, high, np.where(inside, between, outside))
        return _monotone(at, found)

    def _straight_on(self, at: FloatArray) -> FloatArray:
        """The fit beyond the last bin, no steeper than it was over the last part that was measured (returns diminish): a curve that is
        seen to be level is not expected to rise. inf where too little of it was measured to tell."""
        x, fit = self._shape.x, self._shape.fit
        before = int(np.searchsorted(x, x[-1] * LAST_PART, side="right")) - 1
        if before < 0:
            return np.full_like(at, np.inf)
        slope = (fit[-1] - fit[before]) / (x[-1] - x[before])
        return np.asarray(fit[-1] + slope * (at - x[-1]), dtype=np.float64)

    def need(self, goal: float) -> Need:
        """Looked for on a grid from 0 to eight times the largest x seen."""
        if not self.bins:
            return Need(low=0.0, middle=math.inf, high=math.inf)
        grid = np.linspace(0.0, 8 * float(self._shape.x[-1]), NEED_POINTS)
        return need_on(grid, self.bounds(grid), goal)

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values; an unlimited `high` is null."""
        settings = {**vars(self.settings), "high": None if math.isinf(self.settings.high) else self.settings.high}
        rows = [[i, b.weight, b.of_x, b.of_y, b.of_yy, b.count] for i, b in sorted(self.bins.items())]
        return {"made": "monotone", "settings": settings, "bins": rows}

    @staticmethod
    def from_dict(data: dict[str, Any]) -> MonotoneLearner:
        """Inverse of `as_dict`. KeyError, TypeError or ValueError for anything else."""
        given = dict(data["settings"])
        given["high"] = math.inf if given["high"] is None else given["high"]
        bins = {
            int(i): _Bin(weight=float(w), of_x=float(wx), of_y=float(wy), of_yy=float(wyy), count=float(n))
            for i, w, wx, wy, wyy, n in data["bins"]
        }
        return MonotoneLearner(settings=MonotoneSettings(**given), bins=bins)


def never_falling(values: FloatArray, weights: FloatArray) -> FloatArray:
    """Weighted least squares among sequences that never fall."""
    return np.asarray(isotonic_regression(values, weights=weights).x, dtype=np.float64)


def need_on(grid: FloatArray, bounds: Bounds, goal: float) -> Need:
    """Unit demand on a grid of x: the first point at which each curve reaches the goal, inf if none does."""
    low, high = _first(grid, bounds.high, goal), _first(grid, bounds.low, goal)
    told = np.minimum(bounds.high - goal, goal - bounds.low)
    return Need(low=low, middle=min(max(float(grid[int(np.argmax(told))]), low), high), high=high)


def _first(grid: FloatArray, curve: FloatArray, goal: float) -> float:
    reached = np.flatnonzero(curve >= goal)
    return float(grid[reached[0]]) if len(reached) else math.inf


def _runs(weight: FloatArray, total: FloatArray, z: float, least_sd: float) -> tuple[FloatArray, FloatArray]:
    """Bounds at each bin from runs of 1, 2, 4, ... bins: ending there for the lower one, beginning there for the upper one."""
    count = len(weight)
    mass, sums = np.concatenate([[0.0], np.cumsum(weight)]), np.concatenate([[0.0], np.cumsum(total)])
    low, high = np.full(count, -np.inf), np.full(count, np.inf)
    length = 1
    while True:
        ends = np.arange(1, count + 1)
        starts = np.maximum(0, ends - length)
        mean, sure = _mean(sums, mass, starts, ends, z, least_sd)
        low = np.maximum(low, mean - sure)
        begins = np.arange(count)
        stops = np.minimum(count, begins + length)
        mean, sure = _mean(sums, mass, begins, stops, z, least_sd)
        high = np.minimum(high, mean + sure)
        if length >= count:
            return np.maximum.accumulate(low), np.minimum.accumulate(high[::-1])[::-1]
        length *= 2


def _mean(
    sums: FloatArray, mass: FloatArray, starts: Any, ends: Any, z: float, least_sd: float
) -> tuple[FloatArray, FloatArray]:
    weight = np.maximum(mass[ends] - mass[starts], 1e-300)
    mean = (sums[ends] - sums[starts]) / weight
    return mean, np.hypot(z / np.sqrt(weight), z * least_sd * np.abs(mean))


def _monotone(x: FloatArray, found: Bounds) -> Bounds:
    """Made never to fall in the order of x: noise may have crossed bounds of neighbours. Queries need not be sorted."""
    if (x[1:] >= x[:-1]).all():
        low, middle, high = (np.maximum.accumulate(curve) for curve in (found.low, found.middle, found.high))
        return Bounds(low=low, middle=middle, high=high)
    order = np.argsort(x, kind="stable")
    back = np.empty_like(order)
    back[order] = np.arange(len(order))
    low, middle, high = (np.maximum.accumulate(curve[order])[back] for curve in (found.low, found.middle, found.high))
    return Bounds(low=low, middle=middle, high=high)
