"""Boxes of a fleet as a controller meets them: they obey, confirm and report as a real one does, and decode no video.

`ToyBox` is a box without a wire; `ToyBroker` a broker without one, with a `Link` for controllers; `WireBox` puts a `ToyBox` behind paho
at a real broker.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from cluster.controller.link import Incoming
from configs.errors import UsageError
from scheduler.fleet.codec import decode, encode
from scheduler.fleet.desire import Known, judged
from scheduler.fleet.types import BoxReport, CameraKey, CameraOrder, CameraReport, CameraWord, Confirmation, Desired

STAGES = {"own": "owning", "warm": "warm", "standby": "standby", "release": "released"}


def iso(utc_s: float) -> str:
    return datetime.fromtimestamp(utc_s, UTC).isoformat()


@dataclass
class ToyBox:
    """cameras: own ones, id -> (customer, demand_pct); clock_s: its clock minus the world's; lie: changes a report before it is sent;
    pack: called with the id of a parcel that it is to pack."""

    id: str
    site: str = "here"
    capacity_pct: float = 100.0
    cameras: dict[str, tuple[str, float]] = field(default_factory=dict)
    networks: tuple[str, ...] = ("lan",)
    boot: str = "boot-1"
    clock_s: float = 0.0
    quality: float = 0.9
    sequence: int = 0
    known: Known = field(default_factory=Known)
    refused: str = ""
    orders: list[tuple[int, int]] = field(default_factory=list)
    held: dict[CameraKey, CameraOrder] = field(default_factory=dict)
    lie: Callable[[BoxReport], BoxReport] = lambda report: report
    pack: Callable[[str], None] = lambda parcel: None

    @property
    def applied(self) -> Desired | None:
        return self.known.applied

    def receive(self, payload: bytes, now_s: float) -> None:
        """A wish has come."""
        if not payload:
            return
        try:
            wish = decode(Desired, payload)
        except UsageError:
            return
        answer = judged(wish, self.known, box=self.id, now_utc_s=now_s + self.clock_s, offset_s=-self.clock_s)
        self.known, self.refused = answer.known, answer.why
        if answer.verdict == "apply":
            self.known = replace(self.known, applied=wish)
            self.orders.append(wish.order)
            # As `edge.fleet.guests`: an order of a lower term than the one in force is of the past.
            before, self.held = self.held, {order.camera: order for order in wish.cameras}
            self.held |= {key: old for key, old in before.items() if key in self.held and self.held[key].term < old.term}
        for order in self._orders():
            if order.role == "own" and order.parcel and not order.parcel.startswith(f"{self.id}."):
                self.pack(order.parcel)

    def watched(self) -> set[CameraKey]:
        """Cameras that it tells of now."""
        own = {CameraKey(home=self.id, camera=name) for name in self.cameras}
        ordered = {order.camera for order in self._orders()}
        # A new owner that does not know yet up to where the one before has told says nothing (`CameraOrder.after_s`).
        given = {order.camera for order in self._orders() if order.role == "own" and order.after_s is not None}
        return (own - ordered) | given

    def restart(self, boot: str) -> None:
        self.boot = boot

    def report(self, now_s: float) -> BoxReport:
        """The next one."""
        self.sequence += 1
        applied = self.applied
        words = tuple(
            CameraWord(camera=o.camera, term=o.term, stage=STAGES[o.role], parcel=o.parcel, first_s=0.0, last_s=now_s)  # type: ignore[arg-type]
            for o in self._orders()
        )
        confirmation = Confirmation(
            term=applied.term if applied else 0, version=applied.version if applied else 0, refused=self.refused, cameras=words
        )
        cameras = tuple(self._camera(key) for key in sorted(self.watched()))
        return self.lie(
            BoxReport(
                box=self.id, site=self.site, boot=self.boot, sequence=self.sequence, sent_utc=iso(now_s + self.clock_s), software="toy",
                capacity_pct=self.capacity_pct, spare_pct=0.0, memory_mib=None, networks=self.networks, cameras=cameras,
                confirmation=confirmation,
            )
        )  # fmt: skip

    def _orders(self) -> tuple[CameraOrder, ...]:
        return tuple(self.held.values())

    def _camera(self, key: CameraKey) -> CameraReport:
        customer, demand_pct = self.cameras.get(key.camera, ("house", 10.0)) if key.home == self.id else ("house", 10.0)
        got_pct = min(demand_pct, self.capacity_pct / 4)
        return CameraReport(
            camera=key, customer=customer, networks=self.networks, demand_pct=demand_pct, got_pct=got_pct, quality=self.quality,
            finish_frac=1.0, fps=10.0, version="v1",
        )  # fmt: skip


class ToyBroker:
    """Retained messages, and everything ever said: (topic, payload)."""

    def __init__(self) -> None:
        self.retained: dict[str, bytes] = {}
        self.said: list[tuple[str, bytes]] = []
        self._links: list[ToyLink] = []

    def say(self, topic: str, payload: bytes, *, retain: bool = True) -> None:
        self.said.append((topic, payload))
        if retain:
            self.retained[topic] = payload
            if not payload:
                del self.retained[topic]
        for link in self._links:
            link.heard.append(Incoming(topic=topic, payload=payload, retained=False))

    def link(self) -> ToyLink:
        """A new connection: it hears what is retained first."""
        made = ToyLink(self)
        made.heard += [Incoming(topic=t, payload=p, retained=True) for t, p in sorted(self.retained.items())]
        self._links.append(made)
        return made

    def drop(self, link: ToyLink) -> None:
        self._links.remove(link)

    def wish_of(self, box: ToyBox) -> Desired | None:
        payload = self.retained.get(f"{box.site}/{box.id}/desired")
        return decode(Desired, payload) if payload else None


class ToyLink:
    """A `Link` to a `ToyBroker`."""

    def __init__(self, broker: ToyBroker) -> None:
        self.broker, self.heard, self.number = broker, list[Incoming](), 1

    def connection(self) -> int:
        return self.number

    def take(self) -> list[Incoming]:
        found, self.heard = self.heard, []
        return found

    def say(self, topic: str, payload: bytes) -> bool:
        if not self.number:
            return False
        self.broker.say(topic, payload)
        return True


class WireBox:
    """A `ToyBox` at a real broker. It reports when `report` is called, and at once after every wish."""

    def __init__(
        self, box: ToyBox, port: int, *, now_s: Callable[[], float], prefix: str = "driftbox", tls: Any = None, host: str = "127.0.0.1"
    ) -> None:  # fmt: skip
        self.box, self._now_s, self._base = box, now_s, f"{prefix}/{box.site}/{box.id}"
        self.lock = threading.Lock()
        self.client = paho.Client(CallbackAPIVersion.VERSION2, client_id=f"{box.id}-{id(self)}")
        if tls is not None:
            self.client.tls_set_context(tls)
        self.client.will_set(f"{self._base}/availability", b"offline", qos=1, retain=True)
        self.client.on_connect = self._connected
        self.client.on_message = self._message
        self.client.reconnect_delay_set(1, 1)
        self.client.connect_async(host, port, keepalive=10)
        self.client.loop_start()

    def _connected(self, *_: Any) -> None:
        self.client.subscribe(f"{self._base}/desired", qos=1)
        self.client.publish(f"{self._base}/availability", b"online", qos=1, retain=True)

    def _message(self, _: Any, __: Any, message: paho.MQTTMessage) -> None:
        with self.lock:
            self.box.receive(bytes(message.payload), self._now_s())
        self.report()

    def report(self) -> bytes:
        with self.lock:
            payload = encode(self.box.report(self._now_s()))
        self.client.publish(f"{self._base}/report", payload, qos=1)
        return payload

    def say(self, payload: bytes) -> None:
        """Any report, an old one say."""
        self.client.publish(f"{self._base}/report", payload, qos=1)

    def close(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()
