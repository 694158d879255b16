"""The event journal under `events/`: append-only lines in numbered segments, read by `driftbox replay`.

A segment begins with a header line (the engine's checkpoint, so that old segments can be dropped) and holds the events after
it without a hole: when a line cannot be written, the segment is closed for good and the next `start_segment` begins a new one.
The journal knows nothing of what its lines mean.

Every line is handed to the operating system before `append` returns (a killed process loses nothing); it is on the disk after
`append(durable=True)`, or at the latest `fsync_every_s` later, when the next line is written.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from configs.errors import StorageError
from configs.files import Write, atomic_write, storage_errors, write_all
from edge.clock import Clock, SystemClock

_SEGMENT = re.compile(r"^(\d{8})\.jsonl$")


@dataclass(frozen=True, kw_only=True)
class Segment:
    """lines: complete lines, header first. torn: the last line was incomplete and has been left out."""

    path: Path
    lines: tuple[str, ...]
    torn: bool


class Journal:
    """The writer; one per data folder (its lock sees to that). Thread-safe.

    max_bytes: when a segment begins, the oldest are removed while all together are larger; the current one never is.
    segment_bytes: `wants_rotation` becomes true above this size.
    """

    def __init__(
        self,
        root: Path,
        *,
        max_bytes: int = 512 * 2**20,
        segment_bytes: int = 16 * 2**20,
        fsync_every_s: float = 1.0,
        clock: Clock | None = None,
        write: Write = os.write,
    ) -> None:
        self._root = root
        self._max_bytes = max_bytes
        self._segment_bytes = segment_bytes
        self._fsync_every_s = fsync_every_s
        self._clock: Clock = clock or SystemClock()
        self._write = write
        self._lock = threading.Lock()
        self._fd: int | None = None
        self._size_bytes = 0
        self._synced_s = self._clock.monotonic_s()
        self.path: Path | None = None  # the current segment
        with storage_errors(root):
            root.mkdir(parents=True, exist_ok=True)

    @property
    def wants_rotation(self) -> bool:
        """True when `start_segment` should be called: the segment is large, was closed by an error, or there is none."""
        return self._fd is None or self._size_bytes >= self._segment_bytes

    def start_segment(self, header_line: str) -> Path:
        """Closes the current segment and begins one with `header_line`; drops old ones. Raises StorageError."""
        data = _encode(header_line)
        with self._lock:
            self._close()
            path = self._root / f"{_next_number(self._root):08d}.jsonl"
            atomic_write(path, data, write=self._write)
            with storage_errors(path):
                self._fd = os.open(path, os.O_WRONLY | os.O_APPEND)
            self.path, self._size_bytes = path, len(data)
            self._synced_s = self._clock.monotonic_s()
            self._drop_old()
            return path

    def append(self, line: str, *, durable: bool = False) -> None:
        """Adds one line (without its line end). Raises StorageError; ValueError for a line with a line end inside;
        RuntimeError before the first `start_segment`. After a StorageError the segment is closed (see the module)."""
        data = _encode(line)
        with self._lock:
            if self.path is None:
                raise RuntimeError("Journal.append before start_segment")
            if self._fd is None:
                raise StorageError(
                    f"journal segment {self.path.name} was closed after a disk error",
                    subject=str(self.path),
                    code="full",
                    remedy="free some space; the journal goes on with the next segment",
                )
            try:
                with storage_errors(self.path):
                    write_all(self._fd, data, self._write)
                    self._size_bytes += len(data)
                    self._sync(durable)
            except StorageError:
                self._cut_and_close()
                raise

    def close(self) -> None:
        with self._lock, suppress(OSError):
            if self._fd is not None:
                os.fsync(self._fd)
            self._close()

    def _sync(self, durable: bool) -> None:
        assert self._fd is not None
        now_s = self._clock.monotonic_s()
        if durable or now_s - self._synced_s >= self._fsync_every_s:
            os.fsync(self._fd)
            self._synced_s = now_s

    def _cut_and_close(self) -> None:
        """Half a line may have been written: cut it off, so that the segment ends with its last whole event."""
        if self._fd is not None:
            with suppress(OSError):
                os.ftruncate(self._fd, self._size_bytes)
        self._close()

    def _close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            with suppress(OSError):
                os.close(fd)

    def _drop_old(self) -> None:
        segments = [(p, p.stat().st_size) for p in _segments(self._root)]
        total_bytes = sum(size for _, size in segments)
        for path, size in segments:
            if total_bytes <= self._max_bytes or path == self.path:
                return
            with storage_errors(path):
                path.unlink(missing_ok=True)
            total_bytes -= size


def journal_of(data_dir: Path) -> list[Segment]:
    """All segments of a box's data folder, oldest first. Raises StorageError when there are none or one cannot be read."""
    segments = list(read_segments(data_dir / "events"))
    if not segments:
        raise StorageError(
            f"no journal under {data_dir}",
            subject=str(data_dir),
            code="corrupt",
            remedy="name the data folder of a box that ran",
        )
    return segments


def read_segments(root: Path) -> Iterator[Segment]:
    """All segments, oldest first. A last line without its line end, or that is not UTF-8 text, is left out and reported.
    Raises StorageError 'corrupt' for bytes that are no text before the last line."""
    for path in _segments(root):
        with storage_errors(path):
            data = path.read_bytes()
        *whole, rest = data.split(b"\n")
        lines, torn = _decode(whole, path)
        yield Segment(path=path, lines=lines, torn=torn or bool(rest))


def _decode(whole: list[bytes], path: Path) -> tuple[tuple[str, ...], bool]:
    lines: list[str] = []
    for index, raw in enumerate(whole):
        # After a power cut a file may end in zero bytes: its length reached the disk, its content did not.
        if b"\x00" in raw or not _is_text(raw):
            if index == len(whole) - 1:
                return tuple(lines), True
            raise StorageError(
                f"{path}: line {index + 1} is damaged",
                subject=str(path),
                code="corrupt",
                remedy="move the segment away; the others can be read",
            )
        lines.append(raw.decode("utf-8"))
    return tuple(lines), False


def _is_text(raw: bytes) -> bool:
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _encode(line: str) -> bytes:
    if "\n" in line or "\r" in line or "\x00" in line:
        raise ValueError("a journal line must not hold a line end")
    return line.encode("utf-8") + b"\n"


def _segments(root: Path) -> list[Path]:
    with storage_errors(root):
        return sorted(p for p in root.iterdir() if _SEGMENT.match(p.name)) if root.is_dir() else []


def _next_number(root: Path) -> int:
    return max((int(p.stem) for p in _segments(root)), default=0) + 1
