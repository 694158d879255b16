"""Retraining: a copy of the serving model learns from a window's labels."""

from __future__ import annotations

from collections.abc import Callable

from edge.jobs.base import Samples, Scoring, Steps, no_yield, quality_of, quality_steps
from models.detector import Detector, YieldPoint
from models.retrain import retrain
from models.tasks.base import Task
from models.tasks.detection import DETECTION
from scheduler.types import EpochReport, RetrainConfig

#: A retraining of fewer epochs is not measured half-way; a longer one on so many frames at most.
MEASURED_EPOCHS = 6
HALF_WAY_FRAMES = 16


def retrain_steps(
    samples: Samples, serving: Detector, *, job: str, stream: str, window: int, replay_windows: int, config: RetrainConfig,
    seed: int, timer: Callable[[], float], on_epoch: Callable[[EpochReport], None], scoring: Scoring | None = None,
    task: Task = DETECTION, yield_point: YieldPoint = no_yield,
) -> Steps[Detector]:  # fmt: skip
    """Retrains a copy of the serving model; returns it. `on_epoch` hears each epoch's end; with `scoring`, also what the model is
    worth half-way, on the window's newest held-out frames, so that a plan can be changed while that still helps."""
    detector = serving.clone()
    train = samples.labelled(stream, [window], "train")
    earlier = [w for w in range(window - replay_windows, window) if w >= 0]
    replay = samples.labelled(stream, earlier, "train") if config.replay_frac > 0 and earlier else ()
    started_s = timer()
    for step in retrain(detector, train, config, seed=seed, replay=replay, task=task):
        if step.epoch_loss is not None:
            gpu_s, quality = timer() - started_s, None
            if scoring is not None and step.epoch == half_way(config.epochs):
                held_out = [ref for ref in samples.sampled(stream, window) if samples.split(ref) == "holdout"]
                counts = yield from quality_steps(samples, task, detector, held_out[-HALF_WAY_FRAMES:], scoring, yield_point)
                quality = quality_of(counts)
            on_epoch(EpochReport(job=job, epoch=step.epoch, loss=step.epoch_loss, gpu_s=gpu_s, quality=quality))
        yield
    return detector


def half_way(epochs: int) -> int:
    """The epoch after which a retraining is measured; 0 (never) for one too short for the answer to matter."""
    return epochs // 2 if epochs >= MEASURED_EPOCHS else 0
