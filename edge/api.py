"""HTTP of the box: the pages at `/`, `/api/v1/...`, `/healthz`, `/readyz`. What is there follows from `edge.web.services`.

Who may ask what is settled before a route runs: by `edge.web.accounts.gate` where the box has accounts, else by `edge.api_guard`
(reading is open, only this machine writes). Everything the pages need is served from here (no CDN), and the content policy forbids
anything else.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel

from configs.errors import DriftboxError
from edge.api_accounts import account_routes, me_routes
from edge.api_cameras import camera_routes, command_routes
from edge.api_events import event_routes
from edge.api_fleet import fleet_routes
from edge.api_gpu import gpu_routes
from edge.api_guard import WriteGuard
from edge.api_health import health_routes, metrics_routes
from edge.api_labels import answer_error, label_routes
from edge.api_learning import learning_routes
from edge.api_live import live_routes
from edge.api_models import model_routes
from edge.api_queries import query_routes
from edge.api_settings import settings_routes
from edge.api_why import why_routes
from edge.status import BoxStatus, StatusSource
from edge.web.accounts.gate import Gate
from edge.web.headers import Hardened, headers_for
from edge.web.held import held, status_for
from edge.web.live import LiveFeed
from edge.web.openapi import completed
from edge.web.services import Services
from edge.web.who import who_of

STATIC = Path(__file__).parent / "web" / "static"

log = logging.getLogger("driftbox")


class Health(BaseModel):
    """Answer of `/healthz` and `/readyz`."""

    ok: bool
    detail: str = ""


def make_app(source: StatusSource, services: Services | None = None) -> FastAPI:
    """The application. `source` is asked from worker threads and must answer at once. services: None: status only."""
    parts = services or Services()
    app = FastAPI(
        title="Driftbox", docs_url=None, redoc_url=None, openapi_url="/api/v1/openapi.json", description="One box.",
        dependencies=[Depends(held)],
    )  # fmt: skip
    if parts.accounts is not None:
        app.add_middleware(Gate, accounts=parts.accounts, hosts=parts.hosts)
    else:
        app.add_middleware(WriteGuard, hosts=parts.hosts)
    app.add_middleware(Hardened)
    app.add_exception_handler(DriftboxError, answer_error)
    app.add_exception_handler(RequestValidationError, answer_wrong_input)
    app.add_exception_handler(Exception, answer_unexpected)

    @app.get("/", include_in_schema=False)
    def page() -> FileResponse:
        return FileResponse(STATIC / "index.html", media_type="text/html")

    @app.get("/api/v1/status")
    def status(request: Request) -> BoxStatus:
        """Everything the box tells about itself right now."""
        return status_for(source.status(), who_of(request).cameras)

    @app.get(
        "/api/v1/cameras/{camera_id}/picture.jpg",
        response_class=Response,
        responses={
            200: {"content": {"image/jpeg": {}}},
            204: {"description": "no frame yet"},
            404: {"description": "no such camera"},
        },
    )
    def picture(
        camera_id: str,
        width: Annotated[int, Query(ge=0, le=8192, description="Wanted width in px, rounded up; 0: as the frame is.")] = 0,
        boxes: Annotated[bool, Query(description="With its boxes drawn.")] = True,
    ) -> Response:
        """Newest analysed frame with its boxes drawn, privacy masks burnt in."""
        jpeg = source.picture(camera_id, width_px=width, boxes=boxes)
        if jpeg is not None:
            return Response(jpeg, media_type="image/jpeg")
        if any(camera.id == camera_id for camera in source.status().cameras):
            return Response(status_code=204)
        raise HTTPException(404, f"no camera has the id '{camera_id}'")

    @app.get("/healthz")
    def healthz() -> Health:
        """Whether the process answers."""
        source.status()
        return Health(ok=True)

    @app.get("/readyz", responses={503: {"model": Health}})
    def readyz() -> Response:
        """Whether the box does its work: 503 while it starts."""
        status = source.status()
        ready = status.ready
        starting = "starting: cameras are being opened and models loaded"
        # Open to everybody, so the reasons are not told here: they name cameras.
        degraded = f"degraded, {len(status.degraded)} reasons: see the page Health" if status.degraded else ""
        detail = degraded if ready else starting
        return JSONResponse(Health(ok=ready, detail=detail).model_dump(), status_code=200 if ready else 503)

    app.include_router(me_routes(parts.accounts))
    app.include_router(live_routes(parts.live or LiveFeed(source.status, seen_by=status_for)))
    for router in _routers(parts):
        app.include_router(router)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    made = app.openapi
    app.openapi = lambda: completed(made(), login=parts.accounts is not None)  # type: ignore[method-assign]
    return app


def _routers(parts: Services) -> list[APIRouter]:
    """The routes of the parts that are there."""
    made: tuple[tuple[Any, Callable[[Any], APIRouter]], ...] = (
        (parts.accounts, account_routes),
        (parts.labels, label_routes),
        (parts.settings, settings_routes),
        (parts.events, event_routes),
        (parts.cameras, camera_routes),
        (parts.control, command_routes),
        (parts.health, health_routes),
        (parts.metrics, metrics_routes),
        (parts.learning, learning_routes),
        (parts.why, why_routes),
        (parts.gpu, gpu_routes),
        (parts.models, model_routes),
        (parts.queries, query_routes),
        (parts.fleet, fleet_routes),
    )
    return [routes(part) for part, routes in made if part is not None]


def answer_wrong_input(request: Request, error: Exception) -> JSONResponse:
    """Which field is wrong and why; never what was given: it may be a password in the wrong place."""
    assert isinstance(error, RequestValidationError)
    problems = [{"loc": list(e["loc"]), "msg": e["msg"], "type": e["type"]} for e in error.errors()]
    return JSONResponse({"detail": problems}, status_code=422)


def answer_unexpected(request: Request, error: Exception) -> JSONResponse:
    """A mistake of ours: told in the log, and not to whoever asked."""
    log.error("%s %s failed: %s: %s", request.method, request.url.path, type(error).__name__, error)
    told = {"detail": "the box made a mistake; its log says which", "code": "unexpected"}
    return JSONResponse(
        told, status_code=500, headers={**headers_for(secure=request.url.scheme == "https"), "Cache-Control": "no-store"}
    )
