"""What is kept at the broker beside the states themselves: Home Assistant's devices, the box's `state`, and the removal of what is no
more. It remembers over restarts what it has put there, so that a camera removed while the box was off, or discovery that was switched
off, leaves nothing behind.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from configs.schema import MqttSection
from edge.status import BoxStatus
from edge.store.outbox import Message, Outbox
from edge.telemetry.home_assistant import Device, devices
from edge.telemetry.topics import CAMERA_KINDS, Topics, payload, state_body

#: Facts in the database.
_DEVICES, _CAMERAS, _STATE = "devices", "cameras", "state"
#: The states of a camera that is gone are taken back this long after its device: who still listens to them (Home Assistant for about a
#: second) would take each for a broken message.
STATES_LEAVE_AFTER_S = 5.0
#: Kinds of a camera that are kept at the broker.
KEPT = tuple(kind for kind in CAMERA_KINDS if kind != "events")


def removal(topic: str) -> Message:
    """Makes the broker forget what it keeps at a topic."""
    return Message(topic=topic, payload=b"", retain=True, latest=True)


class Announcer:
    """See the module. One thread at a time. more: what `state` tells besides."""

    def __init__(
        self, mqtt: MqttSection, topics: Topics, outbox: Outbox, *, more: Callable[[], Mapping[str, Any]] = dict
    ) -> None:
        self._mqtt, self._topics, self._outbox, self._more = mqtt, topics, outbox, more
        #: topic -> key -> platform of every entity that was announced there.
        self._announced: dict[str, dict[str, str]] = json.loads(outbox.fact(_DEVICES) or "{}")
        #: Cameras with states at the broker, and since when those are gone that are.
        self._cameras: list[str] = json.loads(outbox.fact(_CAMERAS) or "[]")
        self._gone_utc: dict[str, float] = {}
        self._sent: dict[str, bytes] = {}
        self._shape: object = None  # of what was announced last
        #: Whether the newest `messages` hold an announcement of a device.
        self.told_devices = False
        self._known: tuple[int, str] | None = None  # version and digest of what is in force

    def forget(self) -> None:
        """Makes the next `messages` tell everything again."""
        self._sent.clear()
        self._shape = None

    def messages(self, status: BoxStatus) -> list[Message]:
        """What to publish now. Raises StorageError."""
        devices = self._devices(status)
        self.told_devices = any(message.payload for message in devices)
        return [*self._without_gone_cameras(status), *self._state(status), *devices]

    def _once(self, topic: str, body: bytes) -> list[Message]:
        if self._sent.get(topic) == body:
            return []
        self._sent[topic] = body
        return [Message(topic=topic, payload=body, retain=True, latest=True)]

    # --- states -------------------------------------------------------------------------------------------------------

    def _without_gone_cameras(self, status: BoxStatus) -> list[Message]:
        here = [camera.id for camera in status.cameras]
        gone = [camera for camera in self._cameras if camera not in here]
        self._gone_utc = {camera: self._gone_utc.get(camera, status.now_utc) for camera in gone}
        # abs: the clock may jump
        leave = [camera for camera in gone if abs(status.now_utc - self._gone_utc[camera]) >= STATES_LEAVE_AFTER_S]
        known = [*here, *(camera for camera in gone if camera not in leave)]
        if known != self._cameras:
            self._cameras = known
            self._outbox.remember(_CAMERAS, json.dumps(known))
        return [removal(self._topics.of_camera(camera, kind)) for camera in leave for kind in KEPT]

    def _state(self, status: BoxStatus) -> list[Message]:
        body = {**state_body(status, obeys=self._mqtt.obeys), **self._more()}
        version = self._version(body)
        topic = self._topics.of_box("state")
        if self._sent.get(topic) == str(version).encode():
            return []
        self._sent[topic] = str(version).encode()
        told = payload(status.now_utc, {"version": version, **body})
        return [Message(topic=topic, payload=told, retain=True, latest=True)]

    def _version(self, body: Mapping[str, Any]) -> int:
        """Counts up with every change of what is in force, also over restarts."""
        digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]
        if self._known is None:
            number, _, known = (self._outbox.fact(_STATE) or "0 ").partition(" ")
            self._known = int(number), known
        version, known = self._known
        if known != digest:
            version += 1
            self._outbox.remember(_STATE, f"{version} {digest}")
            self._known = version, digest
        return version

    # --- Home Assistant -----------------------------------------------------------------------------------------------

    def _devices(self, status: BoxStatus) -> list[Message]:
        shape = _shape_of(status)
        if shape == self._shape:
            return []
        found: list[Device] = []
        if self._mqtt.discovery:
            found = devices(status, self._topics, prefix=self._mqtt.discovery_prefix, obeys=self._mqtt.obeys)
        gone = self._announced.keys() - {device.topic for device in found}
        removed = [removal(topic) for topic in sorted(gone)]
        for topic in gone:  # a device that comes back as it was is told of again
            self._sent.pop(topic, None)
        known = {device.topic: self._entities(device) for device in found}
        messages = list(removed)
        for device in found:
            body = device.body(status.software, known[device.topic])
            messages += self._once(device.topic, json.dumps(body, ensure_ascii=False).encode())
        if known != self._announced:
            self._announced = known
            self._outbox.remember(_DEVICES, json.dumps(known))
        self._shape = shape
        return messages

    def _entities(self, device: Device) -> dict[str, str]:
        """Those that are announced, and those that once were: Home Assistant removes what it is told by its platform alone."""
        now = {key: str(part["p"]) for key, part in device.components.items()}
        return {**self._announced.get(device.topic, {}), **now}


def _shape_of(status: BoxStatus) -> object:
    """What an announcement is made from: names and kinds, no numbers."""
    cameras = tuple(
        (c.id, c.name, c.task, c.quality_name, tuple(c.present), tuple(c.zones)) for c in status.cameras
    )  # fmt: skip
    return status.software, tuple(device.index for device in status.devices), cameras
