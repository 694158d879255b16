"""Frames of a running camera: what the decoder gave, and pictures of it that are made when somebody asks.

Most frames are seen by nobody but a model that looks at a quarter of their pixels or fewer. RGB of all pixels is made for who really
wants it: the sampler, a page, a query, what moves.

Only where who takes a frame decodes it, too (`streams.source.Undecoded`). Else the decoder's thread does all it can for the taker, which
has better things to do: feed a GPU.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import cached_property

import numpy as np
from av.video.frame import VideoFrame

from scheduler.types import Frame
from streams.halved import halved_rgb, halvings
from streams.masks import Mask, burn_in
from streams.video import RgbMaker, size_for_height


class Shot:
    """One decoded picture. maker: turns it into RGB; masks: burnt into whatever is handed out; height_px: see `Camera.want`.
    Thread-safe."""

    def __init__(self, frame: VideoFrame, maker: RgbMaker, *, masks: Sequence[Mask] = (), height_px: int = 0) -> None:
        self.size_px = size_for_height(frame.width, frame.height, height_px)
        self._frame: VideoFrame | None = frame
        self._whole = self.size_px == (frame.width, frame.height)
        self._maker, self._masks, self._height_px = maker, masks, height_px
        self._image: np.ndarray | None = None
        self._half: tuple[int, np.ndarray | None] = 0, None  # how often it was halved, and what came of it
        self._lock = threading.Lock()

    def image(self) -> np.ndarray:
        """uint8 (H, W, 3) RGB, the same array for everybody. Raises what FFmpeg raises."""
        with self._lock:
            if self._image is None:
                assert self._frame is not None
                self._image = burn_in(self._maker.make(self._frame, height_px=self._height_px), self._masks)
                self._frame = None  # one of the two is enough memory
            return self._image

    def halved(self, least_px: int) -> np.ndarray:
        """See `Frame.halved`."""
        times = halvings(*self.size_px, least_px) if self._whole else 0
        small = self._halved(times) if times else None
        return self.image() if small is None else small

    def _halved(self, times: int) -> np.ndarray | None:
        with self._lock:
            if self._half[0] != times and self._frame is not None:
                made = halved_rgb(self._frame, times)
                self._half = times, None if made is None else burn_in(made, self._masks)
            return self._half[1] if self._half[0] == times else None


class DecodedFrame(Frame):
    """A frame whose picture is made when it is asked for. One made without a shot (`dataclasses.replace`) has its picture."""

    _shot: Shot | None = None

    @classmethod
    def of(
        cls, shot: Shot, *, stream: str, seq: int, captured_s: float, captured_utc: float, regions: np.ndarray | None = None,
        camera_s: float | None = None,
    ) -> DecodedFrame:  # fmt: skip
        frame = cls.__new__(cls)
        frame.__dict__.update(
            stream=stream,
            seq=seq,
            captured_s=captured_s,
            captured_utc=captured_utc,
            regions=regions,
            camera_s=camera_s,
            _shot=shot,
        )
        return frame

    @cached_property
    def image(self) -> np.ndarray:  # a field of the base: set there, made here
        assert self._shot is not None
        return self._shot.image()

    @property
    def size_px(self) -> tuple[int, int]:
        return super().size_px if self._shot is None else self._shot.size_px

    def halved(self, least_px: int) -> np.ndarray:
        return self.image if self._shot is None else self._shot.halved(least_px)
