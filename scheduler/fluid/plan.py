"""A group's plan on a pool: widths, and the choice between Fluid and its baselines. Ours, on top of algorithms 3.1 and 3.2.

StaticFluid rounds down: up to half of the GPUs' worth can stay unused for as long as the longest trial runs (card, example F6), and on a
pool where packing brings little, packing all of a group can take longer than one trial per GPU (card, section 6). Two repairs, both
judged by the simulated makespan, so that neither can make a prediction worse:

    leftover    whole GPUs that no large trial has widen the trial that ends last, one at a time, while the group ends sooner
    the choice  of Fluid, FIFO and one by one, the one that ends soonest; of equal ones the simplest
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from scheduler.fluid.simulate import OURS, Course, Rules, fifo, fluid, one_by_one
from scheduler.fluid.types import Pool, Trial, Width
from scheduler.fluid.widths import static_widths

Way = Literal["one-by-one", "fifo", "fluid"]

#: Most GPUs that the leftover pass gives away: each is a simulation of the group.
LEFTOVER_MOST = 16

#: A makespan that differs by rounding alone is not better.
_BETTER = 1e-9


@dataclass(frozen=True, kw_only=True)
class GroupPlan:
    """way: how the group runs; widths: by trial, in the order given (1 for the baselines); course: what is predicted of it;
    makespan_s: predicted, of every way."""

    way: Way
    widths: dict[str, Width]
    course: Course
    makespan_s: dict[Way, float]


def plan_group(trials: Sequence[Trial], pool: Pool, rules: Rules = OURS, *, leftover: bool = True) -> GroupPlan:
    """The way with the least predicted makespan; a pool without GPUs gets Fluid's widths, and nothing starts.
    Raises UsageError for two trials with one id."""
    widths = leftover_widths(trials, pool, rules) if leftover else static_widths(trials, pool)
    found: dict[Way, Course] = {"fluid": fluid(trials, pool, rules, widths=widths)}
    if pool.gpus:
        found |= {"one-by-one": one_by_one(trials), "fifo": fifo(trials, pool.gpus)}
    simplest: tuple[Way, ...] = ("one-by-one", "fifo", "fluid")
    way = min((w for w in simplest if w in found), key=lambda w: _rounded(found[w].makespan_s))
    return GroupPlan(
        way=way,
        widths=widths if way == "fluid" else dict.fromkeys(widths, Fraction(1)),
        course=found[way],
        makespan_s={w: found[w].makespan_s for w in simplest if w in found},
    )


def leftover_widths(trials: Sequence[Trial], pool: Pool, rules: Rules = OURS) -> dict[str, Width]:
    """StaticFluid's widths, widened while that ends the group sooner (by trial, in the order given). The whole widths still add up to at
    most n."""
    widths = static_widths(trials, pool)
    course = fluid(trials, pool, rules, widths=widths)
    for _ in range(LEFTOVER_MOST):
        if sum(w for w in widths.values() if w >= 1) >= pool.gpus or not course.end_s:
            break
        last = max(course.end_s, key=lambda id: (course.end_s[id], widths[id]))
        wider = widths | {last: Fraction(math.floor(widths[last]) + 1)}
        if wider[last] > pool.width_max:
            break
        tried = fluid(trials, pool, rules, widths=wider)
        if not tried.makespan_s < course.makespan_s * (1 - _BETTER):
            break
        widths, course = wider, tried
    return widths


def _rounded(seconds: float) -> float:
    return float(f"{seconds:.9g}")
