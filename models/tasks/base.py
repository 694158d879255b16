"""The seam to tasks: what a camera's model is asked, how its golden labels are made, how it is judged.

A task says four things - predict, loss, metric, labels - and everything else of the box (sampling, micro-profiling, retraining, gate,
plan, reuse) is the same for all. Two are built in: `detection` (`models.tasks.detection`) and `classification` of the things that move
(`models.tasks.classification`). A third party adds one by an entry point of the group `driftbox.tasks` (`models.tasks.registry`).

One type speaks for all: `Detections`. A classification camera's labels are the regions that moved, each with its class, or
`configs.units.NOTHING` for a region that holds no object; so samples, labels, review and events are one format.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from models.evaluate import MatchCounts
from scheduler.types import Detections

if TYPE_CHECKING:
    import torch

    from models.detector import Detector, YieldPoint


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """golden_score_min: labels under it are dropped; score_min, iou_min: how quality is counted (Ekya: F1 at IoU 0.3)."""

    golden_score_min: float = 0.4
    score_min: float = 0.25
    iou_min: float = 0.3


@dataclass(frozen=True, kw_only=True, eq=False)
class Picture:
    """image: uint8 (H, W, 3) RGB. regions: float32 (N, 4) xyxy px of what moved in it, None where nobody looked for movement."""

    image: np.ndarray
    regions: np.ndarray | None = None

    @property
    def size_px(self) -> tuple[int, int]:
        """(width, height)."""
        return self.image.shape[1], self.image.shape[0]


class Task(Protocol):
    """name: as written in the configuration. wants_regions: its pictures must carry regions. quality_name: what `counts` add up to,
    for people ('F1', 'accuracy')."""

    name: str
    wants_regions: bool
    quality_name: str

    def load(self, name: str, *, device: str = "cpu") -> Detector:
        """An edge model by name or weights path. Raises UsageError or WeightsError."""

    def load_golden(self, name: str, *, device: str = "cpu") -> Detector:
        """The large model that labels. Raises UsageError or WeightsError."""

    def predict(
        self, model: Detector, pictures: Sequence[Picture], *, score_min: float = 0.25, yield_point: YieldPoint | None = None
    ) -> list[Detections]:
        """What the edge model says of each picture, as `counts` wants it."""

    def loss(self, model: Detector, images: Sequence[np.ndarray], targets: Sequence[Detections]) -> torch.Tensor:
        """Scalar training loss with gradients, mean per picture, for one micro-batch."""

    def distill_loss(
        self, model: Detector, images: Sequence[np.ndarray], targets: Sequence[Detections], teacher: Detector
    ) -> torch.Tensor:
        """How far the model's answers about these pictures are from the teacher's, mean per picture (`Detector.distill_loss` on
        whatever the task shows to its model); 0 where the two agree."""

    def labels(
        self, golden: Detector, pictures: Sequence[Picture], *, score_min: float, yield_point: YieldPoint | None = None
    ) -> list[Detections]:
        """Golden labels of each picture."""

    def counts(self, predicted: Detections, labels: Detections, scoring: Scoring) -> MatchCounts:
        """One picture's right and wrong answers, so that `MatchCounts.f1` of their sum is the task's quality (0-1)."""

    def shown(self, predicted: Detections) -> Detections:
        """What people and telemetry see of a prediction: objects only."""
