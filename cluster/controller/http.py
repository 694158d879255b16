"""The controller's web application: what boxes ask for, what pages and commands ask for.

| path | who | where |
|---|---|---|
| `/fleet/v1/...` | boxes: a join code, then their certificate | `cluster.controller.box_api` |
| `/api/v1/fleet/...` | people and programs with an account, and commands on this machine | `cluster.controller.api` |
| everything else | the same | the fleet view: `cluster.web.app.add_pages(app, services)`, where it is there |

Boxes and people stand behind different doors: no account opens `/fleet/v1`, and no certificate of a box opens anything else.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.types import ASGIApp, Receive, Scope, Send

from cluster.controller.api import answer_error, answer_wrong_input, fleet_routes
from cluster.controller.services import Services
from configs.errors import DriftboxError
from edge.api_guard import WriteGuard
from edge.web.accounts.book import Accounts
from edge.web.accounts.gate import Gate
from edge.web.headers import Hardened
from edge.web.hosts import HostNames

BOXES = "/fleet/v1/"
_PAGES = "cluster.web.app"


def make_app(
    services: Services, *, accounts: Accounts | None = None, hosts: HostNames | None = None, boxes: ASGIApp | None = None
) -> ASGIApp:
    """accounts: who may look and act, None: everybody looks, and whoever is on this machine acts; boxes: what answers `/fleet/v1`, None:
    nothing does."""
    app = FastAPI(title="Driftbox fleet", docs_url=None, redoc_url=None, openapi_url="/api/v1/openapi.json")
    if accounts is not None:
        app.add_middleware(Gate, accounts=accounts, hosts=hosts)
    else:
        app.add_middleware(WriteGuard, hosts=hosts)
    app.add_middleware(Hardened)
    app.add_exception_handler(DriftboxError, answer_error)
    app.add_exception_handler(RequestValidationError, answer_wrong_input)
    app.state.accounts = accounts
    app.include_router(fleet_routes(services))

    @app.get("/healthz")
    def healthz() -> dict[str, Any]:
        """Whether the process answers, and whether it is the one that writes."""
        return {"ok": True, "in_charge": services.status().in_charge}

    if find_spec(_PAGES) is not None:
        import_module(_PAGES).add_pages(app, services)
    return app if boxes is None else _Doors(boxes=boxes, people=app)


class _Doors:
    """ASGI: boxes here, people there."""

    def __init__(self, *, boxes: ASGIApp, people: ASGIApp) -> None:
        self._boxes, self._people = boxes, people

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        door = self._boxes if scope["type"] == "http" and scope["path"].startswith(BOXES) else self._people
        await door(scope, receive, send)
