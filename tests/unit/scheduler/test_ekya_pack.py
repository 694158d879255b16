"""Jobs in GPUs: against all ways of placing them, and the rules one by one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.errors import ConfigError
from scheduler.ekya.pack import Home, Job, gpu_problems, pack, place, placement_problems
from scheduler.types import Gpu, KnobProfile, Placement, Plan, RetrainOption, Snapshot, StreamPlan, StreamView

# --- against flat enumeration ---------------------------------------------------------------------------------------------


def every_home(job: Job, gpus: Sequence[Gpu]) -> Iterator[Home]:
    """All ways to place one job on empty devices, straight from the rule."""
    if job.share_pct < 100:
        yield from (((g, job.share_pct),) for g in range(len(gpus)))
        return
    for size in range(1, len(gpus) + 1):
        for whole in itertools.combinations(range(len(gpus)), size):
            home = tuple((g, gpus[g].capacity_pct) for g in whole)
            rest = job.share_pct - sum(share for _, share in home)
            if rest == 0:
                yield home
            elif rest > 0:
                yield from ((*home, (g, rest)) for g in range(len(gpus)) if g not in whole)


def fits(jobs: Sequence[Job], gpus: Sequence[Gpu], homes: Sequence[Home]) -> bool:
    for number, gpu in enumerate(gpus):
        here = [(job, share) for job, home in zip(jobs, homes, strict=True) for g, share in home if g == number]
        if sum(share for _, share in here) > gpu.capacity_pct:
            return False
        if gpu.memory_mib is not None and sum(job.memory_mib for job, _ in here) > gpu.memory_mib:
            return False
    return True


def can_be_placed(jobs: Sequence[Job], gpus: Sequence[Gpu]) -> bool:
    return any(fits(jobs, gpus, homes) for homes in itertools.product(*(list(every_home(job, gpus)) for job in jobs)))


@st.composite
def loads(draw: st.DrawFn) -> tuple[list[Job], list[Gpu]]:
    gpus = [
        Gpu(id=f"g{n}", capacity_pct=draw(st.sampled_from([100, 100, 80, 50])), memory_mib=draw(st.sampled_from([None, 3, 5])))
        for n in range(draw(st.integers(1, 3)))
    ]
    shares = st.sampled_from([0, 10, 20, 30, 40, 50, 60, 70, 80, 100, 120, 150, 180, 230])
    jobs = [Job(n, "train", draw(shares), float(draw(st.integers(0, 3)))) for n in range(draw(st.integers(0, 5)))]
    return jobs, gpus


@settings(max_examples=400, deadline=None)
@given(loads())
def test_a_home_is_found_exactly_when_there_is_one(load: tuple[list[Job], list[Gpu]]) -> None:
    jobs, gpus = load
    homes = place(jobs, gpus)
    assert (homes is not None) == can_be_placed(jobs, gpus)
    if homes is not None:
        assert fits(jobs, gpus, homes)
        for job, home in zip(jobs, homes, strict=True):
            assert sorted(home) in [sorted(h) for h in every_home(job, gpus)], "whole devices, and one part at most"
        assert place(jobs, gpus) == homes


def test_backtracking_finds_what_descending_best_fit_misses() -> None:
    # best fit puts 50 with 50 and is left with 40+30+... ; 50+30+20 and 50+40+10 is the way
    jobs = [Job(n, "infer", share, 0.0) for n, share in enumerate([60, 50, 30, 30, 20, 10])]
    gpus = [Gpu(id="a"), Gpu(id="b")]
    homes = place(jobs, gpus)
    assert homes is not None
    assert fits(jobs, gpus, homes)


def test_the_search_gives_up_when_its_tries_are_used() -> None:
    jobs = [Job(n, "infer", 50, 0.0) for n in range(4)]
    gpus = [Gpu(id="a"), Gpu(id="b")]
    assert place(jobs, gpus, nodes=3) is None
    assert place(jobs, gpus, nodes=4) is not None


def test_a_thousand_cameras_on_a_hundred_gpus() -> None:
    jobs = [Job(n // 2, "infer" if n % 2 else "train", (6, 3)[n % 2], 100.0) for n in range(2000)]
    gpus = [Gpu(id=f"g{n}", memory_mib=2500.0) for n in range(100)]
    homes = place(jobs, gpus)
    assert homes is not None
    assert fits(jobs, gpus, homes)


# --- plans ----------------------------------------------------------------------------------------------------------------


def view(name: str, *, knobs_mib: float = 0.0, options_mib: Sequence[float] = (), running: bool = False) -> StreamView:
    options = tuple(
        RetrainOption(name=f"o{n}", end_quality=0.9, cost_gpu_s=10, memory_mib=m) for n, m in enumerate(options_mib)
    )
    knobs = (KnobProfile(name="full", demand_pct=20, quality_frac=1.0, memory_mib=knobs_mib),)
    return StreamView(id=name, quality=0.5, knobs=knobs, retrain=options, running="o0" if running else None)


def snapshot_of(*views: StreamView, gpus: Sequence[Gpu]) -> Snapshot:
    capacity = sum(gpu.capacity_pct for gpu in gpus)
    return Snapshot(remaining_s=100, capacity_pct=capacity, quantum_pct=10, min_quality=0, streams=views, gpus=tuple(gpus))


def plan_of(snapshot: Snapshot, *entries: tuple[int, int]) -> Plan:
    streams = tuple(
        StreamPlan(
            id=stream.id, knobs="full", infer_pct=infer, retrain="o0" if train else None, train_pct=train, expected_quality=0.5
        )
        for stream, (infer, train) in zip(snapshot.streams, entries, strict=True)
    )
    spare = snapshot.capacity_pct - sum(a + b for a, b in entries)
    return Plan(policy="by hand", streams=streams, spare_pct=spare, expected_quality=0.5)


def where(placement: Sequence[Placement] | None) -> list[tuple[str, str, str, int]]:
    assert placement is not None
    return [(p.stream, p.kind, p.gpu, p.share_pct) for p in placement]


TWO = (Gpu(id="a"), Gpu(id="b"))


def test_a_large_share_takes_whole_devices_and_one_part() -> None:
    snapshot = snapshot_of(view("A", options_mib=[0]), view("B"), gpus=(*TWO, Gpu(id="c")))
    placement = pack(snapshot, plan_of(snapshot, (30, 230), (40, 0)))
    assert where(placement) == [
        ("A", "infer", "c", 30), ("A", "train", "a", 100), ("A", "train", "b", 100), ("A", "train", "c", 30),
        ("B", "infer", "c", 40),
    ]  # fmt: skip


def test_a_share_below_a_hundred_is_never_split() -> None:
    snapshot = snapshot_of(view("A"), view("B"), view("C"), gpus=TWO)
    assert pack(snapshot, plan_of(snapshot, (60, 0), (60, 0), (60, 0))) is None
    assert pack(snapshot, plan_of(snapshot, (60, 0), (60, 0), (40, 0))) is not None


def test_a_device_that_gives_out_less_is_whole_at_what_it_gives() -> None:
    small = (Gpu(id="a", capacity_pct=80), Gpu(id="b", capacity_pct=80))
    snapshot = snapshot_of(view("A"), gpus=small)
    assert where(pack(snapshot, plan_of(snapshot, (130, 0)))) == [("A", "infer", "a", 80), ("A", "infer", "b", 50)]
    assert pack(snapshot, plan_of(snapshot, (90, 0))) is None, "below 100 it must lie on one device, and none gives 90"


def test_memory_is_the_second_limit() -> None:
    gpus = (Gpu(id="a", memory_mib=1000), Gpu(id="b", memory_mib=2500))
    snapshot = snapshot_of(view("A", knobs_mib=900, options_mib=[1500]), view("B", knobs_mib=900), gpus=gpus)
    assert where(pack(snapshot, plan_of(snapshot, (20, 20), (20, 0)))) == [
        ("A", "infer", "b", 20), ("A", "train", "b", 20), ("B", "infer", "a", 20)
    ]  # fmt: skip
    tight = replace(snapshot, gpus=(gpus[0], Gpu(id="b", memory_mib=2300)))
    assert pack(tight, plan_of(tight, (20, 20), (20, 0))) is None
    assert pack(tight, plan_of(tight, (20, 20), (0, 0))) is not None, "without a share inference holds nothing"


def test_a_job_on_two_devices_holds_its_memory_on_both() -> None:
    gpus = (Gpu(id="a", memory_mib=2000), Gpu(id="b", memory_mib=2000))
    snapshot = snapshot_of(view("A", knobs_mib=500, options_mib=[1600]), gpus=gpus)
    assert pack(snapshot, plan_of(snapshot, (20, 90))) is not None
    assert pack(snapshot, plan_of(snapshot, (20, 150))) is None


def test_a_paused_retraining_keeps_its_memory() -> None:
    gpus = (Gpu(id="a", memory_mib=2000), Gpu(id="b", memory_mib=1000))
    running = view("A", knobs_mib=500, options_mib=[1600], running=True)
    snapshot = snapshot_of(running, view("B", knobs_mib=700), gpus=gpus)
    assert where(pack(snapshot, plan_of(snapshot, (20, 0), (0, 0)))) == [("A", "infer", "b", 20), ("A", "train", "a", 0)]
    assert pack(snapshot, plan_of(snapshot, (20, 0), (20, 0))) is None


def test_without_devices_nothing_is_placed() -> None:
    snapshot = replace(snapshot_of(view("A"), gpus=TWO), gpus=())
    plan = plan_of(snapshot, (60, 0))
    assert pack(snapshot, plan) == ()
    assert placement_problems(snapshot, plan) == []


@pytest.mark.parametrize(
    ("gpus", "path"),
    [
        ((Gpu(id="a"), Gpu(id="b", capacity_pct=90)), "capacity_pct"),
        ((Gpu(id="a"), Gpu(id="a")), "gpus"),
        ((Gpu(id="a"), Gpu(id="b", capacity_pct=-1)), "gpus[1].capacity_pct"),
        ((Gpu(id="a", capacity_pct=200),), "gpus[0].capacity_pct"),
        ((Gpu(id="a", memory_mib=float("nan")), Gpu(id="b")), "gpus[0].memory_mib"),
    ],
)
def test_devices_that_do_not_add_up_are_refused(gpus: tuple[Gpu, ...], path: str) -> None:
    snapshot = replace(snapshot_of(view("A"), gpus=TWO), gpus=gpus)
    assert [p for p, _ in gpu_problems(snapshot)] == [path]
    with pytest.raises(ConfigError) as caught:
        pack(snapshot, plan_of(snapshot, (60, 0)))
    assert [p for p, _ in caught.value.problems] == [path]


# --- the check itself -----------------------------------------------------------------------------------------------------


def at(stream: str, gpu: str, share: int, kind: str = "infer") -> Placement:
    return Placement(stream=stream, kind=kind, gpu=gpu, share_pct=share)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("placement", "problem"),
    [
        ((at("A", "a", 60),), "('B', 'infer')"),
        ((at("A", "a", 60), at("B", "b", 60)), "not a share of 130"),
        ((at("A", "a", 60), at("B", "b", 100), at("B", "x", 30)), "not there"),
        ((at("A", "a", 60), at("B", "b", 90), at("B", "a", 40)), "more than one part"),
        ((at("A", "a", 30), at("A", "b", 30), at("B", "c", 100), at("B", "b", 30)), "a share below 100"),
        ((at("A", "a", 60), at("B", "a", 100), at("B", "b", 30)), "shares above 100"),
        ((at("A", "c", 60), at("B", "a", 100), at("B", "b", 30)), "MiB held"),
    ],
)
def test_the_check_sees_every_broken_rule(placement: tuple[Placement, ...], problem: str) -> None:
    snapshot = snapshot_of(view("A", knobs_mib=50), view("B", knobs_mib=50), gpus=(*TWO, Gpu(id="c", memory_mib=40)))
    plan = plan_of(snapshot, (60, 0), (130, 0))
    good = replace(plan, placement=(at("A", "a", 60), at("B", "b", 100), at("B", "a", 30)))
    assert placement_problems(snapshot, good) == []
    found = placement_problems(snapshot, replace(plan, placement=placement))
    assert any(problem in text for text in found), found
