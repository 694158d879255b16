"""The pacing core in virtual time: shares are kept over every span, whatever pieces jobs are made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.pacing import Account, Ledger, Pacer, TokenBucket, worst_deviation_pct

SPAN_S = 10.0


@dataclass
class Worker:
    """A job of the virtual machine: `costs` are its unsplittable pieces; left_s > 0 while one is being computed."""

    costs: Iterator[float]
    left_s: float = 0.0
    charged_s: float = 0.0  # of the piece in work
    cost_s: float = 0.0
    resumed: bool = False
    pause_until_s: float = 0.0
    pause_s: float = 0.0


def run_machine(
    pacer: Pacer,
    workers: dict[str, Worker],
    *,
    until_s: float,
    cores: Callable[[float], float],
    changes: list[tuple[float, dict[str, float]]] = (),  # type: ignore[assignment]
) -> None:
    """Jobs that may run share `cores(t)` cores equally (at most one each), as an operating system would; 1 ms steps at most."""
    now_s = 0.0
    pending = sorted(changes, key=lambda c: c[0])
    for job in workers:
        pacer.open(job, now_s)
    while now_s < until_s:
        while pending and pending[0][0] <= now_s + 1e-12:
            charge_running(pacer, workers, now_s)  # as the executor does
            pacer.set_shares(pending.pop(0)[1], now_s)
        running = [(j, w) for j, w in workers.items() if _runs(pacer, j, w, now_s)]
        rate = min(1.0, cores(now_s) / len(running)) if running else 0.0
        step_s = _next_step_s(pacer, workers, running, rate, now_s, pending, until_s)
        now_s += step_s
        for job, worker in running:
            worker.left_s -= rate * step_s
            if worker.left_s <= 1e-12:
                pacer.charge(job, worker.cost_s - worker.charged_s, now_s, done=True)
                worker.charged_s = 0.0
                worker.left_s, worker.resumed = 0.0, False
                if worker.pause_s:
                    pacer.rest(job, now_s)
                    worker.pause_until_s = now_s + worker.pause_s
        pacer.check()


def charge_running(pacer: Pacer, workers: dict[str, Worker], now_s: float) -> None:
    for job, worker in workers.items():
        done_s = worker.cost_s - worker.left_s
        if worker.left_s > 0 and done_s > worker.charged_s:
            pacer.charge(job, done_s - worker.charged_s, now_s, done=False)
            worker.charged_s = done_s


def _runs(pacer: Pacer, job: str, worker: Worker, now_s: float) -> bool:
    if worker.left_s > 0:
        return True
    if now_s < worker.pause_until_s - 1e-12:
        return False
    pacer.want(job, now_s)
    if pacer.wait_s(job, now_s, resumed=worker.resumed) > 0:
        worker.resumed = True
        return False
    pacer.start(job, now_s)
    worker.cost_s = worker.left_s = next(worker.costs)
    return True


def _next_step_s(pacer, workers, running, rate, now_s, pending, until_s) -> float:  # type: ignore[no-untyped-def]
    steps = [until_s - now_s, 0.05]
    steps += [w.left_s / rate for _, w in running if rate > 0]
    steps += [c[0] - now_s for c in pending[:1]]
    for job, worker in workers.items():
        if worker.left_s > 0:
            continue
        if now_s < worker.pause_until_s - 1e-12:
            steps.append(worker.pause_until_s - now_s)
        else:
            steps.append(pacer.wait_s(job, now_s, resumed=worker.resumed))
    return max(1e-6, min(steps))


def random_costs(seed: int, low_s: float, high_s: float) -> Iterator[float]:
    rng = np.random.default_rng(seed)
    while True:
        yield float(rng.uniform(low_s, high_s))


SHARES = st.lists(st.integers(0, 100), min_size=1, max_size=4)


@settings(max_examples=25, deadline=None)
@given(
    plans=st.lists(SHARES, min_size=1, max_size=3),
    largest_s=st.sampled_from([0.002, 0.05, 0.2, 0.45]),
    seed=st.integers(0, 10_000),
)
def test_always_ready_jobs_get_their_share_over_any_ten_seconds(plans: list[list[int]], largest_s: float, seed: int) -> None:
    jobs = [f"j{i}" for i in range(4)]
    pacer = Pacer(capacity_pct=400)
    workers = {j: Worker(random_costs(seed + i, largest_s / 4, largest_s)) for i, j in enumerate(jobs)}
    changes = [(i * 9.0, dict(zip(jobs, map(float, plan), strict=False))) for i, plan in enumerate(plans)]
    run_machine(pacer, workers, until_s=9.0 * len(plans) + 12.0, cores=lambda t: 4.0, changes=changes)
    for job in jobs:
        low, high = worst_deviation_pct(pacer.ledger(job, 9.0 * len(plans) + 12.0), SPAN_S)
        assert -5.0 <= low <= high <= 5.0


@settings(max_examples=15, deadline=None)
@given(
    cut=st.lists(st.floats(0.05, 1.0), min_size=2, max_size=5),
    mode=st.sampled_from(["capped", "work-conserving"]),
    seed=st.integers(0, 10_000),
)
def test_a_core_promised_to_the_last_percent_still_keeps_shares(cut: list[float], mode: str, seed: int) -> None:
    shares = {f"j{i}": 100.0 * c / sum(cut) for i, c in enumerate(cut)}
    pacer = Pacer(capacity_pct=100, mode=mode)  # type: ignore[arg-type]
    workers = {j: Worker(random_costs(seed + i, 0.01, 0.1)) for i, j in enumerate(shares)}
    run_machine(pacer, workers, until_s=30.0, cores=lambda t: 1.0, changes=[(0.0, shares)])
    for job in shares:
        low, high = worst_deviation_pct(pacer.ledger(job, 30.0), SPAN_S)
        assert -5.0 <= low <= high <= 5.0


@settings(max_examples=12, deadline=None)
@given(pauses=st.lists(st.floats(0.0, 0.5), min_size=3, max_size=3), seed=st.integers(0, 10_000))
def test_lending_never_takes_from_a_promise(pauses: list[float], seed: int) -> None:
    shares = {"a": 50.0, "b": 90.0, "always": 60.0}
    pacer = Pacer(capacity_pct=200, mode="work-conserving")
    workers = {j: Worker(random_costs(seed + i, 0.01, 0.15)) for i, j in enumerate(shares)}
    workers["a"].pause_s, workers["b"].pause_s = pauses[0], pauses[1]
    run_machine(pacer, workers, until_s=25.0, cores=lambda t: 2.0, changes=[(0.0, shares)])
    low, _ = worst_deviation_pct(pacer.ledger("always", 25.0), SPAN_S)
    assert low >= -5.0


def test_work_conserving_gives_away_what_nobody_wants_in_proportion() -> None:
    pacer = Pacer(capacity_pct=100, mode="work-conserving")
    workers = {j: Worker(random_costs(1, 0.01, 0.02)) for j in ("a", "b", "lazy")}
    workers["lazy"].pause_until_s = math.inf
    run_machine(pacer, workers, until_s=20.0, cores=lambda t: 1.0, changes=[(0.0, {"a": 20.0, "b": 30.0, "lazy": 50.0})])
    received = {j: pacer.ledger(j, 20.0).last().received_s / 20.0 for j in workers}
    assert received["a"] == pytest.approx(0.4, abs=0.02)
    assert received["b"] == pytest.approx(0.6, abs=0.02)
    assert received["lazy"] == 0.0


def test_capped_gives_nothing_away() -> None:
    pacer = Pacer(capacity_pct=100)
    workers = {j: Worker(random_costs(1, 0.01, 0.02)) for j in ("a", "lazy")}
    workers["lazy"].pause_until_s = math.inf
    run_machine(pacer, workers, until_s=20.0, cores=lambda t: 1.0, changes=[(0.0, {"a": 20.0, "lazy": 50.0})])
    assert pacer.ledger("a", 20.0).last().received_s == pytest.approx(4.0, abs=0.1)


@settings(max_examples=25, deadline=None)
@given(starved_s=st.floats(0.0, 3.0), share=st.integers(5, 100), piece_s=st.floats(0.01, 0.2))
def test_after_a_starved_time_a_job_catches_up_by_at_most_the_burst(starved_s: float, share: int, piece_s: float) -> None:
    pacer = Pacer(capacity_pct=100, burst_s=0.25)
    worker = Worker(random_costs(3, piece_s, piece_s))
    run_machine(
        pacer,
        {"a": worker},
        until_s=25.0,
        cores=lambda t: 0.001 if 10.0 <= t < 10.0 + starved_s else 1.0,
        changes=[(0.0, {"a": float(share)})],
    )
    _, high = worst_deviation_pct(pacer.ledger("a", 25.0), SPAN_S)
    assert high <= 100.0 * (0.25 + piece_s + 0.01) / SPAN_S
    if share < 90 and starved_s * share / 100 <= 0.2:  # all of it fits into the burst: nothing is lost in the end
        assert pacer.ledger("a", 25.0).last().received_s == pytest.approx(0.25 * share, abs=piece_s + 0.02)


def test_share_zero_never_runs_and_unknown_jobs_have_zero() -> None:
    for mode in ("capped", "work-conserving"):
        pacer = Pacer(capacity_pct=100, mode=mode)
        pacer.open("a", 0.0)
        pacer.open("b", 0.0)
        pacer.set_shares({"b": 50.0}, 0.0)
        pacer.want("a", 0.0)
        assert pacer.wait_s("a", 100.0) == math.inf


def test_shares_set_before_the_job_opens_count_when_it_opens() -> None:
    pacer = Pacer(capacity_pct=100)
    pacer.set_shares({"late": 40.0}, 0.0)
    pacer.open("late", 5.0)
    assert pacer.share_pct("late") == 40.0


@pytest.mark.parametrize("shares", [{"a": 101.0}, {"a": 60.0, "b": 41.0}, {"a": -1.0}, {"a": math.nan}, {"a": math.inf}])
def test_impossible_shares_are_refused_and_change_nothing(shares: dict[str, float]) -> None:
    pacer = Pacer(capacity_pct=100)
    pacer.open("a", 0.0)
    pacer.set_shares({"a": 30.0}, 0.0)
    with pytest.raises(ValueError, match="share"):
        pacer.set_shares(shares, 1.0)
    assert pacer.share_pct("a") == 30.0


def test_a_share_above_one_core_is_not_lent_more() -> None:
    pacer = Pacer(capacity_pct=200, mode="work-conserving")
    for job in ("big", "small"):
        pacer.open(job, 0.0)
    pacer.set_shares({"big": 150.0, "small": 30.0}, 0.0)
    for job in ("big", "small"):
        pacer.want(job, 0.0)
    pacer.check()
    pacer.start("small", 0.0)
    pacer.charge("small", 0.5, 0.0, done=True)
    assert pacer.wait_s("small", 0.0, resumed=True) == pytest.approx(1.0)  # 30 + all of the 20 pct that are left


def test_bucket_arithmetic_by_hand() -> None:
    bucket = TokenBucket(rate_pct=50.0, burst_s=0.2, updated_s=0.0)
    bucket.charge(1.0, 1.0)
    assert bucket.balance_s == pytest.approx(-0.5)
    assert bucket.wait_s() == pytest.approx(1.0)
    bucket.fill(2.0)
    assert bucket.wait_s() == 0.0
    bucket.fill(100.0)
    assert bucket.balance_s == pytest.approx(0.2)
    bucket.fill(50.0)  # time does not run backwards
    assert bucket.balance_s == pytest.approx(0.2)


def test_an_uncharged_piece_is_not_robbed_by_the_cap() -> None:
    bucket = TokenBucket(rate_pct=90.0, burst_s=0.1, updated_s=0.0)
    bucket.fill(1.0, cut=False)
    bucket.charge(1.0, 1.0)
    assert bucket.balance_s == pytest.approx(-0.1)


def test_ledger_is_bounded_and_interpolates() -> None:
    ledger = Ledger(0.0, keep_s=5.0, resolution_s=0.1)
    for i in range(1, 100_001):
        ledger.add(Account(at_s=i / 1000, received_s=i / 2000))
    assert len(ledger.entries()) < 5.0 * 2 / 0.1 + 20
    assert ledger.at(98.0333).received_s == pytest.approx(98.0333 / 2)
    assert ledger.at(1e9) == ledger.last()
    assert ledger.entries()[0].at_s <= 95.0


def test_worst_deviation_finds_the_worst_span_by_hand() -> None:
    ledger = Ledger(0.0, keep_s=100.0)
    # Promised 1 s in every 2; received nothing in [4, 6), everything else in time.
    for t, received in ((4.0, 2.0), (6.0, 2.0), (20.0, 9.0)):
        ledger.add(Account(at_s=t, promised_s=t / 2, received_s=received))
    low, high = worst_deviation_pct(ledger, 10.0)
    assert low == pytest.approx(-10.0)
    assert high == 0.0
    assert worst_deviation_pct(ledger, 4.0)[0] == pytest.approx(-25.0)
    assert worst_deviation_pct(ledger, 30.0) == (0.0, 0.0)


def test_unknown_mode_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="capped, work-conserving"):
        Pacer(capacity_pct=100, mode="greedy")  # type: ignore[arg-type]


def test_a_second_lane_for_a_job_is_refused() -> None:
    pacer = Pacer(capacity_pct=100)
    pacer.open("a", 0.0)
    with pytest.raises(ValueError, match="'a'"):
        pacer.open("a", 1.0)
