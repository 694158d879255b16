"""The demo's camera scripts: read, refused, and turned into pictures."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from configs.errors import ConfigError
from streams.rendered import serve
from streams.rendered.serve import DEMO_CAMERAS, CameraScript, camera_script, demo_mounts, frames, read_scripts


def write(path: Path, content: object) -> Path:
    path.write_text(json.dumps(content))
    return path


def test_pictures_of_a_script_are_those_of_its_scene() -> None:
    script = CameraScript(id="a", kind="yard", seed=3, schedule=((0, "day"), (4, "night")), fps=2.0, from_s=100.0)
    show = frames(**json.loads(json.dumps(asdict(script))))  # as it travels to the server's process
    np.testing.assert_array_equal(show(6), script.scene().render(103.0)[0])
    assert show(0).mean() > 1.5 * show(8).mean()


def test_a_quicker_scene_shows_the_same_pictures_sooner() -> None:
    usual = CameraScript(id="a", kind="street", seed=3, schedule=((0, "day"), (6, "night")), fps=2.0)
    quick = CameraScript(id="a", kind="street", seed=3, schedule=((0, "day"), (2, "night")), fps=2.0, pace=3.0)
    slow, fast = frames(**asdict(usual)), frames(**asdict(quick))
    for index in range(6):
        np.testing.assert_array_equal(fast(index), slow(3 * index))


def test_demo_is_clear_first_and_drifts_within_a_minute_and_a_half() -> None:
    assert len(DEMO_CAMERAS) == 4
    assert len({script.id for script in DEMO_CAMERAS}) == 4
    for script in DEMO_CAMERAS:
        schedule = script.scene().schedule
        starts = [t for t in range(150) if schedule.at(t + 1) != schedule.at(0)]
        assert 40 <= starts[0] <= 90
        assert schedule.at(1e6) != schedule.at(0)


def test_mounts_say_how_to_make_their_pictures_elsewhere() -> None:
    for script, mount in zip(DEMO_CAMERAS, demo_mounts(), strict=True):
        assert mount.name == script.id
        assert mount.factory == "streams.rendered.serve:frames"
        assert (mount.width_px, mount.height_px, mount.fps) == (320, 180, 5.0)
        assert frames(**mount.arguments)(0).shape == (180, 320, 3)


def test_reads_a_list_of_cameras(tmp_path: Path) -> None:
    path = write(
        tmp_path / "c.json", [{"id": "a", "kind": "hall", "seed": 1, "schedule": [[0, "day"], [9, "fog+rain"]], "fps": 2}]
    )
    assert read_scripts(path) == (CameraScript(id="a", kind="hall", seed=1, schedule=((0.0, "day"), (9.0, "fog+rain")), fps=2),)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"id": "a", "kind": "hall"}, "missing keys seed"),
        ({"id": "a", "kind": "hall", "seed": 1, "colour": 2}, "unknown keys colour"),
        ({"id": "No Id", "kind": "hall", "seed": 1}, "no camera id"),
        ({"id": "a", "kind": "hall", "seed": 1, "fps": 0}, "fps"),
        ({"id": "a", "kind": "hall", "seed": 1, "pace": 0}, "pace must be above 0"),
        ({"id": "a", "kind": "hall", "seed": 1, "width_px": 321}, "even"),
        ({"id": "a", "kind": "hall", "seed": 1, "schedule": "day"}, "schedule"),
        ({"id": "a", "kind": "hall", "seed": "one"}, "seed"),
        ({"id": "a", "kind": "beach", "seed": 1}, "beach"),
        ({"id": "a", "kind": "hall", "seed": 1, "schedule": [[0, "snow"]]}, "snow"),
        ({"id": "a", "kind": "hall", "seed": 1, "schedule": [[5, "day"], [0, "fog"]]}, "rising order"),
    ],
)
def test_a_wrong_camera_is_named_before_anything_is_served(table: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        camera_script(table)


@pytest.mark.parametrize("text", ["{", "{}", "[1]"])
def test_a_wrong_file_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "c.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match="c.json"):
        read_scripts(path)
    with pytest.raises(ConfigError, match="absent"):
        read_scripts(tmp_path / "absent.json")


def test_two_cameras_with_one_id_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "c.json", [{"id": "a", "kind": "hall", "seed": 1}] * 2)
    assert serve.main(["--config", str(path)]) == 2
    assert "two cameras have one id" in capsys.readouterr().err
