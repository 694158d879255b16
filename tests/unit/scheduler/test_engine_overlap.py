"""Retrainings that begin beside the preparation of other cameras: what changes, what must not, and what it is worth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from scheduler.commands import ReportPlan, SetShares, StartLabelling, StartProfiling, StartRetraining
from scheduler.engine import BoxEngine, EngineConfig
from scheduler.events import BoxStarted, CameraAdded, CameraRemoved, JobFailed, LabelDone, ProfileDone, TimerFired
from scheduler.types import Gpu, KnobProfile, ProfileTrial, RetrainConfig
from tests.support.learning_world import LearningWorld, Ran, run

CONFIG = RetrainConfig(name="full", epochs=4)
KNOBS = (KnobProfile(name="full", demand_pct=20, quality_frac=1.0), KnobProfile(name="half", demand_pct=10, quality_frac=0.8))
ENGINE = EngineConfig(
    window_s=100, first_window_s=100, prep_pct=40, prep_max_frac=0.8, retrain=(CONFIG,), label_frames=20, gate_frames=5,
    golden_gpu_s=0.1, cost_margin_frac=0.0, overlap=True, prep_auto=True, policy="lookahead",
)  # fmt: skip


def begun(config: EngineConfig = ENGINE, qualities: tuple[float, ...] = (0.5, 0.4)) -> tuple[BoxEngine, list[object]]:
    engine = BoxEngine(config)
    for camera, quality in zip("abcd", qualities, strict=False):
        engine.handle(CameraAdded(at_s=0, stream=camera, knobs=KNOBS, version=f"{camera}-0", quality=quality))
    return engine, list(engine.handle(BoxStarted(at_s=0, window=1)))


def label(engine: BoxEngine, camera: str, at_s: float) -> list[object]:
    done = LabelDone(
        at_s=at_s, job=f"{camera}/label/1", stream=camera, train=12, holdout=8, quality=0.5, gpu_s=2.0, golden_gpu_s=0.1
    )
    return list(engine.handle(done))


def profile(engine: BoxEngine, camera: str, at_s: float, gain: float = 0.1) -> list[object]:
    trial = ProfileTrial(
        config=CONFIG, quality=tuple(0.5 + gain * k for k in range(4)), init_gpu_s=0.5, gpu_s_per_epoch=1.0, n_profiled=12, n_total=12
    )  # fmt: skip
    done = ProfileDone(at_s=at_s, job=f"{camera}/profile/1", stream=camera, trials=(trial,), n_train=12, gpu_s=3.0)
    return list(engine.handle(done))


def of(kind: type, commands: Sequence[object]) -> list[object]:
    return [c for c in commands if isinstance(c, kind)]


def shares(commands: Sequence[object]) -> dict[str, float]:
    return dict(of(SetShares, commands)[-1].shares_pct)  # type: ignore[attr-defined]


def test_the_camera_that_promises_most_goes_first_and_goes_on_to_its_profile() -> None:
    """b is worse (and both never learned): its labels come first, and its profile before a's labels."""
    engine, commands = begun()
    assert [c.stream for c in of(StartLabelling, commands)] == ["b"]  # type: ignore[attr-defined]
    after = label(engine, "b", 5)
    assert [c.stream for c in of(StartProfiling, after)] == ["b"]  # type: ignore[attr-defined]
    assert not of(StartLabelling, after)


def test_its_retraining_begins_before_the_other_is_labelled_and_has_the_share_of_what_learns() -> None:
    engine, _ = begun()
    label(engine, "b", 5)
    commands = profile(engine, "b", 8)
    assert [c.stream for c in of(StartLabelling, commands)] == ["a"]  # type: ignore[attr-defined]
    assert [c.stream for c in of(StartRetraining, commands)] == ["b"]  # type: ignore[attr-defined]
    given = shares(commands)
    assert given["b/train/1"] > given["a/label/1"]
    assert sum(given.values()) <= 100


def test_a_retraining_has_all_of_the_share_of_what_learns_because_others_wait_behind_it() -> None:
    """The plan alone would train slowly, where that costs inference nothing; b is to be through before a's turn."""
    engine, _ = begun()
    label(engine, "b", 5)
    before_pct = engine.state.prep_pct
    plan = of(ReportPlan, profile(engine, "b", 8))[-1].plan  # type: ignore[attr-defined]
    assert sum(s.train_pct for s in plan.streams) >= int(before_pct) > 0
    assert sum(s.infer_pct + s.train_pct for s in plan.streams) + plan.spare_pct == 100


def test_a_turn_that_would_not_end_in_the_window_is_not_begun() -> None:
    """b's retraining took until shortly before the end: labels for a would be of no use any more."""
    engine, _ = begun()
    label(engine, "b", 5)
    profile(engine, "b", 8)
    assert engine.state.active is not None  # a's labels wait for b
    engine, _ = begun()
    label(engine, "b", 98)
    commands = profile(engine, "b", 99)
    assert not of(StartLabelling, commands)
    assert "no time" in engine.state.streams["a"].remark


def test_preparation_has_its_share_again_when_nothing_is_retrained() -> None:
    engine, _ = begun()
    label(engine, "b", 5)
    profile(engine, "b", 8)
    failed = JobFailed(at_s=10, job="b/train/1", stream="b", code="exception", text="no")
    commands = list(engine.handle(failed))
    given = shares(commands)
    assert given["a/label/1"] >= engine.state.prep_pct > 0
    plan = of(ReportPlan, commands)[-1].plan  # type: ignore[attr-defined]
    assert sum(s.infer_pct + s.train_pct for s in plan.streams) + plan.spare_pct == 100 - int(engine.state.prep_pct)


def test_a_wait_for_a_retraining_is_no_slow_machine() -> None:
    """The label of a took 30 s because b had the share; the box must not believe that it delivers a third."""
    engine, _ = begun()
    label(engine, "b", 5)
    before = engine.state.delivered_frac
    profile(engine, "b", 8)
    assert engine.state.active is not None
    promised = engine.state.active.share_pct
    label(engine, "a", 38)
    assert promised < 100
    assert engine.state.delivered_frac >= min(before, 0.5)


def test_what_to_expect_is_said_by_the_last_plan_of_preparation() -> None:
    """The first plan knows one camera's options only: what it predicts is not held against the window."""
    engine, _ = begun()
    label(engine, "b", 5)
    profile(engine, "b", 8)
    early = engine.state.predicted
    assert not engine.state.foretold
    label(engine, "a", 12)
    profile(engine, "a", 15)
    assert engine.state.foretold
    assert engine.state.planned_s == 15
    assert early is not None
    assert engine.state.predicted is not None


def test_the_deadline_ends_what_is_left_of_preparation() -> None:
    engine, _ = begun()
    label(engine, "b", 5)
    profile(engine, "b", 8)
    commands = list(engine.handle(TimerFired(at_s=80, timer="prep-deadline")))
    assert not engine.state.prepares
    assert engine.state.active is None
    assert of(ReportPlan, commands)
    assert "a/label/1" not in shares(commands)


def test_a_camera_that_leaves_while_it_is_labelled_leaves_no_gap() -> None:
    engine, _ = begun(qualities=(0.5, 0.4, 0.45))
    label(engine, "b", 5)
    profile(engine, "b", 8)
    assert engine.state.active is not None
    gone = engine.state.active.stream
    commands = list(engine.handle(CameraRemoved(at_s=9, stream=gone)))
    assert engine.state.active is not None
    assert engine.state.active.stream != gone
    assert f"{gone}/label/1" not in shares(commands)


@pytest.mark.parametrize("change", [{"group": True}, {"gpus": (Gpu(id="0", capacity_pct=100), Gpu(id="1", capacity_pct=100))}])
def test_where_all_must_wait_for_all_they_do(change: dict[str, object]) -> None:
    config = replace(ENGINE, **change)  # type: ignore[arg-type]
    assert not config.overlaps
    engine, _ = begun(config)
    label(engine, "a", 5)
    label(engine, "b", 6)
    assert not of(StartRetraining, profile(engine, "a", 9) if engine.state.active.stream == "a" else profile(engine, "b", 9))  # type: ignore[union-attr]


# --- over windows ---------------------------------------------------------------------------------------------------------


def lived(overlap: bool) -> Ran:
    """Four cameras that all gain, on a device that is short; labels are cheap enough for all to be retrained either way."""
    world = LearningWorld()
    return run(
        world, windows=4, cameras=("a", "b", "c", "d"), overlap=overlap, drift=False, reuse=False, policy="lookahead",
        label_frames=20, prep_max_frac=0.8,
    )  # fmt: skip


def test_the_first_model_is_there_before_the_last_labels_and_nobody_is_left_out() -> None:
    apart, beside = lived(False), lived(True)
    assert {c.stream for c in beside.of(StartRetraining)} == {c.stream for c in apart.of(StartRetraining)} == set("abcd")
    for ran, beside_labels in ((apart, False), (beside, True)):
        order = [(type(c).__name__, getattr(c, "window", None)) for c in ran.world.done]
        last_labels = max(i for i, what in enumerate(order) if what == ("StartLabelling", 0))
        assert (order.index(("StartRetraining", 0)) < last_labels) == beside_labels


@pytest.mark.parametrize("try_little", [False, True])
@pytest.mark.parametrize("window_s", [14.0, 20.0])
def test_a_device_that_is_short_of_everything_still_teaches_somebody(window_s: float, try_little: bool) -> None:
    """A turn takes 7.4 GPU-s of a window of 14 or 20 and there are four cameras: an even part of the labels for everybody left nothing
    to retrain with. Now one camera after the other learns."""
    ran = run(
        LearningWorld(), windows=3, cameras=("a", "b", "c", "d"), overlap=True, prep_auto=True, drift=False, reuse=False,
        policy="lookahead", label_frames=20, window_s=window_s, first_window_s=window_s, try_little=try_little,
    )  # fmt: skip
    assert ran.swaps()
    if window_s == 20.0:
        assert len({swap.stream for swap in ran.swaps()}) >= 3
