"""The scheduling library: an engine below, applications above (card section 3, the ESL). Only it talks to an engine.

    escher = Escher(engine, keep=store)
    escher.register("training", now_s, lease_s=60)
    escher.run(Gang(id=..., owner="training", ...), now_s)
    wake_s = escher.tick(now_s)         # again at wake_s, or when something may have changed

`tick` looks at the engine, steps the policies until none has a command left, makes what is wished and not in force, and sweeps what
belongs to owners whose lease has run out. It never waits. `now_s` is the controller's clock.

Killed anywhere: commands are executed before the state that follows from them is kept, so after a restart the last ones are given
again; all of them mean the same the second time (absolute capacities, tasks and gangs by id).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cluster.engines.base import Demands, Engine, NodeId, NodeStatus, Task, TaskStatus
from cluster.escher import registry as reg
from cluster.escher.names import owner_of
from cluster.escher.policies.base import Cancel, Command, Drop, Lift, Policy, Release, Reserve, Submit, View, Want, is_helper
from cluster.escher.registry import Registry, Set
from cluster.escher.wishes import Where, Wish
from configs.errors import UsageError

log = logging.getLogger("driftbox.fleet.escher")

#: Policies that command for ever would hang a controller; one that has more to say than this goes on in the next tick.
MOST_ROUNDS = 200

#: How many policies that are over are remembered.
MOST_FINISHED = 1000


@dataclass(frozen=True, kw_only=True)
class State:
    """All that a library knows; `cluster.escher.table` makes JSON of it."""

    registry: Registry = field(default_factory=Registry)
    policies: Mapping[str, Policy] = field(default_factory=dict)


class Escher:
    """See the module. Thread-safe. keep: called with the state whenever it has changed, before the call that changed it returns."""

    def __init__(self, engine: Engine, *, state: State | None = None, keep: Callable[[State], None] | None = None) -> None:
        self.engine = engine
        self._state = state or State()
        self._kept = self._state
        self._keep = keep
        self._lock = threading.RLock()
        #: Answers to `Reserve`; asked again after a restart.
        self._reserved: dict[str, bool | None] = {}
        self._bundles: dict[str, int] = {}
        #: Wrappers and ghosts that were cancelled: forgotten once the engine has ended them.
        self._leaving: set[str] = set()
        #: Policies that are over, newest last, for who asks how they ended.
        self._finished: dict[str, Policy] = {}

    @property
    def state(self) -> State:
        return self._state

    # --- owners -------------------------------------------------------------------------------------------------------

    def register(self, owner: str, now_s: float, *, lease_s: float | None = None) -> None:
        """A new owner, or a sign of life of one. lease_s: None: he lives until `remove_owner`."""
        with self._lock:
            self._registry = reg.leased(self._registry, owner, now_s=now_s, lease_s=lease_s)
            self._store()

    def remove_owner(self, owner: str, now_s: float) -> None:
        """He is gone: his policies are undone, his tasks cancelled, his resources deleted. Unknown: nothing happens."""
        with self._lock:
            for policy in [p for p in self._state.policies.values() if p.owner == owner]:
                self._stop(policy, now_s)
            tasks = tuple(i for i, t in self._registry.tasks.items() if t.owner == owner)
            self.engine.cancel(tasks)
            self._registry = reg.without_owner(self._registry, owner)
            self._reconcile(now_s)
            self._store()

    # --- resources ----------------------------------------------------------------------------------------------------

    def set_resource(
        self, owner: str, name: str, capacity: float, now_s: float, *, where: Where | None = None
    ) -> Mapping[NodeId, float]:
        """The paper's call, kept as a wish: absolute, 0 deletes. Returns node -> capacity in force now. UsageError as
        `registry.wished`."""
        if capacity == 0:
            self.drop(name, now_s)
            return self.in_force(name)
        return self.want(Wish(name=name, owner=owner, capacity=capacity, where=where or Where()), now_s)

    def want(self, wish: Wish, now_s: float) -> Mapping[NodeId, float]:
        """Returns node -> capacity in force now."""
        with self._lock:
            nodes = self.engine.nodes()
            self._registry = reg.wished(self._registry, wish, nodes)
            self._reconcile(now_s, only=wish.name, nodes=nodes)
            self._store()
            return self.in_force(wish.name)

    def drop(self, name: str, now_s: float) -> None:
        with self._lock:
            self._registry = reg.dropped(self._registry, name)
            self._reconcile(now_s, only=name)
            self._store()

    def in_force(self, name: str) -> Mapping[NodeId, float]:
        """Node -> capacity of a resource, as the engine answered."""
        with self._lock:
            found = self._registry.in_force.items()
            return {node: names[name].answered for node, names in found if name in names and names[name].answered > 0}

    def status(self) -> Sequence[NodeStatus]:
        """The paper's get_cluster_status."""
        return self.engine.nodes()

    # --- tasks --------------------------------------------------------------------------------------------------------

    def submit(self, owner: str, task: Task, *, anyway: bool = False) -> None:
        """UsageError (code 'never') for demands that no node can ever meet; anyway: the caller knows that a node is to come."""
        with self._lock:
            why = "" if anyway else self.never(task.demands)
            if why:
                raise UsageError(
                    f"task {task.id} would wait for ever: {why}", subject=task.id, code="never", remedy="ask for less"
                )
            self._registry = reg.with_task(self._registry, owner, task)
            self.engine.submit(task)
            self._store()

    def never(self, demands: Demands) -> str:
        """Why such a task can never run, '' if it can (`registry.never`)."""
        return reg.never(self._registry, demands, self.engine.nodes())

    def tasks(self, ids: Sequence[str]) -> Mapping[str, TaskStatus]:
        return self.engine.status(ids)

    def forget(self, ids: Sequence[str]) -> None:
        """Of tasks that have ended: their results are not asked for any more."""
        with self._lock:
            self.engine.forget(ids)
            self._registry = reg.without_tasks(self._registry, set(ids) - set(self.engine.status(ids)))
            self._store()

    def cancel(self, ids: Sequence[str]) -> None:
        with self._lock:
            self.engine.cancel(ids)
            self._registry = reg.without_tasks(self._registry, ids)
            self._store()

    # --- policies -----------------------------------------------------------------------------------------------------

    def run(self, policy: Policy, now_s: float) -> None:
        """Takes a policy up, or puts a changed one in its place, and steps it. UsageError for an owner without a lease, or a name that
        is not his."""
        with self._lock:
            if policy.owner not in self._registry.owners or owner_of(policy.id) != policy.owner:
                raise UsageError(
                    f"{policy.owner} cannot run the policy {policy.id}",
                    subject=policy.id,
                    remedy="register the owner, and name the policy with cluster.escher.names.named",
                    code="no_lease",
                )
            self._put(policy)
            self.tick(now_s)

    def policy(self, name: str) -> Policy | None:
        """As it is now, or as it ended; None: unknown, or over for long."""
        return self._state.policies.get(name) or self._finished.get(name)

    def stop(self, name: str, now_s: float) -> None:
        """Takes a policy away and frees what it holds. Unknown: nothing happens."""
        with self._lock:
            policy = self._state.policies.get(name)
            if policy is not None:
                self._stop(policy, now_s)
                self._reconcile(now_s)
                self._store()

    def tick(self, now_s: float) -> float | None:
        """See the module. Returns when to look again at the latest; None: only when something changes."""
        with self._lock:
            for owner in reg.expired(self._registry, now_s):
                log.info("the lease of %s has run out: what it made is swept", owner)
                self.remove_owner(owner, now_s)
            wakes: dict[str, float | None] = {}
            for _ in range(MOST_ROUNDS):
                if not self._round(now_s, wakes):
                    break
            self._reconcile(now_s)
            self._tidy()
            self._store()
            due = [wake for name, wake in wakes.items() if wake is not None and name in self._state.policies]
            return min(due, default=None)

    def sweep(self, now_s: float) -> int:
        """Deletes resources of our realm that nothing explains; how many. Not while another library of this realm serves the cluster."""
        with self._lock:
            found = reg.orphans(self._registry, self.engine.nodes())
            for orphan in found:
                self._set(orphan, now_s)
            self._store()
            return len(found)

    # --- inside -------------------------------------------------------------------------------------------------------

    @property
    def _registry(self) -> Registry:
        return self._state.registry

    @_registry.setter
    def _registry(self, value: Registry) -> None:
        self._state = replace(self._state, registry=value)

    def _put(self, policy: Policy) -> None:
        self._state = replace(self._state, policies={**self._state.policies, policy.id: policy})

    def _round(self, now_s: float, wakes: dict[str, float | None]) -> bool:
        """Every policy once; True: one of them had something to say."""
        busy = False
        nodes = self.engine.nodes()
        for policy in list(self._state.policies.values()):
            step = policy.step(self._view(policy, nodes), now_s)
            for command in step.commands:
                self._execute(command, policy.owner, now_s)
            wakes[policy.id] = step.wake_s
            if step.policy is not policy and step.policy != policy:
                self._put(step.policy)
                busy = True
            if step.policy.over:
                self._forget(step.policy)
            busy = busy or bool(step.commands)
            if step.commands:
                self._store()
        return busy

    def _view(self, policy: Policy, nodes: Sequence[NodeStatus]) -> View:
        in_force: dict[str, dict[NodeId, float]] = {}
        for node, names in self._registry.in_force.items():
            for name, held in names.items():
                if name.startswith(policy.id):
                    in_force.setdefault(name, {})[node] = held.answered
        reserved = {gang: answer for gang, answer in self._reserved.items() if gang.startswith(policy.id)}
        return View(
            nodes=nodes,
            tasks=self.engine.status(policy.watches()),
            in_force=in_force,
            reserved=reserved,
            demands={
                gang: [self.engine.gang_demands(gang, n) for n in range(self._bundles[gang])]
                for gang, answer in reserved.items()
                if answer
            },
        )

    def _execute(self, command: Command, owner: str, now_s: float) -> None:
        match command:
            case Want():
                nodes = self.engine.nodes()
                self._registry = reg.wished(self._registry, command.wish, nodes)
                self._reconcile(now_s, only=command.wish.name, nodes=nodes)
            case Drop():
                self._registry = reg.dropped(self._registry, command.name)
                self._reconcile(now_s, only=command.name)
            case Submit():
                self._registry = reg.with_task(self._registry, owner, command.task)
                self.engine.submit(command.task)
            case Lift():
                self.engine.lift(command.task, command.gate)
            case Cancel():
                self.engine.cancel(command.tasks)
                self._registry = reg.without_tasks(self._registry, command.tasks)
                self._leaving |= {task for task in command.tasks if is_helper(task)}
            case Reserve():
                self._bundles[command.gang] = len(command.bundles)
                self._reserved[command.gang] = self.engine.reserve(command.gang, command.bundles, spread=command.spread)
            case Release():
                self._reserved.pop(command.gang, None)
                self._bundles.pop(command.gang, None)
                self.engine.release(command.gang)

    def _stop(self, policy: Policy, now_s: float) -> None:
        for command in policy.undone():
            self._execute(command, policy.owner, now_s)
        self._forget(policy)

    def _forget(self, policy: Policy) -> None:
        self._leaving |= {task for task in policy.watches() if is_helper(task)}
        self._finished.pop(policy.id, None)
        self._finished[policy.id] = policy
        if len(self._finished) > MOST_FINISHED:
            del self._finished[next(iter(self._finished))]
        left = {name: p for name, p in self._state.policies.items() if name != policy.id}
        self._state = replace(self._state, policies=left)

    def _tidy(self) -> None:
        if self._leaving:
            self.engine.forget(tuple(self._leaving))
            self._leaving = set(self.engine.status(tuple(self._leaving)))

    def _reconcile(self, now_s: float, only: str | None = None, nodes: Sequence[NodeStatus] | None = None) -> None:
        """Makes what is wished. only: one resource, so that a policy's step does not pay for all others."""
        nodes = self.engine.nodes() if nodes is None else nodes
        self._registry = reg.settled(self._registry, nodes)
        for change in reg.due(self._registry if only is None else reg.about(self._registry, only), nodes, now_s):
            self._set(change, now_s)

    def _set(self, change: Set, now_s: float) -> None:
        try:
            answered = self.engine.set_resource(change.name, change.capacity, change.node)
        except UsageError as error:
            if error.code != "node_lost":
                raise
            return  # the next look at the nodes will show it
        self._registry = reg.noted(self._registry, change, answered, now_s)

    def _store(self) -> None:
        if self._keep is not None and self._state is not self._kept and self._state != self._kept:
            self._keep(self._state)
        self._kept = self._state
