"""Customers' shares of one box in its plans: each customer's cameras are planned inside its share, what one leaves idle goes to others.

The fleet says how much of this box every customer is worth (Cilantro's a_j on this box, `ShareOrder`). The box keeps that as a *floor
under contention* and is work-conserving (papers/cilantro.md: a customer may be given more than its share where nobody else wants it):

    floors      shares in quanta, scaled down when they are more than there is; a gate that runs was paid by its own customer already.
                A customer that the fleet did not name shares, by cameras, what the named ones leave; everybody has a quantum at least.
    shrink      each customer is planned on its floor by the registered policy, then on as little as gives the same (`QUALITY_TOL`).
    give away   what is left goes, in steps of the best gain per percent, to whoever gains by it; where nobody gains, everybody keeps
                its own floor (head room for what a plan does not foresee), and the rest is spare.

So no customer's planned quality is below what its floor alone would give, whatever the others want. With one customer, or without
shares, the policy plans the whole box as ever. Not divided: snapshots of several devices (a job must fit on one; live boxes have one
pool) and of a cloud's link, both used by simulations only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from scheduler.ekya.estimate import QUALITY_TOL
from scheduler.ekya.pick_configs import BELOW_VALUE
from scheduler.types import Plan, Snapshot

Policy = Callable[[Snapshot], Plan]

#: What is left over is given away in at most about so many steps: plans are made in milliseconds, also on large boxes.
STEPS = 8


@dataclass(frozen=True, kw_only=True)
class Division:
    """shares_pct: of whom the fleet named, percent of one GPU on this box; customers: stream -> customer; gates_pct: what each customer
    holds at gates that run, which the snapshot's capacity lacks already."""

    shares_pct: Mapping[str, float]
    customers: Mapping[str, str]
    gates_pct: Mapping[str, float] = field(default_factory=dict)

    def of(self, stream: str) -> str:
        return self.customers.get(stream, "")

    def applies(self, streams: Sequence[str]) -> bool:
        """Whether these streams' customers are to be kept apart."""
        return bool(self.shares_pct) and len({self.of(stream) for stream in streams}) > 1


@dataclass(frozen=True, kw_only=True)
class Part:
    """A customer's part of the box: a snapshot of its own cameras and capacity, and its plan. floor_pct: what it was sure of."""

    customer: str
    snapshot: Snapshot
    plan: Plan
    floor_pct: int


def parts_of(snapshot: Snapshot, policy: Policy, division: Division) -> tuple[Part, ...]:
    """The parts, in order of customers; one part, the whole, where nothing is to be divided. Raises what the policy raises."""
    if not division.applies([view.id for view in snapshot.streams]) or snapshot.gpus or snapshot.network is not None:
        return (Part(customer="", snapshot=snapshot, plan=policy(snapshot), floor_pct=snapshot.capacity_pct),)
    planner = _Planner(snapshot, policy, division)
    floors = floors_of(planner.cameras, snapshot.capacity_pct, snapshot.quantum_pct, division)
    quanta = _given_away(planner, floors, snapshot.capacity_pct // snapshot.quantum_pct)
    return tuple(
        Part(
            customer=customer, snapshot=planner.snapshot(customer, quanta[customer]), plan=planner.plan(customer, quanta[customer]),
            floor_pct=floors[customer] * snapshot.quantum_pct,
        )
        for customer in planner.cameras
    )  # fmt: skip


def whole(snapshot: Snapshot, parts: Sequence[Part]) -> Plan:
    """The parts' plans as one; shares + spare = capacity."""
    if len(parts) == 1 and parts[0].snapshot.streams == snapshot.streams:
        return parts[0].plan
    found = {entry.id: entry for part in parts for entry in part.plan.streams}
    streams = tuple(found[view.id] for view in snapshot.streams)
    used = sum(entry.infer_pct + entry.train_pct for entry in streams)
    return Plan(
        policy=parts[0].plan.policy, streams=streams, spare_pct=snapshot.capacity_pct - used,
        expected_quality=sum(entry.expected_quality for entry in streams) / len(streams), steps=sum(part.plan.steps for part in parts),
    )  # fmt: skip


def planned(snapshot: Snapshot, policy: Policy, division: Division) -> Plan:
    """`policy`'s plan within the customers' shares."""
    return whole(snapshot, parts_of(snapshot, policy, division))


def told(parts: Sequence[Part]) -> tuple[str, ...]:
    """A sentence per customer, for people."""
    if len(parts) < 2:
        return ()
    return tuple(_sentence(part) for part in parts)


def _sentence(part: Part) -> str:
    used_pct = sum(entry.infer_pct + entry.train_pct for entry in part.plan.streams)
    more = " with what others leave idle" if used_pct > part.floor_pct else ""
    return f"customer {part.customer}: sure of {part.floor_pct} pct, planned {used_pct} pct{more}"


# --- floors -----------------------------------------------------------------------------------------------------------


def wanted_pct(cameras: Mapping[str, int], total_pct: float, shares_pct: Mapping[str, float]) -> dict[str, float]:
    """What each customer with cameras here is sure of, in percent, before rounding; at most `total_pct` together. cameras: how many
    each has. The part of a customer without cameras is nobody's: it is left over."""
    named = {customer: shares_pct[customer] for customer in cameras if customer in shares_pct}
    others = sum(count for customer, count in cameras.items() if customer not in named)
    scale = min(1.0, total_pct / sum(named.values())) if named else 1.0
    rest = max(0.0, total_pct - sum(shares_pct.values())) if others else 0.0
    return {
        customer: named[customer] * scale if customer in named else rest * count / others for customer, count in cameras.items()
    }


def floors_of(cameras: Mapping[str, int], capacity_pct: int, quantum_pct: int, division: Division) -> dict[str, int]:
    """The floors in quanta; their sum is within the capacity. Each at least one, as far as there are as many quanta as customers."""
    gates = {customer: division.gates_pct.get(customer, 0.0) for customer in cameras}
    wanted = wanted_pct(cameras, capacity_pct + sum(gates.values()), division.shares_pct)
    left = {customer: max(0.0, pct - gates[customer]) / quantum_pct for customer, pct in wanted.items()}
    return _rounded(left, capacity_pct // quantum_pct)


def _rounded(wanted: Mapping[str, float], quanta: int) -> dict[str, int]:
    """Whole numbers: one at least, up where there is room, the largest remainders first."""
    floors = {customer: max(1, int(amount + 1e-9)) for customer, amount in wanted.items()}
    while (
        sum(floors.values()) > quanta
    ):  # the least are raised to one, or gates hold much: those give that are most above their part
        largest = max(floors, key=lambda c: (floors[c] > 1, floors[c] - wanted[c], floors[c], c))
        floors[largest] -= 1
    by_remainder = sorted(floors, key=lambda c: (floors[c] - wanted[c], c))
    for customer in by_remainder[: quanta - sum(floors.values())]:
        if floors[customer] < wanted[customer] - 1e-9:
            floors[customer] += 1
    return floors


# --- shares that no plan makes ----------------------------------------------------------------------------------------


def even_pct(streams: Sequence[str], total_pct: float, division: Division) -> dict[str, float]:
    """Streams -> an even split of `total_pct`, within each customer's part where they are kept apart. What customers without cameras
    were promised is split among the others, as their parts are."""
    if not division.applies(streams):
        return dict.fromkeys(streams, total_pct / len(streams) if streams else 0.0)
    cameras = Counter(division.of(stream) for stream in streams)
    part_pct = _all_of(total_pct, wanted_pct(cameras, total_pct, division.shares_pct))
    return {stream: part_pct[division.of(stream)] / cameras[division.of(stream)] for stream in streams}


def inference_parts(held_pct: Mapping[str, float], total_pct: float, division: Division) -> dict[str, float]:
    """Customer -> its part of what inference has together (`total_pct`). held_pct: per stream, as last given; what nobody holds is
    divided as the shares are; where more is held than there is, all have less in proportion."""
    cameras = Counter(division.of(stream) for stream in held_pct)
    held = {name: sum(pct for stream, pct in held_pct.items() if division.of(stream) == name) for name in sorted(cameras)}
    rest = total_pct - sum(held.values())
    if rest < 0:
        return _all_of(total_pct, held)
    more = _all_of(rest, wanted_pct(cameras, total_pct, division.shares_pct))
    return {name: held[name] + more[name] for name in held}


def _all_of(total_pct: float, weights: Mapping[str, float]) -> dict[str, float]:
    """`total_pct` in proportion to the weights; evenly where they are all 0."""
    weight = sum(weights.values())
    if weight <= 0:
        return dict.fromkeys(weights, total_pct / max(1, len(weights)))
    return {name: total_pct * part / weight for name, part in weights.items()}


# --- giving away ------------------------------------------------------------------------------------------------------


class _Planner:
    """Plans of one customer's cameras on so many quanta, each made once."""

    def __init__(self, snapshot: Snapshot, policy: Policy, division: Division) -> None:
        self._whole, self._policy, self._division = snapshot, policy, division
        names = sorted({division.of(view.id) for view in snapshot.streams})
        self._streams = {name: tuple(v for v in snapshot.streams if division.of(v.id) == name) for name in names}
        self.cameras = {name: len(streams) for name, streams in self._streams.items()}
        self._plans: dict[tuple[str, int], Plan] = {}

    def snapshot(self, customer: str, quanta: int) -> Snapshot:
        return replace(self._whole, capacity_pct=quanta * self._whole.quantum_pct, streams=self._streams[customer])

    def plan(self, customer: str, quanta: int) -> Plan:
        found = self._plans.get((customer, quanta))
        if found is None:
            found = self._plans[customer, quanta] = self._policy(self.snapshot(customer, quanta))
        return found

    def value(self, customer: str, quanta: int) -> float:
        """Sum of expected qualities, streams below the floor of quality first, as the planners rank."""
        entries = self.plan(customer, quanta).streams
        return sum(entry.expected_quality + (BELOW_VALUE if entry.below_floor else 0.0) for entry in entries)


def _given_away(planner: _Planner, floors: Mapping[str, int], quanta: int) -> dict[str, int]:
    """Quanta of each customer, at most `quanta` together; nobody is worth less than on its floor."""
    held = {customer: _shrunk(planner, customer, floor) for customer, floor in floors.items()}
    left = quanta - sum(held.values())
    step = max(1, left // STEPS)
    while left > 0:
        found = _best_gain(planner, held, left, step)
        if found is None:
            break
        customer, amount = found
        held[customer] += amount
        left -= amount
    for customer, floor in floors.items():  # nobody gains by the rest: it stays with whom it was promised to
        back = min(left, max(0, floor - held[customer]))
        if planner.value(customer, held[customer] + back) >= planner.value(customer, held[customer]) - QUALITY_TOL:
            held[customer] += back
            left -= back
    return held


def _shrunk(planner: _Planner, customer: str, floor: int) -> int:
    """The least that is worth as much as the floor, by bisection. A policy is no monotone function: what is returned was planned."""
    goal = planner.value(customer, floor) - QUALITY_TOL
    low, high = 0, floor
    while high - low > 1:
        middle = (low + high) // 2
        if planner.value(customer, middle) >= goal:
            high = middle
        else:
            low = middle
    return high


def _best_gain(planner: _Planner, held: Mapping[str, int], left: int, step: int) -> tuple[str, int] | None:
    """Who gains most per quantum by so many more; of equals the smaller amount, then the first customer. None: nobody gains."""
    amounts = sorted({min(left, step), min(left, 2 * step), min(left, 4 * step), left})
    best, found = 0.0, None
    for amount in amounts:
        for customer, quanta in held.items():
            gain = planner.value(customer, quanta + amount) - planner.value(customer, quanta)
            if gain > QUALITY_TOL and gain / amount > best * (1 + 1e-9):
                best, found = gain / amount, (customer, amount)
    return found
