"""`/api/v1/events`: tracked objects searched, shown, marked and deleted; their snapshots and clips.

Files are found by what the database says of an event, never by a name that came in. Clips answer range requests, so that browsers seek.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path as FilePath
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import FileResponse
from pydantic import BaseModel, ConfigDict, Field

from configs.units import CAMERA_ID
from edge.events import EVENT_ID, ClipView, EventDetails, EventLibrary, EventPage, EventView, Facets, event_details, event_view
from edge.media.folder import media_type
from edge.store.objects import MAX_PAGE, ObjectQuery, StoredClip, no_object
from edge.web.who import Role, needs, who_of

Id = Annotated[str, Path(pattern=EVENT_ID, description="Event id.")]
Name = Annotated[str | None, Query(pattern=CAMERA_ID.pattern)]
Moment = Annotated[float | None, Query(ge=0, le=1e11, allow_inf_nan=False, description="Seconds since the epoch.")]

_NOT_FOUND: dict[int | str, dict[str, Any]] = {404: {"description": "no such event or file, or not any more"}}
_OPERATOR: dict[int | str, dict[str, Any]] = {**_NOT_FOUND, 403: {"description": "needs the role operator"}}


class Favourite(BaseModel):
    """Body of a mark."""

    model_config = ConfigDict(extra="forbid")

    favourite: bool = Field(strict=True, description="true: it and its files are kept whatever comes.")


def event_routes(library: EventLibrary) -> APIRouter:
    """Routes over a library; its methods run in worker threads."""
    routes = APIRouter(prefix="/api/v1/events", tags=["events"])

    def own(id: Id, request: Request) -> None:
        """An event of another camera than those of who asks is not there."""
        cameras = who_of(request).cameras
        if cameras is not None and library.get(id).event.camera not in cameras:
            raise no_object(id)

    of_camera = Depends(own)

    @routes.get("")
    def search(
        request: Request,
        camera: Name = None,
        class_name: Annotated[str | None, Query(alias="class", max_length=40, description="Only this class.")] = None,
        zone: Name = None,
        from_utc: Moment = None,
        to_utc: Moment = None,
        score_min: Annotated[float, Query(ge=0, le=1, allow_inf_nan=False)] = 0.0,
        clip: Annotated[bool, Query(description="Only with a clip.")] = False,
        snapshot: Annotated[bool, Query(description="Only with a snapshot.")] = False,
        favourite: Annotated[bool, Query(description="Only favourites.")] = False,
        open: Annotated[bool, Query(description="Only what is still there.")] = False,
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE, description="Events of this page.")] = 50,
        after: Annotated[str | None, Query(max_length=200, description="`next` of the page before.")] = None,
    ) -> EventPage:
        """Events, newest first."""
        page = library.search(
            ObjectQuery(
                camera=camera, cameras=who_of(request).cameras,
                class_name=class_name, zone=zone, from_utc=from_utc, to_utc=to_utc, score_min=score_min, with_clip=clip,
                with_snapshot=snapshot, favourite=favourite, open=open, limit=limit, after=after,
            )
        )  # fmt: skip
        return EventPage(events=tuple(event_view(stored) for stored in page.objects), next=page.next)

    @routes.get("/facets")
    def facets() -> Facets:
        """Classes and zones of which there are events."""
        classes, zones = library.facets()
        return Facets(classes=classes, zones=zones)

    @routes.get("/{id}", responses=_NOT_FOUND, dependencies=[of_camera])
    def details(id: Id) -> EventDetails:
        """One event with its clips."""
        return event_details(library.get(id), tuple(_clip_view(n, clip) for n, clip in enumerate(library.clips(id))))

    @routes.put("/{id}/favourite", responses=_OPERATOR, dependencies=[needs(Role.OPERATOR), of_camera])
    def favour(id: Id, body: Favourite) -> EventView:
        """Marks an event, or takes the mark back."""
        return event_view(library.favour(id, body.favourite))

    @routes.delete("/{id}", status_code=204, responses=_OPERATOR, dependencies=[needs(Role.OPERATOR), of_camera])
    def remove(id: Id) -> None:
        """Deletes an event that has ended, with its pictures and with the clips that no other event is in."""
        library.remove(id)

    @routes.get("/{id}/snapshot.jpg", response_class=FileResponse, responses=_picture(), dependencies=[of_camera])
    def snapshot_jpg(id: Id) -> FileResponse:
        """The frame that shows it best, with its box, privacy masks burnt in."""
        return _file(library.snapshot(id))

    @routes.get("/{id}/thumbnail.jpg", response_class=FileResponse, responses=_picture(), dependencies=[of_camera])
    def thumbnail_jpg(id: Id) -> FileResponse:
        """The object alone, small."""
        return _file(library.thumbnail(id))

    @routes.get(
        "/{id}/clip.mp4", response_class=FileResponse, dependencies=[of_camera],
        responses={200: {"content": {"video/mp4": {}}}, 206: {"description": "a part of it"}, **_NOT_FOUND},
    )  # fmt: skip
    def clip_mp4(
        id: Id,
        part: Annotated[int, Query(ge=0, le=10_000, description="Which, where there are several.")] = 0,
        download: Annotated[bool, Query(description="As a file to keep.")] = False,
    ) -> FileResponse:
        """What the camera sent around that time. Answers range requests."""
        path, clip = library.clip(id, part)
        return _file(path, name=_download_name(clip, path) if download else None)

    return routes


def _picture() -> dict[int | str, dict[str, Any]]:
    return {200: {"content": {"image/jpeg": {}}}, **_NOT_FOUND}


def _file(path: FilePath, *, name: str | None = None) -> FileResponse:
    return FileResponse(path, media_type=media_type(path.name), filename=name, stat_result=path.stat())


def _download_name(clip: StoredClip, path: FilePath) -> str:
    return f"{clip.camera}-{datetime.fromtimestamp(clip.began_utc, UTC):%Y%m%d-%H%M%S}{path.suffix}"


def _clip_view(part: int, clip: StoredClip) -> ClipView:
    return ClipView(
        part=part, began_utc=clip.began_utc, ended_utc=clip.ended_utc, size_bytes=clip.size_bytes, codec=clip.codec, masked=clip.masked,
        media_type=media_type(clip.path),
    )  # fmt: skip
