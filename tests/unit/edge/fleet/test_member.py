"""The box as a member: what it applies, keeps, retries and tells, whatever comes and however long nothing does."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from configs.errors import JobError, StorageError
from edge.fleet.member import Member
from edge.fleet.wishes import WishBook
from scheduler.fleet.codec import encode
from scheduler.fleet.types import BoxReport, CameraWord, Confirmation, Desired
from tests.support.fleet_box import NOW_S, HandClock, Remembers, Told, at, order, wish

DAY_S = 86_400.0


class World:
    """A member of box `hall` with everything around it."""

    def __init__(self, folder: Path, *, wrong_s: float = 0.0, write: Any = os.write) -> None:
        self.clock, self.box, self.told = HandClock(wrong_s=wrong_s), Remembers(), Told()
        self.notes: list[str] = []
        self.folder, self.write, self.sequence = folder, write, 0
        self.member = self.started()

    def started(self) -> Member:
        """Another start of the box."""
        member = Member(
            box="hall", book=WishBook(self.folder / "wishes.json", membership="m1", write=lambda fd, data: self.write(fd, data)),
            engine=self.box, handlers=self.box.handlers(), report=self.report, clock=self.clock, report_every_s=5.0,
            tell=self.notes.append,
        )  # fmt: skip
        member.teller = self.told
        return member

    def report(self, said: Confirmation) -> BoxReport:
        self.sequence += 1
        return BoxReport(
            box="hall", site="site", boot="b", sequence=self.sequence, sent_utc=at(0), software="1", capacity_pct=100, spare_pct=0,
            memory_mib=None, networks=(), cameras=(), confirmation=said,
        )  # fmt: skip

    def heartbeat(self, *, retained: bool = False, url: str = "https://c1:8470") -> None:
        said = at(self.clock.elapsed_s)
        self.member.hear_heartbeat({"schema": 1, "controller": "c1", "term": 1, "utc": said, "url": url}, retained=retained)

    def comes(self, new: Desired) -> Confirmation:
        self.member.hear_wish(encode(new))
        return self.step()

    def step(self, after_s: float = 0.0) -> Confirmation:
        self.clock.elapsed_s += after_s
        self.member.step()
        return self.member.confirmation()


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.heartbeat()
    return made


def test_a_wish_is_on_disk_before_anybody_hears_of_it(world: World, tmp_path: Path) -> None:
    seen: list[int] = []
    world.box.asked = lambda name, what: seen.append(WishBook(tmp_path / "wishes.json", membership="m1").known.highest[1])  # type: ignore[method-assign]
    said = world.comes(wish(1, 3, shares={"shop": 30}))
    assert (said.term, said.version, said.refused, said.problems) == (1, 3, "", ())
    assert seen == [3, 3, 3]
    assert world.box.in_force == (("shop", 30.0),)


def test_everything_in_it_goes_to_whom_it_is_for_and_once(world: World) -> None:
    cameras = (order("gate", "release", 4), order("yard", "own", 2, home="barn"))
    world.comes(wish(shares={"b": 20, "a": 30}, cameras=cameras, collect="r1"))
    assert world.box.log == [("shares", (("a", 30.0), ("b", 20.0))), ("cameras", cameras), ("offers", ()), ("samples", "r1")]
    world.comes(wish(shares={"b": 20, "a": 30}, cameras=cameras, collect="r1"))  # QoS 1: it comes twice
    world.step(100)
    assert len(world.box.log) == 4


@pytest.mark.parametrize(
    ("bad", "word"),
    [
        (wish(2, 2, expires_s=-1), "expired"),
        (wish(2, 2, box="barn"), "box barn"),
        (wish(1, 9), "term 1 still writes"),
        (wish(2, 0), "older"),
        (wish(2, 1, draining=True), "two different wishes"),
    ],
)
def test_what_may_not_be_applied_changes_nothing_but_the_confirmation(world: World, bad: Desired, word: str) -> None:
    world.comes(wish(2, 1, shares={"a": 50}))
    before = list(world.box.log)
    said = world.comes(bad)
    assert (said.term, said.version) == (2, 1)
    assert word in said.refused
    assert world.box.log == before
    assert world.comes(wish(2, 3)).refused == ""


def test_a_second_controller_is_told_to_the_operator_once(world: World) -> None:
    world.comes(wish(2, 1))
    for _ in range(3):
        world.comes(wish(1, 9))
    assert len(world.notes) == 1
    assert "term 1 still writes" in world.notes[0]


@pytest.mark.parametrize("wrong_s", [3600.0, -3600.0, 400 * DAY_S])
def test_a_clock_that_is_wrong_does_not_matter_once_the_controller_was_heard(tmp_path: Path, wrong_s: float) -> None:
    world = World(tmp_path, wrong_s=wrong_s)
    said = world.comes(wish(1, 1, expires_s=30))
    assert (said.version, "not known yet" in said.refused) == (0, True)
    world.heartbeat(retained=True)  # what the broker kept says nothing of now
    assert world.step().version == 0
    world.heartbeat()
    assert world.step().version == 1
    assert world.member.view().offset_s == pytest.approx(-wrong_s)
    assert "expired" in world.comes(wish(1, 2, expires_s=-30)).refused


def test_a_clock_that_is_set_while_the_box_runs_does_not_matter_either(world: World) -> None:
    world.step(10)
    world.clock.wrong_s = -7200
    assert "expired" in world.comes(wish(1, 1, expires_s=5)).refused


def test_a_wish_that_waits_is_not_lost_to_an_older_one_that_is_replayed(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.comes(wish(1, 5, shares={"a": 40}))
    assert world.comes(wish(1, 3)).version == 0
    world.heartbeat()
    assert world.step().version == 5


def test_alone_for_a_month_it_goes_on_with_the_last(world: World) -> None:
    """The wish in force has long expired; the box is started anew in the middle of it."""
    world.comes(wish(1, 1, shares={"a": 50}, cameras=(order("gate"),)))
    before = len(world.box.log)
    for _ in range(30):
        said = world.step(DAY_S)
        assert (said.version, said.refused) == (1, "")
    assert len(world.box.log) == before
    assert world.box.in_force == (("a", 50.0),)
    world.box.in_force = ()
    world.member = world.started()
    assert world.step().version == 1
    assert world.box.in_force == (("a", 50.0),)
    assert world.box.log[-3] == ("cameras", (order("gate"),))
    assert world.member.view().silent_s is None


def test_shares_are_ordered_until_the_engine_has_them(world: World) -> None:
    world.box.deaf = True
    world.comes(wish(shares={"a": 50}))
    world.box.deaf = False
    world.step()
    world.step()
    assert world.box.names().count("shares") == 2


def test_a_handler_that_fails_keeps_no_other_from_working_and_is_asked_again(world: World) -> None:
    world.box.fails = {"cameras": JobError("the loop is busy", code="busy"), "samples": ValueError("a mistake")}
    said = world.comes(wish(collect="r"))
    assert said.version == 1
    assert said.problems == ("cameras: the loop is busy", "samples: ValueError: a mistake")
    assert world.box.names() == ["cameras", "offers", "samples"]
    world.step(10)
    assert world.box.names() == ["cameras", "offers", "samples"]
    world.box.fails = {}
    assert world.step(21).problems == ()
    assert world.step(100).problems == ()
    assert world.box.names() == ["cameras", "offers", "samples"] * 2


def test_a_full_disk_refuses_the_wish_until_there_is_room(tmp_path: Path) -> None:
    full = [True]

    def write(fd: int, data: bytes) -> int:
        if full[0]:
            raise OSError(28, "No space left on device")
        return os.write(fd, data)

    world = World(tmp_path, write=write)
    world.heartbeat()
    said = world.comes(wish(shares={"a": 50}))
    assert (said.version, "cannot be kept" in said.refused, world.box.log) == (0, True, [])
    full[0] = False
    assert world.step().version == 1


def test_it_reports_every_few_seconds_and_at_once_when_it_is_further(world: World) -> None:
    world.step()
    assert len(world.told.reports) == 1
    world.step(3)
    assert len(world.told.reports) == 1
    world.step(2.5)
    assert len(world.told.reports) == 2
    world.box.camera_words = (CameraWord(camera=order("gate").camera, term=1, stage="warming"),)
    world.step(0.5)
    assert [w.stage for w in world.told.reports[-1].confirmation.cameras] == ["warming"]
    world.box.camera_words = (replace(world.box.camera_words[0], last_s=17.0),)  # a frame came: no news
    world.step(0.5)
    assert len(world.told.reports) == 3
    assert world.member.state()["fleet"]["cameras"][0]["last_s"] is None


def test_a_report_that_cannot_be_made_costs_that_report(world: World) -> None:
    made, world.member._report = world.member._report, lambda said: (_ for _ in ()).throw(StorageError("no room"))
    world.comes(wish(shares={"a": 10}))
    assert world.box.in_force
    world.member._report = made
    world.step(6)
    assert world.told.reports[-1].confirmation.version == 1


def test_words_that_cannot_be_had_do_not_silence_the_box(world: World) -> None:
    world.box.camera_words = property(lambda self: 1 / 0)  # type: ignore[assignment]
    del world.box.camera_words
    assert world.step().cameras == ()
    assert world.told.reports


def test_leaving_gives_everything_back(world: World) -> None:
    world.comes(wish(shares={"a": 50}, cameras=(order("gate", "release", 3),), collect="r"))
    world.box.log.clear()
    world.member.release()
    assert world.box.log == [("shares", ()), ("cameras", ()), ("offers", ()), ("samples", "")]


def test_an_empty_message_wishes_nothing_new(world: World) -> None:
    world.comes(wish(shares={"a": 50}))
    world.member.hear_wish(b"")
    assert world.step().version == 1
    assert world.box.in_force


def test_the_controller_in_charge_is_the_one_that_was_heard_last(world: World) -> None:
    world.heartbeat(url="https://c2:8470")
    assert world.member.controller == "https://c2:8470"
    assert world.member.view().silent_s == 0
    world.step(90)
    assert world.member.view().silent_s == 90


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=60) | st.sampled_from([b"{}", b"null", b'{"schema":1}', b'{"schema":99,"box":"hall"}', b"[" * 60]))
def test_no_message_ends_anything(world: World, payload: bytes) -> None:
    world.member.hear_wish(payload)
    world.member.hear_heartbeat(payload, retained=False)
    world.member.hear_heartbeat({"utc": payload.decode("latin-1"), "url": 5}, retained=False)
    said = world.step()
    assert said.version == 0
    assert bool(said.refused) or not payload


def test_its_thread_does_all_this_by_itself(tmp_path: Path) -> None:
    from tests.support.mosquitto import eventually

    world = World(tmp_path)
    world.member.start()
    try:
        world.heartbeat()
        world.member.hear_wish(encode(wish(1, 4)))
        eventually(lambda: world.member.confirmation().version == 4, "the wish is in force")
        assert world.member.is_alive()
        with pytest.raises(RuntimeError):
            world.member.begin_anew()
    finally:
        world.member.stop()
    assert world.member.silent_s() == 0
    assert NOW_S > 0
