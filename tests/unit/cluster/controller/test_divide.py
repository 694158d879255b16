"""Shares over boxes: within every grant and capacity, as much as fits, where the cameras are."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.controller.divide import LEAST_PCT, STEP_PCT, divide

Needs = dict[str, dict[str, float]]


def test_one_customer_on_one_box() -> None:
    assert divide({"a": 40.0}, {"a": {"x": 10.0}}, {"x": 100.0}) == {"a": {"x": 40.0}}


def test_who_can_go_elsewhere_makes_room_but_for_the_floor() -> None:
    found = divide({"a": 100.0, "b": 100.0}, {"a": {"x": 50.0}, "b": {"x": 50.0, "y": 50.0}}, {"x": 100.0, "y": 100.0})
    assert found == {"a": {"x": 99.0}, "b": {"x": 1.0, "y": 99.0}}


def test_where_there_is_room_shares_lie_as_cameras_need_them() -> None:
    found = divide({"a": 60.0}, {"a": {"x": 30.0, "y": 10.0}}, {"x": 100.0, "y": 100.0})
    assert found["a"]["x"] == pytest.approx(45.0, abs=0.11)
    assert found["a"]["y"] == pytest.approx(15.0, abs=0.11)


def test_what_fits_nowhere_is_not_given() -> None:
    assert divide({"a": 300.0}, {"a": {"x": 10.0}}, {"x": 100.0, "y": 100.0}) == {"a": {"x": 100.0}}


def test_boxes_without_capacity_and_customers_without_cameras_get_nothing() -> None:
    assert divide({"a": 50.0, "b": 10.0}, {"a": {"x": 1.0, "gone": 5.0}}, {"x": 80.0, "z": 0.0}) == {"a": {"x": 50.0}, "b": {}}
    assert divide({"a": 50.0}, {}, {"x": 80.0}) == {"a": {}}
    assert divide({}, {}, {}) == {}


worlds = st.tuples(
    st.dictionaries(st.sampled_from("abc"), st.floats(1.0, 300.0), min_size=1),
    st.dictionaries(st.sampled_from("abc"), st.dictionaries(st.sampled_from("xyz"), st.floats(0.0, 80.0), min_size=1)),
    st.dictionaries(st.sampled_from("xyz"), st.floats(5.0, 200.0), min_size=1),
)


@settings(max_examples=60, deadline=None)
@given(worlds)
def test_grants_capacities_and_floors_hold(world: tuple[dict[str, float], Needs, dict[str, float]]) -> None:
    grants, needs, capacity = world
    found = divide(grants, needs, capacity)
    for customer, by_box in found.items():
        assert sum(by_box.values()) <= grants[customer] + 1e-6
        assert by_box.keys() <= needs.get(customer, {}).keys() & capacity.keys()
    for box, pct in capacity.items():
        assert sum(by_box.get(box, 0.0) for by_box in found.values()) <= pct + 1e-6
    for customer in grants:
        for box in needs.get(customer, {}).keys() & capacity.keys():
            assert found[customer].get(box, 0.0) >= STEP_PCT - 1e-9, "nobody with a camera gets nothing"


def best_total(grants: dict[str, float], needs: Needs, capacity: dict[str, float]) -> float:
    """Largest flow = smallest cut, over all sets S of customers: what those outside S may have, and what those in S can reach."""
    customers = [c for c in grants if needs.get(c)]
    least = float("inf")
    for chosen in product((False, True), repeat=len(customers)):
        inside = {c for c, take in zip(customers, chosen, strict=True) if take}
        boxes = {b for c in inside for b in needs[c] if b in capacity}
        least = min(least, sum(grants[c] for c in customers if c not in inside) + sum(capacity[b] for b in boxes))
    return least


@settings(max_examples=60, deadline=None)
@given(worlds)
def test_as_much_is_given_as_can_be(world: tuple[dict[str, float], Needs, dict[str, float]]) -> None:
    grants, needs, capacity = world
    given_pct = sum(sum(by_box.values()) for by_box in divide(grants, needs, capacity).values())
    pairs = sum(len(by_box) for by_box in needs.values())
    best = best_total(grants, needs, capacity)
    # Floors may cost a percent per pair, rounding a step.
    assert best - pairs * (LEAST_PCT + STEP_PCT) - 1e-6 <= given_pct <= best + 1e-6


def test_the_order_of_names_changes_nothing() -> None:
    needs = {"a": {"x": 5.0, "y": 9.0}, "b": {"y": 4.0}}
    one = divide({"a": 70.0, "b": 90.0}, needs, {"x": 60.0, "y": 100.0})
    other = divide({"b": 90.0, "a": 70.0}, dict(reversed(needs.items())), {"y": 100.0, "x": 60.0})
    assert one == other
