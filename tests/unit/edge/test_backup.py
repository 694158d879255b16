"""Back-ups: whole or not there, verified, kept to a number; a restore is the old state or the new one. Faults are injected."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from configs.errors import StorageError, UsageError
from edge.store import backup as module
from edge.store.backup import DATABASE, FOLDER, KEEP, UPGRADE, find_backup, list_backups, make_backup, prune, restore, verify
from edge.store.folder import DataFolder
from edge.store.store import Store
from scheduler.types import ModelVersion

NOON_UTC = 1_790_000_000.0


def model(id: str, stream: str = "gate") -> ModelVersion:
    return ModelVersion(id=id, stream=stream, parent=None, arch="fake", sha256="0" * 64, quality=0.5)


def box_with(root: Path, *versions: str, weights: bytes = b"weights of ") -> Path:
    """A data folder whose last version serves."""
    with DataFolder(root) as folder, Store(folder.db_path) as store:
        for version in versions:
            with folder.new_version("gate", version) as part:
                (part / "model.safetensors").write_bytes(weights + version.encode())
                (part / "manifest.json").write_text(json.dumps({"sha256": "x"}))
            store.add_model(model(version), at_utc=1.0)
            store.serve(version, at_utc=2.0)
    return root


def made(root: Path, *, at_utc: float = NOON_UTC, reason: str = "by-hand", **more: Any) -> module.Backup:
    return make_backup(root, reason=reason, at_utc=at_utc, software="1.2.3", **more)


def serving(root: Path) -> dict[str, str]:
    with Store(root / DATABASE) as store:
        return {stream: version.id for stream, version in store.serving().items()}


def test_a_back_up_holds_database_serving_models_and_keys_and_says_what_it_is(tmp_path: Path) -> None:
    root = box_with(tmp_path / "data", "gate-1", "gate-2")
    (root / "keys").mkdir()
    (root / "keys" / "box.key").write_bytes(b"a key")
    config = tmp_path / "box.yaml"
    config.write_text("cameras: []\n")
    found = made(root, config=config)
    assert found.name == "20260921-141320-by-hand"
    assert (found.reason, found.software, found.created_utc) == ("by-hand", "1.2.3", NOON_UTC)
    assert set(found.files) == {
        DATABASE, "box.yaml", "keys/box.key", "models/gate/gate-2/manifest.json", "models/gate/gate-2/model.safetensors",
    }  # fmt: skip
    assert found.size_bytes > 0
    assert verify(found) == []
    assert list_backups(root) == [found]
    assert find_backup(root, "newest") == find_backup(root, found.name) == found


def test_nobody_but_the_owner_may_read_it(tmp_path: Path) -> None:
    root = box_with(tmp_path, "gate-1")
    found = made(root)
    assert (root / FOLDER).stat().st_mode & 0o077 == 0
    assert found.path.stat().st_mode & 0o077 == 0
    assert (found.path / DATABASE).stat().st_mode & 0o077 == 0


def test_what_is_written_while_it_is_made_does_not_spoil_it(tmp_path: Path) -> None:
    root = box_with(tmp_path, "gate-1")
    stop = threading.Event()

    def write() -> None:
        with Store(root / DATABASE) as store:
            number = 0
            while not stop.is_set():
                number += 1
                store.add_note(float(number), "test", "x" * 500)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        found = [made(root, at_utc=NOON_UTC + n) for n in range(3)]
    finally:
        stop.set()
        writer.join()
    assert [verify(b) for b in found] == [[], [], []]


def test_weights_are_linked_not_copied_and_outlive_their_removal(tmp_path: Path) -> None:
    root = box_with(tmp_path, "gate-1")
    found = made(root)
    weights = root / "models/gate/gate-1/model.safetensors"
    assert (found.path / "models/gate/gate-1/model.safetensors").stat().st_ino == weights.stat().st_ino
    weights.unlink()
    assert verify(found) == []


def test_two_in_one_second_have_two_names(tmp_path: Path) -> None:
    root = box_with(tmp_path, "gate-1")
    assert [made(root).name, made(root).name] == ["20260921-141320-by-hand", "20260921-141320-by-hand-2"]


@pytest.mark.parametrize("reason", ["", "UPPER", "../up", "a b", "x" * 60])
def test_a_reason_must_be_able_to_name_a_folder(tmp_path: Path, reason: str) -> None:
    root = box_with(tmp_path, "gate-1")
    with pytest.raises(UsageError):
        made(root, reason=reason)
    assert list_backups(root) == []


def test_where_no_box_was_there_is_nothing_to_back_up(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no database"):
        made(tmp_path)
    assert not (tmp_path / FOLDER).exists()


@pytest.mark.parametrize("where", ["copy_database", "_copy_models", "_copy_small", "atomic_write", "fsync_path"])
def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    root = box_with(tmp_path, "gate-1")
    before = made(root, at_utc=1.0)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(module, where, full)
        with pytest.raises(StorageError) as caught:
            made(root)
    assert caught.value.code == "full"
    assert [p.name for p in (root / FOLDER).iterdir() if p.name != ".lock"] == [before.name]


def test_what_a_killed_one_left_behind_is_removed_by_the_next(tmp_path: Path) -> None:
    root = box_with(tmp_path, "gate-1")
    (root / FOLDER / ".tmp-1-x").mkdir(parents=True)
    (root / FOLDER / ".tmp-1-x" / DATABASE).write_bytes(b"half")
    made(root)
    assert not (root / FOLDER / ".tmp-1-x").exists()


def test_only_so_many_of_one_reason_stay(tmp_path: Path) -> None:
    root = box_with(tmp_path, "gate-1")
    hand = made(root, at_utc=1.0)
    daily = [made(root, reason="daily", at_utc=NOON_UTC + n).name for n in range(4)]
    assert prune(root, reason="daily", keep=2) == daily[:2]
    assert [b.name for b in list_backups(root)] == [hand.name, *daily[2:]]


# --- verify -----------------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(where=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_one_flipped_bit_is_found_wherever_it_is(tmp_path_factory: pytest.TempPathFactory, where: int, bit: int) -> None:
    root = box_with(tmp_path_factory.mktemp("box"), "gate-1")
    found = made(root)
    files = [found.path / name for name in sorted(found.files)]
    target = files[where % len(files)]
    data = bytearray(target.read_bytes())
    data[where % len(data)] ^= 1 << bit
    target.unlink()  # it may be a link to the box's own file
    target.write_bytes(data)
    assert verify(found)
    with pytest.raises(StorageError, match="cannot be restored"):
        restore(root, found, at_utc=NOON_UTC, software="1")
    assert serving(root) == {"gate": "gate-1"}


def test_a_missing_file_and_a_newer_program_are_named(tmp_path: Path) -> None:
    root = box_with(tmp_path, "gate-1")
    found = made(root)
    (found.path / DATABASE).unlink()
    about = json.loads((found.path / module.ABOUT).read_text())
    about["steps"].append("m999_the_future")
    (found.path / module.ABOUT).write_text(json.dumps(about))
    problems = verify(find_backup(root, found.name))
    assert any("driftbox.db is missing" in p for p in problems)
    assert any("newer version of driftbox" in p and "m999_the_future" in p for p in problems)
    with pytest.raises(StorageError) as caught:
        restore(root, find_backup(root, found.name), at_utc=1.0, software="1")
    assert caught.value.code == "newer"


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"files": {"../../etc/passwd": "x"}, "created_utc": 1, "reason": "a", "software": "1", "steps": []}'],
)
def test_a_description_that_is_none_is_not_listed_and_says_why_when_asked_for(tmp_path: Path, text: str) -> None:
    root = box_with(tmp_path, "gate-1")
    found = made(root)
    (found.path / module.ABOUT).write_text(text)
    assert list_backups(root) == []
    with pytest.raises(StorageError) as caught:
        find_backup(root, found.name)
    assert caught.value.code == "corrupt"


@pytest.mark.parametrize("name", ["newest", "nothing", "../..", "20260921-120000-by-hand"])
def test_an_unknown_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="no back-up is called"):
        find_backup(box_with(tmp_path, "gate-1"), name)


# --- restore ----------------------------------------------------------------------------------------------------------


def test_there_and_back_again(tmp_path: Path) -> None:
    root = box_with(tmp_path, "gate-1")
    first = made(root)
    box_with(root, "gate-2")
    (root / "models/gate/gate-1/model.safetensors").unlink()
    assert serving(root) == {"gate": "gate-2"}
    done = restore(root, first, at_utc=NOON_UTC + 60, software="1.2.3")
    assert serving(root) == {"gate": "gate-1"}
    assert (root / "models/gate/gate-1/model.safetensors").read_bytes() == b"weights of gate-1"
    assert any("put back the files of models/gate/gate-1" in line for line in done)
    kept = next(b for b in list_backups(root) if b.reason == "before-restore")
    restore(root, kept, at_utc=NOON_UTC + 120, software="1.2.3")
    assert serving(root) == {"gate": "gate-2"}


def test_a_damaged_or_lost_database_is_replaced_and_the_damaged_one_kept(tmp_path: Path) -> None:
    root = box_with(tmp_path, "gate-1")
    found = made(root)
    (root / DATABASE).write_bytes(b"not a database, but long enough to look like one" * 100)
    (root / f"{DATABASE}-wal").write_bytes(b"old log")
    done = restore(root, found, at_utc=NOON_UTC, software="1")
    assert any("moved to damaged-" in line for line in done)
    assert serving(root) == {"gate": "gate-1"}
    aside = next(root.glob("damaged-*"))
    assert (aside / DATABASE).is_file()
    assert not (root / f"{DATABASE}-wal").exists(), "an old log would be applied to the new database"
    (root / DATABASE).unlink()
    restore(root, found, at_utc=NOON_UTC, software="1")
    assert serving(root) == {"gate": "gate-1"}


@pytest.mark.parametrize("step", ["_put_files_back", "_put_rows_back", "_copy_file"])
def test_a_fault_in_the_middle_leaves_the_old_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    root = box_with(tmp_path, "gate-1")
    found = made(root)
    box_with(root, "gate-2")
    (root / "models/gate/gate-1/model.safetensors").unlink()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(module, step, full)
        with pytest.raises(StorageError):
            restore(root, found, at_utc=NOON_UTC, software="1")
    assert serving(root) == {"gate": "gate-2"}


# --- upgrade ----------------------------------------------------------------------------------------------------------


def take_the_last_step_away(root: Path) -> str:
    """Makes the database look like one of the version before: its newest table and the record of its step go."""
    with sqlite3.connect(root / DATABASE) as db:
        db.execute("DROP TABLE profiles")
        db.execute("DELETE FROM _sqlite_migrations WHERE name = 'm006_profiles'")
    return "m006_profiles"


def test_before_the_tables_change_there_is_a_back_up(tmp_path: Path) -> None:
    root = box_with(tmp_path, "gate-1")
    assert list_backups(root) == [], "a new database is not worth one"
    step = take_the_last_step_away(root)
    with Store(root / DATABASE) as store:
        store.add_profile("gate", "{}", 1.0)
    [kept] = list_backups(root)
    assert kept.reason == UPGRADE
    assert step not in kept.steps
    assert verify(kept) == []
    with Store(root / DATABASE):
        pass
    assert list_backups(root) == [kept], "no news, no back-up"


def test_without_room_for_the_back_up_nothing_is_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = box_with(tmp_path, "gate-1")
    take_the_last_step_away(root)

    def full(*_: object, **__: object) -> None:
        raise StorageError("no space left", code="full")

    monkeypatch.setattr(module, "make_backup", full)
    with pytest.raises(StorageError):
        Store(root / DATABASE)
    with sqlite3.connect(root / DATABASE) as db:
        assert db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'profiles'").fetchone() == (0,)


def test_a_database_of_a_newer_version_is_refused_and_the_remedy_works(tmp_path: Path) -> None:
    root = box_with(tmp_path, "gate-1")
    old = made(root)
    with sqlite3.connect(root / DATABASE) as db:
        db.execute("INSERT INTO _sqlite_migrations (migration_set, name, applied_at) VALUES ('driftbox', 'm999_later', 'now')")
    with pytest.raises(StorageError) as caught:
        Store(root / DATABASE)
    assert caught.value.code == "newer"
    assert "driftbox backup restore" in caught.value.remedy
    restore(root, old, at_utc=NOON_UTC, software="1")
    assert serving(root) == {"gate": "gate-1"}


def test_a_command_cannot_restore_onto_a_running_box(tmp_path: Path) -> None:
    from edge.cli_operate import backup_restore

    root = box_with(tmp_path, "gate-1")
    made(root)
    with DataFolder(root), pytest.raises(StorageError) as caught:
        backup_restore("newest", data_dir=root, config=None, json=True)
    assert caught.value.code == "in_use"
    assert str(os.getpid()) in caught.value.message


def test_the_commands_talk_to_programs_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from edge.cli import main

    box_with(tmp_path, "gate-1")

    def answered(*words: str) -> tuple[int, Any]:
        with pytest.raises(SystemExit) as ended:
            main([*words, "--data-dir", str(tmp_path), "--json"])
        return int(ended.value.code or 0), json.loads(capsys.readouterr().out)

    code, made_by_command = answered("backup", "make")
    name = made_by_command["backup"]["name"]
    assert code == 0
    assert [b["name"] for b in answered("backup", "list")[1]["backups"]] == [name]
    assert answered("backup", "verify") == (0, {"ok": True, "name": name, "problems": []})
    (tmp_path / FOLDER / name / DATABASE).write_bytes(b"damaged")
    code, wrong = answered("backup", "verify")
    assert (code, wrong["ok"]) == (1, False)
    assert answered("backup", "restore", name)[0] == 3
    again = answered("backup", "make")[1]["backup"]["name"]
    code, restored = answered("backup", "restore", again)
    assert (code, restored["restored"]) == (0, again)
    assert answered("upgrade") == (0, {"changed": False, "backup": None})
    code, error = answered("backup", "restore", "nothing")
    assert (code, error["error"]["code"]) == (2, "usage")


def test_back_ups_before_upgrades_do_not_fill_the_disk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from edge.cli import main

    box_with(tmp_path, "gate-1")
    for word in ("", *["--before-upgrade"] * (KEEP + 2)):
        with pytest.raises(SystemExit):
            main(["backup", "make", *word.split(), "--data-dir", str(tmp_path), "--json"])
    capsys.readouterr()
    assert sorted(b.reason for b in list_backups(tmp_path)) == [UPGRADE] * KEEP + ["by-hand"]
