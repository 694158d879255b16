"""Who may write over HTTP without a login: nobody but programs and people on this machine."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message, Receive, Scope, Send

from edge.api import make_app
from edge.api_guard import PROXY_HEADERS, Upload, WriteGuard
from edge.web.fake import FakeSource
from edge.web.hosts import is_loopback
from edge.web.who import Role, needs

LOCAL = {"host": "127.0.0.1:8080", "content-type": "application/json"}


def ask(
    method: str = "PUT", *, client: tuple[str, int] | None = ("127.0.0.1", 5000), headers: dict[str, str] | None = None,
    chunks: list[bytes] | None = None, limit: int = 100,
) -> tuple[int, list[bytes]]:  # fmt: skip
    """(status, bodies that reached the application)."""
    reached: list[bytes] = []
    sent: list[Message] = []
    waiting = list(chunks if chunks is not None else [b"{}"])

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        message = await receive()
        reached.append(message.get("body", b""))
        assert (await receive())["type"] == "http.disconnect", "the body comes once"
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive() -> Message:
        if not waiting:
            return {"type": "http.disconnect"}
        body = waiting.pop(0)
        return {"type": "http.request", "body": body, "more_body": bool(waiting)}

    async def send(message: Message) -> None:
        sent.append(message)

    raw = [(k.encode(), v.encode()) for k, v in (LOCAL | (headers or {})).items()]
    scope: dict[str, Any] = {"type": "http", "method": method, "client": client, "headers": raw, "path": "/x"}
    asyncio.run(WriteGuard(app, max_body_bytes=limit)(scope, receive, send))
    return int(sent[0]["status"]), reached


def test_this_machine_may_write() -> None:
    assert ask() == (200, [b"{}"])
    assert ask(headers={"host": "localhost:8080"})[0] == 200
    assert ask(client=("::1", 5000), headers={"host": "[::1]:8080"})[0] == 200
    assert ask(client=("::ffff:127.0.0.1", 5000))[0] == 200
    assert ask("DELETE", headers={"content-type": ""})[0] == 200, "without a body there is no type to name"


@pytest.mark.parametrize(
    "client", [("192.168.1.7", 5000), ("10.0.0.1", 1), ("::ffff:192.168.1.7", 1), ("", 0), ("unix", 0), None]
)
@pytest.mark.parametrize("method", ["PUT", "POST", "PATCH", "DELETE"])
def test_another_machine_may_not(client: tuple[str, int] | None, method: str) -> None:
    assert ask(method, client=client) == (403, [])


@pytest.mark.parametrize("header", PROXY_HEADERS)
def test_nobody_may_behind_a_proxy(header: str) -> None:
    assert ask(headers={header: "127.0.0.1"}) == (403, [])


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8080", "192.168.1.2:8080", "127.0.0.1.evil.example", "", "[::1"]
)
def test_a_foreign_name_that_leads_here_may_not(host: str) -> None:
    assert ask(headers={"host": host}) == (403, []), "DNS rebinding"


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"}, {"origin": "null"}, {"origin": "http://127.0.0.1:9999"}, {"origin": "http://localhost:8080"},
        {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}, {"origin": "http://127.0.0.1:8080.evil.example"},
    ],
)  # fmt: skip
def test_a_page_of_another_site_may_not(headers: dict[str, str]) -> None:
    assert ask(headers=headers) == (403, [])


def test_the_boxs_own_page_may() -> None:
    assert ask(headers={"origin": "http://127.0.0.1:8080", "sec-fetch-site": "same-origin"})[0] == 200


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", "application/jsonp"]
)
@pytest.mark.parametrize("method", ["PUT", "POST", "PATCH"])
def test_what_a_form_can_send_is_no_json(method: str, kind: str) -> None:
    assert ask(method, headers={"content-type": kind}) == (415, [])


def test_json_with_a_charset_is_json() -> None:
    assert ask(headers={"content-type": "Application/JSON; charset=utf-8"})[0] == 200


def test_a_body_is_bounded_however_it_comes() -> None:
    assert ask(chunks=[b"x" * 100])[0] == 200
    assert ask(chunks=[b"x" * 60, b"x" * 40]) == (200, [b"x" * 100])
    assert ask(chunks=[b"x" * 101]) == (413, [])
    assert ask(chunks=[b"x" * 60, b"x" * 60, b"x"]) == (413, [])


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_reading_is_not_looked_at(method: str) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        raise AssertionError("nobody reads a body here")

    scope = {
        "type": "http",
        "method": method,
        "client": ("203.0.113.9", 1),
        "headers": [(b"host", b"evil.example")],
        "path": "/",
    }
    asyncio.run(WriteGuard(app)(scope, receive, send))
    assert sent[0]["status"] == 200


@given(st.text(max_size=40))
def test_only_loopback_is_loopback(host: str) -> None:
    known = host.lower() == "localhost" or host.startswith("127.") or ":" in host
    assert not is_loopback(host) or known


@pytest.mark.parametrize(
    ("client", "headers", "role"),
    [
        (("127.0.0.1", 1), {}, "admin"),
        (("::1", 1), {}, "admin"),
        (("192.168.1.7", 1), {}, "viewer"),
        (("::ffff:192.168.1.7", 1), {}, "viewer"),
        (("127.0.0.1", 1), {"x-forwarded-for": "127.0.0.1"}, "viewer"),
        (("fe80::1", 1), {}, "viewer"),
    ],
)
def test_who_looks_from_elsewhere_is_a_viewer(client: tuple[str, int], headers: dict[str, str], role: str) -> None:
    """Logs, settings and diagnostics are read by those who may, also without accounts."""
    made = make_app(FakeSource())
    made.add_api_route("/for-operators", lambda: "secret", dependencies=[needs(Role.OPERATOR)])
    asked = TestClient(made, base_url="http://127.0.0.1", client=client)
    assert asked.get("/api/v1/me", headers=headers).json()["role"] == role
    assert asked.get("/for-operators", headers=headers).status_code == (200 if role == "admin" else 403)


def upload(
    chunks: list[bytes], *, length: int | None = None, kind: str = "application/octet-stream"
) -> tuple[int, list[bytes]]:
    """(status, pieces that reached a route that takes files of 100 bytes)."""
    reached: list[bytes] = []
    sent: list[Message] = []
    waiting = list(chunks)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            reached.append(message.get("body", b""))
            if not message.get("more_body"):
                break
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive() -> Message:
        return {"type": "http.request", "body": waiting.pop(0), "more_body": bool(waiting)}

    async def send(message: Message) -> None:
        sent.append(message)

    given_headers = {"host": "127.0.0.1", "content-type": kind} | (
        {"content-length": str(length)} if length is not None else {}
    )
    raw = [(k.encode(), v.encode()) for k, v in given_headers.items()]
    scope: dict[str, Any] = {"type": "http", "method": "POST", "client": ("127.0.0.1", 1), "headers": raw, "path": "/files/7"}
    files = (Upload(method="POST", path=r"/files/\d+", most_bytes=100),)
    asyncio.run(WriteGuard(app, max_body_bytes=10, uploads=files)(scope, receive, send))
    return int(sent[0]["status"]), reached


def test_a_route_that_takes_files_gets_them_piece_by_piece_within_its_bound() -> None:
    assert upload([b"x" * 60, b"y" * 40]) == (200, [b"x" * 60, b"y" * 40])
    assert upload([b"x" * 60, b"y" * 41]) == (413, [b"x" * 60]), "what came before had been handed on"
    assert upload([b"x"], length=101) == (413, [])
    assert upload([b"{}"], kind="application/json") == (415, [])


def test_after_a_body_that_nobody_read_the_connection_ends() -> None:
    client = TestClient(make_app(FakeSource()), base_url="http://127.0.0.1", client=("127.0.0.1", 1))
    answer = client.post("/api/v1/status", content=b"x", headers={"Content-Type": "text/plain"})
    assert (answer.status_code, answer.headers["connection"]) == (415, "close")
