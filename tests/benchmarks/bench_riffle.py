"""Merging on this machine's disk: read requests and job time without, with full and with best-effort merge, and what the gate says.

Run: python tests/benchmarks/bench_riffle.py [FOLDER] [BLOCK_KB ...]

Nothing is modelled: map tasks write real files, mergers and reducers are the product's (`cluster.riffle`), each byte is checked on
the way by its checksum. What is written goes to the disk and its pages are dropped (fsync, posix_fadvise) before anybody reads;
reducers read without read-ahead, as if the data were larger than memory. Requests are the calls that reach the disk, those of merging
included. A job is its map stage, until enough merges are done, and its reduce stage with READERS reducers at a time.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cluster.riffle.admit import MIB, Buffers
from cluster.riffle.cost import (
    DiskSpeed,
    Shuffle,
    best_effort_requests,
    border_by_requests,
    border_by_time,
    full_requests,
    gate,
    plain_requests,
)
from cluster.riffle.job import ShuffleJob, StageRule
from cluster.riffle.merger import Merger, original_name
from cluster.riffle.plan import FixedCount, MapOutput
from cluster.riffle.speed import measure
from streams.block_file import BlockWriter, Disk

READERS = 4
MAPPERS = 2
FAN_IN = 40
#: Of each job; the fastest counts, because others use this machine too.
REPEATS = 2
BUFFERS = Buffers(read=1 * MIB, write=16 * MIB)
#: Block size in KB -> (maps, reducers): data that fits a small disk twice, and files enough for the gate.
SIZES = {1: (800, 400), 2: (800, 400), 4: (800, 200), 16: (240, 240), 64: (120, 120), 256: (80, 60)}
ANCHOR = {"full": -35.0, "best effort 95 %": -53.0}


class Counted(Disk):
    """Counts calls that reach the disk; drops what it has written from the page cache."""

    def __init__(self) -> None:
        self.reads = self.writes = 0
        self._lock = threading.Lock()

    def read(self, fd: int, size_bytes: int, at: int) -> bytes:
        with self._lock:
            self.reads += 1
        return super().read(fd, size_bytes, at)

    def write(self, fd: int, data: bytes | bytearray | memoryview) -> None:
        with self._lock:
            self.writes += 1
        super().write(fd, data)

    def sync(self, fd: int) -> None:
        super().sync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


@dataclass(frozen=True, kw_only=True)
class Run:
    map_s: float
    reduce_s: float
    reduce_reads: int
    merge_requests: int
    files: int

    @property
    def job_s(self) -> float:
        return self.map_s + self.reduce_s

    @property
    def requests(self) -> int:
        return self.reduce_reads + self.merge_requests


def run(root: Path, maps: int, reducers: int, block_bytes: int, threshold: float | None) -> Run:
    """One job. threshold: None: nothing is merged."""
    folder = Path(tempfile.mkdtemp(dir=root, prefix="job-"))
    disk, merging = Counted(), Counted()
    noise = np.random.default_rng(0).integers(0, 256, block_bytes + 4096, np.uint8).tobytes()

    def map_task(map_id: int, attempt: int) -> MapOutput:
        writer = BlockWriter(folder, original_name(map_id, attempt), disk=disk)
        for partition in range(reducers):
            begin = (map_id * 31 + partition) % 4096
            writer.add(memoryview(noise)[begin : begin + block_bytes])
            writer.end_block()
        index = writer.commit([(map_id, attempt)])
        return MapOutput(map_id=map_id, node="", size_bytes=index.size_bytes)

    policy = None if threshold is None else FixedCount(files=FAN_IN)
    try:
        with Merger(memory_bytes=256 * MIB, buffers=BUFFERS, threads=2, disk=merging) as merger:
            job = ShuffleJob(maps, reducers, policy, folders={"": folder}, mergers={"": [merger]}, run_task=map_task, disk=disk)
            began_s = time.perf_counter()
            with ThreadPoolExecutor(MAPPERS) as mappers:
                for output in mappers.map(lambda m: map_task(m, 0), range(maps)):
                    job.map_done(output)
            plan = job.end_map_stage(StageRule(threshold=1.0 if threshold is None else threshold, max_wait_s=600))
            map_s = time.perf_counter() - began_s
            wrote, disk.reads = disk.reads, 0
            began_s = time.perf_counter()

            def reduce_task(partition: int) -> int:
                return sum(len(block) for block in job.blocks(plan, partition))

            with ThreadPoolExecutor(READERS) as readers:
                total = sum(readers.map(reduce_task, range(reducers)))
            reduce_s = time.perf_counter() - began_s
            assert total == maps * reducers * block_bytes, "every byte once"
            assert wrote == 0
    finally:
        shutil.rmtree(folder)
    return Run(
        map_s=map_s, reduce_s=reduce_s, reduce_reads=disk.reads, merge_requests=merging.reads + merging.writes, files=len(plan)
    )


def print_tables_of_the_card() -> None:
    print("R1: M = R = 1000, T = 100 GB, s = 10 MB: requests by fan-in (card: 220000 120000 70000 45000 32500 25000 21000)")
    one = Shuffle(maps=1000, reducers=1000, total_bytes=1e11)
    found = [full_requests(one, fan_in=n, buffer_bytes=1e7) for n in (5, 10, 20, 40, 80, 200, 1000)]
    print("    " + " ".join(f"{r:.0f} ({plain_requests(one) / r:.2f}x)" for r in found))
    best = best_effort_requests(one, fan_in=40, buffer_bytes=1e7, merged_frac=0.95)
    print(f"    N = 40, 95 % merged: {best:.0f}, {plain_requests(one) / best:.2f}x (card: 92750, 10.78x)")
    two = Shuffle(maps=8000, reducers=2500, total_bytes=3e12)
    full = full_requests(two, fan_in=40, buffer_bytes=64e6)
    best = best_effort_requests(two, fan_in=40, buffer_bytes=64e6, merged_frac=0.95)
    print("R2: M = 8000, R = 2500, T = 3 TB, s = 64 MB, N = 40 (card: 593750, 33.7x; 1564062.5, 12.8x)")
    print(
        f"    full {full:.1f} ({plain_requests(two) / full:.1f}x), best effort {best:.1f} ({plain_requests(two) / best:.1f}x)"
    )


def print_size(root: Path, speed: DiskSpeed, block_kb: int) -> None:
    maps, reducers = SIZES[block_kb]
    whole = Shuffle(maps=maps, reducers=reducers, total_bytes=maps * reducers * block_kb * 1000)
    verdict = gate(whole, fan_in=FAN_IN, buffer_bytes=BUFFERS.write, disk=speed)
    print(
        f"\nblocks of {block_kb} KB, {maps} maps x {reducers} reducers, {whole.total_bytes / 1e9:.2f} GB; load {os.getloadavg()[0]:.1f}"
    )
    print(f"    gate: {'merge' if verdict.merge else 'no'}: {verdict.why}")
    print(f"    {'mode':<17} {'map s':>7} {'reduce s':>8} {'job s':>7} {'change':>7} {'files':>5} {'requests':>9} {'fewer':>6}")
    plain: Run | None = None
    for mode, threshold in (("no merge", None), ("full", 1.0), ("best effort 95 %", 0.95)):
        runs = [run(root, maps, reducers, block_kb * 1000, threshold) for _ in range(REPEATS)]
        got = min(runs, key=lambda r: r.job_s)
        plain = plain or got
        change = 100 * (got.job_s / plain.job_s - 1)
        line = f"    {mode:<17} {got.map_s:>7.2f} {got.reduce_s:>8.2f} {got.job_s:>7.2f} {change:>+6.0f}% {got.files:>5}"
        anchor = f"   (text, on spinning disks: {ANCHOR[mode]:+.0f} %)" if mode in ANCHOR else ""
        print(f"{line} {got.requests:>9} {plain.requests / got.requests:>5.1f}x{anchor}", flush=True)


def main(root: Path, sizes: list[int]) -> None:
    print_tables_of_the_card()
    found = measure(root)
    how = "past the page cache (O_DIRECT)" if found.direct else "pages dropped before"
    speed = found.speed
    print(f"\nthis disk, {how}: a request {1e3 * speed.seek_s:.3f} ms, long reads {speed.bytes_per_s / 1e6:.0f} MB/s, long writes "
          f"{found.write_bytes_per_s / 1e6:.0f} MB/s")  # fmt: skip
    by_time, by_requests = border_by_time(speed, fan_in=FAN_IN), border_by_requests(buffer_bytes=BUFFERS.write, fan_in=FAN_IN)
    print(f"merging {FAN_IN} files pays below blocks of {by_time / 1e3:.0f} KB by time, {by_requests / 1e3:.0f} KB by requests "
          f"(card: 8 ms and 100 MB/s 390 KB; 0.1 ms and 2 GB/s 98 KB)")  # fmt: skip
    for block_kb in sizes:
        print_size(root, speed, block_kb)


if __name__ == "__main__":
    logging.getLogger("driftbox").setLevel(logging.ERROR)  # cancelled merges are what best effort is about
    chosen = [int(a) for a in sys.argv[2:]] or list(SIZES)
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None, prefix="driftbox-riffle-") as place:
        main(Path(place), chosen)
