"""HTTP of the box: the status page at `/`, `/api/v1/...`, `/healthz`, `/readyz`. Reads from a `StatusSource`; only labels can be changed
(`edge.api_labels`), and only from this machine (`edge.api_guard`).

No login in this release: `web.host` listens on loopback unless the operator opens it. Everything the page needs is served from
here (no CDN), and the content policy forbids anything else.
"""

from __future__ import annotations

from pathlib import Path

from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.responses import FileResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel
from starlette.middleware.base import RequestResponseEndpoint

from configs.errors import DriftboxError
from edge.api_guard import WriteGuard
from edge.api_labels import answer_error, label_routes
from edge.labels import LabelStore
from edge.status import BoxStatus, StatusSource

STATIC = Path(__file__).parent / "web" / "static"

_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


class Health(BaseModel):
    """Answer of `/healthz` and `/readyz`."""

    ok: bool
    detail: str = ""


def make_app(source: StatusSource, labels: LabelStore | None = None) -> FastAPI:
    """The application. `source` is asked from worker threads and must answer at once. labels: None leaves their routes out."""
    app = FastAPI(title="Driftbox", docs_url=None, redoc_url=None, openapi_url="/api/v1/openapi.json", description="One box.")
    app.add_middleware(WriteGuard)
    app.add_exception_handler(DriftboxError, answer_error)

    @app.middleware("http")
    async def harden(request: Request, call_next: RequestResponseEndpoint) -> Response:
        response = await call_next(request)
        response.headers.update(_HEADERS)
        # Nothing here may be kept: pictures and numbers are old after a second, and a shared computer should not store them.
        response.headers.setdefault("Cache-Control", "no-store")
        return response

    @app.get("/", include_in_schema=False)
    def page() -> FileResponse:
        return FileResponse(STATIC / "index.html", media_type="text/html")

    @app.get("/api/v1/status")
    def status() -> BoxStatus:
        """Everything the box tells about itself right now."""
        return source.status()

    @app.get(
        "/api/v1/cameras/{camera_id}/picture.jpg",
        response_class=Response,
        responses={
            200: {"content": {"image/jpeg": {}}},
            204: {"description": "no frame yet"},
            404: {"description": "no such camera"},
        },
    )
    def picture(camera_id: str) -> Response:
        """Newest analysed frame with its boxes drawn, privacy masks burnt in."""
        jpeg = source.picture(camera_id)
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
        ready = source.status().ready
        detail = "" if ready else "starting: cameras are being opened and models loaded"
        return JSONResponse(Health(ok=ready, detail=detail).model_dump(), status_code=200 if ready else 503)

    if labels is not None:
        app.include_router(label_routes(labels))
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    return app
