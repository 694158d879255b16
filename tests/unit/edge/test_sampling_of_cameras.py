"""The sampler: a frame of every camera now and then, a disk that fills up, in virtual time."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace

import numpy as np
import pytest

from configs.files import full
from edge.clock import FakeClock
from edge.sampling import Sampler
from scheduler.types import Frame
from tests.support.fakes import StillCamera


class Kept:
    """A sample store in a list; full, or odd, while told so."""

    def __init__(self) -> None:
        self.samples: list[tuple[str, int, int]] = []
        self.full = False
        self.odd_stream = ""

    def add(self, frame: Frame, window: int) -> None:
        if self.full:
            raise full(f"samples/{frame.stream}/{frame.seq}.jpg")
        if frame.stream == self.odd_stream:
            raise ValueError("an odd picture")
        self.samples.append((frame.stream, window, frame.seq))


@pytest.fixture
def kept() -> Kept:
    return Kept()


def sampler_of(kept: Kept, *ids: str, fps: float = 1.0, clock: FakeClock | None = None) -> tuple[Sampler, list[StillCamera]]:
    sampler = Sampler(kept, fps=fps, clock=clock or FakeClock())
    cameras = [StillCamera(id) for id in ids]
    for camera in cameras:
        sampler.add(camera)
    return sampler, cameras


def test_one_frame_of_every_camera_and_none_twice(kept: Kept) -> None:
    sampler, (a, b) = sampler_of(kept, "a", "b")
    a.show(5)
    assert sampler.sample_once() == 1
    b.show(3)
    assert sampler.sample_once() == 1
    assert sampler.sample_once() == 0
    assert kept.samples == [("a", 0, 5), ("b", 0, 3)]


def test_a_frame_in_which_nothing_moves_is_not_kept(kept: Kept) -> None:
    sampler, (a,) = sampler_of(kept, "a")
    for seq, regions in ((1, np.zeros((0, 4))), (2, np.ones((2, 4))), (3, None), (4, np.zeros((0, 4)))):
        a.show(seq)
        assert a.newest is not None
        a.newest = replace(a.newest, regions=regions)
        assert sampler.sample_once() == (0 if seq in (1, 4) else 1)
        assert sampler.sample_once() == 0, "nor looked at twice"
    assert [seq for _, _, seq in kept.samples] == [2, 3], "a camera that nobody asks for movement is sampled as ever"


def test_a_new_window_gets_what_comes_from_then_on(kept: Kept) -> None:
    sampler, (a,) = sampler_of(kept, "a")
    a.show(1)
    sampler.sample_once()
    sampler.window = 7
    a.show(2)
    sampler.sample_once()
    assert kept.samples == [("a", 0, 1), ("a", 7, 2)]


def test_a_removed_camera_is_left_alone(kept: Kept) -> None:
    sampler, (a, b) = sampler_of(kept, "a", "b")
    sampler.remove("a")
    sampler.remove("nobody")
    a.show(1)
    b.show(1)
    sampler.sample_once()
    assert kept.samples == [("b", 0, 1)]


def test_a_full_disk_is_said_once_and_tried_again(kept: Kept, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "driftbox")
    sampler, (a, b) = sampler_of(kept, "a", "b")
    kept.full = True
    for seq in range(5):
        a.show(seq)
        b.show(seq)
        assert sampler.sample_once() == 0
    said = [r.message for r in caplog.records if "sampling stopped" in r.message]
    assert len(said) == 1, "each sample has another file name; it is the same disk"
    assert "no space left" in sampler.problem
    kept.full = False
    a.show(9)
    assert sampler.sample_once() == 1
    assert sampler.problem == ""
    kept.full = True
    a.show(10)
    sampler.sample_once()
    assert sum("sampling stopped" in r.message for r in caplog.records) == 2, "a second time is news"


def test_little_room_stops_sampling_before_the_disk_is_full(kept: Kept) -> None:
    room = [False]

    def require_room() -> None:
        if not room[0]:
            raise full("data (100 MiB left, 512 MiB wanted)")

    sampler = Sampler(kept, fps=1.0, clock=FakeClock(), require_room=require_room)
    camera = StillCamera("a")
    sampler.add(camera)
    camera.show(1)
    assert sampler.sample_once() == 0
    assert "512 MiB wanted" in sampler.problem
    room[0] = True
    camera.show(2)
    assert sampler.sample_once() == 1
    assert sampler.problem == ""


def test_an_odd_picture_does_not_cost_the_other_cameras_theirs(kept: Kept) -> None:
    sampler, (a, b) = sampler_of(kept, "a", "b")
    kept.odd_stream = "a"
    a.show(1)
    b.show(1)
    assert sampler.sample_once() == 1
    assert kept.samples == [("b", 0, 1)]
    assert sampler.problem == "", "nothing is wrong with the disk"


@pytest.mark.parametrize("fps", [0.5, 1.0, 2.0])
def test_the_wanted_rate_in_virtual_time(kept: Kept, fps: float) -> None:
    clock = FakeClock()
    sampler, (a,) = sampler_of(kept, "a", fps=fps, clock=clock)
    clock.spawn(sampler.run)
    for n in range(200):  # 20 s, a frame every 100 ms
        a.show(n)
        clock.advance_to(n * 0.1)
    sampler.stop()
    clock.join()
    assert len(kept.samples) == pytest.approx(20 * fps, abs=1)


def test_after_a_long_sleep_nothing_is_caught_up(kept: Kept) -> None:
    clock = FakeClock()
    calls = threading.Semaphore(0)
    sampler, (a,) = sampler_of(kept, "a", fps=1.0, clock=clock)
    inner = sampler.sample_once

    def slow() -> int:
        calls.release()
        if clock.monotonic_s() < 30:
            clock.sleep(60.0)  # the disk hangs
        return inner()

    sampler.sample_once = slow  # type: ignore[method-assign]
    clock.spawn(sampler.run)
    clock.advance_to(65.0)
    sampler.stop()
    clock.join()
    count = 0
    while calls.acquire(blocking=False):
        count += 1
    assert count == 7, "one that hung for a minute, then one a second and no rush for the missed sixty"


def test_stop_without_start_is_fine(kept: Kept) -> None:
    sampler_of(kept, "a")[0].stop()
