"""Labels in which there is no object: they say nothing of a model, and nothing can be learned from them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler import drift
from scheduler.commands import Command, StartLabelling, StartProfiling, StartRetraining
from scheduler.engine import BoxEngine
from scheduler.engine_state import EngineConfig
from scheduler.events import BoxStarted, CameraAdded, LabelDone
from scheduler.turns import FIRST_FRAC, expected_gain
from tests.unit.scheduler.test_engine_left_to_win import LEFT
from tests.unit.scheduler.test_engine_tries_again import KNOBS, of, promise


def labelled(quality: float | None, *, holdout: int = 8, config: EngineConfig = LEFT) -> tuple[BoxEngine, list[Command]]:
    """A camera of 0.62 that never learned, after the labels of its first window."""
    engine = BoxEngine(config)
    engine.handle(CameraAdded(at_s=0, stream="a", knobs=KNOBS, version="a-1", quality=0.62))
    (label,) = of(StartLabelling, engine.handle(BoxStarted(at_s=0, window=1)))
    done = LabelDone(
        at_s=2, job=label.job, stream="a", train=12, holdout=holdout, quality=quality, gpu_s=1.0, golden_gpu_s=0.05
    )
    return engine, engine.handle(done)


def test_an_empty_street_changes_nothing_of_what_is_believed_of_the_model() -> None:
    stream = labelled(None)[0].state.streams["a"]
    assert stream.quality == 0.62
    assert stream.measured is None
    assert "no object" in stream.remark


def test_nothing_is_profiled_and_nothing_promised_until_the_scene_changes() -> None:
    engine, told = labelled(None)
    stream = engine.state.streams["a"]
    assert not of(StartProfiling, told)
    assert stream.gains == [0.0]
    assert promise(stream, LEFT) == 0.0
    assert drift.settled(stream.gains, min_gain=LEFT.min_gain), "it is looked at, and labelled in full only when it has drifted"
    assert expected_gain(stream.gains, 0.62, FIRST_FRAC, drifted=True, of_missing=True) > 0.0


def test_with_objects_it_is_profiled() -> None:
    engine, told = labelled(0.6)
    assert of(StartProfiling, told)
    assert engine.state.streams["a"].gains == []
    assert engine.state.streams["a"].quality == pytest.approx(0.6)


def test_where_no_frame_was_held_out_nobody_knows_whether_there_are_objects() -> None:
    assert labelled(None, holdout=0)[0].state.streams["a"].gains == []


def test_few_labels_of_a_camera_that_is_only_measured_leave_what_it_has_won() -> None:
    engine = BoxEngine(LEFT)
    engine.handle(CameraAdded(at_s=0, stream="a", knobs=KNOBS, version="a-1", quality=0.62))
    (label,) = of(StartLabelling, engine.handle(BoxStarted(at_s=0, window=1)))
    stream = engine.state.streams["a"]
    stream.full, stream.gains = False, [0.3]
    engine.handle(LabelDone(at_s=2, job=label.job, stream="a", train=5, holdout=3, quality=None, gpu_s=1.0))
    assert stream.gains == [0.3]


def test_a_fixed_split_retrains_whatever_the_labels_that_judge_hold() -> None:
    engine, told = labelled(None, config=replace(LEFT, policy="uniform(full,50)"))
    assert of(StartRetraining, told)
    assert engine.state.streams["a"].gains == []
