"""Cameras of a real RTSP server whose inference decodes their frames in its turns, on a processor with two of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

import streams.camera as camera_module
from edge.clock import SystemClock
from edge.gpu.lanes import LaneBackend
from edge.inference import InferenceWorker, Shown
from edge.step_pool import StepPool
from models.fake import FakeDetector
from scheduler.salus.types import MemoryNeed
from scheduler.types import KnobProfile
from streams.camera import PyavCamera, _Picture, _Queued, open_camera
from streams.rtsp_server import RtspServer
from streams.source import CameraState

FPS, WIDTH, HEIGHT = 10.0, 64, 48
PATIENCE_S = 60.0
NAMES = ("a", "b", "c", "d")


def picture(index: int) -> np.ndarray:
    return np.full((HEIGHT, WIDTH, 3), 8 * (index % 30), np.uint8)


class Fleet:
    """Cameras and their inference; what each was shown, and in which threads pictures were decoded."""

    def __init__(self, server: RtspServer) -> None:
        self.backend = LaneBackend(infer_width=2)
        self.pool = StepPool(2, SystemClock())
        self.seen: dict[str, list[Shown]] = {name: [] for name in NAMES}
        self.decoders: dict[str, int] = {}
        self.news = threading.Condition()
        self.cameras: dict[str, PyavCamera] = {}
        self.workers: dict[str, InferenceWorker] = {}
        knobs = KnobProfile(name="k", demand_pct=1.0, quality_frac=1.0, fps=FPS)
        for name in NAMES:
            camera = self.cameras[name] = open_camera(name, server.url(name))
            camera.want(fps=FPS)
            need = MemoryNeed(persistent_mib=1.0, ephemeral_mib=1.0)
            lane = self.backend.open_lane(name, role="infer", need=need)
            worker = self.workers[name] = InferenceWorker(
                camera, lane, FakeDetector(skill=1.0), "v1", clock=SystemClock(), score_min=0.25, pool=self.pool
            )
            worker.on_shown = self._hear
            worker.set_knobs(knobs)
        self.backend.set_shares(dict.fromkeys(NAMES, 40.0))

    def _hear(self, shown: Shown) -> None:
        with self.news:
            self.seen[shown.frame.stream].append(shown)
            self.news.notify_all()

    def wait_for(self, count: int, names: tuple[str, ...] = NAMES) -> None:
        """So many more frames of each."""
        with self.news:
            had = {name: len(self.seen[name]) for name in names}
            enough = self.news.wait_for(lambda: all(len(self.seen[n]) >= had[n] + count for n in names), PATIENCE_S)
        assert enough, {name: len(self.seen[name]) - had[name] for name in names}

    @contextmanager
    def running(self) -> Iterator[Fleet]:
        for name in NAMES:
            self.cameras[name].start()
            self.workers[name].start()
        try:
            yield self
        finally:
            for name in NAMES:
                self.workers[name].stop()
                self.backend.cancel(name)
                self.cameras[name].stop()
            for worker in self.workers.values():
                worker.join(PATIENCE_S)
            self.pool.close()
            self.backend.check()


@pytest.fixture
def server() -> Iterator[RtspServer]:
    made = RtspServer()
    for name in NAMES:
        made.add_frames(name, FPS, WIDTH, HEIGHT, picture, keyframe_s=0.5)
    made.start()
    yield made
    made.stop()


@pytest.fixture
def fleet(server: RtspServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    made = Fleet(server)
    real = camera_module._pictures

    def pictures(item: _Queued, *, alone: bool) -> list[_Picture]:
        sort = threading.current_thread().name.partition("-")[0]
        made.decoders[sort] = made.decoders.get(sort, 0) + 1
        return real(item, alone=alone)

    monkeypatch.setattr(camera_module, "_pictures", pictures)
    with made.running():
        yield made


def assert_in_order(fleet: Fleet) -> None:
    for name in NAMES:
        frames = [shown.frame for shown in fleet.seen[name]]
        assert [f.seq for f in frames] == sorted({f.seq for f in frames}), name
        assert all(b.captured_s >= a.captured_s for a, b in zip(frames, frames[1:], strict=False)), name


def test_frames_are_decoded_by_those_who_analyse_them_and_come_in_order(fleet: Fleet) -> None:
    fleet.wait_for(15)
    assert_in_order(fleet)
    assert set(fleet.decoders) == {"frames"}, "the decoders' own threads had nothing to do"
    assert not any(worker.errors for worker in fleet.workers.values())
    assert all(camera.threads()[1].alive for camera in fleet.cameras.values())


def test_a_server_that_goes_and_comes_back_is_decoded_again(fleet: Fleet, server: RtspServer) -> None:
    fleet.wait_for(3)
    server.disconnect("a")
    fleet.wait_for(5)
    assert fleet.cameras["a"].status().reconnects >= 1
    assert fleet.cameras["a"].status().state is CameraState.LIVE
    assert_in_order(fleet)


def test_a_camera_that_hangs_in_the_middle_keeps_nobody_waiting(fleet: Fleet, server: RtspServer) -> None:
    fleet.wait_for(3)
    server.hang("a")
    fleet.wait_for(10, NAMES[1:])
    server.resume("a")
    fleet.wait_for(3)
    assert_in_order(fleet)


def test_a_camera_whose_decoder_hangs_keeps_nobody_waiting_and_goes_on_after(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.wait_for(3)
    go, inside, stuck = threading.Event(), threading.Event(), fleet.cameras["a"]
    real = stuck._decode

    def decode(batch: list[_Queued], *, alone: bool) -> None:
        if not inside.is_set():
            inside.set()
            assert go.wait(2 * PATIENCE_S)
        real(batch, alone=alone)

    monkeypatch.setattr(stuck, "_decode", decode)
    assert inside.wait(PATIENCE_S)
    fleet.wait_for(20, NAMES[1:])
    assert stuck.threads()[1].silent_s > 0.0, "the watchdog sees it"
    go.set()
    fleet.wait_for(3)
    assert_in_order(fleet)


def test_when_inference_pauses_the_cameras_decode_for_those_who_look(fleet: Fleet) -> None:
    fleet.wait_for(3)
    for worker in fleet.workers.values():
        worker.set_knobs(None)
    looked = {name: camera.next_frame(after_seq=-1, timeout_s=0.0) for name, camera in fleet.cameras.items()}
    for name, camera in fleet.cameras.items():
        before = looked[name]
        later = camera.next_frame(after_seq=before.seq if before else -1, timeout_s=PATIENCE_S)
        assert later is not None, name
        assert camera.next_frame(after_seq=later.seq, timeout_s=PATIENCE_S) is not None, name
    assert fleet.decoders.get("decode", 0) >= len(NAMES)


def test_a_camera_that_is_restarted_is_decoded_here_again(fleet: Fleet) -> None:
    fleet.wait_for(3)
    fleet.cameras["b"].restart()
    fleet.wait_for(5)
    assert_in_order(fleet)
    assert set(fleet.decoders) == {"frames"}
