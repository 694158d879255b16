"""The shelf of models: files and rows in the order that a kill cannot hurt."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import edge.shelf
from configs.errors import StorageError, UsageError, WeightsError
from configs.files import full
from edge.clock import FakeClock
from edge.shelf import Shelf
from edge.store.folder import DataFolder
from edge.store.store import ModelState, Store
from models.fake import FakeDetector
from scheduler.types import CachedModel, RetrainConfig, Traits
from tests.support.fakes import put_fakes_in_the_zoo

CONFIG = RetrainConfig(name="full")


class Place:
    """A data folder with its shelf."""

    def __init__(self, root: Path) -> None:
        self.folder = DataFolder(root)
        self.store = Store(self.folder.db_path)
        self.clock = FakeClock()
        self.shelf = Shelf(self.folder, self.store, self.clock)

    def close(self) -> None:
        self.store.close()
        self.folder.close()

    def candidate(self, skill: float = 0.8, parent: str = "a-000001") -> str:
        return self.shelf.keep_candidate("a", parent=parent, detector=FakeDetector(skill=skill), config=CONFIG, window=3).id

    def state(self, version: str) -> ModelState:
        return self.store.model(version).state

    def files(self, version: str) -> bool:
        return self.folder.version_dir("a", version).is_dir()

    def weights(self, version: str) -> Path:
        return self.folder.version_dir("a", version) / "model.safetensors"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    put_fakes_in_the_zoo(monkeypatch)
    place = Place(tmp_path / "data")
    yield place
    place.store.check()
    place.close()


def test_the_first_model_of_a_camera_is_made_once(place: Place) -> None:
    first = place.shelf.ensure("a", "fake")
    assert (first.id, first.parent, first.arch) == ("a-000001", None, "fake")
    assert place.shelf.ensure("a", "fake").id == first.id
    assert place.shelf.serving_version("a").id == first.id
    assert place.shelf.ensure("b", "fake").id == "b-000001"


def test_another_architecture_in_the_configuration_is_a_new_first_model(place: Place) -> None:
    old = place.shelf.ensure("a", "fake")
    new = place.shelf.ensure("a", "fake-other")
    assert (new.arch, new.parent) == ("fake-other", None)
    assert place.state(old.id) is ModelState.RETIRED
    assert place.shelf.detector(new.id).spec.arch == "fake-other"


def test_an_unknown_model_is_refused_and_leaves_nothing(place: Place) -> None:
    with pytest.raises(UsageError, match="no detector named 'yolo99z'"):
        place.shelf.ensure("a", "yolo99z")
    assert place.store.models() == []
    assert list(place.folder.models_dir.iterdir()) == []


def test_a_candidate_waits_until_it_is_admitted(place: Place) -> None:
    place.shelf.ensure("a", "fake")
    candidate = place.candidate(0.8)
    assert place.state(candidate) is ModelState.CANDIDATE
    assert place.shelf.serving_version("a").id == "a-000001"
    place.shelf.admit("a", candidate, 0.77)
    serving = place.shelf.serving_version("a")
    assert (serving.id, serving.parent, serving.quality) == (candidate, "a-000001", 0.77)
    loaded = place.shelf.detector(candidate)
    assert isinstance(loaded, FakeDetector)
    assert loaded.skill == pytest.approx(0.8)


def test_models_that_served_can_be_chosen_again_by_the_looks_of_their_window(place: Place) -> None:
    place.shelf.ensure("a", "fake")
    looks = [Traits(class_frac=(1.0, 0.0), objects_per_frame=3.0, daypart="night", place="a"), None, Traits(place="a")]
    made = []
    for traits in looks:
        version = place.shelf.keep_candidate(
            "a", parent="a-000001", detector=FakeDetector(skill=0.8), config=CONFIG, window=3, traits=traits
        ).id
        made.append(version)
        place.shelf.admit("a", version, 0.7)
    place.shelf.keep_candidate("a", parent=made[0], detector=FakeDetector(), config=CONFIG, window=4, traits=looks[0])
    assert place.shelf.cached("a") == (
        CachedModel(name=made[2], traits=Traits(place="a")),
        CachedModel(name=made[0], traits=looks[0]),
    ), "newest first; neither a candidate nor one without known looks"
    assert place.shelf.cached("b") == ()
    place.shelf.admit("a", made[0], None)
    assert place.store.model(made[0]).reason == "chosen for this window"


def test_a_rejected_candidate_leaves_its_row_and_no_files(place: Place) -> None:
    place.shelf.ensure("a", "fake")
    candidate = place.candidate()
    place.shelf.reject("a", candidate, "not better")
    assert place.state(candidate) is ModelState.REJECTED
    assert place.store.model(candidate).reason == "not better"
    assert not place.files(candidate)
    with pytest.raises(ValueError, match="cannot become serving"):
        place.shelf.admit("a", candidate, 0.9)
    assert place.shelf.serving_version("a").id == "a-000001"


def test_rejecting_what_serves_changes_nothing(place: Place) -> None:
    place.shelf.ensure("a", "fake")
    candidate = place.candidate()
    place.shelf.admit("a", candidate, 0.9)
    place.shelf.reject("a", candidate, "the window ended")
    assert place.shelf.serving_version("a").id == candidate
    assert place.files(candidate)


@pytest.mark.parametrize("round", range(10))
def test_admitting_and_rejecting_at_the_same_moment_never_leaves_a_camera_without_a_model(place: Place, round: int) -> None:
    place.shelf.ensure("a", "fake")
    candidate = place.candidate()
    start = threading.Barrier(2)

    def admit() -> None:
        start.wait()
        try:
            place.shelf.admit("a", candidate, 0.9)
        except ValueError:
            outcomes.append("rejected first")

    outcomes: list[str] = []
    thread = threading.Thread(target=admit)
    thread.start()
    start.wait()
    place.shelf.reject("a", candidate, "the window ended")
    thread.join()
    serving = place.shelf.serving_version("a").id
    assert serving == ("a-000001" if outcomes else candidate)
    assert place.shelf.detector(serving) is not None


def test_damaged_weights_are_refused_by_name(place: Place) -> None:
    place.shelf.ensure("a", "fake")
    candidate = place.candidate()
    weights = place.weights(candidate)
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(bytes(data))
    with pytest.raises(WeightsError, match=f"{candidate} is damaged"):
        place.shelf.detector(candidate)
    weights.unlink()
    with pytest.raises(WeightsError, match=candidate):
        place.shelf.detector(candidate)


def test_a_serving_model_that_cannot_be_read_is_made_anew(place: Place) -> None:
    place.shelf.ensure("a", "fake")
    place.weights("a-000001").unlink()
    assert place.shelf.ensure("a", "fake").id == "a-000002"


def test_files_are_whole_before_the_row_exists_and_rows_before_serving(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    add_model, serve = place.store.add_model, place.store.serve

    def seen_add(version, **options):  # type: ignore[no-untyped-def]
        assert place.shelf._folder.version_dir("a", version.id).is_dir()
        assert edge.shelf.load_version(place.folder.version_dir("a", version.id)).manifest.id == version.id
        order.append("row")
        add_model(version, **options)

    def seen_serve(version, **options):  # type: ignore[no-untyped-def]
        assert place.store.model(version)
        order.append("serve")
        return serve(version, **options)

    monkeypatch.setattr(place.store, "add_model", seen_add)
    monkeypatch.setattr(place.store, "serve", seen_serve)
    place.shelf.ensure("a", "fake")
    assert order == ["row", "serve"]


def test_a_full_disk_while_a_candidate_is_written_leaves_nothing(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.shelf.ensure("a", "fake")

    def no_room(folder: Path, *_: object) -> str:
        (folder / "model.safetensors").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(edge.shelf, "save_version", no_room)
    with pytest.raises(StorageError) as caught:
        place.candidate()
    assert caught.value.code == "full"
    assert [p.name for p in (place.folder.models_dir / "a").iterdir()] == ["a-000001"]
    assert len(place.store.models("a")) == 1


def test_a_new_model_serves_although_old_ones_cannot_be_removed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.shelf.ensure("a", "fake")
    monkeypatch.setattr(edge.shelf, "KEPT_VERSIONS", 1)

    def stuck(stream: str, version: str) -> None:
        raise full(version)

    monkeypatch.setattr(place.folder, "remove_version", stuck)
    for _ in range(3):
        newest = place.candidate(parent=place.shelf.serving_version("a").id)
        place.shelf.admit("a", newest, 0.5)
        assert place.shelf.serving_version("a").id == newest


def test_old_versions_lose_their_files_and_never_the_one_to_go_back_to(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edge.shelf, "KEPT_VERSIONS", 3)
    place.shelf.ensure("a", "fake")
    for n in range(8):
        place.clock.jump_utc(-1000.0 if n % 2 else 500.0)  # the wall clock must not decide what is old
        newest = place.candidate(parent=place.shelf.serving_version("a").id)
        place.shelf.admit("a", newest, 0.5)
        place.shelf.reject("a", place.candidate(), "not better")  # rejected ones do not push good ones out
    kept = sorted(p.name for p in (place.folder.models_dir / "a").iterdir())
    serving = place.shelf.serving_version("a")
    assert len(kept) == 4
    assert serving.id in kept
    assert serving.parent in kept
    assert kept == sorted(kept)[-4:]
    for version in kept:
        assert place.shelf.detector(version) is not None


def test_views_are_newest_first_and_limited(place: Place) -> None:
    place.shelf.ensure("a", "fake")
    place.clock.advance_to(10.0)
    candidate = place.candidate()
    views = place.shelf.views(limit=10)
    assert [(v.id, v.serving, v.admitted) for v in views] == [(candidate, False, False), ("a-000001", True, True)]
    assert len(place.shelf.views(limit=1)) == 1


def test_candidates_of_two_threads_get_different_names(place: Place) -> None:
    place.shelf.ensure("a", "fake")
    made: list[str] = []
    threads = [threading.Thread(target=lambda: made.append(place.candidate())) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 6
