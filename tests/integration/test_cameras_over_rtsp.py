"""Cameras against our own RTSP server over real sockets: what works, and every way in which it may stop working."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import av
import numpy as np
import pytest

from configs.errors import StreamError, StreamErrorCode
from scheduler.types import Frame
from streams.camera import PyavCamera, open_camera
from streams.encode import write_video
from streams.masks import Mask
from streams.rtsp_process import MountSpec, RtspServerProcess
from streams.rtsp_server import AccessUnit, FrameFeed, Pictures, RtspServer
from streams.source import CameraState
from tests.support.pace import slowness

FPS = 20.0
WIDTH, HEIGHT = 160, 96
#: Longer than anything here takes on a slow machine, shorter than a test may take.
PATIENCE_S = 120.0
#: A camera that is gone is noticed and one that is back is shown soon after: not to be measured beside other tests, but no retry later.
NOTICED_S, BACK_S = 15.0, 10.0


def picture(index: int, width: int = WIDTH, height: int = HEIGHT) -> np.ndarray:
    """Ten grey columns whose levels turn with the index, so that a picture can be told from the next."""
    image = np.zeros((height, width, 3), np.uint8)
    for column in range(10):
        image[:, column * width // 10 : (column + 1) * width // 10] = 25 * ((column + index) % 10)
    return image


def large(index: int) -> np.ndarray:
    return picture(index, 320, 200)


def shown_index(image: np.ndarray) -> int:
    """The index (modulo 10) of the `picture` that was seen."""
    width = image.shape[1]
    levels = np.array([image[:, (2 * column + 1) * width // 20].mean() for column in range(10)])
    errors = [float(np.abs(levels - [25 * ((column + index) % 10) for column in range(10)]).mean()) for index in range(10)]
    best = int(np.argmin(errors))
    assert errors[best] < 8, f"no picture of ours: {levels}"
    return best


def wait_until(condition: Callable[[], bool], what: str, within_s: float = PATIENCE_S) -> float:
    """Waits for a condition; returns how long it took."""
    begin_s = time.monotonic()
    while not condition():
        assert time.monotonic() - begin_s < within_s, f"not within {within_s} s: {what}"
        time.sleep(0.02)
    return time.monotonic() - begin_s


def frame_of(camera: PyavCamera, after_seq: int = -1) -> Frame:
    frame = camera.next_frame(after_seq=after_seq, timeout_s=PATIENCE_S)
    assert frame is not None, camera.status()
    return frame


def fresh_frame(camera: PyavCamera) -> Frame:
    """The next frame whose packet came after this call."""
    now_s = time.monotonic()
    frame = frame_of(camera)
    while frame.captured_s < now_s:
        frame = frame_of(camera, frame.seq)
    return frame


@pytest.fixture
def server() -> Iterator[RtspServer]:
    made = RtspServer()
    made.add_frames("cam", FPS, WIDTH, HEIGHT, picture, keyframe_s=0.5)
    made.start()
    yield made
    made.stop()


@contextmanager
def running(url: str, **arguments: object) -> Iterator[PyavCamera]:
    camera = open_camera("cam", url, **arguments)  # type: ignore[arg-type]
    camera.start()
    try:
        yield camera
    finally:
        camera.stop()


@pytest.mark.parametrize("transport", ["tcp", "udp"])
def test_frames_come_in_order_as_the_camera_made_them(server: RtspServer, transport: str) -> None:
    with running(server.url("cam"), transport=transport) as camera:
        frames = [frame_of(camera)]
        while len(frames) < 25:
            frames.append(frame_of(camera, frames[-1].seq))
        status = camera.status()
    assert status.state is CameraState.LIVE
    assert (status.width_px, status.height_px, status.code) == (WIDTH, HEIGHT, None)
    assert status.frames_decoded >= 25
    assert all(later.seq > sooner.seq for sooner, later in zip(frames, frames[1:], strict=False))
    assert all(later.captured_s >= sooner.captured_s for sooner, later in zip(frames, frames[1:], strict=False))
    steps = [(shown_index(b.image) - shown_index(a.image)) % 10 for a, b in zip(frames, frames[1:], strict=False)]
    assert set(steps) <= {1, 2, 3, 4, 5}, "pictures never go back"
    assert all(abs(frame.captured_utc - time.time()) < PATIENCE_S for frame in frames)


def test_rtsps() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(Path(__file__).parent.parent / "support" / "tests_only_tls.pem")
    server = RtspServer(tls=context, user="joe", password="secret")
    server.add_frames("cam", FPS, WIDTH, HEIGHT, picture)
    server.start()
    try:
        with running(server.url("cam", user="joe", password="secret")) as camera:
            shown_index(frame_of(camera).image)
    finally:
        server.stop()


class Noting(FrameFeed):
    """Remembers which pictures were keyframes: a busy machine leaves pictures out, and the keyframes move."""

    def __init__(self) -> None:
        super().__init__(Pictures(width_px=WIDTH, height_px=HEIGHT, frames=picture), fps=FPS, keyframe_s=0.5)
        self.keyframes: set[int] = set()

    def run(self, stop: threading.Event, watched: Callable[[], bool], publish: Callable[[AccessUnit], None]) -> None:
        def noted(unit: AccessUnit) -> None:
            if unit.keyframe:
                self.keyframes.add(round(unit.at_s * FPS) % 10)
            publish(unit)

        super().run(stop, watched, noted)


def steps_s(frames: list[Frame]) -> np.ndarray:
    """Seconds from frame to frame by the camera's own clock, which knows nothing of a busy machine."""
    times_s = [frame.camera_s for frame in frames if frame.camera_s is not None]
    assert len(times_s) == len(frames)
    return np.diff(times_s)


def test_wanted_height_and_rate_change_while_running(server: RtspServer) -> None:
    feed = Noting()
    server.add_feed("noting", feed)
    with running(server.url("noting")) as camera:
        assert fresh_frame(camera).image.shape == (HEIGHT, WIDTH, 3)
        camera.want(fps=0, height_px=48)
        wait_until(lambda: fresh_frame(camera).image.shape == (48, 80, 3), "smaller pictures")
        camera.want(fps=0, height_px=9999)
        wait_until(lambda: fresh_frame(camera).image.shape == (HEIGHT, WIDTH, 3), "never enlarged")

        camera.want(fps=5)
        frames = [fresh_frame(camera)]
        while len(frames) < 8:
            frames.append(frame_of(camera, frames[-1].seq))
        assert 0.14 < np.median(steps_s(frames)) < 0.26 * slowness()

        camera.want(fps=1.5)  # more seldom than keyframes come: only they are shown
        fresh_frame(camera)
        frames = [fresh_frame(camera)]
        while len(frames) < 4:
            frames.append(frame_of(camera, frames[-1].seq))
        assert {shown_index(frame.image) for frame in frames} <= feed.keyframes, "only keyframes"
        assert min(steps_s(frames)) > 0.4, "each of them once"

        camera.want(fps=0)
        frames = [fresh_frame(camera)]
        while len(frames) < 12:
            frames.append(frame_of(camera, frames[-1].seq))
        assert np.median(steps_s(frames)) < 0.1 * slowness()


def test_nothing_is_decoded_that_nobody_asks_for(server: RtspServer) -> None:
    with running(server.url("cam")) as camera:
        wait_until(lambda: camera.status().state is CameraState.LIVE, "live")
        assert camera.status().frames_decoded == 0
        shown_index(frame_of(camera).image)


def test_several_viewers_of_one_mount(server: RtspServer) -> None:
    url = server.url("cam")
    with running(url) as one, running(url, transport="udp") as two, running(url) as three:
        for camera in (one, two, three):
            shown_index(fresh_frame(camera).image)
        one.stop()
        for camera in (two, three):
            shown_index(fresh_frame(camera).image)


def test_masks_are_burnt_in(server: RtspServer) -> None:
    left = Mask(((0.0, 0.0), (0.5, 0.0), (0.5, 1.0), (0.0, 1.0)))
    with running(server.url("cam"), masks=(left,)) as camera:
        for height_px in (0, 40):
            camera.want(fps=0, height_px=height_px)
            image = fresh_frame(camera).image
            assert not image[:, : image.shape[1] // 2].any()
            assert image[:, -image.shape[1] // 3 :].any()


def test_next_frame_waits_no_longer_than_told(server: RtspServer) -> None:
    with running(server.url("cam")) as camera:
        frame_of(camera)
        assert camera.next_frame(after_seq=10**9, timeout_s=0.05) is None
        assert camera.next_frame(after_seq=10**9, timeout_s=0.0) is None


def test_a_stopped_camera_can_be_started_again(server: RtspServer) -> None:
    camera = open_camera("cam", server.url("cam"))
    assert camera.status().state is CameraState.STOPPED
    camera.start()
    camera.start()
    last = frame_of(camera)
    camera.stop()
    camera.stop()
    assert camera.status().state is CameraState.STOPPED
    assert camera.next_frame(after_seq=10**9, timeout_s=PATIENCE_S) is None
    assert not [thread for thread in threading.enumerate() if thread.name in ("camera-cam", "decode-cam")]
    camera.start()
    assert frame_of(camera, last.seq).seq > last.seq
    camera.stop()


def test_a_camera_is_started_again_while_its_reader_is_still_stuck() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        camera = open_camera("cam", f"rtsp://127.0.0.1:{silent.getsockname()[1]}/cam")
        camera.start()
        connection, _ = silent.accept()
        camera.stop(wait_s=0.0)
        assert camera.status().state is CameraState.STOPPED
        camera.start()
        assert camera.status().state is CameraState.CONNECTING
        second, _ = silent.accept()
        camera.stop()
        assert not [thread for thread in threading.enumerate() if thread.name.endswith("-cam") and thread.is_alive()]
        connection.close()
        second.close()


# --- what goes wrong --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("auth", ["digest", "basic"])
def test_passwords(auth: str) -> None:
    server = RtspServer(user="jo e@x", password="p/w:?#@", auth=auth)
    server.add_frames("cam", FPS, WIDTH, HEIGHT, picture)
    server.start()
    try:
        for user, password in (("jo e@x", "wrong"), ("", ""), ("someone", "p/w:?#@")):
            with running(server.url("cam", user=user, password=password)) as camera:
                wait_until(lambda camera=camera: camera.status().code is StreamErrorCode.AUTH, "auth")  # type: ignore[misc]
                assert camera.status().frames_decoded == 0
                assert "password" in camera.status().error
        with running(server.url("cam", user="jo e@x", password="p/w:?#@")) as camera:
            shown_index(frame_of(camera).image)
    finally:
        server.stop()


def test_a_missing_path(server: RtspServer) -> None:
    with running(server.url("cam") + "-typo") as camera:
        wait_until(lambda: camera.status().code is StreamErrorCode.NOT_FOUND, "not found")


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with running(f"rtsp://127.0.0.1:{port}/cam") as camera:
        wait_until(lambda: camera.status().code is StreamErrorCode.NETWORK, "network")


def test_somebody_listens_and_never_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, running(f"rtsp://127.0.0.1:{silent.getsockname()[1]}/cam") as camera:
        wait_until(lambda: camera.status().code is StreamErrorCode.TIMEOUT, "timeout")


def test_somebody_answers_in_another_language() -> None:
    def answer(listening: socket.socket) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                connection.sendall(b"220 mail.example ESMTP ready\r\n" * 20)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=answer, args=(listening,), daemon=True).start()
        with running(f"rtsp://127.0.0.1:{listening.getsockname()[1]}/cam") as camera:
            wait_until(lambda: camera.status().code is not None, "a code")
            assert camera.status().code in (StreamErrorCode.CODEC, StreamErrorCode.NETWORK)
            assert camera.status().frames_decoded == 0
        listening.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("transport", ["tcp", "udp"])
def test_a_killed_camera_is_noticed_and_shows_soon_after_it_returns(server: RtspServer, transport: str) -> None:
    with running(server.url("cam"), transport=transport) as camera:
        fresh_frame(camera)
        server.kill()
        took_s = wait_until(lambda: camera.status().state is not CameraState.LIVE, "not live")
        assert took_s < NOTICED_S * slowness()
        wait_until(lambda: camera.status().code is StreamErrorCode.NETWORK, "the port is closed")
        server.start()
        returned_s = time.monotonic()
        assert fresh_frame(camera).captured_s - returned_s < BACK_S * slowness()
        wait_until(lambda: camera.status().state is CameraState.LIVE, "live")
        assert camera.status().code is None
        assert camera.status().reconnects == 1


@pytest.mark.parametrize("transport", ["tcp", "udp"])
def test_a_hung_camera_is_noticed_and_shows_soon_after_it_goes_on(server: RtspServer, transport: str) -> None:
    with running(server.url("cam"), transport=transport) as camera:
        fresh_frame(camera)
        server.hang("cam")
        took_s = wait_until(lambda: camera.status().state is CameraState.STALLED, "stalled")
        assert took_s < NOTICED_S * slowness()
        assert camera.status().code is StreamErrorCode.TIMEOUT
        assert camera.status().error
        wait_until(lambda: camera.status().state is not CameraState.STALLED, "given up")
        assert camera.status().state is CameraState.WAITING, "and not taken for alive because of a half-read packet"
        server.resume("cam")
        resumed_s = time.monotonic()
        assert fresh_frame(camera).captured_s - resumed_s < BACK_S * slowness()


def test_a_short_silence_is_no_reason_to_connect_anew(server: RtspServer) -> None:
    with running(server.url("cam")) as camera:
        fresh_frame(camera)
        server.hang("cam")
        wait_until(lambda: camera.status().state is CameraState.STALLED, "stalled")
        server.resume("cam")
        wait_until(lambda: camera.status().state is CameraState.LIVE, "live")
        assert camera.status().reconnects == 0


def test_a_new_size_in_the_middle_of_the_stream(server: RtspServer) -> None:
    with running(server.url("cam")) as camera:
        assert fresh_frame(camera).image.shape == (HEIGHT, WIDTH, 3)
        server.change("cam", 320, 200, large)
        wait_until(lambda: fresh_frame(camera).image.shape == (200, 320, 3), "the new size")
        shown_index(fresh_frame(camera).image)
        status = camera.status()
        assert (status.state, status.width_px, status.height_px, status.reconnects) == (CameraState.LIVE, 320, 200, 0)


def test_a_new_codec_in_the_middle_of_the_stream(server: RtspServer) -> None:
    with running(server.url("cam")) as camera:
        fresh_frame(camera)
        server.change("cam", 320, 200, large, codec="hevc")
        wait_until(lambda: camera.status().code in (StreamErrorCode.CODEC, StreamErrorCode.TIMEOUT), "a code for it")
        wait_until(lambda: frame_of(camera).image.shape == (200, 320, 3), "the new codec")
        shown_index(frame_of(camera).image)


class Damaged(FrameFeed):
    """A feed that damages its pictures while `damage` says so."""

    def __init__(self, damage: Callable[[int, AccessUnit], bytes]) -> None:
        super().__init__(Pictures(width_px=WIDTH, height_px=HEIGHT, frames=picture), fps=FPS, keyframe_s=0.5)
        self._damage = damage

    def run(self, stop: threading.Event, watched: Callable[[], bool], publish: Callable[[AccessUnit], None]) -> None:
        count = 0

        def damaged(unit: AccessUnit) -> None:
            nonlocal count
            count += 1
            publish(AccessUnit(data=self._damage(count, unit), keyframe=unit.keyframe, at_s=unit.at_s))

        super().run(stop, watched, damaged)


def noise_like(unit: AccessUnit, seed: int) -> bytes:
    """Start code and type of the unit's first picture, then rubbish."""
    rng = np.random.default_rng(seed)
    return b"\x00\x00\x00\x01" + (b"\x65" if unit.keyframe else b"\x41") + rng.integers(1, 255, 300, np.uint8).tobytes()


def test_damaged_and_truncated_pictures_cost_themselves_and_no_more(server: RtspServer) -> None:
    def damage(count: int, unit: AccessUnit) -> bytes:
        if count % 7 == 3:
            return noise_like(unit, count)
        return unit.data[: len(unit.data) // 2] if count % 7 == 5 else unit.data

    server.add_feed("bad", Damaged(damage))
    with running(server.url("bad")) as camera:
        frame = frame_of(camera)
        for _ in range(25):
            frame = frame_of(camera, frame.seq)
        assert camera.status().state is CameraState.LIVE


def test_rubbish_has_the_code_codec_and_ends_when_pictures_come(server: RtspServer) -> None:
    healthy = threading.Event()
    server.add_feed("bad", Damaged(lambda count, unit: unit.data if healthy.is_set() else noise_like(unit, count)))
    with running(server.url("bad")) as camera:

        def asked_in_vain() -> bool:
            camera.next_frame(after_seq=10**9, timeout_s=0.05)
            return camera.status().code is StreamErrorCode.CODEC

        wait_until(asked_in_vain, "codec")
        healthy.set()
        shown_index(fresh_frame(camera).image)


def test_a_feed_that_fails_harms_no_other_mount(server: RtspServer, caplog: pytest.LogCaptureFixture) -> None:
    def fails(index: int) -> np.ndarray:
        raise RuntimeError("the scene is broken")

    server.add_frames("broken", FPS, WIDTH, HEIGHT, fails)
    with running(server.url("broken")) as broken, running(server.url("cam")) as camera:
        wait_until(lambda: broken.status().code is StreamErrorCode.NETWORK, "an error")
        shown_index(fresh_frame(camera).image)
    assert "the scene is broken" in caplog.text


# --- files served as cameras, and the server as a process -------------------------------------------------------------


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    path = tmp_path / "clip.mp4"
    write_video(path, (picture(index) for index in range(20)), fps=FPS)
    return path


def test_a_file_is_served_in_a_loop(clip: Path) -> None:
    server = RtspServer()
    server.add_file("clip", clip)
    server.start()
    try:
        with running(server.url("clip")) as camera:
            frame = frame_of(camera)
            for _ in range(50):  # the clip has 20 pictures
                later = frame_of(camera, frame.seq)
                assert (shown_index(later.image) - shown_index(frame.image)) % 10 in (1, 2, 3, 4, 5)
                frame = later
    finally:
        server.stop()


def test_the_wanted_rate_is_kept_whatever_the_decoder_holds_back(tmp_path: Path) -> None:
    """Pictures coded out of order leave the decoder late, and the server sends the group in progress in a burst."""
    path = tmp_path / "b.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=int(FPS))
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        stream.options = {"preset": "fast", "x264-params": "bframes=3:b-adapt=0:keyint=40:scenecut=0"}
        for index in range(80):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture(index), format="rgb24")))
        container.mux(stream.encode(None))
    server = RtspServer()
    server.add_file("clip", path)
    server.start()
    try:
        with running(server.url("clip")) as camera:
            camera.want(fps=8)
            frames = [fresh_frame(camera)]
            while len(frames) < 20:
                frames.append(frame_of(camera, frames[-1].seq))
        gaps = np.diff([frame.captured_s for frame in frames])
        assert 1 / 8 - 0.04 < gaps.mean() < (1 / 8 + 0.04) * slowness()
    finally:
        server.stop()


def test_only_files_that_can_be_served_are_mounted(tmp_path: Path) -> None:
    other = tmp_path / "other.mp4"
    write_video(other, (picture(index) for index in range(5)), fps=FPS, codec="mpeg4")
    for path in (other, tmp_path / "missing.mp4"):
        with pytest.raises(StreamError):
            RtspServer().add_file("clip", path)


def test_the_server_as_a_process(clip: Path) -> None:
    process = RtspServerProcess([MountSpec(name="clip", file=str(clip))], user="joe", password="QZcanary")
    process.start()
    try:
        pid = process.pid
        assert b"QZcanary" not in Path(f"/proc/{pid}/cmdline").read_bytes()
        with running(process.url("clip", user="joe", password="QZcanary")) as camera:
            shown_index(fresh_frame(camera).image)
            process.kill()
            wait_until(lambda: camera.status().code is StreamErrorCode.NETWORK, "network")
            process.restart()
            shown_index(fresh_frame(camera).image)
            process.hang("clip")
            wait_until(lambda: camera.status().state is CameraState.STALLED, "stalled")
            process.resume("clip")
            shown_index(fresh_frame(camera).image)
    finally:
        process.stop()
    assert not Path(f"/proc/{pid}").exists()
