"""Shares to groups of SMs: the rounding, its bounds, and that a change moves as little as possible."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.partitions import EPSILON, Granularity, Partition, assign_groups, granularity, plan_partitions

NAMES = st.text("abcdefgh", min_size=1, max_size=3)
GROUPS = st.integers(1, 33)


@st.composite
def shares(draw: st.DrawFn) -> dict[str, float]:
    weights = draw(st.dictionaries(NAMES, st.floats(0, 100), max_size=12))
    total = sum(weights.values())
    full_pct = draw(st.floats(1, 100))
    return {job: weight * full_pct / total for job, weight in weights.items()} if total > 1e-3 else {}


@pytest.mark.parametrize(
    ("major", "expected"), [(6, (1, 1)), (7, (2, 2)), (8, (4, 2)), (9, (8, 8)), (10, (8, 8)), (12, (8, 8))]
)
def test_granularity_by_architecture(major: int, expected: tuple[int, int]) -> None:
    assert granularity(major) == Granularity(minimum_sms=expected[0], multiple_sms=expected[1])


def test_an_architecture_without_green_contexts_is_refused() -> None:
    with pytest.raises(ValueError, match=r"5\.2"):
        granularity(5, 2)


@pytest.mark.parametrize(("sms", "expected"), [(7.9, 0), (8, 8), (66, 64), (132, 128), (0, 0)])
def test_round_down_on_hopper(sms: float, expected: int) -> None:
    assert granularity(9).round_down(sms) == expected


def test_two_halves_of_sixteen_groups() -> None:
    assert plan_partitions({"a": 50, "b": 50}, groups=16) == (
        Partition(jobs=("a",), share_pct=50.0, groups=8),
        Partition(jobs=("b",), share_pct=50.0, groups=8),
    )


def test_thirds_round_up_while_groups_are_left() -> None:
    plan = plan_partitions({"a": 100 / 3, "b": 100 / 3, "c": 100 / 3}, groups=16)
    assert [p.groups for p in plan] == [6, 5, 5]  # 5.33 each; one is left over, ties by name


def test_small_shares_live_together() -> None:
    plan = plan_partitions({"train": 90, "p": 1, "q": 2, "r": 3}, groups=16)
    assert plan == (
        Partition(jobs=("p", "q", "r"), share_pct=pytest.approx(6.0), groups=1),
        Partition(jobs=("train",), share_pct=pytest.approx(90.0), groups=15),
    )


def test_one_group_for_all() -> None:
    assert [p.groups for p in plan_partitions({"a": 60, "b": 40}, groups=1)] == [1]


@pytest.mark.parametrize("bad", [{"a": -1.0}, {"a": math.nan}, {"a": 60.0, "b": 41.0}])
def test_impossible_shares_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="share"):
        plan_partitions(bad, groups=16)


def test_no_group_is_refused() -> None:
    with pytest.raises(ValueError, match="group"):
        plan_partitions({}, groups=0)


@given(shares(), GROUPS)
def test_sum_minimum_and_every_job_once(promised: dict[str, float], groups: int) -> None:
    plan = plan_partitions(promised, groups=groups)
    assert sum(p.groups for p in plan) <= groups
    assert all(p.groups >= 1 for p in plan)
    assert sorted(job for p in plan for job in p.jobs) == sorted(job for job, share in promised.items() if share > 0)
    assert sum(len(p.jobs) > 1 for p in plan) <= 1


@given(shares(), GROUPS)
def test_no_partition_is_a_whole_group_away_from_its_share(promised: dict[str, float], groups: int) -> None:
    for p in plan_partitions(promised, groups=groups):
        ideal = p.share_pct * groups / 100
        assert ideal - 1 - 2 * EPSILON < p.groups < ideal + 1 + 2 * EPSILON


@given(shares(), GROUPS)
def test_a_larger_share_never_gets_fewer_groups(promised: dict[str, float], groups: int) -> None:
    plan = [p for p in plan_partitions(promised, groups=groups) if len(p.jobs) == 1]
    for a in plan:
        for b in plan:
            if a.share_pct > b.share_pct + 1e-3:
                assert a.groups >= b.groups


@given(shares(), GROUPS)
def test_groups_are_left_over_only_when_nobody_asked_for_them(promised: dict[str, float], groups: int) -> None:
    plan = plan_partitions(promised, groups=groups)
    if sum(p.groups for p in plan) < groups:
        assert all(p.groups >= p.share_pct * groups / 100 - 2 * EPSILON for p in plan)


def test_a_change_moves_as_little_as_possible() -> None:
    first = assign_groups({}, {"a": 8, "b": 8}, groups=16)
    assert first == {"a": tuple(range(8)), "b": tuple(range(8, 16))}
    second = assign_groups(first, {"a": 6, "b": 8, "c": 2}, groups=16)
    assert second == {"a": tuple(range(6)), "b": first["b"], "c": (6, 7)}
    assert assign_groups(second, {"b": 10, "c": 2}, groups=16)["c"] == (6, 7)


def test_more_groups_than_there_are_is_refused() -> None:
    with pytest.raises(ValueError, match="17 groups"):
        assign_groups({}, {"a": 9, "b": 8}, groups=16)


@given(st.lists(shares(), min_size=1, max_size=6), GROUPS)
def test_groups_are_disjoint_after_every_change(changes: list[dict[str, float]], groups: int) -> None:
    held: dict[str, tuple[int, ...]] = {}
    for promised in changes:
        counts = {p.jobs[0]: p.groups for p in plan_partitions(promised, groups=groups)}
        before, held = held, assign_groups(held, counts, groups=groups)
        ids = [group for owned in held.values() for group in owned]
        assert len(ids) == len(set(ids))
        assert all(0 <= group < groups for group in ids)
        assert {key: len(owned) for key, owned in held.items()} == counts
        for key, owned in held.items():
            assert len(set(owned) & set(before.get(key, ()))) == min(len(owned), len(before.get(key, ())))
