"""A camera's tracked objects as plain values (`edge.queries.carried` says how times and bounds are meant): for the box that goes on."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from edge.queries.carried import MOST_CLASSES, MOST_PLACES, Ago, Count, Crossings, Name, Plain, Size, Tracks, Way

#: Most objects of one state: what a book holds (`edge.objects.book.OPEN_MAX`).
MOST_OBJECTS = 200

Frac = Annotated[float, Field(ge=0.0, le=1.0)]
Utc = Annotated[float, Field(ge=0.0, le=1e11)]


class ObjectState(Plain):
    """One object. track: the tracker's number for it; began_utc: by the clock of the box that saw it first. Its pictures stay where they
    were made, and the next box makes its own."""

    track: Count
    id: Annotated[str, Field(pattern=r"^[0-9]{1,17}-[0-9a-f]{8}$")]
    began_ago_s: Ago
    began_utc: Utc
    box: Annotated[list[Frac], Field(min_length=4, max_length=4)]
    seen_ago_s: Ago
    score: Frac
    frames: Count
    told: bool
    told_ago_s: Ago
    votes: Annotated[dict[Name, Annotated[float, Field(ge=0.0, le=1e12)]], Field(max_length=MOST_CLASSES)]
    class_name: Name
    zones: Annotated[dict[Name, Ago], Field(max_length=MOST_PLACES)]
    inside_frames: Annotated[dict[Name, Count], Field(max_length=MOST_PLACES)]
    been: Annotated[list[Name], Field(max_length=MOST_PLACES)]
    dwell_s: Annotated[dict[Name, Ago], Field(max_length=MOST_PLACES)]
    lines: Annotated[dict[Name, Way], Field(max_length=MOST_PLACES)]
    version: Name
    at: Annotated[list[Frac], Field(min_length=2, max_length=2)]
    moved_ago_s: Ago
    still: bool


class BookState(Plain):
    """crossings: line -> way -> how many, since the camera's book began, on whichever box."""

    objects: Annotated[list[ObjectState], Field(max_length=MOST_OBJECTS)]
    crossings: Annotated[dict[Name, dict[Way, Count]], Field(max_length=MOST_PLACES)]


class ObjectsState(Plain):
    """places: of zones, lines and classes as they were asked (`edge.objects.tracking.SceneTracker.places`); size_px: (width, height)
    that tracks are in."""

    places: Name
    size_px: tuple[Size, Size]
    tracks: Tracks
    lines: Crossings
    book: BookState
