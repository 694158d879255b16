"""`/api/v1/health`: how the box is, doctor's findings, the log's last lines, back-ups, diagnostics; and `/metrics` for Prometheus."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Response

from edge.health import BackupView, DoctorView, HealthSource, HealthView, LogLineView
from edge.metrics import CONTENT_TYPE, MetricsSource, render
from edge.web.who import Role, needs


def health_routes(source: HealthSource) -> APIRouter:
    """Routes over a source; its methods run in worker threads."""
    routes = APIRouter(prefix="/api/v1/health", tags=["health"])

    @routes.get("")
    def health() -> HealthView:
        """How the box is, and why."""
        return source.health()

    @routes.get("/log", dependencies=[needs(Role.OPERATOR)])
    def log(
        after: Annotated[int, Query(ge=0, le=2**53, description="Only lines with a higher number.")] = 0,
        level: Annotated[Literal["INFO", "WARNING", "ERROR"], Query(description="At least this level.")] = "INFO",
        limit: Annotated[int, Query(ge=1, le=1000, description="The newest so many.")] = 200,
    ) -> tuple[LogLineView, ...]:
        """The newest lines of the log since the start, oldest first; credentials are blotted out."""
        return source.log(after=after, level=level, limit=limit)

    @routes.post("/doctor", dependencies=[needs(Role.OPERATOR)], status_code=202)
    def examine() -> DoctorView:
        """Lets doctor look at cameras, models, disk and broker, beside everything else. The findings come with `/api/v1/health`."""
        return source.examine()

    @routes.post("/backups", dependencies=[needs(Role.ADMIN)], status_code=201)
    def back_up() -> BackupView:
        """Makes a back-up of database, serving models and keys in the data folder."""
        return source.back_up()

    @routes.get(
        "/diagnostics.zip", dependencies=[needs(Role.ADMIN)], response_class=Response,
        responses={200: {"content": {"application/zip": {}}}},
    )  # fmt: skip
    def diagnostics() -> Response:
        """Status, configuration without secrets, findings, versions, log and metrics in one file for whoever helps."""
        headers = {"Content-Disposition": 'attachment; filename="driftbox-diagnostics.zip"'}
        return Response(source.diagnostics(), media_type="application/zip", headers=headers)

    return routes


def metrics_routes(source: MetricsSource) -> APIRouter:
    """What Prometheus reads (docs/metrics.md)."""
    routes = APIRouter(tags=["health"])

    @routes.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    def metrics() -> Response:
        """Metrics in Prometheus's text format (docs/metrics.md)."""
        return Response(render(source.gather()), headers={"Content-Type": CONTENT_TYPE})

    return routes
