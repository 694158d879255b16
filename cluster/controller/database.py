"""`fleet.db`: one connection and one lock per process, WAL, every sqlite3 error a StorageError. The tables are in
`cluster.controller.tables`; who uses them stands beside this module.

A write of the controller brings its term. The database remembers the highest term that ever wrote, so a controller that lost its lease
and does not know it cannot change anything any more: its transaction fails with `NotInCharge`.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sqlite_utils import Database

from cluster.controller.tables import migrations
from configs.errors import StorageError, UsageError
from configs.files import corrupt, storage_errors

NAME = "fleet.db"


def known_steps() -> set[str]:
    """Every migration that this version of the program knows."""
    return {step.name for step in migrations.pending(Database(memory=True))}


class NotInCharge(UsageError):
    """Another controller holds the lease, or this one does not hold it any more."""

    default_code = "not_in_charge"


class FleetDatabase:
    """Raises StorageError from every method: 'full', 'read_only', 'in_use', 'newer', 'corrupt'."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.RLock()
        with storage_errors(path):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5.0)
            try:
                self._set_up()
            except BaseException:
                self._db.close()
                raise

    def _set_up(self) -> None:
        db = self._db
        db.row_factory = sqlite3.Row
        finding = db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if finding != "ok":
            raise corrupt(str(self.path), str(finding).splitlines()[0])
        db.execute("PRAGMA journal_mode=WAL")
        # What was decided is on the disk before it is told.
        db.execute("PRAGMA synchronous=FULL")
        library = Database(db, execute_plugins=False)
        newer = {step.name for step in migrations.applied(library)} - known_steps()
        if newer:
            raise StorageError(
                f"{self.path} was written by a newer version of driftbox ({', '.join(sorted(newer))})", subject=str(self.path),
                code="newer", remedy="install that version again",
            )  # fmt: skip
        migrations.apply(library)

    def close(self) -> None:
        with self._lock, suppress(sqlite3.Error):
            self._db.close()

    @contextmanager
    def transaction(self, *, term: int | None = None) -> Iterator[sqlite3.Connection]:
        """All or nothing, on disk when it returns. term: of the controller's lease; NotInCharge when a higher one has written."""
        with self._lock, storage_errors(self.path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                if term is not None:
                    fence(self._db, term)
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):  # a full disk rolls back by itself
                    self._db.execute("ROLLBACK")
                raise

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[sqlite3.Row]:
        """What a query finds."""
        with self._lock, storage_errors(self.path):
            return self._db.execute(sql, values).fetchall()


def fence(db: sqlite3.Connection, term: int) -> None:
    """Inside a transaction: from now on nobody with a lower term writes. NotInCharge: somebody with a higher one has."""
    highest = int(db.execute("SELECT term FROM fence").fetchone()[0])
    if term < highest:
        raise NotInCharge(
            f"a controller of term {highest} has taken over from this one (term {term})", subject="lease",
            remedy="one controller is enough; stop this one, or leave it as the stand-by that it is now",
        )  # fmt: skip
    if term > highest:
        db.execute("UPDATE fence SET term = ?", (term,))
