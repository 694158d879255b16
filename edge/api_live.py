"""`/api/v1/live`: live updates as a WebSocket (`edge.web.live`). Who may look is settled before, by cookie and `Origin`, or by token."""

from __future__ import annotations

from fastapi import APIRouter, WebSocket

from edge.web.live import LiveFeed
from edge.web.who import who_of


def live_routes(feed: LiveFeed) -> APIRouter:
    """The route over a feed."""
    routes = APIRouter()

    @routes.websocket("/api/v1/live")
    async def live(socket: WebSocket) -> None:
        await feed.serve(socket, getattr(socket.state, "still", None), cameras=who_of(socket).cameras)

    return routes
