"""Forms made in a process of their own: right, bounded in time, ended with the box, and plain about what went wrong."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from configs.errors import JobCancelled, JobError
from edge import form_child
from edge.form_child import ChildMaker, main, read_answer, read_order, write_answer, write_order
from edge.form_making import Checked, Made, Wanted, make_form
from edge.gpu.worker import keep
from models.fake import FakeDetector, scripted_image
from models.serving.onnx_form import to_onnx
from models.serving.onnxruntime_runtime import OnnxRuntime
from models.serving.openvino_runtime import OpenVinoRuntime
from models.tasks.base import Picture
from models.tasks.classification import CLASSIFICATION
from models.tasks.detection import DETECTION

BUILDER = "tests.support.remote_models:build_fake"
PICTURES = [Picture(image=scripted_image(seed)[0]) for seed in range(6)]


def wanted(runtime: str = "openvino", **more: object) -> Wanted:
    return Wanted(runtime=runtime, detector=FakeDetector(skill=0.7), pictures=PICTURES, task=DETECTION, **more)  # type: ignore[arg-type]


def ordered(folder: Path, what: Wanted) -> Path:
    """A folder as the box hands it over."""
    place = folder / "order"
    place.mkdir()
    model = keep(what.detector, place / "model.safetensors", builder=BUILDER)
    write_order(place, what, model, device="cpu", kept=folder / "kept")
    return place


# --- what is handed over ----------------------------------------------------------------------------------------------


def test_an_order_arrives_as_it_was_given(tmp_path: Path) -> None:
    moved = Picture(image=PICTURES[0].image, regions=np.array([[0, 0, 16, 16]], np.float32))
    given = Wanted(
        runtime="onnxruntime", detector=FakeDetector(skill=0.25), pictures=[moved, PICTURES[1]], task=CLASSIFICATION, shape_px=(96, 128)
    )  # fmt: skip
    arrived, kept, device = read_order(ordered(tmp_path, given))
    assert device == "cpu"
    assert (arrived.runtime, arrived.task, arrived.shape_px, kept) == (
        "onnxruntime",
        CLASSIFICATION,
        (96, 128),
        tmp_path / "kept",
    )
    assert np.array_equal(arrived.pictures[0].image, moved.image)
    assert np.array_equal(arrived.pictures[0].regions, moved.regions)  # type: ignore[arg-type]
    assert arrived.pictures[1].regions is None
    images = [picture.image for picture in PICTURES]
    for ours, theirs in zip(given.detector.predict(images), arrived.detector.predict(images), strict=True):
        assert np.array_equal(ours.xyxy, theirs.xyxy)


@pytest.mark.parametrize(
    "made",
    [
        Made(),
        Made(files={(96, 128): {"a": b"1", "b": b""}, (32, 64): {"a": b"2"}}),
        Made(files={(96, 128): {}}, checked=Checked(agreement=0.9, ms=1.5, trained_ms=3.0)),
    ],
    ids=["nothing", "files of two shapes", "a form without files"],
)
def test_an_answer_arrives_as_it_was_given(made: Made, tmp_path: Path) -> None:
    write_answer(tmp_path, made)
    arrived = read_answer(tmp_path)
    assert (arrived.files, arrived.checked, arrived.samples) == (made.files, made.checked, {})


# --- the child --------------------------------------------------------------------------------------------------------


@pytest.fixture
def idle_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check as the child makes it, without its clock: a fake is quicker than any form of it."""
    monkeypatch.setattr(form_child, "make_form", lambda *a, **o: make_form(*a, **o | {"spent_s": lambda: 0.0}))


@pytest.mark.usefixtures("idle_time")
def test_the_child_writes_a_checked_form_and_keeps_it(tmp_path: Path) -> None:
    place = ordered(tmp_path, wanted())
    assert main(place) == 0
    made = read_answer(place)
    assert {shape: sorted(files) for shape, files in made.files.items()} == {(96, 128): ["model.bin", "model.xml"]}
    assert made.checked is not None
    assert made.checked.agreement == 1.0
    body = FakeDetector(skill=0.7).body()
    [found, _] = OpenVinoRuntime().start(made.files[96, 128], body, (96, 128)).run(made.samples[96, 128])
    assert np.array_equal(found[0, 0], PICTURES[-1].image[8::16, 8::16, 0])
    assert len(list((tmp_path / "kept").iterdir())) == 1


@pytest.mark.usefixtures("idle_time")
def test_a_shape_alone_is_made_without_pictures(tmp_path: Path) -> None:
    place = ordered(tmp_path, Wanted(runtime="onnxruntime", detector=FakeDetector(), shape_px=(48, 128)))
    assert main(place) == 0
    assert read_answer(place).files == {(48, 128): {"model.onnx": to_onnx(FakeDetector().body(), (48, 128))}}


@pytest.mark.parametrize(
    ("runtime", "why"), [("unknown", "no runtime is called 'unknown'"), ("onnxruntime-int8", "int8 needs pictures")]
)
def test_the_child_says_why_there_is_no_form(runtime: str, why: str, tmp_path: Path) -> None:
    place = ordered(tmp_path, Wanted(runtime=runtime, detector=FakeDetector(), shape_px=(96, 128)))
    assert main(place) == 1
    assert why in (place / "why.txt").read_text(encoding="utf-8")


@pytest.mark.usefixtures("idle_time")
def test_weights_that_changed_on_the_way_are_not_used(tmp_path: Path) -> None:
    place = ordered(tmp_path, wanted())
    weights = place / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x00")
    assert main(place) == 1
    assert "changed" in (place / "why.txt").read_text(encoding="utf-8")


# --- the box's side ---------------------------------------------------------------------------------------------------


def scripted(code: str) -> Callable[..., subprocess.Popen[bytes]]:
    """Starts another program in place of the child: sys.argv[1] is the folder."""

    def start(command: list[str], **options: object) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", code, *command[3:]], **options)  # type: ignore[call-overload,no-any-return]

    return start


def maker(folder: Path, code: str, max_s: float = 60.0) -> ChildMaker:
    return ChildMaker(folder, max_s, builder=BUILDER, start=scripted(code))


def test_a_child_that_fails_says_why_without_credentials(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; pathlib.Path(sys.argv[1], 'why.txt').write_text('no form at rtsp://ann:secret@cam'); sys.exit(1)"
    )
    with pytest.raises(JobError, match="no form at") as caught:
        maker(tmp_path, code)(wanted())
    assert "secret" not in str(caught.value)


def test_a_child_that_crashes_is_an_error_and_no_more(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="ended with code -11"):
        maker(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")(wanted())


def test_an_answer_that_is_none_is_an_error(tmp_path: Path) -> None:
    """The child ended well and wrote nothing: a full disk of its own, say."""
    with pytest.raises(JobError, match="gave no answer"):
        maker(tmp_path, "pass")(wanted())


def test_a_child_past_its_time_is_ended(tmp_path: Path) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start(command: list[str], **options: object) -> subprocess.Popen[bytes]:
        started.append(scripted("import time; time.sleep(60)")(command, **options))
        return started[0]

    with pytest.raises(JobError, match="took longer than 0 s"):
        ChildMaker(tmp_path, 0.2, builder=BUILDER, start=start)(wanted())
    assert started[0].poll() == -signal.SIGKILL


def test_closing_ends_the_child_and_refuses_more(tmp_path: Path) -> None:
    running = threading.Event()

    def start(command: list[str], **options: object) -> subprocess.Popen[bytes]:
        child = scripted("import time; time.sleep(60)")(command, **options)
        running.set()
        return child

    made = ChildMaker(tmp_path, 60.0, builder=BUILDER, start=start)
    caught: list[BaseException] = []

    def run() -> None:
        try:
            made(wanted())
        except JobError as error:
            caught.append(error)

    threads = [threading.Thread(target=run) for _ in range(2)]  # the second waits for its turn
    for thread in threads:
        thread.start()
    assert running.wait(120.0)
    made.close()
    for thread in threads:
        thread.join(120.0)
    assert [type(error) for error in caught] == [JobCancelled] * 2
    with pytest.raises(JobCancelled):
        made(wanted())


def test_the_child_ends_when_the_box_is_killed() -> None:
    """The other end of its socket is all that it has of the box."""
    code = (
        "import socket, sys, time; from edge.gpu.worker import end_with_the_box;"
        "end_with_the_box(socket.socket(fileno=int(sys.argv[1])), grace_s=0.0); print('up', flush=True); time.sleep(600)"
    )
    ours, theirs = socket.socketpair()
    with ours, theirs:
        child = subprocess.Popen(
            [sys.executable, "-c", code, str(theirs.fileno())], pass_fds=(theirs.fileno(),), stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[3], env=os.environ | {"PYTHONPATH": ""},
        )  # fmt: skip
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
    assert child.wait(60) == 3
    child.stdout.close()


def test_no_room_for_the_hand_over_passes_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(OSError, match="No space left"):
        maker(tmp_path, "pass")(wanted())


# --- libraries --------------------------------------------------------------------------------------------------------


def test_openvino_comes_without_its_telemetry() -> None:
    code = (
        "from models.serving.openvino_runtime import library; library(); import sys;"
        "sys.exit('openvino_telemetry' in sys.modules or any(n.startswith('openvino_telemetry') for n in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3], check=False).returncode == 0


def test_forms_of_a_fake_run_in_openvino_too() -> None:
    body = FakeDetector(skill=0.5).body()
    onnx = to_onnx(body, (96, 128))
    assert OnnxRuntime().convert(onnx, []) == {"model.onnx": onnx}
    form = OpenVinoRuntime().start(OpenVinoRuntime().convert(onnx, []), body, (96, 128))
    levels, skill = form.run(np.full((1, 3, 96, 128), 40.0, np.float32))
    assert levels.shape == (1, 1, 6, 8)
    assert np.allclose(levels, 40.0)
    assert np.allclose(skill, 0.5)
