"""`lanes` and `green` on a real GPU: shares, memory, changes and partitions. Needs torch and numpy only. Not run where there is no GPU.

The contract over the same code in virtual time is tests/contract/test_compute_backend.py; the figures are `driftbox bench gpu`'s.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch

from configs.errors import EnvironmentLacking, JobCancelled, JobError
from edge.gpu.base import ComputeBackend, Lane
from edge.gpu.cuda import TorchCudaDevice
from edge.gpu.cuda_lanes import cuda_lanes
from edge.gpu.cuda_memory import CudaMemoryMeter
from edge.gpu.green import GreenBackend
from edge.gpu.memory import TensorMeter
from scheduler.salus.types import MemoryNeed

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")]

NEED = MemoryNeed(persistent_mib=200.0, ephemeral_mib=400.0)


def green() -> ComputeBackend:
    try:
        return GreenBackend()
    except EnvironmentLacking as error:
        pytest.skip(str(error))


@pytest.fixture(params=["lanes", "green"])
def backend(request: pytest.FixtureRequest) -> Iterator[ComputeBackend]:
    made = cuda_lanes() if request.param == "lanes" else green()
    yield made
    made.close()


class Multiply:
    """About a millisecond of a whole device per product of 4096 x 4096."""

    def __init__(self) -> None:
        self.a = torch.rand(4096, 4096, device="cuda")

    def __call__(self, times: int = 5) -> None:
        for _ in range(times):
            torch.mm(self.a, self.a)


def start(lane: Lane, step: Callable[[], object]) -> threading.Thread:
    def run() -> None:
        try:
            while True:
                with lane.iteration():
                    step()
        except JobCancelled:
            return

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def test_shares_are_kept_within_five_points(backend: ComputeBackend) -> None:
    promised = {"a": 50.0, "b": 30.0, "c": 20.0}
    backend.set_shares(promised)
    threads = [start(backend.open_lane(job, need=NEED), Multiply()) for job in promised]
    time.sleep(6.0)
    report = backend.report(5.0)
    for job in promised:
        backend.cancel(job)
    for thread in threads:
        thread.join(timeout=10.0)
    assert {job: found.received_pct for job, found in report.items()} == pytest.approx(promised, abs=5.0)


def test_a_changed_share_holds_at_once(backend: ComputeBackend) -> None:
    backend.set_shares({"a": 70.0, "b": 30.0})
    threads = [start(backend.open_lane(job, need=NEED), Multiply()) for job in "ab"]
    time.sleep(2.0)
    backend.set_shares({"a": 30.0, "b": 70.0})
    time.sleep(5.5)
    report = backend.report(5.0)
    for job in "ab":
        backend.cancel(job)
    for thread in threads:
        thread.join(timeout=10.0)
    assert {job: found.received_pct for job, found in report.items()} == pytest.approx({"a": 30.0, "b": 70.0}, abs=5.0)


def test_an_iteration_is_done_when_it_is_left(backend: ComputeBackend) -> None:
    backend.set_shares({"a": 100.0})
    lane, multiply = backend.open_lane("a", need=NEED), Multiply()
    for _ in range(3):
        with lane.iteration():
            multiply(50)
        started_s = time.perf_counter()
        torch.cuda.synchronize()
        assert time.perf_counter() - started_s < 0.005  # nothing was left to wait for


def test_a_failed_allocation_ends_one_iteration_only(backend: ComputeBackend) -> None:
    backend.set_shares({"greedy": 50.0, "b": 50.0})
    greedy, other = backend.open_lane("greedy", need=NEED), backend.open_lane("b", need=NEED)
    with pytest.raises(JobError) as caught, greedy.iteration():
        torch.empty(2**44, dtype=torch.uint8, device="cuda")
    assert caught.value.code == "out_of_memory"
    with other.iteration():
        assert float(torch.ones(3, device="cuda").sum()) == 3.0


def test_what_an_iteration_takes_is_measured_with_its_backward_pass() -> None:
    cuda = TorchCudaDevice(0)
    meter = CudaMemoryMeter(cuda, TensorMeter("cuda"))
    stream, model = cuda.stream(), torch.nn.Linear(4096, 4096, device="cuda")
    batch = torch.rand(4096, 4096, device="cuda")  # 64 MiB
    for n in range(3):
        pool = None if n == 0 else cuda.pool()
        with meter.measuring(pool), cuda.inside(stream, pool):
            model.zero_grad(set_to_none=True)
            (model(batch).relu() ** 2).mean().backward()
            model.zero_grad(set_to_none=True)
        cuda.wait(cuda.mark(stream))
        meter.read(pool)
        meter.counted()
        if pool is not None:
            cuda.drop(pool)
    usage = meter.usage()
    assert usage is not None
    assert usage.persistent_mib == pytest.approx(128.0, abs=8.0)  # weights and batch
    assert 128.0 <= usage.ephemeral_mib <= 512.0  # activations and the gradients that autograd made in this thread


def test_partitions_do_not_share_sms() -> None:
    backend = green()
    backend.set_shares({"a": 50.0, "b": 50.0})
    lanes = {job: backend.open_lane(job, need=NEED) for job in "ab"}
    alone = start(lanes["a"], Multiply())
    time.sleep(3.0)
    before = backend.report(2.0)["a"].iterations
    beside = start(lanes["b"], Multiply())
    time.sleep(3.0)
    after = backend.report(2.0)["a"].iterations
    for job in "ab":
        backend.cancel(job)
    for thread in (alone, beside):
        thread.join(timeout=10.0)
    backend.close()
    assert after >= 0.85 * before


def test_asking_a_pool_what_it_holds_leaves_no_reference_short() -> None:
    """More pools than Python has small numbers ended the process: `TorchCudaDevice.pool_state` says why."""
    cuda = TorchCudaDevice(0)
    for _ in range(300):
        pool = cuda.pool()
        for _ in range(3):
            cuda.pool_state(pool)
        cuda.drop(pool)
