"""Detection: find the objects in a frame. Quality is F1 at IoU 0.3 (Ekya section 6.1); labels are the golden detector's boxes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from models import zoo
from models.detector import Detector, YieldPoint
from models.evaluate import MatchCounts, match_counts
from models.tasks.base import Picture, Scoring
from scheduler.types import Detections


class DetectionTask:
    """See `models.tasks.base.Task`."""

    name = "detection"
    wants_regions = False
    quality_name = "F1"

    def load(self, name: str, *, device: str = "cpu") -> Detector:
        return zoo.load_detector(name, device=device, task=zoo.DETECTION)

    def load_golden(self, name: str, *, device: str = "cpu") -> Detector:
        return zoo.load_detector(name, device=device, task=zoo.DETECTION)

    def predict(
        self, model: Detector, pictures: Sequence[Picture], *, score_min: float = 0.25, yield_point: YieldPoint | None = None
    ) -> list[Detections]:
        return model.predict([p.image for p in pictures], score_min=score_min, yield_point=yield_point)

    def loss(self, model: Detector, images: Sequence[np.ndarray], targets: Sequence[Detections]) -> torch.Tensor:
        return model.loss(images, targets)

    def distill_loss(
        self, model: Detector, images: Sequence[np.ndarray], targets: Sequence[Detections], teacher: Detector
    ) -> torch.Tensor:
        return model.distill_loss(images, teacher)

    def labels(
        self, golden: Detector, pictures: Sequence[Picture], *, score_min: float, yield_point: YieldPoint | None = None
    ) -> list[Detections]:
        return golden.predict([p.image for p in pictures], score_min=score_min, yield_point=yield_point)

    def counts(self, predicted: Detections, labels: Detections, scoring: Scoring) -> MatchCounts:
        return match_counts(predicted, labels, iou_min=scoring.iou_min, score_min=scoring.score_min)

    def shown(self, predicted: Detections) -> Detections:
        return predicted


DETECTION = DetectionTask()
