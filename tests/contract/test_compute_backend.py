"""One body for every compute backend (`edge.gpu.base.ComputeBackend`). A new backend joins by adding a `Bench` to BENCHES.

A bench makes a backend and lets jobs compute and time pass; on the CPU this happens in virtual time with real threads.
"""

from __future__ import annotations

import math
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pytest
import torch

from configs.errors import JobCancelled, JobError
from edge.clock import FakeClock
from edge.gpu.base import ComputeBackend, Lane, Role
from edge.gpu.cuda_lanes import CudaLanes
from edge.gpu.executor import Executor
from edge.gpu.fake_cuda import FakeCudaDevice, FakeSplitter, FakeTensorMeter
from edge.gpu.green import GreenBackend, GreenDevice
from edge.gpu.lanes import CpuDevice, LaneBackend
from edge.gpu.mig import MigBackend, Part
from edge.gpu.mps import MpsBackend
from edge.gpu.none import NoShares
from edge.gpu.pooled import PooledBackend
from scheduler.salus.types import MemoryNeed
from tests.support.mps_division import DividedDaemon


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


class MemoryBench(Bench, Protocol):
    """What a bench of a backend with memory lanes has beside that. One without `memory_mib` is left out of their tests."""

    memory_mib: float  # what jobs may hold together
    hung_s: float  # no sign of life for so long: it hangs

    def using(self, mib: float) -> AbstractContextManager[None]:
        """The calling job takes memory for the body."""

    def hold(self, mib: float) -> object:
        """The calling job takes memory and keeps it."""

    def now_s(self) -> float: ...

    def sleep(self, seconds: float) -> None:
        """The calling job does nothing."""


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


class LanesBench(CpuBench):
    """With memory lanes: tensors of real size, which the operating system never has to hand out."""

    memory_mib = 100.0
    hung_s = 30.0

    def __init__(self, mode: str) -> None:
        super().__init__(mode)
        self.backend = LaneBackend(
            capacity_pct=200, mode=mode, clock=self.clock, memory_mib=self.memory_mib, hung_s=self.hung_s,  # type: ignore[arg-type]
        )  # fmt: skip
        self.now_s = self.clock.monotonic_s
        self.sleep = self.clock.sleep
        self._held: list[torch.Tensor] = []

    @contextmanager
    def using(self, mib: float) -> Iterator[None]:
        taken = torch.empty(int(mib * 2**20), dtype=torch.uint8)
        yield
        del taken

    def hold(self, mib: float) -> None:
        self._held.append(torch.empty(int(mib * 2**20), dtype=torch.uint8))


class FreeBench(CpuBench):
    """No shares: the same cores."""

    keeps = False

    def __init__(self) -> None:
        super().__init__("capped")
        self.backend = NoShares(CpuDevice(clock=self.clock), capacity_pct=200, clock=self.clock)


class PooledBench(LanesBench):
    """Cameras through a pool's lane (`edge.gpu.pooled`): nothing changes for those who learn. What is the cameras':
    tests/unit/edge/pool/test_pooled_backend.py."""

    passes = True  # a camera's own lane holds nobody up

    def __init__(self) -> None:
        super().__init__("capped")
        self.backend = PooledBackend(self.backend, clock=self.clock)


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
    memory_mib = 100.0
    hung_s = 30.0
    backend: ComputeBackend

    def __init__(self, mode: str) -> None:
        self.clock = FakeClock(start_s=1000.0)
        self.lends = mode == "work-conserving"
        self.cuda = FakeCudaDevice(self.clock)
        tensors = partial(FakeTensorMeter, self.cuda)
        device = CudaLanes(self.cuda, clock=self.clock, tensors=tensors, memory_mib=self.memory_mib)
        self.backend = Executor(device, mode=mode, clock=self.clock, hung_s=self.hung_s)  # type: ignore[arg-type]
        self.work = self.cuda.compute
        self.spawn = self.clock.spawn
        self.join = self.clock.join
        self.now_s = self.clock.monotonic_s
        self.sleep = self.clock.sleep
        self.hold = self.cuda.allocate

    @contextmanager
    def using(self, mib: float) -> Iterator[None]:
        tensor = self.cuda.allocate(mib)
        yield
        tensor.free()

    def pass_time(self, seconds: float) -> None:
        self.clock.advance_to(self.clock.monotonic_s() + seconds)


class GreenBench:
    """One GPU in partitions, in virtual time. A job computes on its partition only, so its work takes as much longer."""

    sees_inside = True
    lends = False
    keeps = True
    backend: ComputeBackend

    def __init__(self) -> None:
        self.clock = FakeClock(start_s=1000.0)
        self.cuda = FakeCudaDevice(self.clock, sms=100, launch_s=0.01)  # long enough for a checkpoint to take notice
        splitter = FakeSplitter(self.cuda, groups=20, group_sms=5)
        device = GreenDevice(self.cuda, splitter, clock=self.clock, tensors=FakeTensorMeter)
        self.backend = GreenBackend(clock=self.clock, device=device)
        self.work = self.cuda.compute
        self.spawn = self.clock.spawn
        self.join = self.clock.join

    def pass_time(self, seconds: float) -> None:
        self.clock.advance_to(self.clock.monotonic_s() + seconds)


class _NoDaemon:
    """An MPS daemon that nobody asks anything: the jobs' work is done by nobody's process."""

    def start(self) -> None: ...
    def stop(self) -> None: ...

    def drain(self, *, timeout_s: float) -> bool:
        return True


class MpsBench(CpuBench):
    """Jobs whose work is done elsewhere while their threads wait. Real processes: tests/integration/test_mps_backend.py."""

    def __init__(self, mode: str, **settings: Any) -> None:
        super().__init__(mode)
        self._folder = tempfile.TemporaryDirectory()
        mps = MpsBackend(
            "GPU-none", data_dir=Path(self._folder.name), clock=self.clock, beat_s=3600.0, spare=False, mode=mode,  # type: ignore[arg-type]
            **({"daemon": _NoDaemon(), "capacity_pct": 200} | settings),
        )  # fmt: skip
        self.backend, self._remote = mps, mps.remote_clock
        self.work = self._work

    def _work(self, cpu_s: float) -> None:
        with self._remote.elsewhere() as computed:
            self.clock.sleep(cpu_s)
            computed(cpu_s)

    def join(self) -> None:
        self.clock.join()
        self.backend.close()
        self._folder.cleanup()


class _Process:
    """Of a job, in a partition."""

    ended = False


class MpsPartitionsBench(MpsBench):
    """The same in static partitions: a job's work takes as much longer as its partition is smaller than the GPU, and moves on between
    two pieces when its share has changed. Chunks are small here: that shares are rounded to them is not what this asks."""

    def __init__(self) -> None:
        self._division = tempfile.TemporaryDirectory()
        super().__init__(
            "capped", daemon=DividedDaemon(root=Path(self._division.name), chunks=64), capacity_pct=100, static="on"
        )
        self._at: dict[str, str] = {}
        self._processes: dict[str, _Process] = {}

    def _work(self, cpu_s: float) -> None:
        mps: Any = self.backend
        job = next(job for job, lane in mps._lanes.items() if lane._seat._state[1] == threading.get_ident())
        with mps._recovering:
            for idle in [other for other in self._at if not mps._shares.get(other)]:  # as its process would
                self._processes.pop(idle).ended = True
                del self._at[idle]
            mps._static.tidy()  # as the backend's own look does: what they have left is room
            place = mps._static.place(job, mps._shares, self._at, (), at_once=True)
            if place != self._at.get(job):
                self._processes.get(job, _Process()).ended = True
                self._at[job], self._processes[job] = place, _Process()
                mps._static.enter(place, job, self._processes[job])
                mps._static.tidy()
            part = mps._static.pct(place) / 100.0
        with self._remote.elsewhere() as computed:
            self.clock.sleep(cpu_s / part)
            computed(cpu_s)

    def join(self) -> None:
        super().join()
        self._division.cleanup()


BENCHES: dict[str, Callable[[], Bench]] = {
    "green": GreenBench,
    "cuda-lanes-capped": lambda: CudaLanesBench("capped"),
    "cuda-lanes-work-conserving": lambda: CudaLanesBench("work-conserving"),
    "lanes-capped": lambda: LanesBench("capped"),
    "lanes-work-conserving": lambda: LanesBench("work-conserving"),
    "mig": MigBench,
    "mps": lambda: MpsBench("capped"),
    "mps-partitions": MpsPartitionsBench,
    "mps-work-conserving": lambda: MpsBench("work-conserving"),
    "none": FreeBench,
    "pooled": PooledBench,
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


# --- memory -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def roomy(bench: Bench) -> MemoryBench:
    """A bench of a backend that has memory lanes."""
    if not hasattr(bench, "memory_mib"):
        pytest.skip("this backend has no memory lanes")
    return bench  # type: ignore[return-value]


def part(bench: MemoryBench, persistent: float, ephemeral: float) -> MemoryNeed:
    """A need in parts of the device."""
    return MemoryNeed(persistent_mib=persistent * bench.memory_mib, ephemeral_mib=ephemeral * bench.memory_mib)


class Story:
    """A job that runs iterations until it is cancelled, and what came of it. hold, use: parts of the device, by iteration (the last
    one goes on); together: the jobs that are in an iteration now."""

    def __init__(
        self, bench: MemoryBench, job: str, *, hold: tuple[float, ...] = (0.0,), use: tuple[float, ...] = (0.0,),
        piece_s: float = 0.1, need: MemoryNeed | None = None, role: Role = "learn", together: list[str] | None = None,
    ) -> None:  # fmt: skip
        self.bench, self.job, self.hold, self.use, self.piece_s = bench, job, hold, use, piece_s
        self.lane = bench.backend.open_lane(job, role=role, need=need)
        self.iterations = 0
        self.error: JobError | None = None
        self.together = [] if together is None else together
        self.most_together = 0
        bench.spawn(self.run)

    def run(self) -> None:
        try:
            while True:
                self.iterate()
        except JobCancelled:
            return
        except JobError as error:
            self.error = error

    def iterate(self) -> None:
        with self.lane.iteration():
            hold, use = (
                values[min(self.iterations, len(values) - 1)] * self.bench.memory_mib for values in (self.hold, self.use)
            )
            if hold:
                self.bench.hold(hold)
            self.together.append(self.job)
            with self.bench.using(use):
                self.most_together = max(self.most_together, len(self.together))
                self.bench.work(self.piece_s)
            self.together.remove(self.job)
            self.iterations += 1


def test_a_declared_need_is_reserved_and_reported(roomy: MemoryBench) -> None:
    roomy.backend.open_lane("a", need=part(roomy, 0.1, 0.3))
    known = roomy.backend.memory()["a"]
    assert known.need == part(roomy, 0.1, 0.3)
    assert not known.measured
    assert known.lane is not None
    assert known.lane_mib == pytest.approx(0.3 * roomy.memory_mib)


def test_without_a_need_the_first_iterations_measure_it(roomy: MemoryBench) -> None:
    roomy.backend.set_shares({"a": 50.0})
    story = Story(roomy, "a", hold=(0.05, 0.0), use=(0.1,))
    assert roomy.backend.memory()["a"].need is None
    roomy.pass_time(5.0)
    known = roomy.backend.memory()["a"]
    assert known.measured
    assert known.lane is not None
    assert known.need is not None
    assert known.need.persistent_mib == pytest.approx(0.05 * roomy.memory_mib, rel=0.02)
    assert known.need.ephemeral_mib == pytest.approx(0.1 * roomy.memory_mib, rel=0.02)
    assert known.lane_mib >= 0.1 * roomy.memory_mib
    assert known.held_mib == pytest.approx(0.05 * roomy.memory_mib, rel=0.02)
    assert story.iterations > 10


def test_what_can_never_fit_is_refused_and_says_what_to_do(roomy: MemoryBench) -> None:
    with pytest.raises(JobError) as refused:
        roomy.backend.open_lane("huge", need=part(roomy, 0.6, 0.6))
    assert refused.value.subject == "huge"
    assert refused.value.code == "out_of_memory"
    assert refused.value.remedy
    assert roomy.backend.memory() == {}
    roomy.backend.open_lane("huge", need=part(roomy, 0.1, 0.1))


def test_a_job_that_does_not_fit_waits_inside_its_first_iteration_until_it_does(roomy: MemoryBench) -> None:
    roomy.backend.set_shares({"first": 50.0, "second": 50.0})
    first = Story(roomy, "first", need=part(roomy, 0.7, 0.1))
    second = Story(roomy, "second", need=part(roomy, 0.4, 0.1))
    roomy.pass_time(5.0)
    assert first.iterations > 10
    assert second.iterations == 0
    assert roomy.backend.memory()["second"].lane is None
    roomy.backend.close_lane("first")
    roomy.pass_time(5.0)
    assert second.iterations > 10
    assert roomy.backend.memory()["second"].lane is not None


def test_iterations_that_do_not_fit_at_the_same_time_run_one_after_the_other(roomy: MemoryBench) -> None:
    """The sum of what they take may exceed the device; each gets its turns."""
    roomy.backend.set_shares(dict.fromkeys("abc", roomy.backend.capacity_pct / 4))
    together: list[str] = []
    stories = [Story(roomy, job, need=part(roomy, 0.02, 0.6), use=(0.6,), together=together) for job in "abc"]
    roomy.pass_time(20.0)
    assert len({known.lane for known in roomy.backend.memory().values()}) == 1
    assert max(story.most_together for story in stories) == 1
    assert min(story.iterations for story in stories) > 10


def test_lanes_run_side_by_side_where_memory_allows_it(roomy: MemoryBench) -> None:
    roomy.backend.set_shares(dict.fromkeys("ab", roomy.backend.capacity_pct / 2))
    together: list[str] = []
    stories = [Story(roomy, job, need=part(roomy, 0.02, 0.3), use=(0.3,), together=together) for job in "ab"]
    roomy.pass_time(5.0)
    assert len({known.lane for known in roomy.backend.memory().values()}) == 2
    assert max(story.most_together for story in stories) == 2


def test_a_frame_waits_for_one_iteration_of_training_at_most(roomy: MemoryBench) -> None:
    """Also where memory leaves the two one lane only."""
    if getattr(roomy, "passes", False):
        pytest.skip("a camera does not compute in its own lane here")
    roomy.backend.set_shares({"train": 50.0, "camera": 50.0})
    Story(roomy, "train", piece_s=1.0, need=part(roomy, 0.1, 0.7))
    lane = roomy.backend.open_lane("camera", role="infer", need=part(roomy, 0.1, 0.3))
    waits_s: list[float] = []

    def body() -> None:
        for _ in range(8):
            asked_s = roomy.now_s()
            with lane.iteration():
                waits_s.append(roomy.now_s() - asked_s)
                roomy.work(0.01)
            roomy.sleep(0.73)

    roomy.spawn(body)
    roomy.pass_time(20.0)
    assert len(waits_s) == 8
    assert 0.0 < max(waits_s) <= 1.0 + 1e-6


# --- faults -----------------------------------------------------------------------------------------------------------


def codes(bench: Bench, job: str) -> list[str]:
    return [fault.code for fault in bench.backend.faults() if fault.job == job]


def test_a_job_that_takes_more_than_it_said_is_given_it_where_there_is_room(roomy: MemoryBench) -> None:
    roomy.backend.set_shares({"liar": 50.0, "other": 50.0})
    liar = Story(roomy, "liar", need=part(roomy, 0.01, 0.01), hold=(0.2, 0.0), use=(0.3,))
    other = Story(roomy, "other", need=part(roomy, 0.01, 0.01))
    roomy.pass_time(5.0)
    assert liar.error is None
    assert liar.iterations > 10
    assert other.iterations > 10
    assert codes(roomy, "liar") == ["memory"]
    assert roomy.backend.memory()["liar"].lane_mib >= 0.3 * roomy.memory_mib
    assert "declare" in roomy.backend.faults()[0].remedy


def test_a_job_that_takes_more_than_there_is_is_removed_and_the_others_go_on(roomy: MemoryBench) -> None:
    roomy.backend.set_shares({"liar": 50.0, "other": 50.0})
    other = Story(roomy, "other", need=part(roomy, 0.5, 0.2))
    liar = Story(roomy, "liar", need=part(roomy, 0.01, 0.01), hold=(0.6, 0.0))
    roomy.pass_time(5.0)
    assert liar.error is not None
    assert (liar.error.code, liar.error.subject) == ("out_of_memory", "liar")
    assert "MiB" in str(liar.error)
    assert liar.error.remedy
    assert [fault.removed for fault in roomy.backend.faults() if fault.job == "liar"] == [True]
    before = other.iterations
    roomy.backend.close_lane("liar")
    roomy.pass_time(5.0)
    assert other.iterations > before + 10


def test_a_job_that_leaks_is_told_and_removed_before_it_fills_the_device(roomy: MemoryBench) -> None:
    roomy.backend.set_shares({"leaky": roomy.backend.capacity_pct / 2, "other": roomy.backend.capacity_pct / 4})
    other = Story(roomy, "other", need=part(roomy, 0.1, 0.1))
    leaky = Story(roomy, "leaky", hold=(0.01,), need=part(roomy, 0.0, 0.1))
    roomy.pass_time(60.0)
    assert leaky.error is not None
    assert leaky.iterations * 0.01 < 1.2  # it is measured now and then: that is how late it may be
    faults = [(fault.code, fault.removed) for fault in roomy.backend.faults() if fault.job == "leaky"]
    assert faults[-1] == ("leak", True)
    assert other.error is None
    assert other.iterations > 100


def test_a_job_that_hangs_is_told_once_and_the_others_go_on(roomy: MemoryBench) -> None:
    roomy.backend.set_shares(dict.fromkeys(("hung", "other", "late"), roomy.backend.capacity_pct / 4))
    other = Story(roomy, "other")
    lane = roomy.backend.open_lane("hung")

    def body() -> None:
        with pytest.raises(JobError, match="hung"):
            for _ in range(2):
                with lane.iteration():
                    roomy.sleep(4 * roomy.hung_s)

    roomy.spawn(body)
    roomy.pass_time(1.1 * roomy.hung_s)
    before = other.iterations
    assert codes(roomy, "hung") == ["hung"]
    late = Story(roomy, "late")
    roomy.pass_time(roomy.hung_s)
    assert codes(roomy, "hung") == ["hung"]
    assert other.iterations > before + 10
    assert late.iterations > 10
    roomy.pass_time(4 * roomy.hung_s)


def test_a_crash_in_an_iteration_is_the_jobs_own(bench: Bench) -> None:
    bench.backend.set_shares({"crashes": 50.0, "other": 50.0})
    keep_busy(bench, "other")
    lane = bench.backend.open_lane("crashes")

    def body() -> None:
        with pytest.raises(ZeroDivisionError), lane.iteration():
            bench.work(0.1)
            raise ZeroDivisionError
        bench.backend.close_lane("crashes")

    bench.spawn(body)
    bench.pass_time(10.0)
    assert set(bench.backend.report()) == {"other"}
    assert bench.backend.report()["other"].iterations > 10


# --- the rest of the seam ---------------------------------------------------------------------------------------------


def test_a_change_has_a_cost_and_devices_have_facts(bench: Bench) -> None:
    cost = bench.backend.change_cost()
    assert all(math.isfinite(value) and value >= 0 for value in (cost.settle_s, cost.gpu_s, cost.blind_s))
    for fact in bench.backend.facts():
        assert fact.name
        assert 0 <= fact.memory_used_mib <= fact.memory_total_mib


def test_what_a_job_is_expected_to_take_may_be_said_at_any_time(bench: Bench) -> None:
    bench.backend.open_lane("a")
    bench.backend.open_lane("b", role="infer")
    for job in ("a", "b", "nobody", "a"):
        bench.backend.expect(job, 12.5)
    assert set(bench.backend.report()) == {"a", "b"}


def test_memory_is_told_of_every_open_job(bench: Bench) -> None:
    bench.backend.open_lane("a")
    bench.backend.open_lane("b", role="infer")
    assert {job: known.job for job, known in bench.backend.memory().items()} == {"a": "a", "b": "b"}
    bench.backend.close_lane("a")
    assert set(bench.backend.memory()) == {"b"}


def test_closing_the_backend_ends_every_job_and_may_be_done_twice(bench: Bench) -> None:
    ended: list[Any] = []
    lanes = [bench.backend.open_lane(job) for job in "ab"]
    bench.backend.set_shares({"a": 50.0})

    def body(lane: Lane) -> None:
        try:
            while True:
                with lane.iteration():
                    bench.work(0.1)
        except JobCancelled as error:
            ended.append(error.subject)

    for lane in lanes:
        bench.spawn(lambda lane=lane: body(lane))  # type: ignore[misc]
    bench.pass_time(1.0)
    bench.backend.close()
    bench.backend.close()
    bench.pass_time(1.0)
    bench.join()
    assert sorted(ended) == ["a", "b"]
