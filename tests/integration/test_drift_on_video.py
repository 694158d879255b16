"""Drift on real video: a still scene is left alone, dusk over it is seen. Needs ../shared/data."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch

from models.detector import Detector
from models.embedding import FrameStats
from models.tasks.base import Picture
from models.tasks.detection import DETECTION
from models.zoo import load_detector
from scheduler.drift import distance, drift, signature
from scheduler.types import Look
from streams.drift import apply
from streams.video import probe, read_frames

DATA = Path(__file__).resolve().parents[3] / "shared/data"
VIDEO = DATA / "videos/cdnet_highway.mp4"
FRAMES = 16

pytestmark = [
    pytest.mark.data,
    pytest.mark.slow,
    pytest.mark.skipif(not VIDEO.is_file(), reason="needs the weights and videos of ../shared/data"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Detector]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DRIFTBOX_WEIGHTS", str(DATA / "weights"))
        patch.setenv("DRIFTBOX_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield load_detector("yolov8n@320")
    torch.set_num_threads(before)


@cache
def pictures(half: int) -> list[Picture]:
    """FRAMES pictures of one half of the clip."""
    start = half * probe(VIDEO).frames // 2
    step = probe(VIDEO).frames // 2 // FRAMES
    return [Picture(image=image) for _, image in read_frames(VIDEO, every=step, start=start, stop=start + FRAMES * step)]


def seen(model: Detector, half: int, kind: str = "", strength: float = 0.0) -> Look:
    stats, frames = FrameStats(model.spec.arch), []
    for number, picture in enumerate(pictures(half)):
        image = apply(picture.image, kind, strength, 1, number) if kind else picture.image
        found = DETECTION.predict(model, [Picture(image=image)])[0]
        frames.append(stats.look_at(Picture(image=image), found, model.embed([image])[0]))
    return Look(version="v1", frames=tuple(frames))


def test_a_motorway_is_the_same_until_dusk_falls(model: Detector) -> None:
    reference, later, dusk = seen(model, 0), seen(model, 1), seen(model, 1, "dusk", 0.8)
    assert not drift(reference, later).drifted
    found = drift(reference, dusk)
    assert {"image", "embedding"} <= {t.name for t in found.tests if t.fired}
    assert found.magnitude > 0.3
    here, there = signature(reference), signature(later)
    assert distance(here, there) < distance(here, signature(dusk)) / 2
