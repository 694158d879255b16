"""`/api/v1/labels` over a store in memory and over a data folder, without a socket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from configs.errors import StorageError
from edge.api import make_app
from edge.labels import MAX_BOXES, LabelPage, LabelsIn, LabelStore, LabelView, SampleName
from edge.labels_admin import FolderLabels
from edge.labels_fake import FakeLabels
from edge.web.fake import FakeSource
from edge.web.services import Services
from tests.support.labelled_folder import labelled_folder

BOX = {"class": "car", "xyxy": [10, 10, 40, 30]}


def client_of(store: LabelStore) -> TestClient:
    return TestClient(
        make_app(FakeSource(), Services(labels=store)), base_url="http://127.0.0.1:8080", client=("127.0.0.1", 50000)
    )


@pytest.fixture(params=["memory", "folder"])
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TestClient]:
    if request.param == "memory":
        yield client_of(FakeLabels(4))
        return
    labelled_folder(tmp_path)
    yield client_of(FolderLabels(tmp_path))


def first(client: TestClient) -> str:
    return f"/api/v1/labels/{client.get('/api/v1/labels').json()['labels'][0]['sample']}"


def test_a_list_comes_in_pages(client: TestClient) -> None:
    whole = LabelPage.model_validate_json(client.get("/api/v1/labels", params={"limit": 500}).text)
    seen: list[str] = []
    after: dict[str, Any] = {}
    while True:
        page = client.get("/api/v1/labels", params={"limit": 3, **after}).json()
        seen += [row["sample"] for row in page["labels"]]
        if page["next"] is None:
            break
        after = {"after": page["next"]}
    assert seen == [row.sample for row in whole.labels]


def test_a_correction_is_read_back_listed_and_undone(client: TestClient) -> None:
    url = first(client)
    before = client.get(url)
    answer = client.put(url, json={"boxes": [BOX]})
    assert answer.status_code == 200
    view = LabelView.model_validate_json(answer.text)
    assert (view.state, [b.class_name for b in view.boxes]) == ("person", ["car"])
    assert client.get(url).json() == answer.json()
    assert answer.headers["etag"] == client.get(url).headers["etag"] != before.headers["etag"]
    assert [row["sample"] for row in client.get("/api/v1/labels", params={"by": "person"}).json()["labels"]] == [view.sample]
    assert client.delete(url).json()["boxes"] == before.json()["boxes"]
    assert client.get("/api/v1/labels", params={"by": "person"}).json()["labels"] == []


def test_what_get_answers_put_takes(client: TestClient) -> None:
    url = first(client)
    boxes = client.get(url).json()["boxes"]
    assert client.put(url, json={"boxes": boxes}).json()["state"] == "person"


def test_a_sample_can_be_taken_out(client: TestClient) -> None:
    assert client.put(first(client), json={"ignored": True}).json()["state"] == "ignored"


def test_who_saw_older_labels_is_told(client: TestClient) -> None:
    url = first(client)
    seen = {"If-Match": client.get(url).headers["etag"]}
    assert client.put(url, json={"boxes": []}, headers=seen).status_code == 200
    assert client.put(url, json={"boxes": [BOX]}, headers=seen).status_code == 412
    assert client.delete(url, headers=seen).status_code == 412
    assert client.put(url, json={"boxes": [BOX]}, headers={"If-Match": "*"}).status_code == 200
    assert client.put(url, json={"boxes": [BOX]}, headers={"If-Match": "bare"}).status_code == 400


def test_pictures_with_and_without_boxes(client: TestClient) -> None:
    url = first(client) + "/picture.jpg"
    drawn, plain = client.get(url), client.get(url, params={"boxes": "false"})
    for picture in (drawn, plain):
        assert picture.headers["content-type"] == "image/jpeg"
        assert picture.content.startswith(b"\xff\xd8")
    assert drawn.content != plain.content


def test_an_unknown_sample_is_not_found(client: TestClient) -> None:
    for method, url in (
        ("GET", "/api/v1/labels/gate/9/9"), ("GET", "/api/v1/labels/gate/9/9/picture.jpg"), ("DELETE", "/api/v1/labels/gate/9/9"),
    ):  # fmt: skip
        answer = client.request(method, url)
        assert answer.status_code == 404
        assert "gate/000009/000000009" in answer.json()["detail"]
    assert client.put("/api/v1/labels/gate/9/9", json={"boxes": []}).status_code == 404


@pytest.mark.parametrize(
    "path",
    ["/api/v1/labels/..%2f..%2fetc/1/2", "/api/v1/labels/Gate/1/2", "/api/v1/labels/gate/-1/2", "/api/v1/labels/gate/1/x",
     "/api/v1/labels/gate/1/99999999999999999999"],
)  # fmt: skip
def test_a_path_that_names_no_sample_is_refused(client: TestClient, path: str) -> None:
    assert client.get(path).status_code in (404, 422)


@pytest.mark.parametrize(
    "params", [{"limit": 0}, {"limit": 501}, {"by": "robot"}, {"camera": "../x"}, {"window": -1}, {"after": "x" * 101}]
)
def test_a_query_out_of_bounds_is_refused(client: TestClient, params: dict[str, Any]) -> None:
    assert client.get("/api/v1/labels", params=params).status_code == 422


def test_a_cursor_that_is_none_is_refused(client: TestClient) -> None:
    assert client.get("/api/v1/labels", params={"after": "nonsense"}).status_code == 400


@pytest.mark.parametrize(
    "body",
    ['{"boxes": [{"class": "car"}]}', '{"boxes": [{"class": "car", "xyxy": [1, 2, 3]}]}', '{"boxes": 5}', '{"extra": 1}',
     '{"boxes": [{"class": "car", "xyxy": [1, 2, 1e9, 4]}]}', '{"boxes": [{"class": "car", "xyxy": [1, 2, "NaN", 4]}]}', "{", "null",
     '{"boxes": [' + ",".join(['{"class": "car", "xyxy": [1, 2, 30, 40]}'] * (MAX_BOXES + 1)) + "]}"],
)  # fmt: skip
def test_a_body_that_is_no_labels_is_refused_and_nothing_changes(client: TestClient, body: str) -> None:
    url = first(client)
    before = client.get(url).json()
    answer = client.put(url, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    assert client.get(url).json() == before


def test_boxes_outside_the_picture_are_refused_by_the_folder(tmp_path: Path) -> None:
    labelled_folder(tmp_path)
    client = client_of(FolderLabels(tmp_path))
    answer = client.put("/api/v1/labels/gate/0/0", json={"boxes": [{"class": "car", "xyxy": [1, 1, 900, 40]}]})
    assert (answer.status_code, answer.json()["code"]) == (422, "labels")
    assert "outside the picture" in answer.json()["detail"]


@pytest.mark.parametrize(("code", "status"), [("full", 507), ("read_only", 503), ("in_use", 503), ("corrupt", 409)])
def test_trouble_with_the_disk_is_said(code: str, status: int) -> None:
    class Full(FakeLabels):
        def put(self, name: SampleName, labels: LabelsIn, *, etag: str | None = None) -> LabelView:
            raise StorageError("no space left", code=code, remedy="free some")

    answer = client_of(Full()).put("/api/v1/labels/gate/1/0", json={"boxes": []})
    assert (answer.status_code, answer.json()["detail"]) == (status, "no space left; free some")


def test_without_labels_there_are_no_routes() -> None:
    assert TestClient(make_app(FakeSource())).get("/api/v1/labels").status_code == 404


def test_other_machines_read_and_do_not_write() -> None:
    store = FakeLabels()
    away = TestClient(make_app(FakeSource(), Services(labels=store)), client=("192.168.1.7", 40000))
    assert away.get("/api/v1/labels").status_code == 200
    assert away.put("/api/v1/labels/gate/1/0", json={"boxes": []}).status_code == 403
    assert away.delete("/api/v1/labels/gate/1/0").status_code == 403
    assert set(store.versions.values()) == {0}


def test_the_schema_is_published() -> None:
    spec = client_of(FakeLabels()).get("/api/v1/openapi.json").json()
    path = spec["paths"]["/api/v1/labels/{camera}/{window}/{seq}"]
    assert set(path) == {"get", "put", "delete"}
    assert {"403", "404", "412", "415"} <= set(path["put"]["responses"])
    schema = spec["components"]["schemas"]["BoxIn"]["properties"]
    assert set(schema) == {"class", "xyxy", "score"}
    assert spec["components"]["schemas"]["LabelsIn"]["properties"]["boxes"]["maxItems"] == MAX_BOXES
