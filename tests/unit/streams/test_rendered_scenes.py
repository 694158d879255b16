"""Rendered scenes: pure functions of the moment, exact truth, conditions that do what they say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.errors import ConfigError
from configs.units import CLASSES
from streams.rendered import CONDITIONS, Condition, RenderedScene, Schedule, named
from streams.rendered.layouts import LAYOUTS
from streams.rendered.scene import MIN_SIDE_PX
from streams.rendered.travellers import Lane, choose, travellers

KINDS = sorted(LAYOUTS)
MOMENTS = [3.0 + 11.3 * i for i in range(12)]


def pictures(kind: str, condition: str, seed: int = 5) -> np.ndarray:
    scene = RenderedScene(kind, seed, schedule=Schedule.always(condition))
    return np.stack([scene.render(t)[0] for t in MOMENTS[:4]]).astype(np.float32)


# --- determinism ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_any_order_and_any_instance_give_the_same_picture_and_truth(kind: str) -> None:
    schedule = Schedule.of((0, "day"), (60, "night+rain"), (120, "fog+bump+mix"))
    one, other = (RenderedScene(kind, 9, schedule=schedule) for _ in range(2))
    forward = {t: one.render(t) for t in MOMENTS}
    for t in reversed(MOMENTS):
        image, truth = other.render(t)
        np.testing.assert_array_equal(image, forward[t][0])
        np.testing.assert_array_equal(truth.xyxy, forward[t][1].xyxy)
        np.testing.assert_array_equal(truth.class_id, forward[t][1].class_id)


@pytest.mark.parametrize("kind", KINDS)
def test_rendering_again_after_handing_out_a_picture_is_not_affected_by_its_reader(kind: str) -> None:
    scene = RenderedScene(kind, 9)
    first = scene.render(20.0)[0]
    kept = first.copy()
    first[:] = 0
    np.testing.assert_array_equal(scene.render(20.0)[0], kept)


def test_seeds_give_different_places_and_people() -> None:
    a, b = (RenderedScene("street", seed) for seed in (1, 2))
    assert np.abs(a.layout.background.astype(int) - b.layout.background).mean() > 5
    assert [len(a.render(t)[1]) for t in MOMENTS] != [len(b.render(t)[1]) for t in MOMENTS]


def test_unknown_scene_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="'beach'.*hall.*|'beach'") as caught:
        RenderedScene("beach", 1)
    assert all(kind in caught.value.remedy for kind in KINDS)


# --- truth ------------------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 500),
    t_s=st.floats(-50, 5000),
    condition=st.sampled_from(["day", "night", "fog+bump", "rain+mix"]),
    size=st.sampled_from([(320, 180), (480, 360), (161, 97)]),
)
def test_boxes_lie_inside_the_picture_and_are_not_tiny(
    kind: str, seed: int, t_s: float, condition: str, size: tuple[int, int]
) -> None:
    scene = RenderedScene(kind, seed, *size, schedule=Schedule.always(condition))
    image, truth = scene.render(t_s)
    assert image.shape == (size[1], size[0], 3)
    assert image.dtype == np.uint8
    assert truth.xyxy.dtype == np.float32
    assert (truth.xyxy[:, :2] >= 0).all()
    assert (truth.xyxy[:, 2:] <= np.array(size)).all()
    smallest = MIN_SIDE_PX * np.sqrt(size[0] * size[1] / (320 * 180))
    assert (truth.xyxy[:, 2:] - truth.xyxy[:, :2] >= smallest - 1e-3).all()
    assert set(truth.class_id) <= {CLASSES.index(name) for name in ("person", "bicycle", "car", "animal")}
    assert (truth.score == 1.0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_box_holds_differs_from_the_empty_scene(kind: str) -> None:
    scene = RenderedScene(kind, 21)
    checked = 0
    for t in MOMENTS:
        image, truth = scene.render(t)
        difference = np.abs(image.astype(int) - scene.layout.background).max(axis=2) > 12
        for x0, y0, x1, y1 in truth.xyxy.astype(int):
            assert difference[y0:y1, x0:x1].mean() > 0.2
            checked += 1
    assert checked > 12


@pytest.mark.parametrize("kind", KINDS)
def test_everything_that_moves_is_in_the_truth_or_too_small_or_hidden(kind: str) -> None:
    """Pixels that differ from the empty scene lie in boxes, but for shadows, noise and the figures the rule leaves out."""
    scene, empty = RenderedScene(kind, 22), RenderedScene(kind, 22)
    empty.layout = replace(empty.layout, lanes=())
    stray = total = 0
    for t in MOMENTS:
        image, truth = scene.render(t)
        moving = np.abs(image.astype(int) - empty.render(t)[0]).max(axis=2) > 60
        total += int(moving.sum())
        for x0, y0, x1, y1 in truth.xyxy.astype(int):
            moving[max(0, y0 - 1) : y1 + 1, max(0, x0 - 1) : x1 + 1] = False
        stray += int(moving.sum())
    assert total > 5000
    assert stray < 0.1 * total


def test_a_nearer_figure_cuts_the_box_of_the_one_behind() -> None:
    """Truth is the visible part: over many moments some boxes are narrower than the outline that was painted."""
    scene = RenderedScene("hall", 4)
    for t in np.arange(0, 200, 2.0):
        figures = scene._figures(
            travellers(scene.layout.lanes, scene.seed, t, scene.schedule, scene.layout.adult_frac_at, 16 / 9), scene._view(0.0)
        )
        _, truth = scene.render(t)
        shown = sum(1 for f in figures if f.class_id >= 0)
        if len(truth) < shown:
            return
    pytest.fail("nothing was ever hidden")


def test_truth_moves_smoothly_with_time() -> None:
    scene = RenderedScene("yard", 31)
    before, after = scene.render(50.0)[1], scene.render(50.04)[1]
    assert len(before) == len(after) > 0
    assert np.abs(before.xyxy - after.xyxy).max() < 9


def test_a_bump_moves_still_things_and_their_boxes() -> None:
    straight = RenderedScene("yard", 33).render(40.0)
    knocked = RenderedScene("yard", 33, schedule=Schedule.always("bump")).render(40.0)
    assert np.abs(straight[0].astype(int) - knocked[0]).mean() > 8
    cars = [[tuple(b) for b, c in zip(t.xyxy, t.class_id, strict=True) if CLASSES[c] == "car"] for _, t in (straight, knocked)]
    assert cars[0] != cars[1]


# --- conditions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_night_is_darker_than_dusk_and_dusk_than_day(kind: str) -> None:
    day, dusk, night = (pictures(kind, name).mean() for name in ("day", "dusk", "night"))
    assert day > 1.3 * dusk > 1.3 * 1.3 * night


@pytest.mark.parametrize("kind", KINDS)
def test_fog_takes_contrast_and_brightens(kind: str) -> None:
    day, fog = pictures(kind, "day"), pictures(kind, "fog")
    assert fog.std() < 0.7 * day.std()
    assert fog.mean() > day.mean()


@pytest.mark.parametrize("kind", KINDS)
def test_glare_burns_out_a_part_of_the_picture(kind: str) -> None:
    assert (pictures(kind, "glare") > 225).mean() > 0.04 + (pictures(kind, "day") > 225).mean()


@pytest.mark.parametrize("kind", KINDS)
def test_rain_flickers_and_dims(kind: str) -> None:
    def flicker(condition: str) -> float:
        scene = RenderedScene(kind, 6, schedule=Schedule.always(condition))
        a, b = scene.render(10.0)[0].astype(int), scene.render(10.001)[0]
        return float(np.abs(a - b).mean())

    assert flicker("rain") > 1.8 * flicker("day")
    assert pictures(kind, "rain").mean() < 0.85 * pictures(kind, "day").mean()


def test_night_noise_differs_from_moment_to_moment() -> None:
    scene = RenderedScene("hall", 6, schedule=Schedule.always("night"))
    a, b = scene.render(10.0)[0].astype(int), scene.render(10.001)[0]
    assert np.abs(a - b).mean() > 3


def test_headlights_light_the_street_at_night() -> None:
    scene = RenderedScene("street", 3, schedule=Schedule.always("night"))
    brightest = max(float(scene.render(t)[0].max(axis=2).mean()) for t in MOMENTS)
    assert max(scene.render(t)[0].max() for t in MOMENTS) >= 250
    assert brightest < 80


def test_mix_shift_turns_the_hall_from_people_to_others() -> None:
    def share_of_people(condition: str) -> float:
        scene = RenderedScene("hall", 8, schedule=Schedule.always(condition))
        classes = np.concatenate([scene.render(t)[1].class_id for t in np.arange(0, 400, 7.0)])
        return float((classes == CLASSES.index("person")).mean())

    assert share_of_people("day") > 0.8
    assert share_of_people("mix") < 0.5


def test_names_combine_and_unknown_ones_are_refused() -> None:
    assert named("night+rain") == Condition(dark=1.0, rain=1.0)
    with pytest.raises(ConfigError, match="snow"):
        named("night+snow")
    with pytest.raises(ValueError, match="fog"):
        Condition(fog=1.2)


# --- schedules --------------------------------------------------------------------------------------------------------


@given(t_s=st.floats(-10, 200))
def test_schedule_is_bounded_by_its_moments_and_monotone_between(t_s: float) -> None:
    schedule = Schedule.of((10, "day"), (50, "night"), (90, "fog"))
    condition, later = schedule.at(t_s), schedule.at(t_s + 1.0)
    assert 0 <= condition.dark <= 1
    assert abs(later.dark - condition.dark) <= 1.6 / 40
    if 10 <= t_s <= 49:
        assert later.dark >= condition.dark


def test_schedule_ends_and_refusals() -> None:
    schedule = Schedule.of((10, "day"), (20, "night"))
    assert schedule.at(-5) == schedule.at(10) == CONDITIONS["day"]
    assert schedule.at(15).dark == pytest.approx(0.5)
    assert schedule.at(20) == schedule.at(1e6) == CONDITIONS["night"]
    assert Schedule.of((0, "day"), (5, "day"), (5, "night")).at(5).dark == 1.0  # a jump is two moments at one time
    for bad in ((), ((5, "day"), (1, "fog"))):
        with pytest.raises(ConfigError, match="schedule"):
            Schedule.of(*bad)


# --- travellers -------------------------------------------------------------------------------------------------------


@given(mix=st.floats(0, 1), draw=st.floats(0, 1, exclude_max=True))
def test_choice_only_names_kinds_with_weight(mix: float, draw: float) -> None:
    kind = choose((("person", 3.0), ("animal", 1.0)), (("cyclist", 1.0),), mix, draw)
    assert kind in {"person", "animal", "cyclist"}
    if mix == 0:
        assert kind == ("animal" if draw < 0.25 else "person")


def test_travellers_cross_the_lane_and_leave() -> None:
    lane = Lane(start=(0.0, 0.8), end=(1.0, 0.8), period_s=10.0, usual=(("person", 1.0),))
    seen = {t: travellers((lane,), 3, t, Schedule(), (0.2, 0.5), 1.5) for t in np.arange(0, 60, 0.5)}
    assert all(0 <= who.x_frac <= 1 for people in seen.values() for who in people)
    looks = [who.look for who in seen[30.0]]
    assert looks
    assert not {id(look) for look in looks} & {
        id(who.look) for who in travellers((lane,), 3, 200.0, Schedule(), (0.2, 0.5), 1.5)
    }


def test_parked_car_stays() -> None:
    lane = Lane(start=(0.3, 0.6), end=(0, 0), period_s=60, usual=(("car", 1.0),), parked=True)
    (early,), (late,) = (travellers((lane,), 3, t, Schedule(), (0.2, 0.5), 1.5) for t in (0.0, 9999.0))
    assert early == late
    assert early.kind == "car"
