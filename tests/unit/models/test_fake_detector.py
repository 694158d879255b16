"""The fake's script: its F1 follows its skill, deterministically."""

from __future__ import annotations

import numpy as np
import pytest

from models.evaluate import f1, match_counts
from models.fake import FakeDetector, scripted_image
from models.labelled import LabelledImage, predicted
from models.tasks.detection import DETECTION

WORLD = [LabelledImage(image=image, labels=labels) for image, labels in map(scripted_image, range(150))]


def test_a_scripted_picture_is_reproducible_and_labelled() -> None:
    image, labels = scripted_image(7, n_objects=5)
    again, _ = scripted_image(7, n_objects=5)
    assert np.array_equal(image, again)
    assert len(labels) == 5
    assert not np.array_equal(image, scripted_image(8)[0])


@pytest.mark.parametrize("skill", [0.0, 0.3, 0.6, 0.9, 1.0])
def test_f1_follows_skill(skill: float) -> None:
    assert f1(predicted(FakeDetector(skill=skill), WORLD, task=DETECTION)) == pytest.approx(skill, abs=0.05)


def test_what_is_found_stays_found_when_the_skill_grows() -> None:
    low, high = FakeDetector(skill=0.4), FakeDetector(skill=0.7)
    for (a, labels), (b, _) in zip(
        predicted(low, WORLD[:20], task=DETECTION), predicted(high, WORLD[:20], task=DETECTION), strict=True
    ):
        assert match_counts(a, labels).tp <= match_counts(b, labels).tp


def test_training_moves_the_skill_to_the_ceiling_and_not_beyond() -> None:
    import torch

    detector = FakeDetector(skill=0.2, ceiling=0.8)
    optimiser = torch.optim.SGD([p for layer in detector.trainable_layers() for p in layer.parameters()], lr=0.05)
    for _ in range(60):
        optimiser.zero_grad()
        detector.loss([WORLD[0].image], [WORLD[0].labels]).backward()
        optimiser.step()
    assert detector.skill == pytest.approx(0.8, abs=0.05)


def test_a_rehearsed_failure_survives_cloning() -> None:
    twin = FakeDetector(fails_with=MemoryError("rehearsed")).clone()
    with pytest.raises(MemoryError, match="rehearsed"):
        twin.loss([WORLD[0].image], [WORLD[0].labels])
