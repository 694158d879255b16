"""The baseline: work-conserving fair share, blind to what queries are worth (card, section 10)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scheduler.videostorm.outcome import allocation, checked
from scheduler.videostorm.rules import Rules
from scheduler.videostorm.types import Allocation, Query
from scheduler.videostorm.utility import worth_of


def fair_shares(caps: np.ndarray, capacity: float) -> np.ndarray:
    """Equal shares; what somebody cannot use (above its cap) is divided equally among the others. Sum <= capacity."""
    order = np.argsort(caps, kind="stable")
    ascending = caps[order]
    before = np.cumsum(ascending) - ascending
    equal = np.maximum(0.0, capacity - before) / np.arange(len(caps), 0, -1)
    capped = np.flatnonzero(ascending > equal)  # the first one that cannot have all it could use, and all after it
    level = equal[capped[0]] if len(capped) else np.inf
    return np.asarray(np.minimum(caps, level))


def fair_allocation(queries: Sequence[Query], capacity_pct: float, *, rules: Rules) -> Allocation:
    """Fair shares, and within each the configuration of the best quality that keeps up (the cheapest where none does). mu and the
    backlog are known to it: a baseline is not made worse than it is. Errors: as `allocate`."""
    checked(queries, capacity_pct)
    if not queries:
        return Allocation(given=(), spare_pct=float(capacity_pct))
    worth = worth_of(queries, rules)
    steps = fair_shares(worth.usable(), capacity_pct / rules.quantum_pct)
    columns = worth.keeping_up(steps)
    options = [q.options[worth.position[k, columns[k]]] for k, q in enumerate(queries)]
    return allocation(queries, options, steps * rules.quantum_pct, capacity_pct, rules)
