"""The CPU backend of `edge.gpu.base`: one thread per job, shares kept by pacing iterations. 100 pct = one core's time.

Each job runs in its own thread. A lane lets its thread start a piece of work when the job's token bucket is not in debt, and
charges the *CPU time of that thread*: waiting for a lock, a core or a disk is not compute and costs nothing. All arithmetic is
in `scheduler.pacing`; this file holds the lock, the threads' clocks and the waiting. No root, no cgroup, no second process.

What it cannot do, and what to do about it:
- Work done by *other* threads for the job (OpenMP teams, `DataLoader` workers) is not seen. Jobs use one thread:
  `torch.set_num_threads(1)`. The backward pass of CPU tensors runs in the calling thread, so it is charged.
- One thread cannot use more than one core: a share above 100 pct is accepted and cannot be received.
- A piece that cannot be split is not interrupted: it runs into debt. Long forward passes call `Lane.checkpoint` between
  layers. See `scheduler.pacing` for what this means for a 10 s span.
- When the machine is too busy to deliver, tokens are kept up to `burst_s`; promise less than the machine has.

Differs from Salus (papers/salus.md), whose lanes share GPU memory and are served one iteration at a time: CPU memory needs
no lanes, and the operating system already shares cores between threads that run at the same time.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from configs.errors import JobCancelled
from edge.clock import Clock, SystemClock
from edge.gpu.base import ChangeCost, DeviceFacts, Fault, JobMemory, Lane, Role, ShareReport
from scheduler.pacing import Ledger, Pacer, PacingMode
from scheduler.salus.types import MemoryNeed

#: A checkpoint that comes sooner than this after the last charge does nothing: layers of microseconds need no accounting.
CHECKPOINT_MIN_S = 0.001


def usable_cores() -> int:
    """Cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class CpuLane:
    """One job's lane; see `edge.gpu.base.Lane`. Made by `LaneBackend.open_lane`."""

    def __init__(self, backend: LaneBackend, job: str) -> None:
        self.job = job
        self._backend = backend
        self._thread_id: int | None = None  # the thread inside an iteration, None between iterations
        self._charged_cpu_s = 0.0  # reading of that thread's clock at the last charge
        self._cancelled = False
        self._closed = False

    @contextmanager
    def iteration(self) -> Iterator[None]:
        self._backend._begin(self)
        try:
            yield
        finally:
            self._backend._end(self)

    def checkpoint(self) -> None:
        if self._cancelled or self._closed:
            raise _cancelled(self.job)
        if self._thread_id is None:  # a model used outside its job, to draw one picture, say
            return
        if self._backend.clock.thread_cpu_s() - self._charged_cpu_s >= CHECKPOINT_MIN_S:
            self._backend._checkpoint(self)


class LaneBackend:
    """Shares of cores for the jobs of this process.

    capacity_pct: what may be promised (None: all cores the process may use; leave room for decoding and the pages).
    mode: 'capped' (a job gets its share, no more) or 'work-conserving' (what nobody uses is lent, see `scheduler.pacing`).
    burst_s: compute a job may save up while the machine is too busy to deliver.
    Thread-safe. Reports reach back 60 s.
    """

    name = "lanes"

    def __init__(
        self,
        *,
        capacity_pct: int | None = None,
        mode: PacingMode = "capped",
        burst_s: float = 0.25,
        clock: Clock | None = None,
    ) -> None:
        self.capacity_pct = 100 * usable_cores() if capacity_pct is None else capacity_pct
        self.clock: Clock = clock or SystemClock()
        self._pacer = Pacer(capacity_pct=self.capacity_pct, mode=mode, burst_s=burst_s)
        self._lanes: dict[str, CpuLane] = {}
        self._changed = threading.Condition()

    def open_lane(self, job: str, *, role: Role = "learn", need: MemoryNeed | None = None) -> Lane:
        """See `edge.gpu.base`. A share that was set before the lane was opened counts from now on."""
        with self._changed:
            self._pacer.open(job, self.clock.monotonic_s())
            lane = self._lanes[job] = CpuLane(self, job)
            self._wake_all()
            return lane

    def close_lane(self, job: str) -> None:
        """Ends the lane; a thread that still uses it gets JobCancelled. No-op for an unknown job."""
        with self._changed:
            lane = self._lanes.pop(job, None)
            if lane is None:
                return
            lane._closed = True
            self._pacer.close(job, self.clock.monotonic_s())
            self._wake_all()

    def set_shares(self, shares_pct: Mapping[str, float]) -> None:
        """See `edge.gpu.base`. Work that is running is charged at the old shares up to this moment."""
        with self._changed:
            self._charge_running()
            self._pacer.set_shares(shares_pct, self.clock.monotonic_s())
            self._wake_all()

    def cancel(self, job: str) -> None:
        """See `edge.gpu.base`. Stays in force until the lane is closed."""
        with self._changed:
            lane = self._lanes.get(job)
            if lane is not None:
                lane._cancelled = True
                self._wake_all()

    def report(self, span_s: float = 10.0) -> dict[str, ShareReport]:
        """See `edge.gpu.base`. Includes what running iterations have used so far. The span is cut to the lane's age and to
        the history kept; ShareReport.span_s says what it covers. ValueError: span_s is not positive."""
        if not span_s > 0:
            raise ValueError(f"span_s must be positive, got {span_s}")
        with self._changed:
            now_s = self.clock.monotonic_s()
            self._charge_running()
            return {
                job: _report(job, self._pacer.ledger(job, now_s), now_s, span_s, self._pacer.share_pct(job))
                for job in self._lanes
            }

    def memory(self) -> dict[str, JobMemory]:
        with self._changed:
            return {job: JobMemory(job=job, need=None, measured=False, lane=None, lane_mib=0.0) for job in self._lanes}

    def change_cost(self) -> ChangeCost:
        return ChangeCost()

    def facts(self) -> tuple[DeviceFacts, ...]:
        return ()

    def faults(self) -> tuple[Fault, ...]:
        return ()

    def close(self) -> None:
        for job in list(self._lanes):
            self.cancel(job)

    def ledger(self, job: str) -> Ledger:
        """The account of an open lane, for measurements. KeyError: no such lane."""
        with self._changed:
            self._charge_running()
            return self._pacer.ledger(job, self.clock.monotonic_s())

    # --- called by lanes, in the job's thread -------------------------------------------------------------------------

    def _begin(self, lane: CpuLane) -> None:
        with self._changed:
            if lane._thread_id is not None:
                raise RuntimeError(f"job {lane.job!r}: iteration inside an iteration, or from a second thread")
            self._admit(lane, iteration=True)

    def _end(self, lane: CpuLane) -> None:
        with self._changed:
            if lane._thread_id is None:  # cancelled while waiting at a checkpoint: charged there
                return
            self._charge(lane, done=True)
            if not lane._closed:
                self._pacer.rest(lane.job, self.clock.monotonic_s())
                self._wake_borrowers()

    def _checkpoint(self, lane: CpuLane) -> None:
        with self._changed:
            self._charge(lane, done=True)
            self._admit(lane, iteration=False)

    def _admit(self, lane: CpuLane, *, iteration: bool) -> None:
        """Waits for the lane's turn (lock held), then starts its clock. Raises JobCancelled; the job then rests."""
        if not (lane._closed or lane._cancelled):
            self._pacer.want(lane.job, self.clock.monotonic_s())
        resumed = False
        while True:
            now_s = self.clock.monotonic_s()
            if lane._cancelled or lane._closed:
                if not lane._closed:
                    self._pacer.rest(lane.job, now_s)
                    self._wake_borrowers()
                raise _cancelled(lane.job)
            wait_s = self._pacer.wait_s(lane.job, now_s, resumed=resumed)
            if wait_s <= 0:
                break
            resumed = True
            self.clock.wait(self._changed, None if math.isinf(wait_s) else wait_s)
        lane._thread_id = threading.get_ident()
        lane._charged_cpu_s = self.clock.thread_cpu_s()
        self._pacer.start(lane.job, now_s, iteration=iteration)

    # --- lock held ----------------------------------------------------------------------------------------------------

    def _charge(self, lane: CpuLane, *, done: bool) -> None:
        """Charges what the lane's thread used since the last charge. (It is alive: it leaves by `_end` or `_checkpoint`.)"""
        assert lane._thread_id is not None
        cpu_s = self.clock.thread_cpu_s(lane._thread_id)
        used_s, lane._charged_cpu_s = cpu_s - lane._charged_cpu_s, cpu_s
        if done:
            lane._thread_id = None
        if not lane._closed:
            self._pacer.charge(lane.job, used_s, self.clock.monotonic_s(), done=done)

    def _charge_running(self) -> None:
        for lane in self._lanes.values():
            if lane._thread_id is not None:
                self._charge(lane, done=False)

    def _wake_all(self) -> None:
        self.clock.notify_all(self._changed)

    def _wake_borrowers(self) -> None:
        """A job stopped wanting: in the work-conserving mode the waiting ones may start earlier than they thought."""
        if self._pacer.mode == "work-conserving":
            self._wake_all()


def _cancelled(job: str) -> JobCancelled:
    return JobCancelled(f"job {job} was cancelled", subject=job)


def _report(job: str, ledger: Ledger, now_s: float, span_s: float, share_pct: float) -> ShareReport:
    start_s = max(now_s - span_s, ledger.entries()[0].at_s)
    a, b = ledger.at(start_s), ledger.last()
    covered_s = now_s - start_s
    if covered_s <= 0:
        return ShareReport(job=job, promised_pct=share_pct, received_pct=0.0, backlogged_frac=0.0, iterations=0, span_s=0.0)
    return ShareReport(
        job=job,
        promised_pct=100.0 * (b.promised_s - a.promised_s) / covered_s,
        received_pct=100.0 * (b.received_s - a.received_s) / covered_s,
        backlogged_frac=(b.backlogged_s - a.backlogged_s) / covered_s,
        iterations=round(b.iterations - a.iterations),
        span_s=covered_s,
    )
