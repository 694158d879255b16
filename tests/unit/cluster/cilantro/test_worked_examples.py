"""The worked examples W1 to W9 of the card, against brute force where that is small enough."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.cilantro import rules
from cluster.cilantro.fairness import Node, hierarchical_max_min, max_min
from cluster.cilantro.metrics import published, released
from cluster.cilantro.policies import JobView, Objective, Settings, decide, informative_units, least_units
from cluster.cilantro.search import sampling_weights
from cluster.cilantro.tree import TreeLearner, TreeSettings, beta_at
from cluster.cilantro.types import Bounds, FloatArray, IntArray, Sample
from cluster.cilantro.utility import utility
from cluster.cilantro.welfare import egalitarian, limits, social_welfare


def linear(demand: float, total: int, shape: str = "linear") -> FloatArray:
    """Utility of a job whose performance grows in proportion up to its demand."""
    return utility(np.arange(total + 1) / demand, 1.0, shape)


def all_splits(jobs: int, total: int) -> itertools.chain[tuple[int, ...]]:
    return itertools.chain(t for t in itertools.product(range(total + 1), repeat=jobs) if sum(t) <= total)


def at(utilities: Sequence[FloatArray], units: Sequence[int] | IntArray) -> FloatArray:
    return np.array([float(u[a]) for u, a in zip(utilities, units, strict=True)])


def views(curves: Sequence[FloatArray], goal: float = 1.0, shape: str = "linear") -> list[JobView]:
    return [JobView(id=str(j), goal=goal, shape=shape, curve=Bounds(low=c, middle=c, high=c)) for j, c in enumerate(curves)]


def flat(count: int) -> Node:
    return Node(name="", children=tuple(Node(name=str(j)) for j in range(count)))


def test_w1_three_linear_jobs() -> None:
    total, demands = 60, np.array([10.0, 50.0, 90.0])
    found = [linear(d, total) for d in demands]
    free = limits(found, total)
    assert social_welfare(found, free).tolist() == [10, 50, 0]
    assert egalitarian(found, free).tolist() == [4, 20, 36]
    share = max_min([1, 1, 1], demands.tolist(), total)
    assert share.tolist() == [10, 25, 25]
    fair = at(found, [20, 20, 20])
    for units, social, least, fairness, useful in (
        ([10, 50, 0], 0.6667, 0.0, 0.0, 1.0),
        ([4, 20, 36], 0.4, 0.4, 0.4, 1.0),
        ([10, 25, 25], 0.5926, 0.2778, 1.0, 1.0),
        ([20, 20, 20], 0.5407, 0.2222, 1.0, 0.8333),
    ):
        told = published(at(found, units), fair, np.array(units, dtype=float), demands, total)
        assert told.as_dict() == pytest.approx(
            {"social": social, "egalitarian": least, "fairness": fairness, "useful": useful}, abs=1e-4
        )


def test_w1_with_the_box() -> None:
    found = [linear(d, 60) for d in (10, 50, 90)]
    box = limits(found, 60, [10] * 3, [30] * 3)
    units = social_welfare(found, box)
    assert units.tolist() == [10, 30, 20]
    assert at(found, units).mean() == pytest.approx(0.6074, abs=1e-4)
    assert at(found, egalitarian(found, box)).min() == pytest.approx(1 / 3)  # job 3 capped at 30
    boxed = decide(
        [JobView(id=v.id, goal=1.0, curve=v.curve, before=20) for v in views([np.arange(61) / d for d in (10, 50, 90)])],
        flat(3), 60, Settings.published("sw"),
    )  # fmt: skip
    assert list(boxed.units.values()) == [10, 30, 20]


def test_w2_three_shapes() -> None:
    found = [linear(10, 15, shape) for shape in ("quadratic", "linear", "sqrt")]
    free = limits(found, 15)
    sw, ew = social_welfare(found, free), egalitarian(found, free)
    assert sw.tolist() == [10, 2, 3]
    assert at(found, sw).sum() == pytest.approx(1.7477, abs=1e-4)
    assert ew.tolist() == [7, 5, 3]
    assert at(found, ew).min() == pytest.approx(0.49)
    assert at(found, [5, 5, 5]).tolist() == pytest.approx([0.25, 0.5, 0.7071], abs=1e-4)


def test_w3_three_curves() -> None:
    a = np.arange(25)
    found = [1 - np.exp(-a / 4), 1 - np.exp(-a / 8), np.minimum(1, a / 20)]
    free = limits(found, 24)
    assert social_welfare(found, free).tolist() == [6, 7, 11]
    assert at(found, [6, 7, 11]).mean() == pytest.approx(0.636669, abs=1e-6)
    assert egalitarian(found, free).tolist() == [4, 8, 12]
    assert at(found, [4, 8, 12]).min() == pytest.approx(0.6)


def test_w4_the_simulation_of_the_thesis() -> None:
    offsets, load, total = (0.1, 0.3, 0.5, 0.7, 0.9), 2.0, 25
    needs = [load * (b + math.log(19)) for b in offsets]
    assert needs == pytest.approx([6.089, 6.489, 6.889, 7.289, 7.689], abs=1e-3)
    curves = [1 / (1 + np.exp(-(np.arange(total + 1) / load - b))) for b in offsets]
    objectives: tuple[Objective, ...] = ("sw", "ew")
    for objective in objectives:
        units = list(decide(views(curves, 0.95), flat(5), total, Settings(objective=objective)).units.values())
        assert units == [4, 5, 5, 5, 6]
    utilities = [utility(c, 0.95, "linear") for c in curves]
    assert at(utilities, [4, 5, 5, 5, 6]).mean() == pytest.approx(0.926314, abs=1e-6)
    assert at(utilities, [4, 5, 5, 5, 6]).min() == pytest.approx(0.903315, abs=1e-6)
    njc = decide(views(curves, 0.95), flat(5), total, Settings(objective="njc"))
    assert list(njc.units.values()) == [5] * 5
    assert at(utilities, [5] * 5).mean() == pytest.approx(0.9238, abs=1e-4)
    assert at(utilities, [5] * 5).min() == pytest.approx(0.8758, abs=1e-4)


@pytest.mark.parametrize(
    ("weights", "demands", "total", "expected"),
    [
        ((1, 1, 1), (5, 20, 20), 30, (5, 12.5, 12.5)),
        ((1, 1, 1, 1), (30, 2, 8, 40), 40, (15, 2, 8, 15)),
        ((1, 1, 1), (4, 4, 4), 30, (4, 4, 4)),
        ((2, 1, 1), (30, 5, 30), 40, (70 / 3, 5, 35 / 3)),
    ],
)
def test_w5_max_min(weights: tuple[float, ...], demands: tuple[float, ...], total: float, expected: tuple[float, ...]) -> None:
    assert max_min(weights, demands, total).tolist() == pytest.approx(expected)


@pytest.mark.parametrize(("second", "expected"), [(60.0, (8, 37, 30, 15)), (10.0, (8, 10, 48, 24))])
def test_w5_the_tree(second: float, expected: tuple[float, ...]) -> None:
    a = Node(name="A", children=(Node(name="a1"), Node(name="a2")))
    b = Node(name="B", children=(Node(name="b1", weight=2), Node(name="b2")))
    shares = hierarchical_max_min(Node(name="", children=(a, b)), {"a1": 8, "a2": second, "b1": 100, "b2": 100}, 90)
    assert [shares[name] for name in ("a1", "a2", "b1", "b2")] == pytest.approx(expected)


def test_w6_demands_between_the_bounds() -> None:
    a = np.arange(401)
    curve = Bounds(low=1 - 1 / (1 + 0.05 * a), middle=1 - 1 / (1 + 0.1 * a), high=1 - 1 / (1 + 0.25 * a))
    assert least_units(curve.low - 1e-12 + 2e-12, 0.9, 400) == 180
    assert least_units(curve.high + 1e-12, 0.9, 400) == 36
    assert informative_units(curve, 0.9) == 103
    assert min(curve.high[103] - 0.9, 0.9 - curve.low[103]) == pytest.approx(0.0626, abs=1e-4)
    wide = Bounds(low=curve.low + 1e-12, middle=curve.middle, high=curve.high)
    one = JobView(id="0", goal=0.9, curve=wide)
    free = decide([one], flat(1), 400, Settings.published("njc"))
    assert free.demands["0"] == pytest.approx(0.75 * 180 + 0.25 * 103)  # 160.75
    clipped = decide([JobView(id="0", goal=0.9, curve=wide, demand_before=50)], flat(1), 400, Settings.published("njc"))
    assert clipped.demands["0"] == 60
    assert decide([one], flat(1), 400, Settings.released("njc")).demands["0"] == pytest.approx(0.7 * 180 + 0.3 * 103)


def test_w6_rules_of_the_baselines() -> None:
    miad = rules.miad(np.array([40.0, 40, 40]), np.array([True, False, False]))
    assert miad.tolist() == [60, 39, 39]
    assert rules.share(miad, 120).tolist() == [42, 39, 39]
    parties = rules.parties(np.array([50.0, 50, 50]), np.array([-0.1, 0.5, 0.1]))
    assert parties.tolist() == [70, 45, 50]
    assert rules.share(parties, 120).tolist() == [40, 40, 40]
    minerva = rules.minerva(np.array([20.0, 20, 20]), np.array([0.25, 0.5, 1.0]), 60)
    assert minerva.tolist() == pytest.approx([34.29, 17.14, 8.57], abs=0.01)


def w7() -> TreeLearner:
    told = TreeSettings(x_max=1.0, slope=0.1, beta=0.2, tau_scale=0.0, warm_up=0)
    samples = [Sample(alloc=x, load=1, value=y, sigma=1) for x, y in ((0.2, 0.3), (0.8, 0.9))]
    return TreeLearner.empty(told).updated(samples)


def test_w7_crossed_bounds_are_put_in_order() -> None:
    tree = w7()
    root, left, right = (tree.cells[place] for place in ((0, 1), (1, 1), (1, 2)))
    assert (root.low, root.high) == pytest.approx((0.35858, 0.6), abs=1e-5)  # BU stays from the first point; f's is .84142
    assert (left.low, left.high) == pytest.approx((0.05, 0.55))
    assert right.low == pytest.approx(0.65)
    assert tree.raw_bounds_of((1, 2)) == pytest.approx((0.65, 0.6))  # inverted
    guarded = tree.bounds(np.array([0.8]))
    assert (guarded.low[0], guarded.high[0]) == pytest.approx((0.6, 0.65))


def test_w7_beta() -> None:
    told = TreeSettings(x_max=1.0, slope=1.0)
    betas = [beta_at(t, told) for t in (1, 10, 100, 1000)]
    assert betas == pytest.approx([0.00660465, 0.00740418, 0.00812542, 0.00878766], abs=1e-8)


def test_w8_chances_of_the_evolution() -> None:
    assert sampling_weights([0.2, 0.4, 0.9]).tolist() == pytest.approx([0.0727, 0.1434, 0.7839], abs=1e-4)
    assert sampling_weights([0.5, 0.5]).tolist() == [0.5, 0.5]


def test_released_fairness_is_another_number() -> None:
    told = released(np.array([10.0, 50, 0]), np.array([10.0, 50, 90]), np.array([20.0, 20, 20]), 60)
    assert told.allocation_fairness == 0.0
    assert told.allocation_fairness_mean == pytest.approx(2 / 3)
    assert told.resource_loss == 0.0
    fair = released(np.array([20.0, 20, 20]), np.array([10.0, 50, 90]), np.array([20.0, 20, 20]), 60)
    assert (fair.allocation_fairness, fair.resource_loss) == pytest.approx((1.0, 10 / 60))


curves = st.lists(st.lists(st.integers(0, 20), min_size=8, max_size=8), min_size=1, max_size=3)


@settings(max_examples=60, deadline=None)
@given(curves, st.integers(0, 7), st.data())
def test_the_optimisers_are_exact(steps: list[list[int]], total: int, data: st.DataObject) -> None:
    found = [np.cumsum([0.0, *row])[: total + 1] / 200 for row in steps]
    low = [data.draw(st.integers(0, 2)) for _ in found]
    if sum(low) > total:
        low = [0] * len(found)
    high = [lo + data.draw(st.integers(0, 7)) for lo in low]
    within = limits(found, total, low, high)
    options = [s for s in all_splits(len(found), total) if (within.low <= s).all() and (s <= within.high).all()]
    for solved, measure in ((social_welfare(found, within), np.sum), (egalitarian(found, within), np.min)):
        assert solved.sum() <= total
        assert (solved >= within.low).all()
        assert (solved <= within.high).all()
        best = max(float(measure(at(found, s))) for s in options)
        assert float(measure(at(found, solved))) == pytest.approx(best, abs=1e-9)
