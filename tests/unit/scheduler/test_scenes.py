"""Which of the scenes that a camera knows is this one?"""

from __future__ import annotations

import math
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given

from scheduler import drift
from scheduler.drift.signature import PARTS
from scheduler.scenes import CHANGED_LIGHT, MOST, OTHER_VIEW, SAME, Scene, Scenes, apart, seen
from scheduler.types import Signature


def at(value: float) -> Signature:
    """`drift.distance` of two of them grows with the difference."""
    return Signature(values=(value,) * sum(PARTS))


DAY, NIGHT, FOG = at(0.0), at(1.0), at(-1.0)


def after(*views: Signature, version: str = "v0", gains: tuple[float, ...] = ()) -> tuple[Scenes, Scene | None]:
    scenes, back = Scenes(), None
    for view in views:
        scenes, back = seen(scenes, view, version=version, gains=gains)
    return scenes, back


def test_the_first_look_is_the_first_scene_and_no_turn() -> None:
    scenes, back = after(DAY)
    assert [s.number for s in scenes.known] == [0]
    assert back is None


def test_a_scene_that_changes_little_by_little_stays_the_same_one() -> None:
    scenes, back = after(*(at(step / 20) for step in range(40)))
    assert (scenes.made, back) == (1, None)
    assert scenes.present is not None
    assert scenes.present.signature == at(39 / 20), "and is known as it was seen last"


def test_what_comes_back_is_what_it_was_with_its_model_and_what_was_won_in_it() -> None:
    scenes, _ = after(DAY)
    scenes, back = seen(scenes, NIGHT, version="of the day", gains=[0.3, 0.1])
    assert back is None
    scenes, back = seen(scenes, NIGHT, version="of the night", gains=[0.2])
    scenes, back = seen(scenes, at(0.05), version="of the night", gains=[0.2, 0.0])
    assert back == Scene(number=0, signature=DAY, version="of the day", gains=(0.3, 0.1))
    assert [(s.number, s.visits) for s in scenes.known] == [(0, 2), (1, 1)]
    assert scenes.known[1] == Scene(number=1, signature=NIGHT, version="of the night", gains=(0.2, 0.0))


def test_the_nearest_of_several_is_the_one_that_is_back() -> None:
    scenes, _ = after(DAY, NIGHT, FOG)
    _, back = seen(scenes, at(0.9), version="v", gains=[])
    assert back is not None
    assert back.number == 1


def test_a_scene_that_is_hardly_nearer_than_the_present_one_is_new() -> None:
    scenes, _ = after(DAY, NIGHT)
    scenes, back = seen(scenes, at(0.5), version="v", gains=[])
    assert (back, scenes.made) == (None, 3)


def test_a_look_that_says_nothing_changes_nothing() -> None:
    scenes, _ = after(DAY, NIGHT)
    assert seen(scenes, Signature(), version="v", gains=[]) == (scenes, None)
    assert seen(Scenes(), Signature(), version="v", gains=[]) == (Scenes(), None)


@given(views=st.lists(st.floats(-3, 3), max_size=60))
def test_no_scene_has_the_number_of_another_and_not_many_are_kept(views: list[float]) -> None:
    scenes = Scenes()
    for number, value in enumerate(views):
        before = scenes
        scenes, back = seen(scenes, at(value), version=f"v{number}", gains=[])
        assert len({s.number for s in scenes.known}) == len(scenes.known) <= MOST
        assert all(s.number < scenes.made for s in scenes.known)
        assert scenes.present is not None
        assert scenes.present.signature == at(value)
        if back is not None:
            assert back in before.known[1:]
            assert scenes.present == replace(back, signature=at(value), visits=back.visits + 1)
        elif before.present is not None and scenes.made == before.made:
            assert abs(value - before.present.signature.values[0]) <= CHANGED_LIGHT + 0.2, "it stayed"


# --- another view in the same light -----------------------------------------------------------------------------------


def turned(degrees: float, value: float = 0.0) -> Signature:
    """A view that correlates with another one by the cosine of what is between them."""
    angle = math.radians(degrees)
    return Signature(values=(value,) * sum(PARTS), view=(math.cos(angle), math.sin(angle)))


def test_views_that_have_nothing_in_common_are_another_scene_in_whatever_light() -> None:
    assert apart(turned(0), turned(90)) == pytest.approx(OTHER_VIEW)
    assert apart(turned(0), turned(180)) == pytest.approx(2 * OTHER_VIEW)
    scenes, back = after(turned(0), turned(90))
    assert (len(scenes.known), back) == (2, None)
    scenes, back = seen(scenes, turned(5), version="v1", gains=[])
    assert back is not None
    assert back.number == 0


def test_a_view_that_is_much_the_same_decides_nothing() -> None:
    assert apart(turned(0), turned(40)) < SAME
    assert apart(turned(0), turned(20, 1.0)) == apart(at(0.0), at(1.0))


@pytest.mark.parametrize("other", [at(0.1), replace(turned(90, 0.1), view=()), replace(turned(90, 0.1), view=(1.0,))])
def test_where_one_view_is_unknown_the_picture_alone_counts(other: Signature) -> None:
    assert apart(turned(0), other) == apart(other, turned(0)) == apart(at(0.0), at(0.1)) < SAME


def test_what_another_model_finds_is_no_other_scene() -> None:
    """A model that was trained elsewhere sees nothing here; the picture is what it was."""
    values = list(at(0.5).values)
    values[PARTS[0]] = 3.0
    values[PARTS[0] + 1 : sum(PARTS)] = [0.7] * PARTS[2]
    blind = Signature(values=tuple(values))
    assert apart(at(0.5), blind) == 0
    assert drift.distance(at(0.5), blind) > CHANGED_LIGHT


def test_a_look_without_a_signature_is_infinitely_far() -> None:
    assert apart(Signature(), at(0.5)) == math.inf
