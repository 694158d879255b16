"""The price of changing shares: what does not pay stays, within the capacity, and exactly so."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.pricing import ChangePrice, Held, Priced, net_value, worth_its_changes
from scheduler.registry import make_policy
from scheduler.types import Gpu, KnobProfile, Plan, RetrainOption, Snapshot, StreamPlan, StreamView

FREE = ChangePrice()
DEAR = ChangePrice(settle_s=5.0, gpu_s=3.0, blind_s=2.0)


def knobs(demand_pct: float) -> tuple[KnobProfile, ...]:
    """The card's shape of an inference profile: half of the share keeps 0.78."""
    return (
        KnobProfile(name="every", demand_pct=demand_pct, quality_frac=1.0),
        KnobProfile(name="half", demand_pct=demand_pct / 2, quality_frac=0.78),
        KnobProfile(name="quarter", demand_pct=demand_pct / 4, quality_frac=0.6),
    )


def snapshot(*views: StreamView, capacity_pct: int = 100, remaining_s: float = 100.0, **changes: object) -> Snapshot:
    made = Snapshot(
        remaining_s=remaining_s, capacity_pct=capacity_pct, quantum_pct=5, min_quality=0.0, streams=views, estimate="hand-back"
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def plan_of(given: Snapshot, policy: str = "thief-repeat") -> Plan:
    return make_policy(policy)(given)


def two(quality_a: float = 0.6, quality_b: float = 0.6) -> Snapshot:
    return snapshot(
        StreamView(id="a", quality=quality_a, knobs=knobs(40)), StreamView(id="b", quality=quality_b, knobs=knobs(40)),
        capacity_pct=60,
    )  # fmt: skip


views = st.builds(
    lambda number, quality, demand, options, running: StreamView(
        id=f"s{number}", quality=quality, knobs=knobs(demand),
        retrain=tuple(RetrainOption(name=f"o{i}", end_quality=end, cost_gpu_s=cost) for i, (end, cost) in enumerate(options)),
        running="o0" if running and options else None,
    ),
    st.just(0), st.floats(0.05, 0.95), st.sampled_from([10.0, 20.0, 45.0]),
    st.lists(st.tuples(st.floats(0.05, 1.0), st.floats(1.0, 60.0)), max_size=2), st.booleans(),
)  # fmt: skip


@st.composite
def situations(draw: st.DrawFn, most: int = 3) -> tuple[Snapshot, dict[str, Held]]:
    found = [replace(v, id=f"s{n}") for n, v in enumerate(draw(st.lists(views, min_size=1, max_size=most)))]
    found = [replace(v, retrain=v.retrain[:1]) if v.running else v for v in found]
    given_now = snapshot(
        *found, capacity_pct=draw(st.sampled_from([60, 100, 150])), remaining_s=draw(st.sampled_from([3.0, 40.0, 200.0])),
        min_quality=draw(st.sampled_from([0.0, 0.4])),
    )  # fmt: skip
    shares = st.sampled_from([0.0, 5.0, 10.0, 12.5, 20.0, 35.0])
    held = {v.id: Held(infer_pct=draw(shares), train_pct=draw(shares) if v.running else None) for v in found}
    return given_now, held


prices = st.builds(
    ChangePrice, settle_s=st.sampled_from([0.0, 1.0, 10.0]), gpu_s=st.sampled_from([0.0, 0.5, 20.0]),
    blind_s=st.sampled_from([0.0, 0.2, 8.0]),
)  # fmt: skip


@given(situations())
def test_where_changes_are_free_the_plan_is_the_very_same(situation: tuple[Snapshot, dict[str, Held]]) -> None:
    given_now, held = situation
    plan = plan_of(given_now)
    assert worth_its_changes(plan, given_now, held, FREE) == Priced(plan=plan)
    assert worth_its_changes(plan, given_now, held, FREE).plan is plan


@settings(deadline=None)
@given(situations(), prices)
def test_the_priced_plan_fits_and_is_never_worth_less(situation: tuple[Snapshot, dict[str, Held]], price: ChangePrice) -> None:
    given_now, held = situation
    plan = plan_of(given_now)
    priced = worth_its_changes(plan, given_now, held, price)
    priced.plan.check(given_now.capacity_pct)
    assert net_value(priced.plan, given_now, held, price) >= net_value(plan, given_now, held, price) - 1e-9
    planned = {s.id: s for s in plan.streams}
    for entry in priced.plan.streams:
        old = held[entry.id]
        assert entry.infer_pct in (planned[entry.id].infer_pct, old.infer_pct)
        assert entry.train_pct in (planned[entry.id].train_pct, old.train_pct or 0)
        if entry.id not in priced.kept:
            assert entry == planned[entry.id]
    assert all(0 <= s.expected_quality <= 1 for s in priced.plan.streams)


@settings(deadline=None, max_examples=60)
@given(situations(), prices)
def test_no_other_mixture_of_old_and_new_shares_is_worth_more(
    situation: tuple[Snapshot, dict[str, Held]], price: ChangePrice
) -> None:
    """Against trying them all."""
    given_now, held = situation
    plan = plan_of(given_now)
    priced = worth_its_changes(plan, given_now, held, price)
    best = net_value(plan, given_now, held, price)
    choices = []
    for entry in plan.streams:
        old = held[entry.id]
        pairs = product({entry.infer_pct, old.infer_pct or entry.infer_pct}, {entry.train_pct, old.train_pct or 0})
        choices.append([(i, t) for i, t in pairs if float(i).is_integer() and float(t).is_integer()])
    for mixture in product(*choices):
        if sum(i + t for i, t in mixture) > given_now.capacity_pct:
            continue
        entries = tuple(
            s if (s.infer_pct, s.train_pct) == pair else replace(s, infer_pct=int(pair[0]), train_pct=int(pair[1]))
            for s, pair in zip(plan.streams, mixture, strict=True)
        )
        best = max(best, _value(plan, entries, given_now, held, price))
    assert net_value_of(priced, plan, given_now, held, price) == pytest.approx(best, abs=1e-9)


def _value(
    plan: Plan, entries: tuple[StreamPlan, ...], given_now: Snapshot, held: dict[str, Held], price: ChangePrice
) -> float:
    """Valued at the plan's price of a GPU-second, as the plan's own mixtures are."""
    same = [replace(s, expected_quality=p.expected_quality) for s, p in zip(entries, plan.streams, strict=True)]
    return net_value(replace(plan, streams=tuple(same)), given_now, held, price)


def net_value_of(priced: Priced, plan: Plan, given_now: Snapshot, held: dict[str, Held], price: ChangePrice) -> float:
    entries = tuple(
        replace(s, retrain=p.retrain) if s.train_pct == p.train_pct else s
        for s, p in zip(priced.plan.streams, plan.streams, strict=True)
    )
    return _value(plan, entries, given_now, held, price)


def test_a_small_gain_near_the_end_of_the_window_is_not_worth_frames_that_nobody_sees() -> None:
    """b has become better than a, so a new plan exchanges their shares."""
    given_now = two(0.60, 0.62)
    held = {"a": Held(infer_pct=40), "b": Held(infer_pct=20)}
    plan = plan_of(given_now, "optimal")
    assert [(s.id, s.infer_pct) for s in plan.streams] == [("a", 20), ("b", 40)]
    price = ChangePrice(blind_s=1.0)
    # Gain per second: (0.62 - 0.60) * (1 - 0.78) = 0.0044; price: 1 s without 0.60 and without 0.62 * 0.78.
    assert worth_its_changes(plan, given_now, held, price).kept == ("a", "b")
    later = replace(given_now, remaining_s=400.0)
    assert worth_its_changes(plan, later, held, price).kept == (), "0.44 in 100 s, but 1.76 in 400 s, against 1.08"


def test_a_kept_share_keeps_its_knobs_and_what_is_expected_of_them() -> None:
    given_now = two(0.60, 0.62)
    held = {"a": Held(infer_pct=40), "b": Held(infer_pct=20)}
    priced = worth_its_changes(plan_of(given_now, "optimal"), given_now, held, DEAR)
    a, b = priced.plan.streams
    assert (a.infer_pct, a.knobs, a.expected_quality) == (40, "every", pytest.approx(0.60))
    assert (b.infer_pct, b.knobs, b.expected_quality) == (20, "half", pytest.approx(0.62 * 0.78))
    assert priced.plan.spare_pct == 0
    assert priced.plan.expected_quality == pytest.approx((0.60 + 0.62 * 0.78) / 2)


def test_a_retraining_that_starts_changes_no_share_and_those_who_give_must_pay() -> None:
    """It takes 30 pct from a; the gain is large, so it is worth a's change. With little left to gain it is not begun."""
    option = RetrainOption(name="full", end_quality=0.9, cost_gpu_s=10.0)
    given_now = snapshot(StreamView(id="a", quality=0.4, knobs=knobs(60), retrain=(option,)), capacity_pct=60)
    held = {"a": Held(infer_pct=60)}
    plan = plan_of(given_now)
    assert plan.streams[0].retrain == "full"
    assert worth_its_changes(plan, given_now, held, ChangePrice(gpu_s=1.0, blind_s=0.5)).plan is plan
    poor = replace(given_now, streams=(replace(given_now.streams[0], retrain=(replace(option, end_quality=0.42),)),))
    plan = plan_of(poor)
    if plan.streams[0].retrain is not None:
        priced = worth_its_changes(plan, poor, held, ChangePrice(settle_s=20.0, gpu_s=10.0, blind_s=5.0))
        assert priced.kept == ("a",)
        assert (priced.plan.streams[0].retrain, priced.plan.streams[0].train_pct) == (None, 0)


def test_a_running_retraining_keeps_its_share_when_settling_would_cost_its_end() -> None:
    """40 GPU-seconds at 50 pct end after 80 of 90 s; another share would hold after 15 s only, and then it would not end."""
    option = RetrainOption(name="full", end_quality=0.9, cost_gpu_s=40.0)
    given_now = snapshot(
        StreamView(id="a", quality=0.5, knobs=knobs(10), retrain=(option,), running="full"), capacity_pct=70, remaining_s=90.0
    )
    plan = Plan(
        policy="by hand", spare_pct=7, expected_quality=0.6,
        streams=(StreamPlan(id="a", knobs="every", infer_pct=10, retrain="full", train_pct=53, expected_quality=0.6),),
    )  # fmt: skip
    held = {"a": Held(infer_pct=10, train_pct=50)}
    priced = worth_its_changes(plan, given_now, held, ChangePrice(settle_s=15.0))
    assert priced.kept == ("a",)
    assert (priced.plan.streams[0].train_pct, priced.plan.streams[0].retrain) == (50, "full")
    assert worth_its_changes(plan, given_now, held, ChangePrice(settle_s=0.01)).kept == ()


def test_pausing_a_retraining_is_free_and_taking_it_up_with_another_share_is_not() -> None:
    option = RetrainOption(name="full", end_quality=0.9, cost_gpu_s=40.0)
    given_now = snapshot(StreamView(id="a", quality=0.5, knobs=knobs(10), retrain=(option,), running="full"))
    entry = StreamPlan(id="a", knobs="every", infer_pct=10, retrain=None, train_pct=0, expected_quality=0.5)
    paused = Plan(policy="by hand", spare_pct=90, expected_quality=0.5, streams=(entry,))
    running, resting = {"a": Held(infer_pct=10, train_pct=50)}, {"a": Held(infer_pct=10, train_pct=0)}
    assert net_value(paused, given_now, running, DEAR) == net_value(paused, given_now, running, FREE)
    again = replace(paused, spare_pct=40, streams=(replace(entry, retrain="full", train_pct=50),))
    assert net_value(again, given_now, resting, DEAR) < net_value(again, given_now, resting, FREE)
    assert net_value(again, given_now, running, DEAR) == net_value(again, given_now, running, FREE)


def test_old_shares_that_no_longer_fit_are_not_kept() -> None:
    given_now = replace(two(0.6, 0.61), capacity_pct=40)
    plan = plan_of(given_now)
    held = {"a": Held(infer_pct=40), "b": Held(infer_pct=20)}
    priced = worth_its_changes(plan, given_now, held, ChangePrice(gpu_s=100.0, blind_s=50.0))
    assert sum(s.infer_pct for s in priced.plan.streams) <= 40
    priced.plan.check(40)


def test_a_camera_that_shows_nothing_is_not_left_without_a_share_to_save_a_change() -> None:
    """a has all there is, and giving some of it up would be dear; b has just come."""
    given_now = two()
    plan = plan_of(given_now, "optimal")
    priced = worth_its_changes(plan, given_now, {"a": Held(infer_pct=60)}, ChangePrice(gpu_s=1000.0, blind_s=90.0))
    assert priced.plan is plan
    assert all(s.infer_pct > 0 for s in plan.streams)


def test_plans_on_devices_and_with_models_from_elsewhere_are_carried_out_as_they_are() -> None:
    given_now, held = two(0.60, 0.62), {"a": Held(infer_pct=40), "b": Held(infer_pct=20)}
    plan = plan_of(given_now)
    placed = replace(given_now, gpus=(Gpu(id="0", capacity_pct=60),))
    assert worth_its_changes(plan, placed, held, DEAR).plan is plan
    cached = replace(plan, streams=(replace(plan.streams[0], source="cached"), plan.streams[1]))
    assert worth_its_changes(cached, given_now, held, DEAR).plan is cached
    empty = replace(plan, streams=(), spare_pct=60)
    assert worth_its_changes(empty, replace(given_now, streams=()), {}, DEAR).plan is empty
