"""Events of tracked objects as pages and programs see them, and the seam to who keeps them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict, Field

from edge.store.objects import ObjectPage, ObjectQuery, StoredClip, StoredObject

#: What an event's id looks like (`edge.objects.live.new_id`).
EVENT_ID = r"^[0-9]{1,16}-[0-9a-f]{4,16}$"


class View(BaseModel):
    """Base: frozen, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class EventView(View):
    """One tracked object."""

    id: str
    camera: str
    class_name: str = Field(description="As the model calls it.")
    score: float = Field(description="The best so far, 0 to 1.")
    box: tuple[float, float, float, float] = Field(description="x1, y1, x2, y2 as fractions of the picture, when last told.")
    started_utc: float
    seen_utc: float = Field(description="When it was last seen.")
    ended_utc: float | None = Field(default=None, description="null: it is still there.")
    zones: tuple[str, ...] = Field(default=(), description="Zones it stands in.")
    zones_been: tuple[str, ...] = Field(default=(), description="Zones it was in, in their order.")
    dwell_s: dict[str, float] = Field(default={}, description="Seconds in each of them.")
    lines: dict[str, str] = Field(default={}, description="Lines it has crossed, and which way last: in or out.")
    version: str = Field(default="", description="Model that saw it.")
    still: bool = Field(default=False, description="It stands still.")
    favourite: bool = Field(default=False, description="Kept, with its files, whatever comes.")
    has_snapshot: bool = False
    has_clip: bool = False


class ClipView(View):
    """One clip an object is in. Objects that are there at the same time share clips."""

    part: int = Field(description="Number for `clip.mp4?part=`.")
    began_utc: float
    ended_utc: float
    size_bytes: int
    codec: str = Field(description="h264, hevc, ...; browsers play h264, most play hevc.")
    masked: bool = Field(default=False, description="Encoded anew with the camera's privacy masks burnt in.")
    media_type: str = "video/mp4"


class EventDetails(EventView):
    """With its clips."""

    clips: tuple[ClipView, ...] = ()


class EventPage(View):
    """events: newest first."""

    events: tuple[EventView, ...]
    next: str | None = Field(default=None, description="`after` for the following page; null: this was the last.")


class Facets(View):
    """What one can look for."""

    classes: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()


class EventLibrary(Protocol):
    """`edge.media.library` on a box. Raises UsageError (code 'not_found'), StorageError."""

    def search(self, query: ObjectQuery) -> ObjectPage: ...

    def get(self, id: str) -> StoredObject: ...

    def clips(self, id: str) -> tuple[StoredClip, ...]: ...

    def facets(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Classes and zones of which there are events."""

    def snapshot(self, id: str) -> Path: ...

    def thumbnail(self, id: str) -> Path: ...

    def clip(self, id: str, part: int) -> tuple[Path, StoredClip]: ...

    def favour(self, id: str, favourite: bool) -> StoredObject: ...

    def remove(self, id: str) -> None: ...


def event_view(stored: StoredObject) -> EventView:
    """For a list."""
    return EventView(**_fields(stored))


def event_details(stored: StoredObject, clips: tuple[ClipView, ...]) -> EventDetails:
    """For one event."""
    return EventDetails(**_fields(stored), clips=clips)


def _fields(stored: StoredObject) -> dict[str, Any]:
    event = stored.event
    return {
        "id": event.id, "camera": event.camera, "class_name": event.class_name, "score": event.score, "box": event.box,
        "started_utc": event.started_utc, "seen_utc": event.seen_utc, "ended_utc": event.ended_utc, "zones": event.zones,
        "zones_been": event.zones_been, "dwell_s": event.extra.get("dwell_s", {}), "lines": event.lines, "version": event.version,
        "still": bool(event.extra.get("still", False)), "favourite": stored.favourite, "has_snapshot": event.has_snapshot,
        "has_clip": event.has_clip,
    }  # fmt: skip
