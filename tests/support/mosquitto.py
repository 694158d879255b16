"""A real mosquitto on loopback, and a consumer at it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from tests.support.ports import free_port

MOSQUITTO = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin")
WITHIN_S = 120.0


def require_mosquitto() -> None:
    """Skips the test where mosquitto is not installed; on CI it must be."""
    if MOSQUITTO is None:
        message = "mosquitto is not installed (apt-get install mosquitto)"
        pytest.fail(message) if os.environ.get("CI") == "true" else pytest.skip(message)


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
    """A mosquitto on loopback that can be stopped and started on the same port; it forgets everything when stopped.

    password: of the user `box`, then nobody else comes in; lines: more of its configuration."""

    def __init__(self, folder: Path, *, password: str | None = None, lines: Sequence[str] = ()) -> None:
        assert MOSQUITTO is not None
        self.port = free_port()
        settings = [f"listener {self.port} 127.0.0.1", "persistence false", "max_queued_messages 0"]
        if password is not None:
            users = folder / "users"
            subprocess.run(["mosquitto_passwd", "-b", "-c", users, "box", password], check=True, capture_output=True)
            # As root, mosquitto gives its rights away before it reads the file.
            users.chmod(0o644)
            settings += ["allow_anonymous false", f"password_file {users}"]
        elif not lines:
            settings.append("allow_anonymous true")
        if os.geteuid() == 0:
            settings.append("user root")
        self._config = folder / "mosquitto.conf"
        self._config.write_text("\n".join([*settings, *lines]) + "\n")
        self._log = folder / "mosquitto.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen([str(MOSQUITTO), "-c", str(self._config)], stdout=log, stderr=log)
        eventually(self._answers, "mosquitto answers")

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self._log.read_text()
        with socket.socket() as sock:
            return sock.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait()
            self._process = None

    def hang(self) -> None:
        """It keeps its connections and says nothing more."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)


class Listener:
    """Everything a consumer sees: (topic, payload, retained) in order, from the end of its making on. Stays over broker restarts;
    subscribed: whether the broker will tell it of what is published now."""

    def __init__(
        self, port: int, *, username: str | None = None, password: str | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self.seen: list[tuple[str, bytes, bool]] = []
        self.client_id = f"listener-{time.monotonic_ns()}"
        self._client = paho.Client(CallbackAPIVersion.VERSION2, client_id=self.client_id)
        if username:
            self._client.username_pw_set(username, password)
        if tls is not None:
            self._client.tls_set_context(tls)
        self.subscribed = threading.Event()
        self._client.on_connect = lambda client, *_: client.subscribe("#", qos=1)
        self._client.on_subscribe = lambda *_: self.subscribed.set()
        self._client.on_disconnect = lambda *_: self.subscribed.clear()
        self._taken: set[int] = set()
        self._client.on_publish = lambda _, __, mid, *___: self._taken.add(mid)
        self._client.on_message = lambda _, __, m: self.seen.append((m.topic, m.payload, bool(m.retain)))
        self._client.reconnect_delay_set(1, 1)
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()
        eventually(self.subscribed.is_set, "the subscription stands")

    def of(self, ending: str) -> list[bytes]:
        return [payload for topic, payload, _ in list(self.seen) if topic.endswith(ending)]

    def json_of(self, ending: str) -> list[Any]:
        return [json.loads(payload) for payload in self.of(ending)]

    def publish(self, topic: str, payload: object, *, retain: bool = False) -> None:
        """Says something itself, and waits until the broker has it, after a new connection if need be; anything but bytes and text as
        JSON."""
        body = payload if isinstance(payload, bytes | str) else json.dumps(payload)
        said = self._client.publish(topic, body, qos=1, retain=retain)
        eventually(lambda: said.mid in self._taken, f"the broker has taken {topic}")

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()
