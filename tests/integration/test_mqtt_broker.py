"""Telemetry against a real mosquitto: birth, will, order, a broker that restarts, wrong passwords, no secret on the way."""

from __future__ import annotations

import json
import logging
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from configs.errors import EnvironmentLacking
from configs.schema import MqttSection
from edge.store.outbox import Message, Outbox
from edge.store.store import Store
from edge.telemetry.mqtt import MqttPublisher, probe
from edge.web.fake import FakeSource
from tests.support.mosquitto import Broker, Listener, eventually, require_mosquitto

pytestmark = pytest.mark.mqtt

ROOT = Path(__file__).parents[2]
PASSWORD = "c4n4ry-s3cret"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    require_mosquitto()
    running = Broker(tmp_path)
    running.start()
    yield running
    running.stop()


@pytest.fixture
def outbox(tmp_path: Path) -> Iterator[Outbox]:
    with Store(tmp_path / "driftbox.db") as opened:
        yield Outbox(opened)


def section(port: int, **fields: Any) -> MqttSection:
    return MqttSection.model_validate({"enabled": True, "port": port, **fields})


def publisher_of(mqtt: MqttSection, outbox: Outbox, source: FakeSource | None = None) -> MqttPublisher:
    return MqttPublisher(mqtt, site="home", box="demo", source=source or FakeSource(), outbox=outbox, look_every_s=0.05)


def test_a_consumer_sees_the_box_come_work_and_go(broker: Broker, outbox: Outbox) -> None:
    listener = Listener(broker.port)
    publisher = publisher_of(section(broker.port), outbox)
    publisher.start()
    eventually(lambda: listener.of("home/demo/stats"), "stats")
    eventually(lambda: len(outbox) == 0, "everything is acknowledged")
    # What the broker has acknowledged is still on its way to the listener.
    assert json.loads(eventually(lambda: listener.of("camera/dock/status"), "a status")[0])["code"] == "timeout"
    assert json.loads(eventually(lambda: listener.of("camera/gate/model"), "a model")[0])["version"] == "gate-2"
    assert listener.of("/availability") == [b"online"]
    eventually(lambda: "plan" in (body["kind"] for body in listener.json_of("demo/window")), "a plan")
    # A connection that came after the first look is told once more what is kept.
    kinds = [body["kind"] for body in listener.json_of("demo/window")]
    assert kinds in (["outcome", "outcome", "plan"], ["outcome", "outcome", "plan", "plan"])
    late = Listener(broker.port)
    eventually(lambda: late.of("/availability") and late.of("camera/hall/status"), "retained states reach who comes late")
    first = {topic: retained for topic, _, retained in reversed(list(late.seen))}
    assert all(first.values()), "what comes first is what was kept; news come after"
    assert late.of("/events") == []
    publisher.stop()
    eventually(lambda: listener.of("/availability")[-1] == b"offline", "a goodbye")
    late.close()
    listener.close()


def test_a_broker_that_restarts_loses_nothing(broker: Broker, outbox: Outbox) -> None:
    listener = Listener(broker.port)
    source = FakeSource()
    publisher = publisher_of(section(broker.port), outbox, source)
    publisher.start()
    eventually(lambda: listener.of("camera/gate/status"), "a first status")
    broker.stop()
    eventually(lambda: not publisher.connected, "the loss is noticed")
    # Things go on happening while nobody listens; a notes tuple that grows stands for them.
    base = source.status

    def busier() -> Any:
        status = base()
        extra = [status.notes[0].model_copy(update={"text": f"note {k}", "camera": None}) for k in range(20)]
        return status.model_copy(update={"notes": (*reversed(extra), *status.notes)})

    source.status = busier  # type: ignore[method-assign]
    eventually(lambda: not listener.subscribed.is_set(), "the listener too has lost it")
    send = publisher._send
    # The broker keeps nothing for a listener that comes back later than the box.
    publisher._send = lambda: send() if listener.subscribed.is_set() else None  # type: ignore[method-assign]
    eventually(lambda: len(outbox) >= 20, "messages wait")
    before = len(listener.seen)
    broker.start()
    texts = eventually(lambda: (n := [json.loads(p)["text"] for p in listener.of("demo/events")]) and len(n) >= 20 and n, "all")
    assert list(dict.fromkeys(texts)) == [f"note {k}" for k in range(20)], "all of them, in order"

    def again(ending: str) -> bool:
        return any(topic == f"driftbox/home/demo/{ending}" for topic, _, _ in listener.seen[before:])

    # The broker has forgotten what it kept.
    eventually(lambda: again("availability") and again("camera/hall/status"), "retained states are told again")
    eventually(lambda: len(outbox) == 0, "everything is acknowledged")
    publisher.stop()
    listener.close()


def test_without_a_broker_the_box_goes_on_and_stop_returns(outbox: Outbox) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    publisher = publisher_of(section(port), outbox)
    publisher.start()
    eventually(lambda: len(outbox) > 10, "messages wait in the outbox")
    publisher.stop()
    assert not publisher._thread.is_alive()


def test_messages_of_the_last_run_are_delivered_in_the_next(broker: Broker, outbox: Outbox) -> None:
    outbox.put([Message(topic="driftbox/home/demo/events", payload=b'{"schema": 1, "old": true}')], at_utc=1.0)
    listener = Listener(broker.port)
    publisher = publisher_of(section(broker.port), outbox)
    publisher.start()
    eventually(lambda: b'{"schema": 1, "old": true}' in listener.of("demo/events"), "the old message")
    publisher.stop()
    listener.close()


def test_a_killed_box_is_offline(broker: Broker, tmp_path: Path) -> None:
    program = f"""
        import time
        from pathlib import Path
        from configs.schema import MqttSection
        from edge.store.outbox import Outbox
        from edge.store.store import Store
        from edge.telemetry.mqtt import MqttPublisher
        from edge.web.fake import FakeSource
        mqtt = MqttSection(enabled=True, port={broker.port})
        outbox = Outbox(Store(Path({str(tmp_path / "killed.db")!r})))
        MqttPublisher(mqtt, site="home", box="demo", source=FakeSource(), outbox=outbox).start()
        time.sleep(600)
    """
    listener = Listener(broker.port)
    box = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], cwd=ROOT)
    try:
        eventually(lambda: listener.of("/availability") == [b"online"], "the birth message")
    finally:
        box.send_signal(signal.SIGKILL)
        box.wait()
    eventually(lambda: listener.of("/availability") == [b"online", b"offline"], "the will")
    listener.close()


def test_passwords(
    broker: Broker, outbox: Outbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("MQTT_PW", PASSWORD)
    folder = tmp_path / "closed"
    folder.mkdir()
    closed = Broker(folder, password=PASSWORD)
    closed.start()
    try:
        right = section(closed.port, username="box", password="env:MQTT_PW")
        probe(right)
        with pytest.raises(EnvironmentLacking, match="refused us: Not authorized") as refused:
            probe(section(closed.port, username="box", password="wrong-" + PASSWORD))
        listener = Listener(closed.port, username="box", password=PASSWORD)
        wrong = publisher_of(section(closed.port, username="box", password="wrong-" + PASSWORD), outbox)
        wrong.start()
        eventually(lambda: "refused us" in caplog.text, "the refusal is logged")
        wrong.stop()
        publisher = publisher_of(right, outbox)
        publisher.start()
        eventually(lambda: listener.of("home/demo/stats"), "stats with the right password")
        publisher.stop()
        listener.close()
    finally:
        closed.stop()
    everything = caplog.text + str(refused.value) + repr(right) + "".join(str(seen) for seen in listener.seen)
    assert PASSWORD not in everything


def test_probe_says_what_is_wrong(broker: Broker) -> None:
    probe(section(broker.port))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with pytest.raises(EnvironmentLacking, match="does not answer as an MQTT broker"):
            probe(section(silent.getsockname()[1]), timeout_s=0.3)
        port = silent.getsockname()[1]
    with pytest.raises(EnvironmentLacking, match="Connection refused") as caught:
        probe(section(port))
    assert "telemetry.mqtt.host" in caught.value.remedy


def test_a_missing_secret_is_named_at_the_start(outbox: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_PW", raising=False)
    with pytest.raises(EnvironmentLacking, match="NO_SUCH_PW"):
        publisher_of(section(1883, username="box", password="env:NO_SUCH_PW"), outbox)
