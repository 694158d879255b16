"""A camera's model goes on in a process of its own, and from there in another: real processes on the CPU, no frame missed."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from edge.clock import SystemClock
from edge.gpu.remote import RemoteClock, RemoteDetector, WorkerProcess
from edge.gpu.worker import ModelFile, Settings
from edge.inference import WATCHED_FRAMES, InferenceWorker
from edge.shadow import ShadowRules, SwapRefused
from edge.swapping import Swapper
from scheduler.types import Frame
from tests.support import remote_models as rm
from tests.support.fakes import FreeLane, StillCamera

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


class Place:
    """Camera a, whose model serves in this process; frames show one object each."""

    def __init__(self, model: ModelFile) -> None:
        self.model, self.clock, self.camera = model, RemoteClock(SystemClock()), StillCamera("a")
        self.here = rm.Rehearsing()
        self.worker = InferenceWorker(self.camera, FreeLane(), self.here, "a-1", clock=self.clock, score_min=0.25)  # type: ignore[arg-type]
        self.swapper = Swapper(
            shelf=SimpleNamespace(), store=SimpleNamespace(), clock=self.clock, serve=lambda d, c: d, serve_later=lambda d, c: d,  # type: ignore[arg-type]
            rules=ShadowRules(frames=0),
        )  # fmt: skip
        self.made: list[WorkerProcess] = []
        self.seq = 0

    def elsewhere(self, serving: object) -> RemoteDetector:
        def start() -> WorkerProcess:
            process = rm.blank()
            self.made.append(process)
            process.become(self.model, Settings(env={}))
            return process

        return RemoteDetector(rm.Rehearsing(), start, clock=self.clock)  # type: ignore[arg-type]

    def hand_over(self) -> None:
        self.swapper.hand_over(self.worker, "a", self.elsewhere)

    def frame(self) -> None:
        self.seq += 1
        image = np.repeat(np.repeat(rm.picture(level=4), 2, 0), 2, 1)
        image[1, 1] = 4
        self.camera.newest = Frame(stream="a", seq=self.seq, captured_s=0.0, captured_utc=0.0, image=image)
        self.worker.step()
        shown = self.worker.shown()
        assert shown is not None
        assert (shown.frame.seq, shown.version, len(shown.detections)) == (self.seq, "a-1", 1), "every frame is shown"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(rm.model_file(tmp_path / "weights"))
    for _ in range(3):
        made.frame()
    yield made
    for process in made.made:
        process.kill()


def gone(process: WorkerProcess) -> bool:
    end_s = time.monotonic() + 60.0
    while process.alive and time.monotonic() < end_s:
        time.sleep(0.02)
    return not process.alive


def test_from_here_to_a_process_and_on_to_another_which_ends_the_first_when_it_has_held_its_own(place: Place) -> None:
    place.hand_over()
    for _ in range(WATCHED_FRAMES + 2):
        place.frame()
    (first,) = place.made
    assert first.alive
    place.hand_over()
    for _ in range(WATCHED_FRAMES - 1):
        place.frame()
    assert first.alive, "it stands by"
    for _ in range(3):
        place.frame()
    assert gone(first)
    assert place.made[1].alive
    assert place.worker.errors == 0
    assert len(place.worker.swaps) == 2


def test_one_whose_weights_cannot_be_read_leaves_the_model_where_it_is(place: Place) -> None:
    whole = place.model
    place.model = replace(whole, path=whole.path + ".gone")
    with pytest.raises(SwapRefused, match="WeightsError"):
        place.hand_over()
    assert place.worker.serving() == ("a-1", place.here)
    place.frame()
    place.model = whole
    place.hand_over()
    place.frame()
    assert place.worker.serving()[1] is not place.here


def test_a_process_that_hangs_on_a_live_frame_is_ended_and_the_frame_is_done_where_the_model_ran_before(place: Place) -> None:
    place.hand_over()
    os.kill(place.made[0].pid, signal.SIGSTOP)
    frame = threading.Thread(target=place.frame)
    frame.start()
    while not place.worker.break_off(after_s=0.2):
        assert frame.is_alive()
        time.sleep(0.02)
    frame.join(60.0)
    assert place.worker.errors == 1
    assert gone(place.made[0])
    place.frame()  # the detector has a new process by now
    assert place.made[-1].alive
    assert place.worker.errors == 1


def test_a_process_that_is_killed_between_two_frames_is_replaced_and_nothing_is_missed(place: Place) -> None:
    place.hand_over()
    os.kill(place.made[0].pid, signal.SIGKILL)
    assert gone(place.made[0])
    for _ in range(3):
        place.frame()
    assert place.worker.errors == 0
    assert len(place.made) == 2
