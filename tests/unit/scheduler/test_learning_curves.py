"""The Optimus curve: known answers, and the closed-form NNLS against scipy's."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls

from scheduler.curves import LearningCurve, fit_curve, nnls_pair

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
