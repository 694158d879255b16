"""Keeps snapshots and clips within their bounds: too old, too much, too little room left. One gentle thread.

Looks at the disk every few seconds, at ages every few minutes. When deleting does not make room enough, recording rests (`Space`)
before anything else does, and goes on by itself when there is room.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from configs.errors import DriftboxError, UsageError
from edge.media.library import Library
from edge.media.retention import DAY_S, Rules, choose
from edge.media.space import Space
from edge.worker_thread import WorkerThread

log = logging.getLogger("driftbox")

#: Seconds between two looks at the room on the disk, and at the ages of files.
LOOK_S, AGES_S = 5.0, 300.0
#: Deletions between two short rests, and how long these are: others use the disk, too.
BATCH, REST_S = 20, 0.05
#: Files younger than this at the start may be of a box that has just begun.
SETTLE_S = 60.0
#: Room beyond the least that there must be before recording goes on, so that it does not stop at once again.
AGAIN_FRAC = 0.05


@dataclass(frozen=True, kw_only=True)
class Keep:
    """rules: for files; event_days, max_events: for events."""

    rules: Rules
    event_days: float
    max_events: int


class Janitor:
    """Runs from `start` to `stop`. keep: until `use` says otherwise; utc_s, clock_s: wall and monotonic clock; camera_days: asked before
    ages are looked at, the days of cameras that have their own."""

    def __init__(
        self, library: Library, space: Space, keep: Keep, *, utc_s: Callable[[], float] = time.time,
        clock_s: Callable[[], float] = time.monotonic, camera_days: Callable[[], Mapping[str, float]] = dict,
    ) -> None:  # fmt: skip
        self._library, self._space, self._keep = library, space, keep
        self._utc_s, self._clock_s, self._camera_days = utc_s, clock_s, camera_days
        self._stop = threading.Event()
        self.thread = WorkerThread("media-janitor", self._run)
        self._days: Mapping[str, float] = {}
        self._ages_due_s = float("-inf")
        self._problem = ""
        self.deleted: dict[str, int] = {"age": 0, "size": 0, "disk": 0, "events": 0}

    @property
    def keep(self) -> Keep:
        """In force, with the days of cameras as they were last known."""
        keep = self._keep
        return replace(keep, rules=replace(keep.rules, camera_days=self._days))

    def use(self, keep: Keep) -> None:
        """Other bounds, from the next look on; from any thread. Ages are looked at then, too."""
        self._keep, self._ages_due_s = keep, float("-inf")

    def start(self) -> None:
        self.thread.start()

    def stop(self) -> None:
        self.thread.end()
        self._stop.set()
        self.thread.join(5.0)

    def _run(self, goes_on: Callable[[], bool]) -> None:
        self.thread.pulse.beat()
        try:
            self.settle()
        except (DriftboxError, OSError) as error:
            self._complain(str(error))
        while goes_on():
            self.thread.pulse.beat()
            self.step()
            self.thread.pulse.rest(for_s=LOOK_S)
            self._stop.wait(LOOK_S)

    def settle(self) -> None:
        """Compares files and rows once, gently."""
        for count, text in enumerate(self._library.folder.settle(self._library.store, before_utc=self._utc_s() - SETTLE_S)):
            log.info("media: %s", text)
            if self._rests(count):
                return

    def step(self) -> None:
        """One look; never raises. For the janitor's own thread (tests call it instead of starting one)."""
        ages = self._clock_s() >= self._ages_due_s
        if ages:
            self._ages_due_s = self._clock_s() + AGES_S
            self._learn_days()
        try:
            self._delete(ages=ages)
            if ages:
                self._forget_events()
            self._judge_room()
            self._problem = ""
        except (DriftboxError, OSError) as error:
            self._complain(str(error))

    def _learn_days(self) -> None:
        try:
            self._days = dict(self._camera_days())
        except (DriftboxError, OSError) as error:  # what was known holds: room must be kept all the same
            log.warning("media: days of cameras: %s", error)

    def _delete(self, *, ages: bool) -> None:
        store, free_bytes = self._library.store, self._space.free_mib() * 2**20
        used_bytes = store.used_bytes()
        chosen = choose(
            store.media(), now_utc=self._utc_s(), used_bytes=used_bytes, free_bytes=free_bytes, rules=self.keep.rules, ages=ages
        )  # fmt: skip
        for count, deletion in enumerate(chosen):
            try:
                self._library.delete(deletion)
            except UsageError:  # somebody else has deleted its event meanwhile
                continue
            self.deleted[deletion.reason] += 1
            if self._rests(count):
                return

    def _forget_events(self) -> None:
        before_utc = self._utc_s() - self.keep.event_days * DAY_S
        while old := self._library.store.old_events(before_utc=before_utc, keep=self.keep.max_events):
            for count, id in enumerate(old):
                self._library.forget(id)
                self.deleted["events"] += 1
                if self._rests(count):
                    return

    def _judge_room(self) -> None:
        free_bytes, least = self._space.free_mib() * 2**20, self.keep.rules.min_free_bytes
        used_bytes = self._library.store.used_bytes()
        if free_bytes < least:
            self._space.rest(
                f"{free_bytes / 2**20:.0f} MiB are left on the disk, {least / 2**20:.0f} must stay free (storage.media)"
            )
        elif used_bytes > self.keep.rules.max_bytes:
            self._space.rest("favourites take all that snapshots and clips may take (storage.media.max_gib)")
        elif not self._space.problem or free_bytes >= least * (1 + AGAIN_FRAC):
            self._space.go_on()

    def _rests(self, count: int) -> bool:
        """A short rest now and then; whether to stop."""
        self.thread.pulse.beat()
        return self._stop.wait(REST_S) if count % BATCH == BATCH - 1 else self._stop.is_set()

    def _complain(self, text: str) -> None:
        if text != self._problem:
            log.warning("media: %s", text)
        self._problem = text
