"""The controller in a world that breaks: killed at every step, two of them, the broker gone, boxes that lie. In virtual time; SQLite,
the decisions and everything that is said are real."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster.controller.database import FleetDatabase
from cluster.controller.store import FleetStore
from cluster.types import Customer
from scheduler.fleet.codec import encode
from scheduler.fleet.types import BoxReport, CameraKey
from tests.support.fleet_boxes import ToyBox, ToyLink
from tests.support.fleet_world import RULES, Killed, World

SHARED_MEMORY = Path("/dev/shm")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """In memory where that is possible: thousands of commits that reach the disk would take minutes."""
    if not SHARED_MEMORY.is_dir():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY, prefix="driftbox-test-") as made:
        yield Path(made)


def three() -> list[ToyBox]:
    return [
        ToyBox("a", cameras={"c1": ("x", 30.0), "c2": ("y", 20.0)}),
        ToyBox("b", cameras={"c1": ("x", 30.0)}),
        ToyBox("c", capacity_pct=200.0),
    ]


KEYS = [CameraKey(home="a", camera="c1"), CameraKey(home="a", camera="c2"), CameraKey(home="b", camera="c1")]


# --- killed at every step ---------------------------------------------------------------------------------------------


class Fuse:
    """Counts what a controller does to the world, and kills it at the one that is wanted, before or after it happened."""

    def __init__(self, at: int) -> None:
        self.at, self.count = at, 0

    def burn(self) -> None:
        self.count += 1
        if self.count == self.at:
            raise Killed


class MortalStore(FleetStore):
    def __init__(self, store: FleetStore, fuse: Fuse) -> None:
        super().__init__(store.db)
        self._fuse = fuse

    def commit(self, *args: Any, **options: Any) -> None:
        self._fuse.burn()
        super().commit(*args, **options)
        self._fuse.burn()


class MortalLink:
    def __init__(self, link: ToyLink, fuse: Fuse) -> None:
        self._link, self._fuse = link, fuse
        self.connection, self.take = link.connection, link.take

    def say(self, topic: str, payload: bytes) -> bool:
        self._fuse.burn()
        said = self._link.say(topic, payload)
        self._fuse.burn()
        return said


def play(folder: Path, kill_at: int) -> tuple[World, int]:
    """A box is drained, customers come, a wish for samples is there; the controller dies at its `kill_at`th deed (0: never)."""
    world, fuse = World(folder, three()), Fuse(kill_at)
    world.start(store=lambda store: MortalStore(store, fuse), link=lambda link: MortalLink(link, fuse))

    def second() -> None:
        try:
            world.tick()
        except Killed:
            world.start()

    for at in range(14):
        if at == 2:
            world.actions().put_customer(Customer(id="x", goal=0.7), by="t")
        if at == 3:
            world.actions().drain("a", True, by="t")
            world.actions().collect("b", "request-1", by="t")
        second()
        world.check()
    deeds = fuse.count
    for _ in range(40):  # a lease has to run out, a handoff to go through
        second()
    world.check()
    return world, deeds


def outcome(world: World) -> tuple[Any, ...]:
    state = world.controller.state()
    where = {str(key): [id for id, box in world.boxes.items() if key in box.watched()] for key in KEYS}
    return (
        where, sorted(state.customers), state.boxes["a"].draining, dict(state.collects), sorted(state.grants),
        {id: sorted(order.customer for order in box.applied.shares) for id, box in world.boxes.items() if box.applied is not None},
    )  # fmt: skip


def test_killed_at_every_step_nothing_is_lost_and_nothing_doubled(folder: Path) -> None:
    (folder / "never").mkdir()
    world, deeds = play(folder / "never", 0)
    expected = outcome(world)
    assert expected[0] == {"a/c1": ["c"], "a/c2": ["c"], "b/c1": ["b"]}, "the scene works without a death"
    assert deeds > 40
    for kill_at in range(1, deeds + 1):
        place = folder / str(kill_at)
        place.mkdir()
        world, _ = play(place, kill_at)
        assert outcome(world) == expected, f"killed at deed {kill_at}"
        assert world.starts == 3, "it was killed, once"
        acted = [row.action for row in world.history.audit() if row.by == "t"]
        assert sorted(acted) == ["box.collect", "box.drain", "customer.put"]
        phases = [(row.camera, row.term, row.phase) for row in world.history.placements()]
        assert len(phases) == len(set(phases))
        world.db.close()


def test_a_restart_tells_the_same_again_under_a_higher_term(folder: Path) -> None:
    world = World(folder, three())
    world.tick(25)
    before = {id: world.broker.wish_of(box) for id, box in world.boxes.items()}
    grants = world.controller.state().grants
    world.start()
    world.tick(25)
    for id, box in world.boxes.items():
        after, was = world.broker.wish_of(box), before[id]
        assert was is not None
        assert after is not None
        assert after.term > was.term
        assert {s.customer for s in after.shares} == {s.customer for s in was.shares}
        assert box.applied == after
    assert world.controller.state().grants.keys() == grants.keys()
    world.check()


def test_nothing_is_told_that_could_not_be_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from configs.errors import StorageError

    world = World(folder, three())
    world.tick(5)
    said = len(world.wishes_said())

    def full(*_: Any, **__: Any) -> None:
        raise StorageError("no space left", code="full")

    monkeypatch.setattr(FleetStore, "commit", full)
    world.actions().drain("a", True, by="t")
    for _ in range(5):
        with pytest.raises(StorageError):
            world.tick()
    assert len(world.wishes_said()) == said
    monkeypatch.undo()
    world.tick(12)
    assert world.controller.state().boxes["a"].draining, "and then it goes on"
    world.check()


# --- two controllers --------------------------------------------------------------------------------------------------


def test_of_two_controllers_on_one_folder_one_writes(folder: Path) -> None:
    world = World(folder, three())
    other_link = world.broker.link()
    other = world.another("zzz", other_link)
    for _ in range(30):
        world.tick()
        other.step()
        assert [world.controller.status().in_charge, other.status().in_charge] == [True, False]
    assert "controller c001" in other.status().reason
    world.check()
    world.tick(20, step=False)  # the first one hangs
    for _ in range(3):
        world.tick(1, step=False)
        other.step()
    assert other.status().in_charge
    term = other.status().term
    world.controller.step()  # it wakes up, and knows by its own clock that its time is over
    assert not world.controller.status().in_charge
    assert all(wish.term <= term for wish in world.wishes_said())
    for _ in range(5):
        world.tick()
        other.step()
        assert [world.controller.status().in_charge, other.status().in_charge] == [False, True]
    world.check()


def test_a_controller_that_lost_its_lease_cannot_write_even_if_it_believes_it_has_it(folder: Path) -> None:
    """Its monotonic clock stood still (a suspended machine), so it cannot know."""
    from cluster.controller.core import Controller, Parts
    from cluster.controller.lease import LeaseKeeper, SqliteLeases

    world = World(folder, three())
    frozen_s = world.now_s
    keeper = LeaseKeeper(SqliteLeases(world.db, lambda: world.now_s), "frozen", lambda: frozen_s)
    link = world.broker.link()
    frozen = Controller(
        Parts(store=FleetStore(world.db), lease=keeper, link=link, utc_s=lambda: world.now_s, monotonic_s=lambda: frozen_s)
    )
    frozen.step()
    assert frozen.status().in_charge
    world.tick(30)
    assert world.controller.status().in_charge, "its lease ran out and the other one took it"
    link.heard.clear()
    said, rows = len(world.wishes_said()), len(world.history.rounds())
    world.actions().drain("a", True, by="t")
    frozen.step()
    assert not frozen.status().in_charge
    assert "has taken over" in frozen.status().reason
    assert (len(world.wishes_said()), len(world.history.rounds())) == (said, rows)


def test_split_brain_two_folders_one_broker(folder: Path) -> None:
    """Somebody started a controller on a copy of the folder: both have a lease of the same term in their own file."""
    world = World(folder, three())
    (folder / "copy").mkdir()
    copied = FleetDatabase(folder / "copy" / "fleet.db")
    world.tick(3)
    with world.db.transaction(), copied.transaction() as into:
        for row in world.db.rows("SELECT * FROM state"):
            into.execute("INSERT INTO state VALUES (?, ?, ?)", tuple(row))
    other = world.another("zzz", world.broker.link(), db=copied)
    both = 0
    for _ in range(60):
        world.tick()
        other.step()
        both += world.controller.status().in_charge and other.status().in_charge
    assert both <= 6, "they find each other by their heartbeats"
    assert [world.controller.status().in_charge, other.status().in_charge].count(True) == 1
    loser = other if world.controller.status().in_charge else world.controller
    assert "writes by term" in loser.status().reason
    winner = world.controller if loser is other else other
    assert all(box.applied is not None and box.applied.term == winner.status().term for box in world.boxes.values())
    owners = [key for box in world.boxes.values() for key in box.watched()]
    assert sorted(owners) == KEYS
    copied.close()


def test_a_folder_put_back_from_an_old_copy_rises_above_what_boxes_have_seen(folder: Path) -> None:
    world = World(folder, three())
    for box in world.boxes.values():
        box.known = replace(box.known, highest=(41, 7))
    world.boxes["a"].lie = lambda report: replace(
        report, confirmation=replace(report.confirmation, term=max(41, report.confirmation.term), version=7)
    )
    world.tick(20)
    assert world.controller.status().term > 41
    assert all(box.applied is not None and box.applied.term > 41 for box in world.boxes.values())


def with_moves(folder: Path) -> World:
    """Of whose handoffs soon nothing is left but the lease."""
    handoff = replace(RULES.placement.handoff, kept_s=20.0)
    world = World(folder, three(), rules=replace(RULES, placement=replace(RULES.placement, handoff=handoff)))
    world.tick(20)
    return world


def owners(world: World, key: CameraKey) -> list[str]:
    return sorted(id for id, box in world.boxes.items() if key in box.watched())


def move(world: World, key: CameraKey, box: str) -> None:
    world.actions().pin(key, box, by="t")
    for _ in range(40):
        world.tick()
        if owners(world, key) == [box] and world.controller.state().handoffs[key].phase == "done":
            world.tick(16)  # until what boxes say of it now is written down: commands look there
            return
    pytest.fail(f"it never came to {box}")


@pytest.mark.parametrize("later_s", [0, 40], ids=["at once", "later"])
@pytest.mark.parametrize(("before", "since"), [(0, 1), (0, 3), (1, 1), (1, 2), (1, 3), (2, 1), (2, 3), (3, 2), (3, 5)])
def test_a_folder_put_back_from_an_old_copy_leaves_every_camera_where_it_is(
    folder: Path, before: int, since: int, later_s: int
) -> None:
    """before, since: moves of a camera before the copy was made, and after it. Nobody remembers those after but the boxes."""
    world, key = with_moves(folder), KEYS[0]
    ways = ["b", "c", "a", "c", "b", "a", "c", "b"][: before + since]
    (folder / "copy").mkdir()
    for number, box in enumerate(ways):
        if number == before:
            with (
                closing(sqlite3.connect(folder / "copy" / "fleet.db")) as copy,
                closing(sqlite3.connect(folder / "fleet.db")) as db,
            ):
                db.backup(copy)
        move(world, key, box)
    world.tick(later_s)
    world.db.close()

    world.folder, world.db = folder / "copy", FleetDatabase(folder / "copy" / "fleet.db")
    world.start()
    for _ in range(100):
        world.tick()
        assert owners(world, key) == [ways[-1]]
        assert [len(owners(world, other)) for other in KEYS[1:]] == [1, 1]
    lease = world.controller.state().leases.get(key)
    assert (lease.box if lease is not None else key.home) == ways[-1], "and it knows"
    assert all(not view.doubts for view in world.controller.state().boxes.values())
    move(world, key, "b" if ways[-1] != "b" else "c")
    world.db.close()


def test_an_old_copy_and_an_owner_that_died_meanwhile(folder: Path) -> None:
    """Nobody owns the camera by the newest term: its home gets it by a higher one."""
    world, key = with_moves(folder), KEYS[0]
    (folder / "copy").mkdir()
    with closing(sqlite3.connect(folder / "copy" / "fleet.db")) as copy, closing(sqlite3.connect(folder / "fleet.db")) as db:
        db.backup(copy)
    for box in ("b", "c", "a", "c"):
        move(world, key, box)
    world.db.close()
    world.silent = {"c"}
    world.folder, world.db = folder / "copy", FleetDatabase(folder / "copy" / "fleet.db")
    world.start()
    world.tick(60)
    assert [box for box in owners(world, key) if box != "c"] == ["a"]
    assert world.controller.state().leases[key].term > 4
    world.silent = set()
    world.tick(20)
    assert owners(world, key) == ["a"], "also when it lives again"
    world.db.close()


def test_boxes_are_heard_before_a_new_controller_tells_them_anything(folder: Path) -> None:
    world = World(folder, three())
    world.tick(25)
    world.start()
    world.silent = {"c"}
    while not world.controller.status().in_charge:
        world.tick()
    said = len(world.wishes_said())
    world.tick(14)
    assert len(world.wishes_said()) == said, "one that is there has not spoken yet"
    assert "heard before they are told" in world.controller.status().reason
    world.tick(2)
    assert {wish.box for wish in world.wishes_said()[said:]} == {"a", "b", "c"}, "it is not waited for for ever"
    world.check()


# --- the broker -------------------------------------------------------------------------------------------------------


def test_a_broker_that_forgot_everything_is_told_everything_again(folder: Path) -> None:
    world = World(folder, three())
    world.tick(25)
    before = {id: world.broker.wish_of(box) for id, box in world.boxes.items()}
    world.link.number = 0
    world.tick(5)
    assert "broker is away" in world.controller.status().reason
    world.broker.retained.clear()
    world.link.number = 2
    world.tick(2)
    for id, box in world.boxes.items():
        found, was = world.broker.wish_of(box), before[id]
        assert found is not None
        assert was is not None
        assert found.order >= was.order
    world.check()


def test_silence_while_the_broker_is_away_takes_no_camera_from_anybody(folder: Path) -> None:
    world = World(folder, three())
    world.tick(10)
    world.link.number = 0
    world.silent = set(world.boxes)
    world.tick(300)
    assert not world.controller.state().handoffs
    world.link.number, world.silent = 2, set()
    world.tick(30)
    assert not world.controller.state().handoffs


@pytest.mark.parametrize("payload", [b"", b"nonsense"])
def test_a_wish_that_somebody_overwrote_is_told_again(folder: Path, payload: bytes) -> None:
    world = World(folder, three())
    world.tick(10)
    world.broker.say("here/a/desired", payload)
    world.tick(2)
    assert world.broker.wish_of(world.boxes["a"]) == world.boxes["a"].applied


# --- boxes ------------------------------------------------------------------------------------------------------------


def test_a_box_that_lies_is_not_believed_and_not_cut_off(folder: Path) -> None:
    world = World(folder, three())

    def boast(report: BoxReport) -> BoxReport:
        cameras = tuple(replace(camera, quality=3.0, got_pct=900.0) for camera in report.cameras)
        return replace(report, capacity_pct=10_000.0, cameras=cameras)

    world.tick(30)
    honest = world.controller.state().grants["x"].share_pct
    world.boxes["a"].lie = boast
    world.tick(60)
    view = world.controller.state().boxes["a"]
    assert view.capacity_pct == 100.0
    assert len(view.doubts) >= 3
    applied = world.boxes["a"].applied
    assert applied is not None
    assert applied.shares, "it is still told its shares"
    assert sum(share.share_pct for share in applied.shares) <= 100.0
    assert world.controller.state().grants["x"].share_pct <= honest + 100.0
    assert any("can only be 0 to 1" in alarm.text for alarm in world.history.alarms(open_only=True))
    world.boxes["a"].lie = lambda report: report
    world.tick(5)
    assert world.controller.state().boxes["a"].doubts == ()
    assert not [alarm for alarm in world.history.alarms(open_only=True) if alarm.box == "a"], "and the alarm ends"


def test_two_boxes_with_one_id_are_told_of_and_neither_is_used(folder: Path) -> None:
    world = World(folder, three())
    world.tick(10)
    twin = ToyBox("a", cameras={"c9": ("x", 90.0)}, boot="boot-2", sequence=world.boxes["a"].sequence)
    for _ in range(10):
        world.tick()
        world.broker.say("here/a/report", encode(twin.report(world.now_s)), retain=False)
    world.tick()
    view = world.controller.state().boxes["a"]
    assert any("two boxes" in doubt for doubt in view.doubts)
    assert {str(camera.camera) for camera in view.cameras} <= {"a/c1", "a/c2", "a/c9"}
    frozen = view.report
    world.tick(3)
    assert world.controller.state().boxes["a"].report == frozen
    assert world.controller.state().boxes["a"].seen_utc_s == world.now_s, "it is there: nobody takes its cameras over"
    assert not world.controller.state().handoffs


def test_a_clock_an_hour_off_is_measured_told_and_does_no_harm(folder: Path) -> None:
    boxes = three()
    boxes[0].clock_s = 3600.0
    world = World(folder, boxes)
    world.tick(30)
    view = world.controller.state().boxes["a"]
    assert view.offset_s == pytest.approx(3600.0, abs=1.0)
    assert view.doubts == ()
    assert boxes[0].applied is not None
    assert boxes[0].applied.shares
    assert [alarm.text for alarm in world.history.alarms(open_only=True)] == ["its clock is ahead of the controller's"]


def test_a_replayed_message_changes_nothing(folder: Path) -> None:
    world = World(folder, three())
    old = encode(world.boxes["a"].report(world.now_s))
    world.boxes["a"].cameras["c3"] = ("x", 5.0)
    world.tick(20)
    state = world.controller.state()
    world.broker.say("here/a/report", old, retain=False)
    world.controller.step()
    after = world.controller.state()
    assert after.boxes["a"].report == state.boxes["a"].report
    assert any("old message" in doubt for doubt in after.boxes["a"].doubts)
    assert after.grants == state.grants


def test_messages_of_strangers_and_nonsense_change_nothing(folder: Path) -> None:
    world = World(folder, three())
    world.tick(10)
    before = world.controller.state()
    stranger = ToyBox("nobody", cameras={"c1": ("x", 90.0)})
    for topic, payload in (
        ("here/nobody/report", encode(stranger.report(world.now_s))),
        ("there/a/report", encode(world.boxes["a"].report(world.now_s))),
        ("here/b/report", encode(world.boxes["a"].report(world.now_s))), ("here/b/report", b"\xff{"),
        ("here/b/report", b"x" * 5_000_000),
        ("fleet/controller", b"{}"), ("odd", b""),
    ):  # fmt: skip
        world.broker.say(topic, payload, retain=False)
    world.controller.step()
    after = world.controller.state()
    assert after.boxes.keys() == before.boxes.keys()
    assert after.boxes["b"].report == before.boxes["b"].report
    assert after.boxes["b"].doubts


def test_a_dead_boxs_camera_is_taken_over_and_nobody_else_is_touched(folder: Path) -> None:
    boxes = three()
    world = World(folder, boxes, rules=replace(RULES, placement=replace(RULES.placement, standby=True)))
    world.tick(60)
    lease = world.controller.state().leases[KEYS[0]]
    assert lease.standby, "somebody has it at hand"
    world.silent = {"a"}
    world.broker.say("here/a/availability", b"offline")
    world.tick(45)
    state = world.controller.state()
    assert state.leases[KEYS[0]].box != "a"
    assert KEYS[0] in {camera for id in ("b", "c") for camera in world.boxes[id].watched()}
    assert KEYS[2] not in state.handoffs
    world.check()


def test_a_box_that_is_forgotten_and_joins_again_obeys_again(folder: Path) -> None:
    """Versions go on: what it has seen before is lower."""
    world = World(folder, three())
    world.tick(10)
    from cluster.controller.events import BoxForgotten
    from cluster.controller.inbox import put

    with world.db.transaction() as db:
        put(db, BoxForgotten(box="b", at_utc_s=world.now_s), at_utc_s=world.now_s)
    world.tick(2)
    assert "b" not in world.controller.state().boxes
    assert world.broker.wish_of(world.boxes["b"]) is None
    seen = world.boxes["b"].known.highest
    world.join(world.boxes["b"])
    world.tick(25)
    applied = world.boxes["b"].applied
    assert applied is not None
    assert applied.order > seen
    assert applied.shares
