"""Labels are looked at before anything is trained on them: what cannot be right is dropped and counted, never silently.

A golden model, a person's correction or a damaged file can bring boxes that are NaN, inverted, outside the picture or of a class that
nobody knows; a window can be without objects, of one class, of five pictures or of fifty thousand. Each has one answer here:

    no picture, or fewer than MIN_PICTURES         refused: no_data, too_few
    nothing labelled in any of them                refused: no_objects (single pictures without objects are background, and allowed)
    more than half of the boxes of unknown classes refused: unknown_classes
    more than half of the boxes impossible         refused: bad_labels
    single impossible or unknown boxes             dropped; noted with their number
    boxes over the border                          cut, when at least KEEP_AREA_FRAC of them is inside; else dropped
    sides under MIN_SIDE_PX                        dropped: no network here can see them
    boxes as large as the picture                  kept (somebody stands before the lens) and noted
    one class only                                 trained on; noted: nothing can be balanced, and other classes are not seen
    fewer than FEW_PICTURES                        trained on; noted, since neither trials nor gate can tell much
    more than MAX_PICTURES                         so many of them, spread evenly over their time; noted
    pictures that cannot be read                   left out; noted
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, fields

import numpy as np

from configs.errors import JobError, StorageError
from configs.units import CLASSES, NOTHING
from models.labelled import N_PRESENCE, LabelledImage, Subset, presence_row, spread
from scheduler.types import Detections

MIN_PICTURES = 4
FEW_PICTURES = 12
MAX_PICTURES = 4096
MIN_SIDE_PX = 2.0
KEEP_AREA_FRAC = 0.35
#: A box that covers this part of the picture is as large as it.
WHOLE_FRAC = 0.95
#: More than this part of all boxes dropped for one reason: the labels are not what they are taken for.
REFUSED_FRAC = 0.5


@dataclass(frozen=True, kw_only=True)
class LabelCounts:
    """Boxes of looked-at labels. kept: those that are trained on, of which `cut` reached over the border by more than a pixel and
    `whole` are as large as the picture. Dropped: unknown (class), broken (not finite, or without area), outside, tiny."""

    kept: int = 0
    cut: int = 0
    whole: int = 0
    unknown: int = 0
    broken: int = 0
    outside: int = 0
    tiny: int = 0

    def __add__(self, other: LabelCounts) -> LabelCounts:
        return LabelCounts(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})

    @property
    def dropped(self) -> int:
        return self.unknown + self.broken + self.outside + self.tiny

    @property
    def all(self) -> int:
        return self.kept + self.dropped


def cleaned(labels: Detections, *, height_px: int, width_px: int) -> tuple[Detections, LabelCounts]:
    """The labels that can be right, cut at the border; and what became of the others."""
    boxes = labels.xyxy.astype(np.float64)
    known = (labels.class_id >= 0) & (labels.class_id <= NOTHING)
    sound = np.isfinite(boxes).all(axis=1) & (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])
    boxes = np.where(sound[:, None], boxes, 0.0)
    limit = (width_px, height_px, width_px, height_px)
    cut = np.clip(boxes, 0, limit)
    sides = cut[:, 2:] - cut[:, :2]
    inside_frac = sides.prod(axis=1) / np.maximum((boxes[:, 2:] - boxes[:, :2]).prod(axis=1), 1e-9)
    inside = inside_frac >= KEEP_AREA_FRAC
    seen = (sides >= MIN_SIDE_PX).all(axis=1)
    keep = known & sound & inside & seen
    over = np.abs(cut - boxes).max(axis=1, initial=0.0) > 1.0
    whole = sides.prod(axis=1) >= WHOLE_FRAC * width_px * height_px
    counts = LabelCounts(
        kept=_n(keep), cut=_n(keep & over), whole=_n(keep & whole), unknown=_n(~known), broken=_n(known & ~sound),
        outside=_n(known & sound & ~inside), tiny=_n(known & sound & inside & ~seen),
    )  # fmt: skip
    kept = Detections(xyxy=cut[keep].astype(np.float32), score=labels.score[keep], class_id=labels.class_id[keep])
    return kept, counts


def _n(mask: np.ndarray) -> int:
    return int(mask.sum())


class CheckedSamples(Sequence[LabelledImage]):
    """Samples whose labels were looked at; cleaned each time they are read. presence: see `models.labelled.presence_of`.
    notes: what people should know, one sentence each; persons: indices of those that a person labelled."""

    def __init__(
        self, samples: Sequence[LabelledImage], presence: np.ndarray, notes: Sequence[str], persons: Sequence[int] = ()
    ) -> None:
        if presence.shape != (len(samples), N_PRESENCE):
            raise ValueError(f"presence must be ({len(samples)}, {N_PRESENCE}), got {presence.shape}")
        self._samples, self.presence, self.notes, self.persons = samples, presence, tuple(notes), tuple(persons)

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, i):  # type: ignore[no-untyped-def]  # int or slice, as Sequence has it
        if isinstance(i, slice):
            return Subset(self, range(len(self))[i])
        sample = self._samples[i]
        labels, _ = cleaned(sample.labels, height_px=sample.image.shape[0], width_px=sample.image.shape[1])
        return LabelledImage(image=sample.image, labels=labels, by_person=sample.by_person)


def looked_at(
    samples: Sequence[LabelledImage],
    *,
    subject: str,
    max_pictures: int = MAX_PICTURES,
    refuse: bool = True,
    balance: bool = False,
) -> Generator[None, None, CheckedSamples]:
    """Looks at the labels of a training set, one picture per `next`; memory does not grow with its size.

    refuse: False for pictures that are only added to others (earlier windows): any number of any kind will do then, and only what was
    dropped is noted. balance: whether classes are to be balanced, which one class alone cannot be.
    Raises JobError as the module's text says, its subject `subject` (the camera)."""
    if not len(samples) and refuse:
        raise JobError("there is nothing to train on", subject=subject, remedy="label some frames first", code="no_data")
    chosen = spread(len(samples), max_pictures)
    readable: list[int] = []
    persons: list[int] = []
    rows, counts = [], LabelCounts()
    for index in chosen:
        try:
            sample = samples[index]
        except (KeyError, StorageError):  # pruned since it was listed, or damaged
            yield
            continue
        labels, found = cleaned(sample.labels, height_px=sample.image.shape[0], width_px=sample.image.shape[1])
        if sample.by_person:
            persons.append(len(readable))
        readable.append(index)
        rows.append(presence_row(labels))
        counts += found
        yield
    presence = np.array(rows, bool).reshape(len(rows), N_PRESENCE)
    notes = _label_notes(len(chosen) - len(rows), counts)
    if refuse:
        _refuse(presence, counts, subject)
        notes += _set_notes(len(samples), len(chosen), presence, balance)
    return CheckedSamples(Subset(samples, readable), presence, notes, persons)


def _refuse(presence: np.ndarray, counts: LabelCounts, subject: str) -> None:
    """Raises JobError when the labels are not to be trained on."""
    if counts.unknown > REFUSED_FRAC * counts.all:
        raise JobError(
            f"{counts.unknown} of {counts.all} labelled boxes are of classes that this box does not know", subject=subject,
            code="unknown_classes", remedy=f"the golden model must answer in {', '.join(CLASSES)}; label the window again",
        )  # fmt: skip
    if counts.broken + counts.outside > REFUSED_FRAC * counts.all:
        raise JobError(
            f"{counts.broken + counts.outside} of {counts.all} labelled boxes are impossible (not finite, without area, or outside "
            "the picture)", subject=subject, code="bad_labels", remedy="check the golden model, and label the window again",
        )  # fmt: skip
    if not presence[:, :NOTHING].any():
        raise JobError(
            f"none of {len(presence)} labelled pictures shows an object to learn from", subject=subject, code="no_objects",
            remedy="the camera keeps its model; it learns again when something passes",
        )  # fmt: skip
    if len(presence) < MIN_PICTURES:
        raise JobError(
            f"only {len(presence)} labelled pictures: too few to learn from (at least {MIN_PICTURES})", subject=subject,
            code="too_few", remedy="the camera keeps its model; raise window.label_frames or window.sample_fps",
        )  # fmt: skip


def _label_notes(unreadable: int, counts: LabelCounts) -> list[str]:
    """What was dropped or changed."""
    notes = []
    if unreadable:
        notes.append(f"{unreadable} labelled pictures could not be read and are left out")
    if counts.dropped:
        kinds = {"of unknown classes": counts.unknown, "broken": counts.broken, "outside the picture": counts.outside}
        kinds[f"under {MIN_SIDE_PX:g} px"] = counts.tiny
        reasons = ", ".join(f"{number} {what}" for what, number in kinds.items() if number)
        notes.append(f"{counts.dropped} of {counts.all} labelled boxes are not trained on: {reasons}")
    if counts.cut:
        notes.append(f"{counts.cut} labelled boxes reached over the picture's border and were cut")
    if counts.whole:
        notes.append(f"{counts.whole} labelled boxes are as large as the picture")
    return notes


def _set_notes(n_all: int, n_chosen: int, presence: np.ndarray, balance: bool) -> list[str]:
    """What is unusual about the set as a whole."""
    n = len(presence)
    classes = np.flatnonzero(presence[:, :NOTHING].any(axis=0))
    empty = n - int(presence.any(axis=1).sum())
    notes = []
    if n_chosen < n_all:
        notes.append(f"{n_all} labelled pictures: {n_chosen} of them are used, spread evenly")
    if len(classes) == 1:
        rest = ": there is nothing to balance" if balance else ""
        notes.append(f"only one class is labelled ({CLASSES[classes[0]]}){rest}")
    if empty > n / 2:
        notes.append(f"{empty} of {n} labelled pictures show nothing")
    if n < FEW_PICTURES:
        notes.append(f"only {n} labelled pictures: trials and gate can tell little")
    return notes
