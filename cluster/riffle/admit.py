"""Who may merge when, and where: memory, queue, disk quota, choice of a merger (Riffle, card sections 4, 7 and 12). All pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

MIB = 2**20
#: Smallest buffer that still makes sequential reads of it; below, a merge is many small reads again.
LEAST_BUFFER_BYTES = 64 * 1024


@dataclass(frozen=True, kw_only=True)
class Buffers:
    """Of one merge, in bytes. read: per source (text: 4 MB); write: of its output (text: 20 MB)."""

    read: int = 4 * MIB
    write: int = 20 * MIB

    def __post_init__(self) -> None:
        if self.read < 1 or self.write < 1:
            raise ValueError(f"buffers must hold at least a byte, got {self}")


def need_bytes(file_bytes: Sequence[int], buffers: Buffers) -> int:
    """Memory of a merge: fan-in * read buffer + write buffer; a file smaller than its buffer needs its size only."""
    return sum(min(buffers.read, size) for size in file_bytes) + min(buffers.write, sum(file_bytes))


def fitted(file_bytes: Sequence[int], buffers: Buffers, limit_bytes: int) -> Buffers:
    """The buffers, made smaller alike where a merge would not fit the whole limit: then it runs alone."""
    need = need_bytes(file_bytes, buffers)
    if need <= limit_bytes:
        return buffers
    least, part = LEAST_BUFFER_BYTES, limit_bytes / (len(file_bytes) * buffers.read + buffers.write)
    return Buffers(read=max(least, int(buffers.read * part)), write=max(least, int(buffers.write * part)))


def admitted(queue_bytes: Sequence[int], running_bytes: Sequence[int], limit_bytes: int) -> int:
    """How many from the head of the queue may start now: first in, first out, nobody overtakes. One that needs more than the whole limit
    starts when nobody else runs (`fitted`)."""
    used, count = sum(running_bytes), 0
    for need in queue_bytes:
        alone = used == 0 and need > limit_bytes
        if not alone and used + need > limit_bytes:
            break
        used, count = used + need, count + 1
    return count


@dataclass(frozen=True, kw_only=True)
class Quota:
    """Merging keeps every byte twice: at most `most_bytes` of merged files, and `spare_bytes` stay free on the disk."""

    most_bytes: int
    spare_bytes: int = 512 * MIB

    def allows(self, size_bytes: int, *, used_bytes: int, free_bytes: int) -> bool:
        """Whether a merged file of that size may be written; otherwise its originals are read."""
        return used_bytes + size_bytes <= self.most_bytes and free_bytes - size_bytes >= self.spare_bytes


def pick_merger(pending: Mapping[str, int], rng: np.random.Generator, *, choices: int = 2) -> str:
    """The power of two choices: `choices` mergers at random are asked for their pending work, and the shorter queue gets it; a tie goes
    to the first one drawn. pending: merger -> waiting and running requests. ValueError: there is no merger."""
    if not pending or choices < 1:
        raise ValueError("no merger to choose from")
    names = sorted(pending)
    drawn = rng.choice(len(names), size=min(choices, len(names)), replace=False)
    return min((names[i] for i in drawn), key=lambda name: pending[name])
