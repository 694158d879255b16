"""Several lanes for one job, which divide its share among those that run (a window's trials at once: `models.trial_pack`).

The plan knows one job and one share. Its first lane is the job's own; further ones are called JOB+1, JOB+2, ... and exist as long as
`Members.lanes` is entered. What the job is promised is divided evenly among the lanes named by `divide`; the others get nothing and
wait. Everybody who sets shares or cancels on this backend has to do it here, or members would keep an old part.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from edge.gpu.base import ComputeBackend, Lane
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

    def cancel(self, job: str) -> None:
        """As `ComputeBackend.cancel`, with all lanes of the job."""
        with self._lock:
            names = self._names.get(job, [job])
        for name in names:
            self._backend.cancel(name)

    @contextmanager
    def lanes(self, job: str, own: Lane, count: int, *, need: MemoryNeed | None = None) -> Iterator[list[Lane]]:
        """The job's own lane and count - 1 more, the share with the first until `divide` says otherwise. need: memory of each further
        lane, measured where it is not given. Raises what `open_lane` raises; no lane is left open then."""
        names = [job, *(f"{job}+{n}" for n in range(1, count))]
        opened: list[Lane] = []
        try:
            opened.extend(self._backend.open_lane(name, need=need) for name in names[1:])
            with self._lock:
                self._names[job], self._running[job] = names, (0,)
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
        """Which of the job's lanes (by number) have the share from now on, in even parts."""
        with self._lock:
            if job in self._names:
                self._running[job] = tuple(running)
                self._apply()

    def _apply(self) -> None:
        parts: dict[str, float] = {}
        for job, share_pct in self._shares_pct.items():
            running = self._running.get(job, (0,))
            names = self._names.get(job, [job])
            parts |= {name: share_pct / len(running) if n in running else 0.0 for n, name in enumerate(names)}
        self._backend.set_shares(parts)
