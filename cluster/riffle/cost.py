"""What merging costs and saves, and the gate: where it does not pay, nothing is merged (Riffle, card section 9).

M map files, R reducers, T bytes in all, b = T / (M R) bytes per block, N files per merge, s bytes of the merger's buffers, t seconds of
a seek, W bytes per second. All pure.

The text counts requests only; the border by time, and the gate that asks both, are ours: on a fast disk a request costs little, and
reading and writing everything once more costs more than it saves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, kw_only=True)
class DiskSpeed:
    """As measured (`cluster.riffle.speed`). seek_s: seconds of a request however small (t); bytes_per_s: of a long one (W)."""

    seek_s: float
    bytes_per_s: float

    def __post_init__(self) -> None:
        if not (self.seek_s >= 0 and 0 < self.bytes_per_s < math.inf):
            raise ValueError(f"a disk has seek_s of at least 0 and bytes_per_s above 0, got {self}")


@dataclass(frozen=True, kw_only=True)
class Shuffle:
    """maps: M; reducers: R; total_bytes: T."""

    maps: int
    reducers: int
    total_bytes: float

    def __post_init__(self) -> None:
        if self.maps < 1 or self.reducers < 1 or self.total_bytes < 0:
            raise ValueError(f"a shuffle has at least one map and one reducer, got {self}")

    @property
    def block_bytes(self) -> float:
        """b"""
        return self.total_bytes / (self.maps * self.reducers)


def plain_requests(shuffle: Shuffle) -> int:
    """M * R"""
    return shuffle.maps * shuffle.reducers


def merge_requests(merged_bytes: float, buffer_bytes: float) -> float:
    """Reading and writing once more, in pieces of s."""
    return 2 * merged_bytes / buffer_bytes


def full_requests(shuffle: Shuffle, *, fan_in: int, buffer_bytes: float) -> float:
    """(M / N) R + 2 T / s"""
    return shuffle.maps / fan_in * shuffle.reducers + merge_requests(shuffle.total_bytes, buffer_bytes)


def best_effort_requests(shuffle: Shuffle, *, fan_in: int, buffer_bytes: float, merged_frac: float) -> float:
    """(p M / N + (1 - p) M) R + 2 p T / s. merged_frac: p."""
    files = merged_frac * shuffle.maps / fan_in + (1 - merged_frac) * shuffle.maps
    return files * shuffle.reducers + merge_requests(merged_frac * shuffle.total_bytes, buffer_bytes)


def exact_requests(*, reducers: int, offered_files: int, merged_bytes: float, buffer_bytes: float) -> float:
    """R * files offered + 2 * merged bytes / s"""
    return reducers * offered_files + merge_requests(merged_bytes, buffer_bytes)


def offered_files(files_per_node: Sequence[int], fan_in: int, *, left_overs: bool = False, across_nodes: bool = False) -> int:
    """Files that each reducer reads with fixed N: floor(m / N) + m mod N per node, with left_overs (they are merged too) ceil(m / N).
    across_nodes: disaggregated storage, any files may be merged together."""
    counts = [sum(files_per_node)] if across_nodes else list(files_per_node)
    return sum(m // fan_in + (min(1, m % fan_in) if left_overs else m % fan_in) for m in counts)


def border_by_requests(*, buffer_bytes: float, fan_in: int) -> float:
    """Block size in bytes below which merging lowers the number of requests: (s / 2)(1 - 1 / N)."""
    return buffer_bytes / 2 * (1 - 1 / fan_in)


def border_by_time(disk: DiskSpeed, *, fan_in: int) -> float:
    """Block size in bytes below which merging lowers the time on one disk: (t W / 2)(1 - 1 / N)."""
    return disk.seek_s * disk.bytes_per_s / 2 * (1 - 1 / fan_in)


def read_s(disk: DiskSpeed, *, requests: float, total_bytes: float) -> float:
    """Seconds of a disk that does so many requests for so many bytes."""
    return requests * disk.seek_s + total_bytes / disk.bytes_per_s


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether a shuffle's files are merged, and why (not), in words. limit_bytes: block size below which it pays here."""

    merge: bool
    why: str
    limit_bytes: float


#: A job with fewer map files than this many merges of N gains nothing worth a delay (card section 12).
MERGES_AT_LEAST = 2


def gate(
    shuffle: Shuffle, *, fan_in: int, buffer_bytes: float, disk: DiskSpeed | None, files_per_node: Sequence[int] = ()
) -> Verdict:
    """Merge only where it pays: b below both borders, and files enough. disk: None: not measured, only requests count.
    files_per_node: where only files of a node are merged; empty: all may be merged together. ValueError for fan_in below 2."""
    if fan_in < 2:
        raise ValueError(f"a merge takes at least 2 files, got {fan_in}")
    by_requests = border_by_requests(buffer_bytes=buffer_bytes, fan_in=fan_in)
    by_time = math.inf if disk is None else border_by_time(disk, fan_in=fan_in)
    limit = min(by_requests, by_time)
    files = max(files_per_node) if files_per_node else shuffle.maps
    if files < MERGES_AT_LEAST * fan_in:
        where = "on any node" if files_per_node else "in all"
        return Verdict(
            merge=False, why=f"{files} files {where} are fewer than {MERGES_AT_LEAST} merges of {fan_in}", limit_bytes=limit
        )
    what = "requests" if by_requests <= by_time else "time"
    size = f"blocks of {_size(shuffle.block_bytes)}"
    if shuffle.block_bytes < limit:
        return Verdict(
            merge=True, why=f"{size} are below {_size(limit)}, where merging begins to save {what}", limit_bytes=limit
        )
    return Verdict(
        merge=False, why=f"{size} are not below {_size(limit)}: merging would cost more {what} than it saves", limit_bytes=limit
    )


def _size(size_bytes: float) -> str:
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("KB", 10**3)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.3g} {unit}"
    return f"{size_bytes:.0f} B"


# --- the end of the map stage (best effort, card section 6) ---------------------------------------------------------------


def merges_needed(total: int, threshold: float, *, small: bool = True) -> int:
    """Completed merges, of `total`, with which the reduce stage may start: ceil(threshold * total). small: where that is all of them
    although the threshold is below 1, which happens with few merges, floor(threshold * total) instead (card section 12)."""
    if not 0 <= threshold <= 1:
        raise ValueError(f"the threshold must be 0 to 1, got {threshold}")
    exact = Fraction(str(threshold)) * total  # 0.9 * 10 in floats is not always 9
    needed = math.ceil(exact)
    return math.floor(exact) if small and needed == total and threshold < 1 else needed


@dataclass(frozen=True, kw_only=True)
class StageEnd:
    """When the reduce stage starts, and how many merges were in time."""

    start_s: float
    merged: int
    cancelled: int


def stage_end(
    *,
    last_map_s: float,
    merge_done_s: Sequence[float | None],
    threshold: float,
    max_wait_s: float = math.inf,
    small: bool = True,
) -> StageEnd:
    """Full mode is threshold 1. merge_done_s: when each merge ends, None never; max_wait_s: after the last map, whatever is missing."""
    done_s = sorted(s for s in merge_done_s if s is not None)
    needed = merges_needed(len(merge_done_s), threshold, small=small)
    enough_s = 0.0 if needed == 0 else done_s[needed - 1] if needed <= len(done_s) else math.inf
    start_s = max(last_map_s, min(enough_s, last_map_s + max_wait_s))
    if math.isinf(start_s):
        raise ValueError("a merge never ends and there is no maximum wait: the reduce stage would never start")
    merged = sum(s <= start_s for s in done_s)
    return StageEnd(start_s=start_s, merged=merged, cancelled=len(merge_done_s) - merged)
