"""How much memory a job's iteration takes on a GPU (papers/salus.md, section 10), measured while other jobs run.

The textbook way, `memory_allocated` before, `reset_peak_memory_stats`, one step, `max_memory_allocated` after, speaks of the whole
process: with neighbours in flight it charges their peak to this job. Two things are private to a job here, and both are used:

    persistent  what its thread's tensors hold at the end of the iteration (`edge.gpu.memory.TensorMeter`, a dispatch mode, which belongs
                to a thread; so the backward pass must run in that thread: `CudaDevice.inside` sees to it)
    ephemeral   what a pool made for this very iteration had to reserve, less what is alive in it at the end. A fresh pool gives nothing
                back, so its size is the peak, with the allocator's rounding and fragmentation: what must really be there

The first iteration of a job is its warm-up and runs outside every pool: lazily made optimizer state, cuDNN and cuBLAS workspaces live
as long as the job, and would be taken for something that outlives an iteration. It is measured by tensors only, so that a job is not
without numbers, and again later.

A pool is there for one measured iteration and is dropped after it; one job is measured at a time (`edge.gpu.cuda` says why). That costs
a few ms (memory from the driver and back, 10 to 20 us per operation), so it is done for a job's first readings and seldom later. In
between a *light* reading looks at the whole process, which costs microseconds: where it took more from the driver during the iteration,
or where the least it held over some readings rises, this job may be why, and its next reading is a full one.

Not seen: memory that libraries take past torch's allocator (TensorRT, ONNX Runtime, NCCL), and the CUDA context itself (several hundred
MiB); `CudaLanes.memory_mib` leaves room for them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from edge.gpu.cuda import CudaDevice, Pool, PoolState
from edge.gpu.memory import Meter
from scheduler.salus.types import MemoryNeed

#: Iterations that are measured without a pool, see above.
WARM_UP_ITERATIONS = 1
#: So many readings in full at first, the warm-up's among them; the next is number FULL_AGAIN, then its square, its cube. One costs 40 ms
#: on an H200 where an iteration takes a gigabyte, nearly all of it the driver's.
FULL_READINGS, FULL_AGAIN = 3, 8
#: What the process holds swings with its neighbours' iterations; the least of so many light readings does not.
FLOOR_READINGS = 2
#: Rises of that least, and growths of what was taken from the driver, that are none.
RISE_MIB = 1.0
#: What stays free of a device, as Salus does (card, section 7): capacity = free memory - 300 MiB.
SPARED_MIB = 300.0


class CudaMemoryMeter:
    """One job's memory. Used by the job's thread, `usage` from anywhere. cuda: the seam; tensors: the meter of its tensors."""

    def __init__(self, cuda: CudaDevice, tensors: Meter) -> None:
        self._cuda = cuda
        self._tensors = tensors
        self._iterations = 0
        self._readings = 0
        self._full_again = FULL_AGAIN
        self._suspect = False  # it may take or hold more than it did
        self._light = False  # the iteration in flight is read lightly
        self._reserved_mib = 0.0  # by the process, when the iteration began
        self._held_mib: list[float] = []  # by the process, at up to FLOOR_READINGS light readings
        self._floor_mib = math.inf  # the least of as many before those
        self._usage: MemoryNeed | None = None

    @property
    def warming_up(self) -> bool:
        """The next iteration is to run outside every pool."""
        return self._iterations < WARM_UP_ITERATIONS

    @property
    def in_full(self) -> bool:
        """The next reading is to be in full, in a pool of its own unless it is the warm-up's."""
        return self._suspect or self._readings < FULL_READINGS or self._readings == self._full_again

    @contextmanager
    def measuring(self, pool: Pool | None) -> Iterator[None]:
        """Around the body of an iteration that allocates from `pool`, made for it. None: a light reading, a warm-up, or one that could
        not have a pool. What it took is read later, when the device is done: `read`."""
        self._reserved_mib, self._light = self._cuda.reserved_mib(), not self.in_full
        with nullcontext() if self._light else self._tensors.measuring():
            yield

    def read(self, pool: Pool | None) -> None:
        """What the iteration took is in `usage` from now on."""
        if self._readings == self._full_again:
            self._full_again *= FULL_AGAIN
        self._readings += 1
        if self._light:
            self._suspect = self._grew()
            return
        before, found = self._usage, self._tensors.usage()
        self._usage = _more_of(found, before) if pool is None else self._in_pool(self._cuda.pool_state(pool), found)
        # A job that leaks is measured in full until it does not.
        self._suspect = before is not None and self._usage is not None and self._usage.persistent_mib > before.persistent_mib

    @staticmethod
    def _in_pool(state: PoolState, tensors: MemoryNeed | None) -> MemoryNeed:
        held_mib = max(state.live_mib, tensors.persistent_mib if tensors is not None else 0.0)
        return MemoryNeed(persistent_mib=held_mib, ephemeral_mib=max(0.0, state.reserved_mib - state.live_mib))

    def counted(self) -> None:
        """An iteration has ended."""
        self._iterations += 1

    def usage(self) -> MemoryNeed | None:
        """Of the last measured iteration; None before the first."""
        return self._usage

    def _grew(self) -> bool:
        """Whether the process took more from the driver meanwhile, or holds more than it did some readings ago."""
        took = self._cuda.reserved_mib() > self._reserved_mib + RISE_MIB
        self._held_mib.append(self._cuda.live_mib())
        if len(self._held_mib) < FLOOR_READINGS:
            return took
        floor_mib, self._held_mib = min(self._held_mib), []
        rose, self._floor_mib = floor_mib > self._floor_mib + RISE_MIB, floor_mib
        return took or rose


def _more_of(found: MemoryNeed | None, known: MemoryNeed | None) -> MemoryNeed | None:
    """Tensors alone say less of what an iteration takes than a pool did before."""
    if found is None or known is None:
        return found or known
    return MemoryNeed(persistent_mib=found.persistent_mib, ephemeral_mib=max(found.ephemeral_mib, known.ephemeral_mib))
