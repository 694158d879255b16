"""`driftbox cameras ...` on a data folder that no box runs on, and what is typed wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edge import cli
from edge.cameras.book import with_book
from edge.cli_common import load_given

PASSWORD = "c4nary/pw@"


class Terminal:
    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.root, self._capsys = root, capsys
        self.config = root / "box.yaml"
        self.config.write_text(
            f'box: {{data_dir: {root / "data"}}}\nweb: {{enabled: false}}\ncameras:\n  - {{id: gate, url: "rtsp://192.0.2.1/s"}}\n'
        )

    def run(self, code: int, *words: str, parse: bool = False) -> Any:
        config = [str(self.config)] if words[0] == "list" else ["--config", str(self.config)]
        with pytest.raises(SystemExit) as ended:
            cli.main(["cameras", *words, *config, *(["--json"] if parse else [])])
        said = self._capsys.readouterr()
        assert (ended.value.code or 0) == code, said.err + said.out
        assert "Traceback" not in said.err + said.out
        assert PASSWORD not in said.err + said.out
        return json.loads(said.out) if parse else said.out + said.err


@pytest.fixture
def terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(tmp_path, capsys)


def test_a_camera_is_added_changed_listed_and_removed(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_PASSWORD", PASSWORD)
    added = terminal.run(
        0, "add", "rtsp://192.0.2.9/s", "--name", "Hof Süd", "--user", "box", "--password-env", "THE_PASSWORD", "--zone",
        "door=0,0;1,0;1,1", "--class", "person", "--watch", "mon-fri 07:00-19:00", "--time-zone", "UTC", "--set", "height_px=360",
        "--yes", parse=True,
    )  # fmt: skip
    assert (added["id"], added["state"], added["entry"]["zones"]) == (
        "hof-sud",
        "not running",
        {"door": [[0, 0], [1, 0], [1, 1]]},
    )
    kept = with_book(load_given(terminal.config)).find("hof-sud").entry
    assert kept.url.resolve() == "rtsp://box:c4nary%2Fpw%40@192.0.2.9/s"
    assert (kept.height_px, kept.classes, kept.schedule.time_zone) == (360, ("person",), "UTC")
    assert "changed from the next start on" in terminal.run(0, "change", "gate", "--fps", "2", "--no-learning")
    rows = terminal.run(0, "list", parse=True)["cameras"]
    assert [(row["id"], row["kept"], row["fps"]) for row in rows] == [("gate", "changed", 2), ("hof-sud", "added", 5)]
    assert "as the configuration file says" in terminal.run(0, "reset", "gate")
    terminal.run(0, "remove", "gate", "--yes")
    assert "removed here: gate" in terminal.run(0, "list")


def test_of_a_drawn_scene_a_picture_is_looked_at_before_it_becomes_a_camera(terminal: Terminal) -> None:
    said = terminal.run(0, "add", "rendered:street?seed=4&fps=7", "--name", "Drawn")
    assert "320x180 px, 7 frames/s" in said
    assert with_book(load_given(terminal.config)).find("drawn").entry.url.scheme == "rendered"


@pytest.mark.parametrize(
    "words",
    [
        ("add",), ("add", "gopher://x/y", "--yes"), ("add", "rtsp://192.0.2.9/s", "--id", "gate", "--yes"), ("change", "gate"),
        ("add", "rendered:moon"), ("add", "rendered:street?fps=nan"),
        ("change", "nobody", "--fps", "1"), ("change", "gate", "--fps", "-1"), ("remove", "nobody", "--yes"), ("reset", "gate"),
        ("change", "gate", "--zone", "door"), ("change", "gate", "--mask", "1,2"), ("change", "gate", "--set", "fps"),
        ("change", "gate", "--set", "fps=high"), ("change", "gate", "--password-env", "NOT_SET_ANYWHERE"),
        ("change", "gate", "--password-file", "/does/not/exist"), ("change", "gate", "--watch", "always"),
    ],
)  # fmt: skip
def test_what_is_typed_wrong_is_said_and_changes_nothing(terminal: Terminal, words: tuple[str, ...]) -> None:
    said = terminal.run(2, *words)
    assert said.strip()
    assert with_book(load_given(terminal.config)).config == load_given(terminal.config)


def test_other_commands_see_what_was_changed(terminal: Terminal, capsys: pytest.CaptureFixture[str]) -> None:
    terminal.run(0, "add", "rtsp://192.0.2.9/s", "--id", "new", "--yes")
    with pytest.raises(SystemExit):
        cli.main(["check", str(terminal.config), "--json"])
    assert json.loads(capsys.readouterr().out)["cameras"] == ["gate", "new"]
