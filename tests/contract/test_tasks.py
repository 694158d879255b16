"""One contract, run over every task: what `models.tasks.base.Task` promises and the jobs of the box rely on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from configs.units import NOTHING
from models.detector import Detector, DetectorSpec
from models.evaluate import MatchCounts
from models.tasks.base import Picture, Scoring, Task
from models.tasks.classification import CLASSIFICATION
from models.tasks.detection import DETECTION
from models.tasks.registry import problems_of, task_of
from models.torch_support import torch_threads
from models.zoo import new_detector
from scheduler.types import Detections
from tests.support.networks import settled
from tests.support.plug_ins import installed_example, occupied_picture


@dataclass(frozen=True, kw_only=True)
class Case:
    """A task with a small model of its own, a golden one, and a maker of pictures with labels (by seed)."""

    task: Task
    model: Callable[[], Detector]
    golden: Callable[[], Detector]
    picture: Callable[[int], tuple[Picture, Detections]]


SPEC = DetectorSpec(arch="shufflenetv2-0.5", input_px=32)
REGIONS = np.array([[10, 10, 40, 50], [50, 20, 70, 40], [90, 60, 120, 90]], np.float32)


def classified_picture(seed: int) -> tuple[Picture, Detections]:
    """Three coloured things and what they are: the last one is nothing."""
    rng = np.random.default_rng(seed)
    image = rng.integers(90, 110, (96, 128, 3)).astype(np.uint8)
    for (x1, y1, x2, y2), channel in zip(REGIONS.astype(int).tolist(), (0, 1, 2), strict=True):
        image[y1:y2, x1:x2, channel] = 250
    labels = Detections(xyxy=REGIONS, score=np.ones(3, np.float32), class_id=np.array([2, 0, NOTHING]))
    return Picture(image=image, regions=REGIONS), labels


def detected_picture(seed: int) -> tuple[Picture, Detections]:
    picture, labels = classified_picture(seed)
    things = labels.class_id != NOTHING
    objects = Detections(xyxy=labels.xyxy[things], score=labels.score[things], class_id=labels.class_id[things])
    return Picture(image=picture.image), objects


def classifier() -> Detector:
    return settled(new_detector(SPEC, seed=1))


def tinydet(arch: str, input_px: int) -> Callable[[], Detector]:
    return lambda: new_detector(DetectorSpec(arch=arch, input_px=input_px), seed=1)


@pytest.fixture(scope="module", params=["detection", "classification", "occupied"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    if request.param == "detection":
        yield Case(
            task=DETECTION, model=tinydet("tinydet-edge", 256), golden=tinydet("tinydet-golden", 320), picture=detected_picture
        )
    elif request.param == "classification":
        yield Case(
            task=CLASSIFICATION, model=classifier, golden=tinydet("tinydet-golden", 320),
            picture=classified_picture,
        )  # fmt: skip
    else:
        with installed_example(tmp_path_factory.mktemp("site")):
            yield Case(
                task=task_of("occupied"), model=classifier, golden=tinydet("tinydet-golden", 320),
                picture=occupied_picture,
            )  # fmt: skip


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    with torch_threads():
        yield


def test_it_has_every_method(case: Case) -> None:
    assert problems_of(case.task) == []
    assert case.task.name
    assert case.task.quality_name


def test_predictions_have_the_promised_form(case: Case) -> None:
    pictures = [case.picture(seed)[0] for seed in range(2)]
    results = case.task.predict(case.model(), pictures, score_min=0.0)
    assert len(results) == len(pictures)
    for picture, found in zip(pictures, results, strict=True):
        assert found.xyxy.dtype == np.float32
        assert found.score.dtype == np.float32
        assert found.class_id.dtype == np.int64
        assert ((found.score >= 0) & (found.score <= 1)).all()
        assert ((found.class_id >= 0) & (found.class_id <= NOTHING)).all()
        if case.task.wants_regions:
            assert picture.regions is not None
            assert np.array_equal(found.xyxy, picture.regions), "an answer for every region"


def test_no_pictures_give_no_answers(case: Case) -> None:
    assert case.task.predict(case.model(), []) == []
    assert case.task.labels(case.golden(), [], score_min=0.4) == []


def test_people_see_objects_only(case: Case) -> None:
    picture, labels = case.picture(0)
    for found in (labels, case.task.predict(case.model(), [picture], score_min=0.0)[0]):
        seen = case.task.shown(found)
        assert (seen.class_id != NOTHING).all()
        assert len(seen) == int((found.class_id != NOTHING).sum())


def test_what_the_labels_say_is_perfect(case: Case) -> None:
    for seed in range(2):
        _, labels = case.picture(seed)
        assert case.task.counts(labels, labels, Scoring()).f1 == 1.0
    nothing = case.task.counts(Detections.empty(), Detections.empty(), Scoring())
    assert nothing == MatchCounts()
    assert nothing.f1 == 1.0


def test_counts_are_of_the_labels_and_quality_falls_with_wrong_ones(case: Case) -> None:
    _, labels = case.picture(0)
    right = case.task.counts(labels, labels, Scoring())
    wrong = Detections(xyxy=labels.xyxy, score=labels.score, class_id=(labels.class_id + 1) % (NOTHING + 1))
    counted = case.task.counts(wrong, labels, Scoring())
    for counts in (right, counted):
        assert counts.tp + counts.fn == len(labels), "every label is found or missed"
        assert min(counts.tp, counts.fp, counts.fn) >= 0
    assert counted.f1 < right.f1
    assert case.task.counts(Detections.empty(), labels, Scoring()).f1 == 0.0


def test_golden_labels_feed_the_loss(case: Case) -> None:
    picture, _ = case.picture(0)
    model = case.model()
    [labels] = case.task.labels(case.golden(), [picture], score_min=0.0)
    assert labels.class_id.dtype == np.int64
    loss = case.task.loss(model, [picture.image], [labels])
    assert loss.shape == ()
    assert torch.isfinite(loss)
    loss.backward()
    assert any(p.grad is not None for layer in model.trainable_layers() for p in layer.parameters())


def test_a_picture_without_labels_can_be_learnt_from(case: Case) -> None:
    picture, labels = case.picture(0)
    model = case.model()
    for images, targets in (
        ([picture.image], [Detections.empty()]),
        ([picture.image, picture.image], [Detections.empty(), labels]),
    ):
        loss = case.task.loss(model, images, targets)
        assert torch.isfinite(loss)
        loss.backward()


def test_loss_is_the_mean_over_pictures_however_they_are_split(case: Case) -> None:
    pairs = [case.picture(seed) for seed in range(3)]
    model = case.model()
    with torch.no_grad():
        whole = float(case.task.loss(model, [p.image for p, _ in pairs], [labels for _, labels in pairs]))
        alone = [float(case.task.loss(model, [p.image], [labels])) for p, labels in pairs]
    assert whole == pytest.approx(np.mean(alone), rel=1e-4)


def test_loss_falls_when_one_picture_is_learnt(case: Case) -> None:
    picture, labels = case.picture(0)
    model = case.model()
    optimiser = torch.optim.AdamW([p for layer in model.trainable_layers() for p in layer.parameters()], lr=2e-3)
    losses = []
    for _ in range(25):
        optimiser.zero_grad()
        loss = case.task.loss(model, [picture.image], [labels])
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert min(losses[-5:]) < 0.5 * max(losses)


def test_a_model_agrees_with_its_copy_and_less_with_another(case: Case) -> None:
    picture, labels = case.picture(0)
    model = case.model()
    same = case.task.distill_loss(model, [picture.image], [labels], model.clone())
    assert float(same.detach()) == pytest.approx(0.0, abs=1e-5)
    other = model.clone()
    with torch.no_grad():
        for parameter in other.trainable_layers()[-1].parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    apart = case.task.distill_loss(model, [picture.image], [labels], other)
    assert float(apart.detach()) > 1e-4
    apart.backward()
    assert any(p.grad is not None for layer in model.trainable_layers() for p in layer.parameters())


def test_a_clone_learns_alone(case: Case) -> None:
    picture, labels = case.picture(0)
    model = case.model()
    before = model.state()
    answer = case.task.predict(model, [picture], score_min=0.0)[0]
    twin = model.clone()
    optimiser = torch.optim.SGD([p for layer in twin.trainable_layers() for p in layer.parameters()], lr=0.1)
    case.task.loss(twin, [picture.image], [labels]).backward()
    optimiser.step()
    assert all(torch.equal(before[name], t) for name, t in model.state().items())
    assert any(not torch.equal(before[name], t) for name, t in twin.state().items())
    again = case.task.predict(model, [picture], score_min=0.0)[0]
    assert np.array_equal(answer.class_id, again.class_id)


def test_a_model_survives_its_state(case: Case) -> None:
    picture, _ = case.picture(0)
    model = case.model()
    with torch.no_grad():
        for layer in model.trainable_layers():
            for parameter in layer.parameters():
                parameter.mul_(0.9)
    twin = case.model()
    twin.load_state(model.state())
    a, b = (case.task.predict(m, [picture], score_min=0.0)[0] for m in (model, twin))
    assert np.array_equal(a.class_id, b.class_id)
    assert np.allclose(a.score, b.score, atol=1e-6)
    rebuilt = new_detector(model.spec, state=model.state())
    assert np.array_equal(case.task.predict(rebuilt, [picture], score_min=0.0)[0].class_id, a.class_id)


#: Regions as movement (or a person with a mouse) may give them, in a picture of 128 x 96 px.
ODD_REGIONS = {
    "none": [],
    "one pixel": [[50, 50, 51, 51]],
    "no area": [[50, 50, 50, 50]],
    "the corner pixel": [[127, 95, 128, 96]],
    "all of it": [[0, 0, 128, 96]],
    "partly outside": [[-40, -10, 20, 30]],
    "outside": [[500, 500, 600, 620], [-90, -90, -20, -30]],
    "far larger than the picture": [[-1e7, -1e7, 1e7, 1e7]],
    "a line": [[0, 40, 128, 41]],
    "corners swapped": [[60, 60, 20, 30]],
    "five hundred": [[x * 2.0, y * 2.0, x * 2 + 30.0, y * 2 + 20.0] for x in range(25) for y in range(20)],
}


@pytest.mark.parametrize("name", ODD_REGIONS)
def test_regions_of_any_kind(case: Case, name: str) -> None:
    """Handled from labelling to learning; whatever the task makes of them, quality stays between 0 and 1."""
    regions = np.array(ODD_REGIONS[name], np.float32).reshape(-1, 4)
    picture = Picture(image=case.picture(0)[0].image, regions=regions)
    model = case.model()
    [found] = case.task.predict(model, [picture], score_min=0.0)
    if case.task.wants_regions:
        assert len(found) == len(regions)
    [labels] = case.task.labels(case.golden(), [picture], score_min=0.4)
    counts = case.task.counts(found, labels, Scoring())
    assert counts.tp + counts.fn == len(labels)
    assert 0.0 <= counts.f1 <= 1.0
    marked = Detections(xyxy=regions, score=np.ones(len(regions), np.float32), class_id=np.zeros(len(regions), np.int64))
    loss = case.task.loss(model, [picture.image], [marked])
    assert torch.isfinite(loss)
    loss.backward()


@pytest.mark.parametrize("shape", [(1, 1, 3), (3, 200, 3), (200, 3, 3)])
def test_pictures_of_any_size(case: Case, shape: tuple[int, ...]) -> None:
    picture = Picture(image=np.full(shape, 120, np.uint8), regions=np.array([[0, 0, 1, 1]], np.float32))
    [found] = case.task.predict(case.model(), [picture], score_min=0.0)
    if case.task.wants_regions:
        assert len(found) == 1


def test_prediction_can_be_paused_and_ended_inside(case: Case) -> None:
    picture, _ = case.picture(0)
    model, calls = case.model(), 0

    def count() -> None:
        nonlocal calls
        calls += 1

    case.task.predict(model, [picture], yield_point=count)
    assert calls >= 1

    class Stop(Exception):
        pass

    def stop() -> None:
        raise Stop

    with pytest.raises(Stop):
        case.task.predict(model, [picture], yield_point=stop)
    case.task.predict(model, [picture])


def test_nothing_moves_and_nothing_is_computed() -> None:
    """Compute per frame depends on what happens in it."""

    class Never:
        spec = DetectorSpec(arch="never", input_px=1)

        def predict(self, *args: object, **settings: object) -> list[Detections]:
            raise AssertionError("asked without need")

    image = classified_picture(0)[0].image
    for regions in (None, np.zeros((0, 4), np.float32)):
        picture = Picture(image=image, regions=regions)
        assert len(CLASSIFICATION.predict(Never(), [picture])[0]) == 0  # type: ignore[arg-type]
        assert len(CLASSIFICATION.labels(Never(), [picture], score_min=0.4)[0]) == 0  # type: ignore[arg-type]
