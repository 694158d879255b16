"""The thinnest seam to a CUDA device: the torch.cuda calls that `lanes` and `green` use, and nothing else. `FakeCudaDevice` beside it.

Facts this rests on (PyTorch 2.11 to 2.13 documentation, papers/salus.md section 10):
- a lower stream priority number is more urgent, and numbers out of range are clamped. torch hands out its streams from a ring of 32 per
  priority, so lanes beyond 32 would share streams: right, but no longer concurrent;
- `use_mem_pool` is thread-local and does not reach autograd's worker threads: backward passes must stay in the calling thread, or
  what they allocate escapes the lane's pool;
- an event's `synchronize` lets go of Python's lock; `blocking=True` makes it sleep instead of spin;
- there is no per-pool limit; a pool's cached blocks go back to the driver only when the pool is dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

MIB = 1024.0 * 1024.0

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
    """reserved_mib: taken from the driver, which a fresh pool never gives back, so the peak of what was asked of it (with rounding and
    fragmentation); live_mib: in tensors that exist."""

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

    def pool(self) -> Pool: ...

    def inside(self, stream: Stream, pool: Pool | None) -> AbstractContextManager[None]:
        """What the calling thread launches goes to `stream`, after what was launched on the default stream before; what it allocates to
        `pool` (None: the default one), backward passes included: they run in the calling thread."""

    def mark(self, stream: Stream) -> Event:
        """An event after everything launched on `stream` so far."""

    def passed(self, event: Event) -> bool: ...

    def wait(self, event: Event) -> None:
        """Blocks the calling thread, not the others. Raises what went wrong on the device."""

    def seconds_between(self, start: Event, end: Event) -> float:
        """On the device's own clock; both have passed."""

    def keep_for(self, tensor: Any, stream: Stream) -> None:
        """`tensor` was made on another stream and is used on `stream`: its memory is not given away before that use has ended."""

    def live_mib(self) -> float:
        """In tensors of this process, all pools together."""

    def pool_state(self, pool: Pool) -> PoolState: ...

    def memory_mib(self) -> tuple[float, float]:
        """(free, total) as the driver says, all processes together."""

    def give_back_cached(self) -> None: ...

    def kind_of(self, error: BaseException) -> ErrorKind | None: ...


class TorchCudaDevice:
    """A real device through torch. Not run by the tests of this repository: docs/gpu.md says what is verified and how."""

    def __init__(self, index: int = 0) -> None:
        import torch

        self.index = index
        self._torch = torch
        self._device = torch.device("cuda", index)

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

    def pool(self) -> Pool:
        return self._torch.cuda.MemPool()

    @contextmanager
    def inside(self, stream: Stream, pool: Pool | None) -> Iterator[None]:
        torch = self._torch
        with ExitStack() as stack:
            stack.enter_context(torch.cuda.device(self._device))
            stream.wait_stream(torch.cuda.default_stream(self._device))
            stack.enter_context(torch.cuda.stream(stream))
            if pool is not None:
                stack.enter_context(torch.cuda.use_mem_pool(pool, self._device))
            stack.enter_context(torch.autograd.grad_mode.set_multithreading_enabled(False))
            yield

    def mark(self, stream: Stream) -> Event:
        event = self._torch.cuda.Event(enable_timing=True, blocking=True)
        event.record(stream)
        return event

    def passed(self, event: Event) -> bool:
        return bool(event.query())

    def wait(self, event: Event) -> None:
        event.synchronize()

    def seconds_between(self, start: Event, end: Event) -> float:
        return float(start.elapsed_time(end)) / 1000.0

    def keep_for(self, tensor: Any, stream: Stream) -> None:
        tensor.record_stream(stream)

    def live_mib(self) -> float:
        return self._torch.cuda.memory_allocated(self._device) / MIB

    def pool_state(self, pool: Pool) -> PoolState:
        segments = [s for s in self._torch.cuda.memory_snapshot(pool.id) if s.get("device", self.index) == self.index]
        return PoolState(
            reserved_mib=sum(s["total_size"] for s in segments) / MIB,
            live_mib=sum(s["active_size"] for s in segments) / MIB,
        )

    def memory_mib(self) -> tuple[float, float]:
        free, total = self._torch.cuda.mem_get_info(self._device)
        return free / MIB, total / MIB

    def give_back_cached(self) -> None:
        self._torch.cuda.empty_cache()

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
