"""Pruned models are narrower, still detectors, and are built again from their version's files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from configs.errors import UsageError, WeightsError
from models.compress.prune import n_weights, pruned
from models.detector import Detector, DetectorSpec
from models.fake import FakeDetector, scripted_image
from models.labelled import LabelledImage
from models.retrain import retrain
from models.serving.openvino_runtime import OpenVinoRuntime
from models.serving.served import ServedDetector, open_form
from models.versions import Manifest, load_version, save_version
from models.zoo import load_detector, new_detector
from scheduler.types import RetrainConfig

MAKERS: dict[str, Callable[[], Detector]] = {
    "tinydet-edge": lambda: load_detector("tinydet-edge"),
    "yolov8n": lambda: new_detector(DetectorSpec(arch="yolov8n", input_px=96), seed=3),
}
IMAGES = [scripted_image(seed)[0] for seed in range(3)]
LABELS = [scripted_image(seed)[1] for seed in range(3)]


@pytest.fixture(scope="module", params=MAKERS)
def pair(request: pytest.FixtureRequest) -> tuple[Detector, Detector]:
    """(as it was, pruned)."""
    whole = MAKERS[request.param]()
    return whole, pruned(whole, 0.4)


def same_answers(a: Detector, b: Detector) -> bool:
    return all(
        len(x) == len(y) and np.allclose(x.xyxy, y.xyxy, atol=0.05) and np.allclose(x.score, y.score, atol=1e-4)
        for x, y in zip(a.predict(IMAGES, score_min=1e-6), b.predict(IMAGES, score_min=1e-6), strict=True)
    )


def test_a_pruned_copy_is_narrower_and_the_original_stays(pair: tuple[Detector, Detector]) -> None:
    whole, narrow = pair
    assert n_weights(narrow) < 0.75 * n_weights(whole)
    assert narrow.spec.pruned
    assert not whole.spec.pruned
    assert whole.spec.arch == narrow.spec.arch
    fresh = MAKERS[whole.spec.arch]()
    assert all(torch.equal(tensor, fresh.state()[name]) for name, tensor in whole.state().items())


def test_it_still_detects_trains_embeds_and_clones(pair: tuple[Detector, Detector]) -> None:
    _, narrow = pair
    twin = narrow.clone()
    assert len(twin.predict(IMAGES)) == 3
    assert np.isfinite(twin.embed(IMAGES)).all()
    loss = twin.loss(IMAGES[:1], LABELS[:1])
    loss.backward()
    assert all(any(p.grad is not None for p in layer.parameters()) for layer in twin.trainable_layers())


def test_a_version_of_it_is_built_again(pair: tuple[Detector, Detector], tmp_path: Path) -> None:
    _, narrow = pair
    manifest = Manifest(id="yard-1", stream="yard", parent=None, spec=narrow.spec, config=None, window=None, created_utc=1.0)
    save_version(tmp_path, manifest, narrow.state())
    loaded = load_version(tmp_path)
    again = new_detector(loaded.manifest.spec, state=loaded.state)
    assert again.spec == narrow.spec
    assert all(torch.equal(tensor, again.state()[name]) for name, tensor in narrow.state().items())
    assert same_answers(narrow, again)


def test_its_body_serves_in_another_form(pair: tuple[Detector, Detector]) -> None:
    _, narrow = pair
    runtime = OpenVinoRuntime()
    served = ServedDetector(narrow, runtime, lambda body, shape, shown: open_form(runtime, body, shape))
    served.prepare(IMAGES[0])
    assert same_answers(narrow, served)
    assert served.memory_mib > 0


def test_the_unpruned_one_teaches_it_with_our_own_loop(pair: tuple[Detector, Detector]) -> None:
    whole, narrow = pair
    student = narrow.clone()
    before = float(student.distill_loss(IMAGES[:1], whole).detach())
    config = RetrainConfig(
        name="distil", epochs=10, batch=1, layers_frac=1.0, data_frac=1.0, lr=1e-3, replay_frac=0.0, distill=1.0
    )
    samples = [LabelledImage(image=IMAGES[0], labels=LABELS[0])]
    for step in retrain(student, samples, config, seed=1, teacher=whole):
        assert np.isfinite(step.loss)
    assert float(student.distill_loss(IMAGES[:1], whole).detach()) < before


def test_weights_of_the_unpruned_one_do_not_fit(pair: tuple[Detector, Detector]) -> None:
    whole, narrow = pair
    with pytest.raises(WeightsError, match="shape|missing"):
        narrow.clone().load_state(whole.state())
    with pytest.raises(WeightsError):
        new_detector(whole.spec, state=narrow.state())
    with pytest.raises(WeightsError, match="without its weights"):
        new_detector(narrow.spec)


def test_a_state_of_wider_or_other_layers_is_no_pruned_model(pair: tuple[Detector, Detector]) -> None:
    _, narrow = pair
    name = next(n for n, t in narrow.state().items() if t.ndim == 4)
    tensor = narrow.state()[name]
    for harmed in (torch.cat([tensor] * 9), tensor[:, :, :1], tensor[:0]):
        with pytest.raises(WeightsError):
            new_detector(narrow.spec, state={**narrow.state(), name: harmed})


def test_what_cannot_be_pruned_says_so(pair: tuple[Detector, Detector]) -> None:
    whole, narrow = pair
    with pytest.raises(UsageError, match="pruned already"):
        pruned(narrow, 0.3)
    with pytest.raises(UsageError, match="cannot be pruned"):
        pruned(FakeDetector(), 0.3)
    for ratio in (0.0, -1.0, 0.95, float("nan")):
        with pytest.raises(UsageError, match="cannot be pruned"):
            pruned(whole, ratio)


def test_attention_is_not_pruned() -> None:
    with pytest.raises(UsageError, match="attention"):
        pruned(new_detector(DetectorSpec(arch="yolo26n", input_px=64)), 0.3)
