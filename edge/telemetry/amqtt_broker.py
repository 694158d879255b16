"""amqtt 0.12 as our broker, put right in five places. Imported in the broker's own process only (`edge.telemetry.embedded_broker`).

Its sessions are found by client id before anybody has asked who is there: whoever knew another's client id could end that one's
connection, make the broker drop its subscriptions and put a will in its place, without so much as a password. Here who comes is known
first, and sessions are kept by user and client id.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import amqtt.broker
from amqtt.adapters import ReaderAdapter, WriterAdapter
from amqtt.broker import Broker, BrokerContext
from amqtt.errors import MQTTError
from amqtt.mqtt.connack import NOT_AUTHORIZED, ConnackPacket
from amqtt.mqtt.protocol.broker_handler import BrokerProtocolHandler
from amqtt.plugins.manager import PluginManager
from amqtt.session import Session


class KnownFirst(BrokerProtocolHandler):
    """Who is not let in never comes near a session; who is gets one of his own, whatever client id he calls himself by."""

    @classmethod
    async def init_from_connect(
        cls, reader: ReaderAdapter, writer: WriterAdapter, plugins_manager: PluginManager[BrokerContext],
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> tuple[BrokerProtocolHandler, Session]:  # fmt: skip
        handler, session = await super().init_from_connect(reader, writer, plugins_manager, loop)
        words = (await plugins_manager.map_plugin_auth(session=session)).values()
        verdicts = [word for word in words if word is not None]
        if not verdicts or not all(verdicts):  # as amqtt asks
            await ConnackPacket.build(0, NOT_AUTHORIZED).to_stream(writer)
            raise MQTTError("not let in")  # its caller closes the connection
        session.client_id = json.dumps([session.username, session.client_id])
        return handler, session


class OwnBroker(Broker):
    """served: is told of every TLS listener's context and the files of its certificate and key."""

    def __init__(self, config: dict[str, Any], served: Callable[[ssl.SSLContext, Path, Path], None]) -> None:
        amqtt.broker.BrokerProtocolHandler = KnownFirst  # it takes the class from its module
        self._told = served
        super().__init__(config)

    async def _authenticate(self, session: Session, _: Any) -> bool:
        """It was asked before there was a session (`KnownFirst`)."""
        return True

    async def _publish_retained_messages_for_subscription(self, subscription: tuple[str, int], session: Session) -> None:
        """It sends a client that connects the retained messages of everybody's subscriptions, its rights unasked."""
        if any(holder is session for holder, _ in self._subscriptions.get(subscription[0], ())):
            await super()._publish_retained_messages_for_subscription(subscription, session)

    async def _initialize_client_session(
        self, reader: ReaderAdapter, writer: WriterAdapter, remote_address: str, remote_port: int
    ) -> tuple[BrokerProtocolHandler, Session]:
        """A client that comes back to a session which was kept is taken for whoever had it last: by that one's certificate. One that is
        not let in and has gone meanwhile is an unhandled error with a traceback in the log, and its place is never given back."""
        try:
            handler, session = await super()._initialize_client_session(reader, writer, remote_address, remote_port)
        except OSError as error:
            raise MQTTError(f"gone before it was let in: {error}") from error
        session.ssl_object = writer.get_ssl_info()
        return handler, session

    def _create_ssl_context(self, listener: Any) -> ssl.SSLContext:
        """It reads the certificate once."""
        context = Broker._create_ssl_context(listener)
        self._told(context, Path(listener["certfile"]), Path(listener["keyfile"]))
        return context
