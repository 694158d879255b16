"""The controller at the broker: what it hears, in order, and what it says. The seam is `Link`; `MqttLink` is the real one, over paho.

`MqttLink` keeps no queue on disk: what is to be told is in the database, and after every new connection all of it is told again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import paho.mqtt.client as paho
from paho.mqtt.enums import MQTTErrorCode
from paho.mqtt.reasoncodes import ReasonCode

from configs.errors import DriftboxError
from configs.schema import MqttSection
from edge.telemetry.connection import (
    KEEPALIVE_S,
    Backoff,
    current_failure,
    make_client,
    no_answer,
    quietly,
    refused,
    where_of,
)

log = logging.getLogger("driftbox")

#: A broker that does not answer a connection within this is left.
ANSWER_S = 15.0
#: Messages that wait for the controller; beyond, the oldest go: reports come again in seconds.
MOST_WAITING = 50_000


@dataclass(frozen=True, kw_only=True)
class Incoming:
    """topic: without the prefix; retained: it was kept by the broker, not said just now."""

    topic: str
    payload: bytes
    retained: bool


class Link(Protocol):
    """Thread-safe."""

    def connection(self) -> int:
        """Number of the connection that stands, counting up; 0: none does."""
        ...

    def take(self) -> list[Incoming]:
        """What has come since the last call."""
        ...

    def say(self, topic: str, payload: bytes) -> bool:
        """Tells something, retained, QoS 1; topic: without the prefix. False: there is no connection, nothing was told."""
        ...


class MqttLink:
    """Connects, and connects again, in a thread of its own, until `stop`. wake: called when there is something to take."""

    def __init__(self, mqtt: MqttSection, client_id: str, *, wake: Callable[[], None] = lambda: None) -> None:
        self._mqtt, self._client_id, self._wake = mqtt, client_id, wake
        self._incoming: deque[Incoming] = deque(maxlen=MOST_WAITING)
        self._client: paho.Client | None = None
        self._number, self._made = 0, 0
        self._lost, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="fleet-mqtt", daemon=True)
        self.problem = ""

    @property
    def where(self) -> str:
        return where_of(self._mqtt)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._lost.set()
        if self._thread.is_alive():
            self._thread.join(10.0)

    def connection(self) -> int:
        return self._number

    def take(self) -> list[Incoming]:
        found = []
        while self._incoming:
            found.append(self._incoming.popleft())
        return found

    def say(self, topic: str, payload: bytes) -> bool:
        client = self._client
        if client is None or not self._number:
            return False
        told = client.publish(f"{self._mqtt.prefix}/{topic}", payload, qos=1, retain=True)
        return told.rc == MQTTErrorCode.MQTT_ERR_SUCCESS

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        backoff = Backoff()
        while not self._ended.is_set():
            try:
                self._one_connection()
                backoff.reset()
            except DriftboxError as error:
                if error.message != self.problem:
                    log.warning("mqtt: %s (%s)", error.message, error.remedy)
                self.problem = error.message
            self._number = 0
            self._wake()
            while not self._ended.is_set() and not backoff.is_over(time.monotonic()):
                self._ended.wait(0.1)

    def _one_connection(self) -> None:
        """Returns when it is over. Raises EnvironmentLacking when it could not be made."""
        self._lost.clear()
        client, answered = make_client(self._mqtt, self._client_id), threading.Event()
        outcome: list[DriftboxError] = []

        def on_connect(_: paho.Client, __: Any, ___: Any, reason: ReasonCode, ____: Any) -> None:
            if reason.is_failure:
                outcome.append(refused(self.where, reason))
                answered.set()
                return
            client.subscribe([(f"{self._mqtt.prefix}/{topic}", 1) for topic in SUBSCRIPTIONS])

        def on_subscribe(*_: Any) -> None:
            answered.set()

        def on_fail(*_: Any) -> None:
            outcome.append(current_failure(self.where))
            answered.set()

        def on_disconnect(*_: Any) -> None:
            self._lost.set()
            answered.set()

        client.on_connect, client.on_subscribe, client.on_message = on_connect, on_subscribe, self._heard
        client.on_connect_fail, client.on_disconnect = on_fail, on_disconnect
        client.connect_async(self._mqtt.host, self._mqtt.port, keepalive=KEEPALIVE_S)
        client.loop_start()
        try:
            in_time = answered.wait(ANSWER_S)
            if outcome or not in_time or self._lost.is_set():
                raise outcome[0] if outcome else no_answer(self._mqtt, None if in_time else ANSWER_S)
            self._client, self.problem = client, ""
            self._made += 1
            self._number = self._made
            log.info("mqtt: connected to %s", self.where)
            self._wake()
            self._lost.wait()
        finally:
            self._number, self._client = 0, None
            quietly(client.disconnect)
            quietly(client.loop_stop)

    def _heard(self, _: paho.Client, __: Any, message: paho.MQTTMessage) -> None:
        topic = message.topic.removeprefix(f"{self._mqtt.prefix}/")
        self._incoming.append(Incoming(topic=topic, payload=bytes(message.payload), retained=bool(message.retain)))
        self._wake()


#: Below the prefix: what boxes say, what we and other controllers say.
SUBSCRIPTIONS = ("+/+/report", "+/+/availability", "+/+/desired", "fleet/controller")
