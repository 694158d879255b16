"""Runs the trials of a group at once on the lanes a job is given, as many as pay: Fluid's packing on one device (papers/fluid.md, 3).

A piece of work is a generator of iterations; a lane runs them one after the other in a thread of its own; c lanes run c pieces at once.
How many is found out on the real work while it goes on, nothing is done twice, and what was found is looked at again
(`scheduler.fluid.observe`): this module says which lanes run, and times iterations. With c = 1 the trials run one by one. The time of an
iteration is from wanting it to its end, so that it counts what a lane's share makes of it: two lanes that divide a share that one could
have used alone bring nothing, and that is what is measured. Results do not depend on any of this, because each piece has its own seeds,
its own model and its own order.

A piece may be wider than one device (`Piece.width`, Fluid's widths above one): it has one lane and as many seats as it is wide. While
it runs, others find fewer seats, and nothing is compared.

Threads, not processes: torch leaves Python's lock inside its operations; models whose operations are tiny gain little, and then c says
so. On a GPU a lane's `iteration` brings its stream along.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from scheduler.fluid.observe import Packing, Verdict
from scheduler.fluid.packing import GAIN_MIN, alpha_of, packing_gains
from scheduler.types import RetrainConfig


class Gate(Protocol):
    """A lane (`edge.gpu.base.Lane`)."""

    def iteration(self) -> AbstractContextManager[None]: ...

    def checkpoint(self) -> None: ...


class Piece(Protocol):
    """A stretch of one trial's iterations. trial: whose; shape: trials of one shape take as long for an iteration of one kind
    (`shape_of`); doing: the kind of the iteration that was done last; width: devices that it takes, from its beginning to its end."""

    trial: str
    shape: str
    doing: str
    width: int

    def step(self) -> bool:
        """Does one iteration; False when that was the last, or when there was none left."""


class Work(Protocol):
    """What is to be done. Its methods are called under one lock, its pieces' steps are not."""

    def take(self, room: int = 1, alone: bool = False) -> Piece | None:
        """The next piece to begin, at most `room` wide; None: nothing can begin now. alone: nothing else will run beside it."""

    def ended(self, piece: Piece) -> None: ...

    @property
    def done(self) -> bool:
        """Nothing runs, and nothing will begin any more."""


@dataclass(frozen=True, kw_only=True)
class PackReport:
    """share_max: c, trials at once, as it was in the end; iteration_s: avg(T^1), avg(T^2), ... as far as measured; gains: O^2, ...;
    verdicts: of each look, in order; iterations: done in all; wall_s: seconds from start to end."""

    share_max: int
    iteration_s: tuple[float, ...]
    gains: tuple[float, ...]
    alpha: float
    iterations: int
    wall_s: float
    verdicts: tuple[Verdict, ...] = ()


def run_packed(
    work: Work,
    gates: Sequence[Gate],
    *,
    cap: int | None = None,
    gain_min: float = GAIN_MIN,
    share: int | None = None,
    seats: int | None = None,
    clock: Callable[[], float] = time.monotonic,
    on_thread: Callable[[Gate], None] | None = None,
    on_turn: Callable[[Sequence[int]], None] | None = None,
) -> PackReport:
    """Does all of `work`. The calling thread runs the first lane, so that one lane is no more than the plain loop.

    cap: most trials at once by memory (`scheduler.fluid.packing.memory_cap`); share: take this many at once and measure nothing;
    seats: devices there are, for pieces that are wider than one (default: as many as lanes); on_thread: called first in each thread,
    with its lane; on_turn: hears which lanes run from now on, a wide one as often as it is wide, so that a share can be divided among
    them (else a lane that is measured alone would have a part of it only). Raises what a piece or a lane raises (the first of it), when
    all threads have stopped. ValueError without a lane."""
    if not gates:
        raise ValueError("trials need at least one lane")
    most = min(len(gates), cap or len(gates), share or len(gates))
    return _Run(work, gates[:most], gain_min, share, max(most, seats or 0), clock, on_thread, on_turn).run()


def shape_of(config: RetrainConfig, *more: str) -> str:
    """What says how long an iteration takes, of trainings of one model, picture by picture: how much of it trains, how often weights are
    updated, and who teaches. (Card, section 11: knobs that change the work of an iteration break the assumption that a group's trials
    are alike.)"""
    return "/".join([f"{config.layers_frac:g}", f"{config.batch}", f"{config.head_neurons}", f"{config.distill > 0}", *more])


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


class _Run:
    """One call of `run_packed`. Everything below is read and changed under `_changed`, but the steps themselves."""

    def __init__(
        self, work: Work, gates: Sequence[Gate], gain_min: float, share: int | None, seats: int, clock: Callable[[], float],
        on_thread: Callable[[Gate], None] | None, on_turn: Callable[[Sequence[int]], None] | None,
    ) -> None:  # fmt: skip
        self._work, self._gates, self._clock = work, gates, clock
        self._on_thread, self._on_turn = on_thread, on_turn
        n = len(gates)
        self._seats = seats
        self._packing = Packing(1 if share else n, gain_min=gain_min)
        self._fixed = n if share else None
        self._changed = threading.Condition()
        self._open: list[Piece] = []  # begun, and left by a lane that stopped
        self._busy: dict[int, int] = {}  # lane -> devices that its piece takes
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
        levels = self._packing.levels()
        return PackReport(
            share_max=self._active,
            iteration_s=tuple(levels),
            gains=packing_gains(levels),
            alpha=alpha_of(levels[: max(2, self._active)]),
            iterations=self._iterations,
            wall_s=self._clock() - started_s,
            verdicts=tuple(self._packing.verdicts),
        )

    @property
    def _active(self) -> int:
        return self._fixed or self._packing.chosen

    def _tell_turn(self) -> None:
        """Lanes that are to stop keep their part until they have: one that waited for a share it has lost would never get there."""
        wanted = self._packing.turn or tuple(range(self._active))
        if any(width > 1 for width in self._busy.values()):  # the others have no device to wait for a share with
            wanted = ()
        running = tuple(lane for lane in sorted({*wanted, *self._busy}) for _ in range(self._busy.get(lane, 1)))
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
        """Waits for something to do; None: there will be nothing more."""
        with self._changed:
            while True:
                if self._over():
                    return None
                room = self._room(lane)
                if room:
                    piece = self._taken(room)
                    if piece is not None:
                        self._enter(lane, piece)
                        return piece
                    if self._stuck():
                        continue
                self._changed.wait()

    def _over(self) -> bool:
        return self._error is not None or (not self._open and self._work.done)

    def _room(self, lane: int) -> int:
        """Devices that this lane may have for a piece, beside those that others have."""
        if not self._may_run(lane):
            return 0
        return min(1, self._free) if self._packing.turn else self._free

    @property
    def _free(self) -> int:
        return max(0, self._seats - sum(self._busy.values()))

    def _taken(self, room: int) -> Piece | None:
        for at, piece in enumerate(self._open):
            if piece.width <= room:
                return self._open.pop(at)
        return self._work.take(room, self._active == 1 and not self._packing.turn)

    def _may_run(self, lane: int) -> bool:
        turn = self._packing.turn
        return lane in turn if turn else lane < self._active

    def _stuck(self) -> bool:
        """A lane that is to be measured finds nothing: those that wait for it would wait for ever, and there is nothing to compare."""
        looks = self._packing.turn is not None
        if looks:
            self._packing.give_up()
            self._settle()
        return looks

    def _enter(self, lane: int, piece: Piece) -> None:
        self._busy[lane] = piece.width
        self._mix += 1
        self._tell_turn()
        self._changed.notify_all()

    def _leave(self, lane: int) -> None:
        if self._busy.pop(lane, None) is not None:
            self._mix += 1
            self._tell_turn()
        self._changed.notify_all()

    def _settle(self) -> None:
        """Another turn, or another number at once."""
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
            while self._error is None and self._packing.turn and not self._may_run(lane):
                self._leave(lane)
                self._changed.wait()
            begins_again = lane not in self._busy
            if self._error is not None or not self._may_run(lane) or (begins_again and piece.width > self._free):
                self._open.append(piece)
                self._leave(lane)
                return False
            if begins_again:
                self._enter(lane, piece)
            return True

    def _record(self, lane: int, piece: Piece, mix: int, seconds: float) -> None:
        """To be compared are only iterations during which exactly the lanes of this turn were running all the time."""
        turn = self._packing.turn
        wide = any(width > 1 for width in self._busy.values())
        if self._fixed or (wide and turn is None):  # no look begins beside a wide one
            return
        like = turn is not None and mix == self._mix and self._busy.keys() == set(turn) and not wide
        if self._packing.done(lane, (piece.shape, piece.doing), seconds if like else None):
            self._settle()
