"""The worked examples F1 to F6 of papers/fluid.md, section 9, to the digit."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from fractions import Fraction

import pytest

from scheduler.fluid import (
    AS_PRINTED,
    Layout,
    Pool,
    Rules,
    Trial,
    Width,
    dynamic_widths,
    fifo,
    fluid,
    leftover_widths,
    packing_gains,
    plan_group,
    share_max,
    static_widths,
    time_s,
    width_max,
)
from scheduler.fluid.groups import Report, SuccessiveHalving, group_of
from scheduler.fluid.packing import fastest_width, share_max_of
from scheduler.fluid.widths import Verdict

HALF = Fraction(1, 2)


def trials(*h_s: float, alpha: float = 1.0, beta: float = 1.0) -> list[Trial]:
    return [Trial(id=f"t{i}", h_s=h, alpha=alpha, beta=beta) for i, h in enumerate(h_s)]


def ends(found: dict[str, float]) -> list[float]:
    return [pytest.approx(found[id], abs=1e-9) for id in sorted(found)]  # type: ignore[misc]


def seated(pool: Pool, *widths: Width) -> Layout:
    layout = Layout(range(pool.gpus), pool.share_max)
    for i, width in enumerate(widths):
        assert layout.seat(f"t{i}", width)
    return layout


def verdicts(
    running: Sequence[Trial], pool: Pool, widths: Sequence[Width], epsilon_s: float, actual: bool = True
) -> list[Verdict]:
    found = dynamic_widths(running, seated(pool, *widths), pool, epsilon_s=epsilon_s, actual=actual)
    found.layout.check()
    return list(found.verdicts.values())


# --- F1 ---------------------------------------------------------------------------------------------------------------

TOY = Pool(gpus=5, share_max=2, width_max=4)


def test_f1_the_toy_of_the_text() -> None:
    group = trials(4, 4, 12, 30)
    assert list(static_widths(group, TOY).values()) == [HALF, HALF, 1, 3]
    course = fluid(group, TOY, AS_PRINTED)
    assert ends(course.end_s) == [4, 4, 12, 10]
    assert course.makespan_s == 12
    assert fifo(group, 5).makespan_s == 30


def test_f1_with_overheads() -> None:
    course = fluid(trials(4, 4, 12, 30, alpha=1.2, beta=1.1), TOY, AS_PRINTED)
    assert ends(course.end_s) == [4.8, 4.8, 12, 12.1]
    assert course.makespan_s == pytest.approx(12.1)


def test_f1_the_best_of_all_widths_and_orders() -> None:
    """By trying them all; a schedule that reaches it is 12 on five GPUs, then 30 on four beside the two packed."""
    assert best_makespan((4.0, 4.0, 12.0, 30.0), gpus=5, share=2) == pytest.approx(9.9)


def best_makespan(h_s: Sequence[float], *, gpus: int, share: int) -> float:
    """Least makespan over widths 1/share, 1, .. gpus and orders in which trials are started on the GPUs that are free first, without
    overheads. Written apart from the code under test: a GPU is `share` places, each with the time at which it is free."""
    widths = [Fraction(1, share), *map(Fraction, range(1, gpus + 1))]
    best = float("inf")
    for order in set(itertools.permutations(h_s)):
        for chosen in itertools.product(widths, repeat=len(order)):
            best = min(best, list_schedule(order, chosen, gpus, share, best))
    return best


def list_schedule(order: Sequence[float], widths: Sequence[Width], gpus: int, share: int, limit: float) -> float:
    free = [[0.0] * share for _ in range(gpus)]
    last = 0.0
    for h_s, width in zip(order, widths, strict=True):
        if width < 1:
            place = min(range(gpus), key=lambda g: min(free[g]))
            slot = free[place].index(min(free[place]))
            free[place][slot] += h_s
            last = max(last, free[place][slot])
        else:
            whole = heapq.nsmallest(int(width), range(gpus), key=lambda g: max(free[g]))
            end = max(max(free[g]) for g in whole) + h_s / int(width)
            for g in whole:
                free[g] = [end] * share
            last = max(last, end)
        if last >= limit:
            return last
    return last


# --- F2, F3 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("alpha", "makespan_s"), [(1.0, 6.0), (1.3, 7.8)])
def test_f2_small_trials_fill_shelves(alpha: float, makespan_s: float) -> None:
    course = fluid(trials(6, 5, 4, 3, 2, 1, alpha=alpha), Pool(gpus=2, share_max=2), AS_PRINTED)
    assert {stage.width for stages in course.stages.values() for stage in stages} == {HALF}
    assert [course.stages[t][0].gpus for t in ("t0", "t1", "t2", "t3")] == [(0,), (0,), (1,), (1,)]
    assert (course.start_s["t4"], course.start_s["t5"]) == (pytest.approx(3 * alpha), pytest.approx(4 * alpha))
    assert course.makespan_s == pytest.approx(makespan_s)
    assert fifo(trials(6, 5, 4, 3, 2, 1), 2).makespan_s == 11


def test_f3_measured_packing() -> None:
    times = [100.0, 120.0, 150.0, 210.0]
    assert packing_gains(times) == pytest.approx((2 / 5, 1 / 6, -1 / 20))
    assert share_max(times, gain_min=0.1) == 3


def test_f3_packing_of_the_model() -> None:
    gains = packing_gains([1.2**p for p in range(6)])
    assert gains == pytest.approx((2 / 5, 1 / 5, 1 / 10, 1 / 25, 0.0))
    assert share_max_of(1.2, gain_min=0.1) == 3, "a gain of exactly the threshold does not count"


@pytest.mark.parametrize(("beta", "fastest", "widest"), [(1.1, 10, 9), (1.25, 4, 3), (1.5, 2, 1)])
def test_f3_scaling(beta: float, fastest: int, widest: int) -> None:
    assert fastest_width(beta, most=64) == fastest
    assert width_max(beta, most=64) == widest
    [trial] = trials(1.0, beta=beta)
    times = {w: time_s(trial, Fraction(w)) for w in range(1, 20)}
    assert times[fastest] == pytest.approx(min(times.values()))
    assert times[fastest + 1] == pytest.approx(times[fastest]), "the card's values are ties"


# --- F4 ---------------------------------------------------------------------------------------------------------------


def test_f4_no_change_leaves_a_gpu_idle() -> None:
    long, longer = verdicts(trials(8, 18), TOY, [Fraction(1), Fraction(3)], 0.0)
    assert (long.ideal, longer.ideal) == (1, 3)
    assert not long.changes
    assert not longer.changes
    assert len(seated(TOY, Fraction(1), Fraction(3)).idle()) == 1


def test_f4_the_cards_numbers() -> None:
    """Shares at t = 4, and both sides of every test that algorithm 3.2 makes in the example."""
    assert [round(h_s * 5 / (8 + 18), 2) for h_s in (8, 18)] == [1.54, 3.46]

    def h_s(left_s: float, width: int | Width, *, alpha: float = 1.0, beta: float = 1.0) -> float:
        return time_s(trials(left_s, alpha=alpha, beta=beta)[0], Fraction(width))

    assert (h_s(2, 4) + 0.5, h_s(2, 4) + 1.5, h_s(2, 1)) == (1, 2, 2)
    shrink, keep = 1 * (h_s(8, 1) + 0.5), 2 * h_s(8, 2)
    assert (shrink, keep) == (8.5, 8)
    assert (h_s(24, 3) + 0.5, h_s(24, 2)) == (8.5, 12)
    assert (1 * (h_s(8, 1, beta=1.2) + 0.5), 2 * h_s(8, 2, beta=1.2)) == (8.5, pytest.approx(9.6))
    assert (h_s(24, 3, beta=1.2) + 0.5, h_s(24, 2, beta=1.2)) == (pytest.approx(12.02), pytest.approx(14.4))
    assert (h_s(10, 1, alpha=1.4) + 1, h_s(10, HALF, alpha=1.4)) == (11, pytest.approx(14))


@pytest.mark.parametrize(("epsilon_s", "end_s"), [(0.5, 11.0), (1.5, 12.0)])
def test_f4_growing_must_pay_back(epsilon_s: float, end_s: float) -> None:
    [told] = verdicts(trials(2), TOY, [Fraction(1)], epsilon_s)
    assert (told.ideal, told.pays, told.granted) == (4, end_s < 12, 4 if end_s < 12 else 1)
    course = fluid(trials(4, 4, 12, 30), TOY, Rules(epsilon_s=epsilon_s, sharing="nominal"))
    assert [4, 4, end_s, 10] == ends(course.end_s)


@pytest.mark.parametrize(("beta", "shrinks"), [(1.0, False), (1.2, True)])
def test_f4_shrinking_must_save_gpu_seconds(beta: float, shrinks: bool) -> None:
    """Both trials pass or fail as printed; the one that grows needs the GPU that the other gives up (card, section 5)."""
    pool = Pool(gpus=4, share_max=2, width_max=4)
    short, long = verdicts(trials(8, 24, beta=beta), pool, [Fraction(2), Fraction(2)], 0.5)
    assert (short.ideal, long.ideal) == (1, 3)
    assert (short.pays, long.pays) == (shrinks, True)
    assert (short.granted, long.granted) == ((1, 3) if shrinks else (2, 2))


def test_f4_unpacking() -> None:
    """In the paper's convention a trial of width 1/2 is slow also when it is alone; ours knows better."""
    pool = Pool(gpus=1, share_max=2)
    alone = trials(10, alpha=1.4)
    [told] = verdicts(alone, pool, [HALF], 1.0, actual=False)
    assert (told.ideal, told.pays, told.granted) == (1, True, 1)
    [told] = verdicts(alone, pool, [HALF], 1.0)
    assert (told.pays, told.granted) == (False, HALF)


# --- F5, F6 -----------------------------------------------------------------------------------------------------------


def test_f5_successive_halving_as_groups() -> None:
    tuner = SuccessiveHalving(trials=tuple(f"t{i}" for i in range(9)), r=1, eta=3)
    pool = Pool(gpus=4, share_max=2, width_max=4)
    assert tuner.rungs() == ((9, 1), (3, 3), (1, 9))
    told: list[Report] = []
    seconds, widths, waits = [], [], []
    while asks := tuner.ask(told):
        group = group_of("rung", asks, {a.trial: 1.0 for a in asks})
        course = fluid(group.trials, pool, AS_PRINTED)
        seconds.append(course.makespan_s)
        waits.append(fifo(group.trials, 4).makespan_s)
        widths.append({s[0].width for s in course.stages.values()})
        told += [Report(trial=a.trial, budget=a.budget, score=-int(a.trial[1:])) for a in asks]
    assert widths == [{HALF}, {1}, {4}]
    assert seconds == [2, 2, 1.5]
    assert waits == [3, 2, 6]
    assert (sum(seconds), sum(waits)) == (5.5, 11)


def test_f6_rounding_and_the_leftover_pass() -> None:
    group, pool = trials(199, 1), Pool(gpus=2, share_max=2, width_max=2)
    assert list(static_widths(group, pool).values()) == [1, HALF]
    assert fluid(group, pool, AS_PRINTED).makespan_s == 199
    assert list(leftover_widths(group, pool, AS_PRINTED).values()) == [2, HALF]
    assert plan_group(group, pool, AS_PRINTED).makespan_s["fluid"] == pytest.approx(100.5)


# --- numbers of the card outside its section 9 ------------------------------------------------------------------------


def test_the_bound_of_eq_3_1_under_the_model() -> None:
    """Section 3: O^p = 1 - alpha (p - 1) / p; packing up to c pays for alpha < c / (c - 1), that is c < alpha / (alpha - 1)."""
    for alpha in (1.05, 1.2, 1.5, 1.9):
        gains = packing_gains([alpha**p for p in range(8)])
        assert gains == pytest.approx([1 - alpha * (p - 1) / p for p in range(2, 9)])
        for c in range(2, 9):
            per_trial = [time_s(Trial(id="t", h_s=1.0, alpha=alpha), Fraction(1, p)) / p for p in range(1, c + 1)]
            falls = all(a > b for a, b in zip(per_trial, per_trial[1:], strict=False))
            assert falls == (alpha < c / (c - 1)), (alpha, c)


def test_small_trials_find_empty_gpus_first() -> None:
    """Section 11: 4 GPUs, h = 10, 5, 5, 5: widths 1, 1/2, 1/2, 1/2. Shelf by shelf one GPU stays empty; ours leaves none, and predicts
    with the trials that really share one."""
    group, pool = trials(10, 5, 5, 5, alpha=1.4), Pool(gpus=4, share_max=2)
    assert list(static_widths(group, pool).values()) == [1, HALF, HALF, HALF]
    shelves = fluid(group, pool, AS_PRINTED)
    assert {gpu for stages in shelves.stages.values() for stage in stages for gpu in stage.gpus} == {0, 1, 2}
    ours = fluid(group, pool)
    assert {stages[0].gpus for stages in ours.stages.values()} == {(0,), (1,), (2,), (3,)}
    assert ends(shelves.end_s) == [10, 7, 7, 7]
    assert ends(ours.end_s) == [10, 5, 5, 5]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_box_with_one_gpu_packs_the_longest_first(count: int) -> None:
    """Section 11: with n = 1 a group of two or more gets 1/c each, a single trial gets 1."""
    group = trials(*(float(5 - i) for i in range(count)))
    widths = static_widths(group, Pool(gpus=1, share_max=2))
    assert set(widths.values()) == ({HALF} if count > 1 else {1})
    starts = fluid(group, Pool(gpus=1, share_max=2)).start_s
    assert [starts[t.id] for t in group] == sorted(starts[t.id] for t in group)
