"""Exact optimisers of separable welfare over whole units: the oracles (card 7.3 [D]), and what Driftbox decides with.

A job's utilities are an array: entry a is its utility with a units, never falling. low, high: least and most units of each job (what it
must have, and the box constraint).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cluster.cilantro.types import FloatArray, IntArray

#: Options (distinct utilities) looked at over all jobs; beyond it the dynamic program takes coarser steps of utility.
MOST_OPTIONS = 60_000
#: Bisections of the level of utility.
BISECTIONS = 60


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Least and most units per job; low <= high each and sum(low) <= total, see `limits`."""

    low: IntArray
    high: IntArray
    total: int


def limits(
    utilities: Sequence[FloatArray], total: int, low: Sequence[int] | None = None, high: Sequence[int] | None = None
) -> Limits:
    """Checked limits. Defaults: 0, and as far as the array goes. ValueError if no allocation can meet them."""
    lengths = np.array([len(u) for u in utilities], dtype=np.int64)
    if not len(lengths) or lengths.min() < 1:
        raise ValueError("at least one job, each with the utility of 0 units")
    least = np.zeros(len(lengths), dtype=np.int64) if low is None else np.asarray(low, dtype=np.int64)
    most = np.minimum(lengths - 1, total) if high is None else np.minimum(lengths - 1, np.asarray(high, dtype=np.int64))
    if (least < 0).any() or (least > most).any() or least.sum() > total:
        raise ValueError(f"no allocation of {total} units meets the limits")
    return Limits(low=least, high=most, total=total)


def social_welfare(utilities: Sequence[FloatArray], within: Limits) -> IntArray:
    """argmax of the sum of utilities: best[j][r] = max over a of best[j-1][r-a] + u_j(a). Units that help nobody are not given.

    Only the first unit count of each level of utility is an option, so that the cost is total times the number of levels, not
    n total^2. With more than `MOST_OPTIONS` levels in all, those closer than a step are merged; the mean is then off by at most that
    step (`thinned`)."""
    room = within.total - int(within.low.sum())
    options = thinned([_levels(u, lo, hi, room) for u, lo, hi in zip(utilities, within.low, within.high, strict=True)])
    best, chosen = np.zeros(room + 1), []
    for extra, value in options:
        found, choice = best + value[0], np.zeros(room + 1, dtype=np.int32)
        for units, worth in zip(extra[1:], value[1:], strict=True):
            tried = best[: room + 1 - units] + worth
            better = tried > found[units:]
            found[units:][better] = tried[better]
            choice[units:][better] = units
        best = found
        chosen.append(choice)
    given, left = within.low.copy(), int(np.argmax(best))
    for job in range(len(options) - 1, -1, -1):
        units = int(chosen[job][left])
        given[job] += units
        left -= units
    return given


def _levels(utility: FloatArray, low: int, high: int, room: int) -> tuple[IntArray, FloatArray]:
    """(units above low, utility): the first of each level."""
    reach = utility[low : min(high, low + room) + 1]
    peaks = np.maximum.accumulate(reach)
    first = np.concatenate([[True], peaks[1:] > peaks[:-1]])
    return np.flatnonzero(first), peaks[first]


def thinned(options: list[tuple[IntArray, FloatArray]]) -> list[tuple[IntArray, FloatArray]]:
    """Options with levels at least a step apart, the step being the smallest power of two times 1e-4 that leaves few enough. The
    top level is always kept."""
    step = 1e-4
    while sum(len(units) for units, _ in options) > MOST_OPTIONS and step < 1:
        options = [_apart(units, value, step) for units, value in options]
        step *= 2
    return options


def _apart(units: IntArray, value: FloatArray, step: float) -> tuple[IntArray, FloatArray]:
    rung = np.floor((value - value[0]) / step)
    keep = np.concatenate([[True], rung[1:] > rung[:-1]])
    keep[-1] = True
    return units[keep], value[keep]


def egalitarian(utilities: Sequence[FloatArray], within: Limits) -> IntArray:
    """argmax of the smallest utility, and beyond: a job that can rise no higher does not hold the others down, and units left lift
    the lowest that they can lift. Bisection on the level t with need_j(t) = least a with u_j(a) >= t."""
    peaks = [np.maximum.accumulate(u[lo : hi + 1]) for u, lo, hi in zip(utilities, within.low, within.high, strict=True)]
    below, above = min(float(p[0]) for p in peaks), max(float(p[-1]) for p in peaks)
    if _cost(peaks, above, within) <= within.total:
        return _needs(peaks, above, within)
    for _ in range(BISECTIONS):
        level = (below + above) / 2
        if _cost(peaks, level, within) <= within.total:
            below = level
        else:
            above = level
    given = _needs(peaks, below, within)
    return _lift_lowest(peaks, given, within)


def _needs(peaks: Sequence[FloatArray], level: float, within: Limits) -> IntArray:
    extra = [int(np.searchsorted(p, min(level, float(p[-1])), side="left")) for p in peaks]
    return within.low + np.array(extra, dtype=np.int64)


def _cost(peaks: Sequence[FloatArray], level: float, within: Limits) -> int:
    return int(_needs(peaks, level, within).sum())


def _lift_lowest(peaks: Sequence[FloatArray], given: IntArray, within: Limits) -> IntArray:
    """Steps of utility that what is left can pay for, the lowest job first; at most as many steps as units."""
    result, left = given.copy(), within.total - int(given.sum())
    stuck: set[int] = set()
    while left > 0 and len(stuck) < len(peaks):
        have = [float(p[a - lo]) for p, a, lo in zip(peaks, result, within.low, strict=True)]
        job = min((j for j in range(len(peaks)) if j not in stuck), key=lambda j: (have[j], j))
        at = int(np.searchsorted(peaks[job], have[job], side="right"))
        cost = at - int(result[job] - within.low[job])
        if at >= len(peaks[job]) or cost > left:
            stuck.add(job)
            continue
        result[job] += cost
        left -= cost
    return result
