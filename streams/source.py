"""The seam to cameras: a `Source` hands out encoded packets; decoding happens later and only when wanted (`streams.buffer`).

Owner of the states an operator sees. A source never logs or raises a credential: errors are `StreamError` with a code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from configs.errors import StreamErrorCode
from scheduler.types import Frame
from streams.masks import Mask


class CameraState(StrEnum):
    CONNECTING = "connecting"
    LIVE = "live"
    STALLED = "stalled"
    WAITING = "waiting"  # backing off before the next try
    ENDED = "ended"  # a file that does not repeat
    STOPPED = "stopped"


@dataclass(frozen=True, kw_only=True)
class CameraStatus:
    """What is known of a camera right now. since_s: monotonic time of the last state change. error: redacted text. frames_unseen: made
    and replaced by a newer one before anybody took them; lag_s: as `Camera.lag_s`."""

    state: CameraState
    since_s: float
    code: StreamErrorCode | None = None
    error: str = ""
    width_px: int = 0
    height_px: int = 0
    fps: float = 0.0
    frames_decoded: int = 0
    frames_unseen: int = 0
    packets_dropped: int = 0
    reconnects: int = 0
    lag_s: float = 0.0


class Camera(Protocol):
    """A running camera: threads behind it read, reconnect and decode. The newest frame wins, except in a recording that may lag."""

    id: str

    @property
    def may_lag(self) -> bool:
        """Whether every wanted frame is given, one after the other, however long each takes (a recording); else the newest wins. Such
        a camera has one taker, who waits for frames; calls with timeout_s=0 look at the frame that was taken last."""

    @property
    def lag_s(self) -> float:
        """Seconds of video that wait in front of who takes the frames, still encoded or unread: VideoStorm's lag (section 5). 0 for
        what may not lag."""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def want(self, *, fps: float, height_px: int = 0, regions: bool = False) -> None:
        """Changes the wanted rate and height while running (0 = as the camera gives). regions: frames say what moves in them
        (`streams.motion`); it costs a few milliseconds a frame, so it is off unless asked for."""

    def mask(self, masks: Sequence[Mask]) -> None:
        """Burns other privacy masks into every picture from the next one on."""

    def next_frame(self, *, after_seq: int, timeout_s: float) -> Frame | None:
        """The newest frame with seq > after_seq, waiting at most timeout_s; None when none came. Masks are burnt in."""

    def status(self) -> CameraStatus: ...


@runtime_checkable
class Undecoded(Protocol):
    """A live camera whose frames may be decoded by who takes them, at the moment when it has a turn at the processor, in its own thread:
    what waits for a turn waits encoded. One thread does so, and has to come back within seconds; else the camera decodes for itself."""

    def until_due(self, *, after_seq: int, wake: Callable[[], None]) -> float:
        """0 when a frame is due and what it is made of is here, else the seconds after which to ask again. wake: called when it should
        be asked sooner, from any thread and under the camera's lock; must return at once. Waits for nothing, decodes nothing."""

    def make(self, *, after_seq: int) -> Frame | None:
        """Decodes the newest frame, if one is due, and gives the newest with seq > after_seq; None: nothing came out of it, or
        another thread is still inside the decoder. A picture that cannot be decoded is counted by the camera."""
