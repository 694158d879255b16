"""The virtual-time driver: the same engine, an event heap instead of a clock, and a `World` that holds the truth.

A job is so many GPU-seconds; it advances at the speed of its share and answers when it is through, so a run's result does not depend
on how busy this machine is. What a job *does* is the world's business: recorded traces in `simulate`, real training in `evaluate`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from scheduler.commands import (
    CancelJob,
    Command,
    SetShares,
    SetTimer,
    StartGate,
    StartLabelling,
    StartLook,
    StartProbe,
    StartProfiling,
    StartRetraining,
    SwapModel,
)
from scheduler.ekya.estimate import SpeedCurve
from scheduler.engine import TOLD_AT, BoxEngine
from scheduler.events import Event, TimerFired

#: Commands that start a job -> kind of job.
KINDS: dict[type[Command], str] = {
    StartLook: "look", StartLabelling: "label", StartProbe: "probe", StartProfiling: "profile", StartRetraining: "train",
    StartGate: "gate",
}  # fmt: skip
START_COMMANDS = (StartLook, StartLabelling, StartProbe, StartProfiling, StartRetraining, StartGate)
Answer = Callable[[float], Event]


@dataclass(frozen=True, kw_only=True)
class Work:
    """gpu_s: true cost at 100 pct. finish: makes the answer at its virtual time; the real work may happen there, so that a
    cancelled job costs nothing. milestones: (GPU-seconds done, answer) pairs in rising order, e.g. one per epoch.
    wall_s: a job that waits for something else than this device (a transfer, a cloud): it ends after so many seconds, whatever its
    share, and uses no compute; gpu_s and milestones then mean nothing."""

    gpu_s: float
    finish: Answer
    milestones: tuple[tuple[float, Answer], ...] = ()
    wall_s: float | None = None

    @classmethod
    def waiting(cls, wall_s: float, finish: Answer) -> Work:
        """A job that takes `wall_s` seconds and no compute."""
        return cls(gpu_s=0.0, finish=finish, wall_s=wall_s)


def elsewhere(command: Command, work: Work) -> Work:
    """The work as this box sees it: what a cloud does costs no compute here, only the time of the transfers."""
    if isinstance(command, StartRetraining):
        return work if command.remote_s is None else Work.waiting(command.remote_s, work.finish)
    if isinstance(command, (StartLabelling, StartProfiling, StartGate)) and command.remote:
        return Work.waiting(0.0, work.finish)
    return work


@runtime_checkable
class Answering(Protocol):
    """A world that hears what models answer."""

    def answered(self, at_s: float) -> Sequence[Event]:
        """Of each camera since this was last asked, at `TOLD_AT`."""


class World(Protocol):
    def start(self, command: Command, at_s: float) -> Work:
        """The work behind a Start* command."""

    def swap(self, command: SwapModel, at_s: float) -> Event:
        """Carries out a swap; it takes no virtual time."""

    def observe(self, command: Command, at_s: float) -> Sequence[Event]:
        """Told of every command, e.g. to record shares and knobs over time. Returns what the world has to tell meanwhile."""


#: A step is through when no more than this is missing (GPU-seconds, or seconds of a job that waits).
_STEP_TOL = 1e-6


@dataclass(kw_only=True)
class _Job:
    """steps: (at which progress, answer), the last one is the finish; progress in GPU-seconds, or in seconds when `waits`."""

    kind: str
    steps: list[tuple[float, Answer]]
    done: float = 0.0
    speed: float = 0.0  # progress per second
    waits: bool = False

    def left_s(self) -> float:
        """Seconds to the next step; only for a job that moves."""
        return max(0.0, self.steps[0][0] - self.done) / self.speed

    def is_due(self) -> bool:
        return self.speed > 0 and self.steps[0][0] - self.done <= _STEP_TOL


@dataclass
class VirtualDriver:
    """Feeds the engine in virtual time. speed: relative throughput curve of a share (empty: proportional).
    used_gpu_s: compute spent so far by kind of job (`KINDS`), jobs that were cancelled included. keep_log: whether `log` is kept (a few
    hundred kB a window)."""

    engine: BoxEngine
    world: World
    speed: tuple[tuple[float, float], ...] = ()
    now_s: float = 0.0
    keep_log: bool = True
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
        times += [self.now_s + job.left_s() for job in self._jobs.values() if job.speed > 0]
        return min(times) if times else None

    def _advance(self, to_s: float) -> None:
        for job in self._jobs.values():
            progress = (to_s - self.now_s) * job.speed
            job.done += progress
            if not job.waits:
                self.used_gpu_s[job.kind] += progress
        self.now_s = to_s

    def _due(self) -> list[Event]:
        """One thing at a time, jobs first: a job that ends exactly with its window has ended."""
        for name in sorted(self._jobs):
            job = self._jobs[name]
            if job.is_due():
                _, answer = job.steps.pop(0)
                if not job.steps:
                    del self._jobs[name]
                return [answer(self.now_s)]
        if self._pending and self._pending[0][0] <= self.now_s:
            return [heapq.heappop(self._pending)[2]]
        for timer in sorted(self._timers, key=lambda t: (self._timers[t], t)):
            if self._timers[timer] <= self.now_s:
                del self._timers[timer]
                told = self.world.answered(self.now_s) if timer in TOLD_AT and isinstance(self.world, Answering) else ()
                return [*told, TimerFired(at_s=self.now_s, timer=timer)]
        return []

    def _deliver(self, event: Event) -> None:
        commands = self.engine.handle(event)
        if self.keep_log:
            self.log.append((event, commands))
        answers: list[Event] = []
        for command in commands:
            answers += self.world.observe(command, self.now_s)
            answer = self._execute(command)
            answers += [answer] if answer is not None else []
        for answer in answers:
            self._deliver(answer)

    def _execute(self, command: Command) -> Event | None:
        if isinstance(command, SetTimer):
            self._timers[command.timer] = command.at_s
        elif isinstance(command, SetShares):
            self._shares = dict(command.shares_pct)
            for name, job in self._jobs.items():
                if not job.waits:
                    job.speed = self._speed(name)
        elif isinstance(command, START_COMMANDS):
            work = elsewhere(command, self.world.start(command, self.now_s))
            kind = KINDS[type(command)]
            if work.wall_s is not None:
                self._jobs[command.job] = _Job(kind=kind, steps=[(work.wall_s, work.finish)], speed=1.0, waits=True)
            else:
                steps = [*work.milestones, (work.gpu_s, work.finish)]
                self._jobs[command.job] = _Job(kind=kind, steps=steps, speed=self._speed(command.job))
        elif isinstance(command, CancelJob):
            self._jobs.pop(command.job, None)
        elif isinstance(command, SwapModel):
            return self.world.swap(command, self.now_s)
        return None

    def _speed(self, job: str) -> float:
        return self._curve.at(self._shares.get(job, 0.0))
