"""How good detections are: F1 at IoU 0.3 (quality in the box, as in Ekya section 6.1) and 0.5, and COCO's mean AP. numpy only.

Matching is greedy and class-aware: predictions in order of falling score each take the free label of their own class that they
overlap most, if that overlap reaches the IoU threshold (Everingham et al., PASCAL VOC; Lin et al., COCO).
F1 = 2 tp / (2 tp + fp + fn), from counts summed over frames (micro average): a quality over time is a sum of per-frame counts.
Changed from Ekya: an empty frame that is predicted empty counts as right (F1 = 1) instead of being left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from scheduler.types import Detections

#: Quality of the box: F1 at this IoU ...
IOU_MIN = 0.3
#: ... over predictions of at least this score.
SCORE_MIN = 0.25
#: COCO's ten IoU thresholds 0.50, 0.55, ..., 0.95 and its 101 recall points.
COCO_IOUS: tuple[float, ...] = tuple(round(0.5 + 0.05 * i, 2) for i in range(10))
RECALL_POINTS = np.linspace(0.0, 1.0, 101)
#: COCO counts at most this many predictions per frame.
MAX_PER_FRAME = 100

#: (predictions, labels) of one frame.
FramePair = tuple[Detections, Detections]


@dataclass(frozen=True)
class MatchCounts:
    """True positives, false positives and missed labels; add them up over frames, then ask for `f1`."""

    tp: int = 0
    fp: int = 0
    fn: int = 0

    def __add__(self, other: MatchCounts) -> MatchCounts:
        return MatchCounts(self.tp + other.tp, self.fp + other.fp, self.fn + other.fn)

    @property
    def f1(self) -> float:
        """0-1; nothing predicted where nothing is labelled is right, hence 1.0."""
        return _ratio(2 * self.tp, 2 * self.tp + self.fp + self.fn)

    @property
    def precision(self) -> float:
        return _ratio(self.tp, self.tp + self.fp)

    @property
    def recall(self) -> float:
        return _ratio(self.tp, self.tp + self.fn)

    @staticmethod
    def total(counts: Iterable[MatchCounts]) -> MatchCounts:
        """The sum; of nothing, the zero counts."""
        return sum(counts, start=MatchCounts())


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 1.0


def iou_matrix(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Intersection over union of every box in a (N, 4) with every box in b (M, 4), xyxy px -> float64 (N, M).
    A box without area overlaps nothing."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    top_left = np.maximum(a[:, None, :2], b[None, :, :2])  # (N, M, 2)
    bottom_right = np.minimum(a[:, None, 2:], b[None, :, 2:])  # (N, M, 2)
    common = np.clip(bottom_right - top_left, 0.0, None).prod(axis=2)  # (N, M)
    union = _area(a)[:, None] + _area(b)[None, :] - common
    return np.divide(common, union, out=np.zeros_like(common), where=union > 0)


def _area(xyxy: np.ndarray) -> np.ndarray:
    return np.clip(xyxy[:, 2:] - xyxy[:, :2], 0.0, None).prod(axis=1)


def match(predictions: Detections, labels: Detections, *, iou_min: float) -> np.ndarray:
    """Index of the label each prediction took, -1 for a false positive. int64 (N,), in the order of `predictions`."""
    taken_by = np.full(len(predictions), -1, np.int64)
    if not len(predictions) or not len(labels):
        return taken_by
    same_class = predictions.class_id[:, None] == labels.class_id[None, :]
    overlap = np.where(same_class, iou_matrix(predictions.xyxy, labels.xyxy), -1.0)  # (N, M)
    for i in np.argsort(-predictions.score, kind="stable"):
        best = int(np.argmax(overlap[i]))
        if overlap[i, best] >= iou_min:
            taken_by[i] = best
            overlap[:, best] = -1.0  # a label is given away once
    return taken_by


def match_counts(
    predictions: Detections, labels: Detections, *, iou_min: float = IOU_MIN, score_min: float = SCORE_MIN
) -> MatchCounts:
    """Counts of one frame. Predictions below `score_min` are ignored; labels are taken as they are."""
    shown = predictions.above(score_min)
    tp = int((match(shown, labels, iou_min=iou_min) >= 0).sum())
    return MatchCounts(tp=tp, fp=len(shown) - tp, fn=len(labels) - tp)


def f1(frames: Iterable[FramePair], *, iou_min: float = IOU_MIN, score_min: float = SCORE_MIN) -> float:
    """F1 (0-1) over (predictions, labels) frames, from summed counts. 1.0 for no frames at all."""
    return MatchCounts.total(match_counts(p, t, iou_min=iou_min, score_min=score_min) for p, t in frames).f1


def average_precision(frames: Sequence[FramePair], *, class_id: int, iou_min: float) -> float | None:
    """COCO's AP of one class: precision at 101 recalls, made monotone, averaged. None when the class has no label."""
    n_labels = sum(int((t.class_id == class_id).sum()) for _, t in frames)
    if not n_labels:
        return None
    scores, hits = _scored_hits(frames, class_id=class_id, iou_min=iou_min)
    order = np.argsort(-scores, kind="stable")
    tp = np.cumsum(hits[order])
    recall = tp / n_labels
    precision = tp / np.arange(1, len(tp) + 1)
    envelope = np.maximum.accumulate(precision[::-1])[::-1]  # best precision at this recall or beyond
    at = np.searchsorted(recall, RECALL_POINTS, side="left")
    return float(np.append(envelope, 0.0)[at].mean())  # a recall never reached has precision 0


def _scored_hits(frames: Sequence[FramePair], *, class_id: int, iou_min: float) -> tuple[np.ndarray, np.ndarray]:
    """Score and rightness of a class's predictions over all frames, at most MAX_PER_FRAME each. float64 (K,), bool (K,)."""
    scores: list[np.ndarray] = [np.zeros(0)]
    hits: list[np.ndarray] = [np.zeros(0, bool)]
    for predictions, labels in frames:
        mine, theirs = _of_class(predictions, class_id), _of_class(labels, class_id)
        best_first = np.argsort(-mine.score, kind="stable")[:MAX_PER_FRAME]
        mine = Detections(xyxy=mine.xyxy[best_first], score=mine.score[best_first], class_id=mine.class_id[best_first])
        scores.append(mine.score.astype(np.float64))
        hits.append(match(mine, theirs, iou_min=iou_min) >= 0)
    return np.concatenate(scores), np.concatenate(hits)


def _of_class(detections: Detections, class_id: int) -> Detections:
    keep = detections.class_id == class_id
    return Detections(xyxy=detections.xyxy[keep], score=detections.score[keep], class_id=detections.class_id[keep])


def mean_average_precision(frames: Sequence[FramePair], *, ious: Sequence[float] = COCO_IOUS) -> float:
    """Mean AP (0-1) over the classes that have labels and over `ious`. Without labels: 1.0 if nothing is predicted, else 0."""
    classes = sorted({int(c) for _, labels in frames for c in labels.class_id})
    if not classes:
        return 0.0 if any(len(p) for p, _ in frames) else 1.0
    aps = [average_precision(frames, class_id=c, iou_min=iou) for c in classes for iou in ious]
    return float(np.mean([ap for ap in aps if ap is not None]))


@dataclass(frozen=True, kw_only=True)
class QualityReport:
    """Quality of a model on a set of labelled frames. `f1` (IoU 0.3) is what the scheduler optimises; all are 0-1."""

    f1: float
    f1_iou50: float
    map_iou50: float
    map_iou50_95: float
    n_frames: int
    n_labels: int

    def as_dict(self) -> dict[str, float]:
        return {name: float(value) for name, value in asdict(self).items()}


def quality_report(frames: Iterable[FramePair], *, score_min: float = SCORE_MIN) -> QualityReport:
    """All measures at once. AP ranks by score, so it sees every prediction given, F1 only those of at least `score_min`:
    predict with a low threshold (0.01, say) when AP matters."""
    frames = list(frames)
    return QualityReport(
        f1=f1(frames, iou_min=IOU_MIN, score_min=score_min),
        f1_iou50=f1(frames, iou_min=0.5, score_min=score_min),
        map_iou50=mean_average_precision(frames, ious=(0.5,)),
        map_iou50_95=mean_average_precision(frames),
        n_frames=len(frames),
        n_labels=sum(len(labels) for _, labels in frames),
    )


def gain_sd(old: Sequence[MatchCounts], new: Sequence[MatchCounts]) -> float | None:
    """Standard error of F1(new) - F1(old) on the same frames, by the jackknife over frames (Efron 1979): a frame is the unit, because
    the objects of one frame are right or wrong together. None for fewer than two frames. Raises ValueError for unequal lengths."""
    if len(old) != len(new):
        raise ValueError(f"a gain needs the same frames for both models, got {len(old)} and {len(new)}")
    return _jackknife([_without(new, i) - _without(old, i) for i in range(len(old))])


def f1_sd(counts: Sequence[MatchCounts]) -> float | None:
    """Standard error of F1 over these frames, as `gain_sd`. None for fewer than two frames."""
    return _jackknife([_without(counts, i) for i in range(len(counts))])


def _jackknife(left_out: Sequence[float]) -> float | None:
    """left_out: what is found without each of the frames."""
    n, found = len(left_out), np.asarray(left_out)
    return float(np.sqrt((n - 1) / n * ((found - found.mean()) ** 2).sum())) if n > 1 else None


def _without(counts: Sequence[MatchCounts], index: int) -> float:
    total, one = MatchCounts.total(counts), counts[index]
    return MatchCounts(total.tp - one.tp, total.fp - one.fp, total.fn - one.fn).f1


def running_f1(counts: Iterable[MatchCounts], *, window: int) -> Iterator[float]:
    """F1 over the last `window` frames, once per frame: quality over time.  window: frames, at least 1."""
    if window < 1:
        raise ValueError(f"running_f1 needs a window of at least one frame, got {window}")
    recent: list[MatchCounts] = []
    for frame in counts:
        recent = [*recent[-(window - 1) :], frame] if window > 1 else [frame]
        yield MatchCounts.total(recent).f1
