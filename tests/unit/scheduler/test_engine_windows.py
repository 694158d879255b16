"""The engine event by event: what it commands, and that no order of answers breaks its rules."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.codec import decode, encode
from scheduler.commands import (
    CancelJob,
    Command,
    Note,
    RejectModel,
    ReportPlan,
    ReportWindow,
    SetKnobs,
    SetShares,
    SetTimer,
    StartGate,
    StartLabelling,
    StartLook,
    StartProbe,
    StartProfiling,
    StartRetraining,
    SwapModel,
)
from scheduler.engine import PREP_DEADLINE, REACT, WINDOW_END, BoxEngine, EngineConfig
from scheduler.events import (
    AskedAnew,
    BoxStarted,
    CameraAdded,
    CameraHealth,
    CameraRemoved,
    CustomerChanged,
    EpochDone,
    Event,
    GateDone,
    JobFailed,
    LabelDone,
    LearningSwitched,
    LookDone,
    ModelRolledBack,
    Probed,
    ProbeDone,
    ProfileDone,
    RetrainDone,
    SharesOrdered,
    StopRequested,
    SwapDone,
    SwapFailed,
    TimerFired,
)
from scheduler.snapshots import view_of
from scheduler.types import (
    CachedModel,
    EpochReport,
    FrameLook,
    Gpu,
    KnobProfile,
    Look,
    Network,
    ProfileTrial,
    RetrainConfig,
    Signature,
    Traits,
)
from scheduler.videostorm.types import Utility

CONFIG = RetrainConfig(name="full", epochs=4)
KNOBS = (
    KnobProfile(name="full", demand_pct=20, quality_frac=1.0, fps=5),
    KnobProfile(name="half", demand_pct=10, quality_frac=0.8, fps=2.5),
)
ENGINE = EngineConfig(
    window_s=100, first_window_s=50, prep_pct=40, prep_max_frac=0.5, retrain=(CONFIG,), label_frames=20, gate_frames=5,
    golden_gpu_s=0.1, cost_margin_frac=0.0,
)  # fmt: skip


def only(commands: list[Command], kind: type[Any]) -> Any:
    found = [c for c in commands if isinstance(c, kind)]
    assert len(found) == 1, commands
    return found[0]


def kinds(commands: list[Command]) -> list[str]:
    return [type(c).__name__ for c in commands]


def started(
    config: EngineConfig = ENGINE, cameras: tuple[str, ...] = ("a", "b"), window: int = 1
) -> tuple[BoxEngine, list[Command]]:
    engine = BoxEngine(config)
    for camera in cameras:
        engine.handle(CameraAdded(at_s=0, stream=camera, knobs=KNOBS, version=f"{camera}-0"))
    return engine, engine.handle(BoxStarted(at_s=0, window=window))


def label(engine: BoxEngine, job: str, at_s: float, quality: float | None = 0.5) -> list[Command]:
    stream = job.split("/")[0]
    return engine.handle(
        LabelDone(at_s=at_s, job=job, stream=stream, train=12, holdout=8, quality=quality, gpu_s=3.0, golden_gpu_s=0.1)
    )


def trial(gain: float = 0.1) -> ProfileTrial:
    quality = tuple(0.5 + gain * k for k in range(4))
    return ProfileTrial(config=CONFIG, quality=quality, init_gpu_s=0.5, gpu_s_per_epoch=1.0, n_profiled=12, n_total=12)


def profile(engine: BoxEngine, job: str, at_s: float, gain: float = 0.1) -> list[Command]:
    trials = (trial(gain),)
    return engine.handle(ProfileDone(at_s=at_s, job=job, stream=job.split("/")[0], trials=trials, n_train=12, gpu_s=3.0))


def planned(gain_a: float = 0.1, gain_b: float = 0.1) -> tuple[BoxEngine, list[Command]]:
    """A box with cameras a and b that has just made its plan at t=20."""
    engine, _ = started()
    label(engine, "a/label/1", 5)
    label(engine, "b/label/1", 10)
    profile(engine, "a/profile/1", 15, gain_a)
    return engine, profile(engine, "b/profile/1", 20, gain_b)


def test_first_window_of_a_new_box_has_nothing_to_learn_from_and_plans_at_once() -> None:
    engine, commands = started(window=0)
    assert only(commands, ReportPlan).window == 0
    assert {c.timer: c.at_s for c in commands if isinstance(c, SetTimer)} == {WINDOW_END: 50, PREP_DEADLINE: 25}
    assert not [c for c in commands if isinstance(c, StartLabelling | StartRetraining)]
    assert {c.stream: c.knobs for c in commands if isinstance(c, SetKnobs)} == {"a": "full", "b": "full"}


def test_preparation_labels_all_cameras_first_then_profiles_the_worst_one_first() -> None:
    engine, commands = started()
    first = only(commands, StartLabelling)
    assert (first.job, first.window, first.frames) == ("a/label/1", 0, 20)
    assert only(label(engine, "a/label/1", 5, quality=0.8), StartLabelling).stream == "b"
    first_profile = only(label(engine, "b/label/1", 10, quality=0.3), StartProfiling)
    assert first_profile.stream == "b"
    # 40 s of preparation left on 60 pct (inference needs 2 * 20), for two profiles
    assert first_profile.budget_gpu_s == pytest.approx((25 - 10) * 0.6 / 2)
    assert first_profile.configs == (CONFIG,)


def test_what_inference_does_not_need_goes_to_preparation_and_everything_is_accounted_for() -> None:
    _, commands = started()
    shares = only(commands, SetShares)
    assert dict(shares.shares_pct) == {"a/infer": 20, "b/infer": 20, "a/label/1": 60}
    assert shares.spare_pct == 0


def test_no_learning_job_is_promised_more_than_it_can_use() -> None:
    config = replace(ENGINE, capacity_pct=150, job_max_pct=90.0)
    engine, commands = started(config)
    shares = only(commands, SetShares)
    assert dict(shares.shares_pct) == {"a/infer": 20, "b/infer": 20, "a/label/1": 90}
    assert shares.spare_pct == 20
    label(engine, "a/label/1", 5)
    label(engine, "b/label/1", 10)
    profile(engine, "a/profile/1", 15, 0.1)
    commands = profile(engine, "b/profile/1", 20, 0.0)
    shares = only(commands, SetShares)
    assert dict(shares.shares_pct)["a/train/1"] == 90
    assert sum(share for _, share in shares.shares_pct) + shares.spare_pct == 150


def test_plan_starts_retrainings_with_shares_set_before() -> None:
    _, commands = planned()
    names = kinds(commands)
    assert names.index("SetShares") < names.index("StartRetraining")
    shares = dict(only(commands, SetShares).shares_pct)
    starts = [c for c in commands if isinstance(c, StartRetraining)]
    assert {c.stream for c in starts} == {"a", "b"}
    assert all(shares[c.job] > 0 for c in starts)
    assert all(c.window == 0 for c in starts), "trains on the sample of the window before"


def test_nothing_is_retrained_when_nothing_is_worth_it() -> None:
    _, commands = planned(gain_a=0.0, gain_b=-0.05)
    assert not [c for c in commands if isinstance(c, StartRetraining)]
    assert all(s.retrain is None for s in only(commands, ReportPlan).plan.streams)


def test_better_model_is_swapped_in_and_the_rest_is_planned_anew() -> None:
    engine, _ = planned()
    gate = only(engine.handle(RetrainDone(at_s=22, job="a/train/1", stream="a", candidate="a-1", gpu_s=5)), StartGate)
    assert (gate.version, gate.candidate, gate.frames, gate.window) == ("a-0", "a-1", 5, 1)
    commands = engine.handle(gate_answer(gate.job, old=0.5, new=0.7, at_s=24))
    swap = only(commands, SwapModel)
    assert (swap.version, swap.quality) == ("a-1", 0.7)
    commands = engine.handle(SwapDone(at_s=24, stream="a", version="a-1"))
    plan = only(commands, ReportPlan).plan
    assert engine.state.streams["a"].version == "a-1"
    assert next(s for s in plan.streams if s.id == "a").retrain is None, "once a window"
    assert next(s for s in plan.streams if s.id == "b").retrain == "full", "the running job keeps its choice"
    assert not [c for c in commands if isinstance(c, StartRetraining)]


def gate_answer(job: str, *, old: float | None, new: float | None, at_s: float = 45) -> GateDone:
    stream = job.split("/")[0]
    return GateDone(
        at_s=at_s, job=job, stream=stream, candidate=f"{stream}-1", serving_quality=old, candidate_quality=new, frames=5, gpu_s=1
    )  # fmt: skip


@pytest.mark.parametrize(("old", "new"), [(0.7, 0.7), (0.7, 0.5), (None, 0.9), (0.5, None)])
def test_a_model_that_is_not_shown_to_be_better_is_never_admitted(old: float | None, new: float | None) -> None:
    engine, _ = planned()
    engine.handle(RetrainDone(at_s=40, job="a/train/1", stream="a", candidate="a-1", gpu_s=5))
    commands = engine.handle(gate_answer("a/gate/1", old=old, new=new))
    assert only(commands, RejectModel).version == "a-1"
    assert not [c for c in commands if isinstance(c, SwapModel)]
    assert engine.state.streams["a"].version == "a-0"


@pytest.mark.parametrize("code", ["nan", "out_of_memory", "exception"])
def test_a_failing_training_costs_only_its_own_camera(code: str) -> None:
    engine, _ = planned()
    before = engine.state.streams["b"].running
    commands = engine.handle(JobFailed(at_s=30, job="a/train/1", stream="a", code=code, text="boom"))
    assert only(commands, Note).stream == "a"
    assert engine.state.streams["a"].version == "a-0"
    assert engine.state.streams["b"].running == before
    assert dict(only(commands, SetShares).shares_pct)["b/train/1"] > 0


def test_failed_swap_keeps_the_old_model() -> None:
    engine, _ = planned()
    engine.handle(RetrainDone(at_s=40, job="a/train/1", stream="a", candidate="a-1", gpu_s=5))
    engine.handle(gate_answer("a/gate/1", old=0.5, new=0.7))
    commands = engine.handle(SwapFailed(at_s=46, stream="a", version="a-1", text="corrupt"))
    assert only(commands, RejectModel).version == "a-1"
    assert engine.state.streams["a"].version == "a-0"


def test_window_end_drops_what_is_unfinished_and_reports_predicted_against_realised() -> None:
    engine, _ = planned()
    engine.handle(RetrainDone(at_s=40, job="a/train/1", stream="a", candidate="a-1", gpu_s=5))
    engine.handle(gate_answer("a/gate/1", old=0.5, new=0.7))
    engine.handle(SwapDone(at_s=45, stream="a", version="a-1"))
    commands = engine.handle(TimerFired(at_s=50, timer=WINDOW_END))
    assert only(commands, CancelJob).job == "b/train/1"
    outcome = only(commands, ReportWindow).outcome
    a, b = outcome.streams
    assert (a.admitted, a.retrained, a.end_quality) == (True, "full", 0.7)
    assert (b.admitted, b.note) == (False, "not finished when the window ended")
    # from the plan at t=20: 25 s at .5, then 5 s at .7, with full knobs
    assert a.realised_quality == pytest.approx((25 * 0.5 + 5 * 0.7) / 30)
    assert outcome.predicted_quality is not None
    assert engine.state.window == 2
    assert only(commands, StartLabelling).window == 1


def test_late_answers_of_cancelled_jobs_change_nothing_but_reject_their_model() -> None:
    engine, _ = planned()
    engine.handle(TimerFired(at_s=50, timer=WINDOW_END))
    before = encode(engine.checkpoint())
    commands = engine.handle(RetrainDone(at_s=50, job="b/train/1", stream="b", candidate="b-1", gpu_s=9))
    assert kinds(commands) == ["RejectModel"]
    assert encode(engine.checkpoint()) == before
    assert engine.handle(gate_answer("a/gate/1", old=0.1, new=0.9, at_s=50)) == []


def test_preparation_that_takes_too_long_is_cut_and_the_box_plans_with_what_it_has() -> None:
    engine, _ = started()
    label(engine, "a/label/1", 5)
    commands = engine.handle(TimerFired(at_s=25, timer=PREP_DEADLINE))
    assert only(commands, CancelJob).job == "b/label/1"
    assert only(commands, Note).code == "prep-late"
    assert only(commands, ReportPlan)


def test_a_golden_model_that_is_too_slow_shrinks_the_sample_and_says_so() -> None:
    engine, commands = started(replace(ENGINE, golden_gpu_s=0.25))
    # 25 s of preparation at 40 pct, half of it for labels = 5 GPU-s = 20 labels for two cameras
    assert only(commands, StartLabelling).frames == 10
    assert "10 instead of 20" in only(commands, Note).text


def test_a_machine_that_delivers_half_gets_half_the_work_and_costs_count_double() -> None:
    honest, _ = planned()
    slow, _ = started()
    for job, at_s in (("a/label/1", 5), ("b/label/1", 10)):
        # 60 pct of 5 s promise 3 GPU-s; half of it came
        slow.handle(LabelDone(at_s=at_s, job=job, stream=job[0], train=12, holdout=8, quality=0.5, gpu_s=1.5, golden_gpu_s=0.1))
    assert slow.state.delivered_frac == pytest.approx(0.625)
    profile(slow, "a/profile/1", 15)
    cost = {engine: engine.state.streams["a"].options[0].cost_gpu_s for engine in (honest, slow)}
    # the profile came at full speed again: (0.625 + 1) / 2
    assert cost[slow] == pytest.approx(cost[honest] / 0.8125)


def test_cameras_take_turns_when_not_even_the_smallest_sample_fits_for_all() -> None:
    slow = replace(ENGINE, golden_gpu_s=0.5, min_label_frames=8)
    first = {w: only(started(slow, window=w)[1], StartLabelling).stream for w in (1, 2, 3)}
    assert first == {1: "b", 2: "a", 3: "b"}


def test_a_lost_camera_gives_its_share_to_the_others_and_gets_it_back() -> None:
    engine, _ = planned()
    commands = engine.handle(CameraHealth(at_s=25, stream="b", live=False))
    assert not [job for job, _ in only(commands, SetShares).shares_pct if job.startswith("b/")]
    commands = engine.handle(CameraHealth(at_s=30, stream="b", live=True))
    assert "b/infer" in dict(only(commands, SetShares).shares_pct)


def test_removing_a_camera_cancels_its_jobs_only() -> None:
    engine, _ = planned()
    commands = engine.handle(CameraRemoved(at_s=30, stream="a"))
    assert [c.job for c in commands if isinstance(c, CancelJob)] == ["a/train/1"]
    assert engine.state.streams["b"].running is not None


def test_removing_the_camera_in_preparation_goes_on_with_the_next() -> None:
    engine, _ = started()
    commands = engine.handle(CameraRemoved(at_s=3, stream="a"))
    assert only(commands, CancelJob).job == "a/label/1"
    assert only(commands, StartLabelling).stream == "b"


def test_rollback_by_the_operator_stops_this_windows_retraining() -> None:
    engine, _ = planned()
    commands = engine.handle(ModelRolledBack(at_s=30, stream="a", version="a-old"))
    assert only(commands, CancelJob).job == "a/train/1"
    assert engine.state.streams["a"].version == "a-old"


def test_a_policy_that_never_retrains_labels_nothing() -> None:
    _, commands = started(replace(ENGINE, policy="no-retrain"))
    assert not [c for c in commands if isinstance(c, StartLabelling)]
    assert only(commands, ReportPlan).plan.spare_pct + sum(s.infer_pct for s in only(commands, ReportPlan).plan.streams) == 100


def test_a_fixed_configuration_needs_labels_but_no_profile() -> None:
    engine, _ = started(replace(ENGINE, policy="uniform(full,50)"))
    label(engine, "a/label/1", 5)
    commands = label(engine, "b/label/1", 10)
    assert {c.stream for c in commands if isinstance(c, StartRetraining)} == {"a", "b"}


@pytest.mark.parametrize(("policy", "retrains"), [("uniform(high,50)", True), ("thief-repeat", False)])
def test_only_a_uniform_policy_retrains_what_helps_nothing(policy: str, retrains: bool) -> None:
    engine, _ = started(replace(ENGINE, policy=policy), cameras=("a",))
    label(engine, "a/label/1", 5)
    commands = profile(engine, "a/profile/1", 10, gain=0.0)
    assert bool([c for c in commands if isinstance(c, StartRetraining)]) is retrains


def test_progress_of_a_running_job_shrinks_what_the_planner_thinks_it_still_costs() -> None:
    engine, _ = planned()
    running = engine.state.streams["a"].running
    assert running is not None
    engine.handle(EpochDone(at_s=30, stream="a", report=EpochReport(job="a/train/1", epoch=3, loss=1.0, gpu_s=3.0)))
    view = view_of(engine.state.streams["a"], engine.config)
    assert view.retrain[0].cost_gpu_s < running.option.cost_gpu_s / 2


def test_stop_cancels_everything_and_nothing_happens_afterwards() -> None:
    engine, _ = planned()
    commands = engine.handle(StopRequested(at_s=30))
    assert sorted(c.job for c in commands if isinstance(c, CancelJob)) == ["a/train/1", "b/train/1"]
    assert engine.handle(TimerFired(at_s=50, timer=WINDOW_END)) == []


def test_an_engine_from_a_checkpoint_answers_like_the_original() -> None:
    engine, _ = planned()
    twin_start = decode(encode(engine.checkpoint()))
    twin = BoxEngine(twin_start.config, twin_start.state)
    for event in (
        RetrainDone(at_s=40, job="a/train/1", stream="a", candidate="a-1", gpu_s=5),
        gate_answer("a/gate/1", old=0.5, new=0.7),
        SwapDone(at_s=46, stream="a", version="a-1"),
        TimerFired(at_s=50, timer=WINDOW_END),
    ):
        assert [encode(c) for c in engine.handle(event)] == [encode(c) for c in twin.handle(event)]


STREAMS = st.sampled_from(["a", "b", "c"])
KIND = st.sampled_from(["reference", "look", "label", "relabel", "probe", "profile", "train", "gate"])
QUALITY = st.none() | st.floats(0, 1) | st.sampled_from([float("nan"), float("inf")])
NUMBER = st.floats(0, 255)


@st.composite
def any_look(draw: st.DrawFn) -> Look:
    """Whatever a look may show, of any version: nothing, one frame, frames of different shapes."""
    frames = [
        FrameLook(
            brightness=draw(NUMBER), contrast=draw(NUMBER), sharpness=draw(NUMBER), objects=draw(NUMBER),
            confidence=draw(st.floats(0, 1)), class_frac=draw(st.sampled_from([(), (1.0,), (0.5, 0.5)])),
            embedding=draw(st.sampled_from([(), (0.0,), (1.0, -1.0), (3.0, 4.0)])),
        )
        for _ in range(draw(st.sampled_from([0, 1, 3])))
    ]  # fmt: skip
    return Look(version=draw(st.sampled_from(["v", "a-1", "b-1"])), frames=tuple(frames) * draw(st.sampled_from([1, 8])))


@st.composite
def any_trial(draw: st.DrawFn) -> ProfileTrial:
    """Whatever a trial may measure: nothing, one point, perfect, hopeless, up and down; for nothing or for hours."""
    edges = st.sampled_from([0.0, 1e-9, 0.5, 1.0 - 1e-9, 1.0])
    return ProfileTrial(
        config=CONFIG, quality=tuple(draw(st.lists(edges | st.floats(0, 1), max_size=6))),
        init_gpu_s=draw(st.sampled_from([0.0, 0.5, 1e5])), gpu_s_per_epoch=draw(st.sampled_from([0.0, 1e-6, 1.0, 1e5])),
        n_profiled=draw(st.integers(0, 9)), n_total=draw(st.integers(0, 20)),
    )  # fmt: skip


@st.composite
def any_probed(draw: st.DrawFn, stream: str) -> Probed:
    version = f"{stream}-{draw(st.sampled_from([1, 7]))}"
    return Probed(version=version, quality=draw(QUALITY) or 0.0, gain_sd=draw(st.none() | st.floats(0, 1)))


@st.composite
def any_event(draw: st.DrawFn) -> dict[str, Any]:
    stream = draw(STREAMS)
    job = f"{stream}/{draw(KIND)}/{draw(st.integers(0, 3))}"
    return draw(
        st.sampled_from(
            [
                {"cls": CameraAdded, "stream": stream, "knobs": KNOBS, "version": "v",
                 "cached": (CachedModel(name=f"{stream}-7", traits=Traits(class_frac=(1.0,)),
                                        signature=Signature(values=(0.4,) * 12)),),
                 "replaced": draw(st.sampled_from([None, "v", f"{stream}-1"])), "arch": draw(st.sampled_from(["", "net"])),
                 "retrain": draw(st.sampled_from([(), (RetrainConfig(name="own", epochs=2), CONFIG)]))},
                {"cls": CameraRemoved, "stream": stream},
                {"cls": LearningSwitched, "stream": stream, "learns": draw(st.booleans())},
                {"cls": SharesOrdered, "shares_pct": draw(
                    st.sampled_from([(), (("x", 30.0),), (("x", 70.0), ("y", 90.0)), (("y", -1.0),)]))},
                {"cls": CustomerChanged, "stream": stream, "customer": draw(st.sampled_from(["x", "y", "z"]))},
                {"cls": AskedAnew, "stream": stream, "utility": draw(st.sampled_from([None, Utility(quality_goal=0.9)]))},
                {"cls": CameraHealth, "stream": stream, "live": draw(st.booleans())},
                {"cls": TimerFired, "timer": draw(st.sampled_from([WINDOW_END, PREP_DEADLINE, REACT]))},
                {"cls": LabelDone, "job": job, "stream": stream, "train": draw(st.integers(0, 9)), "holdout": 3,
                 "quality": draw(QUALITY), "gpu_s": 1.0, "traits": draw(st.sampled_from([None, Traits(class_frac=(0.5, 0.5))]))},
                {"cls": EpochDone, "stream": stream, "report": EpochReport(
                    job=f"{stream}/train/{draw(st.integers(0, 3))}", epoch=draw(st.integers(0, 6)),
                    loss=draw(st.floats(0, 9) | st.just(float("inf"))), gpu_s=draw(st.floats(0, 60)), quality=draw(QUALITY))},
                {"cls": ProfileDone, "job": job, "stream": stream, "trials": draw(st.lists(any_trial(), max_size=2).map(tuple)),
                 "n_train": 9, "gpu_s": 1.0},
                {"cls": RetrainDone, "job": job, "stream": stream, "candidate": f"{stream}-1", "gpu_s": 1.0,
                 "candidates": draw(st.sampled_from([(), (("a", "a-1"), ("b", "b-1"), ("c", "c-1"))]))},
                {"cls": LookDone, "job": job, "stream": stream, "look": draw(any_look()), "gpu_s": 0.1,
                 "signature": draw(st.sampled_from([Signature(), Signature(values=(0.5,) * 12), Signature(values=(1.0,))]))},
                {"cls": ProbeDone, "job": job, "stream": stream, "serving_quality": draw(QUALITY), "frames": draw(st.integers(0, 9)),
                 "found": draw(st.lists(any_probed(stream), max_size=2).map(tuple)), "gpu_s": 0.1},
                {"cls": GateDone, "job": job, "stream": stream, "candidate": f"{stream}-1", "serving_quality": draw(QUALITY),
                 "candidate_quality": draw(QUALITY), "frames": 3, "gpu_s": 1.0, "gain_sd": draw(QUALITY)},
                {"cls": JobFailed, "job": job, "stream": stream, "code": "nan"},
                {"cls": SwapDone, "stream": stream, "version": f"{stream}-{draw(st.sampled_from([1, 7]))}"},
                {"cls": SwapFailed, "stream": stream, "version": f"{stream}-{draw(st.sampled_from([1, 7]))}"},
                {"cls": ModelRolledBack, "stream": stream, "version": f"{stream}-{draw(st.sampled_from([1, 7]))}"},
            ]
        )
    )  # fmt: skip


TWO_GPUS = (Gpu(id="0", capacity_pct=60, memory_mib=500), Gpu(id="1", capacity_pct=40, memory_mib=300))
LEARN_TOGETHER = replace(
    ENGINE, policy="lookahead", overlap=True, prep_auto=True, drift=True, reuse=True, together=True, gate_known=True
)
ANY_CONFIG = [
    *(
        replace(ENGINE, policy=p)
        for p in ("lookahead", "thief-repeat", "uniform(full,50)", "no-retrain", "optimal", "cached(time)")
    ),
    replace(ENGINE, policy="lookahead", gpus=TWO_GPUS, train_memory_mib=300, job_max_pct=50.0, react_dwell_s=1.0),
    replace(ENGINE, policy="cloud", network=Network(up_mbps=10, down_mbps=10, up_mb=20, down_mb=20)),
    replace(ENGINE, policy="thief", gpus=TWO_GPUS, train_memory_mib=300, slaq="sum", react_dwell_s=1.0),
    *(replace(ENGINE, slaq=objective, react=objective == "sum", slaq_age_s=5.0) for objective in ("sum", "minmax", "finish")),
    *(replace(ENGINE, drift=True, reuse=True, group=group, group_distance=5.0, shadow=group) for group in (False, True)),
    replace(ENGINE, drift=True, reuse=True, group=True, group_distance=5.0, gpus=TWO_GPUS, train_memory_mib=300),
    *(
        replace(ENGINE, policy=p, overlap=True, prep_auto=True, drift=True, reuse=True)
        for p in ("lookahead", "uniform(full,50)")
    ),
    replace(ENGINE, policy="thief", overlap=True, slaq="sum", react_dwell_s=1.0),
    LEARN_TOGETHER,
    replace(LEARN_TOGETHER, look_again=True),
]


@settings(max_examples=200, deadline=None)
@given(st.lists(any_event(), max_size=40), st.sampled_from(ANY_CONFIG))
def test_no_sequence_of_events_breaks_the_engine(bodies: list[dict[str, Any]], config: EngineConfig) -> None:
    """Shares never exceed the capacity, jobs are started once, a stream never serves a model that was not admitted."""
    engine = BoxEngine(config)
    events: list[Event] = [BoxStarted(at_s=0, window=0)]
    for number, body in enumerate(bodies):
        fields = {k: v for k, v in body.items() if k != "cls"}
        events.append(body["cls"](at_s=float(number + 1), **fields))
    started_jobs: set[str] = set()
    for event in events:
        before = {s.id: s.version for s in engine.state.streams.values()}
        for command in engine.handle(event):
            assert decode(encode(command)) == command
            if isinstance(command, SetShares):
                total = sum(share for _, share in command.shares_pct)
                assert total + command.spare_pct == pytest.approx(ENGINE.capacity_pct)
                assert all(share > 0 for _, share in command.shares_pct)
            if isinstance(command, StartLook | StartLabelling | StartProbe | StartProfiling | StartRetraining | StartGate):
                assert command.job not in started_jobs, "a job id is used once"
                started_jobs.add(command.job)
        after = {s.id: s.version for s in engine.state.streams.values()}
        for stream, version in after.items():
            if before.get(stream, version) != version:
                assert isinstance(event, SwapDone | CameraAdded | ModelRolledBack)
