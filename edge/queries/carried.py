"""What transforms remember, as plain values that another box can go on from: versioned, bounded, checked before anything believes them.

Times are seconds *before* the frame after which the state was taken (`..._ago_s`): boxes share no clock, only frames. Whoever takes a
state on says when that frame was by its own clock. Sizes are bounded here, so a state is a few KB to a few MiB, whoever made it.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

#: Most tracks, zones, lines, classes and queries of one state.
MOST_TRACKS, MOST_PLACES, MOST_CLASSES, MOST_QUERIES = 1000, 200, 2000, 64

Count = Annotated[int, Field(ge=0, le=2**53)]
Ago = Annotated[float, Field(ge=0.0, le=1e10)]
Px = Annotated[float, Field(ge=-1e6, le=1e6)]
Box = Annotated[list[Px], Field(min_length=4, max_length=4)]
Size = Annotated[int, Field(ge=1, le=100_000)]
Name = Annotated[str, Field(max_length=200)]
Way = Literal["in", "out"]
WAYS: tuple[Way, Way] = ("in", "out")


class Plain(BaseModel):
    """No number that is none, no field that nobody knows, nothing read as what it is not."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


# --- tracks -----------------------------------------------------------------------------------------------------------


class Observed(Plain):
    """What OC-SORT remembers of a track beside its filter. boxes: (age of the track, box) of its last observations; frozen: state and
    covariance when it was lost."""

    last: Box
    before_last: Box | None
    boxes: Annotated[list[tuple[Count, Box]], Field(max_length=64)]
    velocity: Annotated[list[Px], Field(min_length=2, max_length=2)] | None
    frozen: Filter | None
    seen: bool


class Filter(Plain):
    """Of a Kalman filter: its state and covariance, row by row."""

    state: Annotated[list[Annotated[float, Field(ge=-1e9, le=1e9)]], Field(min_length=1, max_length=16)]
    covariance: Annotated[list[Annotated[float, Field(ge=-1e15, le=1e15)]], Field(min_length=1, max_length=256)]


class Tracklet(Plain):
    """One track of a tracker. id: the tracker's own number, -1: none yet; age, missed: in frames; updates: SORT's own count."""

    id: Annotated[int, Field(ge=-1, le=2**53)]
    age: Count
    missed: Count
    missed_s: Ago
    hits: Count
    updates: Count | None = None
    filter: Filter
    observed: Observed | None = None


class Tracker(Plain):
    """of: name of the association; release: of the package trackers, whose insides these are; last_ago_s: its last frame."""

    of: Name
    release: Name
    next: Count
    frames: Count
    last_ago_s: Ago | None
    tracks: Annotated[list[Tracklet], Field(max_length=MOST_TRACKS)]


class SeenTrack(Plain):
    number: Count
    box: Box
    ago_s: Ago


class Tracks(Plain):
    """See `edge.queries.places.Track`. numbers: (the tracker's own, ours)."""

    next: Count
    last_ago_s: Ago | None
    seen: Annotated[list[SeenTrack], Field(max_length=MOST_TRACKS)]
    taken_over: Annotated[list[SeenTrack], Field(max_length=MOST_TRACKS)]
    numbers: Annotated[list[tuple[Count, Count]], Field(max_length=MOST_TRACKS)]
    tracker: Tracker | None


# --- places -----------------------------------------------------------------------------------------------------------


class Sided(Plain):
    """A track as a line knows it. sides: of its last frames; confirmed: the side that counts; absent: frames that it was missing."""

    track: Count
    sides: Annotated[list[bool], Field(max_length=64)]
    confirmed: bool | None
    absent: Count


class LineSums(Plain):
    name: Name
    sums: dict[Way, Annotated[dict[Name, Count], Field(max_length=MOST_CLASSES)]]
    sided: Annotated[list[Sided], Field(max_length=MOST_TRACKS)]


class Crossings(Plain):
    """See `edge.queries.places.Lines`. tracks: whose side is known, and when they were last seen."""

    lines: Annotated[list[LineSums], Field(max_length=MOST_PLACES)]
    tracks: Annotated[list[tuple[Count, Ago]], Field(max_length=MOST_TRACKS)]


class Stay(Plain):
    track: Count
    since_ago_s: Ago
    seen_ago_s: Ago


class ZoneStays(Plain):
    name: Name
    inside: Annotated[list[Stay], Field(max_length=MOST_TRACKS)]
    visits: Count
    stayed_s: Annotated[float, Field(ge=0.0, le=1e12)]
    longest_s: Annotated[float, Field(ge=0.0, le=1e12)]


class Stays(Plain):
    """See `edge.queries.places.Dwell`."""

    zones: Annotated[list[ZoneStays], Field(max_length=MOST_PLACES)]


# --- queries ----------------------------------------------------------------------------------------------------------


class NodeState(Plain):
    """shape: of the node and all before it (`edge.queries.runner.shapes`): what was asked otherwise cannot be gone on with."""

    id: Name
    shape: Name
    state: Tracks | Crossings | Stays


class QueryStates(Plain):
    """size_px: (width, height) that all coordinates are in; nodes: of each query, by its name."""

    size_px: tuple[Size, Size]
    nodes: Annotated[dict[Name, Annotated[list[NodeState], Field(max_length=64)]], Field(max_length=MOST_QUERIES)]


def ago(at_s: float, then_s: float) -> float:
    """Never negative: a frame that came out of turn counts as taken with the last one."""
    return max(0.0, at_s - then_s)
