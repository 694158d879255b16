"""Labels of a data folder, whether a box runs on it or not: listed, shown, corrected, taken back, counted.

Only label files are written, each replaced by one rename under the sample store's own lock; a running box reads the new one with its
next job. Nothing here needs the box, its database or its models.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from configs.errors import StorageError, UsageError
from configs.units import NOTHING
from edge.jobs.base import split_of
from edge.labels import (
    CLASS_NAMES,
    MAX_BOXES,
    NOTHING_NAME,
    BoxIn,
    BoxView,
    LabelPage,
    LabelQuery,
    LabelRow,
    LabelsIn,
    LabelStatistics,
    LabelStats,
    LabelView,
    SampleName,
    State,
    changed,
    class_name_of,
    not_found,
)
from edge.labels_picture import drawn_jpeg
from edge.labels_statistics import Seen, compared, errors_of, part_of, statistics_of
from models.evaluate import MatchCounts
from scheduler.types import Detections
from streams.label_file import SampleLabels, encode
from streams.samples import SampleRef, SampleStore

#: Label files that one answer looks at; a filter that finds nothing goes on with `next`.
SCAN_MAX = 4000
#: A corner may be this far outside the picture (a hand is not exact); it is cut at the border.
SLACK_PX = 2.0
#: A side below this is a slip of the hand.
MIN_SIDE_PX = 2.0
#: Part of a window's frames that is held out, where no configuration says it: the default of `window.holdout_frac`.
HOLDOUT_FRAC = 0.4


@dataclass(frozen=True, kw_only=True, eq=False)
class Found:
    """A sample and what its label file says; labels None: none, or damaged."""

    ref: SampleRef
    labels: SampleLabels | None
    damaged: bool = False


class FolderLabels:
    """`edge.labels.LabelStore` over a data folder. Raises StorageError when no box has run there. holdout_frac: which split a sample
    gets that a person labels first."""

    def __init__(self, data_dir: Path, *, holdout_frac: float = HOLDOUT_FRAC) -> None:
        folder = data_dir / "samples"
        if not folder.is_dir():
            raise StorageError(
                f"no box has run in {data_dir}", subject=str(data_dir), code="missing",
                remedy="name its folder with --data-dir or --config",
            )  # fmt: skip
        self.store = SampleStore(folder)
        self._holdout_frac = holdout_frac

    # --- read ---------------------------------------------------------------------------------------------------------

    def list(self, query: LabelQuery) -> LabelPage:
        after = SampleName.parse(query.after) if query.after is not None else None
        rows: list[LabelRow] = []
        last, damaged, scanned = None, 0, 0
        for ref in self._refs(_asked(query, self.store.streams), query.window, after):
            if len(rows) >= query.limit or scanned >= SCAN_MAX:
                return LabelPage(labels=tuple(rows), next=last, damaged=damaged)
            found = self.read(ref)
            scanned, last, damaged = scanned + 1, ref.name, damaged + found.damaged
            if _wanted(found, query):
                rows.append(row_of(found))
        return LabelPage(labels=tuple(rows), damaged=damaged)

    def statistics(self, query: LabelQuery) -> LabelStatistics:
        refs = list(islice(self._refs(_asked(query, self.store.streams), query.window, None), SCAN_MAX + 1))
        cameras = statistics_of(self._seen(self.read(ref)) for ref in refs[:SCAN_MAX])
        return LabelStatistics(cameras=cameras, pictures=min(SCAN_MAX, len(refs)), complete=len(refs) <= SCAN_MAX)

    @staticmethod
    def _seen(found: Found) -> Seen:
        return Seen(camera=found.ref.stream, state=state_of(found), labels=found.labels)

    def found(self, query: LabelQuery) -> Iterator[Found]:
        """All samples that a query asks for, without pages."""
        for ref in self._refs(_asked(query, self.store.streams), query.window, None):
            found = self.read(ref)
            if _wanted(found, query):
                yield found

    def get(self, name: SampleName) -> LabelView:
        ref = self.ref(name)
        return self._view(self.read(ref), self.image(ref))

    def picture(self, name: SampleName, *, drawn: bool) -> bytes:
        ref = self.ref(name)
        image = self.image(ref)
        view = self._view(self.read(ref), image)
        return drawn_jpeg(
            image, view.boxes if drawn else (), view.unsure_boxes if drawn else (), by_person=view.state == "person"
        )

    def stats(self, camera: str | None = None) -> LabelStats:
        """Counts over everything that is kept."""
        return stats_of(
            self.read(ref) for ref in self._refs([camera] if camera is not None else self.store.streams(), None, None)
        )

    def read(self, ref: SampleRef) -> Found:
        try:
            return Found(ref=ref, labels=self.store.load_labels(ref))
        except KeyError:
            return Found(ref=ref, labels=None)
        except StorageError as error:
            if error.code != "corrupt":
                raise
            return Found(ref=ref, labels=None, damaged=True)

    def ref(self, name: SampleName) -> SampleRef:
        return SampleRef(stream=name.camera, window=name.window, seq=name.seq)

    def image(self, ref: SampleRef) -> np.ndarray:
        try:
            return self.store.load_image(ref)
        except KeyError:
            raise not_found(ref.name) from None

    def _refs(self, cameras: Iterable[str], window: int | None, after: SampleName | None) -> Iterator[SampleRef]:
        """Newest window first, then by camera and seq; those after `after` in that order."""
        windows = sorted((-w, c) for c in cameras for w in self.store.windows(c) if window is None or w == window)
        start = (-after.window, after.camera) if after is not None else None
        for key in windows:
            if start is not None and key < start:
                continue
            for ref in self.store.sampled(key[1], -key[0]):
                if start is None or key != start or after is None or ref.seq > after.seq:
                    yield ref

    def _view(self, found: Found, image: np.ndarray) -> LabelView:
        labels, row = found.labels, row_of(found)
        said = labels.said if labels is not None else None
        return LabelView(
            **row.model_dump(), height_px=image.shape[0], width_px=image.shape[1], golden=labels.golden if labels else "",
            golden_gpu_s=said.gpu_s if said else None, boxes=boxes_of(labels.detections) if labels else (),
            unsure_boxes=boxes_of(labels.unsure) if labels else (),
            golden_boxes=boxes_of(said.detections) if said else None, etag=etag_of(labels),
        )  # fmt: skip

    # --- write --------------------------------------------------------------------------------------------------------

    def put(self, name: SampleName, labels: LabelsIn, *, etag: str | None = None) -> LabelView:
        ref = self.ref(name)
        image = self.image(ref)
        check = _expecting(name, etag)
        if labels.ignored:
            if labels.boxes:
                raise problem(name, "an ignored sample has no boxes")
            kept = self._write(ref, lambda: self.store.ignore(ref, self.split(ref), check=check))
        else:
            found = self.checked(name, labels.boxes, image)
            kept = self._write(ref, lambda: self.store.correct(ref, found, self.split(ref), check=check))
        return self._view(Found(ref=ref, labels=kept), image)

    def undo(self, name: SampleName, *, etag: str | None = None) -> LabelView:
        ref = self.ref(name)
        image = self.image(ref)
        kept = self._write(ref, lambda: self.store.undo(ref, check=_expecting(name, etag)))
        return self._view(Found(ref=ref, labels=kept), image)

    def checked(self, name: SampleName, boxes: Sequence[BoxIn], image: np.ndarray) -> Detections:
        """A person's boxes, cut at the border. Raises UsageError naming the first that cannot be, and how many more."""
        regions = self.store.load_regions(self.ref(name)) is not None
        return checked_boxes(name, boxes, width_px=image.shape[1], height_px=image.shape[0], nothing=regions)

    def split(self, ref: SampleRef) -> str:
        """What a sample may be used for: as it is marked, or by its place in the window, as the box itself would."""
        labels = self.store.labels_or_none(ref)
        if labels is not None:
            return labels.split
        order = self.store.sampled(ref.stream, ref.window)
        return split_of(order.index(ref), self._holdout_frac) if ref in order else "train"

    def _write(self, ref: SampleRef, write: Callable[[], SampleLabels | None]) -> SampleLabels | None:
        try:
            return write()
        except KeyError:  # pruned between the look and the answer
            raise not_found(ref.name) from None


# --- what is shown ----------------------------------------------------------------------------------------------------


def row_of(found: Found) -> LabelRow:
    ref, labels = found.ref, found.labels
    return LabelRow(
        sample=ref.name, camera=ref.stream, window=ref.window, seq=ref.seq, state=state_of(found),
        split=labels.split if labels else None, counts=counts_of(labels.detections) if labels else {},
        unsure=len(labels.unsure) if labels else 0, stored_utc=labels.stored_utc if labels else None,
    )  # fmt: skip


def state_of(found: Found) -> State:
    labels = found.labels
    if labels is None:
        return "damaged" if found.damaged else "unlabelled"
    if labels.left_out:
        return labels.left_out
    return labels.by


def boxes_of(found: Detections) -> tuple[BoxView, ...]:
    rows = zip(found.xyxy.tolist(), found.score.tolist(), found.class_id.tolist(), strict=True)
    return tuple(
        BoxView(class_name=class_name_of(k), xyxy=tuple(round(v, 2) for v in xyxy), score=round(score, 4))
        for xyxy, score, k in rows
    )


def counts_of(found: Detections) -> dict[str, int]:
    return dict(Counter(class_name_of(k) for k in sorted(found.class_id.tolist())))


def etag_of(labels: SampleLabels | None) -> str:
    return "none" if labels is None else hashlib.sha256(encode(labels)).hexdigest()[:24]


def _asked(query: LabelQuery, all_cameras: Callable[[], Iterable[str]]) -> list[str]:
    """The cameras that a query is about."""
    cameras = [query.camera] if query.camera is not None else all_cameras()
    return [camera for camera in cameras if query.cameras is None or camera in query.cameras]


def _wanted(found: Found, query: LabelQuery) -> bool:
    labels = found.labels
    if labels is None:
        return (query.unlabelled or found.damaged) and query.by is None and query.unsure is not True
    if query.by is not None and labels.by != query.by:
        return False
    return query.unsure is None or query.unsure == (len(labels.unsure) > 0)


# --- what may be said -------------------------------------------------------------------------------------------------


def checked_boxes(
    name: SampleName | str, boxes: Sequence[BoxIn], *, width_px: int, height_px: int, nothing: bool
) -> Detections:
    """Boxes as labels, cut at the border of their picture. nothing: the class of regions without an object is allowed.
    Raises UsageError (code 'labels')."""
    if len(boxes) > MAX_BOXES:
        raise problem(name, f"{len(boxes)} boxes; at most {MAX_BOXES}")
    problems = [
        f"box {number} ({box.class_name[:20]}): {text}"
        for number, box in enumerate(boxes, start=1)
        if (text := _box_problem(box, width_px, height_px, nothing=nothing))
    ]
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise problem(name, problems[0] + more)
    if not boxes:
        return Detections.empty()
    limit = np.array([width_px, height_px] * 2, np.float32)
    return Detections(
        xyxy=np.clip(np.array([box.xyxy for box in boxes], np.float32), 0, limit),
        score=np.ones(len(boxes), np.float32),
        class_id=np.array([CLASS_NAMES.index(box.class_name) for box in boxes], np.int64),
    )


def _box_problem(box: BoxIn, width_px: int, height_px: int, *, nothing: bool) -> str:
    left, top, right, bottom = box.xyxy
    if box.class_name not in CLASS_NAMES:
        return f"unknown class; known: {', '.join(CLASS_NAMES[:NOTHING])}"
    if box.class_name == NOTHING_NAME and not nothing:
        return f"'{NOTHING_NAME}' is for regions that moved; leave the box out instead"
    if not np.isfinite(box.xyxy).all():
        return "corners must be numbers"
    if right - left < MIN_SIDE_PX or bottom - top < MIN_SIDE_PX:
        return f"needs left < right and top < bottom, {MIN_SIDE_PX:g} px at least"
    outside = max(-left, -top, right - width_px, bottom - height_px)
    return f"reaches {outside:.0f} px outside the picture of {width_px} x {height_px}" if outside > SLACK_PX else ""


def problem(name: SampleName | str, text: str) -> UsageError:
    return UsageError(
        f"{name}: {text}", subject=str(name), code="labels", remedy="nothing was written; correct it and try again"
    )


def _expecting(name: SampleName, etag: str | None) -> Callable[[SampleLabels | None], None]:
    def check(labels: SampleLabels | None) -> None:
        if etag is not None and etag_of(labels) != etag:
            raise changed(name)

    return check


# --- counts -----------------------------------------------------------------------------------------------------------


def stats_of(found: Iterator[Found]) -> LabelStats:
    """Counts, and how often the golden model was wrong where a person has looked."""
    counts: Counter[str] = Counter()
    classes: Counter[str] = Counter()
    errors, checked, cost_gpu_s, costed = MatchCounts(), 0, 0.0, 0
    for one in found:
        state, labels = state_of(one), one.labels
        counts["samples"] += 1
        counts[state] += 1
        if labels is None:
            continue
        if labels.usable:
            classes.update(counts_of(labels.detections))
            counts["with_unsure"] += len(labels.unsure) > 0
        if labels.said is not None and labels.said.gpu_s is not None:
            cost_gpu_s, costed = cost_gpu_s + labels.said.gpu_s, costed + 1
        matches = compared(labels) if state == "person" else None
        if matches is not None:
            errors, checked = errors + matches, checked + 1
    by_person = counts["person"] + counts["ignored"]
    labelled = counts["golden"] + counts["unsure"] + by_person
    return LabelStats(
        samples=counts["samples"], labelled=labelled, by_person=by_person, ignored=counts["ignored"], left_out=counts["unsure"],
        with_unsure=counts["with_unsure"], damaged=counts["damaged"],
        counts={name: classes[name] for name in CLASS_NAMES if classes[name]},
        corrected_frac=part_of(by_person, labelled), golden_samples=costed, golden_gpu_s=round(cost_gpu_s, 3),
        golden_gpu_s_per_sample=round(cost_gpu_s / costed, 4) if costed else None,
        golden_errors=errors_of(errors, checked),
    )  # fmt: skip
