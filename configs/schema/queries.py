"""Section `cameras[].queries`: what an operator asks of a camera (docs/serving.md)."""

from __future__ import annotations

import math
from typing import Any

from pydantic import field_validator
from pydantic_core import PydanticCustomError

from configs.queries import KNOB_BELOW, TEMPLATES
from configs.schema.base import Section, checked_id, setting
from configs.units import CLASSES

#: A corner: (x, y) as fractions of width and height, from the upper left.
Point = tuple[float, float]
KnobValue = bool | int | float | str

#: Smallest area of a zone, as a part of the picture: less is a line drawn by mistake.
LEAST_AREA_FRAC = 1e-5


class NodeEntry(Section):
    """One step of a query that is written node by node."""

    id: str = setting("", text="Name in this query; empty: the transform's.", max_length=63)
    transform: str = setting(
        ...,
        text="What it does: decode, motion, detect, classify, track, count, lines, dwell, read, or a package's.",
        example="track",
    )
    inputs: tuple[str, ...] | None = setting(
        None, text="Nodes whose results it takes, the main one first.", default_text="the node before it"
    )
    params: dict[str, Any] = setting(default_factory=dict, text="Its fixed parameters (docs/serving.md).", default_text="none")
    knobs: dict[str, tuple[KnobValue, ...]] = setting(
        default_factory=dict, text="Values its knobs may have, the one to begin with first.", default_text="the transform's own"
    )

    @field_validator("knobs")
    @classmethod
    def _values(cls, knobs: dict[str, tuple[KnobValue, ...]]) -> dict[str, tuple[KnobValue, ...]]:
        return checked_knobs(knobs)


class QueryEntry(Section):
    """One query: a template, or nodes."""

    name: str = setting(
        ..., text="Name in topics and pages: lower case letters, digits, `_`, `-`; unique in its camera.", example="entrance"
    )
    template: str = setting(
        "", range_text=", ".join(f"`{name}`" for name in TEMPLATES), max_length=63,
        text="Short form: objects in zones, objects that cross lines, time in zones, text. Empty: `nodes` say it.",
    )  # fmt: skip
    zones: dict[str, tuple[Point, ...]] = setting(
        default_factory=dict, default_text="the whole picture",
        text="Polygons by name: [x, y] corners as fractions 0-1 of width and height.",
    )  # fmt: skip
    lines: dict[str, tuple[Point, ...]] = setting(
        default_factory=dict, default_text="none",
        text="Lines by name: two [x, y] points. Seen from the first to the second, `in` is from right to left of it.",
    )  # fmt: skip
    classes: tuple[str, ...] = setting((), text="Classes that count.", default_text="all")
    nodes: tuple[NodeEntry, ...] = setting((), text="The query step by step, instead of a template.")
    knobs: dict[str, tuple[KnobValue, ...]] = setting(
        default_factory=dict, default_text="the transforms' own",
        text="Values that knobs may have, by `node.knob`, the one to begin with first: `decode.fps: [5, 2]`.",
    )  # fmt: skip
    quality_goal: float = setting(
        0.0, unit="fraction", ge=0, le=1, text="Least quality, against the same query with its best knobs."
    )
    lag_goal_s: float = setting(1.0, unit="s", ge=0, le=86_400, text="How old a result may be.")
    quality_weight: float = setting(1.0, unit="per 1", ge=0, le=1000, text="What quality above the goal is worth.")
    quality_penalty: float = setting(1.0, unit="per 1", ge=0, le=1000, text="What quality below the goal costs.")
    lag_weight: float = setting(1.0, unit="per s", ge=0, le=1000, text="What every second beyond the lag goal costs.")
    enabled: bool = setting(True, text="Run this query.")

    @field_validator("name")
    @classmethod
    def _name(cls, value: str) -> str:
        return checked_id(value)

    @field_validator("zones")
    @classmethod
    def _polygons(cls, zones: dict[str, tuple[Point, ...]]) -> dict[str, tuple[Point, ...]]:
        return checked_zones(zones)

    @field_validator("lines")
    @classmethod
    def _segments(cls, lines: dict[str, tuple[Point, ...]]) -> dict[str, tuple[Point, ...]]:
        return checked_lines(lines)

    @field_validator("classes")
    @classmethod
    def _known_classes(cls, classes: tuple[str, ...]) -> tuple[str, ...]:
        return checked_classes(classes)

    @field_validator("knobs")
    @classmethod
    def _values(cls, knobs: dict[str, tuple[KnobValue, ...]]) -> dict[str, tuple[KnobValue, ...]]:
        return checked_knobs(knobs)


def checked_zones(zones: dict[str, tuple[Point, ...]]) -> dict[str, tuple[Point, ...]]:
    """`zones` when each is a polygon with an area inside the picture; raises the configuration's error."""
    for name, corners in zones.items():
        _check_shape("zone", name, corners)
        if len(corners) < 3:
            raise PydanticCustomError("zone", "zone {name} needs at least 3 corners", {"name": name})
        if _area(corners) < LEAST_AREA_FRAC:
            raise PydanticCustomError("zone", "zone {name} has no area, or its outline crosses itself", {"name": name})
    return zones


def checked_lines(lines: dict[str, tuple[Point, ...]]) -> dict[str, tuple[Point, ...]]:
    """`lines` when each has two points inside the picture that are apart; raises the configuration's error."""
    for name, points in lines.items():
        _check_shape("line", name, points)
        if len(points) != 2 or math.dist(*points) < 1e-3:
            raise PydanticCustomError("line", "line {name} needs two points that are apart", {"name": name})
    return lines


def checked_classes(classes: tuple[str, ...]) -> tuple[str, ...]:
    """`classes` when the box knows each; raises the configuration's error."""
    for name in classes:
        if name not in CLASSES:
            raise PydanticCustomError(
                "class", "there is no class {name}; known: {known}", {"name": repr(name), "known": ", ".join(CLASSES)}
            )
    return classes


def checked_knobs(knobs: dict[str, tuple[KnobValue, ...]]) -> dict[str, tuple[KnobValue, ...]]:
    """`knobs` when each has values, each once, none of them negative or endless; raises the configuration's error."""
    for name, values in knobs.items():
        if not values or len({(type(v) is bool, v) for v in values}) != len(values):
            raise PydanticCustomError("knob", "knob {name} needs values, each once", {"name": name})
        if any(isinstance(v, int | float) and not 0 <= v < KNOB_BELOW for v in values):
            raise PydanticCustomError("knob", "knob {name} has a value outside 0 to 1000000", {"name": name})
    return knobs


def _check_shape(what: str, name: str, points: tuple[Point, ...]) -> None:
    checked_id(name)
    if any(not 0 <= value <= 1 for point in points for value in point):
        raise PydanticCustomError("zone", "{what} {name} has a corner outside 0 to 1", {"what": what, "name": name})


def _area(corners: tuple[Point, ...]) -> float:
    """Of the polygon's hull of signed areas (shoelace), as a part of the picture; a figure of eight may cancel to less."""
    turned = corners[1:] + corners[:1]
    return abs(sum(x1 * y2 - x2 * y1 for (x1, y1), (x2, y2) in zip(corners, turned, strict=True))) / 2
