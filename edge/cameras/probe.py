"""Looks at an address before it becomes a camera: opened by the camera code of the box, in bounded time, one picture taken, and closed.

At most `AT_ONCE` at a time. Only what cameras are reached by is opened; files and devices of this machine only for whoever may say so.
What is told never has a credential in it, and nothing of what answers but a state, a size, a rate and a picture: an address inside the
network that is no camera tells no more than that. Of a drawn scene (`rendered:`) the first picture is drawn; nothing is opened.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable

import cv2
import numpy as np
from pydantic import Field

from configs.errors import ConfigError, JobError, redact
from configs.schema.secret import CameraUrl
from edge.cameras.secrets import refuse_references
from edge.status import View
from scheduler.types import Frame
from streams.camera import open_camera
from streams.rendered.address import script_of
from streams.source import Camera, CameraState, CameraStatus
from streams.url import SourceUrl

AT_ONCE = 2
#: Longest that a camera may take to its first picture, and how long it is then watched for its rate.
PICTURE_S, RATE_S = 8.0, 1.0
LOOK_S = 0.05
#: Sides and quality of the picture that is sent.
PICTURE_PX, JPEG_QUALITY = 640, 75
#: For how long pictures are kept for who asked, and how many.
KEPT_S, KEPT = 120.0, 8
#: What may be opened from the network.
SCHEMES = ("rtsp", "rtsps", "http", "https")
LOCAL_SCHEMES = ("file", "v4l2")
#: What the box draws itself, and how such a camera is called as long as it is none.
DRAWN, PREVIEW = "rendered", "preview"

Open = Callable[[str, str], Camera]


class ProbeResult(View):
    """What an address gave."""

    ok: bool = Field(description="A picture came.")
    state: str = Field(description="As in docs/cameras.md.")
    code: str = Field(
        default="", description="Why there is none, a stable name: auth, not_found, timeout, codec, network, ended."
    )
    error: str = Field(default="", description="The same for people.")
    width_px: int = 0
    height_px: int = 0
    fps: float = Field(default=0.0, description="Frames per second as announced or measured, 0: unknown.")
    took_s: float = Field(default=0.0, description="Seconds to the first picture.")
    picture_url: str = Field(
        default="", description="Where its picture lies for two minutes, a JPEG at most 640 px wide; empty: none."
    )


class Prober:
    """Thread-safe. open: (address, transport) -> a camera, not started; now_s, sleep: time."""

    def __init__(
        self,
        *,
        open: Open | None = None,
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._open, self._now_s, self._sleep = open or _open, now_s, sleep
        self._places = threading.BoundedSemaphore(AT_ONCE)
        self._lock = threading.Lock()
        self._pictures: dict[str, tuple[float, bytes]] = {}

    def picture(self, token: str) -> bytes | None:
        """The JPEG of a probe, by the last part but one of its `picture_url`; None: it is not kept any more."""
        now_s = self._now_s()
        with self._lock:
            self._pictures = {t: p for t, p in self._pictures.items() if now_s - p[0] < KEPT_S}
            found = self._pictures.get(token)
        return found[1] if found else None

    def _keep(self, jpeg: bytes) -> str:
        token = secrets.token_urlsafe(12)
        with self._lock:
            newest = sorted(self._pictures.items(), key=lambda item: item[1][0])[-(KEPT - 1) :]
            self._pictures = dict(newest) | {token: (self._now_s(), jpeg)}
        return token

    def probe(self, url: str, *, transport: str = "tcp", local: bool = False) -> ProbeResult:
        """Raises ConfigError for what may not be opened, JobError (code 'busy') when too many look already."""
        text = checked_address(url, local=local)
        if not self._places.acquire(blocking=False):
            raise JobError(f"{AT_ONCE} addresses are being looked at already", remedy="try again in some seconds", code="busy")
        try:
            return self._drawn(text) if is_drawn(text) else self._look(text, transport)
        finally:
            self._places.release()

    def _drawn(self, text: str) -> ProbeResult:
        """A scene as it is when its camera begins."""
        started_s, script = self._now_s(), script_of(PREVIEW, text)
        image, _ = script.scene().render(script.from_s)
        return ProbeResult(
            ok=True, state=CameraState.LIVE.value, width_px=script.width_px, height_px=script.height_px, fps=round(script.fps, 2),
            took_s=round(self._now_s() - started_s, 3), picture_url=self._picture_url(image),
        )  # fmt: skip

    def _picture_url(self, image: np.ndarray) -> str:
        return f"/api/v1/cameras/probe/{self._keep(_jpeg(image))}/picture.jpg"

    def _look(self, text: str, transport: str) -> ProbeResult:
        camera = self._open(text, transport)
        started_s = self._now_s()
        camera.want(fps=2.0)
        camera.start()
        try:
            frame = self._first(camera, started_s)
            if frame is None:
                return _failed(camera.status())
            took_s = self._now_s() - started_s
            while self._now_s() - started_s < took_s + RATE_S and camera.status().fps <= 0:
                self._sleep(LOOK_S)
            return _seen(camera.status(), took_s, self._picture_url(frame.image))
        finally:
            camera.stop()

    def _first(self, camera: Camera, started_s: float) -> Frame | None:
        """The first picture; None: it will not come, or not in time."""
        while self._now_s() - started_s < PICTURE_S:
            frame = camera.next_frame(after_seq=-1, timeout_s=LOOK_S)
            if frame is not None:
                return frame
            if camera.status().state in (CameraState.WAITING, CameraState.ENDED, CameraState.STOPPED):
                return None  # it says itself that it failed; nobody waits for the next try
            self._sleep(0.0)
        return None


def checked_address(url: str, *, local: bool) -> str:
    """An address that may be opened. Raises ConfigError without repeating it."""
    refuse_references(url)
    try:
        scheme = CameraUrl._validated(url).scheme  # type: ignore[attr-defined]
    except ValueError as error:
        raise ConfigError(
            f"the address cannot be used: {redact(str(error))}", problems=(("url", redact(str(error))),)
        ) from None
    if scheme == DRAWN:
        _check_drawn(url)
        return url
    if scheme in SCHEMES or (local and scheme in LOCAL_SCHEMES):
        SourceUrl(url)
        return url
    if scheme in LOCAL_SCHEMES:
        why = "files and devices of the box's machine may only be named by an administrator"
    else:
        why = f"{scheme} addresses cannot be looked at beforehand"
    raise ConfigError(why, problems=(("url", why),), remedy="use rtsp://, rtsps://, http:// or https://")


def is_drawn(address: str) -> bool:
    """Whether the box draws the pictures of an address itself."""
    return address.lower().startswith(f"{DRAWN}:")


def _check_drawn(address: str) -> None:
    try:
        script_of(PREVIEW, address)
    except ConfigError as error:
        raise ConfigError(error.message, problems=(("url", error.message),), subject="url", remedy=error.remedy) from None


def _open(text: str, transport: str) -> Camera:
    return open_camera("probe", text, transport=transport)


def _failed(status: CameraStatus) -> ProbeResult:
    error = status.error or f"no picture came within {PICTURE_S:g} s"
    code = status.code.value if status.code is not None else "timeout"
    return ProbeResult(ok=False, state=status.state.value, code=code, error=redact(error))


def _seen(status: CameraStatus, took_s: float, picture_url: str) -> ProbeResult:
    return ProbeResult(
        ok=True, state=CameraState.LIVE.value, width_px=status.width_px, height_px=status.height_px, fps=round(status.fps, 2),
        took_s=round(took_s, 3), picture_url=picture_url,
    )  # fmt: skip


def _jpeg(image: np.ndarray) -> bytes:
    """image: uint8 (H, W, 3) RGB."""
    height, width = image.shape[:2]
    if width > PICTURE_PX:
        image = cv2.resize(image, (PICTURE_PX, max(1, round(height * PICTURE_PX / width))), interpolation=cv2.INTER_AREA)
    _, data = cv2.imencode(".jpg", cv2.cvtColor(image, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY])
    return data.tobytes()
