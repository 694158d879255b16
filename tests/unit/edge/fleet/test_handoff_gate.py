"""Who is told of which frame while a camera changes boxes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.fleet import handoff_gate
from edge.fleet.handoff_gate import Gate
from edge.inference import Shown
from scheduler.types import Detections, Frame

NONE = Detections(xyxy=np.zeros((0, 4), np.float32), score=np.zeros(0, np.float32), class_id=np.zeros(0, np.int64))
CLOCK_S = 1_800_000_000.0


def shown(number: int, *, camera_s: float | None = -1.0, px: int = 4) -> Shown:
    """The frame of a camera with ten a second; camera_s: by its own clock, None: it tells none."""
    at_s = CLOCK_S + number / 10 if camera_s == -1.0 else camera_s
    frame = Frame(
        stream="gate", seq=number, captured_s=number / 10, captured_utc=CLOCK_S + number / 10 + 3600,
        image=np.zeros((px, px, 3), np.uint8), camera_s=at_s,
    )  # fmt: skip
    return Shown(frame=frame, detections=NONE, version="v", cost_s=0.0, lag_s=0.0)


class Ears:
    def __init__(self, gate: Gate) -> None:
        self.gate, self.heard, self.slow = gate, list[int](), False
        self.look = gate.through(lambda s: self.heard.append(s.frame.seq), lambda: False)

    def frames(self, first: int, last: int) -> None:
        for number in range(first, last + 1):
            self.look(shown(number))

    def wait(self, condition: Callable[[], bool]) -> None:
        """For the thread that tells what was kept."""
        until_s = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < until_s
            threading.Event().wait(0.001)


def ears() -> Ears:
    return Ears(Gate())


def test_an_ordinary_camera_is_told_at_once() -> None:
    here = ears()
    here.frames(1, 3)
    assert here.heard == [1, 2, 3]
    assert here.gate.span_s == (CLOCK_S + 0.1, CLOCK_S + 0.3)


def test_a_source_stops_and_says_up_to_where_it_has_told() -> None:
    here = ears()
    here.frames(1, 3)
    here.gate.silence()
    here.frames(4, 6)
    assert here.heard == [1, 2, 3]
    assert here.gate.span_s == (CLOCK_S + 0.1, CLOCK_S + 0.3)


@given(told=st.integers(0, 12), kept=st.integers(0, 12), more=st.integers(0, 5))
@settings(max_examples=30, deadline=None)
def test_between_two_boxes_every_frame_is_told_once(told: int, kept: int, more: int) -> None:
    """The source tells up to `told`; the target has analysed up to `kept` when it hears of that, whichever is further."""
    source, target = ears(), ears()
    target.gate.hold(owned=False)
    source.frames(1, told)
    target.frames(1, kept)
    target.gate.hold(owned=True)
    source.gate.silence()
    source.frames(told + 1, told + 3)
    assert target.heard == []
    after = source.gate.span_s
    target.gate.tell_after(after[1] if after else 0.0)
    last = max(told, kept) + more
    target.frames(kept + 1, last)
    target.wait(lambda: len(target.heard) == last - told)
    assert source.heard + target.heard == list(range(1, last + 1))


def test_kept_frames_come_before_new_ones_and_no_faster_than_they_are_taken() -> None:
    gate, heard, taken = Gate(), list[int](), threading.Event()
    look = gate.through(lambda s: heard.append(s.frame.seq), lambda: not taken.is_set())
    gate.hold(owned=True)
    for number in (1, 2, 3):
        look(shown(number))
    gate.tell_after(0.0)
    look(shown(4))
    assert heard == [], "nobody has taken anything yet"
    taken.set()
    until_s = time.monotonic() + 20
    while heard != [1, 2, 3, 4]:
        assert time.monotonic() < until_s
        threading.Event().wait(0.001)


def test_times_of_one_frame_that_differ_by_milliseconds_are_one_frames() -> None:
    here = ears()
    here.gate.hold(owned=True)
    here.frames(1, 5)
    here.gate.tell_after(CLOCK_S + 0.3 - 0.004)
    here.wait(lambda: len(here.heard) == 2)
    assert here.heard == [4, 5]


def test_a_stream_without_a_clock_goes_by_arrival_less_the_boxs_offset() -> None:
    here = Ears(Gate(offset_s=lambda: 3600.0))
    here.gate.hold(owned=True)
    for number in range(1, 6):
        here.look(shown(number, camera_s=None))
    assert not here.gate.has_clock
    here.gate.tell_after(CLOCK_S + 0.3)
    here.wait(lambda: len(here.heard) == 2)
    assert here.heard == [4, 5]


def test_clocks_that_cannot_be_compared_tell_from_when_the_box_was_the_owner() -> None:
    now_s = [0.0]
    here = Ears(Gate(now_s=lambda: now_s[0]))
    here.gate.hold(owned=False)
    here.frames(1, 5)
    now_s[0] = 0.35
    here.gate.hold(owned=True)
    here.gate.tell_after(77.0)
    here.wait(lambda: len(here.heard) == 2)
    assert here.heard == [4, 5]


def test_a_camera_whose_clock_is_set_back_goes_on() -> None:
    here = ears()
    here.gate.hold(owned=True)
    here.gate.tell_after(CLOCK_S)
    here.look(shown(1))
    here.look(shown(2, camera_s=CLOCK_S - 86_400))
    assert here.heard == [1, 2]


def test_what_is_kept_is_bounded_and_what_an_owner_loses_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handoff_gate, "KEPT_BYTES", 10 * 48)
    here = Ears(Gate(now_s=lambda: 0.0))
    here.gate.hold(owned=False)
    here.frames(1, 30)
    assert here.gate.lost == 0, "its owner tells them"
    here.gate.hold(owned=True)
    here.frames(31, 45)
    assert here.gate.lost > 0
    here.gate.tell_after(0.0)
    here.wait(lambda: len(here.heard) == 10)
    assert here.heard == list(range(36, 46))


def test_a_new_stay_begins_anew() -> None:
    here = ears()
    here.frames(1, 3)
    here.gate.silence()
    here.gate.begin()
    assert (here.gate.frames, here.gate.span_s) == (0, None)
    here.gate.tell_after(CLOCK_S + 0.3)
    here.frames(2, 5)
    assert here.heard == [1, 2, 3, 4, 5]


# --- the state of the camera comes before its first frame -------------------------------------------------------------


class Waiting:
    """A target that owns a camera, and waits for its state; the clock is set by hand."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.here = Ears(Gate(now_s=lambda: self.now_s))
        self.gate, self.begun = self.here.gate, list[tuple[float, list[int]]]()
        self.gate.hold(owned=True)
        self.here.frames(1, 5)
        assert self.gate.await_state(CLOCK_S + 0.3, 5.0)

    def begin(self, base_s: float) -> None:
        self.begun.append((round(base_s, 6), list(self.here.heard)))


def test_frames_wait_for_the_state_and_it_is_taken_on_before_the_first_of_them() -> None:
    target = Waiting()
    target.here.frames(6, 7)
    assert target.here.heard == []
    assert target.gate.tell_after(CLOCK_S + 0.3, target.begin)
    target.here.wait(lambda: target.here.heard == [4, 5, 6, 7])
    assert target.begun == [(0.3, [])], "by this box's clock, when the last frame was that was told elsewhere"
    target.here.frames(8, 9)
    target.here.wait(lambda: target.here.heard == [4, 5, 6, 7, 8, 9])
    assert len(target.begun) == 1


def test_a_state_that_does_not_come_is_not_waited_for_any_longer() -> None:
    target = Waiting()
    target.now_s = 5.0
    target.here.frames(6, 6)
    target.here.wait(lambda: target.here.heard == [4, 5, 6])
    assert target.gate.gave_up
    assert not target.gate.tell_after(CLOCK_S + 0.3, target.begin), "too late: frames are told already"
    assert target.begun == []
    assert not target.gate.await_state(CLOCK_S, 5.0)


def test_a_state_of_a_camera_that_gives_no_frame_is_taken_on_with_the_next_one() -> None:
    target = Waiting()
    target.gate.tell_after(CLOCK_S + 0.5, target.begin)
    assert target.begun == []
    target.here.frames(12, 12)
    assert target.begun == [(0.5, [])]
    assert target.here.heard == [12]


def test_a_release_ends_the_waiting() -> None:
    target = Waiting()
    target.gate.silence()
    assert not target.gate.awaits
    target.now_s = 9.0
    target.here.frames(6, 9)
    assert target.here.heard == []


def test_what_counts_as_told_is_waited_for() -> None:
    """A worker may be on its way to those who listen when the gate closes: their state must not be taken without that frame."""
    gate, goes_on = Gate(), threading.Event()
    look = gate.through(lambda s: goes_on.wait(120.0) and None, lambda: False)
    worker = threading.Thread(target=look, args=(shown(1),))
    worker.start()
    until_s = time.monotonic() + 20
    while gate.span_s is None and time.monotonic() < until_s:
        threading.Event().wait(0.001)
    gate.silence()
    assert not gate.settled(0.0)
    goes_on.set()
    assert gate.settled(20.0)
    worker.join()
