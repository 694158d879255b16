"""`/api/v1/settings`: the configuration in force, and what a new camera may choose from. Nothing can be changed here."""

from __future__ import annotations

from fastapi import APIRouter

from edge.settings import ChoicesView, SettingsSource, SettingsView
from edge.web.who import Role, needs


def settings_routes(source: SettingsSource) -> APIRouter:
    """Routes over a source."""
    routes = APIRouter(prefix="/api/v1/settings", tags=["settings"])

    @routes.get("", dependencies=[needs(Role.OPERATOR)], responses={403: {"description": "the role operator is needed"}})
    def settings() -> SettingsView:
        """Every key of the configuration in force with its meaning; secrets are shown as where they come from."""
        return source.settings()

    @routes.get("/choices")
    def choices() -> ChoicesView:
        """Classes and tasks that this box knows."""
        return source.choices()

    return routes
