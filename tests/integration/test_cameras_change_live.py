"""Cameras added, changed and removed while a box runs: what the others notice (nothing), what a failure leaves (what was before)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from configs.errors import ConfigError, JobError, UsageError
from edge.live_control import LiveControl
from scheduler import events as ev
from tests.support.live_box import CONFIG
from tests.support.live_cameras import SILENT, WITHOUT_MODEL, BookedBox, lanes_of

#: Long windows: what is tested must not depend on where one ends.
QUIET = replace(CONFIG, window_s=600.0, first_window_s=600.0, policy="no-retrain")


pytestmark = pytest.mark.usefixtures("fake_models")


@pytest.fixture
def box(tmp_path: Path) -> Iterator[BookedBox]:
    with BookedBox(tmp_path / "data", {"a": "fake", "b": "fake"}, config=QUIET) as made:
        made.wait_running("a")
        made.wait_running("b")
        yield made


def gone_on(box: BookedBox, camera: str, frames_before: int) -> None:
    """The worker that was there still analyses."""
    worker = box.watched[camera].worker
    assert box.runtime.watched[camera].worker is worker
    box.wait(lambda: worker.frames >= frames_before + 3, f"{camera} goes on")
    assert worker.errors == 0


def test_a_camera_joins_and_leaves_and_the_others_go_on(box: BookedBox) -> None:
    frames = box.watched["a"].worker.frames
    kept = box.control.add({"name": "Neu \N{DOOR}", "url": "rtsp://192.0.2.1/c", "edge": "fake"}, by="ann")
    assert kept.entry.id == "neu"
    box.wait_running("neu")
    assert {"a", "b", "neu"} == lanes_of(box)
    assert box.runtime.shares_pct["neu/infer"] > 0
    assert box.control.state(kept) == ("live", "")
    box.control.remove("neu", by="ann")
    assert set(box.runtime.watched) == {"a", "b"} == lanes_of(box)
    assert "neu/infer" not in box.runtime.shares_pct
    gone_on(box, "a", frames)
    assert "added by ann" in " ".join(box.noted("camera"))
    assert box.replayed().exact


def test_a_camera_comes_back_with_its_model(box: BookedBox) -> None:
    version = box.watched["a"].worker.version()
    box.control.do("camera/watch", {"camera": "a", "on": False}, by="ann")
    assert "a" not in box.runtime.watched
    assert box.control.state(box.book.read().find("a")) == ("off", "")
    told = box.control.do("camera/watch", {"camera": "a", "on": True}, by="ann")
    assert told["watch"] is True
    box.wait_running("a")
    assert box.runtime.watched["a"].worker.version() == version
    assert box.replayed().exact


def test_what_can_change_in_place_does(box: BookedBox) -> None:
    worker, frames = box.watched["a"].worker, box.watched["a"].worker.frames
    mask = [[0, 0], [1, 0], [1, 1]]
    box.control.change("a", {"name": "Front", "fps": 2, "masks": [mask], "deadline_ms": 900, "zones": {"z": mask}}, by="ann")
    now = box.runtime.watched["a"]
    assert now.worker is worker
    assert now.title == "Front"
    assert (now.fps, worker.finish.goal_s) == (2, 0.9)
    assert len(box.cameras["a"].masks) == 1
    assert now.entry is not None
    assert now.entry.zones == {"z": ((0, 0), (1, 0), (1, 1))}
    assert {knob.fps for knob in now.knobs} == {2 / stride for stride in (1, 2, 3, 4, 6, 8)}
    assert not box.maker.made
    assert not box.maker.opened
    gone_on(box, "a", frames)
    assert box.seen(ev.KnobsMeasured, "a")
    assert box.replayed().exact


def test_another_address_is_opened_before_the_old_one_is_left(box: BookedBox) -> None:
    worker, old = box.watched["a"].worker, box.cameras["a"]
    version = worker.version()
    box.control.change("a", {"url": "rtsp://192.0.2.1/other"}, by="ann")
    [new] = box.maker.opened
    assert box.runtime.watched["a"].worker is worker
    box.wait(lambda: worker.camera is new, "the worker turns to the new stream")
    box.wait_running("a")
    assert old._stopping.is_set()  # type: ignore[attr-defined]
    assert worker.version() == version
    assert not box.seen(ev.CameraRemoved)


def test_an_address_that_gives_nothing_takes_over_all_the_same(box: BookedBox) -> None:
    """Whoever types it has looked before, or the camera is off right now."""
    box.control.change("a", {"url": SILENT}, by="ann")
    assert box.runtime.watched["a"].camera is box.maker.opened[0]


def test_another_model_is_a_new_beginning_for_its_camera_alone(box: BookedBox) -> None:
    frames, old = box.watched["b"].worker.frames, box.watched["a"].worker
    box.control.change("a", {"edge": "fake-other"}, by="ann")
    assert box.runtime.watched["a"].worker is not old
    assert box.runtime.watched["a"].arch == "fake-other"
    box.wait_running("a")
    gone_on(box, "b", frames)
    assert box.replayed().exact


def test_a_model_that_is_not_there_changes_nothing(box: BookedBox) -> None:
    frames, row = box.watched["a"].worker.frames, box.book.row("a")
    with pytest.raises(JobError, match="no weights"):
        box.control.change("a", {"edge": WITHOUT_MODEL}, by="ann")
    assert box.book.row("a") == row
    gone_on(box, "a", frames)


def test_a_camera_that_cannot_be_made_is_not_kept(box: BookedBox) -> None:
    with pytest.raises(JobError):
        box.control.add({"id": "c", "url": "rtsp://192.0.2.1/c", "edge": WITHOUT_MODEL}, by="ann")
    assert [kept.entry.id for kept in box.book.read().cameras] == ["a", "b"]
    assert set(box.runtime.watched) == {"a", "b"} == lanes_of(box)


def test_the_old_model_comes_back_when_the_new_one_fails_at_the_last_moment(box: BookedBox) -> None:
    box.maker.refuses_once = "the disk is full"
    with pytest.raises(JobError, match="disk is full"):
        box.control.change("a", {"edge": "fake-other"}, by="ann")
    assert box.runtime.watched["a"].arch == "fake"
    box.wait_running("a")
    assert box.book.read().find("a").entry.edge == "fake"


def test_a_document_that_cannot_be_touches_nothing(box: BookedBox) -> None:
    for broken in ({"fps": -1}, {"url": "gopher://x/y"}, {"unknown": 1}):
        with pytest.raises(ConfigError):
            box.control.change("a", broken, by="ann")
    for unknown in ("nobody", "../etc"):
        with pytest.raises(UsageError) as refused:
            box.control.change(unknown, {"fps": 1}, by="ann")
        assert refused.value.code == "not_found"
    assert box.book.row("a") is None


def test_changes_come_one_after_the_other(box: BookedBox) -> None:
    """From many threads at once: each is whole, none is lost."""
    failed: list[BaseException] = []

    def change(field: str, value: Any) -> None:
        try:
            box.control.change("a", {field: value}, by=field)
        except BaseException as error:
            failed.append(error)

    changes: list[tuple[str, Any]] = [
        ("fps", 3),
        ("name", "x"),
        ("learning", False),
        ("classes", ["person"]),
        ("deadline_ms", 700),
    ]
    threads = [threading.Thread(target=change, args=each) for each in changes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert box.book.read().find("a").changed == tuple(sorted(field for field, _ in changes))
    now = box.runtime.watched["a"]
    assert (now.fps, now.title, now.learns) == (3, "x", False)


# --- learning and schedules -------------------------------------------------------------------------------------------


def test_the_learning_switch_reaches_the_engine_and_is_kept(box: BookedBox) -> None:
    assert box.control.do("camera/learning", {"camera": "a", "on": False}, by="mqtt") == {"camera": "a", "learning": False}
    assert box.runtime.parts.engine.state.streams["a"].learns is False
    assert box.book.read().find("a").entry.learning is False
    box.control.do("camera/learning", {"camera": "a", "on": True}, by="mqtt")
    assert box.runtime.parts.engine.state.streams["a"].learns is True
    assert box.book.read().find("a").source == "file"
    assert box.replayed().exact


def test_a_schedule_takes_cameras_out_and_brings_them_in(box: BookedBox) -> None:
    box.control.change(
        "a", {"schedule": {"time_zone": "UTC", "watch": ["mon-fri 07:00-19:00"], "learn": ["22:00-06:00"]}}, by="ann"
    )
    assert "a" in box.runtime.watched
    assert box.runtime.watched["a"].learns is False
    box.now = box.now.replace(hour=19)
    box.control.look_at_times()
    assert set(box.runtime.watched) == {"b"}
    assert box.control.state(box.book.read().find("a"))[0] == "scheduled"
    box.control.look_at_times()
    box.now = box.now.replace(day=24, hour=7)
    box.control.look_at_times()
    box.wait_running("a")
    assert box.replayed().exact


def test_a_camera_that_fails_by_its_schedule_is_said_once_and_not_tried_for_ever(box: BookedBox) -> None:
    box.control.do("camera/watch", {"camera": "a", "on": False}, by="ann")
    box.control.change("a", {"schedule": {"time_zone": "UTC", "watch": ["18:00-19:00"]}}, by="ann")
    box.control.do("camera/watch", {"camera": "a", "on": True}, by="ann")
    box.now = box.now.replace(hour=18)
    box.maker.refuses_once = "no memory"
    box.control.look_at_times()
    kept = box.book.read().find("a")
    assert box.control.state(kept) == ("failed", "no memory")
    made = len(box.maker.made)
    box.control.look_at_times()
    assert len(box.maker.made) == made
    box.control.do("camera/restart", {"camera": "a"}, by="ann")
    box.wait_running("a")


# --- commands ---------------------------------------------------------------------------------------------------------


def test_commands_that_cannot_be_are_refused_in_words(box: BookedBox) -> None:
    wrong: list[tuple[str, dict[str, Any], str]] = [
        ("camera/explode", {}, "usage"),
        ("camera/watch", {"camera": "a"}, "usage"),
        ("camera/watch", {"camera": "a", "on": "yes"}, "usage"),
        ("camera/watch", {"camera": "../x", "on": True}, "usage"),
        ("camera/learning", {"camera": "nobody", "on": True}, "not_found"),
        ("camera/restart", {"camera": "nobody"}, "not_found"),
        ("camera/restart", {"camera": "a", "more": 1}, "usage"),
        ("model/rollback", {"camera": "nobody"}, "not_found"),
        ("model/rollback", {"camera": "a", "version": "zz"}, "not_found"),
        ("model/promote", {"version": "zz"}, "not_found"),
    ]
    for command, arguments, code in wrong:
        with pytest.raises(UsageError) as refused:
            box.control.do(command, arguments, by="ann")
        assert (command, refused.value.code) == (command, code)


def test_a_version_is_promoted_and_rolled_back_and_the_answer_says_what_serves(box: BookedBox) -> None:
    shelf, first = box.shelf, box.watched["a"].worker.version()
    second = shelf.keep_candidate("a", parent=first, detector=shelf.detector(first), config=CONFIG.retrain[0], window=0).id
    told = box.control.do("model/promote", {"version": second, "force": True}, by="ann")
    assert (told["before"], told["after"], told["serves"]) == (first, second, True)
    assert box.runtime.watched["a"].worker.version() == second
    told = box.control.do("model/rollback", {"camera": "a"}, by="ann")
    assert (told["after"], told["serves"]) == (first, True)


def test_a_box_that_ends_says_so(tmp_path: Path) -> None:
    with BookedBox(tmp_path / "data", {"a": "fake"}, config=QUIET) as box:
        box.wait_running("a")
        box.stop()
        box.runtime._loop = None
        with pytest.raises(JobError) as refused:
            box.control.change("a", {"name": "x"}, by="ann")
        assert refused.value.code == "not_running"
        assert box.book.row("a") is None


def test_where_cameras_cannot_join_that_is_said(box: BookedBox) -> None:
    box.maker.refusal = "not under mps"
    for ask in (
        lambda: box.control.add({"id": "c", "url": "rtsp://192.0.2.1/c"}, by="x"),
        lambda: box.control.change("a", {"edge": "fake-other"}, by="x"),
    ):
        with pytest.raises(UsageError, match="not under mps") as refused:
            ask()
        assert refused.value.code == "restart"
    box.control.change("a", {"name": "in place goes"}, by="x")
    assert set(box.runtime.watched) == {"a", "b"}


# --- the promise ------------------------------------------------------------------------------------------------------


EDITS: list[tuple[str, Callable[[LiveControl], object]]] = [
    ("add", lambda c: c.add({"id": "c", "url": "rtsp://192.0.2.1/c", "edge": "fake"}, by="x")),
    ("in place", lambda c: c.change("c", {"name": "C", "fps": 3, "classes": ["car"]}, by="x")),
    ("stream", lambda c: c.change("c", {"url": "rtsp://192.0.2.1/d"}, by="x")),
    ("model", lambda c: c.change("c", {"edge": "fake-other"}, by="x")),
    ("learning", lambda c: c.do("camera/learning", {"camera": "c", "on": False}, by="x")),
    ("off", lambda c: c.do("camera/watch", {"camera": "c", "on": False}, by="x")),
    ("on", lambda c: c.do("camera/watch", {"camera": "c", "on": True}, by="x")),
    ("remove", lambda c: c.remove("c", by="x")),
]


def test_a_window_of_learning_survives_every_edit_of_another_camera(tmp_path: Path) -> None:
    """Camera a learns in short windows while c comes, changes and goes; a's retraining is admitted, and the journal replays."""
    config = replace(CONFIG, window_s=6.0, policy="uniform(quick,50)")
    with BookedBox(tmp_path / "data", {"a": "fake"}, config=config) as box:
        box.wait_running("a")
        for _, edit in EDITS:
            edit(box.control)
        box.wait_for(ev.SwapDone, "a")
        for _, edit in EDITS:
            edit(box.control)
        assert set(box.runtime.watched) == {"a"}
        assert box.runtime.watched["a"].worker.errors == 0
        assert box.replayed().exact
