"""Real weights on real video: conversion, detection, and a short fine-tuning that helps. Needs ../shared/data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import av
import numpy as np
import pytest
import safetensors
import torch

from models.detector import Detector
from models.evaluate import f1
from models.labelled import LabelledImage, predicted
from models.retrain import retrain
from models.tasks.detection import DETECTION
from models.unpickle import read_checkpoint
from models.zoo import load_detector
from scheduler.types import Detections, RetrainConfig

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
WEIGHTS = DATA / "weights"

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


def frames(video: str, indices: list[int]) -> list[np.ndarray]:
    wanted, found = set(indices), {}
    with av.open(str(DATA / "videos" / f"{video}.mp4")) as container:
        for i, frame in enumerate(container.decode(video=0)):
            if i in wanted:
                found[i] = frame.to_ndarray(format="rgb24")
            if i >= max(wanted):
                break
    return [found[i] for i in indices]


def labelled(golden: Detector, images: list[np.ndarray], score_min: float) -> list[LabelledImage]:
    return [LabelledImage(image=image, labels=golden.predict([image], score_min=score_min)[0]) for image in images]


@pytest.mark.parametrize("name", ["yolov8n", "yolo26n", "yolo26s"])
def test_a_real_checkpoint_becomes_safetensors_with_every_tensor(name: str) -> None:
    """Compared with the ordinary unpickler, which this project never uses elsewhere."""
    from models.ultralytics_detector import _import_library

    _import_library()
    model = torch.load(WEIGHTS / f"{name}.pt", map_location="cpu", weights_only=False)["model"]
    expected = model.float().state_dict()
    checkpoint = read_checkpoint(WEIGHTS / f"{name}.pt")
    assert set(checkpoint.state) == set(expected)
    assert all(torch.equal(checkpoint.state[k], expected[k]) for k in expected)
    assert checkpoint.meta["arch"] == name


def test_the_cache_holds_safetensors_only_afterwards() -> None:
    from models.weights import cache_dir

    read_checkpoint(WEIGHTS / "yolov8n.pt")
    kept = list((cache_dir() / "converted").iterdir())
    assert {p.suffix for p in kept} == {".safetensors", ".sha256"}
    for path in (p for p in kept if p.suffix == ".safetensors"):
        with safetensors.safe_open(str(path), framework="pt") as file:
            assert len(list(file.keys())) > 300


def human_labels(index: int) -> Detections:
    """The annotated people of one frame of PETS 2009."""
    root = ElementTree.parse(DATA / "labels" / "pets09_s2l1_view1_groundtruth.xml").getroot()
    [frame] = [f for f in root.iter("frame") if int(f.attrib["number"]) == index]
    boxes = [[float(box.attrib[k]) for k in ("xc", "yc", "w", "h")] for box in frame.iter("box")]
    centre_size = np.array(boxes, np.float32).reshape(-1, 4)
    half = centre_size[:, 2:] / 2
    xyxy = np.concatenate([centre_size[:, :2] - half, centre_size[:, :2] + half], axis=1)
    return Detections(xyxy=xyxy, score=np.ones(len(xyxy), np.float32), class_id=np.zeros(len(xyxy), np.int64))


def people_of(found: Detections) -> Detections:
    keep = found.class_id == 0
    return Detections(xyxy=found.xyxy[keep], score=found.score[keep], class_id=found.class_id[keep])


@pytest.mark.parametrize("name", ["yolov8n@640", "yolov8n@320", "yolo26n@640", "yolo26s@640"])
def test_people_are_found_where_humans_marked_them(name: str) -> None:
    indices = [50, 150, 250, 350, 450]
    detector = load_detector(name)
    pairs = [
        (people_of(detector.predict([image])[0]), human_labels(index))  # parked cars are not annotated
        for image, index in zip(frames("pets09_s2l1_view1", indices), indices, strict=True)
    ]
    assert sum(len(labels) for _, labels in pairs) > 20
    assert f1(pairs) > 0.85


def test_our_pipeline_agrees_with_the_librarys_own() -> None:
    """Same weights, same frame: our letterbox, decoding and suppression against ultralytics' predictor."""
    from models.ultralytics_detector import _import_library

    _import_library()
    from ultralytics import YOLO

    [image] = frames("pets09_s2l1_view1", [400])
    ours = load_detector("yolov8n@640").predict([image], score_min=0.25)[0]
    theirs = YOLO(str(WEIGHTS / "yolov8n.pt")).predict(image[:, :, ::-1], imgsz=640, conf=0.25, verbose=False)[0].boxes
    people = ours.class_id == 0
    expected = theirs.cls.numpy() == 0
    assert people.sum() == expected.sum()
    assert np.allclose(np.sort(ours.score[people]), np.sort(theirs.conf.numpy()[expected]), atol=0.02)
    assert np.allclose(np.sort(ours.xyxy[people], axis=0), np.sort(theirs.xyxy.numpy()[expected], axis=0), atol=2.0)


@pytest.mark.slow
def test_a_short_fine_tuning_helps_on_later_frames() -> None:
    """A view from above, far from COCO: trained on the first half, judged on later frames, both labelled by yolo26s."""
    golden = load_detector("yolo26s@640")
    train = labelled(golden, frames("overhead_street_parking", list(range(0, 360, 30))), score_min=0.35)
    judge = labelled(golden, frames("overhead_street_parking", list(range(420, 720, 30))), score_min=0.5)
    detector = load_detector("yolov8n@320")
    before = f1(predicted(detector, judge, task=DETECTION))
    for _ in retrain(detector, train, RetrainConfig(name="short", epochs=2, batch=4, layers_frac=0.4, lr=4e-4), seed=0):
        pass
    after = f1(predicted(detector, judge, task=DETECTION))
    assert after > before + 0.2, f"{before:.3f} -> {after:.3f}"
