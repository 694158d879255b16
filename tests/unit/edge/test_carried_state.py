"""A camera's state goes from box to box between two frames: nobody who looks at ids, counts and stays can say when it went."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.errors import UsageError
from edge.fleet.camera_state import MOST_BYTES, CameraState, packed_state, unpacked_state
from edge.inference import Shown
from edge.objects.book import ObjectBook, Rules
from edge.objects.live import CameraObjects
from edge.objects.tracking import SceneTracker
from edge.objects.types import ObjectEvent
from edge.queries.base import Tools, scene_of
from edge.queries.runner import QueryRunner
from edge.store.objects import ObjectStore
from edge.store.store import Store
from scheduler.fleet.types import CameraKey
from scheduler.types import Detections, Frame
from tests.support.query_scenes import free_meter, specs

KEY = CameraKey(home="a", camera="gate")
WIDTH, HEIGHT, FPS = 200, 100, 5.0
ZONES = {"left": ((0.0, 0.0), (0.5, 0.0), (0.5, 1.0), (0.0, 1.0))}
LINES = {"mid": ((0.5, 0.0), (0.5, 1.0)), "late": ((0.8, 0.0), (0.8, 1.0))}
#: (begins in frame, lasts frames, from x, px per frame, y, part of its frames in which it is seen)
Walker = tuple[int, int, float, float, float, float]
WALKERS = st.lists(
    st.tuples(
        st.integers(0, 20), st.integers(8, 40), st.floats(0, 180), st.floats(-6, 6), st.sampled_from((0, 32, 64)), st.floats(0.75, 1)
    ),
    min_size=1, max_size=4,
)  # fmt: skip
CROWD: list[Walker] = [(0, 50, 10, 4, 0, 0.9), (5, 50, 190, -4, 32, 0.9), (0, 30, 60, 0, 64, 0.9), (20, 50, 20, 4, 64, 1.0)]


def film(walkers: Sequence[Walker], frames: int, seed: int = 0) -> list[Shown]:
    """What a detector says of people who walk; the same for who watches from wherever."""
    chance = np.random.default_rng(seed)
    return [
        _shown(n, [_box(w, n) for w in walkers if w[0] <= n < w[0] + w[1] and chance.random() < w[5]]) for n in range(frames)
    ]


def _box(walker: Walker, n: int) -> tuple[float, float, float, float]:
    x = walker[2] + walker[3] * (n - walker[0])
    return (x, walker[4], x + 24, walker[4] + 30)


def _shown(n: int, boxes: list[tuple[float, float, float, float]]) -> Shown:
    boxes = [box for box in boxes if -20 < box[0] < WIDTH]
    found = Detections(
        xyxy=np.array(boxes, np.float32).reshape(-1, 4), score=np.full(len(boxes), 0.9, np.float32),
        class_id=np.zeros(len(boxes), np.int64),
    )  # fmt: skip
    image = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    frame = Frame(stream="gate", seq=n, captured_s=100 + n / FPS, captured_utc=1.79e9 + n / FPS, image=image)
    return Shown(frame=frame, detections=found, version="v", cost_s=0.0, lag_s=0.0)


def elsewhere(shown: Shown, by_s: float) -> Shown:
    """The same frame on a box whose clocks are other ones."""
    frame = shown.frame
    return replace(shown, frame=replace(frame, captured_s=frame.captured_s + by_s, captured_utc=frame.captured_utc + 7.0))


class Heard:
    def __init__(self) -> None:
        self.events: list[ObjectEvent] = []

    def tell(self, event: ObjectEvent, pictures: object = None) -> None:
        self.events.append(event)

    def touch(self, seen_utc: dict[str, float]) -> None: ...


class Clock:
    def monotonic_s(self) -> float:
        return 0.0


def objects(heard: Heard, first: int = 0, zones: Any = None) -> CameraObjects:
    """first: of the numbers in its ids."""
    numbers = count(first)
    tracker = SceneTracker("gate", fps=FPS, lost_s=2.0, zones=ZONES if zones is None else zones, lines=LINES)
    rules = Rules(lost_s=2.0, update_s=1000.0)
    book = ObjectBook("gate", new_id=lambda utc: f"{int(utc * 1000)}-{next(numbers):08x}", rules=rules)
    return CameraObjects(tracker, book, heard, clock=Clock(), zones=tuple(ZONES), lines=tuple(LINES))  # type: ignore[arg-type]


def handed(source: CameraObjects, to: str = "b") -> CameraState:
    """As it comes out of a parcel."""
    state = CameraState.of(KEY, 1.0, source.hand_over(to, 0.0), None)
    return unpacked_state(packed_state(state), KEY)


def moved(shown: Sequence[Shown], cuts: Sequence[int], apart_s: float = 5000.0) -> tuple[CameraObjects, list[ObjectEvent]]:
    """The frames, watched by another box from each cut on, whose clock is so far from the one before."""
    heard, off_s = Heard(), 0.0
    box = objects(heard)
    for n, one in enumerate(shown):
        if n in cuts and n > 0:
            state = handed(box)
            box.stop()
            off_s += apart_s
            box = objects(heard, first=n << 8)
            assert state.objects is not None
            assert box.take_on(state.objects, shown[n - 1].frame.captured_s + off_s) == ""
        box.step(elsewhere(one, off_s) if off_s else one)
    return box, heard.events


def lives(events: Sequence[ObjectEvent]) -> list[tuple[Any, ...]]:
    """What became of each object, whatever it is called: as it was told last, and how often it was new."""
    last = {event.id: event for event in events}
    news = {id: sum(e.what == "new" for e in events if e.id == id) for id in last}
    return sorted(
        (e.box, e.zones_been, sorted(e.lines.items()), [(z, round(s, 3)) for z, s in e.extra["dwell_s"].items()], news[e.id])
        for e in last.values()
    )


# --- once, whenever it goes -------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=15)
@given(walkers=WALKERS, cuts=st.sets(st.integers(1, 39), min_size=1, max_size=3), seed=st.integers(0, 99))
def test_what_is_counted_and_by_which_id_does_not_depend_on_when_the_camera_changes_boxes(
    walkers: list[Walker], cuts: set[int], seed: int
) -> None:
    shown = film(walkers, 40, seed)
    alone, told = moved(shown, ())
    box, told_by_all = moved(shown, tuple(cuts))
    assert box.crossings() == alone.crossings()
    assert box.present() == alone.present()
    assert box.in_zones() == alone.in_zones()
    told += alone._book.open()
    told_by_all += box._book.open()
    assert len({e.id for e in told_by_all}) == len({e.id for e in told})
    assert lives(told_by_all) == lives(told)
    ids = [e.id for e in told_by_all if e.what == "new"]
    assert len(ids) == len(set(ids)), "an object was new twice"


@settings(deadline=None, max_examples=10)
@given(
    walkers=WALKERS,
    cut=st.integers(1, 39),
    association=st.sampled_from(("bytetrack", "ocsort", "sort")),
    seed=st.integers(0, 99),
)
def test_answers_of_queries_do_not_depend_on_it_either(walkers: list[Walker], cut: int, association: str, seed: int) -> None:
    shown = film(walkers, 40, seed)
    assert answers(shown, {cut}, association) == answers(shown, set(), association)


def test_every_cut_around_a_crossing_counts_it_once() -> None:
    """The same with a figure that a human has counted: they cross the middle in frames 22 to 38."""
    shown = film(CROWD, 60)
    for cut in (1, *range(21, 29), 37, 38, 55):
        box, _ = moved(shown, (cut,))
        assert box.crossings() == {"mid": {"in": 2, "out": 1}, "late": {"in": 2, "out": 1}}, f"cut before frame {cut}"


QUERIES = (
    "{name: lines, template: lines, lines: {mid: [[0.5, 0], [0.5, 1]]}}",
    "{name: dwell, template: dwell, zones: {left: [[0, 0], [0.5, 0], [0.5, 1], [0, 1]]}}",
)


asked = functools.cache(specs)


def runner(association: str = "bytetrack") -> QueryRunner:
    made = QueryRunner(asked(*QUERIES), Tools(camera_id="gate", fps=FPS), meter=free_meter, clock_s=lambda: 0.0)
    for name, state in made.queries.items():
        values = next(knob.values for path, knob in state.spec.knobs.items() if path.endswith(".association"))
        if association in values:
            made.set_knobs(name, {next(p for p in state.spec.knobs if p.endswith(".association")): association})
    return made


def answers(shown: Sequence[Shown], cuts: set[int], association: str) -> list[Any]:
    box, off_s, found = runner(association), 0.0, []
    for n, one in enumerate(shown):
        if n in cuts:
            data = packed_state(CameraState.of(KEY, 1.0, None, box.carried()))
            box, off_s = runner(association), off_s + 1024.0  # a power of two: no rounding of times
            state = unpacked_state(data, KEY).queries
            assert state is not None
            assert box.take_on(state, shown[n - 1].frame.captured_s + off_s) == []
        here = elsewhere(one, off_s)
        found.append([(o.query, o.told) for o in box.step(scene_of(here.frame, shown=here.detections))])
    return found


def test_with_other_knobs_tracks_are_found_again_by_where_they_are() -> None:
    """What is planned for a camera may differ from box to box: the tracker's inside is another one then, totals and numbers go on."""
    shown = film(CROWD[:1], 60)
    source, target = runner("bytetrack"), runner("sort")
    for one in shown[:20]:
        before = source.step(scene_of(one.frame, shown=one.detections))
    state = source.carried()
    assert state is not None
    assert target.take_on(state, shown[19].frame.captured_s) == []
    for one in shown[20:]:
        after = target.step(scene_of(one.frame, shown=one.detections))
    assert before[0].told["lines"]["lines"]["mid"]["in"] == 0
    assert after[0].told["lines"]["lines"]["mid"]["in"] == 1


def test_a_query_that_is_asked_otherwise_begins_anew_and_that_is_said() -> None:
    source = runner()
    for one in film(CROWD, 30):
        source.step(scene_of(one.frame, shown=one.detections))
    state = source.carried()
    assert state is not None
    other = QueryRunner(
        specs(QUERIES[0].replace("0.5, 0]", "0.6, 0]"), QUERIES[1]), Tools(camera_id="gate", fps=FPS), meter=free_meter,
        clock_s=lambda: 0.0,
    )  # fmt: skip
    assert other.take_on(state, 100.0) == ["lines.lines: it was asked otherwise"]


# --- what is told -----------------------------------------------------------------------------------------------------


def test_an_object_in_view_keeps_its_id_its_beginning_and_its_row(tmp_path: Path) -> None:
    """On the box that it leaves it ends, and goes on; on the next one it is told without being new; and back home its row goes on."""
    store = ObjectStore(Store(tmp_path / "box.db"))
    shown = film([(0, 60, 60, 0.5, 0, 1.0)], 60)
    at_home, away, back = Heard(), Heard(), Heard()
    home = objects(at_home)
    for one in shown[:20]:
        home.step(one)
    first = handed(home, "b")
    home.thread.start()
    home.stop()
    assert [(e.what, e.extra.get("goes_on")) for e in at_home.events][-1] == ("end", "b")
    store.put(at_home.events)
    other = objects(away, first=1000)
    assert first.objects is not None
    assert other.take_on(first.objects, shown[19].frame.captured_s) == ""
    for one in shown[20:40]:
        other.step(one)
    second = handed(other, "a")
    again = objects(back, first=2000)
    assert second.objects is not None
    assert again.take_on(second.objects, shown[39].frame.captured_s) == ""
    for one in shown[40:]:
        again.step(one)
    told = at_home.events + away.events + back.events
    assert len({(e.id, e.started_utc) for e in told}) == 1
    assert [e.what for e in told].count("new") == 1
    assert {e.what for e in away.events} == {"update"}, "told at once: its best picture is made here"
    store.put(back.events[:1])
    assert store.get(told[0].id).event.ended_utc is None, "it is there again"
    again.thread.start()
    again.stop()
    store.put(back.events)
    ended = store.get(told[0].id).event
    assert ended.ended_utc is not None
    assert ended.ended_utc - ended.started_utc == pytest.approx(58 / FPS, abs=1e-3)


def test_a_box_that_goes_on_telling_after_all_ends_its_objects_itself() -> None:
    """The target was lost: the camera stays, nothing goes on elsewhere."""
    heard = Heard()
    box = objects(heard)
    shown = film([(0, 60, 60, 0, 0, 1.0)], 30)
    for n, one in enumerate(shown):
        if n == 15:
            handed(box)
        box.step(one)
    box.thread.start()
    box.stop()
    assert (heard.events[-1].what, heard.events[-1].extra.get("goes_on")) == ("end", None)


# --- hostile ----------------------------------------------------------------------------------------------------------


@functools.cache
def document() -> bytes:
    box = objects(Heard())
    queries = runner()
    for one in film(CROWD, 25):
        box.step(one)
        queries.step(scene_of(one.frame, shown=one.detections))
    state = CameraState.of(KEY, 1.0, box.hand_over("b", 0.0), queries.carried())
    return packed_state(state)


def changed(path: str, value: Any) -> bytes:
    """path: of keys and indices, with dots."""
    whole: Any = json.loads(document())
    at = whole
    *before, last = path.split(".")
    for part in before:
        at = at[int(part) if isinstance(at, list) else part]
    at[int(last) if isinstance(at, list) else last] = value
    return json.dumps(whole).encode()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("release", 2), ("release", None), ("camera", "a/yard"), ("camera", "../../x"), ("after_s", math.nan), ("after_s", "1"),
        ("objects.book.objects.0.score", math.nan), ("objects.book.objects.0.score", 1e9), ("objects.book.objects.0.id", "'; DROP"),
        ("objects.book.objects.0.box", [0, 0, math.inf, 1]), ("objects.book.objects.0.began_utc", -1.0),
        ("objects.book.crossings", {"mid": {"in": -1}}), ("objects.book.crossings", {"mid": {"sideways": 1}}),
        ("objects.book.crossings", {"mid": {"in": 2**60}}), ("objects.book.crossings", {"mid": {"in": 1.5}}),
        ("objects.size_px", [0, 100]), ("objects.tracks.tracker.tracks.0.filter.state.0", 1e300),
        ("objects.book.objects", [{}] * 201), ("objects.tracks.seen", [{"number": 1, "box": [0, 0, 1, 1], "ago_s": 0}] * 1001),
        ("surprise", 1), ("queries.nodes", {"lines": [{"id": "track", "shape": "x", "state": {"code": "os.system"}}]}),
    ],
)  # fmt: skip
def test_what_is_no_state_of_this_camera_is_refused(path: str, value: Any) -> None:
    with pytest.raises(UsageError, match="the state of camera a/gate cannot be used"):
        unpacked_state(changed(path, value), KEY)


@pytest.mark.parametrize("data", [b"", b"\x80\x04K\x01.", b"[" * 100_000, b"null", b"{", b" " * (MOST_BYTES + 1)])
def test_what_is_no_json_or_too_large_is_refused(data: bytes) -> None:
    with pytest.raises(UsageError, match="cannot be used"):
        unpacked_state(data, KEY)


def test_a_state_that_nobody_would_take_is_not_sent() -> None:
    state = CameraState.model_construct(camera="a/gate", after_s=1.0, objects=None, queries=None, release="x" * MOST_BYTES)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="at most"):
        packed_state(state)


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        ("objects.book.objects.0.zones", {"bedroom": 0.0}, "zones"), ("objects.book.crossings", {"fence": {"in": 9}}, "lines"),
        ("objects.book.objects.0.class_name", "dragon", "classes"), ("objects.book.objects.0.track", 7777, ""),
        ("objects.places", "other", "other ones here"), ("objects.tracks.next", 1, "number"),
        ("objects.tracks.tracker.tracks.0.filter.covariance", [0.0] * 64, "covariance"),
        ("objects.tracks.tracker.tracks.0.filter.state", [0.0] * 3, "filter"),
        ("objects.tracks.tracker.tracks.0.updates", 3, "another association"),
        ("objects.lines.lines.0.name", "fence", "lines"),
    ],
)  # fmt: skip
def test_what_is_well_formed_and_wrong_begins_anew_and_the_camera_is_followed(path: str, value: Any, why: str) -> None:
    state = unpacked_state(changed(path, value), KEY).objects
    assert state is not None
    heard = Heard()
    box = objects(heard)
    said = box.take_on(state, 100.0)
    assert why in said
    assert bool(said) == bool(why), "a number of a track that nobody sees harms nobody"
    for one in film(CROWD, 60):
        box.step(one)
    assert box.errors == 0
    if why:
        assert box.crossings()["mid"] == {"in": 2, "out": 1}
        assert all(int(e.id.partition("-")[2], 16) < 256 for e in heard.events), "only its own objects"


def test_objects_of_other_cameras_are_known_by_their_ids(tmp_path: Path) -> None:
    store, heard = ObjectStore(Store(tmp_path / "box.db")), Heard()
    box = objects(heard)
    for one in film(CROWD, 25):
        box.step(one)
    store.put([replace(event, camera="yard") for event in heard.events])
    ids = sorted({event.id for event in heard.events})
    assert sorted(store.of_others([*ids, "1-00000000"], "gate")) == ids
    assert store.of_others(ids, "yard") == ()
