"""Knobs that are profiled anew by themselves: in the time that preparation has left, one camera a window, and never for ever."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler.codec import decode, encode
from scheduler.commands import CancelJob, Command, ReportPlan, SetShares, StartLabelling, StartProfiling, StartReprofiling
from scheduler.engine import PREP_DEADLINE, BoxEngine, EngineConfig
from scheduler.events import (
    AskedAnew,
    BoxStarted,
    CameraAdded,
    CameraRemoved,
    Event,
    JobFailed,
    LabelDone,
    ProfileDone,
    ProfileOld,
    Reprofiled,
    TimerFired,
)
from scheduler.types import KnobProfile, RetrainConfig

KNOBS = (KnobProfile(name="full", demand_pct=20, quality_frac=1.0), KnobProfile(name="half", demand_pct=10, quality_frac=0.8))
CONFIG = EngineConfig(
    window_s=100, first_window_s=100, prep_pct=40, prep_max_frac=0.8, retrain=(RetrainConfig(name="full", epochs=4),),
    label_frames=20, gate_frames=5, golden_gpu_s=0.1, cost_margin_frac=0.0,
)  # fmt: skip


def begun(*old: str, cameras: str = "ab", window: int = 1) -> tuple[BoxEngine, list[Command]]:
    """A window opens; the profiles of the cameras `old` have grown old before."""
    engine = BoxEngine(CONFIG)
    for camera in cameras:
        engine.handle(CameraAdded(at_s=0, stream=camera, knobs=KNOBS, version=f"{camera}-0", quality=0.5))
    for camera in old:
        engine.handle(ProfileOld(at_s=0, stream=camera, why="frames cost 3 times what was profiled"))
    return engine, list(engine.handle(BoxStarted(at_s=0, window=window)))


def labelled_and_profiled(engine: BoxEngine, commands: list[Command], at_s: float = 5.0) -> tuple[list[Command], float]:
    """Labels and profiles of all cameras are answered; what came last, and when."""
    seen: list[Command] = list(commands)
    while True:
        answer: Event
        match next((c for c in reversed(seen) if isinstance(c, StartLabelling | StartProfiling)), None):
            case StartLabelling(job=job, stream=stream):
                answer = LabelDone(
                    at_s=at_s, job=job, stream=stream, train=12, holdout=8, quality=0.5, gpu_s=1.0, golden_gpu_s=0.1
                )
            case StartProfiling(job=job, stream=stream):
                answer = ProfileDone(at_s=at_s, job=job, stream=stream, trials=(), n_train=12, gpu_s=1.0)
            case _:
                return seen, at_s
        seen, at_s = list(engine.handle(answer)), at_s + 2.0


def of(kind: type, commands: list[Command]) -> list[Command]:
    return [c for c in commands if isinstance(c, kind)]


def started(commands: list[Command]) -> StartReprofiling:
    [found] = of(StartReprofiling, commands)
    assert isinstance(found, StartReprofiling)
    return found


def test_it_comes_after_all_that_the_plan_waits_for_on_the_share_of_preparation() -> None:
    engine, commands = begun("a")
    last, at_s = labelled_and_profiled(engine, commands)
    command = started(last)
    assert command.stream == "a"
    assert not of(ReportPlan, last)
    shares = dict(of(SetShares, last)[-1].shares_pct)  # type: ignore[attr-defined]
    assert shares[command.job] == engine.state.active.share_pct > 0  # type: ignore[union-attr]
    left_s = 0.8 * 100 - (at_s - 2.0)
    assert command.budget_gpu_s == pytest.approx(
        0.5 * left_s * shares[command.job] / 100 * engine.state.delivered_frac, rel=0.05
    )
    after = list(engine.handle(Reprofiled(at_s=at_s + 9, job=command.job, stream="a", gpu_s=3.0)))
    assert of(ReportPlan, after), "then comes the plan"
    assert engine.state.streams["a"].old_profile == ""


def test_nothing_of_it_where_nobodys_profile_is_old() -> None:
    engine, commands = begun()
    last, _ = labelled_and_profiled(engine, commands)
    assert not of(StartReprofiling, last)
    assert of(ReportPlan, last)


def test_one_camera_a_window_and_they_take_turns() -> None:
    seen = set()
    for window in (1, 2):
        engine, commands = begun("a", "b", window=window)
        last, _ = labelled_and_profiled(engine, commands)
        seen.add(started(last).stream)
    assert seen == {"a", "b"}


def test_what_preparation_has_no_time_for_waits_for_the_next_window() -> None:
    engine, commands = begun("a")
    last, _ = labelled_and_profiled(engine, commands)
    command = started(last)
    late = list(engine.handle(TimerFired(at_s=80.0, timer=PREP_DEADLINE)))
    assert [c.job for c in of(CancelJob, late)] == [command.job]  # type: ignore[attr-defined]
    assert of(ReportPlan, late)
    assert engine.state.streams["a"].old_profile
    assert engine.handle(Reprofiled(at_s=81.0, job=command.job, stream="a", gpu_s=3.0)) == [], "too late"


def test_one_that_fails_is_not_tried_for_ever() -> None:
    engine, commands = begun("a")
    last, at_s = labelled_and_profiled(engine, commands)
    failed = JobFailed(at_s=at_s, job=started(last).job, stream="a", code="no_data", text="no samples")
    after = list(engine.handle(failed))
    assert of(ReportPlan, after)
    assert engine.state.streams["a"].old_profile == ""
    assert any(getattr(c, "code", "") == "reprofile-failed" for c in after)


def test_a_camera_that_is_taken_out_meanwhile_takes_it_along() -> None:
    engine, commands = begun("a")
    last, at_s = labelled_and_profiled(engine, commands)
    after = list(engine.handle(CameraRemoved(at_s=at_s, stream="a")))
    assert [c.job for c in of(CancelJob, after)] == [started(last).job]  # type: ignore[attr-defined]
    assert of(ReportPlan, after)
    assert engine.handle(ProfileOld(at_s=at_s + 1, stream="a", why="late")) == []


# --- queries ----------------------------------------------------------------------------------------------------------


def begun_with_queries(*names: str, own: bool = False, window: int = 1) -> tuple[BoxEngine, list[Command]]:
    """A window opens; queries of camera a have no profile."""
    engine = BoxEngine(CONFIG)
    for camera in "ab":
        engine.handle(CameraAdded(at_s=0, stream=camera, knobs=KNOBS, version=f"{camera}-0", quality=0.5))
    if own:
        engine.handle(ProfileOld(at_s=0, stream="a", why="the scene has drifted since"))
    for name in names:
        engine.handle(ProfileOld(at_s=0, stream="a", why="there is none yet", query=name))
    return engine, list(engine.handle(BoxStarted(at_s=0, window=window)))


def test_a_query_is_profiled_as_a_camera_is() -> None:
    engine, commands = begun_with_queries("plate")
    last, at_s = labelled_and_profiled(engine, commands)
    command = started(last)
    assert (command.stream, command.query) == ("a", "plate")
    assert command.budget_gpu_s > 0
    after = list(engine.handle(Reprofiled(at_s=at_s + 9, job=command.job, stream="a", gpu_s=3.0)))
    assert of(ReportPlan, after)
    assert engine.state.streams["a"].old_queries == {}


def test_a_camera_and_its_queries_take_turns_one_a_window() -> None:
    seen = set()
    for window in (1, 2, 3):
        engine, commands = begun_with_queries("plate", "crowd", own=True, window=window)
        command = started(labelled_and_profiled(engine, commands)[0])
        seen.add(command.query)
    assert seen == {"", "plate", "crowd"}


def test_one_is_settled_and_the_others_still_wait() -> None:
    engine, commands = begun_with_queries("plate", "crowd", own=True, window=3)
    last, at_s = labelled_and_profiled(engine, commands)
    assert started(last).query == ""
    engine.handle(JobFailed(at_s=at_s, job=started(last).job, stream="a", code="no_data", text="no samples"))
    assert engine.state.streams["a"].old_profile == ""
    assert set(engine.state.streams["a"].old_queries) == {"plate", "crowd"}


def test_a_querys_profile_that_fails_is_not_tried_for_ever() -> None:
    engine, commands = begun_with_queries("plate")
    last, at_s = labelled_and_profiled(engine, commands)
    after = list(engine.handle(JobFailed(at_s=at_s, job=started(last).job, stream="a", code="no_data", text="no samples")))
    assert engine.state.streams["a"].old_queries == {}
    assert any(getattr(c, "code", "") == "reprofile-failed" for c in after)


def test_when_other_things_are_asked_what_the_old_queries_lacked_is_forgotten() -> None:
    engine, commands = begun_with_queries("plate")
    engine.handle(AskedAnew(at_s=1.0, stream="a", utility=None))
    last, _ = labelled_and_profiled(engine, commands)
    assert engine.state.streams["a"].old_queries == {}


def test_events_and_the_state_survive_the_journal() -> None:
    engine, commands = begun("a")
    last, _ = labelled_and_profiled(engine, commands)
    for thing in (
        started(last),
        ProfileOld(at_s=1.0, stream="a", why="w"),
        ProfileOld(at_s=1.0, stream="a", why="w", query="plate"),
        Reprofiled(at_s=2.0, job="j", stream="a", gpu_s=1.0),
    ):
        assert decode(encode(thing)) == thing
    assert replace(engine.state.streams["a"]).old_profile
    line = encode(started(last)).replace(',"query":""', "")
    assert decode(line) == started(last), "of a journal from before there were queries' profiles"
