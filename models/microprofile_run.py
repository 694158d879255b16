"""Runs the micro-profiler's trials, one iteration per `next` (Ekya section 4.3; card, section 4.1).

Per configuration: a copy of the serving model is trained for a few epochs on a uniform part of the labelled sample; the held-out
quality is measured before and after each epoch, and compute per epoch is taken from the caller's timer. What the figures mean
(curve, extrapolation, cost on the full sample) is decided in `scheduler.ekya.microprofile`.

What we changed: the paper's 5-10 % of the data would be two or three frames here, where a camera has some ten labelled frames a
window; the part is a parameter with a floor (`MIN_FRAMES`). Trials stop when the budget is used up; the first always runs.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import replace

import numpy as np

from configs.errors import JobError
from models.detector import Detector, YieldPoint
from models.evaluate import MatchCounts, match_counts
from models.labelled import LabelledImage, Subset, predicted
from models.retrain import n_used, retrain
from scheduler.types import ProfileTrial, RetrainConfig

#: A trial on fewer labelled frames says nothing.
MIN_FRAMES = 4


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
    timer: Callable[[], float],
    yield_point: YieldPoint | None = None,
    score_min: float = 0.25,
    iou_min: float = 0.3,
) -> Generator[None, None, tuple[ProfileTrial, ...]]:
    """configs: one per family. timer: compute seconds used so far. Returns the trials that were run, in order.

    A configuration that cannot be trained (NaN, no memory) is left out. Raises JobError 'no_data' without samples."""
    if not len(train) or not len(holdout):
        raise JobError("there is nothing to profile on", code="no_data", remedy="label some frames first")
    before = yield from _quality(serving, holdout, score_min, iou_min, yield_point)
    started_s, trials = timer(), []
    for number, config in enumerate(configs):
        spent = timer() - started_s
        if trials and spent + spent / len(trials) > budget_gpu_s:
            break
        try:
            trials.append(
                (
                    yield from _trial(
                        serving, train, holdout, config, before, epochs, data_frac, seed + number, timer, score_min, iou_min,
                        yield_point,
                    )
                )
            )  # fmt: skip
        except JobError as error:
            if error.code not in ("nan", "out_of_memory"):
                raise
    return tuple(trials)


def _trial(
    serving: Detector, train: Sequence[LabelledImage], holdout: Sequence[LabelledImage], config: RetrainConfig, before: float,
    epochs: int, data_frac: float, seed: int, timer: Callable[[], float], score_min: float, iou_min: float,
    yield_point: YieldPoint | None,
) -> Generator[None, None, ProfileTrial]:  # fmt: skip
    started_s = timer()
    detector = serving.clone()
    sample = _uniform(train, config, data_frac, seed)
    short = replace(config, epochs=min(epochs, config.epochs), data_frac=1.0, replay_frac=0.0)
    init_s = timer() - started_s
    quality, training_s, resumed_s = [before], 0.0, timer()
    for step in retrain(detector, sample, short, seed=seed):
        yield
        if step.epoch_loss is not None:
            training_s += timer() - resumed_s
            quality.append((yield from _quality(detector, holdout, score_min, iou_min, yield_point)))
            resumed_s = timer()
    return ProfileTrial(
        config=config, quality=tuple(quality), init_gpu_s=init_s, gpu_s_per_epoch=training_s / short.epochs,
        n_profiled=len(sample), n_total=len(train),
    )  # fmt: skip


def _uniform(train: Sequence[LabelledImage], config: RetrainConfig, data_frac: float, seed: int) -> Sequence[LabelledImage]:
    """A uniform draw without replacement: `data_frac` of what the configuration would use, at least MIN_FRAMES."""
    wanted = max(round(data_frac * n_used(config, len(train))), min(MIN_FRAMES, len(train)))
    chosen = np.sort(np.random.default_rng(seed).permutation(len(train))[:wanted])
    return Subset(train, [int(i) for i in chosen])


def _quality(
    detector: Detector, samples: Sequence[LabelledImage], score_min: float, iou_min: float, yield_point: YieldPoint | None
) -> Generator[None, None, float]:
    """F1 on the samples, one frame an iteration."""
    total = MatchCounts()
    for found, labels in predicted(detector, samples, score_min=score_min, yield_point=yield_point):
        total += match_counts(found, labels, iou_min=iou_min, score_min=score_min)
        yield
    return total.f1
