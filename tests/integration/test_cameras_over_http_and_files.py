"""Cameras over HTTP (MJPEG, HLS, a file) and from files: real sockets and real files, nothing of ours on the other side."""

from __future__ import annotations

import base64
import functools
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import av
import cv2
import numpy as np
import pytest

from configs.errors import ConfigError, StreamErrorCode
from scheduler.types import Frame
from streams.camera import PyavCamera, open_camera
from streams.encode import write_video
from streams.source import CameraState
from streams.url import SourceUrl
from tests.support.pace import slowness

PATIENCE_S = 120.0
FRAMES = 30
FPS = 20.0


def grey(level: int, height: int = 96, width: int = 160) -> np.ndarray:
    return np.full((height, width, 3), level, np.uint8)


def ramp() -> Iterator[np.ndarray]:
    """Picture k is a plain grey of 8 * k."""
    return (grey(8 * k) for k in range(FRAMES))


def index_of(frame: Frame) -> int:
    return round(float(frame.image.mean()) / 8)


def wait_until(condition: Callable[[], bool], what: str) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until_s, f"not within {PATIENCE_S} s: {what}"
        time.sleep(0.02)


def take_all(camera: PyavCamera, most: int = 10_000) -> list[Frame]:
    """Starts the camera and takes frames until it ends or `most` came."""
    camera.start()
    frames: list[Frame] = []
    until_s = time.monotonic() + PATIENCE_S
    try:
        while len(frames) < most and time.monotonic() < until_s:
            frame = camera.next_frame(after_seq=frames[-1].seq if frames else -1, timeout_s=0.2)
            if frame is not None:
                frames.append(frame)
            elif camera.status().state is CameraState.ENDED:
                return frames
        assert len(frames) >= most, camera.status()
        return frames
    finally:
        camera.stop()


def code_of(url: str, **arguments: object) -> StreamErrorCode | None:
    """The first code that a camera at `url` shows."""
    camera = open_camera("cam", url, **arguments)  # type: ignore[arg-type]
    camera.start()
    try:
        wait_until(lambda: camera.status().code is not None, "a code")
        assert camera.status().frames_decoded == 0
        return camera.status().code
    finally:
        camera.stop()


# --- HTTP -------------------------------------------------------------------------------------------------------------


class QuietServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # viewers that leave in the middle of a picture


class Mjpeg(BaseHTTPRequestHandler):
    """/open is a camera, /locked asks for joe:p@ss, /garbage says it is one."""

    def do_GET(self) -> None:
        expected = "Basic " + base64.b64encode(b"joe:p@ss").decode()
        if self.path == "/locked" and self.headers.get("Authorization") != expected:
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="cam"')
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("Content-Type", "multipart/x-mixed-replace; boundary=frame")
        self.end_headers()
        for index in range(10_000):
            coded = cv2.imencode(".jpg", grey(8 * (index % FRAMES)))[1].tobytes()
            data = b"no picture at all" if self.path == "/garbage" else coded
            self.wfile.write(b"--frame\r\nContent-Type: image/jpeg\r\nContent-Length: %d\r\n\r\n%s\r\n" % (len(data), data))
            time.sleep(0.02)  # the camera's own pace

    def log_message(self, format: str, *args: object) -> None:
        pass


class QuietFiles(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


def serve(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[str]:
    with QuietServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture
def mjpeg() -> Iterator[str]:
    yield from serve(Mjpeg)


@pytest.fixture
def files(tmp_path: Path) -> Iterator[str]:
    write_video(tmp_path / "clip.mp4", ramp(), fps=FPS)
    with av.open(
        str(tmp_path / "live.m3u8"), "w", format="hls", options={"hls_time": "0.5", "hls_list_size": "0"}
    ) as container:
        stream = container.add_stream("libx264", rate=int(FPS))
        stream.width, stream.height, stream.pix_fmt, stream.gop_size = 160, 96, "yuv420p", 10
        stream.options = {"preset": "ultrafast", "tune": "zerolatency"}
        for image in ramp():
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode(None))
    assert len(list(tmp_path.glob("live*.ts"))) >= 3
    yield from serve(functools.partial(QuietFiles, directory=str(tmp_path)))


@pytest.mark.parametrize("place", ["http://{}/open", "http://joe:p%40ss@{}/locked"])
def test_mjpeg(mjpeg: str, place: str) -> None:
    frames = take_all(open_camera("cam", place.format(mjpeg)), most=10)
    assert {frame.image.shape for frame in frames} == {(96, 160, 3)}
    assert len({index_of(frame) for frame in frames}) > 3


def test_mjpeg_with_the_wrong_password(mjpeg: str) -> None:
    assert code_of(f"http://joe:wrong@{mjpeg}/locked") is StreamErrorCode.AUTH


def test_mjpeg_at_a_lower_rate(mjpeg: str) -> None:
    camera = open_camera("cam", f"http://{mjpeg}/open")
    camera.want(fps=5.0, height_px=48)
    frames = take_all(camera, most=6)
    assert frames[-1].image.shape == (48, 80, 3)
    assert 0.12 < float(np.median(np.diff([frame.captured_s for frame in frames]))) < 0.28 * slowness()


def test_http_without_pictures(mjpeg: str) -> None:
    camera = open_camera("cam", f"http://{mjpeg}/garbage")
    camera.start()
    try:

        def asked_in_vain() -> bool:
            assert camera.next_frame(after_seq=-1, timeout_s=0.05) is None
            return camera.status().code is StreamErrorCode.CODEC

        wait_until(asked_in_vain, "codec")
    finally:
        camera.stop()


def test_hls_and_files_over_http_play_in_real_time_to_their_end(files: str) -> None:
    for name in ("live.m3u8", "clip.mp4"):
        camera = open_camera("cam", f"http://{files}/{name}")
        frames = take_all(camera)
        assert camera.status().state is CameraState.STOPPED
        indexes = [index_of(frame) for frame in frames]
        assert indexes == sorted(set(indexes))
        assert indexes[-1] >= FRAMES - 2
        # A recording is shown at its own pace: not in a burst, however fast it can be fetched.
        assert frames[-1].captured_s - frames[0].captured_s > 0.3 * (indexes[-1] - indexes[0]) / FPS


def test_hls_in_a_loop(files: str) -> None:
    frames = take_all(open_camera("cam", f"http://{files}/live.m3u8", loop=True), most=40)
    indexes = [index_of(frame) for frame in frames]
    assert any(later < sooner for sooner, later in zip(indexes, indexes[1:], strict=False)), "it began again"


def test_a_missing_page(files: str) -> None:
    assert code_of(f"http://{files}/nothing.m3u8") is StreamErrorCode.NOT_FOUND


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    path = tmp_path / "clip.mp4"
    write_video(path, ramp(), fps=FPS, keyframe_s=0.5)
    return path


def test_a_file_as_fast_as_it_is_taken_gives_every_frame_with_the_files_times(clip: Path) -> None:
    camera = open_camera("cam", str(clip), realtime=False)
    frames = take_all(camera)
    assert [index_of(frame) for frame in frames] == list(range(FRAMES))
    assert [frame.seq for frame in frames] == list(range(FRAMES))
    gaps = np.diff([frame.captured_s for frame in frames])
    assert gaps == pytest.approx(np.full(FRAMES - 1, 1 / FPS), abs=1e-3)
    assert np.diff([frame.captured_utc for frame in frames]) == pytest.approx(gaps, abs=1.0)


def test_a_file_whose_pictures_are_coded_out_of_order(tmp_path: Path) -> None:
    path = tmp_path / "b.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=int(FPS))
        stream.width, stream.height, stream.pix_fmt = 160, 96, "yuv420p"
        stream.options = {"preset": "fast", "x264-params": "bframes=3:b-adapt=0:keyint=15"}
        for image in ramp():
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        container.mux(stream.encode(None))
    frames = take_all(open_camera("cam", str(path), realtime=False))
    assert [index_of(frame) for frame in frames] == list(range(FRAMES)), "also the pictures that the decoder kept to the end"
    assert np.diff([frame.captured_s for frame in frames]) == pytest.approx(np.full(FRAMES - 1, 1 / FPS), abs=1e-3)


def test_a_file_at_a_lower_rate_is_sampled_by_its_own_clock(clip: Path) -> None:
    camera = open_camera("cam", str(clip), realtime=False)
    camera.want(fps=5.0)
    assert [index_of(frame) for frame in take_all(camera)] == list(range(0, FRAMES, 4))


def test_a_file_waits_for_who_takes_its_frames(clip: Path) -> None:
    camera = open_camera("cam", str(clip), realtime=False)
    camera.start()
    try:
        first = camera.next_frame(after_seq=-1, timeout_s=PATIENCE_S)
        again = camera.next_frame(after_seq=-1, timeout_s=PATIENCE_S)
        assert first is not None
        assert again is first
        second = camera.next_frame(after_seq=first.seq, timeout_s=PATIENCE_S)
        assert second is not None
        assert (index_of(first), index_of(second)) == (0, 1)
    finally:
        camera.stop()


def test_a_file_in_a_loop_never_goes_back_in_time(clip: Path) -> None:
    frames = take_all(open_camera("cam", str(clip), realtime=False, loop=True), most=3 * FRAMES)
    assert [index_of(frame) for frame in frames] == list(range(FRAMES)) * 3
    assert all(np.diff([frame.captured_s for frame in frames]) > 0)


def test_a_file_in_real_time(clip: Path) -> None:
    camera = open_camera("cam", str(clip))
    frames = take_all(camera)
    indexes = [index_of(frame) for frame in frames]
    assert indexes == sorted(set(indexes))
    assert indexes[-1] == FRAMES - 1
    assert frames[-1].captured_s - frames[0].captured_s > 0.3 * (indexes[-1] - indexes[0]) / FPS


def test_the_end_of_a_file_is_told(clip: Path) -> None:
    camera = open_camera("cam", f"file:{clip}")
    camera.start()
    try:
        wait_until(lambda: camera.status().state is CameraState.ENDED, "ended")
        assert camera.status().code is StreamErrorCode.ENDED
        assert camera.status().error == ""
    finally:
        camera.stop()


def test_memory_stays_bounded_when_frames_are_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "clip.mkv"
    rng = np.random.default_rng(3)
    write_video(path, (rng.integers(0, 255, (96, 160, 3), np.uint8) for _ in range(200)), fps=200)
    camera = PyavCamera("cam", SourceUrl(str(path)), queue_bytes=200_000, queue_packets=20)
    camera.start()
    try:
        wait_until(lambda: camera.status().state is CameraState.ENDED, "ended")
        assert camera.status().frames_decoded == 0
        assert len(camera._queue) <= 20
        assert camera._queue.size_bytes <= 200_000
    finally:
        camera.stop()


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("missing.mp4", None, StreamErrorCode.NOT_FOUND),
        ("empty.mp4", b"", StreamErrorCode.CODEC),
        ("text.mp4", b"just words and no video. " * 200, StreamErrorCode.CODEC),
    ],
)
def test_files_that_are_no_video(tmp_path: Path, name: str, content: bytes | None, code: StreamErrorCode) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert code_of(str(tmp_path / name)) is code


def test_a_file_that_appears_later_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "late.mp4"
    camera = open_camera("cam", str(path), loop=True)
    camera.start()
    try:
        wait_until(lambda: camera.status().code is StreamErrorCode.NOT_FOUND, "not found")
        write_video(tmp_path / "ready.mp4", ramp(), fps=FPS)
        (tmp_path / "ready.mp4").rename(path)
        assert camera.next_frame(after_seq=-1, timeout_s=PATIENCE_S) is not None
    finally:
        camera.stop()


def test_a_device_that_is_not_there() -> None:
    assert code_of("v4l2:/dev/video4711") is StreamErrorCode.NOT_FOUND


@pytest.mark.parametrize(
    ("camera_id", "url", "arguments"),
    [
        ("Bad Id", "rtsp://cam/live", {}),
        ("cam", "rtsp://cam/live", {"transport": "carrier-pigeon"}),
        ("cam", "rtsp://cam/live", {"realtime": False}),
        ("cam", "gopher://cam/live", {}),
    ],
)
def test_senseless_settings_are_refused(camera_id: str, url: str, arguments: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        open_camera(camera_id, url, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("wish", [{"fps": -1.0}, {"fps": float("nan")}, {"fps": float("inf")}, {"fps": 1.0, "height_px": -1}])
def test_senseless_wishes_are_refused(clip: Path, wish: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="0 or more"):
        open_camera("cam", str(clip)).want(**wish)  # type: ignore[arg-type]
