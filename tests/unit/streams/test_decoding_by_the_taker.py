"""Who takes a camera's frames decodes them: when it has a turn, the newest, one at a time, whatever the camera or the decoder does.

Nothing here waits for time to pass: a live camera is driven by hand, packet by packet.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from av.packet import Packet
from av.video.frame import VideoFrame
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import streams.camera as camera_module
from configs.errors import StreamError
from scheduler.types import Frame
from streams.camera import DEMAND_S, UNDECODABLE_S, _Picture, _Queued
from streams.encode import write_video
from streams.masks import Mask
from streams.reconnect import Opened, Start
from streams.source import Undecoded
from streams.video import RgbMaker
from tests.support.by_hand import FPS, FRAMES, MOST_BYTES, MOST_PACKETS, ByHand, grey, index_of

PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Picture k is a plain grey of 8 * k; a keyframe every half second."""
    path = tmp_path_factory.mktemp("clips") / "clip.mp4"
    write_video(path, (grey(k) for k in range(FRAMES)), fps=FPS, keyframe_s=0.5)
    return path


@pytest.fixture
def live(clip: Path) -> ByHand:
    live = ByHand(clip)
    live.camera._told_to_stop = live.camera._stopping = threading.Event()  # as if it ran
    live.camera.want(fps=FPS)
    due(live)
    return live


def due(live: ByHand, after: Frame | None = None, wake: Callable[[], None] = lambda: None) -> bool:
    return live.camera.until_due(after_seq=after.seq if after else -1, wake=wake) <= 0


def make(live: ByHand, after: Frame | None = None) -> Frame | None:
    return live.camera.make(after_seq=after.seq if after else -1)


def test_a_camera_says_that_its_frames_can_be_decoded_by_who_takes_them(live: ByHand) -> None:
    assert isinstance(live.camera, Undecoded)


def test_that_a_frame_is_due_is_told_without_decoding_it(live: ByHand) -> None:
    assert not due(live), "nothing came yet"
    live.send(1, every_s=0.1)
    assert due(live)
    assert due(live), "asking takes nothing away"
    assert live.camera.status().frames_decoded == 0
    frame = make(live)
    assert frame is not None
    assert index_of(frame) == 0
    assert not due(live, frame)
    assert make(live, frame) is None
    assert live.camera.status().frames_unseen == 0, "it was handed over"


def test_what_comes_while_a_turn_is_waited_for_is_decoded_in_one_go_and_the_newest_wins(live: ByHand) -> None:
    live.send(1, every_s=0.1)
    assert due(live)
    live.send(3, every_s=0.1)
    frame = make(live)
    assert frame is not None
    assert index_of(frame) == 3
    assert frame.captured_s == live.clock.time_s
    status = live.camera.status()
    assert (status.frames_decoded, status.frames_unseen) == (1, 0), "no picture was made for nobody"


def test_every_wanted_frame_comes_in_order(live: ByHand) -> None:
    frames: list[Frame] = []
    for _ in range(2 * FRAMES):
        live.send(1, every_s=0.1)
        assert due(live, frames[-1] if frames else None)
        frame = make(live, frames[-1] if frames else None)
        assert frame is not None
        frames.append(frame)
    assert [index_of(frame) for frame in frames] == list(range(FRAMES)) * 2
    assert [frame.seq for frame in frames] == list(range(2 * FRAMES))


def test_between_two_wanted_frames_nothing_is_due_and_nobody_is_woken(live: ByHand) -> None:
    woken: list[int] = []
    live.camera.want(fps=FPS / 3)
    live.camera._rate.restart(FPS)
    live.camera._work.notify_all = lambda: woken.append(1)  # type: ignore[method-assign]
    frame: Frame | None = None
    made = []
    for turn in range(30):
        live.send(1, every_s=0.1)
        if due(live, frame):
            frame = make(live, frame)
            assert frame is not None
            made.append(turn)
    assert np.diff(made) == pytest.approx(3)
    assert len(woken) <= len(made) + 1


def test_when_keyframes_come_often_enough_only_those_are_decoded(live: ByHand) -> None:
    live.camera.want(fps=1.0)
    indexes: list[int] = []
    frame: Frame | None = None
    for _ in range(60):
        live.send(1, every_s=0.1)
        if due(live, frame):
            frame = make(live, frame)
            assert frame is not None
            indexes.append(index_of(frame))
    settled = indexes[2:]
    assert len(settled) >= 4
    assert all(index % 5 == 0 for index in settled), "a keyframe every half second"


def test_a_burst_of_a_hundred_times_the_rate_waits_encoded(live: ByHand) -> None:
    frame: Frame | None = None
    for second in range(3):
        live.send(100 * int(FPS))
        live.clock.time_s += 0.11
        assert due(live, frame)
        frame = make(live, frame)
        assert frame is not None
        assert index_of(frame) == (1000 * (second + 1) - 1) % FRAMES, "the newest frame won"
        assert len(live.camera._queue) <= MOST_PACKETS
        assert live.camera._queue.size_bytes <= MOST_BYTES
    assert live.camera.status().frames_decoded == 3
    assert live.camera.status().packets_dropped > 2700


@pytest.mark.parametrize("step_s", [3600.0, -3600.0, 1e9, -1.7e9])
def test_a_step_of_the_wall_clock_changes_stamps_and_nothing_else(clip: Path, step_s: float) -> None:
    taken = []
    for by_s in (0.0, step_s):
        live = ByHand(clip)
        live.camera._told_to_stop = live.camera._stopping = threading.Event()
        live.camera.want(fps=5.0)
        frame: Frame | None = None
        seen = []
        for turn in range(60):
            live.clock.wall_s += by_s if turn == 30 else 0.0
            live.send(1, every_s=0.1)
            if due(live, frame):
                frame = make(live, frame)
                assert frame is not None
                seen.append((index_of(frame), frame.captured_s))
        taken.append(seen)
    assert taken[0] == taken[1]
    assert len(taken[0]) == pytest.approx(30, abs=1)


def test_who_only_looks_sees_what_was_decoded_last(live: ByHand) -> None:
    live.send(1, every_s=0.1)
    frame = make(live)
    assert live.ask() is frame
    live.send(1, every_s=0.1)
    assert live.ask() is frame, "a look decodes nothing"


def test_a_frame_that_the_decoders_thread_had_made_already_will_do(live: ByHand, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live.camera._relief, "wait", lambda timeout: True)
    live.clock.time_s += DEMAND_S + 1.0  # nobody decodes himself any more
    live.ask()
    live.send(1, every_s=0.1)
    assert live.decode() == 1
    assert not due(live), "its thread may be busy yet"
    live.decode()
    assert due(live)
    frame = make(live)
    assert frame is not None
    assert (index_of(frame), live.camera.status().frames_decoded) == (0, 1)


# --- the decoder's own thread -----------------------------------------------------------------------------------------


class Relief:
    """How long the decoder's thread was willing to stand back."""

    def __init__(self, live: ByHand, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waited_s: list[float] = []
        monkeypatch.setattr(live.camera._relief, "wait", self.waited_s.append)


def test_the_decoders_thread_stands_back_while_somebody_decodes_himself(live: ByHand, monkeypatch: pytest.MonkeyPatch) -> None:
    relief = Relief(live, monkeypatch)
    live.send(1, every_s=0.1)
    assert due(live)
    assert live.decode() == 0
    assert relief.waited_s == [pytest.approx(DEMAND_S)]
    frame = make(live)
    assert frame is not None
    assert live.camera.threads()[1].silent_s == 0.0


def test_and_goes_on_for_those_who_look_when_nobody_has_come_back_for_a_while(
    live: ByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    relief = Relief(live, monkeypatch)
    live.send(1, every_s=0.1)
    assert due(live)
    for _ in range(60):  # the one who decoded has died
        live.send(1, every_s=0.1)
        live.ask()
        live.decode()
    assert relief.waited_s
    assert max(relief.waited_s) <= DEMAND_S
    assert live.camera.status().frames_decoded >= 8, "a second after the five"
    frame = live.ask()
    assert frame is not None
    assert frame.captured_s == live.clock.time_s


def test_one_who_waits_for_long_goes_on_asking(live: ByHand, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    def wait(timeout_s: float) -> bool:
        """Time passes, and a packet comes that nobody decodes: the one who decoded himself has stopped."""
        waits.append(timeout_s)
        live.send(1, every_s=timeout_s)
        assert live.camera._is_wanted(live.camera._clock.now_s())
        if len(waits) >= 4:
            live.decode()
        return True

    monkeypatch.setattr(live.camera._frames, "wait", wait)
    monkeypatch.setattr(live.camera._relief, "wait", lambda timeout: True)
    assert not due(live)  # its claim
    frame = live.camera.next_frame(after_seq=-1, timeout_s=PATIENCE_S)
    assert frame is not None
    assert max(waits) < DEMAND_S
    assert frame.captured_s == live.clock.time_s


def test_its_last_batch_is_waited_for(live: ByHand, monkeypatch: pytest.MonkeyPatch) -> None:
    Relief(live, monkeypatch)
    live.clock.time_s += DEMAND_S + 1.0
    live.ask()
    live.send(1, every_s=0.1)
    batch, alone = live.camera._next_batch()
    assert batch
    live.send(1, every_s=0.1)
    assert not due(live), "one thread at a time is in a decoder"
    assert make(live) is None
    live.camera._decode(batch, alone=alone)
    live.camera._next_batch()
    assert due(live)


# --- faults -----------------------------------------------------------------------------------------------------------


def test_a_picture_that_throws_costs_itself_and_is_counted_by_the_camera(live: ByHand, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = camera_module._pictures, []

    def sometimes(item: _Queued, *, alone: bool) -> list[_Picture]:
        calls.append(1)
        if len(calls) % 3 == 0:
            raise MemoryError("rtsp://user:hunter2@cam/ made up")
        return real(item, alone=alone)

    monkeypatch.setattr(camera_module, "_pictures", sometimes)
    frame: Frame | None = None
    none = 0
    for _ in range(30):
        live.send(1, every_s=0.1)
        assert due(live, frame)
        made = make(live, frame)
        none += made is None
        frame = made or frame
        assert not due(live, frame), "what was lost is not tried again and again"
    decoder = live.camera.threads()[1]
    assert decoder.faults == 10
    assert 10 <= none <= 20, "what refers to a lost picture is none either"
    assert decoder.done == 30 - none
    assert "hunter2" not in decoder.fault


def test_a_camera_that_stops_in_the_middle_of_a_picture_gives_none_and_nobody_spins(live: ByHand) -> None:
    live.send(1, every_s=0.1)
    frame = make(live)
    assert frame is not None
    live.clock.time_s += 0.1
    whole = next(live._packets)
    half = Packet(bytes(whole)[: whole.size // 3])
    half.pts, half.dts, half.time_base = whole.pts, whole.dts, whole.time_base
    live.camera._take(half, live.session, None)
    assert due(live, frame)
    cut = make(live, frame)
    for _ in range(20):
        live.clock.time_s += 0.1
        assert not due(live, cut or frame), "nothing more came"
    live.send(10, every_s=0.1)  # it is back, with a keyframe among them
    later = make(live, cut or frame)
    assert later is not None
    assert later.captured_s == live.clock.time_s


class Stuck:
    """A decoder from which the first call does not come back before `go`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.inside, self.go = threading.Event(), threading.Event()
        real = camera_module._pictures

        def pictures(item: _Queued, *, alone: bool) -> list[_Picture]:
            if not self.inside.is_set():
                self.inside.set()
                assert self.go.wait(PATIENCE_S)
            return real(item, alone=alone)

        monkeypatch.setattr(camera_module, "_pictures", pictures)


def test_one_that_hangs_in_the_decoder_is_seen_and_nobody_follows_it_in(live: ByHand, monkeypatch: pytest.MonkeyPatch) -> None:
    stuck, made = Stuck(monkeypatch), []
    live.send(1, every_s=0.1)
    thread = threading.Thread(target=lambda: made.append(make(live)), daemon=True)
    thread.start()
    assert stuck.inside.wait(PATIENCE_S)
    live.send(5, every_s=0.1)
    assert not due(live)
    assert make(live) is None
    live.clock.time_s += 70.0
    reader, decoder = live.camera.threads()
    assert decoder.silent_s == pytest.approx(70.5)
    monkeypatch.setattr(live.camera, "_run", lambda *_: None)
    live.camera.restart()
    assert live.camera.threads()[1].silent_s == 0.0, "it is judged anew"
    assert not due(live), "and nobody follows it in all the same"
    live.clock.time_s += 10.0
    assert live.camera.threads()[1].silent_s == pytest.approx(10.0)
    stuck.go.set()
    thread.join(PATIENCE_S)
    assert [index_of(frame) for frame in made] == [0], "what it was about is still the older one"
    live.send(5, every_s=0.1)
    assert due(live, made[0])
    newest = make(live, made[0])
    assert newest is not None
    assert newest.seq > made[0].seq
    assert newest.captured_s == live.clock.time_s


def test_a_camera_that_is_stopped_tells_who_takes_its_frames(live: ByHand) -> None:
    told: list[bool] = []
    assert not due(live, wake=lambda: told.append(True))
    told.clear()
    live.camera.stop()
    assert told
    assert not due(live)
    live.send(1, every_s=0.1)
    assert not due(live)
    assert make(live) is None
    assert live.camera.threads()[1].silent_s == 0.0


def test_who_takes_frames_is_told_when_the_one_it_asked_for_is_there_and_of_no_other(live: ByHand) -> None:
    told: list[float] = []
    assert not due(live, wake=lambda: told.append(live.clock.time_s))
    told.clear()
    live.send(1, every_s=0.1)
    assert len(told) == 1, "the first that comes"
    live.camera.want(fps=FPS / 4)
    frame = make(live)
    assert frame is not None
    assert not due(live, frame, wake=lambda: told.append(live.clock.time_s))
    told.clear()
    live.send(8, every_s=1.0 / FPS)
    assert told, "one of them"
    assert min(told) - frame.captured_s > 2.0 / FPS, "but not those in between"
    assert due(live, frame)


def test_undecodable_is_what_was_tried_and_not_what_waits_for_a_turn(live: ByHand, monkeypatch: pytest.MonkeyPatch) -> None:
    live.camera._machine.handle(Start(), live.clock.now_s())
    live.camera._handle(Opened())
    monkeypatch.setattr(camera_module, "_pictures", lambda item, alone: [])
    live.send(1, every_s=0.1)
    assert make(live) is None
    live.send(1, every_s=UNDECODABLE_S + 1.0)
    due(live)
    live.camera._check()  # a long wait for a turn says nothing of the video
    assert make(live) is None
    with pytest.raises(StreamError, match="cannot be decoded"):
        live.camera._check()


steps = st.lists(st.sampled_from(["send", "burst", "decode", "due", "make", "look", "forget", "faster", "slower"]), max_size=60)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(steps=steps)
def test_in_any_order_with_the_decoders_thread_memory_is_bounded_and_frames_never_go_back(clip: Path, steps: list[str]) -> None:
    live = ByHand(clip)
    live.camera._told_to_stop = live.camera._stopping = threading.Event()
    live.camera._relief.wait = lambda timeout: True  # type: ignore[method-assign]
    live.camera._work.wait = lambda timeout: True  # type: ignore[method-assign]
    made = [(-1, float("-inf"))]

    def take() -> None:
        frame = live.camera.make(after_seq=made[-1][0])
        if frame is not None:
            made.append((frame.seq, frame.captured_s))

    does: dict[str, Callable[[], object]] = {
        "send": lambda: live.send(1, every_s=0.1),
        "burst": lambda: live.send(60),
        "decode": live.decode,
        "due": lambda: live.camera.until_due(after_seq=made[-1][0], wake=lambda: None),
        "make": take,
        "look": live.ask,
        "forget": lambda: setattr(live.clock, "time_s", live.clock.time_s + DEMAND_S + 1),
        "faster": lambda: live.camera.want(fps=0.0),
        "slower": lambda: live.camera.want(fps=1.0),
    }
    for step in steps:
        does[step]()
        status = live.camera.status()
        assert status.frames_unseen <= status.frames_decoded <= live.sent
    assert made == sorted(made)
    assert len({seq for seq, _ in made}) == len(made)


# --- pictures that are made when they are asked for -------------------------------------------------------------------


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with each picture that is made in RGB."""
    pictures: list[int] = []
    real = RgbMaker.make

    def counted(self: RgbMaker, frame: VideoFrame, *, height_px: int = 0) -> np.ndarray:
        pictures.append(1)
        return real(self, frame, height_px=height_px)

    monkeypatch.setattr(RgbMaker, "make", counted)
    return pictures


def test_the_whole_picture_is_made_for_who_asks_for_it(live: ByHand, made: list[int]) -> None:
    live.send(1, every_s=0.1)
    first = make(live)
    assert len(made) == 1, "the first of its sort is made at once: one that cannot be is lost here, where that is counted"
    live.send(1, every_s=0.1)
    assert due(live, first)
    second = make(live, first)
    assert second is not None
    assert second.size_px == (64, 48)
    assert second.halved(32).shape == (24, 32, 3)
    assert abs(float(second.halved(32).mean()) - 8) < 2
    assert len(made) == 1
    assert index_of(second) == 1
    assert second.image is second.image
    assert len(made) == 2


def test_the_decoders_thread_makes_the_picture_for_who_takes_it(live: ByHand, made: list[int]) -> None:
    live.clock.time_s += DEMAND_S + 1  # nobody has decoded himself for a while
    for n in range(1, 4):
        live.ask()
        live.send(1, every_s=0.1)
        assert live.decode() == 1
        assert len(made) == n


def test_where_somebody_looks_for_movement_the_picture_is_made_for_that(live: ByHand, made: list[int]) -> None:
    live.camera.want(fps=FPS, regions=True)
    frame = None
    for n in range(1, 4):
        live.send(1, every_s=0.1)
        assert due(live, frame)
        frame = make(live, frame)
        assert frame is not None
        assert frame.regions is not None
        assert frame.image is not None
        assert len(made) == n


def test_a_mask_is_in_pictures_that_are_made_later_and_a_frame_keeps_those_of_its_time(live: ByHand) -> None:
    live.send(5, every_s=0.1)
    before = make(live)
    assert before is not None
    live.camera.mask((Mask(((0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0))),))
    live.send(1, every_s=0.1)
    assert due(live, before)
    after = make(live, before)
    assert after is not None
    assert before.image.any()
    assert not after.halved(32).any()
    assert not after.image.any()


def test_frames_stay_what_they_are_when_the_stream_is_opened_anew(live: ByHand) -> None:
    live.send(3, every_s=0.1)
    first = make(live)
    live.send(1, every_s=0.1)
    assert due(live, first)
    held = make(live, first)
    assert held is not None
    live._packets = live._endless()  # another decoder, and the one before is gone
    live.send(5, every_s=0.1)
    assert due(live, held)
    later = make(live, held)
    assert later is not None
    assert abs(float(held.halved(32).mean()) - 24) < 2
    assert [index_of(later), index_of(held)] == [4, 3]


def test_a_picture_that_cannot_be_made_costs_itself_and_is_counted(live: ByHand, monkeypatch: pytest.MonkeyPatch) -> None:
    def cannot(self: RgbMaker, frame: VideoFrame, *, height_px: int = 0) -> np.ndarray:
        raise ValueError("no such colours")

    with monkeypatch.context() as broken:
        broken.setattr(RgbMaker, "make", cannot)
        live.send(1, every_s=0.1)
        assert make(live) is None
    look = next(thread for thread in live.camera.threads() if thread.name == "decoder")
    assert look.faults == 1
    assert "no such colours" in look.fault
    live.send(1, every_s=0.1)
    assert make(live) is not None
