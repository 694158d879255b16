"""What stands behind the page Health: log ring, disk use, diagnostics, daily back-ups, the routes and who may use them."""

from __future__ import annotations

import io
import json
import logging
import os
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient

from configs.errors import StorageError
from configs.load import parse_config
from edge import box_health
from edge.api import make_app
from edge.box_health import DAY_S, BoxHealth, DailyBackup, Sources, command_bundle
from edge.clock import FakeClock
from edge.diagnostics import bundle, config_text, database_text, plain
from edge.disk_use import KEPT_S, DiskUse
from edge.doctor import bad, ok
from edge.log_ring import LINE_MAX, LogRing
from edge.store.backup import list_backups
from edge.store.folder import DataFolder
from edge.store.store import Store
from edge.watchdog.live import Watchdog
from edge.web.fake import FakeSource
from edge.web.fake_health import FakeHealth
from edge.web.services import Services
from edge.web.who import Role, Who

CANARY = "zzCANARYzz"


# --- log ring ---------------------------------------------------------------------------------------------------------


def record(text: str, level: int = logging.INFO, *arguments: object) -> logging.LogRecord:
    return logging.LogRecord("driftbox", level, "x.py", 1, text, arguments or None, None)


def test_lines_are_redacted_numbered_and_bounded() -> None:
    ring = LogRing(kept=3)
    ring.emit(record("camera %s", logging.WARNING, f"rtsp://me:{CANARY}@cam/1?token={CANARY}"))
    for n in range(3):
        ring.emit(record(f"line {n} " + "x" * 5000))
    lines = ring.lines()
    assert [x.number for x in lines] == [2, 3, 4]
    assert all(len(x.text) <= LINE_MAX for x in lines)
    assert CANARY not in str(lines)
    assert [x.number for x in ring.lines(after=3)] == [4]
    assert [x.number for x in ring.lines(limit=1)] == [4]


def test_levels_and_broken_lines() -> None:
    ring = LogRing()
    ring.emit(record("fine"))
    ring.emit(record("careful", logging.WARNING))
    ring.emit(record("%d", logging.ERROR, "no number"))
    assert [x.text for x in ring.lines(level="WARNING")] == ["careful", "(a line that could not be put together)"]
    assert len(ring.lines(level="nonsense")) == 3


# --- disk use ---------------------------------------------------------------------------------------------------------


def test_disk_use_by_kind_counts_links_once_and_asks_the_disk_once_a_minute(tmp_path: Path) -> None:
    for name, size in (("driftbox.db", 10), ("driftbox.db-wal", 5), ("samples/a/1.jpg", 100), ("models/a/w", 40), ("odd/x", 3)):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)
    (tmp_path / "backups/one").mkdir(parents=True)
    os.link(tmp_path / "models/a/w", tmp_path / "backups/one/w")
    (tmp_path / "backups/one/driftbox.db").write_bytes(b"x" * 7)
    now_s = [0.0]
    use = DiskUse(tmp_path, lambda: now_s[0])
    assert {k: v for k, v in use.bytes().items() if v} == {
        "database": 15,
        "samples": 100,
        "models": 40,
        "backups": 7,
        "other": 3,
    }
    (tmp_path / "samples/a/2.jpg").write_bytes(b"x" * 100)
    assert use.bytes()["samples"] == 100
    now_s[0] += KEPT_S + 1
    assert use.bytes()["samples"] == 200
    assert use.free_bytes() > 0
    assert DiskUse(tmp_path / "nowhere", lambda: 0.0).free_bytes() == 0


# --- diagnostics ------------------------------------------------------------------------------------------------------

CONFIG = f"""
box: {{data_dir: "DATA"}}
telemetry: {{mqtt: {{enabled: true, username: {CANARY}-user, password: {CANARY}-mqtt}}}}
cameras:
  - {{id: gate, url: "rtsp://{CANARY}-user:{CANARY}-pw@192.0.2.1/live?token={CANARY}-token"}}
"""


def unpacked(data: bytes) -> dict[str, str]:
    archive = zipfile.ZipFile(io.BytesIO(data))
    return {name: archive.read(name).decode() for name in archive.namelist()}


def test_a_bundle_beside_a_box_holds_no_secret_of_its_configuration(tmp_path: Path) -> None:
    with DataFolder(tmp_path) as folder, Store(folder.db_path) as store:
        store.add_note(1.0, "x", f"rtsp://a:{CANARY}@b/c")
        (folder.events_dir / "00000001.jsonl").write_text(f'{{"text": "rtsp://a:{CANARY}@b/c"}}\n')
        config = parse_config(CONFIG.replace("DATA", str(tmp_path)))
        parts = unpacked(
            command_bundle(config, FakeSource().status(), [ok("python", "3.11"), bad("disk", "full", "free some")])
        )
    assert CANARY not in "".join(parts.values())
    assert json.loads(parts["config.json"])["telemetry"]["mqtt"]["password"] == "***"
    assert "192.0.2.1" in parts["config.json"]
    assert "notes: 1 rows" in parts["database.txt"]
    assert "torch==" in parts["versions.txt"]
    assert json.loads(parts["doctor.json"])[1]["remedy"] == "free some"
    assert json.loads(parts["status.json"])["box"] == "demo"


def test_a_part_that_cannot_be_made_says_why_and_the_others_are_there() -> None:
    def broken() -> str:
        raise OSError(f"cannot read rtsp://me:{CANARY}@b/c")

    parts = unpacked(bundle({"a.txt": broken, "b.txt": lambda: "fine"}))
    assert parts["a.txt"].startswith("not available: OSError")
    assert parts["b.txt"] == "fine"
    assert CANARY not in str(parts)


def test_a_long_part_keeps_its_end() -> None:
    parts = unpacked(bundle({"a.txt": lambda: "x" * 10_000_000 + "the end"}))
    assert len(parts["a.txt"]) < 5_000_000
    assert parts["a.txt"].endswith("the end")


def test_private_keys_are_blotted_out_wherever_they_stand() -> None:
    found = plain({"a": [{"api_token": CANARY, "key_file": "/x", "name": "kept"}], "password": None, "n": 1.5, "on": True})
    assert found == {"a": [{"api_token": "***", "key_file": "***", "name": "kept"}], "password": None, "n": 1.5, "on": True}


def test_the_configuration_as_text_is_whole_and_without_secrets(tmp_path: Path) -> None:
    text = config_text(parse_config(CONFIG.replace("DATA", str(tmp_path))))
    assert CANARY not in text
    assert set(json.loads(text)) >= {"box", "cameras", "storage", "web"}


def test_tables_with_odd_names_are_counted(tmp_path: Path) -> None:
    import sqlite3

    with sqlite3.connect(tmp_path / "x.db") as db:
        db.execute('CREATE TABLE "a "" b" (x)')
        db.execute('INSERT INTO "a "" b" VALUES (1)')
    assert 'a " b: 1 rows (x)' in database_text(tmp_path / "x.db")


# --- a running box's health -------------------------------------------------------------------------------------------


def box_health_of(root: Path, **options: Any) -> BoxHealth:
    clock = FakeClock()
    config = parse_config(f'box: {{data_dir: "{root}"}}\nweb: {{enabled: false}}\n')
    sources: dict[str, Any] = {
        "status": FakeSource(), "root": root, "config": lambda: config, "watchdog": Watchdog(clock=clock), "ring": LogRing(),
        "clock": clock,
    } | options  # fmt: skip
    return BoxHealth(Sources(**sources))


def test_health_and_metrics_of_a_box(tmp_path: Path) -> None:
    with DataFolder(tmp_path) as folder, Store(folder.db_path):
        health = box_health_of(tmp_path, outbox=lambda: 4)
        made = health.back_up()
        view, gathered = health.health(), health.gather()
        parts = unpacked(health.diagnostics())
    assert [b.name for b in view.backups] == [made.name]
    assert view.resident_bytes > 2**20
    assert view.doctor.at_utc is None
    assert gathered.outbox == 4
    assert gathered.disk_bytes["database"] > 0
    assert "driftbox_outbox_messages 4.0" in parts["metrics.txt"]
    assert set(parts) >= {"status.json", "health.json", "config.json", "log.txt", "journal.jsonl", "database.txt"}


def test_doctor_looks_beside_and_one_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    go, looks = threading.Event(), []

    def examine(config: Any) -> list[Any]:
        looks.append(1)
        go.wait(60)
        return [bad("disk", "full", "free some")]

    monkeypatch.setattr(box_health, "examine_running", examine)
    health = box_health_of(tmp_path)
    assert health.examine().running
    assert health.examine().running
    go.set()
    for thread in threading.enumerate():
        if thread.name == "doctor":
            thread.join(60)
    doctor = health.health().doctor
    assert (doctor.running, len(looks), doctor.findings[0].remedy) == (False, 1, "free some")


def test_a_doctor_that_falls_over_is_not_running_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def examine(config: Any) -> list[Any]:
        raise RuntimeError("made up")

    monkeypatch.setattr(box_health, "examine_running", examine)
    monkeypatch.setattr("threading.excepthook", lambda died: None)
    health = box_health_of(tmp_path)
    health.examine()
    import threading

    for thread in threading.enumerate():
        if thread.name == "doctor":
            thread.join(60)
    assert not health.health().doctor.running


def test_a_database_in_trouble_does_not_take_the_metrics_with_it(tmp_path: Path) -> None:
    def broken() -> int:
        raise StorageError("no", code="corrupt")

    assert box_health_of(tmp_path, outbox=broken).gather().outbox is None


# --- daily back-ups ---------------------------------------------------------------------------------------------------


def test_one_a_day_and_only_so_many_stay(tmp_path: Path) -> None:
    clock, told = FakeClock(), []
    with DataFolder(tmp_path) as folder, Store(folder.db_path):
        daily = DailyBackup(tmp_path, clock, every_days=1.0, keep=2, tell=told.append)
        for _ in range(4):
            daily.look()
            daily.look()
            clock.advance_to(clock.monotonic_s() + DAY_S)
        assert len(list_backups(tmp_path)) == 2
        clock.jump_utc(-30 * DAY_S)
        daily.look()
    assert len({b.name for b in list_backups(tmp_path)}) == 2
    assert told == []


def test_what_goes_wrong_is_said_once_until_it_works_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    with DataFolder(tmp_path) as folder, Store(folder.db_path):
        daily = DailyBackup(tmp_path, FakeClock(), every_days=1.0, keep=2, tell=told.append)
        with monkeypatch.context() as patched:

            def full(*_: object, **__: object) -> None:
                raise StorageError("no space left", code="full")

            patched.setattr(box_health, "make_backup", full)
            daily.look()
            daily.look()
        daily.look()
    assert told == ["the box could not be backed up: no space left"]
    assert len(list_backups(tmp_path)) == 1


def test_never_means_never(tmp_path: Path) -> None:
    daily = DailyBackup(tmp_path, FakeClock(), every_days=0.0, keep=2, tell=lambda text: None)
    daily.start()
    daily.stop()
    assert not daily._thread.is_alive()


# --- routes -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def client() -> TestClient:
    health = FakeHealth()
    app = make_app(FakeSource(), Services(health=health, metrics=health))
    return TestClient(app, base_url="http://127.0.0.1", client=("127.0.0.1", 50000))


def test_the_routes_answer(client: TestClient) -> None:
    assert client.get("/api/v1/health").json()["degraded"][0].startswith("camera gate is in quarantine")
    assert [x["number"] for x in client.get("/api/v1/health/log?after=1").json()] == [2]
    assert client.get("/api/v1/health/log?level=DEBUG").status_code == 422
    assert client.get("/api/v1/health/log?limit=0").status_code == 422
    assert client.post("/api/v1/health/doctor", json={}).status_code == 202
    assert client.post("/api/v1/health/backups", json={}).json()["reason"] == "by-hand"
    answer = client.get("/api/v1/health/diagnostics.zip")
    assert answer.headers["content-disposition"].startswith("attachment")
    assert zipfile.ZipFile(io.BytesIO(answer.content)).testzip() is None


@pytest.mark.parametrize(
    ("method", "path", "least"),
    [
        ("GET", "/api/v1/health", Role.VIEWER),
        ("GET", "/api/v1/health/log", Role.OPERATOR),
        ("POST", "/api/v1/health/doctor", Role.OPERATOR),
        ("POST", "/api/v1/health/backups", Role.ADMIN),
        ("GET", "/api/v1/health/diagnostics.zip", Role.ADMIN),
    ],
)
@pytest.mark.parametrize("role", list(Role))
def test_each_role_may_what_it_may(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, method: str, path: str, least: Role, role: Role
) -> None:
    monkeypatch.setattr("edge.web.who.who_of", lambda request: Who(name="kim", role=role))
    answer = client.request(method, path, json={} if method == "POST" else None)
    assert (answer.status_code == 403) == (role < least), answer.text


def test_readiness_says_degraded_and_names_nobody() -> None:
    source = FakeSource()
    degraded = source.status().model_copy(update={"degraded": ("camera gate is in quarantine: x",)})
    app = make_app(SimpleNamespace(status=lambda: degraded))  # type: ignore[arg-type]
    answer = TestClient(app).get("/readyz")
    assert answer.status_code == 200
    assert answer.json()["detail"] == "degraded, 1 reasons: see the page Health"
    assert "gate" not in answer.text
