"""Fair shares, fair queues, balance, packing: their laws, and brute-force optima on small cases."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.engines.base import Task
from cluster.escher.policies.balance import Balancer
from cluster.escher.policies.fair_queue import FairQueue
from cluster.escher.policies.fair_share import FairShare, User, assigned, divided, division
from cluster.escher.policies.packing import Consolidate, Packer, Spread, consolidation
from tests.support.escher_world import APP, World, name

users = st.lists(
    st.builds(
        lambda weight, active, needs: (weight, active, needs),
        st.sampled_from([1.0, 2.0, 3.0, 0.5]),
        st.booleans(),
        st.none() | st.integers(0, 8),
    ),
    min_size=1,
    max_size=5,
).map(lambda found: [User(id=f"u{n}", weight=w, active=a, needs=k) for n, (w, a, k) in enumerate(found)])


# --- hierarchical fair sharing ----------------------------------------------------------------------------------------


@given(st.integers(0, 20), users)
def test_a_division_gives_out_all_that_can_be_used_and_no_more(nodes: int, siblings: list[User]) -> None:
    found = division(nodes, siblings)
    active = [u for u in siblings if u.active]
    usable = nodes if any(u.needs is None for u in active) else sum(u.needs or 0 for u in active)
    assert sum(found.values()) == min(nodes, usable)
    for user in siblings:
        assert 0 <= found[user.id] <= (nodes if user.needs is None else user.needs)
        assert user.active or found[user.id] == 0


@given(st.integers(1, 12), users)
def test_nobody_with_less_per_weight_could_be_given_a_node_of_another(nodes: int, siblings: list[User]) -> None:
    """Max-min in whole nodes: moving one node from a richer to a poorer user never leaves the poorer one the poorer still by more
    than a node."""
    found = division(nodes, siblings)
    for poor in siblings:
        if not poor.active or (poor.needs is not None and found[poor.id] >= poor.needs):
            continue
        for rich in siblings:
            if found[rich.id] > 0 and rich.id != poor.id:
                assert (found[rich.id] - 1) / rich.weight <= (found[poor.id] + 1) / poor.weight + 1e-9


def test_what_a_user_cannot_use_is_divided_again() -> None:
    siblings = [User(id="small", needs=1), User(id="a"), User(id="b", weight=2)]
    assert division(10, siblings) == {"small": 1, "a": 3, "b": 6}


@given(st.integers(0, 300))
def test_a_tree_is_divided_and_nodes_are_nobodys_twice(seed: int) -> None:
    chance = random.Random(seed)
    tree: list[User] = []
    for number in range(chance.randint(1, 7)):
        parent = chance.choice(["", *(u.id for u in tree)])
        tree.append(User(id=f"u{number}", weight=chance.choice([1, 2, 5]), parent=parent, active=chance.random() < 0.7))
    nodes = [f"n{n}" for n in range(chance.randint(0, 9))]
    now: dict[str, tuple[str, ...]] = {}
    for _ in range(3):
        counts = divided(len(nodes), tree)
        now = assigned(nodes, tree, now)
        assert {user: len(mine) for user, mine in now.items()} == counts
        for parent in {u.parent for u in tree}:
            below = [node for u in tree if u.parent == parent for node in now[u.id]]
            assert len(below) == len(set(below))
            assert set(below) <= set(now[parent] if parent else nodes)
        assert assigned(nodes, tree, now) == now  # nothing moves without a reason
        nodes = chance.sample(nodes, max(0, len(nodes) - 1))


@pytest.mark.parametrize(
    "tree",
    [
        [User(id="a", parent="b")],
        [User(id="a", parent="a")],
        [User(id="a", parent="b"), User(id="b", parent="a")],
        [User(id="a"), User(id="a")],
    ],
)
def test_what_is_no_tree_is_refused(tree: list[User]) -> None:
    with pytest.raises(ValueError, match=r"under|same id"):
        divided(3, tree)


@pytest.mark.parametrize("weight", [0, -1, float("nan"), float("inf")])
def test_weights_are_above_zero(weight: float) -> None:
    with pytest.raises(ValueError, match="weight"):
        User(id="a", weight=weight)


def test_a_node_never_is_two_users_and_a_lost_node_is_divided_anew() -> None:
    world = World({f"n{n}": {"CPU": 1} for n in range(4)})
    share = FairShare(id=name("s"), owner=APP, users=(User(id="a"), User(id="b", active=False)))
    world.run(share)
    world.run(world.found(FairShare, share.id).with_users(User(id="b")))

    def owners() -> dict[str, set[str]]:
        return {r: set(world.escher.in_force(r)) for r in (share.resource("a"), share.resource("b"))}

    assert [len(nodes) for nodes in owners().values()] == [2, 2]
    assert not set.intersection(*owners().values())
    world.engine.kill_node("n0")
    world.engine.kill_node("n1")
    world.tick(1.0)
    assert [len(nodes) for nodes in owners().values()] == [1, 1]
    assert set.union(*owners().values()) == {"n2", "n3"}


# --- weighted fair queue ----------------------------------------------------------------------------------------------


def test_classes_are_served_by_their_weights_while_both_have_work() -> None:
    world = World({"n": {"CPU": 1}}, keeps=False)
    queue = FairQueue(id=name("w"), owner=APP, weights={"gold": 3.0, "tin": 1.0})
    queue = queue.entering("gold", *(Task(id=f"gold{n}", demands={"CPU": 1}) for n in range(20)))
    queue = queue.entering("tin", *(Task(id=f"tin{n}", demands={"CPU": 1}) for n in range(20)))
    world.run(queue)
    ids = [f"{word}{n}" for word in ("gold", "tin") for n in range(20)]
    served: list[str] = []
    for _ in range(24):
        (now,) = [i for i in ids if world.state(i) == "running"]
        served.append(now)
        world.finish(now)
        world.tick(1.0)
    for end in range(4, 25, 4):
        counts = Counter("gold" if s.startswith("gold") else "tin" for s in served[:end])
        assert counts["gold"] == 3 * end // 4


def test_a_class_that_was_idle_cannot_save_up() -> None:
    world = World({"n": {"CPU": 1}}, keeps=False)
    queue = FairQueue(id=name("w"), owner=APP, weights={"a": 1.0, "b": 1.0})
    world.run(queue.entering("a", *(Task(id=f"a{n}", demands={}) for n in range(12))))
    for n in range(6):
        running = [f"a{m}" for m in range(12) if world.state(f"a{m}") == "running"]
        world.finish(*running)
        world.tick(float(n))
    world.run(world.found(FairQueue, name("w")).entering("b", *(Task(id=f"b{n}", demands={}) for n in range(12))))
    order = []
    for _ in range(8):
        running = [i for i in (f"{w}{m}" for w in "ab" for m in range(12)) if world.state(i) == "running"]
        order += [r[0] for r in running]
        world.finish(*running)
        world.tick(1.0)
    assert 3 <= order.count("b") <= 5


@given(st.integers(1, 4), st.integers(0, 100))
def test_never_more_than_the_slots_and_all_get_through(slots: int, seed: int) -> None:
    chance = random.Random(seed)
    world = World(keeps=False, seed=seed)
    queue = FairQueue(id=name("w"), owner=APP, weights={"a": 1.0, "b": 2.5}, slots=slots)
    ids = []
    for number in range(6):
        word = chance.choice("ab")
        queue = queue.entering(word, Task(id=f"{word}{number}", demands={"CPU": 1}))
        ids.append(f"{word}{number}")
    world.run(queue)
    for _ in range(40):
        running = [i for i in ids if world.state(i) == "running"]
        assert len(running) <= slots
        if not running:
            break
        world.finish(*chance.sample(running, chance.randint(1, len(running))))
        world.tick(1.0)
    assert world.states(ids) == ["done"] * len(ids)


def test_weights_and_slots_are_checked_and_classes_known() -> None:
    with pytest.raises(ValueError, match="slots"):
        FairQueue(id=name("w"), owner=APP, weights={"a": 0.0})
    with pytest.raises(ValueError, match="slots"):
        FairQueue(id=name("w"), owner=APP, weights={"a": 1.0}, slots=0)
    with pytest.raises(KeyError):
        FairQueue(id=name("w"), owner=APP, weights={"a": 1.0}).entering("b", Task(id="t", demands={}))


# --- balance ----------------------------------------------------------------------------------------------------------


@given(st.integers(1, 13), st.integers(1, 4), st.integers(0, 5))
def test_no_node_is_more_than_one_task_ahead(count: int, nodes: int, seed: int) -> None:
    world = World({f"n{n}": {"CPU": 100} for n in range(nodes)}, seed=seed, keeps=False)
    tasks = [world.ghost(f"t{n}", {name("l"): 1}) for n in range(count)]
    world.run(Balancer(id=name("l"), owner=APP, tasks=tuple(tasks)))
    assert world.states(tasks) == ["running"] * count
    found = Counter(world.at(t) for t in tasks)
    assert max(found.values()) - min(found.get(f"n{n}", 0) for n in range(nodes)) <= 1


def test_the_capacity_grows_only_while_somebody_waits() -> None:
    world = World({"n1": {"CPU": 9}, "n2": {"CPU": 9}})
    tasks = [world.ghost(f"t{n}", {name("l"): 1}) for n in range(2)]
    world.run(Balancer(id=name("l"), owner=APP, tasks=tuple(tasks)))
    world.tick(1.0)
    assert world.found(Balancer, name("l")).each == 1
    more = world.ghost("t2", {name("l"): 1})
    world.run(world.found(Balancer, name("l")).watching(more))
    assert world.found(Balancer, name("l")).each == 2
    world.escher.stop(name("l"), 1.0)
    assert world.free(name("l")) == 0  # clamped to what is held
    world.engine.cancel(["t0", "t1", "t2"])
    world.tick(1.0)
    assert world.ours() == set()


# --- packing ----------------------------------------------------------------------------------------------------------


def test_nodes_are_filled_one_after_the_other_and_idle_ones_closed() -> None:
    world = World()
    world.run(Packer(id=name("p"), owner=APP, nodes=("n2", "n1", "n3")))
    world.run(world.found(Packer, name("p")).with_tasks(*(Task(id=f"t{n}", demands={"CPU": 2}) for n in range(3))))
    assert [world.at(f"t{n}") for n in range(3)] == ["n2", "n2", "n1"]
    assert world.found(Packer, name("p")).opened == ("n2", "n1")

    world.finish("t0", "t1")
    world.tick(1.0)
    assert world.found(Packer, name("p")).opened == ("n1",)  # n2 is idle
    world.run(world.found(Packer, name("p")).with_tasks(Task(id="t3", demands={"CPU": 4})))
    assert world.at("t3") == "n2"


@given(st.lists(st.integers(1, 4), min_size=1, max_size=9), st.integers(0, 20))
def test_packing_needs_at_most_what_first_fit_promises(sizes: list[int], seed: int) -> None:
    """First fit uses at most 1.7 times the optimum (plus one for whole nodes); the optimum is at least the sum."""
    world = World({f"n{n}": {"CPU": 4} for n in range(9)}, seed=seed, keeps=False)
    tasks = [Task(id=f"t{n}", demands={"CPU": size}) for n, size in enumerate(sizes)]
    world.run(Packer(id=name("p"), owner=APP))
    for task in tasks:
        world.run(world.found(Packer, name("p")).with_tasks(task))
    assert world.states([t.id for t in tasks]) == ["running"] * len(tasks)
    used = {world.at(t.id) for t in tasks}
    best = max(-(-sum(sizes) // 4), sum(size > 2 for size in sizes))
    assert len(used) <= 1.7 * best + 1


def test_consolidation_takes_the_largest_job_that_one_node_can_hold() -> None:
    jobs = [
        Spread(job="small", worker={"GPU": 1}, at={"n1": 1, "n2": 1}),
        Spread(job="large", worker={"GPU": 1}, at={"n1": 2, "n2": 1, "n3": 1}),
        Spread(job="whole", worker={"GPU": 1}, at={"n4": 4}),
    ]
    free = {"n1": {"GPU": 0.0}, "n2": {"GPU": 3.0}, "n3": {"GPU": 1.0}, "n4": {"GPU": 0.0}}
    assert consolidation(jobs, free) == ("large", "n2")
    assert consolidation(jobs, {**free, "n2": {"GPU": 1.0}}) == ("small", "n2")
    assert consolidation(jobs, dict.fromkeys(free, {"GPU": 0.0})) is None
    assert consolidation(jobs[2:], free) is None


def test_a_job_is_brought_together_only_after_its_checkpoint() -> None:
    """The paper's case: a 4-GPU job on two nodes whose neighbours have ended."""
    world = World({"n1": {"GPU": 4}, "n2": {"GPU": 4}})
    workers = [Task(id=f"w{n}", demands={"GPU": 1}) for n in range(4)]
    world.ghost("block", {"GPU": 2})
    for worker in workers:
        world.engine.submit(worker)
    world.engine.cancel(["block"])
    target = "n1"
    world.run(Consolidate(id=name("c"), owner=APP, workers=tuple(workers), target=target))
    world.tick(1.0)
    assert world.states([w.id for w in workers]) == ["running"] * 4  # nothing is ended before it is written down

    world.run(world.found(Consolidate, name("c")).checkpoint_done())

    moved = [w.id for w in world.found(Consolidate, name("c")).moved]
    assert world.drive(lambda: world.states(moved) == ["running"] * 4)
    assert {world.at(i) for i in moved} == {target}
    assert world.states([w.id for w in workers]) == ["cancelled"] * 4
    world.finish(*moved)
    assert world.drive(lambda: world.found(Consolidate, name("c")).over)
    assert world.ours() == set()
