"""The simulated device: memory truth against declarations, liars and leaks beside honest jobs, lanes side by side, time shared out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler.salus import LaneRules, MemoryNeed
from scheduler.salus.random_jobs import random_sequence
from scheduler.salus.simulate import SimJob, SimResult, SimRules, simulate

C = 16_000.0
RULES = SimRules(lanes=LaneRules(capacity_mib=C), policy="fair")


def need(persistent_mib: float, ephemeral_mib: float) -> MemoryNeed:
    return MemoryNeed(persistent_mib=persistent_mib, ephemeral_mib=ephemeral_mib)


HONEST = SimJob(job="honest", iterations=40, iteration_s=0.1, declared=need(1000, 6000))


def fates(result: SimResult) -> dict[str, str]:
    return {job.job: job.fate for job in result.jobs}


def test_honest_jobs_take_what_they_said() -> None:
    other = replace(HONEST, job="other", declared=need(500, 4000))
    result = simulate([HONEST, other], RULES)
    assert fates(result) == {"honest": "done", "other": "done"}
    assert result.peak_mib == 1000 + 6000 + 500 + 4000
    assert (result.refused_allocations, result.out_of_memory) == (0, ())


def test_jobs_of_one_lane_never_hold_both_of_their_iterations() -> None:
    result = simulate([HONEST, replace(HONEST, job="other")], replace(RULES, lanes=replace(RULES.lanes, max_lanes=1)))
    assert result.peak_mib == 2 * 1000 + 6000
    ends = 0.0
    for run in result.runs:
        assert run.start_s >= ends - 1e-9
        ends = run.end_s


@pytest.mark.parametrize(("width", "makespan_s"), [(1.0, 8.0), (2.0, 4.0)])
def test_lanes_share_the_device(width: float, makespan_s: float) -> None:
    result = simulate([HONEST, replace(HONEST, job="other")], replace(RULES, width=width))
    assert {run.lane for run in result.runs} == {1, 2}
    assert result.makespan_s == pytest.approx(makespan_s)


def test_a_liar_is_refused_measured_and_grows() -> None:
    liar = replace(HONEST, job="liar", declared=need(500, 2000), truth=need(500, 5000))
    result = simulate([HONEST, liar], RULES)
    assert fates(result) == {"honest": "done", "liar": "done"}
    assert result.refused_allocations == 1
    assert [d.kind for _, d in result.decisions if d.job == "liar"][:2] == ["placed", "resized"]
    assert result.out_of_memory == ()


def test_a_liar_that_cannot_grow_waits_while_the_others_go_on() -> None:
    liar = replace(HONEST, job="liar", declared=need(500, 2000), truth=need(2000, 13_500))
    result = simulate([HONEST, liar], RULES)
    assert fates(result) == {"honest": "done", "liar": "done"}
    kinds = [d.kind for _, d in result.decisions if d.job == "liar"]
    assert kinds[:3] == ["placed", "paused", "placed"]
    honest, late = result.jobs
    assert late.waited_s == pytest.approx((honest.ended_s or 0.0) - 0.2, abs=0.2)


def test_a_liar_that_can_never_fit_is_removed_with_a_reason_and_the_others_go_on() -> None:
    liar = replace(HONEST, job="liar", declared=need(500, 2000), truth=need(9000, 9000))
    result = simulate([HONEST, liar], RULES)
    assert fates(result) == {"honest": "done", "liar": "removed"}
    assert result.jobs[1].why == (
        "it used 9000 MiB + 9000 MiB in an iteration and was promised 500 MiB + 2000 MiB in an iteration; "
        "jobs may hold 1.6e+04 MiB in all: give it smaller batches or pictures"
    )


def test_a_leak_is_removed_and_the_others_go_on() -> None:
    leak = replace(HONEST, job="leak", iterations=400, declared=need(1000, 2000), leak_mib=30.0)
    result = simulate([HONEST, leak], RULES)
    assert fates(result) == {"honest": "done", "leak": "removed"}
    assert "a leak" in result.jobs[1].why
    assert result.jobs[1].iterations < 60
    assert result.out_of_memory == ()


def test_a_crash_frees_what_the_job_held() -> None:
    crash = replace(HONEST, job="crash", declared=need(1500, 14_000), crashes_in=2)
    waits = replace(HONEST, arrives_s=0.05)
    result = simulate([crash, waits], RULES)
    assert fates(result) == {"crash": "crashed", "honest": "done"}
    assert result.jobs[1].placed_s == pytest.approx(0.3)


def test_a_job_that_declares_nothing_runs_alone_until_it_is_measured() -> None:
    silent = replace(HONEST, job="silent", declared=None, truth=need(1000, 3000))
    result = simulate([silent, replace(HONEST, arrives_s=0.05)], RULES)
    assert fates(result) == {"silent": "done", "honest": "done"}
    assert result.jobs[1].placed_s == pytest.approx(0.5)  # two to warm up, three to settle
    assert [d.kind for _, d in result.decisions if d.job == "silent"][:2] == ["placed", "resized"]


def test_without_enforcement_a_lie_can_exhaust_the_device() -> None:
    """Why a device that cannot hold jobs to their grants needs honest numbers, and that the simulation sees it."""
    liar = replace(HONEST, job="liar", declared=need(500, 2000), truth=need(500, 9000))
    free = simulate([HONEST, liar], replace(RULES, enforced=False))
    assert [job for _, _, job in free.out_of_memory] == ["liar"]
    assert fates(free) == {"honest": "done", "liar": "killed"}
    assert free.peak_mib == 1000 + 6000 + 500 + 9000
    held = simulate([HONEST, liar], RULES)
    assert held.out_of_memory == ()
    assert held.peak_mib <= C


def test_an_inference_with_gaps_asks_again_after_each() -> None:
    camera = SimJob(job="camera", role="infer", iterations=5, iteration_s=0.01, gap_s=0.09)
    result = simulate([camera], RULES)
    assert [round(run.start_s, 9) for run in result.runs] == [0.0, 0.1, 0.2, 0.3, 0.4]


def test_the_same_question_has_the_same_answer() -> None:
    for seed in range(2):
        assert simulate(*random_sequence(seed)) == simulate(*random_sequence(seed))


def test_time_can_be_cut_off() -> None:
    result = simulate([HONEST], replace(RULES, until_s=1.05))
    assert fates(result) == {"honest": "unfinished"}
    assert result.jobs[0].iterations == 10
    assert result.mean_jct_s is None


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"iterations": 0}, "1 or more iterations"),
        ({"iteration_s": 0.0}, "more than 0 s"),
        ({"declared": None}, "really needs"),
    ],
)
def test_jobs_that_cannot_be_are_refused(changed: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(HONEST, **changed)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="same name"):
        simulate([HONEST, HONEST], RULES)
