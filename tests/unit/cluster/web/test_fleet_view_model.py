"""The fleet view's model by itself: what is shown of boxes, customers, places, rollouts, alarms."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.controller.services import AlarmRow, ControllerStatus, EngineStatus, GrantRow, PerformanceRow
from cluster.rollouts.wishes import RolloutWish, apply
from cluster.types import CameraLease, Customer, FleetState, Grant, Handoff, SitePlace
from cluster.web.fake import NOW_UTC_S, fake_state
from cluster.web.view import box_state, box_view, camera_rows, course, fleet_view, thinned
from tests.support.fleets import alarmed, camera, fleet, fleet_of, key, report
from tests.support.fleets import box_view as a_box

STATUS = ControllerStatus(id="c", in_charge=True, term=3, now_utc_s=NOW_UTC_S)
NOW_S = 101.0


def shown(state: FleetState, **more: object) -> Any:
    return fleet_view(state, STATUS, now_utc_s=NOW_S, **more)  # type: ignore[arg-type]


def test_an_empty_fleet_has_a_view() -> None:
    view = shown(FleetState())
    assert view["totals"]["boxes"] == 0
    assert view["totals"]["quality"] is None
    assert view["alarms"] == []


def test_totals_of_a_small_fleet() -> None:
    one = a_box("a", [camera("a", quality=0.9), camera("a", "c1", quality=None, state="lost")])
    totals = shown(fleet([one, a_box("b", [camera("b", quality=0.7)], online=False)]))["totals"]
    assert (totals["boxes"], totals["there"], totals["cameras"], totals["live"]) == (2, 1, 3, 1)
    assert totals["quality"] == 0.8
    assert totals["capacity_pct"] == 100.0, "a box that is away gives nothing"


def test_a_view_is_json_as_it_is() -> None:
    view = fleet_view(fake_state(), STATUS, now_utc_s=NOW_UTC_S)
    assert json.loads(json.dumps(view, allow_nan=False)) == view


def test_nothing_changes_only_because_time_passes() -> None:
    state = replace(fake_state(), rollouts={})
    before, later = (fleet_view(state, STATUS, now_utc_s=NOW_UTC_S + s) for s in (0, 20))
    assert before == later


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({}, "well"), ({"online": False}, "away"), ({"seen_utc_s": 1.0}, "silent"), ({"doubts": ("two boxes speak",)}, "doubted"),
        ({"draining": True}, "draining"), ({"report": None}, "new"), ({"report": report("a", [], alarms=("hot",))}, "alarm"),
        ({"report": None, "online": False}, "new"), ({"online": False, "doubts": ("x",)}, "away"),
    ],
)  # fmt: skip
def test_one_word_for_a_box(change: dict[str, object], told: str) -> None:
    assert box_state(replace(a_box("a"), **change), NOW_S) == told  # type: ignore[arg-type]


def test_when_a_box_was_heard_is_told_only_when_it_is_not_heard() -> None:
    state = fleet([a_box("a"), a_box("b", online=False)])
    assert [row["seen_utc"] for row in shown(state)["boxes"]] == [None, 100.0]


def test_customers_with_goals_grants_and_what_came_of_them() -> None:
    state = fleet(
        [
            a_box(
                "a",
                [camera("a", quality=0.9), camera("a", "c1", customer="port", quality=0.5), camera("a", "c2", customer="new")],
            )
        ],
        [Customer(id="city", goal=0.8), Customer(id="port", name="Port", goal=0.7), Customer(id="none")],
    )
    state = replace(
        state,
        grants={
            "port": Grant(customer="port", share_pct=30.0, by_box={"a": 30.0}, reason="why", demand_pct=55.0, predicted=0.6)
        },
    )
    rows = {row["id"]: row for row in shown(state)["customers"]}
    assert (rows["city"]["met"], rows["port"]["met"], rows["none"]["met"]) == (True, False, None)
    assert (rows["port"]["promised_pct"], rows["port"]["received_pct"], rows["port"]["demand_pct"]) == (30.0, 15.0, 55.0)
    assert (rows["port"]["value"], rows["port"]["reason"], rows["port"]["name"]) == (0.5, "why", "Port")
    assert rows["new"]["known"] is False, "a name that only boxes told"
    totals = shown(state)["totals"]
    assert (totals["met"], totals["judged"]) == (2, 3)


def test_what_is_not_measured_is_not_shown_as_measured() -> None:
    (row,) = shown(fleet([a_box("a", [camera("a", quality=None, demand_pct=30.0, got_pct=15.0)])]))["customers"]
    assert (row["value"], row["met"], row["stand_in"]) == (None, None, 0.5)


def test_places_lie_where_the_owner_said() -> None:
    place = SitePlace(site="site", latitude_deg=50.0, longitude_deg=8.0, name="Main site")
    empty = SitePlace(site="later", latitude_deg=0.0, longitude_deg=0.0)
    state = replace(fleet([a_box("a"), a_box("b", online=False)]), sites={"site": place, "later": empty})
    later, site = shown(state)["sites"]
    assert (site["latitude_deg"], site["longitude_deg"], site["name"], site["boxes"], site["well"]) == (
        50.0,
        8.0,
        "Main site",
        2,
        1,
    )
    assert (later["id"], later["boxes"]) == ("later", 0)


def test_a_camera_away_from_home_is_told_with_its_reason() -> None:
    moved, pinned, standing = key("a"), key("b"), key("c")
    there = a_box("b", [camera("b"), camera("a")])
    leases = {
        moved: CameraLease(camera=moved, box="b", term=2, since_utc_s=7.0, cause="a was away"),
        pinned: CameraLease(camera=pinned, box="b", term=1, since_utc_s=8.0, pinned=True),
        standing: CameraLease(camera=standing, box="c", term=1, since_utc_s=8.0, standby="b"),
    }
    state = replace(fleet([a_box("a"), there, a_box("c")]), leases=leases)
    view = shown(state)
    assert [(row["camera"], row["box"], row["why"]) for row in view["placements"]["rows"]] == [
        ("a/c0", "b", "a was away"),
        ("b/c0", "b", ""),
    ]
    assert view["placements"]["standbys"] == 1
    assert [row["guests"] for row in view["boxes"]] == [0, 1, 0]
    rows = camera_rows(state)["rows"]
    assert [(r["camera"], r["box"]) for r in rows] == [("a/c0", "b"), ("b/c0", "b"), ("c/c0", "c")], (
        "each once, as its owner tells"
    )
    assert [r["camera"] for r in camera_rows(state, moved=True)["rows"]] == ["a/c0", "b/c0"]
    assert camera_rows(state, box="b", limit=1) == {"rows": rows[:1], "total": 2, "offset": 0}
    assert rows[2]["why"] == "watched at home"


def test_only_handoffs_under_way_are_told() -> None:
    made = Handoff(
        camera=key("a"),
        source="a",
        target="b",
        term=2,
        phase="warm",
        cause="move",
        reason="r",
        began_utc_s=1.0,
        phase_utc_s=2.0,
    )
    state = replace(fleet_of(2), handoffs={key("a"): made, key("b"): replace(made, camera=key("b"), phase="done")})
    assert [(h["camera"], h["phase"]) for h in shown(state)["handoffs"]] == [("a/c0", "warm")]
    assert shown(state)["totals"]["moving"] == 1


def test_alarms_of_boxes_and_doubts_about_them_once_each() -> None:
    state = alarmed(fleet([a_box("a", doubts=("its clock is off",)), a_box("b")]), "b", "hot")
    rows = [AlarmRow(box="b", text="hot", began_utc_s=5.0), AlarmRow(box="", text="lease lost", began_utc_s=6.0),
            AlarmRow(box="b", text="old", began_utc_s=1.0, ended_utc_s=2.0)]  # fmt: skip
    told = [(one["box"], one["text"], one["what"], one["began_utc"]) for one in shown(state, alarms=rows)["alarms"]]
    assert told == [("", "lease lost", "alarm", 6.0), ("a", "its clock is off", "doubt", None), ("b", "hot", "alarm", 5.0)]


def test_rollouts_with_what_they_wait_for() -> None:
    state = apply(RolloutWish(what="begin", id="r", parcel="p"), fleet_of(3), NOW_S, by="anna")
    (row,) = shown(state)["rollouts"]
    assert (row["state"], row["step"], row["boxes"], row["counts"]["waiting"]) == ("running", -1, 3, 3)
    assert row["decisions"][0]["by"] == "anna"


def test_versions_in_use() -> None:
    boxes = [
        a_box("a", [camera("a", version="v2", arch="tiny"), camera("a", "c1", version="v2", arch="tiny", quality=0.6)]),
        a_box("b"),
    ]
    models = shown(fleet(boxes))["models"]
    assert [(m["version"], m["cameras"], m["quality"]) for m in models["rows"]] == [("v2", 2, 0.7), ("v1", 1, 0.8)]
    assert models["by_arch"] == {"": 1, "tiny": 2}


def test_one_box_with_its_cameras() -> None:
    state = replace(fleet([a_box("a")]), grants={"city": Grant(customer="city", share_pct=9.0, by_box={"a": 9.0})})
    view = box_view(state, "a", NOW_S)
    assert view is not None
    assert view["shares"] == [{"customer": "city", "share_pct": 9.0}]
    assert [row["camera"] for row in view["camera_rows"]] == ["a/c0"]
    assert box_view(state, "nowhere", NOW_S) is None


def test_a_course_has_goal_value_and_shares_in_order_of_time() -> None:
    def got(t: float, value: float, proxy: bool = False) -> PerformanceRow:
        return PerformanceRow(at_utc_s=t, customer="c", alloc_pct=5.0, load=1.0, value=value, sigma=0.1, goal=0.8, proxy=proxy)

    grant = GrantRow(round=1, at_utc_s=3.0, customer="c", share_pct=6.0, demand_pct=None, predicted=0.7, reason="so")
    found = course([got(2, 0.6), got(1, 0.5), got(3, 0.9, proxy=True)], [grant])
    assert found["value"] == [[1, 0.5], [2, 0.6]]
    assert found["stand_in"] == [[3, 0.9]]
    assert (found["promised_pct"], found["demand_pct"], found["predicted"], found["reason"]) == (
        [[3.0, 6.0]],
        [],
        [[3.0, 0.7]],
        "so",
    )


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1)), max_size=400), st.integers(1, 50))
def test_thinning_keeps_order_bounds_and_number(points: list[tuple[float, float]], most: int) -> None:
    points = sorted(points)
    found = thinned(points, most)
    assert len(found) <= most
    assert bool(found) == bool(points)
    times = [t for t, _ in found]
    assert times == sorted(times)
    if points:
        assert min(v for _, v in points) - 1e-3 <= min(v for _, v in found)
        assert max(v for _, v in found) <= max(v for _, v in points) + 1e-3


def test_the_lease_and_the_engine_are_shown_and_an_engine_that_is_away_is_an_alarm() -> None:
    engine = EngineStatus(name="ray", where="head:6379", nodes=3, boxes=2, problem="the head does not answer")
    status = replace(STATUS, lease="ray at head:6379", engine=engine)
    view = fleet_view(FleetState(), status, now_utc_s=NOW_S)
    assert view["controller"]["lease"] == "ray at head:6379"
    assert view["controller"]["engine"]["boxes"] == 2
    assert [(one["box"], one["what"], one["text"]) for one in view["alarms"]] == [
        ("", "alarm", "the engine ray is not up to date: the head does not answer")
    ]
