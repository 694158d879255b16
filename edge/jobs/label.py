"""Labelling: golden labels for a spread of a window's frames, then the serving model's quality on the held-out ones.

A person's labels come first: frames that a person has labelled are always among those that are used, and are never asked about again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from configs.errors import StorageError
from configs.units import CLASSES
from edge.jobs.base import (
    SampleRef,
    Samples,
    Scoring,
    Steps,
    error_of_quality,
    no_yield,
    pools,
    quality_of,
    quality_steps,
    spread,
)
from models.detector import Detector, YieldPoint
from models.golden import PLAIN, Labelling, golden_steps
from models.tasks.base import Picture, Task
from models.tasks.detection import DETECTION
from scheduler.split import label_split
from scheduler.types import Detections, Traits


@dataclass(frozen=True, kw_only=True)
class LabelResult:
    """train, holdout: frames with labels that may be used; new: labelled now, the others had been labelled before; corrected: of the
    used ones, by a person; left_out: frames of which too much is unsure; unsure: boxes that are no labels, objects: labels, in the
    frames chosen; quality_error: standard error of quality, over the held-out frames; unreadable: frames that were gone or damaged when
    their turn came; golden_gpu_s: what asking the golden model cost."""

    train: int
    holdout: int
    new: int
    quality: float | None
    traits: Traits
    quality_error: float | None = None
    corrected: int = 0
    left_out: int = 0
    unsure: int = 0
    objects: int = 0
    unreadable: int = 0
    golden_gpu_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class GoldenWork:
    """What asking the golden model came to, over the frames it was asked about."""

    new: int = 0
    unsure: int = 0
    left_out: int = 0
    unreadable: int = 0
    gpu_s: float = 0.0


def frames_to_label(
    samples: Samples, stream: str, window: int, frames: int, holdout_frac: float, judges: int | None = None
) -> tuple[list[SampleRef], list[SampleRef]]:
    """(train, holdout): the frames of a window that are used, up to `frames`, labelled already or not, each in time order. Those that
    a person labelled are all among them, also when they are more; those that a person took out never are. judges: so many are held
    out; None: by holdout_frac (`label_split`)."""
    train, holdout = (
        [ref for ref in refs if not _taken_out(samples, ref)] for refs in pools(samples, stream, window, holdout_frac)
    )
    used = min(frames, len(train) + len(holdout))
    n_holdout = label_split(used, holdout_frac)[1] if judges is None else min(judges, used)
    n_train = used - n_holdout
    # A short window's pool may hold fewer: frames that have never been labelled have taught nothing yet and may judge.
    lent = spread([ref for ref in train if samples.split(ref) is None], n_holdout - len(holdout))
    names = {ref.name for ref in lent}
    order = {ref.name: i for i, ref in enumerate(samples.sampled(stream, window))}
    holdout = sorted([*holdout, *lent], key=lambda ref: order[ref.name])
    train = [ref for ref in train if ref.name not in names]
    return _persons_first(samples, train, n_train), _persons_first(samples, holdout, n_holdout)


def _taken_out(samples: Samples, ref: SampleRef) -> bool:
    return samples.by_person(ref) and samples.labels(ref) is None


def _persons_first(samples: Samples, refs: Sequence[SampleRef], count: int) -> list[SampleRef]:
    persons = {ref.name for ref in refs if samples.by_person(ref)}
    others = spread([ref for ref in refs if ref.name not in persons], count - len(persons))
    wanted = persons | {ref.name for ref in others}
    return [ref for ref in refs if ref.name in wanted]


def golden_label_steps(
    samples: Samples, golden: Detector, wanted: Sequence[tuple[SampleRef, str]], *, scoring: Scoring, task: Task = DETECTION,
    labelling: Labelling = PLAIN, yield_point: YieldPoint = no_yield, timer: Callable[[], float] = lambda: 0.0,
) -> Steps[GoldenWork]:  # fmt: skip
    """Golden labels for (frame, split) pairs that have none; one that has is never asked about again. An iteration is one pass of the
    golden model over at most `labelling.batch` pictures. timer: compute used so far, GPU-seconds."""
    todo = [(ref, split) for ref, split in wanted if samples.split(ref) is None]
    new = unsure = left_out = unreadable = 0
    total_gpu_s = 0.0
    for start in range(0, len(todo), labelling.batch):
        began_gpu_s = timer()
        batch = [
            (ref, split, found) for ref, split in todo[start : start + labelling.batch] if (found := _picture(samples, ref))
        ]
        unreadable += len(todo[start : start + labelling.batch]) - len(batch)
        answers = yield from golden_steps(
            task, golden, [picture for *_, picture in batch], score_min=scoring.golden_score_min, labelling=labelling,
            yield_point=yield_point,
        )  # fmt: skip
        gpu_s = timer() - began_gpu_s
        for (ref, split, _), answer in zip(batch, answers, strict=True):
            kept = _keep(
                samples, ref, answer.sure, golden=golden.spec.arch, split=split, unsure=answer.unsure, left_out=answer.left_out,
                gpu_s=gpu_s / len(batch),
            )  # fmt: skip
            unreadable += not kept
            new, unsure, left_out = new + kept, unsure + kept * len(answer.unsure), left_out + (kept and answer.left_out)
        total_gpu_s += gpu_s
        yield
    return GoldenWork(new=new, unsure=unsure, left_out=left_out, unreadable=unreadable, gpu_s=total_gpu_s)


def _picture(samples: Samples, ref: SampleRef) -> Picture | None:
    """None: the sample was pruned since it was listed, or cannot be read."""
    try:
        return samples.picture(ref)
    except KeyError:
        return None
    except StorageError as error:
        if error.code != "corrupt":
            raise
        return None


def _keep(samples: Samples, ref: SampleRef, labels: Detections, **marks: object) -> bool:
    """False: the sample was pruned while the golden model looked at it."""
    try:
        samples.label(ref, labels, **marks)  # type: ignore[arg-type]
    except KeyError:
        return False
    return True


def label_steps(
    samples: Samples, golden: Detector, serving: Detector, *, stream: str, window: int, frames: int, holdout_frac: float,
    scoring: Scoring, task: Task = DETECTION, yield_point: YieldPoint = no_yield, labelling: Labelling = PLAIN,
    timer: Callable[[], float] = lambda: 0.0, judges: int | None = None,
) -> Steps[LabelResult]:  # fmt: skip
    """Golden labels for a spread of a window's frames, then the serving model's quality on the held-out ones."""
    train, holdout = frames_to_label(samples, stream, window, frames, holdout_frac, judges)
    chosen = [(ref, "train") for ref in train] + [(ref, "holdout") for ref in holdout]
    work = yield from golden_label_steps(
        samples, golden, chosen, scoring=scoring, task=task, labelling=labelling, yield_point=yield_point, timer=timer
    )
    counts = yield from quality_steps(samples, task, serving, holdout, scoring, yield_point)
    found = {ref.name: labels for ref, _ in chosen if (labels := samples.labels(ref)) is not None}
    return LabelResult(
        train=sum(ref.name in found for ref in train), holdout=sum(ref.name in found for ref in holdout), new=work.new,
        quality=quality_of(counts), quality_error=error_of_quality(counts), traits=traits_of(list(found.values()), place=stream),
        corrected=sum(samples.by_person(ref) for ref, _ in chosen if ref.name in found), left_out=work.left_out,
        unsure=work.unsure, objects=sum(len(labels) for labels in found.values()), unreadable=work.unreadable,
        golden_gpu_s=work.gpu_s,
    )  # fmt: skip


def traits_of(labels: Sequence[Detections | None], *, place: str, daypart: str = "") -> Traits:
    """What labelled frames look like, for choosing among the models of earlier windows."""
    known = [found for found in labels if found is not None]
    classes = np.concatenate([np.zeros(0, np.int64), *(f.class_id for f in known)])
    counts = np.bincount(classes[classes < len(CLASSES)], minlength=len(CLASSES))  # without regions that hold no object
    objects = int(counts.sum())
    return Traits(
        class_frac=tuple(float(c) / objects if objects else 0.0 for c in counts),
        objects_per_frame=objects / len(known) if known else 0.0, daypart=daypart, place=place,
    )  # fmt: skip
