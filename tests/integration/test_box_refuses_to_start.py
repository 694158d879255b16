"""What keeps a box from starting is one clear error with a remedy and the right exit code; nothing is damaged or left running."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from edge.cli import main
from edge.gpu.mps_daemon import MpsDaemon, ServerState, runtime_root
from edge.store.folder import DataFolder
from edge.store.store import Store

ROOT = Path(__file__).parents[2]


class Refused:
    """How `driftbox run` with a configuration ended, in this process."""

    def __init__(self, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, *words: str) -> None:
        config = tmp_path / "box.yaml"
        config.write_text(f"web: {{enabled: false}}\n{text}")
        threads = set(threading.enumerate())
        children = {p.pid for p in psutil.Process().children(recursive=True)}
        with pytest.raises(SystemExit) as caught:
            main(["run", str(config), *(words or ("--data-dir", str(tmp_path / "data")))])
        self.code = caught.value.code
        self.said = capsys.readouterr().err
        self.left = {t.name for t in threading.enumerate() if t not in threads}
        self.left |= {str(p) for p in psutil.Process().children(recursive=True) if p.pid not in children}

    def check(self, code: int, *words: str) -> None:
        assert self.code == code, self.said
        for word in words:
            assert word in self.said
        assert "what to do:" in self.said
        assert "Traceback" not in self.said
        assert self.left == set(), "nothing goes on running"


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Weights are not searched outside the test, and nothing is downloaded."""
    monkeypatch.setenv("DRIFTBOX_WEIGHTS", str(tmp_path / "weights"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("models.weights._copy", _offline)


def _offline(*_: object) -> None:
    raise OSError("no network in a test")


CAMERA = 'cameras: [{id: a, url: "rendered:street?seed=1"}]\n'


def test_weights_that_are_nowhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Refused(tmp_path, capsys, CAMERA + "models: {golden: yolo26l}").check(3, "yolo26l", "DRIFTBOX_WEIGHTS")


def test_a_weights_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Refused(tmp_path, capsys, CAMERA + f"models: {{golden: {tmp_path}/mine.safetensors}}").check(3, "mine.safetensors")


@pytest.mark.parametrize("name", ["rubbish.safetensors", "rubbish.pt"])
@pytest.mark.parametrize("role", ["golden", "edge"])
def test_a_weights_file_that_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, role: str) -> None:
    (tmp_path / name).write_bytes(b"these are no weights" * 50)
    refused = Refused(tmp_path, capsys, CAMERA + f"models: {{{role}: {tmp_path}/{name}}}")
    refused.check(3, name)
    with Store(tmp_path / "data" / "driftbox.db") as store:
        assert store.models() == [], "no model was made of it"


def test_a_model_nobody_knows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Refused(tmp_path, capsys, CAMERA + "models: {edge: yolo99z}").check(2, "yolo99z", "tinydet-edge")


def test_a_secret_that_is_not_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = 'cameras: [{id: a, url: "rtsp://bob:${env:DRIFTBOX_NO_SUCH_SECRET}@192.0.2.1/x"}]'
    Refused(tmp_path, capsys, text).check(3, "env:DRIFTBOX_NO_SUCH_SECRET is not set")


def test_two_cameras_with_one_id(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = 'cameras: [{id: a, url: "rendered:street"}, {id: a, url: "rendered:yard"}]'
    refused = Refused(tmp_path, capsys, text)
    assert refused.code == 2
    assert "cameras[1].id" in refused.said
    assert not (tmp_path / "data").exists(), "refused before the world was touched"


@pytest.mark.parametrize("place", ["/proc/driftbox", "/dev/null/driftbox"])
def test_a_data_folder_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str) -> None:
    Refused(tmp_path, capsys, CAMERA, "--data-dir", place).check(3, place)


def test_a_data_folder_of_a_newer_version_is_left_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with DataFolder(tmp_path / "data") as folder:
        Store(folder.db_path).close()
        path = folder.db_path
    with sqlite3.connect(path) as db:
        db.execute("INSERT INTO _sqlite_migrations (migration_set, name, applied_at) VALUES ('driftbox', 'm999_future', 'x')")
    db.close()
    before = path.read_bytes()
    Refused(tmp_path, capsys, CAMERA).check(3, "newer version", "m999_future")
    assert path.read_bytes() == before


def test_a_database_that_is_none_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "data").mkdir()
    path = tmp_path / "data" / "driftbox.db"
    path.write_bytes(b"this is a text, and a long one at that\n" * 200)
    Refused(tmp_path, capsys, CAMERA).check(3, "damaged", "move the file away")
    assert path.read_bytes().startswith(b"this is a text")


def test_a_folder_that_another_process_uses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = (
        "import sys, time\nfrom pathlib import Path\nfrom edge.store.folder import DataFolder\n"
        "with DataFolder(Path(sys.argv[1])):\n    print('mine', flush=True)\n    time.sleep(600)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "data")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "mine\n"
        Refused(tmp_path, capsys, CAMERA).check(3, f"in use by process {other.pid}", "box.data_dir")
        other.send_signal(signal.SIGKILL)


def test_a_gpu_without_its_driver(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    script = '{"gpus": [{}], "faults": [{"function": "nvmlInit", "error": "DRIVER_NOT_LOADED"}]}'
    monkeypatch.setenv("DRIFTBOX_FAKE_NVML", script)
    Refused(tmp_path, capsys, CAMERA + "gpus: {device: cuda}").check(3, "driver is not loaded", "modprobe", "gpus.device: cpu")


def test_a_gpu_that_is_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    script = '{"gpus": [{"name": "X1"}], "faults": [{"function": "nvmlDeviceGetHandleByIndex", "error": "GPU_IS_LOST"}]}'
    monkeypatch.setenv("DRIFTBOX_FAKE_NVML", script)
    Refused(tmp_path, capsys, CAMERA + "gpus: {device: cuda, backend: green}").check(
        3, "GPU 0", "is lost", "restart the machine"
    )


def test_a_gpu_that_is_not_divided_into_partitions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DRIFTBOX_FAKE_NVML", '{"gpus": [{"name": "X1"}]}')
    refused = Refused(tmp_path, capsys, CAMERA + "gpus: {device: cuda, backend: mig}")
    refused.check(3, "GPU 0 (X1) is not divided", "sudo nvidia-smi -i 0 -mig 1")


def test_a_gpu_that_it_may_not_divide(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = '{"gpus": [{"name": "X3", "mig": []}], "faults": [{"function": "nvmlDeviceCreateGpuInstance", "error": "NO_PERMISSION"}]}'
    monkeypatch.setenv("DRIFTBOX_FAKE_NVML", script)
    own = "gpus: {device: cuda, backend: mig, capacity_pct: 40, mig_reconfigure: true, mig_profile: 3g.71gb}\nwindow: {prep_pct: 10}"
    Refused(tmp_path, capsys, CAMERA + own).check(
        3, "GPU 0 (X3)", "may not divide", "run the box as root", "nvidia-smi mig -i 0 -cgi"
    )


MPS = CAMERA + "gpus: {device: cuda, backend: mps}"


@pytest.fixture
def mps(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A GPU, and the stand-in for NVIDIA's control program in the path. A data folder with a short path, as its sockets need."""
    monkeypatch.setenv("DRIFTBOX_FAKE_NVML", '{"gpus": [{"name": "X1", "uuid": "GPU-fake"}]}')
    with tempfile.TemporaryDirectory(prefix="mps", dir="/tmp") as folder:
        program = Path(folder, "nvidia-cuda-mps-control")
        program.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -c "{FAKE_MPS}" "$0" "$@"\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        yield Path(folder)


#: Its name stands in its command line, by which daemons are known.
FAKE_MPS = "import sys; from edge.gpu.fake_mps import main; sys.exit(main(sys.argv[2:]))"


def test_a_driver_without_mps(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRIFTBOX_FAKE_NVML", '{"gpus": [{"name": "X1"}]}')
    Refused(tmp_path, capsys, MPS).check(3, "nvidia-cuda-mps-control is not installed", "gpus.backend to lanes")


def test_no_permission_to_start_the_daemon(
    tmp_path: Path, mps: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_MPS", "no-permission")
    refused = Refused(tmp_path, capsys, MPS, "--data-dir", str(mps / "data"))
    refused.check(3, "insufficient privileges", "a user who may use the GPU", "gpus.backend to lanes")


def test_another_owners_daemon_in_the_way_is_named_and_left_alone(
    tmp_path: Path, mps: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = mps / "data"
    theirs = MpsDaemon(runtime_root(data, "GPU-fake"), gpu="GPU-fake", owner="/somewhere/else")
    theirs.start()
    try:
        Refused(tmp_path, capsys, MPS, "--data-dir", str(data)).check(3, "that this box did not start", "echo quit")
        assert theirs.state() is ServerState.ACTIVE
    finally:
        theirs.stop()


def test_shares_of_a_gpu_that_a_cpu_cannot_keep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Refused(tmp_path, capsys, CAMERA + "gpus: {backend: green}").check(2, "gpus", "set device to cuda")
