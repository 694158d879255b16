"""Runs the trials of a group at once on the lanes a job is given, as many as pay: Fluid's packing on one device (papers/fluid.md, 3).

A piece of work is a generator of iterations; a lane runs them one after the other in a thread of its own; c lanes run c pieces at once.
How many, is measured on the real work while it goes on, and nothing is done twice:

    a few iterations of a first trial alone, of a second alone, of both at once, then of three, ... each after some that do not count
    O^p = 1 - ((p - 1) / p) * avg(T^p) / avg(T^(p-1))           eq. 3.1, over the same trials doing the same kind of iteration
    c = the last p before the first whose O^p is not above O_th       (`scheduler.fluid.packing`)

With c = 1 the trials run one by one. T is the time from wanting an iteration to its end, so that it counts what a lane's share makes of
it: two lanes that divide a share that one could have used alone bring nothing, and that is what is measured.

What we changed: the text profiles on resources set apart for it; here the first iterations are the profile. Results do not depend on any
of this, because each piece has its own seeds, its own model and its own order.

Threads, not processes: torch leaves Python's lock inside its operations; models whose operations are tiny gain little, and then c says
so. On a GPU a lane's `iteration` brings its stream along.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from scheduler.fluid.packing import GAIN_MIN, alpha_of, packing_gains, share_max

#: Iterations of a lane that do not count after the number of trials at once has changed, and those that do.
WARM, COUNTED = 2, 5
#: Iterations without an answer after which measuring is given up (pieces that end too soon, say).
MEASURED_MOST = 200


class Gate(Protocol):
    """A lane (`edge.gpu.base.Lane`)."""

    def iteration(self) -> AbstractContextManager[None]: ...

    def checkpoint(self) -> None: ...


class Piece(Protocol):
    """A stretch of one trial's iterations. trial: whose; doing: the kind of the iteration that was done last."""

    trial: str
    doing: str

    def step(self) -> bool:
        """Does one iteration; False when that was the last, or when there was none left."""


class Work(Protocol):
    """What is to be done. Its methods are called under one lock, its pieces' steps are not."""

    def take(self) -> Piece | None:
        """The next piece to begin; None: nothing can begin now."""

    def ended(self, piece: Piece) -> None: ...

    @property
    def done(self) -> bool:
        """Nothing runs, and nothing will begin any more."""


@dataclass(frozen=True, kw_only=True)
class PackReport:
    """share_max: c, trials at once; iteration_s: avg(T^1), avg(T^2), ... as far as measured; gains: O^2, ...; iterations: done in all;
    wall_s: seconds from start to end."""

    share_max: int
    iteration_s: tuple[float, ...]
    gains: tuple[float, ...]
    alpha: float
    iterations: int
    wall_s: float


def run_packed(
    work: Work,
    gates: Sequence[Gate],
    *,
    cap: int | None = None,
    gain_min: float = GAIN_MIN,
    share: int | None = None,
    clock: Callable[[], float] = time.monotonic,
    on_thread: Callable[[Gate], None] | None = None,
    on_turn: Callable[[Sequence[int]], None] | None = None,
) -> PackReport:
    """Does all of `work`. The calling thread runs the first lane, so that one lane is no more than the plain loop.

    cap: most trials at once by memory (`scheduler.fluid.packing.memory_cap`); share: take this many at once and measure nothing;
    on_thread: called first in each thread, with its lane; on_turn: hears which lanes run from now on, so that a share can be divided
    among them (else a lane that is measured alone would have a part of it only). Raises what a piece or a lane raises (the first of
    it), when all threads have stopped. ValueError without a lane."""
    if not gates:
        raise ValueError("trials need at least one lane")
    most = min(len(gates), cap or len(gates), share or len(gates))
    return _Run(work, gates[:most], gain_min, share, clock, on_thread, on_turn).run()


class CurrentGate:
    """A yield point for models that several lanes run: the checkpoint of whichever lane the calling thread is in."""

    def __init__(self) -> None:
        self._local = threading.local()

    def enter(self, gate: Gate) -> None:
        self._local.gate = gate

    def __call__(self) -> None:
        gate = getattr(self._local, "gate", None)
        if gate is not None:
            gate.checkpoint()


Key = tuple[str, str]


@dataclass
class _Measuring:
    """Which lanes run now, and how long iterations take. turns: sets of lanes that are still to be measured, the present one first;
    times: trials at once -> kind of iteration -> seconds; chosen: c, when measuring is over."""

    turns: list[tuple[int, ...]]
    gain_min: float
    times: dict[int, dict[Key, list[float]]] = field(default_factory=dict)
    warm: dict[int, int] = field(default_factory=dict)
    of_turn: dict[int, list[Key]] = field(default_factory=dict)
    seen: int = 0
    chosen: int | None = None

    @property
    def turn(self) -> tuple[int, ...]:
        return self.turns[0]

    def record(self, lane: int, key: Key, seconds: float) -> None:
        self.seen += 1
        self.warm[lane] = self.warm.get(lane, 0) + 1
        if self.warm[lane] > WARM:
            self.times.setdefault(len(self.turn), {}).setdefault(key, []).append(seconds)
            self.of_turn.setdefault(lane, []).append(key)
        if self.seen >= MEASURED_MOST:
            self.conclude()
        elif all(self._enough(n) for n in self.turn):
            self._next_turn()

    def _enough(self, lane: int) -> bool:
        """Iterations of a kind that was also measured with one trial less (alone: any)."""
        before = self.times.get(len(self.turn) - 1) if len(self.turn) > 1 else None
        comparable = [key for key in self.of_turn.get(lane, []) if before is None or key in before or lane == self.turn[-1] > 1]
        return len(comparable) >= COUNTED

    def _next_turn(self) -> None:
        level = len(self.turn)
        self.turns.pop(0)
        self.warm, self.of_turn = {}, {}
        if not self.turns or (level > 1 and share_max(self.levels(), gain_min=self.gain_min) < level):
            self.conclude()

    def conclude(self) -> None:
        self.turns = []
        self.chosen = share_max(self.levels(), gain_min=self.gain_min)

    def levels(self) -> list[float]:
        """avg(T^1), avg(T^2), ...: chained over what two neighbouring levels have in common, so that a ratio compares like with like."""
        if 1 not in self.times:
            return [1.0]
        found = [_mean_of(self.times[1], self.times[1])]
        for level in range(2, max(self.times) + 1):
            less, more = self.times.get(level - 1, {}), self.times.get(level, {})
            common = less.keys() & more.keys()
            if not common:
                break
            found.append(found[-1] * _mean_of(more, common) / _mean_of(less, common))
        return found


def _mean_of(times: dict[Key, list[float]], keys: Sequence[Key] | set[Key] | dict[Key, list[float]]) -> float:
    """Over kinds; the median of each, because another process may take the core for a while."""
    return max(1e-9, statistics.mean(statistics.median(times[key]) for key in sorted(keys)))


class _Run:
    """One call of `run_packed`. Everything below is read and changed under `_changed`, but the steps themselves."""

    def __init__(
        self, work: Work, gates: Sequence[Gate], gain_min: float, share: int | None, clock: Callable[[], float],
        on_thread: Callable[[Gate], None] | None, on_turn: Callable[[Sequence[int]], None] | None,
    ) -> None:  # fmt: skip
        self._work, self._gates, self._clock = work, gates, clock
        self._on_thread, self._on_turn = on_thread, on_turn
        n = len(gates)
        turns = [(0,), (1,), *(tuple(range(p)) for p in range(2, n + 1))] if n > 1 and not share else []
        self._measuring = _Measuring(turns=turns, gain_min=gain_min)
        self._active = n if share else 1
        self._changed = threading.Condition()
        self._open: list[Piece] = []  # begun, and left by a lane that stopped
        self._busy: set[int] = set()
        self._mix = 0  # changes whenever the lanes that run change
        self._iterations = 0
        self._told: tuple[int, ...] = ()
        self._error: BaseException | None = None

    def run(self) -> PackReport:
        started_s = self._clock()
        self._tell_turn()
        threads = [threading.Thread(target=self._lane, args=(lane,), daemon=True) for lane in range(1, len(self._gates))]
        for thread in threads:
            thread.start()
        try:
            self._lane(0)
        finally:
            with self._changed:
                self._changed.notify_all()
            for thread in threads:
                thread.join()
        if self._error is not None:
            raise self._error
        levels = self._measuring.levels()
        return PackReport(
            share_max=self._active,
            iteration_s=tuple(levels),
            gains=packing_gains(levels),
            alpha=alpha_of(levels[: max(2, self._active)]),
            iterations=self._iterations,
            wall_s=self._clock() - started_s,
        )

    def _tell_turn(self) -> None:
        """Lanes that are to stop keep their part until they have: one that waited for a share it has lost would never get there."""
        wanted = self._measuring.turn if self._measuring.turns else tuple(range(self._active))
        running = tuple(sorted({*wanted, *self._busy}))
        if self._on_turn is not None and running != self._told:
            self._told = running
            self._on_turn(running)

    def _lane(self, lane: int) -> None:
        try:
            if self._on_thread is not None:
                self._on_thread(self._gates[lane])
            while (piece := self._next(lane)) is not None:
                self._run_piece(lane, piece)
        except BaseException as error:  # raised by `run`, in the thread that called it
            with self._changed:
                self._error = self._error or error
                self._changed.notify_all()
        finally:
            with self._changed:
                self._leave(lane)

    # --- which lane runs what -----------------------------------------------------------------------------------------

    def _next(self, lane: int) -> Piece | None:
        """Waits for something to do; None: there will be nothing more for this lane."""
        with self._changed:
            while True:
                if self._over() or self._retired(lane):
                    return None
                if self._may_run(lane):
                    piece = self._open.pop(0) if self._open and not self._measuring.turns else self._work.take()
                    if piece is not None:
                        self._enter(lane)
                        return piece
                    self._stuck(lane)
                    if self._over():
                        return None
                self._changed.wait()

    def _over(self) -> bool:
        return self._error is not None or (not self._open and self._work.done)

    def _retired(self, lane: int) -> bool:
        return not self._measuring.turns and lane >= self._active

    def _may_run(self, lane: int) -> bool:
        return lane in self._measuring.turn if self._measuring.turns else lane < self._active

    def _stuck(self, lane: int) -> None:
        """A lane that is measured alone and finds nothing would wait for those that wait for it."""
        if self._measuring.turns and not self._busy & set(self._measuring.turn):
            self._measuring.conclude()
            self._settle()

    def _enter(self, lane: int) -> None:
        self._busy.add(lane)
        self._mix += 1
        self._changed.notify_all()

    def _leave(self, lane: int) -> None:
        if lane in self._busy:
            self._busy.discard(lane)
            self._mix += 1
            self._tell_turn()
        self._changed.notify_all()

    def _settle(self) -> None:
        """Another turn, or measuring is over."""
        if not self._measuring.turns and self._measuring.chosen is not None:
            self._active = self._measuring.chosen
        self._tell_turn()
        self._mix += 1
        self._changed.notify_all()

    # --- iterations ---------------------------------------------------------------------------------------------------

    def _run_piece(self, lane: int, piece: Piece) -> None:
        while self._goes_on(lane, piece):
            mix, started_s = self._mix, self._clock()
            with self._gates[lane].iteration():
                more = piece.step()
            seconds = self._clock() - started_s
            with self._changed:
                self._iterations += 1
                self._record(lane, piece, mix, seconds)
                if not more:
                    self._work.ended(piece)
                    self._leave(lane)
                    return

    def _goes_on(self, lane: int, piece: Piece) -> bool:
        """Waits while others are measured. False: this lane stops; its piece is left to others."""
        with self._changed:
            while self._error is None and not self._retired(lane) and not self._may_run(lane):
                self._leave(lane)
                self._changed.wait()
            if self._error is not None or self._retired(lane):
                self._open.append(piece)
                self._leave(lane)
                return False
            if lane not in self._busy:
                self._enter(lane)
            return True

    def _record(self, lane: int, piece: Piece, mix: int, seconds: float) -> None:
        """Only iterations during which exactly the lanes of this turn were running all the time."""
        measuring = self._measuring
        if not measuring.turns or mix != self._mix or self._busy != set(measuring.turn):
            return
        turn = measuring.turn
        measuring.record(lane, (piece.trial, piece.doing), seconds)
        if not measuring.turns or measuring.turn != turn:
            self._settle()
