"""`/api/v1/fleet`: the box as a member of its fleet."""

from __future__ import annotations

from fastapi import APIRouter

from edge.fleet.view import FleetSource, FleetView


def fleet_routes(source: FleetSource) -> APIRouter:
    """Routes over a source; its methods run in worker threads."""
    routes = APIRouter(prefix="/api/v1/fleet", tags=["fleet"])

    @routes.get("")
    def fleet() -> FleetView:
        """Whether the box has joined a fleet, what the fleet wishes of it, and how far it is with that."""
        return source.fleet()

    return routes
