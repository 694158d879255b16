"""What Orloj and the baselines decide in small situations, and the world they are judged in."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.orloj.backlog import best_places, kept, lost_s
from scheduler.orloj.hindsight import most_in_time
from scheduler.orloj.policy import Orloj, OrlojRules, PrintedOrloj, orloj, sums_of_best
from scheduler.orloj.registry import make_batch_policy
from scheduler.orloj.simulate import Job, Stage, World, simulate
from scheduler.orloj.types import BatchPolicy, ModelCost, Request
from scheduler.orloj.workloads import PUBLISHED, SLOS, WORKLOADS, arrivals_s, make_case

COST = ModelCost(c0_s=0.4, c1=0.15, sizes=(1, 2, 4))
IDS = itertools.count(1000)


def asked(id: int, deadline_s: float, app: str = "a", **more: Any) -> Request:
    return Request(id=id, app=app, model="m", released_s=0.0, deadline_s=deadline_s, **more)


def filled(policy: BatchPolicy, requests: list[Request], cost: ModelCost = COST, **alone_s: float) -> BatchPolicy:
    policy.add_model("m", cost)
    for app, time_s in (alone_s or {"a": 1.0}).items():
        for i in range(20):
            policy.sample("m", app, time_s * (1 + 0.001 * i), 0.0)
    for request in requests:
        policy.submit(request, 0.0)
    return policy


def served(policy: BatchPolicy, now_s: float = 0.0) -> list[int]:
    batch = policy.decide(now_s).batch
    return [r.id for r in batch.requests] if batch else []


def test_short_ones_run_without_the_long_ones() -> None:
    """Two short ones take 0.4 + 0.15 * 2 * 0.2; with a long one among them the batch would last 1.9, and one of four would be left."""
    requests = [asked(1, 2.0, "long"), asked(2, 2.5, "short"), asked(3, 2.5, "short"), asked(4, 2.5, "long")]
    policy = filled(Orloj(), requests, short=0.2, long=5.0)
    assert [served(policy), sorted(served(policy, 1.2))] == [[1], [2, 3]]
    assert sorted(served(filled(PrintedOrloj(), requests, short=0.2, long=5.0))) != [2, 3]


def test_the_urgent_goes_first_while_nothing_is_lost() -> None:
    """Alone 1 is worth less per second than 2, but 2 has time."""
    one = ModelCost(sizes=(1,))
    requests = [asked(1, 1.5, "long"), asked(2, 9.0, "short")]
    assert served(filled(Orloj(), requests, one, short=0.2, long=1.0)) == [1]
    crowd = [asked(i, 1.6, "short") for i in range(2, 10)]
    assert served(filled(Orloj(), [requests[0], *crowd], one, short=0.2, long=1.0)) == [
        2
    ]  # something is lost: the most per second


def test_hopeless_ones_are_dropped_once_and_by_their_own_law() -> None:
    policy = filled(Orloj(), [asked(1, 0.5, "long"), asked(2, 0.5, "short")], short=0.2, long=5.0)
    decision = policy.decide(0.0)
    assert [r.id for r in decision.dropped] == [1]
    assert decision.batch is not None
    assert [r.id for r in decision.batch.requests] == [2]


def test_penalties_and_what_a_frame_needs_later_count() -> None:
    one = ModelCost(sizes=(1,))
    rivals = [asked(1, 1.4), asked(2, 1.4, penalty=3.0)]
    assert served(filled(Orloj(), rivals, one)) == [2]
    rivals = [asked(1, 1.4, after_s=0.2), asked(2, 1.4)]
    assert served(filled(Orloj(), rivals, one)) == [2]
    assert [r.id for r in filled(Orloj(), [asked(1, 1.4, after_s=0.5)], one).decide(0.0).dropped] == [1]


@settings(max_examples=60, deadline=None)
@given(
    variant=st.sampled_from(["ours", "printed"]), alone_s=st.floats(0.01, 10.0), room=st.floats(1.1, 1.9),
    penalty=st.floats(0.01, 1000.0), times=st.floats(1.01, 100.0), heavier=st.sampled_from([1, 2]),
    sizes=st.sampled_from([(1,), (1, 2)]),
)  # fmt: skip
def test_of_two_that_differ_in_nothing_else_the_one_that_costs_more_to_lose_is_served(
    variant: str, alone_s: float, room: float, penalty: float, times: float, heavier: int, sizes: tuple[int, ...]
) -> None:
    """There is time for one of them, in a batch or not: whichever came first, and whatever the scale of penalties."""
    lighter = 3 - heavier
    penalties = {heavier: penalty * times, lighter: penalty}
    rivals = [asked(id, room * alone_s, penalty=penalties[id]) for id in (1, 2)]
    policy = filled(orloj(OrlojRules(variant=variant)), rivals, ModelCost(sizes=sizes), a=alone_s)  # type: ignore[arg-type]
    assert served(policy) == [heavier]
    late = policy.decide(1.02 * alone_s)
    assert (late.batch, [r.id for r in late.dropped]) == (None, [lighter])


def test_worthless_requests_are_served_when_nothing_else_waits() -> None:
    policy = filled(Orloj(), [asked(1, 9.0, penalty=0.0), asked(2, 9.0, penalty=0.0)])
    assert {*served(policy), *served(policy)} == {1, 2}


def test_of_two_models_the_one_worth_more_per_second_runs() -> None:
    for variant in ("ours", "printed"):
        policy = orloj(OrlojRules(variant=variant))  # type: ignore[arg-type]
        for model, time_s in (("slow", 2.0), ("fast", 0.1)):
            policy.add_model(model, ModelCost(sizes=(1,)))
            for _ in range(20):
                policy.sample(model, "a", time_s, 0.0)
            for i in range(2):
                id_ = i + 10 * (model == "fast")
                policy.submit(Request(id=id_, app="a", model=model, released_s=0.0, deadline_s=2.05), 0.0)
        decision = policy.decide(0.0)
        assert decision.batch is not None
        assert decision.batch.model == "fast"


def test_drift_changes_what_is_expected_within_the_window() -> None:
    policy = filled(Orloj(), [])
    for i in range(600):
        policy.sample("m", "a", 3.0, 1000.0 + i)
    policy.submit(asked(1, 2000.0), 1600.0)
    decision = policy.decide(1600.0)
    assert decision.batch is not None
    assert decision.batch.expected_s == pytest.approx(0.4 + 0.15 * 3.0, rel=1e-2)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), n=st.integers(1, 30), k=st.integers(1, 40))
def test_best_places_are_the_stable_sort(seed: int, n: int, k: int) -> None:
    scores = np.random.default_rng(seed).integers(0, 6, n).astype(float)
    assert best_places(scores, k).tolist() == np.argsort(-scores, kind="stable")[:k].tolist()
    assert sums_of_best(scores[None], np.array([k]))[0] == pytest.approx(np.sort(scores)[::-1][:k].sum())


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**31), n=st.integers(1, 9), batch_s=st.floats(0, 4))
def test_lost_work_is_what_no_order_can_save(seed: int, n: int, batch_s: float) -> None:
    """For equal requests the fluid bound is what Moore and Hodgson's rule loses, up to the one that is cut."""
    rng = np.random.default_rng(seed)
    slack_s = np.sort(rng.uniform(0, 8, n))
    found = float(lost_s(slack_s, np.ones((1, n)), np.array([batch_s]))[0])
    done = 0
    for s in slack_s:  # equal work: serve each that can still be ready
        done += batch_s + done + 1 <= s
    assert n - done - 1 <= found + 1e-9
    assert found <= n - done + 1e-9


@settings(max_examples=80)
@given(seed=st.integers(0, 2**31), n=st.integers(1, 30))
def test_what_is_kept_can_be_in_time_and_of_equal_worth_it_is_the_most(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    due_s, work_s = rng.uniform(-0.5, 8, n), rng.uniform(0.1, 2, n)
    stays = kept(due_s, work_s, np.ones(n), np.full(n, -1))
    order = np.argsort(due_s)
    assert (np.cumsum((work_s * stays)[order])[stays[order]] <= due_s[order][stays[order]] + 1e-9).all()
    assert stays.sum() == most_in_time(np.zeros(n), due_s, work_s)


@settings(max_examples=60)
@given(seed=st.integers(0, 2**31), n=st.integers(2, 40))
def test_requests_that_are_of_use_only_together_stay_or_go_together(seed: int, n: int) -> None:
    rng = np.random.default_rng(seed)
    together = rng.integers(-1, 6, n)
    due_s = np.where(together >= 0, 2.0 + together, rng.uniform(0, 8, n))
    work_s, worth = rng.uniform(0.05, 1, n), rng.uniform(0, 1, n)
    stays = kept(due_s, work_s, worth, together)
    for number in set(together[together >= 0].tolist()):
        assert len(set(stays[together == number].tolist())) == 1
    order = np.argsort(due_s, kind="stable")
    assert (np.cumsum((work_s * stays)[order])[stays[order]] <= due_s[order][stays[order]] + 1e-9).all()


def test_what_is_worth_least_for_its_work_goes_and_what_has_no_time_drives_nobody_out() -> None:
    alone = np.full(3, -1)
    assert kept(np.array([2.0, 2.0, 2.5]), np.array([1.0, 1.5, 1.0]), np.ones(3), alone).tolist() == [True, False, True]
    assert kept(np.array([2.0, 2.0, 2.5]), np.array([1.0, 1.5, 1.0]), np.array([1.0, 9.0, 0.9]), alone).tolist() == [
        False,
        True,
        True,
    ]
    assert kept(np.full(3, 2.0), np.ones(3), np.ones(3), alone).tolist() == [True, True, False]  # of equals the latest
    assert kept(np.array([1.0, 2.0, 0.5]), np.array([1.0, 1.0, 0.6]), np.ones(3), alone).tolist() == [True, True, False]
    assert kept(np.array([0.0, 1e-17]), np.zeros(2), np.ones(2), alone[:2]).tolist() == [True, True]


def test_frames_that_need_more_afterwards_still_share_a_batch() -> None:
    """Four pictures take 0.4 + 0.15 * 4; what their crops will need later is a reason against none of them."""
    policy = filled(Orloj(), [asked(i, 9.0 + i, after_s=0.3) for i in range(4)])
    assert sorted(served(policy)) == [0, 1, 2, 3]


def test_a_crowd_of_crops_is_given_up_whole() -> None:
    """Two frames of three crops and one of a single one: 7 s of work and 5 s left. Crop by crop both frames would be begun."""
    one = ModelCost(sizes=(1,))
    crowds = [asked(10 * n + i, 5.0 + 0.1 * n, together=n, penalty=1 / 3) for n in (1, 2) for i in range(3)]
    policy = filled(Orloj(), [*crowds, asked(5, 5.3, together=5)], one)
    taken = [served(policy, 1.01 * k)[0] for k in range(4)]
    assert sorted(taken) in ([5, 10, 11, 12], [5, 20, 21, 22])


# --- baselines ----------------------------------------------------------------------------------------------------------


def test_clipper_grows_until_a_batch_is_late_and_backs_off() -> None:
    policy = filled(make_batch_policy("clipper"), [asked(i, 5.0) for i in range(200)], ModelCost(sizes=(1, 2, 4, 8, 16)))
    sizes = []
    for took_s in (1, 1, 1, 1, 9, 9):
        batch = policy.decide(0.0).batch
        assert batch is not None
        sizes.append(len(batch.requests))
        policy.ran(batch, float(took_s), 0.0)
    assert sizes == [1, 2, 3, 4, 5, 4]


def test_edf_takes_the_largest_batch_that_saves_the_first() -> None:
    policy = filled(make_batch_policy("edf"), [asked(1, 0.72), *(asked(i, 9.0) for i in range(2, 6))])
    assert served(policy) == [1, 2]  # 0.4 + 0.15 * 2 = 0.7 is in time, four would take 1.0
    assert served(policy) == [3, 4]
    assert served(policy) == [5]


def test_fifo_ignores_deadlines_and_drops_nothing() -> None:
    policy = filled(make_batch_policy("fifo"), [asked(3, 9.0), asked(2, 1.0), asked(1, -5.0)], ModelCost(sizes=(1, 2)))
    assert [served(policy), served(policy)] == [[3, 2], [1]]


def test_nexus_skips_what_has_no_time_for_its_window() -> None:
    policy = filled(make_batch_policy("nexus"), [asked(1, 0.5), *(asked(i, 9.0) for i in range(2, 9))])
    decision = policy.decide(0.0)
    assert [r.id for r in decision.dropped] == [1]
    assert decision.batch is not None
    assert decision.batch.requests[0].id == 2


#: A batch of k average requests takes 0.1 + 0.1 k seconds.
PACKED = ModelCost(c0_s=0.1, c1=0.1, sizes=(1, 2, 4, 8, 16))


def planned(
    streams: dict[str, tuple[int, float]], now_s: float = 0.0, nexus: BatchPolicy | None = None
) -> list[tuple[str, int]]:
    """What Nexus runs in one turn, in order: (model, requests), all being there at once. streams: model -> (arrivals of the last 10 s,
    objective in seconds)."""
    policy = nexus or make_batch_policy("nexus")
    for model, (arrivals, slo_s) in streams.items():
        policy.add_model(model, PACKED)
        policy.sample(model, "a", 1.0, now_s)
        for _ in range(arrivals):
            request = Request(id=next(IDS), app="a", model=model, released_s=now_s, deadline_s=now_s + slo_s)
            policy.submit(request, now_s)
    batches = [policy.decide(now_s).batch for _ in streams]
    return [(batch.model, len(batch.requests)) for batch in batches if batch is not None]


@pytest.mark.parametrize(
    ("arrivals", "slo_s", "size"),
    [(400, 4.0, 16), (400, 2.0, 8), (400, 1.1, 4), (40, 2.0, 4), (20, 2.0, 2), (20, 0.3, 1)],
)
def test_nexus_sizes_follow_the_rate_and_the_objective(arrivals: int, slo_s: float, size: int) -> None:
    """Saturated, twice the run fits the objective; else the time to gather the batch and one run do."""
    assert planned({"m": (arrivals, slo_s)}) == [("m", size)]


def test_nexus_plans_for_all_applications_of_a_model_together() -> None:
    """2.5 a second each: 4 can be gathered and run within the tighter objective of 1.5 s; at one's rate only 2 could. Long ones make
    the mean longer."""
    policy = filled(make_batch_policy("nexus"), [], PACKED)
    for app, slo_s in (("a", 1.5), ("b", 60.0)):
        for _ in range(25):
            policy.submit(Request(id=next(IDS), app=app, model="m", released_s=0.0, deadline_s=slo_s), 0.0)
    assert len(served(policy)) == 4
    longer = filled(make_batch_policy("nexus"), [], PACKED, a=1.0, b=2.5)
    for _ in range(50):
        longer.submit(Request(id=next(IDS), app="b", model="m", released_s=0.0, deadline_s=1.5), 0.0)
    assert len(served(longer)) == 2  # 0.1 + 0.1 * 4 * 1.75 = 0.8, and twice that is too long


def test_nexus_squeezes_all_models_into_one_duty_cycle() -> None:
    """Alone 8 (0.9 s) fit 2.2 s, and 16 (1.7 s) fit 8 s; a turn of all has half of the shortest objective."""
    assert planned({"a": (400, 2.2)}) == [("a", 8)]
    assert planned({"b": (400, 8.0)}) == [("b", 16)]
    assert planned({"a": (400, 2.2), "b": (400, 8.0)}) == [("a", 4), ("b", 4)]  # 0.5 + 0.5 in 1.1
    assert planned({"a": (400, 8.0), "b": (400, 8.0)}) == [("a", 16), ("b", 16)]  # 1.7 + 1.7 in 4
    assert planned(dict.fromkeys("abc", (400, 8.0))) == [("a", 8), ("b", 8), ("c", 16)]  # no more than it takes: 3.5 in 4


def test_nexus_leaves_other_models_their_sizes_when_its_longest_batch_has_one_request_only() -> None:
    """A turn of one slow request (1.1 s) and 16 quick ones (0.18 s) does not fit 1.2 s. One of 4 quick ones would, and keep up with
    a quarter of them."""
    policy = make_batch_policy("nexus")
    for model, cost, alone_s in (("slow", PACKED, 10.0), ("quick", ModelCost(c0_s=0.02, c1=0.1, sizes=PACKED.sizes), 0.1)):
        policy.add_model(model, cost)
        policy.sample(model, "a", alone_s, 0.0)
        for _ in range(400):
            policy.submit(Request(id=next(IDS), app="a", model=model, released_s=0.0, deadline_s=2.4), 0.0)
    batches = [policy.decide(0.0).batch for _ in range(2)]
    assert [(batch.model, len(batch.requests)) for batch in batches if batch is not None] == [("slow", 1), ("quick", 16)]


def test_nexus_plans_anew_every_epoch() -> None:
    policy = make_batch_policy("nexus")
    assert planned({"m": (20, 2.0)}, 0.0, policy) == [("m", 2)]
    assert planned({"m": (380, 2.0)}, 9.9, policy) == [("m", 2)]
    assert planned({"m": (1, 2.0)}, 10.1, policy) == [("m", 8)]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(16, 300), st.floats(0.4, 12.0)), min_size=1, max_size=5))
def test_nexus_never_plans_more_than_the_machine_has(streams: list[tuple[int, float]]) -> None:
    """A turn of all models fits half of the shortest objective, unless every batch has one request only; each batch fits its own."""
    asked_for = {f"m{i}": stream for i, stream in enumerate(streams)}
    size = dict(planned(asked_for))
    assert size.keys() == asked_for.keys()
    assert set(size.values()) <= set(PACKED.sizes)
    run_s = {model: PACKED.c0_s + PACKED.c1 * k for model, k in size.items()}
    assert sum(run_s.values()) <= min(slo_s for _, slo_s in streams) / 2 + 1e-9 or max(size.values()) == 1
    for model, (arrivals, slo_s) in asked_for.items():
        assert 2 * run_s[model] <= slo_s + 1e-9
        assert size[model] == 1 or 10 * size[model] / arrivals + run_s[model] <= slo_s + 1e-9


def test_clockwork_cancels_an_action_that_comes_too_late() -> None:
    policy = filled(make_batch_policy("clockwork"), [asked(1, 1.0), asked(2, 9.0)], ModelCost(sizes=(1,)), a=0.5)
    first = policy.decide(0.0)
    assert first.batch is not None
    assert [r.id for r in first.batch.requests] == [1]
    late = policy.decide(3.0)  # the first was to take 0.5
    assert [r.id for r in late.dropped] == [2]
    punctual = filled(make_batch_policy("clockwork"), [asked(1, 1.0), asked(2, 9.0)], ModelCost(sizes=(1,)), a=0.5)
    punctual.decide(0.0)
    assert served(punctual, 0.5) == [2]


# --- the world ----------------------------------------------------------------------------------------------------------


def job(at_s: float, slo_s: float, *stages: tuple[float, ...]) -> Job:
    models = ("m", "n")
    parts = tuple(Stage(model=m, alone_s=s) for m, s in zip(models, stages, strict=False))
    return Job(app="a", released_s=at_s, deadline_s=at_s + slo_s, stages=parts)


ONE = {"m": ModelCost(sizes=(1,)), "n": ModelCost(sizes=(1, 2))}


def test_the_world_counts_finished_late_and_dropped() -> None:
    found = simulate(make_batch_policy("fifo"), World(costs=ONE), [job(0, 2, (1.0,)), job(0, 1.5, (1.0,)), job(9, 2, (1.0,))])
    assert (found.finished, found.late, found.dropped, found.jobs) == (2, 1, 0, 3)
    assert (found.busy_s, found.ended_s) == (3.0, 10.0)
    dropped = simulate(
        make_batch_policy("edf"), World(costs=ONE), [job(0, 2, (1.0,)), job(0, 0.5, (1.0,)), job(0, 0.9, (1.0,))]
    )
    assert dropped.finished + dropped.late + dropped.dropped == 3
    assert dropped.dropped == 1


def test_a_cascade_is_finished_with_its_last_part_and_fails_as_a_whole() -> None:
    found = simulate(make_batch_policy("fifo"), World(costs=ONE), [job(0, 9, (1.0,), (0.5, 0.5))])
    assert (found.finished, found.busy_s) == (1, 2.0)  # the crops as one batch of 2, each 0.5 alone
    none = simulate(make_batch_policy("fifo"), World(costs=ONE), [job(0, 9, (1.0,), ())])
    assert none.finished == 1
    late = simulate(make_batch_policy("fifo"), World(costs=ONE), [job(0, 1.2, (1.0,), (0.5, 0.5, 0.5))])
    assert (late.finished, late.late) == (0, 1)


def test_the_profiler_uses_gaps_that_are_long_enough() -> None:
    world = World(costs=ONE, probe_frac=1.0)
    gaps = simulate(make_batch_policy("orloj"), world, [job(10.0 * i, 5, (1.0,)) for i in range(10)])
    assert gaps.probes == 9
    packed = simulate(make_batch_policy("orloj"), world, [job(1.5 * i, 5, (1.0,)) for i in range(10)])
    assert packed.probes == 0
    assert packed.finished == 10


def test_the_same_seed_gives_the_same_world() -> None:
    case = make_case(WORKLOADS[1], 2.0, load=0.7, count=200, seed=4)
    first, second = (simulate(make_batch_policy("orloj"), case.world, case.jobs, seed=1) for _ in range(2))
    assert first == second
    assert make_case(WORKLOADS[1], 2.0, load=0.7, count=200, seed=4) == case


def test_arrivals_are_bursty_ascend_and_keep_the_rate() -> None:
    at_s = np.concatenate([np.diff(arrivals_s(np.random.default_rng(s), 3000, 0.1)) for s in range(20)])
    assert (at_s >= 0).all()
    assert at_s.mean() == pytest.approx(0.1, rel=0.15)
    assert at_s.std() / at_s.mean() > 1.1  # a Poisson stream has 1


def test_the_published_table_is_whole() -> None:
    assert len(WORKLOADS) == 25 == len(PUBLISHED.strip().splitlines())
    assert all(len(rates) == len(SLOS) for w in WORKLOADS for rates in w.paper.values())
    assert {w.name: w.paper["orloj"] for w in WORKLOADS}["1 mode"] == (46, 74, 98, 100, 100)


@pytest.mark.parametrize("name", ["bimodal sd 1", "static ResNet"])
def test_orloj_leads_the_baselines_on_the_cards_workloads(name: str) -> None:
    workload = next(w for w in WORKLOADS if w.name == name)
    case = make_case(workload, 2.0, load=0.7, count=500, seed=2)
    rate = {
        p: simulate(make_batch_policy(p), case.world, case.jobs).finish_rate
        for p in ("orloj", "clockwork", "nexus", "edf", "fifo")
    }
    best = max(v for p, v in rate.items() if p != "orloj")
    assert rate["orloj"] >= best - 0.02
    assert name.startswith("static") or rate["orloj"] > best + 0.05
