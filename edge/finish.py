"""How many of a camera's frames were answered by their deadline: the finish rate (Orloj, section 1), live.

A frame is *due* when the knobs in force ask for one. It is *in time* when its answer was there `goal_s` after the picture was taken.
The others were late, given up (`edge.pool`), failed, or never taken because the camera's thread was still busy with an earlier one:
all of them count, whichever way a box serves, so that ways of serving compare.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from dataclasses import dataclass

#: Lags that are remembered for quantiles.
LAGS_KEPT = 2048


@dataclass(frozen=True, kw_only=True)
class Finished:
    """Counts over some time. due: frames that the knobs asked for; in_time: answered by their deadline; answered: at all; dropped: given
    up because they would have been late. lag_p50_s, lag_p99_s: from capture to answer, of the answered; None: none was."""

    due: int = 0
    in_time: int = 0
    answered: int = 0
    dropped: int = 0
    lag_p50_s: float | None = None
    lag_p99_s: float | None = None

    @property
    def frac(self) -> float | None:
        """The finish rate, 0-1; None: nothing was due."""
        return self.in_time / self.due if self.due else None


class DueFrames:
    """Counts the frames that were due, from the times at which those that were handled had been taken: between two of them as many
    were due as the wanted interval fits in, whoever skipped the others. Of one camera, for one thread."""

    def __init__(self) -> None:
        self._last_s: float | None = None
        self._owed = 0.0

    def rest(self) -> None:
        """Nothing is wanted until the next frame."""
        self._last_s, self._owed = None, 0.0

    def until(self, captured_s: float, interval_s: float, *, silent_s: float = 0.0) -> int:
        """Frames due since the last call, at least the one that was handled. interval_s: between wanted frames; silent_s: for so long
        the camera had none."""
        last_s, self._last_s = self._last_s, captured_s
        if last_s is None:
            return 1
        self._owed += max(0.0, captured_s - last_s - silent_s) / interval_s
        due = max(1, math.floor(self._owed + 1e-6))
        self._owed = max(-1.0, self._owed - due)
        return due


class FinishBook:
    """One camera's counts since it started, and since the last `close_window`. goal_s: from capture to answer. Thread-safe."""

    def __init__(self, goal_s: float) -> None:
        if not (math.isfinite(goal_s) and goal_s > 0):
            raise ValueError(f"a deadline goal is a positive time, got {goal_s}")
        self.goal_s = goal_s
        self._lock = threading.Lock()
        self._counts = [0, 0, 0, 0]  # due, in time, answered, dropped
        self._before = [0, 0, 0, 0]  # at the last `close_window`
        self._lags_s: deque[float] = deque(maxlen=LAGS_KEPT)
        self._window_lags_s: deque[float] = deque(maxlen=LAGS_KEPT)

    def due(self, frames: int = 1) -> None:
        """So many more frames were asked for."""
        with self._lock:
            self._counts[0] += frames

    def answered(self, lag_s: float) -> None:
        with self._lock:
            self._counts[1] += lag_s <= self.goal_s
            self._counts[2] += 1
            self._lags_s.append(lag_s)
            self._window_lags_s.append(lag_s)

    def dropped(self) -> None:
        with self._lock:
            self._counts[3] += 1

    def total(self) -> Finished:
        """Since the start; quantiles of the newest `LAGS_KEPT` answers."""
        with self._lock:
            return _finished(self._counts, self._lags_s)

    def window(self) -> Finished:
        """Since the last `close_window`."""
        with self._lock:
            return self._window()

    def close_window(self) -> Finished:
        """As `window`, which then begins anew."""
        with self._lock:
            told = self._window()
            self._before = list(self._counts)
            self._window_lags_s.clear()
            return told

    def _window(self) -> Finished:
        return _finished([now - then for now, then in zip(self._counts, self._before, strict=True)], self._window_lags_s)


def _finished(counts: list[int], lags_s: deque[float]) -> Finished:
    ordered = sorted(lags_s)
    due, in_time, answered, dropped = counts
    return Finished(
        due=due, in_time=in_time, answered=answered, dropped=dropped, lag_p50_s=quantile(ordered, 0.5), lag_p99_s=quantile(ordered, 0.99)
    )  # fmt: skip


def quantile(ordered: list[float], frac: float) -> float | None:
    """The value that `frac` of the ascending values do not exceed; None: there are none."""
    if not ordered:
        return None
    return ordered[min(len(ordered) - 1, max(0, math.ceil(frac * len(ordered)) - 1))]


def described(camera: str, finished: Finished, goal_s: float) -> str:
    """One line for the log."""
    text = f"{camera}: {finished.in_time} of {finished.due} frames by their deadline of {1000 * goal_s:.0f} ms"
    if finished.frac is not None:
        text += f" ({100 * finished.frac:.1f} %)"
    if finished.dropped:
        text += f", {finished.dropped} given up"
    if finished.lag_p50_s is not None and finished.lag_p99_s is not None:
        text += f", lag p50 {1000 * finished.lag_p50_s:.0f} ms, p99 {1000 * finished.lag_p99_s:.0f} ms"
    return text
