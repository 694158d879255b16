"""Models that queries ask beside the camera's own, and how a worker treats its queries."""

from __future__ import annotations

from dataclasses import replace

import pytest

from configs.errors import EnvironmentLacking
from edge.clock import SystemClock
from edge.inference import InferenceWorker, Shown
from edge.queries.base import Tools
from edge.queries.models import QueryModels
from edge.queries.registry import build_query, query_spec
from models.detector import Detector
from models.fake import FakeDetector
from tests.support.fakes import FreeLane, StillCamera
from tests.support.query_scenes import entries_of, moving_scene


class Held(FakeDetector):
    """A detector that must be given back."""

    def __init__(self) -> None:
        super().__init__(skill=1.0)
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


def test_each_model_is_opened_once_and_given_back() -> None:
    opened: list[tuple[str, str, Held]] = []

    def open_model(model: str, task: str) -> Detector:
        opened.append((model, task, Held()))
        return opened[-1][2]

    models = QueryModels("gate", open_model)
    detector, classifier = models.of("detection"), models.of("classification")
    assert detector("") is detector("")
    assert classifier("") is not detector("")
    assert detector("yolov8s") is not detector("")
    assert [(model, task) for model, task, _ in opened] == [("", "detection"), ("", "classification"), ("yolov8s", "detection")]
    models.close()
    models.close()
    assert [held.closed for _, _, held in opened] == [1, 1, 1]


def test_without_a_queue_no_model_runs_beside_the_cameras_own() -> None:
    models = QueryModels("gate", None)
    [entry] = entries_of("{name: a, template: count}")
    tools = Tools(camera_id="gate", detector=models.of("detection"))
    detect = build_query(query_spec(entry, task="detection"), tools)["detect"]
    assert detect.process(moving_scene(0, shown=FakeDetector(skill=1.0).predict([moving_scene(0).image])[0]), []) is not None
    with pytest.raises(EnvironmentLacking, match=r"scheduler\.serving to orloj"):
        detect.process(moving_scene(0), [])


class LaggingCamera(StillCamera):
    may_lag = True


def worker_of(camera: StillCamera) -> InferenceWorker:
    return InferenceWorker(camera, FreeLane(), FakeDetector(skill=1.0), "v1", clock=SystemClock(), score_min=0.25)


def test_each_analysed_frame_is_told_once() -> None:
    camera = StillCamera("gate")
    worker, told = worker_of(camera), list[Shown]()
    worker.on_shown = told.append
    for seq in range(3):
        camera.show(seq)
        worker.step()
    worker.step()  # nothing new
    assert [shown.frame.seq for shown in told] == [0, 1, 2]
    assert told[-1] is worker.shown()


def test_only_a_recording_waits_for_who_is_behind() -> None:
    for camera, waits in ((StillCamera("live"), False), (LaggingCamera("recording"), True)):
        worker = worker_of(camera)
        worker.hold = lambda: True
        camera.show(0)
        rest_s = worker.step()
        assert (worker.shown() is None) is waits
        assert (rest_s > 0) is waits
        worker.hold = lambda: False
        worker.step()
        assert worker.shown() is not None


def test_a_frame_that_nobody_can_take_does_not_end_the_worker() -> None:
    from edge.queries.live import CameraQueries

    camera = StillCamera("gate")
    [entry] = entries_of("{name: a, template: count}")
    queries = CameraQueries([query_spec(entry, task="detection")], Tools(camera_id="gate"), clock=SystemClock())
    worker = worker_of(camera)
    worker.on_shown = queries.on_shown
    camera.show(0)
    worker.step()
    shown = worker.shown()
    assert shown is not None
    queries.on_shown(replace(shown, frame=None))  # type: ignore[arg-type]
    assert worker.errors == 0
    queries.stop()
