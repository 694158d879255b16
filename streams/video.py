"""Video files read frame by frame, in order and as fast as asked: what `evaluate` and the experiments use.

Live cameras go through `streams.camera`, where time passes and frames may be dropped; here none is.
"""

from __future__ import annotations

import threading
from collections.abc import Container, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from av.container import InputContainer
from av.filter import Graph
from av.video.frame import VideoFrame
from av.video.reformatter import VideoReformatter
from av.video.stream import VideoStream

from configs.errors import StreamError
from streams import avio


@dataclass(frozen=True, kw_only=True)
class VideoInfo:
    """What a file holds. fps: average rate (0 when the file does not say); frames: counted when the file does not say."""

    width_px: int
    height_px: int
    fps: float
    frames: int
    codec: str

    @property
    def duration_s(self) -> float:
        return self.frames / self.fps if self.fps > 0 else 0.0


def probe(path: str | Path) -> VideoInfo:
    """Size, rate, length and codec of a video file. Raises StreamError when it is missing or holds no video."""
    subject = _name(path)
    container, stream = _open(path)
    with container:
        fps = float(stream.average_rate or stream.guessed_rate or 0)
        codec = stream.codec_context
        frames = stream.frames or _count_packets(container, stream)
        if not frames or not codec.width:
            raise avio.codec_error(subject, "it holds no pictures")
        return VideoInfo(width_px=codec.width, height_px=codec.height, fps=fps, frames=frames, codec=codec.name)


def read_frames(
    path: str | Path, *, every: int = 1, start: int = 0, stop: int | None = None, height_px: int = 0,
    only: Container[int] | None = None,
) -> Iterator[tuple[int, np.ndarray]]:  # fmt: skip
    """Yields (index, picture uint8 (H, W, 3) RGB) for the frames start, start + every, ... below `stop`.

    index counts decoded frames from 0. height_px: resized to this height, width in proportion (0 = as filmed); a picture is
    never enlarged. only: of these frames, those in it (None = all); the others are decoded, but not turned into pictures.
    Packets that cannot be decoded are skipped, so a truncated file gives the frames before its end.
    Raises StreamError when the file is missing, no video, or holds no picture at all; ValueError for a bad step or range.
    """
    if every < 1 or start < 0:
        raise ValueError(f"read_frames needs every >= 1 and start >= 0, got every={every}, start={start}")
    return _frames(path, every=every, start=start, stop=stop, height_px=height_px, only=only)


def _frames(
    path: str | Path, *, every: int, start: int, stop: int | None, height_px: int, only: Container[int] | None
) -> Iterator[tuple[int, np.ndarray]]:
    index = -1
    container, stream = _open(path)
    with container:
        for index, frame in enumerate(_decoded(container, stream)):
            if stop is not None and index >= stop:
                return
            if index >= start and (index - start) % every == 0 and (only is None or index in only):
                yield index, to_rgb(frame, height_px=height_px)
    if index < 0:
        raise avio.codec_error(_name(path), "not one of its pictures could be decoded")


def size_for_height(width_px: int, height_px: int, wanted_px: int) -> tuple[int, int]:
    """(width, height) for a wanted height: proportional, even numbers of pixels, never larger than the picture."""
    if wanted_px <= 0 or wanted_px >= height_px:
        return width_px, height_px
    width = max(2, 2 * round(width_px * wanted_px / height_px / 2))
    return width, wanted_px


#: The pool's rows begin at multiples of 64 bytes. Pictures of other widths would have gaps between their rows.
_POOLED_PX = 64


class _Kept:
    """The scaler of one size and sort of picture, with memory that is used again: FFmpeg's filters take pictures from a pool, and one
    that nobody holds any more goes back there. Fresh memory costs as much as the conversion itself, since each page of it is zeroed
    first: a picture is too large for the allocator to keep it (`edge.allocator`)."""

    def __init__(self, frame: VideoFrame) -> None:
        self._about = _about(frame)
        graph = Graph()
        graph.threads = 1
        source = graph.add_buffer(width=frame.width, height=frame.height, format=frame.format, time_base=Fraction(1, 90_000))
        scale = graph.add("scale", f"{frame.width}:{frame.height}:flags=bilinear")
        rgb, sink = graph.add("format", "pix_fmts=rgb24"), graph.add("buffersink")
        for one, next_one in ((source, scale), (scale, rgb), (rgb, sink)):
            one.link_to(next_one)
        graph.configure()
        self._graph = graph

    def is_for(self, frame: VideoFrame) -> bool:
        return self._about == _about(frame)

    def make(self, frame: VideoFrame) -> VideoFrame:
        self._graph.vpush(frame)
        return self._graph.vpull()


def _about(frame: VideoFrame) -> tuple[object, ...]:
    return frame.width, frame.height, frame.format.name, frame.colorspace, frame.color_range


class RgbMaker:
    """Turns decoded frames into RGB pictures. It keeps the scaler that FFmpeg sets up for a size, one thread's worth (a scaler
    per frame with a thread per core costs a quarter more, and the cores are the cameras'). keeps: many pictures of one size will come;
    their memory is used again as soon as nobody holds them. Thread-safe: one picture at a time."""

    def __init__(self, *, keeps: bool = True) -> None:
        self._reformatter = VideoReformatter()
        self._keeps = keeps
        self._kept: _Kept | None = None
        self._known: tuple[object, ...] = ()  # the last sort of frame that was turned into a picture
        self._lock = threading.Lock()

    def knows(self, frame: VideoFrame) -> bool:
        """Whether the last frame that it made a picture of was of this size and sort."""
        return self._known == _about(frame)

    def make(self, frame: VideoFrame, *, height_px: int = 0) -> np.ndarray:
        """A decoded frame as a fresh uint8 (H, W, 3) RGB array, reduced to `height_px` when that is smaller."""
        with self._lock:
            made = self._made(frame, height_px)
            self._known = _about(frame)
            return made

    def _made(self, frame: VideoFrame, height_px: int) -> np.ndarray:
        width, height = size_for_height(frame.width, frame.height, height_px)
        if self._keeps and height == frame.height and width % _POOLED_PX == 0 and frame.format.name != "rgb24":
            return self._converted(frame).to_ndarray()
        interpolation = "AREA" if height != frame.height else "BILINEAR"
        picture = self._reformatter.reformat(
            frame, width=width, height=height, format="rgb24", interpolation=interpolation, threads=1
        )
        array = picture.to_ndarray()
        return array.copy() if picture is frame else array  # RGB already: the decoder's own memory

    def _converted(self, frame: VideoFrame) -> VideoFrame:
        if self._kept is None or not self._kept.is_for(frame):
            self._kept = _Kept(frame)
        try:
            return self._kept.make(frame)
        except BaseException:
            self._kept = None  # what is stuck in it would come out as the next picture
            raise


def to_rgb(frame: VideoFrame, *, height_px: int = 0) -> np.ndarray:
    """One frame by `RgbMaker`."""
    return RgbMaker(keeps=False).make(frame, height_px=height_px)


def _name(path: str | Path) -> str:
    return f"video {path}"


def _open(path: str | Path) -> tuple[InputContainer, VideoStream]:
    avio.quiet()
    failure: StreamError | None = None
    try:
        # The prefix keeps FFmpeg from reading a name such as "http:x" or "concat:y" as a protocol.
        container = av.open(f"file:{path}", metadata_errors="replace")
    except (av.error.FFmpegError, OSError, ValueError) as error:
        failure = _open_error(path, error)
    if failure is not None:
        raise failure  # out here, so that FFmpeg's error, which holds the whole name, is not even its context
    if not container.streams.video or container.streams.video[0].codec_context is None:
        container.close()
        raise avio.codec_error(_name(path), "it holds no video that can be decoded")
    return container, container.streams.video[0]


def _open_error(path: str | Path, error: BaseException) -> StreamError:
    file = Path(path)
    if file.is_file() and file.stat().st_size == 0:
        return avio.codec_error(_name(path), "the file is empty")
    return avio.stream_error(error, subject=_name(path))


def _decoded(container: InputContainer, stream: VideoStream) -> Iterator[VideoFrame]:
    packets = container.demux(stream)
    while True:
        try:
            packet = next(packets)
        except (StopIteration, av.error.FFmpegError):
            return
        if not packet.size and packet.dts is not None:
            continue  # a picture left out by the encoder; to the decoder it would mean the end
        try:
            yield from packet.decode()
        except av.error.FFmpegError:
            continue  # one bad packet; the decoder resynchronises at the next keyframe


def _count_packets(container: InputContainer, stream: VideoStream) -> int:
    try:
        return sum(1 for packet in container.demux(stream) if packet.size)
    except av.error.FFmpegError:
        return 0
