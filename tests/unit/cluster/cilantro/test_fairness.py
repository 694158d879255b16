"""Sharing by entitlement: what max-min promises, along a tree as well, and whole units."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.cilantro.fairness import Node, entitlements, hierarchical_max_min, max_min, tree, whole_units, with_least

amounts = st.floats(0, 1000)
jobs = st.lists(st.tuples(st.floats(0.1, 10), amounts), min_size=1, max_size=8)


@given(jobs, st.floats(1, 2000))
def test_nobody_can_complain(given_: list[tuple[float, float]], total: float) -> None:
    weights, demands = [w for w, _ in given_], [d for _, d in given_]
    shares = max_min(weights, demands, total)
    assert shares.sum() <= total * (1 + 1e-9)
    for share, weight, demand in zip(shares, weights, demands, strict=True):
        assert share <= demand + 1e-6
        assert share >= min(demand, total * weight / sum(weights)) - 1e-6
    # nothing lies idle while somebody wants more
    assert math.isclose(shares.sum(), min(total, sum(demands)), rel_tol=1e-6, abs_tol=1e-6)


@given(jobs, st.floats(1, 2000), st.floats(1.0, 3.0))
def test_asking_for_more_never_helps_who_was_satisfied(given_: list[tuple[float, float]], total: float, factor: float) -> None:
    """Strategy-proof: who overstates gets no less than its true demand or what it had; who had its demand gains nothing useful."""
    weights, demands = [w for w, _ in given_], [d for _, d in given_]
    honest = max_min(weights, demands, total)[0]
    lying = max_min(weights, [demands[0] * factor, *demands[1:]], total)[0]
    assert min(lying, demands[0]) == pytest.approx(honest, rel=1e-6, abs=1e-6)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), st.floats(0.1, 5), amounts), min_size=1, max_size=10),
    st.floats(1, 2000),
)
def test_the_tree_gives_every_group_its_part(given_: list[tuple[int, int, float, float]], total: float) -> None:
    paths = {f"j{i}": (f"g{g}",) if s == 0 else (f"g{g}", "sub") for i, (g, s, _, _) in enumerate(given_)}
    root = tree(paths, {f"j{i}": w for i, (_, _, w, _) in enumerate(given_)}, {("g0",): 2.0})
    demands = {f"j{i}": d for i, (_, _, _, d) in enumerate(given_)}
    shares = hierarchical_max_min(root, demands, total)
    parts = entitlements(root)
    assert sum(parts.values()) == pytest.approx(1.0)
    assert sum(shares.values()) == pytest.approx(min(total, sum(demands.values())), rel=1e-6, abs=1e-6)
    for name, share in shares.items():
        assert share >= min(demands[name], total * parts[name]) - 1e-6
        assert share <= demands[name] + 1e-6


def test_what_a_job_leaves_goes_to_its_siblings_first() -> None:
    root = Node(name="", children=(Node(name="A", children=(Node(name="a"), Node(name="b"))), Node(name="c")))
    assert hierarchical_max_min(root, {"a": 10, "b": 90, "c": 90}, 100) == pytest.approx({"a": 10, "b": 40, "c": 50})


def test_unknown_demands_get_their_entitlement() -> None:
    assert max_min([1, 3], [math.inf, math.inf], 40).tolist() == [10, 30]


@given(st.lists(st.floats(0, 50), min_size=1, max_size=20))
def test_whole_units_keep_the_sum_and_stay_near(given_: list[float]) -> None:
    units = whole_units(given_)
    assert int(units.sum()) == math.floor(math.fsum(given_) + 1e-6)
    assert (np.abs(units - np.array(given_)) < 1 + 1e-6).all()


def test_whole_units_by_largest_remainder() -> None:
    assert whole_units([1.2, 1.5, 1.3]).tolist() == [1, 2, 1]
    assert whole_units([2.5, 2.5, 2.5, 2.5]).tolist() == [3, 3, 2, 2]


@given(st.lists(st.tuples(amounts, st.floats(0.1, 20)), min_size=1, max_size=10), st.floats(1, 3000))
def test_the_least_is_kept_as_long_as_there_is_enough(given_: list[tuple[float, float]], total: float) -> None:
    given_amounts = np.array([a for a, _ in given_])
    if given_amounts.sum() > total:
        given_amounts *= total / given_amounts.sum()
    least = np.array([m for _, m in given_])
    found = with_least(given_amounts, least, total)
    assert found.sum() <= total * (1 + 1e-9)
    assert (found > 0).all()
    if least.sum() <= total:
        assert (found >= least - 1e-6).all()
