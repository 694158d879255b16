"""Utilities and metrics by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.cilantro.metrics import mean_of, published, released
from cluster.cilantro.utility import IDENTITY, SHAPES, utility


@pytest.mark.parametrize(
    ("shape", "expected"),
    [("linear", [0, 0.5, 1, 1]), ("quadratic", [0, 0.25, 1, 1]), ("sqrt", [0, 0.7071, 1, 1]), ("identity", [0, 0.4, 0.8, 0.9])],
)
def test_shapes(shape: str, expected: list[float]) -> None:
    assert utility(np.array([0.0, 0.4, 0.8, 0.9]), 0.8, shape).tolist() == pytest.approx(expected, abs=1e-4)


def test_ones_own_shape_sees_performance_and_goal() -> None:
    assert utility(0.5, 0.8, lambda p, goal: np.where(p >= goal, 1.0, 0.1)).tolist() == 0.1


@pytest.mark.parametrize(("goal", "shape"), [(0.0, "linear"), (-1.0, "linear"), (0.5, "cubic"), (float("nan"), "linear")])
def test_refusals(goal: float, shape: str) -> None:
    with pytest.raises(ValueError, match="goal|known"):
        utility(0.5, goal, shape)


@given(st.lists(st.floats(-1, 5), min_size=2, max_size=10), st.floats(0.01, 3), st.sampled_from([*SHAPES, IDENTITY]))
def test_utility_never_falls_and_is_full_at_the_goal(values: list[float], goal: float, shape: str) -> None:
    found = utility(np.sort(values), goal, shape)
    assert (np.diff(found) >= 0).all()
    assert utility(goal, goal, shape) == pytest.approx(goal if shape == IDENTITY else 1.0)


def test_fairness_is_capped_and_ignores_who_cannot_complain() -> None:
    units, demands = np.array([10.0, 30, 20]), np.array([20.0, 20, 20])
    better = published(np.array([0.9, 1.0, 0.5]), np.array([0.6, 0.5, 0.5]), units, demands, 60)
    assert better.fairness == 1.0
    nothing = published(np.array([0.0, 0.8]), np.array([0.0, 1.0]), units[:2], demands[:2], 60)
    assert nothing.fairness == pytest.approx(0.8)
    assert better.useful == pytest.approx(50 / 60)


def test_the_two_fairnesses_disagree() -> None:
    """The one with half its entitlement has a flat curve: as published nobody may complain, as released somebody may."""
    told = published(np.array([1.0, 1.0]), np.array([1.0, 1.0]), np.array([10.0, 30]), np.array([20.0, 20]), 40)
    code = released(np.array([10.0, 30]), np.array([20.0, 20]), np.array([20.0, 20]), 40)
    assert told.fairness == 1.0
    assert (code.allocation_fairness, code.allocation_fairness_sum) == (0.5, 0.5)
    assert code.resource_loss == pytest.approx(10 / 40)  # 10 too many here, 10 too few there


def test_time_average() -> None:
    one = published(np.array([1.0, 0.0]), np.ones(2), np.ones(2), np.ones(2), 2)
    two = published(np.array([1.0, 1.0]), np.ones(2), np.ones(2), np.ones(2), 2)
    assert mean_of([one, two]).as_dict() == pytest.approx({"social": 0.75, "egalitarian": 0.5, "fairness": 0.5, "useful": 1.0})
