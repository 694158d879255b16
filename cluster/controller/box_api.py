"""`/fleet/v1/...`: what boxes ask of the controller. Everything but `ca` and `join` needs a member's certificate.

The TLS layer asks for a certificate of our authority and puts what it got into the request (`cluster.controller.server`); it lets
expired ones through, so that here can be said that they have expired, and since when.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anyio import open_file, to_thread
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from pydantic import BaseModel, Field
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from cluster.controller.authority import Issued, Peer
from cluster.controller.membership import CONTROLLER, Joining, Membership
from cluster.controller.parcels import KEPT_S, MOST_BYTES, Parcels, parts_of
from cluster.controller.round import iso_utc
from configs.errors import DriftboxError, UsageError
from edge.web.accounts.rules import TooSoon
from scheduler.fleet.types import SCHEMA

#: In the request's state: DER of the client's certificate, as the TLS layer got it.
PEER = "peer_certificate"
PIECE_BYTES = 256 * 1024
MOST_JSON = 64 * 1024
_STATUS = {
    "code_unknown": 403, "code_expired": 403, "code_used": 403, "too_soon": 429, "too_many": 429, "id_taken": 409, "csr": 400,
    "box": 400,
    "certificate_missing": 401, "certificate_expired": 401, "certificate_revoked": 401, "not_addressee": 403, "not_found": 404,
    "parcel_expired": 410, "too_large": 413, "checksum": 422, "not_in_charge": 503, "full": 507,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Gatehouse:
    """What the endpoints work with. broker: host, port and tls, as boxes are to reach it; in_charge: whether this controller is, and who
    is else; wake: something has come."""

    membership: Membership
    parcels: Parcels
    broker: dict[str, Any]
    prefix: str
    url: str
    utc_s: Callable[[], float]
    in_charge: Callable[[], tuple[bool, str]]
    report_every_s: float = 5.0
    wake: Callable[[], None] = lambda: None


class JoinBody(BaseModel):
    code: str = Field(max_length=200)
    box: str = Field(max_length=200)
    site: str = Field(max_length=200)
    csr: str = Field(max_length=10_000)
    capacity_pct: float
    software: str = Field("", max_length=200)


class RenewBody(BaseModel):
    csr: str = Field(max_length=10_000)


def make_box_app(house: Gatehouse) -> FastAPI:
    """Its errors are `{"error": {...}}`, always."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(_ShortPosts)
    app.add_exception_handler(DriftboxError, answer_error)
    app.add_exception_handler(RequestValidationError, _answer_wrong)

    @app.get("/fleet/v1/ca")
    def ca() -> PlainTextResponse:
        return PlainTextResponse(house.membership.authority.pem)

    @app.post("/fleet/v1/join")
    def join(request: Request, body: JoinBody) -> dict[str, Any]:
        _needs_charge(house)
        address = request.client.host if request.client else ""
        asked = Joining(
            code=body.code, box=body.box, site=body.site, csr=body.csr, capacity_pct=body.capacity_pct, address=address
        )
        issued = house.membership.join(asked, now_utc_s=house.utc_s())
        house.wake()
        return _welcome(house, body.box, body.site, issued)

    @app.post("/fleet/v1/renew")
    def renew(request: Request, body: RenewBody) -> dict[str, Any]:
        _needs_charge(house)
        peer = member(house, request)
        issued = house.membership.renew(peer, body.csr, now_utc_s=house.utc_s())
        return _welcome(house, peer.box, house.membership.site_of(peer.box), issued)

    @app.post("/fleet/v1/leave")
    def leave(request: Request) -> dict[str, Any]:
        _needs_charge(house)
        house.membership.forget(member(house, request).box, "it left the fleet", now_utc_s=house.utc_s())
        house.wake()
        return {}

    @app.get("/fleet/v1/boxes/{box}/certificate")
    def certificate(request: Request, box: str) -> PlainTextResponse:
        member(house, request)
        if box == CONTROLLER:
            return PlainTextResponse(house.membership.authority.server_cert_file.read_text(encoding="ascii"))
        return PlainTextResponse(house.membership.certificate_of(box))

    _parcel_routes(app, house)
    return app


def _parcel_routes(app: FastAPI, house: Gatehouse) -> None:
    @app.put("/fleet/v1/parcels/{id}")
    async def put(request: Request, id: str) -> dict[str, Any]:
        _needs_charge(house)
        peer = await to_thread.run_sync(member, house, request)
        if int(request.headers.get("content-length") or 0) > MOST_BYTES:
            raise UsageError(f"a parcel has at most {MOST_BYTES // 2**20} MiB", subject=id[:80], code="too_large")
        to, _ = parts_of(id)
        if to != CONTROLLER:
            await to_thread.run_sync(house.membership.site_of, to)
        receiving = await to_thread.run_sync(house.parcels.receive, id, peer.box)
        try:
            async for piece in request.stream():
                await to_thread.run_sync(receiving.write, piece)
            found = await to_thread.run_sync(receiving.end, request.headers.get("x-sha256", ""))
        finally:
            receiving.drop()
        house.wake()
        return {"id": id, "size_bytes": found.size_bytes, "expires_utc": iso_utc(found.made_utc_s + KEPT_S)}

    @app.get("/fleet/v1/parcels/{id}")
    def get(request: Request, id: str) -> Response:
        _for_addressee(house, request, id)
        found = house.parcels.find(id)
        start = _start_of(request.headers.get("range", ""), found.size_bytes)
        headers = {"X-Sha256": found.sha256, "Content-Length": str(found.size_bytes - start), "Accept-Ranges": "bytes"}
        if start:
            headers["Content-Range"] = f"bytes {start}-{found.size_bytes - 1}/{found.size_bytes}"
        return StreamingResponse(
            _pieces(found.path, start),
            status_code=206 if start else 200,
            media_type="application/octet-stream",
            headers=headers,
        )

    @app.delete("/fleet/v1/parcels/{id}")
    def delete(request: Request, id: str) -> dict[str, Any]:
        _for_addressee(house, request, id)
        house.parcels.remove(id)
        house.wake()
        return {}


async def _pieces(path: Path, start: int) -> AsyncIterator[bytes]:
    async with await open_file(path, "rb") as file:
        await file.seek(start)
        while piece := await file.read(PIECE_BYTES):
            yield piece


def _start_of(header: str, size: int) -> int:
    """Of `bytes=N-`; 0 for anything else, which then gets all."""
    unit, _, given = header.partition("=")
    first, dash, last = given.partition("-")
    good = unit == "bytes" and dash == "-" and not last and first.isascii() and first.isdigit() and len(first) < 16
    return int(first) if good and int(first) < size else 0


class _ShortPosts:
    """ASGI: a POST must say how long it is, and be short: strangers may post."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            length = Headers(scope=scope).get("content-length", "")
            if not length.isdigit() or int(length) > MOST_JSON:
                error = UsageError(f"a request has at most {MOST_JSON} bytes, and says how many", code="too_large")
                await (await answer_error(Request(scope), error))(scope, receive, send)
                return
        await self._app(scope, receive, send)


# --- who asks ---------------------------------------------------------------------------------------------------------


def member(house: Gatehouse, request: Request) -> Peer:
    """Whose certificate came with the request. UsageError 'certificate_missing', '..._expired', '..._revoked'."""
    der = request.scope.get("state", {}).get(PEER)
    peer = house.membership.authority.peer(der) if isinstance(der, bytes) else None
    if peer is None:
        raise UsageError(
            "this needs the certificate of a box of this fleet",
            code="certificate_missing",
            remedy="driftbox fleet join, on the box",
        )
    problem = house.membership.problem(peer, now_utc_s=house.utc_s())
    if problem is not None:
        raise problem
    return peer


def _for_addressee(house: Gatehouse, request: Request, id: str) -> None:
    peer, (to, _) = member(house, request), parts_of(id)
    if peer.box != to:
        raise UsageError(f"parcel {id[:80]} is for box {to}", subject=id[:80], code="not_addressee")


def _needs_charge(house: Gatehouse) -> None:
    mine, why = house.in_charge()
    if not mine:
        raise UsageError(
            f"this controller is not in charge: {why}", code="not_in_charge", remedy="ask again in a few seconds, or there"
        )


def _welcome(house: Gatehouse, box: str, site: str, issued: Issued) -> dict[str, Any]:
    return {
        "schema": SCHEMA, "box": box, "site": site, "prefix": house.prefix, "certificate": issued.pem,
        "ca": house.membership.authority.pem, "expires_utc": iso_utc(issued.until_utc_s), "broker": house.broker, "url": house.url,
        "report_every_s": house.report_every_s,
    }  # fmt: skip


async def answer_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, DriftboxError)
    status = _STATUS.get(error.code, 422 if isinstance(error, UsageError) else 503)
    headers = {"Retry-After": f"{error.retry_s:.0f}"} if isinstance(error, TooSoon) else {}
    code = "too_many" if isinstance(error, TooSoon) else error.code
    body = {"code": code, "message": error.message, "subject": error.subject, "remedy": error.remedy}
    return JSONResponse({"error": body}, status_code=status, headers=headers)


async def _answer_wrong(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    where = ", ".join(sorted({".".join(str(part) for part in one["loc"][1:]) or "body" for one in error.errors()}))
    body = {
        "code": "wrong_input",
        "message": f"wrong or missing: {where}",
        "subject": where,
        "remedy": "docs/fleet/controller.md says what is wanted",
    }
    return JSONResponse({"error": body}, status_code=400)
