"""Back-ups of a data folder: made beside a running box, verified, kept to a number, restored onto a stopped one.

    backups/<name>/driftbox.db        the database, copied by SQLite's backup interface, integrity checked
    backups/<name>/models/...         files of the versions that serve or are pinned (hard links where the disk can: no room twice)
    backups/<name>/keys/...           keys of the box, and its other small files (`SMALL`)
    backups/<name>/box.yaml           the configuration, when it was given
    backups/<name>/backup.json        what it is, and the checksum of every file

A back-up appears by one rename after everything in it has reached the disk, so a half one is never listed. Samples and the journal are
not in it: they are large, and a box learns on without them. Names are times, so they sort.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlite_utils import Database

from configs.errors import StorageError, UsageError
from configs.files import TEMP_PREFIX, atomic_write, corrupt, fsync_path, sha256_of, storage_errors
from edge.store.migrations import migrations

DATABASE = "driftbox.db"
ABOUT = "backup.json"
CONFIG = "box.yaml"
FOLDER = "backups"
#: Small things beside the database that cannot be made again.
SMALL = ("keys", "web", "secrets", "speed.json")
#: Reason of those that are made before the tables change.
UPGRADE = "before-upgrade"
#: How many automatic back-ups of one reason stay.
KEEP = 5
_NAME = re.compile(r"^\d{8}-\d{6}-[a-z][a-z-]{0,39}(?:-\d{1,3})?$")
_PAGES = 512  # per step of the copy: the box gets its turn between two


@dataclass(frozen=True, kw_only=True)
class Backup:
    """One back-up. steps: names of the migrations its database has; files: path -> checksum; size_bytes: of all files together, those
    included that share their room with the box's own."""

    name: str
    path: Path
    created_utc: float
    reason: str
    software: str
    steps: tuple[str, ...]
    files: dict[str, str]
    size_bytes: int


def known_steps() -> set[str]:
    """Every migration that this version of the program knows."""
    return {m.name for m in migrations.pending(Database(memory=True))}


def applied_steps(db: sqlite3.Connection) -> set[str]:
    """Every migration that a database has been through."""
    return {m.name for m in migrations.applied(Database(db, execute_plugins=False))}


# --- making -----------------------------------------------------------------------------------------------------------


def make_backup(root: Path, *, reason: str, at_utc: float, software: str, config: Path | None = None) -> Backup:
    """A new back-up of a data folder, also while a box runs on it. reason: one word, part of the name. StorageError: no room, damaged
    database; nothing is left then. UsageError: there is no database."""
    if not (root / DATABASE).is_file():
        raise UsageError(
            f"there is no database in {root}", subject=str(root), remedy="name the data folder of a box (--data-dir)"
        )
    with storage_errors(root / FOLDER), _one_at_a_time(root):
        name = _free_name(root / FOLDER, at_utc, reason)
        part = root / FOLDER / f"{TEMP_PREFIX}{os.getpid()}-{name}"
        try:
            part.mkdir(mode=0o700)
            copy_database(root / DATABASE, part / DATABASE)
            steps = _settled(part / DATABASE)
            _copy_models(root, part)
            _copy_small(root, part)
            if config is not None:
                _copy_file(config, part / CONFIG, link=False)
            about = {
                "schema_version": 1, "created_utc": at_utc, "reason": reason, "software": software, "steps": sorted(steps),
                "files": {path: sha256_of(part / path) for path in _files_of(part)},
            }  # fmt: skip
            atomic_write(part / ABOUT, json.dumps(about, indent=1, sort_keys=True).encode())
            for folder in [p for p in part.rglob("*") if p.is_dir()] + [part]:
                fsync_path(folder)
            os.rename(part, root / FOLDER / name)
            fsync_path(root / FOLDER)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise
    return _read(root / FOLDER / name)


def copy_database(source: Path, target: Path) -> None:
    """A consistent copy of a database that others may be writing to; checked. Raises StorageError (also 'corrupt')."""
    with (
        storage_errors(source),
        closing(sqlite3.connect(source, timeout=30.0)) as live,
        closing(sqlite3.connect(target)) as copy,
    ):
        live.backup(copy, pages=_PAGES, sleep=0.001)
        # A copy in WAL mode would leave files beside it whenever somebody looks.
        copy.execute("PRAGMA journal_mode=DELETE")
    check_database(target)
    os.chmod(target, 0o600)
    fsync_path(target)


def check_database(path: Path) -> None:
    """Raises StorageError 'corrupt' unless SQLite finds the whole file in order, rows that name others included."""
    with storage_errors(path), closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=30.0)) as db:
        finding = str(db.execute("PRAGMA integrity_check(1)").fetchone()[0])
        lost = db.execute("PRAGMA foreign_key_check").fetchone() if finding == "ok" else None
    if finding != "ok":
        raise corrupt(str(path), finding.splitlines()[0])
    if lost is not None:
        raise corrupt(str(path), f"a row of {lost[0]} names another that is not there")


def prune(root: Path, *, reason: str, keep: int = KEEP) -> list[str]:
    """Removes the oldest back-ups of one reason beyond `keep`; their names. Those of other reasons stay."""
    old = [b for b in list_backups(root) if b.reason == reason][: -max(1, keep)]
    with storage_errors(root / FOLDER), _one_at_a_time(root):
        for backup in old:
            gone = backup.path.with_name(f"{TEMP_PREFIX}{os.getpid()}-{backup.name}")
            os.rename(backup.path, gone)
            shutil.rmtree(gone)
    return [b.name for b in old]


@contextmanager
def _one_at_a_time(root: Path) -> Iterator[None]:
    """Back-ups of a folder are made one after the other; what a killed one left behind is removed."""
    folder = root / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    fd = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        for left in folder.glob(f"{TEMP_PREFIX}*"):
            shutil.rmtree(left, ignore_errors=True)
        yield
    finally:
        os.close(fd)


def _free_name(folder: Path, at_utc: float, reason: str) -> str:
    name = f"{datetime.fromtimestamp(at_utc, UTC):%Y%m%d-%H%M%S}-{reason}"
    if not _NAME.match(name):
        raise UsageError(f"'{reason}' cannot name a back-up", subject="reason", remedy="use small letters and '-'")
    tries = (name if n == 1 else f"{name}-{n}" for n in range(1, 1000))
    return next(n for n in tries if not (folder / n).exists())


def _settled(path: Path) -> set[str]:
    with storage_errors(path), closing(sqlite3.connect(path)) as db:
        return applied_steps(db)


def _copy_models(root: Path, part: Path) -> None:
    with closing(sqlite3.connect(part / DATABASE)) as db:
        rows = db.execute("SELECT stream, id FROM models WHERE state = 'serving' OR pinned = 1").fetchall()
    for stream, version in rows:
        folder = root / "models" / stream / version
        for file in sorted(folder.iterdir()) if folder.is_dir() else ():
            # Manifests are rewritten by replacing them, weights never: a link keeps what was there.
            _copy_file(file, part / "models" / stream / version / file.name, link=True)


def _copy_small(root: Path, part: Path) -> None:
    for name in SMALL:
        source = root / name
        files = [p for p in source.rglob("*") if p.is_file()] if source.is_dir() else [source] if source.is_file() else []
        for file in files:
            if not file.name.startswith(TEMP_PREFIX):
                _copy_file(file, part / file.relative_to(root), link=False)


def _copy_file(source: Path, target: Path, *, link: bool) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if link:
        with suppress(OSError):
            os.link(source, target)
            return
    shutil.copyfile(source, target)
    os.chmod(target, 0o600)
    fsync_path(target)


def _files_of(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file() and p.name != ABOUT)


# --- looking ----------------------------------------------------------------------------------------------------------


def list_backups(root: Path) -> list[Backup]:
    """All back-ups of a data folder, oldest first; one whose description cannot be read is left out (`find` says why)."""
    found = []
    for path in sorted((root / FOLDER).glob("*")) if (root / FOLDER).is_dir() else ():
        if path.is_dir() and _NAME.match(path.name):
            with suppress(StorageError):
                found.append(_read(path))
    return sorted(found, key=lambda b: (b.created_utc, b.name))


def find_backup(root: Path, name: str) -> Backup:
    """By name; `newest` for the newest. UsageError: there is none; StorageError 'corrupt': it cannot be read."""
    known = list_backups(root)
    if name == "newest" and known:
        return known[-1]
    if _NAME.match(name) and (root / FOLDER / name).is_dir():
        return _read(root / FOLDER / name)
    listed = ", ".join(b.name for b in known[-5:]) or "none"
    raise UsageError(f"no back-up is called '{name}'", subject="name", remedy=f"there are: {listed}")


def verify(backup: Backup) -> list[str]:
    """What is wrong with a back-up, in words; empty: it can be restored."""
    wrong = []
    for path, checksum in backup.files.items():
        file = backup.path / path
        if not file.is_file():
            wrong.append(f"{path} is missing")
        elif sha256_of(file) != checksum:
            wrong.append(f"{path} has changed since it was made")
    if DATABASE not in backup.files:
        wrong.append("it holds no database")
    if not wrong:
        try:
            check_database(backup.path / DATABASE)
        except StorageError as error:
            wrong.append(error.message)
    newer = sorted(set(backup.steps) - known_steps())
    if newer:
        wrong.append(f"it was made by a newer version of driftbox, {backup.software} ({', '.join(newer)})")
    return wrong


def _read(path: Path) -> Backup:
    with storage_errors(path):
        try:
            about: dict[str, Any] = json.loads((path / ABOUT).read_bytes())
            files = {str(k): str(v) for k, v in about["files"].items()}
            if any(Path(name).is_absolute() or ".." in Path(name).parts for name in files):
                raise ValueError("a path leaves the folder")
            return Backup(
                name=path.name, path=path, created_utc=float(about["created_utc"]), reason=str(about["reason"]),
                software=str(about["software"]), steps=tuple(about["steps"]), files=files,
                size_bytes=sum((path / name).stat().st_size for name in files if (path / name).is_file()),
            )  # fmt: skip
        except (ValueError, KeyError, TypeError, AttributeError, FileNotFoundError) as error:
            raise corrupt(str(path), f"its description cannot be read ({type(error).__name__})") from None


# --- restoring --------------------------------------------------------------------------------------------------------


def restore(root: Path, backup: Backup, *, at_utc: float, software: str) -> list[str]:
    """Puts a back-up in the place of what is there; what was done, in words. Only while nobody uses the folder: the caller holds its
    lock (`edge.store.folder.DataFolder`).

    What is there is backed up first (reason `before-restore`); a database that is damaged is moved aside instead. Files come before the
    database, the database in one transaction: killed at any moment, it is the old one or the new one. StorageError: the back-up is
    damaged or newer than this program."""
    wrong = verify(backup)
    if wrong:
        code = "newer" if backup.steps and set(backup.steps) - known_steps() else "corrupt"
        raise StorageError(
            f"back-up {backup.name} cannot be restored: {'; '.join(wrong)}", subject=backup.name, code=code,
            remedy="choose another one (driftbox backup list), or the version of driftbox that made it",
        )  # fmt: skip
    done = []
    live = root / DATABASE
    usable = _is_whole(live)
    if usable:
        kept = make_backup(root, reason="before-restore", at_utc=at_utc, software=software)
        done.append(f"what was there is kept as {kept.name}")
        prune(root, reason="before-restore")
    elif live.exists():
        done.append(f"the damaged database was moved to {_move_aside(live, at_utc).name}")
    with storage_errors(root):
        done += _put_files_back(root, backup)
        if usable:
            _put_rows_back(backup.path / DATABASE, live)
        else:
            _put_database_back(backup.path / DATABASE, live)
    check_database(live)
    done.append(f"the database is that of {datetime.fromtimestamp(backup.created_utc, UTC):%Y-%m-%d %H:%M:%S} UTC")
    return done


def _is_whole(path: Path) -> bool:
    if not path.is_file():
        return False
    try:
        with closing(sqlite3.connect(path, timeout=5.0)) as db:
            return str(db.execute("PRAGMA quick_check(1)").fetchone()[0]) == "ok"
    except sqlite3.Error:
        return False


def _move_aside(live: Path, at_utc: float) -> Path:
    """The log of changes goes with the database: left behind it would be applied to the next one."""
    target = live.with_name(f"damaged-{datetime.fromtimestamp(at_utc, UTC):%Y%m%d-%H%M%S}")
    with storage_errors(live):
        target.mkdir(exist_ok=True)
        for name in (f"{live.name}-wal", f"{live.name}-shm", live.name):
            with suppress(FileNotFoundError):
                os.rename(live.with_name(name), target / name)
    return target


def _put_files_back(root: Path, backup: Backup) -> list[str]:
    versions: set[str] = set()
    for name in _only(backup.files, ("models", *SMALL)):
        source, target = backup.path / name, root / name
        if target.is_file() and sha256_of(target) == backup.files[name]:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f"{TEMP_PREFIX}{os.getpid()}-{target.name}")
        part.unlink(missing_ok=True)
        _copy_file(source, part, link=name.startswith("models/"))
        os.replace(part, target)
        fsync_path(target.parent)
        versions.add(str(Path(name).parent))
    return [f"put back the files of {version}" for version in sorted(versions)]


def _only(names: Iterable[str], tops: tuple[str, ...]) -> list[str]:
    return sorted(name for name in names if Path(name).parts[0] in tops)


def _put_rows_back(source: Path, live: Path) -> None:
    """SQLite writes the whole copy in one transaction of the live database."""
    with closing(sqlite3.connect(source)) as copy, closing(sqlite3.connect(live, timeout=5.0)) as db:
        db.execute("PRAGMA synchronous=FULL")
        copy.backup(db)


def _put_database_back(source: Path, live: Path) -> None:
    part = live.with_name(f"{TEMP_PREFIX}{os.getpid()}-{live.name}")
    shutil.copyfile(source, part)
    fsync_path(part)
    os.replace(part, live)
    fsync_path(live.parent)
