"""When a worker is started anew, and when it is given up: worked examples, and laws over any sequence of looks."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.watchdog.rules import (
    Act,
    Mode,
    Rules,
    Seen,
    State,
    Trouble,
    could_not_restart,
    judge,
    lifted,
    pause_after_s,
    sentence,
)

RULES = Rules(
    silent_s=60, faults=20, restarts=3, span_s=3600, pause_s=2, pause_max_s=300, well_s=1800, grace_s=10
)  # fmt: skip
WELL, DEAD = Seen(alive=True), Seen(alive=False)


def run(looks: list[tuple[float, Seen]], rules: Rules = RULES) -> tuple[State, list[tuple[float, Act]]]:
    state, acts = State(), []
    for at_s, seen in looks:
        state, act = judge(state, seen, rules, at_s=at_s)
        if act is not Act.NOTHING:
            acts.append((at_s, act))
    return state, acts


def test_a_worker_that_is_well_is_left_alone() -> None:
    state, acts = run([(float(t), replace(WELL, done=t, silent_s=59.9)) for t in range(100)])
    assert (state.mode, acts, sentence("a", state)) == (Mode.WELL, [], "")


def test_a_dead_one_is_started_anew_at_once_and_then_after_growing_pauses() -> None:
    state, acts = run([(t / 2, DEAD) for t in range(40)])
    assert acts == [(0.0, Act.RESTART), (2.5, Act.RESTART), (7.0, Act.RESTART), (7.5, Act.GIVE_UP)]
    assert state.mode is Mode.GIVEN_UP
    assert state.trouble is Trouble.DEAD
    assert state.reason == "its thread has ended; 3 restarts within 60 min did not help"
    assert sentence("gate/inference", state).startswith("gate/inference is given up: its thread has ended")


def test_silence_is_trouble_only_beyond_its_limit_and_a_new_thread_has_time_to_begin() -> None:
    silent = Seen(alive=True, silent_s=61)
    state, acts = run([(0.0, silent), (1.0, silent), (9.9, silent)])
    assert acts == [(0.0, Act.RESTART)]
    assert state.reason == "no sign of life for 61 s"
    state, acts = run([(0.0, silent), (1.0, silent), (10.0, silent)])
    assert state.mode is Mode.PAUSING
    assert "is to be started anew" in sentence("a", state)


def test_failures_count_only_when_nothing_else_is_done() -> None:
    mixed = [(float(t), Seen(alive=True, faults=5 * t, done=t)) for t in range(30)]
    assert run(mixed)[1] == []
    only = [(float(t), Seen(alive=True, faults=t, fault="ValueError: no")) for t in range(30)]
    state, acts = run(only)
    assert acts == [(20.0, Act.RESTART)]
    assert state.reason == "it failed 20 times and did nothing else: ValueError: no"


def test_old_failures_are_not_held_against_a_worker_that_was_started_anew() -> None:
    failed = Seen(alive=True, faults=20)
    state, acts = run([(0.0, failed), *[(10.0 + t, failed) for t in range(100)]])
    assert acts == [(0.0, Act.RESTART)]
    assert state.mode is Mode.WELL


def test_a_counter_that_begins_anew_is_no_failure() -> None:
    assert run([(0.0, Seen(alive=True, faults=19, done=7)), (1.0, Seen(alive=True, faults=19, done=0))])[1] == []


def test_who_comes_to_itself_during_the_pause_is_not_disturbed() -> None:
    state, acts = run([(0.0, DEAD), (1.0, DEAD), (1.5, WELL), (5.0, WELL)])
    assert acts == [(0.0, Act.RESTART)]
    assert (state.mode, len(state.restarts_s)) == (Mode.WELL, 1)


def test_restarts_long_ago_do_not_count_and_half_an_hour_of_health_gives_the_budget_back() -> None:
    often = [(1000.0 * n, DEAD if n % 2 == 0 else WELL) for n in range(40)]
    rules = replace(RULES, well_s=10**9)
    assert all(act is Act.RESTART for _, act in run(often, rules)[1])
    twice = [(0.0, DEAD), (11.0, WELL), (12.0, DEAD), (14.0, DEAD), (25.0, WELL), (1826.0, WELL)]
    assert run(twice)[0].restarts_s == ()
    assert run(twice)[0].total_restarts == 2


def test_lifted_means_a_full_budget_and_the_count_stays() -> None:
    given_up, _ = run([(t / 2, DEAD) for t in range(40)])
    again = lifted(given_up, at_s=100.0)
    assert (again.mode, again.restarts_s, again.reason, again.total_restarts) == (Mode.WELL, (), "", 3)
    assert judge(again, DEAD, RULES, at_s=101.0)[1] is Act.RESTART


def test_failures_of_before_are_forgiven_to_who_is_lifted() -> None:
    failing = [(t / 2, Seen(alive=True, faults=20 * t)) for t in range(80)]
    given_up, _ = run(failing)
    assert given_up.mode is Mode.GIVEN_UP
    again = lifted(given_up, at_s=100.0)
    last = failing[-1][1]
    assert judge(again, last, RULES, at_s=101.0)[1] is Act.NOTHING
    again, _ = judge(again, last, RULES, at_s=101.0)
    assert judge(again, replace(last, faults=last.faults + 20), RULES, at_s=102.0)[1] is Act.RESTART


def test_a_restart_that_did_not_work_counts() -> None:
    state, _ = judge(State(), DEAD, RULES, at_s=0.0)
    state = could_not_restart(state, "RuntimeError: no", at_s=0.0)
    assert "could not be started anew: RuntimeError: no" in state.reason
    assert len(state.restarts_s) == 1


@pytest.mark.parametrize(("restarts", "pause_s"), [(0, 0.0), (1, 2.0), (2, 4.0), (5, 32.0), (9, 300.0), (10**6, 300.0)])
def test_pauses_double_up_to_their_limit(restarts: int, pause_s: float) -> None:
    assert pause_after_s(restarts, RULES) == pause_s


LOOKS = st.lists(
    st.tuples(
        st.floats(0.01, 400.0),
        st.builds(Seen, alive=st.booleans(), silent_s=st.floats(0, 200), faults=st.integers(0, 60), done=st.integers(0, 5)),
    ),
    max_size=120,
)


@given(looks=LOOKS)
def test_laws_over_any_sequence_of_looks(looks: list[tuple[float, Seen]]) -> None:
    state, at_s, restarts, gave_up = State(), 0.0, [], 0
    for pause_s, seen in looks:
        at_s += pause_s
        before = state
        state, act = judge(state, seen, RULES, at_s=at_s)
        if act is Act.RESTART:
            restarts.append(at_s)
        if act is Act.GIVE_UP:
            gave_up += 1
        if before.mode is Mode.GIVEN_UP:
            assert (state, act) == (before, Act.NOTHING), "given up until somebody lifts it"
        assert (state.mode is Mode.GIVEN_UP) == (gave_up == 1)
        assert state.total_restarts == len(restarts)
        assert bool(sentence("a", state)) == (state.mode in (Mode.GIVEN_UP, Mode.PAUSING))
    # Never more restarts in an hour than the budget, unless half an hour of health gave it back.
    for n in range(len(restarts) - RULES.restarts):
        span = restarts[n : n + RULES.restarts + 1]
        healthy_gap = max(b - a for a, b in pairwise(span))
        assert span[-1] - span[0] >= RULES.span_s or healthy_gap >= RULES.well_s
