"""A training that several members share does what one process does: here the members are threads that add up in memory."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch

from models.augment import Augmentation, augmented, skip_augmented
from models.detector import Detector
from models.fake import FakeDetector, scripted_image
from models.labelled import LabelledImage
from models.retrain import Step, n_iterations, retrain
from models.tinydet import TinyDetector
from scheduler.types import RetrainConfig

CONFIG = RetrainConfig(name="c", epochs=2, batch=5, lr=0.01)


def data(n: int, first: int = 0) -> list[LabelledImage]:
    return [LabelledImage(image=image, labels=labels) for image, labels in (scripted_image(first + i) for i in range(n))]


class Table:
    """Where members meet: the last to come adds up, in the order of ranks."""

    def __init__(self, size: int) -> None:
        self.given: list[list[torch.Tensor]] = [[] for _ in range(size)]
        self.sums: list[torch.Tensor] = []
        self.barrier = threading.Barrier(size, timeout=60.0)


@dataclass
class Member:
    rank: int
    size: int
    table: Table
    calls: list[int] = field(default_factory=list)

    def add_up(self, values: Sequence[torch.Tensor]) -> None:
        self.calls.append(len(values))
        self.table.given[self.rank] = [value.clone() for value in values]
        self.table.barrier.wait()
        if self.rank == 0:
            self.table.sums = [sum(parts[1:], parts[0].clone()) for parts in zip(*self.table.given, strict=True)]
        self.table.barrier.wait()
        for value, total in zip(values, self.table.sums, strict=True):
            value.copy_(total)
        self.table.barrier.wait()


def together(
    size: int, detector: FakeDetector | TinyDetector, config: RetrainConfig, n: int, **how: object
) -> tuple[list[np.ndarray], list[list[Step]]]:
    """(each member's weights, each member's steps)."""
    table, models = Table(size), [detector.clone() for _ in range(size)]
    told: list[list[Step]] = [[] for _ in range(size)]

    def run(rank: int) -> None:
        steps = retrain(models[rank], data(n), config, seed=4, team=Member(rank, size, table), **how)  # type: ignore[arg-type]
        told[rank].extend(steps)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    return [weights(model) for model in models], told


def weights(detector: Detector) -> np.ndarray:
    return np.concatenate([p.detach().numpy().ravel() for layer in detector.trainable_layers() for p in layer.parameters()])


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    ("config", "how"),
    [
        (CONFIG, {}),
        (replace(CONFIG, layers_frac=0.5, data_frac=0.5), {"micro_batch": 2}),
        (replace(CONFIG, replay_frac=0.3, distill=0.4, balance=True), {"replay": data(9, 300)}),
        (replace(CONFIG, batch=1), {}),  # fewer pictures in a batch than members
    ],
)
def test_the_weights_are_those_of_one_process(size: int, config: RetrainConfig, how: dict[str, object]) -> None:
    alone = FakeDetector(skill=0.4)
    first = weights(alone)
    steps = list(retrain(alone, data(11), config, seed=4, **how))  # type: ignore[arg-type]
    found, told = together(size, FakeDetector(skill=0.4), config, 11, **how)
    for one in found:
        np.testing.assert_array_equal(one, found[0], err_msg="every member has the same")
    assert np.abs(found[0] - first).max() > 1e-3, "it has learnt"
    np.testing.assert_allclose(found[0], weights(alone), rtol=0, atol=2e-5)
    replayed = len(how.get("replay", ()))  # type: ignore[arg-type]
    micro = int(how.get("micro_batch", 1))  # type: ignore[call-overload]
    count = n_iterations(config, 11, n_replay=replayed, micro_batch=micro, width=size)
    assert [len(t) for t in told] == [count] * size == [told[0][-1].n_iterations] * size
    assert _epoch_losses(told[1]) == pytest.approx(_epoch_losses(steps), rel=1e-4), "the loss is that of all pictures"


def _epoch_losses(steps: Sequence[Step]) -> list[float]:
    return [step.epoch_loss for step in steps if step.epoch_loss is not None]


def test_a_real_network_too() -> None:
    config = replace(CONFIG, epochs=1, batch=4, lr=1e-3)
    alone = TinyDetector("tinydet-edge", seed=1)
    list(retrain(alone, data(6), config, seed=4))
    found, _ = together(2, TinyDetector("tinydet-edge", seed=1), config, 6)
    np.testing.assert_allclose(found[0], weights(alone), rtol=0, atol=1e-4)


def test_what_another_member_augments_is_drawn_here_too() -> None:
    one, other = np.random.default_rng(3), np.random.default_rng(3)
    for picture in data(3):
        augmented(picture, Augmentation(), one)
    skip_augmented(3, other)
    assert one.random() == other.random()
