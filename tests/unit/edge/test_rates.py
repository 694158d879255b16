"""What a camera's own frames say of slower rates, live."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from edge.inference import Shown
from edge.rates import AGES_S, EVERY_S, RateMeter
from edge.runtime import RATE_TOLERANCE, Watched, knob_profiles
from scheduler.ekya.staleness import Fading
from scheduler.scenes import MOST
from scheduler.types import Detections, Frame

IMAGE = np.zeros((8, 8, 3), np.uint8)
MODEL_S = 0.01


def shown(at_s: float, xs: tuple[float, ...], *, version: str = "v1", score: float = 0.9) -> Shown:
    """Boxes 20 px wide that begin at these places."""
    found = Detections(
        xyxy=np.array([[x, 40, x + 20, 80] for x in xs], np.float32).reshape(-1, 4),
        score=np.full(len(xs), score, np.float32),
        class_id=np.zeros(len(xs), np.int64),
    )
    frame = Frame(stream="gate", seq=round(1000 * at_s), captured_s=at_s, captured_utc=at_s, image=IMAGE)
    return Shown(frame=frame, detections=found, version=version, cost_s=0.0, lag_s=0.0)


def watched_for(
    seconds: float, *, fps: float, pace_px_s: float, meter: RateMeter | None = None, since_s: float = 0.0, version: str = "v1",
    score: float = 0.9,
) -> tuple[RateMeter, Fading | None]:  # fmt: skip
    """Five objects that all move at that pace, and one that is parked; a look every EVERY_S. The last thing that was found."""
    meter, found = meter or RateMeter(score_min=0.25), None
    for n in range(1, round(seconds * fps) + 1):
        at_s = since_s + n / fps
        xs = (0.0, *(40.0 * k + pace_px_s * at_s for k in range(1, 6)))
        meter.on_shown(shown(at_s, xs, version=version, score=score))
        if n % round(EVERY_S * fps) == 0:
            found = meter.look(at_s) or found
    return meter, found


def kept(found: Fading | None, stride: int, fps: float) -> float:
    assert found is not None
    return found.kept_frac(stride, 1 / fps)


@pytest.mark.parametrize("fps", [12.0, 25.0, 5.0])
def test_a_street_loses_with_every_frame_that_is_left_out_and_a_car_park_does_not(fps: float) -> None:
    _, parked = watched_for(40, fps=fps, pace_px_s=0.0)
    _, street = watched_for(40, fps=fps, pace_px_s=100.0)
    slow = round(fps)  # one frame a second
    assert kept(parked, slow, fps) == pytest.approx(1.0)
    assert kept(street, slow, fps) < 0.5
    assert kept(street, 1, fps) == 1.0


def test_what_was_seen_of_a_scene_is_forgotten_when_it_is_another() -> None:
    meter, street = watched_for(60, fps=12, pace_px_s=100.0)
    _, night = watched_for(1800, fps=12, pace_px_s=0.0, meter=meter, since_s=60)
    assert kept(street, 12, 12) < 0.5 < 0.95 < kept(night, 12, 12)


def test_a_scene_that_is_back_is_known_at_once_and_another_one_takes_nothing_from_it() -> None:
    meter, street = watched_for(60, fps=12, pace_px_s=100.0)
    assert meter.turn_to(1) is None, "nothing was seen of it yet"
    _, parked = watched_for(1800, fps=12, pace_px_s=0.0, meter=meter, since_s=60)
    back = meter.turn_to(0)
    assert kept(back, 12, 12) == pytest.approx(kept(street, 12, 12), abs=0.02)
    assert kept(back, 12, 12) < 0.5 < 0.95 < kept(parked, 12, 12)


def test_answers_of_the_scene_before_are_not_held_against_the_new_one() -> None:
    meter = RateMeter(score_min=0.25)
    for n in range(12):
        meter.on_shown(shown(n / 12, (0.0, 50.0)))
    meter.turn_to(1)
    meter.on_shown(shown(1.0, (500.0, 600.0)))
    meter.look(1.0)
    assert meter.turn_to(1) is None


def test_scenes_are_bounded() -> None:
    meter, street = watched_for(60, fps=12, pace_px_s=100.0)
    for scene in range(1, MOST + 1):
        meter.turn_to(scene)
    assert len(meter._scenes) == MOST
    assert meter.turn_to(0) is None, "the one that was not seen for longest is forgotten"
    assert street is not None


def test_answers_of_two_models_are_not_compared() -> None:
    meter = RateMeter(score_min=0.25)
    for n in range(400):
        meter.on_shown(shown(n / 12, (0.0, 50.0), version=f"v{n % 7}"))
        if n % 8 == 0:
            meter.look(n / 12 + EVERY_S * n)
    assert meter.look(1e6) is None


def test_boxes_below_the_score_that_counts_are_none() -> None:
    assert watched_for(40, fps=12, pace_px_s=0.0, score=0.1)[1] is None


def test_a_look_too_soon_and_a_look_at_nothing_say_nothing() -> None:
    meter, found = watched_for(40, fps=12, pace_px_s=0.0)
    assert found is not None
    meter.on_shown(shown(40.1, (0.0,)))
    assert meter.look(40.0 + EVERY_S / 2) is None
    assert RateMeter(score_min=0.25).look(0.0) is None


def test_no_picture_is_held_and_answers_are_bounded() -> None:
    meter = RateMeter(score_min=0.25)
    for n in range(10_000):
        meter.on_shown(shown(n / 30, (0.0,)))
    assert len(meter._answers) <= 128
    assert not any(hasattr(answer, "frame") for answer in meter._answers)


def entry(meter: RateMeter | None, **known: Any) -> Watched:
    knobs = knob_profiles(12.0, MODEL_S)
    return Watched(
        camera=SimpleNamespace(id="gate"), worker=SimpleNamespace(), fps=12.0, height_px=0, title="", arch="fake",  # type: ignore[arg-type]
        knobs=knobs, profiled_cost_s=MODEL_S, rates=meter, **known,
    )  # fmt: skip


def test_plans_hear_of_it_once_and_a_dearer_frame_keeps_it() -> None:
    meter, _ = watched_for(40 - EVERY_S / 2, fps=12, pace_px_s=0.0)
    camera = entry(meter)
    found = camera.rated(40.0)
    assert found is not None
    usual = {knob.name: knob.quality_frac for knob in knob_profiles(12.0, MODEL_S)}
    assert all(knob.quality_frac > usual[knob.name] + RATE_TOLERANCE for knob in found[1:])
    camera.knobs = found
    meter.on_shown(shown(44.0, (0.0,)))
    assert camera.rated(40.0 + EVERY_S) is None, "the same again"
    dearer = camera.measured(3 * MODEL_S)
    assert dearer is not None
    assert [knob.quality_frac for knob in dearer] == pytest.approx([knob.quality_frac for knob in found], abs=0.05)
    assert dearer[0].demand_pct == pytest.approx(3 * found[0].demand_pct)


def test_a_stored_profile_is_believed_and_a_camera_without_a_meter_is_usual() -> None:
    meter, _ = watched_for(40 - EVERY_S / 2, fps=12, pace_px_s=0.0)
    assert entry(meter, menu=SimpleNamespace()).rated(40.0) is None
    assert entry(None).rated(40.0) is None


def test_a_camera_that_turns_to_another_scene_is_planned_for_as_that_scene() -> None:
    meter, _ = watched_for(60, fps=12, pace_px_s=0.0)
    camera, usual = entry(meter), knob_profiles(12.0, MODEL_S)
    camera.knobs = camera.rated(100.0) or camera.turned(0) or ()
    assert camera.knobs[-1].quality_frac > usual[-1].quality_frac + RATE_TOLERANCE
    assert camera.turned(1) == usual, "nothing is known of it"
    back = camera.turned(0)
    assert back is not None
    assert back[-1].quality_frac == pytest.approx(camera.knobs[-1].quality_frac, abs=0.05)
    assert entry(meter, menu=SimpleNamespace()).turned(0) is None, "a stored profile is believed"
    assert entry(None).turned(0) is None


def test_ages_rise_and_no_two_are_the_same_answer() -> None:
    assert all(2 * low == pytest.approx(high) for low, high in zip(AGES_S, AGES_S[1:], strict=False))


def test_a_camera_that_sees_nothing_is_planned_for_as_the_others_of_its_box() -> None:
    """A shop at night: a third of a device went to a camera on which nothing moves, because the usual curve is steep."""
    camera = entry(RateMeter(score_min=0.25))
    _, parked = watched_for(40, fps=12.0, pace_px_s=0.0)
    before = camera.knobs
    knobs = camera.rated(EVERY_S, lambda: parked)
    assert knobs is not None
    assert knobs[-1].quality_frac > before[-1].quality_frac + 0.3
    camera.knobs = knobs
    assert camera.rated(EVERY_S + 0.5, lambda: None) is None, "too soon for another look"
    assert camera.rated(2 * EVERY_S, lambda: parked) is None, "plans know it"


def test_a_camera_in_a_new_scene_keeps_what_the_others_say() -> None:
    camera = entry(RateMeter(score_min=0.25))
    _, parked = watched_for(40, fps=12.0, pace_px_s=0.0)
    camera.knobs = camera.rated(EVERY_S, lambda: parked) or camera.knobs
    assert camera.turned(1) == camera.knobs
