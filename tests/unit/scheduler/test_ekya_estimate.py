"""Speed curves, durations and the choice of knobs."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.errors import ConfigError
from scheduler.ekya.estimate import SpeedCurve, best_knobs, duration_s, kept_frac
from scheduler.types import KnobProfile

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
        (((0, 0), (100, 0.9)), "at 100 pct must be 1"),
        (((0, 0), (100, math.nan)), "finite"),
    ],
)
def test_what_is_no_curve_is_refused(points: tuple[tuple[float, float], ...], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        SpeedCurve(points)


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
