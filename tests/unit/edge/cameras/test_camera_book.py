"""The cameras of the file and what was changed through the product: together, checked, kept, and whole after a kill."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.errors import ConfigError, StorageError, UsageError
from configs.load import parse_config
from configs.schema import BoxConfig
from edge.cameras.book import CameraBook, with_book
from edge.cameras.secrets import SecretFiles
from edge.store.cameras import CameraRows, read_rows
from edge.store.store import Store

FILE = """
box: {{data_dir: {data}}}
cameras:
  - {{id: gate, url: "rtsp://192.0.2.1/main", name: Gate, fps: 4, masks: [[[0, 0], [1, 0], [1, 1]]]}}
  - {{id: yard, url: "rtsp://user:${{env:YARD_PW}}@192.0.2.2/main"}}
"""


def base(root: Path, text: str = FILE) -> BoxConfig:
    return parse_config(text.format(data=root))


class Box:
    """A book over a data folder; `again` opens it anew, as after a restart."""

    def __init__(self, root: Path, text: str = FILE) -> None:
        self.root, self.config = root, base(root, text)
        self.store = Store(root / "driftbox.db")
        self.utc_s = 1e9
        self.rows, self.secrets = CameraRows(self.store), SecretFiles(root)
        self.book = CameraBook(self.config, self.rows, self.secrets, utc_s=lambda: self.utc_s)

    def again(self, text: str = FILE) -> Box:
        self.store.close()
        return Box(self.root, text)

    def urls(self) -> dict[str, str]:
        return {kept.entry.id: str(kept.entry.url) for kept in self.book.read().cameras}


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    made = Box(tmp_path)
    yield made
    made.store.close()


def test_without_changes_the_file_says_it_all(box: Box) -> None:
    found = box.book.read()
    assert [(kept.entry.id, kept.source, kept.changed) for kept in found.cameras] == [
        ("gate", "file", ()),
        ("yard", "file", ()),
    ]
    assert found.config == box.config
    assert found.findings == found.removed == ()


def test_a_camera_that_was_added_is_there_after_a_restart(box: Box) -> None:
    box.book.add({"name": "Hof Süd", "url": "rtsp://a:b@192.0.2.9/s", "fps": 3}, by="ann")
    kept = box.again().book.read().find("hof-sud")
    assert (kept.source, kept.changed_by, kept.entry.fps, kept.entry.name) == ("added", "ann", 3, "Hof Süd")
    assert kept.entry.url.resolve() == "rtsp://a:b@192.0.2.9/s"


def test_only_what_differs_from_the_file_is_kept_so_its_other_lines_still_count(box: Box) -> None:
    box.book.change("gate", {"name": "Front", "fps": 4}, by="ann")
    assert box.rows.all()[0].document == {"name": "Front"}
    later = box.again(FILE.replace("fps: 4", "fps: 7"))
    kept = later.book.read().find("gate")
    assert (kept.entry.name, kept.entry.fps, kept.source, kept.changed) == ("Front", 7, "changed", ("name",))
    assert kept.entry.masks


def test_a_field_goes_back_to_what_the_file_says(box: Box) -> None:
    box.book.change("gate", {"name": "Front", "fps": 2}, by="ann")
    assert box.book.change("gate", {"name": None, "fps": 4}, by="ann").find("gate").source == "file"
    assert box.rows.all() == []


def test_null_of_a_field_that_may_be_none_is_a_value(box: Box) -> None:
    later = box.again(FILE.replace("fps: 4", "fps: 4, deadline_ms: 90"))
    assert later.book.change("gate", {"deadline_ms": None}, by="ann").find("gate").entry.deadline_ms is None


def test_a_removed_camera_stays_away_though_the_file_names_it(box: Box) -> None:
    box.book.remove("gate", by="ann")
    later = box.again()
    assert [kept.entry.id for kept in later.book.read().cameras] == ["yard"]
    assert later.book.read().removed == ("gate",)
    with pytest.raises(UsageError, match="no camera gate"):
        later.book.change("gate", {"fps": 1}, by="ann")
    assert later.book.reset("gate").find("gate").source == "file"


def test_a_camera_that_takes_the_place_of_a_removed_one_has_nothing_of_it(box: Box) -> None:
    box.book.remove("gate", by="ann")
    kept = box.book.add({"id": "gate", "url": "rtsp://192.0.2.7/s"}, by="ann").find("gate")
    assert (kept.source, kept.entry.masks, kept.entry.name) == ("added", (), "")
    assert "stands in the configuration file and was added" in box.book.read().findings[0]
    assert box.book.reset("gate").find("gate").entry.name == "Gate"


def test_proposed_ids_avoid_removed_cameras(box: Box) -> None:
    box.book.remove("gate", by="ann")
    assert box.book.add({"name": "Gate", "url": "rtsp://192.0.2.7/s"}, by="ann").find("gate-2")


def test_what_the_file_no_longer_names_is_said(box: Box) -> None:
    box.book.change("gate", {"fps": 2}, by="ann")
    later = box.again("box: {{data_dir: {data}}}\ncameras: []\n")
    found = later.book.read()
    assert found.cameras == ()
    assert "gate was changed through the product, but is no longer in the configuration file" in found.findings[0]


def test_a_file_that_does_not_fit_what_was_changed_says_which_camera_and_the_way_out(box: Box) -> None:
    box.book.change("gate", {"may_lag": False, "edge": "tinydet-edge"}, by="ann")
    box.book.add({"id": "film", "url": "/videos/a.mp4", "may_lag": True}, by="ann")
    box.rows.put("gate", {"fps": 5000}, at_utc=0, by="another version")
    with pytest.raises(ConfigError) as refused:
        box.book.read()
    assert [path for path, _ in refused.value.problems] == ["cameras[gate].fps"]
    assert "driftbox cameras reset gate" in refused.value.remedy


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({"url": "gopher://x/y"}, "url"), ({}, "url"), ({"url": "rtsp://192.0.2.1/s", "fps": -1}, "fps"),
        ({"url": "rtsp://192.0.2.1/s", "fpss": 1}, "fpss"), ({"url": "rtsp://192.0.2.1/s", "zones": {"a": [[0, 0]]}}, "zones"),
        ({"url": "rtsp://192.0.2.1/s", "id": "Not An Id"}, "id"), ({"url": 7}, "url"),
        ({"url": "rtsp://192.0.2.1/s", "schedule": {"watch": ["never"]}}, "schedule.watch"),
        ({"url": "rtsp://192.0.2.1/s", "name": "x" * 81}, "name"), ({"url": "rtsp://192.0.2.1/s", "task": "cooking"}, "task"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_field_and_nothing_is_kept(box: Box, document: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as refused:
        box.book.add(document, by="ann")
    assert [path.partition("[")[0] for path, _ in refused.value.problems] == [field]
    assert box.rows.all() == []
    assert not (box.root / "secrets").exists()


def test_an_id_is_given_once_and_kept(box: Box) -> None:
    with pytest.raises(UsageError, match="already") as refused:
        box.book.add({"id": "gate", "url": "rtsp://192.0.2.1/s"}, by="ann")
    assert refused.value.code == "exists"
    with pytest.raises(ConfigError, match="keeps its id"):
        box.book.change("gate", {"id": "gate-9"}, by="ann")


def test_who_has_not_seen_the_newest_change_does_not_undo_it(box: Box) -> None:
    seen = box.book.read().find("gate").etag
    box.book.change("gate", {"fps": 2}, by="ann", etag=seen)
    with pytest.raises(UsageError) as refused:
        box.book.change("gate", {"name": "x"}, by="bob", etag=seen)
    assert refused.value.code == "changed"
    with pytest.raises(UsageError):
        box.book.remove("gate", by="bob", etag=seen)
    assert box.book.read().find("gate").entry.fps == 2


# --- credentials ------------------------------------------------------------------------------------------------------


def stored(box: Box) -> str:
    return "".join(path.read_bytes().decode("latin-1") for path in sorted(box.root.glob("driftbox.db*")))


def test_no_password_is_in_the_database_or_in_anything_shown(box: Box) -> None:
    found = box.book.add(
        {"id": "new", "url": "rtsp://ann:c4nary-1@192.0.2.9/s", "record_url": "http://192.0.2.9/v?pwd=c4nary-2"}, by="ann"
    )
    box.book.change("new", {"url": "rtsp://ann:c4nary-3@192.0.2.9/s"}, by="ann")
    told = repr(found) + repr(box.book.read()) + json.dumps([kept.entry.model_dump(mode="json") for kept in found.cameras])
    assert "c4nary" not in told + stored(box)
    assert "c4nary" not in repr(read_rows(box.root / "driftbox.db"))
    box.book.tidy()
    kept = [path.read_text().strip() for path in sorted((box.root / "secrets").iterdir())]
    assert sorted(kept) == ["ann", "c4nary-2", "c4nary-3"]


def test_stars_keep_the_password_for_the_same_place_only(box: Box) -> None:
    box.book.add({"id": "new", "url": "rtsp://ann:pw@192.0.2.9:554/main"}, by="ann")
    after = box.book.change("new", {"url": "rtsp://***@192.0.2.9:554/sub"}, by="bob").find("new")
    assert after.entry.url.resolve() == "rtsp://ann:pw@192.0.2.9:554/sub"
    for elsewhere in ("rtsp://***@203.0.113.1/sub", "http://***@192.0.2.9:554/sub", "rtsp://***@192.0.2.9:554/${env:HOME}"):
        with pytest.raises(ConfigError):
            box.book.change("new", {"url": elsewhere}, by="bob")
    assert box.book.read().find("new").entry.url.resolve() == "rtsp://ann:pw@192.0.2.9:554/sub"


def test_an_address_given_back_as_it_was_shown_changes_nothing(box: Box) -> None:
    box.book.add({"id": "new", "url": "rtsp://ann:pw@192.0.2.9/s"}, by="ann")
    for camera in ("new", "yard"):
        shown = str(box.book.read().find(camera).entry.url)
        assert shown.startswith("rtsp://***@")
        box.book.change(camera, {"url": shown, "fps": 2}, by="bob")
    assert box.book.read().find("new").entry.url.resolve() == "rtsp://ann:pw@192.0.2.9/s"
    assert box.book.read().find("yard").changed == ("fps",)


def test_what_is_kept_for_a_removed_camera_goes(box: Box) -> None:
    box.book.add({"id": "new", "url": "rtsp://ann:pw@192.0.2.9/s"}, by="ann")
    box.book.remove("new", by="ann")
    assert len(box.book.tidy()) == 2
    assert list((box.root / "secrets").iterdir()) == []


# --- kills and full disks ---------------------------------------------------------------------------------------------


class Killed(BaseException):
    """Nothing is done any more, as after a kill -9."""


@pytest.mark.parametrize("at", range(6))
def test_killed_between_any_two_writes_every_camera_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    box = Box(tmp_path)
    box.book.add({"id": "new", "url": "rtsp://ann:one@192.0.2.9/s"}, by="ann")
    left = [at]

    def count(call: Any) -> Any:
        def counted(*args: Any, **kwargs: Any) -> Any:
            if left[0] == 0:
                raise Killed
            left[0] -= 1
            return call(*args, **kwargs)

        return counted

    for owner, name in ((os, "fsync"), (CameraRows, "put"), (SecretFiles, "remove")):
        monkeypatch.setattr(owner, name, count(getattr(owner, name)))
    try:
        box.book.change("new", {"url": "rtsp://ann:two@192.0.2.9/s"}, by="ann")
        box.book.tidy()
    except Killed:
        pass
    monkeypatch.undo()
    later = box.again()
    resolved = later.book.read().find("new").entry.url.resolve()
    assert resolved in ("rtsp://ann:one@192.0.2.9/s", "rtsp://ann:two@192.0.2.9/s")
    later.book.tidy()
    assert len(list((tmp_path / "secrets").iterdir())) == 2
    assert later.book.read().find("new").entry.url.resolve() == resolved
    later.store.close()


def test_a_full_disk_keeps_what_was_there(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    box.book.change("gate", {"fps": 2}, by="ann")

    def full(self: CameraRows, camera: str, document: Mapping[str, Any] | None, *, at_utc: float, by: str) -> None:
        raise StorageError("no room", code="full")

    monkeypatch.setattr(CameraRows, "put", full)
    with pytest.raises(StorageError):
        box.book.change("gate", {"fps": 3}, by="ann")
    assert box.book.read().find("gate").entry.fps == 2


# --- beside a box -----------------------------------------------------------------------------------------------------


def test_commands_read_the_book_without_touching_it(box: Box) -> None:
    box.book.change("gate", {"fps": 2}, by="ann")
    before = sorted((p.name, p.stat().st_mtime_ns) for p in box.root.iterdir() if p.suffix == ".db")
    assert with_book(box.config).find("gate").entry.fps == 2
    assert sorted((p.name, p.stat().st_mtime_ns) for p in box.root.iterdir() if p.suffix == ".db") == before


def test_a_folder_without_a_box_has_only_the_file(tmp_path: Path) -> None:
    assert [kept.source for kept in with_book(base(tmp_path / "none")).cameras] == ["file", "file"]
    assert not (tmp_path / "none").exists()


def test_a_damaged_row_is_an_error_and_no_guess(box: Box) -> None:
    box.book.change("gate", {"fps": 2}, by="ann")
    with box.store.transaction() as db:
        db.execute("UPDATE camera_book SET document = '[1'")
    with pytest.raises(StorageError):
        box.book.read()


# --- laws -------------------------------------------------------------------------------------------------------------

_CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "name": st.none() | st.text(max_size=10),
        "fps": st.none() | st.floats(-1, 130) | st.integers(-1, 130),
        "enabled": st.none() | st.booleans(),
        "learning": st.booleans(),
        "classes": st.lists(st.sampled_from(["person", "car", "dragon"]), max_size=2),
        "edge": st.none() | st.just("tinydet-edge"),
        "masks": st.just([]),
        "unknown": st.integers(),
    },
)
_STEPS = st.tuples(st.sampled_from(["add", "change", "remove", "reset"]), st.sampled_from(["gate", "new"]), _CHANGES)


def asked(book: CameraBook, what: str, camera: str, fields: dict[str, Any]) -> object:
    if what == "add":
        return book.add({"id": camera, "url": "rtsp://192.0.2.3/s"} | fields, by="x")
    if what == "change":
        return book.change(camera, fields, by="x")
    return book.remove(camera, by="x") if what == "remove" else book.reset(camera)


@settings(max_examples=10, deadline=None)
@given(steps=st.lists(_STEPS, max_size=8))
def test_whatever_is_asked_what_is_kept_is_a_configuration(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str, dict[str, Any]]]
) -> None:
    box = Box(tmp_path_factory.mktemp("data"))
    for what, camera, fields in steps:
        before = box.book.read()
        try:
            told = asked(box.book, what, camera, fields)
            assert told == box.book.read()
        except (ConfigError, UsageError):
            assert box.book.read() == before
    kept = box.book.read()
    assert with_book(box.config) == kept
    box.store.close()
