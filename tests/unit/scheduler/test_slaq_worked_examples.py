"""S0 to S6 of the chapter's worked examples, with their answers. T = 10 s unless said; losses count iterations from k = 1."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from scheduler.slaq import SlaqJob, decide_shares, reallocate
from scheduler.slaq.allocate import Bidder, allocate, fair
from scheduler.slaq.curves import Linear, Sublinear, fit_curves
from scheduler.slaq.forecast import Source, forecast, last_delta_repeated, ratio_rule
from scheduler.slaq.history import deltas, largest_delta, normalised_deltas
from scheduler.slaq.loop import LoopJob, Policy, exact_policy, fair_policy, run_loop

Truth = Callable[[float], float]
EPOCH_S = 10.0


def sublinear(k: float) -> float:
    return 1 / (0.02 * k * k + 0.1 * k + 1) + 0.2


def linear(k: float) -> float:
    return 0.8 ** (k - 3) + 0.5


def slow(k: float) -> float:
    return 0.9 ** (k - 1) + 0.1


def history(truth: Truth, n: int) -> tuple[float, ...]:
    return tuple(truth(k) for k in range(1, n + 1))


# --- S0, S1, S2: histories and fits -----------------------------------------------------------------------------------


def test_s0_normalised_deltas() -> None:
    losses = [10, 6, 4, 3, 2.5]
    assert deltas(losses).tolist() == [4, 2, 1, 0.5]
    assert normalised_deltas(losses).tolist() == [1, 0.5, 0.25, 0.125]
    assert largest_delta(losses) == 4


def test_s0_fractional_iterations() -> None:
    job = SlaqJob(id="a", losses=history(linear, 10), gpu_s_per_epoch=48.0)
    answer = decide_shares([job], total_pct=1600, quantum_pct=100, epoch_s=EPOCH_S)
    assert answer.jobs[0].iterations == pytest.approx(3.3333, abs=1e-4)
    assert EPOCH_S / answer.jobs[0].iterations == pytest.approx(3.0)  # seconds per iteration


def test_s1_exact_sublinear_history() -> None:
    losses = history(sublinear, 10)
    assert losses[:4] == pytest.approx((1.092857, 0.98125, 0.875676, 0.781395), abs=1e-6)
    curve = fit_curves([losses], "sublinear")[0]
    assert isinstance(curve, Sublinear)
    assert (curve.a, curve.b, curve.c, curve.d) == pytest.approx((0.02, 0.1, 1.0, 0.2), abs=1e-6)
    assert curve.at(20) == pytest.approx(0.290909, abs=1e-6)
    assert last_delta_repeated(losses, 10) == pytest.approx(0.109091, abs=1e-6)
    assert ratio_rule(losses, 10) == pytest.approx(0.216805, abs=1e-6)


def test_s1_exact_linear_history() -> None:
    losses = history(linear, 10)
    assert losses[-1] == pytest.approx(0.709715, abs=1e-6)
    curve = fit_curves([losses], "linear")[0]
    assert isinstance(curve, Linear)
    assert (curve.mu, curve.shift, curve.c) == pytest.approx((0.8, 3.0, 0.5), abs=1e-6)
    assert curve.at(20) == pytest.approx(0.522518, abs=1e-6)
    repeated = last_delta_repeated(losses, 10)
    assert repeated == pytest.approx(0.185427, abs=1e-6)
    assert repeated / linear(20) - 1 == pytest.approx(-0.645, abs=1e-3)
    assert ratio_rule(losses, 10) == pytest.approx(0.347980, abs=1e-6)


def test_s1_wrong_class_on_exact_data() -> None:
    assert fit_curves([history(linear, 10)], "sublinear", decay=0.8)[0].at(20) == pytest.approx(0.4738, abs=1e-4)
    assert fit_curves([history(sublinear, 10)], "linear", decay=0.8)[0].at(20) == pytest.approx(0.2878, abs=1e-4)


@pytest.mark.parametrize(("truth", "kind"), [(sublinear, "sublinear"), (linear, "linear")])
def test_s1_an_undeclared_class_is_found(truth: Truth, kind: str) -> None:
    found = forecast(Source(losses=history(truth, 10)))
    assert found is not None
    assert found.curve.kind == kind
    assert found.loss_after(10) == pytest.approx(truth(20), abs=1e-6)


@pytest.mark.parametrize(("decay", "loss", "off"), [(1.0, 0.396, -0.219), (0.8, 0.5395, 0.063), (0.6, 0.5211, 0.027)])
def test_s2_newest_points_weigh_most(decay: float, loss: float, off: float) -> None:
    losses = [linear(k) + (1 if k <= 4 else 0) for k in range(1, 16)]
    predicted = fit_curves([losses], "linear", decay=decay)[0].at(25)
    assert predicted == pytest.approx(loss, abs=0.005)
    assert predicted / linear(25) - 1 == pytest.approx(off, abs=0.01)


# --- S3, S4, S5: one allocation ---------------------------------------------------------------------------------------

JOBS = (
    SlaqJob(id="J1", losses=history(linear, 10), gpu_s_per_epoch=20.0),
    SlaqJob(id="J2", losses=history(sublinear, 5), gpu_s_per_epoch=10.0),
    SlaqJob(id="J3", losses=history(slow, 40), gpu_s_per_epoch=5.0),
)


def cores(jobs: Sequence[SlaqJob], total: int, least: int = 1, objective: str = "sum") -> tuple[int, ...]:
    shares = reallocate(jobs, total_pct=100 * total, quantum_pct=100, epoch_s=EPOCH_S, min_pct=100 * least, objective=objective)
    return tuple(pct // 100 for pct in shares.values())


def test_s3_largest_steps_and_cumulative_gains() -> None:
    assert [largest_delta(job.losses) for job in JOBS] == pytest.approx([0.3125, 0.111607, 0.1], abs=1e-6)
    expected = {
        "J1": (0.0708, 0.1342, 0.1909, 0.2416, 0.2869, 0.3275),
        "J2": (0.6179, 1.1367, 1.5709, 1.9345, 2.2400, 2.4977),
        "J3": (0.0312, 0.0565, 0.0770, 0.0935, 0.1070, 0.1178),
    }
    for job in JOBS:
        found = forecast(job.source)
        assert found is not None
        got = [found.gain(a * EPOCH_S / job.gpu_s_per_epoch) for a in range(1, 7)]
        assert got == pytest.approx(expected[job.id], abs=6e-5)


@pytest.mark.parametrize(
    ("total", "shares", "gain"),
    [(3, (1, 1, 1), 0.7200), (6, (1, 4, 1), 2.0366), (8, (1, 6, 1), 2.5998), (12, (1, 10, 1), 3.3021)],
)
def test_s3_the_sum_objective(total: int, shares: tuple[int, ...], gain: float) -> None:
    answer = decide_shares(JOBS, total_pct=100 * total, quantum_pct=100, epoch_s=EPOCH_S, min_pct=100)
    assert tuple(job.pct // 100 for job in answer.jobs) == shares == cores(JOBS, total)
    assert sum(job.gain for job in answer.jobs) == pytest.approx(gain, abs=6e-5)
    best = max(
        (split for split in itertools.product(range(1, total), repeat=3) if sum(split) == total), key=lambda s: gain_of(s)
    )
    assert best == shares


def gain_of(split: Sequence[int]) -> float:
    truths = ((linear, 10, 20.0, 0.3125), (sublinear, 5, 10.0, 0.111607), (slow, 40, 5.0, 0.1))
    return sum((f(k) - f(k + a * EPOCH_S / cs)) / unit for a, (f, k, cs, unit) in zip(split, truths, strict=True))


def test_s3_fair_share_gains_less() -> None:
    split = fair([None] * 3, 8)
    assert split == [3, 3, 2]
    assert gain_of(split) == pytest.approx(1.8183, abs=1e-4)


def test_s3_minimum_share_and_weights() -> None:
    assert cores(JOBS, 12, least=3) == (3, 6, 3)
    assert cores([replace(JOBS[0], weight=6.0), *JOBS[1:]], 8) == (3, 4, 1)
    assert cores([replace(JOBS[0], weight=3.0), *JOBS[1:]], 8) == (1, 6, 1)


def s4_gain(truth: Truth, k: float, cost: float, unit: float, whole: bool) -> Callable[[int], float]:
    def gain(units: int) -> float:
        n = units * EPOCH_S / cost
        return (truth(k) - truth(k + (math.floor(n) if whole else n))) / unit

    return gain


@pytest.mark.parametrize(("whole", "shares", "total"), [(False, [7, 1], 0.8588), (True, [1, 7], 0.1267)])
def test_s4_whole_iterations_stall_the_greedy(whole: bool, shares: list[int], total: float) -> None:
    gains = [s4_gain(linear, 4, 40.0, 0.3125, whole), s4_gain(slow, 40, 5.0, 0.1, whole)]
    got = allocate([Bidder(gain=g) for g in gains], 8)
    assert got == shares
    assert sum(g(a) for g, a in zip(gains, got, strict=True)) == pytest.approx(total, abs=6e-5)
    best = max(range(1, 8), key=lambda a: gains[0](a) + gains[1](8 - a))
    assert best == (4 if whole else 7)
    if whole:
        assert gains[0](4) + gains[1](4) == pytest.approx(0.6055, abs=6e-5)


def test_s4_the_box_keeps_iterations_fractional() -> None:
    jobs = [
        SlaqJob(id="S1j", losses=history(linear, 4), gpu_s_per_epoch=40.0),
        SlaqJob(id="S2j", losses=history(slow, 40), gpu_s_per_epoch=5.0),
    ]
    assert cores(jobs, 8) == (7, 1)  # four losses are too few for a curve: the damped delta says the same


def test_s5_the_min_objective_feeds_the_worst_job() -> None:
    futures = [forecast(job.source) for job in JOBS]
    assert [f.remaining_frac(0) for f in futures if f] == pytest.approx([0.1342, 0.5600, 0.0164], abs=6e-5)
    split = cores(JOBS, 8, objective="minmax")
    assert split == (1, 6, 1)
    after = [f.remaining_frac(a * EPOCH_S / j.gpu_s_per_epoch) for f, a, j in zip(futures, split, JOBS, strict=True) if f]
    assert after == pytest.approx([0.1200, 0.2478, 0.0133], abs=6e-5)


def test_s5_the_printed_rule_feeds_the_best_job() -> None:
    """What the text prints, arg min, gives (1, 1, 6): kept to show that it is not what we do."""
    left = [forecast(job.source) for job in JOBS]

    def remaining(j: int, units: int) -> float:
        found = left[j]
        assert found is not None
        return found.remaining_frac(units * EPOCH_S / JOBS[j].gpu_s_per_epoch)

    shares = [1, 1, 1]
    for _ in range(5):
        shares[int(np.argmin([remaining(j, a) for j, a in enumerate(shares)]))] += 1
    assert shares == [1, 1, 6]
    assert [remaining(j, a) for j, a in enumerate(shares)] == pytest.approx([0.1200, 0.4828, 0.0046], abs=6e-5)


# --- S6: the closed loop ----------------------------------------------------------------------------------------------


def times_s(arrivals: Sequence[float], policy: Policy, ends: float = 0.5 + 1e-4) -> list[float]:
    jobs = [
        LoopJob(id=f"{i}", arrival_s=at_s, loss=lambda k: 0.8 ** (k - 1) + 0.5, cost=8.0, converged=0.5, ends=ends)
        for i, at_s in enumerate(arrivals)
    ]
    reached = run_loop(jobs, policy, cores=8, epoch_s=1.0).reached_s[0.9]
    return [reached[job.id] for job in jobs]


@pytest.mark.parametrize(
    ("arrivals", "fair_s", "slaq_s", "means"),
    [
        ((0, 15, 30), [11, 24, 31], [11, 12, 14], (22.0, 12.33)),
        ((0, 10, 20), [11, 26, 31], [13, 23, 14], (22.67, 16.67)),
        ((0, 5, 10, 15), [20, 35, 40, 42], [42, 37, 32, 27], (34.25, 34.5)),
    ],
)
def test_s6_the_closed_loop(
    arrivals: Sequence[float], fair_s: list[int], slaq_s: list[int], means: tuple[float, float]
) -> None:
    got = times_s(arrivals, fair_policy), times_s(arrivals, exact_policy)
    assert got == (fair_s, slaq_s)
    assert tuple(sum(times) / len(times) for times in got) == pytest.approx(means, abs=0.01)


def test_s6_slaq_loses_when_jobs_leave_at_the_mark() -> None:
    """It delays those that are about to end."""
    at_mark = 0.5 + 0.1
    assert times_s((0, 10, 20), fair_policy, at_mark) == [11, 12, 12]
    assert times_s((0, 10, 20), exact_policy, at_mark) == [13, 16, 12]
