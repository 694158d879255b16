"""The schema of `fleet.db`, as ordered steps; each runs in one transaction with the record that it ran. A released step is never
changed."""

from __future__ import annotations

from typing import Any

from sqlite_utils import Migrations

migrations = Migrations("driftbox-fleet")


@migrations()
def m001_state(db: Any) -> None:
    db.execute(
        """CREATE TABLE state (
            area TEXT NOT NULL,
            id TEXT NOT NULL,
            body TEXT NOT NULL,
            PRIMARY KEY (area, id)
        ) STRICT, WITHOUT ROWID"""
    )
    db.execute("CREATE TABLE fence (one INTEGER PRIMARY KEY CHECK (one = 1), term INTEGER NOT NULL) STRICT")
    db.execute("INSERT INTO fence VALUES (1, 0)")
    db.execute(
        """CREATE TABLE lease (
            name TEXT PRIMARY KEY,
            holder TEXT NOT NULL,
            term INTEGER NOT NULL,
            until_utc REAL NOT NULL,
            note TEXT NOT NULL DEFAULT ''
        ) STRICT"""
    )
    db.execute(
        """CREATE TABLE inbox (
            number INTEGER PRIMARY KEY AUTOINCREMENT,
            at_utc REAL NOT NULL,
            event TEXT NOT NULL,
            body TEXT NOT NULL
        ) STRICT"""
    )


@migrations()
def m002_members(db: Any) -> None:
    db.execute(
        """CREATE TABLE invites (
            ref TEXT PRIMARY KEY,
            code_hash TEXT NOT NULL UNIQUE,
            made_utc REAL NOT NULL,
            expires_utc REAL NOT NULL,
            tries_left INTEGER NOT NULL,
            box TEXT NOT NULL,
            used_by TEXT NOT NULL DEFAULT '',
            used_key TEXT NOT NULL DEFAULT '',
            made_by TEXT NOT NULL
        ) STRICT"""
    )
    db.execute(
        """CREATE TABLE members (
            box TEXT PRIMARY KEY,
            site TEXT NOT NULL,
            joined_utc REAL NOT NULL,
            capacity_pct REAL,
            fingerprint TEXT NOT NULL,
            until_utc REAL NOT NULL,
            certificate TEXT NOT NULL
        ) STRICT"""
    )
    db.execute(
        """CREATE TABLE certificates (
            fingerprint TEXT PRIMARY KEY,
            box TEXT NOT NULL,
            until_utc REAL NOT NULL,
            revoked TEXT NOT NULL DEFAULT ''
        ) STRICT"""
    )
    db.execute("CREATE INDEX certificates_by_box ON certificates (box)")


@migrations()
def m003_history(db: Any) -> None:
    db.execute(
        """CREATE TABLE rounds (
            round INTEGER PRIMARY KEY,
            at_utc REAL NOT NULL,
            policy TEXT NOT NULL,
            capacity_pct REAL NOT NULL,
            took_ms REAL NOT NULL,
            reasons TEXT NOT NULL
        ) STRICT"""
    )
    db.execute(
        """CREATE TABLE grants (
            round INTEGER NOT NULL,
            at_utc REAL NOT NULL,
            customer TEXT NOT NULL,
            share_pct REAL NOT NULL,
            demand_pct REAL,
            predicted REAL,
            reason TEXT NOT NULL,
            PRIMARY KEY (round, customer)
        ) STRICT, WITHOUT ROWID"""
    )
    db.execute(
        """CREATE TABLE performance (
            number INTEGER PRIMARY KEY,
            at_utc REAL NOT NULL,
            customer TEXT NOT NULL,
            alloc_pct REAL NOT NULL,
            load REAL NOT NULL,
            value REAL NOT NULL,
            sigma REAL NOT NULL,
            goal REAL NOT NULL,
            proxy INTEGER NOT NULL
        ) STRICT"""
    )
    db.execute(
        """CREATE TABLE placements (
            number INTEGER PRIMARY KEY,
            at_utc REAL NOT NULL,
            camera TEXT NOT NULL,
            source TEXT NOT NULL,
            target TEXT NOT NULL,
            term INTEGER NOT NULL,
            phase TEXT NOT NULL,
            cause TEXT NOT NULL,
            reason TEXT NOT NULL,
            problem TEXT NOT NULL,
            UNIQUE (camera, term, phase)
        ) STRICT"""
    )
    db.execute(
        """CREATE TABLE alarms (
            number INTEGER PRIMARY KEY,
            box TEXT NOT NULL,
            text TEXT NOT NULL,
            began_utc REAL NOT NULL,
            ended_utc REAL
        ) STRICT"""
    )
    db.execute("CREATE UNIQUE INDEX alarms_open ON alarms (box, text) WHERE ended_utc IS NULL")
    db.execute(
        """CREATE TABLE box_history (
            number INTEGER PRIMARY KEY,
            at_utc REAL NOT NULL,
            box TEXT NOT NULL,
            capacity_pct REAL NOT NULL,
            spare_pct REAL NOT NULL,
            cameras INTEGER NOT NULL,
            mean_quality REAL,
            online INTEGER NOT NULL
        ) STRICT"""
    )
    db.execute(
        """CREATE TABLE audit (
            number INTEGER PRIMARY KEY,
            at_utc REAL NOT NULL,
            by TEXT NOT NULL,
            action TEXT NOT NULL,
            subject TEXT NOT NULL,
            text TEXT NOT NULL
        ) STRICT"""
    )
    for table in ("grants", "performance", "placements", "alarms", "box_history", "audit"):
        column = "began_utc" if table == "alarms" else "at_utc"
        db.execute(f"CREATE INDEX {table}_by_time ON {table} ({column})")


@migrations()
def m004_controllers(db: Any) -> None:
    """Controllers that run on this folder, as they told last: who writes, who stands by, by what lease and engine."""
    db.execute("CREATE TABLE controllers (id TEXT PRIMARY KEY, at_utc REAL NOT NULL, body TEXT NOT NULL) STRICT")
