"""What the box remembers, in SQLite: cameras, model versions and which one serves, windows, quality, notes. Other areas' tables have a
module each beside this one, the outbox of MQTT in `edge/store/outbox.py`, say.

One connection and one lock: one writer at a time, from any thread. WAL, so that other processes may read meanwhile. What a
power cut must not undo (a model swap) is committed with `synchronous=FULL`; the rest may lose its last second.
Every sqlite3 error leaves as a StorageError: 'full', 'read_only', 'newer', 'in_use', 'corrupt'.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from sqlite_utils import Database

from configs.errors import StorageError, redact
from configs.files import corrupt, storage_errors
from edge.gpu.base import ShareReport
from edge.software import software_version
from edge.store import backup
from edge.store.migrations import migrations
from scheduler.types import ModelVersion, Observation, WindowOutcome


class ModelState(StrEnum):
    """candidate -> admitted | rejected; admitted -> serving -> retired -> serving (rolled back). See `ALLOWED`."""

    CANDIDATE = "candidate"
    ADMITTED = "admitted"
    SERVING = "serving"
    RETIRED = "retired"
    REJECTED = "rejected"


#: From which states a model may come into a state. Whatever is found damaged is rejected.
ALLOWED: dict[ModelState, frozenset[ModelState]] = {
    ModelState.ADMITTED: frozenset({ModelState.CANDIDATE}),
    ModelState.SERVING: frozenset({ModelState.CANDIDATE, ModelState.ADMITTED, ModelState.RETIRED}),
    ModelState.RETIRED: frozenset({ModelState.SERVING, ModelState.ADMITTED}),
    ModelState.REJECTED: frozenset(ModelState) - {ModelState.REJECTED},
}


@dataclass(frozen=True, kw_only=True)
class StoredModel:
    """A model version and what became of it. config: how it was made (JSON); reason: why it is in its state, in words; pinned: its
    files stay whatever comes."""

    version: ModelVersion
    state: ModelState
    created_utc: float
    config: dict[str, Any]
    reason: str = ""
    pinned: bool = False

    @property
    def offered(self) -> bool:
        """A candidate from outside (imported, copied) that waits until the camera's gate finds it better."""
        return self.state is ModelState.CANDIDATE and bool(self.config.get("offered"))

    @property
    def origin(self) -> Mapping[str, Any]:
        """Where it comes from (`models.versions.Manifest`); empty: from a retraining of its own camera."""
        found = self.config.get("origin")
        return found if isinstance(found, Mapping) else {}


@dataclass(frozen=True, kw_only=True)
class QualityPoint:
    """A measurement. number: rises with every one of this box, 0 not recorded yet; frames: held-out pictures behind it, error: standard
    error of value, None of before they were recorded; over: version that was measured on the same pictures, '' none; gain, gain_error:
    of `version` over that, and its standard error."""

    stream: str
    at_utc: float
    value: float
    kind: str
    version: str = ""
    frames: int | None = None
    error: float | None = None
    over: str = ""
    gain: float | None = None
    gain_error: float | None = None
    number: int = 0


@dataclass(frozen=True, kw_only=True)
class StoredWindow:
    outcome: WindowOutcome
    opened_utc: float
    closed_utc: float


@dataclass(frozen=True, kw_only=True)
class StoredNote:
    at_utc: float
    stream: str
    code: str
    text: str


class Store:
    """The database of one data folder. Raises StorageError from every method.

    max_page_count: limit of the file in pages (tests).
    """

    def __init__(self, path: Path, *, max_page_count: int | None = None) -> None:
        self.path = path
        self._lock = threading.RLock()
        self._seen: int | None = None  # SQLite's data_version when others' changes were asked for last
        with storage_errors(path):
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5.0)
            try:
                self._set_up(max_page_count)
            except BaseException:
                self._db.close()
                raise

    def close(self) -> None:
        with self._lock, suppress(sqlite3.Error):
            self._db.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- cameras ------------------------------------------------------------------------------------------------------

    def put_camera(self, camera: str, config: Mapping[str, Any], at_utc: float) -> None:
        """Adds a camera or replaces its configuration, which must hold no secret: URLs are redacted once more here."""
        text = redact(json.dumps(dict(config), sort_keys=True))
        with self.transaction() as db:
            db.execute("INSERT OR REPLACE INTO cameras VALUES (?, ?, ?)", (camera, text, at_utc))

    def remove_camera(self, camera: str) -> None:
        """Forgets a camera's configuration; its models stay, and serve again when it comes back."""
        with self.transaction() as db:
            db.execute("DELETE FROM cameras WHERE id = ?", (camera,))

    def cameras(self) -> dict[str, dict[str, Any]]:
        return {row["id"]: json.loads(row["config"]) for row in self.rows("SELECT * FROM cameras ORDER BY id")}

    # --- models -------------------------------------------------------------------------------------------------------

    def add_model(
        self,
        version: ModelVersion,
        *,
        at_utc: float,
        state: ModelState = ModelState.CANDIDATE,
        config: Mapping[str, Any] | None = None,
        reason: str = "",
    ) -> None:
        """Records a version whose files are complete. ValueError: the id exists, or state is 'serving' (use `serve`)."""
        if state is ModelState.SERVING:
            raise ValueError("a model starts to serve by Store.serve")
        values = (
            version.id, version.stream, version.parent, version.arch, version.sha256, version.quality,
            state.value, reason, at_utc, json.dumps(dict(config or {}), sort_keys=True),
        )  # fmt: skip
        with self.transaction(durable=True) as db:
            if db.execute("SELECT 1 FROM models WHERE id = ?", (version.id,)).fetchone():
                raise ValueError(f"model {version.id} is recorded already")
            db.execute(
                "INSERT INTO models (id, stream, parent, arch, sha256, quality, state, reason, created_utc, config)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                values,
            )

    def set_model_state(self, model: str, state: ModelState, *, reason: str = "", quality: float | None = None) -> None:
        """Moves a model to 'admitted', 'retired' or 'rejected' (a serving one then no longer serves).
        KeyError: no such model; ValueError: not allowed from its state (`ALLOWED`)."""
        if state in (ModelState.SERVING, ModelState.CANDIDATE):
            raise ValueError(f"a model becomes {state} by Store.serve or Store.add_model")
        with self.transaction(durable=True) as db:
            self._move(db, model, state, reason, quality)
            db.execute("DELETE FROM serving WHERE version = ?", (model,))

    def serve(
        self, model: str, *, at_utc: float, reason: str = "", quality: float | None = None, reject_previous: str = ""
    ) -> str | None:
        """Makes a model the one that serves its stream, in one durable step; returns the id of the one it replaces.
        The old one becomes 'retired' - or 'rejected' when reject_previous says why it must not serve again. Serving what serves
        already changes nothing. KeyError, ValueError as above."""
        with self.transaction(durable=True) as db:
            stream = self._model_row(db, model)["stream"]
            row = db.execute("SELECT version FROM serving WHERE stream = ?", (stream,)).fetchone()
            previous = None if row is None else str(row["version"])
            if previous == model:
                return None
            self._move(db, model, ModelState.SERVING, reason, quality)
            if previous is not None and reject_previous:
                self._move(db, previous, ModelState.REJECTED, reject_previous, None)
            elif previous is not None:
                self._move(db, previous, ModelState.RETIRED, f"replaced by {model}", None)
            values = (stream, model, at_utc, None if reject_previous else previous)
            db.execute("INSERT OR REPLACE INTO serving (stream, version, since_utc, replaced) VALUES (?, ?, ?, ?)", values)
            return previous

    def replaced(self, stream: str) -> str | None:
        """The version that the stream's serving one replaced; None: there was none, or it must not serve again."""
        rows = self.rows("SELECT replaced FROM serving WHERE stream = ?", (stream,))
        return rows[0]["replaced"] if rows else None

    def reject_unless_used(self, model: str, *, reason: str, though_pinned: bool = False) -> bool:
        """Rejects a model that does not serve and is not pinned; False: it serves by now, or is rejected already, and stays as it is.
        What is to be removed is asked for in the same step that forbids to serve it. KeyError: no such model."""
        with self.transaction(durable=True) as db:
            row = self._model_row(db, model)
            used = row["state"] in (ModelState.SERVING, ModelState.REJECTED)
            if used or (row["pinned"] and not though_pinned):
                return False
            self._move(db, model, ModelState.REJECTED, reason, None)
            return True

    def pin(self, model: str, pinned: bool) -> None:
        """A pinned model's files are kept whatever comes. KeyError: no such model."""
        with self.transaction(durable=True) as db:
            self._model_row(db, model)
            db.execute("UPDATE models SET pinned = ? WHERE id = ?", (int(pinned), model))

    def forget_rejected(self, stream: str, *, keep: int) -> int:
        """Deletes the rows of a stream's rejected models beyond the newest `keep` rows of any state; how many. The newest row always
        stays, so numbers are never given twice."""
        sql = (
            "DELETE FROM models WHERE stream = :stream AND state = 'rejected' AND pinned = 0 AND rowid <="
            " (SELECT rowid FROM models WHERE stream = :stream ORDER BY rowid DESC LIMIT 1 OFFSET :keep)"
        )
        with self.transaction() as db:
            return db.execute(sql, {"stream": stream, "keep": max(1, keep)}).rowcount

    def changed_by_others(self) -> bool:
        """Has another connection (`driftbox models ...`) committed something since this was asked last? Costs microseconds."""
        seen = int(self.rows("PRAGMA data_version")[0][0])
        before, self._seen = self._seen, seen
        return before != seen

    def serving(self, stream: str | None = None) -> dict[str, ModelVersion]:
        """The serving version of every stream that has one, or of `stream` alone."""
        where, values = ("WHERE s.stream = ?", [stream]) if stream is not None else ("", [])
        sql = f"SELECT m.* FROM serving s JOIN models m ON m.id = s.version {where} ORDER BY s.stream"
        rows = self.rows(sql, values)
        return {row["stream"]: _version(row) for row in rows}

    def model(self, model: str) -> StoredModel:
        """KeyError: no such model."""
        rows = self.rows("SELECT * FROM models WHERE id = ?", (model,))
        if not rows:
            raise KeyError(model)
        return _stored_model(rows[0])

    def models(self, stream: str | None = None, *, newest: int = -1) -> list[StoredModel]:
        """Versions, oldest first (in the order they were added: the wall clock may jump). newest: only so many; -1: all."""
        where, values = ("WHERE stream = ?", [stream]) if stream is not None else ("", [])
        rows = self.rows(f"SELECT * FROM models {where} ORDER BY rowid DESC LIMIT ?", [*values, newest])
        return [_stored_model(r) for r in reversed(rows)]

    # --- windows, quality, notes --------------------------------------------------------------------------------------

    def add_window(self, outcome: WindowOutcome, *, opened_utc: float, closed_utc: float) -> None:
        """Records how a window went; recording it twice keeps the newer."""
        text = json.dumps(asdict(outcome), sort_keys=True)
        with self.transaction() as db:
            db.execute("INSERT OR REPLACE INTO windows VALUES (?, ?, ?, ?)", (outcome.window, opened_utc, closed_utc, text))

    def add_shares(self, window: int, shares: Sequence[ShareReport]) -> None:
        """Records what each job was promised and received in a window; recording it twice keeps the newer."""
        rows = [
            (window, s.job, s.promised_pct, s.received_pct, s.backlogged_frac, s.iterations, s.span_s) for s in shares
        ]  # fmt: skip
        with self.transaction() as db:
            db.executemany("INSERT OR REPLACE INTO window_shares VALUES (?, ?, ?, ?, ?, ?, ?)", rows)

    def shares(self, window: int) -> tuple[ShareReport, ...]:
        """What each job was promised and received in a window, by job; empty for a window that was not recorded."""
        rows = self.rows("SELECT * FROM window_shares WHERE window = ? ORDER BY job", (window,))
        return tuple(
            ShareReport(
                job=row["job"], promised_pct=row["promised_pct"], received_pct=row["received_pct"],
                backlogged_frac=row["wanted_frac"], iterations=row["iterations"], span_s=row["span_s"],
            )
            for row in rows
        )  # fmt: skip

    def windows(self, limit: int = 100) -> list[StoredWindow]:
        """The newest `limit` windows, oldest first."""
        rows = self.rows("SELECT * FROM windows ORDER BY window DESC LIMIT ?", (limit,))
        return [_window(row) for row in reversed(rows)]

    def observations(self, *, windows: int = 200) -> dict[str, tuple[Observation, ...]]:
        """What came of each camera's predictions in the newest `windows` windows, newest last; cameras without any are left out."""
        found: dict[str, list[Observation]] = {}
        for outcome in (s for w in self.windows(windows) for s in w.outcome.streams):
            if outcome.observation is not None:
                found.setdefault(outcome.id, []).append(outcome.observation)
        return {stream: tuple(seen) for stream, seen in found.items()}

    def next_window(self) -> int:
        """The number after the last recorded window; 0 in a new database."""
        return int(self.rows("SELECT coalesce(max(window) + 1, 0) AS n FROM windows")[0]["n"])

    def add_quality(self, point: QualityPoint) -> None:
        """Records a measurement (0-1). kind: what was measured, 'f1', say; version: of which model; its number is given here."""
        values = asdict(point) | {"number": None}
        with self.transaction() as db:
            db.execute(
                "INSERT INTO quality (id, stream, at_utc, value, kind, version, frames, error, over, gain, gain_error) VALUES"
                " (:number, :stream, :at_utc, :value, :kind, :version, :frames, :error, :over, :gain, :gain_error)",
                values,
            )

    def quality(self, stream: str, *, kind: str | None = None, limit: int = 500) -> list[QualityPoint]:
        """The newest `limit` points of a stream, oldest first (in the order they were added: the wall clock may jump)."""
        rows = self.rows(
            "SELECT id AS number, stream, at_utc, value, kind, version, frames, error, over, gain, gain_error FROM quality"
            " WHERE stream = ? AND (? IS NULL OR kind = ?) ORDER BY id DESC LIMIT ?",
            (stream, kind, kind, limit),
        )
        return [QualityPoint(**dict(row)) for row in reversed(rows)]

    def add_note(self, at_utc: float, code: str, text: str, *, stream: str = "") -> None:
        """An incident or remark for people; redacted here."""
        with self.transaction() as db:
            db.execute(
                "INSERT INTO notes (at_utc, stream, code, text) VALUES (?, ?, ?, ?)", (at_utc, stream, code, redact(text))
            )

    def notes(self, limit: int = 200, *, stream: str | None = None) -> list[StoredNote]:
        """The newest `limit` notes, oldest first; only those of `stream`, when it is named."""
        rows = self.rows(
            "SELECT at_utc, stream, code, text FROM notes WHERE (? IS NULL OR stream = ?) ORDER BY id DESC LIMIT ?",
            (stream, stream, limit),
        )
        return [StoredNote(**dict(row)) for row in reversed(rows)]

    def prune(self, *, windows: int = 10_000, quality_points: int = 200_000, notes: int = 10_000) -> int:
        """Keeps the newest rows of each table; how many were removed. Models and cameras are never pruned here."""
        keep = (("windows", "window", windows), ("quality", "id", quality_points), ("notes", "id", notes))
        with self.transaction() as db:
            # As old as the windows they belong to; those of windows that were never recorded go by the same limit.
            db.execute("DELETE FROM window_shares WHERE window <= (SELECT max(window) FROM window_shares) - ?", (windows,))
            return sum(
                db.execute(
                    f"DELETE FROM {table} WHERE {key} <= (SELECT {key} FROM {table} ORDER BY {key} DESC LIMIT 1 OFFSET ?)",
                    (count,),
                ).rowcount
                for table, key, count in keep
            )

    # --- profiles -----------------------------------------------------------------------------------------------------

    def add_profile(self, camera: str, body: str, at_utc: float, *, keep: int = 10) -> int:
        """A camera's new resource-quality profile (`edge.profiler`, JSON); its version, which rises. Older ones than the newest `keep`
        of the camera go."""
        with self.transaction(durable=True) as db:
            values = (camera, at_utc, body)
            version = db.execute("INSERT INTO profiles (camera, created_utc, body) VALUES (?, ?, ?)", values).lastrowid
            db.execute(
                "DELETE FROM profiles WHERE camera = :camera AND version <= (SELECT version FROM profiles WHERE camera = :camera"
                " ORDER BY version DESC LIMIT 1 OFFSET :keep)",
                {"camera": camera, "keep": max(1, keep)},
            )
        assert version is not None
        return int(version)

    def profile(self, camera: str) -> tuple[int, str] | None:
        """(version, body) of a camera's newest profile; None: it has none."""
        rows = self.rows("SELECT version, body FROM profiles WHERE camera = ? ORDER BY version DESC LIMIT 1", (camera,))
        return (int(rows[0]["version"]), str(rows[0]["body"])) if rows else None

    # --- scenes -------------------------------------------------------------------------------------------------------

    def keep_scenes(self, camera: str, body: str) -> None:
        """What a camera has seen (`edge.scene_book`) in place of what was kept before."""
        with self.transaction() as db:
            db.execute("INSERT OR REPLACE INTO scenes (camera, body) VALUES (?, ?)", (camera, body))

    def scenes(self, camera: str) -> str | None:
        """None: nothing was kept."""
        rows = self.rows("SELECT body FROM scenes WHERE camera = ?", (camera,))
        return str(rows[0]["body"]) if rows else None

    def check(self) -> None:
        """Invariants: every stream's serving row names a serving model of that stream, and every serving model has its row."""
        rows = self.rows(
            "SELECT m.id, m.stream, m.state, s.stream AS row_stream FROM models m LEFT JOIN serving s ON s.version = m.id"
            " WHERE m.state = 'serving' OR s.stream IS NOT NULL"
        )
        for row in rows:
            assert row["state"] == "serving", f"{row['id']} serves but is {row['state']}"
            assert row["row_stream"] == row["stream"], f"{row['id']} of {row['stream']} serves {row['row_stream']}"

    # --- inside -------------------------------------------------------------------------------------------------------

    def _set_up(self, max_page_count: int | None) -> None:
        db = self._db
        db.row_factory = sqlite3.Row
        self._check_whole()
        self._check_not_newer()
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=NORMAL")
        db.execute("PRAGMA foreign_keys=ON")
        db.execute("PRAGMA wal_autocheckpoint=200")
        if max_page_count is not None:
            db.execute(f"PRAGMA max_page_count={int(max_page_count)}")
        library = Database(db, execute_plugins=False)
        # Looked at first: a start without news must not write, so that a full disk does not keep the box from starting.
        if migrations.pending(library):
            self._keep_as_it_was()
            migrations.apply(library)

    def _keep_as_it_was(self) -> None:
        """Before the tables change, what is there is backed up; without room for that nothing is changed."""
        if not backup.applied_steps(self._db) or self.path.name != backup.DATABASE:
            return
        root = self.path.parent
        backup.make_backup(root, reason=backup.UPGRADE, at_utc=time.time(), software=software_version())
        backup.prune(root, reason=backup.UPGRADE)

    def _check_whole(self) -> None:
        finding = self._db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if finding != "ok":
            raise corrupt(str(self.path), finding.splitlines()[0])

    def _check_not_newer(self) -> None:
        newer = backup.applied_steps(self._db) - backup.known_steps()
        if newer:
            raise StorageError(
                f"{self.path} was written by a newer version of driftbox ({', '.join(sorted(newer))})",
                subject=str(self.path),
                code="newer",
                remedy="install that version again, or go back with 'driftbox backup restore' to a back-up made before its upgrade",
            )

    @contextmanager
    def transaction(self, *, durable: bool = False) -> Iterator[sqlite3.Connection]:
        """All or nothing; for the tables of others (`edge/store/`), too. durable: on disk when it returns."""
        with self._lock, storage_errors(self.path):
            if durable:
                self._db.execute("PRAGMA synchronous=FULL")
            try:
                self._db.execute("BEGIN IMMEDIATE")
                try:
                    yield self._db
                    self._db.execute("COMMIT")
                except BaseException:
                    with suppress(sqlite3.Error):  # a full disk rolls back by itself
                        self._db.execute("ROLLBACK")
                    raise
            finally:
                if durable:
                    self._db.execute("PRAGMA synchronous=NORMAL")

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[sqlite3.Row]:
        """What a query finds."""
        with self._lock, storage_errors(self.path):
            return self._db.execute(sql, values).fetchall()

    def _model_row(self, db: sqlite3.Connection, model: str) -> sqlite3.Row:
        row: sqlite3.Row | None = db.execute("SELECT * FROM models WHERE id = ?", (model,)).fetchone()
        if row is None:
            raise KeyError(model)
        return row

    def _move(self, db: sqlite3.Connection, model: str, state: ModelState, reason: str, quality: float | None) -> None:
        current = ModelState(self._model_row(db, model)["state"])
        if current not in ALLOWED[state]:
            raise ValueError(f"model {model} is {current} and cannot become {state}")
        db.execute(
            "UPDATE models SET state = ?, reason = ?, quality = coalesce(?, quality) WHERE id = ?",
            (state.value, redact(reason), quality, model),
        )


def _version(row: sqlite3.Row) -> ModelVersion:
    return ModelVersion(
        id=row["id"],
        stream=row["stream"],
        parent=row["parent"],
        arch=row["arch"],
        sha256=row["sha256"],
        quality=row["quality"],
    )


def _stored_model(row: sqlite3.Row) -> StoredModel:
    return StoredModel(
        version=_version(row),
        state=ModelState(row["state"]),
        created_utc=row["created_utc"],
        config=json.loads(row["config"]),
        reason=row["reason"],
        pinned=bool(row["pinned"]),
    )


_OUTCOME = TypeAdapter(WindowOutcome)


def _window(row: sqlite3.Row) -> StoredWindow:
    outcome = _OUTCOME.validate_json(row["outcome"])
    return StoredWindow(outcome=outcome, opened_utc=row["opened_utc"], closed_utc=row["closed_utc"])
