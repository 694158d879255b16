"""Reservation over time: capacity that follows a skyline c(t) (card section 5).

One ghost per unit holds `bundle`; c(t) of them are out. Units of the policy's resource exist where ghosts run, as many as run there;
members demand {id: 1} and nothing physical. At each change ghosts are added or taken away; what a member holds is not taken from it
(a shrink is clamped until it ends).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from cluster.engines.base import Demands, NodeId, Task
from cluster.escher.policies.base import ALWAYS, Cancel, Command, Drop, Step, Submit, View, Want
from cluster.escher.wishes import Wish


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """changes: (from when, units), in order of time; it is over when the last one is 0 and has come. out: ghosts that are out (a number
    is never used twice). made: node -> units, as last wished."""

    id: str
    owner: str
    bundle: Demands
    changes: tuple[tuple[float, int], ...]
    out: tuple[int, ...] = ()
    next_ghost: int = 0
    made: Mapping[NodeId, float] = field(default_factory=dict)
    over: bool = False

    def __post_init__(self) -> None:
        times = [at_s for at_s, _ in self.changes]
        if times != sorted(set(times)) or any(units < 0 for _, units in self.changes):
            raise ValueError("a skyline's times must rise and its units be 0 or more")

    def units_at(self, now_s: float) -> int:
        """c(t)."""
        return next((units for at_s, units in reversed(self.changes) if at_s <= now_s), 0)

    def watches(self) -> tuple[str, ...]:
        return tuple(self._ghost(number) for number in self.out)

    def undone(self) -> tuple[Command, ...]:
        return (Cancel(tasks=self.watches()), Drop(name=self.id))

    def step(self, view: View, now_s: float) -> Step:
        commands: list[Command] = []
        wanted = self.units_at(now_s)
        # those that do not hold anything yet go first, then the youngest
        order = sorted(self.out, key=lambda n: (not view.running(self._ghost(n)), n))
        kept, gone = order[:wanted], order[wanted:]
        kept.sort()
        new = list(range(self.next_ghost, self.next_ghost + max(0, wanted - len(kept))))
        missing = [n for n in kept if not view.state(self._ghost(n))]
        made: dict[NodeId, float] = {}
        for number in kept:
            node = view.node(self._ghost(number))
            if view.running(self._ghost(number)) and node is not None:
                made[node] = made.get(node, 0.0) + 1.0
        if made != self.made:  # before ghosts go: no unit without a ghost behind it
            commands.append(Want(wish=Wish(name=self.id, owner=self.owner, per_node=made)))
        if gone:
            commands.append(Cancel(tasks=tuple(self._ghost(n) for n in gone)))
        commands += [Submit(task=Task(id=self._ghost(n), demands=self.bundle, retries=ALWAYS)) for n in (*missing, *new)]
        later = [at_s for at_s, _ in self.changes if at_s > now_s]
        ends = not later and wanted == 0
        if ends:
            commands.append(Drop(name=self.id))
        after = replace(self, out=(*kept, *new), next_ghost=self.next_ghost + len(new), made={} if ends else made, over=ends)
        return Step(policy=after, commands=tuple(commands), wake_s=min(later, default=None))

    def _ghost(self, number: int) -> str:
        return f"{self.id}~g{number}"
