"""Served forms that go wrong on purpose, from their so-many-th picture on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from models.detector import Detector
from models.fake import FakeDetector
from scheduler.types import Detections


class Served(FakeDetector):
    """A served form that does `twist` to what the trained model says, from its `after`-th picture on."""

    def __init__(self, trained: Detector, twist: Callable[[Detections], Detections], after: int) -> None:
        super().__init__()
        self.load_state(trained.state())
        self._twist, self._after, self._asked = twist, after, 0
        self.closed = False

    def predict(self, images: Sequence[np.ndarray], **options: Any) -> list[Detections]:
        self._asked += len(images)
        found = super().predict(images, **options)
        return [self._twist(f) for f in found] if self._asked > self._after else found

    def close(self) -> None:
        self.closed = True


def throws(found: Detections) -> Detections:
    raise RuntimeError("the engine was built for another card")
