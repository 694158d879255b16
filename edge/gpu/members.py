"""Several lanes for one job, which divide its share among those that run (a window's trials at once: `models.trial_pack`).

The plan knows one job and one share. Its first lane is the job's own; further ones are called JOB+1, JOB+2, ... and exist as long as
`Members.lanes` is entered. What the job is promised is divided evenly among the lanes named by `divide`; the others get nothing and
wait. Everybody who sets shares or cancels on this backend has to do it here, or members would keep an old part.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from edge.gpu.base import ComputeBackend, Lane, ShareReport
from scheduler.salus.types import MemoryNeed


class Members:
    """Thread-safe."""

    def __init__(self, backend: ComputeBackend) -> None:
        self._backend = backend
        self._lock = threading.Lock()
        self._shares_pct: dict[str, float] = {}
        self._names: dict[str, list[str]] = {}
        self._running: dict[str, Sequence[int]] = {}

    def set_shares(self, shares_pct: Mapping[str, float]) -> None:
        """As `ComputeBackend.set_shares`, by job."""
        with self._lock:
            before, self._shares_pct = self._shares_pct, dict(shares_pct)
            try:
                self._apply()
            except ValueError:
                self._shares_pct = before
                raise

    def report(self, span_s: float = 10.0) -> dict[str, ShareReport]:
        """As `ComputeBackend.report`, a job's lanes as one."""
        found = self._backend.report(span_s)
        with self._lock:
            members = {name: job for job, names in self._names.items() for name in names[1:]}
        told = {name: report for name, report in found.items() if name not in members}
        for name, job in members.items():
            if name in found and job in told:
                told[job] = _together(told[job], found[name])
        return told

    def cancel(self, job: str) -> None:
        """As `ComputeBackend.cancel`, with all lanes of the job."""
        with self._lock:
            names = self._names.get(job, [job])
        for name in names:
            self._backend.cancel(name)

    @contextmanager
    def lanes(self, job: str, own: Lane, count: int, *, need: MemoryNeed | None = None) -> Iterator[list[Lane]]:
        """The job's own lane and up to count - 1 more, the share with the first until `divide` says otherwise. need: memory of each
        further lane (None: measured). A lane that would have to wait for memory is not among them: Salus's admission
        caps how many trials run at once. Raises what `open_lane` raises; no lane is left open then."""
        opened: list[Lane] = []
        try:
            for n in range(1, count):
                opened.append(self._backend.open_lane(f"{job}+{n}", need=need))
                if self._waits_for_memory(job, opened[-1].job):
                    self._backend.close_lane(opened.pop().job)
                    break
            with self._lock:
                self._names[job], self._running[job] = [job, *(lane.job for lane in opened)], (0,)
            yield [own, *opened]
        finally:
            with self._lock:
                self._names.pop(job, None)
                self._running.pop(job, None)
            for lane in opened:
                self._backend.close_lane(lane.job)
            with self._lock:
                self._apply()

    def divide(self, job: str, running: Sequence[int]) -> None:
        """Which of the job's lanes (by number) have the share from now on, in even parts; one that is named twice has two of them."""
        with self._lock:
            if job in self._names:
                self._running[job] = tuple(running)
                self._apply()

    def _waits_for_memory(self, job: str, further: str) -> bool:
        """On a backend that admits by memory at all: the job's own lane has a place there, the further one has none."""
        memory = self._backend.memory()
        own, other = memory.get(job), memory.get(further)
        return own is not None and own.lane is not None and other is not None and other.lane is None

    def _apply(self) -> None:
        parts: dict[str, float] = {}
        for job, share_pct in self._shares_pct.items():
            running = self._running.get(job, (0,))
            names = self._names.get(job, [job])
            parts |= {name: share_pct * running.count(n) / len(running) for n, name in enumerate(names)}
        self._backend.set_shares(parts)


def _together(one: ShareReport, other: ShareReport) -> ShareReport:
    """Two lanes of one job over the span of the first; the second may be younger."""
    part = other.span_s / one.span_s if one.span_s else 0.0
    return ShareReport(
        job=one.job,
        promised_pct=one.promised_pct + other.promised_pct * part,
        received_pct=one.received_pct + other.received_pct * part,
        backlogged_frac=max(one.backlogged_frac, other.backlogged_frac * part),
        iterations=one.iterations + other.iterations,
        span_s=one.span_s,
    )
