"""Cameras that share one lane: a wrapper of any backend for a box whose live inference runs in batches (`edge.pool`).

A camera's job still has a lane, a share and a report; but its lane lets everybody through, because its thread only waits for the pool.
What computes are the pool's workers, each in a real lane of the wrapped backend, `pool_job`: role infer, its share an even part of the
sum of the cameras'. Whoever has rested longest takes the next batch, so none of them is short of its share while another has some left.

What those lanes received is split among the cameras by the compute that their requests took (`charge`), so a camera's promised and
received shares mean what they meant before; what was spent on measuring is split alike. To this comes what a camera's own thread
computed in its lane (cutting out crops): it is in the report, and it is not held back.

Learning jobs are not touched. More than 100 pct of cores for each worker, promised to the cameras together, cannot be received.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from configs.errors import JobCancelled
from edge.clock import Clock, SystemClock
from edge.gpu.base import ChangeCost, ComputeBackend, DeviceFacts, Fault, JobMemory, Lane, Role, ShareReport
from scheduler.pacing import Account, Ledger
from scheduler.salus.types import MemoryNeed

#: The pool's own jobs on the wrapped backend begin with this; no camera can have such a name, because ids hold no slash.
POOL_JOB = "pool/infer"


def pool_job(worker: int) -> str:
    """The job of one of the pool's workers, counted from 0."""
    return f"{POOL_JOB}/{worker}" if worker else POOL_JOB


class PassLane:
    """A camera's lane, which lets everybody through; see `edge.gpu.base.Lane`. Made by `PooledBackend.open_lane`."""

    def __init__(self, job: str, clock: Clock) -> None:
        self.job = job
        self._clock = clock
        self._lock = threading.Lock()
        self._over = self._inside = False
        self._share_pct = 0.0
        self._own_s = self._asked_s = self._promised_s = self._waited_s = 0.0
        self._iterations = 0
        self._booked_s = clock.monotonic_s()
        self._own, self._asked = Ledger(self._booked_s), Ledger(self._booked_s)

    @contextmanager
    def iteration(self) -> Iterator[None]:
        with self._lock:
            if self._inside:
                raise RuntimeError(f"job {self.job!r}: iteration inside an iteration, or from a second thread")
            self._require_open()
            self._book()
            self._inside = True
            self._iterations += 1
        before_s = self._clock.thread_cpu_s()
        try:
            yield
        finally:
            own_s = self._clock.thread_cpu_s() - before_s
            with self._lock:
                self._own_s += own_s
                self._book()
                self._inside = False

    def checkpoint(self) -> None:
        self._require_open()

    def end(self) -> None:
        """Cancelled, or closed."""
        self._over = True

    def promise(self, share_pct: float) -> None:
        with self._lock:
            self._book()
            self._share_pct = share_pct

    def charge(self, compute_s: float) -> None:
        """The pool computed so much for this job."""
        with self._lock:
            self._asked_s += compute_s
            self._book()

    @property
    def share_pct(self) -> float:
        return self._share_pct

    def span(self, span_s: float) -> tuple[ShareReport, float]:
        """The report without what the pool did for it (received_pct: its own compute), and the pool's seconds for it in that span."""
        with self._lock:
            self._book()
            now_s = self._booked_s
            start_s = max(now_s - span_s, self._own.entries()[0].at_s)
            a, b, covered_s = self._own.at(start_s), self._own.last(), now_s - start_s
            asked_s = self._asked.last().received_s - self._asked.at(start_s).received_s
            share_pct = self._share_pct
        if covered_s <= 0:
            return ShareReport(
                job=self.job, promised_pct=share_pct, received_pct=0.0, backlogged_frac=0.0, iterations=0, span_s=0.0
            ), 0.0  # fmt: skip
        return ShareReport(
            job=self.job, promised_pct=100.0 * (b.promised_s - a.promised_s) / covered_s,
            received_pct=100.0 * (b.received_s - a.received_s) / covered_s,
            backlogged_frac=(b.backlogged_s - a.backlogged_s) / covered_s, iterations=round(b.iterations - a.iterations),
            span_s=covered_s,
        ), asked_s  # fmt: skip

    def _book(self) -> None:
        """Brings the accounts up to now (lock held)."""
        now_s = self._clock.monotonic_s()
        span_s = max(0.0, now_s - self._booked_s)
        self._booked_s = max(now_s, self._booked_s)
        self._promised_s += span_s * self._share_pct / 100.0
        self._waited_s += span_s if self._inside else 0.0
        self._own.add(
            Account(
                at_s=self._booked_s, promised_s=self._promised_s, received_s=self._own_s, backlogged_s=self._waited_s,
                iterations=self._iterations,
            )
        )  # fmt: skip
        self._asked.add(Account(at_s=self._booked_s, received_s=self._asked_s))

    def _require_open(self) -> None:
        if self._over:
            raise JobCancelled(f"job {self.job} was cancelled", subject=self.job)


class PooledBackend:
    """See above and `edge.gpu.base.ComputeBackend`. inside: the backend that keeps the shares; workers: of the pool. Also the pool's
    seat (`edge.pool.pool.Seat`): `open` and `charge`. Thread-safe."""

    def __init__(self, inside: ComputeBackend, *, clock: Clock | None = None, workers: int = 1) -> None:
        self.name, self.capacity_pct = inside.name, inside.capacity_pct
        self.workers = workers
        self._pool_jobs = [pool_job(worker) for worker in range(workers)]
        self._inside = inside
        self._clock: Clock = clock or SystemClock()
        self._lanes: dict[str, PassLane] = {}
        self._shares_pct: dict[str, float] = {}
        self._seats: set[str] = set()  # pool jobs whose lane was opened
        self._learning: set[str] = set()  # jobs that are no cameras'
        self._lock = threading.Lock()

    @property
    def inside(self) -> ComputeBackend:
        """The backend that keeps the shares."""
        return self._inside

    # --- the pool's seat ----------------------------------------------------------------------------------------------

    def open(self, worker: int) -> Lane:
        """A lane for a worker's thread; one that was open before is closed, whoever is in it."""
        job = self._pool_jobs[worker]
        with self._lock:
            if job in self._seats:
                # Memory lanes know that who hangs in one holds it; other backends have nothing to give back.
                getattr(self._inside, "abandon", self._inside.close_lane)(job)
            lane = self._inside.open_lane(job, role="infer")
            self._seats.add(job)
            self._apply()
            return lane

    def beside(self) -> str:
        """What computes beside the pool: "learning", "" nothing. From any thread."""
        with self._lock:
            return "learning" if any(self._shares_pct.get(job, 0.0) > 0 for job in self._learning) else ""

    def charge(self, job: str, compute_s: float) -> None:
        """So much of what the pool computed was for `job`; no-op for one that has no lane any more."""
        with self._lock:
            lane = self._lanes.get(job)
        if lane is not None:
            lane.charge(compute_s)

    # --- the seam -----------------------------------------------------------------------------------------------------

    def open_lane(self, job: str, *, role: Role = "learn", need: MemoryNeed | None = None) -> Lane:
        """See `edge.gpu.base`. need is not looked at for a camera: what its frames take, the pool's lane takes."""
        with self._lock:
            if job in self._lanes or job in self._pool_jobs:
                raise ValueError(f"job {job!r} has a lane already")
            if role != "infer":
                opened = self._inside.open_lane(job, role=role, need=need)
                self._learning.add(job)
                return opened
            if job in self._inside.report():
                raise ValueError(f"job {job!r} has a lane already")
            lane = self._lanes[job] = PassLane(job, self._clock)
            self._apply()
            return lane

    def close_lane(self, job: str) -> None:
        with self._lock:
            lane = self._lanes.pop(job, None)
            if lane is None:
                if job not in self._pool_jobs:
                    self._learning.discard(job)
                    self._inside.close_lane(job)
                return
            lane.end()
            self._apply()

    def set_shares(self, shares_pct: Mapping[str, float]) -> None:
        """See `edge.gpu.base`; the cameras' shares are summed onto the pool's."""
        with self._lock:
            before, self._shares_pct = self._shares_pct, dict(shares_pct)
            try:
                self._apply()
            except ValueError:
                self._shares_pct = before
                raise

    def expect(self, job: str, total_s: float) -> None:
        """See `edge.gpu.base`. Of no use for a camera: what it takes, the pool takes."""
        self._inside.expect(job, total_s)

    def cancel(self, job: str) -> None:
        with self._lock:
            lane = self._lanes.get(job)
        if lane is not None:
            lane.end()
        elif job not in self._pool_jobs:
            self._inside.cancel(job)

    def report(self, span_s: float = 10.0) -> dict[str, ShareReport]:
        """See `edge.gpu.base`. The pool's lanes are not among them: what they received is its cameras'."""
        told = dict(self._inside.report(span_s))
        pool = [told.pop(job) for job in self._pool_jobs if job in told]
        with self._lock:
            lanes = list(self._lanes.values())
        spans = [lane.span(span_s) for lane in lanes]
        received_s = sum(report.received_pct / 100.0 * report.span_s for report in pool)
        weights = [asked_s for _, asked_s in spans]
        if sum(weights) <= 0:  # a first batch is in work, or it was all for nothing
            weights = [lane.share_pct for lane in lanes]
        whole = sum(weights)
        for (report, _), weight in zip(spans, weights, strict=True):
            part_s = received_s * weight / whole if whole > 0 else 0.0
            pooled_pct = 100.0 * part_s / report.span_s if report.span_s > 0 else 0.0
            told[report.job] = replace(report, received_pct=report.received_pct + pooled_pct)
        return told

    def memory(self) -> dict[str, JobMemory]:
        """See `edge.gpu.base`. A camera's row is that of the pool's first lane; what the pool keeps (its models) is divided evenly."""
        told = dict(self._inside.memory())
        pool = _together([told.pop(job) for job in self._pool_jobs if job in told])
        with self._lock:
            jobs = list(self._lanes)
        return told | {job: _part(job, pool, len(jobs)) for job in jobs}

    def change_cost(self) -> ChangeCost:
        return self._inside.change_cost()

    def facts(self) -> tuple[DeviceFacts, ...]:
        return self._inside.facts()

    def faults(self) -> tuple[Fault, ...]:
        return self._inside.faults()

    def close(self) -> None:
        with self._lock:
            for lane in self._lanes.values():
                lane.end()
        self._inside.close()

    def _apply(self) -> None:
        """Hands the shares on (lock held). Raises ValueError when they exceed the capacity."""
        together_pct = sum(self._shares_pct.get(job, 0.0) for job in self._lanes)
        others = {job: share for job, share in self._shares_pct.items() if job not in self._lanes}
        each_pct = together_pct / self.workers
        self._inside.set_shares(others | (dict.fromkeys(self._pool_jobs, each_pct) if self._lanes else {}))
        for job, lane in self._lanes.items():
            lane.promise(self._shares_pct.get(job, 0.0))


def _together(lanes: list[JobMemory]) -> JobMemory | None:
    """The memory of the pool's lanes as that of one."""
    if len(lanes) <= 1:
        return lanes[0] if lanes else None
    needs, held = [lane.need for lane in lanes if lane.need], [lane.held_mib for lane in lanes if lane.held_mib is not None]
    need = MemoryNeed(
        persistent_mib=sum(n.persistent_mib for n in needs), ephemeral_mib=sum(n.ephemeral_mib for n in needs)
    )  # fmt: skip
    return replace(lanes[0], need=need if needs else None, held_mib=sum(held) if held else None)


def _part(job: str, pool: JobMemory | None, count: int) -> JobMemory:
    if pool is None:
        return JobMemory(job=job, need=None, measured=False, lane=None, lane_mib=0.0)
    need = pool.need and MemoryNeed(
        persistent_mib=pool.need.persistent_mib / count, ephemeral_mib=pool.need.ephemeral_mib
    )  # fmt: skip
    held_mib = None if pool.held_mib is None else pool.held_mib / count
    return replace(pool, job=job, need=need, held_mib=held_mib)
