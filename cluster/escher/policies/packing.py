"""Bin packing: as few nodes as possible (card section 5, [D]; the paper has the idea and its training example only).

*Static*, `Packer`: the slot resource exists on the first node only; when a task waits that has no room there, the next node gets it;
an idle node loses it again. *Dynamic*, `consolidation` and `Consolidate`: a job whose workers lie on several nodes is brought together
when one node can hold all of it: checkpoint, end the workers, make the job's resource on that node, run the same tasks again (the
paper's EscherTune: +36.3 % throughput on its cluster).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from cluster.engines.base import INFINITE, Demands, NodeId, Task
from cluster.escher.amounts import fits, physical, plus
from cluster.escher.policies.base import Cancel, Command, Drop, Step, Submit, View, Want, demanding
from cluster.escher.wishes import Wish


@dataclass(frozen=True, kw_only=True)
class Packer:
    """tasks: with their own demands; each is submitted with one unit of `id` added. nodes: in the order in which they are filled,
    empty: by name. opened: nodes that have the resource now."""

    id: str
    owner: str
    tasks: tuple[Task, ...] = ()
    nodes: tuple[NodeId, ...] = ()
    opened: tuple[NodeId, ...] = ()

    over = False

    def with_tasks(self, *tasks: Task) -> Packer:
        known = {task.id for task in self.tasks}
        return replace(self, tasks=(*self.tasks, *(t for t in tasks if t.id not in known)))

    def watches(self) -> tuple[str, ...]:
        return tuple(task.id for task in self.tasks)

    def undone(self) -> tuple[Command, ...]:
        return (Cancel(tasks=self.watches()), Drop(name=self.id))

    def step(self, view: View, now_s: float) -> Step:
        order = [node.id for node in view.alive if not self.nodes or node.id in self.nodes]
        order.sort(key=lambda node: (self.nodes.index(node) if self.nodes else 0, node))
        new = [task for task in self.tasks if not view.state(task.id)]
        commands: list[Command] = [Submit(task=demanding(task, {self.id: 1.0})) for task in new]
        left = tuple(task for task in self.tasks if not view.ended(task.id))
        opened = self._opened(view, order, left)
        if opened != self.opened:
            per_node: dict[NodeId, float] = dict.fromkeys(opened, float(INFINITE))
            commands.insert(0, Want(wish=Wish(name=self.id, owner=self.owner, per_node=per_node)))
        return Step(policy=replace(self, tasks=left, opened=opened), commands=tuple(commands))

    def _opened(self, view: View, order: Sequence[NodeId], tasks: Sequence[Task]) -> tuple[NodeId, ...]:
        free = {node.id: node.free for node in view.alive}
        used = {view.node(task.id) for task in tasks if view.running(task.id)}
        opened = [node for node in order if node in self.opened]
        waiting = [task for task in tasks if view.state(task.id) == "waiting"]
        stuck = [task for task in waiting if not any(fits(physical(task.demands), free[node]) for node in opened)]
        if stuck or not opened:
            wants = physical(stuck[0].demands) if stuck else {}
            opened += [node for node in order if node not in opened and fits(wants, free[node])][:1]
        elif not waiting:
            opened = [node for node in opened if node in used] or opened[:1]
        return tuple(node for node in order if node in opened)


@dataclass(frozen=True, kw_only=True)
class Spread:
    """A job's workers: worker demands, and how many lie on which node."""

    job: str
    worker: Demands
    at: Mapping[NodeId, int]

    @property
    def workers(self) -> int:
        return sum(self.at.values())


def consolidation(jobs: Sequence[Spread], free: Mapping[NodeId, Demands]) -> tuple[str, NodeId] | None:
    """The largest scattered job that one node can hold whole, counting what its own workers there give back, and that node: the one
    that has most of its workers already, then the fullest. None: there is none."""
    for job in sorted(jobs, key=lambda j: (-j.workers, j.job)):
        if sum(count > 0 for count in job.at.values()) < 2:
            continue
        whole = _times(job.worker, job.workers)
        room = {node: plus(amounts, _times(job.worker, job.at.get(node, 0))) for node, amounts in free.items()}
        able = [node for node in room if fits(whole, room[node])]
        if able:
            target = min(able, key=lambda n: (-job.at.get(n, 0), sum(free[n].get(name, 0.0) for name in job.worker), n))
            return job.job, target
    return None


def _times(demands: Demands, count: int) -> dict[str, float]:
    return {name: round(amount * count, 4) for name, amount in demands.items()}


@dataclass(frozen=True, kw_only=True)
class Consolidate:
    """Brings a job to `target`. workers: its tasks as they run now; checkpointed: the application has written down where it is
    (`checkpoint_done`): before that nothing is ended; run: mark of the new tasks' ids."""

    id: str
    owner: str
    workers: tuple[Task, ...]
    target: NodeId
    run: str = "moved"
    phase: Literal["checkpoint", "ready", "ending", "again", "over"] = "checkpoint"

    @property
    def over(self) -> bool:
        return self.phase == "over"

    def checkpoint_done(self) -> Consolidate:
        return replace(self, phase="ready") if self.phase == "checkpoint" else self

    @property
    def moved(self) -> tuple[Task, ...]:
        """The same tasks with new ids, and a demand that ties them to the target."""
        return tuple(demanding(replace(task, id=f"{task.id}~{self.run}"), {self.id: 1.0}) for task in self.workers)

    def watches(self) -> tuple[str, ...]:
        return tuple(task.id for task in (*self.workers, *self.moved))

    def undone(self) -> tuple[Command, ...]:
        """Workers go on where they are; only what was made for the move goes."""
        return (Drop(name=self.id),) if self.phase not in ("again", "over") else ()

    def step(self, view: View, now_s: float) -> Step:
        old = tuple(task.id for task in self.workers)
        if self.phase == "ready":
            return Step(policy=replace(self, phase="ending"), commands=(Cancel(tasks=old),))
        if self.phase == "ending" and not any(view.state(i) in ("waiting", "running") for i in old):
            units = Wish(name=self.id, owner=self.owner, per_node={self.target: float(len(self.workers))})
            commands: tuple[Command, ...] = (Want(wish=units), *(Submit(task=task) for task in self.moved))
            return Step(policy=replace(self, phase="again"), commands=commands)
        if self.phase == "again" and all(view.ended(task.id) for task in self.moved):
            return Step(policy=replace(self, phase="over"), commands=(Drop(name=self.id),))
        return Step(policy=self)
