"""Clips: one thread copies packets from the cameras' rings into files while somebody wants them.

`want(camera, since_s, until_s)` is all that others say: something is going on since then, and at least until then. The clip begins
`pre_s` earlier, at a keyframe, and goes on while it is wanted; wishes that overlap share one file. A clip that grows too long, or
whose stream changes its shape, goes on in another file. Nobody waits for the disk but this thread: what it does not get to in time is
missing in the clip and nowhere else.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import BinaryIO

from configs.errors import DriftboxError, redact
from edge.media.folder import MediaFolder
from edge.media.space import Space
from edge.store.objects import ObjectStore, StoredClip
from edge.worker_thread import WorkerThread
from streams.masks import Mask
from streams.recording import MP4_CODECS, Clip, ClipFacts, ClipFile, Coded, Cursor, MaskedClip, Ring, suffix_of, whole_part

log = logging.getLogger("driftbox")

#: Seconds between two looks at the rings while something is recorded.
LOOK_S = 0.25
#: Packets of a camera in one turn, so that the others have theirs.
TURN_PACKETS = 300
#: A clip whose camera has sent nothing for so long ends.
SILENT_S = 20.0
#: A camera whose clip could not be written is left alone for so long, twice as long with each failure in a row, up to the second number.
AGAIN_S, AGAIN_MAX_S = 10.0, 600.0
#: Seconds that somebody waits for a clip to end.
HANGS_S = 3.0
#: So long the disk may take for nothing to be missing in a clip.
SLOW_DISK_S = 10.0


@dataclass(frozen=True, kw_only=True)
class ClipRules:
    """Of one camera; see `cameras[].recording`. masks: burnt in, the clip is then encoded anew at masked_fps."""

    pre_s: float = 5.0
    post_s: float = 5.0
    max_s: float = 120.0
    masks: tuple[Mask, ...] = ()
    masked_fps: float = 5.0


@dataclass(kw_only=True)
class _Open:
    """A clip that is being written."""

    name: str
    file: BinaryIO
    clip: Clip
    codec: str
    began_utc: float


@dataclass(kw_only=True)
class _Watch:
    camera: str
    ring: Ring
    rules: ClipRules
    since_s: float = float("inf")
    until_s: float = float("-inf")  # of what is wanted, on the packets' clock
    done_s: float = float("-inf")  # up to here it is recorded
    cursor: Cursor | None = None  # None: nothing is read
    packet_s: float = 0.0  # when the last packet was read, on our clock
    open: _Open | None = None
    failures: int = 0  # in a row
    again_s: float = float("-inf")  # not before that, on our clock
    lock: threading.Lock = field(default_factory=threading.Lock)  # around everything but the wishes


class Recorder:
    """Runs from `start` to `stop`. on_clip: told each finished clip. clock_s: monotonic."""

    def __init__(
        self, folder: MediaFolder, store: ObjectStore, space: Space, *, clock_s: Callable[[], float] = time.monotonic,
        on_clip: Callable[[StoredClip], None] = lambda clip: None,
    ) -> None:  # fmt: skip
        self._folder, self._store, self._space, self._clock_s, self._on_clip = folder, store, space, clock_s, on_clip
        self._changed = threading.Condition()
        self._watched: dict[str, _Watch] = {}
        self._stopping = False
        self.thread = WorkerThread("recorder", self._run)
        self.clips = 0

    def start(self) -> None:
        self.thread.start()

    def stop(self, wait_s: float = 5.0) -> None:
        """Ends all clips as they are."""
        self.thread.end()
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self.thread.join(wait_s)
        for camera in list(self._watched):
            self.remove(camera)

    def add(self, camera: str, ring: Ring, rules: ClipRules) -> None:
        """A camera whose packets come into `ring`, which must hold more than `pre_s`."""
        self.remove(camera)  # another ring of it
        with self._changed:
            self._watched[camera] = _Watch(camera=camera, ring=ring, rules=rules)

    def remove(self, camera: str, ring: Ring | None = None) -> None:
        """The camera goes: its clip ends here. ring: only while its packets come into that one."""
        with self._changed:
            watch = self._watched.get(camera)
            if watch is None or (ring is not None and watch.ring is not ring):
                return
            del self._watched[camera]
        if not watch.lock.acquire(timeout=HANGS_S):
            log.warning("%s: its clip hangs in the disk and is left behind", camera)
            return
        try:
            self._end(watch, watch.until_s)
        finally:
            watch.lock.release()

    def want(self, camera: str, *, since_s: float, at_s: float) -> None:
        """Something has been going on since then and still is at `at_s` (monotonic, as frames tell it). Returns at once."""
        with self._changed:
            watch = self._watched.get(camera)
            if watch is None or self._stopping:
                return
            if watch.cursor is None:
                watch.since_s = min(watch.since_s, since_s)
            watch.until_s = max(watch.until_s, at_s + watch.rules.post_s)
            self._changed.notify_all()

    def recording(self) -> tuple[str, ...]:
        """Cameras that a clip is written of now."""
        return tuple(sorted(camera for camera, watch in list(self._watched.items()) if watch.open is not None))

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self, goes_on: Callable[[], bool]) -> None:
        while goes_on():
            with self._changed:
                if goes_on():
                    self.thread.pulse.rest()
                    self._changed.wait(LOOK_S if self._is_busy() else None)
                    self.thread.pulse.beat()
            if goes_on():
                self.step()

    def _is_busy(self) -> bool:
        """Lock held."""
        return any(watch.cursor is not None or watch.until_s > watch.done_s for watch in self._watched.values())

    def step(self) -> None:
        """One turn of every camera. For the recorder's own thread (tests call it instead of starting one)."""
        for watch in list(self._watched.values()):
            if not watch.lock.acquire(blocking=False):
                continue  # a thread that was replaced hangs in it
            try:
                if self._watched.get(watch.camera) is watch:
                    self._turn(watch)
            finally:
                watch.lock.release()
            self.thread.pulse.beat()

    def _turn(self, watch: _Watch) -> None:
        try:
            self._follow(watch)
        except (OSError, DriftboxError, ValueError) as error:  # the disk, or packets that no file holds
            self._failed(watch, error)
        except Exception as error:  # whatever a library throws at us, other cameras are recorded
            log.exception("%s: its clip cannot be written", watch.camera)
            self._failed(watch, error)

    def _follow(self, watch: _Watch) -> None:
        with self._changed:
            wanted = watch.until_s > watch.done_s
            rests = bool(self._space.problem) or self._clock_s() < watch.again_s
            if watch.cursor is None and wanted and not rests:
                begin_s = max(watch.since_s - watch.rules.pre_s, watch.done_s)
                watch.cursor, watch.packet_s, watch.since_s = watch.ring.cursor(begin_s), self._clock_s(), float("inf")
            until_s = watch.until_s
        if watch.cursor is None:
            if wanted:
                self._done(watch, until_s)
            return
        if rests:
            self._end(watch, until_s)
            return
        items, watch.cursor = watch.ring.read(watch.cursor, limit=TURN_PACKETS)
        for item in items:
            if item.at_s > until_s:
                self._end(watch, until_s)
                return
            self._take(watch, item)
        now_s = self._clock_s()
        if items:
            watch.packet_s = now_s
        elif now_s - watch.packet_s > SILENT_S:
            self._end(watch, until_s)

    def _done(self, watch: _Watch, until_s: float) -> None:
        """Up to there nothing more is recorded; what is wanted after it begins anew."""
        with self._changed:
            watch.cursor, watch.since_s = None, float("inf")
            watch.done_s = max(watch.done_s, until_s)

    def _take(self, watch: _Watch, item: Coded) -> None:
        current = watch.open
        too_long = current is not None and item.keyframe and current.clip.length_s >= watch.rules.max_s
        if current is not None and (too_long or not current.clip.takes(item)):
            self._finish(watch)
        if watch.open is None:
            if not item.keyframe:
                return
            watch.open = self._begun(watch, item)
        watch.open.clip.add(item)
        watch.done_s = max(watch.done_s, item.at_s)

    def _begun(self, watch: _Watch, first: Coded) -> _Open:
        rules = watch.rules
        codec = "h264" if rules.masks else first.format.codec
        name = self._folder.new_clip(watch.camera, first.at_utc, suffix=suffix_of(codec), masked=bool(rules.masks))
        file = self._folder.open_clip(name)
        try:
            clip = (
                MaskedClip(file, first.format, rules.masks, fps=rules.masked_fps)
                if rules.masks
                else ClipFile(file, first.format)
            )
        except BaseException:
            file.close()
            self._folder.drop_clip(name)
            raise
        return _Open(name=name, file=file, clip=clip, codec=codec, began_utc=first.at_utc)

    def _end(self, watch: _Watch, until_s: float) -> None:
        """What was wanted until then is recorded, or cannot be. Camera's lock held."""
        self._done(watch, until_s)
        try:
            self._finish(watch)
        except (OSError, DriftboxError, ValueError) as error:
            self._failed(watch, error)

    def _finish(self, watch: _Watch) -> None:
        current, watch.open = watch.open, None
        if current is None:
            return
        try:
            facts = current.clip.close()
        finally:
            current.file.close()
        if facts is None:
            self._folder.drop_clip(current.name)
            return
        self._keep(watch, current, facts)

    def _keep(self, watch: _Watch, current: _Open, facts: ClipFacts) -> None:
        size_bytes = self._folder.finish_clip(current.name)
        clip = StoredClip(
            camera=watch.camera, path=current.name, began_utc=facts.began_utc, ended_utc=facts.ended_utc, size_bytes=size_bytes,
            codec=facts.codec, masked=bool(watch.rules.masks),
        )  # fmt: skip
        self._store.add_clip(clip)
        self.clips += 1
        watch.failures = 0
        self._on_clip(clip)

    def _failed(self, watch: _Watch, error: Exception) -> None:
        """What is on the disk already is kept as far as it plays; then nothing is recorded until there is room."""
        watch.failures += 1
        text = redact(str(error)) or type(error).__name__
        log.warning("%s: a clip could not be written: %s", watch.camera, text)
        current, watch.open = watch.open, None
        watch.again_s = self._clock_s() + min(AGAIN_MAX_S, AGAIN_S * 2.0 ** min(10, watch.failures - 1))
        self._done(watch, watch.until_s)
        if isinstance(error, OSError | DriftboxError):
            self._space.failed(text)
        if current is not None:
            with suppress(Exception):
                current.file.close()
            self._salvage(watch, current)

    def _salvage(self, watch: _Watch, current: _Open) -> None:
        try:
            played = whole_part(self._folder.unfinished(current.name)) if current.codec in MP4_CODECS else None
            if played is None:
                self._folder.drop_clip(current.name)
                return
            facts = ClipFacts(codec=played[0], began_utc=current.began_utc, ended_utc=current.began_utc + played[1], pictures=1)
            self._keep(watch, current, facts)
        except (OSError, DriftboxError) as error:  # the database is full, too: taken up at the next start
            log.warning("%s: a clip is not recorded in the database yet: %s", watch.camera, redact(str(error)))


def ring_s(rules: ClipRules) -> float:
    """Seconds that the ring of a camera with such rules holds: what comes before, and time for a slow disk."""
    return rules.pre_s + SLOW_DISK_S
