"""RTSP read by ourselves: what cameras do besides sending video, what is left to FFmpeg, that pictures, clips and times are right."""

from __future__ import annotations

import queue
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from av.packet import Packet

from streams import camera as camera_module
from streams import rtp
from streams.camera import PyavCamera, RtspBy
from streams.depacketise import Unsuited
from streams.reconnect import ReconnectPolicy
from streams.recording import ClipFile, Coded, Ring
from streams.rtsp_reader import RtspReader
from streams.rtsp_server import AccessUnit, RtspServer
from streams.rtsp_words import Track
from streams.source import CameraState
from streams.url import SourceUrl
from tests.support import rtp_streams
from tests.support.packets import decoded, read_clip
from tests.support.rtp_streams import FPS, HEIGHT_PX, WIDTH_PX, coded, sent

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
PATIENCE_S = 60.0
#: A test that waits for a slow machine is no camera that fell silent.
PATIENT = ReconnectPolicy(open_timeout_s=60.0, long_open_timeout_s=60.0, stall_s=60.0, give_up_s=60.0)
SDP = "v=0\r\na=control:*\r\nm=video 0 RTP/AVP 96\r\na=rtpmap:96 H264/90000\r\na=control:track0\r\n"
TCP = "RTP/AVP/TCP;unicast;interleaved=0-1"


def until(condition: Callable[[], bool], what: str) -> None:
    begin_s = time.monotonic()
    while not condition():
        assert time.monotonic() - begin_s < PATIENCE_S, what
        time.sleep(0.01)


def interleaved(packets: list[bytes], channel: int = 0) -> bytes:
    return b"".join(bytes([0x24, channel]) + len(packet).to_bytes(2, "big") + packet for packet in packets)


# --- one session, against a server that says what the test wants ------------------------------------------------------


class Scripted:
    """A server for one viewer. answers: method -> (status, headers, body); before, after: bytes around the answer to PLAY; then the
    connection stays open until `hang_up`."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[str, tuple[str, ...], str]] = {
            "OPTIONS": ("200 OK", ("Public: DESCRIBE, SETUP, PLAY, GET_PARAMETER",), ""),
            "DESCRIBE": ("200 OK", (), SDP),
            "SETUP": ("200 OK", (f"Transport: {TCP}", "Session: 17;timeout=60"), ""),
            "PLAY": ("200 OK", (), ""),
        }
        self.before = self.after = b""
        self.asked: list[str] = []
        self.headers: list[str] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"rtsp://127.0.0.1:{self._listening.getsockname()[1]}/cam"
        self.connection: socket.socket | None = None
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        try:
            self.connection, _ = self._listening.accept()
            rest = b""
            while True:
                more = self.connection.recv(4096)
                if not more:
                    return
                rest = self._answer_all(rest + more)
        except OSError:
            return

    def _answer_all(self, data: bytes) -> bytes:
        while data:
            if data[:1] == b"$":
                end = 4 + int.from_bytes(data[2:4], "big")
                if len(data) < max(4, end):
                    return data
                self.asked.append("report")
                data = data[end:]
                continue
            head, ended, rest = data.partition(b"\r\n\r\n")
            if not ended:
                return data
            self._answer(head.decode())
            data = rest
        return b""

    def _answer(self, head: str) -> None:
        assert self.connection is not None
        method = head.split(" ")[0]
        self.asked.append(method)
        self.headers.append(head)
        status, headers, body = self.answers.get(method, ("200 OK", (), ""))
        seq = re.search(r"CSeq: (\d+)", head)
        assert seq is not None
        lines = [f"RTSP/1.0 {status}", f"CSeq: {seq[1]}", *headers, f"Content-Length: {len(body)}", "", body]
        said = "\r\n".join(lines).encode()
        self.connection.sendall(self.before + said + self.after if method == "PLAY" else said)

    def send(self, data: bytes) -> None:
        assert self.connection is not None
        self.connection.sendall(data)

    def hang_up(self) -> None:
        if self.connection is not None:
            self.connection.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._listening.close()
        if self.connection is not None:
            self.connection.close()
        self._thread.join(PATIENCE_S)


@pytest.fixture
def server() -> Iterator[Scripted]:
    made = Scripted()
    yield made
    made.close()


@contextmanager
def reading(url: str, *, give_up_s: float = PATIENCE_S, open_s: float = PATIENCE_S) -> Iterator[RtspReader]:
    reader = RtspReader(SourceUrl(url), open_s=open_s, give_up_s=give_up_s)
    try:
        reader.begin()
        yield reader
    finally:
        reader.close()


UNITS = coded(6)
PACKETS = sent(UNITS)


def test_what_is_asked_and_said(server: Scripted) -> None:
    server.after = interleaved([packet for unit in PACKETS for packet in unit])
    with reading(server.url) as reader:
        packets = reader.packets()
        got = [next(packets) for _ in UNITS]
    assert [rtp.split_annexb(bytes(packet)) for packet in got] == [rtp.split_annexb(unit.data) for unit in UNITS]
    assert [packet.is_keyframe for packet in got] == [unit.keyframe for unit in UNITS]
    assert [packet.pts for packet in got] == [packet.dts for packet in got] == [unit.ticks for unit in UNITS]
    until(lambda: server.asked[-1] == "TEARDOWN", "it says good-bye")
    assert server.asked == ["OPTIONS", "DESCRIBE", "SETUP", "PLAY", "TEARDOWN"]
    assert "Session: 17\r\n" in server.headers[3] + "\r\n"
    assert server.headers[2].startswith(f"SETUP {server.url}/track0 ")
    assert server.headers[3].startswith(f"PLAY {server.url} ")


def test_video_before_the_answer_to_play_is_not_lost(server: Scripted) -> None:
    server.before = interleaved(PACKETS[0]) + interleaved(PACKETS[1][:1])
    server.after = interleaved(PACKETS[1][1:])
    with reading(server.url) as reader:
        packets = reader.packets()
        assert [next(packets).is_keyframe, next(packets).is_keyframe] == [True, False]


def test_other_messages_between_pictures_are_passed_over(server: Scripted) -> None:
    other = b"ANNOUNCE rtsp://cam/ RTSP/1.0\r\nCSeq: 9\r\nContent-Length: 4\r\n\r\n$abc" + interleaved([b"audio"], channel=4)
    server.after = interleaved(PACKETS[0]) + other + interleaved(PACKETS[1])
    with reading(server.url) as reader:
        packets = reader.packets()
        assert [next(packets).pts, next(packets).pts] == [0, UNITS[1].ticks]


def test_the_cameras_clock_is_told(server: Scripted) -> None:
    stamp = int.from_bytes(PACKETS[0][0][4:8], "big")
    report = rtp.sender_report(ssrc=7, utc_s=1_790_000_000.5, timestamp=stamp, packets=0, size_bytes=0)
    server.after = interleaved(PACKETS[0]) + interleaved([report], channel=1) + interleaved(PACKETS[1])
    with reading(server.url) as reader:
        packets = reader.packets()
        assert reader.camera_s(next(packets)) is None, "not told yet"
        assert reader.camera_s(next(packets)) == pytest.approx(1_790_000_000.5 + 1 / FPS, abs=1e-4)


def test_a_session_is_kept_alive(server: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streams.rtsp_reader._REPORT_S", 0.1)
    server.answers["SETUP"] = ("200 OK", (f"Transport: {TCP}", "Session: 17;timeout=1"), "")
    server.after = interleaved(PACKETS[0])
    with reading(server.url) as reader:
        packets = reader.packets()
        next(packets)
        begin_s, n = time.monotonic(), 0
        while not {"GET_PARAMETER", "report"} <= set(server.asked):
            assert time.monotonic() - begin_s < PATIENCE_S, server.asked
            n += 1
            late = rtp_streams.Coded(data=UNITS[1].data, keyframe=False, ticks=n * 9000)
            server.send(interleaved(sent([late])[0]))
            next(packets)
            time.sleep(0.02)


def test_silence_ends_it_and_so_does_the_end(server: Scripted) -> None:
    server.after = interleaved(PACKETS[0])
    with reading(server.url, give_up_s=2.0) as reader:
        packets = reader.packets()
        next(packets)
        with pytest.raises(TimeoutError):
            next(packets)
    other = Scripted()
    other.after = interleaved(PACKETS[0])
    with reading(other.url) as reader:
        packets = reader.packets()
        next(packets)
        other.hang_up()
        assert next(packets, None) is None
    other.close()


def test_rubbish_in_between_is_an_error_of_the_network(server: Scripted) -> None:
    server.after = interleaved(PACKETS[0]) + b"\x00\x01\x02 what is this"
    with reading(server.url) as reader:
        packets = reader.packets()
        next(packets)
        with pytest.raises(ConnectionError):
            next(packets)


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("DESCRIBE", ("302 Moved", ("Location: rtsp://elsewhere/",), "")),
        ("DESCRIBE", ("200 OK", (), SDP.replace("H264", "JPEG"))),
        ("SETUP", ("461 Unsupported Transport", (), "")),
        ("SETUP", ("200 OK", ("Transport: RTP/AVP;unicast;client_port=5000-5001", "Session: 1"), "")),
        ("PLAY", ("455 Method Not Valid In This State", (), "")),
        ("OPTIONS", ("501 Not Implemented", (), "")),
    ],
)
def test_what_is_left_to_ffmpeg(server: Scripted, method: str, answer: tuple[str, tuple[str, ...], str]) -> None:
    server.answers[method] = answer
    with pytest.raises(Unsuited), reading(server.url):
        pass


def test_a_wrong_password_is_told_once(server: Scripted) -> None:
    server.answers["DESCRIBE"] = ("401 Unauthorized", ('WWW-Authenticate: Digest realm="cam", nonce="1"',), "")
    with pytest.raises(PermissionError) as caught, reading(server.url.replace("//", "//joe:wr0ng@")):
        pass
    assert "wr0ng" not in str(caught.value)
    assert sum("Authorization" in head for head in server.headers) == 1
    assert not any("wr0ng" in head or "joe:" in head for head in server.headers)


def test_no_such_path(server: Scripted) -> None:
    server.answers["DESCRIBE"] = ("404 Not Found", (), "")
    with pytest.raises(FileNotFoundError), reading(server.url):
        pass


# --- cameras ----------------------------------------------------------------------------------------------------------


class Held:
    """A feed of coded pictures that sends what `send` is given, and nothing else."""

    def __init__(self, codec: str = "h264", **options: str) -> None:
        self.codec = codec
        self.units = coded(40, codec=codec, **options)
        self.parameter_sets = rtp.parameter_sets(self.units[0].data, codec)
        self._orders: queue.Queue[AccessUnit] = queue.Queue()
        self.watched = threading.Event()

    def run(self, stop: threading.Event, watched: Callable[[], bool], publish: Callable[[AccessUnit], None]) -> None:
        while not stop.is_set():
            if watched():
                self.watched.set()
            try:
                publish(self._orders.get(timeout=0.02))
            except queue.Empty:
                continue

    def send(self, *numbers: int) -> None:
        for number in numbers:
            unit, rounds = self.units[number % len(self.units)], number // len(self.units)
            at_s = unit.ticks / 90_000 + rounds * len(self.units) / FPS
            self._orders.put(AccessUnit(data=unit.data, keyframe=unit.keyframe, at_s=at_s))

    @contextmanager
    def sending(self, first: int = 0) -> Iterator[None]:
        """Sends one picture after the other meanwhile."""
        done = threading.Event()

        def send() -> None:
            number = first
            while not done.wait(0.05):
                self.send(number)
                number += 1

        thread = threading.Thread(target=send)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()


@contextmanager
def watching(feed: Held, *, rtsp_by: RtspBy = "own") -> Iterator[PyavCamera]:
    server = RtspServer()
    server.add_feed("cam", feed)
    server.start()
    camera = PyavCamera("cam", SourceUrl(server.url("cam")), rtsp_by=rtsp_by, policy=PATIENT)
    camera.start()
    try:
        camera.next_frame(after_seq=-1, timeout_s=0.0)  # it is wanted
        assert feed.watched.wait(PATIENCE_S)
        yield camera
    finally:
        camera.stop()
        server.stop()


def shown(camera: PyavCamera, after_seq: int) -> tuple[int, list[int]]:
    frame = camera.next_frame(after_seq=after_seq, timeout_s=PATIENCE_S)
    assert frame is not None, camera.status()
    grey = frame.image.mean(axis=2)
    return frame.seq, [round((float(grey[:, 16 * column + 2 : 16 * column + 14].mean()) - 9.5) / 24) for column in range(10)]


@pytest.mark.parametrize(("codec", "options"), [("h264", {}), ("h264", {"slices": "4"}), ("h264", {"aud": "1"}), ("hevc", {})])
def test_a_picture_is_shown_before_the_next_one_is_sent(codec: str, options: dict[str, str]) -> None:
    feed, seq = Held(codec, **options), -1
    with watching(feed) as camera:
        for number in range(12):
            feed.send(number)  # and no more, until this one was seen
            seq, seen = shown(camera, seq)
            assert seen == rtp_streams.expected_levels(number)
        assert camera.status().state is CameraState.LIVE
        assert (camera.status().width_px, camera.status().height_px) == (WIDTH_PX, HEIGHT_PX)


def test_ffmpeg_can_be_asked_for() -> None:
    feed = Held()
    with watching(feed, rtsp_by="ffmpeg") as camera:
        feed.send(0, 1, 2)
        seq, seen = shown(camera, -1)
        while seen != rtp_streams.expected_levels(1):
            seq, seen = shown(camera, seq)  # the third one waits for a fourth
        assert camera.next_frame(after_seq=seq, timeout_s=0.0) is None


def test_b_pictures_are_read_by_ffmpeg_from_then_on() -> None:
    feed = Held(bframes="2", b_adapt="0")
    with watching(feed) as camera:
        feed.send(*range(20))
        until(lambda: not camera._ours, "it was seen that this is for FFmpeg")
        seq = -1
        with feed.sending(20):
            for _ in range(5):
                seq, seen = shown(camera, seq)
                assert seen in [rtp_streams.expected_levels(number) for number in range(10)]


class Mute(RtspReader):
    """Opens as usual, but nothing that it reads makes a picture."""

    opened = 0

    def packets(self) -> Iterator[Packet]:
        Mute.opened += 1
        yield from ()
        raise TimeoutError("no video came for too long")


class Unanswered(RtspReader):
    """The camera takes the connection and does not answer."""

    def begin(self) -> Track:
        Mute.opened += 1
        raise TimeoutError("no answer in time")


@pytest.mark.parametrize("reader", [Mute, Unanswered])
def test_a_camera_that_gives_us_nothing_is_read_by_ffmpeg_next(
    reader: type[RtspReader], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(camera_module, "RtspReader", reader)
    monkeypatch.setattr(Mute, "opened", 0)
    feed = Held()
    with watching(feed) as camera:
        until(lambda: Mute.opened > 0, "ours was tried")
        with feed.sending():
            shown(camera, -1)
        assert camera._ours, "another time it is tried again"


@pytest.mark.parametrize("codec", ["h264", "hevc"])
def test_a_clip_has_the_pictures_the_keyframes_and_the_times(codec: str, tmp_path: Path) -> None:
    feed = Held(codec, slices="3") if codec == "h264" else Held(codec)
    ring = Ring(keep_s=1000.0, max_bytes=10**8)
    with watching(feed) as camera:
        camera.record_to(ring)
        feed.send(*range(30))
        items: list[Coded] = []

        def came() -> bool:
            items[:] = ring.read(ring.cursor(float("-inf")))[0]
            return len(items) >= 30

        until(came, "thirty pictures")
    path = tmp_path / "clip.mp4"
    with path.open("wb") as file:
        clip = ClipFile(file, items[0].format)
        for item in items:
            clip.add(item)
        facts = clip.close()
    assert facts is not None
    assert (facts.codec, facts.pictures, items[0].format.width_px, items[0].format.height_px) == (
        codec,
        30,
        WIDTH_PX,
        HEIGHT_PX,
    )
    _, times_s, keyframes = read_clip(path)
    assert times_s == pytest.approx([n / FPS for n in range(30)], abs=1e-3)
    assert keyframes == [n % 5 == 0 for n in range(30)]
    assert len(decoded(path)) == 30
