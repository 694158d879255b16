"""`driftbox settings ...`: on a data folder that no box runs on, on a box that runs, and what is typed wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from configs.errors import EnvironmentLacking, UsageError
from edge import cli, settings_desk
from edge.cli_common import load_given
from edge.settings import BoxSettings
from edge.settings_book import SettingsBook
from edge.store.folder import DataFolder
from edge.store.store import Store


class Terminal:
    """The commands in a folder of their own; web: whether the file lets the box be asked over HTTP."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str], *, web: bool = False) -> None:
        self._capsys = capsys
        self.config = root / "box.yaml"
        self.config.write_text(
            f"box: {{data_dir: {root / 'data'}}}\nweb: {{enabled: {str(web).lower()}}}\nstorage: {{media: {{clip_days: 9}}}}\n"
            'cameras: [{id: gate, url: "rtsp://192.0.2.1/s"}]\n'
        )

    def run(self, code: int, *words: str, parse: bool = False) -> Any:
        with pytest.raises(SystemExit) as ended:
            cli.main(["settings", *words, "--config", str(self.config), *(["--json"] if parse else [])])
        said = self._capsys.readouterr()
        assert (ended.value.code or 0) == code, said.err + said.out
        assert "Traceback" not in said.err + said.out
        return json.loads(said.out) if parse else said.out + said.err

    def told(self, *words: str) -> dict[str, tuple[str, bool]]:
        """Key without its section -> (value, whether it was changed here)."""
        rows = self.run(0, *words, parse=True)["settings"]
        return {row["key"].removeprefix("storage.media."): (row["value"], row["changed"]) for row in rows}


@pytest.fixture
def terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(tmp_path, capsys)


def test_bounds_are_shown_changed_and_set_back(terminal: Terminal) -> None:
    assert terminal.told("show")["clip_days"] == ("9.0", False)
    told = terminal.told("set", "clip_days=2.5", 'storage.media.class_days={"person": 30}')
    assert (told["clip_days"], told["class_days"]) == (("2.5", True), ('{"person": 30.0}', True))
    assert terminal.told("show") == told, "and it is kept"
    told = terminal.told("reset", "clip_days")
    assert (told["clip_days"], told["class_days"][1]) == (("9.0", False), True)
    assert not any(changed for _, changed in terminal.told("reset").values())
    assert not any(changed for _, changed in terminal.told("reset").values()), "nothing to set back is no fault"


def test_a_person_reads_where_each_value_comes_from(terminal: Terminal) -> None:
    said = terminal.run(0, "set", "event_days=40")
    row = {line.split()[0]: line for line in said.splitlines() if line.startswith("storage.media.")}
    assert "changed here" in row["storage.media.event_days"]
    assert "the file" in row["storage.media.clip_days"]
    assert "default" in row["storage.media.max_gib"]
    assert "in force from the next start on" in said


def test_the_next_start_takes_it_up(terminal: Terminal) -> None:
    terminal.run(0, "set", "clip_days=3")
    config = load_given(terminal.config)
    with DataFolder(config.box.data_dir) as folder, Store(folder.db_path) as store:
        assert SettingsBook(config, store, utc_s=lambda: 0.0).over(config).storage.media.clip_days == 3.0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("set", "clip_days"), "is not KEY=VALUE"),
        (("set", "clip_days=often"), "no JSON"),
        (("set", "clip_days=-1"), "clip_days"),
        (("set", "clip_day=7"), "clip_day"),
        (("set", "window.seconds=7"), "cannot be changed here"),
        (("set", "=7"), "cannot be changed here"),
        (("set", 'class_days={"unicorn": 1}'), "class_days"),
        (("reset", "window.seconds"), "cannot be changed here"),
    ],
)
def test_what_is_typed_wrong_is_said_and_changes_nothing(terminal: Terminal, words: tuple[str, ...], said: str) -> None:
    before = terminal.told("show")
    assert said in terminal.run(2, *words)
    assert terminal.told("show") == before


def test_a_box_that_runs_is_asked_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over its own HTTP, with the bodies that the interface takes; its folder is not touched."""
    terminal = Terminal(tmp_path, capsys, web=True)
    config = load_given(terminal.config)
    with Store(tmp_path / "running.db") as store:
        running = BoxSettings(config, tmp_path, book=SettingsBook(config, store, utc_s=lambda: 0.0))
        asked: list[tuple[str, str]] = []

        def answer(_: Any, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
            asked.append((method, path))
            view = running.settings() if body is None else running.change_media(body, by="local")
            return json.loads(view.model_dump_json())

        monkeypatch.setattr(settings_desk, "ask_box", answer)
        assert terminal.told("set", "clip_days=1")["clip_days"] == ("1.0", True)
        assert asked == [("GET", "settings"), ("PATCH", "settings/media")]
        assert "in force\n" in terminal.run(0, "reset")
        assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("error", "code"), [(UsageError("the box refuses: for admins"), 2), (EnvironmentLacking("no", code="tls"), 3)]
)
def test_a_box_that_refuses_is_not_gone_round(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, error: Exception, code: int
) -> None:
    def refuse(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(settings_desk, "ask_box", refuse)
    terminal = Terminal(tmp_path, capsys, web=True)
    assert str(error).partition(":")[0] in terminal.run(code, "set", "clip_days=1")
    assert not (tmp_path / "data").exists()
