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


@migrations()
def m010_mqtt(db: Any) -> None:
    db.execute("ALTER TABLE outbox ADD COLUMN latest INTEGER NOT NULL DEFAULT 0 CHECK (latest IN (0, 1))")
    db.execute("CREATE INDEX outbox_states ON outbox (topic) WHERE latest = 1")
    db.execute("CREATE TABLE telemetry_facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT")


@migrations()
def m012_plans(db: Any) -> None:
    db.execute(
        """CREATE TABLE plans (
            number INTEGER PRIMARY KEY AUTOINCREMENT,
            window INTEGER NOT NULL,
            at_utc REAL NOT NULL,
            policy TEXT NOT NULL,
            expected_quality REAL NOT NULL,
            spare_pct INTEGER NOT NULL,
            reasons TEXT NOT NULL
        ) STRICT"""
    )
    db.execute("CREATE INDEX plans_by_window ON plans (window, number)")


@migrations()
def m007_accounts(db: Any) -> None:
    db.execute(
        """CREATE TABLE users (
            name TEXT PRIMARY KEY,
            role TEXT NOT NULL CHECK (role IN ('viewer', 'operator', 'admin')),
            password_hash TEXT NOT NULL,
            created_utc REAL NOT NULL,
            signed_in_utc REAL
        ) STRICT"""
    )
    db.execute(
        """CREATE TABLE sessions (
            id_hash TEXT PRIMARY KEY,
            ref TEXT NOT NULL UNIQUE,
            user TEXT NOT NULL REFERENCES users (name) ON DELETE CASCADE,
            created_utc REAL NOT NULL,
            seen_utc REAL NOT NULL,
            address TEXT NOT NULL,
            agent TEXT NOT NULL
        ) STRICT"""
    )
    db.execute("CREATE INDEX sessions_by_user ON sessions (user, seen_utc)")
    db.execute(
        """CREATE TABLE tokens (
            id TEXT PRIMARY KEY,
            name TEXT NOT NULL,
            secret_hash TEXT NOT NULL,
            role TEXT NOT NULL CHECK (role IN ('viewer', 'operator', 'admin')),
            areas TEXT NOT NULL,
            owner TEXT REFERENCES users (name) ON DELETE CASCADE,
            created_utc REAL NOT NULL,
            expires_utc REAL,
            used_utc REAL
        ) STRICT"""
    )
    db.execute("CREATE INDEX tokens_by_owner ON tokens (owner)")
    db.execute(
        """CREATE TABLE claim (
            id INTEGER PRIMARY KEY CHECK (id = 1),
            code_hash TEXT NOT NULL,
            made_utc REAL NOT NULL,
            used_utc REAL
        ) STRICT"""
    )
    db.execute(
        """CREATE TABLE audit (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            at_utc REAL NOT NULL,
            who TEXT NOT NULL,
            address TEXT NOT NULL,
            action TEXT NOT NULL,
            outcome TEXT NOT NULL,
            detail TEXT NOT NULL,
            known INTEGER NOT NULL CHECK (known IN (0, 1))
        ) STRICT"""
    )
    db.execute("CREATE INDEX audit_by_known ON audit (known, id)")


@migrations()
def m009_objects(db: Any) -> None:
    db.execute(
        """CREATE TABLE objects (
            id TEXT PRIMARY KEY,
            camera TEXT NOT NULL,
            class_name TEXT NOT NULL,
            score REAL NOT NULL,
            started_utc REAL NOT NULL,
            seen_utc REAL NOT NULL,
            ended_utc REAL,
            box TEXT NOT NULL,
            zones TEXT NOT NULL,
            zones_been TEXT NOT NULL,
            lines TEXT NOT NULL,
            version TEXT NOT NULL,
            extra TEXT NOT NULL,
            snapshot TEXT NOT NULL DEFAULT '',
            thumbnail TEXT NOT NULL DEFAULT '',
            picture_bytes INTEGER NOT NULL DEFAULT 0,
            has_clip INTEGER NOT NULL DEFAULT 0 CHECK (has_clip IN (0, 1)),
            favourite INTEGER NOT NULL DEFAULT 0 CHECK (favourite IN (0, 1))
        ) STRICT, WITHOUT ROWID"""
    )
    db.execute("CREATE INDEX objects_by_time ON objects (started_utc, id)")
    db.execute("CREATE INDEX objects_by_camera ON objects (camera, started_utc, id)")
    db.execute("CREATE INDEX objects_by_class ON objects (class_name, started_utc, id)")
    db.execute("CREATE INDEX objects_open ON objects (started_utc) WHERE ended_utc IS NULL")
    db.execute("CREATE INDEX objects_with_clip ON objects (started_utc, id) WHERE has_clip = 1")
    db.execute("CREATE INDEX objects_favourite ON objects (camera, started_utc) WHERE favourite = 1")
    db.execute("CREATE INDEX objects_with_pictures ON objects (started_utc, id, picture_bytes) WHERE picture_bytes > 0")
    db.execute(
        """CREATE TABLE object_zones (
            zone TEXT NOT NULL,
            started_utc REAL NOT NULL,
            object TEXT NOT NULL REFERENCES objects (id) ON DELETE CASCADE,
            PRIMARY KEY (zone, started_utc, object)
        ) STRICT, WITHOUT ROWID"""
    )
    db.execute("CREATE INDEX object_zones_by_object ON object_zones (object)")
    db.execute(
        """CREATE TABLE clips (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            camera TEXT NOT NULL,
            path TEXT NOT NULL UNIQUE,
            began_utc REAL NOT NULL,
            ended_utc REAL NOT NULL,
            size_bytes INTEGER NOT NULL,
            codec TEXT NOT NULL,
            masked INTEGER NOT NULL CHECK (masked IN (0, 1))
        ) STRICT"""
    )
    db.execute("CREATE INDEX clips_by_camera ON clips (camera, began_utc)")
    db.execute("CREATE INDEX clips_by_time ON clips (began_utc, id)")


@migrations()
def m008_cameras(db: Any) -> None:
    db.execute(
        """CREATE TABLE camera_book (
            camera TEXT PRIMARY KEY,
            document TEXT,
            revision INTEGER NOT NULL,
            updated_utc REAL NOT NULL,
            changed_by TEXT NOT NULL
        ) STRICT"""
    )


@migrations()
def m015_settings_changed_here(db: Any) -> None:
    db.execute(
        """CREATE TABLE settings_book (
            section TEXT PRIMARY KEY,
            document TEXT NOT NULL,
            updated_utc REAL NOT NULL,
            changed_by TEXT NOT NULL
        ) STRICT"""
    )


@migrations()
def m016_tokens_held_to_cameras(db: Any) -> None:
    """Tokens of before are held to none."""
    db.execute("ALTER TABLE tokens ADD COLUMN cameras TEXT NOT NULL DEFAULT '[]'")


@migrations()
def m013_what_plans_were_made_from(db: Any) -> None:
    db.execute("CREATE TABLE plans_made_from (number INTEGER PRIMARY KEY, body TEXT NOT NULL) STRICT")


@migrations()
def m014_what_is_behind_a_quality(db: Any) -> None:
    """Measurements of before have none of these."""
    db.execute("ALTER TABLE quality ADD COLUMN frames INTEGER")
    db.execute("ALTER TABLE quality ADD COLUMN error REAL")
    db.execute("ALTER TABLE quality ADD COLUMN over TEXT NOT NULL DEFAULT ''")
    db.execute("ALTER TABLE quality ADD COLUMN gain REAL")
    db.execute("ALTER TABLE quality ADD COLUMN gain_error REAL")


@migrations()
def m017_scenes(db: Any) -> None:
    db.execute("CREATE TABLE scenes (camera TEXT PRIMARY KEY, body TEXT NOT NULL) STRICT")
