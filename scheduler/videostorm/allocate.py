"""Who gets how much, and runs with which knobs: the card's section 7, with its repairs.

What we changed or settled (`Rules(printed=True)` runs without any of it):
  * the last query that MAXSUM serves may stop inside a segment, where its quanta help nobody: the same order with whole segments only
    is a second plan, and where the problem is small the exact optimum (dynamic programming) a third one;
  * fair shares and the present shares are further plans: the best one is taken, so that it never falls below them;
  * MAXMIN looks ahead, and lifts of equally low queries the one that costs least;
  * left-over quanta clear backlog, the longest lag in proportion to its goal first;
  * ties end with the query ids, so the order in which queries are given does not matter.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from scheduler.videostorm import maxmin, maxsum
from scheduler.videostorm.fair import fair_allocation, fair_shares
from scheduler.videostorm.outcome import allocation, checked
from scheduler.videostorm.rules import Rules
from scheduler.videostorm.types import Allocation, Query
from scheduler.videostorm.utility import SAME, Worth, whole_down, worth_of

__all__ = ["Rules", "allocate", "fair_allocation", "planned_utility"]


def allocate(queries: Sequence[Query], capacity_pct: float, *, rules: Rules) -> Allocation:
    """Shares and options of `queries` on a pool of `capacity_pct`, for the next period. Pure; the same input gives the same answer.

    About O(n m (h + log n)) for n queries of m options with envelopes of h segments. Errors: ValueError for a capacity that is
    negative or not finite, and for two queries with one id.
    """
    checked(queries, capacity_pct)
    if not queries:
        return Allocation(given=(), spare_pct=float(capacity_pct))
    rank = sorted(range(len(queries)), key=lambda k: queries[k].id)
    ordered = [queries[k] for k in rank]
    worth = worth_of(ordered, rules)
    capacity = capacity_pct / rules.quantum_pct
    steps = _best_plan(ordered, worth, capacity)
    if not rules.printed:
        steps = _clear_backlog(ordered, worth, steps, capacity)
    columns = worth.choose(steps)
    options = [q.options[worth.position[k, columns[k]]] for k, q in enumerate(ordered)]
    back = np.argsort(rank)
    return allocation(
        [ordered[k] for k in back], [options[k] for k in back], steps[back] * rules.quantum_pct, capacity_pct, rules
    )


def planned_utility(queries: Sequence[Query], shares_pct: Sequence[float], rules: Rules) -> list[float]:
    """V_k of every query at these shares, as `allocate` compares them: `Given.utility` less what `Rules` adds for planning."""
    if not queries:
        return []
    return [float(v) for v in worth_of(queries, rules).best(np.asarray(shares_pct, float) / rules.quantum_pct)]


# --- which plan -------------------------------------------------------------------------------------------------------


def _best_plan(queries: Sequence[Query], worth: Worth, capacity: float) -> np.ndarray:
    """Quanta of each query: the best of all plans, the earliest of equally good ones."""
    plans = _plans(queries, worth, capacity)
    best = next(plans)
    best_score = _score(worth, best)
    for steps in plans:
        score = _score(worth, steps)
        if _better(score, best_score):
            best, best_score = steps, score
    return best


def _plans(queries: Sequence[Query], worth: Worth, capacity: float) -> Iterator[np.ndarray]:
    rules, total = worth.rules, int(whole_down(np.array(capacity)))
    if rules.objective == "maxmin":
        yield maxmin.lift_by_one(worth, total) if rules.printed else maxmin.lift(worth, total)
    else:
        order = maxsum.segments(worth, total)
        yield maxsum.fill(order, len(worth), total)
        if not rules.printed:
            yield maxsum.fill_whole(order, len(worth), total)
            if len(worth) * (total + 1) ** 2 <= rules.exact_steps:
                yield maxsum.exact(worth.table(total))
    if not rules.printed:
        yield fair_shares(worth.usable(), capacity)
        present = np.array([q.current_pct for q in queries]) / rules.quantum_pct
        if math.fsum(present) <= capacity:
            yield present


def _score(worth: Worth, steps: np.ndarray) -> np.ndarray:
    """What is compared, the first number first."""
    values = worth.best(steps)
    return np.array([math.fsum(values)]) if worth.rules.objective == "sum" else np.sort(values)


def _better(score: np.ndarray, than: np.ndarray) -> bool:
    differ = np.abs(score - than) > SAME * np.maximum(1.0, np.maximum(np.abs(score), np.abs(than)))
    first = int(differ.argmax())
    return bool(differ[first] and score[first] > than[first])


# --- what is left -----------------------------------------------------------------------------------------------------


def _clear_backlog(queries: Sequence[Query], worth: Worth, steps: np.ndarray, capacity: float) -> np.ndarray:
    """`steps` and what is left of `capacity` quanta, to those that could process more: first the longest lag as a part of its goal."""
    left = float(math.floor(capacity - math.fsum(steps) + SAME))
    short = np.maximum(0.0, worth.wanted(worth.choose(steps)) - np.floor(steps))
    if left < 1 or not short.any():
        return steps
    filled = steps.copy()
    behind = [q.lag_s / max(q.utility.lag_goal_s, 1.0) for q in queries]
    for k in sorted(np.flatnonzero(short).tolist(), key=lambda k: (-behind[k], queries[k].id)):
        more = min(float(short[k]), left)
        filled[k] += more
        left -= more
    return filled
