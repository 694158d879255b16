"""What a request must be before it reaches a route: bounded, of a known kind, not sent by somebody else's web page.

`WriteGuard` stands where there is no login (`web.login: false`): programs and people on this machine may write, and no web page of
somebody else. Looking is open to whoever reaches the port, as to a viewer. Anything that changes something is refused unless all of
this holds: the connection comes from loopback, no proxy has handed it on (behind one, everybody would be local), the name asked for is a
loopback name (a foreign name that resolves to 127.0.0.1 is another site: DNS rebinding), the browser does not say that another site asks
(`Origin`, `Sec-Fetch-Site`), and the body is JSON, which a form of another site cannot send. With login it is `edge.web.accounts.gate`.

Bodies are bounded: 256 KiB of JSON, unless `UPLOADS` says otherwise. A body that is announced as longer is refused unread.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edge.models_view import MAX_BUNDLE_BYTES
from edge.web.hosts import HostNames, host_name, is_address, is_loopback
from edge.web.who import ANYBODY

SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
#: Methods that bring a body.
BODY_METHODS = frozenset({"PUT", "POST", "PATCH"})
#: 500 boxes take about 50 KiB.
MAX_BODY_BYTES = 256 * 1024
#: A proxy names itself by one of these.
PROXY_HEADERS = (
    "forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-forwarded-server", "x-forwarded-port",
    "x-real-ip", "x-client-ip", "x-original-forwarded-for", "x-envoy-external-address", "cf-connecting-ip", "true-client-ip",
)  # fmt: skip
HEALTH_PATHS = ("/healthz", "/readyz")
_LOCAL_ONLY = "may only be changed from the machine the box runs on"
Refused = tuple[int, str]


@dataclass(frozen=True, kw_only=True)
class Upload:
    """A route that takes more than JSON. path: matched against the whole of it; types: media types of its body. The body is handed on as
    it comes, so the route must not collect it in memory."""

    method: str
    path: str
    most_bytes: int
    types: tuple[str, ...] = ("application/octet-stream",)


#: Every one of them. A part of the interface that takes files adds its line here.
UPLOADS: tuple[Upload, ...] = (
    Upload(method="POST", path=r"/api/v1/models/import", most_bytes=MAX_BUNDLE_BYTES),  # edge.api_models
    Upload(method="PUT", path=r"/api/v1/fleet/bundles/[a-z0-9_-]{1,63}", most_bytes=MAX_BUNDLE_BYTES),  # cluster.web.doing
)


class TooLong(Exception):
    """A body grew beyond its bound while it was read."""


class WriteGuard:
    """ASGI middleware; see the module. The answer to what is refused is JSON: `{"detail": why}`."""

    def __init__(
        self, app: ASGIApp, *, max_body_bytes: int = MAX_BODY_BYTES, uploads: Sequence[Upload] = UPLOADS,
        hosts: HostNames | None = None,
    ) -> None:  # fmt: skip
        """hosts: the names under which anything is answered, None: any."""
        self._bounded = Bounded(app, max_body_bytes=max_body_bytes, uploads=uploads)
        self._app, self._hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            refused = wrong_host(self._hosts, scope)
            if refused is None and scope["type"] == "websocket":
                refused = foreign_page(Headers(scope=scope))
            if refused is not None:
                await refuse(refused, scope, receive, send)
                return
        if is_elsewhere(scope):
            scope.setdefault("state", {})["who"] = ANYBODY
        if scope["type"] != "http" or scope["method"] in SAFE_METHODS:
            await self._app(scope, receive, send)
            return
        refused = refusal(scope)
        if refused is not None:
            await refuse(refused, scope, receive, send)
            return
        await self._bounded(scope, receive, send)


class Bounded:
    """ASGI: hands on requests whose body is of the right kind and within its bound, and answers 413 or 415 to others."""

    def __init__(self, app: ASGIApp, *, max_body_bytes: int = MAX_BODY_BYTES, uploads: Sequence[Upload] = UPLOADS) -> None:
        self._app, self._max_body_bytes = app, max_body_bytes
        self._uploads = [(upload, re.compile(upload.path)) for upload in uploads]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        upload = next((u for u, path in self._uploads if u.method == scope["method"] and path.fullmatch(scope["path"])), None)
        most_bytes = upload.most_bytes if upload is not None else self._max_body_bytes
        refused = _wrong_body(scope, upload.types if upload is not None else ("application/json",), most_bytes)
        if refused is not None:
            await refuse(refused, scope, receive, send)
        elif upload is not None:
            await self._handed_on(scope, receive, send, most_bytes)
        else:
            body = await _body(receive, most_bytes)
            if body is None:
                await refuse(_too_long(most_bytes), scope, receive, send)
            else:
                await self._app(scope, _replay(body, receive), send)

    async def _handed_on(self, scope: Scope, receive: Receive, send: Send, most_bytes: int) -> None:
        began = False

        async def noticed(message: Message) -> None:
            nonlocal began
            began = True
            await send(message)

        try:
            await self._app(scope, _counted(receive, most_bytes), noticed)
        except TooLong:
            if not began:
                await refuse(_too_long(most_bytes), scope, receive, send)


def _wrong_body(scope: Scope, types: Sequence[str], most_bytes: int) -> Refused | None:
    headers = Headers(scope=scope)
    if scope["method"] in BODY_METHODS:
        given = headers.get("content-type", "").split(";")[0].strip().lower()
        if given not in types:
            return (
                415,
                "send JSON (Content-Type: application/json)" if "application/json" in types else f"send {' or '.join(types)}",
            )
    announced = headers.get("content-length", "")
    if announced.isdigit() and int(announced[:20]) > most_bytes:
        return _too_long(most_bytes)
    return None


def _too_long(most_bytes: int) -> Refused:
    return 413, f"more than {most_bytes} bytes"


async def refuse(refused: Refused, scope: Scope, receive: Receive, send: Send, headers: dict[str, str] | None = None) -> None:
    """Answers with (status, why). A WebSocket that is refused before it was accepted is answered 403 by the server. After a request
    whose body nobody has read the connection ends, or the server would take a gigabyte in to throw it away."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008, "reason": refused[1][:120]})
        return
    if scope["method"] in BODY_METHODS:
        headers = {**(headers or {}), "Connection": "close"}
    await JSONResponse({"detail": refused[1]}, status_code=refused[0], headers=headers)(scope, receive, send)


def refusal(scope: Scope) -> Refused | None:
    """(status, why) of a request that may not write where there is no login, None: it may."""
    headers = Headers(scope=scope)
    client = scope.get("client")
    if not is_loopback(client[0] if client else ""):
        return 403, f"labels and models {_LOCAL_ONLY}"
    proxy = through_proxy(headers)
    if proxy is not None:
        return 403, f"the request came through a proxy ({proxy}); labels and models {_LOCAL_ONLY}"
    if not is_loopback(host_name(headers.get("host", ""))):
        return 403, "ask for the box by a loopback address (127.0.0.1, localhost)"
    return foreign_page(headers)


def wrong_host(hosts: HostNames | None, scope: Scope) -> Refused | None:
    """(status, why) when a browser asks under a name that is not the box's. Probes of health need none."""
    if hosts is None or scope["path"] in HEALTH_PATHS or hosts.answers(Headers(scope=scope).get("host", "")):
        return None
    return 421, "this box is not called so; add the name to web.hostnames"


def is_elsewhere(scope: Scope) -> bool:
    """Whether a request comes from another machine, or through a proxy from who knows where."""
    if scope["type"] not in ("http", "websocket"):
        return False
    client = scope.get("client")
    elsewhere = client is not None and is_address(client[0]) and not is_loopback(client[0])
    return elsewhere or through_proxy(Headers(scope=scope)) is not None


def foreign_page(headers: Headers) -> Refused | None:
    """(status, why) when a browser says that another site's page asks."""
    if _same_site(headers, headers.get("host", "")):
        return None
    return 403, "another web site asks; write from the box's own page or from a program"


def through_proxy(headers: Headers) -> str | None:
    """The header by which a proxy names itself."""
    return next((name for name in PROXY_HEADERS if name in headers), None)


def _same_site(headers: Headers, host: str) -> bool:
    """Programs send neither header; browsers send `Origin` with everything that writes."""
    origin = headers.get("origin")
    if origin is not None and origin.lower() not in (f"http://{host}".lower(), f"https://{host}".lower()):
        return False
    return headers.get("sec-fetch-site", "none") in ("same-origin", "none")


async def _body(receive: Receive, max_bytes: int) -> bytes | None:
    """The whole body, None: too long. Read here, because a length that is announced need not be true."""
    body = b""
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return body
        body += message.get("body", b"")
        if len(body) > max_bytes:
            return None
        if not message.get("more_body", False):
            return body


def _replay(body: bytes, receive: Receive) -> Receive:
    """The body at once; after it whatever comes: the application notices when the other side goes away."""
    sent = False

    async def replayed() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed


def _counted(receive: Receive, most_bytes: int) -> Receive:
    seen = 0

    async def counted() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > most_bytes:
            raise TooLong
        return message

    return counted
