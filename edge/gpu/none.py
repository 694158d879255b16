"""The backend without shares: jobs run as they come, and what each received is measured. For comparison, and for a box with one job.

Nothing is held back: a job with share 0 runs like any other, no memory is admitted, a training step may delay a frame by all of
itself. What is promised stays in the report beside what was received, so that the difference to a backend that keeps shares is seen.
Whoever plans should know that the plan's shares are wishes here: `driftbox doctor` says it.

What a piece cost is asked of the same device seats that `lanes` uses (`edge.gpu.device`), so figures compare.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from configs.errors import JobCancelled
from edge.clock import Clock, SystemClock
from edge.gpu.base import ChangeCost, DeviceFacts, Fault, JobMemory, Lane, Role, ShareReport
from edge.gpu.device import Device, Seat
from scheduler.pacing import Account, Ledger, check_shares
from scheduler.salus.types import MemoryNeed


class FreeLane:
    """One job's way to the device, which is always open; see `edge.gpu.base.Lane`. Made by `NoShares.open_lane`."""

    def __init__(self, job: str, seat: Seat, need: MemoryNeed | None, *, number: int, clock: Clock) -> None:
        self.job, self.seat, self.need, self.number = job, seat, need, number
        self._clock = clock
        self.lock = threading.Lock()
        self.over = False  # cancelled or closed
        self.closed = False
        self.running = False
        self.share_pct = 0.0
        self._total = Account(at_s=clock.monotonic_s())
        self.ledger = Ledger(self._total.at_s)
        self._iterations = 0

    @contextmanager
    def iteration(self) -> Iterator[None]:
        with self.lock:
            if self.running:
                raise RuntimeError(f"job {self.job!r}: iteration inside an iteration, or from a second thread")
            self._raise_when_over()
            self.book(self._clock.monotonic_s())
            self.running = True
            self._iterations += 1
        try:
            # Its own number: on a GPU a stream of its own, so that nobody waits for anybody.
            with self.seat.iteration(self.number, measure=True):
                yield
        finally:
            with self.lock:
                if not self.closed:
                    self.book(self._clock.monotonic_s())
                self.running = False

    def checkpoint(self) -> None:
        if self.over:
            self._raise_when_over()

    def book(self, now_s: float) -> None:
        """Brings the account up to `now_s` (lock held)."""
        total = self._total
        span_s = max(0.0, now_s - total.at_s)
        self._total = Account(
            at_s=max(now_s, total.at_s), promised_s=total.promised_s + span_s * self.share_pct / 100.0,
            received_s=self.seat.used_s(), backlogged_s=total.backlogged_s + (span_s if self.running else 0.0),
            iterations=self._iterations,
        )  # fmt: skip
        self.ledger.add(self._total)

    def report(self, now_s: float, span_s: float) -> ShareReport:
        with self.lock:
            self.book(now_s)
            start_s = max(now_s - span_s, self.ledger.entries()[0].at_s)
            a, b, covered_s = self.ledger.at(start_s), self.ledger.last(), now_s - start_s
            if covered_s <= 0:
                return ShareReport(
                    job=self.job, promised_pct=self.share_pct, received_pct=0.0, backlogged_frac=0.0, iterations=0, span_s=0.0
                )
            return ShareReport(
                job=self.job, promised_pct=100.0 * (b.promised_s - a.promised_s) / covered_s,
                received_pct=100.0 * (b.received_s - a.received_s) / covered_s,
                backlogged_frac=(b.backlogged_s - a.backlogged_s) / covered_s, iterations=round(b.iterations - a.iterations),
                span_s=covered_s,
            )  # fmt: skip

    def _raise_when_over(self) -> None:
        if self.over:
            raise JobCancelled(f"job {self.job} was cancelled", subject=self.job)


class NoShares:
    """See above. device: what measures; capacity_pct: what may be promised (None: all the device has). Thread-safe."""

    name = "none"

    def __init__(self, device: Device, *, capacity_pct: int | None = None, clock: Clock | None = None) -> None:
        self.capacity_pct = device.capacity_pct if capacity_pct is None else capacity_pct
        self.clock: Clock = clock or SystemClock()
        self._device = device
        self._lanes: dict[str, FreeLane] = {}
        self._shares: dict[str, float] = {}
        self._opened = 0
        self._lock = threading.Lock()

    def open_lane(self, job: str, *, role: Role = "learn", need: MemoryNeed | None = None) -> Lane:
        with self._lock:
            if job in self._lanes:
                raise ValueError(f"job {job!r} has a lane already")
            lane = FreeLane(job, self._device.seat(job, role), need, number=self._opened, clock=self.clock)
            lane.share_pct = self._shares.get(job, 0.0)
            self._opened += 1
            self._lanes[job] = lane
            return lane

    def close_lane(self, job: str) -> None:
        with self._lock:
            lane = self._lanes.pop(job, None)
        if lane is not None:
            with lane.lock:
                lane.over = lane.closed = True
                lane.seat.close()

    def set_shares(self, shares_pct: Mapping[str, float]) -> None:
        """Kept for the report only; checked as by every backend, so that a plan that is wrong is found here too."""
        check_shares(shares_pct, self.capacity_pct)
        with self._lock:
            self._shares = dict(shares_pct)
            now_s = self.clock.monotonic_s()
            for job, lane in self._lanes.items():
                with lane.lock:
                    lane.book(now_s)
                    lane.share_pct = self._shares.get(job, 0.0)

    def expect(self, job: str, total_s: float) -> None:
        """Nobody is put before anybody."""

    def cancel(self, job: str) -> None:
        with self._lock:
            lane = self._lanes.get(job)
        if lane is not None:
            lane.over = True

    def report(self, span_s: float = 10.0) -> dict[str, ShareReport]:
        """See `edge.gpu.base`. received_pct may exceed promised_pct and 100 pct of what was planned: nobody is held back.
        ValueError: span_s is not positive."""
        if not span_s > 0:
            raise ValueError(f"span_s must be positive, got {span_s}")
        with self._lock:
            now_s = self.clock.monotonic_s()
            return {job: lane.report(now_s, span_s) for job, lane in self._lanes.items()}

    def memory(self) -> dict[str, JobMemory]:
        """What iterations were found to take; no lanes, nothing is admitted."""
        with self._lock:
            lanes = list(self._lanes.items())
        return {job: _memory(job, lane) for job, lane in lanes}

    def change_cost(self) -> ChangeCost:
        return ChangeCost()

    def facts(self) -> tuple[DeviceFacts, ...]:
        return self._device.facts()

    def faults(self) -> tuple[Fault, ...]:
        """Nobody is watched here."""
        return ()

    def close(self) -> None:
        for job in list(self._lanes):
            self.cancel(job)


def _memory(job: str, lane: FreeLane) -> JobMemory:
    with lane.lock:
        measured = lane.seat.usage()
    return JobMemory(
        job=job, need=measured or lane.need, measured=measured is not None, lane=None, lane_mib=0.0,
        held_mib=None if measured is None else measured.persistent_mib,
    )  # fmt: skip
