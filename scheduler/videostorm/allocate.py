"""Who gets how much, and runs with which knobs: the two heuristics of the card's section 7, with its repairs.

    MAXSUM   a_k grows by the quantum d where the upper concave envelope of V_k rises most per quantum
    MAXMIN   the query with the lowest V_k gets the least number of quanta that lifts it (look-ahead); where that is more than is
             left it stays as it is, and the next lowest is looked at

The greedy over unit steps is carried out in one go. MAXSUM: the segments of all envelopes, steepest first, are exactly the order in
which unit steps would be taken. MAXMIN: unit steps lift all queries to a common level first; the highest level that fits is found by
bisection, and steps go on from there.

What we changed or settled (`Rules(printed=True)` runs without any of it):
  * the last query that MAXSUM serves may stop inside a segment, where its quanta help nobody: the same order with whole segments only
    is a second plan, and where the problem is small the exact optimum (dynamic programming) a third one;
  * fair share and the present shares are further plans: the best one is taken, so that it never falls below them;
  * MAXMIN lifts, of equally low queries, the one that costs least;
  * left-over quanta clear backlog, the longest lag in proportion to its goal first;
  * ties end with the query ids, so the order in which queries are given does not matter.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from scheduler.videostorm.fair import fair_shares_pct, option_within, usable_pct
from scheduler.videostorm.lag import predicted_lag_s, served_frac
from scheduler.videostorm.rules import Rules
from scheduler.videostorm.types import Allocation, Given, Option, Query
from scheduler.videostorm.utility import SAME, Worth, whole_down, whole_up, worth_of

__all__ = ["Rules", "allocate", "fair_allocation", "planned_utility"]

#: An envelope that rises by less per quantum is flat.
FLAT = 1e-12

#: Steps of a bisection: halving so often leaves nothing of any range of utilities.
HALVINGS = 60


def allocate(queries: Sequence[Query], capacity_pct: float, *, rules: Rules) -> Allocation:
    """Shares and options of `queries` on a pool of `capacity_pct`, for the next period. Pure; the same input gives the same answer.

    O(n m h + n m log(n m)) for n queries of m options with envelopes of h segments. Errors: ValueError for a capacity that is
    negative or not finite, and for two queries with one id.
    """
    _check(queries, capacity_pct)
    if not queries:
        return Allocation(given=(), spare_pct=float(capacity_pct))
    rank = sorted(range(len(queries)), key=lambda k: queries[k].id)
    ordered = [queries[k] for k in rank]
    worth = worth_of(ordered, rules)
    total = int(whole_down(np.array(capacity_pct / rules.quantum_pct)))
    steps = _best_plan(ordered, worth, total, capacity_pct)
    columns = worth.choose(steps)
    if not rules.printed:
        steps = _clear_backlog(ordered, worth, steps, columns, capacity_pct / rules.quantum_pct)
        columns = worth.choose(steps)
    shares_pct = _within(steps * rules.quantum_pct, capacity_pct)
    options = [q.options[worth.position[k, columns[k]]] for k, q in enumerate(ordered)]
    back = np.argsort(rank)
    return _allocation([ordered[k] for k in back], [options[k] for k in back], shares_pct[back], capacity_pct, rules)


def fair_allocation(queries: Sequence[Query], capacity_pct: float, *, rules: Rules) -> Allocation:
    """The baseline of the evaluation: fair shares, the best configuration that keeps up within each. Errors: as `allocate`."""
    _check(queries, capacity_pct)
    shares_pct = fair_shares_pct([usable_pct(q, rules.horizon_s) for q in queries], capacity_pct)
    options = [option_within(q, share) for q, share in zip(queries, shares_pct, strict=True)]
    return _allocation(queries, options, _within(np.array(shares_pct), capacity_pct), capacity_pct, rules)


def planned_utility(queries: Sequence[Query], shares_pct: Sequence[float], rules: Rules) -> list[float]:
    """V_k of every query at these shares, as `allocate` compares them: `Given.utility` less what `Rules` adds for planning."""
    if not queries:
        return []
    return [float(v) for v in worth_of(queries, rules).best(np.asarray(shares_pct, float) / rules.quantum_pct)]


def _check(queries: Sequence[Query], capacity_pct: float) -> None:
    if not (math.isfinite(capacity_pct) and capacity_pct >= 0):
        raise ValueError(f"capacity_pct must be a number from 0 on, got {capacity_pct}")
    if len({q.id for q in queries}) < len(queries):
        raise ValueError("two queries have the same id")


# --- which plan -------------------------------------------------------------------------------------------------------


def _best_plan(queries: Sequence[Query], worth: Worth, total: int, capacity_pct: float) -> np.ndarray:
    """Quanta of each query: the best of all plans, the earliest of equally good ones."""
    best, best_score = np.zeros(len(queries)), None
    for steps in _plans(queries, worth, total, capacity_pct):
        score = _score(worth, steps)
        if best_score is None or _better(score, best_score):
            best, best_score = steps, score
    return best


def _plans(queries: Sequence[Query], worth: Worth, total: int, capacity_pct: float) -> Iterator[np.ndarray]:
    rules = worth.rules
    if rules.objective == "sum":
        order = _segments(worth, total)
        yield _fill(order, len(worth), total)
        if rules.printed:
            return
        yield _fill_whole(order, len(worth), total)
        if 0 < len(worth) * (total + 1) ** 2 <= rules.exact_steps:
            yield _exact(worth.table(total))
    else:
        yield _lift_by_one(worth, total) if rules.printed else _lift(worth, total)
        if rules.printed:
            return
    shares_pct = fair_shares_pct([usable_pct(q, rules.horizon_s) for q in queries], capacity_pct)
    yield np.array(shares_pct) / rules.quantum_pct
    present = np.array([max(0.0, q.current_pct) for q in queries])
    if math.fsum(present) <= capacity_pct:
        yield present / rules.quantum_pct


def _score(worth: Worth, steps: np.ndarray) -> tuple[float, ...]:
    """What is compared, the first number first."""
    values = worth.best(steps)
    return (math.fsum(values),) if worth.rules.objective == "sum" else tuple(np.sort(values))


def _better(score: tuple[float, ...], than: tuple[float, ...]) -> bool:
    for a, b in zip(score, than, strict=True):
        if abs(a - b) > SAME * max(1.0, abs(a), abs(b)):
            return a > b
    return False


# --- MAXSUM -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Segments:
    """Segments of the envelopes H_k, in the order in which they are taken. query: index; steps: length in quanta."""

    query: np.ndarray
    steps: np.ndarray


def _segments(worth: Worth, total: int) -> _Segments:
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
    order = np.lexsort((query, -_rounded(slope)))  # stable: segments of one query stay in their order
    return _Segments(query[order], steps[order])


def _corners(worth: Worth, total: int) -> tuple[np.ndarray, np.ndarray]:
    """(x, y), (n, p): grid points that hold every corner of the envelopes; y: worth of the option whose bend lies there."""
    grids = [np.minimum(to_grid(bend), total) for bend in worth.bends for to_grid in (whole_down, whole_up)]
    end = np.full(len(worth), float(total))
    xs = np.concatenate([*grids, end[:, None]], axis=1)
    ys = np.concatenate([*(worth.of_options(grid) for grid in grids), worth.best(end)[:, None]], axis=1)
    return xs, ys


def _rounded(slopes: np.ndarray) -> np.ndarray:
    """Slopes without rounding errors, so that equal ones are equal and ties end with the ids."""
    mantissa, exponent = np.frexp(slopes)
    return np.ldexp(np.round(np.ldexp(mantissa, 36)), exponent - 36)


def _fill(order: _Segments, queries: int, total: int) -> np.ndarray:
    """The greedy as printed: segments in order, the last one as far as `total` goes."""
    before = np.cumsum(order.steps) - order.steps
    taken = np.clip(total - before, 0.0, order.steps)
    return np.bincount(order.query, taken, queries)


def _fill_whole(order: _Segments, queries: int, total: int) -> np.ndarray:
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


def _exact(table: np.ndarray) -> np.ndarray:
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


# --- MAXMIN -----------------------------------------------------------------------------------------------------------


def _lift(worth: Worth, total: int) -> np.ndarray:
    """MAXMIN with look-ahead: levels first, then single lifts."""
    steps, stuck = np.zeros(len(worth)), np.zeros(len(worth), bool)
    for _ in range(HALVINGS):
        steps = _level(worth, steps, stuck, total)
        left = total - steps.sum()
        stuck |= _next_lift(worth, steps) > left
        # each single lift takes a quantum at least; where few are left, or nobody can be lifted, levels have done their part
        if stuck.all() or left <= 4 * len(worth):
            break
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
        now, costs = _rounded(some.best(steps[active])), _next_lift(some, steps[active])
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


def _lift_by_one(worth: Worth, total: int) -> np.ndarray:
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


# --- what is left, and what is told -----------------------------------------------------------------------------------


def _clear_backlog(
    queries: Sequence[Query], worth: Worth, steps: np.ndarray, columns: np.ndarray, capacity: float
) -> np.ndarray:
    """`steps` and what is left of `capacity` quanta, to those that could process more: first the longest lag as a part of its goal."""
    left = math.floor(capacity - steps.sum() + SAME)
    short = np.maximum(0.0, worth.wanted(columns) - np.floor(steps))
    if left < 1 or not short.any():
        return steps
    filled = steps.copy()
    behind = [q.lag_s / max(q.utility.lag_goal_s, 1.0) for q in queries]
    for k in sorted(np.flatnonzero(short).tolist(), key=lambda k: (-behind[k], queries[k].id)):
        more = min(float(short[k]), left)
        filled[k] += more
        left -= more
    return filled


def _within(shares_pct: np.ndarray, capacity_pct: float) -> np.ndarray:
    """`shares_pct` without the rounding error that would bring their sum above the capacity."""
    over = math.fsum(shares_pct) - capacity_pct
    if over > 0:
        shares_pct = shares_pct.copy()
        shares_pct[int(shares_pct.argmax())] -= 2 * over
    return shares_pct


def _allocation(
    queries: Sequence[Query], options: Sequence[Option], shares_pct: np.ndarray, capacity_pct: float, rules: Rules
) -> Allocation:
    parts = _parts(queries, options, shares_pct, rules.horizon_s)
    given = tuple(part for part, _ in parts)
    return Allocation(
        given=given,
        spare_pct=max(0.0, capacity_pct - math.fsum(g.share_pct for g in given)),
        unmet=tuple(part.query for part, met in parts if not met),
    )


def _parts(
    queries: Sequence[Query], options: Sequence[Option], shares_pct: np.ndarray, horizon_s: float
) -> list[tuple[Given, bool]]:
    """What each query can expect of its share and option, and whether its goals are met then."""
    demand_pct = np.array([o.demand_pct * q.mu for q, o in zip(queries, options, strict=True)])
    lag_s = predicted_lag_s(np.array([q.lag_s for q in queries]), shares_pct, demand_pct, horizon_s)
    served = np.minimum(1.0, served_frac(shares_pct, demand_pct))
    columns = (shares_pct.tolist(), lag_s.tolist(), served.tolist())
    return [_part(*row) for row in zip(queries, options, *columns, strict=True)]


def _part(query: Query, option: Option, share_pct: float, lag_s: float, served: float) -> tuple[Given, bool]:
    """A share of 0 pauses a live camera, and a query that is over its lag goal; one within its goal waits, to be processed with the
    option that is named."""
    lag_s, quality = (lag_s, option.quality) if query.may_lag else (0.0, option.quality * served)
    late = lag_s > query.utility.lag_goal_s + SAME
    paused = share_pct <= 0 < option.demand_pct and (late or not query.may_lag)
    given = Given(
        query=query.id,
        share_pct=share_pct,
        option=None if paused else option.name,
        lag_s=lag_s,
        utility=query.utility.at(quality, lag_s),
    )
    return given, not late and quality >= query.utility.quality_goal - SAME
