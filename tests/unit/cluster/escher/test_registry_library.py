"""Owners, leases, wishes and what is in force; the library over an engine that loses nodes, clamps, forgets and is killed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.engines.base import INFINITE, NodeStatus, Task
from cluster.escher import registry as reg
from cluster.escher.names import LONGEST, named, owner_of
from cluster.escher.policies.balance import Balancer
from cluster.escher.policies.gang import Gang
from cluster.escher.policies.turnstile import mutex
from cluster.escher.registry import Held, Registry, Set
from cluster.escher.table import POLICIES, state_as_dict, state_from_dict
from cluster.escher.wishes import Where, Wish, chosen
from configs.errors import UsageError
from tests.support.escher_world import APP, Crash, World, name


def node(word: str, *, alive: bool = True, **total: float) -> NodeStatus:
    amounts = {"CPU": 4.0, **total} if alive else {}
    return NodeStatus(id=word, alive=alive, total=amounts, free=amounts)


NODES = [node("n1"), node("n2"), node("n3")]


def wish(word: str, capacity: float = 1.0, **where: object) -> Wish:
    return Wish(name=name(word), owner=APP, capacity=capacity, where=Where(**where))  # type: ignore[arg-type]


def registered(*wishes: Wish) -> Registry:
    found = reg.leased(Registry(), APP, now_s=0.0, lease_s=None)
    for one in wishes:
        found = reg.wished(found, one, NODES)
    return found


def made(registry: Registry, nodes: list[NodeStatus], now_s: float = 0.0) -> Registry:
    """As if an engine had done all that is due."""
    registry = reg.settled(registry, nodes)
    for call in reg.due(registry, nodes, now_s):
        registry = reg.noted(registry, call, call.capacity, now_s)
    return registry


# --- names ------------------------------------------------------------------------------------------------------------


@given(st.text(max_size=100), st.text(max_size=100))
def test_names_fit_every_engine_and_two_purposes_never_meet(left: str, right: str) -> None:
    from cluster.engines.base import checked_resource

    first, second = named(APP, left), named(APP, right)
    assert len(first) <= LONGEST
    checked_resource(first, 1)
    assert owner_of(first) == APP
    assert (first == second) == (left == right)


@pytest.mark.parametrize("owner", ["", "a.b", "A", "x" * 25, "-a", "a/b"])
def test_owners_that_could_be_mixed_up_are_refused(owner: str) -> None:
    with pytest.raises(UsageError):
        named(owner, "x")


@pytest.mark.parametrize("other", ["CPU", "gpu-box", "dbx", "dbx.", "bundle.g.0", "dbx.app"])
def test_what_others_made_is_nobodys_here(other: str) -> None:
    assert owner_of(other) is None


# --- where ------------------------------------------------------------------------------------------------------------


def test_any_node_in_order_or_only_these() -> None:
    assert chosen(Where(), NODES) == ("n1", "n2", "n3")
    assert chosen(Where(nodes=("n3", "n1")), NODES) == ("n3", "n1")
    assert chosen(Where(nodes=("n3", "gone"), count=1), NODES) == ("n3",)
    assert chosen(Where(count=0), NODES) == ()


def test_a_vector_chooses_by_what_is_free_and_stays_where_it_is() -> None:
    nodes = [node("n1", GPU=1), node("n2"), node("n3", GPU=1)]
    assert chosen(Where(holding={"GPU": 1}), nodes) == ("n1", "n3")
    assert chosen(Where(holding={"GPU": 1}, count=1), nodes, ["n2"]) == ("n2",)  # what holds it may have taken the GPU
    assert chosen(Where(count=2), nodes, ["n3"]) == ("n3", "n1")


def test_a_lost_node_is_replaced_if_the_wish_allows_it() -> None:
    nodes = [node("n1"), node("n2", alive=False), node("n3")]
    assert chosen(Where(nodes=("n2", "n3"), count=1), nodes, ["n2"]) == ("n3",)
    assert chosen(Where(nodes=("n2",)), nodes, ["n2"]) == ()


def test_wishes_that_belong_together_lie_together_and_move_together() -> None:
    registry = made(registered(wish("a", together="here"), wish("b", together="here")), NODES)
    assert {reg.lies_at(registry, name(x)) for x in "ab"} == {("n1",)}
    nodes = [node("n1", alive=False), node("n2"), node("n3")]
    registry = made(registry, nodes, 1.0)
    assert {reg.lies_at(registry, name(x)) for x in "ab"} == {("n2",)}


# --- due --------------------------------------------------------------------------------------------------------------


def test_deletions_come_first_then_shrinks_then_the_rest() -> None:
    registry = made(registered(wish("gone"), wish("less", 5, nodes=("n1",)), wish("more", 1, nodes=("n2",))), NODES)
    registry = reg.dropped(registry, name("gone"))
    registry = reg.wished(registry, wish("less", 2, nodes=("n1",)), NODES)
    registry = reg.wished(registry, wish("more", 3, nodes=("n2",)), NODES)
    calls = reg.due(registry, NODES, 1.0)
    assert [(c.name, c.capacity, c.node) for c in calls] == [
        (name("gone"), 0.0, "n1"),
        (name("gone"), 0.0, "n2"),
        (name("gone"), 0.0, "n3"),
        (name("less"), 2, "n1"),
        (name("more"), 3, "n2"),
    ]
    assert reg.due(made(registry, NODES, 1.0), NODES, 1.0) == ()


def test_a_clamped_shrink_is_asked_again_until_it_is_done() -> None:
    registry = made(registered(wish("e", 5, nodes=("n1",))), NODES)
    registry = reg.wished(registry, wish("e", 2, nodes=("n1",)), NODES)
    (call,) = reg.due(registry, NODES, 1.0)
    registry = reg.noted(registry, call, 4.0, 1.0)
    assert reg.due(registry, NODES, 1.1) == (call,)
    assert reg.due(reg.noted(registry, call, 2.0, 2.0), NODES, 2.1) == ()


def test_a_clamped_deletion_is_asked_again_too() -> None:
    registry = reg.dropped(made(registered(wish("e", 5, nodes=("n1",))), NODES), name("e"))
    (call,) = reg.due(registry, NODES, 1.0)
    registry = reg.noted(registry, call, 4.0, 1.0)
    assert reg.due(registry, NODES, 1.0) == (call,)
    assert reg.noted(registry, call, 0.0, 1.0).in_force["n1"] == {}


def test_what_a_raylet_forgot_is_made_again_but_lag_is_not_taken_for_it() -> None:
    registry = made(registered(wish("e", nodes=("n1",))), NODES, 100.0)
    assert reg.due(registry, NODES, 100.0 + reg.LAG_S / 2) == ()  # the engine does not show it yet
    assert reg.due(registry, NODES, 100.0 + reg.LAG_S) == (Set(name=name("e"), capacity=1.0, node="n1"),)
    seen = [node("n1", **{name("e"): 1.0}), *NODES[1:]]
    assert reg.due(registry, seen, 1000.0) == ()


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([0.0, 1.0, 5.0]), st.integers(0, 3)), max_size=6),
    st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=5),
)
def test_whatever_was_wished_and_lost_ends_as_the_last_wish_says(
    wishes: list[tuple[str, float, int]], losses: list[tuple[int, bool]]
) -> None:
    world = World(keeps=False)
    last: dict[str, tuple[float, int]] = {}
    for number, (word, capacity, count) in enumerate(wishes):
        world.escher.want(wish(word, capacity, count=count), float(number))
        last[word] = (capacity, count)
        if number < len(losses):
            index, lost = losses[number]
            alive = {n.id: n.alive for n in world.engine.nodes()}
            if lost and alive[f"n{index + 1}"]:
                world.engine.kill_node(f"n{index + 1}")
            elif not lost and not alive[f"n{index + 1}"]:
                world.engine.add_node(f"n{index + 1}", {"CPU": 4})
            world.tick(1.0)
    alive_nodes = [n for n in world.engine.nodes() if n.alive]
    for word, (capacity, count) in last.items():
        there = [n.total[name(word)] for n in alive_nodes if name(word) in n.total]
        assert there == ([capacity] * min(count, len(alive_nodes)) if capacity else [])
    assert reg.due(world.escher.state.registry, world.engine.nodes(), world.now_s) == ()


# --- what is refused --------------------------------------------------------------------------------------------------


def test_nobody_makes_anything_without_a_lease_or_in_anothers_name() -> None:
    registry = registered()
    with pytest.raises(UsageError) as refused:
        reg.wished(registry, Wish(name=named("other", "x"), owner="other"), NODES)
    assert refused.value.code == "no_lease"
    with pytest.raises(UsageError, match="belongs to another"):
        reg.wished(registry, Wish(name=named("other", "x"), owner=APP), NODES)
    registry = reg.leased(registry, "other", now_s=0, lease_s=None)
    registry = reg.wished(registry, Wish(name="plain", owner="other"), NODES)
    with pytest.raises(UsageError, match="belongs to another"):
        reg.wished(registry, Wish(name="plain", owner=APP), NODES)
    with pytest.raises(UsageError):
        reg.with_task(registry, "nobody", Task(id="t", demands={}))


def test_the_count_per_node_is_capped() -> None:
    full = {f"{name('r')}{n}": Wish(name=f"{name('r')}{n}", owner=APP, capacity=1) for n in range(reg.MOST_PER_NODE)}
    registry = made(Registry(owners=registered().owners, wishes=full), NODES)
    with pytest.raises(UsageError) as refused:
        reg.wished(registry, wish("one-more"), NODES)
    assert refused.value.code == "too_many"
    changed = reg.wished(registry, Wish(name=f"{name('r')}0", owner=APP, capacity=2), NODES)  # what is there may change
    assert changed.wishes[f"{name('r')}0"].capacity == 2


@pytest.mark.parametrize(
    ("demands", "word"),
    [
        ({"CPU": 5}, "CPU"),
        ({"GPU": 1}, "GPU"),
        ({"CPU": 1, name("a"): 2}, "a"),
        ({name("a"): 1, name("b"): 1}, "at once"),
        ({"CPU": 1, name("unknown"): 1}, ""),
        ({name("a"): 1}, ""),
        ({name("signal"): 1}, ""),
        ({}, ""),
    ],
)
def test_tasks_that_can_never_run_are_known(demands: dict[str, float], word: str) -> None:
    registry = registered(wish("a", nodes=("n1",)), wish("b", nodes=("n2",)), wish("signal", 0, nodes=("n1",)))
    why = reg.never(registry, demands, NODES)
    assert (word in why) if word else why == ""


def test_without_nodes_nothing_is_called_impossible() -> None:
    assert reg.never(registered(), {"CPU": 100}, [node("n1", alive=False)]) == ""


def test_the_library_refuses_them_at_the_door() -> None:
    world = World()
    with pytest.raises(UsageError) as refused:
        world.escher.submit(APP, Task(id="t", demands={"CPU": 99}))
    assert refused.value.code == "never"
    assert world.state("t") == ""
    world.escher.submit(APP, Task(id="t", demands={"CPU": 99}), anyway=True)
    assert world.state("t") == "waiting"


# --- owners that are gone ---------------------------------------------------------------------------------------------


def test_a_lease_that_runs_out_sweeps_all_that_its_owner_made_and_nothing_else() -> None:
    world = World()
    world.escher.register("brief", 0.0, lease_s=30.0)
    world.escher.want(wish("stays"), 0.0)
    world.escher.want(Wish(name=named("brief", "r"), owner="brief", capacity=3), 0.0)
    world.escher.submit("brief", Task(id="ghost", demands={named("brief", "r"): 1}))
    world.escher.run(mutex(named("brief", "m"), "brief", Task(id="guarded", demands={"CPU": 1})), 0.0)
    world.escher.run(Gang(id=named("brief", "g"), owner="brief", bundles=({"CPU": 2},)), 0.0)
    assert world.states(["ghost", "guarded"]) == ["running", "running"]

    world.escher.register("brief", 20.0, lease_s=30.0)  # a sign of life
    world.now_s = 49.0
    world.tick()
    assert world.state("ghost") == "running"
    world.now_s = 51.0
    world.tick()

    assert world.states(["ghost", "guarded"]) == ["cancelled", "cancelled"]
    assert world.ours() == {name("stays")}
    assert world.free("CPU") == 12
    assert set(world.escher.state.registry.owners) == {APP}
    assert world.escher.state.registry.tasks == {}


def test_what_a_removed_owner_still_holds_goes_when_its_task_has_ended() -> None:
    world = World()
    world.escher.want(wish("r", 2, nodes=("n1",)), 0.0)
    world.ghost("strangers", {name("r"): 1})
    world.escher.remove_owner(APP, 0.0)
    assert world.ours() == {name("r")}  # clamped: it is in use
    world.engine.cancel(["strangers"])
    world.tick(1.0)
    assert world.ours() == set()


def test_orphans_are_swept_and_others_resources_stay() -> None:
    world = World()
    world.escher.want(wish("known"), 0.0)
    world.engine.set_resource(name("orphan"), 5, "n2")
    world.engine.set_resource("somebody-elses", 5, "n2")
    assert world.escher.sweep(0.0) == 1
    assert world.ours() == {name("known"), "somebody-elses"}
    assert world.escher.sweep(0.0) == 0


def test_policies_need_an_owner_with_a_lease_and_his_name() -> None:
    world = World()
    for policy in (Balancer(id=named("other", "b"), owner="other"), Balancer(id=named("other", "b"), owner=APP)):
        with pytest.raises(UsageError):
            world.run(policy)
    assert world.escher.state.policies == {}


# --- kept and taken up again ------------------------------------------------------------------------------------------


def test_the_whole_state_survives_json() -> None:
    world = World()
    world.escher.want(Wish(name=name("p"), owner=APP, per_node={"n1": 2.0}), 0.0)
    world.escher.submit(APP, Task(id="t", demands={"CPU": 1}, gates=("g",)))
    world.run(mutex(name("m"), APP, Task(id="x", demands={})))
    world.run(Gang(id=name("g"), owner=APP, bundles=({"CPU": 1}, {"CPU": 2})))
    state = world.escher.state
    assert state_from_dict(state_as_dict(state)) == state


def test_every_policy_is_in_the_table_and_what_is_none_is_refused() -> None:
    from cluster.escher.policies import balance, dag, fair_queue, fair_share, gang, gang_desk, packing, skyline, soft, turnstile

    modules = (balance, dag, fair_queue, fair_share, gang, gang_desk, packing, skyline, soft, turnstile)
    found = {
        cls
        for module in modules
        for cls in vars(module).values()
        if isinstance(cls, type) and cls.__module__ == module.__name__ and hasattr(cls, "step")
    }
    assert found == set(POLICIES.values())
    with pytest.raises(UsageError, match="unknown policy"):
        state_from_dict({"policies": [{"policy": "other", "state": {}}]})


@given(call=st.integers(1, 12), after=st.booleans())
def test_a_controller_killed_while_it_sets_resources_ends_with_what_was_wished(call: int, after: bool) -> None:
    world = World()
    world.seam.at = (world.seam.calls + call, after)
    wishes = [wish("a", 2), wish("b", 1, count=1), wish("c", INFINITE, nodes=("n3",))]
    for one in wishes:
        try:
            world.escher.want(one, 0.0)
        except Crash:
            world.seam.at = None
            world.restart()
            world.escher.want(one, 0.0)  # whoever asked was not answered, so he asks again
    world.escher.sweep(0.0)
    world.tick(1.0)
    assert world.escher.in_force(name("a")) == {"n1": 2, "n2": 2, "n3": 2}
    assert len(world.escher.in_force(name("b"))) == 1
    assert world.free(name("b")) == 1
    assert world.escher.in_force(name("c")) == {"n3": INFINITE}


def test_an_engine_that_loses_a_node_in_the_middle_is_not_an_error() -> None:
    world = World()
    inner = world.engine.set_resource

    def killing(resource: str, capacity: float, at: str) -> float:
        if at == "n2":
            world.engine.kill_node("n2")
        return inner(resource, capacity, at)

    world.engine.set_resource = killing  # type: ignore[method-assign]
    assert world.escher.want(wish("a"), 0.0) == {"n1": 1, "n3": 1}


def test_nothing_is_kept_twice_and_nothing_changed_goes_unkept() -> None:
    world = World()
    stored: list[str] = []
    world.escher._keep = lambda state: stored.append("kept")
    world.tick()
    assert stored == []
    world.escher.want(wish("a"), 0.0)
    assert stored == ["kept"]
    world.tick(1.0)
    assert stored == ["kept"]


def test_held_is_told_per_node() -> None:
    registry = Registry(in_force={"n1": {"x": Held(asked=1, answered=1, at_s=0)}, "n2": {}})
    assert reg.lies_at(registry, "x") == ("n1",)
