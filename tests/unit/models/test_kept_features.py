"""Features of a frozen trunk: worked out once, the same bits, charged in full; never for a model whose trunk learns."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from models.augment import Augmentation
from models.classifier import Classifier
from models.detector import DetectorSpec
from models.fake import FakeDetector, scripted_image
from models.kept_features import KeptFeatures
from models.labelled import LabelledImage
from models.microprofile_run import LENDING_EPOCHS, Trials, microprofile, trials_of
from models.retrain import retrain, student, trains_head_only
from models.tasks.classification import CLASSIFICATION
from scheduler.types import Detections, ProfileTrial, RetrainConfig
from tests.support.keeping import Keeping, Layered
from tests.support.networks import settled

HEAD = RetrainConfig(name="head", epochs=2, batch=2, layers_frac=0.05, lr=3e-3, head_neurons=16)
WHOLE = RetrainConfig(name="whole", epochs=2, batch=2, layers_frac=1.0, lr=3e-4, head_neurons=16)


class Clock:
    """Stands still but for what a network's pass costs."""

    def __init__(self, pass_s: float = 1.0) -> None:
        self.now_s, self.pass_s, self.passes = 0.0, pass_s, 0

    def __call__(self) -> float:
        return self.now_s

    def trunk(self, batch: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        self.now_s += self.pass_s
        return batch.flatten(1).sum(dim=1, keepdim=True)


def batch(seed: int, n: int = 3) -> torch.Tensor:
    return torch.rand(n, 3, 4, 4, generator=torch.Generator().manual_seed(seed))


# --- the store --------------------------------------------------------------------------------------------------------


def test_a_batch_goes_through_the_trunk_once_for_all_views() -> None:
    clock = Clock(pass_s=2.0)
    first = KeptFeatures(clock)
    second = first.again()
    came = [first.of(batch(1), clock.trunk), second.of(batch(1), clock.trunk), second.of(batch(1), clock.trunk)]
    assert all(torch.equal(features, came[0]) for features in came)
    assert (clock.passes, first.passes, second.passes) == (1, 1, 0)
    assert (first.saved_s, second.saved_s) == (0.0, pytest.approx(4.0)), "each view knows what it was spared"


def test_other_pixels_and_another_order_are_another_batch() -> None:
    clock = Clock()
    kept = KeptFeatures(clock)
    for other in (batch(1), batch(2), batch(1).flip(0), batch(1)[:2], batch(1) + 1e-6):
        assert torch.equal(kept.of(other, clock.trunk), other.flatten(1).sum(dim=1, keepdim=True))
    assert clock.passes == 5


def test_what_inference_worked_out_can_be_learned_from() -> None:
    clock = Clock()
    kept = KeptFeatures(clock)
    with torch.inference_mode():
        kept.of(batch(1), clock.trunk)
    weight = torch.ones(1, requires_grad=True)
    (kept.again().of(batch(1), clock.trunk) * weight).sum().backward()
    assert weight.grad is not None
    assert clock.passes == 1


def test_threads_get_the_same() -> None:
    clock = Clock()
    kept, came = KeptFeatures(clock), []
    threads = [threading.Thread(target=lambda: came.append(kept.again().of(batch(1), clock.trunk))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(came) == 8
    assert all(features is came[0] for features in came)


# --- the classifier ---------------------------------------------------------------------------------------------------


def painted(seed: int) -> LabelledImage:
    """Two crops: a bright square is a car (2), a dark one a person (0)."""
    rng = np.random.default_rng(seed)
    image = rng.integers(90, 120, (64, 96, 3)).astype(np.uint8)
    image[8:40, 8:40] = rng.integers(200, 255, (32, 32, 3))
    image[8:40, 52:84] = rng.integers(0, 40, (32, 32, 3))
    labels = Detections(
        xyxy=np.array([[8, 8, 40, 40], [52, 8, 84, 40]], np.float32), score=np.ones(2, np.float32), class_id=np.array([2, 0])
    )
    return LabelledImage(image=image, labels=labels)


@pytest.fixture(scope="module")
def serving() -> Classifier:
    model = settled(Classifier(DetectorSpec(arch="shufflenetv2-0.5", input_px=32), seed=2))
    assert isinstance(model, Classifier)
    return model


TRAIN, HOLDOUT = [painted(i) for i in range(8)], [painted(100 + i) for i in range(4)]


def learned(serving: Classifier, kept: KeptFeatures | None) -> Classifier:
    detector = student(serving, HEAD, seed=0)
    assert isinstance(detector, Classifier)
    detector = detector.keeping(kept) if kept else detector
    for _ in retrain(detector, TRAIN, HEAD, seed=0, task=CLASSIFICATION, augmentation=Augmentation.none()):
        pass
    return detector


def test_a_head_learns_the_same_on_kept_features(serving: Classifier) -> None:
    ways = [learned(serving, None), learned(serving, KeptFeatures(lambda: 0.0))]
    states = [model.state() for model in ways]
    assert all(torch.allclose(states[0][name], states[1][name], atol=1e-5) for name in states[0])
    assert not torch.equal(states[0]["head.out.bias"], serving.with_head(16).state()["head.out.bias"]), "and it did learn"


def test_answers_are_the_same(serving: Classifier) -> None:
    crops = [sample.image for sample in TRAIN]
    keeping = serving.keeping(KeptFeatures(lambda: 0.0))
    for _ in range(2):
        for ours, theirs in zip(keeping.predict(crops, score_min=0.0), serving.predict(crops, score_min=0.0), strict=True):
            assert ours.class_id[0] == theirs.class_id[0]
            assert ours.score[0] == pytest.approx(theirs.score[0], abs=1e-5)


def test_a_copy_keeps_nothing(serving: Classifier) -> None:
    """A copy is made to be changed, and its trunk may learn."""
    kept = KeptFeatures(lambda: 0.0)
    keeping = serving.keeping(kept)
    for copy in (keeping.clone(), keeping.with_head(16)):
        copy.predict([TRAIN[0].image], score_min=0.0)
    assert kept.passes == 0
    keeping.predict([TRAIN[0].image], score_min=0.0)
    serving.predict([TRAIN[1].image], score_min=0.0)
    assert kept.passes == 1, "the model that it came from keeps nothing either"


def test_which_configurations_leave_the_trunk_alone(serving: Classifier) -> None:
    assert trains_head_only(serving, HEAD)
    assert not trains_head_only(serving, WHOLE)
    assert trains_head_only(serving, replace(WHOLE, layers_frac=1e-6)), "one layer trains at least, and it is the head"


# --- trials -----------------------------------------------------------------------------------------------------------


def finished(steps: Iterator[None]) -> tuple[ProfileTrial, ...]:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return tuple(end.value)


def counted(serving: Classifier, clock: Clock) -> Classifier:
    """The serving model, whose trunk (and that of all its copies) moves the clock."""

    def hook(*_: object) -> None:
        clock.trunk(torch.zeros(1, 1))

    model = serving.clone()
    model._model.trunk.register_forward_hook(hook)
    return model


def profiled(model: Any, clock: Clock, configs: Sequence[RetrainConfig], **how: Any) -> tuple[ProfileTrial, ...]:
    settings: dict[str, Any] = {"epochs": 3, "data_frac": 1.0, "seed": 0, "n_min": 2, "task": CLASSIFICATION, **how}
    return finished(microprofile(model, TRAIN, HOLDOUT, configs, budget_gpu_s=1e9, timer=clock, **settings))


#: Training a trunk takes seconds on a busy machine.
BRIEF: dict[str, Any] = {"epochs": 1, "data_frac": 0.25}


def test_head_families_share_one_pass_over_each_picture(serving: Classifier) -> None:
    configs = [HEAD, replace(HEAD, name="wide", head_neurons=32), replace(HEAD, name="fast", lr=1e-2)]
    clock = Clock()
    trials = profiled(counted(serving, clock), clock, configs, keep_features=True)
    assert clock.passes == len(TRAIN) + len(HOLDOUT), "not three families by three epochs"
    assert [len(t.quality) for t in trials] == [4, 4, 4]


def test_without_it_every_epoch_pays(serving: Classifier) -> None:
    clock = Clock()
    profiled(counted(serving, clock), clock, [HEAD])
    assert clock.passes == 3 * len(TRAIN) + 4 * len(HOLDOUT)


def test_a_trial_is_charged_what_a_real_epoch_will_cost(serving: Classifier) -> None:
    """The plan pays for retrainings, which keep nothing."""
    clock, plain = Clock(), Clock()
    configs = [HEAD, replace(HEAD, name="fast", lr=1e-2)]
    for trial in profiled(counted(serving, clock), clock, configs, keep_features=True, epochs=2):
        assert trial.gpu_s_per_epoch == pytest.approx(len(TRAIN) * clock.pass_s)
    (ordinary,) = profiled(counted(serving, plain), plain, [HEAD], epochs=1)
    assert ordinary.gpu_s_per_epoch == pytest.approx(len(TRAIN) * plain.pass_s)


def test_a_trial_shows_the_same_whoever_ran_before(serving: Classifier) -> None:
    wide = replace(HEAD, name="wide", head_neurons=32)
    alone = profiled(serving, Clock(), [wide], keep_features=True, epochs=1)
    after = profiled(serving, Clock(), [HEAD, wide], keep_features=True, epochs=1)
    assert after[1].quality == alone[0].quality


def test_families_that_train_the_trunk_run_as_before(serving: Classifier) -> None:
    kept, plain = (profiled(serving, Clock(), [WHOLE], keep_features=keep, **BRIEF) for keep in (True, False))
    assert kept[0].quality == plain[0].quality


def test_which_trials_are_run_of_a_classifier(serving: Classifier) -> None:
    half, longer = replace(WHOLE, name="half", layers_frac=0.5), replace(HEAD, name="longer", epochs=9)

    def run(*configs: RetrainConfig, lend: bool = True, epochs: int = 3) -> Trials:
        return trials_of(serving, configs, epochs=epochs, data_frac=0.5, lend=lend)

    lending = Trials(configs=(longer,), epochs=LENDING_EPOCHS, data_frac=1.0, lending=True)
    assert run(half, WHOLE, HEAD, longer) == lending, "the head's, by its longest, on all that there is"
    assert run(HEAD, longer) == lending, "also where there is nobody to lend to"
    assert run(HEAD, longer, epochs=8).epochs == 8
    assert run(half, HEAD, longer, lend=False) == Trials(configs=(half, longer), epochs=3, data_frac=0.5)
    assert run(half, WHOLE) == Trials(configs=(half, WHOLE), epochs=3, data_frac=0.5), "there is nobody to borrow from"


def test_the_serving_model_keeps_nothing_afterwards(serving: Classifier) -> None:
    clock = Clock()
    model = counted(serving, clock)
    profiled(model, clock, [HEAD], keep_features=True)
    before = clock.passes
    for _ in range(2):
        model.predict([TRAIN[0].image], score_min=0.0)
    assert clock.passes == before + 2


def test_more_pictures_for_what_is_cheap(serving: Classifier) -> None:
    head, whole = profiled(serving, Clock(), [HEAD, WHOLE], **BRIEF, kept_data_frac=0.75, keep_features=True)
    assert (head.n_profiled, whole.n_profiled) == (6, 2)
    head, _ = profiled(serving, Clock(), [HEAD, WHOLE], **BRIEF, kept_data_frac=0.75)
    assert head.n_profiled == 2, "nothing is kept, so nothing is cheap"


def test_a_detector_that_cannot_keep_is_tried_as_ever() -> None:
    data = [LabelledImage(image=i, labels=t) for i, t in (scripted_image(k) for k in range(20))]
    config = RetrainConfig(name="a", epochs=3, batch=4, lr=0.02)
    ways = [
        finished(
            microprofile(
                FakeDetector(skill=0.4), data[:12], data[12:], [config], epochs=3, data_frac=1.0, budget_gpu_s=1e9, seed=0,
                timer=lambda: 0.0, keep_features=keep,
            )
        )
        for keep in (True, False)
    ]  # fmt: skip
    assert ways[0] == ways[1]


@pytest.mark.parametrize(
    ("model", "keep", "lend", "names"),
    [
        (Keeping, True, True, ["head"]),
        (Keeping, True, False, ["head", "whole"]),
        (Keeping, False, True, ["head", "whole"]),  # nothing is kept, so nothing is cheap
        (Layered, True, True, ["head", "whole"]),
    ],
)  # fmt: skip
def test_only_families_that_cost_little_are_run_alone(model: Any, keep: bool, lend: bool, names: list[str]) -> None:
    data = [LabelledImage(image=i, labels=t) for i, t in (scripted_image(k) for k in range(20))]
    head = RetrainConfig(name="head", epochs=3, batch=4, lr=0.02, layers_frac=0.5)
    whole = replace(head, name="whole", layers_frac=1.0)

    def trials(configs: Sequence[RetrainConfig], lend: bool) -> tuple[ProfileTrial, ...]:
        return finished(
            microprofile(
                model(skill=0.4), data[:12], data[12:], configs, epochs=2, data_frac=0.5, budget_gpu_s=1e9, seed=0,
                n_min=2, timer=lambda: 0.0, keep_features=keep, lend=lend,
            )
        )  # fmt: skip

    found = trials([head, whole], lend)
    assert [t.config.name for t in found] == names
    assert found[0] == trials([head], lend)[0], "a trial shows the same whoever else is tried"
    epochs, pictures = (LENDING_EPOCHS, 12) if len(names) == 1 else (2, 6)
    assert [(len(t.quality), t.n_profiled) for t in found] == [(1 + epochs, pictures)] * len(names)


# --- judging by fewer pictures ----------------------------------------------------------------------------------------


class Judged(FakeDetector):
    """Remembers how many pictures it was asked about, its copies with it."""

    def __init__(self, asked: list[int], **options: Any) -> None:
        super().__init__(**options)
        self.asked = asked

    def predict(self, images: Sequence[np.ndarray], **how: Any) -> list[Detections]:
        self.asked.append(len(images))
        return super().predict(images, **how)

    def clone(self) -> Judged:
        return Judged(self.asked, skill=self.skill, ceiling=self._ceiling)


SCRIPTED = [LabelledImage(image=i, labels=t) for i, t in (scripted_image(k) for k in range(60))]


def scripted_trial(judged_frac: float, *, lr: float = 0.02, skill: float = 0.4) -> tuple[ProfileTrial, int]:
    asked: list[int] = []
    config = RetrainConfig(name="a", epochs=2, batch=4, lr=lr)
    (trial,) = finished(
        microprofile(
            Judged(asked, skill=skill), SCRIPTED[:20], SCRIPTED[20:], [config], epochs=2, data_frac=1.0, budget_gpu_s=1e9, seed=0,
            timer=lambda: 0.0, judged_frac=judged_frac,
        )
    )  # fmt: skip
    return trial, sum(asked)


def test_fewer_pictures_are_judged() -> None:
    (whole, asked), (half, fewer) = scripted_trial(1.0), scripted_trial(0.5)
    assert asked == 3 * 40
    assert fewer == 40 + 2 * 20, "the serving model on all of them"
    assert half.quality[0] == whole.quality[0]
    assert len(half.quality) == len(whole.quality) == 3


def test_a_model_that_did_not_change_is_judged_as_it_was() -> None:
    """On half of the pictures it may look better or worse than on all; the difference to the serving model is nothing."""
    trial, _ = scripted_trial(0.25, lr=1e-9)
    assert trial.quality == (pytest.approx(trial.quality[0]),) * 3


def test_differences_come_near_those_on_all_pictures() -> None:
    whole, half = scripted_trial(1.0)[0], scripted_trial(0.5)[0]
    won = whole.quality[-1] - whole.quality[0]
    assert won > 0.05
    assert half.quality[-1] - half.quality[0] == pytest.approx(won, abs=0.1)


def test_a_quality_stays_between_nothing_and_everything() -> None:
    trial, _ = scripted_trial(0.05, lr=0.2, skill=0.9)
    assert all(0.0 <= quality <= 1.0 for quality in trial.quality)
