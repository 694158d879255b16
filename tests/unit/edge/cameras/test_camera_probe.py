"""Looking at an address before it becomes a camera: bounded, twice at a time, nothing told that is nobody's business."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from configs.errors import ConfigError, JobError, StreamErrorCode
from edge.cameras.probe import KEPT, KEPT_S, PICTURE_S, Prober, checked_address
from streams.rendered.address import script_of
from streams.source import CameraState, CameraStatus
from tests.support.fakes import StillCamera


class Seen(StillCamera):
    """A camera that shows nothing, or one picture, and whatever status it is told to have."""

    def __init__(self, status: CameraStatus, *, picture: bool) -> None:
        super().__init__("probe")
        self._status, self.stopped = status, 0
        if picture:
            self.show(1)

    def status(self) -> CameraStatus:
        return self._status

    def stop(self) -> None:
        self.stopped += 1


class Time:
    def __init__(self) -> None:
        self.now_s = 0.0

    def sleep(self, seconds: float) -> None:
        self.now_s += max(seconds, 0.05)


LIVE = CameraStatus(state=CameraState.LIVE, since_s=0, width_px=640, height_px=360, fps=12.5)
WAITS = CameraStatus(
    state=CameraState.WAITING, since_s=0, code=StreamErrorCode.AUTH, error="rtsp://u:sesame9@192.0.2.1 said 401"
)
SILENT = CameraStatus(state=CameraState.CONNECTING, since_s=0)


def prober(camera: Seen) -> tuple[Prober, Time]:
    time = Time()
    return Prober(open=lambda text, transport: camera, now_s=lambda: time.now_s, sleep=time.sleep), time


def test_a_camera_that_answers_is_told_with_its_picture() -> None:
    camera = Seen(LIVE, picture=True)
    found, _ = prober(camera)
    told = found.probe("rtsp://u:sesame9@192.0.2.1/s")
    assert (told.ok, told.state, told.width_px, told.height_px, told.fps) == (True, "live", 640, 360, 12.5)
    token = told.picture_url.split("/")[-2]
    jpeg = found.picture(token)
    assert jpeg is not None
    assert jpeg.startswith(b"\xff\xd8")
    assert camera.stopped == 1
    assert "sesame9" not in repr(told)


def test_a_camera_that_refuses_says_why_without_its_password_and_at_once() -> None:
    camera = Seen(WAITS, picture=False)
    found, time = prober(camera)
    told = found.probe("rtsp://u:sesame9@192.0.2.1/s")
    assert (told.ok, told.code, told.state) == (False, "auth", "waiting")
    assert "sesame9" not in told.error
    assert time.now_s < 1
    assert camera.stopped == 1


def test_one_that_stays_silent_is_given_up_in_time() -> None:
    camera = Seen(SILENT, picture=False)
    found, time = prober(camera)
    assert found.probe("rtsp://192.0.2.1/s").code == "timeout"
    assert PICTURE_S <= time.now_s < PICTURE_S + 1
    assert camera.stopped == 1


def test_pictures_are_few_and_forgotten() -> None:
    found, time = prober(Seen(LIVE, picture=True))
    tokens = [found.probe("rtsp://192.0.2.1/s").picture_url.split("/")[-2] for _ in range(KEPT + 2)]
    assert sum(found.picture(token) is not None for token in tokens) == KEPT
    time.now_s += KEPT_S
    assert not any(found.picture(token) for token in tokens)
    assert found.picture("../../etc") is None


def test_more_than_two_at_a_time_are_sent_away() -> None:
    refused: list[JobError] = []
    depth = 0

    def opened(text: str, transport: str) -> Seen:
        nonlocal depth
        depth += 1
        if depth < 4:
            try:
                found.probe(text)
            except JobError as error:
                refused.append(error)
        return Seen(LIVE, picture=True)

    time = Time()
    found = Prober(open=opened, now_s=lambda: time.now_s, sleep=time.sleep)
    assert found.probe("rtsp://192.0.2.1/s").ok
    assert [error.code for error in refused] == ["busy"]


@pytest.mark.parametrize(
    "url",
    [
        "/etc/passwd", "file:///etc/passwd", "/dev/video0", "v4l2:///dev/video0", "gopher://x/y", "", "rtsp://",
        "rtsp://h/${file:/etc/passwd}", "http://h:99999/x", "concat:/etc/passwd", "subfile,,start,0,end,9,,:/etc/passwd",
    ],
)  # fmt: skip
def test_what_is_no_camera_of_the_network_is_not_opened(url: str) -> None:
    found, _ = prober(Seen(LIVE, picture=True))
    with pytest.raises(ConfigError) as refused:
        found.probe(url)
    assert "passwd" not in str(refused.value)


def test_an_administrator_may_look_at_files_and_devices() -> None:
    assert checked_address("/videos/yard.mp4", local=True) == "/videos/yard.mp4"
    assert checked_address("/dev/video0", local=True) == "/dev/video0"


def apart(one: np.ndarray, other: np.ndarray) -> float:
    """Mean difference of two pictures, without the grain that a JPEG does not keep."""
    return float(np.abs(cv2.blur(one, (9, 9)).astype(int) - cv2.blur(other, (9, 9)).astype(int)).mean())


def test_of_a_drawn_scene_the_first_picture_is_drawn_and_nothing_is_opened() -> None:
    def never(text: str, transport: str) -> StillCamera:
        raise AssertionError(f"{text} was opened")

    found = Prober(open=never)
    told = found.probe("rendered:yard?seed=8&fps=3&at=0:night")
    assert (told.ok, told.state, told.width_px, told.height_px, told.fps) == (True, "live", 320, 180, 3.0)
    jpeg = found.picture(told.picture_url.split("/")[-2])
    assert jpeg is not None
    shown = cv2.cvtColor(cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)
    meant, _ = script_of("gate", "rendered:yard?seed=8&fps=3&at=0:night").scene().render(0.0)
    by_day, _ = script_of("gate", "rendered:yard?seed=8").scene().render(0.0)
    assert shown.shape == meant.shape
    assert 3 * apart(shown, meant) < apart(shown, by_day), "what the camera will begin with, but for the JPEG"


@pytest.mark.parametrize(
    "url", ["rendered:moon", "rendered:street?seed=x", "rendered:street?fps=nan", "rendered:street?at=0:soup", "rendered:"]
)
def test_a_scene_that_cannot_be_drawn_is_a_wrong_address(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Prober().probe(url)
    assert [field for field, _ in refused.value.problems] == ["url"]
