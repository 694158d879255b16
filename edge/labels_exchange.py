"""Labels for other people's tools and back: YOLO text files and COCO JSON, pictures beside them.

Pictures are named `camera__window__seq.jpg`, so that flat folders, which most labelling tools want, name their sample. Export writes a
new folder or none. Import makes a person's labels; it checks everything first and writes nothing when anything is wrong, and takes back
what it wrote when the disk fails half-way.
"""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import cv2
import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from configs.errors import DriftboxError, UsageError
from configs.files import TEMP_PREFIX, storage_errors
from edge.labels import CLASS_NAMES, BoxIn, LabelQuery, LabelsIn, SampleName, not_found
from edge.labels_admin import FolderLabels, Found, state_of
from models.evaluate import match
from scheduler.types import Detections
from streams.label_file import SampleLabels
from streams.samples import SampleRef

Format = Literal["yolo", "coco"]
FORMATS: tuple[Format, ...] = ("yolo", "coco")
#: A label file or an annotation file larger than this is none of ours.
MAX_TEXT_BYTES, MAX_COCO_BYTES = 2**20, 256 * 2**20
#: Most samples of one import.
MAX_SAMPLES = 100_000
#: A box that came back from a text file is the same box from this overlap on (YOLO's six decimals move it by under a pixel).
UNCHANGED_IOU = 0.9
_FLAT = re.compile(r"([a-z0-9][a-z0-9_-]{0,62})__([0-9]{1,9})__([0-9]{1,15})")


@dataclass(frozen=True, kw_only=True)
class Exported:
    """samples, boxes: written; damaged: samples whose files could not be read and are not among them."""

    folder: Path
    samples: int
    boxes: int
    by_person: int
    damaged: int


@dataclass(frozen=True, kw_only=True)
class Imported:
    """samples: have a person's labels now; confirmed: of them, those that say what had been said before; skipped: left as they were,
    because nothing in them had changed (`changed_only`)."""

    samples: int
    boxes: int
    confirmed: int
    skipped: int


# --- names ------------------------------------------------------------------------------------------------------------


def flat_name(ref: SampleRef) -> str:
    return f"{ref.stream}__{ref.window:06d}__{ref.seq:09d}"


def sample_of(stem: str) -> SampleName | None:
    """The sample a file's stem names, None: it names none. A camera's id may hold `_`, so the last two parts count."""
    found = _FLAT.fullmatch(stem)
    return SampleName(camera=found[1], window=int(found[2]), seq=int(found[3])) if found else None


# --- export -----------------------------------------------------------------------------------------------------------


def export_labels(labels: FolderLabels, target: Path, form: Format, query: LabelQuery) -> Exported:
    """Writes labelled samples (ignored ones excepted) to a folder that is new or empty. Raises UsageError, StorageError."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UsageError(f"{target} is there already and not empty", subject=str(target), remedy="name a new folder")
    part = target.parent / f"{TEMP_PREFIX}{target.name}"
    with storage_errors(target):
        shutil.rmtree(part, ignore_errors=True)
        try:
            (part / "images").mkdir(parents=True)
            written = _write_pictures(labels, part, query)
            (_write_yolo if form == "yolo" else _write_coco)(part, written.samples)
            with suppress(FileNotFoundError):
                target.rmdir()
            part.rename(target)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise
    return Exported(
        folder=target, samples=len(written.samples), boxes=sum(len(s.labels.detections) for s in written.samples),
        by_person=sum(s.labels.by == "person" for s in written.samples), damaged=written.damaged,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class _Sample:
    ref: SampleRef
    labels: SampleLabels
    state: str
    width_px: int
    height_px: int


@dataclass(kw_only=True)
class _Written:
    samples: list[_Sample] = field(default_factory=list)
    damaged: int = 0


def _write_pictures(labels: FolderLabels, folder: Path, query: LabelQuery) -> _Written:
    written = _Written()
    for found in labels.found(query):
        state = state_of(found)
        if found.labels is None or state == "ignored":
            written.damaged += found.damaged
            continue
        with suppress(KeyError):  # pruned meanwhile: not exported
            data = labels.store.picture_bytes(found.ref)
            size = _picture_size(data)
            if size is None:
                written.damaged += 1
                continue
            (folder / "images" / f"{flat_name(found.ref)}.jpg").write_bytes(data)
            written.samples.append(
                _Sample(ref=found.ref, labels=found.labels, state=state, width_px=size[0], height_px=size[1])
            )
    return written


def _write_yolo(folder: Path, samples: Sequence[_Sample]) -> None:
    (folder / "labels").mkdir()
    for sample in samples:
        rows = _yolo_rows(sample.labels.detections, sample.width_px, sample.height_px)
        (folder / "labels" / f"{flat_name(sample.ref)}.txt").write_text("".join(f"{row}\n" for row in rows), encoding="utf-8")
    (folder / "classes.txt").write_text("".join(f"{name}\n" for name in CLASS_NAMES), encoding="utf-8")
    for split, name in (("train", "train.txt"), ("holdout", "val.txt")):
        mine = [f"./images/{flat_name(s.ref)}.jpg\n" for s in samples if s.labels.split == split and s.labels.usable]
        (folder / name).write_text("".join(mine), encoding="utf-8")
    names = dict(enumerate(CLASS_NAMES))
    data = {"path": ".", "train": "train.txt", "val": "val.txt", "names": names}
    (folder / "data.yaml").write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
    (folder / "marks.csv").write_text(_marks(samples), encoding="utf-8")


def _yolo_rows(found: Detections, width_px: int, height_px: int) -> Iterator[str]:
    for (left, top, right, bottom), class_id in zip(found.xyxy.tolist(), found.class_id.tolist(), strict=True):
        centre = ((left + right) / 2 / width_px, (top + bottom) / 2 / height_px)
        size = ((right - left) / width_px, (bottom - top) / height_px)
        yield f"{class_id} " + " ".join(f"{min(1.0, max(0.0, v)):.6f}" for v in (*centre, *size))


def _marks(samples: Sequence[_Sample]) -> str:
    """Who made each picture's labels, and what they may be used for: YOLO's own files have no place for it."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(("picture", "sample", "state", "by", "split", "labels", "unsure"))
    for s in samples:
        row = (s.ref.name, s.state, s.labels.by, s.labels.split, len(s.labels.detections), len(s.labels.unsure))
        table.writerow((f"{flat_name(s.ref)}.jpg", *row))
    return text.getvalue()


def _write_coco(folder: Path, samples: Sequence[_Sample]) -> None:
    images: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    for number, s in enumerate(samples, start=1):
        marks = {"sample": s.ref.name, "state": s.state, "by": s.labels.by, "split": s.labels.split}
        unsure = [_coco_box(box, k) for box, k in zip(s.labels.unsure.xyxy, s.labels.unsure.class_id, strict=True)]
        images.append(
            {"id": number, "file_name": f"{flat_name(s.ref)}.jpg", "width": s.width_px, "height": s.height_px,
             "driftbox": {**marks, "unsure": unsure}}
        )  # fmt: skip
        found = s.labels.detections
        for box, k, score in zip(found.xyxy, found.class_id, found.score.tolist(), strict=True):
            one = _coco_box(box, k)
            area = round(one["bbox"][2] * one["bbox"][3], 2)
            annotations.append(
                {"id": len(annotations) + 1, "image_id": number, **one, "area": area, "iscrowd": 0, "score": round(score, 4)}
            )
    categories = [{"id": k, "name": name} for k, name in enumerate(CLASS_NAMES, start=1)]
    body = {"info": {"description": "Driftbox labels"}, "categories": categories, "images": images, "annotations": annotations}
    (folder / "annotations.json").write_text(json.dumps(body, indent=1), encoding="utf-8")


def _coco_box(xyxy: np.ndarray, class_id: int) -> dict[str, Any]:
    left, top, right, bottom = (round(float(v), 2) for v in xyxy)
    return {"category_id": int(class_id) + 1, "bbox": [left, top, round(right - left, 2), round(bottom - top, 2)]}


# --- import -----------------------------------------------------------------------------------------------------------


class Problems:
    """What is wrong with an import, counted by kind, with the first of each kind."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._first: dict[str, str] = {}

    def add(self, kind: str, where: str) -> None:
        self._counts[kind] += 1
        self._first.setdefault(kind, where)

    def raise_any(self, source: Path) -> None:
        """Raises UsageError (code 'labels') naming every kind."""
        if self._counts:
            kinds = "; ".join(f"{n} x {kind} (first: {self._first[kind]})" for kind, n in self._counts.most_common())
            raise UsageError(
                f"nothing imported from {source}: {kinds}",
                subject=str(source),
                code="labels",
                remedy="correct it and import again",
            )


@dataclass(frozen=True, kw_only=True)
class _Incoming:
    """What a file says of a sample. size_px: (width, height) as the file knows it, None: it does not say; boxes: xyxy as fractions
    of the picture where `relative`, else px."""

    name: SampleName
    where: str
    size_px: tuple[int, int] | None
    boxes: tuple[tuple[str, tuple[float, float, float, float]], ...]
    relative: bool


def import_labels(labels: FolderLabels, source: Path, form: Format, *, changed_only: bool = False) -> Imported:
    """Takes over a folder's labels as a person's: all or none. Raises UsageError with counts of what is wrong, StorageError."""
    if not source.is_dir():
        raise UsageError(f"{source} is no folder", subject=str(source), remedy="name the folder that was exported or labelled")
    problems = Problems()
    incoming = list((_read_yolo if form == "yolo" else _read_coco)(source, problems))
    if len(incoming) > MAX_SAMPLES:
        problems.add("too many samples", f"{len(incoming)}, at most {MAX_SAMPLES}")
    for name, count in Counter(one.name for one in incoming).items():
        if count > 1:
            problems.add("sample that is there twice", str(name))
    problems.raise_any(source)
    if not incoming:
        raise UsageError(f"there are no {form} labels in {source}", subject=str(source), remedy="see docs/labels.md")
    wanted = [found for one in incoming if (found := _checked(labels, one, problems)) is not None]
    problems.raise_any(source)
    old = [labels.read(ref) for ref, _ in wanted]
    same = [_says_the_same(before, new) for before, (_, new) in zip(old, wanted, strict=True)]
    todo = [
        (before, *one) for before, one, unchanged in zip(old, wanted, same, strict=True) if not (changed_only and unchanged)
    ]
    _write_all(labels, todo)
    return Imported(
        samples=len(todo), boxes=sum(len(new) for *_, new in todo), confirmed=0 if changed_only else sum(same),
        skipped=len(wanted) - len(todo),
    )  # fmt: skip


def _write_all(labels: FolderLabels, todo: Sequence[tuple[Found, SampleRef, Detections]]) -> None:
    done: list[Found] = []
    try:
        for before, ref, new in todo:
            try:
                labels.store.correct(ref, new, labels.split(ref))
            except KeyError:
                raise not_found(ref.name) from None
            done.append(before)
    except DriftboxError:
        for before in reversed(done):
            with suppress(DriftboxError, KeyError):
                labels.store.restore(before.ref, before.labels)
        raise


def _says_the_same(before: Found, new: Detections) -> bool:
    if before.labels is None or len(before.labels.detections) != len(new) or not before.labels.usable:
        return False
    return bool((match(new, before.labels.detections, iou_min=UNCHANGED_IOU) >= 0).all())


def _checked(labels: FolderLabels, one: _Incoming, problems: Problems) -> tuple[SampleRef, Detections] | None:
    ref = labels.ref(one.name)
    try:
        image = labels.image(ref)
        height, width = image.shape[:2]
        if one.size_px is not None and one.size_px != (width, height):
            problems.add(
                "wrong picture size", f"{one.where}: {one.size_px[0]} x {one.size_px[1]}, the sample has {width} x {height}"
            )
            return None
        factors = (width, height, width, height) if one.relative else (1, 1, 1, 1)
        boxes = [
            BoxIn(class_name=name, xyxy=tuple(v * f for v, f in zip(xyxy, factors, strict=True))) for name, xyxy in one.boxes
        ]
        return ref, labels.checked(one.name, LabelsIn(boxes=tuple(boxes)).boxes, image)
    except ValidationError as error:
        problems.add("impossible box", f"{one.where}: {error.errors()[0]['msg']}")
    except DriftboxError as error:
        kind = {"not_found": "unknown sample", "labels": "impossible box"}.get(error.code, error.code)
        problems.add(kind, f"{one.where}: {error.message}")
    return None


# --- YOLO -------------------------------------------------------------------------------------------------------------


def _read_yolo(source: Path, problems: Problems) -> Iterator[_Incoming]:
    names = _yolo_names(source)
    folder = source / "labels" if (source / "labels").is_dir() else source
    for path in sorted(folder.glob("*.txt")):
        if path.name in ("classes.txt", "train.txt", "val.txt", "test.txt"):
            continue
        name = sample_of(path.stem)
        if name is None:
            problems.add("file that names no sample", path.name)
            continue
        picture = source / "images" / f"{path.stem}.jpg"
        size = _picture_size(picture.read_bytes()) if picture.is_file() else None
        boxes = tuple(_yolo_boxes(path, names, problems))
        yield _Incoming(name=name, where=path.name, size_px=size, boxes=boxes, relative=True)


def _yolo_names(source: Path) -> list[str]:
    """Class names by index, of `data.yaml` or `classes.txt`."""
    try:
        if (source / "data.yaml").is_file():
            names = yaml.safe_load(_text(source / "data.yaml"))["names"]
            return [str(names[k]) for k in range(len(names))]
        if (source / "classes.txt").is_file():
            return _text(source / "classes.txt").split("\n")
    except (yaml.YAMLError, KeyError, TypeError, ValueError) as error:
        raise UsageError(
            f"the class names in {source} cannot be read: {type(error).__name__}", subject=str(source), code="labels",
            remedy="write one name per line into classes.txt",
        ) from None  # fmt: skip
    raise UsageError(
        f"{source} does not say which class a number is", subject=str(source), code="labels",
        remedy="it needs a data.yaml with `names`, or classes.txt",
    )  # fmt: skip


def _yolo_boxes(
    path: Path, names: Sequence[str], problems: Problems
) -> Iterator[tuple[str, tuple[float, float, float, float]]]:
    try:
        lines = _text(path).splitlines()
    except ValueError as error:
        problems.add("unreadable file", f"{path.name}: {error}")
        return
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{path.name}, line {number}"
        try:
            index, x, y, width, height = (float(word) for word in line.split())
        except ValueError:
            problems.add("line that is not `class x y width height`", where)
            continue
        if not np.isfinite([index, x, y, width, height]).all():
            problems.add("impossible box", f"{where}: {line.strip()[:60]}")
        elif not 0 <= index < len(names) or index != int(index) or names[int(index)].strip() not in CLASS_NAMES:
            known = names[int(index)] if 0 <= index < len(names) else f"number {index:g}"
            problems.add("unknown class", f"{where}: {known.strip()[:40]}")
        else:
            corners = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
            yield names[int(index)].strip(), corners


# --- COCO -------------------------------------------------------------------------------------------------------------


class _Coco(BaseModel):
    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)


class _CocoImage(_Coco):
    id: int
    file_name: str = Field(max_length=500)
    width: int = Field(ge=1, le=10**6)
    height: int = Field(ge=1, le=10**6)


class _CocoBox(_Coco):
    image_id: int
    category_id: int
    bbox: tuple[float, float, float, float]


class _CocoCategory(_Coco):
    id: int
    name: str = Field(max_length=100)


class _CocoFile(_Coco):
    images: list[_CocoImage]
    annotations: list[_CocoBox]
    categories: list[_CocoCategory]


def _read_coco(source: Path, problems: Problems) -> Iterator[_Incoming]:
    path = source / "annotations.json"
    if not path.is_file():
        raise UsageError(f"there is no annotations.json in {source}", subject=str(source), remedy="name the exported folder")
    try:
        body = _CocoFile.model_validate_json(_text(path, max_bytes=MAX_COCO_BYTES))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise UsageError(
            f"{path} is no COCO file: {where}: {first['msg']} ({error.error_count()} problems)", subject=str(path), code="labels",
            remedy="nothing was imported; correct the file",
        ) from None  # fmt: skip
    except ValueError as error:
        raise UsageError(f"{path}: {error}", subject=str(path), code="labels", remedy="see docs/labels.md") from None
    names = {category.id: category.name for category in body.categories}
    boxes: dict[int, list[tuple[str, tuple[float, float, float, float]]]] = {image.id: [] for image in body.images}
    for number, box in enumerate(body.annotations):
        where = f"annotations[{number}]"
        if names.get(box.category_id) not in CLASS_NAMES:
            problems.add("unknown class", f"{where}: {names.get(box.category_id, box.category_id)}")
        elif box.image_id not in boxes:
            problems.add("box of a picture that is not listed", f"{where}: image_id {box.image_id}")
        else:
            left, top, width, height = box.bbox
            boxes[box.image_id].append((names[box.category_id], (left, top, left + width, top + height)))
    for image in body.images:
        name = sample_of(Path(image.file_name).stem)
        if name is None:
            problems.add("file that names no sample", image.file_name[:80])
            continue
        size = (image.width, image.height)
        yield _Incoming(name=name, where=image.file_name, size_px=size, boxes=tuple(boxes[image.id]), relative=False)


# --- files ------------------------------------------------------------------------------------------------------------


def _text(path: Path, *, max_bytes: int = MAX_TEXT_BYTES) -> str:
    """Raises ValueError for a file that is too large or no text."""
    with storage_errors(path):
        if path.stat().st_size > max_bytes:
            raise ValueError(f"larger than {max_bytes} bytes")
        data = path.read_bytes()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError("not UTF-8 text") from None


def _picture_size(data: bytes) -> tuple[int, int] | None:
    """(width, height); None: not a picture."""
    image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR) if data else None
    return (image.shape[1], image.shape[0]) if image is not None else None
