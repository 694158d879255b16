"""One body for every engine of a fleet (`cluster.engines.base.Engine`). A new engine joins by adding a bench to `BENCHES`.

Engines differ in how fast they are; a bench knows how long "it does not run" has to be watched. Every test leaves the engine as it
found it, because starting Ray takes seconds and one cluster serves them all.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cluster.engines.base import INFINITE, Task, Work
from configs.errors import UsageError
from tests.support.fleet_engines import BENCHES, CPU, MARKERS, Bench

HERE = "tests.support.fleet_engines"


def benches() -> list[object]:
    return [pytest.param(name, marks=[getattr(pytest.mark, mark) for mark in MARKERS.get(name, ())]) for name in BENCHES]


@pytest.fixture(scope="module", params=benches())
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    with BENCHES[request.param]() as found:
        yield found


class Held:
    """Tasks and resources of one test: all gone at its end."""

    def __init__(self, bench: Bench, test: str) -> None:
        self.bench, self.prefix = bench, test
        self.tasks: list[str] = []
        self.made: set[tuple[str, str]] = set()

    def hold(self, name: str, **demands: float) -> str:
        """A ghost; '_' in a keyword stands for '.'."""
        return self.submit(name, {key.replace("_", "."): amount for key, amount in demands.items()})

    def submit(self, name: str, demands: dict[str, float], **more: object) -> str:
        task = Task(id=f"{self.prefix}-{name}", demands=demands, **more)  # type: ignore[arg-type]
        self.tasks.append(task.id)
        self.bench.engine.submit(task)
        return task.id

    def set(self, name: str, capacity: float, node: str) -> float:
        self.made.add((name, node))
        return self.bench.engine.set_resource(name, capacity, node)

    def running(self, *tasks: str) -> bool:
        return self.bench.all_in(tasks, "running")

    def close(self) -> None:
        engine = self.bench.engine
        engine.cancel(self.tasks)
        assert self.bench.until(lambda: all(s.ended for s in engine.status(self.tasks).values()))
        engine.forget(self.tasks)
        for name, node in self.made:
            assert self.bench.until(lambda name=name, node=node: engine.set_resource(name, 0, node) == 0)  # type: ignore[misc]


@pytest.fixture
def held(bench: Bench, request: pytest.FixtureRequest) -> Iterator[Held]:
    test = request.node.originalname.removeprefix("test_").replace("_", "-")[:40]
    found = Held(bench, test)
    yield found
    found.close()


def free(bench: Bench, name: str) -> float:
    return sum(node.free.get(name, 0) for node in bench.engine.nodes() if node.alive)


# --- nodes ------------------------------------------------------------------------------------------------------------


def test_it_tells_its_nodes_and_what_they_were_born_with(bench: Bench) -> None:
    nodes = {node.id: node for node in bench.engine.nodes() if node.alive}

    assert set(bench.nodes) <= set(nodes)
    for node in bench.nodes:
        assert nodes[node].total["CPU"] == CPU
    assert bench.engine.name in BENCHES


# --- resources --------------------------------------------------------------------------------------------------------


def test_a_resource_pins_a_task_to_its_node(bench: Bench, held: Held) -> None:
    for node in bench.nodes:
        assert held.set("pin." + node[-6:].strip(".-_").lower(), 1, node) == 1

    for number, node in enumerate(bench.nodes):
        task = held.submit(str(number), {"pin." + node[-6:].strip(".-_").lower(): 1})
        assert held.running(task)
        assert bench.where(task) == node


def test_a_task_whose_resource_nobody_has_waits_until_it_is_made(bench: Bench, held: Held) -> None:
    task = held.hold("late", late=1)
    assert bench.waits(task)

    held.set("late", 1, bench.nodes[1])

    assert held.running(task)
    assert bench.where(task) == bench.nodes[1]


def test_a_capacity_is_absolute_and_replaces_what_was(bench: Bench, held: Held) -> None:
    assert held.set("cap", 2, bench.nodes[0]) == 2
    assert held.set("cap", 3, bench.nodes[0]) == 3
    tasks = [held.hold(str(n), cap=1) for n in range(4)]

    assert bench.until(lambda: [bench.state(t) for t in tasks].count("running") == 3)
    bench.quiet()
    assert [bench.state(t) for t in tasks].count("running") == 3


def test_shrinking_below_what_is_in_use_is_clamped_and_can_be_asked_again(bench: Bench, held: Held) -> None:
    held.set("clamp", 5, bench.nodes[0])
    holder = held.hold("holder", clamp=4)
    assert held.running(holder)

    assert held.set("clamp", 2, bench.nodes[0]) == 4
    assert held.set("clamp", 0, bench.nodes[0]) == 4

    bench.engine.cancel([holder])
    assert bench.all_in([holder], "cancelled")
    assert bench.until(lambda: held.set("clamp", 2, bench.nodes[0]) == 2)
    assert held.running(held.hold("two", clamp=2))
    assert bench.waits(held.hold("three", clamp=3))


def test_deleting_what_is_unknown_does_nothing(bench: Bench) -> None:
    assert bench.engine.set_resource("never-made", 0, bench.nodes[0]) == 0


def test_a_deleted_resource_is_gone_and_can_be_made_again_elsewhere(bench: Bench, held: Held) -> None:
    held.set("moved", 1, bench.nodes[0])
    assert held.set("moved", 0, bench.nodes[0]) == 0
    task = held.hold("follows", moved=1)
    assert bench.waits(task)

    held.set("moved", INFINITE, bench.nodes[2])

    assert held.running(task)
    assert bench.where(task) == bench.nodes[2]


@pytest.mark.parametrize("name", ["CPU", "GPU", "memory_mib", "", "Upper", "with space", "a/b", ".a", "x" * 64])
def test_names_that_no_engine_holds_are_refused(bench: Bench, name: str) -> None:
    with pytest.raises(UsageError):
        bench.engine.set_resource(name, 1, bench.nodes[0])


@pytest.mark.parametrize("capacity", [-1, float("nan"), float("inf"), INFINITE + 1])
def test_capacities_that_no_engine_holds_are_refused(bench: Bench, capacity: float) -> None:
    with pytest.raises(UsageError):
        bench.engine.set_resource("wrong", capacity, bench.nodes[0])


def test_a_node_that_was_never_there_is_said_so(bench: Bench) -> None:
    with pytest.raises(UsageError) as found:
        bench.engine.set_resource("somewhere", 1, "no-such-node")
    assert found.value.code == "node_lost"


def test_fractions_are_exact(bench: Bench, held: Held) -> None:
    if "fractions" not in bench.features:
        pytest.skip(f"{bench.engine.name} counts whole units")
    held.set("part", 0.3, bench.nodes[0])
    tasks = [held.hold(str(n), part=0.1) for n in range(4)]

    assert bench.until(lambda: [bench.state(t) for t in tasks].count("running") == 3)
    bench.quiet()
    assert [bench.state(t) for t in tasks].count("waiting") == 1


# --- tasks ------------------------------------------------------------------------------------------------------------


def test_all_demands_are_met_by_one_node_or_it_waits(bench: Bench, held: Held) -> None:
    held.set("left", 1, bench.nodes[0])
    held.set("right", 1, bench.nodes[1])

    assert bench.waits(held.hold("both", left=1, right=1))


def test_no_node_is_allocated_past_its_capacity(bench: Bench, held: Held) -> None:
    tasks = [held.submit(str(n), {"CPU": 2}) for n in range(7)]  # 3 x 4 CPU hold six of them

    assert bench.until(lambda: [bench.state(t) for t in tasks].count("running") == 6)
    bench.quiet()
    states = bench.statuses(tasks)
    assert [s.state for s in states.values()].count("waiting") == 1
    for node in bench.nodes:
        assert sum(s.node == node and s.state == "running" for s in states.values()) == 2


def test_a_cancelled_holder_frees_what_it_held(bench: Bench, held: Held) -> None:
    held.set("one", 1, bench.nodes[0])
    first = held.hold("first", one=1)
    assert held.running(first)
    second = held.hold("second", one=1)
    assert bench.waits(second)

    bench.engine.cancel([first])

    assert held.running(second)
    assert bench.state(first) == "cancelled"


def test_a_cancelled_waiting_task_never_runs(bench: Bench, held: Held) -> None:
    task = held.hold("waiting", soon=1)
    assert bench.waits(task)
    bench.engine.cancel([task])
    assert bench.all_in([task], "cancelled")

    held.set("soon", 1, bench.nodes[0])

    bench.quiet()
    assert bench.state(task) == "cancelled"


def test_the_same_id_twice_is_one_task(bench: Bench, held: Held) -> None:
    held.set("twice", 2, bench.nodes[0])
    held.hold("same", twice=1)
    held.hold("same", twice=1)
    assert held.running(held.hold("other", twice=1))


def test_unknown_tasks_are_not_told_of_and_not_an_error(bench: Bench) -> None:
    bench.engine.cancel(["nobody"])
    bench.engine.forget(["nobody"])
    bench.engine.lift("nobody", "gate")
    bench.engine.release("nobody")
    assert bench.engine.status(["nobody"]) == {}


def test_an_ended_task_can_be_forgotten_and_its_id_used_again(bench: Bench, held: Held) -> None:
    held.set("again", 1, bench.nodes[0])
    task = held.hold("again", again=1)
    assert held.running(task)
    bench.engine.forget([task])
    assert bench.state(task) == "running"  # not while it runs
    bench.engine.cancel([task])
    assert bench.all_in([task], "cancelled")

    bench.engine.forget([task])

    assert bench.engine.status([task]) == {}
    held.hold("again", again=1)
    assert held.running(task)


@pytest.mark.parametrize("amount", [0, -1, float("nan"), float("inf"), 0.00001])
def test_demands_that_are_no_amounts_are_refused(bench: Bench, amount: float) -> None:
    with pytest.raises(UsageError):
        bench.engine.submit(Task(id="wrong", demands={"wrong": amount}))
    assert bench.engine.status(["wrong"]) == {}


def test_a_gated_task_is_not_considered_until_all_gates_are_lifted(bench: Bench, held: Held) -> None:
    held.set("open", 1, bench.nodes[0])
    task = held.submit("gated", {"open": 1}, gates=("one", "two"))
    bench.engine.lift(task, "one")
    bench.engine.lift(task, "one")
    bench.engine.lift(task, "unknown")
    assert bench.waits(task)

    bench.engine.lift(task, "two")

    assert held.running(task)


# --- work -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def works(bench: Bench) -> None:
    if "work" not in bench.features:
        pytest.skip(f"the bench of {bench.engine.name} runs no work")


@pytest.mark.usefixtures("works")
def test_work_is_done_and_its_result_comes_back(bench: Bench, held: Held) -> None:
    task = held.submit("sum", {"CPU": 1}, work=Work(entry=f"{HERE}:add", arguments={"left": 2, "right": 3}))
    assert bench.all_in([task], "done")
    status = bench.statuses([task])[task]
    assert (status.result, status.problem) == (5, "")
    assert status.node in bench.nodes


@pytest.mark.usefixtures("works")
def test_work_that_fails_says_why_and_frees_its_demands(bench: Bench, held: Held) -> None:
    held.set("only", 1, bench.nodes[0])
    task = held.submit("fails", {"only": 1}, work=Work(entry=f"{HERE}:raise_problem"))
    assert bench.all_in([task], "failed")
    assert "always fails" in bench.statuses([task])[task].problem
    assert held.running(held.hold("next", only=1))


@pytest.mark.usefixtures("works")
@pytest.mark.parametrize("entry", ["no.such.module:f", f"{HERE}:no_such_function", "without-colon"])
def test_an_entry_that_is_none_fails_the_task(bench: Bench, held: Held, entry: str) -> None:
    task = held.submit("none", {"CPU": 1}, work=Work(entry=entry))
    assert bench.all_in([task], "failed")
    assert entry in bench.statuses([task])[task].problem


@pytest.mark.usefixtures("works")
def test_running_work_can_be_cancelled(bench: Bench, held: Held) -> None:
    held.set("long", 1, bench.nodes[0])
    task = held.submit("long", {"long": 1}, work=Work(entry=f"{HERE}:until_cancelled"))
    assert held.running(task)

    bench.engine.cancel([task])

    assert bench.all_in([task], "cancelled")
    assert held.running(held.hold("next", long=1))


@pytest.mark.usefixtures("works")
def test_work_can_make_a_resource_where_it_runs(bench: Bench, held: Held) -> None:
    if "context_set" not in bench.features:
        pytest.skip(f"work on {bench.engine.name} cannot set resources")
    follower = held.hold("reader", written=1)
    writer = held.submit(
        "writer", {"CPU": 1}, work=Work(entry=f"{HERE}:make_here", arguments={"name": "written", "capacity": 1})
    )
    assert bench.all_in([writer], "done")
    node = bench.statuses([writer])[writer].result
    held.made.add(("written", node))

    assert held.running(follower)
    assert bench.where(follower) == node


# --- reservations -----------------------------------------------------------------------------------------------------


@pytest.fixture
def reserves(bench: Bench, held: Held) -> Iterator[None]:
    if "reserve" not in bench.features:
        pytest.skip(f"{bench.engine.name} has no reservation of its own")
    yield
    for gang in ("first", "second"):
        bench.engine.release(gang)


def test_an_engine_without_reservations_says_none(bench: Bench) -> None:
    if "reserve" in bench.features:
        pytest.skip(f"{bench.engine.name} has reservations")
    assert bench.engine.reserve("first", [{"CPU": 1}], spread=False) is None


@pytest.mark.usefixtures("reserves")
def test_a_reservation_is_all_or_nothing(bench: Bench) -> None:
    assert bench.engine.reserve("first", [{"CPU": CPU}] * 2, spread=True) is True
    assert bench.engine.reserve("second", [{"CPU": CPU}] * 2, spread=True) is False
    assert bench.until(lambda: free(bench, "CPU") == CPU)  # nothing of the second is held

    bench.engine.release("first")

    assert bench.until(lambda: free(bench, "CPU") == 3 * CPU)
    assert bench.until(lambda: bench.engine.reserve("second", [{"CPU": CPU}] * 2, spread=True) is True)


@pytest.mark.usefixtures("reserves")
def test_a_reservation_holds_against_tasks_and_for_its_members(bench: Bench, held: Held) -> None:
    assert bench.engine.reserve("first", [{"CPU": CPU}] * 3, spread=True) is True
    stranger = held.submit("stranger", {"CPU": 1})
    assert bench.waits(stranger)

    members = [held.submit(f"member{n}", dict(bench.engine.gang_demands("first", n))) for n in range(3)]

    assert held.running(*members)
    assert {bench.where(m) for m in members} == set(bench.nodes)
    assert bench.state(stranger) == "waiting"
    bench.engine.cancel(members)
    bench.engine.release("first")
    assert held.running(stranger)


@pytest.mark.usefixtures("reserves")
def test_the_same_gang_twice_is_one_reservation(bench: Bench) -> None:
    assert bench.engine.reserve("first", [{"CPU": 1}], spread=False) is True
    assert bench.engine.reserve("first", [{"CPU": 1}], spread=False) is True
    assert bench.until(lambda: free(bench, "CPU") == 3 * CPU - 1)


# --- nodes that go ----------------------------------------------------------------------------------------------------


@pytest.fixture
def mortal(request: pytest.FixtureRequest) -> Iterator[Bench]:
    """A bench of its own: its nodes do not come back."""
    with BENCHES[request.param]() as found:
        if found.kill_node is None or "kill_node" not in found.features:
            pytest.skip(f"the bench of {found.engine.name} cannot kill a node")
        yield found


@pytest.mark.parametrize("mortal", benches(), indirect=True)
def test_a_lost_node_takes_its_resources_and_its_tasks_run_elsewhere_or_are_lost(mortal: Bench) -> None:
    engine, victim = mortal.engine, mortal.nodes[1]
    engine.set_resource("data", INFINITE, victim)
    for task in (Task(id="again", demands={"data": 1}, retries=3), Task(id="once", demands={"data": 1})):
        engine.submit(task)
    assert mortal.all_in(["again", "once"], "running")
    assert mortal.kill_node is not None

    mortal.kill_node(victim)

    assert mortal.until(lambda: not {n.id: n for n in engine.nodes()}[victim].alive)
    assert mortal.all_in(["once"], "lost")
    assert mortal.all_in(["again"], "waiting")
    with pytest.raises(UsageError) as found:
        engine.set_resource("data", INFINITE, victim)
    assert found.value.code == "node_lost"
    engine.set_resource("data", INFINITE, mortal.nodes[0])
    assert mortal.all_in(["again"], "running")
    assert mortal.where("again") == mortal.nodes[0]
