"""Binary tree over allocation per unit load: the paper's default learner (card section 5.1).

A node (depth h, position k = 1..2^h) covers [w (k-1) / 2^h, w k / 2^h] of [0, w]. It knows the mean of what fell into it; the mean is
off by at most L times the cell's width (the curve's slope is at most L) plus noise. That performance never falls lets a cell's lower
bound hold for everything right of it, and an upper bound for everything left. Bounds are only ever tightened, so noise can invert
them (card W7): here every answer goes through `ordered`, the released code hands the crossed pair on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from cluster.cilantro.types import Bounds, FloatArray, Need, Sample, ordered

#: Cells this deep are not split: the 65,536th part of the range.
MAX_DEPTH = 16
#: A cell is split from this many samples on.
SPLIT_FROM = 3

Place = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class TreeSettings:
    """x_max: w, largest allocation per unit load; slope: L, per unit of x; low, high: what performance can be at all; delta, beta_scale
    (c_b), tau_scale (c_t): the released constants (theory: c_b = c_t = 1); beta: in place of the formula; warm_up: samples that are
    thrown away first (the released code does, until 5 were seen)."""

    x_max: float
    slope: float
    low: float = 0.0
    high: float = 1.0
    delta: float = 1e-3
    beta_scale: float = 1e-3
    tau_scale: float = 1e-5
    beta: float | None = None
    warm_up: int = 5

    def __post_init__(self) -> None:
        if not (0 < self.x_max < math.inf and 0 < self.slope < math.inf and self.low < self.high):
            raise ValueError(f"a tree needs x_max and slope above 0 and low < high, got {self}")


def beta_at(points: int, settings: TreeSettings) -> float:
    """beta_t: standard deviations of noise that a bound allows for, after `points` samples."""
    if settings.beta is not None:
        return settings.beta
    doubled = 2.0 ** math.ceil(math.log2(points + 1))
    return settings.beta_scale * math.sqrt((4 + 2 * math.log(2)) * math.log(math.pi**2 * doubled / (6 * settings.delta)))


@dataclass(slots=True)
class _Cell:
    """count, weight (S, sum of 1 / sigma^2), total (sum of y / sigma^2); low, high: BL, BU; split: has children."""

    low: float
    high: float
    count: int = 0
    weight: float = 0.0
    total: float = 0.0
    split: bool = False

    def copied(self) -> _Cell:
        """Four times as fast as `dataclasses.replace`; a tree has hundreds of cells and copies them every round."""
        return _Cell(self.low, self.high, self.count, self.weight, self.total, self.split)


@dataclass(frozen=True, kw_only=True)
class TreeLearner:
    """Never changes; `updated` copies. seen: samples offered, points: samples in the tree (t)."""

    settings: TreeSettings
    seen: int = 0
    points: int = 0
    cells: dict[Place, _Cell] = field(default_factory=dict)

    @staticmethod
    def empty(settings: TreeSettings) -> TreeLearner:
        """The root and its two children, as in the card's W7."""
        cells = {place: _Cell(low=settings.low, high=settings.high) for place in ((0, 1), (1, 1), (1, 2))}
        cells[0, 1].split = True
        return TreeLearner(settings=settings, cells=cells)

    # --- learning ---

    def updated(self, samples: Sequence[Sample]) -> TreeLearner:
        """Inserts the samples; those of the warm-up and those out of reason are thrown away."""
        usable = [sample for sample in samples if sample.usable]
        skipped = min(len(usable), max(0, self.settings.warm_up - self.seen))
        kept = usable[skipped:]
        if not kept:
            return replace(self, seen=self.seen + len(usable))
        cells = {place: cell.copied() for place, cell in self.cells.items()}
        points = self.points
        for sample in kept:
            points += 1
            _insert(cells, sample, points, self.settings)
        return replace(self, seen=self.seen + len(usable), points=points, cells=cells)

    # --- asking ---

    @cached_property
    def _envelope(self) -> tuple[FloatArray, Bounds]:
        """(left end of each leaf cell, bounds in it)."""
        leaves = list(self._leaves())
        low = np.maximum.accumulate([low for _, low, _ in leaves])
        high = np.minimum.accumulate([high for _, _, high in leaves][::-1])[::-1]
        edges = np.array([self.settings.x_max * (k - 1) / 2**h for (h, k), _, _ in leaves])
        return edges, ordered(low, high)

    def _leaves(self) -> Iterator[tuple[Place, float, float]]:
        """Leaf cells from left to right, each with its `raw_bounds_of`."""
        ahead = [((0, 1), -math.inf, math.inf)]
        while ahead:
            place, low, high = ahead.pop()
            cell = self.cells[place]
            low, high = max(low, cell.low), min(high, cell.high)
            if cell.split:
                ahead += [(child, low, high) for child in reversed(_children(place))]
            else:
                yield place, low, high

    def raw_bounds_of(self, place: Place) -> tuple[float, float]:
        """max BL and min BU on the way to a cell, as they are: they may have crossed."""
        depth, position = place
        path = [(h, (position - 1) // 2 ** (depth - h) + 1) for h in range(depth + 1)]
        return max(self.cells[p].low for p in path), min(self.cells[p].high for p in path)

    def cell_at(self, x: float) -> Place:
        """The leaf that holds x."""
        place = (0, 1)
        while self.cells[place].split:
            place = _child(place, x, self.settings.x_max)
        return place

    def bounds(self, x: FloatArray) -> Bounds:
        """Constant within each leaf; nothing is known at 0 but that performance is at least `low`."""
        edges, cells = self._envelope
        at = np.clip(np.searchsorted(edges, x, side="right") - 1, 0, len(edges) - 1)
        return Bounds(low=cells.low[at], middle=cells.middle[at], high=cells.high[at])

    def need(self, goal: float) -> Need:
        """demand_lb, demand_mid, demand_ub. The released code draws a point of the middle's final cell by chance; here it is the
        cell's centre, so that a decision can be repeated. The three are put in order."""
        low = self._walk(lambda left, _: left.high <= goal)[0]
        high = self._walk(lambda left, right: right.low < goal)[1]
        start, end = self._walk(lambda left, right: _told(right, goal) > _told(left, goal))
        low = min(low, high)
        return Need(low=low, middle=min(max((start + end) / 2, low), high), high=high)

    def _walk(self, go_right: Callable[[_Cell, _Cell], bool]) -> tuple[float, float]:
        """Ends of the cell reached from the root, as long as a cell has enough weight."""
        beta, place = beta_at(max(1, self.points), self.settings), (0, 1)
        while self.cells[place].split and self.cells[place].weight >= _tau(place[0], beta, self.settings):
            left, right = _children(place)
            place = right if go_right(self.cells[left], self.cells[right]) else left
        depth, position = place
        return self.settings.x_max * (position - 1) / 2**depth, self.settings.x_max * position / 2**depth

    # --- keeping ---

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        rows = [[h, k, c.low, c.high, c.count, c.weight, c.total, c.split] for (h, k), c in sorted(self.cells.items())]
        return {"made": "tree", "settings": vars(self.settings), "seen": self.seen, "points": self.points, "cells": rows}

    @staticmethod
    def from_dict(data: dict[str, Any]) -> TreeLearner:
        """Inverse of `as_dict`. KeyError, TypeError or ValueError for anything else."""
        cells = {
            (int(h), int(k)): _Cell(low=low, high=high, count=int(n), weight=weight, total=total, split=bool(split))
            for h, k, low, high, n, weight, total, split in data["cells"]
        }
        settings = TreeSettings(**data["settings"])
        return TreeLearner(settings=settings, seen=int(data["seen"]), points=int(data["points"]), cells=cells)


def _children(place: Place) -> tuple[Place, Place]:
    depth, position = place
    return (depth + 1, 2 * position - 1), (depth + 1, 2 * position)


def _child(place: Place, x: float, x_max: float) -> Place:
    left, right = _children(place)
    return left if x < x_max * left[1] / 2 ** left[0] else right


def _told(cell: _Cell, goal: float) -> float:
    """How much a measurement there would tell of where the goal is reached."""
    return min(cell.high - goal, goal - cell.low)


def _tau(depth: int, beta: float, settings: TreeSettings) -> float:
    return settings.tau_scale * (beta / settings.slope) ** 2 * 4.0**depth


def _interval(place: Place, cell: _Cell, beta: float, settings: TreeSettings) -> tuple[float, float]:
    """fL, fU: mean of the cell, minus and plus what slope and noise may hide."""
    if cell.weight <= 0:
        return settings.low, settings.high
    reach = settings.slope * settings.x_max / 2 ** place[0] + beta / math.sqrt(cell.weight)
    return cell.total / cell.weight - reach, cell.total / cell.weight + reach


def _insert(cells: dict[Place, _Cell], sample: Sample, points: int, settings: TreeSettings) -> None:
    """The sample to every cell on its way down, then the bounds on the way back up."""
    beta, weight = beta_at(points, settings), sample.sigma**-2
    path, place = [], (0, 1)
    while True:
        cell = cells[place]
        cell.count, cell.weight, cell.total = cell.count + 1, cell.weight + weight, cell.total + weight * sample.value
        path.append(place)
        if not (cell.split and cell.weight >= _tau(place[0], beta, settings)):
            break
        place = _child(place, sample.x, settings.x_max)
    if not cell.split and cell.count >= SPLIT_FROM and cell.weight >= _tau(place[0], beta, settings) and place[0] < MAX_DEPTH:
        _split(cells, place, settings)
    rebuild = points & (points - 1) == 0
    order = sorted(cells, reverse=True) if rebuild else path[::-1]
    for touched in order:
        _tighten(cells, touched, beta, settings)


def _split(cells: dict[Place, _Cell], place: Place, settings: TreeSettings) -> None:
    """Two children; their bounds come from the neighbours at their depth."""
    cells[place].split = True
    children = _children(place)
    depth = children[0][0]
    same = [(k, cell) for (h, k), cell in cells.items() if h == depth]
    for _, position in children:
        low = max((cell.low for k, cell in same if k < position), default=settings.low)
        high = min((cell.high for k, cell in same if k > position), default=settings.high)
        cells[depth, position] = _Cell(low=low, high=high)


def _tighten(cells: dict[Place, _Cell], place: Place, beta: float, settings: TreeSettings) -> None:
    """BL and BU of one cell from its samples and children, then along its depth."""
    cell = cells[place]
    low, high = _interval(place, cell, beta, settings)
    if cell.split:
        left, right = _children(place)
        low, high = max(low, cells[left].low), min(high, cells[right].high)
    else:
        low, high = _from_below(cells, place, low, high)
    if low <= cell.low and high >= cell.high:
        return  # its neighbours know
    cell.low, cell.high = max(cell.low, low), min(cell.high, high)
    depth, position = place
    for (h, k), other in cells.items():
        if h == depth and k > position:
            other.low = max(other.low, cell.low)
        elif h == depth and k < position:
            other.high = min(other.high, cell.high)


def _from_below(cells: dict[Place, _Cell], place: Place, low: float, high: float) -> tuple[float, float]:
    """A leaf also takes over what finer cells beside it know: those left of it push up, those right of it down."""
    depth, position = place
    for (h, k), other in cells.items():
        if h <= depth:
            continue
        at_this_depth = (k - 1) // 2 ** (h - depth) + 1
        if at_this_depth < position:
            low = max(low, other.low)
        elif at_this_depth > position:
            high = min(high, other.high)
    return low, high
