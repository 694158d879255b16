"""Headers of every answer: what a browser may do with a page of the box, and what it must not keep."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS = {
    # Everything comes from the box itself: no inline script or style, no frame, no plug-in, no form to elsewhere.
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",  # for browsers that do not know frame-ancestors
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Permitted-Cross-Domain-Policies": "none",
    "Permissions-Policy": "camera=(), display-capture=(), geolocation=(), magnetometer=(), microphone=(), payment=(), usb=()",
}  # fmt: skip
#: A year. Browsers heed it for names only, and only from a certificate they trust.
HSTS = "max-age=31536000"


class Hardened:
    """ASGI: adds them, also to what other middleware refuses. Works on streams: nothing is collected."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def hardened(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in headers_for(secure=scope.get("scheme") == "https").items():
                    headers[name] = value
                # Nothing here may be kept: pictures and numbers are old after a second, and a shared computer should not store them.
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await self._app(scope, receive, hardened)


def headers_for(*, secure: bool) -> dict[str, str]:
    return HEADERS | {"Strict-Transport-Security": HSTS} if secure else HEADERS
