"""What was, for the fleet view: rounds, grants, performance, ways of cameras, alarms, boxes, who had what done. Kept KEPT_DAYS.

The statements are made here and carried out in the transaction of the step that they tell of (`FleetStore.commit`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from cluster.controller.belief import clock_words
from cluster.controller.database import FleetDatabase
from cluster.controller.services import AlarmRow, AuditRow, BoxRow, GrantRow, PerformanceRow, PlacementRow, RoundRow
from cluster.types import BoxView, Customer, FleetState, Grant, Handoff, Performance
from configs.errors import redact
from scheduler.fleet.types import CameraKey

KEPT_DAYS = 30.0
_TABLES = ("rounds", "grants", "performance", "placements", "box_history", "audit")
#: Rows of a table at most, whatever their age: a few hundred MB in all.
MOST_ROWS = 1_000_000
Row = tuple[str, tuple[Any, ...]]


# --- statements -------------------------------------------------------------------------------------------------------


def round_rows(
    number: int, at_utc_s: float, *, policy: str, capacity_pct: float, took_ms: float, reasons: Iterable[str],
    grants: Mapping[str, Grant],
) -> list[Row]:  # fmt: skip
    rows: list[Row] = [
        (
            "INSERT OR REPLACE INTO rounds VALUES (?, ?, ?, ?, ?, ?)",
            (number, at_utc_s, policy, capacity_pct, took_ms, json.dumps([*reasons])),
        )
    ]
    return rows + [
        (
            "INSERT OR REPLACE INTO grants VALUES (?, ?, ?, ?, ?, ?, ?)",
            (number, at_utc_s, g.customer, g.share_pct, g.demand_pct, g.predicted, g.reason),
        )
        for g in grants.values()
    ]


def performance_rows(found: Iterable[Performance], customers: Mapping[str, Customer]) -> list[Row]:
    sql = (
        "INSERT INTO performance (at_utc, customer, alloc_pct, load, value, sigma, goal, proxy) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
    )
    return [
        (sql, (p.end_utc_s, p.customer, p.alloc_pct, p.load, p.value, p.sigma,
               customers.get(p.customer, Customer(id=p.customer)).goal, int(p.proxy)))
        for p in found
    ]  # fmt: skip


def placement_rows(before: Mapping[CameraKey, Handoff], after: Mapping[CameraKey, Handoff]) -> list[Row]:
    """One per phase that a handoff has come to."""
    sql = (
        "INSERT OR IGNORE INTO placements (at_utc, camera, source, target, term, phase, cause, reason, problem)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
    )
    return [
        (sql, (h.phase_utc_s, str(key), h.source, h.target, h.term, h.phase, h.cause, h.reason, redact(h.problem)))
        for key, h in sorted(after.items())
        if before.get(key) != h
    ]


def box_rows(state: FleetState, at_utc_s: float) -> list[Row]:
    sql = "INSERT INTO box_history (at_utc, box, capacity_pct, spare_pct, cameras, mean_quality, online) VALUES (?, ?, ?, ?, ?, ?, ?)"
    return [(sql, (at_utc_s, *_box_row(view))) for _, view in sorted(state.boxes.items())]


def _box_row(view: BoxView) -> tuple[Any, ...]:
    measured = [camera.quality for camera in view.cameras if camera.quality is not None]
    mean = sum(measured) / len(measured) if measured else None
    spare_pct = view.report.spare_pct if view.report is not None else 0.0
    return (view.id, view.capacity_pct, spare_pct, len(view.cameras), mean, int(view.online))


def alarms_of(state: FleetState) -> frozenset[tuple[str, str]]:
    """(box, sentence) of all that is wrong now. Sentences hold no number that changes by itself."""
    found = set()
    for box, view in state.boxes.items():
        if not view.online:
            found.add((box, "it is offline" if view.report is not None else "it has not reported since it joined"))
        found.update((box, doubt) for doubt in view.doubts)
        if clock_words(view.offset_s):
            found.add((box, f"its clock is {'ahead of' if view.offset_s > 0 else 'behind'} the controller's"))
        if view.report is not None:
            found.update((box, redact(text)[:500]) for text in view.report.alarms)
            found.update((box, redact(text)[:500]) for text in view.report.confirmation.problems)
    for key, handoff in state.handoffs.items():
        if handoff.phase == "undone":
            found.add((handoff.source, f"{key} could not go to {handoff.target}: {handoff.problem}"))
    return frozenset(found)


def alarm_rows(before: frozenset[tuple[str, str]], after: frozenset[tuple[str, str]], at_utc_s: float) -> list[Row]:
    began = [
        ("INSERT OR IGNORE INTO alarms (box, text, began_utc) VALUES (?, ?, ?)", (*alarm, at_utc_s))
        for alarm in sorted(after - before)
    ]
    ended = [
        ("UPDATE alarms SET ended_utc = ? WHERE box = ? AND text = ? AND ended_utc IS NULL", (at_utc_s, *alarm))
        for alarm in sorted(before - after)
    ]
    return began + ended


def audit_row(at_utc_s: float, by: str, action: str, subject: str, text: str = "") -> Row:
    sql = "INSERT INTO audit (at_utc, by, action, subject, text) VALUES (?, ?, ?, ?, ?)"
    return (sql, (at_utc_s, by, action, subject, redact(text)))


def prune_rows(now_utc_s: float) -> list[Row]:
    """What is too old goes."""
    before_s = now_utc_s - KEPT_DAYS * 86_400.0
    old: list[Row] = [(f"DELETE FROM {table} WHERE at_utc < ?", (before_s,)) for table in _TABLES]
    many: list[Row] = [
        (f"DELETE FROM {table} WHERE number <= (SELECT max(number) FROM {table}) - ?", (MOST_ROWS,))
        for table in ("performance", "placements", "box_history", "audit")
    ]
    return [*old, *many, ("DELETE FROM alarms WHERE ended_utc < ?", (before_s,))]


# --- asking -----------------------------------------------------------------------------------------------------------


class FleetHistory:
    """`services.History` over the database."""

    def __init__(self, db: FleetDatabase) -> None:
        self._db = db

    def rounds(self, *, since_utc_s: float = 0.0, limit: int = 500) -> list[RoundRow]:
        rows = self._db.rows("SELECT * FROM rounds WHERE at_utc >= ? ORDER BY round DESC LIMIT ?", (since_utc_s, limit))
        return [
            RoundRow(
                round=r["round"], at_utc_s=r["at_utc"], policy=r["policy"], capacity_pct=r["capacity_pct"], took_ms=r["took_ms"],
                reasons=tuple(json.loads(r["reasons"])),
            )
            for r in rows
        ]  # fmt: skip

    def grants(self, *, customer: str = "", since_utc_s: float = 0.0, limit: int = 2000) -> list[GrantRow]:
        rows = self._found("grants", "customer", customer, since_utc_s, limit, order="round DESC, customer")
        return [
            GrantRow(
                round=r["round"], at_utc_s=r["at_utc"], customer=r["customer"], share_pct=r["share_pct"], demand_pct=r["demand_pct"],
                predicted=r["predicted"], reason=r["reason"],
            )
            for r in rows
        ]  # fmt: skip

    def performance(self, *, customer: str = "", since_utc_s: float = 0.0, limit: int = 2000) -> list[PerformanceRow]:
        rows = self._found("performance", "customer", customer, since_utc_s, limit)
        return [
            PerformanceRow(
                at_utc_s=r["at_utc"], customer=r["customer"], alloc_pct=r["alloc_pct"], load=r["load"], value=r["value"],
                sigma=r["sigma"], goal=r["goal"], proxy=bool(r["proxy"]),
            )
            for r in rows
        ]  # fmt: skip

    def placements(self, *, camera: CameraKey | None = None, since_utc_s: float = 0.0, limit: int = 500) -> list[PlacementRow]:
        rows = self._found("placements", "camera", str(camera or ""), since_utc_s, limit)
        return [
            PlacementRow(
                at_utc_s=r["at_utc"], camera=CameraKey.parse(r["camera"]), source=r["source"], target=r["target"], term=r["term"],
                phase=r["phase"], cause=r["cause"], reason=r["reason"], problem=r["problem"],
            )
            for r in rows
        ]  # fmt: skip

    def alarms(self, *, open_only: bool = False, since_utc_s: float = 0.0, limit: int = 500) -> list[AlarmRow]:
        sql = (
            "SELECT * FROM alarms WHERE (ended_utc IS NULL OR NOT ?) AND (began_utc >= ? OR ended_utc IS NULL)"
            " ORDER BY began_utc DESC, number DESC LIMIT ?"
        )
        rows = self._db.rows(sql, (open_only, since_utc_s, limit))
        return [AlarmRow(box=r["box"], text=r["text"], began_utc_s=r["began_utc"], ended_utc_s=r["ended_utc"]) for r in rows]

    def boxes(self, *, box: str = "", since_utc_s: float = 0.0, limit: int = 2000) -> list[BoxRow]:
        rows = self._found("box_history", "box", box, since_utc_s, limit)
        return [
            BoxRow(
                at_utc_s=r["at_utc"], box=r["box"], capacity_pct=r["capacity_pct"], spare_pct=r["spare_pct"], cameras=r["cameras"],
                mean_quality=r["mean_quality"], online=bool(r["online"]),
            )
            for r in rows
        ]  # fmt: skip

    def audit(self, *, limit: int = 500) -> list[AuditRow]:
        rows = self._db.rows("SELECT * FROM audit ORDER BY number DESC LIMIT ?", (limit,))
        return [
            AuditRow(at_utc_s=r["at_utc"], by=r["by"], action=r["action"], subject=r["subject"], text=r["text"]) for r in rows
        ]

    def _found(
        self, table: str, column: str, value: str, since_utc_s: float, limit: int, *, order: str = "number DESC"
    ) -> list[Any]:
        sql = f"SELECT * FROM {table} WHERE (?1 = '' OR {column} = ?1) AND at_utc >= ?2 ORDER BY {order} LIMIT ?3"
        return self._db.rows(sql, (value, since_utc_s, limit))
