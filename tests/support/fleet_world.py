"""A controller, boxes and a broker in virtual time: everything of `cluster.controller.core` is real but the wire and the clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from cluster.controller.authority import Authority
from cluster.controller.core import Controller, Parts
from cluster.controller.database import FleetDatabase
from cluster.controller.events import BoxJoined
from cluster.controller.history import FleetHistory
from cluster.controller.inbox import put
from cluster.controller.lease import LeaseKeeper, SqliteLeases
from cluster.controller.live import FleetActions
from cluster.controller.membership import Membership
from cluster.controller.parcels import Parcels
from cluster.controller.round import RoundRules
from cluster.controller.store import FleetStore
from cluster.placement.plan import FleetRules
from scheduler.fleet.codec import decode, encode
from scheduler.fleet.types import Desired
from scheduler.videostorm.placement import PlacementRules
from tests.support.fleet_boxes import ToyBox, ToyBroker, ToyLink

#: Years ago: a command that looks by this machine's clock finds an old lease.
BEGIN_S = 1_700_000_000.0
#: Without standbys, and without moves that merely pay: a handoff more does not blur what a test looks at.
RULES = RoundRules(round_s=20.0, placement=FleetRules(standby=False, scores=PlacementRules(balanced="share_pct", moves=0)))


class Killed(BaseException):
    """The controller's process is no more."""


class World:
    """now_s: its time. `tick` lets a second pass: boxes hear and report, the controller steps."""

    def __init__(self, folder: Path, boxes: Iterable[ToyBox] = (), *, rules: RoundRules = RULES) -> None:
        self.folder, self.rules, self.now_s = folder, rules, BEGIN_S
        self.broker = ToyBroker()
        self.boxes: dict[str, ToyBox] = {}
        self.parcels: set[str] = set()
        self.db = FleetDatabase(folder / "fleet.db")
        self.heard: dict[str, int] = {}
        self.starts = 0
        self.silent: set[str] = set()
        self.link: ToyLink
        self.controller: Controller
        self.start()
        for box in boxes:
            self.join(box)

    def join(self, box: ToyBox, *, enrolled_pct: float | None = None) -> None:
        self.boxes[box.id] = box
        box.pack = self.parcels.add
        with self.db.transaction() as db:
            event = BoxJoined(box=box.id, site=box.site, at_utc_s=self.now_s, capacity_pct=enrolled_pct or box.capacity_pct)
            put(db, event, at_utc_s=self.now_s)

    def start(
        self, *, store: Callable[[FleetStore], Any] = lambda store: store, link: Callable[[ToyLink], Any] = lambda link: link
    ) -> None:
        """A controller, in the place of the one before."""
        if self.starts:
            self.broker.drop(self.link)
        self.starts += 1
        self.link = self.broker.link()
        self.controller = self.another(f"c{self.starts:03d}", self.link, store=store, wrap=link)

    def another(
        self, id: str, link: ToyLink, *, db: FleetDatabase | None = None, store: Callable[[FleetStore], Any] = lambda store: store,
        wrap: Callable[[ToyLink], Any] = lambda link: link,
    ) -> Controller:  # fmt: skip
        """A second controller beside, on the same database or another."""
        used = db or self.db
        keeper = LeaseKeeper(SqliteLeases(used, lambda: self.now_s), id, lambda: self.now_s)
        parts = Parts(
            store=store(FleetStore(used)), lease=keeper, link=wrap(link), utc_s=lambda: self.now_s, monotonic_s=lambda: self.now_s,
            parcels=lambda: frozenset(self.parcels), rules=self.rules,
        )  # fmt: skip
        return Controller(parts)

    def actions(self) -> FleetActions:
        authority = Authority(self.folder / "ca", now_utc_s=self.now_s)
        return FleetActions(
            self.db, Membership(self.db, authority), Parcels(self.folder), known=FleetStore(self.db).known,
            utc_s=lambda: self.now_s,
        )  # fmt: skip

    @property
    def history(self) -> FleetHistory:
        return FleetHistory(self.db)

    # --- time ---------------------------------------------------------------------------------------------------------

    def tick(self, seconds: int = 1, *, step: bool = True) -> None:
        for _ in range(seconds):
            self.now_s += 1.0
            self.boxes_act()
            if step:
                self.controller.step()

    def boxes_act(self) -> None:
        for id, box in sorted(self.boxes.items()):
            if id in self.silent:
                continue
            self._hear(box)
            self.broker.say(f"{box.site}/{id}/report", encode(box.report(self.now_s)), retain=False)

    def _hear(self, box: ToyBox) -> None:
        """Everything said to it since it listened last, in order."""
        topic = f"{box.site}/{box.id}/desired"
        for said, payload in self.broker.said[self.heard.get(box.id, 0) :]:
            if said == topic:
                box.receive(payload, self.now_s)
        self.heard[box.id] = len(self.broker.said)

    # --- what must always hold ----------------------------------------------------------------------------------------

    def wishes_said(self) -> list[Desired]:
        return [decode(Desired, payload) for topic, payload in self.broker.said if topic.endswith("/desired") and payload]

    def check(self) -> None:
        """No version goes back at the broker, none means two things, no camera has two owners, none has nobody."""
        newest: dict[str, tuple[int, int]] = {}
        meaning: dict[tuple[str, int, int], Desired] = {}
        for wish in self.wishes_said():
            assert wish.order >= newest.get(wish.box, (0, 0)), f"{wish.box}: {wish.order} after {newest[wish.box]}"
            newest[wish.box] = wish.order
            bare = replace(wish, made_utc="", expires_utc="")
            assert meaning.setdefault((wish.box, *wish.order), bare) == bare, f"two wishes are called {wish.order}"
        owners = [key for id, box in self.boxes.items() if id not in self.silent for key in box.watched()]
        assert len(owners) == len(set(owners)), f"two boxes own a camera: {sorted(owners)}"
