"""The baseline: work-conserving fair share, blind to what queries are worth (card, section 10)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scheduler.videostorm.types import Option, Query


def fair_shares_pct(caps_pct: Sequence[float], capacity_pct: float) -> list[float]:
    """Equal shares; what somebody cannot use (above its cap) is divided equally among the others. Sum <= capacity."""
    caps = np.asarray(caps_pct, float)
    shares, left = np.zeros(len(caps)), float(capacity_pct)
    for done, k in enumerate(np.argsort(caps, kind="stable")):
        shares[k] = min(caps[k], left / (len(caps) - done))
        left = max(0.0, left - shares[k])
    return [float(share) for share in shares]


def usable_pct(query: Query, horizon_s: float) -> float:
    """The most that a query can use: its best configuration keeps up and the backlog goes within `horizon_s`. mu is known to it: a
    baseline is not made worse than it is."""
    demand_pct = best_option(query.options).demand_pct * query.mu
    return demand_pct * (query.lag_s + horizon_s) / horizon_s if query.may_lag else demand_pct


def best_option(options: Sequence[Option]) -> Option:
    """The highest quality, of equal ones the cheapest, of equal ones the first."""
    return max(options, key=lambda o: (o.quality, -o.demand_pct))


def option_within(query: Query, share_pct: float) -> Option:
    """The best configuration that keeps up within `share_pct`; where none does, the cheapest (of equal ones the best)."""
    slack = 1e-9 * max(1.0, share_pct)
    fitting = [o for o in query.options if o.demand_pct * query.mu <= share_pct + slack]
    return best_option(fitting) if fitting else min(query.options, key=lambda o: (o.demand_pct, -o.quality))
