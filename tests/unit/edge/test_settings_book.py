"""What is changed here about the box: checked as a file is, kept apart from the file, in force at once and after a restart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from configs.errors import ConfigError, UsageError
from configs.schema import BoxConfig
from configs.schema.media import MediaSection
from edge import settings_book
from edge.settings import BoxSettings
from edge.settings_book import SettingsBook
from edge.store.store import Store
from edge.web.services import Services
from edge.web.who import Role
from tests.support.accounts import House

FILE: dict[str, Any] = {"storage": {"max_gib": 3.0, "media": {"clip_days": 7.0, "class_days": {"person": 9.0}}}}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(tmp_path / "driftbox.db") as store:
        yield store


def book_on(store: Store, file: dict[str, Any] | None = None) -> SettingsBook:
    return SettingsBook(BoxConfig.model_validate(FILE if file is None else file), store, utc_s=lambda: 5.0)


def rows(store: Store) -> list[dict[str, Any]]:
    return [dict(row) for row in store.rows("SELECT * FROM settings_book")]


def test_a_change_is_in_force_and_told_and_comes_back_after_a_restart(store: Store) -> None:
    book, told = book_on(store), list[MediaSection]()
    book.on_media.append(told.append)
    assert book.media().clip_days == 7.0
    found = book.change_media({"clip_days": 2.5, "max_gib": 1.0}, by="admin")
    assert told == [found]
    assert (found.clip_days, found.max_gib, found.class_days) == (2.5, 1.0, {"person": 9.0})
    again = book_on(store)
    assert again.media() == found
    assert again.changed() == {"storage.media.clip_days", "storage.media.max_gib"}
    assert (rows(store)[0]["changed_by"], rows(store)[0]["updated_utc"]) == ("admin", 5.0)
    over = again.over(BoxConfig.model_validate(FILE))
    assert (over.storage.max_gib, over.storage.media) == (3.0, found)


def test_only_what_differs_from_the_file_is_kept(store: Store) -> None:
    book = book_on(store)
    book.change_media({"clip_days": 2.0, "snapshot_days": 30.0, "class_days": {"person": 9.0}}, by="admin")
    assert json.loads(rows(store)[0]["document"]) == {"clip_days": 2.0}
    assert book_on(store, {"storage": {"media": {"snapshot_days": 4.0}}}).media().snapshot_days == 4.0, "the file's"
    assert book.change_media({"clip_days": None}, by="admin").clip_days == 7.0
    assert rows(store) == []


@pytest.mark.parametrize(
    ("patch", "field"),
    [
        ({"clip_days": 0}, "clip_days"),
        ({"clip_days": "7"}, "clip_days"),
        ({"max_events": 5}, "max_events"),
        ({"class_days": {"unicorn": 3}}, "class_days"),
        ({"class_days": {"person": -1}}, "class_days"),
        ({"clip_day": 7}, "clip_day"),
        ({"min_free_mib": float("nan")}, "min_free_mib"),
    ],
)
def test_what_cannot_be_changes_nothing_and_names_its_field(store: Store, patch: dict[str, Any], field: str) -> None:
    book = book_on(store)
    book.change_media({"snapshot_days": 5.0}, by="admin")
    before = rows(store)
    with pytest.raises(ConfigError) as raised:
        book.change_media({"event_days": 3.0, **patch}, by="admin")
    assert [path.partition(".")[0] for path, _ in raised.value.problems] == [field]
    assert rows(store) == before


def test_what_somebody_else_has_changed_is_not_overwritten(store: Store) -> None:
    book, other = book_on(store), book_on(store)
    seen = book.etag()
    assert other.etag() == seen
    other.change_media({"clip_days": 3.0}, by="kim")
    with pytest.raises(UsageError) as raised:
        book.change_media({"clip_days": 5.0}, by="admin", etag=seen)
    assert raised.value.code == "changed"
    assert book.media().clip_days == 3.0
    assert book.change_media({"clip_days": 5.0}, by="admin", etag=book.etag()).clip_days == 5.0
    other.change_media({"clip_days": 3.0}, by="kim")
    assert book.change_media({"clip_days": 6.0}, by="admin").clip_days == 6.0, "who has seen nothing is asked nothing"


def test_a_layer_that_fits_no_more_does_not_keep_the_box_from_starting(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(settings_book.log, "warning", lambda text, *parts: told.append(text % parts))
    with store.transaction() as db:
        db.execute("INSERT INTO settings_book VALUES ('storage.media', ?, 0, 'admin')", (json.dumps({"gone": 1}),))
    book = book_on(store)
    assert book.media().clip_days == 7.0
    assert "storage.media does not fit any more" in told[0]
    with pytest.raises(ConfigError, match="gone"):
        book.change_media({"clip_days": 3.0}, by="admin")
    assert book.change_media({"clip_days": 3.0, "gone": None}, by="admin").clip_days == 3.0, "and can be mended"


# --- over HTTP --------------------------------------------------------------------------------------------------------


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path)
    yield house
    house.close()


def client_of(house: House, role: Role, folder: Path, *, book: bool = True) -> TestClient:
    config = BoxConfig.model_validate(FILE)
    settings = BoxSettings(config, folder, book=SettingsBook(config, house.store, utc_s=lambda: 0.0) if book else None)
    return house.signed_in(role, services=Services(settings=settings))


def settings_of(view: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["key"]: one for section in view["sections"] for one in section["settings"]}


def test_an_admin_changes_it_and_sees_what_is_in_force(house: House, tmp_path: Path) -> None:
    client = client_of(house, Role.ADMIN, tmp_path)
    before = settings_of(client.get("/api/v1/settings").json())
    assert [before["storage.media.clip_days"][name] for name in ("value", "given", "live", "changed")] == [
        "7.0",
        True,
        True,
        False,
    ]
    assert not before["storage.max_gib"]["live"]
    answer = client.patch("/api/v1/settings/media", json={"clip_days": 1, "event_days": 2})
    assert answer.status_code == 200
    after = settings_of(answer.json())
    assert [after["storage.media.clip_days"][name] for name in ("value", "given", "changed")] == ["1.0", True, True]
    assert [after["storage.media.event_days"][name] for name in ("value", "given", "changed")] == ["2.0", False, True]
    assert {key for key, one in after.items() if one["live"]} == {key for key in after if key.startswith("storage.media.")}
    assert any("settings/media" in entry.action + entry.detail for entry in house.accounts.audit_log())


def test_if_match_over_http(house: House, tmp_path: Path) -> None:
    client = client_of(house, Role.ADMIN, tmp_path)
    seen = client.get("/api/v1/settings").json()["media_etag"]
    first = client.patch("/api/v1/settings/media", json={"clip_days": 1}, headers={"If-Match": f'"{seen}"'})
    assert first.status_code == 200
    assert first.json()["media_etag"] != seen
    second = client.patch("/api/v1/settings/media", json={"clip_days": 2}, headers={"If-Match": f'"{seen}"'})
    assert (second.status_code, settings_of(client.get("/api/v1/settings").json())["storage.media.clip_days"]["value"]) == (
        412,
        "1.0",
    )
    assert client.patch("/api/v1/settings/media", json={}, headers={"If-Match": "no tag"}).status_code == 400
    assert client.patch("/api/v1/settings/media", json={"clip_days": 3}, headers={"If-Match": "*"}).status_code == 200


@pytest.mark.parametrize("role", [Role.VIEWER, Role.OPERATOR])
def test_nobody_else_changes_it(house: House, tmp_path: Path, role: Role) -> None:
    assert client_of(house, role, tmp_path).patch("/api/v1/settings/media", json={"clip_days": 1}).status_code == 403


def test_wrong_fields_are_answered_by_name(house: House, tmp_path: Path) -> None:
    client = client_of(house, Role.ADMIN, tmp_path)
    answer = client.patch("/api/v1/settings/media", json={"clip_days": -1, "nonsense": 1})
    assert answer.status_code == 422
    assert {problem["field"] for problem in answer.json()["problems"]} == {"clip_days", "nonsense"}


def test_without_a_book_there_is_nothing_to_change(house: House, tmp_path: Path) -> None:
    assert client_of(house, Role.ADMIN, tmp_path, book=False).patch("/api/v1/settings/media", json={}).status_code == 404
