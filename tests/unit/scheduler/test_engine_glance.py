"""A glance at the window in progress: a scene that comes back has its model in that very window."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler import glance
from scheduler.codec import decode, encode
from scheduler.commands import (
    CancelJob,
    SetShares,
    StartGate,
    StartLabelling,
    StartLook,
    StartProbe,
    StartProfiling,
    StartRetraining,
    SwapModel,
    TurnToScene,
)
from scheduler.drift.signature import PARTS
from scheduler.engine import GLANCE, BoxEngine
from scheduler.engine_state import Running, StreamState
from scheduler.events import CameraAdded, Event, GateDone, LookDone, ModelRolledBack, ProbeDone, TimerFired
from scheduler.types import CachedModel, RetrainOption, Signature, Traits
from tests.support.learning_world import DAY, ENGINE, KNOBS, NIGHT, LearningWorld, Ran, run

WINDOW_S = 100.0
AT_S = glance.AT_FRAC * WINDOW_S


def alternating(days: int) -> Any:
    """Day and night take turns, each `days` windows long."""
    return lambda camera, window: NIGHT if (window // days) % 2 else DAY


def glanced(ran: Ran) -> list[StartLook]:
    return [c for c in ran.of(StartLook) if "/glance/" in c.job]


def served(ran: Ran, camera: str = "a") -> dict[int, float]:
    """Window -> mean true quality of what served in it."""
    swaps = [(at_s, c.version) for at_s, c in when(ran, camera)]
    found = {}
    for window in range(int(ran.driver.now_s // WINDOW_S) + 1):
        opened_s, closed_s = window * WINDOW_S, (window + 1) * WINDOW_S
        edges = [opened_s, *(at_s for at_s, _ in swaps if opened_s < at_s < closed_s), closed_s]
        area = 0.0
        for since_s, until_s in zip(edges, edges[1:], strict=False):
            version = next((v for at_s, v in reversed(swaps) if at_s <= since_s), f"{camera}-0")
            area += (until_s - since_s) * ran.world.truth(version, camera, window)
        found[window] = area / WINDOW_S
    return found


def when(ran: Ran, camera: str) -> list[tuple[float, Any]]:
    return [
        (event.at_s, c)
        for event, commands in ran.driver.log
        for c in commands
        if isinstance(c, SwapModel) and c.stream == camera
    ]


def turned(ran: Ran) -> list[int]:
    """The scenes that cameras turned to."""
    return [c.scene for _, commands in ran.driver.log for c in commands if isinstance(c, TurnToScene)]


@pytest.mark.parametrize("overlap", [False, True])
def test_what_comes_back_has_its_model_in_the_same_window(overlap: bool) -> None:
    how: dict[str, Any] = {"windows": 8, "overlap": overlap, "prep_auto": overlap, "policy": "lookahead"}
    late = run(LearningWorld(scene_of=alternating(2)), **how)
    soon = run(LearningWorld(scene_of=alternating(2)), glance=True, **how)
    assert served(late)[4] < 0.5, "without a glance the night's model serves on the first day"
    assert served(soon)[4] > 0.65
    assert served(soon)[6] > 0.65
    (swap,) = [(at_s, c) for at_s, c in when(soon, "a") if 4 * WINDOW_S <= at_s < 5 * WINDOW_S]
    assert swap[1].cause == "reuse"
    assert 4 * WINDOW_S + AT_S <= swap[0] < 4 * WINDOW_S + 50


def test_a_scene_that_has_its_own_model_costs_no_labels() -> None:
    ran = run(LearningWorld(scene_of=alternating(2)), windows=8, glance=True)
    assert {int(at_s // WINDOW_S) for at_s, c in when(ran, "a") if c.cause == "reuse"} == {4, 6}
    assert not [c for c in ran.of(StartLabelling) if "/sample/" in c.job]


def test_labels_of_a_glance_judge_and_teach_nothing() -> None:
    ran = came_with("a-0")
    (asked,) = [c for c in ran.of(StartLabelling) if "/sample/" in c.job]
    assert (asked.window, asked.holdout_frac) == (2, 1.0)


def test_a_scene_that_stays_is_glanced_at_and_no_more() -> None:
    ran = run(LearningWorld(learns=0.6), windows=6, glance=True)
    assert len({c.window for c in glanced(ran)}) <= 5
    assert not [c for c in ran.of(StartLabelling) if "/sample/" in c.job]
    assert not ran.swaps("reuse")


def test_who_has_no_other_model_is_glanced_at_for_its_scene_and_labelled_for_nothing() -> None:
    ran = run(LearningWorld(learns=0.5, scene_of=alternating(1)), windows=4, glance=True)
    assert {c.window for c in glanced(ran)} == {1, 2, 3}
    assert not [c for c in ran.of(StartLabelling) if "/sample/" in c.job]
    assert turned(ran) == [1, 0], "window 1 is the first that is glanced at"


def came_with(version: str, **how: Any) -> Ran:
    """Three windows; in the last one it is night for the first time."""
    world = LearningWorld(scene_of=lambda camera, window: NIGHT if window > 1 else DAY, **how)
    return run(world, windows=3, glance=True, delivered=version)


def test_in_a_new_scene_the_model_that_the_camera_came_with_is_asked_and_serves_where_it_is_better() -> None:
    ran = came_with("a-0", forgets=0.1)
    asked = [c for c in ran.of(StartProbe) if "/choose/" in c.job]
    assert [(c.window, c.candidates) for c in asked] == [(2, ("a-0",))]
    assert ran.engine.state.streams["a"].version == "a-0"
    assert when(ran, "a")[-1][1].cause == "reuse"


def test_the_model_that_the_camera_came_with_serves_no_longer_where_it_is_worse() -> None:
    ran = came_with("a-0", forgets=0.6)
    assert [c for c in ran.of(StartProbe) if "/choose/" in c.job]
    assert ran.engine.state.streams["a"].version != "a-0"


def test_where_nobody_knows_what_the_camera_came_with_a_new_scene_asks_nobody() -> None:
    ran = came_with("", forgets=0.1)
    assert turned(ran) == [1]
    assert not [c for c in ran.of(StartProbe) if "/choose/" in c.job]


def test_what_was_won_in_a_scene_is_remembered_with_it() -> None:
    """So a scene that is back is not learned anew because it looks as if it had drifted."""
    ran = run(LearningWorld(scene_of=alternating(2), worth={("a-0", True): 0.2}), windows=6, glance=True)
    day, night = sorted(ran.engine.state.streams["a"].scenes.known, key=lambda scene: scene.number)
    assert (day.visits, night.visits) == (2, 1)
    assert night.gains
    assert night.gains[0] == pytest.approx(0.5, abs=0.01), "what its own retraining won, not the day's"
    assert len([c for c in ran.of(StartRetraining) if c.window in (4, 5)]) < len(
        [c for c in ran.of(StartRetraining) if c.window in (0, 1)]
    ) + len([c for c in ran.of(StartRetraining) if c.window in (2, 3)])


def test_in_a_new_scene_the_model_that_the_camera_came_with_is_asked_first() -> None:
    camera = stream(1.0, {})
    assert glance.worth_asking(camera, ("near",)) == ("near",)
    camera.delivered = "first"
    assert glance.worth_asking(camera, ("near", "first")) == ("first", "near")
    camera.delivered = "now"
    assert glance.worth_asking(camera, ()) == ()


def test_what_can_still_serve() -> None:
    camera = stream(1.0, {"kept": 0.0})
    camera.delivered = "first"
    assert glance.usable(camera) == {"now", "kept", "first"}
    camera.delivered = ""
    assert glance.usable(camera) == {"now", "kept"}


def test_switched_off_or_without_reuse_or_in_groups_nobody_glances() -> None:
    switches: list[dict[str, Any]] = [
        {"glance": False}, {"glance": True, "reuse": False}, {"glance": True, "group": True},
        {"glance": True, "policy": "uniform(full,50)"},
    ]  # fmt: skip
    for switched in switches:
        assert not glanced(run(LearningWorld(scene_of=alternating(2)), windows=6, **switched))


def test_a_model_that_serves_again_with_its_scene_goes_when_the_next_labels_say_so() -> None:
    """The first day's model is not what it was: the look cannot know that, labels can."""

    def said(version: str, truth: float, window: int) -> float:
        return 0.1 if version == "a:0" and window >= 4 else truth

    ran = run(LearningWorld(scene_of=alternating(3), said=said), windows=8, glance=True)
    back, gone, *_ = [(at_s, c) for at_s, c in when(ran, "a") if at_s >= 6 * WINDOW_S]
    assert (back[1].version, back[1].cause) == ("a:0", "reuse")
    assert (gone[1].version, gone[1].cause) == ("a:3", "rollback")
    assert 7 * WINDOW_S < gone[0] < 7.2 * WINDOW_S


def test_labels_decide_where_the_scene_has_no_model_of_its_own() -> None:
    ran = came_with("a-0", forgets=0.1, said=lambda version, truth, window: 0.3 if window >= 2 else truth)
    assert [c for c in ran.of(StartProbe) if "/choose/" in c.job]
    assert not ran.swaps("reuse")


def test_where_its_model_is_gone_a_scene_that_is_back_has_none() -> None:
    stream, engine, ran = glance_alone()
    stream.cached = tuple(model for model in stream.cached if model.name == stream.version)
    told = carried_out(engine, ran.world, engine.handle(TimerFired(at_s=400 + AT_S, timer=GLANCE)), 400 + AT_S)
    assert not [c for c in told if isinstance(c, SwapModel)]
    assert stream.turned


def test_the_lesson_of_the_last_scene_is_not_learned_when_a_known_one_is_back_also_by_the_same_model() -> None:
    """Nothing of the night's labels is trained on by day, though one model serves both."""
    ran = run(LearningWorld(scene_of=alternating(2), forgets=0.8), windows=5, glance=True)
    assert not ran.swaps("reuse")
    turned_s = 4 * WINDOW_S + AT_S + 2
    later = [c for event, commands in ran.driver.log for c in commands if event.at_s > turned_s]
    assert not [c for c in later if isinstance(c, StartProfiling | StartRetraining | StartGate)]


@pytest.mark.parametrize("try_again", [True, False])
def test_what_a_lesson_of_the_last_scene_won_is_nothing_that_a_new_scene_has_had(try_again: bool) -> None:
    """The day's labels taught a model which the gate then measures by night."""
    engine, _ = at_night(try_again=try_again)
    stream = engine.state.streams["a"]
    stream.turned, stream.gains, stream.done = True, [], False
    stream.candidate, stream.gating = "a:x", "a/gate/4"
    refused = GateDone(
        at_s=410, job="a/gate/4", stream="a", candidate="a:x", serving_quality=0.5, candidate_quality=0.2, frames=8, gpu_s=1.0,
    )  # fmt: skip
    engine.handle(refused)
    assert stream.gains == []
    assert stream.done
    assert stream.quality == 0.5


def test_what_a_scene_was_worth_is_believed_when_it_is_back() -> None:
    stream, engine, ran = glance_alone()
    stream.quality = 0.55
    (asked,) = [c for c in engine.handle(TimerFired(at_s=400 + AT_S, timer=GLANCE)) if isinstance(c, StartLook)]
    engine.handle(ran.world.start(asked, 410).finish(411))
    night = stream.scenes.known[1]
    assert (night.number, night.quality) == (1, 0.55)
    assert stream.quality == stream.candidate_quality == pytest.approx(ran.world.learns, abs=0.05)


def test_what_serves_in_a_new_scene_is_worth_what_its_labels_say() -> None:
    ran = came_with("a-0", forgets=0.6)
    (chose,) = [c for c in ran.of(StartProbe) if "/choose/" in c.job]
    assert ran.engine.state.streams["a"].version != "a-0"
    answered = [event for event, _ in ran.driver.log if isinstance(event, ProbeDone) and event.job == chose.job]
    assert answered[0].serving_quality == pytest.approx(0.6)


def test_the_turn_of_a_camera_that_took_a_model_up_is_given_up() -> None:
    ran = run(LearningWorld(scene_of=alternating(2)), windows=5, glance=True)
    taken_s = next(at_s for at_s, c in when(ran, "a") if c.cause == "reuse" and at_s >= 400)
    later = [c for event, commands in ran.driver.log for c in commands if event.at_s > taken_s]
    assert not [c for c in later if isinstance(c, StartProfiling | StartRetraining | StartGate)]
    assert ran.engine.state.streams["a"].done


def at_night(**changes: Any) -> tuple[BoxEngine, Ran]:
    """A box in window 4, just before the glance; a day has come back."""
    ran = run(LearningWorld(scene_of=alternating(2)), windows=4, glance=True, **changes)
    ran.driver.run([], until_s=400 + AT_S - 1)
    return ran.engine, ran


def glance_alone(**changes: Any) -> tuple[StreamState, BoxEngine, Ran]:
    """The same with nothing else to do."""
    engine, ran = at_night(**changes)
    state = engine.state
    state.queue, state.active, state.labels_due, state.phase = [], None, False, "planned"
    return state.streams["a"], engine, ran


def test_where_preparation_has_ended_it_goes_on_for_the_glance_with_a_share() -> None:
    engine, _ = at_night()
    engine.state.queue, engine.state.active, engine.state.prepares, engine.state.phase = [], None, False, "planned"
    commands = engine.handle(TimerFired(at_s=400 + AT_S, timer=GLANCE))
    (asked,) = [c for c in commands if isinstance(c, StartLook)]
    shares = dict([c for c in commands if isinstance(c, SetShares)][-1].shares_pct)
    assert shares[asked.job] >= 5
    done = engine.handle(_seen(asked, 400 + AT_S + 1, Signature()))
    assert not engine.state.prepares, "nothing to choose from: preparation has ended again"
    assert not [c for c in done if isinstance(c, StartLabelling)]


def _seen(look: StartLook, at_s: float, signature: Signature) -> Event:
    from tests.support.looks import look as looked

    return LookDone(
        at_s=at_s,
        job=look.job,
        stream=look.stream,
        look=looked(DAY, 1, frames=4, version=look.version),
        signature=signature,
        gpu_s=0.1,
    )


def carried_out(engine: BoxEngine, world: LearningWorld, commands: list[Any], at_s: float) -> list[Any]:
    """Answers each job of `commands`, and what follows from that, a second after the other; all that was commanded."""
    told: list[Any] = []
    waiting = list(commands)
    while waiting:
        command = waiting.pop(0)
        told.append(command)
        at_s += 1
        if isinstance(command, StartLook | StartLabelling | StartProbe):
            waiting += engine.handle(world.start(command, at_s).finish(at_s))
        elif isinstance(command, SwapModel):
            waiting += engine.handle(world.swap(command, at_s))
    return told


def test_a_retraining_under_way_is_given_up_when_a_model_is_taken_up() -> None:
    stream, engine, ran = glance_alone()
    stream.running = Running(
        job="a/train/4", config=ENGINE.retrain[0], option=RetrainOption(name="full", end_quality=0.9, cost_gpu_s=20.0)
    )  # fmt: skip
    told = carried_out(engine, ran.world, engine.handle(TimerFired(at_s=400 + AT_S, timer=GLANCE)), 400 + AT_S)
    assert [c.job for c in told if isinstance(c, CancelJob)] == ["a/train/4"]
    (swap,) = [c for c in told if isinstance(c, SwapModel)]
    assert stream.version == swap.version
    assert ran.world.truth(swap.version, "a", 4) == ran.world.learns
    assert stream.running is None
    assert stream.done


def test_an_engine_made_from_a_checkpoint_before_the_glance_goes_on_exactly() -> None:
    engine, _ = at_night()
    copy = decode(encode(engine.checkpoint()))
    again = BoxEngine(copy.config, copy.state)
    fired = TimerFired(at_s=400 + AT_S, timer=GLANCE)
    assert again.handle(fired) == engine.handle(fired)
    assert encode(again.checkpoint()) == encode(engine.checkpoint())


def test_the_window_may_end_during_a_glance() -> None:
    engine, _ = at_night()
    engine.handle(TimerFired(at_s=400 + AT_S, timer=GLANCE))
    engine.handle(TimerFired(at_s=500, timer="window-end"))
    assert engine.state.window == 5


# --- which models may fit ---------------------------------------------------------------------------------------------


TRAITS = Traits(class_frac=(1.0,), place="a")


def signature(value: float) -> Signature:
    return Signature(values=(value,) * sum(PARTS))


def stream(serving: float | None, kept: dict[str, float], scene: float | None = None) -> StreamState:
    models = tuple(CachedModel(name=name, traits=TRAITS, signature=signature(v)) for name, v in kept.items())
    own = () if serving is None else (CachedModel(name="now", traits=TRAITS, signature=signature(serving)),)
    return StreamState(
        id="a", knobs=KNOBS, version="now", cached=(*own, *models), scene=None if scene is None else signature(scene)
    )


def test_the_nearest_come_first_and_only_those_clearly_nearer_than_the_serving_one() -> None:
    known = stream(1.0, {"far": 0.9, "near": 0.1, "nearest": 0.0})
    assert glance.candidates(known, signature(0.0), ENGINE, 4) == ("nearest", "near")


def test_a_scene_that_has_not_changed_since_the_last_window_calls_for_nothing() -> None:
    assert glance.candidates(stream(1.0, {"near": 0.1}, scene=0.05), signature(0.0), ENGINE, 4) == ()


def test_unknown_windows_are_no_candidates() -> None:
    known = stream(1.0, {"near": 0.1})
    assert glance.candidates(known, Signature(), ENGINE, 4) == ()


# --- what was seen before the box began anew --------------------------------------------------------------------------


def begun_anew(by: Any, windows: int, **how: Any) -> Ran:
    """A box that knew day and night and ended by night, started again; from then on it is `by`."""
    world = LearningWorld(scene_of=alternating(2))
    before = run(world, windows=4, glance=True).engine.state.streams["a"]
    world.scene_of = lambda camera, window: by
    camera = CameraAdded(
        at_s=0,
        stream="a",
        knobs=KNOBS,
        version=before.version,
        quality=before.quality,
        cached=before.cached,
        scenes=before.scenes,
    )
    return run(world, windows=windows, cameras=(), events=(camera,), glance=True, **how)


def test_a_restarted_box_knows_the_scenes_of_its_cameras() -> None:
    """It is day when it comes back: the day's model serves in the first window."""
    ran = begun_anew(DAY, 1, overlap=True, prep_auto=True, policy="lookahead", learn_now=True)
    assert turned(ran) == [1, 0], "told where it was, and where it turned to"
    assert ran.engine.state.streams["a"].version == "a:0"
    assert [c.cause for _, c in when(ran, "a")] == ["reuse"]


def test_a_scene_that_is_still_there_after_the_restart_is_the_same() -> None:
    ran = begun_anew(NIGHT, 2)
    assert turned(ran) == [1]
    assert not ran.swaps("reuse")


# --- the mean of lessons ------------------------------------------------------------------------------------------------


def averaging(windows: int, world: LearningWorld | None = None) -> Ran:
    return run(world or LearningWorld(scene_of=alternating(2)), windows=windows, glance=True, average=True)


def test_a_scene_that_is_back_is_served_by_the_mean_of_its_own_and_the_newest_lesson() -> None:
    ran = averaging(5)
    (swap,) = [c for at_s, c in when(ran, "a") if c.cause == "reuse"]
    assert (swap.version, swap.mean_of) == ("a:0", ("a:0", "a:2"))
    camera = ran.engine.state.streams["a"]
    assert camera.version == "mean of a:0 and a:2"
    assert camera.cached[0].name == camera.version, "it may serve again"
    assert "the mean of" in swap.reason
    assert camera.scenes.present is not None
    assert camera.scenes.present.mean == camera.version


def test_without_the_switch_it_is_served_by_its_own_model_as_journals_say() -> None:
    ran = run(LearningWorld(scene_of=alternating(2)), windows=5, glance=True)
    (swap,) = [c for at_s, c in when(ran, "a") if c.cause == "reuse"]
    assert (swap.version, swap.mean_of) == ("a:0", ())
    assert ran.engine.state.streams["a"].version == "a:0"


def test_where_they_have_no_mean_its_own_model_serves() -> None:
    ran = averaging(5, LearningWorld(scene_of=alternating(2), means=None))
    assert ran.engine.state.streams["a"].version == "a:0"
    assert ran.engine.state.streams["a"].reused == "a:0"


def test_scenes_that_take_turns_and_teach_nothing_new_are_averaged_once_each() -> None:
    """Else all models of a camera would become one in the course of a year."""
    ran = averaging(24)
    lessons = [c for c in ran.of(SwapModel) if c.cause == "retrained"]
    means = [c.mean_of for c in ran.swaps("reuse") if c.mean_of]
    assert len(means) <= len(lessons), "a lesson each, at most"
    assert len(set(means)) == len(means), "never the same twice"
    assert not [v for parts in means for v in parts if v.startswith("mean")], "of lessons, not of means"


def test_a_mean_that_labels_find_bad_gives_way_to_the_scenes_own_model() -> None:
    def said(version: str, truth: float, window: int) -> float:
        return 0.1 if version.startswith("mean") else truth

    ran = averaging(8, LearningWorld(scene_of=alternating(3), said=said))
    back, gone, *_ = [(at_s, c) for at_s, c in when(ran, "a") if at_s >= 6 * WINDOW_S]
    assert (back[1].mean_of, back[1].cause) == (("a:0", "a:3"), "reuse")
    assert (gone[1].version, gone[1].cause) == ("a:0", "reuse")
    assert 7 * WINDOW_S < gone[0] < 7.2 * WINDOW_S


def test_a_mean_goes_again_where_what_it_took_the_place_of_is_better() -> None:
    def said(version: str, truth: float, window: int) -> float:
        return {"a:3": 0.8}.get(version, 0.1) if window >= 6 else truth

    ran = averaging(8, LearningWorld(scene_of=alternating(3), said=said))
    _, gone, *_ = [(at_s, c) for at_s, c in when(ran, "a") if at_s >= 6 * WINDOW_S]
    assert (gone[1].version, gone[1].cause) == ("a:3", "rollback")


def test_a_lesson_that_was_rolled_back_is_averaged_with_nothing() -> None:
    """By the box or by its operator: it was worse than what it had replaced."""
    engine, ran = at_night(average=True)
    camera = engine.state.streams["a"]
    assert camera.version == "a:2"
    engine.handle(ModelRolledBack(at_s=400 + AT_S - 0.5, stream="a", version="a:0"))
    assert camera.scenes.newest is None
    assert all(lesson.version != "a:2" for scene in camera.scenes.known for lesson in scene.lessons)


def test_a_swap_to_a_mean_that_fails_leaves_what_serves_and_is_not_tried_again_before_another_lesson() -> None:
    camera, engine, ran = glance_alone(average=True)
    ran.world.dead = {"a:0"}
    told = carried_out(engine, ran.world, engine.handle(TimerFired(at_s=400 + AT_S, timer=GLANCE)), 400 + AT_S)
    assert [c.mean_of for c in told if isinstance(c, SwapModel)] == [("a:0", "a:2")]
    assert (camera.version, camera.candidate) == ("a:2", None)
    day = camera.scenes.present
    assert day is not None
    assert (len(day.averaged), day.mean) == (2, "")


def test_an_engine_made_from_a_checkpoint_averages_as_the_one_that_went_on() -> None:
    _, engine, ran = glance_alone(average=True)
    copy = decode(encode(engine.checkpoint()))
    again = BoxEngine(copy.config, copy.state)
    fired = TimerFired(at_s=400 + AT_S, timer=GLANCE)
    told = carried_out(engine, ran.world, engine.handle(fired), 400 + AT_S)
    assert carried_out(again, ran.world, again.handle(fired), 400 + AT_S) == told
    assert [c for c in told if isinstance(c, SwapModel) and c.mean_of]
    assert encode(again.checkpoint()) == encode(engine.checkpoint())
