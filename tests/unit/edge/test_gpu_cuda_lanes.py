"""`lanes` on a GPU that is not there: streams, pools, overlap, memory, and what happens when the device fails."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from configs.errors import EnvironmentLacking, JobCancelled, JobError
from edge.clock import FakeClock
from edge.gpu.base import Lane
from edge.gpu.cuda_lanes import CudaLanes, cuda_lanes
from edge.gpu.executor import Executor
from edge.gpu.fake_cuda import FakeCudaDevice, FakeTensor, FakeTensorMeter
from scheduler.salus.types import MemoryNeed

SMALL = MemoryNeed(persistent_mib=100.0, ephemeral_mib=200.0)


class World:
    """A GPU, its lanes backend, and what jobs do on it."""

    def __init__(self, *, total_mib: float = 16_384.0, memory_mib: float | None = None, **settings: object) -> None:
        self.clock = FakeClock(start_s=100.0)
        self.cuda = FakeCudaDevice(self.clock, total_mib=total_mib, launch_s=0.0)
        tensors = partial(FakeTensorMeter, self.cuda)
        self.device = CudaLanes(self.cuda, clock=self.clock, tensors=tensors, memory_mib=memory_mib)
        self.backend = Executor(self.device, clock=self.clock, **settings)  # type: ignore[arg-type]

    def busy(self, lane: Lane, body: Callable[[], None]) -> None:
        """A job that repeats `body` in iterations until it is cancelled."""

        def run() -> None:
            try:
                while True:
                    with lane.iteration():
                        body()
            except JobCancelled:
                return

        self.clock.spawn(run)

    def run(self, seconds: float) -> None:
        self.clock.advance_to(self.clock.monotonic_s() + seconds)

    def stop(self) -> None:
        self.backend.close()
        self.run(5.0)
        self.clock.join()
        self.backend.check()


@contextmanager
def freed(tensors: list[FakeTensor]) -> Iterator[None]:
    """Whatever happens, as tensors of torch are when nobody has them any more."""
    try:
        yield
    finally:
        for tensor in tensors:
            tensor.free()


def shares_of(world: World, span_s: float = 10.0) -> dict[str, float]:
    return {job: report.received_pct for job, report in world.backend.report(span_s).items()}


def test_eight_jobs_get_what_they_were_promised() -> None:
    world = World()
    promised = {f"job{n}": share for n, share in enumerate((30.0, 20.0, 15.0, 10.0, 10.0, 5.0, 5.0, 5.0))}
    world.backend.set_shares(promised)
    for n, job in enumerate(promised):
        world.busy(world.backend.open_lane(job, need=SMALL), lambda n=n: world.cuda.compute(0.01 * (n + 1)))  # type: ignore[misc]
    world.run(15.0)
    for job, received in shares_of(world).items():
        assert received == pytest.approx(promised[job], abs=1.0)
    world.stop()


def test_received_time_is_never_more_than_one_device() -> None:
    world = World(mode="work-conserving")
    world.backend.set_shares({"a": 10.0, "b": 10.0, "c": 10.0})
    for job in "abc":
        world.busy(world.backend.open_lane(job, need=SMALL), lambda: world.cuda.compute(0.1, fills_frac=0.5))
    world.run(15.0)
    assert sum(shares_of(world).values()) == pytest.approx(100.0, abs=1.0)
    world.stop()


def test_lanes_of_two_jobs_overlap_on_the_device() -> None:
    world = World()
    world.backend.set_shares({"a": 50.0, "b": 50.0})
    for job in "ab":  # each fills 40 % of the device: together they do not slow each other down
        world.busy(world.backend.open_lane(job, need=SMALL), lambda: world.cuda.compute(0.04, fills_frac=0.4))
    world.run(10.0)
    for report in world.backend.report(10.0).values():
        assert report.iterations == pytest.approx(100, abs=2)  # 0.1 s each, both at the same time
        assert report.received_pct == pytest.approx(50.0, abs=1.0)  # half of each instant
    world.stop()


def test_frames_are_placed_before_training() -> None:
    world = World()
    world.backend.set_shares({"train": 70.0, "camera": 30.0})
    world.busy(world.backend.open_lane("train", need=SMALL), lambda: world.cuda.compute(0.4))
    camera = world.backend.open_lane("camera", role="infer", need=SMALL)
    latencies: list[float] = []

    def watch() -> None:
        for _ in range(20):
            world.clock.sleep(0.5)
            began_s = world.clock.monotonic_s()
            with camera.iteration():
                world.cuda.compute(0.02)
            latencies.append(world.clock.monotonic_s() - began_s)

    world.clock.spawn(watch)
    world.run(15.0)
    assert len(latencies) == 20
    assert max(latencies) == pytest.approx(0.02)  # its stream is urgent, so a training step in flight costs it nothing
    world.stop()


def test_an_iteration_ends_when_the_device_is_done_with_it() -> None:
    world = World()
    world.backend.set_shares({"a": 100.0})
    lane = world.backend.open_lane("a", need=SMALL)
    ended: list[float] = []

    def run() -> None:
        with lane.iteration():
            world.cuda.compute(2.0)
            ended.append(world.clock.monotonic_s())
        ended.append(world.clock.monotonic_s())

    world.clock.spawn(run)
    world.run(5.0)
    assert ended == [pytest.approx(100.0), pytest.approx(102.0)]
    world.stop()


def test_a_pause_at_a_checkpoint_is_not_compute() -> None:
    world = World()
    world.backend.set_shares({"a": 10.0, "b": 50.0})
    lane = world.backend.open_lane("a", need=SMALL)

    def run() -> None:
        with lane.iteration():
            for _ in range(5):
                world.cuda.compute(0.2)
                world.clock.sleep(0.01)  # the host launches
                lane.checkpoint()

    world.clock.spawn(run)
    world.run(5.0)
    assert world.backend.report(5.0)["a"].received_pct <= 10.0 + 100 * 0.2 / 5.0 + 0.1
    world.run(10.0)
    ledger = world.backend.ledger("a")
    assert ledger.last().received_s == pytest.approx(1.0)
    world.stop()


def test_a_job_without_a_declared_need_is_measured_and_then_placed() -> None:
    world = World()
    world.backend.set_shares({"a": 50.0})
    meters: list[FakeTensorMeter] = []
    world.device._tensors = lambda: meters.append(FakeTensorMeter()) or meters[-1]  # type: ignore[func-returns-value]
    lane = world.backend.open_lane("a")
    meters[0].held_mib = 64.0

    def body() -> None:
        activations = [world.cuda.allocate(32.0) for _ in range(4)]
        world.cuda.compute(0.05)
        for tensor in activations:
            tensor.free()

    world.busy(lane, body)
    world.run(5.0)
    known = world.backend.memory()["a"]
    assert known.lane is not None
    assert known.measured
    assert known.need == MemoryNeed(persistent_mib=64.0, ephemeral_mib=128.0)
    assert known.held_mib == 64.0
    world.stop()


def test_what_the_first_iteration_makes_for_good_is_no_part_of_the_lane() -> None:
    world = World()
    world.backend.set_shares({"a": 50.0})
    lane = world.backend.open_lane("a", need=SMALL)
    state: list[object] = []

    def body() -> None:
        if not state:
            state.append(world.cuda.allocate(50.0))  # the optimizer's moments
        tensor = world.cuda.allocate(100.0)
        world.cuda.compute(0.05)
        tensor.free()

    world.busy(lane, body)
    world.run(3.0)
    assert world.backend.memory()["a"].need == MemoryNeed(persistent_mib=50.0, ephemeral_mib=100.0)
    assert world.backend.memory()["a"].held_mib == pytest.approx(50.0)
    world.stop()


def test_jobs_are_measured_one_at_a_time_while_others_run() -> None:
    """To drop a pool, or to give anything back, while another job allocates in one is the end of a real process; the fake says so."""
    world = World(mode="work-conserving", total_mib=2000.0)
    rng = random.Random(3)
    jobs = [f"job{n}" for n in range(8)]
    world.backend.set_shares(dict.fromkeys(jobs, 12.0))

    def body() -> None:
        tensor = world.cuda.allocate(rng.uniform(5.0, 60.0))
        world.clock.sleep(rng.uniform(0.001, 0.02))  # the host launches: so long it is inside
        world.cuda.compute(0.01)
        tensor.free()

    for n, job in enumerate(jobs):
        world.busy(world.backend.open_lane(job, role="infer" if n % 3 == 0 else "learn", need=None if n % 2 else SMALL), body)
    world.run(20.0)
    assert all(known.measured for known in world.backend.memory().values())
    assert world.cuda.pools_made >= len(jobs)
    assert all(report.iterations > 20 for report in world.backend.report(10.0).values())
    world.stop()


def test_an_allocation_that_fails_while_another_job_is_measured_ends_that_iteration_only() -> None:
    world = World(total_mib=1000.0)
    world.backend.set_shares({"a": 50.0, "liar": 50.0})
    newcomer, liar = world.backend.open_lane("a"), world.backend.open_lane("liar", need=SMALL)
    seen: list[JobError] = []

    def lie() -> None:
        world.clock.sleep(0.5)
        try:
            with liar.iteration():
                world.cuda.allocate(5000.0)
        except JobError as error:
            seen.append(error)

    def slow() -> None:
        tensor = world.cuda.allocate(10.0)
        world.clock.sleep(0.3)
        tensor.free()

    world.busy(newcomer, slow)
    world.clock.spawn(lie)
    world.run(5.0)
    assert [error.code for error in seen] == ["out_of_memory"]
    assert world.backend.report(2.0)["a"].iterations > 2
    world.stop()


def test_two_jobs_of_one_lane_use_its_bytes_in_turn() -> None:
    world = World(total_mib=1500.0, memory_mib=1200.0, max_lanes=1)
    world.backend.set_shares({"a": 50.0, "b": 50.0})
    need = MemoryNeed(persistent_mib=50.0, ephemeral_mib=800.0)

    def body() -> None:
        tensor = world.cuda.allocate(800.0)
        world.cuda.compute(0.05)
        tensor.free()

    for job in "ab":
        world.busy(world.backend.open_lane(job, need=need), body)
    world.run(10.0)
    assert {m.lane for m in world.backend.memory().values()} == {world.backend.memory()["a"].lane}
    assert all(received == pytest.approx(50.0, abs=2.0) for received in shares_of(world).values())
    world.stop()


def test_a_job_that_asks_for_more_than_there_is_fails_alone() -> None:
    world = World(total_mib=1000.0)
    world.backend.set_shares({"liar": 50.0, "b": 50.0})
    world.busy(world.backend.open_lane("b", need=SMALL), lambda: world.cuda.compute(0.05))
    liar = world.backend.open_lane("liar", need=SMALL)
    seen: list[JobError] = []

    def lie() -> None:
        try:
            with liar.iteration():
                world.cuda.allocate(5000.0)
        except JobError as error:
            seen.append(error)

    world.clock.spawn(lie)
    world.run(10.0)
    assert [(e.code, e.subject) for e in seen] == [("out_of_memory", "liar")]
    assert "smaller" in seen[0].remedy
    assert shares_of(world, 5.0)["b"] == pytest.approx(50.0, abs=2.0)
    world.stop()


@pytest.mark.parametrize("seed", range(4))
def test_an_admitted_set_never_runs_out_of_memory(seed: int) -> None:
    """What jobs declare is what they take. The device has a tenth more than was promised to them together, for what streams keep in
    pieces: with not a MiB more, one run in twenty-five ran out of memory by those (which threads go first is the system's choice)."""
    rng = random.Random(seed)
    world = World(total_mib=1100.0, memory_mib=1000.0, max_lanes=rng.choice((1, 3, 8)))
    errors: list[Exception] = []

    def live(job: str, need: MemoryNeed, iterations: int, start_s: float) -> None:
        world.clock.sleep(start_s)
        lane = world.backend.open_lane(job, need=need)
        held = []
        try:
            for _ in range(iterations):
                with lane.iteration():
                    held += [] if held else [world.cuda.allocate(need.persistent_mib)]
                    parts = [world.cuda.allocate(need.ephemeral_mib / 4) for _ in range(4)]
                    world.cuda.compute(rng.uniform(0.01, 0.1))
                    for part in parts:
                        part.free()
        except JobError as error:
            errors.append(error)
        for tensor in held:
            tensor.free()
        world.backend.close_lane(job)

    jobs = [f"job{n}" for n in range(12)]
    world.backend.set_shares(dict.fromkeys(jobs, 8.0))
    for job in jobs:
        need = MemoryNeed(persistent_mib=rng.uniform(5, 80), ephemeral_mib=rng.uniform(20, 400))
        world.clock.spawn(partial(live, job, need, rng.randint(2, 12), rng.uniform(0.1, 5.0)))
    world.run(200.0)
    assert errors == []
    assert world.backend.memory() == {}
    assert world.cuda.most_mib <= 1100.0
    world.stop()


@pytest.mark.parametrize("seed", range(3))
def test_jobs_that_declare_nothing_do_not_run_out_of_memory_by_fragments(seed: int) -> None:
    """As the section `memory` of `bench gpu`: twelve at a time, each unknown at first; the device has a third more than may be promised,
    for newcomers. Streams keep what was freed in them, and weights may take the place of activations."""
    rng = random.Random(seed)
    limit_mib = 6000.0
    world = World(total_mib=limit_mib + 2000.0, memory_mib=limit_mib)
    failed: list[str] = []
    ended: list[str] = []

    def live(job: str, persistent_mib: float, ephemeral_mib: float, iterations: int) -> None:
        lane = world.backend.open_lane(job)
        held: list[FakeTensor] = []
        try:
            for _ in range(iterations):
                parts: list[FakeTensor] = []
                with lane.iteration(), freed(parts):
                    held += [] if held else [world.cuda.allocate(persistent_mib)]
                    for _ in range(4):
                        parts.append(world.cuda.allocate(ephemeral_mib / 4))
                    world.clock.sleep(0.0005)
                    world.cuda.compute(0.002)
        except JobError as error:
            failed.append(str(error))
        for tensor in held:
            tensor.free()
        world.backend.close_lane(job)
        ended.append(job)

    for n in range(150):
        while n - len(ended) >= 12:
            world.run(0.02)
        alive = {f"job{k}" for k in range(n + 1)} - set(ended)
        world.backend.set_shares(dict.fromkeys(alive, 100.0 / 12))
        size = rng.uniform(0.005, 0.05) * limit_mib, rng.uniform(0.01, 0.25) * limit_mib
        world.clock.spawn(partial(live, f"job{n}", *size, rng.randint(3, 30)))
        world.run(0.01)
    world.run(60.0)
    assert len(ended) == 150
    assert failed == []
    world.stop()


def test_a_broken_context_ends_every_job_and_says_so() -> None:
    world = World()
    world.backend.set_shares({"a": 50.0, "b": 50.0})
    seen: dict[str, JobError] = {}

    def until_broken(job: str, lane: Lane) -> None:
        try:
            while True:
                with lane.iteration():
                    world.cuda.compute(0.05)
        except JobError as error:
            seen[job] = error

    for job in "ab":
        lane = world.backend.open_lane(job, need=SMALL)
        world.clock.spawn(lambda job=job, lane=lane: until_broken(job, lane))  # type: ignore[misc]
    world.run(1.0)
    world.cuda.lose()
    world.run(5.0)
    assert {job: error.code for job, error in seen.items()} == {"a": "device", "b": "device"}
    assert all("restart the box" in error.remedy for error in seen.values())
    assert all("illegal memory access" in error.message for error in seen.values())
    world.stop()


def test_an_error_of_the_job_itself_is_not_translated() -> None:
    world = World()
    world.backend.set_shares({"a": 100.0})
    lane = world.backend.open_lane("a", need=SMALL)
    seen: list[str] = []

    def run() -> None:
        try:
            with lane.iteration():
                world.cuda.compute(1.0)
                raise ArithmeticError("loss is NaN")
        except ArithmeticError:
            seen.append("raised")

    world.clock.spawn(run)
    world.run(3.0)
    assert seen == ["raised"]
    assert world.backend.ledger("a").last().received_s == pytest.approx(1.0)
    world.stop()


def test_a_lane_that_is_left_gives_its_cached_memory_back() -> None:
    world = World()
    world.backend.set_shares({"a": 50.0})
    lane = world.backend.open_lane("a", need=MemoryNeed(persistent_mib=1.0, ephemeral_mib=4000.0))

    def run() -> None:
        for _ in range(3):
            with lane.iteration():
                world.cuda.allocate(4000.0).free()

    world.clock.spawn(run)
    world.run(5.0)
    world.backend.close_lane("a")
    world.cuda.give_back_cached()
    assert world.cuda.memory_mib()[0] == pytest.approx(16_384.0)
    world.stop()


def test_facts_without_a_driver_library() -> None:
    world = World()
    (fact,) = world.backend.facts()
    assert (fact.name, fact.memory_total_mib, fact.memory_used_mib) == ("Fake GPU", 16_384.0, 0.0)
    assert world.device.memory_mib == 16_384.0 - 300.0


def test_without_a_gpu_the_operator_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge.gpu.cuda_lanes.cuda_missing", lambda: "this PyTorch was built without CUDA")
    with pytest.raises(EnvironmentLacking, match="built without CUDA") as caught:
        cuda_lanes()
    assert "driver" in caught.value.remedy
