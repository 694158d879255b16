"""Load forecasts: parameters of series that were made with them, the card's failure rules."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.signal import lfilter

from cluster.cilantro.forecast import KEPT, NO_DATA, Arma, fit, forecast, oracle


def series(
    mean: float, phi: float, theta: float, sigma: float, count: int, seed: int
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    noise = sigma * np.random.default_rng(seed).normal(size=count + 200)
    return mean + lfilter([1.0, theta], [1.0, -phi], noise)[200:]


@pytest.mark.parametrize(("phi", "theta"), [(0.8, 0.0), (0.7, 0.3), (0.5, -0.3), (0.0, 0.6), (-0.5, 0.2)])
def test_finds_what_a_series_was_made_with(phi: float, theta: float) -> None:
    found = fit(series(50, phi, theta, 2.0, 4000, 7))
    assert found is not None
    assert (found.phi, found.theta, found.sigma) == pytest.approx((phi, theta, 2.0), abs=0.08)


def test_the_interval_holds_what_it_says() -> None:
    """90 percent two-sided, so 95 percent of the next values lie under the upper end; for means of twelve as well."""
    for steps in (1, 12):
        values = series(40, 0.7, 0.2, 3.0, 3000, 11)
        inside = [
            values[end : end + steps].mean() <= forecast(values[end - 300 : end].tolist(), steps=steps).high
            for end in range(400, 2900, 10)
        ]
        assert np.mean(inside) == pytest.approx(0.95, abs=0.04)


def test_no_data_is_one() -> None:
    assert forecast([]) == NO_DATA
    assert (NO_DATA.low, NO_DATA.middle, NO_DATA.high) == (1.0, 1.0, 1.0)
    assert forecast([math.nan, math.inf]).made_by == "none"


def test_too_short_or_constant_is_the_mean() -> None:
    short = forecast([10.0, 20.0])
    assert (short.low, short.middle, short.high) == pytest.approx((15 - 9, 15, 15 + 9))  # m +- 2 * 0.9 * s
    constant = forecast([7.0] * 50)
    assert (constant.low, constant.middle, constant.high, constant.made_by) == (7.0, 7.0, 7.0, "mean")


def test_only_the_newest_are_kept() -> None:
    values = [1e6] * 10 + [5.0, 6.0] * (KEPT // 2)
    assert forecast(values).middle == pytest.approx(5.5, abs=0.6)


def test_an_oracle_does_not_doubt() -> None:
    assert (oracle(3.0).low, oracle(3.0).high) == (3.0, 3.0)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.floats(0, 1e6), st.just(math.nan)), max_size=40), st.integers(1, 12))
def test_never_below_zero_and_always_ordered(values: list[float], steps: int) -> None:
    found = forecast(values, steps=steps)
    assert 0 <= found.low <= found.middle <= found.high < math.inf


def test_a_trend_that_leaves_the_unit_circle_is_held_inside() -> None:
    found = fit(np.arange(1.0, 60.0))
    assert isinstance(found, Arma)
    assert abs(found.phi) < 1
