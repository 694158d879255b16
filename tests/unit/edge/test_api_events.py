"""`/api/v1/events`: what is found, files and their parts, marks, deletion, and what is refused."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import av
import cv2
import numpy as np
import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edge.api import make_app
from edge.web.fake import FakeSource
from edge.web.services import Services
from edge.web.who import Role, Who
from tests.support.event_library import UTC, Shelf, filled, id_of

EVENTS = "/api/v1/events"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    """For tests that change nothing."""
    return filled(tmp_path_factory.mktemp("events"))


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return filled(tmp_path, events=6)


def asked(shelf: Shelf, role: Role = Role.ADMIN) -> TestClient:
    app = make_app(FakeSource(), Services(events=shelf.library))

    @app.middleware("http")
    async def who(request, call_next):  # type: ignore[no-untyped-def]
        request.state.who = Who(name="somebody", role=role)
        return await call_next(request)

    return TestClient(app, base_url="http://127.0.0.1:8080", client=("127.0.0.1", 5))


@pytest.fixture(scope="module")
def reader(shared: Shelf) -> Iterator[TestClient]:
    with asked(shared, Role.VIEWER) as client:
        yield client


def found(client: TestClient, **query: object) -> list[int]:
    answer = client.get(EVENTS, params={name.replace("klass", "class"): value for name, value in query.items()})  # type: ignore[misc]
    assert answer.status_code == 200, answer.text
    return [int(event["id"].split("-")[1], 16) for event in answer.json()["events"]]


def test_events_are_searched(reader: TestClient) -> None:
    assert found(reader, limit=3) == [29, 28, 27]
    assert found(reader, camera="yard") == [3]
    assert found(reader, klass="car") == [3]
    assert found(reader, zone="door") == [3]
    assert found(reader, clip=True) == [1]
    assert found(reader, open=True) == [29]
    assert found(reader, from_utc=UTC + 10, to_utc=UTC + 20) == [2, 1]
    assert found(reader, camera="nobody") == []
    assert 2 not in found(reader, snapshot=True, limit=200)
    assert reader.get(f"{EVENTS}/facets").json() == {"classes": ["car", "person"], "zones": ["door"]}


def test_pages_follow_each_other(reader: TestClient) -> None:
    numbers: list[int] = []
    after = None
    while True:
        page = reader.get(EVENTS, params={"limit": 7} | ({"after": after} if after else {})).json()
        numbers += [int(event["id"].split("-")[1], 16) for event in page["events"]]
        after = page["next"]
        if after is None:
            break
    assert numbers == list(reversed(range(30)))


def test_one_event_with_its_clips(reader: TestClient) -> None:
    event = reader.get(f"{EVENTS}/{id_of(1)}").json()
    assert event["has_clip"]
    assert event["ended_utc"] == UTC + 14
    (clip,) = event["clips"]
    assert (clip["part"], clip["began_utc"], clip["codec"], clip["masked"]) == (0, UTC + 8, "h264", False)
    zoned = reader.get(f"{EVENTS}/{id_of(3)}").json()
    assert (zoned["zones_been"], zoned["dwell_s"], zoned["lines"]) == (["door"], {"door": 2.5}, {"mid": "in"})


def test_pictures_are_jpegs(reader: TestClient) -> None:
    for name, shape in (("snapshot", (240, 320, 3)), ("thumbnail", (192, 256, 3))):
        answer = reader.get(f"{EVENTS}/{id_of(0)}/{name}.jpg")
        assert answer.headers["content-type"] == "image/jpeg"
        assert cv2.imdecode(np.frombuffer(answer.content, np.uint8), cv2.IMREAD_COLOR).shape == shape


def test_a_clip_comes_whole_or_in_parts(reader: TestClient) -> None:
    where = f"{EVENTS}/{id_of(1)}/clip.mp4"
    whole = reader.get(where)
    assert whole.status_code == 200
    assert whole.headers["content-type"] == "video/mp4"
    assert whole.headers["accept-ranges"] == "bytes"
    with av.open(io.BytesIO(whole.content)) as container:
        assert len(list(container.decode(video=0))) == 40
    part = reader.get(where, headers={"Range": "bytes=100-199"})
    assert part.status_code == 206
    assert part.content == whole.content[100:200]
    assert part.headers["content-range"] == f"bytes 100-199/{len(whole.content)}"
    tail = reader.get(where, headers={"Range": "bytes=-50"})
    assert tail.content == whole.content[-50:]
    assert reader.get(where, headers={"Range": f"bytes={10**9}-"}).status_code == 416
    kept = reader.get(where, params={"download": True})
    assert kept.headers["content-disposition"].startswith('attachment; filename="gate-20')


@pytest.mark.parametrize(
    "path", [f"{id_of(500)}", f"{id_of(500)}/snapshot.jpg", f"{id_of(2)}/snapshot.jpg", f"{id_of(2)}/thumbnail.jpg",
             f"{id_of(0)}/clip.mp4",
             f"{id_of(1)}/clip.mp4?part=1"],
)  # fmt: skip
def test_what_is_not_there_is_not_found(reader: TestClient, path: str) -> None:
    answer = reader.get(f"{EVENTS}/{path}")
    assert answer.status_code == 404
    assert "has no" in answer.json()["detail"] or "there is no" in answer.json()["detail"]


@pytest.mark.parametrize(
    "id",
    ["..", "%2e%2e%2f%2e%2e%2fdriftbox.db", "..%2f..%2fdriftbox.db", "1-a", "x", "1790000000000-AAAA0000", "%00", "a" * 5000],
)
def test_names_that_are_no_ids_open_nothing(reader: TestClient, id: str) -> None:
    for path in (id, f"{id}/snapshot.jpg", f"{id}/clip.mp4"):
        assert reader.get(f"{EVENTS}/{path}").status_code in (404, 422)


def test_a_row_that_names_a_file_elsewhere_opens_nothing(shelf: Shelf) -> None:
    with shelf.store._store.transaction() as db:
        db.execute("UPDATE objects SET snapshot = '../../driftbox.db' WHERE id = ?", (id_of(0),))
    with asked(shelf) as client:
        assert client.get(f"{EVENTS}/{id_of(0)}/snapshot.jpg").status_code == 404


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    st.dictionaries(
        st.sampled_from(["camera", "class", "zone", "from_utc", "to_utc", "score_min", "clip", "limit", "after", "open"]),
        st.one_of(st.text(max_size=20), st.integers(), st.floats()).map(str),
    )
)
def test_whatever_is_asked_the_answer_is_no_server_error(reader: TestClient, query: dict[str, str]) -> None:
    assert reader.get(EVENTS, params=query).status_code in (200, 400, 422)


def test_a_favourite_is_marked_and_unmarked(shelf: Shelf) -> None:
    with asked(shelf, Role.OPERATOR) as client:
        where = f"{EVENTS}/{id_of(1)}/favourite"
        assert client.put(where, json={"favourite": True}).json()["favourite"] is True
        assert found(client, favourite=True) == [1]
        assert client.put(where, json={"favourite": False}).json()["favourite"] is False
        assert client.put(where, json={"favourite": 1}).status_code == 422
        assert client.put(where, json={"favourite": True, "more": 1}).status_code == 422
        assert client.put(f"{EVENTS}/{id_of(99)}/favourite", json={"favourite": True}).status_code == 404


def test_an_event_is_deleted_with_its_files(shelf: Shelf) -> None:
    with asked(shelf, Role.OPERATOR) as client:
        assert client.delete(f"{EVENTS}/{id_of(1)}").status_code == 204
        assert client.get(f"{EVENTS}/{id_of(1)}").status_code == 404
        assert client.delete(f"{EVENTS}/{id_of(1)}").status_code == 404
        assert client.delete(f"{EVENTS}/{id_of(5)}").status_code == 409  # it is still there
    names = {path.name for path in shelf.library.folder.root.glob("*/*/*")}
    assert not any(name.startswith(id_of(1)) or name.endswith(".mp4") for name in names)
    assert any(name.startswith(id_of(0)) for name in names)


def test_a_viewer_only_looks(shelf: Shelf) -> None:
    with asked(shelf, Role.VIEWER) as client:
        assert client.put(f"{EVENTS}/{id_of(1)}/favourite", json={"favourite": True}).status_code == 403
        assert client.delete(f"{EVENTS}/{id_of(1)}").status_code == 403
        assert client.get(f"{EVENTS}/{id_of(1)}").status_code == 200
