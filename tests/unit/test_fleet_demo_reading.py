"""How the demonstration of the fleet tells that a scene has happened: from the controller's answers alone."""

from __future__ import annotations

from typing import Any

import pytest

from scripts.fleet_scenes import reading


def key(home: str = "north", camera: str = "gate") -> dict[str, str]:
    return {"home": home, "camera": camera}


def box(id: str, *cameras: dict[str, Any], offers: tuple[dict[str, Any], ...] = ()) -> dict[str, Any]:
    return {"id": id, "report": {"cameras": list(cameras), "confirmation": {"offers": list(offers)}}}


def camera(home: str = "north", id: str = "gate", *, state: str = "live", quality: float | None = 0.9) -> dict[str, Any]:
    return {"camera": key(home, id), "state": state, "quality": quality}


def fleet(*boxes: dict[str, Any], leases: Any = (), handoffs: Any = (), grants: Any = ()) -> dict[str, Any]:
    return {"boxes": list(boxes), "leases": list(leases), "handoffs": list(handoffs), "grants": list(grants)}


SILENT = {"id": "east", "report": None}


def test_a_box_that_has_not_reported_has_no_cameras() -> None:
    state = fleet(box("north", camera(), camera(id="dock", quality=None)), SILENT)
    assert reading.camera_count(state) == 2
    assert reading.is_there(state, "north", "dock")
    assert not reading.is_there(state, "east", "dock")
    assert reading.qualities(state) == {"north/gate": 0.9}


def test_a_camera_is_at_home_unless_it_is_leased() -> None:
    assert reading.owner_of(fleet(), "north/gate") == "north"
    leased = fleet(leases=[{"camera": key(), "box": "east", "standby": ""}])
    assert reading.owner_of(leased, "north/gate") == "east"
    assert reading.owner_of(leased, "north/dock") == "north"


@pytest.mark.parametrize(("phase", "moved"), [("warm", None), ("switch", None), ("done", "east"), ("undone", "east")])
def test_a_camera_has_moved_once_it_is_not_on_its_way(phase: str, moved: str | None) -> None:
    state = fleet(leases=[{"camera": key(), "box": "east", "standby": ""}], handoffs=[{"camera": key(), "phase": phase}])
    assert reading.moved_to(state, "north/gate", "north") == moved
    assert reading.moved_to(state, "north/gate", "east") is None


def test_a_camera_is_live_where_its_box_says_so() -> None:
    state = fleet(box("north", camera(state="connecting")), box("east", camera()))
    assert not reading.is_live(state, "north", "north/gate")
    assert reading.is_live(state, "east", "north/gate")


def test_a_standby_has_a_name() -> None:
    assert not reading.has_standby(fleet(leases=[{"camera": key(), "box": "north", "standby": ""}]), "north/gate")
    assert reading.has_standby(fleet(leases=[{"camera": key(), "box": "north", "standby": "east"}]), "north/gate")


def test_shares_count_when_every_customer_has_one() -> None:
    one = {"customer": "acme", "share_pct": 4}
    assert reading.given(fleet(grants=[one]), ["acme", "bolt"]) is None
    both = fleet(grants=[one, {"customer": "bolt", "share_pct": 9.5}])
    assert reading.given(both, ["acme", "bolt"]) == {"acme": 4.0, "bolt": 9.5}


def test_only_measurements_since_a_moment_count() -> None:
    course = {"value": [(10.0, 0.5), (20.0, 0.6), (30.0, 0.7)]}
    assert reading.newest(course, "value", count=2) == [0.6, 0.7]
    assert reading.newest(course, "value", count=2, since_utc_s=25.0) is None
    assert reading.newest(course, "value", since_utc_s=25.0) == [0.7]


def test_a_rollout_has_ended_when_it_goes_no_further() -> None:
    rows = [{"id": "dusk", "state": "done"}, {"id": "night", "state": "running"}]
    assert reading.ended({"rollouts": rows}, "night") is None
    assert reading.ended({"rollouts": rows}, "dusk") == {"id": "dusk", "state": "done"}
    assert reading.ended({"rollouts": []}, "night") is None


def test_decisions_of_a_rollout_are_counted() -> None:
    view = {"rollouts": [{"id": "night", "decisions": [{}, {}]}, {"id": "dusk", "decisions": [{}]}]}
    assert [reading.decisions(view, id) for id in ("night", "dusk", "dawn")] == [2, 1, 0]


def test_every_gate_is_quoted() -> None:
    let_in = {"rollout": "night", "camera": key(), "stage": "serving", "after": 0.8, "problem": ""}
    refused = {"rollout": "night", "camera": key("north", "dock"), "stage": "refused", "after": 0.4, "problem": "not better"}
    other = let_in | {"rollout": "dusk"}
    state = fleet(box("north", offers=(let_in, refused, other)), SILENT)
    words = reading.words_of(state, "night")
    assert [reading.told_word(word) for word in words] == ["north/gate serving 0.80", "north/dock refused 0.40 (not better)"]


def test_a_profile_says_what_every_frame_needs_and_what_each_rate_keeps() -> None:
    def option(fps: float, quality: float, device_s: float) -> dict[str, float]:
        return {"fps": fps, "quality": quality, "device_s": device_s}

    made = {"fps": 12.0, "options": [option(12, 0.9, 0.07), option(12, 0.9, 0.06), option(12, 0.8, 0.05), option(4, 0.6, 0.02)]}
    need_pct, kept = reading.profile_of(made)
    assert need_pct == pytest.approx(6.0)
    assert kept == {"1/1": 0.9, "1/3": 0.6}
    assert reading.told_numbers(kept) == "1/1 0.90, 1/3 0.60"
