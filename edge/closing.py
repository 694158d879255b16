"""Ending a box in bounded time: one deadline for all that is waited for, and a second signal that does not wait at all.

What a box has accepted is on the disk by then (database, outbox, labels, journal), so that whoever is not waited for costs nothing.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable
from types import FrameType, TracebackType
from typing import NoReturn

log = logging.getLogger("driftbox")

#: Seconds for the box's threads, of the ten that a clean end may take: web and MQTT say farewell after them.
THREADS_S = 6.0
#: Seconds from the first signal to the end of the process, whoever has not said farewell by then: a broker that hangs, say.
ALL_S = 9.0
_SLICE_S = 0.05
#: Seconds until a start that swallowed its end is told again.
AGAIN_S = 0.05


class Closing:
    """Waits for threads, all together at most `within_s` from the first one on. `hurry` ends all waiting; from any thread."""

    def __init__(self, within_s: float = THREADS_S, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._within_s, self._now_s = within_s, now_s
        self._until_s: float | None = None
        self._hurried = threading.Event()

    def hurry(self) -> None:
        self._hurried.set()

    def left_s(self) -> float:
        """Seconds that may still be waited."""
        if self._until_s is None:
            self._until_s = self._now_s() + self._within_s
        return 0.0 if self._hurried.is_set() else max(0.0, self._until_s - self._now_s())

    def join(self, threads: Iterable[threading.Thread]) -> list[str]:
        """Waits for threads to end; names of those that did not."""
        threads = list(threads)
        for thread in threads:
            while thread.is_alive() and self.left_s() > 0:
                thread.join(min(_SLICE_S, self.left_s()))
        return [thread.name for thread in threads if thread.is_alive()]

    def all_at_once(self, works: dict[str, Callable[[], None]]) -> list[str]:
        """Does what takes its time in threads of their own, so that the slowest counts and not the sum; names of what is not done."""
        threads = [threading.Thread(target=_tried, args=(name, work), name=name, daemon=True) for name, work in works.items()]
        for thread in threads:
            thread.start()
        return self.join(threads)


def _tried(name: str, work: Callable[[], None]) -> None:
    try:
        work()
    except Exception:  # the others are to be ended all the same
        log.exception("%s failed", name)


def leave(code: int) -> NoReturn:
    """Ends this process at once, when all of a box is closed: an interpreter with its libraries takes seconds to put itself away."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


class Signals:
    """SIGTERM and SIGINT over the life of a box: during its start they end that, then they stop the box, and the second one hurries.

    Some libraries swallow what ends a start when it hits them in the middle of their own, or make an error of their own of it. So an
    error on the way out of a start that was told to end is no failure, and a box that has come up all the same is stopped. Where nothing
    can be raised at all (a collector's callback, a `__del__`) Python prints it and goes on: then the start is told again.

    leave_after_s: so long after the first signal to a box that runs the process ends, whatever is still waited for; None: never (where
    the process is not the box's alone). end: ends it.
    """

    def __init__(self, *, leave_after_s: float | None = None, end: Callable[[int], object] = leave) -> None:
        self._leave_after_s, self._end = leave_after_s, end
        self._timer: threading.Timer | None = None
        self._before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        self._stop: Callable[[], None] | None = None
        self._hurry: Callable[[], None] = lambda: None
        self._count = 0
        self._early_code: int | None = None  # a start was told to end, and with which exit code it does
        self._unraisable = sys.unraisablehook
        self._again: threading.Timer | None = None

    def __enter__(self) -> Signals:
        self._unraisable, sys.unraisablehook = sys.unraisablehook, self._swallowed
        self.listen()
        return self

    def listen(self) -> None:
        """Takes the signals; again when an event loop that had taken them has ended. Only the main thread can."""
        if threading.current_thread() is threading.main_thread():
            for number in self._before:
                signal.signal(number, self._came)

    def __exit__(self, ended_by: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for timer in (self._timer, self._again):
            if timer is not None:
                timer.cancel()
        if threading.current_thread() is threading.main_thread():
            for number, handler in self._before.items():
                signal.signal(number, handler)
        sys.unraisablehook = self._unraisable
        if isinstance(error, Exception) and self._stop is None and self._early_code is not None:
            log.info("the start ended in the middle of something", exc_info=log.isEnabledFor(logging.DEBUG))
            raise SystemExit(self._early_code) from None

    def runs(self, *, stop: Callable[[], None], hurry: Callable[[], None]) -> None:
        """From now on the box runs: the first signal stops it, the second hurries, a third ends the process."""
        self._stop, self._hurry = stop, hurry
        if self._early_code is not None:
            self._count_down()
            stop()

    def came(self) -> None:
        """A signal came while the box runs or ends."""
        self._count += 1
        if self._count == 1:
            log.info("told to stop")
            self._count_down()
            if self._stop is not None:
                self._stop()
        elif self._count == 2:
            log.warning("told again: nobody is waited for")
            self._hurry()
        else:
            os._exit(143)

    def _count_down(self) -> None:
        if self._leave_after_s is not None and self._timer is None:
            self._timer = threading.Timer(self._leave_after_s, self._too_long)
            self._timer.daemon = True
            self._timer.start()

    def _too_long(self) -> None:
        log.warning("not everything has ended within %g s and is left: what was accepted is on the disk", self._leave_after_s)
        self._end(0)

    def _swallowed(self, unraisable: sys.UnraisableHookArgs) -> None:
        if self._early_code is None or self._stop is not None or not isinstance(unraisable.exc_value, SystemExit):
            self._unraisable(unraisable)
            return
        number = signal.SIGINT if self._early_code else signal.SIGTERM
        self._count = 0
        self._again = threading.Timer(AGAIN_S, os.kill, (os.getpid(), number))
        self._again.daemon = True
        self._again.start()

    def _came(self, number: int, frame: FrameType | None) -> None:
        if self._stop is not None:
            self.came()
            return
        self._count += 1
        if self._count > 1:
            os._exit(128 + number)
        log.info("told to stop before the box was up")
        self._early_code = 0 if number == signal.SIGTERM else 130
        sys.exit(self._early_code)
