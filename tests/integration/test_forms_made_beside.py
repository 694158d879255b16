"""A camera joins a box that runs, and its served form is made: by a real process beside it, while the others lose no frame."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edge.form_child import ChildMaker
from edge.serving import Serving
from models.serving.served import Deferred, ServedDetector
from models.tasks.detection import DETECTION
from tests.support.fakes import put_fakes_in_the_zoo
from tests.support.live_box import CONFIG
from tests.support.live_cameras import BookedBox

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

QUIET = replace(CONFIG, window_s=3600.0, first_window_s=3600.0, policy="no-retrain")
#: The child, as important as the tests that run beside it: niced as on a box, it would take minutes.
NOT_NICED = """
import sys
from pathlib import Path
from edge import form_child
form_child.NICE = 0
form_child.stand_back()
sys.exit(form_child.main(Path(sys.argv[1])))
"""
HANGS = "import time; time.sleep(3600)"


@pytest.fixture(autouse=True)
def nothing_is_made_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the child is for must not happen in this process."""
    put_fakes_in_the_zoo(monkeypatch)

    def refused(*given: object, **options: object) -> None:
        raise AssertionError("in the box's own process")

    for name in ("edge.form_child.make_form", "edge.form_making.check", "models.serving.onnx_form.to_onnx"):
        monkeypatch.setattr(name, refused)
    monkeypatch.setattr(Deferred, "EVERY", 1)


@pytest.fixture
def box(tmp_path: Path) -> Iterator[BookedBox]:
    """Two cameras with a frame a second: what holds them up for longer than that costs a frame."""
    with BookedBox(tmp_path / "data", {"a": "fake", "b": "fake"}, config=QUIET) as made:
        for camera in made.cameras.values():
            camera.go_on_at(fps=1.0)
        made.wait_running("a")
        made.wait_running("b")
        yield made


def serve_forms(box: BookedBox, program: str, max_s: float) -> list[str]:
    """Cameras that join from now on are served by forms that `program` makes. Returns what the operator is told."""
    told: list[str] = []

    def start(command: list[str], **how: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", program, *command[3:]], **how)

    maker = ChildMaker(box.root / "forms", max_s, builder="tests.support.served_forms:build_slow", start=start)
    serving = Serving(
        "onnxruntime", box.root / "forms", newest=lambda camera: [], task_of=lambda camera: DETECTION,
        tell=lambda camera, text: told.append(text), build_s=max_s, make=maker,
    )  # fmt: skip
    box._serve = serving.serve_later
    return told


def lost(heard: Callable[[], list[int]]) -> list[int]:
    """Frames that were there and not analysed."""
    seqs = heard()
    assert len(seqs) > 3
    return sorted(set(range(seqs[0], seqs[-1] + 1)) - set(seqs))


def test_a_camera_that_joins_gets_its_form_and_the_others_lose_nothing(box: BookedBox) -> None:
    told = serve_forms(box, NOT_NICED, 600.0)
    heard = {camera: box.seqs(camera) for camera in ("a", "b")}
    box.control.add({"id": "c", "url": "rtsp://192.0.2.1/c", "edge": "fake"}, by="ann")
    box.wait_running("c")
    _, served = box.runtime.watched["c"].worker.serving()
    assert isinstance(served, Deferred)
    box.wait(lambda: isinstance(served.current, ServedDetector) or bool(told), "the form takes over")
    assert told == []
    box.wait_running("c")
    assert box.runtime.watched["c"].worker.errors == 0
    box.wait_running("a")
    assert {camera: lost(seqs) for camera, seqs in heard.items()} == {"a": [], "b": []}


def test_a_child_that_hangs_is_ended_and_the_camera_serves_as_trained(box: BookedBox) -> None:
    told = serve_forms(box, HANGS, 2.0)
    heard = {camera: box.seqs(camera) for camera in ("a", "b")}
    box.control.add({"id": "c", "url": "rtsp://192.0.2.1/c", "edge": "fake"}, by="ann")
    box.wait(lambda: bool(told), "the child is given up")
    assert "took longer than 2 s" in told[0]
    box.wait_running("c")
    assert box.runtime.watched["c"].worker.errors == 0
    box.wait_running("a")
    assert {camera: lost(seqs) for camera, seqs in heard.items()} == {"a": [], "b": []}
