"""`edge.jobs.Samples` in memory, over scripted pictures of the fake detector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from models.fake import scripted_image
from models.labelled import LabelledImage
from models.tasks.base import Picture
from scheduler.types import Detections


@dataclass(frozen=True)
class Ref:
    stream: str
    window: int
    number: int

    @property
    def name(self) -> str:
        return f"{self.stream}/{self.window}/{self.number}"


class MemorySamples:
    def __init__(self, frames: dict[tuple[str, int], int]) -> None:
        """frames: (stream, window) -> how many were sampled."""
        self._refs = {key: [Ref(*key, n) for n in range(count)] for key, count in frames.items()}
        self._labels: dict[Ref, tuple[Detections, str]] = {}

    def sampled(self, stream: str, window: int) -> list[Ref]:
        return self._refs.get((stream, window), [])

    def picture(self, ref: Any) -> Picture:
        return Picture(image=scripted_image(ref.window * 1000 + ref.number)[0])

    def truth(self, ref: Ref) -> Detections:
        return scripted_image(ref.window * 1000 + ref.number)[1]

    def labels(self, ref: Any) -> Detections | None:
        return self._labels[ref][0] if ref in self._labels else None

    def split(self, ref: Any) -> str | None:
        return self._labels[ref][1] if ref in self._labels else None

    def label(self, ref: Any, labels: Detections, *, golden: str, split: str) -> None:
        self._labels[ref] = (labels, split)

    def labelled(self, stream: str, windows: Sequence[int], split: str) -> list[LabelledImage]:
        return [
            LabelledImage(image=self.picture(ref).image, labels=self._labels[ref][0])
            for window in windows
            for ref in self.sampled(stream, window)
            if self.split(ref) == split
        ]
