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
        self.unsure: dict[Ref, Detections] = {}
        self.left_out: set[Ref] = set()
        self.persons: set[Ref] = set()
        self.costs_gpu_s: dict[Ref, float | None] = {}

    def sampled(self, stream: str, window: int) -> list[Ref]:
        return self._refs.get((stream, window), [])

    def picture(self, ref: Any) -> Picture:
        return Picture(image=scripted_image(ref.window * 1000 + ref.number)[0])

    def truth(self, ref: Ref) -> Detections:
        return scripted_image(ref.window * 1000 + ref.number)[1]

    def labels(self, ref: Any) -> Detections | None:
        return self._labels[ref][0] if ref in self._labels and ref not in self.left_out else None

    def split(self, ref: Any) -> str | None:
        return self._labels[ref][1] if ref in self._labels else None

    def by_person(self, ref: Any) -> bool:
        return ref in self.persons

    def label(
        self, ref: Any, labels: Detections, *, golden: str, split: str, unsure: Detections | None = None,
        left_out: bool = False, gpu_s: float | None = None,
    ) -> None:  # fmt: skip
        self.costs_gpu_s[ref] = gpu_s
        if ref in self.persons:
            return
        self._labels[ref] = (labels, split)
        self.unsure[ref] = unsure if unsure is not None else Detections.empty()
        if left_out:
            self.left_out.add(ref)

    def correct(self, ref: Ref, labels: Detections, *, split: str) -> None:
        """A person's labels."""
        self.persons.add(ref)
        self._labels[ref] = (labels, split)

    def ignore(self, ref: Ref, *, split: str) -> None:
        """A person takes a frame out."""
        self.correct(ref, Detections.empty(), split=split)
        self.left_out.add(ref)

    def labelled(self, stream: str, windows: Sequence[int], split: str) -> list[LabelledImage]:
        return [
            LabelledImage(image=self.picture(ref).image, labels=self._labels[ref][0], by_person=ref in self.persons)
            for window in windows
            for ref in self.sampled(stream, window)
            if self.split(ref) == split and ref not in self.left_out
        ]
