"""P3 and P4 of the primitives: queue, semaphore, mutex. One machine, because all three count how many may be in (card section 4).

Every task has a wrapper, a ghost without physical demands that wants one unit of the turnstile's resource on one rendezvous node. When
the wrapper has its unit, the real task is submitted with its own demands, wherever it fits. That solves three traps of the card: the
task is not pinned to the node of the unit (a), mutual exclusion holds across nodes because the wrapper keeps the unit while the task
runs (e), and a queue lets through exactly as many as were released because its wrappers keep their units until nobody waits (c).

A wrapper that dies with the rendezvous node while its task runs elsewhere must not let another one in: its unit is taken off the
capacity that is made again on the next node, for as long as the task runs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from cluster.engines.base import Task
from cluster.escher.policies.base import Cancel, Command, Drop, Step, Submit, View, Want
from cluster.escher.wishes import Where, Wish


@dataclass(frozen=True, kw_only=True)
class Guarded:
    """A task at the turnstile. tries: of its wrapper (each has an id of its own); unheld: it is in, and its wrapper is gone."""

    task: Task
    phase: Literal["waiting", "in", "over"] = "waiting"
    tries: int = 0
    unheld: bool = False


@dataclass(frozen=True, kw_only=True)
class Turnstile:
    """units: how many may be in at once (semaphore, 1: mutex); with counts=True a queue: how many were released so far, less those
    whose units were handed back. wanted: capacity last asked for."""

    id: str
    owner: str
    units: int = 1
    counts: bool = False
    items: tuple[Guarded, ...] = ()
    wanted: int | None = None
    closed: bool = False

    @property
    def over(self) -> bool:
        """Only when it was closed and nobody is in or waits."""
        return self.closed and not self.items and self.wanted is None

    @property
    def waiting(self) -> int:
        return sum(item.phase == "waiting" for item in self.items)

    @property
    def inside(self) -> int:
        return sum(item.phase == "in" for item in self.items)

    def entering(self, *tasks: Task) -> Turnstile:
        """With tasks behind those that wait. A task that it has already is one task."""
        known = {item.task.id for item in self.items}
        return replace(self, items=(*self.items, *(Guarded(task=t) for t in tasks if t.id not in known)))

    def releasing(self, count: int) -> Turnstile:
        """A queue: so many more may go. ValueError for others, and for less than 0."""
        if not self.counts or count < 0:
            raise ValueError("only a queue is released, by 0 or more")
        return replace(self, units=self.units + count)

    def closing(self) -> Turnstile:
        """It ends when nobody is left."""
        return replace(self, closed=True)

    def watches(self) -> tuple[str, ...]:
        return tuple(i for item in self.items for i in (self._wrapper(item), item.task.id))

    def step(self, view: View, now_s: float) -> Step:
        commands: list[Command] = []
        items = tuple(found for item in self.items if (found := self._moved(item, view, commands)) is not None)
        units, items = self._handed_back(items, commands)
        lost = sum(item.unheld for item in items)
        capacity: int | None = max(0, units - lost)
        # first the wrappers of this round are cancelled, then a smaller capacity can come into force
        if self.closed and not items:
            if self.wanted is not None:
                commands.append(Drop(name=self.id))
            capacity = None
        elif capacity != self.wanted:
            wish = Wish(name=self.id, owner=self.owner, capacity=capacity or 0, where=Where(together=self.id))
            # before the wrappers: a rendezvous that was lost is made again with what is left of it
            commands.insert(0, Want(wish=wish)) if lost else commands.append(Want(wish=wish))
        return Step(policy=replace(self, items=items, units=units, wanted=capacity), commands=tuple(commands))

    def undone(self) -> tuple[Command, ...]:
        return (Cancel(tasks=self.watches()), Drop(name=self.id))

    def _wrapper(self, item: Guarded) -> str:
        return f"{item.task.id}~w{item.tries}"

    def _moved(self, item: Guarded, view: View, commands: list[Command]) -> Guarded | None:
        """The item one step on; None: it has left."""
        wrapper = self._wrapper(item)
        if item.phase == "waiting":
            return self._at_the_gate(item, view, commands)
        if item.phase == "in" and not view.state(item.task.id):
            commands.append(Submit(task=item.task))  # the last command before a restart was not given
            return item
        if item.phase == "in" and view.ended(item.task.id):
            item = replace(item, phase="over")
        if item.phase == "over" and not self.counts:
            commands.append(Cancel(tasks=(wrapper,)))
            return None
        return replace(item, unheld=True) if view.ended(wrapper) else item

    def _at_the_gate(self, item: Guarded, view: View, commands: list[Command]) -> Guarded:
        wrapper = self._wrapper(item)
        if view.running(wrapper):
            commands.append(Submit(task=item.task))
            return replace(item, phase="in")
        if view.ended(wrapper):  # lost before it was seen to run: nobody is in by it
            item = replace(item, tries=item.tries + 1)
            wrapper = self._wrapper(item)
        if not view.state(wrapper):
            commands.append(Submit(task=Task(id=wrapper, demands={self.id: 1.0})))
        return item

    def _handed_back(self, items: tuple[Guarded, ...], commands: list[Command]) -> tuple[int, tuple[Guarded, ...]]:
        """A queue on which nobody waits gives up the units of those that are through: no other wrapper can take one meanwhile."""
        through = [item for item in items if item.phase == "over"]
        if not self.counts or not through or any(item.phase == "waiting" for item in items):
            return self.units, items
        commands.append(Cancel(tasks=tuple(self._wrapper(item) for item in through)))
        return self.units - len(through), tuple(item for item in items if item.phase != "over")


def mutex(name: str, owner: str, *tasks: Task) -> Turnstile:
    """One at a time, anywhere in the cluster."""
    return Turnstile(id=name, owner=owner, units=1).entering(*tasks)


def semaphore(name: str, owner: str, units: int, *tasks: Task) -> Turnstile:
    return Turnstile(id=name, owner=owner, units=units).entering(*tasks)


def queue(name: str, owner: str, *tasks: Task) -> Turnstile:
    """Nobody goes until `releasing(k)`."""
    return Turnstile(id=name, owner=owner, units=0, counts=True).entering(*tasks)
