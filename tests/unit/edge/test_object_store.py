"""Objects in the database: states, search by page, clips that several objects share, the writer, a kill."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.errors import StorageError, UsageError
from edge.objects.types import ObjectEvent
from edge.objects.writer import ObjectWriter
from edge.store.objects import ObjectQuery, ObjectStore, Pictures, StoredClip, cursor_of
from edge.store.store import Store

UTC = 1_790_000_000.0
WAIT_S = 60.0


def event(n: int = 1, what: str = "new", **fields: object) -> ObjectEvent:
    """Object n, first seen n seconds after UTC."""
    begun = ObjectEvent(
        id=f"{n:013d}-0000abcd", camera="gate", what=what, class_name="person", score=0.8, box=(0.1, 0.2, 0.3, 0.4),  # type: ignore[arg-type]
        started_utc=UTC + n, seen_utc=UTC + n + 1, ended_utc=UTC + n + 1 if what == "end" else None, version="gate-1",
    )  # fmt: skip
    return replace(begun, **fields)


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return ObjectStore(Store(tmp_path / "driftbox.db"))


def ids(store: ObjectStore, **query: object) -> list[int]:
    return [int(stored.event.id.split("-")[0]) for stored in store.search(ObjectQuery(**query)).objects]  # type: ignore[arg-type]


def clip(began_s: float, ended_s: float, **fields: object) -> StoredClip:
    made = StoredClip(
        camera="gate", path=f"gate/2026-01-01/{int(began_s * 1000)}-aaaa.mp4", began_utc=UTC + began_s, ended_utc=UTC + ended_s,
        size_bytes=1000, codec="h264",
    )  # fmt: skip
    return replace(made, **fields)  # type: ignore[arg-type]


def test_an_object_is_kept_as_it_was_told_last(store: ObjectStore) -> None:
    first = event(
        1, zones=("door",), zones_been=("door",), lines={"mid": "in"}, extra={"still": False, "dwell_s": {"door": 1.5}}
    )
    store.put([first])
    assert store.get(first.id).event == replace(first, what="update")
    end = replace(first, what="end", zones=(), ended_utc=UTC + 9, seen_utc=UTC + 9, score=0.9)
    store.put([end])
    assert store.get(first.id).event == end


def test_what_has_ended_stays_ended_and_times_do_not_go_back(store: ObjectStore) -> None:
    store.put([event(1), event(1, "end", seen_utc=UTC + 20, ended_utc=UTC + 20), event(1, "update", seen_utc=UTC + 3)])
    stored = store.get(event(1).id).event
    assert (stored.ended_utc, stored.seen_utc) == (UTC + 20, UTC + 20)


def test_pictures_stay_with_states_that_bring_none(store: ObjectStore) -> None:
    store.put([event(1)], {event(1).id: Pictures(snapshot="s", thumbnail="t", size_bytes=7)})
    store.put([event(1, "end")])
    stored = store.get(event(1).id)
    assert (stored.snapshot, stored.thumbnail, stored.event.has_snapshot) == ("s", "t", True)
    assert store.used_bytes() == 7
    assert store.remove_pictures(event(1).id) == ("s", "t")
    assert not store.get(event(1).id).event.has_snapshot
    assert store.used_bytes() == 0


def test_each_thing_that_can_be_looked_for(store: ObjectStore) -> None:
    store.put([
        event(1, "end"), event(2, camera="yard"), event(3, class_name="car"), event(4, zones_been=("door", "lawn")), event(5, score=0.3),
        event(6, "end"),
    ])  # fmt: skip
    store.favour(event(6).id, True)
    store.add_clip(clip(5.5, 8.0))
    assert ids(store) == [6, 5, 4, 3, 2, 1]
    assert ids(store, camera="yard") == [2]
    assert ids(store, class_name="car") == [3]
    assert ids(store, zone="door") == [4]
    assert ids(store, zone="lawn", camera="gate") == [4]
    assert ids(store, zone="lawn", camera="yard") == []
    assert ids(store, score_min=0.5) == [6, 4, 3, 2, 1]
    assert ids(store, from_utc=UTC + 4.5) == [6, 5, 4]
    assert ids(store, to_utc=UTC + 2.5) == [2, 1]
    assert ids(store, from_utc=UTC + 2.5, to_utc=UTC + 3.5) == [3, 2]
    assert ids(store, with_clip=True) == [6, 5]
    assert ids(store, favourite=True) == [6]
    assert ids(store, open=True) == [5, 4, 3, 2]
    assert ids(store, with_snapshot=True) == []
    assert store.classes() == ("car", "person")
    assert store.zones() == ("door", "lawn")


@given(count=st.integers(0, 30), limit=st.integers(1, 12), same=st.booleans())
def test_pages_join_to_the_whole_list_also_of_objects_of_one_moment(count: int, limit: int, same: bool) -> None:
    store = ObjectStore(Store(Path(":memory:")))
    store.put([event(n, started_utc=UTC if same else UTC + n) for n in range(count)])
    found, after = [], None
    while True:
        page = store.search(ObjectQuery(limit=limit, after=after))
        assert len(page.objects) <= limit
        found += [stored.event.id for stored in page.objects]
        after = page.next
        if after is None:
            break
    assert found == [event(n).id for n in reversed(range(count))]


def test_pages_of_a_zone_join_to_the_whole_list(store: ObjectStore) -> None:
    store.put([event(n, zones_been=("door",) if n % 2 else ("lawn",)) for n in range(20)])
    first = store.search(ObjectQuery(zone="door", limit=6))
    second = store.search(ObjectQuery(zone="door", limit=6, after=first.next))
    assert [int(s.event.id[:13]) for s in (*first.objects, *second.objects)] == [19, 17, 15, 13, 11, 9, 7, 5, 3, 1]
    assert second.next is None


def test_what_was_there_for_hours_is_found_by_each_of_them_and_what_began_days_before_is_not_looked_for(
    store: ObjectStore,
) -> None:
    store.put([event(1, seen_utc=UTC + 7 * 86_400), event(2, started_utc=UTC + 6.5 * 86_400, seen_utc=UTC + 7 * 86_400)])
    assert ids(store, from_utc=UTC + 7 * 86_400 - 60) == [2]
    assert ids(store, from_utc=UTC + 43_200, to_utc=UTC + 50_000) == [1]


def test_new_objects_do_not_shift_the_pages_of_who_reads_on(store: ObjectStore) -> None:
    store.put([event(n) for n in range(10)])
    page = store.search(ObjectQuery(limit=4))
    store.put([event(50)])
    following = store.search(ObjectQuery(limit=4, after=page.next))
    assert [int(s.event.id[:13]) for s in following.objects] == [5, 4, 3, 2]


@pytest.mark.parametrize("after", ["", "x", "!!!!", cursor_of(1.0, "a")[:-3], "bnVsbA", "W10", "WzEsMiwzXQ", "ü"])
def test_a_cursor_that_is_none_is_refused(store: ObjectStore, after: str) -> None:
    with pytest.raises(UsageError, match="no cursor"):
        store.search(ObjectQuery(after=after))


def test_objects_of_one_time_share_a_clip_and_lose_it_together(store: ObjectStore) -> None:
    store.put([event(1), event(4), event(30), event(2, camera="yard")])
    number = store.add_clip(clip(0.0, 6.0))
    assert ids(store, with_clip=True) == [4, 1]
    assert [c.id for c in store.clips_of(event(4).id)] == [number]
    assert store.clips_of(event(2).id) == ()
    other = store.add_clip(clip(4.5, 20.0))
    assert store.remove_clip(number) == clip(0.0, 6.0).path
    assert ids(store, with_clip=True) == [4]
    store.remove_clip(other)
    assert ids(store, with_clip=True) == []
    assert store.remove_clip(other) == ""


def test_media_come_oldest_first_whatever_they_are_and_however_they_are_read(store: ObjectStore) -> None:
    pictures = {event(n).id: Pictures(snapshot=f"s{n}", size_bytes=10) for n in range(0, 20, 2)}
    store.put([event(n, class_name="car" if n == 6 else "person") for n in range(20)], pictures)
    for n in range(0, 18, 3):
        store.add_clip(clip(n + 0.25, n + 1.0))
    store.favour(event(6).id, True)
    times = [item.at_utc for item in store.media(batch=3)]
    assert times == sorted(times)
    assert len(times) == 16
    clips = {item.key: item for item in store.media() if item.kind == "clip"}
    assert [item.favourite for item in clips.values()].count(True) == 1
    assert clips["3"].classes == ("car", "person")
    assert store.used_bytes() == 10 * 10 + 6 * 1000


def test_old_events_and_too_many_events_go_and_favourites_and_open_ones_stay(store: ObjectStore) -> None:
    store.put([event(n, "end" if n != 2 else "new") for n in range(10)])
    store.favour(event(1).id, True)
    assert [int(i[:13]) for i in store.old_events(before_utc=UTC + 5.5, keep=100)] == [0, 3, 4]
    assert [int(i[:13]) for i in store.old_events(before_utc=0, keep=7)] == [0, 3, 4]
    store.remove([event(0).id, event(3).id])
    assert ids(store) == [9, 8, 7, 6, 5, 4, 2, 1]
    with pytest.raises(UsageError) as refused:
        store.get(event(0).id)
    assert refused.value.code == "not_found"


def test_what_was_open_at_a_kill_is_ended_once_when_it_was_last_seen(store: ObjectStore) -> None:
    store.put([event(1, zones=("door",)), event(2, "end"), event(3)])
    store.touch({event(1).id: UTC + 77, event(2).id: UTC + 99})
    ended = store.end_open()
    assert [(e.what, e.id[:13], e.ended_utc, e.zones) for e in ended] == [
        ("end", event(1).id[:13], UTC + 77, ()), ("end", event(3).id[:13], UTC + 4, ())
    ]  # fmt: skip
    assert store.end_open() == ()
    assert store.get(event(2).id).event.seen_utc == UTC + 3


# --- the writer -------------------------------------------------------------------------------------------------------


def test_events_are_told_in_order_and_after_they_are_in_the_database(store: ObjectStore) -> None:
    told, found = [], []

    def listener(heard: ObjectEvent) -> None:
        told.append((heard.id, heard.what))
        found.append(store.get(heard.id).event.ended_utc is not None or heard.what != "end")

    writer = ObjectWriter(store, [listener])
    writer.start()
    given_ = [event(n, what) for n in range(300) for what in ("new", "update", "end")]
    for one in given_:
        writer.tell(one)
    assert writer.flush(WAIT_S)
    writer.stop(WAIT_S)
    assert told == [(one.id, one.what) for one in given_]
    assert all(found)
    assert len(store.search(ObjectQuery(limit=200)).objects) == 200


def test_a_listener_that_throws_costs_nobody_else_an_event(store: ObjectStore) -> None:
    told: list[str] = []

    def broken(heard: ObjectEvent) -> None:
        raise RuntimeError("listener")

    writer = ObjectWriter(store, [broken, lambda heard: told.append(heard.what)])
    writer.start()
    writer.tell(event(1))
    writer.tell(event(1, "end"))
    assert writer.flush(WAIT_S)
    writer.stop(WAIT_S)
    assert told == ["new", "end"]


class _Full(ObjectStore):
    """A database whose disk is full for a while."""

    full = False

    def put(self, *words: object, **named: object) -> None:  # type: ignore[override]
        if self.full:
            raise StorageError("no space left", code="full")
        super().put(*words, **named)  # type: ignore[arg-type]


def test_with_a_full_disk_listeners_hear_everything_and_the_newest_states_are_written_later(tmp_path: Path) -> None:
    store = _Full(Store(tmp_path / "driftbox.db"))
    told: list[str] = []
    said: list[str] = []
    writer = ObjectWriter(store, [lambda heard: told.append(heard.what)], retry_s=0.01)
    writer.say = said.append
    writer.start()
    store.full = True
    writer.tell(event(1), Pictures(snapshot="s", size_bytes=3))
    writer.tell(event(1, "update", score=0.95))
    assert writer.flush(WAIT_S)
    assert told == ["new", "update"]
    assert "no space" in writer.problem
    with pytest.raises(UsageError):
        store.get(event(1).id)
    store.full = False
    done = threading.Event()
    writer.say = lambda text: (said.append(text), done.set())  # type: ignore[func-returns-value, assignment]
    assert done.wait(WAIT_S)
    writer.stop(WAIT_S)
    stored = store.get(event(1).id)
    assert (stored.event.score, stored.snapshot) == (0.95, "s")
    assert len(said) == 2


def test_ends_of_what_a_kill_left_open_are_told_at_the_start(store: ObjectStore) -> None:
    store.put([event(1)])
    told: list[ObjectEvent] = []
    writer = ObjectWriter(store, [told.append])
    writer.start()
    writer.tell(event(2))
    assert writer.flush(WAIT_S)
    writer.stop(WAIT_S)
    assert [(heard.what, heard.id) for heard in told] == [("end", event(1).id), ("new", event(2).id)]


_KILLED = """
import sys
from edge.objects.writer import ObjectWriter
from edge.store.objects import ObjectStore
from edge.store.store import Store
from pathlib import Path
from tests.unit.edge.test_object_store import event

def told(heard):
    print(heard.id, heard.what, flush=True)

writer = ObjectWriter(ObjectStore(Store(Path(sys.argv[1]))), [told])
writer.start()
for n in range(10**9):
    writer.tell(event(n, "new"))
    writer.tell(event(n, "end"))
    if n % 50 == 0:
        writer.flush(60)
"""


def test_kill_nine_loses_nothing_that_was_told(tmp_path: Path) -> None:
    path = tmp_path / "driftbox.db"
    root = Path(__file__).parents[3]
    process = subprocess.Popen(
        [sys.executable, "-c", _KILLED, str(path)],
        cwd=root,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(root)},
    )
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(400)]
    process.send_signal(signal.SIGKILL)
    lines += process.stdout.read().splitlines(keepends=True)
    process.wait(WAIT_S)
    told = [line.split() for line in lines if line.endswith("\n")]
    assert len(told) >= 400
    store = ObjectStore(Store(path))
    store.end_open()
    with sqlite3.connect(path) as db:
        ended = dict(db.execute("SELECT id, ended_utc FROM objects").fetchall())
    assert all(id in ended for id, _ in told)
    assert all(utc is not None for utc in ended.values())
