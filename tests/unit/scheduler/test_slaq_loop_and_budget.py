"""The closed loop on what jobs report, and what a window changes: deadlines, ageing, turns, targets, fall-backs, kept fits."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from configs.errors import ConfigError, UsageError
from scheduler.slaq import Fitting, Forecasts, SlaqJob, decide_shares, reallocate, waited
from scheduler.slaq import forecast as forecast_module
from scheduler.slaq.allocate import doubled, turns
from scheduler.slaq.curves import Damped
from scheduler.slaq.forecast import Source, averaged_delta, forecast
from scheduler.slaq.history import cost_per_iteration
from scheduler.slaq.loop import LoopJob, Policy, fair_policy, run_loop, slaq_policy

STEEP = (1.0, 0.8, 0.64, 0.512, 0.41, 0.328)
FLAT = (1.0, 0.5, 0.49, 0.487, 0.486, 0.4855)


def job(id: str = "a", **fields: object) -> SlaqJob:
    return SlaqJob(**({"id": id, "losses": STEEP, "gpu_s_per_epoch": 5.0} | fields))  # type: ignore[arg-type]


# --- closed loop ------------------------------------------------------------------------------------------------------


def converging(arrivals_s: tuple[float, ...]) -> list[LoopJob]:
    return [
        LoopJob(id=f"{i}", arrival_s=at_s, loss=lambda k: 0.8 ** (k - 1) + 0.5, cost=8.0, converged=0.5, ends=0.5001)
        for i, at_s in enumerate(arrivals_s)
    ]


def test_fits_from_whole_iterations_beat_fair_share_in_the_closed_loop() -> None:
    """S6's second row, with curves fitted to what jobs report instead of the exact ones. Looking one epoch ahead is not optimal for
    the time to 90 percent even with the truth, so the two need not be in order."""
    fitted = run_loop(converging((0, 10, 20)), slaq_policy(), cores=8, epoch_s=1.0).mean_s(0.9)
    fair = run_loop(converging((0, 10, 20)), fair_policy, cores=8, epoch_s=1.0).mean_s(0.9)
    assert fair == pytest.approx(22.667, abs=1e-3)
    assert fitted < fair - 3.0


def test_shares_of_every_epoch_are_within_the_cores() -> None:
    result = run_loop(converging((0, 3, 3, 9)), slaq_policy(), cores=8, epoch_s=1.0)
    assert all(sum(tick.cores) <= 8 for tick in result.ticks)
    assert set(result.ended_s) == {"0", "1", "2", "3"}
    assert all(0 <= frac <= 1 for tick in result.ticks for frac in tick.left_frac)


def window_value(policy: Policy) -> tuple[int, float]:
    """Two short, valuable jobs and one long one in a window of 40 s: how many end, and loss removed times seconds served."""
    lengths, drops = (6.0, 6.0, 25.0), (0.4, 0.4, 0.3)
    jobs = [
        LoopJob(
            id=f"{i}",
            arrival_s=0.0,
            loss=lambda k, drop=drop: 0.2 + drop * 0.8 ** (k - 1),
            cost=8.0,
            converged=0.2,
            ends_k=length,
            deadline_s=40.0,
        )
        for i, (length, drop) in enumerate(zip(lengths, drops, strict=True))
    ]
    ended = run_loop(jobs, policy, cores=8, epoch_s=1.0, until_s=40.0).ended_s
    by_id = {j.id: j for j in jobs}
    served = sum((by_id[i].loss(1) - by_id[i].loss(by_id[i].ends_k)) * (40.0 - at_s) for i, at_s in ended.items())
    return len(ended), served


def test_finish_serves_most_when_only_ended_jobs_count() -> None:
    fair, by_sum, by_finish = (window_value(p) for p in (fair_policy, slaq_policy("sum"), slaq_policy("finish")))
    assert (fair[0], by_sum[0], by_finish[0]) == (3, 3, 3)  # work: 34 of 40 s
    assert by_finish[1] > fair[1] * 1.1
    assert by_finish[1] > by_sum[1]


def test_a_loop_can_be_cut() -> None:
    result = run_loop(converging((0, 100)), fair_policy, cores=8, epoch_s=1.0, until_s=5.0)
    assert len(result.ticks) == 5
    assert result.ended_s == {}


# --- deadlines --------------------------------------------------------------------------------------------------------


def test_the_need_of_a_job_is_its_minimum() -> None:
    """8 epochs of 5 GPU-seconds, 2 already spent: 38 GPU-seconds in 50 s are 76 percent, in quanta 80."""
    slow = job("slow", losses=FLAT, epochs_left=8, into_epoch_gpu_s=2.0, deadline_s=60.0)
    answer = decide_shares([job("steep"), slow], total_pct=100, quantum_pct=10, epoch_s=5.0, now_s=10.0)
    assert answer.shares == {"steep": 20, "slow": 80}
    assert (answer.jobs[1].need_pct, answer.jobs[1].can_end) == (80, True)
    assert "80 pct is the least with which it ends in time" in answer.jobs[1].why
    assert reallocate([job("steep"), replace(slow, deadline_s=None)], total_pct=100, quantum_pct=10, epoch_s=5.0)["slow"] < 30


def test_a_need_follows_the_measured_speed() -> None:
    slow = job(losses=FLAT, epochs_left=8, deadline_s=60.0)
    speed = ((20, 0.4), (60, 0.8), (100, 1.0))
    answer = decide_shares([slow, job("b")], total_pct=100, quantum_pct=10, epoch_s=5.0, speed=speed)
    assert answer.jobs[0].need_pct == 50  # s(50) = 0.7 >= 40 / 60 > s(40) = 0.6


def test_what_cannot_end_gets_only_what_is_left_over() -> None:
    late = job("late", epochs_left=100, deadline_s=20.0)
    flat = job("flat", losses=FLAT)
    assert reallocate([late, flat], total_pct=100, quantum_pct=10, epoch_s=5.0, min_pct=10) == {"late": 0, "flat": 100}
    capped = replace(flat, max_pct=60)
    answer = decide_shares([late, capped], total_pct=100, quantum_pct=10, epoch_s=5.0)
    assert answer.shares == {"late": 40, "flat": 60}
    assert "cannot end in time" in answer.jobs[0].why


def test_when_the_budget_does_not_cover_all_needs_most_jobs_end() -> None:
    jobs = [job(f"j{i}", epochs_left=n, deadline_s=100.0) for i, n in enumerate((4, 12, 6))]  # need 20, 60, 30 pct
    answer = decide_shares(jobs, total_pct=80, quantum_pct=10, epoch_s=5.0)
    assert [j.can_end for j in answer.jobs] == [True, False, True]
    assert answer.shares["j1"] == 0
    heavy = [*jobs[:1], replace(jobs[1], weight=4.0), *jobs[2:]]
    assert [j.can_end for j in decide_shares(heavy, total_pct=80, quantum_pct=10, epoch_s=5.0).jobs] == [True, True, False]


def test_a_job_with_nothing_left_gets_nothing() -> None:
    answer = decide_shares([job(epochs_left=0), job("b")], total_pct=50, quantum_pct=10, epoch_s=5.0)
    assert answer.shares == {"a": 0, "b": 50}
    assert answer.jobs[0].why == "nothing is left to train"


def test_finish_prefers_what_ends_soon_for_much() -> None:
    """Ten GPU-seconds for 0.4 of loss against fifty for the same: the short one first, up to what it can use in the epoch."""
    short, long = job("short", epochs_left=2), job("long", epochs_left=10)
    assert reallocate([short, long], total_pct=100, quantum_pct=10, epoch_s=20.0, objective="finish") == {
        "short": 50,
        "long": 50,
    }
    assert reallocate([short, long], total_pct=100, quantum_pct=10, epoch_s=5.0, objective="finish") == {
        "short": 100,
        "long": 0,
    }


# --- ageing, turns, minimum shares ------------------------------------------------------------------------------------


def test_a_weight_doubles_with_waiting() -> None:
    assert doubled(3.0, 20.0, None) == 3.0
    assert doubled(3.0, 20.0, 10.0) == 12.0
    assert math.isfinite(doubled(1.0, 1e9, 1e-3))


def test_ageing_brings_a_waiting_job_above_its_fair_share_in_the_end() -> None:
    waits: dict[str, float] = {}
    history = []
    for _ in range(40):
        jobs = [
            job("steep", below_fair_s=waits.get("steep", 0.0)),
            job("flat", losses=FLAT, below_fair_s=waits.get("flat", 0.0)),
        ]
        shares = reallocate(jobs, total_pct=100, quantum_pct=10, epoch_s=5.0, min_pct=10, age_s=10.0)
        waits = waited(waits, shares, elapsed_s=5.0)
        history.append(shares["flat"])
    assert history[0] < 50
    assert max(history) >= 50
    without = reallocate(jobs, total_pct=100, quantum_pct=10, epoch_s=5.0, min_pct=10)
    assert without["flat"] == history[0]


def test_waiting_is_paid_back() -> None:
    first = waited({}, {"a": 10, "b": 30}, elapsed_s=4.0)
    assert first == {"a": 4.0, "b": 0.0}
    assert waited(first, {"a": 20, "b": 20}, elapsed_s=3.0) == {"a": 1.0, "b": 0.0}


def test_more_jobs_than_quanta_take_turns() -> None:
    waits: dict[str, float] = {}
    served: dict[str, list[int]] = {f"j{i}": [] for i in range(5)}
    assert turns(20.0, 5.0, 5, 2) == pytest.approx(20 / 15)
    for _ in range(30):
        jobs = [
            job(f"j{i}", losses=tuple(loss * (i + 1) for loss in STEEP), below_fair_s=waits.get(f"j{i}", 0.0), weight=1.0 + i)
            for i in range(5)
        ]
        shares = reallocate(jobs, total_pct=20, quantum_pct=10, epoch_s=5.0, min_pct=10)
        waits = waited(waits, shares, elapsed_s=5.0)
        for id, pct in shares.items():
            served[id].append(pct)
    for got in served.values():
        longest = max(len(gap) for gap in "".join("x" if pct else "." for pct in got).split("x"))
        assert longest <= 2 * 3 + 2  # two turns of three epochs, and the epochs in which they end
    assert sum(served["j4"]) > sum(served["j0"])


def test_older_jobs_win_ties() -> None:
    twins = [job("a", since_s=5.0), job("b", since_s=1.0)]
    assert reallocate(twins, total_pct=30, quantum_pct=10, epoch_s=5.0) == {"a": 10, "b": 20}


# --- forecasts --------------------------------------------------------------------------------------------------------


def test_too_few_losses_are_continued_damped() -> None:
    found = forecast(Source(losses=(1.0, 0.8, 0.7)))
    assert found is not None
    assert isinstance(found.curve, Damped)
    step = averaged_delta((1.0, 0.8, 0.7))
    assert step == pytest.approx(0.75 * 0.2 + 0.25 * 0.1)
    assert found.drop(1) == pytest.approx(0.8 * step)
    assert found.drop(2) == pytest.approx(0.8 * step + 0.64 * step)
    assert found.loss_after(1e6) == pytest.approx(0.7 - 4 * step)
    assert averaged_delta((1.0, 2.0)) == 0.0


def test_a_hint_pins_the_asymptote_of_a_job_that_jumps_about() -> None:
    rng = np.random.default_rng(2)
    losses = tuple(float(0.3 + 0.7 * 0.85**k + abs(rng.normal()) * 0.1) for k in range(15))
    hinted = forecast(Source(losses=losses, target=0.3))
    assert hinted is not None
    assert hinted.floor == 0.3
    assert hinted.last == min(losses)
    assert 0.3 <= hinted.loss_after(100) < 0.31
    reached = forecast(Source(losses=losses, target=0.9))
    assert reached is not None
    assert reached.gain(10) == pytest.approx(0.0, abs=1e-9)


def test_a_fit_starts_anew_where_the_learning_rate_changed() -> None:
    plateau = [0.5 + 0.5 * 0.6**k for k in range(15)]
    after = [0.2 + 0.3 * 0.8**k for k in range(8)]
    losses = tuple(plateau + after)
    anew = forecast(Source(losses=losses, kind="linear", refit_from=len(plateau)))
    assert anew is not None
    assert anew.curve.asymptote == pytest.approx(0.2, abs=1e-3)
    assert anew.loss_after(5) == pytest.approx(0.2 + 0.3 * 0.8**12, abs=1e-3)


def test_a_misfit_falls_back_to_more_history_and_then_to_the_damped_delta() -> None:
    """Losses that jump up by the last points: no falling curve is near them, at no weights and over no window."""
    losses = tuple([1.0 - 0.01 * k for k in range(20)] + [5.0 + 0.2 * k for k in range(5)])
    found = forecast(Source(losses=losses), Fitting(decay=1.0, window=8))
    assert found is not None
    assert found.made_by == "averaged delta, damped"
    assert found.gain(10) == 0.0
    wide = tuple([0.5] * 3 + [0.9 - 0.02 * k for k in range(12)])
    kept = forecast(Source(losses=wide), Fitting(window=8))
    assert kept is not None
    assert kept.made_by == "fit"


def test_fits_are_kept_until_a_job_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    original = forecast_module.make_forecasts

    def counted(sources: list[Source], fitting: Fitting) -> list[object]:
        made.append(len(sources))
        return list(original(sources, fitting))

    monkeypatch.setattr(forecast_module, "make_forecasts", counted)
    kept = Forecasts(size=3)
    first, second = Source(losses=STEEP), Source(losses=FLAT)
    before = kept.of([first, second, first])
    assert kept.of([second, first]) == [before[1], before[0]]
    kept.of([Source(losses=(*STEEP, 0.21)), second])
    assert made == [2, 0, 1]
    kept.of([Source(losses=(*STEEP, 0.2)), second])  # would be the fourth: it starts anew
    assert made[-1] == 2


def test_costs_leave_out_the_first_iteration() -> None:
    assert cost_per_iteration([9.0, 4.0, 6.0]) == 5.0
    assert cost_per_iteration([9.0]) == 9.0
    for wrong in ([], [1.0, 0.0], [math.nan]):
        with pytest.raises(UsageError):
            cost_per_iteration(wrong)


# --- the door ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"gpu_s_per_epoch": 0.0}, "gpu_s_per_epoch"),
        ({"weight": math.nan}, "weight"),
        ({"epochs_left": -1.0}, "epochs_left"),
        ({"into_epoch_gpu_s": math.inf}, "into_epoch_gpu_s"),
        ({"deadline_s": math.nan}, "deadline_s"),
        ({"min_pct": -5}, "min_pct"),
        ({"max_pct": 4}, "max_pct"),
        ({"refit_from": -1}, "refit_from"),
        ({"target": math.inf}, "target"),
    ],
)
def test_jobs_that_make_no_sense_are_refused(fields: dict[str, object], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        reallocate([job(**fields)], total_pct=100, quantum_pct=10, epoch_s=1.0)


@pytest.mark.parametrize(
    "change",
    [
        {"total_pct": -1},
        {"quantum_pct": 0},
        {"epoch_s": 0.0},
        {"epoch_s": math.nan},
        {"now_s": math.inf},
        {"min_pct": -1},
        {"age_s": 0.0},
        {"objective": "max"},
        {"objective": "finish"},
    ],
)
def test_questions_that_make_no_sense_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        reallocate([job()], **({"total_pct": 100, "quantum_pct": 10, "epoch_s": 1.0} | change))  # type: ignore[arg-type]


def test_two_jobs_with_one_id_and_a_wrong_speed_curve_are_refused() -> None:
    with pytest.raises(UsageError, match="two jobs"):
        reallocate([job(), job()], total_pct=100, quantum_pct=10, epoch_s=1.0)
    with pytest.raises(ConfigError):
        reallocate([job()], total_pct=100, quantum_pct=10, epoch_s=1.0, speed=((0, 1.0), (100, 1.0)))
    with pytest.raises(UsageError):
        Fitting(decay=0.0)


def test_no_jobs_and_no_budget() -> None:
    assert reallocate([], total_pct=100, quantum_pct=10, epoch_s=1.0) == {}
    answer = decide_shares([job()], total_pct=0, quantum_pct=10, epoch_s=1.0)
    assert answer.shares == {"a": 0}
    assert answer.jobs[0].why == "there is no budget"
