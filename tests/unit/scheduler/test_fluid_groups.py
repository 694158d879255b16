"""Tuners as sequences of groups: the published sizes, who goes on, and that nothing depends on the order of reports."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.errors import UsageError
from scheduler.fluid.groups import Asha, Ask, Grid, Hyperband, Pbt, Report, SuccessiveHalving, Tuner, group_of, random_search

NAMES = tuple(f"t{i}" for i in range(9))


def played(tuner: Tuner, score: Callable[[str], float], *, shuffle: int = 0) -> list[tuple[Ask, ...]]:
    """The groups, each run to its end before the next is asked for."""
    told: list[Report] = []
    groups = []
    while asks := tuner.ask(told):
        groups.append(asks)
        reports = [Report(trial=a.trial, budget=a.budget, score=score(a.trial)) for a in asks]
        random.Random(shuffle).shuffle(reports)
        told += reports
        assert len(groups) < 500
    return groups


def sizes(groups: Sequence[tuple[Ask, ...]]) -> list[tuple[int, float]]:
    return [(len(g), g[0].budget) for g in groups]


def by_number(name: str) -> float:
    return -float(name.split("/")[-1].lstrip("t"))


def test_a_grid_is_one_group() -> None:
    assert played(Grid(trials=NAMES, budget=30), by_number) == [tuple(Ask(trial=t, budget=30) for t in NAMES)]
    assert Grid(trials=NAMES, budget=30).ask([], running=["t0"]) == ()


def test_random_search_draws_without_repeats_from_its_seed() -> None:
    space: dict[str, list[object]] = {"lr": [0.1, 0.01, 0.001], "layers": [0.1, 1.0], "epochs": [5, 15, 30]}
    drawn = random_search(space, 10, seed=1)
    assert len(drawn) == len({tuple(sorted(d.items())) for d in drawn}) == 10
    assert drawn == random_search(space, 10, seed=1)
    assert drawn != random_search(space, 10, seed=2)
    everything = random_search(space, 1000, seed=1)
    assert len(everything) == 18
    assert all(d[k] in space[k] for d in everything for k in space)


def test_successive_halving_keeps_the_best_and_counts_increments() -> None:
    groups = played(SuccessiveHalving(trials=NAMES, r=1, eta=3), by_number)
    assert [[a.trial for a in g] for g in groups] == [list(NAMES), ["t0", "t1", "t2"], ["t0"]]
    assert [g[0].increment for g in groups] == [1, 2, 6]
    assert [g[0].done for g in groups] == [0, 1, 3]


@pytest.mark.parametrize("falls", [5.0, 100.0])
def test_who_went_on_stays_the_same_when_scores_fall_later(falls: float) -> None:
    """A trial that trains on may become worse than those that were stopped; those stay stopped, and each rung is run once."""
    tuner, told, sizes_told = SuccessiveHalving(trials=NAMES, r=1, eta=3), list[Report](), list[int]()
    while asks := tuner.ask(told):
        sizes_told.append(len(asks))
        told += [Report(trial=a.trial, budget=a.budget, score=by_number(a.trial) - falls * (a.budget > 1)) for a in asks]
        assert len(sizes_told) < 10
    assert sizes_told == [9, 3, 1]
    assert {r.trial for r in told if r.budget == 3} == {"t0", "t1", "t2"}


@pytest.mark.parametrize("seed", range(5))
def test_hyperband_runs_each_rung_once_whatever_the_scores(seed: int) -> None:
    rng, tuner, told = random.Random(seed), Hyperband(budget_max=9, eta=3), list[Report]()
    groups = []
    while asks := tuner.ask(told):
        groups.append((len(asks), asks[0].budget))
        told += [Report(trial=a.trial, budget=a.budget, score=rng.random()) for a in asks]
        assert len(groups) < 50
    assert groups == [rung for bracket in tuner.brackets() for rung in bracket.rungs()]


def test_hyperband_as_published() -> None:
    """R = 81, eta = 3: 81 trials at 1, 34 at 3, 15 at 9, 8 at 27, 5 at 81; then every rung."""
    brackets = Hyperband(budget_max=81).brackets()
    assert [(b.rungs()[0]) for b in brackets] == [(81, 1), (34, 3), (15, 9), (8, 27), (5, 81)]
    groups = sizes(played(Hyperband(budget_max=81), by_number))
    assert groups[:5] == [(81, 1), (27, 3), (9, 9), (3, 27), (1, 81)]
    assert groups[5:9] == [(34, 3), (11, 9), (3, 27), (1, 81)]
    assert groups[-1] == (5, 81)
    assert len(groups) == 5 + 4 + 3 + 2 + 1


@pytest.mark.parametrize("eta", [2, 3, 4])
@pytest.mark.parametrize("budget_max", [1, 10, 100])
def test_hyperband_never_goes_beyond_its_budget(eta: int, budget_max: int) -> None:
    groups = sizes(played(Hyperband(budget_max=budget_max, eta=eta), by_number))
    assert max(budget for _, budget in groups) == pytest.approx(budget_max)


def test_asha_promotes_as_soon_as_a_third_is_in() -> None:
    tuner = Asha(trials=NAMES, r=1, budget_max=9, eta=3, concurrency=2)
    assert [a.trial for a in tuner.ask([])] == ["t0", "t1"]
    told = [Report(trial=t, budget=1, score=s) for t, s in (("t0", 0.2), ("t1", 0.9), ("t2", 0.5))]
    first, second = tuner.ask(told)
    assert (first.trial, first.budget, first.increment) == ("t1", 3, 2)
    assert (second.trial, second.budget) == ("t3", 1)
    assert tuner.ask(told, running=["t1", "t3"]) == ()
    assert [a.trial for a in tuner.ask(told, running=["t1"])] == ["t3"]


def test_asha_never_has_more_at_once_than_its_concurrency() -> None:
    groups = played(Asha(trials=NAMES, r=1, budget_max=9, concurrency=4), by_number)
    assert max(map(len, groups)) == 4
    reached = {a.trial: a.budget for g in groups for a in g}
    assert reached["t0"] == 9
    assert set(reached) == set(NAMES)


def test_pbt_copies_the_best_over_the_worst() -> None:
    tuner = Pbt(population=NAMES[:8], interval=80, budget=240, seed=3)
    groups = played(tuner, by_number)
    assert sizes(groups) == [(8, 80), (8, 160), (8, 240)]
    assert all(a.like is None for a in groups[0])
    assert {a.trial: a.like for a in groups[1] if a.like} == {"t7": "t0", "t6": "t1"}
    assert {a.factor for a in groups[1] if a.like} <= {1.2, 0.8}
    assert played(tuner, by_number) == groups


def test_one_that_failed_is_never_promoted_or_copied() -> None:
    def score(name: str) -> float:
        return math.nan if name in ("t0", "t1", "t2") else by_number(name)

    assert [a.trial for a in played(SuccessiveHalving(trials=NAMES, r=1), score)[1]] == ["t3", "t4", "t5"]
    assert not {"t0", "t1", "t2"} & {a.trial for g in played(Asha(trials=NAMES, r=1, budget_max=9), score) for a in g if a.done}
    pbt = played(Pbt(population=NAMES[:4], interval=1, budget=2, seed=0), lambda name: math.nan)
    assert all(a.like is None for g in pbt for a in g)
    assert len(played(SuccessiveHalving(trials=NAMES, r=1), lambda name: math.nan)) == 1, "nobody is left"


TUNERS: list[Tuner] = [
    SuccessiveHalving(trials=NAMES, r=1, eta=2),
    Hyperband(budget_max=9),
    Asha(trials=NAMES, r=1, budget_max=9, concurrency=5),
    Pbt(population=NAMES, interval=2, budget=8, seed=1),
]


@given(st.sampled_from(TUNERS), st.integers(1, 100), st.dictionaries(st.sampled_from(NAMES), st.sampled_from([0.1, 0.5, 0.9])))
def test_the_order_of_reports_does_not_matter(tuner: Tuner, shuffle: int, scores: dict[str, float]) -> None:
    def score(name: str) -> float:
        return scores.get(name, 0.5)

    assert played(tuner, score) == played(tuner, score, shuffle=shuffle)


def test_a_group_is_measured_seconds_times_what_is_left() -> None:
    asks = (Ask(trial="a", budget=9, done=3), Ask(trial="b", budget=9))
    group = group_of("g", asks, {"a": 0.5, "b": 2.0}, alpha=1.2, beta=1.1)
    assert [(t.h_s, t.alpha, t.beta) for t in group.trials] == [(3.0, 1.2, 1.1), (18.0, 1.2, 1.1)]


@pytest.mark.parametrize(("r", "eta"), [(0, 3), (1, 1)])
def test_rungs_that_make_no_sense_are_refused(r: float, eta: int) -> None:
    with pytest.raises(UsageError):
        SuccessiveHalving(trials=NAMES, r=r, eta=eta)
