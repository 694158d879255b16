"""The controller's own broker, for a fleet that has none: the box's embedded one (`edge.telemetry.embedded_broker`) with other doors.

Boxes come over TLS with their certificates; the controller over loopback. It keeps retained messages in memory only: the controller
tells everything again after every connection, and boxes do so too.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cluster.controller.authority import Authority
from cluster.controller.broker_rules import CONTROLLER_USER
from configs.files import atomic_write
from configs.schema import MqttSection, Secret
from edge.telemetry.embedded_broker import EmbeddedBroker

_RULES = "cluster.controller.broker_rules"


class FleetBroker(EmbeddedBroker):
    """host, port: where boxes reach it."""

    def __init__(self, authority: Authority, folder: Path, *, host: str, port: int, prefix: str) -> None:
        mqtt = MqttSection.model_validate(
            {"enabled": True, "broker": "embedded", "port": port, "prefix": prefix, "embedded": {"listen": host}}
        )
        super().__init__(mqtt, folder)
        self._authority, self._secret, self._prefix = authority, secrets.token_urlsafe(24), prefix
        self._revoked_file = folder / "revoked"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def reached_by(self) -> MqttSection:
        own = {"username": CONTROLLER_USER, "password": Secret(self._secret)}
        return self._mqtt.model_copy(update={"host": "127.0.0.1", "port": self.own_port, "protocol": "3.1.1", **own})

    def refuse(self, fingerprints: Iterable[str]) -> None:
        """Certificates that open nothing any more; connections that stand by them end at once."""
        text = "\n".join(sorted(fingerprints))
        if not self._revoked_file.exists() or self._revoked_file.read_text(encoding="ascii") != text:
            atomic_write(self._revoked_file, text.encode())

    def _orders(self) -> dict[str, Any]:
        rules = {"prefix": self._prefix, "secret": self._secret, "revoked": str(self._revoked_file.absolute())}
        orders = super()._orders()
        orders["outer"] |= {
            "ssl": True, "certfile": str(self._authority.server_cert_file.absolute()),
            "keyfile": str(self._authority.server_key_file.absolute()), "cafile": str(self._authority.cert_file.absolute()),
        }  # fmt: skip
        return orders | {"plugins": {f"{_RULES}.{name}": rules for name in ("FleetAuth", "FleetTopics", "FleetSessions")}}
