"""Load balance when nobody knows how many tasks will come: the watcher (card section 5, worked example 4).

Every node has a capacity of the policy's resource, the same one; every task demands 1. When all of it is taken on every node and a task
waits, every node gets one more. So no node is ever more than one task ahead of another when tasks stay.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from cluster.engines.base import INFINITE, QUANTUM
from cluster.escher.policies.base import Command, Drop, Step, View, Want
from cluster.escher.wishes import Where, Wish


@dataclass(frozen=True, kw_only=True)
class Balancer:
    """tasks: those that demand `id`, as far as known; with none the capacity grows as soon as all is taken, as in the prototype. [It
    polls each 0.5 s; here it is stepped when something changes.]"""

    id: str
    owner: str
    tasks: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    each: int = 1
    wanted: bool = False

    over = False

    def watching(self, *tasks: str) -> Balancer:
        return replace(self, tasks=(*self.tasks, *(t for t in tasks if t not in self.tasks)))

    def watches(self) -> tuple[str, ...]:
        return self.tasks

    def undone(self) -> tuple[Command, ...]:
        return (Drop(name=self.id),)

    def step(self, view: View, now_s: float) -> Step:
        if not self.wanted:
            return Step(policy=replace(self, wanted=True), commands=(self._want(self.each),))
        left = tuple(task for task in self.tasks if not view.ended(task))
        waits = not self.tasks or any(view.state(task) == "waiting" for task in left)
        if not (waits and self._is_taken(view)) or self.each >= INFINITE:
            return Step(policy=replace(self, tasks=left) if left != self.tasks and left else self)
        return Step(policy=replace(self, each=self.each + 1, tasks=left), commands=(self._want(self.each + 1),))

    def _is_taken(self, view: View) -> bool:
        """On every node; False while a node does not show yet what was last set: it would be raised twice for one task."""
        nodes = [node for node in view.alive if not self.nodes or node.id in self.nodes]
        return bool(nodes) and all(
            abs(node.total.get(self.id, 0.0) - self.each) < QUANTUM and node.free.get(self.id, 0.0) < 1 for node in nodes
        )

    def _want(self, each: int) -> Want:
        return Want(wish=Wish(name=self.id, owner=self.owner, capacity=each, where=Where(nodes=self.nodes)))
