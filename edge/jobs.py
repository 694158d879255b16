"""The four learning jobs - label, profile, retrain, gate - as generators of iterations.

Each `next()` does one iteration of compute; the generator's return value is the answer. The live box runs them through a lane
(`run_in_lane`), `evaluate` runs them to their end at once and charges virtual time: one copy of what a job does.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from configs.units import CLASSES
from edge.gpu.base import Lane
from models.detector import Detector, YieldPoint
from models.evaluate import MatchCounts, match_counts
from models.microprofile_run import microprofile
from models.retrain import LabelledImage, retrain
from scheduler.types import Detections, EpochReport, ProfileTrial, RetrainConfig, Traits

T = TypeVar("T")
Steps = Generator[None, None, T]


#: A retraining of fewer epochs is not measured half-way; a longer one on so many frames at most.
MEASURED_EPOCHS = 6
HALF_WAY_FRAMES = 16


def no_yield() -> None:
    """A yield point that does nothing (virtual time, tests)."""


class SampleRef(Protocol):
    @property
    def name(self) -> str: ...


class Samples(Protocol):
    """Where sampled frames and their golden labels lie. Live: files (`streams.samples`); evaluate: memory."""

    def sampled(self, stream: str, window: int) -> Sequence[SampleRef]:
        """All frames sampled in a window, in time order."""

    def image(self, ref: SampleRef) -> np.ndarray: ...

    def labels(self, ref: SampleRef) -> Detections | None:
        """Golden labels, None when the frame is not labelled yet."""

    def split(self, ref: SampleRef) -> str | None:
        """'train' or 'holdout' of a labelled frame, None before."""

    def label(self, ref: SampleRef, labels: Detections, *, golden: str, split: str) -> None: ...

    def labelled(self, stream: str, windows: Sequence[int], split: str) -> Sequence[LabelledImage]: ...


@dataclass(frozen=True, kw_only=True)
class LabelResult:
    train: int
    holdout: int
    new: int  # labelled now; the others had been labelled before
    quality: float | None
    traits: Traits


@dataclass(frozen=True, kw_only=True)
class GateResult:
    serving_quality: float | None
    candidate_quality: float | None
    frames: int


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """golden_score_min: labels under it are dropped; score_min, iou_min: how F1 is counted (Ekya: IoU 0.3)."""

    golden_score_min: float = 0.4
    score_min: float = 0.25
    iou_min: float = 0.3


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


def label_split(frames: int, holdout_frac: float) -> tuple[int, int]:
    """(train, holdout): how `frames` labels are divided."""
    holdout = int(frames * holdout_frac + 1e-9)
    return frames - holdout, holdout


def label_steps(
    samples: Samples, golden: Detector, serving: Detector, *, stream: str, window: int, frames: int, holdout_frac: float,
    scoring: Scoring, yield_point: YieldPoint = no_yield,
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
            labels = golden.predict([samples.image(ref)], score_min=scoring.golden_score_min, yield_point=yield_point)[0]
            samples.label(ref, labels, golden=golden.spec.arch, split=split)
            new += 1
            yield
    quality = yield from _quality_steps(samples, serving, chosen["holdout"], scoring, yield_point)
    return LabelResult(
        train=len(chosen["train"]), holdout=len(chosen["holdout"]), new=new, quality=quality,
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


def _quality_steps(
    samples: Samples, detector: Detector, refs: Sequence[SampleRef], scoring: Scoring, yield_point: YieldPoint
) -> Steps[float | None]:
    """F1 of a detector on labelled frames, one frame an iteration; None when there are none."""
    total = MatchCounts()
    for ref in refs:
        labels = samples.labels(ref)
        predictions = detector.predict([samples.image(ref)], score_min=scoring.score_min, yield_point=yield_point)[0]
        if labels is not None:
            total += match_counts(predictions, labels, iou_min=scoring.iou_min, score_min=scoring.score_min)
        yield
    return total.f1 if refs else None


def profile_steps(
    samples: Samples, serving: Detector, *, stream: str, window: int, configs: Sequence[RetrainConfig], epochs: int,
    data_frac: float, budget_gpu_s: float, seed: int, timer: Callable[[], float], scoring: Scoring,
    yield_point: YieldPoint = no_yield,
) -> Steps[tuple[tuple[ProfileTrial, ...], int]]:  # fmt: skip
    """Micro-profiling trials of one camera; returns (trials, labelled frames a full retraining would use)."""
    train = samples.labelled(stream, [window], "train")
    holdout = samples.labelled(stream, [window], "holdout")
    trials = yield from microprofile(
        serving, train, holdout, configs, epochs=epochs, data_frac=data_frac, budget_gpu_s=budget_gpu_s, seed=seed,
        timer=timer, yield_point=yield_point, score_min=scoring.score_min, iou_min=scoring.iou_min,
    )  # fmt: skip
    return trials, len(train)


def retrain_steps(
    samples: Samples, serving: Detector, *, job: str, stream: str, window: int, replay_windows: int, config: RetrainConfig,
    seed: int, timer: Callable[[], float], on_epoch: Callable[[EpochReport], None], scoring: Scoring | None = None,
    yield_point: YieldPoint = no_yield,
) -> Steps[Detector]:  # fmt: skip
    """Retrains a copy of the serving model; returns it. `on_epoch` hears each epoch's end; with `scoring`, also what the model is
    worth half-way, on the window's newest held-out frames, so that a plan can be changed while that still helps."""
    detector = serving.clone()
    train = samples.labelled(stream, [window], "train")
    earlier = [w for w in range(window - replay_windows, window) if w >= 0]
    replay = samples.labelled(stream, earlier, "train") if config.replay_frac > 0 and earlier else ()
    started_s = timer()
    for step in retrain(detector, train, config, seed=seed, replay=replay):
        if step.epoch_loss is not None:
            gpu_s, quality = timer() - started_s, None
            if scoring is not None and step.epoch == half_way(config.epochs):
                held_out = [ref for ref in samples.sampled(stream, window) if samples.split(ref) == "holdout"]
                quality = yield from _quality_steps(samples, detector, held_out[-HALF_WAY_FRAMES:], scoring, yield_point)
            on_epoch(EpochReport(job=job, epoch=step.epoch, loss=step.epoch_loss, gpu_s=gpu_s, quality=quality))
        yield
    return detector


def half_way(epochs: int) -> int:
    """The epoch after which a retraining is measured; 0 (never) for one too short for the answer to matter."""
    return epochs // 2 if epochs >= MEASURED_EPOCHS else 0


def gate_refs(samples: Samples, stream: str, window: int, frames: int, holdout_frac: float) -> list[SampleRef]:
    """The frames that `gate_steps` judges by, in time order."""
    current = spread(pools(samples, stream, window, holdout_frac)[1], frames)
    missing = frames - len(current)
    older = [ref for ref in samples.sampled(stream, window - 1) if samples.split(ref) == "holdout"] if missing > 0 else []
    return [*older[len(older) - min(missing, len(older)) :], *current]


def gate_steps(
    samples: Samples, golden: Detector, serving: Detector, candidate: Detector, *, stream: str, window: int, frames: int,
    scoring: Scoring, holdout_frac: float = 1.0, yield_point: YieldPoint = no_yield,
) -> Steps[GateResult]:  # fmt: skip
    """Measures both models on the same held-out golden labels: newest first, those of the window in progress, filled up to `frames`
    with those that the last window's labelling made (a gate that comes early has seen little of its own window). Only frames of
    the held-out pool are used (of the window in progress any, with `holdout_frac` 1), and they stay held out, so that the next
    window does not train on what judged this one."""
    refs = gate_refs(samples, stream, window, frames, holdout_frac)
    for ref in refs:
        if samples.labels(ref) is None:
            labels = golden.predict([samples.image(ref)], score_min=scoring.golden_score_min, yield_point=yield_point)[0]
            samples.label(ref, labels, golden=golden.spec.arch, split="holdout")
            yield
    old = yield from _quality_steps(samples, serving, refs, scoring, yield_point)
    new = yield from _quality_steps(samples, candidate, refs, scoring, yield_point)
    return GateResult(serving_quality=old, candidate_quality=new, frames=len(refs))
