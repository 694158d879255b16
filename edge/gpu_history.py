"""The last hour of a box's compute, in memory: what every job was promised and received, its memory, and how the devices were.

One thread asks the backend every `EVERY_S` seconds. What is older than `SPAN_S` goes, and what is as it was in the look before is kept
once (memory and device facts hardly change); whole windows are in the database
(`edge.store.store.Store.shares`).
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from configs.errors import redact
from edge.clock import Clock
from edge.gpu.base import DeviceFacts, JobMemory, ShareReport
from edge.worker_thread import WorkerThread

log = logging.getLogger("driftbox")

EVERY_S = 10.0
SPAN_S = 3600.0


T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One look. shares: over the time since the look before."""

    at_utc: float
    shares: Mapping[str, ShareReport]
    memory: Mapping[str, JobMemory]
    devices: tuple[DeviceFacts, ...]


_NOTHING = Point(at_utc=0.0, shares={}, memory={}, devices=())


def _kept_once(before: Mapping[str, T], now: Mapping[str, T]) -> Mapping[str, T]:
    """`now`, with the very names and values of `before` where they are equal: an hour of them is an hour of references."""
    if now == before:
        return before
    names = {name: name for name in before}
    return {names.get(name, name): before[name] if before.get(name) == value else value for name, value in now.items()}


@dataclass(frozen=True, kw_only=True)
class Sources:
    """What is asked: `ComputeBackend.report` (a job's lanes as one), `ComputeBackend.memory`, the machine's GPUs."""

    report: Callable[[float], Mapping[str, ShareReport]]
    memory: Callable[[], Mapping[str, JobMemory]]
    devices: Callable[[], tuple[DeviceFacts, ...]]


class GpuHistory:
    """Thread-safe. `start` begins a thread, `stop` ends it."""

    def __init__(self, sources: Sources, clock: Clock) -> None:
        self._sources, self._clock = sources, clock
        self._points: deque[Point] = deque(maxlen=round(SPAN_S / EVERY_S))
        self._changed = threading.Condition()
        self._failed = ""
        self.thread = WorkerThread("gpu-history", self._run, now_s=clock.monotonic_s)

    def points(self) -> tuple[Point, ...]:
        """Oldest first."""
        return tuple(self._points)

    def look(self) -> None:
        """One point. What cannot be asked is said once and left out."""
        try:
            before = self._points[-1] if self._points else _NOTHING
            devices = self._sources.devices()
            point = Point(
                at_utc=self._clock.utc_s(), shares=_kept_once(before.shares, self._sources.report(EVERY_S)),
                memory=_kept_once(before.memory, self._sources.memory()),
                devices=before.devices if devices == before.devices else devices,
            )  # fmt: skip
        except Exception as error:  # a device that is gone, say: the next look may do better
            text = redact(f"{type(error).__name__}: {error}")
            if text != self._failed:
                log.warning("the history of shares has a gap: %s", text)
            self._failed = text
            return
        self._failed = ""
        self._points.append(point)

    def start(self) -> None:
        self.thread.start()

    def stop(self) -> None:
        """Safe to call twice and without start."""
        self.thread.end()
        with self._changed:
            self._clock.notify_all(self._changed)
        self.thread.join(2.0)

    def _run(self, goes_on: Callable[[], bool]) -> None:
        due_s = self._clock.monotonic_s() + EVERY_S
        while self._sleep_until(due_s, goes_on):
            self.thread.pulse.beat()
            self.look()
            # Not due_s + EVERY_S: after a machine's sleep one look is enough.
            due_s = max(due_s + EVERY_S, self._clock.monotonic_s() + EVERY_S / 2)

    def _sleep_until(self, due_s: float, goes_on: Callable[[], bool]) -> bool:
        """False: it is to stop."""
        self.thread.pulse.rest(for_s=max(0.0, due_s - self._clock.monotonic_s()))
        with self._changed:
            while goes_on() and (left_s := due_s - self._clock.monotonic_s()) > 0:
                self._clock.wait(self._changed, left_s)
        return goes_on()
