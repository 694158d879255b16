"""Publishing to an MQTT broker. What the broker has not acknowledged waits in SQLite; a broker that is down costs the box nothing.

One thread does all: it looks at the status once a second, puts what is new and what others told (`tell`, `send`) into the outbox, and
hands the outbox to the broker while connected. At most `connection.WINDOW` messages are on their way; the others stay on disk. QoS 1:
everything arrives at least once, in order. After a broken connection what was on its way is sent again from the outbox, with the same
`event_id`. The outbox is bounded; when it is full the oldest events go, counted, and the consumers are told how many.

A broker that accepts messages and never acknowledges them is left after ACK_WAIT_S, and tried again like one that is gone.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import MQTTErrorCode
from paho.mqtt.reasoncodes import ReasonCode

from configs.errors import DriftboxError, StorageError
from configs.schema import MqttSection
from edge.objects.types import ObjectEvent
from edge.status import StatusSource
from edge.store.outbox import Message, Outbox, Waiting
from edge.telemetry.announce import Announcer
from edge.telemetry.connection import (
    KEEPALIVE_S,
    WINDOW,
    Backoff,
    certificate_trouble,
    current_failure,
    is_unsupported,
    make_client,
    no_answer,
    probe,
    quietly,
    refused,
    where_of,
    window_of,
)
from edge.telemetry.topics import OFFLINE, ONLINE, Changes, EventIds, Topics
from streams.pulse import Pulse

__all__ = ["Incoming", "MqttPublisher", "probe"]

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
#: Least time between two looks at the status, however much happens.
LOOK_LEAST_S = 0.1
#: Least time between two rounds: what happens together is written together.
ROUND_S = 0.005
#: Messages written to the database together.
TOGETHER = 1000
#: A broker that acknowledges nothing for so long is left.
ACK_WAIT_S = 30.0
#: How long `stop` waits for the last messages.
FAREWELL_S = 2.0
#: Events kept in memory while the database refuses them (disk full).
MEMORY_MAX = 100_000

#: (topic, payload, retained by the broker, delivered before) of a message to the box. Called by paho's thread: must return at once.
Incoming = Callable[[str, bytes, bool, bool], None]


class Link:
    """One connection: a client, and what is on its way over it. Its callbacks come from paho's thread; they only note down."""

    def __init__(self, client: paho.Client) -> None:
        self.client = client
        self.on_the_way: dict[int, Waiting] = {}  # paho's number -> what; of the publisher's thread only
        self.acknowledged: deque[int] = deque()
        self.window = WINDOW
        self.up = self.lost = self.answered = self.unsupported = False
        self.progress_s = 0.0  # when it was last seen to acknowledge, or to have nothing on its way

    def settled(self) -> list[Waiting]:
        """What was acknowledged since the last call. Numbers that are not ours (birth messages) are forgotten."""
        numbers = [self.acknowledged.popleft() for _ in range(len(self.acknowledged))]
        return [self.on_the_way.pop(number) for number in numbers if number in self.on_the_way]

    def close(self) -> None:
        quietly(self.client.disconnect)
        quietly(self.client.loop_stop)


class MqttPublisher:
    """Publishes what `source` tells until `stop`. No method blocks on the broker; `start` never fails because it is down.

    incoming, subscriptions: who hears what comes from the broker, and which topics. announcer: tells Home Assistant. name: in the log;
    wanted: topics of the status that are told there (events and stats have topics too), None: all."""

    def __init__(
        self,
        mqtt: MqttSection,
        *,
        site: str,
        box: str,
        source: StatusSource,
        outbox: Outbox,
        announcer: Announcer | None = None,
        incoming: Incoming | None = None,
        subscriptions: Sequence[str] = (),
        name: str = "mqtt",
        wanted: Callable[[str], bool] | None = None,
        look_every_s: float = LOOK_EVERY_S,
        ack_wait_s: float = ACK_WAIT_S,
        utc: Callable[[], float] = time.time,
    ) -> None:
        self.topics = Topics(prefix=mqtt.prefix, site=site, box=box)
        self.changes = Changes(self.topics, EventIds(utc()))
        self._mqtt, self._source, self._outbox, self._announcer = mqtt, source, outbox, announcer
        self._incoming, self._subscriptions = incoming, tuple(subscriptions)
        self._name, self._wanted = name, wanted
        self._look_every_s, self._ack_wait_s, self._utc = look_every_s, ack_wait_s, utc
        self._client_id = mqtt.client_id or f"driftbox-{site}-{box}"[:120]
        self._protocol = mqtt.protocol
        self._told: deque[ObjectEvent | Message] = deque(maxlen=MEMORY_MAX)
        self._forgotten = 0  # told, and dropped before the outbox had them
        self._stored: list[Message] = []  # about to be put into the outbox
        self._forget, self._reborn = threading.Event(), threading.Event()
        self._doubted: deque[str] = deque(maxlen=1000)  # states to be told again
        self._link = self._make_link()  # raises when a password or a file cannot be used
        self._backoff = Backoff()
        self._said: str | None = None  # last thing logged about the connection
        self._full_said = False
        self._wake, self._look_now, self._stopping = threading.Event(), threading.Event(), threading.Event()
        self._pulse = Pulse(time.monotonic)
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)

    # --- from any thread ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._warn_of_certificate()
        self._open()
        self._thread.start()

    def is_alive(self) -> bool:
        """Whether its thread does what it should: it runs, or was told to end, or has not begun."""
        return self._stopping.is_set() or self._thread.ident is None or self._thread.is_alive()

    def silent_s(self) -> float:
        """See `streams.pulse`."""
        return 0.0 if self._stopping.is_set() else self._pulse.silent_s()

    def begin_anew(self) -> None:
        """Another thread for one that has died. One that hangs cannot be replaced, for only one may use the outbox: RuntimeError."""
        if self._thread.is_alive():
            raise RuntimeError("the thread of telemetry hangs; only a restart of the box replaces it")
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Look now: something happened that should be told at once."""
        self._look_now.set()
        self._wake.set()

    def tell(self, event: ObjectEvent) -> None:
        """An object came, moved on or went. Returns at once."""
        self._accept(event)

    def send(self, message: Message) -> None:
        """Something else to publish. Returns at once."""
        self._accept(message)

    def doubt(self, topic: str) -> None:
        """Somebody may believe another state of a topic than the true one: it is told again."""
        self._doubted.append(topic)
        self.wake()

    def announce_again(self) -> None:
        """Home Assistant was reborn."""
        self._reborn.set()
        self.wake()

    @property
    def connected(self) -> bool:
        return self._link.up and not self._link.lost

    @property
    def trouble(self) -> str:
        """Why there is no connection, in words; '' there is one, or none was tried yet."""
        return "" if self.connected else self._said or ""

    @property
    def backlog(self) -> int:
        """Messages that were told and are not in the database yet."""
        return len(self._told) + len(self._stored)

    def stop(self) -> None:
        """Tells what is left, says `offline` and disconnects; takes at most a few seconds, also without a broker."""
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(FAREWELL_S + self._look_every_s)
        if self.connected:
            farewell = self._link.client.publish(self.topics.of_box("availability"), OFFLINE, qos=1, retain=True)
            self._wait(farewell.is_published)
        self._link.close()

    def _accept(self, thing: ObjectEvent | Message) -> None:
        if len(self._told) == MEMORY_MAX:
            self._forgotten += 1
            self._complain_of_full()
        self._told.append(thing)
        self._wake.set()

    # --- our thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        looked_s = time.monotonic()  # a connection may stand by the first look
        while not self._stopping.is_set():
            self._pulse.beat()
            every_s = LOOK_LEAST_S if self._look_now.is_set() else self._look_every_s
            self._wake.wait(max(0.0, looked_s + every_s - time.monotonic()))
            self._wake.clear()
            every_s = LOOK_LEAST_S if self._look_now.is_set() else self._look_every_s
            due = time.monotonic() >= looked_s + every_s
            if due:
                self._look_now.clear()
                looked_s = time.monotonic()
            self._guarded(self.look if due else self.pump)
            self._stopping.wait(ROUND_S)
        self._wait(self._is_settled)

    def _guarded(self, work: Callable[[], object]) -> None:
        try:
            work()
        except StorageError as error:
            self._say(f"messages wait in memory: {error}", logging.WARNING)
        except Exception:  # telemetry must never end, whatever a status holds
            log.exception("%s: a look at the box failed", self._name)

    def look(self) -> None:
        """One round: what is new goes into the outbox, the outbox goes to the broker."""
        self.pump()  # what could not be stored goes first; while that fails, nothing is added to it
        if self._forget.is_set():
            self._forget.clear()
            self._reborn.set()
            self.changes.forget()
        if self._reborn.is_set():
            self._reborn.clear()
            if self._announcer is not None:
                self._announcer.forget()
        while self._doubted:
            self.changes.forget_topic(self._doubted.popleft())
        status = self._source.status()
        self._stored += [m for m in self.changes.messages(status) if self._wanted is None or self._wanted(m.topic)]
        if self._announcer is not None:
            self._stored += self._announcer.messages(status)
            if self._announcer.told_devices:
                self.changes.devices_announced(status.now_utc)
        self._tell_lost()
        self.pump()
        self._watch_link()

    def pump(self) -> None:
        """What was told goes to disk, from there to the broker, and what arrived leaves the disk."""
        self._store()
        while self._told:
            for _ in range(min(len(self._told), TOGETHER)):
                thing = self._told.popleft()
                self._stored.append(self.changes.object_event(thing) if isinstance(thing, ObjectEvent) else thing)
            self._store()
        self._settle()
        self._send()

    def _store(self) -> None:
        if self._stored and self._outbox.put(self._stored, at_utc=self._utc()):
            self._complain_of_full()
        self._stored = []

    def _complain_of_full(self) -> None:
        if not self._full_said:
            self._full_said = True
            log.warning("%s: the outbox is full, the oldest events are dropped until the broker is back", self._name)

    def _tell_lost(self) -> None:
        """Says what is missing, once there is somebody to say it to and room to say it: in a full outbox it would push out an event."""
        if not self.connected or not self._outbox.has_room:
            return
        lost, self._forgotten = self._outbox.lost() + self._forgotten, 0
        if not lost:
            return
        log.warning("%s: %d messages were dropped while the broker was away", self._name, lost)
        self._full_said = False
        self._stored.append(self.changes.event(None, self._utc(), {"kind": "lost", "messages": lost}))
        self._outbox.forget_lost()

    def _send(self) -> None:
        link = self._link
        if not self.connected:
            return
        if not link.on_the_way:
            link.progress_s = time.monotonic()
        for waiting in self._outbox.take(link.window - len(link.on_the_way)):
            message = waiting.message
            info = link.client.publish(message.topic, message.payload, qos=1, retain=message.retain)
            # Also when the connection was lost just now: the outbox has it, and the next connection begins there.
            link.on_the_way[info.mid] = waiting
            if info.rc not in (MQTTErrorCode.MQTT_ERR_SUCCESS, MQTTErrorCode.MQTT_ERR_NO_CONN):
                link.lost = True

    def _settle(self) -> None:
        settled = self._link.settled()
        if settled:
            self._link.progress_s = time.monotonic()
            self._outbox.acknowledge(settled)

    def _is_settled(self) -> bool:
        """Everything was acknowledged, or nobody is there who could."""
        if not self.connected:
            return True
        try:
            self.pump()
        except StorageError:
            return True
        return not self._link.on_the_way

    def _wait(self, condition: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + FAREWELL_S
        while not condition() and time.monotonic() < deadline_s:
            time.sleep(0.02)

    # --- the connection -----------------------------------------------------------------------------------------------

    def _watch_link(self) -> None:
        """Leaves a connection that is dead or deaf, and makes a new one after a pause."""
        link, now_s = self._link, time.monotonic()
        if link.up and not link.lost and link.on_the_way and now_s - link.progress_s > self._ack_wait_s:
            self._say(
                f"the broker {where_of(self._mqtt)} takes messages and acknowledges none for {self._ack_wait_s:g} s; connecting anew",
                logging.WARNING,
            )
            link.lost = True
        if not link.lost or not self._backoff.is_over(now_s):
            return
        link.close()
        self._link = self._make_link()
        self._outbox.rewind()
        self._open()

    def _open(self) -> None:
        self._link.client.connect_async(self._mqtt.host, self._mqtt.port, keepalive=KEEPALIVE_S)
        self._link.client.loop_start()

    def _make_link(self) -> Link:
        client = make_client(self._mqtt, self._client_id, protocol=self._protocol)
        link = Link(client)
        client.will_set(self.topics.of_box("availability"), OFFLINE, qos=1, retain=True)

        def on_connect(client: paho.Client, data: Any, flags: Any, reason: ReasonCode, properties: Any) -> None:
            self._on_connect(link, reason, properties)

        def on_disconnect(client: paho.Client, data: Any, flags: Any, reason: ReasonCode, properties: Any) -> None:
            self._on_disconnect(link)

        def on_publish(client: paho.Client, data: Any, mid: int, reason: ReasonCode, properties: Any) -> None:
            link.acknowledged.append(mid)
            # Room for more is made by the half: a round for every message would be slow.
            if 2 * len(link.acknowledged) >= min(link.window, len(link.on_the_way)):
                self._wake.set()

        def on_message(client: paho.Client, data: Any, message: paho.MQTTMessage) -> None:
            self._on_message(message)

        client.on_connect, client.on_disconnect = on_connect, on_disconnect
        client.on_publish, client.on_message = on_publish, on_message
        client.on_connect_fail = lambda *_: self._on_connect_fail(link)
        return link

    def _warn_of_certificate(self) -> None:
        trouble = certificate_trouble(self._mqtt, self._utc())
        if trouble:
            log.warning("%s: %s", self._name, trouble)

    # --- paho's thread ------------------------------------------------------------------------------------------------

    def _on_connect(self, link: Link, reason: ReasonCode, properties: Any) -> None:
        where, link.answered = where_of(self._mqtt), True
        if reason.is_failure:
            link.unsupported = is_unsupported(reason)
            self._say_error(refused(where, reason))
            return
        link.client.publish(self.topics.of_box("availability"), ONLINE, qos=1, retain=True)
        if self._subscriptions and self._incoming is not None:
            link.client.subscribe([(topic, 1) for topic in self._subscriptions])
        link.window, link.progress_s, link.up = window_of(properties), time.monotonic(), True
        self._backoff.reset()
        self._forget.set()
        self._say(f"connected to the broker {where}", logging.INFO)
        self.wake()

    def _on_connect_fail(self, link: Link) -> None:
        self._say_error(current_failure(where_of(self._mqtt)))
        link.lost = True

    def _on_disconnect(self, link: Link) -> None:
        where = where_of(self._mqtt)
        if self._protocol == "5" and (link.unsupported or not link.answered):
            # Some brokers say that they do not know MQTT 5, others hang up or say nothing.
            self._protocol = "3.1.1"
            self._say(f"the broker {where} does not take MQTT 5; trying 3.1.1", logging.WARNING)
        elif link.up and not self._stopping.is_set():
            self._say(f"the broker {where} is gone; messages wait", logging.WARNING)
        elif not link.answered and not self._stopping.is_set():
            self._say_error(no_answer(self._mqtt, None))
        link.lost = True
        self._wake.set()

    def _on_message(self, message: paho.MQTTMessage) -> None:
        if self._incoming is None:
            return
        try:
            self._incoming(message.topic, message.payload, bool(message.retain), bool(message.dup))
        except UnicodeDecodeError:  # a topic that is no text: nobody means us
            return
        except DriftboxError as error:
            log.warning("%s: %s", self._name, error)
        except Exception:  # what a stranger sends must not end the connection
            log.exception("%s: a message to the box failed", self._name)

    def _say_error(self, error: DriftboxError) -> None:
        """With its remedy, which speaks of the configuration: only the house's own broker stands there."""
        self._say(str(error) if self._name == "mqtt" else error.message, logging.WARNING)

    def _say(self, text: str, level: int) -> None:
        """Logs a change of the connection once, however often it is tried."""
        if self._said != text:
            self._said = text
            log.log(level, "%s: %s", self._name, text)
