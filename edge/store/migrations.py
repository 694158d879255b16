"""The schema of `driftbox.db`, as ordered steps. Each runs in one transaction together with the record that it ran
(sqlite-utils `Migrations`, as in datasette). A released step is never changed: add the next one.
"""

from __future__ import annotations

from typing import Any

from sqlite_utils import Migrations

migrations = Migrations("driftbox")


@migrations()
def m001_cameras_and_models(db: Any) -> None:
    db.execute(
        """CREATE TABLE cameras (
            id TEXT PRIMARY KEY,
            config TEXT NOT NULL,
            updated_utc REAL NOT NULL
        ) STRICT"""
    )
    db.execute(
        """CREATE TABLE models (
            id TEXT PRIMARY KEY,
            stream TEXT NOT NULL,
            parent TEXT,
            arch TEXT NOT NULL,
            sha256 TEXT NOT NULL,
            quality REAL,
            state TEXT NOT NULL CHECK (state IN ('candidate', 'admitted', 'serving', 'retired', 'rejected')),
            reason TEXT NOT NULL DEFAULT '',
            created_utc REAL NOT NULL,
            config TEXT NOT NULL DEFAULT '{}'
        ) STRICT"""
    )
    db.execute("CREATE INDEX models_by_stream ON models (stream, created_utc)")
    db.execute(
        """CREATE TABLE serving (
            stream TEXT PRIMARY KEY,
            version TEXT NOT NULL REFERENCES models (id),
            since_utc REAL NOT NULL
        ) STRICT"""
    )


@migrations()
def m002_windows_quality_notes(db: Any) -> None:
    db.execute(
        """CREATE TABLE windows (
            window INTEGER PRIMARY KEY,
            opened_utc REAL NOT NULL,
            closed_utc REAL NOT NULL,
            outcome TEXT NOT NULL
        ) STRICT"""
    )
    db.execute(
        """CREATE TABLE quality (
            id INTEGER PRIMARY KEY,
            stream TEXT NOT NULL,
            at_utc REAL NOT NULL,
            value REAL NOT NULL,
            kind TEXT NOT NULL,
            version TEXT NOT NULL DEFAULT ''
        ) STRICT"""
    )
    db.execute("CREATE INDEX quality_by_stream ON quality (stream, id)")
    db.execute(
        """CREATE TABLE notes (
            id INTEGER PRIMARY KEY,
            at_utc REAL NOT NULL,
            stream TEXT NOT NULL,
            code TEXT NOT NULL,
            text TEXT NOT NULL
        ) STRICT"""
    )


@migrations()
def m003_outbox(db: Any) -> None:
    db.execute(
        """CREATE TABLE outbox (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            topic TEXT NOT NULL,
            payload BLOB NOT NULL,
            qos INTEGER NOT NULL,
            retain INTEGER NOT NULL,
            queued_utc REAL NOT NULL
        ) STRICT"""
    )


@migrations()
def m004_pins_and_what_was_replaced(db: Any) -> None:
    db.execute("ALTER TABLE models ADD COLUMN pinned INTEGER NOT NULL DEFAULT 0 CHECK (pinned IN (0, 1))")
    db.execute("ALTER TABLE serving ADD COLUMN replaced TEXT")


@migrations()
def m005_shares_of_windows(db: Any) -> None:
    db.execute(
        """CREATE TABLE window_shares (
            window INTEGER NOT NULL,
            job TEXT NOT NULL,
            promised_pct REAL NOT NULL,
            received_pct REAL NOT NULL,
            wanted_frac REAL NOT NULL,
            iterations INTEGER NOT NULL,
            span_s REAL NOT NULL,
            PRIMARY KEY (window, job)
        ) STRICT"""
    )


@migrations()
def m006_profiles(db: Any) -> None:
    db.execute(
        """CREATE TABLE profiles (
            version INTEGER PRIMARY KEY AUTOINCREMENT,
            camera TEXT NOT NULL,
            created_utc REAL NOT NULL,
            body TEXT NOT NULL
        ) STRICT"""
    )
    db.execute("CREATE INDEX profiles_by_camera ON profiles (camera, version)")
