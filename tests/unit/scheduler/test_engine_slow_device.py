"""A device on which no camera's turn is worth it, or fits: it is left to inference, and still seen to be faster when it is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler.codec import decode, encode
from scheduler.commands import Command, StartLabelling, StartProbe, StartProfiling
from scheduler.engine import LESSONS, WINDOW_END, BoxEngine
from scheduler.engine_state import BoxState, EngineConfig
from scheduler.events import BoxStarted, CameraAdded, LabelDone, TimerFired
from scheduler.turns import TRIED_LABELS
from tests.unit.scheduler.test_engine_tries_again import BOX, KNOBS, of

#: A label takes a quarter of the window.
SLOW = replace(BOX, prep_auto=True, golden_gpu_s=25.0, try_little=True)


def opened(config: EngineConfig = SLOW) -> tuple[BoxEngine, list[Command]]:
    engine = BoxEngine(config)
    engine.handle(CameraAdded(at_s=0, stream="a", knobs=KNOBS, version="a-1", quality=0.3))
    engine.handle(CameraAdded(at_s=0, stream="b", knobs=KNOBS, version="b-1", quality=0.6))
    return engine, engine.handle(BoxStarted(at_s=0, window=1))


def test_a_few_labels_of_the_most_promising_camera_and_nothing_after_them() -> None:
    engine, told = opened()
    (label,) = of(StartLabelling, told)
    assert (label.stream, label.frames, label.holdout_frac) == ("a", TRIED_LABELS, 1.0)
    assert engine.state.prep_pct == 5.0, "on the least share"
    told = engine.handle(
        LabelDone(at_s=60, job=label.job, stream="a", train=0, holdout=2, quality=0.0, gpu_s=3.0, golden_gpu_s=1.5)
    )
    assert not of(StartProfiling, told)
    assert not of(StartProbe, told)
    assert not of(StartLabelling, told)
    assert engine.state.streams["a"].quality == 0.3, "two frames tell nothing of a model"


def test_the_whole_turn_that_was_begun_before_in_every_window() -> None:
    _, told = opened(replace(SLOW, try_little=False))
    (label,) = of(StartLabelling, told)
    assert label.frames == SLOW.min_label_frames


def test_when_it_is_seen_to_be_faster_the_next_window_has_turns() -> None:
    engine, told = opened()
    (label,) = of(StartLabelling, told)
    engine.handle(LabelDone(at_s=3, job=label.job, stream="a", train=0, holdout=2, quality=0.0, gpu_s=0.1, golden_gpu_s=0.05))
    assert engine.state.golden_gpu_s == 0.05
    (label,) = of(StartLabelling, engine.handle(TimerFired(at_s=100, timer=WINDOW_END)))
    assert label.frames >= SLOW.min_label_frames
    assert label.holdout_frac == SLOW.holdout_frac


def test_who_is_tried_has_not_had_its_turn() -> None:
    engine, told = opened()
    (label,) = of(StartLabelling, told)
    for window in range(2, 5):
        engine.handle(
            LabelDone(at_s=100.0 * (window - 2) + 60, job=label.job, stream="a", train=0, holdout=2, quality=0.0, gpu_s=3.0)
        )
        (label,) = of(StartLabelling, engine.handle(TimerFired(at_s=100.0 * (window - 1), timer=WINDOW_END)))
    assert [engine.state.streams[id].waited for id in "ab"] == [4, 4]


def test_once_in_a_window_also_when_turns_are_chosen_anew() -> None:
    engine, told = opened(replace(SLOW, glance=True, reuse=True, learn_now=True))
    (label,) = of(StartLabelling, told)
    engine.handle(LabelDone(at_s=10, job=label.job, stream="a", train=0, holdout=2, quality=0.0, gpu_s=3.0, golden_gpu_s=25.0))
    engine.state.streams["b"].lesson = engine.state.window
    assert not of(StartLabelling, engine.handle(TimerFired(at_s=21, timer=LESSONS)))


@pytest.mark.parametrize("tried_in", [None, 3])
def test_it_is_remembered_over_a_restart(tried_in: int | None) -> None:
    state = BoxState(tried_in=tried_in)
    assert decode(encode(state)) == state
