"""The box's connection to its fleet's broker: what a controller needs of the telemetry, reports, and what comes back.

The same publisher as the house's broker has (`edge.telemetry.mqtt`), with an outbox of its own (`fleet/outbox.db`): what the fleet's
broker has not acknowledged waits there, also over restarts, and a fleet that is away for weeks cannot fill what the house waits for. Of
reports only the newest waits. Who is in a picture is nobody's business beyond the house: tracked objects and counts are not told here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from configs.schema import MqttSection
from edge.fleet.membership import Membership
from edge.status import StatusSource
from edge.store.outbox import Message, Outbox
from edge.telemetry.announce import Announcer
from edge.telemetry.mqtt import Incoming, MqttPublisher
from edge.telemetry.topics import Topics
from scheduler.fleet.codec import encode
from scheduler.fleet.types import BoxReport

#: What of the box's telemetry the fleet is told.
BOX_KINDS = ("state", "window", "stats")
CAMERA_KINDS = ("status", "quality", "model")
#: Reports are numbered over the box's life; so many numbers are taken from the database at once.
NUMBERS = 1000
_NUMBER = "report"


def is_wanted(topics: Topics) -> Callable[[str], bool]:
    """Whether a topic of the telemetry is told to the fleet."""
    box, camera = {topics.of_box(kind) for kind in BOX_KINDS}, topics.of_box("camera/")
    return lambda topic: topic in box or (topic.startswith(camera) and topic.rpartition("/")[2] in CAMERA_KINDS)


class Numbers:
    """Numbers of reports: each higher than all before, over restarts. Raises StorageError."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._next = self._end = int(outbox.fact(_NUMBER) or 0)

    def __call__(self) -> int:
        if self._next >= self._end:
            self._outbox.remember(_NUMBER, str(self._end + NUMBERS))
            self._end += NUMBERS
        self._next += 1
        return self._next


class FleetLink:
    """mqtt: how the broker is reached; hear: told of every wish and heartbeat, from another thread, must return at once; state: what
    the retained `state` tells besides. Raises EnvironmentLacking when a certificate cannot be used."""

    def __init__(
        self, mqtt: MqttSection, member: Membership, *, source: StatusSource, outbox: Outbox, hear: Incoming,
        state: Callable[[], Mapping[str, Any]], utc: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        topics = Topics(prefix=member.prefix, site=member.site, box=member.box)
        self.wish_topic, self.heartbeat_topic = topics.of_box("desired"), f"{member.prefix}/fleet/controller"
        self._report_topic = topics.of_box("report")
        self.publisher = MqttPublisher(
            mqtt, site=member.site, box=member.box, source=source, outbox=outbox, name="fleet", wanted=is_wanted(topics),
            announcer=Announcer(mqtt, topics, outbox, more=state), incoming=hear,
            subscriptions=(self.wish_topic, self.heartbeat_topic), utc=utc,
        )  # fmt: skip

    def report(self, report: BoxReport) -> None:
        """Tells it; one that still waits is replaced."""
        self.publisher.send(Message(topic=self._report_topic, payload=encode(report), latest=True))
