"""Over real RTSP a rendered object goes to and fro over a line while its camera goes from box to box: real gates, parcels, tracker,
lines and queries; the picture says its own number, so it is known how often the line was crossed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path

import numpy as np
import pytest

from configs.schema import CameraEntry
from edge.inference import Shown
from edge.objects.book import ObjectBook, Rules
from edge.objects.live import CameraObjects
from edge.objects.tracking import SceneTracker
from edge.objects.types import ObjectEvent
from edge.queries.base import Tools
from edge.queries.live import CameraQueries
from edge.runtime import Watched
from scheduler.fleet.types import CameraKey
from scheduler.types import Detections
from streams.rtsp_server import RtspServer
from tests.support.authority import Authority
from tests.support.fakes import put_fakes_in_the_zoo
from tests.support.migrating import FPS, SIZE, Controller, MovingBox, Post
from tests.support.query_scenes import specs

GATE = CameraKey(home="a", camera="gate")
LINES = {"mid": ((0.5, 0.0), (0.5, 1.0))}
QUERY = "{name: lines, template: lines, lines: {mid: [[0.5, 0], [0.5, 1]]}}"
#: It goes from 34 px to 94 px and back, 2 px a frame: 60 frames for a turn, and the line (64 px) is crossed half-way.
TURN, LEFT, STEP, SIDE = 60, 34, 2, 40
#: Frames around a turning point in which nobody is near the line, and who has crossed it is counted.
CALM = 4
#: A tracker may lose what it does not see for so many pictures: then it is not known how often it should have counted.
GAP = 8
#: Where in half a turn it is at the line, or has just been there: on a busy machine not every picture is followed.
COMES = range(TURN // 4, TURN // 4 + 4)


def middle(index: int) -> int:
    """Where the middle of the object is in that picture, px from the left."""
    at = index % TURN
    return LEFT + STEP * (at if at <= TURN // 2 else TURN - at)


def crossings(first: int, last: int) -> int:
    """How often the line lies between the object and where it was in the picture before."""
    sides = [middle(index) > SIZE[0] / 2 for index in range(first, last + 1)]
    return sum(a != b for a, b in zip(sides, sides[1:], strict=False))


def picture(index: int) -> np.ndarray:
    """Its number above in 16 bars, the object below."""
    image = np.full((SIZE[1], SIZE[0], 3), 20, np.uint8)
    for bit in range(16):
        image[:16, bit * 8 : bit * 8 + 8] = 230 if index >> bit & 1 else 20
    x = middle(index)
    image[40 : 40 + SIDE, x - SIDE // 2 : x + SIDE // 2] = 230
    return image


def number(image: np.ndarray) -> int:
    return sum(int(image[4:12, bit * 8 + 2 : bit * 8 + 6].mean() > 120) << bit for bit in range(16))


def found(image: np.ndarray) -> Detections:
    """What a detector would say: the bright pixels below."""
    rows, columns = np.nonzero(image[24:].mean(axis=2) > 120)
    box = [[columns.min(), rows.min() + 24, columns.max() + 1, rows.max() + 25]] if len(rows) else []
    return Detections(
        xyxy=np.array(box, np.float32).reshape(-1, 4),
        score=np.full(len(box), 0.9, np.float32),
        class_id=np.full(len(box), 2, np.int64),
    )


class Heard:
    """In the place of the writer."""

    def __init__(self, events: list[ObjectEvent]) -> None:
        self._events = events

    def tell(self, event: ObjectEvent, pictures: object = None) -> None:
        self._events.append(event)

    def touch(self, seen_utc: dict[str, float]) -> None: ...


class Objects(CameraObjects):
    """The real ones, with a detector that sees the rendered object."""

    def __init__(self, box: FollowingBox, entry: CameraEntry) -> None:
        ids = count(box.first_id)
        super().__init__(
            SceneTracker("gate", fps=FPS, lost_s=4.0, lines=LINES),
            ObjectBook("gate", new_id=lambda utc: f"{int(utc * 1000)}-{next(ids):08x}", rules=Rules(lost_s=4.0)),
            Heard(box.objects_told), clock=box.clock, lines=tuple(LINES),  # type: ignore[arg-type]
        )  # fmt: skip
        self._box = box

    def on_shown(self, shown: Shown) -> None:
        super().on_shown(replace(shown, detections=found(shown.frame.image)))

    def step(self, shown: Shown) -> None:
        super().step(shown)
        self._box.followed.append(number(shown.frame.image))
        self._box.shown.append(shown)


class Queries(CameraQueries):
    def on_shown(self, shown: Shown) -> None:
        super().on_shown(replace(shown, detections=found(shown.frame.image)))


class FollowingBox(MovingBox):
    """objects_told, followed: of the camera's objects here, and the numbers of the pictures that were followed."""

    def __init__(
        self, folder: Path, name: str, cameras: dict[str, str], authority: Authority, post: Post, first_id: int
    ) -> None:
        self.objects_told, self.followed, self.first_id = list[ObjectEvent](), list[int](), first_id
        self.shown = list[Shown]()
        super().__init__(folder, name, cameras, authority, post)

    def listened(self, watched: Watched, entry: CameraEntry) -> Watched:
        watched = super().listened(watched, entry)
        watched.objects = Objects(self, entry)
        watched.queries = Queries(specs(QUERY), Tools(camera_id=entry.id, fps=FPS), clock=self.clock)
        return watched

    @property
    def camera(self) -> Watched:
        return next(iter(self.runtime.watched.values()))

    def totals(self) -> tuple[int, int]:
        """Crossings both ways: of its objects, and as the query says."""
        assert self.camera.objects is not None
        assert self.camera.queries is not None
        (report,) = self.camera.queries.reports()
        asked = report.told["lines"]["lines"]["mid"]
        return sum(self.camera.objects.crossings()["mid"].values()), asked["in"] + asked["out"]

    def is_calm(self) -> bool:
        return bool(self.followed) and (self.followed[-1] + CALM) % (TURN // 2) <= 2 * CALM


@pytest.fixture
def server() -> Iterator[RtspServer]:
    made = RtspServer()
    made.add_frames("gate", FPS, *SIZE, picture)
    made.start()
    yield made
    made.stop()


def test_a_line_is_crossed_once_whichever_box_sees_it_and_an_object_keeps_its_id(
    tmp_path: Path, server: RtspServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_fakes_in_the_zoo(monkeypatch)
    authority = Authority(tmp_path / "ca")
    post = Post(authority)
    url = server.url("gate", user="watcher", password="s3cret")
    a = FollowingBox(tmp_path / "a", "a", {"gate": url}, authority, post, first_id=0)
    b = FollowingBox(tmp_path / "b", "b", {}, authority, post, first_id=1 << 16)
    controller = Controller({"a": a, "b": b}, post)
    with a, b:
        controller.until(lambda: len(a.followed) > 8 and a.is_calm(), "a follows the object, far from the line")
        first, (objects, asked) = a.followed[-1], a.totals()
        for box, near in (("b", 4), ("a", 9), ("b", 6)):
            here, there = (a, b) if box == "b" else (b, a)
            # It sets out so many pictures before the line, so that the object crosses it somewhere around the switch.
            controller.until(
                lambda here=here, near=near: (here.followed[-1] + near) % (TURN // 2) in COMES, "it comes to the line"
            )
            known = len(there.followed)
            controller.move(GATE, box)
            controller.until(lambda: controller.phase(GATE) == "done", f"the camera is on {box}")
            controller.until(lambda there=there, known=known: len(there.followed) > known + 4, f"box {box} follows it")
        controller.until(b.is_calm, "b follows the object, far from the line")
        last, (objects_now, asked_now) = b.followed[-1], b.totals()
    told = a.objects_told + b.objects_told
    both = sorted(a.followed + b.followed)
    assert len(both) == len(set(both)), "a picture was followed twice"
    alone = one_box(a.shown + b.shown)
    assert objects_now == alone[0], "one box that had followed the same pictures would have counted otherwise"
    assert len({event.id for event in told}) == alone[1], "an object has another name on another box"
    assert len([event for event in told if event.what == "new"]) == alone[1]
    assert {event.extra["goes_on"] for event in told if "goes_on" in event.extra} == {"a", "b"}
    assert any("go on where the box before has left them" in text for text in b.noted("camera"))
    if max(after - before for before, after in pairwise(both)) <= GAP:
        assert alone[1] == 1
        assert objects_now - objects == asked_now - asked == crossings(first, last) >= 3


def one_box(shown: list[Shown]) -> tuple[int, int]:
    """Crossings, and objects, as one box counts that follows all these pictures."""
    events: list[ObjectEvent] = []
    ids = count()
    tracker = SceneTracker("gate", fps=FPS, lost_s=4.0, lines=LINES)
    book = ObjectBook("gate", new_id=lambda utc: f"1-{next(ids):08x}", rules=Rules(lost_s=4.0))
    for one in sorted(shown, key=lambda s: s.frame.camera_s or 0.0):
        assert one.frame.camera_s is not None
        frame = replace(one.frame, captured_s=one.frame.camera_s)
        seen = tracker.seen(replace(one, frame=frame))
        events += book.see(seen, at_s=frame.captured_s, at_utc=frame.captured_utc).events
    return sum(sum(ways.values()) for ways in book.crossings.values()), len({event.id for event in events})
