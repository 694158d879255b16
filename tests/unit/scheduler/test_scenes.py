"""Which of the scenes that a camera knows is this one?"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import given

from scheduler import drift
from scheduler.drift.signature import PARTS
from scheduler.scenes import (
    CHANGED_LIGHT,
    MOST,
    MOST_LESSONS,
    OTHER_VIEW,
    SAME,
    Lesson,
    Scene,
    Scenes,
    apart,
    averaging,
    learned,
    seen,
    taken_back,
    taught_in,
    to_average,
)
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


# --- what lessons taught in other scenes --------------------------------------------------------------------------------


def taught(*steps: tuple[Signature, str]) -> Scenes:
    """A camera that sees one after the other and is taught a model in each, '': none."""
    scenes, serving = Scenes(), "v0"
    for view, version in steps:
        scenes, _ = seen(scenes, view, version=serving, gains=[])
        if version:
            scenes, serving = learned(scenes, Lesson(version=version, taught_in=f"lesson of {version}")), version
    return scenes


def back_to(scenes: Scenes, view: Signature, serving: str = "any", usable: Collection[str] = "abcdefg") -> list[str]:
    """The versions to be averaged when this scene is back."""
    scenes, back = seen(scenes, view, version=serving, gains=[])
    assert back is not None
    return [lesson.version for lesson in to_average(scenes, back, usable)]


def test_a_scene_that_is_back_has_its_own_lessons_and_the_newest_of_all() -> None:
    assert back_to(taught((DAY, "a"), (NIGHT, "b")), DAY) == ["a", "b"]
    assert back_to(taught((DAY, "a"), (DAY, "b"), (NIGHT, "c")), DAY) == ["a", "b", "c"]
    assert back_to(taught((DAY, "a"), (NIGHT, "b"), (at(40.0), "c")), DAY) == ["a", "c"], "not what lies between"


def test_of_its_own_only_the_newest_count() -> None:
    assert back_to(taught((DAY, "a"), (DAY, "b"), (DAY, "c"), (NIGHT, "d")), DAY) == ["b", "c", "d"]
    assert MOST_LESSONS == 2


def test_where_nothing_was_learned_elsewhere_since_its_own_model_serves() -> None:
    assert back_to(taught((DAY, "a"), (NIGHT, "")), DAY) == []
    assert back_to(taught((NIGHT, "a"), (DAY, "b"), (NIGHT, "")), DAY) == []


def test_a_scene_without_a_lesson_has_the_model_that_served_it() -> None:
    assert back_to(taught((DAY, "a"), (FOG, ""), (NIGHT, "b")), FOG) == ["a", "b"]


def test_what_cannot_serve_any_more_is_left_out() -> None:
    scenes = taught((DAY, "a"), (DAY, "b"), (NIGHT, "c"))
    assert back_to(scenes, DAY, usable="bc") == ["b", "c"]
    assert back_to(scenes, DAY, usable="ab") == []
    assert back_to(scenes, DAY, usable="c") == []


def test_the_same_lessons_are_not_averaged_again_but_others_are() -> None:
    scenes, back = seen(taught((DAY, "a"), (NIGHT, "b")), DAY, version="b", gains=[])
    assert back is not None
    scenes = averaging(scenes, to_average(scenes, back, "ab"), "mean")
    scenes, _ = seen(scenes, NIGHT, version="mean", gains=[])
    assert back_to(scenes, DAY) == []
    assert back_to(learned(scenes, Lesson(version="c")), DAY) == ["a", "c"]


def test_a_model_that_was_taken_back_is_averaged_with_no_other() -> None:
    scenes = taught((DAY, "a"), (NIGHT, "b"))
    assert back_to(taken_back(scenes, "b"), DAY) == [], "the newest lesson was none"
    assert back_to(taken_back(scenes, "a"), DAY, serving="b", usable="b") == []
    assert back_to(taken_back(scenes, "x"), DAY) == ["a", "b"]


def test_cameras_with_one_model_say_the_same_of_what_taught_it() -> None:
    """Each camera has versions of its own of what they learned together."""

    def told(camera: str) -> tuple[str, str]:
        scenes = Scenes()
        for view, lesson in ((DAY, "first"), (NIGHT, "second")):
            scenes, _ = seen(scenes, view, version=f"{camera}-0", gains=[])
            scenes = learned(scenes, Lesson(version=f"{camera}-{lesson}", taught_in=lesson))
        scenes, back = seen(scenes, DAY, version=f"{camera}-second", gains=[])
        assert back is not None
        scenes = averaging(scenes, to_average(scenes, back, [f"{camera}-first", f"{camera}-second"]), f"{camera}-mean")
        return taught_in(scenes, f"{camera}-mean"), taught_in(scenes, f"{camera}-first")

    assert told("a") == told("b") == ("first + second", "first")
    assert taught_in(taught((DAY, "a")), "unheard of") == ""
    assert taught_in(Scenes(known=(Scene(number=0, signature=DAY, version="v"),)), "") == "", "no mean is no version"


def test_a_lesson_before_anything_was_seen_is_the_newest_and_of_no_scene() -> None:
    scenes = learned(Scenes(), Lesson(version="a"))
    assert scenes.newest == Lesson(version="a")
    scenes, _ = seen(scenes, DAY, version="a", gains=[])
    assert scenes.newest is not None, "not forgotten with the first look"
    assert averaging(Scenes(), (Lesson(version="a"),)) == Scenes()


@given(st.lists(st.tuples(st.sampled_from([DAY, NIGHT, FOG]), st.booleans()), max_size=30))
def test_over_a_long_time_a_scene_remembers_few_lessons_and_averages_few(steps: list[tuple[Signature, bool]]) -> None:
    scenes, serving = Scenes(), "0"
    for number, (view, learns) in enumerate(steps):
        scenes, back = seen(scenes, view, version=serving, gains=[])
        if back is not None:
            parts = to_average(scenes, back, {str(n) for n in range(1, len(steps) + 1)})
            assert len(parts) in (0, *range(2, MOST_LESSONS + 2))
            assert len({lesson.version for lesson in parts}) == len(parts)
            if parts:
                assert parts[-1] == scenes.newest
                scenes, serving = averaging(scenes, parts, f"mean {number}"), f"mean {number}"
        if learns:
            scenes, serving = learned(scenes, Lesson(version=str(number + 1))), str(number + 1)
        assert all(len(scene.lessons) <= MOST_LESSONS for scene in scenes.known)
