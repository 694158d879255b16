"""A few threads that do the steps of many: as many cameras as there are share as many threads as frames may be in work at a time.

A thread for each camera has to be woken for each of its frames, and then waits for Python's lock beside all others that were; with
dozens of them that costs more than half a core of two (docs/serving.md). Here a camera that has something to do stands in a line
instead, and whoever of the few threads is free takes the first one. A step therefore never waits: it says after how many seconds it is
to be done again, and can be woken before.

A step that takes longer than `turn_s` has a thread more take its place, so it does not keep the others waiting; when it comes back, its
thread ends. Who hangs for ever costs a thread, as it would with threads of their own.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import threading
from collections import deque
from collections.abc import Callable

from edge.clock import Clock
from edge.gpu.executor import TURN_S

log = logging.getLogger("driftbox")

#: Does what there is to do and never waits; seconds after which it is to be done again (0: at once, inf: when woken).
Step = Callable[[], float]


class Entry:
    """One whose steps are done, by one thread at a time. Made by `StepPool.add`; its fields belong to the pool's lock."""

    def __init__(self, pool: StepPool, name: str, step: Step) -> None:
        self.name = name
        self._pool, self._step = pool, step
        self._waits = False  # in the line
        self._runs = False
        self._woken = False  # while it runs
        self._left = False
        self._at_s = math.inf  # when it is to be done again
        self._over = threading.Condition(pool._lock)
        self.error: Exception | None = None

    def wake(self) -> None:
        """It has something to do. From any thread, also under other locks: nothing is done here but to put it into the line."""
        self._pool._wake(self, first=False)

    def wake_first(self) -> None:
        """The same for one that has had its turn in the line, and could not go on then: it need not wait twice."""
        self._pool._wake(self, first=True)

    def leave(self) -> None:
        """No further step; the one in work ends."""
        with self._pool._lock:
            self._left = True

    def join(self, timeout_s: float) -> bool:
        """Waits until no step of it is in work, after `leave`; False: one still is."""
        with self._pool._lock:
            return self._over.wait_for(lambda: not self._runs, timeout_s)

    @property
    def works(self) -> bool:
        """Whether a step of it is in work."""
        return self._runs

    @property
    def ended(self) -> bool:
        """Whether it is done for good: it left, or its step raised."""
        return self._left and not self._runs


class _Thread:
    def __init__(self, pool: StepPool) -> None:
        self.pool = pool
        self.free = threading.Condition(pool._lock)
        self.since_s: float | None = None  # in a step
        self.replaced = False

    def run(self) -> None:
        while (entry := self.pool._next(self)) is not None:
            again_s, error = math.inf, None
            try:
                again_s = entry._step()
            except Exception as failed:
                error = failed
                log.exception("%s: a step failed", entry.name)
            if not self.pool._done(self, entry, again_s, error):
                return


def _spawn(body: Callable[[], None]) -> None:
    threading.Thread(target=body, name="frames", daemon=True).start()


class StepPool:
    """width: threads, which start when they are first needed; spawn: starts one. Thread-safe."""

    def __init__(
        self, width: int, clock: Clock, *, turn_s: float = TURN_S, spawn: Callable[[Callable[[], None]], object] = _spawn
    ) -> None:
        if width < 1:
            raise ValueError(f"at least one thread is needed, got {width}")
        self._spawn = spawn
        self._width, self._clock, self._turn_s = width, clock, turn_s
        self._lock = threading.Lock()
        self._line: deque[Entry] = deque()
        self._later: list[tuple[float, int, Entry]] = []  # heap of (when, number, who); stale where `_at_s` is another
        self._numbers = itertools.count()
        self._threads: list[_Thread] = []  # that count towards the width
        self._free: list[_Thread] = []
        self._closed = False

    def add(self, name: str, step: Step) -> Entry:
        """Its first step is done when it is woken."""
        return Entry(self, name, step)

    def close(self) -> None:
        """The threads end after what they are at."""
        with self._lock:
            self._closed = True
            for thread in self._free:
                self._clock.notify_all(thread.free)

    # --- one entry's life (lock held but for the first) ---------------------------------------------------------------

    def _wake(self, entry: Entry, *, first: bool) -> None:
        with self._lock:
            if entry._left:
                return
            if entry._runs:
                entry._woken = True
                return
            if not entry._waits:
                self._put_in_line(entry, first=first)
            self._call_one()

    def _put_in_line(self, entry: Entry, *, first: bool = False) -> None:
        entry._waits, entry._at_s = True, math.inf
        if first:
            self._line.appendleft(entry)
        else:
            self._line.append(entry)

    def _put_off(self, entry: Entry, at_s: float) -> None:
        entry._at_s = at_s
        if at_s < math.inf:
            heapq.heappush(self._later, (at_s, next(self._numbers), entry))

    # --- threads (lock held but for the first two) --------------------------------------------------------------------

    def _next(self, thread: _Thread) -> Entry | None:
        """Waits for somebody who has something to do; None: the thread is not needed any more."""
        with self._lock:
            while not self._closed:
                now_s = self._clock.monotonic_s()
                self._bring_forward(now_s)
                while self._line:
                    entry = self._line.popleft()
                    entry._waits = False
                    if entry._left:
                        continue
                    entry._runs, entry._woken, thread.since_s = True, False, now_s
                    return entry
                self._free.append(thread)
                self._clock.wait(thread.free, self._until_next_s(now_s))
                if thread in self._free:
                    self._free.remove(thread)
            return None

    def _done(self, thread: _Thread, entry: Entry, again_s: float, error: Exception | None) -> bool:
        """Whether the thread is still needed."""
        with self._lock:
            entry._runs, thread.since_s = False, None
            if error is not None:
                entry.error, entry._left = error, True
            if entry._left:
                entry._over.notify_all()
            elif entry._woken or again_s <= 0:
                self._put_in_line(entry)
            else:
                self._put_off(entry, self._clock.monotonic_s() + again_s)
            return not thread.replaced

    def _bring_forward(self, now_s: float) -> None:
        """Who put its next step off until now comes into the line."""
        while self._later and self._later[0][0] <= now_s:
            at_s, _, entry = heapq.heappop(self._later)
            if entry._at_s == at_s and not entry._left:
                self._put_in_line(entry)

    def _until_next_s(self, now_s: float) -> float | None:
        while self._later and self._later[0][2]._at_s != self._later[0][0]:  # was woken before
            heapq.heappop(self._later)
        return max(0.0, self._later[0][0] - now_s) if self._later else None

    def _call_one(self) -> None:
        """Somebody is in the line: a thread that is free comes, or one more where there may be. Also for one that is there already, for
        when all threads hang it is the packets of cameras in the line by which that is noticed."""
        if not self._line:
            return
        if self._free:
            self._clock.notify_all(self._free.pop().free)
            return
        if len(self._threads) >= self._width:
            self._replace_slow()
        if len(self._threads) < self._width and not self._closed:
            thread = _Thread(self)
            self._threads.append(thread)
            self._spawn(thread.run)

    def _replace_slow(self) -> None:
        now_s = self._clock.monotonic_s()
        for thread in [t for t in self._threads if t.since_s is not None and now_s - t.since_s >= self._turn_s]:
            thread.replaced = True
            self._threads.remove(thread)
