"""Look, label, probe, profile: which cameras are examined, which earlier models come back, who learns with whom."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scheduler.codec import decode, encode
from scheduler.commands import (
    CancelJob,
    Note,
    RejectModel,
    ReportPlan,
    ReportWindow,
    StartGate,
    StartLabelling,
    StartLook,
    StartProbe,
    StartProfiling,
    StartRetraining,
    SwapModel,
)
from scheduler.engine import PREP_DEADLINE, WINDOW_END, BoxEngine
from scheduler.events import (
    BoxStarted,
    CameraAdded,
    CameraHealth,
    CameraRemoved,
    Event,
    JobFailed,
    LabelDone,
    LearnedFrom,
    LookDone,
    ModelRolledBack,
    Probed,
    ProbeDone,
    ProfileDone,
    SwapDone,
    SwapFailed,
    TimerFired,
)
from scheduler.types import CachedModel, RetrainConfig, Signature, Traits
from tests.support.learning_world import DAY, ENGINE, KNOBS, NIGHT, LearningWorld, Ran, run
from tests.support.looks import look


def alternating(days: int) -> Any:
    """Day and night take turns, each `days` windows long."""
    return lambda camera, window: NIGHT if (window // days) % 2 else DAY


def reasons(ran: Ran, window: int) -> str:
    return " | ".join(line for c in ran.of(ReportPlan) if c.window == window for line in c.reasons)


# --- looks and labels -------------------------------------------------------------------------------------------------


def test_a_window_is_looked_at_labelled_probed_profiled_in_this_order() -> None:
    ran = run(LearningWorld(), windows=3, cameras=("a", "b"))
    order = [type(c).__name__.removeprefix("Start") for c in ran.world.done if type(c).__name__.startswith("Start")]
    first = order[: order.index("Gate")]
    assert first[:6] == ["Look", "Look", "Labelling", "Labelling", "Profiling", "Profiling"], "nothing earlier to probe yet"
    second = order[len(order) - 1 - order[::-1].index("Look") - 3 :]
    assert second[:8] == ["Look", "Look", "Look", "Look", "Labelling", "Labelling", "Probe", "Probe"], "references first"


def test_after_a_swap_the_new_model_looks_at_the_window_it_learned_from() -> None:
    ran = run(LearningWorld(), windows=3)
    looks = [(c.job, c.window, c.version) for c in ran.of(StartLook)]
    assert looks == [("a/look/1", 0, "a-0"), ("a/reference/2", 0, "a:0"), ("a/look/2", 1, "a:0")]


def test_a_camera_without_drift_and_with_nothing_to_learn_is_only_measured() -> None:
    ran = run(LearningWorld(), windows=8)
    labels = ran.labels()
    assert labels[1] == 40
    assert {labels[w] for w in (4, 5, 6, 7)} == {8}
    profiled = {c.window + 1 for c in ran.of(StartProfiling)}
    assert profiled == {1, 2}
    assert "only measured" in reasons(ran, 5)
    assert ran.engine.state.streams["a"].quality == pytest.approx(0.8)


def test_drift_brings_everything_back() -> None:
    ran = run(LearningWorld(scene_of=lambda c, w: DAY if w < 5 else NIGHT), windows=10)
    labels = ran.labels()
    assert labels[5] == 8
    assert labels[6] > 20, "window 5 was the first night; its labels are made in window 6"
    assert [c.window for c in ran.of(StartRetraining)] == [0, 5]
    assert {labels[w] for w in (8, 9)} == {8}, "the night is known by now"
    drifts = {o.window: o.streams[0].drift for o in (c.outcome for c in ran.of(ReportWindow))}
    assert drifts[5] is not None
    assert not drifts[5].drifted
    assert drifts[6] is not None
    assert drifts[6].drifted


def test_switched_off_nobody_looks_and_every_window_is_examined_in_full() -> None:
    ran = run(LearningWorld(), windows=6, drift=False, reuse=False)
    assert not ran.of(StartLook)
    assert not ran.of(StartProbe)
    assert set(ran.labels().values()) == {40}


@pytest.mark.parametrize("policy", ["no-retrain", "uniform(full,50)", "uniform(high,50)", "cached(classes)"])
def test_policies_that_do_not_choose_by_profiles_do_as_they_always_did(policy: str) -> None:
    ran = run(LearningWorld(), windows=4, policy=policy)
    assert not ran.of(StartLook)
    assert not ran.of(StartProbe)


def test_few_labels_that_say_it_is_worse_call_for_the_others() -> None:
    """The same pictures, but other things in them: only labels can tell."""
    world = LearningWorld(said=lambda version, truth, window: truth - (0.4 if window >= 5 else 0.0))
    ran = run(world, windows=7)
    asked = [(c.job, c.frames) for c in ran.of(StartLabelling) if c.window == 5]
    assert asked == [("a/label/6", 8), ("a/relabel/6", 40)]
    assert [c for c in ran.of(StartProfiling) if c.window == 5]
    assert "labels say that it is worse" in reasons(ran, 6)


def test_a_little_noise_of_few_labels_is_averaged_away() -> None:
    world = LearningWorld(said=lambda version, truth, window: truth - (0.1 if window == 5 else 0.0))
    ran = run(world, windows=7)
    assert ran.engine.state.streams["a"].quality == pytest.approx(0.8, abs=0.03)
    assert not [c for c in ran.of(StartLabelling) if "relabel" in c.job]


def test_a_look_that_fails_means_full_labels() -> None:
    ran = run(LearningWorld(failing={"StartLook"}), windows=5)
    assert set(ran.labels().values()) == {40}
    assert any(n.code == "look-failed" for n in ran.of(Note))


def arrived(version: str = "a-0", learned: int | None = None, window: int = 4) -> BoxEngine:
    """A camera has come to a box in window 7, and the pictures that its model learned from have followed it."""
    engine = BoxEngine(ENGINE)
    engine.handle(CameraAdded(at_s=0, stream="a", knobs=KNOBS, version="a-0"))
    engine.handle(BoxStarted(at_s=0, window=7))
    engine.state.streams["a"].learned = learned
    engine.handle(LearnedFrom(at_s=1, stream="a", version=version, window=window))
    return engine


def test_a_camera_from_elsewhere_is_compared_with_what_its_model_learned_from_there() -> None:
    engine = arrived()
    commands = engine.handle(TimerFired(at_s=100, timer=WINDOW_END))
    assert [(c.job, c.window) for c in commands if isinstance(c, StartLook)] == [("a/reference/8", 4)]


def test_what_is_newer_or_of_another_model_or_to_come_is_not_taken() -> None:
    assert arrived(learned=5).state.streams["a"].learned == 5
    assert arrived(version="a-9").state.streams["a"].learned is None
    assert arrived(window=7).state.streams["a"].learned is None
    assert arrived(window=-1).state.streams["a"].learned is None
    engine = arrived()
    assert engine.handle(LearnedFrom(at_s=2, stream="gone", version="a-0", window=1)) == []
    told = LearnedFrom(at_s=2, stream="a", version="a-0", window=1)
    assert decode(encode(told)) == told, "it is in the journal"


def test_a_reference_that_is_gone_is_not_asked_for_again() -> None:
    world = LearningWorld()
    engine = BoxEngine(ENGINE)
    engine.handle(CameraAdded(at_s=0, stream="a", knobs=KNOBS, version="a-0"))
    engine.state.streams["a"].learned = 3
    commands = engine.handle(BoxStarted(at_s=0, window=7))
    (first,) = [c for c in commands if isinstance(c, StartLook)]
    assert (first.job, first.window) == ("a/reference/7", 3)
    commands = engine.handle(JobFailed(at_s=1, job=first.job, stream="a", code="exception"))
    (second,) = [c for c in commands if isinstance(c, StartLook)]
    assert (second.job, second.window) == ("a/look/7", 6)
    assert engine.state.streams["a"].learned is None
    assert world.done == []


def test_when_labels_are_short_drifted_cameras_come_first() -> None:
    world = LearningWorld(scene_of=lambda c, w: NIGHT if c == "b" and w >= 5 else DAY)
    ran = run(world, windows=7, cameras=("a", "b"), golden_gpu_s=0.1)
    assert ran.labels("a")[6] == 8
    assert ran.labels("b")[6] > 20
    engine = ran.engine
    assert [s.waited for s in engine.state.ordered()] == [0, 0]


def test_a_golden_model_that_is_too_slow_for_all_lets_cameras_take_turns() -> None:
    ran = run(LearningWorld(), windows=4, cameras=("a", "b", "c"), golden_gpu_s=1.0)
    assert any(n.code == "golden-slow" for n in ran.of(Note))
    assert {c.stream for c in ran.of(StartLabelling)} == {"a", "b", "c"}


# --- reuse and rollback -----------------------------------------------------------------------------------------------


def test_what_recurs_is_taken_up_again_without_a_retraining() -> None:
    ran = run(LearningWorld(scene_of=alternating(3)), windows=24)
    reused = ran.swaps("reuse", "rollback")
    assert len(reused) >= 4
    assert len(ran.of(StartRetraining)) <= 3, "one for the day, one for the night"
    plain = run(LearningWorld(scene_of=alternating(3)), windows=24, reuse=False)
    assert len(plain.of(StartRetraining)) >= 7
    shown = [mean_quality(r) for r in (ran, plain)]
    assert shown[0] > shown[1]


def mean_quality(ran: Ran) -> float:
    values = [s.realised_quality or 0.0 for c in ran.of(ReportWindow) for s in c.outcome.streams]
    return sum(values) / len(values)


def test_a_model_that_is_taken_up_again_costs_nothing_and_is_in_the_reasons() -> None:
    ran = run(LearningWorld(scene_of=alternating(3)), windows=10)
    first = ran.swaps("reuse")[0]
    window = next(c.outcome for c in ran.of(ReportWindow) if c.outcome.streams[0].reused == first.version)
    assert f"reuse of {first.version}: 0.800 against 0.300 on the same labels" in reasons(ran, window.window)
    assert window.streams[0].retrained is None
    assert not window.streams[0].admitted
    assert first.quality == pytest.approx(0.8)
    assert not first.shadow


def test_after_reuse_the_profile_begins_from_the_version_that_serves() -> None:
    ran = run(LearningWorld(scene_of=alternating(3)), windows=10)
    done = ran.world.done
    swap = next(i for i, c in enumerate(done) if isinstance(c, SwapModel) and c.cause == "reuse")
    profile = next(c for c in done[swap:] if isinstance(c, StartProfiling))
    assert profile.version == done[swap].version  # type: ignore[union-attr]


class Spoilt(LearningWorld):
    """Every retraining makes a model of .3 that looks like .9 to its gate."""

    def _retrain(self, c: StartRetraining) -> Any:
        work = super()._retrain(c)
        self.worth[f"{c.stream}:{c.window}", False] = 0.3
        return work

    def _gate(self, c: StartGate) -> Any:
        work = super()._gate(c)
        return replace(work, finish=lambda at_s: replace(work.finish(at_s), candidate_quality=0.9))


def test_a_swap_that_was_a_mistake_is_undone_in_the_next_window() -> None:
    ran = run(Spoilt(), windows=4)
    (first, second, *_) = ran.swaps()
    assert (first.version, first.cause) == ("a:0", "retrained")
    assert (second.version, second.cause) == ("a-0", "rollback")
    assert "live quality fell below what it replaced" in second.reason
    (note,) = [n for n in ran.of(Note) if n.code == "rollback"][:1]
    assert note.stream == "a"
    assert "a:0 goes back to a-0" in note.text
    assert not [r for r in ran.of(RejectModel) if r.version == "a-0"]


def test_a_replaced_version_is_asked_once() -> None:
    ran = run(LearningWorld(), windows=6)
    assert [(c.window, c.candidates) for c in ran.of(StartProbe)] == [(1, ("a-0",))]


@pytest.mark.parametrize("ask_again", [True, False])
def test_a_model_that_falls_later_goes_back_to_what_it_replaced(ask_again: bool) -> None:
    """Nothing is seen in the pictures: labels alone say that it has become worse, windows after it was proved right."""
    world = LearningWorld(said=lambda version, truth, window: 0.2 if version == "a:0" and window >= 4 else truth)
    ran = run(world, windows=7, ask_again=ask_again)
    back = [c for c in ran.swaps() if c.cause == "rollback"]
    asked = [c.window for c in ran.of(StartProbe) if "a-0" in c.candidates]
    if not ask_again:
        assert (back, asked) == ([], [1])
        return
    assert asked[:2] == [1, 4], "in between nothing had fallen"
    assert [c.version for c in back] == ["a-0"]
    assert "live quality fell below what it replaced" in back[0].reason


def test_a_probe_that_fails_costs_nothing_but_itself() -> None:
    ran = run(LearningWorld(failing={"StartProbe"}, scene_of=alternating(3)), windows=8)
    assert any(n.code == "probe-failed" for n in ran.of(Note))
    assert len(ran.of(StartRetraining)) >= 2
    assert not ran.swaps("reuse", "rollback")


def test_an_earlier_version_that_cannot_be_swapped_in_leaves_the_serving_one_and_its_profile() -> None:
    ran = run(LearningWorld(scene_of=alternating(3), dead={"a-0", "a:0"}), windows=8)
    failed = [n for n in ran.of(Note) if n.code == "swap-failed"]
    assert failed
    assert not [r for r in ran.of(RejectModel) if r.version == "a-0"], "it did nothing wrong"
    assert len({c.candidates for c in ran.of(StartProbe)}) >= 1


# --- step by step: what may happen in the middle ----------------------------------------------------------------------

TRAITS = Traits(class_frac=(1.0,))


def box(cameras: tuple[str, ...] = ("a",), replaced: str | None = "old", **changes: object) -> BoxEngine:
    """A box whose looks of window 1 are done: camera a waits for its labels."""
    engine = BoxEngine(replace(ENGINE, **changes))  # type: ignore[arg-type]
    for camera in cameras:
        engine.handle(
            CameraAdded(at_s=0, stream=camera, knobs=KNOBS, version=f"{camera}-1", quality=0.6, replaced=replaced, arch="net")
        )
    engine.handle(BoxStarted(at_s=0, window=1))
    for number, camera in enumerate(cameras):
        looked(engine, camera, at_s=1 + number)
    return engine


def looked(engine: BoxEngine, camera: str, *, at_s: float) -> list[Any]:
    seen = look(DAY, 7, version=f"{camera}-1")
    event = LookDone(at_s=at_s, job=f"{camera}/look/1", stream=camera, look=seen, signature=Signature(), gpu_s=0.5)
    return engine.handle(event)


def labelled(engine: BoxEngine, camera: str = "a", at_s: float = 5, quality: float = 0.6) -> list[Any]:
    return engine.handle(
        LabelDone(
            at_s=at_s, job=f"{camera}/label/1", stream=camera, train=24, holdout=16, quality=quality, gpu_s=4.0,
            golden_gpu_s=0.1, traits=TRAITS,
        )
    )  # fmt: skip


def probe_done(engine: BoxEngine, old: float | None, new: float, at_s: float = 7, camera: str = "a") -> list[Any]:
    found = (Probed(version="old", quality=new, gain_sd=0.02),)
    return engine.handle(
        ProbeDone(
            at_s=at_s, job=f"{camera}/probe/1", stream=camera, serving_quality=old, found=found, frames=16, gpu_s=0.3
        )
    )  # fmt: skip


def kinds(commands: list[Any]) -> list[str]:
    return [type(c).__name__ for c in commands]


def test_preparation_waits_for_the_swap_that_a_probe_asked_for() -> None:
    engine = box()
    assert "StartProbe" in kinds(labelled(engine))
    commands = probe_done(engine, 0.6, 0.8)
    assert "SwapModel" in kinds(commands)
    assert "ReportPlan" not in kinds(commands)
    assert "StartProfiling" not in kinds(commands)
    commands = engine.handle(SwapDone(at_s=8, stream="a", version="old"))
    (profile,) = [c for c in commands if isinstance(c, StartProfiling)]
    assert profile.version == "old"
    stream = engine.state.streams["a"]
    assert (stream.version, stream.reused, stream.measured) == ("old", "old", 0.8)
    assert stream.quality == 0.8


def test_what_a_lucky_few_frames_say_of_an_earlier_model_is_not_believed_in_full() -> None:
    engine = box(calibrate=True)
    labelled(engine)
    probe_done(engine, 0.6, 0.8)
    engine.handle(SwapDone(at_s=8, stream="a", version="old"))
    stream = engine.state.streams["a"]
    assert stream.measured == 0.8
    assert 0.7 < (stream.quality or 0.0) < 0.8


def test_the_others_do_not_wait_for_it() -> None:
    engine = box(("a", "b"))
    labelled(engine, "a", 5)
    labelled(engine, "b", 6)
    commands = probe_done(engine, 0.6, 0.8)
    assert {"SwapModel", "StartProbe"} <= set(kinds(commands))


@pytest.mark.parametrize("old", [None, float("nan")])
def test_a_probe_that_says_nothing_of_the_serving_model_swaps_nothing(old: float | None) -> None:
    engine = box()
    labelled(engine)
    assert "StartProfiling" in kinds(probe_done(engine, old, 0.9))


def test_labels_that_are_not_a_number_count_as_none() -> None:
    engine = box()
    commands = labelled(engine, quality=float("nan"))
    assert "ReportPlan" in kinds(commands)
    assert engine.state.streams["a"].quality == 0.6


def test_the_deadline_does_not_wait_for_a_swap_and_its_end_makes_a_new_plan() -> None:
    engine = box()
    labelled(engine)
    probe_done(engine, 0.6, 0.8)
    assert "ReportPlan" in kinds(engine.handle(TimerFired(at_s=60, timer=PREP_DEADLINE)))
    commands = engine.handle(SwapDone(at_s=61, stream="a", version="old"))
    assert "ReportPlan" in kinds(commands)
    assert engine.state.streams["a"].version == "old"


def test_the_window_may_end_during_a_probe() -> None:
    engine = box()
    labelled(engine)
    engine.handle(TimerFired(at_s=60, timer=PREP_DEADLINE))
    commands = engine.handle(TimerFired(at_s=100, timer=WINDOW_END))
    assert not [c for c in commands if isinstance(c, RejectModel)]
    assert probe_done(engine, 0.6, 0.9, at_s=101) == [], "too late"
    assert engine.state.streams["a"].version == "a-1"


def test_the_window_may_end_during_a_swap() -> None:
    engine = box()
    labelled(engine)
    probe_done(engine, 0.6, 0.8)
    engine.handle(TimerFired(at_s=60, timer=PREP_DEADLINE))
    commands = engine.handle(TimerFired(at_s=100, timer=WINDOW_END))
    assert not [c for c in commands if isinstance(c, RejectModel)], "an earlier version is not thrown away"
    assert engine.handle(SwapDone(at_s=101, stream="a", version="old")) == []
    assert engine.state.streams["a"].version == "a-1", "the driver tells by ModelRolledBack what serves now"


def test_removing_the_camera_that_is_probed_goes_on_with_the_next() -> None:
    engine = box(("a", "b"))
    labelled(engine, "a", 5)
    labelled(engine, "b", 6)
    commands = engine.handle(CameraRemoved(at_s=6.5, stream="a"))
    assert [c.job for c in commands if isinstance(c, CancelJob)] == ["a/probe/1"]
    assert [c.stream for c in commands if isinstance(c, StartProbe)] == ["b"]


def test_removing_the_only_camera_that_was_waited_for_makes_the_plan() -> None:
    engine = box(("a", "b"), replaced=None)
    engine.state.streams["a"].replaced = "old"
    labelled(engine, "a", 5)
    labelled(engine, "b", 6)
    probe_done(engine, 0.6, 0.8)
    engine.handle(JobFailed(at_s=8, job="b/profile/1", stream="b", code="exception"))
    commands = engine.handle(CameraRemoved(at_s=9, stream="a"))
    assert "ReportPlan" in kinds(commands)


def test_a_rollback_by_hand_in_the_middle_ends_the_waiting() -> None:
    engine = box()
    labelled(engine)
    probe_done(engine, 0.6, 0.8)
    commands = engine.handle(ModelRolledBack(at_s=8, stream="a", version="a-0"))
    assert "ReportPlan" in kinds(commands)
    assert engine.handle(SwapDone(at_s=9, stream="a", version="old")) == []
    stream = engine.state.streams["a"]
    assert (stream.version, stream.replaced) == ("a-0", None)
    assert "a-1" in stream.left, "what the operator took away does not come back by itself"


def test_a_camera_that_is_lost_is_not_prepared() -> None:
    engine = BoxEngine(ENGINE)
    engine.handle(CameraAdded(at_s=0, stream="a", knobs=KNOBS, version="a-1"))
    engine.handle(CameraHealth(at_s=0, stream="a", live=False))
    commands = engine.handle(BoxStarted(at_s=0, window=1))
    assert not [c for c in commands if isinstance(c, StartLook | StartLabelling)]
    assert "ReportPlan" in kinds(commands)


# --- one retraining for several ---------------------------------------------------------------------------------------


def together(**changes: Any) -> Ran:
    options = {"windows": 6, "cameras": ("a", "b", "c"), "group": True, "group_distance": 0.5, **changes}
    world = options.pop("world", None) or LearningWorld()
    return run(world, **options)


def test_cameras_that_drifted_alike_share_one_retraining_and_each_judges_it() -> None:
    ran = together()
    first, *others = ran.of(StartRetraining)
    assert first.members == ("a", "b", "c")
    assert first.config.data_frac == pytest.approx(1 / 3), "the pool costs what one retraining does"
    assert not others
    assert [c.stream for c in ran.of(StartProfiling) if c.window == 0] == ["a"]
    gates = [(c.stream, c.version, c.candidate) for c in ran.of(StartGate)]
    assert gates == [("a", "a-0", "a:0"), ("b", "b-0", "b:0"), ("c", "c-0", "c:0")]
    assert {s.version for s in ran.swaps("retrained")} == {"a:0", "b:0", "c:0"}
    told = reasons(ran, 1)
    assert "a: retrain 'full'" in told
    assert "learns for b, c too" in told
    assert "shares the retraining of a" in told


def test_the_gates_of_a_group_divide_the_share_of_its_retraining() -> None:
    ran = together()
    for _, commands in ran.driver.log:
        shares = [c for c in commands if type(c).__name__ == "SetShares"]
        if any(isinstance(c, StartGate) for c in commands):
            gates = {job: pct for job, pct in shares[0].shares_pct if "/gate/" in job}  # type: ignore[attr-defined]
            assert len(gates) == 3
            assert len({round(pct, 6) for pct in gates.values()}) == 1
            assert sum(pct for _, pct in shares[0].shares_pct) <= 100.0001  # type: ignore[attr-defined]


def test_off_by_default_everybody_learns_alone() -> None:
    ran = together(group=False)
    assert len(ran.of(StartRetraining)) == 3
    assert not any(c.members for c in ran.of(StartRetraining))


def test_cameras_of_another_architecture_or_an_unknown_one_learn_alone() -> None:
    assert len(together(arch="").of(StartRetraining)) == 3


def test_who_refuses_the_shared_model_learns_alone_in_the_next_window() -> None:
    class Picky(LearningWorld):
        def _measured(self, version: str, camera: str, window: int) -> float:
            return 0.2 if version == "c:0" else super()._measured(version, camera, window)

    ran = together(world=Picky(), windows=3)
    assert [r.version for r in ran.of(RejectModel)] == ["c:0"]
    second = [c for c in ran.of(StartRetraining) if c.window == 1]
    assert [(c.stream, c.members) for c in second] == [("c", ())]
    assert ran.engine.state.streams["c"].version == "c:1"


def test_members_that_are_gone_when_it_ends_get_nothing() -> None:
    begun_s = next(
        e.at_s for e, commands in together(windows=2).driver.log if any(isinstance(c, StartRetraining) for c in commands)
    )
    lost: tuple[Event, ...] = (
        CameraRemoved(at_s=begun_s + 0.5, stream="b"),
        CameraHealth(at_s=begun_s + 0.5, stream="c", live=False),
    )
    ran = together(windows=2, events=lost)
    assert {r.stream for r in ran.of(RejectModel)} == {"b", "c"}
    assert [g.stream for g in ran.of(StartGate)] == ["a"]


def test_when_the_leaders_profile_fails_the_others_go_on_by_themselves() -> None:
    class Unlucky(LearningWorld):
        def start(self, command: Any, at_s: float) -> Any:
            self.failing = {"StartProfiling"} if getattr(command, "stream", "") == "a" else set()
            return super().start(command, at_s)

    ran = together(world=Unlucky(), windows=2)
    assert {c.stream for c in ran.of(StartProfiling)} == {"a", "b", "c"}
    assert {c.stream for c in ran.of(StartRetraining)} >= {"b", "c"}


def test_when_the_leader_goes_the_others_go_on_by_themselves() -> None:
    profiled_s = next(e.at_s for e, _ in together(windows=2).driver.log if isinstance(e, ProfileDone))
    ran = together(windows=2, events=(CameraRemoved(at_s=profiled_s - 0.1, stream="a"),))
    assert [c.stream for c in ran.of(StartProfiling)] == ["a", "b", "c"]
    assert {c.stream for c in ran.of(StartRetraining)} == {"b", "c"}


def test_a_failed_shared_retraining_costs_nobody_a_model() -> None:
    ran = together(world=LearningWorld(failing={"StartRetraining"}), windows=2)
    assert not ran.swaps()
    assert {s.version for s in ran.engine.state.ordered()} == {"a-0", "b-0", "c-0"}


# --- a camera's own configurations ------------------------------------------------------------------------------------


def test_a_camera_is_retrained_by_its_own_list() -> None:
    engine = box(replaced=None)
    own = (RetrainConfig(name="own", epochs=2), RetrainConfig(name="own-long", epochs=9))
    engine.handle(CameraAdded(at_s=3, stream="z", knobs=KNOBS, version="z-1", retrain=own, quality=0.5))
    (profile,) = [c for c in labelled(engine) if isinstance(c, StartProfiling)]
    assert [c.name for c in profile.configs] == ["full"]
    engine.handle(TimerFired(at_s=100, timer=WINDOW_END))
    told = []
    for at_s, job in enumerate(["a/look/2", "z/look/2", "a/label/2", "z/label/2", "a/profile/2", "z/profile/2"], start=101):
        camera, kind, _ = job.split("/")
        event: Event
        if kind == "look":
            seen = look(DAY, 3, version=f"{camera}-1")
            event = LookDone(at_s=at_s, job=job, stream=camera, look=seen, signature=Signature(), gpu_s=0.1)
        elif kind == "label":
            event = LabelDone(at_s=at_s, job=job, stream=camera, train=24, holdout=16, quality=0.5, gpu_s=1.0, traits=TRAITS)
        else:
            event = JobFailed(at_s=at_s, job=job, stream=camera, code="exception")
        told += engine.handle(event)
    listed = {c.stream: [x.name for x in c.configs] for c in told if isinstance(c, StartProfiling)}
    assert listed == {"a": ["full"], "z": ["own-long"]}


# --- checkpoints ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", [False, True])
def test_an_engine_made_from_a_checkpoint_in_the_middle_goes_on_exactly(group: bool) -> None:
    world = LearningWorld(scene_of=alternating(2))
    ran = run(world, windows=9, cameras=("a", "b"), group=group)
    log = ran.driver.log
    for start in range(0, len(log), max(1, len(log) // 12)):
        engine = BoxEngine(replace(ENGINE, group=group))
        for event, _ in log[:start]:
            engine.handle(event)
        saved = decode(encode(engine.checkpoint()))
        again = BoxEngine(saved.config, saved.state)
        for event, commands in log[start:]:
            assert [encode(c) for c in again.handle(decode(encode(event)))] == [encode(c) for c in commands]


def test_a_second_start_knows_the_kept_models_and_their_windows() -> None:
    engine = BoxEngine(ENGINE)
    seen = look(NIGHT, 5, version="a-9")
    from scheduler.drift import signature

    night = CachedModel(name="a-3", traits=TRAITS, signature=signature(look(NIGHT, 8)))
    engine.handle(CameraAdded(at_s=0, stream="a", knobs=KNOBS, version="a-9", quality=0.5, cached=(night,)))
    engine.handle(BoxStarted(at_s=0, window=4))
    engine.handle(LookDone(at_s=1, job="a/look/4", stream="a", look=seen, signature=signature(seen), gpu_s=0.1))
    commands = engine.handle(
        LabelDone(at_s=2, job="a/label/4", stream="a", train=24, holdout=16, quality=0.4, gpu_s=1.0, traits=TRAITS)
    )
    (probe,) = [c for c in commands if isinstance(c, StartProbe)]
    assert probe.candidates == ("a-3",)
    engine.handle(
        ProbeDone(
            at_s=3, job="a/probe/4", stream="a", serving_quality=0.4, frames=16, gpu_s=0.1,
            found=(Probed(version="a-3", quality=0.7, gain_sd=0.05),),
        )
    )  # fmt: skip
    commands = engine.handle(SwapFailed(at_s=4, stream="a", version="a-3", text="gone"))
    assert [c.version for c in commands if isinstance(c, StartProfiling)] == ["a-9"]
