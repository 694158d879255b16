"""Events with their files, as people and the janitor handle them: over the database and the media folder."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from configs.errors import UsageError
from edge.media.folder import MediaFolder
from edge.media.retention import Deletion
from edge.store.objects import ObjectPage, ObjectQuery, ObjectStore, StoredClip, StoredObject


class Library:
    """From any thread. Raises UsageError 'not_found' for events and files that are not there (any more), StorageError."""

    def __init__(self, store: ObjectStore, folder: MediaFolder) -> None:
        self.store, self.folder = store, folder

    def search(self, query: ObjectQuery) -> ObjectPage:
        return self.store.search(query)

    def get(self, id: str) -> StoredObject:
        return self.store.get(id)

    def clips(self, id: str) -> tuple[StoredClip, ...]:
        return self.store.clips_of(id)

    def facets(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Classes and zones of which there are events."""
        return self.store.classes(), self.store.zones()

    def snapshot(self, id: str) -> Path:
        return self._file(self.store.get(id).snapshot, id, "snapshot")

    def thumbnail(self, id: str) -> Path:
        return self._file(self.store.get(id).thumbnail, id, "thumbnail")

    def clip(self, id: str, part: int) -> tuple[Path, StoredClip]:
        """One of an event's clips; part: from 0."""
        clips = self.store.clips_of(id)
        if not 0 <= part < len(clips):
            raise UsageError(
                f"event {id} has no clip {part}" if clips else f"event {id} has no clip", subject=id, code="not_found",
                remedy="it may not be written yet, or deleted by now",
            )  # fmt: skip
        return self._file(clips[part].path, id, "clip"), clips[part]

    def favour(self, id: str, favourite: bool) -> StoredObject:
        self.store.get(id)
        return self.store.favour(id, favourite)

    def remove(self, id: str) -> None:
        """Deletes an event with its pictures, and the clips that no other event is in. UsageError: it has not ended yet."""
        stored = self.store.get(id)
        if stored.event.ended_utc is None:
            raise UsageError(
                f"event {id} has not ended yet", subject=id, code="open", remedy="wait until the object is gone"
            )  # fmt: skip
        alone = [clip for clip in self.store.clips_of(id) if self.store.objects_in(clip) == (id,)]
        self._remove_event(stored, alone)

    def delete(self, deletion: Deletion) -> None:
        """Deletes the files that retention chose; their event stays."""
        item = deletion.item
        if item.kind == "clip":
            clip = self.store.clip(int(item.key))
            if clip is not None:
                self.folder.remove([clip.path])
                self.store.remove_clip(clip.id)
            return
        stored = self.store.get(item.key)
        self.folder.remove(path for path in (stored.snapshot, stored.thumbnail) if path)
        self.store.remove_pictures(item.key)

    def forget(self, id: str) -> None:
        """Deletes an old event with its pictures; clips go by their own age."""
        self._remove_event(self.store.get(id), [])

    def _remove_event(self, stored: StoredObject, clips: list[StoredClip]) -> None:
        self.folder.remove(path for path in (stored.snapshot, stored.thumbnail, *(clip.path for clip in clips)) if path)
        for clip in clips:
            self.store.remove_clip(clip.id)
        self.store.remove([stored.event.id])

    def _file(self, name: str, id: str, what: str) -> Path:
        path = None
        with suppress(ValueError):  # no name of ours, whoever wrote it into the database
            path = self.folder.file(name)
        if path is None or not path.is_file():
            raise UsageError(
                f"event {id} has no {what}", subject=id, code="not_found", remedy="it may have been deleted by now"
            )
        return path
