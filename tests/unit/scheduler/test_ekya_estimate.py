"""Speed curves, durations and the choice of knobs."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.errors import ConfigError
from scheduler.ekya.estimate import (
    SpeedCurve,
    StreamEstimator,
    best_knobs,
    duration_s,
    expected_end,
    is_useful,
    kept_frac,
)
from scheduler.types import KnobProfile, RetrainOption, Snapshot, StreamView

MEASURED = ((0.0, 0.0), (10.0, 0.3596), (20.0, 0.5088), (30.0, 0.6483), (100.0, 1.0))


def test_proportional_by_default() -> None:
    assert [SpeedCurve().at(share) for share in (0, 25, 100, 250)] == [0.0, 0.25, 1.0, 2.5]


def test_linear_between_points() -> None:
    curve = SpeedCurve(MEASURED)
    assert curve.at(25) == pytest.approx(0.57855)
    assert curve.at(10) == pytest.approx(0.3596)
    assert curve.at(5) == pytest.approx(0.1798)


def test_whole_gpus_count_in_full() -> None:
    curve = SpeedCurve(MEASURED)
    assert curve.at(100) == 1.0
    assert curve.at(200) == 2.0
    assert curve.at(225) == pytest.approx(2.57855)


def test_points_beyond_one_gpu_are_used() -> None:
    curve = SpeedCurve(((0, 0), (100, 1), (200, 1.8)))
    assert curve.at(150) == pytest.approx(1.4)
    assert curve.at(300) == pytest.approx(2.8)


def test_the_origin_is_added_when_missing() -> None:
    assert SpeedCurve(((50, 0.8), (100, 1))).at(25) == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("points", "what"),
    [
        (((0, 0.1), (100, 1)), "at share 0 must be 0"),
        (((0, 0), (50, 0.8)), "last point"),
        (((0, 0), (50, 0.8), (50, 0.9), (100, 1)), "increase"),
        (((0, 0), (50, -0.1), (100, 1)), "negative"),
        (((0, 0), (50, 0.8), (60, 0.7), (100, 1)), "must not fall"),
        (((0, 0), (100, 0.9)), "at 100 pct must be 1"),
        (((0, 0), (100, math.nan)), "finite"),
    ],
)
def test_what_is_no_curve_is_refused(points: tuple[tuple[float, float], ...], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        SpeedCurve(points)


def test_a_job_turns_no_more_than_its_largest_share_into_speed() -> None:
    curve = SpeedCurve(MEASURED, max_pct=30)
    assert [curve.at(share) for share in (10, 30, 60, 300)] == pytest.approx([0.3596, 0.6483, 0.6483, 0.6483])
    assert [SpeedCurve(max_pct=200).at(share) for share in (150, 200, 1000)] == [1.5, 2.0, 2.0]
    given = Snapshot(
        remaining_s=1, capacity_pct=100, quantum_pct=10, min_quality=0, streams=(), speed=MEASURED, train_max_pct=20
    )
    assert SpeedCurve.of(given).at(100) == pytest.approx(0.5088)
    assert SpeedCurve.of(replace(given, train_max_pct=None)).at(100) == 1.0


@given(st.floats(0, 1000), st.floats(0, 1000))
def test_a_rising_curve_rises_everywhere(a: float, b: float) -> None:
    low, high = sorted((a, b))
    assert SpeedCurve(MEASURED).at(low) <= SpeedCurve(MEASURED).at(high) + 1e-12


def test_duration() -> None:
    assert duration_s(30, 50, SpeedCurve()) == 60
    assert duration_s(30, 0, SpeedCurve()) == math.inf


def knob(name: str, demand_pct: float, quality_frac: float) -> KnobProfile:
    return KnobProfile(name=name, demand_pct=demand_pct, quality_frac=quality_frac)


def test_exactly_the_demand_is_enough_even_when_it_comes_out_of_a_division() -> None:
    assert best_knobs([knob("a", 0.1 * 3 * 100, 1.0)], 30) is not None  # 30.000000000000004
    assert best_knobs([knob("a", 30.1, 1.0)], 30) is None


def test_ties_take_the_smaller_demand_then_the_first() -> None:
    offered = [knob("dear", 20, 0.9), knob("first", 10, 0.9), knob("second", 10, 0.9), knob("poor", 5, 0.5)]
    chosen = best_knobs(offered, 100)
    assert chosen is not None
    assert chosen.name == "first"


def test_nothing_runs_on_nothing() -> None:
    free = knob("free", 0, 0.7)
    assert best_knobs([free], 0) is free
    assert kept_frac(free, 0) == 0.0
    assert kept_frac(free, 1) == 0.7
    assert kept_frac(None, 50) == 0.0


# --- what an uncertain prediction is worth behind a gate --------------------------------------------------------------


def option(end_quality: float, sd: float = 0.0, cost_gpu_s: float = 10.0, name: str = "o") -> RetrainOption:
    return RetrainOption(name=name, end_quality=end_quality, cost_gpu_s=cost_gpu_s, quality_sd=sd)


def test_a_sure_prediction_is_taken_as_it_is() -> None:
    assert expected_end(option(0.8), 0.6) == 0.8
    assert expected_end(option(0.5), 0.6) == 0.5


def test_the_expected_end_behind_a_gate_at_known_points() -> None:
    # z = 0: half of the mean absolute deviation, sd / sqrt(2 pi); z = 1: pdf(1) + cdf(1) = 1.0833155
    assert expected_end(option(0.6, 0.1), 0.6) == pytest.approx(0.6 + 0.1 * 0.3989423)
    assert expected_end(option(0.7, 0.1), 0.6) == pytest.approx(0.6 + 0.1 * 1.0833155)
    assert expected_end(option(0.9, 0.001), 0.6) == pytest.approx(0.9)
    assert expected_end(option(0.1, 0.001), 0.6) == pytest.approx(0.6)


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0.001, 0.3))
def test_the_expected_end_is_the_mean_of_what_the_gate_lets_through(quality: float, mean: float, sd: float) -> None:
    drawn = mean + sd * np.random.default_rng(1).standard_normal(20_000)
    assert expected_end(option(mean, sd), quality) == pytest.approx(min(1.0, np.maximum(quality, drawn).mean()), abs=sd / 30)


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 0.3), st.floats(0, 0.3))
def test_a_larger_error_is_never_worth_less_and_never_costs_what_is_there(
    quality: float, mean: float, a: float, b: float
) -> None:
    small, large = sorted((a, b))
    if small > 0:
        assert expected_end(option(mean, small), quality) <= expected_end(option(mean, large), quality) + 1e-12
        assert expected_end(option(mean, small), quality) >= max(quality, mean) - 1e-12


@pytest.mark.parametrize(("mean", "sd", "useful"), [(0.7, 0.0, True), (0.6, 0.0, False), (0.5, 0.3, False), (0.61, 0.3, True)])
def test_useful_is_what_is_predicted_to_help(mean: float, sd: float, useful: bool) -> None:
    assert is_useful(option(mean, sd), StreamView(id="s", quality=0.6, knobs=())) is useful


def estimator(*options: RetrainOption) -> StreamEstimator:
    view = StreamView(id="s", quality=0.5, knobs=(knob("full", 20, 1.0),), retrain=options)
    given = Snapshot(remaining_s=100, capacity_pct=100, quantum_pct=10, min_quality=0, streams=(view,))
    return StreamEstimator.of(view, given, SpeedCurve.of(given))


def test_the_estimate_plans_on_the_expected_end() -> None:
    sure, unsure = estimator(option(0.6)).best(20, 50), estimator(option(0.6, 0.1)).best(20, 50)
    assert sure.quality == pytest.approx(0.5 * 0.2 + 0.6 * 0.8)
    assert unsure.quality == pytest.approx(0.5 * 0.2 + (0.5 + 0.1 * 1.0833155) * 0.8)


def test_the_surer_of_two_equal_gains_is_not_preferred_by_its_name_or_place() -> None:
    # the same mean: the gate cuts off the bad half of the error, so the unsure one is expected to leave more
    chosen = estimator(option(0.6, 0.0, name="sure"), option(0.6, 0.1, name="unsure")).best(20, 50)
    assert chosen.retrain is not None
    assert chosen.retrain.name == "unsure"


def test_options_that_cost_more_and_end_no_higher_are_not_looked_at() -> None:
    made = estimator(
        option(0.7, name="b", cost_gpu_s=20), option(0.8, name="a"), option(0.8, name="c"), option(0.9, name="d", cost_gpu_s=30)
    )
    assert [o.name for o in made.options] == ["a", "d"]


def test_rungs_are_where_more_share_shows_more() -> None:
    offered = (knob("dear", 45, 1.0), knob("poor", 40, 0.2), knob("half", 11, 0.5), knob("free", 0, 0.1), knob("off", 0, 0.0))
    given = Snapshot(remaining_s=1, capacity_pct=100, quantum_pct=10, min_quality=0.2, streams=())
    made = StreamEstimator.of(StreamView(id="s", quality=0.5, knobs=offered), given, SpeedCurve())
    assert made.rungs(10) == [(0, 0.0), (1, 0.1), (2, 0.5), (5, 1.0)]
    assert made.floor_quanta(10) == 2
    assert StreamEstimator.of(StreamView(id="s", quality=0.1, knobs=offered), given, SpeedCurve()).floor_quanta(10) is None


@given(
    st.lists(st.tuples(st.sampled_from([0.0, 5.0, 10.0, 20.0, 31.0]), st.sampled_from([0.0, 0.3, 0.6, 1.0])), max_size=6),
    st.integers(0, 60),
)
def test_the_estimators_knobs_are_the_best_knobs(profile: list[tuple[float, float]], share_pct: int) -> None:
    offered = tuple(knob(f"{n}", demand_pct, frac) for n, (demand_pct, frac) in enumerate(profile))
    given = Snapshot(remaining_s=1, capacity_pct=100, quantum_pct=10, min_quality=0, streams=())
    made = StreamEstimator.of(StreamView(id="s", quality=0.5, knobs=offered), given, SpeedCurve())
    best = best_knobs(offered, share_pct)
    assert made.knobs_at(share_pct) == (best, kept_frac(best, share_pct))
