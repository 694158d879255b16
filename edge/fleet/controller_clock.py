"""What time it is for the controller, by its heartbeats.

A heartbeat says the controller's time when it was sent; when it comes it is later by what the way took. So of several the one that says
the latest time is the best, each moved on by the box's monotonic clock: its wall clock, which may be wrong by hours and may be set at
any moment, has no part in it. A heartbeat far from all before it (the controller's clock was set, or another controller took over)
begins anew.
"""

from __future__ import annotations

from collections import deque

#: Heartbeats that are looked at together, and how far one may be from them, seconds.
KEPT = 12
JUMP_S = 30.0


class ControllerClock:
    """One thread at a time."""

    def __init__(self) -> None:
        self._seen: deque[float] = deque(maxlen=KEPT)  # controller's UTC minus our monotonic time, seconds
        self._heard_s: float | None = None

    def heard(self, utc_s: float, monotonic_s: float) -> None:
        """A heartbeat came just now and says `utc_s`."""
        difference = utc_s - monotonic_s
        if self._seen and abs(difference - max(self._seen)) > JUMP_S:
            self._seen.clear()
        self._seen.append(difference)
        self._heard_s = monotonic_s

    def now_utc_s(self, monotonic_s: float) -> float | None:
        """The controller's clock now; None: it was never heard."""
        return max(self._seen) + monotonic_s if self._seen else None

    def silent_s(self, monotonic_s: float) -> float | None:
        """Since when nothing was heard of it; None: nothing ever was."""
        return None if self._heard_s is None else max(0.0, monotonic_s - self._heard_s)
