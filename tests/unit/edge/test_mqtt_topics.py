"""What is told over MQTT and when: changes only, everything again after a new connection, nothing secret."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.objects.types import ObjectEvent
from edge.status import BoxStatus, CameraView, NoteView, OutcomeView, PlanView, QualityPoint
from edge.store.outbox import Message
from edge.telemetry import topics
from edge.telemetry.topics import Changes, EventIds, Topics
from edge.web.fake import EPOCH_UTC, FakeSource

PAGE = Path(__file__).parents[3] / "docs/mqtt.md"
WALKER = ObjectEvent(
    id="gate-7", camera="gate", what="update", class_name="person", score=0.91234, box=(0.1, 0.25, 0.3333333, 0.5),
    started_utc=EPOCH_UTC, seen_utc=EPOCH_UTC + 1.5, zones=("door",), zones_been=("door", "path"), lines={"kerb": "in"},
    version="gate-2", has_snapshot=True, extra={"dwell_s": 4.0},
)  # fmt: skip
NAMES = Topics(prefix="driftbox", site="home", box="demo")


def changes_of() -> Changes:
    return Changes(NAMES, EventIds(EPOCH_UTC))


def status_of(camera: CameraView | None = None, *, now_utc: float = EPOCH_UTC, **fields: Any) -> BoxStatus:
    cameras = (camera or CameraView(id="gate", state="live", model="gate-1"),)
    return BoxStatus(box="demo", site="home", now_utc=now_utc, started_utc=EPOCH_UTC - 5, cameras=cameras, **fields)


def body(message: Message) -> Any:
    return json.loads(message.payload)


def json_of(messages: list[Message]) -> list[Message]:
    """Without those whose payload is one plain word."""
    return [m for m in messages if not m.topic.endswith(("/learning", "/watching", "/availability"))]


def told(messages: list[Message]) -> list[str]:
    return [message.topic.removeprefix("driftbox/home/demo/") for message in messages]


def test_the_first_look_tells_every_state() -> None:
    messages = changes_of().messages(FakeSource().status())
    names = told(messages)
    assert {f"camera/{id}/status" for id in ("gate", "yard", "dock", "hall")} <= set(names)
    assert {"camera/gate/quality", "camera/gate/model", "camera/dock/events", "stats"} <= set(names)
    assert [body(m)["kind"] for m in messages if m.topic.endswith("/window")] == ["outcome", "outcome", "plan"]
    assert [body(m)["window"] for m in messages if m.topic.endswith("/window")] == [1, 2, 3], "oldest first"


def test_nothing_new_is_nothing_told() -> None:
    changes = changes_of()
    changes.messages(status_of())
    assert changes.messages(status_of(now_utc=EPOCH_UTC + 1)) == []


def test_states_are_retained_and_events_are_not() -> None:
    for message in changes_of().messages(FakeSource().status()):
        kept = ("/status", "/quality", "/model", "/counts", "/window", "/learning", "/watching")
        assert message.retain == message.topic.endswith(kept), message.topic
        # Of a state the newest is enough; every plan and every outcome is told, and the last one kept.
        assert message.latest == (message.retain and not message.topic.endswith("/window"))


def test_every_payload_has_schema_and_a_utc_time() -> None:
    for message in json_of(changes_of().messages(FakeSource().status())):
        found = body(message)
        assert found["schema"] == topics.SCHEMA
        assert found["at"].endswith("Z")
        assert datetime.fromisoformat(found["at"]).utcoffset() is not None


def test_times_are_iso_utc() -> None:
    assert topics.iso_utc(0.25) == "1970-01-01T00:00:00.250Z"


def test_a_change_of_state_is_told_once_as_state_and_as_event() -> None:
    changes = changes_of()
    changes.messages(status_of())
    lost = CameraView(id="gate", state="stalled", code="timeout", error="no frames", model="gate-1")
    messages = changes.messages(status_of(lost))
    assert told(messages) == ["camera/gate/status", "camera/gate/events"]
    assert body(messages[1]) | {"at": "", "event_id": ""} == {
        "schema": 1, "at": "", "event_id": "", "kind": "state", "from": "live", "to": "stalled", "code": "timeout",
    }  # fmt: skip
    assert changes.messages(status_of(lost)) == []


def test_a_new_model_is_told() -> None:
    changes = changes_of()
    changes.messages(status_of())
    messages = changes.messages(status_of(CameraView(id="gate", state="live", model="gate-2")))
    assert sorted(told(messages)) == ["camera/gate/events", "camera/gate/model"]
    event = next(body(m) for m in messages if m.topic.endswith("events"))
    assert (event["kind"], event["from"], event["to"]) == ("model", "gate-1", "gate-2")


def test_a_measurement_is_told() -> None:
    changes = changes_of()
    changes.messages(status_of())
    point = QualityPoint(at_utc=EPOCH_UTC, f1=0.61239, version="gate-1")
    (message,) = changes.messages(status_of(CameraView(id="gate", state="live", model="gate-1", quality_history=(point,))))
    assert (body(message)["f1"], body(message)["measured"]) == (0.6124, topics.iso_utc(EPOCH_UTC))
    assert body(message)["measure"] == "F1"


def test_answers_of_queries_are_told_when_they_change() -> None:
    changes, source = changes_of(), FakeSource()
    [first] = [m for m in changes.messages(source.status()) if m.topic.endswith("gate/counts")]
    found = body(first)["queries"]
    assert found["plates"] == {"state": "resting", "reason": "read: MemoryError: no room", "results": {}}
    assert found["entrance"]["results"]["lines"]["lines"]["door"]["in"] == 0
    source.ticks = 9
    [second] = [m for m in changes.messages(source.status()) if m.topic.endswith("gate/counts")]
    assert body(second)["queries"]["entrance"]["results"]["lines"]["lines"]["door"]["in"] == 5
    source.ticks = 9
    assert not [m for m in changes.messages(source.status()) if m.topic.endswith("/counts")]
    page = PAGE.read_text(encoding="utf-8")
    assert [field for field in found["entrance"] if f"`{field}`" not in page] == []


def test_a_camera_that_classifies_says_so() -> None:
    point = QualityPoint(at_utc=EPOCH_UTC, f1=0.6, version="gate-1", frames=8, error=0.12345)
    camera = CameraView(
        id="gate", state="live", task="classification", quality_name="accuracy", model="gate-1", quality_history=(point,)
    )
    told = json_of(changes_of().messages(status_of(camera)))
    bodies = {m.topic.rpartition("/")[2]: body(m) for m in told if "/camera/" in m.topic}
    assert bodies["status"]["task"] == "classification"
    assert bodies["quality"]["measure"] == "accuracy"
    assert (bodies["quality"]["frames"], bodies["quality"]["error"]) == (8, 0.1235), "how sure it is"


def test_plan_and_outcome_share_a_topic_and_are_told_once() -> None:
    changes = changes_of()
    plan = PlanView(window=4, policy="thief", at_utc=EPOCH_UTC, spare_pct=5, expected_quality=0.6)
    outcome = OutcomeView(window=3, opened_utc=EPOCH_UTC - 200, closed_utc=EPOCH_UTC, realised_quality=0.5)
    first = [m for m in changes.messages(status_of(plan=plan, outcomes=(outcome,))) if m.topic.endswith("/window")]
    assert [body(m)["kind"] for m in first] == ["outcome", "plan"]
    assert body(first[0])["closed"] == topics.iso_utc(EPOCH_UTC)
    assert changes.messages(status_of(plan=plan, outcomes=(outcome,))) == []
    changes.forget()
    again = changes.messages(status_of(plan=plan, outcomes=(outcome,)))
    kinds = ("status", "learning", "watching", "counts", "model")
    assert told(again) == [*(f"camera/gate/{kind}" for kind in kinds), "window"], "an old outcome is not told again"


def test_notes_are_told_once_even_after_a_new_connection() -> None:
    changes = changes_of()
    notes = (NoteView(at_utc=EPOCH_UTC, text="disk is full"), NoteView(at_utc=EPOCH_UTC, text="training failed", camera="gate"))
    names = told(changes.messages(status_of(notes=notes)))
    assert "events" in names
    assert "camera/gate/events" in names
    changes.forget()
    assert not [n for n in told(changes.messages(status_of(notes=notes))) if n.endswith("events")]


@pytest.mark.parametrize(("after_s", "expected"), [(59.0, False), (60.0, True), (-3600.0, True)])
def test_stats_come_every_minute_also_when_the_clock_jumps_back(after_s: float, expected: bool) -> None:
    changes = changes_of()
    assert "stats" in told(changes.messages(status_of()))
    assert ("stats" in told(changes.messages(status_of(now_utc=EPOCH_UTC + after_s)))) == expected


def test_who_has_just_been_told_of_devices_gets_the_stats_when_it_has_subscribed() -> None:
    changes = changes_of()
    told(changes.messages(status_of()))
    changes.devices_announced(EPOCH_UTC + 10)
    due_s = 10 + topics.STATS_AFTER_NEWS_S
    assert "stats" not in told(changes.messages(status_of(now_utc=EPOCH_UTC + due_s - 0.1)))
    assert "stats" in told(changes.messages(status_of(now_utc=EPOCH_UTC + due_s)))
    assert "stats" not in told(changes.messages(status_of(now_utc=EPOCH_UTC + due_s + 59))), "a minute from then on"
    assert "stats" in told(changes.messages(status_of(now_utc=EPOCH_UTC + due_s + 60)))


def test_stats_hold_the_numbers_of_box_and_cameras() -> None:
    found = topics.stats(FakeSource().status())
    assert found["cameras_live"] == 2
    assert found["shares"]["infer:yard"] == {"promised_pct": 20.0, "received_pct": 12.5}
    assert found["cameras"]["gate"]["analysed_fps"] == 4.8
    assert topics.stats(status_of())["mean_quality"] is None


def test_every_kind_of_message_is_documented_and_none_else_exists() -> None:
    page = PAGE.read_text(encoding="utf-8")
    kinds = [*(f"camera/<id>/{kind}" for kind in topics.CAMERA_KINDS), *topics.BOX_KINDS]
    assert not [kind for kind in kinds if f"`<prefix>/<site>/<box>/{kind}`" not in page]
    assert {name.rpartition("/")[2] for name in told(changes_of().messages(FakeSource().status()))} <= {
        *topics.CAMERA_KINDS,
        *topics.BOX_KINDS,
    }


def test_every_field_is_documented() -> None:
    page = PAGE.read_text(encoding="utf-8")
    status = FakeSource().status()
    messages = [*json_of(changes_of().messages(status)), changes_of().object_event(WALKER)]
    fields = {key for message in messages for key in body(message)} | set(topics.state_body(status, obeys=True))
    assert not [field for field in fields if f"`{field}`" not in page]


def test_stats_tell_the_devices_and_the_page_names_every_field() -> None:
    status = FakeSource().status()
    told = json.loads(json.dumps(topics.stats(status)))
    assert told["backend"] == "lanes"
    busy, lost = told["devices"]
    assert (busy["utilisation_pct"], busy["temperature_c"], busy["throttled"], busy["problem"]) == (71, 83, ["power limit"], "")
    assert lost["problem"].startswith("the GPU is lost")
    assert lost["power_w"] is None
    page = PAGE.read_text(encoding="utf-8")
    assert [name for name in busy if f"`{name}`" not in page] == []


def test_an_object_is_told_with_the_same_id_and_every_event_has_one_of_its_own() -> None:
    changes = changes_of()
    gone = replace(WALKER, what="end", ended_utc=EPOCH_UTC + 9, seen_utc=EPOCH_UTC + 9)
    messages = [changes.object_event(replace(WALKER, what="new")), changes.object_event(WALKER), changes.object_event(gone)]
    assert set(told(messages)) == {"camera/gate/events"}
    assert not any(m.retain or m.latest for m in messages)
    bodies = [body(m) for m in messages]
    assert [(b["kind"], b["id"]) for b in bodies] == [("new", "gate-7"), ("update", "gate-7"), ("end", "gate-7")]
    assert len({b["event_id"] for b in bodies}) == 3
    assert bodies[1] | {"event_id": ""} == {
        "schema": 1, "at": "2026-09-21T14:13:21.500Z", "event_id": "", "kind": "update", "id": "gate-7", "class": "person",
        "score": 0.9123, "box": [0.1, 0.25, 0.3333, 0.5], "started": "2026-09-21T14:13:20.000Z", "ended": None,
        "zones": ["door"], "zones_been": ["door", "path"], "lines": {"kerb": "in"}, "version": "gate-2",
        "has_snapshot": True, "has_clip": False, "extra": {"dwell_s": 4.0},
    }  # fmt: skip
    assert bodies[2]["ended"] == "2026-09-21T14:13:29.000Z"


@given(started_utc=st.lists(st.floats(0, 4e9), min_size=2, max_size=5, unique_by=lambda at: int(at * 1000)))
def test_no_event_id_comes_twice_over_restarts(started_utc: list[float]) -> None:
    runs = [EventIds(at) for at in started_utc]
    assert len({ids() for ids in runs for _ in range(40)}) == 40 * len(runs)


def test_a_switch_is_told_as_home_assistant_wants_it_and_again_when_somebody_doubts_it() -> None:
    changes = changes_of()
    changes.messages(status_of())
    (off,) = changes.messages(status_of(CameraView(id="gate", state="live", model="gate-1", learning=False)))
    assert (off.topic, off.payload, off.retain) == ("driftbox/home/demo/camera/gate/learning", b"OFF", True)
    same = status_of(CameraView(id="gate", state="live", model="gate-1", learning=False))
    assert changes.messages(same) == []
    changes.forget_topic(off.topic)
    assert changes.messages(same) == [off]


def test_who_is_there_is_told_with_its_zones() -> None:
    camera = CameraView(id="gate", state="live", present={"person": 2, "car": 0}, zones={"door": {"person": 1, "car": 0}})
    (counts,) = [m for m in changes_of().messages(status_of(camera)) if m.topic.endswith("/counts")]
    assert (body(counts)["present"], body(counts)["zones"]) == ({"person": 2, "car": 0}, {"door": {"person": 1, "car": 0}})


def test_crossings_are_told_with_each_line_and_again_when_one_more_was_counted() -> None:
    def camera(inwards: int) -> CameraView:
        return CameraView(id="gate", state="live", crossed={"kerb": {"in": inwards, "out": 1}, "door": {"in": 0, "out": 0}})

    changes = changes_of()
    (counts,) = [m for m in changes.messages(status_of(camera(2))) if m.topic.endswith("/counts")]
    assert body(counts)["crossed"] == {"kerb": {"in": 2, "out": 1}, "door": {"in": 0, "out": 0}}
    assert changes.messages(status_of(camera(2))) == []
    (again,) = changes.messages(status_of(camera(3)))
    assert (again.topic, again.retain, body(again)["crossed"]["kerb"]["in"]) == (counts.topic, True, 3)


def test_a_camera_that_comes_back_is_told_from_the_beginning() -> None:
    changes = changes_of()
    first = told(changes.messages(status_of()))
    changes.messages(BoxStatus(box="demo", site="home", now_utc=EPOCH_UTC, started_utc=EPOCH_UTC))
    again = told(changes.messages(status_of()))
    assert [n for n in first if n.startswith("camera/")] == [n for n in again if n.startswith("camera/")]
