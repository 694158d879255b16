"""Inference beside preparation is divided as plans divide it, and what few frames say of a model is weighed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler import belief
from scheduler.commands import ReportPlan, SetKnobs, SetShares
from scheduler.engine import BoxEngine, EngineConfig
from scheduler.engine_state import BoxState, StreamState
from scheduler.events import BoxStarted, CameraAdded, GateDone, SharesOrdered
from scheduler.types import Gpu, KnobProfile
from tests.support.learning_world import LearningWorld, run
from tests.unit.scheduler.test_engine_overlap import ENGINE, KNOBS, label, of, profile, shares

DIVIDED = replace(ENGINE, divide_prep=True, prep_auto=False)
#: Loses nothing at 2 % of the device; loses all in proportion.
FLAT = (KnobProfile(name="every", demand_pct=40, quality_frac=1.0), KnobProfile(name="1/20", demand_pct=2, quality_frac=1.0))
STEEP = (KnobProfile(name="every", demand_pct=50, quality_frac=1.0), KnobProfile(name="1/5", demand_pct=10, quality_frac=0.2))


def opened(
    config: EngineConfig, cameras: tuple[Any, ...] = (("flat", FLAT), ("steep", STEEP)), **events: Any
) -> tuple[BoxEngine, list[object]]:
    engine = BoxEngine(config)
    for camera, knobs in cameras:
        engine.handle(CameraAdded(at_s=0, stream=camera, knobs=knobs, version=f"{camera}-0", quality=0.8, customer=camera))
    if events:
        engine.handle(SharesOrdered(at_s=0, **events))
    return engine, list(engine.handle(BoxStarted(at_s=0, window=1)))


def test_what_one_camera_does_not_need_the_other_has_before_the_first_plan() -> None:
    """40 % prepare. Of 60 % evenly each has 30, which is too little for the steep one's better knobs."""
    engine, commands = opened(DIVIDED)
    assert not of(ReportPlan, commands)
    assert shares(commands)["steep/infer"] == 50
    assert 2 <= shares(commands)["flat/infer"] <= 10
    assert {c.stream: c.knobs for c in of(SetKnobs, commands)} == {"flat": "1/20", "steep": "every"}  # type: ignore[attr-defined]
    _, evenly = opened(replace(DIVIDED, divide_prep=False))
    assert {c.stream: c.knobs for c in of(SetKnobs, evenly)} == {"flat": "1/20", "steep": "1/5"}  # type: ignore[attr-defined]


def test_preparation_has_its_share_and_no_more_than_there_is_is_given() -> None:
    engine, commands = opened(DIVIDED)
    job = engine.state.active.job  # type: ignore[union-attr]
    assert shares(commands)[job] >= 40
    for _ in range(2):
        assert sum(shares(commands).values()) <= 100 + 1e-9
        commands = label(engine, engine.state.active.stream, 5)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "config",
    [
        replace(DIVIDED, overlap=False),
        replace(DIVIDED, gpus=(Gpu(id="g", capacity_pct=100),)),
        replace(DIVIDED, policy="uniform(full,50)"),
    ],
)
def test_boxes_that_plan_otherwise_split_evenly_as_before(config: EngineConfig) -> None:
    assert of(SetShares, opened(config)[1]) == of(SetShares, opened(replace(config, divide_prep=False))[1])


def test_each_customer_keeps_its_part() -> None:
    """Of the 60 % that inference has, `north` is sure of 48 and `south` of 12; one box for all would give one of them 50."""
    _, commands = opened(DIVIDED, cameras=(("north", STEEP), ("south", STEEP)), shares_pct=(("north", 80.0), ("south", 20.0)))
    assert shares(commands)["south/infer"] >= 10
    assert shares(commands)["north/infer"] <= 50


def test_a_plan_takes_over_and_what_it_gives_is_given() -> None:
    engine, _ = opened(replace(DIVIDED, prep_pct=30))
    first = engine.state.active.stream  # type: ignore[union-attr]
    label(engine, first, 5)
    commands = profile(engine, first, 10)
    (plan,) = [c.plan for c in of(ReportPlan, commands)]  # type: ignore[attr-defined]
    given_pct = {f"{s.id}/infer": s.infer_pct for s in plan.streams if s.infer_pct}
    assert {k: v for k, v in shares(commands).items() if k.endswith("/infer")} == given_pct


def test_whole_windows_of_a_learning_box_never_give_more_than_there_is() -> None:
    ran = run(
        LearningWorld(), windows=4, cameras=("a", "b", "c"), overlap=True, prep_auto=True, policy="lookahead", divide_prep=True
    )
    given_pct = [
        sum(p for _, p in c.shares_pct) for _, commands in ran.driver.log for c in commands if isinstance(c, SetShares)
    ]
    assert given_pct
    assert max(given_pct) <= 100 + 1e-9
    assert ran.swaps("retrained")


# --- what few frames say ----------------------------------------------------------------------------------------------

WEIGHS = EngineConfig(weigh_frames=True)


def test_one_frame_counts_as_much_as_what_was_believed() -> None:
    """One frame in which nothing was found makes no camera dark for a window."""
    assert belief.weighed(0.8, 0.0, 1, WEIGHS) == pytest.approx(0.4)
    assert belief.weighed(0.8, 0.0, 4, WEIGHS) == pytest.approx(0.16)
    assert belief.weighed(None, 1.0, 1, WEIGHS) == pytest.approx((WEIGHS.prior_quality + 1) / 2)


def test_journals_without_it_believe_what_was_measured() -> None:
    assert belief.weighed(0.8, 0.0, 1, EngineConfig()) == 0.0


@given(st.floats(0, 1), st.floats(0, 1), st.integers(0, 50))
def test_it_lies_between_and_more_frames_say_more(believed: float, measured: float, frames: int) -> None:
    one, more = (belief.weighed(believed, measured, n, WEIGHS) for n in (frames, frames + 1))
    assert min(believed, measured) - 1e-12 <= one <= max(believed, measured) + 1e-12
    assert abs(more - measured) <= abs(one - measured) + 1e-12


def test_labels_and_gates_of_a_box_are_weighed() -> None:
    stream = StreamState(id="a", knobs=KNOBS, version="v", quality=0.8, full=True)
    found = belief.take_measurement(stream, BoxState(), WEIGHS, 0.4, 4, calibrate=False)
    assert found == pytest.approx((0.8 + 4 * 0.4) / 5)
    assert stream.held_out == 4


@pytest.mark.parametrize(("weighs", "believed"), [(False, 1.0), (True, (0.9 + 1.0) / 2)])
def test_a_model_that_was_let_in_by_one_frame_is_not_believed_to_be_perfect(weighs: bool, believed: float) -> None:
    """It was believed to be worth 0.5 and has won 0.4 in expectation: 0.9, and the frame says 1.0."""
    engine = BoxEngine(replace(ENGINE, weigh_frames=weighs))
    stream = StreamState(id="a", knobs=KNOBS, version="v", quality=0.5, pool="lesson")
    event = GateDone(
        at_s=1.0, job="g", stream="a", candidate="w", serving_quality=0.5, candidate_quality=1.0, frames=1, gpu_s=0.1, gain=0.5
    )
    verdict = belief.admission.Verdict(admitted=True, gain=0.5, expected=0.4, chance=0.9)
    assert engine._worth(stream, event, verdict) == pytest.approx(believed)
