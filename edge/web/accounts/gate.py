"""ASGI middleware before everything else of a box with accounts: finds out who asks and lets nobody else pass.

| asked for | who may |
|---|---|
| `/`, `/static/...`, `/healthz`, `/readyz`, `GET /api/v1/sign-in`, `POST /api/v1/sign-in`, `POST /api/v1/claim` | everybody |
| `/metrics` | programs on this machine (loopback, no proxy), or like the rest |
| everything else, reading | whoever signed in (cookie) or brings a token (`Authorization: Bearer ...`) |
| everything else, writing | the same, as operator at least; routes may ask for more (`edge.web.who.needs`) |
| `/api/v1/sign-out`, `/api/v1/me/...` | whoever signed in, for the own account |

The box answers only under its own names (`edge.web.hosts`). What a browser may be made to send by somebody else's page (requests with a
cookie, and signing in) must come from the box's own page: `Origin`, `Sec-Fetch-Site` and, with a cookie, the header `X-Driftbox`,
which no other site's page can set. Every write is in the audit log.
"""

from __future__ import annotations

import re
from functools import partial
from http.cookies import CookieError, SimpleCookie
from typing import Any

from anyio import to_thread
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from configs.errors import StorageError
from edge.api_guard import (
    MAX_BODY_BYTES,
    SAFE_METHODS,
    Bounded,
    Refused,
    foreign_page,
    refuse,
    through_proxy,
    wrong_host,
)
from edge.web.accounts.book import Accounts, Asking
from edge.web.hosts import HostNames, is_loopback
from edge.web.who import Role

API = "/api/v1/"
PAGE_HEADER = "x-driftbox"
#: Told by its routes in more detail than method and path.
_TELLS_ITSELF = re.compile(r"/api/v1/(?:sign-in|sign-out|claim|me/.*|accounts/.*)")
_OPEN = {"/": SAFE_METHODS, "/healthz": SAFE_METHODS, "/readyz": SAFE_METHODS,
         f"{API}sign-in": frozenset({"GET", "HEAD", "POST"}), f"{API}claim": frozenset({"POST"})}  # fmt: skip
_OWN = re.compile(r"/api/v1/(?:sign-out|me(?:/.*)?)")
#: With TLS the prefix makes browsers refuse a cookie of this name from any other host, path or plain connection.
COOKIE, SECURE_COOKIE = "driftbox", "__Host-driftbox"


def is_secure(scope: Scope) -> bool:
    """Whether the browser speaks TLS, to the box or to a proxy before it."""
    return scope.get("scheme") in ("https", "wss") or Headers(scope=scope).get("x-forwarded-proto", "").lower() == "https"


def cookie_name(scope: Scope) -> str:
    return SECURE_COOKIE if is_secure(scope) else COOKIE


def address_of(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else ""


def is_open(method: str, path: str) -> bool:
    """Whether everybody may, without being known."""
    return method in _OPEN.get(path, frozenset()) or (path.startswith("/static/") and method in SAFE_METHODS)


def area_of(path: str) -> str:
    """The part of the interface that a path belongs to: the word after `/api/v1/`, else the first."""
    return (path.removeprefix(API) if path.startswith(API) else path.lstrip("/")).partition("/")[0]


class Gate:
    """See the module. Puts `who`, `asking` and `session_id` into the request's state."""

    def __init__(
        self, app: ASGIApp, *, accounts: Accounts, hosts: HostNames | None, max_body_bytes: int = MAX_BODY_BYTES
    ) -> None:
        self._app, self._accounts, self._hosts = app, accounts, hosts
        self._bounded = Bounded(app, max_body_bytes=max_body_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers, method, path = Headers(scope=scope), scope.get("method", "GET"), scope["path"]
        asking, failed = await self._asks(headers, scope)
        refused = self._refusal(scope, headers, method, path, asking, failed)
        if refused is not None:
            await self._refuse(refused, scope, receive, send, asking, by_token=failed == "token")
            return
        if asking is not None:
            scope.setdefault("state", {}).update(who=asking.who, asking=asking, still=partial(self._still, headers, scope))
        if scope["type"] == "websocket" or method in SAFE_METHODS:
            await self._app(scope, receive, send)
        else:
            await self._write(scope, receive, send, asking)

    # --- who ----------------------------------------------------------------------------------------------------------

    async def _asks(self, headers: Headers, scope: Scope) -> tuple[Asking | None, str]:
        """(who, by what it failed)."""
        given = headers.get("authorization")
        if given is not None:
            kind, _, token = given.partition(" ")
            asking = await self._found(token.strip(), session=False) if kind.lower() == "bearer" else None
            if asking is not None and asking.kind == "local" and not from_this_machine(scope):
                asking = None
            return asking, "" if asking else "token"
        session_id = session_of(headers, scope)
        if not session_id:
            return None, ""
        scope.setdefault("state", {})["session_id"] = session_id
        asking = await self._found(session_id, session=True)
        return asking, "" if asking else "session"

    async def _found(self, secret: str, *, session: bool) -> Asking | None:
        believed = self._accounts.believed(secret)
        if believed is not None:
            return believed
        look = self._accounts.by_session if session else self._accounts.by_token
        try:
            return await to_thread.run_sync(look, secret)
        except StorageError:
            return None

    async def _still(self, headers: Headers, scope: Scope) -> bool:
        """Whether who was let in would be now; for connections that stay."""
        return (await self._asks(headers, scope))[0] is not None

    # --- whether ------------------------------------------------------------------------------------------------------

    def _refusal(
        self, scope: Scope, headers: Headers, method: str, path: str, asking: Asking | None, failed: str
    ) -> Refused | None:
        by_browser = failed != "token" and (asking is None or asking.kind == "session")
        misled = wrong_host(self._hosts, scope) if by_browser else None  # no page can make a browser send a token
        if misled is not None:
            return misled
        if (method not in SAFE_METHODS or scope["type"] == "websocket") and by_browser:
            foreign = foreign_page(headers)
            if foreign is not None:
                return foreign
        if is_open(method, path) and failed != "token":
            return None
        if asking is None:
            return None if path == "/metrics" and not failed and _open_metrics(scope, headers, method) else _unknown(failed)
        return _not_allowed(headers, method, path, asking)

    async def _refuse(
        self, refused: Refused, scope: Scope, receive: Receive, send: Send, asking: Asking | None, *, by_token: bool
    ) -> None:
        challenge = 'Bearer realm="driftbox"' + (', error="invalid_token"' if by_token else "")
        headers = {"WWW-Authenticate": challenge} if refused[0] == 401 else None
        if asking is not None or by_token:
            what = "token" if asking is None else f"{scope.get('method', 'GET')} {scope['path']}"
            # A program that asks for the wrong thing every second is told once a minute, as strangers are.
            await self._noted(asking, scope, what, str(refused[0]), known=False)
        await refuse(refused, scope, receive, send, headers)

    # --- writing ------------------------------------------------------------------------------------------------------

    async def _write(self, scope: Scope, receive: Receive, send: Send, asking: Asking | None) -> None:
        status = 0

        async def noticed(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._bounded(scope, receive, noticed)
        finally:
            if asking is not None and not _TELLS_ITSELF.fullmatch(scope["path"]):
                await self._noted(asking, scope, f"{scope['method']} {scope['path']}", str(status or "broken off"))

    async def _noted(self, asking: Asking | None, scope: Scope, action: str, outcome: str, *, known: bool = True) -> None:
        who = asking.who.name if asking is not None else "(unknown)"
        note: Any = partial(self._accounts.audit, who, address_of(scope), action, outcome, known=known)
        await to_thread.run_sync(note)


def session_of(headers: Headers, scope: Scope) -> str:
    """The session id of the cookie, ''."""
    cookie: SimpleCookie = SimpleCookie()
    try:
        cookie.load(headers.get("cookie", "")[:8192])
    except CookieError:
        return ""
    found = cookie.get(cookie_name(scope))
    return found.value[:200] if found is not None else ""


def from_this_machine(scope: Scope) -> bool:
    """Whether both ends of the connection are this machine."""
    client, server = address_of(scope), scope.get("server")
    return is_loopback(client) or (bool(client) and server is not None and client == server[0])


def _unknown(failed: str) -> Refused:
    why = {"token": "this token is not valid, or not any more", "session": "the session is over; sign in again"}
    return 401, why.get(failed, "sign in, or bring a token")


def _not_allowed(headers: Headers, method: str, path: str, asking: Asking) -> Refused | None:
    if asking.areas and area_of(path) not in asking.areas:
        return 403, f"this token is held to {', '.join(asking.areas)}"
    if method in SAFE_METHODS:
        return None
    if asking.kind == "session" and PAGE_HEADER not in headers:
        return 403, "a request with a cookie that changes something needs the header X-Driftbox"
    if asking.who.role < Role.OPERATOR and not _OWN.fullmatch(path):
        return 403, f"{asking.who.name} is a viewer; this needs the role operator"
    return None


def _open_metrics(scope: Scope, headers: Headers, method: str) -> bool:
    return method in SAFE_METHODS and is_loopback(address_of(scope)) and through_proxy(headers) is None
