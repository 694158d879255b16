"""What becomes of a group: who starts when, at which width, and when all are done. For predictions, `decide fluid` and tests.

An event is the end of a trial, its killing by the tuner, or a change of the number of GPUs. StaticFluid seats the group by falling
width; whenever GPUs become free the longest waiting trial starts first; when nobody waits, DynamicFluid is asked. A trial that changes
stands still for epsilon_s. Baselines: FIFO (one GPU each, in the order given) and one by one.

`sharing` says how fast a packed trial is: "nominal" (the paper's examples: always that of 1/c, shelf by shelf) or "actual" (ours, and
what happens: that of 1/p with p trials really on its GPU, the emptiest GPU first).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Literal

from configs.errors import UsageError
from scheduler.fluid.layout import Layout
from scheduler.fluid.types import Pool, Trial, Width, check_ids, longest_first, speed
from scheduler.fluid.widths import after_loss, dynamic_widths, static_widths

Sharing = Literal["nominal", "actual"]

#: Parts of a second that count as nothing: what remains of a trial whose end is due.
_INSTANT = 1e-9


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """From at_s on a trial runs at `width` on `gpus`; no GPUs: it waits."""

    at_s: float
    width: Width
    gpus: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Course:
    """What became of a group. start_s, end_s: by trial; a killed one has the time of its killing as its end, one that never started no
    entry. stages: by trial, its widths over time. makespan_s: when the last trial left; busy_gpu_s: GPUs in use, summed over time.
    unfinished: trials that no GPU was left for."""

    start_s: dict[str, float]
    end_s: dict[str, float]
    stages: dict[str, tuple[Stage, ...]]
    makespan_s: float
    busy_gpu_s: float
    killed: tuple[str, ...] = ()
    unfinished: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Rules:
    """dynamic: DynamicFluid is asked when nobody waits. epsilon_s: what a change of width costs a trial. sharing: see the module."""

    dynamic: bool = True
    epsilon_s: float = 0.0
    sharing: Sharing = "actual"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.epsilon_s) and self.epsilon_s >= 0):
            raise UsageError(f"epsilon_s must be a number of seconds, 0 or more, got {self.epsilon_s}", subject="fluid")


#: Both algorithms, without a cost of changes.
OURS = Rules()
#: StaticFluid alone, as the card's examples count.
AS_PRINTED = Rules(dynamic=False, sharing="nominal")


def fluid(
    trials: Sequence[Trial],
    pool: Pool,
    rules: Rules = OURS,
    *,
    widths: Mapping[str, Width] | None = None,
    gpus_at: Sequence[tuple[float, int]] = (),
    kills: Mapping[str, float] | None = None,
) -> Course:
    """The course of one group. widths: instead of StaticFluid's; gpus_at: (seconds, GPUs usable from then on); kills: trial -> seconds.
    Raises UsageError for two trials with one id, or times that are not."""
    check_ids(trials)
    start = dict(widths) if widths is not None else static_widths(trials, pool)
    order = sorted(longest_first(trials), key=lambda t: -start[t.id])
    return _Simulation(pool, rules, gpus_at, kills or {}).run(order, start)


def fifo(trials: Sequence[Trial], gpus: int) -> Course:
    """One trial per GPU in the order given, first free GPU: what a tuner does today."""
    check_ids(trials)
    pool = Pool(gpus=gpus)
    return _Simulation(pool, AS_PRINTED, (), {}).run(list(trials), {t.id: Fraction(1) for t in trials})


def one_by_one(trials: Sequence[Trial]) -> Course:
    """One trial at a time on one GPU."""
    return fifo(trials, 1)


@dataclass
class _Active:
    """A trial in progress. left_s: on one GPU; still_s: for how long it stands still after a change."""

    trial: Trial
    left_s: float
    still_s: float = 0.0

    @property
    def now(self) -> Trial:
        return replace(self.trial, h_s=self.left_s)


@dataclass
class _Simulation:
    pool: Pool
    rules: Rules
    gpus_at: Sequence[tuple[float, int]]
    kills: Mapping[str, float]
    at_s: float = 0.0
    busy_gpu_s: float = 0.0
    start_s: dict[str, float] = field(default_factory=dict)
    end_s: dict[str, float] = field(default_factory=dict)
    stages: dict[str, list[Stage]] = field(default_factory=dict)
    killed: list[str] = field(default_factory=list)

    def run(self, order: Sequence[Trial], widths: dict[str, Width]) -> Course:
        for at_s in (*self.kills.values(), *(at_s for at_s, _ in self.gpus_at)):
            if not (math.isfinite(at_s) and at_s >= 0):
                raise UsageError(f"an event needs a time of 0 or more seconds, got {at_s}", subject="fluid")
        self.layout = Layout(range(self.pool.gpus), self.pool.share_max)
        self.waiting, self.widths = [t.id for t in order], dict(widths)
        self.all = {t.id: _Active(trial=t, left_s=t.h_s) for t in order}
        self.running: dict[str, _Active] = {}
        changes: list[tuple[float, int | str]] = [*self.gpus_at, *((at_s, id) for id, at_s in self.kills.items())]
        events = sorted(changes, key=lambda event: event[0])
        self._start_waiting()
        while self.running or (self.waiting and events):
            # Nothing happens when somebody is killed who is through, so nothing is divided anew either.
            events = [event for event in events if event[1] not in self.end_s]
            due_s = events[0][0] if events else math.inf
            self._advance(min(self._next_end_s(), due_s))
            self._end_finished()
            while events and events[0][0] <= self.at_s:
                self._happen(events.pop(0)[1])
            self._start_waiting()
            if self.rules.dynamic and not self.waiting:
                self._reallocate()
        return self._course()

    def _speed(self, id: str) -> float:
        width = self.layout.felt_width(id) if self.rules.sharing == "actual" else self.layout.widths[id]
        return speed(self.running[id].trial, width)

    def _next_end_s(self) -> float:
        ends = (self.at_s + a.still_s + a.left_s / self._speed(id) for id, a in self.running.items())
        return min(ends, default=math.inf)

    def _advance(self, to_s: float) -> None:
        dt_s = to_s - self.at_s
        for id, active in self.running.items():
            moving_s = max(0.0, dt_s - active.still_s)
            active.still_s = max(0.0, active.still_s - dt_s)
            active.left_s = max(0.0, active.left_s - moving_s * self._speed(id))
        self.busy_gpu_s += dt_s * (len(self.layout.gpus) - len(self.layout.idle()))
        self.at_s = to_s

    def _end_finished(self) -> None:
        instant_s = _INSTANT * max(1.0, self.at_s)
        for id in [id for id, a in self.running.items() if a.still_s + a.left_s / self._speed(id) <= instant_s]:
            self._leave(id)

    def _leave(self, id: str) -> None:
        del self.running[id]
        self.layout.leave(id)
        self.end_s[id] = self.at_s

    def _happen(self, what: int | str) -> None:
        if isinstance(what, str):
            self._kill(what)
        else:
            self._set_gpus(what)

    def _kill(self, id: str) -> None:
        if id in self.running:
            self._leave(id)
        elif id in self.waiting:
            self.waiting.remove(id)
            self.end_s[id] = self.at_s
        else:
            return
        self.killed.append(id)

    def _set_gpus(self, gpus: int) -> None:
        self.pool = replace(self.pool, gpus=gpus)
        if gpus >= len(self.layout.gpus):
            self.layout.add_gpus(gpus - len(self.layout.gpus))
            return
        loss = after_loss([a.now for a in self.running.values()], self.layout, self.pool)
        self.layout = loss.layout
        for id in loss.moved:
            self._changed(id)
        for id in loss.waiting:
            self.running.pop(id)
            self.widths[id] = self.pool.least
            self.stages[id].append(Stage(at_s=self.at_s, width=Fraction(0), gpus=()))
        self.waiting = [*loss.waiting, *self.waiting]

    def _start_waiting(self) -> None:
        for id in list(self.waiting):
            active = self.all[id]
            if not self.layout.seat(id, self.widths[id], spread=self.rules.sharing == "actual"):
                continue
            self.waiting.remove(id)
            self.running[id] = active
            if id in self.start_s:  # it had to give up its place before
                active.still_s = self.rules.epsilon_s
            self.start_s.setdefault(id, self.at_s)
            self._note(id)

    def _reallocate(self) -> None:
        rules, now = self.rules, [a.now for a in self.running.values()]
        found = dynamic_widths(now, self.layout, self.pool, epsilon_s=rules.epsilon_s, actual=rules.sharing == "actual")
        self.layout = found.layout
        for verdict in found.verdicts.values():
            if verdict.changes:
                self._changed(verdict.trial)

    def _changed(self, id: str) -> None:
        self.running[id].still_s = self.rules.epsilon_s
        self._note(id)

    def _note(self, id: str) -> None:
        stage = Stage(at_s=self.at_s, width=self.layout.widths[id], gpus=self.layout.seats[id])
        self.stages.setdefault(id, []).append(stage)

    def _course(self) -> Course:
        return Course(
            start_s=self.start_s,
            end_s=self.end_s,
            stages={id: tuple(stages) for id, stages in self.stages.items()},
            makespan_s=max(self.end_s.values(), default=0.0),
            busy_gpu_s=self.busy_gpu_s,
            killed=tuple(self.killed),
            unfinished=tuple(self.waiting),
        )
