"""Every detector on a device that is not the processor: all that meets the network was sent there, all that leaves it came back, and
the numbers are those of the processor, but for the order of sums. No GPU is needed (`tests.support.far_device`); tests/gpu has the same
on a real one.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from models.compress.prune import pruned
from models.detector import Detector, DetectorSpec
from models.embedding import FrameStats
from models.fake import scripted_image
from models.golden import Labelling, golden_steps
from models.kept_features import KeptFeatures
from models.labelled import LabelledImage
from models.microprofile_run import judged
from models.precision import FLOAT32, device_of
from models.retrain import Bookmark, retrain, settle_precision, student
from models.serving.served import ServedDetector, open_form
from models.serving.torch_runtime import TorchRuntime
from models.tasks.base import Picture, Task
from models.tasks.classification import CLASSIFICATION
from models.tasks.detection import DETECTION
from models.tinydet import TinyDetector
from models.torch_support import placed, torch_threads
from models.zoo import is_classifier, new_detector
from scheduler.types import Detections, RetrainConfig
from tests.support.far_device import FAR, DeviceMixed, Far, far_device
from tests.support.networks import settled

SPECS = {
    arch: DetectorSpec(arch=arch, input_px=input_px)
    for arch, input_px in (
        ("tinydet-edge", 256), ("tinydet-golden", 320), ("ssdlite320", 96), ("yolov8n", 64), ("yolo26n", 64),
        ("mobilenetv2-0.25", 32), ("resnet18", 32),
    )
}  # fmt: skip
#: One of each kind: each takes half a minute of two cores.
KINDS = ("tinydet-edge", "ssdlite320", "yolo26n", "mobilenetv2-0.25")
CONFIG = RetrainConfig(name="c", epochs=1, batch=2, lr=1e-4, distill=0.5)
TWICE = replace(CONFIG, epochs=2)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    with torch_threads():
        yield


@pytest.fixture(scope="module", params=KINDS)
def near(request: pytest.FixtureRequest) -> Detector:
    """On the processor; no test changes it."""
    return settled(new_detector(SPECS[request.param], seed=3))


@pytest.fixture
def far(near: Detector) -> Iterator[Detector]:
    """The same on a device, which is there as long as the test."""
    with far_device() as device:
        made = new_detector(near.spec, state=near.state(), device=device)
        assert device_of(made.trainable_layers()).type == FAR, "or nothing here says anything"
        yield made


def lessons() -> tuple[list[np.ndarray], list[Detections]]:
    """Three pictures, the last of another size and with nothing in it."""
    pairs = [scripted_image(seed, n_objects=4) for seed in range(2)]
    images, labels = [image for image, _ in pairs], [label for _, label in pairs]
    return [*images, np.ascontiguousarray(images[0][:64])], [*labels, Detections.empty()]


def task_of(detector: Detector) -> Task:
    return CLASSIFICATION if is_classifier(detector.spec.arch) else DETECTION


def pictures() -> list[Picture]:
    images, labels = lessons()
    return [Picture(image=image, regions=label.xyxy) for image, label in zip(images, labels, strict=True)]


def samples() -> list[LabelledImage]:
    return [LabelledImage(image=image, labels=labels) for image, labels in zip(*lessons(), strict=True)]


def same(ours: Detections, theirs: Detections) -> bool:
    return len(ours) == len(theirs) and np.allclose(ours.score, theirs.score, atol=1e-4)


def lowest_score(detector: Detector) -> float:
    return 0.005 if detector.spec.arch.startswith("ssd") else 1e-6


def gradients(detector: Detector) -> list[torch.Tensor | None]:
    found = [p.grad for layer in detector.trainable_layers() for p in layer.parameters()]
    return [None if gradient is None else gradient.cpu() for gradient in found]


def equal(ours: list[torch.Tensor | None], theirs: list[torch.Tensor | None]) -> bool:
    return all(
        a is b if a is None or b is None else torch.allclose(a, b, rtol=1e-2, atol=1e-3 * float(b.abs().max()))
        for a, b in zip(ours, theirs, strict=True)
    )


def lies_here(state: dict[str, torch.Tensor]) -> bool:
    return all(tensor.device.type == "cpu" and not isinstance(tensor, Far) for tensor in state.values())


# --- the device itself ------------------------------------------------------------------------------------------------


def test_the_device_refuses_what_a_gpu_refuses() -> None:
    with far_device() as device:
        layer, x = torch.nn.Conv2d(3, 4, 3).to(device), torch.ones(1, 3, 8, 8)
        for wrong in (
            lambda: layer(x),
            lambda: x.to(device) + x,
            lambda: torch.stack([x, x.to(device)]),
            lambda: torch.where(x > 0, x.to(device), 0.0),
        ):
            with pytest.raises(DeviceMixed):
                wrong()
        with pytest.raises((RuntimeError, TypeError)):
            x.to(device).numpy()
        answer = layer(x.to(device))
        assert (
            answer.device.type
            == torch.zeros(2, device=device).device.type
            == torch.tensor([1.0], device=device).device.type
            == FAR
        )
        assert (answer * 2.0).sum().item() == pytest.approx(2 * answer.cpu().sum().item())


def test_a_network_that_was_left_behind_is_seen() -> None:
    """The tests below fail for a detector that forgets its device, as they should."""
    with far_device() as device:
        detector = new_detector(SPECS["tinydet-edge"], device=device)
        assert isinstance(detector, TinyDetector)
        detector._device = torch.device("cpu")
        with pytest.raises(DeviceMixed):
            detector.predict(lessons()[0])


# --- serving ----------------------------------------------------------------------------------------------------------


def test_it_sees_what_it_sees_on_the_processor(near: Detector, far: Detector) -> None:
    images, _ = lessons()
    low, yields = lowest_score(near), []
    expected = near.predict(images, score_min=low)
    found = far.predict(images, score_min=low, yield_point=lambda: yields.append(1))
    assert sum(len(one) for one in expected) > 0
    assert all(same(a, b) for a, b in zip(found, expected, strict=True))
    assert yields
    np.testing.assert_allclose(far.embed(images), near.embed(images), rtol=1e-3, atol=1e-4)


def test_its_task_answers_and_labels_as_on_the_processor(near: Detector, far: Detector) -> None:
    task, shown, low = task_of(near), pictures(), lowest_score(near)
    for ours, theirs in zip(task.predict(far, shown, score_min=low), task.predict(near, shown, score_min=low), strict=True):
        assert same(ours, theirs)
    labelled = []
    for golden in (near, far):
        steps = golden_steps(task, golden, shown, score_min=low, labelling=Labelling(batch=2, agreement="flip"))
        while True:
            try:
                next(steps)
            except StopIteration as end:
                labelled.append(end.value)
                break
    assert all(same(a.sure, b.sure) and same(a.unsure, b.unsure) for a, b in zip(*labelled, strict=True))


def test_drift_sees_the_same_in_a_frame(near: Detector, far: Detector) -> None:
    picture, stats = pictures()[0], FrameStats(near.spec.arch)
    looks = [stats.look_at(picture, one.predict([picture.image])[0], one.embed([picture.image])[0]) for one in (near, far)]
    np.testing.assert_allclose(looks[0].embedding, looks[1].embedding, atol=1e-3)
    assert looks[0].objects == looks[1].objects


def test_its_body_is_on_the_processor_and_serves_alike(near: Detector, far: Detector) -> None:
    images, low = lessons()[0], lowest_score(near)
    body = far.body()
    assert lies_here(body.network.state_dict())
    for place in ("cpu", FAR):
        runtime = TorchRuntime(device=place)
        form = ServedDetector(far, runtime, partial(open_form, runtime))
        form.prepare(images[0])
        for image in images[:2]:
            array, context = near.body().encode(image)
            wanted = near.body().decode(
                [o.detach().numpy() for o in near.body().network(torch.from_numpy(array))], context, low
            )
            found = form.predict([image], score_min=low)[0]
            assert form.last_error == ""
            assert len(found) == len(wanted)
            np.testing.assert_allclose(found.score, wanted.score, atol=1e-4)


# --- training ---------------------------------------------------------------------------------------------------------


def test_it_learns_from_labels_as_on_the_processor(near: Detector, far: Detector) -> None:
    images, labels = lessons()
    ours, theirs = far.clone(), near.clone()
    losses = [one.loss(images, labels) for one in (ours, theirs)]
    assert losses[0].device.type == FAR
    assert float(losses[0].detach()) == pytest.approx(float(losses[1].detach()), rel=1e-4)
    for loss in losses:
        loss.backward()
    assert equal(gradients(ours), gradients(theirs))
    assert any(gradient is not None for gradient in gradients(ours))


def test_it_learns_from_a_teacher_as_on_the_processor(near: Detector, far: Detector) -> None:
    images, _ = lessons()
    losses = []
    for one in (far, near):
        pupil, teacher = one.clone(), one.clone()
        with torch.no_grad():
            for layer in pupil.trainable_layers():
                for p in layer.parameters():
                    p.mul_(1.02)
        losses.append(pupil.distill_loss(images, teacher))
        losses[-1].backward()
    assert float(losses[0].detach()) == pytest.approx(float(losses[1].detach()), rel=1e-2) != 0.0


def test_a_retraining_goes_on_there_and_is_judged(near: Detector, far: Detector) -> None:
    """With a teacher, an interruption, and the pictures that the gate looks at."""
    task, before = task_of(near), near.state()
    losses: list[list[float]] = []
    for one in (near, far):
        model, bookmark, calls = student(one, CONFIG, seed=1), Bookmark(), list[int]()
        told = {"seed": 0, "task": task, "precision": FLOAT32, "yield_point": lambda calls=calls: calls.append(1)}
        steps = retrain(model, samples(), CONFIG, teacher=one.clone(), bookmark=bookmark, **told)  # type: ignore[arg-type]
        losses.append([next(steps).loss for _ in range(3)])
        saved = bookmark.saved()
        assert saved is not None
        assert next(steps, None) is None
        again = retrain(model, samples(), TWICE, teacher=one.clone(), bookmark=Bookmark(saved), **told)  # type: ignore[arg-type]
        assert sum(1 for _ in again) == 3
        assert calls
        list(judged(samples(), task=task)(model))
        after = model.state()
        assert lies_here(after)
        assert any(not torch.equal(tensor, before[name]) for name, tensor in after.items()), "it learnt"
    assert losses[1] == pytest.approx(losses[0], rel=1e-2)


def test_no_precision_is_measured_there(far: Detector) -> None:
    assert settle_precision(far, samples(), task=task_of(far)) == FLOAT32


# --- weights ----------------------------------------------------------------------------------------------------------


def test_its_state_comes_to_the_processor_and_goes_back(near: Detector, far: Detector) -> None:
    state = far.state()
    assert lies_here(state)
    expected = near.state()
    assert all(tensor.is_contiguous() and torch.equal(tensor, expected[name]) for name, tensor in state.items())
    other = {name: tensor + 1 if tensor.is_floating_point() else tensor for name, tensor in state.items()}
    twin = far.clone()
    twin.load_state(other)
    assert device_of(twin.trainable_layers()).type == FAR
    assert all(torch.equal(tensor, other[name]) for name, tensor in twin.state().items())
    assert all(torch.equal(tensor, state[name]) for name, tensor in far.state().items()), "a clone is a copy"


def test_random_weights_do_not_depend_on_the_device() -> None:
    for arch in ("tinydet-edge", "ssdlite320", "yolov8n", "resnet18"):
        expected = new_detector(SPECS[arch], seed=7).state()
        with far_device() as device:
            found = new_detector(SPECS[arch], seed=7, device=device).state()
            assert lies_here(found)
        assert all(torch.equal(tensor, found[name]) for name, tensor in expected.items())


def test_a_detector_sent_to_another_process_stays_one_of_its_device() -> None:
    made = pickle.loads(pickle.dumps(new_detector(SPECS["tinydet-edge"])))
    assert made._device == torch.device("cpu")


# --- parts that only some have ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["tinydet-edge", "yolov8n"])
def test_a_model_is_pruned_where_it_is(arch: str) -> None:
    pytest.importorskip("torch_pruning")
    with far_device() as device:
        parts = new_detector(SPECS[arch], seed=3, device=device).pruning_parts()  # type: ignore[attr-defined]
        assert parts.example.device.type == FAR
        assert all(tensor.device.type == FAR for tensor in parts.network.state_dict().values())
        parts.network(parts.example)
    small = pruned(new_detector(SPECS[arch], seed=3), 0.5)
    with far_device() as device:
        again = new_detector(small.spec, state=small.state(), device=device)
        assert len(again.predict(lessons()[0])) == 3
        assert all(torch.equal(tensor, small.state()[name]) for name, tensor in again.state().items())


def test_an_added_layer_and_kept_features_stay_with_a_classifier() -> None:
    images, labels = lessons()
    config = RetrainConfig(name="head", epochs=1, batch=2, lr=1e-3, layers_frac=0.01, head_neurons=4)
    lesson = [LabelledImage(image=images[0], labels=labels[0])] * 3
    with far_device() as device:
        model = student(new_detector(SPECS["resnet18"], seed=3, device=device), config, seed=1)
        keeping = model.keeping(KeptFeatures(lambda: 0.0))  # type: ignore[attr-defined]
        before = model.state()
        list(retrain(keeping, lesson, config, seed=0, task=CLASSIFICATION))
        assert len(keeping.embed(images)) == 3
        changed = {name for name, tensor in model.state().items() if not torch.equal(tensor, before[name])}
    assert changed == {"head.added.weight", "head.added.bias", "head.out.weight", "head.out.bias"}


def test_golden_classifiers_answer_from_a_device() -> None:
    """Their ImageNet head sums its classes with a table of its own."""
    spec = DetectorSpec(arch="resnext101_32x8d", input_px=32)
    images, _ = lessons()
    with far_device() as device:
        golden = new_detector(spec, seed=3, device=device)
        assert [len(one) for one in golden.predict(images, score_min=0.0)] == [1, 1, 1]
        assert placed(golden._model, torch.device(device)) is golden._model  # type: ignore[attr-defined]
        assert golden.with_head(4).head_neurons == 4  # type: ignore[attr-defined]
