"""Rates of pictures: which are due, when keyframes are enough, when a recording's packets are. Times are arguments."""

from __future__ import annotations

from collections import deque

from av.packet import Packet as AvPacket

#: A paced source that is further behind than this takes up its pace anew instead of catching up.
RESYNC_S = 2.0


def media_s(packet: AvPacket) -> float | None:
    """The packet's own time, in seconds from anywhere."""
    return _seconds(packet.dts if packet.dts is not None else packet.pts, packet)


def _seconds(stamp: int | None, packet: AvPacket) -> float | None:
    base = packet.time_base
    if stamp is None or not base:
        return None
    # What float(stamp * base) says, without making fractions: those took longer than anything else that is done for a packet.
    ticks, per_s = base.as_integer_ratio()
    return stamp * ticks / per_s


class Pace:
    """When the packets of something recorded are due. base_s: the time of its first picture."""

    def __init__(self, *, realtime: bool, base_s: float) -> None:
        self._realtime = realtime
        self._base_s = base_s
        self._first_s: float | None = None

    def media_s(self, packet: AvPacket) -> float:
        """When the packet's picture is to be seen."""
        stamp = packet.pts if packet.pts is not None else packet.dts
        return self._base_s + self._since_first(stamp, packet)

    def _since_first(self, stamp: int | None, packet: AvPacket) -> float:
        at_s = _seconds(stamp, packet)
        if at_s is None:
            return 0.0
        self._first_s = at_s if self._first_s is None else self._first_s
        return max(0.0, at_s - self._first_s)

    def wait_s(self, packet: AvPacket, now_s: float) -> float:
        """How long to hold the packet back. After a gap in the times, or a long delay, the pace starts anew."""
        if not self._realtime:
            return 0.0
        wait_s = self._base_s + self._since_first(packet.dts, packet) - now_s
        if abs(wait_s) > RESYNC_S:
            self._base_s -= wait_s
            return 0.0
        return max(0.0, wait_s)


#: Over so many packets the rate of a camera is averaged; a gap longer than this is an interruption and no rate.
_GAPS = 25
_LONGEST_GAP_S = 2.0


class WantedRate:
    """Which pictures are due, from the wanted rate and from what the camera was seen to give. Times are captured_s."""

    def __init__(self) -> None:
        self.wanted_fps = 0.0
        self._announced_s = 0.0
        self._gaps_s: deque[float] = deque(maxlen=_GAPS)
        self._keyframe_period_s = float("inf")
        self._last_s: float | None = None
        self._last_keyframe: tuple[float, float | None] | None = None
        self._due_s = float("-inf")

    def restart(self, fps: float) -> None:
        """A new session of a camera that announces `fps` (0 = it does not)."""
        self._announced_s = 1.0 / fps if fps > 0 else 0.0
        self._gaps_s.clear()
        self._keyframe_period_s = float("inf")
        self._last_s = self._last_keyframe = None

    def saw(self, at_s: float, *, keyframe: bool, media_s: float | None = None) -> None:
        """A packet came at `at_s`; media_s: its own stamp, if it has one."""
        if self._last_s is not None:
            self._gaps_s.append(min(_LONGEST_GAP_S, max(0.0, at_s - self._last_s)))
        self._last_s = at_s
        if keyframe:
            self._saw_keyframe(at_s, media_s)

    def _saw_keyframe(self, at_s: float, media_s: float | None) -> None:
        # Servers send the group in progress in a burst, so a keyframe may come soon after another without being close to it. And
        # the stamps of MJPEG are invented. The longer of the two is on the safe side.
        if self._last_keyframe is not None:
            last_s, last_media_s = self._last_keyframe
            known = media_s is not None and last_media_s is not None
            media_gap_s = media_s - last_media_s if media_s is not None and last_media_s is not None else 0.0
            self._keyframe_period_s = max(at_s - last_s, media_gap_s) if known else float("inf")
        self._last_keyframe = (at_s, media_s)

    def _period_s(self) -> float:
        if self._announced_s > 0 or not self._gaps_s:
            return self._announced_s
        return sum(self._gaps_s) / len(self._gaps_s)

    def seen_fps(self) -> float:
        """The rate announced, or else at which packets come; 0 before there were two."""
        period_s = self._period_s()
        return round(1.0 / period_s, 2) if period_s > 0 else 0.0

    def step_s(self) -> float:
        """From one picture to the next: the wanted period, or the source's own where that is longer; 0 when neither is known."""
        return max(self._period_s(), 1.0 / self.wanted_fps if self.wanted_fps > 0 else 0.0)

    def grace_s(self) -> float:
        """How long after a picture is due its packet is waited for: one and a half of the source's periods, as long as that is known."""
        return 1.5 * (self._period_s() or 0.1)

    def keyframes_only(self) -> bool:
        """Whether keyframes alone come often enough. A tenth of slack: they come over a network."""
        return self.wanted_fps > 0 and self._keyframe_period_s <= 1.1 / self.wanted_fps

    def _slack_s(self) -> float:
        # Half a period either way: a picture a little early is the one meant, not the one after it.
        period_s = self._keyframe_period_s if self.keyframes_only() else self._period_s()
        return 0.5 * min(period_s, 1.0 / self.wanted_fps)

    def wait_s(self, now_s: float) -> float:
        """How long until the next picture is due; 0 when it is."""
        if self.wanted_fps <= 0:
            return 0.0
        return max(0.0, min(self._due_s - self._slack_s() - now_s, 1.0 / self.wanted_fps))

    def due(self, at_s: float) -> bool:
        if self.wanted_fps > 0 and at_s < self._due_s - 0.5 / self.wanted_fps:
            return False  # what `wait_s` would say after longer: the slack is never more
        return self.wait_s(at_s) <= 0

    def produced(self, at_s: float) -> None:
        """A picture was made: the next is due one wanted period after this one was, or after now when that is long past."""
        if self.wanted_fps > 0:
            period_s = 1.0 / self.wanted_fps
            self._due_s = self._due_s + period_s if abs(self._due_s - at_s) <= period_s else at_s + period_s
