"""Writing files so that a kill at any moment leaves the old one or the new one, and never half a file; disk errors become ours.

Lowest layer, because samples (`streams`), versions (`models`) and the data folder (`edge`) all write this way.
"""

from __future__ import annotations

import errno
import hashlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from configs.errors import StorageError

#: Names of unfinished files and folders begin with this; start-up recovery removes what is left of them.
TEMP_PREFIX = ".tmp-"

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}

Write = Callable[[int, bytes], int]


@contextmanager
def storage_errors(subject: str | Path) -> Iterator[None]:
    """Maps OSError and sqlite3 errors to StorageError: 'full', 'read_only', 'in_use', 'corrupt', else 'storage'."""
    try:
        yield
    except sqlite3.Error as error:
        raise _from_sqlite(error, str(subject)) from error
    except OSError as error:
        raise _from_os(error, str(subject)) from error


def write_all(fd: int, data: bytes, write: Write = os.write) -> None:
    """`os.write` until everything is written: one call may take only a part."""
    view = memoryview(data)
    while view:
        view = view[write(fd, bytes(view)) :]


def fsync_path(path: Path) -> None:
    """Brings a file to the disk; of a folder: makes renames inside it survive a power cut."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sha256_of(path: Path) -> str:
    """Hex digest of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def temp_path(path: Path) -> Path:
    """A name beside `path` for its unfinished version. One writer per path."""
    return path.with_name(f"{TEMP_PREFIX}{os.getpid()}-{path.name}")


def atomic_write(path: Path, data: bytes, *, durable: bool = True, write: Write = os.write, secret: bool = False) -> None:
    """Replaces `path` by `data`, or leaves it as it was. secret: only this user may read it, at any moment.

    durable: also survives a power cut (fsync of the file and its folder); without it only a killed process.
    Raises StorageError; the unfinished file is removed.
    """
    part = temp_path(path)
    with storage_errors(path):
        try:
            fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600 if secret else 0o644)
            try:
                if secret:
                    os.fchmod(fd, 0o600)  # also when it was there from before
                write_all(fd, data, write)
                if durable:
                    os.fsync(fd)
            finally:
                os.close(fd)
            os.replace(part, path)
        except BaseException:
            with suppress(OSError):
                part.unlink(missing_ok=True)
            raise
        if durable:
            fsync_path(path.parent)


def _from_os(error: OSError, subject: str) -> StorageError:
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        return full(subject)
    if error.errno in _READ_ONLY:
        return read_only(subject, reason)
    return StorageError(f"{subject}: {reason}", subject=subject, remedy="check the disk and the path")


def _from_sqlite(error: sqlite3.Error, subject: str) -> StorageError:
    text = str(error).lower()
    if "full" in text:
        return full(subject)
    if "readonly" in text or "unable to open" in text:
        return read_only(subject, text)
    if "locked" in text or "busy" in text:
        return StorageError(
            f"{subject} is in use by another process", subject=subject, code="in_use", remedy="stop the other process"
        )
    if "malformed" in text or "not a database" in text or "corrupt" in text:
        return corrupt(subject, text)
    return StorageError(f"{subject}: {error}", subject=subject, remedy="check the disk")


def full(subject: str) -> StorageError:
    return StorageError(
        f"no space left for {subject}",
        subject=subject,
        code="full",
        remedy="free some space or lower the limits in section 'storage'",
    )


def read_only(subject: str, reason: str) -> StorageError:
    return StorageError(
        f"cannot write {subject}: {reason}",
        subject=subject,
        code="read_only",
        remedy="make the folder writable for this user, or choose another with box.data_dir",
    )


def corrupt(subject: str, reason: str) -> StorageError:
    return StorageError(
        f"{subject} is damaged: {reason}",
        subject=subject,
        code="corrupt",
        remedy="move the file away and start again; models and samples lie beside it and are found again",
    )
