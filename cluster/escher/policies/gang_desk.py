"""One gang at a time tries: LibSpace (card section 5; docs/decisions/0062-escher.md).

Two gangs that both hold half of what they need wait for each other until a deadline, and may do so again. Here only one gang at a time
holds ghosts that are not all running, so whoever holds something is either complete, and ends some day, or alone in trying. A try that
fails goes behind the others, so that a small gang need not wait for a large one; after `patience` tries a gang insists: it keeps what it
has got until it has all, and the others wait. Nothing lives for ever on tries, and none starves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from cluster.escher.policies.base import Command, Step, View
from cluster.escher.policies.gang import Gang


@dataclass(frozen=True, kw_only=True)
class GangDesk:
    """gangs: those that are not over, the next to try first. finished: ids of those that are over, newest last. closed: it ends with
    the last gang."""

    id: str
    owner: str
    gangs: tuple[Gang, ...] = ()
    finished: tuple[str, ...] = ()
    patience: int = 3
    closed: bool = False

    @property
    def over(self) -> bool:
        return self.closed and not self.gangs

    def asked(self, *gangs: Gang) -> GangDesk:
        """With gangs at the end of the line; one that it has already is one."""
        known = {gang.id for gang in self.gangs} | set(self.finished)
        return replace(self, gangs=(*self.gangs, *(gang for gang in gangs if gang.id not in known)))

    def letting_go(self, gang: str) -> GangDesk:
        return replace(self, gangs=tuple(g.letting_go() if g.id == gang else g for g in self.gangs))

    def gang(self, name: str) -> Gang | None:
        return next((gang for gang in self.gangs if gang.id == name), None)

    def watches(self) -> tuple[str, ...]:
        return tuple(task for gang in self.gangs for task in gang.watches())

    def undone(self) -> tuple[Command, ...]:
        return tuple(command for gang in self.gangs for command in gang.undone())

    def step(self, view: View, now_s: float) -> Step:
        commands: list[Command] = []
        wakes: list[float] = []
        after: list[Gang] = []
        behind: list[Gang] = []
        head = self._head(now_s)
        for gang in self.gangs:
            if gang.phase in ("idle", "asking", "trying") and gang.id != head:
                wakes += [gang.not_before_s] if gang.not_before_s > now_s and head is None else []
                after.append(gang)
                continue
            step = gang.step(view, now_s)
            commands += step.commands
            wakes += [step.wake_s] if step.wake_s is not None else []
            moved = step.policy
            assert isinstance(moved, Gang)
            failed = moved.phase == "idle" and moved.tries > gang.tries
            if failed and moved.tries >= self.patience:
                moved = replace(moved, insists=True)
            (behind if failed and not moved.insists else after).append(moved)
        stays = [gang for gang in (*after, *behind) if not gang.over]
        finished = (*self.finished, *(gang.id for gang in (*after, *behind) if gang.over))[-1000:]
        return Step(
            policy=replace(self, gangs=tuple(stays), finished=finished),
            commands=tuple(commands),
            wake_s=min(wakes, default=None),
        )

    def _head(self, now_s: float) -> str | None:
        """The gang whose turn it is: one that is trying, else one that insists, else the first that may try now."""
        trying = [gang.id for gang in self.gangs if gang.phase in ("asking", "trying")]
        insisting = [gang.id for gang in self.gangs if gang.phase == "idle" and gang.insists]
        ready = [gang.id for gang in self.gangs if gang.phase == "idle" and gang.not_before_s <= now_s]
        return next(iter((*trying, *insisting, *ready)), None)
