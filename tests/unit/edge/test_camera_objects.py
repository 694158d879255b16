"""A camera's objects live: real tracker, zones and lines on scripted detections; nobody waits, pictures and clips are asked for."""

from __future__ import annotations

import threading
import time
from collections import Counter
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from edge.inference import Shown
from edge.live_control import LiveControl
from edge.media.folder import MediaFolder
from edge.media.recorder import ClipRules, Recorder
from edge.media.space import Space
from edge.objects.book import ObjectBook, Rules
from edge.objects.clips import CameraClips
from edge.objects.live import CameraObjects, PictureMaker, new_id
from edge.objects.tracking import SceneTracker
from edge.objects.types import ObjectEvent
from edge.store.objects import ObjectStore, Pictures
from edge.store.store import Store
from scheduler.types import Detections, Frame
from streams.masks import Mask
from streams.recording import Ring

UTC = 1_790_000_000.0
WIDTH, HEIGHT = 200, 100
LEFT = {"left": ((0.0, 0.0), (0.5, 0.0), (0.5, 1.0), (0.0, 1.0))}
MASK = Mask(((0.0, 0.0), (0.5, 0.0), (0.5, 1.0)))
MIDDLE = {"mid": ((0.5, 0.0), (0.5, 1.0))}


def shown(
    n: int, boxes: list[tuple[float, float, int]], *, version: str = "gate-1", size: tuple[int, int] = (WIDTH, HEIGHT)
) -> Shown:
    """Frame n, five a second, with objects at (x, score, class), 20 px wide in a picture of 200."""
    scale = size[0] / WIDTH
    image = np.full((size[1], size[0], 3), 90, np.uint8)
    found = Detections(
        xyxy=np.array([[x, 40, x + 20, 80] for x, _, _ in boxes], np.float32).reshape(-1, 4) * scale,
        score=np.array([score for _, score, _ in boxes], np.float32), class_id=np.array([c for _, _, c in boxes], np.int64),
    )  # fmt: skip
    frame = Frame(stream="gate", seq=n, captured_s=100 + n / 5, captured_utc=UTC + n / 5, image=image)
    return Shown(frame=frame, detections=found, version=version, cost_s=0.0, lag_s=0.0)


class Heard:
    """In place of the writer."""

    def __init__(self) -> None:
        self.events: list[ObjectEvent] = []
        self.pictures: dict[str, Pictures] = {}
        self.touched: dict[str, float] = {}

    def tell(self, event: ObjectEvent, pictures: Pictures | None = None) -> None:
        self.events.append(event)
        if pictures is not None:
            self.pictures[event.id] = pictures

    def touch(self, seen_utc: dict[str, float]) -> None:
        self.touched.update(seen_utc)

    def story(self) -> list[tuple[str, str]]:
        return [(event.what, event.class_name) for event in self.events]


class HandClock:
    """Time by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic_s(self) -> float:
        return self.now_s


class Wanted:
    def __init__(self) -> None:
        self.asked: list[tuple[float, float]] = []

    def want(self, camera: str, *, since_s: float, at_s: float) -> None:
        self.asked.append((since_s, at_s))


def objects(heard: Heard, *, clock: HandClock | None = None, classes: tuple[str, ...] = (), **parts: object) -> CameraObjects:
    numbers = count()
    tracker = SceneTracker("gate", fps=5.0, lost_s=2.0, zones=LEFT, lines=MIDDLE, classes=classes)
    book = ObjectBook(
        "gate", new_id=lambda utc: f"{int(utc * 1000)}-{next(numbers):08x}", rules=Rules(lost_s=2.0, update_s=1000.0)
    )
    return CameraObjects(
        tracker, book, heard, clock=clock or HandClock(), classes=classes, zones=tuple(LEFT), lines=tuple(MIDDLE), **parts
    )  # type: ignore[arg-type]


def test_a_person_walks_through_a_zone_and_over_a_line() -> None:
    heard = Heard()
    camera = objects(heard)
    for n in range(40):
        camera.step(shown(n, [(10 + 4 * n, 0.9, 0)]))
    assert camera.present()["person"] == 1
    assert camera.in_zones()["left"]["person"] == 0
    for n in range(40, 60):
        camera.step(shown(n, []))
    assert heard.story()[0] == ("new", "person")
    assert heard.story()[-1] == ("end", "person")
    assert len({event.id for event in heard.events}) == 1
    end = heard.events[-1]
    assert end.zones_been == ("left",)
    assert 3.0 <= end.extra["dwell_s"]["left"] <= 5.0
    assert end.lines == {"mid": "in"}
    assert camera.crossings() == {"mid": {"in": 1, "out": 0}}
    assert camera.present() == dict.fromkeys(camera.present(), 0)
    assert end.ended_utc == pytest.approx(UTC + 39 / 5)


def test_an_object_keeps_its_id_over_models_and_picture_sizes() -> None:
    heard = Heard()
    camera = objects(heard)
    for n in range(30):
        size = (WIDTH, HEIGHT) if n < 15 else (2 * WIDTH, 2 * HEIGHT)
        camera.step(shown(n, [(10 + 4 * n, 0.9, 0)], version=f"gate-{n // 10}", size=size))
    camera.stop()
    assert len({event.id for event in heard.events}) == 1
    assert {event.version for event in heard.events} >= {"gate-0", "gate-2"}


def test_only_the_wanted_classes_are_followed() -> None:
    heard = Heard()
    camera = objects(heard, classes=("car",))
    for n in range(10):
        camera.step(shown(n, [(10 + 4 * n, 0.9, 0), (150 - 4 * n, 0.9, 2)]))
    assert {name for _, name in heard.story()} == {"car"}
    assert camera.present() == {"car": 1}
    assert camera.in_zones() == {"left": {"car": 0}}


def test_two_who_meet_stay_two() -> None:
    heard = Heard()
    camera = objects(heard)
    for n in range(40):
        camera.step(shown(n, [(10 + 4 * n, 0.9, 0), (170 - 4 * n, 0.9, 2)]))
    assert Counter(name for what, name in heard.story() if what == "new") == {"person": 1, "car": 1}


def test_a_camera_that_falls_silent_and_one_that_goes() -> None:
    heard, clock = Heard(), HandClock()
    camera = objects(heard, clock=clock)
    for n in range(10):
        camera.step(shown(n, [(10 + 4 * n, 0.9, 0)]))
    clock.now_s += 10.0
    camera.look()
    assert heard.story()[-1][0] != "end"
    assert heard.touched  # its row says that it is still there
    clock.now_s += 10.0
    camera.look()
    assert heard.story()[-1] == ("end", "person")


def test_pictures_are_written_before_they_are_told(tmp_path: Path) -> None:
    heard, folder = Heard(), MediaFolder(tmp_path / "media")
    space = Space(folder.root)
    camera = objects(heard, pictures=PictureMaker(folder, space))
    for n in range(10):
        camera.step(shown(n, [(10 + 4 * n, 0.9, 0)]))
    camera.stop()
    assert all(event.has_snapshot for event in heard.events)
    made = heard.pictures[heard.events[0].id]
    assert folder.file(made.snapshot).read_bytes().startswith(b"\xff\xd8")
    assert made.size_bytes == sum(folder.file(name).stat().st_size for name in (made.snapshot, made.thumbnail))


def test_without_room_objects_are_told_without_pictures(tmp_path: Path) -> None:
    heard, folder = Heard(), MediaFolder(tmp_path / "media")
    space = Space(folder.root)
    space.rest("3 MiB are left")
    camera = objects(heard, pictures=PictureMaker(folder, space))
    for n in range(10):
        camera.step(shown(n, [(10 + 4 * n, 0.9, 0)]))
    assert heard.story() == [("new", "person")]
    assert not heard.events[0].has_snapshot


def test_a_disk_that_takes_no_picture_makes_pictures_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard, folder = Heard(), MediaFolder(tmp_path / "media")
    space = Space(folder.root)
    camera = objects(heard, pictures=PictureMaker(folder, space))

    def full(*words: object, **named: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "mkdir", full)
    for n in range(10):
        camera.step(shown(n, [(10 + 4 * n, 0.9, 0)]))
    assert heard.story() == [("new", "person")]
    assert "no space left" in space.problem


def test_clips_are_wanted_while_something_moves() -> None:
    heard, wanted = Heard(), Wanted()
    camera = objects(heard, recorder=wanted)
    for n in range(20):
        camera.step(shown(n, [(10 + 4 * n, 0.9, 0)]))
    for n in range(20, 140):
        camera.step(shown(n, [(86, 0.9, 0)]))  # it has come to rest
    since_s = {since for since, _ in wanted.asked}
    assert len(since_s) == 1
    assert since_s.pop() == pytest.approx(100.2, abs=0.25)
    assert wanted.asked[-1][1] == pytest.approx(100 + 20 / 5 + 10.0, abs=1.0)


def test_whoever_hands_over_frames_never_waits_and_the_newest_wins() -> None:
    heard = Heard()
    camera = objects(heard)
    begun, go_on = threading.Event(), threading.Event()
    steps: list[int] = []

    def slow(frame: Shown) -> None:
        steps.append(frame.frame.seq)
        begun.set()
        assert go_on.wait(60)

    camera.step = slow  # type: ignore[method-assign]
    camera.start()
    camera.on_shown(shown(0, []))
    assert begun.wait(60)
    for n in range(1, 6):
        camera.on_shown(shown(n, []))
    go_on.set()
    deadline_s = time.monotonic() + 60
    while len(steps) < 2 and time.monotonic() < deadline_s:
        threading.Event().wait(0.005)
    camera.stop()
    assert steps == [0, 5]
    assert camera.skipped == 4
    camera.on_shown(shown(9, []))  # after the end: nothing happens


def test_a_frame_that_cannot_be_followed_costs_that_frame_only(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Heard()
    camera = objects(heard)
    monkeypatch.setattr("edge.objects.live.log.warning", lambda *words, **named: None)
    for n in range(10):
        frame = shown(n, [(10 + 4 * n, 0.9, 0)])
        camera._guarded(frame if n != 5 else None.__class__)  # type: ignore[arg-type]
    assert camera.errors == 1
    assert heard.story()[0] == ("new", "person")
    assert len({event.id for event in heard.events}) == 1


def test_ids_are_names_for_topics_files_and_addresses() -> None:
    from re import fullmatch

    from edge.events import EVENT_ID

    ids = {new_id(UTC) for _ in range(1000)}
    assert len(ids) == 1000
    assert all(fullmatch(EVENT_ID, id) for id in ids)
    assert fullmatch(EVENT_ID, new_id(-5.0))  # a clock before 1970


class Tapped:
    """A camera whose packets can be had."""

    def __init__(self) -> None:
        self.ring: Ring | None = None
        self.story: list[str] = []

    def record_to(self, ring: Ring | None) -> None:
        self.ring = ring

    def start(self) -> None:
        self.story.append("start")

    def stop(self) -> None:
        self.story.append("stop")


def test_what_records_a_camera_may_be_exchanged_while_it_runs(tmp_path: Path) -> None:
    folder = MediaFolder(tmp_path / "media")
    recorder = Recorder(folder, ObjectStore(Store(tmp_path / "d.db")), Space(folder.root))
    camera = Tapped()
    before, after = (
        CameraClips("gate", recorder, ClipRules(), camera),
        CameraClips("gate", recorder, ClipRules(pre_s=1.0), camera),
    )
    before.start()
    first = camera.ring
    after.start()
    before.stop()
    assert camera.ring is not first
    assert camera.ring is not None
    assert recorder._watched["gate"].ring is camera.ring
    after.stop()
    assert camera.ring is None
    assert recorder._watched == {}
    assert camera.story == []  # the analysed camera is somebody else's to start


def test_clips_are_left_before_a_mask_holds_and_taken_up_again_when_nothing_came_of_it(tmp_path: Path) -> None:
    folder = MediaFolder(tmp_path / "media")
    recorder = Recorder(folder, ObjectStore(Store(tmp_path / "d.db")), Space(folder.root))
    camera, heard = Tapped(), Heard()
    before = objects(heard, beside=(CameraClips("gate", recorder, ClipRules(), camera),))
    after = objects(heard, beside=(CameraClips("gate", recorder, ClipRules(masks=(MASK,)), camera),))
    control = SimpleNamespace()
    before.start()
    LiveControl._begin(control, before, after)  # type: ignore[arg-type]
    assert recorder._watched["gate"].rules.masks == (MASK,)
    LiveControl._take_back(control, before, after)  # type: ignore[arg-type]
    assert recorder._watched["gate"].rules.masks == ()
    assert camera.ring is not None
    LiveControl._begin(control, before, None)  # type: ignore[arg-type]
    assert (recorder._watched, camera.ring) == ({}, None)
    before.stop()


def test_a_stream_for_recording_only_runs_while_clips_are_made(tmp_path: Path) -> None:
    folder = MediaFolder(tmp_path / "media")
    recorder = Recorder(folder, ObjectStore(Store(tmp_path / "d.db")), Space(folder.root))
    watched, main = Tapped(), Tapped()
    clips = CameraClips("gate", recorder, ClipRules(), watched, main)
    clips.start()
    assert (watched.ring, main.story) == (None, ["start"])
    clips.stop()
    assert main.story == ["start", "stop"]
    assert main.ring is None
