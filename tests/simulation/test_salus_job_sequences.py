"""Random job sequences on the simulated device: never out of memory while grants are enforced, nor without while jobs are honest."""

from __future__ import annotations

from collections import Counter

import pytest

from scheduler.salus.random_jobs import random_sequence
from scheduler.salus.simulate import SimResult, simulate


def look(result: SimResult, capacity_mib: float) -> None:
    assert result.out_of_memory == ()
    assert result.peak_mib <= capacity_mib + 1e-5
    for job in result.jobs:
        assert job.fate in ("done", "crashed", "removed", "refused"), job  # nobody is stuck, nobody is killed
        assert job.why or job.fate in ("done", "crashed")
        assert job.fate != "done" or job.jct_s is not None


def run(seeds: range, *, honest: bool, enforced: bool) -> Counter[str]:
    fates: Counter[str] = Counter()
    for seed in seeds:
        jobs, rules = random_sequence(seed, honest=honest, enforced=enforced)
        result = simulate(jobs, rules)
        look(result, rules.lanes.capacity_mib)
        fates.update(job.fate for job in result.jobs)
        if honest:
            assert result.refused_allocations == 0
            assert all(job.fate != "removed" for job in result.jobs)
    return fates


def test_liars_leaks_and_crashes_never_exhaust_the_device() -> None:
    fates = run(range(120), honest=False, enforced=True)
    assert set(fates) == {"done", "crashed", "removed", "refused"}
    assert fates["done"] > 600


def test_honest_jobs_need_no_enforcement() -> None:
    fates = run(range(60), honest=True, enforced=False)
    assert fates["done"] > 300


def test_the_sequences_are_hard_enough() -> None:
    """Jobs wait, lie, grow, move and pause in them; and where nothing is enforced, memory does run out."""
    kinds: Counter[str] = Counter()
    lost = 0
    for seed in range(100):
        jobs, rules = random_sequence(seed)
        kinds.update(d.kind for _, d in simulate(jobs, rules).decisions)
        lost += bool(simulate(*random_sequence(seed, enforced=False)).out_of_memory)
    assert {"placed", "queued", "refused", "resized", "moved", "paused", "expelled", "finished"} <= set(kinds)
    assert kinds["queued"] > 50
    assert lost > 5


@pytest.mark.slow
def test_more_sequences() -> None:
    """Of the 10,000 that `driftbox bench salus` runs, some that the tests above do not."""
    fates = run(range(9_500, 10_000), honest=False, enforced=True)
    assert sum(fates.values()) > 2_600
