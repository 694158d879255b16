"""Every kind of detector on a CUDA GPU: it sees, learns, imitates and is kept as on the processor. Needs torch, torchvision, numpy,
opencv, ultralytics and the weights that come with the package. `tests/unit/models/test_detectors_on_a_device.py` asks the same without
a GPU.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from models.detector import Detector, DetectorSpec
from models.fake import scripted_image
from models.labelled import LabelledImage
from models.precision import device_of
from models.retrain import retrain, student
from models.serving.served import ServedDetector, open_form
from models.serving.torch_runtime import TorchRuntime
from models.tasks.classification import CLASSIFICATION
from models.tasks.detection import DETECTION
from models.zoo import is_classifier, load_detector, new_detector
from scheduler.types import Detections, RetrainConfig
from tests.support.networks import settled

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(120),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU"),
]

SIZES = {"tinydet-edge": 256, "tinydet-golden": 320, "ssdlite320": 320, "yolov8n": 160, "mobilenetv2-0.25": 64}
#: Scores and features differ by what TF32 rounds.
SCORE, FEATURES = 0.02, 0.02


@pytest.fixture(scope="module", params=SIZES)
def near(request: pytest.FixtureRequest) -> Detector:
    """The demo's models as they come with the package, the others with random weights. No test changes it."""
    arch = request.param
    if arch.startswith("tinydet"):
        return load_detector(arch)
    return settled(new_detector(DetectorSpec(arch=arch, input_px=SIZES[arch]), seed=3))


@pytest.fixture(scope="module")
def far(near: Detector) -> Detector:
    return new_detector(near.spec, state=near.state(), device="cuda")


def lessons() -> tuple[list[np.ndarray], list[Detections]]:
    pairs = [scripted_image(seed, n_objects=4) for seed in range(4)]
    return [image for image, _ in pairs], [labels for _, labels in pairs]


def lowest_score(detector: Detector) -> float:
    """Where detectors with random weights report something."""
    return 0.25 if detector.spec.arch.startswith("tinydet") else 0.005 if detector.spec.arch.startswith("ssd") else 1e-6


def nearly_same(found: list[Detections], expected: list[Detections]) -> bool:
    """The best of what was found: boxes at the threshold, and the order of equal scores, come and go with rounding."""
    pairs = [(a.score[:5], b.score[:5]) for a, b in zip(found, expected, strict=True)]
    return all(len(a) == len(b) and np.allclose(a, b, atol=SCORE) for a, b in pairs)


def test_it_sees_what_it_sees_on_the_processor(near: Detector, far: Detector) -> None:
    images, _ = lessons()
    images.append(np.ascontiguousarray(images[0][:64]))
    assert device_of(far.trainable_layers()).type == "cuda"
    assert nearly_same(far.predict(images, score_min=lowest_score(near)), near.predict(images, score_min=lowest_score(near)))
    ours, theirs = far.embed(images), near.embed(images)
    assert ours.dtype == np.float32
    assert np.abs(ours - theirs).max() <= FEATURES * np.abs(theirs).max()


def test_it_learns_there_in_the_precision_of_the_gpu(far: Detector) -> None:
    images, labels = lessons()
    config = RetrainConfig(name="c", epochs=6, batch=2, lr=1e-3)
    task = CLASSIFICATION if is_classifier(far.spec.arch) else DETECTION
    model = student(far, config)
    samples = [LabelledImage(image=image, labels=label) for image, label in zip(images, labels, strict=True)]
    losses = [step.epoch_loss for step in retrain(model, samples, config, seed=0, task=task) if step.epoch_loss is not None]
    print(f"{far.spec.arch}: {losses}")
    assert min(losses[-2:]) < losses[0]
    assert all(torch.isfinite(tensor).all() for tensor in model.state().values())


def test_it_imitates_a_teacher_there(far: Detector) -> None:
    images, _ = lessons()
    pupil, teacher = far.clone(), far.clone()
    alike = float(pupil.distill_loss(images[:2], teacher).detach())
    with torch.no_grad():
        for layer in pupil.trainable_layers():
            for parameter in layer.parameters():
                parameter.mul_(1.05)
    loss = pupil.distill_loss(images[:2], teacher)
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.device.type == "cuda"
    assert float(loss.detach()) > 10 * abs(alike)


def test_its_state_comes_to_the_processor_and_a_clone_is_a_copy(near: Detector, far: Detector) -> None:
    state, expected = far.state(), near.state()
    assert all(tensor.device.type == "cpu" and torch.equal(tensor, expected[name]) for name, tensor in state.items())
    twin = far.clone()
    twin.load_state({name: tensor + 1 if tensor.is_floating_point() else tensor for name, tensor in state.items()})
    assert device_of(twin.trainable_layers()).type == "cuda"
    after = far.state()
    assert all(torch.equal(tensor, after[name]) for name, tensor in state.items())


def test_its_body_serves_the_same_boxes(near: Detector, far: Detector) -> None:
    images, _ = lessons()
    runtime = TorchRuntime(device="cuda")
    served = ServedDetector(far, runtime, partial(open_form, runtime))
    served.prepare(images[0])
    found = served.predict(images, score_min=lowest_score(near))
    assert served.last_error == ""
    assert nearly_same(found, far.predict(images, score_min=lowest_score(near)))
