"""Pictures with labels, and what every job that walks over them shares."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from models.tasks.base import Picture
from scheduler.types import Detections

if TYPE_CHECKING:
    from models.detector import Detector, YieldPoint
    from models.tasks.base import Task


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelledImage:
    """image: uint8 (H, W, 3) RGB. labels: boxes in its pixels (golden labels or ground truth; their scores are not used)."""

    image: np.ndarray
    labels: Detections

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
