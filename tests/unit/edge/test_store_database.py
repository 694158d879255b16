"""The database: states of models, the swap, bounded tables, migrations, and every disk error by its code."""

from __future__ import annotations

import sqlite3
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlite_utils import Database

from configs.errors import StorageError
from edge.store.migrations import migrations
from edge.store.store import ALLOWED, ModelState, QualityPoint, Store
from scheduler.types import ModelVersion, Observation, StreamOutcome, WindowOutcome

STEPS = [m.name for m in migrations.pending(Database(memory=True))]


@pytest.fixture
def store(tmp_path: Path):  # type: ignore[no-untyped-def]
    with Store(tmp_path / "driftbox.db") as opened:
        yield opened
        opened.check()


def version(id: str, stream: str = "yard", parent: str | None = None) -> ModelVersion:
    return ModelVersion(id=id, stream=stream, parent=parent, arch="tinydet-edge", sha256="ab" * 32, quality=0.5)


def outcome(window: int) -> WindowOutcome:
    stream = StreamOutcome(
        id="yard",
        start_quality=0.5,
        end_quality=None,
        predicted_quality=0.6,
        realised_quality=0.55,
        retrained="c1",
        admitted=True,
    )
    return WindowOutcome(
        window=window, opened_s=1.0, closed_s=2.0, streams=(stream,), predicted_quality=0.6, realised_quality=None, notes=("n",)
    )


def test_what_came_of_predictions_is_read_back_from_the_windows(store: Store) -> None:
    def observed(window: int) -> Observation:
        return Observation(
            stream="yard", window=window, option="c1", start_quality=0.5, predicted_quality=0.7, realised_quality=0.6,
            predicted_gpu_s=10.0, realised_gpu_s=12.0,
        )  # fmt: skip

    for window in range(4):
        made = outcome(window)
        seen = None if window == 2 else observed(window)
        stream = replace(made.streams[0], observation=seen)
        store.add_window(replace(made, streams=(stream,)), opened_utc=1.0, closed_utc=2.0)
    assert [o.window for o in store.observations()["yard"]] == [0, 1, 3]
    assert store.observations(windows=2)["yard"] == (observed(3),)
    assert "gate" not in store.observations()
    assert store.windows()[0].outcome.streams[0].observation == observed(0)


def test_a_swap_replaces_and_retires_in_one_step(store: Store) -> None:
    for i in ("v1", "v2"):
        store.add_model(version(i), at_utc=1.0, config={"lr": 0.1})
    assert store.serving() == {}
    assert store.serve("v1", at_utc=2.0) is None
    assert store.serve("v2", at_utc=3.0, quality=0.7, reason="better") == "v1"
    assert store.serve("v2", at_utc=4.0) is None
    assert store.serving()["yard"].id == "v2"
    assert store.serving()["yard"].quality == 0.7
    assert [(m.version.id, m.state, m.reason) for m in store.models("yard")] == [
        ("v1", ModelState.RETIRED, "replaced by v2"),
        ("v2", ModelState.SERVING, "better"),
    ]
    assert store.model("v1").config == {"lr": 0.1}
    assert store.serve("v1", at_utc=5.0, reason="rolled back") == "v2"
    assert store.serving()["yard"].id == "v1"


def test_streams_do_not_touch_each_other(store: Store) -> None:
    for stream in ("a", "b"):
        store.add_model(version(f"{stream}1", stream), at_utc=1.0)
        store.serve(f"{stream}1", at_utc=1.0)
    store.set_model_state("a1", ModelState.REJECTED, reason="damaged")
    assert list(store.serving()) == ["b"]
    assert [m.version.id for m in store.models("a")] == ["a1"]


def test_one_stream_and_the_newest_versions_can_be_asked_for_alone(store: Store) -> None:
    for number in range(1, 4):
        for stream in ("a", "b"):
            store.add_model(version(f"{stream}{number}", stream), at_utc=float(-number))  # the wall clock runs backwards
    store.serve("a2", at_utc=1.0)
    store.serve("b3", at_utc=1.0)
    assert {stream: v.id for stream, v in store.serving("a").items()} == {"a": "a2"}
    assert store.serving("c") == {}
    assert [m.version.id for m in store.models(newest=3)] == ["b2", "a3", "b3"]
    assert [m.version.id for m in store.models("a", newest=2)] == ["a2", "a3"]


@given(moves=st.lists(st.tuples(st.sampled_from(["v1", "v2", "w1"]), st.sampled_from(ModelState)), max_size=12))
@settings(max_examples=20, deadline=None)
def test_any_sequence_of_moves_keeps_the_invariants(tmp_path_factory: pytest.TempPathFactory, moves) -> None:  # type: ignore[no-untyped-def]
    with Store(tmp_path_factory.mktemp("db") / "x.db") as store:
        for i in ("v1", "v2", "w1"):
            store.add_model(version(i, "yard" if i[0] == "v" else "street"), at_utc=1.0)
        for model, state in moves:
            before = store.model(model).state
            allowed = before in ALLOWED.get(state, frozenset()) or (state == before == ModelState.SERVING)
            try:
                if state is ModelState.SERVING:
                    store.serve(model, at_utc=2.0)
                else:
                    store.set_model_state(model, state)
                assert allowed
                assert store.model(model).state is state
            except ValueError:
                assert not allowed
                assert store.model(model).state is before
            store.check()
            for stream, served in store.serving().items():
                assert (served.stream, store.model(served.id).state) == (stream, ModelState.SERVING)


def test_unknown_and_repeated_models_are_refused(store: Store) -> None:
    store.add_model(version("v1"), at_utc=1.0)
    with pytest.raises(ValueError, match="v1"):
        store.add_model(version("v1"), at_utc=2.0)
    for call in (lambda: store.serve("nope", at_utc=1.0), lambda: store.model("nope")):
        with pytest.raises(KeyError):
            call()
    with pytest.raises(KeyError):
        store.set_model_state("nope", ModelState.REJECTED)


MEASURED = QualityPoint(
    stream="yard", at_utc=5.0, value=0.5, kind="f1", version="v1", frames=8, error=0.1, over="v0", gain=-0.1, gain_error=0.05
)


def test_all_of_it_is_there_after_opening_again(tmp_path: Path) -> None:
    path = tmp_path / "driftbox.db"
    with Store(path) as store:
        store.put_camera("yard", {"fps": 5, "url": "rtsp://admin:hunter2@cam/1"}, 1.0)
        store.put_camera("gone", {}, 1.0)
        store.remove_camera("gone")
        store.add_model(version("v1"), at_utc=1.0)
        store.serve("v1", at_utc=1.0)
        store.add_window(outcome(4), opened_utc=10.0, closed_utc=20.0)
        store.add_quality(MEASURED)
        store.add_note(6.0, "auth", "rtsp://admin:hunter2@cam/1 refused", stream="yard")
    assert b"hunter2" not in path.read_bytes()
    with Store(path) as store:
        assert store.cameras() == {"yard": {"fps": 5, "url": "rtsp://***@cam/1"}}
        assert store.serving()["yard"].id == "v1"
        (window,) = store.windows()
        assert (window.outcome, window.opened_utc, window.closed_utc) == (outcome(4), 10.0, 20.0)
        assert store.next_window() == 5
        assert store.quality("yard") == [replace(MEASURED, number=1)]
        assert store.notes()[0].text == "rtsp://***@cam/1 refused"


def test_newest_come_oldest_first_even_when_the_clock_jumps(store: Store) -> None:
    for i, at in enumerate([100.0, 50.0, 200.0]):
        store.add_quality(QualityPoint(stream="yard", at_utc=at, value=i / 10, kind="f1" if i else "map"))
        store.add_window(outcome(i), opened_utc=at, closed_utc=at)
    assert [p.at_utc for p in store.quality("yard")] == [100.0, 50.0, 200.0]
    assert [p.at_utc for p in store.quality("yard", limit=2)] == [50.0, 200.0]
    assert [p.value for p in store.quality("yard", kind="map")] == [0.0]
    assert [w.outcome.window for w in store.windows(2)] == [1, 2]
    assert store.next_window() == 3


def test_prune_keeps_the_newest(store: Store) -> None:
    for i in range(10):
        store.add_note(float(i), "c", f"n{i}")
        store.add_quality(QualityPoint(stream="yard", at_utc=float(i), value=0.5, kind="f1"))
        store.add_window(outcome(i), opened_utc=0.0, closed_utc=0.0)
    assert store.prune(notes=3, quality_points=10, windows=9) == 7 + 0 + 1
    assert [n.text for n in store.notes()] == ["n7", "n8", "n9"]
    assert store.prune(notes=3, quality_points=10, windows=9) == 0


def test_threads_may_share_a_store(store: Store) -> None:
    def write(n: int) -> None:
        for i in range(25):
            store.add_quality(QualityPoint(stream=f"s{n}", at_utc=float(i), value=0.1, kind="f1"))
            store.quality(f"s{n}")

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(store.quality(f"s{n}")) for n in range(4)] == [25] * 4


@pytest.mark.parametrize("applied", range(len(STEPS) + 1))
def test_every_old_schema_is_brought_up_to_date_with_its_rows(tmp_path: Path, applied: int) -> None:
    path = tmp_path / "old.db"
    db = Database(path)
    migrations.apply(db, stop_before=STEPS[applied] if applied < len(STEPS) else None)
    if applied >= 1:
        columns = "id, stream, parent, arch, sha256, quality, state, reason, created_utc, config"
        db.execute(f"INSERT INTO models ({columns}) VALUES ('v1','yard',NULL,'a','s',0.5,'serving','',1.0,'{{}}')")
        db.execute("INSERT INTO serving (stream, version, since_utc) VALUES ('yard','v1',1.0)")
    if applied >= 2:
        db.execute("INSERT INTO notes (at_utc, stream, code, text) VALUES (1.0, '', 'c', 'kept')")
    db.conn.commit()
    db.close()
    with Store(path) as store:
        store.check()
        assert [v.id for v in store.serving().values()] == (["v1"] if applied >= 1 else [])
        assert [n.text for n in store.notes()] == (["kept"] if applied >= 2 else [])
        store.add_note(2.0, "c", "writable")


def test_a_migration_that_fails_leaves_the_database_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.db"
    db = Database(path)
    migrations.apply(db, stop_before=STEPS[1])
    db.close()

    def broken(db: Database) -> None:
        db.execute("CREATE TABLE half (a)")
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(next(m for m in migrations._migrations if m.name == STEPS[1]), "fn", broken)
    with pytest.raises(StorageError) as caught:
        Store(path)
    assert caught.value.code == "full"
    monkeypatch.undo()
    with Store(path) as store:
        assert store.rows("SELECT name FROM sqlite_master WHERE name = 'half'") == []
        assert store.notes() == []


def test_a_newer_schema_is_refused_untouched(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    Store(path).close()
    with sqlite3.connect(path) as db:
        db.execute("INSERT INTO _sqlite_migrations (migration_set, name, applied_at) VALUES ('driftbox', 'm999_future', 'x')")
    db.close()
    before = path.read_bytes()
    with pytest.raises(StorageError, match="m999_future") as caught:
        Store(path)
    assert caught.value.code == "newer"
    assert path.read_bytes() == before


@pytest.mark.parametrize("damage", ["head", "middle", "text"])
def test_a_damaged_file_is_reported_with_what_to_do(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "x.db"
    with Store(path) as store:
        for _ in range(300):
            store.add_note(1.0, "c", "x" * 200)
    data = bytearray(path.read_bytes())
    if damage == "head":
        data[:100] = b"\x55" * 100
    elif damage == "middle":
        data[8192 : len(data) - 4096] = b"\xaa" * (len(data) - 4096 - 8192)
    else:
        data = bytearray(b"this is a text file, and a long one at that\n" * 200)
    path.write_bytes(bytes(data))
    with pytest.raises(StorageError) as caught:
        Store(path)
    assert caught.value.code == "corrupt"
    assert "move the file away" in caught.value.remedy


def test_a_full_disk_is_told_and_what_was_there_stays(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    Store(path).close()
    with Store(path, max_page_count=40) as store:
        store.add_model(version("v1"), at_utc=1.0)
        store.serve("v1", at_utc=1.0)

        def fill() -> None:
            for _ in range(1000):
                store.add_note(1.0, "c", "x" * 2000)

        with pytest.raises(StorageError) as caught:
            fill()
        assert caught.value.code == "full"
        written = len(store.notes(10_000))
        assert written > 0
        assert store.serving()["yard"].id == "v1"
        store.prune(notes=0)
        store.add_note(2.0, "c", "room again")
    with Store(path) as store:
        assert [n.text for n in store.notes()] == ["room again"]


def test_a_folder_that_cannot_be_written_is_read_only(tmp_path: Path) -> None:
    with pytest.raises(StorageError) as caught:
        Store(tmp_path / "missing" / "x.db")
    assert caught.value.code == "read_only"
    with Store(tmp_path / "x.db") as store:
        store._db.execute("PRAGMA query_only=ON")  # what a read-only disk answers, also to root
        with pytest.raises(StorageError) as caught:
            store.add_note(1.0, "c", "t")
    assert caught.value.code == "read_only"


def test_another_writer_that_does_not_let_go_is_in_use(tmp_path: Path) -> None:
    with Store(tmp_path / "x.db") as store:
        store._db.execute("PRAGMA busy_timeout=1")
        other = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StorageError) as caught:
            store.add_note(1.0, "c", "t")
        other.execute("ROLLBACK")
        other.close()
    assert caught.value.code == "in_use"


def test_swaps_are_synced_fully_and_the_rest_is_not(tmp_path: Path) -> None:
    seen: list[str] = []
    with Store(tmp_path / "x.db") as store:
        store._db.set_trace_callback(seen.append)
        store.add_note(1.0, "c", "t")
        assert not any("synchronous" in s for s in seen)
        store.add_model(version("v1"), at_utc=1.0)
        seen.clear()
        store.serve("v1", at_utc=1.0)
        store._db.set_trace_callback(None)
        statements = [s for s in seen if s.startswith(("PRAGMA", "BEGIN", "COMMIT"))]
        assert statements == ["PRAGMA synchronous=FULL", "BEGIN IMMEDIATE", "COMMIT", "PRAGMA synchronous=NORMAL"]
        assert store.rows("PRAGMA synchronous")[0][0] == 1
        assert store.rows("PRAGMA journal_mode")[0][0] == "wal"
