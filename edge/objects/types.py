"""Tracked objects as others are told of them: one object is one event with an id, told `new`, then `update`, then `end`.

The pages, MQTT (`camera/<id>/events`), the database and the media files all speak of the same id.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class ObjectEvent:
    """What is known of a tracked object now. id: unique over the box's life; what: new, update (it moved into another zone, its best
    picture changed, or `edge.objects` says it is worth telling), end. class_name: as the model calls it; score: best so far, 0-1.
    box: (x1, y1, x2, y2) as fractions of the picture, newest; zones: those it stands in; zones_been: all it was in; has_snapshot,
    has_clip: whether there are files for it (yet). started_utc, ended_utc: seconds since the epoch; None: it is still there."""

    id: str
    camera: str
    what: Literal["new", "update", "end"]
    class_name: str
    score: float
    box: tuple[float, float, float, float]
    started_utc: float
    seen_utc: float
    ended_utc: float | None = None
    zones: tuple[str, ...] = ()
    zones_been: tuple[str, ...] = ()
    lines: dict[str, str] = field(default_factory=dict)  # line -> in | out, when it was crossed
    version: str = ""  # of the model that saw it
    has_snapshot: bool = False
    has_clip: bool = False
    extra: dict[str, Any] = field(default_factory=dict)


#: Told every event, from any thread; must return at once.
ObjectListener = Callable[[ObjectEvent], None]
