"""The local engine beyond the contract: exactness under any sequence of calls, order, threads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.engines.base import INFINITE, Task, Work
from cluster.engines.local import LocalEngine
from cluster.engines.places import places
from configs.errors import UsageError

HERE = "tests.support.fleet_engines"

amounts = st.sampled_from([0.5, 1.0, 2.0, 3.0])
resources = st.sampled_from(["CPU", "a", "b"])
calls = st.one_of(
    st.tuples(st.just("submit"), st.dictionaries(resources, amounts, max_size=2), st.integers(0, 2)),
    st.tuples(st.just("set"), st.sampled_from(["a", "b"]), st.sampled_from([0.0, 1.0, 2.5, 4.0]), st.integers(0, 2)),
    st.tuples(st.just("cancel"), st.integers(0, 30)),
    st.tuples(st.just("kill"), st.integers(0, 2)),
    st.tuples(st.just("return"), st.integers(0, 2)),
    st.tuples(st.just("reserve"), st.integers(0, 3), st.lists(amounts, min_size=1, max_size=3), st.booleans()),
    st.tuples(st.just("release"), st.integers(0, 3)),
)


def play(engine: LocalEngine, call: tuple, number: int) -> None:  # type: ignore[type-arg]
    alive = {node.id: node.alive for node in engine.nodes()}
    match call:
        case ("submit", demands, retries):
            engine.submit(Task(id=f"t{number}", demands=demands, retries=retries))
        case ("set", resource, capacity, node) if alive[f"n{node}"]:
            assert engine.set_resource(resource, capacity, f"n{node}") >= capacity
        case ("cancel", task):
            engine.cancel([f"t{task}"])
        case ("kill", node) if alive[f"n{node}"]:
            engine.kill_node(f"n{node}")
        case ("return", node) if not alive[f"n{node}"]:
            engine.add_node(f"n{node}", {"CPU": 4})
        case ("reserve", gang, bundles, spread):
            engine.reserve(f"g{gang}", [{"CPU": amount} for amount in bundles], spread=spread)
        case ("release", gang):
            engine.release(f"g{gang}")


@given(st.lists(calls, max_size=40), st.integers(0, 3))
def test_never_past_capacity_and_nothing_waits_that_fits(sequence: list[tuple], seed: int) -> None:  # type: ignore[type-arg]
    engine = LocalEngine({f"n{n}": {"CPU": 4} for n in range(3)}, threads=False, seed=seed)
    for number, call in enumerate(sequence):
        play(engine, call, number)
        engine.check()
        free = {node.id: node.free for node in engine.nodes() if node.alive}
        known = engine.status([f"t{n}" for n in range(number + 1)])
        for task, status in known.items():
            if status.state == "waiting":
                demands = engine._tasks[task].task.demands
                assert places([demands], free, spread=False) is None, f"{task} could run"
            if status.state == "running":
                assert status.node in free


@given(st.lists(st.dictionaries(resources, amounts, min_size=1, max_size=3), min_size=1, max_size=12))
def test_tasks_that_fit_somewhere_all_run_when_those_that_run_end(demands: list[dict[str, float]]) -> None:
    engine = LocalEngine({"n0": {"CPU": 3}, "n1": {"CPU": 1}}, threads=False)
    engine.set_resource("a", 3, "n0")
    engine.set_resource("b", 3, "n0")
    ids = [f"t{n}" for n in range(len(demands))]
    for task, wants in zip(ids, demands, strict=True):
        engine.submit(Task(id=task, demands=wants))
    ran: set[str] = set()
    while len(ran) < len(ids):
        running = [i for i, s in engine.status(ids).items() if s.state == "running"]
        assert running, "nothing runs, and not all have"
        ran |= set(running)
        engine.cancel(running)


def test_the_oldest_of_those_that_fit_goes_first() -> None:
    engine = LocalEngine({"n": {"CPU": 2}}, threads=False)
    for number in range(4):
        engine.submit(Task(id=f"t{number}", demands={"CPU": 1 if number % 2 else 2}))
    assert engine.status(["t0"])["t0"].state == "running"
    engine.cancel(["t0"])
    assert [s.state for s in engine.status([f"t{n}" for n in range(4)]).values()] == [
        "cancelled",
        "running",
        "waiting",  # needs both CPUs: what fits and came later is not kept waiting for it
        "running",
    ]


def test_work_runs_only_in_pump_where_there_are_no_threads() -> None:
    engine = LocalEngine({"n": {"CPU": 1}}, threads=False)
    for number in range(3):
        work = Work(entry=f"{HERE}:add", arguments={"left": number, "right": 1})
        engine.submit(Task(id=f"t{number}", demands={"CPU": 1}, work=work))
    assert engine.status(["t0"])["t0"].state == "running"
    assert engine.pump(most=1) == 1
    assert [s.result for s in engine.status(["t0", "t1", "t2"]).values()] == [1, None, None]
    assert engine.pump() == 2
    assert [s.result for s in engine.status(["t0", "t1", "t2"]).values()] == [1, 2, 3]
    assert engine.pump() == 0


def test_what_a_lost_node_still_computes_does_not_count() -> None:
    engine = LocalEngine({"n1": {"CPU": 1}, "n2": {"CPU": 1}})
    engine.submit(Task(id="t", demands={"CPU": 1}, work=Work(entry=f"{HERE}:until_cancelled"), retries=1))
    first = engine.status(["t"])["t"].node
    assert first is not None

    engine.kill_node(first)

    second = engine.status(["t"])["t"]
    assert (second.state, second.node) == ("running", "n2" if first == "n1" else "n1")
    engine.cancel(["t"])
    assert engine.wait_for(lambda: engine.status(["t"])["t"].state == "cancelled", timeout_s=120.0)
    engine.check()
    engine.close()


def test_work_on_a_lost_node_cannot_set_resources_there() -> None:
    engine = LocalEngine({"n1": {"CPU": 1}}, threads=False)
    engine.submit(
        Task(id="t", demands={"CPU": 1}, work=Work(entry=f"{HERE}:make_here", arguments={"name": "CPU", "capacity": 1}))
    )
    engine.pump()
    status = engine.status(["t"])["t"]
    assert status.state == "failed"
    assert "physical" in status.problem


def test_a_result_that_is_no_json_fails_the_task() -> None:
    engine = LocalEngine({"n": {"CPU": 1}}, threads=False)
    engine.submit(Task(id="t", demands={}, work=Work(entry="cluster.engines.base:Task", arguments={})))
    engine.submit(Task(id="u", demands={}, work=Work(entry="builtins:repr")))
    engine.submit(Task(id="v", demands={}, work=Work(entry="builtins:set")))
    engine.pump()
    assert [s.state for s in engine.status(["t", "u", "v"]).values()] == ["failed", "done", "failed"]


def test_a_problem_never_tells_a_credential() -> None:
    engine = LocalEngine({"n": {"CPU": 1}}, threads=False)
    secret = "rtsp://admin:hunter2@camera/stream"
    engine.submit(Task(id="t", demands={}, work=Work(entry="builtins:int", arguments={"base": secret})))
    engine.submit(Task(id="u", demands={}, work=Work(entry=secret)))
    engine.pump()
    assert all("hunter2" not in s.problem and s.state == "failed" for s in engine.status(["t", "u"]).values())


def test_a_closed_engine_takes_nothing_more() -> None:
    engine = LocalEngine({"n": {"CPU": 1}})
    engine.submit(Task(id="t", demands={}))
    engine.close()
    assert engine.status(["t"])["t"].state == "cancelled"
    for call in (
        lambda: engine.submit(Task(id="u", demands={})),
        lambda: engine.set_resource("a", 1, "n"),
        lambda: engine.reserve("g", [{"CPU": 1}], spread=False),
    ):
        with pytest.raises(UsageError):
            call()


def test_nodes_are_born_with_physical_amounts_only_and_once() -> None:
    with pytest.raises(UsageError):
        LocalEngine({"n": {"made.up": 1}})
    engine = LocalEngine({"n": {"CPU": 1}}, labels={"n": {"box": "b"}})
    with pytest.raises(UsageError):
        engine.add_node("n", {"CPU": 1})
    assert engine.nodes()[0].labels == {"box": "b"}


def test_ten_thousand_waiting_tasks_do_not_slow_the_matcher_down() -> None:
    """Tasks of one shape wait in one line, so a change looks at lines and not at tasks: counted, not timed."""
    engine = LocalEngine({"n": {"CPU": 1}}, threads=False)
    for number in range(10_000):
        engine.submit(Task(id=f"t{number}", demands={"never": 1 + number % 3}))
    assert len(engine._queues) == 3
    engine.set_resource("never", INFINITE, "n")
    assert not engine._queues


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=5),
    st.lists(st.integers(1, 6), min_size=1, max_size=4),
    st.booleans(),
)
def test_places_are_right_and_found_for_equal_bundles_whenever_there_are_any(
    sizes: list[int], nodes: list[int], spread: bool
) -> None:
    bundles = [{"CPU": float(size)} for size in sizes]
    free = {f"n{n}": {"CPU": float(cpu)} for n, cpu in enumerate(nodes)}
    found = places(bundles, free, spread=spread)
    if found is not None:
        for node, amounts in free.items():
            assert sum(size for size, at in zip(sizes, found, strict=True) if at == node) <= amounts["CPU"]
        assert not spread or len(set(found)) == len(found)
    elif len(set(sizes)) == 1:
        seats = [int(cpu // sizes[0]) for cpu in nodes]
        assert sum(min(1, s) if spread else s for s in seats) < len(sizes)
