"""Telemetry against a real mosquitto: birth, will, order, a broker that restarts, wrong passwords, no secret on the way."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from configs.errors import EnvironmentLacking
from configs.schema import MqttSection
from edge.store.store import Store
from edge.telemetry.mqtt import MqttPublisher, probe
from edge.web.fake import FakeSource

pytestmark = pytest.mark.mqtt

ROOT = Path(__file__).parents[2]
MOSQUITTO = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")
PASSWORD = "c4n4ry-s3cret"
WITHIN_S = 120.0


def eventually(condition: Callable[[], Any], what: str) -> Any:
    """The first true value of `condition`."""
    deadline_s = time.monotonic() + WITHIN_S
    while time.monotonic() < deadline_s:
        found = condition()
        if found:
            return found
        time.sleep(0.02)
    pytest.fail(f"not within {WITHIN_S:g} s: {what}")


class Broker:
    """A mosquitto on loopback that can be stopped and started on the same port; it forgets everything when stopped."""

    def __init__(self, folder: Path, *, password: str | None = None) -> None:
        assert MOSQUITTO is not None
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        lines = [f"listener {self.port} 127.0.0.1", "persistence false"]
        if password is None:
            lines.append("allow_anonymous true")
        else:
            users = folder / "users"
            subprocess.run(["mosquitto_passwd", "-b", "-c", users, "box", password], check=True, capture_output=True)
            # As root, mosquitto gives its rights away before it reads the file.
            users.chmod(0o644)
            lines += ["allow_anonymous false", f"password_file {users}"]
        if os.geteuid() == 0:
            lines.append("user root")
        self._config = folder / "mosquitto.conf"
        self._config.write_text("\n".join(lines) + "\n")
        self._log = folder / "mosquitto.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen([str(MOSQUITTO), "-c", str(self._config)], stdout=log, stderr=log)
        eventually(self._answers, "mosquitto answers")

    def _answers(self) -> bool:
        with socket.socket() as sock:
            return sock.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    if MOSQUITTO is None:
        message = "mosquitto is not installed (apt-get install mosquitto)"
        pytest.fail(message) if os.environ.get("CI") == "true" else pytest.skip(message)
    running = Broker(tmp_path)
    running.start()
    yield running
    running.stop()


class Listener:
    """Everything a consumer sees: (topic, payload, retained) in order, from the end of its making on. Stays over broker restarts;
    subscribed: whether the broker will tell it of what is published now."""

    def __init__(self, port: int, *, username: str | None = None, password: str | None = None) -> None:
        self.seen: list[tuple[str, bytes, bool]] = []
        self._client = paho.Client(CallbackAPIVersion.VERSION2, client_id=f"listener-{time.monotonic_ns()}")
        if username:
            self._client.username_pw_set(username, password)
        self.subscribed = threading.Event()
        self._client.on_connect = lambda client, *_: client.subscribe("#", qos=1)
        self._client.on_subscribe = lambda *_: self.subscribed.set()
        self._client.on_disconnect = lambda *_: self.subscribed.clear()
        self._client.on_message = lambda _, __, m: self.seen.append((m.topic, m.payload, bool(m.retain)))
        self._client.reconnect_delay_set(1, 1)
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        eventually(self.subscribed.is_set, "the subscription stands")

    def of(self, ending: str) -> list[bytes]:
        return [payload for topic, payload, _ in list(self.seen) if topic.endswith(ending)]

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "driftbox.db") as opened:
        yield opened


def section(port: int, **fields: Any) -> MqttSection:
    return MqttSection.model_validate({"enabled": True, "port": port, **fields})


def publisher_of(mqtt: MqttSection, store: Store, source: FakeSource | None = None) -> MqttPublisher:
    return MqttPublisher(mqtt, site="home", box="demo", source=source or FakeSource(), outbox=store, look_every_s=0.05)


def test_a_consumer_sees_the_box_come_work_and_go(broker: Broker, store: Store) -> None:
    listener = Listener(broker.port)
    publisher = publisher_of(section(broker.port), store)
    publisher.start()
    eventually(lambda: listener.of("home/demo/stats"), "stats")
    eventually(lambda: store.outbox_len() == 0, "everything is acknowledged")
    assert listener.of("/availability") == [b"online"]
    assert json.loads(listener.of("camera/dock/status")[0])["code"] == "timeout"
    assert json.loads(listener.of("camera/gate/model")[0])["version"] == "gate-2"
    assert [json.loads(p)["kind"] for p in listener.of("demo/window")] == ["outcome", "outcome", "plan"]
    late = Listener(broker.port)
    eventually(lambda: late.of("/availability") and late.of("camera/hall/status"), "retained states reach who comes late")
    first = {topic: retained for topic, _, retained in reversed(list(late.seen))}
    assert all(first.values()), "what comes first is what was kept; news come after"
    assert late.of("/events") == []
    publisher.stop()
    eventually(lambda: listener.of("/availability")[-1] == b"offline", "a goodbye")
    late.close()
    listener.close()


def test_a_broker_that_restarts_loses_nothing(broker: Broker, store: Store) -> None:
    listener = Listener(broker.port)
    source = FakeSource()
    publisher = publisher_of(section(broker.port), store, source)
    publisher.start()
    eventually(lambda: listener.of("camera/gate/status"), "a first status")
    broker.stop()
    eventually(lambda: not publisher._client.is_connected(), "the loss is noticed")
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
    eventually(lambda: store.outbox_len() >= 20, "messages wait")
    before = len(listener.seen)
    broker.start()
    texts = eventually(lambda: (n := [json.loads(p)["text"] for p in listener.of("demo/events")]) and len(n) >= 20 and n, "all")
    assert list(dict.fromkeys(texts)) == [f"note {k}" for k in range(20)], "all of them, in order"
    eventually(lambda: store.outbox_len() == 0, "everything is acknowledged")
    again = [topic for topic, _, _ in listener.seen[before:]]
    assert "driftbox/home/demo/availability" in again
    assert "driftbox/home/demo/camera/hall/status" in again, "retained states are told again: the broker has forgotten them"
    publisher.stop()
    listener.close()


def test_without_a_broker_the_box_goes_on_and_stop_returns(store: Store) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    publisher = publisher_of(section(port), store)
    publisher.start()
    eventually(lambda: store.outbox_len() > 10, "messages wait in the outbox")
    publisher.stop()
    assert not publisher._thread.is_alive()


def test_messages_of_the_last_run_are_delivered_in_the_next(broker: Broker, store: Store) -> None:
    store.outbox_put("driftbox/home/demo/events", b'{"schema": 1, "old": true}', at_utc=1.0)
    listener = Listener(broker.port)
    publisher = publisher_of(section(broker.port), store)
    publisher.start()
    eventually(lambda: b'{"schema": 1, "old": true}' in listener.of("demo/events"), "the old message")
    publisher.stop()
    listener.close()


def test_a_killed_box_is_offline(broker: Broker, tmp_path: Path) -> None:
    program = f"""
        import time
        from pathlib import Path
        from configs.schema import MqttSection
        from edge.store.store import Store
        from edge.telemetry.mqtt import MqttPublisher
        from edge.web.fake import FakeSource
        mqtt = MqttSection(enabled=True, port={broker.port})
        outbox = Store(Path({str(tmp_path / "killed.db")!r}))
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
    broker: Broker, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
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
        wrong = publisher_of(section(closed.port, username="box", password="wrong-" + PASSWORD), store)
        wrong.start()
        eventually(lambda: "refuses us" in caplog.text, "the refusal is logged")
        wrong.stop()
        publisher = publisher_of(right, store)
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


def test_a_missing_secret_is_named_at_the_start(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_PW", raising=False)
    with pytest.raises(EnvironmentLacking, match="NO_SUCH_PW"):
        publisher_of(section(1883, username="box", password="env:NO_SUCH_PW"), store)
