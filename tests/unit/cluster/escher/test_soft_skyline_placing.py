"""Soft constraints and who started first; reservations over time; policies that are lists of calls; vectors."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.engines.base import INFINITE, Task, TaskStatus, Work
from cluster.engines.local import LocalEngine
from cluster.escher.amounts import either, every, every_of, fits, lacking, minus, plus, relaxed
from cluster.escher.policies.base import View
from cluster.escher.policies.placing import balanced, combined_objective, priority
from cluster.escher.policies.skyline import Reservation
from cluster.escher.policies.soft import Soft
from cluster.escher.starts import Starts, in_process, once
from cluster.escher.wishes import Wish
from tests.support.escher_world import APP, World, name


def soft(*preferences: dict[str, float], hard: dict[str, float] | None = None) -> Soft:
    return Soft(id=name("s"), owner=APP, task=Task(id="t", demands=hard or {}), preferences=preferences, wait_s=5.0)


# --- soft constraints -------------------------------------------------------------------------------------------------


def test_the_first_preference_that_is_met_is_kept() -> None:
    world = World()
    world.escher.want(Wish(name=name("a"), owner=APP, capacity=1), 0.0)
    world.run(soft({name("a"): 1}, {"CPU": 1}))
    assert world.found(Soft, name("s")).winner == 0
    assert world.found(Soft, name("s")).chosen == {name("a"): 1}
    world.finish("t~a0")
    world.tick()
    assert world.found(Soft, name("s")).over


def test_hard_demands_alone_come_last_and_are_waited_for() -> None:
    world = World()
    world.run(soft({name("a"): 1}, {name("b"): 1}, hard={name("c"): 1}))
    assert world.drive(lambda: world.state("t~a2") == "waiting")
    assert world.now_s == 10.0
    assert world.states(["t~a0", "t~a1"]) == ["cancelled"] * 2
    world.tick(100.0)
    assert world.state("t~a2") == "waiting"
    world.escher.want(Wish(name=name("c"), owner=APP, capacity=1), world.now_s)
    world.tick()
    assert world.found(Soft, name("s")).winner == 2


def test_hard_demands_win_a_clash_of_names() -> None:
    assert soft({"CPU": 4, "GPU": 1}, hard={"CPU": 1}).demands(0) == {"CPU": 1, "GPU": 1}


def shown(policy: Soft, state: str, now_s: float) -> tuple[Soft, list[str]]:
    """One step, with the present attempt in `state`."""
    attempt = policy.attempt_id(policy.attempt)
    step = policy.step(View(tasks={attempt: TaskStatus(id=attempt, state=state)}), now_s)  # type: ignore[arg-type]
    assert isinstance(step.policy, Soft)
    return step.policy, [type(c).__name__ for c in step.commands]


def test_one_that_starts_just_when_it_is_cancelled_either_wins_or_is_done_again_but_never_beside_another() -> None:
    begun = soft({"a": 1}, {"b": 1}).step(View(), 0.0).policy
    assert isinstance(begun, Soft)
    giving_up, commands = shown(begun, "waiting", 5.0)
    assert commands == ["Cancel"]
    still, commands = shown(giving_up, "running", 5.1)  # it slipped through: the engine is still ending it
    assert (commands, still.winner) == ([], None)
    won, commands = shown(still, "done", 5.2)
    assert (won.winner, commands) == (0, [])
    again, commands = shown(still, "cancelled", 5.2)
    assert (again.attempt, commands) == (1, ["Submit"])


def test_a_late_start_is_turned_away_and_a_later_attempt_takes_over() -> None:
    starts = Starts()
    assert starts.claim("t", 0)
    assert starts.claim("t", 0)
    assert starts.claim("t", 1)  # the engine said that 0 has ended
    assert not starts.claim("t", 0)
    assert starts.claim("other", 0)
    starts.forget("t")
    assert starts.claim("t", 0)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=10))
def test_who_may_start_is_never_older_than_who_has_started(attempts: list[int]) -> None:
    starts, latest = Starts(), -1
    for attempt in attempts:
        assert starts.claim("t", attempt) == (attempt >= latest)
        latest = max(latest, attempt)


def test_only_one_of_many_that_start_at_once_is_the_last_to_be_let_in() -> None:
    starts = Starts()
    let_in: list[int] = []
    threads = [threading.Thread(target=lambda n=n: let_in.append(n) if starts.claim("t", n) else None) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 15 in let_in


def test_work_that_claims_is_done_once() -> None:
    engine = LocalEngine({"n": {"CPU": 1}}, threads=False)
    work = once(Work(entry="tests.support.fleet_engines:add", arguments={"left": 1, "right": 2}), "only-once")
    for attempt in (1, 0):  # the late one was given up before the other began
        engine.submit(Task(id=f"x~a{attempt}", demands={}, work=work))
    engine.pump()
    assert [s.result for s in engine.status(["x~a1", "x~a0"]).values()] == [3, None]
    in_process().forget("only-once")


# --- reservations over time -------------------------------------------------------------------------------------------


def test_a_reservation_follows_its_skyline() -> None:
    world = World()
    world.run(Reservation(id=name("r"), owner=APP, bundle={"CPU": 2}, changes=((10.0, 2), (20.0, 5), (30.0, 1), (40.0, 0))))
    seen = {}
    for now_s in (0.0, 10.0, 15.0, 20.0, 30.0, 39.0):
        world.now_s = now_s
        wake_s = world.tick()
        seen[now_s] = (world.free(name("r")), 12 - world.free("CPU"))
        assert wake_s is None or wake_s > now_s
    assert seen == {0.0: (0, 0), 10.0: (2, 4), 15.0: (2, 4), 20.0: (5, 10), 30.0: (1, 2), 39.0: (1, 2)}
    world.now_s = 40.0
    world.tick()
    assert world.found(Reservation, name("r")).over
    assert world.ours() == set()
    assert world.free("CPU") == 12


def test_what_a_member_holds_is_not_taken_from_it() -> None:
    world = World()
    world.run(Reservation(id=name("r"), owner=APP, bundle={"CPU": 4}, changes=((0.0, 1), (10.0, 0))))
    member = world.ghost("member", {name("r"): 1})
    assert world.state(member) == "running"
    world.now_s = 10.0
    world.tick()
    assert world.state(member) == "running"
    world.finish(member)
    world.tick(1.0)
    assert world.ours() == set()


def test_a_lost_node_does_not_end_a_reservation() -> None:
    world = World()
    world.run(Reservation(id=name("r"), owner=APP, bundle={"CPU": 4}, changes=((0.0, 2),)))
    world.engine.kill_node(str(world.at(world.found(Reservation, name("r")).watches()[0])))
    world.tick(1.0)
    assert world.free(name("r")) == 2


@pytest.mark.parametrize("changes", [((1.0, 1), (1.0, 2)), ((2.0, 1), (1.0, 2)), ((1.0, -1),)])
def test_a_skyline_is_checked(changes: tuple[tuple[float, int], ...]) -> None:
    with pytest.raises(ValueError, match="skyline"):
        Reservation(id=name("r"), owner=APP, bundle={}, changes=changes)


# --- lists of calls ---------------------------------------------------------------------------------------------------


def test_priorities_keep_the_last_class_out_while_any_other_runs() -> None:
    found = priority(name("p"), APP, levels=2, classes=(0, 1, 2))
    assert [dict(d)[name("p")] for d in found.demands] == [1, 10, 100]
    assert found.wishes[0].capacity == 100
    for levels, classes in ((0, (0,)), (7, (0,)), (2, (3,)), (2, (-1,))):
        with pytest.raises(ValueError, match=r"levels|classes"):
            priority(name("p"), APP, levels=levels, classes=classes)


@given(st.integers(1, 50), st.integers(1, 9))
def test_known_counts_give_room_for_all_and_for_less_than_a_node_more(tasks: int, nodes: int) -> None:
    found = balanced(name("b"), APP, tasks=tasks, nodes=[f"n{n}" for n in range(nodes)])
    assert tasks <= found.wishes[0].capacity * nodes < tasks + nodes


def test_balance_needs_nodes() -> None:
    with pytest.raises(ValueError, match="no nodes"):
        balanced(name("b"), APP, tasks=1, nodes=[])


def test_a_combined_objective_is_tried_with_ever_less() -> None:
    wish, tries = combined_objective(
        name("o"), APP, weights={"mem": 0.7, "cpu": 0.3}, shares={"mem": 0.5, "cpu": 1.0}, hard={"CPU": 2}
    )
    assert wish.capacity == 1000
    assert tries == [{name("o"): g, "CPU": 2} for g in (650, 325, 163, 82)]
    for weights, shares in (({}, {}), ({"a": 1.0}, {"a": 2.0}), ({"a": 1.0}, {"b": 0.5})):
        with pytest.raises(ValueError, match="shares"):
            combined_objective(name("o"), APP, weights=weights, shares=shares, hard={})


# --- vectors ----------------------------------------------------------------------------------------------------------

vectors = st.dictionaries(st.sampled_from("abc"), st.integers(1, 50).map(lambda n: n / 10), max_size=3)


@given(vectors, vectors, vectors)
def test_what_meets_both_meets_each(a: dict[str, float], b: dict[str, float], node: dict[str, float]) -> None:
    assert fits(every(a, b), node) == (fits(a, node) and fits(b, node))
    assert fits(a, node) == (not lacking(a, node))


@given(vectors, vectors)
def test_taking_and_giving_back(a: dict[str, float], b: dict[str, float]) -> None:
    node = plus(a, b)
    left = minus(node, a)
    assert fits(b, left)
    assert plus(left, a) == node
    assert all(amount >= 0 for amount in minus(b, a).values())


def test_sums_of_tenths_are_whole() -> None:
    assert fits({"a": 0.3}, plus({"a": 0.1}, {"a": 0.2}))
    assert plus({"a": INFINITE}, {"a": 0.0001}) == {"a": INFINITE + 0.0001}


def test_joining_constraints() -> None:
    assert every_of([{"a": 1}, {"b": 1}], [{"x": 2}]) == [{"a": 1, "x": 2}, {"b": 1, "x": 2}]
    assert either({"a": 1}, {"b": 1}, {"a": 1}) == [{"a": 1}, {"b": 1}]
    assert relaxed({"fair": 1}, {"anti": 1}) == [{"fair": 1, "anti": 1}, {"fair": 1}]
    assert every_of() == [{}]
