"""Whether a report is from the box, and which of its numbers can be true."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.controller.belief import (
    CONFLICT_S,
    RISING,
    Voice,
    believable,
    clock_words,
    listen,
    measured_offset_s,
)
from cluster.types import BoxView, CameraLease
from scheduler.fleet.types import BoxReport, CameraKey, CameraReport, CameraWord, Confirmation, Measured
from tests.support.fleet_boxes import ToyBox, iso

NOW_S = 1_800_000_000.0
VIEW = BoxView(id="a", site="here", joined_utc_s=0.0, enrolled_pct=100.0)


def said(*messages: tuple[str, int, float]) -> list[tuple[bool, str]]:
    """(used, doubt) of each (boot, sequence, at)."""
    voices: tuple[Voice, ...] = ()
    found = []
    for boot, sequence, at_s in messages:
        heard = listen(voices, boot, sequence, now_utc_s=at_s)
        voices = heard.voices
        found.append((heard.use, heard.doubt))
    return found


def test_messages_in_order_are_used() -> None:
    assert said(("x", 1, 0.0), ("x", 2, 5.0), ("x", 9, 10.0)) == [(True, "")] * 3


def test_a_message_that_comes_twice_is_used_once_and_is_no_news() -> None:
    assert said(("x", 5, 0.0), ("x", 5, 1.0))[1] == (False, "")


def test_an_old_message_changes_nothing_and_is_told() -> None:
    used, doubt = said(("x", 5, 0.0), ("x", 3, 1.0))[1]
    assert not used
    assert "number 3 after 5" in doubt


def test_a_restart_goes_on_counting_and_is_believed_at_once() -> None:
    assert said(("x", 5, 0.0), ("y", 6, 3.0))[1] == (True, "")


def test_an_old_message_of_the_start_before_is_not_used() -> None:
    found = said(("x", 5, 0.0), ("y", 6, 3.0), ("x", 4, 4.0), ("y", 7, 5.0))
    assert [used for used, _ in found] == [True, True, False, True]


def test_two_boxes_with_one_id_are_believed_neither() -> None:
    """A copied disk: both count on from the same number."""
    messages = [(boot, 100 + i, float(i)) for i in range(10) for boot in ("x", "y")]
    found = said(*messages)
    assert any("two boxes speak under this id" in doubt for _, doubt in found)
    assert not any(used for used, _ in found[-6:])


def test_when_only_one_of_the_two_is_left_it_is_believed_again() -> None:
    messages = [(boot, 100 + i, float(i)) for i in range(6) for boot in ("x", "y")]
    later = [("y", 200 + i, 6.0 + CONFLICT_S + i) for i in range(3)]
    assert said(*messages, *later)[-1] == (True, "")


def test_a_box_put_back_from_a_copy_counts_from_lower_and_is_believed_when_the_other_is_silent() -> None:
    found = said(("x", 900, 0.0), *[("y", 10 + i, 1.0 + i * 30.0) for i in range(6)])
    assert not found[1][0]
    assert found[-1] == (True, "")


def test_one_message_of_an_unknown_start_with_a_low_number_is_no_second_box() -> None:
    found = said(("x", 900, 0.0), ("y", 10, 1.0), ("x", 901, 2.0))
    assert [used for used, _ in found] == [True, False, True]


@given(st.lists(st.tuples(st.sampled_from("xyz"), st.integers(1, 20)), max_size=40))
def test_whatever_comes_no_number_of_a_start_is_used_twice(messages: list[tuple[str, int]]) -> None:
    voices: tuple[Voice, ...] = ()
    used = []
    for at, (boot, sequence) in enumerate(messages):
        heard = listen(voices, boot, sequence, now_utc_s=float(at))
        voices = heard.voices
        if heard.use:
            used.append((boot, sequence))
    assert len(used) == len(set(used))


@given(st.integers(RISING + 1, 30), st.integers(0, 5))
def test_a_box_alone_is_always_believed(count: int, gap_s: int) -> None:
    assert all(used for used, _ in said(*[("x", i + 1, float(i * gap_s)) for i in range(count)]))


# --- can it be true? --------------------------------------------------------------------------------------------------


def report(**changes: object) -> BoxReport:
    box = ToyBox("a", cameras={"c1": ("x", 30.0), "c2": ("y", 20.0)})
    return replace(box.report(NOW_S), **changes)  # type: ignore[arg-type]


def with_camera(**changes: object) -> BoxReport:
    honest = report()
    return replace(honest, cameras=(replace(honest.cameras[0], **changes), *honest.cameras[1:]))  # type: ignore[arg-type]


def judge(
    told: BoxReport, leases: dict[CameraKey, CameraLease] | None = None, wished: tuple[int, int] = (5, 5)
) -> tuple[BoxReport, str]:
    found = believable(told, VIEW, leases or {}, {}, wished=wished)
    return found.report, "; ".join(found.doubts)


def test_an_honest_report_stays_as_it_is() -> None:
    assert judge(report()) == (report(), "")


@pytest.mark.parametrize("quality", [1.2, -0.1, 17.0])
def test_impossible_quality_is_not_used(quality: float) -> None:
    found, doubts = judge(with_camera(quality=quality))
    assert found.cameras[0].quality is None
    assert found.cameras[1].quality == 0.9, "what can be true is used"
    assert "can only be 0 to 1" in doubts


@pytest.mark.parametrize("name", ["demand_pct", "got_pct", "fps", "memory_mib"])
def test_numbers_below_nothing_are_not_used(name: str) -> None:
    found, doubts = judge(with_camera(**{name: -3.0}))
    assert getattr(found.cameras[0], name) == 0.0
    assert name in doubts


def test_more_capacity_than_was_agreed_on_is_not_counted() -> None:
    found, doubts = judge(report(capacity_pct=4000.0, spare_pct=3000.0))
    assert (found.capacity_pct, found.spare_pct) == (100.0, 100.0)
    assert "100 were agreed on" in doubts


SOUND = Measured(number=3, version="v2", quality=0.7, frames=8, error=0.1)
PROVED = replace(SOUND, number=4, over="v1", gain=-0.2, gain_error=0.1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"quality": 1.2},
        {"quality": -0.1},
        {"frames": 0},
        {"error": -0.1},
        {"gain": 1.5},
        {"gain_error": -0.1},
        {"over": ""},
        {"gain": None},
    ],
)
def test_measurements_that_cannot_be_are_not_used_and_the_others_are(wrong: dict[str, Any]) -> None:
    assert judge(with_camera(measured=(SOUND, PROVED))) == (with_camera(measured=(SOUND, PROVED)), "")
    found, doubts = judge(with_camera(measured=(SOUND, replace(PROVED, **wrong))))
    assert found.cameras[0].measured == (SOUND,)
    assert "measurements that cannot be" in doubts


def test_less_capacity_is_believed() -> None:
    assert judge(report(capacity_pct=50.0))[0].capacity_pct == 50.0


def test_more_received_than_there_is_is_not_used() -> None:
    found, doubts = judge(with_camera(got_pct=500.0))
    assert [camera.got_pct for camera in found.cameras] == [0.0, 0.0]
    assert "received" in doubts


GUEST = CameraKey(home="b", camera="door")


def guest_report() -> BoxReport:
    honest = report()
    return replace(honest, cameras=(*honest.cameras, CameraReport(camera=GUEST, customer="x", fps=5.0)))


def test_a_camera_of_another_without_a_lease_is_not_used() -> None:
    found, doubts = judge(guest_report())
    assert GUEST not in {camera.camera for camera in found.cameras}
    assert "nobody gave it" in doubts


def test_a_camera_of_another_with_a_lease_is_used() -> None:
    found, doubts = judge(guest_report(), {GUEST: CameraLease(camera=GUEST, box="a", term=2, since_utc_s=0.0)})
    assert GUEST in {camera.camera for camera in found.cameras}
    assert doubts == ""


def test_a_camera_told_twice_counts_once() -> None:
    honest = report()
    found, doubts = judge(replace(honest, cameras=honest.cameras + honest.cameras[:1]))
    assert len(found.cameras) == 2
    assert "twice" in doubts


def test_a_wish_confirmed_that_was_never_made_is_told() -> None:
    told = report(confirmation=Confirmation(term=9, version=1))
    assert "has not made" in judge(told)[1]


def test_owning_by_a_term_that_another_box_has_is_told() -> None:
    key = CameraKey(home="a", camera="c1")
    told = report(confirmation=Confirmation(term=5, version=1, cameras=(CameraWord(camera=key, term=4, stage="owning"),)))
    lease = {key: CameraLease(camera=key, box="b", term=4, since_utc_s=0.0)}
    assert "which is b's since term 4" in judge(told, lease)[1]
    late = {key: CameraLease(camera=key, box="b", term=5, since_utc_s=0.0)}
    assert judge(told, late)[1] == "", "it has not been told yet"


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6), st.floats(-1e6, 1e6))
def test_what_is_left_can_always_be_true(quality: float, got_pct: float, capacity_pct: float) -> None:
    told = replace(with_camera(quality=quality, got_pct=got_pct), capacity_pct=capacity_pct)
    found, _ = judge(told)
    assert 0 <= found.capacity_pct <= 100
    assert sum(camera.got_pct for camera in found.cameras) <= found.capacity_pct * 1.1 + 1.0
    assert all(camera.quality is None or 0 <= camera.quality <= 1 for camera in found.cameras)
    assert believable(found, VIEW, {}, {}, wished=(5, 5)).report == found, "looking twice changes nothing more"


# --- clocks -----------------------------------------------------------------------------------------------------------


def test_an_hour_of_offset_is_measured_on_our_clock_and_told() -> None:
    told = report(sent_utc=iso(NOW_S + 3600.0))
    offset_s = measured_offset_s(told, VIEW, now_utc_s=NOW_S + 0.2)
    assert offset_s == pytest.approx(3599.8)
    assert clock_words(offset_s) == "its clock is 60 min ahead of the controller's"


def test_of_one_clock_the_quickest_message_counts_and_a_set_clock_is_seen() -> None:
    first = report(sent_utc=iso(NOW_S))
    view = replace(VIEW, report=first, offset_s=measured_offset_s(first, VIEW, now_utc_s=NOW_S + 0.1))
    slow = measured_offset_s(report(sent_utc=iso(NOW_S + 5)), view, now_utc_s=NOW_S + 8.0)
    assert slow == pytest.approx(-0.1)
    set_back = measured_offset_s(report(sent_utc=iso(NOW_S - 3600)), view, now_utc_s=NOW_S + 10.0)
    assert set_back == pytest.approx(-3610.0)


def test_a_time_that_is_none_changes_nothing() -> None:
    assert measured_offset_s(report(sent_utc="yesterday"), replace(VIEW, offset_s=7.0), now_utc_s=NOW_S) == 7.0
    assert clock_words(5.0) == ""
