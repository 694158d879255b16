"""The RTSP server, spoken to by hand: what it answers to requests that a well-behaved viewer never sends."""

from __future__ import annotations

import socket
import sys
import threading
import types
from collections.abc import Iterator

import numpy as np
import pytest

from configs.errors import EnvironmentLacking
from streams.rtsp_process import MountSpec, RtspServerProcess, build, obey
from streams.rtsp_server import RtspServer


@pytest.fixture
def server() -> Iterator[RtspServer]:
    made = RtspServer()
    made.add_frames("cam", 10, 64, 48, lambda index: np.full((48, 64, 3), index % 255, np.uint8), keyframe_s=0.5)
    made.start()
    yield made
    made.stop()


class Talk:
    """A connection on which requests are numbered and answers taken apart."""

    def __init__(self, server: RtspServer, mount: str = "cam") -> None:
        self.socket = socket.create_connection((server.host, server.port), timeout=60)
        self.stream = self.socket.makefile("rb")
        self.url = server.url(mount)
        self._seq = 0

    def __enter__(self) -> Talk:
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.close()
        self.socket.close()

    def ask(self, method: str, url: str = "", *headers: str) -> tuple[int, dict[str, str], str]:
        self._seq += 1
        lines = [f"{method} {url or self.url} RTSP/1.0", f"CSeq: {self._seq}", *headers]
        self.socket.sendall(("\r\n".join(lines) + "\r\n\r\n").encode())
        return self.answer()

    def answer(self) -> tuple[int, dict[str, str], str]:
        status = int(self.stream.readline().split()[1])
        headers = {}
        while line := self.stream.readline().decode().strip():
            key, _, value = line.partition(":")
            headers[key.lower()] = value.strip()
        assert headers["cseq"] == str(self._seq)
        return status, headers, self.stream.read(int(headers.get("content-length", 0))).decode()

    def is_closed(self) -> bool:
        try:
            return self.stream.read(1) == b""
        except ConnectionError:
            return True


def test_the_whole_conversation(server: RtspServer) -> None:
    with Talk(server) as talk:
        status, headers, _ = talk.ask("OPTIONS")
        assert status == 200
        assert "DESCRIBE" in headers["public"]
        status, headers, body = talk.ask("DESCRIBE")
        assert status == 200
        assert headers["content-type"] == "application/sdp"
        assert "m=video 0 RTP/AVP 96" in body
        assert "a=rtpmap:96 H264/90000" in body
        assert "sprop-parameter-sets=" in body
        track = headers["content-base"] + "track0"
        status, headers, _ = talk.ask("SETUP", track, "Transport: RTP/AVP/TCP;unicast;interleaved=4-5")
        assert status == 200
        assert "interleaved=4-5" in headers["transport"]
        status, _, _ = talk.ask("PLAY")
        assert status == 200
        sequence = []
        while len(sequence) < 5:
            dollar, channel, *length = talk.stream.read(4)
            packet = talk.stream.read(int.from_bytes(bytes(length), "big"))
            assert dollar == 0x24
            assert channel in (4, 5)
            if channel == 5:  # a sender report: what the camera's clock says
                assert (packet[0] & 0xC0, packet[1]) == (0x80, 200)
                continue
            assert packet[0] == 0x80
            sequence.append(int.from_bytes(packet[2:4], "big"))
        assert [(later - sooner) & 0xFFFF for sooner, later in zip(sequence, sequence[1:], strict=False)] == [1] * 4


def test_a_viewer_may_send_rtcp_in_between(server: RtspServer) -> None:
    with Talk(server) as talk:
        talk.socket.sendall(b"$\x01\x00\x08" + bytes(8))
        assert talk.ask("OPTIONS")[0] == 200
        assert talk.ask("GET_PARAMETER", "", "Content-Length: 0")[0] == 200


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("DESCRIBE", "/nothing", (), 404),
        ("SETUP", "", ("Transport: RTP/AVP;multicast",), 461),
        ("SETUP", "", (), 461),
        ("PLAY", "", (), 455),
        ("RECORD", "", (), 501),
    ],
)
def test_refusals(server: RtspServer, method: str, path: str, headers: tuple[str, ...], status: int) -> None:
    with Talk(server) as talk:
        assert talk.ask(method, talk.url + path, *headers)[0] == status
        assert talk.ask("OPTIONS")[0] == 200, "the connection goes on"


@pytest.mark.parametrize(
    "rubbish",
    [
        b"\x16\x03\x01\x02\x00" * 50 + b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"x" * 200_000,
        b"OPTIONS * RTSP/1.0\r\nContent-Length: many\r\n\r\n",
    ],
)
def test_who_speaks_no_rtsp_is_hung_up_on_and_nobody_else_notices(server: RtspServer, rubbish: bytes) -> None:
    with Talk(server) as talk, Talk(server) as other:
        try:
            talk.socket.sendall(rubbish)
            assert talk.is_closed()
        except ConnectionError:
            pass  # hung up on before all was said
        assert other.ask("OPTIONS")[0] == 200


def test_teardown_ends_the_connection(server: RtspServer) -> None:
    with Talk(server) as talk:
        assert talk.ask("TEARDOWN")[0] == 200
        assert talk.is_closed()


def test_a_viewer_that_reads_nothing_does_not_fill_our_memory() -> None:
    rng = np.random.default_rng(1)
    noise = [rng.integers(0, 255, (480, 640, 3), np.uint8) for _ in range(4)]
    server = RtspServer()
    server.add_frames("cam", 60, 640, 480, lambda index: noise[index % 4])
    server.start()
    try:
        with Talk(server) as talk:
            talk.ask("SETUP", "", "Transport: RTP/AVP/TCP;unicast;interleaved=0-1")
            talk.socket.sendall(f"PLAY {talk.url} RTSP/1.0\r\nCSeq: 9\r\n\r\n".encode())
            done = threading.Event()
            viewers = server._viewers
            most = looks = 0
            # A hundred pictures of about 300 kB are far more than the bound.
            while looks < 200 or (not most and looks < 6000):
                done.wait(0.01)
                looks += 1
                most = max([most, *(viewer._writer.transport.get_write_buffer_size() for viewer in list(viewers))])
            assert 0 < most < 4_000_000
    finally:
        server.stop()


def test_a_taken_port_is_said_so(server: RtspServer) -> None:
    with pytest.raises(EnvironmentLacking) as caught:
        RtspServer(port=server.port).start()
    assert str(server.port) in str(caught.value)
    assert caught.value.remedy


def test_start_and_stop_may_be_called_twice(server: RtspServer) -> None:
    port = server.port
    server.start()
    assert server.port == port
    server.stop()
    server.stop()
    assert not [thread for thread in threading.enumerate() if thread.name == "rtsp-server"]
    server.start()
    assert server.port == port, "the port is kept"


def test_mounts_are_named_once_and_known_by_name(server: RtspServer) -> None:
    with pytest.raises(ValueError, match="exists"):
        server.add_frames("cam", 10, 64, 48, lambda index: np.zeros((48, 64, 3), np.uint8))
    with pytest.raises(KeyError):
        server.url("other")
    with pytest.raises(ValueError, match="digest or basic"):
        RtspServer(auth="kerberos")


# --- the process ------------------------------------------------------------------------------------------------------


def checkered(level: int, height_px: int, width_px: int) -> object:
    return lambda index: np.full((height_px, width_px, 3), level, np.uint8)


def test_a_description_becomes_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "a_factory_for_tests", types.SimpleNamespace(make=checkered))
    arguments = {"level": 9, "height_px": 48, "width_px": 64}
    mount = {"name": "scene", "factory": "a_factory_for_tests:make", "arguments": arguments, "width_px": 64, "height_px": 48}
    server = build({"host": "127.0.0.1", "port": 0, "mounts": [mount]})
    server.start()
    try:
        with Talk(server, "scene") as talk:
            assert talk.ask("DESCRIBE")[0] == 200
        assert obey(server, {"do": "dance"})["error"]
        assert obey(server, {"do": "hang", "name": "scene"}) == {"done": "hang"}
    finally:
        server.stop()


@pytest.mark.parametrize("spec", [{}, {"file": "a.mp4", "factory": "m:f"}])
def test_a_mount_is_either_a_file_or_made(spec: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="either"):
        MountSpec(name="cam", **spec)


def test_a_process_that_cannot_serve_says_why() -> None:
    process = RtspServerProcess([MountSpec(name="clip", file="/nowhere/clip.mp4")])
    with pytest.raises(EnvironmentLacking) as caught:
        process.start()
    assert "/nowhere/clip.mp4" in str(caught.value)
    assert process.pid is None
    with pytest.raises(EnvironmentLacking):
        process.hang("clip")
    with pytest.raises(KeyError):
        process.url("other")
