"""Packets as a camera sends them, made here: real H.264 or H.265 of a grey picture with a bright square that moves."""

from __future__ import annotations

from fractions import Fraction

import av
import numpy as np

from streams.encode import AnnexBEncoder
from streams.recording import Coded, Format

UTC = 1_790_000_000.0
WIDTH_PX, HEIGHT_PX = 64, 48


def packets(
    count: int, *, fps: float = 5.0, keyframe_s: float = 1.0, begin_s: float = 1000.0, codec: str = "h264", stamps: bool = True,
    first_pts: int = 0, size: tuple[int, int] = (WIDTH_PX, HEIGHT_PX), grey: int = 60,
) -> list[Coded]:  # fmt: skip
    """One opening of a stream: `count` pictures from `begin_s` on. stamps: with times of its own, from `first_pts` on."""
    encoder = AnnexBEncoder(*size, fps=fps, keyframe_s=keyframe_s, codec=codec)
    about = Format(codec=codec, width_px=size[0], height_px=size[1], time_base=Fraction(1, 90_000))
    made = []
    for n in range(count):
        image = np.full((size[1], size[0], 3), grey, np.uint8)
        image[10:30, 2 * n % (size[0] - 20) :][:, :20] = 230
        data, keyframe = encoder.encode(image)
        pts = first_pts + round(n / fps * 90_000) if stamps else None
        at_s = begin_s + n / fps
        made.append(Coded(data=data, keyframe=keyframe, at_s=at_s, at_utc=UTC + at_s, format=about, pts=pts, dts=pts))
    return made


def nal_units(data: bytes, *, lengths: bool) -> list[bytes]:
    """The parts of a picture, without how they are told apart (start codes, or lengths as in MP4)."""
    if not lengths:
        return [part.rstrip(b"\0") for part in data.split(b"\0\0\1") if part.rstrip(b"\0")]
    found = []
    while data:
        size = int.from_bytes(data[:4], "big")
        found.append(data[4 : 4 + size].rstrip(b"\0"))
        data = data[4 + size :]
    return found


def read_clip(path: object) -> tuple[list[bytes], list[float], list[bool]]:
    """(packets, their times in s, which are keyframes) of a file."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        found = [packet for packet in container.demux(stream) if packet.size]
        times_s = [float(packet.pts * stream.time_base) for packet in found]  # type: ignore[operator]
        return [bytes(packet) for packet in found], times_s, [packet.is_keyframe for packet in found]


def decoded(path: object) -> list[np.ndarray]:
    """Its pictures, uint8 (H, W, 3) RGB."""
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
