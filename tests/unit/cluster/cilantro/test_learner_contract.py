"""One contract for every learner: ordered, never falling, a value, and through JSON and back."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.cilantro.bins import BinLearner, BinSettings
from cluster.cilantro.fallbacks import Profiled, Proxy, Stated, default_quality
from cluster.cilantro.learners import LEARNERS, from_dict
from cluster.cilantro.monotone import MonotoneLearner, MonotoneSettings
from cluster.cilantro.tree import TreeLearner, TreeSettings
from cluster.cilantro.types import Learner, Sample

MAKERS: dict[str, Callable[[], Learner]] = {
    "tree": lambda: TreeLearner.empty(TreeSettings(x_max=8.0, slope=1.0)),
    "bins": lambda: BinLearner(settings=BinSettings(x_max=8.0)),
    "monotone": MonotoneLearner,
    "monotone, forgetting": lambda: MonotoneLearner(settings=MonotoneSettings(keep=0.9)),
    "monotone, no end": lambda: MonotoneLearner(settings=MonotoneSettings(high=math.inf)),
    "profiled": lambda: Profiled(points=((0.0, 0.0, 0.0, 0.1), (1.0, 0.6, 0.5, 0.55), (4.0, 0.8, 0.9, 1.0))),
    "proxy": lambda: Proxy(to_value=((0.0, 0.0), (0.5, 0.8), (1.0, 1.0)), learner=MonotoneLearner()),
    "stated": lambda: Stated(unit_demand=2.0, goal=0.9),
}
LEARNING = ["tree", "bins", "monotone", "monotone, forgetting"]
GRID = np.linspace(0.0, 12.0, 200)


def truth(x: float) -> float:
    return 1 - math.exp(-x)


samples_of = st.lists(
    st.builds(
        Sample,
        alloc=st.one_of(st.floats(0.01, 100), st.sampled_from([0.0, -1.0, math.nan, math.inf])),
        load=st.one_of(st.floats(0.5, 20), st.sampled_from([0.0, math.nan])),
        value=st.one_of(st.floats(0, 1), st.just(math.nan)),
        sigma=st.one_of(st.floats(0.001, 0.5), st.sampled_from([0.0, math.inf])),
    ),
    max_size=25,
)


@pytest.mark.parametrize("name", MAKERS)
@settings(max_examples=25, deadline=None)
@given(batches=st.lists(samples_of, max_size=4))
def test_ordered_never_falling_and_kept(name: str, batches: list[list[Sample]]) -> None:
    learner = MAKERS[name]()
    for batch in batches:
        before = json.dumps(learner.as_dict())
        after = learner.updated(batch)
        assert json.dumps(learner.as_dict()) == before  # a value: nobody changed it
        learner = after
    found = learner.bounds(GRID)
    assert (found.low <= found.middle + 1e-12).all()
    assert (found.middle <= found.high + 1e-12).all()
    for curve in (found.low, found.middle, found.high):
        assert not np.isnan(curve).any()
        assert (curve[1:] >= curve[:-1] - 1e-12).all()
    need = learner.need(0.7)
    assert 0 <= need.low <= need.middle <= need.high
    again = from_dict(json.loads(json.dumps(learner.as_dict(), allow_nan=False)))
    assert again.as_dict() == learner.as_dict()
    same = again.bounds(GRID)
    assert all(np.array_equal(getattr(found, side), getattr(same, side)) for side in ("low", "middle", "high"))


@pytest.mark.parametrize("name", LEARNING)
def test_learns_a_curve(name: str) -> None:
    rng, learner = np.random.default_rng(1), MAKERS[name]()
    for _ in range(30):
        xs = rng.uniform(0.2, 4.0, 12)
        learner = learner.updated(
            [Sample(alloc=10 * x, load=10, value=float(np.clip(truth(x) + 0.02 * rng.normal(), 0, 1)), sigma=0.1) for x in xs]
        )
    at = np.array([0.5, 1.0, 2.0, 3.0])
    found = learner.bounds(at)
    assert np.abs(found.middle - [truth(x) for x in at]).max() < 0.08
    need = learner.need(0.7)
    assert need.low <= -math.log(0.3) * 1.3
    assert need.high >= -math.log(0.3) * 0.8
    assert need.high < 3


@pytest.mark.parametrize("name", MAKERS)
def test_the_order_of_a_query_does_not_matter(name: str) -> None:
    learner = MAKERS[name]().updated(
        [Sample(alloc=x, load=1, value=truth(x), sigma=0.1) for x in (0.5, 1.0, 1.1, 2.0, 2.1, 2.2)]
    )
    mixed = np.random.default_rng(2).permutation(len(GRID))
    assert np.array_equal(learner.bounds(GRID[mixed]).middle, learner.bounds(GRID).middle[mixed])


def test_every_learner_is_under_contract() -> None:
    assert {MAKERS[name]().as_dict()["made"] for name in MAKERS} == set(LEARNERS)


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"made": "wish"},
        {"made": "tree"},
        {"made": "monotone", "settings": 3, "bins": []},
        [],
        {"made": "stated", "unit_demand": "x"},
    ],
)
def test_what_is_no_learner_is_refused(data: object) -> None:
    with pytest.raises(ValueError, match="learner|convert|could not"):
        from_dict(data)  # type: ignore[arg-type]


# --- what is particular to some ---------------------------------------------------------------------------------------


def test_one_point_bounds_the_monotone_curve_on_both_sides() -> None:
    learner = MonotoneLearner(settings=MonotoneSettings(slack=0.0, z=0.0)).updated(
        [Sample(alloc=2, load=1, value=0.4, sigma=0.1)]
    )
    found = learner.bounds(np.array([1.0, 2.0, 3.0, 10.0]))
    assert found.low.tolist() == pytest.approx([0.2, 0.4, 0.4, 0.4])  # in proportion left, no less right
    assert found.high.tolist() == pytest.approx([0.4, 0.4, 0.6, 1.0])  # no more left, in proportion right


def test_a_threshold_contradicts_diminishing_returns_and_wins() -> None:
    learner = MonotoneLearner()
    for x, y in ((1.0, 0.02), (2.0, 0.03), (3.0, 0.9)):
        learner = learner.updated([Sample(alloc=x, load=1, value=y, sigma=0.01)] * 20)
    found = learner.bounds(np.array([1.0, 2.0, 3.0]))
    assert found.middle.tolist() == pytest.approx([0.02, 0.03, 0.9], abs=0.02)


def test_a_flat_start_is_explored_in_spite_of_it() -> None:
    learner = MonotoneLearner().updated([Sample(alloc=1, load=1, value=0.0, sigma=0.01)] * 50)
    assert learner.bounds(np.array([8.0])).high[0] > 0.3


def test_the_noise_is_measured_not_believed() -> None:
    rng = np.random.default_rng(3)
    samples = [Sample(alloc=1, load=1, value=float(0.5 + 0.02 * rng.normal()), sigma=0.2) for _ in range(200)]
    assert MonotoneLearner().updated(samples).noise_factor == pytest.approx(0.01, rel=0.3)


def test_a_proxy_is_read_through_its_map() -> None:
    learner = Proxy(to_value=((0.0, 0.0), (0.5, 0.8), (1.0, 1.0)), learner=MonotoneLearner())
    learner = learner.updated([Sample(alloc=1, load=1, value=0.5, sigma=0.05)] * 30)
    assert learner.bounds(np.array([1.0])).middle[0] == pytest.approx(0.8, abs=0.01)
    with pytest.raises(ValueError, match="never fall"):
        Proxy(to_value=((0.0, 1.0), (1.0, 0.0)), learner=MonotoneLearner())


def test_recorded_profiles_with_crossed_bounds_are_read() -> None:
    crossed = Profiled(points=((0.0, 0.7, 0.6, 0.5), (1.0, 0.9, 0.8, 0.85)))
    found = crossed.bounds(np.array([0.0, 0.5, 1.0]))
    assert (found.low <= found.high).all()


def test_the_default_for_quality_reaches_it_at_the_full_share() -> None:
    curve = default_quality(4.0, best=0.9)
    assert curve.bounds(np.array([4.0, 8.0])).middle.tolist() == [0.9, 0.9]
    assert curve.need(0.45).middle < 2.0  # half of the quality costs less than half of the share


def test_the_tree_throws_the_first_five_away() -> None:
    tree = TreeLearner.empty(TreeSettings(x_max=1.0, slope=1.0))
    tree = tree.updated([Sample(alloc=0.5, load=1, value=0.5, sigma=0.1)] * 4)
    assert (tree.points, tree.seen) == (0, 4)
    assert tree.updated([Sample(alloc=0.5, load=1, value=0.5, sigma=0.1)] * 3).points == 2
