"""A camera's own thread, its model and its queries together: things that move are counted while frames are analysed."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from edge.clock import SystemClock
from edge.inference import InferenceWorker
from edge.queries.base import Tools
from edge.queries.live import CameraQueries, specs_of
from edge.queries.runner import Outcome
from models.fake import FakeDetector
from scheduler.types import Detections
from tests.support.fakes import FreeLane, StillCamera
from tests.support.query_scenes import HEIGHT, WIDTH, at_centre, boxes, entries_of, frame_at

PATIENCE_S = 120.0
LINES = "{name: gate, template: lines, lines: {mid: [[0.0, 0.5], [1.0, 0.5]]}}"
DWELL = "{name: lower, template: dwell, zones: {half: [[0, 0.5], [1, 0.5], [1, 1], [0, 1]]}}"


class MovingThings(FakeDetector):
    """Three cars that drive down, one of them after a while, and a person who stands in the lower half. Which frame it is stands in the
    picture's first pixel."""

    def predict(self, images: Sequence[np.ndarray], *, score_min: float = 0.25, yield_point: Any = None) -> list[Detections]:
        return [self._of(int(image[0, 0, 0])) for image in images]

    def _of(self, index: int) -> Detections:
        cars = [at_centre(60, 10 + 8 * index, 30), at_centre(140, 20 + 8 * index, 30), at_centre(220, 8 * index - 80, 30)]
        seen = boxes(*[box for box in cars if box[1] > 0 and box[3] < HEIGHT])
        person = boxes(at_centre(290, 170, 30), class_id=0)
        return Detections(
            xyxy=np.concatenate([seen.xyxy, person.xyxy]),
            score=np.concatenate([seen.score, person.score]),
            class_id=np.concatenate([seen.class_id, person.class_id]),
        )


class Latest:
    """Waits until a query has answered a frame."""

    def __init__(self) -> None:
        self.told: dict[str, Outcome] = {}
        self._changed = threading.Condition()

    def __call__(self, outcome: Outcome) -> None:
        with self._changed:
            self.told[outcome.query] = outcome
            self._changed.notify_all()

    def wait_for(self, query: str, seq: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: query in self.told and self.told[query].seq >= seq, PATIENCE_S)


def test_things_that_move_are_counted_while_frames_are_analysed() -> None:
    camera, latest, clock = StillCamera("gate"), Latest(), SystemClock()
    usable, broken = specs_of(entries_of(LINES, DWELL), task="detection")
    assert broken == {}
    queries = CameraQueries(usable, Tools(camera_id="gate", fps=10.0), clock=clock, on_outcome=latest)
    worker = InferenceWorker(camera, FreeLane(), MovingThings(), "v1", clock=clock, score_min=0.25)
    worker.on_shown = queries.on_shown
    try:
        for index in range(36):
            frame = frame_at(index / 10, seq=index)
            frame.image[0, 0] = index
            camera.newest = replace(frame, stream="gate")
            worker.step()
            latest.wait_for("lower", index)
        assert worker.frames == 36
        assert worker.errors == 0
        crossed = latest.told["gate"].told["lines"]["lines"]["mid"]
        assert crossed["out"] == 3
        assert crossed["in"] == 0
        assert crossed["classes"]["out"] == {"car": 3}
        stays = latest.told["lower"].told["dwell"]["zones"]["half"]
        assert stays["inside"] >= 1
        assert 3.0 <= stays["longest_now_s"] <= 3.5
        reports = {report.name: report for report in queries.reports()}
        assert {report.failed_frames for report in reports.values()} == {0}
        assert reports["gate"].frames == 36
        assert latest.told["gate"].scene is not None
        assert latest.told["gate"].scene.size_px == (WIDTH, HEIGHT)
    finally:
        queries.stop()
        queries.join(PATIENCE_S)
