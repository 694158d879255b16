"""The card's worked examples R1 to R8 (section 11), number by number."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.riffle.admit import MIB, Buffers, admitted, need_bytes
from cluster.riffle.cost import (
    Shuffle,
    best_effort_requests,
    exact_requests,
    full_requests,
    merge_requests,
    offered_files,
    plain_requests,
    stage_end,
)
from cluster.riffle.merge import Source, merge_files
from cluster.riffle.plan import FixedBlockSize, FixedCount, MapOutput, MergeScheduler, RunMap, StartMerge
from streams.block_file import BlockWriter, read_block

R1 = {5: (220_000, 4.55), 10: (120_000, 8.33), 20: (70_000, 14.29), 40: (45_000, 22.22), 80: (32_500, 30.77),
      200: (25_000, 40.0), 1000: (21_000, 47.62)}  # fmt: skip


@pytest.mark.parametrize("fan_in", R1)
def test_r1_requests_and_factor(fan_in: int) -> None:
    shuffle = Shuffle(maps=1000, reducers=1000, total_bytes=1e11)
    requests, factor = R1[fan_in]
    assert plain_requests(shuffle) == 1_000_000
    assert full_requests(shuffle, fan_in=fan_in, buffer_bytes=1e7) == requests
    assert 1_000_000 / requests == pytest.approx(factor, abs=0.005)


def test_r1_five_percent_unmerged_halve_the_gain() -> None:
    shuffle = Shuffle(maps=1000, reducers=1000, total_bytes=1e11)
    requests = best_effort_requests(shuffle, fan_in=40, buffer_bytes=1e7, merged_frac=0.95)
    assert requests == pytest.approx(73_750 + 19_000)
    assert 1e6 / requests == pytest.approx(10.78, abs=0.005)


@pytest.mark.parametrize(
    ("fan_in", "full", "best", "block_kb"),
    [(5, 1600, 1920, 750), (10, 800, 1160, 1500), (20, 400, 780, 3000), (40, 200, 590, 6000)],
)
def test_r2_reads_of_a_reducer(fan_in: int, full: int, best: int, block_kb: int) -> None:
    shuffle = Shuffle(maps=8000, reducers=2500, total_bytes=3e12)
    assert offered_files([8000], fan_in) == full
    assert 0.95 * 8000 / fan_in + 0.05 * 8000 == pytest.approx(best)
    assert shuffle.total_bytes / shuffle.reducers / full == block_kb * 1000


def test_r2_totals() -> None:
    shuffle = Shuffle(maps=8000, reducers=2500, total_bytes=3e12)
    assert shuffle.total_bytes / shuffle.reducers / 590 == pytest.approx(2.03e6, rel=0.003)
    assert merge_requests(3e12, 64e6) == 93_750
    assert full_requests(shuffle, fan_in=40, buffer_bytes=64e6) == 593_750
    assert plain_requests(shuffle) / 593_750 == pytest.approx(33.7, abs=0.05)
    best = best_effort_requests(shuffle, fan_in=40, buffer_bytes=64e6, merged_frac=0.95)
    assert best == pytest.approx(1_564_062.5)
    assert plain_requests(shuffle) / best == pytest.approx(12.8, abs=0.05)


def write_raw(folder: Path, name: str, blocks: list[bytes], covers: list[tuple[int, int]]) -> None:
    writer = BlockWriter(folder, name)
    for block in blocks:
        writer.add(block)
        writer.end_block()
    writer.commit(covers)


def test_r3_bytes(tmp_path: Path) -> None:
    files = {1: b"aaabbcccc", 2: b"aBBBBBc", 3: b"bbbCC"}
    offsets = {1: (0, 3, 5, 9), 2: (0, 1, 6, 7), 3: (0, 0, 3, 5)}
    for id, data in files.items():
        write_raw(tmp_path, f"map{id}", [data[a:b] for a, b in zip(offsets[id], offsets[id][1:], strict=False)], [(id, 0)])
    index = merge_files(tmp_path, [Source(name=f"map{id}", covers=((id, 0),)) for id in files], "merged")
    assert (tmp_path / "merged.data").read_bytes() == b"aaaabbBBBBBbbbcccccCC"
    assert index.offsets == (0, 4, 14, 21)
    assert [read_block(tmp_path, "merged", index, p) for p in range(3)] == [b"aaaa", b"bbBBBBBbbb", b"cccccCC"]
    assert sum(b > a for o in offsets.values() for a, b in zip(o, o[1:], strict=False)) == 8
    assert exact_requests(reducers=3, offered_files=3, merged_bytes=0, buffer_bytes=1) == 9
    assert exact_requests(reducers=3, offered_files=1, merged_bytes=0, buffer_bytes=1) == 3


def test_r4_block_size_policy() -> None:
    reducers, kb = 100, 1024
    scheduler = MergeScheduler(range(1, 10), reducers, FixedBlockSize(block_bytes=1024 * kb))
    started: dict[int, list[list[int]]] = {}
    for number, average_kb in enumerate((300, 1200, 400, 200, 150, 900, 100, 50, 700), start=1):
        done = MapOutput(map_id=number, node="n", size_bytes=average_kb * kb * reducers)
        merges = [c.request for c in scheduler.map_done(done) if isinstance(c, StartMerge)]
        started[number] = [[id for id, _ in request.covers] for request in merges]
        for request in merges:
            assert request.size_bytes == 1050 * kb * reducers
            scheduler.merge_done(request.id)
    assert {number: groups for number, groups in started.items() if groups} == {5: [[1, 3, 4, 5]], 8: [[6, 7, 8]]}
    plan = scheduler.plan()
    assert [[id for id, _ in fetch.covers] for fetch in plan] == [[1, 3, 4, 5], [6, 7, 8], [2], [9]]
    assert (9 * reducers, len(plan) * reducers) == (900, 400)


def test_r5_per_node_groups() -> None:
    nodes = [7, 5, 9]
    assert [offered_files([m], 4) for m in nodes] == [1 + 3, 1 + 1, 2 + 1]
    assert 10 * offered_files(nodes, 4) == 90
    assert 10 * offered_files(nodes, 4, left_overs=True) == 70
    assert 10 * offered_files(nodes, 4, left_overs=True, across_nodes=True) == 60
    assert plain_requests(Shuffle(maps=21, reducers=10, total_bytes=1)) == 210


@pytest.mark.parametrize(("left_overs", "across", "fetches"), [(False, False, 90), (True, False, 70), (True, True, 60)])
def test_r5_by_the_scheduler_itself(left_overs: bool, across: bool, fetches: int) -> None:
    scheduler = MergeScheduler(21, 10, FixedCount(files=4), left_overs=left_overs)
    nodes = ["a"] * 7 + ["b"] * 5 + ["c"] * 9
    for id, node in enumerate(nodes):
        for command in scheduler.map_done(MapOutput(map_id=id, node="" if across else node, size_bytes=100)):
            assert isinstance(command, StartMerge)
            scheduler.merge_done(command.request.id)
    assert 10 * len(scheduler.plan()) == fetches


def test_r6_memory_queue() -> None:
    buffers, limit = Buffers(read=4 * MIB, write=20 * MIB), 400 * MIB
    needs = [need_bytes([10**9] * fan_in, buffers) for fan_in in (20, 40, 10, 40, 20)]
    assert [need // MIB for need in needs] == [100, 180, 60, 180, 100]
    first = admitted(needs, [], limit)
    assert first == 3
    assert sum(needs[:first]) == 340 * MIB
    after = [needs[0], needs[2]]  # the 180 has finished
    assert admitted(needs[3:], after, limit) == 1
    assert sum(after) + needs[3] == 340 * MIB
    assert admitted(needs[4:], [*after, needs[3]], limit) == 0


R7_MERGES = (60.0, 70.0, 80.0, 90.0, 95.0, 102.0, 104.0, 108.0, 150.0, 400.0)


@pytest.mark.parametrize(
    ("threshold", "start_s", "merged", "cancelled", "files"),
    [(1.0, 400, 10, 0, 10), (0.95, 400, 10, 0, 10), (0.9, 150, 9, 1, 13), (0.8, 108, 8, 2, 16), (0.5, 100, 5, 5, 25)],
)
def test_r7_best_effort(threshold: float, start_s: float, merged: int, cancelled: int, files: int) -> None:
    end = stage_end(last_map_s=100, merge_done_s=R7_MERGES, threshold=threshold, small=False)
    assert (end.start_s, end.merged, end.cancelled) == (start_s, merged, cancelled)
    assert end.merged + 4 * end.cancelled == files


def test_r7_our_rule_for_few_merges_does_not_wait_for_the_straggler() -> None:
    end = stage_end(last_map_s=100, merge_done_s=R7_MERGES, threshold=0.95)
    assert (end.start_s, end.merged, end.cancelled) == (150, 9, 1)


def test_r7_a_maximum_wait_ends_it() -> None:
    end = stage_end(last_map_s=100, merge_done_s=R7_MERGES, threshold=1.0, max_wait_s=10)
    assert (end.start_s, end.merged, end.cancelled) == (110, 8, 2)


def test_r8_faults() -> None:
    scheduler = MergeScheduler(range(1, 9), 10, FixedCount(files=4))
    requests = [
        command.request
        for id in range(1, 9)
        for command in scheduler.map_done(MapOutput(map_id=id, node="n", size_bytes=100))
        if isinstance(command, StartMerge)
    ]
    assert [[id for id, _ in request.covers] for request in requests] == [[1, 2, 3, 4], [5, 6, 7, 8]]
    scheduler.merge_done(requests[0].id)
    again = [c for c in scheduler.merge_failed(requests[1].id) if isinstance(c, RunMap)]
    assert (len(scheduler.plan()), again) == (5, [])
    again = [c for c in scheduler.merged_lost(requests[0].id) if isinstance(c, RunMap)]
    assert (len(scheduler.plan()), again) == (8, [])
    assert scheduler.original_lost(6, 0) == [RunMap(map_id=6, attempt=1)]
    assert scheduler.unfinished() == [6]
