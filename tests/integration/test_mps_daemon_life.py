"""The box's MPS daemon, against the stand-in for NVIDIA's control program: real processes, real sockets, no GPU."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from configs.errors import EnvironmentLacking
from edge.gpu import mps_daemon
from edge.gpu.mps_daemon import (
    SOCKET_PATH_MAX,
    MpsDaemon,
    PartitionRow,
    PartitionTable,
    ServerState,
    control_version,
    has_partitions,
    other_daemons,
    runtime_root,
)
from edge.gpu.mps_partitions import StaticPartitions

pytestmark = pytest.mark.slow
FAKE = (sys.executable, "-m", "edge.gpu.fake_mps")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder with a short path, as sockets need."""
    with tempfile.TemporaryDirectory(prefix="mps", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def make(short: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., MpsDaemon]]:
    """Makes daemons that are ended afterwards, whatever happened to them."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    made: list[MpsDaemon] = []

    def daemon(name: str = "a", *, flaws: str = "", owner: str = "/data/box", **settings: object) -> MpsDaemon:
        monkeypatch.setenv("FAKE_MPS", flaws)
        one = MpsDaemon(
            short / name, gpu="GPU-fake", owner=owner, control=FAKE, **{"ready_s": 60.0, "answer_s": 60.0, **settings}
        )  # type: ignore[arg-type]
        made.append(one)
        return one

    yield daemon
    for one in made:
        pid = one._pid()
        if pid is not None:
            os.kill(pid, signal.SIGKILL)


class Client:
    """A process's connection, as CUDA would hold it."""

    def __init__(self, daemon: MpsDaemon, env: dict[str, str] | None = None, *, pid: int = 4242) -> None:
        wanted = daemon.client_env() | (env or {})
        self.link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.link.settimeout(60.0)
        self.link.connect(str(daemon.pipe_dir / "control"))
        self.lines = self.link.makefile("r")
        hello = {
            "pid": pid, "pct": float(wanted.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", 100)),
            "memory": wanted.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", ""), "partition": wanted.get("CUDA_MPS_SM_PARTITION", ""),
        }  # fmt: skip
        self.say(hello=hello)
        self.answer = self.hear()

    def say(self, **message: object) -> None:
        self.link.sendall(json.dumps(message).encode() + b"\n")

    def hear(self) -> dict[str, object]:
        return dict(json.loads(self.lines.readline()))

    def leave(self) -> None:
        self.lines.close()
        self.link.close()


def alive(pid: int) -> bool:
    return mps_daemon._command_of(pid) != ()


def test_it_starts_answers_knows_its_clients_and_stops(make: Callable[..., MpsDaemon]) -> None:
    daemon = make()
    assert daemon.state() is ServerState.GONE
    daemon.start()
    pid = daemon._pid()
    assert pid is not None
    assert alive(pid)
    assert daemon.state() is ServerState.ACTIVE
    assert daemon.clients() == ()
    client = Client(daemon, pid=4242)
    assert daemon.clients() == (4242,)
    assert not daemon.drain(timeout_s=0.1)
    client.leave()
    assert daemon.drain(timeout_s=60.0)
    daemon.stop()
    assert daemon.state() is ServerState.GONE
    assert not alive(pid)
    assert not (daemon.pipe_dir / "control").exists()
    daemon.stop()  # again: nothing


def test_its_folders_are_for_its_user_only(make: Callable[..., MpsDaemon]) -> None:
    daemon = make()
    daemon.start()
    assert daemon.root.stat().st_mode & 0o077 == 0


def test_a_client_is_limited_by_its_environment_and_by_the_daemon_s_default(make: Callable[..., MpsDaemon]) -> None:
    daemon = make()
    daemon.start()
    env = daemon.client_env(thread_pct=30, memory_mib=2048.4, below_normal=True)
    assert env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "30"
    assert env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=2048M"
    assert env["CUDA_MPS_CLIENT_PRIORITY"] == "1"
    assert env["CUDA_VISIBLE_DEVICES"] == "GPU-fake"
    first = Client(daemon, env, pid=1)
    daemon.set_default_thread_pct(20)
    second = Client(daemon, env, pid=2)
    assert (first.answer["pct"], second.answer["pct"]) == (30.0, 20.0)
    assert "1 30 0=2048M" in daemon.ask("ps")


def test_a_fault_reaches_all_clients_and_the_daemon_is_back_when_they_have_gone(make: Callable[..., MpsDaemon]) -> None:
    daemon = make()
    daemon.start()
    faulty, innocent = Client(daemon, pid=1), Client(daemon, pid=2)
    faulty.say(fault="an illegal memory access was encountered")
    for client in (faulty, innocent):
        assert client.hear() == {"error": "an illegal memory access was encountered"}
    assert daemon.state() is ServerState.FAULT
    newcomer = Client(daemon, pid=3)
    assert "not ready" in str(newcomer.answer["error"])
    newcomer.leave()
    faulty.leave()
    assert daemon.state() is ServerState.FAULT  # one of them is still there
    innocent.leave()
    assert daemon.recover(timeout_s=60.0) is True
    assert "pct" in Client(daemon, pid=4).answer


def test_a_daemon_that_stays_at_fault_is_started_anew(make: Callable[..., MpsDaemon]) -> None:
    daemon = make(flaws="stays-at-fault")
    daemon.start()
    before = daemon._pid()
    client = Client(daemon)
    client.say(fault="unspecified launch failure")
    client.hear()
    client.leave()
    assert daemon.recover(timeout_s=0.2) is False
    assert daemon._pid() not in (None, before)
    assert daemon.state() is ServerState.ACTIVE


def test_a_daemon_that_was_killed_is_started_anew(make: Callable[..., MpsDaemon]) -> None:
    daemon = make()
    daemon.start()
    pid = daemon._pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert mps_daemon._until(lambda: daemon.state() is ServerState.GONE, 60.0)
    assert daemon.recover(timeout_s=0.2) is False
    assert daemon.state() is ServerState.ACTIVE


def test_a_daemon_that_ends_while_it_is_asked_is_gone(make: Callable[..., MpsDaemon], monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = make()
    daemon.start()
    ask = daemon.ask

    def dies(command: str) -> str:
        pid = daemon._pid()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        assert mps_daemon._until(lambda: not alive(pid), 60.0)
        return ask(command)

    monkeypatch.setattr(daemon, "ask", dies)
    assert daemon.state() is ServerState.GONE


def test_a_client_s_work_is_ended_before_its_process(make: Callable[..., MpsDaemon]) -> None:
    daemon = make()
    daemon.start()
    client = Client(daemon, pid=77)
    assert daemon.terminate_client(77)
    assert client.hear() == {"error": "MPS client has been terminated"}
    assert not daemon.terminate_client(78)  # nobody we know


def test_a_daemon_that_an_earlier_run_left_behind_is_ended(make: Callable[..., MpsDaemon]) -> None:
    first = make()
    first.start()
    left = first._pid()
    again = make()  # the box was killed and comes up on the same data folder
    again.start()
    assert left is not None
    assert not alive(left)
    assert again.state() is ServerState.ACTIVE


def test_a_daemon_whose_start_was_interrupted_is_known_as_ours(make: Callable[..., MpsDaemon]) -> None:
    first = make()
    first.start()
    left = first._pid()
    first._write_owner(pid=0, started=0)  # killed between starting it and noting its id
    make().start()
    assert left is not None
    assert not alive(left)


@pytest.mark.parametrize("how", ["another box", "no note", "another boot", "another process with that id"])
def test_a_daemon_of_another_owner_is_never_killed(make: Callable[..., MpsDaemon], how: str) -> None:
    theirs = make(owner="/data/other")
    theirs.start()
    pid = theirs._pid()
    assert pid is not None
    note = theirs.root / "owner.json"
    known = json.loads(note.read_text())
    match how:
        case "no note":
            note.unlink()
        case "another boot":
            note.write_text(json.dumps(known | {"owner": "/data/box", "boot_id": "of yesterday"}))
        case "another process with that id":
            note.write_text(json.dumps(known | {"owner": "/data/box", "started": known["started"] - 1}))
    ours = make()
    with pytest.raises(EnvironmentLacking, match=f"did not start.*process {pid}") as caught:
        ours.start()
    assert "echo quit" in caught.value.remedy
    ours.stop()
    assert alive(pid)
    assert theirs.ask("get_server_status 1") == "ACTIVE"


def test_daemons_of_others_are_seen(make: Callable[..., MpsDaemon]) -> None:
    theirs = make("theirs")
    theirs.start()
    found = other_daemons("edge.gpu.fake_mps")
    assert theirs._pid() in {other.pid for other in found}
    assert theirs._pid() not in {other.pid for other in other_daemons("edge.gpu.fake_mps", but=theirs._pid())}


def test_files_of_a_daemon_that_is_gone_are_no_obstacle(make: Callable[..., MpsDaemon]) -> None:
    daemon = make()
    daemon.start()
    pid = daemon._pid()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    assert mps_daemon._until(lambda: not alive(pid), 60.0)
    (daemon.pipe_dir / mps_daemon.PID_FILE).write_text(str(os.getpid()))  # its id was used again, by something else
    again = make()
    again.start()
    assert again.state() is ServerState.ACTIVE
    assert alive(os.getpid())


def test_no_permission_is_said_with_what_to_do(make: Callable[..., MpsDaemon]) -> None:
    daemon = make(flaws="no-permission")
    with pytest.raises(EnvironmentLacking, match="insufficient privileges") as caught:
        daemon.start()
    assert "user who may use the GPU" in caught.value.remedy
    assert "lanes" in caught.value.remedy
    assert daemon.state() is ServerState.GONE


def hurried(daemon: MpsDaemon, monkeypatch: pytest.MonkeyPatch, **settings: float) -> MpsDaemon:
    """Patient with the program's own start, which may take long on a busy machine, and with nothing that comes after it."""
    start_server = daemon._start_server

    def in_a_hurry() -> None:
        for name, seconds in settings.items():
            setattr(daemon, name, seconds)
        start_server()

    monkeypatch.setattr(daemon, "_start_server", in_a_hurry)
    return daemon


def test_a_driver_without_mps_is_said_and_no_daemon_is_left(
    make: Callable[..., MpsDaemon], monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = hurried(make(flaws="no-server"), monkeypatch, _ready_s=0.5)
    with pytest.raises(EnvironmentLacking, match="server does not start.*not supported") as caught:
        daemon.start()
    assert "driver" in caught.value.remedy
    assert daemon.state() is ServerState.GONE


def test_a_missing_program_is_said(short: Path) -> None:
    with pytest.raises(EnvironmentLacking, match="not installed") as caught:
        MpsDaemon(short, gpu="GPU-fake", owner="x", control=("no-such-mps-control",)).start()
    assert "compute utilities" in caught.value.remedy


def test_a_program_that_may_not_be_run_is_said(short: Path) -> None:
    program = short / "nvidia-cuda-mps-control"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o600)
    with pytest.raises(EnvironmentLacking, match="may not be run"):
        MpsDaemon(short / "x", gpu="GPU-fake", owner="x", control=(str(program),)).start()


def test_a_daemon_that_does_not_answer_holds_nobody_up(make: Callable[..., MpsDaemon], monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = hurried(make(flaws="mute"), monkeypatch, _ready_s=0.5, _answer_s=0.5)
    with pytest.raises(EnvironmentLacking, match="does not answer"):
        daemon.start()
    daemon.stop(timeout_s=0.1)
    assert daemon.state() is ServerState.GONE


def test_a_daemon_that_does_not_end_when_told_is_made_to(make: Callable[..., MpsDaemon]) -> None:
    daemon = make(flaws="stuck")
    daemon.start()
    pid = daemon._pid()
    daemon.stop(timeout_s=0.1)
    assert pid is not None
    assert not alive(pid)


def test_a_path_that_no_socket_can_have_is_refused(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * 120)
    with pytest.raises(EnvironmentLacking, match="too long"):
        MpsDaemon(deep, gpu="GPU-fake", owner="x", control=FAKE).start()


def test_a_long_data_folder_gets_a_short_runtime_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    uuid = "GPU-74d43ed3-cdf7-e667-3644-bf5b4f46ed65"
    assert runtime_root(Path("/data"), uuid) == Path("/data/mps/74d43ed3")
    long = Path("/data") / ("x" * 120)
    root = runtime_root(long, uuid)
    assert len(os.fsencode(root / "pipe" / mps_daemon.PID_FILE)) <= SOCKET_PATH_MAX
    assert root == runtime_root(long, uuid) != runtime_root(long / "y", uuid)


def test_somebody_else_s_folder_is_not_used(short: Path) -> None:
    (short / "real").mkdir()
    (short / "link").symlink_to(short / "real")
    with pytest.raises(EnvironmentLacking, match="somebody else"):
        MpsDaemon(short / "link", gpu="GPU-fake", owner="x", control=FAKE).start()


def free(daemon: MpsDaemon) -> int:
    return daemon.partitions().free


def test_static_partitions_are_made_until_the_device_is_full(make: Callable[..., MpsDaemon]) -> None:
    daemon = make(static=True)
    daemon.start()
    assert daemon.partitions() == PartitionTable(free=16, taken=0, sms=128)
    half = daemon.add_partition(8)
    assert daemon.partitions().rows == (PartitionRow(id=half, chunks=8, used=False),)
    env = daemon.client_env(partition=half)
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in env
    assert env["CUDA_MPS_SM_PARTITION"] == f"GPU-fake/{half}"
    client = Client(daemon, env)
    assert client.answer["pct"] == 50.0
    assert daemon.partitions().rows[0].used
    assert "invalid resource" in str(Client(daemon).answer["error"])  # it must say its partition
    with pytest.raises(EnvironmentLacking, match="Failed to fulfill.*9 chunks") as caught:
        daemon.add_partition(9)
    assert caught.value.remedy
    assert not daemon.remove_partition(half), "its client is still there"
    client.leave()
    assert mps_daemon._until(lambda: daemon.remove_partition(half), 60.0)
    assert free(daemon) == 16


def test_partitions_go_with_the_daemon_that_a_killed_box_left_behind(make: Callable[..., MpsDaemon]) -> None:
    first = make(static=True)
    first.start()
    StaticPartitions(first).open()
    first.add_partition(8)
    again = make(static=True)
    again.start()
    assert StaticPartitions(again).open() == ""
    assert free(again) == 16


def test_partitions_that_outlive_the_daemon_are_removed_when_ours_and_left_alone_when_not(
    make: Callable[..., MpsDaemon],
) -> None:
    first = make(static=True, flaws="partitions-stay")
    first.start()
    box = StaticPartitions(first)
    box.open()
    box.place("cam1/infer", {"cam1/infer": 50.0}, {}, ())
    first.add_partition(3)  # somebody else, by hand
    again = make(static=True, flaws="partitions-stay")
    again.start()
    box = StaticPartitions(again)
    assert "left alone" in box.open()
    assert (box.groups, [row.chunks for row in again.partitions().rows]) == (13, [3])


@pytest.mark.parametrize("flaws", ["", "no-chunks"], ids=["started without", "none on this GPU"])
def test_a_daemon_without_partitions_says_nothing_that_is_understood(make: Callable[..., MpsDaemon], flaws: str) -> None:
    daemon = make(static=bool(flaws), flaws=flaws)
    daemon.start()
    with pytest.raises(EnvironmentLacking, match="nothing that is understood") as caught:
        daemon.partitions()
    assert "Ampere" in caught.value.remedy


def test_a_daemon_that_cannot_be_started_for_partitions_says_so(make: Callable[..., MpsDaemon]) -> None:
    daemon = make(static=True, flaws="no-static")
    with pytest.raises(EnvironmentLacking, match="static partitioning is not supported"):
        daemon.start()


def test_static_partitions_need_a_new_driver(make: Callable[..., MpsDaemon]) -> None:
    daemon = make(static=True, flaws="old")
    assert daemon.version() == control_version(FAKE) == 12080
    with pytest.raises(EnvironmentLacking, match=r"13\.1"):
        daemon.start()


def test_a_program_that_says_no_version_is_taken_for_an_old_one() -> None:
    for program in (("no-such-mps-control",), ("sh", "-c", "exit 3"), ("echo", "version 13")):
        assert not has_partitions(control_version(program))


def test_the_stand_in_refuses_a_second_daemon_and_an_unknown_shell(make: Callable[..., MpsDaemon]) -> None:
    daemon = make()
    env = os.environ | dict(daemon._daemon_env())
    daemon._make_folders()
    asked = subprocess.run([*FAKE], input="ps\n", env=env, capture_output=True, text=True, timeout=120)
    assert (asked.returncode, asked.stdout.strip()) == (1, "Cannot find MPS control daemon process")
    daemon.start()
    second = subprocess.run([*FAKE, "-d"], env=env, capture_output=True, text=True, timeout=120)
    assert second.returncode == 1
    assert "already running" in second.stdout
