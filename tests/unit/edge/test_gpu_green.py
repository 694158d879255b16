"""SM partitions on a GPU that is not there: who may use which SMs, changes without a stop, and a driver that refuses."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest

from configs.errors import EnvironmentLacking, JobCancelled
from edge.clock import FakeClock
from edge.gpu.base import Lane
from edge.gpu.fake_cuda import FakeCudaDevice, FakeSplitter, FakeTensorMeter
from edge.gpu.green import CHANGE_GUESS_S, CONTEXTS_KEPT, GreenBackend, GreenDevice
from edge.gpu.green_driver import Driver, DriverSplitter, _Resource
from scheduler.salus.types import MemoryNeed

SMALL = MemoryNeed(persistent_mib=10.0, ephemeral_mib=20.0)


class World:
    """16 groups of 8 SMs of a device that has 128."""

    def __init__(self) -> None:
        self.clock = FakeClock(start_s=100.0)
        self.cuda = FakeCudaDevice(self.clock, sms=128, launch_s=0.0)
        self.splitter = FakeSplitter(self.cuda)
        self.device = GreenDevice(self.cuda, self.splitter, clock=self.clock, tensors=FakeTensorMeter)
        self.backend = GreenBackend(clock=self.clock, device=self.device)

    def busy(self, lane: Lane, body: Callable[[], None]) -> None:
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
        for job in list(self.backend.report()):
            self.backend.cancel(job)
        self.run(5.0)
        self.clock.join()
        self.backend.check()
        self.backend.close()


def test_partitions_do_not_slow_each_other_down() -> None:
    world = World()
    world.backend.set_shares({"a": 50.0, "b": 50.0})
    a, b = (world.backend.open_lane(job, need=SMALL) for job in "ab")
    world.busy(a, lambda: world.cuda.compute(0.1))
    world.run(5.0)
    alone = world.backend.report(5.0)["a"].iterations
    world.busy(b, lambda: world.cuda.compute(0.1))
    world.run(5.0)
    assert world.backend.report(5.0)["a"].iterations == pytest.approx(alone, abs=1)
    assert {job: r.received_pct for job, r in world.backend.report(5.0).items()} == pytest.approx(
        {"a": 50.0, "b": 50.0}, abs=1.0
    )
    world.stop()


def test_a_partition_larger_than_its_share_is_paced() -> None:
    world = World()
    world.backend.set_shares({"a": 20.0})  # 3.2 groups: 4, which are 25 pct
    world.busy(world.backend.open_lane("a", need=SMALL), lambda: world.cuda.compute(0.05))
    world.run(12.0)
    assert world.device.sms_of("a") == 32
    assert world.backend.report(10.0)["a"].received_pct == pytest.approx(20.0, abs=1.0)
    world.stop()


def test_small_jobs_share_a_partition_and_are_paced_in_it() -> None:
    world = World()
    promised = {"train": 88.0, "p": 1.0, "q": 2.0, "r": 3.0}
    world.backend.set_shares(promised)
    for job in promised:
        piece_s = 0.2 if job == "train" else 0.01
        world.busy(world.backend.open_lane(job, need=SMALL), lambda piece_s=piece_s: world.cuda.compute(piece_s))  # type: ignore[misc]
    world.run(12.0)
    assert [world.device.sms_of(job) for job in ("p", "q", "r")] == [8, 8, 8]
    received = {job: report.received_pct for job, report in world.backend.report(10.0).items()}
    assert received == pytest.approx(promised, abs=2.5)  # two training pieces are 0.35 s of 10
    world.stop()


def test_a_change_holds_from_the_next_iteration_and_stops_nobody() -> None:
    world = World()
    world.backend.set_shares({"a": 75.0, "b": 25.0})
    for job in "ab":
        world.busy(world.backend.open_lane(job, need=SMALL), lambda: world.cuda.compute(0.1))
    world.run(10.0)
    before = {job: report.iterations for job, report in world.backend.report(10.0).items()}
    world.backend.set_shares({"a": 25.0, "b": 75.0})
    assert (world.device.sms_of("a"), world.device.sms_of("b")) == (32, 96)
    world.run(1.0)
    world.run(10.0)
    after = {job: report.iterations for job, report in world.backend.report(10.0).items()}
    assert after["a"] == pytest.approx(before["b"], abs=2)
    assert after["b"] == pytest.approx(before["a"], abs=2)
    world.stop()


def test_shares_that_come_back_need_no_new_context() -> None:
    world = World()
    world.backend.set_shares({"a": 75.0, "b": 25.0})
    world.backend.set_shares({"a": 25.0, "b": 75.0})
    world.backend.set_shares({"a": 75.0, "b": 25.0})
    made = world.splitter.made
    world.backend.set_shares({"a": 25.0, "b": 75.0})
    assert world.splitter.made == made
    world.stop()


def test_contexts_nobody_needs_are_given_back() -> None:
    world = World()
    for share in range(10, 90):
        world.backend.set_shares({"a": float(share), "b": 90.0 - share})
    assert len(world.splitter.alive) <= CONTEXTS_KEPT + 2
    world.stop()
    assert not world.splitter.alive


def test_a_context_in_use_is_not_given_back() -> None:
    world = World()
    world.backend.set_shares({"a": 50.0})
    world.busy(world.backend.open_lane("a", need=SMALL), lambda: world.cuda.compute(20.0))
    world.run(1.0)
    for share in range(1, 40):  # the iteration in flight keeps its 8 groups through all of them
        world.backend.set_shares({"a": float(share), "b": float(100 - share)})
    assert tuple(range(8)) in world.splitter.alive
    world.backend.cancel("a")
    world.run(60.0)
    world.stop()


def test_an_inference_job_has_an_urgent_stream_in_the_shared_partition() -> None:
    world = World()
    world.backend.set_shares({"camera": 3.0, "label": 3.0})
    camera = world.backend.open_lane("camera", role="infer", need=SMALL)
    world.busy(world.backend.open_lane("label", need=SMALL), lambda: world.cuda.compute(0.05))
    latencies: list[float] = []

    def watch() -> None:
        for _ in range(10):
            world.clock.sleep(2.0)
            began_s = world.clock.monotonic_s()
            with camera.iteration():
                world.cuda.compute(0.001)
            latencies.append(world.clock.monotonic_s() - began_s)

    world.clock.spawn(watch)
    world.run(30.0)
    assert len(latencies) == 10
    assert max(latencies) == pytest.approx(0.001 * 16, rel=0.01)  # one group of sixteen, and nobody in front
    world.stop()


def test_a_driver_that_refuses_leaves_the_old_shares() -> None:
    world = World()
    world.backend.set_shares({"a": 50.0})
    world.backend.open_lane("a", need=SMALL)
    world.splitter.refuse = "the driver has had enough"
    with pytest.raises(EnvironmentLacking, match="enough"):
        world.backend.set_shares({"a": 80.0})
    assert world.device.sms_of("a") == 64
    assert world.backend.report()["a"].promised_pct == 50.0
    world.stop()


def test_impossible_shares_make_no_context() -> None:
    world = World()
    with pytest.raises(ValueError, match="capacity"):
        world.backend.set_shares({"a": 60.0, "b": 60.0})
    with pytest.raises(ValueError, match="share"):
        world.backend.set_shares({"a": -1.0})
    assert world.splitter.made == 0


def test_more_than_one_gpu_cannot_be_promised() -> None:
    with pytest.raises(EnvironmentLacking, match="150"):
        GreenBackend(capacity_pct=150, device=World().device)


def test_the_price_of_a_change_is_a_guess_until_one_was_made() -> None:
    world = World()
    assert world.backend.change_cost().settle_s == CHANGE_GUESS_S
    world.backend.set_shares({"a": 50.0})
    assert world.backend.change_cost().settle_s == 0.0  # virtual time stands still in the call
    assert world.backend.change_cost().blind_s == 0.0


# --- the driver's functions, played by Python -------------------------------------------------------------------------


class FakeLibrary:
    """libcuda as far as `Driver` knows it: 132 SMs that split in 16 groups of 8. results: function -> error code."""

    def __init__(self, **results: int) -> None:
        self.results = results
        self.calls: list[tuple[Any, ...]] = []
        self.missing: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        if name in self.missing or name.startswith("_"):
            raise AttributeError(name)

        def function(*arguments: Any) -> int:
            self.calls.append((name, arguments))
            if self.results.get(name):
                return self.results[name]
            return int(getattr(self, f"_{name}", lambda *_: 0)(*arguments))

        return function

    def _cuDeviceGetDevResource(self, device: Any, resource: Any, kind: int) -> int:
        resource._obj.type, resource._obj.sm_count = kind, 132
        return 0

    def _cuDevSmResourceSplitByCount(self, result: Any, count: Any, whole: Any, rest: Any, flags: int, minimum: int) -> int:
        count._obj.value = whole._obj.sm_count // minimum
        for n in range(count._obj.value if result is not None else 0):
            result[n].type, result[n].sm_count = 1, minimum
        return 0

    def _cuGreenCtxStreamCreate(self, stream: Any, context: Any, flags: int, priority: int) -> int:
        stream._obj.value = 0xBEEF
        return 0

    def _cuGetErrorName(self, result: int, text: Any) -> int:
        text._obj.value = b"CUDA_ERROR_NOT_SUPPORTED"
        return 0


class Handles(FakeCudaDevice):
    def foreign_stream(self, handle: int) -> int:
        return handle


def split(library: FakeLibrary) -> DriverSplitter:
    return DriverSplitter(Handles(FakeClock()), Driver(library))  # type: ignore[arg-type]


def test_the_structure_is_as_large_as_the_drivers() -> None:
    assert ctypes.sizeof(_Resource) == 144
    assert _Resource.sm_count.offset == 96


def test_the_device_is_split_once_and_contexts_are_made_of_groups() -> None:
    library = FakeLibrary()
    splitter = split(library)
    assert splitter.groups() == (16, 8)
    partition = splitter.make((0, 3, 4), urgent=True)
    assert partition.stream == 0xBEEF
    (described,) = [arguments for name, arguments in library.calls if name == "cuDevResourceGenerateDesc"]
    assert described[2] == 3
    (stream,) = [arguments for name, arguments in library.calls if name == "cuGreenCtxStreamCreate"]
    assert stream[2] == 1  # non-blocking is required
    assert stream[3] < 0  # more urgent than normal
    partition.close()
    assert [name for name, _ in library.calls][-2:] == ["cuStreamDestroy_v2", "cuGreenCtxDestroy"]
    assert sum(name == "cuDevSmResourceSplitByCount" for name, _ in library.calls) == 2  # how many, and then the split


def test_an_old_driver_is_named_with_what_to_do() -> None:
    library = FakeLibrary()
    library.missing = {"cuGreenCtxStreamCreate"}
    with pytest.raises(EnvironmentLacking, match="cuGreenCtxStreamCreate") as caught:
        split(library)
    assert "570" in caught.value.remedy
    assert "lanes" in caught.value.remedy


def test_a_refusal_carries_the_drivers_own_word() -> None:
    with pytest.raises(EnvironmentLacking, match="CUDA_ERROR_NOT_SUPPORTED") as caught:
        split(FakeLibrary(cuDeviceGetDevResource=801))
    assert "lanes" in caught.value.remedy


def test_a_context_without_a_stream_is_given_back() -> None:
    library = FakeLibrary()
    splitter = split(library)
    library.results = {"cuGreenCtxStreamCreate": 801}
    with pytest.raises(EnvironmentLacking):
        splitter.make((0,), urgent=False)
    assert "cuGreenCtxDestroy" in [name for name, _ in library.calls]


def test_a_device_too_small_to_divide_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    library = FakeLibrary()
    monkeypatch.setattr(FakeLibrary, "_cuDevSmResourceSplitByCount", lambda self, r, count, *_: 0)
    with pytest.raises(EnvironmentLacking, match="cannot be divided"):
        split(library)
