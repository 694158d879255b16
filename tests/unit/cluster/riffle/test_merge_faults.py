"""A merge that fails or is killed at any call to the disk: the originals are whole, and a merged file is there whole or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.riffle.admit import Buffers
from cluster.riffle.merge import Source, blamed, merge_files
from configs.errors import DriftboxError, JobCancelled, StorageError, UsageError
from streams.block_file import (
    Disk,
    data_path,
    names_in,
    read_block,
    read_index,
    records_of,
    remove_unfinished,
    write_block_file,
)

SMALL = Buffers(read=64, write=100)
MAPS, PARTITIONS = 4, 3


class Killed(BaseException):
    """The process is gone: nothing that comes after it happens either."""


class FaultyDisk(Disk):
    """The call number `at` (from 0) fails. kill: and so do all that follow, as for a process that was killed before it."""

    def __init__(self, at: int | None = None, *, kill: bool = False) -> None:
        self.at, self.kill, self.calls, self.dead = at, kill, [], False
        self.open: set[int] = set()

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in (
            "open_read",
            "open_write",
            "read",
            "soon",
            "scattered",
            "write",
            "sync",
            "close",
            "rename",
            "sync_folder",
            "unlink",
        ):
            return found

        def call(*arguments: Any) -> Any:
            number = len(self.calls)
            self.calls.append(name)
            if self.dead or number == self.at:
                self.dead = self.kill
                raise Killed if self.kill else OSError(errno.EIO, "the disk failed")
            done = found(*arguments)
            if name.startswith("open"):
                self.open.add(done)
            elif name == "close":
                self.open.discard(arguments[0])
            return done

        return call

    def bury(self) -> None:
        """A dead process's files are closed by the system."""
        for fd in self.open:
            os.close(fd)
        self.open.clear()


def originals(folder: Path, *, maps: int = MAPS) -> tuple[Source, ...]:
    for id in range(maps):
        blocks = [[f"{id}/{p}/{k}".encode() * (7 * id + 1) for k in range((id + p) % 3)] for p in range(PARTITIONS)]
        write_block_file(folder, f"map{id}", blocks, covers=[(id, 0)])
    return tuple(Source(name=f"map{id}", covers=((id, 0),)) for id in range(maps))


def read_all(folder: Path, names: list[str]) -> list[list[bytes]]:
    """Per partition the records of all files, sorted."""
    indexes = {name: read_index(folder, name) for name in names}
    return [
        sorted(r for name in names for r in records_of(read_block(folder, name, indexes[name], p))) for p in range(PARTITIONS)
    ]


def calls_of_a_merge(tmp_path: Path) -> list[str]:
    disk = FaultyDisk()
    (tmp_path / "count").mkdir()
    merge_files(tmp_path / "count", originals(tmp_path / "count"), "out", buffers=SMALL, disk=disk)
    return disk.calls


@pytest.mark.parametrize("kill", [True, False])
def test_at_every_call_to_the_disk(tmp_path: Path, kill: bool) -> None:
    """Nothing lost, nothing doubled: afterwards either all of the merge or none of it is there, and a second try gives the whole."""
    calls = calls_of_a_merge(tmp_path)
    assert (calls.count("rename"), calls.count("sync")) == (2, 2)
    assert len(calls) > 40
    half = 0
    for at in range(len(calls)):
        folder = tmp_path / f"{at}"
        folder.mkdir()
        sources = originals(folder)
        wanted = read_all(folder, [s.name for s in sources])
        disk = FaultyDisk(at, kill=kill)
        try:
            merge_files(folder, sources, "out", buffers=SMALL, disk=disk)
        except (Killed, StorageError):
            half += "out" not in names_in(folder)
        disk.bury()
        assert read_all(folder, [s.name for s in sources]) == wanted, f"{calls[at]} at {at}: the originals"
        assert set(names_in(folder)) - {"out"} == {s.name for s in sources}
        if "out" in names_in(folder):
            assert read_all(folder, ["out"]) == wanted, f"{calls[at]} at {at}: the merged file"
        remove_unfinished(folder)
        merge_files(folder, sources, "out", buffers=SMALL)
        assert read_all(folder, ["out"]) == wanted
        assert sorted(p.name for p in folder.iterdir()) == sorted(
            f"{n}.{k}" for n in ("out", *(s.name for s in sources)) for k in ("data", "index")
        )
    assert half > 30


def test_the_index_is_durable_before_the_data_has_its_name(tmp_path: Path) -> None:
    calls = calls_of_a_merge(tmp_path)
    ends = [c for c in calls if c in ("sync", "rename", "sync_folder")]
    assert ends == ["sync", "sync", "rename", "sync_folder", "rename", "sync_folder"]


def test_a_failing_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    sources = originals(tmp_path)
    with pytest.raises(StorageError):
        merge_files(tmp_path, sources, "out", buffers=SMALL, disk=FaultyDisk(30))
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".tmp")]


def test_the_disk_sees_large_sequential_requests_only(tmp_path: Path) -> None:
    """Every source front to back once, in pieces of the read buffer; the output once, in pieces of the write buffer."""
    big = [[bytes(1000)] * 5 for _ in range(PARTITIONS)]
    for id in range(3):
        write_block_file(tmp_path, f"map{id}", big, covers=[(id, 0)])
    size = data_path(tmp_path, "map0").stat().st_size
    seen: dict[int, list[tuple[int, int]]] = {}

    class Watched(Disk):
        def read(self, fd: int, size_bytes: int, at: int) -> bytes:
            seen.setdefault(fd, []).append((at, size_bytes))
            return super().read(fd, size_bytes, at)

        def write(self, fd: int, data: Any) -> None:
            written.append(len(data))
            super().write(fd, data)

    written: list[int] = []
    sources = [Source(name=f"map{id}", covers=((id, 0),)) for id in range(3)]
    merge_files(tmp_path, sources, "out", buffers=Buffers(read=4096, write=9000), disk=Watched())
    data_reads = [reads for reads in seen.values() if reads[0][1] == 4096]
    assert len(data_reads) == 3
    for reads in data_reads:
        assert reads == [(at, 4096) for at in range(0, size, 4096)]
    assert all(9000 <= n < 9000 + 4096 for n in written[:-2])
    assert sum(written[:-1]) == 3 * size


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 5), st.integers(1, 300), st.integers(1, 300), st.data())
def test_merging_moves_records_and_changes_none(tmp_path_factory, maps: int, read: int, write: int, data) -> None:
    folder = tmp_path_factory.mktemp("m")
    blocks = [[data.draw(st.lists(st.binary(max_size=90), max_size=3)) for _ in range(PARTITIONS)] for _ in range(maps)]
    for id, mine in enumerate(blocks):
        write_block_file(folder, f"map{id}", mine, covers=[(id, 0)])
    index = merge_files(
        folder,
        [Source(name=f"map{id}", covers=((id, 0),)) for id in range(maps)],
        "out",
        buffers=Buffers(read=read, write=write),
    )
    for p in range(PARTITIONS):
        assert list(records_of(read_block(folder, "out", index, p))) == [r for mine in blocks for r in mine[p]]


def test_a_damaged_or_missing_source_is_named_and_never_copied(tmp_path: Path) -> None:
    sources = originals(tmp_path)
    path = data_path(tmp_path, "map2")
    good = path.read_bytes()
    for spoil, code in ((lambda: path.write_bytes(good[:-1] + b"?"), "corrupt"), (path.unlink, "missing")):
        spoil()
        with pytest.raises(StorageError) as caught:
            merge_files(tmp_path, sources, "out", buffers=SMALL)
        assert caught.value.code == code
        assert blamed(caught.value, sources) == sources[2]
        assert "out" not in names_in(tmp_path)
    assert blamed(StorageError("x", subject="map1", code="full"), sources) is None


def test_what_does_not_fit_together_is_refused(tmp_path: Path) -> None:
    sources = originals(tmp_path)
    write_block_file(tmp_path, "other", [[b"x"]], covers=[(9, 0)])
    other = Source(name="other", covers=((9, 0),))
    with pytest.raises(DriftboxError, match="1 blocks"):
        merge_files(tmp_path, [sources[0], other], "out")
    with pytest.raises(UsageError, match="two files or more"):
        merge_files(tmp_path, sources[:1], "out")
    with pytest.raises(UsageError, match="twice"):
        merge_files(tmp_path, [sources[0], sources[0]], "out")
    with pytest.raises(StorageError, match="not"):
        merge_files(tmp_path, [sources[0], Source(name="map1", covers=((1, 7),))], "out")


def test_a_merge_told_twice_is_done_once_and_a_name_is_never_used_again(tmp_path: Path) -> None:
    sources = originals(tmp_path)
    index = merge_files(tmp_path, sources[:2], "out")
    before = data_path(tmp_path, "out").stat().st_mtime_ns
    assert merge_files(tmp_path, sources[:2], "out") == index
    assert data_path(tmp_path, "out").stat().st_mtime_ns == before
    with pytest.raises(UsageError, match="holds other"):
        merge_files(tmp_path, sources[2:], "out")


def test_cancelling_leaves_nothing(tmp_path: Path) -> None:
    sources = originals(tmp_path)
    answers = iter([False, True])
    with pytest.raises(JobCancelled):
        merge_files(tmp_path, sources, "out", cancelled=lambda: next(answers))
    assert names_in(tmp_path) == [s.name for s in sources]
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".tmp")]
