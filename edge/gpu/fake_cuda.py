"""A CUDA device that is not there: streams, events, kernels and memory in virtual time, beside the real seam (`edge.gpu.cuda`).

For tests of everything above the seam, and for trying policies without a GPU. Jobs run as real threads on a `FakeClock`; instead of
launching kernels they call `compute`, which returns after `launch_s`, long before the kernel has run: a network's worth of launches.

The model: kernels of one stream run one after another. Kernels of several streams share the device: urgent streams first, then equally
within a class, none beyond what it can fill (`fills_frac`) or its partition allows. That is fluid, so it has none of a real device's
granularity: a block that runs is not interrupted for an urgent one. Memory: tensors are counted in MiB. What was freed stays with the
stream that used it, or with its pool, until it is given back; an allocation beyond the device gives everything back first, then fails.
As on a real device, nothing may be given back while a thread allocates in a pool: that is an AssertionError here, and there the end of
the process.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from configs.errors import EnvironmentLacking
from edge.clock import FakeClock
from edge.gpu.cuda import CudaProperties, ErrorKind, PoolState
from scheduler.salus.types import MemoryNeed

_EPSILON_S = 1e-12
#: What is more than this of a free block is kept apart when the rest is taken.
SPLIT_MIB = 1.0


class FakeOutOfMemory(RuntimeError):
    """What torch.OutOfMemoryError is to a real device."""


class FakeDeviceLost(RuntimeError):
    """A sticky error: from now on every call fails."""


@dataclass(kw_only=True, eq=False)
class FakeEvent:
    at_s: float | None = None


@dataclass(kw_only=True, eq=False)
class _Kernel:
    left_s: float
    fills_frac: float


@dataclass(kw_only=True, eq=False)
class FakeStream:
    """sms: of the partition it belongs to, None: the whole device. partition: streams with the same one share its SMs."""

    number: int
    urgent: bool = False
    sms: int | None = None
    partition: tuple[int, ...] = ()
    queue: deque[_Kernel | FakeEvent] = field(default_factory=deque)

    def head(self) -> _Kernel | None:
        return self.queue[0] if self.queue and isinstance(self.queue[0], _Kernel) else None


@dataclass(kw_only=True, eq=False)
class _Block:
    """A piece of a segment, and its neighbours there."""

    mib: float
    free: bool = True
    before: _Block | None = None
    after: _Block | None = None

    @property
    def is_whole(self) -> bool:
        """All of its segment."""
        return self.before is None and self.after is None


class _Book:
    """What a stream or a pool has of the driver, as torch's allocator keeps it: the smallest free block that is large enough is taken,
    and what remains of it stays in its segment; a segment of which anything is used stays. closed: it keeps nothing that is free."""

    def __init__(self, memory: _Memory) -> None:
        self.memory = memory
        self.live_mib = 0.0
        self.closed = False
        self._blocks: list[_Block] = []

    @property
    def reserved_mib(self) -> float:
        return sum(block.mib for block in self._blocks)

    def take(self, mib: float) -> _Block:
        block = self._fitting(mib)
        if block is None:
            self.memory.reserve(mib)
            block = _Block(mib=mib)
            self._blocks.append(block)
        if block.mib - mib > SPLIT_MIB:
            self._split(block, mib)
        block.free = False
        self._live(block.mib)
        return block

    def free(self, block: _Block) -> None:
        block.free = True
        self._live(-block.mib)
        for left, right in ((block, block.after), (block.before, block)):
            if left is not None and right is not None and left.free and right.free:
                self._join(left, right)
        if self.closed:
            self.give_back()

    def close(self) -> None:
        self.closed = True
        self.give_back()

    def give_back(self) -> None:
        self.memory.reserved_mib -= sum(block.mib for block in self._blocks if block.free and block.is_whole)
        self._blocks = [block for block in self._blocks if not (block.free and block.is_whole)]

    def _fitting(self, mib: float) -> _Block | None:
        return min(
            (block for block in self._blocks if block.free and block.mib >= mib - 1e-9), key=lambda b: b.mib, default=None
        )

    def _split(self, block: _Block, mib: float) -> None:
        rest = _Block(mib=block.mib - mib, before=block, after=block.after)
        if block.after is not None:
            block.after.before = rest
        block.after, block.mib = rest, mib
        self._blocks.append(rest)

    def _join(self, left: _Block, right: _Block) -> None:
        """The left one grows by the right one, which is no more."""
        left.mib, left.after = left.mib + right.mib, right.after
        if right.after is not None:
            right.after.before = left
        self._blocks.remove(right)

    def _live(self, mib: float) -> None:
        self.live_mib = round(self.live_mib + mib, 9)
        self.memory.live_mib += mib


class FakePool:
    """Reserves what it needs and keeps it until it is dropped; tensors in it live on."""

    def __init__(self, memory: _Memory) -> None:
        self.book = _Book(memory)

    @property
    def reserved_mib(self) -> float:
        return self.book.reserved_mib

    @property
    def live_mib(self) -> float:
        return self.book.live_mib


class _Memory:
    def __init__(self, total_mib: float) -> None:
        self.total_mib = total_mib
        self.reserved_mib = 0.0
        self.live_mib = 0.0
        self.most_mib = 0.0
        self.caches: dict[FakeStream, FakePool] = {}
        self.in_pools = 0  # threads that allocate in one
        self.pools_made = 0

    def cache_of(self, stream: FakeStream) -> FakePool:
        return self.caches.setdefault(stream, FakePool(self))

    def give_back(self) -> None:
        assert not self.in_pools, "given back while a thread allocates in a pool: the end of a real process"
        for cache in self.caches.values():
            cache.book.give_back()

    def reserve(self, mib: float) -> None:
        if self.reserved_mib + mib > self.total_mib + 1e-6 and not self.in_pools:
            self.give_back()
        if self.reserved_mib + mib > self.total_mib + 1e-6:
            raise FakeOutOfMemory(f"tried to allocate {mib:g} MiB, {self.total_mib - self.reserved_mib:g} MiB are free")
        self.reserved_mib += mib
        self.most_mib = max(self.most_mib, self.reserved_mib)


class FakeTensor:
    """A number of MiB in a pool, until `free` is called."""

    def __init__(self, pool: FakePool, mib: float, made_by: dict[int, tuple[float, float]]) -> None:
        self.mib = mib
        self._book: _Book | None = pool.book
        self._made_by, self._thread = made_by, threading.get_ident()
        self._block = pool.book.take(mib)
        made_by[self._thread] = made_by.get(self._thread, (0.0, 0.0))
        self._count(mib)

    def _count(self, mib: float) -> None:
        now_mib, most_mib = self._made_by[self._thread]
        self._made_by[self._thread] = (now_mib + mib, max(most_mib, now_mib + mib))

    def free(self) -> None:
        if self._book is not None:
            self._book.free(self._block)
            self._book = None
            self._count(-self.mib)


class FakeCudaDevice:
    """See the module's text and `edge.gpu.cuda.CudaDevice`. Thread-safe."""

    def __init__(
        self,
        clock: FakeClock,
        *,
        index: int = 0,
        name: str = "Fake GPU",
        sms: int = 132,
        total_mib: float = 16_384.0,
        capability: tuple[int, int] = (9, 0),
        launch_s: float = 0.002,
    ) -> None:
        self.index = index
        self._clock = clock
        self._launch_s = launch_s
        self._properties = CudaProperties(
            name=name, sms=sms, total_mib=total_mib, capability=capability, uuid=f"GPU-fake-{index}"
        )
        self._changed = threading.Condition()
        self._streams: weakref.WeakSet[FakeStream] = weakref.WeakSet()
        self._numbers = 0
        self._now_s = clock.monotonic_s()
        self._memory = _Memory(total_mib)
        self._here = threading.local()
        self._made_by: dict[int, tuple[float, float]] = {}  # thread -> (MiB now, most since it was last asked)
        self._lost = False
        self.kept: list[tuple[Any, FakeStream]] = []

    # --- the seam -----------------------------------------------------------------------------------------------------

    def properties(self) -> CudaProperties:
        return self._properties

    def stream(self, *, urgent: bool = False) -> FakeStream:
        return self.partition_stream((), None, urgent=urgent)

    def partition_stream(self, partition: tuple[int, ...], sms: int | None, *, urgent: bool) -> FakeStream:
        with self._changed:
            self._numbers += 1
            stream = FakeStream(number=self._numbers, urgent=urgent, sms=sms, partition=partition)
            self._streams.add(stream)
            return stream

    def pool(self) -> FakePool:
        self._memory.pools_made += 1
        return FakePool(self._memory)

    def drop(self, pool: FakePool) -> None:
        with self._changed:
            assert not self._memory.in_pools, "a pool is destroyed while a thread allocates in one: the end of a real process"
            pool.book.close()

    @contextmanager
    def inside(self, stream: FakeStream, pool: FakePool | None) -> Iterator[None]:
        before = getattr(self._here, "place", None)
        self._here.place = (stream, pool or self._memory.cache_of(stream))
        with self._changed:
            self._memory.in_pools += pool is not None
        try:
            yield
        finally:
            self._here.place = before
            with self._changed:
                self._memory.in_pools -= pool is not None

    def mark(self, stream: FakeStream, again: FakeEvent | None = None) -> FakeEvent:
        with self._changed:
            event = again or FakeEvent()
            event.at_s = None
            self._enqueue(stream, event)
            return event

    def passed(self, event: FakeEvent) -> bool:
        with self._changed:
            self._advance()
            return event.at_s is not None

    def wait(self, event: FakeEvent, *, expected_s: float = 0.0) -> None:
        with self._changed:
            while True:
                self._require_sound()
                self._advance()
                if event.at_s is not None:
                    return
                self._clock.wait(self._changed, self._next_change_s())

    def seconds_between(self, start: FakeEvent, end: FakeEvent) -> float:
        assert start.at_s is not None, "an event that has not passed has no time"
        assert end.at_s is not None, "an event that has not passed has no time"
        return end.at_s - start.at_s

    def keep_for(self, tensor: Any, stream: FakeStream) -> None:
        self.kept.append((tensor, stream))

    def live_mib(self) -> float:
        return self._memory.live_mib

    def reserved_mib(self) -> float:
        return self._memory.reserved_mib

    def pool_state(self, pool: FakePool) -> PoolState:
        return PoolState(reserved_mib=pool.reserved_mib, live_mib=pool.live_mib)

    def memory_mib(self) -> tuple[float, float]:
        return self._memory.total_mib - self._memory.reserved_mib, self._memory.total_mib

    def give_back_cached(self) -> None:
        with self._changed:
            self._memory.give_back()

    def kind_of(self, error: BaseException) -> ErrorKind | None:
        if isinstance(error, FakeOutOfMemory):
            return "memory"
        return "device" if isinstance(error, FakeDeviceLost) else None

    # --- what jobs do -------------------------------------------------------------------------------------------------

    def compute(self, compute_s: float, *, fills_frac: float = 1.0) -> None:
        """Launches a kernel of `compute_s` seconds of the whole device on the thread's stream. fills_frac: most of the device it can
        use; so it takes compute_s / fills_frac at least."""
        stream, _ = self._place()
        with self._changed:
            self._require_sound()
            self._enqueue(stream, _Kernel(left_s=compute_s, fills_frac=fills_frac))
        self._clock.sleep(self._launch_s)

    def allocate(self, mib: float) -> FakeTensor:
        """FakeOutOfMemory when the device is full."""
        _, pool = self._place()
        with self._changed:
            self._require_sound()
            return FakeTensor(pool, mib, self._made_by)

    def made_here_mib(self) -> tuple[float, float]:
        """In tensors that the calling thread made and nobody freed: (now, most since the last time it asked)."""
        now_mib, most_mib = self._made_by.get(threading.get_ident(), (0.0, 0.0))
        self._made_by[threading.get_ident()] = (now_mib, now_mib)
        return now_mib, most_mib

    def lose(self) -> None:
        """An illegal address somewhere: from now on everything fails."""
        with self._changed:
            self._lost = True
            self._clock.notify_all(self._changed)

    @property
    def pools_made(self) -> int:
        return self._memory.pools_made

    @property
    def most_mib(self) -> float:
        """The most that was reserved at one moment."""
        return self._memory.most_mib

    # --- time (lock held) ---------------------------------------------------------------------------------------------

    def _place(self) -> tuple[FakeStream, FakePool]:
        place = getattr(self._here, "place", None)
        if place is None:
            raise RuntimeError("the thread is not inside a stream")
        return place

    def _require_sound(self) -> None:
        if self._lost:
            raise FakeDeviceLost("CUDA error: an illegal memory access was encountered")

    def _enqueue(self, stream: FakeStream, item: _Kernel | FakeEvent) -> None:
        self._advance()
        stream.queue.append(item)
        self._pass_events(stream)
        self._clock.notify_all(self._changed)  # others are slower from now on

    def _advance(self) -> None:
        """Lets the kernels run up to the clock's time."""
        now_s = self._clock.monotonic_s()
        while self._now_s < now_s:
            rates = self._rates()
            step_s = min(now_s - self._now_s, self._until_first_end_s(rates))
            self._now_s += step_s
            for stream, rate in rates.items():
                kernel = _head(stream)
                kernel.left_s -= rate * step_s
                if kernel.left_s <= _EPSILON_S:
                    stream.queue.popleft()
                    self._pass_events(stream)
            if not rates:
                self._now_s = now_s
        self._now_s = now_s

    def _next_change_s(self) -> float | None:
        rates = self._rates()
        return self._until_first_end_s(rates) if rates else None

    def _until_first_end_s(self, rates: dict[FakeStream, float]) -> float:
        ends = [_head(stream).left_s / rate for stream, rate in rates.items() if rate > 0]
        return max(min(ends, default=float("inf")), _EPSILON_S)

    def _pass_events(self, stream: FakeStream) -> None:
        while stream.queue and isinstance(event := stream.queue[0], FakeEvent):
            event.at_s = self._now_s
            stream.queue.popleft()

    def _rates(self) -> dict[FakeStream, float]:
        """Which part of the device each stream with work has now."""
        busy = sorted((s for s in self._streams if s.head() is not None), key=lambda s: s.number)
        rates: dict[FakeStream, float] = {}
        for partition in sorted({s.partition for s in busy if s.sms is not None}):
            members = [s for s in busy if s.partition == partition and s.sms is not None]
            sms = members[0].sms
            assert sms is not None
            rates.update(_share_out(members, sms / self._properties.sms))
        whole = [s for s in busy if s.sms is None]
        rates.update(_share_out(whole, max(0.0, 1.0 - sum(rates.values()))))
        return rates


def _share_out(streams: list[FakeStream], capacity: float) -> dict[FakeStream, float]:
    rates: dict[FakeStream, float] = {}
    for urgent in (True, False):
        waiting = [s for s in streams if s.urgent == urgent]
        while waiting:
            each = capacity / len(waiting)
            full = [s for s in waiting if _fills(s) <= each]
            for stream in full or waiting:
                rates[stream] = min(_fills(stream), each)
            capacity = max(0.0, capacity - sum(rates[stream] for stream in full or waiting))
            waiting = [s for s in waiting if s not in rates]
    return rates


def _head(stream: FakeStream) -> _Kernel:
    kernel = stream.head()
    assert kernel is not None, f"stream {stream.number} has nothing to do"
    return kernel


def _fills(stream: FakeStream) -> float:
    return _head(stream).fills_frac


class FakeSplitter:
    """SM groups of the fake device; see `edge.gpu.green.SmSplitter`. refuse: why contexts cannot be made from now on."""

    def __init__(self, cuda: FakeCudaDevice, *, groups: int = 16, group_sms: int = 8) -> None:
        self._cuda = cuda
        self.count, self.group_sms = groups, group_sms
        self.alive: set[tuple[int, ...]] = set()
        self.made = 0
        self.refuse = ""

    def groups(self) -> tuple[int, int]:
        return self.count, self.group_sms

    def make(self, groups: tuple[int, ...], *, urgent: bool) -> FakePartition:
        if self.refuse:
            raise EnvironmentLacking(self.refuse, subject="green", remedy="use lanes")
        self.made += 1
        return FakePartition(self, groups, self._cuda.partition_stream(groups, len(groups) * self.group_sms, urgent=urgent))


class FakePartition:
    def __init__(self, splitter: FakeSplitter, groups: tuple[int, ...], stream: FakeStream) -> None:
        self.stream = stream
        self.closed = False
        self._splitter, self._groups = splitter, groups
        splitter.alive.add(groups)

    def close(self) -> None:
        assert not self.stream.queue, "a context is closed while its stream has work"
        self.closed = True
        self._splitter.alive.discard(self._groups)


class FakeTensorMeter:
    """What `edge.gpu.memory.TensorMeter` is to torch: tensors that the measured thread made and that are alive, on `cuda`, and those
    that are said to be (`held_mib`: made elsewhere, weights say)."""

    def __init__(self, cuda: FakeCudaDevice | None = None) -> None:
        self.held_mib = 0.0
        self._cuda = cuda
        self._usage: MemoryNeed | None = None

    @contextmanager
    def measuring(self) -> Iterator[None]:
        if self._cuda is not None:
            self._cuda.made_here_mib()
        yield
        now_mib, most_mib = self._cuda.made_here_mib() if self._cuda is not None else (0.0, 0.0)
        self._usage = MemoryNeed(persistent_mib=self.held_mib + now_mib, ephemeral_mib=most_mib - now_mib)

    def usage(self) -> MemoryNeed | None:
        return self._usage
