"""How fast a disk is, measured where the files will lie: what a request costs by itself, and what a byte costs in a long one.

Read past the page cache (O_DIRECT) where the file system can; elsewhere pages are dropped before (posix_fadvise), which a system may
ignore: `Measured.direct` says which it was.
"""

from __future__ import annotations

import mmap
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cluster.riffle.cost import DiskSpeed
from configs.files import storage_errors

MIB = 2**20
_PAGE = 4096
_LONG_BYTES = 4 * MIB


@dataclass(frozen=True, kw_only=True)
class Measured:
    """write_bytes_per_s: of a long write that reaches the disk; direct: read past the page cache."""

    speed: DiskSpeed
    write_bytes_per_s: float
    direct: bool


def measure(
    folder: Path, *, size_mib: int = 256, requests: int = 200, seed: int = 0, clock: Callable[[], float] = time.perf_counter
) -> Measured:
    """Writes and reads a file of that size in `folder`, a second or two. seek_s: what the median random request of a page takes.
    Raises StorageError."""
    with storage_errors(folder), tempfile.NamedTemporaryFile(dir=folder, prefix=".tmp-speed-") as file:
        piece = os.urandom(_LONG_BYTES)
        began_s = clock()
        for _ in range(size_mib * MIB // _LONG_BYTES):
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
        write_s = clock() - began_s
        fd, direct = _opened(file.name)
        try:
            return _read(fd, direct, size_mib * MIB, requests, seed, write_s, clock)
        finally:
            os.close(fd)


def _opened(name: str) -> tuple[int, bool]:
    try:
        return os.open(name, os.O_RDONLY | os.O_DIRECT), True
    except OSError:
        fd = os.open(name, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        return fd, False


def _read(
    fd: int, direct: bool, size_bytes: int, requests: int, seed: int, write_s: float, clock: Callable[[], float]
) -> Measured:
    rng = np.random.default_rng(seed)
    page, long_buffer = mmap.mmap(-1, _PAGE), mmap.mmap(-1, _LONG_BYTES)
    took_s = []
    for at in rng.choice(size_bytes // _PAGE, size=min(requests, size_bytes // _PAGE), replace=False):
        began_s = clock()
        os.preadv(fd, [page], int(at) * _PAGE)
        took_s.append(clock() - began_s)
    began_s = clock()
    for at in range(0, size_bytes - _LONG_BYTES + 1, _LONG_BYTES):
        os.preadv(fd, [long_buffer], at)
    bytes_per_s = (size_bytes // _LONG_BYTES * _LONG_BYTES) / max(1e-9, clock() - began_s)
    return Measured(
        speed=DiskSpeed(seek_s=statistics.median(took_s), bytes_per_s=bytes_per_s),
        write_bytes_per_s=size_bytes / max(1e-9, write_s), direct=direct,
    )  # fmt: skip
