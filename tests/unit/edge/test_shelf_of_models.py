"""The shelf of models: files and rows in the order that a kill cannot hurt."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import edge.shelf
from configs.errors import StorageError, UsageError, WeightsError
from configs.files import full
from edge.clock import FakeClock
from edge.shelf import KEPT_ROWS, Made, Retention, Shelf, outlived
from edge.store.folder import DataFolder
from edge.store.store import ModelState, Store, StoredModel
from models.fake import FakeDetector
from models.versions import read_manifest
from scheduler.types import CachedModel, ModelVersion, RetrainConfig, Signature, Traits
from tests.support.fakes import put_fakes_in_the_zoo

CONFIG = RetrainConfig(name="full")


class Place:
    """A data folder with its shelf."""

    def __init__(self, root: Path) -> None:
        self.folder = DataFolder(root)
        self.store = Store(self.folder.db_path)
        self.clock = FakeClock()
        self.shelf = Shelf(self.folder, self.store, self.clock)

    def keep(self, keep_versions: int, keep_days: float = 90.0) -> None:
        self.shelf = Shelf(self.folder, self.store, self.clock, Retention(keep_versions=keep_versions, keep_days=keep_days))

    def admitted(self, count: int) -> list[str]:
        """So many retrainings, each made from the one before and admitted."""
        made = []
        for _ in range(count):
            made.append(self.candidate(parent=self.shelf.serving_version("a").id))
            self.shelf.admit("a", made[-1], 0.5)
        return made

    def on_disk(self) -> list[str]:
        return sorted(p.name for p in (self.folder.models_dir / "a").iterdir())

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


def test_a_camera_that_begins_anew_gets_a_new_first_model_by_its_task(place: Place) -> None:
    old = place.shelf.ensure("a", "fake")
    asked: list[str] = []

    def load(name: str) -> FakeDetector:
        asked.append(name)
        return FakeDetector(skill=0.3, arch="fake")

    assert place.shelf.ensure("a", "fake", load).id == old.id
    assert asked == []
    new = place.shelf.ensure("a", "fake", load, anew=True)
    assert (new.id != old.id, new.parent, asked) == (True, None, ["fake"])
    assert place.shelf.serving_version("a").id == new.id


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
    place.keep(1)
    place.shelf.ensure("a", "fake")

    def stuck(stream: str, version: str) -> None:
        raise full(version)

    monkeypatch.setattr(place.folder, "remove_version", stuck)
    for _ in range(3):
        newest = place.candidate(parent=place.shelf.serving_version("a").id)
        place.shelf.admit("a", newest, 0.5)
        assert place.shelf.serving_version("a").id == newest


def test_old_versions_lose_their_files_and_never_the_one_to_go_back_to(place: Place) -> None:
    place.keep(2)
    place.shelf.ensure("a", "fake")
    for n in range(8):
        place.clock.jump_utc(-1000.0 if n % 2 else 500.0)  # the wall clock must not decide what is old
        newest = place.candidate(parent=place.shelf.serving_version("a").id)
        place.shelf.admit("a", newest, 0.5)
        place.shelf.reject("a", place.candidate(), "not better")  # rejected ones do not push good ones out
    kept = sorted(p.name for p in (place.folder.models_dir / "a").iterdir())
    serving = place.shelf.serving_version("a")
    assert len(kept) == 5
    assert serving.id in kept
    assert serving.parent in kept
    assert kept[0] == place.shelf.delivered("a") == "a-000001", (
        "what the camera came with: for scenes that no other model knows"
    )
    assert min(kept[1:]) > "a-000008", "beside it the newest"
    for version in kept:
        assert place.shelf.detector(version) is not None


def test_what_a_camera_came_with_is_the_root_of_the_line_that_serves(place: Place) -> None:
    place.shelf.ensure("a", "fake")
    assert place.shelf.delivered("a") == "a-000001"
    assert place.shelf.delivered("b") == ""
    place.admitted(2)
    assert place.shelf.delivered("a") == "a-000001"
    begun_anew = place.shelf.ensure("a", "fake", anew=True)
    assert place.shelf.delivered("a") == begun_anew.id
    newest = place.candidate(parent=begun_anew.id)
    place.shelf.admit("a", newest, 0.5)
    assert place.shelf.delivered("a") == begun_anew.id


def test_what_is_old_goes_although_there_are_few(place: Place) -> None:
    place.keep(20, keep_days=10.0)
    place.shelf.ensure("a", "fake")
    old = place.admitted(4)
    place.clock.jump_utc(11 * 86_400.0)
    place.admitted(1)
    assert place.on_disk() == ["a-000001", old[3], "a-000006"], (
        "the first, what serves and what it replaced, however old they are"
    )
    assert place.store.model(old[0]).reason == "old: files removed"


def test_a_pinned_version_stays_and_can_serve_again(place: Place) -> None:
    place.keep(1)
    place.shelf.ensure("a", "fake")
    pinned = place.admitted(1)[0]
    place.store.pin(pinned, True)
    place.admitted(5)
    assert pinned in place.on_disk()
    place.shelf.admit("a", pinned, None, "put back by a test")
    assert place.store.model(pinned).reason == "put back by a test"
    place.store.pin(pinned, False)
    place.admitted(5)
    assert pinned not in place.on_disk()


def test_after_a_rollback_the_version_it_replaced_stays(place: Place) -> None:
    place.keep(0)
    place.shelf.ensure("a", "fake")
    first, second = place.admitted(2)
    place.shelf.admit("a", first, None, "rolled back")
    assert place.shelf.replaced("a") == second
    assert place.on_disk() == ["a-000001", first, second], "the first, what serves, and what it replaced"


def test_rows_of_removed_versions_are_bounded_and_numbers_are_not_given_twice(place: Place) -> None:
    place.shelf.ensure("a", "fake")
    for number in range(2, KEPT_ROWS + 40):
        version = ModelVersion(id=f"a-{number:06d}", stream="a", parent="a-000001", arch="fake", sha256="")
        place.store.add_model(version, at_utc=0.0)
        place.store.set_model_state(version.id, ModelState.REJECTED, reason="not better")
    newest = place.candidate()
    place.shelf.admit("a", newest, 0.5)
    assert len(place.store.models("a")) <= KEPT_ROWS + 1
    assert place.store.model("a-000001").state is ModelState.RETIRED
    place.shelf.reject("a", place.candidate(), "not better")
    assert place.candidate() == f"a-{KEPT_ROWS + 42:06d}"


def test_tidying_waits_for_another_day_while_a_command_copies_files(place: Place) -> None:
    place.keep(0)
    place.shelf.ensure("a", "fake")
    beside = DataFolder(place.folder.root, beside=True)
    with beside.files_lock():
        place.admitted(4)
        assert len(place.on_disk()) == 5
    place.admitted(1)
    assert len(place.on_disk()) == 3


@given(
    ages=st.lists(st.floats(0, 400), max_size=12),
    pins=st.integers(0, 2**12 - 1),
    keep=st.integers(0, 6),
    days=st.floats(1, 200),
)
def test_retention_by_count_and_age_never_touches_what_is_needed(ages: list[float], pins: int, keep: int, days: float) -> None:
    now_utc = 400 * 86_400.0
    models = [
        StoredModel(
            version=ModelVersion(id=f"a-{n}", stream="a", parent=f"a-{n - 1}" if n else None, arch="x", sha256=""),
            state=ModelState.SERVING if n == len(ages) - 1 else ModelState.RETIRED, created_utc=now_utc - age * 86_400.0, config={},
            pinned=bool(pins >> n & 1),
        )
        for n, age in enumerate(ages)
    ]  # fmt: skip
    retention = Retention(keep_versions=keep, keep_days=days)
    gone = outlived(models, retention, now_utc=now_utc, replaced="a-0")
    spared = {models[-1].version.id, models[-1].version.parent, "a-0"} if models else set()
    assert not [m for m in gone if m.pinned or m.version.id in spared]
    left = [m for m in models if m not in gone and not m.pinned and m.version.id not in spared]
    assert len(left) <= keep
    assert all(m.created_utc >= now_utc - days * 86_400.0 for m in left)
    assert gone == [m for m in models if m in gone], "oldest first"


def test_a_version_that_failed_on_live_frames_is_replaced_and_never_serves_again(place: Place) -> None:
    place.shelf.ensure("a", "fake")
    first, second = place.admitted(2)
    assert place.shelf.put_back("a", failed=second, version=first, reason="threw on 3 live frames in a row: boom")
    assert place.shelf.serving_version("a").id == first
    assert place.store.model(first).reason == "put back: threw on 3 live frames in a row: boom"
    assert place.state(second) is ModelState.REJECTED
    assert not place.files(second)
    assert place.shelf.replaced("a") is None, "nobody may go back to what did not work"
    with pytest.raises(ValueError, match="cannot become serving"):
        place.shelf.admit("a", second, 0.9)
    assert not place.shelf.put_back("a", failed=second, version="a-000001", reason="late"), "it does not serve any more"
    assert place.shelf.serving_version("a").id == first


def test_what_is_known_of_a_training_stands_in_row_and_manifest(place: Place) -> None:
    place.shelf.ensure("a", "fake")
    looks = Signature(values=(0.25, -1.0))
    version = place.shelf.keep_candidate(
        "a", parent="a-000001", detector=FakeDetector(), config=CONFIG, window=3, signature=looks, gpu_s=4.5,
        samples=["f1", "f2"], group=("a", "b"),
    ).id  # fmt: skip
    place.shelf.admit("a", version, 0.7)
    row = place.store.model(version)
    assert (row.config["gpu_s"], row.config["samples"], row.config["origin"]["cameras"]) == (4.5, 2, "a, b")
    found = read_manifest(place.folder.version_dir("a", version))
    assert (found.samples, found.gpu_s, found.signature, found.quality) == (("f1", "f2"), 4.5, looks, {"f1": 0.7})
    assert place.shelf.cached("a") == (CachedModel(name=version, traits=Traits(), signature=looks),)


def test_what_was_offered_from_outside_waits_through_a_restart_and_is_a_choice(place: Place) -> None:
    place.shelf.ensure("a", "fake")
    kept = place.candidate()
    with place.folder.new_version("a", "a-x000001") as part:
        shutil.copytree(place.folder.version_dir("a", kept), part, dirs_exist_ok=True)
    offered = ModelVersion(id="a-x000001", stream="a", parent=None, arch="fake", sha256="")
    place.store.add_model(offered, at_utc=0.0, config={"offered": True})
    found = place.folder.recover(place.store, at_utc=0.0)
    assert [f for f in found if "a-x000001" in f] == []
    assert place.state(kept) is ModelState.REJECTED
    assert [m.name for m in place.shelf.cached("a")] == ["a-x000001"]
    place.shelf.admit("a", "a-x000001", 0.6)
    assert place.shelf.serving_version("a").id == "a-x000001"


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


def test_a_camera_given_another_network_cannot_go_back_to_the_old_ones(place: Place) -> None:
    looks = {"traits": Traits(class_frac=(1.0,)), "signature": Signature(values=(0.5,))}
    place.shelf.ensure("a", "fake")
    old = place.shelf.keep_candidate(
        "a", parent="a-000001", detector=FakeDetector(skill=0.8, arch="fake"), config=CONFIG, window=3, **looks
    )
    place.shelf.admit("a", old.id, 0.8)
    assert [m.name for m in place.shelf.cached("a")] == [old.id]
    place.shelf.ensure("a", "fake-other")
    assert place.shelf.cached("a") == ()


# --- means of models ----------------------------------------------------------------------------------------------------


def test_the_mean_of_two_models_is_a_version_of_its_own(place: Place) -> None:
    place.shelf.ensure("a", "fake")
    first, second = place.candidate(0.8), place.candidate(0.4)
    mean = place.shelf.average("a", [first, second], instead_of=first)
    assert mean is not None
    assert (mean.parent, place.state(mean.id)) == (first, ModelState.CANDIDATE)
    (skill,) = {float(tensor) for tensor in place.shelf.detector(mean.id).state().values() if tensor.numel() == 1}
    assert skill == pytest.approx(0.6)
    manifest = read_manifest(place.folder.version_dir("a", mean.id))
    assert (manifest.origin, manifest.config) == ({"kind": "average", "of": f"{first}, {second}"}, None)
    place.shelf.admit("a", mean.id, 0.5)
    assert place.shelf.serving_version("a").id == mean.id


def test_a_mean_looks_like_the_model_whose_place_it_takes_so_that_it_may_serve_again(place: Place) -> None:
    place.shelf.ensure("a", "fake")
    looks = Signature(values=(1.0, 2.0))
    first = place.shelf.keep_candidate(
        "a", parent="a-000001", detector=FakeDetector(skill=0.8), config=CONFIG, window=3, traits=Traits(place="a"), signature=looks
    ).id  # fmt: skip
    mean = place.shelf.average("a", [first, place.candidate(0.4)], instead_of=first)
    assert mean is not None
    place.shelf.admit("a", mean.id, None)
    assert CachedModel(name=mean.id, traits=Traits(place="a"), signature=looks) in place.shelf.cached("a")


def test_models_of_one_camera_that_do_not_go_back_to_one_have_no_mean(place: Place) -> None:
    """Weights that were trained apart from each other from the beginning have nothing to do with each other."""
    place.shelf.ensure("a", "fake")
    old = place.candidate(0.8)
    new = place.shelf.ensure("a", "fake", lambda name: FakeDetector(skill=0.1, arch="fake"), anew=True)
    assert place.shelf.average("a", [old, place.candidate(0.4, parent=new.id)], instead_of=old) is None
    assert place.shelf.average("a", [place.candidate(0.2, parent=new.id), new.id], instead_of=new.id) is not None


@pytest.mark.parametrize("kind", ["import", "copy", "prune"])
def test_a_model_from_outside_or_a_pruned_one_begins_a_line_of_its_own(place: Place, kind: str) -> None:
    place.shelf.ensure("a", "fake")
    own = place.candidate(0.8)
    foreign = place.shelf._keep(
        "a", parent="a-000001", detector=FakeDetector(skill=0.3), made=Made(config=CONFIG, window=1, origin={"kind": kind})
    ).id  # fmt: skip
    assert place.shelf.average("a", [own, place.candidate(0.4, parent=foreign)], instead_of=own) is None
    assert place.shelf.average("a", [foreign, place.candidate(0.4, parent=foreign)], instead_of=own) is not None
    assert place.shelf.average("a", [own, place.candidate(0.4)], instead_of=own) is not None


def test_where_a_row_between_them_is_gone_nobody_knows_and_nothing_is_averaged(place: Place) -> None:
    place.shelf.ensure("a", "fake")
    assert (
        place.shelf.average("a", [place.candidate(0.8, parent="a-000077"), place.candidate(0.4)], instead_of="a-000001") is None
    )
    assert place.shelf.average("a", ["a-000088", place.candidate(0.4)], instead_of="a-000001") is None


def test_models_of_another_shape_have_no_mean(place: Place) -> None:
    place.shelf.ensure("a", "fake")
    other = place.shelf.keep_candidate(
        "a", parent="a-000001", detector=FakeDetector(skill=0.8, arch="fake-other"), config=CONFIG, window=3
    ).id  # fmt: skip
    assert place.shelf.average("a", [place.candidate(0.8), other], instead_of="a-000001") is None


def test_no_mean_is_made_of_a_damaged_model(place: Place) -> None:
    place.shelf.ensure("a", "fake")
    good, bad = place.candidate(0.8), place.candidate(0.4)
    place.weights(bad).write_bytes(b"x")
    before = place.on_disk()
    with pytest.raises(WeightsError):
        place.shelf.average("a", [good, bad], instead_of=good)
    assert place.on_disk() == before
