"""What customers got, and what is decided of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cluster.cilantro.allocator import AllocatorSettings, AllocatorState
from cluster.controller.feedback import HOUSE, cameras_by_customer, performances
from cluster.controller.round import RoundRules, Settled, place, settle, share, urgent, wishes
from cluster.types import BoxView, CameraLease, Customer, FleetState, GroupWeight
from scheduler.fleet.types import BoxReport, CameraKey, CameraOrder, CameraReport, Confirmation, ModelOffer

NOW_S = 1_800_000_000.0
RULES = RoundRules()


def camera(box: str, name: str, customer: str = "x", **more: object) -> CameraReport:
    told: dict[str, object] = {"demand_pct": 20.0, "got_pct": 10.0, "quality": 0.8, "finish_frac": 0.9, "fps": 10.0} | more
    return CameraReport(camera=CameraKey(home=box, camera=name), customer=customer, **told)  # type: ignore[arg-type]


def view(
    box: str, *cameras: CameraReport, order: tuple[int, int] = (1, 1), capacity_pct: float = 100.0, **more: object
) -> BoxView:
    report = BoxReport(
        box=box, site="s", boot="b", sequence=1, sent_utc="", software="", capacity_pct=capacity_pct, spare_pct=0.0, memory_mib=None,
        networks=("lan",), cameras=cameras, confirmation=Confirmation(term=order[0], version=order[1]),
    )  # fmt: skip
    told: dict[str, object] = {"seen_utc_s": NOW_S, "online": True} | more
    return BoxView(id=box, site="s", joined_utc_s=0.0, report=report, **told)  # type: ignore[arg-type]


def fleet(*views: BoxView, **more: object) -> FleetState:
    return FleetState(term=1, boxes={v.id: v for v in views}, **more)  # type: ignore[arg-type]


def told(state: FleetState, wished: dict[str, tuple[int, int]] | None = None) -> dict[str, tuple[float, float, float, bool]]:
    found = performances(state, wished=wished or {}, now_utc_s=NOW_S, fresh_s=30.0)
    return {p.customer: (round(p.alloc_pct, 6), p.load, round(p.value, 6), p.proxy) for p in found}


# --- feedback ---------------------------------------------------------------------------------------------------------


def test_a_customers_cameras_on_all_boxes_are_one_job() -> None:
    state = fleet(
        view("a", camera("a", "1"), camera("a", "2", quality=0.6)), view("b", camera("b", "1", fps=30.0, quality=1.0))
    )
    assert told(state) == {"x": (30.0, 50.0, 0.8, False)}


def test_a_deadline_counts_by_frames() -> None:
    state = fleet(
        view("a", camera("a", "1", finish_frac=1.0), camera("a", "2", finish_frac=0.5, fps=30.0)),
        customers={"x": Customer(id="x", measure="deadline")},
    )
    assert told(state)["x"][2] == pytest.approx((10 * 1.0 + 30 * 0.5) / 40)


def test_where_little_is_measured_the_received_part_stands_for_it() -> None:
    state = fleet(view("a", camera("a", "1", quality=None), camera("a", "2", quality=None), camera("a", "3", quality=0.9)))
    assert told(state) == {"x": (30.0, 30.0, 0.5, True)}
    mostly = fleet(view("a", camera("a", "1", quality=None), camera("a", "2"), camera("a", "3")))
    assert told(mostly)["x"][2:] == (0.8, False)


def test_numbers_that_are_not_believed_do_not_count() -> None:
    state = fleet(view("a", camera("a", "1"), camera("a", "2", got_pct=0.0, quality=0.1)))
    assert told(state) == {"x": (10.0, 10.0, 0.8, False)}
    assert told(fleet(view("a", camera("a", "1", got_pct=0.0)))) == {}


def test_a_box_that_has_not_settled_on_the_newest_wish_tells_nothing_nor_do_its_customers() -> None:
    state = fleet(view("a", camera("a", "1")), view("b", camera("b", "1"), camera("b", "2", "y"), order=(1, 4)))
    assert told(state, {"a": (1, 1), "b": (1, 4)}).keys() == {"x", "y"}
    assert told(state, {"a": (1, 1), "b": (1, 5)}).keys() == set()
    assert told(state, {"a": (1, 2), "b": (1, 4)}).keys() == {"y"}


def test_a_silent_box_tells_nothing() -> None:
    state = fleet(view("a", camera("a", "1"), seen_utc_s=NOW_S - 31))
    assert told(state) == {}


def test_a_camera_counts_where_its_lease_is() -> None:
    key = CameraKey(home="a", camera="1")
    both = fleet(
        view("a", camera("a", "1", quality=0.1)), view("b", camera("a", "1", quality=0.9)),
        leases={key: CameraLease(camera=key, box="b", term=1, since_utc_s=0.0)},
    )  # fmt: skip
    assert told(both)["x"][2] == 0.9


def test_cameras_of_nobody_are_the_houses() -> None:
    state = fleet(view("a", camera("a", "1", ""), camera("a", "2", "No Such Name!")))
    assert cameras_by_customer(state).keys() == {HOUSE}


# --- shares -----------------------------------------------------------------------------------------------------------


def test_shares_are_divided_where_cameras_are_and_never_above_a_box() -> None:
    state = fleet(
        view("a", camera("a", "1"), camera("a", "2", "y")), view("b", camera("b", "1"), capacity_pct=200.0),
        customers={"x": Customer(id="x", stated_pct=250.0), "y": Customer(id="y", stated_pct=60.0)},
    )  # fmt: skip
    after, allocator, reasons = share(state, AllocatorState(), RULES, NOW_S)
    assert after.grants.keys() == {"x", "y"}
    for box, capacity_pct in (("a", 100.0), ("b", 200.0)):
        assert sum(grant.by_box.get(box, 0.0) for grant in after.grants.values()) <= capacity_pct
    assert after.grants["y"].by_box.keys() == {"a"}
    for grant in after.grants.values():
        assert grant.share_pct == pytest.approx(sum(grant.by_box.values()))
        assert grant.share_pct > 0
    assert allocator.rounds == 1
    assert "300 pct of 2 boxes for 2 customers" in reasons[0]


def test_groups_are_weighed_as_the_owner_says() -> None:
    """x and y want all there is; x is alone in its group, y has a sibling z that wants as much."""
    customers = {
        name: Customer(id=name, stated_pct=300.0, path=(group,)) for name, group in (("x", "one"), ("y", "two"), ("z", "two"))
    }
    state = fleet(
        view("a", camera("a", "1"), camera("a", "2", "y"), camera("a", "3", "z"), capacity_pct=120.0), customers=customers
    )

    def shares_of(**weights: float) -> dict[str, float]:
        groups = {name: GroupWeight(path=(name,), weight=weight) for name, weight in weights.items()}
        after, _, _ = share(replace(state, groups=groups), AllocatorState(), RULES, NOW_S)
        return {name: grant.share_pct for name, grant in after.grants.items()}

    assert shares_of() == {"x": 60, "y": 30, "z": 30}
    assert shares_of(two=3.0) == {"x": 30, "y": 45, "z": 45}
    assert shares_of(one=2.0) == {"x": 80, "y": 20, "z": 20}


def test_what_does_not_fit_where_the_cameras_are_is_said() -> None:
    state = fleet(
        view("a", camera("a", "1")), view("b", capacity_pct=400.0), customers={"x": Customer(id="x", stated_pct=300.0)}
    )
    after, _, _ = share(state, AllocatorState(), RULES, NOW_S)
    assert after.grants["x"].by_box == {"a": 100.0}
    assert "only 100 pct fit where its cameras are" in after.grants["x"].reason


def test_without_news_nobodys_share_is_taken() -> None:
    state = fleet(view("a", camera("a", "1")))
    after, allocator, _ = share(state, AllocatorState(), RULES, NOW_S)
    dark = replace(after, boxes={"a": replace(after.boxes["a"], online=False, seen_utc_s=NOW_S - 1000)})
    later, same, reasons = share(dark, allocator, RULES, NOW_S)
    assert (later, same) == (dark, allocator)
    assert "stay as they are" in reasons[0]


def test_what_was_learned_of_a_customer_waits_for_its_boxes() -> None:
    state = fleet(view("a", camera("a", "1")), view("b", camera("b", "1", "y")), customers={"y": Customer(id="y")})
    _, allocator, _ = share(state, AllocatorState(), RULES, NOW_S)
    without = replace(state, boxes={"a": state.boxes["a"]})
    _, later, _ = share(without, allocator, RULES, NOW_S)
    assert later.customers.keys() == {"x", "y"}
    removed = replace(without, customers={})
    _, last, _ = share(removed, later, RULES, NOW_S)
    assert last.customers.keys() == {"x"}


# --- places and wishes ------------------------------------------------------------------------------------------------


def test_a_draining_and_a_dead_box_are_urgent() -> None:
    state = fleet(view("a", camera("a", "1")), view("b", camera("b", "1")), view("c"))
    assert urgent(state, RULES, NOW_S) == frozenset()
    drained = replace(state, boxes={**state.boxes, "a": replace(state.boxes["a"], draining=True)})
    assert urgent(drained, RULES, NOW_S) == {"a/1@a"}
    dead = replace(state, boxes={**state.boxes, "b": replace(state.boxes["b"], online=False, seen_utc_s=NOW_S - 60)})
    assert urgent(dead, RULES, NOW_S) == {"b/1@b"}


def test_what_is_urgent_does_not_wait_and_moves_nothing_else() -> None:
    heavy = [camera("a", str(i), networks=("lan",), demand_pct=24.0) for i in range(4)]
    state = fleet(
        view("a", *heavy), view("b", camera("b", "1", networks=("lan",)), draining=True), view("c", capacity_pct=400.0)
    )
    after, intents = place(state, RULES, NOW_S, only_urgent=True)
    assert {str(intent.camera) for intent in intents} == {"b/1"}
    assert after.handoffs.keys() == {CameraKey(home="b", camera="1")}
    _, all_of_them = place(state, RULES, NOW_S, only_urgent=False)
    assert len(all_of_them) > 1


def settled(state: FleetState) -> Settled:
    return settle(state, RULES, NOW_S)


def test_a_wish_is_complete_and_told_once() -> None:
    state = replace(
        fleet(view("a", camera("a", "1"), draining=True)), collects={"a": "r"},
        offers={"a": (ModelOffer(rollout="o", parcel="a.o", cameras=()),)},
    )  # fmt: skip
    state, _, _ = share(state, AllocatorState(), RULES, NOW_S)
    found = wishes(settled(state), {}, RULES, NOW_S, version=7)
    wish = found["a"]
    assert (wish.order, wish.draining, wish.collect) == ((1, 7), True, "r")
    assert [order.customer for order in wish.shares] == ["x"]
    assert [offer.rollout for offer in wish.offers] == ["o"]
    assert wishes(settled(state), found, RULES, NOW_S + 60, version=8) == {}


def test_half_its_time_later_the_same_wish_is_told_with_a_later_end() -> None:
    state = fleet(view("a"))
    first = wishes(settled(state), {}, RULES, NOW_S, version=1)
    again = wishes(settled(state), first, RULES, NOW_S + RULES.valid_s * 0.51, version=2)
    assert again["a"].order == first["a"].order
    assert again["a"].expires_utc > first["a"].expires_utc


def test_a_new_term_makes_every_wish_new() -> None:
    state = fleet(view("a"), view("b"))
    first = wishes(settled(state), {}, RULES, NOW_S, version=1)
    after = wishes(settled(replace(state, term=2)), first, RULES, NOW_S, version=2)
    assert {wish.order for wish in after.values()} == {(2, 2)}


def test_only_boxes_with_news_are_told() -> None:
    state = fleet(view("a"), view("b"))
    first = wishes(settled(state), {}, RULES, NOW_S, version=1)
    changed = replace(state, boxes={**state.boxes, "b": replace(state.boxes["b"], draining=True)})
    assert wishes(settled(changed), first, RULES, NOW_S, version=2).keys() == {"b"}


def test_orders_of_handoffs_reach_both_boxes() -> None:
    state = fleet(view("a", camera("a", "1", networks=("lan",))), view("b", draining=False))
    state = replace(state, boxes={**state.boxes, "a": replace(state.boxes["a"], draining=True)})
    state, _ = place(state, RULES, NOW_S, only_urgent=True)
    orders = settled(state).orders
    packing = [order for order in orders["a"] if isinstance(order, CameraOrder)]
    assert [(order.role, bool(order.parcel)) for order in packing] == [("own", True)]


@pytest.mark.parametrize(
    ("round_s", "feedback_s", "horizon"), [(120.0, 10.0, 12), (600.0, 10.0, 60), (1.0, 10.0, 1), (20.0, 1.0, 20)]
)
def test_load_is_forecast_for_as_long_as_a_grant_is_good(round_s: float, feedback_s: float, horizon: int) -> None:
    rules = RoundRules(round_s=round_s, feedback_s=feedback_s)
    assert rules.cilantro.horizon == horizon
    assert replace(RoundRules(), round_s=round_s, feedback_s=feedback_s).cilantro.horizon == horizon
    assert replace(rules, cilantro=AllocatorSettings(horizon=5)).cilantro.horizon == horizon, "there is one truth of it"


def test_a_pace_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="above 0"):
        RoundRules(feedback_s=0.0)
