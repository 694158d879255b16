"""What a plan says of each camera, for people who read the log, the page Learning and MQTT."""

from __future__ import annotations

from scheduler.reasons import reasons_of
from scheduler.registry import make_policy
from scheduler.types import KnobProfile, Snapshot, StreamView

KNOBS = (KnobProfile(name="every", demand_pct=40, quality_frac=1.0),)


def test_a_camera_that_gets_nothing_is_said_to_be_paused() -> None:
    streams = tuple(StreamView(id=id, quality=quality, knobs=KNOBS) for id, quality in (("a", 0.6), ("b", 0.7)))
    snapshot = Snapshot(remaining_s=100.0, capacity_pct=40, quantum_pct=10, min_quality=0.0, streams=streams)
    told = reasons_of(snapshot, make_policy("optimal")(snapshot))
    assert told == ("a: nothing to retrain; inference paused", "b: nothing to retrain; inference 'every' on 40 %")
