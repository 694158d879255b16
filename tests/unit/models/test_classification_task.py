"""Classification of regions: what they are by a golden model, how answers are counted, what is learnt from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from configs.errors import JobError
from configs.units import NOTHING
from models.detector import DetectorSpec
from models.evaluate import MatchCounts
from models.tasks.base import Picture, Scoring
from models.tasks.classification import CLASSIFICATION, GROUP, LEARN_MAX, regions_as
from models.zoo import new_detector
from scheduler.types import Detections

PERSON, BICYCLE, CAR = 0, 1, 2


def boxes(*xyxy: Sequence[float], classes: Sequence[int] | None = None, scores: Sequence[float] | None = None) -> Detections:
    n = len(xyxy)
    return Detections(
        xyxy=np.array(xyxy, np.float32).reshape(-1, 4),
        score=np.array(scores if scores is not None else [0.9] * n, np.float32),
        class_id=np.array(classes if classes is not None else [CAR] * n, np.int64),
    )


class Scripted:
    """Answers about crops by a rule; remembers how many it was shown at once."""

    def __init__(self, arch: str = "resnext101_32x8d") -> None:
        self.spec = DetectorSpec(arch=arch, input_px=8)
        self.asked: list[int] = []
        self.layer = nn.Linear(1, 1)

    def predict(self, images: Sequence[np.ndarray], *, score_min: float = 0.25, yield_point: object = None) -> list[Detections]:
        self.asked.append(len(images))
        return [self.answer(image) for image in images]

    def answer(self, image: np.ndarray) -> Detections:
        """Class and score from the crop's middle pixel: (class, score in percent, -)."""
        class_id, score, _ = image[image.shape[0] // 2, image.shape[1] // 2].tolist()
        return boxes([0, 0, *image.shape[1::-1]], classes=[class_id], scores=[score / 100])

    def loss(self, images: Sequence[np.ndarray], targets: Sequence[Detections]) -> torch.Tensor:
        self.asked.append(len(images))
        return self.layer.weight.sum() * float(np.mean([t.class_id[0] for t in targets]))

    def trainable_layers(self) -> list[nn.Module]:
        return [self.layer]


def painted(regions: np.ndarray, answers: Sequence[tuple[int, int]]) -> np.ndarray:
    image = np.zeros((200, 200, 3), np.uint8)
    for (x1, y1, x2, y2), (class_id, score) in zip(regions.astype(int).tolist(), answers, strict=True):
        image[y1:y2, x1:x2] = (class_id, score, 0)
    return image


# --- what a region shows ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("region", "found", "expected"),
    [
        ([0, 0, 10, 10], boxes([0, 0, 10, 10]), CAR),
        ([0, 0, 10, 10], boxes([5, 0, 15, 10]), CAR),  # IoU 1/3
        ([0, 0, 10, 10], boxes([6, 0, 16, 10]), NOTHING),  # IoU 1/4, 40 % of the region
        ([0, 0, 10, 10], boxes([0, 0, 100, 100]), CAR),  # a part of a large thing moves
        ([0, 0, 100, 100], boxes([0, 0, 10, 10]), NOTHING),  # something small in a large shadow
        ([50, 50, 60, 60], boxes([0, 0, 10, 10]), NOTHING),
        ([50, 50, 50, 50], boxes([0, 0, 100, 100]), NOTHING),  # no area, so nothing to see
        ([0, 0, 10, 10], boxes(), NOTHING),
        ([0, 0, 10, 10], boxes([0, 0, 100, 100], [0, 0, 10, 12], classes=[4, PERSON]), PERSON),  # a person before a bus
    ],
)
def test_a_region_is_the_detection_that_it_shows(region: list[float], found: Detections, expected: int) -> None:
    labels = regions_as(found, np.array([region], np.float32))
    assert labels.class_id.tolist() == [expected]
    assert np.array_equal(labels.xyxy, np.array([region], np.float32))
    assert labels.score[0] == pytest.approx(1.0 if expected == NOTHING else 0.9)


def test_golden_detections_label_every_region() -> None:
    class Golden(Scripted):
        def answer(self, image: np.ndarray) -> Detections:
            return boxes([0, 0, 40, 40], [100, 100, 140, 140], classes=[PERSON, CAR], scores=[0.9, 0.6])

    regions = np.array([[0, 0, 40, 40], [50, 0, 90, 40], [100, 100, 140, 140]], np.float32)
    [labels] = CLASSIFICATION.labels(
        Golden(arch="yolo26l"), [Picture(image=np.zeros((200, 200, 3), np.uint8), regions=regions)], score_min=0.4
    )
    assert labels.class_id.tolist() == [PERSON, NOTHING, CAR]


def test_a_golden_classifier_leaves_unsure_regions_unlabelled() -> None:
    regions = np.array([[0, 0, 40, 40], [50, 0, 90, 40], [100, 100, 140, 140]], np.float32)
    image = painted(regions, [(PERSON, 90), (CAR, 30), (NOTHING, 80)])
    [labels] = CLASSIFICATION.labels(Scripted(), [Picture(image=image, regions=regions)], score_min=0.4)
    assert np.array_equal(labels.xyxy, regions[[0, 2]])
    assert labels.class_id.tolist() == [PERSON, NOTHING]


# --- predicting -------------------------------------------------------------------------------------------------------


def test_answers_stand_where_their_regions_are() -> None:
    regions = np.array([[100, 100, 140, 140], [0, 0, 40, 40], [50, 0, 90, 40]], np.float32)
    image = painted(regions, [(CAR, 60), (PERSON, 90), (NOTHING, 70)])
    [found] = CLASSIFICATION.predict(Scripted(), [Picture(image=image, regions=regions)])
    assert np.array_equal(found.xyxy, regions)
    assert found.class_id.tolist() == [CAR, PERSON, NOTHING]
    assert CLASSIFICATION.shown(found).class_id.tolist() == [CAR, PERSON]


def test_an_object_the_model_is_unsure_of_is_nothing() -> None:
    regions = np.array([[0, 0, 40, 40], [50, 0, 90, 40]], np.float32)
    picture = Picture(image=painted(regions, [(CAR, 24), (CAR, 26)]), regions=regions)
    assert CLASSIFICATION.predict(Scripted(), [picture], score_min=0.25)[0].class_id.tolist() == [NOTHING, CAR]


def test_many_regions_are_shown_in_groups() -> None:
    regions = np.tile(np.array([[0, 0, 40, 40]], np.float32), (2 * GROUP + 3, 1))
    model, pauses = Scripted(), []
    picture = Picture(image=np.zeros((200, 200, 3), np.uint8), regions=regions)
    [found] = CLASSIFICATION.predict(model, [picture], yield_point=lambda: pauses.append(len(model.asked)))
    assert model.asked == [GROUP, GROUP, 3]
    assert pauses == [0, 1, 2], "a pause before each group"
    assert len(found) == len(regions)


# --- judging ----------------------------------------------------------------------------------------------------------


def test_worked_example_of_accuracy() -> None:
    labels = boxes([0, 0, 9, 9], [20, 0, 29, 9], [40, 0, 49, 9], [60, 0, 69, 9], classes=[CAR, PERSON, NOTHING, NOTHING])
    found = boxes([0, 0, 9, 9], [20, 0, 29, 9], [40, 0, 49, 9], [60, 0, 69, 9], classes=[CAR, CAR, NOTHING, CAR])
    counts = CLASSIFICATION.counts(found, labels, Scoring())
    assert counts == MatchCounts(tp=2, fp=2, fn=2)
    assert counts.f1 == 0.5


def test_only_labelled_regions_count_and_unanswered_ones_are_wrong() -> None:
    labels = boxes([0, 0, 9, 9], [20, 0, 29, 9])
    extra = boxes([0, 0, 9, 9], [20, 0, 29, 9], [80, 80, 90, 90], classes=[CAR, CAR, PERSON])
    assert CLASSIFICATION.counts(extra, labels, Scoring()) == MatchCounts(tp=2, fp=0, fn=0)
    assert CLASSIFICATION.counts(boxes([0, 0, 9, 9]), labels, Scoring()) == MatchCounts(tp=1, fp=1, fn=1)


def test_a_threshold_turns_weak_objects_into_nothing() -> None:
    labels = boxes([0, 0, 9, 9], [20, 0, 29, 9], classes=[CAR, NOTHING])
    found = boxes([0, 0, 9, 9], [20, 0, 29, 9], classes=[CAR, CAR], scores=[0.6, 0.3])
    assert CLASSIFICATION.counts(found, labels, Scoring(score_min=0.25)).tp == 1
    assert CLASSIFICATION.counts(found, labels, Scoring(score_min=0.5)).tp == 2
    assert CLASSIFICATION.counts(found, labels, Scoring(score_min=0.7)).tp == 1


def test_regions_are_found_by_place_in_any_order_each_once() -> None:
    labels = boxes([0, 0, 9, 9], [20, 0, 29, 9], [20, 0, 29, 9], classes=[CAR, PERSON, BICYCLE])
    found = boxes([20, 0.4, 29, 9], [0, 0, 9.3, 9], [20, 0, 29, 9], classes=[BICYCLE, CAR, PERSON])
    assert CLASSIFICATION.counts(found, labels, Scoring()).tp == 3
    moved = boxes([23, 0, 32, 9], classes=[PERSON])
    assert CLASSIFICATION.counts(moved, boxes([20, 0, 29, 9], classes=[PERSON]), Scoring()).tp == 0


@given(st.lists(st.tuples(st.integers(0, NOTHING), st.integers(0, NOTHING)), min_size=1, max_size=40), st.randoms())
def test_quality_is_accuracy(pairs: list[tuple[int, int]], random: object) -> None:
    xyxy = [[10.0 * i, 0.0, 10.0 * i + 8, 8.0] for i in range(len(pairs))]
    order = list(range(len(pairs)))
    random.shuffle(order)  # type: ignore[attr-defined]
    labels = boxes(*xyxy, classes=[wanted for wanted, _ in pairs])
    found = boxes(*[xyxy[i] for i in order], classes=[pairs[i][1] for i in order])
    right = sum(wanted == said for wanted, said in pairs)
    assert CLASSIFICATION.counts(found, labels, Scoring()).f1 == pytest.approx(right / len(pairs))


# --- learning ---------------------------------------------------------------------------------------------------------


def test_a_crowded_picture_is_thinned_out_evenly() -> None:
    model = Scripted()
    n = 10 * LEARN_MAX
    target = boxes(*[[i, 0, i + 5, 5] for i in range(n)], classes=[i % 8 for i in range(n)])
    CLASSIFICATION.loss(model, [np.zeros((50, 600, 3), np.uint8)], [target])
    assert model.asked == [LEARN_MAX]


def test_labels_of_an_unknown_class_are_refused() -> None:
    model = new_detector(DetectorSpec(arch="shufflenetv2-0.5", input_px=32))
    for unknown in (-1, NOTHING + 1, 80):
        with pytest.raises(JobError, match=f"class {unknown}, which the box does not know"):
            CLASSIFICATION.loss(model, [np.zeros((50, 50, 3), np.uint8)], [boxes([0, 0, 9, 9], classes=[unknown])])


def test_one_class_only_can_be_learnt() -> None:
    model = new_detector(DetectorSpec(arch="shufflenetv2-0.5", input_px=32))
    image = np.random.default_rng(0).integers(0, 255, (60, 60, 3)).astype(np.uint8)
    target = boxes([0, 0, 30, 30], [20, 20, 60, 60], classes=[PERSON, PERSON])
    optimiser = torch.optim.AdamW([p for layer in model.trainable_layers() for p in layer.parameters()], lr=1e-2)
    for _ in range(8):
        optimiser.zero_grad()
        CLASSIFICATION.loss(model, [image], [target]).backward()
        optimiser.step()
    [found] = CLASSIFICATION.predict(model, [Picture(image=image, regions=target.xyxy)], score_min=0.0)
    assert found.class_id.tolist() == [PERSON, PERSON]
