"""Clips cut from a camera's own packets: a ring of what came last, and files that packets are copied into without encoding them anew.

    reader thread --> Tap --> Ring --(Cursor)--> ClipFile

The ring holds whole groups of pictures (a keyframe and what follows it), bounded in seconds and bytes, so a clip can begin before what
it is about. A clip file grows by fragments: what a killed box leaves behind plays up to its last whole group. Privacy: packets are what
the camera sent, without masks; whoever needs masks goes through `MaskedClip`, and nothing unmasked reaches the disk.
"""

from __future__ import annotations

import io
import os
import struct
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import BinaryIO, Protocol, cast

import av
import av.error
import numpy as np
from av.bitstream import BitStreamFilterContext
from av.packet import Packet as AvPacket
from av.video.codeccontext import VideoCodecContext
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from streams.encode import AnnexBEncoder
from streams.masks import Mask, burn_in
from streams.shown_order import ShownOrder, Times
from streams.video import RgbMaker

#: What MP4 holds and browsers play. Anything else goes into Matroska as it is.
MP4_CODECS = frozenset({"h264", "hevc", "av1", "mpeg4"})
#: A stream's own times may be so far from when its packets came; beyond it they count from the packet anew.
SKEW_S = 5.0
#: Ticks of a clip's clock per second.
TICKS = 90_000
#: Shortest time between two pictures of a file: times that stand still or run back are pushed on.
_LEAST_TICKS = 1
#: A picture may come so much of an interval early and still count as due: cameras tremble.
EARLY_FRAC = 0.3
_ANNEX_B = (b"\0\0\1", b"\0\0\0\1")


@dataclass(frozen=True, kw_only=True, eq=False)
class Format:
    """One opening of a stream. parameters: its parameter sets as Annex B, empty where they are in the pictures (or need none)."""

    codec: str
    width_px: int
    height_px: int
    time_base: Fraction
    parameters: bytes = b""

    def like(self, other: Format) -> bool:
        """Whether packets of both can follow each other in one file."""
        mine = (self.codec, self.width_px, self.height_px, self.parameters)
        return mine == (other.codec, other.width_px, other.height_px, other.parameters)


@dataclass(frozen=True, kw_only=True, eq=False)
class Coded:
    """One packet. pts, dts: in `format.time_base`, None where the camera gave none; at_s, at_utc: when it came."""

    data: bytes
    keyframe: bool
    at_s: float
    at_utc: float
    format: Format
    pts: int | None = None
    dts: int | None = None


class Tap:
    """Turns the packets of one opening of a stream into `Coded`; costs a copy of each. For the reader's thread. broken: it could not."""

    def __init__(self, stream: VideoStream) -> None:
        self._stream = stream
        self.broken = False
        self._format: Format | None = None
        self._to_annex_b: BitStreamFilterContext | None = None

    def coded(self, packet: AvPacket, times_s: tuple[float, float]) -> Coded | None:
        """The packet as it came; what is length-prefixed (from MP4 files) becomes Annex B. times_s: (at_s, at_utc). None: it has
        not been told yet what the stream is."""
        about = self._format or self._look(packet)
        if about is None:
            return None
        data = bytes(packet)
        if self._to_annex_b is not None:
            data = b"".join(bytes(part) for part in self._to_annex_b.filter(_copied(packet, data))) or data
        return Coded(
            data=data, keyframe=packet.is_keyframe, at_s=times_s[0], at_utc=times_s[1], format=about, pts=packet.pts, dts=packet.dts
        )  # fmt: skip

    def _look(self, packet: AvPacket) -> Format | None:
        del packet
        context = self._stream.codec_context
        extra, codec = context.extradata or b"", context.codec.canonical_name
        if codec in ("h264", "hevc") and extra[:1] == b"\1":
            self._to_annex_b = BitStreamFilterContext(f"{codec}_mp4toannexb", self._stream)
        self._format = Format(
            codec=codec, width_px=context.width, height_px=context.height,
            time_base=Fraction(self._stream.time_base or Fraction(1, TICKS)),
            parameters=extra if extra.startswith(_ANNEX_B) else b"",
        )  # fmt: skip
        return self._format


class BareTap(Tap):
    """A tap on Annex B packets with a clock of `TICKS`, which nobody has looked into yet: the first keyframe tells the size. parameters:
    parameter sets that were told beside the packets."""

    def __init__(self, codec: str, parameters: bytes) -> None:
        self.broken = False
        self._format = None
        self._to_annex_b = None
        self._codec, self._parameters = codec, parameters

    def _look(self, packet: AvPacket) -> Format | None:
        size = _size_of(self._parameters + bytes(packet), self._codec) if packet.is_keyframe else None
        if size is not None:
            self._format = Format(
                codec=self._codec, width_px=size[0], height_px=size[1], time_base=Fraction(1, TICKS), parameters=self._parameters
            )  # fmt: skip
        return self._format


def _size_of(data: bytes, codec: str) -> tuple[int, int] | None:
    """(width, height) of an Annex B stream; None: it cannot be read."""
    try:
        with av.open(io.BytesIO(data), format=codec) as container:
            context = container.streams.video[0].codec_context
            return (context.width, context.height) if context.width and context.height else None
    except (av.error.FFmpegError, IndexError):
        return None


def _copied(packet: AvPacket, data: bytes) -> AvPacket:
    """A packet of its own: a filter takes the one it is given apart."""
    copy = AvPacket(data)
    copy.pts, copy.dts, copy.is_keyframe = packet.pts, packet.dts, packet.is_keyframe
    return copy


@dataclass(kw_only=True)
class _Group:
    number: int
    items: list[Coded] = field(default_factory=list)
    size_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Cursor:
    """A place in a ring: the next packet to read."""

    group: int
    at: int = 0


class Ring:
    """The newest packets of a stream, from any thread. Holds at least `keep_s` (as far as there is so much and `max_bytes` allow), by
    whole groups. dropped: packets without a keyframe before them, and groups that found no room."""

    def __init__(self, *, keep_s: float, max_bytes: int) -> None:
        if keep_s <= 0 or max_bytes < 1:
            raise ValueError(f"a ring needs room, got {keep_s} s and {max_bytes} bytes")
        self.keep_s, self.max_bytes = keep_s, max_bytes
        self.size_bytes = 0
        self.dropped = 0
        self._lock = threading.Lock()
        self._groups: deque[_Group] = deque()
        self._next = 0

    def put(self, item: Coded) -> None:
        """Adds a packet and makes room. Costs microseconds."""
        with self._lock:
            if item.keyframe:
                self._groups.append(_Group(number=self._next))
                self._next += 1
            elif not self._groups:
                self.dropped += 1
                return
            group = self._groups[-1]
            group.items.append(item)
            group.size_bytes += len(item.data)
            self.size_bytes += len(item.data)
            self._make_room(item.at_s - self.keep_s)

    def _make_room(self, before_s: float) -> None:
        """Lock held. A group goes when the next one reaches back far enough, or when there is too much."""
        groups = self._groups
        while len(groups) > 1 and groups[1].items[0].at_s <= before_s:
            self._drop()
        while groups and self.size_bytes > self.max_bytes:
            self.dropped += len(groups[0].items)
            self._drop()

    def _drop(self) -> None:
        self.size_bytes -= self._groups.popleft().size_bytes

    def cursor(self, at_s: float) -> Cursor:
        """Where a clip begins that is to show `at_s`: the newest keyframe that is not after it, else the oldest there is."""
        with self._lock:
            before = [group.number for group in self._groups if group.items[0].at_s <= at_s]
            first = self._groups[0].number if self._groups else self._next
            return Cursor(group=before[-1] if before else first)

    def read(self, cursor: Cursor, *, limit: int = 10_000) -> tuple[list[Coded], Cursor]:
        """Packets from there on, `limit` at most, and where to go on. What has been dropped meanwhile is left out."""
        with self._lock:
            found: list[Coded] = []
            for group in self._groups:
                if group.number < cursor.group:
                    continue
                begin = cursor.at if group.number == cursor.group else 0
                taken = group.items[begin : begin + limit - len(found)]
                found += taken
                cursor = Cursor(group=group.number, at=begin + len(taken))
                if len(found) >= limit:
                    break
            return found, cursor

    def clear(self) -> None:
        """Forgets everything; readers go on with the next keyframe."""
        with self._lock:
            self._groups.clear()
            self.size_bytes = 0


@dataclass(frozen=True, kw_only=True)
class ClipFacts:
    """A finished clip. began_utc, ended_utc: of its first and last picture."""

    codec: str
    began_utc: float
    ended_utc: float
    pictures: int


class Clip(Protocol):
    """A file that grows by packets. Errors of the disk leave as OSError."""

    @property
    def length_s(self) -> float: ...

    def takes(self, item: Coded) -> bool:
        """Whether this packet can follow in the same file."""

    def add(self, item: Coded) -> None: ...

    def close(self) -> ClipFacts | None:
        """Ends the file; None: nothing is in it that can be shown."""


def suffix_of(codec: str) -> str:
    """Of a file that holds packets of `codec`."""
    return ".mp4" if codec in MP4_CODECS else ".mkv"


class ClipFile:
    """Copies packets into an open file. The first one must be a keyframe. Not thread-safe.

    Times are the stream's own; a packet that came much earlier or later than they say (another opening of the stream, a camera that set
    its clock) goes where it came, so that a gap in what the camera sent is a gap in the clip."""

    def __init__(self, file: BinaryIO, first: Format) -> None:
        self._format = first
        mp4 = first.codec in MP4_CODECS
        options = {"movflags": "hybrid_fragmented+frag_keyframe", "flush_packets": "1"} if mp4 else {}
        self._out = av.open(file, "w", format="mp4" if mp4 else "matroska", options=options)
        self._stream = self._out.add_mux_stream(first.codec, width=first.width_px, height=first.height_px)
        self._stream.time_base = Fraction(1, TICKS)
        self._began: tuple[float, float] | None = None
        self._opening: Format | None = None  # of the stream, that the packets come from
        self._anchor: tuple[float, float] | None = None  # media time, seconds since the clip began
        self._last_ticks = -_LEAST_TICKS
        self._pictures = 0

    @property
    def length_s(self) -> float:
        return max(0, self._last_ticks) / TICKS

    def takes(self, item: Coded) -> bool:
        return self._format.like(item.format)

    def add(self, item: Coded) -> None:
        if self._began is None:
            self._began = (item.at_s, item.at_utc)
        opens = self._opening is not item.format
        if opens and not item.keyframe:
            return  # what follows a gap cannot be decoded before the next keyframe
        if opens:
            self._opening, self._anchor = item.format, None
        packet = AvPacket(item.format.parameters + item.data if opens else item.data)
        ticks = max(self._last_ticks + _LEAST_TICKS, round(self._place_s(item) * TICKS))
        packet.stream, packet.time_base, packet.is_keyframe = self._stream, Fraction(1, TICKS), item.keyframe
        packet.dts, packet.pts = ticks, ticks + _delay_ticks(item)
        self._last_ticks = ticks
        self._pictures += 1
        self._out.mux(packet)

    def _place_s(self, item: Coded) -> float:
        """Seconds since the clip began."""
        assert self._began is not None
        came_s = item.at_s - self._began[0]
        stamp = item.dts if item.dts is not None else item.pts
        if stamp is None:
            return came_s
        media_s = float(stamp * item.format.time_base)
        if self._anchor is not None:
            place_s = media_s - self._anchor[0] + self._anchor[1]
            if abs(place_s - came_s) <= SKEW_S:
                return place_s
        self._anchor = (media_s, came_s)
        return came_s

    def close(self) -> ClipFacts | None:
        self._out.close()
        if self._began is None or not self._pictures:
            return None
        began_utc = self._began[1]
        return ClipFacts(
            codec=self._format.codec, began_utc=began_utc, ended_utc=began_utc + self.length_s, pictures=self._pictures
        )  # fmt: skip


def _delay_ticks(item: Coded) -> int:
    """From decoding to showing."""
    if item.pts is None or item.dts is None:
        return 0
    return max(0, min(10 * TICKS, round((item.pts - item.dts) * item.format.time_base * TICKS)))


class MaskedClip:
    """Decodes packets, burns the masks in and encodes the pictures anew, at most `fps` of them. Before the disk there is no picture
    without its masks. Costs a decoded and, `fps` times a second, an encoded picture."""

    def __init__(self, file: BinaryIO, first: Format, masks: Sequence[Mask], *, fps: float) -> None:
        if not masks:
            raise ValueError("a masked clip needs masks")
        self._file, self._input, self._masks, self._fps = file, first, tuple(masks), fps
        self._decoder = cast(VideoCodecContext, av.CodecContext.create(first.codec, "r"))
        self._decoder.thread_count, self._decoder.copy_opaque = 1, True
        if first.parameters:
            self._decoder.extradata = first.parameters
        self._order = ShownOrder()
        self._rgb = RgbMaker()
        self._encoder: AnnexBEncoder | None = None
        self._clip: ClipFile | None = None
        self._format: Format | None = None
        self._due_s = float("-inf")

    @property
    def length_s(self) -> float:
        return self._clip.length_s if self._clip is not None else 0.0

    def takes(self, item: Coded) -> bool:
        return self._input.like(item.format)

    def add(self, item: Coded) -> None:
        packet = AvPacket(item.data)
        packet.pts, packet.dts, packet.time_base = item.pts, item.dts, item.format.time_base
        own = (item.at_s, item.at_utc)
        packet.opaque = (item.pts, own)
        self._order.sent(item.pts, own, keyframe=item.keyframe)
        for frame in self._frames(packet):
            at_s, at_utc = self._order.shown(*cast(tuple[int | None, Times], frame.opaque or (None, own)))
            if at_s >= self._due_s - EARLY_FRAC / self._fps:
                self._due_s = max(at_s, self._due_s) + 1.0 / self._fps
                self._write(frame, at_s, at_utc)

    def _frames(self, packet: AvPacket | None) -> Iterator[VideoFrame]:
        try:
            yield from self._decoder.decode(packet)
        except av.error.FFmpegError:
            return  # a bad packet; the decoder finds its way again at the next keyframe

    def _write(self, frame: VideoFrame, at_s: float, at_utc: float) -> None:
        image = burn_in(self._rgb.make(frame, height_px=0), self._masks)
        height, width = (side - side % 2 for side in image.shape[:2])
        if self._encoder is None or self._clip is None:
            self._encoder = AnnexBEncoder(width, height, fps=self._fps, keyframe_s=2.0)
            self._format = Format(codec="h264", width_px=width, height_px=height, time_base=Fraction(1, TICKS))
            self._clip = ClipFile(self._file, self._format)
        assert self._format is not None
        if (height, width) != (self._format.height_px, self._format.width_px):
            return  # the picture changed its shape; the next clip has the new one
        data, keyframe = self._encoder.encode(np.ascontiguousarray(image[:height, :width]))
        self._clip.add(Coded(data=data, keyframe=keyframe, at_s=at_s, at_utc=at_utc, format=self._format))

    def close(self) -> ClipFacts | None:
        return self._clip.close() if self._clip is not None else None


def whole_part(path: Path) -> tuple[str, float] | None:
    """(codec, seconds) of what can be played of a clip whose box was killed, or whose disk was full; None: nothing. A fragment that is
    not whole is cut off the file."""
    try:
        _cut_to_whole(path)
        with av.open(str(path)) as container:
            stream = container.streams.video[0]
            times = [packet.dts for packet in container.demux(stream) if packet.size and packet.dts is not None]
            codec = stream.codec_context.codec.canonical_name
            return (codec, float((times[-1] - times[0]) * (stream.time_base or 0))) if times else None
    except (av.error.FFmpegError, OSError, IndexError, ValueError):
        return None


def _cut_to_whole(path: Path) -> None:
    """Cuts off what follows the last fragment (moof and mdat) of an MP4 that is whole; a file that was finished stays as it is."""
    if path.suffix != ".mp4":
        return
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        at, whole = 0, 0
        while at + 8 <= size:
            file.seek(at)
            length, kind = struct.unpack(">I4s", file.read(8))
            if length == 1:  # a length of 64 bits follows
                length = int.from_bytes(file.read(8), "big")
            if length < 8 or at + length > size:
                break
            at += length
            whole = whole if kind == b"moof" else at
        if whole < size:
            file.truncate(whole)
