"""Where pictures wait: encoded, in front of the decoder. Whatever a camera sends and however slow the taker is, decoded there are few.

Nothing here waits for time to pass: clocks are the tests' own, and a live camera is driven by hand, packet by packet.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import streams.camera as camera_module
from scheduler.types import Frame
from streams.camera import DEMAND_S, PyavCamera, _Picture, _Queued
from streams.encode import write_video
from streams.source import CameraState
from streams.url import SourceUrl
from streams.video import RgbMaker
from tests.support.by_hand import FPS, FRAMES, MOST_BYTES, MOST_PACKETS, ByHand, HandClock, grey, index_of

PATIENCE_S = 30.0
#: Decoded at a time: the frame in hand, the one made for who asks next, the one that is being made.
MOST_PICTURES = 3


@dataclass
class Alive:
    """How many pictures are held by somebody, and how many were at most."""

    now: int = 0
    most: int = 0

    def born(self, thing: object) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        weakref.finalize(thing, self._gone)

    def _gone(self) -> None:
        self.now -= 1


@pytest.fixture
def alive(monkeypatch: pytest.MonkeyPatch) -> Alive:
    """Counts the RGB pictures made, from here to their end."""
    counted, make = Alive(), RgbMaker.make

    def made(self: RgbMaker, frame: object, **how: int) -> np.ndarray:
        image = make(self, frame, **how)  # type: ignore[arg-type]
        counted.born(image)
        return image

    monkeypatch.setattr(RgbMaker, "make", made)
    return counted


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Picture k is a plain grey of 8 * k; a keyframe every half second."""
    path = tmp_path_factory.mktemp("clips") / "clip.mp4"
    write_video(path, (grey(k) for k in range(FRAMES)), fps=FPS, keyframe_s=0.5)
    return path


# --- live: driven by hand ---------------------------------------------------------------------------------------------


@pytest.fixture
def live(clip: Path) -> ByHand:
    return ByHand(clip)


def test_a_burst_of_a_hundred_times_the_rate_waits_encoded_or_goes_and_is_counted(live: ByHand, alive: Alive) -> None:
    live.camera.want(fps=FPS)
    live.ask()
    for second in range(3):
        live.send(100 * int(FPS))  # a hundred seconds of video at once
        assert alive.now <= 1, "not one of them was decoded to wait"
        live.clock.time_s += 0.11
        assert 0 < live.decode() <= MOST_PACKETS
        frame = live.ask()
        assert frame is not None
        assert index_of(frame) == (1000 * (second + 1) - 1) % FRAMES, "the newest frame won"
    assert alive.most <= MOST_PICTURES
    skipped = live.sent - live.decoded - live.camera.status().packets_dropped - len(live.camera._queue)
    assert live.camera.status().packets_dropped > 2700
    assert 0 <= skipped <= 3 * MOST_PACKETS, "left out for a newer keyframe"


def test_a_taker_that_stalls_stops_the_decoder_and_only_the_newest_group_waits(live: ByHand, alive: Alive) -> None:
    live.camera.want(fps=FPS)
    live.ask()
    live.send(20, every_s=0.1)
    live.decode()
    before = live.camera.status().frames_decoded
    for _ in range(120):  # two minutes in which nobody asks
        live.send(10, every_s=0.1)
        live.decode()
    made = live.camera.status().frames_decoded - before
    assert made <= DEMAND_S, "one turn a second, and none when the demand was forgotten"
    assert len(live.camera._queue) <= 5, "from the newest keyframe on"
    assert alive.now <= 1
    assert live.ask() is None, "what was made two minutes ago is no answer"
    live.send(1, every_s=0.1)
    live.decode()
    frame = live.ask()
    assert frame is not None
    assert live.clock.time_s - frame.captured_s < 0.2
    assert alive.most <= MOST_PICTURES


def test_a_slow_taker_gets_the_newest_frame_and_those_that_nobody_saw_are_counted(live: ByHand, alive: Alive) -> None:
    live.camera.want(fps=FPS)
    live.ask()
    held: Frame | None = None
    for turn in range(40):
        live.send(1, every_s=0.1)
        live.decode()
        if turn % 4 == 3:  # takes every fourth, and keeps it while it looks
            held = live.ask(held.seq if held else -1)
            assert held is not None
            assert live.clock.time_s == held.captured_s, "no older one came first"
    status = live.camera.status()
    assert (status.frames_decoded, status.frames_unseen) == (40, 30)
    assert status.lag_s == live.camera.lag_s == 0.0, "what is live does not lag: it leaves out"
    assert alive.most <= MOST_PICTURES


def test_a_decoder_slower_than_the_camera_drops_groups_and_never_gets_behind(live: ByHand) -> None:
    live.camera.want(fps=0.0)
    live.ask()
    for _ in range(50):
        live.send(37, every_s=0.001)  # while the decoder works on what it took
        if live.decode():
            frame = live.ask()
            assert frame is not None
            assert live.clock.time_s == frame.captured_s
        live.clock.time_s += 0.1


def test_pictures_come_out_of_a_long_batch_one_at_a_time(live: ByHand, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Alive()

    class Counted(_Picture):
        def __init__(self, **fields: object) -> None:
            super().__init__(**fields)  # type: ignore[arg-type]
            counted.born(self)

    monkeypatch.setattr(camera_module, "_Picture", Counted)
    live.camera.want(fps=0.1)
    live.ask()
    live.send(5)
    live.send(5)
    live.decode()
    live.camera._decode(list(_group_of(live, 60)), alone=False)
    assert counted.most <= MOST_PICTURES


def _group_of(live: ByHand, count: int) -> Iterator[_Queued]:
    for _ in range(count):
        packet = next(live._packets)
        yield _Queued(
            packet=packet, keyframe=packet.is_keyframe, size_bytes=packet.size, times_s=(live.clock.now_s(), 0.0),
            session=live.session,
        )  # fmt: skip


def test_between_two_pictures_only_the_packet_that_comes_when_one_is_due_wakes_the_decoder(live: ByHand) -> None:
    woken: list[float] = []
    live.camera._work.notify_all = lambda: woken.append(round(live.clock.time_s - 1000.0, 3))  # type: ignore[method-assign]
    live.camera.want(fps=FPS / 3)  # more than there are keyframes
    live.ask()
    live.camera._rate.restart(FPS)
    live.send(1, every_s=0.1)
    assert live.decode() == 1
    for turn in range(21):
        live.camera._next_batch()  # as the decoder's thread does, before it sleeps
        live.camera._awaited = camera_module._Awaited.DUE
        woken.clear()
        live.send(1, every_s=0.1)
        assert bool(woken) == (turn % 3 == 2), "every third packet"
        if woken:
            assert 1 <= live.decode() <= 3, "from the newest keyframe on"
            frame = live.ask()
            assert frame is not None
            assert frame.captured_s == live.clock.time_s, "fresh"
    assert live.camera.status().frames_decoded == 8


@pytest.mark.parametrize("step_s", [3600.0, -3600.0, 1e9, -1.7e9])
def test_a_step_of_the_wall_clock_changes_stamps_and_nothing_else(clip: Path, step_s: float) -> None:
    taken: list[list[tuple[int, float]]] = []
    walls: list[list[float]] = []
    for by_s in (0.0, step_s):
        live = ByHand(clip)
        live.camera.want(fps=5.0)
        frames: list[Frame] = []
        live.ask()
        for turn in range(60):
            if turn == 30:
                live.clock.wall_s += by_s
            live.send(1, every_s=0.1)
            live.decode()
            frame = live.ask(frames[-1].seq if frames else -1)
            if frame is not None:
                frames.append(frame)
        taken.append([(index_of(frame), frame.captured_s) for frame in frames])
        walls.append([frame.captured_utc for frame in frames])
    assert taken[0] == taken[1]
    assert len(taken[0]) == pytest.approx(30, abs=1)
    moved = np.subtract(walls[1], walls[0])
    assert set(np.round(moved, 3)) == {0.0, step_s}


def test_after_the_machine_slept_an_hour_the_newest_frame_comes_and_nothing_is_caught_up(live: ByHand) -> None:
    live.camera.want(fps=5.0)
    live.ask()
    live.send(20, every_s=0.1)
    live.decode()
    live.clock.time_s += 3600.0
    live.ask()
    live.send(30)  # what the network kept comes at once
    turns = [live.decode() for _ in range(10)]
    assert turns[0] > 0
    assert sum(turns[1:]) == 0
    frame = live.ask()
    assert frame is not None
    assert frame.captured_s == live.clock.time_s


steps = st.lists(st.sampled_from(["send", "burst", "decode", "ask", "forget", "faster", "slower"]), min_size=5, max_size=60)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(steps=steps)
def test_in_any_order_memory_is_bounded_and_frames_never_go_back(clip: Path, steps: list[str]) -> None:
    live, seen = ByHand(clip), [(-1, float("-inf"))]
    does: dict[str, Callable[[], object]] = {
        "send": lambda: live.send(1, every_s=0.1),
        "burst": lambda: live.send(60),
        "decode": live.decode,
        "forget": lambda: setattr(live.clock, "time_s", live.clock.time_s + DEMAND_S + 1),
        "faster": lambda: live.camera.want(fps=0.0),
        "slower": lambda: live.camera.want(fps=1.0),
    }
    for step in steps:
        if step == "ask":
            frame = live.ask(seen[-1][0])
            if frame is not None:
                seen.append((frame.seq, frame.captured_s))
        else:
            does[step]()
        status = live.camera.status()
        assert status.frames_unseen <= status.frames_decoded <= live.decoded
        assert live.decoded + status.packets_dropped + len(live.camera._queue) <= live.sent + status.frames_decoded
    assert seen == sorted(seen)


# --- a recording that may lag -----------------------------------------------------------------------------------------


class Recording:
    """A file that may lag, read and decoded by its own threads while the test takes its frames and moves the clock."""

    def __init__(self, path: Path, *, loop: bool = False) -> None:
        self.clock = HandClock()
        self.camera = PyavCamera(
            "cam", SourceUrl(str(path)), realtime=False, loop=loop, clock=self.clock, queue_packets=8, queue_bytes=MOST_BYTES
        )
        self.read = 0
        put = self.camera._put

        def counted(item: _Queued, now_s: float) -> None:
            self.read += item.size_bytes > 0
            put(item, now_s)

        self.camera._put = counted  # type: ignore[method-assign]
        self.seq = -1

    def take(self) -> Frame | None:
        frame = self.camera.next_frame(after_seq=self.seq, timeout_s=PATIENCE_S)
        self.seq = frame.seq if frame is not None else self.seq
        return frame

    def wait_for_the_next(self) -> None:
        """Until the next frame is made, while this one is looked at."""
        with self.camera._lock:
            assert self.camera._frames.wait_for(lambda: self.camera._newest is not None, PATIENCE_S)

    def __enter__(self) -> Recording:
        self.camera.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.camera.stop()


def test_a_taker_slower_than_the_video_gets_every_wanted_frame_in_order_and_the_lag_is_told(clip: Path, alive: Alive) -> None:
    with Recording(clip) as recording:
        recording.camera.want(fps=5.0)
        indexes, lags, frame = [], [], recording.take()
        while frame is not None:
            indexes.append(index_of(frame))
            recording.clock.time_s += 0.5  # what it takes to look at it: two and a half frames
            lags.append(recording.camera.lag_s)
            assert recording.read <= indexes[-1] + 1 + 8 + 4, "the rest stays unread"
            assert recording.camera._queue.size_bytes <= MOST_BYTES
            frame = recording.take()
    assert indexes == list(range(0, FRAMES, 2))
    expected = [0.5 * (n + 1) - 0.2 * (n + 1) for n in range(len(indexes))]
    assert lags[:-1] == pytest.approx(expected[:-1], abs=1e-6)
    assert alive.most <= MOST_PICTURES
    assert recording.camera.status().frames_unseen == 0


def test_a_taker_that_gets_faster_drains_the_lag_and_never_is_ahead_of_zero(clip: Path) -> None:
    with Recording(clip) as recording:
        lags = []
        for turn in range(FRAMES - 1):
            assert recording.take() is not None
            recording.clock.time_s += 0.4 if turn < 8 else 0.02
            lags.append(round(recording.camera.lag_s, 6))
    assert lags[7] == pytest.approx(8 * 0.3)
    assert all(later == pytest.approx(max(0.0, sooner - 0.08)) for sooner, later in zip(lags[7:], lags[8:], strict=False))
    assert min(lags) >= 0.0


def test_a_taker_that_stalls_for_an_hour_finds_the_next_frame_and_an_hour_of_lag(clip: Path, alive: Alive) -> None:
    with Recording(clip) as recording:
        first = recording.take()
        assert first is not None
        recording.clock.time_s += 3600.0
        assert recording.camera.lag_s == pytest.approx(3600.0 - 0.1)
        assert recording.read <= 1 + 8 + 4
        second = recording.take()
        assert second is not None
        assert (index_of(first), index_of(second)) == (0, 1)
    assert alive.most <= MOST_PICTURES


def test_a_step_of_the_wall_clock_is_no_lag(clip: Path) -> None:
    with Recording(clip) as recording:
        indexes = []
        for turn in range(FRAMES):
            frame = recording.take()
            assert frame is not None
            indexes.append(index_of(frame))
            recording.clock.wall_s += 1e6 if turn % 2 else -1e6
            assert recording.camera.lag_s == 0.0
    assert indexes == list(range(FRAMES))


def test_who_only_looks_takes_no_frame_from_who_works_it_off(clip: Path) -> None:
    with Recording(clip) as recording:
        looked, indexes = -1, []
        assert recording.camera.next_frame(after_seq=-1, timeout_s=0.0) is None
        assert recording.camera.status().frames_decoded == 0, "a look sets nothing going"
        for turn in range(FRAMES):
            frame = recording.take()
            assert frame is not None
            indexes.append(index_of(frame))
            if turn < FRAMES - 1:
                recording.wait_for_the_next()
            seen = recording.camera.next_frame(after_seq=looked, timeout_s=0.0)
            assert seen is frame, "what is being worked on, never the one after it"
            looked = seen.seq
            assert recording.camera.next_frame(after_seq=looked, timeout_s=0.0) is None
    assert indexes == list(range(FRAMES))


def test_a_recording_that_begins_anew_goes_on_lagging(clip: Path) -> None:
    with Recording(clip, loop=True) as recording:
        indexes, times_s = [], []
        for _ in range(2 * FRAMES):
            frame = recording.take()
            assert frame is not None
            indexes.append(index_of(frame))
            times_s.append(frame.captured_s)
            recording.clock.time_s += 0.3
        assert indexes == list(range(FRAMES)) * 2
        assert np.diff(times_s) == pytest.approx(np.full(2 * FRAMES - 1, 0.1), abs=1e-6)
        assert recording.camera.lag_s == pytest.approx(2 * FRAMES * 0.2)


def test_the_end_is_no_lag_and_neither_is_a_stop(clip: Path) -> None:
    with Recording(clip) as recording:
        while recording.take() is not None:
            recording.clock.time_s += 1.0
        assert recording.camera.status().state is CameraState.ENDED
        assert recording.camera.lag_s == 0.0
        recording.camera.stop()
        recording.clock.time_s += 1000.0
        recording.camera.start()
        frame = recording.take()
        assert frame is not None
        assert index_of(frame) == 0
        assert recording.camera.lag_s == 0.0


def test_a_picture_that_throws_costs_itself_and_the_others_come_in_order(clip: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = RgbMaker.make, []

    def sometimes(self: RgbMaker, frame: object, **how: int) -> np.ndarray:
        calls.append(1)
        if len(calls) % 7 == 0:
            raise MemoryError("made up")
        return real(self, frame, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(RgbMaker, "make", sometimes)
    with Recording(clip) as recording:
        indexes = []
        while (frame := recording.take()) is not None:
            indexes.append(index_of(frame))
    assert indexes == [k for k in range(FRAMES) if (k + 1) % 7]


def test_before_anything_is_read_nothing_lags(clip: Path) -> None:
    recording = Recording(clip)
    assert recording.camera.may_lag
    assert recording.camera.lag_s == 0.0
    assert not PyavCamera("cam", SourceUrl(str(clip))).may_lag
