"""Telemetry against a real mosquitto in bad times: outages, a broker that is deaf, TLS with client certificates and rules, what has
expired, hostile commands, and Home Assistant's rebirth."""

from __future__ import annotations

import json
import logging
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from configs.errors import EnvironmentLacking
from configs.schema import MqttSection
from edge.objects.types import ObjectEvent
from edge.store.outbox import Outbox
from edge.store.store import Store
from edge.telemetry import mqtt as mqtt_module
from edge.telemetry.connection import certificate_trouble, probe
from edge.telemetry.mqtt import MqttPublisher
from edge.telemetry.publisher import Telemetry
from edge.web.fake import FakeSource
from tests.support.authority import DAY, Authority, Pair
from tests.support.mosquitto import Broker, Listener, eventually, require_mosquitto

pytestmark = pytest.mark.mqtt
BASE = "driftbox/home/demo"


@pytest.fixture(autouse=True)
def _mosquitto() -> None:
    require_mosquitto()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    running = Broker(tmp_path)
    running.start()
    yield running
    running.stop()


@pytest.fixture
def outbox(tmp_path: Path) -> Iterator[Outbox]:
    with Store(tmp_path / "driftbox.db") as store:
        yield Outbox(store)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was logged."""
    lines: list[str] = []
    monkeypatch.setattr(mqtt_module.log, "log", lambda level, text, *args: lines.append(text % args))
    monkeypatch.setattr(mqtt_module.log, "warning", lambda text, *args: lines.append(text % args))
    return lines


def section(port: int, **fields: Any) -> MqttSection:
    return MqttSection.model_validate({"enabled": True, "port": port, **fields}, strict=False)


def publisher_of(mqtt: MqttSection, outbox: Outbox, **fields: Any) -> MqttPublisher:
    return MqttPublisher(mqtt, site="home", box="demo", source=FakeSource(), outbox=outbox, look_every_s=0.05, **fields)


def seen_object(number: int) -> ObjectEvent:
    return ObjectEvent(
        id=f"gate-{number}", camera="gate", what="new", class_name="person", score=0.9, box=(0.1, 0.2, 0.3, 0.4),
        started_utc=1.79e9, seen_utc=1.79e9 + number,
    )  # fmt: skip


def events_of(listener: Listener) -> list[dict[str, Any]]:
    return [body for body in listener.json_of("camera/gate/events") if body["kind"] == "new"]


# --- outages ----------------------------------------------------------------------------------------------------------


def test_an_hour_without_a_broker_loses_nothing_doubles_nothing_and_keeps_the_order(broker: Broker, outbox: Outbox) -> None:
    """An hour in simulated time: one object a second, as fast as they can be stored."""
    publisher = publisher_of(section(broker.port), outbox)
    publisher.start()
    eventually(lambda: publisher.connected and len(outbox) == 0, "all is told")
    broker.stop()
    eventually(lambda: not publisher.connected, "the loss is noticed")
    for number in range(3600):
        publisher.tell(seen_object(number))
    eventually(lambda: publisher.backlog == 0, "they wait on disk")
    assert len(outbox) >= 3600
    send, publisher._send = publisher._send, lambda: None  # type: ignore[method-assign]
    broker.start()
    listener = Listener(broker.port)  # the broker keeps nothing for who comes later than the box
    publisher._send = send  # type: ignore[method-assign]
    eventually(lambda: len(outbox) == 0 and publisher.connected, "everything is acknowledged")
    found = eventually(lambda: (e := events_of(listener)) and len(e) >= 3600 and e, "all events")
    assert [body["id"] for body in found] == [f"gate-{n}" for n in range(3600)]
    assert len({body["event_id"] for body in found}) == 3600
    publisher.stop()
    listener.close()


def test_connections_that_break_again_and_again_double_nothing_that_its_id_does_not_show(
    broker: Broker, outbox: Outbox
) -> None:
    """Cut at any moment, also between the broker's taking and its acknowledgement: the first of each id is all of them, in order."""
    listener = Listener(broker.port)
    publisher = publisher_of(section(broker.port), outbox)
    publisher.start()
    eventually(lambda: publisher.connected, "the box is there")
    for part in range(4):
        for number in range(250):
            publisher.tell(seen_object(250 * part + number))
        eventually(lambda part=part: len(events_of(listener)) > 250 * part, "some arrive")
        sock = publisher._link.client.socket()
        if sock is not None:
            sock.shutdown(socket.SHUT_RDWR)
    eventually(lambda: len({body["event_id"] for body in events_of(listener)}) == 1000, "all arrive")
    first = list({body["event_id"]: body["id"] for body in events_of(listener)}.values())
    assert first == [f"gate-{n}" for n in range(1000)]
    publisher.stop()
    listener.close()


def test_a_box_that_is_restarted_in_an_outage_goes_on_where_it_was(broker: Broker, outbox: Outbox) -> None:
    broker.stop()
    before = publisher_of(section(broker.port), outbox)
    before.start()
    for number in range(20):
        before.tell(seen_object(number))
    eventually(lambda: before.backlog == 0, "they wait on disk")
    before.stop()
    broker.start()
    listener = Listener(broker.port)
    after = publisher_of(section(broker.port), outbox)
    after.start()
    after.tell(seen_object(20))
    found = eventually(lambda: (e := events_of(listener)) and len(e) == 21 and e, "those of both runs")
    assert [body["id"] for body in found] == [f"gate-{n}" for n in range(21)]
    assert len({body["event_id"] for body in found}) == 21
    after.stop()
    listener.close()


def test_consumers_are_told_how_much_is_missing(broker: Broker, tmp_path: Path, said: list[str]) -> None:
    broker.stop()
    with Store(tmp_path / "small.db") as store:
        publisher = publisher_of(section(broker.port), Outbox(store, messages_max=100))
        publisher.start()
        for number in range(500):
            publisher.tell(seen_object(number))
        eventually(lambda: publisher.backlog == 0, "the outbox has what it can hold")
        send, publisher._send = publisher._send, lambda: None  # type: ignore[method-assign]
        broker.start()
        listener = Listener(broker.port)  # the broker keeps nothing for who comes later than the box
        publisher._send = send  # type: ignore[method-assign]
        eventually(lambda: len(Outbox(store)) == 0, "the rest")
        eventually(lambda: any(body["id"] == "gate-499" for body in events_of(listener)), "the newest")
        kept = [int(body["id"].removeprefix("gate-")) for body in events_of(listener)]
        assert kept == list(range(500 - len(kept), 500)), "the oldest went"

        def missing() -> int:
            return sum(body["messages"] for body in listener.json_of("demo/events") if body["kind"] == "lost")

        eventually(lambda: missing() >= 500 - len(kept), "what is missing")
        assert any("outbox is full" in line for line in said)
        publisher.stop()
        listener.close()


class Deaf:
    """Says yes to every connection, takes everything, and acknowledges nothing. It answers pings: it seems alive."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self.connections = self.published = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._answer, args=(connection.makefile("rwb", buffering=0),), daemon=True).start()

    def _answer(self, pipe: Any) -> None:
        while head := pipe.read(1):
            left, shift = 0, 0
            while True:
                (part,) = pipe.read(1)
                left |= (part & 127) << shift
                shift += 7
                if part < 128:
                    break
            while left:
                left -= len(pipe.read(left))
            kind = head[0] >> 4
            self.published += kind == 3
            if kind in (1, 12):
                pipe.write(b"\x20\x02\x00\x00" if kind == 1 else b"\xd0\x00")

    def close(self) -> None:
        self._server.close()


def test_a_broker_that_takes_everything_and_acknowledges_nothing(outbox: Outbox, said: list[str]) -> None:
    deaf = Deaf()
    publisher = publisher_of(section(deaf.port), outbox, ack_wait_s=0.5)
    publisher.start()
    for number in range(2000):
        publisher.tell(seen_object(number))
    eventually(lambda: deaf.connections >= 2, "it is left and tried again")
    assert len(publisher._link.on_the_way) <= mqtt_module.WINDOW, "only so much is on its way"
    eventually(lambda: len(outbox) >= 2000, "nothing is lost")
    assert any("acknowledges none" in line for line in said)
    publisher.stop()
    deaf.close()


def test_a_broker_that_hangs_and_comes_back(broker: Broker, outbox: Outbox, said: list[str]) -> None:
    listener = Listener(broker.port)
    publisher = publisher_of(section(broker.port), outbox, ack_wait_s=0.5)
    publisher.start()
    eventually(lambda: publisher.connected and len(outbox) == 0, "all is told")
    broker.hang()
    for number in range(50):
        publisher.tell(seen_object(number))
    eventually(lambda: any("acknowledges none" in line for line in said), "it is told")
    broker.resume()
    eventually(lambda: len({body["event_id"] for body in events_of(listener)}) == 50, "all arrive")
    eventually(lambda: len(outbox) == 0, "everything is acknowledged")
    publisher.stop()
    listener.close()


# --- TLS --------------------------------------------------------------------------------------------------------------


class Secured:
    """A mosquitto that wants client certificates; `box` may do what a box does, `app` may read and command."""

    def __init__(self, folder: Path, *, server_left: timedelta = 365 * DAY) -> None:
        self.authority = Authority(folder / "ca")
        server = self.authority.issue("127.0.0.1", left=server_left)
        self.box, self.app = self.authority.issue("box"), self.authority.issue("app")
        rules = folder / "acl"
        rules.write_text(
            "user box\ntopic readwrite driftbox/home/demo/#\ntopic write homeassistant/device/#\ntopic read homeassistant/status\n"
            "user app\ntopic read #\ntopic write driftbox/home/demo/command/#\n"
        )
        rules.chmod(0o644)
        self.broker = Broker(
            folder,
            lines=[
                f"cafile {self.authority.cert}", f"certfile {server.cert}", f"keyfile {server.key}", "require_certificate true",
                "use_identity_as_username true", f"acl_file {rules}",
            ],
        )  # fmt: skip

    def section(self, pair: Pair | None, **fields: Any) -> MqttSection:
        own = {"cert_file": str(pair.cert), "key_file": str(pair.key)} if pair else {}
        return section(self.broker.port, tls=True, ca_file=str(self.authority.cert), **own, **fields)

    def listener(self) -> Listener:
        context = ssl.create_default_context(cafile=str(self.authority.cert))
        context.load_cert_chain(self.app.cert, self.app.key)
        return Listener(self.broker.port, tls=context)


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Secured]:
    made = Secured(tmp_path)
    made.broker.start()
    yield made
    made.broker.stop()


class FakeControl:
    def __init__(self) -> None:
        self.done: list[tuple[str, dict[str, Any], str]] = []

    def do(self, command: str, arguments: Mapping[str, Any], *, by: str) -> dict[str, Any]:
        self.done.append((command, dict(arguments), by))
        return {"changed": True}


def test_client_certificates_and_rules(secured: Secured, outbox: Outbox) -> None:
    mqtt = secured.section(secured.box)
    probe(mqtt)
    assert mqtt.obeys, "a broker that knows the box by its certificate knows others too"
    listener, control = secured.listener(), FakeControl()
    telemetry = Telemetry(mqtt, site="home", box="demo", source=FakeSource(), outbox=outbox, control=control)
    telemetry.start()
    eventually(lambda: listener.of("home/demo/stats") and listener.of("gate/config"), "states and discovery")
    listener.publish(f"{BASE}/command/camera/learning", {"id": 1, "arguments": {"camera": "gate", "on": False}})
    (reply,) = eventually(lambda: listener.json_of("camera/learning/reply"), "a reply")
    assert reply["ok"] is True
    listener.publish(f"{BASE}/camera/gate/learning/set", "OFF")  # against the rules: the broker does not pass it on
    listener.publish(f"{BASE}/command/camera/restart", {"id": 2, "arguments": {"camera": "gate"}})
    eventually(lambda: listener.json_of("camera/restart/reply"), "a second reply")
    assert [command for command, _, _ in control.done] == ["camera/learning", "camera/restart"]
    telemetry.stop()
    listener.close()


def test_who_has_no_certificate_is_told_what_is_missing(secured: Secured) -> None:
    with pytest.raises(EnvironmentLacking, match="hangs up|cannot be reached"):
        probe(secured.section(None))
    stranger = Authority(secured.authority.folder / "stranger").issue("box")
    with pytest.raises(EnvironmentLacking) as caught:
        probe(secured.section(stranger))
    assert "certificate" in str(caught.value)


def test_a_broker_that_is_not_the_one_it_says_is_not_talked_to(secured: Secured, outbox: Outbox, said: list[str]) -> None:
    other = Authority(secured.authority.folder / "other")
    mqtt = secured.section(secured.box).model_copy(update={"ca_file": other.cert})
    with pytest.raises(EnvironmentLacking, match="certificate is not accepted") as caught:
        probe(mqtt)
    assert "telemetry.mqtt.ca_file" in caught.value.remedy
    publisher = publisher_of(mqtt, outbox)
    publisher.start()
    eventually(lambda: any("certificate is not accepted" in line for line in said), "the log says so")
    assert not publisher.connected
    publisher.stop()


def test_expired_certificates_are_named(tmp_path: Path, outbox: Outbox, said: list[str]) -> None:
    expired = Secured(tmp_path, server_left=-DAY)
    expired.broker.start()
    mqtt = expired.section(expired.box)
    with pytest.raises(EnvironmentLacking, match="certificate has expired"):
        probe(mqtt)
    publisher = publisher_of(mqtt, outbox)
    publisher.start()
    eventually(lambda: any("certificate has expired" in line for line in said), "the log says so")
    publisher.stop()
    expired.broker.stop()


def test_the_boxs_own_certificate_is_told_of_before_it_ends(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    for left, words in ((-DAY, "has expired"), (10 * DAY, "expires"), (200 * DAY, "")):
        pair = authority.issue(f"box{left.days}".replace("-", "m"), left=left)
        mqtt = section(8883, tls=True, cert_file=str(pair.cert), key_file=str(pair.key))
        assert words in certificate_trouble(mqtt, time.time())
        assert bool(certificate_trouble(mqtt, time.time())) == bool(words)


@pytest.mark.parametrize("password", ["", "right", "wrong"])
def test_keys_with_a_password(secured: Secured, monkeypatch: pytest.MonkeyPatch, password: str) -> None:
    """OpenSSL must never ask on the terminal."""
    pair = secured.authority.issue("locked", password="right")
    monkeypatch.setenv("KEY_PW", password)
    mqtt = secured.section(pair, **({"key_password": "env:KEY_PW"} if password else {}))
    if password == "right":
        probe(mqtt)
        return
    with pytest.raises(EnvironmentLacking, match="cert_file and key_file cannot be used") as caught:
        probe(mqtt)
    assert "key_password" in caught.value.remedy


@pytest.mark.parametrize("missing", ["ca_file", "cert_file"])
def test_a_file_that_is_not_there_is_named_at_the_start(secured: Secured, outbox: Outbox, tmp_path: Path, missing: str) -> None:
    mqtt = secured.section(secured.box).model_copy(update={missing: tmp_path / "nowhere.pem"})
    with pytest.raises(EnvironmentLacking, match="nowhere.pem"):
        publisher_of(mqtt, outbox)


# --- versions, commands, Home Assistant -------------------------------------------------------------------------------


def test_mqtt_5_with_as_much_on_the_way_as_the_broker_wants(broker: Broker, outbox: Outbox) -> None:
    listener = Listener(broker.port)
    publisher = publisher_of(section(broker.port, protocol="5"), outbox)
    publisher.start()
    eventually(lambda: publisher.connected, "the box is there")
    assert publisher._link.window == 20, "mosquitto's usual"
    for number in range(300):
        publisher.tell(seen_object(number))
    found = eventually(lambda: (e := events_of(listener)) and len(e) == 300 and e, "all events")
    assert [body["id"] for body in found] == [f"gate-{n}" for n in range(300)]
    publisher.stop()
    listener.close()


def test_a_broker_without_mqtt_5_is_spoken_to_in_3_1_1(outbox: Outbox, said: list[str]) -> None:
    class Old(Deaf):
        """Knows 3.1.1 only."""

        def _answer(self, pipe: Any) -> None:
            first = pipe.read(64)
            pipe.write(b"\x20\x02\x00" + (b"\x01" if first[8] == 5 else b"\x00"))
            if first[8] == 5:
                pipe.close()

    old = Old()
    publisher = publisher_of(section(old.port, protocol="5"), outbox)
    publisher.start()
    eventually(lambda: publisher.connected, "the box is there all the same")
    assert any("does not take MQTT 5" in line for line in said)
    publisher.stop()
    old.close()


def test_hostile_commands_at_a_real_broker(broker: Broker, outbox: Outbox) -> None:
    listener, control = Listener(broker.port), FakeControl()
    listener.publish(f"{BASE}/camera/gate/learning/set", "OFF", retain=True)
    mqtt = section(broker.port, commands="always")
    telemetry = Telemetry(mqtt, site="home", box="demo", source=FakeSource(), outbox=outbox, control=control)
    telemetry.start()
    (kept,) = eventually(
        lambda: listener.json_of("command/camera/learning/reply") or listener.json_of("command/reply"), "a refusal"
    )
    assert kept["error"]["code"] == "retained"
    for body in (b"\x00\xff", b"[" * 5000, b"x" * 100_000, b'{"arguments": 1}'):
        listener.publish(f"{BASE}/command/camera/learning", body.decode("latin-1"))
    listener.publish(f"{BASE}/command/rm -rf/<b>", {"id": 1})
    listener.publish(f"{BASE}/command/camera/learning", {"id": "last", "arguments": {"camera": "gate", "on": True}})
    eventually(
        lambda: any(r["id"] == "last" and r["ok"] for r in listener.json_of("camera/learning/reply")), "the last is obeyed"
    )
    assert len(control.done) == 1
    assert telemetry.publisher.connected
    telemetry.stop()
    listener.close()


def test_home_assistant_is_told_again_when_it_is_reborn(broker: Broker, outbox: Outbox) -> None:
    listener = Listener(broker.port)
    telemetry = Telemetry(section(broker.port), site="home", box="demo", source=FakeSource(), outbox=outbox)
    telemetry.start()
    first = len(eventually(lambda: listener.of("gate/config"), "discovery"))
    eventually(lambda: len(outbox) == 0, "all is told")
    listener.publish("homeassistant/status", "online")
    eventually(lambda: len(listener.of("gate/config")) > first, "it is told again")
    bodies = set(listener.of("gate/config"))
    assert len(bodies) == 1
    assert json.loads(bodies.pop())["o"]["name"] == "Driftbox"
    telemetry.stop()
    listener.close()


def test_no_secret_is_told_or_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    canary = "c4n4ry-s3cret"
    monkeypatch.setenv("MQTT_PW", canary)
    closed = Broker(tmp_path, password=canary)
    closed.start()
    listener = Listener(closed.port, username="box", password=canary)
    mqtt = section(closed.port, username="box", password="env:MQTT_PW")
    with Store(tmp_path / "x.db") as store:
        telemetry = Telemetry(mqtt, site="home", box="demo", source=FakeSource(), outbox=Outbox(store), control=FakeControl())
        telemetry.start()
        eventually(lambda: listener.of("demo/state") and listener.of("gate/config"), "everything was told")
        listener.publish(f"{BASE}/command/camera/learning", {"id": 1, "arguments": {"password": canary}})
        eventually(lambda: listener.of("camera/learning/reply"), "a reply")
        telemetry.stop()
    listener.close()
    closed.stop()
    told = b"".join(payload for topic, payload, _ in listener.seen if not topic.endswith("command/camera/learning"))
    assert canary.encode() not in told
    assert canary not in caplog.text
    assert canary.encode() not in b"".join(file.read_bytes() for file in tmp_path.glob("x.db*"))
