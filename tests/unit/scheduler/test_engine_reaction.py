"""What the engine makes of news between plans: reactive re-planning with its dwell, SLAQ's moves, calibration, pruning."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.codec import decode, encode
from scheduler.commands import (
    Command,
    Note,
    ReportPlan,
    ReportWindow,
    SetShares,
    SetTimer,
    StartGate,
    StartLabelling,
    StartProfiling,
    StartRetraining,
    SwapModel,
)
from scheduler.engine import REACT, WINDOW_END, BoxEngine, EngineConfig
from scheduler.events import (
    BoxStarted,
    CameraAdded,
    CameraHealth,
    EpochDone,
    GateDone,
    LabelDone,
    ProfileDone,
    RetrainDone,
    SwapDone,
    TimerFired,
)
from scheduler.fleet import grants
from scheduler.types import (
    CachedModel,
    EpochReport,
    Gpu,
    KnobProfile,
    Network,
    Observation,
    ProfileTrial,
    RetrainConfig,
    Traits,
)

KNOBS = (KnobProfile(name="full", demand_pct=10, quality_frac=1.0),)
LONG = RetrainConfig(name="long", epochs=10)
SHORT = RetrainConfig(name="short", epochs=4, layers_frac=0.5)
CONFIG = EngineConfig(
    window_s=200, first_window_s=200, prep_pct=40, prep_max_frac=0.5, retrain=(LONG,), label_frames=20, gate_frames=5,
    golden_gpu_s=0.1, cost_margin_frac=0.0, calibrate=False, react_dwell_s=10.0, estimate="static",
)  # fmt: skip


def box(config: EngineConfig = CONFIG, cameras: str = "ab", gain: float = 0.3) -> BoxEngine:
    """A box at t = 20 of window 1, all cameras profiled: `gain` after the longest run, 2 GPU-s an epoch."""
    engine = BoxEngine(config)
    for camera in cameras:
        engine.handle(CameraAdded(at_s=0, stream=camera, knobs=KNOBS, version=f"{camera}-0"))
    engine.handle(BoxStarted(at_s=0, window=1))
    prepare(engine, cameras, window=1, at_s=10.0, gain=gain)
    return engine


def prepare(engine: BoxEngine, cameras: str, *, window: int, at_s: float, gain: float = 0.3) -> list[Command]:
    out: list[Command] = []
    for camera in cameras:
        out += engine.handle(
            LabelDone(
                at_s=at_s, job=f"{camera}/label/{window}", stream=camera, train=12, holdout=8, quality=0.5, gpu_s=8.0
            )  # fmt: skip
        )
    for camera in sorted(cameras):
        trials = tuple(trial(config, gain) for config in engine.config.retrain)
        out += engine.handle(
            ProfileDone(
                at_s=at_s + 10, job=f"{camera}/profile/{window}", stream=camera, trials=trials, n_train=12, gpu_s=8.0
            )  # fmt: skip
        )
    return out


def trial(config: RetrainConfig, gain: float) -> ProfileTrial:
    """A run whose curve rises along 1 - (1/(b0 k + 2) + 0): 0.5 now, 0.5 + gain after the configuration's epochs."""
    b0 = (1 / (0.5 - gain) - 2) / config.epochs
    quality = tuple(1 - 1 / (b0 * k + 2) for k in range(5))
    return ProfileTrial(config=config, quality=quality, init_gpu_s=0.0, gpu_s_per_epoch=2.0, n_profiled=12, n_total=12)


def predicted(config: RetrainConfig, gain: float, epoch: int) -> float:
    return 1 - 1 / ((1 / (0.5 - gain) - 2) / config.epochs * epoch + 2)


def epoch(
    engine: BoxEngine,
    camera: str,
    number: int,
    at_s: float,
    *,
    quality: float | None = None,
    pace: float = 2.0,
    loss: float = 1.0,
) -> list[Command]:
    report = EpochReport(job=f"{camera}/train/1", epoch=number, loss=loss, gpu_s=pace * number, quality=quality)
    return engine.handle(EpochDone(at_s=at_s, stream=camera, report=report))


def plans(commands: list[Command]) -> list[ReportPlan]:
    return [c for c in commands if isinstance(c, ReportPlan)]


def shares(commands: list[Command]) -> dict[str, float]:
    return dict(next(c for c in commands if isinstance(c, SetShares)).shares_pct)


# --- reactive re-planning ---------------------------------------------------------------------------------------------


def test_an_epoch_as_predicted_changes_nothing() -> None:
    engine = box()
    for number in (1, 2, 3):
        assert epoch(engine, "a", number, 30 + number, quality=predicted(LONG, 0.3, number)) == []


def test_quality_that_leaves_the_curve_plans_anew_and_says_why() -> None:
    engine = box()
    made = plans(epoch(engine, "a", 2, 40.0, quality=predicted(LONG, 0.3, 2) + 0.08))
    assert len(made) == 1
    assert made[0].reasons[0].startswith("planned anew: a: quality 0.")
    running = engine.state.streams["a"].running
    assert running is not None
    assert running.option.end_quality > 0.8, "what was measured moves what is believed of the end"


def test_the_same_surprise_counts_once() -> None:
    engine = box()
    assert plans(epoch(engine, "a", 2, 40.0, quality=predicted(LONG, 0.3, 2) - 0.1))
    after = engine.state.streams["a"].running
    assert after is not None
    assert not plans(epoch(engine, "a", 3, 60.0, quality=after.expected.path[3]))


def test_a_pace_that_leaves_the_prediction_plans_anew_with_the_new_cost() -> None:
    engine = box()
    assert not plans(epoch(engine, "a", 1, 40.0, pace=9.0)), "the first epoch holds the job's start"

    def after(number: int, gpu_s: float) -> list[ReportPlan]:
        report = EpochReport(job="a/train/1", epoch=number, loss=1.0, gpu_s=gpu_s)
        return plans(engine.handle(EpochDone(at_s=60.0 + number, stream="a", report=report)))

    assert not after(2, 12.4), "one slow epoch is no pace"
    made = after(3, 15.0)
    assert made[0].reasons[0] == "planned anew: a: an epoch takes 3.00 GPU-s, predicted 2.00"
    running = engine.state.streams["a"].running
    assert running is not None
    assert running.left_gpu_s() == pytest.approx(7 / 10 * 1.5 * 20.0 + 0.5), "and the gate still to come"


@pytest.mark.parametrize(("pace", "reacts"), [(1.5, True), (1.7, False), (2.4, False), (2.6, True)])
def test_the_thresholds_are_configuration(pace: float, reacts: bool) -> None:
    engine = box()
    deaf = box(replace(CONFIG, react=False))
    for number in (1, 2):
        assert not plans(epoch(engine, "a", number, 30.0 + number, pace=pace))
        epoch(deaf, "a", number, 30.0 + number, pace=pace)
    assert bool(plans(epoch(engine, "a", 3, 40.0, pace=pace))) == reacts
    assert not plans(epoch(deaf, "a", 3, 40.0, pace=pace))


def test_news_inside_the_dwell_waits_for_its_end() -> None:
    engine = box()
    commands = epoch(engine, "a", 2, 24.0, quality=0.95)
    assert commands == [SetTimer(timer=REACT, at_s=30.0)]
    assert epoch(engine, "b", 2, 25.0, quality=0.95) == [], "one timer is enough"
    made = plans(engine.handle(TimerFired(at_s=30.0, timer=REACT)))
    assert [r.split(":")[1].strip() for r in made[0].reasons[:2]] == ["a", "b"]
    assert not plans(engine.handle(TimerFired(at_s=40.0, timer=REACT))), "a timer that was served is not served again"


def test_a_completion_meanwhile_serves_the_waiting_news() -> None:
    engine = box()
    epoch(engine, "a", 2, 24.0, quality=0.95)
    finish(engine, "b", at_s=26.0)
    assert not engine.state.reacting
    assert not plans(engine.handle(TimerFired(at_s=30.0, timer=REACT)))


@settings(max_examples=40, deadline=None)
@given(
    news=st.lists(st.tuples(st.sampled_from("ab"), st.floats(0.1, 9.0), st.floats(0.0, 1.0), st.floats(0.2, 20.0)), max_size=9),
    dwell_s=st.sampled_from([5.0, 20.0, 60.0]),
)
def test_plans_never_follow_faster_than_the_dwell(news: list[tuple[str, float, float, float]], dwell_s: float) -> None:
    """Whatever epochs report, shares cannot oscillate: only completions (none here) may plan sooner."""
    engine = box(replace(CONFIG, react_dwell_s=dwell_s))
    at_s, made, timer = 20.0, [20.0], None
    done = {"a": 0, "b": 0}
    for camera, pace, quality, step_s in news:
        at_s += step_s
        if timer is not None and timer <= at_s:
            made += [timer] * len(plans(engine.handle(TimerFired(at_s=timer, timer=REACT))))
            timer = None
        done[camera] += 1
        commands = epoch(engine, camera, done[camera], at_s, quality=quality, pace=pace)
        made += [at_s] * len(plans(commands))
        timer = next((c.at_s for c in commands if isinstance(c, SetTimer)), timer)
    assert all(later - sooner >= dwell_s - 1e-9 for sooner, later in zip(made, made[1:], strict=False))


# --- calibration ------------------------------------------------------------------------------------------------------


def finish(engine: BoxEngine, camera: str, at_s: float, *, serving: float = 0.5, new: float = 0.7, window: int = 1) -> None:
    engine.handle(
        RetrainDone(at_s=at_s, job=f"{camera}/train/{window}", stream=camera, candidate=f"{camera}-{window}", gpu_s=22.0)
    )
    engine.handle(
        GateDone(
            at_s=at_s,
            job=f"{camera}/gate/{window}",
            stream=camera,
            candidate=f"{camera}-{window}",
            serving_quality=serving,
            candidate_quality=new,
            frames=5,
            gpu_s=0.5,
        )  # fmt: skip
    )
    engine.handle(SwapDone(at_s=at_s, stream=camera, version=f"{camera}-{window}"))


def test_what_came_is_kept_as_a_gain_over_the_serving_model() -> None:
    engine = box()
    finish(engine, "a", 60.0, serving=0.4, new=0.55)
    seen = engine.state.streams["a"].observations[0]
    assert (seen.stream, seen.window, seen.option) == ("a", 1, "long")
    assert seen.predicted_quality == pytest.approx(0.8, abs=1e-3)
    assert seen.realised_quality == pytest.approx(0.65), "0.15 better on newer frames, on top of the 0.5 it began at"
    assert (seen.predicted_gpu_s, seen.realised_gpu_s) == (pytest.approx(20.0), 22.0)


def test_a_window_reports_what_came_so_that_a_restart_can_go_on() -> None:
    engine = box()
    finish(engine, "a", 60.0)
    closed = next(c for c in engine.handle(TimerFired(at_s=200.0, timer=WINDOW_END)) if isinstance(c, ReportWindow))
    observed = {s.id: s.observation for s in closed.outcome.streams}
    assert observed == {"a": engine.state.streams["a"].observations[0], "b": None}
    again = BoxEngine(CONFIG)
    kept = tuple(engine.state.streams["a"].observations)
    again.handle(CameraAdded(at_s=0, stream="a", knobs=KNOBS, version="a-1", observations=kept))
    assert again.state.streams["a"].observations == list(kept)


def test_promises_that_were_broken_are_believed_less() -> None:
    def observation(window: int) -> Observation:
        return Observation(
            stream="a", window=window, option="long", start_quality=0.5, predicted_quality=0.8, realised_quality=0.52,
            predicted_gpu_s=20.0, realised_gpu_s=40.0,
        )  # fmt: skip

    def offered(past: int, calibrate: bool) -> tuple[float, float]:
        engine = BoxEngine(replace(CONFIG, calibrate=calibrate))
        seen = tuple(observation(w) for w in range(past))
        engine.handle(CameraAdded(at_s=0, stream="a", knobs=KNOBS, version="a-0", observations=seen))
        engine.handle(BoxStarted(at_s=0, window=past + 1))
        prepare(engine, "a", window=past + 1, at_s=10.0)
        option = engine.state.streams["a"].options[0]
        return option.end_quality, option.cost_gpu_s

    raw, fresh, burnt = offered(8, False), offered(0, True), offered(8, True)
    assert raw[0] > fresh[0] > burnt[0]
    assert raw[0] == pytest.approx(0.8, abs=1e-3)
    assert burnt[0] < 0.6
    assert burnt[1] > 1.5 * raw[1], "it took twice as long as predicted"


# --- pruning ----------------------------------------------------------------------------------------------------------


def test_configurations_that_never_pay_are_no_longer_profiled() -> None:
    waste = [RetrainConfig(name=f"waste{n}", epochs=40 + n, batch=n + 1) for n in range(5)]
    config = replace(CONFIG, retrain=(LONG, SHORT, *waste), prune_every=2, prune_frac=0.2)
    engine = BoxEngine(config)
    engine.handle(CameraAdded(at_s=0, stream="a", knobs=KNOBS, version="a-0"))
    engine.handle(BoxStarted(at_s=0, window=1))
    asked: list[int] = []
    for window in range(1, 8):
        out = prepare(engine, "a", window=window, at_s=200.0 * (window - 1) + 10, gain=0.2)
        asked.append(len(next(c for c in out if isinstance(c, StartProfiling)).configs))
        engine.handle(TimerFired(at_s=200.0 * window, timer=WINDOW_END))
    assert asked[:3] == [7, 7, 6]
    assert asked == sorted(asked, reverse=True)
    assert asked[-1] >= 3
    kept = engine.state.streams["a"].kept
    assert kept is not None
    assert "short" in kept, "the cheapest way to the quality is never dropped"


# --- SLAQ between plans -----------------------------------------------------------------------------------------------


def test_without_slaq_shares_stay_as_planned() -> None:
    engine = box()
    assert epoch(engine, "a", 1, 30.0, loss=1.0) == []


@pytest.mark.parametrize("objective", ["sum", "minmax", "finish"])
def test_a_job_that_only_waits_to_be_handed_over_keeps_its_share(objective: str) -> None:
    """Its last epoch is done, so SLAQ sees no gain in it; without a share it could not end."""
    engine = box(replace(CONFIG, slaq=objective, react=False))  # type: ignore[arg-type]
    for number in range(1, 11):
        epoch(engine, "a", number, 20.0 + number, quality=0.5 + 0.03 * number)
    held = engine.state.streams["a"].train_pct
    assert held > 0
    for number in (1, 2, 3):
        epoch(engine, "b", number, 31.0 + number, quality=0.5 + 0.05 * number)
    assert engine.state.streams["a"].train_pct == held


@pytest.mark.parametrize("objective", ["sum", "minmax", "finish"])
def test_the_training_budget_moves_towards_the_job_that_still_gains(objective: str) -> None:
    engine = box(replace(CONFIG, slaq=objective, react=False, quantum_pct=5), cameras="ab")  # type: ignore[arg-type]
    before = {id: s.train_pct for id, s in engine.state.streams.items()}
    assert all(pct > 0 for pct in before.values()), "both retrain"
    at_s, last = 20.0, before
    # a has converged (its quality no longer moves), b still rises
    for number in (1, 2, 3, 4):
        at_s += 6
        for camera, quality in (("a", 0.8), ("b", 0.5 + 0.06 * number)):
            for command in epoch(engine, camera, number, at_s, quality=quality):
                assert isinstance(command, SetShares)
        last = {id: s.train_pct for id, s in engine.state.streams.items()}
        assert sum(last.values()) == sum(before.values()), "the plan's budget is moved, not changed"
    assert last["b"] > before["b"] or last["a"] < before["a"]
    assert min(last.values()) > 0


def test_a_restored_box_moves_the_budget_the_same_way() -> None:
    """The cache of fits is not part of the state: it must not matter."""
    config = replace(CONFIG, slaq="sum", react=False)
    engine = box(config)
    script = [("a", 1, 26.0, 0.6), ("b", 1, 27.0, 0.55), ("a", 2, 32.0, 0.65), ("b", 2, 33.0, 0.62), ("a", 3, 38.0, 0.66)]
    for camera, number, at_s, quality in script[:3]:
        epoch(engine, camera, number, at_s, quality=quality)
    checkpoint = decode(encode(engine.checkpoint()))
    restored = BoxEngine(checkpoint.config, checkpoint.state)
    for camera, number, at_s, quality in script[3:]:
        assert epoch(engine, camera, number, at_s, quality=quality) == epoch(restored, camera, number, at_s, quality=quality)


def test_only_one_job_has_nobody_to_trade_with() -> None:
    engine = box(replace(CONFIG, slaq="sum", react=False), cameras="a")
    assert [epoch(engine, "a", n, 20.0 + 5 * n, quality=0.5 + 0.05 * n) for n in (1, 2, 3)] == [[], [], []]


# --- models of earlier windows ----------------------------------------------------------------------------------------

LOOKS = {"day": Traits(class_frac=(1.0, 0.0)), "night": Traits(class_frac=(0.0, 1.0))}
KEPT = (CachedModel(name="a-7", traits=LOOKS["night"]), CachedModel(name="a-3", traits=LOOKS["day"]))


def labelled(engine: BoxEngine, looks: str, *, window: int = 1, at_s: float = 10.0) -> list[Command]:
    return engine.handle(
        LabelDone(
            at_s=at_s, job=f"a/label/{window}", stream="a", train=12, holdout=8, quality=0.5, gpu_s=8.0, traits=LOOKS[looks]
        )  # fmt: skip
    )


def cached_box(version: str = "a-0", **changes: object) -> BoxEngine:
    engine = BoxEngine(replace(CONFIG, policy="cached(classes)", **changes))  # type: ignore[arg-type]
    engine.handle(CameraAdded(at_s=0, stream="a", knobs=KNOBS, version=version, cached=KEPT))
    engine.handle(BoxStarted(at_s=0, window=1))
    return engine


def test_cached_serves_the_model_whose_window_looked_alike_and_trains_nothing() -> None:
    engine = cached_box()
    commands = labelled(engine, "day")
    swap = next(c for c in commands if isinstance(c, SwapModel))
    assert (swap.stream, swap.version, swap.quality, swap.cause, swap.shadow) == ("a", "a-3", None, "chosen", False)
    assert not [c for c in commands if isinstance(c, StartProfiling | StartRetraining)]
    engine.handle(SwapDone(at_s=11, stream="a", version="a-3"))
    stream = engine.state.streams["a"]
    assert (stream.version, stream.quality) == ("a-3", None), "nobody has measured it on this window"
    assert [m.name for m in stream.cached] == ["a-7", "a-3"]


def test_cached_leaves_what_serves_already() -> None:
    assert not [c for c in labelled(cached_box("a-7"), "night") if isinstance(c, SwapModel)]


def test_a_window_can_leave_a_model_that_only_later_ones_choose() -> None:
    engine = cached_box(leave_models=True)
    start = next(c for c in labelled(engine, "day") if isinstance(c, StartRetraining))
    assert (start.remote_s, start.config.name) == (0.0, "long")
    assert engine.handle(RetrainDone(at_s=12, job=start.job, stream="a", candidate="a-9", gpu_s=0.0)) == []
    assert [m.name for m in engine.state.streams["a"].cached] == ["a-9", "a-7", "a-3"]
    engine.handle(SwapDone(at_s=13, stream="a", version="a-3"))
    engine.handle(TimerFired(at_s=200, timer=WINDOW_END))
    later = labelled(engine, "day", window=2, at_s=210)
    assert [c.version for c in later if isinstance(c, SwapModel)] == ["a-9"]


def test_what_a_window_leaves_is_not_chosen_in_it_where_a_second_plan_is_made() -> None:
    """The label that matches comes with the model that the camera itself has just left."""
    engine = BoxEngine(replace(CONFIG, policy="cached(time)", leave_models=True))
    kept = {"a": (), "b": (CachedModel(name="b-3", traits=Traits(daypart="night")),)}
    for camera, models in kept.items():
        engine.handle(CameraAdded(at_s=0, stream=camera, knobs=KNOBS, version=f"{camera}-0", cached=models))
    commands = engine.handle(BoxStarted(at_s=0, window=1))
    for camera in kept:
        job = f"{camera}/label/1"
        commands = engine.handle(
            LabelDone(
                at_s=10, job=job, stream=camera, train=12, holdout=8, quality=0.5, gpu_s=8.0, traits=Traits(daypart="night")
            )  # fmt: skip
        )
    jobs = {c.stream: c.job for c in commands if isinstance(c, StartRetraining)}
    assert [c.version for c in commands if isinstance(c, SwapModel)] == ["b-3"]
    assert set(jobs) == {"a", "b"}
    engine.handle(RetrainDone(at_s=12, job=jobs["a"], stream="a", candidate="a-1", gpu_s=0.0))
    again = engine.handle(SwapDone(at_s=13, stream="b", version="b-3"))
    assert plans(again), "a second plan"
    assert not [c for c in again if isinstance(c, SwapModel)]


# --- a cloud ----------------------------------------------------------------------------------------------------------


def test_a_cloud_does_the_learning_and_its_model_comes_after_the_transfers() -> None:
    link = Network(up_mbps=10.0, down_mbps=20.0, up_mb=300.0, down_mb=400.0)
    engine = BoxEngine(replace(CONFIG, policy="cloud", network=link))
    engine.handle(CameraAdded(at_s=0, stream="a", knobs=KNOBS, version="a-0"))
    assert next(c for c in engine.handle(BoxStarted(at_s=0, window=1)) if isinstance(c, StartLabelling)).remote
    commands = prepare(engine, "a", window=1, at_s=1.0)
    start = next(c for c in commands if isinstance(c, StartRetraining))
    assert start.remote_s == pytest.approx(300 / 10 + 400 / 20)
    assert shares(commands[commands.index(start) - 1 :])["a/infer"] == 100
    gate = next(
        c
        for c in engine.handle(RetrainDone(at_s=60, job=start.job, stream="a", candidate="a-1", gpu_s=0.0))
        if isinstance(c, StartGate)
    )
    assert gate.remote


# --- several devices --------------------------------------------------------------------------------------------------

TWO = (Gpu(id="0", capacity_pct=50, memory_mib=1000), Gpu(id="1", capacity_pct=50, memory_mib=1000))


def test_plans_name_the_devices_and_respect_their_memory() -> None:
    engine = box(replace(CONFIG, gpus=TWO, train_memory_mib=900.0))
    plan = grants.whole(*engine._decide(180.0))
    trained = [p for p in plan.placement if p.kind == "train"]
    assert {p.stream for p in trained} == {"a", "b"}
    assert {p.gpu for p in trained} == {"0", "1"}, "two training jobs of 900 MiB never share 1000 MiB"
    too_big = box(replace(CONFIG, gpus=TWO, train_memory_mib=1100.0))
    assert all(s.running is None for s in too_big.state.streams.values())


def test_retrainings_that_no_longer_fit_are_given_up_and_the_box_goes_on() -> None:
    engine = box(replace(CONFIG, gpus=TWO, train_memory_mib=900.0))
    smaller = tuple(replace(gpu, memory_mib=500) for gpu in TWO)
    engine.config = replace(engine.config, gpus=smaller)
    commands = engine.handle(CameraHealth(at_s=40, stream="b", live=False))
    assert plans(commands)
    assert "no-room" in [c.code for c in commands if isinstance(c, Note)]
    assert engine.state.streams["a"].running is None


def test_a_reason_that_no_plan_took_up_does_not_reach_the_next_window() -> None:
    engine = box()
    late = replace(engine.config, react_dwell_s=500.0)
    engine.config = late
    epoch(engine, "a", 2, 40.0, quality=0.95)
    engine.handle(TimerFired(at_s=200.0, timer=WINDOW_END))
    commands = prepare(engine, "ab", window=2, at_s=210.0)
    assert not [r for p in plans(commands) for r in p.reasons if r.startswith("planned anew")]
