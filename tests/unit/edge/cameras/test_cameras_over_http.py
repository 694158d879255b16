"""`/api/v1/cameras` and `/api/v1/commands` over a real book in a folder, without a socket."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from configs.errors import JobError, UsageError
from configs.load import parse_config
from edge.api import make_app
from edge.cameras.live_desk import LiveDesk, with_credentials
from edge.cameras.offline import OfflineControl, offline
from edge.cameras.onvif import Onvif
from edge.cameras.probe import Prober
from edge.control import COMMANDS
from edge.web.fake import FakeSource
from edge.web.services import Services
from edge.web.who import Role
from streams.source import CameraState, CameraStatus
from tests.support.accounts import House
from tests.support.fakes import StillCamera

URL = "/api/v1/cameras"
SECRET = "c4nary-pw"
FILE = """
box: {{data_dir: {data}}}
cameras:
  - {{id: gate, url: "rtsp://user:{secret}@192.0.2.1/main", name: "<b>Gate</b>"}}
"""


class Answers:
    """A camera with a picture behind every address."""

    def __init__(self) -> None:
        self.opened: list[str] = []

    def __call__(self, text: str, transport: str) -> StillCamera:
        self.opened.append(text)
        camera = StillCamera("probe")
        camera.show(1)
        camera.status = lambda: CameraStatus(state=CameraState.LIVE, since_s=0, width_px=64, height_px=64, fps=5)  # type: ignore[method-assign]
        return camera


class Told:
    """See `edge.control.BoxControl`."""

    def __init__(self) -> None:
        self.commands: list[tuple[str, dict[str, Any], str]] = []

    def do(self, command: str, arguments: Mapping[str, Any], *, by: str) -> dict[str, Any]:
        if arguments.get("camera") == "nobody":
            raise UsageError("there is no camera nobody", code="not_found")
        if arguments.get("camera") == "busy":
            raise JobError("another change takes long", code="busy")
        self.commands.append((command, dict(arguments), by))
        return {"done": command}


class Site:
    def __init__(self, control: OfflineControl) -> None:
        self.opened, self.told = Answers(), Told()
        self.asked: list[Mapping[str, Any]] = []
        self.desk = LiveDesk(control, Prober(open=self.opened), Onvif(self._ask))
        self.services = Services(cameras=self.desk, control=self.told)
        self.client = TestClient(
            make_app(FakeSource(), self.services), base_url="http://127.0.0.1:8080", client=("127.0.0.1", 50000)
        )

    def _ask(self, asked: Mapping[str, Any], within_s: float) -> dict[str, Any]:
        self.asked.append(asked)
        return (
            {"cameras": [{"address": "http://192.0.2.5/onvif", "name": "Dome"}]}
            if asked["do"] == "discover"
            else {"code": "auth"}
        )


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with offline(parse_config(FILE.format(data=tmp_path, secret=SECRET))) as control:
        yield Site(control)


def test_a_camera_is_added_changed_and_removed(site: Site) -> None:
    answer = site.client.post(
        URL, json={"name": "Hof \N{DOOR}", "url": "rtsp://192.0.2.9/s", "credentials": {"user": "u", "password": SECRET}}
    )
    assert answer.status_code == 201, answer.text
    added = answer.json()
    assert (added["id"], added["source"], added["has_credentials"]) == ("hof", "added", ["url"])
    assert answer.headers["etag"] == f'"{added["etag"]}"'
    assert site.client.get(f"{URL}/hof").json() == added
    changed = site.client.patch(f"{URL}/hof", json={"fps": 2}, headers={"If-Match": answer.headers["etag"]}).json()
    assert (changed["entry"]["fps"], changed["title"]) == (2, "Hof \N{DOOR}")
    assert [camera["id"] for camera in site.client.get(URL).json()["cameras"]] == ["gate", "hof"]
    assert site.client.delete(f"{URL}/hof").status_code == 204
    assert site.client.get(f"{URL}/hof").status_code == 404


def test_no_answer_has_a_password_in_it(site: Site) -> None:
    site.client.post(URL, json={"id": "a", "url": f"rtsp://u:{SECRET}@192.0.2.9/s"})
    answers = [
        site.client.get(URL), site.client.get(f"{URL}/a"), site.client.patch(f"{URL}/a", json={"fps": 2}),
        site.client.post(URL, json={"url": f"gopher://u:{SECRET}@x/y"}), site.client.post(URL, json={"url": f"rtsp://u:{SECRET}@h:0/y"}),
        site.client.post(URL, json={"id": "a", "url": f"rtsp://u:{SECRET}@192.0.2.9/s"}),
        site.client.post(f"{URL}/probe", json={"url": f"rtsp://u:{SECRET}@192.0.2.9/s"}),
        site.client.post(f"{URL}/probe", json={"url": f"rtsp://u:{SECRET}@[bad/s"}),
        site.client.post(f"{URL}/probe", json={"onvif": "192.0.2.9", "user": "u", "password": SECRET, "more": SECRET}),
        site.client.get("/api/v1/openapi.json"),
    ]  # fmt: skip
    assert not [answer.text for answer in answers if SECRET in answer.text]
    assert all(answer.status_code < 500 for answer in answers)


def test_what_cannot_be_is_told_field_by_field(site: Site) -> None:
    answer = site.client.post(URL, json={"url": "rtsp://192.0.2.9/s", "fps": -1, "zones": {"a": [[0, 0]]}, "what": 1})
    assert answer.status_code == 422
    assert {p["field"] for p in answer.json()["problems"]} == {"fps", "zones", "what"}
    assert site.client.get(URL).json()["cameras"][0]["id"] == "gate"


def test_html_in_a_name_is_text(site: Site) -> None:
    info = site.client.get(f"{URL}/gate").json()
    assert info["title"] == "<b>Gate</b>"
    assert site.client.get(f"{URL}/gate").headers["content-type"].startswith("application/json")


def test_odd_bodies_are_refused(site: Site) -> None:
    wrong = ([], "x", 7, {"id": {"a": 1}}, {"name": ["x"], "url": 3}, {"url": "rtsp://h/s", "id": "../x"})
    assert [site.client.post(URL, json=body).status_code for body in wrong] == [422] * len(wrong)


def test_odd_ids_are_nobody(site: Site) -> None:
    for id in ("..%2f..%2fetc", "UPPER", "a b", "%F0%9F%98%80", "x" * 64):
        path = f"{URL}/{id}"
        for answer in (site.client.get(path), site.client.delete(path), site.client.patch(path, json={"fps": 1})):
            assert answer.status_code in (404, 405, 422)


def test_who_has_not_seen_the_newest_is_told(site: Site) -> None:
    old = site.client.get(f"{URL}/gate").headers["etag"]
    assert site.client.patch(f"{URL}/gate", json={"fps": 2}, headers={"If-Match": old}).status_code == 200
    for answer in (
        site.client.patch(f"{URL}/gate", json={"fps": 3}, headers={"If-Match": old}),
        site.client.delete(f"{URL}/gate", headers={"If-Match": old}),
    ):
        assert (answer.status_code, answer.json()["code"]) == (412, "changed")


def test_the_file_says_again_what_it_says(site: Site) -> None:
    site.client.patch(f"{URL}/gate", json={"fps": 2})
    assert site.client.post(f"{URL}/gate/reset", json={}).json()["source"] == "file"
    site.client.post(URL, json={"id": "a", "url": "rtsp://192.0.2.9/s"})
    assert site.client.post(f"{URL}/a/reset", json={}).json() is None


def test_an_id_is_proposed_that_nobody_has(site: Site) -> None:
    assert site.client.get(f"{URL}/propose-id", params={"name": "Gate"}).json() == {"id": "gate-2"}
    assert site.client.get(f"{URL}/propose-id", params={"name": "\N{CAT FACE}"}).json() == {"id": "camera"}


def test_addresses_are_looked_at_and_their_picture_fetched(site: Site) -> None:
    given = {"url": "rtsp://192.0.2.9/s", "user": "u@x", "password": "p/w"}
    told = site.client.post(f"{URL}/probe", json=given).json()["url"]
    assert told["ok"]
    assert site.opened.opened == ["rtsp://u%40x:p%2Fw@192.0.2.9/s"]
    picture = site.client.get(told["picture_url"])
    assert (picture.status_code, picture.headers["content-type"]) == (200, "image/jpeg")
    assert site.client.get(f"{URL}/probe/{'x' * 16}/picture.jpg").status_code == 404
    assert site.client.post(f"{URL}/probe", json={}).status_code == 400
    assert site.client.post(f"{URL}/probe", json={"url": "rtsp://h/s", "onvif": "h"}).status_code == 400


def test_onvif_cameras_are_found_and_asked(site: Site) -> None:
    found = site.client.post(f"{URL}/discover", json={"seconds": 1}).json()
    assert found == {"cameras": [{"address": "192.0.2.5:80", "name": "Dome", "hardware": "", "location": ""}]}
    assert site.client.post(f"{URL}/discover", json={"seconds": 1000}).status_code == 422
    told = site.client.post(f"{URL}/probe", json={"onvif": "192.0.2.5", "user": "u", "password": "p"}).json()["onvif"]
    assert told["code"] == "auth"
    assert site.asked[-1]["password"] == "p"


# --- commands ---------------------------------------------------------------------------------------------------------


def test_every_command_has_a_route_and_reaches_the_box(site: Site) -> None:
    arguments = {
        "camera/watch": {"camera": "a", "on": True}, "camera/learning": {"camera": "a", "on": False}, "camera/restart": {"camera": "a"},
        "model/rollback": {"camera": "a"}, "model/promote": {"version": "v"},
    }  # fmt: skip
    assert set(arguments) == set(COMMANDS)
    for command, given in arguments.items():
        answer = site.client.post(f"/api/v1/commands/{command}", json=given)
        assert (answer.status_code, answer.json()) == (200, {"done": command})
    assert [(command, by) for command, _, by in site.told.commands] == [(command, "local") for command in arguments]
    assert site.told.commands[0][1] == {"camera": "a", "on": True}


def test_commands_that_cannot_be(site: Site) -> None:
    def status(command: str, body: Any) -> int:
        return site.client.post(f"/api/v1/commands/{command}", json=body).status_code

    assert status("camera/explode", {}) == 404
    assert status("camera/watch", {"camera": "a"}) == 422
    assert status("camera/watch", {"camera": "a", "on": "true"}) == 422
    assert status("camera/watch", {"camera": "a", "on": True, "more": 1}) == 422
    assert status("camera/watch", {"camera": "nobody", "on": True}) == 404
    assert status("camera/watch", {"camera": "busy", "on": True}) == 503


# --- roles ------------------------------------------------------------------------------------------------------------


def test_who_may_do_what(site: Site, tmp_path: Path) -> None:
    (tmp_path / "house").mkdir()
    house = House(tmp_path / "house")
    asks: list[tuple[str, str, Any]] = [
        ("POST", URL, {"url": "rtsp://192.0.2.9/s"}), ("PATCH", f"{URL}/gate", {"fps": 2}), ("DELETE", f"{URL}/gate", None),
        ("POST", f"{URL}/gate/reset", {}), ("POST", f"{URL}/discover", {}), ("POST", f"{URL}/probe", {"url": "rtsp://192.0.2.9/s"}),
        ("POST", "/api/v1/commands/camera/watch", {"camera": "a", "on": True}),
    ]  # fmt: skip
    viewer, operator, admin = (
        house.signed_in(role, services=site.services) for role in (Role.VIEWER, Role.OPERATOR, Role.ADMIN)
    )
    assert viewer.get(URL).status_code == 200
    for method, path, body in asks:
        assert viewer.request(method, path, json=body).status_code == 403, path
    assert operator.post(URL, json={"url": "rtsp://192.0.2.9/s"}).status_code == 201
    for url in ("/etc/passwd", "file:///etc/passwd", "/dev/video0", "etc/passwd"):
        assert operator.post(URL, json={"url": url}).status_code == 403
        assert operator.patch(f"{URL}/gate", json={"record_url": url}).status_code == 403
        assert operator.post(f"{URL}/probe", json={"url": url}).status_code == 422
    assert admin.post(URL, json={"id": "film", "url": "/videos/yard.mp4"}).status_code == 201


# --- credentials that come apart --------------------------------------------------------------------------------------


def test_user_and_password_go_into_addresses_that_have_none() -> None:
    given = {
        "url": "rtsp://192.0.2.1/s",
        "record_url": "rtsp://a:b@192.0.2.1/m",
        "credentials": {"user": "u:", "password": "p@/"},
    }
    assert with_credentials(given) == {"url": "rtsp://u%3A:p%40%2F@192.0.2.1/s", "record_url": "rtsp://a:b@192.0.2.1/m"}
    assert with_credentials({"url": "rtsp://192.0.2.1/s", "credentials": {"user": "", "password": ""}}) == {
        "url": "rtsp://192.0.2.1/s"
    }
    assert with_credentials({"url": "/dev/video0", "credentials": {"user": "u"}}) == {"url": "/dev/video0"}
    for wrong in ("x", [], {"user": 1}, {"pass": "x"}):
        with pytest.raises(Exception, match="credentials"):
            with_credentials({"url": "rtsp://h/s", "credentials": wrong})
