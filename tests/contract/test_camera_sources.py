"""The contract of `streams.source.Camera`, over every kind of source that a test can have."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import cv2
import numpy as np
import pytest

from scheduler.types import Frame
from streams.camera import open_camera
from streams.encode import write_video
from streams.rtsp_server import RtspServer
from streams.source import Camera, CameraState

PATIENCE_S = 120.0
HEIGHT, WIDTH = 96, 160


def picture(index: int) -> np.ndarray:
    image = np.full((HEIGHT, WIDTH, 3), 80 + index // 4 % 40, np.uint8)
    image[:, : WIDTH // 2, 0] = 250  # the left half is reddish: the order of the channels can be told
    left = 8 + 5 * index % (WIDTH // 2 - 40)
    image[30:60, left : left + 24, 1] = 20  # something moves there
    return image


class Mjpeg(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "multipart/x-mixed-replace; boundary=frame")
        self.end_headers()
        index = 0
        while True:
            data = cv2.imencode(".jpg", picture(index)[:, :, ::-1])[1].tobytes()
            index += 1
            try:
                self.wfile.write(b"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: %d\r\n\r\n%s\r\n" % (len(data), data))
            except OSError:
                return
            time.sleep(0.03)  # the camera's own pace

    def log_message(self, format: str, *args: object) -> None:
        pass


def rtsp(stack: ExitStack, transport: str) -> Camera:
    server = RtspServer()
    server.add_frames("cam", 25, WIDTH, HEIGHT, picture, keyframe_s=0.5)
    server.start()
    stack.callback(server.stop)
    return open_camera("cam", server.url("cam"), transport=transport)


def rtsp_file(stack: ExitStack, folder: Path) -> Camera:
    write_video(folder / "clip.mp4", (picture(index) for index in range(30)), fps=25)
    server = RtspServer()
    server.add_file("cam", folder / "clip.mp4")
    server.start()
    stack.callback(server.stop)
    return open_camera("cam", server.url("cam"))


def mjpeg(stack: ExitStack) -> Camera:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Mjpeg)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    stack.callback(server.server_close)
    stack.callback(server.shutdown)
    return open_camera("cam", f"http://127.0.0.1:{server.server_address[1]}/")


def file(folder: Path, *, realtime: bool) -> Camera:
    write_video(folder / "clip.mp4", (picture(index) for index in range(30)), fps=25)
    return open_camera("cam", str(folder / "clip.mp4"), loop=True, realtime=realtime)


KINDS: dict[str, Callable[[ExitStack, Path], Camera]] = {
    "rtsp-tcp": lambda stack, folder: rtsp(stack, "tcp"),
    "rtsp-udp": lambda stack, folder: rtsp(stack, "udp"),
    "rtsp-file": rtsp_file,
    "http-mjpeg": lambda stack, folder: mjpeg(stack),
    "file-realtime": lambda stack, folder: file(folder, realtime=True),
    "file-fast": lambda stack, folder: file(folder, realtime=False),
}


@pytest.fixture(params=sorted(KINDS))
def camera(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Camera]:
    with ExitStack() as stack:
        made = KINDS[request.param](stack, tmp_path)
        stack.callback(made.stop)
        yield made


def following(camera: Camera, frame: Frame, until_s: float, what: str) -> Frame:
    assert time.monotonic() < until_s, what
    later = camera.next_frame(after_seq=frame.seq, timeout_s=PATIENCE_S)
    assert later is not None, camera.status()
    return later


def test_a_camera(camera: Camera) -> None:
    assert camera.id == "cam"
    assert camera.status().state is CameraState.STOPPED

    camera.start()
    assert camera.status().state in (CameraState.CONNECTING, CameraState.LIVE)

    seq, captured_s = -1, float("-inf")
    for _ in range(8):
        frame = camera.next_frame(after_seq=seq, timeout_s=PATIENCE_S)
        assert frame is not None, camera.status()
        assert frame.stream == "cam"
        assert frame.seq > seq
        assert frame.captured_s > captured_s
        assert frame.image.dtype == np.uint8
        assert frame.image.shape == (HEIGHT, WIDTH, 3)
        assert frame.image[:, :70, 0].mean() > 200 > frame.image[:, 90:, 0].mean(), "RGB"
        seq, captured_s = frame.seq, frame.captured_s

    assert frame is not None
    status = camera.status()
    assert status.state is CameraState.LIVE
    assert status.code is None
    assert (status.width_px, status.height_px) == (WIDTH, HEIGHT)
    assert status.frames_decoded >= 8
    until_s = time.monotonic() + PATIENCE_S
    while camera.status().fps != pytest.approx(25, rel=0.6):
        frame = following(camera, frame, until_s, "the rate of the camera")

    assert frame.regions is None, "nobody asked what moves"
    camera.want(fps=25.0, regions=True)
    learning, until_s = 0, time.monotonic() + PATIENCE_S
    while frame.regions is None or not len(frame.regions):
        learning += frame.regions is not None
        frame = following(camera, frame, until_s, "regions of what moves")
    assert learning > 1, "the background is learnt first"
    assert frame.regions.dtype == np.float32
    assert frame.regions.shape[1] == 4
    assert (frame.regions >= 0).all()
    assert (frame.regions <= (WIDTH, HEIGHT, WIDTH, HEIGHT)).all()

    camera.want(fps=5.0, height_px=HEIGHT // 2)
    until_s = time.monotonic() + PATIENCE_S
    while frame.image.shape != (HEIGHT // 2, WIDTH // 2, 3) or frame.regions is not None:
        frame = following(camera, frame, until_s, "the wanted height, and nobody asks any more what moves")

    assert camera.next_frame(after_seq=10**9, timeout_s=0.0) is None

    camera.stop()
    assert camera.status().state is CameraState.STOPPED
    assert camera.next_frame(after_seq=10**9, timeout_s=PATIENCE_S) is None, "and at once"


def test_a_camera_that_was_never_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    for url in (f"rtsp://127.0.0.1:{port}/cam", f"http://127.0.0.1:{port}/cam", "/nowhere/clip.mp4", "v4l2:/dev/video4711"):
        camera: Camera = open_camera("cam", url)
        camera.start()
        try:
            until_s = time.monotonic() + PATIENCE_S
            while camera.status().code is None and time.monotonic() < until_s:
                assert camera.next_frame(after_seq=-1, timeout_s=0.3) is None
            status = camera.status()
            assert status.state in (CameraState.WAITING, CameraState.CONNECTING)
            assert status.code is not None
            assert status.error.startswith("camera cam: ")
        finally:
            camera.stop()
