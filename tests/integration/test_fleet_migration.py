"""Two boxes hand a live camera to each other: every frame is told by one of them, whatever is lost on the way and whoever dies."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from cluster.placement.handoff import HandoffRules
from cluster.placement.plan import FleetRules
from cluster.placement.sight import Patience
from scheduler.fleet.types import CameraKey
from scheduler.videostorm.placement import PlacementRules
from streams.rtsp_server import RtspServer
from tests.support.authority import Authority
from tests.support.fakes import put_fakes_in_the_zoo
from tests.support.migrating import Controller, MovingBox, Post, camera_server

GATE = CameraKey(home="a", camera="gate")
#: Boxes that are gone are given up at once: nobody waits in a test.
HASTY = HandoffRules(patience=Patience(gone_s=0.2, hung_s=60.0, doubt_s=60.0))


@pytest.fixture
def server() -> Iterator[RtspServer]:
    made = camera_server(("gate",))
    yield made
    made.stop()


class Fleet:
    def __init__(self, folder: Path, server: RtspServer, rules: HandoffRules | None = None) -> None:
        self.folder, self.url = folder, server.url("gate", user="watcher", password="s3cret")
        self.authority = Authority(folder / "ca")
        self.post = Post(self.authority)
        self.a, self.b = self.box("a", {"gate": self.url}), self.box("b", {})
        self.controller = Controller({"a": self.a, "b": self.b}, self.post, rules)

    def box(self, name: str, cameras: dict[str, str]) -> MovingBox:
        return MovingBox(self.folder / name, name, cameras, self.authority, self.post)

    def wait_told(self, box: MovingBox, more: int = 8) -> None:
        count = len(box.told.get("gate", ())) + more
        self.controller.until(lambda: len(box.told.get("gate", ())) >= count, f"box {box.name} tells {more} more frames")

    def move(self, target: str, cause: str = "move") -> None:
        self.controller.move(GATE, target, cause)
        self.controller.until(lambda: self.controller.phase(GATE) == "done", f"the camera is on {target}")

    def judge(self, *boxes: MovingBox) -> None:
        """None told twice; an owner told all that it analysed, from the very frame on that followed the last one of the owner before."""
        owned = sorted((at_s, box.name) for box in boxes for at_s in box.told["gate"])
        told = [at_s for at_s, _ in owned]
        assert len(told) == len(set(told)), "a frame was told twice"
        analysed = {box.name: set(box.analysed["gate"]) for box in boxes}
        for (before_s, owner), (after_s, then) in pairwise(owned):
            missed = sorted(at_s for at_s in analysed[then] if before_s < at_s < after_s)
            assert not missed, f"frames were lost between {before_s} of {owner} and {after_s} of {then}: {missed}"


def test_a_live_camera_goes_to_another_box_and_home_again(
    tmp_path: Path, server: RtspServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_fakes_in_the_zoo(monkeypatch)
    fleet = Fleet(tmp_path, server)
    with fleet.a as a, fleet.b as b:
        fleet.wait_told(a)
        fleet.move("b")
        fleet.wait_told(b)
        fleet.judge(a, b)
        assert min(b.told["gate"]) > max(a.told["gate"])
        fleet.controller.until(lambda: "gate" not in a.runtime.watched, "its home has closed it")
        assert a.control.state(a.control.cameras().find("gate"))[0] == "elsewhere"
        guest = b.control.cameras().find("a--gate")
        assert guest.entry.url.resolve() == fleet.url, "the credentials travelled"
        assert "s3cret" not in str(b.store.rows("SELECT document FROM camera_book")[0]["document"])
        origin = b.store.model(b.store.serving("a--gate")["a--gate"].id).config["origin"]
        assert origin["version"] == a.store.serving("gate")["gate"].id
        assert not any(b"s3cret" in data for data in fleet.post.parcels.values()), "the controller could read a parcel"
        before = len(a.told["gate"])
        fleet.move("a", "return")
        fleet.wait_told(a)
        fleet.judge(a, b)
        assert min(a.told["gate"][before:]) > max(b.told["gate"])
        fleet.controller.until(lambda: "a--gate" not in b.runtime.watched, "the guest is gone")
        fleet.controller.state = replace(fleet.controller.state, handoffs={})
        fleet.controller.until(lambda: not b.host.words(), "and forgotten")
        assert a.store.serving("gate")["gate"].id == "gate-000001", "the model that it had sent away itself is not taken twice"


def test_messages_get_lost_and_the_controller_begins_anew_in_every_round(
    tmp_path: Path, server: RtspServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_fakes_in_the_zoo(monkeypatch)
    fleet = Fleet(tmp_path, server)
    chance = random.Random(7)
    with fleet.a as a, fleet.b as b:
        fleet.wait_told(a)

        def lost(box: str, message: str) -> bool:
            fleet.controller.restart()
            return chance.random() < 0.6

        fleet.controller.lost = lost
        fleet.move("b")
        fleet.controller.lost = lambda box, message: False
        fleet.wait_told(b)
        fleet.judge(a, b)


def test_a_target_that_dies_leaves_the_camera_with_its_source(
    tmp_path: Path, server: RtspServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_fakes_in_the_zoo(monkeypatch)
    fleet = Fleet(tmp_path, server, HASTY)
    with fleet.a as a, fleet.b as b:
        fleet.wait_told(a)
        for phase in ("prepare", "warm", "switch"):
            fleet.post.away = phase == "prepare"
            fleet.controller.gone.clear()
            fleet.controller.move(GATE, "b")
            if phase != "prepare":
                fleet.controller.until(lambda phase=phase: fleet.controller.phase(GATE) == phase, phase)
            told = len(b.told.get("gate", ()))
            fleet.controller.gone.add("b")
            fleet.controller.until(lambda: fleet.controller.phase(GATE) == "undone", f"undone from {phase}")
            fleet.wait_told(a)
            fleet.judge(a)
            assert len(b.told.get("gate", ())) == told, "a box that was never told to told something"
            fleet.post.away = False
            fleet.controller.gone.clear()
            fleet.controller.until(lambda: "a--gate" not in b.runtime.watched, "the guest is let go when b is back")
            fleet.controller.state = replace(fleet.controller.state, handoffs={})


def test_a_box_that_was_restarted_alone_goes_on_with_its_guest_and_without_its_own_camera(
    tmp_path: Path, server: RtspServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_fakes_in_the_zoo(monkeypatch)
    fleet = Fleet(tmp_path, server)
    with fleet.a as a, fleet.b as b:
        fleet.wait_told(a)
        fleet.move("b")
        fleet.wait_told(b)
        fleet.controller.until(lambda: "gate" not in a.runtime.watched, "closed at home")
    # Both are started again, and no controller is there.
    with fleet.box("a", {"gate": fleet.url}) as a, fleet.box("b", {}) as b:
        b.wait(lambda: b.host.guests() == {"a--gate": GATE}, "b knows its guest")
        again = b.control.cameras().find("a--gate").entry
        b.runtime.ask(lambda: None)
        b.control.change(
            "a--gate", {"name": "again"}, by="test"
        )  # this box of tests does not open its book's cameras by itself
        b.wait(lambda: len(b.told.get("gate", ())) >= 5, "b tells of its guest")
        a.wait(lambda: "gate" not in a.runtime.watched, "a closes its camera again")
        assert a.told.get("gate", []) == [], "a told of a camera that it does not own"
        assert again.url.resolve() == fleet.url


def test_a_dead_boxs_camera_is_taken_over_and_goes_home_when_that_is_back(
    tmp_path: Path, server: RtspServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_fakes_in_the_zoo(monkeypatch)
    fleet = Fleet(tmp_path, server, HASTY)
    control = fleet.controller
    with fleet.b as b:
        with fleet.a as a:
            fleet.wait_told(a)
            control.plan = FleetRules(
                handoff=HASTY, settle_s=0.0, home_s=0.5, scores=PlacementRules(moves=0, balanced="share_pct")
            )
            control.until(lambda: [word.stage for word in b.host.words()] == ["standby"], "b stands by")
            assert "a--gate" not in b.runtime.watched, "who stands by opens nothing"
            fleet.post.away = True  # a dead box packs nothing, and nothing is fetched any more
            control.gone.add("a")
            del control.boxes["a"]
        control.until(lambda: len(b.told.get("gate", ())) >= 5, "b tells")
        assert control.state.leases[GATE].cause == "takeover"
        fleet.post.away = False
        with fleet.box("a", {"gate": fleet.url}) as again:
            control.boxes["a"] = again
            control.gone.clear()
            control.until(lambda: control.state.leases[GATE].box == "a" and control.phase(GATE) == "done", "it goes home")
            fleet.wait_told(again)
            control.until(lambda: "a--gate" not in b.runtime.watched, "the guest is gone")
            last = max(b.told["gate"])
            assert all(at_s > last for at_s in again.told["gate"][-5:])
