"""A training on two GPUs (NCCL) comes to the weights of one. Not run where there are fewer; on two cores:
tests/integration/test_wide_trials_in_processes.py."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from edge.gpu.nvml import DeviceReader
from models.fake import scripted_image
from models.labelled import LabelledImage
from models.retrain import retrain
from models.tasks.detection import DETECTION
from models.wide import Ranks
from models.wide_trials import WideTrials
from scheduler.types import RetrainConfig

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two CUDA GPUs")]

CONFIG = RetrainConfig(name="wide", epochs=2, batch=4, lr=1e-3)


@pytest.fixture
def ranks() -> Iterator[Ranks]:
    made = Ranks([gpu.facts.uuid for gpu in DeviceReader().read().devices[:2]])
    yield made
    made.close()


def pictures(n: int) -> list[LabelledImage]:
    return [LabelledImage(image=image, labels=labels) for image, labels in (scripted_image(i) for i in range(n))]


def test_the_weights_are_those_of_one_gpu(ranks: Ranks) -> None:
    samples = pictures(10)
    alone, wide = (DETECTION.load("tinydet-edge", device="cuda") for _ in range(2))
    losses = [step.epoch_loss for step in retrain(alone, samples, CONFIG, seed=5) if step.epoch_loss is not None]
    told = [step.epoch_loss for step in ranks.retrain(wide, samples, CONFIG, seed=5) if step.epoch_loss is not None]
    assert told == pytest.approx(losses, rel=0.02), "half precision rounds"


def test_beta_is_measured(ranks: Ranks, caplog: pytest.LogCaptureFixture) -> None:
    detector = DETECTION.load("tinydet-edge", device="cuda")
    with caplog.at_level(logging.INFO, logger="driftbox"), WideTrials(ranks).of_a_job() as trainer:
        list(trainer(detector, pictures(32), replace(CONFIG, batch=16), seed=5))
    print(caplog.text)
    assert "beta" in caplog.text
