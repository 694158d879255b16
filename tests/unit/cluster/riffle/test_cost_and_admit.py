"""The gate, the borders, who may start, where: pure."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.riffle.admit import LEAST_BUFFER_BYTES, MIB, Buffers, Quota, admitted, fitted, need_bytes, pick_merger
from cluster.riffle.cost import (
    DiskSpeed,
    Shuffle,
    border_by_requests,
    border_by_time,
    full_requests,
    gate,
    merges_needed,
    offered_files,
    plain_requests,
    read_s,
    stage_end,
)


def test_borders_of_the_card() -> None:
    assert border_by_requests(buffer_bytes=10e6, fan_in=40) == pytest.approx(4.9e6, rel=0.01)
    assert border_by_requests(buffer_bytes=64e6, fan_in=40) == pytest.approx(31e6, rel=0.01)
    assert border_by_time(DiskSpeed(seek_s=0.008, bytes_per_s=100e6), fan_in=40) == pytest.approx(390e3, rel=0.001)
    assert border_by_time(DiskSpeed(seek_s=1e-4, bytes_per_s=2e9), fan_in=40) == pytest.approx(97.5e3)


@given(st.integers(2, 80), st.floats(1e3, 1e8), st.integers(2, 500), st.floats(1e5, 1e12))
def test_the_border_by_requests_is_where_the_formula_turns(
    fan_in: int, buffer_bytes: float, reducers: int, total: float
) -> None:
    shuffle = Shuffle(maps=fan_in * 10, reducers=reducers, total_bytes=total)
    border = border_by_requests(buffer_bytes=buffer_bytes, fan_in=fan_in)
    if abs(shuffle.block_bytes - border) > 1e-6 * border:
        fewer = full_requests(shuffle, fan_in=fan_in, buffer_bytes=buffer_bytes) < plain_requests(shuffle)
        assert fewer == (shuffle.block_bytes < border)


@given(st.integers(2, 80), st.floats(1e-5, 0.02), st.floats(1e6, 1e10), st.floats(1e2, 1e8))
def test_the_border_by_time_is_where_the_time_turns(fan_in: int, seek_s: float, bytes_per_s: float, block: float) -> None:
    disk, maps, reducers = DiskSpeed(seek_s=seek_s, bytes_per_s=bytes_per_s), fan_in * 10, 100
    total = block * maps * reducers
    plain = read_s(disk, requests=maps * reducers, total_bytes=total)
    merged = read_s(disk, requests=maps / fan_in * reducers, total_bytes=total) + read_s(
        disk, requests=0, total_bytes=2 * total
    )
    border = border_by_time(disk, fan_in=fan_in)
    if abs(block - border) > 1e-6 * border:
        assert (merged < plain) == (block < border)


DISK = DiskSpeed(seek_s=0.008, bytes_per_s=100e6)


@pytest.mark.parametrize(
    ("maps", "block_kb", "merge", "why"),
    [(1000, 120, True, "blocks of 120 KB are below 390 KB, where merging begins to save time"),
     (1000, 983, False, "blocks of 983 KB are not below 390 KB: merging would cost more time than it saves"),
     (79, 120, False, "79 files in all are fewer than 2 merges of 40")],
)  # fmt: skip
def test_the_gate(maps: int, block_kb: int, merge: bool, why: str) -> None:
    shuffle = Shuffle(maps=maps, reducers=200, total_bytes=block_kb * 1e3 * maps * 200)
    verdict = gate(shuffle, fan_in=40, buffer_bytes=64e6, disk=DISK)
    assert (verdict.merge, verdict.why) == (merge, why)
    assert verdict.limit_bytes == pytest.approx(390e3)


def test_the_gate_counts_the_files_of_a_node_where_only_those_are_merged() -> None:
    shuffle = Shuffle(maps=100, reducers=10, total_bytes=1e6)
    assert gate(shuffle, fan_in=10, buffer_bytes=1e6, disk=None).merge
    assert not gate(shuffle, fan_in=10, buffer_bytes=1e6, disk=None, files_per_node=[10] * 10).merge
    assert gate(shuffle, fan_in=10, buffer_bytes=1e6, disk=None, files_per_node=[80, 10, 10]).merge


def test_without_a_measured_disk_only_requests_count() -> None:
    shuffle = Shuffle(maps=1000, reducers=200, total_bytes=983e3 * 200_000)
    verdict = gate(shuffle, fan_in=40, buffer_bytes=10e6, disk=None)
    assert verdict.merge
    assert "requests" in verdict.why
    with pytest.raises(ValueError, match="at least 2"):
        gate(shuffle, fan_in=1, buffer_bytes=1e6, disk=None)


@pytest.mark.parametrize(
    ("total", "threshold", "needed"),
    [(0, 0.95, 0), (1, 0.95, 0), (10, 0.95, 9), (20, 0.95, 19), (40, 0.95, 38), (10, 1.0, 10), (10, 0.9, 9), (7, 0.0, 0)],
)
def test_merges_needed(total: int, threshold: float, needed: int) -> None:
    assert merges_needed(total, threshold) == needed


def test_a_merge_that_never_ends_needs_a_maximum_wait() -> None:
    assert stage_end(last_map_s=5, merge_done_s=[1, None], threshold=0.5).start_s == 5
    assert stage_end(last_map_s=5, merge_done_s=[1, None], threshold=1, max_wait_s=3).cancelled == 1
    with pytest.raises(ValueError, match="never"):
        stage_end(last_map_s=5, merge_done_s=[1, None], threshold=1)
    with pytest.raises(ValueError, match="0 to 1"):
        merges_needed(3, 1.5)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=6), st.integers(2, 9))
def test_left_overs_and_wider_choice_only_help(files: list[int], fan_in: int) -> None:
    plain = offered_files(files, fan_in)
    assert (
        sum(files)
        >= plain
        >= offered_files(files, fan_in, left_overs=True)
        >= offered_files(files, fan_in, left_overs=True, across_nodes=True)
    )


@given(st.lists(st.integers(1, 50), max_size=8), st.lists(st.integers(1, 50), max_size=8), st.integers(1, 100))
def test_admission_is_in_order_within_the_limit_and_never_stuck(queue: list[int], running: list[int], limit: int) -> None:
    count = admitted(queue, running, limit)
    started = queue[:count]
    if started and max(started) <= limit:
        assert sum(running) + sum(started) <= limit
    if count < len(queue):  # the next one does not fit, so nobody behind it starts either
        assert sum(running) + sum(started) + queue[count] > limit
    if queue and not running:
        assert count >= 1


def test_a_giant_runs_alone_with_smaller_buffers() -> None:
    sizes, buffers = [100 * MIB] * 50, Buffers()
    assert admitted([need_bytes(sizes, buffers)], [1], 64 * MIB) == 0
    assert admitted([need_bytes(sizes, buffers), 1], [], 64 * MIB) == 1
    smaller = fitted(sizes, buffers, 64 * MIB)
    assert need_bytes(sizes, smaller) <= 64 * MIB
    assert smaller.read >= LEAST_BUFFER_BYTES
    assert fitted([10, 10], buffers, 64 * MIB) is buffers
    assert need_bytes([10, 20], buffers) == 60


def test_quota() -> None:
    quota = Quota(most_bytes=100, spare_bytes=10)
    assert quota.allows(40, used_bytes=60, free_bytes=50)
    assert not quota.allows(41, used_bytes=60, free_bytes=500)
    assert not quota.allows(40, used_bytes=0, free_bytes=49)


def test_two_choices_balance_and_are_seeded() -> None:
    def spread(choices: int, seed: int = 1) -> list[int]:
        rng, queues = np.random.default_rng(seed), {f"m{n}": 0 for n in range(50)}
        for _ in range(500):
            queues[pick_merger(queues, rng, choices=choices)] += 1
        return list(queues.values())

    assert spread(2) == spread(2)
    assert sum(spread(2)) == 500
    assert max(spread(2)) <= 13 < max(spread(1))  # mean 10; one choice ends near 18
    assert pick_merger({"only": 9}, np.random.default_rng(0)) == "only"
    assert pick_merger({"a": 5, "b": 1}, np.random.default_rng(0)) == "b"
    with pytest.raises(ValueError, match="no merger"):
        pick_merger({}, np.random.default_rng(0))


@pytest.mark.parametrize("wrong", [lambda: DiskSpeed(seek_s=-1, bytes_per_s=1), lambda: DiskSpeed(seek_s=0, bytes_per_s=math.nan),
                                   lambda: Shuffle(maps=0, reducers=1, total_bytes=1), lambda: Buffers(read=0)])  # fmt: skip
def test_values_refuse_nonsense(wrong) -> None:
    with pytest.raises(ValueError, match=r"at least|above 0"):
        wrong()
