"""Cameras of a box that does not run: changed in its data folder, which is locked meanwhile; the next start takes them up."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from configs.schema import BoxConfig
from edge.cameras.book import CameraBook, Kept, Shelfful
from edge.cameras.secrets import SecretFiles
from edge.store.cameras import CameraRows
from edge.store.folder import DataFolder
from edge.store.store import Store


class OfflineControl:
    """As `edge.live_control.LiveControl`, without anything that runs."""

    def __init__(self, book: CameraBook) -> None:
        self._book = book

    def cameras(self) -> Shelfful:
        return self._book.read()

    def state(self, kept: Kept) -> tuple[str, str]:
        return ("not running" if kept.entry.enabled else "off"), ""

    def add(self, document: Mapping[str, Any], *, by: str) -> Kept:
        before = {kept.entry.id for kept in self._book.read().cameras}
        return next(kept for kept in self._book.add(document, by=by).cameras if kept.entry.id not in before)

    def change(self, camera: str, patch: Mapping[str, Any], *, by: str, etag: str | None = None) -> Kept:
        found = self._book.change(camera, patch, by=by, etag=etag).find(camera)
        self._book.tidy()
        return found

    def remove(self, camera: str, *, by: str, etag: str | None = None) -> None:
        self._book.remove(camera, by=by, etag=etag)
        self._book.tidy()

    def reset(self, camera: str, *, by: str) -> Kept | None:
        found = self._book.reset(camera)
        self._book.tidy()
        return next((kept for kept in found.cameras if kept.entry.id == camera), None)


@contextmanager
def offline(config: BoxConfig) -> Iterator[OfflineControl]:
    """Raises StorageError (code 'in_use' while a box runs on the folder)."""
    with DataFolder(config.box.data_dir) as folder, Store(folder.db_path) as store:
        yield OfflineControl(CameraBook(config, CameraRows(store), SecretFiles(folder.root), utc_s=time.time))
