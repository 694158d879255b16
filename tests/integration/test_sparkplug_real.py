"""The box as a Sparkplug node, as a host application of somebody else understands it (`tests/support/sparkplug_host.py`). Skipped where
there is none; `tests/unit/edge/test_sparkplug.py` holds bytes of others everywhere."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from configs.schema import MqttSection
from edge.status import BoxStatus
from edge.store.outbox import Outbox
from edge.store.store import Store
from edge.telemetry.publisher import Telemetry
from edge.web.fake import FakeSource
from tests.support.mosquitto import Broker, require_mosquitto
from tests.support.running_box import ROOT

PYTHON = os.environ.get("DRIFTBOX_SPARKPLUG", "")
pytestmark = [
    pytest.mark.mqtt, pytest.mark.slow, pytest.mark.timeout(600),
    pytest.mark.skipif(not PYTHON, reason="needs pysparkplug: DRIFTBOX_SPARKPLUG names the Python that has it (docs/mqtt.md)"),
]  # fmt: skip
WITHIN_S = 120.0
REBIRTH = "Node Control/Rebirth"


class Host:
    """What the host application has understood, in order."""

    def __init__(self, port: int) -> None:
        self.seen: list[dict[str, Any]] = []
        self._lines: queue.Queue[str] = queue.Queue()
        self._process = subprocess.Popen(
            [PYTHON, str(ROOT / "tests/support/sparkplug_host.py"), str(port), "plant", "demo"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        threading.Thread(target=self._read, daemon=True).start()
        self.until(lambda m: m["kind"] == "ready")

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)

    def until(self, wanted: Any) -> dict[str, Any]:
        """Listens up to a message that is wanted, and returns it."""
        while True:
            try:
                told: dict[str, Any] = json.loads(self._lines.get(timeout=WITHIN_S))
            except queue.Empty:
                pytest.fail(f"not within {WITHIN_S:g} s; seen last: {self.seen[-3:]}")
            self.seen.append(told)
            if wanted(told):
                return told

    def command(self, device: str | None, metric: str, value: bool) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"device": device, "metric": metric, "value": value}) + "\n")
        self._process.stdin.flush()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    require_mosquitto()
    running = Broker(tmp_path)
    running.start()
    yield running
    running.stop()


@pytest.fixture
def host(broker: Broker) -> Iterator[Host]:
    made = Host(broker.port)
    yield made
    made.close()


class Street(FakeSource):
    """Somebody comes or goes at every look; the switch is where it was put; the yard's camera breaks when it is told to."""

    learning, broken = True, False

    def status(self) -> BoxStatus:
        status = super().status()
        gate, yard, *others = status.cameras
        gate = gate.model_copy(update={"present": {"person": self.ticks % 5}, "learning": self.learning})
        yard = yard.model_copy(update={"state": "stalled" if self.broken else "live"})
        return status.model_copy(update={"cameras": (gate, yard, *others)})


class Control:
    def __init__(self, street: Street) -> None:
        self._street = street

    def do(self, command: str, arguments: Mapping[str, Any], *, by: str) -> dict[str, Any]:
        assert (command, arguments["camera"]) == ("camera/learning", "gate")
        self._street.learning = arguments["on"]
        return {}


def numbers_follow(seen: list[dict[str, Any]]) -> bool:
    """Every message of the node and its devices has the number after the one before; a birth begins at 0."""
    numbers = [0 if m["kind"] == "NBIRTH" else m["seq"] for m in seen if m["kind"] not in ("ready", "NDEATH")]
    starts = {k for k, m in enumerate(m for m in seen if m["kind"] not in ("ready", "NDEATH")) if m["kind"] == "NBIRTH"}
    return all(k in starts or numbers[k] == (numbers[k - 1] + 1) % 256 for k in range(len(numbers)))


def test_a_host_application_understands_the_life_of_a_node(broker: Broker, host: Host, tmp_path: Path) -> None:
    street = Street()
    section = MqttSection(enabled=True, port=broker.port, sparkplug=True, sparkplug_group="plant", commands="always")
    with Store(tmp_path / "x.db") as store:
        telemetry = Telemetry(section, site="home", box="demo", source=street, outbox=Outbox(store), control=Control(street))
        assert telemetry.sparkplug is not None
        telemetry.sparkplug._look_every_s = 0.02
        telemetry.start()
        birth = host.until(lambda m: m["kind"] == "NBIRTH")
        assert birth["seq"] == 0
        assert birth["metrics"]["bdSeq"] == ["INT64", 0]
        assert birth["metrics"][REBIRTH] == ["BOOLEAN", False]
        assert birth["metrics"]["Cameras live"] == ["INT64", 2]
        assert birth["metrics"]["Spare compute pct"] == ["DOUBLE", 5.0]
        device = host.until(lambda m: m["kind"] == "DBIRTH")
        assert (device["device"], device["seq"]) == ("gate", 1)
        assert device["metrics"]["Model version"] == ["STRING", "gate-2"]
        assert device["metrics"]["Learning"] == ["BOOLEAN", True]

        host.command("gate", "Learning", False)
        host.until(lambda m: m["kind"] == "DDATA" and m["metrics"].get("Learning") == ["BOOLEAN", False])
        street.broken = True
        host.until(lambda m: m["kind"] == "DDEATH" and m["device"] == "yard")
        street.broken = False
        host.until(lambda m: m["kind"] == "DBIRTH" and m["device"] == "yard")

        before = len(host.seen)
        host.until(lambda m: m["seq"] == 255)
        assert host.until(lambda m: m["seq"] is not None)["seq"] == 0, "after 255 comes 0, without a birth"
        assert "NBIRTH" not in {m["kind"] for m in host.seen[before:]}

        host.command(None, REBIRTH, True)
        again = host.until(lambda m: m["kind"] == "NBIRTH")
        assert (again["seq"], again["metrics"]["bdSeq"]) == (0, birth["metrics"]["bdSeq"])
        devices = {host.until(lambda m: m["kind"] == "DBIRTH")["device"] for _ in range(2)}
        assert devices == {"gate", "yard"}

        telemetry.stop()
        death = host.until(lambda m: m["kind"] == "NDEATH")
        assert death["metrics"]["bdSeq"] == birth["metrics"]["bdSeq"]

        after = Telemetry(section, site="home", box="demo", source=street, outbox=Outbox(store), control=Control(street))
        after.start()
        assert host.until(lambda m: m["kind"] == "NBIRTH")["metrics"]["bdSeq"] == ["INT64", 1], "every connection the next"
        after.stop()
    assert numbers_follow(host.seen)
    assert not any(m.get("retain") for m in host.seen)
