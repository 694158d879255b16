"""What a model's own answers say of what it has lost, and whose turn it is therefore."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler import prep
from scheduler.answers import COUNT, LEAST_FRAMES, SCORE, SUSPECT, Answers, lost_frac
from scheduler.codec import decode, encode
from scheduler.engine import LESSONS, TOLD_AT, WINDOW_END, BoxEngine
from scheduler.engine_state import BoxState, StreamState
from scheduler.events import Answered, CameraAdded, Event, LabelDone, SwapDone, TimerFired
from scheduler.sim.driver import Answering, VirtualDriver
from scheduler.turns import FIRST_FRAC, REGAINED_FRAC, expected_gain
from scheduler.types import KnobProfile, Signature
from tests.support.learning_world import LearningWorld
from tests.unit.scheduler.test_engine_left_to_win import LEFT
from tests.unit.scheduler.test_engine_tries_again import BOX, KNOBS, promise

#: autostrada_tunnelligure, second set of docs/learning.md: F1 0.65 in one window, 0.16 in the next, the same model.
THEN = Answers(version="a-1", frames=12, boxes=2.1, score=0.61)
NOW = Answers(version="a-1", frames=12, boxes=1.7, score=0.41)

answers = st.builds(
    Answers, version=st.sampled_from(["a-1", "a-2"]), frames=st.integers(0, 50), boxes=st.floats(0, 30), score=st.floats(0, 1)
)


# --- the law --------------------------------------------------------------------------------------------------------------


def test_worked_example() -> None:
    # less sure: 0.5 * (0.61 - 0.41) / 0.61 = 0.164; fewer: 0.23 * ln(2.2 / 1.8) = 0.046
    assert lost_frac(THEN, NOW) == pytest.approx(0.164 + 0.046, abs=1e-3)


def test_a_model_that_finds_nothing_any_more_has_lost_most() -> None:
    blind = replace(NOW, boxes=0.0, score=0.0)
    assert lost_frac(replace(THEN, boxes=0.5), blind) == pytest.approx(SCORE + COUNT * 1.792, abs=1e-3)
    assert lost_frac(replace(THEN, boxes=1.2), blind) == 1.0


def test_more_and_surer_boxes_are_no_loss() -> None:
    assert lost_frac(NOW, THEN) == 0.0


@pytest.mark.parametrize(
    ("then", "now"),
    [
        (None, NOW),
        (THEN, None),
        (THEN, replace(NOW, version="a-2")),
        (replace(THEN, frames=LEAST_FRAMES - 1), NOW),
        (THEN, replace(NOW, frames=LEAST_FRAMES - 1)),
        (replace(THEN, boxes=0.0), NOW),
        (THEN, replace(NOW, score=float("nan"))),
        (THEN, replace(NOW, boxes=float("inf"))),
    ],
)
def test_what_cannot_be_compared_says_nothing(then: Answers | None, now: Answers | None) -> None:
    assert lost_frac(then, now) == 0.0


@given(answers, answers)
def test_it_is_a_part(then: Answers, now: Answers) -> None:
    assert 0.0 <= lost_frac(then, now) <= 1.0
    assert lost_frac(then, then) == 0.0


@given(answers, answers, st.floats(0, 1), st.floats(0, 1))
def test_never_less_is_lost_when_there_is_less(then: Answers, now: Answers, fewer: float, less_sure: float) -> None:
    worse = replace(now, boxes=now.boxes * fewer, score=now.score * less_sure)
    assert lost_frac(then, worse) >= lost_frac(then, now) - 1e-9


@given(st.lists(st.floats(-1, 1), max_size=3), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_part_of_what_was_lost_is_won_back_but_no_more_than_a_first_retraining_wins(
    gains: list[float], quality: float, frac: float, lost: float
) -> None:
    first = expected_gain([], quality, frac, drifted=False)
    found = expected_gain(gains, quality, frac, drifted=False, lost=lost)
    assert found <= first + 1e-12
    assert found >= min(first, REGAINED_FRAC * lost) - 1e-12


# --- in the engine ----------------------------------------------------------------------------------------------------


def learned(**more: object) -> StreamState:
    return StreamState(id="a", knobs=KNOBS, version="a-1", quality=0.85, gains=[0.25], **more)  # type: ignore[arg-type]


def engine_with(stream: StreamState) -> BoxEngine:
    engine = BoxEngine(LEFT)
    engine.handle(CameraAdded(at_s=0, stream="a", knobs=KNOBS, version="a-1", quality=0.85))
    engine.state.streams["a"] = stream
    return engine


def told(engine: BoxEngine, *seen: Answers) -> StreamState:
    for n, one in enumerate(seen):
        assert engine.handle(Answered(at_s=10.0 + n, stream="a", answers=one)) == []
    return engine.state.streams["a"]


def test_a_model_that_has_faded_is_worth_a_turn_sooner_and_believed_to_be_worth_what_was_measured() -> None:
    stream = told(engine_with(learned()), THEN, NOW)
    before = promise(learned(), LEFT)
    aged = 0.85 * (1 - lost_frac(THEN, NOW))
    assert promise(stream, LEFT) == pytest.approx(min(REGAINED_FRAC * (0.85 - aged), FIRST_FRAC * (1 - aged)), abs=1e-9)
    assert promise(stream, LEFT) > 3 * before
    assert stream.quality == 0.85


def test_the_first_answers_of_a_model_are_what_later_ones_are_held_against() -> None:
    stream = told(engine_with(learned()), replace(THEN, frames=LEAST_FRAMES - 1), THEN, NOW, NOW)
    assert (stream.answers_then, stream.answers) == (THEN, NOW)


def test_answers_of_another_version_or_camera_change_nothing() -> None:
    engine = engine_with(learned())
    stream = told(engine, THEN, replace(NOW, version="a-0"))
    assert stream.answers == THEN
    assert engine.handle(Answered(at_s=20.0, stream="b", answers=NOW)) == []


def test_a_model_that_has_begun_to_serve_begins_anew() -> None:
    engine = engine_with(learned())
    told(engine, THEN, NOW)
    stream = engine.state.streams["a"]
    stream.candidate, stream.candidate_quality, stream.swapping = "a-2", 0.9, "retrained"
    engine.handle(SwapDone(at_s=30.0, stream="a", version="a-2"))
    after = told(engine, replace(NOW, version="a-2"))
    assert after.lost_frac() == 0.0
    assert after.answers_then == replace(NOW, version="a-2")


def test_on_smaller_pictures_every_model_finds_less_which_is_no_loss() -> None:
    knobs = tuple(
        KnobProfile(name=name, demand_pct=20, quality_frac=1.0, height_px=height_px)
        for name, height_px in (("full", 0), ("small", 180))
    )
    stream = replace(learned(), knobs=knobs, knob="full")
    stream.answered(THEN)
    stream.knob = "small"
    stream.answered(NOW)
    assert stream.lost_frac() == 0.0
    stream.knob = None  # it rests: of what it answered before
    stream.answered(replace(NOW, score=0.2))
    assert stream.lost_frac() > 0.2


def test_labels_that_measure_it_are_believed_and_the_suspicion_is_over() -> None:
    stream = learned()
    stream.answered(THEN)
    stream.answered(NOW)
    assert stream.lost_frac() > 0.2
    stream.is_measured()
    assert stream.lost_frac() == 0.0


def test_the_engine_takes_a_measurement_so() -> None:
    from scheduler.commands import StartLabelling
    from scheduler.events import BoxStarted

    engine = BoxEngine(replace(BOX, left_of_missing=True))
    engine.handle(CameraAdded(at_s=0, stream="a", knobs=KNOBS, version="a-1", quality=0.85))
    told(engine, THEN, NOW)
    (label,) = (c for c in engine.handle(BoxStarted(at_s=20, window=1)) if isinstance(c, StartLabelling))
    engine.handle(
        LabelDone(at_s=22, job=label.job, stream="a", train=24, holdout=16, quality=0.4, gpu_s=1.0, golden_gpu_s=0.05)
    )
    assert engine.state.streams["a"].lost_frac() == 0.0


# --- learning from the window that shows it ----------------------------------------------------------------------------------


def state_of(**more: object) -> BoxState:
    stream = learned(live=True, scene=Signature(values=(1.0,)))
    stream.answered(THEN)
    stream.answered(replace(NOW, boxes=0.2))
    for name, value in more.items():
        setattr(stream, name, value)
    return BoxState(window=3, opened_s=0.0, ends_s=100.0, streams={"a": stream}, golden_gpu_s=0.1)


def test_who_has_lost_much_is_a_suspect() -> None:
    state = state_of()
    assert state.streams["a"].lost_frac() >= SUSPECT
    assert [s.id for s in prep.suspects(state)] == ["a"]


@pytest.mark.parametrize(
    "why", [{"lesson": 3}, {"measured": 0.8}, {"candidate": "a-2"}, {"admitted": True}, {"turned": True}, {"answers": THEN}]
)
def test_who_was_measured_or_has_a_lesson_already_is_none(why: dict[str, object]) -> None:
    assert prep.suspects(state_of(**why)) == []


def test_a_suspect_learns_from_the_window_in_progress() -> None:
    engine = BoxEngine(replace(LEFT, reuse=True, glance=True, learn_now=True))
    engine.state = state_of()
    engine.state.phase = "planned"
    engine.handle(TimerFired(at_s=20.0, timer=LESSONS))
    stream = engine.state.streams["a"]
    assert stream.lesson == 3
    assert (stream.full, stream.done, stream.signature) == (True, False, Signature(values=(1.0,)))


def test_nobody_learns_from_it_where_that_is_switched_off() -> None:
    engine = BoxEngine(replace(LEFT, reuse=True, glance=True, learn_now=False))
    engine.state = state_of()
    engine.state.phase = "planned"
    engine.handle(TimerFired(at_s=20.0, timer=LESSONS))
    assert engine.state.streams["a"].lesson is None


# --- who tells it ---------------------------------------------------------------------------------------------------------


def test_it_is_told_before_turns_are_chosen() -> None:
    class Hearing(LearningWorld):
        asked: list[float] = []

        def answered(self, at_s: float) -> list[Event]:
            self.asked.append(at_s)
            return [Answered(at_s=at_s, stream="a", answers=THEN)]

    world = Hearing()
    assert isinstance(world, Answering)
    assert not isinstance(LearningWorld(), Answering)
    engine = BoxEngine(LEFT)
    driver = VirtualDriver(engine=engine, world=world)
    driver._timers = {WINDOW_END: 5.0, "other": 1.0}
    engine.state.streams["a"] = learned()
    events = []
    driver.now_s = 1.0
    assert [type(e) for e in driver._due()] == [TimerFired]
    driver.now_s = 5.0
    events = driver._due()
    assert [type(e) for e in events] == [Answered, TimerFired]
    assert world.asked == [5.0]
    assert TOLD_AT == (LESSONS, WINDOW_END)


def test_it_is_kept_in_the_journal() -> None:
    event = Answered(at_s=3.0, stream="a", answers=NOW)
    assert decode(encode(event)) == event
