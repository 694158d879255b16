"""The profile search: what it asks, when it ends, what it leaves out, and that it finds the front."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.videostorm import Option, Search, pareto, pareto_options
from scheduler.videostorm.guide import promising

KNOBS = {"height": (180, 360, 720), "fps": (1, 5, 10), "model": ("n", "s")}
Measure = Callable[[Mapping[str, Any]], tuple[float, float]]


def measure(config: Mapping[str, Any]) -> tuple[float, float]:
    """Knobs that act on their own: (quality, demand)."""
    quality = {180: 0.5, 360: 0.8, 720: 1.0}[config["height"]] * {1: 0.7, 5: 0.95, 10: 1.0}[config["fps"]]
    return quality * {"n": 0.85, "s": 1.0}[config["model"]], config["height"] ** 2 / 1e4 * config["fps"] * {"n": 1, "s": 2.5}[
        config["model"]
    ]


def run(search: Search, how: Measure = measure) -> list[dict[str, Any]]:
    """What it asked, in order."""
    asked = []
    while (config := search.ask()) is not None:
        asked.append(dict(config))
        search.tell(config, *how(config))
    return asked


def everything(knobs: Mapping[str, tuple[Any, ...]] = KNOBS) -> list[dict[str, Any]]:
    return [dict(zip(knobs, values, strict=True)) for values in itertools.product(*knobs.values())]


# --- asking and telling -----------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1000), st.integers(0, 20), st.booleans(), st.integers(1, 4))
def test_nothing_is_asked_twice_and_the_budget_is_kept(seed: int, budget: int, guided: bool, starts: int) -> None:
    search = Search(KNOBS, 0.001, starts=starts, seed=seed, budget=budget, guided=guided)
    asked = run(search)
    keys = [tuple(config.values()) for config in asked]
    assert len(set(keys)) == len(keys) <= budget
    assert search.ask() is None
    assert len(search.tried) == len(asked)
    again = Search(KNOBS, 0.001, starts=starts, seed=seed, budget=budget, guided=guided)
    assert run(again) == asked


def test_the_same_is_asked_until_it_is_told_of() -> None:
    search = Search(KNOBS, 0.001)
    first = search.ask()
    assert first is not None
    assert search.ask() == first
    other = next(c for c in everything() if c != dict(first))
    search.tell(other, 0.5, 1.0)
    assert search.ask() == first
    search.tell(first, 0.5, 1.0)
    assert search.ask() != first


def test_what_was_told_before_is_not_asked() -> None:
    search = Search(KNOBS, 0.001, guided=False)
    golden = {"height": 720, "fps": 10, "model": "s"}
    search.tell(golden, *measure(golden))
    assert golden not in run(search)
    assert len(search.tried) == search.size == 18


def test_a_climb_begins_where_it_is_told_to() -> None:
    first = {"height": 360, "fps": 5, "model": "n"}
    assert run(Search(KNOBS, 0.001, first=first, seed=3))[0] == first


def test_starts_are_drawn_only_where_nothing_guides(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a first configuration and a space that can be predicted, no start is ever drawn; in a larger one from the second climb on."""
    first = {"height": 720, "fps": 10, "model": "s"}

    def asked(starts: int) -> list[dict[str, Any]]:
        return run(Search(KNOBS, 0.001, starts=starts, first=first, seed=3))

    assert asked(1) == asked(3)
    monkeypatch.setattr("scheduler.videostorm.guide.MOST", 17)  # there are 18
    one, three = asked(1), asked(3)
    assert one != three
    assert one[:6] == three[:6]  # the first and its 5 neighbours, before anything is drawn


def test_what_cannot_be_measured_is_passed_over() -> None:
    search = Search(KNOBS, 0.001, seed=1)
    while (config := search.ask()) is not None:
        if config["height"] == 720:
            search.fail(config)
        else:
            search.tell(config, *measure(config))
    assert all(t.config["height"] != 720 for t in search.tried)
    assert search.profile()


def test_everything_may_fail() -> None:
    search = Search(KNOBS, 0.001)
    while (config := search.ask()) is not None:
        search.fail(config)
    assert search.profile() == ()


def test_a_climb_changes_one_knob_at_a_time_and_only_rises() -> None:
    """With one start and neighbours in order, each question differs in one knob from the best so far."""
    search = Search(KNOBS, 0.0001, starts=1, order="listed", first={"height": 180, "fps": 1, "model": "n"})
    best: dict[str, Any] | None = None
    worth = -math.inf
    for _ in range(8):
        config = search.ask()
        assert config is not None
        assert best is None or sum(config[k] != best[k] for k in KNOBS) == 1
        quality, demand = measure(config)
        search.tell(config, quality, demand)
        if quality - 0.0001 * demand > worth:
            best, worth = dict(config), quality - 0.0001 * demand


def test_profiles_are_fronts() -> None:
    search = Search(KNOBS, 0.001, seed=2)
    run(search)
    profile = search.profile()
    demands, qualities = [t.demand for t in profile], [t.quality for t in profile]
    assert demands == sorted(demands)
    assert qualities == sorted(qualities)
    assert len(set(qualities)) == len(qualities)


# --- what it finds ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_the_guide_finds_the_front_of_independent_knobs_for_less(seed: int) -> None:
    knobs = {"a": (1, 2, 3, 4), "b": (1, 2, 3, 4), "c": (1, 2, 3), "d": (1, 2, 3)}

    def product(config: Mapping[str, Any]) -> tuple[float, float]:
        at = [config[name] / len(values) for name, values in knobs.items()]
        return math.prod(x**y for x, y in zip(at, (0.1, 0.6, 0.3, 0.2), strict=True)), 10 * math.prod(at)

    search = Search(knobs, 0.1, seed=seed)
    run(search, product)
    every = [product(c)[::-1] for c in everything(knobs)]
    assert sum(d for d, _ in every) > 2 * sum(t.demand for t in search.tried)
    cheapest = min(t.demand for t in search.tried)
    for demand, quality in (every[i] for i in pareto(every)):
        if demand >= cheapest:
            found = max(t.quality for t in search.tried if t.demand <= demand * (1 + 1e-9))
            assert found >= quality - 0.02


def test_the_guide_names_nothing_where_nothing_is_expected() -> None:
    tried = {(0, 0): (1.0, 0.9), (0, 1): (2.0, 0.9), (1, 0): (2.0, 0.9)}
    assert promising((2, 2), tried, list(tried), 0.01) is None
    assert promising((2, 2), {}, [], 0.01) is None


def test_the_guide_names_what_two_single_steps_promise() -> None:
    """Each knob alone lifts quality from 0.4 to 0.6; both together should give 0.9."""
    tried = {(0, 0): (1.0, 0.4), (0, 1): (2.0, 0.6), (1, 0): (2.0, 0.6)}
    assert promising((2, 2), tried, list(tried), 0.01) == (1, 1)
    assert promising((2, 2), tried, [*tried, (1, 1)], 0.01) is None


def test_demands_and_qualities_of_zero_are_digested() -> None:
    search = Search(KNOBS, 0.001, seed=5)
    run(search, lambda config: (0.0, 0.0))
    assert len(search.profile()) == 1


def test_a_space_too_large_to_predict_is_climbed() -> None:
    knobs = {f"k{i}": tuple(range(10)) for i in range(6)}
    search = Search(knobs, 0.1, budget=40, seed=1)
    asked = run(search, lambda c: (sum(c.values()) / 60, 1.0))
    assert search.size == 10**6
    assert len(asked) == 40


# --- fronts -----------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=10))
def test_a_front_holds_what_nothing_else_beats(points: list[tuple[float, float]]) -> None:
    front = pareto(points)
    for i, (demand, quality) in enumerate(points):
        beaten = any(
            d <= demand and q >= quality and ((d, q) != (demand, quality) or j < i) for j, (d, q) in enumerate(points) if j != i
        )
        assert (i in front) == (not beaten)
    assert [points[i] for i in front] == sorted(points[i] for i in front)


def test_options_worth_running() -> None:
    options = [
        Option(name=n, demand_pct=d, quality=q) for n, d, q in (("a", 5, 0.5), ("b", 5, 0.6), ("c", 9, 0.6), ("d", 2, 0.1))
    ]
    assert [o.name for o in pareto_options(options)] == ["d", "b"]


# --- refused ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"knobs": {}},
        {"knobs": {"a": ()}},
        {"knobs": {"a": (1, 1)}},
        {"beta": math.nan},
        {"beta": -1.0},
        {"starts": 0},
        {"budget": -1},
        {"sweep": ()},
        {"sweep": (math.inf,)},
        {"least_gain": 0.0},
        {"first": {"height": 180}},
        {"first": {"height": 181, "fps": 1, "model": "n"}},
    ],
)
def test_senseless_searches_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        Search(**({"knobs": KNOBS, "beta": 0.1} | wrong))


@pytest.mark.parametrize(
    ("quality", "demand"), [(math.nan, 1.0), (1.1, 1.0), (-0.1, 1.0), (0.5, math.nan), (0.5, -1.0), (0.5, math.inf)]
)
def test_senseless_measurements_are_refused_and_asked_for_again(quality: float, demand: float) -> None:
    search = Search(KNOBS, 0.001)
    config = search.ask()
    assert config is not None
    with pytest.raises(ValueError, match="quality must be 0-1"):
        search.tell(config, quality, demand)
    with pytest.raises(ValueError, match="has no value"):
        search.tell({**config, "fps": 3}, 0.5, 1.0)
    assert search.ask() == config
    assert search.tried == ()


def test_configurations_cannot_be_changed_from_outside() -> None:
    search = Search(KNOBS, 0.001)
    config = search.ask()
    assert config is not None
    with pytest.raises(TypeError):
        config["fps"] = 99  # type: ignore[index]
    assert np.isfinite(search.size)
