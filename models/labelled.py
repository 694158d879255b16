"""Pictures with labels, and what every job that walks over them shares."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from configs.units import NOTHING
from models.tasks.base import Picture
from scheduler.types import Detections

if TYPE_CHECKING:
    from models.detector import Detector, YieldPoint
    from models.tasks.base import Task


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelledImage:
    """image: uint8 (H, W, 3) RGB. labels: boxes in its pixels (golden labels or ground truth; their scores are not used).
    by_person: a person made them, which outweighs a golden model."""

    image: np.ndarray
    labels: Detections
    by_person: bool = False

    def __post_init__(self) -> None:
        if self.image.dtype != np.uint8 or self.image.ndim != 3 or self.image.shape[2] != 3:
            raise ValueError(f"LabelledImage.image must be uint8 (H, W, 3), got {self.image.dtype} {self.image.shape}")

    @property
    def picture(self) -> Picture:
        """The image as a task sees it; the regions to classify are those that have labels."""
        return Picture(image=self.image, regions=self.labels.xyxy)


def predicted(
    detector: Detector, samples: Sequence[LabelledImage], *, task: Task, score_min: float = 0.25,
    yield_point: YieldPoint | None = None,
) -> Iterator[tuple[Detections, Detections]]:  # fmt: skip
    """(predictions, labels) of one sample per `next`, so that evaluation can be scheduled like training.
    `samples` may load lazily; each is read once, in order."""
    for i in range(len(samples)):
        sample = samples[i]
        yield task.predict(detector, [sample.picture], score_min=score_min, yield_point=yield_point)[0], sample.labels


def spread(n: int, wanted: int) -> list[int]:
    """`wanted` of the indices 0..n-1 spread evenly over them (all, when wanted >= n), rising: a uniform sample in time."""
    if wanted >= n:
        return list(range(n))
    return sorted({int((i + 0.5) * n / wanted) for i in range(wanted)})


class Subset(Sequence[LabelledImage]):
    """Some of the samples, still loaded lazily."""

    def __init__(self, samples: Sequence[LabelledImage], indices: Sequence[int]) -> None:
        self._samples, self._indices = samples, tuple(indices)

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, i):  # type: ignore[no-untyped-def]  # int or slice, as Sequence has it
        if isinstance(i, slice):
            return Subset(self._samples, self._indices[i])
        return self._samples[self._indices[i]]

    @property
    def presence(self) -> np.ndarray | None:
        """See `presence_of`; None when it is not known without reading the pictures."""
        known = getattr(self._samples, "presence", None)
        return None if known is None else known[list(self._indices)]


def persons_of(samples: Sequence[LabelledImage]) -> list[int]:
    """Indices of the samples that a person labelled, of a collection that knows them without reading pictures; of another, none."""
    return list(getattr(samples, "persons", ()))


class Pooled(Sequence[LabelledImage]):
    """Several cameras' samples as one, still loaded lazily: in turns, so that any stretch of it holds all of them alike.

    At most `PER_MEMBER` times the smallest number that any of them brings is taken of each, spread evenly over its time: a camera with
    many labels must not decide alone what the model of all becomes. Cameras that bring nothing are passed over."""

    PER_MEMBER = 2

    def __init__(self, members: Sequence[Sequence[LabelledImage]]) -> None:
        bring = [member for member in members if len(member)]
        most = self.PER_MEMBER * min(map(len, bring), default=0)
        picks = [(spread(len(member), most), member) for member in bring]
        turns = max((len(chosen) for chosen, _ in picks), default=0)
        self._at = [(m, chosen[turn]) for turn in range(turns) for chosen, m in picks if turn < len(chosen)]

    @property
    def persons(self) -> list[int]:
        mine = {id(member): set(persons_of(member)) for member, _ in self._at}
        return [k for k, (member, i) in enumerate(self._at) if i in mine[id(member)]]

    def __len__(self) -> int:
        return len(self._at)

    def __getitem__(self, i):  # type: ignore[no-untyped-def]  # int or slice, as Sequence has it
        if isinstance(i, slice):
            return Subset(self, range(len(self))[i])
        member, index = self._at[i]
        return member[index]


#: Columns of a presence table: the box's classes, then what is no object.
N_PRESENCE = NOTHING + 1


def presence_row(labels: Detections) -> np.ndarray:
    """Which classes a picture shows. bool (N_PRESENCE,)"""
    row = np.zeros(N_PRESENCE, bool)
    row[labels.class_id[(labels.class_id >= 0) & (labels.class_id < N_PRESENCE)]] = True
    return row


def presence_of(samples: Sequence[LabelledImage]) -> np.ndarray:
    """Which picture shows which class. bool (N, N_PRESENCE). Taken from the samples where they know it (attribute `presence`: those that
    `models.sanity` has looked at), else every picture is read."""
    known = getattr(samples, "presence", None)
    if known is not None:
        return np.asarray(known)
    return np.array([presence_row(samples[i].labels) for i in range(len(samples))], bool).reshape(len(samples), N_PRESENCE)
