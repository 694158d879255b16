"""A shuffle with real files and real mergers: what reducers get is exactly what maps wrote, whatever fails on the way."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from cluster.riffle.admit import MIB, Quota
from cluster.riffle.job import ShuffleJob, StageRule, name_of
from cluster.riffle.merger import Merger, MergeWork, merged_name, original_name, sources_of
from cluster.riffle.plan import FixedCount, MapOutput, Policy
from configs.errors import DriftboxError, JobError
from streams.block_file import Disk, data_path, names_in, records_of, write_block_file

R = 3
ALL = StageRule(threshold=1.0)


class Maps:
    """Map tasks that write the same records every time they run."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.ran = folder, []

    def run(self, map_id: int, attempt: int) -> MapOutput:
        self.ran.append((map_id, attempt))
        blocks = [[f"{map_id}:{p}:{k}".encode() for k in range(map_id % 3 + (p > 0))] for p in range(R)]
        index = write_block_file(self.folder, original_name(map_id, attempt), blocks, covers=[(map_id, attempt)])
        return MapOutput(map_id=map_id, node="n", size_bytes=index.size_bytes, attempt=attempt)


def wanted(maps: int) -> list[list[bytes]]:
    return [sorted(f"{m}:{p}:{k}".encode() for m in range(maps) for k in range(m % 3 + (p > 0))) for p in range(R)]


class Shuffle:
    def __init__(self, folder: Path, maps: int, policy: Policy | None, merger: Merger, *, disk: Disk | None = None) -> None:
        self.maps = Maps(folder)
        self.job = ShuffleJob(
            maps, R, policy, folders={"n": folder}, mergers={"n": [merger]}, run_task=self.maps.run, disk=disk or Disk()
        )
        for map_id in range(maps):
            self.job.map_done(self.maps.run(map_id, 0))

    def reduced(self, plan) -> list[list[bytes]]:
        return [sorted(r for block in self.job.blocks(plan, p) for r in records_of(block)) for p in range(R)]


@pytest.mark.parametrize(("policy", "files"), [(None, 10), (FixedCount(files=4), 4), (FixedCount(files=5), 2)])
def test_reducers_get_what_maps_wrote(tmp_path: Path, policy: Policy | None, files: int) -> None:
    with Merger() as merger:
        shuffle = Shuffle(tmp_path, 10, policy, merger)
        plan = shuffle.job.end_map_stage(ALL)
        assert len(plan) == files
        assert shuffle.reduced(plan) == wanted(10)
        assert shuffle.job.fetches <= files * R
    assert {original_name(m, 0) for m in range(10)} <= set(names_in(tmp_path))  # kept until the job ends


def spoil(path: Path, how: str) -> None:
    if how == "lost":
        path.unlink()
    elif how == "short":
        path.write_bytes(path.read_bytes()[:-1])
    else:
        path.write_bytes(bytes(b ^ 255 for b in path.read_bytes()))


@pytest.mark.parametrize("how", ["lost", "short", "corrupt"])
def test_r8_on_real_files(tmp_path: Path, how: str) -> None:
    """A merged file is lost: its originals. An original of them too: exactly that map task runs again."""
    with Merger() as merger:
        shuffle = Shuffle(tmp_path, 8, FixedCount(files=4), merger)
        plan = shuffle.job.end_map_stage(ALL)
        shuffle.maps.ran.clear()
        spoil(data_path(tmp_path, merged_name(1)), how)
        assert shuffle.reduced(plan) == wanted(8)
        assert shuffle.maps.ran == []
        spoil(data_path(tmp_path, original_name(6, 0)), how)
        assert shuffle.reduced(plan) == wanted(8)
        assert shuffle.maps.ran == [(6, 1)]


def test_a_lost_original_under_a_whole_merged_file_is_not_missed(tmp_path: Path) -> None:
    with Merger() as merger:
        shuffle = Shuffle(tmp_path, 4, FixedCount(files=4), merger)
        plan = shuffle.job.end_map_stage(ALL)
        shuffle.maps.ran.clear()
        spoil(data_path(tmp_path, original_name(2, 0)), "lost")
        assert shuffle.reduced(plan) == wanted(4)
        assert shuffle.maps.ran == []


def test_an_original_that_a_merge_finds_damaged_is_made_again(tmp_path: Path) -> None:
    maps = Maps(tmp_path)
    with Merger() as merger:
        job = ShuffleJob(2, R, FixedCount(files=2), folders={"n": tmp_path}, mergers={"n": [merger]}, run_task=maps.run)
        job.map_done(maps.run(0, 0))
        output = maps.run(1, 0)
        spoil(data_path(tmp_path, original_name(1, 0)), "corrupt")
        job.map_done(output)
        while merger.pending:
            pass
        plan = job.end_map_stage(ALL)
        assert maps.ran == [(0, 0), (1, 0), (1, 1)]
        assert sorted(name_of(f) for f in plan) == [original_name(0, 0), original_name(1, 1)]
        assert [sorted(r for b in job.blocks(plan, p) for r in records_of(b)) for p in range(R)] == wanted(2)


def test_a_map_task_that_is_always_lost_is_given_up(tmp_path: Path) -> None:
    with Merger() as merger:
        maps = Maps(tmp_path)

        def run_and_lose(map_id: int, attempt: int) -> MapOutput:
            output = maps.run(map_id, attempt)
            spoil(data_path(tmp_path, original_name(map_id, attempt)), "lost")
            return output

        job = ShuffleJob(1, R, None, folders={"n": tmp_path}, mergers={"n": [merger]}, run_task=run_and_lose)
        job.map_done(run_and_lose(0, 0))
        with pytest.raises(JobError, match="was lost 4 times"):
            list(job.blocks(job.end_map_stage(ALL), 1))


class Stuck(Disk):
    """A disk on which merging hangs until it is let go."""

    def __init__(self) -> None:
        self.go, self.entered = threading.Event(), threading.Event()

    def open_write(self, path: Path) -> int:
        self.entered.set()
        self.go.wait(120.0)
        return super().open_write(path)


@pytest.mark.parametrize(
    "rule", [StageRule(threshold=0.0), StageRule(threshold=1.0, max_wait_s=0.0), StageRule(threshold=1.0, merge_timeout_s=0.0)]
)
def test_best_effort_a_maximum_wait_and_a_time_out_end_the_stage(tmp_path: Path, rule: StageRule) -> None:
    disk = Stuck()
    with Merger(disk=disk) as merger:
        shuffle = Shuffle(tmp_path, 4, FixedCount(files=4), merger)
        disk.entered.wait(120.0)
        plan = shuffle.job.end_map_stage(rule)
        assert [f.request for f in plan] == [None] * 4
        disk.go.set()
    assert shuffle.reduced(plan) == wanted(4)
    assert not [n for n in names_in(tmp_path) if n.startswith("merge")]


def test_a_stage_does_not_end_before_its_maps(tmp_path: Path) -> None:
    with Merger() as merger:
        job = ShuffleJob(2, R, None, folders={"n": tmp_path}, mergers={"n": [merger]}, run_task=Maps(tmp_path).run)
        with pytest.raises(JobError, match=r"\[0, 1\] have not finished"):
            job.end_map_stage()


# --- the merger ---------------------------------------------------------------------------------------------------------


def work(folder: Path, number: int, maps: tuple[int, ...], answers: list) -> MergeWork:
    return MergeWork(
        folder=folder,
        sources=sources_of([(m, 0) for m in maps]),
        out=merged_name(number),
        done=lambda i, e: answers.append((number, i, e)),
    )


def test_a_quota_refuses_and_the_originals_are_read(tmp_path: Path) -> None:
    with Merger(quota=Quota(most_bytes=10, spare_bytes=0)) as merger:
        shuffle = Shuffle(tmp_path, 8, FixedCount(files=4), merger)
        plan = shuffle.job.end_map_stage(ALL)
        assert [f.request for f in plan] == [None] * 8
        assert shuffle.reduced(plan) == wanted(8)


def test_memory_admits_in_order(tmp_path: Path) -> None:
    maps, answers, disk = Maps(tmp_path), [], Stuck()
    sizes = [maps.run(m, 0).size_bytes for m in range(6)]
    need = 2 * sum(sizes[:2])
    with Merger(memory_bytes=need + 1, disk=disk, threads=3) as merger:
        for number in range(3):
            merger.submit(work(tmp_path, number, (2 * number, 2 * number + 1), answers))
        disk.entered.wait(120.0)
        assert merger.pending == 3
        assert len(merger._running) == 1  # the second does not fit beside the first
        disk.go.set()
    assert [number for number, *_ in answers] == [0, 1, 2] or any(error for *_, error in answers)


def test_who_asks_a_closed_merger_is_answered(tmp_path: Path) -> None:
    maps, answers = Maps(tmp_path), []
    maps.run(0, 0), maps.run(1, 0)
    merger = Merger()
    merger.close()
    merger.submit(work(tmp_path, 0, (0, 1), answers))
    [(_, index, error)] = answers
    assert index is None
    assert error.code == "cancelled"


def test_a_job_that_is_over_leaves_no_merged_file(tmp_path: Path) -> None:
    with Merger() as merger:
        shuffle = Shuffle(tmp_path, 8, FixedCount(files=4), merger)
        shuffle.job.end_map_stage(ALL)
        merger.forget(tmp_path)
        assert not [n for n in names_in(tmp_path) if n.startswith("merge")]
        assert merger._used_bytes == 0


def test_one_jobs_mistake_costs_the_others_nothing(tmp_path: Path) -> None:
    maps, answers = Maps(tmp_path), []
    for m in range(4):
        maps.run(m, 0)
    with Merger(threads=1, memory_bytes=MIB) as merger:
        bad = work(tmp_path, 0, (0, 1), answers)
        merger.submit(MergeWork(folder=bad.folder, sources=bad.sources, out=bad.out, done=lambda i, e: 1 / 0))
        done = threading.Event()
        good = work(tmp_path, 1, (2, 3), answers)
        merger.submit(
            MergeWork(folder=good.folder, sources=good.sources, out=good.out, done=lambda i, e: (answers.append(i), done.set()))
        )
        assert done.wait(120.0)
    assert answers[0].covers == ((2, 0), (3, 0))
    assert isinstance(DriftboxError("x"), Exception)
