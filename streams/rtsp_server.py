"""A small RTSP/1.0 server on loopback: rendered cameras and looped files, served as a real camera would serve them.

Interleaved TCP and UDP, several viewers a mount, optional Basic or Digest password. Over TCP it tells the camera's time in sender
reports (RTCP), as cameras do; over UDP it does not. A mount is fed by a callable that
gives RGB pictures (encoded here, only while somebody watches) or by an H.264 file (remuxed in real time, not encoded again).
A viewer who joins is sent the group of pictures in progress, so its first picture never waits for the next keyframe.

`kill`, `hang`, `resume`, `change` and `start` again play the faults of real cameras for tests.
In the box it runs as a process of its own (`streams.rtsp_process`): the demo's cameras then take no turn of its interpreter.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import logging
import re
import secrets
import socket
import ssl
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import quote, unquote, urlsplit

import av
import numpy as np
from av.bitstream import BitStreamFilterContext

from configs.errors import EnvironmentLacking
from streams import avio, rtp
from streams.encode import AnnexBEncoder

log = logging.getLogger(__name__)
T = TypeVar("T")

REALM = "driftbox"
TRACK = "track0"
#: A viewer whose unsent bytes exceed this is skipped until the next keyframe instead of growing our memory.
BACKLOG_BYTES = 2_000_000
#: The group of pictures kept for viewers who join; a longer one is forgotten and they wait for a keyframe.
GROUP_BYTES = 8_000_000
#: Media seconds between two sender reports.
REPORT_S = 5.0


@dataclass(frozen=True, kw_only=True)
class AccessUnit:
    """One coded picture, Annex B. at_s: media time on a clock that never goes back within a mount."""

    data: bytes
    keyframe: bool
    at_s: float


class Feed(Protocol):
    """What a mount shows."""

    codec: str
    parameter_sets: list[bytes]

    def run(self, stop: threading.Event, watched: Callable[[], bool], publish: Callable[[AccessUnit], None]) -> None:
        """Publishes in real time until `stop` is set or the material ends. Runs on the mount's own thread."""


@dataclass(frozen=True, kw_only=True)
class Pictures:
    """What a `FrameFeed` shows now. frames: index of the picture -> uint8 (height_px, width_px, 3) RGB."""

    width_px: int
    height_px: int
    frames: Callable[[int], np.ndarray]
    codec: str = "h264"


class FrameFeed:
    """Pictures from a callable, encoded while somebody watches. The index follows the clock, watched or not."""

    def __init__(self, pictures: Pictures, *, fps: float, keyframe_s: float) -> None:
        if fps <= 0:
            raise ValueError(f"fps must be positive, got {fps}")
        self.fps = fps
        self.keyframe_s = keyframe_s
        self.change(pictures)

    def change(self, pictures: Pictures) -> None:
        """From the next picture on. Viewers see the new size (or codec) in the middle of the stream, unannounced."""
        black = np.zeros((pictures.height_px, pictures.width_px, 3), np.uint8)
        self.codec = pictures.codec
        self.parameter_sets = rtp.parameter_sets(self._encoder(pictures).encode(black)[0], pictures.codec)
        self._pictures = pictures

    def _encoder(self, pictures: Pictures) -> AnnexBEncoder:
        size = (pictures.width_px, pictures.height_px)
        return AnnexBEncoder(*size, fps=self.fps, keyframe_s=self.keyframe_s, codec=pictures.codec)

    def run(self, stop: threading.Event, watched: Callable[[], bool], publish: Callable[[AccessUnit], None]) -> None:
        epoch_s, index = time.monotonic(), -1
        encoder: AnnexBEncoder | None = None
        shown: Pictures | None = None
        while not stop.wait(max(0.0, epoch_s + (index + 1) / self.fps - time.monotonic())):
            index = max(index + 1, int((time.monotonic() - epoch_s) * self.fps))
            pictures = self._pictures
            if not watched():
                encoder = None
                continue
            if encoder is None or pictures is not shown:
                encoder, shown = self._encoder(pictures), pictures
            data, keyframe = encoder.encode(pictures.frames(index))
            publish(AccessUnit(data=data, keyframe=keyframe, at_s=index / self.fps))


class FileFeed:
    """An H.264 or H.265 file in real time, looped. Raises StreamError on construction when it is not such a file."""

    def __init__(self, path: str | Path, *, loop: bool) -> None:
        self.path = Path(path)
        self.loop = loop
        first = next(self._units(), None)
        if first is None:
            raise avio.codec_error(f"video {path}", "it holds no pictures")
        self.parameter_sets = rtp.parameter_sets(first[1].data, self.codec)

    def _units(self) -> Iterator[tuple[float, AccessUnit, float]]:
        """(when to send it, unit, duration of its picture), in seconds from the file's start."""
        avio.quiet()
        try:
            container = av.open(f"file:{self.path}")
        except (av.error.FFmpegError, OSError) as error:
            raise avio.stream_error(error, subject=f"video {self.path}") from None
        with container:
            stream = container.streams.video[0] if container.streams.video else None
            if stream is None or stream.codec_context.name not in ("h264", "hevc"):
                raise avio.codec_error(f"video {self.path}", "only H.264 and H.265 files can be served")
            self.codec = stream.codec_context.name
            to_annexb = BitStreamFilterContext(f"{self.codec}_mp4toannexb", stream)
            picture_s = 1.0 / float(stream.average_rate or 25)
            start_s: float | None = None
            for packet in container.demux(stream):
                if packet.dts is None or packet.pts is None:
                    continue
                send_s, show_s = float(packet.dts * packet.time_base), float(packet.pts * packet.time_base)
                start_s = send_s if start_s is None else start_s
                keyframe = packet.is_keyframe
                data = b"".join(bytes(out) for out in to_annexb.filter(packet))
                yield send_s - start_s, AccessUnit(data=data, keyframe=keyframe, at_s=show_s - start_s), picture_s

    def run(self, stop: threading.Event, watched: Callable[[], bool], publish: Callable[[AccessUnit], None]) -> None:
        del watched  # copying packets is cheap, and a camera does not pause when nobody looks
        epoch_s, offset_s = time.monotonic(), 0.0
        while True:
            end_s = offset_s
            for send_s, unit, picture_s in self._units():
                if stop.wait(max(0.0, epoch_s + offset_s + send_s - time.monotonic())):
                    return
                publish(AccessUnit(data=unit.data, keyframe=unit.keyframe, at_s=offset_s + unit.at_s))
                end_s = offset_s + send_s + picture_s
            offset_s = end_s
            if not self.loop:
                return


class Mount:
    """A feed, its viewers and the RTP state they share. Everything but the feed's thread runs on the server's loop."""

    def __init__(self, name: str, feed: Feed) -> None:
        self.name = name
        self.feed = feed
        self.viewers: set[Viewer] = set()
        self.answering = asyncio.Event()
        self.answering.set()
        self.failed = False
        self._group: list[bytes] = []
        self._group_bytes = 0
        self._seq = secrets.randbelow(1 << 16)
        self._ssrc = secrets.randbits(32)
        self._zero_utc_s: float | None = None  # when media time 0 was, on this camera's clock
        self._newest_s, self._reported_s = 0.0, float("-inf")
        self._packets = self._bytes = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(loop, self._stop), name=f"mount-{self.name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def _run(self, loop: asyncio.AbstractEventLoop, stop: threading.Event) -> None:
        try:
            self.feed.run(stop, lambda: bool(self.viewers), lambda unit: _post(loop, self.publish, unit))
        except Exception:
            # The feed is somebody else's code: its mount goes dark, the other mounts do not notice.
            log.exception("mount %s: its feed failed", self.name)
            self.failed = True
        if not stop.is_set():
            _post(loop, self.drop_viewers)

    def publish(self, unit: AccessUnit) -> None:
        timestamp = round(unit.at_s * rtp.CLOCK_HZ)
        packets = rtp.packetise(unit.data, seq=self._seq, timestamp=timestamp, ssrc=self._ssrc, codec=self.feed.codec)
        self._seq = (self._seq + len(packets)) & 0xFFFF
        self._remember(packets, unit.keyframe)
        report = self._report_if_due(unit.at_s)
        self._packets, self._bytes = self._packets + len(packets), self._bytes + sum(map(len, packets))
        if self.answering.is_set():
            for viewer in list(self.viewers):
                if report:
                    viewer.report(report)
                viewer.send(packets, keyframe=unit.keyframe)

    def _report_if_due(self, at_s: float) -> bytes:
        """Every viewer is told the same time for the same picture: that is what a camera's clock is for."""
        self._newest_s = at_s
        if self._zero_utc_s is None:
            self._zero_utc_s = time.time() - at_s
        if abs(at_s - self._reported_s) < REPORT_S:
            return b""
        self._reported_s = at_s
        return self._report()

    def _report(self) -> bytes:
        if self._zero_utc_s is None:
            return b""
        return rtp.sender_report(
            ssrc=self._ssrc, utc_s=self._zero_utc_s + self._newest_s, timestamp=round(self._newest_s * rtp.CLOCK_HZ),
            packets=self._packets, size_bytes=self._bytes,
        )  # fmt: skip

    def _remember(self, packets: list[bytes], keyframe: bool) -> None:
        if keyframe:
            self._group, self._group_bytes = [], 0
        elif not self._group:
            return
        self._group_bytes += sum(map(len, packets))
        self._group = [*self._group, *packets] if self._group_bytes <= GROUP_BYTES else []

    def join(self, viewer: Viewer) -> None:
        if not self.viewers and isinstance(self.feed, FrameFeed):
            self._group = []  # left over from the last time somebody watched
        if self._group:
            viewer.report(self._report())  # first, so that its first picture has a time
        else:
            self._reported_s = float("-inf")
        viewer.send(self._group, keyframe=bool(self._group))
        self.viewers.add(viewer)

    def drop_viewers(self) -> None:
        for viewer in list(self.viewers):
            viewer.abort()


def _post(loop: asyncio.AbstractEventLoop, function: Callable[..., None], *args: object) -> None:
    with contextlib.suppress(RuntimeError):  # the loop closed between two pictures
        loop.call_soon_threadsafe(function, *args)


class Viewer:
    """One RTSP connection: its requests, and the packets that go back over it or over UDP."""

    def __init__(self, server: RtspServer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._server = server
        self._reader = reader
        self._writer = writer
        self._session = secrets.token_hex(8)
        self._nonce = secrets.token_hex(16)
        self._mount: Mount | None = None
        self._channel: int | None = None
        self._udp: tuple[asyncio.DatagramTransport, tuple[str, int]] | None = None
        self._behind = True

    def send(self, packets: list[bytes], *, keyframe: bool) -> None:
        """Sends an access unit, or leaves out everything up to the next keyframe while the viewer is too slow."""
        transport = self._writer.transport
        if transport.is_closing():
            return
        self._behind = (self._behind and not keyframe) or transport.get_write_buffer_size() > BACKLOG_BYTES
        if self._behind:
            return
        if self._udp is not None:
            sender, address = self._udp
            for packet in packets:
                sender.sendto(packet, address)
        elif self._channel is not None:
            head = bytes([0x24, self._channel])
            transport.write(b"".join(head + len(packet).to_bytes(2, "big") + packet for packet in packets))

    def report(self, packet: bytes) -> None:
        """A sender report; over UDP viewers get none."""
        transport = self._writer.transport
        if packet and self._udp is None and self._channel is not None and not transport.is_closing():
            transport.write(bytes([0x24, (self._channel + 1) & 0xFF]) + len(packet).to_bytes(2, "big") + packet)

    def abort(self) -> None:
        self._writer.transport.abort()

    async def serve(self) -> None:
        try:
            while await self._serve_request():
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            pass  # the viewer went away or does not speak RTSP; either way this connection is over
        finally:
            self._leave()
            self._writer.close()

    def _leave(self) -> None:
        if self._mount is not None:
            self._mount.viewers.discard(self)
        if self._udp is not None:
            self._udp[0].close()
            self._udp = None

    async def _serve_request(self) -> bool:
        first = await self._reader.readexactly(1)
        if first == b"$":  # RTCP from the viewer, interleaved
            head = await self._reader.readexactly(3)
            await self._reader.readexactly(int.from_bytes(head[1:], "big"))
            return True
        text = (first + await self._reader.readuntil(b"\r\n\r\n")).decode("utf-8", "replace").strip()
        if not text:
            return True
        start, *lines = text.split("\r\n")
        method, url, _ = start.split(" ", 2)
        headers = {key.strip().lower(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
        if length := int(headers.get("content-length", "0")):
            await self._reader.readexactly(length)
        return await self._answer(method, url, headers)

    async def _answer(self, method: str, url: str, headers: dict[str, str]) -> bool:
        seq = headers.get("cseq", "0")
        if method == "OPTIONS":
            return self._reply(seq, "200 OK", "Public: OPTIONS, DESCRIBE, SETUP, PLAY, TEARDOWN, GET_PARAMETER")
        if not self._server.admits(method, url, headers.get("authorization", ""), self._nonce):
            return self._reply(seq, "401 Unauthorized", self._server.challenge(self._nonce))
        mount = self._server.mount_of(url)
        if mount is None:
            return self._reply(seq, "404 Not Found")
        await mount.answering.wait()
        if mount.failed:
            return self._reply(seq, "503 Service Unavailable")
        session = f"Session: {self._session};timeout=60"
        match method:
            case "DESCRIBE":
                return self._describe(seq, url, mount)
            case "SETUP":
                self._mount = mount
                transport = await self._setup(headers.get("transport", ""))
                if transport is None:
                    return self._reply(seq, "461 Unsupported Transport")
                return self._reply(seq, "200 OK", f"Transport: {transport}", session)
            case "PLAY":
                if self._channel is None and self._udp is None:
                    return self._reply(seq, "455 Method Not Valid in This State")
                self._reply(seq, "200 OK", session, "Range: npt=now-")
                mount.join(self)
                return True
            case "GET_PARAMETER" | "SET_PARAMETER":
                return self._reply(seq, "200 OK", session)
            case "TEARDOWN":
                self._reply(seq, "200 OK", session)
                return False
        return self._reply(seq, "501 Not Implemented")

    def _reply(self, seq: str, status: str, *headers: str, body: str = "") -> bool:
        lines = [f"RTSP/1.0 {status}", f"CSeq: {seq}", *headers]
        if body:
            lines += ["Content-Type: application/sdp", f"Content-Length: {len(body)}"]
        self._writer.write(("\r\n".join(lines) + "\r\n\r\n" + body).encode())
        return True

    def _describe(self, seq: str, url: str, mount: Mount) -> bool:
        encoding = "H265" if mount.feed.codec == "hevc" else "H264"
        sets = [base64.b64encode(nal).decode() for nal in mount.feed.parameter_sets]
        if encoding == "H265":
            names = ("sprop-vps", "sprop-sps", "sprop-pps")
            parameters = ";".join(f"{name}={value}" for name, value in zip(names, sets, strict=False))
        else:
            parameters = f"packetization-mode=1;sprop-parameter-sets={','.join(sets)}"
        body = "\r\n".join(
            (
                "v=0",
                f"o=- 0 0 IN IP4 {self._server.host}",
                f"s={mount.name}",
                f"c=IN IP4 {self._server.host}",
                "t=0 0",
                "a=control:*",
                "m=video 0 RTP/AVP 96",
                f"a=rtpmap:96 {encoding}/{rtp.CLOCK_HZ}",
                f"a=fmtp:96 {parameters}",
                f"a=control:{TRACK}",
                "",
            )
        )
        return self._reply(seq, "200 OK", f"Content-Base: {url.rstrip('/')}/", body=body)

    async def _setup(self, wanted: str) -> str | None:
        if "TCP" in wanted:
            channels = re.search(r"interleaved=(\d+)-(\d+)", wanted)
            self._channel = int(channels[1]) & 0xFF if channels else 0
            return f"RTP/AVP/TCP;unicast;interleaved={self._channel}-{self._channel + 1}"
        ports = re.search(r"client_port=(\d+)(?:-(\d+))?", wanted)
        if ports is None or "multicast" in wanted:
            return None
        peer = self._writer.get_extra_info("peername")[0]
        loop = asyncio.get_running_loop()
        sender, _ = await loop.create_datagram_endpoint(asyncio.DatagramProtocol, local_addr=(self._server.host, 0))
        if self._udp is not None:
            self._udp[0].close()
        self._udp = (sender, (peer, int(ports[1])))
        port = sender.get_extra_info("sockname")[1]
        return f"RTP/AVP;unicast;client_port={ports[1]}-{ports[2] or int(ports[1]) + 1};server_port={port}-{port + 1}"


class RtspServer:
    """Mounts on one port, served by a thread of its own; every method may be called from any other thread.

    port 0 takes a free one, kept over `kill` and `start`. With a user and a password viewers must show them; auth is 'digest'
    or 'basic'. tls: a server's context makes it RTSPS.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        user: str = "",
        password: str = "",
        auth: str = "digest",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        if auth not in ("digest", "basic"):
            raise ValueError(f"auth must be digest or basic, got {auth!r}")
        self.host = host
        self.port = port
        self._user, self._password, self._auth = user, password, auth
        self._tls = tls
        self._mounts: dict[str, Mount] = {}
        self._viewers: set[Viewer] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    # --- mounts -------------------------------------------------------------------------------------------------------

    def add_frames(
        self,
        name: str,
        fps: float,
        width: int,
        height: int,
        frames: Callable[[int], np.ndarray],
        *,
        keyframe_s: float = 1.0,
        codec: str = "h264",
    ) -> None:
        """A mount showing frames(index), uint8 (height, width, 3) RGB, at `fps` with a keyframe every `keyframe_s`."""
        pictures = Pictures(width_px=width, height_px=height, frames=frames, codec=codec)
        self.add_feed(name, FrameFeed(pictures, fps=fps, keyframe_s=keyframe_s))

    def add_file(self, name: str, path: str | Path, loop: bool = True) -> None:
        """A mount showing an H.264 or H.265 file in real time. Raises StreamError when it is none."""
        self.add_feed(name, FileFeed(path, loop=loop))

    def add_feed(self, name: str, feed: Feed) -> None:
        """A mount showing anything else."""
        if name in self._mounts:
            raise ValueError(f"mount {name!r} exists already")
        mount = self._mounts[name] = Mount(name, feed)
        if self._loop is not None:
            mount.start(self._loop)

    def url(self, name: str, *, user: str = "", password: str = "") -> str:
        """The address of a mount; with the given credentials in it, if any. Raises KeyError for an unknown mount."""
        scheme = "rtsps" if self._tls else "rtsp"
        return address(self.host, self.port, self._mounts[name].name, user=user, password=password, scheme=scheme)

    # --- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Serves until `stop` or `kill`; may be called again after either. Raises EnvironmentLacking when the port is taken."""
        if self._thread is not None:
            return
        listening = self._listen()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, args=(self._loop, listening), name="rtsp-server", daemon=True)
        self._thread.start()
        for mount in self._mounts.values():
            mount.start(self._loop)

    def _listen(self) -> socket.socket:
        try:
            listening = socket.create_server((self.host, self.port), backlog=64)
        except OSError as error:
            raise EnvironmentLacking(
                f"RTSP server: {self.host}:{self.port} cannot be used: {error.strerror}",
                subject=f"{self.host}:{self.port}",
                remedy="choose another port or stop the program that has it",
                code="port",
            ) from error
        self.port = listening.getsockname()[1]
        return listening

    def _serve(self, loop: asyncio.AbstractEventLoop, listening: socket.socket) -> None:
        asyncio.set_event_loop(loop)
        server = loop.run_until_complete(asyncio.start_server(self._connected, sock=listening, ssl=self._tls))
        try:
            loop.run_forever()
        finally:
            server.close()
            for viewer in list(self._viewers):
                viewer.abort()
            for task in asyncio.all_tasks(loop):
                task.cancel()
            loop.run_until_complete(asyncio.sleep(0))
            loop.run_until_complete(asyncio.sleep(0))
            loop.close()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        viewer = Viewer(self, reader, writer)
        self._viewers.add(viewer)
        try:
            await viewer.serve()
        except asyncio.CancelledError:
            pass  # the server ends
        finally:
            self._viewers.discard(viewer)

    def stop(self) -> None:
        """Ends serving: connections are cut, the port is free again."""
        if self._thread is None or self._loop is None:
            return
        for mount in self._mounts.values():
            mount.stop()
        _post(self._loop, self._loop.stop)
        self._thread.join(timeout=10)
        self._thread = self._loop = None
        for mount in self._mounts.values():
            mount.viewers.clear()

    # --- faults -------------------------------------------------------------------------------------------------------

    #: As when a camera loses its power: every connection is reset and nobody listens. `start` brings it back.
    kill = stop

    def hang(self, name: str) -> None:
        """The mount keeps its connections but neither sends nor answers, until `resume`."""
        self._call(self._mounts[name].answering.clear)

    def resume(self, name: str) -> None:
        self._call(self._mounts[name].answering.set)

    def disconnect(self, name: str) -> None:
        """Resets the connections of one mount; it can be joined again at once."""
        self._call(self._mounts[name].drop_viewers)

    def change(self, name: str, width: int, height: int, frames: Callable[[int], np.ndarray], *, codec: str = "h264") -> None:
        """Other pictures on a frames mount, in the middle of the stream and unannounced. Raises ValueError on a file mount."""
        feed = self._mounts[name].feed
        if not isinstance(feed, FrameFeed):
            raise ValueError(f"mount {name!r} shows a file and cannot change")
        feed.change(Pictures(width_px=width, height_px=height, frames=frames, codec=codec))

    def _call(self, function: Callable[[], None]) -> None:
        """Runs `function` on the loop and waits for it."""

        async def run() -> None:
            function()

        self._await(run())

    def _await(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            coroutine.close()
            raise RuntimeError("the RTSP server is not running")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout=10)

    # --- what viewers ask ---------------------------------------------------------------------------------------------

    def mount_of(self, url: str) -> Mount | None:
        path = unquote(urlsplit(url).path).strip("/")
        return self._mounts.get(path) or self._mounts.get(path.removesuffix(f"/{TRACK}"))

    def challenge(self, nonce: str) -> str:
        if self._auth == "basic":
            return f'WWW-Authenticate: Basic realm="{REALM}"'
        return f'WWW-Authenticate: Digest realm="{REALM}", nonce="{nonce}"'

    def admits(self, method: str, url: str, authorization: str, nonce: str) -> bool:
        """Whether the request shows the right credentials (RFC 2617 without `qop`, which is what cameras speak)."""
        if not self._user and not self._password:
            return True
        if self._auth == "basic":
            expected = base64.b64encode(f"{self._user}:{self._password}".encode()).decode()
            return secrets.compare_digest(authorization, f"Basic {expected}")
        fields = dict(re.findall(r'(\w+)="([^"]*)"', authorization))
        secret = _md5(f"{self._user}:{REALM}:{self._password}")
        request = _md5(f"{method}:{fields.get('uri', url)}")
        expected = _md5(f"{secret}:{nonce}:{request}")
        return secrets.compare_digest(fields.get("response", ""), expected)


def address(host: str, port: int, name: str, *, user: str = "", password: str = "", scheme: str = "rtsp") -> str:
    """scheme://[user:password@]host:port/name, quoted as URLs need it."""
    credentials = f"{quote(user, safe='')}:{quote(password, safe='')}@" if user or password else ""
    return f"{scheme}://{credentials}{host}:{port}/{quote(name)}"


def _md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
