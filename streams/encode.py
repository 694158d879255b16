"""H.264 and H.265 made here: for rendered cameras, whose pictures must leave as a real camera's would, and for video files.

`AnnexBEncoder` gives Annex B access units with the parameter sets in front of every keyframe: a viewer may join at any of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import cast

import av
import numpy as np
from av.video.codeccontext import VideoCodecContext
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

_FAST = {"preset": "ultrafast", "tune": "zerolatency"}
# One slice and one thread: more of them save nothing at these sizes and cost the box a thread pool per camera.
_ENCODERS: dict[str, tuple[str, dict[str, str]]] = {
    "h264": ("libx264", _FAST | {"x264-params": "repeat-headers=1:annexb=1:scenecut=0:sliced-threads=0:slices=1:threads=1"}),
    "hevc": (
        "libx265",
        _FAST | {"x265-params": "repeat-headers=1:annexb=1:scenecut=0:pools=none:frame-threads=1:log-level=none"},
    ),
}


class AnnexBEncoder:
    """RGB pictures of one size in, Annex B access units out, one for one and without delay.

    keyframe_s: seconds between keyframes; crf: the encoder's quality (lower is better, 18-30 is usual); codec: h264 or hevc.
    """

    def __init__(
        self, width_px: int, height_px: int, *, fps: float, keyframe_s: float = 1.0, crf: int = 26, codec: str = "h264"
    ) -> None:
        if width_px % 2 or height_px % 2:
            raise ValueError(f"pictures of {codec} need even sides, got {width_px}x{height_px}")
        if codec not in _ENCODERS:
            raise ValueError(f"codec must be one of {', '.join(_ENCODERS)}, got {codec!r}")
        rate = Fraction(fps).limit_denominator(1001)
        library, options = _ENCODERS[codec]
        context = cast(VideoCodecContext, av.CodecContext.create(library, "w"))
        context.width, context.height = width_px, height_px
        context.pix_fmt = "yuv420p"
        context.framerate, context.time_base = rate, 1 / rate
        context.gop_size = max(1, round(fps * keyframe_s))
        context.options = {**options, "crf": str(crf)}
        context.open()
        self._context = context
        self._index = 0

    def encode(self, image: np.ndarray) -> tuple[bytes, bool]:
        """image: uint8 (H, W, 3) RGB of the encoder's size. Returns (access unit, whether it is a keyframe)."""
        frame = VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
        frame.pts = self._index
        self._index += 1
        packets = self._context.encode(frame)
        return b"".join(bytes(packet) for packet in packets), any(packet.is_keyframe for packet in packets)


def write_video(
    path: str | Path, frames: Iterable[np.ndarray], *, fps: float, keyframe_s: float = 1.0, codec: str = "libx264"
) -> int:
    """Writes RGB pictures of one size as a video file (the container follows the suffix); returns how many there were."""
    count = 0
    with av.open(str(path), "w") as container:
        stream = cast(VideoStream, container.add_stream(codec, rate=Fraction(fps).limit_denominator(1001)))
        stream.pix_fmt = "yuv420p"
        stream.gop_size = max(1, round(fps * keyframe_s))
        if codec == "libx264":
            stream.options = {"preset": "ultrafast", "tune": "zerolatency", "x264-params": "scenecut=0"}
        for image in frames:
            if not count:
                stream.height, stream.width = image.shape[:2]
            container.mux(stream.encode(VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")))
            count += 1
        if count:
            container.mux(stream.encode(None))
    return count
