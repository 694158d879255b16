"""`/api/v1/gpu`: shares promised and received, over the last hour and per window; memory, lanes, devices."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from configs.units import CAMERA_ID
from edge.gpu_view import MAX_WINDOWS, GpuSource, GpuView


def gpu_routes(source: GpuSource) -> APIRouter:
    """Routes over a source; its method runs in worker threads."""
    routes = APIRouter(prefix="/api/v1/gpu", tags=["gpu"])

    @routes.get("")
    def gpu(
        windows: Annotated[int, Query(ge=0, le=MAX_WINDOWS, description="Newest closed windows.")] = 10,
        camera: Annotated[
            str | None, Query(pattern=CAMERA_ID.pattern, description="Whose jobs over time; default: all together, by kind.")
        ] = None,
    ) -> GpuView:
        """Everything about compute, now and over the last hour."""
        return source.gpu(windows, camera)

    return routes
