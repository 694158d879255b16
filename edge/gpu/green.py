"""The backend `green`: SM partitions inside one process, through CUDA green contexts, changed without a restart.

Every job, or all small ones together, runs on streams that can use a fixed set of the device's multiprocessors and no others
(`scheduler.partitions`). A new set is a new context, made beside the old one when shares change; the job's next iteration runs in it,
and nobody is stopped: until then the old and the new sets may overlap, for one iteration. Inside its partition a job is paced like on
`lanes` (same core, same accounts, same memory lanes): partitions are rounded up, and what is more than the share is not used.

100 pct are the SMs that can be given to partitions: groups have a fixed size and the driver aligns them, so some of a device is left
over (12 of 132 on an H200), and what runs on no partition may use it.

**Why not `torch.cuda.green_contexts`.** `GreenContext.create(num_sms=...)` of torch 2.10 to 2.14 splits the *whole* device anew at
every call, so two contexts of 66 SMs each get the same 66 (pytorch issue 195378; `SMPartition.split` of 2.15 is to end it). Partitions
that overlap are no partitions, so the device is split once here, by the driver, in equal groups, and a context is made of some of them.
Streams reach torch as `torch.cuda.ExternalStream`, the same way as torch's own class hands out its streams.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from configs.errors import EnvironmentLacking
from edge.clock import Clock, SystemClock
from edge.gpu.base import ChangeCost, DeviceFacts, Role
from edge.gpu.cuda import CudaDevice, Stream, TorchCudaDevice, cuda_missing
from edge.gpu.cuda_lanes import CudaLanes, CudaSeat
from edge.gpu.executor import Executor
from edge.gpu.memory import Meter, TensorMeter
from scheduler.overlap import Overlap
from scheduler.pacing import PacingMode, check_shares
from scheduler.partitions import assign_groups, plan_partitions

#: A change's price before one was measured: a context and a stream per changed job, documented as milliseconds.
CHANGE_GUESS_S = 0.01
#: Contexts that nobody uses now and that are kept, since shares often come back. Each holds a few MiB of the driver's memory.
CONTEXTS_KEPT = 16


class SmPartition(Protocol):
    """A context on some groups of SMs. stream: what runs there."""

    stream: Stream

    def close(self) -> None:
        """Nothing runs on the stream any more."""


class SmSplitter(Protocol):
    """Splits a device's SMs, once, in equal groups; the seam to the driver. Real: `edge.gpu.green_driver.DriverSplitter`."""

    def groups(self) -> tuple[int, int]:
        """(how many groups, SMs in each). EnvironmentLacking: the device, its driver or torch cannot do it."""

    def make(self, groups: tuple[int, ...], *, urgent: bool) -> SmPartition:
        """A context on these groups. EnvironmentLacking when the driver refuses."""


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Where a job's iterations run. first: names the partition (its first job); groups: which."""

    first: str
    groups: tuple[int, ...]


class GreenDevice(CudaLanes):
    """The device of `CudaLanes`, in partitions. Time: seconds in a partition times its part of the device; where several jobs share a
    partition, each instant there is divided among them."""

    name = "green"

    def __init__(
        self,
        cuda: CudaDevice,
        splitter: SmSplitter,
        *,
        clock: Clock | None = None,
        tensors: Callable[[], Meter] = lambda: TensorMeter("cuda"),
        memory_mib: float | None = None,
        facts: Callable[[], tuple[DeviceFacts, ...]] | None = None,
    ) -> None:
        super().__init__(cuda, clock=clock, tensors=tensors, memory_mib=memory_mib, facts=facts)
        self._splitter = splitter
        self._count, self.group_sms = splitter.groups()
        self._places: dict[str, _Place] = {}
        self._held: dict[str, tuple[int, ...]] = {}
        self._contexts: dict[tuple[tuple[int, ...], bool], SmPartition] = {}
        self._overlaps: dict[tuple[int, ...], Overlap] = {}
        self._last: dict[str, tuple[int, ...]] = {}  # groups of each job's last iteration, which may be in flight
        self._used_s: dict[str, float] = {}
        self._told_s: dict[str, float] = {}
        self._urgent: dict[str, bool] = {}
        self.slowest_change_s: float | None = None

    def repartition(self, shares_pct: Mapping[str, float]) -> None:
        """New partitions for the jobs' next iterations; their contexts are made now. EnvironmentLacking (nothing is changed): the driver
        refuses. ValueError: impossible shares."""
        started_s = self.clock.monotonic_s()
        plan = plan_partitions(shares_pct, groups=self._count)
        with self._lock:
            held = assign_groups(self._held, {p.jobs[0]: p.groups for p in plan}, groups=self._count)
            places = {job: _Place(first=p.jobs[0], groups=held[p.jobs[0]]) for p in plan for job in p.jobs}
            for job, place in places.items():
                self._context(place.groups, urgent=self._urgent.get(job, False))
            self._held, self._places = held, places
            self._close_unused()
        self.slowest_change_s = max(self.clock.monotonic_s() - started_s, self.slowest_change_s or 0.0)

    def sms_of(self, job: str) -> int:
        """How many SMs the job's next iteration may use; 0 when it has no share."""
        with self._lock:
            place = self._places.get(job)
            return len(place.groups) * self.group_sms if place else 0

    def seat(self, job: str, role: Role) -> CudaSeat:
        with self._lock:
            self._urgent[job] = role == "infer"
            place = self._places.get(job)
            if place is not None:
                self._context(place.groups, urgent=self._urgent[job])
        return super().seat(job, role)

    # --- called by seats ----------------------------------------------------------------------------------------------

    def stream_for(self, seat: CudaSeat, lane: int | None) -> Stream:
        """The stream of the job's partition; of its whole device in the rare case that it lost its share a moment ago."""
        with self._lock:
            where = self._places.get(seat.job)
            if where is None:
                self._last[seat.job] = tuple(range(self._count))
            else:
                self._last[seat.job] = where.groups
                return self._context(where.groups, urgent=seat.role == "infer").stream
        return super().stream_for(seat, lane)

    def began(self, job: str, at_s: float) -> None:
        with self._lock:
            self._overlaps.setdefault(self._last[job], Overlap()).begin(job, at_s)

    def ended(self, job: str, at_s: float) -> None:
        with self._lock:
            groups = self._last.get(job, ())
            book = self._overlaps.get(groups)
            if book is None or job not in book.in_flight():
                return
            self._used_s[job] = self._used_s.get(job, 0.0) + book.end(job, at_s) * len(groups) / self._count

    def used_s(self, job: str) -> float:
        with self._lock:
            groups = self._last.get(job, ())
            book = self._overlaps.get(groups)
            running_s = book.running_s(job, self.clock.monotonic_s()) if book is not None else 0.0
            total_s = self._used_s.get(job, 0.0) + running_s * len(groups) / self._count
            self._told_s[job] = max(total_s, self._told_s.get(job, 0.0))
            return self._told_s[job]

    def left(self, job: str) -> None:
        super().left(job)
        with self._lock:
            book = self._overlaps.get(self._last.pop(job, ()))
            if book is not None:
                book.forget(job)
            for known in (self._used_s, self._told_s, self._urgent):
                known.pop(job, None)

    def close(self) -> None:
        """Gives the contexts back that nothing runs in."""
        with self._lock:
            self._places, self._held = {}, {}
            self._close_unused(keep=0)

    # --- lock held ----------------------------------------------------------------------------------------------------

    def _context(self, groups: tuple[int, ...], *, urgent: bool) -> SmPartition:
        """Kept in the order of use, so that the oldest are given back first."""
        key = (groups, urgent)
        context = self._contexts.pop(key, None) or self._splitter.make(groups, urgent=urgent)
        self._contexts[key] = context
        return context

    def _close_unused(self, keep: int = CONTEXTS_KEPT) -> None:
        needed = {place.groups for place in self._places.values()} | set(self._last.values())
        self._overlaps = {groups: book for groups, book in self._overlaps.items() if groups in needed}
        unused = [key for key in self._contexts if key[0] not in needed]
        for key in unused[: max(0, len(unused) - keep)]:
            self._contexts.pop(key).close()


class GreenBackend(Executor):
    """See the module's text and `edge.gpu.base.ComputeBackend`. mode 'work-conserving' lends no SMs, only what partitions were rounded
    up by.

    Raises EnvironmentLacking when the device, its driver or torch has no green contexts; the remedy names `lanes`.
    """

    name = "green"

    def __init__(
        self,
        *,
        index: int = 0,
        capacity_pct: int | None = None,
        mode: PacingMode = "capped",
        memory_mib: float | None = None,
        clock: Clock | None = None,
        facts: Callable[[], tuple[DeviceFacts, ...]] | None = None,
        device: GreenDevice | None = None,
    ) -> None:
        clock = clock or SystemClock()
        if capacity_pct is not None and capacity_pct > 100:
            raise EnvironmentLacking(
                f"gpus.capacity_pct is {capacity_pct}, and the backend 'green' divides one GPU",
                subject="gpus.capacity_pct",
                remedy="set it to 100 or less",
                code="capacity",
            )
        self.green = device or _real_device(index, clock=clock, memory_mib=memory_mib, facts=facts)
        super().__init__(self.green, capacity_pct=capacity_pct, mode=mode, clock=clock)

    def set_shares(self, shares_pct: Mapping[str, float]) -> None:
        """See `edge.gpu.base`. Contexts of the new partitions exist when this returns; EnvironmentLacking when the driver refuses one:
        then nothing has changed."""
        check_shares(shares_pct, self.capacity_pct)  # before contexts are made
        self.green.repartition(shares_pct)
        super().set_shares(shares_pct)

    def change_cost(self) -> ChangeCost:
        """The slowest change so far; new shares hold from each job's next iteration, nothing stops."""
        measured_s = self.green.slowest_change_s
        return ChangeCost(settle_s=CHANGE_GUESS_S if measured_s is None else measured_s)

    def close(self) -> None:
        super().close()
        self.green.close()


def _real_device(
    index: int, *, clock: Clock, memory_mib: float | None, facts: Callable[[], tuple[DeviceFacts, ...]] | None
) -> GreenDevice:
    from edge.gpu.green_driver import DriverSplitter

    missing = cuda_missing()
    if missing:
        raise EnvironmentLacking(
            f"no GPU for the backend 'green': {missing}",
            subject="gpus.backend",
            remedy="install the NVIDIA driver and a CUDA build of PyTorch, or run on the CPU",
            code="torch_cuda",
        )
    cuda = TorchCudaDevice(index)
    return GreenDevice(cuda, DriverSplitter(cuda), clock=clock, memory_mib=memory_mib, facts=facts)
