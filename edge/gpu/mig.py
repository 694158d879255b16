"""MIG as the outer split: each partition (GPU instance) that the operator has made is a device of its own, with a backend inside.

A partition has its own multiprocessors, memory and cache, so what happens in one cannot disturb another: no share is better kept. But
its size is fixed, and a job lives in one until it ends. So this backend does two things: it finds a partition for each job
(`scheduler.partitions_mig`), and passes everything else to the backend inside, whose 100 pct are the partition's part of the GPU.
Shares that the partitions cannot keep are cut, and said once per change.

What it never does: make, resize or remove partitions. A change needs an idle GPU and root, and there may be others on it; the operator
does it with nvidia-smi, and the box finds what is there when it starts.

A CUDA process sees one partition only (CUDA driver: the first one visible), so what is inside must run where its partition is: in this
process for one of them, in worker processes for others (`CUDA_VISIBLE_DEVICES=MIG-...`). `edge.gpu.choose` arranges that.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from configs.errors import JobCancelled, JobError
from edge.clock import Clock, SystemClock
from edge.gpu.base import ChangeCost, ComputeBackend, DeviceFacts, Fault, JobMemory, Lane, Role, ShareReport
from scheduler.pacing import check_shares
from scheduler.partitions_mig import Bin, Placing, Tenant, place
from scheduler.salus.types import MemoryNeed

log = logging.getLogger("driftbox")


@dataclass(frozen=True, kw_only=True)
class Part:
    """A partition. id: its UUID; name: its profile; size_pct: its part of one GPU; memory_mib: what its jobs may hold; inside: who keeps
    shares there (its whole capacity is the partition)."""

    id: str
    name: str
    size_pct: float
    memory_mib: float
    inside: ComputeBackend

    @property
    def inner_per_outer(self) -> float:
        """Percent of the backend inside per percent of one GPU."""
        return self.inside.capacity_pct / self.size_pct


class MigLane:
    """One job's way to its partition; see `edge.gpu.base.Lane`. Waits until the job has one."""

    def __init__(self, backend: MigBackend, job: str, role: Role, need: MemoryNeed | None) -> None:
        self.job, self.role, self.need = job, role, need
        self.part: Part | None = None
        self.inner: Lane | None = None
        self.refused: JobError | None = None  # what the partition said when it was to be taken in
        self.over = False  # cancelled or closed
        self.waits = False
        self.total_s: float | None = None  # how much compute it will take, if that was said
        self.opened_s = backend.clock.monotonic_s()
        self._backend = backend

    @contextmanager
    def iteration(self) -> Iterator[None]:
        with self._backend._settled(self).iteration():
            yield

    def checkpoint(self) -> None:
        inner = self.inner
        if inner is not None:
            inner.checkpoint()
        elif self.over:
            raise JobCancelled(f"job {self.job} was cancelled", subject=self.job)


class MigBackend:
    """parts: the partitions with what runs inside; capacity_pct: what may be promised, in percent of one GPU (None: all that the
    partitions are together); tell: hears of shares that cannot be kept. Thread-safe."""

    name = "mig"

    def __init__(
        self, parts: Sequence[Part], *, capacity_pct: int | None = None, clock: Clock | None = None,
        facts: Callable[[], tuple[DeviceFacts, ...]] = tuple, tell: Callable[[str], None] = lambda text: log.warning("%s", text),
    ) -> None:  # fmt: skip
        if not parts:
            raise ValueError("a divided GPU without partitions can run nothing")
        self.parts = tuple(parts)
        all_pct = math.floor(sum(part.size_pct for part in parts) + 1e-6)
        self.capacity_pct = all_pct if capacity_pct is None else capacity_pct
        if self.capacity_pct > all_pct:
            raise ValueError(f"{capacity_pct} pct cannot be promised: the partitions are {all_pct} pct of a GPU")
        self.clock: Clock = clock or SystemClock()
        self._facts, self._tell = facts, tell
        self._lanes: dict[str, MigLane] = {}
        self._shares: dict[str, float] = {}
        self._told: tuple[str, ...] = ()
        self._changed = threading.Condition()

    def open_lane(self, job: str, *, role: Role = "learn", need: MemoryNeed | None = None) -> Lane:
        """See `edge.gpu.base`. The job gets its partition with its first share, which may have been set before."""
        with self._changed:
            if job in self._lanes:
                raise ValueError(f"job {job!r} has a lane already")
            most_mib = max(part.memory_mib for part in self.parts)
            if need is not None and need.peak_mib > most_mib:
                raise JobError(
                    f"{job} needs {need.peak_mib:.0f} MiB, the largest partition has {most_mib:.0f} MiB", subject=job,
                    code="out_of_memory", remedy="divide the GPU into fewer, larger partitions, or use a smaller model",
                )  # fmt: skip
            lane = self._lanes[job] = MigLane(self, job, role, need)
            self._place()
            return lane

    def close_lane(self, job: str) -> None:
        with self._changed:
            lane = self._lanes.pop(job, None)
            if lane is None:
                return
            lane.over = True
            if lane.part is not None:
                lane.part.inside.close_lane(job)
            self._place()
            self.clock.notify_all(self._changed)

    def set_shares(self, shares_pct: Mapping[str, float]) -> None:
        """See `edge.gpu.base`. Whoever lives in a partition stays there; shares that it cannot keep are cut in proportion."""
        check_shares(shares_pct, self.capacity_pct)
        with self._changed:
            self._shares = dict(shares_pct)
            self._place()

    def expect(self, job: str, total_s: float) -> None:
        """See `edge.gpu.base`, in seconds of one GPU."""
        with self._changed:
            lane = self._lanes.get(job)
            if lane is not None:
                lane.total_s = total_s
                self._tell_length(lane)

    def cancel(self, job: str) -> None:
        with self._changed:
            lane = self._lanes.get(job)
            if lane is None:
                return
            lane.over = True
            if lane.part is not None:
                lane.part.inside.cancel(job)
            self.clock.notify_all(self._changed)

    def report(self, span_s: float = 10.0) -> dict[str, ShareReport]:
        """See `edge.gpu.base`, in percent of one GPU. promised_pct: what the partition promises, after cuts. A job that has no partition
        yet received nothing since it was opened. ValueError: span_s is not positive."""
        if not span_s > 0:
            raise ValueError(f"span_s must be positive, got {span_s}")
        with self._changed:
            now_s = self.clock.monotonic_s()
            inside = {part.id: (part, part.inside.report(span_s)) for part in self.parts}
            found = {}
            for job, lane in self._lanes.items():
                if lane.part is None:
                    waited_s = min(span_s, now_s - lane.opened_s)
                    found[job] = ShareReport(
                        job=job,
                        promised_pct=0.0,
                        received_pct=0.0,
                        backlogged_frac=float(lane.waits),
                        iterations=0,
                        span_s=waited_s,
                    )
                    continue
                part, reports = inside[lane.part.id]
                report, scale = reports[job], part.inner_per_outer
                found[job] = replace(report, promised_pct=report.promised_pct / scale, received_pct=report.received_pct / scale)
            return found

    def memory(self) -> dict[str, JobMemory]:
        with self._changed:
            inside = {part.id: part.inside.memory() for part in self.parts}
            return {
                job: JobMemory(job=job, need=lane.need, measured=False, lane=None, lane_mib=0.0)
                if lane.part is None
                else inside[lane.part.id][job]
                for job, lane in self._lanes.items()
            }

    def where(self) -> dict[str, str]:
        """Job -> its partition's UUID, of those who have one."""
        with self._changed:
            return {job: lane.part.id for job, lane in self._lanes.items() if lane.part is not None}

    def change_cost(self) -> ChangeCost:
        """That of the most expensive partition: a change may touch all of them."""
        costs = [part.inside.change_cost() for part in self.parts]
        return ChangeCost(
            settle_s=max(c.settle_s for c in costs), gpu_s=max(c.gpu_s for c in costs), blind_s=max(c.blind_s for c in costs)
        )

    def facts(self) -> tuple[DeviceFacts, ...]:
        return self._facts()

    def faults(self) -> tuple[Fault, ...]:
        return tuple(sorted((fault for part in self.parts for fault in part.inside.faults()), key=lambda f: f.at_s))

    def close(self) -> None:
        with self._changed:
            for lane in self._lanes.values():
                lane.over = True
            self.clock.notify_all(self._changed)
        for part in self.parts:
            part.inside.close()

    # --- inside -------------------------------------------------------------------------------------------------------

    def _settled(self, lane: MigLane) -> Lane:
        """The lane inside the job's partition; waits until there is one. Raises JobCancelled."""
        with self._changed:
            lane.waits = True
            try:
                while lane.inner is None and lane.refused is None and not lane.over:
                    self.clock.wait(self._changed, None)
            finally:
                lane.waits = False
            if lane.refused is not None:
                raise lane.refused
            if lane.inner is None:
                raise JobCancelled(f"job {lane.job} was cancelled", subject=lane.job)
            return lane.inner  # its own backend knows of the cancellation, too

    def _place(self) -> None:
        """Partitions for those who have none, and new shares inside all of them (lock held)."""
        tenants = [self._tenant(lane) for lane in self._lanes.values()]
        bins = [Bin(id=part.id, size_pct=part.size_pct, memory_mib=part.memory_mib) for part in self.parts]
        placing = place(bins, tenants)
        by_id = {part.id: part for part in self.parts}
        for part in self.parts:  # shares first: a lane that is opened then counts at once
            inner = {job: pct * part.inner_per_outer for job, pct in placing.given_pct.items() if placing.where[job] == part.id}
            part.inside.set_shares(_within(inner, part.inside.capacity_pct))
        for lane in self._lanes.values():
            id = placing.where.get(lane.job)
            if lane.part is None and id is not None and lane.refused is None and not lane.over:
                self._take_in(lane, by_id[id])
        self._say_cuts(placing, tenants)
        self.clock.notify_all(self._changed)

    def _take_in(self, lane: MigLane, part: Part) -> None:
        """One that its partition refuses must not keep the others from their shares: it hears of it in its next iteration."""
        try:
            lane.inner = part.inside.open_lane(lane.job, role=lane.role, need=lane.need)
        except JobError as error:
            lane.refused = error
        else:
            lane.part = part
            self._tell_length(lane)

    def _tell_length(self, lane: MigLane) -> None:
        """A partition counts in seconds of its own."""
        if lane.part is not None and lane.total_s is not None:
            lane.part.inside.expect(lane.job, lane.total_s * lane.part.inner_per_outer)

    def _tenant(self, lane: MigLane) -> Tenant:
        return Tenant(
            job=lane.job, share_pct=self._shares.get(lane.job, 0.0), placed=lane.part.id if lane.part else None,
            # Inside a partition jobs share memory lanes, so that only the part that each holds for good adds up.
            memory_mib=lane.need.persistent_mib if lane.need else 0.0,
        )  # fmt: skip

    def _say_cuts(self, placing: Placing, tenants: Sequence[Tenant]) -> None:
        names = {part.id: part.name for part in self.parts}
        cuts = tuple(
            f"{t.job} was promised {t.share_pct:.0f} % of a GPU and gets {placing.given_pct.get(t.job, 0.0):.0f} %: "
            + (
                f"its partition {names[placing.where[t.job]]} has no more"
                if t.job in placing.where
                else "no partition has room for it"
            )
            for t in placing.cut(tenants)
        )
        for text in cuts:
            if text not in self._told:
                self._tell(text)
        self._told = cuts


def _within(shares: dict[str, float], capacity_pct: float) -> dict[str, float]:
    """Rounding in the conversion must not make them a hair more than there is."""
    total_pct = sum(shares.values())
    return shares if total_pct <= capacity_pct else {job: pct * capacity_pct / total_pct for job, pct in shares.items()}
