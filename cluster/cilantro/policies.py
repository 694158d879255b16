"""Who gets how many units in a round: Cilantro's policies, oracular and learned (card 7.1, 7.2).

One function, `decide`, for what is known (an oracle's curves have no doubt: low = middle = high) and for what is learned. Variants
for the learned case:

  published  optimism by upper bounds for welfare; NJC on demands 3/4 pessimistic, 1/4 informative; box B = 10 on both
  released   0.7 / 0.3, no box, no clip (card section 14)
  ours       welfare of `estimate + optimism * (upper - estimate)`; NJC on the demand of the same blend of estimate and lower bound:
             bounds say where to look, the estimate says what is there. No box: the optimum is exact
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from cluster.cilantro.fairness import Node, hierarchical_max_min, whole_units, with_least
from cluster.cilantro.types import Bounds, FloatArray, IntArray
from cluster.cilantro.utility import Own, utility
from cluster.cilantro.welfare import Limits, egalitarian, limits, social_welfare

Objective = Literal["sw", "ew", "njc", "fair"]
Variant = Literal["published", "released", "ours"]

#: sw: mean utility; ew: smallest utility; njc: no justified complaints; fair: entitlements, whatever is needed (Resource-Fair).
OBJECTIVES: tuple[Objective, ...] = ("sw", "ew", "njc", "fair")
#: How far `ours` moves from the estimate to the upper bound. A sum forgives a disappointed guess, a minimum does not: who is worst off
#: gets more, and is measured there, anyway.
OPTIMISM: Mapping[str, float] = {"sw": 0.5, "ew": 0.0}
#: Of a customer that cannot be satisfied, under `ours` and ew: its last so much of utility is not paid for by the others.
LEVEL = 0.02
VARIANTS: tuple[Variant, ...] = ("published", "released", "ours")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """objective, variant: see the module; box: B in units, None: none; pessimism: beta, weight of the surely enough demand in NJC;
    optimism: of `ours`, 0 to 1, None: `OPTIMISM` of the objective; caution: of `ours` in NJC: how far from the estimate towards the
    lower bound a demand is taken."""

    objective: Objective = "njc"
    variant: Variant = "ours"
    box: int | None = None
    pessimism: float = 0.75
    optimism: float | None = None
    caution: float = 0.25

    @staticmethod
    def published(objective: Objective) -> Settings:
        """Section 4 and 5 of the paper."""
        return Settings(objective=objective, variant="published", box=10, pessimism=0.75)

    @staticmethod
    def released(objective: Objective) -> Settings:
        """The authors' code."""
        return Settings(objective=objective, variant="released", box=None, pessimism=0.7)


@dataclass(frozen=True, kw_only=True)
class JobView:
    """What a policy sees of a job. curve: performance at 0, 1, ... units under the load expected, None: nothing is known, it wants
    all it can get; least: units it always has; before, demand_before: of the round before, None: it was not there."""

    id: str
    goal: float
    shape: str | Own = "linear"
    curve: Bounds | None = None
    least: int = 0
    before: int | None = None
    demand_before: float | None = None

    @property
    def entries(self) -> int:
        """Length of the curve, 0 without one."""
        return 0 if self.curve is None else len(self.curve.middle)


@dataclass(frozen=True, kw_only=True)
class Decision:
    """units: whole units per job; demands: what NJC took for its need (inf: unknown), and what reaches the goal by the estimate
    under the other objectives."""

    units: Mapping[str, int]
    demands: Mapping[str, float]


def decide(jobs: Sequence[JobView], weights: Node, total: int, settings: Settings) -> Decision:
    """One round. weights: tree whose leaves are the jobs. The sum of units is at most total; nobody has less than `least`, unless
    there is not enough for that, when what there is goes round in proportion to it.

    Errors: ValueError for an objective that is not known."""
    if settings.objective not in OBJECTIVES:
        raise ValueError(f"unknown objective {settings.objective!r}, known: {', '.join(OBJECTIVES)}")
    if not jobs:
        return Decision(units={}, demands={})
    known = all(job.curve is not None for job in jobs)
    demands = {job.id: _demand(job, total, settings) for job in jobs}
    if settings.objective in ("sw", "ew") and sum(job.least for job in jobs) <= total:
        units = _welfare(jobs, weights, total, settings, known)
    else:
        wanted = {job.id: math.inf for job in jobs} if settings.objective == "fair" else demands
        units = _shared(jobs, weights, wanted, total)
    units = _never_nothing(units, jobs, total)
    return Decision(units={job.id: int(u) for job, u in zip(jobs, units, strict=True)}, demands=demands)


def _never_nothing(units: IntArray, jobs: Sequence[JobView], total: int) -> IntArray:
    """A unit for who has none by rounding and should have one, from who has most; as far as there are enough units."""
    given = units.copy()
    for j, job in enumerate(jobs):
        if given[j] < 1 <= job.least and (given.sum() < total or given.max() > 1):
            if given.sum() >= total:
                given[int(np.argmax(given))] -= 1
            given[j] = 1
    return given


# --- no justified complaints ------------------------------------------------------------------------------------------


def _shared(jobs: Sequence[JobView], weights: Node, demands: Mapping[str, float], total: int) -> IntArray:
    amounts = hierarchical_max_min(weights, demands, float(total))
    given = np.array([amounts[job.id] for job in jobs])
    least = np.array([float(job.least) for job in jobs])
    if (given < least).any():
        given = with_least(given, least, float(total))
    return whole_units(given, total)


def _demand(job: JobView, total: int, settings: Settings) -> float:
    """d_j(r) in units; inf where nothing is known."""
    if job.curve is None:
        return math.inf
    if settings.variant == "ours":
        cautious = job.curve.middle - settings.caution * (job.curve.middle - job.curve.low)
        return _ours(job, cautious, total)
    surely = least_units(job.curve.low, job.goal, total)
    blend = settings.pessimism * surely + (1 - settings.pessimism) * informative_units(job.curve, job.goal)
    if settings.box is None or job.demand_before is None or not math.isfinite(job.demand_before):
        return blend
    return min(max(blend, job.demand_before - settings.box), job.demand_before + settings.box)


def _ours(job: JobView, cautious: FloatArray, total: int) -> float:
    """Least units that reach the goal by the cautious estimate. Where it never does, one that could by the upper bound asks for all
    it may have; one that cannot asks for no more than brings it to its best."""
    assert job.curve is not None
    units = least_units(cautious, job.goal, total)
    if cautious[min(units, len(cautious) - 1)] >= job.goal:
        return float(units)
    if job.curve.high[-1] >= job.goal:
        return float(total)
    return float(least_units(cautious, float(cautious[-1]) - 1e-9, total))


def least_units(curve: FloatArray, goal: float, total: int) -> int:
    """Least a with curve[a] >= goal; total where the curve never is."""
    at = int(np.searchsorted(np.maximum.accumulate(curve), goal, side="left"))
    return min(at, total) if at < len(curve) else total


def informative_units(curve: Bounds, goal: float) -> int:
    """dbar: argmax over a of min(upper - goal, goal - lower), where a measurement tells most; the first if several do."""
    return int(np.argmax(np.minimum(curve.high - goal, goal - curve.low)))


# --- welfare ----------------------------------------------------------------------------------------------------------


def _welfare(jobs: Sequence[JobView], weights: Node, total: int, settings: Settings, known: bool) -> IntArray:
    if not known:
        # nothing can be plugged in: who is unknown gets its entitlement, the rest is optimised without it
        return _with_unknown(jobs, weights, total, settings)
    utilities = [_utilities(job, settings) for job in jobs]
    within = _limits(jobs, utilities, total, settings)
    return social_welfare(utilities, within) if settings.objective == "sw" else egalitarian(utilities, within)


def _with_unknown(jobs: Sequence[JobView], weights: Node, total: int, settings: Settings) -> IntArray:
    fair = _shared(jobs, weights, {job.id: math.inf for job in jobs}, total)
    unknown = [j for j, job in enumerate(jobs) if job.curve is None]
    rest = [j for j, job in enumerate(jobs) if job.curve is not None]
    left = total - int(fair[unknown].sum())
    if rest and sum(jobs[j].least for j in rest) <= left:
        fair[rest] = _welfare([jobs[j] for j in rest], weights, left, settings, True)
    return fair


def _utilities(job: JobView, settings: Settings) -> FloatArray:
    """uhat_j(a): of the upper bound as published; ours: of the estimate, moved towards it. As long as what the job must have at least
    (a curve may end where more does not matter)."""
    assert job.curve is not None
    curve = job.curve.high
    if settings.variant == "ours":
        optimism = OPTIMISM[settings.objective] if settings.optimism is None else settings.optimism
        curve = job.curve.middle + optimism * (job.curve.high - job.curve.middle)
    found = np.maximum.accumulate(utility(curve, job.goal, job.shape))
    if settings.variant == "ours" and settings.objective == "ew" and curve[-1] < job.goal:
        found = np.minimum(found, found[int(np.searchsorted(found, found[-1] - LEVEL))])
    must = max(job.least, (job.before or 0) - (settings.box or 0))
    return np.pad(found, (0, max(0, must + 1 - len(found))), mode="edge")


def _limits(jobs: Sequence[JobView], utilities: Sequence[FloatArray], total: int, settings: Settings) -> Limits:
    """The box around the round before; dropped when nothing would be feasible in it (jobs came, capacity went)."""
    least = [job.least for job in jobs]
    if settings.box is not None and all(job.before is not None for job in jobs):
        box = settings.box
        low = [max(job.least, (job.before or 0) - box) for job in jobs]
        high = [max(job.least, (job.before or 0) + box) for job in jobs]
        if sum(low) <= total:
            return limits(utilities, total, low, high)
    return limits(utilities, total, least)
