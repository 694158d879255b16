"""Time as an argument of the shell: what the code that waits asks for the time, and a fake that jumps to the next deadline.

`Clock` is the seam; `SystemClock` is the machine, `FakeClock` runs real threads in virtual time (idea: trio's autojump clock),
so that tests of waiting code are exact and take no time. Decisions (`scheduler/`) never see a clock: they are told the time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Protocol

from edge import garbage


class Clock(Protocol):
    """All waiting goes through `wait` and `notify_all`, so that a fake knows who is asleep and who has been woken."""

    def monotonic_s(self) -> float:
        """Seconds that never jump; the zero point has no meaning."""

    def utc_s(self) -> float:
        """Seconds since the epoch; may jump in both directions."""

    def thread_cpu_s(self, thread_id: int | None = None) -> float:
        """CPU seconds used by the calling thread, or by the *running* thread `thread_id` (`threading.get_ident`)."""

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> None:
        """Waits on `condition` (held by the caller) until notified or `timeout_s` passed; may return early."""

    def notify_all(self, condition: threading.Condition) -> None:
        """Wakes everyone who waits on `condition` (held by the caller)."""


class SystemClock:
    """The machine's clocks. Full collections of garbage, which are the process's, are left out of what a thread used."""

    _collections = garbage.watch()

    def monotonic_s(self) -> float:
        return time.monotonic()

    def utc_s(self) -> float:
        return time.time()

    def thread_cpu_s(self, thread_id: int | None = None) -> float:
        me = threading.get_ident()
        if thread_id is None or thread_id == me:
            return time.thread_time() - self._collections.spent_s(me)
        return time.clock_gettime(time.pthread_getcpuclockid(thread_id)) - self._collections.spent_s(thread_id)

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> None:
        condition.wait(timeout_s)

    def notify_all(self, condition: threading.Condition) -> None:
        condition.notify_all()


class _Sleeper:
    """One blocked thread: what it waits on and until when (None: until notified)."""

    def __init__(self, condition: threading.Condition, deadline_s: float | None) -> None:
        self.condition = condition
        self.deadline_s = deadline_s
        self.awake = False


class FakeClock:
    """Virtual time for real threads. Threads made by `spawn` take part; the test's own thread drives with `advance_to`.

    Time moves only inside `advance_to`, and only when every spawned thread is blocked in `wait` (or `work`, `sleep`): it then
    jumps to the earliest deadline. So the outcome does not depend on how fast the machine is. Every thread has its own core.
    """

    def __init__(self, start_s: float = 0.0, start_utc_s: float = 1_700_000_000.0) -> None:
        self._now_s = start_s
        self._utc_offset_s = start_utc_s - start_s
        self._state = threading.Condition()
        self._sleepers: list[_Sleeper] = []
        self._cpu_s: dict[int, float] = {}
        self._running = 0
        self._errors: list[BaseException] = []
        self._threads: list[threading.Thread] = []

    def monotonic_s(self) -> float:
        return self._now_s

    def utc_s(self) -> float:
        return self._now_s + self._utc_offset_s

    def jump_utc(self, by_s: float) -> None:
        """The wall clock is set by someone; monotonic time does not notice."""
        self._utc_offset_s += by_s

    def thread_cpu_s(self, thread_id: int | None = None) -> float:
        return self._cpu_s.get(threading.get_ident() if thread_id is None else thread_id, 0.0)

    def wait(self, condition: threading.Condition, timeout_s: float | None) -> None:
        sleeper = _Sleeper(condition, None if timeout_s is None else self._now_s + max(0.0, timeout_s))
        with self._state:
            self._sleepers.append(sleeper)
            self._running -= 1
            self._state.notify_all()
        while not sleeper.awake:
            condition.wait()

    def notify_all(self, condition: threading.Condition) -> None:
        self._wake([s for s in self._sleepers if s.condition is condition])
        condition.notify_all()

    def sleep(self, seconds: float) -> None:
        """The calling (spawned) thread does nothing for `seconds`."""
        condition = threading.Condition()
        with condition:
            self.wait(condition, seconds)

    def work(self, cpu_s: float) -> None:
        """The calling (spawned) thread computes for `cpu_s` on a core of its own."""
        self.sleep(cpu_s)
        ident = threading.get_ident()
        self._cpu_s[ident] = self._cpu_s.get(ident, 0.0) + cpu_s

    def spawn(self, body: Callable[[], None]) -> threading.Thread:
        """Starts a thread that takes part in virtual time. Its exception is raised again by `advance_to` and `join`."""
        with self._state:
            self._running += 1
        thread = threading.Thread(target=self._run, args=(body,), daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def advance_to(self, target_s: float) -> None:
        """Lets virtual time run to `target_s`; on return every spawned thread is blocked or finished."""
        while True:
            with self._state:
                self._state.wait_for(lambda: self._running == 0)
                self._raise_first_error()
                due = [s.deadline_s for s in self._sleepers if s.deadline_s is not None and s.deadline_s <= target_s]
                if not due:
                    self._now_s = max(self._now_s, target_s)
                    return
                self._now_s = max(self._now_s, min(due))
                woken = [s for s in self._sleepers if s.deadline_s is not None and s.deadline_s <= self._now_s]
            self._wake(woken)
            for sleeper in woken:
                with sleeper.condition:
                    sleeper.condition.notify_all()

    def join(self) -> None:
        """Waits (really) for all spawned threads to end; call it when they have been told to stop."""
        for thread in self._threads:
            thread.join(timeout=10.0)
        self._raise_first_error()

    def _wake(self, sleepers: list[_Sleeper]) -> None:
        with self._state:
            for sleeper in sleepers:
                if not sleeper.awake:
                    sleeper.awake = True
                    self._sleepers.remove(sleeper)
                    self._running += 1

    def _run(self, body: Callable[[], None]) -> None:
        try:
            body()
        except BaseException as error:  # handed to the driving thread, which raises it
            self._errors.append(error)
        finally:
            with self._state:
                self._running -= 1
                self._state.notify_all()

    def _raise_first_error(self) -> None:
        if self._errors:
            raise self._errors.pop(0)
