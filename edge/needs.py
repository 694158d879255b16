"""What learning jobs took of memory and compute, kept from one to the next of its sort."""

from __future__ import annotations

import math
import threading

from configs.errors import JobError
from edge.gpu.base import ComputeBackend, Lane
from scheduler.salus.measure import pad
from scheduler.salus.types import MemoryNeed

#: What makes two jobs alike: what they do, and with which network.
Sort = tuple[str, str]


class Needs:
    """Opens and closes the lanes of learning jobs. The first of a sort declares nothing and is measured; the next declares the most that
    one of its sort took, padded as measured needs are, and is admitted at once. How much compute the newest of its sort took is what the
    next one is expected to take, until somebody knows better (`ComputeBackend.expect`). Thread-safe."""

    def __init__(self, backend: ComputeBackend) -> None:
        self._backend = backend
        self._known: dict[Sort, MemoryNeed] = {}
        self._took_s: dict[Sort, float] = {}
        self._lock = threading.Lock()

    def known(self, sort: Sort) -> MemoryNeed | None:
        with self._lock:
            return self._known.get(sort)

    def open_lane(self, job: str, sort: Sort) -> Lane:
        """Raises JobError when its sort took more than jobs may hold; that is then forgotten, and the next is measured anew."""
        try:
            lane = self._backend.open_lane(job, need=self.known(sort))
        except JobError:
            with self._lock:
                self._known.pop(sort, None)
            raise
        with self._lock:
            took_s = self._took_s.get(sort)
        if took_s is not None:
            self._backend.expect(job, took_s)
        return lane

    def close_lane(self, job: str, sort: Sort, *, took_s: float | None = None) -> None:
        """took_s: seconds of compute, of a job that came to its end."""
        if took_s is not None:
            with self._lock:
                self._took_s[sort] = took_s
        memory = self._backend.memory().get(job)
        self._backend.close_lane(job)
        if memory is None or memory.need is None or not memory.measured:
            return
        with self._lock:
            before = self._known.get(sort) or memory.need
            most = MemoryNeed(
                persistent_mib=max(before.persistent_mib, memory.need.persistent_mib),
                ephemeral_mib=max(before.ephemeral_mib, memory.need.ephemeral_mib),
            )
            self._known[sort] = most if sort in self._known and most == before else pad(most, math.inf)
