"""Coloured squares that move over a grey wall, and models that know them: classification of what moves without real networks.

The colour of a square is its class; a pattern of stripes is no object at all (a branch in the wind). The golden detector finds squares
by their colour; the classifier tells a crop's class with the probability of its skill, which training raises (`models.fake`).
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest

from configs.units import NOTHING
from models import zoo
from models.detector import Detector, DetectorSpec, YieldPoint
from models.fake import FakeDetector
from models.zoo import EDGE, ZOO, ZooEntry
from scheduler.types import Detections, Frame
from streams.motion import Motion
from tests.support.fakes import TickingCamera

#: Class -> colour (RGB). 0 person, 2 car, 4 bus.
COLOURS: dict[int, tuple[int, int, int]] = {0: (230, 40, 40), 2: (40, 200, 60), 4: (60, 80, 235)}
HEIGHT, WIDTH, SIDE = 160, 320, 20


def moving_image(index: int, *, seed: int = 0, still: bool = False) -> np.ndarray:
    """Frame `index`, uint8 (160, 320, 3): three squares and a striped patch, each on a track of its own."""
    image = np.full((HEIGHT, WIDTH, 3), 120, np.uint8)
    if still:
        return image
    for number, (class_id, colour) in enumerate(COLOURS.items()):
        left = (7 * index + 40 * number + 13 * seed + class_id) % (WIDTH - SIDE)
        image[8 + 38 * number : 8 + 38 * number + SIDE, left : left + SIDE] = colour
    left = (5 * index + 90) % (WIDTH - SIDE)
    image[122 : 122 + SIDE, left : left + SIDE] = np.where(np.arange(SIDE) // 4 % 2, 30, 225)[None, :, None]
    return image


def write_moving_video(path: Path, *, frames: int, seed: int = 0, still: bool = False) -> Path:
    """The squares at 10 frames/s, H.264 nearly without loss."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=10, options={"qp": "4", "preset": "ultrafast"})
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for index in range(frames):
            picture = av.VideoFrame.from_ndarray(moving_image(index, seed=seed, still=still), format="rgb24")
            for packet in stream.encode(picture):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    return path


class MovingCamera(TickingCamera):
    """The squares live, `fps` new frames a second, with what moves in them when that is wanted."""

    def __init__(self, id: str, *, fps: float = 20.0) -> None:
        super().__init__(id, fps=fps)
        self._motion, self._lock = Motion(), threading.Lock()
        self._seen: Frame | None = None

    def next_frame(self, *, after_seq: int, timeout_s: float) -> Frame | None:
        ticked = super().next_frame(after_seq=after_seq, timeout_s=timeout_s)
        return None if ticked is None else self._moving(ticked)

    def _moving(self, ticked: Frame) -> Frame:
        """The same frame for all who ask at the same tick; movement is looked for once, in order of time."""
        with self._lock:
            if self._seen is None or ticked.seq > self._seen.seq:
                image = moving_image(ticked.seq % 100_000)
                regions = self._motion.find(image, at_s=ticked.captured_s / self.slower) if self.regions_wanted else None
                self._seen = replace(ticked, image=image, regions=regions)
            return self._seen


def put_classifier_in_the_zoo(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets configurations and the shelf of models name the scripted classifier (call it after `put_fakes_in_the_zoo`)."""

    def build(spec: DetectorSpec, state: dict | None, device: str, seed: int) -> Detector:
        classifier = ColourClassifier()
        if state is not None:
            classifier.load_state(state)
        return classifier

    arch = "colour-classifier"
    entry = ZooEntry(arch=arch, role=EDGE, input_px=64, build=build, task="classification", bundled=True)
    monkeypatch.setitem(ZOO, arch, entry)
    known = zoo._bundled_state
    monkeypatch.setattr("models.zoo._bundled_state", lambda name: ColourClassifier().state() if name == arch else known(name))


def share_of(image: np.ndarray, class_id: int) -> np.ndarray:
    """bool (H, W): the pixels of that class's colour, as an encoder leaves them."""
    return np.abs(image.astype(int) - COLOURS[class_id]).max(axis=2) < 60


class ColourGolden(FakeDetector):
    """Finds every square. calls: frames it was shown."""

    def __init__(self) -> None:
        super().__init__(skill=1.0, arch="colour-golden")
        self.spec = DetectorSpec(arch="colour-golden", input_px=640)
        self.calls = 0

    def predict(
        self, images: Sequence[np.ndarray], *, score_min: float = 0.25, yield_point: YieldPoint | None = None
    ) -> list[Detections]:
        return [self._found(image) for image in images]

    def _found(self, image: np.ndarray) -> Detections:
        self.calls += 1
        boxes, classes = [], []
        for class_id in COLOURS:
            rows, columns = np.nonzero(share_of(image, class_id))
            if len(rows) >= 100:
                boxes.append((columns.min(), rows.min(), columns.max() + 1, rows.max() + 1))
                classes.append(class_id)
        return Detections(
            xyxy=np.array(boxes, np.float32).reshape(-1, 4), score=np.full(len(boxes), 0.9, np.float32),
            class_id=np.array(classes, np.int64),
        )  # fmt: skip

    def clone(self) -> Detector:
        return self


class ColourClassifier(FakeDetector):
    """Tells a crop's class with the probability of its skill; which crops it gets wrong depends on their pixels alone.
    crops: how many it was shown to predict."""

    def __init__(self, *, skill: float = 0.4) -> None:
        super().__init__(skill=skill, arch="colour-classifier")
        self.spec = DetectorSpec(arch="colour-classifier", input_px=64)
        self.crops = 0

    def predict(
        self, images: Sequence[np.ndarray], *, score_min: float = 0.25, yield_point: YieldPoint | None = None
    ) -> list[Detections]:
        self.crops += len(images)
        return [self._told(image) for image in images]

    def _told(self, image: np.ndarray) -> Detections:
        shares = {class_id: float(share_of(image, class_id).mean()) for class_id in COLOURS}
        best = max(shares, key=lambda class_id: shares[class_id])
        right = best if shares[best] > 0.25 else NOTHING
        luck = np.random.default_rng(int.from_bytes(hashlib.sha256(image.tobytes()).digest()[:8], "big")).random()
        wrong = 0 if right != 0 else 2
        height, width = image.shape[:2]
        return Detections(
            xyxy=np.array([[0, 0, width, height]], np.float32), score=np.array([0.9], np.float32),
            class_id=np.array([right if luck < self.skill else wrong], np.int64),
        )  # fmt: skip

    def clone(self) -> Detector:
        twin = ColourClassifier()
        twin.load_state(self.state())
        return twin
