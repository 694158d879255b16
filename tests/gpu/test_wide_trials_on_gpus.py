"""A training on two GPUs (NCCL) comes to the weights of one. Not run where there are fewer; on two cores:
tests/integration/test_wide_trials_in_processes.py."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
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
    with caplog.at_level(logging.INFO, logger="driftbox"), WideTrials(ranks, narrow_here=False).of_a_job() as widths:
        assert widths is not None
        until(widths.ready)
        list(widths.compare(detector, pictures(32), replace(CONFIG, batch=16), seed=5))
    print(caplog.text)
    assert "beta" in caplog.text


def test_a_training_moves_between_the_gpus(ranks: Ranks) -> None:
    """An epoch on one of them, two on both, one on one: the losses are those of a training that stays."""
    samples, config = pictures(10), replace(CONFIG, epochs=4)
    stays, goes = (DETECTION.load("tinydet-edge", device="cuda") for _ in range(2))
    losses = [step.epoch_loss for step in retrain(stays, samples, config, seed=5) if step.epoch_loss is not None]
    told: list[float] = []
    with WideTrials(ranks, narrow_here=False).of_a_job() as widths:
        assert widths is not None
        until(widths.ready)
        steps = widths.train(goes, samples, config, seed=5)
        for width in (1, 2, 2, 1):
            steps.width = width
            told.append(next(step.epoch_loss for step in steps if step.epoch_loss is not None))
        steps.close()
    assert told == pytest.approx(losses, rel=0.02), "half precision rounds"


def test_two_trainings_on_a_gpu_each_at_the_same_time(ranks: Ranks) -> None:
    samples = pictures(6)
    detectors = [DETECTION.load("tinydet-edge", device="cuda") for _ in range(2)]
    first, second = (ranks.retrain(detector, samples, CONFIG, seed=5, width=1) for detector in detectors)
    told = list(zip(first, second, strict=True))
    assert all(one.loss == pytest.approx(other.loss, rel=0.02) for one, other in told)


def until(true: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 300.0
    while not true():
        assert time.monotonic() < end_s
        time.sleep(0.1)
