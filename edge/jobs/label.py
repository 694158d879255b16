"""Labelling: golden labels for a spread of a window's frames, then the serving model's quality on the held-out ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from configs.units import CLASSES
from edge.jobs.base import Samples, Scoring, Steps, no_yield, pools, quality_of, quality_steps, spread
from models.detector import Detector, YieldPoint
from models.tasks.base import Task
from models.tasks.detection import DETECTION
from scheduler.types import Detections, Traits


@dataclass(frozen=True, kw_only=True)
class LabelResult:
    train: int
    holdout: int
    new: int  # labelled now; the others had been labelled before
    quality: float | None
    traits: Traits


def label_split(frames: int, holdout_frac: float) -> tuple[int, int]:
    """(train, holdout): how `frames` labels are divided."""
    holdout = int(frames * holdout_frac + 1e-9)
    return frames - holdout, holdout


def label_steps(
    samples: Samples, golden: Detector, serving: Detector, *, stream: str, window: int, frames: int, holdout_frac: float,
    scoring: Scoring, task: Task = DETECTION, yield_point: YieldPoint = no_yield,
) -> Steps[LabelResult]:  # fmt: skip
    """Golden labels for a spread of a window's frames, then the serving model's quality on the held-out ones."""
    train, holdout = pools(samples, stream, window, holdout_frac)
    n_train, n_holdout = label_split(min(frames, len(train) + len(holdout)), holdout_frac)
    chosen = {"train": spread(train, n_train), "holdout": spread(holdout, n_holdout)}
    new = 0
    for split, refs in chosen.items():
        for ref in refs:
            if samples.split(ref) is not None:
                continue
            labels = task.labels(golden, [samples.picture(ref)], score_min=scoring.golden_score_min, yield_point=yield_point)[0]
            samples.label(ref, labels, golden=golden.spec.arch, split=split)
            new += 1
            yield
    counts = yield from quality_steps(samples, task, serving, chosen["holdout"], scoring, yield_point)
    return LabelResult(
        train=len(chosen["train"]), holdout=len(chosen["holdout"]), new=new, quality=quality_of(counts),
        traits=traits_of([samples.labels(ref) for refs in chosen.values() for ref in refs], place=stream),
    )  # fmt: skip


def traits_of(labels: Sequence[Detections | None], *, place: str, daypart: str = "") -> Traits:
    """What labelled frames look like, for choosing among the models of earlier windows."""
    known = [found for found in labels if found is not None]
    counts = np.bincount(np.concatenate([np.zeros(0, np.int64), *(f.class_id for f in known)]), minlength=len(CLASSES))
    objects = int(counts.sum())
    return Traits(
        class_frac=tuple(float(c) / objects if objects else 0.0 for c in counts),
        objects_per_frame=objects / len(known) if known else 0.0, daypart=daypart, place=place,
    )  # fmt: skip
