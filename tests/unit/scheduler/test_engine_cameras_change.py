"""Cameras that come, go, are asked other things and stop learning while the box runs: what is cancelled, what goes on, what replays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scheduler.codec import decode, encode
from scheduler.commands import (
    CancelJob,
    Command,
    RejectModel,
    ReportPlan,
    SetShares,
    StartGate,
    StartLabelling,
    StartLook,
    StartProfiling,
    StartRetraining,
    SwapModel,
)
from scheduler.engine import WINDOW_END, BoxEngine
from scheduler.events import (
    AskedAnew,
    BoxStarted,
    CameraAdded,
    CameraRemoved,
    Event,
    GateDone,
    LabelDone,
    LearningSwitched,
    ProfileDone,
    RetrainDone,
    SwapDone,
    TimerFired,
)
from scheduler.types import KnobProfile, ProfileTrial, RetrainConfig
from scheduler.videostorm.types import Utility
from tests.support.learning_world import ENGINE as LEARNING

CONFIG = RetrainConfig(name="full", epochs=4)
KNOBS = (
    KnobProfile(name="full", demand_pct=20, quality_frac=1.0, fps=5),
    KnobProfile(name="half", demand_pct=10, quality_frac=0.8, fps=2.5),
)
BASE = replace(
    LEARNING, window_s=100, first_window_s=50, prep_pct=40, prep_auto=False, prep_max_frac=0.5, retrain=(CONFIG,), label_frames=20,
    golden_gpu_s=0.1, cost_margin_frac=0.0, drift=False, reuse=False, group=False, overlap=False,
)  # fmt: skip
ENGINE = replace(BASE, shadow=False)
LEARNS = (StartLook, StartLabelling, StartProfiling, StartRetraining, StartGate)


def camera(id: str, at_s: float = 0.0, **more: Any) -> CameraAdded:
    return CameraAdded(at_s=at_s, stream=id, knobs=KNOBS, version=f"{id}-0", **more)


def box(*cameras: CameraAdded) -> tuple[BoxEngine, list[Command]]:
    """A box in a window that it can learn in."""
    engine = BoxEngine(ENGINE)
    for added in cameras:
        engine.handle(added)
    return engine, engine.handle(BoxStarted(at_s=0, window=1))


def work_of(commands: list[Command], id: str) -> list[str]:
    return [type(c).__name__ for c in commands if isinstance(c, LEARNS) and c.stream == id]


def shares(commands: list[Command]) -> dict[str, float]:
    return dict([c for c in commands if isinstance(c, SetShares)][-1].shares_pct)


def labelled(engine: BoxEngine, id: str, at_s: float) -> list[Command]:
    job = engine.state.active.job if engine.state.active else ""
    return engine.handle(LabelDone(at_s=at_s, job=job, stream=id, train=12, holdout=8, quality=0.5, gpu_s=3.0))


def profiled(engine: BoxEngine, id: str, at_s: float) -> list[Command]:
    quality = tuple(0.5 + 0.1 * k for k in range(4))
    found = ProfileTrial(config=CONFIG, quality=quality, init_gpu_s=0.5, gpu_s_per_epoch=1.0, n_profiled=12, n_total=12)
    job = engine.state.active.job if engine.state.active else ""
    return engine.handle(ProfileDone(at_s=at_s, job=job, stream=id, trials=(found,), n_train=12, gpu_s=3.0))


def training(*ids: str) -> BoxEngine:
    """A box whose cameras retrain."""
    engine, _ = box(*(camera(id) for id in ids))
    for number, id in enumerate(ids):
        labelled(engine, id, 2 + number)
    for number, id in enumerate(ids):
        profiled(engine, id, 6 + number)
    assert all(engine.state.streams[id].running for id in ids)
    return engine


# --- learning -------------------------------------------------------------------------------------------------------


def test_a_camera_that_does_not_learn_is_only_watched() -> None:
    engine, commands = box(camera("a", learns=False), camera("b"))
    assert work_of(commands, "a") == []
    assert work_of(commands, "b") == ["StartLabelling"]
    assert shares(commands)["a/infer"] > 0
    commands = [*labelled(engine, "b", 3), *profiled(engine, "b", 6)]
    plan = [c for c in commands if isinstance(c, ReportPlan)][-1].plan
    assert {s.id: s.retrain for s in plan.streams} == {"a": None, "b": "full"}


def test_where_nobody_learns_the_plan_is_made_at_once() -> None:
    _, commands = box(camera("a", learns=False))
    assert [c for c in commands if isinstance(c, ReportPlan)]
    assert not [c for c in commands if isinstance(c, LEARNS)]


def test_switched_off_its_retraining_ends_and_the_other_one_goes_on() -> None:
    engine = training("a", "b")
    commands = engine.handle(LearningSwitched(at_s=20, stream="a", learns=False))
    assert [c.job for c in commands if isinstance(c, CancelJob)] == ["a/train/1"]
    assert engine.state.streams["b"].running is not None
    assert "a/train/1" not in shares(commands)
    assert shares(commands)["a/infer"] > 0


def test_switched_off_while_it_is_labelled_the_next_camera_is_prepared() -> None:
    engine, _ = box(camera("a"), camera("b"))
    commands = engine.handle(LearningSwitched(at_s=1, stream="a", learns=False))
    assert [c.job for c in commands if isinstance(c, CancelJob)] == ["a/label/1"]
    assert work_of(commands, "b") == ["StartLabelling"]
    assert labelled_ids(engine) == ["b"]


def labelled_ids(engine: BoxEngine) -> list[str]:
    waiting = [task.stream for task in engine.state.queue]
    return [engine.state.active.stream, *waiting] if engine.state.active else waiting


def test_switched_off_at_the_gate_its_candidate_is_thrown_away() -> None:
    engine = training("a")
    engine.handle(RetrainDone(at_s=30, job="a/train/1", stream="a", candidate="a-1", gpu_s=4.0))
    commands = engine.handle(LearningSwitched(at_s=31, stream="a", learns=False))
    assert [c.job for c in commands if isinstance(c, CancelJob)] == ["a/gate/1"]
    assert [(c.version, c.reason) for c in commands if isinstance(c, RejectModel)] == [("a-1", "learning was switched off")]
    late = engine.handle(
        GateDone(
            at_s=32, job="a/gate/1", stream="a", candidate="a-1", serving_quality=0.5, candidate_quality=0.9, frames=9, gpu_s=1
        )
    )
    assert not [c for c in late if isinstance(c, SwapModel)]


def test_switched_on_it_learns_from_the_next_window_on() -> None:
    engine, _ = box(camera("a", learns=False))
    assert work_of(engine.handle(LearningSwitched(at_s=10, stream="a", learns=True)), "a") == []
    assert work_of(engine.handle(TimerFired(at_s=50, timer=WINDOW_END)), "a") == ["StartLabelling"]


def test_a_switch_that_changes_nothing_and_one_of_nobody_do_nothing() -> None:
    engine, _ = box(camera("a"))
    assert engine.handle(LearningSwitched(at_s=1, stream="a", learns=True)) == []
    assert engine.handle(LearningSwitched(at_s=1, stream="nobody", learns=False)) == []
    assert engine.handle(AskedAnew(at_s=1, stream="nobody")) == []


# --- coming and going ------------------------------------------------------------------------------------------------


def test_what_a_camera_leaves_behind_is_thrown_away_and_its_share_given_back() -> None:
    engine = training("a", "b")
    engine.handle(RetrainDone(at_s=30, job="a/train/1", stream="a", candidate="a-1", gpu_s=4.0))
    commands = engine.handle(CameraRemoved(at_s=31, stream="a"))
    assert [c.version for c in commands if isinstance(c, RejectModel)] == ["a-1"]
    assert not [job for job in shares(commands) if job.startswith("a/")]
    assert engine.state.streams["b"].running is not None


def test_a_camera_that_comes_back_is_not_answered_by_its_former_self() -> None:
    engine = training("a", "b")
    engine.handle(CameraRemoved(at_s=20, stream="a"))
    engine.handle(camera("a", 21))
    commands = engine.handle(RetrainDone(at_s=22, job="a/train/1", stream="a", candidate="a-1", gpu_s=4.0))
    assert [c.version for c in commands if isinstance(c, RejectModel)] == ["a-1"]
    assert engine.state.streams["a"].version == "a-0"
    later = engine.handle(TimerFired(at_s=50, timer=WINDOW_END))
    assert [c.job for c in later if isinstance(c, StartLabelling)] == ["a/label/2.1"]


def test_a_camera_that_joins_gets_its_share_at_once_and_learns_with_the_next_window() -> None:
    engine = training("a")
    commands = engine.handle(camera("b", 20))
    assert shares(commands)["b/infer"] > 0
    assert work_of(commands, "b") == []
    assert engine.state.streams["a"].running is not None


def test_a_member_that_came_back_with_another_model_is_not_judged_with_the_shared_retraining() -> None:
    engine = training("a", "b")
    leader, member = engine.state.streams["a"], engine.state.streams["b"]
    leader.arch = member.arch = "detection/net"
    assert leader.running is not None
    leader.running.members, member.running = ("a", "b"), None
    engine.handle(CameraRemoved(at_s=20, stream="b"))
    engine.handle(camera("b", 21, arch="detection/other"))
    commands = engine.handle(
        RetrainDone(at_s=22, job="a/train/1", stream="a", candidate="a-1", gpu_s=4.0, candidates=(("b", "b-1"),))
    )
    assert [c.stream for c in commands if isinstance(c, StartGate)] == ["a"]
    assert [c.version for c in commands if isinstance(c, RejectModel)] == ["b-1"]


def test_what_is_asked_anew_is_what_its_quality_is_worth_from_then_on() -> None:
    engine, _ = box(camera("a"))
    wanted = Utility(quality_goal=0.9)
    engine.handle(AskedAnew(at_s=1, stream="a", utility=wanted))
    assert engine.state.streams["a"].utility == wanted


# --- replay ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", range(0, 9, 2))
def test_a_day_with_changed_cameras_replays_to_the_byte(cut: int) -> None:
    """From the beginning and from a checkpoint in the middle of it."""
    events: list[Event] = [
        camera("a"), camera("b", learns=False), BoxStarted(at_s=0, window=1),
        LearningSwitched(at_s=1, stream="b", learns=True), CameraRemoved(at_s=2, stream="a"), camera("a", 3),
        AskedAnew(at_s=4, stream="b", utility=Utility(quality_goal=0.8)), TimerFired(at_s=50, timer=WINDOW_END),
        LabelDone(at_s=55, job="a/label/2.1", stream="a", train=9, holdout=5, quality=0.4, gpu_s=2.0),
        LearningSwitched(at_s=60, stream="a", learns=False), SwapDone(at_s=61, stream="a", version="a-9"),
    ]  # fmt: skip
    first = BoxEngine(ENGINE)
    told = [[encode(c) for c in first.handle(event)] for event in events[:cut]]
    checkpoint = decode(encode(first.checkpoint()))
    second = BoxEngine(checkpoint.config, checkpoint.state)
    told += [[encode(c) for c in second.handle(decode(encode(event)))] for event in events[cut:]]
    straight = BoxEngine(ENGINE)
    assert told == [[encode(c) for c in straight.handle(event)] for event in events]
