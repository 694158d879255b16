"""P2 and what is made of it: signals, barriers, sequences and DAGs of tasks (card sections 4 and 5).

A task that comes after others has a wrapper, a ghost that wants one unit for each of them. All units are made on one rendezvous node,
because a barrier over units on different nodes can never be met (trap b); the wrapper demands nothing physical and submits the real
task, so the task itself may run anywhere (trap a). Units are made by the library when a predecessor is done, or by whoever else may
(`telling`, or the predecessor's own work): demand first, then create.

`gated`: the same by gates of the tasks instead of units and wrappers (card section 11). Nothing lies on a node, so no rendezvous can be
lost, and on Kubernetes the cluster's own scheduler keeps the pods back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from cluster.engines.base import Task
from cluster.escher.policies.base import ALWAYS, Cancel, Command, Drop, Lift, Step, Submit, View, Want
from cluster.escher.wishes import Where, Wish


@dataclass(frozen=True, kw_only=True)
class Dag:
    """tasks; after: task -> ids of tasks, or words of events, that it waits for; told: events that have come; phases: task -> '' (not
    begun), 'waiting', 'begun', 'done', 'failed', 'skipped' (something before it failed); gated: see the module."""

    id: str
    owner: str
    tasks: tuple[Task, ...]
    after: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    told: frozenset[str] = frozenset()
    phases: Mapping[str, str] = field(default_factory=dict)
    signalled: frozenset[str] = frozenset()
    gated: bool = False

    def __post_init__(self) -> None:
        cyclic = _in_a_cycle({task.id for task in self.tasks}, self.after)
        if cyclic:
            raise ValueError(f"task {cyclic} waits for itself")

    @property
    def over(self) -> bool:
        return all(self.phases.get(task.id) in ("done", "failed", "skipped") for task in self.tasks)

    def telling(self, *events: str) -> Dag:
        """A signal from outside. Single shot: it stays told."""
        return replace(self, told=self.told | set(events))

    def watches(self) -> tuple[str, ...]:
        return tuple(i for task in self.tasks for i in (task.id, _wrapper(task.id)))

    def step(self, view: View, now_s: float) -> Step:
        commands: list[Command] = []
        phases = dict(self.phases)
        signalled = self.told & self._words()
        for task in self.tasks:
            phases[task.id] = self._phase(task, view, phases, commands)
        signalled |= {task.id for task in self.tasks if phases[task.id] == "done"}
        for word in sorted(signalled - self.signalled):
            for task in self.tasks:
                if word in self.after.get(task.id, ()) and phases[task.id] == "waiting":
                    signal = Lift(task=task.id, gate=word) if self.gated else Want(wish=self._unit(word, task.id))
                    commands.append(signal)
        if self.gated:
            open_ones = [t for t, phase in phases.items() if phase == "waiting" and set(self.after[t]) <= signalled]
            phases |= dict.fromkeys(open_ones, "begun")
        return Step(policy=replace(self, phases=phases, signalled=signalled), commands=tuple(commands))

    def undone(self) -> tuple[Command, ...]:
        return (Cancel(tasks=self.watches()), *self._drops([task.id for task in self.tasks]))

    def _phase(self, task: Task, view: View, phases: Mapping[str, str], commands: list[Command]) -> str:
        phase = phases.get(task.id, "")
        before = self.after.get(task.id, ())
        if phase in ("", "waiting") and any(phases.get(word) in ("failed", "skipped") for word in before):
            commands += [Cancel(tasks=(task.id if self.gated else _wrapper(task.id),)), *self._drops([task.id])]
            return "skipped"
        if self.gated and before and phase in ("", "waiting"):
            if not view.state(task.id):
                commands.append(Submit(task=replace(task, gates=tuple(word for word in before if word not in self.signalled))))
            return "waiting"
        if phase == "" and before:
            commands.append(Submit(task=self._wrapping(task)))
            return "waiting"
        # A task that is known was submitted by a controller that was killed before it wrote that down; its wrapper may be gone.
        if phase == "" or (phase == "waiting" and (view.running(_wrapper(task.id)) or view.state(task.id))):
            commands.append(Submit(task=task))
            if before:
                commands += [Cancel(tasks=(_wrapper(task.id),)), *self._drops([task.id])]
            return "begun"
        if phase == "waiting" and not view.state(_wrapper(task.id)):
            commands.append(Submit(task=self._wrapping(task)))
        if phase == "begun" and not view.state(task.id):
            commands.append(Submit(task=task))
        if phase == "begun" and view.ended(task.id):
            return "done" if view.state(task.id) == "done" else "failed"
        return phase

    def _wrapping(self, task: Task) -> Task:
        demands = {self._name(word, task.id): 1.0 for word in self.after[task.id]}
        return Task(id=_wrapper(task.id), demands=demands, retries=ALWAYS)

    def _unit(self, word: str, task: str) -> Wish:
        return Wish(name=self._name(word, task), owner=self.owner, capacity=1.0, where=Where(together=self.id))

    def _name(self, word: str, task: str) -> str:
        """Of the edge: a digest, because ids of tasks may be long."""
        return f"{self.id[:46]}.{hashlib.sha256(f'{word} {task}'.encode()).hexdigest()[:12]}"

    def _drops(self, tasks: list[str]) -> list[Drop]:
        return [] if self.gated else [Drop(name=self._name(word, task)) for task in tasks for word in self.after.get(task, ())]

    def _words(self) -> set[str]:
        return {word for words in self.after.values() for word in words}


def sequence(name: str, owner: str, *tasks: Task, gated: bool = False) -> Dag:
    """One after the other."""
    after = {later.id: (earlier.id,) for earlier, later in zip(tasks, tasks[1:], strict=False)}
    return Dag(id=name, owner=owner, tasks=tasks, after=after, gated=gated)


def signal(name: str, owner: str, task: Task, *events: str, gated: bool = False) -> Dag:
    """A task that waits for events (several: a barrier); `telling` sends them."""
    return Dag(id=name, owner=owner, tasks=(task,), after={task.id: events}, gated=gated)


def _wrapper(task: str) -> str:
    return f"{task}~w"


def _in_a_cycle(tasks: set[str], after: Mapping[str, tuple[str, ...]]) -> str | None:
    """A task that can never begin, None: there is none."""
    begun: set[str] = set()
    while True:
        ready = {t for t in tasks - begun if not (set(after.get(t, ())) & tasks) - begun}
        if not ready:
            return min(tasks - begun, default=None)
        begun |= ready
