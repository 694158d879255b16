"""Kills a running box with -9 at random moments and looks whether the next start is clean.

Used by `tests/integration/test_kill_nine.py` (10 rounds) and `scripts/kill_nine.py` (100).
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import signal
import sqlite3
import tempfile
import time
import urllib.request
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import cv2
import yaml

from edge.replay import replay
from edge.store.folder import check_version
from tests.support.ports import free_port
from tests.support.running_box import asking_headers

START_WITHIN_S = 270.0
#: Part of the kills that may come before the box is ready.
KILLED_STARTING = 0.15


@dataclass(frozen=True, kw_only=True)
class Round:
    """One life of the box. starting: not waited for until it was ready; lived_s: from being ready (starting: from its first breath)
    to the kill; admitted: models admitted in the folder so far."""

    number: int
    starting: bool
    lived_s: float
    admitted: int
    windows: int
    replayed_events: int


def small_config(data_dir: Path, port: int, policy: str) -> dict[str, Any]:
    """Two rendered cameras at night, so that there is something to learn, and the shortest windows: a kill may hit anything. The
    first window of a run labels and retrains at once when an earlier run left samples."""
    return {
        "box": {"id": "kill", "data_dir": str(data_dir)},
        "gpus": {"capacity_pct": 150},
        "scheduler": {"policy": policy},
        "window": {
            "seconds": 10, "first_seconds": 5, "label_frames": 10, "gate_frames": 4, "sample_fps": 2.0, "prep_max_frac": 0.6,
            "profile_epochs": 1, "profile_data_frac": 1.0,
        },
        "models": {"retrain": [{"name": "quick", "epochs": 3, "lr": 2e-3}]},
        "web": {"port": port},
        "cameras": [
            {"id": "one", "url": "rendered:street?seed=7&fps=5&at=0:night", "fps": 2},
            {"id": "two", "url": "rendered:yard?seed=8&fps=5&at=0:night", "fps": 2},
        ],
    }  # fmt: skip


#: In turn: one profiles before it plans, the other always retrains, so that kills meet swaps and the ends of windows.
POLICIES = ("thief-repeat", "uniform(quick,50)")


def kill_rounds(
    folder: Path, *, rounds: int, seed: int, most_s: float = 8.0, say: Callable[[str], None] = print
) -> list[Round]:
    """Runs and kills a box `rounds` times, then lets it close a window. Raises AssertionError naming the round in which something was
    wrong."""
    chance = random.Random(seed)
    data_dir, port = folder / "data", free_port()
    config = folder / "box.yaml"
    done: list[Round] = []
    serving: dict[str, str] = {}
    for number in range(1, rounds + 1):
        config.write_text(yaml.safe_dump(small_config(data_dir, port, POLICIES[number % len(POLICIES)])))
        log = folder / f"box-{number}.log"
        starting = chance.random() < KILLED_STARTING
        lived_s = chance.uniform(0.0, most_s)
        box = _start(config, log)
        try:
            if not starting:
                status = _wait_ready(box, port, log)
                shown = {camera["id"]: camera["model"] for camera in status["cameras"]}
                assert serving.items() <= shown.items(), f"round {number}: came up with {shown}, last admitted was {serving}"
            time.sleep(lived_s)
            assert box.is_alive(), f"round {number}: the box ended by itself:\n{log.read_text()[-3000:]}"
        finally:
            box.kill()
            box.join()
        with closing(killed_database(data_dir)) as db:
            admitted, windows = inspect(db, data_dir, number)
            serving = dict(db.execute("SELECT stream, version FROM serving")) if admitted else {}
        replayed = replay(data_dir) if any(data_dir.glob("events/*.jsonl")) else None
        assert replayed is None or replayed.exact, f"round {number}: the journal does not replay: {replayed}"
        events = replayed.events if replayed else 0
        done.append(
            Round(number=number, starting=starting, lived_s=lived_s, admitted=admitted, windows=windows, replayed_events=events)
        )
        when = f"{lived_s:.1f} s after {'its start' if starting else 'it was ready'}"
        say(f"round {number}: killed {when}; {admitted} models admitted, {windows} windows closed so far")
    _goes_on(config, folder / "box-last.log", port)
    say("the last start closed a window and stopped when it was told to")
    return done


def _goes_on(config: Path, log: Path, port: int) -> None:
    """After all the kills the box still does its work."""
    box = _start(config, log)
    try:
        _wait_status(box, port, log, lambda status: bool(status["outcomes"]), "a window closes")
        assert box.pid is not None
        os.kill(box.pid, signal.SIGINT)
        box.join(START_WITHIN_S)
        assert box.exitcode == 0, log.read_text()[-3000:]
    finally:
        box.kill()
        box.join()


#: Imported once, in the process that the boxes are forked from: imports take most of a box's start, and a kill hits nothing in them.
PRELOADED = ["edge.cli", "edge.wiring.running", "edge.web.serve", "tests.support.kill_rounds"]


def _start(config: Path, log: Path) -> ForkServerProcess:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    box = context.Process(target=_run_box, args=(config, log))
    box.start()
    return box


def _run_box(config: Path, log: Path) -> None:
    """`driftbox run CONFIG`, in a process of its own."""
    from edge.cli import main

    os.chdir(config.parent)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for stream in (1, 2):
        os.dup2(out, stream)
    main(["run", str(config)])


def _wait_ready(box: ForkServerProcess, port: int, log: Path) -> dict[str, Any]:
    return _wait_status(box, port, log, lambda status: bool(status["ready"]), "the box is ready")


def _wait_status(
    box: ForkServerProcess, port: int, log: Path, wanted: Callable[[dict[str, Any]], bool], what: str
) -> dict[str, Any]:
    deadline_s = time.monotonic() + START_WITHIN_S
    while time.monotonic() < deadline_s:
        assert box.is_alive(), f"the box ended by itself:\n{log.read_text()[-3000:]}"
        try:
            headers = asking_headers(log.parent / "data")
            asked = urllib.request.Request(f"http://127.0.0.1:{port}/api/v1/status", headers=headers)
            with urllib.request.urlopen(asked, timeout=60) as answer:
                status: dict[str, Any] = json.load(answer)
                if wanted(status):
                    return status
        except OSError:
            pass
        time.sleep(0.2)
    raise AssertionError(f"not within {START_WITHIN_S:.0f} s: {what}:\n{log.read_text()[-3000:]}")


def killed_database(data_dir: Path) -> sqlite3.Connection:
    """A copy of what the kill left, so that the next start, not this look, has to put the original in order."""
    with tempfile.TemporaryDirectory() as folder:
        for path in data_dir.glob("driftbox.db*"):
            if not path.name.endswith("-shm"):
                shutil.copy(path, folder)
        db = sqlite3.connect(":memory:")
        with closing(sqlite3.connect(Path(folder) / "driftbox.db")) as copy:
            copy.backup(db)
        return db


def inspect(db: sqlite3.Connection, data_dir: Path, number: int) -> tuple[int, int]:
    """What must hold in the folder of a killed box. Returns (models admitted, windows closed)."""
    if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'windows'").fetchone():
        return 0, 0  # killed before it had made its tables
    assert db.execute("PRAGMA integrity_check").fetchone()[0] == "ok", f"round {number}: database"
    served = db.execute("SELECT stream, id FROM models WHERE state IN ('serving', 'retired')").fetchall()
    windows = db.execute("SELECT count(*) FROM windows").fetchone()[0]
    for stream, version in served:
        problem = check_version(data_dir / "models" / stream / version, True)
        assert problem is None, f"round {number}: model {version}: {problem}"
    for picture in (data_dir / "samples").glob("[!.]*/[!.]*/[!.]*.jpg"):
        assert cv2.imread(str(picture)) is not None, f"round {number}: half a sample: {picture.name}"
    for labels in (data_dir / "samples").glob("[!.]*/[!.]*/[!.]*.json"):
        json.loads(labels.read_text())
    return len(served), int(windows)
