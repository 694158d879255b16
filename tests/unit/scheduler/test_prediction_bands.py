"""The band around a window's predicted quality: by hand, and for whatever came of predictions."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.ekya.bands import COVERS_FRAC, MAX_WINDOWS, Z, bands, error_sd
from scheduler.ekya.calibration import ErrorPrior

PRIOR = ErrorPrior(noise_sd=0.1, noise_weight=4.0)
qualities = st.floats(0, 1)


def test_by_hand() -> None:
    """Prior: 4 windows of 0.1. One window was wrong by 0.3: sd^2 = (4 * 0.01 + 0.09) / 5 = 0.026."""
    first, second = bands([(0.5, 0.8), (0.5, None)], PRIOR)
    assert first is not None
    assert second is not None
    assert first.low == pytest.approx(0.5 - Z * 0.1)
    assert first.high == pytest.approx(0.5 + Z * 0.1)
    assert second.low == pytest.approx(0.5 - Z * math.sqrt(0.026))
    assert not first.holds(0.8)
    assert first.holds(0.5)


def test_a_window_is_not_told_by_itself() -> None:
    """Its own error widens only the bands after it: the count of what a band held is honest."""
    before, _ = bands([(0.5, 0.5), (0.5, 0.5)], PRIOR)
    wild, _ = bands([(0.5, 1.0), (0.5, 0.5)], PRIOR)
    assert before == wild


def test_windows_without_a_prediction_have_no_band_and_teach_nothing() -> None:
    with_gap = bands([(None, 0.9), (float("nan"), 0.2), (0.5, None), (0.5, None)], PRIOR)
    assert with_gap[:2] == (None, None)
    assert with_gap[2:] == bands([(0.5, None), (0.5, None)], PRIOR)


def test_only_the_newest_windows_count() -> None:
    assert error_sd([9.0] + [0.0] * MAX_WINDOWS) == error_sd([0.0] * MAX_WINDOWS)
    assert error_sd([float("nan"), 0.1]) == error_sd([0.1])


@given(st.lists(st.tuples(st.none() | qualities, st.none() | qualities), max_size=30))
def test_a_band_holds_its_prediction_and_stays_a_quality(windows: list[tuple[float | None, float | None]]) -> None:
    for (predicted, _), band in zip(windows, bands(windows), strict=True):
        assert (band is None) == (predicted is None)
        if band is not None:
            assert 0 <= band.low <= band.predicted <= band.high <= 1


@given(st.lists(st.floats(-1, 1), max_size=40), st.floats(0, 1))
def test_larger_errors_never_narrow_it(errors: list[float], more: float) -> None:
    larger = [math.copysign(abs(e) + more, e) for e in errors]
    assert error_sd(larger) >= error_sd(errors) - 1e-12


def test_the_quantile_covers_what_it_says() -> None:
    assert math.erf(Z / math.sqrt(2)) == pytest.approx(COVERS_FRAC, abs=1e-3)
