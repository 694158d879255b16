"""The engine under customers' shares: plans, preparation, the seconds in between, the training budget, prices, replay."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scheduler import budget, knob_loop
from scheduler.codec import decode, encode
from scheduler.commands import Command, ReportPlan, SetShares
from scheduler.engine import BoxEngine
from scheduler.engine_state import EngineConfig
from scheduler.events import (
    BoxStarted,
    CameraAdded,
    CameraHealth,
    CameraRemoved,
    ChangePriced,
    CustomerChanged,
    Event,
    KnobsDue,
    KnobsMeasured,
    LabelDone,
    SharesOrdered,
)
from scheduler.fleet.grants import Division, even_pct, inference_parts
from scheduler.pricing import ChangePrice
from scheduler.types import KnobProfile
from tests.support.learning_world import ENGINE as LEARNING

ENGINE = replace(
    LEARNING,
    window_s=100,
    first_window_s=50,
    prep_pct=40,
    prep_auto=False,
    drift=False,
    reuse=False,
    group=False,
    overlap=False,
)


def knobs(demand_pct: float) -> tuple[KnobProfile, ...]:
    return (
        KnobProfile(name="full", demand_pct=demand_pct, quality_frac=1.0, fps=5),
        KnobProfile(name="half", demand_pct=demand_pct / 2, quality_frac=0.8, fps=2.5),
        KnobProfile(name="tenth", demand_pct=demand_pct / 10, quality_frac=0.3, fps=0.5),
    )


def camera(id: str, demand_pct: float = 60.0, **more: Any) -> CameraAdded:
    more = {"quality": 0.6, "learns": False, "customer": id[0]} | more
    return CameraAdded(at_s=0, stream=id, knobs=knobs(demand_pct), version=f"{id}-0", **more)


def box(*cameras: CameraAdded, config: EngineConfig = ENGINE, window: int = 1) -> BoxEngine:
    engine = BoxEngine(config)
    for added in cameras:
        engine.handle(added)
    engine.handle(BoxStarted(at_s=0, window=window))
    return engine


def ordered(at_s: float = 1.0, **shares_pct: float) -> SharesOrdered:
    return SharesOrdered(at_s=at_s, shares_pct=tuple(sorted(shares_pct.items())))


def newest_plan(commands: list[Command]) -> ReportPlan:
    return [c for c in commands if isinstance(c, ReportPlan)][-1]


def infer_pct(commands: list[Command], letter: str) -> float:
    (given,) = [c for c in commands if isinstance(c, SetShares)][-1:]
    return sum(pct for job, pct in given.shares_pct if job.startswith(letter) and job.endswith("/infer"))


def test_shares_make_a_new_plan_at_once_and_the_plan_says_why() -> None:
    engine = box(camera("a1"), camera("a2"), camera("b1"), camera("b2"))
    commands = engine.handle(ordered(a=75, b=25))
    told = newest_plan(commands)
    assert {s.id: s.knobs for s in told.plan.streams} == {"a1": "half", "a2": "half", "b1": "half", "b2": "tenth"}
    assert (infer_pct(commands, "a"), infer_pct(commands, "b")) == (60, 40)  # 15 of a's 75 would win a nothing
    assert "planned anew: the fleet changed the customers' shares" in told.reasons
    assert any(reason.startswith("customer a: sure of 75 pct") for reason in told.reasons)


def test_the_same_shares_again_change_nothing_and_no_shares_are_as_ever() -> None:
    cameras = (camera("a1"), camera("b1"))
    engine = box(*cameras)
    assert engine.handle(ordered(a=75, b=25))
    assert engine.handle(ordered(2, a=75, b=25)) == []
    back = newest_plan(engine.handle(SharesOrdered(at_s=3)))
    never = box(*cameras)
    never._plan(3)
    assert back.plan == newest_plan(never._out).plan


def test_a_share_that_is_no_share_is_left_out() -> None:
    engine = box(camera("a1"), camera("b1"))
    assert engine.handle(SharesOrdered(at_s=1, shares_pct=(("a", 0.0), ("b", -3.0), ("c", float("nan"))))) == []
    assert engine.state.shares_pct == ()


def test_a_camera_that_changes_customers_or_goes_moves_what_others_get() -> None:
    engine = box(camera("a1", 90), camera("a2", 90), camera("b1", 90))
    first = engine.handle(ordered(a=80, b=20))
    assert infer_pct(first, "b") <= 25
    moved = engine.handle(CustomerChanged(at_s=2, stream="a2", customer="b"))
    assert infer_pct(moved, "a") >= 75  # a1 alone has what a was promised
    assert engine.handle(CustomerChanged(at_s=3, stream="a2", customer="b")) == []
    assert engine.handle(CustomerChanged(at_s=3, stream="nobody", customer="b")) == []
    gone = engine.handle(CameraRemoved(at_s=4, stream="a1"))
    assert infer_pct(gone, "b") + infer_pct(gone, "a") >= 90


def test_cameras_that_give_no_pictures_leave_their_customers_share_to_the_others() -> None:
    engine = box(camera("a1", 90), camera("b1", 90))
    engine.handle(ordered(a=80, b=20))
    commands = engine.handle(CameraHealth(at_s=2, stream="a1", live=False))
    assert infer_pct(commands, "b") >= 90


def test_while_a_window_is_prepared_inference_is_split_by_customers() -> None:
    """a has one camera and three quarters, b three cameras and one quarter of the 60 pct that preparation leaves."""
    engine = box(camera("a1", 90, learns=True), *(camera(f"b{n}", 90) for n in range(3)))
    assert engine.state.phase == "prepare"
    commands = engine.handle(ordered(a=75, b=25))
    (given,) = [c for c in commands if isinstance(c, SetShares)]
    shares = dict(given.shares_pct)
    assert shares["a1/infer"] == pytest.approx(45)
    assert shares["b0/infer"] == pytest.approx(5)


def test_between_plans_each_customers_knobs_stay_within_its_part() -> None:
    """b's cameras become dear: b gets worse, a does not."""
    engine = box(camera("a1", 50), camera("b1", 50), config=replace(ENGINE, knob_loop=True))
    before = engine.handle(ordered(a=50, b=50))
    assert infer_pct(before, "a") >= 45
    engine.handle(KnobsMeasured(at_s=2, stream="b1", knobs=knobs(200)))
    found = knob_loop.reallocated(engine.state, engine.config)
    assert found is not None
    given = {one.query: one for one in found.given}
    assert given["a1"].option == "full"
    assert given["b1"].share_pct <= 55
    engine.handle(KnobsDue(at_s=3, loads=()))
    assert engine.state.streams["a1"].knob == "full"


def test_the_training_budget_moves_within_a_customer_only() -> None:
    engine = box(camera("a1"), camera("a2"), camera("b1"), camera("b2"))
    streams = engine.state.ordered()
    assert [[s.id for s in group] for group in budget.groups(streams)] == [["a1", "a2", "b1", "b2"]]
    assert [[s.id for s in group] for group in budget.groups(streams, apart=True)] == [["a1", "a2"], ["b1", "b2"]]


def test_a_price_of_changes_is_weighed_within_each_part() -> None:
    """However dear a change is, b never keeps what a was promised."""
    engine = box(camera("a1", 60), camera("b1", 90))
    engine.handle(ChangePriced(at_s=1, price=ChangePrice(settle_s=30, gpu_s=50, blind_s=30)))
    commands = engine.handle(ordered(2, a=60, b=40))
    plan = newest_plan(commands).plan
    assert sum(s.infer_pct + s.train_pct for s in plan.streams) <= 100
    assert infer_pct(commands, "b") <= 45


@pytest.mark.parametrize("cut", [0, 3, 5])
def test_a_day_with_shares_replays_to_the_byte(cut: int) -> None:
    events: list[Event] = [
        camera("a1", learns=True), camera("b1"), BoxStarted(at_s=0, window=1), ordered(1, a=70, b=30),
        LabelDone(at_s=5, job="a1/label/1", stream="a1", train=9, holdout=5, quality=0.4, gpu_s=2.0),
        CustomerChanged(at_s=6, stream="b1", customer="a"), ordered(7, a=40, c=60), SharesOrdered(at_s=8),
    ]  # fmt: skip
    first = BoxEngine(ENGINE)
    told = [[encode(c) for c in first.handle(event)] for event in events[:cut]]
    checkpoint = decode(encode(first.checkpoint()))
    second = BoxEngine(checkpoint.config, checkpoint.state)
    told += [[encode(c) for c in second.handle(decode(encode(event)))] for event in events[cut:]]
    straight = BoxEngine(ENGINE)
    assert told == [[encode(c) for c in straight.handle(event)] for event in events]


def test_a_journal_from_before_shares_is_read() -> None:
    line = encode(camera("a1")).replace(',"customer":"a"', "")
    assert decode(line).customer == ""


# --- the splits themselves --------------------------------------------------------------------------------------------


def test_an_even_split_within_parts() -> None:
    division = Division(shares_pct={"a": 60, "b": 20}, customers={"a1": "a", "b1": "b", "b2": "b"})
    assert even_pct(["a1", "b1", "b2"], 80, division) == {"a1": 60, "b1": 10, "b2": 10}
    assert even_pct(["b1", "b2"], 80, division) == {"b1": 40, "b2": 40}
    assert even_pct([], 80, division) == {}


def test_what_nobody_holds_is_divided_as_the_shares_are() -> None:
    division = Division(shares_pct={"a": 60, "b": 20}, customers={"a1": "a", "b1": "b"})
    assert inference_parts({"a1": 30, "b1": 10}, 80, division) == {"a": 60, "b": 20}
    assert inference_parts({"a1": 30, "b1": 30}, 30, division) == {"a": 15, "b": 15}
    assert inference_parts({"a1": 0, "b1": 0}, 0, division) == {"a": 0, "b": 0}
