"""Served forms that go wrong on purpose, from their so-many-th picture on, or once something has happened."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import safetensors.torch

from models.detector import Detector, DetectorSpec
from models.fake import FakeDetector
from scheduler.types import Detections


class Served(FakeDetector):
    """A served form that does `twist` to what the trained model says, from its `after`-th picture on, and not before `once` is set."""

    def __init__(
        self, trained: Detector, twist: Callable[[Detections], Detections], after: int, *, once: threading.Event | None = None
    ) -> None:
        super().__init__()
        self.load_state(trained.state())
        self._twist, self._after, self._asked, self._once = twist, after, 0, once
        self.closed = False

    def predict(self, images: Sequence[np.ndarray], **options: Any) -> list[Detections]:
        wrong = self._once is None or self._once.is_set()
        self._asked += len(images) if wrong else 0
        found = super().predict(images, **options)
        return [self._twist(f) for f in found] if wrong and self._asked > self._after else found

    def close(self) -> None:
        self.closed = True


def throws(found: Detections) -> Detections:
    raise RuntimeError("the engine was built for another card")


class SlowAsTrained(FakeDetector):
    """The trained model takes so many seconds of CPU for a picture, so that a form of it is quicker."""

    PICTURE_S = 0.02

    def predict(self, images: Sequence[np.ndarray], **options: Any) -> list[Detections]:
        until_s = time.thread_time() + self.PICTURE_S * len(images)
        while time.thread_time() < until_s:
            pass
        return super().predict(images, **options)


def build_slow(spec: DetectorSpec, data: bytes, device: str) -> SlowAsTrained:
    """For a child process (`edge.gpu.worker.ModelFile`)."""
    made = SlowAsTrained(arch=spec.arch)
    made.load_state(safetensors.torch.load(data))
    return made
