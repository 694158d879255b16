"""`/api/v1/models`: versions, their lineage, comparison; promote, roll back, pin, export as a signed bundle, import.

Looking needs no role; what changes what serves needs an operator, what brings in another's model an admin.
"""

from __future__ import annotations

from pathlib import Path as File
from typing import Annotated, Any

from anyio import to_thread
from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import FileResponse
from starlette.background import BackgroundTask

from configs.files import storage_errors
from configs.units import CAMERA_ID
from edge.models_view import (
    MAX_BUNDLE_BYTES,
    VERSION_PATTERN,
    ImportedView,
    ModelComparison,
    ModelList,
    ModelRow,
    ModelShelf,
    ModelShown,
    PinIn,
    PromoteIn,
    RollbackIn,
    ServedView,
)
from edge.web.who import Role, needs, who_of

IMPORT = "/api/v1/models/import"
BUNDLE_TYPE = "application/octet-stream"
#: Bytes that are gathered before they are written.
CHUNK_BYTES = 2**20

Version = Annotated[str, Path(pattern=VERSION_PATTERN, description="Version id.")]
Asked = Annotated[str, Query(pattern=VERSION_PATTERN, description="Version id.")]
_Responses = dict[int | str, dict[str, Any]]
_NOT_FOUND: _Responses = {404: {"description": "no such version or camera"}}
_CHANGES: _Responses = {
    **_NOT_FOUND,
    400: {"description": "it cannot serve, and why"},
    403: {"description": "not your role"},
    409: {"description": "its files are gone or damaged"},
}


def model_routes(shelf: ModelShelf) -> APIRouter:
    """Routes over a shelf; its methods run in worker threads."""
    routes = APIRouter(prefix="/api/v1/models", tags=["models"])

    @routes.get("", responses=_NOT_FOUND)
    def models(
        camera: Annotated[str | None, Query(pattern=CAMERA_ID.pattern, description="Only this camera's.")] = None,
    ) -> ModelList:
        """All versions, each camera's in the order of their lineage."""
        return shelf.list(camera)

    @routes.get("/compare", responses=_NOT_FOUND)
    def compare(first: Asked, second: Asked) -> ModelComparison:
        """Two versions side by side."""
        return shelf.compare(first, second)

    @routes.get("/{version}", responses=_NOT_FOUND)
    def show(version: Version) -> ModelShown:
        """Everything about one version."""
        return shelf.show(version)

    @routes.get(
        "/{version}/bundle", response_class=FileResponse, dependencies=[needs(Role.OPERATOR)],
        responses={**_CHANGES, 200: {"content": {BUNDLE_TYPE: {}}}},
    )  # fmt: skip
    def bundle(version: Version) -> FileResponse:
        """The version as a bundle signed with this box's key, to be imported elsewhere."""
        file = shelf.bundle(version)
        return FileResponse(
            file, media_type=BUNDLE_TYPE, filename=f"{version}.driftbox", background=BackgroundTask(_remove, file)
        )

    _changes(routes, shelf)
    _imports(routes, shelf)
    return routes


def _changes(routes: APIRouter, shelf: ModelShelf) -> None:
    @routes.post("/{version}/promote", responses=_CHANGES, dependencies=[needs(Role.OPERATOR)])
    def promote(version: Version, wanted: PromoteIn, request: Request) -> ServedView:
        """Lets a version serve its camera."""
        return shelf.promote(version, force=wanted.force, by=who_of(request).name)

    @routes.post("/of/{camera}/rollback", responses=_CHANGES, dependencies=[needs(Role.OPERATOR)])
    def rollback(
        camera: Annotated[str, Path(pattern=CAMERA_ID.pattern, description="Camera id.")], wanted: RollbackIn, request: Request
    ) -> ServedView:  # fmt: skip
        """Lets an earlier version serve a camera again."""
        return shelf.rollback(camera, wanted.version, by=who_of(request).name)

    @routes.put("/{version}/pin", responses=_CHANGES, dependencies=[needs(Role.OPERATOR)])
    def pin(version: Version, wanted: PinIn) -> ModelRow:
        """Keeps a version's files whatever retention says, or leaves them to it again."""
        return shelf.pin(version, pinned=wanted.pinned)


def _imports(routes: APIRouter, shelf: ModelShelf) -> None:
    @routes.post(
        "/import", dependencies=[needs(Role.ADMIN)], response_model=ImportedView,
        responses={**_CHANGES, 413: {"description": f"more than {MAX_BUNDLE_BYTES} bytes"}, 507: {"description": "no room"}},
        openapi_extra={"requestBody": {"required": True, "content": {BUNDLE_TYPE: {"schema": {"type": "string", "format": "binary"}}}}},
    )  # fmt: skip
    async def take_in(
        request: Request,
        camera: Annotated[
            str | None, Query(pattern=CAMERA_ID.pattern, description="For this camera; default: the one it was made for.")
        ] = None,
    ) -> Any:
        """A signed bundle of a box that this one trusts. It is a candidate that the camera's own gate judges next."""
        file = await to_thread.run_sync(shelf.upload)
        try:
            await _receive(request, file)
            return await to_thread.run_sync(shelf.take_in, file, camera)
        finally:
            _remove(file)


async def _receive(request: Request, file: File) -> None:
    """The body, written to a file as it comes; never as a whole in memory."""
    waiting = bytearray()
    async for chunk in request.stream():
        waiting += chunk
        if len(waiting) >= CHUNK_BYTES:
            await to_thread.run_sync(_append, file, bytes(waiting))
            waiting.clear()
    await to_thread.run_sync(_append, file, bytes(waiting))


def _append(file: File, data: bytes) -> None:
    with storage_errors(file), file.open("ab") as out:
        out.write(data)


def _remove(file: File) -> None:
    file.unlink(missing_ok=True)
