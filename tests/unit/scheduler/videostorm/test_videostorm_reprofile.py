"""When a profile has grown old: drift, or a demand that has long been off; never twice in a row."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.videostorm.reprofile import ProfileAge, ReprofileRules, fresh, reviewed

RULES = ReprofileRules(factor=2.0, for_s=60.0, rest_s=300.0)


def told(points: list[tuple[float, float | None, bool]], age: ProfileAge | None = None) -> list[tuple[float, str]]:
    """(when, why) of (at_s, mu, drifted)."""
    age = age or ProfileAge()
    found = []
    for at_s, mu, drifted in points:
        age, why = reviewed(age, RULES, at_s=at_s, mu=mu, drifted=drifted)
        if why:
            found.append((at_s, why))
    return found


def test_a_good_profile_is_left_alone() -> None:
    assert told([(float(t), mu, False) for t in range(0, 5000, 10) for mu in (0.5, 1.0, 2.0)]) == []


def test_a_demand_that_is_off_for_long_is_a_reason() -> None:
    assert told([(float(t), 2.5, False) for t in range(0, 61, 10)]) == [
        (60.0, "a frame has needed 2.5 times what was profiled for 60 s")
    ]


def test_so_is_one_that_is_far_less() -> None:
    assert [t for t, _ in told([(float(t), 0.4, False) for t in range(0, 61, 10)])] == [60.0]


def test_a_passing_crowd_is_none() -> None:
    crowd = [(float(t), 3.0 if t % 60 < 50 else 1.0, False) for t in range(0, 3000, 10)]
    assert told(crowd) == []


def test_drift_is_a_reason_at_once() -> None:
    assert told([(0.0, 1.0, False), (1.0, 1.0, True)]) == [(1.0, "the scene has drifted since")]
    assert told([(0.0, None, True)]) == [(0.0, "the scene has drifted since")]


def test_nothing_is_said_of_a_new_profile_for_a_while() -> None:
    off = [(float(t), 9.0, True) for t in range(100, 500, 10)]
    assert [t for t, _ in told(off, fresh(100.0))] == [400.0]


def test_where_there_is_none_it_is_due_after_a_while_and_again_after_a_rest() -> None:
    """At once there is nothing to make it of; one that could not be made is asked for again."""
    age, found = ProfileAge(), []
    for t in range(0, 800, 10):
        age, why = reviewed(age, RULES, at_s=float(t), mu=None, missing=True)
        found += [(t, why)] if why else []
    assert found == [(60, "there is none yet"), (360, "there is none yet"), (660, "there is none yet")]
    age, why = reviewed(ProfileAge(), RULES, at_s=0.0, mu=None, missing=True)
    age, why = reviewed(age, RULES, at_s=59.0, mu=None)
    assert reviewed(age, RULES, at_s=61.0, mu=None, missing=True)[1] == "", "there was one in between"


def test_it_is_said_again_only_after_a_rest() -> None:
    assert [t for t, _ in told([(float(t), 1.0, True) for t in range(0, 1000, 50)])] == [0.0, 300.0, 600.0, 900.0]


@pytest.mark.parametrize("mu", [None, math.nan, math.inf])
def test_a_demand_that_is_no_number_is_no_reason(mu: float | None) -> None:
    assert told([(float(t), mu, False) for t in range(0, 1000, 10)]) == []


@pytest.mark.parametrize(
    "wrong", [{"factor": 1.0}, {"factor": math.inf}, {"factor": math.nan}, {"for_s": -1.0}, {"rest_s": -1.0}]
)
def test_rules_that_are_none(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="factor above 1"):
        ReprofileRules(**wrong)


@given(st.lists(st.tuples(st.floats(0, 50), st.floats(0.1, 10), st.booleans()), max_size=40))
def test_between_two_reasons_lies_the_rest(steps: list[tuple[float, float, bool]]) -> None:
    at_s, points = 0.0, []
    for step_s, mu, drifted in steps:
        at_s += step_s
        points.append((at_s, mu, drifted))
    when = [t for t, _ in told(points)]
    assert all(b - a >= RULES.rest_s for a, b in zip(when, when[1:], strict=False))
    assert told(points) == told(points)
