"""Everything about objects and media that a box has once, whatever cameras it has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from configs.errors import DriftboxError
from configs.schema import CameraEntry
from configs.schema.media import MediaSection
from edge.media.folder import MediaFolder
from edge.media.janitor import Janitor, Keep
from edge.media.library import Library
from edge.media.recorder import Recorder
from edge.media.retention import Rules
from edge.media.space import Space
from edge.objects.types import ObjectListener
from edge.objects.writer import ObjectWriter
from edge.store.objects import ObjectStore
from edge.store.store import Store
from edge.worker_thread import WorkerThread


@dataclass(frozen=True, kw_only=True)
class Media:
    """Not started. writer: events into the database; recorder: clips; janitor: bounds; library: search and files."""

    folder: MediaFolder
    space: Space
    store: ObjectStore
    writer: ObjectWriter
    recorder: Recorder
    janitor: Janitor
    library: Library

    def workers(self) -> dict[str, WorkerThread]:
        """Its threads, by name, for the watchdog."""
        return {"objects-writer": self.writer.thread, "recorder": self.recorder.thread, "media-janitor": self.janitor.thread}

    def conditions(self) -> tuple[str, ...]:
        """Why the box is not as it should be, each a sentence; empty: all is well."""
        found = (
            ("no snapshots and clips are kept", self.space.problem),
            ("events are told, but not written", self.writer.problem),
        )
        return tuple(f"{what}: {why}" for what, why in found if why)

    def use(self, section: MediaSection) -> None:
        """Other bounds, without a restart."""
        self.janitor.use(keep_of(section))

    def start(self, say: Callable[[str], None]) -> None:
        """say: for what people should know: there is no room, there is again, what was left by a kill."""
        self.space.say = self.writer.say = say
        try:
            for text in self.folder.recover(self.store):
                say(f"media: {text}")
        except DriftboxError as error:
            say(f"media could not be put in order: {error}")
        self.writer.start()
        self.recorder.start()
        self.janitor.start()

    def stop(self) -> None:
        """Ends clips as they are, then writes and tells what has come."""
        self.recorder.stop()
        self.writer.stop()
        self.janitor.stop()


def media_of(
    section: MediaSection, folder: MediaFolder, store: Store, listeners: Sequence[ObjectListener],
    cameras: Callable[[], Iterable[CameraEntry]] = tuple,
) -> Media:  # fmt: skip
    """section: `storage.media`; listeners: told every event, the list may grow; cameras: of the box as they are now."""
    objects, space = ObjectStore(store), Space(folder.root)
    library = Library(objects, folder)
    return Media(
        folder=folder, space=space, store=objects, writer=ObjectWriter(objects, listeners),
        recorder=Recorder(folder, objects, space), library=library,
        janitor=Janitor(library, space, keep_of(section), camera_days=lambda: days_of(cameras())),
    )  # fmt: skip


def days_of(cameras: Iterable[CameraEntry]) -> dict[str, float]:
    """Of those that have days of their own."""
    return {camera.id: camera.recording.keep_days for camera in cameras if camera.recording.keep_days is not None}


def keep_of(section: MediaSection) -> Keep:
    """`storage.media` as the janitor wants it."""
    return Keep(rules=rules_of(section), event_days=section.event_days, max_events=section.max_events)


def rules_of(section: MediaSection) -> Rules:
    """`storage.media` as retention wants it."""
    return Rules(
        clip_days=section.clip_days, snapshot_days=section.snapshot_days, class_days=dict(section.class_days),
        max_bytes=int(section.max_gib * 2**30), min_free_bytes=section.min_free_mib * 2**20,
    )  # fmt: skip
