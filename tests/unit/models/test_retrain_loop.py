"""The training loop: what an iteration is, what is trained on, that it can be cut anywhere, and how it fails."""

from __future__ import annotations

import copy
import gc
import math
import tracemalloc
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from configs.errors import JobError, UsageError
from models.augment import Augmentation
from models.detector import DetectorSpec
from models.evaluate import f1
from models.fake import FakeDetector, scripted_image
from models.labelled import LabelledImage, predicted
from models.retrain import (
    BALANCE_MAX,
    END_LR_FRAC,
    Step,
    balance_weights,
    lr_factor,
    n_iterations,
    n_replayed,
    n_used,
    repeated,
    retrain,
    student,
)
from models.tasks.detection import DETECTION, DetectionTask
from models.tasks.registry import task_of
from models.tinydet import TinyDetector
from models.torch_support import torch_threads
from models.zoo import new_detector
from scheduler.types import Detections, RetrainConfig

CONFIG = RetrainConfig(name="test", epochs=2, batch=4, lr=0.05)

#: Copies that `Linear.clone` made and that somebody still holds.
ALIVE: list[weakref.ref[Linear]] = []


class Linear:
    """A detector with three layers and a convex loss: the mean of what it sees, so the order of pictures can matter."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.spec = DetectorSpec(arch="linear", input_px=8)
        self.layers = [nn.Linear(1, 1) for _ in range(3)]
        self.seen: list[list[int]] = []
        self.distilled: list[list[int]] = []

    def loss(self, images: Sequence[np.ndarray], targets: Sequence[Detections]) -> torch.Tensor:
        self.seen.append([int(image[0, 0, 0]) for image in images])
        x = torch.tensor([[float(image[0, 0, 0]) / 255] for image in images])
        for layer in self.layers:
            x = layer(x)
        return (x - 1).square().mean()

    def trainable_layers(self) -> list[nn.Module]:
        return list(self.layers)

    def distill_loss(self, images: Sequence[np.ndarray], teacher: Linear) -> torch.Tensor:
        """How far the weights are apart, so that a strong pull keeps them where they were."""
        assert teacher is not self
        self.distilled.append([int(image[0, 0, 0]) for image in images])
        pairs = zip(self.layers, teacher.layers, strict=True)
        return torch.stack([(own.weight - other.weight.detach()).square().sum() for own, other in pairs]).sum()

    def clone(self) -> Linear:
        twin = copy.deepcopy(self)
        twin.seen, twin.distilled = [], []
        ALIVE.append(weakref.ref(twin))
        return twin

    def weights(self) -> torch.Tensor:
        return torch.cat([p.detach().flatten() for layer in self.layers for p in layer.parameters()])


def pictures(n: int, first: int = 0) -> list[LabelledImage]:
    """Pictures whose first pixel is their number."""
    return [LabelledImage(image=np.full((8, 8, 3), first + i, np.uint8), labels=Detections.empty()) for i in range(n)]


def shown(*classes: int, number: int = 0) -> LabelledImage:
    """A picture that shows these classes; its first pixel is its number."""
    labels = Detections(
        xyxy=np.tile(np.array([[1, 1, 6, 6]], np.float32), (len(classes), 1)), score=np.ones(len(classes), np.float32),
        class_id=np.array(classes, np.int64),
    )  # fmt: skip
    return LabelledImage(image=np.full((8, 8, 3), number, np.uint8), labels=labels)


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
        {"replay_frac": 1.0}, {"replay_frac": -0.1}, {"lr": 0.0}, {"head_neurons": -1}, {"distill": -0.1},
        {"distill": math.inf}, {"distill": math.nan},
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


# --- distillation -----------------------------------------------------------------------------------------------------


def test_without_replay_every_picture_distils_with_it_only_older_ones() -> None:
    detector = Linear()
    run(detector, 6, distill=1.0, epochs=1)
    assert sorted(i for [i] in detector.distilled) == list(range(6))
    detector = Linear()
    run(detector, 6, replay=6, replay_frac=0.5, distill=1.0, epochs=1)
    assert sorted(i for [i] in detector.distilled) == sorted(i for [i] in detector.seen if i >= 100)
    assert len(detector.distilled) == 6
    detector = Linear()
    run(detector, 6, replay=6, replay_frac=0.5, distill=1.0, epochs=1, micro_batch=4)
    assert sorted(i for micro in detector.distilled for i in micro) == list(range(100, 106))


def test_no_distillation_without_wanting_it() -> None:
    detector = Linear()
    run(detector, 6)
    assert detector.distilled == []


def test_distillation_keeps_the_model_near_its_teacher() -> None:
    def moved(distill: float) -> float:
        detector = Linear()
        detector.prefers_sgd = True  # type: ignore[attr-defined]  # follows the slope; Adam's steps would hide the pull
        before = [layer.weight.detach().clone() for layer in detector.layers]
        run(detector, 6, epochs=20, distill=distill)
        return sum(float((layer.weight - b).detach().abs().sum()) for layer, b in zip(detector.layers, before, strict=True))

    assert moved(0.0) > 0.05
    assert moved(3.0) < 0.5 * moved(0.0)


def test_the_loss_is_that_of_the_labels_plus_the_weighted_distance() -> None:
    class Apart(Linear):
        def distill_loss(self, images: Sequence[np.ndarray], teacher: Linear) -> torch.Tensor:
            return self.layers[0].weight.sum() * 0 + 3.0

    plain = run(Linear(), 4, epochs=1)[0].loss
    assert run(Apart(), 4, epochs=1, distill=0.5)[0].loss == pytest.approx(plain + 0.5 * 3.0)
    assert run(Apart(), 4, epochs=1, distill=0.5, micro_batch=4)[0].loss == pytest.approx(
        run(Linear(), 4, epochs=1, micro_batch=4)[0].loss + 1.5
    )


@pytest.mark.parametrize("micro_batch", [2, 3])
def test_splitting_a_batch_does_not_change_a_distilled_result(micro_batch: int) -> None:
    one, other = Linear(), Linear()
    for detector, size in ((one, 1), (other, micro_batch)):
        run(detector, 8, replay=4, replay_frac=0.3, distill=2.0, micro_batch=size)
    assert torch.allclose(one.weights(), other.weights(), atol=1e-6)


def test_a_given_teacher_is_asked_and_not_changed() -> None:
    teacher = Linear()
    with torch.no_grad():
        teacher.layers[0].weight.fill_(3.0)
    before, detector = teacher.weights(), Linear()
    steps = retrain(detector, pictures(6), replace(CONFIG, distill=5.0, epochs=20), seed=0, teacher=teacher)  # type: ignore[arg-type]
    start = float(detector.layers[0].weight.detach())
    list(steps)
    assert torch.equal(teacher.weights(), before)
    assert all(p.grad is None for layer in teacher.layers for p in layer.parameters())
    assert abs(float(detector.layers[0].weight.detach()) - 3.0) < abs(start - 3.0), "pulled towards it"


# --- class balance ----------------------------------------------------------------------------------------------------


def test_balance_worked_example() -> None:
    """Class 0 in 8 pictures, class 1 in 4, class 2 in 1; the last shows nothing: 8/8, 8/4, 8/1 cut to 4, 1."""
    presence = np.zeros((14, 3), bool)
    presence[:8, 0] = True
    presence[8:12, 1] = True
    presence[12] = (False, False, True)
    expected = [1.0] * 8 + [2.0] * 4 + [BALANCE_MAX, 1.0]
    assert balance_weights(presence).tolist() == expected
    presence[0, 2] = True  # two pictures now show class 2: a picture counts as its rarest class
    assert balance_weights(presence)[0] == 4.0


@given(st.integers(0, 30), st.integers(0, 2**32 - 1), st.floats(0, 1))
def test_balance_weights_are_bounded_and_even_without_rare_classes(n: int, seed: int, density: float) -> None:
    presence = np.random.default_rng(seed).random((n, 4)) < density
    weights = balance_weights(presence)
    assert weights.shape == (n,)
    assert ((weights >= 1) & (weights <= BALANCE_MAX)).all()
    assert (balance_weights(np.ones((n, 4), bool)) == 1).all()
    assert (balance_weights(np.zeros((n, 4), bool)) == 1).all()


@given(st.lists(st.floats(1, BALANCE_MAX), min_size=1, max_size=40), st.integers(0, 2**32 - 1))
def test_each_picture_is_drawn_as_often_as_its_weight_says_rounded(weights: list[float], seed: int) -> None:
    w = np.array(weights)
    drawn = repeated(w, np.random.default_rng(seed))
    assert len(drawn) == len(w)
    assert (np.diff(drawn) >= 0).all()
    expected = w * len(w) / w.sum()
    counts = np.bincount(drawn, minlength=len(w))
    assert (counts >= np.floor(expected - 1e-9)).all()
    assert (counts <= np.ceil(expected + 1e-9)).all()


def test_rare_classes_are_shown_more_often_and_the_epoch_stays_as_long() -> None:
    samples = [shown(0, number=i) for i in range(18)] + [shown(1, number=50), shown(1, number=51)]

    def counts(balance: bool) -> tuple[int, int]:
        detector = Linear()
        config = replace(CONFIG, balance=balance, epochs=10)
        list(retrain(detector, samples, config, seed=0, augmentation=Augmentation.none()))  # type: ignore[arg-type]
        numbers = [i for [i] in detector.seen]
        return len(numbers), sum(i >= 50 for i in numbers)

    assert counts(False) == (200, 20)
    total, rare = counts(True)
    assert total == 200, "what the plan has paid for"
    assert rare == pytest.approx(200 * 8 / 26, abs=10)  # 2 pictures of weight 4 beside 18 of weight 1


def test_a_small_part_of_the_data_keeps_its_rare_pictures() -> None:
    samples = [shown(0, number=i) for i in range(60)] + [shown(1, number=100 + i) for i in range(6)]
    kept = []
    for seed in range(30):
        detector = Linear()
        config = replace(CONFIG, balance=True, epochs=1, data_frac=0.2)
        list(retrain(detector, samples, config, seed=seed, augmentation=Augmentation.none()))  # type: ignore[arg-type]
        kept.append(len({i for [i] in detector.seen if i >= 100}))
    assert np.mean(kept) > 2, "uniformly it would be 1.2 of 13"


def test_older_pictures_are_balanced_too() -> None:
    older = [shown(0, number=100 + i) for i in range(30)] + [shown(1, number=200)]

    def seen(balance: bool) -> int:
        detector = Linear()
        config = replace(CONFIG, balance=balance, epochs=40, replay_frac=0.25)
        samples = [shown(0, number=i) for i in range(9)]
        list(retrain(detector, samples, config, seed=0, replay=older, augmentation=Augmentation.none()))  # type: ignore[arg-type]
        return sum(i == 200 for [i] in detector.seen)

    assert seen(True) > 2 * seen(False)


# --- what every knob must keep ----------------------------------------------------------------------------------------

ALL_KNOBS = replace(CONFIG, epochs=2, batch=3, layers_frac=0.5, replay_frac=0.3, distill=1.0, balance=True, lr=2e-3)


def rendered(n: int, seed: int, classes: tuple[int, ...] = (2,)) -> list[LabelledImage]:
    """Grey pictures with bright blocks; colour tells the class. A detector can learn them in seconds."""
    rng = np.random.default_rng(seed)
    colours = {2: (220, 40, 40), 0: (220, 110, 110), 4: (40, 60, 230)}
    samples = []
    for _ in range(n):
        image = rng.integers(80, 110, (96, 128, 3)).astype(np.uint8)
        boxes, ids = [], []
        for column, class_id in enumerate(classes):
            x, y = 64 * column + rng.integers(2, 18), rng.integers(4, 56)
            w, h = rng.integers(24, 44), rng.integers(20, 36)
            image[y : y + h, x : x + w] = colours[class_id]
            boxes.append((x, y, x + w, y + h))
            ids.append(class_id)
        labels = Detections(xyxy=np.array(boxes, np.float32), score=np.ones(len(ids), np.float32), class_id=np.array(ids))
        samples.append(LabelledImage(image=image, labels=labels))
    return samples


def trained_twice(model: Callable[[], Any], seeds: tuple[int, int] = (5, 5), **how: Any) -> bool:
    """Whether two trainings from the same weights, with every knob on, end with the same bits."""

    def weights(seed: int) -> list[torch.Tensor]:
        detector = model()
        list(retrain(detector, rendered(4, 1, (2, 0)), ALL_KNOBS, seed=seed, replay=rendered(4, 2), **how))
        return [detector.weights()] if isinstance(detector, Linear) else list(detector.state().values())

    with torch_threads(1):
        return all(torch.equal(a, b) for a, b in zip(*map(weights, seeds), strict=True))


@pytest.mark.parametrize("model", [Linear, lambda: TinyDetector("tinydet-edge", seed=3)], ids=["linear", "tinydet"])
def test_two_runs_give_the_same_bits_with_every_knob_on(model: Callable[[], Any]) -> None:
    assert trained_twice(model)


@pytest.mark.parametrize(("arch", "task"), [("mobilenetv2-0.25", "classification"), ("yolov8n", "detection")])
def test_two_runs_of_a_real_network_give_the_same_bits(arch: str, task: str) -> None:
    """A classifier, and a detector with a loss of its own; weights are random ones."""
    model = partial(new_detector, DetectorSpec(arch=arch, input_px=64), seed=3)
    assert trained_twice(model, task=task_of(task))
    assert not trained_twice(model, seeds=(5, 6), task=task_of(task)), "the seed decides"


def test_closing_anywhere_leaves_nothing_behind() -> None:
    detector = TinyDetector("tinydet-edge", seed=3)
    hooks = lambda: sum(len(m._forward_hooks) + len(m._backward_hooks) for m in detector.net.modules())  # noqa: E731
    for n in (0, 1, 3):
        steps = retrain(detector, rendered(4, 1), ALL_KNOBS, seed=5, replay=rendered(4, 2))
        for _ in range(n):
            next(steps)
        steps.close()
        assert hooks() == 0
        assert all(p.requires_grad and p.grad is None for p in detector.net.parameters())


def test_two_hundred_cancelled_trainings_keep_no_teacher_and_no_memory() -> None:
    detector, samples, older = Linear(), pictures(6), pictures(6, first=100)

    def cancelled() -> None:
        steps = retrain(detector, samples, ALL_KNOBS, seed=0, replay=older)  # type: ignore[arg-type]
        next(steps)
        next(steps)
        steps.close()
        detector.seen.clear()
        detector.distilled.clear()

    ALIVE.clear()
    for _ in range(20):
        cancelled()

    def grown() -> int:
        gc.collect()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(200):
            cancelled()
        gc.collect()
        after = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        return after - before

    # Threads that other tests have left count too: what is kept by the training itself is kept every time.
    assert min(grown() for _ in range(3)) < 64 * 2**10
    assert len(ALIVE) == 620, "each made a teacher"
    assert not [ref for ref in ALIVE if ref() is not None], "gone with its generator, without waiting for the collector"


@given(
    st.integers(1, 25), st.integers(0, 25), st.integers(1, 9), st.integers(1, 4), st.floats(0.05, 1), st.floats(0, 0.9),
    st.integers(0, 2**16),
)  # fmt: skip
def test_balance_and_distillation_change_no_number_of_iterations(
    n: int, older: int, batch: int, micro_batch: int, data_frac: float, replay_frac: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    samples = [shown(*np.flatnonzero(rng.random(7) < 0.3).tolist()) for _ in range(n + older)]
    config = replace(CONFIG, batch=batch, data_frac=data_frac, replay_frac=replay_frac, balance=True, distill=1.0, epochs=1)
    detector = Linear()
    steps = list(
        retrain(detector, samples[:n], config, seed=seed, replay=samples[n:], micro_batch=micro_batch)  # type: ignore[arg-type]
    )
    assert len(steps) == n_iterations(config, n, n_replay=older, micro_batch=micro_batch)
    assert sum(len(seen) for seen in detector.seen) == n_used(config, n) + n_replayed(config, n_used(config, n), older)


# --- the model that is trained ----------------------------------------------------------------------------------------


def test_a_student_is_a_copy_and_an_added_layer_is_for_classifiers() -> None:
    serving = FakeDetector(skill=0.4)
    copied = student(serving, CONFIG)
    assert copied is not serving
    assert copied.state() == serving.state()
    with pytest.raises(UsageError, match="only classifiers"):
        student(serving, replace(CONFIG, head_neurons=64))


def test_a_classifier_gets_the_added_layer_and_learns_with_every_knob() -> None:
    from models.classifier import Classifier
    from models.tasks.classification import CLASSIFICATION

    serving = Classifier(DetectorSpec(arch="mobilenetv2", input_px=64), seed=1)
    config = replace(ALL_KNOBS, head_neurons=16, layers_frac=0.05, epochs=4, lr=2e-2)
    pupil = student(serving, config, seed=2)
    assert (serving.head_neurons, pupil.head_neurons) == (0, 16)  # type: ignore[attr-defined]
    steps = list(
        retrain(pupil, rendered(4, 1, (2, 0)), config, seed=5, replay=rendered(2, 2), task=CLASSIFICATION, teacher=serving)
    )
    epochs = [s.epoch_loss for s in steps if s.epoch_loss is not None]
    assert epochs[-1] < epochs[0]
    assert serving.head_neurons == 0


class Colours:
    """A small classifier of the boxes in a picture by their mean colour: learns in milliseconds, and forgets as fast."""

    def __init__(self) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.net = nn.Sequential(nn.Linear(3, 24), nn.Tanh(), nn.Linear(24, 7))
        self.spec = DetectorSpec(arch="colours", input_px=8)

    def logits(self, image: np.ndarray, labels: Detections) -> torch.Tensor:
        boxes = labels.xyxy.astype(int)
        means = np.array([image[y1:y2, x1:x2].mean((0, 1)) / 128 - 1 for x1, y1, x2, y2 in boxes], np.float32)
        return self.net(torch.from_numpy(means.reshape(-1, 3)))

    def loss(self, images: Sequence[np.ndarray], targets: Sequence[Detections]) -> torch.Tensor:
        losses = [
            nn.functional.cross_entropy(self.logits(image, labels), torch.from_numpy(labels.class_id.astype(np.int64)))
            for image, labels in zip(images, targets, strict=True)
        ]
        return torch.stack(losses).mean()

    def trainable_layers(self) -> list[nn.Module]:
        return [self.net[0], self.net[2]]

    def clone(self) -> Colours:
        return copy.deepcopy(self)

    def right_frac(self, samples: Sequence[LabelledImage]) -> float:
        hits = [self.logits(s.image, s.labels).argmax(1).numpy() == s.labels.class_id for s in samples]
        return float(np.concatenate(hits).mean())


class ColourTask(DetectionTask):
    """Distils on the labelled boxes, as classification does on its regions."""

    def distill_loss(self, model: Any, images: Any, targets: Any, teacher: Any) -> torch.Tensor:
        pairs = zip(images, targets, strict=True)
        both = [(model.logits(i, t), teacher.logits(i, t).detach()) for i, t in pairs]
        kl = nn.functional.kl_div
        return torch.stack(
            [kl(a.log_softmax(1), b.log_softmax(1), log_target=True, reduction="batchmean") for a, b in both]
        ).mean()


def test_a_class_that_appears_later_is_learned_while_the_old_ones_stay() -> None:
    """iCaRL's case: red and blue blocks in one window, only pink ones in the next."""
    first, later = rendered(24, 1, (2, 4)), rendered(24, 2, (0,))
    old, new = rendered(24, 98, (2, 4)), rendered(24, 99, (0,))
    config = RetrainConfig(name="keep", epochs=12, batch=4, lr=1e-2)
    task = ColourTask()

    def after(serving: Any, samples: list[LabelledImage], **knobs: Any) -> Any:
        changed = replace(config, **knobs)
        pupil = student(serving, changed)
        list(retrain(pupil, samples, changed, seed=0, replay=first, teacher=serving, task=task))
        return pupil

    serving = after(Colours(), first)
    assert (serving.right_frac(old), serving.right_frac(new)) == (1.0, 0.0)
    forgets = after(serving, later)
    assert forgets.right_frac(new) == 1.0
    assert forgets.right_frac(old) < 0.6, "without anything against it the old classes go"
    keeps = after(serving, later, replay_frac=0.4, distill=1.0, balance=True)
    assert (keeps.right_frac(old), keeps.right_frac(new)) == (1.0, 1.0)
