"""One body for every compute backend (`edge.gpu.base.ComputeBackend`). A new backend joins by adding a `Bench` to BENCHES.

A bench makes a backend and lets jobs compute and time pass; on the CPU this happens in virtual time with real threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import pytest

from configs.errors import JobCancelled
from edge.clock import FakeClock
from edge.gpu.base import ComputeBackend, Lane
from edge.gpu.cuda_lanes import CudaLanes
from edge.gpu.executor import Executor
from edge.gpu.fake_cuda import FakeCudaDevice, FakeTensorMeter
from edge.gpu.lanes import CpuDevice, LaneBackend
from edge.gpu.mig import MigBackend, Part
from edge.gpu.none import NoShares


class Bench(Protocol):
    backend: ComputeBackend
    lends: bool  # jobs get more than their share while nobody else wants it
    sees_inside: bool  # a piece of work is accounted while it runs, not only at its end
    keeps: bool  # shares are kept (all but `none`)

    def work(self, compute_s: float) -> None:
        """The calling job computes for `compute_s` at 100 pct."""

    def spawn(self, body: Callable[[], None]) -> object: ...

    def pass_time(self, seconds: float) -> None:
        """Lets jobs run for `seconds`; on return every job is blocked or done."""

    def join(self) -> None: ...


class CpuBench:
    sees_inside = False
    keeps = True
    backend: ComputeBackend

    def __init__(self, mode: str) -> None:
        self.clock = FakeClock(start_s=1000.0)
        self.lends = mode == "work-conserving"
        self.backend = LaneBackend(capacity_pct=200, mode=mode, clock=self.clock)  # type: ignore[arg-type]
        self.work = self.clock.work
        self.spawn = self.clock.spawn
        self.join = self.clock.join

    def pass_time(self, seconds: float) -> None:
        self.clock.advance_to(self.clock.monotonic_s() + seconds)


class FreeBench(CpuBench):
    """No shares: the same cores."""

    keeps = False

    def __init__(self) -> None:
        super().__init__("capped")
        self.backend = NoShares(CpuDevice(clock=self.clock), capacity_pct=200, clock=self.clock)


class MigBench(CpuBench):
    """Two partitions with cores inside. They have room to spare: shares that fit together fit them, too."""

    def __init__(self) -> None:
        super().__init__("capped")
        parts = [
            Part(
                id=f"MIG-{size}", name=str(size), size_pct=size, memory_mib=1000.0,
                inside=LaneBackend(capacity_pct=size, clock=self.clock),
            )
            for size in (200, 100)
        ]  # fmt: skip
        self.backend = MigBackend(parts, capacity_pct=200, clock=self.clock)


class CudaLanesBench:
    """One GPU in virtual time."""

    sees_inside = True
    keeps = True

    def __init__(self, mode: str) -> None:
        self.clock = FakeClock(start_s=1000.0)
        self.lends = mode == "work-conserving"
        self.cuda = FakeCudaDevice(self.clock)
        device = CudaLanes(self.cuda, clock=self.clock, tensors=FakeTensorMeter)
        self.backend = Executor(device, mode=mode, clock=self.clock)  # type: ignore[arg-type]
        self.work = self.cuda.compute
        self.spawn = self.clock.spawn
        self.join = self.clock.join

    def pass_time(self, seconds: float) -> None:
        self.clock.advance_to(self.clock.monotonic_s() + seconds)


BENCHES: dict[str, Callable[[], Bench]] = {
    "cuda-lanes-capped": lambda: CudaLanesBench("capped"),
    "cuda-lanes-work-conserving": lambda: CudaLanesBench("work-conserving"),
    "lanes-capped": lambda: CpuBench("capped"),
    "lanes-work-conserving": lambda: CpuBench("work-conserving"),
    "mig": MigBench,
    "none": FreeBench,
}


@pytest.fixture(params=sorted(BENCHES))
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    made = BENCHES[request.param]()
    yield made
    for job in list(made.backend.report()):
        made.backend.cancel(job)
    made.pass_time(1.0)
    made.join()


@pytest.fixture
def keeping(bench: Bench) -> Bench:
    """A bench whose backend keeps shares."""
    if not bench.keeps:
        pytest.skip("keeps no shares, which is its purpose: tests/unit/edge/test_gpu_no_shares.py")
    return bench


def keep_busy(bench: Bench, job: str, piece_s: float = 0.05) -> Lane:
    """Starts a job that always wants to run, until it is cancelled."""
    lane = bench.backend.open_lane(job)

    def body() -> None:
        try:
            while True:
                with lane.iteration():
                    bench.work(piece_s)
        except JobCancelled:
            return

    bench.spawn(body)
    return lane


def test_shares_are_kept_over_ten_seconds(keeping: Bench) -> None:
    bench = keeping
    shares = {job: part * bench.backend.capacity_pct for job, part in {"a": 0.45, "b": 0.35, "c": 0.2}.items()}
    bench.backend.set_shares(shares)
    for job in shares:
        keep_busy(bench, job)
    for _ in range(3):
        bench.pass_time(10.0)
        report = bench.backend.report(10.0)
        assert set(report) == set(shares)
        for job, share in shares.items():
            assert report[job].promised_pct == pytest.approx(share)
            assert report[job].received_pct == pytest.approx(share, abs=5.0)
            assert report[job].backlogged_frac == pytest.approx(1.0)
            assert report[job].span_s == pytest.approx(10.0)
            assert report[job].iterations == pytest.approx(share / 100 * 10.0 / 0.05, abs=10)


def test_new_shares_replace_all_old_ones_and_wake_waiters(keeping: Bench) -> None:
    bench = keeping
    keep_busy(bench, "a")
    keep_busy(bench, "b")
    bench.pass_time(10.0)
    assert bench.backend.report()["a"].iterations == 0  # share 0 until named
    half = bench.backend.capacity_pct / 2
    bench.backend.set_shares({"a": half, "b": half})
    bench.pass_time(10.0)
    assert bench.backend.report(10.0)["a"].received_pct == pytest.approx(half, abs=5.0)
    bench.backend.set_shares({"b": 100.0})
    bench.pass_time(5.0)
    bench.backend.report()
    bench.pass_time(10.0)
    report = bench.backend.report(10.0)
    assert report["a"].received_pct == 0.0
    assert report["a"].backlogged_frac == pytest.approx(1.0)
    assert report["b"].received_pct == pytest.approx(100.0, abs=5.0)


def test_a_long_iteration_is_paced_at_its_checkpoints(keeping: Bench) -> None:
    bench = keeping
    lane = bench.backend.open_lane("golden")
    bench.backend.set_shares({"golden": 20.0})
    finished: list[bool] = []

    def body() -> None:
        with lane.iteration():
            for _ in range(40):  # 8 s of compute: at 20 pct it takes 40 s
                bench.work(0.2)
                lane.checkpoint()
        finished.append(True)

    bench.spawn(body)
    if bench.lends:  # nobody else wants the device: a whole core, so 8 s
        bench.pass_time(8.5)
        assert finished
        return
    for _ in range(3):
        bench.pass_time(10.0)
        report = bench.backend.report(10.0)["golden"]
        assert report.received_pct == pytest.approx(20.0, abs=5.0)
        assert report.iterations <= 1
    assert not finished
    bench.pass_time(12.0)
    assert finished


def test_a_job_that_rests_is_not_backlogged(bench: Bench) -> None:
    bench.backend.open_lane("idle")
    bench.backend.set_shares({"idle": 50.0})
    bench.pass_time(10.0)
    report = bench.backend.report(10.0)["idle"]
    assert (report.promised_pct, report.received_pct, report.backlogged_frac) == (pytest.approx(50.0), 0.0, 0.0)


def test_a_running_iteration_is_in_the_report(bench: Bench) -> None:
    lane = bench.backend.open_lane("a")
    bench.backend.set_shares({"a": 100.0})

    def body() -> None:
        with lane.iteration():
            bench.work(2.0)
            bench.work(2.0)

    bench.spawn(body)
    bench.pass_time(3.0)
    seen_s = 3.0 if bench.sees_inside else 2.0
    assert bench.backend.report(3.0)["a"].received_pct == pytest.approx(100.0 * seen_s / 3.0)
    bench.pass_time(2.0)


@pytest.mark.parametrize("share", [0.0, 50.0])
def test_cancel_reaches_a_job_before_it_waits_while_it_waits_and_at_a_checkpoint(bench: Bench, share: float) -> None:
    lane = bench.backend.open_lane("a")
    bench.backend.set_shares({"a": share})
    seen: list[str] = []

    def body() -> None:
        try:
            with lane.iteration():
                bench.work(3.0)
                lane.checkpoint()
                seen.append("went on")
        except JobCancelled as error:
            seen.append(error.subject)
        try:
            with lane.iteration():
                seen.append("ran")
        except JobCancelled:
            seen.append("again")

    bench.spawn(body)
    bench.pass_time(1.0)
    bench.backend.cancel("a")
    bench.pass_time(5.0)
    assert seen == ["a", "again"]


def test_cancel_while_waiting_at_a_checkpoint(keeping: Bench) -> None:
    bench = keeping
    lane = bench.backend.open_lane("a")
    bench.backend.set_shares({"a": 50.0})
    seen: list[str] = []

    def body() -> None:
        try:
            with lane.iteration():
                bench.work(3.0)
                lane.checkpoint()
                bench.work(3.0)
                lane.checkpoint()
        except JobCancelled:
            seen.append("cancelled")

    bench.spawn(body)
    bench.pass_time(1.0)
    bench.backend.set_shares({})
    bench.pass_time(20.0)
    assert seen == []
    bench.backend.cancel("a")
    bench.pass_time(0.1)
    assert seen == ["cancelled"]


def test_cancelling_an_unknown_job_is_nothing(bench: Bench) -> None:
    bench.backend.cancel("nobody")
    bench.backend.close_lane("nobody")


def test_an_iteration_that_raises_is_charged_and_the_lane_goes_on(bench: Bench) -> None:
    lane = bench.backend.open_lane("a")
    bench.backend.set_shares({"a": 100.0})
    seen: list[str] = []

    def body() -> None:
        try:
            with lane.iteration():
                bench.work(1.0)
                raise ArithmeticError("loss is NaN")
        except ArithmeticError:
            seen.append("raised")
        with lane.iteration():
            seen.append("ran")

    bench.spawn(body)
    bench.pass_time(4.0)
    assert seen == ["raised", "ran"]
    assert bench.backend.report(4.0)["a"].received_pct == pytest.approx(25.0)


def test_one_lane_per_job_and_a_closed_one_can_be_opened_again(bench: Bench) -> None:
    bench.backend.open_lane("a")
    with pytest.raises(ValueError, match="a"):
        bench.backend.open_lane("a")
    bench.backend.close_lane("a")
    assert bench.backend.report() == {}
    bench.backend.open_lane("a")


def test_closing_a_lane_ends_the_thread_that_waits_in_it(bench: Bench) -> None:
    keep_busy(bench, "a")
    bench.pass_time(1.0)
    bench.backend.close_lane("a")
    bench.pass_time(1.0)
    bench.join()


def test_more_than_the_capacity_cannot_be_promised(bench: Bench) -> None:
    bench.backend.open_lane("a")
    bench.backend.set_shares({"a": 10.0})
    with pytest.raises(ValueError, match="capacity"):
        bench.backend.set_shares({"a": bench.backend.capacity_pct + 1.0})
    bench.pass_time(1.0)
    assert bench.backend.report(1.0)["a"].promised_pct == pytest.approx(10.0)


def test_a_checkpoint_outside_an_iteration_does_nothing(bench: Bench) -> None:
    bench.backend.open_lane("a").checkpoint()


def test_an_iteration_inside_an_iteration_is_refused(bench: Bench) -> None:
    lane = bench.backend.open_lane("a")
    bench.backend.set_shares({"a": 100.0})
    seen: list[str] = []

    def body() -> None:
        with lane.iteration():
            try:
                with lane.iteration():
                    seen.append("inside")
            except RuntimeError:
                seen.append("refused")

    bench.spawn(body)
    bench.pass_time(1.0)
    assert seen == ["refused"]
