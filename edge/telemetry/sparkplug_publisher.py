"""The box as a Sparkplug B edge node, over a connection of its own: a connection has one will, and Sparkplug's is its NDEATH.

Nothing is stored while the broker is away: after every connection the births tell all there is (the specification's store and forward
needs a primary host, which we do not look for).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.reasoncodes import ReasonCode

from configs.errors import StorageError
from configs.schema import MqttSection
from edge.status import StatusSource
from edge.store.outbox import Outbox
from edge.telemetry.commands import Allowance
from edge.telemetry.connection import KEEPALIVE_S, Backoff, current_failure, make_client, quietly, refused, where_of
from edge.telemetry.sparkplug import Node, wishes

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
FAREWELL_S = 2.0
#: Births that are asked for are told this often.
REBIRTH_EVERY_S = 5.0
_BDSEQ = "bdseq"


class SparkplugPublisher:
    """See the module. ask: gets commands that came as DCMD (`Commands.ask`); None: nobody listens to them. outbox: has `bdSeq`."""

    def __init__(
        self,
        mqtt: MqttSection,
        *,
        site: str,
        box: str,
        source: StatusSource,
        outbox: Outbox,
        ask: Callable[[str, Mapping[str, Any]], None] | None = None,
        look_every_s: float = LOOK_EVERY_S,
        utc: Callable[[], float] = time.time,
    ) -> None:
        self.node = Node(group=mqtt.sparkplug_group or site, name=box, bdseq=int(outbox.fact(_BDSEQ) or 255))
        self._mqtt, self._source, self._outbox, self._ask = mqtt, source, outbox, ask
        self._client_id = f"{mqtt.client_id or f'driftbox-{site}-{box}'}-spb"[:128]
        self._look_every_s, self._utc = look_every_s, utc
        self._backoff, self._rebirths = Backoff(), Allowance(1.0, 1.0 / REBIRTH_EVERY_S, time.monotonic)
        self._up = self._lost = self._reborn = False
        self._said = ""
        self._stopping = threading.Event()
        self._client = self._make_client()
        self._thread = threading.Thread(target=self._run, name="sparkplug", daemon=True)

    def start(self) -> None:
        self._open()
        self._thread.start()

    def stop(self) -> None:
        """Says that the node is gone, and disconnects; takes a few seconds at most."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(FAREWELL_S + self._look_every_s)
        if self._up and not self._lost:
            death = self.node.death(self._utc())
            farewell = self._client.publish(death.topic, death.payload, qos=1)
            quietly(lambda: farewell.wait_for_publish(FAREWELL_S))
        self._close()

    # --- our thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stopping.wait(self._look_every_s):
            try:
                self.look()
            except Exception:  # telemetry must never end, whatever a status holds
                log.exception("sparkplug: a look at the box failed")

    def look(self) -> None:
        """One round."""
        if self._lost:
            if self._backoff.is_over(time.monotonic()):
                self._close()
                self._client = self._make_client()
                self._open()
            return
        if not self._up:
            return
        if self._reborn:
            self._reborn = False
            self.node.rebirth()
        for message in self.node.messages(self._source.status()):
            self._client.publish(message.topic, message.payload, qos=0)

    def _make_client(self) -> paho.Client:
        self._up = self._lost = False
        self.node.connecting()
        try:
            self._outbox.remember(_BDSEQ, str(self.node.bdseq))
        except StorageError as error:  # the next start may use a number again: nobody is harmed
            self._say(f"bdSeq is not remembered: {error}")
        client = make_client(self._mqtt, self._client_id, protocol="3.1.1")
        death = self.node.death(self._utc())
        client.will_set(death.topic, death.payload, qos=1)
        client.on_connect, client.on_message = self._on_connect, self._on_message
        client.on_disconnect = lambda *_: self._on_lost("the broker is gone")
        client.on_connect_fail = lambda *_: self._on_lost(str(current_failure(where_of(self._mqtt))))
        return client

    def _open(self) -> None:
        self._client.connect_async(self._mqtt.host, self._mqtt.port, keepalive=KEEPALIVE_S)
        self._client.loop_start()

    def _close(self) -> None:
        quietly(self._client.disconnect)
        quietly(self._client.loop_stop)

    # --- paho's thread ------------------------------------------------------------------------------------------------

    def _on_connect(self, client: paho.Client, data: Any, flags: Any, reason: ReasonCode, properties: Any) -> None:
        if reason.is_failure:
            self._say(str(refused(where_of(self._mqtt), reason)))
            return
        commands = [(self.node.topic("DCMD", "+"), 1)] if self._ask is not None else []
        client.subscribe([(self.node.topic("NCMD"), 1), *commands])
        self._backoff.reset()
        self._up, self._said = True, ""
        log.info("sparkplug: connected as %s/%s", self.node.group, self.node.name)

    def _on_lost(self, why: str) -> None:
        if not self._stopping.is_set() and not self._lost:
            self._say(why)
        self._lost = True

    def _on_message(self, client: paho.Client, data: Any, message: paho.MQTTMessage) -> None:
        if message.retain:
            return  # it would be obeyed again at every connection
        try:
            rebirth, commands = wishes(self.node, message.topic, message.payload)
        except (ValueError, UnicodeDecodeError):
            self._say("a command is no Sparkplug payload")
            return
        if rebirth and self._rebirths.take():
            self._reborn = True
        for command, arguments in commands:
            if self._ask is not None:
                self._ask(command, arguments)

    def _say(self, text: str) -> None:
        if text != self._said:
            self._said = text
            log.warning("sparkplug: %s", text)
