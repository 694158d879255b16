"""Widths of a running group, an epoch of a trial at a time: StaticFluid where one begins, DynamicFluid where none waits, never more
than is free; and how beta is learned."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.errors import UsageError
from scheduler.fluid.observe import AGAIN_WIDE, COMPARED, LEAD_NO, LEAD_YES, Scaling
from scheduler.fluid.packing import widest, width_max
from scheduler.fluid.plan import leftover_widths
from scheduler.fluid.running import UnderWay, next_width
from scheduler.fluid.types import Pool, Trial


def member(id: str, h_s: float, *, width: int = 0, runs: bool = False, beta: float = 1.0) -> UnderWay:
    return UnderWay(trial=Trial(id=id, h_s=h_s, beta=beta), width=width, runs=runs)


TWO, FIVE = Pool(gpus=2, width_max=2), Pool(gpus=5, width_max=4)


@pytest.mark.parametrize(
    ("group", "pool", "width"),
    [
        ([member("a", 9)], TWO, 2),
        ([member("a", 9)], Pool(gpus=4, width_max=3), 3),
        ([member("a", 9)], Pool(gpus=2), 1),
        ([member("a", 9), member("b", 9)], TWO, 1),
        ([member("a", 9), member("b", 9), member("c", 9)], TWO, 1),
        ([member("a", 30), member("b", 12), member("c", 4), member("d", 4)], FIVE, 3),  # F1's shares, here without packing
        ([member("a", 30), member("b", 1)], TWO, 1),
        ([member("a", 30, beta=2.0), member("b", 1, beta=2.0)], TWO, 1),
    ],
)
def test_one_that_begins_has_staticfluids_width(group: list[UnderWay], pool: Pool, width: int) -> None:
    assert next_width("a", group, pool, room=pool.gpus) == width
    assert width == max(1, int(leftover_widths([m.trial for m in group], pool)["a"]))


def test_never_more_than_is_free() -> None:
    assert next_width("a", [member("a", 9)], TWO, room=1) == 1
    assert next_width("a", [member("a", 9, width=2), member("b", 9, width=1, runs=True)], TWO, room=1) == 1
    assert next_width("a", [member("a", 9)], TWO, room=9) == 2, "nor more than there is"


def test_as_long_as_one_waits_nobody_grows() -> None:
    """Example F4's trial of 2 s would have four GPUs, but another trial has none."""
    group = [member("a", 20, width=1), member("b", 1, width=1)]
    assert next_width("a", group, FIVE, room=5) == 1
    assert next_width("a", [group[0], member("b", 1, width=1, runs=True)], FIVE, room=4) == 4


@pytest.mark.parametrize(("epsilon_s", "width"), [(0.5, 4), (1.5, 1)])
def test_growing_must_pay_back(epsilon_s: float, width: int) -> None:
    """Example F4."""
    assert next_width("a", [member("a", 2, width=1)], FIVE, room=5, epsilon_s=epsilon_s) == width


@pytest.mark.parametrize(("beta", "width"), [(1.0, 2), (1.2, 1)])
def test_shrinking_must_save_device_seconds(beta: float, width: int) -> None:
    """Example F4: the other one runs on two of four."""
    group = [member("a", 8, width=2, beta=beta), member("b", 24, width=2, runs=True, beta=beta)]
    assert next_width("a", group, Pool(gpus=4, width_max=4), room=2, epsilon_s=0.5) == width


def test_the_longest_grows_first() -> None:
    """Five devices, two trials with one each: the longer would have three, and takes what is free when its turn comes."""
    pool = Pool(gpus=5, width_max=4)
    group = [member("a", 10, width=1), member("b", 30, width=1, runs=True)]
    assert next_width("a", group, pool, room=4) == 1
    group = [member("a", 10, width=1, runs=True), member("b", 30, width=1)]
    assert next_width("b", group, pool, room=4) == 3


def test_more_running_than_devices_is_no_reason_to_fail() -> None:
    """Lanes may be more than devices: c trials at once on a core."""
    group = [member("a", 5, width=1), *(member(f"b{i}", 5, width=1, runs=True) for i in range(3))]
    assert next_width("a", group, TWO, room=1) == 1


@pytest.mark.parametrize(
    ("id", "group", "room"),
    [("x", [member("a", 1)], 1), ("a", [member("a", 1, width=1, runs=True)], 1), ("a", [member("a", 1)], 0)],
)
def test_who_cannot_begin_is_refused(id: str, group: list[UnderWay], room: int) -> None:
    with pytest.raises(UsageError, match="cannot begin"):
        next_width(id, group, TWO, room=room)


@given(
    lefts=st.lists(st.floats(0, 100), min_size=1, max_size=6),
    widths=st.lists(st.integers(0, 3), min_size=6, max_size=6),
    gpus=st.integers(1, 6),
    most=st.integers(1, 6),
    room=st.integers(1, 6),
    beta=st.floats(1, 3),
    epsilon_s=st.floats(0, 5),
)
def test_whatever_the_group_the_answer_fits(
    lefts: list[float], widths: list[int], gpus: int, most: int, room: int, beta: float, epsilon_s: float
) -> None:
    group = [
        member(f"t{i}", h_s, width=max(w, int(i > 0)), runs=i > 0 and w > 0, beta=beta)
        for i, (h_s, w) in enumerate(zip(lefts, widths, strict=False))
    ]
    width = next_width("t0", group, Pool(gpus=gpus, width_max=most), room=room, epsilon_s=epsilon_s)
    assert 1 <= width <= min(room, gpus)
    assert width <= max(most, group[0].width)


# --- d ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("beta", "d"), [(1.0, 8), (1.1, 8), (1.25, 3), (1.4, 2), (1.5, 2), (1.79, 2), (1.8, 1), (3.0, 1)])
def test_d_is_the_texts_but_two_where_two_save_a_tenth(beta: float, d: int) -> None:
    assert widest(beta, most=8) == d
    assert d >= width_max(beta, most=8)
    assert widest(beta, most=1) == 1


def test_without_a_threshold_two_gpus_pay_up_to_twice_the_work() -> None:
    assert [widest(beta, most=2, gain_min=0.0) for beta in (1.9, 2.0)] == [2, 1]


# --- beta -------------------------------------------------------------------------------------------------------------


def test_beta_of_turns() -> None:
    scaling = Scaling(2)
    assert (scaling.asks, scaling.width_max, scaling.beta) == (True, 1, 1.0)
    for _ in range(LEAD_YES):
        assert scaling.asks
        scaling.compared(1.0, 0.6)
    assert (scaling.asks, scaling.width_max) == (False, 2)
    assert scaling.beta == pytest.approx(1.2)


@pytest.mark.parametrize("at", range(7))
def test_a_disturbed_turn_does_not_decide(at: int) -> None:
    """One of them took six times as long, on one device or on two."""
    for one_s, wide_s, most in ((1.0, 3.6, 2), (6.0, 0.6, 2), (6.0, 0.95, 1)):
        true_s = 0.6 if most == 2 else 0.95
        scaling, turn = Scaling(2), 0
        while scaling.asks:
            scaling.compared(*((one_s, wide_s) if turn == at else (1.0, true_s)))
            turn += 1
        assert scaling.width_max == most, (at, one_s, wide_s)


def test_no_needs_more_agreement_than_yes() -> None:
    scaling = Scaling(2)
    for _ in range(LEAD_NO - 1):
        scaling.compared(1.0, 1.2)
        assert scaling.asks
    scaling.compared(1.0, 1.2)
    assert (scaling.asks, scaling.width_max) == (False, 1)


def test_where_it_did_not_pay_it_is_asked_again_after_ever_more_trials() -> None:
    scaling, waits = Scaling(2), list[int]()
    for _ in range(3):
        while scaling.asks:
            scaling.compared(1.0, 1.2)
        begun = 0
        while not scaling.asks:
            scaling.begun()
            begun += 1
        waits.append(begun)
    assert waits == [AGAIN_WIDE, 2 * AGAIN_WIDE, 4 * AGAIN_WIDE]


def test_where_it_pays_it_is_not_asked_again_but_real_epochs_count() -> None:
    scaling = Scaling(2)
    while scaling.asks:
        scaling.compared(1.0, 0.6)
    for _ in range(100):
        scaling.begun()
    assert not scaling.asks
    for _ in range(COMPARED):
        scaling.compared(10.0, 11.0)
    assert scaling.width_max == 1
    assert not scaling.asks
    for _ in range(2 * AGAIN_WIDE):
        scaling.begun()
    assert scaling.asks, "and may pay again"


def test_wider_comparisons_tell_beta_too() -> None:
    scaling = Scaling(4)
    for _ in range(LEAD_YES):
        scaling.compared(1.0, 1.1**3 / 4, width=4)
    assert scaling.beta == pytest.approx(1.1)
    assert scaling.width_max == 4


def test_nonsense_is_not_counted() -> None:
    scaling = Scaling(2)
    for one_s, wide_s, width in ((0.0, 1.0, 2), (1.0, 0.0, 2), (1.0, 1.0, 1)):
        scaling.compared(one_s, wide_s, width=width)
    assert (scaling.beta, scaling.asks) == (1.0, True)
    assert not Scaling(1).asks
