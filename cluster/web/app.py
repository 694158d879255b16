"""The fleet view over a controller: its pages, and what they ask for (docs/fleet/view.md).

| path | what |
|---|---|
| `/` | the page; its modules come from `/static/fleet/`, what it shares with a box's pages from `/static/` (the same files) |
| `/api/v1/fleet/view...` | what is shown (`cluster.web.view`); `/api/v1/status` is the same, as the shared frame asks for it |
| `/api/v1/live` | a WebSocket: the whole, then what changed (`edge.web.live`) |
| `/api/v1/fleet/rollouts...`, `bundles`, `sites` | what is done here beside the routes of `cluster.controller.api` |

Who may pass is settled before, by `edge.web.accounts.gate`.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel
from starlette.websockets import WebSocket

from cluster.controller.services import Services
from cluster.web.doing import doing_routes
from cluster.web.looking import looking_routes
from cluster.web.view import View, fleet_view
from edge.api_accounts import account_routes, me_routes
from edge.web.live import LiveFeed

STATIC = Path(__file__).parent / "static"
#: Files that boxes' pages are made of; served, not copied.
SHARED = Path(__file__).parents[2] / "edge" / "web" / "static"
#: The state is looked at so often while somebody looks on: with the time it takes, less than a second behind.
EVERY_S = 0.5


class _Document(BaseModel):
    """A view as the feed wants it."""

    view: dict[str, Any]

    def model_dump(self, **_: Any) -> dict[str, Any]:
        return self.view


class Sight:
    """The newest view of a controller; made anew only when its state has a new version, or a second has passed."""

    def __init__(self, services: Services) -> None:
        self._services, self._software = services, software()
        self._made: tuple[tuple[int, int], View] | None = None

    def view(self) -> View:
        status = self._services.status()
        key = (status.version, int(status.now_utc_s))
        made = self._made
        if made is None or made[0] != key:
            alarms = self._services.history.alarms(open_only=True)
            view = fleet_view(
                self._services.state(), status, alarms=alarms, now_utc_s=status.now_utc_s, software=self._software
            )
            made = self._made = (key, view)
        return made[1]


def add_pages(app: FastAPI, services: Services) -> None:
    """Adds the fleet view to a controller's application. app.state.accounts: who may sign in, None: everybody is let in."""
    accounts = getattr(app.state, "accounts", None)
    sight = Sight(services)
    feed = LiveFeed(lambda: _Document.model_construct(view=sight.view()), every_s=EVERY_S)

    @app.get("/", include_in_schema=False)
    def page() -> FileResponse:
        return FileResponse(STATIC / "index.html", media_type="text/html")

    @app.get("/api/v1/status", tags=["view"])
    def status() -> View:
        """What `/api/v1/fleet/view` tells."""
        return sight.view()

    @app.websocket("/api/v1/live")
    async def live(socket: WebSocket) -> None:
        await feed.serve(socket, getattr(socket.state, "still", None))

    app.include_router(me_routes(accounts))
    if accounts is not None:
        app.include_router(account_routes(accounts))
    app.include_router(looking_routes(services, sight.view))
    app.include_router(doing_routes(services))
    app.mount("/static/fleet", StaticFiles(directory=STATIC), name="fleet")
    app.mount("/static", StaticFiles(directory=SHARED), name="static")


def software() -> str:
    """Of this controller."""
    try:
        return version("driftbox")
    except PackageNotFoundError:  # run from a source tree
        return ""
