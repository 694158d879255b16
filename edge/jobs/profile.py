"""Micro-profiling of one camera (`models.microprofile_run`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edge.jobs.base import Samples, Scoring, Steps, no_yield
from edge.jobs.train import replay_set, training_set
from models.detector import Detector, YieldPoint
from models.microprofile_run import microprofile
from models.tasks.base import Task
from models.tasks.detection import DETECTION
from scheduler.types import ProfileTrial, RetrainConfig


def profile_steps(
    samples: Samples, serving: Detector, *, stream: str, window: int, configs: Sequence[RetrainConfig], epochs: int,
    data_frac: float, budget_gpu_s: float, seed: int, timer: Callable[[], float], scoring: Scoring,
    task: Task = DETECTION, yield_point: YieldPoint = no_yield, replay_windows: int = 0,
) -> Steps[tuple[tuple[ProfileTrial, ...], int]]:  # fmt: skip
    """Micro-profiling trials of one camera; returns (trials, labelled frames a full retraining would use). Trials learn from what a
    retraining would: labels that were looked at, and older pictures where the configuration replays. Raises JobError for labels that
    nothing should be trained on (`models.sanity`)."""
    holdout = samples.labelled(stream, [window], "holdout")
    if not len(samples.labelled(stream, [window], "train")) or not len(holdout) or not configs:
        return (), len(samples.labelled(stream, [window], "train"))
    started_s = timer()
    train = yield from training_set(samples, [stream], window, subject=stream)
    looked_s = timer()
    replay = yield from replay_set(samples, [stream], window, replay_windows, configs, n_train=len(train), serving=serving)
    chosen_s = timer()
    trials = yield from microprofile(
        serving, train, holdout, configs, epochs=epochs, data_frac=data_frac, seed=seed,
        timer=timer, yield_point=yield_point, scoring=scoring, task=task, replay=replay,
        budget_gpu_s=budget_gpu_s - (chosen_s - started_s), look_gpu_s=looked_s - started_s, choose_gpu_s=chosen_s - looked_s,
    )  # fmt: skip
    return trials, len(train)
