"""What the labels of a box amount to, by camera and class, and what people's corrections say of the large model. Pure.

A correction is compared with what the large model had said of the same picture, class by class (box overlap `SAME_IOU`): a box that a
person kept is right, one that is gone, moved or of another class is wrong, an object that a person added was missed. People look at
unsure pictures first, so these parts are of the pictures they looked at, and worse than over all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from edge.labels import CameraLabels, ClassLabels, GoldenErrors, State, class_name_of
from models.evaluate import MatchCounts, match_counts
from scheduler.types import Detections
from streams.label_file import SampleLabels

#: Overlap from which on two boxes are the same.
SAME_IOU = 0.5


class Seen(NamedTuple):
    """A sample. labels: None where state is unlabelled or damaged."""

    camera: str
    state: State
    labels: SampleLabels | None


@dataclass(kw_only=True)
class _Class:
    golden: int = 0
    corrected: int = 0
    unsure: int = 0
    ignored: int = 0
    matches: MatchCounts = field(default_factory=MatchCounts)
    pictures: int = 0


@dataclass(kw_only=True)
class _Camera:
    states: Counter[State] = field(default_factory=Counter)
    classes: dict[int, _Class] = field(default_factory=dict)
    matches: MatchCounts = field(default_factory=MatchCounts)
    compared: int = 0

    def of_class(self, class_id: int) -> _Class:
        return self.classes.setdefault(class_id, _Class())


def statistics_of(samples: Iterable[Seen]) -> tuple[CameraLabels, ...]:
    """By camera, in the order of their ids."""
    cameras: dict[str, _Camera] = {}
    for sample in samples:
        _count(cameras.setdefault(sample.camera, _Camera()), sample)
    return tuple(_view(id, camera) for id, camera in sorted(cameras.items()))


def errors_of(matches: MatchCounts, pictures: int) -> GoldenErrors:
    """matches: the large model's boxes against a person's, over so many pictures."""
    return GoldenErrors(
        samples=pictures, right=matches.tp, wrong=matches.fp, missed=matches.fn, wrong_frac=part_of(matches.fp, matches.tp + matches.fp),
        missed_frac=part_of(matches.fn, matches.tp + matches.fn),
    )  # fmt: skip


def compared(labels: SampleLabels) -> MatchCounts | None:
    """What the large model said against a person's labels; None: it was never asked."""
    return None if labels.said is None else _matched(labels.said.detections, labels.detections)


def part_of(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


# --- inside -----------------------------------------------------------------------------------------------------------


def _count(camera: _Camera, sample: Seen) -> None:
    camera.states[sample.state] += 1
    labels = sample.labels
    if labels is None:
        return
    if sample.state == "golden":
        for class_id in labels.detections.class_id.tolist():
            camera.of_class(class_id).golden += 1
    if sample.state in ("golden", "unsure"):
        for class_id in labels.unsure.class_id.tolist():
            camera.of_class(class_id).unsure += 1
    if sample.state == "ignored" and labels.said is not None:
        for class_id in labels.said.detections.class_id.tolist():
            camera.of_class(class_id).ignored += 1
    if sample.state == "person":
        for class_id in labels.detections.class_id.tolist():
            camera.of_class(class_id).corrected += 1
        _compare(camera, labels)


def _compare(camera: _Camera, labels: SampleLabels) -> None:
    if labels.said is None:
        return
    said, right = labels.said.detections, labels.detections
    camera.matches, camera.compared = camera.matches + _matched(said, right), camera.compared + 1
    for class_id in {*said.class_id.tolist(), *right.class_id.tolist()}:
        counts = camera.of_class(class_id)
        counts.matches, counts.pictures = (
            counts.matches + _matched(_only(said, class_id), _only(right, class_id)), counts.pictures + 1
        )  # fmt: skip


def _matched(said: Detections, right: Detections) -> MatchCounts:
    return match_counts(said, right, iou_min=SAME_IOU, score_min=0.0)


def _only(found: Detections, class_id: int) -> Detections:
    keep = found.class_id == class_id
    return Detections(xyxy=found.xyxy[keep], score=found.score[keep], class_id=found.class_id[keep])


def _view(id: str, camera: _Camera) -> CameraLabels:
    states = camera.states
    return CameraLabels(
        camera=id, pictures=states.total(), golden=states["golden"], corrected=states["person"], ignored=states["ignored"],
        left_out=states["unsure"], unlabelled=states["unlabelled"], damaged=states["damaged"],
        golden_errors=errors_of(camera.matches, camera.compared),
        classes=tuple(
            ClassLabels(
                class_name=class_name_of(class_id), golden=counts.golden, corrected=counts.corrected,
                unsure=counts.unsure, ignored=counts.ignored,
                golden_errors=errors_of(counts.matches, counts.pictures),
            )
            for class_id, counts in sorted(camera.classes.items())
        ),
    )  # fmt: skip
