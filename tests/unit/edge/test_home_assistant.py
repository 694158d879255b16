"""Home Assistant's devices: ids that stay, templates that say what is so (run by Jinja, as Home Assistant does), names that are safe,
and nothing left behind."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment

from configs.schema import MqttSection
from edge.status import BoxStatus, CameraView, DeviceView, QualityPoint
from edge.store.outbox import Outbox
from edge.store.store import Store
from edge.telemetry.announce import STATES_LEAVE_AFTER_S, Announcer
from edge.telemetry.home_assistant import Device, devices, key_of, literal, node_id
from edge.telemetry.topics import Changes, EventIds, Topics
from edge.web.fake import EPOCH_UTC, FakeSource

GOLDEN = Path(__file__).parent / "golden_home_assistant.json"
NAMES = Topics(prefix="driftbox", site="home", box="demo")
NASTY = "<b>Tor</b> 🚪 {{ 1/0 }} '\"%}\\"
GATE = CameraView(
    id="gate", name=NASTY, state="live", model="gate-2", present={"person": 2, "car": 0},
    zones={"door": {"person": 1, "car": 0}, NASTY: {"person": 0, "car": 0}},
    quality_history=(QualityPoint(at_utc=EPOCH_UTC, f1=0.756, version="gate-2"),),
)  # fmt: skip
GPU = DeviceView(index=1, name="GPU", memory_total_mib=1000, memory_used_mib=250, utilisation_pct=71, temperature_c=None)


def status_of(*cameras: CameraView, **fields: Any) -> BoxStatus:
    return BoxStatus(
        **{"box": "demo", "site": "home", "software": "0.1.0", "now_utc": EPOCH_UTC, "started_utc": EPOCH_UTC, **fields},
        cameras=cameras,
    )


def found(status: BoxStatus, *, obeys: bool = True) -> list[Device]:
    return devices(status, NAMES, prefix="homeassistant", obeys=obeys)


def told(status: BoxStatus) -> dict[str, bytes]:
    """What stands at the broker after a status was told."""
    return {m.topic: m.payload for m in Changes(NAMES, EventIds(0)).messages(status)}


def rendered(part: dict[str, Any], kept: dict[str, bytes]) -> str:
    """The state of an entity, as Home Assistant works it out."""
    environment = ImmutableSandboxedEnvironment()
    return environment.from_string(part["val_tpl"]).render(value_json=json.loads(kept[part["stat_t"]]))


def test_the_announcement_of_a_box_and_a_camera() -> None:
    """Written down in full: what Home Assistant was told once must not change by accident."""
    made = {d.topic: d.body("0.1.0") for d in found(status_of(CameraView(id="yard", state="live", present={"person": 0})))}
    assert made == json.loads(GOLDEN.read_text(encoding="utf-8"))


def test_entities_show_what_was_told() -> None:
    status = status_of(GATE, devices=(GPU,), spare_pct=7.0)
    box, gate = found(status)
    kept = told(status)
    shown = {key: rendered(part, kept) for key, part in gate.components.items() if "val_tpl" in part}
    assert (shown["state"], shown["quality"], shown["model"]) == ("live", "75.6", "gate-2")
    assert (shown["occupancy"], shown["count"]) == ("ON", "2")
    assert (shown["occupancy_person"], shown["count_person"], shown["occupancy_car"]) == ("ON", "2", "OFF")
    assert (shown["door_occupancy"], shown["door_count_person"]) == ("ON", "1")
    assert shown[f"{key_of(NASTY)}_occupancy"] == "OFF"
    assert (shown["analysed_fps"], shown["share"]) == ("0.0", "0")
    boxes = {key: rendered(part, kept) for key, part in box.components.items() if part["stat_t"] in kept}
    assert (boxes["cameras_live"], boxes["spare"], boxes["gpu1_busy"], boxes["gpu1_memory"]) == ("1", "7.0", "71.0", "250")
    assert (boxes["mean_quality"], boxes["gpu1_temperature"]) == ("None", "None"), "Home Assistant's word for unknown"


def test_a_broken_camera_is_no_empty_room() -> None:
    (_, gate) = found(status_of(GATE))
    kept = told(status_of(GATE.model_copy(update={"state": "stalled"})))
    box, camera = gate.components["occupancy"]["avty"]
    assert box["t"] == "driftbox/home/demo/availability"
    environment = ImmutableSandboxedEnvironment()
    assert environment.from_string(camera["val_tpl"]).render(value_json=json.loads(kept[camera["t"]])) == "offline"
    assert "avty" not in gate.components["state"], "that it is stalled can still be seen"


def test_switches_and_buttons_only_where_commands_are_obeyed() -> None:
    for obeys in (True, False):
        (_, gate) = found(status_of(GATE), obeys=obeys)
        platforms = {part["p"] for part in gate.components.values()}
        assert ({"switch", "button"} <= platforms) is obeys
    (_, gate) = found(status_of(GATE))
    assert gate.components["learning"]["cmd_t"] == "driftbox/home/demo/camera/gate/learning/set"
    assert gate.components["learning"]["stat_t"] == "driftbox/home/demo/camera/gate/learning"


def test_ids_stay_whatever_things_are_called_and_no_two_are_the_same() -> None:
    status = FakeSource().status()
    ids = [part["uniq_id"] for device in found(status) for part in device.components.values()]
    assert len(set(ids)) == len(ids)
    (_, plain) = found(status_of(GATE.model_copy(update={"name": "Gate"})))
    (_, nasty) = found(status_of(GATE))
    assert plain.topic == nasty.topic
    assert [p["uniq_id"] for p in plain.components.values()] == [p["uniq_id"] for p in nasty.components.values()]
    other = [node_id(Topics(prefix="driftbox", site=site, box=box)) for site, box in (("a_b", "c"), ("a", "b_c"), ("a", "c"))]
    assert len(set(other)) == 3


def test_a_camera_belongs_to_its_box_and_both_say_where_they_come_from() -> None:
    box, gate = (device.body("0.1.0") for device in found(status_of(GATE)))
    assert gate["dev"]["via_device"] == box["dev"]["ids"][0]
    assert gate["dev"]["name"] == NASTY
    assert gate["o"] == {"name": "Driftbox", "sw": "0.1.0"}


@given(name=st.text(max_size=30))
@settings(max_examples=150, deadline=None)
def test_any_name_is_only_a_name_in_a_template(name: str) -> None:
    """Zones are called by people; a template is code that Home Assistant runs."""
    environment = ImmutableSandboxedEnvironment()
    assert (
        environment.from_string("{{ counts.get(" + literal(name) + ", 'missing') }}").render(counts={name: "found"}) == "found"
    )
    assert "}" not in literal(name)
    assert key_of(name).replace("_", "").isalnum() or key_of(name).strip("_") == ""


@given(names=st.lists(st.text(min_size=1, max_size=12), min_size=2, max_size=6, unique=True))
@settings(max_examples=100, deadline=None)
def test_zones_with_like_names_stay_apart(names: list[str]) -> None:
    assert len({key_of(name) for name in names}) == len(names)


# --- over time --------------------------------------------------------------------------------------------------------


@pytest.fixture
def outbox(tmp_path: Path) -> Iterator[Outbox]:
    with Store(tmp_path / "x.db") as store:
        yield Outbox(store)


def announcer(outbox: Outbox, **fields: Any) -> Announcer:
    return Announcer(MqttSection(enabled=True, username="box", **fields), NAMES, outbox)


def announced(announcer: Announcer, status: BoxStatus) -> dict[str, bytes]:
    return {m.topic: m.payload for m in announcer.messages(status) if m.topic.startswith("homeassistant/")}


YARD = CameraView(id="yard", state="live", present={"person": 0})


def test_everything_is_announced_once_and_again_when_home_assistant_is_reborn(outbox: Outbox) -> None:
    told_by = announcer(outbox)
    first = announced(told_by, status_of(GATE, YARD))
    assert len(first) == 3
    assert announced(told_by, status_of(GATE, YARD)) == {}
    told_by.forget()
    assert announced(told_by, status_of(GATE, YARD)) == first


def test_it_says_when_it_has_told_of_devices(outbox: Outbox) -> None:
    told_by = announcer(outbox)
    assert [bool(told_by.messages(status_of(GATE)) and told_by.told_devices) for _ in range(2)] == [True, False]
    told_by.forget()
    told_by.messages(status_of(GATE))
    assert told_by.told_devices
    off = announcer(outbox, discovery=False)
    assert off.messages(status_of(GATE)), "its devices are taken back"
    assert not off.told_devices


def test_announcements_are_retained_states(outbox: Outbox) -> None:
    assert all(m.retain and m.latest for m in announcer(outbox).messages(status_of(GATE)))


def removed(told_by: Announcer, status: BoxStatus) -> set[str]:
    """Topics that the broker is told to forget."""
    return {m.topic for m in told_by.messages(status) if not m.payload}


def test_a_removed_camera_leaves_nothing_at_the_broker_even_when_it_was_removed_while_the_box_was_off(outbox: Outbox) -> None:
    announcer(outbox).messages(status_of(GATE, YARD))
    device = f"homeassistant/device/{node_id(NAMES)}/yard/config"
    kinds = ("status", "quality", "model", "counts", "learning", "watching")
    states = {f"driftbox/home/demo/camera/yard/{kind}" for kind in kinds}
    later = announcer(outbox)
    assert removed(later, status_of(GATE)) == {device}, "first its device: nobody listens to its states any more then"
    assert removed(later, status_of(GATE, now_utc=EPOCH_UTC + STATES_LEAVE_AFTER_S - 0.1)) == set()
    last = announcer(outbox)
    assert removed(last, status_of(GATE, now_utc=EPOCH_UTC + 100)) == set(), "the box was off meanwhile: it counts anew"
    assert removed(last, status_of(GATE, now_utc=EPOCH_UTC + 100 + STATES_LEAVE_AFTER_S)) == states
    assert removed(last, status_of(GATE, now_utc=EPOCH_UTC + 200)) == set()


def test_a_camera_that_comes_back_at_once_keeps_its_states(outbox: Outbox) -> None:
    told_by = announcer(outbox)
    told_by.messages(status_of(GATE, YARD))
    told_by.messages(status_of(GATE))
    back = {m.topic for m in told_by.messages(status_of(GATE, YARD, now_utc=EPOCH_UTC + 1)) if m.payload}
    assert f"homeassistant/device/{node_id(NAMES)}/yard/config" in back
    assert removed(told_by, status_of(GATE, YARD, now_utc=EPOCH_UTC + 60)) == set()
    (device,) = removed(told_by, status_of(GATE, now_utc=EPOCH_UTC + 61))
    assert device.endswith("/yard/config"), "and when it goes again, its time begins again"


def test_a_gpu_that_is_lost_is_unknown() -> None:
    (box, _) = found(status_of(GATE, devices=(GPU,)))
    kept = told(status_of(GATE))
    assert {rendered(box.components[f"gpu1_{fact}"], kept) for fact in ("busy", "temperature", "memory")} == {"None"}


def test_discovery_that_is_switched_off_takes_its_devices_back(outbox: Outbox) -> None:
    announcer(outbox).messages(status_of(GATE))
    off = announcer(outbox, discovery=False)
    assert set(announced(off, status_of(GATE)).values()) == {b""}
    assert announced(off, status_of(GATE)) == {}


def test_another_prefix_moves_the_devices(outbox: Outbox) -> None:
    announcer(outbox).messages(status_of(GATE))
    moved = announcer(outbox, discovery_prefix="ha").messages(status_of(GATE))
    bodies = {m.topic: m.payload for m in moved if "/device/" in m.topic}
    assert [topic.split("/")[0] for topic, body in bodies.items() if body] == ["ha", "ha"]
    assert [topic.split("/")[0] for topic, body in bodies.items() if not body] == ["homeassistant", "homeassistant"]


def test_an_entity_that_is_no_more_is_named_with_its_platform_alone(outbox: Outbox) -> None:
    """Left out of the announcement it would stay in Home Assistant for ever."""
    announcer(outbox).messages(status_of(GATE))
    without = GATE.model_copy(update={"zones": {}})
    topic = f"homeassistant/device/{node_id(NAMES)}/gate/config"
    body = json.loads(announced(announcer(outbox), status_of(without))[topic])
    assert body["cmps"]["door_occupancy"] == {"p": "binary_sensor"}
    assert body["cmps"]["occupancy"]["dev_cla"] == "occupancy"
    back = json.loads(announced(announcer(outbox), status_of(GATE))[topic])
    assert back["cmps"]["door_occupancy"]["uniq_id"].endswith(".gate.door_occupancy")


def test_what_is_in_force_has_a_version_that_counts_its_changes_over_restarts(outbox: Outbox) -> None:
    def state(told_by: Announcer, *cameras: CameraView) -> list[dict[str, Any]]:
        return [json.loads(m.payload) for m in told_by.messages(status_of(*cameras)) if m.topic.endswith("demo/state")]

    first = announcer(outbox)
    (one,) = state(first, GATE)
    assert (one["version"], one["cameras"]["gate"]["learning"], one["commands"]) == (1, True, True)
    assert state(first, GATE) == []
    changed = GATE.model_copy(update={"learning": False})
    assert [s["version"] for s in state(first, changed)] == [2]
    assert [s["version"] for s in state(announcer(outbox), changed)] == [2], "a restart changes nothing"
    assert [s["version"] for s in state(announcer(outbox), GATE)] == [3]
