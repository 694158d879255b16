"""A camera that turns to a scene which it does not know learns from the window in progress, not from the one before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scheduler import glance, prep
from scheduler.codec import decode, encode
from scheduler.commands import StartGate, StartLabelling, StartLook, StartProfiling, StartRetraining, SwapModel
from scheduler.engine import LESSONS, BoxEngine
from scheduler.engine_state import BoxState, Prep, StreamState
from scheduler.events import BoxStarted, CameraAdded, Event, GateDone, LearnedFrom, TimerFired
from scheduler.registry import needs
from scheduler.types import CachedModel, Observation, Traits
from tests.support.learning_world import DAY, ENGINE, KNOBS, NIGHT, LearningWorld, Ran, run
from tests.unit.scheduler.test_engine_glance import WINDOW_S, alternating, served, turned, when

NOW: dict[str, Any] = {
    "windows": 4, "overlap": True, "prep_auto": True, "policy": "lookahead", "glance": True, "learn_now": True,
}  # fmt: skip
TURNS_IN = 2  # the first window of the night
LEARNS = (StartLabelling, StartProfiling, StartRetraining, StartGate)


def told(ran: Ran, window: int, camera: str = "a") -> list[tuple[float, Any]]:
    """(when, what) a camera's learning was told in a window."""
    return [
        (event.at_s, c)
        for event, commands in ran.driver.log
        for c in commands
        if isinstance(c, LEARNS) and c.stream == camera and window * WINDOW_S <= event.at_s < (window + 1) * WINDOW_S
    ]


def test_a_new_scene_has_its_model_in_the_window_that_shows_it_first() -> None:
    before = run(LearningWorld(scene_of=alternating(2)), **{**NOW, "learn_now": False})
    now = run(LearningWorld(scene_of=alternating(2)), **NOW)
    assert served(before)[TURNS_IN] == pytest.approx(0.3, abs=0.02), "the day's model, all night"
    assert served(now)[TURNS_IN] > 0.6
    assert [c.version for at_s, c in when(now, "a") if TURNS_IN * WINDOW_S < at_s < (TURNS_IN + 1) * WINDOW_S] == ["a:2"]


def test_all_steps_of_the_lesson_are_about_the_window_in_progress_and_begin_when_there_is_enough_of_it() -> None:
    learned = told(run(LearningWorld(scene_of=alternating(2)), **NOW), TURNS_IN)
    from_s = TURNS_IN * WINDOW_S + glance.LESSONS_FRAC * WINDOW_S
    assert {type(c) for _, c in learned if c.window == TURNS_IN} == set(LEARNS)
    taught = [(at_s, c) for at_s, c in learned if not isinstance(c, StartGate)]  # a gate is of the window in progress anyhow
    assert all((at_s >= from_s) == (c.window == TURNS_IN) for at_s, c in taught)


def test_a_turn_that_has_begun_goes_on_when_turns_are_chosen_anew() -> None:
    """`b` is being looked at, and its labels are behind that."""
    engine, _ = in_the_night()
    other = StreamState(id="b", knobs=KNOBS, version="b-0", quality=0.5)
    engine.state.streams["b"] = other
    look, label = (Prep(job=f"b/{kind}/2", stream="b", kind=kind, window=1, frames=8) for kind in ("look", "label"))
    engine.state.active, engine.state.queue, engine.state.prepares = look, [label], True
    engine.handle(TimerFired(at_s=(TURNS_IN + glance.LESSONS_FRAC) * WINDOW_S, timer=LESSONS))
    assert engine.state.active is look
    assert [(p.stream, p.window) for p in engine.state.queue if p.kind in ("look", "label")] == [("b", 1), ("a", TURNS_IN)]


def test_what_the_last_scene_would_have_taught_is_not_learned_once_the_camera_has_turned() -> None:
    learned = told(run(LearningWorld(scene_of=alternating(2)), **NOW), TURNS_IN)
    turned_s = TURNS_IN * WINDOW_S + glance.AT_FRAC * WINDOW_S + 2
    assert not [c for at_s, c in learned if at_s > turned_s and c.window < TURNS_IN]


def test_frames_of_the_last_scene_do_not_judge_the_lesson_of_a_new_one() -> None:
    gates = run(LearningWorld(scene_of=alternating(2)), **NOW).of(StartGate)
    assert {c.older for c in gates if c.window == TURNS_IN} == {False}
    usual = run(LearningWorld(scene_of=alternating(2)), **{**NOW, "learn_now": False}).of(StartGate)
    assert {c.older for c in usual} == {True}


def test_no_two_jobs_have_one_name() -> None:
    """The answer of a job of the turn that was given up must not count for the new one."""
    ran = run(LearningWorld(scene_of=alternating(2), gain_sd=0.01), **{**NOW, "windows": 9})
    jobs = [c.job for c in ran.world.done if hasattr(c, "job")]
    assert len(jobs) == len(set(jobs))


def test_the_next_window_is_learned_from_as_usual() -> None:
    ran = run(LearningWorld(scene_of=alternating(3)), **{**NOW, "windows": 6})
    assert {c.window for _, c in told(ran, 4) if not isinstance(c, StartGate)} == {3}
    assert ran.engine.state.streams["a"].lesson is None


def test_what_the_lesson_won_is_what_the_scene_has_won() -> None:
    ran = run(LearningWorld(scene_of=alternating(2)), **{**NOW, "windows": 3})
    assert ran.engine.state.streams["a"].gains == pytest.approx([0.5], abs=0.02)


def test_what_it_learned_from_is_what_a_drift_is_measured_against() -> None:
    ran = run(LearningWorld(scene_of=alternating(2)), **{**NOW, "windows": 3})
    assert ran.engine.state.streams["a"].version == "a:2"
    assert ran.engine.state.streams["a"].learned == TURNS_IN


def test_the_model_that_it_came_with_may_serve_until_the_lesson_is_learned() -> None:
    ran = run(LearningWorld(scene_of=alternating(2), forgets=0.1), **{**NOW, "windows": 3}, delivered="a-0")
    swaps = [c for at_s, c in when(ran, "a") if at_s > TURNS_IN * WINDOW_S]
    assert [(c.version, c.cause) for c in swaps] == [("a-0", "reuse"), ("a:2", "retrained")]
    trained = [c for _, c in told(ran, TURNS_IN) if isinstance(c, StartRetraining) and c.window == TURNS_IN]
    assert [c.version for c in trained] == ["a-0"], "it goes on from what serves"


@pytest.mark.parametrize(
    "switched", [{"learn_now": False}, {"overlap": False}, {"glance": False}, {"reuse": False}, {"policy": "uniform(full,50)"}]
)
def test_elsewhere_everything_is_learned_from_the_window_before(switched: dict[str, Any]) -> None:
    ran = run(LearningWorld(scene_of=alternating(2)), **{**NOW, **switched})
    for window in range(1, 4):
        assert {c.window for _, c in told(ran, window) if isinstance(c, StartRetraining)} <= {window - 1}
    assert not [e for e, _ in ran.driver.log if isinstance(e, TimerFired) and e.timer == LESSONS]


# --- the first window -------------------------------------------------------------------------------------------------


def test_a_camera_that_has_never_learned_learns_from_its_first_window() -> None:
    """Nothing is known of the first scene, so it is a new one."""
    ran = run(LearningWorld(), **{**NOW, "windows": 1})
    learned = told(ran, 0)
    assert [type(c) for _, c in learned] == list(LEARNS)
    assert {c.window for _, c in learned} == {0}
    assert learned[0][0] >= glance.LESSONS_FRAC * WINDOW_S
    assert served(ran)[0] > 0.65
    assert turned(ran) == [], "nowhere to turn from"


def test_a_camera_that_is_added_later_does_so_too() -> None:
    added = CameraAdded(at_s=WINDOW_S + 1, stream="b", knobs=KNOBS, version="b-0", quality=0.5)
    ran = run(LearningWorld(), events=(added,), **{**NOW, "windows": 2})
    assert {c.window for _, c in told(ran, 1, "b")} == {1}
    assert ran.engine.state.streams["b"].version == "b:1"


def test_one_that_was_added_after_the_glance_learns_from_the_window_before_as_usual() -> None:
    """When it is glanced at for the first time there is a whole window to learn from, and it has begun."""
    added = CameraAdded(at_s=WINDOW_S + 50, stream="b", knobs=KNOBS, version="b-0", quality=0.5)
    ran = run(LearningWorld(), events=(added,), **{**NOW, "windows": 3})
    assert {c.window for _, c in told(ran, 2, "b") if not isinstance(c, StartGate)} == {1}
    assert ran.engine.state.streams["b"].version == "b:1"


@pytest.mark.parametrize("known", ["models", "observations", "window"])
def test_a_camera_that_has_learned_before_the_box_began_anew_waits_for_the_next_window(known: str) -> None:
    """Nobody knows its scene, but its model is its own."""
    model = CachedModel(name="a-9", traits=Traits(class_frac=(1.0,), place="a"))
    seen = Observation(
        stream="a", window=0, option="full", start_quality=0.3, predicted_quality=0.5, predicted_gpu_s=4.0, realised_gpu_s=4.0,
        realised_quality=0.5, serving_quality=0.3,
    )  # fmt: skip
    camera = CameraAdded(
        at_s=0, stream="a", knobs=KNOBS, version="a-0", quality=0.5, cached=(model,) if known == "models" else (),
        observations=(seen,) if known == "observations" else (),
    )  # fmt: skip
    before: tuple[Event, ...] = (BoxStarted(at_s=0, window=5), camera)
    if known == "window":
        before += (LearnedFrom(at_s=0, stream="a", version="a-0", window=3),)
    ran = run(LearningWorld(), events=before, **{**NOW, "windows": 1, "cameras": ()})
    assert ran.engine.state.streams["a"].scenes.known, "it was glanced at"
    assert not told(ran, 0)


def test_in_the_first_window_nobody_who_does_not_choose_is_looked_at() -> None:
    for switched in ({"learn_now": False}, {"overlap": False}, {"policy": "no-retrain"}):
        ran = run(LearningWorld(), **{**NOW, "windows": 1, **switched})  # type: ignore[dict-item]
        assert not ran.of(StartLook)


def test_a_known_scene_that_is_back_is_not_learned_anew() -> None:
    ran = run(LearningWorld(scene_of=alternating(2)), **{**NOW, "windows": 5})
    assert ran.engine.state.streams["a"].version == "a:0"
    assert not [c for _, c in told(ran, 4) if c.window == 4]


def test_cameras_that_had_their_turn_get_no_second_one_when_turns_are_chosen_anew() -> None:
    """Only `a` turns to the night."""
    world = LearningWorld(scene_of=lambda camera, window: NIGHT if camera == "a" and window >= TURNS_IN else DAY, learns=0.7)
    ran = run(world, **{**NOW, "cameras": ("a", "b", "c")})
    for window in range(1, 4):
        for camera in ("b", "c"):
            labelled = [c for _, c in told(ran, window, camera) if isinstance(c, StartLabelling) and "/label/" in c.job]
            assert len(labelled) <= 1
            assert {c.window for c in labelled} <= {window - 1}
    assert "a:2" in [c.version for c in ran.swaps("retrained")]


def test_who_may_have_a_turn_now() -> None:
    """At first the one whose lesson is not there yet waits; later it may, and those who had theirs may not."""

    def camera(id: str, **state: Any) -> StreamState:
        return StreamState(id=id, knobs=KNOBS, version=f"{id}-0", quality=0.2, **state)

    config = replace(ENGINE, overlap=True, prep_auto=True, golden_gpu_s=0.01, glance=True, learn_now=True)
    streams = [
        camera("lesson", lesson=3, turned=True), camera("waits"), camera("measured", measured=0.3),
        camera("labelled", traits=Traits()), camera("back", turned=True, done=True), camera("off", learns=False),
    ]  # fmt: skip
    state = BoxState(window=3, opened_s=300.0, ends_s=400.0, streams={s.id: s for s in streams})

    def chosen(at_s: float) -> set[str]:
        return {id for id, _ in prep.turns_of(state, config, needs("lookahead"), at_s).frames}

    assert chosen(310.0) == {"waits"}
    assert chosen(glance.lessons_from_s(state)) == {"waits", "lesson"}
    state.active = Prep(job="waits/look/3", stream="waits", kind="look")
    assert chosen(glance.lessons_from_s(state)) == {"lesson"}, "its turn has begun"


def in_the_night(**changes: Any) -> tuple[BoxEngine, Ran]:
    """A box whose camera has just turned, before there is enough to learn from."""
    ran = run(LearningWorld(scene_of=alternating(2)), **{**NOW, **changes, "windows": TURNS_IN})
    ran.driver.run([], until_s=(TURNS_IN + glance.LESSONS_FRAC) * WINDOW_S - 1)
    assert ran.engine.state.streams["a"].lesson == TURNS_IN
    return ran.engine, ran


def test_a_checkpoint_before_the_lesson_goes_on_exactly() -> None:
    engine, _ = in_the_night()
    copy = decode(encode(engine.checkpoint()))
    again = BoxEngine(copy.config, copy.state)
    fired = TimerFired(at_s=(TURNS_IN + glance.LESSONS_FRAC) * WINDOW_S, timer=LESSONS)
    asked = engine.handle(fired)
    assert [c.window for c in asked if isinstance(c, StartLabelling)] == [TURNS_IN]
    assert again.handle(fired) == asked
    assert encode(again.checkpoint()) == encode(engine.checkpoint())


def test_where_nobody_has_turned_nothing_happens_when_lessons_would_begin() -> None:
    ran = run(LearningWorld(scene_of=lambda camera, window: DAY), **{**NOW, "windows": 2})
    ran.driver.run([], until_s=2 * WINDOW_S + 50)
    assert ran.engine.handle(TimerFired(at_s=ran.driver.now_s, timer=LESSONS)) == []
    assert ran.engine.state.queue == []
    assert not ran.engine.state.prepares


def test_a_refused_lesson_leaves_what_was_to_win_in_the_scene() -> None:
    engine, _ = in_the_night(try_again=True)
    stream = engine.state.streams["a"]
    stream.candidate, stream.gating = "a:x", "gate"
    engine.handle(
        GateDone(
            at_s=230, job="gate", stream="a", candidate="a:x", serving_quality=0.5, candidate_quality=0.45, frames=8, gpu_s=1.0,
            gain_sd=0.2,
        )
    )  # fmt: skip
    assert len(stream.gains) == 1
    assert stream.refused


def test_the_window_may_end_before_the_lesson_does() -> None:
    engine, _ = in_the_night()
    engine.handle(TimerFired(at_s=(TURNS_IN + glance.LESSONS_FRAC) * WINDOW_S, timer=LESSONS))
    told_next = engine.handle(TimerFired(at_s=(TURNS_IN + 1) * WINDOW_S, timer="window-end"))
    assert engine.state.window == TURNS_IN + 1
    assert engine.state.streams["a"].lesson is None
    assert not [c for c in told_next if isinstance(c, SwapModel)]


def test_the_reasons_tell_a_new_scene_from_a_known_one_whose_model_is_gone() -> None:
    engine, _ = in_the_night()
    assert engine.state.streams["a"].remark == "it sees a new scene: it learns from this window when there is enough of it"
    ran = run(LearningWorld(scene_of=alternating(2)), **{**NOW, "windows": 2 * TURNS_IN})
    camera = ran.engine.state.streams["a"]
    camera.cached, camera.delivered = (), ""
    ran.driver.run([], until_s=(2 * TURNS_IN + glance.LESSONS_FRAC) * WINDOW_S - 1)
    assert camera.lesson == 2 * TURNS_IN
    assert camera.remark == (
        "a scene that it knows is back, whose model is gone: it learns from this window when there is enough of it"
    )
