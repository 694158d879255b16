"""Which process a learning job gets under MPS, and which ones are kept or let go. The processes are stubs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from configs.errors import EnvironmentLacking
from edge.clock import FakeClock
from edge.gpu.mps import IDLE_MAX, MpsBackend
from edge.gpu.remote import WorkerLost
from edge.gpu.worker import keep, load_model
from edge.resolution import at_own_size
from models.detector import DetectorSpec
from models.fake import FakeDetector
from scheduler.salus.types import MemoryNeed


class StubDaemon:
    def __init__(self) -> None:
        self.heard: list[str] = []
        self.left = True

    def start(self) -> None:
        self.heard.append("start")

    def drain(self, *, timeout_s: float) -> bool:
        self.heard.append("drain")
        return self.left

    def stop(self) -> None:
        self.heard.append("stop")

    def client_env(self, **settings: Any) -> dict[str, str]:
        return {name: str(value) for name, value in settings.items()}


class StubProcess:
    def __init__(self) -> None:
        self.alive, self.pid, self.held_mib = True, 0, 100.0
        self.thread_pct, self.limit_mib, self.golden = 100.0, None, ""
        self.asked: list[str] = []
        self.answers = True

    def ask(self, op: str, **said: Any) -> None:
        self.asked.append(op)
        if not self.answers:
            raise WorkerLost("it ended")

    def kill(self, **how: Any) -> None:
        self.alive = False

    close = release = kill


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[MpsBackend]:
    made = MpsBackend(
        "GPU-none", data_dir=tmp_path, memory_mib=4000.0, clock=FakeClock(), daemon=StubDaemon(), spare=False, beat_s=3600.0,  # type: ignore[arg-type]
        blank=lambda before_kill: StubProcess(),  # type: ignore[arg-type, return-value]
    )  # fmt: skip
    yield made
    made.close()


def taken(backend: MpsBackend, job: str, share_pct: float = 50.0, *, golden: str = "", need_mib: float | None = None) -> Any:
    backend.open_lane(job, need=None if need_mib is None else MemoryNeed(persistent_mib=need_mib, ephemeral_mib=0.0))
    backend.set_shares({job: share_pct})
    return backend.take_process(job, golden)


def ended(backend: MpsBackend, job: str, process: Any) -> None:
    backend.give_back_process(job, process)
    backend.close_lane(job)


def test_the_next_job_of_the_kind_gets_the_process_that_is_there_and_becomes_nothing_anew(backend: MpsBackend) -> None:
    first, settings = taken(backend, "a/label/1", golden="big")
    assert settings.env["thread_pct"] == "50.0"
    assert settings.env["below_normal"] == "True"
    ended(backend, "a/label/1", first)
    assert first.asked == ["drop"]
    again, settings = taken(backend, "b/label/2", golden="big")
    assert (again, settings) == (first, None)
    assert backend._held_mib("b/label/2") == 100.0
    assert backend._held_mib("a/label/1") == 0.0


@pytest.mark.parametrize(
    "other", [{"share_pct": 90.0}, {"golden": ""}, {"golden": "other"}], ids=["percentage", "no golden", "another golden"]
)
def test_one_of_another_kind_gets_another(backend: MpsBackend, other: dict[str, Any]) -> None:
    first, _ = taken(backend, "a/label/1", golden="big")
    ended(backend, "a/label/1", first)
    second, settings = taken(backend, "a/gate/1", **({"golden": "big"} | other))
    assert second is not first
    assert settings is not None


def test_a_process_whose_memory_limit_is_too_low_for_the_job_is_not_given_to_it(backend: MpsBackend) -> None:
    small, _ = taken(backend, "a/look/1", need_mib=100.0)
    ended(backend, "a/look/1", small)
    assert taken(backend, "a/profile/1", need_mib=900.0)[0] is not small
    assert taken(backend, "b/look/1")[0] is not small, "a job of unknown need may take anything"
    assert taken(backend, "c/look/1", need_mib=90.0)[0] is small


def test_the_oldest_of_too_many_goes_and_a_dead_one_is_neither_kept_nor_given(backend: MpsBackend) -> None:
    processes = [taken(backend, f"a/look/{n}")[0] for n in range(IDLE_MAX + 2)]
    for n, process in enumerate(processes):
        process.answers = n != 1
        ended(backend, f"a/look/{n}", process)
    assert [process.alive for process in processes] == [n >= 2 for n in range(IDLE_MAX + 2)]
    processes[2].alive = False
    assert taken(backend, "b/look/1")[0] is processes[3]


def test_waiting_processes_go_when_jobs_need_their_memory(backend: MpsBackend) -> None:
    first, _ = taken(backend, "a/label/1", golden="big")
    ended(backend, "a/label/1", first)
    first.held_mib = 1500.0
    backend.open_lane("a/look/1", need=MemoryNeed(persistent_mib=2000.0, ephemeral_mib=0.0))
    assert first.alive, "4000 MiB hold both"
    backend.open_lane("a/train/1", need=MemoryNeed(persistent_mib=1000.0, ephemeral_mib=0.0))
    assert not first.alive
    assert backend._held_mib("") == 0.0


def test_a_golden_model_is_written_once_and_a_jobs_own_models_each_time(backend: MpsBackend) -> None:
    golden, model = FakeDetector(arch="golden"), FakeDetector(arch="small")
    assert backend.keep_golden(golden) == backend.keep_golden(golden)
    assert backend.keep_weights(model, "a/look/1").path != backend.keep_weights(model, "a/look/1").path


def test_a_job_whose_process_starts_does_not_hang_and_one_that_runs_does(backend: MpsBackend) -> None:
    clock = backend.clock._base  # type: ignore[attr-defined]
    lane = backend.open_lane("a/look/1", need=MemoryNeed(persistent_mib=1.0, ephemeral_mib=0.0))
    backend.set_shares({"a/look/1": 50.0})
    process, _ = backend.take_process("a/look/1", "")
    told: list[int] = []

    def run() -> None:
        with lane.iteration():
            with backend.starting("a/look/1"):
                clock.sleep(200.0)
                told.append(len(backend.faults()))
            clock.sleep(200.0)
            told.append(len(backend.faults()))

    clock.spawn(run)
    clock.advance_to(500.0)
    clock.join()
    assert told == [0, 1]
    for thread in [t for t in threading.enumerate() if t.name == "end-a/look/1"]:
        thread.join(120.0)
    assert not process.alive


def test_the_daemon_ends_when_its_clients_have_and_a_client_that_stays_is_said_and_holds_nobody_up(
    backend: MpsBackend, caplog: pytest.LogCaptureFixture
) -> None:
    daemon: Any = backend.daemon
    process, _ = taken(backend, "a/look/1")
    daemon.left = False
    backend.close()
    assert not process.alive
    assert daemon.heard == ["start", "drain", "stop"]
    assert "still has clients" in caplog.text


def test_a_gpu_that_is_gone_is_told_with_its_remedy_and_the_box_goes_on(
    backend: MpsBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its processes fail, and neither the daemon nor another comes back."""
    process, _ = taken(backend, "a/look/1")

    def gone() -> None:
        raise EnvironmentLacking("the MPS server does not start: no CUDA-capable device", remedy="see whether the GPU is there")

    monkeypatch.setattr(backend.daemon, "recover", gone, raising=False)
    backend.lost_process("a/look/1", WorkerLost("CUDA error: the device is lost", poisoned=True))
    assert not process.alive
    reported, lacking = backend.faults()
    assert (reported.job, "reported first by this job" in reported.text) == ("a/look/1", True)
    assert (lacking.code, lacking.remedy) == ("device", "see whether the GPU is there")
    assert "MPS does not come back" in lacking.text
    monkeypatch.setattr(backend.daemon, "recover", lambda: True, raising=False)
    assert taken(backend, "b/look/1")[0].alive, "whoever comes next is not held up"


class Enlarging(FakeDetector):
    enlarges = True


def build_enlarging(spec: DetectorSpec, data: bytes, device: str) -> Enlarging:
    return Enlarging(arch=spec.arch)


def test_a_model_that_is_not_to_enlarge_small_pictures_does_not_in_its_process_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge.gpu.worker._named", lambda name: build_enlarging)
    here = Enlarging()
    for enlarges in (True, False):
        if not enlarges:
            at_own_size(here)
        there = load_model(keep(here, tmp_path / "weights"), "cpu")
        assert getattr(there, "enlarges", None) is enlarges
