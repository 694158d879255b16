"""What stands where on MQTT: topics, payloads, and what has changed since the last look. No network here.

    <prefix>/<site>/<box>/availability            online | offline (text; retained; birth and will)
    <prefix>/<site>/<box>/state                   what is in force, versioned (retained)
    <prefix>/<site>/<box>/window                  plan and outcome of windows (retained)
    <prefix>/<site>/<box>/stats                   every 60 s
    <prefix>/<site>/<box>/events                  notes of the box, and how many messages were lost
    <prefix>/<site>/<box>/camera/<id>/status      state, error, rates (retained)
    <prefix>/<site>/<box>/camera/<id>/quality     newest measurement (retained)
    <prefix>/<site>/<box>/camera/<id>/model       serving version (retained)
    <prefix>/<site>/<box>/camera/<id>/counts      who is there now, and answers of the camera's queries (retained)
    <prefix>/<site>/<box>/camera/<id>/learning    ON | OFF (text; retained)
    <prefix>/<site>/<box>/camera/<id>/watching    ON | OFF (text; retained)
    <prefix>/<site>/<box>/camera/<id>/events      tracked objects, state changes, new models, notes

Commands and their replies are in `edge.telemetry.commands`. Every JSON payload has `schema` (see SCHEMA) and `at` (UTC, ISO 8601), every
event an `event_id` of its own. docs/mqtt.md describes the fields; a test compares.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from edge.objects.types import ObjectEvent
from edge.status import BoxStatus, CameraView, DeviceView, OutcomeView, PlanView
from edge.store.outbox import Message

#: Version of all payloads; raised when a field changes its meaning or disappears.
SCHEMA = 1
STATS_EVERY_S = 60.0
#: Statistics are not kept at the broker. Who has just been told of a device reads them this long after, when it has subscribed
#: (Home Assistant needs about a second), instead of a minute later.
STATS_AFTER_NEWS_S = 5.0
ONLINE, OFFLINE = "online", "offline"
#: Kinds of messages under a camera and under the box, for the documentation test.
CAMERA_KINDS = ("status", "quality", "model", "counts", "learning", "watching", "events")
BOX_KINDS = ("availability", "state", "window", "stats", "events")
ON, OFF = "ON", "OFF"
#: Notes remembered as published.
_NOTES_KEPT = 500


@dataclass(frozen=True, kw_only=True)
class Topics:
    """The names of one box's topics."""

    prefix: str
    site: str
    box: str

    def of_box(self, kind: str) -> str:
        return f"{self.prefix}/{self.site}/{self.box}/{kind}"

    def of_camera(self, camera_id: str, kind: str) -> str:
        return f"{self.prefix}/{self.site}/{self.box}/camera/{camera_id}/{kind}"


class EventIds:
    """Ids of events, none ever twice: who has got an event twice (QoS 1 allows it after a broken connection) knows it by its id.
    started_utc: when this run of the box began."""

    def __init__(self, started_utc: float) -> None:
        self._run, self._count = f"{max(0, int(started_utc * 1000)):x}", 0

    def __call__(self) -> str:
        self._count += 1
        return f"{self._run}-{self._count:x}"


def iso_utc(at_utc: float) -> str:
    """'2026-01-31T12:00:00.250Z'."""
    return datetime.fromtimestamp(at_utc, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def payload(at_utc: float, body: dict[str, Any]) -> bytes:
    """The body with `schema` and `at` in front."""
    return json.dumps({"schema": SCHEMA, "at": iso_utc(at_utc), **body}, ensure_ascii=False, allow_nan=False).encode()


class Changes:
    """Remembers what was published and says what is new in a status. `forget` after a new connection: a broker that was
    restarted may have lost its retained messages. ids: gives events theirs."""

    def __init__(self, topics: Topics, ids: Callable[[], str]) -> None:
        self.topics, self._ids = topics, ids
        self._sent: dict[str, dict[str, Any] | str] = {}
        self._states: dict[str, tuple[str, str | None]] = {}
        self._models: dict[str, str] = {}
        self._notes: deque[tuple[float, str | None, str]] = deque(maxlen=_NOTES_KEPT)
        self._stats_utc: float | None = None
        self._stats_due_utc = float("inf")
        self._outcome: int | None = None

    def forget(self) -> None:
        """Makes the next `messages` tell every retained state again."""
        self._sent.clear()

    def forget_topic(self, topic: str) -> None:
        """Makes the next `messages` tell this state again: somebody believes another one."""
        self._sent.pop(topic, None)

    def devices_announced(self, at_utc: float) -> None:
        """Somebody was told of devices and is about to subscribe to what they show."""
        self._stats_due_utc = at_utc + STATS_AFTER_NEWS_S

    def messages(self, status: BoxStatus) -> list[Message]:
        """What to publish now, oldest fact first."""
        found: list[Message] = []
        self._forget_gone({camera.id for camera in status.cameras})
        for camera in status.cameras:
            found += self._camera(status.now_utc, camera)
        found += self._window(status)
        found += self._new_notes(status)
        if self._are_stats_due(status.now_utc):
            self._stats_utc, self._stats_due_utc = status.now_utc, float("inf")
            found.append(Message(topic=self.topics.of_box("stats"), payload=payload(status.now_utc, stats(status))))
        return found

    def _are_stats_due(self, now_utc: float) -> bool:
        overdue = self._stats_utc is None or abs(now_utc - self._stats_utc) >= STATS_EVERY_S  # the clock may jump
        return overdue or now_utc >= self._stats_due_utc

    def event(self, camera: str | None, at_utc: float, body: dict[str, Any]) -> Message:
        """An event of a camera or (None) of the box."""
        topic = self.topics.of_camera(camera, "events") if camera else self.topics.of_box("events")
        return Message(topic=topic, payload=payload(at_utc, {"event_id": self._ids(), **body}))

    def object_event(self, event: ObjectEvent) -> Message:
        """What has become of a tracked object."""
        return self.event(event.camera, event.seen_utc, object_body(event))

    def _forget_gone(self, now: set[str]) -> None:
        """A camera that comes back under its id is told from the beginning."""
        for gone in self._states.keys() - now:
            del self._states[gone]
            self._models.pop(gone, None)
            for kind in CAMERA_KINDS:
                self.forget_topic(self.topics.of_camera(gone, kind))

    def _retained(self, topic: str, at_utc: float, body: dict[str, Any]) -> list[Message]:
        if self._sent.get(topic) == body:
            return []
        self._sent[topic] = body
        return [Message(topic=topic, payload=payload(at_utc, body), retain=True, latest=True)]

    def _switch(self, camera: CameraView, kind: str, on: bool) -> list[Message]:
        topic, word = self.topics.of_camera(camera.id, kind), ON if on else OFF
        if self._sent.get(topic) == word:
            return []
        self._sent[topic] = word
        return [Message(topic=topic, payload=word.encode(), retain=True, latest=True)]

    def _camera(self, now_utc: float, camera: CameraView) -> list[Message]:
        topic = self.topics.of_camera(camera.id, "status")
        found = self._retained(topic, now_utc, camera_status(camera))
        found += self._camera_events(now_utc, camera)
        found += self._switch(camera, "learning", camera.learning)
        found += self._switch(camera, "watching", camera.watching)
        found += self._retained(self.topics.of_camera(camera.id, "counts"), now_utc, counts_body(camera))
        if camera.model:
            found += self._retained(self.topics.of_camera(camera.id, "model"), now_utc, {"version": camera.model})
        if camera.quality_history:
            point = camera.quality_history[-1]
            body = {
                "f1": round(point.f1, 4), "measure": camera.quality_name, "version": point.version,
                "measured": iso_utc(point.at_utc), "frames": point.frames,
                "error": None if point.error is None else round(point.error, 4),
            }  # fmt: skip
            found += self._retained(self.topics.of_camera(camera.id, "quality"), now_utc, body)
        return found

    def _camera_events(self, now_utc: float, camera: CameraView) -> list[Message]:
        found = []
        state, before = (camera.state, camera.code), self._states.get(camera.id)
        if before is not None and before != state:
            found.append(self.event(camera.id, now_utc, {"kind": "state", "from": before[0], "to": state[0], "code": state[1]}))
        self._states[camera.id] = state
        model_before = self._models.get(camera.id)
        if model_before and camera.model and model_before != camera.model:
            found.append(self.event(camera.id, now_utc, {"kind": "model", "from": model_before, "to": camera.model}))
        self._models[camera.id] = camera.model
        return found

    def _window(self, status: BoxStatus) -> list[Message]:
        topic = self.topics.of_box("window")
        found = []
        for outcome in reversed(status.outcomes):
            if self._outcome is None or outcome.window > self._outcome:
                self._outcome = outcome.window
                found.append(Message(topic=topic, payload=payload(outcome.closed_utc, outcome_body(outcome)), retain=True))
        if status.plan is not None:
            body = plan_body(status.plan)
            # Kept under a name of its own: plan and outcome share the topic, and each is told once.
            if self._sent.get(f"{topic}#plan") != body:
                self._sent[f"{topic}#plan"] = body
                found.append(Message(topic=topic, payload=payload(status.plan.at_utc, body), retain=True))
        return found

    def _new_notes(self, status: BoxStatus) -> list[Message]:
        found = []
        for note in reversed(status.notes):
            key = (note.at_utc, note.camera, note.text)
            if key in self._notes:
                continue
            self._notes.append(key)
            found.append(self.event(note.camera, note.at_utc, {"kind": "note", "text": note.text}))
        return found


def object_body(event: ObjectEvent) -> dict[str, Any]:
    """A tracked object as it is told; `id` is the same in all that is told of it."""
    return {
        "kind": event.what,
        "id": event.id,
        "class": event.class_name,
        "score": round(event.score, 4),
        "box": [round(edge, 4) for edge in event.box],
        "started": iso_utc(event.started_utc),
        "ended": None if event.ended_utc is None else iso_utc(event.ended_utc),
        "zones": list(event.zones),
        "zones_been": list(event.zones_been),
        "lines": dict(event.lines),
        "version": event.version,
        "has_snapshot": event.has_snapshot,
        "has_clip": event.has_clip,
        "extra": event.extra,
    }


def state_body(status: BoxStatus, *, obeys: bool) -> dict[str, Any]:
    """What is in force, without what changes by itself. obeys: whether commands over MQTT are carried out."""
    return {
        "software": status.software,
        "capacity_pct": status.capacity_pct,
        "backend": status.backend,
        "commands": obeys,
        "degraded": list(status.degraded),
        "cameras": {
            camera.id: {
                "name": camera.name or camera.id,
                "watching": camera.watching,
                "learning": camera.learning,
                "task": camera.task,
                "model": camera.model,
                "knobs": camera.knobs,
            }
            for camera in status.cameras
        },
    }


def camera_status(camera: CameraView) -> dict[str, Any]:
    """State without numbers that change every second (those are in `stats`), so that it is told when something happens."""
    return {
        "name": camera.name or camera.id,
        "state": camera.state,
        "code": camera.code,
        "error": camera.error,
        "width_px": camera.width_px,
        "height_px": camera.height_px,
        "knobs": camera.knobs,
        "task": camera.task,
    }


def counts_body(camera: CameraView) -> dict[str, Any]:
    """Objects that are there now, how many have crossed each line, and what each query of the camera answered last. When that was is the
    message's own time: it is told when something changes."""
    return {
        "present": dict(camera.present),
        "zones": {zone: dict(counts) for zone, counts in camera.zones.items()},
        "crossed": {line: dict(ways) for line, ways in camera.crossed.items()},
        "queries": {
            query.name: {"state": query.state, "reason": query.reason, "results": query.results} for query in camera.queries
        },
    }


def plan_body(plan: PlanView) -> dict[str, Any]:
    return {
        "kind": "plan",
        "window": plan.window,
        "policy": plan.policy,
        "reason": plan.reason,
        "spare_pct": plan.spare_pct,
        "expected_quality": plan.expected_quality,
        "cameras": [stream.model_dump(mode="json") for stream in plan.streams],
    }


def outcome_body(outcome: OutcomeView) -> dict[str, Any]:
    return {
        "kind": "outcome",
        "window": outcome.window,
        "opened": iso_utc(outcome.opened_utc),
        "closed": iso_utc(outcome.closed_utc),
        "predicted_quality": outcome.predicted_quality,
        "realised_quality": outcome.realised_quality,
        "cameras": [stream.model_dump(mode="json") for stream in outcome.streams],
        "notes": list(outcome.notes),
    }


def device_stats(device: DeviceView) -> dict[str, Any]:
    """One GPU, rounded to what is worth telling every minute."""
    return {
        "index": device.index,
        "name": device.name,
        "utilisation_pct": device.utilisation_pct,
        "memory_used_mib": round(device.memory_used_mib),
        "memory_total_mib": round(device.memory_total_mib),
        "temperature_c": device.temperature_c,
        "power_w": None if device.power_w is None else round(device.power_w, 1),
        "throttled": list(device.throttled),
        "ecc_errors": device.ecc_errors,
        "problem": device.problem,
    }


def stats(status: BoxStatus) -> dict[str, Any]:
    """Numbers of the whole box and of each camera."""
    qualities = [camera.quality for camera in status.cameras if camera.quality is not None]
    return {
        "software": status.software,
        "uptime_s": round(max(0.0, status.now_utc - status.started_utc), 1),
        "cameras_live": sum(camera.state == "live" for camera in status.cameras),
        "mean_quality": round(sum(qualities) / len(qualities), 4) if qualities else None,
        "capacity_pct": status.capacity_pct,
        "spare_pct": status.spare_pct,
        "backend": status.backend,
        "devices": [device_stats(device) for device in status.devices],
        "cameras": {
            camera.id: {
                "analysed_fps": round(camera.analysed_fps, 2),
                "frames_analysed": camera.frames_analysed,
                "frames_dropped": camera.frames_dropped,
                "frames_given_up": camera.frames_given_up,
                "finish_frac": None if camera.finish_frac is None else round(camera.finish_frac, 4),
                "reconnects": camera.reconnects,
                "objects": camera.objects,
            }
            for camera in status.cameras
        },
        "customers": {
            customer.customer: {
                "share_pct": customer.share_pct,
                "promised_pct": round(customer.promised_pct, 1),
                "received_pct": round(customer.received_pct, 1),
            }
            for customer in status.customers
        },
        "shares": {
            share.job: {"promised_pct": round(share.promised_pct, 1), "received_pct": round(share.received_pct, 1)}
            for share in status.shares
        },
    }
