"""What Home Assistant is told of the box and its cameras: one device each, with its entities. Pure: names and texts, no network.

Device discovery (one retained message per device, Home Assistant 2024.11 and later): `<prefix>/device/<node>/config` for the box,
`<prefix>/device/<node>/<camera>/config` for a camera. Ids never change while box, site, prefix and camera keep theirs, whatever their
names become. All that comes from outside (names, classes, zones) stands in JSON strings or, in templates, in escaped literals.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from configs.units import CLASSES
from edge.status import BoxStatus, CameraView, DeviceView
from edge.telemetry.topics import OFF, OFFLINE, ON, ONLINE, STATS_EVERY_S, Topics

MAKER = "Driftbox"
#: Entities whose numbers come with the statistics are unknown when those stay away.
_STALE_S = int(3 * STATS_EVERY_S)

Component = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Device:
    """One device. topic: where its announcement stands; components: by their key."""

    topic: str
    device: Mapping[str, Any]
    availability: tuple[Mapping[str, Any], ...]
    components: Mapping[str, Component]

    def body(self, software: str, gone: Mapping[str, str] | None = None) -> dict[str, Any]:
        """The announcement. gone: entities that it had and has no more, with their platform: they are removed."""
        removed = {key: {"p": platform} for key, platform in sorted((gone or {}).items()) if key not in self.components}
        return {
            "dev": dict(self.device),
            "o": {"name": MAKER, "sw": software},
            "avty": [dict(one) for one in self.availability],
            "avty_mode": "all",
            "qos": 1,
            "cmps": {**self.components, **removed},
        }


def node_id(topics: Topics) -> str:
    """The box among all devices: its name, and a digest, because names of two sites may join to the same text."""
    digest = hashlib.sha256(f"{topics.prefix}/{topics.site}/{topics.box}".encode()).hexdigest()[:8]
    return f"driftbox_{topics.box}_{digest}"


def literal(text: str) -> str:
    """A Jinja string literal of any text, in which nothing can end the literal or the template."""
    return "'" + "".join(c if c.isascii() and (c.isalnum() or c in "_ -") else f"\\U{ord(c):08x}" for c in text) + "'"


def key_of(text: str) -> str:
    """A text as part of a component's key: itself where it is plain, else with a digest of what was left out."""
    plain = re.sub(r"[^a-z0-9_]+", "_", text.lower()).strip("_")
    return text if plain == text else f"{plain}_{hashlib.sha256(text.encode()).hexdigest()[:6]}".strip("_")


def devices(status: BoxStatus, topics: Topics, *, prefix: str, obeys: bool) -> list[Device]:
    """The box and its cameras. obeys: whether there are switches and buttons, or only what can be seen."""
    return [_box(status, topics, prefix), *(_camera(status, camera, topics, prefix, obeys) for camera in status.cameras)]


# --- the box ----------------------------------------------------------------------------------------------------------


def _box(status: BoxStatus, topics: Topics, prefix: str) -> Device:
    node = node_id(topics)
    stats = topics.of_box("stats")
    found = {
        "cameras_live": _sensor("Cameras live", stats, "value_json.cameras_live", icon="mdi:cctv", measured=True),
        "mean_quality": _sensor(
            "Mean quality", stats, _percent("value_json.mean_quality"), unit="%", icon="mdi:chart-line", measured=True
        ),
        "spare": _sensor("Spare compute", stats, "value_json.spare_pct", unit="%", icon="mdi:gauge-empty", measured=True),
        "window": _sensor(
            "Window", topics.of_box("window"), "value_json.window", icon="mdi:timeline-clock", diagnostic=True
        ),
        "predicted": _sensor(
            "Expected quality", topics.of_box("window"),
            _percent("(value_json.expected_quality if value_json.kind == 'plan' else value_json.predicted_quality)"),
            unit="%", icon="mdi:crystal-ball", measured=True,
        ),
        **{key: part for number, device in enumerate(status.devices) for key, part in _gpu(number, device, stats)},
    }  # fmt: skip
    for key, part in found.items():
        part["uniq_id"] = f"{node}.{key}"
        if part["stat_t"] == stats:
            part["exp_aft"] = _STALE_S
    about = {
        "ids": [node], "name": f"{MAKER} {status.box}", "mf": MAKER, "mdl": "Driftbox", "sw": status.software, "sa": status.site,
    }  # fmt: skip
    return Device(topic=f"{prefix}/device/{node}/config", device=about, availability=(_box_online(topics),), components=found)


def _gpu(number: int, device: DeviceView, stats: str) -> Iterator[tuple[str, Component]]:
    # A GPU that is lost is not in the list any more, until its entities are taken back.
    row, name = f"(value_json.devices[{number}:{number + 1}] | first | default({{}}))", f"GPU {device.index}"
    yield (
        f"gpu{device.index}_busy",
        _sensor(f"{name} busy", stats, f"{row}.get('utilisation_pct')", unit="%", measured=True, diagnostic=True),
    )
    yield (
        f"gpu{device.index}_temperature",
        _sensor(
            f"{name} temperature",
            stats,
            f"{row}.get('temperature_c')",
            unit="°C",
            kind="temperature",
            measured=True,
            diagnostic=True,
        ),
    )
    yield (
        f"gpu{device.index}_memory",
        _sensor(
            f"{name} memory",
            stats,
            f"{row}.get('memory_used_mib')",
            unit="MiB",
            kind="data_size",
            measured=True,
            diagnostic=True,
        ),
    )


# --- a camera ---------------------------------------------------------------------------------------------------------


def _camera(status: BoxStatus, camera: CameraView, topics: Topics, prefix: str, obeys: bool) -> Device:
    node = node_id(topics)
    found = {
        **_facts(camera, topics),
        **dict(_who_is_there(camera, topics)),
        **(_controls(camera, topics) if obeys else {}),
    }
    for key, part in found.items():
        part["uniq_id"] = f"{node}.{camera.id}.{key}"
    about = {
        "ids": [f"{node}.{camera.id}"], "name": camera.name or camera.id, "mf": MAKER, "mdl": f"Camera ({camera.task})",
        "sw": status.software, "via_device": node, "sa": status.site,
    }  # fmt: skip
    return Device(
        topic=f"{prefix}/device/{node}/{camera.id}/config", device=about, availability=(_box_online(topics),), components=found
    )


def _facts(camera: CameraView, topics: Topics) -> dict[str, Component]:
    stats, me = topics.of_box("stats"), f"value_json.cameras.get({literal(camera.id)}, {{}})"
    share = f"value_json.shares.get({literal('infer:' + camera.id)}, {{}}).get('received_pct', 0)"
    status = topics.of_camera(camera.id, "status")
    found = {
        "state": _sensor("State", status, "value_json.state", icon="mdi:cctv", diagnostic=True) | {"json_attr_t": status},
        "quality": _sensor(
            f"Quality ({camera.quality_name})", topics.of_camera(camera.id, "quality"), _percent("value_json.f1"), unit="%",
            icon="mdi:chart-line", measured=True,
        ),
        "model": _sensor(
            "Model version", topics.of_camera(camera.id, "model"), "value_json.version", icon="mdi:brain", diagnostic=True
        ),
        "analysed_fps": _sensor(
            "Analysed pictures", stats, f"{me}.get('analysed_fps')", unit="fps", icon="mdi:speedometer", measured=True, diagnostic=True
        ),
        "share": _sensor(
            "Share of compute", stats, f"{share} | round(1)", unit="%", icon="mdi:chart-pie", measured=True, diagnostic=True
        ),
    }  # fmt: skip
    for part in found.values():
        if part["stat_t"] == stats:
            part["exp_aft"] = _STALE_S
    return found


def _who_is_there(camera: CameraView, topics: Topics) -> Iterator[tuple[str, Component]]:
    """Occupancy and counts, of the whole picture and of every zone. They are unknown while the camera gives no pictures: nobody must
    take a broken camera for an empty room."""
    counts = topics.of_camera(camera.id, "counts")
    classes = tuple(camera.present) or CLASSES
    places = [("", "", "value_json.present")]
    places += [(f"{key_of(zone)}_", f"{zone}: ", f"value_json.zones.get({literal(zone)}, {{}})") for zone in camera.zones]
    shared = {"stat_t": counts, "avty": [_box_online(topics), _camera_live(camera, topics)], "avty_mode": "all"}
    for key, words, where in places:
        total = f"({where}.values() | sum)"
        yield f"{key}occupancy", _occupancy(f"{words}Occupancy", total) | shared
        yield f"{key}count", _sensor(f"{words}Objects", counts, total, icon="mdi:counter", measured=True) | shared
        for name in classes:
            number = f"{where}.get({literal(name)}, 0)"
            yield f"{key}occupancy_{key_of(name)}", _occupancy(f"{words}{name.capitalize()} occupancy", number) | shared
            yield (
                f"{key}count_{key_of(name)}",
                _sensor(f"{words}{name.capitalize()} count", counts, number, icon="mdi:counter", measured=True) | shared,
            )


def _controls(camera: CameraView, topics: Topics) -> dict[str, Component]:
    def switch(name: str, kind: str, icon: str) -> Component:
        topic = topics.of_camera(camera.id, kind)
        return {
            "p": "switch", "name": name, "stat_t": topic, "cmd_t": f"{topic}/set", "pl_on": ON, "pl_off": OFF, "ic": icon,
            "ent_cat": "config",
        }  # fmt: skip

    return {
        "learning": switch("Learning", "learning", "mdi:school"),
        "watching": switch("Watching", "watching", "mdi:cctv"),
        "rollback": {
            "p": "button", "name": "Roll back model", "cmd_t": f"{topics.of_camera(camera.id, 'rollback')}/set",
            "pl_prs": "PRESS", "ic": "mdi:backup-restore", "ent_cat": "config",
        },
        "restart": {
            "p": "button", "name": "Open anew", "cmd_t": f"{topics.of_camera(camera.id, 'restart')}/set",
            "pl_prs": "PRESS", "dev_cla": "restart", "ent_cat": "config",
        },
    }  # fmt: skip


# --- parts ------------------------------------------------------------------------------------------------------------


def _box_online(topics: Topics) -> dict[str, Any]:
    return {"t": topics.of_box("availability"), "pl_avail": ONLINE, "pl_not_avail": OFFLINE}


def _camera_live(camera: CameraView, topics: Topics) -> dict[str, Any]:
    words = f"{{{{ '{ONLINE}' if value_json.state == 'live' else '{OFFLINE}' }}}}"
    return {"t": topics.of_camera(camera.id, "status"), "val_tpl": words}


def _percent(value: str) -> str:
    """A part of 1 in percent; nothing where there is no number."""
    return f"(100 * {value}) | round(1) if {value} is number else none"


def _occupancy(name: str, number: str) -> Component:
    value = f"{{{{ '{ON}' if {number} > 0 else '{OFF}' }}}}"
    return {"p": "binary_sensor", "name": name, "dev_cla": "occupancy", "val_tpl": value, "pl_on": ON, "pl_off": OFF}


def _sensor(
    name: str,
    topic: str,
    value: str,
    *,
    unit: str = "",
    kind: str = "",
    icon: str = "",
    measured: bool = False,
    diagnostic: bool = False,
) -> Component:
    part: Component = {"p": "sensor", "name": name, "stat_t": topic, "val_tpl": f"{{{{ {value} }}}}"}
    optional = {
        "unit_of_meas": unit, "dev_cla": kind, "ic": icon, "stat_cla": "measurement" if measured else "",
        "ent_cat": "diagnostic" if diagnostic else "",
    }  # fmt: skip
    return part | {key: word for key, word in optional.items() if word}
