"""`/api/v1/queries`: what is asked of every camera, as a graph with its knobs and what they are worth; knobs are turned here."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request

from configs.units import CAMERA_ID
from edge.queries_view import CameraQueriesView, QueriesSource, QueriesView, SettingIn
from edge.web.who import Role, needs, who_of

Camera = Annotated[str, Path(pattern=CAMERA_ID.pattern, description="Camera id.")]
Query = Annotated[str, Path(pattern=CAMERA_ID.pattern, description="Name of the query.")]
_Responses = dict[int | str, dict[str, Any]]
_NOT_FOUND: _Responses = {404: {"description": "no such camera or query"}}
_CHANGES: _Responses = {
    **_NOT_FOUND,
    400: {"description": "a knob or a value that the query does not have"},
    403: {"description": "not your role"},
}


def query_routes(source: QueriesSource) -> APIRouter:
    """Routes over a source; its methods run in worker threads."""
    routes = APIRouter(prefix="/api/v1/queries", tags=["queries"])

    @routes.get("")
    def cameras() -> QueriesView:
        """All cameras."""
        return source.cameras()

    @routes.get("/{camera}", responses=_NOT_FOUND)
    def camera(camera: Camera) -> CameraQueriesView:
        """One camera: what its plans choose from, its queries, their steps, knobs, answers and profiles."""
        return source.camera(camera)

    @routes.put("/{camera}/{query}/knobs", responses=_CHANGES, dependencies=[needs(Role.OPERATOR)])
    def set_knobs(camera: Camera, query: Query, wanted: SettingIn, request: Request) -> CameraQueriesView:
        """Turns knobs of a running query, from its next frame on; what it has learnt (tracks) stays."""
        return source.set_knobs(camera, query, dict(wanted.setting), by=who_of(request).name)

    return routes
