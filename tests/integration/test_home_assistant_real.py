"""A real Home Assistant with a real broker and a real box: what it makes of us is asked of Home Assistant alone. Skipped where there is
none (`tests/support/home_assistant.py`); `tests/unit/edge/test_home_assistant_rules.py` holds its rules everywhere."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from configs.schema import MqttSection
from edge.status import BoxStatus
from edge.store.outbox import Outbox
from edge.store.store import Store
from edge.telemetry.embedded_broker import EmbeddedBroker
from edge.telemetry.publisher import Telemetry
from edge.web.fake import FakeSource
from tests.support.home_assistant import NEEDED, PYTHON, HomeAssistant, until
from tests.support.mosquitto import Broker, Listener, require_mosquitto
from tests.support.ports import free_port
from tests.support.running_box import RunningBox, asking_headers, eventually

pytestmark = [pytest.mark.mqtt, pytest.mark.slow, pytest.mark.timeout(1800), pytest.mark.skipif(not PYTHON, reason=NEEDED)]

NAME = "<b>Straße</b> 🚗 {{ 1/0 }} '\"%}\\"
UNKNOWN = {"unavailable", "unknown"}
CONFIG = """
box: {{id: gatehouse, site: farm}}
window: {{seconds: 600, first_seconds: 600}}
scheduler: {{policy: no-retrain, drift: {{enabled: false}}}}
models: {{serving: trained}}
telemetry: {{mqtt: {{enabled: true, port: {port}, commands: always, sparkplug: true}}}}
cameras:
  - id: street
    name: {name}
    url: "rendered:street?seed=101&fps=5"
    zones: {{left: [[0, 0], [0.5, 0], [0.5, 1], [0, 1]]}}
    objects: {{start_score: 0.3, lost_s: 1.0}}
"""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    require_mosquitto()
    folder = tmp_path / "broker"
    folder.mkdir()
    running = Broker(folder)
    running.start()
    yield running
    running.stop()


@pytest.fixture
def house(tmp_path: Path, broker: Broker) -> Iterator[HomeAssistant]:
    made = HomeAssistant(tmp_path / "house", broker.port)
    made.start()
    yield made
    made.stop()


class Shop(FakeSource):
    """Four cameras whose first has a name and zones that would break a page or a template, and somebody in one of them."""

    present, door = 1, True

    def status(self) -> BoxStatus:
        status = super().status()
        gate, *others = status.cameras
        seen = {"person": self.present, "car": 0}
        zones = {NAME: seen, **({"door": {"person": 0, "car": 0}} if self.door else {})}
        gate = gate.model_copy(update={"name": NAME, "present": seen, "zones": zones})
        return status.model_copy(update={"cameras": (gate, *others)})


class Control:
    """Does nothing, and remembers that it was asked."""

    def __init__(self) -> None:
        self.done: list[tuple[str, dict[str, Any]]] = []

    def do(self, command: str, arguments: Mapping[str, Any], *, by: str) -> dict[str, Any]:
        self.done.append((command, dict(arguments)))
        return {}


def device_named(house: HomeAssistant, ending: str) -> dict[str, Any]:
    """Of the identifier that ends so; {}: there is none."""
    return next((device for id, device in house.devices().items() if id.endswith(ending) and id.startswith("driftbox_")), {})


def shown(house: HomeAssistant, ending: str) -> dict[str, dict[str, Any]]:
    """What an entity of this device is called there -> its state and attributes."""
    device, states = device_named(house, ending), house.states()
    found = {}
    for entity in device.get("entities", ()):
        if (state := states.get(entity)) is None:
            continue  # it is about to come
        name = str(state["attributes"]["friendly_name"]).removeprefix(device["name"]).strip()
        found[f"{entity.partition('.')[0]} {name}"] = {"entity": entity, "state": state["state"], **state["attributes"]}
    return found


def test_what_home_assistant_makes_of_every_entity(house: HomeAssistant, broker: Broker, tmp_path: Path) -> None:
    """Names, units, classes and values of a box with GPUs and cameras in all states; no complaint in its log."""
    source, control = Shop(), Control()
    with Store(tmp_path / "x.db") as store:
        section = MqttSection(enabled=True, port=broker.port, commands="always")
        telemetry = Telemetry(section, site="home", box="demo", source=source, outbox=Outbox(store), control=control)
        telemetry.start()
        # The statistics come when its entities are there to read them, not a minute later.
        until(lambda: shown(house, "546ead11").get("sensor Cameras live", {}).get("state") == "2", "the box is shown")
        until(lambda: device_named(house, ".hall"), "the last camera is shown")
        box, gate, dock = (shown(house, ending) for ending in ("546ead11", ".gate", ".dock"))
        source.door = False
        until(lambda: not any("door" in name for name in shown(house, ".gate")), "a zone is gone, and its entities with it")
        assert "sensor Objects" in shown(house, ".gate")
        telemetry.stop()
        until(lambda: {e["state"] for e in shown(house, ".gate").values()} == {"unavailable"}, "the box has gone")
    facts = {
        name: (f["state"], f.get("unit_of_measurement"), f.get("device_class"), f.get("state_class"))
        for name, f in {**box, **gate}.items()
    }
    assert facts["sensor GPU 0 temperature"] == ("83.0", "°C", "temperature", "measurement")
    assert facts["sensor GPU 0 memory"] == ("2048", "MiB", "data_size", "measurement")
    assert facts["sensor Spare compute"] == ("5.0", "%", None, "measurement")
    assert facts["sensor Expected quality"] == ("52.0", "%", None, "measurement")
    assert facts["sensor Model version"] == ("gate-2", None, None, None)
    assert facts["sensor Analysed pictures"] == ("4.8", "fps", None, "measurement")
    assert facts["sensor Share of compute"] == ("34.2", "%", None, "measurement")
    assert facts["sensor Person count"] == ("1", None, None, "measurement")
    assert facts["binary_sensor Occupancy"] == ("on", None, "occupancy", None)
    assert facts[f"binary_sensor {NAME}: Person occupancy"] == ("on", None, "occupancy", None)
    assert facts["binary_sensor door: Occupancy"] == ("off", None, "occupancy", None)
    assert facts["button Open anew"][2] == "restart"
    assert 0 < float(gate["sensor Quality (F1)"]["state"]) <= 100
    assert gate["switch Learning"]["state"] == gate["switch Watching"]["state"] == "on"
    assert device_named(house, ".gate")["name"] == NAME
    assert device_named(house, ".gate")["of"] == "Driftbox demo"
    assert dock["sensor State"]["state"] == "stalled"
    assert dock["binary_sensor Occupancy"]["state"] == "unavailable", "a broken camera is no empty room"
    assert house.complaints() == []


def test_a_house_whose_broker_is_the_boxs_own(tmp_path: Path) -> None:
    """For who has no broker: Home Assistant comes in with the user that the box was given, sees everything and turns a switch."""
    user = {"name": "ha", "password": "c4n4ry-ha"}
    section = MqttSection.model_validate(
        {"enabled": True, "broker": "embedded", "port": free_port(), "embedded": {"users": [user]}, "commands": "always"}
    )
    broker, control = EmbeddedBroker(section, tmp_path / "broker"), Control()
    house = HomeAssistant(tmp_path / "house", section.port, username="ha", password="c4n4ry-ha")
    with Store(tmp_path / "x.db") as store:
        broker.start()
        telemetry = Telemetry(
            broker.reached_by(), site="home", box="demo", source=Shop(), outbox=Outbox(store), control=control
        )
        telemetry.start()
        try:
            house.start()
            until(lambda: shown(house, ".gate").get("sensor State", {}).get("state") == "live", "a camera is shown")
            until(lambda: shown(house, ".gate")["sensor Analysed pictures"]["state"] == "4.8", "its statistics")
            house.do("switch", "turn_off", shown(house, ".gate")["switch Learning"]["entity"])
            until(lambda: control.done, "the switch reaches the box")
            telemetry.stop()
            until(lambda: {e["state"] for e in shown(house, ".gate").values()} == {"unavailable"}, "the box has gone")
        finally:
            house.stop()
            telemetry.stop()
            broker.stop()
    assert control.done == [("camera/learning", {"camera": "gate", "on": False})]
    assert house.complaints() == []


class Box:
    """`driftbox run` at the broker, and its operator."""

    def __init__(self, folder: Path, broker: Broker, boxes: list[RunningBox]) -> None:
        self._config = CONFIG.format(port=broker.port, name=json.dumps(NAME, ensure_ascii=False))
        self._folder, self._boxes = folder, boxes
        self.start()

    def start(self) -> None:
        self.running = RunningBox(self._folder, self._config)
        self._boxes.append(self.running)
        eventually(self.running.status, "the box answers")

    def kill(self) -> None:
        processes = self.running.processes()
        self.running.process.send_signal(signal.SIGKILL)
        self.running.process.wait()
        psutil.wait_procs(processes, timeout=60)

    def ask(self, method: str, path: str, body: object = None) -> None:
        url, headers = f"http://127.0.0.1:{self.running.port}/api/v1/{path}", asking_headers(self.running.data_dir)
        answer = httpx.request(method, url, json=body, timeout=300, headers=headers)
        assert answer.status_code < 300, answer.text

    def learns(self) -> bool:
        status = self.running.status()
        return bool(status and status["cameras"][0]["learning"])


def turned(house: HomeAssistant, box: Box, word: str) -> None:
    """Home Assistant's switch is turned on or off: the box does it, and that is what it shows."""
    house.do("switch", f"turn_{word}", shown(house, ".street")["switch Learning"]["entity"])
    until(lambda: shown(house, ".street")["switch Learning"]["state"] == word, f"learning is {word}")
    assert box.learns() is (word == "on")


def test_a_house_with_a_box(house: HomeAssistant, broker: Broker, tmp_path: Path, boxes: list[RunningBox]) -> None:
    listener = Listener(broker.port)
    box = Box(tmp_path, broker, boxes)

    def street() -> dict[str, dict[str, Any]]:
        return shown(house, ".street")

    # It appears, and what it sees is what is shown.
    until(lambda: street().get("sensor State", {}).get("state") == "live", "the camera is shown")
    ids = sorted(entity["entity"] for entity in street().values())
    assert device_named(house, ".street")["name"] == NAME
    wanted = {"binary_sensor Occupancy", "sensor Objects", "sensor Quality (F1)", "sensor Model version", "switch Learning"}
    assert wanted | {"binary_sensor left: Occupancy", "sensor left: Objects"} <= street().keys()
    until(lambda: street()["sensor Model version"]["state"] not in UNKNOWN, "the model serves")
    seen = listener.json_of("camera/street/counts")
    until(lambda: street()["binary_sensor Occupancy"]["state"] == "on", "somebody is in the street")
    until(lambda: street()["binary_sensor Occupancy"]["state"] == "off", "nobody is in the street")
    until(lambda: listener.json_of("camera/street/events"), "events were told")
    assert len(listener.json_of("camera/street/counts")) > len(seen)

    # The switch goes there and back.
    turned(house, box, "off")
    turned(house, box, "on")

    # Gone without a word: the will. Back: as before.
    box.kill()
    until(lambda: {e["state"] for e in street().values()} == {"unavailable"}, "the box was killed")
    box.start()
    until(lambda: street()["sensor State"]["state"] == "live", "the box is back")
    until(lambda: street()["sensor Analysed pictures"]["state"] not in UNKNOWN, "and its statistics")
    assert sorted(entity["entity"] for entity in street().values()) == ids

    # A camera comes, gets another name, and goes.
    box.ask("POST", "cameras", {"id": "hof", "name": "Hof", "url": "rendered:yard?seed=3&fps=2", "objects": {"enabled": False}})
    until(lambda: device_named(house, ".hof"), "another camera is shown")
    before = device_named(house, ".hof")["entities"]
    box.ask("PATCH", "cameras/hof", {"name": "Höfchen 🏡"})
    until(lambda: device_named(house, ".hof")["name"] == "Höfchen 🏡", "it has another name")
    assert device_named(house, ".hof")["entities"] == before
    box.ask("DELETE", "cameras/hof")
    until(lambda: not device_named(house, ".hof") and not set(before) & set(house.states()), "it is gone")

    # Home Assistant restarts: all is as before within seconds, also what the broker does not keep.
    house.stop()
    house.start()
    until(lambda: street()["sensor State"]["state"] == "live", "the camera is shown again")
    until(lambda: street()["sensor Analysed pictures"]["state"] not in UNKNOWN, "and its statistics")
    assert sorted(entity["entity"] for entity in street().values()) == ids
    assert house.complaints() == []
    assert box.running.stop() == 0
    listener.close()
