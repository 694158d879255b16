"""Publishing to an MQTT broker. What the broker has not acknowledged waits in SQLite; a broker that is down costs the box nothing.

One thread looks at the status once a second, puts what is new into the outbox and hands the outbox to paho while connected. paho's
own thread keeps the connection: it reconnects for ever, with a pause that grows to a minute. QoS 1: everything arrives at least
once, in order; after a crash a message may come twice. The outbox is bounded (`Store(outbox_max=...)`, 10,000 messages): when the
broker is away for long, the oldest are dropped, and the log says how many.
"""

from __future__ import annotations

import logging
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode
from paho.mqtt.reasoncodes import ReasonCode

from configs.errors import EnvironmentLacking, StorageError
from configs.schema import MqttSection
from edge.status import StatusSource
from edge.telemetry.topics import OFFLINE, ONLINE, Changes, Topics

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
#: Messages given to paho at once; the rest waits in the outbox.
IN_FLIGHT_MAX = 500
KEEPALIVE_S = 30
RECONNECT_MAX_S = 60
#: How long `stop` waits for the last messages.
FAREWELL_S = 2.0


class Outbox(Protocol):
    """What waits for the broker; `edge.store.store.Store` is one. Every method may raise StorageError."""

    def outbox_put(self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False, at_utc: float) -> int: ...

    def outbox_peek(self, limit: int = 100) -> Sequence[Any]: ...

    def outbox_ack(self, ids: Sequence[int]) -> None: ...


def make_client(mqtt: MqttSection, client_id: str) -> paho.Client:
    """A paho client with credentials and TLS, not connected. Raises EnvironmentLacking when the password cannot be found."""
    client = paho.Client(CallbackAPIVersion.VERSION2, client_id=client_id)
    if mqtt.username is not None:
        client.username_pw_set(mqtt.username, mqtt.password.resolve() if mqtt.password else None)
    if mqtt.tls:
        client.tls_set(cert_reqs=ssl.CERT_REQUIRED)
    client.reconnect_delay_set(1, RECONNECT_MAX_S)
    client.max_inflight_messages_set(20)
    return client


def probe(mqtt: MqttSection, *, timeout_s: float = 5.0) -> None:
    """Connects once and leaves. Raises EnvironmentLacking saying why it was not possible."""
    client = make_client(mqtt, "")
    answered = threading.Event()
    reasons: list[ReasonCode] = []

    def on_connect(client: paho.Client, data: Any, flags: Any, reason: ReasonCode, properties: Any) -> None:
        reasons.append(reason)
        answered.set()

    client.on_connect = on_connect
    where = f"{mqtt.host}:{mqtt.port}"
    try:
        client.connect(mqtt.host, mqtt.port, keepalive=KEEPALIVE_S)
    except (OSError, ValueError) as error:
        raise _unreachable(where, error) from None
    client.loop_start()
    try:
        if not answered.wait(timeout_s):
            raise EnvironmentLacking(
                f"{where} does not answer as an MQTT broker within {timeout_s:g} s",
                subject=where,
                remedy="is it a broker, and with TLS or without?",
            )
    finally:
        client.disconnect()
        client.loop_stop()
    if reasons[0].is_failure:
        raise EnvironmentLacking(
            f"the broker {where} refused us: {reasons[0]}", subject=where, remedy="correct telemetry.mqtt.username and password"
        )


def _unreachable(where: str, error: Exception) -> EnvironmentLacking:
    if isinstance(error, ssl.SSLError):
        remedy = "check telemetry.mqtt.tls and port, and that the broker's certificate is trusted by this system"
    else:
        remedy = "is the broker running? correct telemetry.mqtt.host and port"
    reason = getattr(error, "strerror", None) or type(error).__name__
    return EnvironmentLacking(f"the broker {where} cannot be reached: {reason}", subject=where, remedy=remedy)


class MqttPublisher:
    """Publishes what `source` tells until `stop`. No method blocks on the broker; `start` never fails because it is down."""

    def __init__(
        self,
        mqtt: MqttSection,
        *,
        site: str,
        box: str,
        source: StatusSource,
        outbox: Outbox,
        look_every_s: float = LOOK_EVERY_S,
        utc: Callable[[], float] = time.time,
    ) -> None:
        self.topics = Topics(prefix=mqtt.prefix, site=site, box=box)
        self._mqtt, self._source, self._outbox = mqtt, source, outbox
        self._look_every_s, self._utc = look_every_s, utc
        self._changes = Changes(self.topics)
        self._client = make_client(mqtt, f"driftbox-{site}-{box}"[:120])
        self._client.will_set(self.topics.of_box("availability"), OFFLINE, qos=1, retain=True)
        self._client.on_connect = self._on_connect
        self._client.on_disconnect = self._on_disconnect
        self._client.on_publish = self._on_publish
        self._lock = threading.Lock()
        self._acknowledged: set[int] = set()  # paho's message numbers
        self._in_flight: dict[int, int] = {}  # paho's number -> ours; used by our thread only
        self._fresh = False  # a connection was made since the last look
        self._told: str | None = None  # last thing logged about the connection
        self._dropped = 0
        self._wake, self._stopping = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="mqtt", daemon=True)

    def start(self) -> None:
        self._client.connect_async(self._mqtt.host, self._mqtt.port, keepalive=KEEPALIVE_S)
        self._client.loop_start()
        self._thread.start()

    def wake(self) -> None:
        """Look now: something happened that should be told at once."""
        self._wake.set()

    def stop(self) -> None:
        """Tells what is left, says `offline` and disconnects; takes at most a few seconds, also without a broker."""
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(FAREWELL_S + self._look_every_s)
        if self._client.is_connected():
            farewell = self._client.publish(self.topics.of_box("availability"), OFFLINE, qos=1, retain=True)
            self._wait(farewell.is_published)
        self._client.disconnect()
        self._client.loop_stop()

    def _wait(self, condition: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + FAREWELL_S
        while not condition() and time.monotonic() < deadline_s:
            time.sleep(0.02)

    # --- our thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wake.wait(self._look_every_s)
            self._wake.clear()
            try:
                self.look()
            except StorageError as error:
                self._tell(f"messages are lost: {error}", logging.WARNING)
            except Exception:  # telemetry must never end, whatever a status holds
                log.exception("telemetry: a look at the box failed")
        self._wait(self._is_settled)

    def look(self) -> None:
        """One round: what is new goes into the outbox, the outbox goes to the broker."""
        with self._lock:
            fresh, self._fresh = self._fresh, False
        if fresh:
            self._changes.forget()
        for message in self._changes.messages(self._source.status()):
            dropped = self._outbox.outbox_put(message.topic, message.payload, qos=1, retain=message.retain, at_utc=self._utc())
            self._count_dropped(dropped)
        self._settle()
        self._send()

    def _count_dropped(self, dropped: int) -> None:
        if dropped and not self._dropped:
            log.warning("mqtt: the outbox is full, the oldest messages are dropped until the broker is back")
        self._dropped += dropped

    def _send(self) -> None:
        if not self._client.is_connected():
            return
        waiting = set(self._in_flight.values())
        for item in self._outbox.outbox_peek(IN_FLIGHT_MAX):
            if item.id in waiting:
                continue
            info = self._client.publish(item.topic, item.payload, qos=item.qos, retain=item.retain)
            if info.rc == MQTTErrorCode.MQTT_ERR_QUEUE_SIZE:
                return
            # Also when the connection was lost just now: paho keeps it and sends it after the next CONNACK.
            self._in_flight[info.mid] = item.id

    def _settle(self) -> None:
        with self._lock:
            # All are taken: numbers of birth messages are not ours, and paho will use them again one day.
            acknowledged, self._acknowledged = self._acknowledged, set()
        ours = acknowledged & self._in_flight.keys()
        if ours:
            self._outbox.outbox_ack([self._in_flight.pop(mid) for mid in ours])

    def _is_settled(self) -> bool:
        """Everything was acknowledged, or nobody is there who could."""
        if not self._client.is_connected():
            return True
        try:
            self._settle()
            self._send()
        except StorageError:
            return True
        return not self._in_flight

    # --- paho's thread ------------------------------------------------------------------------------------------------

    def _on_connect(self, client: paho.Client, data: Any, flags: Any, reason: ReasonCode, properties: Any) -> None:
        where = f"{self._mqtt.host}:{self._mqtt.port}"
        if reason.is_failure:
            self._tell(f"the broker {where} refuses us: {reason}", logging.WARNING)
            return
        client.publish(self.topics.of_box("availability"), ONLINE, qos=1, retain=True)
        with self._lock:
            self._fresh = True
        self._tell(f"connected to the broker {where}", logging.INFO)
        if self._dropped:
            log.warning("mqtt: %d messages were dropped while the broker was away", self._dropped)
            self._dropped = 0
        self.wake()

    def _on_disconnect(self, client: paho.Client, data: Any, flags: Any, reason: ReasonCode, properties: Any) -> None:
        if not self._stopping.is_set():
            self._tell(f"the broker {self._mqtt.host}:{self._mqtt.port} is gone; messages wait", logging.WARNING)

    def _on_publish(self, client: paho.Client, data: Any, mid: int, reason: ReasonCode, properties: Any) -> None:
        with self._lock:
            self._acknowledged.add(mid)
        # No wake: acknowledgements are settled at the next look, a second later at most.

    def _tell(self, text: str, level: int) -> None:
        """Logs a change of the connection once, however often it is tried."""
        if self._told != text:
            self._told = text
            log.log(level, "mqtt: %s", text)
