"""What holds for any allocation: budgets, the Pareto set, order, guards, hysteresis, and the exact optimum of small cases."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.videostorm import Allocation, Option, Query, Rules, Utility, allocate, fair_allocation, pareto_options
from scheduler.videostorm.allocate import planned_utility
from scheduler.videostorm.fair import fair_shares
from scheduler.videostorm.maxmin import lift, lift_by_one
from scheduler.videostorm.maxsum import exact, fill, segments
from scheduler.videostorm.utility import worth_of

PLAIN = Rules(quantum_pct=10, min_gain=0)
OBJECTIVES = ("sum", "maxmin")


@st.composite
def queries(draw: st.DrawFn, most: int = 5) -> list[Query]:
    return [draw(query(f"q{i}")) for i in range(draw(st.integers(1, most)))]


@st.composite
def query(draw: st.DrawFn, name: str) -> Query:
    points = draw(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), min_size=1, max_size=4))
    options = tuple(Option(name=f"o{i}", demand_pct=float(d), quality=q / 20) for i, (d, q) in enumerate(points))
    return Query(
        id=name,
        options=options,
        utility=Utility(
            base=draw(st.sampled_from([0.0, 1.0])),
            quality_weight=draw(st.sampled_from([0.0, 0.5, 1.0, 4.0])),
            quality_goal=draw(st.sampled_from([0.0, 0.25, 0.6])),
            lag_weight_per_s=draw(st.sampled_from([0.0, 0.1, 1.0])),
            lag_goal_s=draw(st.sampled_from([0.0, 1.0, 20.0])),
            quality_penalty=draw(st.sampled_from([0.0, 1.0, 4.0])),
        ),
        lag_s=draw(st.sampled_from([0.0, 0.0, 2.5, 19.0, 40.0])),
        mu=draw(st.sampled_from([0.5, 1.0, 1.0, 2.0])),
        current=draw(st.sampled_from([None, "o0", "o1", "gone"])),
        current_pct=float(draw(st.integers(0, 30))),
        may_lag=draw(st.booleans()),
    )


rules = st.builds(
    Rules,
    objective=st.sampled_from(OBJECTIVES),
    horizon_s=st.sampled_from([1.0, 3.0, 10.0]),
    quantum_pct=st.sampled_from([1.0, 7.0, 10.0]),
    lag_cost=st.sampled_from([0.0, 0.05]),
    min_gain=st.sampled_from([0.0, 0.01, 0.2]),
    exact_steps=st.sampled_from([0, 1_000_000]),
    printed=st.booleans(),
)
capacities = st.sampled_from([0.0, 5.0, 30.0, 100.0, 133.3, 1000.0])


# --- for every input --------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(queries(), capacities, rules)
def test_an_allocation_keeps_its_rules(asked: list[Query], capacity_pct: float, how: Rules) -> None:
    found = allocate(asked, capacity_pct, rules=how)
    check(asked, found, capacity_pct)
    assert found == allocate(asked, capacity_pct, rules=how)


def check(asked: Sequence[Query], found: Allocation, capacity_pct: float) -> None:
    """Sum <= capacity, every option worth running, numbers as promised."""
    assert [g.query for g in found.given] == [q.id for q in asked]
    shares = [g.share_pct for g in found.given]
    assert all(share >= 0 for share in shares)
    assert math.fsum(shares) <= capacity_pct
    assert math.fsum([*shares, found.spare_pct]) == pytest.approx(capacity_pct)
    for q, g in zip(asked, found.given, strict=True):
        assert g.lag_s >= 0
        assert math.isfinite(g.utility)
        front = {o.name for o in pareto_options(q.options)}
        assert g.option in front or (g.option is None and g.share_pct == 0)
        if not q.may_lag:
            assert g.lag_s == 0
        elif g.lag_s > q.utility.lag_goal_s + 1e-6:
            assert q.id in found.unmet


@settings(max_examples=30, deadline=None)
@given(queries(), capacities, rules, st.randoms(use_true_random=False))
def test_the_order_of_queries_does_not_matter(asked: list[Query], capacity_pct: float, how: Rules, chance: Any) -> None:
    shuffled = list(asked)
    chance.shuffle(shuffled)
    one = {g.query: g for g in allocate(asked, capacity_pct, rules=how).given}
    other = {g.query: g for g in allocate(shuffled, capacity_pct, rules=how).given}
    assert one == other


@settings(max_examples=30, deadline=None)
@given(queries(), capacities, rules)
def test_the_fair_baseline_keeps_its_rules(asked: list[Query], capacity_pct: float, how: Rules) -> None:
    check(asked, fair_allocation(asked, capacity_pct, rules=how), capacity_pct)


@settings(max_examples=40, deadline=None)
@given(queries(), capacities, rules.filter(lambda r: not r.printed))
def test_never_below_fair_nor_the_previous_plan(asked: list[Query], capacity_pct: float, how: Rules) -> None:
    got = planned(asked, allocate(asked, capacity_pct, rules=how), how)
    rivals = [planned(asked, fair_allocation(asked, capacity_pct, rules=how), how)]
    if math.fsum(q.current_pct for q in asked) <= capacity_pct:
        rivals.append(planned_utility(asked, [q.current_pct for q in asked], how))
    for rival in rivals:
        if how.objective == "sum":
            assert math.fsum(got) >= math.fsum(rival) - 1e-6
        else:
            assert min(got) >= min(rival) - 1e-6


def planned(asked: Sequence[Query], found: Allocation, how: Rules) -> list[float]:
    return planned_utility(asked, [g.share_pct for g in found.given], how)


# --- against everything there is --------------------------------------------------------------------------------------


def splits(n: int, total: int) -> itertools.filterfalse[tuple[int, ...]]:
    return itertools.filterfalse(lambda split: sum(split) > total, itertools.product(range(total + 1), repeat=n))


@settings(max_examples=20, deadline=None)
@given(queries(most=3), st.integers(0, 7))
def test_small_sums_are_optimal(asked: list[Query], total: int) -> None:
    found = allocate(asked, 10.0 * total, rules=PLAIN)
    table = worth_of(asked, PLAIN).table(total)
    best = max(sum(table[k, a] for k, a in enumerate(split)) for split in splits(len(asked), total))
    assert math.fsum(planned(asked, found, PLAIN)) >= best - 1e-6


@settings(max_examples=20, deadline=None)
@given(queries(most=3), st.integers(0, 7))
def test_the_smallest_utility_is_as_large_as_can_be(asked: list[Query], total: int) -> None:
    how = replace(PLAIN, objective="maxmin")
    found = allocate(asked, 10.0 * total, rules=how)
    table = worth_of(asked, how).table(total)
    best = max(min(table[k, a] for k, a in enumerate(split)) for split in splits(len(asked), total))
    assert min(planned(asked, found, how)) >= best - 1e-6


@settings(max_examples=20, deadline=None)
@given(queries(most=4), st.integers(0, 12))
def test_segments_are_the_unit_steps_of_the_text(asked: list[Query], total: int) -> None:
    """The printed loop, step by step, on envelopes made another way, comes to the same."""
    how = Rules(quantum_pct=10, printed=True)
    worth = worth_of(asked, how)
    envelopes = [envelope(row) for row in worth.table(total)]
    shares, left = [0] * len(asked), total
    while left:
        gains = [h[a + 1] - h[a] if a < total else 0.0 for h, a in zip(envelopes, shares, strict=True)]
        k = int(np.argmax(np.round(gains, 9)))
        if gains[k] <= 1e-9:
            break
        shares[k] += 1
        left -= 1
    steps = fill(segments(worth, total), len(asked), total)
    reached = sum(h[int(a)] for h, a in zip(envelopes, steps, strict=True))
    assert reached == pytest.approx(sum(h[a] for h, a in zip(envelopes, shares, strict=True)), abs=1e-6)


def envelope(values: np.ndarray) -> np.ndarray:
    """Upper concave envelope on the grid: the largest chord over each point."""
    n = len(values)
    return np.array(
        [
            max(
                values[i] if i == j else values[i] + (values[j] - values[i]) * (x - i) / (j - i)
                for i in range(x + 1)
                for j in range(x, n)
            )
            for x in range(n)
        ]
    )


@settings(max_examples=20, deadline=None)
@given(queries(most=4), st.integers(0, 12))
def test_levels_are_the_single_lifts(asked: list[Query], total: int) -> None:
    """Look-ahead as the card has it: the least multiple that lifts the lowest query, again and again."""
    worth = worth_of(asked, replace(PLAIN, objective="maxmin"))
    table = worth.table(total)
    shares, left, stuck = [0] * len(asked), total, set[int]()
    while len(stuck) < len(asked):
        k, cost = min(
            ((k, lift_cost(table[k], shares[k])) for k in range(len(asked)) if k not in stuck),
            key=lambda pair: (round(float(table[pair[0], shares[pair[0]]]), 8), pair[1], pair[0]),
        )
        if cost > left:
            stuck.add(k)
            continue
        shares[k] += int(cost)
        left -= int(cost)
    mine = sorted(table[k, int(a)] for k, a in enumerate(lift(worth, total)))
    assert mine == pytest.approx(sorted(table[k, a] for k, a in enumerate(shares)), abs=1e-6)


def lift_cost(row: np.ndarray, share: int) -> float:
    above = np.flatnonzero(row[share:] > row[share] + 1e-8)
    return float(above[0]) if len(above) else math.inf


@settings(max_examples=20, deadline=None)
@given(queries(most=4), st.integers(0, 12))
def test_unit_steps_stop_only_when_nothing_is_left_or_helps(asked: list[Query], total: int) -> None:
    worth = worth_of(asked, Rules(objective="maxmin", quantum_pct=10, printed=True))
    steps = lift_by_one(worth, total)
    assert steps.sum() <= total
    if steps.sum() < total:
        assert worth.best(steps) == pytest.approx(worth.best(np.full(len(asked), float(total))))


def test_the_greedy_misses_the_optimum_where_it_ends_inside_a_segment() -> None:
    """What is left of the last segment helps nobody there, but would help another query."""

    def step(name: str, demand_pct: float, gain: float) -> Query:
        """Worth `gain` at its demand, next to nothing with less."""
        options = (Option(name="only", demand_pct=demand_pct, quality=0.9),)
        return Query(id=name, options=options, utility=Utility(quality_weight=100 * gain, quality_goal=0.89), may_lag=False)

    asked = [step("first", 80, 0.1), step("second", 40, 0.04), step("third", 20, 0.01)]
    printed = Rules(quantum_pct=10, exact_steps=0, printed=True)
    assert [g.share_pct for g in allocate(asked, 100, rules=printed).given] == [80, 20, 0]
    assert [g.share_pct for g in allocate(asked, 100, rules=replace(printed, printed=False)).given] == [80, 0, 20]


def test_dynamic_programming_takes_the_least_of_equals() -> None:
    table = np.array([[0.0, 1.0, 1.0, 1.0], [0.0, 0.0, 2.0, 2.0]])
    assert exact(table).tolist() == [1, 2]


# --- monotone, steady, and at the edges -------------------------------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(queries(), st.integers(0, 20), st.integers(0, 20))
def test_more_capacity_never_lowers_the_smallest_utility(asked: list[Query], less: int, more: int) -> None:
    how = replace(PLAIN, objective="maxmin")
    few = min(planned(asked, allocate(asked, 10.0 * less, rules=how), how))
    many = min(planned(asked, allocate(asked, 10.0 * (less + more), rules=how), how))
    assert many >= few - 1e-6


@settings(max_examples=20, deadline=None)
@given(queries(), capacities, st.sampled_from(OBJECTIVES))
def test_a_change_of_option_gains_more_than_min_gain(asked: list[Query], capacity_pct: float, objective: Any) -> None:
    how = Rules(objective=objective, quantum_pct=10, min_gain=0.05)
    free = replace(how, min_gain=0)
    for q, g in zip(asked, allocate(asked, capacity_pct, rules=how).given, strict=True):
        present = [o for o in pareto_options(q.options) if o.name == q.current]
        if g.option is None or not present or g.option == q.current:
            continue
        stay = planned_utility([replace(q, options=tuple(present))], [g.share_pct], free)[0]
        assert planned_utility([q], [g.share_pct], free)[0] > stay + 0.05 - 1e-6


def live(name: str = "cam", current: str | None = None) -> Query:
    options = (Option(name="half", demand_pct=20, quality=0.7), Option(name="full", demand_pct=40, quality=0.9))
    return Query(id=name, options=options, utility=Utility(quality_goal=0.5, quality_penalty=2), may_lag=False, current=current)


def test_what_does_not_fit_is_skipped_and_counts_in_proportion() -> None:
    found = allocate([live()], 30, rules=PLAIN)
    assert found.given[0].option == "half"  # 0.7 whole beats 0.9 * 30 / 40 = 0.675
    found = allocate([live()], 10, rules=PLAIN)
    assert found.given[0].utility == pytest.approx(-2 * (0.5 - 0.7 / 2))
    assert found.given[0].lag_s == 0
    assert found.unmet == ("cam",)


def test_no_capacity_pauses_what_cannot_wait() -> None:
    patient = replace(live("file"), may_lag=True, utility=Utility(lag_goal_s=60))
    late = replace(patient, id="late", lag_s=90)
    found = allocate([live(), patient, late], 0, rules=PLAIN)
    assert [g.option for g in found.given] == [None, "full", None]
    assert [g.share_pct for g in found.given] == [0, 0, 0]
    assert found.unmet == ("cam", "late")
    assert allocate([], 100, rules=PLAIN) == Allocation(given=(), spare_pct=100)


def test_an_option_that_costs_nothing_runs_on_nothing() -> None:
    free = replace(live(), options=(Option(name="motion", demand_pct=0, quality=0.6),))
    found = allocate([free], 0, rules=PLAIN)
    assert found.given[0].option == "motion"
    assert found.unmet == ()


def test_what_is_left_clears_the_longest_backlog_first() -> None:
    """Quality is at its best and no goal is broken: the rest goes to those who wait, longest in proportion to the goal first."""
    waiting = replace(live("a"), may_lag=True, utility=Utility(lag_goal_s=100), lag_s=10)
    longer = replace(waiting, id="b", lag_s=30)
    how = replace(PLAIN, lag_cost=0)
    found = allocate([waiting, longer], 200, rules=how)
    assert found.spare_pct == 0
    assert found.given[1].share_pct > found.given[0].share_pct
    rich = allocate([waiting, longer], 10_000, rules=how)
    assert [g.lag_s for g in rich.given] == [0, 0]
    assert rich.spare_pct > 0


def test_mu_scales_what_an_option_needs() -> None:
    wrong = replace(live(), mu=2.0)
    assert allocate([wrong], 40, rules=PLAIN).given[0].option == "half"
    assert allocate([wrong], 80, rules=PLAIN).given[0].option == "full"


def test_a_burst_of_a_hundred_times_as_many_queries_is_divided() -> None:
    found = allocate([live(f"cam{i:03d}") for i in range(600)], 200, rules=Rules())
    check([live(f"cam{i:03d}") for i in range(600)], found, 200)
    assert len(found.unmet) == 600 - sum(g.share_pct >= 15 for g in found.given)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_many_equal_queries_end_soon(objective: Any) -> None:
    """Equal levels that cannot all be lifted together: the case in which levels make no progress."""
    asked = [live(f"cam{i:04d}") for i in range(2000)]
    found = allocate(asked, 2000 * 11, rules=Rules(objective=objective))
    check(asked, found, 2000 * 11)
    assert found.spare_pct < 20


# --- fair -------------------------------------------------------------------------------------------------------------


@given(st.lists(st.floats(0, 100), min_size=1, max_size=8), st.floats(0, 300))
def test_fair_shares_are_equal_up_to_what_can_be_used(caps: list[float], capacity: float) -> None:
    shares = fair_shares(np.array(caps), capacity)
    assert shares.sum() == pytest.approx(min(capacity, sum(caps)))
    assert (shares <= np.array(caps) + 1e-9).all()
    below = [s for s, c in zip(shares, caps, strict=True) if s < c - 1e-6]
    assert not below or max(shares) <= min(below) + 1e-6


# --- refused at the door ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -1.0])
def test_numbers_out_of_range_are_refused(wrong: float) -> None:
    good = live()
    with pytest.raises(ValueError, match="capacity_pct"):
        allocate([good], wrong, rules=PLAIN)
    with pytest.raises(ValueError, match="option o"):
        Option(name="o", demand_pct=wrong, quality=0.5)
    with pytest.raises(ValueError, match="option o"):
        Option(name="o", demand_pct=1.0, quality=wrong)
    for field in ("lag_s", "mu", "current_pct"):
        with pytest.raises(ValueError, match="query cam"):
            replace(good, **{field: wrong})
    for field in ("quality_weight", "quality_goal", "lag_weight_per_s", "lag_goal_s", "quality_penalty"):
        with pytest.raises(ValueError, match="utility"):
            Utility(**{field: wrong})
    for field in ("horizon_s", "quantum_pct", "lag_goal_frac", "lag_margin_frac", "lag_cost", "min_gain"):
        with pytest.raises(ValueError, match=field):
            Rules(**{field: wrong})


def test_contradictions_are_refused() -> None:
    with pytest.raises(ValueError, match="two queries with the id 'cam'"):
        allocate([live(), live()], 100, rules=PLAIN)
    with pytest.raises(ValueError, match="no options"):
        replace(live(), options=())
    with pytest.raises(ValueError, match="two options"):
        replace(live(), options=live().options * 2)
    with pytest.raises(ValueError, match="known: sum, maxmin"):
        Rules(objective="mean")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="quality 0-1"):
        Option(name="o", demand_pct=1.0, quality=1.1)
    with pytest.raises(ValueError, match="positive mu"):
        replace(live(), mu=0.0)
