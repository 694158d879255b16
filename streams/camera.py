"""One running camera: a thread that reads and reconnects, a thread that decodes what is wanted, the newest frame for who asks.

    source --reader--> PacketQueue --decoder--> newest Frame --> next_frame

The reader follows `streams.reconnect`; the decoder sleeps until a frame is due and somebody has asked for one lately. When the
wanted rate is no higher than the rate of keyframes, only keyframes are decoded.

Who takes frames may decode them itself (`until_due`, `make`): where cores are scarce, it has a turn at them first and is then the only
thread that a frame needs. The decoder's thread stands back meanwhile, and goes on when nobody has done so for a while.

Back-pressure stops at the packets (VideoStorm, section 3.5 "flow control": what waits, waits encoded, in front of the query):
decoded there are one frame for who asks next and what the decoder itself refers to, whatever the camera sends and however slow the
taker is. Live, the newest frame wins: one that nobody took is replaced, and counted (`frames_unseen`); packets that find no room
make room by whole groups, and are counted (`packets_dropped`).

With `realtime=False` a file may lag: it is worked off as fast as its frames are taken. None is skipped but by the wanted rate, what
waits stays unread in the file, and the times of a frame are the file's own, counted from the start. `lag_s` says how far behind it is.
"""

from __future__ import annotations

import logging
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Literal, Protocol, cast

import av
import av.error
from av.container import InputContainer
from av.packet import Packet as AvPacket
from av.video.codeccontext import VideoCodecContext
from av.video.frame import VideoFrame
from av.video.stream import VideoStream

from configs.errors import ConfigError, redact
from configs.units import is_camera_id
from scheduler.types import Frame
from streams import avio
from streams.buffer import PacketQueue
from streams.decoded import DecodedFrame, Shot
from streams.depacketise import Unsuited
from streams.masks import Mask
from streams.motion import Motion
from streams.pulse import Pulse, ThreadLook
from streams.rates import Pace, WantedRate, media_s
from streams.reconnect import (
    Action,
    Ended,
    Failed,
    Finish,
    Open,
    Opened,
    Packet,
    Reconnect,
    ReconnectPolicy,
    Start,
    Stop,
    Wait,
    Waited,
)
from streams.recording import BareTap, Ring, Tap
from streams.rtsp_reader import RtspReader
from streams.shown_order import ShownOrder
from streams.source import CameraState, CameraStatus
from streams.url import SourceKind, SourceUrl
from streams.video import RgbMaker

log = logging.getLogger(__name__)

#: What may wait in front of the decoder: about 20 s of a 3 Mbit/s stream.
QUEUE_BYTES = 8 * 1024 * 1024
QUEUE_PACKETS = 1024
#: Nothing is decoded when nobody has asked for a frame for this long.
DEMAND_S = 5.0
#: How often, at most, a reader looks for signs of trouble that no packet tells.
_CHECK_S = 0.25
_PACKET = Packet()
#: Packets came for this long and not one picture came out of them: opened anew, with code `codec`.
UNDECODABLE_S = 3.0


#: How long `restart` waits for the old threads.
RESTART_S = 1.0

#: Who reads RTSP over TCP.
RtspBy = Literal["own", "ffmpeg"]

#: Formats whose packets come when the picture was taken; the others come as fast as they are read and are paced here.
_LIVE_FORMATS = frozenset({"rtsp", "mpjpeg", "video4linux2,v4l2"})


class Clock(Protocol):
    """Time for the threads of a camera."""

    def now_s(self) -> float: ...

    def utc(self) -> float: ...

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        """Waits until `event` is set, at most timeout_s; returns whether it is set."""


class SystemClock:
    def now_s(self) -> float:
        return time.monotonic()

    def utc(self) -> float:
        return time.time()

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return event.wait(max(0.0, timeout_s))


class _Awaited(Enum):
    """What ends the decoder's sleep before its time."""

    NOTHING = auto()
    PACKET = auto()
    KEYFRAME = auto()
    DUE = auto()  # a packet that comes when a frame is due


@dataclass(frozen=True, kw_only=True, eq=False)
class _Session:
    """One opening of the source: packets of different sessions never meet in a decoder. tap: for clips. camera_s: when a packet's
    picture was taken, by the camera's own clock. order: of the decoder's pictures, for whoever decodes."""

    decoder: VideoCodecContext
    fps: float
    tap: Tap
    camera_s: Callable[[AvPacket], float | None] = lambda packet: camera_time_s(packet)
    order: ShownOrder = field(default_factory=ShownOrder)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Source:
    """What was opened. live: packets come when the picture was taken; the others come as fast as they are read and are paced here.
    finite: it has an end. stream: which of the packets are the video's."""

    packets: Iterator[AvPacket]
    close: Callable[[], None]
    session: _Session
    live: bool
    finite: bool = False
    stream: int = 0
    size_px: tuple[int, int] = (0, 0)
    by: RtspBy = "ffmpeg"


@dataclass(slots=True, kw_only=True, eq=False)
class _Queued:
    """A packet. times_s: (captured_s, captured_utc). size_bytes 0: no packet but the end of a recording. Not frozen, though nothing
    changes it: that would make each three times as dear, and there is one for every packet of every camera."""

    packet: AvPacket
    keyframe: bool
    size_bytes: int
    times_s: tuple[float, float]
    session: _Session


@dataclass(slots=True, kw_only=True, eq=False)
class _Picture:
    """A decoded picture. Not frozen, as `_Queued` is not."""

    frame: VideoFrame
    times_s: tuple[float, float]
    camera_s: float | None


def open_options(url: SourceUrl, *, transport: str) -> tuple[dict[str, str], str | None]:
    """(FFmpeg's options, its format name or None to guess) for a source, chosen for an early first frame."""
    match url.kind:
        case SourceKind.RTSP:
            # What the session description tells is enough: probing would only hold back the first frame (0.04 s against 0.9 s).
            options = {"rtsp_transport": transport, "allowed_media_types": "video", "analyzeduration": "0", "probesize": "32"}
            return options | ({"max_delay": "100000"} if transport == "udp" else {}), None
        case SourceKind.HTTP:
            return {"analyzeduration": "500000", "fpsprobesize": "0"}, None
        case SourceKind.V4L2:
            return {}, "v4l2"
        case _:
            return {}, None


class PyavCamera:
    """A `Camera` over PyAV. Built by `open_camera`; see there for the arguments."""

    def __init__(
        self,
        camera_id: str,
        url: SourceUrl,
        *,
        transport: str = "tcp",
        masks: Sequence[Mask] = (),
        loop: bool = False,
        realtime: bool = True,
        seed: int = 0,
        policy: ReconnectPolicy | None = None,
        clock: Clock | None = None,
        queue_bytes: int = QUEUE_BYTES,
        queue_packets: int = QUEUE_PACKETS,
        rtsp_by: RtspBy = "own",
    ) -> None:
        if not is_camera_id(camera_id):
            raise ConfigError(f"'{camera_id}' is no camera id", remedy="use a-z, 0-9, '_' and '-', at most 63 of them")
        if transport not in ("tcp", "udp"):
            raise ConfigError(f"camera {camera_id}: transport '{transport}' is unknown", remedy="use tcp or udp")
        if not realtime and url.kind is not SourceKind.FILE:
            raise ConfigError(f"camera {camera_id}: only files can be read faster than they happened", remedy="use a file")
        self.id = camera_id
        self._url = url
        self._transport = transport
        self._masks = tuple(masks)
        self._loop = loop
        self._realtime = realtime
        self._clock = clock or SystemClock()
        # FFmpeg's reader knows more cameras than ours, so it has the next turn after one in which ours got nothing out of a camera.
        self._ours = rtsp_by == "own" and url.kind is SourceKind.RTSP and url.is_plain and transport == "tcp"
        self._ours_rests = False
        self._machine = Reconnect(policy=policy, seed=seed)
        self._queue: PacketQueue[_Queued] = PacketQueue(max_bytes=queue_bytes, max_packets=queue_packets)
        # One lock for everything that the threads share, and three to be woken: each wake-up costs a turn of the interpreter, and
        # most packets concern nobody yet.
        self._lock = threading.RLock()
        self._frames = threading.Condition(self._lock)  # who takes frames: a frame, the end
        self._work = threading.Condition(self._lock)  # the decoder: packets, demand, wishes, the end
        self._room = threading.Condition(self._lock)  # a reader that may not drop: room in the queue, the end
        self._relief = threading.Condition(self._lock)  # the decoder while somebody else decodes: the end
        # Two of them, because a thread that `stop` left behind must not take the next start for its own.
        self._told_to_stop = threading.Event()
        self._told_to_stop.set()
        self._stopping = self._told_to_stop
        self._threads: list[threading.Thread] = []
        self._rate = WantedRate()
        self._height_px = 0
        self._motion: Motion | None = None
        self._rgb = RgbMaker()
        self._ring: Ring | None = None
        self._asked_s = float("-inf")
        self._newest: Frame | None = None
        self._newest_seen = True  # by somebody
        self._handed: Frame | None = None  # last one given to the taker of a file that may lag
        self._begun_s: float | None = None  # time of the first picture of a file that may lag
        self._size_px = (0, 0)
        self._decoded = 0
        self._unseen = 0
        self._captured_s = float("-inf")
        self._alone: _Queued | None = None
        self._undecoded_s: tuple[float, float] | None = None  # first and newest time that no picture came out, since one did
        self._reading = False
        self._decoding = False
        self._wake_taker: Callable[[], None] | None = None  # whoever decodes itself, and does not wait here
        self._claimed_s = float("-inf")  # when somebody last said that it decodes itself
        self._making_since_s: float | None = None  # somebody else than the decoder's thread is decoding
        self._awaited = _Awaited.PACKET
        self._pulses = {name: Pulse(self._clock.now_s) for name in ("reader", "decoder")}
        self._lost = 0  # pictures that the libraries could not handle
        self._lost_why = ""

    # --- what the box calls -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the threads; no-op while they run. A stopped camera may be started again."""
        with self._lock:
            if not self._told_to_stop.is_set():
                return
            self._begun_s = self._handed = None  # a stop is no lag
            previous = [thread for thread in self._threads if thread.is_alive()]
            self._told_to_stop = stopping = threading.Event()
            self._reading = True
            self._threads = [
                threading.Thread(target=self._run, args=(previous, stopping, loop), name=f"{name}-{self.id}", daemon=True)
                for name, loop in (("camera", self._read_loop), ("decode", self._decode_loop))
            ]
            for pulse in self._pulses.values():
                pulse.beat()
            if self._making_since_s is not None:
                self._making_since_s = self._clock.now_s()  # as its own threads, one that hangs gets the time that a start gets
            # Announced here and not in the thread: who starts a camera sees it connecting, never stopped.
            self._machine.handle(Start(), self._clock.now_s())
        for thread in self._threads:
            thread.start()

    def _run(self, previous: list[threading.Thread], stopping: threading.Event, loop: Callable[[], None]) -> None:
        for thread in previous:
            thread.join()  # one that `stop` had to leave behind in the network
        with self._lock:
            self._stopping = stopping
        loop()

    def stop(self, *, wait_s: float = 5.0) -> None:
        """Stops; after `wait_s` a reader stuck in the network is left to end by itself, which it does at its next time-out."""
        with self._lock:
            self._machine.handle(Stop(), self._clock.now_s())
            self._told_to_stop.set()
            self._stopping.set()
            self._wake_all()
        until_s = time.monotonic() + wait_s
        for thread in self._threads:
            if thread is not threading.current_thread() and thread.ident is not None:
                thread.join(max(0.0, until_s - time.monotonic()))

    def mask(self, masks: Sequence[Mask]) -> None:
        """See `Camera`. What was decoded with the old ones is not handed out any more."""
        with self._lock:
            self._masks = tuple(masks)
            if self._realtime:
                self._newest, self._newest_seen = None, True

    def restart(self) -> None:
        """Ends what can be ended and begins again: for a thread that died or hangs. One that hangs is left behind, and the new ones wait
        for it."""
        self.stop(wait_s=RESTART_S)
        self.start()

    def threads(self) -> tuple[ThreadLook, ...]:
        """How the two threads are. A reader at the end of its file has not died."""
        with self._lock:
            died = [thread.ident is not None and not thread.is_alive() for thread in self._threads] or [False, False]
            wanted = not self._told_to_stop.is_set()
            return (
                ThreadLook(name="reader", alive=not (wanted and self._reading and died[0]), silent_s=self._silent_s("reader")),
                ThreadLook(
                    name="decoder", alive=not (wanted and died[1]), silent_s=self._silent_s("decoder"), faults=self._lost,
                    done=self._decoded, fault=self._lost_why,
                ),
            )  # fmt: skip

    def _silent_s(self, name: str) -> float:
        if self._told_to_stop.is_set():
            return 0.0
        if name == "decoder" and self._making_since_s is not None:  # in another's thread, but in this camera's decoder
            return max(0.0, self._clock.now_s() - self._making_since_s)
        return self._pulses[name].silent_s()

    def _wake_all(self) -> None:
        """Lock held."""
        for condition in (self._frames, self._room, self._relief):
            condition.notify_all()
        self._tell_work()

    def _tell_work(self) -> None:
        """Lock held. Whoever decodes is to look again."""
        self._work.notify_all()
        if self._wake_taker is not None:
            self._wake_taker()

    def want(self, *, fps: float, height_px: int = 0, regions: bool = False) -> None:
        """Changes the wanted rate and height while running (0 = as the camera gives). Pictures are never enlarged.
        regions: frames say what moves in them; asked for anew, the background is learnt first."""
        if not 0 <= fps < float("inf") or height_px < 0:
            raise ValueError(f"camera {self.id}: fps and height must be 0 or more, got {fps} and {height_px}")
        with self._lock:
            self._rate.wanted_fps = fps
            self._height_px = height_px
            if not regions:
                self._motion = None
            elif self._motion is None:
                self._motion = Motion()
            self._tell_work()

    def record_to(self, ring: Ring | None) -> None:
        """From the next packet on, packets are copied into the ring, too; what is decoded does not change. None: no more."""
        self._ring = ring

    @property
    def ring(self) -> Ring | None:
        """Where its packets are copied to."""
        return self._ring

    def next_frame(self, *, after_seq: int, timeout_s: float) -> Frame | None:
        """The newest frame with seq > after_seq, waiting at most timeout_s; None when none came. Masks are burnt in.

        Of a file that may lag: the next frame. One thread takes them, by calls that wait; with timeout_s=0 anybody may look at the
        frame that was taken last."""
        deadline_s = time.monotonic() + timeout_s
        with self._lock:
            while True:
                self._demand(looks=timeout_s <= 0)  # who waits goes on asking
                frame = self._frame_after(after_seq, looks=timeout_s <= 0)
                if frame is not None:
                    return frame
                left_s = deadline_s - time.monotonic()
                if left_s <= 0 or self._told_to_stop.is_set() or (self._drained() and not self._realtime):
                    return None
                self._frames.wait(min(left_s, DEMAND_S / 2))

    def until_due(self, *, after_seq: int, wake: Callable[[], None]) -> float:
        """See `streams.source.Undecoded`."""
        with self._lock:
            self._wake_taker = wake
            if self._told_to_stop.is_set():
                return DEMAND_S / 2
            wait_s = self._unmade_s(after_seq)
            return self._until_due() if wait_s is None else wait_s

    def _unmade_s(self, after_seq: int) -> float | None:
        """Lock held. What who decodes itself has to wait where there is nothing to decode now; None: it is to look for packets."""
        self._demand(looks=False)
        self._claimed_s = self._asked_s
        if self._decoding or self._making_since_s is not None:
            return 0.5  # woken when the decoder's thread is done
        if self._newest is not None and self._newest.seq > after_seq:
            return 0.0  # a frame that is there already will do
        return None

    def make(self, *, after_seq: int) -> Frame | None:
        """See `streams.source.Undecoded`."""
        with self._lock:
            batch: list[_Queued] = []
            alone = False
            if not self._told_to_stop.is_set() and self._unmade_s(after_seq) is None:
                batch, alone, _ = self._due()
            self._awaited = _Awaited.NOTHING
            if not batch:
                return self._frame_after(after_seq, looks=False)
            self._making_since_s = self._clock.now_s()
        try:
            self._decode_contained(batch, alone=alone)
        finally:
            self._making_since_s = None
        with self._lock:
            return self._frame_after(after_seq, looks=False)

    def _is_claimed(self) -> bool:
        """Whether somebody else than the decoder's thread decodes."""
        return self._making_since_s is not None or self._clock.now_s() - self._claimed_s <= DEMAND_S

    def _demand(self, *, looks: bool) -> None:
        """Lock held. Somebody asks for frames; who only looks at a file that may lag does not set it going."""
        if looks and not self._realtime:
            return
        now_s = self._clock.now_s()
        if not self._is_wanted(now_s):
            if self._realtime:
                self._newest = None  # left over from when somebody last asked
            self._tell_work()
        self._asked_s = now_s

    def _frame_after(self, after_seq: int, *, looks: bool) -> Frame | None:
        """Lock held."""
        if self._handed is not None and self._handed.seq > after_seq:
            return self._handed
        frame = self._newest
        if frame is None or frame.seq <= after_seq or (looks and not self._realtime):
            return None
        self._newest_seen = True
        if not self._realtime:
            self._handed, self._newest = frame, None  # the decoder makes the next one while this one is looked at
            self._tell_work()
        return frame

    @property
    def may_lag(self) -> bool:
        """Whether its frames wait to be taken, one after the other; else the newest wins."""
        return not self._realtime

    @property
    def lag_s(self) -> float:
        """Seconds of video that wait in front of who takes its frames: how long the next one has been due, had the file been played
        since it was opened; 0 when the taker is ahead of that, at the end of the file, and for whatever may not lag."""
        with self._lock:
            if self._realtime or self._begun_s is None or (self._drained() and self._newest is None):
                return 0.0
            due_s = self._begun_s if self._handed is None else self._handed.captured_s + self._rate.step_s()
            return max(0.0, self._clock.now_s() - max(due_s, self._begun_s))

    def _drained(self) -> bool:
        """Whether the source ended and everything of it was decoded."""
        return not self._reading and not self._decoding and not len(self._queue)

    def status(self) -> CameraStatus:
        with self._lock:
            state, since_s, code = self._machine.state(self._clock.now_s())
            silent = "nothing comes from the camera" if state is CameraState.STALLED else ""
            return CameraStatus(
                state=state,
                since_s=since_s,
                code=code,
                error=self._machine.error or silent,
                width_px=self._size_px[0],
                height_px=self._size_px[1],
                fps=self._rate.seen_fps(),
                frames_decoded=self._decoded,
                frames_unseen=self._unseen,
                packets_dropped=self._queue.dropped,
                reconnects=self._machine.reconnects,
                lag_s=self.lag_s,
            )

    def __repr__(self) -> str:
        return f"PyavCamera({self.id!r}, {self._url})"

    # --- reading ------------------------------------------------------------------------------------------------------

    def _handle(self, event: Opened | Packet | Failed | Ended | Waited) -> Action:
        with self._lock:
            if self._stopping.is_set():
                return Finish()
            return self._machine.handle(event, self._clock.now_s())

    def _read_loop(self) -> None:
        action: Action = Open(self._machine.policy.open_timeout_s)
        pulse = self._pulses["reader"]
        while not isinstance(action, Finish) and not self._stopping.is_set():
            match action:
                case Open(timeout_s):
                    pulse.rest(for_s=timeout_s)
                    action = self._session(timeout_s)
                case Wait(until_s):
                    pulse.rest(for_s=until_s - self._clock.now_s())
                    self._clock.wait(self._stopping, until_s - self._clock.now_s())
                    action = self._handle(Waited())
        with self._lock:
            self._reading = self._reading and self._stopping.is_set()  # after a stop, the next start has its own say
            self._wake_all()

    def _session(self, timeout_s: float) -> Action:
        """Opens, reads to the end, closes; returns what to do next."""
        rests, self._ours_rests = self._ours_rests, False
        if not self._ours or rests:
            return self._session_of(self._open, timeout_s)
        try:
            return self._session_of(self._open_ours, timeout_s)
        except Unsuited as error:
            log.info("camera %s: FFmpeg reads it: %s", self.id, error)
            return self._session_of(self._open, timeout_s, instead=True)

    def _session_of(self, opening: Callable[[float], _Source], timeout_s: float, *, instead: bool = False) -> Action:
        """instead: of our own reader, for good if this one can. Raises Unsuited."""
        asked_s = self._clock.now_s()
        try:
            source = opening(timeout_s)
        except Unsuited:
            raise
        except Exception as error:
            # Whatever a library throws at us here, this camera tries again and the others do not notice.
            # FFmpeg calls an answer that did not come in time "invalid data", too.
            late = self._url.kind is not SourceKind.FILE and self._clock.now_s() - asked_s >= timeout_s
            return self._failed(TimeoutError("no answer in time") if late else error)
        self._ours = self._ours and not instead
        try:
            self._handle(Opened())
            return self._read(source)
        except Unsuited:
            raise
        except Exception as error:
            return self._failed(error)
        finally:
            source.close()

    def _failed(self, error: Exception) -> Action:
        ours = avio.stream_error(error, subject=f"camera {self.id}")
        return self._handle(Failed(ours.stream_code, str(ours)))

    def _open_ours(self, timeout_s: float) -> _Source:
        """Raises Unsuited."""
        reader = RtspReader(self._url, open_s=timeout_s, give_up_s=self._machine.policy.give_up_s)
        try:
            self._ours_rests = True  # unless it is answered
            track = reader.begin()
            self._ours_rests = False
            decoder = cast(VideoCodecContext, av.CodecContext.create(track.codec, "r"))
            decoder.extradata = track.parameters or None
            tap = BareTap(track.codec, track.parameters)
            session = _Session(decoder=_set_up(decoder), fps=0.0, tap=tap, camera_s=reader.camera_s)
            return _Source(packets=reader.packets(), close=reader.close, session=session, live=True, by="own")
        except (PermissionError, FileNotFoundError):
            self._ours_rests = False
            reader.close()
            raise
        except BaseException:
            reader.close()
            raise

    def _open(self, timeout_s: float) -> _Source:
        container, stream = self._open_container(timeout_s)
        told = camera_time_s if container.format.name == "rtsp" else _untold
        session = _Session(decoder=_decoder(stream), fps=_rate_of(stream), tap=Tap(stream), camera_s=told)
        live = container.format.name in _LIVE_FORMATS
        return _Source(
            packets=container.demux(),
            close=container.close,
            session=session,
            live=live,
            finite=not live and container.duration is not None,
            stream=stream.index,
            size_px=(stream.codec_context.width, stream.codec_context.height),
        )

    def _open_container(self, timeout_s: float) -> tuple[InputContainer, VideoStream]:
        avio.quiet()
        options, format_name = open_options(self._url, transport=self._transport)
        where = self._url.reveal()
        if self._url.kind in (SourceKind.FILE, SourceKind.V4L2):
            where = self._url.path if format_name else f"file:{self._url.path}"
        # Files answer at once or never; a time-out would only trip over a sleeping disk.
        timeout = None if self._url.kind is SourceKind.FILE else (timeout_s, self._machine.policy.give_up_s)
        container = av.open(where, format=format_name, options=options, timeout=timeout, metadata_errors="replace")
        try:
            streams = container.streams.video
            if not streams or streams[0].codec_context is None:
                raise avio.codec_error(f"camera {self.id}", "it sends no video that can be decoded")
            return container, streams[0]
        except BaseException:
            container.close()
            raise

    def _read(self, source: _Source) -> Action:
        session, packets, ours = source.session, source.packets, source.stream
        pace = None if source.live else self._new_pace(session.fps)
        with self._lock:
            self._undecoded_s = None
            self._size_px = source.size_px
            self._rate.restart(session.fps)
        checked_s = float("-inf")
        pulse, patience_s = self._pulses["reader"], self._machine.policy.give_up_s
        self._ours_rests = source.by == "own"  # unless it shows that it can
        while not self._stopping.is_set():
            asked_s = self._clock.now_s()
            pulse.rest(for_s=patience_s)
            packet = next(packets, None)
            if packet is None or (packet.size == 0 and packet.dts is None):
                break
            now_s = self._clock.now_s()
            # A read that times out first gives the half-read packet before it, which would pass for a sign of life.
            if now_s - asked_s >= self._machine.policy.give_up_s and source.live:
                raise TimeoutError("no video came for too long")
            if packet.stream_index == ours and packet.size:
                wait_s = pace.wait_s(packet, now_s) if pace is not None else 0.0
                pulse.rest(for_s=wait_s)
                if wait_s > 0 and self._clock.wait(self._stopping, wait_s):
                    break
                self._take(packet, session, pace)
            if now_s - checked_s >= _CHECK_S:
                self._ours_rests = source.by == "own"
                self._check()
                self._ours_rests = False
                checked_s = now_s
        if source.finite:
            end = _Queued(packet=AvPacket(), keyframe=False, size_bytes=0, times_s=(0.0, 0.0), session=session)
            self._put(end, self._clock.now_s())
        return self._handle(Ended(finite=source.finite, repeat=self._loop))

    def _new_pace(self, fps: float) -> Pace:
        # A recording that repeats goes on one picture after its last one; one that lags goes on lagging.
        next_s = self._captured_s + (1.0 / fps if fps > 0 else 0.0)
        now_s = self._clock.now_s()
        with self._lock:
            goes_on = self._begun_s is not None
            if not self._realtime and not goes_on:
                self._begun_s = max(now_s, next_s)
        return Pace(realtime=self._realtime, base_s=next_s if goes_on else max(now_s, next_s))

    def _take(self, packet: AvPacket, session: _Session, pace: Pace | None) -> None:
        now_s = captured_s = self._clock.now_s()
        captured_utc = self._clock.utc()
        if pace is not None and not self._realtime:
            captured_s = pace.media_s(packet)
            captured_utc += captured_s - now_s
        times_s = (captured_s, captured_utc)
        # Comes back on the picture, whatever the decoder's delay.
        packet.opaque = (times_s, session.camera_s(packet), packet.pts)
        self._record(packet, session.tap, times_s)
        item = _Queued(packet=packet, keyframe=packet.is_keyframe, size_bytes=packet.size, times_s=times_s, session=session)
        self._put(item, now_s)

    def _record(self, packet: AvPacket, tap: Tap, times_s: tuple[float, float]) -> None:
        ring = self._ring
        if ring is None or tap.broken:
            return
        try:
            coded = tap.coded(packet, times_s)
            if coded is not None:
                ring.put(coded)
        except Exception:  # whatever clips miss until the stream is opened anew, the camera goes on
            log.warning("camera %s: its packets cannot be recorded", self.id, exc_info=True)
            tap.broken = True

    def _put(self, item: _Queued, now_s: float) -> None:
        """now_s: when it came."""
        with self._lock:
            while not self._realtime and not self._queue.fits(item) and not self._stopping.is_set():
                self._pulses["reader"].rest()
                self._room.wait()
            self._queue.put(item)
            if item.size_bytes:
                self._captured_s = max(self._captured_s, item.times_s[0])
                stamp_s = media_s(item.packet) if item.keyframe else None  # of the others nobody asks, and it makes a fraction
                self._rate.saw(item.times_s[0], keyframe=item.keyframe, media_s=stamp_s)
                self._machine.handle(_PACKET, now_s)
            if self._realtime and not self._is_wanted(now_s):
                self._queue.skip_to_newest()
            elif self._is_awaited(item, now_s):
                self._tell_work()

    def _is_awaited(self, item: _Queued, now_s: float) -> bool:
        match self._awaited:
            case _Awaited.DUE:
                return self._rate.wait_s(now_s) <= 0
            case _Awaited.KEYFRAME:
                return item.keyframe
            case awaited:
                return awaited is _Awaited.PACKET

    def _check(self) -> None:
        """Raises when only other things than video come, or when no picture comes out of the video."""
        with self._lock:
            now_s = self._clock.now_s()
            silent_s = self._machine.silence_s(now_s)
            if not self._is_wanted(now_s):
                self._undecoded_s = None
            first_s, newest_s = self._undecoded_s or (0.0, 0.0)
            undecoded_s = newest_s - first_s  # not until now: who decodes may be waiting for a turn
        if silent_s > self._machine.policy.give_up_s:
            raise TimeoutError("no video came for too long")
        if self._realtime and undecoded_s > UNDECODABLE_S:
            raise avio.codec_error(f"camera {self.id}", "its video cannot be decoded")

    # --- decoding -----------------------------------------------------------------------------------------------------

    def _is_wanted(self, now_s: float) -> bool:
        return now_s - self._asked_s <= DEMAND_S

    def _decode_loop(self) -> None:
        while not self._stopping.is_set():
            batch, alone = self._next_batch()
            self._decode_contained(batch, alone=alone)
        with self._lock:
            self._decoding = False
            self._queue.clear()
            self._wake_all()

    def _decode_contained(self, batch: list[_Queued], *, alone: bool) -> None:
        """A picture that the libraries cannot handle costs this picture and nothing else."""
        try:
            self._decode(batch, alone=alone)
        except Exception as error:
            self._lost, self._lost_why = self._lost + 1, redact(f"{type(error).__name__}: {error}")
            log.warning("camera %s: a picture was lost", self.id, exc_info=True)
            self._note_decoded(False)

    def _next_batch(self) -> tuple[list[_Queued], bool]:
        """Waits for packets that are wanted: (they, whether it is a keyframe to be decoded for itself), or nothing for now."""
        with self._lock:
            self._decoding = False
            if self._is_claimed() and not self._stopping.is_set():
                self._stand_back()
                return [], False
            if not self._reading and not len(self._queue):
                self._frames.notify_all()  # nothing more will come
            batch, alone, wait_s = self._due()
            self._decoding = bool(batch)
            if not batch and not self._stopping.is_set():
                self._pulses["decoder"].rest(for_s=wait_s)
                self._work.wait(wait_s)
            self._pulses["decoder"].beat()
            self._awaited = _Awaited.NOTHING
            return batch, alone

    def _stand_back(self) -> None:
        """Lock held. Rests until the one who decodes has not said so for a while; it may be waiting for this thread's last batch."""
        self._tell_work()
        wait_s = max(0.0, self._claimed_s + DEMAND_S - self._clock.now_s())
        self._pulses["decoder"].rest()
        self._relief.wait(wait_s if self._making_since_s is None else DEMAND_S)
        self._pulses["decoder"].beat()

    def _due(self) -> tuple[list[_Queued], bool, float]:
        """(packets to decode now, whether alone, else how long there will be none unless something changes)."""
        wait_s = self._until_due()
        if wait_s > 0:
            return [], False, wait_s
        if not self._realtime:
            item = self._queue.pop()
            if self._queue.half_empty():
                self._room.notify_all()  # not for each packet: the reader then reads many at a time
            return [item], False, 0.0
        if not self._rate.keyframes_only():
            self._alone = None
            return self._queue.take(), False, 0.0
        # The keyframe stays in the queue with what follows it: should more be wanted, decoding goes on from there.
        self._alone = self._queue.peek()
        assert self._alone is not None
        return [self._alone], True, 0.0

    def _until_due(self) -> float:
        """How long there will be nothing to decode unless something changes, and says what that is; 0: there is something."""
        head, now_s = self._queue.peek(), self._clock.now_s()
        if head is not None and not self._is_wanted(now_s):
            self._awaited = _Awaited.NOTHING
            return 0.5
        wait_s = self._rate.wait_s(now_s) if self._realtime else 0.0
        if wait_s > 0:
            # The packet that comes when a frame is due is fresh; by the clock, what is here would be up to a picture old. The clock
            # is for cameras from which no packet comes then.
            self._awaited = _Awaited.DUE
            return wait_s + self._rate.grace_s()
        if head is None:
            self._awaited = _Awaited.PACKET
            return 0.5
        if not self._realtime:
            return 0.0
        self._queue.skip_to_newest()
        if self._rate.keyframes_only():
            head = self._queue.peek()
            if head is None or not head.keyframe or head is self._alone:
                self._awaited = _Awaited.KEYFRAME
                return 0.5
        return 0.0

    def _decode(self, batch: list[_Queued], *, alone: bool) -> None:
        if not batch:
            return
        newest: _Picture | None = None
        for item in batch:
            # One at a time: a batch may be a long group, and its pictures together would be hundreds of MiB.
            for picture in _pictures(item, alone=alone):
                newest = picture
                if not self._realtime and self._rate.due(picture.times_s[0]):
                    self._publish(picture)
                    self._wait_until_taken()
        self._note_decoded(newest is not None)
        if self._realtime and newest is not None:
            self._publish(newest)

    def _note_decoded(self, success: bool) -> None:
        with self._lock:
            now_s = self._clock.now_s()
            self._undecoded_s = None if success else (self._undecoded_s[0] if self._undecoded_s else now_s, now_s)

    def _publish(self, picture: _Picture) -> None:
        shot = Shot(picture.frame, self._rgb, masks=self._masks, height_px=self._height_px)
        if self._making_since_s is None or not self._rgb.knows(picture.frame):
            shot.image()  # one that cannot be turned into a picture is lost here, where that is counted
        captured_s, captured_utc = picture.times_s
        motion = self._motion
        regions = motion.find(shot.image(), at_s=captured_s) if motion is not None else None
        with self._lock:
            self._unseen += not self._newest_seen
            self._newest_seen = False
            self._newest = DecodedFrame.of(
                shot, stream=self.id, seq=self._decoded, captured_s=captured_s, captured_utc=captured_utc, regions=regions,
                camera_s=picture.camera_s,
            )  # fmt: skip
            self._decoded += 1
            self._size_px = (picture.frame.width, picture.frame.height)
            # Live, the rate is that of the clock: the decoder may give pictures some frames late.
            self._rate.produced(self._clock.now_s() if self._realtime else captured_s)
            self._frames.notify_all()

    def _wait_until_taken(self) -> None:
        with self._lock:
            while self._newest is not None and not self._stopping.is_set():
                self._pulses["decoder"].rest()
                self._work.wait()
            self._pulses["decoder"].beat()


def _decoder(stream: VideoStream) -> VideoCodecContext:
    return _set_up(stream.codec_context)


def _set_up(decoder: VideoCodecContext) -> VideoCodecContext:
    """Sets a decoder to one thread (cameras are many, cores are few) and to hand a packet's times to its picture."""
    decoder.thread_count = 1
    decoder.copy_opaque = True
    return decoder


def _rate_of(stream: VideoStream) -> float:
    """Frames per second as announced, or 0 where that is missing or nonsense (90000 and the like)."""
    fps = float(stream.average_rate or 0)
    return fps if 0 < fps <= 240 else 0.0


def _pictures(item: _Queued, *, alone: bool) -> list[_Picture]:
    """What comes out of the decoder for a packet. alone: all that is in a keyframe, and nothing is kept for the next packet."""
    decoder, order = item.session.decoder, item.session.order
    if item.size_bytes:
        order.sent(item.packet.pts, item.times_s, keyframe=item.keyframe)
    try:
        frames = decoder.decode(item.packet if item.size_bytes else None)
        if alone:
            frames = [*frames, *decoder.decode(None)]
            decoder.flush_buffers()
    except av.error.FFmpegError:
        return []  # a bad packet; the decoder finds its way again at the next keyframe
    pictures = [_picture(frame, item) for frame in frames if not frame.is_corrupt]
    if alone:
        order.flushed()
    return pictures


def _picture(frame: VideoFrame, item: _Queued) -> _Picture:
    told = cast(tuple[tuple[float, float], float | None, int | None], frame.opaque or (item.times_s, None, None))
    own_s, camera_s, stamp = told
    return _Picture(frame=frame, times_s=item.session.order.shown(stamp, own_s), camera_s=camera_s)


def _untold(packet: AvPacket) -> float | None:
    """What no other source than RTSP tells."""
    del packet
    return None


def camera_time_s(packet: AvPacket) -> float | None:
    """When a packet's picture was taken by the camera's own clock, from its RTCP sender reports (FFmpeg's "producer reference time");
    None: the stream has told none (yet)."""
    if not packet.has_sidedata("prft"):
        return None
    found = bytes(packet.get_sidedata("prft"))
    return struct.unpack_from("<q" if sys.byteorder == "little" else ">q", found)[0] / 1e6 if len(found) >= 8 else None


def open_camera(
    camera_id: str,
    url: str | SourceUrl,
    *,
    transport: str = "tcp",
    masks: Sequence[Mask] = (),
    loop: bool = False,
    realtime: bool = True,
    seed: int = 0,
    rtsp_by: RtspBy = "own",
) -> PyavCamera:
    """A camera, not yet started.

    url: rtsp(s)://, http(s):// (MJPEG, HLS, a video file), a path or file: of a video, v4l2: or /dev/videoN.
    transport: tcp or udp, for RTSP. masks: burnt into every frame. loop: a recording starts again at its end.
    realtime: False reads a file as fast as its frames are taken. seed: of the jitter between tries; each camera has its own.
    rtsp_by: own or ffmpeg, for RTSP over TCP; own leaves to FFmpeg what it cannot read.
    Raises ConfigError.
    """
    address = url if isinstance(url, SourceUrl) else SourceUrl(url)
    return PyavCamera(
        camera_id, address, transport=transport, masks=masks, loop=loop, realtime=realtime, seed=seed, rtsp_by=rtsp_by
    )
