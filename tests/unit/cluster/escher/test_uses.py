"""The product's own constraints: what boxes have, what cameras and trainings demand, and who may run where."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.engines.base import checked_resource
from cluster.escher import uses
from cluster.escher.uses import SHARE, Ledger
from cluster.types import BoxView, Grant
from scheduler.fleet.types import BoxReport, CameraKey, CameraReport, Confirmation


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


def test_a_camera_runs_where_its_network_is_or_at_home() -> None:
    cam = camera("door", home="b5", networks=("hall",), pct=60.4)
    boxes = [box("b1"), box("b2", networks=("yard",)), box("b3", pct=50.0), box("b5", networks=())]
    ledger = Ledger.of(boxes, seats=[cam.camera])
    assert ledger.boxes_for(uses.camera_demands(cam)) == ("b1", "b3", "b5"), (
        "room is weighed, no condition; its home always may"
    )


def test_a_camera_of_several_networks_prefers_the_first() -> None:
    cam = camera("door", home="b3", networks=("yard", "hall"))
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
    assert after.boxes_for(uses.camera_demands(cam)) == ("b2",)
    assert after.giving_back("b1", owner) == ledger


def test_a_box_that_is_emptied_or_silent_gets_nothing_new() -> None:
    cam = camera("door", home="b3", networks=("hall",))
    boxes = [box("b1", draining=True), box("b2", report=None)]
    assert Ledger.of(boxes, seats=[cam.camera]).boxes_for(uses.camera_demands(cam)) == ()


def test_a_customers_work_stays_within_its_share_of_a_box() -> None:
    ledger = Ledger.of([box("b1"), box("b2")], grants=GRANTS)
    worker = uses.training_bundle(share_pct=20.0, customer_id="shop")
    for _ in range(2):
        assert ledger.boxes_for([worker]) == ("b1",), "b2 was granted less than a percent"
        ledger = ledger.taking("b1", worker)
    assert ledger.boxes_for([worker]) == ()  # 50 percent hold two of 20
    assert ledger.boxes_for([uses.training_bundle(share_pct=20.0)]) == ("b1", "b2")
    with pytest.raises(ValueError, match="not enough"):
        ledger.taking("b1", {SHARE: 100.0})


def test_what_a_worker_takes_of_its_box() -> None:
    assert uses.training_bundle(share_pct=30.2, memory_mib=500) == {SHARE: 31, "memory_mib": 500}
    assert uses.training_bundle(share_pct=0, cpus=2, gpus=1, customer_id="shop") == {"CPU": 2, "GPU": 1}


ids = st.text("abcdefghijklmnopqrstuvwxyz0123456789_-", min_size=1, max_size=63)


@given(ids, ids)
def test_every_box_camera_network_and_customer_has_a_name_that_engines_hold(one: str, two: str) -> None:
    key = CameraKey(home=one, camera=two)
    names = [uses.network(one), uses.home(one), uses.customer(one), uses.seat(key), SHARE]
    for found in names:
        checked_resource(found, 1)
    assert len(set(names)) == len(names)
