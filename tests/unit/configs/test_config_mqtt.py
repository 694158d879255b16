"""Section `telemetry.mqtt`: what is refused at the door, and who is obeyed."""

from __future__ import annotations

import pytest

from configs.errors import ConfigError
from configs.load import parse_config
from configs.schema.telemetry import is_loopback


def refusal(mqtt: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_config(f"telemetry: {{mqtt: {mqtt}}}")
    return " ".join(f"{path}: {text}" for path, text in caught.value.problems)


@pytest.mark.parametrize(
    ("mqtt", "words"),
    [
        ("{password: env:X}", "needs a username"),
        ("{tls: true, cert_file: a.pem}", "belong together"),
        ("{cert_file: a.pem, key_file: a.key}", "need tls"),
        ("{ca_file: a.pem}", "need tls"),
        ("{prefix: 'a/#'}", "prefix"),
        ("{discovery_prefix: /ha}", "discovery_prefix"),
        ("{sparkplug_group: a/b}", "one level"),
        ("{protocol: '4'}", "protocol"),
        ("{commands: true}", "commands"),
        ("{outbox_messages: 10}", "outbox_messages"),
        ("{broker: embedded, username: box}", "its own way"),
        ("{broker: embedded, embedded: {listen: 0.0.0.0}}", "needs users"),
        ("{broker: embedded, embedded: {listen: broker.example.org}}", "needs users"),
        ("{embedded: {users: [{name: 'a:b', password: env:X}]}}", "one printable line"),
        ("{embedded: {users: [{name: '#a', password: env:X}]}}", "one printable line"),
        ("{embedded: {users: [{name: a, password: env:X}, {name: a, password: env:Y}]}}", "name of its own"),
        ("{embedded: {cert_file: a.pem}}", "belong together"),
    ],
)
def test_what_cannot_work_is_refused(mqtt: str, words: str) -> None:
    assert words in refusal(mqtt)


def test_a_whole_section_is_taken() -> None:
    text = """
telemetry:
  mqtt:
    enabled: true
    broker: embedded
    port: 8883
    embedded:
      listen: 0.0.0.0
      users: [{name: Gärtner 🌻, password: "env:MQTT_PW"}]
      cert_file: broker.pem
      key_file: broker.key
"""
    mqtt = parse_config(text).telemetry.mqtt
    assert mqtt.obeys
    assert mqtt.embedded.users[0].name == "Gärtner 🌻"


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("192.0.2.1", False),
        ("localhost.example.org", False),
    ],
)  # fmt: skip
def test_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
