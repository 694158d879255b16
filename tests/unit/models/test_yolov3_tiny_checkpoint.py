"""YOLOv3-tiny: a checkpoint as the library writes it is read without running it, and becomes our detector."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from models.detector import DetectorSpec
from models.fake import scripted_image
from models.labelled import LabelledImage
from models.retrain import retrain
from models.ultralytics_detector import UltralyticsDetector
from models.zoo import ZOO, load_detector
from scheduler.types import RetrainConfig


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DRIFTBOX_CACHE", str(tmp_path / "cache"))
    detector = UltralyticsDetector(DetectorSpec(arch="yolov3-tiny", input_px=96), seed=5)
    path = tmp_path / "published.pt"
    detector._model.args = {}
    detector._model.names = {i: "person" if i == 0 else f"thing {i}" for i in range(80)}
    torch.save({"model": detector._model.half(), "ema": None}, path)
    return path


@pytest.mark.parametrize("written_as", ["yolov3-tiny", "yolov3-tinyu"])
def test_a_pickled_network_is_read_by_name(checkpoint: Path, written_as: str) -> None:
    content = torch.load(checkpoint, weights_only=False)
    content["model"].yaml["yaml_file"] = f"{written_as}.yaml"
    torch.save(content, checkpoint)
    detector = load_detector(f"{checkpoint}@96")
    assert detector.spec == DetectorSpec(arch="yolov3-tiny", input_px=96)
    expected = content["model"].float().state_dict()
    assert all(torch.equal(t, expected[name]) for name, t in detector.state().items())


def test_it_trains_through_the_ordinary_loop() -> None:
    """Two scales instead of three, and its own kind of padding before a pooling layer."""
    assert ZOO["yolov3-tiny"].role == "edge"
    detector = UltralyticsDetector(DetectorSpec(arch="yolov3-tiny", input_px=96), seed=5)
    before = detector.state()
    samples = [LabelledImage(image=image, labels=labels) for image, labels in (scripted_image(seed) for seed in range(4))]
    config = RetrainConfig(name="head", epochs=1, batch=2, layers_frac=0.2, lr=1e-3)
    steps = list(retrain(detector, samples, config, seed=0))
    assert all(np.isfinite(step.loss) for step in steps)
    changed = [name for name, t in detector.state().items() if not torch.equal(t, before[name])]
    assert changed
    assert not any(name.startswith("model.0.") for name in changed), "the first layers stay as they are"
