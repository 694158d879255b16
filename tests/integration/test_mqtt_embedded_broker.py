"""The box's own broker: a real subscriber at it, passwords, TLS, a broker that dies, a port that is taken."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import ssl
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import psutil
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from configs.schema import MqttSection
from edge.store.outbox import Outbox
from edge.store.store import Store
from edge.telemetry import embedded_broker as module
from edge.telemetry.connection import probe
from edge.telemetry.embedded_broker import EmbeddedBroker
from edge.telemetry.mqtt import MqttPublisher
from edge.web.fake import FakeSource
from tests.support.authority import Authority
from tests.support.mosquitto import Listener, eventually
from tests.support.ports import free_port

WORD = "c4n4ry-s3cret"
Make = Callable[..., tuple[EmbeddedBroker, MqttSection]]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[EmbeddedBroker] = []

    def start(**embedded: Any) -> tuple[EmbeddedBroker, MqttSection]:
        mqtt = MqttSection.model_validate(
            {"enabled": True, "broker": "embedded", "port": free_port(), "embedded": embedded}, strict=False
        )
        broker = EmbeddedBroker(mqtt, tmp_path / "broker")
        made.append(broker)
        broker.start()
        return broker, mqtt

    yield start
    for broker in made:
        broker.stop()
        assert broker.pid is None


@pytest.fixture
def outbox(tmp_path: Path) -> Iterator[Outbox]:
    with Store(tmp_path / "driftbox.db") as store:
        yield Outbox(store)


def publisher_of(broker: EmbeddedBroker, outbox: Outbox) -> MqttPublisher:
    return MqttPublisher(broker.reached_by(), site="home", box="demo", source=FakeSource(), outbox=outbox, look_every_s=0.05)


def users(password: str = WORD) -> list[dict[str, str]]:
    return [{"name": "ha", "password": password}]


def test_a_subscriber_sees_the_box_come_and_go(make: Make, outbox: Outbox) -> None:
    broker, mqtt = make()
    listener = Listener(mqtt.port)
    publisher = publisher_of(broker, outbox)
    publisher.start()
    eventually(lambda: listener.of("home/demo/stats"), "stats")
    eventually(lambda: len(outbox) == 0, "everything is acknowledged")
    late = Listener(mqtt.port)
    eventually(lambda: late.of("/availability") and late.of("camera/hall/status"), "what was kept reaches who comes late")
    publisher.stop()
    eventually(lambda: listener.of("/availability")[-1] == b"offline", "a goodbye")
    late.close()
    listener.close()


def test_with_users_nobody_else_comes_in_and_only_hashes_are_on_disk(make: Make, outbox: Outbox, tmp_path: Path) -> None:
    broker, mqtt = make(users=users())
    outside = {"port": mqtt.port, "host": "127.0.0.1"}
    probe(MqttSection.model_validate({**outside, "username": "ha", "password": WORD}))
    for wrong in ({"username": "ha", "password": "no"}, {"username": "eve", "password": WORD}, {}):
        with pytest.raises(Exception, match="refused us|hangs up"):
            probe(MqttSection.model_validate({**outside, **wrong}))
    listener = Listener(mqtt.port, username="ha", password=WORD)
    publisher = publisher_of(broker, outbox)
    publisher.start()
    eventually(lambda: listener.of("home/demo/stats"), "the box itself comes in")
    publisher.stop()
    listener.close()
    file = tmp_path / "broker/users"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    lines = file.read_text()
    assert lines.count("$argon2id$") == 2
    assert broker.pid is not None
    own = broker.reached_by().password
    assert own is not None
    seen = lines + " ".join(psutil.Process(broker.pid).cmdline()) + repr(broker.reached_by())
    assert WORD not in seen
    assert own.resolve() not in seen


def knocked(port: int, client_id: str, user: tuple[str, str] | None) -> str:
    """What the broker answers to whoever calls himself so."""
    answers: list[str] = []
    client = paho.Client(CallbackAPIVersion.VERSION2, client_id=client_id, reconnect_on_failure=False)
    if user is not None:
        client.username_pw_set(*user)
    client.on_connect = lambda _, __, ___, reason, ____: answers.append(str(reason))
    client.connect("127.0.0.1", port)
    client.loop_start()
    eventually(lambda: answers, "an answer")
    client.disconnect()
    client.loop_stop()
    return answers[0]


def test_whoever_calls_himself_like_a_listener_takes_nothing_from_him(make: Make, outbox: Outbox) -> None:
    broker, mqtt = make(users=[*users(), {"name": "eve", "password": "hers"}])
    listener = Listener(mqtt.port, username="ha", password=WORD)
    id = listener.client_id
    assert knocked(mqtt.port, id, ("eve", "hers")) == "Success"
    for user in (("ha", "guessed"), ("eve", WORD), None):
        assert knocked(mqtt.port, id, user) == "Not authorized"
    publisher = publisher_of(broker, outbox)
    publisher.start()
    eventually(lambda: listener.of("home/demo/stats"), "he still hears")
    publisher.stop()
    listener.close()


def test_it_speaks_tls_outside_and_the_box_still_reaches_it(make: Make, outbox: Outbox, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    server = authority.issue("127.0.0.1")
    broker, mqtt = make(users=users(), cert_file=str(server.cert), key_file=str(server.key))
    trusted = ssl.create_default_context(cafile=str(authority.cert))
    listener = Listener(mqtt.port, username="ha", password=WORD, tls=trusted)
    publisher = publisher_of(broker, outbox)
    publisher.start()
    eventually(lambda: listener.of("home/demo/stats"), "stats over TLS")
    with pytest.raises(Exception, match="cannot be reached|hangs up|does not answer"):
        probe(MqttSection.model_validate({"port": mqtt.port, "username": "ha", "password": WORD}), timeout_s=3.0)
    publisher.stop()
    listener.close()


def test_a_broker_that_dies_is_started_again_and_told_everything(make: Make, outbox: Outbox) -> None:
    broker, mqtt = make()
    publisher = publisher_of(broker, outbox)
    publisher.start()
    eventually(lambda: len(outbox) == 0 and publisher.connected, "all is told")
    first = broker.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    eventually(lambda: broker.pid not in (None, first), "a new process")
    eventually(lambda: not publisher._link.lost and publisher.connected, "the box is back")
    eventually(lambda: len(outbox) == 0, "what was told is acknowledged")
    late = Listener(mqtt.port)
    eventually(lambda: late.of("camera/hall/status"), "the new broker knows the states")
    late.close()
    publisher.stop()


def test_a_port_that_is_taken_is_said_and_the_box_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(module.log, "warning", lambda text, *args: said.append(text % args))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        mqtt = MqttSection.model_validate({"broker": "embedded", "port": taken.getsockname()[1]})
        broker = EmbeddedBroker(mqtt, tmp_path / "broker")
        broker.start()
        assert "cannot start" in said[0]
        assert "telemetry.mqtt.port" in said[0]
    eventually(lambda: broker.pid is not None and not broker._said, "it serves when the port is free")
    probe(MqttSection(port=mqtt.port))
    broker.stop()


def test_it_outlives_a_signal_to_the_whole_group_so_that_the_box_can_say_goodbye(make: Make, outbox: Outbox) -> None:
    broker, mqtt = make()
    listener = Listener(mqtt.port)
    publisher = publisher_of(broker, outbox)
    publisher.start()
    eventually(lambda: listener.of("/availability") == [b"online"], "the box is there")
    assert broker.pid is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(broker.pid, number)
    publisher.stop()
    eventually(lambda: listener.of("/availability") == [b"online", b"offline"], "a goodbye")
    listener.close()


def test_it_ends_with_the_box(make: Make) -> None:
    broker, _ = make()
    process = psutil.Process(broker.pid)
    assert broker._process is not None
    assert broker._process.stdin is not None
    broker._stopping.set()
    broker._process.stdin.close()  # as when the box is killed
    process.wait(60)


def connect_of(name: str, word: str) -> bytes:
    """CONNECT of MQTT 3.1.1 with a user and a password."""
    texts = b"".join(len(t).to_bytes(2, "big") + t for t in (b"stranger", name.encode(), word.encode()))
    body = b"\x00\x04MQTT\x04\xc2\x00\x3c" + texts
    return b"\x10" + bytes([len(body)]) + body


def test_strangers_who_knock_and_run_leave_no_traceback(make: Make, capfd: pytest.CaptureFixture[str]) -> None:
    """Each was an unhandled error in the log, and kept its place in the broker for ever."""
    _, mqtt = make(users=users())
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", mqtt.port)) as stranger:
            stranger.setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00"
            )  # a reset, no farewell
            stranger.sendall(connect_of("ha", "guessed"))
    listener = Listener(mqtt.port, username="ha", password=WORD)
    listener.close()
    assert "Traceback" not in capfd.readouterr().err


def test_a_connection_that_breaks_while_it_is_refused_is_one_that_is_not_let_in(monkeypatch: pytest.MonkeyPatch) -> None:
    from amqtt.broker import Broker
    from amqtt.errors import MQTTError

    from edge.telemetry.amqtt_broker import OwnBroker

    async def breaks(*_: object) -> None:
        raise OSError(107, "Transport endpoint is not connected")

    monkeypatch.setattr(Broker, "_initialize_client_session", breaks)
    mine = object.__new__(OwnBroker)
    with pytest.raises(MQTTError, match="gone before it was let in"):
        asyncio.run(mine._initialize_client_session(None, None, "192.0.2.1", 1))  # type: ignore[arg-type]
