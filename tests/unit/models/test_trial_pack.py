"""Trials at once: everything is done once, in order; how many is measured; what goes wrong stops all and is said.

Time is a clock that the test's own lanes advance: an iteration takes as long as the number of lanes in one makes it, so nothing sleeps.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from configs.errors import JobCancelled, JobError
from models import trial_pack
from models.trial_pack import CurrentGate, PackReport, Piece, run_packed


class Stretch:
    """A piece of `n` iterations; every iteration writes itself into a common list."""

    def __init__(self, trial: str, n: int, done: list[tuple[str, int]], fails_at: int | None = None) -> None:
        self.trial, self.shape, self.doing, self.width = trial, "like all", "", 1
        self._n, self._done, self._fails_at, self._at = n, done, fails_at, 0
        self.threads: set[int] = set()

    def step(self) -> bool:
        if self._at == self._n:
            return False
        if self._at == self._fails_at:
            raise JobError("the loss became nan", subject=self.trial, remedy="-", code="nan")
        self._done.append((self.trial, self._at))
        self.threads.add(threading.get_ident())
        self._at += 1
        self.doing = "train"
        return self._at < self._n


class Listed:
    """Pieces in the order given, at most `limit` begun and not ended."""

    def __init__(self, pieces: list[Stretch], limit: int = 99) -> None:
        self.pieces, self.limit, self.running = pieces, limit, 0
        self.ended_in_order: list[str] = []

    def take(self, room: int = 1, alone: bool = False) -> Piece | None:
        if not self.pieces or self.running >= self.limit:
            return None
        self.running += 1
        return self.pieces.pop(0)

    def ended(self, piece: Piece) -> None:
        self.running -= 1
        self.ended_in_order.append(piece.trial)

    @property
    def done(self) -> bool:
        return not self.pieces and not self.running


class Device:
    """What lanes share. seconds: how long an iteration takes with p trials at once."""

    def __init__(self, seconds: Callable[[int], float]) -> None:
        self.seconds, self.local = seconds, threading.local()

    def clock(self) -> float:
        """Each thread has its own time, advanced by its own iterations."""
        return getattr(self.local, "now_s", 0.0)

    def gates(self, n: int) -> list[Gate]:
        return [Gate(self) for _ in range(n)]


class Gate:
    def __init__(self, device: Device, raises: BaseException | None = None) -> None:
        self.device, self.raises, self.entered, self.checked = device, raises, 0, 0
        self.came = threading.Event()
        self.waits_for: threading.Event | None = None

    @contextmanager
    def iteration(self) -> Iterator[None]:
        self.came.set()
        if self.raises is not None:
            raise self.raises
        if self.waits_for is not None:
            self.waits_for.wait(120.0)
        self.entered += 1
        yield
        self.device.local.now_s = self.device.clock() + self.device.seconds(1)

    def checkpoint(self) -> None:
        self.checked += 1


def pack(work: Listed, device: Device, lanes: int, **how: object) -> PackReport:
    return run_packed(work, device.gates(lanes), clock=device.clock, **how)  # type: ignore[arg-type]


def stretches(counts: list[int], done: list[tuple[str, int]]) -> list[Stretch]:
    return [Stretch(f"t{i}", n, done) for i, n in enumerate(counts)]


@pytest.mark.parametrize("lanes", [1, 2, 3, 5])
@pytest.mark.parametrize("counts", [[1], [7, 3], [30, 20, 10, 40], [1] * 9, [60, 60]])
def test_every_iteration_is_done_once_and_in_order(lanes: int, counts: list[int]) -> None:
    done: list[tuple[str, int]] = []
    work = Listed(stretches(counts, done))
    report = pack(work, Device(lambda p: 1.0), lanes)
    assert work.done
    for i, n in enumerate(counts):
        assert [at for trial, at in done if trial == f"t{i}"] == list(range(n))
    assert report.iterations == sum(counts)
    assert 1 <= report.share_max <= lanes


def test_one_lane_is_the_callers_thread_and_nothing_is_measured() -> None:
    done: list[tuple[str, int]] = []
    pieces = stretches([5, 5], done)
    report = pack(Listed(list(pieces)), Device(lambda p: 1.0), 1)
    assert {t for piece in pieces for t in piece.threads} == {threading.get_ident()}
    assert (report.share_max, report.gains) == (1, ())


class Levelled(Device):
    """An iteration takes as long as the number of trials that are being measured at once makes it, and the lanes that are measured take
    turns, so that the answer does not depend on how this machine runs threads whose iterations take no time."""

    def __init__(self, seconds: Callable[[int], float], monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(seconds)
        goes_on, record = trial_pack._Run._goes_on, trial_pack._Run._record

        def in_step(run: Any, lane: int, piece: Piece) -> bool:
            if not goes_on(run, lane, piece):
                return False
            with run._changed:
                run._changed.wait_for(
                    lambda: run._packing.turn is None or lane not in run._packing.turn or _turn_of(run, lane), 5
                )
            return True

        def timed(run: Any, lane: int, piece: Piece, mix: int, _: float) -> None:
            turn = run._packing.turn or ()
            record(run, lane, piece, run._mix if run._busy.keys() == set(turn) else mix, seconds(len(turn) or 1))
            run._changed.notify_all()

        monkeypatch.setattr(trial_pack._Run, "_goes_on", in_step)
        monkeypatch.setattr(trial_pack._Run, "_record", timed)


def _turn_of(run: Any, lane: int) -> bool:
    done, here = run._packing.progress, run._packing.turn
    return run._busy.keys() == set(here) and done(lane) == min(done(other) for other in here)


@pytest.mark.parametrize(
    ("alpha", "c"),
    [(1.0, 4), (1.2, 3), (1.3, 3), (1.4, 2), (1.9, 1), (2.5, 1)],
)
def test_c_is_what_pays_by_the_measured_times(alpha: float, c: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """F3's rule on a model with that alpha: O^p = 1 - alpha (p - 1) / p, threshold 0.1, four lanes."""
    done: list[tuple[str, int]] = []
    report = pack(Listed(stretches([400] * 6, done)), Levelled(lambda p: alpha ** (p - 1), monkeypatch), 4)
    assert report.share_max == c
    assert report.gains[: c - 1] == pytest.approx([1 - alpha * (p - 1) / p for p in range(2, c + 1)])
    if c > 1:
        assert report.alpha == pytest.approx(alpha)
    assert report.iterations == 2400


def test_measured_times_of_the_card(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {1: 0.100, 2: 0.120, 3: 0.150, 4: 0.210}
    done: list[tuple[str, int]] = []
    report = pack(Listed(stretches([400] * 6, done)), Levelled(times.__getitem__, monkeypatch), 4)
    assert report.share_max == 3
    assert report.iteration_s == pytest.approx(tuple(times.values()))
    assert report.gains == pytest.approx((2 / 5, 1 / 6, -1 / 20))


def test_memory_caps_the_lanes_and_a_given_number_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    for how, most in (({"cap": 2}, 2), ({"share": 3}, 3), ({"share": 3, "cap": 2}, 2)):
        done: list[tuple[str, int]] = []
        report = pack(Listed(stretches([300] * 6, done)), Levelled(lambda p: 1.0, monkeypatch), 4, **how)
        assert report.share_max == most
        assert report.iterations == 1800


def test_where_packing_does_not_pay_one_lane_does_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[tuple[str, int]] = []
    device = Levelled(lambda p: float(p), monkeypatch)
    gates = device.gates(2)
    report = run_packed(Listed(stretches([200] * 4, done)), gates, clock=device.clock)
    assert report.share_max == 1
    assert gates[0].entered > 650, "it is looked at again, each time after twice as long"
    assert gates[0].entered + gates[1].entered == 800
    rest = [trial for trial, _ in done[-200:]]
    assert sum(a != b for a, b in zip(rest, rest[1:], strict=False)) <= 3, "one after the other"


@pytest.mark.parametrize("alpha", [1.0, 2.5])
def test_a_lane_keeps_its_part_of_the_share_until_it_has_stopped(alpha: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever begins an iteration was named before, and a lane that is told to stop is named until its iteration is over."""
    told: list[tuple[int, ...]] = []
    device = Levelled(lambda p: alpha ** (p - 1), monkeypatch)
    gates = device.gates(3)
    unnamed: list[int] = []

    def watching(number: int) -> Callable[[], Any]:
        real = gates[number].iteration

        def iteration() -> Any:
            unnamed.extend([number] if number not in told[-1] else [])
            return real()

        return iteration

    for number, gate in enumerate(gates):
        gate.iteration = watching(number)  # type: ignore[method-assign]
    done: list[tuple[str, int]] = []
    report = run_packed(Listed(stretches([300] * 5, done)), gates, clock=device.clock, on_turn=lambda t: told.append(tuple(t)))
    assert report.iterations == 1500
    assert unnamed == []
    assert told[0] == (0,)
    assert (1,) in told, "the second is measured alone too"
    assert all(a != b for a, b in zip(told, told[1:], strict=False))


def test_groups_that_are_smaller_than_the_lanes_come_to_an_end() -> None:
    done: list[tuple[str, int]] = []
    report = pack(Listed(stretches([100], done)), Device(lambda p: 1.0), 3)
    assert report.iterations == 100
    limited = Listed(stretches([50, 50, 50], done), limit=1)
    assert pack(limited, Device(lambda p: 1.0), 3).iterations == 150


@pytest.mark.parametrize("lanes", [1, 2, 4])
def test_a_piece_that_fails_stops_all_and_is_raised_here(lanes: int) -> None:
    done: list[tuple[str, int]] = []
    pieces = [*stretches([50, 50], done), Stretch("bad", 50, done, fails_at=20), *stretches([5000], done)]
    before = threading.active_count()
    with pytest.raises(JobError, match="nan"):
        pack(Listed(pieces), Device(lambda p: 1.0), lanes, share=lanes)
    assert threading.active_count() == before
    assert len(done) < 5000


@pytest.mark.parametrize("which", [0, 1])
def test_a_cancelled_lane_stops_all(which: int) -> None:
    device = Device(lambda p: 1.0)
    gates = device.gates(2)
    gates[which].raises = JobCancelled("cancelled", subject="j")
    gates[1 - which].waits_for = gates[which].came  # else one thread may do everything before the other has begun
    done: list[tuple[str, int]] = []
    with pytest.raises(JobCancelled):
        run_packed(Listed(stretches([500] * 4, done)), gates, share=2, clock=device.clock)
    assert len(done) < 2000


def test_no_lane_is_refused() -> None:
    with pytest.raises(ValueError, match="lane"):
        run_packed(Listed([]), [])


def test_a_checkpoint_is_that_of_the_threads_own_lane() -> None:
    device, current = Device(lambda p: 1.0), CurrentGate()
    mine, other = device.gates(2)
    current()
    current.enter(mine)

    def elsewhere() -> None:
        current.enter(other)
        current()
        current()

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    current()
    assert (mine.checked, other.checked) == (1, 2)


# --- pieces that are wider than a device ------------------------------------------------------------------------------


class Wide(Listed):
    """Gives the first piece that fits; keeps what was free, and whether it was to run alone."""

    def __init__(self, pieces: list[Stretch], seats: int) -> None:
        super().__init__(pieces)
        self.seats, self.used, self.asked = seats, 0, list[tuple[int, bool]]()

    def take(self, room: int = 1, alone: bool = False) -> Piece | None:
        self.asked.append((room, alone))
        assert 1 <= room <= self.seats - self.used, "never more than is free"
        piece = next((p for p in self.pieces if p.width <= room), None)
        if piece is None:
            return None
        self.pieces.remove(piece)
        self.running += 1
        self.used += piece.width
        return piece

    def ended(self, piece: Piece) -> None:
        super().ended(piece)
        self.used -= piece.width


def wide_stretches(widths: list[int], n: int, done: list[tuple[str, int]]) -> list[Stretch]:
    pieces = stretches([n] * len(widths), done)
    for piece, width in zip(pieces, widths, strict=True):
        piece.width = width
    return pieces


@pytest.mark.parametrize("share", [None, 2, 3])
@pytest.mark.parametrize("widths", [[1, 2, 1, 3, 1], [3, 3, 3], [2, 2, 2, 1, 1, 1], [1] * 5])
def test_wide_pieces_have_their_seats_and_all_is_done_once(widths: list[int], share: int | None) -> None:
    done: list[tuple[str, int]] = []
    work = Wide(wide_stretches(widths, 120, done), seats=3)
    report = pack(work, Device(lambda p: 1.0), 3, share=share, seats=3)
    assert report.iterations == 120 * len(widths)
    assert (work.used, work.done) == (0, True)
    for i in range(len(widths)):
        assert [at for trial, at in done if trial == f"t{i}"] == list(range(120))


def test_a_single_lane_is_offered_all_seats_and_told_that_it_is_alone() -> None:
    work = Wide(wide_stretches([2, 1], 5, []), seats=2)
    pack(work, Device(lambda p: 1.0), 1, seats=2)
    assert {alone for _, alone in work.asked} == {True}
    assert {room for room, _ in work.asked} == {2}
    beside = Wide(wide_stretches([1, 1], 5, []), seats=2)
    pack(beside, Device(lambda p: 1.0), 2, share=2)
    assert {alone for _, alone in beside.asked} == {False}


def test_where_one_at_a_time_was_found_to_pay_a_piece_may_have_all_seats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads of tiny operations: two at once bring nothing, and what begins after that is told so."""
    done: list[tuple[str, int]] = []
    work = Wide(stretches([60] * 12, done), seats=2)
    run_packed(work, Levelled(lambda p: float(p), monkeypatch).gates(2))
    assert (2, True) in work.asked


def test_the_lane_of_a_wide_piece_is_named_as_often_as_it_is_wide() -> None:
    told: list[tuple[int, ...]] = []
    work = Wide(wide_stretches([2, 1], 40, []), seats=3)
    pack(work, Device(lambda p: 1.0), 2, share=2, seats=3, on_turn=lambda turn: told.append(tuple(turn)))
    assert {turn.count(lane) for turn in told for lane in turn} >= {2}
    assert all(sum(turn.count(lane) for lane in set(turn)) <= 3 for turn in told)


def test_nothing_is_looked_at_while_a_wide_piece_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Iterations of several devices are not comparable with those of one."""
    done: list[tuple[str, int]] = []
    work = Wide(wide_stretches([1, 1, 2, 2, 2], 200, done), seats=2)
    report = run_packed(work, Levelled(lambda p: float(p), monkeypatch).gates(2), seats=2)
    assert report.iterations == 1000
    assert all(gain == pytest.approx(0.0) for verdict in report.verdicts for gain in verdict.gains)
