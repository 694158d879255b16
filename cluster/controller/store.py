"""What a controller must not forget, in `fleet.db`: the fleet's state, what was wished of each box, Cilantro's memory, the owner's
wishes that it has not acted on yet.

`commit` writes one step of the controller whole or not at all, and only while its term is the highest. What is told to a box was
committed before; so whatever is killed when, a restart finds a state and wishes that belong together.

Reports are news, not decisions: the newest of each box is written from time to time (`checkpoint`), so that a restart knows who is
there, and with it the number of the last believed message.
"""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from cluster.cilantro.allocator import AllocatorState
from cluster.controller.belief import Voice
from cluster.controller.database import FleetDatabase
from cluster.controller.inbox import Waiting, taken, waiting
from cluster.controller.reduce import Known, reduce
from cluster.controller.services import ControllerRow, ControllerStatus
from cluster.rollouts.types import Rollout
from cluster.types import BoxView, CameraLease, Customer, FleetState, Grant, GroupWeight, Handoff, SitePlace
from configs.errors import UsageError
from scheduler.fleet.codec import as_dict, decode
from scheduler.fleet.types import BoxReport, CameraKey, Desired, ModelOffer

log = logging.getLogger(__name__)

#: A controller that has told nothing for so long is not there any more; its row goes after a day.
ROW_LASTS_S, ROW_KEPT_S = 15.0, 86_400.0


@dataclass(frozen=True, kw_only=True)
class Kept:
    """All of it. told: the newest wish of each box; round: number of the newest; round_utc_s: when it was; acted: number of the newest
    of the owner's wishes that was acted on; version: highest that a wish has had."""

    known: Known = field(default_factory=Known)
    told: Mapping[str, Desired] = field(default_factory=dict)
    allocator: AllocatorState = field(default_factory=AllocatorState)
    round: int = 0
    round_utc_s: float = 0.0
    acted: int = 0
    version: int = 0


class FleetStore:
    """Over a `FleetDatabase`. Raises StorageError, and NotInCharge from `commit`."""

    def __init__(self, db: FleetDatabase) -> None:
        self.db = db

    def load(self) -> Kept:
        """What was kept. A report that this release cannot read any more is forgotten: the box sends another in seconds."""
        areas: dict[str, dict[str, Any]] = {}
        for row in self.db.rows("SELECT area, id, body FROM state"):
            areas.setdefault(row["area"], {})[row["id"]] = json.loads(row["body"])
        meta = areas.get("meta", {})
        boxes = {id: _box(body) for id, body in areas.get("box", {}).items()}
        state = FleetState(
            customers=_all(Customer, areas, "customer"), boxes=boxes, leases=_by_camera(CameraLease, areas, "lease"),
            handoffs=_by_camera(Handoff, areas, "handoff"), grants=_all(Grant, areas, "grant"),
            rollouts=_all(Rollout, areas, "rollout"), sites=_all(SitePlace, areas, "site"),
            groups=_all(GroupWeight, areas, "group"), collects=areas.get("collect", {}),
            offers={id: tuple(decode(ModelOffer, one) for one in body) for id, body in areas.get("offers", {}).items()},
        )  # fmt: skip
        told = _all(Desired, areas, "desired")
        voices = {id: tuple(decode(Voice, one) for one in body) for id, body in areas.get("voices", {}).items()}
        known = Known(state=state, voices=voices, wished={box: wish.order for box, wish in told.items()})
        return Kept(
            known=known, told=told, allocator=_allocator(areas.get("allocator", {}).get("one")), round=meta.get("round", 0),
            round_utc_s=meta.get("round_utc_s", 0.0), acted=meta.get("acted", 0), version=meta.get("version", 0),
        )  # fmt: skip

    def commit(self, before: Kept, after: Kept, *, checkpoint: bool, rows: Iterable[tuple[str, tuple[Any, ...]]] = ()) -> None:
        """Writes what differs. rows: statements for the history. checkpoint: also what boxes reported."""
        changes = [*_changes(before, after, checkpoint=checkpoint)]
        rows = list(rows)
        if not (changes or rows):
            return
        with self.db.transaction(term=after.known.state.term) as db:
            for area, id, body in changes:
                _write(db, area, id, body)
            for sql, values in rows:
                db.execute(sql, values)
            taken(db, after.acted)

    def open_alarms(self) -> frozenset[tuple[str, str]]:
        """(box, sentence) of those that have not ended."""
        return frozenset((r["box"], r["text"]) for r in self.db.rows("SELECT box, text FROM alarms WHERE ended_utc IS NULL"))

    def tell_controller(self, status: ControllerStatus) -> None:
        """Writes down how a controller is, in charge or not: for commands, and so that one is seen to stand by."""
        with self.db.transaction() as db:
            db.execute("DELETE FROM controllers WHERE at_utc < ?", (status.now_utc_s - ROW_KEPT_S,))
            values = (status.id, status.now_utc_s, json.dumps(as_dict(status)))
            db.execute("INSERT OR REPLACE INTO controllers VALUES (?, ?, ?)", values)

    def forget_controller(self, id: str) -> None:
        with self.db.transaction() as db:
            db.execute("DELETE FROM controllers WHERE id = ?", (id,))

    def controllers(self, now_utc_s: float) -> list[ControllerRow]:
        """Those that told lately; who is in charge first."""
        sql = "SELECT * FROM controllers WHERE at_utc > ? ORDER BY id"
        rows = [
            ControllerRow(id=row["id"], at_utc_s=row["at_utc"], status=decode(ControllerStatus, json.loads(row["body"])))
            for row in self.db.rows(sql, (now_utc_s - ROW_LASTS_S,))
        ]
        return sorted(rows, key=lambda row: not row.status.in_charge)

    def known(self) -> Known:
        """For commands: what was kept, with what waits already taken in."""
        kept = self.load()
        return self.with_waiting(kept.known, kept.acted)

    def with_waiting(self, known: Known, acted: int) -> Known:
        """`known` as it will be when the controller has acted on what waits."""
        for one in self.waiting(acted):
            with suppress(UsageError):
                known = reduce(known, one.event)
        return known

    def waiting(self, after: int) -> list[Waiting]:
        """The owner's wishes, and joins, that were written down since."""
        return waiting(self.db, after)


def _write(db: sqlite3.Connection, area: str, id: str, body: object) -> None:
    if body is None:
        db.execute("DELETE FROM state WHERE area = ? AND id = ?", (area, id))
    else:
        text = json.dumps(body, separators=(",", ":"), allow_nan=False)
        db.execute("INSERT OR REPLACE INTO state VALUES (?, ?, ?)", (area, id, text))


# --- what differs -----------------------------------------------------------------------------------------------------


def _changes(before: Kept, after: Kept, *, checkpoint: bool) -> Iterable[tuple[str, str, object]]:
    old, new = before.known.state, after.known.state
    pairs: list[tuple[str, Mapping[Any, Any], Mapping[Any, Any]]] = [
        ("customer", old.customers, new.customers), ("lease", old.leases, new.leases), ("handoff", old.handoffs, new.handoffs),
        ("grant", old.grants, new.grants), ("rollout", old.rollouts, new.rollouts), ("offers", old.offers, new.offers),
        ("collect", old.collects, new.collects), ("site", old.sites, new.sites), ("group", old.groups, new.groups),
        ("desired", before.told, after.told),
    ]  # fmt: skip
    for area, was, now in pairs:
        yield from _differences(area, was, now)
    yield from _boxes(old.boxes, new.boxes, checkpoint=checkpoint)
    if checkpoint:
        for id in after.known.voices:
            yield "voices", id, [as_dict(voice) for voice in after.known.voices[id]]
    for id in before.known.voices.keys() - after.known.voices.keys():
        yield "voices", id, None
    if after.allocator is not before.allocator:
        yield "allocator", "one", after.allocator.as_dict()
    for name in ("round", "round_utc_s", "acted", "version"):
        if getattr(before, name) != getattr(after, name):
            yield "meta", name, getattr(after, name)


def _differences(area: str, was: Mapping[Any, Any], now: Mapping[Any, Any]) -> Iterable[tuple[str, str, object]]:
    if was is now:
        return
    for key, value in now.items():
        if was.get(key) is not value and was.get(key) != value:
            yield area, str(key), _body(value)
    for key in was.keys() - now.keys():
        yield area, str(key), None


def _boxes(was: Mapping[str, BoxView], now: Mapping[str, BoxView], *, checkpoint: bool) -> Iterable[tuple[str, str, object]]:
    for id, view in now.items():
        before = was.get(id)
        if checkpoint or before is None or _lasting(before) != _lasting(view):
            yield "box", id, as_dict(view)
    for id in was.keys() - now.keys():
        yield "box", id, None


def _lasting(view: BoxView) -> tuple[object, ...]:
    return (view.site, view.joined_utc_s, view.draining, view.enrolled_pct)


def _body(value: object) -> object:
    if isinstance(value, tuple):
        return [as_dict(one) for one in value]
    return value if isinstance(value, str) else as_dict(value)


# --- reading ----------------------------------------------------------------------------------------------------------


def _all(cls: type[Any], areas: Mapping[str, Mapping[str, Any]], area: str) -> dict[str, Any]:
    return {id: decode(cls, body) for id, body in areas.get(area, {}).items()}


def _by_camera(cls: type[Any], areas: Mapping[str, Mapping[str, Any]], area: str) -> dict[CameraKey, Any]:
    return {CameraKey.parse(id): decode(cls, body) for id, body in areas.get(area, {}).items()}


def _box(body: dict[str, Any]) -> BoxView:
    try:
        if body.get("report") is not None:
            decode(BoxReport, body["report"])
        view = decode(BoxView, body)
    except UsageError as error:
        log.warning("the last report of box %s is forgotten: %s", body.get("id"), error.message)
        view = decode(BoxView, body | {"report": None})
    return view


def _allocator(body: dict[str, Any] | None) -> AllocatorState:
    try:
        return AllocatorState.from_dict(body) if body is not None else AllocatorState()
    except UsageError as error:
        log.warning("%s: %s", error.message, error.remedy)
        return AllocatorState()
