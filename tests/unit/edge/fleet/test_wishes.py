"""The wish in force on disk: killed anywhere, the box comes up with the old one or the new one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from configs.errors import StorageError
from edge.fleet.wishes import WishBook
from scheduler.fleet.desire import Known
from tests.support.fleet_box import order, wish

OLD = Known(applied=wish(1, 1, shares={"a": 30}), highest=(1, 1))
NEW = Known(applied=wish(1, 2, shares={"a": 60}, cameras=(order("gate", "warm", 7),), collect="r"), highest=(2, 5))


def book(folder: Path, membership: str = "m1") -> WishBook:
    return WishBook(folder / "wishes.json", membership=membership)


def test_it_is_read_back_as_it_was(tmp_path: Path) -> None:
    assert book(tmp_path).known == Known()
    book(tmp_path).keep(NEW)
    assert book(tmp_path).known == NEW
    assert (tmp_path / "wishes.json").stat().st_mode & 0o077 == 0


def test_what_another_membership_left_is_forgotten(tmp_path: Path) -> None:
    book(tmp_path).keep(NEW)
    assert book(tmp_path, "m2").known == Known()


@pytest.mark.parametrize(
    "garbage", ["{", "[]", '{"schema": 2}', "\x00\x00", '{"schema":1,"membership":"m1","highest":[1],"applied":null}']
)
def test_a_damaged_file_is_put_aside_and_the_next_wish_counts(tmp_path: Path, garbage: str) -> None:
    (tmp_path / "wishes.json").write_text(garbage)
    found = book(tmp_path)
    assert found.known == Known()
    assert (tmp_path / "wishes.damaged").read_text() == garbage
    found.keep(NEW)
    assert book(tmp_path).known == NEW


def test_a_disk_that_refuses_leaves_what_was(tmp_path: Path) -> None:
    book(tmp_path).keep(OLD)

    def full(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    refused = WishBook(tmp_path / "wishes.json", membership="m1", write=full)
    with pytest.raises(StorageError):
        refused.keep(NEW)
    assert refused.known == book(tmp_path).known == OLD


@pytest.mark.parametrize("killed_after", [0, 1, 40, 10_000])
def test_killed_while_it_writes(tmp_path: Path, killed_after: int) -> None:
    """A process of its own that ends without a word after so many bytes."""
    book(tmp_path).keep(OLD)
    child = os.fork()
    if child == 0:

        def write(fd: int, data: bytes) -> int:
            os.write(fd, data[:killed_after])
            if killed_after < len(data):
                os._exit(9)
            return len(data)

        WishBook(tmp_path / "wishes.json", membership="m1", write=write).keep(NEW)
        os._exit(0)
    os.waitpid(child, 0)
    found = book(tmp_path)
    assert found.known == (NEW if killed_after == 10_000 else OLD)
    found.keep(NEW)  # and what it left in the way does not matter
    assert book(tmp_path).known == NEW
