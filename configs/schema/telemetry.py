"""Section `telemetry`: what the box tells other systems."""

from __future__ import annotations

from typing import Self

from pydantic import field_validator, model_validator
from pydantic_core import PydanticCustomError

from configs.schema.base import Section, setting
from configs.schema.secret import Secret


class MqttSection(Section):
    """Publishing to an MQTT broker; see docs/mqtt.md for the topics."""

    enabled: bool = setting(False, text="Publish to a broker.")
    host: str = setting("127.0.0.1", text="Host name or address of the broker.")
    port: int = setting(1883, unit="port", ge=1, le=65535, text="TCP port of the broker (8883 is usual with TLS).")
    username: str | None = setting(None, text="User at the broker.", default_text="none")
    password: Secret | None = setting(
        None,
        text="Password at the broker: `env:NAME` or `file:PATH`; plain text works but stands in the file.",
        default_text="none",
    )
    prefix: str = setting("driftbox", text="First part of every topic.", max_length=100)
    tls: bool = setting(False, text="Encrypt, and check the broker's certificate against the system's authorities.")

    @field_validator("prefix")
    @classmethod
    def _topic(cls, value: str) -> str:
        if not value or any(letter in value for letter in "+#\0") or value.startswith(("/", "$")) or value.endswith("/"):
            raise PydanticCustomError("topic", "must be a topic without '+', '#', leading '$' and leading or trailing '/'")
        return value

    @model_validator(mode="after")
    def _password_needs_user(self) -> Self:
        if self.password is not None and self.username is None:
            raise PydanticCustomError("username", "a password needs a username")
        return self


class TelemetrySection(Section):
    """What the box tells other systems."""

    mqtt: MqttSection = setting(default_factory=MqttSection, text="Publishing to an MQTT broker.")
