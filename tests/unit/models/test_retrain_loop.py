"""The training loop: what an iteration is, what is trained on, that it can be cut anywhere, and how it fails."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from configs.errors import JobError
from models.augment import Augmentation
from models.detector import DetectorSpec
from models.evaluate import f1
from models.fake import FakeDetector, scripted_image
from models.labelled import LabelledImage, predicted
from models.retrain import END_LR_FRAC, Step, lr_factor, n_iterations, n_used, retrain
from models.tasks.detection import DETECTION
from scheduler.types import Detections, RetrainConfig

CONFIG = RetrainConfig(name="test", epochs=2, batch=4, lr=0.05)


class Linear:
    """A detector with three layers and a convex loss: the mean of what it sees, so the order of pictures can matter."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.spec = DetectorSpec(arch="linear", input_px=8)
        self.layers = [nn.Linear(1, 1) for _ in range(3)]
        self.seen: list[list[int]] = []

    def loss(self, images: Sequence[np.ndarray], targets: Sequence[Detections]) -> torch.Tensor:
        self.seen.append([int(image[0, 0, 0]) for image in images])
        x = torch.tensor([[float(image[0, 0, 0]) / 255] for image in images])
        for layer in self.layers:
            x = layer(x)
        return (x - 1).square().mean()

    def trainable_layers(self) -> list[nn.Module]:
        return list(self.layers)

    def weights(self) -> torch.Tensor:
        return torch.cat([p.detach().flatten() for layer in self.layers for p in layer.parameters()])


def pictures(n: int, first: int = 0) -> list[LabelledImage]:
    """Pictures whose first pixel is their number."""
    return [LabelledImage(image=np.full((8, 8, 3), first + i, np.uint8), labels=Detections.empty()) for i in range(n)]


def run(detector: Linear, n: int = 6, *, replay: int = 0, micro_batch: int = 1, seed: int = 0, **changes: object) -> list[Step]:
    config = replace(CONFIG, **changes)
    steps = retrain(
        detector,  # type: ignore[arg-type]
        pictures(n),
        config,
        seed=seed,
        micro_batch=micro_batch,
        replay=pictures(replay, first=100),
        augmentation=Augmentation.none(),
    )
    return list(steps)


def test_one_iteration_per_next() -> None:
    detector = Linear()
    steps = retrain(detector, pictures(3), CONFIG, seed=0)  # type: ignore[arg-type]
    assert detector.seen == [], "nothing happens before the first next"
    next(steps)
    assert len(detector.seen) == 1
    next(steps)
    assert len(detector.seen) == 2


@pytest.mark.parametrize("micro_batch", [1, 2, 3])
def test_steps_are_counted_and_epochs_end(micro_batch: int) -> None:
    detector = Linear()
    steps = run(detector, 6, micro_batch=micro_batch)
    per_epoch = {1: 6, 2: 3, 3: 3}[micro_batch]  # batches of 4 and 2
    assert [s.iteration for s in steps] == list(range(1, 2 * per_epoch + 1))
    assert {s.n_iterations for s in steps} == {2 * per_epoch} == {n_iterations(CONFIG, 6, micro_batch=micro_batch)}
    assert [s.epoch for s in steps] == [1] * per_epoch + [2] * per_epoch
    assert [s.epoch_loss is not None for s in steps] == ([False] * (per_epoch - 1) + [True]) * 2


def test_epoch_loss_is_the_mean_over_its_pictures() -> None:
    steps = run(Linear(), 5, epochs=1)
    assert steps[-1].epoch_loss == pytest.approx(np.mean([s.loss for s in steps]))


def test_every_picture_once_per_epoch_in_a_new_order() -> None:
    detector = Linear()
    run(detector, 30, batch=30)
    order = [i for [i] in detector.seen]
    assert sorted(order[:30]) == sorted(order[30:]) == list(range(30))
    assert order[:30] != order[30:]


@pytest.mark.parametrize("micro_batch", [2, 4])
def test_splitting_a_batch_does_not_change_the_result(micro_batch: int) -> None:
    one, other = Linear(), Linear()
    run(one, 10, micro_batch=1)
    run(other, 10, micro_batch=micro_batch)
    assert torch.allclose(one.weights(), other.weights(), atol=1e-6)


def test_same_seed_same_weights_other_seed_other_weights() -> None:
    def weights(seed: int) -> torch.Tensor:
        detector = Linear()
        run(detector, 10, seed=seed)
        return detector.weights()

    assert torch.equal(weights(1), weights(1))
    assert not torch.equal(weights(1), weights(2))


def test_global_random_state_is_left_alone() -> None:
    detector = Linear()
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    run(detector, 6)
    assert torch.equal(torch.rand(1), expected)


def test_the_loss_falls() -> None:
    steps = run(Linear(), 8, epochs=30)
    epochs = [s.epoch_loss for s in steps if s.epoch_loss is not None]
    assert epochs[-1] < 0.2 * epochs[0]


@pytest.mark.parametrize(("layers_frac", "n_trained"), [(1.0, 3), (0.67, 2), (0.34, 1), (0.01, 1)])
def test_only_the_last_layers_train(layers_frac: float, n_trained: int) -> None:
    detector = Linear()
    before = [layer.weight.detach().clone() for layer in detector.layers]
    run(detector, 4, layers_frac=layers_frac)
    changed = [not torch.equal(b, layer.weight) for b, layer in zip(before, detector.layers, strict=True)]
    assert changed == [False] * (3 - n_trained) + [True] * n_trained
    assert all(p.requires_grad for layer in detector.layers for p in layer.parameters()), "unfrozen afterwards"


def test_data_frac_takes_a_part_and_keeps_to_it() -> None:
    detector = Linear()
    run(detector, 20, data_frac=0.3)
    seen = [i for [i] in detector.seen]
    assert len(seen) == 12
    assert len(set(seen)) == 6 == n_used(replace(CONFIG, data_frac=0.3), 20)


def test_replay_makes_up_its_part_of_each_epoch() -> None:
    detector = Linear()
    config = replace(CONFIG, replay_frac=0.25, batch=40)
    run(detector, 12, replay=50, replay_frac=0.25, batch=40)
    seen = [i for [i] in detector.seen]
    assert len(seen) == 32 == n_iterations(config, 12, n_replay=50)
    for epoch in (seen[:16], seen[16:]):
        assert sum(i >= 100 for i in epoch) == 4
        assert sorted(i for i in epoch if i < 100) == list(range(12))
    assert set(seen[:16]) != set(seen[16:]), "a fresh draw of older pictures each epoch"


def test_too_few_older_pictures_are_all_used_once() -> None:
    detector = Linear()
    run(detector, 12, replay=2, replay_frac=0.5, epochs=1)
    assert sum(i >= 100 for [i] in detector.seen) == 2


def test_no_replay_without_older_pictures_or_without_wanting_it() -> None:
    for replay, frac in ((0, 0.5), (5, 0.0)):
        detector = Linear()
        run(detector, 4, replay=replay, replay_frac=frac, epochs=1)
        assert len(detector.seen) == 4


def test_a_detector_may_prefer_sgd() -> None:
    """A weight without gradient stays under SGD; without any, Adam would not move it either, so the sizes of steps tell."""

    class Steep(Linear):
        def loss(self, images: Sequence[np.ndarray], targets: Sequence[Detections]) -> torch.Tensor:
            return 0.01 * self.layers[2].weight.sum()

    def moved(prefers_sgd: bool) -> float:
        detector = Steep()
        detector.prefers_sgd = prefers_sgd  # type: ignore[attr-defined]
        before = detector.layers[2].weight.item()
        run(detector, 4, epochs=1, lr=0.1)  # one update
        return abs(detector.layers[2].weight.item() - before)

    assert moved(False) == pytest.approx(0.1, rel=0.01), "AdamW: lr, whatever the slope"
    assert moved(True) == pytest.approx(2 * 0.1 * 0.01 * 1.9, rel=0.05), "Nesterov SGD: follows the slope"


def test_closing_stops_and_unfreezes() -> None:
    detector = Linear()
    steps = retrain(detector, pictures(8), replace(CONFIG, layers_frac=0.3), seed=0)  # type: ignore[arg-type]
    next(steps)
    assert not detector.layers[0].weight.requires_grad
    steps.close()
    assert all(p.requires_grad and p.grad is None for layer in detector.layers for p in layer.parameters())
    with pytest.raises(StopIteration):
        next(steps)


def test_nothing_to_train_on() -> None:
    with pytest.raises(JobError) as caught:
        retrain(FakeDetector(), [], CONFIG, seed=0)
    assert caught.value.code == "no_data"


def test_a_loss_that_is_not_a_number_ends_the_job() -> None:
    with pytest.raises(JobError) as caught:
        list(retrain(FakeDetector(nan_loss=True), pictures(2), CONFIG, seed=0))
    assert caught.value.code == "nan"
    assert caught.value.subject == "test"


def test_an_infinite_gradient_ends_the_job_before_the_weights_are_touched() -> None:
    class Explodes(Linear):
        def loss(self, images: Sequence[np.ndarray], targets: Sequence[Detections]) -> torch.Tensor:
            return self.layers[0].weight.sub(self.layers[0].weight.detach()).sqrt().sum()  # value 0, slope infinite

    detector = Explodes()
    before = detector.weights()
    with pytest.raises(JobError) as caught:
        list(retrain(detector, pictures(4), CONFIG, seed=0))  # type: ignore[arg-type]
    assert caught.value.code == "nan"
    assert torch.equal(before, detector.weights())


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    ],
)
def test_out_of_memory_has_its_own_code(error: Exception) -> None:
    with pytest.raises(JobError) as caught:
        list(retrain(FakeDetector(fails_with=error), pictures(2), CONFIG, seed=0))
    assert caught.value.code == "out_of_memory"


def test_other_errors_pass_through_and_unfreeze() -> None:
    detector = FakeDetector(fails_with=RuntimeError("shape mismatch"))
    with pytest.raises(RuntimeError, match="shape mismatch"):
        list(retrain(detector, pictures(2), CONFIG, seed=0))
    assert all(p.requires_grad for layer in detector.trainable_layers() for p in layer.parameters())


@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": 0}, {"batch": 0}, {"layers_frac": 0.0}, {"layers_frac": 1.1}, {"data_frac": 0.0},
        {"replay_frac": 1.0}, {"replay_frac": -0.1}, {"lr": 0.0},
    ],
)  # fmt: skip
def test_configurations_out_of_range_are_refused_at_once(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="out of range"):
        retrain(FakeDetector(), pictures(2), replace(CONFIG, **wrong), seed=0)  # type: ignore[arg-type]


@given(
    st.integers(1, 40), st.integers(0, 40), st.integers(1, 9), st.integers(1, 4), st.integers(1, 3),
    st.floats(0.05, 1), st.floats(0, 0.9),
)  # fmt: skip
def test_the_announced_number_of_iterations_is_the_true_one(
    n: int, n_replay: int, batch: int, micro_batch: int, epochs: int, data_frac: float, replay_frac: float
) -> None:
    changes = {"batch": batch, "epochs": epochs, "data_frac": data_frac, "replay_frac": replay_frac}
    steps = run(Linear(), n, replay=n_replay, micro_batch=micro_batch, **changes)
    assert len(steps) == steps[0].n_iterations
    config = replace(CONFIG, **changes)  # type: ignore[arg-type]
    assert len(steps) == n_iterations(config, n, n_replay=n_replay, micro_batch=micro_batch)
    assert steps[-1].epoch_loss is not None


@given(st.integers(1, 500))
def test_learning_rate_warms_up_then_falls(n_updates: int) -> None:
    factors = [lr_factor(i, n_updates) for i in range(n_updates)]
    peak = int(np.argmax(factors))
    assert max(factors) == 1.0
    assert all(0 < f <= 1 for f in factors)
    assert (np.diff(factors[: peak + 1]) > 0).all()
    assert (np.diff(factors[peak:]) <= 0).all()
    assert math.isclose(lr_factor(n_updates, n_updates), END_LR_FRAC) or n_updates == 1


def test_a_scripted_detector_gets_better_by_the_real_loop() -> None:
    data = [LabelledImage(image=image, labels=labels) for image, labels in map(scripted_image, range(24))]
    train, holdout = data[:8], data[8:]
    detector = FakeDetector(skill=0.4, ceiling=0.9)
    before = f1(predicted(detector, holdout, task=DETECTION))
    for _ in retrain(detector, train, replace(CONFIG, epochs=10, lr=0.05), seed=0):
        pass
    assert detector.skill > 0.8
    assert f1(predicted(detector, holdout, task=DETECTION)) > before + 0.2
