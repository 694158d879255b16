"""What stands for a learner where feedback is missing (card section 10): a profile, a proxy metric, a stated demand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from cluster.cilantro.types import Bounds, FloatArray, Learner, Need, Sample, ordered

#: Part of full quality kept when one of k frames is analysed, mean of five street cameras (recorded, Ekya's public traces): quality
#: against the part of the full share, for a customer of whom nothing is known but the share it states.
DEFAULT_QUALITY = (
    (0.0, 0.0), (1 / 20, 0.102), (1 / 15, 0.152), (1 / 10, 0.196), (1 / 9, 0.31), (1 / 8, 0.356), (1 / 7, 0.44),
    (1 / 6, 0.484), (1 / 5, 0.52), (1 / 4, 0.614), (1 / 3, 0.702), (1 / 2, 0.812), (1.0, 1.0),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Profiled:
    """A curve measured beforehand: linear between points, constant after the last. Does not learn. points: (x, low, middle, high),
    x ascending; each of the three is made never to fall, and they are put in order (recorded ones have them crossed)."""

    points: tuple[tuple[float, float, float, float], ...]

    def __post_init__(self) -> None:
        xs = [p[0] for p in self.points]
        if not xs or any(not math.isfinite(v) for p in self.points for v in p) or xs != sorted(set(xs)):
            raise ValueError("a profile needs points with rising, finite x")

    @staticmethod
    def of(points: Sequence[tuple[float, float]]) -> Profiled:
        """A curve without doubt."""
        return Profiled(points=tuple((x, y, y, y) for x, y in points))

    def updated(self, samples: Sequence[Sample]) -> Profiled:
        """Itself."""
        return self

    @cached_property
    def _curves(self) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """x, low, middle, high. An experiment asks a million times."""
        x, *curves = np.array(self.points).T
        low, middle, high = (np.maximum.accumulate(curve) for curve in curves)
        return x, low, middle, high

    def bounds(self, x: FloatArray) -> Bounds:
        """Linear between points."""
        xs, *curves = self._curves
        low, middle, high = (np.interp(x, xs, curve) for curve in curves)
        return ordered(low, high, middle)

    def need(self, goal: float) -> Need:
        """Where each curve first reaches the goal."""
        xs = self._curves[0]
        found = self.bounds(xs)
        low, middle, high = (_reach(xs, c, goal) for c in (found.high, found.middle, found.low))
        return Need(low=low, middle=middle, high=high)

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"made": "profiled", "points": [list(p) for p in self.points]}

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Profiled:
        """Inverse of `as_dict`."""
        return Profiled(points=tuple((float(x), float(a), float(b), float(c)) for x, a, b, c in data["points"]))


@dataclass(frozen=True, kw_only=True)
class Proxy:
    """Learns from a metric that stands for performance. to_value: user-stated points (metric, performance), metric rising,
    performance never falling; linear between, constant outside."""

    to_value: tuple[tuple[float, float], ...]
    learner: Learner

    def __post_init__(self) -> None:
        metrics, values = [m for m, _ in self.to_value], [v for _, v in self.to_value]
        if not metrics or metrics != sorted(set(metrics)) or values != sorted(values):
            raise ValueError("a proxy's map needs rising metrics and values that never fall")

    def updated(self, samples: Sequence[Sample]) -> Proxy:
        """The samples mapped to performance; sigma by the map's slope around the metric, over one sigma to each side."""
        return replace(self, learner=self.learner.updated([self._mapped(s) for s in samples if s.usable]))

    def _mapped(self, sample: Sample) -> Sample:
        metrics, values = zip(*self.to_value, strict=True)
        below, at, above = np.interp([sample.value - sample.sigma, sample.value, sample.value + sample.sigma], metrics, values)
        least = 1e-3 * max(abs(values[-1]), 1e-9)
        return replace(sample, value=float(at), sigma=max(float(above - below) / 2, least))

    def bounds(self, x: FloatArray) -> Bounds:
        """Of the learner behind."""
        return self.learner.bounds(x)

    def need(self, goal: float) -> Need:
        """Of the learner behind."""
        return self.learner.need(goal)

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"made": "proxy", "to_value": [list(p) for p in self.to_value], "learner": self.learner.as_dict()}


@dataclass(frozen=True, kw_only=True)
class Stated:
    """The user's word: `goal` is reached at `unit_demand` (alloc per unit load), performance is linear up to it. Does not learn."""

    unit_demand: float
    goal: float

    def __post_init__(self) -> None:
        if not (0 < self.unit_demand < math.inf and 0 < self.goal < math.inf):
            raise ValueError(f"a stated demand and its goal must be above 0, got {self}")

    def updated(self, samples: Sequence[Sample]) -> Stated:
        """Itself."""
        return self

    def bounds(self, x: FloatArray) -> Bounds:
        """Without doubt."""
        value = self.goal * np.clip(np.asarray(x, dtype=np.float64) / self.unit_demand, 0.0, 1.0)
        return Bounds(low=value, middle=value, high=value)

    def need(self, goal: float) -> Need:
        """In proportion; inf above the stated goal."""
        at = self.unit_demand * goal / self.goal if goal <= self.goal else math.inf
        return Need(low=at, middle=at, high=at)

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"made": "stated", "unit_demand": self.unit_demand, "goal": self.goal}

    @staticmethod
    def from_dict(data: dict[str, Any]) -> Stated:
        """Inverse of `as_dict`."""
        return Stated(unit_demand=float(data["unit_demand"]), goal=float(data["goal"]))


def default_quality(full_x: float, best: float = 1.0) -> Profiled:
    """Quality against GPU-percent per unit load by `DEFAULT_QUALITY`. full_x: percent per frame and second at which every frame is
    analysed; best: quality then."""
    return Profiled.of([(full_x * part, best * kept) for part, kept in DEFAULT_QUALITY])


def _reach(x: FloatArray, curve: FloatArray, goal: float) -> float:
    """Least x at which a piecewise linear curve that never falls is at the goal; inf if it never is."""
    at = int(np.searchsorted(curve, goal, side="left"))
    if at == len(curve):
        return math.inf
    if at == 0:
        return float(x[0])
    before, after = curve[at - 1], curve[at]
    return float(x[at - 1] + (x[at] - x[at - 1]) * (goal - before) / (after - before))
