"""A camera whose few labels said 0 is watched all the same, and takes little from the others for that."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.engine import BoxEngine, EngineConfig
from scheduler.engine_state import BoxState, StreamState
from scheduler.events import BoxStarted, CameraAdded
from scheduler.snapshots import snapshot_of, view_of
from scheduler.types import KnobProfile

#: On a device of 100 pct that cannot carry both cameras in full.
KNOBS = tuple(
    KnobProfile(name=f"1/{n}", demand_pct=round(80 / n, 3), quality_frac=frac, fps=12 / n)
    for n, frac in ((1, 1.0), (2, 0.78), (4, 0.6), (8, 0.33))
)
BOX = EngineConfig(
    window_s=100, first_window_s=100, policy="lookahead", calibrate=False, quantum_pct=1, min_quality=0.1, least_quality=0.05
)  # fmt: skip


def shares_of(quality: float, config: EngineConfig) -> dict[str, float]:
    """What each camera's inference has in the plan of a window in which nothing is learned."""
    engine = BoxEngine(config)
    for id, worth in (("blind", quality), ("sees", 0.8)):
        engine.handle(CameraAdded(at_s=0, stream=id, knobs=KNOBS, version=f"{id}-1", quality=worth))
    engine.handle(BoxStarted(at_s=0, window=1))
    engine._plan(0.0)
    return {s.id: s.infer_pct for s in engine.state.ordered()}


def test_a_camera_that_was_measured_as_nothing_is_watched() -> None:
    before, now = shares_of(0.0, replace(BOX, least_quality=0.0)), shares_of(0.0, BOX)
    assert before["blind"] == 0.0, "what journals without it were decided with"
    assert now["blind"] >= KNOBS[-1].demand_pct
    assert now["sees"] >= 0.75 * before["sees"]


def test_one_that_is_worth_more_is_planned_for_as_before() -> None:
    assert shares_of(0.5, BOX) == shares_of(0.5, replace(BOX, least_quality=0.0))


@given(st.one_of(st.none(), st.floats(0, 1)))
def test_plans_see_at_least_that_and_what_is_believed_stays_as_it_is(quality: float | None) -> None:
    stream = StreamState(id="a", knobs=KNOBS, version="a-1", quality=quality)
    believed = BOX.prior_quality if quality is None else quality
    assert view_of(stream, BOX).quality == max(0.05, believed)
    assert stream.quality == quality
    state = BoxState(streams={"a": stream})
    assert snapshot_of(state, BOX, 50.0, cached=False).streams[0].quality == pytest.approx(max(0.05, believed))
