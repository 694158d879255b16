"""Speed curves from measurements: whatever was measured, the curve is one; where it was exact, so is the curve."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.ekya.estimate import SpeedCurve, speed_problems
from scheduler.speed import SpeedFit, SpeedSample, fit, planned, pooled

#: Ekya's measured MPS curve (card, section 4.3): seconds per epoch at 10, 20, ... 100 pct.
EPOCH_S = (15.185, 10.732, 8.423, 7.346, 6.562, 6.369, 6.321, 5.612, 5.580, 5.461)
EKYA = (0.3596, 0.5088, 0.6483, 0.7433, 0.8322, 0.8574, 0.8638, 0.9730, 0.9786, 1.0)

shares = st.sampled_from([5.0, 10.0, 25.0, 40.0, 50.0, 75.0, 90.0, 100.0, 150.0, 200.0])
samples = st.builds(SpeedSample, share_pct=shares, throughput=st.floats(0.001, 1e4))


def of(points: dict[float, list[float]]) -> list[SpeedSample]:
    return [SpeedSample(share_pct=x, throughput=y) for x, found in points.items() for y in found]


def check(made: SpeedFit) -> None:
    assert speed_problems(made.curve) == []
    curve = SpeedCurve(made.curve)
    assert curve.at(0) == 0.0
    assert curve.at(100) == pytest.approx(1.0)
    last = made.curve[-1][0]
    values = [curve.at(x * last / 200) for x in range(200)]
    assert values == sorted(values)


@given(st.lists(samples, min_size=1, max_size=30), st.floats(0.1, 1e3))
def test_whatever_was_measured_gives_a_curve(found: list[SpeedSample], full: float) -> None:
    check(fit([*found, SpeedSample(share_pct=100.0, throughput=full)]))


@given(st.lists(samples, min_size=1, max_size=12), st.lists(samples, min_size=1, max_size=12), st.data())
def test_pooling_gives_a_curve_and_does_not_care_for_order_or_units(
    a: list[SpeedSample], b: list[SpeedSample], data: st.DataObject
) -> None:
    jobs = [[*job, SpeedSample(share_pct=100.0, throughput=3.0)] for job in (a, b)]
    made = pooled(jobs)
    check(made)
    luck = random.Random(data.draw(st.integers(0, 9)))
    mixed = [luck.sample(job, len(job)) for job in reversed(jobs)]
    scaled = [[SpeedSample(share_pct=s.share_pct, throughput=s.throughput * 7) for s in mixed[0]], mixed[1]]
    again = pooled(scaled)
    assert [x for x, _ in again.curve] == [x for x, _ in made.curve]
    for (_, y), (_, z) in zip(again.curve, made.curve, strict=True):
        assert y == pytest.approx(z, abs=2e-6)


@given(st.lists(samples, min_size=1, max_size=12), st.lists(samples, min_size=0, max_size=12))
def test_the_planned_curve_is_one_whatever_was_measured_beside_others(
    alone: list[SpeedSample], beside: list[SpeedSample]
) -> None:
    lonely = [*alone, SpeedSample(share_pct=100.0, throughput=1.0)]
    check(planned([lonely], [beside]))


def test_ekyas_own_measurement() -> None:
    made = fit([SpeedSample(share_pct=10.0 * (n + 1), throughput=1 / s) for n, s in enumerate(EPOCH_S)])
    assert [x for x, _ in made.curve] == [0.0, *(10.0 * (n + 1) for n in range(10))]
    assert [y for _, y in made.curve[1:]] == pytest.approx(EKYA, abs=2e-4)
    assert (made.known, made.error_frac) == ("well", 0.0)


def test_one_disturbed_measurement_of_three_moves_nothing() -> None:
    quiet = of({25: [2.5, 2.5, 2.5], 50: [5.0, 5.0, 5.0], 100: [10.0, 10.0, 10.0]})
    disturbed = of({25: [2.5, 0.4, 2.5], 50: [5.0, 5.0, 5.0], 100: [10.0, 10.0, 1.0]})
    assert fit(disturbed).curve == fit(quiet).curve == ((0.0, 0.0), (25.0, 0.25), (50.0, 0.5), (100.0, 1.0))


def test_a_share_that_seems_slower_than_a_smaller_one_is_repaired_and_said() -> None:
    made = fit(of({25: [3.0], 50: [6.0], 75: [5.0], 100: [10.0]}))
    assert made.curve == ((0.0, 0.0), (25.0, 0.3), (50.0, 0.55), (75.0, 0.55), (100.0, 1.0))
    assert made.error_frac == pytest.approx(0.1)
    assert made.known == "roughly"
    weighted = fit(of({25: [3.0], 50: [6.0] * 3, 75: [4.0], 100: [10.0]}))
    assert weighted.at(50) == weighted.at(75) == pytest.approx(0.55), "three measurements weigh three times one"


def test_how_well_a_curve_is_known() -> None:
    assert fit(of({50: [5.0, 5.2, 5.1], 100: [10.0, 9.9, 10.1]})).known == "well"
    assert fit(of({50: [5.0, 6.0, 4.4], 100: [10.0]})).known == "roughly"
    assert fit(of({50: [2.0, 5.0, 9.0], 100: [10.0]})).known == "badly"


def test_nothing_at_exactly_100_is_read_between() -> None:
    made = fit(of({50: [5.0], 90: [9.0], 110: [11.0]}))
    assert made.full == pytest.approx(10.0)
    assert made.curve == ((0.0, 0.0), (50.0, 0.5), (90.0, 0.9), (100.0, 1.0), (110.0, 1.1))


def test_beside_another_job_only_the_shape_counts_and_it_is_tied_to_the_lonely_curve() -> None:
    alone = of({25: [4.0], 50: [6.0], 75: [9.0], 100: [10.0]})
    beside = of({25: [1.0], 50: [2.0], 75: [4.5]})  # half of the speed at 75 pct, and steeper below
    made = planned([alone], [beside])
    assert made.curve == ((0.0, 0.0), (25.0, 0.2), (50.0, 0.4), (75.0, 0.9), (100.0, 1.0))
    slower = planned([alone], [[SpeedSample(share_pct=s.share_pct, throughput=s.throughput / 3) for s in beside]])
    assert slower.curve == made.curve, "being slower beside another job is in the costs already"
    assert planned([alone], [[]]).curve == fit(alone).curve
    assert planned([alone], []).curve == fit(alone).curve


def test_where_nothing_was_measured_beside_another_the_lonely_curve_goes_on() -> None:
    """On two cores nobody can have 200 pct beside another: a job is one thread, so the curve stays flat and does not begin anew."""
    alone, beside = of({50: [5.0], 100: [10.0], 200: [10.0]}), of({50: [4.0], 100: [9.0]})
    made = planned([alone], [beside])
    assert made.curve == ((0.0, 0.0), (50.0, pytest.approx(4 / 9, abs=1e-6)), (100.0, 1.0), (200.0, 1.0))
    assert SpeedCurve(made.curve).at(200) == pytest.approx(1.0)
    assert planned([of({100: [10.0], 200: [18.0]})], [of({100: [8.0]})]).curve[-1] == (200.0, 1.8)


def test_models_of_different_speed_are_pooled_by_shares() -> None:
    fast, slow = of({50: [60.0], 100: [100.0]}), of({50: [0.4], 100: [1.0]})
    assert pooled([fast, slow]).curve == ((0.0, 0.0), (50.0, 0.5), (100.0, 1.0))


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ({}, "at least one measurement"),
        ({50: [1.0]}, "nothing was measured at 100 pct: the largest share is 50"),
        ({50: [0.0], 100: [0.0]}, "did nothing"),
    ],
)
def test_no_curve_without_measurements(found: dict[float, list[float]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit(of(found))


@pytest.mark.parametrize(
    ("share", "throughput"), [(0.0, 1.0), (-5.0, 1.0), (float("nan"), 1.0), (50.0, -1.0), (50.0, float("inf"))]
)
def test_a_measurement_of_nonsense_is_refused(share: float, throughput: float) -> None:
    with pytest.raises(ValueError, match="must be"):
        SpeedSample(share_pct=share, throughput=throughput)
