"""A divided GPU: jobs live in partitions, shares are kept inside them in virtual time, what cannot be kept is cut and said."""

from __future__ import annotations

import pytest

from configs.errors import JobCancelled, JobError
from edge.clock import FakeClock
from edge.gpu.base import ChangeCost, ComputeBackend, DeviceFacts, Fault, Lane
from edge.gpu.lanes import LaneBackend
from edge.gpu.mig import MigBackend, Part
from scheduler.salus.types import MemoryNeed


class Divided:
    """A GPU in parts; inside each, CPU lanes in virtual time."""

    def __init__(self, *sizes_pct: float, memory_mib: float = 1000.0) -> None:
        self.clock = FakeClock(start_s=100.0)
        self.told: list[str] = []
        self.inside = [LaneBackend(capacity_pct=100, clock=self.clock) for _ in sizes_pct]
        parts = [
            Part(id=f"MIG-{i}", name=f"part {i}", size_pct=size, memory_mib=memory_mib, inside=inside)
            for i, (size, inside) in enumerate(zip(sizes_pct, self.inside, strict=True))
        ]
        self.backend: ComputeBackend = MigBackend(parts, clock=self.clock, tell=self.told.append)
        self.lanes: list[str] = []

    def busy(self, job: str, piece_s: float = 0.02) -> Lane:
        lane = self.backend.open_lane(job)
        self.lanes.append(job)

        def body() -> None:
            try:
                while True:
                    with lane.iteration():
                        self.clock.work(piece_s)
            except JobCancelled:
                return

        self.clock.spawn(body)
        return lane

    def run(self, seconds: float) -> None:
        self.clock.advance_to(self.clock.monotonic_s() + seconds)

    def end(self) -> None:
        self.backend.close()
        self.run(1.0)
        self.clock.join()

    def received(self, job: str, span_s: float = 10.0) -> float:
        return self.backend.report(span_s)[job].received_pct

    def where(self) -> dict[str, str]:
        assert isinstance(self.backend, MigBackend)
        return self.backend.where()


def test_shares_are_percent_of_the_whole_gpu() -> None:
    gpu = Divided(300 / 7, 200 / 7)
    assert gpu.backend.capacity_pct == 71
    gpu.backend.set_shares({"a": 30.0, "b": 20.0, "c": 10.0})
    for job in "abc":
        gpu.busy(job)
    gpu.run(20.0)
    report = gpu.backend.report(10.0)
    for job, share in {"a": 30.0, "b": 20.0, "c": 10.0}.items():
        assert report[job].promised_pct == pytest.approx(share)
        assert report[job].received_pct == pytest.approx(share, abs=1.5)
    # inside, 30 of 42.9 points are 70 % of the partition
    assert gpu.inside[0].report(10.0)["a"].promised_pct == pytest.approx(70.0)
    assert gpu.where() == {"a": "MIG-0", "b": "MIG-1", "c": "MIG-0"}
    assert gpu.told == []
    gpu.end()


def test_a_job_gets_its_partition_with_its_first_share_and_keeps_it() -> None:
    gpu = Divided(50, 50)
    gpu.busy("a")
    gpu.run(2.0)
    report = gpu.backend.report()["a"]
    assert (report.received_pct, report.promised_pct, report.backlogged_frac, report.span_s) == (0.0, 0.0, 1.0, 2.0)
    assert gpu.where() == {}
    assert gpu.backend.memory()["a"].lane is None
    gpu.backend.set_shares({"a": 10.0})
    home = gpu.where()["a"]
    gpu.run(10.0)
    assert gpu.received("a") == pytest.approx(10.0, abs=1.0)
    gpu.backend.set_shares({})
    gpu.backend.set_shares({"a": 50.0})
    assert gpu.where()["a"] == home
    gpu.end()


def test_shares_that_no_partition_can_keep_are_cut_and_told_once() -> None:
    gpu = Divided(50, 50)
    gpu.backend.set_shares({"a": 40.0, "b": 30.0, "c": 30.0})
    for job in "abc":
        gpu.busy(job)
    gpu.run(20.0)
    # a and b found room in one partition each; c came last and shares b's
    assert {job: r.promised_pct for job, r in gpu.backend.report(10.0).items()} == pytest.approx({"a": 40, "b": 25, "c": 25})
    told = list(gpu.told)
    assert told
    assert all("was promised" in text and "part " in text for text in told)
    gpu.backend.set_shares({"a": 40.0, "b": 30.0, "c": 30.0})
    assert gpu.told == told
    gpu.backend.set_shares({"a": 20.0, "b": 10.0, "c": 10.0})
    gpu.run(12.0)
    assert gpu.received("a") == pytest.approx(20.0, abs=1.0)
    gpu.end()


def test_who_leaves_makes_room_for_who_waits_for_memory() -> None:
    gpu = Divided(50, memory_mib=1000.0)
    need = MemoryNeed(persistent_mib=700, ephemeral_mib=100)
    gpu.backend.set_shares({"a": 20.0, "b": 20.0})
    gpu.backend.open_lane("a", need=need)
    gpu.backend.open_lane("b", need=need)
    assert gpu.where() == {"a": "MIG-0"}
    assert "b was promised 20 % of a GPU and gets 0 %: no partition has room for it" in gpu.told
    assert gpu.backend.memory()["b"].need == need
    gpu.backend.close_lane("a")
    assert gpu.where() == {"b": "MIG-0"}
    gpu.end()


def test_what_can_never_fit_is_refused_with_its_remedy() -> None:
    gpu = Divided(50, 50, memory_mib=1000.0)
    with pytest.raises(JobError, match="largest partition has 1000 MiB") as caught:
        gpu.backend.open_lane("a", need=MemoryNeed(persistent_mib=600, ephemeral_mib=500))
    assert (caught.value.code, bool(caught.value.remedy)) == ("out_of_memory", True)
    assert gpu.backend.report() == {}


def test_a_job_that_its_partition_refuses_is_told_and_the_others_get_their_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Divided(100)
    known = gpu.inside[0].open_lane

    def open_lane(job: str, **about: object) -> Lane:
        if job == "bad":
            raise JobError("bad can never fit", subject="bad")
        return known(job, **about)  # type: ignore[arg-type]

    monkeypatch.setattr(gpu.inside[0], "open_lane", open_lane)
    bad = gpu.backend.open_lane("bad")
    gpu.busy("good")
    gpu.backend.set_shares({"bad": 50.0, "good": 50.0})
    with pytest.raises(JobError, match="never fit"), bad.iteration():
        pass
    gpu.run(10.0)
    assert gpu.received("good") == pytest.approx(50.0, abs=1.0)
    gpu.end()


def test_cancel_and_close_reach_a_job_that_has_no_partition_yet() -> None:
    gpu = Divided(100)
    first, second = gpu.busy("a"), gpu.busy("b")
    gpu.run(1.0)
    gpu.backend.cancel("a")
    gpu.backend.close_lane("b")
    gpu.run(1.0)
    gpu.clock.join()
    for lane in (first, second):
        with pytest.raises(JobCancelled):
            lane.checkpoint()


def test_a_length_is_told_to_the_partition_in_seconds_of_its_own_whenever_it_is_said() -> None:
    gpu = Divided(50)
    gpu.backend.open_lane("before")
    gpu.backend.expect("before", 10.0)
    gpu.backend.expect("nobody", 10.0)
    gpu.backend.set_shares({"before": 10.0, "after": 10.0})
    gpu.backend.open_lane("after")
    gpu.backend.expect("after", 5.0)
    lengths = {job: lane._account.total_s for job, lane in gpu.inside[0]._lanes.items()}
    assert lengths == {"before": 20.0, "after": 10.0}


def test_no_partition_no_backend() -> None:
    with pytest.raises(ValueError, match="partitions"):
        MigBackend([])


class Costly:
    """A backend inside whose changes cost something and whose jobs fail."""

    capacity_pct = 100

    def __init__(self, settle_s: float, gpu_s: float, at_s: float) -> None:
        self._cost = ChangeCost(settle_s=settle_s, gpu_s=gpu_s)
        self._fault = Fault(at_s=at_s, job="x", code="hung", text="", remedy="")

    def change_cost(self) -> ChangeCost:
        return self._cost

    def faults(self) -> tuple[Fault, ...]:
        return (self._fault,)


def test_costs_faults_and_facts_are_those_of_the_parts() -> None:
    costly = [Costly(1.0, 0.1, at_s=5.0), Costly(0.5, 0.3, at_s=4.0)]
    parts = [
        Part(id=str(i), name="", size_pct=50, memory_mib=1, inside=inside)  # type: ignore[arg-type]
        for i, inside in enumerate(costly)
    ]
    facts = (DeviceFacts(index=0, name="x", memory_total_mib=1, memory_used_mib=0, mig=True),)
    backend = MigBackend(parts, facts=lambda: facts)
    assert backend.change_cost() == ChangeCost(settle_s=1.0, gpu_s=0.3)
    assert [fault.at_s for fault in backend.faults()] == [4.0, 5.0]
    assert backend.facts() == facts
