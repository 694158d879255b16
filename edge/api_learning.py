"""`/api/v1/learning`: what every camera's model has learned, how well that was predicted, and what changed on pictures."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query

from configs.units import CAMERA_ID
from edge.learning import MAX_PICTURES, MAX_WINDOWS, BeforeAfter, CameraLearning, LearningList, LearningSource

Camera = Annotated[str, Path(pattern=CAMERA_ID.pattern, description="Camera id.")]
Version = Annotated[str | None, Query(pattern=r"^[a-z0-9][a-z0-9_-]{0,90}$", description="Version of this camera.")]
_Responses = dict[int | str, dict[str, Any]]
_NOT_FOUND: _Responses = {404: {"description": "no such camera, version or picture"}}


def learning_routes(source: LearningSource) -> APIRouter:
    """Routes over a source; its methods run in worker threads."""
    routes = APIRouter(prefix="/api/v1/learning", tags=["learning"])

    @routes.get("")
    def cameras() -> LearningList:
        """All cameras, a line each."""
        return source.cameras()

    @routes.get("/{camera}", responses=_NOT_FOUND)
    def camera(
        camera: Camera,
        windows: Annotated[int, Query(ge=1, le=MAX_WINDOWS, description="Newest closed windows, so many.")] = 60,
    ) -> CameraLearning:
        """Quality over time with what was predicted of it, drift, windows, reasons, notes."""
        return source.camera(camera, windows)

    @routes.get("/{camera}/before-after", responses={**_NOT_FOUND, 503: {"description": "another comparison runs; ask again"}})
    def before_after(
        camera: Camera,
        before: Version = None,
        after: Version = None,
        pictures: Annotated[int, Query(ge=1, le=MAX_PICTURES, description="At most so many.")] = 3,
    ) -> BeforeAfter:
        """Two versions on the same held-out pictures; by default the one that serves and the one before it. Computed when asked for
        the first time, one at a time and slowly, so that inference does not feel it."""
        return source.before_after(camera, before, after, pictures)

    return routes
