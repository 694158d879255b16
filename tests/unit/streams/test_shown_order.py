"""Pictures get their times in the order in which they are shown, whatever order they are sent in."""

from __future__ import annotations

from pathlib import Path

import av
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.finish import DueFrames
from streams.shown_order import ShownOrder
from tests.support.by_hand import FPS, FRAMES, ByHand, grey, index_of

#: Pictures from one that others refer to, to the next: three of them are sent after it and shown before it.
REFERS = 4
DELAY = 2  # pictures that a decoder of these holds back


def as_sent(count: int) -> list[int]:
    """Which pictures are sent, in this order: 0, 4, 2, 1, 3, 8, 6, 5, 7 and so on, as x264 sends three B pictures in a row."""
    order = [0]
    for first in range(1, count - REFERS + 1, REFERS):
        order += [first + 3, first + 1, first, first + 2]
    return order


def times_of(sent: list[int], *, lost: frozenset[int] = frozenset(), delay: int = DELAY) -> dict[int, float]:
    """When each picture is said to have been taken: one packet a second; the decoder shows the first of those that it holds."""
    order, held, told = ShownOrder(), list[tuple[int, int]](), dict[int, float]()
    for at, stamp in enumerate(sent):
        order.sent(stamp, (float(at), 1e9 + at), keyframe=stamp == 0)
        if stamp not in lost:
            held.append((stamp, at))
        while len(held) > (delay if at < len(sent) - 1 else 0):
            held.remove(first := min(held))
            told[first[0]] = order.shown(first[0], (float(first[1]), 1e9 + first[1]))[0]
    return told


def test_pictures_sent_out_of_order_were_taken_in_order() -> None:
    sent = as_sent(41)
    assert sent[:9] == [0, 4, 2, 1, 3, 8, 6, 5, 7]
    told = times_of(sent)
    assert [told[stamp] for stamp in range(41)] == [float(stamp) for stamp in range(41)]


@given(lost=st.sets(st.integers(0, 39)), delay=st.integers(0, 3))
def test_pictures_sent_as_they_are_shown_keep_their_own_times_whichever_are_lost(lost: set[int], delay: int) -> None:
    told = times_of(list(range(40)), lost=frozenset(lost), delay=delay)
    assert told == {stamp: float(stamp) for stamp in range(40) if stamp not in lost}


@given(lost=st.sets(st.integers(0, 44), max_size=12))
def test_lost_pictures_shift_no_times(lost: set[int]) -> None:
    told = times_of(as_sent(81), lost=frozenset(lost))
    in_order = [told[stamp] for stamp in sorted(told)]
    assert in_order == sorted(in_order)
    for stamp in range(45 + REFERS, 81):
        assert told[stamp] == stamp, "those after it have their own again"


def test_a_group_that_was_left_out_shifts_no_times() -> None:
    """Packets that make room for others never come to the decoder."""
    order = ShownOrder()
    for at, stamp in enumerate(as_sent(9)[:7]):  # 6 and 8 are held, their B pictures never come
        order.sent(stamp, (float(at), 0.0), keyframe=stamp == 0)
    for stamp in range(5):
        assert order.shown(stamp, (9.0, 0.0))[0] == stamp
    for later, stamp in enumerate([100, 104, 102, 101, 103]):
        order.sent(stamp, (60.0 + later, 0.0), keyframe=stamp == 100)
    shown = [order.shown(stamp, (99.0, 0.0))[0] for stamp in (6, 8, 100, 101, 102, 103, 104)]
    assert shown == [5.0, 6.0, 60.0, 61.0, 62.0, 63.0, 64.0]


def test_stamps_that_begin_anew_or_jump_are_got_over() -> None:
    """A camera that was set to another time, and one packet whose stamp is nonsense and that is never shown."""
    for nonsense in (10**12, -(10**12)):
        order, told = ShownOrder(), []
        stamps = [5000, 5001, 5002, nonsense, 5004, 5005, 0, 1, 2]
        for at, stamp in enumerate(stamps):
            order.sent(stamp, (float(at), 0.0), keyframe=stamp in (5000, 0))
            if stamp != nonsense:
                told.append(order.shown(stamp, (float(at), 0.0))[0])
        assert told == sorted(told)
        assert told[-3:] == [6.0, 7.0, 8.0]


def test_pictures_without_a_stamp_keep_their_packets_times_and_never_go_back() -> None:
    order = ShownOrder()
    for at in range(4):
        order.sent(None, (float(at), 0.0), keyframe=False)
    assert [order.shown(None, (at, 0.0))[0] for at in (0.0, 2.0, 3.0, 1.0, 4.0)] == [0.0, 2.0, 3.0, 3.0, 4.0]


def test_what_a_decoder_forgot_is_not_handed_out() -> None:
    order = ShownOrder()
    order.sent(0, (0.0, 0.0), keyframe=True)
    order.sent(4, (1.0, 0.0), keyframe=False)
    order.flushed()
    order.sent(20, (5.0, 0.0), keyframe=True)
    assert order.shown(20, (5.0, 0.0)) == (5.0, 0.0)


# --- through a camera -------------------------------------------------------------------------------------------------


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    """Picture k is a plain grey of 8 * k; three B pictures in a row."""
    path = tmp_path / "b.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=int(FPS))
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        stream.options = {"preset": "fast", "x264-params": "bframes=3:b-adapt=0:keyint=15:scenecut=0"}
        for k in range(FRAMES):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(grey(k), format="rgb24")))
        container.mux(stream.encode(None))
    return path


def test_a_live_cameras_frames_were_taken_in_the_order_in_which_they_are_shown(clip: Path) -> None:
    live = ByHand(clip)
    live.camera.want(fps=FPS)
    live.ask()
    began_s = live.clock.time_s
    seen: dict[int, float] = {}
    while len(seen) < FRAMES - REFERS:
        live.send(1, every_s=1 / FPS)
        live.decode()
        frame = live.ask()
        if frame is not None:
            seen[index_of(frame)] = frame.captured_s - began_s
            assert frame.captured_utc - frame.captured_s == pytest.approx(live.clock.wall_s)
    assert sorted(seen) == list(seen), "they are shown in order"
    assert list(seen.values()) == pytest.approx([(k + 1) / FPS for k in seen]), "and evenly"


def test_as_many_frames_of_it_are_due_as_the_wanted_interval_fits_in(clip: Path) -> None:
    """Once times went back and forth, and 80 frames in 40 s were counted as 92 (london_kerbside.mp4 at 2 a second)."""
    live, due, counted = ByHand(clip), DueFrames(), 0
    live.camera.want(fps=FPS / 3)
    frame = live.ask()
    took: list[float] = []
    while len(took) < 2 or took[-1] - took[0] < 40.0:
        live.send(1, every_s=1 / FPS)
        live.decode()
        frame = live.ask(frame.seq if frame else -1) or frame
        if frame is not None and frame.captured_s not in took:
            took.append(frame.captured_s)
            counted += due.until(frame.captured_s, 3 / FPS)
    assert counted == pytest.approx(1 + (took[-1] - took[0]) * FPS / 3, abs=1)


def test_a_live_camera_of_which_a_group_was_dropped_goes_on_in_step(clip: Path) -> None:
    live = ByHand(clip)
    live.camera.want(fps=FPS)
    live.ask()
    live.send(9, every_s=1 / FPS)
    live.decode()
    live.send(7, every_s=1 / FPS)  # up to the next keyframe, which makes what came before it stale
    live.clock.time_s += 1.0
    lags: list[float] = []
    for _ in range(REFERS * 3):
        live.send(1, every_s=1 / FPS)
        live.decode()
        frame = live.ask()
        assert frame is not None
        lags.append(round(live.clock.time_s - frame.captured_s, 6))
    assert set(lags[REFERS:]) == {lags[-1]}, "all have waited as long"
    assert lags[-1] <= (REFERS + 1) / FPS
