"""Families, predictions from short runs, pruning by distance from the Pareto front."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.curves import LearningCurve, fit_curve
from scheduler.ekya.baselines import pareto_front
from scheduler.ekya.microprofile import (
    LENT_SD,
    borrowers,
    cost_gpu_s,
    families,
    family_key,
    family_names,
    foretold,
    front_shortfall,
    grouped,
    lenders,
    nearest,
    options,
    picture_load,
    prune,
    prune_due,
    rung_epochs,
    speakers,
    survivors,
    trial_curve,
)
from scheduler.types import ProfileTrial, RetrainConfig, RetrainOption

TRUE = LearningCurve(b0=0.5, b1=2.0, b2=0.05)


def config(name: str, epochs: int = 5, data_frac: float = 1.0, layers_frac: float = 1.0) -> RetrainConfig:
    return RetrainConfig(name=name, epochs=epochs, data_frac=data_frac, layers_frac=layers_frac)


def trial(of: RetrainConfig, *, epochs: int = 5, n_total: int = 200) -> ProfileTrial:
    quality = tuple(TRUE.at(k) for k in range(epochs + 1))
    return ProfileTrial(config=of, quality=quality, init_gpu_s=0.5, gpu_s_per_epoch=2.0, n_profiled=20, n_total=n_total)


GRID = [
    config(f"l{layers}d{data}e{epochs}", epochs=epochs, data_frac=data, layers_frac=layers)
    for layers in (0.1, 1.0)
    for data in (0.1, 0.5, 1.0)
    for epochs in (5, 30, 15)
]


def test_eighteen_configurations_are_six_runs_of_the_longest() -> None:
    runs = families(GRID)
    assert len(GRID) == 18
    assert len(runs) == 6
    assert {run.epochs for run in runs} == {30}
    assert [[c.epochs for c in members] for members in grouped(GRID).values()] == [[5, 15, 30]] * 6


def test_what_differs_in_more_than_epochs_is_another_family() -> None:
    first = config("a")
    others = [config("b", data_frac=0.5), config("c", layers_frac=0.5), RetrainConfig(name="d", lr=1e-2)]
    others += [RetrainConfig(name="e", batch=16), RetrainConfig(name="f", replay_frac=0.5)]
    assert families([first, *others]) == (first, *others)


def test_cost_grows_with_epochs_and_samples() -> None:
    run = trial(config("long", epochs=30), n_total=200)
    assert cost_gpu_s(run, config("short", epochs=5)) == pytest.approx(0.5 + 5 * 2.0 * 10)
    assert cost_gpu_s(run, config("short", epochs=5), n_train=100) == pytest.approx(0.5 + 5 * 2.0 * 5)
    half = config("half", epochs=5, data_frac=0.5)
    assert cost_gpu_s(trial(half), half) == pytest.approx(0.5 + 5 * 2.0 * 5)


def test_one_run_foretells_every_epoch_count_of_its_family() -> None:
    short, long, other = config("short", 15), config("long", 30), config("other", 5, data_frac=0.1)
    made = options([trial(long)], [short, long, other])
    assert [o.name for o in made] == ["short", "long"]  # no run, no option
    assert [o.end_quality for o in made] == [pytest.approx(TRUE.at(15), abs=1e-3), pytest.approx(TRUE.at(30), abs=1e-3)]
    assert [o.cost_gpu_s for o in made] == [pytest.approx(300.5), pytest.approx(600.5)]


def test_of_families_that_differ_in_their_data_the_one_with_the_most_speaks() -> None:
    spoken = speakers(GRID)
    assert [(c.layers_frac, c.data_frac, c.epochs) for c in spoken] == [(0.1, 1.0, 30), (1.0, 1.0, 30)]
    assert speakers([config("little", data_frac=0.1)]) == (config("little", data_frac=0.1),)
    assert speakers([]) == ()
    others = [config("a"), RetrainConfig(name="b", lr=1e-2), RetrainConfig(name="c", head_neurons=64)]
    assert speakers(others) == tuple(others), "another knob is another speaker"


def test_the_nearest_is_the_one_with_the_fewest_other_knobs() -> None:
    wanted = config("wanted", layers_frac=0.5, data_frac=0.5)
    more_data, more_layers = replace(wanted, data_frac=1.0), replace(wanted, layers_frac=1.0)
    elsewhere = replace(wanted, layers_frac=0.4, lr=9.0, head_neurons=64)
    assert nearest(wanted, [elsewhere, more_layers, more_data]) is more_data
    assert nearest(wanted, [elsewhere, more_layers]) is more_layers
    assert nearest(wanted, [more_layers, replace(wanted, layers_frac=0.7)]) == replace(wanted, layers_frac=0.7)
    assert nearest(wanted, [more_data, replace(more_data, data_frac=0.6)]) == replace(more_data, data_frac=0.6)
    assert nearest(wanted, []) is None


@given(st.permutations(GRID))
def test_a_configuration_is_nearest_to_its_own_family(order: list[RetrainConfig]) -> None:
    for wanted in GRID:
        near = nearest(wanted, order)
        assert near is not None
        assert family_key(near) == family_key(wanted)


def test_two_runs_foretell_all_eighteen() -> None:
    head, whole = (trial(c) for c in speakers(GRID))
    better = replace(whole, quality=tuple(q + 0.04 for q in whole.quality))
    made = options([head, better], GRID, lend=True)
    assert [o.name for o in made] == [c.name for c in GRID]
    for option, of in zip(made, GRID, strict=True):
        own = options([replace(better if of.layers_frac == 1 else head, config=of)], [of], lend=True)[0]
        assert option.end_quality == own.end_quality, "it says what the lender's curve says at its epochs"
        assert option.cost_gpu_s == pytest.approx(own.cost_gpu_s), "by its own part of the data"


def test_a_family_that_was_run_borrows_from_none() -> None:
    runs = [trial(c) if c.data_frac == 1 else replace(trial(c), quality=(0.1, 0.2)) for c in families(GRID)]
    own = {r.config.data_frac: foretold(r, trial_curve(r), 30, lend=True) for r in runs}
    parts = {c.name: c.data_frac for c in GRID if c.epochs == 30}
    assert {o.name: o.end_quality for o in options(runs, GRID, lend=True) if o.name in parts} == {
        name: own[part] for name, part in parts.items()
    }


def test_one_run_lends_to_other_layers_at_their_cost() -> None:
    head, whole = config("head", layers_frac=0.1), config("whole", layers_frac=1.0)
    own, lent = options([trial(head)], [head, whole], lend=True)
    assert lent.end_quality == own.end_quality
    assert lent.quality_sd == pytest.approx(math.hypot(own.quality_sd, LENT_SD)), "and it is known less well"
    assert lent.cost_gpu_s / own.cost_gpu_s == pytest.approx(3.0 / 1.2)
    assert picture_load(whole) / picture_load(head) == pytest.approx(3.0 / 1.2)


def test_families_whose_runs_are_cheap_lend() -> None:
    heads = tuple(c for c in families(GRID) if c.layers_frac < 1)
    assert lenders(GRID, lambda c: c.layers_frac < 1) == heads
    assert lenders(GRID, lambda c: False) == ()
    assert lenders((), lambda c: True) == ()


RUNS = st.lists(st.sampled_from(families(GRID)), unique=True).flatmap(
    lambda run: st.tuples(*(st.tuples(st.just(c), st.lists(st.floats(0, 1), max_size=4), st.floats(0.01, 9)) for c in run))
)


@given(RUNS, st.sets(st.sampled_from([c.name for c in GRID])))
def test_lending_takes_nothing_from_what_is_on_offer(
    made: tuple[tuple[RetrainConfig, list[float], float], ...], left_out: set[str]
) -> None:
    """Whatever was run and is still a candidate: the planner has every option that it would have had, at the same cost, and is told the
    same of it whether others borrow or not; those that are lent besides are finite, cost something, promise no more than the best of
    those that were run, and are known less well."""
    runs = [replace(trial(c), quality=tuple(quality), gpu_s_per_epoch=gpu_s) for c, quality, gpu_s in made]
    candidates = [c for c in GRID if c.name not in left_out]
    plain, lent = options(runs, candidates), options(runs, candidates, lend=True)
    own, borrowed = {o.name for o in plain}, borrowers(runs, candidates)
    alone = options(runs, [c for c in candidates if c.name in own], lend=True)
    assert [o for o in lent if o.name in own] == list(alone)
    assert [(o.name, o.cost_gpu_s, o.quality_sd) for o in alone] == [(o.name, o.cost_gpu_s, o.quality_sd) for o in plain]
    assert {o.name for o in lent} - own == (borrowed if any(r.quality for r in runs) else set())
    assert own | borrowed == {c.name for c in candidates}
    for option in lent:
        assert 0 <= option.end_quality <= 1
        assert 0 < option.cost_gpu_s < math.inf
        assert option.name in own or option.quality_sd >= LENT_SD


def ends(*runs: ProfileTrial, lend: bool = True) -> list[float]:
    return [o.end_quality for o in options(runs, [r.config for r in runs], lend=lend)]


def test_half_of_what_a_lending_curve_promises_beyond_its_epochs_is_believed() -> None:
    run = trial(config("a", epochs=30))
    seen, promised = TRUE.at(len(run.quality) - 1), TRUE.at(30)
    assert ends(run, lend=False) == [pytest.approx(promised, abs=1e-3)]
    assert ends(run) == [pytest.approx((seen + promised) / 2, abs=1e-3)]
    within = trial(config("b", epochs=2))
    assert ends(within) == ends(within, lend=False), "what the trial has seen is as it was"


def test_less_data_does_not_end_better_where_trials_lend() -> None:
    """Only of families that differ in nothing else; both move, as neither is known to be the wrong one."""
    little, much = (trial(config(name, epochs=4, data_frac=part)) for name, part in (("little", 0.1), ("much", 1.0)))
    lucky = replace(little, quality=tuple(q + 0.1 for q in little.quality))
    assert ends(little, much) == ends(little, much, lend=False), "alike: nothing to mend"
    both = ends(lucky, much)
    plain = ends(lucky, much, lend=False)
    assert plain[0] > plain[1]
    assert both == [pytest.approx(sum(plain) / 2)] * 2
    other = replace(lucky, config=replace(lucky.config, lr=0.5))
    assert ends(other, much) == ends(other, much, lend=False)


@given(st.lists(st.tuples(st.sampled_from([0.1, 0.25, 0.5, 1.0]), st.lists(st.floats(0, 1), min_size=2, max_size=6)), max_size=4,
                unique_by=lambda one: one[0]), st.integers(1, 40))  # fmt: skip
def test_ends_rise_with_the_data_and_stay_among_what_the_trials_say(made: list[tuple[float, list[float]]], epochs: int) -> None:
    runs = [replace(trial(config(f"{part}", epochs, data_frac=part)), quality=tuple(q)) for part, q in made]
    smooth, plain = ends(*runs), [foretold(r, trial_curve(r), epochs, lend=True) for r in runs]
    told = [end for _, end in sorted(zip([part for part, _ in made], smooth, strict=True))]
    assert told == sorted(told)
    assert all(min(plain) - 1e-9 <= end <= max(plain) + 1e-9 for end in smooth)
    assert sum(smooth) == pytest.approx(sum(plain)), "on the mean nothing is promised or taken away"


def test_nothing_is_borrowed_from_a_run_without_sense() -> None:
    broken = replace(trial(config("a")), quality=(0.5, math.nan))
    assert options([broken], [config("a"), config("b", data_frac=0.5)], lend=True) == ()


def test_a_run_without_points_foretells_nothing() -> None:
    empty = ProfileTrial(config=config("a"), quality=(), init_gpu_s=0, gpu_s_per_epoch=1, n_profiled=0, n_total=10)
    assert options([empty], [config("a")]) == ()


@pytest.mark.parametrize(
    "bad",
    [{"quality": (0.5, math.nan)}, {"quality": (math.inf,)}, {"init_gpu_s": math.nan}, {"gpu_s_per_epoch": -1.0}],
)
def test_a_run_without_sense_foretells_nothing(bad: dict[str, object]) -> None:
    run = trial(config("a"))
    other = trial(config("b", data_frac=0.5))
    made = options([replace(run, **bad), other], [config("a"), config("b", data_frac=0.5)])  # type: ignore[arg-type]
    assert [o.name for o in made] == ["b"]


def test_a_prediction_is_the_less_sure_the_farther_it_reaches() -> None:
    short, long, longest = options([trial(config("run", 60))], [config("a", 5), config("b", 30), config("c", 60)])
    assert 0 < short.quality_sd < long.quality_sd < longest.quality_sd < 0.3
    (more,) = options([trial(config("run", 30), epochs=20)], [config("b", 30)])
    assert more.quality_sd < long.quality_sd


def test_a_run_of_one_point_claims_no_spread() -> None:
    recorded = replace(trial(config("a")), quality=(0.7,))
    assert [(o.end_quality, o.quality_sd) for o in options([recorded], [config("a")])] == [(pytest.approx(0.7), 0.0)]


def test_names_and_their_families() -> None:
    named = family_names(GRID)
    assert len(named) == 18
    assert len(set(named.values())) == 6
    assert named["l0.1d0.5e5"] == named["l0.1d0.5e30"] == family_key(GRID[3])


# --- pruning ----------------------------------------------------------------------------------------------------------


def option(name: str, end_quality: float, cost: float) -> RetrainOption:
    return RetrainOption(name=name, end_quality=end_quality, cost_gpu_s=cost)


PROFILE = (
    option("cheap", 0.70, 5),
    option("good", 0.80, 20),
    option("best", 0.85, 90),
    option("bad", 0.60, 50),
    option("worse", 0.55, 80),
)


def test_shortfall_against_the_best_of_the_same_or_lower_cost() -> None:
    assert front_shortfall(PROFILE) == {
        "cheap": 0.0,
        "good": 0.0,
        "best": 0.0,
        "bad": pytest.approx(0.20),
        "worse": pytest.approx(0.25),
    }


def test_the_worst_goes_first_and_the_front_stays() -> None:
    assert prune([PROFILE]) == ("cheap", "good", "best", "bad")
    assert prune([PROFILE], drop_frac=0.9) == ("cheap", "good", "best")
    assert prune([PROFILE], drop_frac=0.9, keep_min=4) == ("cheap", "good", "best", "bad")


def test_history_outweighs_the_newest_window() -> None:
    earlier = (*PROFILE[:3], option("bad", 0.30, 50), option("worse", 0.79, 80))
    assert prune([earlier, earlier, PROFILE]) == ("cheap", "good", "best", "worse")


def test_pruning_shrinks_to_the_front_or_three() -> None:
    names = [o.name for o in PROFILE]
    for _ in range(10):
        names = list(prune([tuple(o for o in PROFILE if o.name in names)]))
    assert names == ["cheap", "good", "best"]
    assert prune([]) == ()


FAMILIES = {"cheap": "x", "bad": "x", "good": "y", "best": "y", "worse": "z", "worst": "z"}


def test_with_families_a_whole_run_is_dropped_or_none() -> None:
    profile = (*PROFILE, option("worst", 0.50, 85))
    assert prune([profile]) == ("cheap", "good", "best", "bad", "worse"), "one name of six, which saves no run"
    assert prune([profile], families=FAMILIES) == ("cheap", "good", "best", "bad"), "one run of three"
    assert prune([profile], families=FAMILIES, spared=["worse"]) == tuple(o.name for o in profile), "it costs nothing to keep"
    assert prune([PROFILE], families={**FAMILIES, "worse": "y"}) == tuple(o.name for o in PROFILE), "all runs hold a front"


def test_a_family_is_judged_by_its_best_member() -> None:
    profile = (
        option("front", 0.80, 5),
        option("a1", 0.79, 10),
        option("a2", 0.10, 20),
        option("b1", 0.6, 10),
        option("b2", 0.6, 20),
    )
    kept = prune([profile], families={"a1": "a", "a2": "a", "b1": "b", "b2": "b"})
    assert kept == ("front", "a1", "a2")


def test_a_family_too_large_to_leave_enough_stays() -> None:
    profile = (option("front", 0.80, 5), *(option(f"a{n}", 0.5, 10 + n) for n in range(3)))
    assert prune([profile], families={f"a{n}": "a" for n in range(3)}) == ("front", "a0", "a1", "a2")


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 20), st.integers(0, 4)), min_size=1, max_size=15),
    st.floats(0, 1),
    st.integers(1, 6),
)
def test_pruning_drops_whole_families_and_never_the_front(values: list[tuple[int, int, int]], drop: float, keep: int) -> None:
    profile = [option(f"o{n}", q / 20, c) for n, (q, c, _) in enumerate(values)]
    family = {f"o{n}": f for n, (_, _, f) in enumerate(values)}
    kept = prune([profile, profile], drop_frac=drop, keep_min=keep, families=family)
    gone = {family[o.name] for o in profile if o.name not in kept}
    assert not gone & {family[name] for name in kept}
    assert {o.name for o in pareto_front(profile)} <= set(kept)
    assert len(kept) >= min(keep, len(profile))


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 20)), min_size=1, max_size=15),
    st.floats(0, 1),
    st.integers(1, 6),
)
def test_pruning_never_drops_the_front_nor_too_many(values: list[tuple[int, int]], drop: float, keep_min: int) -> None:
    profile = [option(f"o{n}", q / 20, c) for n, (q, c) in enumerate(values)]
    kept = prune([profile], drop_frac=drop, keep_min=keep_min)
    assert {o.name for o in pareto_front(profile)} <= set(kept)
    assert len(kept) >= min(keep_min, len(profile))
    assert list(kept) == [o.name for o in profile if o.name in kept]


def test_pruning_is_due_every_two_windows() -> None:
    assert [n for n in range(7) if prune_due(n)] == [2, 4, 6]


def test_every_knob_but_epochs_makes_another_family() -> None:
    from dataclasses import fields

    base = RetrainConfig(name="a")
    other = {"batch": 4, "layers_frac": 0.5, "data_frac": 0.5, "lr": 0.1, "replay_frac": 0.2, "head_neurons": 64, "distill": 1.0,
             "balance": True}  # fmt: skip
    assert set(other) | {"name", "epochs"} == {f.name for f in fields(RetrainConfig)}, "a new knob: is it part of the family?"
    assert family_key(replace(base, name="b", epochs=30)) == family_key(base)
    for knob, value in other.items():
        assert family_key(replace(base, **{knob: value})) != family_key(base), knob


# --- families that stop within a window -------------------------------------------------------------------------------

CHEAP = RetrainConfig(name="cheap", epochs=15, layers_frac=0.3, data_frac=0.5)
DEAR = RetrainConfig(name="dear", epochs=15, layers_frac=1.0)
GOOD, BAD = (0.3, 0.6, 0.7, 0.75, 0.77), (0.3, 0.31, 0.3, 0.31, 0.3)


@pytest.mark.parametrize(
    ("epochs", "eta", "rungs"), [(1, 2, (1,)), (2, 2, (1, 2)), (3, 2, (1, 2, 3)), (5, 2, (1, 2, 4, 5)), (9, 3, (1, 3, 9))]
)
def test_rungs_double_and_end_with_the_last_epoch(epochs: int, eta: int, rungs: tuple[int, ...]) -> None:
    assert rung_epochs(epochs, eta) == rungs


@pytest.mark.parametrize(("epochs", "eta"), [(0, 2), (5, 1)])
def test_rungs_of_nothing_are_refused(epochs: int, eta: int) -> None:
    with pytest.raises(ValueError, match="rungs"):
        rung_epochs(epochs, eta)


def test_a_dear_family_that_is_clearly_worse_than_a_cheap_one_stops() -> None:
    assert survivors([(CHEAP, GOOD), (DEAR, BAD)], n_holdout=400, keep_min=1) == (0,)
    assert survivors([(CHEAP, GOOD), (DEAR, BAD)], n_holdout=400) == (0, 1), "two are kept at least"


def test_a_cheap_family_stays_whatever_a_dear_one_is_worth() -> None:
    """The plan may have no room for the dear one."""
    assert survivors([(CHEAP, BAD), (DEAR, GOOD)], n_holdout=400, keep_min=1) == (0, 1)


def test_few_pictures_or_few_points_tell_too_little() -> None:
    close = tuple(q - 0.06 for q in GOOD)
    assert survivors([(CHEAP, GOOD), (DEAR, close)], n_holdout=8, keep_min=1) == (0, 1)
    assert survivors([(CHEAP, (0.3, 0.40)), (DEAR, (0.3, 0.36))], n_holdout=400, keep_min=1) == (0, 1)


def test_families_of_the_same_cost_are_judged_both_ways() -> None:
    other = replace(DEAR, name="other", lr=1e-2)
    assert survivors([(other, BAD), (DEAR, GOOD)], n_holdout=400, keep_min=1) == (1,)
    assert survivors([(other, GOOD), (DEAR, BAD)], n_holdout=400, keep_min=1) == (0,)


@given(
    st.lists(st.lists(st.floats(0, 1), min_size=3, max_size=3), min_size=1, max_size=5),
    st.integers(1, 500),
    st.integers(1, 3),
)
def test_the_best_prediction_always_goes_on(qualities: list[list[float]], n_holdout: int, keep_min: int) -> None:
    runs = [(replace(DEAR, name=str(i), layers_frac=0.2 + 0.2 * (i % 3)), q) for i, q in enumerate(qualities)]
    going = survivors(runs, n_holdout=n_holdout, keep_min=keep_min)
    assert len(going) >= min(keep_min, len(runs))
    ends = [fit_curve(range(3), q).at(15) for q in qualities]
    assert max(ends) == max(ends[i] for i in going)
    assert list(going) == sorted(set(going))
