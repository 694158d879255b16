"""What an iteration takes on a GPU: readings in full and light ones, warm-up, neighbours, leaks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from edge.clock import FakeClock
from edge.gpu.cuda_memory import FULL_AGAIN, FULL_READINGS, CudaMemoryMeter
from edge.gpu.fake_cuda import FakeCudaDevice, FakeOutOfMemory, FakePool, FakeTensor, FakeTensorMeter
from scheduler.salus.types import MemoryNeed


class Iterations:
    """A job's iterations, one after the other, without a backend."""

    def __init__(self) -> None:
        self.cuda = FakeCudaDevice(FakeClock(), launch_s=0.0)
        self.meter = CudaMemoryMeter(self.cuda, FakeTensorMeter(self.cuda))
        self.stream = self.cuda.stream()

    def run(self, body: Callable[[], object]) -> MemoryNeed | None:
        pool = self.cuda.pool() if self.meter.in_full and not self.meter.warming_up else None
        with self.meter.measuring(pool), self.cuda.inside(self.stream, pool):
            body()
        self.meter.read(pool)
        if pool is not None:
            self.cuda.drop(pool)
        self.meter.counted()
        return self.meter.usage()

    def settle(self) -> None:
        """Through the first readings, and until the least that is held is known."""
        for _ in range(FULL_READINGS):
            self.run(lambda: self.take(100.0))
        assert not self.meter.in_full

    def take(self, mib: float) -> None:
        self.cuda.allocate(mib).free()


@pytest.fixture
def job() -> Iterations:
    return Iterations()


def test_a_warm_up_is_measured_by_its_tensors_only(job: Iterations) -> None:
    assert job.meter.warming_up
    kept: list[FakeTensor] = []
    usage = job.run(lambda: (kept.append(job.cuda.allocate(50.0)), job.take(120.0)))
    assert usage == MemoryNeed(persistent_mib=50.0, ephemeral_mib=120.0)
    assert not job.meter.warming_up


def test_a_reading_in_full_sees_both_classes(job: Iterations) -> None:
    kept: list[FakeTensor] = []
    job.run(lambda: kept.append(job.cuda.allocate(50.0)))
    assert job.run(lambda: job.take(200.0)) == MemoryNeed(persistent_mib=50.0, ephemeral_mib=200.0)


def test_neighbours_are_not_counted(job: Iterations) -> None:
    job.run(lambda: None)
    neighbour = job.cuda.stream()

    def body() -> None:
        with job.cuda.inside(neighbour, job.cuda.pool()):
            pass
        job.take(30.0)

    FakeTensor(FakePool(job.cuda._memory), 700.0, {})  # somebody else's, alive
    assert job.run(body) == MemoryNeed(persistent_mib=0.0, ephemeral_mib=30.0)


def test_a_job_that_takes_more_is_seen_by_a_light_reading_and_measured_by_the_next(job: Iterations) -> None:
    job.settle()
    job.run(lambda: job.take(100.0))  # from the driver into its lane: a pool had given back what the first ones took
    job.run(lambda: job.take(100.0))
    assert not job.meter.in_full
    before = job.run(lambda: job.take(260.0))
    assert before == MemoryNeed(persistent_mib=0.0, ephemeral_mib=100.0)
    assert job.meter.in_full
    assert job.run(lambda: job.take(260.0)) == MemoryNeed(persistent_mib=0.0, ephemeral_mib=260.0)


def test_what_neighbours_hold_for_a_moment_is_no_reason_to_measure(job: Iterations) -> None:
    job.settle()
    job.run(lambda: job.take(100.0))
    beside = FakePool(job.cuda._memory)
    made: list[FakeTensor] = []
    kinds = []
    for n in range(3):
        made += [FakeTensor(beside, 300.0, {})] if n % 2 else []
        kinds.append(job.meter.in_full)
        job.run(lambda: job.take(100.0))
        for tensor in made:
            tensor.free()
    assert not any(kinds[1:])


def test_full_readings_come_back_ever_more_seldom(job: Iterations) -> None:
    kinds = []
    for _ in range(FULL_AGAIN**3):
        kinds.append(job.meter.in_full)
        job.run(lambda: job.take(1.0))
    assert kinds[:FULL_READINGS] == [True] * FULL_READINGS
    assert [n for n, full in enumerate(kinds) if full and n >= FULL_READINGS] == [FULL_AGAIN, FULL_AGAIN**2]


def test_a_leak_makes_readings_full_until_it_stops(job: Iterations) -> None:
    kept: list[FakeTensor] = []
    job.settle()

    def leak() -> None:
        kept.append(job.cuda.allocate(5.0))

    held = [usage.persistent_mib for _ in range(40) if (usage := job.run(leak)) is not None]
    assert held == sorted(held)
    assert held[-1] >= 150.0, "of 200 that it leaked"
    assert job.meter.in_full
    kinds = []
    for _ in range(12):
        job.run(lambda: job.take(10.0))
        kinds.append(job.meter._suspect)
    assert not any(kinds[6:])


def test_a_job_that_cannot_have_a_pool_is_measured_by_its_tensors_and_never_found_smaller(job: Iterations) -> None:
    job.run(lambda: None)
    assert job.run(lambda: job.take(200.0)) == MemoryNeed(persistent_mib=0.0, ephemeral_mib=200.0)
    with job.meter.measuring(None), job.cuda.inside(job.stream, None):
        job.take(150.0)
    job.meter.read(None)
    assert job.meter.usage() == MemoryNeed(persistent_mib=0.0, ephemeral_mib=200.0)


def test_pools_give_back_what_they_had_when_they_are_dropped() -> None:
    cuda = FakeCudaDevice(FakeClock(), total_mib=100.0)
    stream = cuda.stream()
    for _ in range(5):
        pool = cuda.pool()
        with cuda.inside(stream, pool):
            cuda.allocate(80.0).free()
        cuda.drop(pool)
    assert cuda.memory_mib() == (100.0, 100.0)
    assert cuda.most_mib == 80.0


def test_nothing_is_given_back_while_somebody_allocates_in_a_pool() -> None:
    """What ended the process on an H200."""
    cuda = FakeCudaDevice(FakeClock(), total_mib=100.0)
    other = cuda.pool()
    with cuda.inside(cuda.stream(), cuda.pool()):
        for give_back in (cuda.give_back_cached, partial(cuda.drop, other)):
            with pytest.raises(AssertionError, match="end of a real process"):
                give_back()
    cuda.give_back_cached()
    cuda.drop(other)


def test_what_a_stream_has_cached_is_given_back_before_an_allocation_fails() -> None:
    cuda = FakeCudaDevice(FakeClock(), total_mib=100.0)
    with cuda.inside(cuda.stream(), None):
        cuda.allocate(80.0).free()
    assert cuda.memory_mib()[0] == pytest.approx(20.0)
    with cuda.inside(cuda.stream(), cuda.pool()), pytest.raises(FakeOutOfMemory):
        cuda.allocate(90.0)
    with cuda.inside(cuda.stream(), None):
        cuda.allocate(90.0).free()
    assert cuda.memory_mib()[0] == pytest.approx(10.0)


def test_a_full_device_refuses() -> None:
    cuda = FakeCudaDevice(FakeClock(), total_mib=100.0)
    with cuda.inside(cuda.stream(), None):
        kept = cuda.allocate(90.0)
        with pytest.raises(FakeOutOfMemory, match="10 MiB are free") as caught:
            cuda.allocate(20.0)
        assert cuda.kind_of(caught.value) == "memory"
        kept.free()
        cuda.allocate(20.0)
    cuda.give_back_cached()
    assert cuda.memory_mib()[0] == pytest.approx(10.0), "what remains of the piece from the driver stays with the part in use"


def test_a_block_that_is_freed_grows_together_with_free_neighbours() -> None:
    cuda = FakeCudaDevice(FakeClock(), total_mib=100.0)
    with cuda.inside(cuda.stream(), None):
        cuda.allocate(90.0).free()
        parts = [cuda.allocate(30.0) for _ in range(3)]
        assert cuda.memory_mib()[0] == pytest.approx(10.0)
        for part in (parts[0], parts[2], parts[1]):
            part.free()
        cuda.allocate(89.5).free()
        cuda.give_back_cached()
        assert cuda.memory_mib()[0] == pytest.approx(100.0)


def test_urgent_kernels_go_first_and_partitions_hold() -> None:
    clock = FakeClock()
    cuda = FakeCudaDevice(clock, sms=100, launch_s=0.0)
    streams = {
        "normal": cuda.stream(),
        "urgent": cuda.stream(urgent=True),
        "part": cuda.partition_stream((0,), 20, urgent=False),
    }
    ended: dict[str, float] = {}

    def run(name: str, compute_s: float) -> None:
        with cuda.inside(streams[name], None):
            cuda.compute(compute_s)
            cuda.wait(cuda.mark(streams[name]))
        ended[name] = clock.monotonic_s()

    for name, compute_s in (("normal", 1.0), ("urgent", 0.8), ("part", 0.2)):
        clock.spawn(partial(run, name, compute_s))
    clock.advance_to(10.0)
    assert ended == pytest.approx({"urgent": 1.0, "part": 1.0, "normal": 2.0})
