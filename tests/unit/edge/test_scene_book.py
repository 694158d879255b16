"""Scenes of the cameras over a restart of the box."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.scene_book import SceneBook
from edge.store.store import Store
from scheduler.codec import decode, encode
from scheduler.scenes import MOST, Lesson, Scenes, learned, seen, to_average
from scheduler.types import Signature

DAY, NIGHT = Signature(values=(0.0,) * 28, view=(1.0, 0.0)), Signature(values=(9.0,) * 28, view=(0.0, 1.0))


def turned(*looks: Signature, version: str = "v1") -> Scenes:
    scenes = Scenes()
    for look in looks:
        scenes, _ = seen(scenes, look, version=version, gains=[0.2], quality=0.6)
    return scenes


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "driftbox.db")
    yield store
    store.close()


def test_a_book_that_is_opened_anew_knows_what_was_kept(store: Store) -> None:
    scenes = turned(DAY, NIGHT, DAY)
    assert [scene.number for scene in scenes.known] == [0, 1]
    SceneBook(store).keep("a", scenes)
    again = SceneBook(store)
    assert again.of("a") == scenes
    assert again.of("b") == Scenes()


def test_a_scene_that_is_back_after_the_restart_is_known(store: Store) -> None:
    SceneBook(store).keep("a", turned(DAY, NIGHT))
    _, back = seen(SceneBook(store).of("a"), DAY, version="v2", gains=[])
    assert back is not None
    assert (back.number, back.version) == (0, "v1")


@pytest.mark.parametrize(
    "body", ["", "[]", "{", '{"kind":"Note","at_s":1}', '{"kind":"Scenes","known":7}', '{"kind":"BoxStarted"}']
)
def test_what_cannot_be_read_is_learned_again(store: Store, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr("edge.scene_book.log.warning", lambda text, *values: said.append(text % values))
    store.keep_scenes("a", body)
    book = SceneBook(store)
    assert book.of("a") == Scenes()
    assert said == ["a: its scenes cannot be read, they are learned again"]
    book.keep("a", turned(DAY))
    assert SceneBook(store).of("a") == turned(DAY)


def test_a_disk_is_written_when_the_camera_turns_and_not_for_the_light(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    monkeypatch.setattr(store, "keep_scenes", lambda camera, body: written.append(camera))
    book, scenes = SceneBook(store), turned(DAY)
    for step in range(5):
        scenes, _ = seen(scenes, Signature(values=(0.01 * step,) * 28, view=(1.0, 0.0)), version="v1", gains=[])
        book.keep("a", scenes)
    assert written == ["a"]
    scenes, _ = seen(scenes, NIGHT, version="v2", gains=[])
    book.keep("a", scenes)
    assert written == ["a", "a"]


def test_nothing_is_written_of_a_camera_that_nobody_glanced_at(store: Store) -> None:
    SceneBook(store).keep("a", Scenes())
    assert store.scenes("a") is None


def test_a_full_disk_is_said_and_the_next_window_tries_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    from configs.errors import StorageError

    def full(camera: str, body: str) -> None:
        raise StorageError("no space", code="full", remedy="make room")

    book = SceneBook(store)
    with monkeypatch.context() as broken:
        broken.setattr(store, "keep_scenes", full)
        with pytest.raises(StorageError):
            book.keep("a", turned(DAY))
    book.keep("a", turned(DAY))
    assert store.scenes("a") is not None


def test_a_database_of_before_gets_the_table(tmp_path: Path) -> None:
    path = tmp_path / "driftbox.db"
    Store(path).close()
    with sqlite3.connect(path) as db:
        db.execute("DROP TABLE scenes")
        db.execute("DELETE FROM _sqlite_migrations WHERE name = 'm017_scenes'")
    store = Store(path)
    SceneBook(store).keep("a", turned(DAY))
    assert SceneBook(store).of("a") == turned(DAY)
    store.close()


@given(looks=st.lists(st.sampled_from([DAY, NIGHT]), max_size=2 * MOST))
def test_all_scenes_are_read_as_they_were_written(looks: list[Signature]) -> None:
    scenes = turned(*looks)
    assert decode(encode(scenes)) == scenes


def test_what_was_learned_in_which_scene_is_known_after_the_restart(store: Store) -> None:
    """So the scene that is back after it is served by the mean of its own and the newest lesson."""
    book = SceneBook(store)
    scenes = turned(DAY)
    book.keep("a", scenes)
    scenes = learned(scenes, Lesson(version="v2", taught_in="first"))
    book.keep("a", scenes)
    assert SceneBook(store).of("a") == scenes, "a lesson is worth being written, though the scene is the same"
    scenes, _ = seen(scenes, NIGHT, version="v2", gains=[])
    scenes = learned(scenes, Lesson(version="v3", taught_in="second"))
    book.keep("a", scenes)
    again, back = seen(SceneBook(store).of("a"), DAY, version="v3", gains=[])
    assert back is not None
    assert [lesson.version for lesson in to_average(again, back, ["v2", "v3"])] == ["v2", "v3"]


def test_scenes_that_an_earlier_version_kept_are_read(store: Store) -> None:
    scenes = turned(DAY, NIGHT)
    body = json.loads(encode(scenes))
    del body["newest"]
    for scene in body["known"]:
        del scene["lessons"], scene["averaged"], scene["mean"]
    store.keep_scenes("a", json.dumps(body))
    assert SceneBook(store).of("a") == scenes
