"""What a job's thread cost, where a GPU computes for it: a clock whose "CPU seconds of a thread" are seconds of the device.

The box measures what a frame, an epoch or a label costs by `Clock.thread_cpu_s` in the job's thread, inside its lane's iterations. On a
GPU that thread mostly waits, and its CPU time says nothing about the share that it needs. `DeviceClock` answers with what the device
spent on the iterations that this thread ran; `TimedDevice` puts a device's seats under it. (Where jobs compute in other processes,
`edge.gpu.remote.RemoteClock` does the same.)
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from edge.clock import Clock
from edge.gpu.base import Role
from edge.gpu.device import Device, Seat
from scheduler.salus.types import MemoryNeed


class DeviceClock:
    """base: the machine's clocks; part: of a whole GPU that the device is (1; less in a MIG partition), since costs are in seconds of a
    whole one. A thread that is in no iteration costs nothing. Thread-safe: each thread writes only its own entry."""

    def __init__(self, base: Clock) -> None:
        self._base = base
        self.part = 1.0
        # thread -> (seconds of iterations that are over, seat of the one it is in, that seat's reading at its begin), replaced at once
        self._threads: dict[int, tuple[float, Seat | None, float]] = {}

    def monotonic_s(self) -> float:
        return self._base.monotonic_s()

    def utc_s(self) -> float:
        return self._base.utc_s()

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> None:
        self._base.wait(condition, timeout_s)

    def notify_all(self, condition: threading.Condition) -> None:
        self._base.notify_all(condition)

    def thread_cpu_s(self, thread_id: int | None = None) -> float:
        ident = threading.get_ident() if thread_id is None else thread_id
        before_s, seat, began_s = self._threads.get(ident, (0.0, None, 0.0))
        return self.part * (before_s + (seat.used_s() - began_s if seat is not None else 0.0))

    @contextmanager
    def iteration_of(self, seat: Seat) -> Iterator[None]:
        """The calling thread is in an iteration of this seat."""
        ident = threading.get_ident()
        before_s, _, _ = self._threads.get(ident, (0.0, None, 0.0))
        began_s = seat.used_s()
        self._threads[ident] = (before_s, seat, began_s)
        try:
            yield
        finally:
            self._threads[ident] = (before_s + seat.used_s() - began_s, None, 0.0)


class TimedSeat:
    """A seat whose iterations count for the thread that runs them; see `edge.gpu.device.Seat`."""

    def __init__(self, seat: Seat, clock: DeviceClock) -> None:
        self._seat, self._clock = seat, clock
        self.settle, self.resume, self.used_s, self.close = seat.settle, seat.resume, seat.used_s, seat.close

    @contextmanager
    def iteration(self, lane: int | None, *, measure: bool) -> Iterator[None]:
        with self._clock.iteration_of(self._seat), self._seat.iteration(lane, measure=measure):
            yield

    def usage(self) -> MemoryNeed | None:
        return self._seat.usage()


class TimedDevice:
    """A device, all of whose seats are timed; everything else is the device's own. See `edge.gpu.device.Device`."""

    def __init__(self, device: Device, clock: DeviceClock) -> None:
        self._device, self._clock = device, clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def seat(self, job: str, role: Role) -> Seat:
        return TimedSeat(self._device.seat(job, role), self._clock)


def timed(device: Device, clock: Clock) -> Device:
    """The device under `clock`, if that is a clock of devices."""
    return TimedDevice(device, clock) if isinstance(clock, DeviceClock) else device
