"""What an operator does to real processes: killing back-ups and restores in the middle, starting without network, stopping early,
stopping twice; and what systemd hears meanwhile. Durations are printed, not judged."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge.replay import replay
from edge.store.backup import DATABASE, FOLDER, list_backups, make_backup, verify
from edge.store.folder import DataFolder
from edge.store.store import Store
from tests.support.running_box import ROOT, WITHIN_S, eventually

pytestmark = pytest.mark.slow

BOX = """
web: {{enabled: false}}
box: {{data_dir: "{folder}/data"}}
cameras:
  - {{id: one, url: "rendered:street?seed=3&fps=4", fps: 2}}
"""


# --- back-ups ---------------------------------------------------------------------------------------------------------


def fill(root: Path, word: str, rows: int = 3000) -> None:
    with DataFolder(root) as folder, Store(folder.db_path) as store, store.transaction() as db:
        db.execute("DELETE FROM notes")
        rows_of = [(float(n), "", word, "x" * 300) for n in range(rows)]
        db.executemany("INSERT INTO notes (at_utc, stream, code, text) VALUES (?, ?, ?, ?)", rows_of)


def words(root: Path) -> set[tuple[str, int]]:
    with sqlite3.connect(root / DATABASE) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return set(db.execute("SELECT code, count(*) FROM notes GROUP BY code").fetchall())


def kill_somewhere(words: list[str], most_s: float, rng: random.Random) -> bool:
    """Starts a driftbox command and kills it at any moment; whether it was killed before it was done."""
    process = subprocess.Popen(
        [sys.executable, "-m", "edge", *words], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        process.wait(rng.uniform(0.2, 1.0) * most_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return True
    return False


def command_s(words: list[str]) -> float:
    started_s = time.monotonic()
    subprocess.run([sys.executable, "-m", "edge", *words], cwd=ROOT, check=True, capture_output=True, timeout=WITHIN_S)
    return time.monotonic() - started_s


def test_a_killed_back_up_is_no_back_up_and_a_killed_restore_is_all_or_nothing(tmp_path: Path) -> None:
    root, rng = tmp_path / "data", random.Random(7)
    fill(root, "old")
    kept = make_backup(root, reason="by-hand", at_utc=1.0, software="1")
    fill(root, "new")
    make = ["backup", "make", "--data-dir", str(root)]
    restore = ["backup", "restore", kept.name, "--data-dir", str(root)]
    usual_s = command_s(make)
    for _ in range(3):
        kill_somewhere(make, usual_s, rng)
        assert all(verify(b) == [] for b in list_backups(root))
    killed = 0
    for _ in range(4):
        killed += kill_somewhere(restore, usual_s, rng)
        assert words(root) in ({("old", 3000)}, {("new", 3000)})
        with DataFolder(root) as folder, Store(folder.db_path) as store:
            folder.recover(store, at_utc=2.0)
        fill(root, "new")
    print(f"{killed} of 4 restores were killed before they were done")
    command_s(restore)
    assert words(root) == {("old", 3000)}
    command_s(make)
    assert [p for p in (root / FOLDER).iterdir() if p.name.startswith(".tmp-")] == []


# --- starting and stopping --------------------------------------------------------------------------------------------


class Manager:
    """Hears what systemd would hear."""

    def __init__(self, path: Path) -> None:
        self.path, self.heard = path, list[str]()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while (data := self._socket.recv(4096)) != b"end":
            self.heard.append(data.decode())

    def close(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.sendto(b"end", str(self.path))
        self._thread.join(10)
        self._socket.close()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    found = Manager(tmp_path / "notify")
    yield found
    found.close()


class Started:
    def __init__(self, folder: Path, manager: Manager, *before: str) -> None:
        config = folder / "box.yaml"
        config.write_text(BOX.format(folder=folder))
        self.output = folder / "output"
        environment = os.environ | {"NOTIFY_SOCKET": str(manager.path), "WATCHDOG_USEC": "90000000", "OMP_NUM_THREADS": "1"}
        with self.output.open("wb") as out:
            command = [*before, sys.executable, "-m", "edge", "run", str(config)]
            self.process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=out)

    def ended(self) -> int:
        try:
            return self.process.wait(WITHIN_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            pytest.fail(f"it does not end: {self.output.read_text()[-2000:]}")

    def says(self, text: str) -> bool:
        assert self.process.poll() is None, self.output.read_text()[-2000:]
        return text in self.output.read_text()


def heard(started: Started, manager: Manager, word: str) -> bool:
    assert started.process.poll() is None, started.output.read_text()[-2000:]
    return word in manager.heard


def without_network() -> list[str]:
    """Before a command: it sees loopback and nothing else."""
    words = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
    if shutil.which("ip") is None or subprocess.run([*words, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no network namespace can be made here")
    return words


def test_a_box_starts_works_and_ends_without_any_network_and_systemd_hears_it(tmp_path: Path, manager: Manager) -> None:
    box = Started(tmp_path, manager, *without_network())
    eventually(lambda: heard(box, manager, "READY=1"), "it is ready")
    eventually(lambda: heard(box, manager, "WATCHDOG=1"), "it lives")
    eventually(lambda: heard(box, manager, "STATUS=all is well"), "it says how it is")
    started_s = time.monotonic()
    box.process.send_signal(signal.SIGTERM)
    assert box.ended() == 0
    print(f"ended {time.monotonic() - started_s:.1f} s after SIGTERM; to reach: 10 s")
    eventually(lambda: "STOPPING=1" in manager.heard, "it said that it ends")
    assert "READY=1" not in manager.heard[manager.heard.index("STOPPING=1") :]
    assert "Traceback" not in box.output.read_text()
    assert replay(tmp_path / "data").exact


def test_sigterm_during_the_start_ends_it_in_order(tmp_path: Path, manager: Manager) -> None:
    box = Started(tmp_path, manager)
    eventually(lambda: (tmp_path / "data" / ".lock").exists(), "it has begun", within_s=WITHIN_S)
    box.process.send_signal(signal.SIGTERM)
    assert box.ended() in (0, -signal.SIGTERM), box.output.read_text()[-2000:]
    assert "Traceback" not in box.output.read_text()
    with DataFolder(tmp_path / "data") as folder, Store(folder.db_path) as store:
        store.check()


def test_a_second_sigterm_hurries_and_nothing_is_lost(tmp_path: Path, manager: Manager) -> None:
    box = Started(tmp_path, manager)
    eventually(lambda: heard(box, manager, "READY=1"), "it is ready")
    for _ in range(2):
        box.process.send_signal(signal.SIGTERM)
        time.sleep(0.05)
    started_s = time.monotonic()
    assert box.ended() in (0, 143)
    print(f"ended {time.monotonic() - started_s:.1f} s after the second SIGTERM")
    assert replay(tmp_path / "data").exact
    with DataFolder(tmp_path / "data") as folder, Store(folder.db_path) as store:
        store.check()
