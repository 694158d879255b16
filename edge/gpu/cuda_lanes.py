"""The GPU under the scheduling core of `lanes` (`edge.gpu.executor`): streams, and time by events (card, section 10).

- **A memory lane is a stream.** Lanes run at the same time, iterations of one lane never (the core sees to it). torch's allocator keeps
  what was freed for the stream that used it, so a lane's bytes serve its own jobs, one after the other. It has no limit; that a lane
  stays in its size follows from what its jobs were measured to take, and where it does not, what all lanes have cached goes back to the
  driver before an allocation fails. A lane that frames use is an urgent stream: its blocks are placed on the device before those of
  training.
- **What stays is kept apart from what comes and goes**: a job's first iteration, in which most of what it holds is made, runs aside, and
  what it left cached is given back. A weight that took the place of a freed activation would keep the whole piece from the driver.
- **Memory is measured in a pool, one job at a time** (`_Scales`). A pool for each lane would be the textbook's way, and would end the
  process: see `edge.gpu.cuda`.
- **An iteration ends when the device is done**, not when Python is: the job's thread waits for an event (others run meanwhile). Only
  then may the next iteration of the lane use its memory.
- **Time is the device's**: an event pair measures each piece. Where pieces of several jobs overlap, each instant is divided among them
  (`scheduler.overlap`), so all that jobs received is never more than one device.
- **The default stream first**: what was loaded or copied on the default stream before an iteration begins is there when it begins.

A failed allocation ends the iteration as JobError 'out_of_memory'; the other jobs go on. A broken context ('device') is the end of every
CUDA job of this process, whoever broke it: every iteration from then on raises and says so. Only processes can be kept apart (`mps`,
`mig`), and even MPS ends all clients of a device whose context one of them poisons.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext

from configs.errors import EnvironmentLacking, JobError
from edge.clock import Clock, SystemClock
from edge.gpu.base import DeviceFacts, Role
from edge.gpu.cuda import CudaDevice, Event, Pool, Stream, TorchCudaDevice, cuda_missing
from edge.gpu.cuda_memory import SPARED_MIB, CudaMemoryMeter
from edge.gpu.executor import Executor
from edge.gpu.memory import Meter, TensorMeter
from scheduler.overlap import Overlap
from scheduler.pacing import PacingMode
from scheduler.salus.types import MemoryNeed

#: Most memory lanes on a GPU when the configuration does not say. Opening one for every job would take the memory that later jobs need
#: for good: of 16 GiB, 13 lanes hold 43 small models, unlimited ones 25 (card, example T3). torch has 32 streams per priority.
MAX_LANES = 12
#: So long a job that begins waits for another's measurement to end; then its tensors alone must do.
SCALES_WAIT_S = 1.0
#: What is kept free beside all that was promised while something is measured: for a newcomer, of whom nobody knows what it takes.
NEWCOMER_FRAC = 0.25


class _Scales:
    """One measurement in a pool at a time, and nothing is given back to the driver meanwhile."""

    def __init__(self, cuda: CudaDevice, clock: Clock) -> None:
        self._cuda = cuda
        self._clock = clock
        self._changed = threading.Condition()
        self._taken = False

    @contextmanager
    def pool(self, wait_s: float, promised_mib: float) -> Iterator[Pool | None]:
        """A pool of one's own, dropped at the end; None: another still measures after `wait_s`. Where what is cached could be in the way
        of what jobs were promised, it goes back to the driver before, for meanwhile it cannot."""
        if not self._take(wait_s):
            yield None
            return
        try:
            free_mib, total_mib = self._cuda.memory_mib()
            if free_mib < promised_mib - self._cuda.live_mib() + NEWCOMER_FRAC * total_mib:
                self._cuda.give_back_cached()
            pool = self._cuda.pool()
            try:
                yield pool
            except BaseException as error:
                if self._cuda.kind_of(error) == "device":
                    raise  # to destroy a pool of a broken context ends the process before it could say what happened
                self._cuda.drop(pool)
                raise
            self._cuda.drop(pool)
        finally:
            self._let_go()

    def give_back_cached(self, wait_s: float = 0.0) -> None:
        """No-op while somebody measures, after `wait_s`."""
        if self._take(wait_s):
            try:
                self._cuda.give_back_cached()
            finally:
                self._let_go()

    def _take(self, wait_s: float) -> bool:
        end_s = self._clock.monotonic_s() + wait_s
        with self._changed:
            while self._taken and (left_s := end_s - self._clock.monotonic_s()) > 0:
                self._clock.wait(self._changed, left_s)
            if self._taken:
                return False
            self._taken = True
            return True

    def _let_go(self) -> None:
        with self._changed:
            self._taken = False
            self._clock.notify_all(self._changed)


class CudaSeat:
    """One job's place on the GPU; see `edge.gpu.device.Seat`."""

    def __init__(self, device: CudaLanes, job: str, role: Role, meter: CudaMemoryMeter) -> None:
        self.job = job
        self.role: Role = role
        self._device = device
        self._meter = meter
        self._stream: Stream | None = None  # of the iteration in flight
        self._piece: tuple[Event, float] | None = None  # start of the piece in flight: its event, the host's time
        # Start and end of the piece before, to be used again.
        self._spent: tuple[Event | None, Event | None] = (None, None)
        self._waited_s = 0.0  # for the end of the piece before

    @contextmanager
    def iteration(self, lane: int | None, *, measure: bool) -> Iterator[None]:
        """See `edge.gpu.device.Seat`. JobError 'out_of_memory' or 'device', see the module's text."""
        self._device.require_sound(self.job)
        warms_up = self._meter.warming_up
        try:
            stream = self._device.stream_for(self, None if warms_up else lane)
            with ExitStack() as stack:
                pool = stack.enter_context(self._measured(lane)) if measure else None
                stack.enter_context(self._in_flight(stream))
                stack.enter_context(self._device.cuda.inside(stream, pool))
                yield
            if warms_up:
                self._device.scales.give_back_cached(0.0 if self.role == "infer" else SCALES_WAIT_S)
        except Exception as error:
            self._device.judge(error, self.job)
            raise
        finally:
            self._meter.counted()

    @contextmanager
    def _measured(self, lane: int | None) -> Iterator[Pool | None]:
        """Around an iteration whose memory is wanted; the pool in which it is to allocate. Read when the device is done."""
        wait_s = SCALES_WAIT_S if lane is None else 0.0
        in_pool = self._meter.in_full and not self._meter.warming_up
        with self._device.scales.pool(wait_s, self._device.promised_mib) if in_pool else nullcontext() as pool:
            with self._meter.measuring(pool):
                yield pool
            self._meter.read(pool)

    @contextmanager
    def _in_flight(self, stream: Stream) -> Iterator[None]:
        self._stream = stream
        self.resume()
        try:
            yield
        finally:
            try:
                self.settle()
            finally:
                self._stream = None

    def resume(self) -> None:
        """The body goes on launching: a new piece begins."""
        assert self._stream is not None
        now_s = self._device.clock.monotonic_s()
        self._piece = (self._device.cuda.mark(self._stream, self._spent[0]), now_s)
        self._device.began(self.job, now_s)

    def settle(self) -> None:
        """The piece in flight ends when the device has done it. Nothing, where there is none. Raises what went wrong on the device."""
        if self._piece is None or self._stream is None:
            return
        (start, start_s), self._piece = self._piece, None
        now_s = end_s = self._device.clock.monotonic_s()
        try:
            end = self._device.cuda.mark(self._stream, self._spent[1])
            self._spent = (None, None)  # until it is over
            self._device.cuda.wait(end, expected_s=self._waited_s)
            self._waited_s = self._device.clock.monotonic_s() - now_s
            end_s = start_s + self._device.cuda.seconds_between(start, end)
            self._spent = (start, end)
        finally:
            self._device.ended(self.job, end_s)

    def used_s(self) -> float:
        return self._device.used_s(self.job)

    def usage(self) -> MemoryNeed | None:
        return self._meter.usage()

    def close(self) -> None:
        """What the job left cached serves the next one of its lane, or goes back to the driver when an allocation would fail."""
        self._device.left(self.job)


class CudaLanes:
    """One GPU for the jobs of this process; see `edge.gpu.device.Device`.

    cuda: the seam. tensors: makes a job's tensor meter. memory_mib: what jobs may hold together (None: what is free now, less
    SPARED_MIB). facts: says what the driver knows of the device (None: what torch knows).
    """

    name = "lanes"
    capacity_pct = 100
    parallel = 1
    job_max_pct = 100.0
    measures_always = False

    def __init__(
        self,
        cuda: CudaDevice,
        *,
        clock: Clock | None = None,
        tensors: Callable[[], Meter] = lambda: TensorMeter("cuda"),
        memory_mib: float | None = None,
        facts: Callable[[], tuple[DeviceFacts, ...]] | None = None,
    ) -> None:
        self.cuda = cuda
        self.clock: Clock = clock or SystemClock()
        self._tensors = tensors
        self._facts = facts
        free_mib, self._total_mib = cuda.memory_mib()
        self.memory_mib = max(0.0, free_mib - SPARED_MIB) if memory_mib is None else memory_mib
        self.scales = _Scales(cuda, self.clock)
        self.promised_mib = 0.0
        self._streams: dict[tuple[int | None, Role], Stream] = {}
        self._overlap = Overlap()
        self._lock = threading.Lock()
        self._broken = ""

    def seat(self, job: str, role: Role) -> CudaSeat:
        return CudaSeat(self, job, role, CudaMemoryMeter(self.cuda, self._tensors()))

    def used_mib(self) -> float | None:
        return self.cuda.live_mib()

    def facts(self) -> tuple[DeviceFacts, ...]:
        if self._facts is not None:
            return self._facts()
        found, (free_mib, total_mib) = self.cuda.properties(), self.cuda.memory_mib()
        return (
            DeviceFacts(
                index=self.cuda.index,
                name=found.name,
                uuid=found.uuid,
                memory_total_mib=total_mib,
                memory_used_mib=total_mib - free_mib,
            ),
        )

    # --- called by seats ----------------------------------------------------------------------------------------------

    def stream_for(self, seat: CudaSeat, lane: int | None) -> Stream:
        """Where the job's next iteration runs: on its memory lane's own stream. None: aside, where jobs warm up and newcomers are
        measured."""
        with self._lock:
            key = (lane, seat.role)
            if key not in self._streams:
                self._streams[key] = self.cuda.stream(urgent=seat.role == "infer")
            return self._streams[key]

    def began(self, job: str, at_s: float) -> None:
        with self._lock:
            self._overlap.begin(job, at_s)

    def ended(self, job: str, at_s: float) -> None:
        with self._lock:
            if job in self._overlap.in_flight():
                self._overlap.end(job, at_s)

    def used_s(self, job: str) -> float:
        with self._lock:
            return self._overlap.used_s(job, self.clock.monotonic_s())

    def left(self, job: str) -> None:
        with self._lock:
            self._overlap.forget(job)

    def require_sound(self, job: str) -> None:
        if self._broken:
            raise self._device_error(job)

    def judge(self, error: Exception, job: str) -> None:
        """Maps what torch raises to JobError, and remembers that the context is gone. Other errors are the job's own."""
        kind = self.cuda.kind_of(error)
        if kind == "memory":
            self.scales.give_back_cached()
            raise JobError(
                f"{job} asked for more GPU memory than there is",
                subject=job,
                remedy="smaller pictures or batches, fewer jobs, or a larger device; the other jobs go on",
                code="out_of_memory",
            ) from error
        if kind == "device":
            self._broken = (
                self._broken
                or f"in an iteration of {job}: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
            )
            raise self._device_error(job) from error

    def _device_error(self, job: str) -> JobError:
        return JobError(
            f"the GPU context of this process is broken ({self._broken})",
            subject=job,
            remedy="restart the box; if it happens again, leave that job out and report it: nothing else on this GPU can go on",
            code="device",
        )


def cuda_lanes(
    *,
    index: int = 0,
    capacity_pct: int | None = None,
    mode: PacingMode = "capped",
    memory_mib: float | None = None,
    facts: Callable[[], tuple[DeviceFacts, ...]] | None = None,
) -> Executor:
    """The `lanes` backend on a GPU. EnvironmentLacking when there is none."""
    missing = cuda_missing()
    if missing:
        raise EnvironmentLacking(
            f"no GPU for the backend 'lanes': {missing}",
            subject="gpus.backend",
            remedy="install the NVIDIA driver and a CUDA build of PyTorch, or run on the CPU",
        )
    device = CudaLanes(TorchCudaDevice(index), memory_mib=memory_mib, facts=facts)
    return Executor(device, capacity_pct=capacity_pct, mode=mode, max_lanes=MAX_LANES)
