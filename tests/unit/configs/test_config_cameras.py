"""What a camera entry may hold beside its address: names, zones, classes, its two streams, its times."""

from __future__ import annotations

import pytest
import yaml

from configs.errors import ConfigError
from configs.load import parse_config
from configs.schema import CameraEntry


def parsed(**fields: object) -> CameraEntry:
    camera = {"id": "gate", "url": "rtsp://192.0.2.1/sub", **fields}
    return parse_config(yaml.safe_dump({"cameras": [camera]}, allow_unicode=True)).cameras[0]


def problem(**fields: object) -> str:
    with pytest.raises(ConfigError) as refused:
        parsed(**fields)
    [(path, text)] = refused.value.problems
    return f"{path}: {text}"


@pytest.mark.parametrize(
    "name", ["<script>alert(1)</script>", "Tor \N{DOOR}", "門", "\N{WOMAN}\u200d\N{FIRE ENGINE}", "a" * 80]
)
def test_a_name_is_any_line_of_text(name: str) -> None:
    assert parsed(name=name).title == name


@pytest.mark.parametrize("name", ["two\nlines", "bell\a", "nul\0"])
def test_a_name_is_one_line(name: str) -> None:
    camera = {"id": "gate", "url": "rtsp://192.0.2.1/sub", "name": name}
    with pytest.raises(ValueError, match="one line"):
        CameraEntry.model_validate(camera)


def test_zones_are_polygons_with_an_area() -> None:
    zone = [[0, 0], [1, 0], [1, 1]]
    assert parsed(zones={"yard": zone}).zones == {"yard": ((0, 0), (1, 0), (1, 1))}
    assert "at least 3" in problem(zones={"yard": zone[:2]})
    assert "outside 0 to 1" in problem(zones={"yard": [[0, 0], [2, 0], [1, 1]]})
    assert "no area" in problem(zones={"yard": [[0, 0], [0.5, 0.5], [1, 1]]})
    assert "must begin with" in problem(zones={"Yard!": zone})


def test_classes_are_known_ones() -> None:
    assert parsed(classes=["person", "car"]).classes == ("person", "car")
    assert "no class 'dragon'" in problem(classes=["dragon"])


def test_the_main_stream_is_an_address_too_and_as_hidden() -> None:
    entry = parsed(record_url="rtsp://user:hush-hush@192.0.2.1/main")
    assert "hush-hush" not in repr(entry) + str(entry.model_dump(mode="json"))
    assert "hush" not in problem(record_url="gopher://user:hush@192.0.2.1/main")
    assert "one stream" in problem(record_url="rendered:street")


def test_times_are_checked_at_the_door() -> None:
    schedule = {"time_zone": "Europe/Berlin", "watch": ["mon-fri 07:00-19:00"], "learn": ["22:00-06:00"]}
    entry = parsed(schedule=schedule)
    assert len(entry.schedule.spans("watch")) == len(entry.schedule.spans("learn")) == 1
    assert "time zone" in problem(schedule={"time_zone": "Mars/Olympus"})
    assert "time zone" in problem(schedule={"time_zone": "../../etc/passwd"})
    assert "no time of the week" in problem(schedule={"watch": ["always"]})
    assert "at most 50" in problem(schedule={"learn": ["00:00-01:00"] * 51})
