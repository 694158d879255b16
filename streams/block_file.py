"""Samples in blocks: files whose blocks may be put one behind the other as they lie on disk, unread (Riffle, card section 3).

A record is its length, its CRC-32 and its bytes; a block is records one behind the other, so two blocks one behind the other are a
block. That is why: nothing in a block counts or sums over the block, as a zip, a Parquet file or one compressed stream with a header and
a checksum would. Pictures are JPEG already, so records are not compressed.

A block file is two files, NAME.data with R blocks one behind the other and NAME.index with R + 1 offsets, each block's CRC-32, and
which map outputs it holds (map id and attempt): nobody can take a merged file and one of its originals for two different things.

It is there when NAME.data has its name. The index gets its name before, and both have reached the disk by then; an index without data
is what a kill left behind (`remove_unfinished`). A name is used once: a second attempt has a name of its own.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from configs.errors import StorageError
from configs.files import TEMP_PREFIX, storage_errors

SCHEMA = 1
_HEAD = struct.Struct("<II")
_MAGIC = b"DBXBLK1\n"
_SUM = struct.Struct("<I")
#: A record longer than this is none of ours (a picture with its labels).
MAX_RECORD_BYTES = 64 * 2**20
#: An index larger than this is none of ours: 100,000 partitions and as many map ids are 3 MiB.
MAX_INDEX_BYTES = 16 * 2**20

#: (map id, attempt)
MapAttempt = tuple[int, int]


# --- blocks -------------------------------------------------------------------------------------------------------------


def framed(record: bytes) -> bytes:
    """A record as it lies in a block. ValueError: it is too long."""
    if len(record) > MAX_RECORD_BYTES:
        raise ValueError(f"a record of {len(record)} bytes, at most {MAX_RECORD_BYTES} are allowed")
    return _HEAD.pack(len(record), zlib.crc32(record)) + record


def records_of(block: bytes) -> Iterator[bytes]:
    """The records of a block, or of several one behind the other. ValueError for anything else, at the first that is wrong."""
    view, at = memoryview(block), 0
    while at < len(view):
        if len(view) - at < _HEAD.size:
            raise ValueError(f"the block ends within a record's head, at byte {at}")
        length, crc = _HEAD.unpack_from(view, at)
        at += _HEAD.size
        if length > MAX_RECORD_BYTES or length > len(view) - at:
            raise ValueError(f"the block ends within a record of {length} bytes, at byte {at}")
        record = bytes(view[at : at + length])
        if zlib.crc32(record) != crc:
            raise ValueError(f"the record at byte {at} has another checksum than it says")
        yield record
        at += length


def concatenates(encode: Callable[[Sequence[bytes]], bytes], decode: Callable[[bytes], Sequence[bytes]]) -> bool:
    """Whether a block format survives merging: two blocks one behind the other hold the records of both (card section 12)."""
    first, second = [b"one", b"", b"two" * 50], [b"three"]
    try:
        return list(decode(encode(first) + encode(second))) == first + second
    except Exception:  # whatever a foreign decoder raises means no
        return False


# --- the disk -----------------------------------------------------------------------------------------------------------


class Disk:
    """What block files and merges ask of a disk, one method per system call, so that tests can fail or kill any of them."""

    def open_read(self, path: Path) -> int:
        return os.open(path, os.O_RDONLY)

    def open_write(self, path: Path) -> int:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)

    def read(self, fd: int, size_bytes: int, at: int) -> bytes:
        """Up to `size_bytes`; fewer only at the end."""
        data = os.pread(fd, size_bytes, at)
        while data and len(data) < size_bytes and (more := os.pread(fd, size_bytes - len(data), at + len(data))):
            data += more
        return data

    def soon(self, fd: int, at: int, size_bytes: int) -> None:
        """This stretch is read next: the system may fetch it meanwhile."""
        os.posix_fadvise(fd, at, size_bytes, os.POSIX_FADV_WILLNEED)

    def scattered(self, fd: int) -> None:
        """What is read of this file is one block of many: reading ahead would fetch other reducers' blocks."""
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)

    def write(self, fd: int, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]

    def sync(self, fd: int) -> None:
        os.fsync(fd)

    def close(self, fd: int) -> None:
        os.close(fd)

    def rename(self, source: Path, target: Path) -> None:
        os.replace(source, target)

    def sync_folder(self, folder: Path) -> None:
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def unlink(self, path: Path) -> None:
        path.unlink(missing_ok=True)


DISK = Disk()


# --- index --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class BlockIndex:
    """offsets: R + 1, bytes, block p is [offsets[p], offsets[p + 1]); crcs: R, CRC-32 of each block; covers: the map outputs in it,
    rising."""

    offsets: tuple[int, ...]
    crcs: tuple[int, ...]
    covers: tuple[MapAttempt, ...]

    def __post_init__(self) -> None:
        rising = all(a <= b for a, b in zip(self.offsets, self.offsets[1:], strict=False))
        if not self.offsets or self.offsets[0] != 0 or not rising or len(self.crcs) != len(self.offsets) - 1:
            raise ValueError("the offsets of a block file begin at 0, rise, and are one more than its blocks")
        if list(self.covers) != sorted(set(self.covers)) or len({id for id, _ in self.covers}) < len(self.covers):
            raise ValueError(f"a block file holds every map output once, got {self.covers[:20]}")

    @property
    def partitions(self) -> int:
        """R"""
        return len(self.crcs)

    @property
    def size_bytes(self) -> int:
        return self.offsets[-1]

    def block(self, partition: int) -> tuple[int, int]:
        """(offset, size) in bytes of a reducer's block."""
        begin, end = self.offsets[partition : partition + 2]
        return begin, end - begin

    def encode(self) -> bytes:
        body = {"schema": SCHEMA, "offsets": self.offsets, "crcs": self.crcs, "covers": self.covers}
        text = json.dumps(body, separators=(",", ":")).encode()
        return _MAGIC + _SUM.pack(zlib.crc32(text)) + text

    @staticmethod
    def decode(data: bytes) -> BlockIndex:
        """ValueError for anything but a whole index."""
        begin = len(_MAGIC) + _SUM.size
        if (
            data[: len(_MAGIC)] != _MAGIC
            or len(data) < begin
            or zlib.crc32(data[begin:]) != _SUM.unpack_from(data, len(_MAGIC))[0]
        ):
            raise ValueError("not the index of a block file, or a damaged one")
        try:
            body = json.loads(data[begin:])
            if body["schema"] != SCHEMA:
                raise ValueError(f"a block file of schema {body['schema']}, known is {SCHEMA}")
            covers = tuple((int(id), int(attempt)) for id, attempt in body["covers"])
            return BlockIndex(offsets=tuple(map(int, body["offsets"])), crcs=tuple(map(int, body["crcs"])), covers=covers)
        except (KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"not the index of a block file: {error}") from error


def data_path(folder: Path, name: str) -> Path:
    return folder / f"{name}.data"


def index_path(folder: Path, name: str) -> Path:
    return folder / f"{name}.index"


# --- writing ------------------------------------------------------------------------------------------------------------


class BlockWriter:
    """Writes one block file: `add` what belongs to the present block, `end_block` R times, then `commit`; `abandon` on any error.
    buffer_bytes: bytes that are written at once. Raises OSError."""

    def __init__(self, folder: Path, name: str, *, buffer_bytes: int = 2**20, disk: Disk = DISK) -> None:
        self._folder, self._name, self._disk = folder, name, disk
        self._parts = [folder / f"{TEMP_PREFIX}{os.getpid()}-{name}.{kind}" for kind in ("data", "index")]
        self._buffer, self._buffer_bytes = bytearray(), buffer_bytes
        self._offsets: list[int] = [0]
        self._crcs: list[int] = []
        self._size, self._crc = 0, 0
        self._fd: int | None = disk.open_write(self._parts[0])

    def add(self, data: bytes | memoryview) -> None:
        self._crc = zlib.crc32(data, self._crc)
        self._size += len(data)
        self._buffer += data
        if len(self._buffer) >= self._buffer_bytes:
            self._flush()

    def end_block(self) -> None:
        self._offsets.append(self._size)
        self._crcs.append(self._crc)
        self._crc = 0

    def commit(self, covers: Iterable[MapAttempt]) -> BlockIndex:
        """The file has its name, and all of it has reached the disk."""
        index = BlockIndex(offsets=tuple(self._offsets), crcs=tuple(self._crcs), covers=tuple(sorted(covers)))
        assert self._fd is not None
        self._flush()
        self._disk.sync(self._fd)
        self._close()
        self._write_index(index)
        self._disk.rename(self._parts[1], index_path(self._folder, self._name))
        self._disk.sync_folder(self._folder)  # the index is durable before anybody can see the data
        self._disk.rename(self._parts[0], data_path(self._folder, self._name))
        self._disk.sync_folder(self._folder)
        return index

    def abandon(self) -> None:
        """Removes what is unfinished, as far as the disk lets it."""
        with suppress(OSError):
            self._close()
        for part in self._parts:
            with suppress(OSError):
                self._disk.unlink(part)

    def _write_index(self, index: BlockIndex) -> None:
        fd = self._disk.open_write(self._parts[1])
        try:
            self._disk.write(fd, index.encode())
            self._disk.sync(fd)
        finally:
            self._disk.close(fd)

    def _flush(self) -> None:
        assert self._fd is not None
        if self._buffer:
            self._disk.write(self._fd, self._buffer)
            self._buffer.clear()

    def _close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            self._disk.close(fd)


def write_block_file(
    folder: Path, name: str, blocks: Iterable[Iterable[bytes]], *, covers: Iterable[MapAttempt], disk: Disk = DISK
) -> BlockIndex:
    """A block file from its blocks' records, whole or not at all. Raises StorageError."""
    with storage_errors(data_path(folder, name)):
        folder.mkdir(parents=True, exist_ok=True)
        writer = BlockWriter(folder, name, disk=disk)
        try:
            for block in blocks:
                for record in block:
                    writer.add(framed(record))
                writer.end_block()
            return writer.commit(covers)
        except BaseException:
            writer.abandon()
            raise


# --- reading ------------------------------------------------------------------------------------------------------------


def read_index(folder: Path, name: str, *, disk: Disk = DISK) -> BlockIndex:
    """Raises StorageError: 'missing', 'corrupt' (also when the data is not as long as the index says)."""
    if not data_path(folder, name).is_file():
        raise StorageError(
            f"there is no block file {name}", subject=name, code="missing", remedy="it is made anew from what it held"
        )
    try:
        with storage_errors(index_path(folder, name)):
            data = _whole(index_path(folder, name), disk)
            size_bytes = data_path(folder, name).stat().st_size
        index = BlockIndex.decode(data)
    except ValueError as error:
        raise damaged(name, str(error)) from error
    if index.size_bytes != size_bytes:
        raise damaged(name, f"its data has {size_bytes} bytes, its index says {index.size_bytes}")
    return index


def read_block(folder: Path, name: str, index: BlockIndex, partition: int, *, disk: Disk = DISK) -> bytes:
    """One reducer's block, checked; one request to the disk. Raises StorageError: 'missing', 'corrupt'."""
    at, size_bytes = index.block(partition)
    if not size_bytes:
        return b""
    try:
        with storage_errors(data_path(folder, name)):
            fd = disk.open_read(data_path(folder, name))
            try:
                disk.scattered(fd)
                block = disk.read(fd, size_bytes, at)
            finally:
                disk.close(fd)
    except StorageError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise StorageError(f"there is no block file {name}", subject=name, code="missing", remedy=error.remedy) from error
        raise
    if zlib.crc32(block) != index.crcs[partition]:
        raise damaged(name, f"block {partition} has another checksum than its index says")
    return block


def remove_block_file(folder: Path, name: str, *, disk: Disk = DISK) -> None:
    """The data first: without it the file is not there. Raises StorageError."""
    with storage_errors(data_path(folder, name)):
        disk.unlink(data_path(folder, name))
        disk.unlink(index_path(folder, name))


def names_in(folder: Path) -> list[str]:
    """Block files of a folder, in order."""
    with storage_errors(folder):
        return sorted(
            path.name.removesuffix(".data") for path in folder.glob("*.data") if not path.name.startswith(TEMP_PREFIX)
        )


def remove_unfinished(folder: Path) -> int:
    """What killed writers left behind; how many files that was. For when nobody writes there. Raises StorageError."""
    whole = set(names_in(folder))
    with storage_errors(folder):
        left = [path for path in folder.iterdir() if path.name.startswith(TEMP_PREFIX)]
        left += [path for path in folder.glob("*.index") if path.name.removesuffix(".index") not in whole]
        for path in dict.fromkeys(left):
            path.unlink(missing_ok=True)
    return len(set(left))


def damaged(name: str, why: str) -> StorageError:
    return StorageError(
        f"block file {name} is damaged: {why}", subject=name, code="corrupt", remedy="it is made anew from what it held"
    )


def _whole(path: Path, disk: Disk) -> bytes:
    fd = disk.open_read(path)
    try:
        data = disk.read(fd, MAX_INDEX_BYTES + 1, 0)
    finally:
        disk.close(fd)
    if len(data) > MAX_INDEX_BYTES:
        raise ValueError(f"an index of more than {MAX_INDEX_BYTES} bytes")
    return data
