"""The product's own constraints: what boxes have, what cameras and trainings demand, and who may run where."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.engines.base import checked_resource
from cluster.escher import uses
from cluster.escher.policies.gang import Gang
from cluster.escher.uses import FLEET, SHARE, Ledger
from cluster.types import BoxView, Grant
from scheduler.fleet.types import BoxReport, CameraKey, CameraReport, Confirmation
from tests.support.escher_world import World


def camera(word: str, home: str = "b1", *, networks: tuple[str, ...] = (), pct: float = 10.0, **more: object) -> CameraReport:
    key = CameraKey(home=home, camera=word)
    return CameraReport(camera=key, customer="shop", networks=networks, demand_pct=pct, **more)  # type: ignore[arg-type]


def box(word: str, *, networks: tuple[str, ...] = ("hall",), pct: float = 100.0, **more: object) -> BoxView:
    report = BoxReport(
        box=word,
        site="s",
        boot="x",
        sequence=1,
        sent_utc="",
        software="1",
        capacity_pct=pct,
        spare_pct=0.0,
        memory_mib=4000.0,
        networks=networks,
        cameras=(),
        confirmation=Confirmation(term=0, version=0),
    )
    return BoxView(**{"id": word, "site": "s", "joined_utc_s": 0.0, "report": report, **more})  # type: ignore[arg-type]


GRANTS = {"shop": Grant(customer="shop", share_pct=70.0, by_box={"b1": 50.9, "b2": 0.4})}


def test_a_camera_runs_where_its_network_is_and_the_box_has_the_percent() -> None:
    cam = camera("door", networks=("hall",), pct=60.4)
    boxes = [box("b1"), box("b2", networks=("yard",)), box("b3", pct=50.0), box("b4")]
    ledger = Ledger.of(boxes, seats=[cam.camera])
    assert uses.camera_demands(cam)[0][SHARE] == 61
    assert ledger.boxes_for(uses.camera_demands(cam)) == ("b1", "b4")


def test_a_camera_of_several_networks_prefers_the_first() -> None:
    cam = camera("door", networks=("yard", "hall"))
    ledger = Ledger.of([box("b1"), box("b2", networks=("yard",))], seats=[cam.camera])
    assert ledger.boxes_for(uses.camera_demands(cam)) == ("b2", "b1")
    met = ledger.met("b1", uses.camera_demands(cam))
    assert met is not None
    assert uses.network("hall") in met


def test_a_camera_without_a_network_stays_at_home() -> None:
    cam = camera("door", home="b2")
    assert Ledger.of([box("b1"), box("b2")], seats=[cam.camera]).boxes_for(uses.camera_demands(cam)) == ("b2",)


def test_a_standby_is_never_where_the_owner_is() -> None:
    cam = camera("door", networks=("hall",), pct=90.0)
    ledger = Ledger.of([box("b1"), box("b2", pct=5.0)], seats=[cam.camera])
    owner = ledger.met("b1", uses.camera_demands(cam))
    assert owner is not None
    after = ledger.taking("b1", owner)
    assert after.boxes_for(uses.standby_demands(cam)) == ("b2",)  # it computes nothing, so a small box will do
    assert after.giving_back("b1", owner) == ledger


def test_a_box_that_is_emptied_or_silent_gets_nothing_new() -> None:
    cam = camera("door", networks=("hall",))
    boxes = [box("b1", draining=True), box("b2", report=None)]
    assert Ledger.of(boxes, seats=[cam.camera]).boxes_for(uses.camera_demands(cam)) == ()


def test_a_customers_cameras_stay_within_his_share_of_a_box() -> None:
    ledger = Ledger.of([box("b1"), box("b2")], grants=GRANTS, seats=[camera(c).camera for c in "abc"])
    cams = [camera(c, networks=("hall",), pct=20.0) for c in "abc"]
    for cam in cams[:2]:
        demands = ledger.met("b1", uses.camera_demands(cam, within_grant=True))
        assert demands is not None
        ledger = ledger.taking("b1", demands)
    assert ledger.boxes_for(uses.camera_demands(cams[2], within_grant=True)) == ()  # 50 percent hold two of 20
    assert ledger.boxes_for(uses.camera_demands(cams[2])) == ("b1", "b2")
    with pytest.raises(ValueError, match="not enough"):
        ledger.taking("b1", {SHARE: 100.0})


def test_granted_shares_are_resources_of_the_engine_and_move_with_the_grant() -> None:
    world = World({"node1": {"CPU": 1}, "node2": {"CPU": 1}})
    world.escher.register(FLEET, 0.0)
    node_of = {"b1": "node1", "b2": "node2"}
    (wish,) = uses.customer_wishes(GRANTS, node_of)
    world.escher.want(wish, 0.0)
    assert world.escher.in_force(uses.customer("shop")) == {"node1": 50}
    moved = {"shop": Grant(customer="shop", share_pct=70.0, by_box={"b1": 10.0, "b2": 60.0, "elsewhere": 5.0})}
    (wish,) = uses.customer_wishes(moved, node_of)
    world.escher.want(wish, 1.0)
    assert world.escher.in_force(uses.customer("shop")) == {"node1": 10, "node2": 60}


def test_no_two_replicas_on_one_box() -> None:
    world = World()
    world.escher.register(FLEET, 0.0)
    for wish in uses.one_per_box([uses.replica("api")]):
        world.escher.want(wish, 0.0)
    tasks = [world.ghost(f"api{n}", uses.replica_demands("api", {"CPU": 1})) for n in range(4)]
    assert sorted(world.states(tasks)) == ["running", "running", "running", "waiting"]
    assert len({world.at(t) for t in tasks if world.at(t)}) == 3


def test_a_training_gang_is_on_so_many_boxes_or_nowhere() -> None:
    world = World()
    world.escher.register(FLEET, 0.0)
    asked = uses.training_gang("t", boxes=3, share_pct=0, cpus=2)
    assert asked.bundles == ({"CPU": 2},) * 3
    gang = Gang(id=uses.named(FLEET, "train", asked.id), owner=FLEET, bundles=asked.bundles, spread=asked.spread)
    world.run(gang)
    assert world.found(Gang, gang.id).held
    assert [n.free["CPU"] for n in world.engine.nodes()] == [2, 2, 2]
    assert uses.training_gang("t", boxes=2, share_pct=30.2, memory_mib=500).bundles[0] == {SHARE: 31, "memory_mib": 500}


ids = st.text("abcdefghijklmnopqrstuvwxyz0123456789_-", min_size=1, max_size=63)


@given(ids, ids)
def test_every_box_camera_network_and_customer_has_a_name_that_engines_hold(one: str, two: str) -> None:
    key = CameraKey(home=one, camera=two)
    names = [uses.network(one), uses.home(one), uses.customer(one), uses.replica(one), uses.seat(key), SHARE]
    for found in names:
        checked_resource(found, 1)
    assert len(set(names)) == len(names)
