"""The engine and the price of a share change: free changes change nothing, dear ones are made when they pay."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from scheduler.codec import decode, encode
from scheduler.commands import Command, ReportPlan, SetShares
from scheduler.engine import REACT, BoxEngine, Checkpoint, EngineConfig
from scheduler.events import BoxStarted, CameraAdded, ChangePriced, TimerFired
from scheduler.pricing import ChangePrice
from scheduler.types import KnobProfile, RetrainConfig

KNOBS = (
    KnobProfile(name="every", demand_pct=40, quality_frac=1.0), KnobProfile(name="half", demand_pct=20, quality_frac=0.78),
)  # fmt: skip
CONFIG = EngineConfig(
    window_s=200, first_window_s=200, capacity_pct=60, quantum_pct=5, policy="optimal", calibrate=False, min_quality=0.0,
    retrain=(RetrainConfig(name="any"),),
)  # fmt: skip
DEAR = ChangePrice(settle_s=2.0, gpu_s=1.0, blind_s=2.0)


def box(config: EngineConfig) -> BoxEngine:
    """Window 0 at t = 0: b is better, so it has 40 pct and a has 20."""
    engine = BoxEngine(config)
    for camera, quality in (("a", 0.60), ("b", 0.62)):
        engine.handle(CameraAdded(at_s=0, stream=camera, knobs=KNOBS, version=f"{camera}-0", quality=quality))
    engine.handle(BoxStarted(at_s=0, window=0))
    return engine


def replanned(engine: BoxEngine, at_s: float, **qualities: float) -> list[Command]:
    for id, quality in qualities.items():
        engine.state.streams[id].quality = quality
    engine.state.reacting = True
    return engine.handle(TimerFired(at_s=at_s, timer=REACT))


def shares(engine: BoxEngine, commands: list[Command]) -> dict[str, float]:
    (found,) = [c for c in commands if isinstance(c, SetShares)]
    assert sum(pct for _, pct in found.shares_pct) + found.spare_pct == pytest.approx(engine.config.capacity_pct)
    return dict(found.shares_pct)


def reasons(commands: list[Command]) -> str:
    return " | ".join(r for c in commands if isinstance(c, ReportPlan) for r in c.reasons)


def test_a_change_that_does_not_pay_is_not_made_and_people_read_why() -> None:
    engine = box(replace(CONFIG, change=DEAR))
    out = replanned(engine, 50.0, a=0.63)
    assert shares(engine, out) == {"a/infer": 20.0, "b/infer": 40.0}
    assert "shares of a, b stay: changing them costs more than it brings in the 150 s that are left" in reasons(out)
    assert [c for c in out if type(c).__name__ == "SetKnobs"] == [], "knobs follow the shares that are kept"


def test_one_that_pays_is() -> None:
    engine = box(replace(CONFIG, change=DEAR))
    out = replanned(engine, 50.0, a=0.95, b=0.3)
    assert shares(engine, out) == {"a/infer": 40.0, "b/infer": 20.0}
    assert "stay" not in reasons(out)


def test_the_same_gain_pays_early_in_the_window_and_not_late() -> None:
    for at_s, expected in ((20.0, 40.0), (195.0, 20.0)):
        engine = box(replace(CONFIG, change=ChangePrice(blind_s=3.0)))
        assert shares(engine, replanned(engine, at_s, a=0.75))["a/infer"] == expected


def test_a_price_that_is_measured_while_the_box_runs_counts_for_the_next_plan_and_after_a_checkpoint() -> None:
    engine = box(CONFIG)
    assert shares(engine, replanned(engine, 50.0, a=0.63))["a/infer"] == 40.0
    engine = box(CONFIG)
    assert engine.handle(decode(encode(ChangePriced(at_s=40.0, price=DEAR)))) == []
    checkpoint = decode(encode(engine.checkpoint()))
    for told in (engine, BoxEngine(checkpoint.config, checkpoint.state)):
        assert shares(told, replanned(told, 50.0, a=0.63))["a/infer"] == 20.0


def test_free_changes_and_changes_without_a_price_give_the_same_commands() -> None:
    priced, plain = box(replace(CONFIG, change=ChangePrice())), box(CONFIG)
    for at_s, quality in ((10.0, 0.61), (20.0, 0.63), (30.0, 0.5)):
        assert list(map(encode, replanned(priced, at_s, a=quality))) == list(map(encode, replanned(plain, at_s, a=quality)))


def test_a_uniform_policy_has_the_shares_that_it_is_defined_by() -> None:
    engine, plain = (box(replace(CONFIG, policy="uniform(any,50)", change=change)) for change in (DEAR, ChangePrice()))
    engine.state.streams["a"].infer_pct = plain.state.streams["a"].infer_pct = 20.0
    assert shares(engine, replanned(engine, 10.0)) == shares(plain, replanned(plain, 10.0))


def test_a_checkpoint_from_before_there_was_a_price_is_read_as_free() -> None:
    text = encode(box(CONFIG).checkpoint())
    body = json.loads(text)
    assert body["config"].pop("change") == {"settle_s": 0.0, "gpu_s": 0.0, "blind_s": 0.0}
    old = decode(json.dumps(body))
    assert isinstance(old, Checkpoint)
    assert old.config.change.free
    dear = decode(encode(box(replace(CONFIG, change=DEAR)).checkpoint()))
    assert dear.config.change == DEAR
