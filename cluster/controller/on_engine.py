"""What the fleet has decided, carried to its engine: as resources on the nodes that boxes are, so that whatever else runs on the engine
(pooled training, an owner's own jobs) goes where there is room, and with the cameras.

| resource on a box's node | amount |
|---|---|
| `box.ID` | any number: it pins |
| `net.NETWORK` | any number: cameras of this network can be reached |
| `share_pct` | what its cameras leave of the box, percent of one GPU |
| `customer.ID` | the customer's granted percent there |
| `watched.HOME.CAMERA` | any number: the camera is watched there, work that demands it follows it |

Who decides is the controller (`cluster.placement`, `cluster.cilantro`); the engine only matches. All of it is made anew from the
fleet's state: nothing is kept here, and a controller that takes over adopts what its predecessor made. No camera depends on it.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from cluster.controller.database import NotInCharge
from cluster.controller.services import EngineStatus
from cluster.engines.base import INFINITE, Engine, NodeId, NodeStatus
from cluster.escher.library import Escher, State
from cluster.escher.names import named, owner_of
from cluster.escher.registry import Owner, Registry, Set, noted
from cluster.escher.uses import FLEET, SHARE, box_resources
from cluster.escher.wishes import Wish
from cluster.placement.plan import machines_of
from cluster.placement.sight import Patience, cameras_of, is_away, lease_of
from cluster.types import BoxView, FleetState
from configs.errors import DriftboxError
from scheduler.fleet.types import CameraKey

log = logging.getLogger("driftbox")

#: Labels by which a node says which box it is: `ray start --labels driftbox/box=ID`, `kubectl label node NODE driftbox.io/box=ID`.
BOX_LABELS = ("driftbox/box", "driftbox.io/box")
EVERY_S = 5.0


def watched(camera: CameraKey) -> str:
    """Resource of the box that watches a camera."""
    return named(FLEET, "watched", camera.home, camera.camera)


def nodes_of_boxes(nodes: Sequence[NodeStatus], boxes: Mapping[str, BoxView]) -> dict[str, NodeId]:
    """Box -> its node, of those that live: by label, else by a node that is called as the box is."""
    found: dict[str, NodeId] = {}
    for node in sorted(nodes, key=lambda n: n.id):
        names = (*(node.labels.get(label, "") for label in BOX_LABELS), node.id)
        box = next((name for name in names if name in boxes), None)
        if node.alive and box is not None:
            found.setdefault(box, node.id)
    return found


def carried(state: FleetState, node_of: Mapping[str, NodeId], patience: Patience, now_utc_s: float) -> tuple[Wish, ...]:
    """All that is to stand on the engine. Nothing new is to come to a box that is away or being emptied: it keeps its own name only,
    and the cameras that it still watches."""
    amounts: dict[str, dict[NodeId, float]] = {}
    machines = machines_of(state)
    for box, node in sorted(node_of.items()):
        view = state.boxes[box]
        out = bool(is_away(state, box, patience, now_utc_s))
        mine = box_resources(replace(view, draining=True) if out else view, grants=state.grants)
        mine.pop("memory_mib", None)  # physical: the engine knows it of the node itself
        if SHARE in mine and box in machines:
            mine[SHARE] = max(0, math.floor(view.capacity_pct - machines[box].taken("share_pct")))
        for name, amount in mine.items():
            if amount > 0:
                amounts.setdefault(name, {})[node] = amount
    for camera in cameras_of(state):
        owner = lease_of(state, camera).box
        if owner in node_of:
            amounts[watched(camera)] = {node_of[owner]: INFINITE}
    return tuple(Wish(name=name, owner=FLEET, per_node=per_node) for name, per_node in sorted(amounts.items()))


def adopted(registry: Registry, nodes: Sequence[NodeStatus], now_s: float) -> Registry:
    """With what nodes have of the fleet's and we did not make: our predecessor did. What of it is not wished any more goes then."""
    for node in nodes:
        known = registry.in_force.get(node.id, {})
        for name, amount in sorted(node.total.items()):
            if owner_of(name) == FLEET and name not in known:
                registry = noted(registry, Set(name=name, capacity=amount, node=node.id), amount, now_s)
    return registry


class Carrier:
    """Carries the state to the engine, in a thread of its own, while this controller is in charge (`holds`). What goes wrong is told
    (`status`) and tried again; the fleet goes on without it."""

    def __init__(
        self, engine: Engine, where: str, *, state: Callable[[], FleetState], holds: Callable[[], bool], patience: Patience,
        monotonic_s: Callable[[], float], utc_s: Callable[[], float],
    ) -> None:  # fmt: skip
        self._engine, self._where, self._state, self._holds, self._patience = engine, where, state, holds, patience
        self._monotonic_s, self._utc_s = monotonic_s, utc_s
        self._registry = _blank()
        self._status = EngineStatus(name=engine.name, where=where)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fleet-engine", daemon=True)

    def status(self) -> EngineStatus:
        return self._status

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """What stands on the engine stays: the next controller adopts it."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(10.0)

    def step(self) -> None:
        """One look. Raises nothing that an engine may raise: `status` tells it."""
        try:
            nodes = self._engine.nodes()
            boxes = self._carry(nodes) if self._holds() else self._stand_by(nodes)
            problem = next(iter(getattr(self._engine, "problems", ())), "")
            found = EngineStatus(
                name=self._engine.name, where=self._where, nodes=sum(n.alive for n in nodes), boxes=boxes, problem=problem
            )
        except DriftboxError as error:
            found = replace(self._status, problem=error.message)
        if found.problem and found.problem != self._status.problem:
            log.warning("engine %s: %s", self._engine.name, found.problem)
        self._status = found

    def _carry(self, nodes: Sequence[NodeStatus]) -> int:
        state, now_s = self._state(), self._monotonic_s()
        node_of = nodes_of_boxes(nodes, state.boxes)
        ours = set(node_of.values())
        registry = adopted(self._registry, [node for node in nodes if node.id in ours], now_s)
        wishes = carried(state, node_of, self._patience, self._utc_s())
        registry = replace(registry, wishes={wish.name: wish for wish in wishes})
        escher = Escher(cast(Engine, _Fenced(self._engine, self._holds)), state=State(registry=registry))
        try:
            escher.tick(now_s)
        finally:
            self._registry = escher.state.registry
        return len(node_of)

    def _stand_by(self, nodes: Sequence[NodeStatus]) -> int:
        """Another controller changes it meanwhile: what we knew is worth nothing."""
        self._registry = _blank()
        return len(nodes_of_boxes(nodes, self._state().boxes))

    def _run(self) -> None:
        while not self._ended.wait(EVERY_S if self._status.nodes or self._status.problem else 0.2):
            try:
                self.step()
            except Exception:
                # A mistake of ours here must not look as if the engine still had the newest.
                log.exception("a look at the engine failed")
                self._status = replace(self._status, problem="a look at it failed; the log says how")


class _Fenced:
    """The engine, which takes nothing from a controller that has lost its lease meanwhile."""

    def __init__(self, engine: Engine, holds: Callable[[], bool]) -> None:
        self._engine, self._holds = engine, holds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def set_resource(self, name: str, capacity: float, node: NodeId) -> float:
        if not self._holds():
            raise NotInCharge("this controller is not in charge any more", subject="lease")
        return self._engine.set_resource(name, capacity, node)


def _blank() -> Registry:
    return Registry(owners={FLEET: Owner(id=FLEET, until_s=None)})
