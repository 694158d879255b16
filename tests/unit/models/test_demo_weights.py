"""The weights that come with the package do what docs/demo-models.md says: good on a clear day, bad after it, good again when
retrained on golden labels. Scenes are none of those the weights were made from."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from safetensors import safe_open

from models.tinydet import SIZES, TinyDetector, bundled_weights, load_bundled
from models.torch_support import torch_threads

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with torch_threads():
        yield


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    """scripts/make_demo_weights.py, which stands outside the packages."""
    spec = importlib.util.spec_from_file_location("make_demo_weights", ROOT / "scripts" / "make_demo_weights.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up by name
    spec.loader.exec_module(module)
    return module


def quality(maker: ModuleType, detector: TinyDetector, condition: str) -> float:
    """F1 over 36 frames: 12 of each kind of place, under one condition."""
    samples = [s for kind in maker.KINDS for s in maker.camera_frames(kind, condition, 12, 900, 16.7)]
    return float(maker.score(detector, samples))


@pytest.mark.parametrize("arch", SIZES)
def test_weights_are_small_and_say_how_they_were_made(arch: str) -> None:
    path = bundled_weights(arch)
    assert path.stat().st_size < 1_500_000
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    assert metadata["arch"] == arch
    assert "Recipe" in metadata["recipe"]
    assert set(json.loads(metadata["f1_iou30"])) >= {"day", "night", "fog"}


@pytest.mark.parametrize("condition", ["day", "night", "fog", "rain", "mix", "glare"])
def test_golden_model_is_good_in_every_condition(maker: ModuleType, condition: str) -> None:
    assert quality(maker, load_bundled("tinydet-golden"), condition) >= 0.85


def test_edge_model_is_good_by_day_and_loses_much_when_it_changes(maker: ModuleType) -> None:
    edge = load_bundled("tinydet-edge")
    day = quality(maker, edge, "day")
    assert day >= 0.8
    for condition in ("night", "fog"):
        assert quality(maker, edge, condition) <= day - 0.2


@pytest.mark.slow
def test_retraining_on_golden_labels_regains_most_of_what_was_lost(maker: ModuleType) -> None:
    """24 frames labelled by the golden model and 6 epochs are enough."""
    config = maker.RetrainConfig(name="test", epochs=6, batch=4, lr=maker.PRESETS["full"].lr)
    result = maker.regained("hall", "night", config, frames=24)
    lost, regained = result["day"] - result["before"], result["after"] - result["before"]
    assert lost > 0.3
    assert regained > 0.6 * lost
