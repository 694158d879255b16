"""The virtual-time driver: the same engine, an event heap instead of a clock, and a `World` that holds the truth.

A job is so many GPU-seconds; it advances at the speed of its share and answers when it is through, so a run's result does not depend
on how busy this machine is. What a job *does* is the world's business: recorded traces in `simulate`, real training in `evaluate`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from scheduler.commands import (
    CancelJob,
    Command,
    SetShares,
    SetTimer,
    StartGate,
    StartLabelling,
    StartProfiling,
    StartRetraining,
    SwapModel,
)
from scheduler.ekya.estimate import SpeedCurve
from scheduler.engine import BoxEngine
from scheduler.events import Event, TimerFired

#: Commands that start a job -> kind of job.
KINDS: dict[type[Command], str] = {
    StartLabelling: "label", StartProfiling: "profile", StartRetraining: "train", StartGate: "gate"
}  # fmt: skip
START_COMMANDS = (StartLabelling, StartProfiling, StartRetraining, StartGate)
Answer = Callable[[float], Event]


@dataclass(frozen=True, kw_only=True)
class Work:
    """gpu_s: true cost at 100 pct. finish: makes the answer at its virtual time; the real work may happen there, so that a
    cancelled job costs nothing. milestones: (GPU-seconds done, answer) pairs in rising order, e.g. one per epoch."""

    gpu_s: float
    finish: Answer
    milestones: tuple[tuple[float, Answer], ...] = ()


class World(Protocol):
    def start(self, command: Command, at_s: float) -> Work:
        """The work behind a Start* command."""

    def swap(self, command: SwapModel, at_s: float) -> Event:
        """Carries out a swap; it takes no virtual time."""

    def observe(self, command: Command, at_s: float) -> None:
        """Told of every command, e.g. to record shares and knobs over time."""


@dataclass(kw_only=True)
class _Job:
    kind: str
    steps: list[tuple[float, Answer]]  # (GPU-seconds at which, answer), the last one is the finish
    done_gpu_s: float = 0.0
    share_pct: float = 0.0


@dataclass
class VirtualDriver:
    """Feeds the engine in virtual time. speed: relative throughput curve of a share (empty: proportional).
    used_gpu_s: compute spent so far by kind of job (`KINDS`), jobs that were cancelled included."""

    engine: BoxEngine
    world: World
    speed: tuple[tuple[float, float], ...] = ()
    now_s: float = 0.0
    log: list[tuple[Event, list[Command]]] = field(default_factory=list)
    used_gpu_s: dict[str, float] = field(default_factory=lambda: dict.fromkeys(KINDS.values(), 0.0))
    _timers: dict[str, float] = field(default_factory=dict)
    _curve: SpeedCurve = field(init=False)
    _pending: list[tuple[float, int, Event]] = field(default_factory=list)
    _jobs: dict[str, _Job] = field(default_factory=dict)
    _shares: dict[str, float] = field(default_factory=dict)
    _order: int = 0

    def __post_init__(self) -> None:
        self._curve = SpeedCurve(self.speed)

    def run(self, events: Sequence[Event], until_s: float) -> None:
        """Delivers `events` at their own times and everything that follows from them, up to and including `until_s`."""
        for event in events:
            self._push(event)
        while True:
            at_s = self._next_s()
            if at_s is None or at_s > until_s:
                self._advance(until_s)
                return
            self._advance(at_s)
            for event in self._due():
                self._deliver(event)

    def _push(self, event: Event) -> None:
        heapq.heappush(self._pending, (event.at_s, self._order, event))
        self._order += 1

    def _next_s(self) -> float | None:
        times = [self._pending[0][0]] if self._pending else []
        times += self._timers.values()
        times += [self.now_s + self._left_s(job) for job in self._jobs.values() if job.share_pct > 0]
        return min(times) if times else None

    def _left_s(self, job: _Job) -> float:
        return max(0.0, job.steps[0][0] - job.done_gpu_s) / self._curve.at(job.share_pct)

    def _advance(self, to_s: float) -> None:
        for job in self._jobs.values():
            if job.share_pct > 0:
                done_gpu_s = (to_s - self.now_s) * self._curve.at(job.share_pct)
                job.done_gpu_s += done_gpu_s
                self.used_gpu_s[job.kind] += done_gpu_s
        self.now_s = to_s

    def _due(self) -> list[Event]:
        """One thing at a time, jobs first: a job that ends exactly with its window has ended."""
        for name in sorted(self._jobs):
            job = self._jobs[name]
            if job.share_pct > 0 and job.steps[0][0] - job.done_gpu_s <= 1e-6:
                _, answer = job.steps.pop(0)
                if not job.steps:
                    del self._jobs[name]
                return [answer(self.now_s)]
        if self._pending and self._pending[0][0] <= self.now_s:
            return [heapq.heappop(self._pending)[2]]
        for timer in sorted(self._timers, key=lambda t: (self._timers[t], t)):
            if self._timers[timer] <= self.now_s:
                del self._timers[timer]
                return [TimerFired(at_s=self.now_s, timer=timer)]
        return []

    def _deliver(self, event: Event) -> None:
        commands = self.engine.handle(event)
        self.log.append((event, commands))
        answers = [answer for command in commands if (answer := self._execute(command)) is not None]
        for answer in answers:
            self._deliver(answer)

    def _execute(self, command: Command) -> Event | None:
        self.world.observe(command, self.now_s)
        if isinstance(command, SetTimer):
            self._timers[command.timer] = command.at_s
        elif isinstance(command, SetShares):
            shares = dict(command.shares_pct)
            for name, job in self._jobs.items():
                job.share_pct = shares.get(name, 0.0)
            self._shares = shares
        elif isinstance(command, START_COMMANDS):
            work = self.world.start(command, self.now_s)
            steps = [*work.milestones, (work.gpu_s, work.finish)]
            share_pct = self._shares.get(command.job, 0.0)
            self._jobs[command.job] = _Job(kind=KINDS[type(command)], steps=steps, share_pct=share_pct)
        elif isinstance(command, CancelJob):
            self._jobs.pop(command.job, None)
        elif isinstance(command, SwapModel):
            return self.world.swap(command, self.now_s)
        return None
