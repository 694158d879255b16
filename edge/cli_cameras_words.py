"""Words of a command line to fields of a camera: `--zone door=0,0;1,0;1,1` and the like.

Every word is one place in the camera (`("recording", "keep_days")`) and its value, so that a change of one leaves what stands beside it
as it is, although the box takes sections whole.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from configs.errors import UsageError
from configs.schema import CameraEntry

Place = tuple[str, ...]

#: Where the options that take a value as it is belong.
PLACES: dict[str, Place] = {
    "name": ("name",), "id": ("id",), "url": ("url",), "record_url": ("record_url",), "task": ("task",), "fps": ("fps",),
    "classes": ("classes",), "learning": ("learning",), "enabled": ("enabled",), "watch": ("schedule", "watch"),
    "learn": ("schedule", "learn"), "time_zone": ("schedule", "time_zone"), "snapshots": ("objects", "snapshots"),
    "clips": ("recording", "clips"), "pre_s": ("recording", "pre_s"), "post_s": ("recording", "post_s"),
    "keep_days": ("recording", "keep_days"),
}  # fmt: skip
ZONES, LINES, MASKS = ("zones",), ("objects", "lines"), ("masks",)
#: Whose entries have names: null takes one away.
_NAMED = (ZONES, LINES)

ZONE_FORM, LINE_FORM, MASK_FORM = "door=0.1,0.2;0.4,0.2;0.4,0.9", "way=0.1,0.5;0.9,0.5", "0,0;0.3,0;0.3,0.2"
_CORNERS = "x,y from the upper left, 0 to 1"


def given(**words: Any) -> dict[Place, Any]:
    """What was given of the options of `PLACES`."""
    return {PLACES[name]: value for name, value in words.items() if value is not None and value != []}


def drawn(zones: Sequence[str] | None, lines: Sequence[str] | None, masks: Sequence[str] | None) -> dict[Place, Any]:
    """Zones and lines by name (`NAME=` takes one away), masks all together. Raises UsageError."""
    found: dict[Place, Any] = {}
    for text in zones or ():
        name, corners = named(text, "polygon", ZONE_FORM, least=3)
        found[(*ZONES, name)] = corners
    for text in lines or ():
        name, corners = named(text, "line", LINE_FORM, least=2, most=2)
        found[(*LINES, name)] = corners
    if masks:
        found[MASKS] = [corners_of(text, text, "polygon", MASK_FORM, least=3) for text in masks]
    return found


def named(text: str, what: str, form: str, *, least: int, most: int = 10_000) -> tuple[str, list[list[float]] | None]:
    """(name, corners; None: it goes). Raises UsageError."""
    name, equals, corners = text.partition("=")
    if equals and not corners.strip():
        return name.strip(), None
    return name.strip(), corners_of(corners, text, what, form, least=least, most=most)


def corners_of(text: str, shown: str, what: str, form: str, *, least: int, most: int = 10_000) -> list[list[float]]:
    """`x,y;x,y`. Raises UsageError."""
    try:
        corners = [[float(number) for number in corner.split(",")] for corner in text.strip().split(";") if corner.strip()]
    except ValueError:
        corners = []
    if not least <= len(corners) <= most or any(len(corner) != 2 for corner in corners):
        raise UsageError(f"{shown!r} is no {what}", remedy=f"write {form} ({_CORNERS})")
    return corners


def set_fields(texts: Sequence[str] | None) -> dict[Place, Any]:
    """`--set height_px=360`, `--set recording.pre_s=3`. Raises UsageError."""
    found: dict[Place, Any] = {}
    for text in texts or ():
        field, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"{field[:60]!r} is not FIELD=JSON", remedy="--set height_px=360")
        try:
            found[tuple(field.strip().split("."))] = json.loads(value)
        except ValueError:
            raise UsageError(
                f"what stands behind {field}= is no JSON", remedy="texts stand in quotes: --set edge='\"yolov8n\"'"
            ) from None
    return found


def document_of(fields: Mapping[Place, Any], over: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The fields as the box takes them: sections whole, what is not named in them as in `over` (a camera's entry as it is told)."""
    document: dict[str, Any] = {}
    for place, value in fields.items():
        if place[0] not in document:
            document[place[0]] = _copied((over or {}).get(place[0]))
        _put(document, place, value)
    return document


def _copied(value: Any) -> Any:
    return {name: _copied(inner) for name, inner in value.items()} if isinstance(value, dict) else value


def _put(document: dict[str, Any], place: Place, value: Any) -> None:
    section = document
    for name in place[:-1]:
        if not isinstance(section.get(name), dict):
            section[name] = {}
        section = section[name]
    if value is None and place[:-1] in _NAMED:
        section.pop(place[-1], None)
    else:
        section[place[-1]] = value


def problem_of(fields: Mapping[Place, Any]) -> str:
    """What is wrong with some fields by themselves, "" when nothing is. Touches nothing."""
    try:
        CameraEntry.model_validate({"id": "x", "url": "rendered:street"} | document_of(fields))
    except ValidationError as error:
        return str(error.errors(include_url=False, include_input=False)[0]["msg"])
    return ""
