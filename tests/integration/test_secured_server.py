"""The real server with accounts and TLS, on loopback: hostile requests, uploads without end, viewers that go away, nothing secret."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import websockets

from configs.errors import EnvironmentLacking, UsageError
from configs.load import parse_config
from configs.schema import BoxConfig
from edge.api import STATIC
from edge.client import ask_box, running_status
from edge.labels_fake import FakeLabels
from edge.web.accounts.local import read_local_token, write_local_token
from edge.web.fake import FakeSource
from edge.web.serve import WebServer
from edge.web.services import Services
from edge.web.tls import Certificates, make_own, own_paths
from edge.web.who import Role
from tests.support.accounts import HOSTS, PASSWORD, House, bearer
from tests.support.event_library import UTC, Shelf, id_of, object_of
from tests.support.secure_headers import header_findings

pytestmark = pytest.mark.timeout(300)
PATIENCE_S = 120.0
MIB = 2**20


class Secured:
    """A server over a folder, as `driftbox run` would make it."""

    def __init__(self, folder: Path, *, tls: bool) -> None:
        self.folder = folder
        self.house = House(folder, local=write_local_token(folder))
        self.config: BoxConfig = parse_config(f"box: {{data_dir: {folder}}}\nweb: {{tls: '{'own' if tls else 'off'}'}}")
        self.certificates = Certificates(self.config.web, folder, now_utc=self.now()) if tls else None
        parts = Services(accounts=self.house.accounts, hosts=HOSTS, labels=FakeLabels(4))
        context = self.certificates.context if self.certificates is not None else None
        self.server = WebServer(FakeSource(), host="127.0.0.1", port=0, services=parts, tls=context)

    @staticmethod
    def now() -> float:
        import time

        return time.time()

    def __enter__(self) -> Secured:
        self.server.start()
        self.port = int(self.server.url.rstrip("/").rpartition(":")[2])
        web = self.config.web.model_copy(update={"port": self.port})
        self.config = self.config.model_copy(update={"web": web})
        return self

    def __exit__(self, *_: object) -> None:
        self.server.stop()
        self.house.close()

    def trust(self) -> ssl.SSLContext:
        """As a browser that was told to trust the box's certificate: names are checked."""
        return ssl.create_default_context(cafile=str(own_paths(self.folder)[0]))

    def client(self, **more: Any) -> httpx.Client:
        verify = self.trust() if self.certificates is not None else False
        return httpx.Client(base_url=self.server.url, verify=verify, timeout=PATIENCE_S, **more)

    def raw(self, data: bytes, *, ends: bool = False) -> bytes:
        """What comes back for these bytes, until the box closes. ends: no more will come, and the box is told so."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S) as sock:
            sock.sendall(data)
            if ends:
                sock.shutdown(socket.SHUT_WR)
            found = b""
            while chunk := sock.recv(65536):
                found += chunk
        return found


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[Secured]:
    with Secured(tmp_path, tls=False) as running:
        yield running


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Secured]:
    with Secured(tmp_path, tls=True) as running:
        yield running


# --- TLS --------------------------------------------------------------------------------------------------------------


def test_a_browser_signs_in_over_tls(secured: Secured) -> None:
    assert secured.server.url.startswith("https://")
    with secured.client() as client:
        page = client.get("/")
        assert page.headers["strict-transport-security"] == "max-age=31536000"
        answer = client.post("/api/v1/sign-in", json={"name": "admin", "password": PASSWORD})
        assert answer.headers["set-cookie"].startswith("__Host-driftbox=")
        assert client.get("/api/v1/status").status_code == 200


def test_plain_http_gets_nothing_from_a_tls_port(secured: Secured) -> None:
    with pytest.raises((http.client.HTTPException, OSError)):
        connection = http.client.HTTPConnection("127.0.0.1", secured.port, timeout=PATIENCE_S)
        connection.request("GET", "/healthz")
        connection.getresponse()
    with secured.client() as client:
        assert client.get("/healthz").status_code == 200


def test_who_does_not_trust_the_certificate_is_told(secured: Secured) -> None:
    with pytest.raises(httpx.ConnectError, match="certificate"), httpx.Client(timeout=PATIENCE_S) as client:
        client.get(secured.server.url)


def test_a_new_certificate_is_taken_up_without_a_restart(secured: Secured) -> None:
    def seen() -> bytes:
        with socket.create_connection(("127.0.0.1", secured.port), timeout=PATIENCE_S) as sock:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            with context.wrap_socket(sock) as wrapped:
                found = wrapped.getpeercert(binary_form=True)
        assert found is not None
        return found

    before = seen()
    assert secured.certificates is not None
    secured.certificates.look(secured.now() + 350 * 86_400.0)
    assert seen() != before


# --- the command line beside it ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("tls", [False, True])
def test_commands_on_the_machine_ask_without_a_password(tmp_path: Path, tls: bool) -> None:
    with Secured(tmp_path, tls=tls) as running:
        status = running_status(running.config, timeout_s=PATIENCE_S)
        assert status is not None
        assert status.box == "demo"
        assert ask_box(running.config, "GET", "me")["kind"] == "local"
        assert ask_box(running.config, "PUT", "labels/gate/1/0", {"boxes": []})["state"] == "person"
        with pytest.raises(UsageError, match="gate/000009/000000009") as caught:
            ask_box(running.config, "GET", "labels/gate/9/9")
        assert caught.value.code == "not_found"
        (tmp_path / "web" / "local-token").write_text("driftbox_local_" + "x" * 43)
        assert running_status(running.config, timeout_s=PATIENCE_S) is None
        with pytest.raises(UsageError, match="not valid"):
            ask_box(running.config, "GET", "me")
        (tmp_path / "web" / "local-token").unlink()
        with pytest.raises(UsageError, match="sign in"):
            ask_box(running.config, "GET", "me")
    with pytest.raises(EnvironmentLacking) as nobody:
        ask_box(running.config, "GET", "me")
    assert nobody.value.code == "not_running"


def test_a_box_with_another_certificate_is_not_believed(secured: Secured) -> None:
    cert, _ = make_own({"localhost"}, set(), now_utc=secured.now())
    own_paths(secured.folder)[0].write_bytes(cert)
    assert running_status(secured.config, timeout_s=PATIENCE_S) is None, "the token is not shown to whoever answers"


def test_the_token_of_a_box_is_new_at_every_start_and_its_users_alone(tmp_path: Path) -> None:
    first, second = write_local_token(tmp_path), write_local_token(tmp_path)
    assert first != second == read_local_token(tmp_path)
    path = tmp_path / "web" / "local-token"
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_bytes(b"\xff\xfe")
    assert read_local_token(tmp_path) is None
    assert read_local_token(tmp_path / "nowhere") is None


# --- hostile requests -------------------------------------------------------------------------------------------------

TRAVERSALS = [
    "/static/../../../../../../etc/passwd",
    "/static/..%2f..%2f..%2f..%2f..%2fetc/passwd",
    "/static/%2e%2e/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
    "/static/....//....//etc/passwd",
    "/static//etc/passwd",
    "/static/..\\..\\..\\etc\\passwd",
    "/static/%5c..%5c..%5cetc%5cpasswd",
    "/static/../api.py",
    "/static/..%2fapi.py",
    "/static/pages/../../serve.py",
    "/static/%00",
    "/static/\xff",
    "/../../etc/passwd",
    "//etc/passwd",
    "/static/%252e%252e%252fapi.py",
    "/static/.",
    "/static/..",
    "/static/live.js/../../../api.py",
]


def test_no_path_leaves_the_folder_of_the_pages(plain: Secured) -> None:
    for path in TRAVERSALS:
        answer = plain.raw(b"GET " + path.encode("latin-1") + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        status = int(answer.split(b" ", 2)[1])
        assert status in (400, 401, 404, 405), (path, status)
        assert b"root:" not in answer
        assert b"def make_app" not in answer
    assert b"def make_app" in (STATIC.parents[1] / "api.py").read_bytes(), "the net has no hole"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\r\n\r\n",
        b"GET\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"POST /api/v1/sign-in HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /api/v1/sign-in HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET /api/v1/status HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer " + b"x" * 70_000 + b"\r\n\r\n",
        b"GET /api/v1/status HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: driftbox=\xff\xfe;;;=;\r\n\r\n",
        b"GET " + b"/a" * 40_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    ],
)
def test_bytes_that_are_no_request_end_nothing(plain: Secured, data: bytes) -> None:
    try:
        answer = plain.raw(data, ends=True)
    except OSError:
        answer = b""
    assert b"cameras" not in answer
    assert not answer.startswith(b"HTTP/1.1 5")
    with plain.client() as client:
        assert client.get("/healthz").status_code == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/"),
        ("GET", "/static/ui.js"),
        ("GET", "/healthz"),
        ("GET", "/api/v1/status"),
        ("GET", "/nothing"),
        ("POST", "/api/v1/sign-in"),
        ("GET", "/api/v1/sign-in"),
        ("DELETE", "/"),
        ("OPTIONS", "/api/v1/status"),
        ("TRACE", "/"),
        ("GET", "/static/nothing.js"),
    ],
)
def test_every_answer_has_the_headers(secured: Secured, method: str, path: str) -> None:
    with secured.client() as client:
        answer = client.request(method, path)
    assert header_findings(answer.headers) == []
    assert answer.status_code < 500


# --- uploads without end ----------------------------------------------------------------------------------------------


def resident_bytes() -> int:
    return int(psutil.Process().memory_info().rss)


@pytest.mark.parametrize("known", [False, True])
def test_a_gigabyte_that_is_announced_is_refused_unread(plain: Secured, known: bool) -> None:
    words = b"Authorization: " + bearer(plain.house.token(Role.OPERATOR))["Authorization"].encode() + b"\r\n" if known else b""
    head = b"PUT /api/v1/labels/gate/1/0 HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n" + words
    answer = plain.raw(head + b"Content-Length: 1073741824\r\n\r\n")
    assert answer.split(b" ", 2)[1] == (b"413" if known else b"401")


def test_a_gigabyte_in_pieces_is_cut_off_and_costs_no_memory(plain: Secured) -> None:
    token = bearer(plain.house.token(Role.OPERATOR))["Authorization"]
    head = (
        "PUT /api/v1/labels/gate/1/0 HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Authorization: {token}\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    before, sent = resident_bytes(), 0
    piece = b"10000\r\n" + b" " * 65536 + b"\r\n"
    with socket.create_connection(("127.0.0.1", plain.port), timeout=PATIENCE_S) as sock:
        sock.sendall(head.encode())
        try:
            while sent < 1024 * MIB:
                sock.sendall(piece)
                sent += 65536
        except OSError:
            pass  # the box has closed
    assert sent < 64 * MIB, "cut off early"
    assert resident_bytes() - before < 64 * MIB
    with plain.client() as client:
        assert client.get("/healthz").status_code == 200


# --- people and viewers who go away ------------------------------------------------------------------------------------


def test_browsers_that_go_away_in_the_middle_leave_nothing_behind(plain: Secured) -> None:
    token = plain.house.token()
    process = psutil.Process()

    def broken_off() -> None:
        with socket.create_connection(("127.0.0.1", plain.port), timeout=PATIENCE_S) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset, no farewell
            sock.sendall(
                f"GET /api/v1/cameras/gate/picture.jpg HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
            )

    def half_asked() -> None:
        with socket.create_connection(("127.0.0.1", plain.port), timeout=PATIENCE_S) as sock:
            sock.sendall(
                b"POST /api/v1/sign-in HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 50\r\n\r\n{"
            )

    def answered() -> None:
        with plain.client() as client:
            assert client.get("/healthz").status_code == 200

    broken_off()
    answered()
    before = process.num_fds()
    for _ in range(60):
        broken_off()
        half_asked()
    answered()
    deadline = threading.Event()
    for _ in range(600):
        if process.num_fds() <= before + 3:
            break
        deadline.wait(0.1)
    assert process.num_fds() <= before + 3


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    """Events with one clip, of more than sockets take up by themselves: whoever reads its beginning stands in its middle."""
    shelf = Shelf(tmp_path)
    shelf.add(object_of(1))
    clip = shelf.add_clip("gate", UTC + 8.0)
    with (tmp_path / "media" / clip.path).open("ab") as file:
        file.write(bytes(64 * MIB))
    return shelf


def test_browsers_that_go_away_in_the_middle_of_a_clip_let_go_of_it(shelf: Shelf, tmp_path: Path) -> None:
    process = psutil.Process()
    with WebServer(FakeSource(), host="127.0.0.1", port=0, services=Services(events=shelf.library)) as server:
        port = int(server.url.rstrip("/").rpartition(":")[2])

        def begun() -> socket.socket:
            sock = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset, no farewell
            sock.sendall(f"GET /api/v1/events/{id_of(1)}/clip.mp4 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            assert sock.recv(15) == b"HTTP/1.1 200 OK"
            return sock

        def reading() -> int:
            return sum(file.path.endswith(".mp4") for file in process.open_files())

        def reads(wanted: int) -> bool:
            patience = threading.Event()
            return any(reading() == wanted or patience.wait(0.1) for _ in range(int(10 * PATIENCE_S)))

        before_bytes, viewers = resident_bytes(), [begun() for _ in range(20)]
        assert reads(20), "all of them stand in the middle"
        assert resident_bytes() - before_bytes < 64 * MIB, "and the box holds a little of it for each, not the clip"
        for viewer in viewers:
            viewer.close()
        assert reads(0)
        with httpx.Client(base_url=server.url, timeout=PATIENCE_S) as client:
            answer = client.get(f"/api/v1/events/{id_of(1)}/clip.mp4", headers={"Range": "bytes=0-99"})
        assert (answer.status_code, len(answer.content)) == (206, 100)


async def watched(secured: Secured, headers: dict[str, str], count: int) -> list[dict[str, Any]]:
    url = f"wss://127.0.0.1:{secured.port}/api/v1/live"
    async with websockets.connect(url, ssl=secured.trust(), additional_headers=headers, open_timeout=PATIENCE_S) as ws:
        return [json.loads(await asyncio.wait_for(ws.recv(), PATIENCE_S)) for _ in range(count)]


def test_live_updates_over_tls_with_the_cookie(secured: Secured) -> None:
    with secured.client() as client:
        client.post("/api/v1/sign-in", json={"name": "viewer", "password": PASSWORD})
        cookie = "; ".join(f"{name}={value}" for name, value in client.cookies.items())
    own = {"Cookie": cookie, "Origin": secured.server.url.rstrip("/")}
    first, second = asyncio.run(watched(secured, own, 2))
    assert (first["type"], second["type"], second["seq"]) == ("status", "patch", first["seq"] + 1)
    for wrong in ({"Cookie": cookie, "Origin": "https://evil.example"}, {"Origin": own["Origin"]}, {}):
        with pytest.raises(websockets.InvalidStatus) as caught:
            asyncio.run(watched(secured, wrong, 1))
        assert caught.value.response.status_code == 403


def test_viewers_that_vanish_are_forgotten(plain: Secured) -> None:
    token = plain.house.token()
    key = "dGhlIHNhbXBsZSBub25jZQ=="
    shake = (
        f"GET /api/v1/live HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        f"Sec-WebSocket-Key: {key}\r\nAuthorization: Bearer {token}\r\n\r\n"
    ).encode()
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", plain.port), timeout=PATIENCE_S) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            sock.sendall(shake)
            assert sock.recv(12) == b"HTTP/1.1 101"
    with plain.client() as client:
        assert client.get("/healthz").status_code == 200
        assert client.get("/api/v1/status", headers=bearer(token)).status_code == 200


# --- nothing secret anywhere --------------------------------------------------------------------------------------------


def test_nothing_that_opens_a_door_lies_about(
    plain: Secured, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """Passwords, tokens, sessions, codes: not in the folder, the log, the answers, the errors, or the environment of the process."""
    canary = "zzCANARYzz long enough"
    secrets: list[str] = [canary, "zzOTHERzz long enough"]
    seen: list[str] = []
    with plain.client() as client:
        client.post("/api/v1/sign-in", json={"name": "admin", "password": PASSWORD})
        secrets += client.cookies.values()
        client.headers["X-Driftbox"] = "page"
        asked = [
            ("POST", "/api/v1/sign-in", {"name": canary, "password": canary}),
            ("POST", "/api/v1/sign-in", {"name": "admin", "password": canary}),
            ("POST", "/api/v1/claim", {"name": "kim", "password": canary, "code": canary}),
            ("POST", "/api/v1/accounts/users", {"name": "kim", "password": canary, "role": "viewer"}),
            ("PUT", "/api/v1/accounts/users/kim/password", {"password": secrets[1]}),
            ("PUT", "/api/v1/me/password", {"old": canary, "new": canary}),
            ("PUT", "/api/v1/me/password", {"old": PASSWORD, "new": "x"}),
            ("GET", "/api/v1/accounts/audit", None), ("GET", "/api/v1/accounts/users", None), ("GET", "/api/v1/accounts/sessions", None),
            ("GET", "/api/v1/accounts/tokens", None), ("GET", "/api/v1/status", None), ("GET", "/api/v1/openapi.json", None),
        ]  # fmt: skip
        made = client.post("/api/v1/accounts/tokens", json={"name": "prog"}).json()["token"]
        secrets.append(made.split("_", 2)[2])
        for method, path, body in asked:
            seen.append(client.request(method, path, json=body).text)
        for token in (made, made[:-1] + "x"):
            seen.append(client.get("/api/v1/status", headers=bearer(token)).text)
    seen += [record.getMessage() for record in caplog.records]
    seen += list(capfd.readouterr())
    bytes_seen = b"\0".join(
        path.read_bytes() for path in plain.folder.rglob("*") if path.is_file() and path.name != "local-token"
    )
    local = read_local_token(plain.folder)
    assert local is not None
    secrets.append(local.secret)
    process = Path(f"/proc/{os.getpid()}")
    bytes_seen += b"".join((process / name).read_bytes() for name in ("cmdline", "environ") if process.exists())
    leaked = [number for number, secret in enumerate(secrets) if secret in "\n".join(seen) or secret.encode() in bytes_seen]
    assert leaked == []
    assert b"argon2id" in bytes_seen, "the net has no hole: accounts are in there"
    assert made[9:21].encode() in bytes_seen, "and the token's id"
