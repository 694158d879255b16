"""In which steps shares are given out. Ours.

Planners count in whole quanta, and what a camera's cheapest knobs need is rounded up to them. On a device that is short that is dear:
eight cameras that need 2.7 % each take 40 % in steps of 5 % where 22 % would do, so some of them go dark while others learn - and a
fixed split, which divides in whole percent, shows all of them. So where rounding would waste much of the device the step is finer, as
long as a plan stays quick. Only for policies that search all allocations: the thief gives up at the first steal that does not help, so
finer steps make it stick (docs/decisions/0010-planner.md). Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from scheduler.types import StreamView

#: Policies that only gain from finer steps.
EXACT = ("lookahead", "optimal")
#: Of the device, so much may be lost to rounding before the step becomes finer.
WASTE_FRAC = 0.1
#: Steps of all cameras together, at most: a plan takes time in proportion.
MOST_STEPS = 2_000


def quantum_pct(streams: Sequence[StreamView], *, capacity_pct: int, most_pct: int, left_pct: float | None = None) -> int:
    """The largest divisor of `most_pct` at which the cheapest knobs of all cameras waste little; the finest that a plan has time for
    where none does. left_pct: what the plan has to give out, beside what is reserved meanwhile; a step is also too coarse where a camera
    would go dark for nothing but rounding."""
    known = [min(k.demand_pct for k in view.knobs) for view in streams if view.knobs]
    best = most_pct
    for step in sorted((step for step in range(1, most_pct + 1) if most_pct % step == 0), reverse=True):
        if len(streams) * capacity_pct / step > MOST_STEPS and step < most_pct:
            break
        best = step
        rounded = sum(rounded_up(demand, step) for demand in known)
        fits = left_pct is None or rounded <= left_pct or sum(known) > left_pct
        if fits and rounded - sum(known) <= WASTE_FRAC * capacity_pct:
            break
    return best


def rounded_up(demand_pct: float, step_pct: int) -> float:
    return step_pct * math.ceil(demand_pct / step_pct - 1e-9)
