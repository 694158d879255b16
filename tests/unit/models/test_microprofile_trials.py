"""Micro-profiling runs: what is measured, in which order, within which budget."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch

from configs.errors import JobError
from models.detector import YieldPoint
from models.evaluate import f1
from models.fake import FakeDetector, scripted_image
from models.labelled import LabelledImage, predicted
from models.microprofile_run import microprofile, sample_size
from models.tasks.detection import DETECTION
from scheduler.types import Detections, ProfileTrial, RetrainConfig

LOSS_S, PREDICT_S, CLONE_S = 0.5, 0.25, 2.0


class Ticking(FakeDetector):
    """A fake whose work moves a clock that its clones share: training 0.5 s, prediction 0.25 s a picture, a clone 2 s."""

    clock: list[float]

    def __init__(self, clock: list[float], **options: float) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.clock = clock

    def predict(
        self, images: Sequence[np.ndarray], *, score_min: float = 0.25, yield_point: YieldPoint | None = None
    ) -> list[Detections]:
        self.clock[0] += PREDICT_S * len(images)
        return super().predict(images, score_min=score_min, yield_point=yield_point)

    def loss(self, images: Sequence[np.ndarray], targets: Sequence[Detections]) -> torch.Tensor:
        self.clock[0] += LOSS_S * len(images)
        return super().loss(images, targets)

    def clone(self) -> Ticking:
        self.clock[0] += CLONE_S
        twin = Ticking(self.clock, skill=self.skill, ceiling=0.9)
        twin._nan_loss = self._nan_loss
        return twin


def data(n: int, first: int = 0) -> list[LabelledImage]:
    return [LabelledImage(image=image, labels=labels) for image, labels in (scripted_image(first + i) for i in range(n))]


TRAIN, HOLDOUT = data(40), data(6, first=500)
FAST = RetrainConfig(name="fast-5", epochs=5, batch=8, lr=0.02)
SLOW = RetrainConfig(name="fast-15", epochs=15, batch=8, lr=0.02)
HALF = RetrainConfig(name="half", epochs=5, batch=8, lr=0.02, data_frac=0.5)


def finished(steps: Iterator[None]) -> tuple[int, tuple[ProfileTrial, ...]]:
    """How many iterations there were, and the answer."""
    n = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return n, end.value
        n += 1


def profile(
    detector: Ticking, configs: Sequence[RetrainConfig], *, epochs: int = 3, budget_gpu_s: float = 1e9, n_min: int = 4
) -> tuple[int, tuple[ProfileTrial, ...]]:
    return finished(
        microprofile(
            detector, TRAIN, HOLDOUT, configs, epochs=epochs, data_frac=0.1, budget_gpu_s=budget_gpu_s, seed=1,
            timer=lambda: detector.clock[0], n_min=n_min,
        )
    )  # fmt: skip


def test_a_trial_measures_quality_and_compute_apart() -> None:
    detector = Ticking([0.0], skill=0.4)
    iterations, [trial] = profile(detector, [FAST])
    assert trial.config == FAST
    assert (trial.n_profiled, trial.n_total) == (4, 40)
    assert trial.init_gpu_s == pytest.approx(CLONE_S)
    assert trial.gpu_s_per_epoch == pytest.approx(4 * LOSS_S), "evaluation is not charged to the epoch"
    assert len(trial.quality) == 4
    assert trial.quality[0] == pytest.approx(f1(predicted(FakeDetector(skill=0.4), HOLDOUT, task=DETECTION)))
    assert trial.quality[-1] > trial.quality[0]
    assert iterations == 3 * 4 + 4 * len(HOLDOUT)


def test_the_serving_model_is_left_alone() -> None:
    detector = Ticking([0.0], skill=0.4)
    profile(detector, [FAST])
    assert detector.skill == pytest.approx(0.4)


def test_configurations_that_differ_in_epochs_share_a_trial() -> None:
    _, trials = profile(Ticking([0.0]), [FAST, SLOW, HALF])
    assert [t.config.name for t in trials] == ["fast-15", "half"]
    assert all(len(t.quality) == 4 for t in trials)


def test_the_first_quality_is_measured_once_for_all() -> None:
    one, _ = profile(Ticking([0.0]), [FAST], epochs=1)
    two, trials = profile(Ticking([0.0]), [FAST, HALF], epochs=1)
    assert two - one == 4 + len(HOLDOUT)  # an epoch of the second family and its judging
    assert trials[0].quality[0] == trials[1].quality[0]


def test_the_budget_is_shared_out_epoch_by_epoch() -> None:
    full = Ticking([0.0])
    profile(full, [FAST, HALF], epochs=3)
    whole_s = full.clock[0]
    _, trials = profile(Ticking([0.0]), [FAST, HALF], epochs=3, budget_gpu_s=0.6 * whole_s)
    assert {len(t.quality) for t in trials} <= {2, 3}
    assert len(trials) == 2
    _, none = profile(Ticking([0.0]), [FAST, HALF], epochs=3, budget_gpu_s=0.0)
    assert none == ()


def test_an_overdraft_is_at_most_one_epoch() -> None:
    detector = Ticking([0.0])
    profile(detector, [FAST], epochs=50, budget_gpu_s=30.0)
    epoch_s = 4 * LOSS_S + len(HOLDOUT) * PREDICT_S
    assert 30.0 <= detector.clock[0] <= 30.0 + epoch_s


def test_an_epoch_has_as_many_updates_as_on_full_data(monkeypatch: pytest.MonkeyPatch) -> None:
    from models import microprofile_run

    asked: list[RetrainConfig] = []
    real = microprofile_run.retrain

    def spy(detector, samples, config, **kwargs):  # type: ignore[no-untyped-def]
        asked.append(config)
        return real(detector, samples, config, **kwargs)

    monkeypatch.setattr(microprofile_run, "retrain", spy)
    profile(Ticking([0.0]), [RetrainConfig(name="x", batch=20, lr=0.02)])
    assert asked[0].batch == 2  # 4 of 40 pictures: two updates, like 40 in batches of 20
    assert asked[0].epochs == 3


def test_no_data_no_trials() -> None:
    detector = Ticking([0.0])
    for train, holdout, configs in (([], HOLDOUT, [FAST]), (TRAIN, [], [FAST]), (TRAIN, HOLDOUT, [])):
        steps = microprofile(
            detector, train, holdout, configs, epochs=2, data_frac=0.1, budget_gpu_s=9.0, seed=0, timer=lambda: 0.0
        )
        assert finished(steps) == (0, ())


def test_a_failing_trial_says_so() -> None:
    detector = Ticking([0.0], nan_loss=True)
    with pytest.raises(JobError) as caught:
        profile(detector, [FAST])
    assert caught.value.code == "nan"


def test_closing_in_the_middle_is_clean() -> None:
    detector = Ticking([0.0], skill=0.4)
    steps = microprofile(
        detector, TRAIN, HOLDOUT, [FAST], epochs=3, data_frac=0.1, budget_gpu_s=1e9, seed=1, timer=lambda: detector.clock[0]
    )
    for _ in range(len(HOLDOUT) + 2):
        next(steps)
    steps.close()
    with pytest.raises(StopIteration):
        next(steps)


def test_sample_size_respects_all_three_bounds() -> None:
    config = RetrainConfig(name="x", data_frac=0.5)
    assert sample_size(config, 1000, 0.1, n_min=8) == 50
    assert sample_size(config, 40, 0.1, n_min=8) == 8
    assert sample_size(config, 10, 0.1, n_min=8) == 5
