"""Golden labels out of a large model's answers: cleaned, mapped to the box's classes, and only where the model agrees with itself.

The large model is not always right, and what it gets wrong is trained on. Boxes a little under the score threshold are *unsure*: no
labels, but kept beside them, so that a person looks there first. Test-time flip is the cheapest second opinion: the model also sees
the mirrored picture. What it finds in both is kept, as the mean of both boxes and scores; what it finds in one only is unsure too,
and a frame with too many of those is left out of training and judging. (After test-time augmentation as a measure of certainty: Ayhan
and Berens 2018; boxes of views averaged: Solovyev et al., "Weighted boxes fusion", 2021. Changed: two views, and a box seen once is
not a weak label but none.)

What the filter buys and costs on labelled footage: `docs/labels.md`, printed by `driftbox bench labels`.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from configs.units import CLASSES, IGNORE, NOTHING, class_map_problem
from models.evaluate import iou_matrix
from models.tasks.base import Picture, Task
from scheduler.types import Detections

if TYPE_CHECKING:
    from models.detector import Detector, YieldPoint

Agreement = Literal["off", "flip"]

#: `configs.units.IGNORE` as a number in a class table.
IGNORED = -1
#: Two boxes of one class are the same object from this overlap on, in two views of a picture.
AGREE_IOU = 0.5
#: Two boxes that the class map made one class are one object from this overlap on (the detectors' own NMS leaves one box per class).
SAME_IOU = 0.7
#: The golden model is asked for boxes from this part of the score threshold on. With one look, those under the threshold are unsure.
#: With two, a box that one look scores just above the threshold and the other just below is no disagreement: the mean must reach it.
VIEW_SCORE_FRAC = 0.6
#: A box with a side below this is no object (px).
MIN_SIDE_PX = 1.0
#: Most labels of one picture; the best are kept.
MAX_LABELS = 500


def class_table(mapping: Mapping[str, str]) -> tuple[int, ...]:
    """Class map by name -> by index: entry k is what a golden box of class k becomes, IGNORED: nothing. `configs.units.NOTHING` stays.
    Raises ValueError for what `configs.units.class_map_problem` finds."""
    problem = class_map_problem(mapping)
    if problem:
        raise ValueError(f"class map: {problem}")
    table = [*range(len(CLASSES)), NOTHING]
    for golden, ours in mapping.items():
        table[CLASSES.index(golden)] = IGNORED if ours == IGNORE else CLASSES.index(ours)
    return tuple(table)


@dataclass(frozen=True, kw_only=True)
class Labelling:
    """How golden labels are made. batch: pictures the golden model sees at once (more than one only where a GPU makes that cheaper: an
    iteration lasts as long as its batch); classes: see `class_table`; agreement: 'flip' asks the mirrored picture too;
    unsure_max_frac: a frame whose unsure part of all boxes is larger is left out."""

    batch: int = 1
    classes: tuple[int, ...] = class_table({})
    agreement: Agreement = "off"
    unsure_max_frac: float = 0.5

    @property
    def views(self) -> int:
        """Golden passes a picture costs."""
        return 2 if self.agreement == "flip" else 1

    @property
    def labels_from_frac(self) -> float:
        """Part of the score threshold from which on a box may become (part of) a label."""
        return VIEW_SCORE_FRAC if self.agreement == "flip" else 1.0


PLAIN = Labelling()


@dataclass(frozen=True, kw_only=True, eq=False)
class GoldenLabels:
    """sure: the labels; unsure: boxes a little under the threshold, or found in one of two views only, which are no labels; left_out:
    too much is unsure to train on or judge by; dropped: boxes that were none (not finite, without area, outside the picture, of an
    unknown class)."""

    sure: Detections
    unsure: Detections
    left_out: bool = False
    dropped: int = 0


def golden_steps(
    task: Task, golden: Detector, pictures: Sequence[Picture], *, score_min: float, labelling: Labelling = PLAIN,
    yield_point: YieldPoint | None = None,
) -> Generator[None, None, list[GoldenLabels]]:  # fmt: skip
    """Golden labels of each picture. Yields between two passes of the golden model, each over at most `labelling.batch` pictures."""
    found: list[GoldenLabels] = []
    low = VIEW_SCORE_FRAC * score_min
    for start in range(0, len(pictures), labelling.batch):
        if start:
            yield
        batch = pictures[start : start + labelling.batch]
        plain = task.labels(golden, batch, score_min=low, yield_point=yield_point)
        if labelling.agreement == "off":
            found += [one_view(a, p.image.shape, labelling, score_min) for a, p in zip(plain, batch, strict=True)]
            continue
        yield
        flipped = task.labels(golden, [mirrored(p) for p in batch], score_min=low, yield_point=yield_point)
        found += [
            two_views(a, mirrored_back(b, p.image.shape[1]), p.image.shape, labelling, score_min)
            for a, b, p in zip(plain, flipped, batch, strict=True)
        ]
    return found


def one_view(found: Detections, shape: Sequence[int], labelling: Labelling, score_min: float) -> GoldenLabels:
    """Labels of one look at a picture of `shape` (height, width, ...): boxes from the threshold on; those under it are unsure."""
    clean = cleaned(found, shape)
    named = mapped(clean, labelling.classes)
    doubtful = named.score < score_min
    unsure = Detections(xyxy=named.xyxy[doubtful], score=named.score[doubtful], class_id=named.class_id[doubtful])
    return GoldenLabels(sure=named.above(score_min), unsure=unsure, dropped=len(found) - len(clean))


def two_views(
    plain: Detections, flipped: Detections, shape: Sequence[int], labelling: Labelling, score_min: float
) -> GoldenLabels:
    """Labels of a picture seen twice; `flipped` already in the picture's own pixels (`mirrored_back`)."""
    a, b = cleaned(plain, shape), cleaned(flipped, shape)
    dropped = len(plain) + len(flipped) - len(a) - len(b)
    sure, unsure = agreed(mapped(a, labelling.classes), mapped(b, labelling.classes))
    sure, unsure = sure.above(score_min), unsure.above(score_min)
    doubt = len(unsure) / (len(sure) + len(unsure)) if len(unsure) else 0.0
    return GoldenLabels(sure=sure, unsure=unsure, left_out=doubt > labelling.unsure_max_frac, dropped=dropped)


# --- views ------------------------------------------------------------------------------------------------------------


def mirrored(picture: Picture) -> Picture:
    """The picture seen in a mirror; what moved in it with it."""
    regions = picture.regions
    if regions is not None:
        regions = mirrored_boxes(regions, picture.image.shape[1])
    return Picture(image=np.ascontiguousarray(picture.image[:, ::-1]), regions=regions)


def mirrored_boxes(xyxy: np.ndarray, width_px: int) -> np.ndarray:
    """float32 (N, 4) xyxy px in a picture of this width -> in the mirrored one, and back."""
    return np.stack([width_px - xyxy[:, 2], xyxy[:, 1], width_px - xyxy[:, 0], xyxy[:, 3]], axis=1).astype(np.float32)


def mirrored_back(found: Detections, width_px: int) -> Detections:
    """What was found in the mirrored picture, in the picture's own pixels."""
    return Detections(xyxy=mirrored_boxes(found.xyxy, width_px), score=found.score, class_id=found.class_id)


def agreed(a: Detections, b: Detections) -> tuple[Detections, Detections]:
    """(found in both, found in one only): boxes of one class are paired by falling overlap, each once; a pair is the mean of its
    boxes and scores. Which view comes first does not matter."""
    overlap = np.where(a.class_id[:, None] == b.class_id[None, :], iou_matrix(a.xyxy, b.xyxy), 0.0)  # (N, M)
    rows, columns = np.nonzero(overlap >= AGREE_IOU)
    mean_score = (a.score[rows] + b.score[columns]) / 2
    mean_box = (a.xyxy[rows] + b.xyxy[columns]) / 2
    # Ties of overlap are broken by what both views share, so that the order of the views does not show.
    order = np.lexsort((*mean_box.T, -mean_score, -overlap[rows, columns]))
    free_a, free_b = np.ones(len(a), bool), np.ones(len(b), bool)
    pairs: list[int] = []
    for pair in order:
        row, column = rows[pair], columns[pair]
        if free_a[row] and free_b[column]:
            free_a[row] = free_b[column] = False
            pairs.append(int(pair))
    both = _best_first(mean_box[pairs], mean_score[pairs], a.class_id[rows[pairs]])
    once = _best_first(
        np.concatenate([a.xyxy[free_a], b.xyxy[free_b]]),
        np.concatenate([a.score[free_a], b.score[free_b]]),
        np.concatenate([a.class_id[free_a], b.class_id[free_b]]),
    )
    return both, once


# --- boxes ------------------------------------------------------------------------------------------------------------


def cleaned(found: Detections, shape: Sequence[int]) -> Detections:
    """Only what may be a label of a picture of `shape` (height, width, ...): numbers finite, class known, box cut at the border and
    then of at least a pixel; at most MAX_LABELS, best first."""
    height, width = shape[:2]
    finite = np.isfinite(found.xyxy).all(axis=1) & np.isfinite(found.score)
    xyxy = np.clip(np.where(finite[:, None], found.xyxy, 0.0), 0, [width, height, width, height])
    solid = (xyxy[:, 2:] - xyxy[:, :2] >= MIN_SIDE_PX).all(axis=1)
    known = (found.class_id >= 0) & (found.class_id <= NOTHING)
    keep = finite & solid & known
    best = np.sort(np.argsort(-found.score[keep], kind="stable")[:MAX_LABELS])  # in the order they came
    return Detections(
        xyxy=xyxy[keep][best].astype(np.float32), score=found.score[keep][best], class_id=found.class_id[keep][best]
    )


def mapped(found: Detections, classes: Sequence[int]) -> Detections:
    """Classes by the table (`class_table`), ignored ones gone; of boxes that have become doubles the best is kept. Mapping again changes
    nothing."""
    table = np.asarray(classes, np.int64)
    class_id = table[found.class_id]
    keep = class_id != IGNORED
    if np.array_equal(class_id, found.class_id):
        return found  # nothing was merged: two boxes of one class are the detector's own opinion
    return _without_doubles(Detections(xyxy=found.xyxy[keep], score=found.score[keep], class_id=class_id[keep]))


def _without_doubles(found: Detections) -> Detections:
    best = _best_first(found.xyxy, found.score, found.class_id)
    same = (iou_matrix(best.xyxy, best.xyxy) >= SAME_IOU) & (best.class_id[:, None] == best.class_id[None, :])
    keep: list[int] = []
    for i in range(len(best)):
        if not same[i, keep].any():
            keep.append(i)
    return Detections(xyxy=best.xyxy[keep], score=best.score[keep], class_id=best.class_id[keep])


def _best_first(xyxy: np.ndarray, score: np.ndarray, class_id: np.ndarray) -> Detections:
    """By falling score; equal scores in the order of their boxes, so that the result does not depend on how they came."""
    order = np.lexsort((class_id, *xyxy.T[::-1], -score))
    return Detections(
        xyxy=xyxy[order].astype(np.float32).reshape(-1, 4), score=score[order].astype(np.float32),
        class_id=class_id[order].astype(np.int64),
    )  # fmt: skip
