"""The Ray engine beyond the contract, on a real cluster of three nodes that these tests share with the contract's."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.controller.lease_ray import RayLeases
from cluster.controller.on_engine import Carrier
from cluster.engines.base import Task, Work
from cluster.engines.choose import EngineSettings, open_engine
from cluster.engines.ray_bundles import give_back
from cluster.engines.ray_cluster import RaySettings, joined
from cluster.engines.ray_engine import RayEngine
from cluster.engines.ray_nodes import RayNodes
from cluster.engines.ray_resources import node_statuses, options_of
from cluster.engines.ray_starts import RayStarts
from cluster.engines.ray_worker import gcs_client
from cluster.escher.starts import once
from cluster.escher.uses import SHARE
from cluster.placement.sight import Patience
from configs.errors import EnvironmentLacking, UsageError
from tests.support import ray_cluster
from tests.support.fleet_boxes import ToyBox
from tests.support.fleet_world import World
from tests.support.ray_cluster import until

HERE = "tests.support.fleet_engines"
pytestmark = pytest.mark.ray
_ids = (f"ray-{n}" for n in itertools.count())


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[RayEngine, RayNodes]]:
    with ray_cluster.ray_engine(grace_s=0.2) as found:
        yield found


@pytest.fixture
def engine(shared: tuple[RayEngine, RayNodes]) -> RayEngine:
    return shared[0]


@pytest.fixture
def nodes(shared: tuple[RayEngine, RayNodes]) -> list[str]:
    return list(shared[1].ids)


def state(engine: RayEngine, task: str) -> str:
    return engine.status([task])[task].state


def end(engine: RayEngine, *tasks: str) -> None:
    engine.cancel(tasks)
    assert until(lambda: all(s.ended for s in engine.status(tasks).values()))


@pytest.mark.parametrize("name", ["memory", "bundle", "object_store_memory", "cpu_group_0_ab"])
def test_names_that_ray_keeps_for_itself_are_refused(engine: RayEngine, nodes: list[str], name: str) -> None:
    with pytest.raises(UsageError):
        engine.set_resource(name, 1, nodes[0])
    with pytest.raises(UsageError):
        engine.submit(Task(id="wrong", demands={name: 1}))


def test_two_tasks_share_what_is_enough_for_both_and_the_view_of_a_node_is_true(engine: RayEngine, nodes: list[str]) -> None:
    task = next(_ids)
    engine.submit(Task(id=task, demands={"CPU": 1.5, "memory_mib": 100}))
    assert until(lambda: state(engine, task) == "running")
    where = engine.status([task])[task].node

    assert until(lambda: {n.id: n for n in engine.nodes()}[str(where)].free["CPU"] == 2.5)
    node = {n.id: n for n in engine.nodes()}[str(where)]
    assert (node.total["CPU"], node.total["memory_mib"], node.free["memory_mib"]) == (4, 4096, 3996)
    assert not any("group" in name for name in node.total)  # Ray's own bookkeeping is not ours
    assert node.labels["driftbox/box"].startswith("box")
    end(engine, task)
    assert until(lambda: {n.id: n for n in engine.nodes()}[str(where)].free["CPU"] == 4)


def test_work_that_does_not_listen_is_ended_after_its_grace(engine: RayEngine) -> None:
    task = next(_ids)
    engine.submit(Task(id=task, demands={"CPU": 1}, work=Work(entry="time:sleep", arguments={})))
    assert until(lambda: state(engine, task) == "failed")  # sleep takes no context: it fails, and says so
    task = next(_ids)
    engine.submit(Task(id=task, demands={"CPU": 1}, work=Work(entry="tests.support.ray_cluster:never_listens")))
    assert until(lambda: state(engine, task) == "running")

    engine.cancel([task])

    assert until(lambda: state(engine, task) == "cancelled")


def test_a_worker_that_dies_is_run_again_if_it_may_and_fails_with_its_reason_if_not(engine: RayEngine, tmp_path: Path) -> None:
    once, again = next(_ids), next(_ids)
    engine.submit(Task(id=once, demands={"CPU": 1}, work=Work(entry="tests.support.ray_cluster:dies")))
    work = Work(entry="tests.support.ray_cluster:dies_once", arguments={"mark": str(tmp_path / "mark")})
    engine.submit(Task(id=again, demands={"CPU": 1}, work=work, retries=1))
    assert until(lambda: state(engine, once) == "failed")
    assert "its process died" in engine.status([once])[once].problem
    assert until(lambda: state(engine, again) == "done")


def test_a_member_of_a_gang_works_inside_its_bundle_one_at_a_time(engine: RayEngine) -> None:
    assert engine.reserve("pair", [{"CPU": 4}, {"CPU": 4}], spread=True) is True
    demands = dict(engine.gang_demands("pair", 1))
    first, second = next(_ids), next(_ids)
    for task in (first, second):
        engine.submit(Task(id=task, demands=demands, work=Work(entry=f"{HERE}:where_am_i")))
    assert until(lambda: state(engine, first) == state(engine, second) == "done")
    found = engine.status([first, second])
    assert found[first].result == found[second].result
    with pytest.raises(UsageError):
        engine.submit(Task(id="mixed", demands={**demands, "CPU": 1}))
    engine.release("pair")
    with pytest.raises(UsageError):
        engine.reserve("empty", [{}], spread=False)


def test_of_two_attempts_in_two_processes_the_later_start_wins(engine: RayEngine) -> None:
    """One process is this one, the other a Ray worker."""
    task = next(_ids)
    here = RayStarts(gcs_client(engine.address))
    work = once(Work(entry=f"{HERE}:where_am_i"), task, holder="cluster.engines.ray_starts:in_cluster")

    def attempt(number: int) -> object:
        run = f"{task}~a{number}"
        engine.submit(Task(id=run, demands={"CPU": 1}, work=work))
        assert until(lambda: state(engine, run) == "done")
        return engine.status([run])[run].result

    assert here.claim(task, 1)
    assert attempt(2)  # takes over
    assert not here.claim(task, 1)
    assert here.claim(task, 10)
    assert attempt(9) is None  # turned away
    here.forget(task)
    assert here.claim(task, 1)
    assert here.claim(f"{task}/1", 1)  # another task
    here.forget(task)
    here.forget(f"{task}/1")


def test_what_ray_forgets_of_a_group_that_it_was_placing_is_given_back(engine: RayEngine, nodes: list[str]) -> None:
    """As it is left behind: set aside on a node for a group that the head has removed."""
    import ray
    from ray._private.grpc_utils import init_grpc_channel
    from ray._raylet import PlacementGroupID
    from ray.core.generated.node_manager_pb2 import PrepareBundleResourcesRequest
    from ray.core.generated.node_manager_pb2_grpc import NodeManagerServiceStub
    from ray.util.placement_group import PlacementGroup

    def free() -> float:
        return {n.id: n for n in engine.nodes()}[nodes[1]].free["CPU"]

    group = PlacementGroup(PlacementGroupID.from_random())
    request = PrepareBundleResourcesRequest()
    bundle = request.bundle_specs.add()
    bundle.bundle_id.placement_group_id = group.id.binary()
    bundle.unit_resources["CPU"] = 3
    row = next(row for row in ray.nodes() if row["NodeID"] == nodes[1])
    with init_grpc_channel(f"{row['NodeManagerAddress']}:{row['NodeManagerPort']}") as channel:
        assert NodeManagerServiceStub(channel).PrepareBundleResources(request, timeout=30).success
    assert until(lambda: free() == 1)
    record = {"bundles_to_node_id": {0: nodes[1], 1: ""}, "bundles": {0: {"CPU": 3.0}, 1: {"CPU": 1.0}}}

    give_back(group, record, ray.nodes())

    assert until(lambda: free() == 4)
    give_back(group, record, ray.nodes())  # Ray had not forgotten: it is told twice
    ray_cluster.quiet()
    assert free() == 4


def test_work_of_a_gang_is_lost_with_the_gang_on_the_nodes_that_are_left_too() -> None:
    with ray_cluster.ray_engine() as (engine, cluster):
        assert engine.reserve("torn", [{"CPU": 4}] * 2, spread=True) is True
        tasks = [next(_ids), next(_ids)]
        for number, task in enumerate(tasks):
            work = Work(entry=f"{HERE}:until_cancelled")
            engine.submit(Task(id=task, demands=dict(engine.gang_demands("torn", number)), work=work))
        assert until(lambda: all(state(engine, task) == "running" for task in tasks))
        head = cluster.ids[0]
        victim = next(s.node for s in engine.status(tasks).values() if s.node != head)

        cluster.kill(str(victim))

        assert until(lambda: [state(engine, task) for task in tasks] == ["lost", "lost"])
        free = lambda: [n.free["CPU"] for n in engine.nodes() if n.alive]  # noqa: E731
        assert until(lambda: free() == [4, 4])  # nothing is held for those that are left
        assert engine.reserve("torn", [{"CPU": 4}] * 2, spread=True) is True  # under the same name, on the nodes that are left
        engine.release("torn")


def test_a_raylet_that_is_killed_and_begins_again_gets_what_its_box_had(tmp_path: Path) -> None:
    """Nothing of it is kept by Ray: the controller's carrier looks, and makes again what is missing."""
    world = World(tmp_path, [ToyBox(f"box{n}", capacity_pct=100.0 + n) for n in range(3)])
    world.tick(25)
    with ray_cluster.ray_engine() as (engine, cluster):
        carrier = Carrier(
            engine, "here", state=world.controller.state, holds=world.controller.holds, patience=Patience(),
            monotonic_s=lambda: world.now_s, utc_s=lambda: world.now_s,
        )  # fmt: skip

        def carried() -> dict[str, float]:
            carrier.step()
            return {n.labels["driftbox/box"]: n.total[SHARE] for n in engine.nodes() if n.alive and SHARE in n.total}

        assert until(lambda: carried() == {"box0": 100, "box1": 101, "box2": 102})
        victim = cluster.ids[-1]
        box = next(n.labels["driftbox/box"] for n in engine.nodes() if n.id == victim)
        task = next(_ids)
        engine.submit(Task(id=task, demands={f"dbx.fleet.box.{box}": 1}, retries=3))
        assert until(lambda: state(engine, task) == "running")

        cluster.kill(victim)
        assert until(lambda: box not in carried())
        assert until(lambda: state(engine, task) == "waiting")
        ray_cluster.shared_nodes()  # the box's raylet begins again

        assert until(lambda: carried() == {"box0": 100, "box1": 101, "box2": 102})
        assert until(lambda: state(engine, task) == "running")
        assert engine.status([task])[task].node == cluster.ids[-1] != victim
        end(engine, task)


def test_work_is_lost_with_its_node_though_the_head_has_not_noticed_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    with ray_cluster.ray_engine() as (engine, cluster):
        task, node = next(_ids), cluster.ids[-1]
        engine.set_resource("there", 1, node)
        engine.submit(Task(id=task, demands={"there": 1}, work=Work(entry=f"{HERE}:until_cancelled")))
        assert until(lambda: state(engine, task) == "running")
        known = set(cluster.ids)
        monkeypatch.setattr(engine, "_alive", lambda: known)  # several heartbeats must be missing before Ray gives a node up

        cluster.kill(node)

        assert until(lambda: engine.status([task])[task].ended)
        assert (state(engine, task), engine.status([task])[task].problem) == ("lost", f"node {node} is gone")


def test_calls_under_which_the_head_stops_answering_end_and_later_ones_are_answered(
    shared: tuple[RayEngine, RayNodes], nodes: list[str]
) -> None:
    other = RayEngine(shared[1].settings, leave=False, call_s=1.0)
    calls = [
        other.nodes,
        lambda: other.set_resource("unheard", 1, nodes[1]),
        lambda: other.submit(Task(id="unheard", demands={"CPU": 1})),
        lambda: other.status(["unheard"]),
    ]
    go_on = shared[1].pause_head()
    try:
        for call in calls:
            with pytest.raises(EnvironmentLacking, match="does not answer"):
                call()
    finally:
        go_on()

    def answered() -> bool:
        try:
            return bool(other.status(["unheard"]))
        except EnvironmentLacking:
            return False

    assert until(answered)
    other.close()


def test_resources_outlive_the_engine_object_and_tasks_do_not(shared: tuple[RayEngine, RayNodes], nodes: list[str]) -> None:
    engine, cluster = shared
    other = RayEngine(cluster.settings, leave=False)
    other.set_resource("lasting", 2, nodes[1])
    task = next(_ids)
    other.submit(Task(id=task, demands={"lasting": 2}))
    assert until(lambda: state(other, task) == "running")
    other.close()

    assert until(lambda: {n.id: n for n in engine.nodes()}[nodes[1]].free.get("lasting") == 2)
    assert engine.set_resource("lasting", 0, nodes[1]) == 0


def test_one_process_belongs_to_one_cluster(shared: tuple[RayEngine, RayNodes]) -> None:
    assert joined(shared[1].settings) == shared[0].address
    with pytest.raises(UsageError, match="already"):
        joined(RaySettings(address="192.0.2.77:6379"))


def test_without_the_token_nobody_joins(shared: tuple[RayEngine, RayNodes]) -> None:
    """In a process of its own, as another machine would."""
    code = (
        "import sys; from cluster.engines.ray_cluster import RaySettings, joined\n"
        "from configs.errors import EnvironmentLacking\n"
        "try: joined(RaySettings(address=sys.argv[1], token='wrong-and-secret'))\n"
        "except EnvironmentLacking as error: print(error); sys.exit(3)\n"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_AUTH")} | {"PYTHONPATH": os.getcwd()}
    done = subprocess.run(
        [sys.executable, "-c", code, shared[0].address],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 3, done.stderr[-2000:]
    assert "token" in done.stdout
    assert "wrong-and-secret" not in done.stdout + done.stderr


# --- the lease --------------------------------------------------------------------------------------------------------


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_one_controller_holds_the_lease_and_terms_only_rise(engine: RayEngine) -> None:
    clock = Clock()
    name = next(_ids)
    one, two = (RayLeases(gcs_client(engine.address), clock, clock, name=name) for _ in range(2))

    assert one.take("a", lasts_s=10, note="https://a").term == 1
    assert one.take("a", lasts_s=10).term == 1  # renewed
    refused = two.take("b", lasts_s=10)
    assert (refused.mine, refused.holder, refused.note) == (False, "a", "https://a")
    clock.now_s += 9
    assert one.take("a", lasts_s=10).mine
    clock.now_s += 9
    assert not two.take("b", lasts_s=10).mine  # it was renewed meanwhile
    clock.now_s += 11
    taken = two.take("b", lasts_s=10)
    assert (taken.mine, taken.term) == (True, 2)
    assert not one.take("a", lasts_s=10).mine
    two.give("b", 2)
    assert one.take("a", lasts_s=10).term == 3
    assert one.take("a", lasts_s=10, above=7).term == 8


# --- values -----------------------------------------------------------------------------------------------------------


def test_amounts_are_rays_units_and_back() -> None:
    assert options_of({"CPU": 0.5, "memory_mib": 2, "cam": 1}) == {
        "num_cpus": 0.5,
        "memory": 2 * 2**20,
        "resources": {"cam": 1},
    }
    assert options_of({}) == {"num_cpus": 0, "resources": {}}
    row = {"NodeID": "n", "Alive": True, "NodeManagerAddress": "10.0.0.1", "Labels": {"site": "yard"}}
    total = {"CPU": 4.0, "memory": 2.0**30, "cam": 2.0, "node:10.0.0.1": 1.0, "CPU_group_0_ab": 1.0, "object_store_memory": 9.0}
    (status,) = node_statuses([row], {"n": total}, {"n": {"CPU": 1.0, "memory": 2.0**29}})
    assert status.total == {"CPU": 4, "memory_mib": 1024, "cam": 2}
    assert status.free == {"CPU": 1, "memory_mib": 512, "cam": 0}
    assert status.labels == {"address": "10.0.0.1", "site": "yard"}
    (dead,) = node_statuses([{**row, "Alive": False}], {}, {})
    assert (dead.alive, dead.total) == (False, {})


def test_a_token_is_in_no_representation_of_the_settings(tmp_path: object) -> None:
    assert "s3cret" not in repr(RaySettings(token="s3cret")) + repr(EngineSettings(token="s3cret"))


def test_addresses_that_are_none_and_nobody_there() -> None:
    code = (
        "import json; from cluster.engines.ray_cluster import RaySettings, joined; from configs.errors import DriftboxError\n"
        "told = []\n"
        "for address in ('nonsense', '127.0.0.1:9'):\n"
        "    try: joined(RaySettings(address=address))\n"
        "    except DriftboxError as error: told.append(type(error).__name__)\n"
        "print(json.dumps(told))\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=240, check=True
    )
    assert json.loads(done.stdout.splitlines()[-1]) == ["UsageError", "EnvironmentLacking"]


def test_an_unknown_engine_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match="slurm") as found:
        open_engine(EngineSettings(engine="slurm"))  # type: ignore[arg-type]
    assert "kubernetes" in found.value.remedy
    assert open_engine(EngineSettings(engine="local")).nodes()


def test_a_token_file_that_is_not_there_is_said_so() -> None:
    with pytest.raises(EnvironmentLacking, match="no token"):
        joined(RaySettings(address="127.0.0.1:9", token_file="/no/such/file"))
