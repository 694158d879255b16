"""`driftbox run` with its own broker: a real subscriber sees objects, Home Assistant's devices and Sparkplug's births, and turns the
learning and watching switches over MQTT."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from edge.store.accounts import AccountStore
from edge.store.store import Store
from tests.support.mosquitto import Listener
from tests.support.ports import free_port
from tests.support.running_box import RunningBox, eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

WORD = "c4n4ry-mqtt"
CONFIG = """
box: {{id: gatehouse, site: farm}}
window: {{seconds: 600, first_seconds: 600}}
scheduler: {{policy: no-retrain, drift: {{enabled: false}}}}
models: {{serving: trained}}
telemetry:
  mqtt:
    enabled: true
    broker: embedded
    port: {port}
    sparkplug: true
    embedded: {{users: [{{name: ha, password: "env:HA_PW"}}]}}
cameras:
  - id: street
    name: "<b>Straße</b> 🚗"
    url: "rendered:street?seed=101&fps=5"
    zones: {{left: [[0, 0], [0.5, 0], [0.5, 1], [0, 1]]}}
    objects: {{start_score: 0.3, lost_s: 1.0}}
"""
BASE = "driftbox/farm/gatehouse"


def answers(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


def newest(listener: Listener, ending: str) -> bytes:
    return (listener.of(ending) or [b""])[-1]


def replies(listener: Listener, command: str) -> list[dict[str, Any]]:
    return listener.json_of(f"command/{command}/reply")


def told_objects(listener: Listener) -> list[dict[str, Any]]:
    return [e for e in listener.json_of("camera/street/events") if e["kind"] in ("new", "update", "end")]


def test_objects_switches_and_devices(tmp_path: Path, boxes: list[RunningBox]) -> None:
    port = free_port()
    box = RunningBox(tmp_path, CONFIG.format(port=port), environment={"HA_PW": WORD})
    boxes.append(box)
    eventually(lambda: box.status() and answers(port), "the box and its broker answer")
    listener = Listener(port, username="ha", password=WORD)
    ended = eventually(
        lambda: next((e for e in told_objects(listener) if e["kind"] == "end"), None), "an object has come and gone"
    )
    story = [e for e in told_objects(listener) if e["id"] == ended["id"]]
    assert story[-1]["kind"] == "end"
    assert story[-1]["ended"] is not None
    assert len({e["event_id"] for e in told_objects(listener)}) == len(told_objects(listener))
    counts = eventually(lambda: listener.json_of("street/counts"), "who is there")
    assert "left" in counts[-1]["zones"]

    eventually(lambda: newest(listener, "street/config"), "Home Assistant's device")
    device = listener.json_of("street/config")[-1]
    assert device["dev"]["name"] == "<b>Straße</b> 🚗"
    assert {"learning", "watching", "left_occupancy", "quality"} <= device["cmps"].keys()
    eventually(lambda: newest(listener, "spBv1.0/farm/DBIRTH/gatehouse/street"), "Sparkplug's birth")

    eventually(lambda: newest(listener, "street/learning") == b"ON", "how the switch stands")
    listener.publish(device["cmps"]["learning"]["cmd_t"], "OFF")
    eventually(lambda: newest(listener, "street/learning") == b"OFF", "the learning switch is turned")
    status = eventually(box.status, "the status")
    assert status["cameras"][0]["learning"] is False
    (reply, *_) = eventually(lambda: replies(listener, "camera/learning"), "a reply")
    assert reply["result"] == {"camera": "street", "learning": False}

    listener.publish(device["cmps"]["watching"]["cmd_t"], "OFF")
    eventually(lambda: newest(listener, "street/watching") == b"OFF", "the camera is not watched")
    eventually(lambda: listener.json_of("street/status")[-1]["state"] == "stopped", "it is stopped, and still there")
    assert newest(listener, "street/config"), "and so is its device"
    listener.publish(device["cmps"]["watching"]["cmd_t"], "ON")
    eventually(lambda: newest(listener, "street/watching") == b"ON", "it is watched again")
    eventually(lambda: listener.json_of("street/status")[-1]["state"] == "live", "it is live again")

    listener.publish(f"{BASE}/command/camera/learning", {"id": "x", "arguments": {"camera": "nobody", "on": True}})
    refused = eventually(lambda: [r for r in replies(listener, "camera/learning") if r["id"] == "x"], "a refusal")
    assert refused[0]["error"]["code"] == "not_found"
    assert box.stop() == 0
    listener.close()
    with Store(box.data_dir / "driftbox.db") as store:
        log = [(e.who, e.action, e.outcome) for e in AccountStore(store).audit(limit=50) if e.who == "mqtt"]
    assert ("mqtt", "camera/watch", "ok") in log
    assert ("mqtt", "camera/learning", "not_found") in log
    everything = box.output.read_bytes() + b"".join(f.read_bytes() for f in box.data_dir.rglob("*") if f.is_file())
    assert WORD.encode() not in everything
