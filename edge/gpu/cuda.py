"""The thinnest seam to a CUDA device: the torch.cuda calls that `lanes` and `green` use, and nothing else. `FakeCudaDevice` beside it.

Facts this rests on (PyTorch 2.11 to 2.13 documentation, papers/salus.md section 10):
- a lower stream priority number is more urgent, and numbers out of range are clamped. torch hands out its streams from a ring of 32 per
  priority, so lanes beyond 32 would share streams: right, but no longer concurrent;
- the allocator keeps what was freed per stream: what one stream cached serves no other, until an allocation fails; then everything that
  is cached goes back to the driver, and it is tried again;
- `use_mem_pool` is thread-local and does not reach autograd's worker threads: backward passes must stay in the calling thread, or
  what they allocate escapes the pool;
- **while any thread allocates in a pool, nothing may be given back**: a pool that is destroyed then ends the process (seen on an H200:
  `captures_underway.empty() INTERNAL ASSERT FAILED`, raised in a destructor), `empty_cache` raises, and an allocation that fails is not
  tried again. So pools are for one measurement at a time, and are destroyed by `drop`, never by Python's garbage collector;
- an event's `synchronize` lets go of Python's lock; `blocking=True` makes it sleep instead of spin.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

MIB = 1024.0 * 1024.0

#: The driver wakes a thread that sleeps on an event 0.27 ms late (H200, in a virtual machine), which is much of a short iteration. So
#: from `EARLY_S` before the end is expected a thread looks by itself, so many times, and then leaves it to the driver.
EARLY_S, NAP_S, NAPS = 0.0003, 0.00005, 12

#: More urgent than anything a driver offers: clamped to the most urgent there is.
URGENT = -100

Stream = Any
Event = Any
Pool = Any


@dataclass(frozen=True, kw_only=True)
class CudaProperties:
    """name: the card's; sms: its multiprocessors; capability: (major, minor)."""

    name: str
    sms: int
    total_mib: float
    capability: tuple[int, int]
    uuid: str = ""


@dataclass(frozen=True, kw_only=True)
class PoolState:
    """reserved_mib: taken from the driver; a pool gives nothing back before it is dropped, so this is the peak of what was asked of it,
    with rounding and fragmentation. live_mib: in tensors that exist."""

    reserved_mib: float
    live_mib: float


#: What an error means: 'memory': an allocation failed, the process is sound; 'device': the context is broken, nothing on it works
#: again in this process (a sticky error: illegal address, device-side assertion, lost device).
ErrorKind = Literal["memory", "device"]


class CudaDevice(Protocol):
    """All methods may be called from any thread. Streams, events and pools are handles whose kind only the device knows."""

    index: int

    def properties(self) -> CudaProperties: ...

    def stream(self, *, urgent: bool = False) -> Stream: ...

    def pool(self) -> Pool:
        """Memory apart from all other, for one measurement. `drop` it, whatever happened."""

    def drop(self, pool: Pool) -> None:
        """Gives back what is free in it; tensors in it live on. No thread may be `inside` any pool."""

    def inside(self, stream: Stream, pool: Pool | None) -> AbstractContextManager[None]:
        """What the calling thread launches goes to `stream`, after what was launched on the default stream before; what it allocates to
        `pool` (None: what the stream has cached, or the driver), backward passes included: they run in the calling thread."""

    def mark(self, stream: Stream, again: Event | None = None) -> Event:
        """An event after everything launched on `stream` so far. again: one that nobody waits for any more, to be used once more."""

    def passed(self, event: Event) -> bool: ...

    def wait(self, event: Event, *, expected_s: float = 0.0) -> None:
        """Blocks the calling thread, not the others. Raises what went wrong on the device. expected_s: how long that will take; who is
        told right is woken sooner."""

    def seconds_between(self, start: Event, end: Event) -> float:
        """On the device's own clock; both have passed."""

    def keep_for(self, tensor: Any, stream: Stream) -> None:
        """`tensor` was made on another stream and is used on `stream`: its memory is not given away before that use has ended."""

    def live_mib(self) -> float:
        """In tensors of this process, all pools together."""

    def reserved_mib(self) -> float:
        """Taken from the driver by this process: tensors, and what is cached."""

    def pool_state(self, pool: Pool) -> PoolState: ...

    def memory_mib(self) -> tuple[float, float]:
        """(free, total) as the driver says, all processes together."""

    def give_back_cached(self) -> None:
        """What all streams have cached. No thread may be `inside` any pool."""

    def kind_of(self, error: BaseException) -> ErrorKind | None: ...


@dataclass(frozen=True, kw_only=True)
class _PoolId:
    """All that torch asks of a pool in `use_mem_pool`."""

    id: tuple[int, int]


class TorchCudaDevice:
    """A real device through torch. Not run by the tests of this repository: docs/gpu.md says what is verified and how."""

    def __init__(self, index: int = 0) -> None:
        import torch

        self.index = index
        self._torch = torch
        self._device = torch.device("cuda", index)
        # Held here and nowhere else: a reference in a frame that an exception keeps would let the garbage collector destroy a pool, in
        # any thread and at any moment.
        self._pools: dict[_PoolId, Any] = {}

    def properties(self) -> CudaProperties:
        found = self._torch.cuda.get_device_properties(self._device)
        return CudaProperties(
            name=found.name,
            sms=found.multi_processor_count,
            total_mib=found.total_memory / MIB,
            capability=(found.major, found.minor),
            uuid=str(getattr(found, "uuid", "")),
        )

    def stream(self, *, urgent: bool = False) -> Stream:
        return self._torch.cuda.Stream(self._device, priority=URGENT if urgent else 0)

    def foreign_stream(self, handle: int) -> Stream:
        """A stream that the driver made (of a green context); torch does not own it."""
        return self._torch.cuda.ExternalStream(handle, device=self._device)

    def pool(self) -> _PoolId:
        made = self._torch.cuda.MemPool()
        handle = _PoolId(id=made.id)
        self._pools[handle] = made
        return handle

    def drop(self, pool: _PoolId) -> None:
        self._pools.pop(pool, None)

    @contextmanager
    def inside(self, stream: Stream, pool: _PoolId | None) -> Iterator[None]:
        torch = self._torch
        with ExitStack() as stack:
            stack.enter_context(torch.cuda.device(self._device))
            default = torch.cuda.default_stream(self._device)
            if not default.query():
                stream.wait_stream(default)
            stack.enter_context(torch.cuda.stream(stream))
            if pool is not None:
                stack.enter_context(torch.cuda.use_mem_pool(pool, self._device))
            stack.enter_context(torch.autograd.grad_mode.set_multithreading_enabled(False))
            yield

    def mark(self, stream: Stream, again: Event | None = None) -> Event:
        event = again if again is not None else self._torch.cuda.Event(enable_timing=True, blocking=True)
        event.record(stream)
        return event

    def passed(self, event: Event) -> bool:
        return bool(event.query())

    def wait(self, event: Event, *, expected_s: float = 0.0) -> None:
        if expected_s > 0:
            time.sleep(max(0.0, expected_s - EARLY_S))
            for _ in range(NAPS):
                if event.query():
                    return
                time.sleep(NAP_S)
        event.synchronize()

    def seconds_between(self, start: Event, end: Event) -> float:
        return float(start.elapsed_time(end)) / 1000.0

    def keep_for(self, tensor: Any, stream: Stream) -> None:
        tensor.record_stream(stream)

    def live_mib(self) -> float:
        return self._bytes_of("allocated_bytes") / MIB

    def reserved_mib(self) -> float:
        return self._bytes_of("reserved_bytes") / MIB

    def _bytes_of(self, what: str) -> int:
        """`memory_allocated` and `memory_reserved` make a flat dictionary of some hundred numbers first."""
        stats = self._torch.cuda.memory_stats_as_nested_dict(self._device)
        return int(stats[what]["all"]["current"]) if stats else 0  # nothing is known before the first allocation

    def pool_state(self, pool: _PoolId) -> PoolState:
        for number in pool.id:
            # torch 2.11 gives away a reference to each of these, which it was only lent. Python's small numbers bear it; from the 257th
            # pool on the process crashes (seen on an H200). Where torch does better, a few bytes stay.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(number))
        segments = [s for s in self._torch.cuda.memory_snapshot(pool.id) if s.get("device", self.index) == self.index]
        return PoolState(
            reserved_mib=sum(s["total_size"] for s in segments) / MIB,
            live_mib=sum(s["active_size"] for s in segments) / MIB,
        )

    def memory_mib(self) -> tuple[float, float]:
        free, total = self._torch.cuda.mem_get_info(self._device)
        return free / MIB, total / MIB

    def give_back_cached(self) -> None:
        try:
            self._torch.cuda.empty_cache()
        except RuntimeError as error:
            if "captures_underway" not in str(error):
                raise
            # Somebody records a graph, which counts as allocating in a pool: later.

    def kind_of(self, error: BaseException) -> ErrorKind | None:
        if isinstance(error, self._torch.OutOfMemoryError):
            return "memory"
        accelerator_error = getattr(self._torch, "AcceleratorError", None)
        if accelerator_error is not None and isinstance(error, accelerator_error):
            return "device"
        return "device" if isinstance(error, RuntimeError) and "CUDA error" in str(error) else None


def cuda_missing() -> str:
    """Why there is no CUDA device to work on, for an operator; empty when there is one."""
    import torch

    if torch.cuda.is_available():
        return ""
    if torch.version.cuda is None:
        return "this PyTorch was built without CUDA"
    return "PyTorch finds no CUDA device (driver missing, too old, or no permission)"
