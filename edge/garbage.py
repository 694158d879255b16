"""Python's collector of garbage in a process of many threads: what it costs is nobody's share, and it does not go through the whole box.

A full collection looks at every object there is, in whichever thread makes it due, and keeps Python's lock meanwhile. Beside a hundred
cameras that took 220 ms: all of them stood still, and the one whose thread it was paid for it with its share, which at 1.4 pct is 15 s
without a frame.

- `spent_s`: CPU seconds that full collections took of a thread, so that they can be left out of accounts.
- `kept_from_collections`: what is there when the box has been built (modules, networks, graphs) stays, and is not looked at again.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

#: A full collection; those of young objects take microseconds.
FULL = 2


class Collections:
    """What full collections took, by thread; for `gc.callbacks`. One runs at a time, in one thread from its start to its end."""

    def __init__(self) -> None:
        self._spent_s: dict[int, float] = {}
        self._began_s = 0.0

    def __call__(self, phase: str, info: Mapping[str, int]) -> None:
        if info["generation"] < FULL:
            return
        if phase == "start":
            self._began_s = time.thread_time()
            return
        me = threading.get_ident()
        self._spent_s[me] = self._spent_s.get(me, 0.0) + time.thread_time() - self._began_s

    def spent_s(self, thread_id: int) -> float:
        return self._spent_s.get(thread_id, 0.0)


_COLLECTIONS = Collections()


def watch() -> Collections:
    """What collections take from now on, in this process."""
    if _COLLECTIONS not in gc.callbacks:
        gc.callbacks.append(_COLLECTIONS)
    return _COLLECTIONS


@contextmanager
def kept_from_collections() -> Iterator[None]:
    """Collects once and sets aside all that is left. It is freed as ever when nobody holds it; what holds each other, after the end."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
