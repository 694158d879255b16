"""`edge.jobs.Samples` over the sample store on disk; pictures are read one at a time, when a job wants them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, overload

from models.labelled import LabelledImage
from models.tasks.base import Picture
from scheduler.types import Detections
from streams.samples import SampleRef, SampleStore


class LazyImages(Sequence[LabelledImage]):
    """Labelled samples, loaded from disk on every access: a job's memory does not grow with its sample."""

    def __init__(self, store: SampleStore, refs: Sequence[SampleRef]) -> None:
        self._store, self._refs = store, tuple(refs)

    def __len__(self) -> int:
        return len(self._refs)

    @property
    def persons(self) -> list[int]:
        """Indices of those that a person labelled."""
        found = (self._store.labels_or_none(ref) for ref in self._refs)
        return [i for i, labels in enumerate(found) if labels is not None and labels.by == "person"]

    @overload
    def __getitem__(self, index: int) -> LabelledImage: ...
    @overload
    def __getitem__(self, index: slice) -> LazyImages: ...
    def __getitem__(self, index: int | slice) -> LabelledImage | LazyImages:
        if isinstance(index, slice):
            return LazyImages(self._store, self._refs[index])
        ref = self._refs[index]
        labels = self._store.load_labels(ref)
        return LabelledImage(image=self._store.load_image(ref), labels=labels.detections, by_person=labels.by == "person")


class FileSamples:
    """See `edge.jobs.Samples`."""

    def __init__(self, store: SampleStore) -> None:
        self._store = store

    @property
    def root(self) -> Path:
        """Where they lie, for a process that reads them too."""
        return self._store.root

    def sampled(self, stream: str, window: int) -> Sequence[SampleRef]:
        return self._store.sampled(stream, window)

    def picture(self, ref: Any) -> Picture:
        return Picture(image=self._store.load_image(ref), regions=self._store.load_regions(ref))

    def labels(self, ref: Any) -> Detections | None:
        labels = self._store.labels_or_none(ref)
        return labels.detections if labels is not None and labels.usable else None

    def split(self, ref: Any) -> str | None:
        return self._store.split(ref)

    def by_person(self, ref: Any) -> bool:
        labels = self._store.labels_or_none(ref)
        return labels is not None and labels.by == "person"

    def label(
        self, ref: Any, labels: Detections, *, golden: str, split: str, unsure: Detections | None = None,
        left_out: bool = False, gpu_s: float | None = None,
    ) -> None:  # fmt: skip
        self._store.label(ref, labels, golden, split, unsure=unsure, left_out="unsure" if left_out else "", gpu_s=gpu_s)

    def labelled(self, stream: str, windows: Sequence[int], split: str) -> LazyImages:
        return LazyImages(self._store, self._store.usable(stream, list(windows), split))
