"""A recording that may lag, through the worker of the box: every wanted frame is analysed, in order, however slow the model is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from configs.schema import CameraEntry
from edge.clock import FakeClock
from edge.inference import InferenceWorker
from models.fake import FakeDetector
from scheduler.types import Detections, KnobProfile
from streams.camera import PyavCamera, open_camera
from streams.encode import write_video
from streams.source import CameraState
from streams.url import SourceUrl
from tests.support.fakes import FreeLane

FPS, FRAMES = 10.0, 24


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    """Picture k is a plain grey of 8 * k."""
    path = tmp_path / "clip.mp4"
    write_video(path, (np.full((96, 128, 3), 8 * k, np.uint8) for k in range(FRAMES)), fps=FPS, keyframe_s=0.5)
    return path


class Watching(FakeDetector):
    """Notes which pictures it was asked about; each takes `takes_s` of the test's clock."""

    def __init__(self, clock: FakeClock, takes_s: float) -> None:
        super().__init__()
        self.asked: list[int] = []
        self._clock, self._takes_s = clock, takes_s

    def predict(self, images: Sequence[np.ndarray], **options: object) -> list[Detections]:  # type: ignore[override]
        self.asked += [round(float(image.mean()) / 8) for image in images]
        self._clock.advance_to(self._clock.monotonic_s() + self._takes_s)
        return [Detections.empty() for _ in images]


class CameraClock:
    """The worker's clock, as a camera asks for it."""

    def __init__(self, clock: FakeClock) -> None:
        self.now_s: Callable[[], float] = clock.monotonic_s
        self.utc: Callable[[], float] = clock.utc_s

    def wait(self, event: object, timeout_s: float) -> bool:
        return event.is_set()  # type: ignore[attr-defined, no-any-return]


def worked_off(clip: Path, *, takes_s: float, fps: float) -> tuple[list[int], list[float], InferenceWorker]:
    """(pictures asked about, lag after each, the worker) when a recording was worked off to its end."""
    clock = FakeClock()
    camera = PyavCamera("cam", SourceUrl(str(clip)), realtime=False, clock=CameraClock(clock))
    detector = Watching(clock, takes_s)
    worker = InferenceWorker(camera, FreeLane(), detector, "cam-1", clock=clock, score_min=0.25)
    worker.set_knobs(KnobProfile(name="k", demand_pct=10.0, quality_frac=1.0, fps=fps))
    camera.want(fps=fps)
    camera.start()
    lags: list[float] = []
    try:
        while camera.status().state is not CameraState.ENDED or worker.frames < FRAMES * min(fps, FPS) / FPS:
            before = worker.frames
            worker.step()
            lags += [camera.lag_s] * (worker.frames - before)
    finally:
        camera.stop()
    return detector.asked, lags, worker


@pytest.mark.parametrize("fps", [5.0, 10.0])
def test_a_model_slower_than_the_video_leaves_nothing_out_and_the_lag_grows(clip: Path, fps: float) -> None:
    asked, lags, worker = worked_off(clip, takes_s=0.5, fps=fps)
    assert asked == list(range(0, FRAMES, round(FPS / fps)))
    assert lags[:-1] == pytest.approx([n * (0.5 - 1 / fps) for n in range(1, len(asked))], abs=1e-6)
    assert (worker.frames, worker.errors) == (len(asked), 0)


def test_a_model_faster_than_the_video_does_not_wait_for_the_clock(clip: Path) -> None:
    asked, lags, worker = worked_off(clip, takes_s=0.001, fps=10.0)
    assert asked == list(range(FRAMES))
    assert set(lags) == {0.0}
    shown = worker.shown()
    assert shown is not None
    assert shown.lag_s == 0.0


def test_the_setting_of_a_camera_reaches_it(clip: Path) -> None:
    entry = CameraEntry.model_validate({"id": "night", "url": str(clip), "may_lag": True})
    assert open_camera(entry.id, SourceUrl(entry.url.resolve()), realtime=not entry.may_lag).may_lag
    assert not CameraEntry.model_validate({"id": "night", "url": str(clip)}).may_lag
