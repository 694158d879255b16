"""How much memory a job's iteration takes on a GPU (papers/salus.md, section 10), measured while other jobs run.

The textbook way, `memory_allocated` before, `reset_peak_memory_stats`, one step, `max_memory_allocated` after, speaks of the whole
process: with neighbours in flight it charges their peak to this job. Two things are private to a job here, and both are used:

    persistent  what its thread's tensors hold at the end of the iteration (`edge.gpu.memory.TensorMeter`, a dispatch mode, which belongs
                to a thread; so the backward pass must run in that thread: `CudaDevice.inside` sees to it)
    ephemeral   what a pool made for this very iteration had to reserve, less what is alive in it at the end. A fresh pool gives nothing
                back, so its size is the peak, with the allocator's rounding and fragmentation: what must really be there

The first iteration of a job is its warm-up and runs outside every pool: lazily made optimizer state, cuDNN and cuBLAS workspaces live
as long as the job, and in a lane's pool they would make it outlive its iterations (card: S4 would never hold). It is measured by tensors
only, so that a job is not without numbers, and again later.

That costs a few ms (a new pool, 10 to 20 us per operation), so it is done for a job's first iterations and seldom later. In between a
*light* reading only looks whether the lane's pool grew in this iteration, which means that the job took more than anything before, and
whether something outlived it there, which makes the next readings full ones until the job holds no more than before.

Not seen: memory that libraries take past torch's allocator (TensorRT engines, NCCL), and the CUDA context itself (several hundred MiB);
`CudaLanes.memory_mib` leaves room for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from edge.gpu.cuda import CudaDevice, Pool, PoolState
from edge.gpu.memory import Meter
from scheduler.salus.types import MemoryNeed

#: Iterations that run outside the lane's pool, see above.
WARM_UP_ITERATIONS = 1
#: So many readings in full at first, then one in so many.
FULL_READINGS, FULL_PERIOD = 4, 8
#: What stays free of a device, as Salus does (card, section 7): capacity = free memory - 300 MiB.
SPARED_MIB = 300.0


class CudaMemoryMeter:
    """One job's memory. Used by the job's thread, `usage` from anywhere. cuda: the seam; tensors: the meter of its tensors."""

    def __init__(self, cuda: CudaDevice, tensors: Meter) -> None:
        self._cuda = cuda
        self._tensors = tensors
        self._iterations = 0
        self._readings = 0
        self._suspect = False  # something outlived an iteration
        self._before = PoolState(reserved_mib=0.0, live_mib=0.0)
        self._usage: MemoryNeed | None = None

    @property
    def warming_up(self) -> bool:
        """The next iteration is to run outside the lane's pool."""
        return self._iterations < WARM_UP_ITERATIONS

    @property
    def in_full(self) -> bool:
        """The next reading is to be in full, in a pool of its own."""
        return self._suspect or self._readings < FULL_READINGS or self._readings % FULL_PERIOD == 0

    @contextmanager
    def measuring(self, pool: Pool | None) -> Iterator[None]:
        """Around the body of an iteration that allocates from `pool` (None: a warm-up), a new one when the reading is `in_full`. The
        pool is read later, when the device is done: `read`."""
        self._before = PoolState(reserved_mib=0.0, live_mib=0.0) if pool is None else self._cuda.pool_state(pool)
        if not self.in_full:
            yield
            return
        with self._tensors.measuring():
            yield

    def read(self, pool: Pool | None) -> bool:
        """What the iteration took is in `usage` from now on. Returns whether tensors outlive it in its pool: they are persistent, so the
        pool is to be dropped (it lives on for them) and is no longer a lane's."""
        in_full = self.in_full
        self._readings += 1
        if pool is None:
            self._usage = self._tensors.usage()
            return False
        state = self._cuda.pool_state(pool)
        taken_mib = max(0.0, state.reserved_mib - state.live_mib)
        before = self._usage
        if in_full or before is None:
            found = self._tensors.usage()
            held_mib = max(state.live_mib, found.persistent_mib if found is not None else 0.0)
            self._suspect = before is not None and held_mib > before.persistent_mib
            self._usage = MemoryNeed(persistent_mib=held_mib, ephemeral_mib=taken_mib)
            return state.live_mib > 0
        self._suspect = state.live_mib > self._before.live_mib
        if state.reserved_mib > self._before.reserved_mib:
            self._usage = MemoryNeed(persistent_mib=before.persistent_mib, ephemeral_mib=max(before.ephemeral_mib, taken_mib))
        return state.live_mib > 0

    def counted(self) -> None:
        """An iteration has ended."""
        self._iterations += 1

    def usage(self) -> MemoryNeed | None:
        """Of the last measured iteration; None before the first."""
        return self._usage
