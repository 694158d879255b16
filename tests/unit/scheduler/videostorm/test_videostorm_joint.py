"""One menu of a camera and of what is asked of it: worked by hand, and what holds for any of them."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.types import KnobProfile
from scheduler.videostorm.joint import MOST_OPTIONS, QueryMenu, QueryOption, in_force, join

EVERY = KnobProfile(name="every", demand_pct=20.0, quality_frac=1.0, fps=4.0)
HALF = KnobProfile(name="1/2", demand_pct=10.0, quality_frac=0.8, fps=2.0, height_px=180)
FINE = QueryOption(setting={"read.every": 1}, demand_pct=30.0, quality=1.0, fps=4.0)
COARSE = QueryOption(setting={"read.every": 5}, demand_pct=6.0, quality=0.9, fps=4.0)
PLATE = QueryMenu(query="plate", options=(FINE, COARSE))


def test_worked_by_hand() -> None:
    """20 + 30, 20 + 6, and at half the rate 10 + 15 and 10 + 3: nobody beats 25 pct for 0.8, since (every, coarse) costs 26."""
    menu = join([EVERY, HALF], [PLATE])
    assert [(one.knobs.name, one.knobs.demand_pct, one.knobs.quality_frac) for one in menu] == [
        ("every", 50.0, 1.0), ("every plate:2", 26.0, 0.9), ("1/2", 25.0, 0.8), ("1/2 plate:2", 13.0, 0.72),
    ]  # fmt: skip
    assert menu[1].settings == {"plate": {"read.every": 5}}
    assert (menu[2].knobs.fps, menu[2].knobs.height_px, menu[2].base) == (2.0, 180, HALF)


def test_what_nobody_would_choose_is_left_out() -> None:
    wasteful = QueryOption(setting={}, demand_pct=29.0, quality=0.5, fps=4.0)
    menu = join([EVERY], [QueryMenu(query="plate", options=(FINE, COARSE, wasteful))])
    assert [one.knobs.name for one in menu] == ["every", "every plate:2"]


def test_weights_say_whose_quality_counts() -> None:
    crowd = QueryMenu(query="crowd", options=(QueryOption(setting={}, demand_pct=2.0, quality=1.0),), weight=3.0)
    menu = join([EVERY], [PLATE, crowd])
    assert [one.knobs.quality_frac for one in menu] == [1.0, pytest.approx(0.75 + 0.25 * 0.9)]
    assert [one.knobs.demand_pct for one in menu] == [52.0, 28.0]


def test_mu_scales_what_queries_need_and_nothing_else() -> None:
    assert [one.knobs.demand_pct for one in join([EVERY], [PLATE], mu=2.0)] == [80.0, 32.0]


def test_without_queries_it_is_the_cameras_own_menu() -> None:
    assert [one.knobs for one in join([EVERY, HALF], [])] == [EVERY, HALF]


def test_a_name_of_an_older_menu_still_means_something() -> None:
    menu = join([EVERY, HALF], [PLATE])
    found = {name: in_force(menu, name) for name in ("1/2 plate:2", "1/2 plate:7", "1/2", "1/8 plate:2", None)}
    assert {name: one.knobs.name if one else None for name, one in found.items()} == {
        "1/2 plate:2": "1/2 plate:2", "1/2 plate:7": "1/2", "1/2": "1/2", "1/8 plate:2": "every", None: None,
    }  # fmt: skip
    assert in_force((), "every") is None


@pytest.mark.parametrize("mu", [0.0, -1.0, math.nan, math.inf])
def test_a_mu_that_is_none_is_refused(mu: float) -> None:
    with pytest.raises(ValueError, match="mu"):
        join([EVERY], [PLATE], mu=mu)


def test_menus_that_are_none_are_refused() -> None:
    with pytest.raises(ValueError, match="no options"):
        QueryMenu(query="plate", options=())
    with pytest.raises(ValueError, match="weight"):
        QueryMenu(query="plate", options=(FINE,), weight=math.nan)
    with pytest.raises(ValueError, match="two menus"):
        join([EVERY], [PLATE, PLATE])


PARTS = st.floats(0.01, 1.0)
OPTIONS = st.lists(st.tuples(st.floats(0.1, 60.0), PARTS), min_size=1, max_size=5)


@settings(max_examples=80, deadline=None)
@given(
    base=st.lists(st.tuples(st.floats(0.5, 50.0), PARTS), min_size=1, max_size=4),
    queries=st.lists(OPTIONS, min_size=1, max_size=3),
)
def test_no_combination_beats_what_is_offered(
    base: list[tuple[float, float]], queries: list[list[tuple[float, float]]]
) -> None:
    own = [KnobProfile(name=f"k{n}", demand_pct=d, quality_frac=q, fps=5.0) for n, (d, q) in enumerate(base)]
    menus = [
        QueryMenu(
            query=f"q{n}",
            options=tuple(QueryOption(setting={"n": i}, demand_pct=d, quality=q) for i, (d, q) in enumerate(options)),
        )
        for n, options in enumerate(queries)
    ]
    offered = join(own, menus)
    demands = [one.knobs.demand_pct for one in offered]
    qualities = [one.knobs.quality_frac for one in offered]
    assert demands == sorted(demands, reverse=True)
    assert qualities == sorted(qualities, reverse=True)
    assert len({one.knobs.name for one in offered}) == len(offered) <= MOST_OPTIONS
    for knobs, *chosen in itertools.product(own, *(menu.options for menu in menus)):
        demand = knobs.demand_pct + sum(option.demand_pct for option in chosen)
        quality = knobs.quality_frac * sum(option.quality for option in chosen) / len(chosen)
        within = [one.knobs.quality_frac for one in offered if one.knobs.demand_pct <= demand + 1e-3]
        assert len(offered) == MOST_OPTIONS or max(within) >= quality - 1e-3
