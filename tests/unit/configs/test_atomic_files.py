"""A file is old or new, never half; disk errors become StorageError with a code and a remedy."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path

import pytest

from configs.errors import StorageError
from configs.files import TEMP_PREFIX, atomic_write, storage_errors, write_all


def full_after(limit_bytes: int, code: int = errno.ENOSPC):  # type: ignore[no-untyped-def]
    """A `write` that takes `limit_bytes` in all, in two pieces, and then fails."""
    left = limit_bytes

    def write(fd: int, data: bytes) -> int:
        nonlocal left
        if left == 0:
            raise OSError(code, os.strerror(code))
        taken = os.write(fd, data[: min(left, max(1, limit_bytes // 2))])
        left -= taken
        return taken

    return write


@pytest.mark.parametrize("durable", [True, False])
def test_write_replaces_the_file_and_leaves_nothing_else(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "a.json"
    for data in (b"one", b"", b"x" * 100_000):
        atomic_write(path, data, durable=durable)
        assert path.read_bytes() == data
        assert os.listdir(tmp_path) == ["a.json"]


@pytest.mark.parametrize("limit_bytes", [0, 1, 5, 9])
def test_a_full_disk_keeps_the_old_file_and_cleans_up(tmp_path: Path, limit_bytes: int) -> None:
    path = tmp_path / "a.json"
    atomic_write(path, b"old")
    with pytest.raises(StorageError) as caught:
        atomic_write(path, b"0123456789", write=full_after(limit_bytes))
    assert caught.value.code == "full"
    assert str(path) in caught.value.message
    assert "free some space" in caught.value.remedy
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.json"]


def test_short_writes_are_continued(tmp_path: Path) -> None:
    def slow_write(fd: int, data: bytes) -> int:
        return os.write(fd, data[:3])

    atomic_write(tmp_path / "a", b"0123456789", write=slow_write)
    assert (tmp_path / "a").read_bytes() == b"0123456789"


def test_a_missing_folder_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"missing/a: No such file") as caught:
        atomic_write(tmp_path / "missing" / "a", b"")
    assert caught.value.code == "storage"


def test_interrupted_writes_do_not_leave_their_part(tmp_path: Path) -> None:
    def interrupted(fd: int, data: bytes) -> int:
        os.write(fd, data[:1])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        atomic_write(tmp_path / "a", b"12", write=interrupted)
    assert not list(tmp_path.glob(f"{TEMP_PREFIX}*"))


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "full"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "full"),
        (OSError(errno.EFBIG, "File too large"), "full"),
        (OSError(errno.EROFS, "Read-only file system"), "read_only"),
        (PermissionError(errno.EACCES, "Permission denied"), "read_only"),
        (OSError(errno.EIO, "Input/output error"), "storage"),
        (sqlite3.OperationalError("database or disk is full"), "full"),
        (sqlite3.OperationalError("attempt to write a readonly database"), "read_only"),
        (sqlite3.OperationalError("unable to open database file"), "read_only"),
        (sqlite3.OperationalError("database is locked"), "in_use"),
        (sqlite3.DatabaseError("database disk image is malformed"), "corrupt"),
        (sqlite3.DatabaseError("file is not a database"), "corrupt"),
        (sqlite3.OperationalError("disk I/O error"), "storage"),
    ],
)
def test_every_disk_error_has_a_code_and_a_remedy(error: Exception, code: str) -> None:
    with pytest.raises(StorageError) as caught, storage_errors("the-subject"):
        raise error
    assert caught.value.code == code
    assert caught.value.subject == "the-subject"
    assert caught.value.remedy
    assert caught.value.exit_code == 3
    assert caught.value.__cause__ is error


def test_other_errors_pass_unchanged() -> None:
    with pytest.raises(ValueError, match="mine"), storage_errors("x"):
        raise ValueError("mine")


def test_write_all_of_nothing_does_not_write() -> None:
    write_all(-1, b"")
