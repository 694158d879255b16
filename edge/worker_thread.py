"""A thread of the box that the watchdog can look at and replace (`edge.watchdog.charges.Worker`)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from streams.pulse import Pulse


class WorkerThread:
    """run: the thread's work; it is given a question: goes on while that is true, ends soon after it is false. It says by `pulse` that
    it comes round. A thread that is replaced while it hangs ends when it comes back."""

    def __init__(
        self, name: str, run: Callable[[Callable[[], bool]], None], *, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self.pulse = Pulse(now_s)
        self._name, self._run = name, run
        self._generation = 0
        self._ended = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        generation = self._generation
        self._thread = threading.Thread(
            target=self._run, args=(lambda: generation == self._generation and not self._ended,), name=self._name, daemon=True
        )
        self._thread.start()

    def end(self) -> None:
        """Lets it come to its end; whoever waits inside is woken by its owner."""
        self._ended = True

    def join(self, wait_s: float) -> None:
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(wait_s)

    def is_alive(self) -> bool:
        """Whether it runs, or has not begun, or has been ended."""
        return self._ended or self._thread is None or self._thread.is_alive()

    def silent_s(self) -> float:
        """See `streams.pulse`."""
        return 0.0 if self._ended else self.pulse.silent_s()

    def begin_anew(self) -> None:
        """Another thread goes on."""
        if self._ended:
            return
        self._generation += 1
        self.start()
