"""F1 and mean AP against hand-computed cases, properties and an independent, slow reference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.evaluate import (
    COCO_IOUS,
    MatchCounts,
    average_precision,
    f1,
    f1_sd,
    iou_matrix,
    match,
    match_counts,
    mean_average_precision,
    quality_report,
    running_f1,
)
from scheduler.types import Detections


def boxes(*rows: tuple[float, float, float, float, float, int]) -> Detections:
    """Rows of x1 y1 x2 y2 score class."""
    table = np.array(rows, np.float64).reshape(-1, 6)
    return Detections(
        xyxy=table[:, :4].astype(np.float32), score=table[:, 4].astype(np.float32), class_id=table[:, 5].astype(np.int64)
    )


@st.composite
def detections(draw: st.DrawFn, max_size: int = 6) -> Detections:
    corner, side = st.integers(0, 20), st.integers(1, 12)
    row = st.tuples(corner, corner, side, side, st.integers(1, 100), st.integers(0, 2))
    rows = draw(st.lists(row, max_size=max_size))
    return boxes(*[(x, y, x + w, y + h, s / 100, c) for x, y, w, h, s, c in rows])


frames_st = st.lists(st.tuples(detections(), detections()), max_size=4)


def test_iou_by_hand() -> None:
    a = np.array([[0, 0, 10, 10], [5, 5, 5, 9]], np.float32)  # the second has no area
    b = np.array([[5, 0, 15, 10], [20, 20, 30, 30], [0, 0, 10, 10]], np.float32)
    assert iou_matrix(a, b) == pytest.approx(np.array([[50 / 150, 0, 1], [0, 0, 0]]))


def test_greedy_matching_gives_the_label_to_the_higher_score() -> None:
    labels = boxes((0, 0, 10, 10, 1, 0))
    predictions = boxes((0, 0, 10, 10, 0.5, 0), (0, 0, 10, 9, 0.9, 0))  # the worse fit has the higher score
    assert match(predictions, labels, iou_min=0.3).tolist() == [-1, 0]
    assert match_counts(predictions, labels) == MatchCounts(tp=1, fp=1, fn=0)


def test_a_wrong_class_is_a_false_positive_and_a_miss() -> None:
    assert match_counts(boxes((0, 0, 10, 10, 0.9, 1)), boxes((0, 0, 10, 10, 1, 0))) == MatchCounts(0, 1, 1)


def test_iou_threshold_is_inclusive_and_decides() -> None:
    labels, predictions = boxes((0, 0, 10, 10, 1, 0)), boxes((0, 0, 10, 4, 0.9, 0))  # IoU 0.4
    assert match_counts(predictions, labels, iou_min=0.3).tp == 1
    assert match_counts(predictions, labels, iou_min=0.4).tp == 1
    assert match_counts(predictions, labels, iou_min=0.5).tp == 0


def test_predictions_below_the_score_threshold_do_not_count() -> None:
    labels = boxes((0, 0, 10, 10, 1, 0))
    assert match_counts(boxes((0, 0, 10, 10, 0.2, 0)), labels) == MatchCounts(0, 0, 1)
    assert match_counts(boxes((0, 0, 10, 10, 0.2, 0)), labels, score_min=0.1) == MatchCounts(1, 0, 0)


def test_f1_by_hand_is_micro_averaged() -> None:
    label = boxes((0, 0, 10, 10, 1, 0))
    hit = (boxes((0, 0, 10, 10, 0.9, 0)), label)
    three_wrong = (boxes(*[(50 + 20 * i, 50, 60 + 20 * i, 60, 0.9, 0) for i in range(3)]), label)
    assert f1([hit, three_wrong]) == pytest.approx(2 / (2 + 3 + 1))  # the mean over frames would be 0.5


def test_empty_against_empty_is_right() -> None:
    assert f1([(boxes(), boxes())]) == 1.0
    assert MatchCounts().f1 == MatchCounts().precision == MatchCounts().recall == 1.0
    assert MatchCounts(1, 1, 3).precision == 0.5
    assert MatchCounts(1, 1, 3).recall == 0.25


def test_counts_add_up() -> None:
    assert MatchCounts(1, 2, 3) + MatchCounts(4, 5, 6) == MatchCounts(5, 7, 9)
    assert MatchCounts.total([]) == MatchCounts()


def test_running_f1_forgets_old_frames() -> None:
    hit, miss = MatchCounts(1, 0, 0), MatchCounts(0, 0, 1)
    assert list(running_f1([hit, miss, miss, hit], window=2)) == pytest.approx([1.0, 2 / 3, 0.0, 2 / 3])
    assert list(running_f1([hit, miss], window=1)) == [1.0, 0.0]
    with pytest.raises(ValueError, match="at least one frame"):
        list(running_f1([hit], window=0))


def test_how_sure_a_quality_is() -> None:
    """The jackknife of a mean is its usual standard error; frames that agree show none."""
    hit, miss = MatchCounts(1, 0, 0), MatchCounts(0, 1, 1)  # F1 of both together is a mean: 2 boxes and labels a frame
    values = np.array([1.0, 0.0, 1.0, 1.0, 0.0])
    found = f1_sd([hit if value else miss for value in values])
    assert found == pytest.approx(values.std(ddof=1) / np.sqrt(len(values)))
    assert f1_sd([hit] * 8) == 0.0
    assert f1_sd([hit]) is None
    assert f1_sd([]) is None


def test_average_precision_by_hand() -> None:
    # Two labels. Ranked predictions: right, wrong, right -> precision 1, 1/2, 2/3 at recall 1/2, 1/2, 1.
    labels = boxes((0, 0, 10, 10, 1, 0), (20, 0, 30, 10, 1, 0))
    predictions = boxes((0, 0, 10, 10, 0.9, 0), (50, 50, 60, 60, 0.8, 0), (20, 0, 30, 10, 0.7, 0))
    # recalls 0, 0.01, ..., 0.50 (51 points) have precision 1; the other 50 have 2/3.
    expected = (51 * 1.0 + 50 * 2 / 3) / 101
    assert average_precision([(predictions, labels)], class_id=0, iou_min=0.5) == pytest.approx(expected)
    assert average_precision([(predictions, labels)], class_id=1, iou_min=0.5) is None


def test_map_averages_thresholds_and_classes() -> None:
    labels = boxes((0, 0, 10, 10, 1, 0), (20, 0, 30, 10, 1, 3))
    predictions = boxes((0, 0, 10, 7.2, 0.9, 0))  # IoU 0.72: right at 0.5 ... 0.7, wrong above; class 3 is missed
    assert mean_average_precision([(predictions, labels)], ious=(0.5,)) == pytest.approx(0.5)
    assert mean_average_precision([(predictions, labels)]) == pytest.approx(0.5 * 5 / 10)


def test_map_without_labels() -> None:
    assert mean_average_precision([(boxes(), boxes())]) == 1.0
    assert mean_average_precision([(boxes((0, 0, 1, 1, 0.9, 0)), boxes())]) == 0.0


def test_ap_ranks_over_frames_and_caps_each_frame() -> None:
    label = boxes((0, 0, 10, 10, 1, 0))
    crowd = boxes(*[(100 + 20 * i, 0, 110 + 20 * i, 10, 0.9, 0) for i in range(100)], (0, 0, 10, 10, 0.5, 0))
    assert average_precision([(crowd, label)], class_id=0, iou_min=0.5) == 0.0  # the right one is the 101st
    confident = (boxes((0, 0, 10, 10, 0.95, 0)), label)
    wrong = (boxes((50, 50, 60, 60, 0.5, 0)), boxes())
    assert average_precision([wrong, confident], class_id=0, iou_min=0.5) == 1.0


def test_quality_report_names_every_measure() -> None:
    labels, predictions = boxes((0, 0, 10, 10, 1, 0)), boxes((0, 0, 10, 4, 0.9, 0))
    report = quality_report([(predictions, labels)]).as_dict()
    assert report == {"f1": 1.0, "f1_iou50": 0.0, "map_iou50": 0.0, "map_iou50_95": 0.0, "n_frames": 1.0, "n_labels": 1.0}


# --- properties --------------------------------------------------------------------------------------------------------


def reference_counts(predictions: Detections, labels: Detections, iou_min: float, score_min: float) -> MatchCounts:
    """The same definition written with plain Python loops and scalar geometry."""

    def overlap(a: list[float], b: list[float]) -> float:
        w, h = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
        if w <= 0 or h <= 0:
            return 0.0
        return w * h / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - w * h)

    free = list(range(len(labels)))
    shown = [i for i in range(len(predictions)) if predictions.score[i] >= np.float32(score_min)]
    tp = 0
    for i in sorted(shown, key=lambda i: (-float(predictions.score[i]), i)):
        fits = [
            (-overlap(predictions.xyxy[i].tolist(), labels.xyxy[j].tolist()), j)
            for j in free
            if labels.class_id[j] == predictions.class_id[i]
        ]
        if fits and -min(fits)[0] >= iou_min:
            free.remove(min(fits)[1])
            tp += 1
    return MatchCounts(tp, len(shown) - tp, len(labels) - tp)


def reference_ap(frames: list[tuple[Detections, Detections]], class_id: int, iou_min: float) -> float:
    """AP from its definition: for each recall point, the best precision over all score cuts that reach it."""
    ranked = []
    n_labels = 0
    for predictions, labels in frames:
        mine = Detections(
            xyxy=predictions.xyxy[predictions.class_id == class_id],
            score=predictions.score[predictions.class_id == class_id],
            class_id=predictions.class_id[predictions.class_id == class_id],
        )
        n_labels += int((labels.class_id == class_id).sum())
        ranked += list(zip(mine.score, match(mine, labels, iou_min=iou_min) >= 0, strict=True))
    ranked.sort(key=lambda pair: -pair[0])
    points = []
    for k in range(1, len(ranked) + 1):
        tp = sum(bool(hit) for _, hit in ranked[:k])
        points.append((tp / n_labels, tp / k))
    best = [max([p for r, p in points if r >= i / 100 - 1e-12], default=0.0) for i in range(101)]
    return sum(best) / 101


@given(detections(), detections(), st.sampled_from([0.3, 0.5, 0.75]), st.sampled_from([0.0, 0.25, 0.5]))
def test_counts_equal_the_slow_reference(predictions: Detections, labels: Detections, iou_min: float, score_min: float) -> None:
    assert match_counts(predictions, labels, iou_min=iou_min, score_min=score_min) == reference_counts(
        predictions, labels, iou_min, score_min
    )


@given(frames_st)
def test_counts_are_consistent(frames: list[tuple[Detections, Detections]]) -> None:
    counts = MatchCounts.total(match_counts(p, t, score_min=0.0) for p, t in frames)
    assert counts.tp + counts.fp == sum(len(p) for p, _ in frames)
    assert counts.tp + counts.fn == sum(len(t) for _, t in frames)
    assert 0.0 <= counts.f1 <= 1.0


@given(detections())
def test_perfect_predictions_score_one(labels: Detections) -> None:
    sure = Detections(xyxy=labels.xyxy, score=np.ones(len(labels), np.float32), class_id=labels.class_id)
    assert f1([(sure, labels)]) == 1.0
    assert mean_average_precision([(sure, labels)]) == pytest.approx(1.0)


@given(frames_st, st.randoms(use_true_random=False))
def test_f1_does_not_depend_on_the_order_of_frames(frames: list[tuple[Detections, Detections]], random) -> None:
    shuffled = list(frames)
    random.shuffle(shuffled)
    assert f1(shuffled) == f1(frames)


@settings(max_examples=60)
@given(frames_st, st.sampled_from([0.3, 0.5]))
def test_ap_equals_its_definition(frames: list[tuple[Detections, Detections]], iou_min: float) -> None:
    # Equal scores in different frames may be ranked either way; make scores distinct.
    distinct = []
    for k, (p, t) in enumerate(frames):
        score = (np.argsort(np.argsort(-p.score, kind="stable")) * 10 + k + 1) / 1000
        distinct.append((Detections(xyxy=p.xyxy, score=score.astype(np.float32), class_id=p.class_id), t))
    for class_id in {int(c) for _, t in distinct for c in t.class_id}:
        expected = reference_ap(distinct, class_id, iou_min)
        assert average_precision(distinct, class_id=class_id, iou_min=iou_min) == pytest.approx(expected)


@given(frames_st)
def test_map_is_bounded_and_tightens_with_iou(frames: list[tuple[Detections, Detections]]) -> None:
    values = [mean_average_precision(frames, ious=(iou,)) for iou in COCO_IOUS]
    assert all(0.0 <= v <= 1.0 for v in values)
    assert mean_average_precision(frames) == pytest.approx(np.mean(values))
