"""Threads that the watchdog replaces: alive, silent, replaced while they hang, ended."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from configs.schema.media import MediaSection
from edge.media.folder import MediaFolder
from edge.media.parts import media_of
from edge.media.recorder import ClipRules, Recorder
from edge.media.space import Space
from edge.store.objects import ObjectStore
from edge.store.store import Store
from edge.worker_thread import WorkerThread
from streams.recording import Ring

WAIT_S = 60.0


def test_a_thread_that_hangs_is_replaced_and_ends_when_it_comes_back() -> None:
    now_s = [0.0]
    hangs, came, ended = threading.Event(), threading.Semaphore(0), threading.Semaphore(0)

    def run(goes_on: Callable[[], bool]) -> None:
        while goes_on():
            worker.pulse.beat()
            came.release()
            hangs.wait(WAIT_S)
        ended.release()

    worker = WorkerThread("worker", run, now_s=lambda: now_s[0])
    assert worker.is_alive()
    assert worker.silent_s() == 0.0
    worker.start()
    assert came.acquire(timeout=WAIT_S)
    now_s[0] = 90.0
    assert worker.silent_s() == 90.0
    worker.begin_anew()
    assert came.acquire(timeout=WAIT_S)
    assert worker.silent_s() == 0.0
    worker.end()
    hangs.set()
    assert ended.acquire(timeout=WAIT_S)
    assert ended.acquire(timeout=WAIT_S)
    worker.join(WAIT_S)
    assert worker.is_alive()  # it has ended because it was told to: nothing to be helped
    assert worker.silent_s() == 0.0


def test_a_thread_that_dies_is_seen_and_helped_and_one_that_was_ended_is_left_alone() -> None:
    runs = threading.Semaphore(0)
    worker = WorkerThread("worker", lambda goes_on: runs.release())
    worker.start()
    worker.join(WAIT_S)
    assert not worker.is_alive()
    worker.begin_anew()
    assert runs.acquire(timeout=WAIT_S)
    assert runs.acquire(timeout=WAIT_S)
    worker.end()
    worker.begin_anew()
    assert not runs.acquire(blocking=False)


def test_a_box_that_keeps_nothing_says_why(tmp_path: Path) -> None:
    media = media_of(MediaSection(min_free_mib=16), MediaFolder(tmp_path / "media"), Store(tmp_path / "d.db"), [])
    assert media.conditions() == ()
    media.space.rest("12 MiB are left on the disk")
    assert media.conditions() == ("no snapshots and clips are kept: 12 MiB are left on the disk",)
    assert set(media.workers()) == {"objects-writer", "recorder", "media-janitor"}
    said: list[str] = []
    media.start(said.append)
    assert all(worker.is_alive() for worker in media.workers().values())
    media.stop()
    media.space.go_on()
    assert said == ["snapshots and clips are kept again"]


def test_one_clip_that_hangs_in_the_disk_costs_the_other_cameras_nothing(tmp_path: Path) -> None:
    folder = MediaFolder(tmp_path / "media")
    recorder = Recorder(folder, ObjectStore(Store(tmp_path / "d.db")), Space(folder.root))
    turns: list[str] = []
    for camera in ("gate", "yard"):
        recorder.add(camera, Ring(keep_s=1.0, max_bytes=1000), ClipRules())
    recorder._turn = lambda watch: turns.append(watch.camera)  # type: ignore[method-assign]
    with recorder._watched["gate"].lock:  # whoever was replaced hangs here
        recorder.step()
    assert turns == ["yard"]
    recorder.step()
    assert turns == ["yard", "gate", "yard"]
