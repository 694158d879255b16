"""The product's own constraints, written as resources and demands. Pure: who places cameras or trains asks here what to demand.

| constraint | resource | demand |
|---|---|---|
| a camera is watched where its network can be reached | `net.NETWORK` on each box in it, any number | 1 |
| cameras together do not need more than the box has | `share_pct` on each box | what the camera needs |
| a customer gets his share of a box | `customer.ID` on each box, the granted percent | what the camera needs |
| a standby is never on the box that it stands in for | `camera.HOME.CAMERA` on each box, 1 | 1, owner and standby alike |
| no two replicas of a service on one box | `replica.SERVICE` on each box, 1 | 1 |
| all boxes of a training, or none | - | `training_gang` |

Amounts of percent are whole, because Kubernetes counts in whole units: demands are rounded up, capacities down.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cluster.engines.base import INFINITE, Demands, NodeId
from cluster.escher.amounts import Alternatives, every, every_of, fits, minus, plus
from cluster.escher.names import named
from cluster.escher.wishes import Where, Wish
from cluster.types import BoxView, Grant
from scheduler.fleet.types import CameraKey, CameraReport

#: Owner of the resources that stand for the fleet's own constraints.
FLEET = "fleet"

#: GPU-percent of a box, as a resource: physical GPUs are given out whole or not at all.
SHARE = named(FLEET, "share_pct")

#: A camera that asks for nothing still counts (a box with a thousand idle cameras is not empty).
LEAST_PCT = 1


def network(name: str) -> str:
    """Resource of boxes that can reach cameras in this network."""
    return named(FLEET, "net", name)


def home(box: str) -> str:
    """Resource of one box alone: pins to it."""
    return named(FLEET, "box", box)


def seat(camera: CameraKey) -> str:
    """Resource with one unit per box: whoever watches the camera, or stands by for it, takes it."""
    return named(FLEET, "camera", camera.home, camera.camera)


def customer(name: str) -> str:
    """Resource of a customer's granted percent on each box."""
    return named(FLEET, "customer", name)


def replica(service: str) -> str:
    """Resource with one unit per box, for replicas that must not lie on one box."""
    return named(FLEET, "replica", service)


def whole_pct(demand_pct: float) -> int:
    """Percent that a camera asks for, in whole units, at least `LEAST_PCT`."""
    return max(LEAST_PCT, math.ceil(round(demand_pct, 4)))


# --- resources of boxes -----------------------------------------------------------------------------------------------


def box_resources(
    box: BoxView, *, grants: Mapping[str, Grant] | None = None, seats: Iterable[CameraKey] = ()
) -> dict[str, float]:
    """All ephemeral resources of a box: its percent, its networks, itself, the customers' shares on it, a seat per camera. A box that
    is being emptied, or has not reported, has only itself: what runs there may stay, nothing new comes. memory_mib is its own, physical,
    where it says how much it has."""
    mine: dict[str, float] = {home(box.id): INFINITE}
    if box.draining or box.report is None:
        return mine
    mine[SHARE] = math.floor(box.report.capacity_pct)
    mine |= {network(name): INFINITE for name in box.report.networks}
    mine |= {customer(name): float(pct) for name, pct in granted_on(box.id, grants or {}).items()}
    mine |= {seat(camera): 1.0 for camera in seats}
    if box.report.memory_mib is not None:
        mine["memory_mib"] = box.report.memory_mib
    return mine


def granted_on(box: str, grants: Mapping[str, Grant]) -> dict[str, int]:
    """Customer -> whole percent granted on a box; those with less than one percent are left out."""
    found = {grant.customer: math.floor(round(grant.by_box.get(box, 0.0), 4)) for grant in grants.values()}
    return {name: pct for name, pct in sorted(found.items()) if pct > 0}


def customer_wishes(grants: Mapping[str, Grant], node_of: Mapping[str, NodeId]) -> tuple[Wish, ...]:
    """The granted shares as wishes of the registry: a share that moved is one capacity lowered and another raised. node_of: box -> the
    engine's id of its node; boxes that are no node of the engine are left out."""
    return tuple(
        Wish(
            name=customer(name),
            owner=FLEET,
            per_node={
                node_of[box]: pct
                for box in sorted(grant.by_box)
                if box in node_of and (pct := math.floor(round(grant.by_box[box], 4))) > 0
            },
        )
        for name, grant in sorted(grants.items())
    )


def one_per_box(names: Iterable[str], nodes: Sequence[NodeId] = ()) -> tuple[Wish, ...]:
    """One unit on every box (of `nodes`, if given) for each name: anti-affinity for whoever demands it."""
    return tuple(Wish(name=name, owner=FLEET, capacity=1.0, where=Where(nodes=tuple(nodes))) for name in names)


# --- demands ----------------------------------------------------------------------------------------------------------


def camera_demands(camera: CameraReport, *, within_grant: bool = False) -> list[dict[str, float]]:
    """What a box must have to watch a camera, as alternatives: one per network from which it can be reached, else its home. It takes
    its seat, its percent, and memory for its model where it said how much. within_grant: also its customer's share there."""
    pct = whole_pct(camera.demand_pct)
    needs: dict[str, float] = {seat(camera.camera): 1.0, SHARE: pct}
    if camera.memory_mib > 0:
        needs["memory_mib"] = camera.memory_mib
    if within_grant:
        needs[customer(camera.customer)] = pct
    places = [{network(name): 1.0} for name in camera.networks] or [{home(camera.camera.home): 1.0}]
    return every_of(places, [needs])


def standby_demands(camera: CameraReport) -> list[dict[str, float]]:
    """What a box must have to stand by for a camera: another box than its owner's, in its reach; no percent, it computes nothing."""
    places = [{network(name): 1.0} for name in camera.networks] or [{home(camera.camera.home): 1.0}]
    return every_of(places, [{seat(camera.camera): 1.0}])


def replica_demands(service: str, demands: Demands) -> dict[str, float]:
    """`demands` of a replica, and that no other one of the service is on the same box."""
    return every(demands, {replica(service): 1.0})


@dataclass(frozen=True, kw_only=True)
class GangRequest:
    """bundles: demands of each member; spread: every one on another node. For `cluster.escher.policies.gang.Gang`."""

    id: str
    bundles: tuple[Demands, ...]
    spread: bool = True


def training_gang(
    training: str, *, boxes: int, share_pct: float, memory_mib: float = 0.0, gpus: float = 0.0, cpus: float = 0.0
) -> GangRequest:
    """A pooled training on so many boxes at once: share_pct of each box's GPU, or whole `gpus` where the engine counts them, and
    memory. All of them or none (a worker without its peers waits for ever in the first all-reduce)."""
    bundle: dict[str, float] = {}
    if share_pct > 0:
        bundle[SHARE] = whole_pct(share_pct)
    bundle |= {name: amount for name, amount in (("GPU", gpus), ("CPU", cpus), ("memory_mib", memory_mib)) if amount > 0}
    return GangRequest(id=training, bundles=tuple(dict(bundle) for _ in range(boxes)), spread=True)


# --- a matcher for who places without an engine -----------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """Resources of boxes and what of them is taken: the matcher of an engine as a value, for decisions that place cameras themselves
    (`cluster.placement`). free: box -> resource -> amount."""

    free: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @staticmethod
    def of(boxes: Iterable[BoxView], *, grants: Mapping[str, Grant] | None = None, seats: Iterable[CameraKey] = ()) -> Ledger:
        taken = tuple(seats)
        return Ledger(free={box.id: box_resources(box, grants=grants, seats=taken) for box in boxes})

    def boxes_for(self, alternatives: Alternatives) -> tuple[str, ...]:
        """Boxes that meet one of them: those of the best alternative first, within one by name."""
        found: dict[str, None] = {}
        for demands in alternatives:
            found.update(dict.fromkeys(box for box in sorted(self.free) if fits(demands, self.free[box])))
        return tuple(found)

    def met(self, box: str, alternatives: Alternatives) -> Demands | None:
        """The first alternative that this box meets."""
        return next((demands for demands in alternatives if fits(demands, self.free.get(box, {}))), None)

    def taking(self, box: str, demands: Demands) -> Ledger:
        """The ledger after somebody took `demands` there. ValueError when there is not so much."""
        if not fits(demands, self.free.get(box, {})):
            raise ValueError(f"box {box} has not enough left")
        return Ledger(free={**self.free, box: minus(self.free[box], demands)})

    def giving_back(self, box: str, demands: Demands) -> Ledger:
        """The inverse; a box that has gone stays gone."""
        if box not in self.free:
            return self
        known = {name: amount for name, amount in demands.items() if name in self.free[box]}
        return Ledger(free={**self.free, box: plus(self.free[box], known)})
