"""What the engine believes against what it measured: the serving model, the hold-out's experience, families, surprises."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler.ekya.calibration import present
from scheduler.engine import BoxEngine, EngineConfig
from scheduler.engine_state import Running
from scheduler.events import BoxStarted, CameraAdded, GateDone, LabelDone, ProfileDone, RetrainDone
from scheduler.react import left_prediction, refit
from scheduler.types import KnobProfile, Observation, ProfileTrial, RetrainConfig, RetrainOption

KNOBS = (KnobProfile(name="full", demand_pct=10, quality_frac=1.0),)
LONG = RetrainConfig(name="long", epochs=10)
SHORT = RetrainConfig(name="short", epochs=4)  # of the same family
CONFIG = EngineConfig(
    window_s=200, first_window_s=200, prep_pct=40, prep_max_frac=0.5, retrain=(LONG, SHORT), label_frames=20, gate_frames=5,
    golden_gpu_s=0.1, cost_margin_frac=0.0, estimate="static",
)  # fmt: skip


def seen(window: int, *, option: str = "long", start: float = 0.9, gain: float = 0.0, true: float = 0.8) -> Observation:
    return Observation(
        stream="elsewhere", window=window, option=option, start_quality=start, predicted_quality=start + 0.1,
        realised_quality=start + gain, predicted_gpu_s=20.0, realised_gpu_s=20.0, serving_quality=true,
    )  # fmt: skip


def box(config: EngineConfig, *, labelled: float = 0.9, promised: float = 0.97) -> BoxEngine:
    """One camera, labelled and profiled (one point a trial), in window 1."""
    engine = BoxEngine(config)
    engine.handle(CameraAdded(at_s=0, stream="a", knobs=KNOBS, version="a-0"))
    engine.handle(BoxStarted(at_s=0, window=1))
    engine.handle(LabelDone(at_s=5, job="a/label/1", stream="a", train=12, holdout=8, quality=labelled, gpu_s=8.0))
    trials = (ProfileTrial(config=LONG, quality=(promised,), init_gpu_s=0.0, gpu_s_per_epoch=2.0, n_profiled=12, n_total=12),)
    engine.handle(ProfileDone(at_s=10, job="a/profile/1", stream="a", trials=trials, n_train=12, gpu_s=8.0))
    return engine


FLATTERING = tuple(seen(w, start=0.7 + 0.1 * (w % 3), true=0.72 + 0.03 * (w % 3)) for w in range(-20, 0))


def test_labels_that_flatter_are_not_taken_at_their_word() -> None:
    camera = box(replace(CONFIG, hold_out=FLATTERING)).state.streams["a"]
    assert camera.measured == 0.9
    assert camera.quality == present(0.9, stream="a", history=FLATTERING)
    assert camera.quality is not None
    assert camera.quality < 0.82
    assert box(replace(CONFIG, hold_out=FLATTERING, calibrate=False)).state.streams["a"].quality == 0.9


def test_the_hold_out_decides_what_a_new_box_offers() -> None:
    useless = tuple(seen(w, gain=-0.05, true=0.9) for w in range(-20, 0))
    useful = tuple(seen(w, gain=0.08, true=0.9) for w in range(-20, 0))
    assert not box(replace(CONFIG, hold_out=useless)).state.streams["a"].options
    assert {o.name for o in box(replace(CONFIG, hold_out=useful)).state.streams["a"].options} == {"long", "short"}


def test_a_family_shares_what_was_learnt() -> None:
    alone = replace(SHORT, lr=1e-2)
    useful = tuple(seen(w, gain=0.08, true=0.9) for w in range(-20, 0))
    kin = next(o for o in box(replace(CONFIG, hold_out=useful)).state.streams["a"].options if o.name == "short")
    config = replace(CONFIG, retrain=(LONG, alone), hold_out=useful)
    engine = BoxEngine(config)
    engine.handle(CameraAdded(at_s=0, stream="a", knobs=KNOBS, version="a-0"))
    engine.handle(BoxStarted(at_s=0, window=1))
    engine.handle(LabelDone(at_s=5, job="a/label/1", stream="a", train=12, holdout=8, quality=0.9, gpu_s=8.0))
    runs = tuple(
        ProfileTrial(config=c, quality=(0.97,), init_gpu_s=0.0, gpu_s_per_epoch=2.0, n_profiled=12, n_total=12)
        for c in (LONG, alone)
    )
    engine.handle(ProfileDone(at_s=10, job="a/profile/1", stream="a", trials=runs, n_train=12, gpu_s=8.0))
    stranger = next(o for o in engine.state.streams["a"].options if o.name == "short")
    assert kin.end_quality > stranger.end_quality
    assert kin.quality_sd < stranger.quality_sd


def test_what_came_is_kept_against_what_was_measured() -> None:
    worth_it = tuple(replace(o, realised_quality=o.start_quality + 0.1) for o in FLATTERING)
    engine = box(replace(CONFIG, hold_out=worth_it))
    job = engine.state.streams["a"].running
    assert job is not None
    assert (job.start_quality, job.lift) == (0.9, pytest.approx(present(0.9, stream="a", history=FLATTERING) - 0.9))
    engine.handle(RetrainDone(at_s=60, job="a/train/1", stream="a", candidate="a-1", gpu_s=22.0))
    engine.handle(
        GateDone(
            at_s=61,
            job="a/gate/1",
            stream="a",
            candidate="a-1",
            serving_quality=0.78,
            candidate_quality=0.95,
            frames=5,
            gpu_s=0.5,
        )
    )
    (what,) = engine.state.streams["a"].observations
    assert (what.start_quality, what.serving_quality) == (0.9, 0.78)
    assert what.realised_quality == pytest.approx(0.9 + 0.17), "a gain, not clipped by a start that was too high"


def running(sd: float, lift: float = 0.0) -> Running:
    option = RetrainOption(name="long", end_quality=0.8 + lift, cost_gpu_s=20.0, quality_sd=sd)
    job = Running(job="a/train/1", config=LONG, option=option, start_quality=0.6, lift=lift, epoch=2)
    job.qualities.extend([(1, 0.6), (2, 0.6)])
    return job


def test_no_surprise_within_two_sds() -> None:
    config = replace(CONFIG, react_quality=0.05)
    assert left_prediction(running(0.0), config)
    assert left_prediction(running(0.09), config)
    assert not left_prediction(running(0.11), config)


def test_reports_are_read_on_their_own_scale() -> None:
    flat = running(0.0, lift=-0.1)
    refit(flat)
    assert flat.option.end_quality == pytest.approx(0.5, abs=0.01)
    assert "promises 0.500" in left_prediction(running(0.0, lift=-0.1), CONFIG)
