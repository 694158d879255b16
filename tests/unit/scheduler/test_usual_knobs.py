"""What slower rates are thought to leave of a camera's quality before it is measured."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.ekya.usual_knobs import STRIDES, usual_quality_frac


@pytest.mark.parametrize(("stride", "frac"), STRIDES)
def test_the_published_points(stride: int, frac: float) -> None:
    assert usual_quality_frac(stride) == frac


def test_between_two_points_and_beyond_the_last() -> None:
    assert usual_quality_frac(5) == pytest.approx((0.60 + 0.42) / 2)
    assert usual_quality_frac(12) == pytest.approx(0.33 * 8 / 12)


@given(st.integers(1, 500))
def test_a_slower_rate_never_leaves_more_and_always_something(stride: int) -> None:
    assert 0 < usual_quality_frac(stride + 1) <= usual_quality_frac(stride) <= 1
