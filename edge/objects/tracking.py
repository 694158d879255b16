"""From what people are shown to what the book of objects needs: tracks, zones and lines by the transforms of `edge.queries`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

import numpy as np

from configs.units import CLASSES
from edge.inference import Shown
from edge.objects.book import Box, Seen
from edge.objects.carried import ObjectsState
from edge.queries.base import Scene, Tools, scene_of
from edge.queries.carried import Crossings, Tracks
from edge.queries.places import Count, Lines, Track

Places = Mapping[str, Sequence[tuple[float, float]]]


class SceneTracker:
    """Of one camera; not thread-safe. zones, lines: by name, in fractions of the picture. classes: only these, empty: all."""

    def __init__(
        self, camera: str, *, fps: float, lost_s: float, zones: Places | None = None, lines: Places | None = None,
        classes: Sequence[str] = (),
    ) -> None:  # fmt: skip
        tools = Tools(camera_id=camera, fps=fps or 5.0)
        self._track = Track({"lost_s": lost_s}, tools)
        self._zones = Count({"zones": dict(zones or {})}, tools)
        self._lines = Lines({"lines": dict(lines or {})}, tools)
        self._classes = {CLASSES.index(name) for name in classes} or set(range(len(CLASSES)))
        self._size_px: tuple[int, int] | None = None
        asked = [
            lost_s,
            {name: list(at) for name, at in (zones or {}).items()},
            {name: list(at) for name, at in (lines or {}).items()},
        ]
        #: What was asked, as a short name: a state of anything else cannot be gone on with.
        self.places = hashlib.sha256(json.dumps([*asked, sorted(self._classes)], sort_keys=True).encode()).hexdigest()[:32]

    def seen(self, shown: Shown) -> list[Seen]:
        """The tracked detections of an analysed frame."""
        scene = self._track.process(self._scene(shown), ())
        found, ids = scene.detections, scene.track_ids
        assert found is not None
        assert ids is not None
        inside, crossed = self._zones.inside(scene), self._lines.crossed(scene)
        return [
            Seen(
                track=int(ids[i]), class_name=CLASSES[int(found.class_id[i])], score=float(found.score[i]),
                box=_fractions(found.xyxy[i], scene.size_px), zones=frozenset(name for name, which in inside.items() if which[i]),
                crossed={line: way for line, ways in crossed.items() for way, which in ways.items() if which[i]},
            )
            for i in np.flatnonzero((ids >= 0) & (found.xyxy[:, 2:] > found.xyxy[:, :2]).all(axis=1))
        ]  # fmt: skip

    def carried(self, at_s: float) -> tuple[tuple[int, int], Tracks, Crossings] | None:
        """The size that tracks are in, tracks and lines after the frame of `at_s`; None: there was no frame."""
        if self._size_px is None:
            return None
        return self._size_px, self._track.carried(at_s), self._lines.carried(at_s)

    def take_on(self, state: ObjectsState, base_s: float) -> None:
        """See `edge.queries.places.Track.take_on`."""
        self._track.take_on(state.tracks, base_s)
        self._lines.take_on(state.lines, base_s)
        self._size_px = state.size_px

    def forget(self) -> None:
        """As new."""
        self._track.reset()
        self._lines.reset()
        self._size_px = None

    def _scene(self, shown: Shown) -> Scene:
        """All frames in the size of the first, so that tracks and lines go on when the picture is reduced differently."""
        scene = scene_of(shown.frame, size_px=self._size_px, shown=shown.detections)
        self._size_px = scene.size_px
        assert scene.shown is not None
        keep = np.isin(scene.shown.class_id, list(self._classes))
        found = type(scene.shown)(
            xyxy=scene.shown.xyxy[keep], score=scene.shown.score[keep], class_id=scene.shown.class_id[keep]
        )
        return scene.with_(detections=found, track_ids=None)


def _fractions(xyxy: np.ndarray, size_px: tuple[int, int]) -> Box:
    """A box in px as fractions, inside the picture."""
    scale = np.array([*size_px, *size_px], np.float64)
    x1, y1, x2, y2 = (round(float(v), 5) for v in np.clip(xyxy / scale, 0.0, 1.0))
    return x1, y1, x2, y2
