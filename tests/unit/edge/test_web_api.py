"""The HTTP interface over a fake source, without a socket."""

from __future__ import annotations

import json
import re

import pytest
from fastapi.testclient import TestClient

from edge.api import STATIC, make_app
from edge.status import BoxStatus, CameraView
from edge.web.fake import STATES, FakeSource


@pytest.fixture
def client() -> TestClient:
    return TestClient(make_app(FakeSource()))


def test_the_status_is_what_the_source_tells(client: TestClient) -> None:
    answer = client.get("/api/v1/status")
    assert answer.status_code == 200
    status = BoxStatus.model_validate_json(answer.text)
    assert [camera.id for camera in status.cameras] == list(STATES)
    assert status.schema_version == 1
    assert status.window is not None
    assert status.window.phase == "planned"


def test_the_schema_of_the_status_is_published(client: TestClient) -> None:
    spec = client.get("/api/v1/openapi.json").json()
    assert "/api/v1/status" in spec["paths"]
    assert set(CameraView.model_fields) == set(spec["components"]["schemas"]["CameraView"]["properties"])


def test_pictures(client: TestClient) -> None:
    picture = client.get("/api/v1/cameras/gate/picture.jpg")
    assert picture.status_code == 200
    assert picture.headers["content-type"] == "image/jpeg"
    assert picture.content.startswith(b"\xff\xd8\xff")
    assert client.get("/api/v1/cameras/dock/picture.jpg").status_code == 204, "known, but without a frame"
    unknown = client.get("/api/v1/cameras/nobody/picture.jpg")
    assert unknown.status_code == 404
    assert "nobody" in unknown.json()["detail"]


def test_health_and_readiness() -> None:
    source = FakeSource(ready=False)
    client = TestClient(make_app(source))
    assert client.get("/healthz").json()["ok"] is True
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()["ok"]) == (503, False)
    assert "starting" in answer.json()["detail"]
    source.ready = True
    assert client.get("/readyz").status_code == 200


@pytest.mark.parametrize("path", ["/", "/static/shell.js", "/static/style.css", "/static/icon.svg", "/api/v1/status"])
def test_nothing_is_cached_and_nothing_foreign_is_allowed(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["content-security-policy"].startswith("default-src 'self'")
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_the_page_needs_nothing_from_elsewhere() -> None:
    for file in (path for path in STATIC.rglob("*") if path.is_file()):
        text = file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|//[a-z]+\.[a-z]+/|@import", text), file.name


def test_the_page_never_interprets_data_as_markup() -> None:
    for file in STATIC.rglob("*.js"):
        script = file.read_text(encoding="utf-8")
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", script), file.name


def test_only_reading_is_possible(client: TestClient) -> None:
    assert client.post("/api/v1/status").status_code == 403, "not from this machine, see test_api_guard"
    here = TestClient(make_app(FakeSource()), base_url="http://127.0.0.1", client=("127.0.0.1", 50000))
    assert here.post("/api/v1/status", json={}).status_code == 405
    assert client.get("/docs").status_code == 404


def test_a_status_with_a_misspelt_field_is_refused() -> None:
    with pytest.raises(ValueError, match="extra"):
        CameraView.model_validate({"id": "a", "state": "live", "qualty": 0.5})


def test_the_fake_status_is_serialisable() -> None:
    assert json.loads(FakeSource().status().model_dump_json())["cameras"][2]["code"] == "timeout"
