"""What the fleet view shows, as plain dicts. Pure: a fleet's state, the controller's status and what is open in, JSON values out.

`fleet_view` is the part that pages follow live (`edge.web.live` sends what changed): about 400 bytes a box, no camera by itself unless
it is somewhere else than at home. Cameras come by page (`camera_rows`), a customer's course by `course`. Times are seconds since 1970
on the controller's clock; how long ago something was is counted by the browser: nothing changes only because time passes.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from cluster.controller.feedback import cameras_by_customer, performances
from cluster.controller.services import AlarmRow, ControllerStatus, GrantRow, PerformanceRow
from cluster.placement.sight import UNDER_WAY, lease_of
from cluster.rollouts.rules import boxes_of_step, waiting_for
from cluster.rollouts.types import Rollout
from cluster.types import BoxView, CameraLease, Customer, FleetState, Performance
from scheduler.fleet.types import CameraKey, CameraReport

SCHEMA = 1
#: A box that has said nothing for so long is shown as silent, though its connection stands.
SILENT_S = 30.0
#: Versions, and decisions of a rollout, that are listed.
MOST_VERSIONS, MOST_DECISIONS = 50, 30
#: Handoffs and cameras away from home that are listed; more are counted.
MOST_PLACED = 500
#: Points of a course.
MOST_POINTS = 300

View = dict[str, Any]


def fleet_view(
    state: FleetState, status: ControllerStatus, *, alarms: Sequence[AlarmRow] = (), now_utc_s: float, software: str = ""
) -> View:
    """The whole of what is followed live."""
    by_customer = cameras_by_customer(state)
    got = {p.customer: p for p in performances(state, wished={}, now_utc_s=now_utc_s, fresh_s=math.inf)}
    guests = _guests(state)
    boxes = [_box_row(view, guests.get(id, 0), now_utc_s) for id, view in sorted(state.boxes.items())]
    known = {**{id: Customer(id=id) for id in by_customer}, **state.customers}
    counts = {id: len(seen) for id, seen in by_customer.items()}
    customers = [_customer_row(state, known[id], counts.get(id, 0), got.get(id), id in state.customers) for id in sorted(known)]
    return {
        "schema_version": SCHEMA,
        "software": software,
        "controller": _controller(status),
        "totals": _totals(state, boxes, customers, got),
        "boxes": boxes,
        "sites": _sites(state, boxes),
        "customers": customers,
        "handoffs": _handoffs(state),
        "placements": _placements(state),
        "rollouts": [_rollout_row(rollout, state, now_utc_s) for _, rollout in sorted(state.rollouts.items())],
        "models": _models(state),
        "alarms": _alarms(state, alarms, status),
    }


def box_view(state: FleetState, box: str, now_utc_s: float) -> View | None:
    """One box with its cameras; None: it is not in the fleet."""
    view = state.boxes.get(box)
    if view is None:
        return None
    report = view.report
    shares = [
        {"customer": id, "share_pct": round(grant.by_box[box], 1)}
        for id, grant in sorted(state.grants.items())
        if box in grant.by_box
    ]
    return {
        **_box_row(view, _guests(state).get(box, 0), now_utc_s),
        "joined_utc": view.joined_utc_s,
        "last_heard_utc": view.seen_utc_s or None,
        "networks": list(report.networks) if report else [],
        "memory_mib": report.memory_mib if report else None,
        "applied": [report.confirmation.term, report.confirmation.version] if report else None,
        "refused": report.confirmation.refused if report else "",
        "problems": list(report.confirmation.problems) if report else [],
        "shares": shares,
        "camera_rows": camera_rows(state, box=box)["rows"],
    }


def camera_rows(
    state: FleetState, *, box: str = "", customer: str = "", moved: bool = False, offset: int = 0, limit: int = 200
) -> View:
    """Cameras by name, each once, as its owner tells of it. moved: only those that are away from home, pinned or on their way."""
    found = []
    for id, view in sorted(state.boxes.items()):
        for report in view.cameras:
            lease = lease_of(state, report.camera)
            if lease.box != id or (box and id != box) or (customer and report.customer != customer):
                continue
            if moved and not _is_placed(lease) and report.camera not in state.handoffs:
                continue
            found.append((report, lease))
    found.sort(key=lambda one: one[0].camera)
    rows = [_camera_row(state, report, lease) for report, lease in found[offset : offset + limit]]
    return {"rows": rows, "total": len(found), "offset": offset}


def course(performance: Iterable[PerformanceRow], grants: Iterable[GrantRow], *, most: int = MOST_POINTS) -> View:
    """A customer's course, oldest first: [utc, value] of its measure, with the goal it had; [utc, pct] of what it was promised, thought
    to need, and received. Where there are more than `most` points, means of equal stretches of time."""
    rows, given = sorted(performance, key=lambda r: r.at_utc_s), sorted(grants, key=lambda r: r.at_utc_s)
    return {
        "value": thinned([(r.at_utc_s, r.value) for r in rows if not r.proxy], most),
        "stand_in": thinned([(r.at_utc_s, r.value) for r in rows if r.proxy], most),
        "goal": thinned([(r.at_utc_s, r.goal) for r in rows], most),
        "received_pct": thinned([(r.at_utc_s, r.alloc_pct) for r in rows], most),
        "promised_pct": thinned([(r.at_utc_s, r.share_pct) for r in given], most),
        "demand_pct": thinned([(r.at_utc_s, r.demand_pct) for r in given if r.demand_pct is not None], most),
        "predicted": thinned([(r.at_utc_s, r.predicted) for r in given if r.predicted is not None], most),
        "reason": given[-1].reason if given else "",
    }


def thinned(points: Sequence[tuple[float, float]], most: int) -> list[list[float]]:
    """At most `most` points, in order of time: all of them, or the means of `most` equal stretches (empty ones are left out)."""
    if len(points) <= most:
        return [[t, round(v, 4)] for t, v in points]
    low, high = points[0][0], points[-1][0]
    stretches: defaultdict[int, list[tuple[float, float]]] = defaultdict(list)
    for t, v in points:
        stretches[min(most - 1, int(most * (t - low) / max(high - low, 1e-9)))].append((t, v))
    return [
        [statistics.fmean(t for t, _ in part), round(statistics.fmean(v for _, v in part), 4)]
        for _, part in sorted(stretches.items())
    ]


# --- boxes and sites --------------------------------------------------------------------------------------------------


def _guests(state: FleetState) -> dict[str, int]:
    """Cameras of other boxes, by the box that watches them."""
    found: dict[str, int] = {}
    for lease in state.leases.values():
        if lease.box != lease.camera.home:
            found[lease.box] = found.get(lease.box, 0) + 1
    return found


def box_state(view: BoxView, now_utc_s: float) -> str:
    """One word: new (never reported), away, silent, doubted, alarm, draining, well."""
    if view.report is None:
        return "new"
    if not view.online:
        return "away"
    if now_utc_s - view.seen_utc_s > SILENT_S:
        return "silent"
    if view.doubts:
        return "doubted"
    if view.report.alarms:
        return "alarm"
    return "draining" if view.draining else "well"


def _box_row(view: BoxView, guests: int, now_utc_s: float) -> View:
    report, state = view.report, box_state(view, now_utc_s)
    measured = [camera.quality for camera in view.cameras if camera.quality is not None]
    return {
        "id": view.id,
        "site": view.site,
        "state": state,
        "online": view.online,
        # While it is heard every few seconds nobody needs to know when.
        "seen_utc": view.seen_utc_s if state in ("away", "silent") else None,
        "draining": view.draining,
        "software": report.software if report else "",
        "capacity_pct": view.capacity_pct,
        "spare_pct": round(report.spare_pct, 1) if report else 0.0,
        "received_pct": round(sum(camera.got_pct for camera in view.cameras), 1),
        "cameras": len(view.cameras),
        "live": sum(camera.state == "live" for camera in view.cameras),
        "guests": guests,
        "quality": _mean(measured),
        "clock_off_s": round(view.offset_s) if abs(view.offset_s) >= 2 else 0,
        "alarms": list(report.alarms) if report else [],
        "doubts": list(view.doubts),
    }


def _sites(state: FleetState, boxes: Sequence[View]) -> list[View]:
    by_site: defaultdict[str, list[View]] = defaultdict(list)
    for row in boxes:
        by_site[row["site"]].append(row)
    found = []
    for site in sorted({*by_site, *state.sites}):
        place, rows = state.sites.get(site), by_site[site]
        found.append(
            {
                "id": site,
                "name": place.name if place else "",
                "latitude_deg": place.latitude_deg if place else None,
                "longitude_deg": place.longitude_deg if place else None,
                "boxes": len(rows),
                "well": sum(row["state"] in ("well", "draining") for row in rows),
                "cameras": sum(row["cameras"] for row in rows),
                "capacity_pct": sum(row["capacity_pct"] for row in rows),
                "received_pct": round(sum(row["received_pct"] for row in rows), 1),
            }
        )
    return found


# --- customers --------------------------------------------------------------------------------------------------------


def _customer_row(state: FleetState, customer: Customer, cameras: int, got: Performance | None, known: bool) -> View:
    grant = state.grants.get(customer.id)
    value = None if got is None or got.proxy else round(got.value, 3)
    return {
        "id": customer.id,
        "known": known,
        "name": customer.name,
        "goal": customer.goal,
        "measure": customer.measure,
        "utility": customer.utility,
        "weight": customer.weight,
        "path": list(customer.path),
        "stated_pct": customer.stated_pct,
        "at_least_pct": customer.at_least_pct,
        "cameras": cameras,
        "value": value,
        "stand_in": round(got.value, 3) if got is not None and got.proxy else None,
        "met": None if value is None else value >= customer.goal,
        "received_pct": round(got.alloc_pct, 1) if got else 0.0,
        "load_fps": round(got.load, 1) if got else 0.0,
        "promised_pct": round(grant.share_pct, 1) if grant else None,
        "demand_pct": None if grant is None or grant.demand_pct is None else round(grant.demand_pct, 1),
        "predicted": None if grant is None or grant.predicted is None else round(grant.predicted, 3),
        "on_boxes": len(grant.by_box) if grant else 0,
        "reason": grant.reason if grant else "",
    }


# --- cameras ----------------------------------------------------------------------------------------------------------


def _is_placed(lease: CameraLease) -> bool:
    return lease.box != lease.camera.home or lease.pinned


def _camera_row(state: FleetState, report: CameraReport, lease: CameraLease) -> View:
    handoff = state.handoffs.get(report.camera)
    return {
        "camera": str(report.camera),
        "name": report.name,
        "customer": report.customer,
        "state": report.state,
        "box": lease.box,
        "home": report.camera.home,
        "standby": lease.standby,
        "pinned": lease.pinned,
        "why": lease.cause or ("watched at home" if lease.box == report.camera.home else ""),
        "moving": handoff.phase if handoff is not None and handoff.phase in UNDER_WAY else "",
        "quality": report.quality,
        "finish_frac": report.finish_frac,
        "fps": report.fps,
        "demand_pct": round(report.demand_pct, 1),
        "received_pct": round(report.got_pct, 1),
        "version": report.version,
        "arch": report.arch,
        "consent": report.consent,
    }


def _placements(state: FleetState) -> View:
    """Cameras that are not simply watched at home. "standbys": how many others have one standing by."""
    placed = sorted((lease for lease in state.leases.values() if _is_placed(lease)), key=lambda lease: lease.camera)
    rows = [
        {
            "camera": str(lease.camera), "box": lease.box, "home": lease.camera.home, "standby": lease.standby, "pinned": lease.pinned,
            "term": lease.term, "since_utc": lease.since_utc_s, "why": lease.cause,
        }
        for lease in placed[:MOST_PLACED]
    ]  # fmt: skip
    return {"rows": rows, "total": len(placed), "standbys": sum(bool(lease.standby) for lease in state.leases.values())}


def _handoffs(state: FleetState) -> list[View]:
    under_way = [h for h in state.handoffs.values() if h.phase in UNDER_WAY]
    return [
        {
            "camera": str(h.camera), "source": h.source, "target": h.target, "phase": h.phase, "cause": h.cause, "reason": h.reason,
            "began_utc": h.began_utc_s, "phase_utc": h.phase_utc_s, "problem": h.problem,
        }
        for h in sorted(under_way, key=lambda h: (h.began_utc_s, h.camera))[:MOST_PLACED]
    ]  # fmt: skip


# --- models and rollouts ----------------------------------------------------------------------------------------------


def _models(state: FleetState) -> View:
    """Versions in use, the most used first."""
    by_version: defaultdict[tuple[str, str], list[CameraReport]] = defaultdict(list)
    for view in state.boxes.values():
        for camera in view.cameras:
            if camera.version:
                by_version[camera.version, camera.arch].append(camera)
    rows: list[View] = [
        {
            "version": version, "arch": arch, "cameras": len(used),
            "quality": _mean([c.quality for c in used if c.quality is not None]),
        }
        for (version, arch), used in sorted(by_version.items(), key=lambda item: (-len(item[1]), item[0]))
    ]  # fmt: skip
    by_arch: defaultdict[str, int] = defaultdict(int)
    for row in rows:
        by_arch[row["arch"]] += row["cameras"]
    return {"rows": rows[:MOST_VERSIONS], "total": len(rows), "by_arch": dict(sorted(by_arch.items()))}


def _rollout_row(rollout: Rollout, state: FleetState, now_utc_s: float) -> View:
    return {
        "id": rollout.id,
        "name": rollout.name,
        "state": rollout.state,
        "step": rollout.step,
        "steps_pct": [round(100 * frac, 1) for frac in rollout.rules.steps_frac],
        "boxes_offered": len(boxes_of_step(rollout, rollout.step)),
        "boxes": len(rollout.boxes),
        "counts": rollout.counts(),
        "begun_utc": rollout.begun_utc_s,
        "waiting_for": waiting_for(rollout, state, now_utc_s),
        "reason": rollout.reason,
        "decisions": [
            {"at_utc": d.at_utc_s, "what": d.what, "reason": d.reason, "by": d.by}
            for d in reversed(rollout.decisions[-MOST_DECISIONS:])
        ],
    }


# --- the whole --------------------------------------------------------------------------------------------------------


def _controller(status: ControllerStatus) -> View:
    return {
        "id": status.id,
        "in_charge": status.in_charge,
        "term": status.term,
        "reason": status.reason,
        "broker_up": status.broker_up,
        "broker": status.broker,
        "since_utc": status.since_utc_s,
        "last_round_utc": status.last_round_s or None,
        "round_took_ms": round(status.round_took_ms, 1),
        "version": status.version,
        "lease": status.lease,
        "engine": asdict(status.engine),
    }


def _totals(state: FleetState, boxes: Sequence[View], customers: Sequence[View], got: Mapping[str, Performance]) -> View:
    qualities = [c.quality for view in state.boxes.values() for c in view.cameras if c.quality is not None]
    judged = [row for row in customers if row["met"] is not None]
    there = [row for row in boxes if row["state"] not in ("new", "away", "silent")]
    return {
        "boxes": len(boxes),
        "there": len(there),
        "cameras": sum(row["cameras"] for row in boxes),
        "live": sum(row["live"] for row in there),
        "capacity_pct": round(sum(row["capacity_pct"] for row in there), 1),
        "promised_pct": round(sum(grant.share_pct for grant in state.grants.values()), 1),
        "received_pct": round(sum(one.alloc_pct for one in got.values()), 1),
        "customers": len(customers),
        "judged": len(judged),
        "met": sum(row["met"] for row in judged),
        "quality": _mean(qualities),
        "alarms": sum(len(row["alarms"]) for row in boxes),
        "doubted": sum(bool(row["doubts"]) for row in boxes),
        "moving": sum(h.phase in UNDER_WAY for h in state.handoffs.values()),
    }


def _alarms(state: FleetState, rows: Sequence[AlarmRow], status: ControllerStatus) -> list[View]:
    """What is wrong now: what boxes say, what is doubted of them, and what the controller itself has noted, with when it began."""
    began = {(row.box, row.text): row.began_utc_s for row in rows if row.ended_utc_s is None}
    told: dict[tuple[str, str], str] = dict.fromkeys(began, "alarm")
    for id, view in state.boxes.items():
        told |= {(id, text): "alarm" for text in (view.report.alarms if view.report else ())}
        told |= {(id, text): "doubt" for text in view.doubts}
    if status.engine.problem:
        told["", f"the engine {status.engine.name} is not up to date: {status.engine.problem}"] = "alarm"
    return [
        {"box": box, "text": text, "what": what, "began_utc": began.get((box, text))}
        for (box, text), what in sorted(told.items())
    ]


def _mean(values: Sequence[float]) -> float | None:
    return round(statistics.fmean(values), 3) if values else None


def camera_key(text: str) -> CameraKey | None:
    """A camera as an address names it; None: it is no camera."""
    try:
        return CameraKey.parse(text)
    except ValueError:
        return None
