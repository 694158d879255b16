"""Flat bins: the learner with which the authors recorded their profiles (card section 5.2)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from cluster.cilantro.monotone import NEED_POINTS, need_on
from cluster.cilantro.types import Bounds, FloatArray, Need, Sample, ordered


@dataclass(frozen=True, kw_only=True)
class BinSettings:
    """x_max: end of the range; count: equal bins; low, high: what performance can be at all."""

    x_max: float
    count: int = 30
    low: float = 0.0
    high: float = 1.0

    def __post_init__(self) -> None:
        if not (0 < self.x_max < math.inf and self.count >= 1 and self.low < self.high):
            raise ValueError(f"settings of bins out of range: {self}")


@dataclass(frozen=True, kw_only=True)
class BinLearner:
    """rows: per bin (samples, sum of y, sum of y^2). Bounds: mean +- 2 standard errors; bins with fewer than two samples copy the
    nearest one that has (the left one first); a running maximum from the left on the lower bound, a running minimum from the right
    on the upper one."""

    settings: BinSettings
    rows: tuple[tuple[float, float, float], ...] = field(default=())

    def updated(self, samples: Sequence[Sample]) -> BinLearner:
        """All samples weigh the same, as in the released code."""
        rows = np.array(self.rows or [(0.0, 0.0, 0.0)] * self.settings.count)
        for sample in samples:
            if sample.usable:
                at = min(self.settings.count - 1, int(sample.x / self.settings.x_max * self.settings.count))
                rows[at] += (1.0, sample.value, sample.value**2)
        return replace(self, rows=tuple((float(n), float(y), float(yy)) for n, y, yy in rows))

    @cached_property
    def _cells(self) -> Bounds:
        rows = np.array(self.rows or [(0.0, 0.0, 0.0)] * self.settings.count)
        known = np.flatnonzero(rows[:, 0] >= 2)
        everywhere = np.arange(self.settings.count)
        if not len(known):
            return ordered(np.full(len(rows), self.settings.low), np.full(len(rows), self.settings.high))
        nearest = known[np.argmin(np.abs(everywhere[:, None] - known[None, :]), axis=1)]
        count, mean = rows[nearest, 0], rows[nearest, 1] / rows[nearest, 0]
        spread = np.sqrt(np.maximum(0.0, rows[nearest, 2] / count - mean**2) / np.maximum(1, count - 1))
        low = np.maximum.accumulate(np.clip(mean - 2 * spread, self.settings.low, self.settings.high))
        high = np.minimum.accumulate(np.clip(mean + 2 * spread, self.settings.low, self.settings.high)[::-1])[::-1]
        return ordered(low, high)

    def bounds(self, x: FloatArray) -> Bounds:
        """Constant within a bin."""
        at = np.clip((np.asarray(x) / self.settings.x_max * self.settings.count).astype(int), 0, self.settings.count - 1)
        return Bounds(low=self._cells.low[at], middle=self._cells.middle[at], high=self._cells.high[at])

    def need(self, goal: float) -> Need:
        """On a grid over the range."""
        grid = np.linspace(0.0, self.settings.x_max, NEED_POINTS)
        return need_on(grid, self.bounds(grid), goal)

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"made": "bins", "settings": vars(self.settings), "rows": [list(row) for row in self.rows]}

    @staticmethod
    def from_dict(data: dict[str, Any]) -> BinLearner:
        """Inverse of `as_dict`."""
        rows = tuple((float(n), float(y), float(yy)) for n, y, yy in data["rows"])
        return BinLearner(settings=BinSettings(**data["settings"]), rows=rows)
