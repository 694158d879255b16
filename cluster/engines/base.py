"""The seam between what schedules and what matches: ESCHER's two calls, and tasks with demands (card sections 2 and 10-12).

An engine gives two guarantees: a task that one node can satisfy runs eventually, and no node is allocated past its capacity. It queues,
picks the node, accounts. Which eligible node it picks is not promised. Everything else (names, leases, replay, policies) is the
scheduling library's, above this seam (`cluster.escher`). One contract test runs over every engine: tests/contract/test_fleet_engines.py.

**Shrinking is clamped, on every engine alike** (worked example 10). `set_resource` puts max(capacity, units in use) in force and answers
with that. Whoever is answered more than he asked for asks again later: the engine does not shrink by itself, and until it is asked again
units that come back may go to others. Ray's raylet does it so and nothing else can be had from it; the other engines do the same, so
that there is one behaviour to build on. `cluster.escher.registry` asks again by itself.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from configs.errors import UsageError

#: Capacity that stands for "any number": engines count in whole units or in ten thousandths, so it stays far below their limits.
INFINITE = 1_000_000

#: Resources that nodes are born with. Only demands name them; `set_resource` refuses them.
PHYSICAL = frozenset({"CPU", "GPU", "memory_mib"})

#: Smallest amount that engines tell apart (Ray's limit). Kubernetes counts whole units: it refuses fractions with code 'whole_only'.
QUANTUM = 0.0001

#: What every engine can hold as a name; an engine may put its domain before it.
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?")

NodeId = str
#: Physical and ephemeral resources mixed; all of them must be met by one node.
Demands = Mapping[str, float]
TaskState = Literal["waiting", "running", "done", "failed", "cancelled", "lost"]
#: States that a task does not leave.
ENDED: frozenset[TaskState] = frozenset({"done", "failed", "cancelled", "lost"})


@dataclass(frozen=True, kw_only=True)
class NodeStatus:
    """A node. total, free: amount per resource; labels: what the engine or we know of it (box id, site, address)."""

    id: NodeId
    alive: bool
    total: Mapping[str, float]
    free: Mapping[str, float]
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a task does: `entry` is "package.module:function", called as function(context, **arguments) with a `TaskContext` and JSON
    values; what it returns must be JSON. The same on every engine: a Ray task, a pod, a thread."""

    entry: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Task:
    """A task to run. id: chosen by the caller, unique while it is known; submitting the same id twice is one task. hold: it does
    nothing and holds its demands until it is cancelled (a ghost; `work` is None then); gates: names that must all be lifted
    (`lift`) before it is considered; retries: times that it is run again, with the same demands, when its node is lost. Empty demands:
    it runs anywhere."""

    id: str
    demands: Demands
    work: Work | None = None
    gates: tuple[str, ...] = ()
    retries: int = 0

    @property
    def hold(self) -> bool:
        return self.work is None


@dataclass(frozen=True, kw_only=True)
class TaskStatus:
    """node: where it runs or ran, None not yet; result: of a task that is done; problem: in words. lost: its node went and it has no
    retry left."""

    id: str
    state: TaskState
    node: NodeId | None = None
    result: Any = None
    problem: str = ""

    @property
    def ended(self) -> bool:
        return self.state in ENDED


class TaskContext(Protocol):
    """What running work may ask and do. A work function takes it as its first argument."""

    @property
    def node(self) -> NodeId: ...

    @property
    def task(self) -> str: ...

    def set_resource(self, name: str, capacity: float) -> None:
        """On the node where the task runs."""

    def cancelled(self) -> bool:
        """Long work looks at it between its steps."""


class Engine(Protocol):
    """See the module. All calls may raise EnvironmentLacking (the engine is away) with a remedy. Thread-safe."""

    #: "local", "ray", "kubernetes".
    name: str

    def nodes(self) -> Sequence[NodeStatus]:
        """All nodes ever seen alive in this session, the lost ones with alive=False. May lag behind `set_resource` by seconds."""

    def set_resource(self, name: str, capacity: float, node: NodeId) -> float:
        """Makes `name` an absolute `capacity` on `node`: creates, grows, shrinks; 0 deletes; deleting an unknown one does nothing.
        Returns the capacity now in force: max(capacity, units in use), see the module. UsageError for a physical resource or a name
        or amount it cannot hold (`checked_resource`); UsageError with code 'node_lost' for a node that is gone or was never there."""

    def submit(self, task: Task) -> None:
        """Queues it; the node that is found for it may be found before this returns. UsageError for demands that are not positive
        numbers (`checked_demands`)."""

    def status(self, ids: Sequence[str]) -> Mapping[str, TaskStatus]:
        """Of those known."""

    def cancel(self, ids: Sequence[str]) -> None:
        """Ends them: their state becomes 'cancelled', at once for waiting and holding ones, for work when it has stopped; then its
        demands are free. Ended and unknown ones: nothing happens."""

    def forget(self, ids: Sequence[str]) -> None:
        """Drops what is known of those that have ended, so that their ids are free again. Others: nothing happens."""

    def lift(self, task: str, gate: str) -> None:
        """Takes one of a task's gates away. A gate that is gone: nothing happens."""

    def reserve(self, gang: str, bundles: Sequence[Demands], *, spread: bool) -> bool | None:
        """The engine's own all-or-nothing reservation, asked for once; True: held, False: not (nothing is held), None: this engine
        has none, use ghosts. spread: every bundle on another node. Members then demand `gang_demands(gang, bundle)`, one at a time
        in each bundle. A gang that is held already: True."""

    def gang_demands(self, gang: str, bundle: int) -> Demands:
        """What a member of a reserved gang asks for, so that it runs in its bundle, with no physical demand of its own."""

    def release(self, gang: str) -> None:
        """Frees a reservation; members that still run are ended. Unknown: nothing happens."""

    def close(self) -> None:
        """Ends what this engine object holds; a cluster that was only joined goes on."""


def checked_resource(name: str, capacity: float) -> None:
    """Refuses what no engine takes as an ephemeral resource. UsageError."""
    if name in PHYSICAL:
        raise UsageError(
            f"{name} is a physical resource, it cannot be made or resized", subject=name, remedy="use a name of your own"
        )
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"'{name[:80]}' cannot be the name of a resource",
            subject=name[:80],
            remedy="1 to 63 of a-z, 0-9, '.', '_', '-', beginning and ending with a letter or digit",
        )
    if not (math.isfinite(capacity) and 0 <= capacity <= INFINITE):
        raise UsageError(f"the capacity of {name} must be 0 to {INFINITE}, got {capacity}", subject=name)


def checked_demands(task: Task) -> None:
    """Refuses demands that are not positive numbers of known kinds. UsageError."""
    for name, amount in task.demands.items():
        if name not in PHYSICAL and not _NAME.fullmatch(name):
            raise UsageError(f"task {task.id} demands '{name[:80]}', which cannot be the name of a resource", subject=task.id)
        if not (math.isfinite(amount) and QUANTUM <= amount <= INFINITE):
            raise UsageError(
                f"task {task.id} demands {amount} of {name}: it must be {QUANTUM} to {INFINITE}",
                subject=task.id,
                remedy="leave out what it does not need",
            )


def node_lost(node: NodeId) -> UsageError:
    """For `set_resource` on a node that is gone."""
    return UsageError(
        f"node {node} is gone or was never here", subject=node, remedy="see status for the nodes there are", code="node_lost"
    )
