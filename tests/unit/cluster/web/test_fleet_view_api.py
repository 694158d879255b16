"""The fleet view's routes over a fake controller, without a socket: what is answered, who may do what, what is refused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from cluster.controller.http import make_app
from cluster.web.app import SHARED, STATIC, Sight
from cluster.web.fake import FakeServices
from edge.web.live import LiveFeed, _Told
from scheduler.fleet.types import CameraKey
from tests.support.accounts import HERE, HOSTS, PAGE, PASSWORD, House

FLEET = "/api/v1/fleet"


@pytest.fixture
def services() -> FakeServices:
    return FakeServices()


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    built = House(tmp_path)
    yield built
    built.close()


@pytest.fixture
def open_client(services: FakeServices) -> TestClient:
    """Without accounts: whoever asks on this machine may do everything."""
    return TestClient(make_app(services), base_url="http://127.0.0.1", client=HERE)


def test_without_accounts_only_this_machine_acts(services: FakeServices) -> None:
    elsewhere = TestClient(make_app(services), base_url="http://127.0.0.1", client=("192.0.2.7", 1234))
    assert elsewhere.get("/api/v1/fleet/state").status_code == 200
    assert elsewhere.put("/api/v1/fleet/boxes/north/drain", json={"on": True}).status_code == 403


def signed_in(services: FakeServices, house: House, role: str) -> TestClient:
    app = make_app(services, accounts=house.accounts, hosts=HOSTS)
    client = TestClient(app, base_url="http://box.local", client=HERE, headers=dict(PAGE))  # it adds to what it is given
    if role:
        assert client.post("/api/v1/sign-in", json={"name": role, "password": PASSWORD}).status_code == 200
    return client


@pytest.mark.parametrize(
    "path",
    ["/view", "/view/boxes/depot-1", "/view/cameras", "/view/cameras?customer=port&moved=true&limit=3", "/view/customers/port/course",
     "/view/history?hours=2&camera=depot-2/cam-2", "/members", "/status"],
)  # fmt: skip
def test_what_can_be_looked_at(open_client: TestClient, path: str) -> None:
    assert open_client.get(FLEET + path).status_code == 200


@pytest.mark.parametrize(
    ("path", "status"),
    [("/view/boxes/nowhere", 404), ("/view/customers/nobody/course", 404), ("/view/history?camera=x", 400),
     ("/view/history?hours=0", 422),      ("/view/cameras?limit=100000", 422), ("/view/cameras?offset=-1", 422)],
)  # fmt: skip
def test_what_is_not_there(open_client: TestClient, path: str, status: int) -> None:
    assert open_client.get(FLEET + path).status_code == status


def test_the_whole_view_is_the_status_that_the_frame_follows(open_client: TestClient) -> None:
    assert open_client.get("/api/v1/status").json() == open_client.get(f"{FLEET}/view").json()
    with open_client.websocket_connect("/api/v1/live") as socket:
        first = socket.receive_json()
    assert first["type"] == "status"
    assert first["status"]["totals"]["boxes"] == 15


def test_what_changed_is_sent_and_nothing_else(services: FakeServices) -> None:
    sight = Sight(services)

    class Shown:
        def model_dump(self, **_: Any) -> Any:
            return sight.view()

    feed = LiveFeed(Shown)  # type: ignore[arg-type]
    before, _ = feed._made({None: _Told()})[None]
    services.actions.drain("depot-1", True, by="anna")
    _, text = feed._made({None: before})[None]
    assert '"draining"' in text
    assert len(text) < 600, "one box changed"


def test_a_view_is_made_once_for_all_who_ask(services: FakeServices) -> None:
    sight = Sight(services)
    assert sight.view() is sight.view()
    services.actions.drain("depot-1", True, by="anna")
    assert next(row for row in sight.view()["boxes"] if row["id"] == "depot-1")["draining"]


# --- who may ----------------------------------------------------------------------------------------------------------

ROLLOUT = {"bundle": "b1", "customer": "city"}
WRITES: list[tuple[str, str, Any, str]] = [
    ("PUT", "/boxes/depot-1/drain", {"on": True}, "operator"), ("PUT", "/cameras/depot-1/cam-1/pin", {"box": "depot-1"}, "operator"),
    ("PATCH", "/rollouts/night-1", {"what": "stop"}, "operator"), ("POST", "/invites", {"days": 1}, "admin"),
    ("PUT", "/customers/zoo", {"goal": 0.7}, "admin"), ("PUT", "/sites/depot", {"latitude_deg": 1, "longitude_deg": 2}, "admin"),
    ("PUT", "/groups/region/north", {"weight": 2}, "admin"),
    ("DELETE", "/sites/depot", None, "admin"), ("DELETE", "/customers/nobody", None, "admin"),
]  # fmt: skip


@pytest.mark.parametrize("role", ["", "viewer", "operator", "admin"])
def test_every_action_needs_its_role(services: FakeServices, house: House, role: str) -> None:
    client, order = signed_in(services, house, role), ["", "viewer", "operator", "admin"]
    for method, path, body, needs in WRITES:
        before = len(services.history.told)
        status = client.request(method, FLEET + path, json=body).status_code
        if not role:
            assert status == 401, path
        elif order.index(role) < order.index(needs):
            assert status == 403, path
        else:
            assert status in (200, 201, 404), path
        if status in (401, 403):
            assert len(services.history.told) == before, "nothing was done"


def test_strangers_see_the_page_and_nothing_of_the_fleet(services: FakeServices, house: House) -> None:
    client = signed_in(services, house, "")
    assert client.get("/").status_code == 200
    assert client.get("/static/fleet/fleet.js").status_code == 200
    for path in ("/api/v1/status", f"{FLEET}/view", f"{FLEET}/view/history", "/api/v1/openapi.json"):
        assert client.get(path).status_code == 401


def test_the_audit_names_who_asked(services: FakeServices, house: House) -> None:
    signed_in(services, house, "operator").put(f"{FLEET}/boxes/depot-1/drain", json={"on": True})
    assert [(row.by, row.action, row.subject) for row in services.history.told] == [("operator", "drain", "depot-1")]


# --- what actions do --------------------------------------------------------------------------------------------------


def test_a_site_is_put_on_the_map_and_taken_off(open_client: TestClient) -> None:
    def place() -> Any:
        return next(s for s in open_client.get(f"{FLEET}/view").json()["sites"] if s["id"] == "depot")["latitude_deg"]

    assert open_client.put(f"{FLEET}/sites/depot", json={"latitude_deg": -10, "longitude_deg": 20}).status_code == 200
    assert place() == -10
    open_client.delete(f"{FLEET}/sites/depot")
    assert place() is None


def test_a_rollout_from_bundle_to_end(open_client: TestClient, services: FakeServices) -> None:
    assert open_client.patch(f"{FLEET}/rollouts/night-1", json={"what": "roll_back"}).status_code == 200
    services.happen_all_withdrawn("night-1")
    services.advance(1)
    assert services.state().rollouts["night-1"].state == "returned"
    raw = {"Content-Type": "application/octet-stream"}
    assert open_client.post(f"{FLEET}/rollouts/day", json=ROLLOUT).status_code == 404, "its bundle first"
    assert open_client.put(f"{FLEET}/bundles/b1", content=b"signed", headers=raw).status_code == 201
    assert services.actions.bundles == {"b1": b"signed"}
    assert open_client.post(f"{FLEET}/rollouts/day", json=ROLLOUT | {"steps_pct": [0, 50, 100]}).status_code == 201
    made = services.state().rollouts["day"]
    assert made.rules.steps_frac == (0.0, 0.5, 1.0)
    reports = {c.camera: c for view in services.state().boxes.values() for c in view.cameras}
    assert {reports[w.camera].customer for w in made.cameras} == {"city"}
    assert open_client.post(f"{FLEET}/rollouts/day", json=ROLLOUT).status_code == 409


@pytest.mark.parametrize(
    ("body", "status"),
    [({"bundle": "b1", "customer": "nobody"}, 400), ({"bundle": "b1", "cameras": ["no slash"]}, 400), ({"bundle": "../x"}, 422),
     ({"bundle": "b1", "steps_pct": [50, 10]}, 400), ({"bundle": "b1", "steps_pct": []}, 422), ({"bundle": "b1", "margin": 7}, 422),
     ({"bundle": "b1", "unknown": 1}, 422), ({}, 422)],
)  # fmt: skip
def test_a_rollout_that_cannot_be(open_client: TestClient, body: dict[str, Any], status: int) -> None:
    assert open_client.post(f"{FLEET}/rollouts/day", json=body).status_code == status


@pytest.mark.parametrize("name", ["a b", "x" * 64, "UPPER", "a.b"])
def test_names_are_checked_at_the_door(open_client: TestClient, name: str) -> None:
    assert open_client.put(f"{FLEET}/sites/{name}", json={"latitude_deg": 0, "longitude_deg": 0}).status_code == 422


def test_a_camera_is_pinned_where_it_is(open_client: TestClient, services: FakeServices) -> None:
    assert open_client.put(f"{FLEET}/cameras/depot-1/cam-1/pin", json={"box": "depot-1"}).status_code == 200
    assert services.state().leases[CameraKey(home="depot-1", camera="cam-1")].pinned


# --- what is served ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", sorted(str(p.relative_to(STATIC)) for p in STATIC.rglob("*.js")))
def test_every_module_finds_what_it_imports(open_client: TestClient, file: str) -> None:
    text = (STATIC / file).read_text(encoding="utf-8")
    for found in re.findall(r"""(?:from|import\()\s*"([./][^"]+)\"""", text):
        path = found if found.startswith("/") else f"/static/fleet/{(Path(file).parent / found).as_posix()}"
        assert open_client.get(path).status_code == 200, path
    assert "innerHTML" not in text
    assert "insertAdjacentHTML" not in text


def test_nothing_is_copied_from_the_box_s_pages() -> None:
    ours, theirs = ({path.read_bytes() for path in folder.rglob("*.js")} for folder in (STATIC, SHARED))
    assert not ours & theirs


def test_pages_have_the_box_s_headers(open_client: TestClient) -> None:
    answer = open_client.get("/")
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    assert answer.headers["cache-control"] == "no-store"
    assert not re.search(r"<script(?![^>]* src=)|style=|onclick=", answer.text), "no inline script or style"
