"""Cameras against an RTSP server that is not ours: GStreamer's, a system package."""

from __future__ import annotations

import os
import selectors
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from configs.errors import StreamError, StreamErrorCode
from configs.load import parse_config
from configs.schema import BoxConfig
from edge.profiler.command import ProfileOptions, footage_of, profile_command
from models.tasks.detection import DETECTION
from scheduler.ekya.usual_knobs import STRIDES
from streams.camera import PyavCamera, open_camera
from streams.source import CameraState
from tests.support.pace import slowness

pytestmark = pytest.mark.rtsp

SCRIPT = Path(__file__).parent.parent / "support" / "gst_rtsp_server.py"
HINT = "apt-get install gir1.2-gst-rtsp-server-1.0 gstreamer1.0-plugins-{base,good,ugly} python3-gi"
PATIENCE_S = 120.0


def lacking(reason: str) -> None:
    if os.environ.get("CI") == "true":
        pytest.fail(f"{reason}; {HINT}")
    pytest.skip(f"{reason}; {HINT}")


class Gst:
    """The server's process. open_port has no password, locked_port asks for joe:secret."""

    def __init__(self) -> None:
        python = shutil.which("python3", path="/usr/bin:/usr/local/bin") or lacking("no system python3")
        self.process = subprocess.Popen(
            [str(python), str(SCRIPT)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            line = self.process.stdout.readline() if selector.select(PATIENCE_S) else ""
        if not line:
            self.stop()
            lacking("GStreamer's RTSP server does not run")
        self.open_port, self.locked_port = map(int, line.split())

    def has(self, path: str) -> bool:
        camera = open_camera("probe", f"rtsp://127.0.0.1:{self.open_port}{path}")
        camera.start()
        try:
            until_s = time.monotonic() + PATIENCE_S
            while time.monotonic() < until_s and camera.status().code is None:
                if camera.next_frame(after_seq=-1, timeout_s=0.2) is not None:
                    return True
            return camera.status().code is not StreamErrorCode.NOT_FOUND
        finally:
            camera.stop()

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


@pytest.fixture(scope="module")
def gst() -> Iterator[Gst]:
    server = Gst()
    yield server
    server.stop()


def take(camera: PyavCamera, count: int) -> list[tuple[int, ...]]:
    """Starts the camera, takes frames, stops it; returns their shapes."""
    camera.start()
    try:
        shapes, seq = [], -1
        for _ in range(count):
            frame = camera.next_frame(after_seq=seq, timeout_s=PATIENCE_S)
            assert frame is not None, camera.status()
            assert frame.image.any(), "the test picture is not black"
            seq = frame.seq
            shapes.append(frame.image.shape)
        assert camera.status().state is CameraState.LIVE
        return shapes
    finally:
        camera.stop()


@pytest.mark.parametrize("transport", ["tcp", "udp"])
@pytest.mark.parametrize("path", ["/h264", "/bare", "/mjpeg", "/h265"])
def test_codecs_and_transports(gst: Gst, path: str, transport: str) -> None:
    if path == "/h265" and not gst.has(path):
        pytest.skip("this GStreamer has no H.265 encoder")
    camera = open_camera("gst", f"rtsp://127.0.0.1:{gst.open_port}{path}", transport=transport)
    assert set(take(camera, 15)) == {(240, 320, 3)}
    status = camera.status()
    assert (status.width_px, status.height_px) == (320, 240)


def test_the_right_password(gst: Gst) -> None:
    assert take(open_camera("gst", f"rtsp://joe:secret@127.0.0.1:{gst.locked_port}/h264"), 5)


@pytest.mark.parametrize(
    ("place", "code"),
    [("joe:wrong@127.0.0.1:{locked}/h264", StreamErrorCode.AUTH), ("127.0.0.1:{locked}/h264", StreamErrorCode.AUTH)]
    + [("127.0.0.1:{open}/nothing", StreamErrorCode.NOT_FOUND)],
)
def test_refusals_have_their_code(gst: Gst, place: str, code: StreamErrorCode) -> None:
    camera = open_camera("gst", "rtsp://" + place.format(open=gst.open_port, locked=gst.locked_port))
    camera.start()
    try:
        until_s = time.monotonic() + PATIENCE_S
        while camera.status().code is None and time.monotonic() < until_s:
            time.sleep(0.02)
        assert camera.status().code is code
        assert camera.status().state in (CameraState.WAITING, CameraState.CONNECTING)
    finally:
        camera.stop()


def test_a_killed_server_is_noticed() -> None:
    gst = Gst()
    camera = open_camera("gst", f"rtsp://127.0.0.1:{gst.open_port}/h264")
    try:
        camera.start()
        assert camera.next_frame(after_seq=-1, timeout_s=PATIENCE_S) is not None
        gst.stop()
        killed_s = time.monotonic()
        while camera.status().state is CameraState.LIVE and time.monotonic() < killed_s + PATIENCE_S:
            time.sleep(0.02)
        assert time.monotonic() - killed_s < 15.0 * slowness(), "soon, and not after some long patience"
    finally:
        camera.stop()
        gst.stop()


# --- profiles of what a camera sends now ------------------------------------------------------------------------------


def watching(folder: Path, url: str, more: str = "") -> BoxConfig:
    return parse_config(
        f"box: {{data_dir: {folder / 'data'}}}\nmodels: {{edge: tinydet-edge, golden: tinydet-golden}}\n"
        f"cameras:\n  - id: gate\n    url: {url}\n    fps: 5\n{more}"
    )


def test_a_live_camera_is_profiled_on_what_it_sends_now(gst: Gst, tmp_path: Path) -> None:
    """Frames a fifth of a second apart, of the camera's own picture, with its masks, and nothing of it on the disk."""
    left = "    masks: [[[0.0, 0.0], [0.5, 0.0], [0.5, 1.0], [0.0, 1.0]]]\n"
    config = watching(tmp_path, f"rtsp://127.0.0.1:{gst.open_port}/h264", left)
    footage = footage_of(config, config.cameras[0], ProfileOptions(live=True, clip_s=2.0), DETECTION)
    assert footage.rates
    assert footage.source.startswith("gate at ")
    assert (footage.fps, footage.size_px) == (5.0, (320, 240))
    assert 8 <= len(footage.clip.scenes) <= 11
    assert footage.clip.decode.cpu_s > 0
    pictures = [scene.image for scene in footage.clip.scenes]
    assert not any(image[:, :150].any() for image in pictures)
    assert any(image.any() for image in pictures)
    assert not (tmp_path / "data").exists()


def test_what_follows_objects_is_profiled_on_a_live_camera_without_a_recording(gst: Gst, tmp_path: Path) -> None:
    lines = "template: lines, lines: {door: [[0.5, 0.0], [0.5, 1.0]]}"
    query = f"    queries:\n      - {{name: passing, {lines}, knobs: {{decode.fps: [0, 2]}}}}\n"
    config = watching(tmp_path, f"rtsp://127.0.0.1:{gst.open_port}/h264", query)
    options = ProfileOptions(live=True, clip_s=2.0, query="passing", all_settings=True)
    found, version = profile_command(config, "gate", options, device="cpu", curve=STRIDES)
    assert version == 1
    assert found.assumed == ""
    assert {o.setting["decode.fps"] for o in found.options} == {0, 2}


def test_a_password_that_is_wrong_is_said_and_not_shown(gst: Gst, tmp_path: Path) -> None:
    config = watching(tmp_path, f"rtsp://joe:hush@127.0.0.1:{gst.locked_port}/h264")
    with pytest.raises(StreamError) as raised:
        footage_of(config, config.cameras[0], ProfileOptions(live=True, clip_s=2.0), DETECTION)
    assert raised.value.stream_code is StreamErrorCode.AUTH
    assert "hush" not in str(raised.value) + str(raised.value.remedy)
