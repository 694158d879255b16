"""Forms made in a process of their own: right, bounded in time, ended with the box, and plain about what went wrong."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from configs.errors import JobCancelled, JobError
from models.fake import FakeDetector
from models.serving.build import ChildBuilder, in_process, main
from models.serving.onnx_form import to_onnx
from models.serving.onnxruntime_runtime import OnnxRuntime
from models.serving.openvino_runtime import OpenVinoRuntime

ONNX = to_onnx(FakeDetector().body(), (96, 128))


def test_a_child_makes_what_this_process_would() -> None:
    assert ChildBuilder(120.0)(OnnxRuntime(), ONNX, []) == in_process(OnnxRuntime(), ONNX, []) == {"model.onnx": ONNX}


def test_a_child_that_fails_says_why() -> None:
    with pytest.raises(JobError, match="onnxruntime-int8 form could not be made: int8 needs pictures"):
        ChildBuilder(120.0)(OnnxRuntime(int8=True), ONNX, [])


def scripted(code: str):  # type: ignore[no-untyped-def]
    """Starts another program in place of the builder's child."""

    def start(command: list[str], **options: object) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", code, *command[3:]], **options)  # type: ignore[call-overload,no-any-return]

    return start


def test_a_child_that_crashes_is_an_error_and_no_more() -> None:
    with pytest.raises(JobError, match="ended with code -11"):
        ChildBuilder(60.0, start=scripted("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"))(OnnxRuntime(), ONNX, [])


def test_a_child_past_its_time_is_ended() -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start(command: list[str], **options: object) -> subprocess.Popen[bytes]:
        started.append(scripted("import time; time.sleep(60)")(command, **options))
        return started[0]

    with pytest.raises(JobError, match="took longer than 0 s"):
        ChildBuilder(0.2, start=start)(OnnxRuntime(), ONNX, [])
    assert started[0].poll() == -9


def test_closing_ends_the_child_and_refuses_more() -> None:
    running = threading.Event()

    def start(command: list[str], **options: object) -> subprocess.Popen[bytes]:
        child = scripted("import time; time.sleep(60)")(command, **options)
        running.set()
        return child  # type: ignore[no-any-return]

    builder = ChildBuilder(60.0, start=start)
    caught: list[BaseException] = []

    def run() -> None:
        try:
            builder(OnnxRuntime(), ONNX, [])
        except JobError as error:
            caught.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert running.wait(20)
    builder.close()
    thread.join(20)
    assert [type(error) for error in caught] == [JobCancelled]
    with pytest.raises(JobCancelled):
        builder(OnnxRuntime(), ONNX, [])


def test_no_room_for_the_hand_over_passes_through(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, content: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space left"):
        ChildBuilder(5.0)(OnnxRuntime(), ONNX, [])


def test_the_child_writes_files_or_why_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("models.serving.build._stand_back", lambda: None)
    (tmp_path / "network.onnx").write_bytes(ONNX)
    np.save(tmp_path / "arrays.npy", np.zeros((0, 3, 1, 1), np.float32))
    assert main("openvino", tmp_path) == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["model.bin", "model.xml"]
    assert main("unknown", tmp_path) == 1
    assert "no runtime is called 'unknown'" in (tmp_path / "why.txt").read_text(encoding="utf-8")


def test_openvino_comes_without_its_telemetry() -> None:
    code = (
        "from models.serving.openvino_runtime import library; library(); import sys;"
        "sys.exit('openvino_telemetry' in sys.modules or any(n.startswith('openvino_telemetry') for n in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3], check=False).returncode == 0


def test_forms_of_a_fake_run_in_openvino_too() -> None:
    body = FakeDetector(skill=0.5).body()
    form = OpenVinoRuntime().start(OpenVinoRuntime().convert(ONNX, []), body, (96, 128))
    levels, skill = form.run(np.full((1, 3, 96, 128), 40.0, np.float32))
    assert levels.shape == (1, 1, 6, 8)
    assert np.allclose(levels, 40.0)
    assert np.allclose(skill, 0.5)
