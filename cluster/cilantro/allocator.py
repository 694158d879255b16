"""What the controller calls: performance in, shares out. All state is in `AllocatorState`, which goes to JSON and back.

    state = observe(state, *reports)                                   # whenever a customer's performance is known
    state, grants = allocate(state, customers, capacity_pct, now_s)    # once a round

A customer's curve and load are learned from its own reports. Where there are none (yet, or any more), what it states stands for them,
then its last demand, then its entitlement; it is never given nothing (card section 10).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from cluster.cilantro.fairness import tree
from cluster.cilantro.fallbacks import Profiled, Stated, default_quality
from cluster.cilantro.forecast import Forecast, forecast
from cluster.cilantro.learners import from_dict
from cluster.cilantro.monotone import MonotoneLearner, MonotoneSettings
from cluster.cilantro.policies import Decision, JobView, Settings, decide
from cluster.cilantro.types import Bounds, Learner, Sample
from cluster.cilantro.utility import IDENTITY
from cluster.types import Customer, Grant, Performance
from configs.errors import UsageError

#: Raised when a field of the kept state changes its meaning.
SCHEMA = 1
#: Loads kept per customer: an hour at one report per ten seconds.
LOADS_KEPT = 360
#: Reports from which on a learned curve is believed more than what the customer states.
LEARNED_FROM = 3
#: Least standard deviation that a report is believed to have: nobody measures quality better.
LEAST_SIGMA = 0.005
#: No bound is surer than this part of the value: a box tells the quality of its last window again and again, which is one measurement.
LEAST_SPREAD = 0.01
#: A report that stands for a measurement is this much less certain.
PROXY_SIGMA = 3.0
#: Points at which a curve is looked at first.
CURVE_STEPS = 96
#: Most units that a capacity is divided into.
MOST_UNITS = 20_000


@dataclass(frozen=True, kw_only=True)
class AllocatorSettings:
    """policy: who gets how much; quantum_pct: unit of a share; stale_s: without a report for so long, what is learned is not used;
    keep: part of what was learned kept with each report (0.999 with one per ten seconds: half in two hours), because quality drifts;
    horizon: reports that a round is long, for the forecast of load; group_weights: of inner nodes of the tree, by path, default 1."""

    policy: Settings = field(default_factory=Settings)
    quantum_pct: float = 1.0
    stale_s: float = 600.0
    keep: float = 0.999
    horizon: int = 12
    group_weights: Mapping[tuple[str, ...], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not (0 < self.quantum_pct < math.inf and self.stale_s > 0 and 0 < self.keep <= 1 and self.horizon >= 1):
            raise ValueError(f"settings of the allocator out of range: {self}")


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Of one customer. learner: its curve; loads: oldest first; reports: believed so far; last_s: end of the newest one, controller's
    clock; share_pct, demand_pct: of the last round, None before the first or unknown; measure: what its curve is of."""

    learner: Learner
    loads: tuple[float, ...] = ()
    reports: int = 0
    last_s: float | None = None
    share_pct: float | None = None
    demand_pct: float | None = None
    measure: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**vars(self), "learner": self.learner.as_dict(), "loads": list(self.loads)}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Memory:
        """Inverse of `as_dict`."""
        return Memory(**{**data, "learner": from_dict(data["learner"]), "loads": tuple(float(v) for v in data["loads"])})


@dataclass(frozen=True, kw_only=True)
class AllocatorState:
    """Everything that Cilantro knows. rounds: so far."""

    rounds: int = 0
    customers: Mapping[str, Memory] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        kept = {name: memory.as_dict() for name, memory in self.customers.items()}
        return {"schema": SCHEMA, "rounds": self.rounds, "customers": kept}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> AllocatorState:
        """Inverse of `as_dict`. UsageError for anything else, or another schema."""
        try:
            if data["schema"] != SCHEMA:
                raise ValueError(f"it has schema {data['schema']!r}, this release reads {SCHEMA}")
            customers = {str(name): Memory.from_dict(kept) for name, kept in data["customers"].items()}
            return AllocatorState(rounds=int(data["rounds"]), customers=customers)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UsageError(
                f"the state of the allocator cannot be read: {error}", subject="allocator",
                remedy="without it Cilantro starts again from what customers state",
            ) from None  # fmt: skip


# --- performance in ---------------------------------------------------------------------------------------------------


def observe(state: AllocatorState, *reports: Performance, settings: AllocatorSettings | None = None) -> AllocatorState:
    """The state with these reports learned. Not learned, silently: what is no number, out of 0-1, without share or load, or not newer
    than what was seen of the customer (a replayed message). Customers need not be known before."""
    by_customer: dict[str, list[Performance]] = {}
    for report in reports:
        by_customer.setdefault(report.customer, []).append(report)
    customers = dict(state.customers)
    for name, found in by_customer.items():
        memory = customers.get(name) or _new(settings or AllocatorSettings())
        customers[name] = _observed(memory, sorted(found, key=lambda r: r.end_utc_s))
    return replace(state, customers=customers)


def _new(settings: AllocatorSettings) -> Memory:
    return Memory(learner=MonotoneLearner(settings=MonotoneSettings(high=1.0, keep=settings.keep, least_sd=LEAST_SPREAD)))


def _observed(memory: Memory, reports: Sequence[Performance]) -> Memory:
    for report in reports:
        if not _believable(report) or (memory.last_s is not None and report.end_utc_s <= memory.last_s):
            continue
        sigma = max(LEAST_SIGMA, min(0.5, report.sigma)) * (PROXY_SIGMA if report.proxy else 1.0)
        sample = Sample(alloc=report.alloc_pct, load=report.load, value=report.value, sigma=sigma)
        memory = replace(
            memory,
            learner=memory.learner.updated([sample]),
            loads=(*memory.loads, report.load)[-LOADS_KEPT:],
            reports=memory.reports + 1,
            last_s=report.end_utc_s,
        )
    return memory


def _believable(report: Performance) -> bool:
    numbers = (report.alloc_pct, report.load, report.value, report.sigma, report.end_utc_s)
    return (
        all(map(math.isfinite, numbers))
        and report.alloc_pct > 0
        and report.load > 0
        and 0 <= report.value <= 1
        and report.sigma >= 0
    )


# --- shares out -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Belief:
    """What a customer is taken for in this round. curve_of: its learner, None unknown; load: expected; source: in words."""

    learner: Learner | None
    load: float
    source: str


def allocate(
    state: AllocatorState,
    customers: Sequence[Customer],
    capacity_pct: float,
    now_s: float,
    settings: AllocatorSettings | None = None,
) -> tuple[AllocatorState, dict[str, Grant]]:
    """One round. capacity_pct: of all boxes together; now_s: the clock of `Performance.end_utc_s`. Grants have no `by_box`; their sum is
    at most the capacity; every customer gets something, its `at_least_pct` as long as there is enough for everybody's. A customer that
    is not among `customers` any more is forgotten.

    Errors: UsageError for a capacity that is not above 0, or two customers with one id."""
    chosen = settings or AllocatorSettings()
    _checked(customers, capacity_pct)
    if not customers:
        return replace(state, rounds=state.rounds + 1, customers={}), {}
    quantum_pct, total = _units(customers, capacity_pct, chosen)
    memories = {c.id: _memory(c, state.customers.get(c.id), now_s, chosen) for c in customers}
    beliefs = {c.id: _belief(c, memories[c.id], now_s, chosen) for c in customers}
    views = [_view(c, memories[c.id], beliefs[c.id], quantum_pct, total) for c in customers]
    weights = tree({c.id: c.path for c in customers}, {c.id: c.weight for c in customers}, chosen.group_weights)
    found = decide(views, weights, total, chosen.policy)
    grants = {
        c.id: _grant(c, view, found, beliefs[c.id], quantum_pct, capacity_pct) for c, view in zip(customers, views, strict=True)
    }
    kept = {c.id: _remembered(memories[c.id], grants[c.id]) for c in customers}
    return replace(state, rounds=state.rounds + 1, customers=kept), grants


def _memory(customer: Customer, kept: Memory | None, now_s: float, settings: AllocatorSettings) -> Memory:
    """What is known of the customer. Another measure is another curve: all of it begins anew. A clock that was put back must not make
    a customer's next reports look old."""
    if kept is None or kept.measure not in (None, customer.measure):
        return replace(_new(settings), measure=customer.measure)
    return replace(kept, measure=customer.measure, last_s=None if kept.last_s is None else min(kept.last_s, now_s))


def _checked(customers: Sequence[Customer], capacity_pct: float) -> None:
    if not (math.isfinite(capacity_pct) and capacity_pct > 0):
        raise UsageError(
            f"the capacity to divide must be above 0 pct, got {capacity_pct}", subject="capacity",
            remedy="is any box of the fleet online?",
        )  # fmt: skip
    doubles = sorted(name for name, times in Counter(c.id for c in customers).items() if times > 1)
    if doubles:
        name = doubles[0]
        raise UsageError(f"two customers are called {name}", subject=name, remedy="give each customer an id of its own")


def _units(customers: Sequence[Customer], capacity_pct: float, settings: AllocatorSettings) -> tuple[float, int]:
    """(unit, number of units). Finer than asked for where there would be fewer than ten units a customer, coarser where there would be
    too many to decide on in time."""
    quantum = min(settings.quantum_pct, capacity_pct / (10 * len(customers)))
    total = min(MOST_UNITS, math.floor(capacity_pct / quantum + 1e-9))
    return capacity_pct / total, total


def _belief(customer: Customer, memory: Memory, now_s: float, settings: AllocatorSettings) -> _Belief:
    expected = forecast(memory.loads, steps=settings.horizon)
    load = _expected_load(expected)
    stale = memory.last_s is not None and now_s - memory.last_s > settings.stale_s
    if memory.reports >= LEARNED_FROM and not stale:
        known = "its curve is known" if isinstance(memory.learner, Profiled) else f"learned from {memory.reports} reports"
        return _Belief(learner=memory.learner, load=load, source=known)
    silence = f"silent for {now_s - (memory.last_s or now_s):.0f} s" if stale else "too little measured yet"
    if customer.stated_pct is not None and 0 < customer.stated_pct < math.inf:
        return _Belief(learner=_stated(customer, load), load=load, source=f"{silence}: its stated need stands")
    if stale and memory.demand_pct is not None:
        kept = Stated(unit_demand=max(1e-9, memory.demand_pct / load), goal=customer.goal)
        return _Belief(learner=kept, load=load, source=f"{silence}: its last demand stands")
    return _Belief(learner=None, load=load, source=f"{silence}: its part by weight")


def _expected_load(expected: Forecast) -> float:
    """Upper end, as published; a customer without frames for a while still has cameras."""
    return max(1e-6, expected.high)


def _stated(customer: Customer, load: float) -> Learner:
    """What is known of a customer that only states what it needs. Quality has a typical curve, a deadline rate is taken as linear."""
    assert customer.stated_pct is not None
    unit = customer.stated_pct / load
    if customer.measure == "quality":
        return default_quality(unit, best=customer.goal)
    return Stated(unit_demand=unit, goal=customer.goal)


def _view(customer: Customer, memory: Memory, belief: _Belief, quantum_pct: float, total: int) -> JobView:
    curve = None if belief.learner is None else _curve(customer, belief.learner, quantum_pct / belief.load, total)
    return JobView(
        id=customer.id,
        goal=customer.goal,
        shape=customer.utility,
        curve=curve,
        least=max(1, math.ceil(customer.at_least_pct / quantum_pct - 1e-9)),
        before=None if memory.share_pct is None else round(memory.share_pct / quantum_pct),
        demand_before=None if memory.demand_pct is None else memory.demand_pct / quantum_pct,
    )


def _curve(customer: Customer, learner: Learner, unit: float, total: int) -> Bounds:
    """Performance at 0, 1, ... units, as far as more could matter: to where the goal is surely reached, or nothing changes any more.
    unit: of x. A customer needs a few units of many thousands, so this is most of a round's time saved."""
    steps = np.unique(np.geomspace(1, total, CURVE_STEPS).astype(np.int64))
    rough = learner.bounds(steps.astype(np.float64) * unit)
    flat = (rough.low == rough.low[-1]) & (rough.middle == rough.middle[-1]) & (rough.high == rough.high[-1])
    sure = rough.low >= customer.goal if customer.utility != IDENTITY else np.zeros(len(steps), dtype=bool)
    last = int(steps[int(np.argmax(flat | sure))])
    return learner.bounds(np.arange(last + 1, dtype=np.float64) * unit)


def _grant(
    customer: Customer, view: JobView, found: Decision, belief: _Belief, quantum_pct: float, capacity_pct: float
) -> Grant:
    units, demand = found.units[customer.id], found.demands[customer.id]
    share_pct = units * quantum_pct
    predicted = None if view.curve is None else float(view.curve.middle[min(units, view.entries - 1)])
    demand_pct = demand * quantum_pct if math.isfinite(demand) else None
    return Grant(
        customer=customer.id,
        share_pct=share_pct,
        demand_pct=demand_pct,
        predicted=predicted,
        reason=_reason(customer, share_pct, demand_pct, predicted, belief, capacity_pct),
    )


def _reason(
    customer: Customer,
    share_pct: float,
    demand_pct: float | None,
    predicted: float | None,
    belief: _Belief,
    capacity_pct: float,
) -> str:
    share = f"{share_pct:.0f} pct"
    if demand_pct is None or predicted is None:
        return f"{share}; {belief.source}"
    goal = f"{customer.measure} {customer.goal:.2f}"
    if demand_pct >= capacity_pct - 1e-9:
        return f"{share}: no share is known to bring {goal}, {predicted:.2f} expected; {belief.source}"
    if share_pct >= demand_pct - 1e-9:
        return f"{share}: enough for {goal} (needs {demand_pct:.0f} pct); {belief.source}"
    return f"{share} of {demand_pct:.0f} needed for {goal}: {predicted:.2f} expected; {belief.source}"


def _remembered(memory: Memory, grant: Grant) -> Memory:
    demand_pct = grant.demand_pct if grant.demand_pct is not None else memory.demand_pct
    return replace(memory, share_pct=grant.share_pct, demand_pct=demand_pct)
