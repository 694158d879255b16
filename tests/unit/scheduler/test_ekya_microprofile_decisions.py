"""Families, predictions from short runs, pruning by distance from the Pareto front."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.curves import LearningCurve
from scheduler.ekya.baselines import pareto_front
from scheduler.ekya.microprofile import cost_gpu_s, families, front_shortfall, grouped, options, prune, prune_due
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


def test_a_run_without_points_foretells_nothing() -> None:
    empty = ProfileTrial(config=config("a"), quality=(), init_gpu_s=0, gpu_s_per_epoch=1, n_profiled=0, n_total=10)
    assert options([empty], [config("a")]) == ()


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
