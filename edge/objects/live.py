"""The tracked objects of a running camera: what people are shown goes in, events come out, clips and pictures are made.

The camera's worker hands over each frame it has analysed (`on_shown`) and goes on at once: there is one place for a frame, and the
newest wins; one that was replaced before the thread came to it is counted. Whatever happens here, inference does not wait for it.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from configs.errors import DriftboxError, redact
from configs.units import CLASSES
from edge.clock import Clock
from edge.inference import Shown
from edge.media.folder import MediaFolder
from edge.media.pictures import snapshot_jpeg, thumbnail_jpeg
from edge.media.space import Space
from edge.objects.book import ObjectBook, Told
from edge.objects.carried import ObjectsState
from edge.objects.tracking import SceneTracker
from edge.objects.types import ObjectEvent
from edge.objects.writer import ObjectWriter
from edge.store.objects import Pictures
from edge.worker_thread import WorkerThread

log = logging.getLogger("driftbox")

#: Seconds between two notes in the database that objects, of which nothing is told, are still there.
TOUCH_S = 10.0
#: How often somebody looks whether frames have stopped.
LOOK_S = 1.0


def new_id(utc: float) -> str:
    """A name for an object: when it was first seen (ms since the epoch), and eight letters by chance."""
    return f"{max(0, int(utc * 1000))}-{secrets.token_hex(4)}"


class Recording(Protocol):
    """What makes a camera's clips (`edge.media.recorder`)."""

    def want(self, camera: str, *, since_s: float, at_s: float) -> None: ...


class Recorded(Protocol):
    """What has to run for a camera's clips: its main stream, say."""

    def start(self) -> None: ...

    def stop(self) -> None: ...


class PictureMaker:
    """Makes an object's pictures and writes them. Rests while there is no room."""

    def __init__(self, folder: MediaFolder, space: Space) -> None:
        self._folder, self._space = folder, space

    def make(self, event: ObjectEvent, shown: Shown) -> Pictures | None:
        """None: not now."""
        if self._space.problem:
            return None
        words = f"{event.class_name} {event.score:.2f}"
        try:
            return self._folder.write_pictures(
                event.camera, event.id, event.started_utc, snapshot=snapshot_jpeg(shown.frame.image, event.box, words),
                thumbnail=thumbnail_jpeg(shown.frame.image, event.box),
            )  # fmt: skip
        except DriftboxError as error:
            self._space.failed(str(error))
            return None


class CameraObjects:
    """Runs from `start` to `stop`. classes, zones, lines: that are told of, also when nobody is there. pictures, recorder: None: none
    are made; beside: what runs as long as this does."""

    def __init__(
        self, tracker: SceneTracker, book: ObjectBook, writer: ObjectWriter, *, clock: Clock, classes: Sequence[str] = (),
        zones: Sequence[str] = (), lines: Sequence[str] = (), pictures: PictureMaker | None = None, recorder: Recording | None = None,
        beside: Sequence[Recorded] = (),
    ) -> None:  # fmt: skip
        self.camera_id = book.camera
        self.skipped = 0
        self.errors = 0
        self._tracker, self._book, self._writer, self._clock = tracker, book, writer, clock
        self._pictures, self._recorder, self._beside = pictures, recorder, tuple(beside)
        self._classes, self._zones, self._lines = tuple(classes) or CLASSES, tuple(zones), tuple(lines)
        self._changed = threading.Condition()
        self._waiting: Shown | None = None  # the one place for a frame
        self._stopping = False
        self.thread = WorkerThread(f"objects-{self.camera_id}", self._run)
        self._last: tuple[float, float] | None = None  # of the newest frame: its time, and when we had it
        self._touched_s = float("-inf")
        self._pictured: set[str] = set()
        self._stepping = False
        self._goes_on = ""  # the box that goes on with the objects, '': they are ours
        self._counts: tuple[dict[str, int], dict[str, dict[str, int]]] = self._counted({}, {})

    # --- called by others ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        for one in self._beside:
            one.start()
        self.thread.start()

    def on_shown(self, shown: Shown) -> None:
        """A frame that the camera's worker has analysed. Returns at once and never raises; called by the worker's thread."""
        with self._changed:
            if self._stopping:
                return
            self.skipped += self._waiting is not None
            self._waiting = shown
            self._changed.notify_all()

    def behind(self) -> bool:
        """Whether the last frame was not taken yet."""
        return self._waiting is not None and not self._stopping

    # --- on another box -----------------------------------------------------------------------------------------------

    def hand_over(self, to: str, wait_s: float) -> ObjectsState | None:
        """What is known after the last frame, for box `to`, which goes on with it: what ends here now goes on there, and that is said. A
        further frame makes the objects ours again. None: there was no frame, or the thread does not come round."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._waiting is None and not self._stepping, wait_s) or self._last is None:
                return None
            at_s = self._last[0]
            tracked = self._tracker.carried(at_s)
            if tracked is None:
                return None
            self._goes_on = to
            size_px, tracks, lines = tracked
            return ObjectsState(
                places=self._tracker.places, size_px=size_px, tracks=tracks, lines=lines, book=self._book.carried(at_s)
            )

    def take_on(self, state: ObjectsState, base_s: float, wait_s: float = 1.0) -> str:
        """Goes on from another box's objects; why not, '' it does. base_s: when the frame was, by our clock, after which the state was
        taken. Before the first frame is told."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._waiting is None and not self._stepping, wait_s):
                return "the objects' thread is busy"
            if state.places != self._tracker.places:
                return "its zones, lines or classes are other ones here"
            try:
                self._book.take_on(state.book, base_s, zones=self._zones, lines=self._lines)
                self._tracker.take_on(state, base_s)
            except (ValueError, TypeError, ArithmeticError) as error:
                self._book.forget()
                self._tracker.forget()
                return redact(str(error))
            self._goes_on = ""
            self._last = (base_s, self._clock.monotonic_s())
            self._counts = self._counted(self._book.present(), self._book.in_zones())
            return ""

    def stop(self, wait_s: float = 5.0) -> None:
        """The camera goes: all its objects end."""
        with self._changed:
            if self._stopping:
                return
            self._stopping = True
            self._changed.notify_all()
        self.thread.join(wait_s)
        self.thread.end()
        for one in self._beside:
            one.stop()

    def leave_clips(self) -> None:
        """Another makes the camera's clips from now on, or nobody; objects are followed still."""
        for one in self._beside:
            one.stop()

    def take_up_clips(self) -> None:
        """The other has given up."""
        for one in self._beside:
            one.start()

    def present(self) -> dict[str, int]:
        """Objects that are there now, by class; every class that is told of, also with 0."""
        return dict(self._counts[0])

    def in_zones(self) -> dict[str, dict[str, int]]:
        """The same by zone."""
        return {zone: dict(counts) for zone, counts in self._counts[1].items()}

    def crossings(self) -> dict[str, dict[str, int]]:
        """Per line how many objects have crossed it, `in` and `out`, since this began."""
        counted = {line: Counter[str](ways) for line, ways in list(self._book.crossings.items())}
        return {line: {"in": 0, "out": 0, **counted.get(line, {})} for line in self._lines}

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self, goes_on: Callable[[], bool]) -> None:
        while goes_on():
            self.thread.pulse.beat()
            with self._changed:
                self._stepping = False
                self._changed.notify_all()
                if self._waiting is None and not self._stopping:
                    self._changed.wait(LOOK_S)
                shown, self._waiting = self._waiting, None
                self._stepping = True
                stopping = self._stopping
            if not goes_on():
                return  # replaced while it hung: the other one has the book
            self._guarded(shown)
            if stopping:
                self._tell(self._ended(self._book.close()), None)
                return

    def _guarded(self, shown: Shown | None) -> None:
        try:
            self.step(shown) if shown is not None else self.look()
        except Exception as error:  # a frame that cannot be followed costs this frame and nothing else
            self.errors += 1
            if self.errors in (1, 10, 100) or self.errors % 1000 == 0:
                log.warning("%s: objects: %s", self.camera_id, redact(f"{type(error).__name__}: {error}"), exc_info=True)

    def _ended(self, told: Told) -> Told:
        """What ends here and goes on elsewhere says so."""
        if not self._goes_on:
            return told
        return replace(told, events=tuple(replace(e, extra={**e.extra, "goes_on": self._goes_on}) for e in told.events))

    def step(self, shown: Shown) -> None:
        """A frame. For the camera's own thread (tests call it instead of starting one)."""
        frame = shown.frame
        self._goes_on = ""
        self._last = (frame.captured_s, self._clock.monotonic_s())
        seen = self._tracker.seen(shown)
        told = self._book.see(seen, at_s=frame.captured_s, at_utc=frame.captured_utc, version=shown.version)
        since_s = self._book.active_since_s()
        if since_s is not None and self._recorder is not None:
            self._recorder.want(self.camera_id, since_s=since_s, at_s=frame.captured_s)
        self._tell(told, shown)
        self._touch()

    def look(self) -> None:
        """No frame has come for a while."""
        if self._last is not None:
            at_s, had_s = self._last
            self._tell(self._book.silence(at_s + self._clock.monotonic_s() - had_s), None)
            self._touch()

    def _tell(self, told: Told, shown: Shown | None) -> None:
        self._counts = self._counted(self._book.present(), self._book.in_zones())
        for event in told.events:
            made = self._pictures.make(event, shown) if event.id in told.pictures and self._pictures and shown else None
            if made is not None:
                self._pictured.add(event.id)
            self._writer.tell(replace(event, has_snapshot=event.id in self._pictured), made)
            if event.what == "end":
                self._pictured.discard(event.id)

    def _touch(self) -> None:
        now_s = self._clock.monotonic_s()
        if now_s - self._touched_s < TOUCH_S:
            return
        self._touched_s = now_s
        seen_utc = {event.id: event.seen_utc for event in self._book.open()}
        if seen_utc:
            self._writer.touch(seen_utc)

    def _counted(
        self, present: dict[str, int], zones: dict[str, dict[str, int]]
    ) -> tuple[dict[str, int], dict[str, dict[str, int]]]:
        none = dict.fromkeys(self._classes, 0)
        return {**none, **present}, {zone: {**none, **zones.get(zone, {})} for zone in self._zones}
