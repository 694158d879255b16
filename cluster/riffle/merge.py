"""Merges block files into one, block by block, as they lie on disk (Riffle, card section 4).

Partition outer loop, files inner loop: every source is read front to back once and the output is written once, both in pieces of the
buffers' size, so the disk sees large sequential requests only. What is next of a source is announced to the system, which reads it
meanwhile. Nothing is decoded; each source block's checksum is compared on the way, so that damage is found here, by name, and never
copied. The originals stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from cluster.riffle.admit import Buffers
from configs.errors import JobCancelled, StorageError, UsageError
from configs.files import storage_errors
from streams.block_file import (
    DISK,
    BlockIndex,
    BlockWriter,
    Disk,
    MapAttempt,
    damaged,
    data_path,
    read_index,
)


@dataclass(frozen=True, kw_only=True)
class Source:
    """An original: its name, and the map output that it has to be."""

    name: str
    covers: tuple[MapAttempt, ...]


def merge_files(
    folder: Path, sources: Sequence[Source], out: str, *, buffers: Buffers | None = None, disk: Disk = DISK,
    cancelled: Callable[[], bool] = lambda: False,
) -> BlockIndex:  # fmt: skip
    """Writes block file `out` from `sources`, in their order, whole or not at all; when it is there already and holds the same, nothing
    is done. cancelled: asked between blocks.

    Raises StorageError (subject: the source's name where one is 'missing' or 'corrupt'), JobCancelled, UsageError for sources that do
    not fit each other."""
    buffers = buffers or Buffers()
    indexes = [read_index(folder, source.name, disk=disk) for source in sources]
    _check(sources, indexes, out)
    covers = sorted(cover for source in sources for cover in source.covers)
    if data_path(folder, out).is_file():
        there = read_index(folder, out, disk=disk)
        if list(there.covers) == covers:
            return there
        raise UsageError(
            f"{out} is there and holds other map outputs", subject=out, remedy="give every merge a name of its own"
        )
    with storage_errors(data_path(folder, out)):
        writer = BlockWriter(folder, out, buffer_bytes=buffers.write, disk=disk)
        try:
            with ExitStack() as opened:
                readers = [
                    opened.enter_context(_Reader(folder, s.name, i, buffers.read, disk))
                    for s, i in zip(sources, indexes, strict=True)
                ]
                for partition in range(indexes[0].partitions):
                    if cancelled():
                        raise JobCancelled(f"the merge {out} was cancelled", subject=out, remedy="its originals are read")
                    for reader in readers:
                        reader.copy(partition, writer.add)
                    writer.end_block()
            return writer.commit(covers)
        except BaseException:
            writer.abandon()
            raise


def _check(sources: Sequence[Source], indexes: Sequence[BlockIndex], out: str) -> None:
    if len(sources) < 2:
        raise UsageError(f"the merge {out} has {len(sources)} sources", subject=out, remedy="merge two files or more")
    covers = [cover for source in sources for cover in source.covers]
    if len({id for id, _ in covers}) < len(covers):
        raise UsageError(f"the merge {out} names a map output twice", subject=out, remedy="each takes part once")
    for source, index in zip(sources, indexes, strict=True):
        if index.covers != source.covers:
            raise damaged(source.name, f"it holds {index.covers}, not {source.covers}")
        if index.partitions != indexes[0].partitions:
            raise damaged(source.name, f"it has {index.partitions} blocks, the others have {indexes[0].partitions}")


class _Reader:
    """One source, read front to back."""

    def __init__(self, folder: Path, name: str, index: BlockIndex, buffer_bytes: int, disk: Disk) -> None:
        self._name, self._index, self._disk = name, index, disk
        self._piece = max(1, min(buffer_bytes, index.size_bytes))
        self._fd = disk.open_read(data_path(folder, name))
        self._buffer, self._used, self._at = memoryview(b""), 0, 0  # bytes read, how many are taken, offset of the next read
        self._announce()

    def __enter__(self) -> _Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._disk.close(self._fd)

    def copy(self, partition: int, add: Callable[[memoryview], None]) -> None:
        """Hands one block over, in pieces. Raises StorageError 'corrupt'."""
        crc = 0
        for piece in self._take(self._index.block(partition)[1]):
            crc = crc32(piece, crc)
            add(piece)
        if crc != self._index.crcs[partition]:
            raise damaged(self._name, f"block {partition} has another checksum than its index says")

    def _take(self, size_bytes: int) -> Iterator[memoryview]:
        while size_bytes:
            if self._used == len(self._buffer):
                self._fill()
            piece = self._buffer[self._used : self._used + size_bytes]
            self._used += len(piece)
            size_bytes -= len(piece)
            yield piece

    def _fill(self) -> None:
        self._buffer = memoryview(self._disk.read(self._fd, self._piece, self._at))
        if not self._buffer:
            raise damaged(self._name, "it became shorter while it was read")
        self._used, self._at = 0, self._at + len(self._buffer)
        self._announce()

    def _announce(self) -> None:
        left = self._index.size_bytes - self._at
        if left > 0:
            self._disk.soon(self._fd, self._at, min(self._piece, left))


def blamed(error: StorageError, sources: Sequence[Source]) -> Source | None:
    """The source that a failed merge found missing or damaged, None: it was something else (a full disk, say)."""
    if error.code not in ("missing", "corrupt"):
        return None
    return next((source for source in sources if source.name == error.subject), None)
