"""Every route of the interface, asked with a token that is held to a camera: it tells nothing of the others, nor whether they exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi import APIRouter
from fastapi.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from configs.errors import UsageError
from edge.cameras.desk import CameraInfo
from edge.labels import SampleName
from edge.labels_fake import FakeLabels
from edge.web.fake import STATES, FakeSource
from edge.web.fake_health import FakeHealth
from edge.web.held import ALLOWED, Way, status_for
from edge.web.live import LiveFeed
from edge.web.who import Role
from tests.support.accounts import AWAY, House, bearer
from tests.support.api_fuzz import FakeDesk, whole
from tests.support.event_library import filled, id_of

MINE, OTHER = "yard", "gate"
OTHERS = sorted(set(STATES) - {MINE})
#: Event 3 of the library is of the yard, the others are of the gate.
MY_EVENT, OTHER_EVENT = id_of(3), id_of(1)
PLACES = {"window": "1", "seq": "0", "query": "entrance", "number": "1", "token": "abcdefgh", "name": "viewer", "ref": "0" * 12}


class FullHouse(House):
    """With everything that a box can answer, cameras and events of several."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        filled(folder, events=6)  # beside us, in the same folder
        desk = FakeDesk()
        for id in STATES:
            desk.kept[id] = CameraInfo(id=id, title=f"The {id}", state="live", source="file", etag="0", entry={"id": id})
        self.feed = LiveFeed(FakeSource().status, seen_by=status_for, every_s=0.01)
        labels = FakeLabels(0)
        labels.versions = {SampleName(camera=id, window=1, seq=seq): 0 for id in (OTHER, MINE, "dock") for seq in range(2)}
        health = FakeHealth()
        self.services = replace(
            whole(self, folder), cameras=desk, labels=labels, live=self.feed, health=health, metrics=health, fleet=Never()
        )

    def held(self, *cameras: str, role: Role = Role.OPERATOR) -> dict[str, str]:
        name = f"held-{'-'.join(cameras)}"
        return bearer(str(self.accounts.add_token(name, role, owner="admin", by="t", address="", cameras=cameras)[0]))

    def program(self) -> TestClient:
        return self.client(address=AWAY, services=self.services)


class Never:
    """A part that such a token does not reach."""

    def fleet(self) -> Any:
        raise AssertionError("it was asked")


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FullHouse]:
    house = FullHouse(tmp_path_factory.mktemp("house"))
    yield house
    house.close()


@pytest.fixture(scope="module")
def client(house: FullHouse) -> TestClient:
    return house.program()


@pytest.fixture(scope="module")
def held(house: FullHouse) -> dict[str, str]:
    return house.held(MINE)


def operations(client: TestClient) -> list[tuple[str, str, str]]:
    """(method, path, media type of the body, '') of everything that the box says it answers."""
    found = []
    for path, methods in client.app.openapi()["paths"].items():  # type: ignore[attr-defined]
        for method, told in methods.items():
            usual = "application/json" if method in ("post", "put", "patch") else ""
            types = list(told.get("requestBody", {}).get("content", {usual: None}))
            found.append((method.upper(), path, types[0]))
    return found


def ask(client: TestClient, headers: dict[str, str], operation: tuple[str, str, str], *, camera: str, event: str) -> Any:
    """The operation about this camera or event, with a body that names the camera."""
    method, path, media = operation
    places = PLACES | {"camera": camera, "camera_id": camera, "id": event, "version": f"{camera}-2", "command": "x"}
    url = re.sub(r"{(\w+)}", lambda found: places[found[1]], path)
    switch = {"on": True} if path.endswith(("/watch", "/learning")) else {}
    body = json.dumps({"camera": camera} | switch) if media else None
    return client.request(method, url, headers=headers | ({"Content-Type": media} if media else {}), content=body)


def words_of_others(text: str) -> list[str]:
    return [id for id in OTHERS if re.search(rf"\b{id}\b", text)]


def about(operation: tuple[str, str, str]) -> bool:
    """Whether the address or the body names what is asked for."""
    method, path, _ = operation
    return "{" in path or path.startswith("/api/v1/commands")


def test_no_route_tells_of_another_camera(client: TestClient, held: dict[str, str]) -> None:
    asked = operations(client)
    assert len(asked) > 60
    for operation in asked:
        way = ALLOWED.get(operation[:2])
        answer = ask(client, held, operation, camera=OTHER, event=OTHER_EVENT)
        told = (operation, answer.status_code, answer.text[:300])
        if way is None or about(operation):
            assert answer.status_code in (403, 404), told
        assert words_of_others(answer.text) == [], told


def test_the_same_routes_do_tell_of_it_to_others(house: FullHouse, client: TestClient) -> None:
    """Or the test above would say nothing."""
    whole_token = bearer(house.token(Role.OPERATOR, name="whole"))
    looks = [one for one in operations(client) if one[0] == "GET" and ALLOWED.get(one[:2]) in (Way.NAMED, Way.ITSELF)]
    told = [one for one in looks if ask(client, whole_token, one, camera=OTHER, event=OTHER_EVENT).status_code == 200]
    assert {one[1] for one in looks} - {one[1] for one in told} == set()
    lists = [one for one in told if not about(one)]
    assert len(lists) == 5
    assert all(words_of_others(ask(client, whole_token, one, camera=OTHER, event=OTHER_EVENT).text) for one in lists)


def test_its_own_camera_is_there(client: TestClient, held: dict[str, str]) -> None:
    for operation in operations(client):
        if operation[0] == "GET" and operation[:2] in ALLOWED:
            if operation[1].endswith("clip.mp4"):  # there is none of this event
                continue
            answer = ask(client, held, operation, camera=MINE, event=MY_EVENT)
            assert answer.status_code == 200, (operation, answer.text[:300])
    assert [one["id"] for one in client.get("/api/v1/status", headers=held).json()["cameras"]] == [MINE]
    assert [one["id"] for one in client.get("/api/v1/cameras", headers=held).json()["cameras"]] == [MINE]
    assert [one["id"] for one in client.get("/api/v1/events", headers=held).json()["events"]] == [MY_EVENT]
    assert [one["sample"].split("/")[0] for one in client.get("/api/v1/labels", headers=held).json()["labels"]] == [MINE, MINE]
    assert client.post("/api/v1/commands/camera/restart", json={"camera": MINE}, headers=held).status_code == 200


def test_a_token_of_several_cameras_gets_these(house: FullHouse, client: TestClient) -> None:
    two = house.held(MINE, OTHER)
    assert {one["id"] for one in client.get("/api/v1/status", headers=two).json()["cameras"]} == {MINE, OTHER}
    assert len(client.get("/api/v1/events", headers=two).json()["events"]) == 6
    page = client.get("/api/v1/labels?limit=3", headers=two).json()
    rest = client.get(f"/api/v1/labels?limit=9&after={page['next']}", headers=two).json()
    assert {one["sample"].split("/")[0] for one in page["labels"] + rest["labels"]} == {MINE, OTHER}
    assert client.get("/api/v1/events?camera=gate", headers=two).status_code == 200


def test_another_camera_and_none_are_answered_alike(client: TestClient, held: dict[str, str]) -> None:
    def answers(camera: str, event: str) -> list[tuple[int, str]]:
        asked = [one for one in operations(client) if one[:2] in ALLOWED and about(one)]
        found = [ask(client, held, one, camera=camera, event=event) for one in asked]
        return [(answer.status_code, answer.text.replace(event, "EVENT")) for answer in found]

    assert answers(OTHER, OTHER_EVENT) == answers("nobody", "1700000000000-0000abcd")
    queries = [
        client.get(f"/api/v1/{part}?camera={id}", headers=held) for part in ("events", "labels") for id in (OTHER, "nobody")
    ]
    assert {(answer.status_code, answer.text) for answer in queries} == {
        (403, '{"detail":"this token is not for that camera"}')
    }
    both = client.get(f"/api/v1/events?camera={MINE}&camera={OTHER}", headers=held)
    assert both.status_code == 403


def test_a_route_that_nobody_has_thought_about_is_refused(house: FullHouse, held: dict[str, str]) -> None:
    app = house.app(house.services)
    routes = APIRouter(prefix="/api/v1/newest")

    @routes.get("/{camera}")
    def newest(camera: str) -> dict[str, str]:
        return {"camera": camera}

    app.include_router(routes)
    client = TestClient(app, base_url="http://box.local", client=AWAY)
    assert client.get(f"/api/v1/newest/{MINE}", headers=held).status_code == 403
    assert client.get(f"/api/v1/newest/{MINE}", headers=bearer(house.token(name="free"))).status_code == 200


def test_the_list_of_what_is_allowed_names_routes_that_there_are(client: TestClient) -> None:
    there = {operation[:2] for operation in operations(client)}
    assert set(ALLOWED) - there == {("GET", "/"), ("WEBSOCKET", "/api/v1/live")}


# --- live -------------------------------------------------------------------------------------------------------------

LIVE = "ws://box.local/api/v1/live"


def test_live_updates_are_of_its_camera_alone(house: FullHouse, held: dict[str, str]) -> None:
    with house.program() as client, client.websocket_connect(LIVE, headers=held) as mine:
        first = mine.receive_json()
        assert [one["id"] for one in first["status"]["cameras"]] == [MINE]
        with client.websocket_connect(LIVE, headers=bearer(house.token(name="all"))) as every:
            assert len(every.receive_json()["status"]["cameras"]) == len(STATES)
            for camera in (OTHER, MINE):
                house.feed.publish("object", {"object": {"camera": camera}}, camera=camera)
            house.feed.publish("note", {"text": "of the gate"})
            assert [text["object"]["camera"] for text in objects_of(every, 2)] == [OTHER, MINE]
        heard = objects_of(mine, 1)
        assert [text["object"]["camera"] for text in heard] == [MINE]
        seqs = [mine.receive_text() for _ in range(5)]
        assert not any(words_of_others(text) for text in seqs)
        assert [json.loads(text)["type"] for text in seqs] == ["patch"] * 5


def objects_of(socket: Any, count: int) -> list[Any]:
    """The next messages about objects, as they come between others."""
    found: list[Any] = []
    while len(found) < count:
        text = socket.receive_text()
        if json.loads(text)["type"] == "object":
            found.append(json.loads(text))
        else:
            assert json.loads(text)["type"] in ("patch", "note")
    return found


def test_live_updates_end_with_the_token(house: FullHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge.web.live.STILL_EVERY_S", 0.01)
    token, about_it = house.accounts.add_token("short", Role.VIEWER, owner=None, by="t", address="", cameras=[MINE])
    with house.program() as client, client.websocket_connect(LIVE, headers=bearer(str(token))) as socket:
        socket.receive_json()
        house.accounts.revoke_token(about_it.id, of=None, by="t", address="")
        with pytest.raises(WebSocketDisconnect):
            while True:
                socket.receive_json()


# --- making them ------------------------------------------------------------------------------------------------------


def test_such_a_token_is_an_operator_at_most_and_names_cameras(house: FullHouse) -> None:
    for cameras, role, code in (
        (["gate"], Role.ADMIN, "role"),
        (["../gate"], Role.VIEWER, "name"),
        ([""], Role.VIEWER, "name"),
    ):
        with pytest.raises(UsageError) as refused:
            house.accounts.add_token("never", role, owner=None, by="t", address="", cameras=cameras)
        assert refused.value.code == code


def test_an_admin_makes_one_on_the_page_and_sees_what_it_is_held_to(house: FullHouse) -> None:
    page = house.signed_in(Role.ADMIN, services=house.services)
    made = page.post("/api/v1/accounts/tokens", json={"name": "shop", "role": "viewer", "cameras": ["yard", "dock", "yard"]})
    assert made.status_code == 201
    assert made.json()["about"]["cameras"] == ["dock", "yard"]
    listed = {one["name"]: one for one in page.get("/api/v1/accounts/tokens").json()}
    assert (listed["shop"]["cameras"], listed["shop"]["areas"]) == (["dock", "yard"], [])
    assert any("held to camera dock, camera yard" in entry.detail for entry in house.accounts.audit_log())
    seen = house.program().get("/api/v1/status", headers=bearer(made.json()["token"])).json()["cameras"]
    assert {one["id"] for one in seen} == {"dock", "yard"}
    refused = page.post("/api/v1/accounts/tokens", json={"name": "all", "role": "admin", "cameras": ["yard"]})
    assert refused.status_code == 400
    assert "operator at most" in refused.json()["detail"]
