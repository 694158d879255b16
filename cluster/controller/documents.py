"""The fleet's state as a JSON document: for programs, for pages, for the store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cluster.controller.feedback import cameras_by_customer
from cluster.controller.lease import SqliteLeases
from cluster.controller.services import ControllerStatus
from cluster.placement.sight import UNDER_WAY
from cluster.types import BoxView, Customer, FleetState
from scheduler.fleet.codec import as_dict

if TYPE_CHECKING:
    from cluster.controller.serve import FleetFolder


def state_document(state: FleetState) -> dict[str, Any]:
    """`FleetState` with cameras written HOME/CAMERA. Lists are in the order of their ids."""
    return {
        "term": state.term,
        "customers": [as_dict(state.customers[key]) for key in sorted(state.customers)],
        "groups": [as_dict(state.groups[key]) for key in sorted(state.groups)],
        "boxes": [as_dict(state.boxes[key]) for key in sorted(state.boxes)],
        "leases": [as_dict(state.leases[key]) for key in sorted(state.leases)],
        "handoffs": [as_dict(state.handoffs[key]) for key in sorted(state.handoffs)],
        "grants": [as_dict(state.grants[key]) for key in sorted(state.grants)],
        "offers": {box: [as_dict(offer) for offer in offers] for box, offers in sorted(state.offers.items())},
        "collects": dict(sorted(state.collects.items())),
        "parcels": sorted(state.parcels),
        "rollouts": [as_dict(state.rollouts[key]) for key in sorted(state.rollouts)],
        "sites": [as_dict(state.sites[key]) for key in sorted(state.sites)],
    }


def status_document(folder: FleetFolder) -> dict[str, Any]:
    """What `driftbox fleet status` tells: the newest that was written down (boxes' reports: some seconds old, in large fleets two
    minutes)."""
    now_s, kept = folder.clock.utc_s(), folder.store.load()
    state = kept.known.state
    running = [_controller(row.status) for row in folder.store.controllers(now_s)]
    return {
        "controller": _charge(folder, running, now_s) | {"round": kept.round, "round_utc_s": kept.round_utc_s},
        "controllers": running,
        "boxes": [_box(state.boxes[box]) for box in sorted(state.boxes)],
        "customers": _customers(state),
        "groups": {name: group.weight for name, group in sorted(state.groups.items())},
        "handoffs": [
            as_dict(handoff) | {"camera": str(key)}
            for key, handoff in sorted(state.handoffs.items())
            if handoff.phase in UNDER_WAY
        ],
        "alarms": [
            {"box": row.box, "text": row.text, "began_utc_s": row.began_utc_s} for row in folder.history.alarms(open_only=True)
        ],
    }


def _charge(folder: FleetFolder, running: list[dict[str, Any]], now_s: float) -> dict[str, Any]:
    """Who writes: by the lease in the folder, or, where it is elsewhere, by what the controllers told."""
    held = SqliteLeases(folder.db, folder.clock.utc_s).holder()
    if held is not None and held.until_utc_s > now_s:
        return {"in_charge": held.holder, "term": held.term, "url": held.note}
    told = next((one for one in running if one["in_charge"] and one["lease"] != "file"), None)
    if told is not None:
        return {"in_charge": told["id"], "term": told["term"], "url": told["url"]}
    return {"in_charge": "", "term": held.term if held is not None else 0, "url": held.note if held is not None else ""}


def _controller(status: ControllerStatus) -> dict[str, Any]:
    names = ("id", "in_charge", "term", "reason", "url", "broker", "broker_up", "lease")
    return {name: getattr(status, name) for name in names} | {"engine": as_dict(status.engine)}


def _box(view: BoxView) -> dict[str, Any]:
    measured = [camera.quality for camera in view.cameras if camera.quality is not None]
    word = "online" if view.online else "offline"
    return {
        "box": view.id, "site": view.site, "state": f"{word}, draining" if view.draining else word, "capacity_pct": view.capacity_pct,
        "spare_pct": view.report.spare_pct if view.report is not None else None, "cameras": len(view.cameras),
        "quality": sum(measured) / len(measured) if measured else None, "seen_utc_s": view.seen_utc_s,
        "doubts": "; ".join(view.doubts),
    }  # fmt: skip


def _customers(state: FleetState) -> list[dict[str, Any]]:
    seen = cameras_by_customer(state)
    found = []
    for name in sorted({*state.customers, *seen}):
        customer, grant = state.customers.get(name, Customer(id=name)), state.grants.get(name)
        found.append(
            {
                "customer": name, "name": customer.name, "measure": customer.measure, "goal": customer.goal, "weight": customer.weight,
                "group": "/".join(customer.path),
                "cameras": len(seen.get(name, ())), "share_pct": grant.share_pct if grant else None,
                "demand_pct": grant.demand_pct if grant else None, "expected": grant.predicted if grant else None,
                "reason": grant.reason if grant else "", "by_box": dict(grant.by_box) if grant else {},
            }
        )  # fmt: skip
    return found
