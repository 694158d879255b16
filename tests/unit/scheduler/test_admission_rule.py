"""Who may serve: few frames demand more, a promise alone admits nothing, what is not a number admits nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.admission import REUSED, SEEING, Belief, Verdict, error_of, judge, posterior
from tests.benchmarks import bench_gate

UNIT = st.floats(0, 1)
SDS = st.none() | st.floats(0, 1)
RISKS = st.floats(0.01, 0.5)
BELIEFS = st.builds(Belief, mean=st.floats(-1, 1), sd=st.floats(0.01, 1))


def verdict(gain: float, *, gain_sd: float | None = 0.05, frames: int = 16, **options: float | Belief) -> Verdict:
    return judge(0.4, 0.4 + gain, gain_sd=gain_sd, frames=frames, **options)  # type: ignore[arg-type]


def test_worked_example() -> None:
    # 16 frames: e^2 = .05^2 * 15/13 + (.25/16)^2 = .003129, prior N(0, .01): w = .01/.013129 = .7617
    found = judge(0.4, 0.5, gain_sd=0.05, frames=16, risk=0.4)
    assert found.expected == pytest.approx(0.07617, abs=1e-4)
    assert found.chance == pytest.approx(0.5 * math.erfc(-0.07617 / (math.sqrt(0.7617 * 0.003129) * math.sqrt(2))), abs=1e-3)
    assert found.admitted


#: Gates of `tests/benchmarks/bad_retrains.py` that let a bad retraining in before: serving, candidate, gain, its spread, frames.
NEARLY_BLIND = [
    (0.0775, 0.1579, 0.0804, 0.0748, 13),
    (0.0, 0.0339, 0.0339, 0.0339, 12),
    (0.1233, 0.1647, 0.0377, 0.0408, 17),
    (0.0727, 0.1290, 0.0563, 0.0609, 12),
]


@pytest.mark.parametrize(("serving", "candidate", "gain", "gain_sd", "frames"), NEARLY_BLIND)
def test_of_two_models_that_find_next_to_nothing_the_new_one_must_be_the_surer(
    serving: float, candidate: float, gain: float, gain_sd: float, frames: int
) -> None:
    def at(lift: float) -> Verdict:
        belief = Belief(mean=0.0, sd=0.1514)
        return judge(
            serving + lift, candidate + lift, gain=gain, gain_sd=gain_sd, frames=frames, risk=0.25, belief=belief, seeing=SEEING
        )

    assert not at(0.0).admitted
    assert at(SEEING).admitted, "the same gain of models that see"
    assert at(0.0).chance == at(SEEING).chance > 0.75


@pytest.mark.parametrize("bad", [None, float("nan"), float("inf"), float("-inf")])
def test_what_is_not_a_number_admits_nothing(bad: float | None) -> None:
    assert not judge(bad, 0.9, gain_sd=0.01, frames=16).admitted
    assert not judge(0.1, bad, gain_sd=0.01, frames=16).admitted


def test_a_promise_without_a_seen_gain_admits_nothing() -> None:
    sure = Belief(mean=0.5, sd=0.01)
    assert not verdict(0.0, belief=sure).admitted
    assert not verdict(-0.001, belief=sure).admitted
    assert verdict(0.001, belief=sure).admitted


def test_a_promise_that_was_broken_needs_more_proof_than_one_that_was_kept() -> None:
    seen = 0.03
    assert verdict(seen, belief=Belief(mean=0.1, sd=0.05), risk=0.2).admitted
    assert not verdict(seen, belief=Belief(mean=-0.1, sd=0.05), risk=0.2).admitted


def test_fewer_frames_demand_more() -> None:
    least = [min(g for g in np.arange(0, 1, 0.002) if verdict(g, frames=n, gain_sd=0.2 / math.sqrt(n), risk=0.2).admitted)
             for n in (3, 5, 8, 16, 64)]  # fmt: skip
    assert least == sorted(least, reverse=True)
    assert least[0] > 4 * least[-1]


def test_one_frame_hardly_ever_proves_anything() -> None:
    assert not judge(0.3, 0.5, gain_sd=None, frames=1, risk=0.4).admitted
    assert error_of(None, 1) == error_of(0.0, 1) == error_of(float("nan"), 9) == 0.5


def test_frames_that_agree_by_chance_still_leave_room_for_doubt() -> None:
    assert error_of(0.0, 4) == pytest.approx(0.25 / 4)
    assert error_of(0.0, 400) < 0.001


def test_a_driver_that_knows_the_truth_is_believed() -> None:
    """A recorded trace tells no spread: then the rule is the plain margin."""
    assert verdict(1e-6, gain_sd=None).admitted
    assert not verdict(0.019, gain_sd=None, margin=0.02).admitted
    assert verdict(0.03, gain_sd=None, margin=0.02, belief=Belief(mean=-0.9, sd=0.05)).admitted


@given(UNIT, UNIT, SDS, st.integers(0, 99), BELIEFS, st.floats(0, 0.5), RISKS)
def test_no_more_is_admitted_when_anything_becomes_worse(
    old: float, new: float, sd: float | None, frames: int, belief: Belief, margin: float, risk: float
) -> None:
    found = judge(old, new, gain_sd=sd, frames=frames, belief=belief, margin=margin, risk=risk)
    assert 0.0 <= found.chance <= 1.0
    if found.admitted:
        assert new - old > margin
        assert judge(old, new, gain_sd=sd, frames=frames, belief=belief, margin=margin, risk=0.5).admitted
        assert judge(max(0.0, old - 0.1), new, gain_sd=sd, frames=frames, belief=belief, margin=margin, risk=risk).admitted
        better = Belief(mean=belief.mean + 0.2, sd=belief.sd)
        assert judge(old, new, gain_sd=sd, frames=frames, belief=better, margin=margin, risk=risk).admitted


@given(st.floats(-1, 1), st.floats(0, 1), BELIEFS)
def test_the_posterior_lies_between_what_was_seen_and_what_was_expected(gain: float, error: float, belief: Belief) -> None:
    mean, sd = posterior(gain, error, belief)
    low, high = sorted((gain, belief.mean))
    assert low - 1e-9 <= mean <= high + 1e-9
    assert sd <= min(error, belief.sd) + 1e-9 if error > 0 else sd == 0


@given(UNIT, UNIT, st.sampled_from([float("nan"), float("inf"), 0.0, -1.0]))
def test_a_belief_that_means_nothing_counts_as_none(old: float, new: float, odd: float) -> None:
    plain = judge(old, new, gain_sd=0.05, frames=9, belief=REUSED)
    assert judge(old, new, gain_sd=0.05, frames=9, belief=Belief(mean=0.0, sd=odd)) == plain


def test_against_a_plain_margin_and_a_z_test_it_takes_fewer_bad_models_for_the_same_loss() -> None:
    """The made-up world of `bench gate`, 16 frames."""
    gates, found = bench_gate.made_up(16, 1500), bench_gate.rules()

    def outcome(rule: str) -> tuple[float, float]:
        lost, bad, _ = bench_gate.outcome(gates, found[rule])
        return lost, bad

    plain, bold, careful = outcome("margin 0"), outcome("posterior, risk 0.5"), outcome("posterior, risk 0.4")
    assert bold[0] < plain[0] + 0.5
    assert bold[1] < 0.6 * plain[1]
    assert bold[0] < outcome("z-test 0.5")[0]
    assert bold[0] < outcome("margin 0.05")[0] + 0.1
    assert careful[1] < 0.4 * plain[1]
    assert careful[0] < outcome("z-test 1")[0]


def test_what_all_frames_say_counts_but_the_newest_may_object() -> None:
    assert judge(0.4, 0.42, gain=0.2, gain_sd=0.03, frames=32, risk=0.25).admitted
    assert not judge(0.4, 0.39, gain=0.2, gain_sd=0.03, frames=32, risk=0.25).admitted, "this window says otherwise"
    assert not judge(0.4, 0.6, gain=-0.01, gain_sd=0.03, frames=32, risk=0.25).admitted
    assert judge(0.4, 0.6, gain=float("nan"), gain_sd=0.03, frames=32) == judge(0.4, 0.6, gain_sd=0.03, frames=32)


def test_recorded_gates_are_read_once_each() -> None:
    gate = {"stream": "a", "window": 1, "candidate": "x", "frames": 8, "serving_f1": 0.4, "candidate_f1": 0.5, "gain_sd": 0.03,
            "serving_true_f1": 0.42, "candidate_true_f1": 0.47}  # fmt: skip
    unjudged = {**gate, "candidate": "y", "candidate_f1": None}
    old = {**gate, "window": 2}
    del old["gain_sd"]
    found = bench_gate.recorded([{"policies": [{"gates": [gate, unjudged, old]}, {"gates": [gate]}]}])
    assert [(g.frames, round(g.true_gain, 6)) for g in found] == [(8, 0.05), (8, 0.05)]
    assert [round(g.sd or 0, 4) for g in found] == [0.03, round(bench_gate.UNKNOWN_SD / math.sqrt(8), 4)]
