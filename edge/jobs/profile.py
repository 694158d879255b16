"""Micro-profiling of one camera (`models.microprofile_run`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edge.jobs.base import Samples, Scoring, Steps, no_yield
from models.detector import Detector, YieldPoint
from models.microprofile_run import microprofile
from models.tasks.base import Task
from models.tasks.detection import DETECTION
from scheduler.types import ProfileTrial, RetrainConfig


def profile_steps(
    samples: Samples, serving: Detector, *, stream: str, window: int, configs: Sequence[RetrainConfig], epochs: int,
    data_frac: float, budget_gpu_s: float, seed: int, timer: Callable[[], float], scoring: Scoring,
    task: Task = DETECTION, yield_point: YieldPoint = no_yield,
) -> Steps[tuple[tuple[ProfileTrial, ...], int]]:  # fmt: skip
    """Micro-profiling trials of one camera; returns (trials, labelled frames a full retraining would use)."""
    train = samples.labelled(stream, [window], "train")
    holdout = samples.labelled(stream, [window], "holdout")
    trials = yield from microprofile(
        serving, train, holdout, configs, epochs=epochs, data_frac=data_frac, budget_gpu_s=budget_gpu_s, seed=seed,
        timer=timer, yield_point=yield_point, scoring=scoring, task=task,
    )  # fmt: skip
    return trials, len(train)
