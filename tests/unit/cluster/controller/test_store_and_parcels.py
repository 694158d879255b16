"""What is kept comes back as it was; parcels are whole or not there."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cluster.cilantro.allocator import AllocatorState, observe
from cluster.controller import history
from cluster.controller.belief import Voice
from cluster.controller.database import FleetDatabase
from cluster.controller.events import DrainWished
from cluster.controller.history import FleetHistory
from cluster.controller.inbox import put
from cluster.controller.parcels import KEPT_S, Parcels
from cluster.controller.reduce import Known
from cluster.controller.store import FleetStore, Kept
from cluster.types import BoxView, CameraLease, Customer, FleetState, Grant, GroupWeight, Handoff, Performance, SitePlace
from configs.errors import StorageError, UsageError
from scheduler.fleet.types import CameraKey, Desired, ModelOffer, ShareOrder
from tests.support.fleet_boxes import ToyBox

NOW_S = 1_800_000_000.0
KEY = CameraKey(home="a", camera="c1")


@pytest.fixture
def db(tmp_path: Path) -> Iterator[FleetDatabase]:
    made = FleetDatabase(tmp_path / "fleet.db")
    yield made
    made.close()


def full_state() -> Kept:
    box = ToyBox("a", cameras={"c1": ("x", 30.0)})
    state = FleetState(
        term=3,
        customers={"x": Customer(id="x", path=("north", "east"), stated_pct=20.0)},
        boxes={"a": BoxView(id="a", site="here", joined_utc_s=1.0, report=box.report(NOW_S), enrolled_pct=100.0, doubts=("odd",))},
        leases={KEY: CameraLease(camera=KEY, box="b", term=4, since_utc_s=NOW_S, after_s=None, pinned=True)},
        handoffs={
            KEY: Handoff(
                camera=KEY, source="a", target="b", term=4, phase="warm", cause="move", reason="r", began_utc_s=1.0, phase_utc_s=2.0
            )
        },
        grants={"x": Grant(customer="x", share_pct=40.0, by_box={"a": 40.0}, reason="r", demand_pct=None)},
        offers={"a": (ModelOffer(rollout="o", parcel="a.o", cameras=(KEY,)),)},
        collects={"a": "request"},
        sites={"here": SitePlace(site="here", latitude_deg=52.0, longitude_deg=13.0)},
        groups={"north/east": GroupWeight(path=("north", "east"), weight=2.5)},
    )  # fmt: skip
    told = {
        "a": Desired(
            box="a", term=3, version=9, made_utc="m", expires_utc="e", shares=(ShareOrder(customer="x", share_pct=40.0),)
        )
    }
    allocator = observe(
        AllocatorState(), Performance(customer="x", alloc_pct=30.0, load=10.0, value=0.8, sigma=0.05, end_utc_s=NOW_S)
    )
    voices = {"a": (Voice(boot="b1", sequence=7, heard_utc_s=NOW_S),)}
    known = Known(state=state, voices=voices, wished={"a": (3, 9)})
    return Kept(known=known, told=told, allocator=allocator, round=5, round_utc_s=NOW_S, acted=0, version=9)


def test_everything_comes_back_as_it_was(db: FleetDatabase) -> None:
    kept = full_state()
    FleetStore(db).commit(Kept(), kept, checkpoint=True)
    found = FleetStore(db).load()
    assert found.known.state == replace(kept.known.state, term=0), "the term is the lease's to say"
    assert (found.told, found.known.voices, found.known.wished) == (kept.told, kept.known.voices, kept.known.wished)
    assert found.allocator.as_dict() == kept.allocator.as_dict()
    assert (found.round, found.round_utc_s, found.version) == (5, NOW_S, 9)


def test_what_goes_is_gone(db: FleetDatabase) -> None:
    kept, store = full_state(), FleetStore(db)
    store.commit(Kept(), kept, checkpoint=True)
    store.commit(kept, replace(kept, known=Known(state=FleetState(term=3)), told={}), checkpoint=True)
    found = store.load()
    assert found.known.state == FleetState()
    assert found.told == {}
    assert found.known.voices == {}


def test_reports_are_written_at_checkpoints_only(db: FleetDatabase) -> None:
    kept, store = full_state(), FleetStore(db)
    store.commit(Kept(), kept, checkpoint=False)
    newer = replace(kept.known.state.boxes["a"], seen_utc_s=NOW_S + 5)
    after = replace(kept, known=replace(kept.known, state=replace(kept.known.state, boxes={"a": newer})))
    store.commit(kept, after, checkpoint=False)
    assert store.load().known.state.boxes["a"].seen_utc_s == 0.0
    store.commit(after, after, checkpoint=True)
    assert store.load().known.state.boxes["a"].seen_utc_s == NOW_S + 5


def test_a_commit_that_fails_leaves_nothing(db: FleetDatabase) -> None:
    with pytest.raises(StorageError):
        FleetStore(db).commit(Kept(), full_state(), checkpoint=True, rows=[("INSERT INTO nowhere VALUES (1)", ())])
    assert FleetStore(db).load().known.state == FleetState()


def test_a_report_that_cannot_be_read_any_more_is_forgotten_and_the_box_is_not(db: FleetDatabase) -> None:
    FleetStore(db).commit(Kept(), full_state(), checkpoint=True)
    with db.transaction() as inside:
        inside.execute("UPDATE state SET body = replace(body, '\"schema\":1', '\"schema\":99') WHERE area = 'box'")
    view = FleetStore(db).load().known.state.boxes["a"]
    assert (view.report, view.enrolled_pct) == (None, 100.0)


def test_wishes_wait_in_order_and_are_taken_out_with_what_came_of_them(db: FleetDatabase) -> None:
    store = FleetStore(db)
    with db.transaction() as inside:
        for on in (True, False):
            put(inside, DrainWished(box="a", on=on), at_utc_s=NOW_S)
    waiting = store.waiting(0)
    assert [(one.number, one.event) for one in waiting] == [
        (1, DrainWished(box="a", on=True)),
        (2, DrainWished(box="a", on=False)),
    ]
    store.commit(Kept(), replace(Kept(), acted=1), checkpoint=False)
    assert [one.number for one in store.waiting(0)] == [2]
    with db.transaction() as inside:
        put(inside, DrainWished(box="b", on=True), at_utc_s=NOW_S)
    assert [one.number for one in store.waiting(1)] == [2, 3], "numbers are never given twice"


def test_a_database_of_a_newer_release_is_refused(db: FleetDatabase, tmp_path: Path) -> None:
    with db.transaction() as inside:
        inside.execute(
            "INSERT INTO _sqlite_migrations (migration_set, name, applied_at) VALUES ('driftbox-fleet', 'm999_later', 'now')"
        )
    with pytest.raises(StorageError, match="newer version") as error:
        FleetDatabase(tmp_path / "fleet.db")
    assert error.value.code == "newer"


def test_a_damaged_database_is_told(tmp_path: Path) -> None:
    (tmp_path / "fleet.db").write_bytes(b"this is no database" * 100)
    with pytest.raises(StorageError) as error:
        FleetDatabase(tmp_path / "fleet.db")
    assert error.value.code == "corrupt"


# --- history ----------------------------------------------------------------------------------------------------------


def test_alarms_begin_end_and_are_told_once(db: FleetDatabase) -> None:
    past = FleetHistory(db)
    one, two = frozenset({("a", "odd")}), frozenset({("a", "odd"), ("b", "worse")})
    for before, after, at_s in ((frozenset(), one, 1.0), (one, two, 2.0), (two, one, 3.0), (one, one, 4.0)):
        with db.transaction() as inside:
            for sql, values in history.alarm_rows(before, after, at_s):  # type: ignore[arg-type]
                inside.execute(sql, values)
    assert [(a.box, a.began_utc_s, a.ended_utc_s) for a in past.alarms()] == [("b", 2.0, 3.0), ("a", 1.0, None)]
    assert [a.box for a in past.alarms(open_only=True)] == ["a"]
    assert FleetStore(db).open_alarms() == one


def test_old_history_goes(db: FleetDatabase) -> None:
    day_s = 86_400.0
    for at_s in (NOW_S - 40 * day_s, NOW_S):
        with db.transaction() as inside:
            inside.execute(*history.audit_row(at_s, "me", "did", "this"))
    with db.transaction() as inside:
        for sql, values in history.prune_rows(NOW_S):
            inside.execute(sql, values)
    assert [row.at_utc_s for row in FleetHistory(db).audit()] == [NOW_S]


# --- parcels ----------------------------------------------------------------------------------------------------------


def test_a_parcel_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    parcels = Parcels(tmp_path)
    receiving = parcels.receive("b.a.c1.4", "a")
    receiving.write(b"half of ")
    assert parcels.ids() == frozenset()
    with pytest.raises(UsageError) as error:
        receiving.end("0" * 64)
    receiving.drop()
    assert error.value.code == "checksum"
    assert list((tmp_path / "parcels").rglob("*")) == [tmp_path / "parcels" / "b"]
    made = parcels.put("b.a.c1.4", b"all of it", "a")
    assert made.path.read_bytes() == b"all of it"
    assert parcels.ids() == {"b.a.c1.4"}
    assert Parcels(tmp_path).find("b.a.c1.4").sha256 == hashlib.sha256(b"all of it").hexdigest()


def test_what_a_killed_controller_left_unfinished_is_removed_by_the_next_not_by_a_command(tmp_path: Path) -> None:
    Parcels(tmp_path).receive("b.x", "a").write(b"half")
    Parcels(tmp_path, beside=True)
    assert len([*(tmp_path / "parcels").rglob("*")]) == 2
    Parcels(tmp_path)
    assert len([*(tmp_path / "parcels").rglob("*")]) == 1


@pytest.mark.parametrize("id", ["", "b", "b.", ".x", "b.../../x", "B.x", "b.x/y", "b.x\n", "b." + "x" * 300])
def test_what_is_no_name_is_refused(tmp_path: Path, id: str) -> None:
    with pytest.raises(UsageError) as error:
        Parcels(tmp_path).put(id, b"x", "a")
    assert error.value.code == "not_found"


def test_of_two_senders_the_later_one_counts(tmp_path: Path) -> None:
    parcels = Parcels(tmp_path)
    parcels.put("b.x", b"first", "a")
    parcels.put("b.x", b"second", "c")
    assert parcels.find("b.x").path.read_bytes() == b"second"
    parcels.remove("b.x")
    parcels.remove("b.x")
    with pytest.raises(UsageError):
        parcels.find("b.x")


def test_what_is_old_and_not_needed_goes(tmp_path: Path) -> None:
    parcels = Parcels(tmp_path)
    for name in ("old", "needed", "new"):
        path = parcels.put(f"b.{name}", b"x", "a").path
        age_s = 0.0 if name == "new" else KEPT_S + 10
        os.utime(path, (NOW_S - age_s, NOW_S - age_s))
    assert parcels.sweep(needed=["b.needed"], bundles=[], now_utc_s=NOW_S) == 1
    assert parcels.ids() == {"b.needed", "b.new"}


def test_a_bundle_is_every_boxs_parcel(tmp_path: Path) -> None:
    parcels = Parcels(tmp_path / "fleet")
    (tmp_path / "bundle").write_bytes(b"model")
    parcels.put_bundle("r1", tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()
    assert parcels.find("anybox.r1").path.read_bytes() == b"model"
    assert parcels.ids() == frozenset()
