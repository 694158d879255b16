"""Objects' events on their way into the database and to whoever is told: one thread, in the order they came.

    tell() --queue--> a batch in one transaction --> listeners

First the database, then the listeners: what anybody was told is found again, also after a kill. A batch is whatever has come while the
one before was written, so a single event waits for nothing, and thousands a second share their transactions. When the database
cannot be written (a full disk) listeners are told all the same; the newest state of each object waits and is written when it can be.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from configs.errors import StorageError
from edge.objects.types import ObjectEvent, ObjectListener
from edge.store.objects import ObjectStore, Pictures
from edge.worker_thread import WorkerThread

log = logging.getLogger("driftbox")

#: Events of one transaction: others wait for the database no longer than some 20 ms.
BATCH = 500
#: Events that may wait. Beyond it updates are left out (counted), never a `new` or an `end`.
QUEUE_MAX = 50_000
#: Objects whose newest state waits for a database that cannot be written.
UNSAVED_MAX = 20_000
#: Seconds between two tries then.
RETRY_S = 5.0


@dataclass(frozen=True, kw_only=True)
class _Told:
    event: ObjectEvent
    pictures: Pictures | None


class ObjectWriter:
    """Runs from `start` to `stop`. listeners: told each event in the writer's thread; the list may grow. say: told when the database
    cannot be written, and when it can again."""

    def __init__(self, store: ObjectStore, listeners: Sequence[ObjectListener], *, retry_s: float = RETRY_S) -> None:
        self._store, self._listeners, self._retry_s = store, listeners, retry_s
        self.say: Callable[[str], None] = lambda text: None
        self._changed = threading.Condition()
        self._queue: deque[_Told] = deque()
        self._touched: dict[str, float] = {}
        self._busy = self._stopping = self._begun = False
        self._unsaved: dict[str, _Told] = {}
        self._problem = ""
        self.thread = WorkerThread("objects-writer", self._run)
        self.dropped = 0
        self.written = 0

    @property
    def problem(self) -> str:
        """Why the database cannot be written, empty: it can."""
        return self._problem

    def start(self) -> None:
        """What a killed box has left open is ended first, and told."""
        self.thread.start()

    def stop(self, wait_s: float = 5.0) -> None:
        """Writes and tells what has come, then ends."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self.thread.join(wait_s)
        self.thread.end()

    def tell(self, event: ObjectEvent, pictures: Pictures | None = None) -> None:
        """From any thread; returns at once. pictures: files of it that are complete."""
        with self._changed:
            if len(self._queue) >= QUEUE_MAX and event.what == "update" and pictures is None:
                self.dropped += 1
                return
            self._queue.append(_Told(event=event, pictures=pictures))
            self._changed.notify_all()

    def touch(self, seen_utc: dict[str, float]) -> None:
        """Objects that are still seen; written, not told."""
        with self._changed:
            self._touched.update(seen_utc)
            self._changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Waits until everything that has come was written and told; whether it was."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._queue and not self._touched and not self._busy, timeout_s)

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self, goes_on: Callable[[], bool]) -> None:
        if not self._begun:
            self._begun = True
            self._end_left_open()
        while goes_on():
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self.thread.pulse.rest()
                while not self._queue and not self._touched and not self._stopping:
                    if not self._changed.wait(self._retry_s if self._problem else None) and self._problem:
                        break
                if (self._stopping and not self._queue and not self._touched) or not goes_on():
                    return
                self.thread.pulse.beat()
                batch = [self._queue.popleft() for _ in range(min(BATCH, len(self._queue)))]
                touched, self._touched = self._touched, {}
                self._busy = True
            self._write(batch, touched)
            for told in batch:
                self._pass_on(told.event)

    def _end_left_open(self) -> None:
        try:
            ended = self._store.end_open()
        except StorageError as error:
            self._complain(str(error))
            return
        for event in ended:
            self._pass_on(event)

    def _write(self, batch: list[_Told], touched: dict[str, float]) -> None:
        waiting = [*self._unsaved.values(), *batch]
        try:
            if waiting:
                pictures = {told.event.id: told.pictures for told in waiting if told.pictures is not None}
                self._store.put([told.event for told in waiting], pictures)
                self.written += len(batch)
            if touched:
                self._store.touch(touched)
        except StorageError as error:
            self._remember(batch)
            self._complain(str(error))
            return
        self._unsaved = {}
        if self._problem:
            self._problem = ""
            self.say("events are written again")

    def _remember(self, batch: list[_Told]) -> None:
        for told in batch:
            before = self._unsaved.get(told.event.id)
            if before is None and len(self._unsaved) >= UNSAVED_MAX:
                self.dropped += 1
                continue
            kept = told if told.pictures is not None or before is None else replace(told, pictures=before.pictures)
            self._unsaved[told.event.id] = kept

    def _complain(self, text: str) -> None:
        if not self._problem:
            self.say(f"events are told, but not written: {text}")
        self._problem = text

    def _pass_on(self, event: ObjectEvent) -> None:
        for listener in self._listeners:
            try:
                listener(event)
            except Exception:  # a listener's trouble is not the box's
                log.exception("an event of %s could not be told", event.camera)
