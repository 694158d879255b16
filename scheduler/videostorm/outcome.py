"""What queries can expect of their shares and options: the answer of the allocator and of its baseline."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from scheduler.videostorm.lag import predicted_lag_s, served_frac
from scheduler.videostorm.rules import Rules
from scheduler.videostorm.types import Allocation, Given, Option, Query
from scheduler.videostorm.utility import SAME


def checked(queries: Sequence[Query], capacity_pct: float) -> None:
    """Raises ValueError for a capacity that is negative or not finite, and for two queries with one id."""
    if not (math.isfinite(capacity_pct) and capacity_pct >= 0):
        raise ValueError(f"capacity_pct must be a number from 0 on, got {capacity_pct}")
    doubles = sorted(name for name, times in Counter(q.id for q in queries).items() if times > 1)
    if doubles:
        raise ValueError(f"two queries with the id '{doubles[0]}'")


def allocation(
    queries: Sequence[Query], options: Sequence[Option], shares_pct: np.ndarray, capacity_pct: float, rules: Rules
) -> Allocation:
    """The answer for `queries` that run with `options` at `shares_pct` (n,), in the order given."""
    shares_pct = _within(shares_pct, capacity_pct)
    parts = _parts(queries, options, shares_pct, rules.horizon_s)
    given = tuple(part for part, _ in parts)
    return Allocation(
        given=given,
        spare_pct=max(0.0, capacity_pct - math.fsum(g.share_pct for g in given)),
        unmet=tuple(part.query for part, met in parts if not met),
    )


def expected(
    queries: Sequence[Query], options: Sequence[Option], shares_pct: Sequence[float], rules: Rules
) -> tuple[Given, ...]:
    """What each query can expect of an option and a share, whatever the capacity."""
    return tuple(part for part, _ in _parts(queries, options, np.asarray(shares_pct, float), rules.horizon_s))


def _within(shares_pct: np.ndarray, capacity_pct: float) -> np.ndarray:
    """`shares_pct` without the rounding error that would bring their sum above the capacity."""
    over = math.fsum(shares_pct) - capacity_pct
    if over > 0:
        shares_pct = shares_pct.copy()
        largest = int(shares_pct.argmax())
        shares_pct[largest] = max(0.0, shares_pct[largest] - 2 * over)
    return shares_pct


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
        quality=quality,
    )
    return given, not late and quality >= query.utility.quality_goal - SAME
