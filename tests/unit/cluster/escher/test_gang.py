"""Gangs: all or nothing, whatever happens to nodes and controllers; no live-lock under contention."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.engines.base import Task
from cluster.escher.policies.gang import Gang, Pace, affinity, anti_affinity_gang, never_fits
from cluster.escher.policies.gang_desk import GangDesk
from cluster.escher.wishes import Wish
from tests.support.escher_world import APP, Crash, World, name

QUICK = Pace(deadline_s=5.0, pause_s=1.0, most_s=8.0)


def gang(word: str, *bundles: dict[str, float], members: bool = True, **more: object) -> Gang:
    tasks = tuple(Task(id=f"{word}-{n}", demands={"CPU": 1}) for n in range(len(bundles))) if members else ()
    return Gang(id=name(word), owner=APP, bundles=bundles, members=tasks, pace=QUICK, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("ghosts_only", [True, False])
def test_all_members_run_on_nodes_of_their_own_and_everything_is_freed(ghosts_only: bool) -> None:
    world = World()
    world.run(gang("g", {"CPU": 4}, {"CPU": 4}, ghosts_only=ghosts_only))
    runs = ["g-0", "g-1"]

    assert world.drive(lambda: world.states(runs) == ["running"] * 2)
    assert world.at("g-0") != world.at("g-1")
    assert world.free("CPU") == 4

    world.finish(*runs)
    assert world.drive(lambda: world.found(Gang, name("g")).over)
    assert world.free("CPU") == 12
    assert world.ours() == set()
    assert world.found(Gang, name("g")).problem == ""


def test_what_cannot_be_held_is_given_back_and_tried_again_later_each_time() -> None:
    world = World()
    other = world.ghost("other", {"CPU": 4})
    world.run(gang("g", *({"CPU": 4},) * 3, ghosts_only=True))
    assert world.free("CPU") == 0

    pauses = []
    for tries in (1, 2, 3):
        assert world.drive(lambda tries=tries: world.found(Gang, name("g")).tries == tries)  # type: ignore[misc]
        assert world.free("CPU") == 8
        pauses.append(world.found(Gang, name("g")).not_before_s - world.now_s)
    assert pauses == sorted(pauses)

    world.engine.cancel([other])
    assert world.drive(lambda: world.found(Gang, name("g")).held)


def test_bundles_that_differ_are_not_mixed_up() -> None:
    """Members ask for nothing physical, so one name for all would let a small member sit in the large bundle."""
    world = World({"big": {"CPU": 8}, "small": {"CPU": 2}})
    world.run(gang("g", {"CPU": 2}, {"CPU": 8}, ghosts_only=True))
    assert world.drive(lambda: world.states(["g-0", "g-1"]) == ["running"] * 2)
    assert (world.at("g-0"), world.at("g-1")) == ("small", "big")


def test_a_failing_member_ends_the_gang_because_its_peers_would_wait_for_ever() -> None:
    world = World()
    world.run(gang("h", {"CPU": 1}, {"CPU": 1}, ghosts_only=True))
    assert world.states(["h-0", "h-1"]) == ["running"] * 2
    world.engine.cancel(["h-1"])
    world.tick()
    found = world.found(Gang, name("h"))
    assert found.over
    assert "h-1" in found.problem
    assert world.state("h-0") == "cancelled"


@pytest.mark.parametrize("ghosts_only", [True, False])
@pytest.mark.parametrize("victim", ["g-0", "g-1"])
def test_a_node_killed_under_a_gang_restarts_it_elsewhere(ghosts_only: bool, victim: str) -> None:
    world = World()
    world.run(gang("g", {"CPU": 4}, {"CPU": 4}, ghosts_only=ghosts_only))
    assert world.drive(lambda: world.states(["g-0", "g-1"]) == ["running"] * 2)
    node = world.at(victim)
    assert node is not None

    world.engine.kill_node(node)

    assert world.drive(lambda: world.states(["g-0~r1", "g-1~r1"]) == ["running"] * 2)
    assert node not in {world.at("g-0~r1"), world.at("g-1~r1")}
    assert not {"running", "waiting"} & set(world.states(["g-0", "g-1"]))
    assert world.free("CPU") == 0
    assert world.found(Gang, name("g")).restarts == 1


def test_a_node_killed_while_ghosts_gather_holds_nothing_back() -> None:
    world = World()
    world.ghost("other", {"CPU": 4})
    world.run(gang("g", *({"CPU": 4},) * 3, ghosts_only=True))
    ghosts = [g for g in world.found(Gang, name("g")).ghosts if world.state(g) == "running"]
    node = world.at(ghosts[0])
    assert node is not None

    world.engine.kill_node(node)
    world.tick()

    assert world.found(Gang, name("g")).phase == "idle"
    assert world.free("CPU") == 4
    world.engine.add_node(node, {"CPU": 4})
    world.engine.cancel(["other"])
    assert world.drive(lambda: world.found(Gang, name("g")).held)


def test_a_finished_members_ghost_may_go() -> None:
    world = World()
    world.run(gang("g", {"CPU": 4}, {"CPU": 4}, ghosts_only=True))
    assert world.drive(lambda: world.states(["g-0", "g-1"]) == ["running"] * 2)
    world.finish("g-0")
    world.engine.kill_node(str(world.at("g-0")))
    world.tick()
    assert world.found(Gang, name("g")).restarts == 0
    world.finish("g-1")
    world.tick()
    assert world.found(Gang, name("g")).over


def test_affinity_puts_all_on_one_node_and_holds_the_sum() -> None:
    world = World()
    tasks = [Task(id=f"t{n}", demands={"CPU": 2}) for n in range(2)]
    world.run(affinity(name("together"), APP, *tasks))
    assert world.drive(lambda: world.states(["t0", "t1"]) == ["running"] * 2)
    assert world.at("t0") == world.at("t1")
    assert world.free("CPU") == 8


def test_long_tasks_stay_apart_without_keeping_the_rule_from_others() -> None:
    world = World()
    apart = name("apart")
    world.escher.want(Wish(name=apart, owner=APP, capacity=1), 0.0)
    tasks = [Task(id=f"long{n}", demands={"CPU": 1}) for n in range(3)]
    world.run(anti_affinity_gang(name("long"), APP, apart, *tasks))

    assert world.drive(lambda: world.states(["long0", "long1", "long2"]) == ["running"] * 3)
    assert len({world.at(t.id) for t in tasks}) == 3
    assert world.free(apart) == 3  # the ghosts are gone
    assert world.free("CPU") == 9  # and the tasks count for themselves
    others = [Task(id=f"more{n}", demands={"CPU": 1}) for n in range(3)]
    world.run(anti_affinity_gang(name("more"), APP, apart, *others))
    assert world.drive(lambda: world.states(["more0", "more1", "more2"]) == ["running"] * 3)


def test_what_could_never_fit_is_known_before_it_is_tried() -> None:
    world = World()
    nodes = world.escher.status()
    assert never_fits(gang("g", *({"CPU": 4},) * 3), nodes) == ""
    assert "do not fit" in never_fits(gang("g", *({"CPU": 4},) * 4), nodes)
    assert "do not fit" in never_fits(gang("g", *({"CPU": 2},) * 4), nodes)  # spread: three nodes
    assert never_fits(gang("g", *({"CPU": 2},) * 4, spread=False), nodes) == ""


@pytest.mark.parametrize("members", [0, 1, 3])
def test_members_and_bundles_must_match(members: int) -> None:
    tasks = tuple(Task(id=str(n), demands={}) for n in range(members))
    if not members:
        Gang(id=name("g"), owner=APP, bundles=({"CPU": 1},) * 2)
        return
    with pytest.raises(ValueError, match="bundles"):
        Gang(id=name("g"), owner=APP, bundles=({"CPU": 1},) * 2, members=tasks)


# --- the desk ---------------------------------------------------------------------------------------------------------


def desk(*gangs: Gang, **more: object) -> GangDesk:
    return GangDesk(id=name("desk"), owner=APP, gangs=gangs, **more)  # type: ignore[arg-type]


def in_desk(word: str, *bundles: dict[str, float], **more: object) -> Gang:
    found = gang(word, *bundles, ghosts_only=True, **more)
    return Gang(**{**vars(found), "id": name("desk", word)})


def test_two_gangs_that_would_block_each_other_run_one_after_the_other() -> None:
    """Each needs 3 of 4 nodes; with ghosts out for both, both would hold two and wait."""
    world = World({f"n{n}": {"CPU": 1} for n in range(4)})
    world.run(desk(in_desk("a", *({"CPU": 1},) * 3), in_desk("b", *({"CPU": 1},) * 3)))
    assert world.states([f"a-{n}" for n in range(3)]) == ["running"] * 3
    assert world.drive(lambda: world.found(GangDesk, name("desk")).gangs[1].tries >= 1)
    assert world.free("CPU") <= 1

    world.finish(*(f"a-{n}" for n in range(3)))

    assert world.drive(lambda: world.states([f"b-{n}" for n in range(3)]) == ["running"] * 3)
    assert world.found(GangDesk, name("desk")).finished == (name("desk", "a"),)


def test_a_small_gang_passes_a_large_one_that_has_no_room() -> None:
    world = World()
    world.ghost("other", {"CPU": 4})
    world.run(desk(in_desk("large", *({"CPU": 4},) * 3), in_desk("small", {"CPU": 4})))
    assert world.state("small-0") == ""
    assert world.drive(lambda: world.state("small-0") == "running")


def test_a_large_gang_is_not_starved_by_small_ones() -> None:
    world = World({"n1": {"CPU": 1}, "n2": {"CPU": 1}})
    world.run(desk(in_desk("s0", {"CPU": 1}), in_desk("large", {"CPU": 1}, {"CPU": 1}), patience=2))
    small = 0
    for round_number in range(400):
        world.tick(1.0)
        if world.states(["large-0", "large-1"]) == ["running"] * 2:
            break
        running = [f"s{n}-0" for n in range(small + 1) if world.state(f"s{n}-0") == "running"]
        if round_number % 3 == 0 and running:
            small += 1
            world.run(world.found(GangDesk, name("desk")).asked(in_desk(f"s{small}", {"CPU": 1})))
            world.finish(*running)
    else:
        pytest.fail("it never got both nodes")


def contend(seed: int, *, reserve: bool) -> int:
    """Two to six gangs at once on four nodes, ends at random, nodes that die now and then; looks until all are through."""
    chance = random.Random(seed)
    world = World({f"n{n}": {"CPU": 4} for n in range(4)}, seed=seed, keeps=False)
    gangs = []
    for number in range(chance.randint(2, 6)):
        size = chance.randint(1, 4)
        bundles = tuple({"CPU": float(chance.randint(1, 4))} for _ in range(size))
        made = in_desk(f"g{number}", *bundles)
        gangs.append(Gang(**{**vars(made), "ghosts_only": not reserve}))
    world.run(desk(*gangs))
    sizes = {g.id: len(g.bundles) for g in gangs}
    for look in range(400):
        now = world.found(GangDesk, name("desk"))
        if not now.gangs:
            assert world.free("CPU") == 16
            assert not any("desk" in resource and ".u" in resource for resource in world.ours())
            return look
        for found in now.gangs:
            states = world.states(found.runs)
            begun = [s for s in states if s in ("running", "done")]
            assert len(begun) in (0, sizes[found.id]), f"{found.id} is there in part: {states}"
            if found.held and begun and chance.random() < 0.5:
                world.finish(*(run for run in found.runs if world.state(run) == "running"))
        world.tick(1.0)
    raise AssertionError(f"seed {seed}: not through after 400 looks")


@pytest.mark.parametrize("reserve", [False, True], ids=["ghosts", "reservation"])
@pytest.mark.parametrize("part", range(5))
def test_a_thousand_random_crowds_of_gangs_all_get_through(part: int, reserve: bool) -> None:
    for seed in range(part * 100, part * 100 + 100):
        contend(seed, reserve=reserve)


def crowd_alone(seed: int, *, in_turn: bool) -> tuple[bool, int]:
    """Three gangs that each want two of three nodes for 8 s, more than a try's deadline. in_turn: at the desk (LibSpace), else each for
    itself (AppSpace). (all through, tries in vain)"""
    world = World({f"n{n}": {"CPU": 1} for n in range(3)}, seed=seed, keeps=False)
    gangs = [gang(f"{letter}{seed}", {"CPU": 1}, {"CPU": 1}, ghosts_only=True) for letter in "abc"]
    if in_turn:
        gangs = [Gang(**{**vars(g), "id": name("desk", g.id.rpartition(".")[2])}) for g in gangs]
        world.run(desk(*gangs))
    else:
        for g in gangs:
            world.run(g)
    since_s: dict[str, float] = {}
    vain: dict[str, int] = {}
    for _ in range(500):
        now = world.escher.policy(name("desk"))
        found = list(now.gangs) if isinstance(now, GangDesk) else [world.found(Gang, g.id) for g in gangs]
        vain |= {g.id: g.tries for g in found}
        for g in (g for g in found if g.held):
            since_s.setdefault(g.id, world.now_s)
            if world.now_s >= since_s[g.id] + 8.0:
                world.finish(*(run for run in g.runs if world.state(run) == "running"))
        if all(g.over for g in found):
            break
        world.tick(0.5)
    return len(since_s) == 3, sum(vain.values())


def test_back_off_alone_gets_through_too_but_tries_in_vain() -> None:
    """The trade-off of docs/decisions/0062-escher.md."""
    alone = [crowd_alone(seed, in_turn=False) for seed in range(5)]
    in_turn = [crowd_alone(seed, in_turn=True) for seed in range(5)]
    assert all(through for through, _ in (*alone, *in_turn))
    print(f"tries in vain: {sum(t for _, t in alone) / 5} each for itself, {sum(t for _, t in in_turn) / 5} in turn")
    assert sum(tries for _, tries in alone) > sum(tries for _, tries in in_turn)


# --- a controller that is killed --------------------------------------------------------------------------------------


@given(call=st.integers(1, 14), after=st.booleans(), reserve=st.booleans())
def test_a_controller_killed_at_any_call_loses_and_doubles_nothing(call: int, after: bool, reserve: bool) -> None:
    world = World()
    world.seam.at = (world.seam.calls + call, after)
    try:
        world.run(gang("g", {"CPU": 4}, {"CPU": 4}, ghosts_only=not reserve))
        world.drive(lambda: world.states(["g-0", "g-1"]) == ["running"] * 2, looks=3)
    except Crash:
        pass
    world.seam.at = None
    world.restart()
    if world.escher.policy(name("g")) is None:  # it was killed before it had said yes
        world.run(gang("g", {"CPU": 4}, {"CPU": 4}, ghosts_only=not reserve))

    assert world.drive(lambda: world.states(["g-0", "g-1"]) == ["running"] * 2)
    assert world.free("CPU") == 4
    world.finish("g-0", "g-1")
    assert world.drive(lambda: world.found(Gang, name("g")).over)
    assert world.free("CPU") == 12
    world.escher.sweep(world.now_s)
    assert world.ours() == set()
