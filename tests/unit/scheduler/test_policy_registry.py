"""Names of policies, the uniform family, and what the baselines do exactly."""

from __future__ import annotations

from dataclasses import replace

import pytest

from configs.errors import UsageError
from scheduler.ekya.baselines import fixed_option, front_names, pareto_front, uniform_shares
from scheduler.registry import UNIFORM_FAMILY, expand, expand_list, known_policies, make_policy, needs
from scheduler.types import KnobProfile, RetrainOption, Snapshot, StreamView

KNOBS = (KnobProfile(name="half", demand_pct=10, quality_frac=0.5), KnobProfile(name="full", demand_pct=20, quality_frac=1.0))


def option(name: str, end_quality: float, cost: float) -> RetrainOption:
    return RetrainOption(name=name, end_quality=end_quality, cost_gpu_s=cost)


def snapshot(*offers: tuple[RetrainOption, ...], capacity_pct: int = 100, window_s: float = 100.0) -> Snapshot:
    streams = tuple(StreamView(id=f"s{n}", quality=0.5, knobs=KNOBS, retrain=o) for n, o in enumerate(offers))
    return Snapshot(remaining_s=window_s, capacity_pct=capacity_pct, quantum_pct=10, min_quality=0, streams=streams)


OFFER = (option("tiny", 0.6, 2), option("worse", 0.4, 30), option("big", 0.8, 20), option("waste", 0.8, 60))


def test_the_family_is_both_configurations_at_three_splits() -> None:
    assert expand("uniform") == UNIFORM_FAMILY
    assert set(UNIFORM_FAMILY) == {f"uniform({c},{w})" for c in ("high", "low") for w in (30, 50, 90)}
    assert expand("thief") == ("thief",)


def test_lists_are_split_outside_brackets_only() -> None:
    assert expand_list("thief-repeat, uniform(cfg1,40),thief-repeat") == ("thief-repeat", "uniform(cfg1,40)")
    assert expand_list("uniform,no-retrain,uniform(low,30)") == (*UNIFORM_FAMILY, "no-retrain")


@pytest.mark.parametrize("name", ["", "theif", "uniform(high)", "uniform(high,101)", "uniform(,50)", "thief()"])
def test_unknown_names_list_the_known_ones(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        make_policy(name)
    assert all(known in str(caught.value) for known in known_policies())


def test_an_empty_list_is_refused() -> None:
    with pytest.raises(UsageError):
        expand_list(" , ")
    with pytest.raises(UsageError):
        expand_list("thief,nonsense")


def test_what_policies_need() -> None:
    assert (needs("no-retrain").labels, needs("no-retrain").profiles) == (False, False)
    assert (needs("uniform(cfg1,50)").labels, needs("uniform(cfg1,50)").profiles) == (True, False)
    assert needs("uniform").profiles
    assert needs("thief-repeat").profiles


def test_high_and_low_are_the_ends_of_the_front() -> None:
    assert [o.name for o in pareto_front(OFFER)] == ["tiny", "big"]
    high, low, named = (fixed_option(OFFER, c) for c in ("high", "low", "waste"))
    assert [o.name for o in (high, low, named) if o] == ["big", "tiny", "waste"]
    assert fixed_option(OFFER, "unheard-of") is None
    assert fixed_option((), "high") is None
    # an option may be called "low"
    assert fixed_option((option("low", 0.9, 50), OFFER[0]), "low") == option("low", 0.9, 50)


def test_front_of_hold_out_streams() -> None:
    other = (option("tiny", 0.5, 4), option("big", 0.7, 30), option("waste", 0.6, 50), option("only here", 0.9, 1))
    assert front_names([OFFER, other]) == ("big", "tiny")
    with pytest.raises(ValueError, match="in common"):
        front_names([OFFER, (option("alone", 0.5, 1),)])
    with pytest.raises(ValueError, match="in common"):
        front_names([])


def test_uniform_splits_evenly_and_re_shares_what_has_finished() -> None:
    assert uniform_shares(snapshot(OFFER, OFFER), 30) == [(15, 35), (15, 35)]
    assert uniform_shares(snapshot(OFFER, OFFER, OFFER), 50) == [(17, 17), (17, 17), (16, 16)]
    # one of two finished: its 75 go in thirds to the three jobs that remain, as in the running example
    assert uniform_shares(snapshot((), OFFER, capacity_pct=300), 50) == [(100, 0), (100, 100)]
    assert uniform_shares(snapshot((), (), capacity_pct=300), 50) == [(150, 0), (150, 0)]
    assert uniform_shares(snapshot(), 50) == []


def test_uniform_always_retrains_whether_it_helps_or_not() -> None:
    plan = make_policy("uniform(worse,50)")(snapshot(OFFER))
    entry = plan.streams[0]
    assert (entry.retrain, entry.infer_pct, entry.train_pct) == ("worse", 50, 50)
    assert entry.expected_quality == pytest.approx((0.5 * 60 + 0.4 * 40) / 100)
    assert plan.policy == "uniform(worse,50)"


def test_uniform_does_not_start_what_cannot_end() -> None:
    plan = make_policy("uniform(waste,50)")(snapshot(OFFER))
    assert (plan.streams[0].retrain, plan.streams[0].train_pct, plan.spare_pct) == (None, 0, 50)


def test_fixed_resources_chooses_within_uniforms_split() -> None:
    plan = make_policy("fixed-resources")(snapshot(OFFER, (option("poor", 0.5, 1),)))
    assert [(s.infer_pct, s.train_pct, s.retrain) for s in plan.streams] == [(25, 25, "tiny"), (25, 0, None)]
    assert plan.spare_pct == 25


def test_fixed_config_moves_shares_but_offers_one_configuration() -> None:
    given = snapshot(OFFER, OFFER)
    plan = make_policy("fixed-config")(given)
    assert [s.retrain for s in plan.streams] == ["tiny", "tiny"]
    assert plan.expected_quality < make_policy("thief-repeat")(given).expected_quality


def test_no_retrain_gives_everything_to_inference() -> None:
    plan = make_policy("no-retrain")(snapshot(OFFER, OFFER, OFFER))
    assert [(s.infer_pct, s.retrain) for s in plan.streams] == [(34, None), (33, None), (33, None)]
    running = replace(snapshot(OFFER).streams[0], retrain=(OFFER[0],), running="tiny")
    assert make_policy("no-retrain")(replace(snapshot(), streams=(running,))).streams[0].retrain is None
