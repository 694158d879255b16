"""A retraining that the gate refused has won nothing: what was to win still is, as far as few frames do not say otherwise."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler import prep
from scheduler.commands import SwapModel
from scheduler.engine import EngineConfig
from scheduler.engine_state import BoxState, StreamState
from scheduler.events import GateDone
from scheduler.registry import needs
from scheduler.turns import LEFT_FRAC, as_if_won, left_to_win
from tests.support.learning_world import of
from tests.support.one_gate import CONFIG, KNOBS, at_the_gate

BOX = EngineConfig(
    window_s=100, first_window_s=100, retrain=(CONFIG,), policy="lookahead", overlap=True, calibrate=False, try_again=True
)  # fmt: skip


# --- what is left to win ----------------------------------------------------------------------------------------------


def test_what_frames_say_for_sure_is_believed() -> None:
    assert as_if_won(0.03, 0.0, 0.2) == pytest.approx(0.03 / LEFT_FRAC)
    assert left_to_win([as_if_won(0.03, 0.0, 0.2)]) == pytest.approx(0.03)


def test_frames_that_tell_nothing_leave_what_was_expected() -> None:
    assert left_to_win([as_if_won(-0.3, 1e6, 0.12)]) == pytest.approx(0.12)


def test_frames_as_good_as_the_expectation_weigh_as_much() -> None:
    """An error of 0.1 is what gains spread by beforehand (`admission.REUSED`)."""
    assert left_to_win([as_if_won(-0.02, 0.1, 0.1)]) == pytest.approx(0.04)


def test_what_was_seen_to_lose_much_is_not_tried_for_ever() -> None:
    assert as_if_won(-0.4, 0.05, 0.1) == 0.0


def test_each_refusal_leaves_less() -> None:
    """The example that led to it: a camera of 0.44 whose first retraining seemed to win -0.009 on six frames."""
    expected, left = 0.14, []
    for _ in range(4):
        expected = left_to_win([as_if_won(-0.009, 0.055, expected)])
        left.append(expected)
    assert 0.02 < left[0] < 0.03
    assert left == sorted(left, reverse=True)
    assert left[-1] < 0.01


@given(st.floats(-1, 1), st.floats(0, 1), st.floats(0, 1))
def test_it_lies_between_what_was_seen_and_what_was_expected(seen: float, error: float, expected: float) -> None:
    left = left_to_win([as_if_won(seen, error, expected)])
    low, high = sorted((max(0.0, seen), expected))
    assert low - 1e-9 <= left <= high + 1e-9 or (seen < 0 and 0.0 <= left <= expected)


# --- at the gate ------------------------------------------------------------------------------------------------------


def after_a_gate(gain: float | None, *, config: EngineConfig = BOX, frames: int = 6) -> StreamState:
    """A camera of 0.44 whose first retraining was judged."""
    engine, gate = at_the_gate(config)
    told = engine.handle(
        GateDone(
            at_s=30, job=gate.job, stream="a", candidate="a-2", serving_quality=0.44,
            candidate_quality=None if gain is None else 0.44 + gain, frames=frames, gpu_s=1.0, gain_sd=0.039, gain=gain,
        )
    )  # fmt: skip
    assert bool(of(SwapModel, told)) == (gain is not None and gain > 0.1)
    return engine.state.streams["a"]


def promise(stream: StreamState, config: EngineConfig = BOX) -> float:
    return prep.expected_gain(stream, BoxState(streams={"a": stream}), config)


def test_a_refusal_on_few_frames_leaves_something_to_win() -> None:
    assert after_a_gate(-0.009).refused
    assert promise(after_a_gate(-0.009)) > 0.02
    assert promise(after_a_gate(0.028)) > promise(after_a_gate(-0.009))


def test_without_it_one_unlucky_gate_ends_a_cameras_learning() -> None:
    before = replace(BOX, try_again=False)
    assert after_a_gate(-0.009, config=before).gains == [pytest.approx(-0.009)]
    assert promise(after_a_gate(-0.009, config=before)) == 0.0


def test_what_was_admitted_has_won_what_was_seen() -> None:
    assert after_a_gate(0.3).gains == [pytest.approx(0.3)]


def test_a_gate_that_could_not_measure_changes_nothing() -> None:
    assert after_a_gate(None).gains == []


def test_what_calibration_learns_is_what_the_gate_saw() -> None:
    """Only what is expected of the next retraining is softened."""
    (seen,) = after_a_gate(-0.009).observations
    assert seen.realised_quality - seen.start_quality == pytest.approx(-0.009)


def test_the_refused_camera_has_its_turn_again_where_there_is_time_for_one() -> None:
    """Two cameras, time for one turn: the refused one before one that has just won all it could, not before one that wins on."""
    label = {"label_frames": 20, "golden_gpu_s": 1.0, "prep_auto": True}
    config = replace(BOX, **label)  # type: ignore[arg-type]

    def next_turn(gains: list[float]) -> list[str]:
        other = StreamState(id="b", knobs=KNOBS, version="b-1", quality=0.44, gains=gains)
        refused = replace(after_a_gate(-0.009), id="a")
        state = BoxState(window=2, opened_s=0.0, ends_s=40.0, streams={"a": refused, "b": other}, golden_gpu_s=1.0)
        return [id for id, _ in prep.turns_of(state, config, needs("lookahead"), 0.0).frames][:1]

    assert next_turn([0.3, 0.02]) == ["a"]
    assert next_turn([0.3]) == ["b"]
