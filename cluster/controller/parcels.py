"""Parcels on the controller's disk: bytes that a box leaves for another one, sealed for it; model bundles of rollouts.

    parcels/<to>/<rest>           the bytes; a name appears with all of them, or not at all
    bundles/<name>                a bundle that every box may be offered, fetched as the parcel `<box>.<name>`

A parcel whose checksum was right is there until it is older than KEPT_S and nothing refers to it. Raises StorageError, and UsageError
with the codes of docs/fleet/controller.md.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from configs.errors import StorageError, UsageError
from configs.files import TEMP_PREFIX, fsync_path, full, sha256_of, storage_errors

MOST_BYTES = 512 * 1024 * 1024
#: Of one sender's parcels, and of all: a box that went wrong must not fill the controller's disk for the others.
MOST_OF_SENDER, MOST_OF_ALL = 4 * MOST_BYTES, 64 * MOST_BYTES
KEPT_S = 86_400.0
_ID = re.compile(r"(?P<to>[a-z0-9_-]{1,63})\.(?P<rest>[a-z0-9_-][a-z0-9_.-]{0,254})")


@dataclass(frozen=True, kw_only=True)
class Parcel:
    id: str
    path: Path
    size_bytes: int
    made_utc_s: float
    sha256: str


class Parcels:
    """Thread-safe."""

    def __init__(self, folder: Path, *, beside: bool = False) -> None:
        """beside: a controller may run on the folder, so what is unfinished is left alone."""
        self._folder, self._bundles = folder / "parcels", folder / "bundles"
        self._lock = threading.Lock()
        self._sums: dict[Path, str] = {}
        self._seen: tuple[frozenset[str] | None, float] = None, 0.0
        with storage_errors(folder):
            for made in (self._folder, self._bundles):
                made.mkdir(mode=0o700, parents=True, exist_ok=True)
            unfinished = () if beside else (*self._folder.rglob(f"{TEMP_PREFIX}*"), *self._bundles.glob(f"{TEMP_PREFIX}*"))
            for part in unfinished:  # of a controller that was killed
                part.unlink(missing_ok=True)

    # --- writing ------------------------------------------------------------------------------------------------------

    def receive(self, id: str, sender: str) -> Receiving:
        """For bytes that come piece by piece."""
        to, rest = parts_of(id)
        if self._size_of_all() > MOST_OF_ALL or self._size_from(sender) > MOST_OF_SENDER:
            raise full(str(self._folder))
        folder = self._folder / to
        with storage_errors(folder):
            folder.mkdir(mode=0o700, exist_ok=True)
        # The sender is part of the file's name, for its quota; of two senders of one id the later one wins.
        return Receiving(self, id, folder / f"{rest}@{sender}")

    def put(self, id: str, body: bytes, sender: str) -> Parcel:
        receiving = self.receive(id, sender)
        try:
            receiving.write(body)
            return receiving.end(hashlib.sha256(body).hexdigest())
        finally:
            receiving.drop()

    def put_bundle(self, name: str, file: Path) -> None:
        """Moves a file here."""
        parts_of(f"box.{name}")
        with storage_errors(self._bundles):
            if file.stat().st_size > MOST_BYTES:
                raise _too_large()
            target = self._bundles / f"{TEMP_PREFIX}{name}"
            target.write_bytes(file.read_bytes())
            fsync_path(target)
            os.replace(target, self._bundles / name)
            fsync_path(self._bundles)
            file.unlink(missing_ok=True)

    def kept(self, path: Path, sha256: str) -> None:
        """A file has got its name (`Receiving`)."""
        with self._lock:
            self._sums[path] = sha256
        self._seen = None, 0.0
        for other in path.parent.glob(f"{path.name.rpartition('@')[0]}@*"):
            if other != path:
                self._unlink(other)

    # --- reading ------------------------------------------------------------------------------------------------------

    def find(self, id: str) -> Parcel:
        """UsageError 'not_found'."""
        to, rest = parts_of(id)
        paths = [*sorted((self._folder / to).glob(f"{rest}@*")), self._bundles / rest]
        path = next((path for path in paths if path.is_file()), None)
        if path is None:
            raise UsageError(
                f"there is no parcel {id}", subject=id, code="not_found", remedy="it was never sent, or its time is over"
            )
        with storage_errors(path):
            stat = path.stat()
        return Parcel(id=id, path=path, size_bytes=stat.st_size, made_utc_s=stat.st_mtime, sha256=self._sum(path))

    def ids(self) -> frozenset[str]:
        """Of the parcels; bundles are named by rollouts only. Asked for with every step, so it is remembered for a moment: another
        controller may have worked on the folder meanwhile."""
        found, until_s = self._seen
        if found is not None and time.monotonic() < until_s:
            return found
        with storage_errors(self._folder):
            found = frozenset(
                f"{path.parent.name}.{path.name.rpartition('@')[0]}"
                for path in self._folder.glob("*/*")
                if not path.name.startswith(TEMP_PREFIX)
            )
        self._seen = found, time.monotonic() + 2.0
        return found

    # --- forgetting ---------------------------------------------------------------------------------------------------

    def remove(self, id: str) -> None:
        """Unknown: nothing happens."""
        to, rest = parts_of(id)
        for path in (self._folder / to).glob(f"{rest}@*"):
            self._unlink(path)

    def sweep(self, *, needed: Iterable[str], bundles: Iterable[str], now_utc_s: float) -> int:
        """Removes what is old and that nothing refers to; how many."""
        keep, keep_bundles, gone = frozenset(needed), frozenset(bundles), 0
        with storage_errors(self._folder):
            for id in self.ids() - keep:
                with suppress(UsageError):
                    if now_utc_s - self.find(id).made_utc_s > KEPT_S:
                        self.remove(id)
                        gone += 1
            for path in self._bundles.iterdir():
                if path.name not in keep_bundles and now_utc_s - path.stat().st_mtime > KEPT_S:
                    self._unlink(path)
                    gone += 1
        return gone

    # --- inside -------------------------------------------------------------------------------------------------------

    def _unlink(self, path: Path) -> None:
        with self._lock:
            self._sums.pop(path, None)
        with storage_errors(path):
            path.unlink(missing_ok=True)
        self._seen = None, 0.0

    def _sum(self, path: Path) -> str:
        with self._lock:
            known = self._sums.get(path)
        if known is None:
            with storage_errors(path):
                known = sha256_of(path)
            with self._lock:
                self._sums[path] = known
        return known

    def _size_of_all(self) -> int:
        return sum(path.stat().st_size for path in self._folder.glob("*/*"))

    def _size_from(self, sender: str) -> int:
        return sum(path.stat().st_size for path in self._folder.glob(f"*/*@{sender}"))


class Receiving:
    """A parcel on its way in. `write` its pieces, then `end`; `drop` in any case."""

    def __init__(self, parcels: Parcels, id: str, path: Path) -> None:
        self._parcels, self._id, self._path = parcels, id, path
        self._part = path.with_name(f"{TEMP_PREFIX}{secrets.token_hex(6)}-{path.name}")
        self._hash, self._size = hashlib.sha256(), 0
        with storage_errors(path):
            self._file = self._part.open("xb")

    def write(self, piece: bytes) -> None:
        self._size += len(piece)
        if self._size > MOST_BYTES:
            raise _too_large()
        self._hash.update(piece)
        with storage_errors(self._path):
            self._file.write(piece)

    def end(self, sha256: str) -> Parcel:
        """Gives it its name. UsageError 'checksum' when the bytes are not what was announced."""
        if self._hash.hexdigest() != sha256.lower():
            raise UsageError(
                f"parcel {self._id} was damaged on its way",
                subject=self._id,
                code="checksum",
                remedy="send it again, with its X-Sha256",
            )
        with storage_errors(self._path):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            os.replace(self._part, self._path)
            fsync_path(self._path.parent)
        self._parcels.kept(self._path, sha256.lower())
        return Parcel(
            id=self._id, path=self._path, size_bytes=self._size, made_utc_s=self._path.stat().st_mtime, sha256=sha256.lower()
        )

    def drop(self) -> None:
        """Nothing is left of one that did not end."""
        with suppress(OSError):
            self._file.close()
            self._part.unlink(missing_ok=True)


def parts_of(id: str) -> tuple[str, str]:
    """(addressee, rest). UsageError for what is no parcel's name."""
    found = _ID.fullmatch(id)
    if found is None or ".." in id:
        raise UsageError(
            f"{id[:80]!r} is no parcel's name", subject="parcel", code="not_found", remedy="it is TO.REST, of a-z 0-9 _ - ."
        )
    return found["to"], found["rest"]


def _too_large() -> StorageError | UsageError:
    return UsageError(f"a parcel has at most {MOST_BYTES // 2**20} MiB", subject="parcel", code="too_large")
