"""`/api/v1/fleet/view...`: what the fleet view shows, for its pages and for programs. Everybody who is let in may look."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Query

from cluster.controller.services import Services
from cluster.web.view import View, box_view, camera_key, camera_rows, course

Hours = Annotated[float, Query(gt=0, le=24 * 92, description="How far back.")]
#: Rows of the past that one answer holds at most.
MOST_ROWS = 500
MOST_PERFORMANCES = 20_000


def looking_routes(services: Services, view: Callable[[], View]) -> APIRouter:
    routes = APIRouter(prefix="/api/v1/fleet", tags=["view"])

    @routes.get("/view")
    def whole() -> View:
        """Boxes, sites, customers, cameras away from home, rollouts, models, alarms: what `/api/v1/live` follows."""
        return view()

    @routes.get("/view/boxes/{box}")
    def one_box(box: str) -> View:
        """A box with its cameras."""
        found = box_view(services.state(), box, services.status().now_utc_s)
        if found is None:
            raise HTTPException(404, f"the fleet has no box {box[:64]}")
        return found

    @routes.get("/view/cameras")
    def cameras(
        box: str = "",
        customer: str = "",
        moved: Annotated[bool, Query(description="Only those away from home, pinned or on their way.")] = False,
        offset: Annotated[int, Query(ge=0, le=10**7)] = 0,
        limit: Annotated[int, Query(ge=1, le=MOST_ROWS)] = 200,
    ) -> View:
        """Cameras by name, with where they are watched and why."""
        return camera_rows(services.state(), box=box, customer=customer, moved=moved, offset=offset, limit=limit)

    @routes.get("/view/customers/{customer}/course")
    def of_customer(customer: str, hours: Hours = 24.0) -> View:
        """Quality with its goal, grants, what was received; 300 points at most of each."""
        since_s = services.status().now_utc_s - 3600.0 * hours
        known = customer in services.state().customers
        told = services.history.performance(customer=customer, since_utc_s=since_s, limit=MOST_PERFORMANCES)
        if not told and not known:
            raise HTTPException(404, f"the fleet has no customer {customer[:64]}")
        grants = services.history.grants(customer=customer, since_utc_s=since_s, limit=MOST_PERFORMANCES)
        return course(told, grants)

    @routes.get("/view/history")
    def history(hours: Hours = 24.0, camera: str = "") -> dict[str, Any]:
        """Rounds, placements, alarms, who did what; newest first. camera: HOME/CAMERA, placements of this one only."""
        since_s = services.status().now_utc_s - 3600.0 * hours
        key = camera_key(camera) if camera else None
        if camera and key is None:
            raise HTTPException(400, "a camera is written HOME/CAMERA")
        past = services.history
        placements = past.placements(camera=key, since_utc_s=since_s, limit=MOST_ROWS)
        return {
            "rounds": [asdict(row) for row in past.rounds(since_utc_s=since_s, limit=MOST_ROWS)],
            "placements": [asdict(row) | {"camera": str(row.camera)} for row in placements],
            "alarms": [asdict(row) for row in past.alarms(since_utc_s=since_s, limit=MOST_ROWS)],
            "audit": [asdict(row) for row in past.audit(limit=MOST_ROWS) if row.at_utc_s >= since_s],
        }

    return routes
