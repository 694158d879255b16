"""Gang scheduling: all members at once or none (card sections 4, 5 and 10; docs/decisions/0062-escher.md).

Two ways to the same end. *Reservation*: the engine holds all bundles in one transaction (FrameSpace; Ray's placement groups). *Ghosts*,
where the engine has none: a ghost per bundle holds its demands; when all run before the deadline, units are made on their nodes and the
members ask for those instead of anything physical; else every ghost is cancelled and it is tried again, later each time. A gang that
tries for itself is AppSpace; `GangDesk` lets one at a time try (LibSpace), and is what the product uses.

Bundles that differ get units of different names, so that a member cannot end in another's bundle. [The paper has one name per gang.]
A gang whose member or ghost is lost begins again from the start, as the prototype does: its peers cannot go on without it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from cluster.engines.base import Demands, NodeId, NodeStatus, Task
from cluster.engines.places import places
from cluster.escher.amounts import every
from cluster.escher.policies.base import (
    Cancel,
    Command,
    Drop,
    Release,
    Reserve,
    Step,
    Submit,
    View,
    Want,
    demanding,
    only_demanding,
)
from cluster.escher.wishes import Where, Wish

#: idle: not tried now; asking: the engine was asked to reserve; trying: ghosts are out; held: all bundles are held, members run;
#: over: done, or given up; leaving: it is to let go.
Phase = Literal["idle", "asking", "trying", "held", "leaving", "over"]


@dataclass(frozen=True, kw_only=True)
class Pace:
    """deadline_s: of a try with ghosts; pause_s: before the second try, doubled with each further one up to most_s (AppSpace's
    exponential back-off, with a spread of one half that follows from the gang's id, so that two gangs do not meet again and again)."""

    deadline_s: float = 30.0
    pause_s: float = 1.0
    most_s: float = 60.0

    def pause(self, gang: str, tries: int) -> float:
        spread = int(hashlib.sha256(f"{gang} {tries}".encode()).hexdigest()[:8], 16) / 0xFFFFFFFF
        return min(self.most_s, self.pause_s * 2.0 ** min(tries, 30)) * (0.75 + 0.5 * spread)


@dataclass(frozen=True, kw_only=True)
class Gang:
    """bundles: demands of each member; members: tasks in the same order, empty: who asked runs them himself with `demands`, until
    `letting_go`; each: members per bundle, one bundle's members following each other; spread: every bundle on another node; ghosts_only:
    do not ask the engine for a reservation; lets_ghosts_go: ghosts end when the members are submitted, which then ask for their unit
    and what they ask themselves (anti-affinity of long tasks); insists: no deadline, and no longer pause than the first.

    tries, restarts: counted; until_s, not_before_s: times; demands: per bundle, once held; problem: why it was given up."""

    id: str
    owner: str
    bundles: tuple[Demands, ...]
    members: tuple[Task, ...] = ()
    each: int = 1
    spread: bool = True
    ghosts_only: bool = False
    lets_ghosts_go: bool = False
    insists: bool = False
    pace: Pace = Pace()
    phase: Phase = "idle"
    tries: int = 0
    restarts: int = 0
    until_s: float = 0.0
    not_before_s: float = 0.0
    reserved: bool = False
    demands: tuple[Demands, ...] = ()
    problem: str = ""

    def __post_init__(self) -> None:
        if not self.bundles or (self.members and len(self.members) != self.each * len(self.bundles)):
            raise ValueError(f"gang {self.id} has {len(self.bundles)} bundles and {len(self.members)} members")

    @property
    def over(self) -> bool:
        return self.phase == "over"

    @property
    def held(self) -> bool:
        return self.phase == "held"

    @property
    def ghosts(self) -> tuple[str, ...]:
        """Of the present try: each try has ids of its own, because the ghosts of the last may still be ending."""
        return tuple(f"{self.id}~g{self.tries}.{number}" for number in range(len(self.bundles)))

    @property
    def runs(self) -> tuple[str, ...]:
        """Ids of the members as they run: a gang that began again has new ones."""
        mark = f"~r{self.restarts}" if self.restarts else ""
        return tuple(f"{member.id}{mark}" for member in self.members)

    def letting_go(self) -> Gang:
        """Whoever asked has finished, or does not want it any more."""
        return self if self.over else replace(self, phase="leaving")

    def watches(self) -> tuple[str, ...]:
        return (*self.ghosts, *self.runs)

    def step(self, view: View, now_s: float) -> Step:
        match self.phase:
            case "idle":
                return self._idle(now_s)
            case "asking":
                return self._asking(view, now_s)
            case "trying":
                return self._trying(view, now_s)
            case "held":
                return self._held(view, now_s)
            case "leaving":
                return Step(policy=replace(self, phase="over"), commands=self.undone())
            case _:
                return Step(policy=self)

    def undone(self) -> tuple[Command, ...]:
        return (Cancel(tasks=(*self.runs, *self.ghosts)), *self._unreserved())

    def _unreserved(self) -> tuple[Command, ...]:
        return (*(Drop(name=name) for name in sorted({*self._units(), self._apart})), Release(gang=self.id))

    # --- phases -------------------------------------------------------------------------------------------------------

    def _idle(self, now_s: float) -> Step:
        if now_s < self.not_before_s:
            return Step(policy=self, wake_s=self.not_before_s)
        if self.ghosts_only:
            return self._haunting(now_s)
        ask = Reserve(gang=self.id, bundles=self.bundles, spread=self.spread)
        return Step(policy=replace(self, phase="asking"), commands=(ask,))

    def _asking(self, view: View, now_s: float) -> Step:
        if self.id not in view.reserved:  # asked by a controller that was killed before it heard the answer
            return Step(policy=replace(self, phase="idle"))
        answer = view.reserved[self.id]
        if answer is None:
            return self._haunting(now_s)
        if not answer:
            return self._again(now_s)
        return self._holding(tuple(view.demands[self.id]), reserved=True)

    def _haunting(self, now_s: float) -> Step:
        commands: list[Command] = []
        apart: Demands = {}
        if self.spread and len(self.bundles) > 1:
            commands.append(Want(wish=Wish(name=self._apart, owner=self.owner, capacity=1.0, where=Where())))
            apart = {self._apart: 1.0}
        commands += [
            Submit(task=Task(id=ghost, demands=every(bundle, apart)))
            for ghost, bundle in zip(self.ghosts, self.bundles, strict=True)
        ]
        until_s = now_s + self.pace.deadline_s
        return Step(policy=replace(self, phase="trying", until_s=until_s), commands=tuple(commands), wake_s=until_s)

    def _trying(self, view: View, now_s: float) -> Step:
        if any(view.ended(ghost) for ghost in self.ghosts):
            return self._again(now_s)  # a node was lost under it
        if not all(view.running(ghost) for ghost in self.ghosts):
            if now_s >= self.until_s and not self.insists:
                return self._again(now_s)
            unknown = [ghost for ghost in self.ghosts if not view.state(ghost)]
            if unknown:
                return self._haunting(now_s)  # not submitted before a restart, or the engine has forgotten
            return Step(policy=self, wake_s=None if self.insists else self.until_s)
        made: list[Command] = [
            Want(wish=Wish(name=name, owner=self.owner, per_node=amounts))
            for name, amounts in sorted(self._units_at([view.node(ghost) for ghost in self.ghosts]).items())
        ]
        return self._holding(tuple({name: 1.0} for name in self._units()), reserved=False, before=made)

    def _holding(self, demands: tuple[Demands, ...], *, reserved: bool, before: Sequence[Command] = ()) -> Step:
        commands = list(before)
        after = replace(self, phase="held", reserved=reserved, demands=demands)
        if self.lets_ghosts_go:
            commands.append(Cancel(tasks=self.ghosts))
        commands += [Submit(task=task) for task in after._tasks()]
        return Step(policy=after, commands=tuple(commands))

    def _held(self, view: View, now_s: float) -> Step:
        if self.reserved and self.id not in view.reserved:  # after a restart: the reservation is asked for again, by its name
            return Step(policy=self, commands=(Reserve(gang=self.id, bundles=self.bundles, spread=self.spread),))
        states = [view.state(run) for run in self.runs]
        if self._broken(view, states):
            again = replace(self, phase="idle", tries=self.tries + 1, restarts=self.restarts + 1, demands=(), reserved=False)
            return Step(policy=again, commands=self.undone())
        if "" in states:
            return Step(policy=self, commands=tuple(Submit(task=t) for t in self._tasks() if not view.state(t.id)))
        if states and all(state == "done" for state in states):
            return Step(policy=replace(self, phase="over"), commands=self._freed())
        if "failed" in states or "cancelled" in states:
            bad = self.runs[next(i for i, state in enumerate(states) if state in ("failed", "cancelled"))]
            problem = f"member {bad} has {view.state(bad)}: {view.tasks[bad].problem}".rstrip(": ")
            return Step(policy=replace(self, phase="over", problem=problem), commands=self.undone())
        return Step(policy=self)

    def _broken(self, view: View, states: Sequence[str]) -> bool:
        """Something that it holds was lost with a node."""
        if "lost" in states:
            return True
        if self.reserved:  # an engine that loses a reservation ends its members
            return view.reserved[self.id] is not True or "cancelled" in states
        return not self.lets_ghosts_go and any(view.ended(ghost) for ghost in self._needed(view))

    def _needed(self, view: View) -> tuple[str, ...]:
        """Ghosts whose members are not all done."""
        groups = [self.runs[n * self.each : (n + 1) * self.each] for n in range(len(self.bundles))]
        return tuple(
            ghost
            for ghost, runs in zip(self.ghosts, groups, strict=True)
            if not runs or any(view.state(run) != "done" for run in runs)
        )

    def _again(self, now_s: float) -> Step:
        """Nothing is held, and the next try is later."""
        pause_s = self.pace.pause_s if self.insists else self.pace.pause(self.id, self.tries)
        later = replace(self, phase="idle", tries=self.tries + 1, not_before_s=now_s + pause_s)
        return Step(policy=later, commands=self.undone(), wake_s=later.not_before_s)

    def _freed(self) -> tuple[Command, ...]:
        return (Cancel(tasks=self.ghosts), *self._unreserved())

    # --- names --------------------------------------------------------------------------------------------------------

    def _tasks(self) -> tuple[Task, ...]:
        # no retries: a member alone cannot go on, the gang begins again as a whole
        renamed = (replace(member, id=run, retries=0) for member, run in zip(self.members, self.runs, strict=True))
        adding = demanding if self.lets_ghosts_go else only_demanding
        return tuple(adding(task, self.demands[number // self.each]) for number, task in enumerate(renamed))

    @property
    def _apart(self) -> str:
        return f"{self.id[:56]}.apart"

    def _units(self) -> tuple[str, ...]:
        """Name of each bundle's unit: equal bundles share one."""
        kinds: list[Mapping[str, float]] = []
        for bundle in self.bundles:
            if dict(bundle) not in kinds:
                kinds.append(dict(bundle))
        return tuple(f"{self.id[:56]}.u{kinds.index(dict(bundle))}" for bundle in self.bundles)

    def _units_at(self, nodes: Sequence[NodeId | None]) -> dict[str, dict[NodeId, float]]:
        found: dict[str, dict[NodeId, float]] = {}
        for name, node in zip(self._units(), nodes, strict=True):
            if node is not None:
                at = found.setdefault(name, {})
                at[node] = at.get(node, 0.0) + self.each
        return found


def never_fits(gang: Gang, nodes: Sequence[NodeStatus]) -> str:
    """Why it could not even have an empty cluster, '' it could."""
    empty = {node.id: node.total for node in nodes if node.alive}
    if not empty or places(gang.bundles, empty, spread=gang.spread) is not None:
        return ""
    return f"{len(gang.bundles)} bundles do not fit on the {len(empty)} nodes there are, even if nothing else ran"


def affinity(name: str, owner: str, *tasks: Task) -> Gang:
    """All of them on one node (card: ghost with the sum of their demands). One bundle; each member takes one unit of it."""
    together: dict[str, float] = {}
    for task in tasks:
        for resource, amount in task.demands.items():
            together[resource] = round(together.get(resource, 0.0) + amount, 4)
    return Gang(id=name, owner=owner, bundles=(together,), members=tasks, each=len(tasks), spread=False, ghosts_only=True)


def anti_affinity_gang(name: str, owner: str, apart: str, *tasks: Task) -> Gang:
    """Long tasks on different nodes, without keeping `apart` (capacity 1 per node) from others while they run: their ghosts take it,
    all overlapping, and end when the tasks run on their nodes."""
    bundles = tuple(every(task.demands, {apart: 1.0}) for task in tasks)
    return Gang(id=name, owner=owner, bundles=bundles, members=tasks, spread=False, ghosts_only=True, lets_ghosts_go=True)
