"""The smallest utility as large as can be, then the next smallest, ...: the greedy MAXMIN of the card's section 7, with look-ahead.

    the query with the lowest V_k gets the least number of quanta that lifts it; where that is more than is left it stays as it is,
    and the next lowest is looked at

Single lifts raise all queries to a common level first. The highest level that fits is found by bisection, lifts go on from there.
"""

from __future__ import annotations

import heapq

import numpy as np

from scheduler.videostorm.utility import SAME, Worth, rounded

#: Steps of a bisection: halving so often leaves nothing of any range of utilities.
HALVINGS = 60


def lift(worth: Worth, total: int) -> np.ndarray:
    """MAXMIN with look-ahead: levels first, then single lifts."""
    steps, stuck = np.zeros(len(worth)), np.zeros(len(worth), bool)
    rising = True
    while rising and not stuck.all():
        levelled = _level(worth, steps, stuck, total)
        rising = bool((levelled > steps).any()) and total - levelled.sum() > len(worth)  # the rest is soon done singly
        steps = levelled
        stuck |= _next_lift(worth, steps) > total - steps.sum()
    return _lift_singly(worth, steps, total)


def _level(worth: Worth, steps: np.ndarray, stuck: np.ndarray, total: int) -> np.ndarray:
    """Quanta with which all queries that are not stuck stand at the highest common level that fits (or as high as they can get)."""
    left = total - steps[stuck].sum()
    highest = worth.best(np.full(len(worth), float(total)))
    low, high = float(worth.best(steps).min()), float(highest.max())
    found = steps
    for _ in range(HALVINGS):
        level = (low + high) / 2
        needs = np.where(stuck, steps, np.maximum(steps, worth.least_steps(np.minimum(level, highest))))
        if needs[~stuck].sum() <= left:
            low, found = level, needs
        else:
            high = level
    return found


def _next_lift(worth: Worth, steps: np.ndarray) -> np.ndarray:
    """Least whole quanta more with which V_k rises, (n,); infinite where nothing lifts it."""
    now = worth.best(steps)
    above = now + SAME * np.maximum(1.0, np.abs(now))
    return np.maximum(1.0, worth.least_steps(above) - steps)


def _lift_singly(worth: Worth, steps: np.ndarray, total: int) -> np.ndarray:
    """One least lift after the other, the lowest query first, of equals the cheapest lift; a lift that does not fit never will.

    Lifts are carried out in waves: all that come before any lifted query has its turn again.
    """
    steps = steps.copy()
    left = total - steps.sum()
    active = np.arange(len(worth))
    while len(active) and left > 0:
        some = worth.take(active)
        now, costs = rounded(some.best(steps[active])), _next_lift(some, steps[active])
        fits = costs <= left
        if not fits.all():
            active = active[fits]
            continue
        order = np.lexsort((costs, now))
        lifted = some.best(steps[active] + costs)[order]
        again = np.concatenate([[np.inf], np.minimum.accumulate(lifted)[:-1]])
        wave = order[: _first(now[order] >= again, np.cumsum(costs[order]) > left)]
        steps[active[wave]] += costs[wave]
        left -= costs[wave].sum()
    return steps


def _first(*stops: np.ndarray) -> int:
    """Index of the first element at which any of the arrays is true; their length where none is."""
    stop = np.logical_or.reduce(stops)
    return int(stop.argmax()) if stop.any() else len(stop)


def lift_by_one(worth: Worth, total: int) -> np.ndarray:
    """MAXMIN as printed: one quantum at a time to the lowest query that any share could lift."""
    steps = np.zeros(len(worth))
    rows = [worth.take(np.array([k])) for k in range(len(worth))]
    heap = [(float(value), k) for k, value in enumerate(worth.best(steps))]
    highest = worth.best(np.full(len(worth), float(total)))
    heapq.heapify(heap)
    left = total
    while left > 0 and heap:
        value, k = heapq.heappop(heap)
        if value >= highest[k] - SAME * max(1.0, abs(highest[k])):
            continue
        steps[k] += 1
        left -= 1
        heapq.heappush(heap, (float(rows[k].best(steps[k : k + 1])[0]), k))
    return steps
