"""Plug-in of the embedded broker (amqtt loads it by name): who comes in, and which topics are whose.

A box comes in by its certificate (TLS), which must be of the fleet's authority, in its time and not revoked; it is the user of its
common name whatever it calls itself. It says and hears what is under `<prefix>/<any site>/<box>/`, and hears
`<prefix>/fleet/controller`.
The controller comes in on loopback with a password and may everything. Nobody else comes in. The list of revoked certificates is a file
that is read at every connection; when it changes, connections that stand by such a certificate end at once, and boxes' wills are told.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from dataclasses import dataclass
from pathlib import Path

from amqtt.contexts import Action
from amqtt.plugins.base import BaseAuthPlugin, BasePlugin, BaseTopicPlugin
from amqtt.session import Session
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import NameOID

from edge.certificates import read_certificate

CONTROLLER_USER = "driftbox-fleet"
#: Between two looks whether somebody was sent away.
LOOK_S = 0.2


@dataclass
class _Rules:
    """prefix; secret: of the controller; revoked: file with hex SHA-256, one per line."""

    prefix: str = "driftbox"
    secret: str = ""
    revoked: str = ""


def box_of(der: bytes, revoked: frozenset[str], now_utc_s: float) -> str | None:
    """Whose certificate it is; None: it opens nothing. That our authority made it was checked by TLS."""
    try:
        cert = read_certificate(der)
        names = cert.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    except ValueError:
        return None
    in_time = cert.not_valid_before_utc.timestamp() <= now_utc_s < cert.not_valid_after_utc.timestamp()
    if not names or not in_time or cert.fingerprint(hashes.SHA256()).hex() in revoked:
        return None
    return str(names[0].value)


def may(user: str, topic: str, action: Action, prefix: str) -> bool:
    """Whether a user may say (publish) or hear (subscribe, receive) a topic, which may be a filter."""
    if user == CONTROLLER_USER:
        return True
    if not topic.startswith(f"{prefix}/"):
        return False
    parts = topic[len(prefix) + 1 :].split("/")
    if parts == ["fleet", "controller"]:
        return action is not Action.PUBLISH
    return len(parts) > 2 and parts[0] not in ("+", "#") and parts[1] == user


class FleetAuth(BaseAuthPlugin):
    """See the module."""

    @dataclass
    class Config(_Rules):
        pass

    async def authenticate(self, *, session: Session) -> bool | None:
        rules = self.context.config
        if session.username == CONTROLLER_USER:
            given = session.password or ""
            return (
                session.ssl_object is None and bool(rules.secret) and hmac.compare_digest(given.encode(), rules.secret.encode())
            )
        box = _box_at(session, rules.revoked)
        session.username = box or "nobody"  # sessions are kept by it (`edge.telemetry.amqtt_broker`)
        # What a broker tells for a box that is gone is checked by nobody later.
        wills = not session.will_flag or may(session.username, session.will_topic or "", Action.PUBLISH, rules.prefix)
        return box is not None and wills


class FleetTopics(BaseTopicPlugin):
    """See the module."""

    @dataclass
    class Config(_Rules):
        pass

    async def topic_filtering(
        self, *, session: Session | None = None, topic: str | None = None, action: Action | None = None
    ) -> bool | None:
        if session is None or not topic or action is None:
            return False
        return may(session.username or "", topic, action, self.context.config.prefix)


class FleetSessions(BasePlugin):
    """Ends what stands by a certificate that is revoked."""

    @dataclass
    class Config(_Rules):
        pass

    _task: asyncio.Task[None] | None = None

    async def on_broker_post_start(self) -> None:
        self._task = asyncio.create_task(self._watch())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _watch(self) -> None:
        path, seen = self.context.config.revoked, frozenset[str]()
        while True:
            revoked = _revoked(path)
            if revoked != seen:
                seen = revoked
                await self._end_those_of(path)
            await asyncio.sleep(LOOK_S)

    async def _end_those_of(self, path: str) -> None:
        broker = self.context._broker_instance  # what amqtt gives plugins can find a session, and not end it
        for client, (session, handler) in list(broker.sessions.items()):
            if session.ssl_object is not None and _box_at(session, path) is None:
                await handler.handle_connection_closed()  # as if it had broken: its will is told, nothing more is heard
                await broker._delete_session(client)


def _box_at(session: Session, revoked_file: str) -> str | None:
    """Whose certificate the other end of a connection has shown; None: none that opens anything."""
    der = session.ssl_object.getpeercert(binary_form=True) if session.ssl_object is not None else None
    return box_of(der, _revoked(revoked_file), time.time()) if der else None


def _revoked(path: str) -> frozenset[str]:
    try:
        return frozenset(Path(path).read_text(encoding="ascii").split())
    except OSError:
        return frozenset()
