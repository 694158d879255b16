"""Yield points between the layers of a training step: they come on the way forward and back, and change no bit of the result."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from configs.errors import JobCancelled
from models.labelled import LabelledImage
from models.microprofile_run import microprofile
from models.retrain import retrain
from models.yielding import yielding_in_training
from models.zoo import new_detector, spec_of
from scheduler.types import Detections, RetrainConfig


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(inplace=True), nn.Flatten(),
        nn.Linear(4 * 64, 1),
    )  # fmt: skip


def gradients(yielding: bool, calls: list[int]) -> list[torch.Tensor]:
    model = net()
    images = torch.linspace(0.0, 1.0, 3 * 64).reshape(1, 3, 8, 8)
    with yielding_in_training([model], (lambda: calls.append(1)) if yielding else None):
        model(images).square().sum().backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


def test_they_come_after_each_layer_forward_and_back_and_change_nothing() -> None:
    calls: list[int] = []
    plain, watched = gradients(False, calls), gradients(True, calls)
    assert len(calls) == 2 * 3
    assert len(plain) == len(watched) == 6
    assert all(torch.equal(a, b) for a, b in zip(plain, watched, strict=True))


def test_no_hook_is_left_behind() -> None:
    model, calls = net(), list[int]()
    with yielding_in_training([model, model[0]], lambda: calls.append(1)):
        model(torch.zeros(1, 3, 8, 8))
    assert len(calls) == 3  # a layer that is named twice yields once
    model(torch.zeros(1, 3, 8, 8)).sum().backward()
    assert len(calls) == 3


def test_frozen_layers_yield_on_the_way_forward_only() -> None:
    model, calls = net(), list[int]()
    model.requires_grad_(False)
    model[-1].requires_grad_(True)
    with yielding_in_training([model], lambda: calls.append(1)):
        model(torch.zeros(1, 3, 8, 8)).sum().backward()
    assert len(calls) == 3 + 1


@pytest.mark.parametrize("at", [2, 5])
def test_what_a_yield_point_raises_ends_the_step(at: int) -> None:
    """At call 2 it is on the way forward, at call 5 on the way back."""
    model, calls = net(), list[int]()

    def cancel() -> None:
        calls.append(1)
        if len(calls) == at:
            raise JobCancelled("job a was cancelled", subject="a")

    with pytest.raises(JobCancelled, match="a was cancelled"), yielding_in_training([model], cancel):
        model(torch.zeros(1, 3, 8, 8)).sum().backward()
    assert len(calls) == at


def lessons(n: int) -> list[LabelledImage]:
    rng = np.random.default_rng(3)
    labels = Detections(
        xyxy=np.array([[20, 20, 90, 90]], np.float32), score=np.ones(1, np.float32), class_id=np.zeros(1, np.int64)
    )
    return [LabelledImage(image=rng.integers(0, 255, (120, 160, 3), np.uint8), labels=labels) for _ in range(n)]


def test_a_retraining_gives_the_same_weights_with_them() -> None:
    config, calls = RetrainConfig(name="short", epochs=2, batch=2), list[int]()
    states = []
    for yield_point in (None, lambda: calls.append(1)):
        detector = new_detector(spec_of("tinydet-edge"), seed=0)
        for _ in retrain(detector, lessons(3), config, seed=0, yield_point=yield_point):
            pass
        states.append(detector.state())
    assert len(calls) > 2 * 3 * 2  # several layers, both ways, in each of six micro-batches
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_a_profiling_trial_yields_inside_its_steps_too() -> None:
    """A frame need not wait longer for a trial than for a retraining; predictions are made without gradients, so these are steps."""
    config, inside = RetrainConfig(name="short", epochs=2, batch=2), list[bool]()
    trials = microprofile(
        new_detector(spec_of("tinydet-edge"), seed=0), lessons(4), lessons(2), [config], epochs=1, data_frac=1.0, budget_gpu_s=1e9,
        seed=0, timer=lambda: 0.0, yield_point=lambda: inside.append(torch.is_grad_enabled()),
    )  # fmt: skip
    for _ in trials:
        pass
    assert any(inside)
    assert not all(inside)
