"""`/api/v1/plans`: the plans a box has made, and why each is as it is."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query

from edge.why import PlanList, WhySource, WhyView

_Responses = dict[int | str, dict[str, Any]]
_NOT_FOUND: _Responses = {404: {"description": "no such plan, or it can no longer be explained"}}


def why_routes(source: WhySource) -> APIRouter:
    """Routes over a source; its methods run in worker threads."""
    routes = APIRouter(prefix="/api/v1/plans", tags=["plans"])

    @routes.get("")
    def plans(limit: Annotated[int, Query(ge=1, le=500, description="Newest so many.")] = 50) -> PlanList:
        """Newest first, with what the box said of each when it made it."""
        return source.plans(limit)

    @routes.get("/current/why", responses=_NOT_FOUND)
    def why_now() -> WhyView:
        """The plan in force: reasons, what other policies would have made of it, and what one quantum more is worth to whom."""
        return source.why(None)

    @routes.get("/{number}/why", responses=_NOT_FOUND)
    def why(number: Annotated[int, Path(ge=0, le=10**12, description="Of the list.")]) -> WhyView:
        """An earlier plan, as long as what it was made from is in memory."""
        return source.why(number)

    return routes
