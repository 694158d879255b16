"""Customers' shares of a box in its plans: floors hold, idle parts are given away, an undivided box is planned as ever."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.fleet.grants import Division, Part, floors_of, parts_of, planned, told, wanted_pct, whole
from scheduler.registry import make_policy
from scheduler.types import Gpu, KnobProfile, Network, Plan, RetrainOption, Snapshot, StreamView

POLICY = make_policy("thief-repeat")


def knobs(demand_pct: float) -> tuple[KnobProfile, ...]:
    return (
        KnobProfile(name="every", demand_pct=demand_pct, quality_frac=1.0),
        KnobProfile(name="half", demand_pct=demand_pct / 2, quality_frac=0.78),
        KnobProfile(name="quarter", demand_pct=demand_pct / 4, quality_frac=0.6),
    )


def view(id: str, demand_pct: float = 20.0, quality: float = 0.6, options: tuple[tuple[float, float], ...] = ()) -> StreamView:
    retrain = tuple(RetrainOption(name=f"o{n}", end_quality=end, cost_gpu_s=cost) for n, (end, cost) in enumerate(options))
    return StreamView(id=id, quality=quality, knobs=knobs(demand_pct), retrain=retrain)


def snapshot(*views: StreamView, capacity_pct: int = 100, **changes: object) -> Snapshot:
    made = Snapshot(
        remaining_s=100.0, capacity_pct=capacity_pct, quantum_pct=5, min_quality=0.0, streams=views, estimate="hand-back"
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def by_first_letter(*views: StreamView, **shares_pct: float) -> Division:
    """Streams a1, a2 belong to customer a."""
    return Division(shares_pct=shares_pct, customers={v.id: v.id[0] for v in views})


def used(plan: Plan, letter: str) -> int:
    return sum(s.infer_pct + s.train_pct for s in plan.streams if s.id.startswith(letter))


def quality(plan: Plan, letter: str) -> float:
    return sum(s.expected_quality for s in plan.streams if s.id.startswith(letter))


# --- floors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shares", "cameras", "floors_pct"),
    [
        ({"a": 60, "b": 40}, {"a": 2, "b": 2}, {"a": 60, "b": 40}),
        ({"a": 120, "b": 80}, {"a": 2, "b": 2}, {"a": 60, "b": 40}),  # more than there is: scaled
        ({"a": 30}, {"a": 2, "b": 2}, {"a": 30, "b": 70}),  # unnamed: what is left
        ({"a": 30}, {"a": 1, "b": 1, "c": 3}, {"a": 30, "b": 20, "c": 50}),  # ... by cameras
        ({"a": 100}, {"a": 1, "b": 1}, {"a": 95, "b": 5}),  # nothing is left: a quantum at least
        ({"a": 30, "z": 50}, {"a": 1, "b": 1}, {"a": 30, "b": 20}),  # z has no camera here: its part is left over
        ({"a": 12, "b": 12}, {"a": 1, "b": 1}, {"a": 15, "b": 15}),  # there is room to round up
        ({"a": 52, "b": 48}, {"a": 1, "b": 1}, {"a": 50, "b": 50}),  # there is none: the larger remainder
        ({"a": 0.5, "b": 99.5}, {"a": 1, "b": 1}, {"a": 5, "b": 95}),
    ],
)
def test_floors(shares: dict[str, float], cameras: dict[str, int], floors_pct: dict[str, int]) -> None:
    found = floors_of(cameras, 100, 5, Division(shares_pct=shares, customers={}))
    assert {customer: 5 * quanta for customer, quanta in found.items()} == floors_pct


def test_a_gate_is_paid_from_its_own_customers_part() -> None:
    """20 pct are at a gate of a: the snapshot has 80, of which b is still sure of its 40."""
    division = Division(shares_pct={"a": 60, "b": 40}, customers={}, gates_pct={"a": 20})
    assert floors_of({"a": 1, "b": 1}, 80, 5, division) == {"a": 8, "b": 8}


def test_more_customers_than_quanta() -> None:
    found = floors_of({"a": 1, "b": 1, "c": 1}, 10, 5, Division(shares_pct={"a": 10, "b": 5, "c": 5}, customers={}))
    assert sum(found.values()) <= 2


customers_st = st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 9), min_size=1)


@given(
    customers_st, st.dictionaries(st.sampled_from("abcdefg"), st.floats(0.1, 500)), st.integers(6, 320), st.sampled_from([1, 5, 10]),
    st.dictionaries(st.sampled_from("abcdef"), st.floats(0, 80)),
)  # fmt: skip
def test_floors_fit_and_nobody_is_left_out(
    cameras: dict[str, int], shares: dict[str, float], quanta: int, quantum_pct: int, gates: dict[str, float]
) -> None:
    capacity = quanta * quantum_pct
    found = floors_of(cameras, capacity, quantum_pct, Division(shares_pct=shares, customers={}, gates_pct=gates))
    assert found.keys() == cameras.keys()
    assert min(found.values()) >= 1
    assert sum(found.values()) <= quanta
    wanted = wanted_pct(cameras, capacity, shares)
    assert sum(wanted.values()) <= capacity * (1 + 1e-9)
    if not gates and all(pct >= quantum_pct for pct in wanted.values()):
        assert all(found[c] * quantum_pct > wanted[c] - quantum_pct for c in cameras)  # never a whole quantum below


# --- plans ------------------------------------------------------------------------------------------------------------


def test_without_shares_or_with_one_customer_it_is_the_policys_own_plan() -> None:
    views = (view("a1", 60, options=((0.9, 30.0),)), view("b1", 60))
    given_ = snapshot(*views)
    assert planned(given_, POLICY, by_first_letter(*views)) == POLICY(given_)
    assert planned(given_, POLICY, Division(shares_pct={"a": 10}, customers={"a1": "a", "b1": "a"})) == POLICY(given_)
    assert planned(given_, POLICY, Division(shares_pct={"z": 10}, customers={})) == POLICY(given_)


def test_devices_and_a_clouds_link_are_not_divided() -> None:
    views = (view("a1", 60), view("b1", 60))
    division = by_first_letter(*views, a=90, b=10)
    for whole_box in (
        snapshot(*views, capacity_pct=200, gpus=(Gpu(id="0"), Gpu(id="1"))),
        snapshot(*views, network=Network(up_mbps=10, down_mbps=10, up_mb=1, down_mb=1)),
    ):
        assert planned(whole_box, POLICY, division) == POLICY(whole_box)


def test_under_contention_everybody_has_its_share() -> None:
    """Both customers want far more than there is: a's promise of 75 holds, although b's cameras are worth more."""
    views = (view("a1", 80, 0.3), view("a2", 80, 0.3), view("b1", 80, 0.9), view("b2", 80, 0.9))
    alone = POLICY(snapshot(*views))
    plan = planned(snapshot(*views), POLICY, by_first_letter(*views, a=75, b=25))
    assert used(alone, "a") < 75
    assert used(plan, "a") >= 75 - 5
    assert used(plan, "b") <= 25 + 5
    assert quality(plan, "a") > quality(alone, "a")


def test_what_one_customer_leaves_idle_goes_to_the_other() -> None:
    """a needs 10 of its 75: b, promised 25, gets what it wants."""
    views = (view("a1", 10), view("b1", 40), view("b2", 40))
    plan = planned(snapshot(*views), POLICY, by_first_letter(*views, a=75, b=25))
    assert [s.knobs for s in plan.streams] == ["every", "every", "every"]
    assert used(plan, "b") >= 80
    assert "with what others leave idle" in told(parts_of(snapshot(*views), POLICY, by_first_letter(*views, a=75, b=25)))[1]


def test_a_customer_whose_cameras_are_all_away_leaves_its_part_to_the_others() -> None:
    views = (view("b1", 50), view("b2", 50))
    plan = planned(snapshot(*views), POLICY, by_first_letter(*views, a=75, b=25))
    assert [s.knobs for s in plan.streams] == ["every", "every"]


def test_what_nobody_gains_by_stays_where_it_was_promised() -> None:
    views = (view("a1", 10), view("b1", 10))
    parts = parts_of(snapshot(*views), POLICY, by_first_letter(*views, a=60, b=20))
    assert [part.snapshot.capacity_pct for part in parts] == [60, 20]
    assert whole(snapshot(*views), parts).spare_pct >= 20


def test_a_retraining_is_paid_from_its_own_customers_share() -> None:
    """a's retrainings would win much; b's inference keeps what it was promised."""
    gain = ((0.95, 10.0),)
    views = (view("a1", 10, 0.3, gain), view("a2", 10, 0.3, gain), view("b1", 50, 0.8))
    plan = planned(snapshot(*views), POLICY, by_first_letter(*views, a=50, b=50))
    assert next(s for s in plan.streams if s.id == "b1").knobs == "every"
    assert any(s.train_pct > 0 for s in plan.streams if s.id.startswith("a"))


views_st = st.lists(
    st.tuples(
        st.sampled_from("abc"), st.sampled_from([5.0, 15.0, 30.0, 60.0]), st.floats(0.1, 0.95),
        st.lists(st.tuples(st.floats(0.05, 1.0), st.floats(1.0, 60.0)), max_size=2),
    ),
    min_size=1, max_size=6,
)  # fmt: skip


def _views(drawn: list[tuple[str, float, float, list[tuple[float, float]]]]) -> tuple[StreamView, ...]:
    return tuple(view(f"{letter}{n}", demand, q, tuple(options)) for n, (letter, demand, q, options) in enumerate(drawn))


@settings(max_examples=60, deadline=None)
@given(
    views_st, st.dictionaries(st.sampled_from("abc"), st.floats(1, 120)), st.integers(20, 160),
    st.sampled_from(["thief", "thief-repeat", "fair", "optimal", "no-retrain", "uniform(high,50)", "fixed-config"]),
)  # fmt: skip
def test_any_division_is_a_plan_and_nobody_is_worse_than_on_its_own_floor(
    drawn: list[tuple[str, float, float, list[tuple[float, float]]]], shares: dict[str, float], capacity_pct: int, policy: str
) -> None:
    views, plans = _views(drawn), make_policy(policy)
    given_ = snapshot(*views, capacity_pct=capacity_pct)
    division = by_first_letter(*views, **shares)
    parts = parts_of(given_, plans, division)
    plan = whole(given_, parts)
    plan.check(capacity_pct)
    assert [s.id for s in plan.streams] == [v.id for v in views]
    assert plan.policy == plans(given_).policy
    for part in parts if len(parts) > 1 else ():
        part.plan.check(part.snapshot.capacity_pct)
        alone = plans(replace(part.snapshot, capacity_pct=part.floor_pct))
        assert sum(s.expected_quality for s in part.plan.streams) >= sum(s.expected_quality for s in alone.streams) - 1e-9
    assert parts_of(given_, plans, division) == parts


def best_split(given_: Snapshot, division: Division, parts: tuple[Part, ...]) -> float:
    """The most that any split in quanta is worth in which nobody is below its floor's quality. By trying all."""
    quanta = given_.capacity_pct // given_.quantum_pct

    def worth(part: Part, n: int) -> float:
        return sum(s.expected_quality for s in POLICY(replace(part.snapshot, capacity_pct=5 * n)).streams)

    tables = [[worth(part, n) for n in range(quanta + 1)] for part in parts]
    floors = [table[part.floor_pct // 5] for part, table in zip(parts, tables, strict=True)]
    return max(
        sum(table[n] for table, n in zip(tables, split, strict=True))
        for split in product(range(quanta + 1), repeat=len(parts))
        if sum(split) <= quanta and all(t[n] >= f - 1e-9 for t, n, f in zip(tables, split, floors, strict=True))
    )


@settings(max_examples=25, deadline=None)
@given(views_st, st.floats(5, 95), st.floats(5, 95))
def test_left_overs_are_given_away_nearly_as_well_as_by_trying_all(
    drawn: list[tuple[str, float, float, list[tuple[float, float]]]], share_a: float, share_b: float
) -> None:
    views = tuple(replace(v, id=v.id.replace("c", "b")) for v in _views(drawn))
    given_, division = snapshot(*views), by_first_letter(*views, a=share_a, b=share_b)
    parts = parts_of(given_, POLICY, division)
    if len(parts) < 2:
        return
    found = sum(s.expected_quality for s in whole(given_, parts).streams)
    assert found >= 0.97 * best_split(given_, division, parts)
