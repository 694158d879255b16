"""The fleet view on a real port over a fake controller, for browsers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from cluster.controller.http import make_app
from cluster.controller.services import Services
from edge.web.serve import bind
from tests.support.visits import Visit


@contextmanager
def served(services: Services, **more: Any) -> Iterator[str]:
    """Its address. more: for `make_app`."""
    config = uvicorn.Config(make_app(services, **more), log_config=None, lifespan="off", timeout_graceful_shutdown=1)
    server, listening = uvicorn.Server(config), bind("127.0.0.1", 0)
    port = listening.getsockname()[1]
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{port}/"
    finally:
        server.should_exit = True
        thread.join(10)
        with socket.socket():
            listening.close()


def as_role(role: str) -> Any:
    """For `Visit(before=...)`: the page is told that somebody of this role asks."""
    answer = {"login": False, "claimed": True, "me": {"name": role, "role": role, "kind": "none", "ends_utc": None}}

    def prepare(page: Any) -> None:
        page.route("**/api/v1/sign-in", lambda route: route.fulfill(json=answer))

    return prepare


def visit(browser: Any, url: str, hash: str, **more: Any) -> Visit:
    return Visit(browser, url, hash, ready="#page section", **more)
