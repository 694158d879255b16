"""A node's merger: shared by all jobs, bounded in memory and disk, first in, first out (Riffle, card sections 2, 4 and 12).

It decides nothing itself: `cluster.riffle.admit` says who starts. A request that the quota does not allow fails at once, and its
originals are read. Requests of a killed merger are gone; whoever asked has a time-out, and the originals.
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cluster.riffle.admit import MIB, Buffers, Quota, admitted, fitted, need_bytes
from cluster.riffle.merge import Source, merge_files
from configs.errors import DriftboxError, JobCancelled, StorageError
from configs.files import storage_errors
from streams.block_file import DISK, BlockIndex, Disk, data_path, names_in, remove_block_file

log = logging.getLogger("driftbox.fleet")

#: Merged files are named so in a job's folder.
MERGED = "merge-"


@dataclass(frozen=True, kw_only=True)
class MergeWork:
    """One request. folder: of the job on this node; done: called once, from the merger's thread, with index or error."""

    folder: Path
    sources: tuple[Source, ...]
    out: str
    done: Callable[[BlockIndex | None, DriftboxError | None], None]


@dataclass(kw_only=True)
class _Job:
    work: MergeWork
    sizes: tuple[int, ...]
    need: int = 0
    cancel: threading.Event = field(default_factory=threading.Event)


class Merger:
    """memory_bytes: of all merges that run together; quota: None: as much as the disk has. Thread-safe; `close` ends it."""

    def __init__(
        self, *, memory_bytes: int = 512 * MIB, buffers: Buffers | None = None, quota: Quota | None = None, threads: int = 4,
        disk: Disk = DISK,
    ) -> None:  # fmt: skip
        self._memory, self._buffers, self._quota, self._disk = memory_bytes, buffers or Buffers(), quota, disk
        self._queue: deque[_Job] = deque()
        self._running: list[_Job] = []
        self._used_bytes = 0
        self._change = threading.Condition()
        self._closed = False
        self._threads = [threading.Thread(target=self._work, name=f"riffle-merger-{n}", daemon=True) for n in range(threads)]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Merger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def buffers(self) -> Buffers:
        """Of a merge that fits."""
        return self._buffers

    @property
    def pending(self) -> int:
        """Requests that wait or run: what the power of two choices asks for."""
        with self._change:
            return len(self._queue) + len(self._running)

    def submit(self, work: MergeWork) -> None:
        """Queues it. `work.done` hears of everything that goes wrong."""
        sizes = tuple(_size(work.folder, source.name) for source in work.sources)
        with self._change:
            closed = self._closed
            if not closed:
                self._queue.append(_Job(work=work, sizes=sizes, need=need_bytes(sizes, self._buffers)))
                self._change.notify_all()
        if closed:
            self._tell(work, None, _cancelled(work.out))

    def cancel(self, folder: Path, out: str) -> None:
        """Ends it at its next block, or takes it out of the queue; a file that it has finished goes."""
        with self._change:
            for job in [*self._queue, *self._running]:
                if (job.work.folder, job.work.out) == (folder, out):
                    job.cancel.set()
            self._change.notify_all()
        with _tolerated(out):
            self._remove(folder, out)

    def forget(self, folder: Path) -> None:
        """The job is over: nothing of it is merged any more, and its merged files are gone."""
        with self._change:
            for job in [*self._queue, *self._running]:
                if job.work.folder == folder:
                    job.cancel.set()
            self._change.notify_all()
            self._change.wait_for(lambda: all(j.work.folder != folder for j in [*self._queue, *self._running]))
        for name in names_in(folder):
            if name.startswith(MERGED):
                self._remove(folder, name)

    def close(self) -> None:
        """What waits or runs fails as cancelled."""
        with self._change:
            self._closed = True
            for job in [*self._queue, *self._running]:
                job.cancel.set()
            self._change.notify_all()
        for thread in self._threads:
            thread.join()

    # --- inside ---------------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while (job := self._next()) is not None:
            index, error = self._merged(job)
            with self._change:
                self._running.remove(job)
                self._change.notify_all()
            self._tell(job.work, index, error)

    def _tell(self, work: MergeWork, index: BlockIndex | None, error: DriftboxError | None) -> None:
        try:
            work.done(index, error)
        except Exception:  # one job's driver must not cost the others their merger
            log.exception("the job of merge %s could not take its answer", work.out)

    def _next(self) -> _Job | None:
        with self._change:
            self._change.wait_for(lambda: self._closed or self._startable())
            if not self._queue:
                return None
            job = self._queue.popleft()
            self._running.append(job)
            return job

    def _startable(self) -> bool:
        if not self._queue:
            return False
        head = self._queue[0]
        return head.cancel.is_set() or admitted([head.need], [j.need for j in self._running], self._memory) == 1

    def _merged(self, job: _Job) -> tuple[BlockIndex | None, DriftboxError | None]:
        work = job.work
        try:
            if job.cancel.is_set():
                raise _cancelled(work.out)
            with self._room(work, sum(job.sizes)) as room:
                buffers = fitted(job.sizes, self._buffers, self._memory)
                index = merge_files(
                    work.folder, work.sources, work.out, buffers=buffers, disk=self._disk, cancelled=job.cancel.is_set
                )
                room.kept = True
            return index, None
        except DriftboxError as error:
            return None, error
        except Exception as error:  # a request must get its answer, or its job waits for ever
            log.exception("merge %s", work.out)
            return None, DriftboxError(
                f"the merge {work.out} failed: {error}", subject=work.out, remedy="its originals are read"
            )

    def _room(self, work: MergeWork, size_bytes: int) -> _Room:
        with self._change:
            if self._quota is not None:
                with storage_errors(work.folder):
                    free = shutil.disk_usage(work.folder).free
                if not self._quota.allows(size_bytes, used_bytes=self._used_bytes, free_bytes=free):
                    raise StorageError(
                        f"no room to merge {size_bytes} bytes into {work.out}", subject=work.out, code="full",
                        remedy="the originals are read; raise the quota of merged files if that is too slow",
                    )  # fmt: skip
            self._used_bytes += size_bytes
        return _Room(self, size_bytes)

    def give_back(self, size_bytes: int) -> None:
        with self._change:
            self._used_bytes = max(0, self._used_bytes - size_bytes)

    def _remove(self, folder: Path, name: str) -> None:
        size_bytes = _size(folder, name)
        remove_block_file(folder, name, disk=self._disk)
        self.give_back(size_bytes)


class _Room:
    """Bytes of the quota, taken before they are written; given back unless the file stays."""

    def __init__(self, merger: Merger, size_bytes: int) -> None:
        self._merger, self._size_bytes, self.kept = merger, size_bytes, False

    def __enter__(self) -> _Room:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.kept:
            self._merger.give_back(self._size_bytes)


class _tolerated:
    """A merged file that cannot be removed costs room, nothing else; the job's end tries again."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, StorageError):
            log.warning("merged file %s stays: %s", self._name, error)
            return True
        return False


def _cancelled(out: str) -> JobCancelled:
    return JobCancelled(f"the merge {out} was cancelled", subject=out, remedy="its originals are read")


def _size(folder: Path, name: str) -> int:
    try:
        return data_path(folder, name).stat().st_size
    except OSError:
        return 0  # merging will say what is wrong with it


def sources_of(covers: Sequence[tuple[int, int]]) -> tuple[Source, ...]:
    """The originals of map outputs, by the names that `original_name` gives them."""
    return tuple(Source(name=original_name(id, attempt), covers=((id, attempt),)) for id, attempt in covers)


def original_name(map_id: int, attempt: int) -> str:
    return f"map-{map_id:06d}-{attempt}"


def merged_name(request: int) -> str:
    return f"{MERGED}{request:06d}"
