"""A camera and detectors that a test scripts, where the box expects real ones."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from configs.errors import JobCancelled, StreamErrorCode
from models import zoo
from models.detector import Detector, DetectorSpec
from models.fake import FakeDetector, scripted_image
from models.zoo import EDGE, ZOO, ZooEntry
from scheduler.types import Frame
from streams.masks import Mask
from streams.source import CameraState, CameraStatus


def scripted_frame(stream: str, seq: int, *, at_s: float = 0.0) -> Frame:
    return Frame(stream=stream, seq=seq, captured_s=at_s, captured_utc=1.7e9 + at_s, image=scripted_image(seq % 500)[0])


class StillCamera:
    """Gives the frames that `show` puts there, without a thread and without waiting."""

    may_lag = False
    lag_s = 0.0

    def __init__(self, id: str) -> None:
        self.id = id
        self.newest: Frame | None = None
        self.state = CameraState.LIVE
        self.wanted: list[tuple[float, int]] = []
        self.regions_wanted = False
        self.masks: tuple[Mask, ...] = ()

    def show(self, seq: int, *, at_s: float = 0.0) -> None:
        self.newest = scripted_frame(self.id, seq, at_s=at_s)

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def want(self, *, fps: float, height_px: int = 0, regions: bool = False) -> None:
        self.wanted.append((fps, height_px))
        self.regions_wanted = regions

    def mask(self, masks: Sequence[Mask]) -> None:
        self.masks = tuple(masks)

    def next_frame(self, *, after_seq: int, timeout_s: float) -> Frame | None:
        return self.newest if self.newest is not None and self.newest.seq > after_seq else None

    def status(self) -> CameraStatus:
        return CameraStatus(state=self.state, since_s=0.0, code=StreamErrorCode.TIMEOUT if self.stalled else None)

    @property
    def stalled(self) -> bool:
        return self.state is CameraState.STALLED


class TickingCamera(StillCamera):
    """A new scripted frame `fps` times a second, for a box that runs; none while it is stalled.
    slower: how many times slower everything happens before it (`tests.support.pace`)."""

    slower = 1.0

    def __init__(self, id: str, *, fps: float = 20.0) -> None:
        super().__init__(id)
        self._fps, self._from_s, self._from_seq = fps, 0.0, 0
        self.rows = 96  # of a picture; a test may set it to change the resolution in the middle of the stream
        self._stopping = threading.Event()

    def start(self) -> None:
        self._stopping.clear()

    def stop(self) -> None:
        self._stopping.set()

    def go_on_at(self, fps: float) -> None:
        """Another rate from now on; numbers go on where they are."""
        now_s = time.monotonic()
        self._from_seq, self._from_s, self._fps = self._seq(now_s), now_s, fps

    def _seq(self, now_s: float) -> int:
        return self._from_seq + int((now_s - self._from_s) * self._fps / self.slower)

    def next_frame(self, *, after_seq: int, timeout_s: float) -> Frame | None:
        until_s = time.monotonic() + timeout_s
        while True:
            now_s = time.monotonic()
            seq = self._seq(now_s)
            if seq > after_seq and not self.stalled and not self._stopping.is_set():
                whole = scripted_frame(self.id, seq, at_s=now_s)
                return replace(whole, image=np.ascontiguousarray(whole.image[: self.rows]))
            if now_s >= until_s or self._stopping.wait(min(self.slower / self._fps, max(0.0, until_s - now_s))):
                return None


#: arch -> a scripted detector: `fake` learns, the others rehearse what can go wrong in a training.
FAKE_ARCHS: dict[str, Callable[[], FakeDetector]] = {
    "fake": lambda: FakeDetector(skill=0.4, arch="fake"),
    "fake-other": lambda: FakeDetector(skill=0.4, arch="fake-other"),
    "fake-nan": lambda: FakeDetector(skill=0.4, arch="fake-nan", nan_loss=True),
    "fake-throws": lambda: FakeDetector(skill=0.4, arch="fake-throws", fails_with=RuntimeError("a made-up fault")),
    "fake-memory": lambda: FakeDetector(skill=0.4, arch="fake-memory", fails_with=MemoryError()),
}


def build_fake(spec: DetectorSpec, state: dict | None, device: str, seed: int) -> Detector:
    detector = FAKE_ARCHS[spec.arch]()
    if state is not None:
        detector.load_state(state)
    return detector


def put_fakes_in_the_zoo(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets configurations and the shelf of models name the scripted detectors."""
    for arch in FAKE_ARCHS:
        monkeypatch.setitem(ZOO, arch, ZooEntry(arch=arch, role=EDGE, input_px=128, build=build_fake, bundled=True))
    real = zoo._bundled_state
    monkeypatch.setattr(
        "models.zoo._bundled_state", lambda arch: FAKE_ARCHS[arch]().state() if arch in FAKE_ARCHS else real(arch)
    )


class FreeLane:
    """A lane without limits: `cancelled` makes the next iteration raise, as a real one does."""

    def __init__(self, job: str = "a/infer") -> None:
        self.job = job
        self.cancelled = False
        self.entered = 0
        self.on_enter: Callable[[], None] = lambda: None
        self._error = JobCancelled(f"job {job} was cancelled")

    def iteration(self) -> FreeLane:
        return self

    def __enter__(self) -> None:
        if self.cancelled:
            raise self._error
        self.entered += 1
        self.on_enter()

    def __exit__(self, *_: object) -> None: ...

    def checkpoint(self) -> None:
        if self.cancelled:
            raise self._error
