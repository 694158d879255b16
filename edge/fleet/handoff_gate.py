"""Between a camera's worker and those who are told of its frames, while the camera changes boxes: each frame is told by one box.

    worker --Shown--> Gate --tell--> objects, queries          hold: kept until it is known up to where the owner before has told

A frame is known by the time that the camera itself gave it (`Frame.camera_s`), which is the same on both boxes. A stream that tells no
such time is ordered by the time of arrival, less the box's clock offset: then a frame at the very border may be told twice, or not.

Before the first frame is told the camera's state is taken on, as it was after the last one that was told elsewhere. It is waited for
some seconds; a camera whose state does not come begins anew.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

from edge.inference import Shown
from scheduler.fleet.handoff import Voice

#: Two times that are closer are the same frame's: reports of a camera's clock differ by some ms, frames by 16 and more.
SAME_FRAME_S = 0.008
#: What is kept at most: the switch takes a second or two. Beyond that the oldest goes.
KEPT_S, KEPT_BYTES = 30.0, 256 * 2**20
#: Times further apart are not of one clock: the camera was set, or one box knows its clock and the other does not.
OTHER_CLOCK_S = 120.0
#: Longest that a kept frame waits for those who are told to have taken the one before.
TAKES_S = 1.0

Tell = Callable[[Shown], None]
#: Told once before the first frame: when, by our clock, the last frame was that was told elsewhere.
Begin = Callable[[float], None]


class Gates(Protocol):
    """What a runtime asks when a camera comes in."""

    def through(self, camera: str, tell: Tell, behind: Callable[[], bool]) -> Tell: ...


class Gate:
    """Of one camera. Thread-safe; `look` is called by the camera's worker and returns at once. offset_s: this box's clock minus the
    controller's, for streams without a clock."""

    def __init__(self, *, offset_s: Callable[[], float] = lambda: 0.0, now_s: Callable[[], float] = time.monotonic) -> None:
        self._offset_s, self._now_s = offset_s, now_s
        self._lock = threading.Condition(threading.Lock())
        self._telling = 0
        self._tell: Tell = lambda shown: None
        self._behind: Callable[[], bool] = lambda: False
        self._voice: Voice = "tell"
        self._after_s = self._last_elsewhere_s = 0.0
        self._owned_s = float("inf")
        self._kept: deque[Shown] = deque()
        self._kept_bytes = 0
        self._draining = False
        self._awaited: tuple[float, float] | None = (
            None  # frames after which are to be told, until when the state is waited for
        )
        self._first: Begin | None = None
        self.gave_up = False
        self.begin()

    def begin(self) -> None:
        """A new stay of the camera on this box."""
        with self._lock:
            self.began_s = self._now_s()
            self.frames, self.lost, self.has_clock = 0, 0, False
            self._told: tuple[float, float] | None = None
            self._seen: tuple[float, float] | None = None
            self._awaited, self._first, self.gave_up = None, None, False
            self._forget()

    def through(self, tell: Tell, behind: Callable[[], bool]) -> Tell:
        """What the worker is to call. behind: whether those who are told have not taken the last frame yet."""
        with self._lock:
            self._tell, self._behind = tell, behind
        return self.look

    # --- what the box says --------------------------------------------------------------------------------------------

    @property
    def voice(self) -> Voice:
        return self._voice

    @property
    def awaits(self) -> bool:
        """Whether frames wait for the camera's state."""
        return self._awaited is not None

    @property
    def span_s(self) -> tuple[float, float] | None:
        """Camera time of the first and last frame told in this stay; where none was, of those analysed."""
        with self._lock:
            return self._told or (self._seen if self._voice == "hold" else None)

    def silence(self) -> None:
        """Nothing is told any more; when this returns `span_s` is final."""
        with self._lock:
            self._voice, self._awaited = "silent", None
            self._forget()

    def settled(self, within_s: float) -> bool:
        """Waits until the last frame that counts as told was really told; whether it was."""
        with self._lock:
            return self._lock.wait_for(lambda: self._telling == 0, within_s)

    def hold(self, *, owned: bool) -> None:
        """Frames are kept. owned: this box is the owner, so what finds no room is lost."""
        with self._lock:
            self._voice, self._awaited = "hold", None
            self._owned_s = min(self._owned_s, self._now_s()) if owned else float("inf")

    def await_state(self, after_s: float, within_s: float) -> bool:
        """As `tell_after`, but the state has to come first (`tell_after` with it), for so long; then frames are told without. Whether it
        is waited for: not where frames are told already."""
        with self._lock:
            if self._voice == "hold" and self._awaited is None:
                self._awaited = (after_s, self._now_s() + within_s)
            return self._awaited is not None

    def tell_after(self, after_s: float, first: Begin | None = None) -> bool:
        """Frames after this camera time are told, the kept ones first; before the first of them, `first` is. Nothing happens when frames
        are told already, and False is the answer."""
        with self._lock:
            if self._voice == "tell":
                return False
            self._voice, self._after_s, self._awaited = "tell", after_s, None
            self._first = first
            self._last_elsewhere_s = after_s
            newest_s = self._time_of(self._kept[-1]) if self._kept else None
            if newest_s is not None and after_s > 0 and abs(newest_s - after_s) > OTHER_CLOCK_S:
                self._after_s = 0.0
                self._kept = deque(s for s in self._kept if s.frame.captured_s >= self._owned_s)
            else:
                self._kept = deque(s for s in self._kept if self._is_new(self._time_of(s)))
            self._kept_bytes = sum(_bytes(s) for s in self._kept)
            self._owned_s = float("inf")
            if not self._kept or self._draining:
                return True
            self._draining = True
        threading.Thread(target=self._drain, name="handoff-frames", daemon=True).start()
        return True

    # --- frames -------------------------------------------------------------------------------------------------------

    def look(self, shown: Shown) -> None:
        """A frame that the worker has analysed."""
        at_s = self._time_of(shown)
        with self._lock:
            self.frames += 1
            self.has_clock = self.has_clock or shown.frame.camera_s is not None
            self._seen = (self._seen[0] if self._seen else at_s, at_s)
            if self._voice == "silent" or (self._voice == "tell" and not self._is_new(at_s)):
                return
            awaited = self._awaited
            if self._voice == "hold" or self._draining:
                self._keep(shown)
                if awaited is None or self._now_s() < awaited[1]:
                    return
                first = None
            else:
                awaited, first = None, self._begin_to_tell(shown)
        if awaited is not None:
            self.gave_up = self.tell_after(awaited[0])
            return
        self._tell_it(shown, first)

    def _drain(self) -> None:
        """Kept frames one after the other, no faster than they are taken; new ones come behind them."""
        while True:
            until_s = time.monotonic() + TAKES_S
            while self._behind() and time.monotonic() < until_s:
                time.sleep(0.002)
            with self._lock:
                if self._voice != "tell" or not self._kept:
                    self._draining = False
                    return
                shown = self._kept.popleft()
                self._kept_bytes -= _bytes(shown)
                first = self._begin_to_tell(shown)
            self._tell_it(shown, first)

    def _begin_to_tell(self, shown: Shown) -> Callable[[], None] | None:
        """Lock held: with this the frame counts as told. What is to be done before it is."""
        at_s = self._time_of(shown)
        self._note(at_s)
        self._telling += 1
        first, self._first = self._first, None
        if first is None:
            return None
        since_s = at_s - self._last_elsewhere_s  # a time that is of another clock says nothing
        return partial(first, shown.frame.captured_s - (since_s if 0 < since_s < OTHER_CLOCK_S else SAME_FRAME_S))

    def _tell_it(self, shown: Shown, first: Callable[[], None] | None) -> None:
        try:
            if first is not None:
                first()
            self._tell(shown)
        finally:
            with self._lock:
                self._telling -= 1
                self._lock.notify_all()

    def _keep(self, shown: Shown) -> None:
        self._kept.append(shown)
        self._kept_bytes += _bytes(shown)
        while self._kept_bytes > KEPT_BYTES or shown.frame.captured_s - self._kept[0].frame.captured_s > KEPT_S:
            oldest = self._kept.popleft()
            self._kept_bytes -= _bytes(oldest)
            self.lost += oldest.frame.captured_s >= self._owned_s or self._voice == "tell"

    def _forget(self) -> None:
        self._kept.clear()
        self._kept_bytes = 0

    def _note(self, at_s: float) -> None:
        self._told = (self._told[0] if self._told else at_s, at_s)

    def _is_new(self, at_s: float) -> bool:
        """Whether a frame is after what the owner before has told. A camera whose clock is set back begins anew."""
        if at_s < self._after_s - OTHER_CLOCK_S:
            self._after_s = 0.0
        return at_s > self._after_s + SAME_FRAME_S

    def _time_of(self, shown: Shown) -> float:
        frame = shown.frame
        return frame.camera_s if frame.camera_s is not None else frame.captured_utc - self._offset_s()


def _bytes(shown: Shown) -> int:
    """Of its picture, which need not be made for that."""
    width, height = shown.frame.size_px
    return 3 * width * height
