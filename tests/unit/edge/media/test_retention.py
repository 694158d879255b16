"""What goes and when: the pure choice, and a box over a year of virtual time that never fills its disk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.errors import ConfigError, DriftboxError
from edge.media.folder import MediaFolder
from edge.media.janitor import AGES_S, Janitor, Keep
from edge.media.library import Library
from edge.media.retention import DAY_S, Rules, choose
from edge.media.space import FAILED_S, Space
from edge.store.objects import MediaItem, ObjectQuery, ObjectStore, Pictures, StoredClip
from edge.store.store import Store
from tests.unit.edge.test_object_store import event

NOW_UTC = 1_790_000_000.0
RULES = Rules(clip_days=10, snapshot_days=20, max_bytes=1000, class_days={"person": 40, "car": 2})


def item(
    key: int, days: float, *, kind: str = "clip", size: int = 10, classes: tuple[str, ...] = (), favourite: bool = False,
    camera: str = "gate",
) -> MediaItem:  # fmt: skip
    return MediaItem(
        kind=kind, key=str(key), camera=camera, at_utc=NOW_UTC - days * DAY_S, size_bytes=size, classes=classes, favourite=favourite  # type: ignore[arg-type]
    )  # fmt: skip


def gone(
    items: list[MediaItem], *, used: int | None = None, free: float = 1e12, rules: Rules = RULES, ages: bool = True
) -> dict[str, str]:
    ordered = sorted(items, key=lambda one: one.at_utc)
    used_bytes = sum(one.size_bytes for one in items) if used is None else used
    chosen = choose(ordered, now_utc=NOW_UTC, used_bytes=used_bytes, free_bytes=free, rules=rules, ages=ages)
    return {one.item.key: one.reason for one in chosen}


def test_each_kind_and_class_has_its_own_days() -> None:
    items = [
        item(1, 11), item(2, 9), item(3, 19, kind="snapshot"), item(4, 21, kind="snapshot"), item(5, 30, classes=("person",)),
        item(6, 41, classes=("person",)), item(7, 3, classes=("car",)), item(8, 3, classes=("car", "person")),
        item(9, 3, kind="snapshot", classes=("car",)), item(10, 11, classes=("animal",)),
    ]  # fmt: skip
    assert gone(items) == {"1": "age", "4": "age", "6": "age", "7": "age", "9": "age", "10": "age"}


def test_a_camera_may_have_days_of_its_own_and_classes_count_all_the_same() -> None:
    rules = Rules(
        clip_days=10, snapshot_days=20, max_bytes=1000, class_days={"person": 40}, camera_days={"yard": 3, "vault": 100}
    )
    items = [
        item(1, 4, camera="yard"), item(2, 2, camera="yard"), item(3, 4, camera="yard", kind="snapshot"),
        item(4, 39, camera="yard", classes=("person",)), item(5, 99, camera="vault"), item(6, 101, camera="vault"),
        item(7, 11), item(8, 9), item(9, 41, camera="vault", classes=("person",)),
    ]  # fmt: skip
    assert gone(items, rules=rules) == {"1": "age", "3": "age", "6": "age", "7": "age", "9": "age"}


def test_favourites_stay_whatever_their_age_and_whatever_the_disk() -> None:
    items = [item(1, 1000, favourite=True), item(2, 1, size=10)]
    assert gone(
        items, used=10_000, free=0.0, rules=Rules(clip_days=10, snapshot_days=10, max_bytes=1, min_free_bytes=10**9)
    ) == {"2": "size"}


def test_too_much_goes_oldest_first_with_a_little_slack() -> None:
    items = [item(n, n / 100, size=100) for n in range(1, 13)]
    assert gone(items) == {"12": "size", "11": "size", "10": "size"}
    assert gone(items[:10]) == {}


def test_a_disk_that_is_full_of_other_things_is_relieved() -> None:
    rules = Rules(clip_days=10, snapshot_days=10, max_bytes=10**9, min_free_bytes=1000)
    items = [item(n, n / 100, size=100) for n in range(1, 13)]
    assert gone(items, free=900, rules=rules) == {"12": "disk", "11": "disk"}
    assert gone(items, free=1000, rules=rules) == {}


def test_without_ages_no_more_is_read_than_has_to_go() -> None:
    read = []

    def items() -> Iterator[MediaItem]:
        for n in range(1000):
            read.append(n)
            yield item(n, 1000 - n)

    assert not list(choose(items(), now_utc=NOW_UTC, used_bytes=10, free_bytes=1e12, rules=RULES, ages=False))
    assert len(read) == 1


media = st.builds(
    item, st.integers(0, 10**6), st.floats(0, 100), kind=st.sampled_from(["clip", "snapshot"]), size=st.integers(1, 400),
    classes=st.lists(st.sampled_from(["person", "car", "animal"]), max_size=2, unique=True).map(tuple), favourite=st.booleans(),
)  # fmt: skip


@given(st.lists(media, max_size=40, unique_by=lambda one: one.key), st.floats(0, 3000))
def test_afterwards_it_fits_or_only_favourites_are_left_and_nothing_young_goes_without_need(
    items: list[MediaItem], free: float
) -> None:
    rules = Rules(clip_days=10, snapshot_days=20, max_bytes=1000, min_free_bytes=500, class_days={"person": 40, "car": 2})
    told = gone(items, free=free, rules=rules)
    left = [one for one in items if one.key not in told]
    assert not any(one.favourite for one in items if one.key in told)
    used = sum(one.size_bytes for one in left)
    room = free + sum(one.size_bytes for one in items if one.key in told)
    if any(not one.favourite for one in left):
        assert used <= 1000
        assert room >= 500
    age = {one.key: (NOW_UTC - one.at_utc) / DAY_S for one in items}
    assert all(age[one.key] > rules.days(one) for one in items if told.get(one.key) == "age")
    assert all(one.favourite or age[one.key] <= rules.days(one) for one in left)
    if sum(one.size_bytes for one in items) <= 1000 and free >= 500:
        assert set(told.values()) <= {"age"}


# --- a year -----------------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class Disk:
    """A disk of so many bytes, with other things on it; media are what the database says."""

    size_bytes: int
    others_bytes: int = 0
    said: list[str] = field(default_factory=list)


class Year:
    """A box with its real database, media folder and janitor; clocks and disk by hand. Files are as small as can be: their rows say how
    large they are."""

    def __init__(
        self, root: Path, *, rules: Rules, disk_bytes: int = 10**15, event_days: float = 60.0, max_events: int = 10**6
    ) -> None:
        self.utc, self.clock_s = NOW_UTC, 0.0
        self.folder, self.store = MediaFolder(root / "media"), ObjectStore(Store(root / "driftbox.db"))
        self.disk = Disk(size_bytes=disk_bytes)
        self.space = Space(self.folder.root, free_mib=lambda _: self.free_bytes() / 2**20, clock_s=lambda: self.clock_s)
        self.space.say = self.disk.said.append
        self.library = Library(self.store, self.folder)
        keep = Keep(rules=rules, event_days=event_days, max_events=max_events)
        self.days: dict[str, float] = {}
        self.days_problem: DriftboxError | None = None
        self.janitor = Janitor(
            self.library, self.space, keep, utc_s=lambda: self.utc, clock_s=lambda: self.clock_s, camera_days=self.camera_days
        )
        self.made = 0
        self.most_bytes = 0

    def camera_days(self) -> dict[str, float]:
        if self.days_problem is not None:
            raise self.days_problem
        return self.days

    def free_bytes(self) -> float:
        return self.disk.size_bytes - self.disk.others_bytes - self.store.used_bytes()

    def record(self, *, clip_bytes: int = 1000, picture_bytes: int = 100, class_name: str = "person") -> str | None:
        """An object with pictures and a clip, a moment ago; None: recording rests."""
        if self.space.problem:
            return None
        self.made += 1
        made = event(
            self.made, "end", started_utc=self.utc - 5, seen_utc=self.utc - 1, ended_utc=self.utc - 1, class_name=class_name
        )
        pictures = self.folder.write_pictures("gate", made.id, made.started_utc, snapshot=b"s", thumbnail=b"t")
        self.store.put(
            [made], {made.id: Pictures(snapshot=pictures.snapshot, thumbnail=pictures.thumbnail, size_bytes=picture_bytes)}
        )
        name = self.folder.new_clip("gate", made.started_utc - 5, suffix=".mp4", masked=False)
        self.folder.open_clip(name).close()
        self.folder.finish_clip(name)
        self.store.add_clip(
            StoredClip(
                camera="gate",
                path=name,
                began_utc=made.started_utc - 1,
                ended_utc=self.utc,
                size_bytes=clip_bytes,
                codec="h264",
            )
        )
        return made.id

    def pass_s(self, seconds: float) -> None:
        self.utc += seconds
        self.clock_s += seconds
        self.janitor.step()
        self.most_bytes = max(self.most_bytes, self.store.used_bytes())

    def files(self) -> set[str]:
        return {path.relative_to(self.folder.root).as_posix() for path in self.folder.root.glob("*/*/*")}


def test_over_a_year_ages_and_sizes_are_kept_and_files_are_what_the_database_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge.media.folder.fsync_path", lambda path: None)
    rules = Rules(clip_days=14, snapshot_days=30, max_bytes=50_000, class_days={"person": 60})
    year = Year(tmp_path, rules=rules, event_days=90.0)
    favourite = year.record()
    assert favourite is not None
    year.library.favour(favourite, True)
    for day in range(365):
        for _ in range(6 if day % 50 == 20 else 1):  # now and then a wild day
            year.record(class_name="person" if day % 3 else "car", clip_bytes=700 + 7 * (day % 50))
            year.utc += 60
        year.pass_s(DAY_S - 400)
        assert year.store.used_bytes() <= rules.max_bytes
    assert year.most_bytes > 0.5 * rules.max_bytes
    assert year.files() == year.store.paths()
    ages = [(year.utc - one.at_utc) / DAY_S for one in year.store.media() if not one.favourite]
    assert max(ages) <= 61
    assert year.janitor.deleted["age"] > 100
    assert year.janitor.deleted["events"] > 100
    assert year.library.snapshot(favourite).is_file()
    assert year.library.clip(favourite, 0)[0].is_file()
    assert year.disk.said == []


def test_bounds_that_change_while_the_box_runs_hold_from_the_next_look_on(tmp_path: Path) -> None:
    year = Year(tmp_path, rules=Rules(clip_days=100, snapshot_days=100, max_bytes=10**6))
    year.days = {"other": 50.0}
    for _ in range(10):
        year.record()
        year.pass_s(DAY_S)
    year.janitor.use(Keep(rules=Rules(clip_days=4.5, snapshot_days=4.5, max_bytes=10**6), event_days=60.0, max_events=100))
    year.pass_s(1.0)  # ages would not be due for minutes
    assert year.store.used_bytes() == 4 * 1100
    assert year.janitor.keep.rules.camera_days == {"other": 50.0}
    year.janitor.use(Keep(rules=Rules(clip_days=100, snapshot_days=100, max_bytes=1200), event_days=60.0, max_events=3))
    year.pass_s(1.0)
    assert year.store.used_bytes() <= 1200
    assert year.janitor.deleted["events"] == 7
    year.janitor.use(
        Keep(
            rules=Rules(clip_days=100, snapshot_days=100, max_bytes=10**6, min_free_bytes=2 * 10**15),
            event_days=60.0,
            max_events=3,
        )
    )
    year.pass_s(1.0)
    assert "left on the disk" in year.space.problem
    year.janitor.use(Keep(rules=Rules(clip_days=100, snapshot_days=100, max_bytes=10**6), event_days=60.0, max_events=3))
    year.pass_s(1.0)
    assert year.space.problem == ""


def test_a_camera_whose_days_change_keeps_its_files_by_the_new_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr("edge.media.janitor.log.warning", lambda text, *values: said.append(text % values))
    year = Year(tmp_path, rules=Rules(clip_days=10, snapshot_days=10, max_bytes=10**6))
    year.days = {"gate": 20.0}
    year.record()
    year.pass_s(15 * DAY_S)
    assert year.store.used_bytes() > 0
    year.days_problem = ConfigError("the cameras cannot be read", subject="cameras")
    year.pass_s(AGES_S)
    assert year.store.used_bytes() > 0, "what was known holds"
    assert any("the cameras cannot be read" in text for text in said)
    year.days_problem, year.days = None, {"gate": 2.0}
    year.pass_s(AGES_S)
    assert year.store.used_bytes() == 0
    year.days = {}
    year.record()
    year.pass_s(9 * DAY_S)
    assert year.store.used_bytes() > 0, "as the box keeps them again"


def test_a_disk_that_others_fill_stops_recording_only_and_it_goes_on_by_itself(tmp_path: Path) -> None:
    rules = Rules(clip_days=100, snapshot_days=100, max_bytes=10**9, min_free_bytes=2**20)
    year = Year(tmp_path, rules=rules, disk_bytes=2 * 2**20)
    for _ in range(20):
        assert year.record(clip_bytes=10_000)
        year.pass_s(60)
    year.disk.others_bytes = 2**20 - 150_000  # less than must stay free: the oldest go, and that is enough
    year.pass_s(60)
    assert year.janitor.deleted["disk"] > 0
    assert not year.space.problem
    year.disk.others_bytes = 2 * 2**20  # nothing helps
    year.pass_s(60)
    assert year.store.used_bytes() == 0
    assert "MiB are left" in year.space.problem
    assert year.record() is None
    for _ in range(5):
        year.pass_s(60)
    assert len(year.disk.said) == 1
    year.disk.others_bytes = 0
    year.pass_s(60)
    assert not year.space.problem
    assert year.record() is not None
    assert len(year.disk.said) == 2


def test_favourites_that_take_everything_stop_recording_and_are_kept(tmp_path: Path) -> None:
    year = Year(tmp_path, rules=Rules(clip_days=10, snapshot_days=10, max_bytes=5_000))
    kept = []
    for _ in range(6):
        kept.append(year.record())
        assert kept[-1] is not None
        year.library.favour(kept[-1], True)
        year.utc += 100
    year.pass_s(60)
    assert "favourites" in year.space.problem
    assert all(year.library.snapshot(id).is_file() for id in kept if id)
    year.library.favour(kept[0] or "", False)
    year.library.favour(kept[1] or "", False)
    year.pass_s(AGES_S)
    assert not year.space.problem


def test_after_a_failed_write_nothing_is_tried_for_a_while(tmp_path: Path) -> None:
    year = Year(tmp_path, rules=Rules(clip_days=10, snapshot_days=10, max_bytes=10**6))
    year.space.failed("disk quota exceeded")
    year.pass_s(FAILED_S / 2)
    assert year.space.problem
    year.pass_s(FAILED_S)
    assert not year.space.problem


def test_more_events_than_are_kept_go_oldest_first(tmp_path: Path) -> None:
    year = Year(tmp_path, rules=Rules(clip_days=1000, snapshot_days=1000, max_bytes=10**9), event_days=1000.0, max_events=10)
    for _ in range(25):
        year.record()
        year.utc += 10
    year.pass_s(AGES_S)
    found = year.store.search(ObjectQuery(limit=200)).objects
    assert len(found) == 10
    assert found[-1].event.id == event(16).id


def test_a_broken_disk_ends_no_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    year = Year(tmp_path, rules=Rules(clip_days=1, snapshot_days=1, max_bytes=10**6))
    year.record()

    def broken(self: Path, missing_ok: bool = False) -> None:
        raise OSError(5, "input/output error")

    monkeypatch.setattr(Path, "unlink", broken)
    year.pass_s(10 * DAY_S)
    assert year.janitor.deleted["age"] == 0
    monkeypatch.undo()
    year.pass_s(AGES_S)
    assert year.janitor.deleted["age"] == 2
    assert year.files() == set()
