"""How much memory a job's iteration takes on a CPU: a torch dispatch mode that counts the tensor storages its thread sees.

Salus gets both classes of memory from its allocator (card, section 2). A CPU has no allocator of ours, and every job lives in one
process, so the process's size says nothing of a single job. What can be told apart is who ran the operation: dispatch modes belong to a
thread, and CPU tensors run backward in the calling thread. So, over one measured iteration,

    persistent  storages alive at its end that it made or was given: parameters, buffers, optimizer state, what it keeps
    ephemeral   most that storages it made or was given took at one moment, beyond that

Prior art: `torch.distributed._tools.mem_tracker`, which follows the same storages but wants to know the modules and optimizers; here
nothing of the job has to be known. The job's parameters are counted when its operations first use them, so what it holds and never
touches is not seen. Also not seen: numpy arrays, the scratch space inside a single operation, and runtimes that are not torch
(onnxruntime, openvino). `resident_mib` is what the operating system says of the process, for comparison.

An operation costs 10 to 20 us more while it is measured, so only some iterations are.
"""

from __future__ import annotations

import os
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from scheduler.salus.types import MemoryNeed

MIB = 2**20
#: Part of the machine's memory that jobs may hold together when the configuration does not say. The rest is for decoding, samples, the
#: database, pages, and what cannot be measured.
MEMORY_FRAC = 0.5
#: What a machine is taken for that does not say how much memory it has.
UNKNOWN_MIB = 4096.0


class Meter(Protocol):
    """One job's memory. Used by the job's thread only, except `usage`."""

    def measuring(self) -> AbstractContextManager[None]:
        """Measures the body, an iteration or a part of it."""

    def usage(self) -> MemoryNeed | None:
        """What the last measured body held and took; None before the first."""


class TensorMeter:
    """See the module's text. device_type: where the storages lie that count, 'cpu' or 'cuda'. Storages that were seen in earlier
    measured iterations and are still alive count in later ones too, also where those do not touch them."""

    def __init__(self, device_type: str = "cpu") -> None:
        self.device_type = device_type
        self._live: dict[int, int] = {}  # storage (address of its C++ object) -> bytes
        self._watchers: dict[int, weakref.ref[Any]] = {}
        self._freed: deque[int] = deque()  # a deque: storages die in any thread, and at any moment
        self._bytes = self._peak = 0
        self._usage: MemoryNeed | None = None

    @contextmanager
    def measuring(self) -> Iterator[None]:
        self.forget_dead()
        self._peak = self._bytes
        try:
            with _counting_mode()(self):
                yield
        finally:
            self.forget_dead()
            held = self._bytes
            self._usage = MemoryNeed(persistent_mib=held / MIB, ephemeral_mib=(self._peak - held) / MIB)

    def usage(self) -> MemoryNeed | None:
        return self._usage

    def see(self, storage: Any) -> None:
        """A storage that the job made or was given; again and again is fine. It may have been resized since."""
        key, n_bytes = storage._cdata, storage.nbytes()
        known = self._live.get(key)
        if known == n_bytes:
            return
        if known is None:
            self._watchers[key] = weakref.ref(storage, lambda _, key=key: self._freed.append(key))  # type: ignore[misc]
        self._live[key] = n_bytes
        self._bytes += n_bytes - (known or 0)

    def remember_peak(self) -> None:
        self._peak = max(self._peak, self._bytes)

    def forget_dead(self) -> None:
        while self._freed:
            key = self._freed.popleft()
            self._watchers.pop(key, None)
            self._bytes -= self._live.pop(key, 0)


class NoMeter:
    """For jobs whose memory nobody wants to know, and for tests of everything else."""

    def measuring(self) -> AbstractContextManager[None]:
        return nullcontext()

    def usage(self) -> MemoryNeed | None:
        return None


@cache
def _counting_mode() -> type:
    """Made on first use: torch is not needed to import this file."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Counting(TorchDispatchMode):
        def __init__(self, meter: TensorMeter) -> None:
            super().__init__()
            self._meter = meter

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            self._meter.forget_dead()  # before looking at the result: it may lie where something has just died
            for leaf in (*tree_leaves(args), *tree_leaves(kwargs), *tree_leaves(result)):
                if (
                    isinstance(leaf, torch.Tensor)
                    and leaf.device.type == self._meter.device_type
                    and leaf.layout == torch.strided
                ):
                    self._meter.see(leaf.untyped_storage())
            self._meter.remember_peak()
            return result

    return Counting


# --- the machine ------------------------------------------------------------------------------------------------------


def machine_mib() -> float:
    """Memory that this process may use: the machine's, or its container's limit if that is less; UNKNOWN_MIB where nobody says."""
    limits = [_meminfo_mib("MemTotal"), *(_number_mib(Path(name)) for name in CGROUP_LIMITS)]
    return min((limit for limit in limits if limit), default=UNKNOWN_MIB)


#: Version 2 and version 1; a limit that means "none" is larger than any machine.
CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def resident_mib() -> float | None:
    """What the process holds of the machine's memory; None where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE") / MIB


def _meminfo_mib(name: str) -> float | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    found = next((line.split() for line in lines if line.startswith(f"{name}:")), None)
    return int(found[1]) / 1024 if found and len(found) > 1 and found[1].isdigit() else None


def _number_mib(path: Path) -> float | None:
    try:
        return int(path.read_text()) / MIB
    except (OSError, ValueError):  # no such group, or 'max'
        return None
