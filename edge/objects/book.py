"""The book of a camera's tracked objects: what is seen goes in with track numbers and times, `ObjectEvent`s come out.

Pure: no clock, no randomness, no files. Times are handed in as (at_s, at_utc), monotonic and wall clock; an object's wall clock times
are that of its first sight plus monotonic seconds, so they never run back and its duration is right when the clock is set meanwhile.

    not told --(seen often and surely enough)--> new --> update ... --> end

An object is told `update` when it enters or leaves a zone, crosses a line, comes to rest or moves on, is better taken for another
class, has a clearly better picture, or every `update_s` while it moves. What stands still is told nothing. It has ended when it was not
seen for `lost_s` of frames, or when there are no frames for `silent_s`, or when the camera goes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from configs.units import CLASSES
from edge.objects.carried import MOST_OBJECTS, BookState, ObjectState
from edge.objects.types import ObjectEvent
from edge.queries.carried import Way, ago

Box = tuple[float, float, float, float]

#: A picture is clearly better when its worth is so many times that of the one before.
BETTER = 1.25
#: A class takes over when its scores add up to so many times those of the one that was told.
CLASS_TAKES_OVER = 1.5
#: Most objects of a camera at a time; noise must not fill the box.
OPEN_MAX = MOST_OBJECTS


@dataclass(frozen=True, kw_only=True)
class Rules:
    """When something is an object, and when it is worth telling.

    start_frames: frames it is seen in, start_score: and the best score among them, before it is told. lost_s: not seen in frames for so
    long, it has ended; silent_s: the same without any frame. update_s: told every so often while it moves. zone_frames: frames inside a
    zone before it is in; zone_gap_s: outside for so long before it is out. moved_frac: of the picture's diagonal its middle must move to
    count as moving; still_s: without moving for so long it stands. picture_s: least time between two pictures."""

    start_frames: int = 3
    start_score: float = 0.5
    lost_s: float = 4.0
    silent_s: float = 15.0
    update_s: float = 5.0
    zone_frames: int = 2
    zone_gap_s: float = 2.0
    moved_frac: float = 0.03
    still_s: float = 10.0
    picture_s: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One tracked detection of a frame. box: fractions of the picture; zones: those it stands in; crossed: line -> in | out, of those
    it has just crossed."""

    track: int
    class_name: str
    score: float
    box: Box
    zones: frozenset[str] = frozenset()
    crossed: Mapping[str, Way] = field(default_factory=dict)


@dataclass(kw_only=True)
class _Object:
    id: str
    began: tuple[float, float]  # (at_s, at_utc)
    box: Box
    seen_s: float
    score: float = 0.0
    frames: int = 0
    told: bool = False
    told_s: float = 0.0
    votes: dict[str, float] = field(default_factory=dict)  # class -> sum of scores
    class_name: str = ""
    zones: dict[str, float] = field(default_factory=dict)  # those it is in -> when it was last seen there
    inside_frames: Counter[str] = field(default_factory=Counter)
    been: list[str] = field(default_factory=list)
    dwell_s: dict[str, float] = field(default_factory=dict)
    lines: dict[str, Way] = field(default_factory=dict)
    version: str = ""
    at: tuple[float, float] = (0.0, 0.0)  # middle when it last moved
    moved_s: float = 0.0
    still: bool = False
    worth: float = 0.0  # of its best picture
    pictured_s: float = -math.inf

    def utc(self, at_s: float) -> float:
        return self.began[1] + max(0.0, at_s - self.began[0])


@dataclass(frozen=True, kw_only=True)
class Told:
    """What came of a frame. events: in the order to be told; pictures: ids whose picture in this frame is the best so far."""

    events: tuple[ObjectEvent, ...] = ()
    pictures: frozenset[str] = frozenset()


class ObjectBook:
    """Of one camera. new_id: a name that nobody else has ever had, from the wall clock time of the first sight. Not thread-safe."""

    def __init__(self, camera: str, *, new_id: Callable[[float], str], rules: Rules | None = None) -> None:
        self.camera = camera
        self.rules = rules or Rules()
        self._new_id = new_id
        self._of_track: dict[int, _Object] = {}
        self._at_s = -math.inf
        self.crossings: dict[str, Counter[Way]] = {}

    # --- in -----------------------------------------------------------------------------------------------------------

    def see(self, seen: Sequence[Seen], *, at_s: float, at_utc: float, version: str = "") -> Told:
        """A frame with what was tracked in it. A frame older than the last one counts as taken with it."""
        at_s = self._at_s = max(self._at_s, at_s)
        events, pictures = self._lost(at_s), set()
        for one in seen:
            object = self._of_track.get(one.track) or self._begin(one, at_s, at_utc)
            if object is None:
                continue
            reason = self._note(object, one, at_s, version)
            if not object.told:
                if object.frames < self.rules.start_frames or object.score < self.rules.start_score:
                    continue
                object.told, reason = True, "new"
                self._count(object.lines)
            better = self._is_better(object, one, at_s)
            if better:
                pictures.add(object.id)
            what: Literal["new", "update"] = "new" if reason == "new" else "update"
            if reason or better or (not object.still and at_s - object.told_s >= self.rules.update_s):
                object.told_s = at_s
                events.append(self._event(object, what))
        return Told(events=tuple(events), pictures=frozenset(pictures))

    def silence(self, at_s: float) -> Told:
        """No frame has come until now. Whoever was not seen for `silent_s` has ended."""
        self._at_s = max(self._at_s, at_s)
        return Told(events=tuple(self._end_before(self._at_s - self.rules.silent_s)))

    def close(self) -> Told:
        """The camera goes: everything ends when it was last seen."""
        return Told(events=tuple(self._end_before(math.inf)))

    # --- on another box -----------------------------------------------------------------------------------------------

    def carried(self, at_s: float) -> BookState:
        """What it knows after the frame of `at_s`."""
        return BookState(
            objects=[_carried(track, object, at_s) for track, object in self._of_track.items()],
            crossings={line: dict(ways) for line, ways in self.crossings.items()},
        )  # fmt: skip

    def take_on(self, state: BookState, base_s: float, *, zones: Collection[str], lines: Collection[str]) -> None:
        """Goes on from another box's book: everybody keeps their ids, totals go on. base_s: when the frame was, by our clock, that it
        was taken after; zones, lines: those of this camera. ValueError: it is not of this camera."""
        if {z for o in state.objects for z in (*o.zones, *o.inside_frames, *o.been, *o.dwell_s)} - set(zones):
            raise ValueError("it has zones that are not here")
        if ({line for o in state.objects for line in o.lines} | set(state.crossings)) - set(lines):
            raise ValueError("it has lines that are not here")
        if {name for o in state.objects for name in (o.class_name, *o.votes)} - set(CLASSES):
            raise ValueError("it has classes that are not here")
        for of in ([o.id for o in state.objects], [o.track for o in state.objects]):
            if len(set(of)) != len(of):
                raise ValueError("two objects are one")
        self._of_track = {one.track: _taken_on(one, base_s) for one in state.objects}
        self._at_s = base_s
        self.crossings = {line: Counter(ways) for line, ways in state.crossings.items()}

    def forget(self) -> None:
        """As new: what of another box's book was taken on already was wrong."""
        self._of_track, self._at_s, self.crossings = {}, -math.inf, {}

    # --- what is known ------------------------------------------------------------------------------------------------

    def open(self) -> tuple[ObjectEvent, ...]:
        """The objects that were told and have not ended, as they are now."""
        return tuple(self._event(object, "update") for object in self._of_track.values() if object.told)

    def present(self) -> dict[str, int]:
        """Told objects now, per class."""
        return dict(sorted(Counter(o.class_name for o in self._of_track.values() if o.told).items()))

    def active_since_s(self) -> float | None:
        """When the first of the told objects that do not stand still was first seen; None: there is none."""
        return min((o.began[0] for o in self._of_track.values() if o.told and not o.still), default=None)

    def in_zones(self) -> dict[str, dict[str, int]]:
        """Told objects now in each zone that has some, per class."""
        found: dict[str, Counter[str]] = {}
        for object in self._of_track.values():
            for zone in object.zones if object.told else ():
                found.setdefault(zone, Counter())[object.class_name] += 1
        return {zone: dict(sorted(counter.items())) for zone, counter in sorted(found.items())}

    # --- inside -------------------------------------------------------------------------------------------------------

    def _begin(self, one: Seen, at_s: float, at_utc: float) -> _Object | None:
        if len(self._of_track) >= OPEN_MAX:
            return None
        made = _Object(
            id=self._new_id(at_utc), began=(at_s, at_utc), box=one.box, seen_s=at_s, class_name=one.class_name, at=_middle(one.box),
            moved_s=at_s, told_s=at_s,
        )  # fmt: skip
        self._of_track[one.track] = made
        return made

    def _note(self, object: _Object, one: Seen, at_s: float, version: str) -> str:
        """Takes up what was seen; a reason to tell it, or empty."""
        gap_s = at_s - object.seen_s
        object.frames += 1
        object.box, object.seen_s, object.version = one.box, at_s, version or object.version
        object.score = max(object.score, one.score)
        reasons = [
            self._zones(object, one, at_s, gap_s), self._crossed(object, one), _classed(object, one), self._moved(object, one, at_s)
        ]  # fmt: skip
        return next((reason for reason in reasons if reason), "")

    def _zones(self, object: _Object, one: Seen, at_s: float, gap_s: float) -> str:
        before = set(object.zones)
        for zone in one.zones:
            object.inside_frames[zone] += 1
            if zone in object.zones:
                object.dwell_s[zone] = object.dwell_s.get(zone, 0.0) + gap_s
            if zone in object.zones or object.inside_frames[zone] >= self.rules.zone_frames:
                object.zones[zone] = at_s
        for zone in [z for z in object.inside_frames if z not in one.zones and z not in object.zones]:
            del object.inside_frames[zone]
        for zone in [z for z, seen_s in object.zones.items() if at_s - seen_s >= self.rules.zone_gap_s]:
            del object.zones[zone], object.inside_frames[zone]
        object.been += [zone for zone in sorted(object.zones) if zone not in object.been]
        return "zone" if set(object.zones) != before else ""

    def _crossed(self, object: _Object, one: Seen) -> str:
        object.lines.update(one.crossed)
        if object.told:
            self._count(one.crossed)
        return "line" if one.crossed else ""

    def _count(self, crossed: Mapping[str, Way]) -> None:
        for line, way in crossed.items():
            self.crossings.setdefault(line, Counter())[way] += 1

    def _moved(self, object: _Object, one: Seen, at_s: float) -> str:
        middle, was_still = _middle(one.box), object.still
        if math.dist(middle, object.at) >= self.rules.moved_frac:
            object.at, object.moved_s, object.still = middle, at_s, False
        elif at_s - object.moved_s >= self.rules.still_s:
            object.still = True
        return "rest" if object.still != was_still else ""

    def _is_better(self, object: _Object, one: Seen, at_s: float) -> bool:
        """Whether this frame shows it clearly better than the last picture: surer and larger; one cut off by the edge is worth half."""
        x1, y1, x2, y2 = one.box
        whole = x1 > 0.005 and y1 > 0.005 and x2 < 0.995 and y2 < 0.995
        worth = one.score * math.sqrt(max(1e-6, (x2 - x1) * (y2 - y1))) * (1.0 if whole else 0.5)
        if worth <= object.worth * BETTER or at_s - object.pictured_s < self.rules.picture_s:
            return False
        object.worth, object.pictured_s = worth, at_s
        return True

    def _lost(self, at_s: float) -> list[ObjectEvent]:
        return self._end_before(at_s - self.rules.lost_s)

    def _end_before(self, before_s: float) -> list[ObjectEvent]:
        """Ends whoever was last seen before that."""
        gone = [track for track, object in self._of_track.items() if object.seen_s < before_s]
        ended = [self._of_track.pop(track) for track in gone]
        return [self._event(object, "end") for object in ended if object.told]

    def _event(self, object: _Object, what: Literal["new", "update", "end"]) -> ObjectEvent:
        seen_utc = object.utc(object.seen_s)
        return ObjectEvent(
            id=object.id, camera=self.camera, what=what, class_name=object.class_name, score=round(object.score, 4),
            box=object.box, started_utc=object.began[1], seen_utc=seen_utc, ended_utc=seen_utc if what == "end" else None,
            zones=tuple(sorted(object.zones)) if what != "end" else (), zones_been=tuple(object.been), lines=dict(object.lines),
            version=object.version,
            extra={"still": object.still, "dwell_s": {zone: round(s, 2) for zone, s in sorted(object.dwell_s.items())}},
        )  # fmt: skip


def _classed(object: _Object, one: Seen) -> str:
    """The class that its scores speak for; one that was told stays until another is clearly ahead."""
    object.votes[one.class_name] = object.votes.get(one.class_name, 0.0) + one.score
    best = max(object.votes, key=lambda name: (object.votes[name], name == object.class_name))
    margin = CLASS_TAKES_OVER if object.told else 1.0
    if best == object.class_name or object.votes[best] < margin * object.votes.get(object.class_name, 0.0):
        return ""
    object.class_name = best
    return "class"


def _middle(box: Box) -> tuple[float, float]:
    return (box[0] + box[2]) / 2, (box[1] + box[3]) / 2


def _carried(track: int, one: _Object, at_s: float) -> ObjectState:
    return ObjectState(
        track=track, id=one.id, began_ago_s=ago(at_s, one.began[0]), began_utc=one.began[1], box=list(one.box),
        seen_ago_s=ago(at_s, one.seen_s), score=one.score, frames=one.frames, told=one.told, told_ago_s=ago(at_s, one.told_s),
        votes=one.votes, class_name=one.class_name, zones={zone: ago(at_s, seen_s) for zone, seen_s in one.zones.items()},
        inside_frames=dict(one.inside_frames), been=one.been, dwell_s=one.dwell_s, lines=one.lines, version=one.version, at=list(one.at),
        moved_ago_s=ago(at_s, one.moved_s), still=one.still,
    )  # fmt: skip


def _taken_on(one: ObjectState, base_s: float) -> _Object:
    """Without its best picture, which lies on the other box: the next one is the best here."""
    return _Object(
        id=one.id, began=(base_s - one.began_ago_s, one.began_utc), box=_box(one.box), seen_s=base_s - one.seen_ago_s,
        score=one.score, frames=one.frames, told=one.told, told_s=base_s - one.told_ago_s, votes=dict(one.votes),
        class_name=one.class_name, zones={zone: base_s - ago_s for zone, ago_s in one.zones.items()},
        inside_frames=Counter(one.inside_frames), been=list(one.been), dwell_s=dict(one.dwell_s), lines=dict(one.lines),
        version=one.version, at=(one.at[0], one.at[1]), moved_s=base_s - one.moved_ago_s, still=one.still,
    )  # fmt: skip


def _box(edges: Sequence[float]) -> Box:
    x1, y1, x2, y2 = edges
    return x1, y1, x2, y2
