"""Salus's policies: the card's examples T4 and T5, FIFO beside them, the latency rule, shares by tokens."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.errors import UsageError
from scheduler.pacing import Pacer
from scheduler.salus import POLICIES, LaneJob, LaneRules, MemoryNeed, lane_policy
from scheduler.salus.policies import join, rejoin, served, with_tokens
from scheduler.salus.simulate import SimJob, SimResult, SimRules, simulate

ONE_LANE = LaneRules(capacity_mib=1.0, max_lanes=1)
#: T4 of the card: (arrival, total, step).
T4 = (
    SimJob(job="J0", arrives_s=0.0, iterations=10, iteration_s=1.0),
    SimJob(job="J1", arrives_s=2.5, iterations=4, iteration_s=0.5),
    SimJob(job="J2", arrives_s=3.2, iterations=3, iteration_s=1.0),
    SimJob(job="J3", arrives_s=3.4, iterations=2, iteration_s=0.5),
)


def timeline(result: SimResult) -> list[tuple[str, float, float]]:
    return [(run.job, pytest.approx(run.start_s), pytest.approx(run.end_s)) for run in result.runs]


def jcts(result: SimResult) -> list[float]:
    return [round(job.jct_s or -1.0, 9) for job in result.jobs]


# --- the card's examples ----------------------------------------------------------------------------------------------


def test_t4_srtf() -> None:
    result = simulate(T4, SimRules(lanes=ONE_LANE, policy="srtf"))
    expected = [("J0", 0, 3), ("J1", 3, 3.5), ("J3", 3.5, 4.5), ("J1", 4.5, 6), ("J2", 6, 9), ("J0", 9, 16)]
    assert timeline(result) == expected
    assert result.mean_jct_s == pytest.approx(6.6)


def test_t4_fifo() -> None:
    result = simulate(T4, SimRules(lanes=ONE_LANE, policy="fifo"))
    assert timeline(result) == [("J0", 0, 10), ("J1", 10, 12), ("J2", 12, 15), ("J3", 15, 16)]
    assert jcts(result) == [10.0, 9.5, 11.8, 12.6]
    assert result.mean_jct_s == pytest.approx(10.975)


T5 = (
    SimJob(job="A", iterations=100, iteration_s=3.0),
    SimJob(job="B", iterations=100, iteration_s=1.0),
    SimJob(job="C", arrives_s=9.0, iterations=100, iteration_s=2.0),
)


def test_t5_fair_with_the_newcomer_at_the_minimum() -> None:
    result = simulate(T5, SimRules(lanes=ONE_LANE, policy="fair", until_s=24.0))
    order = " ".join(run.job * run.iterations for run in result.runs)
    assert order == "A BBB A B C BB C A BB C B"
    service_s = {job: sum(r.end_s - r.start_s for r in result.runs if r.job == job) for job in "ABC"}
    assert service_s == {"A": 9.0, "B": 9.0, "C": 6.0}  # C's real service; it started from 3


def fair_by_hand(newcomer_at_minimum: bool) -> str:
    """T5 through the functions themselves."""
    step_s = {"A": 3.0, "B": 1.0, "C": 2.0}
    jobs = [LaneJob(job="A"), LaneJob(job="B")]
    now_s, order = 0.0, ""
    while now_s < 24.0:
        if now_s == 9.0 and len(jobs) == 2:
            jobs = list(join(jobs, LaneJob(job="C"))) if newcomer_at_minimum else [*jobs, LaneJob(job="C")]
        chosen = lane_policy("fair").pick(now_s, jobs).job
        assert chosen is not None
        order += chosen
        now_s += step_s[chosen]
        jobs = [served(j, step_s[j.job]) if j.job == chosen else j for j in jobs]
    if newcomer_at_minimum:
        assert [j.service_s for j in jobs] == [9.0, 9.0, 9.0]
    return order


def test_t5_newcomer_at_zero_takes_the_lane_until_it_has_caught_up() -> None:
    assert fair_by_hand(newcomer_at_minimum=True) == "A BBB A B C B B C A BB C B".replace(" ", "")
    assert fair_by_hand(newcomer_at_minimum=False) == "A BBB A C C B B C B A B C".replace(" ", "")


# --- each policy ------------------------------------------------------------------------------------------------------


def test_fair_is_weighted_by_the_plan() -> None:
    jobs = [
        SimJob(job=name, iterations=1000, iteration_s=0.01, share_pct=share)
        for name, share in [("A", 60), ("B", 30), ("C", 10)]
    ]
    result = simulate(jobs, SimRules(lanes=ONE_LANE, policy="fair", until_s=5.0))
    got = {job: sum(r.end_s - r.start_s for r in result.runs if r.job == job) for job in "ABC"}
    assert got["A"] == pytest.approx(3.0, abs=0.02)
    assert got["B"] == pytest.approx(1.5, abs=0.02)
    assert got["C"] == pytest.approx(0.5, abs=0.02)


def test_fair_shares_at_once_when_jobs_arrive() -> None:
    """Figure 2.9: three jobs that start at 0, 15 and 30 s have 1, 1/2 and 1/3 of the lane from the moment on."""
    jobs = [SimJob(job=f"J{i}", arrives_s=15.0 * i, iterations=10_000, iteration_s=0.05) for i in range(3)]
    result = simulate(jobs, SimRules(lanes=ONE_LANE, policy="fair", until_s=45.0))

    def share(job: str, from_s: float, to_s: float) -> float:
        return sum(max(0.0, min(r.end_s, to_s) - max(r.start_s, from_s)) for r in result.runs if r.job == job) / (to_s - from_s)

    assert share("J0", 0, 15) == pytest.approx(1.0)
    for job in ("J0", "J1"):
        assert share(job, 15, 20) == pytest.approx(1 / 2, abs=0.02)
        assert share(job, 25, 30) == pytest.approx(1 / 2, abs=0.02)
    for job in ("J0", "J1", "J2"):
        assert share(job, 30, 35) == pytest.approx(1 / 3, abs=0.02)


def test_a_job_without_weight_runs_only_when_nobody_else_does() -> None:
    poor, rich = LaneJob(job="a", weight=0.0), LaneJob(job="b", weight=1.0, service_s=100.0)
    assert lane_policy("fair").pick(0.0, [poor, rich]).job == "b"
    assert lane_policy("fair").pick(0.0, [poor, replace(rich, ready=False)]).job == "a"


def test_a_job_that_rested_has_saved_up_nothing() -> None:
    """Without this a camera that was dark for an hour would own the lane for an hour."""
    busy, rested = LaneJob(job="busy", service_s=3600.0, weight=2.0), LaneJob(job="rested", service_s=10.0)
    assert rejoin([busy, rested], rested).service_s == 1800.0
    assert rejoin([replace(busy, ready=False)], rested).service_s == 10.0  # nobody went on meanwhile
    assert rejoin([busy], replace(rested, service_s=5000.0)).service_s == 5000.0  # nor is anything forgiven


def test_rr_counts_iterations_from_the_last_newcomer_on() -> None:
    jobs = (LaneJob(job="A", iterations=7), LaneJob(job="B", iterations=9))
    assert lane_policy("rr").pick(0.0, jobs).job == "A"
    joined = join(jobs, LaneJob(job="C"))
    assert [j.iterations for j in joined] == [0, 0, 0]
    order = []
    for _ in range(6):
        chosen = lane_policy("rr").pick(0.0, joined).job
        order.append(chosen)
        joined = tuple(served(j, 1.0) if j.job == chosen else j for j in joined)
    assert order == ["A", "B", "C", "A", "B", "C"]


def test_srtf_ties_and_unknown_lengths() -> None:
    srtf = lane_policy("srtf")
    first, second = LaneJob(job="A", total_s=5.0, used_s=3.0), LaneJob(job="B", total_s=2.0)
    assert srtf.pick(0.0, [first, second]).job == "B"  # the one listed later
    assert srtf.pick(0.0, [second, first]).job == "A"
    unknown = LaneJob(job="U", arrived_s=-9.0)
    assert srtf.pick(0.0, [unknown, first]).job == "A"
    assert srtf.pick(0.0, [LaneJob(job="V"), unknown]).job == "U"


@pytest.mark.parametrize("policy", ["fifo", "srtf"])
def test_fifo_and_srtf_leave_the_lane_idle_between_the_iterations_of_the_chosen_job(policy: str) -> None:
    chosen = LaneJob(job="A", ready=False, total_s=1.0)
    other = LaneJob(job="B", arrived_s=1.0, total_s=9.0)
    pick = lane_policy(policy).pick(5.0, [chosen, other])
    assert (pick.job, pick.again_s) == (None, math.inf)


@pytest.mark.parametrize("policy", ["fair", "rr"])
def test_fair_and_rr_fall_through_unless_told_not_to(policy: str) -> None:
    chosen = LaneJob(job="A", ready=False)
    other = LaneJob(job="B", service_s=5.0, iterations=5)
    assert lane_policy(policy).pick(0.0, [chosen, other]).job == "B"
    strict = lane_policy(policy, work_conserving=False).pick(0.0, [chosen, other])
    assert strict.job is None
    assert "not ready" in strict.why


def test_pack_runs_what_asked_first() -> None:
    jobs = [LaneJob(job="A", ready_since_s=2.0), LaneJob(job="B", ready_since_s=1.0), LaneJob(job="C", ready=False)]
    assert lane_policy("pack").pick(3.0, jobs).job == "B"


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_nobody_ready_is_nobody(policy: str) -> None:
    for jobs in ([], [LaneJob(job="A", ready=False)]):
        pick = lane_policy(policy).pick(0.0, jobs)
        assert (pick.job, pick.again_s) == (None, math.inf)
        assert pick.why


def test_an_unknown_policy_is_named_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="lottery") as refused:
        lane_policy("lottery")
    assert set(refused.value.remedy.removeprefix("known: ").split(", ")) == set(POLICIES)


# --- shares by tokens -------------------------------------------------------------------------------------------------


def received(mode: str, *jobs: SimJob, until_s: float = 15.0) -> dict[str, float]:
    """Percent of the lane that each job had from second 5 on."""
    rules = SimRules(lanes=ONE_LANE, policy="plan", mode=mode, until_s=until_s)  # type: ignore[arg-type]
    runs = simulate(jobs, rules).runs
    return {
        j.job: 100 * sum(max(0.0, r.end_s - max(5.0, r.start_s)) for r in runs if r.job == j.job) / (until_s - 5.0)
        for j in jobs
    }


BUSY = [
    SimJob(job=name, iterations=100_000, iteration_s=0.02, share_pct=share)
    for name, share in [("A", 50.0), ("B", 30.0), ("C", 10.0)]
]


def test_plan_keeps_the_schedulers_shares() -> None:
    got = received("capped", *BUSY)
    assert got == {"A": pytest.approx(50, abs=1), "B": pytest.approx(30, abs=1), "C": pytest.approx(10, abs=1)}


def test_plan_lends_what_nobody_uses_in_proportion() -> None:
    got = received("work-conserving", *BUSY[:2])
    assert got == {"A": pytest.approx(62.5, abs=1), "B": pytest.approx(37.5, abs=1)}


def test_plan_says_when_to_ask_again() -> None:
    pacer = Pacer(capacity_pct=100.0)
    pacer.open("A", 0.0)
    pacer.set_shares({"A": 50.0}, 0.0)
    pacer.want("A", 0.0)
    pacer.start("A", 0.0)
    pacer.charge("A", 0.1, 0.1, done=True)  # 0.05 s were its own, 0.05 s it owes: 0.1 s at 50 pct
    cards = with_tokens([LaneJob(job="A")], pacer, 0.1)
    pick = lane_policy("plan").pick(0.1, cards)
    assert pick.job is None
    assert pick.again_s == pytest.approx(0.2)
    assert lane_policy("plan").pick(0.2, with_tokens([LaneJob(job="A")], pacer, 0.2)).job == "A"


# --- latency ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_inference_goes_first_at_a_boundary_whatever_the_policy(policy: str) -> None:
    learn = LaneJob(job="A", total_s=1.0, arrived_s=0.0)
    infer = LaneJob(job="Z", role="infer", total_s=100.0, arrived_s=9.0, service_s=50.0, iterations=50, ready_since_s=9.0)
    assert lane_policy(policy).pick(9.0, [learn, infer]).job == "Z"
    assert lane_policy(policy, infer_first=False).pick(9.0, [learn, infer]).job == "A"
    assert lane_policy(policy).pick(9.0, [learn, replace(infer, ready=False)]).job == "A"


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_learning_runs_between_the_frames_of_a_camera_that_never_ends(policy: str) -> None:
    """The camera came first and its length is not known: neither is a reason to keep the lane for its next frame."""
    camera = SimJob(job="camera", role="infer", iterations=1_000, iteration_s=0.005, gap_s=0.028, share_pct=40.0)
    training = SimJob(job="training", arrives_s=0.5, iterations=20, iteration_s=0.05, share_pct=60.0)
    result = simulate([camera, training], SimRules(lanes=ONE_LANE, policy=policy, until_s=10.0))
    learned = next(job for job in result.jobs if job.job == "training")
    assert learned.fate == "done"
    assert learned.ended_s is not None
    assert learned.ended_s < 4.0


def test_inference_without_tokens_does_not_stop_the_others() -> None:
    infer = LaneJob(job="camera", role="infer", wait_s=0.5, saved_s=-0.1)
    learn = LaneJob(job="training", saved_s=0.1)
    assert lane_policy("plan").pick(1.0, [infer, learn]).job == "training"
    nobody = lane_policy("plan").pick(1.0, [infer, replace(learn, wait_s=2.0)])
    assert (nobody.job, nobody.again_s) == (None, 1.5)


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_frame_waits_for_the_rest_of_one_iteration_at_most(policy: str) -> None:
    camera = SimJob(job="camera", role="infer", iterations=40, iteration_s=0.005, gap_s=0.028, share_pct=40.0)
    trainings = [SimJob(job=f"T{i}", iterations=40, iteration_s=0.05, share_pct=30.0) for i in range(2)]
    result = simulate([camera, *trainings], SimRules(lanes=ONE_LANE, policy=policy))
    assert result.jobs[0].waited_s <= 0.05 + 1e-6
    # Trainings work picture by picture (`models.retrain`), so their iterations are a fraction of a batch's.
    shorter = [replace(t, iterations=160, iteration_s=0.0125) for t in trainings]
    assert simulate([camera, *shorter], SimRules(lanes=ONE_LANE, policy=policy)).jobs[0].waited_s <= 0.0125 + 1e-6


# --- fairness as a property -------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.floats(0.01, 0.5), st.floats(0.5, 8.0)), min_size=2, max_size=5))
def test_fair_never_lets_two_busy_jobs_drift_apart_by_more_than_their_iterations(jobs: list[tuple[float, float]]) -> None:
    """For jobs that are always ready: service per weight of any two differs by one iteration of either at most, at every boundary."""
    cards = tuple(LaneJob(job=f"J{i}", weight=weight) for i, (_, weight) in enumerate(jobs))
    step_s = {f"J{i}": seconds for i, (seconds, _) in enumerate(jobs)}
    for _ in range(200):
        chosen = lane_policy("fair").pick(0.0, cards).job
        assert chosen is not None
        cards = tuple(served(c, step_s[chosen]) if c.job == chosen else c for c in cards)
        service = {c.job: c.service_s / c.weight for c in cards}
        piece = {c.job: step_s[c.job] / c.weight for c in cards}
        for a in service:
            for b in service:
                assert service[a] - service[b] <= piece[a] + 1e-6


def test_paused_jobs_keep_their_memory_under_srtf() -> None:
    """What can be enforced of SRTF's admission: SP + P + max(L, E) on the one lane."""
    rules = SimRules(lanes=LaneRules(capacity_mib=10.0, max_lanes=1), policy="srtf")
    long = SimJob(job="long", iterations=10, iteration_s=1.0, declared=MemoryNeed(persistent_mib=4.0, ephemeral_mib=4.0))
    short = SimJob(
        job="short", arrives_s=2.5, iterations=1, iteration_s=1.0, declared=MemoryNeed(persistent_mib=2.0, ephemeral_mib=4.0)
    )
    assert [run.job for run in simulate([long, short], rules).runs] == ["long", "short", "long"]
    large = replace(short, declared=MemoryNeed(persistent_mib=3.0, ephemeral_mib=4.0))  # 4 + 3 + 4: fits alone, not beside
    assert [run.job for run in simulate([long, large], rules).runs] == ["long", "short"]
