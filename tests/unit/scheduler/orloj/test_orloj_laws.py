"""Laws of run times: properties, and what the score table must have in common with the formula."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.orloj.candidates import Candidates, CandidateScores, classes_of
from scheduler.orloj.fit import BatchRun, Slowdown, fit_cost
from scheduler.orloj.law import BatchLaw, Law, batch_law, edges_for, expected_longest, law_of, mixture, on_even_edges
from scheduler.orloj.runtimes import LawRules, RunTimes
from scheduler.orloj.score import ScoreTable, score
from scheduler.orloj.types import Batch, ModelCost, Request


@st.composite
def laws(draw: st.DrawFn) -> Law:
    seed = draw(st.integers(0, 2**31))
    rng = np.random.default_rng(seed)
    samples = rng.lognormal(0.0, draw(st.floats(0.01, 1.2)), 200)
    return law_of(
        samples, edges_for(samples, bins=draw(st.integers(1, 40)), top_quantile=draw(st.sampled_from([0.9, 0.995, 1.0])))
    )


@settings(max_examples=40, deadline=None)
@given(law=laws(), k=st.integers(1, 16))
def test_the_longest_of_k_agrees_with_the_general_product(law: Law, k: int) -> None:
    assert law.expected_max(k) == pytest.approx(expected_longest([law] * k), rel=1e-9)
    assert law.expected_max(k) <= law.expected_max(k + 1) + 1e-12
    assert law.expected_max(k) <= law.top + 1e-12


@settings(max_examples=30, deadline=None)
@given(law=laws(), k=st.sampled_from([1, 2, 8]))
def test_the_law_of_the_longest_is_a_distribution_with_the_power_as_its_function(law: Law, k: int) -> None:
    longest = law.longest_of(k)
    assert longest.mass.sum() + longest.over == pytest.approx(1.0)
    assert longest.cdf(law.edges[:-1]) == pytest.approx(law.at_edges[:-1] ** k)
    assert longest.mean() <= law.expected_max(k) + 1e-9  # evenly spread anew: never too high


def test_a_simulation_agrees_with_the_mean_of_the_longest() -> None:
    rng = np.random.default_rng(3)
    samples = rng.gamma(3.0, 1.0, 4000)
    law = law_of(samples, edges_for(samples))
    drawn = rng.choice(samples, (20_000, 4)).max(axis=1)
    assert law.expected_max(4) == pytest.approx(drawn.mean(), rel=0.02)
    assert law.quantile(0.5) == pytest.approx(np.median(samples), rel=0.02)


@settings(max_examples=40, deadline=None)
@given(law=laws(), b=st.sampled_from([1e-6, 1e-3, 0.1, 3.0]))
def test_table_and_candidates_give_the_printed_score(law: Law, b: float) -> None:
    cost = ModelCost(c0_s=0.2, c1=0.4, sizes=(1, 2, 4))
    slack = np.linspace(-1.0, 3 * law.top + 2, 97)
    found = Candidates.of([law], [1.0], cost, 0.01)
    rows = CandidateScores(found, b).at(slack)
    for row, batch in zip(rows, found.laws, strict=True):
        told = score(batch.law, batch.expected, slack, b=b)
        assert row == pytest.approx(told, rel=1e-6, abs=1e-9)
        assert ScoreTable(batch, b).at(slack) == pytest.approx(told, rel=1e-6, abs=1e-9)


@settings(max_examples=30, deadline=None)
@given(law=laws(), b=st.sampled_from([1e-12, 10.0, 1e3, 1e9]), far_s=st.floats(0, 1e9))
def test_scores_are_numbers_at_any_rate_of_delay_and_any_slack(law: Law, b: float, far_s: float) -> None:
    found = Candidates.of([law], [1.0], ModelCost(c0_s=0.2, c1=0.4, sizes=(1, 8)), 0.01)
    slack = np.concatenate([np.linspace(-1.0, 2 * found.laws[-1].law.top, 60), [far_s]])
    scores = CandidateScores(found, b).at(slack)
    assert np.isfinite(scores).all()
    assert (scores >= -1e-9).all()
    assert (scores <= (1 + 1e-6) / found.expected_s[:, None]).all()


@settings(max_examples=40)
@given(law=laws(), at=st.floats(-1.0, 60.0))
def test_the_chance_of_a_candidate_is_that_of_its_law(law: Law, at: float) -> None:
    found = Candidates.of([law], [1.0], ModelCost(c0_s=0.2, c1=0.4, sizes=(1, 2, 4)), 0.01)
    scores = CandidateScores(found, 0.1)
    for slack in (at, found.laws[0].law.top, found.laws[1].law.top + 1e-9):
        expected = [float(batch.law.cdf(slack)) for batch in found.laws]
        assert scores.chance(slack) == pytest.approx(expected, abs=1e-6)


@settings(max_examples=25, deadline=None)
@given(law=laws())
def test_without_delay_a_score_is_the_chance_to_be_in_time(law: Law) -> None:
    slack = np.linspace(0, 2 * law.top, 50)
    assert score(law, 2.0, slack, b=0.0, penalty=3.0) == pytest.approx(1.5 * law.cdf(slack), abs=1e-9)
    assert ScoreTable(BatchLaw(size=1, law=law, expected=2.0), 0.0).at(slack) == pytest.approx(law.cdf(slack) / 2, abs=1e-9)


def test_a_heavy_tail_is_kept() -> None:
    samples = np.array([1.0] * 998 + [50.0, 70.0]) + np.linspace(0, 0.5, 1000)
    law = law_of(samples, edges_for(samples, bins=8, top_quantile=0.99))
    assert (law.over, law.over_at) == (pytest.approx(0.01, abs=0.002), pytest.approx(samples[samples > law.edges[-1]].mean()))
    assert law.expected_max(1) == pytest.approx(samples.mean(), rel=0.05)
    assert law.quantile(0.9999) == law.over_at


def test_a_run_time_that_never_varies_is_one_narrow_bin() -> None:
    law = law_of(np.full(30, 0.02), edges_for(np.full(30, 0.02)))
    assert law.expected_max(16) == pytest.approx(0.02, rel=1e-3)
    assert len(law.mass) == 1


def test_a_mixture_weighs_and_even_edges_keep_the_law() -> None:
    short, long = (law_of(np.linspace(a, a + 1, 50), np.linspace(0, 10, 21)) for a in (1.0, 7.0))
    assert mixture([short, long], [3, 1]).mean() == pytest.approx((3 * short.mean() + long.mean()) / 4)
    uneven = Law(edges=np.array([0.0, 1.0, 4.0]), mass=np.array([0.5, 0.5]))
    assert on_even_edges(uneven, 8).mean() == pytest.approx(uneven.mean(), rel=1e-9)


@pytest.mark.parametrize(
    ("edges", "mass", "more"),
    [
        ([0, 1], [0.5], {}),
        ([1, 0], [1.0], {}),
        ([0, 1], [1.0, 0.0], {}),
        ([-1, 1], [1.0], {}),
        ([0, np.nan], [1.0], {}),
        ([0, 1, 2], [1.5, -0.5], {}),
        ([0, 1], [0.5], {"over": 0.5, "over_at": 0.5}),
    ],
)
def test_what_is_no_law_is_refused(edges: list[float], mass: list[float], more: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="law"):
        Law(edges=np.array(edges, float), mass=np.array(mass, float), **more)
    with pytest.raises(ValueError, match="c1"):
        batch_law(law_of(np.ones(3), np.array([0.0, 2.0])), 2, 0.0, 0.0)


def test_classes_join_what_is_alike_and_are_never_many() -> None:
    assert classes_of([0.10, 0.30, 0.105, 0.31]).tolist() == [0, 1, 0, 1]
    assert classes_of(list(np.geomspace(1, 1000, 20))).max() <= 3
    assert classes_of([0.0, 0.0]).tolist() == [0, 0]


# --- samples ------------------------------------------------------------------------------------------------------------


def test_old_samples_are_forgotten_but_never_all() -> None:
    times = RunTimes(LawRules(window_s=10, at_least=3))
    for i in range(20):
        times.add("a", 1.0, float(i))
    for _ in range(20):
        times.add("a", 3.0, 100.0)
    assert times.laws(["a"], 101.0)["a"].mean() == pytest.approx(3.0, rel=0.01)  # drift
    assert times.laws(["a"], 500.0)["a"].mean() == pytest.approx(3.0, rel=0.01)  # nothing newer: still the best there is


def test_an_application_with_few_samples_takes_the_law_of_all() -> None:
    times = RunTimes(LawRules(at_least=5))
    for _ in range(10):
        times.add("known", 1.0, 0.0)
    times.add("new", 9.0, 0.0)
    found = times.laws(["known", "new", "never"], 0.0)
    assert found["known"].mean() < found["new"].mean() < 3
    assert found["never"].mean() == found["new"].mean()


def test_before_any_sample_the_prior_holds_then_served_batches_tell() -> None:
    prior = Law(edges=np.array([0.1, 0.2, 0.4]), mass=np.array([0.5, 0.5]))
    times, cost = RunTimes(LawRules(), prior), ModelCost(c0_s=0.1, c1=0.5, sizes=(1, 4))
    assert times.laws(["a"], 0.0)["a"].mean() == pytest.approx(prior.mean(), rel=1e-3)
    asked = tuple(Request(id=i, app="a", model="m", released_s=0.0, deadline_s=1.0) for i in range(4))
    batch = Batch(model="m", requests=asked, size=4, expected_s=0.1)
    assert times.add_batch(batch, cost, 0.1 + 0.5 * 4 * 0.3, 0.0)
    assert times.laws(["a"], 0.0)["a"].mean() == pytest.approx(0.3, rel=1e-2)
    alone = Batch(model="m", requests=asked[:1], size=1, expected_s=0.1)
    assert times.add_batch(alone, cost, 0.1 + 0.5 * 0.2, 0.0)
    assert times.laws(["a"], 0.0)["a"].mean() == pytest.approx(0.2, rel=1e-2)
    assert not times.add_batch(batch, cost, 9.0, 0.0)  # from now on its members' times are known better
    assert RunTimes(LawRules()).laws(["a"], 0.0) == {}


@pytest.mark.parametrize("factor", [1.0, 3.0], ids=["quiet", "beside a training"])
def test_a_batch_of_one_counts_by_what_such_a_one_usually_takes(factor: float) -> None:
    """c0 is 30 of 40 ms. Half as much again is a picture of 60 ms, not one of 120 = (60 - 30) / 0.25."""
    times = RunTimes(LawRules(at_least=1))
    for _ in range(20):
        times.add("a", 0.04, 0.0)
    one = (Request(id=1, app="b", model="m", released_s=0.0, deadline_s=1.0),)
    batch = Batch(model="m", requests=one, size=1, expected_s=0.04 * factor)
    assert times.add_batch(batch, ModelCost(c0_s=0.03 * factor, c1=0.25 * factor), 0.06 * factor, 0.0)
    assert times.laws(["b"], 0.0)["b"].mean() == pytest.approx(0.06, rel=0.02)
    assert times.laws(["a"], 0.0)["a"].mean() == pytest.approx(0.04, rel=0.02)


# --- costs --------------------------------------------------------------------------------------------------------------


def test_the_fit_finds_what_made_the_batches() -> None:
    rng = np.random.default_rng(0)
    runs = [
        BatchRun(size=k, longest_s=l, took_s=(0.008 + 0.3 * k * l) * float(rng.normal(1, 0.01)))
        for k in (1, 2, 4, 8)
        for l in rng.uniform(0.01, 0.05, 10).tolist()  # noqa: E741
    ]
    cost = fit_cost(runs, (1, 2, 4, 8))
    assert (cost.c0_s, cost.c1) == (pytest.approx(0.008, rel=0.1), pytest.approx(0.3, rel=0.02))
    flat = fit_cost([BatchRun(size=k, longest_s=0.01, took_s=0.02) for k in (1, 2, 4)], (1, 2, 4))
    assert flat.c0_s == pytest.approx(0.02)
    assert 0 < flat.c1 < 1e-3


@pytest.mark.parametrize(
    "bad", [[], [BatchRun(size=1, longest_s=0.0, took_s=1.0)], [BatchRun(size=1, longest_s=1.0, took_s=float("nan"))]]
)
def test_a_fit_without_measurements_is_refused(bad: list[BatchRun]) -> None:
    with pytest.raises(ValueError, match="batch"):
        fit_cost(bad, (1,))


def test_each_state_has_its_slowdown() -> None:
    slow = Slowdown(ModelCost(c0_s=0.01, c1=0.5, sizes=(1, 2)), at_least=3)
    assert slow.factor("training") == 1.0
    for took_s in (0.2, 0.21, 5.0):  # one outlier does not matter
        slow.observe("training", 0.1, took_s)
    assert slow.factor("training") == pytest.approx(2.1)
    assert slow.cost("training") == ModelCost(c0_s=pytest.approx(0.021), c1=pytest.approx(1.05), sizes=(1, 2))
    assert slow.cost("quiet") == ModelCost(c0_s=0.01, c1=0.5, sizes=(1, 2))
    with pytest.raises(ValueError, match="above 0"):
        slow.observe("training", 0.0, 1.0)
    with pytest.raises(ValueError, match="above 0"):
        slow.observe("training", 0.1, float("nan"))
