"""What learning jobs took of the memory, kept from one to the next of its sort."""

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
    one of its sort took, padded as measured needs are, and is admitted at once. Thread-safe."""

    def __init__(self, backend: ComputeBackend) -> None:
        self._backend = backend
        self._known: dict[Sort, MemoryNeed] = {}
        self._lock = threading.Lock()

    def known(self, sort: Sort) -> MemoryNeed | None:
        with self._lock:
            return self._known.get(sort)

    def open_lane(self, job: str, sort: Sort) -> Lane:
        """Raises JobError when its sort took more than jobs may hold; that is then forgotten, and the next is measured anew."""
        try:
            return self._backend.open_lane(job, need=self.known(sort))
        except JobError:
            with self._lock:
                self._known.pop(sort, None)
            raise

    def close_lane(self, job: str, sort: Sort) -> None:
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
