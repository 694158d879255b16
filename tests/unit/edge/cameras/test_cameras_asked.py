"""`driftbox cameras add` on a terminal: what it asks, what becomes of the answers; and a change of one word leaves the others alone."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from configs.errors import UsageError
from configs.schema import CameraEntry
from edge import cli, cli_cameras
from edge import cli_cameras_asked as asked
from edge import cli_cameras_words as words
from edge.cameras.book import with_book
from edge.cameras.onvif_view import OnvifProbe, OnvifProfile
from edge.cameras.probe import ProbeResult
from edge.cli_common import load_given

SCENE = "rendered:street?seed=4&fps=7"


class Typist(io.StringIO):
    """A terminal at which these lines are typed."""

    def isatty(self) -> bool:
        return True


class Terminal:
    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._patch, self._capsys = monkeypatch, capsys
        self.root, self.config = root, root / "box.yaml"
        self.config.write_text(f"box: {{data_dir: {root / 'data'}}}\nweb: {{enabled: false}}\ncameras: []\n")

    def types(self, lines: list[str], *told: str, code: int = 0) -> str:
        self._patch.setattr("sys.stdin", Typist("".join(f"{line}\n" for line in lines)))
        with pytest.raises(SystemExit) as ended:
            cli.main(["cameras", *told, "--config", str(self.config)])
        said = self._capsys.readouterr()
        assert (ended.value.code or 0) == code, said.err + said.out
        return said.out + said.err

    def kept(self, camera: str) -> CameraEntry:
        return with_book(load_given(self.config)).find(camera).entry


@pytest.fixture
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(tmp_path, monkeypatch, capsys)


def test_every_step_of_the_page_is_asked_for_on_a_terminal(terminal: Terminal) -> None:
    picture = terminal.root / "seen.jpg"
    answers = [
        str(picture), "Hof Süd", "", "", "3", "?", "person, car", "n",  # id, task: as proposed; ?: which classes there are
        "y", "door=0,0;1,0", "door=0,0;1,0;1,1", "yard=0,0;0.5,0;0.5,0.5", "", "way=0,0.5;1,0.5", "", "0,0;0.2,0;0.2,0.2", "",
        "y", "some day", "mon-fri 07:00-19:00", "sat 08:00-12:00", "", "sat,sun 22:00-06:00", "", "Europe/Berlin",
        "n", "y", "2", "ninety", "90", "9", "7", "y",
    ]  # fmt: skip
    said = terminal.types(answers, "add", SCENE)
    assert picture.read_bytes().startswith(b"\xff\xd8")
    for told in (
        "320x180 px",
        "is no polygon",
        "is no time of the week",
        "'ninety' is no number",
        "60",
        "truck",
        "recording.keep_days",
    ):
        assert told in said, told
    camera = terminal.kept("hof-sud")
    assert (camera.name, camera.task, camera.fps, camera.classes, camera.learning) == (
        "Hof Süd", "detection", 3, ("person", "car"), False,
    )  # fmt: skip
    assert set(camera.zones) == {"door", "yard"}
    assert set(camera.objects.lines) == {"way"}
    assert len(camera.masks) == 1
    assert camera.schedule.watch == ("mon-fri 07:00-19:00", "sat 08:00-12:00")
    assert (camera.schedule.learn, camera.schedule.time_zone) == (("sat,sun 22:00-06:00",), "Europe/Berlin")
    assert not camera.objects.snapshots
    assert (camera.recording.clips, camera.recording.pre_s, camera.recording.post_s, camera.recording.keep_days) == (
        True,
        2,
        9,
        7,
    )


def test_who_only_presses_enter_gets_what_the_page_would_have_taken(terminal: Terminal) -> None:
    terminal.types(["", "Gate", "", "", "", "", "", "", "", ""], "add", SCENE)
    camera = terminal.kept("gate")
    assert camera == CameraEntry.model_validate({"id": "gate", "name": "Gate", "url": SCENE})


def test_what_the_command_line_says_is_not_asked_again(terminal: Terminal) -> None:
    said = terminal.types(
        ["", "y"], "add", SCENE, "--name", "Gate", "--id", "gate", "--task", "detection", "--fps", "2", "--class", "person",
        "--learning", "--zone", "door=0,0;1,0;1,1", "--keep-days", "3",
    )  # fmt: skip
    assert "Name for people" not in said
    assert "Draw zones" not in said
    assert (terminal.kept("gate").recording.keep_days, terminal.kept("gate").fps) == (3, 2)


def test_nothing_is_kept_before_the_last_question(terminal: Terminal) -> None:
    terminal.types(["", "Gate", "", "", "", "", "", "", "", "n"], "add", SCENE, code=1)
    assert with_book(load_given(terminal.config)).cameras == ()


def test_a_program_names_all_of_it_and_is_asked_nothing(terminal: Terminal) -> None:
    terminal.types(
        [], "add", SCENE, "--name", "Gate", "--line", "way=0,0.5;1,0.5", "--mask", "0,0;0.2,0;0.2,0.2", "--no-learning", "--learn",
        "sat 08:00-12:00", "--no-snapshots", "--no-clips", "--pre-s", "1", "--post-s", "2", "--keep-days", "7", "--set",
        "objects.lost_s=9", "--yes",
    )  # fmt: skip
    camera = terminal.kept("gate")
    assert (set(camera.objects.lines), camera.objects.snapshots, camera.objects.lost_s) == ({"way"}, False, 9)
    assert (camera.recording.clips, camera.recording.pre_s, camera.recording.keep_days) == (False, 1, 7)


def test_a_change_of_one_word_leaves_what_stands_beside_it(terminal: Terminal) -> None:
    terminal.types(
        [], "add", SCENE, "--id", "gate", "--zone", "door=0,0;1,0;1,1", "--watch", "mon 07:00-19:00", "--learn", "sat 08:00-12:00",
        "--time-zone", "UTC", "--keep-days", "7", "--line", "way=0,0.5;1,0.5", "--yes",
    )  # fmt: skip
    terminal.types(
        [], "change", "gate", "--zone", "yard=0,0;1,0;0,1", "--watch", "tue 07:00-19:00", "--pre-s", "2", "--no-snapshots",
    )  # fmt: skip
    camera = terminal.kept("gate")
    assert set(camera.zones) == {"door", "yard"}
    assert (camera.schedule.watch, camera.schedule.learn) == (("tue 07:00-19:00",), ("sat 08:00-12:00",))
    assert (camera.recording.pre_s, camera.recording.keep_days) == (2, 7)
    assert (set(camera.objects.lines), camera.objects.snapshots) == ({"way"}, False)
    terminal.types([], "change", "gate", "--zone", "door=", "--line", "way=", "--set", "recording.keep_days=null")
    camera = terminal.kept("gate")
    assert (set(camera.zones), camera.objects.lines, camera.recording.keep_days) == ({"yard"}, {}, None)


def test_of_an_onvif_camera_somebody_chooses_which_stream_is_for_what(monkeypatch: pytest.MonkeyPatch) -> None:
    profiles = tuple(OnvifProfile(token=t, name=t, url=f"rtsp://192.0.2.9/{t}") for t in ("main", "sub", "tiny"))
    offered = OnvifProbe(ok=True, profiles=profiles, analyse="sub", record="main")
    monkeypatch.setattr("sys.stdin", Typist("other\ntiny\n\n"))
    assert asked.streams_of(offered) == ("rtsp://192.0.2.9/tiny", "rtsp://192.0.2.9/main")


def test_a_picture_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    seen = ProbeResult(ok=True, state="live", picture_url="/api/v1/cameras/probe/abc/picture.jpg")
    with pytest.raises(UsageError, match="cannot be written"):
        cli_cameras._write_picture(lambda token: token.encode(), seen, tmp_path / "nowhere" / "a.jpg")
    cli_cameras._write_picture(lambda token: token.encode(), seen, tmp_path / "a.jpg")
    assert (tmp_path / "a.jpg").read_bytes() == b"abc"


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({("zones", "door"): [[0, 0], [1, 0], [2, 1]]}, "outside"),
        ({("task",): "moon"}, "no task"),
        ({("classes",): ["moon"]}, "no class"),
        ({("recording", "keep_days"): 0}, "greater than 0"),
        ({("schedule", "time_zone"): "Mars/Olympus"}, "time zone"),
        ({("fps",): 3}, ""),
    ],
)
def test_a_wrong_answer_is_known_before_it_is_sent(fields: Any, told: str) -> None:
    assert told in words.problem_of(fields)
    assert bool(told) == bool(words.problem_of(fields))
