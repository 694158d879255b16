"""Families that were not tried borrow (`EngineConfig.profile_lend`): on offer, carried out, learnt from, never pruned for nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from scheduler.commands import Command, StartGate, StartProfiling, StartRetraining
from scheduler.ekya.microprofile import LENT_SD, families
from scheduler.engine import WINDOW_END, BoxEngine, EngineConfig
from scheduler.events import BoxStarted, CameraAdded, EpochDone, GateDone, LabelDone, ProfileDone, RetrainDone, TimerFired
from scheduler.types import EpochReport, KnobProfile, ProfileTrial, RetrainConfig

KNOBS = (KnobProfile(name="full", demand_pct=10, quality_frac=1.0),)
HEAD = RetrainConfig(name="head", epochs=10, layers_frac=0.05)
HALF_DATA = replace(HEAD, name="head-half", data_frac=0.5)
WHOLE = replace(HEAD, name="whole", layers_frac=1.0, epochs=5)
LIST = (HEAD, HALF_DATA, WHOLE)
CONFIG = EngineConfig(
    window_s=200, first_window_s=200, prep_pct=40, prep_max_frac=0.5, retrain=LIST, label_frames=20, gate_frames=5,
    golden_gpu_s=0.1, cost_margin_frac=0.0, calibrate=False, estimate="static", profile_lend=True,
)  # fmt: skip


def trial(config: RetrainConfig, end: float = 0.8) -> ProfileTrial:
    """Rises along 1 - 1/(b0 k + 2), from 0.5 to `end` after ten epochs; 1 GPU-s an epoch."""
    b0 = (1 / (1 - end) - 2) / 10
    quality = tuple(1 - 1 / (b0 * k + 2) for k in range(5))
    return ProfileTrial(config=config, quality=quality, init_gpu_s=0.0, gpu_s_per_epoch=1.0, n_profiled=12, n_total=12)


def after_five(b0: float) -> float:
    """What a trial of four epochs is believed of the fifth: half of the step that its curve promises."""
    four, five = (1 - 1 / (b0 * k + 2) for k in (4, 5))
    return (four + five) / 2


def started(config: EngineConfig = CONFIG) -> BoxEngine:
    engine = BoxEngine(config)
    engine.handle(CameraAdded(at_s=0, stream="a", knobs=KNOBS, version="a-0"))
    engine.handle(BoxStarted(at_s=0, window=1))
    return engine


def window(engine: BoxEngine, trials: Sequence[ProfileTrial], number: int = 1, *, lend: bool = True) -> list[Command]:
    """Labels and profile of a window: all commands that they lead to. lend: those that were tried speak for the others."""
    at_s = 200.0 * (number - 1) + 10
    out = engine.handle(LabelDone(at_s=at_s, job=f"a/label/{number}", stream="a", train=12, holdout=8, quality=0.5, gpu_s=8.0))
    return out + engine.handle(
        ProfileDone(
            at_s=at_s + 10, job=f"a/profile/{number}", stream="a", trials=tuple(trials), n_train=12, gpu_s=8.0, lend=lend
        )
    )


def offered(engine: BoxEngine) -> dict[str, tuple[float, float]]:
    return {o.name: (o.end_quality, o.quality_sd) for o in engine.state.streams["a"].options}


def test_all_families_are_named_and_the_job_is_told_that_it_may_leave_some_out() -> None:
    """Which ones the model's features can be kept for, the engine does not know."""
    for lend in (True, False):
        out = window(started(replace(CONFIG, profile_lend=lend)), [trial(HEAD)])
        (asked,) = [c for c in out if isinstance(c, StartProfiling)]
        assert asked.lend is lend
        assert asked.configs == families(LIST)


def test_what_was_not_tried_is_on_offer_only_where_it_may_borrow() -> None:
    """A family whose trial was cut short, of a model that keeps nothing, does not borrow: nobody has looked at what that is worth."""
    plain, lends = started(), started()
    for engine, lend in ((plain, False), (lends, True)):
        window(engine, [trial(HEAD), trial(HALF_DATA, end=0.7)], lend=lend)
    assert set(offered(plain)) == {"head", "head-half"}
    assert set(offered(lends)) == {"head", "head-half", "whole"}
    assert {name: offered(lends)[name][1] for name in offered(plain)} == {name: sd for name, (_, sd) in offered(plain).items()}
    assert offered(lends)["whole"][0] == pytest.approx(after_five(0.3), abs=1e-3), "the head's, after 5 epochs"
    assert offered(lends)["whole"][1] >= LENT_SD


def test_of_an_answer_that_lends_to_nobody_every_family_is_on_offer_by_its_own_trial() -> None:
    engine = started()
    window(engine, [trial(HEAD), trial(HALF_DATA, end=0.7), trial(WHOLE, end=0.9)])
    assert offered(engine)["whole"][0] == pytest.approx(after_five(0.8), abs=1e-3)
    assert [o.name for o in engine.state.streams["a"].raw] == [c.name for c in LIST]


def carried_out(engine: BoxEngine, trials: Sequence[ProfileTrial]) -> StartRetraining:
    (command,) = [c for c in window(engine, trials) if isinstance(c, StartRetraining)]
    return command


def test_a_lent_family_is_carried_out_watched_and_learnt_from() -> None:
    """It is the only one that is listed besides a head that gains nothing in its few epochs."""
    short = replace(HEAD, name="short", epochs=1, layers_frac=0.05)
    engine = started(replace(CONFIG, retrain=(short, WHOLE)))
    command = carried_out(engine, [trial(short)])
    assert command.config == WHOLE
    running = engine.state.streams["a"].running
    assert running is not None
    assert running.expected.path == pytest.approx([*trial(short).quality, after_five(0.3)], abs=1e-3)
    assert running.expected.epoch_gpu_s == pytest.approx(3.0 / 1.1), "an epoch of all layers, by what one of the head costs"
    for epoch in range(1, 6):
        report = EpochReport(job=command.job, epoch=epoch, loss=1.0, gpu_s=2.7 * epoch)
        engine.handle(EpochDone(at_s=30.0 + epoch, stream="a", report=report))
    out = engine.handle(RetrainDone(at_s=40, job=command.job, stream="a", candidate="a-1", gpu_s=13.5))
    (gate,) = [c for c in out if isinstance(c, StartGate)]
    engine.handle(
        GateDone(
            at_s=50, job=gate.job, stream="a", candidate="a-1", serving_quality=0.5, candidate_quality=0.7, frames=40, gpu_s=1.0,
        )
    )  # fmt: skip
    engine.handle(TimerFired(at_s=200.0, timer=WINDOW_END))
    (seen,) = engine.state.streams["a"].observations
    assert seen.option == "whole"
    assert seen.predicted_quality == pytest.approx(after_five(0.3), abs=1e-3)


@pytest.mark.parametrize(("end", "calibrate"), [(0.6, False), (0.9, True)])
def test_families_that_were_not_tried_are_never_pruned(end: float, calibrate: bool) -> None:
    """They end where their lender does and cost more, which would look like waste; but to keep them costs nothing."""
    waste = tuple(replace(WHOLE, name=f"waste{n}", batch=n + 20) for n in range(4))
    engine = started(replace(CONFIG, retrain=(*LIST, *waste), prune_every=1, prune_frac=0.5, calibrate=calibrate))
    for number in range(1, 5):
        window(engine, [trial(HEAD, end), trial(HALF_DATA, end - 0.04)], number)
        engine.handle(TimerFired(at_s=200.0 * number, timer=WINDOW_END))
    kept = engine.state.streams["a"].kept
    assert kept is not None
    assert {"whole", *(c.name for c in waste)} <= set(kept)


def test_without_any_trial_nothing_is_on_offer() -> None:
    engine = started()
    out = window(engine, [])
    assert not [c for c in out if isinstance(c, StartRetraining)]
    assert offered(engine) == {}
