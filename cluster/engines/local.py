"""The engine in one process: for one box, and for tests. Exact matching and accounting; work runs on threads, holding costs nothing.

Matching happens inside the call that makes it possible (a task submitted, a resource grown, a task ended), so there is nothing to poll:
`wait_for` sleeps on a condition. With `threads=False` work runs only inside `pump`, one piece at a time in order of submission, which
makes a run repeatable. Amounts are kept in whole ten thousandths, because sums of floats drift.

A task that waits is overtaken by later ones that fit while it does not. An endless stream of small tasks can therefore keep a large one
waiting; ESCHER's priorities depend on just that (worked example 6).
"""

from __future__ import annotations

import importlib
import json
import logging
import random
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from cluster.engines.base import (
    ENDED,
    PHYSICAL,
    QUANTUM,
    Demands,
    NodeId,
    NodeStatus,
    Task,
    TaskState,
    TaskStatus,
    Work,
    checked_demands,
    checked_resource,
    node_lost,
)
from cluster.engines.places import places
from configs.errors import DriftboxError, JobError, UsageError, redact

log = logging.getLogger("driftbox.fleet.local")

#: Amounts of resources in ten thousandths, sorted by name: tasks of one shape fit or do not fit together.
Shape = tuple[tuple[str, int], ...]


#: Parts of a whole unit.
_PARTS = round(1 / QUANTUM)


def _parts(amount: float) -> int:
    return round(amount * _PARTS)


def _shape(demands: Demands) -> Shape:
    return tuple(sorted((name, _parts(amount)) for name, amount in demands.items()))


def _amounts(parts: Mapping[str, int]) -> dict[str, float]:
    return {name: count / _PARTS for name, count in parts.items()}  # the nearest float to the decimal fraction


@dataclass
class _Node:
    id: NodeId
    labels: Mapping[str, str]
    total: dict[str, int]
    used: dict[str, int] = field(default_factory=dict)
    alive: bool = True

    def free(self, name: str) -> int:
        return self.total.get(name, 0) - self.used.get(name, 0)

    def fits(self, shape: Shape) -> bool:
        return self.alive and all(self.free(name) >= count for name, count in shape)

    def take(self, shape: Shape) -> None:
        for name, count in shape:
            self.used[name] = self.used.get(name, 0) + count

    def give_back(self, shape: Shape) -> None:
        for name, count in shape:
            self.used[name] -= count


@dataclass
class _Entry:
    """A task. attempt: counts its runs, so that the end of one on a lost node is told from that of the present one."""

    task: Task
    shape: Shape
    sequence: int
    gates: set[str]
    state: TaskState = "waiting"
    node: NodeId | None = None
    attempt: int = 0
    cancelling: bool = False
    result: Any = None
    problem: str = ""


@dataclass
class _Gang:
    """A reservation: where each bundle lies."""

    bundles: list[tuple[NodeId, Shape]]


class _Context:
    def __init__(self, engine: LocalEngine, task: str, node: NodeId, attempt: int) -> None:
        self.node, self.task = node, task
        self._engine, self._attempt = engine, attempt

    def set_resource(self, name: str, capacity: float) -> None:
        self._engine.set_resource(name, capacity, self.node)

    def cancelled(self) -> bool:
        return self._engine._is_over(self.task, self._attempt)


class LocalEngine:
    """See the module; the calls are those of `cluster.engines.base.Engine`.

    nodes: id -> physical amounts; labels: id -> labels; threads: False: work runs in `pump`; seed: of the choice between nodes that
    fit (the contract promises none, so that nobody comes to rely on one).
    """

    name = "local"

    def __init__(
        self,
        nodes: Mapping[NodeId, Mapping[str, float]],
        *,
        labels: Mapping[NodeId, Mapping[str, str]] | None = None,
        threads: bool = True,
        seed: int = 0,
    ) -> None:
        self._changed = threading.Condition(threading.RLock())
        self._choice = random.Random(seed)
        self._threads = threads
        self._nodes: dict[NodeId, _Node] = {}
        self._tasks: dict[str, _Entry] = {}
        #: Waiting tasks without gates, by what they demand, oldest first.
        self._queues: dict[Shape, deque[_Entry]] = {}
        self._gangs: dict[str, _Gang] = {}
        #: (entry, attempt) that `pump` runs next.
        self._to_run: deque[tuple[_Entry, int]] = deque()
        self._sequence = 0
        self._closed = False
        for node, amounts in nodes.items():
            self.add_node(node, amounts, labels=(labels or {}).get(node, {}))

    # --- nodes and resources ------------------------------------------------------------------------------------------

    def add_node(self, node: NodeId, amounts: Mapping[str, float], *, labels: Mapping[str, str] | None = None) -> None:
        """A node joins, or one that was lost comes back: empty, without the ephemeral resources it had. UsageError for amounts of
        what is not physical."""
        wrong = sorted(set(amounts) - PHYSICAL)
        if wrong:
            raise UsageError(f"node {node} cannot be born with {', '.join(wrong)}", subject=node, remedy="use set_resource")
        with self._changed:
            if node in self._nodes and self._nodes[node].alive:
                raise UsageError(f"there is a node {node} already", subject=node)
            parts = {name: _parts(amount) for name, amount in amounts.items()}
            self._nodes[node] = _Node(node, dict(labels or {}), parts)
            self._match(node)

    def kill_node(self, node: NodeId) -> None:
        """The node dies: its resources and reservations vanish, its tasks are run elsewhere if they may, else lost."""
        with self._changed:
            lost = self._nodes[node]
            self._nodes[node] = _Node(node, lost.labels, {}, alive=False)
            for entry in sorted(self._tasks.values(), key=lambda e: e.sequence):
                if entry.node == node and entry.state == "running":
                    self._lose(entry)
            for gang, held in list(self._gangs.items()):
                if any(place == node for place, _ in held.bundles):
                    self._let_go(gang)
            self._match_all()

    def nodes(self) -> Sequence[NodeStatus]:
        with self._changed:
            return [
                NodeStatus(
                    id=node.id,
                    alive=node.alive,
                    total=_amounts(node.total),
                    free=_amounts({name: node.free(name) for name in node.total}),
                    labels=node.labels,
                )
                for node in self._nodes.values()
            ]

    def set_resource(self, name: str, capacity: float, node: NodeId) -> float:
        checked_resource(name, capacity)
        with self._changed:
            self._open()
            place = self._nodes.get(node)
            if place is None or not place.alive:
                raise node_lost(node)
            in_force = max(_parts(capacity), place.used.get(name, 0))
            if in_force:
                place.total[name] = in_force
            else:
                place.total.pop(name, None)
                place.used.pop(name, None)
            self._match(node)
            return in_force / _PARTS

    # --- tasks --------------------------------------------------------------------------------------------------------

    def submit(self, task: Task) -> None:
        checked_demands(task)
        with self._changed:
            self._open()
            if task.id in self._tasks:
                return
            self._sequence += 1
            entry = _Entry(task, _shape(task.demands), self._sequence, set(task.gates))
            self._tasks[task.id] = entry
            if not entry.gates:
                self._queue(entry)

    def status(self, ids: Sequence[str]) -> Mapping[str, TaskStatus]:
        with self._changed:
            return {i: _told(self._tasks[i]) for i in ids if i in self._tasks}

    def cancel(self, ids: Sequence[str]) -> None:
        with self._changed:
            for entry in (self._tasks[i] for i in ids if i in self._tasks):
                if entry.state == "waiting":
                    self._unqueue(entry)
                    self._end(entry, "cancelled")
                elif entry.state == "running" and (entry.task.hold or not self._threads):
                    self._end(entry, "cancelled")
                elif entry.state == "running":
                    entry.cancelling = True  # its thread ends it: until then it computes, and its share is taken
            self._changed.notify_all()

    def forget(self, ids: Sequence[str]) -> None:
        with self._changed:
            for i in ids:
                if i in self._tasks and self._tasks[i].state in ENDED:
                    del self._tasks[i]

    def lift(self, task: str, gate: str) -> None:
        with self._changed:
            entry = self._tasks.get(task)
            if entry is None or gate not in entry.gates:
                return
            entry.gates.discard(gate)
            if not entry.gates and entry.state == "waiting":
                self._queue(entry)

    # --- reservations -------------------------------------------------------------------------------------------------

    def reserve(self, gang: str, bundles: Sequence[Demands], *, spread: bool) -> bool | None:
        for number, bundle in enumerate(bundles):
            checked_demands(Task(id=f"{gang}.{number}", demands=bundle))
        with self._changed:
            self._open()
            if gang in self._gangs:
                return True
            shapes = [_shape(bundle) for bundle in bundles]
            free = {n.id: {name: n.free(name) for name in n.total} for n in self._nodes.values() if n.alive}
            found = places([dict(shape) for shape in shapes], free, spread=spread)
            if found is None:
                return False
            for number, (node, shape) in enumerate(zip(found, shapes, strict=True)):
                self._nodes[node].take(shape)
                self._nodes[node].total[_bundle(gang, number)] = _parts(1)
            self._gangs[gang] = _Gang(list(zip(found, shapes, strict=True)))
            for node in set(found):
                self._match(node)  # members may have been submitted first
            return True

    def gang_demands(self, gang: str, bundle: int) -> Demands:
        return {_bundle(gang, bundle): 1.0}

    def release(self, gang: str) -> None:
        with self._changed:
            if gang in self._gangs:
                self._let_go(gang)
                self._match_all()

    def _let_go(self, gang: str) -> None:
        """Bundles are free again and members that still run are ended, as Ray does it."""
        bundles = self._gangs.pop(gang).bundles
        names = {_bundle(gang, number) for number in range(len(bundles))}
        self.cancel([i for i, e in self._tasks.items() if e.state == "running" and names & set(e.task.demands)])
        for number, (node, shape) in enumerate(bundles):
            place = self._nodes[node]
            if place.alive:
                place.give_back(shape)
                self._drop_if_idle(place, _bundle(gang, number))

    def _drop_if_idle(self, place: _Node, bundle: str) -> None:
        if not place.used.get(bundle, 0):
            place.total.pop(bundle, None)
            place.used.pop(bundle, None)

    # --- waiting, running, closing ------------------------------------------------------------------------------------

    def wait_for(self, condition: Callable[[], bool], *, timeout_s: float) -> bool:
        """Waits until `condition`, looked at whenever something changes here; False: it did not come in time."""
        with self._changed:
            return self._changed.wait_for(condition, timeout=timeout_s)

    def pump(self, most: int = 1_000_000) -> int:
        """Runs work that has found a node, in order, at most so many pieces; how many were run. Only with `threads=False`."""
        for count in range(most):
            with self._changed:
                while self._to_run and self._stale(*self._to_run[0]):
                    self._to_run.popleft()
                if not self._to_run:
                    return count
                entry, attempt = self._to_run.popleft()
            self._run(entry, attempt)
        return most

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self.cancel(list(self._tasks))

    def check(self) -> None:
        """Raises AssertionError if what is accounted contradicts itself; for tests."""
        with self._changed:
            used: dict[tuple[NodeId, str], int] = {}
            held = [(e.node, e.shape) for e in self._tasks.values() if e.state == "running"]
            held += [bundle for gang in self._gangs.values() for bundle in gang.bundles]
            for place, shape in held:
                assert place is not None
                for name, count in shape:
                    used[place, name] = used.get((place, name), 0) + count
            for node in self._nodes.values():
                for name in set(node.used) | {n for place, n in used if place == node.id}:
                    assert node.used.get(name, 0) == used.get((node.id, name), 0), (node.id, name)
                    assert node.used.get(name, 0) <= node.total.get(name, 0), f"{node.id} is past its capacity of {name}"

    # --- inside, under the lock ---------------------------------------------------------------------------------------

    def _open(self) -> None:
        if self._closed:
            raise UsageError("this engine is closed", subject=self.name)

    def _queue(self, entry: _Entry) -> None:
        self._queues.setdefault(entry.shape, deque()).append(entry)
        if self._queues[entry.shape][0] is entry:  # else those before it do not fit either
            self._place_heads({entry.shape}, self._nodes.values())
        self._changed.notify_all()

    def _unqueue(self, entry: _Entry) -> None:
        queue = self._queues.get(entry.shape)
        if queue and entry in queue:
            queue.remove(entry)
            if not queue:
                del self._queues[entry.shape]

    def _match(self, node: NodeId) -> None:
        self._place_heads(set(self._queues), [self._nodes[node]])
        self._changed.notify_all()

    def _match_all(self) -> None:
        self._place_heads(set(self._queues), self._nodes.values())
        self._changed.notify_all()

    def _place_heads(self, shapes: set[Shape], nodes: Any) -> None:
        """Starts what fits on `nodes`, the oldest first."""
        open_shapes = {shape for shape in shapes if self._queues.get(shape)}
        while open_shapes:
            shape = min(open_shapes, key=lambda s: self._queues[s][0].sequence)
            fitting = [node for node in nodes if node.fits(shape)]
            if not fitting:
                open_shapes.discard(shape)
                continue
            entry = self._queues[shape].popleft()
            if not self._queues[shape]:
                del self._queues[shape]
                open_shapes.discard(shape)
            self._start(entry, self._choice.choice(fitting))

    def _start(self, entry: _Entry, node: _Node) -> None:
        node.take(entry.shape)
        entry.state, entry.node = "running", node.id
        entry.attempt += 1
        if entry.task.hold:
            return
        if not self._threads:
            self._to_run.append((entry, entry.attempt))
            return
        threading.Thread(target=self._run, args=(entry, entry.attempt), name=f"task-{entry.task.id}"[:40], daemon=True).start()

    def _end(self, entry: _Entry, state: TaskState) -> None:
        """Out of any state but an ended one; its demands are free."""
        was_running = entry.state == "running"
        entry.state = state
        if was_running and entry.node is not None:
            place = self._nodes[entry.node]
            place.give_back(entry.shape)
            for name, _ in entry.shape:
                if name.startswith(_BUNDLE) and not self._reserved(name):
                    self._drop_if_idle(place, name)
            self._match(entry.node)
        self._changed.notify_all()

    def _reserved(self, bundle: str) -> bool:
        return any(bundle == _bundle(gang, number) for gang, held in self._gangs.items() for number in range(len(held.bundles)))

    def _lose(self, entry: _Entry) -> None:
        if entry.cancelling:
            entry.state = "cancelled"
        elif entry.attempt <= entry.task.retries:
            entry.state, entry.node = "waiting", None
            queue = self._queues.setdefault(entry.shape, deque())
            queue.append(entry)
            self._queues[entry.shape] = deque(sorted(queue, key=lambda e: e.sequence))
        else:
            entry.state, entry.problem = "lost", f"node {entry.node} is gone"

    def _stale(self, entry: _Entry, attempt: int) -> bool:
        return entry.state != "running" or entry.attempt != attempt

    def _is_over(self, task: str, attempt: int) -> bool:
        with self._changed:
            entry = self._tasks.get(task)
            return entry is None or self._stale(entry, attempt) or entry.cancelling or self._closed

    def _run(self, entry: _Entry, attempt: int) -> None:
        """On a thread of its own, or in `pump`."""
        with self._changed:
            if self._stale(entry, attempt) or entry.task.work is None or entry.node is None:
                return
            work, context = entry.task.work, _Context(self, entry.task.id, entry.node, attempt)
        result, problem = run_work(work, context)
        with self._changed:
            if self._stale(entry, attempt):
                return  # its node was lost meanwhile, or it was cancelled: what came of it does not count
            entry.result, entry.problem = result, problem
            self._end(entry, "cancelled" if entry.cancelling else "failed" if problem else "done")


def run_work(work: Work, context: Any) -> tuple[Any, str]:
    """(result, ''), or (None, what went wrong); the same for every engine that runs Python."""
    try:
        function = resolve(work.entry)
        result = function(context, **work.arguments)
        json.dumps(result, allow_nan=False)
    except Exception as error:  # the work is anybody's
        if not isinstance(error, DriftboxError):
            log.warning("task %s failed", context.task, exc_info=error)
        return None, redact(f"{type(error).__name__}: {error}"[:500])
    return result, ""


def resolve(entry: str) -> Callable[..., Any]:
    """The function that "package.module:function" names. JobError where there is none."""
    module, colon, name = entry.partition(":")
    try:
        function = getattr(importlib.import_module(module), name) if colon else None
    except (ImportError, AttributeError):
        function = None
    if not callable(function):
        raise JobError(f"there is no function {entry}", subject=entry, remedy="an entry is written package.module:function")
    return function


#: Begin of the resources that reservations make.
_BUNDLE = "bundle."


def _bundle(gang: str, number: int) -> str:
    return f"{_BUNDLE}{gang}.{number}"


def _told(entry: _Entry) -> TaskStatus:
    told = TaskStatus(id=entry.task.id, state=entry.state, node=entry.node, problem=entry.problem)
    return replace(told, result=entry.result) if entry.state == "done" else told
