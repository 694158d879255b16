"""The backend `mps` with static partitions: what a job's process gets, and how it falls back to percentages. The processes are stubs."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from configs.errors import EnvironmentLacking, JobError
from edge.clock import FakeClock
from edge.gpu.mps import NO_SUCH_PARTITION, REFUSED_MAX, MpsBackend
from edge.gpu.mps_partitions import GIVEN_UP
from edge.gpu.remote import WorkerLost
from scheduler.salus.types import MemoryNeed
from tests.support.mps_division import DividedDaemon

WAIT_S = 60.0


class StubProcess:
    def __init__(self) -> None:
        self.alive, self.ended, self.pid, self.held_mib = True, False, 0, 100.0
        self.thread_pct, self.partition, self.limit_mib, self.golden = 100.0, "", None, ""

    def ask(self, op: str, **said: Any) -> None: ...

    def kill(self, **how: Any) -> None:
        self.alive, self.ended = False, True

    close = release = kill


Make = Callable[..., MpsBackend]


@pytest.fixture
def daemon(tmp_path: Path) -> DividedDaemon:
    return DividedDaemon(root=tmp_path)


@pytest.fixture
def make(tmp_path: Path, daemon: DividedDaemon) -> Iterator[Make]:
    made: list[MpsBackend] = []

    def backend(**settings: Any) -> MpsBackend:
        one = MpsBackend(
            "GPU-none", data_dir=tmp_path, memory_mib=4000.0, clock=FakeClock(), daemon=daemon, spare=False, beat_s=3600.0,  # type: ignore[arg-type]
            blank=lambda before_kill: StubProcess(), **({"static": "on", "room_s": 0.0} | settings),  # type: ignore[arg-type, return-value]
        )  # fmt: skip
        made.append(one)
        return one

    yield backend
    for one in made:
        one.close()


def begun(backend: MpsBackend, job: str, share_pct: float) -> tuple[Any, Any]:
    backend.open_lane(job, need=MemoryNeed(persistent_mib=10.0, ephemeral_mib=0.0))
    backend.set_shares(backend._shares | {job: share_pct})
    return backend.take_process(job, "")


def told(backend: MpsBackend) -> list[str]:
    return [fault.text for fault in backend.faults()]


def test_a_process_gets_a_partition_of_its_share_and_is_charged_for_that(make: Make, daemon: DividedDaemon) -> None:
    backend = make()
    process, settings = begun(backend, "a/train/1", 30.0)
    assert daemon.rows[process.partition].chunks == 5
    assert process.thread_pct == 31.25
    assert settings.env["partition"] == process.partition
    assert daemon.starts == [True]
    assert told(backend) == []


def test_the_partition_goes_with_the_process_and_nothing_is_kept_for_later(make: Make, daemon: DividedDaemon) -> None:
    backend = make()
    process, _ = begun(backend, "a/label/1", 50.0)
    backend.give_back_process("a/label/1", process)
    assert not process.alive
    backend._tidy()
    assert daemon.rows == {}


@pytest.mark.parametrize("settings", [{"static": "off"}, {"static": "on", "mode": "work-conserving"}], ids=["off", "lends"])
def test_without_the_setting_or_where_everybody_may_use_all_there_are_none(
    make: Make, daemon: DividedDaemon, settings: dict[str, Any]
) -> None:
    backend = make(**settings)
    process, made = begun(backend, "a/train/1", 30.0)
    assert (process.partition, made.env["partition"], daemon.starts) == ("", "", [False])


@pytest.mark.parametrize("static", ["auto", "on"])
def test_a_driver_without_partitions_means_percentages(make: Make, daemon: DividedDaemon, static: str, tmp_path: Path) -> None:
    """Whoever asked for them is told; whoever left it to the box has what he asked for."""
    daemon.new_enough = False
    backend = make(static=static)
    process, _ = begun(backend, "a/train/1", 30.0)
    assert (process.partition, process.thread_pct, daemon.starts) == ("", 30.0, [False])
    assert [("CUDA 13.1" in text) for text in told(backend)] == ([True] if static == "on" else [])
    assert (tmp_path / GIVEN_UP).exists() is (static == "on")


@pytest.mark.parametrize("static", ["auto", "on"])
@pytest.mark.parametrize("what", ["does not start", "says nothing", "has no chunk"])
def test_whatever_is_wrong_with_them_at_the_start_means_percentages_and_is_told(
    make: Make, daemon: DividedDaemon, monkeypatch: pytest.MonkeyPatch, what: str, static: str, tmp_path: Path
) -> None:
    def nothing() -> None:
        raise EnvironmentLacking("lspart says nothing that is understood")

    match what:
        case "does not start":
            daemon.lacking = "the daemon cannot be started for partitions"
        case "says nothing":
            monkeypatch.setattr(daemon, "partitions", nothing)
        case "has no chunk":
            daemon.chunks = 0
    backend = make(static=static)
    process, _ = begun(backend, "a/train/1", 30.0)
    assert (process.partition, process.thread_pct) == ("", 30.0)
    assert daemon.starts[-1] is False
    (fault,) = backend.faults()
    assert fault.code == "device"
    assert fault.text.startswith("static partitions cannot be used: ")
    assert "gpus.mps_static to off" in fault.remedy
    assert json.loads((tmp_path / GIVEN_UP).read_text())["why"] in fault.text


def test_what_was_given_up_is_forgotten_when_it_works_again(make: Make, daemon: DividedDaemon, tmp_path: Path) -> None:
    daemon.chunks = 0
    make()
    assert (tmp_path / GIVEN_UP).exists()
    daemon.chunks = 16
    make()
    assert not (tmp_path / GIVEN_UP).exists()


def test_another_owners_daemon_in_the_way_is_not_taken_for_a_lack_of_partitions(
    make: Make, daemon: DividedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    def in_the_way() -> None:
        raise EnvironmentLacking("an MPS daemon that this box did not start uses the folder")

    monkeypatch.setattr(daemon, "start", in_the_way)
    with pytest.raises(EnvironmentLacking, match="did not start"):
        make()


def test_others_partitions_are_told_and_shares_are_parts_of_the_rest(make: Make, daemon: DividedDaemon) -> None:
    from edge.gpu.mps_daemon import PartitionRow

    daemon.rows["theirs"] = PartitionRow(id="theirs", chunks=8, used=True)
    backend = make()
    process, _ = begun(backend, "a/train/1", 50.0)
    assert daemon.rows[process.partition].chunks == 4
    assert process.thread_pct == 50.0
    assert ["left alone" in text for text in told(backend)] == [True]


def test_a_refused_partition_is_shared_and_after_some_in_a_row_there_are_percentages(
    make: Make, daemon: DividedDaemon, tmp_path: Path
) -> None:
    backend = make()
    first, _ = begun(backend, "a/train/1", 50.0)
    daemon.refuses = True
    for number in range(REFUSED_MAX - 1):
        process, _ = begun(backend, f"b/look/{number}", 10.0)
        assert process.partition == first.partition, "it computes there meanwhile, held by its tokens"
    assert told(backend) == []
    last, _ = begun(backend, "c/look/1", 10.0)
    assert (last.partition, last.thread_pct, last.alive) == ("", 10.0, True)
    assert not first.alive, "a daemon without partitions knows no client that has one"
    assert daemon.starts == [True, False]
    assert ["static partitions cannot be used" in text for text in told(backend)] == [True]
    assert (tmp_path / GIVEN_UP).exists()


def test_a_refusal_to_the_first_means_percentages_at_once(make: Make, daemon: DividedDaemon) -> None:
    backend = make()
    daemon.refuses = True
    process, _ = begun(backend, "a/train/1", 50.0)
    assert (process.partition, process.thread_pct, daemon.starts) == ("", 50.0, [True, False])


@pytest.mark.parametrize("error", [JobError, WorkerLost])
def test_a_process_that_cannot_use_its_partition_means_percentages(
    make: Make, daemon: DividedDaemon, error: type[JobError]
) -> None:
    backend = make()
    process, _ = begun(backend, "a/train/1", 50.0)
    with pytest.raises(error), backend.starting("a/train/1"):
        raise error(f"CUDA error: {NO_SUCH_PARTITION}")
    assert not process.alive
    assert begun(backend, "b/train/1", 30.0)[0].partition == ""
    assert daemon.starts == [True, False]


def test_another_failure_of_a_process_says_nothing_of_partitions(make: Make, daemon: DividedDaemon) -> None:
    backend = make()
    with pytest.raises(JobError), backend.starting("a/train/1"):
        raise JobError("CUDA out of memory")
    assert begun(backend, "a/train/1", 50.0)[0].partition in daemon.rows


@pytest.mark.parametrize("anew", [False, True], ids=["back by itself", "started anew"])
def test_after_a_fault_on_the_device_partitions_are_made_anew(make: Make, daemon: DividedDaemon, anew: bool) -> None:
    backend = make()
    process, _ = begun(backend, "a/train/1", 50.0)
    if anew:
        daemon.rows = {}
    backend.lost_process("a/train/1", WorkerLost("an illegal memory access", poisoned=True))
    assert not process.alive
    assert daemon.rows == {}, "what was there is removed"
    again, _ = begun(backend, "b/train/1", 25.0)
    assert daemon.rows[again.partition].chunks == 4


def test_partitions_that_do_not_come_back_after_a_fault_mean_percentages(make: Make, daemon: DividedDaemon) -> None:
    backend = make()
    begun(backend, "a/train/1", 50.0)
    daemon.chunks, daemon.rows = 0, {}
    backend.lost_process("a/train/1", WorkerLost("an illegal memory access", poisoned=True))
    assert begun(backend, "b/train/1", 25.0)[0].partition == ""
    assert "do not come back after a fault" in told(backend)[-1]


def test_a_daemon_that_does_not_come_back_at_all_is_told(
    make: Make, daemon: DividedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = make()

    def gone() -> None:
        raise EnvironmentLacking("no GPU", remedy="look at its cable")

    monkeypatch.setattr(daemon, "start", gone)
    daemon.refuses = True
    begun(backend, "a/train/1", 50.0)
    assert "MPS does not come back: no GPU" in told(backend)
    assert "look at its cable" in [fault.remedy for fault in backend.faults()]


def test_a_job_that_begins_waits_for_room_and_takes_it_as_soon_as_there_is(make: Make, daemon: DividedDaemon) -> None:
    backend = make(room_s=WAIT_S)
    first, _ = begun(backend, "a/train/1", 60.0)
    second, _ = begun(backend, "b/train/1", 40.0)
    backend.set_shares({"a/train/1": 60.0})
    taken: list[Any] = []
    thread = threading.Thread(target=lambda: taken.append(begun(backend, "c/train/1", 40.0)[0]))
    thread.start()
    assert not taken
    assert first.alive
    backend.give_back_process("b/train/1", second)
    thread.join(WAIT_S)
    assert daemon.rows[taken[0].partition].chunks in (6, 7)
    assert taken[0].partition != first.partition


def test_who_finds_no_room_in_time_shares_the_largest(make: Make, daemon: DividedDaemon) -> None:
    backend = make()
    first, _ = begun(backend, "a/train/1", 60.0)
    begun(backend, "b/train/1", 40.0)
    backend.set_shares({"a/train/1": 60.0})
    assert begun(backend, "c/train/1", 40.0)[0].partition == first.partition


def test_a_box_that_ends_takes_its_partitions_with_it(
    make: Make, daemon: DividedDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "stop", lambda **how: None)
    backend = make()
    begun(backend, "a/train/1", 50.0)
    backend.close()
    assert daemon.rows == {}
