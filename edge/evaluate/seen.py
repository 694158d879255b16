"""What people see of a model's answers, judged: those of an older frame on the present one; and answers that are only remembered.

A frame that the knobs skip is shown with the answers of the last analysed one. For detection these are judged as they are: boxes
against boxes. Where answers are about regions of movement, what moves has moved on: each present region gets the answer of the old
box that lies over it, or none, and an old box that lies over nothing is wrong. On the frame's own answers both are `Task.counts`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from configs.units import NOTHING
from models.detector import Detector, YieldPoint
from models.evaluate import MatchCounts, match
from models.tasks.base import Picture, Scoring, Task
from scheduler.types import Detections


def seen_counts(task: Task, old: Detections, labels: Detections, scoring: Scoring) -> MatchCounts:
    """Right and wrong when the answers of an older frame are shown on the frame that has these labels."""
    if not task.wants_regions:
        return task.counts(old, labels, scoring)
    carried, over = carried_over(task.shown(old), labels, scoring.iou_min)
    return task.counts(carried, labels, scoring) + MatchCounts(fp=over)


def carried_over(shown: Detections, labels: Detections, iou_min: float) -> tuple[Detections, int]:
    """(an answer for each labelled region: the class of the shown box that overlaps it most, else NOTHING; how many boxes lie over
    none). A box answers for one region, the surest box first."""
    taken = match(_of_one_class(shown), _of_one_class(labels), iou_min=iou_min)
    score, class_id = np.ones(len(labels), np.float32), np.full(len(labels), NOTHING, np.int64)
    hit = taken >= 0
    score[taken[hit]], class_id[taken[hit]] = shown.score[hit], shown.class_id[hit]
    return Detections(xyxy=labels.xyxy, score=score, class_id=class_id), int((~hit).sum())


def _of_one_class(found: Detections) -> Detections:
    return Detections(xyxy=found.xyxy, score=found.score, class_id=np.zeros(len(found), np.int64))


class RememberedTask:
    """A task whose predictions are asked of `recall` first: (model, picture, score_min) -> what is remembered, None: ask the model.
    Everything else is the task's own."""

    def __init__(self, task: Task, recall: Callable[[Detector, Picture, float], Detections | None]) -> None:
        self.name, self.wants_regions, self.quality_name = task.name, task.wants_regions, task.quality_name
        self._task, self._recall = task, recall

    def predict(
        self, model: Detector, pictures: Sequence[Picture], *, score_min: float = 0.25, yield_point: YieldPoint | None = None
    ) -> list[Detections]:
        return [self._predicted(model, picture, score_min, yield_point) for picture in pictures]

    def _predicted(self, model: Detector, picture: Picture, score_min: float, yield_point: YieldPoint | None) -> Detections:
        known = self._recall(model, picture, score_min)
        if known is not None:
            return known
        return self._task.predict(model, [picture], score_min=score_min, yield_point=yield_point)[0]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._task, name)
