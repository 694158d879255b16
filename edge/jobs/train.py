"""Retraining: a copy of the serving model learns from a window's labels, of one camera or of several that drifted together."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from edge.jobs.base import SampleRef, Samples, Scoring, Steps, no_yield, quality_of, quality_steps
from models.detector import Detector, YieldPoint
from models.exemplars import exemplars, n_candidates
from models.labelled import LabelledImage, Pooled, Subset, persons_of, spread
from models.retrain import n_replayed, n_used, retrain, student
from models.sanity import CheckedSamples, looked_at
from models.tasks.base import Task
from models.tasks.detection import DETECTION
from scheduler.types import EpochReport, RetrainConfig

#: A retraining of fewer epochs is not measured half-way; a longer one on so many frames at most.
MEASURED_EPOCHS = 6
HALF_WAY_FRAMES = 16
#: Exemplars kept for a retraining, as a multiple of the older pictures that one of its epochs shows.
EXEMPLAR_EPOCHS = 2

OnNote = Callable[[str], None]


def no_note(text: str) -> None:
    """Nobody wants to know (trials, tests)."""


def retrain_steps(
    samples: Samples, serving: Detector, *, job: str, stream: str, window: int, replay_windows: int, config: RetrainConfig,
    seed: int, timer: Callable[[], float], on_epoch: Callable[[EpochReport], None], scoring: Scoring | None = None,
    task: Task = DETECTION, yield_point: YieldPoint = no_yield, members: Sequence[str] = (), on_note: OnNote = no_note,
) -> Steps[Detector]:  # fmt: skip
    """Retrains a copy of the serving model; returns it. `on_epoch` hears each epoch's end; with `scoring`, also what the model is
    worth half-way, on the window's newest held-out frames, so that a plan can be changed while that still helps.

    members: cameras whose labels are learned from together, each with an equal say (empty: only `stream`). on_note: hears what an
    operator should know of the labels. Raises JobError: those of `models.sanity`, and of `models.retrain`."""
    cameras = tuple(members) or (stream,)
    train = yield from training_set(samples, cameras, window, subject=stream, on_note=on_note, balance=config.balance)
    replay = yield from replay_set(
        samples, cameras, window, replay_windows, [config], n_train=len(train), serving=serving, on_note=on_note
    )
    detector = student(serving, config, seed=seed)
    started_s = timer()
    steps = retrain(detector, train, config, seed=seed, replay=replay, task=task, teacher=serving, yield_point=yield_point)
    for step in steps:
        if step.epoch_loss is not None:
            gpu_s, quality = timer() - started_s, None
            if scoring is not None and step.epoch == half_way(config.epochs):
                held_out = _newest_held_out(samples, cameras, window)
                counts = yield from quality_steps(samples, task, detector, held_out, scoring, yield_point)
                quality = quality_of(counts)
            on_epoch(EpochReport(job=job, epoch=step.epoch, loss=step.epoch_loss, gpu_s=gpu_s, quality=quality))
        yield
    return detector


def training_set(
    samples: Samples, cameras: Sequence[str], window: int, *, subject: str, on_note: OnNote = no_note, balance: bool = False
) -> Steps[CheckedSamples]:
    """The cameras' training labels of a window, looked at, one picture an iteration. Raises JobError (see `models.sanity`)."""
    train = yield from looked_at(_pooled(samples, cameras, [window]), subject=subject, balance=balance)
    for note in train.notes:
        on_note(note)
    return train


def replay_set(
    samples: Samples, cameras: Sequence[str], window: int, replay_windows: int, configs: Sequence[RetrainConfig], *, n_train: int,
    serving: Detector, on_note: OnNote = no_note,
) -> Steps[Sequence[LabelledImage]]:  # fmt: skip
    """Exemplars of the cameras' earlier windows (`models.exemplars`, seen by the serving model), as many as the hungriest of the
    configurations can use; one picture an iteration."""
    earlier = [w for w in range(window - replay_windows, window) if w >= 0]
    limit = max((exemplar_limit(config, n_train) for config in configs), default=0)
    if not earlier or not limit:
        return ()
    old = _pooled(samples, cameras, earlier)
    candidates = Subset(old, sorted({*spread(len(old), n_candidates(limit)), *persons_of(old)}))
    checked = yield from looked_at(candidates, subject=cameras[0], refuse=False)
    for note in checked.notes:
        on_note(f"earlier windows: {note}")
    chosen = yield from exemplars(checked, serving, limit=limit)
    return Subset(checked, sorted(chosen))


def exemplar_limit(config: RetrainConfig, n_train: int) -> int:
    """Older pictures that a retraining chooses to replay from, when `n_train` new ones are labelled."""
    everything = 10**9
    return EXEMPLAR_EPOCHS * n_replayed(config, n_used(config, n_train), everything)


def n_embedded(config: RetrainConfig, n_train: int, n_older: int) -> int:
    """Older pictures that the serving model has to see before that choice is made."""
    limit = exemplar_limit(config, n_train)
    looked_at = min(n_older, n_candidates(limit)) if limit else 0
    return looked_at if looked_at > limit else 0


def half_way(epochs: int) -> int:
    """The epoch after which a retraining is measured; 0 (never) for one too short for the answer to matter."""
    return epochs // 2 if epochs >= MEASURED_EPOCHS else 0


def _pooled(samples: Samples, cameras: Sequence[str], windows: Sequence[int]) -> Sequence[LabelledImage]:
    found = [samples.labelled(camera, windows, "train") for camera in cameras]
    return found[0] if len(found) == 1 else Pooled(found)


def _newest_held_out(samples: Samples, cameras: Sequence[str], window: int) -> list[SampleRef]:
    """HALF_WAY_FRAMES in all, of every camera as many."""
    each = max(1, HALF_WAY_FRAMES // len(cameras))
    return [
        ref
        for camera in cameras
        for ref in [r for r in samples.sampled(camera, window) if samples.split(r) == "holdout"][-each:]
    ]
