"""Soft constraints: preferences in order, each waited for a while; the hard part alone at the end (card section 5; worked example 9).

An attempt is a task with the demands of one preference and the hard ones. When its first act (heartbeat) has not come in time, it is
cancelled. It may start at that very moment. [The prototype submits the next attempt at once and lets a state holder turn away whoever
starts second.] We submit the next one when the engine says that the last has ended: one that has slipped through and *done* its work has
won; one that was ended in the middle is done again by the next. What an engine lets start late, after it said that it had ended,
`cluster.escher.starts` turns away.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from cluster.engines.base import Demands, Task
from cluster.escher.policies.base import Cancel, Command, Step, Submit, View


@dataclass(frozen=True, kw_only=True)
class Soft:
    """task: with its hard demands; preferences: best first; wait_s: for each. attempt: number of the present one, -1 not begun; the one
    after the last preference has hard demands alone; giving_up: it is being cancelled. winner: attempt that runs."""

    id: str
    owner: str
    task: Task
    preferences: tuple[Demands, ...]
    wait_s: float = 5.0
    attempt: int = -1
    since_s: float = 0.0
    giving_up: bool = False
    winner: int | None = None
    ended: bool = False

    @property
    def over(self) -> bool:
        return self.ended

    @property
    def chosen(self) -> dict[str, float] | None:
        """Demands with which it runs."""
        return None if self.winner is None else self.demands(self.winner)

    def demands(self, attempt: int) -> dict[str, float]:
        """On a clash of names the hard demand wins."""
        wished = self.preferences[attempt] if attempt < len(self.preferences) else {}
        return {**wished, **self.task.demands}

    def attempt_id(self, attempt: int) -> str:
        return f"{self.task.id}~a{attempt}"

    def watches(self) -> tuple[str, ...]:
        return tuple(self.attempt_id(n) for n in range(self.attempt + 1))

    def undone(self) -> tuple[Command, ...]:
        return (Cancel(tasks=self.watches()),)

    def step(self, view: View, now_s: float) -> Step:
        if self.winner is not None:
            return self._won(view)
        if self.attempt < 0:
            return self._trying(0, now_s)
        present = self.attempt_id(self.attempt)
        state = view.state(present)
        if state in ("done", "failed") or (state == "running" and not self.giving_up):
            return Step(policy=replace(self, winner=self.attempt, giving_up=False))
        if state in ("cancelled", "lost"):
            return (
                self._trying(min(self.attempt + 1, len(self.preferences)), now_s) if self.giving_up else self._ended_by_others()
            )
        until_s = self.since_s + self.wait_s
        if not state:
            return Step(policy=self, commands=(self._submit(self.attempt),), wake_s=until_s)
        if self.giving_up or self.attempt == len(self.preferences):
            return Step(policy=self)  # hard demands alone: nothing is left to give up
        if now_s < until_s:
            return Step(policy=self, wake_s=until_s)
        return Step(policy=replace(self, giving_up=True), commands=(Cancel(tasks=(present,)),))

    def _ended_by_others(self) -> Step:
        return Step(policy=replace(self, ended=True))

    def _won(self, view: View) -> Step:
        assert self.winner is not None
        if view.ended(self.attempt_id(self.winner)):
            return Step(policy=replace(self, ended=True))
        return Step(policy=self)

    def _trying(self, attempt: int, now_s: float) -> Step:
        after = replace(self, attempt=attempt, since_s=now_s, giving_up=False)
        return Step(policy=after, commands=(after._submit(attempt),), wake_s=now_s + self.wait_s)

    def _submit(self, attempt: int) -> Submit:
        return Submit(task=replace(self.task, id=self.attempt_id(attempt), demands=self.demands(attempt)))
