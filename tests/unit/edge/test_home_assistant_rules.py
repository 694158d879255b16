"""What Home Assistant demands of an announcement, as its own schemas say (read in 2025.4.4 and 2026.11.0; the first was also run:
`tests/integration/test_home_assistant_real.py`). One that breaks a rule is refused there as a whole, with all its entities."""

from __future__ import annotations

import json
import re
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment

from edge.status import BoxStatus, CameraView, DeviceView
from edge.telemetry.home_assistant import devices
from edge.telemetry.topics import Topics
from edge.web.fake import EPOCH_UTC, FakeSource

NAMES = Topics(prefix="driftbox", site="home", box="demo")
#: Topics of announcements, after the prefix.
TOPIC = re.compile(r"device/(?:[a-zA-Z0-9_-]+/)?[a-zA-Z0-9_-]+/config")
#: Longest topic, in bytes of UTF-8.
TOPIC_MAX = 65_535
#: Keys that an announcement, its device, its origin and its availability may have; others refuse the announcement.
TOP, DEVICE, ORIGIN = (
    {"dev", "o", "cmps", "avty", "avty_mode", "qos"},
    {"ids", "name", "mf", "mdl", "sw", "sa", "via_device"},
    {"name", "sw"},
)
AVAILABILITY = {"t", "pl_avail", "pl_not_avail", "val_tpl"}
_OF_ALL = {"p", "name", "uniq_id", "ic", "ent_cat", "avty", "avty_mode", "dev_cla"}
_SHOWN = {"stat_t", "val_tpl", "json_attr_t"}
#: Platform -> keys it knows (others it leaves out without a word, which nobody would notice there), and keys it must have.
KNOWN = {
    "sensor": _OF_ALL | _SHOWN | {"unit_of_meas", "stat_cla", "exp_aft"}, "binary_sensor": _OF_ALL | _SHOWN | {"pl_on", "pl_off"},
    "switch": _OF_ALL | {"stat_t", "cmd_t", "pl_on", "pl_off"}, "button": _OF_ALL | {"cmd_t", "pl_prs"},
}  # fmt: skip
NEEDED = {"sensor": {"stat_t"}, "binary_sensor": {"stat_t"}, "switch": {"cmd_t"}, "button": {"cmd_t"}}
#: What only shows something is no setting: Home Assistant refuses such an entity.
CATEGORIES = {"sensor": {"diagnostic"}, "binary_sensor": {"diagnostic"}, "switch": {"config"}, "button": {"config"}}
#: Device classes with the units that go with them.
CLASSES: dict[str, dict[str, set[str | None]]] = {
    "sensor": {"temperature": {"°C", "°F", "K"}, "data_size": {"B", "kB", "KiB", "MB", "MiB", "GB", "GiB"}},
    "binary_sensor": {"occupancy": {None}}, "switch": {}, "button": {"restart": {None}},
}  # fmt: skip


def is_topic(text: Any, *, published: bool = False) -> bool:
    """As MQTT wants them. published: without wildcards."""
    odd = {c for c in text if c <= "\x1f" or "\x7f" <= c <= "\x9f" or "\ufdd0" <= c <= "\ufdef" or ord(c) & 0xFFFE == 0xFFFE}
    return (
        isinstance(text, str) and 0 < len(text.encode()) <= TOPIC_MAX and not odd and not (published and set("+#") & set(text))
    )


def is_template(text: str) -> bool:
    ImmutableSandboxedEnvironment().from_string(text)  # raises
    return "{{" in text


def breaches_of_availability(where: str, entries: Any) -> list[str]:
    found = [f"{where}: {entry.keys() - AVAILABILITY}" for entry in entries if entry.keys() - AVAILABILITY or "t" not in entry]
    found += [f"{where}: topic {entry['t']!r}" for entry in entries if not is_topic(entry["t"])]
    return found + [f"{where}: template" for entry in entries if "val_tpl" in entry and not is_template(entry["val_tpl"])]


def breaches_of_entity(key: str, part: dict[str, Any]) -> list[str]:
    """What Home Assistant would refuse, or leave out, of an entity."""
    platform = part["p"]
    if part.keys() == {"p"}:
        return [] if platform in KNOWN else [f"{key}: removed from {platform}"]
    found = [f"{key}: unknown {name}" for name in part.keys() - KNOWN[platform]]
    found += [f"{key}: without {name}" for name in (NEEDED[platform] | {"uniq_id", "name"}) - part.keys()]
    found += [
        f"{key}: {name} is no text"
        for name, value in part.items()
        if name not in ("exp_aft", "avty") and not isinstance(value, str)
    ]
    found += [f"{key}: {t} {part[t]!r}" for t in ("stat_t", "json_attr_t") if t in part and not is_topic(part[t])]
    if "cmd_t" in part and not is_topic(part["cmd_t"], published=True):
        found.append(f"{key}: cmd_t {part['cmd_t']!r}")
    if "val_tpl" in part and not is_template(part["val_tpl"]):
        found.append(f"{key}: template {part['val_tpl']!r}")
    if part.get("ent_cat", next(iter(CATEGORIES[platform]))) not in CATEGORIES[platform]:
        found.append(f"{key}: category {part['ent_cat']}")
    if "ic" in part and not part["ic"].startswith("mdi:"):
        found.append(f"{key}: icon {part['ic']}")
    if "dev_cla" in part and part.get("unit_of_meas") not in CLASSES[platform].get(part["dev_cla"], ()):
        found.append(f"{key}: {part['dev_cla']} in {part.get('unit_of_meas')}")
    if part.get("stat_cla", "measurement") != "measurement" or not part.get("unit_of_meas", "-").strip():
        found.append(f"{key}: state class or unit")
    if not (isinstance(part.get("exp_aft", 1), int) and part.get("exp_aft", 1) > 0):
        found.append(f"{key}: expires after {part['exp_aft']}")
    return found + breaches_of_availability(key, part.get("avty", ()))


def breaches(topic: str, body: dict[str, Any]) -> list[str]:
    """Every rule that an announcement breaks."""
    found = [] if TOPIC.fullmatch(topic.removeprefix("homeassistant/")) else [f"topic {topic!r}"]
    found += [f"unknown {name}" for name in body.keys() - TOP] + [
        f"without {name}" for name in {"dev", "o", "cmps"} - body.keys()
    ]
    found += [f"device: {name}" for name in body["dev"].keys() - DEVICE] + [
        f"origin: {name}" for name in body["o"].keys() - ORIGIN
    ]
    words = [*(v for k, v in body["dev"].items() if k != "ids"), *body["dev"]["ids"], *body["o"].values()]
    found += [f"device: {word!r} is no text" for word in words if not isinstance(word, str) or not word]
    if not body["dev"]["ids"] or not body["o"].get("name") or body["qos"] not in (0, 1, 2):
        found.append("no identifier, origin or QoS")
    if body["avty_mode"] not in ("all", "any", "latest"):
        found.append(f"availability {body['avty_mode']}")
    found += breaches_of_availability("device", body["avty"])
    return found + [breach for key, part in body["cmps"].items() for breach in breaches_of_entity(key, part)]


def announced(status: BoxStatus, *, obeys: bool = True) -> dict[str, dict[str, Any]]:
    """As it travels: topic -> body."""
    made = devices(status, NAMES, prefix="homeassistant", obeys=obeys)
    return {one.topic: json.loads(json.dumps(one.body("0.1.0", {"once": "sensor"}), ensure_ascii=False)) for one in made}


TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=40)
COUNTS = st.dictionaries(TEXTS, st.integers(0, 3), max_size=3)
CAMERAS = st.builds(
    CameraView, id=st.from_regex(r"[a-z0-9][a-z0-9_-]{0,20}", fullmatch=True), name=TEXTS, state=st.just("live"), present=COUNTS,
    zones=st.dictionaries(TEXTS, COUNTS, max_size=3),
)  # fmt: skip


def test_a_box_with_everything_breaks_no_rule() -> None:
    for obeys in (True, False):
        told = announced(FakeSource().status(), obeys=obeys)
        assert len(told) == 5
        assert {topic: found for topic, body in told.items() if (found := breaches(topic, body))} == {}


@given(cameras=st.lists(CAMERAS, max_size=3, unique_by=lambda camera: camera.id), gpus=st.integers(0, 3))
@settings(max_examples=25, deadline=None)
def test_whatever_things_are_called_no_rule_is_broken(cameras: list[CameraView], gpus: int) -> None:
    cards = tuple(DeviceView(index=k, name="GPU", memory_total_mib=1, memory_used_mib=0) for k in range(gpus))
    status = BoxStatus(
        box="demo",
        site="home",
        software="0.1.0",
        now_utc=EPOCH_UTC,
        started_utc=EPOCH_UTC,
        cameras=tuple(cameras),
        devices=cards,
    )
    told = announced(status)
    assert {topic: found for topic, body in told.items() if (found := breaches(topic, body))} == {}
    ids = [part["uniq_id"] for body in told.values() for part in body["cmps"].values() if "uniq_id" in part]
    assert len(set(ids)) == len(ids)


def test_the_rules_find_what_is_wrong() -> None:
    """Each breach that Home Assistant would refuse is one here too: otherwise this test says nothing."""
    (topic, body), *_ = announced(FakeSource().status()).items()
    key, part = next((key, part) for key, part in body["cmps"].items() if "unit_of_meas" in part)
    wrong: list[dict[str, Any]] = [
        {"unknown": 1}, {"ent_cat": "config"}, {"dev_cla": "temperature", "unit_of_meas": "%"}, {"ic": "eye"}, {"stat_t": "a\nb"},
        {"exp_aft": 0}, {"name": None}, {"avty": [{"topic": "x", "t": "x"}]}, {"stat_cla": "rising"},
    ]  # fmt: skip
    for more in wrong:
        assert breaches(topic, {**body, "cmps": {key: {**part, **more}}}), more
    assert breaches(topic, {**body, "cmps": {key: {k: v for k, v in part.items() if k != "uniq_id"}}})
    assert breaches("homeassistant/device/a b/config", body)
    assert breaches(topic, {**body, "dev": {**body["dev"], "serial": "1"}})
