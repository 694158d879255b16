"""A `LabelStore` in memory: a few samples of one camera. For tests and for a look, without a data folder."""

from __future__ import annotations

import numpy as np

from configs.units import NOTHING
from edge.labels import (
    CLASS_NAMES,
    BoxIn,
    BoxView,
    LabelPage,
    LabelQuery,
    LabelRow,
    LabelsIn,
    LabelStatistics,
    LabelView,
    SampleName,
    changed,
    not_found,
)
from edge.labels_picture import drawn_jpeg
from edge.labels_statistics import Seen, statistics_of
from scheduler.types import Detections
from streams.label_file import GoldenAnswer, with_golden, with_ignored, with_person

WIDTH_PX, HEIGHT_PX = 160, 120
_CLASS_ID = {name: class_id for class_id, name in enumerate(CLASS_NAMES)}
CAR = BoxView(class_name="car", xyxy=(10.0, 20.0, 60.0, 50.0), score=0.9)
DOUBT = BoxView(class_name="person", xyxy=(100.0, 30.0, 115.0, 80.0), score=0.45)


class FakeLabels:
    """`count` samples `gate/000001/...`, each with a car and a person that the golden model was not sure of. versions: how often
    each was written."""

    def __init__(self, count: int = 3) -> None:
        self._people: dict[SampleName, LabelsIn] = {}
        self.versions = dict.fromkeys((SampleName(camera="gate", window=1, seq=seq) for seq in range(count)), 0)

    def list(self, query: LabelQuery) -> LabelPage:
        after = SampleName.parse(query.after) if query.after is not None else None
        names = [n for n in self.versions if query.camera in (None, n.camera) and query.window in (None, n.window)]
        names = [n for n in names if query.cameras is None or n.camera in query.cameras]
        rows = [self._row(n) for n in names if after is None or n > after]
        rows = [r for r in rows if query.by in (None, "person" if r.state in ("person", "ignored") else "golden")]
        rows = [r for r in rows if query.unsure in (None, r.unsure > 0)]
        page = tuple(rows[: query.limit])
        return LabelPage(labels=page, next=page[-1].sample if len(rows) > query.limit else None)

    def statistics(self, query: LabelQuery) -> LabelStatistics:
        names = [
            n
            for n in self.versions
            if query.camera in (None, n.camera) and (query.cameras is None or n.camera in query.cameras)
        ]
        return LabelStatistics(cameras=statistics_of(map(self._seen, names)), pictures=len(names))

    def _seen(self, name: SampleName) -> Seen:
        said = GoldenAnswer(detections=_found(CAR), golden="fake-golden", stored_utc=0.0, unsure=_found(DOUBT))
        labels, person = with_golden(None, said, "train"), self._people.get(name)
        if person is not None and person.ignored:
            labels = with_ignored(labels, "train", at_utc=0.0)
        elif person is not None:
            labels = with_person(labels, _found(*person.boxes), "train", at_utc=0.0)
        return Seen(camera=name.camera, state=self._row(name).state, labels=labels)

    def get(self, name: SampleName) -> LabelView:
        row = self._row(name)
        person = self._people.get(name)
        boxes = tuple(BoxView(class_name=b.class_name, xyxy=b.xyxy) for b in person.boxes) if person else (CAR,)
        return LabelView(
            **row.model_dump(), width_px=WIDTH_PX, height_px=HEIGHT_PX, golden="fake-golden", golden_gpu_s=0.1, boxes=boxes,
            unsure_boxes=() if person else (DOUBT,), golden_boxes=(CAR,), etag=str(self.versions[name]),
        )  # fmt: skip

    def put(self, name: SampleName, labels: LabelsIn, *, etag: str | None = None) -> LabelView:
        self._expect(name, etag)
        self._people[name] = labels
        self.versions[name] += 1
        return self.get(name)

    def undo(self, name: SampleName, *, etag: str | None = None) -> LabelView:
        self._expect(name, etag)
        if self._people.pop(name, None) is not None:
            self.versions[name] += 1
        return self.get(name)

    def picture(self, name: SampleName, *, drawn: bool) -> bytes:
        view = self.get(name)
        grey = np.full((HEIGHT_PX, WIDTH_PX, 3), 90, np.uint8)
        boxes, unsure = (view.boxes, view.unsure_boxes) if drawn else ((), ())
        return drawn_jpeg(grey, boxes, unsure, by_person=view.state == "person")

    def _expect(self, name: SampleName, etag: str | None) -> None:
        if name not in self.versions:
            raise not_found(name)
        if etag is not None and etag != str(self.versions[name]):
            raise changed(name)

    def _row(self, name: SampleName) -> LabelRow:
        if name not in self.versions:
            raise not_found(name)
        person = self._people.get(name)
        return LabelRow(
            sample=str(name), camera=name.camera, window=name.window, seq=name.seq, split="train", unsure=0 if person else 1,
            state="golden" if person is None else "ignored" if person.ignored else "person",
            counts={"car": 1} if person is None else {b.class_name: 1 for b in person.boxes}, stored_utc=0.0,
        )  # fmt: skip


def _found(*boxes: BoxIn | BoxView) -> Detections:
    return Detections(
        xyxy=np.array([box.xyxy for box in boxes], np.float32).reshape(-1, 4), score=np.ones(len(boxes), np.float32),
        class_id=np.array([_CLASS_ID.get(box.class_name, NOTHING) for box in boxes], np.int64),
    )  # fmt: skip
