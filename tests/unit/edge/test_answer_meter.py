"""A camera's answers, summed up for the engine."""

from __future__ import annotations

import numpy as np
import pytest

from edge.answers import AnswerMeter
from scheduler.types import Detections


def found(*scores: float) -> Detections:
    count = len(scores)
    return Detections(
        xyxy=np.zeros((count, 4), np.float32), score=np.array(scores, np.float32), class_id=np.zeros(count, np.int64)
    )


def test_boxes_per_frame_and_their_mean_score() -> None:
    meter = AnswerMeter()
    for answer in (found(0.5, 0.7), found(), found(0.9)):
        meter.add("v1", answer)
    taken = meter.take()
    assert taken is not None
    assert (taken.version, taken.frames, taken.boxes) == ("v1", 3, 1.0)
    assert taken.score == pytest.approx(0.7)


def test_each_frame_is_told_once() -> None:
    meter = AnswerMeter()
    meter.add("v1", found(0.5))
    assert meter.take() is not None
    assert meter.take() is None
    meter.add("v1", found())
    taken = meter.take()
    assert taken is not None
    assert (taken.frames, taken.boxes, taken.score) == (1, 0.0, 0.0)


def test_another_version_begins_anew() -> None:
    meter = AnswerMeter()
    for _ in range(5):
        meter.add("v1", found(0.5, 0.5))
    meter.add("v2", found(0.9))
    taken = meter.take()
    assert taken is not None
    assert (taken.version, taken.frames, taken.boxes) == ("v2", 1, 1.0)


def test_nothing_was_answered() -> None:
    assert AnswerMeter().take() is None
