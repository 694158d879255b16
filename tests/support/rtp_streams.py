"""Real H.264 and H.265 made here, as RTP packets: the shapes in which cameras send."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import cast

import av
import numpy as np
from av.packet import Packet
from av.video.codeccontext import VideoCodecContext
from av.video.frame import VideoFrame

from streams import rtp

WIDTH_PX, HEIGHT_PX, FPS = 160, 96, 10
TICKS = 90_000 // FPS


@dataclass(frozen=True, kw_only=True)
class Coded:
    """An access unit in the order of sending. ticks: when it is shown, 90 kHz."""

    data: bytes
    keyframe: bool
    ticks: int


def picture(index: int) -> np.ndarray:
    """Ten grey columns whose levels turn with the index, and a fine pattern, so that a slice is worth several packets."""
    image = np.random.default_rng(index).integers(0, 20, (HEIGHT_PX, WIDTH_PX, 3), np.uint8)
    for column in range(10):
        image[:, 16 * column : 16 * column + 16] += np.uint8(24 * ((column + index) % 10))
    return image


def coded(count: int, *, codec: str = "h264", keyframe_every: int = 5, **options: str) -> list[Coded]:
    """`count` pictures. options: of x264 or x265, dashes as underscores."""
    library = {"h264": "libx264", "hevc": "libx265"}[codec]
    usual = {"repeat_headers": "1", "scenecut": "0", "bframes": "0", "annexb": "1", "keyint": str(keyframe_every)}
    usual |= {"threads": "1", "sliced_threads": "0"} if codec == "h264" else {"pools": "none", "log_level": "none"}
    told = ":".join(f"{name.replace('_', '-')}={value}" for name, value in (usual | options).items())
    encoder = cast(VideoCodecContext, av.CodecContext.create(library, "w"))
    encoder.width, encoder.height, encoder.pix_fmt = WIDTH_PX, HEIGHT_PX, "yuv420p"
    encoder.framerate, encoder.time_base, encoder.gop_size = Fraction(FPS), Fraction(1, FPS), keyframe_every
    encoder.options = {"preset": "veryfast", "crf": "14", library.removeprefix("lib") + "-params": told}
    made: list[Packet] = []
    for index in range(count):
        frame = VideoFrame.from_ndarray(picture(index), format="rgb24")
        frame.pts = index
        made += encoder.encode(frame)
    made += encoder.encode(None)
    return [Coded(data=bytes(one), keyframe=one.is_keyframe, ticks=(one.pts or 0) * TICKS) for one in made]


def sent(
    units: list[Coded], *, codec: str = "h264", first_seq: int = 65_500, first_stamp: int = 2**32 - 20_000
) -> list[list[bytes]]:
    """The packets of each unit. Numbers and timestamps wrap on the way."""
    seq, packets = first_seq, []
    for unit in units:
        made = rtp.packetise(unit.data, seq=seq & 0xFFFF, timestamp=first_stamp + unit.ticks, ssrc=7, codec=codec)
        seq += len(made)
        packets.append(made)
    return packets


def marked(packet: bytes, *, marker: bool) -> bytes:
    """The packet with another marker bit."""
    return bytes([packet[0], (packet[1] & 0x7F) | (0x80 if marker else 0)]) + packet[2:]


def of_one_payload(payload: bytes, *, seq: int, stamp: int, marker: bool, payload_type: int = 96) -> bytes:
    head = bytes([0x80, payload_type | (0x80 if marker else 0)])
    return head + (seq & 0xFFFF).to_bytes(2, "big") + (stamp & 0xFFFFFFFF).to_bytes(4, "big") + bytes(4) + payload


def levels(frame: VideoFrame) -> list[int]:
    """The mean level of each of the ten columns, in steps of 24."""
    grey = frame.to_ndarray(format="gray")
    return [round((float(grey[:, 16 * column + 2 : 16 * column + 14].mean()) - 9.5) / 24) for column in range(10)]


def expected_levels(index: int) -> list[int]:
    return [(column + index) % 10 for column in range(10)]
