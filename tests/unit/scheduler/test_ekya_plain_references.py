"""The fast planners against the same ones written out plainly: the same decisions, the same work counted, the same optimum."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.ekya.baselines import fixed_config
from scheduler.ekya.estimate import is_useful
from scheduler.ekya.optimal import optimal
from scheduler.ekya.pick_configs import cheapest_floors
from scheduler.ekya.thief import fair_split, jobs_of, thief, thief_repeat, thief_thorough, to_pairs
from scheduler.sim.random_profiles import linear_knobs, random_snapshot, sampled_knobs
from scheduler.types import KnobProfile, Plan, Snapshot
from tests.support.plain_planners import Pair, PlainWorld, plain_best_by_total, plain_knapsack, plain_sweeps

SPEED = ((0.0, 0.0), (30.0, 0.6), (60.0, 0.85), (100.0, 1.0))
COARSE = (KnobProfile(name="a", demand_pct=22, quality_frac=0.5), KnobProfile(name="b", demand_pct=61, quality_frac=1.0))


@st.composite
def problems(draw: st.DrawFn, *, most_streams: int = 6, most_quanta: int = 16) -> Snapshot:
    """Everything a snapshot can ask for, with knobs that differ between streams and floors that are hard to reach."""
    made = random_snapshot(
        draw(st.integers(0, 100_000)),
        streams=draw(st.integers(1, most_streams)),
        gpus=1,
        configs=draw(st.integers(0, 5)),
        window_s=draw(st.sampled_from([0.0, 15.0, 200.0])),
        min_quality=draw(st.sampled_from([0.0, 0.25, 0.4, 0.6])),
        estimate=draw(st.sampled_from(["static", "hand-back"])),
        running_frac=draw(st.sampled_from([0.0, 0.5])),
    )
    shapes = st.sampled_from([sampled_knobs(), linear_knobs(), COARSE, COARSE[1:]])
    sds = st.sampled_from([0.0, 0.0, 0.05, 0.2])
    streams = tuple(
        replace(view, knobs=draw(shapes), retrain=tuple(replace(o, quality_sd=draw(sds)) for o in view.retrain))
        for view in made.streams
    )
    quantum_pct = draw(st.sampled_from([10, 15, 25]))
    return replace(
        made,
        streams=streams,
        quantum_pct=quantum_pct,
        capacity_pct=quantum_pct * draw(st.integers(1, most_quanta)) + draw(st.sampled_from([0, 7])),
        speed=draw(st.sampled_from([(), SPEED])),
        train_max_pct=draw(st.sampled_from([None, 30, 100])),
    )


def below(plan: Plan) -> int:
    return sum(s.below_floor for s in plan.streams)


def plain_floors_first(world: PlainWorld, jobs: tuple[tuple[int, int], ...]) -> list[Pair]:
    """The cheapest floors (of equal ones, those that show most), then the fair split of the rest."""
    pairs, left = [[0, 0] for _ in world.estimators], world.quanta
    floors = [
        (q, -world.at(v, (q, 0))[1], v)
        for v in range(len(pairs))
        for q in range(world.quanta + 1)
        if not world.at(v, (q, 0))[0] and (q == 0 or world.at(v, (q - 1, 0))[0])
    ]
    for needed, _, stream in sorted(floors):
        if needed > left:
            break
        pairs[stream][0], left = needed, left - needed
    for (stream, kind), share in zip(jobs, fair_split(left, len(jobs)), strict=True):
        pairs[stream][kind] += share
    return [(infer, train) for infer, train in pairs]


def plain_thief(snapshot: Snapshot, steal: int, *, repeat: bool) -> tuple[PlainWorld, list[Pair], int]:
    """`thief` and `thief_repeat` by their documentation: in hand-back mode offered everything, then only what is useful;
    again from the floors."""
    for only_useful in (False, True) if snapshot.estimate == "hand-back" else (True,):
        world = PlainWorld(snapshot, only_useful=only_useful)
        jobs, views = jobs_of(snapshot), snapshot.streams
        start = to_pairs(jobs, fair_split(world.quanta, len(jobs)), len(views))
        pairs, looked_at = plain_sweeps(world, jobs, start, steal, repeat=repeat)
        if world.below(pairs) > world.least_below():
            start = plain_floors_first(world, jobs)
            pairs, again = plain_sweeps(world, jobs, start, steal, repeat=repeat)
            looked_at += again
        step = snapshot.quantum_pct
        chosen = [e.best(i * step, r * step).retrain for e, (i, r) in zip(world.estimators, pairs, strict=True)]
        if all(option is None or is_useful(option, view) for option, view in zip(chosen, views, strict=True)):
            break
    return world, pairs, looked_at


@settings(max_examples=120, deadline=None)
@given(problems(), st.integers(1, 3), st.booleans())
def test_the_thief_takes_the_decisions_of_the_plain_listing(snapshot: Snapshot, steal: int, repeat: bool) -> None:
    world, pairs, looked_at = plain_thief(snapshot, steal, repeat=repeat)
    plan = (thief_repeat if repeat else thief)(snapshot, steal_quanta=steal)
    step = snapshot.quantum_pct
    if snapshot.train_max_pct is not None and snapshot.estimate == "static":
        pairs = [(infer, min(train, math.ceil(snapshot.train_max_pct / step))) for infer, train in pairs]
    assert [s.infer_pct for s in plan.streams] == [infer * step for infer, _ in pairs]
    assert [s.train_pct for s in plan.streams if s.retrain] == [
        train * step for s, (_, train) in zip(plan.streams, pairs, strict=True) if s.retrain
    ]
    expected = [e.best(i * step, r * step) for e, (i, r) in zip(world.estimators, pairs, strict=True)]
    assert [s.retrain for s in plan.streams] == [c.retrain.name if c.retrain else None for c in expected]
    assert [s.expected_quality for s in plan.streams] == [c.quality for c in expected]
    assert plan.steps == looked_at


@pytest.mark.parametrize("repeat", [False, True])
@pytest.mark.parametrize("shape", ["sampled", "linear"])
def test_the_same_at_the_size_of_the_paper(shape: str, repeat: bool) -> None:
    knobs = sampled_knobs() if shape == "sampled" else linear_knobs()
    given = random_snapshot(3, streams=10, gpus=8, configs=18, knobs=knobs)
    _, pairs, looked_at = plain_thief(given, 1, repeat=repeat)
    plan = (thief_repeat if repeat else thief)(given)
    assert [s.infer_pct for s in plan.streams] == [10 * infer for infer, _ in pairs]
    assert [s.train_pct for s in plan.streams if s.retrain] == [
        10 * train for s, (_, train) in zip(plan.streams, pairs, strict=True) if s.retrain
    ]
    assert plan.steps == looked_at > 380


@settings(max_examples=100, deadline=None)
@given(problems(most_streams=5, most_quanta=11))
def test_the_exact_plan_equals_the_plain_dynamic_program(snapshot: Snapshot) -> None:
    world = PlainWorld(snapshot)
    tables = [plain_best_by_total(world, v) for v in range(len(snapshot.streams))]
    fewest, quality = plain_knapsack(tables, world.quanta)
    plan = optimal(snapshot)
    assert below(plan) == fewest
    assert plan.expected_quality == pytest.approx(quality / len(snapshot.streams), abs=1e-11)


@st.composite
def knapsacks(draw: st.DrawFn) -> Snapshot:
    """Many small streams, so that the bound drops much; alike ones, so that much is tied; floors, so that some must miss them."""
    made = random_snapshot(
        draw(st.integers(0, 100_000)),
        streams=draw(st.integers(8, 30)),
        gpus=draw(st.sampled_from([0.4, 1.0, 2.0, 3.0])),
        configs=draw(st.integers(0, 3)),
        knobs=draw(st.sampled_from([sampled_knobs(), linear_knobs(20), COARSE])),
        min_quality=draw(st.sampled_from([0.0, 0.2, 0.45])),
        estimate=draw(st.sampled_from(["static", "hand-back"])),
    )
    alike = draw(st.integers(1, 30))
    streams = tuple(replace(made.streams[n % alike], id=f"s{n}") for n in range(len(made.streams)))
    shapes = draw(st.lists(st.sampled_from([sampled_knobs(), linear_knobs(20), COARSE, COARSE[1:]]), max_size=3))
    streams = tuple(replace(view, knobs=shapes[n % len(shapes)]) if shapes else view for n, view in enumerate(streams))
    return replace(made, streams=streams)


@settings(max_examples=60, deadline=None)
@given(knapsacks())
def test_nothing_that_the_bound_or_the_floors_drop_is_missed(snapshot: Snapshot) -> None:
    world = PlainWorld(snapshot)
    by_view = {(v.quality, v.knobs, v.retrain): n for n, v in enumerate(snapshot.streams)}
    known = {n: plain_best_by_total(world, n) for n in by_view.values()}
    tables = [known[by_view[v.quality, v.knobs, v.retrain]] for v in snapshot.streams]
    fewest, quality = plain_knapsack(tables, world.quanta)
    plan = optimal(snapshot)
    assert below(plan) == fewest
    assert plan.expected_quality == pytest.approx(quality / len(snapshot.streams), abs=1e-11)


@settings(max_examples=150, deadline=None)
@given(problems(most_streams=8), st.sampled_from([thief, thief_repeat, thief_thorough, optimal, fixed_config]))
def test_no_stream_is_below_the_floor_that_could_be_above_it(snapshot: Snapshot, policy: object) -> None:
    assert below(policy(snapshot)) == PlainWorld(snapshot).least_below()  # type: ignore[operator]


@settings(max_examples=60, deadline=None)
@given(problems(most_streams=3))
def test_the_table_of_the_exact_plan_is_the_best_of_all_pairs(snapshot: Snapshot) -> None:
    world = PlainWorld(snapshot)
    step = snapshot.quantum_pct
    factors = np.array([world.estimators[0].speed.at(q * step) for q in range(world.quanta + 1)])
    for v, estimator in enumerate(world.estimators):
        below_at, quality = plain_best_by_total(world, v)
        floor = estimator.floor_quanta(step)
        assert [floor is None or q < floor for q in range(world.quanta + 1)] == below_at.astype(bool).tolist()
        assert estimator.best_by_total(factors, step) == pytest.approx(quality, abs=1e-12)


@given(st.lists(st.one_of(st.none(), st.integers(0, 9)), max_size=8), st.integers(0, 30))
def test_cheapest_first_keeps_the_most_streams(floors: list[int | None], quanta: int) -> None:
    reached = cheapest_floors(floors, quanta)
    spent = sum(floors[v] or 0 for v in reached)
    most = [0] * (quanta + 1)
    for floor in floors:
        for q in range(quanta, -1, -1):
            most[q] = max(most[q], 1 + most[q - floor]) if floor is not None and floor <= q else most[q]
    assert spent <= quanta
    assert all(floors[v] is not None for v in reached)
    assert len(reached) == most[quanta]


@settings(max_examples=60, deadline=None)
@given(problems(most_streams=4, most_quanta=10))
def test_no_steal_of_any_size_improves_a_thorough_plan(snapshot: Snapshot) -> None:
    plan, world, step = thief_thorough(snapshot), PlainWorld(snapshot), snapshot.quantum_pct
    plan.check(snapshot.capacity_pct)
    assert (below(plan), -plan.expected_quality) <= (
        below(thief_repeat(snapshot)),
        -thief_repeat(snapshot).expected_quality + 1e-9,
    )
    pairs = [(s.infer_pct // step, s.train_pct // step) for s in plan.streams]
    jobs = jobs_of(snapshot)
    for (thief_v, thief_k), (victim_v, victim_k) in itertools.permutations(jobs, 2):
        for amount in range(1, pairs[victim_v][victim_k] + 1):
            trial = [list(pair) for pair in pairs]
            trial[victim_v][victim_k] -= amount
            trial[thief_v][thief_k] += amount
            assert not world.improves([(infer, train) for infer, train in trial], pairs)
