"""Corrections of profiles, placement on machines, and the closed loop in virtual time."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.videostorm import Correction, Option, Rules, Utility, allocate, fair_allocation
from scheduler.videostorm.loop import LoopQuery, Policy, between, late_frac, run_loop, seen_quality
from scheduler.videostorm.mu import MU_MAX, MU_MIN
from scheduler.videostorm.placement import Demand, Machine, PlacementRules, best_move, migrations, place, place_all, score

# --- mu ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("real", [0.5, 1.0, 2.0])
def test_mu_converges_to_the_real_need_whatever_the_share(real: float) -> None:
    for share_pct in (10.0, 40.0, 90.0):
        correction, video_s = Correction(), share_pct / (50 * real)
        while correction.measured_s < 25:
            correction = correction.after(share_pct, video_s, 50)
        assert correction.mu == pytest.approx(real, rel=0.02)
        assert correction.measured_s < 25 + video_s


def test_one_odd_second_moves_it_little_and_short_periods_count_less() -> None:
    odd = Correction().after(500, 1.0, 50)
    assert 1 < odd.mu < 2
    assert Correction().after(50, 0.1, 50).mu < odd.mu


def test_a_long_period_is_as_many_short_ones() -> None:
    whole, halves = Correction().after(200, 2.0, 50), Correction().after(100, 1.0, 50).after(100, 1.0, 50)
    assert whole.mu == pytest.approx(halves.mu)


@pytest.mark.parametrize(("used", "video", "demand"), [(50, 0, 50), (0, 0, 0), (50, 1, 0)])
def test_what_says_nothing_changes_nothing(used: float, video: float, demand: float) -> None:
    assert Correction(mu=1.5).after(used, video, demand) == Correction(mu=1.5)


@given(st.lists(st.tuples(st.floats(0, 1e12), st.floats(0, 1e6), st.floats(0, 1e9)), max_size=5))
def test_mu_stays_in_its_range(periods: list[tuple[float, float, float]]) -> None:
    correction = Correction()
    for period in periods:
        correction = correction.after(*period)
    assert MU_MIN <= correction.mu <= MU_MAX


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -1.0])
def test_measurements_out_of_range_are_refused(wrong: float) -> None:
    for at in range(3):
        numbers = [10.0, 1.0, 20.0]
        numbers[at] = wrong
        with pytest.raises(ValueError, match="usage, video and demand"):
            Correction().after(*numbers)
    with pytest.raises(ValueError, match="gain between 0 and 1"):
        Correction(gain=wrong)


# --- placement --------------------------------------------------------------------------------------------------------

CAPACITY = {"cores": 4.0, "gb": 8.0}


def demand(name: str, cores: float, gb: float = 1.0, goal_s: float = 20) -> Demand:
    return Demand(id=name, need={"cores": cores, "gb": gb}, lag_goal_s=goal_s)


def machine(name: str, *queries: Demand) -> Machine:
    return Machine(id=name, capacity=CAPACITY, queries=queries)


def test_a_machine_without_room_has_no_score() -> None:
    full = machine("m", demand("a", 3.5))
    assert score(demand("b", 1), full, 20, PlacementRules()) is None
    assert score(demand("b", 0.5, gb=7.5), full, 20, PlacementRules()) is None
    assert score(demand("b", 0.5), full, 20, PlacementRules()) is not None
    assert place(demand("b", 1), [full], PlacementRules()) is None
    assert place(demand("b", 1), [], PlacementRules()) is None


def test_queries_in_a_hurry_are_kept_apart() -> None:
    """Equal load everywhere: the machine whose queries are patient is better for one that is not."""
    hurried, patient = machine("m1", demand("a", 1, goal_s=20)), machine("m2", demand("b", 1, goal_s=300))
    assert place(demand("c", 1, goal_s=20), [hurried, patient], PlacementRules()) == "m2"


def test_equal_machines_are_taken_in_the_order_of_their_ids() -> None:
    assert place(demand("a", 1), [machine("m2"), machine("m1")], PlacementRules()) == "m1"


def test_the_largest_need_is_placed_first_and_nothing_is_overfilled() -> None:
    queries = [demand(f"q{i}", cores) for i, cores in enumerate((1, 1, 3, 3))]
    placed, machines = place_all(queries, [machine("m1"), machine("m2")], PlacementRules())
    assert list(placed) == ["q0", "q1", "q2", "q3"]
    assert {placed["q2"], placed["q3"]} == {"m1", "m2"}
    assert all(m.taken("cores") == pytest.approx(4) for m in machines)


def test_more_than_there_is_room_for_stays_unplaced() -> None:
    placed, _ = place_all([demand(f"q{i}", 3) for i in range(3)], [machine("m1"), machine("m2")], PlacementRules())
    assert sorted(placed.values(), key=str) == [None, "m1", "m2"]


def test_migrations_are_few_worth_it_and_do_not_undo_each_other() -> None:
    crowded = machine("m1", *(demand(f"q{i}", 1) for i in range(4)))
    moves = migrations([crowded, machine("m2")], PlacementRules(tau=0.1, moves=3))
    assert 1 <= len(moves) <= 3
    assert len({m.query for m in moves}) == len(moves)
    assert all((m.source, m.target) == ("m1", "m2") and m.gain > 0.1 for m in moves)
    assert migrations([crowded, machine("m2")], PlacementRules(moves=0)) == ()
    assert migrations([crowded, machine("m2")], PlacementRules(tau=1.0)) == ()


def test_the_present_machine_is_scored_without_the_query_itself() -> None:
    """Two equal machines, the query on one of them: it would gain nothing, and stays."""
    query = demand("q", 2)
    home = machine("m1", query)
    assert best_move(query, home, [home, machine("m2")], 20, PlacementRules(tau=0)) is None


@settings(max_examples=40)
@given(st.lists(st.tuples(st.floats(0, 4), st.floats(0, 8), st.floats(0, 300)), min_size=1, max_size=6))
def test_scores_are_parts_of_one(needs: list[tuple[float, float, float]]) -> None:
    queries = [demand(f"q{i}", *need) for i, need in enumerate(needs)]
    placed, machines = place_all(queries, [machine("m1"), machine("m2")], PlacementRules())
    for m in machines:
        assert all(m.taken(r) <= cap * (1 + 1e-6) for r, cap in CAPACITY.items())
    probe = score(demand("p", 0.1), machines[0], 300, PlacementRules())
    assert probe is None or all(0 <= x <= 1 for x in (probe.packing, probe.balance, probe.spread, probe.total))
    assert set(placed) == {q.id for q in queries}


def test_senseless_placements_are_refused() -> None:
    with pytest.raises(ValueError, match="no resource 'gpu'"):
        score(Demand(id="q", need={"gpu": 1.0}, lag_goal_s=1), machine("m"), 1, PlacementRules())
    with pytest.raises(ValueError, match="query q"):
        Demand(id="q", need={"cores": math.nan}, lag_goal_s=1)
    with pytest.raises(ValueError, match="machine m"):
        Machine(id="m", capacity={"cores": 0.0})
    with pytest.raises(ValueError, match="tau"):
        PlacementRules(tau=math.nan)


# --- the closed loop --------------------------------------------------------------------------------------------------

OPTIONS = tuple(Option(name=f"o{i}", demand_pct=d, quality=q) for i, (d, q) in enumerate(((10, 0.5), (25, 0.8), (60, 1.0))))
GOALS = Utility(quality_goal=0.4, quality_penalty=4, lag_goal_s=20)


def planned(**how: Any) -> Policy:
    rules = Rules(**how)
    return lambda queries, capacity_pct: allocate(queries, capacity_pct, rules=rules)


def fair(queries: Any, capacity_pct: float) -> Any:
    return fair_allocation(queries, capacity_pct, rules=Rules())


def crowd(count: int = 4, **changed: Any) -> list[LoopQuery]:
    return [LoopQuery(id=f"q{i}", options=OPTIONS, utility=GOALS, **changed) for i in range(count)]


def test_video_is_neither_lost_nor_made() -> None:
    samples = run_loop(crowd(), planned(), capacity_pct=lambda at_s: 30.0 if at_s < 20 else 150.0, seconds=60)
    for name in ("q0", "q3"):
        own = [s for s in samples if s.query == name]
        assert sum(s.processed_s for s in own) + own[-1].lag_s == pytest.approx(60)
        assert all(s.skipped_s == 0 for s in own)


def test_a_live_camera_skips_and_never_lags() -> None:
    samples = run_loop(crowd(may_lag=False), planned(), capacity_pct=lambda _: 20.0, seconds=10)
    assert all(s.lag_s == 0 for s in samples)
    assert sum(s.skipped_s for s in samples) > 0
    assert all(s.processed_s + s.skipped_s == pytest.approx(1) for s in samples)


def test_queries_come_and_go() -> None:
    late = replace(crowd(1)[0], id="late", arrives_s=5, leaves_s=8)
    samples = run_loop([*crowd(1), late], planned(), capacity_pct=lambda _: 60.0, seconds=10)
    assert [s.at_s for s in samples if s.query == "late"] == [5, 6, 7]
    assert between(samples, 5, 8) == [s for s in samples if 5 <= s.at_s < 8]


def test_after_a_shortage_the_backlog_goes() -> None:
    samples = run_loop(crowd(), planned(), capacity_pct=lambda at_s: 25.0 if at_s < 15 else 300.0, seconds=90)
    assert max(s.lag_s for s in samples) > 10
    assert all(s.lag_s == 0 and s.quality == 1.0 for s in between(samples, 85, 90))


def test_goals_hold_where_fair_breaks_them() -> None:
    """Two in a hurry and six that may wait, on less than their cheapest options need for a while."""
    queries = [LoopQuery(id=f"q{i}", options=OPTIONS, utility=replace(GOALS, lag_goal_s=3 if i < 2 else 60)) for i in range(8)]
    runs = {
        name: run_loop(queries, policy, capacity_pct=lambda at_s: 50.0 if 10 <= at_s < 40 else 150.0, seconds=60)
        for name, policy in {"fair": fair, "sum": planned(), "maxmin": planned(objective="maxmin")}.items()
    }
    assert late_frac(runs["fair"]) > 0.05
    assert late_frac(runs["sum"]) < 0.02
    assert late_frac(runs["maxmin"]) < 0.02


@pytest.mark.parametrize("objective", ["sum", "maxmin"])
def test_wrong_profiles_cost_little_once_corrected(objective: str) -> None:
    """Two thirds of the profiles off by 2 and by 0.5: mu finds them, and quality is nearly that of exact profiles."""
    factors = (2.0, 0.5, 1.0)
    told = [
        replace(q, real=f, options=tuple(replace(o, demand_pct=o.demand_pct / f) for o in OPTIONS))
        for q, f in zip(crowd(6), itertools.cycle(factors), strict=False)
    ]
    policy = planned(objective=objective)
    exact = run_loop(crowd(6), policy, capacity_pct=lambda _: 160.0, seconds=80)
    corrected = run_loop(told, policy, capacity_pct=lambda _: 160.0, seconds=80)
    ends = {s.query: s.mu for s in corrected}
    assert [ends[f"q{i}"] for i in range(3)] == pytest.approx(factors, rel=0.02)
    assert seen_quality(between(corrected, 40, 80)) >= 0.98 * seen_quality(between(exact, 40, 80))
    assert late_frac(between(corrected, 40, 80)) == 0


def test_knobs_do_not_flutter_under_a_steady_load() -> None:
    samples = run_loop(crowd(may_lag=False), planned(), capacity_pct=lambda _: 77.0, seconds=30)
    for name in ("q0", "q1", "q2", "q3"):
        qualities = [s.quality for s in samples if s.query == name]
        assert len(set(qualities[1:])) == 1


def test_nothing_seen_has_no_quality() -> None:
    assert seen_quality([]) == 0
    assert late_frac([]) == 0
