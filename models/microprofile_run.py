"""Runs the micro-profiler's trials: short trainings on a small sample that tell what a retraining would gain and cost.

Ekya section 4.3 (papers/ekya.md section 4.1): for each family of configurations, a uniform random sample of the labelled data,
few epochs from the serving model, held-out quality after each. The decisions (which configurations, what curve) are in
`scheduler.ekya.microprofile`. What we changed:
- all families advance epoch by epoch together, so that a budget that runs out leaves every family equally well known;
- the batch shrinks with the sample, so that an epoch has as many updates as it would on the full data: with 5-10 % of a small
  sample, an epoch would otherwise be a single update and show no gain at all;
- everything of a configuration but its epochs is tried as it is: added layer, distillation from the serving model, class balance, and
  replay of as large a part of each epoch, so that a trial's epoch costs what its share of a real one does.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from models.detector import Detector, YieldPoint
from models.evaluate import MatchCounts
from models.labelled import LabelledImage, Subset, predicted
from models.retrain import Step, n_used, retrain, student
from models.tasks.base import Scoring, Task
from models.tasks.detection import DETECTION
from scheduler.ekya.microprofile import families
from scheduler.types import ProfileTrial, RetrainConfig

#: Fewer samples than this tell nothing, however small the fraction.
N_MIN = 12

#: Seconds of compute spent so far by the caller's job; it must not advance while the job waits for its share.
Timer = Callable[[], float]


@dataclass
class _Trial:
    """A family's run in progress."""

    config: RetrainConfig
    detector: Detector
    steps: Generator[Step, None, None]
    n_profiled: int
    init_gpu_s: float
    quality: list[float]
    epoch_gpu_s: list[float] = field(default_factory=list)

    def result(self, n_total: int) -> ProfileTrial:
        return ProfileTrial(
            config=self.config,
            quality=tuple(self.quality),
            init_gpu_s=self.init_gpu_s,
            gpu_s_per_epoch=float(np.mean(self.epoch_gpu_s)),
            n_profiled=self.n_profiled,
            n_total=n_total,
        )


def microprofile(
    serving: Detector,
    train: Sequence[LabelledImage],
    holdout: Sequence[LabelledImage],
    configs: Sequence[RetrainConfig],
    *,
    epochs: int,
    data_frac: float,
    budget_gpu_s: float,
    seed: int,
    timer: Timer,
    yield_point: YieldPoint | None = None,
    n_min: int = N_MIN,
    scoring: Scoring | None = None,
    task: Task = DETECTION,
    replay: Sequence[LabelledImage] = (),
    look_gpu_s: float = 0.0,
    choose_gpu_s: float = 0.0,
) -> Generator[None, None, tuple[ProfileTrial, ...]]:
    """One iteration (a training micro-batch, or the evaluation of one picture) per `next`; returns one trial per family.

    configs: those that differ only in epochs share a trial. data_frac: part of each configuration's data that is used, at least
    n_min pictures. epochs: at most that many per trial. budget_gpu_s: no epoch begins once that much compute is spent.
    replay: older pictures for the families that replay. look_gpu_s, choose_gpu_s: what a retraining spends before its first epoch on
    its labels, and on choosing what it replays; parts of a trial's init_gpu_s.
    A family that did not end its first epoch has no trial. Without training or held-out pictures there are no trials.
    Raises JobError as `retrain` does. `serving` is not changed.
    """
    if not len(train) or not len(holdout) or not configs:
        return ()
    judge = _Judge(holdout, yield_point, scoring or Scoring(), task)
    started_s = timer()
    before = yield from judge.quality(serving)
    trials = [
        _started(serving, train, replay, c, epochs, data_frac, seed, n_min, before, timer, task) for c in families(configs)
    ]
    for trial in trials:
        trial.init_gpu_s += look_gpu_s + (choose_gpu_s if trial.config.replay_frac > 0 else 0.0)
    try:
        for _ in range(epochs):
            for trial in trials:
                if timer() - started_s >= budget_gpu_s:
                    break
                yield from _one_epoch(trial, timer)
                quality = yield from judge.quality(trial.detector)
                trial.quality.append(quality)
    finally:
        for trial in trials:
            trial.steps.close()
    return tuple(trial.result(len(train)) for trial in trials if len(trial.quality) > 1)


def sample_size(config: RetrainConfig, n_train: int, data_frac: float, n_min: int = N_MIN) -> int:
    """Pictures that a trial of `config` uses: data_frac of what the configuration would, at least n_min, at most all of it."""
    available = n_used(config, n_train)
    return min(available, max(n_min, round(data_frac * available)))


def _started(
    serving: Detector,
    train: Sequence[LabelledImage],
    replay: Sequence[LabelledImage],
    config: RetrainConfig,
    epochs: int,
    data_frac: float,
    seed: int,
    n_min: int,
    before: float,
    timer: Timer,
    task: Task,
) -> _Trial:
    started_s = timer()
    n_profiled = sample_size(config, len(train), data_frac, n_min)
    chosen = np.sort(np.random.default_rng(seed).permutation(len(train))[:n_profiled])
    detector = student(serving, config, seed=seed)
    batch = max(1, round(config.batch * n_profiled / n_used(config, len(train))))
    short = replace(config, epochs=epochs, batch=batch, data_frac=1.0)
    older = replay if config.replay_frac > 0 else ()
    steps = retrain(detector, Subset(train, chosen.tolist()), short, seed=seed, task=task, replay=older, teacher=serving)
    return _Trial(
        config=config,
        detector=detector,
        steps=steps,
        n_profiled=n_profiled,
        init_gpu_s=timer() - started_s,
        quality=[before],
    )


def _one_epoch(trial: _Trial, timer: Timer) -> Generator[None, None, None]:
    """Trains to the end of the epoch, charging the compute of each iteration and not what happens between them."""
    spent_s = 0.0
    while True:
        started_s = timer()
        step = next(trial.steps)
        spent_s += timer() - started_s
        yield
        if step.epoch_loss is not None:
            trial.epoch_gpu_s.append(spent_s)
            return


@dataclass(frozen=True)
class _Judge:
    """Held-out quality of a detector, one picture an iteration."""

    holdout: Sequence[LabelledImage]
    yield_point: YieldPoint | None
    scoring: Scoring
    task: Task

    def quality(self, detector: Detector) -> Generator[None, None, float]:
        total = MatchCounts()
        judged = predicted(
            detector, self.holdout, task=self.task, score_min=self.scoring.score_min, yield_point=self.yield_point
        )
        for found, labels in judged:
            total += self.task.counts(found, labels, self.scoring)
            yield
        return total.f1
