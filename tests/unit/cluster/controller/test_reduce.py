"""What events make of what the controller knows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cluster.controller import events as happened
from cluster.controller.reduce import TOLD_S, Known, reduce
from cluster.types import CameraLease, Customer
from configs.errors import UsageError
from scheduler.fleet.types import CameraKey, ModelOffer
from tests.support.fleet_boxes import ToyBox

NOW_S = 1_800_000_000.0
A = ToyBox("a", cameras={"c1": ("x", 30.0)})
KEY = CameraKey(home="a", camera="c1")


def fleet(*boxes: str) -> Known:
    known = Known()
    for box in boxes or ("a", "b"):
        known = reduce(known, happened.BoxJoined(box=box, site="here", at_utc_s=NOW_S, capacity_pct=100.0))
    return known


def reported(known: Known, box: str = "a", at_s: float = NOW_S, sequence: int = 1) -> Known:
    toy = ToyBox(box, cameras={"c1": ("x", 30.0)}, sequence=sequence - 1)
    return reduce(known, happened.ReportHeard(report=toy.report(at_s), at_utc_s=at_s))


def test_a_box_that_joins_is_known_and_has_said_nothing() -> None:
    view = fleet("a").state.boxes["a"]
    assert (view.report, view.online, view.enrolled_pct, view.capacity_pct) == (None, False, 100.0, 0.0)


def test_a_report_makes_a_box_online_and_is_kept() -> None:
    view = reported(fleet()).state.boxes["a"]
    assert view.online
    assert (view.online_utc_s, view.seen_utc_s) == (NOW_S, NOW_S)
    assert [camera.camera for camera in view.cameras] == [KEY]


def test_a_report_of_a_stranger_or_another_site_is_not_used() -> None:
    known = fleet("b")
    assert reported(known) is known
    elsewhere = replace(A.report(NOW_S), box="b", site="there", cameras=())
    after = reduce(known, happened.ReportHeard(report=elsewhere, at_utc_s=NOW_S))
    assert after.state.boxes["b"].report is None
    assert "site there" in after.state.boxes["b"].doubts[0]


def test_what_happened_once_is_told_for_a_while_and_what_lasts_as_long_as_it_does() -> None:
    known = reduce(fleet(), happened.Unreadable(box="a", why="nonsense", at_utc_s=NOW_S))
    assert known.state.boxes["a"].doubts
    soon = reported(known, at_s=NOW_S + 5)
    assert "nonsense" in soon.state.boxes["a"].doubts[0]
    assert reported(soon, at_s=NOW_S + TOLD_S + 10, sequence=2).state.boxes["a"].doubts == ()


def test_wills_and_births() -> None:
    known = reported(fleet())
    gone = reduce(known, happened.Availability(box="a", online=False, at_utc_s=NOW_S + 1))
    assert not gone.state.boxes["a"].online
    back = reduce(gone, happened.Availability(box="a", online=True, at_utc_s=NOW_S + 9))
    assert back.state.boxes["a"].online_utc_s == NOW_S + 9
    assert reduce(back, happened.Availability(box="a", online=True, at_utc_s=NOW_S + 20)) is back


def test_a_box_that_is_forgotten_takes_everything_of_it_along() -> None:
    known = reported(fleet())
    leases = {
        KEY: CameraLease(camera=KEY, box="b", term=3, since_utc_s=0.0),
        CameraKey(home="b", camera="c1"): CameraLease(
            camera=CameraKey(home="b", camera="c1"), box="b", term=0, since_utc_s=0.0, standby="a", standby_parcel="a.b.c1.0"
        ),
    }
    state = replace(
        known.state, leases=leases, collects={"a": "r"}, offers={"a": (ModelOffer(rollout="r", parcel="", cameras=()),)}
    )
    after = reduce(replace(known, state=state, wished={"a": (1, 1)}), happened.BoxForgotten(box="a", at_utc_s=NOW_S))
    assert (after.state.boxes.keys(), after.state.collects, after.state.offers, after.wished) == ({"b"}, {}, {}, {})
    (lease,) = after.state.leases.values()
    assert (lease.standby, lease.standby_parcel) == ("", "")
    assert "a" not in after.voices


def test_a_machine_that_joins_under_an_old_name_may_count_from_one() -> None:
    known = reported(fleet(), sequence=900)
    known = reduce(known, happened.BoxJoined(box="a", site="here", at_utc_s=NOW_S + 10, capacity_pct=50.0))
    after = reported(known, at_s=NOW_S + 20, sequence=1)
    assert after.state.boxes["a"].report is not None
    assert after.state.boxes["a"].report.sequence == 1
    assert after.state.boxes["a"].capacity_pct == 50.0


def test_customers_come_change_and_go_when_nobody_needs_them() -> None:
    known = reduce(reported(fleet()), happened.CustomerPut(customer=Customer(id="x", goal=0.7)))
    known = reduce(known, happened.CustomerPut(customer=Customer(id="x", goal=0.9)))
    assert known.state.customers["x"].goal == 0.9
    with pytest.raises(UsageError) as error:
        reduce(known, happened.CustomerRemoved(customer="x"))
    assert error.value.code == "in_use"
    assert "a/c1" in error.value.message
    unused = reduce(known, happened.CustomerPut(customer=Customer(id="z")))
    assert "z" not in reduce(unused, happened.CustomerRemoved(customer="z")).state.customers


@pytest.mark.parametrize(
    "event",
    [
        happened.DrainWished(box="nobody", on=True),
        happened.OffersSet(box="nobody", offers=()),
        happened.CollectSet(box="nobody", request="r"),
        happened.CustomerRemoved(customer="nobody"),
        happened.PinWished(camera=KEY, box="nobody", by="me", at_utc_s=NOW_S),
        happened.PinWished(camera=CameraKey(home="a", camera="no"), box="b", by="me", at_utc_s=NOW_S),
    ],
)
def test_wishes_about_what_is_not_there_are_refused(event: happened.Event) -> None:
    with pytest.raises(UsageError) as error:
        reduce(reported(fleet()), event)
    assert error.value.code == "not_found"


def test_a_pinned_camera_sets_out_at_once_and_stays() -> None:
    known = reported(reported(fleet()), "b")
    known = reduce(known, happened.PinWished(camera=KEY, box="b", by="me", at_utc_s=NOW_S))
    handoff = known.state.handoffs[KEY]
    assert (handoff.target, handoff.phase, handoff.reason) == ("b", "prepare", "wished by me")
    assert known.state.leases[KEY].pinned
    assert not reduce(known, happened.PinWished(camera=KEY, box="", by="me", at_utc_s=NOW_S)).state.leases[KEY].pinned


def test_as_long_as_nothing_is_heard_silence_says_nothing() -> None:
    deaf = reduce(fleet(), happened.Listening(on=False, at_utc_s=NOW_S))
    assert deaf.state.listens_utc_s > NOW_S * 100
    assert reduce(deaf, happened.Listening(on=True, at_utc_s=NOW_S + 5)).state.listens_utc_s == NOW_S + 5
