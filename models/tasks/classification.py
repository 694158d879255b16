"""Classification: what is each thing that moves? Quality is accuracy over the regions (Ekya section 6.1, classification on crops).

A frame's regions of movement (`streams.motion`) are cut out and shown to a small classifier, so that compute per frame follows what
happens in it: nothing moves, nothing is computed. Golden labels come from a large ImageNet classifier, or from the golden detector:
a region is what the detection is that it shows, or `configs.units.NOTHING` (a shadow, a branch, rain).

Changed from Ekya, which cuts its crops out of golden boxes: regions come from the picture itself, as they do live, so a model is also
judged on what it should leave alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from configs.units import NOTHING
from models import zoo
from models.crops import crops
from models.detector import Detector, YieldPoint
from models.evaluate import MatchCounts, iou_matrix
from models.tasks.base import Picture, Scoring
from models.torch_support import mean_per_image
from scheduler.types import Detections

#: Crops cut and classified together; between two such groups the job may be paused.
GROUP = 32
#: Crops of one picture that one iteration learns from; more are thinned out evenly, or a crowded picture would need any memory.
LEARN_MAX = 48
#: A detection is what a region shows when they overlap this much ...
REGION_IOU_MIN = 0.3
#: ... or when this part of the region is the detection (a moving arm of a standing person).
REGION_COVERED_MIN = 0.6
#: Regions are the same when no side differs by more than this.
SAME_REGION_PX = 2.0


class ClassificationTask:
    """See `models.tasks.base.Task`."""

    name = "classification"
    wants_regions = True
    quality_name = "accuracy"

    def load(self, name: str, *, device: str = "cpu") -> Detector:
        return zoo.load_detector(name, device=device, task=zoo.CLASSIFICATION)

    def load_golden(self, name: str, *, device: str = "cpu") -> Detector:
        """A classifier, or a detector whose boxes tell what the regions are."""
        return zoo.load_detector(name, device=device)

    def predict(
        self, model: Detector, pictures: Sequence[Picture], *, score_min: float = 0.25, yield_point: YieldPoint | None = None
    ) -> list[Detections]:
        """One answer per region, in the order of the regions. An object that the model is less sure of than `score_min` is answered
        as NOTHING, as a detector's weak boxes are not there."""
        return [_certain(_classified(model, p, yield_point), score_min) for p in pictures]

    def loss(self, model: Detector, images: Sequence[np.ndarray], targets: Sequence[Detections]) -> torch.Tensor:
        """The classifier's loss on the crops of each picture's boxes, mean per picture; a picture without boxes teaches nothing (0)."""
        return mean_per_image([_picture_loss(model, i, t) for i, t in zip(images, targets, strict=True)])

    def distill_loss(
        self, model: Detector, images: Sequence[np.ndarray], targets: Sequence[Detections], teacher: Detector
    ) -> torch.Tensor:
        return mean_per_image([_picture_distance(model, i, t, teacher) for i, t in zip(images, targets, strict=True)])

    def labels(
        self, golden: Detector, pictures: Sequence[Picture], *, score_min: float, yield_point: YieldPoint | None = None
    ) -> list[Detections]:
        """What each region is. A golden classifier's unsure answers (under `score_min`) are left out: such a region has no label; a
        golden detector answers about every region. A picture in which nothing moves costs nothing."""
        label = _classified_labels if zoo.is_classifier(golden.spec.arch) else _detected_labels
        return [label(golden, p, score_min, yield_point) for p in pictures]

    def counts(self, predicted: Detections, labels: Detections, scoring: Scoring) -> MatchCounts:
        """Per labelled region: right is one tp; wrong, or not answered, is one fp and one fn, so that F1 = tp / regions = accuracy.
        Answers about regions without a label do not count."""
        answer = np.full(len(labels), -1, np.int64)
        predicted = _certain(predicted, scoring.score_min)
        for i, j in _same_regions(labels.xyxy, predicted.xyxy):
            answer[i] = predicted.class_id[j]
        right = int((answer == labels.class_id).sum())
        return MatchCounts(tp=right, fp=len(labels) - right, fn=len(labels) - right)

    def shown(self, predicted: Detections) -> Detections:
        return _chosen(predicted, predicted.class_id != NOTHING)


CLASSIFICATION = ClassificationTask()


# --- predicting -------------------------------------------------------------------------------------------------------


def _regions_of(picture: Picture) -> np.ndarray:
    """float32 (N, 4); none where nobody looked for movement."""
    if picture.regions is None:
        return np.zeros((0, 4), np.float32)
    return np.asarray(picture.regions, np.float32).reshape(-1, 4)


def _classified(model: Detector, picture: Picture, yield_point: YieldPoint | None) -> Detections:
    """The model's best class of every region and its score, in their order."""
    regions = _regions_of(picture)
    score, class_id = np.zeros(len(regions), np.float32), np.full(len(regions), NOTHING, np.int64)
    for first, group in _groups(crops(picture.image, regions)):
        if yield_point:
            yield_point()
        for i, found in enumerate(model.predict(group, score_min=0.0, yield_point=yield_point), start=first):
            if len(found):
                score[i], class_id[i] = found.score[0], found.class_id[0]
    return Detections(xyxy=regions, score=score, class_id=class_id)


def _groups(cut: Iterator[np.ndarray]) -> Iterator[tuple[int, list[np.ndarray]]]:
    """(index of its first crop, up to GROUP crops)."""
    group: list[np.ndarray] = []
    first = 0
    for crop in cut:
        group.append(crop)
        if len(group) == GROUP:
            yield first, group
            first, group = first + GROUP, []
    if group:
        yield first, group


def _certain(found: Detections, score_min: float) -> Detections:
    """Objects under `score_min` become NOTHING."""
    class_id = np.where(found.score >= score_min, found.class_id, NOTHING)
    return Detections(xyxy=found.xyxy, score=found.score, class_id=class_id)


def _chosen(found: Detections, which: np.ndarray) -> Detections:
    """which: bool (N,) or indices."""
    return Detections(xyxy=found.xyxy[which], score=found.score[which], class_id=found.class_id[which])


# --- learning ---------------------------------------------------------------------------------------------------------


def _picture_loss(model: Detector, image: np.ndarray, target: Detections) -> torch.Tensor:
    cut, target = _lesson(image, target)
    if not cut:
        return _no_loss(model)
    return model.loss(cut, [_chosen(target, np.array([i])) for i in range(len(cut))])


def _picture_distance(model: Detector, image: np.ndarray, target: Detections, teacher: Detector) -> torch.Tensor:
    cut, _ = _lesson(image, target)
    return model.distill_loss(cut, teacher) if cut else _no_loss(model)


def _lesson(image: np.ndarray, target: Detections) -> tuple[list[np.ndarray], Detections]:
    """The crops to learn from and their labels, at most LEARN_MAX, spread over the boxes."""
    if len(target) > LEARN_MAX:
        target = _chosen(target, np.linspace(0, len(target) - 1, LEARN_MAX).round().astype(np.int64))
    return list(crops(image, target.xyxy)), target


def _no_loss(model: Detector) -> torch.Tensor:
    """Zero that can be differentiated."""
    weights = [p for layer in model.trainable_layers() for p in layer.parameters() if p.requires_grad]
    return weights[-1].sum() * 0.0


# --- labelling and judging --------------------------------------------------------------------------------------------


def _classified_labels(golden: Detector, picture: Picture, score_min: float, yield_point: YieldPoint | None) -> Detections:
    found = _classified(golden, picture, yield_point)
    return _chosen(found, found.score >= score_min)


def _detected_labels(golden: Detector, picture: Picture, score_min: float, yield_point: YieldPoint | None) -> Detections:
    regions = _regions_of(picture)
    if not len(regions):
        return Detections.empty()
    found = golden.predict([picture.image], score_min=score_min, yield_point=yield_point)[0]
    return regions_as(found, regions)


def regions_as(found: Detections, regions: np.ndarray) -> Detections:
    """What each region (N, 4) shows, by the detections of its picture: the one of largest IoU among those that it shows at all
    (REGION_IOU_MIN, REGION_COVERED_MIN), else NOTHING with score 1. A score is that of the detection."""
    score, class_id = np.ones(len(regions), np.float32), np.full(len(regions), NOTHING, np.int64)
    if len(found) and len(regions):
        iou = iou_matrix(regions, found.xyxy)  # (N, M)
        shows = (iou >= REGION_IOU_MIN) | (_covered_frac(regions, found.xyxy) >= REGION_COVERED_MIN)
        best = np.where(shows, iou, -1.0).argmax(axis=1)
        hit = shows.any(axis=1)
        score[hit], class_id[hit] = found.score[best[hit]], found.class_id[best[hit]]
    return Detections(xyxy=regions, score=score, class_id=class_id)


def _covered_frac(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Part of each box of a (N, 4) that lies in each box of b (M, 4). float64 (N, M); of a box without area, 0."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    start, stop = np.maximum(a[:, None, :2], b[None, :, :2]), np.minimum(a[:, None, 2:], b[None, :, 2:])
    common = np.clip(stop - start, 0.0, None).prod(axis=2)
    area = np.clip(a[:, 2:] - a[:, :2], 0.0, None).prod(axis=1)[:, None]
    return np.divide(common, area, out=np.zeros_like(common), where=area > 0)


def _same_regions(a: np.ndarray, b: np.ndarray) -> Iterator[tuple[int, int]]:
    """Pairs (index in a, index in b) of the same region, each used once, nearest first."""
    if not len(a) or not len(b):
        return
    if a.shape == b.shape and np.abs(a - b).max() <= SAME_REGION_PX:  # the usual case: the same regions in the same order
        yield from ((i, i) for i in range(len(a)))
        return
    apart_px = np.abs(a[:, None, :].astype(np.float64) - b[None, :, :]).max(axis=2)  # (N, M)
    used_a, used_b = np.zeros(len(a), bool), np.zeros(len(b), bool)
    near = np.argwhere(apart_px <= SAME_REGION_PX)
    for i, j in near[np.argsort(apart_px[near[:, 0], near[:, 1]], kind="stable")].tolist():
        if not used_a[i] and not used_b[j]:
            used_a[i] = used_b[j] = True
            yield i, j
