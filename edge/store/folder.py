"""The data folder: who may use it, where things lie in it, and putting it in order after a crash.

    driftbox.db                     SQLite, see `edge.store.store`
    samples/<camera>/<window>/      see `streams.samples`
    models/<camera>/<version>/      files of one model version, manifest.json among them
    events/                         the journal, see `edge.journal`
    media/<camera>/<day>/           snapshots and clips, see `edge.media.folder`
    exports/
    .lock                           held while a box runs; the number in it is its process id
    .files.lock                     held while version folders are made, copied out or removed, by the box or a command

A version's folder gets its name by one rename after everything in it has reached the disk, and its row in the database after
that; so a row means complete files, and a folder without a row is either an unfinished admission or a lost database.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from configs.errors import StorageError
from configs.files import TEMP_PREFIX, fsync_path, full, sha256_of, storage_errors
from configs.units import is_camera_id
from edge.store.store import ModelState, Store, StoredModel
from scheduler.types import ModelVersion
from streams.samples import SampleStore

MANIFEST = "manifest.json"
_VERSION_ID = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,126}$")

#: Reasons of versions that were found damaged begin with this; their files are kept for inspection.
DAMAGED = "damaged: "
_UNJUDGED = "the box stopped before it was judged"
#: Seconds that whoever must change version folders waits for another who does.
FILES_WAIT_S = 30.0

#: What is wrong with a version's folder, None: nothing. `deep`: also compare checksums.
VersionCheck = Callable[[Path, bool], str | None]


class DataFolder:
    """Opens and locks a data folder, making it when it is not there.

    beside: for a command that works while a box runs on the folder: it is not locked and must exist.
    Raises StorageError: 'in_use' (names the process), 'read_only', 'full'. `close` or the process's end gives the lock back.
    """

    def __init__(self, root: Path, *, beside: bool = False) -> None:
        self.root = root
        self._lock_fd: int | None = None
        if beside:
            return
        with storage_errors(root):
            root.mkdir(parents=True, exist_ok=True)
        self._lock_fd = _lock(root)
        try:
            with storage_errors(root):
                for folder in (self.samples_dir, self.models_dir, self.events_dir, self.exports_dir):
                    folder.mkdir(exist_ok=True)
                self._files_lock.touch()
        except StorageError:
            self.close()
            raise

    @property
    def db_path(self) -> Path:
        return self.root / "driftbox.db"

    @property
    def samples_dir(self) -> Path:
        return self.root / "samples"

    @property
    def models_dir(self) -> Path:
        return self.root / "models"

    @property
    def events_dir(self) -> Path:
        return self.root / "events"

    @property
    def media_dir(self) -> Path:
        return self.root / "media"

    @property
    def exports_dir(self) -> Path:
        return self.root / "exports"

    @property
    def _files_lock(self) -> Path:
        return self.root / ".files.lock"

    def version_dir(self, stream: str, version: str) -> Path:
        """Where a version's files lie. ValueError: a name that could leave the folder."""
        if not is_camera_id(stream) or not _VERSION_ID.match(version):
            raise ValueError(f"not a model version: {stream!r}, {version!r}")
        return self.models_dir / stream / version

    def close(self) -> None:
        fd, self._lock_fd = self._lock_fd, None
        if fd is not None:
            os.close(fd)  # closing the file gives the lock back; the file stays, so that nobody locks a removed one

    def __enter__(self) -> DataFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def free_mib(self) -> float:
        """Room on the disk for this user."""
        with storage_errors(self.root):
            return shutil.disk_usage(self.root).free / 2**20

    def require_free(self, mib: float) -> None:
        """Raises StorageError 'full' when less is free."""
        if self.free_mib() < mib:
            raise full(f"{self.root} ({self.free_mib():.0f} MiB left, {mib:.0f} MiB wanted)")

    @contextmanager
    def new_version(self, stream: str, version: str) -> Iterator[Path]:
        """A temporary folder for a version's files; it gets its name when the body has ended without an error, and is removed
        otherwise. ValueError: the version exists. Record it with `Store.add_model` afterwards."""
        final = self.version_dir(stream, version)
        if final.exists():
            raise ValueError(f"model {version} of {stream} exists already")
        part = final.with_name(f"{TEMP_PREFIX}{os.getpid()}-{version}")
        with storage_errors(final):
            try:
                shutil.rmtree(part, ignore_errors=True)
                part.mkdir(parents=True)
                yield part
                for path in part.iterdir():
                    fsync_path(path)
                fsync_path(part)
                os.rename(part, final)
                fsync_path(final.parent)
            except BaseException:
                shutil.rmtree(part, ignore_errors=True)
                raise

    @contextmanager
    def files_lock(self, wait_s: float = FILES_WAIT_S) -> Iterator[None]:
        """Held around making, copying out and removing version folders, so that a command beside a running box and the box's own
        tidying do not meet. Not re-entrant. Raises StorageError 'in_use' after wait_s."""
        with storage_errors(self.root):
            fd = os.open(self._files_lock, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            until_s = time.monotonic() + wait_s
            while not _flocked(fd):
                if time.monotonic() >= until_s:
                    raise StorageError(
                        f"the models of {self.root} are being changed by another process", subject=str(self.root), code="in_use",
                        remedy="try again in a moment",
                    )  # fmt: skip
                time.sleep(0.02)
            yield
        finally:
            os.close(fd)

    def remove_version(self, stream: str, version: str) -> None:
        """Removes a version's files; nothing happens when they are gone. Its folder vanishes by one rename."""
        folder = self.version_dir(stream, version)
        with storage_errors(folder), suppress(FileNotFoundError):
            part = folder.with_name(f"{TEMP_PREFIX}{os.getpid()}-removed-{version}")
            os.rename(folder, part)
            shutil.rmtree(part)

    def recover(self, store: Store, *, at_utc: float, check: VersionCheck | None = None) -> list[str]:
        """Puts the folder in order after a crash; returns what was found, in words. Does nothing in a folder that is in order.

        - unfinished files, samples and versions are removed;
        - a version whose folder is missing or damaged is rejected; if it served, the newest good version that has served or
          been admitted takes over (none: the camera starts from its base model);
        - a candidate that was never judged is rejected, unless it came from outside and waits for the camera's gate;
        - the files of rejected versions are removed, except of damaged ones;
        - a folder without a row is removed - or adopted as 'retired' when the database is new, so that a lost database does
          not cost the models.
        """
        check = check or check_version
        database_is_new = not store.models()
        with self.files_lock():
            found = self._remove_unfinished()
            found += SampleStore(self.samples_dir).recover()
            found += self._reject_damaged(store, at_utc, check)
            found += self._settle_folders(store, at_utc, check, adopt=database_is_new)
        return found

    # --- recovery -----------------------------------------------------------------------------------------------------

    def _remove_unfinished(self) -> list[str]:
        found = []
        keys = self.root / "keys"
        # A manifest is written anew when a version's quality is known, so version folders are looked into as well.
        versions = [p for stream in self._model_streams() for p in stream.iterdir() if p.is_dir() and _VERSION_ID.match(p.name)]
        places = (self.root, self.models_dir, self.events_dir, self.exports_dir, keys, keys / "trusted")
        for parent in (*places, *self._model_streams(), *sorted(versions)):
            with storage_errors(parent):
                for path in sorted(parent.glob(f"{TEMP_PREFIX}*")):
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
                    found.append(f"removed unfinished {path.relative_to(self.root)}")
        return found

    def _reject_damaged(self, store: Store, at_utc: float, check: VersionCheck) -> list[str]:
        found = []
        for model in store.models():
            if model.state is ModelState.REJECTED:
                continue
            served = model.state is ModelState.SERVING
            if model.state is ModelState.CANDIDATE and not model.offered:
                problem = _UNJUDGED
            else:
                finding = check(self.version_dir(model.version.stream, model.version.id), served)
                if finding is None:
                    continue
                problem = DAMAGED + finding
            store.set_model_state(model.version.id, ModelState.REJECTED, reason=problem)
            found.append(f"model {model.version.id} of {model.version.stream} rejected: {problem}")
            if served:
                found.append(self._serve_another(store, model.version.stream, at_utc, check))
        return found

    def _serve_another(self, store: Store, stream: str, at_utc: float, check: VersionCheck) -> str:
        usable = (ModelState.ADMITTED, ModelState.RETIRED)
        for model in reversed([m for m in store.models(stream) if m.state in usable]):
            if check(self.version_dir(stream, model.version.id), True) is None:
                store.serve(model.version.id, at_utc=at_utc, reason="took over from a damaged version")
                return f"model {model.version.id} of {stream} took over"
        return f"{stream} starts from its base model"

    def _settle_folders(self, store: Store, at_utc: float, check: VersionCheck, *, adopt: bool) -> list[str]:
        found = []
        rows = {(m.version.stream, m.version.id): m for m in store.models()}
        for stream_dir in self._model_streams():
            for folder in sorted(p for p in stream_dir.iterdir() if p.is_dir() and _VERSION_ID.match(p.name)):
                row = rows.get((stream_dir.name, folder.name))
                if row is None and adopt and check(folder, True) is None:
                    found.append(_adopt(store, folder, at_utc))
                elif row is None or _is_useless(row):
                    self.remove_version(stream_dir.name, folder.name)
                    found.append(f"removed the files of {folder.name} of {stream_dir.name}, which is not in use")
        return found

    def _model_streams(self) -> list[Path]:
        with storage_errors(self.models_dir):
            return sorted(p for p in self.models_dir.iterdir() if p.is_dir() and is_camera_id(p.name))


def check_version(folder: Path, deep: bool) -> str | None:
    """What is wrong with a version's folder, None: nothing. It needs a manifest.json, an object with `sha256` (of the one
    safetensors file beside it); deep: the checksum is computed and compared."""
    try:
        manifest = _read_manifest(folder)
        weights = list(folder.glob("*.safetensors"))
    except FileNotFoundError:
        return "its files are missing"
    except (ValueError, OSError) as error:
        return f"its manifest cannot be read: {error}"
    if len(weights) != 1 or weights[0].stat().st_size == 0:
        return "its weights are missing"
    if deep and sha256_of(weights[0]) != manifest.get("sha256"):
        return "its weights do not have the checksum of the manifest"
    return None


def _read_manifest(folder: Path) -> dict[str, Any]:
    manifest = json.loads((folder / MANIFEST).read_bytes())
    if not isinstance(manifest, dict):
        raise ValueError("not an object")
    return manifest


def _is_useless(row: StoredModel) -> bool:
    return row.state is ModelState.REJECTED and not row.pinned and not row.reason.startswith(DAMAGED)


def _adopt(store: Store, folder: Path, at_utc: float) -> str:
    manifest = _read_manifest(folder)
    stream, measures = folder.parent.name, manifest.get("quality")
    quality = measures.get("f1") if isinstance(measures, dict) else None
    version = ModelVersion(
        id=folder.name,
        stream=stream,
        parent=manifest.get("parent"),
        arch=str(manifest.get("arch", "")),
        sha256=str(manifest.get("sha256", "")),
        quality=float(quality) if isinstance(quality, int | float) else None,
    )
    store.add_model(version, at_utc=at_utc, state=ModelState.RETIRED, reason="found in the folder of a lost database")
    return f"model {version.id} of {stream} adopted; 'driftbox models rollback' makes it serve"


def _flocked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _lock(root: Path) -> int:
    path = root / ".lock"
    with storage_errors(root):
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        if not _flocked(fd):
            owner = os.read(fd, 32).decode(errors="replace").strip()
            os.close(fd)
            raise StorageError(
                f"data folder {root} is in use by process {owner or '?'}",
                subject=str(root),
                code="in_use",
                remedy="stop that box, or choose another folder with box.data_dir",
            )
        with suppress(OSError):  # a full disk: the lock holds without the number
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        return fd
