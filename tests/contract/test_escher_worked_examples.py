"""The paper card's worked examples 1 to 14 (section 13) on every engine that has what they need; the numbers in names are the card's.

Examples that a policy makes go through the library; its clock is virtual (`Play.drive`), only the engine's own pace is real.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from cluster.engines.base import INFINITE, Task, Work
from cluster.engines.local import LocalEngine
from cluster.escher.amounts import every
from cluster.escher.library import Escher
from cluster.escher.names import named
from cluster.escher.policies.balance import Balancer
from cluster.escher.policies.base import Policy
from cluster.escher.policies.dag import sequence, signal
from cluster.escher.policies.fair_share import FairShare, User, divided
from cluster.escher.policies.gang import Gang, Pace
from cluster.escher.policies.placing import anti_affinity, balanced, data_locality, follow, pairs, pinned, priority
from cluster.escher.policies.soft import Soft
from cluster.escher.policies.turnstile import mutex, queue
from cluster.escher.wishes import Where, Wish
from configs.errors import UsageError
from tests.support.fleet_engines import BENCHES, CPU, MARKERS, Bench
from tests.support.pace import slowness

APP = "app"
#: Virtual seconds per look at the engine, and real ones between two looks: as many more as the machine is slower.
TICK_S = 0.1
REAL_S = {"local": 0.0005, "kubernetes": 0.004, "ray": 0.02}


def benches() -> list[object]:
    return [pytest.param(name, marks=[getattr(pytest.mark, mark) for mark in MARKERS.get(name, ())]) for name in BENCHES]


@pytest.fixture(scope="module", params=benches())
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    with BENCHES[request.param]() as found:
        yield found


class Play:
    """A library over a bench, with one application; everything it made is gone at its end."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.engine = bench, bench.engine
        self.escher = Escher(bench.engine)
        self.now_s = 0.0
        self.tasks: list[str] = []
        self.real_s = REAL_S[bench.engine.name] * (slowness() if bench.engine.name == "ray" else 1.0)
        self.escher.register(APP, 0.0)

    def drive(self, condition: Callable[[], bool], *, looks: int = 1500) -> bool:
        """Ticks until the condition holds; False: it never did."""
        for _ in range(looks):
            self.escher.tick(self.now_s)
            if condition():
                return True
            self.now_s += TICK_S
            time.sleep(self.real_s)
        return False

    def settle(self) -> None:
        """As long as something could still happen."""
        self.escher.tick(self.now_s)
        self.bench.quiet()
        self.escher.tick(self.now_s)

    def run(self, policy: Policy) -> None:
        self.escher.run(policy, self.now_s)

    def want(self, *wishes: Wish) -> None:
        for wish in wishes:
            self.escher.want(wish, self.now_s)

    def hold(self, name: str, demands: dict[str, float]) -> str:
        self.tasks.append(name)
        self.escher.submit(APP, Task(id=name, demands=demands), anyway=True)
        return name

    def state(self, task: str) -> str:
        return self.bench.state(task)

    def runs(self, *tasks: str) -> bool:
        return self.drive(lambda: all(self.state(t) == "running" for t in tasks))

    def waits(self, task: str) -> bool:
        """It is heard of as waiting, however late, and stays so."""
        if not self.drive(lambda: self.state(task) == "waiting"):
            return False
        self.settle()
        return self.state(task) == "waiting"

    def at(self, task: str) -> str | None:
        return self.bench.where(task)

    def free(self, name: str) -> float:
        return sum(node.free.get(name, 0.0) for node in self.engine.nodes() if node.alive)

    def close(self) -> None:
        tasks = list({*self.tasks, *(t for p in self.escher.state.policies.values() for t in p.watches())})
        self.escher.remove_owner(APP, self.now_s)
        self.engine.cancel(tasks)
        assert self.drive(lambda: all(s.ended for s in self.engine.status(tasks).values()))
        self.engine.forget(tasks)
        alive = {node.id for node in self.engine.nodes() if node.alive}
        assert self.drive(lambda: not any(n for node, n in self.escher.state.registry.in_force.items() if node in alive))


@pytest.fixture
def play(bench: Bench) -> Iterator[Play]:
    found = Play(bench)
    yield found
    found.close()


def name(test: str) -> str:
    return named(APP, test)


def test_1_a_task_runs_where_its_resource_is(play: Play) -> None:
    placing = pinned(name("r"), APP, play.bench.nodes[1])
    play.want(*placing.wishes)

    task = play.hold("t1", dict(placing.demands[0]))

    assert play.runs(task)
    assert play.at(task) == play.bench.nodes[1]


def test_2_demand_first_then_create_and_the_second_waits_for_the_first(play: Play) -> None:
    first = play.hold("t2-first", {name("e"): 1})
    assert play.waits(first)

    play.want(Wish(name=name("e"), owner=APP, capacity=1, where=Where(nodes=(play.bench.nodes[2],))))

    assert play.runs(first)
    assert play.at(first) == play.bench.nodes[2]
    second = play.hold("t2-second", {name("e"): 1})
    assert play.waits(second)
    play.escher.cancel([first])
    assert play.runs(second)


def test_3_anti_affinity_three_on_distinct_nodes_and_the_fourth_waits(play: Play) -> None:
    placing = anti_affinity(name("apart"), APP, tasks=4, nodes=play.bench.nodes)
    play.want(*placing.wishes)
    tasks = [play.hold(f"t3-{n}", dict(demands)) for n, demands in enumerate(placing.demands)]

    assert play.drive(lambda: sum(play.state(t) == "running" for t in tasks) == 3)
    play.settle()

    assert {play.at(t) for t in tasks if play.state(t) == "running"} == set(play.bench.nodes)
    assert [play.state(t) for t in tasks].count("waiting") == 1


def test_4_balance_with_known_counts(play: Play) -> None:
    placing = balanced(name("l"), APP, tasks=10, nodes=play.bench.nodes)
    play.want(*placing.wishes)
    tasks = [play.hold(f"t4-{n}", dict(demands)) for n, demands in enumerate(placing.demands)]

    assert play.runs(*tasks)
    counts = Counter(play.at(t) for t in tasks)
    assert sum(counts.values()) == 10
    assert max(counts.values()) <= 4


def test_4_balance_by_watching_ten_long_tasks_on_two_nodes(play: Play) -> None:
    two = play.bench.nodes[:2]
    tasks = [play.hold(f"t4w-{n}", {name("w"): 1}) for n in range(10)]
    play.run(Balancer(id=name("w"), owner=APP, tasks=tuple(tasks), nodes=two))

    assert play.runs(*tasks)

    assert Counter(play.at(t) for t in tasks) == {two[0]: 5, two[1]: 5}


def test_5_a_resource_of_one_keeps_draining(play: Play) -> None:
    """The paper's queue: wrappers exit, so one unit lets all of them through, one after the other."""
    tasks = [f"t5-{n}" for n in range(4)]
    play.run(mutex(name("drain"), APP, *(Task(id=t, demands={"CPU": 1}) for t in tasks)))
    order: list[str] = []

    def one_ran() -> bool:
        running = [t for t in tasks if play.state(t) == "running"]
        assert len(running) <= 1  # mutual exclusion: the wrapper holds the unit while the task runs
        order.extend(running)
        play.engine.cancel(running)
        return len(set(order)) == 4

    play.tasks += tasks
    assert play.drive(one_ran)


def test_5_a_queue_releases_exactly_as_many_as_it_is_told(play: Play) -> None:
    tasks = [f"t5q-{n}" for n in range(5)]
    play.tasks += tasks
    line = queue(name("q"), APP, *(Task(id=t, demands={"CPU": 1}) for t in tasks))
    play.run(line)
    play.settle()
    assert not any(play.state(t) == "running" for t in tasks)

    def release(count: int) -> None:
        found = play.escher.policy(line.id)
        play.run(found.releasing(count))  # type: ignore[union-attr]

    release(2)
    assert play.drive(lambda: sum(play.state(t) == "running" for t in tasks) == 2)
    play.engine.cancel([t for t in tasks if play.state(t) == "running"])  # those that are through do not let others in
    play.settle()
    assert sum(play.state(t) == "cancelled" for t in tasks) == 2
    assert not any(play.state(t) == "running" for t in tasks)

    release(3)
    assert play.drive(lambda: sum(play.state(t) == "running" for t in tasks) == 3)


def test_6_the_lowest_priority_starts_when_nothing_else_runs(play: Play) -> None:
    node = play.bench.nodes[2]
    placing = priority(name("prio"), APP, levels=3, classes=(0, 0, 3), nodes=(node,))
    play.want(*placing.wishes)
    high = [play.hold(f"t6-{n}", dict(placing.demands[n])) for n in (0, 1)]
    assert play.runs(*high)

    low = play.hold("t6-low", dict(placing.demands[2]))

    assert play.waits(low)
    play.escher.cancel(high[:1])
    assert play.waits(low)
    play.escher.cancel(high[1:])
    assert play.runs(low)


@pytest.mark.parametrize("ghosts_only", [True, False], ids=["ghosts", "reservation"])
def test_7_a_gang_gets_all_or_nothing(play: Play, ghosts_only: bool) -> None:
    if not ghosts_only and "reserve" not in play.bench.features:
        pytest.skip(f"{play.engine.name} has no reservation of its own")
    pace = Pace(deadline_s=10.0, pause_s=10_000.0, most_s=10_000.0)

    def gang(letter: str, **more: object) -> Gang:
        return Gang(
            id=name(f"gang-{letter}"), owner=APP, bundles=({"CPU": CPU},) * 2, ghosts_only=ghosts_only, pace=pace, **more
        )  # type: ignore[arg-type]

    def phase(letter: str) -> Gang:
        found = play.escher.policy(name(f"gang-{letter}"))
        assert isinstance(found, Gang)
        return found

    play.run(gang("a"))
    assert play.drive(lambda: phase("a").held)
    assert play.drive(lambda: play.free("CPU") == CPU)

    play.run(gang("b"))
    assert play.drive(lambda: phase("b").tries == 1)
    assert phase("b").phase == "idle"
    assert play.drive(lambda: play.free("CPU") == CPU)  # its ghosts are gone

    members = [play.hold(f"t7-{n}", dict(phase("a").demands[n])) for n in range(2)]
    assert play.runs(*members)
    assert len({play.at(m) for m in members}) == 2
    play.escher.cancel(members)
    play.escher.stop(name("gang-b"), play.now_s)
    play.run(phase("a").letting_go())
    assert play.drive(lambda: play.free("CPU") == 3 * CPU)


def test_7_eight_members_share_the_units_of_two_bundles(play: Play) -> None:
    members = tuple(Task(id=f"t7m-{n}", demands={"CPU": 1}) for n in range(8))
    play.tasks += [m.id for m in members]
    play.run(Gang(id=name("eight"), owner=APP, bundles=({"CPU": CPU},) * 2, members=members, each=CPU, ghosts_only=True))

    assert play.runs(*(m.id for m in members))
    assert sorted(Counter(play.at(m.id) for m in members).values()) == [4, 4]
    assert play.drive(lambda: play.free("CPU") == CPU)  # members demand nothing physical


def test_8_hierarchical_fair_shares() -> None:
    def shares(nodes: int, *active: str) -> list[int]:
        users = [
            User(id="org1"),
            User(id="org2"),
            User(id="A", weight=2, parent="org1", active="A" in active),
            User(id="B", weight=3, parent="org1", active="B" in active),
            User(id="C", parent="org2", active="C" in active),
        ]
        found = divided(nodes, users)
        assert found["org1"] + found["org2"] == nodes
        return [found[u] for u in "ABC"]

    assert shares(100, "A") == [100, 0, 0]
    assert shares(100, "A", "B") == [40, 60, 0]
    assert shares(100, "A", "B", "C") == [20, 30, 50]
    assert shares(100, "A", "C") == [50, 0, 50]
    assert shares(10, "A") == [10, 0, 0]
    assert shares(10, "A", "B") == [4, 6, 0]
    assert shares(10, "A", "B", "C") == [2, 3, 5]


def test_8_shares_move_and_tasks_follow(play: Play) -> None:
    share = FairShare(
        id=name("hfs"),
        owner=APP,
        domain=play.bench.nodes,
        users=(User(id="org1"), User(id="org2"), User(id="a", parent="org1"), User(id="c", parent="org2", active=False)),
    )
    play.run(share)
    tasks = [play.hold(f"t8-{n}", every({"CPU": CPU}, share.demands("a"))) for n in range(3)]
    assert play.runs(*tasks)  # alone it has all nodes

    found = play.escher.policy(share.id)
    assert isinstance(found, FairShare)
    play.run(found.with_users(User(id="c", parent="org2")))
    other = play.hold("t8-other", every({"CPU": CPU}, share.demands("c")))
    assert play.waits(other)  # no preemption: what runs finishes

    moved = play.escher.policy(share.id)
    assert isinstance(moved, FairShare)
    assert (len(moved.granted["a"]), len(moved.granted["c"])) == (2, 1)
    play.escher.cancel([t for t in tasks if play.at(t) == moved.granted["c"][0]])
    assert play.runs(other)
    assert play.at(other) == moved.granted["c"][0]


def test_9_the_third_preference_is_the_first_that_can_be_met(play: Play) -> None:
    n1, n2, _ = play.bench.nodes
    data1, data2, gpu, tpu = (name(x) for x in ("data1", "data2", "gpu", "tpu"))
    play.want(
        *(
            Wish(name=resource, owner=APP, capacity=1, where=Where(nodes=(node,)))
            for resource, node in ((data1, n1), (gpu, n1), (data2, n2), (tpu, n2))
        )
    )
    soft = Soft(
        id=name("soft"),
        owner=APP,
        task=Task(id="t9", demands={gpu: 1}),
        preferences=({data1: 1, tpu: 1}, {data2: 1, tpu: 1}, {data1: 1}),
        wait_s=4.0,
    )
    play.run(soft)

    def now() -> Soft:
        found = play.escher.policy(soft.id)
        assert isinstance(found, Soft)
        return found

    assert play.drive(lambda: now().winner is not None)
    assert now().winner == 2  # after two time-outs
    assert now().chosen == {data1: 1, gpu: 1}
    assert play.at("t9~a2") == n1
    assert play.now_s >= 8.0


def test_10_growing_while_units_are_held(play: Play) -> None:
    node, cap = play.bench.nodes[0], name("cap")
    assert play.engine.set_resource(cap, 5, node) == 5
    holder = play.hold("t10-holder", {cap: 4})
    assert play.runs(holder)

    assert play.engine.set_resource(cap, 10, node) == 10
    play.escher.cancel([holder])

    ten = play.hold("t10-ten", {cap: 10})
    assert play.runs(ten)
    eleven = play.hold("t10-eleven", {cap: 11})
    assert play.waits(eleven)
    play.escher.cancel([ten, eleven])
    assert play.drive(lambda: play.engine.set_resource(cap, 0, node) == 0)


@pytest.mark.parametrize(("target", "runs", "waits"), [(2, 2, 3), (0, None, 1)])
def test_10_shrinking_below_what_is_held_is_clamped_and_the_library_asks_again(
    play: Play, target: int, runs: int | None, waits: int
) -> None:
    node, cap = play.bench.nodes[0], name(f"shrink{target}")
    play.want(Wish(name=cap, owner=APP, capacity=5, where=Where(nodes=(node,))))
    holder = play.hold(f"t10s-holder{target}", {cap: 4})
    assert play.runs(holder)

    assert play.escher.set_resource(APP, cap, target, play.now_s, where=Where(nodes=(node,))) == {node: 4}
    play.escher.cancel([holder])

    assert play.drive(lambda: play.escher.in_force(cap) == ({node: target} if target else {}))
    if runs is not None:
        assert play.runs(play.hold(f"t10s-runs{target}", {cap: runs}))
    assert play.waits(play.hold(f"t10s-waits{target}", {cap: waits}))


def test_11_pairs_together_and_apart_from_each_other(play: Play) -> None:
    first, second = pairs(name("pair"), APP, count=2, nodes=play.bench.nodes[:2])
    play.want(*first.wishes)
    followers = [play.hold(f"t11-second{n}", dict(demands)) for n, demands in enumerate(second)]
    leaders = [play.hold(f"t11-first{n}", dict(demands)) for n, demands in enumerate(first.demands)]
    assert play.runs(*leaders)
    for number, leader in enumerate(leaders):
        play.want(follow(f"{name('pair')}.{number}", APP, play.at(leader) or "", units=1))

    assert play.runs(*followers)
    assert [play.at(f) for f in followers] == [play.at(leader) for leader in leaders]
    assert play.at(leaders[0]) != play.at(leaders[1])


def test_12_resources_on_two_nodes_never_meet(play: Play) -> None:
    n1, n2, _ = play.bench.nodes
    a, b = name("a"), name("b")
    play.want(
        Wish(name=a, owner=APP, capacity=1, where=Where(nodes=(n1,))),
        Wish(name=b, owner=APP, capacity=1, where=Where(nodes=(n2,))),
    )
    with pytest.raises(UsageError) as refused:  # the library knows
        play.escher.submit(APP, Task(id="t12", demands={a: 1, b: 1}))
    assert refused.value.code == "never"
    task = play.hold("t12", {a: 1, b: 1})
    assert play.waits(task)  # the engine does not

    play.want(Wish(name=b, owner=APP, capacity=1, where=Where(nodes=(n1, n2))))

    assert play.runs(task)
    assert play.at(task) == n1


def test_12_a_barrier_puts_all_its_units_on_one_rendezvous(play: Play) -> None:
    task = Task(id="t12-barrier", demands={"CPU": 1})
    play.tasks.append(task.id)
    barrier = signal(name("bar"), APP, task, "one", "two", "three")
    play.run(barrier)
    for event in ("one", "two"):
        found = play.escher.policy(barrier.id)
        play.run(found.telling(event))  # type: ignore[union-attr]
        play.settle()
        assert play.state(task.id) == "unknown"

    found = play.escher.policy(barrier.id)
    play.run(found.telling("three"))  # type: ignore[union-attr]

    assert play.runs(task.id)


def test_2_a_signal_by_gates_needs_no_resource(play: Play) -> None:
    task = Task(id="t2-gated", demands={"CPU": 1})
    play.tasks.append(task.id)
    waiting = signal(name("gated"), APP, task, "one", "two", gated=True)
    play.run(waiting)
    assert play.waits(task.id)
    for event in ("one", "two"):
        assert play.waits(task.id)
        found = play.escher.policy(waiting.id)
        play.run(found.telling(event))  # type: ignore[union-attr]

    assert play.runs(task.id)


def test_sequences_run_one_after_the_other_wherever_they_fit(play: Play) -> None:
    if "work" not in play.bench.features:
        pytest.skip(f"the bench of {play.engine.name} runs no work")
    work = Work(entry="tests.support.fleet_engines:where_am_i")
    nodes = play.bench.nodes
    places = [pinned(name(f"at{n}"), APP, node) for n, node in enumerate(nodes)]
    play.want(*(wish for place in places for wish in place.wishes))
    tasks = [Task(id=f"seq-{n}", demands=place.demands[0], work=work) for n, place in enumerate(places)]
    play.run(sequence(name("seq"), APP, *tasks))

    assert play.drive(lambda: play.state("seq-2") == "done")

    # pinned each to another node: the signal did not drag the successor to its own
    assert [status.result for status in play.engine.status([t.id for t in tasks]).values()] == list(nodes)


@pytest.mark.parametrize("mortal", benches(), indirect=True)
def test_13_data_of_a_lost_node_is_served_by_the_next_replica(mortal: Bench) -> None:
    play = Play(mortal)
    victim, spare = mortal.nodes[1], mortal.nodes[2]
    data = name("data")
    play.want(Wish(name=data, owner=APP, capacity=INFINITE, where=Where(nodes=(victim, spare), count=1)))
    only = data_locality(name("only-there"), APP, (victim,))
    play.want(*only.wishes)
    for task, demands in (("t13", {data: 1.0}), ("t13-only", dict(only.demands[0]))):
        play.escher.submit(APP, Task(id=task, demands=demands, retries=3))
    assert play.runs("t13", "t13-only")
    assert play.at("t13") == victim
    assert mortal.kill_node is not None

    mortal.kill_node(victim)

    assert mortal.until(lambda: not {n.id: n for n in mortal.engine.nodes()}[victim].alive)
    assert play.drive(lambda: play.state("t13") == "running" and play.at("t13") == spare)
    assert play.waits("t13-only")  # its data went with the node
    assert play.escher.in_force(data) == {spare: INFINITE}


@pytest.mark.parametrize("mortal", benches(), indirect=True)
def test_a_node_killed_during_a_gang_restarts_it_on_those_that_are_left(mortal: Bench) -> None:
    play = Play(mortal)
    members = tuple(Task(id=f"killed-{n}", demands={"CPU": 1}) for n in range(2))
    gang = Gang(id=name("killed"), owner=APP, bundles=({"CPU": CPU},) * 2, members=members)
    play.run(gang)

    def now() -> Gang:
        found = play.escher.policy(gang.id)
        assert isinstance(found, Gang)
        return found

    def runs() -> bool:
        return now().held and all(play.state(run) == "running" for run in now().runs)

    assert play.drive(runs)
    # not the first node: it is Ray's head, and a cluster without its head is none
    victim = next(node for run in now().runs if (node := play.at(run)) not in (None, mortal.nodes[0]))
    assert victim is not None
    assert mortal.kill_node is not None

    mortal.kill_node(victim)

    assert play.drive(lambda: now().restarts >= 1 and runs())
    left = {play.at(run) for run in now().runs}
    assert len(left) == 2
    assert victim not in left
    assert not any(play.state(m.id) == "running" for m in members)  # the first run of it is over, on both nodes


@pytest.fixture
def mortal(request: pytest.FixtureRequest) -> Iterator[Bench]:
    """A bench of its own: its nodes do not come back."""
    with BENCHES[request.param]() as found:
        if "kill_node" not in found.features:
            pytest.skip(f"the bench of {found.engine.name} cannot kill a node")
        yield found


def test_14_an_engines_reservation_waits_for_the_first_to_go(play: Play) -> None:
    if "reserve" not in play.bench.features:
        pytest.skip(f"{play.engine.name} has no reservation of its own")
    engine = play.engine
    filler = play.hold("t14-third-node", {"CPU": CPU})  # two nodes of 4 CPU are left, as in the card
    assert play.runs(filler)

    assert engine.reserve("t14-first", [{"CPU": CPU}] * 2, spread=True) is True
    assert engine.reserve("t14-second", [{"CPU": 1}], spread=False) is False
    engine.release("t14-first")
    assert play.drive(lambda: engine.reserve("t14-second", [{"CPU": 1}], spread=False) is True)
    engine.release("t14-second")


def test_a_returning_node_gets_its_resources_again() -> None:
    engine = LocalEngine({"n1": {"CPU": 1}, "n2": {"CPU": 1}})
    escher = Escher(engine)
    escher.register(APP, 0.0)
    escher.want(Wish(name=name("all"), owner=APP, capacity=2), 0.0)
    escher.want(Wish(name=name("there"), owner=APP, capacity=1, where=Where(nodes=("n2",))), 0.0)

    engine.kill_node("n2")
    escher.tick(1.0)
    assert escher.in_force(name("there")) == {}
    engine.add_node("n2", {"CPU": 1})
    engine.add_node("n3", {"CPU": 1})
    escher.tick(2.0)

    assert escher.in_force(name("there")) == {"n2": 1}
    assert escher.in_force(name("all")) == {"n1": 2, "n2": 2, "n3": 2}
