"""Doctor: every check says what is and what to do; one that fails never hides the others."""

from __future__ import annotations

import os
import shutil
import socket
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

from configs.errors import WeightsError
from configs.load import parse_config
from configs.schema import BoxConfig
from edge import doctor
from edge.clock import FakeClock
from edge.doctor import Finding, Level
from edge.gpu.fake_nvml import FakeGpu, FakeMig, FakeNvml
from edge.gpu.mps_daemon import PID_FILE, Other, runtime_root
from edge.gpu.mps_partitions import GIVEN_UP
from edge.store.folder import DataFolder
from edge.web.fake import FakeSource
from edge.web.serve import WebServer
from tests.support.pace import slowness

CANARY = "c4n4ry-s3cret"


def config(text: str = "", data_dir: Path = Path("data")) -> BoxConfig:
    loaded = parse_config(text)
    return loaded.model_copy(update={"box": loaded.box.model_copy(update={"data_dir": data_dir})})


def test_every_check_of_this_machine_answers(tmp_path: Path) -> None:
    found = {f.check: f for f in doctor.examine(config("web: {enabled: false}", tmp_path / "new" / "data"))}
    assert set(found) >= {
        "python",
        "libraries",
        "gpu",
        "mps",
        "mig",
        "lanes",
        "clock",
        "disk",
        "web",
        "broker",
        "model tinydet-edge",
    }
    for name in ("python", "libraries", "clock", "web", "broker"):
        assert found[name].level is Level.OK, found[name]
    assert not (tmp_path / "new").exists(), "looking changes nothing"


def test_a_check_that_breaks_is_a_finding() -> None:
    def breaks(_: BoxConfig) -> Finding:
        raise RuntimeError(f"rtsp://u:{CANARY}@h is odd")

    def lacks(_: BoxConfig) -> Finding:
        raise WeightsError("weights of x are missing", remedy="fetch them")

    broken = doctor.guarded("x", breaks, config())
    assert (broken.level, broken.exit_code) == (Level.BAD, 3)
    assert CANARY not in broken.text
    lacking = doctor.guarded("x", lacks, config())
    assert (lacking.text, lacking.remedy, lacking.exit_code) == ("weights of x are missing", "fetch them", 3)


def test_the_weightiest_finding_gives_the_exit_code() -> None:
    assert doctor.exit_code([doctor.ok("a", "fine"), doctor.warn("b", "hm", "do")]) == 0
    assert doctor.exit_code([doctor.bad("a", "x", "y", exit_code=1)]) == 1
    assert doctor.exit_code([doctor.bad("a", "x", "y", exit_code=1), doctor.bad("b", "x", "y")]) == 3


Usage = namedtuple("Usage", "total used free")


@pytest.mark.parametrize(("free_mib", "level"), [(100, Level.BAD), (5_000, Level.WARN), (50_000, Level.OK)])
def test_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_mib: int, level: Level) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, free_mib * 2**20))
    found = doctor.check_disk(config("storage: {min_free_mib: 512, max_gib: 20}", tmp_path / "data"))
    assert found.level is level
    assert bool(found.remedy) == (level is not Level.OK)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert doctor.check_disk(config("", tmp_path / "data")).level is Level.BAD


def test_a_folder_below_something_unwritable_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(**_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(doctor.tempfile, "TemporaryFile", refuse)
    found = doctor.check_disk(config("", tmp_path / "data"))
    assert (found.level, str(tmp_path) in found.text) == (Level.BAD, True)
    assert "box.data_dir" in found.remedy


def test_a_folder_in_use_is_told(tmp_path: Path) -> None:
    given = config("web: {enabled: false}", tmp_path / "data")
    assert "no box has run" in doctor.check_lock(given).text
    assert not (tmp_path / "data").exists()
    with DataFolder(tmp_path / "data"):
        found = doctor.check_lock(given)
        assert (found.level, f"process {os.getpid()}" in found.text) == (Level.WARN, True)
    assert doctor.check_lock(given).text.endswith("is free")
    DataFolder(tmp_path / "data").close()


def test_a_taken_port_and_a_running_box() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        found = doctor.guarded("web", doctor.check_port, config(f"web: {{port: {port}}}"))
    assert found.level is Level.BAD
    assert f"port {port} on 127.0.0.1 is taken" in found.text
    with WebServer(FakeSource(), host="127.0.0.1", port=0) as server:
        port = int(server.url.rstrip("/").rpartition(":")[2])
        assert "answers" in doctor.check_port(config(f"web: {{port: {port}}}")).text


def test_more_capacity_than_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge.gpu.lanes.usable_cores", lambda: 2)
    levels = [doctor.check_lanes(config(f"gpus: {{capacity_pct: {pct}}}")).level for pct in (150, 190, 210)]
    assert levels == [Level.OK, Level.WARN, Level.BAD]


class Jumping(FakeClock):
    """A machine whose wall clock is `jump_s` further at every second look."""

    def __init__(self, utc_s: float, jump_s: float = 0.0) -> None:
        super().__init__()
        self._utc, self._jump_s = utc_s, jump_s

    def utc_s(self) -> float:
        self._utc += self._jump_s
        return self._utc


@pytest.mark.parametrize(
    ("utc_s", "jump_s", "level"), [(1_800_000_000, 0, Level.OK), (0, 0, Level.BAD), (1_800_000_000, 60, Level.WARN)]
)
def test_clock(utc_s: float, jump_s: float, level: Level) -> None:
    assert doctor.check_clock(config(), Jumping(utc_s, jump_s), lambda: None).level is level


def test_unknown_and_missing_models_have_a_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DRIFTBOX_WEIGHTS", str(tmp_path))
    monkeypatch.setenv("DRIFTBOX_CACHE", str(tmp_path))
    for name in ("no-such-model", "yolov8n", "/no/such/file.safetensors"):
        found = doctor.guarded(name, lambda c, name=name: doctor.check_model(c, name), config())  # type: ignore[misc]
        assert found.level is Level.BAD
        assert found.remedy


def test_the_models_of_every_task_are_looked_at_once_each() -> None:
    config = parse_config(
        "models: {edge: a, golden: g, tasks: {classification: {edge: c, golden: h}}}\n"
        "cameras: [{id: x, url: /v.mp4}, {id: y, url: /v.mp4, task: classification}, {id: z, url: /v.mp4, edge: own},"
        " {id: spare, url: /v.mp4, edge: never, enabled: false}]"
    )
    assert doctor.model_names(config) == ["a", "g", "c", "h", "own"]
    assert doctor.model_names(parse_config("cameras: [{id: y, url: /v.mp4, task: classification}]")) == [
        "tinydet-edge", "tinydet-golden", "mobilenetv2",
    ]  # fmt: skip


def test_cameras(tmp_path: Path) -> None:
    (tmp_path / "empty.mp4").write_bytes(b"")
    text = f"""
cameras:
  - {{id: scene, url: "rendered:street"}}
  - {{id: gone, url: "{tmp_path}/none.mp4"}}
  - {{id: empty, url: "{tmp_path}/empty.mp4"}}
  - {{id: refused, url: "rtsp://viewer:{CANARY}@127.0.0.1:1/x"}}
"""
    scene, *others = [doctor.check_camera(camera, timeout_s=1.5 * slowness()) for camera in config(text).cameras]
    assert scene.level is Level.OK
    for found in others:
        assert (found.level, found.exit_code) == (Level.BAD, 1), found
        assert found.remedy
        assert CANARY not in found.text
    assert "not_found" in others[0].text


def test_a_camera_that_works_is_measured(tmp_path: Path) -> None:
    import av
    import numpy as np

    path = tmp_path / "clip.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for shade in range(20):
            frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), 10 * shade, np.uint8), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    found = doctor.check_camera(config(f"cameras: [{{id: clip, url: '{path}', loop: true}}]").cameras[0])
    assert found.level is Level.OK, found
    assert "64x48 px" in found.text


def gpus(monkeypatch: pytest.MonkeyPatch, *found: FakeGpu, fault: str = "", device: int | None = None) -> None:
    """The machine has these GPUs, or a driver with this fault."""
    fake = FakeNvml(found)
    if fault:
        fake.fail("nvml" if device is None else "nvmlDeviceGetPowerUsage", fault, device=device)
    monkeypatch.setattr("edge.gpu.nvml.nvml_library", lambda: fake)
    monkeypatch.setattr("edge.gpu.cuda.cuda_missing", lambda: "")


def test_a_box_on_its_cpu_needs_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, fault="LIBRARY_NOT_FOUND")
    found = doctor.check_gpu(config())
    assert found.level is Level.OK
    assert "no NVIDIA driver" in found.text
    gpus(monkeypatch, FakeGpu(name="NVIDIA H200", memory_mib=144_384))
    assert (
        doctor.check_gpu(config()).text == "GPU 0 NVIDIA H200 (141.0 GiB, 37 % busy, 45 C, 120 W); not used: gpus.device is cpu"
    )
    gpus(monkeypatch, FakeGpu(), FakeGpu(), fault="GPU_IS_LOST", device=1)
    found = doctor.check_gpu(config())
    assert (found.level, "is lost" in found.text, "restart" in found.remedy) == (Level.WARN, True, True)


@pytest.mark.parametrize(
    ("fault", "words", "remedy"),
    [
        ("DRIVER_NOT_LOADED", "not loaded", "modprobe"),
        ("NO_PERMISSION", "may not ask", "/dev/nvidia"),
        ("LIB_RM_VERSION_MISMATCH", "updated while it was in use", "restart"),
    ],
)
def test_a_configured_gpu_whose_driver_does_not_work(
    monkeypatch: pytest.MonkeyPatch, fault: str, words: str, remedy: str
) -> None:
    gpus(monkeypatch, FakeGpu(), fault=fault)
    found = doctor.check_gpu(config("gpus: {device: cuda}"))
    assert (found.level, found.exit_code) == (Level.BAD, 3)
    assert words in found.text
    assert remedy in found.remedy


@pytest.mark.parametrize(
    ("gpu", "words", "remedy"),
    [
        (FakeGpu(ecc_errors=4, temperature_c=95), "4 uncorrected memory errors", "replaced"),
        (FakeGpu(throttle=0x44), "held down: power limit, too hot (hardware)", "cooling"),
        (FakeGpu(temperature_c=88), "hot: 88 C", "cooling"),
        (FakeGpu(processes=[(1, 500), (os.getpid(), 100)]), "1 process, 500 MiB", "gpus.capacity_pct"),
        (FakeGpu(processes=[(1, 500), (2, None)]), "2 processes, 500 MiB", "nvidia-smi"),
    ],
)
def test_a_gpu_that_works_less_well_than_it_could(
    monkeypatch: pytest.MonkeyPatch, gpu: FakeGpu, words: str, remedy: str
) -> None:
    gpus(monkeypatch, gpu)
    found = doctor.check_gpu(config("gpus: {device: cuda}"))
    assert found.level is Level.WARN
    assert words in found.text
    assert remedy in found.remedy


def test_a_healthy_gpu_and_a_clock_that_somebody_set(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, FakeGpu(throttle=0x3, processes=[(os.getpid(), 100)]))
    assert doctor.check_gpu(config("gpus: {device: cuda}")).level is Level.OK
    monkeypatch.setattr("edge.gpu.cuda.cuda_missing", lambda: "this PyTorch was built without CUDA")
    found = doctor.check_gpu(config("gpus: {device: cuda}"))
    assert (found.level, "built without CUDA" in found.text) == (Level.BAD, True)


def test_mps_is_looked_at_when_it_is_wanted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gpus(monkeypatch, FakeGpu())
    mps = config("gpus: {device: cuda, backend: mps}", tmp_path)
    assert doctor.check_mps(config()).text == "not used: gpus.backend is lanes"
    monkeypatch.setattr(doctor.shutil, "which", lambda _: None)
    found = doctor.check_mps(mps)
    assert (found.level, found.exit_code) == (Level.BAD, 3)
    assert "without MPS" in found.text
    assert "gpus.backend to lanes" in found.remedy
    program = tmp_path / "nvidia-cuda-mps-control"
    program.write_text("#!/bin/sh")
    monkeypatch.setattr(doctor.shutil, "which", lambda _: str(program))
    monkeypatch.setattr(doctor.os, "access", lambda *_: False)
    assert "may not be run" in doctor.check_mps(mps).text
    monkeypatch.setattr(doctor.os, "access", lambda *_: True)
    assert doctor.check_mps(mps).level is Level.OK


def test_a_strange_mps_daemon_is_named_and_left_alone_and_ours_is_not_strange(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gpus(monkeypatch, FakeGpu(uuid="GPU-12345678-9"))
    mps = config("gpus: {device: cuda, backend: mps}", tmp_path)
    pipe = runtime_root(tmp_path, "GPU-12345678-9") / "pipe"
    pipe.mkdir(parents=True)
    (pipe / PID_FILE).write_text("77")
    monkeypatch.setattr(doctor.shutil, "which", lambda _: "/bin/sh")
    daemons = [Other(pid=77, user="box", command="x"), Other(pid=78, user="alice", command="x")]
    monkeypatch.setattr("edge.gpu.mps_daemon.other_daemons", lambda but=None: [d for d in daemons if d.pid != but])
    found = doctor.check_mps(mps)
    assert (found.level, "process 78 of alice" in found.text, "77" in found.text) == (Level.WARN, True, False)
    assert "left alone" in found.remedy
    del daemons[1]
    assert doctor.check_mps(mps).level is Level.OK


@pytest.mark.parametrize(
    ("static", "version", "level", "words"),
    [
        ("off", 12080, Level.OK, "starts a daemon of its own"),
        ("auto", 12080, Level.OK, "need the MPS of CUDA 13.1; this one says 12080"),
        ("auto", None, Level.OK, "this one says nothing"),
        ("on", 12080, Level.WARN, "percentages keep the shares"),
        ("on", 13010, Level.OK, "with static partitions"),
    ],
)
def test_static_partitions_of_mps_are_looked_at_where_they_are_wanted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, static: str, version: int | None, level: Level, words: str
) -> None:
    gpus(monkeypatch, FakeGpu())
    monkeypatch.setattr(doctor.shutil, "which", lambda _: "/bin/sh")
    monkeypatch.setattr("edge.gpu.mps_daemon.other_daemons", lambda but=None: [])
    monkeypatch.setattr("edge.gpu.mps_daemon.control_version", lambda: version)
    found = doctor.check_mps(config(f"gpus: {{device: cuda, backend: mps, mps_static: {static}}}", tmp_path))
    assert (found.level, words in found.text) == (level, True)


def test_partitions_that_the_box_has_given_up_are_told_with_the_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gpus(monkeypatch, FakeGpu())
    monkeypatch.setattr(doctor.shutil, "which", lambda _: "/bin/sh")
    monkeypatch.setattr("edge.gpu.mps_daemon.other_daemons", lambda but=None: [])
    monkeypatch.setattr("edge.gpu.mps_daemon.control_version", lambda: 13010)
    wanted = config("gpus: {device: cuda, backend: mps, mps_static: auto}", tmp_path)
    note = tmp_path / GIVEN_UP
    note.parent.mkdir()
    note.write_text('{"at_utc": 1700000000, "why": "lspart says nothing"}')
    found = doctor.check_mps(wanted)
    assert (found.level, "2023-11-1" in found.text, "lspart says nothing" in found.text) == (Level.WARN, True, True)
    assert "gpus.mps_static to off" in found.remedy
    for nonsense in ("", "[]", "{}", '{"at_utc": "x", "why": 1}', '{"at_utc": 1e300, "why": ""}'):
        note.write_text(nonsense)
        assert doctor.check_mps(wanted).level is Level.OK


def test_mig_partitions_are_listed_and_never_made(monkeypatch: pytest.MonkeyPatch) -> None:
    mig = config("gpus: {device: cuda, backend: mig, capacity_pct: 14}\nwindow: {prep_pct: 10}")
    gpus(monkeypatch, FakeGpu())
    assert doctor.check_mig(config()).text == "not used: gpus.backend is lanes"
    found = doctor.check_mig(mig)
    assert (found.level, "nvidia-smi" in found.remedy) == (Level.BAD, True)
    gpus(monkeypatch, FakeGpu(mig=[FakeMig(), FakeMig(slices=3)]))
    found = doctor.check_mig(mig)
    assert (found.level, "the box works in MIG-fake-0-1" in found.text, "14 pct" in found.text) == (Level.OK, True, True)
    assert "MIG-fake-0-0" in doctor.check_mig(config()).text


def test_a_partition_that_the_box_is_to_make_is_foreseen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = "gpus: {device: cuda, backend: mig, capacity_pct: 40, mig_reconfigure: true, mig_profile: PROFILE}\nwindow: {prep_pct: 10}"
    monkeypatch.setenv("DRIFTBOX_FAKE_NVML", '{"gpus": [{"name": "X1", "mig": [{"profile": "4g.71gb", "slices": 4}]}]}')
    found = doctor.check_mig(config(text.replace("PROFILE", "3g.71gb"), tmp_path))
    assert (found.level, found.text.split(";")[0]) == (Level.OK, "the box makes a partition 3g.71gb when it starts")
    assert "4g.71gb" in found.text
    found = doctor.check_mig(config(text.replace("PROFILE", "7g.141gb"), tmp_path))
    assert (found.level, "no room" in found.text, "smaller" in found.remedy) == (Level.BAD, True, True)
    assert list(tmp_path.iterdir()) == [], "it changes nothing, and notes nothing"
    monkeypatch.setenv("DRIFTBOX_FAKE_NVML", '{"gpus": [{"name": "X2"}]}')
    found = doctor.check_mig(config(text.replace("PROFILE", "3g.71gb"), tmp_path))
    assert (found.level, "sudo nvidia-smi -i 0 -mig 1" in found.remedy) == (Level.BAD, True)


def test_a_box_that_keeps_no_shares_says_so() -> None:
    found = doctor.check_lanes(config("gpus: {backend: none}"))
    assert (found.level, "wishes" in found.text) == (Level.WARN, True)
    assert "GPU 0" in doctor.check_lanes(config("gpus: {device: cuda}")).text
