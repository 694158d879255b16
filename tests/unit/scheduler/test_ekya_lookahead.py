"""Planning ahead: prices that are exact, plans that wait, expectations that come true, the clairvoyant optimum within reach."""

from __future__ import annotations

import csv
import random
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.errors import UsageError
from scheduler.ekya.baselines import pareto_front
from scheduler.ekya.clairvoyant import clairvoyant
from scheduler.ekya.lookahead import Job, Pricer, Problem, climb, fill, lookahead, play
from scheduler.ekya.timeline import held_by, play_window, replan
from scheduler.registry import make_policy
from scheduler.sim.random_profiles import linear_knobs, random_snapshot, sampled_knobs
from scheduler.types import KnobProfile, Plan, RetrainOption, Snapshot, StreamView

SPEED = ((0.0, 0.0), (30.0, 0.6), (60.0, 0.85), (100.0, 1.0))
TABLE = Path(__file__).resolve().parents[4] / "shared/data/traces/ekya_cityscapes_microprofiles.csv"
FULL = (KnobProfile(name="half", demand_pct=10, quality_frac=0.5), KnobProfile(name="full", demand_pct=20, quality_frac=1.0))


def view(name: str, quality: float, *options: tuple[float, float], running: bool = False) -> StreamView:
    retrain = tuple(RetrainOption(name=f"{name}{n}", end_quality=q, cost_gpu_s=c) for n, (q, c) in enumerate(options))
    return StreamView(id=name, quality=quality, knobs=FULL, retrain=retrain, running=f"{name}0" if running else None)


def snapshot_of(*views: StreamView, capacity_pct: int = 100, floor: float = 0.0) -> Snapshot:
    return Snapshot(remaining_s=100, capacity_pct=capacity_pct, quantum_pct=10, min_quality=floor, streams=views)


def shares(plan: Plan) -> list[tuple[int, int, str | None]]:
    return [(s.infer_pct, s.train_pct, s.retrain) for s in plan.streams]


@st.composite
def problems(draw: st.DrawFn, *, streams: int = 5) -> Snapshot:
    made = random_snapshot(
        draw(st.integers(0, 10_000)),
        streams=draw(st.integers(1, streams)),
        gpus=draw(st.sampled_from([0.5, 1, 2])),
        configs=draw(st.integers(0, 6)),
        knobs=draw(st.sampled_from([sampled_knobs(), linear_knobs()])),
        quantum_pct=draw(st.sampled_from([10, 20])),
        window_s=draw(st.sampled_from([15.0, 60.0, 200.0])),
        min_quality=draw(st.sampled_from([0.0, 0.0, 0.4])),
        estimate=draw(st.sampled_from(["static", "hand-back"])),
        running_frac=draw(st.sampled_from([0.0, 0.5])),
    )
    return replace(made, speed=draw(st.sampled_from([(), SPEED])), train_max_pct=draw(st.sampled_from([None, 40])))


def list_of(problem: Problem, seed: int) -> tuple[Job, ...]:
    """Any list: each stream with options is on it or not, in any order."""
    rng = random.Random(seed)
    jobs = [rng.choice(options) for options in problem.options if options and rng.random() < 0.7]
    rng.shuffle(jobs)
    return tuple(jobs)


# --- by hand ----------------------------------------------------------------------------------------------------------


def test_one_retraining_waits_for_the_other() -> None:
    # 60 % train: A's 12 GPU-s end at 20 s, B's 24 at 60 s; the static optimum gives both half of it
    given_snapshot = snapshot_of(view("A", 0.5, (0.8, 12)), view("B", 0.6, (0.8, 24)))
    plan = lookahead(given_snapshot)
    assert shares(plan) == [(20, 60, "A0"), (20, 0, None)]
    assert plan.streams[0].expected_quality == pytest.approx(0.5 + 0.3 * 0.8)
    assert plan.streams[1].expected_quality == pytest.approx(0.6 + 0.2 * 0.4)
    assert plan.expected_quality == pytest.approx(clairvoyant(given_snapshot).quality)
    run = play_window(given_snapshot, held_by(plan), replan(lookahead))
    assert [s.to_s for s in run.segments] == [pytest.approx(20), pytest.approx(60), 100]
    assert run.quality == pytest.approx(plan.expected_quality)


def test_inference_is_asked_to_give_only_where_that_pays() -> None:
    # loss per unit of work with 40, 50, 60 % training: .3/.4, (.8-.25)/.5, .8/.6 - and .8/.4, .85/.5, .9/.6
    dear = lookahead(snapshot_of(view("A", 0.5, (0.8, 12)), capacity_pct=60))
    assert shares(dear) == [(20, 40, "A0")]
    cheap = lookahead(snapshot_of(view("A", 0.1, (0.9, 12)), capacity_pct=60))
    assert shares(cheap) == [(0, 60, "A0")], "hardly anything is lost by not looking for a while"


def test_side_by_side_where_the_speed_falls_off() -> None:
    given_snapshot = replace(snapshot_of(view("A", 0.5, (0.8, 12)), view("B", 0.5, (0.8, 12))), speed=SPEED)
    plan = lookahead(given_snapshot)
    assert shares(plan) == [(20, 30, "A0"), (20, 30, "B0")]
    assert plan.expected_quality == pytest.approx(0.5 + 0.3 * 0.8)


def test_side_by_side_where_one_job_cannot_use_it_all() -> None:
    given_snapshot = replace(snapshot_of(view("A", 0.5, (0.8, 12)), view("B", 0.5, (0.8, 12))), train_max_pct=30)
    assert shares(lookahead(given_snapshot)) == [(20, 30, "A0"), (20, 30, "B0")]


def test_a_retraining_that_could_not_end_with_its_share_waits_for_more() -> None:
    # the 10 % that A cannot use would need 300 s for B; on 60 % it ends in time
    views = (view("A", 0.5, (0.9, 10)), view("B", 0.5, (0.9, 30)))
    given_snapshot = replace(snapshot_of(*views, capacity_pct=100), train_max_pct=50)
    plan = lookahead(given_snapshot)
    assert shares(plan) == [(20, 50, "A0"), (20, 0, None)]
    assert plan.spare_pct == 10
    assert plan.streams[1].expected_quality > 0.5, "it is planned for later"


def test_what_is_in_progress_goes_on_with_what_is_left_or_pauses() -> None:
    views = (view("A", 0.5, (0.9, 3), running=True), view("B", 0.5, (0.9, 30)))
    assert shares(lookahead(snapshot_of(*views))) == [(20, 60, "A0"), (20, 0, None)]
    late = (view("A", 0.5, (0.9, 70), running=True), view("B", 0.5, (0.9, 6)))
    plan = lookahead(snapshot_of(*late))
    assert shares(plan) == [(20, 0, None), (20, 60, "B0")]
    assert plan.streams[0].expected_quality == pytest.approx(0.5), "it cannot end any more"


def test_the_floor_comes_before_the_mean() -> None:
    views = (view("A", 0.5, (0.95, 3.0)), view("B", 0.5))
    free, tight = (lookahead(snapshot_of(*views, capacity_pct=40, floor=floor)) for floor in (0.0, 0.4))
    assert free.streams[0].retrain == "A0"
    assert shares(tight) == [(20, 0, None), (20, 0, None)]
    assert [s.below_floor for s in tight.streams] == [False, False]
    roomy = lookahead(snapshot_of(*views, capacity_pct=50, floor=0.4))
    assert shares(roomy) == [(20, 10, "A0"), (20, 0, None)]


def test_a_retraining_lifts_its_stream_over_the_floor() -> None:
    plan = lookahead(snapshot_of(view("A", 0.3, (0.9, 10)), view("B", 0.6), floor=0.4))
    assert [s.below_floor for s in plan.streams] == [True, False]
    assert plan.streams[0].retrain == "A0"


def test_an_uncertain_option_is_worth_what_is_expected_of_it() -> None:
    sure = snapshot_of(view("A", 0.5, (0.6, 12)))
    option = replace(sure.streams[0].retrain[0], quality_sd=0.2)
    risky = replace(sure, streams=(replace(sure.streams[0], retrain=(option,)),))
    assert lookahead(risky).expected_quality > lookahead(sure).expected_quality  # behind a gate, an error is a chance


def test_corners() -> None:
    assert lookahead(snapshot_of()).spare_pct == 100
    nothing = lookahead(snapshot_of(view("A", 0.5, (0.9, 1.0)), capacity_pct=5))
    assert (nothing.spare_pct, shares(nothing), nothing.expected_quality) == (5, [(0, 0, None)], 0.0)
    over = lookahead(replace(snapshot_of(view("A", 0.5, (0.9, 1.0))), remaining_s=0))
    assert (over.streams[0].retrain, over.expected_quality) == (None, pytest.approx(0.5))
    free = lookahead(snapshot_of(view("A", 0.5, (0.9, 0.0))))
    assert (free.streams[0].retrain, free.expected_quality) == ("A0", pytest.approx(0.9))
    with pytest.raises(UsageError):
        lookahead(replace(snapshot_of(view("A", 0.5)), quantum_pct=0))


def test_what_serves_on_after_the_window_makes_a_late_retraining_worth_it() -> None:
    """Five cameras have no spare share. A GPU-second costs 2.5 (10 % take 0.25 from one of them), 20 of them 50; +0.4 for what is left
    of 100 s brings 40 at most, and 40 more when the next 100 s count."""
    short = snapshot_of(view("a", 0.5, (0.9, 20.0)), *(view(name, 0.5) for name in "bcde"))
    assert shares(lookahead(short))[0][2] is None
    later = lookahead(replace(short, later_s=100.0))
    assert shares(later)[0][2] == "a0"
    assert (
        later.expected_quality < lookahead(short).expected_quality
    )  # it is the window's alone: what comes later is not seen now


def test_a_retraining_that_ends_after_the_window_is_worth_nothing_later_either() -> None:
    impossible = replace(snapshot_of(view("a", 0.5, (0.9, 120.0))), later_s=1e6)
    assert shares(lookahead(impossible))[0][2] is None


@settings(max_examples=40, deadline=None)
@given(problems(streams=4), st.sampled_from([10.0, 200.0]))
def test_what_counts_later_is_told_apart_from_the_window(snapshot: Snapshot, later_s: float) -> None:
    """A timeline's value is its window's integral plus what its last models are worth later; its means are the window's."""
    problem = Problem(replace(snapshot, later_s=later_s))
    timeline = play(problem, list_of(problem, 1), problem.width_max)
    plain = Problem(snapshot)
    window = sum(timeline.mean_quality) * snapshot.remaining_s
    best = float(
        plain.inference.table(plain.models([max(o, key=lambda j: j.end) for o in plain.options if o])[None, :]).value[0, -1]
    )
    assert window - 1e-6 <= timeline.value <= window + later_s * max(best, float(plain.after(())[1].value[0, -1])) + 1e-6


def test_filling_a_list() -> None:
    assert fill(7, 3, 3) == [3, 3, 1]
    assert fill(2, 3, 3) == [2, 0, 0]
    assert fill(20, 3, 3) == [3, 3, 3]


# --- prices -----------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(problems(), st.integers(0, 1_000))
def test_the_price_of_a_change_is_the_price_of_the_changed_list(snapshot: Snapshot, seed: int) -> None:
    problem = Problem(snapshot)
    for width in {problem.width_max, 1}:
        pricer = Pricer(problem, width)
        view_ = pricer.look(list_of(problem, seed))
        for change in pricer.changes(view_):
            assert change.value == pytest.approx(pricer.look(change.jobs).value, rel=1e-9, abs=1e-6)
            assert [j for j in change.jobs if j.stream != change.stream] == [j for j in view_.jobs if j.stream != change.stream]


@settings(max_examples=60, deadline=None)
@given(problems(), st.integers(0, 1_000))
def test_every_place_and_option_is_looked_at(snapshot: Snapshot, seed: int) -> None:
    problem = Problem(snapshot)
    pricer = Pricer(problem, problem.width_max)
    view_ = pricer.look(list_of(problem, seed))
    best = {(c.stream, tuple(j for j in c.jobs if j.stream == c.stream)): c.value for c in pricer.changes(view_)}
    for stream, options in enumerate(problem.options):
        others = tuple(j for j in view_.jobs if j.stream != stream)
        for job in options:
            lists = [(*others[:n], job, *others[n:]) for n in range(len(others) + 1)]
            assert best[stream, (job,)] == pytest.approx(max(pricer.look(x).value for x in lists), rel=1e-9, abs=1e-6)


@settings(max_examples=80, deadline=None)
@given(problems(), st.integers(0, 1_000))
def test_a_list_is_worth_at_least_its_price(snapshot: Snapshot, seed: int) -> None:
    """Also one that is too long for the window: cut there, and without what was cut, it is worth more than the formula says."""
    free = replace(snapshot, speed=(), train_max_pct=None, min_quality=0.0)
    problem = Problem(free)
    jobs = list_of(problem, seed)
    price, played = Pricer(problem, problem.width_max).look(jobs).value, play(problem, jobs, problem.width_max)
    assert played.value >= price - 1e-6
    if sum(phase.lasts_s > 0 for phase in played.phases) == len(jobs) + 1:  # all of it ends in time
        assert played.value == pytest.approx(price)


@settings(max_examples=40, deadline=None)
@given(problems(streams=4))
def test_climbing_ends_where_no_change_of_one_stream_helps(snapshot: Snapshot) -> None:
    problem = Problem(snapshot)
    pricer = Pricer(problem, problem.width_max)
    view_ = climb(pricer, ())
    assert all(change.value <= view_.value + 1e-9 for change in pricer.changes(view_))
    assert len({job.stream for job in view_.jobs}) == len(view_.jobs)


# --- expectations and what comes of them ------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(problems())
def test_a_timeline_is_a_window_that_can_be_played(snapshot: Snapshot) -> None:
    problem = Problem(snapshot)
    for width in (problem.width_max, 2):
        timeline = play(problem, list_of(problem, 1), min(width, problem.width_max))
        assert sum(p.lasts_s for p in timeline.phases) == pytest.approx(snapshot.remaining_s)
        assert all(sum(p.infer) + sum(p.train) <= problem.quanta for p in timeline.phases)
        assert timeline.value == pytest.approx(sum(timeline.mean_quality) * snapshot.remaining_s)


@settings(max_examples=40, deadline=None)
@given(problems(streams=4), st.sampled_from(["thief-repeat", "optimal"]))
def test_it_never_expects_less_than_static_plans_come_to(snapshot: Snapshot, name: str) -> None:
    policy, ahead = make_policy(name), lookahead(snapshot)
    run = play_window(snapshot, held_by(policy(snapshot)), replan(policy))
    fewest = sum(s.below_floor for s in ahead.streams)
    if sum(s.below_floor for s in policy(snapshot).streams) == fewest:
        assert ahead.expected_quality >= run.quality - 1e-9


def test_what_it_expects_comes_true() -> None:
    made = [random_snapshot(seed, streams=5, gpus=1.5, configs=6, window_s=198) for seed in range(12)]
    made += [replace(s, speed=SPEED, train_max_pct=100) for s in made[:6]]
    expected = [lookahead(s).expected_quality for s in made]
    came = [play_window(s, held_by(lookahead(s)), replan(lookahead)).quality for s in made]
    assert min(c - e for c, e in zip(came, expected, strict=True)) > -0.002
    assert np.mean(came) >= np.mean(expected) - 1e-4


@settings(max_examples=40, deadline=None)
@given(problems(streams=3))
def test_the_clairvoyant_optimum_is_near(snapshot: Snapshot) -> None:
    small = replace(snapshot, capacity_pct=8 * snapshot.quantum_pct, speed=(), train_max_pct=None, min_quality=0.0)
    gap = clairvoyant(small).quality - lookahead(small).expected_quality
    assert -1e-9 <= gap < 0.005


@pytest.mark.parametrize(("speed", "most_pct"), [(SPEED, None), ((), 40), (SPEED, 40)])
def test_the_clairvoyant_optimum_is_near_where_speed_falls_off(
    speed: tuple[tuple[float, float], ...], most_pct: int | None
) -> None:
    made = [random_snapshot(seed, streams=2, gpus=0.8, configs=3, window_s=100) for seed in range(10)]
    made = [replace(s, speed=speed, train_max_pct=most_pct) for s in made]
    gaps = [clairvoyant(s).quality - lookahead(s).expected_quality for s in made]
    assert min(gaps) > -1e-9
    assert np.mean(gaps) < 0.002
    assert max(gaps) < 0.01


# --- large problems ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("floor", [0.0, 0.4])
@pytest.mark.parametrize("speed", [(), SPEED])
def test_a_large_problem_is_planned_in_groups_with_the_same_promises(
    floor: float, speed: tuple[tuple[float, float], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    given_snapshot = replace(random_snapshot(5, streams=13, gpus=3.05, configs=5, min_quality=floor), speed=speed)
    whole = lookahead(given_snapshot)
    monkeypatch.setattr("scheduler.ekya.lookahead._WORK_MOST", 400.0)
    assert Problem(given_snapshot).groups() > 3
    plan, exact = lookahead(given_snapshot), make_policy("optimal")(given_snapshot)
    plan.check(given_snapshot.capacity_pct)
    assert plan.spare_pct >= 5, "no quantum is cut"
    assert [s.id for s in plan.streams] == [v.id for v in given_snapshot.streams]
    assert sum(s.below_floor for s in plan.streams) == sum(s.below_floor for s in exact.streams)
    assert exact.expected_quality - 1e-9 <= plan.expected_quality <= whole.expected_quality + 0.01


def test_hundreds_of_streams_are_cut_into_groups() -> None:
    assert Problem(random_snapshot(0, streams=20, gpus=8, configs=2)).groups() == 1
    assert Problem(random_snapshot(0, streams=300, gpus=30, configs=2)).groups() > 4


# --- recorded ---------------------------------------------------------------------------------------------------------

Recorded = list[tuple[str, float, tuple[RetrainOption, ...]]]


@pytest.fixture(scope="module")
def recorded() -> Recorded:
    """(id, quality of the un-retrained model, options with measured qualities) of every recorded stream-window."""
    if not TABLE.is_file():
        pytest.skip("the recorded traces are not here (../shared/data/traces)")
    rows = defaultdict(list)
    with TABLE.open(newline="") as lines:
        for row in csv.DictReader(lines):
            rows[f"{row['city']}-{row['task_id']}", float(row["default_inference_acc_actual"])].append(row)
    return [(name, quality, tuple(_option(r) for r in group)) for (name, quality), group in sorted(rows.items())]


def _option(row: dict[str, str]) -> RetrainOption:
    name = f"hp{row['hp_id']}-e{row['epochs']}"
    return RetrainOption(name=name, end_quality=float(row["accuracy_actual"]), cost_gpu_s=float(row["runtime_actual"]))


def window_of(recorded: Recorded, seed: int, streams: int, gpus: float) -> Snapshot:
    picked = random.Random(seed).sample(recorded, streams)
    views = tuple(StreamView(id=i, quality=q, knobs=sampled_knobs(), retrain=pareto_front(o)) for i, q, o in picked)
    return Snapshot(remaining_s=198, capacity_pct=round(100 * gpus), quantum_pct=10, min_quality=0, streams=views)


@pytest.mark.data
@pytest.mark.parametrize(("streams", "gpus"), [(2, 1), (3, 1), (4, 1), (4, 2)])
def test_recorded_windows_come_within_half_a_point_of_the_clairvoyant_optimum(
    recorded: Recorded, streams: int, gpus: float
) -> None:
    for seed in range(6):
        given_snapshot = window_of(recorded, seed, streams, gpus)
        best = clairvoyant(given_snapshot).quality
        came = play_window(given_snapshot, held_by(lookahead(given_snapshot)), replan(lookahead)).quality
        assert -1e-9 <= best - came < 0.005


@pytest.mark.data
@pytest.mark.parametrize(("streams", "gpus"), [(4, 1), (8, 2), (10, 4)])
def test_recorded_windows_come_to_more_than_with_the_thief(recorded: Recorded, streams: int, gpus: float) -> None:
    thief = make_policy("thief-repeat")
    gains = []
    for seed in range(5):
        given_snapshot = window_of(recorded, seed, streams, gpus)
        came = [play_window(given_snapshot, held_by(p(given_snapshot)), replan(p)).quality for p in (lookahead, thief)]
        gains.append(came[0] - came[1])
    assert min(gains) > -0.001
    assert np.mean(gains) > 0.005
