"""The Optimus curve: known answers, and the closed-form NNLS against scipy's."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls

from scheduler.curves import POINT_SD, LearningCurve, curve_sd, fit_curve, nnls_pair

TRUE = LearningCurve(b0=0.5, b1=2.0, b2=0.05)


def test_the_formula() -> None:
    expected = [0.45, 0.55, 0.616667, 0.664286, 0.70, 0.727778]
    assert [TRUE.at(k) for k in range(6)] == pytest.approx(expected, abs=1e-6)
    assert TRUE.at(15) == pytest.approx(0.844737, abs=1e-6)
    assert TRUE.at(30) == pytest.approx(0.891176, abs=1e-6)


def test_five_epochs_foretell_thirty() -> None:
    curve = fit_curve(range(6), [TRUE.at(k) for k in range(6)])
    assert curve.at(15) == pytest.approx(0.844737, abs=1e-3)
    assert curve.at(30) == pytest.approx(0.891176, abs=1e-3)
    assert curve.sse < 1e-8


@settings(max_examples=60, deadline=None)
@given(st.floats(0.1, 1.0), st.floats(1.3, 4.0), st.floats(0.0, 0.2))
def test_clean_points_of_any_curve_are_met(b0: float, b1: float, b2: float) -> None:
    true = LearningCurve(b0=b0, b1=b1, b2=b2)
    curve = fit_curve(range(7), [true.at(k) for k in range(7)])
    for k in (0, 3, 6):
        assert curve.at(k) == pytest.approx(true.at(k), abs=1e-3)
    assert curve.at(30) == pytest.approx(true.at(30), abs=5e-3)


def test_a_falling_curve_is_fitted_flat() -> None:
    curve = fit_curve(range(1, 6), [0.70, 0.69, 0.68, 0.67, 0.66])
    assert curve.b0 == 0
    assert curve.at(30) == pytest.approx(0.678, abs=0.003)


@pytest.mark.parametrize("level", [0.0, 0.5, 1.0])
def test_a_constant_stays_constant(level: float) -> None:
    curve = fit_curve(range(5), [level] * 5)
    assert curve.at(0) == pytest.approx(level, abs=1e-5)
    assert curve.at(100) == pytest.approx(level, abs=1e-5)


def test_one_point_foretells_itself() -> None:
    assert fit_curve([0], [0.3]).at(30) == pytest.approx(0.3)


def test_points_that_fall_from_the_top_are_not_lost() -> None:
    # no weight is left on the first point, and the others alone want a curve through minus infinity at epoch 0
    curve = fit_curve(range(3), [1.0, 0.0, 0.5])
    assert curve.at(10) == pytest.approx(0.5, abs=1e-5)
    assert curve.sse == pytest.approx(0.5, abs=1e-4)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_predictions_are_qualities_that_never_fall(quality: list[float]) -> None:
    curve = fit_curve(range(len(quality)), quality)
    predicted = [curve.at(k) for k in range(40)]
    assert all(0 <= q <= 1 for q in predicted)
    assert all(b >= a - 1e-12 for a, b in zip(predicted, predicted[1:], strict=False))
    assert curve.sse <= float(((np.array(quality) - np.mean(quality)) ** 2).sum()) + 1e-5  # never worse than no curve


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 7))
def test_the_closed_form_is_nnls(seed: int, points: int) -> None:
    rng = np.random.default_rng(seed)
    x, y, target = rng.normal(size=(3, 5, points))
    p, q = nnls_pair(x, y, target)
    for row in range(5):
        matrix = np.stack([x[row], y[row]], axis=1)
        _, residual = nnls(matrix, target[row])
        ours = np.linalg.norm(matrix @ [p[row], q[row]] - target[row])
        assert min(p[row], q[row]) >= 0
        assert ours == pytest.approx(residual, abs=1e-6)


@pytest.mark.parametrize(
    ("epochs", "quality"), [([], []), ([0, 1], [0.5]), ([0, 1], [0.5, math.nan]), ([0, math.inf], [0.5, 0.6])]
)
def test_what_cannot_be_fitted_is_refused(epochs: list[float], quality: list[float]) -> None:
    with pytest.raises(ValueError, match="fit_curve needs"):
        fit_curve(epochs, quality)


def test_parameters_are_not_negative() -> None:
    with pytest.raises(ValueError, match="negative"):
        LearningCurve(b0=-0.1, b1=1, b2=0)


# --- how sure a curve is ----------------------------------------------------------------------------------------------


def points_of(curve: LearningCurve, epochs: int, noise: float = 0.0, seed: int = 0) -> list[float]:
    rng = np.random.default_rng(seed)
    return [float(np.clip(curve.at(k) + rng.normal(0, noise), 0, 1)) for k in range(epochs + 1)]


def test_the_farther_the_less_sure() -> None:
    near, mid, far, farther = curve_sd(range(6), points_of(TRUE, 5), [5, 15, 30, 100])
    assert 0 < near < mid < far < farther
    assert far > 2 * near


def test_more_points_make_surer() -> None:
    sds = [curve_sd(range(n + 1), points_of(TRUE, n), [30])[0] for n in (1, 3, 5, 10, 20)]
    assert sds == sorted(sds, reverse=True)
    assert sds[-1] < 0.2 * sds[0]


def test_noise_makes_less_sure() -> None:
    calm, rough = (curve_sd(range(11), points_of(TRUE, 10, noise, seed=2), [10])[0] for noise in (0.0, 0.08))
    assert rough > 2 * calm
    assert curve_sd(range(6), points_of(TRUE, 5), [15], point_sd=0.05) > curve_sd(range(6), points_of(TRUE, 5), [15])


def test_one_point_has_no_spread() -> None:
    assert curve_sd([0], [0.3], [0, 5, 30]) == (0.0, 0.0, 0.0)
    assert curve_sd([0, 1], [0.3, 0.4], []) == ()


def test_at_the_mean_of_flat_points_the_error_is_that_of_a_mean() -> None:
    assert curve_sd(range(20), [0.5] * 20, [10])[0] == pytest.approx(POINT_SD / math.sqrt(20), rel=0.8)


def test_the_spread_is_honest() -> None:
    rng = np.random.default_rng(4)
    inside, twice = [], []
    for seed in range(60):
        true = LearningCurve(b0=rng.uniform(0.05, 1), b1=rng.uniform(1.3, 4), b2=rng.uniform(0, 0.2))
        points = points_of(true, 5, POINT_SD, seed)
        error = [abs(fit_curve(range(6), points).at(k) - true.at(k)) for k in (5, 15, 30)]
        sds = curve_sd(range(6), points, (5, 15, 30))
        inside += [e <= sd for e, sd in zip(error, sds, strict=True)]
        twice += [e <= 2 * sd for e, sd in zip(error, sds, strict=True)]
    assert 0.55 < sum(inside) / len(inside) < 0.85
    assert sum(twice) / len(twice) > 0.88


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_any_points_have_a_finite_spread(quality: list[float]) -> None:
    assert all(0 <= sd <= 1.1 for sd in curve_sd(range(len(quality)), quality, [0, 5, 1000]))


def test_a_spread_of_what_cannot_be_fitted_is_refused() -> None:
    with pytest.raises(ValueError, match="fit_curve needs"):
        curve_sd([], [], [5])
    with pytest.raises(ValueError, match="point_sd"):
        curve_sd([0, 1], [0.5, 0.6], [5], point_sd=0.0)
