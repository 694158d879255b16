"""Jobs in the partitions of a divided GPU: nothing is promised that a partition does not have, and nothing is cut that need not be."""

from __future__ import annotations

import math
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.partitions_mig import EPSILON_PCT, Bin, Placing, Tenant, place

HALVES = [Bin(id="a", size_pct=50), Bin(id="b", size_pct=50)]
H200 = [
    Bin(id="large", size_pct=300 / 7, memory_mib=71_000),
    *(Bin(id=f"s{i}", size_pct=100 / 7, memory_mib=18_000) for i in range(4)),
]


def tenants(**shares: float) -> list[Tenant]:
    return [Tenant(job=job, share_pct=share) for job, share in shares.items()]


def test_a_worked_example() -> None:
    # 30 goes where it fits best; 20 fills that partition to the brim; 40 has the other one to itself.
    placing = place(HALVES, tenants(x=20, y=40, z=30))
    assert placing == Placing(where={"y": "a", "z": "b", "x": "b"}, given_pct={"x": 20, "y": 40, "z": 30})
    assert placing.cut(tenants(x=20, y=40, z=30)) == ()


def test_a_placement_that_best_fit_does_not_find_is_searched() -> None:
    # Best fit: 55 + 30 and 50 + 25 + 20, and the last 20 fits nowhere. Two full GPUs: 55 + 25 + 20 and 50 + 30 + 20.
    bins = [Bin(id="a", size_pct=100), Bin(id="b", size_pct=100)]
    wanted = tenants(u=55, v=50, w=30, x=25, y=20, z=20)
    placing = place(bins, wanted)
    assert placing.cut(wanted) == ()
    assert placing.where["u"] == placing.where["x"] != placing.where["v"] == placing.where["w"]


def test_what_does_not_fit_is_cut_in_proportion_and_said() -> None:
    wanted = tenants(x=40, y=30, z=30)
    placing = place(HALVES, wanted)
    assert placing.where == {"x": "a", "y": "b", "z": "b"}  # 40 alone, 30 and 30 in the other half
    assert placing.given_pct == pytest.approx({"x": 40, "y": 25, "z": 25})
    assert [t.job for t in placing.cut(wanted)] == ["y", "z"]


def test_a_job_larger_than_every_partition_gets_the_largest_whole() -> None:
    placing = place(H200, tenants(golden=90))
    assert placing.where == {"golden": "large"}
    assert placing.given_pct["golden"] == pytest.approx(300 / 7)


def test_who_lives_somewhere_stays_although_another_partition_would_suit_better() -> None:
    wanted = [
        Tenant(job="x", share_pct=50, placed="a"),
        Tenant(job="y", share_pct=50, placed="a"),
        Tenant(job="z", share_pct=10),
    ]
    placing = place(HALVES, wanted)
    assert placing.where == {"x": "a", "y": "a", "z": "b"}
    assert placing.given_pct == {"x": 25, "y": 25, "z": 10}


def test_memory_is_never_exceeded_and_who_does_not_fit_waits() -> None:
    bins = [Bin(id="a", size_pct=50, memory_mib=10), Bin(id="b", size_pct=50, memory_mib=20)]
    wanted = [
        Tenant(job="x", share_pct=5, memory_mib=15),
        Tenant(job="y", share_pct=5, memory_mib=11),
        Tenant(job="z", share_pct=1, memory_mib=10),
    ]
    placing = place(bins, wanted)
    assert placing.where == {"x": "b", "z": "a"}
    assert placing.cut(wanted) == (wanted[1],)


def test_jobs_that_want_nothing_yet_are_not_placed_and_settle_nothing() -> None:
    assert place(HALVES, tenants(x=0)).where == {}
    assert place(HALVES, [Tenant(job="x", share_pct=0, placed="b")]) == Placing(where={"x": "b"}, given_pct={"x": 0})
    assert place([], []).where == {}
    assert place([], tenants(x=5)).cut(tenants(x=5)) == tuple(tenants(x=5))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Bin(id="a", size_pct=0), "above 0"),
        (lambda: Bin(id="a", size_pct=math.nan), "above 0"),
        (lambda: Bin(id="a", size_pct=10, memory_mib=0), "above 0"),
        (lambda: Tenant(job="x", share_pct=-1), "share_pct of 'x'"),
        (lambda: Tenant(job="x", share_pct=1, memory_mib=math.inf), "memory_mib of 'x'"),
        (lambda: place(HALVES + HALVES, []), "one id"),
        (lambda: place(HALVES, tenants(x=1) + tenants(x=1)), "one name"),
        (lambda: place(HALVES, [Tenant(job="x", share_pct=1, placed="c")]), "no partition"),
    ],
)
def test_nonsense_is_refused(make: object, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make()  # type: ignore[operator]


def test_a_hundred_equal_jobs_in_equal_partitions_end_in_time() -> None:
    bins = [Bin(id=str(i), size_pct=100 / 7) for i in range(28)]
    wanted = [Tenant(job=f"j{i:03}", share_pct=4.1) for i in range(100)]  # three to a partition: 84 of 100
    placing = place(bins, wanted)
    assert len(placing.where) == 100
    check(bins, wanted, placing)


def check(bins: list[Bin], wanted: list[Tenant], placing: Placing) -> None:
    for b in bins:
        inside = [t for t in wanted if placing.where.get(t.job) == b.id]
        assert sum(placing.given_pct[t.job] for t in inside) <= b.size_pct + EPSILON_PCT
        assert sum(t.memory_mib for t in inside if t.placed is None) <= b.memory_mib
    for t in wanted:
        assert 0 <= placing.given_pct.get(t.job, 0.0) <= t.share_pct
        assert (t.job in placing.given_pct) == (t.job in placing.where)
        if t.placed is not None:
            assert placing.where[t.job] == t.placed


SIZES = st.sampled_from([100 / 7, 200 / 7, 300 / 7, 400 / 7, 50.0, 100.0])


@st.composite
def situations(draw: st.DrawFn) -> tuple[list[Bin], list[Tenant]]:
    memory = st.sampled_from([math.inf, 100.0, 250.0])
    bins = [Bin(id=f"b{i}", size_pct=draw(SIZES), memory_mib=draw(memory)) for i in range(draw(st.integers(1, 4)))]
    homes = st.sampled_from([None, None, None, *(b.id for b in bins)])
    wanted = [
        Tenant(
            job=f"j{i}", share_pct=draw(st.integers(0, 60)), memory_mib=draw(st.integers(0, 120)), placed=draw(homes),
        )
        for i in range(draw(st.integers(0, 6)))
    ]  # fmt: skip
    return bins, wanted


@settings(max_examples=200, deadline=None)
@given(situations(), st.randoms(use_true_random=False))
def test_whatever_comes_no_partition_gives_more_than_it_has(situation: tuple[list[Bin], list[Tenant]], random: object) -> None:
    bins, wanted = situation
    placing = place(bins, wanted)
    check(bins, wanted, placing)
    mixed = list(wanted)
    random.shuffle(mixed)  # type: ignore[attr-defined]
    assert place(bins, mixed) == placing, "the order of the jobs does not matter"


def whole(bins: list[Bin], wanted: list[Tenant]) -> bool:
    """By trying everything: can the unplaced be placed so that nobody is cut?"""
    left = {b.id: b.size_pct - sum(t.share_pct for t in wanted if t.placed == b.id) for b in bins}
    mib = {b.id: b.memory_mib - sum(t.memory_mib for t in wanted if t.placed == b.id) for b in bins}
    new = [t for t in wanted if t.placed is None and t.share_pct > 0]

    def fits(choice: tuple[Bin, ...]) -> bool:
        return all(
            sum(t.share_pct for t, c in zip(new, choice, strict=True) if c is b) <= max(left[b.id], 0) + EPSILON_PCT
            and (
                sum(t.memory_mib for t, c in zip(new, choice, strict=True) if c is b) <= mib[b.id]
                or all(c is not b for c in choice)
            )
            for b in bins
        )

    return any(fits(choice) for choice in product(bins, repeat=len(new)))


@settings(max_examples=150, deadline=None)
@given(situations())
def test_nobody_new_is_cut_when_all_fit_somehow(situation: tuple[list[Bin], list[Tenant]]) -> None:
    bins, wanted = situation
    if not whole(bins, wanted):
        return
    placing = place(bins, wanted)
    crowded = {b.id for b in bins if sum(t.share_pct for t in wanted if t.placed == b.id) > b.size_pct}
    assert [t for t in placing.cut(wanted) if t.placed not in crowded] == []
