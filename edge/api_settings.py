"""`/api/v1/settings`: the configuration in force, what of it can be changed at once, and what a new camera may choose from."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Header, Request

from edge.api_cameras import answered
from edge.api_labels import etag_of
from edge.settings import ChoicesView, SettingsSource, SettingsView
from edge.web.who import Role, needs, who_of

Media = Annotated[
    dict[str, Any],
    Body(
        description="Keys of `storage.media` as in docs/configuration.md; null: what the configuration file says.",
        examples=[{"clip_days": 7, "class_days": {"person": 30}}],
    ),
]
IfMatch = Annotated[
    str | None, Header(alias="If-Match", max_length=80, description="`media_etag` of the settings that were seen.")
]


def settings_routes(source: SettingsSource) -> APIRouter:
    """Routes over a source."""
    routes = APIRouter(prefix="/api/v1/settings", tags=["settings"])

    @routes.get("", dependencies=[needs(Role.OPERATOR)], responses={403: {"description": "the role operator is needed"}})
    def settings() -> SettingsView:
        """Every key of the configuration in force with its meaning; secrets are shown as where they come from."""
        return source.settings()

    @routes.patch(
        "/media", response_model=SettingsView, dependencies=[needs(Role.ADMIN)],
        responses={
            403: {"description": "for admins"}, 404: {"description": "here nothing can be changed but the file"},
            412: {"description": "somebody else has changed it since (`If-Match`)"},
            422: {"description": "fields that cannot be: `problems` names each"},
        },
    )  # fmt: skip
    def change_media(patch: Media, request: Request, if_match: IfMatch = None) -> Any:
        """How long events, snapshots and clips are kept, and how much room they may take: in force when this answers, without a restart,
        and after one. What is over the new bounds is deleted within seconds, the oldest first."""
        return answered(lambda: source.change_media(patch, by=who_of(request).name, etag=etag_of(if_match)))

    @routes.get("/choices")
    def choices() -> ChoicesView:
        """Classes and tasks that this box knows."""
        return source.choices()

    return routes
