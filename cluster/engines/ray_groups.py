"""Ghosts and gangs on Ray: both are placement groups, which hold amounts without any process (card section 10: FrameSpace built in).

A ghost is a group of one bundle. That costs some milliseconds and no memory, where a ghost as a task or an actor would be a Python
process of 60 MiB that takes a second to start. A group that no node could ever hold when it was made is not looked at again by Ray
after a resource has grown, and one that found no room is looked at late: `tick` makes them anew, soon after something has changed
(`poke`), else ever more rarely.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cluster.engines.base import Demands, NodeId, TaskState
from cluster.engines.ray_bundles import give_back
from cluster.engines.ray_resources import bundle_of

#: What Ray says of a group that it has tried to place and could not.
_NO_PLACE = frozenset({"NO_RESOURCES", "INFEASIBLE", "FAILED_TO_COMMIT_RESOURCES"})
#: Longest wait for the answer to a reservation; Ray tries within milliseconds.
_RESERVE_S = 5.0
_LOOK_S = 0.005
#: Nodes report every 100 ms by default.
_REPORTED_S = 0.25
_AGAIN_S = 0.03
#: Pauses between two tries of a ghost that waits.
_SOON_S, _LATE_S = 0.05, 1.0


@dataclass
class _Ghost:
    """group: None: it demands nothing, or has ended; again_s: when it is made anew if it still waits; pause_s: before the next."""

    demands: Demands
    retries: int
    again_s: float = 0.0
    pause_s: float = 0.0
    group: Any = None
    state: TaskState = "waiting"
    node: NodeId | None = None


@dataclass(kw_only=True)
class Gang:
    """A reservation. nodes: where its bundles were when it was made; lost: one of them is gone, and nothing is held any more."""

    group: Any
    bundles: tuple[Demands, ...]
    nodes: tuple[NodeId, ...]
    lost: bool = False


class Ghosts:
    """Tasks that hold. Not thread-safe: the engine's lock is around every call. alive: ids of nodes that are."""

    def __init__(self, alive: Callable[[], set[NodeId]]) -> None:
        self._alive = alive
        self._ghosts: dict[str, _Ghost] = {}

    def add(self, task: str, demands: Demands, retries: int) -> None:
        ghost = _Ghost(demands=demands, retries=retries)
        self._ghosts[task] = ghost
        self._place(ghost)

    def state(self, task: str) -> tuple[TaskState, NodeId | None]:
        """As of now: asks Ray."""
        ghost = self._ghosts[task]
        self._look(ghost)
        return ghost.state, ghost.node

    def end(self, task: str) -> None:
        ghost = self._ghosts.get(task)
        if ghost is not None and ghost.state in ("waiting", "running"):
            self._stop(ghost, "cancelled")

    def forget(self, task: str) -> None:
        self._ghosts.pop(task, None)

    def tick(self) -> None:
        """Looks at those that wait and those whose node is gone."""
        alive = self._alive() if self.busy else set()
        for ghost in self._ghosts.values():
            if ghost.state == "waiting" or ghost.node not in alive:
                self._look(ghost)

    def poke(self) -> None:
        """Something has changed: those that wait may have room now."""
        for ghost in self._ghosts.values():
            ghost.again_s, ghost.pause_s = time.monotonic(), _SOON_S

    def close(self) -> None:
        for task in self._ghosts:
            self.end(task)

    @property
    def busy(self) -> bool:
        """There is something for `tick`."""
        return any(ghost.state in ("waiting", "running") for ghost in self._ghosts.values())

    def _place(self, ghost: _Ghost) -> None:
        if ghost.demands:
            ghost.group = _make([ghost.demands], spread=False)
            return
        ghost.state, ghost.node = "running", min(self._alive(), default=None)

    def _look(self, ghost: _Ghost) -> None:
        if ghost.state not in ("waiting", "running") or ghost.group is None:
            return
        table = _table(ghost.group)
        if table["state"] == "CREATED":
            node = table["bundles_to_node_id"][0]
            if ghost.state == "running" and ghost.node != node:
                self._lost(ghost)  # its node is gone, and Ray was quicker to place it anew than we to look
            if ghost.group is not None:
                ghost.state, ghost.node = "running", node
            return
        if ghost.state == "running":
            self._lost(ghost)
        elif _has_no_place(table) and time.monotonic() >= ghost.again_s:
            _remove(ghost.group)
            ghost.pause_s = min(max(2 * ghost.pause_s, _SOON_S), _LATE_S)
            ghost.again_s = time.monotonic() + ghost.pause_s
            self._place(ghost)

    def _lost(self, ghost: _Ghost) -> None:
        """Ray is placing it anew: its node is gone."""
        if ghost.retries <= 0:
            self._stop(ghost, "lost")
            return
        ghost.retries -= 1
        ghost.state, ghost.node = "waiting", None

    def _stop(self, ghost: _Ghost, state: TaskState) -> None:
        if ghost.group is not None:
            _remove(ghost.group)
        ghost.group, ghost.state = None, state


def reserved(bundles: Sequence[Demands], *, spread: bool, freed_s: float = -math.inf) -> Gang | None:
    """Asked for once; None: there is no room, and nothing is held.

    Ray's head places by what nodes reported last, some tens of milliseconds ago, and is slow to look at a refused group again: one is
    made anew until nodes must have reported what was freed (freed_s: when that was last, on the monotonic clock)."""
    group = _make(bundles, spread=spread)
    until_s = time.monotonic() + _RESERVE_S
    while (now_s := time.monotonic()) < until_s:
        table = _table(group)
        if table["state"] == "CREATED":
            nodes = table["bundles_to_node_id"]
            return Gang(group=group, bundles=tuple(bundles), nodes=tuple(nodes[number] for number in range(len(bundles))))
        if _has_no_place(table):
            if now_s - freed_s > _REPORTED_S:
                break
            _remove(group)
            time.sleep(_AGAIN_S)
            group = _make(bundles, spread=spread)
        time.sleep(_LOOK_S)
    _remove(group)
    return None


def free_gang(gang: Gang) -> None:
    """Members that still run are ended by Ray."""
    _remove(gang.group)


def _make(bundles: Iterable[Demands], *, spread: bool) -> Any:
    from ray.util.placement_group import placement_group

    return placement_group([bundle_of(bundle) for bundle in bundles], strategy="STRICT_SPREAD" if spread else "PACK")


def _table(group: Any) -> Mapping[str, Any]:
    from ray.util.placement_group import placement_group_table

    found: Mapping[str, Any] = placement_group_table(group)
    return found


def _has_no_place(table: Mapping[str, Any]) -> bool:
    """Ray has tried in vain, and is not just about to place it (it says the former until it has done the latter)."""
    return table["state"] != "PREPARED" and table["stats"]["scheduling_state"] in _NO_PLACE


def _remove(group: Any) -> None:
    """Removes it, and what Ray would leave behind of one that it was about to place."""
    import ray
    from ray.util.placement_group import remove_placement_group

    placed = _table(group)["state"] == "CREATED"
    remove_placement_group(group)
    if not placed:
        give_back(group, _table(group), ray.nodes())
