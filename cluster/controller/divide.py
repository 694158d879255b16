"""A customer's share, divided over the boxes where its cameras are watched. Pure; ours: Cilantro's resource lies in one pool, ours on
boxes, and a share counts only where the camera is.

Three wishes, each as far as those before it allow, as linear programs (HiGHS): (1) the customer that gets the smallest part of its
grant gets as much as can be; (2) as much as possible is given in all; (3) where a customer's share lies, it lies as its cameras need it:
the smallest (given here / needed here) over all pairs is as large as can be. Every pair gets a little beforehand, so that no camera is
starved by a number. What does not fit anywhere stays ungiven, and the grant says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import csr_array, vstack

#: Of one GPU, for every customer on every box where it has a camera, as long as the box has it.
LEAST_PCT = 1.0
#: A share is told in tenths of a percent.
STEP_PCT = 0.1
_SLACK = 1e-6
_Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class _Pairs:
    """The unknowns: share of customer `rows[i]` on box `columns[i]`."""

    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    need: _Array


def divide(
    grants_pct: Mapping[str, float], need_pct: Mapping[str, Mapping[str, float]], capacity_pct: Mapping[str, float]
) -> dict[str, dict[str, float]]:
    """need_pct: per customer and box what its cameras there need, also 0; boxes without capacity are left out. The answer keeps to
    every grant and every capacity, in steps of STEP_PCT; a pair that gets nothing is left out."""
    customers = sorted(customer for customer in grants_pct if grants_pct[customer] > 0)
    boxes = sorted(box for box, pct in capacity_pct.items() if pct > 0)
    at = {box: i for i, box in enumerate(boxes)}
    pairs = [
        (i, at[b], max(n, LEAST_PCT))
        for i, c in enumerate(customers)
        for b, n in sorted(need_pct.get(c, {}).items())
        if b in at
    ]
    if not pairs:
        return {customer: {} for customer in sorted(grants_pct)}
    rows, columns, need = (np.array(column) for column in zip(*pairs, strict=True))
    unknowns = _Pairs(rows=rows, columns=columns, need=need.astype(float))
    supply = np.array([grants_pct[customer] for customer in customers], dtype=float)
    room = np.array([capacity_pct[box] for box in boxes], dtype=float)
    shares = _solved(unknowns, supply, room)
    steps = np.floor(shares / STEP_PCT + 1e-4) * STEP_PCT
    found: dict[str, dict[str, float]] = {customer: {} for customer in sorted(grants_pct)}
    for i, pct in enumerate(steps):
        if pct >= STEP_PCT / 2:
            found[customers[int(rows[i])]][boxes[int(columns[i])]] = round(float(pct), 1)
    return found


def _solved(pairs: _Pairs, supply: _Array, room: _Array) -> _Array:
    count = len(pairs.rows)
    by_customer = _sums(pairs.rows, len(supply), count)
    by_box = _sums(pairs.columns, len(room), count)
    floor = _floors(pairs, supply, room, by_customer, by_box)
    limits = vstack([by_customer, by_box])
    bounds = np.concatenate([supply, room])
    placed = np.asarray(by_customer.sum(axis=1)).ravel() > 0
    ones = np.ones(count)
    # (1) x_c >= t * grant_c for customers that are watched somewhere
    fair = csr_array(by_customer[placed])
    first = _most_level(limits, bounds, fair, supply[placed], floor)
    # (2) the sum, with that level kept
    limits, bounds = _with(limits, bounds, -fair, -(first - _SLACK) * supply[placed])
    second = _best(limits, bounds, -ones, floor)
    # (3) the level of x / need, with that sum kept
    limits, bounds = _with(limits, bounds, csr_array(-ones.reshape(1, -1)), np.array([-(second.sum() - _SLACK * count)]))
    each = csr_array(np.diag(ones)) if count < 200 else _sums(np.arange(count), count, count)
    third = _most_level(limits, bounds, each, pairs.need, floor)
    return _best(*_with(limits, bounds, -each, -(third - _SLACK) * pairs.need), -ones, floor)


def _sums(index: NDArray[np.int64], size: int, count: int) -> csr_array:
    return csr_array((np.ones(count), (index, np.arange(count))), shape=(size, count))


def _floors(pairs: _Pairs, supply: _Array, room: _Array, by_customer: csr_array, by_box: csr_array) -> _Array:
    """Half of an equal part at most: the floors alone can never be too much."""
    of_customer = (supply / np.maximum(1, np.asarray(by_customer.sum(axis=1)).ravel()))[pairs.rows]
    of_box = (room / np.maximum(1, np.asarray(by_box.sum(axis=1)).ravel()))[pairs.columns]
    return np.minimum(LEAST_PCT, np.minimum(of_customer, of_box) / 2)


def _with(limits: csr_array, bounds: _Array, more: csr_array, more_bounds: _Array) -> tuple[csr_array, _Array]:
    return csr_array(vstack([limits, more])), np.concatenate([bounds, more_bounds])


def _most_level(limits: csr_array, bounds: _Array, rows: csr_array, weights: _Array, floor: _Array) -> float:
    """Largest t with rows @ x >= t * weights."""
    count = limits.shape[1]
    top = csr_array((limits.data, limits.indices, limits.indptr), shape=(limits.shape[0], count + 1))
    level = vstack([-rows.T, csr_array(weights.reshape(1, -1))]).T
    cost = np.zeros(count + 1)
    cost[-1] = -1.0
    found = linprog(
        cost, A_ub=vstack([top, level]), b_ub=np.concatenate([bounds, np.zeros(rows.shape[0])]),
        bounds=np.column_stack([np.append(floor, 0.0), np.append(np.full(count, np.inf), 1e6)]), method=_method(count),
    )  # fmt: skip
    return float(found.x[-1]) if found.status == 0 else 0.0


def _method(count: int) -> str:
    """Both find the same optimum; with thousands of unknowns the interior-point one is 2 to 3 times as fast."""
    return "highs-ipm" if count > 500 else "highs-ds"


def _best(limits: csr_array, bounds: _Array, cost: _Array, floor: _Array) -> _Array:
    found = linprog(
        cost, A_ub=limits, b_ub=bounds, bounds=np.column_stack([floor, np.full(len(floor), np.inf)]), method="highs"
    )
    return np.asarray(found.x) if found.status == 0 else floor
