"""Who may write over HTTP while there is no login: programs and people on this machine, and no web page of somebody else.

Reading is open to whoever reaches the port. Anything that changes something is refused unless all of this holds: the connection comes
from loopback, no proxy has handed it on (behind one, everybody would be local), the name asked for is a loopback name (a foreign name
that resolves to 127.0.0.1 is another site: DNS rebinding), the browser does not say that another site asks (`Origin`,
`Sec-Fetch-Site`), and the body is JSON, which a form of another site cannot send. Bodies are bounded.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
_LOCAL_ONLY = "may only be changed from the machine the box runs on"


class WriteGuard:
    """ASGI middleware; see the module. The answer to what is refused is JSON: `{"detail": why}`."""

    def __init__(self, app: ASGIApp, *, max_body_bytes: int = MAX_BODY_BYTES) -> None:
        self._app, self._max_body_bytes = app, max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in SAFE_METHODS:
            await self._app(scope, receive, send)
            return
        refused = refusal(scope)
        if refused is None:
            body = await _body(receive, self._max_body_bytes)
            if body is not None:
                await self._app(scope, _replay(body), send)
                return
            refused = (413, f"more than {self._max_body_bytes} bytes")
        status, why = refused
        await JSONResponse({"detail": why}, status_code=status)(scope, receive, send)


def refusal(scope: Scope) -> tuple[int, str] | None:
    """(status, why) of a request that may not write, None: it may."""
    headers = Headers(scope=scope)
    client = scope.get("client")
    if not is_loopback(client[0] if client else ""):
        return 403, f"labels and models {_LOCAL_ONLY}"
    proxy = next((name for name in PROXY_HEADERS if name in headers), None)
    if proxy is not None:
        return 403, f"the request came through a proxy ({proxy}); labels and models {_LOCAL_ONLY}"
    host = headers.get("host", "")
    if not is_loopback(_host_name(host)):
        return 403, "ask for the box by a loopback address (127.0.0.1, localhost)"
    if not _same_site(headers, host):
        return 403, "another web site asks; write from the box's own page or from a program"
    if scope["method"] in BODY_METHODS and headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
        return 415, "send JSON (Content-Type: application/json)"
    return None


def is_loopback(host: str) -> bool:
    """Whether an address or name is this machine's own."""
    if host.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def _host_name(host: str) -> str:
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


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


def _replay(body: bytes) -> Receive:
    sent = False

    async def receive() -> Message:
        nonlocal sent
        if sent:
            return {"type": "http.disconnect"}
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive
