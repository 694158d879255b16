"""What a camera that has learned has left to win: a part of what is missing by now, more with every window in which nobody looks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler import belief, prep, turns
from scheduler.engine import BoxEngine
from scheduler.engine_state import BoxState, EngineConfig, StreamState
from scheduler.turns import FIRST_FRAC, LATER_FRAC, LEFT_FRAC, UNSEEN_LOSS, as_if_won, expected_gain, left_to_win
from scheduler.types import RetrainConfig, RetrainOption
from tests.unit.scheduler.test_engine_tries_again import BOX, KNOBS, after_a_gate, promise

LEFT = replace(BOX, left_of_missing=True)
quality = st.floats(0, 1)
refused = st.integers(0, 6)
gains = st.lists(st.floats(-1, 1), min_size=1, max_size=4)


# --- the law --------------------------------------------------------------------------------------------------------------


def test_after_a_model_that_serves_it_is_a_part_of_what_is_missing_whatever_that_one_won() -> None:
    assert left_to_win([0.8], missing=0.4, refusals=0) == pytest.approx(0.06)
    assert left_to_win([0.02], missing=0.4, refusals=0) == pytest.approx(0.06)


def test_what_a_refusal_left_is_there_still_and_not_less_than_that() -> None:
    assert left_to_win([0.3], missing=0.4, refusals=1) == pytest.approx(0.15)
    assert left_to_win([0.01], missing=0.4, refusals=1) == pytest.approx(0.06)


def test_where_nothing_was_worth_a_retraining_nothing_is_left() -> None:
    assert left_to_win([0.3, 0.0], missing=0.9, refusals=1) == 0.0
    assert left_to_win([-0.2], missing=0.9, refusals=0) == 0.0


def test_half_of_the_newest_gain_where_nobody_asks_what_is_missing() -> None:
    assert left_to_win([0.3, 0.2]) == left_to_win([0.3, 0.2], refusals=0) == pytest.approx(0.1)


def test_who_is_refused_again_and_again_is_settled_in_the_end() -> None:
    """A camera of 0.44 that cannot learn more: each gate sees -0.009 +- 0.055, as in `test_engine_tries_again`."""
    left, settled = FIRST_FRAC * 0.56, 0
    for refusals in range(1, 12):
        gain = as_if_won(-0.009, 0.055, left)
        left = left_to_win([gain], missing=0.56, refusals=refusals)
        settled = settled or refusals * (gain < EngineConfig().min_gain)
    assert 2 <= settled <= 5


@given(gains, quality, quality, refused)
def test_more_is_left_where_more_is_missing(won: list[float], one: float, other: float, refusals: int) -> None:
    less, more = sorted((one, other))
    assert left_to_win(won, missing=less, refusals=refusals) <= left_to_win(won, missing=more, refusals=refusals)


@given(gains, quality)
def test_one_refusal_never_leaves_less_than_a_model_that_serves(won: list[float], missing: float) -> None:
    assert left_to_win(won, missing=missing, refusals=1) >= left_to_win(won, missing=missing, refusals=0) >= 0.0


@given(gains, quality, quality, st.booleans(), st.booleans(), refused)
def test_never_more_is_expected_than_of_a_first_retraining(
    won: list[float], now: float, frac: float, drifted: bool, of_missing: bool, refusals: int
) -> None:
    first = expected_gain([], now, frac, drifted=drifted)
    assert 0.0 <= expected_gain(won, now, frac, drifted=drifted, of_missing=of_missing, refusals=refusals) <= first


# --- in the engine ----------------------------------------------------------------------------------------------------


def test_a_model_that_is_let_in_has_won() -> None:
    admitted = after_a_gate(0.3, config=LEFT)
    assert admitted.refusals == 0
    assert promise(admitted, LEFT) == pytest.approx(
        LATER_FRAC * (1 - 0.44)
    )  # until the swap is done, of what the old one is worth


def test_one_that_is_refused_has_not() -> None:
    refused = after_a_gate(-0.009, config=LEFT)
    assert refused.refused
    assert refused.refusals == 1
    assert promise(refused, LEFT) == pytest.approx(max(LATER_FRAC * 0.56, LEFT_FRAC * refused.gains[-1]))


def test_a_gate_that_could_not_measure_says_nothing_of_it() -> None:
    assert after_a_gate(None, config=LEFT).refusals == 0


def camera(**more: object) -> StreamState:
    return StreamState(id="a", knobs=KNOBS, version="a-2", quality=0.8, gains=[0.4], **more)  # type: ignore[arg-type]


def test_the_example_that_led_to_it_a_refused_camera_that_has_become_worse_promises_more() -> None:
    """suburban_road, second set: refused with next to nothing left at 0.66, 0.47 two windows later, and never chosen again."""
    refused = camera(waited=0)
    refused.refusals, refused.gains, refused.quality = 1, [0.016], 0.66
    before = promise(refused, LEFT)
    refused.quality = 0.47
    assert promise(refused, LEFT) == pytest.approx(LATER_FRAC * 0.53)
    assert promise(refused, LEFT) > before
    assert promise(refused, BOX) == pytest.approx(0.008)


def test_what_nobody_measures_is_worth_a_turn_sooner_with_every_window() -> None:
    promised = [promise(camera(waited=waited), LEFT) for waited in range(4)]
    steps = [b - a for a, b in zip(promised, promised[1:], strict=False)]
    assert steps == [pytest.approx(LATER_FRAC * UNSEEN_LOSS)] * 3
    assert promise(camera(waited=3)) == promise(camera(waited=0))


def test_one_that_never_learned_promises_the_same_however_long_it_waits() -> None:
    new = camera(waited=5)
    new.gains = []
    assert promise(new, LEFT) == promise(replace(new, waited=0), LEFT)


def test_nobody_is_taken_to_be_worth_less_than_nothing() -> None:
    old = camera(waited=40)
    assert promise(old, LEFT) == pytest.approx(LATER_FRAC)


def test_believed_quality_itself_does_not_age() -> None:
    """What inference is given follows from what was measured; only whose turn it is follows from what may have been lost."""
    state = BoxState(window=2, opened_s=0.0, ends_s=100.0, streams={"a": camera(waited=4)}, golden_gpu_s=0.1)
    prep.expected_gain(state.streams["a"], state, LEFT)
    assert state.streams["a"].quality == 0.8


def test_a_recalled_profile_promises_no_more_than_is_left() -> None:
    option = RetrainOption(name="full", end_quality=0.9, cost_gpu_s=4.0)
    seen = camera(profiled_from=0.5, profiles=[(option,)])
    (by_missing,) = belief.recalled(seen, LEFT)
    (by_gain,) = belief.recalled(seen, BOX)
    assert by_missing.end_quality == pytest.approx(0.8 + LATER_FRAC * 0.2)
    assert by_gain.end_quality == pytest.approx(1.0)  # half of 0.4 on top of 0.8


def test_a_box_decides_so_and_a_journal_without_it_as_it_did() -> None:
    assert not EngineConfig().left_of_missing
    assert not BoxEngine(EngineConfig(retrain=(RetrainConfig(name="full"),))).config.left_of_missing
    assert turns.UNSEEN_LOSS * turns.LATER_FRAC > turns.MEASURED_GAIN
