"""Changes to a running box, one at a time: cameras added, changed and removed, and the commands of `edge.control`.

    what is asked --> book (checked, durable) --> beside the loop: open, load, warm --> in the loop: exchange --> put away what is out

Everything slow happens in the thread of whoever asks. The loop only exchanges: that takes milliseconds, and no other camera waits for
it. When the live part fails, the book is as it was before. When we are killed in between, the box comes up with what the book says.

What a change needs is decided by `need_of`: names, zones, classes, masks, rate, size, deadline, queries and learning change in place;
another address or transport is opened beside the old one, which goes on until a picture of the new one is there; another task or model
is a new beginning for that camera (its weights are loaded first, so that a mistake costs nothing).
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any, Protocol

from pydantic import ValidationError

from configs.errors import DriftboxError, JobError, UsageError, redact
from configs.schema import CameraEntry
from edge import models_admin
from edge.cameras.book import CameraBook, Kept, Shelfful
from edge.cameras.times import learns_at, local_now, watches_at
from edge.control import COMMANDS, Arguments, OfCamera, Promote, Rollback, Switch
from edge.objects.live import CameraObjects
from edge.profiler.live import LiveMenu
from edge.profiler.profile import USUAL_FPS
from edge.queries.live import CameraQueries
from edge.runtime import BoxRuntime, Watched
from scheduler.commands import Note
from scheduler.types import KnobProfile
from streams.masks import masks_from
from streams.pulse import Threaded
from streams.source import Camera

log = logging.getLogger("driftbox")

#: Longest that a change waits for the one before it, and that a new address may take to its first picture before it takes over anyhow.
TURN_S, FIRST_PICTURE_S = 60.0, 5.0
#: How often schedules are looked at, and how long a promotion is waited for.
TIMES_S, SERVES_S = 5.0, 10.0


class Maker(Protocol):
    """What makes cameras; `edge.wiring.cameras` has it. refusal: why this box cannot take cameras in while it runs, '': it can."""

    @property
    def refusal(self) -> str: ...

    def check(self, entry: CameraEntry) -> None:
        """Raises what `make` would raise for what is missing, and changes nothing."""

    def make(self, entry: CameraEntry) -> Watched: ...

    def stream(self, entry: CameraEntry) -> Camera: ...

    def queries(self, entry: CameraEntry) -> CameraQueries | None: ...

    def objects(self, entry: CameraEntry, camera: Camera) -> CameraObjects | None: ...

    def knobs(self, entry: CameraEntry, cost_s: float) -> tuple[LiveMenu | None, tuple[KnobProfile, ...]]: ...


#: What objects and clips are made from.
_OF_OBJECTS = ("record_url", "transport", "rtsp_by", "fps", "masks", "zones", "classes", "objects", "recording", "loop")


class Need(Enum):
    """What a change of a camera needs, the most of it."""

    NOTHING = 0
    IN_PLACE = 1
    STREAM = 2
    ANEW = 3


_NEEDS = {
    **dict.fromkeys(("task", "edge", "may_lag"), Need.ANEW),
    **dict.fromkeys(("url", "transport", "rtsp_by", "loop"), Need.STREAM),
}


def need_of(before: CameraEntry, after: CameraEntry) -> Need:
    """Of two entries of one camera."""
    changed = [name for name in CameraEntry.model_fields if getattr(before, name) != getattr(after, name)]
    return max((_NEEDS.get(name, Need.IN_PLACE) for name in changed), key=lambda need: need.value, default=Need.NOTHING)


class LiveControl:
    """See the module, and `edge.control.BoxControl`. Thread-safe. lift: a camera's workers are to be tried again (the watchdog); now:
    the wall clock, with a time zone; sleep: waits."""

    def __init__(
        self,
        runtime: BoxRuntime,
        book: CameraBook,
        maker: Maker,
        *,
        data_dir: Path,
        lift: Callable[[str], object] = lambda camera: None,
        now: Callable[[], datetime] = lambda: datetime.now().astimezone(),
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._runtime, self._book, self._maker, self._data_dir = runtime, book, maker, data_dir
        self.lift, self._now, self._sleep = lift, now, sleep
        self._turn = threading.Lock()
        self._failed: dict[str, str] = {}  # cameras that could not be taken in, and why
        self._elsewhere: dict[str, str] = {}  # cameras that another box watches, and why
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._keep_times, name="camera-times", daemon=True)

    # --- cameras ------------------------------------------------------------------------------------------------------

    def cameras(self) -> Shelfful:
        """All of them, watched or not. Raises ConfigError, StorageError."""
        return self._book.read()

    def state(self, kept: Kept) -> tuple[str, str]:
        """(state, why) of a camera, as people are told: as its stream has it, or `elsewhere`, `off`, `scheduled`, `failed`."""
        entry = kept.entry
        running = self._runtime.watched.get(entry.id)
        if running is not None:
            status = running.camera.status()
            return ("quarantined", running.quarantined) if running.quarantined else (status.state.value, status.error)
        if entry.id in self._elsewhere:
            return "elsewhere", self._elsewhere[entry.id]
        if not entry.enabled:
            return "off", ""
        if not watches_at(entry, self._local(entry)):
            return "scheduled", "its schedule says that it is not watched now"
        return "failed", self._failed.get(entry.id, "")

    def add(self, document: Mapping[str, Any], *, by: str) -> Kept:
        """A new camera is watched from now on. Raises ConfigError (problems by field), UsageError, WeightsError, EnvironmentLacking,
        JobError, StorageError; then there is none."""
        with self._one_at_a_time():
            before = {kept.entry.id for kept in self._book.read().cameras}
            found = self._book.add(document, by=by)
            kept = next(kept for kept in found.cameras if kept.entry.id not in before)
            self._carry_out(kept.entry.id, None, kept.entry, None, f"added by {by}")
            return kept

    def change(self, camera: str, patch: Mapping[str, Any], *, by: str, etag: str | None = None) -> Kept:
        """Some fields of a camera change, at once. Raises as `add`, and UsageError (codes 'not_found', 'changed'); then nothing has."""
        with self._one_at_a_time():
            row, before = self._book.row(camera), self._book.read().find(camera)
            after = self._book.change(camera, patch, by=by, etag=etag).find(camera)
            self._carry_out(camera, before.entry, after.entry, row, f"changed by {by}: {', '.join(sorted(patch)) or 'nothing'}")
            return after

    def remove(self, camera: str, *, by: str, etag: str | None = None) -> None:
        """A camera is no longer watched; its models and samples stay for when it comes back. Raises UsageError, JobError,
        StorageError."""
        with self._one_at_a_time():
            row, before = self._book.row(camera), self._book.read().find(camera)
            self._book.remove(camera, by=by, etag=etag)
            self._carry_out(camera, before.entry, None, row, f"removed by {by}")

    def reset(self, camera: str, *, by: str) -> Kept | None:
        """Drops what was changed here about a camera; None: the configuration file does not name it, so it is gone. Raises as
        `change`."""
        with self._one_at_a_time():
            row = self._book.row(camera)
            before = next((kept.entry for kept in self._book.read().cameras if kept.entry.id == camera), None)
            after = next((kept for kept in self._book.reset(camera).cameras if kept.entry.id == camera), None)
            self._carry_out(camera, before, after.entry if after else None, row, f"reset by {by}")
            return after

    def withhold(self, camera: str, why: str) -> None:
        """The camera stays in the configuration, but another box watches it: here it is closed until `give_back`. Raises JobError."""
        with self._one_at_a_time():
            self._elsewhere = self._elsewhere | {camera: why}
            if camera in self._runtime.watched:
                self._take_out(camera)
                self._note(camera, f"not watched here: {why}")

    def give_back(self, camera: str) -> None:
        """The camera is watched here again, if it is to be watched at all. Raises as `add`; then it is tried again by who asks again."""
        with self._one_at_a_time():
            entry = self._book.read().find(camera).entry
            elsewhere = dict(self._elsewhere)
            if elsewhere.pop(camera, None) is None:
                return
            before, self._elsewhere = self._elsewhere, elsewhere
            try:
                self._apply(entry, entry)
            except BaseException:
                self._elsewhere = before
                raise
            self._note(camera, "watched here again")

    def is_due(self, entry: CameraEntry) -> bool:
        """Whether a camera is to be watched here now: it is switched on, its schedule says so, and no other box has it."""
        return entry.id not in self._elsewhere and watches_at(entry, self._local(entry))

    # --- commands (edge.control.BoxControl) ---------------------------------------------------------------------------

    def do(self, command: str, arguments: Mapping[str, Any], *, by: str) -> dict[str, Any]:
        """See `edge.control.BoxControl`."""
        if command not in COMMANDS:
            raise UsageError(f"unknown command {command[:60]!r}", subject="command", remedy=f"known: {', '.join(COMMANDS)}")
        given = _arguments(COMMANDS[command][0], arguments)
        doers: dict[str, Callable[[Any, str], dict[str, Any]]] = {
            "camera/watch": self._watch, "camera/learning": self._learning, "camera/restart": self._restart,
            "model/rollback": self._rollback, "model/promote": self._promote,
        }  # fmt: skip
        return doers[command](given, by)

    def _watch(self, given: Switch, by: str) -> dict[str, Any]:
        kept = self.change(given.camera, {"enabled": given.on}, by=by)
        return {"camera": given.camera, "watch": kept.entry.enabled, "state": self.state(kept)[0]}

    def _learning(self, given: Switch, by: str) -> dict[str, Any]:
        kept = self.change(given.camera, {"learning": given.on}, by=by)
        return {"camera": given.camera, "learning": kept.entry.learning}

    def _restart(self, given: OfCamera, by: str) -> dict[str, Any]:
        kept = self.cameras().find(given.camera)
        running = self._runtime.watched.get(given.camera)
        if running is None:
            self._take_up(kept.entry)
        elif running.quarantined:
            self._runtime.lift(given.camera)
        elif isinstance(running.camera, Threaded):
            running.camera.restart()
        self.lift(given.camera)
        self._note(given.camera, f"opened anew by {by}")
        return {"camera": given.camera, "state": self.state(kept)[0]}

    def _rollback(self, given: Rollback, by: str) -> dict[str, Any]:
        self.cameras().find(given.camera)
        return self._served(models_admin.rollback(self._data_dir, given.camera, given.version), by)

    def _promote(self, given: Promote, by: str) -> dict[str, Any]:
        return self._served(models_admin.promote(self._data_dir, given.version, force=given.force), by)

    def _served(self, served: models_admin.Served, by: str) -> dict[str, Any]:
        """Waits until the box has taken the choice up; one that takes longer is on its way."""
        self._note(served.camera, f"{served.after} is to serve instead of {served.before or 'nothing'}, says {by}")
        told = {"camera": served.camera, "before": served.before, "after": served.after, "warning": served.warning}
        for _ in range(round(SERVES_S / 0.1)):
            running = self._runtime.watched.get(served.camera)
            if running is None or running.worker.version() == served.after:
                break
            self._sleep(0.1)
        running = self._runtime.watched.get(served.camera)
        return told | {"serves": running is not None and running.worker.version() == served.after}

    # --- schedules ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Looks after schedules from now on."""
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(2.0)

    def _keep_times(self) -> None:
        while not self._stopping.wait(TIMES_S):
            with contextlib.suppress(JobError):  # the box ends, or another change takes long: next time
                self.look_at_times()

    def look_at_times(self) -> None:
        """Brings cameras in and takes them out as their schedules say. For its own thread (tests call it)."""
        try:
            cameras = self._book.read().cameras
        except DriftboxError as error:
            log.warning("schedules are not looked at: %s", error)
            return
        for kept in cameras:
            entry = kept.entry
            running = self._runtime.watched.get(entry.id)
            due = self.is_due(entry)
            learns = learns_at(entry, self._local(entry))
            if not due:
                self._failed.pop(entry.id, None)  # it is tried again when it is due again
            if (running is None and due and entry.id not in self._failed) or (
                running is not None and (not due or running.learns != learns)
            ):
                self._follow_times(entry, "watched" if due else "not watched")

    def _follow_times(self, entry: CameraEntry, word: str) -> None:
        try:
            with self._one_at_a_time():
                self._apply(entry, entry)
        except Exception as error:
            if isinstance(error, JobError) and error.code in ("busy", "not_running"):
                raise
            self._failed[entry.id] = redact(str(error))
            self._note(entry.id, f"by its schedule it is to be {word} now, but: {error}")

    # --- carrying a change out ----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _one_at_a_time(self) -> Iterator[None]:
        if not self._turn.acquire(timeout=TURN_S):
            raise JobError("another change of the cameras takes long", remedy="try again in a minute", code="busy")
        try:
            yield
        finally:
            self._turn.release()

    def _carry_out(self, camera: str, before: CameraEntry | None, after: CameraEntry | None, row: Any, told: str) -> None:
        """The live part of a change that is in the book already; the book is put back when it fails."""
        try:
            self._apply(before, after)
        except BaseException:
            self._book.put_back(camera, row)
            raise
        finally:
            self._book.tidy()
        self._failed.pop(camera, None)
        self._note(camera, told)

    def _apply(self, before: CameraEntry | None, after: CameraEntry | None) -> None:
        entry = after or before
        assert entry is not None
        due = after is not None and self.is_due(after)
        running = self._runtime.watched.get(entry.id)
        if not due:
            if running is not None:
                self._take_out(entry.id)
        elif running is None:
            self._bring_in(entry)
        else:
            self._go_on(running, entry)

    def _take_up(self, entry: CameraEntry) -> None:
        """A camera that failed is tried again."""
        with self._one_at_a_time():
            self._failed.pop(entry.id, None)
            self._apply(entry, entry)

    def _bring_in(self, entry: CameraEntry) -> None:
        self._require_joining(entry)
        made = self._maker.make(entry)
        made.learns = learns_at(entry, self._local(entry))
        try:
            self._runtime.ask(lambda: self._runtime.add_camera(made))
        except BaseException:
            self._runtime.put_away(made)
            raise

    def _take_out(self, camera: str) -> None:
        self._runtime.put_away(self._runtime.ask(lambda: self._runtime.remove_camera(camera)))

    def _go_on(self, running: Watched, entry: CameraEntry) -> None:
        need = need_of(running.entry, entry) if running.entry is not None else Need.ANEW
        if need is Need.ANEW:
            self._begin_anew(running, entry)
            return
        camera = self._opened(running, entry) if need is Need.STREAM else running.camera
        queries, objects = self._asked(running, entry), running.objects
        try:
            objects = self._followed(running, entry, camera)
            self._begin(running.objects, objects)
            before = self._runtime.ask(lambda: self._exchange(entry, camera, queries, objects))
        except BaseException:
            if camera is not running.camera:
                camera.stop()
            if queries is not running.queries and queries is not None:
                queries.stop()
            self._take_back(running.objects, objects)
            raise
        if before.objects is not objects and before.objects is not None:
            before.objects.stop()
        if before.camera is not camera:
            before.camera.stop()
        if before.queries is not queries and before.queries is not None:
            before.queries.stop()

    def _exchange(
        self, entry: CameraEntry, camera: Camera, queries: CameraQueries | None, objects: CameraObjects | None
    ) -> Watched:
        """In the loop: what is measured is not lost between reading and exchanging. Returns what was watched before."""
        running = self._runtime.watched[entry.id]
        known = running.entry
        if known is None or known.masks != entry.masks:
            camera.mask(masks_from(entry.masks))
        menu, knobs = running.menu, running.knobs
        if known is None or known.fps != entry.fps:
            menu, knobs = self._maker.knobs(entry, running.profiled_cost_s)
        running.worker.finish.goal_s = entry.goal_s
        after = replace(
            running, entry=entry, camera=camera, queries=queries, title=entry.title, fps=entry.fps or USUAL_FPS, menu=menu, knobs=knobs,
            height_px=entry.height_px, objects=objects, learns=learns_at(entry, self._local(entry)),
        )  # fmt: skip
        return self._runtime.change_camera(after)

    def _opened(self, running: Watched, entry: CameraEntry) -> Camera:
        """The camera by its new address, with a picture if it has one soon."""
        self._require_joining(entry)
        camera = self._maker.stream(entry)
        camera.want(fps=running.fps, height_px=entry.height_px, regions=running.task.wants_regions)
        camera.start()
        camera.next_frame(after_seq=-1, timeout_s=FIRST_PICTURE_S)
        return camera

    def _asked(self, running: Watched, entry: CameraEntry) -> CameraQueries | None:
        known = running.entry
        same = known is not None and (known.queries, known.fps) == (entry.queries, entry.fps)
        return running.queries if same else self._maker.queries(entry)

    def _begin(self, before: CameraObjects | None, after: CameraObjects | None) -> None:
        """Before anything else changes: no clip goes on without a mask that is about to hold. Beside the loop, for the clip that ends
        takes the disk its time."""
        if after is before:
            return
        if after is not None:
            after.start()
        if before is not None:
            before.leave_clips()

    def _take_back(self, before: CameraObjects | None, after: CameraObjects | None) -> None:
        if after is before:
            return
        if after is not None:
            after.stop()
        if before is not None:
            before.take_up_clips()

    def _followed(self, running: Watched, entry: CameraEntry, camera: Camera) -> CameraObjects | None:
        """The same, where nothing has changed that it is made from; another starts and ends with the exchange."""
        known = running.entry
        same = (
            camera is running.camera and known is not None and all(getattr(known, k) == getattr(entry, k) for k in _OF_OBJECTS)
        )
        return running.objects if same else self._maker.objects(entry, camera)

    def _begin_anew(self, running: Watched, entry: CameraEntry) -> None:
        """Another task or model. The old one is brought back when the new one cannot be."""
        self._require_joining(entry)
        self._maker.check(entry)
        known = running.entry
        self._take_out(entry.id)
        try:
            self._bring_in(entry)
        except BaseException:
            if known is not None:
                with contextlib.suppress(DriftboxError):
                    self._bring_in(known)
            raise

    def _require_joining(self, entry: CameraEntry) -> None:
        if self._maker.refusal:
            raise UsageError(
                self._maker.refusal,
                subject=entry.id,
                remedy="change the configuration file and restart the box",
                code="restart",
            )

    def _local(self, entry: CameraEntry) -> datetime:
        return local_now(entry, self._now())

    def _note(self, camera: str, text: str) -> None:
        self._runtime.note_from_anywhere(Note(stream=camera, code="camera", text=text))


def _arguments(kind: type[Arguments], given: Mapping[str, Any]) -> Arguments:
    try:
        return kind.model_validate(dict(given))
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(str(p) for p in d['loc']) or 'arguments'}: {d['msg']}" for d in error.errors()[:5])
        raise UsageError(f"the command's arguments are wrong: {wrong}", subject="command") from None
