"""The product's own constraints, written as resources and demands. Pure: who places cameras or trains asks here what to demand.

| constraint | resource | demanded by |
|---|---|---|
| a camera is watched where its network can be reached | `net.NETWORK` on each box in it, any number | owner and standby |
| a standby is never on the box that it stands in for | `camera.HOME.CAMERA` on each box, 1 | owner and standby alike |
| other work leaves cameras what they need | `share_pct`, what they leave of each box | every worker of a pooled training |
| a customer's work stays within its share of a box | `customer.ID` on each box, the granted percent | workers, with `--within-share` |
| all workers of a training, or none; no two of them on one box | units of the gang | `cluster.riffle.gang` |

Amounts of percent are whole, because Kubernetes counts in whole units: demands are rounded up, capacities down.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from cluster.engines.base import INFINITE, Demands
from cluster.escher.amounts import Alternatives, every_of, fits, minus, plus
from cluster.escher.names import named
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


# --- demands ----------------------------------------------------------------------------------------------------------


def camera_demands(camera: CameraReport) -> list[Demands]:
    """What a box must have to watch a camera, or to stand by for it, as alternatives: one per network from which it can be reached, in
    the camera's order, and its home, from where it always can; with each of them its seat. Percent and memory are no condition but
    weighed (`scheduler.videostorm.placement`): watched badly on a full box is better than not watched."""
    places = [*({network(name): 1.0} for name in camera.networks), {home(camera.camera.home): 1.0}]
    return list(every_of(places, [{seat(camera.camera): 1.0}]))


def training_bundle(
    *, share_pct: float, customer_id: str = "", memory_mib: float = 0.0, gpus: float = 0.0, cpus: float = 0.0
) -> dict[str, float]:
    """What each worker of a pooled training takes of its box: share_pct of its GPU, or whole `gpus` where the engine counts them, and
    memory; customer_id: within what this customer was granted there. All workers or none (one without its peers waits for ever in
    the first all-reduce), and no two of them on one box, are `Gang`'s to say (`cluster.riffle.gang`)."""
    bundle: dict[str, float] = {}
    if share_pct > 0:
        bundle[SHARE] = whole_pct(share_pct)
        if customer_id:
            bundle[customer(customer_id)] = whole_pct(share_pct)
    return bundle | {name: amount for name, amount in (("GPU", gpus), ("CPU", cpus), ("memory_mib", memory_mib)) if amount > 0}


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
