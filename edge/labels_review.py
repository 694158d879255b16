"""`driftbox labels review`: golden labels one after the other on a terminal, the unsure ones first."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from configs.errors import UsageError
from configs.files import atomic_write
from edge.console import say
from edge.labels import CLASS_NAMES, BoxIn, BoxView, LabelQuery, LabelsIn, LabelView, SampleName
from edge.labels_admin import FolderLabels, Found
from edge.labels_picture import drawn_jpeg

HELP = (
    "y: right as it is   d N: delete box N   k N: keep unsure box N   c N CLASS: change its class\n"
    "a CLASS LEFT TOP RIGHT BOTTOM: add a box   w: write what you have changed   i: ignore the sample   s: skip   q: quit"
)
Ask = Callable[[str], str]


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A sample's boxes while a person works on them."""

    boxes: tuple[BoxIn, ...]
    unsure: tuple[BoxView, ...]
    changed: bool = False


def review(
    labels: FolderLabels, query: LabelQuery, *, limit: int, picture_dir: Path | None = None, ask: Ask = input,
    tell: Callable[[str], None] = say,
) -> dict[str, int]:  # fmt: skip
    """Asks about one sample after the other; how many were looked at, confirmed, corrected, ignored. A sample that vanishes meanwhile
    is passed over. Ends at `q`, at the end of input, or after `limit` samples."""
    done = dict.fromkeys(("looked_at", "confirmed", "corrected", "ignored"), 0)
    folder = picture_dir if picture_dir is not None else Path(tempfile.mkdtemp(prefix="driftbox-labels-"))
    tell(HELP)
    for found in unsure_first(labels.found(query))[:limit]:
        name = SampleName(camera=found.ref.stream, window=found.ref.window, seq=found.ref.seq)
        try:
            what = _look_at(labels, name, folder, ask, tell)
        except UsageError as error:
            if error.code not in ("not_found", "changed"):
                raise
            tell(f"{name} has gone or changed meanwhile; passed over")
            continue
        except EOFError:
            break
        if what == "quit":
            break
        done["looked_at"] += 1
        if what in done:
            done[what] += 1
    return done


def unsure_first(found: Iterator[Found]) -> list[Found]:
    """Left out for being unsure, then by falling part of unsure boxes; the order they came in otherwise (newest window first)."""

    def doubt(one: Found) -> tuple[bool, float]:
        if one.labels is None:
            return True, 0.0
        unsure, sure = len(one.labels.unsure), len(one.labels.detections)
        return not one.labels.left_out, -unsure / max(1, unsure + sure)

    return sorted(found, key=doubt)


def _look_at(labels: FolderLabels, name: SampleName, folder: Path, ask: Ask, tell: Callable[[str], None]) -> str:
    """confirmed, corrected, ignored, skipped or quit."""
    view = labels.get(name)
    folder.mkdir(parents=True, exist_ok=True)
    picture = folder / f"{name.camera}__{name.window:06d}__{name.seq:09d}.jpg"
    atomic_write(picture, labels.picture(name, drawn=True), durable=False)
    tell(f"\n{view.sample}  {view.width_px} x {view.height_px} px  picture: {picture}")
    draft = Draft(boxes=view.boxes, unsure=view.unsure_boxes)
    _tell_boxes(draft, tell)
    while True:
        words = ask("> ").split()
        word = words[0].lower() if words else "?"
        if word == "q":
            return "quit"
        if word == "s":
            return "skipped"
        if word == "i":
            labels.put(name, LabelsIn(ignored=True), etag=view.etag)
            return "ignored"
        if word in ("y", "w"):
            try:
                labels.put(name, LabelsIn(boxes=draft.boxes), etag=view.etag)
            except UsageError as error:
                if error.code != "labels":
                    raise
                tell(str(error))
                continue
            return "corrected" if draft.changed else "confirmed"
        draft = _changed(draft, word, words[1:], tell)
        if draft.changed:
            _redraw(labels, name, view, draft, picture)
        _tell_boxes(draft, tell)


def _changed(draft: Draft, word: str, rest: Sequence[str], tell: Callable[[str], None]) -> Draft:
    """The draft after one instruction; an instruction that cannot be understood changes nothing and is explained."""
    try:
        if word == "d":
            index = _index(rest[0], draft.boxes)
            return replace(draft, boxes=(*draft.boxes[:index], *draft.boxes[index + 1 :]), changed=True)
        if word == "k":
            index = _index(rest[0].lstrip("?"), draft.unsure)
            rest_unsure = (*draft.unsure[:index], *draft.unsure[index + 1 :])
            return Draft(boxes=(*draft.boxes, draft.unsure[index]), unsure=rest_unsure, changed=True)
        if word == "c":
            index = _index(rest[0], draft.boxes)
            box = BoxIn(class_name=_class(rest[1]), xyxy=draft.boxes[index].xyxy)
            return replace(draft, boxes=(*draft.boxes[:index], box, *draft.boxes[index + 1 :]), changed=True)
        if word == "a":
            left, top, right, bottom = (float(text) for text in rest[1:])
            box = BoxIn(class_name=_class(rest[0]), xyxy=(left, top, right, bottom))
            return replace(draft, boxes=(*draft.boxes, box), changed=True)
    except (IndexError, ValueError) as error:
        tell(f"not understood: {error}")
    tell(HELP)
    return draft


def _index(text: str, boxes: Sequence[BoxIn]) -> int:
    number = int(text)
    if not 1 <= number <= len(boxes):
        raise ValueError(f"there is no box {number}")
    return number - 1


def _class(text: str) -> str:
    if text not in CLASS_NAMES:
        raise ValueError(f"unknown class {text}; known: {', '.join(CLASS_NAMES)}")
    return text


def _redraw(labels: FolderLabels, name: SampleName, view: LabelView, draft: Draft, picture: Path) -> None:
    image = labels.image(labels.ref(name))
    boxes = tuple(BoxView(class_name=box.class_name, xyxy=box.xyxy) for box in draft.boxes)
    atomic_write(picture, drawn_jpeg(image, boxes, draft.unsure, by_person=True), durable=False)


def _tell_boxes(draft: Draft, tell: Callable[[str], None]) -> None:
    for number, box in enumerate(draft.boxes, start=1):
        tell(f"  {number:>3} {_box_text(box)}")
    for number, box in enumerate(draft.unsure, start=1):
        tell(f"  ?{number:>2} {_box_text(box)}  unsure")
    if not draft.boxes and not draft.unsure:
        tell("      no objects")


def _box_text(box: BoxIn) -> str:
    score = f" {box.score:.2f}" if isinstance(box, BoxView) else ""  # a person's own box has none
    return f"{box.class_name}{score}  " + " ".join(f"{v:.0f}" for v in box.xyxy)
