"""The gate asks what is labelled already before it asks for new labels."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler import admission, prep
from scheduler.commands import Command, RejectModel, SetShares, StartGate, SwapModel
from scheduler.engine import BoxEngine, EngineConfig
from scheduler.engine_state import BoxState
from scheduler.events import GateDone, JobFailed, SwapDone
from tests.support.learning_world import of
from tests.support.one_gate import CONFIG, at_the_gate

BOX = EngineConfig(
    window_s=100, first_window_s=100, retrain=(CONFIG,), policy="lookahead", overlap=True, calibrate=False, gate_known=True
)  # fmt: skip


def judged(engine: BoxEngine, gate: StartGate, gain: float | None, at_s: float = 30) -> list[Command]:
    return engine.handle(
        GateDone(
            at_s=at_s, job=gate.job, stream="a", candidate="a-2", serving_quality=0.44,
            candidate_quality=None if gain is None else 0.44 + gain, frames=8, gpu_s=0.1, gain_sd=0.04, gain=gain,
        )
    )  # fmt: skip


def test_what_known_labels_show_serves_at_once() -> None:
    engine, gate = at_the_gate(BOX)
    assert gate.known
    told = judged(engine, gate, 0.2)
    assert [c.version for c in of(SwapModel, told)] == ["a-2"]
    assert not of(StartGate, told)


def test_what_they_leave_in_doubt_new_labels_decide() -> None:
    engine, gate = at_the_gate(BOX)
    before_pct = engine.state.streams["a"].train_pct
    told = judged(engine, gate, 0.02)
    assert not of(SwapModel, told) + of(RejectModel, told)
    (second,) = of(StartGate, told)
    assert not second.known
    assert (second.candidate, second.frames, second.job != gate.job) == ("a-2", gate.frames, True)
    (shares,) = of(SetShares, told)
    assert dict(shares.shares_pct)[second.job] == before_pct > 0
    assert told.index(shares) < told.index(second)
    assert of(SwapModel, judged(engine, second, 0.15, at_s=40))
    assert engine.state.streams["a"].gains == [pytest.approx(0.15)]  # the first measurement is not counted beside it


def test_what_is_in_doubt_twice_is_refused() -> None:
    engine, gate = at_the_gate(BOX)
    (second,) = of(StartGate, judged(engine, gate, 0.02))
    told = judged(engine, second, 0.02, at_s=40)
    assert of(RejectModel, told)
    assert not of(StartGate, told)


def test_what_is_seen_to_be_worse_costs_no_label() -> None:
    engine, gate = at_the_gate(BOX)
    told = judged(engine, gate, -0.05)
    assert of(RejectModel, told)
    assert not of(StartGate, told)


def test_where_nothing_is_labelled_new_labels_judge() -> None:
    engine, gate = at_the_gate(BOX)
    (second,) = of(StartGate, judged(engine, gate, None))
    assert not second.known


def test_a_second_gate_that_fails_keeps_the_serving_model() -> None:
    engine, gate = at_the_gate(BOX)
    (second,) = of(StartGate, judged(engine, gate, 0.02))
    told = engine.handle(JobFailed(at_s=40, job=second.job, stream="a", code="exception"))
    assert of(RejectModel, told)
    assert engine.state.streams["a"].version == "a-1"


def test_an_answer_of_the_first_that_comes_twice_is_not_heard() -> None:
    engine, gate = at_the_gate(BOX)
    judged(engine, gate, 0.02)
    assert not of(SwapModel, judged(engine, gate, 0.3, at_s=35))


def test_the_camera_goes_on_afterwards() -> None:
    engine, gate = at_the_gate(BOX)
    judged(engine, gate, 0.2)
    engine.handle(SwapDone(at_s=31, stream="a", version="a-2"))
    assert engine.state.streams["a"].version == "a-2"
    assert engine.state.streams["a"].quality == pytest.approx(0.64)


def test_without_it_new_labels_are_asked_for_at_once() -> None:
    _, gate = at_the_gate(replace(BOX, gate_known=False))
    assert not gate.known


def test_a_turn_pays_for_the_doubt_only() -> None:
    state = BoxState(golden_gpu_s=0.8)
    dear, cheap = (prep.gate_gpu_s(state, replace(BOX, gate_known=known)) for known in (False, True))
    assert cheap == pytest.approx(dear * admission.DOUBT_FRAC)


def test_doubt() -> None:
    for gain, doubt in ((0.3, False), (0.02, True), (-0.02, False)):
        verdict = admission.judge(0.4, 0.4 + gain, gain=gain, gain_sd=0.04, frames=8, risk=0.25)
        assert admission.in_doubt(verdict) == doubt
    assert admission.in_doubt(admission.judge(0.4, None, gain_sd=None, frames=0))
