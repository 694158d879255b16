"""Labelled pictures of a camera that were made on another box become samples here: each picture once, whatever came before.

A picture is known by its bytes. One that lies here already (the camera comes home, or a parcel comes again) is not kept twice: what both
boxes say of it is merged. A new one is kept in the window that its own is here (`Shift`), under its own number, or the next free one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from streams.sample_record import SampleRecord
from streams.samples import SampleRef, SampleStore

#: A sender's number of a frame is not believed beyond what names of files hold.
SEQS = 10**9


@dataclass(frozen=True, kw_only=True)
class Shift:
    """Windows are counted by each box for itself. newest: the newest window there that has labels; here: the newest one here that is
    over, and the one that it becomes. Those before it keep their distance, as far as there are windows before."""

    newest: int
    here: int

    def window(self, there: int) -> int:
        return min(self.here, max(0, there - self.newest + self.here))


@dataclass(frozen=True, kw_only=True)
class Arrived:
    """new: pictures kept; known: that lay here already; by_person: of both, those that a person labelled or took out."""

    new: int = 0
    known: int = 0
    by_person: int = 0

    def __add__(self, other: Arrived) -> Arrived:
        return Arrived(new=self.new + other.new, known=self.known + other.known, by_person=self.by_person + other.by_person)


def take_in(store: SampleStore, camera: str, records: Iterable[SampleRecord], shift: Shift) -> Arrived:
    """Keeps the pictures as samples of `camera`. Killed on its way it is done again, and keeps none twice. Raises StorageError."""
    here, found = _Here(store, camera), Arrived()
    for record in records:
        ref = here.find(record.jpeg)
        known = ref is not None
        labels = store.adopt(ref or here.place(record, shift), record.jpeg, record.labels)
        found += Arrived(new=int(not known), known=int(known), by_person=int(labels.by == "person"))
    return found


class _Here:
    """The camera's pictures by their sizes, so that few are read; and the numbers taken in each window."""

    def __init__(self, store: SampleStore, camera: str) -> None:
        self._store, self._camera = store, camera
        self._by_size: defaultdict[int, list[SampleRef]] = defaultdict(list)
        self._taken: defaultdict[int, set[int]] = defaultdict(set)
        for ref in store.list(camera):
            self._note(ref, store.size_bytes(ref))

    def find(self, jpeg: bytes) -> SampleRef | None:
        return next((ref for ref in self._by_size[len(jpeg)] if self._bytes(ref) == jpeg), None)

    def place(self, record: SampleRecord, shift: Shift) -> SampleRef:
        window, seq = shift.window(record.window), record.seq % SEQS
        while seq in self._taken[window]:
            seq += 1
        ref = SampleRef(stream=self._camera, window=window, seq=seq)
        self._note(ref, len(record.jpeg))
        return ref

    def _note(self, ref: SampleRef, size_bytes: int | None) -> None:
        self._taken[ref.window].add(ref.seq)
        if size_bytes is not None:
            self._by_size[size_bytes].append(ref)

    def _bytes(self, ref: SampleRef) -> bytes:
        try:
            return self._store.picture_bytes(ref)
        except KeyError:  # pruned meanwhile
            return b""
