"""Golden labels: cleaned, mapped, agreed on by two looks; batched with yields between passes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.units import CLASSES, IGNORE, NOTHING
from models.detector import DetectorSpec
from models.evaluate import iou_matrix
from models.fake import FakeDetector, scripted_image
from models.golden import (
    AGREE_IOU,
    MAX_LABELS,
    PLAIN,
    SAME_IOU,
    Labelling,
    agreed,
    class_table,
    cleaned,
    golden_steps,
    mapped,
    mirrored,
    mirrored_back,
    mirrored_boxes,
    one_view,
    two_views,
)
from models.tasks.base import Picture
from models.tasks.detection import DETECTION
from scheduler.types import Detections

SHAPE = (100, 200, 3)
CAR, TRUCK, ANIMAL, PERSON = (CLASSES.index(name) for name in ("car", "truck", "animal", "person"))
FLIP = Labelling(agreement="flip")


def found(*rows: tuple[float, float, float, float, float, int]) -> Detections:
    """(left, top, right, bottom, score, class) each."""
    table = np.array(rows, np.float64).reshape(-1, 6)
    return Detections(
        xyxy=table[:, :4].astype(np.float32), score=table[:, 4].astype(np.float32), class_id=table[:, 5].astype(np.int64)
    )


@st.composite
def detections(draw: st.DrawFn, *, most: int = 8) -> Detections:
    """Boxes on a coarse grid, so that overlaps and ties really happen."""
    rows = draw(
        st.lists(
            st.tuples(
                st.integers(0, 15), st.integers(0, 8), st.integers(1, 5), st.integers(1, 4), st.sampled_from([0.2, 0.5, 0.5, 0.9]),
                st.integers(0, 6),
            ),
            max_size=most,
        )
    )  # fmt: skip
    return found(*((10.0 * x, 10.0 * y, 10.0 * (x + w), 10.0 * (y + h), s, k) for x, y, w, h, s, k in rows))


def same(a: Detections, b: Detections) -> bool:
    return all(np.array_equal(getattr(a, n), getattr(b, n)) for n in ("xyxy", "score", "class_id"))


class_maps = st.dictionaries(st.sampled_from(CLASSES), st.sampled_from([*CLASSES, IGNORE]), max_size=5)


# --- class map --------------------------------------------------------------------------------------------------------


@given(class_maps, detections())
def test_mapping_twice_is_mapping_once_whatever_the_map(mapping: dict[str, str], boxes: Detections) -> None:
    try:
        table = class_table(mapping)
    except ValueError:
        assert any(mapping.get(ours, ours) != ours for ours in mapping.values()), "only chains are refused"
        return
    once = mapped(boxes, table)
    assert same(mapped(once, table), once)
    assert set(once.class_id.tolist()) <= {k for k in table if k >= 0}
    assert len(once) <= len(boxes)


def test_a_truck_becomes_a_car_and_an_animal_nothing() -> None:
    table = class_table({"truck": "car", "animal": IGNORE})
    boxes = found((0, 0, 20, 20, 0.9, TRUCK), (50, 0, 70, 20, 0.8, ANIMAL), (80, 0, 99, 20, 0.7, PERSON))
    assert mapped(boxes, table).class_id.tolist() == [CAR, PERSON]
    assert class_table({})[NOTHING] == NOTHING, "regions without an object stay what they are"


def test_one_object_that_was_seen_as_two_classes_becomes_one_label() -> None:
    boxes = found((0, 0, 20, 20, 0.6, CAR), (1, 0, 21, 20, 0.9, TRUCK), (40, 0, 60, 20, 0.5, CAR))
    both = mapped(boxes, class_table({"truck": "car"}))
    assert both.score.tolist() == pytest.approx([0.9, 0.5])
    overlap = iou_matrix(both.xyxy, both.xyxy)
    assert (overlap[~np.eye(len(both), dtype=bool)] < SAME_IOU).all()


@pytest.mark.parametrize(
    ("mapping", "says"),
    [
        ({"lorry": "car"}, "lorry"),
        ({"truck": "van"}, "van"),
        ({"truck": "car", "car": "bus"}, "name the last class"),
        ({"car": "truck", "truck": "car"}, "name the last class"),
        ({"truck": "car", "car": IGNORE}, "name the last class"),
    ],
)
def test_a_map_that_cannot_be_is_refused_by_its_entry(mapping: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        class_table(mapping)


# --- two looks --------------------------------------------------------------------------------------------------------


@given(detections(), detections())
def test_which_view_comes_first_does_not_matter(a: Detections, b: Detections) -> None:
    (sure, unsure), (sure_again, unsure_again) = agreed(a, b), agreed(b, a)
    assert same(sure, sure_again)
    assert same(unsure, unsure_again)


@given(detections(), detections())
def test_every_box_is_used_once(a: Detections, b: Detections) -> None:
    sure, unsure = agreed(a, b)
    assert 2 * len(sure) + len(unsure) == len(a) + len(b)
    for k in range(len(CLASSES)):
        mine = [int((x.class_id == k).sum()) for x in (a, b, sure, unsure)]
        assert mine[0] + mine[1] == 2 * mine[2] + mine[3]


@given(detections())
def test_a_view_agrees_with_itself(a: Detections) -> None:
    sure, unsure = agreed(a, a)
    assert len(unsure) == 0
    assert sorted(sure.score.tolist()) == sorted(a.score.tolist())


@given(detections(), st.integers(150, 400))
def test_mirroring_twice_gives_the_boxes_back(a: Detections, width_px: int) -> None:
    assert same(mirrored_back(mirrored_back(a, width_px), width_px), a)


def test_a_box_found_in_both_views_is_their_mean_and_one_found_once_is_unsure() -> None:
    plain = found((10, 10, 30, 30, 0.9, CAR), (100, 10, 120, 30, 0.8, PERSON))
    flipped = found((12, 10, 32, 30, 0.5, CAR), (150, 50, 170, 70, 0.7, CAR))
    labels = two_views(plain, flipped, SHAPE, FLIP, 0.4)
    assert labels.sure.xyxy.tolist() == [[11, 10, 31, 30]]
    assert labels.sure.score.tolist() == pytest.approx([0.7])
    assert [(int(k), round(float(s), 2)) for k, s in zip(labels.unsure.class_id, labels.unsure.score, strict=True)] == [
        (PERSON, 0.8), (CAR, 0.7),
    ]  # fmt: skip


def test_with_one_look_what_is_a_little_under_the_threshold_is_unsure() -> None:
    golden = Recording(found((10, 10, 40, 40, 0.9, CAR), (60, 10, 90, 40, 0.3, CAR), (110, 10, 140, 40, 0.1, CAR)))
    _, _, (labels,) = run(golden, pictures(1), PLAIN)
    assert (labels.sure.xyxy[:, 0].tolist(), labels.unsure.xyxy[:, 0].tolist(), labels.left_out) == ([10], [60], False)


def test_another_class_is_no_agreement_unless_the_map_says_so() -> None:
    plain, flipped = found((10, 10, 30, 30, 0.9, CAR)), found((10, 10, 30, 30, 0.9, TRUCK))
    assert len(two_views(plain, flipped, SHAPE, FLIP, 0.4).sure) == 0
    merged = replace(FLIP, classes=class_table({"truck": "car"}))
    assert two_views(plain, flipped, SHAPE, merged, 0.4).sure.class_id.tolist() == [CAR]


def test_overlap_decides_who_is_paired() -> None:
    plain = found((0, 0, 100, 100, 0.9, CAR))
    near, far = found((0, 0, 100, 60, 0.9, CAR)), found((0, 0, 100, 40, 0.9, CAR))
    assert len(agreed(plain, near)[0]) == 1
    assert len(agreed(plain, far)[0]) == 0, f"0.4 is under {AGREE_IOU}"


@pytest.mark.parametrize(
    ("pairs", "once", "left_out"), [(3, 1, False), (2, 2, False), (1, 2, True), (0, 1, True), (0, 0, False)]
)
def test_a_frame_is_left_out_when_most_of_it_is_unsure(pairs: int, once: int, left_out: bool) -> None:
    boxes = [(20.0 * i, 0.0, 20.0 * i + 15, 20.0, 0.9, CAR) for i in range(pairs + once)]
    labels = two_views(found(*boxes), found(*boxes[:pairs]), SHAPE, FLIP, 0.4)
    assert (len(labels.sure), len(labels.unsure), labels.left_out) == (pairs, once, left_out)


def test_the_mean_score_decides_not_the_weaker_view() -> None:
    plain, flipped = found((10, 10, 30, 30, 0.6, CAR)), found((10, 10, 30, 30, 0.3, CAR))
    assert len(two_views(plain, flipped, SHAPE, FLIP, 0.4).sure) == 1
    weak = two_views(found((10, 10, 30, 30, 0.4, CAR)), flipped, SHAPE, FLIP, 0.4)
    assert (len(weak.sure), len(weak.unsure)) == (0, 0), "both looks say that it is weak: that is no disagreement"


# --- boxes that are none ----------------------------------------------------------------------------------------------


def test_boxes_that_are_none_are_dropped_and_counted() -> None:
    nan, inf = float("nan"), float("inf")
    good = (10, 10, 30, 30, 0.9, CAR)
    bad = [
        (10, 10, 30, 30, nan, CAR), (nan, 10, 30, 30, 0.9, CAR), (10, 10, inf, 30, 0.9, CAR), (300, 10, 330, 30, 0.9, CAR),
        (-50, -50, -10, -10, 0.9, CAR), (30, 30, 10, 10, 0.9, CAR), (10, 10, 10.5, 30, 0.9, CAR), (10, 10, 30, 30, 0.9, 99),
        (10, 10, 30, 30, 0.9, -1),
    ]  # fmt: skip
    labels = one_view(found(good, *bad), SHAPE, PLAIN, 0.4)
    assert labels.sure.xyxy.tolist() == [[10, 10, 30, 30]]
    assert labels.dropped == len(bad)
    assert two_views(found(good, *bad), found(good, *bad), SHAPE, FLIP, 0.4).dropped == 2 * len(bad)


def test_a_box_over_the_border_is_cut_there() -> None:
    assert one_view(found((-20, -5, 30, 500, 0.9, CAR)), SHAPE, PLAIN, 0.4).sure.xyxy.tolist() == [[0, 0, 30, 100]]


def test_of_too_many_boxes_the_best_are_kept_in_their_order() -> None:
    rng = np.random.default_rng(1)
    many = Detections(
        xyxy=np.tile(np.array([0, 0, 20, 20], np.float32), (MAX_LABELS + 50, 1)), score=rng.random(MAX_LABELS + 50).astype(np.float32),
        class_id=np.zeros(MAX_LABELS + 50, np.int64),
    )  # fmt: skip
    kept = cleaned(many, SHAPE)
    assert sorted(kept.score.tolist()) == sorted(many.score.tolist())[-MAX_LABELS:]
    places = [many.score.tolist().index(s) for s in kept.score.tolist()]
    assert places == sorted(places)


@given(detections(most=12))
def test_cleaning_twice_is_cleaning_once(boxes: Detections) -> None:
    once = cleaned(boxes, SHAPE)
    assert same(cleaned(once, SHAPE), once)


# --- passes -----------------------------------------------------------------------------------------------------------


class Recording:
    """A golden model that says what it was asked; finds a car in the left half of every picture, as it lies before it."""

    spec = DetectorSpec(arch="recording", input_px=64)

    def __init__(self, answer: Detections | None = None) -> None:
        self.asked: list[int] = []
        self.scores: list[float] = []
        self.yields = 0
        self._answer = answer if answer is not None else found((10, 10, 40, 40, 0.9, CAR))

    def predict(self, images: Sequence[np.ndarray], *, score_min: float = 0.25, yield_point=None) -> list[Detections]:  # type: ignore[no-untyped-def]
        self.asked.append(len(images))
        self.scores.append(score_min)
        if yield_point:
            yield_point()
        return [self._answer.above(score_min) for _ in images]


def run(golden: object, pictures: Sequence[Picture], labelling: Labelling) -> tuple[list[int], int, list]:  # type: ignore[type-arg]
    """(pictures asked about after each step, yield points passed, labels)."""
    passed = 0

    def yield_point() -> None:
        nonlocal passed
        passed += 1

    steps = golden_steps(DETECTION, golden, pictures, score_min=0.4, labelling=labelling, yield_point=yield_point)  # type: ignore[arg-type]
    after: list[int] = []
    while True:
        try:
            next(steps)
            after.append(sum(golden.asked))  # type: ignore[attr-defined]
        except StopIteration as end:
            return after, passed, end.value


def pictures(n: int) -> list[Picture]:
    return [Picture(image=np.zeros((100, 200, 3), np.uint8)) for _ in range(n)]


def test_one_picture_an_iteration_unless_a_batch_is_asked_for() -> None:
    golden = Recording()
    after, passed, labels = run(golden, pictures(5), Labelling())
    assert golden.asked == [1] * 5
    assert after == [1, 2, 3, 4], "a yield between two passes"
    assert passed == 5, "the yield point reaches the model, between its layers"
    assert len(labels) == 5

    golden = Recording()
    after, _, labels = run(golden, pictures(5), Labelling(batch=2))
    assert golden.asked == [2, 2, 1]
    assert after == [2, 4]
    assert len(labels) == 5


def test_a_second_look_is_an_iteration_of_its_own() -> None:
    golden = Recording()
    after, _, labels = run(golden, pictures(2), FLIP)
    assert golden.asked == [1, 1, 1, 1]
    assert after == [1, 2, 3]
    assert golden.scores == [pytest.approx(0.24)] * 4, "the mean must reach 0.4, a single look may be under it"
    assert [(len(x.sure), len(x.unsure), x.left_out) for x in labels] == [(0, 2, True)] * 2, (
        "a model that does not see the mirror"
    )


def test_a_model_that_turns_with_the_picture_agrees_with_itself() -> None:
    class Turning(Recording):
        def predict(self, images, *, score_min=0.25, yield_point=None):  # type: ignore[no-untyped-def]
            self.asked.append(len(images))
            boxes = []
            for image in images:
                rows, columns = np.nonzero(image[:, :, 0])
                boxes.append(found((columns.min(), rows.min(), columns.max() + 1, rows.max() + 1, 0.8, CAR)))
            return boxes

    image = np.zeros((100, 200, 3), np.uint8)
    image[20:50, 10:60] = 200
    _, _, labels = run(Turning(), [Picture(image=image)], FLIP)
    assert labels[0].sure.xyxy.tolist() == [[10, 20, 60, 50]]
    assert len(labels[0].unsure) == 0


def test_regions_turn_with_their_picture() -> None:
    regions = np.array([[10, 20, 60, 50]], np.float32)
    turned = mirrored(Picture(image=np.zeros((100, 200, 3), np.uint8), regions=regions))
    assert turned.regions is not None
    assert turned.regions.tolist() == [[140, 20, 190, 50]]
    assert mirrored_boxes(turned.regions, 200).tolist() == regions.tolist()
    assert mirrored(Picture(image=np.zeros((4, 4, 3), np.uint8))).regions is None


def test_a_golden_model_that_sees_nothing_makes_empty_labels() -> None:
    for labelling in (Labelling(), FLIP):
        _, _, labels = run(Recording(Detections.empty()), pictures(3), labelling)
        assert [(len(x.sure), len(x.unsure), x.left_out, x.dropped) for x in labels] == [(0, 0, False, 0)] * 3


def test_plain_labels_are_what_the_model_says() -> None:
    image, truth = scripted_image(3)
    golden = FakeDetector(skill=1.0)
    steps = golden_steps(DETECTION, golden, [Picture(image=image)], score_min=0.4)
    with pytest.raises(StopIteration) as end:
        next(steps)
    (labels,) = end.value.value
    assert same(labels.sure, golden.predict([image], score_min=0.4)[0])
    assert sorted(labels.sure.class_id.tolist()) == sorted(truth.class_id.tolist())
