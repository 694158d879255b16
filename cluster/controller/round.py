"""What the controller decides, as functions of what it knows and the time. Pure. Three of them, each at its own pace:

| when | what |
|---|---|
| `settle`, with every step | handoffs and rollouts go as far as reports allow; what every box is to do follows |
| `place`, every round, and at once when a box is lost or to be emptied | which camera sets out for which box |
| `share`, every round | Cilantro's shares per customer, divided over the boxes where its cameras are |

`wishes` turns the outcome into one `Desired` per box, with a new version only where it says something new.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from cluster.cilantro.allocator import AllocatorSettings, AllocatorState, allocate
from cluster.controller.divide import divide
from cluster.controller.feedback import Seen, cameras_by_customer
from cluster.placement.handoff import advance_handoffs
from cluster.placement.plan import FleetRules, Intent, carry_out, plan_placement
from cluster.placement.sight import is_dead, lease_of, word_of
from cluster.rollouts.rules import advance
from cluster.types import Customer, FleetState, Grant
from scheduler.fleet.desire import utc_s
from scheduler.fleet.types import CameraKey, CameraOrder, Desired, ModelOffer, ShareOrder


@dataclass(frozen=True, kw_only=True)
class RoundRules:
    """round_s: between two divisions of the shares; feedback_s: between two looks at what customers got; fresh_s: a box not heard for
    longer tells nothing; urgent_s: between two looks for a place for cameras of lost boxes; valid_s: a wish may be begun for so long,
    and is told again when half of that is over; policy: name for the history. Cilantro's horizon follows from the two paces: the load
    is forecast for the round that a grant is for."""

    round_s: float = 120.0
    feedback_s: float = 10.0
    fresh_s: float = 30.0
    urgent_s: float = 5.0
    valid_s: float = 3600.0
    placement: FleetRules = FleetRules()
    cilantro: AllocatorSettings = field(default_factory=AllocatorSettings)

    def __post_init__(self) -> None:
        if not (self.round_s > 0 and self.feedback_s > 0):
            raise ValueError(f"round_s and feedback_s must be above 0, got {self.round_s} and {self.feedback_s}")
        horizon = max(1, round(self.round_s / self.feedback_s))
        object.__setattr__(self, "cilantro", replace(self.cilantro, horizon=horizon))

    @property
    def policy(self) -> str:
        """Cilantro's policy in force."""
        return f"{self.cilantro.policy.objective} ({self.cilantro.policy.variant})"


# --- with every step --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Settled:
    """state: the next one; orders, offers: what each box is to do with cameras, and what it is offered; said: what changed, in words."""

    state: FleetState
    orders: Mapping[str, tuple[CameraOrder, ...]]
    offers: Mapping[str, tuple[ModelOffer, ...]]
    said: tuple[str, ...] = ()


def settle(state: FleetState, rules: RoundRules, now_utc_s: float) -> Settled:
    """Doing it twice changes nothing more."""
    advanced = advance_handoffs(state, rules.placement.handoff, now_utc_s)
    rollouts, offered = advance(advanced.state.rollouts, advanced.state, now_utc_s)
    state = advanced.state if rollouts == advanced.state.rollouts else replace(advanced.state, rollouts=rollouts)
    offers = {box: (*state.offers.get(box, ()), *offered.get(box, ())) for box in {*state.offers, *offered}}
    return Settled(state=state, orders=advanced.orders, offers=offers, said=advanced.said)


# --- places -----------------------------------------------------------------------------------------------------------


def urgent(state: FleetState, rules: RoundRules, now_utc_s: float) -> frozenset[str]:
    """What cannot wait for the next round: cameras whose owner is lost, cannot watch them, or is to be emptied; by name."""
    patience = rules.placement.handoff.patience
    dead = {box for box in state.boxes if is_dead(state, box, patience, now_utc_s)}
    found = set()
    for box, view in state.boxes.items():
        for camera in view.cameras:
            lease = lease_of(state, camera.camera)
            if lease.box == box and (box in dead or view.draining or _failed(state, box, camera.camera, lease.term)):
                found.add(f"{camera.camera}@{box}")
    return frozenset(found)


def _failed(state: FleetState, box: str, camera: CameraKey, term: int) -> bool:
    word = word_of(state, box, camera)
    return word is not None and word.stage == "failed" and word.term == term


def place(
    state: FleetState, rules: RoundRules, now_utc_s: float, *, only_urgent: bool
) -> tuple[FleetState, tuple[Intent, ...]]:
    """only_urgent: no moves that merely pay."""
    chosen = rules.placement
    if only_urgent:
        chosen = replace(chosen, scores=replace(chosen.scores, moves=0), standby=False)
    intents = plan_placement(state, chosen, now_utc_s)
    return carry_out(state, intents, chosen, now_utc_s), intents


# --- shares -----------------------------------------------------------------------------------------------------------


def customers_in_force(state: FleetState, seen: Mapping[str, tuple[Seen, ...]]) -> tuple[Customer, ...]:
    """Those with cameras, in the order of their ids; a name that the owner never told of is a customer with the usual goal."""
    return tuple(state.customers.get(name) or Customer(id=name) for name in sorted(seen))


def share(
    state: FleetState, allocator: AllocatorState, rules: RoundRules, now_utc_s: float
) -> tuple[FleetState, AllocatorState, tuple[str, ...]]:
    """New grants. Without a box to divide, or a customer, the old ones stay: nobody's share is taken for want of news."""
    seen = cameras_by_customer(state)
    customers = customers_in_force(state, seen)
    capacity = _capacities(state, rules, now_utc_s)
    total_pct = sum(capacity.values())
    if not customers or total_pct <= 0:
        why = "no box has reported" if total_pct <= 0 else "no camera is watched"
        return state, allocator, (f"shares stay as they are: {why}",)
    weighed = {group.path: group.weight for group in state.groups.values()}
    settings = replace(rules.cilantro, group_weights={**rules.cilantro.group_weights, **weighed})
    after, grants = allocate(allocator, customers, total_pct, now_utc_s, settings)
    # What was learned about a customer whose boxes are away waits for them; only one that was removed is forgotten.
    waiting = {name: memory for name, memory in allocator.customers.items() if name in state.customers}
    after = replace(after, customers={**waiting, **after.customers})
    placed = divide({name: grant.share_pct for name, grant in grants.items()}, _needs(seen), capacity)
    divided = {name: _divided(grant, placed.get(name, {})) for name, grant in grants.items()}
    reasons = (f"{total_pct:.0f} pct of {len(capacity)} boxes for {len(customers)} customers",)
    return replace(state, grants=divided), after, reasons


def _capacities(state: FleetState, rules: RoundRules, now_utc_s: float) -> dict[str, float]:
    patience = rules.placement.handoff.patience
    return {
        box: view.capacity_pct
        for box, view in sorted(state.boxes.items())
        if view.capacity_pct > 0 and not is_dead(state, box, patience, now_utc_s)
    }


def _needs(seen: Mapping[str, tuple[Seen, ...]]) -> dict[str, dict[str, float]]:
    needs: dict[str, dict[str, float]] = {}
    for customer, cameras in seen.items():
        by_box = needs.setdefault(customer, {})
        for one in cameras:
            by_box[one.box] = by_box.get(one.box, 0.0) + one.camera.demand_pct
    return needs


def _divided(grant: Grant, by_box: Mapping[str, float]) -> Grant:
    placed_pct = round(sum(by_box.values()), 1)
    short = grant.share_pct - placed_pct
    told = f"; only {placed_pct:.0f} pct fit where its cameras are" if short > max(1.0, 0.02 * grant.share_pct) else ""
    return replace(grant, share_pct=placed_pct, by_box=dict(by_box), reason=grant.reason + told)


# --- wishes -----------------------------------------------------------------------------------------------------------


def wishes(
    settled: Settled, told: Mapping[str, Desired], rules: RoundRules, now_utc_s: float, *, version: int
) -> dict[str, Desired]:
    """The wishes that are to be told now, by box: new ones, with the next version; and those of which half the time is over, again.
    told: the newest of each box. version: for what is new, higher than all before, also of boxes that left and come back. A new term
    makes everything new: a controller that lost its lease must not be obeyed again."""
    state = settled.state
    found = {}
    for box in sorted(state.boxes):
        wish = _wish(settled, box, rules, now_utc_s)
        before = told.get(box)
        if before is None or _says(before) != _says(wish):  # the term is part of it
            found[box] = replace(wish, version=version)
        elif now_utc_s > (utc_s(before.expires_utc) or 0.0) - rules.valid_s / 2:
            found[box] = replace(wish, version=before.version)
    return found


def _wish(settled: Settled, box: str, rules: RoundRules, now_utc_s: float) -> Desired:
    state = settled.state
    shares = tuple(
        ShareOrder(customer=customer, share_pct=grant.by_box[box])
        for customer, grant in sorted(state.grants.items())
        if grant.by_box.get(box, 0.0) > 0
    )
    return Desired(
        box=box, term=state.term, version=0, made_utc=iso_utc(now_utc_s), expires_utc=iso_utc(now_utc_s + rules.valid_s),
        shares=shares, cameras=settled.orders.get(box, ()), offers=settled.offers.get(box, ()),
        draining=state.boxes[box].draining, collect=state.collects.get(box, ""),
    )  # fmt: skip


def _says(wish: Desired) -> Desired:
    return replace(wish, version=0, made_utc="", expires_utc="")


def iso_utc(utc_s: float) -> str:
    return datetime.fromtimestamp(utc_s, UTC).isoformat(timespec="milliseconds")
