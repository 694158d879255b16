"""Every map output is read exactly once, whatever is lost, late, repeated or wrong."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.riffle.plan import (
    CancelMerge,
    Command,
    Fetch,
    FixedBlockSize,
    FixedCount,
    MapOutput,
    MergeScheduler,
    RunMap,
    StartMerge,
    check_coverage,
)

POLICIES = st.one_of(
    st.none(),
    st.integers(2, 5).map(lambda n: FixedCount(files=n)),
    st.floats(1, 300).map(lambda b: FixedBlockSize(block_bytes=b, most_files=6)),
)


class World:
    """A driver's world: obeys commands, keeps what really lies on disk, and checks after every event."""

    def __init__(self, maps: int, policy: FixedCount | FixedBlockSize | None, left_overs: bool) -> None:
        self.maps, self.scheduler = maps, MergeScheduler(maps, 10, policy, left_overs=left_overs)
        self.running: dict[int, tuple[tuple[int, int], ...]] = {}  # merges under way
        self.merged: dict[int, tuple[tuple[int, int], ...]] = {}
        self.originals: set[tuple[int, int]] = set()
        self.to_run: dict[int, int] = dict.fromkeys(range(maps), 0)
        self.merges_of: dict[tuple[int, int], int] = {}
        self.runs: list[int] = []

    def obey(self, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, StartMerge):
                for cover in command.request.covers:
                    assert cover not in self.merges_of, "a file takes part in one merge at most"
                    self.merges_of[cover] = command.request.id
                self.running[command.request.id] = command.request.covers
            elif isinstance(command, CancelMerge):
                self.running.pop(command.request, None)
                self.merged.pop(command.request, None)
            else:
                assert not self.readable(command.map_id), "nothing is computed again that can be read"
                self.to_run[command.map_id] = command.attempt
                self.runs.append(command.map_id)

    def readable(self, map_id: int) -> bool:
        newest = self.scheduler._attempt[map_id]
        held = {cover for covers in self.merged.values() for cover in covers}
        return (map_id, newest) in self.originals or (map_id, newest) in held

    def finish_map(self, pick: int, node: str, size_bytes: int) -> None:
        if self.to_run:
            map_id = sorted(self.to_run)[pick % len(self.to_run)]
            attempt = self.to_run.pop(map_id)
            self.originals.add((map_id, attempt))
            self.obey(self.scheduler.map_done(MapOutput(map_id=map_id, node=node, size_bytes=size_bytes, attempt=attempt)))

    def end_merge(self, pick: int, well: bool) -> None:
        if self.running:
            request = sorted(self.running)[pick % len(self.running)]
            covers = self.running.pop(request)
            well = well and all(cover in self.originals for cover in covers)
            if well:
                self.merged[request] = covers
            self.obey(self.scheduler.merge_done(request) if well else self.scheduler.merge_failed(request))

    def lose_merged(self, pick: int) -> None:
        if self.merged:
            request = sorted(self.merged)[pick % len(self.merged)]
            del self.merged[request]
            self.obey(self.scheduler.merged_lost(request))

    def lose_original(self, pick: int) -> None:
        if self.originals:
            cover = sorted(self.originals)[pick % len(self.originals)]
            self.originals.discard(cover)
            self.obey(self.scheduler.original_lost(*cover))

    def speculate(self, pick: int, node: str) -> None:
        """A straggler's twin ends too: a newer attempt of a map that was there."""
        done = [id for id, attempt in self.scheduler._attempt.items() if attempt >= 0 and id not in self.to_run]
        if done:
            map_id = done[pick % len(done)]
            attempt = self.scheduler._attempt[map_id] + 1
            self.originals.add((map_id, attempt))
            self.obey(self.scheduler.map_done(MapOutput(map_id=map_id, node=node, size_bytes=100, attempt=attempt)))

    def check(self) -> None:
        missing = {id for id in range(self.maps) if not self.readable(id)}
        assert set(self.scheduler.unfinished()) == missing == set(self.to_run)
        if missing:
            with pytest.raises(ValueError, match="missing"):
                self.scheduler.plan()
            return
        plan = self.scheduler.plan()
        read = sorted(id for fetch in plan for id, _ in fetch.covers)
        assert read == list(range(self.maps)), "exactly once"
        for fetch in plan:  # and all of it is really there
            assert (
                fetch.covers == self.merged[fetch.request] if fetch.request is not None else fetch.covers[0] in self.originals
            )


EVENTS = st.tuples(
    st.sampled_from(["map", "map", "map", "merge", "merge", "fail", "lose merged", "lose original", "twin", "close"]),
    st.integers(0, 50),
    st.sampled_from(["a", "b"]),
    st.integers(0, 2000),
)


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 12), POLICIES, st.booleans(), st.lists(EVENTS, max_size=60))
def test_covered_exactly_once_under_any_sequence_of_failures(maps, policy, left_overs, events) -> None:
    world = World(maps, policy, left_overs)
    for what, pick, node, size_bytes in events:
        if what == "map":
            world.finish_map(pick, node, size_bytes)
        elif what in ("merge", "fail"):
            world.end_merge(pick, what == "merge")
        elif what == "lose merged":
            world.lose_merged(pick)
        elif what == "lose original":
            world.lose_original(pick)
        elif what == "twin":
            world.speculate(pick, node)
        else:
            world.obey(world.scheduler.close())
            assert not world.scheduler.counts()["running"]
        world.check()
    for _ in range(maps):  # whatever happened, the job can end
        world.finish_map(0, "a", 100)
    world.obey(world.scheduler.close())
    world.check()


def done(scheduler: MergeScheduler, id: int, *, attempt: int = 0, size_bytes: int = 100, node: str = "n") -> list[Command]:
    return scheduler.map_done(MapOutput(map_id=id, node=node, size_bytes=size_bytes, attempt=attempt))


def test_a_lost_original_is_not_missed_while_its_merged_file_is_there() -> None:
    scheduler = MergeScheduler(2, 1, FixedCount(files=2))
    done(scheduler, 0)
    [started] = done(scheduler, 1)
    assert isinstance(started, StartMerge)
    scheduler.merge_done(0)
    assert scheduler.original_lost(1, 0) == []
    assert scheduler.unfinished() == []
    assert scheduler.merged_lost(0) == [RunMap(map_id=1, attempt=1)]  # now it is, and only it


def test_a_second_attempt_takes_the_whole_merge_with_it() -> None:
    scheduler = MergeScheduler(2, 1, FixedCount(files=2))
    done(scheduler, 0)
    done(scheduler, 1)
    scheduler.merge_done(0)
    assert done(scheduler, 0, attempt=1) == [CancelMerge(request=0)]
    assert [f.covers for f in scheduler.plan()] == [((0, 1),), ((1, 0),)]


def test_what_is_told_twice_or_late_changes_nothing() -> None:
    scheduler = MergeScheduler(3, 1, FixedCount(files=2))
    done(scheduler, 0, attempt=1)
    assert done(scheduler, 0, attempt=1) == done(scheduler, 0, attempt=0) == []
    assert scheduler.original_lost(0, 0) == []
    done(scheduler, 1)
    scheduler.merge_done(0)
    assert scheduler.merge_done(0) == []
    assert scheduler.merge_failed(0) == []
    assert scheduler.merge_done(0) == [CancelMerge(request=0)]  # it was given up, and stays so


def test_a_merge_that_ends_after_the_stage_is_not_read() -> None:
    scheduler = MergeScheduler(2, 1, FixedCount(files=2))
    done(scheduler, 0)
    done(scheduler, 1)
    assert scheduler.close() == [CancelMerge(request=0)]
    assert scheduler.merge_done(0) == [CancelMerge(request=0)]
    assert [f.request for f in scheduler.plan()] == [None, None]


def test_who_names_what_is_not_there_is_told() -> None:
    scheduler = MergeScheduler(2, 1, FixedCount(files=2))
    for wrong in (lambda: done(scheduler, 7), lambda: scheduler.merge_done(3), lambda: scheduler.original_lost(9, 0)):
        with pytest.raises(ValueError, match="in this shuffle"):
            wrong()


def test_a_request_is_bounded_in_files() -> None:
    scheduler = MergeScheduler(10, 1, FixedBlockSize(block_bytes=1e9, most_files=3))
    requests = [c for id in range(10) for c in done(scheduler, id)]
    assert [len(c.request.covers) for c in requests if isinstance(c, StartMerge)] == [3, 3, 3]


@pytest.mark.parametrize("twice", [True, False])
def test_coverage_names_what_is_wrong(twice: bool) -> None:
    fetches = [Fetch(node="n", covers=((0, 0), (1, 0)), request=0)]
    fetches += [Fetch(node="n", covers=((1, 0),))] if twice else []
    attempts = {0: 0, 1: 0} if twice else {0: 0, 1: 0, 2: 0}
    with pytest.raises(ValueError, match=r"twice \[\(1, 0\)\]" if twice else r"differing \[\(2, 0\)\]"):
        check_coverage(fetches, attempts)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 5000), min_size=1, max_size=40), st.integers(1, 20), st.floats(1, 400))
def test_block_size_policy_never_merges_less_than_it_says(sizes: list[int], reducers: int, block_bytes: float) -> None:
    scheduler = MergeScheduler(len(sizes), reducers, FixedBlockSize(block_bytes=block_bytes))
    merged: set[int] = set()
    for id, size_bytes in enumerate(sizes):
        for command in done(scheduler, id, size_bytes=size_bytes):
            assert isinstance(command, StartMerge)
            group = [id for id, _ in command.request.covers]
            averages = [sizes[id] / reducers for id in group]
            assert len(group) >= 2
            assert sum(averages) > block_bytes
            assert sum(averages[:-1]) <= block_bytes or len(group) == 2
            assert max(averages) < block_bytes
            merged |= set(group)
    left = [size / reducers for id, size in enumerate(sizes) if id not in merged and size / reducers < block_bytes]
    assert len(left) < 2 or sum(left) <= block_bytes


def test_policies_refuse_nonsense() -> None:
    for wrong in (lambda: FixedCount(files=1), lambda: FixedBlockSize(block_bytes=0), lambda: MergeScheduler(0, 1, None),
                  lambda: MergeScheduler(1, 0, None), lambda: FixedBlockSize(block_bytes=np.nan)):  # fmt: skip
        with pytest.raises(ValueError, match=r"at least|above 0"):
            wrong()
