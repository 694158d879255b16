"""The largest sum of utilities: the greedy MAXSUM of the card's section 7 on upper concave envelopes, and the exact optimum.

    H_k = upper concave envelope of V_k on the grid of whole quanta;  a_k grows by one where H_k rises most; stop where nothing rises

Unit steps taken one by one would take whole envelope segments, steepest first; so segments are sorted, and `fill` takes them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduler.videostorm.utility import SAME, Worth, rounded, whole_down, whole_up

#: An envelope that rises by less per quantum is flat.
FLAT = 1e-12


@dataclass(frozen=True, eq=False)
class Segments:
    """Segments of the envelopes H_k, in the order in which they are taken. query: index; steps: length in quanta."""

    query: np.ndarray
    steps: np.ndarray


def segments(worth: Worth, total: int) -> Segments:
    """All rising segments of the upper concave envelopes on the grid 0, 1, ... `total` quanta, steepest first.

    Between bends an option is worth a straight line, so corners of an envelope lie beside bends (one grid point below, one above)
    or at the ends: no other grid point is looked at. The envelope is walked from 0 in strides to the point of the steepest rise.
    """
    xs, ys = _corners(worth, total)
    here_x, here_y = np.zeros(len(worth)), worth.best(np.zeros(len(worth)))
    active = np.arange(len(worth))
    found: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    while len(active):
        ahead = xs[active] - here_x[active, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            slopes = np.where(ahead > 0, (ys[active] - here_y[active, None]) / ahead, -np.inf)
        top = slopes.max(axis=1)
        rising = top > FLAT
        active, slopes, top, ahead = active[rising], slopes[rising], top[rising], ahead[rising]
        furthest = np.where(slopes >= top[:, None] * (1 - SAME), ahead, 0.0).argmax(axis=1)
        stride = ahead[np.arange(len(active)), furthest]
        found.append((active, stride, top))
        here_x[active] += stride
        here_y[active] = ys[active, furthest]
    query, steps, slope = (np.concatenate(parts) for parts in zip(*found, strict=True))
    order = np.lexsort((query, -rounded(slope)))  # stable: segments of one query stay in their order
    return Segments(query[order], steps[order])


def _corners(worth: Worth, total: int) -> tuple[np.ndarray, np.ndarray]:
    """(x, y), (n, p): grid points that hold every corner of the envelopes; y: worth of the option whose bend lies there."""
    grids = [np.minimum(to_grid(bend), total) for bend in worth.bends for to_grid in (whole_down, whole_up)]
    end = np.full(len(worth), float(total))
    xs = np.concatenate([*grids, end[:, None]], axis=1)
    ys = np.concatenate([*(worth.of_options(grid) for grid in grids), worth.best(end)[:, None]], axis=1)
    return xs, ys


def fill(order: Segments, queries: int, total: int) -> np.ndarray:
    """The greedy as printed: segments in order, the last one as far as `total` goes."""
    before = np.cumsum(order.steps) - order.steps
    taken = np.clip(total - before, 0.0, order.steps)
    return np.bincount(order.query, taken, queries)


def fill_whole(order: Segments, queries: int, total: int) -> np.ndarray:
    """Whole segments only; one that does not fit is passed over, with all later ones of its query."""
    ends = np.cumsum(order.steps)
    sure = int(np.searchsorted(ends, total + 0.5))
    steps = np.bincount(order.query[:sure], order.steps[:sure], queries)
    left = total - (float(ends[sure - 1]) if sure else 0.0)
    passed: set[int] = set()
    for query, length in zip(order.query[sure:].tolist(), order.steps[sure:].tolist(), strict=True):
        if length > left or query in passed:
            passed.add(query)
            continue
        steps[query] += length
        left -= length
    return steps


def exact(table: np.ndarray) -> np.ndarray:
    """Quanta of each query with the largest sum, table (n, total + 1): V_k on the grid. Dynamic programming, O(n total^2); of equal
    plans the one that gives less to later queries."""
    queries, width = table.shape
    best = np.zeros(width)
    choice = np.empty((queries, width), np.int64)
    for k in range(queries):
        padded = np.concatenate([np.full(width - 1, -np.inf), best])
        rest = np.lib.stride_tricks.sliding_window_view(padded, width)[:, ::-1]  # rest[j, x] = best[j - x]
        sums = rest + table[k]
        # of sums that differ by rounding only, the first
        top = sums.max(axis=1, keepdims=True)
        choice[k] = (sums >= top - SAME * 1e-3 * np.maximum(1.0, np.abs(top))).argmax(axis=1)
        best = sums[np.arange(width), choice[k]]
    steps, left = np.zeros(queries), width - 1
    for k in reversed(range(queries)):
        steps[k] = choice[k, left]
        left -= int(choice[k, left])
    return steps
