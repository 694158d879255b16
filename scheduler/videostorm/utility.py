"""What every query is worth at any share: V_k(a) = max over options c of U_k(Q(c), L_k(t+T; a, c)). Card, sections 5 to 7.

For one option the planned utility is a line with three bends in the share: four values say all of it, and thousands of queries are a
few arrays. A query that may lag, at share

    0      lag is L + T: every second of it above the goal L_M costs a_L
    goal   lag falls to L_M                              D * mu * (L + T - L_M) / T
    near   lag falls to the reduced goal                 in between a second costs a part of a_L
    full   all that waits is processed                   D * mu * (L + T) / T; in between a second costs next to nothing

A live camera never lags: what does not fit is skipped. With the part f = min(1, a / (D * mu)) of the frames processed, its quality
counts as f * Q(c) (a picture that nobody looked at shows nothing): 0 at share 0, Q_M at `goal`, Q(c) at `near` = `full` = D * mu.

What we added to the printed utility, all of it in `Rules`: the costs of lag below the goal (as printed, all slack is spent and stays
spent), and that every option but the present one costs `min_gain`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scheduler.videostorm.lag import predicted_lag_s, served_frac
from scheduler.videostorm.rules import Rules
from scheduler.videostorm.types import Query

#: Worth of an option that is not there: below any real one, and finite, so that differences stay numbers.
NOTHING = -1e30

#: Utilities that differ by less than this part of their size are equal.
SAME = 1e-9


#: A line of planned utility: shares of its bends, ascending, and the values at 0 and at each bend; constant beyond the last one.
Bends = tuple[np.ndarray, ...]
Values = tuple[np.ndarray, ...]


def line(steps: Any, bends: Bends, values: Values) -> np.ndarray:
    """Planned utility at `steps`. Arrays broadcast."""
    found = np.broadcast_to(values[-1], np.broadcast_shapes(np.shape(steps), np.shape(values[-1])))
    starts = (0.0, *bends[:-1])
    for i in reversed(range(len(bends))):
        with np.errstate(divide="ignore", invalid="ignore"):
            frac = (steps - starts[i]) / (bends[i] - starts[i])
            piece = values[i] + (values[i + 1] - values[i]) * frac
        found = np.where(steps < bends[i], piece, found)
    return found


def steps_to(level: Any, bends: Bends, values: Values) -> np.ndarray:
    """Least steps at which `line` reaches `level`; infinite where it never does."""
    found = np.where(level <= values[-1], bends[-1], np.inf)
    starts = (0.0, *bends[:-1])
    for i in reversed(range(len(bends))):
        with np.errstate(divide="ignore", invalid="ignore"):
            piece = starts[i] + (bends[i] - starts[i]) * ((level - values[i]) / (values[i + 1] - values[i]))
        found = np.where(level <= values[i + 1], piece, found)
    return np.where(level <= values[0], 0.0, found)


@dataclass(frozen=True, eq=False, kw_only=True)
class Worth:
    """n queries with up to m options each, ascending in demand, dominated and missing ones worth NOTHING.

    Arrays (n, m): position of the option in its query's profile; demand_pct: D * mu; quality: Q(c); bends: in quanta of share; values:
    planned utility at 0 and at the bends. Arrays (n, 1): lag_s, may_lag.
    """

    rules: Rules
    position: np.ndarray
    demand_pct: np.ndarray
    quality: np.ndarray
    bends: Bends
    values: Values
    lag_s: np.ndarray
    may_lag: np.ndarray

    def __len__(self) -> int:
        return len(self.lag_s)

    def of_options(self, steps: np.ndarray) -> np.ndarray:
        """Planned utility of every option, (n, m), at `steps` (n,) or, each its own, (n, m) quanta of share."""
        return line(steps[:, None] if steps.ndim == 1 else steps, self.bends, self.values)

    def best(self, steps: np.ndarray) -> np.ndarray:
        """V_k, (n,), at `steps` (n,) quanta of share."""
        return np.asarray(self.of_options(steps).max(axis=1))

    def least_steps(self, level: np.ndarray) -> np.ndarray:
        """Least whole quanta, (n,), with which V_k reaches `level` (n,), but for rounding errors; infinite where it never does."""
        level = level - SAME * 1e-3 * np.maximum(1.0, np.abs(level))
        return whole_up(steps_to(level[:, None], self.bends, self.values).min(axis=1))

    def table(self, steps: int) -> np.ndarray:
        """V_k at 0, 1, ... `steps` quanta: (n, steps + 1)."""
        grid = np.arange(steps + 1, dtype=float)
        best = np.full((len(self), steps + 1), NOTHING)
        for j in range(self.quality.shape[1]):  # option by option: an (n, m, steps) array would be large
            best = np.maximum(best, line(grid, _columns_of(self.bends, [j]), _columns_of(self.values, [j])))
        return best

    def take(self, queries: np.ndarray) -> Worth:
        """The same of some queries only (indices)."""
        return Worth(
            rules=self.rules,
            position=self.position[queries],
            demand_pct=self.demand_pct[queries],
            quality=self.quality[queries],
            bends=tuple(x[queries] for x in self.bends),
            values=tuple(y[queries] for y in self.values),
            lag_s=self.lag_s[queries],
            may_lag=self.may_lag[queries],
        )

    def choose(self, steps: np.ndarray) -> np.ndarray:
        """Column of the option that each query runs with at `steps` (n,) quanta: the best; of equal ones the least lag (live: the
        fewest frames skipped), then the highest quality, then the least demand."""
        worth = self.of_options(steps)
        top = worth.max(axis=1, keepdims=True)
        left = worth >= top - SAME * np.maximum(1.0, np.abs(top))
        for cost in (self._unserved(steps), -self.quality):
            open_cost = np.where(left, cost, np.inf)
            left &= open_cost <= open_cost.min(axis=1, keepdims=True) + SAME
        return np.asarray(left.argmax(axis=1))

    @property
    def there(self) -> np.ndarray:
        """Which options there are, (n, m)."""
        return self.values[-1] > NOTHING / 2

    def usable(self) -> np.ndarray:
        """The most quanta, (n,), that a query can use: its best option keeps up, and clears the backlog within the horizon."""
        best = np.where(self.there, self.quality, -1.0).argmax(axis=1)
        return np.asarray(np.take_along_axis(self.bends[-1], best[:, None], axis=1)[:, 0])

    def keeping_up(self, steps: np.ndarray) -> np.ndarray:
        """Column of the best option that keeps up within `steps` (n,) quanta; where none does, of the cheapest."""
        share_pct = steps[:, None] * self.rules.quantum_pct
        fits = self.there & (self.demand_pct <= share_pct + SAME * np.maximum(1.0, share_pct))
        return np.asarray(np.where(fits, self.quality, -1.0).argmax(axis=1))

    def wanted(self, columns: np.ndarray) -> np.ndarray:
        """Quanta, whole, (n,), with which nothing waits or is skipped under these options."""
        return whole_up(np.take_along_axis(self.bends[-1], columns[:, None], axis=1)[:, 0])

    def _unserved(self, steps: np.ndarray) -> np.ndarray:
        share_pct = steps[:, None] * self.rules.quantum_pct
        waits_s = predicted_lag_s(self.lag_s, share_pct, self.demand_pct, self.rules.horizon_s)
        skipped = 1.0 - np.minimum(1.0, served_frac(share_pct, self.demand_pct))
        return np.where(self.may_lag, waits_s, skipped)


def whole_up(steps: np.ndarray) -> np.ndarray:
    """`steps` rounded up, but for what is only rounding error."""
    return np.asarray(np.ceil(steps * (1 - SAME) - SAME)) + 0.0  # no -0.0


def whole_down(steps: np.ndarray) -> np.ndarray:
    """`steps` rounded down, but for what is only rounding error."""
    return np.asarray(np.floor(steps * (1 + SAME) + SAME))


def rounded(slopes: np.ndarray) -> np.ndarray:
    """Slopes without rounding errors, so that equal ones are equal and ties end with the ids."""
    mantissa, exponent = np.frexp(slopes)
    return np.ldexp(np.round(np.ldexp(mantissa, 36)), exponent - 36)


def worth_of(queries: Sequence[Query], rules: Rules) -> Worth:
    """The planned utility of `queries` (one at least) under `rules`."""
    demand_pct, quality, position = _profiles(queries)
    there = _pareto(demand_pct, quality)
    terms = _terms(queries)
    may_lag = np.array([[q.may_lag] for q in queries])
    demand_pct = np.where(there, demand_pct * terms.mu, 0.0)
    waiting, live = _waiting(demand_pct, quality, terms, rules), _live(demand_pct, quality, terms)
    bends = tuple(np.where(may_lag, a, b) / rules.quantum_pct for a, b in zip(waiting[0], live[0], strict=True))
    cost = _change_cost(queries, position, there, rules)
    values = tuple(np.where(there, np.where(may_lag, a, b) - cost, NOTHING) for a, b in zip(waiting[1], live[1], strict=True))
    return Worth(
        rules=rules,
        position=position,
        demand_pct=demand_pct,
        quality=quality,
        bends=bends,
        values=values,
        lag_s=terms.lag_s,
        may_lag=may_lag,
    )


@dataclass(frozen=True, eq=False)
class _Terms:
    """What the formulas need of each query, (n, 1)."""

    lag_s: np.ndarray
    mu: np.ndarray
    base: np.ndarray
    quality_weight: np.ndarray
    quality_goal: np.ndarray
    quality_penalty: np.ndarray
    lag_weight_per_s: np.ndarray
    lag_goal_s: np.ndarray

    def of_quality(self, quality: np.ndarray) -> np.ndarray:
        """U(Q, 0)."""
        above, below = np.maximum(0.0, quality - self.quality_goal), np.maximum(0.0, self.quality_goal - quality)
        return np.asarray(self.base + self.quality_weight * above - self.quality_penalty * below)


def _terms(queries: Sequence[Query]) -> _Terms:
    rows = [
        (
            q.lag_s,
            q.mu,
            q.utility.base,
            q.utility.quality_weight,
            q.utility.quality_goal,
            q.utility.quality_penalty,
            q.utility.lag_weight_per_s,
            q.utility.lag_goal_s,
        )
        for q in queries
    ]
    table = np.array(rows, dtype=float)
    return _Terms(*(table[:, [i]] for i in range(table.shape[1])))


def _columns_of(arrays: tuple[np.ndarray, ...], columns: list[int]) -> tuple[np.ndarray, ...]:
    return tuple(x[:, columns] for x in arrays)


def _profiles(queries: Sequence[Query]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(demand_pct, quality, position), each (n, m), ascending in demand, then descending in quality; missing options at the end with
    an infinite demand."""
    counts = np.array([len(q.options) for q in queries])
    there = np.arange(counts.max()) < counts[:, None]
    demand_pct, quality = np.full(there.shape, np.inf), np.full(there.shape, -1.0)
    demand_pct[there] = [o.demand_pct for q in queries for o in q.options]
    quality[there] = [o.quality for q in queries for o in q.options]
    order = np.lexsort((-quality, demand_pct), axis=1)
    return np.take_along_axis(demand_pct, order, 1), np.take_along_axis(quality, order, 1), order


def _pareto(demand_pct: np.ndarray, quality: np.ndarray) -> np.ndarray:
    """Options that no other one of their query matches or beats in both; of exact doubles the first."""
    before = np.maximum.accumulate(quality, axis=1)[:, :-1]
    rises = np.concatenate([np.ones((len(quality), 1), bool), quality[:, 1:] > before], axis=1)
    return np.isfinite(demand_pct) & rises


def _waiting(demand_pct: np.ndarray, quality: np.ndarray, terms: _Terms, rules: Rules) -> tuple[Bends, Values]:
    """Bends (pct) and values of queries that may lag."""
    ahead_s, goal_s, near_s = terms.lag_s + rules.horizon_s, terms.lag_goal_s, rules.goal_frac * terms.lag_goal_s
    near_weight = rules.margin_frac * terms.lag_weight_per_s
    slack_weight = np.minimum(near_weight, rules.goal_cost / np.where(near_s > 0, near_s, np.inf))
    bends = tuple(demand_pct * np.maximum(0.0, ahead_s - lag_s) / rules.horizon_s for lag_s in (goal_s, near_s, 0.0 * goal_s))
    at_full = terms.of_quality(quality)
    at_near = at_full - slack_weight * np.minimum(ahead_s, near_s)
    at_goal = at_near - near_weight * np.maximum(0.0, np.minimum(ahead_s, goal_s) - near_s)
    return bends, (at_goal - terms.lag_weight_per_s * np.maximum(0.0, ahead_s - goal_s), at_goal, at_near, at_full)


def _live(demand_pct: np.ndarray, quality: np.ndarray, terms: _Terms) -> tuple[Bends, Values]:
    """The same of live cameras; lag has no say here."""
    reached = np.minimum(quality, terms.quality_goal)
    with np.errstate(divide="ignore", invalid="ignore"):
        needed = np.where(quality > 0, reached / quality, 1.0)
    at_full = terms.of_quality(quality)
    return (needed * demand_pct, demand_pct, demand_pct), (
        terms.of_quality(0.0 * quality),
        terms.of_quality(reached),
        at_full,
        at_full,
    )


def _change_cost(queries: Sequence[Query], position: np.ndarray, there: np.ndarray, rules: Rules) -> np.ndarray:
    """(n, m): min_gain for every option but the present one; nothing where that is no (good) option any more."""
    if not rules.change_cost:
        return np.zeros(position.shape)
    present = [next((i for i, o in enumerate(q.options) if o.name == q.current), -1) for q in queries]
    is_present = (position == np.array(present)[:, None]) & there
    has_present = is_present.any(axis=1, keepdims=True)
    return np.where(has_present & ~is_present, rules.change_cost, 0.0)
