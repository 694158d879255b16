"""One round, by what is plugged in: bounds, boxes, unknown jobs, trees of weights, limits that cannot be met."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.cilantro.fairness import Node
from cluster.cilantro.policies import OBJECTIVES, VARIANTS, JobView, Objective, Settings, Variant, decide, informative_units
from cluster.cilantro.types import Bounds, FloatArray


def flat(*names: str) -> Node:
    return Node(name="", children=tuple(Node(name=name) for name in names))


def sure(need: float, total: int = 60) -> Bounds:
    curve = np.minimum(1.0, np.arange(total + 1) / need)
    return Bounds(low=curve, middle=curve, high=curve)


def spread(low: float, middle: float, high: float, total: int = 60) -> Bounds:
    """Straight curves that reach the goal 1 at these units."""
    a = np.arange(total + 1)
    return Bounds(low=np.minimum(1, a / low), middle=np.minimum(1, a / middle), high=np.minimum(1, a / high))


def job(name: str, curve: Bounds | None, **more: object) -> JobView:
    return JobView(id=name, goal=1.0, curve=curve, **more)  # type: ignore[arg-type]


def test_welfare_as_published_trusts_the_upper_bound() -> None:
    """a could need 10, b surely 20; there are 15. Optimism gives a all it could need; the estimate (30) gives b everything."""
    jobs = [job("a", spread(60, 30, 10)), job("b", sure(20))]
    optimist = decide(jobs, flat("a", "b"), 15, Settings.released("sw"))
    assert optimist.units == {"a": 10, "b": 5}
    ours = decide(jobs, flat("a", "b"), 15, Settings(objective="sw", optimism=0.0))
    assert ours.units == {"a": 0, "b": 15}


def test_demands_of_the_three_variants() -> None:
    """Upper 10, estimate 20, lower 40. Published: .75 * 40 + .25 * the most informative; ours: a quarter down from the estimate, where
    .75 * a / 20 + .25 * a / 40 = 1."""
    curve = spread(40, 20, 10)
    one = [job("a", curve)]
    told = informative_units(curve, 1.0)
    assert decide(one, flat("a"), 60, Settings.published("njc")).demands["a"] == pytest.approx(0.75 * 40 + 0.25 * told)
    assert decide(one, flat("a"), 60, Settings.released("njc")).demands["a"] == pytest.approx(0.7 * 40 + 0.3 * told)
    # beyond 20 units the estimate is 1: 1 - .25 (1 - a / 40) = 1 only at 40
    assert decide(one, flat("a"), 60, Settings()).demands["a"] == 40
    assert decide(one, flat("a"), 60, Settings(caution=0.0)).demands["a"] == 20


def test_a_goal_out_of_reach() -> None:
    """Never by any bound: no more than brings it to its best. Perhaps: all it may have."""
    level = np.minimum(0.6, np.arange(61) / 20)
    never = Bounds(low=level, middle=level, high=level)
    perhaps = Bounds(low=level, middle=level, high=np.minimum(1.0, level * 2))
    found = decide([job("a", never), job("b", perhaps)], flat("a", "b"), 60, Settings())
    assert found.demands == {"a": 12, "b": 60}
    assert found.units == {"a": 12, "b": 48}


def test_under_ew_nobody_pays_for_the_last_bit_of_who_cannot_be_satisfied() -> None:
    """a creeps from .50 to .51 over 50 units; b would fall from 1 to .2 for that."""
    a = np.concatenate([np.linspace(0, 0.5, 11), np.linspace(0.5, 0.51, 50)])
    found = decide(
        [job("a", Bounds(low=a, middle=a, high=a)), job("b", sure(50))], flat("a", "b"), 60, Settings(objective="ew")
    )
    assert found.units == {"a": 10, "b": 50}
    as_published = decide(
        [job("a", Bounds(low=a, middle=a, high=a)), job("b", sure(50))], flat("a", "b"), 60, Settings.released("ew")
    )
    assert as_published.units["b"] < 40


@pytest.mark.parametrize("objective", ["sw", "ew"])
def test_who_is_unknown_gets_its_part_and_the_rest_is_optimised(objective: Objective) -> None:
    jobs = [job("new", None), job("a", sure(10)), job("b", sure(90))]
    found = decide(jobs, flat("new", "a", "b"), 60, Settings(objective=objective))
    assert found.units["new"] == 20
    assert math.isinf(found.demands["new"])
    assert found.units["a"] + found.units["b"] == 40


def test_the_box_and_when_it_is_left_out() -> None:
    jobs = [job("a", sure(50), before=30), job("b", sure(50), before=30)]
    boxed = Settings(objective="sw", box=5)
    assert all(abs(u - 30) <= 5 for u in decide(jobs, flat("a", "b"), 60, boxed).units.values())
    shrunk = decide(jobs, flat("a", "b"), 20, boxed)  # the capacity went: 25 each are not there
    assert sum(shrunk.units.values()) <= 20
    newcomer = decide([*jobs, job("c", sure(50))], flat("a", "b", "c"), 60, boxed)  # c was not there before
    assert sum(newcomer.units.values()) <= 60


def test_the_tree_of_weights_decides_in_njc() -> None:
    root = Node(name="", children=(Node(name="A", weight=3, children=(Node(name="a"), Node(name="b"))), Node(name="c")))
    jobs = [job(n, sure(90)) for n in "abc"]
    assert decide(jobs, root, 80, Settings()).units == {"a": 30, "b": 30, "c": 20}


def test_fair_does_not_look() -> None:
    assert decide([job("a", sure(5)), job("b", sure(50))], flat("a", "b"), 60, Settings(objective="fair")).units == {
        "a": 30,
        "b": 30,
    }


def test_nobody_at_all_and_an_unknown_objective() -> None:
    assert decide([], flat(), 10, Settings()).units == {}
    with pytest.raises(ValueError, match="known: sw, ew, njc, fair"):
        decide([job("a", sure(5))], flat("a"), 10, Settings(objective="nash"))  # type: ignore[arg-type]


steps = st.lists(st.floats(0, 0.1), min_size=30, max_size=30)


def bounds_of(low: list[float], up: list[float], more: list[float]) -> Bounds:
    def rising(values: list[float]) -> FloatArray:
        return np.concatenate([[0.0], np.cumsum(values)])

    one, two, three = rising(low), rising(low) + rising(up), rising(low) + rising(up) + rising(more)
    return Bounds(low=one, middle=two, high=three)


@settings(max_examples=80, deadline=None)
@given(
    curves=st.lists(st.one_of(st.none(), st.builds(bounds_of, steps, steps, steps)), min_size=1, max_size=5),
    least=st.lists(st.integers(0, 12), min_size=5, max_size=5),
    before=st.lists(st.one_of(st.none(), st.integers(0, 40)), min_size=5, max_size=5),
    total=st.integers(1, 80),
    objective=st.sampled_from(OBJECTIVES),
    variant=st.sampled_from(VARIANTS),
    box=st.sampled_from([None, 2, 10]),
)
def test_every_round_is_an_allocation(
    curves: list[Bounds | None],
    least: list[int],
    before: list[int | None],
    total: int,
    objective: Objective,
    variant: Variant,
    box: int | None,
) -> None:
    names = [f"j{i}" for i in range(len(curves))]
    jobs = [job(n, c, least=m, before=b, demand_before=b) for n, c, m, b in zip(names, curves, least, before, strict=False)]
    found = decide(jobs, flat(*names), total, Settings(objective=objective, variant=variant, box=box))
    assert sum(found.units.values()) <= total
    assert min(found.units.values()) >= 0
    needed = sum(m for m in least[: len(jobs)])
    if needed <= total and (objective in ("sw", "ew") or needed * 2 <= total):
        assert all(found.units[v.id] >= min(1, v.least) for v in jobs)
    if objective in ("sw", "ew") and needed <= total and all(c is not None for c in curves):
        assert all(found.units[v.id] >= v.least for v in jobs)
