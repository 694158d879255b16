"""Section `telemetry`: what the box tells other systems, and what it is told by them."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Literal, Self

from pydantic import field_validator, model_validator
from pydantic_core import PydanticCustomError

from configs.schema.base import Section, setting
from configs.schema.secret import Secret


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine can reach an address; a name other than localhost is not looked up."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class BrokerUser(Section):
    """Somebody who may use the embedded broker."""

    name: str = setting(text="Name.", max_length=100, example="homeassistant")
    password: Secret = setting(text="Password: `env:NAME` or `file:PATH`.", example="env:MQTT_PASSWORD")

    @field_validator("name")
    @classmethod
    def _fits_a_line(cls, value: str) -> str:
        if not value or not value.isprintable() or ":" in value or value.startswith("#"):
            raise PydanticCustomError("name", "must be one printable line without ':', and not begin with '#'")
        return value


class EmbeddedBrokerSection(Section):
    """The broker that comes with the box, for who has none (docs/mqtt.md). It speaks MQTT 3.1.1 and listens on `telemetry.mqtt.port`."""

    listen: str = setting("127.0.0.1", text="Address it listens on. Beyond this machine it wants `users`.", max_length=253)
    users: tuple[BrokerUser, ...] = setting(
        (), text="Who may connect. Empty: every program of this machine, without a password."
    )
    cert_file: Path | None = setting(
        None, text="Certificate (PEM) with which it proves itself: it then speaks TLS only.", default_text="none: no TLS"
    )
    key_file: Path | None = setting(None, text="Key of that certificate (PEM).", default_text="none")

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if (self.cert_file is None) != (self.key_file is None):
            raise PydanticCustomError("pair", "cert_file and key_file belong together: give both or none")
        names = [user.name for user in self.users]
        if len(set(names)) < len(names):
            raise PydanticCustomError("users", "every user needs a name of its own")
        if not self.users and not is_loopback(self.listen):
            raise PydanticCustomError("users", "a broker that others can reach needs users with passwords")
        return self


class MqttSection(Section):
    """Publishing to an MQTT broker; see docs/mqtt.md for the topics."""

    enabled: bool = setting(False, text="Publish to a broker.")
    broker: Literal["external", "embedded"] = setting(
        "external", text="`external`: the broker at `host`; `embedded`: one of the box's own, see `telemetry.mqtt.embedded`."
    )
    host: str = setting("127.0.0.1", text="Host name or address of the broker.")
    port: int = setting(1883, unit="port", ge=1, le=65535, text="TCP port of the broker (8883 is usual with TLS).")
    username: str | None = setting(None, text="User at the broker.", default_text="none")
    password: Secret | None = setting(
        None,
        text="Password at the broker: `env:NAME` or `file:PATH`; plain text works but stands in the file.",
        default_text="none",
    )
    client_id: str | None = setting(
        None, text="Client id at the broker, unique there.", max_length=120, default_text="driftbox-SITE-BOX"
    )
    protocol: Literal["3.1.1", "5"] = setting(
        "3.1.1", text="Version of MQTT. A broker that does not know 5 is spoken to in 3.1.1, and the log says so."
    )
    prefix: str = setting("driftbox", text="First part of every topic.", max_length=100)
    tls: bool = setting(False, text="Encrypt, and check the broker's certificate.")
    ca_file: Path | None = setting(
        None, text="Authorities (PEM) that the broker's certificate is checked against.", default_text="the system's"
    )
    cert_file: Path | None = setting(
        None, text="Certificate (PEM) with which the box proves itself to the broker.", default_text="none"
    )
    key_file: Path | None = setting(None, text="Key of that certificate (PEM).", default_text="none")
    key_password: Secret | None = setting(
        None, text="Password of an encrypted `key_file`: `env:NAME` or `file:PATH`.", default_text="none"
    )
    commands: Literal["auto", "always", "never"] = setting(
        "auto",
        text="Obey commands that come over MQTT. `auto`: when the box itself proves who it is to the broker (a username or a"
        " certificate; the embedded broker: `users`), for then the broker knows who else may publish.",
    )
    discovery: bool = setting(True, text="Announce the box and its cameras to Home Assistant.")
    discovery_prefix: str = setting("homeassistant", text="First part of Home Assistant's discovery topics.", max_length=100)
    sparkplug: bool = setting(False, text="Tell the same as a Sparkplug B edge node, over a connection of its own.")
    sparkplug_group: str | None = setting(
        None, text="Group of that node.", max_length=100, default_text="box.site", example="plant-3"
    )
    outbox_messages: int = setting(
        200_000, unit="messages", ge=1_000, le=10_000_000, text="Most that waits for the broker; then the oldest events go."
    )
    outbox_mib: int = setting(
        128, unit="MiB", ge=1, le=10_240, text="The same in bytes of topics and payloads, in the box's database."
    )
    embedded: EmbeddedBrokerSection = setting(
        default_factory=EmbeddedBrokerSection, text="The box's own broker; only with `broker: embedded`."
    )

    @property
    def proves_itself(self) -> bool:
        """Whether the broker learns who the box is, and so has a notion of who may do what."""
        if self.broker == "embedded":
            return bool(self.embedded.users)
        return self.username is not None or self.cert_file is not None

    @property
    def obeys(self) -> bool:
        """Whether commands that come over MQTT are carried out."""
        return self.commands == "always" or (self.commands == "auto" and self.proves_itself)

    @field_validator("prefix", "discovery_prefix")
    @classmethod
    def _topic(cls, value: str) -> str:
        if not value or any(letter in value for letter in "+#\0") or value.startswith(("/", "$")) or value.endswith("/"):
            raise PydanticCustomError("topic", "must be a topic without '+', '#', leading '$' and leading or trailing '/'")
        return value

    @field_validator("sparkplug_group")
    @classmethod
    def _one_level(cls, value: str | None) -> str | None:
        if value is not None and (not value or any(letter in value for letter in "+#/\0")):
            raise PydanticCustomError("topic", "must be one level of a topic: without '+', '#' and '/'")
        return value

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.password is not None and self.username is None:
            raise PydanticCustomError("username", "a password needs a username")
        if (self.cert_file is None) != (self.key_file is None):
            raise PydanticCustomError("pair", "cert_file and key_file belong together: give both or none")
        if not self.tls and (self.ca_file is not None or self.cert_file is not None):
            raise PydanticCustomError("tls", "ca_file and cert_file need tls: true")
        if self.broker == "embedded" and (self.username is not None or self.tls):
            raise PydanticCustomError(
                "embedded", "the box has its own way into its own broker: username, password and tls are for an external one"
            )
        return self


class TelemetrySection(Section):
    """What the box tells other systems."""

    mqtt: MqttSection = setting(default_factory=MqttSection, text="Publishing to an MQTT broker.")
