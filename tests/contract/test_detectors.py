"""One contract, run over every detector: what `models.detector.Detector` promises, `retrain` and the version store rely on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

from configs.errors import WeightsError
from configs.units import CLASSES
from models.detector import Detector, DetectorSpec, KeepsFeatures, encoded_px
from models.fake import FakeDetector, scripted_image
from models.torch_support import torch_threads
from models.zoo import is_classifier, new_detector
from scheduler.types import Detections
from tests.support.networks import settled


def small(arch: str, input_px: int) -> Callable[[], Detector]:
    return lambda: settled(new_detector(DetectorSpec(arch=arch, input_px=input_px), seed=3))


#: name -> maker of a small detector with random weights.
MAKERS: dict[str, Callable[[], Detector]] = {
    "fake": lambda: FakeDetector(skill=0.3),
    "tinydet-edge": small("tinydet-edge", 256),
    "ssdlite320": small("ssdlite320", 128),
    "yolov8n": small("yolov8n", 96),
    "yolo11n": small("yolo11n", 96),
    "yolo26n": small("yolo26n", 96),
    "yolov3-tiny": small("yolov3-tiny", 96),
    "resnet18": small("resnet18", 32),
    "mobilenetv2-0.25": small("mobilenetv2-0.25", 32),
    "shufflenetv2-0.5": small("shufflenetv2-0.5", 32),
    "efficientnet-lite0": small("efficientnet-lite0", 32),
}


@pytest.fixture(scope="module", params=MAKERS)
def fresh(request: pytest.FixtureRequest) -> Detector:
    """A detector that no test changes: each works on a clone."""
    return MAKERS[request.param]()


@pytest.fixture
def detector(fresh: Detector) -> Detector:
    return fresh.clone()


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    with torch_threads():
        yield


def some_images() -> tuple[list[np.ndarray], list[Detections]]:
    """Three scripted pictures, the last of another size."""
    pairs = [scripted_image(seed, n_objects=4) for seed in range(3)]
    images, labels = [image for image, _ in pairs], [label for _, label in pairs]
    images[2] = np.ascontiguousarray(images[2][:64])
    inside = labels[2].xyxy[:, 3] <= 64
    labels[2] = Detections(xyxy=labels[2].xyxy[inside], score=labels[2].score[inside], class_id=labels[2].class_id[inside])
    return images, labels


def lowest_score(detector: Detector) -> float:
    """A threshold that lets a detector with random weights report something (their scores are tiny)."""
    return 0.005 if detector.spec.arch.startswith("ssd") else 1e-6


def same(a: Detections, b: Detections, tolerance: float = 1e-3) -> bool:
    return (
        len(a) == len(b)
        and np.allclose(a.xyxy, b.xyxy, atol=0.05)
        and np.allclose(a.score, b.score, atol=tolerance)
        and np.array_equal(a.class_id, b.class_id)
    )


def gradients(detector: Detector) -> dict[int, torch.Tensor]:
    parameters = [p for layer in detector.trainable_layers() for p in layer.parameters()]
    return {i: p.grad.clone() for i, p in enumerate(parameters) if p.grad is not None}


def test_predictions_have_the_promised_form(detector: Detector) -> None:
    images, _ = some_images()
    results = detector.predict(images, score_min=lowest_score(detector))
    assert len(results) == len(images)
    assert sum(len(r) for r in results) > 0
    for image, result in zip(images, results, strict=True):
        assert result.xyxy.dtype == np.float32
        assert result.score.dtype == np.float32
        assert result.class_id.dtype == np.int64
        assert (np.diff(result.score) <= 0).all(), "sorted by falling score"
        assert (result.xyxy[:, 2:] > result.xyxy[:, :2]).all()
        assert ((result.class_id >= 0) & (result.class_id < len(CLASSES) + is_classifier(detector.spec.arch))).all()
        if detector.spec.arch != "fake":  # the fake reports its misses beside the picture
            assert (result.xyxy >= 0).all()
            assert (result.xyxy[:, [0, 2]] <= image.shape[1]).all()
            assert (result.xyxy[:, [1, 3]] <= image.shape[0]).all()


def test_no_pictures_give_no_predictions(detector: Detector) -> None:
    assert detector.predict([]) == []


def test_score_min_is_kept(detector: Detector) -> None:
    images, _ = some_images()
    low = lowest_score(detector)
    scores = np.concatenate([r.score for r in detector.predict(images, score_min=low)])
    cut = float(np.median(scores))
    for result in detector.predict(images, score_min=cut):
        assert (result.score >= cut).all()


def test_a_batch_gives_what_its_pictures_give_alone(detector: Detector) -> None:
    images, _ = some_images()
    low = lowest_score(detector)
    together = detector.predict(images, score_min=low)
    alone = [detector.predict([image], score_min=low)[0] for image in images]
    assert [len(r) for r in together] == [len(r) for r in alone]
    # Scores that tie but for rounding may change places, so compare what does not depend on order.
    for a, b in zip(together, alone, strict=True):
        assert np.allclose(np.sort(a.score), np.sort(b.score), atol=1e-4)
        assert np.allclose(np.sort(a.xyxy, axis=0), np.sort(b.xyxy, axis=0), atol=0.1)


def test_prediction_does_not_change_the_model_or_the_picture(detector: Detector) -> None:
    images, _ = some_images()
    before, pictures = detector.state(), [image.copy() for image in images]
    detector.predict(images)
    assert all(torch.equal(before[name], t) for name, t in detector.state().items())
    assert all(np.array_equal(a, b) for a, b in zip(images, pictures, strict=True))


def test_yield_point_is_called_inside_and_may_end_the_pass(detector: Detector) -> None:
    images, _ = some_images()
    calls = 0

    def count() -> None:
        nonlocal calls
        calls += 1

    detector.predict(images[:1], yield_point=count)
    assert calls >= (1 if detector.spec.arch == "fake" else 5)
    counted = calls
    detector.predict(images[:1])
    assert calls == counted, "no yield point is left behind"

    class Stop(Exception):
        pass

    def stop() -> None:
        raise Stop

    with pytest.raises(Stop):
        detector.predict(images[:1], yield_point=stop)
    detector.predict(images[:1])


def test_loss_is_a_scalar_with_gradients_for_every_layer(detector: Detector) -> None:
    images, labels = some_images()
    loss = detector.loss(images[:1], labels[:1])
    assert loss.shape == ()
    assert torch.isfinite(loss)
    loss.backward()
    for layer in detector.trainable_layers():
        assert any(p.grad is not None for p in layer.parameters())


def test_loss_takes_a_picture_without_objects(detector: Detector) -> None:
    images, _ = some_images()
    loss = detector.loss(images[:1], [Detections.empty()])
    assert torch.isfinite(loss)
    loss.backward()


def test_loss_falls_when_one_picture_is_learnt(detector: Detector) -> None:
    images, labels = some_images()
    parameters = [p for layer in detector.trainable_layers() for p in layer.parameters()]
    optimiser = torch.optim.AdamW(parameters, lr=2e-3)
    losses = []
    for _ in range(30):
        optimiser.zero_grad()
        loss = detector.loss(images[:1], labels[:1])
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
        if len(losses) >= 10 and losses[-1] < 0.8 * max(losses):  # it falls, and how far is no matter
            break
    # Losses that assign labels to the best predictions rise while a random network finds its first objects, then fall.
    assert min(losses[-10:]) < 0.93 * max(losses)


def test_loss_is_the_mean_over_pictures_however_they_are_split(detector: Detector) -> None:
    images, labels = some_images()
    whole = detector.loss(images, labels)
    whole.backward()
    together = gradients(detector)
    split = detector.clone()
    total = 0.0
    for image, label in zip(images, labels, strict=True):
        part = split.loss([image], [label]) / len(images)
        part.backward()
        total += float(part.detach())
    assert total == pytest.approx(float(whole.detach()), rel=1e-4)
    apart = gradients(split)
    assert together.keys() == apart.keys()
    for i, gradient in together.items():
        scale = float(gradient.abs().max()) + 1e-6
        assert torch.allclose(gradient, apart[i], atol=2e-3 * scale), f"parameter {i}"


def test_batch_norm_statistics_stay_frozen_in_training(detector: Detector) -> None:
    images, labels = some_images()

    def statistics(d: Detector) -> dict[str, torch.Tensor]:
        return {name: t for name, t in d.state().items() if "running_" in name or "num_batches" in name}

    before = statistics(detector)
    detector.loss(images, labels).backward()
    after = statistics(detector)
    assert all(torch.equal(before[name], after[name]) for name in before)
    if detector.spec.arch != "fake":
        assert before, "the detectors of the box have batch norm"


def test_predictions_after_training_use_the_new_weights(detector: Detector) -> None:
    images, labels = some_images()
    low = lowest_score(detector)
    before = detector.predict(images[:1], score_min=low)[0]
    optimiser = torch.optim.SGD([p for layer in detector.trainable_layers() for p in layer.parameters()], lr=0.02)
    detector.loss(images[:1], labels[:1]).backward()
    optimiser.step()
    after = detector.predict(images[:1], score_min=low)[0]
    reloaded = detector.clone()
    reloaded.load_state(detector.state())
    assert same(after, reloaded.predict(images[:1], score_min=low)[0])
    if detector.spec.arch != "fake":  # a skill moved by 0.02 may find the same objects
        assert not same(before, after, tolerance=1e-9)


def test_state_survives_safetensors(detector: Detector, tmp_path: Path) -> None:
    images, _ = some_images()
    path = tmp_path / "model.safetensors"
    safetensors.torch.save_file(detector.state(), str(path))
    other = MAKERS[next(name for name in MAKERS if name.startswith(detector.spec.arch))]()
    with torch.no_grad():
        for layer in other.trainable_layers():
            for parameter in layer.parameters():
                parameter.mul_(0.9)
    other.load_state(safetensors.torch.load_file(str(path)))
    own = detector.state()
    assert all(torch.equal(t, own[name]) for name, t in other.state().items())
    low = lowest_score(detector)
    assert same(detector.predict(images[:1], score_min=low)[0], other.predict(images[:1], score_min=low)[0])


def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(detector: Detector) -> None:
    own = detector.state()
    name = next(iter(own))
    wrong_shape = {**own, name: torch.zeros(3, 5, 7, 2, 2)}
    missing = {k: v for k, v in own.items() if k != name}
    extra = {**own, "stranger": torch.zeros(1)}
    for state in (wrong_shape, missing, extra):
        with pytest.raises(WeightsError) as caught:
            detector.load_state(state)
        assert detector.spec.arch in str(caught.value)
    assert all(torch.equal(own[k], v) for k, v in detector.state().items())


def test_a_clone_is_independent(detector: Detector) -> None:
    images, _ = some_images()
    twin = detector.clone()
    assert twin.spec == detector.spec
    before = detector.state()
    with torch.no_grad():
        for layer in twin.trainable_layers():
            for parameter in layer.parameters():
                parameter.add_(0.5)
    assert all(torch.equal(before[name], t) for name, t in detector.state().items())
    assert any(not torch.equal(before[name], t) for name, t in twin.state().items())
    detector.predict(images[:1])


def test_layers_are_modules_without_overlap(detector: Detector) -> None:
    layers = detector.trainable_layers()
    assert layers
    assert all(isinstance(layer, nn.Module) for layer in layers)
    owners = [id(p) for layer in layers for p in layer.parameters()]
    assert len(owners) == len(set(owners)), "a parameter belongs to one layer"


def copied_from(state: dict[str, torch.Tensor], like: Detector, factor: float) -> Detector:
    """`like` with every trained tensor scaled."""
    other = like.clone()
    other.load_state(state)
    with torch.no_grad():
        for layer in other.trainable_layers():
            for parameter in layer.parameters():
                parameter.mul_(factor)
    return other


def test_embeddings_are_finite_repeatable_and_tell_pictures_apart(detector: Detector) -> None:
    images, _ = some_images()
    found = detector.embed(images)
    assert found.dtype == np.float32
    assert found.shape[0] == len(images)
    assert found.shape[1] >= 4
    assert np.isfinite(found).all()
    assert np.allclose(found, detector.embed(images), atol=1e-6)
    assert np.allclose(found[1], detector.embed([images[1]])[0], rtol=1e-3, atol=1e-4), "alone as in a batch"
    assert not np.allclose(found[0], found[1], atol=1e-4)
    assert len(detector.embed([])) == 0


def test_features_of_a_prediction_are_the_embedding(detector: Detector) -> None:
    if not isinstance(detector, KeepsFeatures):
        assert is_classifier(detector.spec.arch) or isinstance(detector, FakeDetector), "detectors say both in one pass"
        return
    images, _ = some_images()
    low = lowest_score(detector)
    with detector.keeping_features() as kept:
        found = [detector.predict([image], score_min=low)[0] for image in images]
    assert len(kept) == len(images)
    assert np.allclose(np.stack(kept), np.concatenate([detector.embed([image]) for image in images]), rtol=1e-3, atol=1e-5)
    assert all(same(a, b) for a, b in zip(found, detector.predict(images, score_min=low), strict=True))
    detector.predict(images, score_min=low)
    assert len(kept) == len(images), "nobody listens any more"


def test_embedding_leaves_model_and_predictions_alone(detector: Detector) -> None:
    images, _ = some_images()
    low = lowest_score(detector)
    before, answer = detector.state(), detector.predict(images[:1], score_min=low)[0]
    detector.embed(images)
    assert all(torch.equal(before[name], t) for name, t in detector.state().items())
    assert same(answer, detector.predict(images[:1], score_min=low)[0])


def test_a_student_that_agrees_with_its_teacher_has_nothing_to_learn(detector: Detector) -> None:
    images, _ = some_images()
    loss = detector.distill_loss(images, detector.clone())
    assert loss.shape == ()
    assert float(loss.detach()) == pytest.approx(0.0, abs=1e-4)


def test_a_student_that_disagrees_learns_and_its_teacher_does_not(detector: Detector) -> None:
    images, _ = some_images()
    teacher = copied_from(detector.state(), detector, 0.9)
    before = teacher.state()
    loss = detector.distill_loss(images, teacher)
    assert float(loss.detach()) > 1e-5
    assert torch.isfinite(loss)
    loss.backward()
    for layer in detector.trainable_layers():
        assert any(p.grad is not None and torch.isfinite(p.grad).all() for p in layer.parameters())
    assert not gradients(teacher)
    assert all(torch.equal(before[name], t) for name, t in teacher.state().items())


def test_a_small_step_down_the_gradient_brings_the_answers_closer(detector: Detector) -> None:
    images, _ = some_images()
    teacher = copied_from(detector.state(), detector, 0.97)
    loss = detector.distill_loss(images[:1], teacher)
    loss.backward()
    parameters = [p for layer in detector.trainable_layers() for p in layer.parameters() if p.grad is not None]
    slope = sum(float((p.grad**2).sum()) for p in parameters if p.grad is not None)
    with torch.no_grad():
        for parameter in parameters:
            parameter -= 0.1 * float(loss.detach()) / slope * parameter.grad  # a tenth of the way, were the loss a plane
    closer = detector.distill_loss(images[:1], teacher)
    assert float(closer.detach()) < 0.98 * float(loss.detach())


def test_a_distillation_loss_is_the_mean_over_pictures(detector: Detector) -> None:
    images, _ = some_images()
    teacher = copied_from(detector.state(), detector, 0.9)
    apart = [float(detector.distill_loss([image], teacher).detach()) for image in images]
    assert float(detector.distill_loss(images, teacher).detach()) == pytest.approx(np.mean(apart), rel=1e-3)


def test_no_teacher_of_another_kind_nor_itself(detector: Detector) -> None:
    class Stranger(FakeDetector):
        pass

    images, _ = some_images()
    stranger = MAKERS["tinydet-edge"]() if detector.spec.arch == "fake" else Stranger()
    for teacher in (stranger, detector):
        with pytest.raises(ValueError, match="imitate|its own teacher"):
            detector.distill_loss(images, teacher)


def test_a_body_says_what_predict_says(detector: Detector) -> None:
    images, _ = some_images()
    low = lowest_score(detector)
    body = detector.body()
    for image in images:
        array, context = body.encode(image)
        blank = body.blank(encoded_px(array))
        assert (array.dtype, array.shape) == (blank.dtype, blank.shape)
        with torch.inference_mode():
            outputs = [output.numpy() for output in body.network(torch.from_numpy(array))]
        expected, got = detector.predict([image], score_min=low)[0], body.decode(outputs, context, low)
        assert len(got) == len(expected)
        # Scores that tie but for rounding may change places.
        assert np.allclose(np.sort(got.score), np.sort(expected.score), atol=1e-4)
        assert np.allclose(np.sort(got.xyxy, axis=0), np.sort(expected.xyxy, axis=0), atol=0.1)


def test_a_body_is_a_copy_in_evaluation_mode(detector: Detector) -> None:
    images, labels = some_images()
    body = detector.body()
    assert not any(module.training for module in body.network.modules())
    with torch.no_grad():
        for parameter in body.network.parameters():
            parameter.zero_()
    assert any(bool(t.any()) for t in detector.state().values())
    detector.loss(images[:1], labels[:1]).backward()
    assert all(p.grad is None for p in body.network.parameters())


def test_a_body_knows_the_size_of_a_wide_picture(detector: Detector) -> None:
    if detector.spec.arch == "fake":
        pytest.skip("scripted pictures have one size")
    body = detector.body()
    array, _ = body.encode(np.zeros((360, 640, 3), np.uint8))
    assert encoded_px(array) == body.example_px


def test_building_one_does_not_disturb_the_global_random_state() -> None:
    for make in MAKERS.values():
        torch.manual_seed(1)
        expected = torch.rand(1)
        torch.manual_seed(1)
        make()
        assert torch.equal(torch.rand(1), expected)
