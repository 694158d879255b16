"""The golden model as a labeller: one frame per step, weak detections dropped, its cost measured.

Labels are what the golden model sees, not the truth (Ekya section 2.2); a threshold of 0.35-0.5 keeps its doubts out of
training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from models.detector import Detector, YieldPoint
from scheduler.types import Detections

SCORE_MIN = 0.4


@dataclass(frozen=True, kw_only=True, eq=False)
class GoldenLabel:
    """labels: detections of at least the labeller's threshold. cost_gpu_s: compute this frame took."""

    labels: Detections
    cost_gpu_s: float


class GoldenLabeller:
    """score_min: detections below are no labels. timer: compute seconds spent by this job; must not advance while it waits."""

    def __init__(self, detector: Detector, *, timer: Callable[[], float], score_min: float = SCORE_MIN) -> None:
        if not 0.0 < score_min < 1.0:
            raise ValueError(f"score_min must lie between 0 and 1, got {score_min}")
        self._detector, self._timer, self._score_min = detector, timer, score_min
        self._frames, self._spent_s = 0, 0.0

    def label(self, images: Iterable[np.ndarray], *, yield_point: YieldPoint | None = None) -> Iterator[GoldenLabel]:
        """Labels one image per `next`, in order; `images` may load lazily. yield_point: called between layers."""
        for image in images:
            started_s = self._timer()
            labels = self._detector.predict([image], score_min=self._score_min, yield_point=yield_point)[0]
            cost_s = self._timer() - started_s
            self._frames, self._spent_s = self._frames + 1, self._spent_s + cost_s
            yield GoldenLabel(labels=labels, cost_gpu_s=cost_s)

    @property
    def cost_gpu_s(self) -> float | None:
        """Mean compute per frame so far; None before the first."""
        return self._spent_s / self._frames if self._frames else None

    def affordable(self, budget_gpu_s: float) -> int | None:
        """Frames that fit into a budget at the measured cost, at least one; None when nothing is measured yet."""
        cost_s = self.cost_gpu_s
        return None if not cost_s else max(1, int(budget_gpu_s / cost_s))
