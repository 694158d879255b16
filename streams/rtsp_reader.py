"""A camera's H.264 or H.265 over RTSP and TCP, read here instead of by FFmpeg: a picture is there when its last packet is.

    RtspReader(url) --connected--> begin(): OPTIONS, DESCRIBE, SETUP, PLAY --> packets(): one access unit each

Sockets and time; what is said is in `streams.rtsp_words`, how pictures are put together in `streams.depacketise`. Raises `Unsuited` for
what FFmpeg may be able to read and this cannot (TLS, MJPEG, redirections, servers with a language of their own), `PermissionError` and
`FileNotFoundError` for refusals, other OSErrors (`TimeoutError` among them) for the network. No error holds the address or the password.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import time
from collections.abc import Iterator
from fractions import Fraction

from av.packet import Packet as AvPacket

from streams import rtp
from streams.depacketise import Depacketiser, Unit, Unsuited
from streams.rtsp_words import Answer, Server, Track, address_of, request, take_answer, timeout_s, track_of
from streams.url import SourceUrl

_READ_BYTES = 65_536
_TICK = Fraction(1, rtp.CLOCK_HZ)
#: How often a camera is told that somebody listens; its session lives for a minute, as a rule.
_REPORT_S = 5.0
_REFUSED = {401: "it refuses this user and password", 403: "this user may not see the stream"}


class RtspReader:
    """One session, connected when it is made; for one thread. open_s: patience until it plays; give_up_s: silence after which reading
    is a TimeoutError."""

    def __init__(self, url: SourceUrl, *, open_s: float, give_up_s: float) -> None:
        self._server = Server.of(url.reveal())
        self._give_up_s = give_up_s
        self._data, self._at = b"", 0  # what was received, and how much of it is dealt with
        self._early: list[tuple[int, int, int]] = []
        self._seq = 0
        self._session, self._session_s = "", 60.0
        self._methods = ""
        self._asked_s = self._reported_s = time.monotonic()
        self._ssrc = secrets.randbits(32)
        self._camera: tuple[float, int] | None = None  # the newest sender report: UTC, RTP time
        self._first_stamp: int | None = None
        self._until_s = time.monotonic() + open_s
        self._socket = socket.create_connection((self._server.host, self._server.port), timeout=open_s)

    # --- the session --------------------------------------------------------------------------------------------------

    def begin(self) -> Track:
        """Asks for the video; returns what it is."""
        self._methods = self._ask("OPTIONS", self._server.url).header("public")
        described = self._ask("DESCRIBE", self._server.url, ("Accept", "application/sdp"))
        track = track_of(described.body.decode("utf-8", "replace"))
        base = described.header("content-base") or described.header("content-location") or self._server.url
        self._base = address_of(base, track.session_control)
        setup = self._ask("SETUP", address_of(base, track.control), ("Transport", "RTP/AVP/TCP;unicast;interleaved=0-1"))
        self._channel = _channel(setup.header("transport"))
        told = setup.header("session")
        self._session, self._session_s = told.partition(";")[0].strip(), timeout_s(told)
        self._ask("PLAY", self._base, ("Range", "npt=0.000-"))
        self._depacketiser = Depacketiser(track.codec, track.payload_type)
        return track

    def _ask(self, method: str, url: str, *headers: tuple[str, str]) -> Answer:
        """Asks and waits for the answer. A password is told when it is asked for, once."""
        while True:
            self._send(method, url, *headers)
            answer = self._answer()
            if answer.status == 200:
                return answer
            if answer.status == 401 and self._server.challenged(answer.headers.get("www-authenticate", ())):
                continue
            if answer.status in _REFUSED:
                raise PermissionError(_REFUSED[answer.status])
            if answer.status == 404:
                raise FileNotFoundError("it has no such path")
            raise Unsuited(f"it answers {method} with {answer.status}")

    def _send(self, method: str, url: str, *headers: tuple[str, str]) -> None:
        self._seq += 1
        session = (("Session", self._session),) if self._session else ()
        authorization = self._server.authorization(method, url)
        self._socket.sendall(request(method, url, self._seq, (*headers, *session, *authorization)))
        self._asked_s = time.monotonic()

    def _answer(self) -> Answer:
        """The answer to the last request. Video that comes before it is kept: the first keyframe may be in it."""
        while True:
            if self._data[self._at : self._at + 1] == b"$":
                if (frame := self._take_frame()) is not None:
                    self._early.append(frame)
                    continue
            elif self._at < len(self._data) and (found := take_answer(self._data, self._at)) is not None:
                answer, self._at = found
                if answer.status and answer.header("cseq") in ("", str(self._seq)):
                    return answer
                continue
            self._receive(keep=bool(self._early))

    def _take_frame(self) -> tuple[int, int, int] | None:
        """(channel, where its packet begins, where it ends) of the interleaved frame that comes next; None: it is not all here."""
        at, data = self._at, self._data
        if len(data) - at < 4:
            return None
        end = at + 4 + (data[at + 2] << 8 | data[at + 3])
        if end > len(data):
            return None
        self._at = end
        return data[at + 1], at + 4, end

    def _receive(self, *, keep: bool = False) -> None:
        """Waits for more. keep: what was dealt with stays where it is."""
        left_s = self._until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("no answer in time")
        self._socket.settimeout(left_s)
        more = self._socket.recv(_READ_BYTES)
        if not more:
            raise ConnectionResetError("the camera closed the connection")
        if keep:
            self._data += more
        else:
            self._data, self._at = self._data[self._at :] + more, 0

    # --- video --------------------------------------------------------------------------------------------------------

    def packets(self) -> Iterator[AvPacket]:
        """One packet for each picture, in the order in which they were sent, until the camera closes the connection."""
        early, self._early = self._early, []
        for sooner in early:
            yield from map(_packet, self._units(*sooner))
        self._until_s = time.monotonic() + self._give_up_s
        while True:
            while (frame := self._next_frame()) is not None:
                for unit in self._units(*frame):
                    yield _packet(unit)
                    self._until_s = time.monotonic() + self._give_up_s
            try:
                self._receive()
            except ConnectionResetError:
                return
            self._keep_alive()

    def _next_frame(self) -> tuple[int, int, int] | None:
        """As `_take_frame`. Answers to signs of life, and what the server asks, are passed over."""
        while self._at < len(self._data):
            if self._data[self._at] == 0x24:
                return self._take_frame()
            try:
                found = take_answer(self._data, self._at)
            except Unsuited:
                raise ConnectionError("what the camera sends makes no sense any more") from None
            if found is None:
                return None
            self._at = found[1]
        return None

    def _units(self, channel: int, begin: int, end: int) -> list[Unit]:
        if channel == self._channel:
            if self._first_stamp is None and end - begin >= 12:
                self._first_stamp = int.from_bytes(self._data[begin + 4 : begin + 8], "big")
            return self._depacketiser.feed(self._data, begin, end)
        if channel == self._channel + 1:
            self._camera = rtp.told_time(self._data[begin:end]) or self._camera
        return []

    def camera_s(self, packet: AvPacket) -> float | None:
        """When its picture was taken by the camera's clock; None: the camera has not told (yet)."""
        if self._camera is None or self._first_stamp is None or packet.pts is None:
            return None
        utc_s, stamp = self._camera
        since = (self._first_stamp + packet.pts - stamp + (1 << 31)) % (1 << 32) - (1 << 31)
        return utc_s + since / rtp.CLOCK_HZ

    def _keep_alive(self) -> None:
        now_s = time.monotonic()
        if now_s - self._reported_s >= _REPORT_S:
            self._reported_s = now_s
            report = rtp.receiver_report(ssrc=self._ssrc)
            self._socket.sendall(bytes([0x24, self._channel + 1]) + len(report).to_bytes(2, "big") + report)
        if now_s - self._asked_s >= self._session_s / 2:
            self._send("GET_PARAMETER" if "GET_PARAMETER" in self._methods else "OPTIONS", self._base)

    def close(self) -> None:
        """Tells the camera, without waiting for what it says, and hangs up."""
        with contextlib.suppress(OSError):
            self._socket.settimeout(0.2)
            if self._session:
                self._send("TEARDOWN", self._base)
        self._socket.close()


def _channel(transport: str) -> int:
    """The channel of the video. Raises Unsuited when it is not to come over this connection."""
    if "TCP" not in transport.upper():
        raise Unsuited("it does not send over the connection that it was asked over")
    _, found, channels = transport.partition("interleaved=")
    first = channels.partition("-")[0].partition(";")[0].strip()
    return int(first) if found and first.isdigit() and int(first) < 255 else 0


def _packet(unit: Unit) -> AvPacket:
    packet = AvPacket(unit.data)
    packet.pts = packet.dts = unit.ticks
    packet.time_base = _TICK
    packet.is_keyframe = unit.keyframe
    return packet
