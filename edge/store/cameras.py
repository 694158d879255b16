"""The table `camera_book`: what was changed through the product about cameras, over those of the configuration file.

A row holds what is other than in the file (a patch), a whole camera (it has an `id`), or nothing: the camera is taken out. Secrets are
not in it: addresses name the files that hold them (`edge.cameras.secrets`).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from configs.errors import StorageError
from configs.files import corrupt, storage_errors

if TYPE_CHECKING:
    from edge.store.store import Store

_ROWS = "SELECT camera, document, revision, updated_utc, changed_by FROM camera_book ORDER BY rowid"


@dataclass(frozen=True, kw_only=True)
class CameraRow:
    """document: see the module, None: taken out; revision: counts the changes of this camera; changed_by: who made the newest."""

    camera: str
    document: Mapping[str, Any] | None
    revision: int
    updated_utc: float
    changed_by: str

    @property
    def whole(self) -> bool:
        """Whether it holds a camera, and not only what is other than in the file."""
        return self.document is not None and "id" in self.document


class CameraRows:
    """The table of a running box. Raises StorageError."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def all(self) -> list[CameraRow]:
        """In the order in which cameras were first changed."""
        return [_row(row) for row in self._store.rows(_ROWS)]

    def put(self, camera: str, document: Mapping[str, Any] | None, *, at_utc: float, by: str) -> None:
        """Durable when it returns."""
        text = None if document is None else json.dumps(dict(document), sort_keys=True, ensure_ascii=False)
        with self._store.transaction(durable=True) as db:
            db.execute(
                "INSERT INTO camera_book (camera, document, revision, updated_utc, changed_by) VALUES (?, ?, 1, ?, ?)"
                " ON CONFLICT (camera) DO UPDATE SET document = excluded.document, revision = revision + 1,"
                " updated_utc = excluded.updated_utc, changed_by = excluded.changed_by",
                (camera, text, at_utc, by),
            )

    def forget(self, camera: str) -> None:
        """The camera is again as the file says. Durable when it returns."""
        with self._store.transaction(durable=True) as db:
            db.execute("DELETE FROM camera_book WHERE camera = ?", (camera,))


def read_rows(database: Path) -> list[CameraRow]:
    """The rows of a data folder's database, which is only looked at; none where there is no database or no such table yet.
    Raises StorageError."""
    if not database.is_file():
        return []
    with storage_errors(database), closing(sqlite3.connect(f"{database.resolve().as_uri()}?mode=ro", uri=True)) as db:
        db.row_factory = sqlite3.Row
        known = db.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'camera_book'").fetchone()
        return [_row(row) for row in db.execute(_ROWS)] if known else []


def _row(row: sqlite3.Row) -> CameraRow:
    try:
        document = None if row["document"] is None else json.loads(row["document"])
    except ValueError:
        document = ()
    if document is not None and not isinstance(document, dict):
        raise _damaged(row["camera"])
    return CameraRow(
        camera=row["camera"], document=document, revision=row["revision"], updated_utc=row["updated_utc"],
        changed_by=row["changed_by"],
    )  # fmt: skip


def _damaged(camera: str) -> StorageError:
    return corrupt("camera_book", f"what was changed about camera {camera} cannot be read")
