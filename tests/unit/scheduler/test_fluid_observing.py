"""How many trials at once pay, found out while others disturb the measuring. Virtual time: a machine of the test's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from scheduler.fluid.observe import AGAIN_FEWER, AGAIN_MORE, COUNTED, LOOK_MOST, ROUNDS_MOST, WARM, Packing

#: Iterations of each lane in one turn.
TURN = WARM + COUNTED


@dataclass
class Machine:
    """Runs `n` iterations of equal trials on as many lanes as it is told. alpha: an iteration is so many times as long for each
    further one at once; slow: (seconds since the start, trials at once) -> so many times as long again."""

    alpha: float = 1.0
    slow: Callable[[float, int], float] = lambda now_s, at_once: 1.0
    now_s: float = 0.0
    left: int = 0
    changes: list[tuple[float, int]] = field(default_factory=list)

    def run(self, packing: Packing, n: int) -> Packing:
        self.left = n
        while self.left > 0:
            lanes = packing.turn or tuple(range(packing.chosen))
            took_s = self.alpha ** (len(lanes) - 1) * self.slow(self.now_s, len(lanes))
            self.now_s += took_s
            before = packing.chosen
            for lane in lanes:
                self.left -= 1
                packing.done(lane, f"t{lane}", took_s)
                if packing.turn not in (None, lanes):
                    break
            if packing.chosen != before:
                self.changes.append((self.now_s, packing.chosen))
        return packing


def between(start_s: float, end_s: float, times: float, at_once: int | None = None) -> Callable[[float, int], float]:
    """Somebody takes the machine for a while (hits only what runs so many at once; None: anything)."""
    return lambda now_s, n: times if start_s <= now_s < end_s and at_once in (None, n) else 1.0


@pytest.mark.parametrize(
    ("alpha", "most", "c"), [(1.0, 2, 2), (1.0, 4, 4), (1.2, 4, 3), (1.4, 4, 2), (1.7, 2, 2), (1.9, 2, 1), (2.5, 4, 1)]
)
def test_c_by_the_times_of_an_undisturbed_machine(alpha: float, most: int, c: int) -> None:
    packing = Machine(alpha).run(Packing(most), 2000)
    assert packing.chosen == c
    assert packing.levels()[:c] == pytest.approx([alpha**p for p in range(c)])
    assert {v.pays for v in packing.verdicts if v.level <= c} <= {True}


def test_one_lane_has_nothing_to_measure() -> None:
    packing = Machine().run(Packing(1), 100)
    assert (packing.turn, packing.chosen, packing.verdicts) == (None, 1, [])


def test_alone_and_together_take_turns_and_the_order_changes() -> None:
    packing, turns = Packing(2), list[tuple[int, ...]]()
    for _ in range(5 * TURN + 3):
        turn = packing.turn
        assert turn is not None
        turns += [turn] if turns[-1:] != [turn] else []
        for lane in turn:
            if packing.turn == turn:
                packing.done(lane, "t", float(len(turn)))  # no gain: the look goes on
    assert turns == [(0,), (1,), (0, 1), (1,), (0,), (1,)][: len(turns)]
    assert len(turns) >= 5


@pytest.mark.parametrize("start_s", range(0, 22, 2))
@pytest.mark.parametrize("at_once", [None, 1, 2])
def test_somebody_who_takes_the_machine_during_one_turn_changes_nothing(start_s: int, at_once: int | None) -> None:
    """Whatever is hit: iterations six times as long for a turn, alone, together, or both."""
    for alpha, c in ((1.05, 2), (2.4, 1)):
        packing = Machine(alpha, between(start_s, start_s + 6 * TURN, 6.0, at_once)).run(Packing(2), 3 * 7 * TURN)
        assert packing.chosen == c, (alpha, packing.verdicts)


def test_single_long_iterations_do_not_count() -> None:
    """Every seventh iteration takes 20 times as long."""
    count = iter(range(10_000))
    packing = Machine(1.1, lambda now_s, n: 20.0 if next(count) % 7 == 3 else 1.0).run(Packing(2), 400)
    assert packing.chosen == 2
    assert packing.levels()[1] == pytest.approx(1.1, rel=0.02)


def test_iterations_of_two_kinds_in_turns_are_compared_alike() -> None:
    """Every second one updates the weights, and takes three times as long."""
    number = iter(range(10_000))
    packing = Machine(1.3, lambda now_s, n: 3.0 if next(number) % 2 else 1.0).run(Packing(2), 400)
    assert packing.levels() == pytest.approx([2.0, 2.6])


def test_a_doubtful_look_goes_on_and_the_majority_decides() -> None:
    """Rounds say yes and no in turns: two together hit in every second round."""
    packing = Packing(2)
    rounds = 0
    while not packing.verdicts:
        turn = packing.turn
        assert turn is not None
        bad = rounds % 2 == 0
        for lane in turn:
            if packing.turn == turn:
                packing.done(lane, f"t{lane}", 2.2 if len(turn) == 2 and bad else 1.0)
        rounds = len(packing._gains)
    [verdict] = packing.verdicts
    assert len(verdict.gains) == ROUNDS_MOST
    assert not verdict.pays, "four of seven said no"


def test_a_wrong_no_is_revised_while_the_group_runs() -> None:
    """The whole first look is disturbed; the machine is free afterwards."""
    disturbed_s = 3 * (2 * TURN + 3 * TURN)
    machine = Machine(1.05, between(0, disturbed_s, 3.0, at_once=2))
    packing = machine.run(Packing(2), 640)
    assert [v.pays for v in packing.verdicts][:2] == [False, True]
    assert packing.chosen == 2
    assert machine.changes[0][0] < disturbed_s + AGAIN_MORE + 3 * 3 * TURN
    undisturbed = Machine(1.05)
    undisturbed.run(Packing(2), 640)
    assert machine.now_s - disturbed_s < undisturbed.now_s + AGAIN_MORE, "what the mistake cost is bounded"


def test_a_wrong_yes_is_revised_too() -> None:
    packing = Machine(2.5, between(0, 300, 10.0, at_once=1)).run(Packing(2), 2000)
    assert [v.pays for v in packing.verdicts][0]
    assert packing.chosen == 1


def test_what_pays_no_longer_is_noticed() -> None:
    """Somebody comes for good and takes one of the two cores."""
    machine = Machine(1.0, lambda now_s, n: 2.2 if now_s > 300 and n == 2 else 1.0)
    packing = machine.run(Packing(2), 4 * AGAIN_FEWER)
    assert packing.chosen == 1


@pytest.mark.parametrize(("alpha", "most_frac"), [(2.0, 1.0), (2.3, 1.02), (2.6, 1.04), (3.0, 1.07), (1.0, 0.56), (1.2, 0.65)])
def test_never_much_longer_than_one_by_one_and_far_shorter_where_it_pays(alpha: float, most_frac: float) -> None:
    """640 iterations are those of the bench's 18 trials; looking and looking again included."""
    machine = Machine(alpha)
    machine.run(Packing(2), 640)
    assert machine.now_s / 640 <= most_frac


def test_two_rounds_that_lose_time_end_the_look() -> None:
    """Two at once are a third slower than one after the other: a third round would tell nothing new, and cost as much again."""
    packing = Machine(2.6).run(Packing(2), 40)
    assert [len(v.gains) for v in packing.verdicts] == [2]
    assert packing.chosen == 1
    doubtful = Machine(2.1).run(Packing(2), 80)
    assert [len(v.gains) for v in doubtful.verdicts][:1] == [3]


def test_looks_that_change_nothing_become_rarer() -> None:
    packing = Packing(2)
    Machine(2.0).run(packing, 20_000)
    assert 5 <= len(packing.verdicts) <= 10
    assert packing.chosen == 1


def test_iterations_that_cannot_be_compared_end_a_look_without_an_answer() -> None:
    packing = Packing(2)
    for _ in range(LOOK_MOST):
        packing.done(0, "t", None)
    assert (packing.turn, packing.chosen, packing.verdicts) == (None, 1, [])


def test_rounds_without_a_common_trial_tell_nothing() -> None:
    """Each iteration is of another trial."""
    packing, number = Packing(2), iter(range(10_000))
    for _ in range(LOOK_MOST):
        for lane in packing.turn or (0,):
            packing.done(lane, f"t{next(number)}", 1.0)
    assert packing.verdicts == []
    assert packing.chosen == 1


def test_a_look_that_is_given_up_says_what_its_rounds_said() -> None:
    packing = Packing(2)
    while not packing._gains:
        for lane in packing.turn or ():
            packing.done(lane, f"t{lane}", 1.0)
    packing.give_up()
    assert packing.chosen == 2
    packing.give_up()
    assert len(packing.verdicts) == 1, "there is no look to give up"
