"""Transforms over tracks and places: track, count, lines, dwell. Trackers are those of the package trackers, zones and lines those of
supervision; both are loaded when the first frame needs them. Zones and lines are fractions of the picture.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from configs.errors import UsageError
from configs.units import CLASSES
from edge.queries import tracker_state
from edge.queries.base import BaseTransform, KnobValue, Scene, Told, Tools
from edge.queries.carried import (
    MOST_TRACKS,
    WAYS,
    Crossings,
    LineSums,
    SeenTrack,
    Sided,
    Stay,
    Stays,
    Tracks,
    Way,
    ZoneStays,
    ago,
)
from edge.queries.facts import knobs_of, params_of
from models.evaluate import iou_matrix
from scheduler.types import Detections

#: A track goes on without being seen for so long.
LOST_S = 2.0
#: Detections from this score on begin a track; weaker ones only carry one on.
START_SCORE = 0.35
#: Frames that a track is seen in before it counts.
MIN_FRAMES = 2
#: Frames that an object must be on the other side of a line for: boxes tremble, and who stands on a line would cross it all the time
#: (on a real path at 5 frames/s two lines were crossed 32 times with 1, 28 with 2, and 26 by the tracks that humans drew).
SIDE_FRAMES = 2
#: An object that leaves a zone for so long has left it.
GAP_S = 2.0
#: So many numbers of tracks are known before those that ended are forgotten: a box runs for a year.
MOST_NUMBERS = 4096
#: A track of another association is the same object when their boxes overlap so much.
SAME_IOU = 0.3


# --- track ------------------------------------------------------------------------------------------------------------


class Track(BaseTransform):
    """Which detections are one object over time. params: lost_s: how long a track goes on unseen; start_score: detections from this
    score on begin one; min_frames: in how many frames it is seen before it has a number.

    Numbers rise and are never used again, also when the association changes: tracks of the new one take over the numbers of those that
    were there (largest overlap). Tells: `tracks`, how many are seen now."""

    name = "track"
    knobs, params = knobs_of("track"), params_of("track")
    stateful = True

    def __init__(self, params: Mapping[str, Any], tools: Tools) -> None:
        super().__init__(params, tools)
        self.reset()

    def reset(self) -> None:
        self._next = 1
        self.interrupt()

    def interrupt(self) -> None:
        self._tracker: Any = None
        self._numbers: dict[int, int] = {}  # the tracker's own -> ours
        self._seen: dict[int, tuple[np.ndarray, float]] = {}  # ours -> last box, when
        self._taken_over: dict[int, tuple[np.ndarray, float]] = {}  # of the association before, not found again yet
        self._last_s: float | None = None

    @property
    def _lost_s(self) -> float:
        return float(self.given.get("lost_s", LOST_S))

    def process(self, scene: Scene, others: Sequence[Scene]) -> Scene:
        found = scene.detections if scene.detections is not None else Detections.empty()
        if self._last_s is not None and scene.at_s < self._last_s:
            self.interrupt()
        self._last_s = scene.at_s
        if self._tracker is None:
            self._tracker = self._made()
        own = _updated(self._tracker, found, scene.at_s)
        ids = self._our_numbers(own, found, scene.at_s)
        return scene.with_(track_ids=ids, told={"tracks": int((ids >= 0).sum())})

    def update(self, knob: str, value: KnobValue) -> None:
        if self.values[knob] == value:
            return
        super().update(knob, value)
        self._tracker, self._numbers = None, {}
        self._taken_over.update(self._seen)

    def carried(self, at_s: float) -> Tracks:
        """What it remembers after the frame of `at_s`, the newest first where it is too much."""

        def seen(known: Mapping[int, tuple[np.ndarray, float]]) -> list[SeenTrack]:
            newest = sorted(known.items(), key=lambda item: -item[1][1])[:MOST_TRACKS]
            return [SeenTrack(number=n, box=box.tolist(), ago_s=ago(at_s, seen_s)) for n, (box, seen_s) in newest]

        tracker = self._tracker
        inside = None if tracker is None else tracker_state.exported(tracker, str(self.values["association"]), at_s)
        own = {one.id for one in inside.tracks} if inside is not None else set()
        return Tracks(
            next=self._next, last_ago_s=None if self._last_s is None else ago(at_s, self._last_s), seen=seen(self._seen),
            taken_over=seen(self._taken_over), numbers=[pair for pair in self._numbers.items() if pair[0] in own], tracker=inside,
        )  # fmt: skip

    def take_on(self, state: Tracks, base_s: float) -> None:
        """Goes on from another box's state. base_s: when the frame was that it was taken after. ValueError: it is none."""
        numbers = [one.number for one in (*state.seen, *state.taken_over)] + [number for _, number in state.numbers]
        if max(numbers, default=0) >= state.next:
            raise ValueError("a track has a number that was not given yet")
        self.reset()
        self._next = state.next
        self._last_s = None if state.last_ago_s is None else base_s - state.last_ago_s

        def known(of: Sequence[SeenTrack]) -> dict[int, tuple[np.ndarray, float]]:
            return {one.number: (np.array(one.box, np.float32), base_s - one.ago_s) for one in of}

        self._seen, self._taken_over = known(state.seen), known(state.taken_over)
        if state.tracker is not None and tracker_state.fits(state.tracker, str(self.values["association"])):
            tracker = self._made()
            tracker_state.put_in(state.tracker, tracker, base_s)
            self._tracker, self._numbers = tracker, dict(state.numbers)
        else:  # as with another association
            self._taken_over.update(self._seen)

    def _made(self) -> Any:
        import trackers

        start_score = float(self.given.get("start_score", START_SCORE))
        # The packages count what is lost in frames at 30 a second, whatever the rate is; times are handed in with every frame.
        usual = {
            "lost_track_buffer": max(1, round(30 * self._lost_s)), "frame_rate": max(0.1, self.tools.fps),
            "minimum_consecutive_frames": int(self.given.get("min_frames", MIN_FRAMES)),
        }  # fmt: skip
        association = self.values["association"]
        if association == "bytetrack":
            return trackers.ByteTrackTracker(
                track_activation_threshold=start_score, high_conf_det_threshold=start_score, **usual
            )
        if association == "ocsort":
            return trackers.OCSORTTracker(high_conf_det_threshold=start_score, **usual)
        if association == "sort":
            return trackers.SORTTracker(track_activation_threshold=start_score, **usual)
        known = ", ".join(map(str, self.knobs[0].values))
        raise UsageError(f"track has no association {association!r}", subject="track", remedy=f"known: {known}")

    def _our_numbers(self, own: np.ndarray, found: Detections, at_s: float) -> np.ndarray:
        """int64 (N,): our number of each detection, -1 without one. own: the tracker's."""
        ids = np.full(len(own), -1, np.int64)
        for i in np.flatnonzero(own >= 0):
            number = self._numbers.get(int(own[i]))
            if number is None:
                number = self._numbers[int(own[i])] = self._number_of_new(found.xyxy[i])
            ids[i] = number
            self._seen[number] = (found.xyxy[i], at_s)
        for known in (self._seen, self._taken_over):
            for number in [n for n, (_, seen_s) in known.items() if at_s - seen_s > self._lost_s]:
                del known[number]
        if len(self._numbers) > MOST_NUMBERS:  # once in a while, not for every frame
            self._numbers = {theirs: number for theirs, number in self._numbers.items() if number in self._seen}
        return ids

    def _number_of_new(self, box: np.ndarray) -> int:
        if self._taken_over:
            numbers = list(self._taken_over)
            iou = iou_matrix(box[None], np.array([self._taken_over[n][0] for n in numbers]))[0]
            if iou.max() >= SAME_IOU:
                number = numbers[int(iou.argmax())]
                del self._taken_over[number]
                return number
        self._next += 1
        return self._next - 1


def _updated(tracker: Any, found: Detections, at_s: float) -> np.ndarray:
    """int64 (N,): the tracker's number of each detection, in their order, -1 without one."""
    objects = _objects(found)
    objects.data["row"] = np.arange(len(found))
    tracked = tracker.update(objects, timestamp=at_s)
    own = np.full(len(found), -1, np.int64)
    if len(tracked):
        own[tracked.data["row"]] = tracked.tracker_id
    return own


def _objects(found: Detections, track_ids: np.ndarray | None = None) -> Any:
    """Detections as supervision has them."""
    import supervision

    return supervision.Detections(
        xyxy=found.xyxy.astype(np.float64).reshape(-1, 4), confidence=found.score.astype(np.float64),
        class_id=found.class_id.astype(int), tracker_id=None if track_ids is None else track_ids.astype(int),
    )  # fmt: skip


# --- places -----------------------------------------------------------------------------------------------------------


class _Placed(BaseTransform):
    """Zones or lines in the px of the camera's picture, made when its size is known."""

    def __init__(self, params: Mapping[str, Any], tools: Tools) -> None:
        super().__init__(params, tools)
        self._made_for: tuple[int, int] | None = None
        self._places: dict[str, Any] = {}

    def _of_scene(self, scene: Scene) -> dict[str, Any]:
        if scene.size_px != self._made_for:
            self._places, self._made_for = self._made(scene.size_px), scene.size_px
        return self._places

    def _made(self, size_px: tuple[int, int]) -> dict[str, Any]:
        import supervision

        return {
            name: supervision.PolygonZone(np.rint(np.array(corners) * size_px).astype(int), self._anchors())
            for name, corners in (self.given.get("zones") or {}).items()
        }

    def _anchors(self) -> list[Any]:
        from supervision import Position

        corners = [Position.TOP_LEFT, Position.TOP_RIGHT, Position.BOTTOM_LEFT, Position.BOTTOM_RIGHT]
        known = {"bottom_center": [Position.BOTTOM_CENTER], "center": [Position.CENTER], "corners": corners}
        return known[self.given.get("anchor", "bottom_center")]

    def _counted(self, scene: Scene) -> tuple[Detections, np.ndarray | None]:
        """Detections of the wanted classes, and their tracks."""
        found = scene.detections if scene.detections is not None else Detections.empty()
        ids, classes = scene.track_ids, self.given.get("classes")
        if not classes:
            return found, ids
        keep = np.isin(found.class_id, [CLASSES.index(name) for name in classes])
        chosen = Detections(xyxy=found.xyxy[keep], score=found.score[keep], class_id=found.class_id[keep])
        return chosen, None if ids is None else ids[keep]


class Count(_Placed):
    """Objects in the picture and in each zone, per class. Tells `total`, `classes`, and per zone the same."""

    name = "count"
    params = params_of("count")

    def process(self, scene: Scene, others: Sequence[Scene]) -> Scene:
        found, _ = self._counted(scene)
        zones = {name: _tally(found.class_id[inside]) for name, inside in self.inside(scene).items()}
        return scene.with_(told={**_tally(found.class_id), "zones": zones})

    def inside(self, scene: Scene) -> dict[str, np.ndarray]:
        """bool (N,) per zone: which of the counted objects are in it."""
        objects = _objects(self._counted(scene)[0])
        return {name: zone.trigger(objects) for name, zone in self._of_scene(scene).items()}


def _tally(class_id: np.ndarray) -> dict[str, Any]:
    """How many objects there are, and of which classes."""
    classes = Counter(CLASSES[int(c)] for c in class_id)
    return {"total": len(class_id), "classes": dict(sorted(classes.items()))}


class Lines(_Placed):
    """Objects that cross lines. Seen from a line's first point to its second, `in` is from right to left, `out` from left to right.
    params: min_frames: for so many frames an object must be on the other side. Tells per line `in`, `out`, and both per class, since the
    query began."""

    name = "lines"
    params = params_of("lines")
    stateful = True

    def __init__(self, params: Mapping[str, Any], tools: Tools) -> None:
        super().__init__(params, tools)
        self.reset()

    def reset(self) -> None:
        self._sums: dict[str, dict[Way, Counter[str]]] = {}
        self.interrupt()

    def interrupt(self) -> None:
        self._made_for, self._places = None, {}
        self._sides_of: dict[int, float] = {}  # tracks that lines know the side of, and when they were last seen
        self._sided: dict[str, list[Sided]] = {}  # brought from another box, for lines that are not made yet

    def carried(self, at_s: float) -> Crossings:
        """What it remembers after the frame of `at_s`."""
        lines = [
            LineSums(
                name=name, sums={way: dict(sums) for way, sums in self._sums.get(name, {}).items()},
                sided=self._sided.get(name, []) or _sided(self._places.get(name)),
            )
            for name in (self.given.get("lines") or {})
        ]  # fmt: skip
        newest = sorted(self._sides_of.items(), key=lambda item: -item[1])[:MOST_TRACKS]
        return Crossings(lines=lines, tracks=[(track, ago(at_s, seen_s)) for track, seen_s in newest])

    def take_on(self, state: Crossings, base_s: float) -> None:
        """See `Track.take_on`. ValueError also for lines that are not here."""
        if {line.name for line in state.lines} - set(self.given.get("lines") or {}):
            raise ValueError("it has lines that are not here")
        if {name for line in state.lines for sums in line.sums.values() for name in sums} - set(CLASSES):
            raise ValueError("it has classes that are not here")
        self.reset()
        self._sums = {
            line.name: {"in": Counter(line.sums.get("in")), "out": Counter(line.sums.get("out"))} for line in state.lines
        }
        self._sides_of = {track: base_s - ago_s for track, ago_s in state.tracks}
        self._sided = {line.name: list(line.sided) for line in state.lines}

    def process(self, scene: Scene, others: Sequence[Scene]) -> Scene:
        found, _ = self._counted(scene)
        told = {}
        for name, crossed in self.crossed(scene).items():
            sums = self._sums.setdefault(name, {"in": Counter(), "out": Counter()})
            for way, which in crossed.items():
                sums[way].update(CLASSES[int(c)] for c in found.class_id[which])
            told[name] = _crossed(sums)
        return scene.with_(told={"lines": told})

    def crossed(self, scene: Scene) -> dict[str, dict[Way, np.ndarray]]:
        """bool (N,) per line and way (in, out): which of the counted objects have crossed it with this frame. Once per frame."""
        found, ids = self._counted(scene)
        ids = np.full(len(found), -1, np.int64) if ids is None else ids
        absent = self._absent(ids, scene.at_s)
        return {
            name: {
                way: which[: len(found)]
                for way, which in zip(WAYS, line.trigger(_with_absent(found, ids, absent, line)), strict=True)
            }
            for name, line in self._of_scene(scene).items()
        }

    def _absent(self, ids: np.ndarray, at_s: float) -> list[int]:
        """Tracks that are not seen in this frame and may come back."""
        self._sides_of.update(dict.fromkeys((int(i) for i in ids if i >= 0), at_s))
        self._sides_of = {i: seen_s for i, seen_s in self._sides_of.items() if 0 <= at_s - seen_s <= LOST_S}
        return [i for i, seen_s in self._sides_of.items() if seen_s < at_s]

    def _made(self, size_px: tuple[int, int]) -> dict[str, Any]:
        import supervision

        def point(at: Sequence[float]) -> Any:
            return supervision.Point(x=at[0] * size_px[0], y=at[1] * size_px[1])

        frames = int(self.given.get("min_frames", SIDE_FRAMES))
        made = {
            name: supervision.LineZone(point(ends[0]), point(ends[1]), self._anchors(), minimum_crossing_threshold=frames)
            for name, ends in (self.given.get("lines") or {}).items()
        }
        sided, self._sided = self._sided, {}
        for name, known in sided.items():
            _remember(made[name], known)
        return made


def _sided(line: Any) -> list[Sided]:
    """The tracks that a line knows the side of; None: it was not made yet."""
    if line is None:
        return []
    known = list(line.crossing_state_history.items())[-MOST_TRACKS:]
    return [
        Sided(
            track=track, sides=list(sides), confirmed=line._confirmed_crossing_side.get(track),
            absent=line._tracker_frames_absent.get(track, 0),
        )
        for track, sides in known
    ]  # fmt: skip


def _remember(line: Any, known: Sequence[Sided]) -> None:
    for one in known:
        line.crossing_state_history[one.track].extend(one.sides)
        if one.confirmed is not None:
            line._confirmed_crossing_side[one.track] = one.confirmed
        if one.absent:
            line._tracker_frames_absent[one.track] = one.absent


def _with_absent(found: Detections, ids: np.ndarray, absent: Sequence[int], line: Any) -> Any:
    """Detections as a line wants them. It forgets the side of a track that misses two frames, which any detector makes it do; a track
    that may come back is shown beyond the line's end, where it is remembered and not counted."""
    start, end = line.vector.start, line.vector.end
    far = [end.x + 2 * (end.x - start.x), end.y + 2 * (end.y - start.y)] * 2
    boxes = np.concatenate([found.xyxy, np.array([far] * len(absent), np.float32).reshape(-1, 4)])
    padded = Detections(
        xyxy=boxes, score=np.concatenate([found.score, np.ones(len(absent), np.float32)]),
        class_id=np.concatenate([found.class_id, np.zeros(len(absent), np.int64)]),
    )  # fmt: skip
    return _objects(padded, np.concatenate([ids, np.array(absent, np.int64)]))


def _crossed(sums: Mapping[Way, Counter[str]]) -> Told:
    told: dict[str, Any] = {way: sum(counter.values()) for way, counter in sums.items()}
    return {**told, "classes": {way: dict(sorted(counter.items())) for way, counter in sums.items()}}


@dataclass(kw_only=True)
class _Stays:
    """A zone's visits. since_s: track -> when it came in; seen_s: when it was last seen there; stayed_s: of those that left."""

    since_s: dict[int, float] = field(default_factory=dict)
    seen_s: dict[int, float] = field(default_factory=dict)
    visits: int = 0
    stayed_s: float = 0.0
    longest_s: float = 0.0

    def come(self, track: int, at_s: float) -> None:
        self.since_s.setdefault(track, at_s)
        self.seen_s[track] = at_s

    def leave(self, at_s: float, *, gap_s: float, least_s: float) -> None:
        """Those who were not seen for `gap_s` have left when they were last seen."""
        for track in [t for t, seen_s in self.seen_s.items() if at_s - seen_s > gap_s]:
            stayed_s = self.seen_s.pop(track) - self.since_s.pop(track)
            if stayed_s >= least_s:
                self.visits += 1
                self.stayed_s += stayed_s
                self.longest_s = max(self.longest_s, stayed_s)


class Dwell(_Placed):
    """How long objects stay in zones. params: least_s: shorter stays are passing by and do not count; gap_s: an object that is not seen
    in the zone for so long has left it. Tells per zone `inside` (now, for `least_s` already), `longest_now_s`, and of those that left
    `visits`, `mean_s`, `longest_s`."""

    name = "dwell"
    params = params_of("dwell")
    stateful = True

    def __init__(self, params: Mapping[str, Any], tools: Tools) -> None:
        super().__init__(params, tools)
        self._stays: dict[str, _Stays] = {}

    def reset(self) -> None:
        self._made_for, self._stays = None, {}

    def interrupt(self) -> None:
        """Who is inside counts as a stay to the moment when it was last seen."""
        self._made_for = None
        for stays in self._stays.values():
            stays.leave(math.inf, gap_s=0.0, least_s=self._least_s)

    def carried(self, at_s: float) -> Stays:
        """What it remembers after the frame of `at_s`."""
        return Stays(
            zones=[
                ZoneStays(
                    name=name, visits=stays.visits, stayed_s=stays.stayed_s, longest_s=stays.longest_s,
                    inside=[
                        Stay(track=track, since_ago_s=ago(at_s, since_s), seen_ago_s=ago(at_s, stays.seen_s[track]))
                        for track, since_s in list(stays.since_s.items())[-MOST_TRACKS:]
                    ],
                )
                for name, stays in self._stays.items()
            ]
        )  # fmt: skip

    def take_on(self, state: Stays, base_s: float) -> None:
        """See `Track.take_on`. ValueError also for zones that are not here."""
        if {zone.name for zone in state.zones} - set(self.given.get("zones") or {}):
            raise ValueError("it has zones that are not here")
        self.reset()
        self._stays = {
            zone.name: _Stays(
                since_s={stay.track: base_s - stay.since_ago_s for stay in zone.inside},
                seen_s={stay.track: base_s - stay.seen_ago_s for stay in zone.inside},
                visits=zone.visits, stayed_s=zone.stayed_s, longest_s=zone.longest_s,
            )
            for zone in state.zones
        }  # fmt: skip

    def process(self, scene: Scene, others: Sequence[Scene]) -> Scene:
        found, ids = self._counted(scene)
        ids = np.full(len(found), -1, np.int64) if ids is None else ids
        objects, at_s = _objects(found), scene.at_s
        gap_s, least_s = float(self.given.get("gap_s", GAP_S)), self._least_s
        told = {}
        for name, zone in self._of_scene(scene).items():
            stays = self._stays.setdefault(name, _Stays())
            for track in ids[zone.trigger(objects) & (ids >= 0)]:
                stays.come(int(track), at_s)
            stays.leave(at_s, gap_s=gap_s, least_s=least_s)
            told[name] = _stayed(stays, at_s, least_s)
        return scene.with_(told={"zones": told})

    @property
    def _least_s(self) -> float:
        return float(self.given.get("least_s", 0.0))


def _stayed(stays: _Stays, at_s: float, least_s: float) -> Told:
    now_s = [s for since_s in stays.since_s.values() if (s := at_s - since_s) >= least_s]
    return {
        "inside": len(now_s), "longest_now_s": round(max(now_s, default=0.0), 2), "visits": stays.visits,
        "mean_s": round(stays.stayed_s / stays.visits, 2) if stays.visits else 0.0, "longest_s": round(stays.longest_s, 2),
    }  # fmt: skip
