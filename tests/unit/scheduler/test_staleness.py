"""What slower rates leave, from what a model says from frame to frame."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.ekya.staleness import LEAST_REPEAT, Agreement, Fading, fading, followed, of_all
from scheduler.ekya.usual_knobs import STRIDES
from scheduler.types import KnobProfile

FRAME_S = 1 / 12
USUAL = tuple(KnobProfile(name=f"1/{n}", demand_pct=60 / n, quality_frac=frac, fps=12 / n) for n, frac in STRIDES)


def seen(age_s: float, f1: float, objects: float = 1000.0) -> Agreement:
    """As many objects that are gone as are new, so F1 is the part that was found again."""
    return Agreement(age_s=age_s, tp=f1 * objects, fp=(1 - f1) * objects, fn=(1 - f1) * objects)


def model(pace: float, repeat: float, ages: tuple[int, ...] = (1, 2, 4, 8, 16)) -> list[Agreement]:
    """What is seen where a scene loses its objects at an even pace, by a model that repeats itself so well."""
    return [seen(age * FRAME_S, repeat * math.exp(-pace * age * FRAME_S)) for age in ages]


def test_f1_is_of_the_sums() -> None:
    assert Agreement(age_s=0.1, tp=6, fp=2, fn=4).f1 == pytest.approx(12 / 18)
    assert Agreement(age_s=0.1, tp=0, fp=0, fn=0).f1 == 0.0


def test_a_shaky_model_on_a_scene_that_stands_still_loses_nothing() -> None:
    found = fading(model(pace=0.0, repeat=0.7))
    assert found is not None
    assert found.kept_frac(12, FRAME_S) == pytest.approx(1.0)


@pytest.mark.parametrize("pace", [0.3, 1.0, 3.0])
def test_a_scene_at_an_even_pace_is_found_whatever_the_model(pace: float) -> None:
    """The answers within REPEAT_S are taken for equal, so the curve begins one frame late."""
    for repeat in (0.7, 1.0):
        found = fading(model(pace, repeat))
        assert found is not None
        for age in (1, 2, 4, 8, 16):
            assert found.at(age * FRAME_S) == pytest.approx(math.exp(-pace * (age - 1) * FRAME_S), rel=1e-3)


def test_where_ages_are_long_the_curve_is_continued_to_age_0() -> None:
    found = fading(model(pace=0.5, repeat=0.95, ages=(4, 8, 16)))
    assert found is not None
    assert found.at(4 * FRAME_S) == pytest.approx(math.exp(-0.5 * 4 * FRAME_S), rel=1e-3)
    assert found.at(2 * FRAME_S) == pytest.approx(math.exp(-0.5 * 2 * FRAME_S), rel=1e-3)


def test_a_single_long_age_takes_the_model_for_one_that_repeats_itself_usually() -> None:
    found = fading([seen(0.5, 0.5)])
    assert found is not None
    assert found.at(0.5) == pytest.approx(0.5 / LEAST_REPEAT)


def test_between_and_beyond_what_was_seen() -> None:
    found = Fading(left=((1.0, 0.5), (2.0, 0.25)), objects=10)
    assert found.at(0.0) == 1.0
    assert found.at(0.5) == pytest.approx(math.sqrt(0.5))
    assert found.at(1.5) == pytest.approx(math.sqrt(0.125))
    assert found.at(3.0) == pytest.approx(0.125)
    assert found.kept_frac(2, 1.0) == pytest.approx((1 + 0.5) / 2)


def test_a_few_objects_say_nothing_and_no_objects_neither() -> None:
    assert fading([]) is None
    assert fading([seen(0.1, 0.5, objects=4)]) is None
    assert fading([Agreement(age_s=0.1, tp=0, fp=50, fn=0)]) is None
    assert followed(USUAL, None) == USUAL


def test_agreements_of_one_age_are_added_up() -> None:
    assert fading([seen(0.5, 1.0, objects=30), seen(0.5, 0.5, objects=10)]) == fading([seen(0.5, 0.875, objects=40)])


def test_where_nothing_is_found_again_only_the_newest_frame_counts() -> None:
    found = fading([seen(FRAME_S * age, 0.0) for age in (2, 4)])
    assert found is not None
    assert found.kept_frac(12, FRAME_S) < 0.2


def test_many_objects_outweigh_what_is_believed_and_few_do_not() -> None:
    stands_still = [Agreement(age_s=a * FRAME_S, tp=1, fp=0, fn=0) for a in (1, 2, 4, 8, 16)]
    many = followed(USUAL, fading(stands_still * 1000))
    few = followed(USUAL, fading(stands_still * 5))
    for usual, little, much in zip(USUAL, few, many, strict=True):
        assert usual.quality_frac <= little.quality_frac <= much.quality_frac
        assert much.quality_frac == pytest.approx(1.0, abs=0.02)
        assert little.quality_frac == pytest.approx(usual.quality_frac + 0.2 * (1 - usual.quality_frac), abs=1e-3)  # 5 of 25


@given(
    st.lists(
        st.builds(
            Agreement,
            age_s=st.sampled_from([1 / 12, 1 / 6, 1 / 3, 2 / 3, 4 / 3]),
            tp=st.floats(0, 50),
            fp=st.floats(0, 50),
            fn=st.floats(0, 50),
        ),
        max_size=12,
    )
)
def test_whatever_is_seen_slower_never_leaves_more_and_every_frame_all(found: list[Agreement]) -> None:
    knobs = followed(USUAL, fading(found))
    assert knobs[0].quality_frac == 1.0
    fracs = [knob.quality_frac for knob in knobs]
    assert all(0 < low <= high + 1e-3 for high, low in zip(fracs, fracs[1:], strict=False))
    assert [(k.name, k.demand_pct, k.fps) for k in knobs] == [(k.name, k.demand_pct, k.fps) for k in USUAL]


# --- what several cameras have seen -----------------------------------------------------------------------------------


def rests_on(objects: float, *left: tuple[float, float]) -> Fading:
    return Fading(left=left, objects=objects)


def test_who_has_seen_nothing_is_told_what_the_others_see() -> None:
    """Two slow scenes: a third camera, which finds nothing yet, is not taken for a fast one."""
    others = of_all([rests_on(1000.0, (1.0, 0.9)), rests_on(1000.0, (1.0, 0.7))])
    assert others is not None
    assert others.at(1.0) == pytest.approx(0.8)
    told = followed(followed(USUAL, others), None)
    assert all(new.quality_frac >= old.quality_frac for new, old in zip(told, USUAL, strict=True))
    assert told[-1].quality_frac > USUAL[-1].quality_frac + 0.3


def test_its_own_frames_count_more_than_the_others() -> None:
    fast, slow = rests_on(1000.0, (1.0, 0.1)), of_all([rests_on(1000.0, (1.0, 1.0))])
    told = followed(followed(USUAL, slow), fast)
    assert told[-1].quality_frac == pytest.approx(followed(USUAL, fast)[-1].quality_frac, abs=0.03)


def test_a_camera_that_has_seen_little_weighs_little() -> None:
    """20 objects weigh half of endless ones: (0.5 * 0.2 + 1 * 0.8) / 1.5."""
    others = of_all([rests_on(20.0, (1.0, 0.2)), rests_on(1e9, (1.0, 0.8))])
    assert others is not None
    assert others.at(1.0) == pytest.approx(0.6)


def test_nobody_has_seen_anything() -> None:
    assert of_all([]) is None
    assert of_all([rests_on(0.0)]) is None


CURVES = st.lists(
    st.tuples(st.floats(0.1, 1e4), st.floats(0.01, 5.0), st.lists(st.sampled_from((0.1, 0.5, 1.0, 3.0)), min_size=1, unique=True)),
    min_size=1, max_size=5,
)  # fmt: skip


@given(CURVES)
def test_all_together_lie_between_the_slowest_and_the_fastest_and_fall(cameras: list[tuple[float, float, list[float]]]) -> None:
    known = [rests_on(objects, *((age, math.exp(-pace * age)) for age in sorted(ages))) for objects, pace, ages in cameras]
    together = of_all(known)
    assert together is not None
    values = [value for _, value in together.left]
    assert values == sorted(values, reverse=True)
    for age, value in together.left:
        assert min(one.at(age) for one in known) - 1e-9 <= value <= max(one.at(age) for one in known) + 1e-9
