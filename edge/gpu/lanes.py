"""The CPU backend of `edge.gpu.base`: one thread per job, shares kept by pacing iterations. 100 pct = one core's time.

Each job runs in its own thread. The core (`edge.gpu.executor`) lets it start an iteration when its memory has a lane and its token
bucket is not in debt, and charges the *CPU time of that thread*: waiting for a lock, a core or a disk is not compute and costs nothing.
No root, no cgroup, no second process. This file says what a CPU is.

What it cannot do, and what to do about it:
- Work done by *other* threads for the job (OpenMP teams, `DataLoader` workers) is not seen. Jobs use one thread:
  `torch.set_num_threads(1)`. The backward pass of CPU tensors runs in the calling thread, so it is charged.
- One thread cannot use more than one core: a share above 100 pct is accepted and cannot be received. Nor can jobs that share a memory
  lane receive more than one core together, for their iterations run one after the other.
- A piece that cannot be split is not interrupted: it runs into debt. Long passes call `Lane.checkpoint` between
  layers. See `scheduler.pacing` for what this means for a 10 s span.
- When the machine is too busy to deliver, tokens are kept up to `burst_s`; promise less than the machine has.
- What a job's iteration takes of memory is measured, not limited: `edge.gpu.memory` says what can be seen.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType

from configs.machine import usable_cores as usable_cores
from edge.clock import Clock, SystemClock
from edge.gpu.base import DeviceFacts, Role
from edge.gpu.device import Seat
from edge.gpu.executor import HUNG_S, Executor
from edge.gpu.memory import MEMORY_FRAC, Meter, TensorMeter, machine_mib, resident_mib
from scheduler.pacing import PacingMode
from scheduler.salus.types import MemoryNeed

#: Most memory lanes under the policy `plan`. Iterations in different lanes run at the same time, and the operating system shares the
#: cores; a cap keeps many small lanes from taking the memory that later jobs need for good (card, example T3).
MAX_LANES = 32


class CpuSeat:
    """A job's thread and its meter; see `edge.gpu.device.Seat`."""

    def __init__(self, clock: Clock, meter: Meter) -> None:
        self._clock = clock
        self._meter = meter
        # (CPU seconds of iterations that are over, thread inside one, its clock at the start), replaced at once: others read it
        self._state: tuple[float, int | None, float] = (0.0, None, 0.0)

    def iteration(self, lane: int | None, *, measure: bool) -> AbstractContextManager[None]:
        return _Timed(self, self._meter.measuring() if measure else None)

    def _starts(self) -> None:
        self._state = (self._state[0], threading.get_ident(), self._clock.thread_cpu_s())

    def _ends(self) -> None:
        before_s, _, started_s = self._state
        self._state = (before_s + self._clock.thread_cpu_s() - started_s, None, 0.0)

    def beside(self) -> AbstractContextManager[None]:
        return _Beside(self)

    def settle(self) -> None:
        """A CPU has done what it was told to do."""

    def resume(self) -> None:
        """A thread that waited used no CPU time."""

    def used_s(self) -> float:
        before_s, thread_id, started_s = self._state
        if thread_id is None:
            return before_s
        try:
            # Never less than before: a kernel was seen to say that another thread's time is negative, once in a thousand runs.
            return before_s + max(0.0, self._clock.thread_cpu_s(thread_id) - started_s)
        except OSError:  # it has just ended; the next reading is right
            return before_s

    def usage(self) -> MemoryNeed | None:
        return self._meter.usage()

    def close(self) -> None:
        """Nothing is held."""


class _Timed:
    """The body of an iteration on a CPU, measured if there is a `meter`. Written out, because a generator costs twice as much."""

    __slots__ = ("_meter", "_seat")

    def __init__(self, seat: CpuSeat, meter: AbstractContextManager[None] | None) -> None:
        self._seat, self._meter = seat, meter

    def __enter__(self) -> None:
        self._seat._starts()
        if self._meter is None:
            return
        try:
            self._meter.__enter__()
        except BaseException:
            self._seat._ends()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        try:
            return None if self._meter is None else self._meter.__exit__(kind, error, trace)
        finally:
            self._seat._ends()


class _Beside:
    """A part of an iteration that is not the job's."""

    __slots__ = ("_seat",)

    def __init__(self, seat: CpuSeat) -> None:
        self._seat = seat

    def __enter__(self) -> None:
        self._seat._ends()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._seat._starts()


class CpuDevice:
    """The cores and the memory that this process may use; see `edge.gpu.device.Device`."""

    name = "cpu"
    job_max_pct = 100.0
    measures_always = False
    promised_mib = 0.0

    def __init__(self, *, clock: Clock, meter: Callable[[], Meter] = TensorMeter) -> None:
        self.parallel = usable_cores()
        self.capacity_pct = 100 * self.parallel
        self.memory_mib = MEMORY_FRAC * machine_mib()
        self._clock = clock
        self._meter = meter

    def seat(self, job: str, role: Role) -> Seat:
        return CpuSeat(self._clock, self._meter())

    def used_mib(self) -> float | None:
        return resident_mib()

    def facts(self) -> tuple[DeviceFacts, ...]:
        return ()


class LaneBackend(Executor):
    """`edge.gpu.executor.Executor` on a CPU. capacity_pct: what may be promised (None: all cores the process may use; leave room for
    decoding and the pages). memory_mib: what the jobs may hold together (None: `edge.gpu.memory.MEMORY_FRAC` of the machine's memory).
    The rest: as there."""

    def __init__(
        self,
        *,
        capacity_pct: int | None = None,
        mode: PacingMode = "capped",
        policy: str = "plan",
        burst_s: float = 0.25,
        memory_mib: float | None = None,
        max_lanes: int | None = None,
        hung_s: float = HUNG_S,
        infer_width: int | None = None,
        clock: Clock | None = None,
        meter: Callable[[], Meter] = TensorMeter,
    ) -> None:
        clock = clock or SystemClock()
        super().__init__(
            CpuDevice(clock=clock, meter=meter), capacity_pct=capacity_pct, mode=mode, policy=policy, burst_s=burst_s,
            memory_mib=memory_mib, max_lanes=max_lanes or (MAX_LANES if policy == "plan" else None), hung_s=hung_s,
            infer_width=infer_width, clock=clock,
        )  # fmt: skip
