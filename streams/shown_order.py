"""When pictures were taken, where they are sent in another order than they are shown in (B pictures).

A packet comes when the camera sends it, and a picture that later ones refer to is sent before those that are shown first; so packets'
times are in order and those of their pictures are not. But as many pictures are shown as are sent: the first that is shown was taken
when the first packet came, less a delay that is the same for all, and so on. Where pictures are sent as they are shown, each has its own
packet's time. Times are arguments.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort

#: (captured_s, captured_utc).
Times = tuple[float, float]


class ShownOrder:
    """Of one decoder: what it was given and has not shown yet. Pictures that it never shows take their times with them when one that
    is shown later comes, so nothing shifts. Stamps are packets' pts; what has none keeps its own time, or that of the picture before it
    where it would go back."""

    def __init__(self) -> None:
        self._stamps: list[int] = []  # ascending, as the times; there are as many
        self._times: list[Times] = []
        self._shown_stamp: int | None = None
        self._shown: Times = (float("-inf"), float("-inf"))

    def sent(self, stamp: int | None, times: Times, *, keyframe: bool) -> None:
        """A packet goes into the decoder."""
        if stamp is None:
            return
        goes_back = self._shown_stamp is not None and stamp <= self._shown_stamp
        if keyframe or goes_back:
            # What was sent before a keyframe is shown before it, and nothing is shown twice: those stamps count anew from here.
            self._forget_from(stamp)
        if goes_back:
            self._shown_stamp = None
        insort(self._stamps, stamp)
        insort(self._times, times)

    def _forget_from(self, stamp: int) -> None:
        kept = bisect_left(self._stamps, stamp)
        del self._times[: len(self._stamps) - kept]
        del self._stamps[kept:]

    def shown(self, stamp: int | None, own: Times) -> Times:
        """When the picture that the decoder shows now was taken. own: when its packet came."""
        if stamp is not None:
            passed = bisect_right(self._stamps, stamp)
            own = self._times[passed - 1] if passed else own
            del self._stamps[:passed], self._times[:passed]
            self._shown_stamp = stamp
        self._shown = max(self._shown, own)
        return self._shown

    def flushed(self) -> None:
        """The decoder forgot what it had."""
        self._stamps.clear()
        self._times.clear()
