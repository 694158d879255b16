"""On a GPU a job's cost is what the device spent on it, not the CPU time of the thread that waits for it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from configs.schema import GpusSection
from edge.clock import FakeClock
from edge.gpu import choose
from edge.gpu.cuda_lanes import CudaLanes
from edge.gpu.device_clock import DeviceClock, TimedDevice, timed
from edge.gpu.executor import Executor
from edge.gpu.fake_cuda import FakeCudaDevice, FakeTensorMeter
from edge.gpu.fake_nvml import FakeGpu, FakeMig, FakeNvml
from edge.gpu.lanes import CpuDevice
from edge.gpu.mig import MigBackend
from edge.gpu.nvml import DeviceReader


def gpus(text: str) -> GpusSection:
    return GpusSection(**yaml.safe_load(text))


class Gpu:
    """A fake CUDA device in virtual time, with a job per call of `run`."""

    def __init__(self) -> None:
        self.time = FakeClock(start_s=10.0)
        self.clock = DeviceClock(self.time)
        self.cuda = FakeCudaDevice(self.time)
        self.device = CudaLanes(self.cuda, clock=self.time, tensors=FakeTensorMeter)
        self.backend = Executor(timed(self.device, self.clock), clock=self.clock)

    def run(self, job: str, pieces_s: list[float]) -> list[float]:
        """Costs of the pieces, each an iteration, as the job's thread reads them; filled while time passes."""
        lane, costs = self.backend.open_lane(job), list[float]()

        def body() -> None:
            for piece_s in pieces_s:
                with lane.iteration():
                    started_s = self.clock.thread_cpu_s()
                    self.cuda.compute(piece_s)
                    lane.checkpoint()  # kernels run on; an answer that is read waits for them, and so does this
                    costs.append(self.clock.thread_cpu_s() - started_s)
            costs.append(self.clock.thread_cpu_s())

        self.time.spawn(body)
        return costs


def test_a_frame_costs_what_the_device_spent_on_it() -> None:
    gpu = Gpu()
    gpu.backend.set_shares({"a": 50.0})
    costs = gpu.run("a", [0.25, 0.5])
    gpu.time.advance_to(30.0)
    gpu.time.join()
    assert costs == pytest.approx([0.25, 0.5, 0.75])
    assert gpu.backend.ledger("a").last().received_s == pytest.approx(0.75)
    assert gpu.time.thread_cpu_s() == 0.0
    assert gpu.clock.thread_cpu_s() == 0.0, "this thread was in no iteration"


def test_time_and_waiting_are_the_machines() -> None:
    gpu = Gpu()
    gpu.time.advance_to(12.5)
    assert gpu.clock.monotonic_s() == 12.5
    assert gpu.clock.utc_s() == gpu.time.utc_s()


def test_an_iteration_that_raises_counts_too() -> None:
    gpu = Gpu()
    gpu.backend.set_shares({"a": 100.0})
    lane, seen = gpu.backend.open_lane("a"), list[float]()

    def body() -> None:
        with pytest.raises(ArithmeticError), lane.iteration():
            gpu.cuda.compute(0.5)
            raise ArithmeticError("loss is NaN")
        seen.append(gpu.clock.thread_cpu_s())

    gpu.time.spawn(body)
    gpu.time.advance_to(20.0)
    gpu.time.join()
    assert seen == pytest.approx([0.5])


def test_a_device_is_only_timed_under_a_clock_of_devices() -> None:
    time = FakeClock()
    device = CpuDevice(clock=time)
    assert timed(device, time) is device
    wrapped = timed(device, DeviceClock(time))
    assert isinstance(wrapped, TimedDevice)
    assert (wrapped.capacity_pct, wrapped.parallel, wrapped.facts()) == (device.capacity_pct, device.parallel, ())


def test_which_boxes_measure_by_their_device() -> None:
    time = FakeClock()
    for text in ("{}", "{backend: none}", "{device: cuda, backend: mps}"):
        assert choose.clock_for(gpus(text), time) is time
    for text in (
        "{device: cuda}",
        "{device: cuda, backend: green}",
        "{device: cuda, backend: mig}",
        "{device: cuda, backend: none}",
    ):
        assert isinstance(choose.clock_for(gpus(text), time), DeviceClock)


def test_in_a_partition_a_second_is_a_part_of_a_gpu_second(monkeypatch: pytest.MonkeyPatch) -> None:
    time = FakeClock()
    clock = DeviceClock(time)
    monkeypatch.setattr(choose, "cuda_device", lambda *_: CpuDevice(clock=time))
    survey = DeviceReader(FakeNvml([FakeGpu(mig=[FakeMig(slices=3)])])).read()
    backend = choose.build_backend(
        gpus("{device: cuda, backend: mig, capacity_pct: 40}"),
        data_dir=Path("data"),
        clock=clock,
        look=lambda: survey,
        environ={},
    )
    assert isinstance(backend, MigBackend)
    backend.set_shares({"a": 40.0})
    lane, seen = backend.open_lane("a"), list[float]()

    def body() -> None:
        with lane.iteration():
            time.work(7.0)
        seen.append(clock.thread_cpu_s())

    time.spawn(body)
    time.advance_to(60.0)
    time.join()
    assert seen == pytest.approx([3.0])
