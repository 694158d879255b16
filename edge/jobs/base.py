"""What the learning jobs share: how they are run, where samples come from, how a model is judged.

A job is a generator of iterations: each `next()` does one iteration of compute, the generator's return value is the answer. The live
box runs them through a lane (`run_in_lane`), `evaluate` runs them to their end at once and charges virtual time: one copy of what a
job does.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Protocol, TypeVar

import numpy as np

from edge.gpu.base import Lane
from models.detector import Detector, YieldPoint
from models.evaluate import MatchCounts, f1_sd
from models.labelled import LabelledImage
from models.tasks.base import Picture, Scoring, Task
from scheduler.admission import error_of
from scheduler.types import Detections

T = TypeVar("T")
Steps = Generator[None, None, T]


def no_yield() -> None:
    """A yield point that does nothing (virtual time, tests)."""


class SampleRef(Protocol):
    @property
    def name(self) -> str: ...


class Samples(Protocol):
    """Where sampled frames and their golden labels lie. Live: files (`streams.samples`); evaluate: memory."""

    def sampled(self, stream: str, window: int) -> Sequence[SampleRef]:
        """All frames sampled in a window, in time order."""

    def picture(self, ref: SampleRef) -> Picture:
        """The frame, with the regions that moved in it where the task wants them."""

    def labels(self, ref: SampleRef) -> Detections | None:
        """Labels in force (golden or a person's), None when the frame is not labelled yet or left out of training and judging."""

    def split(self, ref: SampleRef) -> str | None:
        """'train' or 'holdout' of a labelled frame (also one that is left out), None before."""

    def by_person(self, ref: SampleRef) -> bool:
        """Whether a person made its labels, or took it out."""

    def label(
        self, ref: SampleRef, labels: Detections, *, golden: str, split: str, unsure: Detections | None = None,
        left_out: bool = False, gpu_s: float | None = None,
    ) -> None:  # fmt: skip
        """Keeps golden labels; a person's stay in force. unsure: boxes that are no labels; left_out: too many of those; gpu_s: cost."""

    def labelled(self, stream: str, windows: Sequence[int], split: str) -> Sequence[LabelledImage]:
        """Labelled frames that may be used, in time order."""


def run_in_lane(steps: Steps[T], lane: Lane) -> T:
    """Runs a job's iterations through its lane; raises JobCancelled out of the lane, closing the job cleanly."""
    try:
        while True:
            with lane.iteration():
                try:
                    next(steps)
                except StopIteration as end:
                    return end.value
    finally:
        steps.close()


def run_at_once(steps: Steps[T]) -> T:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def spread(refs: Sequence[SampleRef], count: int) -> list[SampleRef]:
    """`count` of them, evenly spaced over time (all when there are fewer)."""
    if count <= 0 or not refs:
        return []
    if len(refs) <= count:
        return list(refs)
    picks = np.linspace(0, len(refs) - 1, count).round().astype(int)
    return [refs[i] for i in dict.fromkeys(picks.tolist())]


def split_of(index: int, holdout_frac: float) -> str:
    """Every 1/holdout_frac-th frame is held out, so both splits cover the whole window."""
    return "holdout" if int((index + 1) * holdout_frac) > int(index * holdout_frac) else "train"


def pools(samples: Samples, stream: str, window: int, holdout_frac: float) -> tuple[list[SampleRef], list[SampleRef]]:
    """(train, holdout) frames of a window, each in time order. A frame's place in the sample decides, not when it is labelled, so a
    model can be judged on frames of the window in progress without taking any from the next training."""
    train: list[SampleRef] = []
    holdout: list[SampleRef] = []
    for index, ref in enumerate(samples.sampled(stream, window)):
        split = samples.split(ref) or split_of(index, holdout_frac)
        (holdout if split == "holdout" else train).append(ref)
    return train, holdout


def quality_steps(
    samples: Samples, task: Task, model: Detector, refs: Sequence[SampleRef], scoring: Scoring, yield_point: YieldPoint
) -> Steps[tuple[MatchCounts, ...]]:
    """How a model does on labelled frames, one frame an iteration: the counts of each, in order."""
    counts: list[MatchCounts] = []
    for ref in refs:
        labels = samples.labels(ref)
        if labels is None:
            continue
        found = task.predict(model, [samples.picture(ref)], score_min=scoring.score_min, yield_point=yield_point)[0]
        counts.append(task.counts(found, labels, scoring))
        yield
    return tuple(counts)


def is_sound(model: Detector) -> bool:
    """Is every number of the model a number? One with NaN or infinite weights finds nothing, which on empty frames looks right."""
    return all(bool(tensor.isfinite().all()) for tensor in model.state().values() if tensor.is_floating_point())


def tells(samples: Samples, refs: Sequence[SampleRef]) -> bool:
    """Is there any object on these frames by their labels? Where there is none, a model that finds nothing would be the best of all."""
    return any(len(labels) > 0 for ref in refs if (labels := samples.labels(ref)) is not None)


def quality_of(counts: Sequence[MatchCounts]) -> float | None:
    """The task's quality (0-1) over frames; None when no object is labelled in any of them. There F1 is 1 for a model that finds nothing
    and 0 for one that finds anything, whatever either is worth: an empty street at night would look like a perfect model, and one false
    alarm in it like a broken one."""
    total = MatchCounts.total(counts)
    return total.f1 if total.tp + total.fn else None


def error_of_quality(counts: Sequence[MatchCounts]) -> float | None:
    """Standard error of `quality_of`, by the rule with which the gate doubts what few frames say; None where that is."""
    return None if quality_of(counts) is None else error_of(f1_sd(counts), len(counts))
