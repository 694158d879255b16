"""The built-in transforms, one by one: what they give, what they tell, what they do with little or odd input."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.errors import EnvironmentLacking, UsageError
from configs.units import NOTHING
from edge.queries.base import KnobValue, NodeSpec, Scene, Tools, Transform, scene_of
from edge.queries.registry import build_node
from edge.queries.text import Text, usual_reader
from scheduler.types import Detections
from tests.support.moving import COLOURS, ColourClassifier, moving_image
from tests.support.query_scenes import HEIGHT, WIDTH, at_centre, boxes, frame_at, moving_scene, tools_of

SQUARE = {"door": ((0.0, 0.0), (0.5, 0.0), (0.5, 1.0), (0.0, 1.0))}


def made(name: str, params: Mapping[str, Any] | None = None, *, tools: Tools | None = None, **values: KnobValue) -> Transform:
    spec = NodeSpec(id=name, transform=name, params=params or {})
    return build_node(spec, tools or tools_of()[0], values)


def given_of(transform: Transform, scenes: Sequence[Scene]) -> list[Scene]:
    found = [transform.process(scene, []) for scene in scenes]
    return [scene for scene in found if scene is not None]


def seen_at(index: int, *xyxy: Sequence[float], class_id: int = 2, score: float = 0.9) -> Scene:
    """Frame `index` of ten a second with these detections."""
    return moving_scene(index).with_(detections=boxes(*xyxy, class_id=class_id, score=score))


def tracked_at(index: int, *objects: tuple[int, float, float], class_id: int = 2) -> Scene:
    """objects: (track, x, y of the centre)."""
    scene = seen_at(index, *(at_centre(x, y, 20) for _, x, y in objects), class_id=class_id)
    return scene.with_(track_ids=np.array([track for track, _, _ in objects], np.int64))


# --- decode -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fps", "taken"), [(0, 100), (5, 50), (2, 20), (1, 10)])
def test_decode_takes_frames_at_its_rate(fps: int, taken: int) -> None:
    assert len(given_of(made("decode", fps=fps), [moving_scene(i) for i in range(100)])) == taken


@settings(deadline=None, max_examples=40)
@given(st.lists(st.floats(0.001, 0.5), min_size=2, max_size=40))
def test_decode_keeps_its_rate_however_frames_tremble(gaps: list[float]) -> None:
    times = np.cumsum(gaps)
    scenes = [scene_of(frame_at(float(t), size=(4, 4))) for t in times]
    taken = [scene.at_s for scene in given_of(made("decode", fps=2), scenes)]
    assert len(taken) <= 2 + 2 * (times[-1] - times[0])
    assert np.diff([*taken, times[-1]]).max() <= 0.5 + 0.5 + 1e-9  # an interval, and the longest wait for a frame


def test_decode_goes_on_when_time_runs_backwards() -> None:
    decode = made("decode", fps=1)
    later, earlier = moving_scene(1000), moving_scene(3)
    assert decode.process(later, []) is not None
    assert decode.process(earlier, []) is not None
    assert decode.process(moving_scene(4), []) is None


def test_decode_reduces_the_picture_and_leaves_coordinates_alone() -> None:
    [scene] = given_of(made("decode", height_px=100), [moving_scene(0)])
    assert scene.image.shape == (100, 160, 3)
    assert scene.size_px == (WIDTH, HEIGHT)
    assert scene.scale == (0.5, 0.5)
    [whole] = given_of(made("decode", height_px=480), [moving_scene(0)])
    assert whole.image is whole.frame.image  # never enlarged


def test_a_rate_that_changes_takes_effect_at_once() -> None:
    decode = made("decode", fps=1)
    assert len(given_of(decode, [moving_scene(i) for i in range(3)])) == 1
    decode.update("fps", 0)
    assert len(given_of(decode, [moving_scene(i) for i in range(3, 6)])) == 3


# --- motion -----------------------------------------------------------------------------------------------------------


def moving_frames(count: int) -> list[Scene]:
    scenes = [moving_scene(i) for i in range(count)]
    return [Scene(frame=s.frame, size_px=(320, 160), image=moving_image(i)) for i, s in enumerate(scenes)]


def test_motion_finds_what_moves_in_the_cameras_pixels() -> None:
    found = given_of(made("motion", work_px=160), moving_frames(30))
    last = found[-1].regions
    assert last is not None
    assert 3 <= len(last) <= 6  # three squares and a striped patch; some may touch
    small = Scene(frame=found[-1].frame, size_px=(640, 320), image=moving_image(30))
    again = made("motion")
    for scene in moving_frames(30):
        again.process(Scene(frame=scene.frame, size_px=(640, 320), image=scene.image), [])
    larger = again.process(small, [])
    assert larger is not None
    assert larger.regions is not None
    assert larger.regions[:, 2].max() > 320  # in px of the camera, not of the picture that was looked at


def test_regions_of_the_camera_are_taken_as_they_are() -> None:
    scene = moving_scene(0).with_(regions=np.array([[1, 2, 30, 40]], np.float32))
    [found] = given_of(made("motion"), [scene])
    assert found.regions is scene.regions


def regions_of(transform: Transform, scene: Scene) -> np.ndarray:
    [found] = given_of(transform, [scene])
    assert found.regions is not None
    return found.regions


def test_motion_keeps_its_background_when_its_knob_changes_and_in_a_fork() -> None:
    motion, always = made("motion"), made("motion")
    frames = moving_frames(30)
    given_of(motion, frames[:20])
    given_of(always, frames[:20])
    for at, work_px in ((20, 320), (21, 160), (22, 320)):
        motion.update("work_px", work_px)
        wanted = regions_of(always, frames[at])
        found = regions_of(motion, frames[at])
        assert abs(len(found) - len(wanted)) <= 1, f"at {work_px} px what moves is seen at once, and no more than that"
        assert found[:, 2:].max() > 160, "in px of the picture"
    motion.update("work_px", 160)
    twin = motion.fork()
    assert abs(len(regions_of(twin, frames[23])) - len(regions_of(always, frames[23]))) <= 1
    twin.reset()
    assert not len(regions_of(twin, frames[24]))
    assert len(regions_of(motion, frames[24])), "the other one has not forgotten"


# --- detect -----------------------------------------------------------------------------------------------------------


def test_detect_answers_in_the_cameras_pixels_at_any_resolution() -> None:
    tools, detector = tools_of(lambda image: boxes((image.shape[1] * 0.25, 0, image.shape[1] * 0.5, image.shape[0])))
    for height_px, asked in ((0, (320, 200)), (100, (160, 100)), (50, (80, 50))):
        [scene] = given_of(made("detect", tools=tools, height_px=height_px), [moving_scene(0)])
        assert detector.asked[-1] == asked
        assert scene.detections is not None
        assert scene.detections.xyxy.tolist() == [[80, 0, 160, 200]]


def test_detect_keeps_the_wanted_classes_and_scores() -> None:
    found = Detections(
        xyxy=np.array([at_centre(50, 50)] * 3, np.float32), score=np.array([0.9, 0.5, 0.3], np.float32),
        class_id=np.array([0, 2, 0]),
    )  # fmt: skip
    tools, _ = tools_of(lambda image: found)
    [scene] = given_of(made("detect", {"classes": ["person"], "score_min": 0.4}, tools=tools), [moving_scene(0)])
    assert scene.detections is not None
    assert scene.detections.class_id.tolist() == [0]


def test_what_the_camera_has_answered_is_not_asked_again() -> None:
    tools, detector = tools_of(lambda image: boxes(at_centre(10, 10)))
    scene = moving_scene(0, shown=boxes(at_centre(100, 100), at_centre(200, 100)))
    [found] = given_of(made("detect", tools=tools), [scene])
    assert found.detections is not None
    assert len(found.detections) == 2
    assert detector.asked == []
    spec = NodeSpec(id="d", transform="detect")
    [other] = given_of(build_node(spec, tools, {"model": "yolov8s"}), [scene])
    assert other.detections is not None
    assert len(other.detections) == 1
    assert detector.asked != []


def test_without_models_a_query_says_so() -> None:
    bare = Tools(camera_id="gate")
    with pytest.raises(EnvironmentLacking, match="no detector"):
        made("detect", tools=bare).process(moving_scene(0), [])
    with pytest.raises(EnvironmentLacking, match="no classifier"):
        made("classify", tools=bare).process(seen_at(0, at_centre(50, 50)), [])


# --- classify ---------------------------------------------------------------------------------------------------------


def classified(scene: Scene, **values: KnobValue) -> Scene:
    tools = Tools(camera_id="gate", classifier=lambda name: ColourClassifier(skill=1.0))
    found = made("classify", tools=tools, **values).process(scene, [])
    assert found is not None
    return found


def coloured(*spots: tuple[int, int, int]) -> Scene:
    """(class, x, y): squares of their class's colour on grey, 20 px wide."""
    frame = frame_at(0.0, grey=120)
    for class_id, x, y in spots:
        frame.image[y - 10 : y + 10, x - 10 : x + 10] = COLOURS[class_id]
    return Scene(frame=frame, size_px=(WIDTH, HEIGHT), image=frame.image)


def test_classify_says_what_moving_regions_show_and_drops_what_is_nothing() -> None:
    scene = coloured((0, 50, 50), (4, 150, 50))
    regions = np.array([at_centre(50, 50, 20), at_centre(150, 50, 20), at_centre(250, 150, 20)], np.float32)
    found = classified(scene.with_(regions=regions))
    assert found.detections is not None
    assert sorted(found.detections.class_id.tolist()) == [0, 4]
    assert found.told == {"crops": 3, "left_out": 0}


def test_the_largest_crops_are_looked_at_first() -> None:
    scene = coloured((0, 50, 50), (2, 150, 50))
    regions = np.array([at_centre(50, 50, 12), at_centre(150, 50, 20)], np.float32)
    found = classified(scene.with_(regions=regions), crop_limit=1)
    assert found.detections is not None
    assert found.detections.class_id.tolist() == [2]
    assert found.told == {"crops": 1, "left_out": 1}


def test_crops_without_size_are_left_out() -> None:
    regions = np.array([[50, 50, 50, 50], [60, 60, 60.5, 61], [90, 90, 80, 80]], np.float32)
    found = classified(coloured().with_(regions=regions))
    assert found.detections is not None
    assert len(found.detections) == 0
    assert found.told == {"crops": 0, "left_out": 3}


def test_detections_keep_their_place_when_they_are_classified() -> None:
    """So that tracks still fit: what the classifier is not sure of, or what is beyond the limit, keeps its class."""
    scene = coloured((4, 150, 50))
    known = boxes(at_centre(50, 50, 20), at_centre(150, 50, 21), at_centre(250, 50, 20), class_id=2)
    found = classified(scene.with_(detections=known, track_ids=np.array([7, 8, 9])), crop_limit=2)
    assert found.detections is not None
    assert found.detections.class_id.tolist() == [2, 4, 2]
    assert found.detections.xyxy.tolist() == known.xyxy.tolist()
    assert found.track_ids is not None
    assert found.track_ids.tolist() == [7, 8, 9]
    assert NOTHING not in found.detections.class_id


# --- track ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("association", ["bytetrack", "ocsort", "sort"])
def test_things_that_move_keep_their_numbers(association: str) -> None:
    track = made("track", association=association)
    found = given_of(track, [seen_at(i, at_centre(40 + 6 * i, 60), at_centre(280 - 6 * i, 140)) for i in range(30)])
    ids = [scene.track_ids.tolist() for scene in found if scene.track_ids is not None]
    assert len({tuple(row) for row in ids[5:]}) == 1
    assert len(set(ids[-1])) == 2
    assert min(ids[-1]) >= 1
    assert found[-1].told == {"tracks": 2}


def test_tracks_go_on_when_the_association_changes() -> None:
    track = made("track")
    before = given_of(track, [seen_at(i, at_centre(40 + 5 * i, 60), at_centre(280 - 5 * i, 140)) for i in range(10)])
    for association in ("ocsort", "sort", "bytetrack"):
        track.update("association", association)
        first = 10 if association == "ocsort" else 20 if association == "sort" else 30
        after = given_of(
            track, [seen_at(i, at_centre(40 + 5 * i, 60), at_centre(280 - 5 * i, 140)) for i in range(first, first + 10)]
        )
        assert after[-1].track_ids is not None
        assert before[-1].track_ids is not None
        assert after[-1].track_ids.tolist() == before[-1].track_ids.tolist()


def test_an_association_that_there_is_not_is_refused_and_no_other_takes_its_place() -> None:
    track = made("track", association="bytetack")
    with pytest.raises(UsageError, match="no association 'bytetack'") as caught:
        track.process(seen_at(0, at_centre(60, 60)), [])
    assert caught.value.remedy == "known: bytetrack, ocsort, sort"


def test_a_number_is_never_used_again() -> None:
    track = made("track")
    first = given_of(track, [seen_at(i, at_centre(60, 60)) for i in range(5)])
    track.interrupt()
    second = given_of(track, [seen_at(i, at_centre(60, 60)) for i in range(50, 55)])
    ids = [scene.track_ids for scene in (first[-1], second[-1])]
    assert ids[0] is not None
    assert ids[1] is not None
    assert ids[1][0] > ids[0][0] >= 1


@pytest.mark.parametrize("association", ["bytetrack", "ocsort", "sort"])
def test_numbers_of_tracks_that_ended_are_forgotten(association: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who stays keeps its number, however many pass by."""
    monkeypatch.setattr("edge.queries.places.MOST_NUMBERS", 8)
    track = made("track", {"lost_s": 0.5}, association=association)
    known, stays = [], []
    for i in range(400):
        passing = at_centre(20 + 50 * (i // 8 % 6), 160)
        [scene] = given_of(track, [seen_at(i, at_centre(150, 40), passing)])
        assert scene.track_ids is not None
        stays.append(int(scene.track_ids[0]))
        known.append(len(track._numbers))
    assert set(stays[5:]) == {stays[-1]} != {-1}
    assert track._next > 30
    assert max(known) <= 8


def test_a_track_waits_for_an_object_that_is_hidden_for_a_while() -> None:
    track = made("track", {"lost_s": 3.0})
    path = [seen_at(i, *([at_centre(40 + 4 * i, 60)] if not 12 <= i < 20 else [])) for i in range(40)]
    found = given_of(track, path)
    numbers = {int(n) for scene in found if scene.track_ids is not None for n in scene.track_ids if n >= 0}
    assert len(numbers) == 1


def test_a_clock_that_steps_back_begins_new_tracks() -> None:
    track = made("track")
    given_of(track, [seen_at(i, at_centre(60, 60)) for i in range(100, 105)])
    found = given_of(track, [seen_at(i, at_centre(60, 60)) for i in range(5)])
    assert found[-1].track_ids is not None
    assert found[-1].track_ids.tolist() == [2]


def test_a_fork_of_a_tracker_goes_its_own_way() -> None:
    track = made("track")
    given_of(track, [seen_at(i, at_centre(40 + 5 * i, 60)) for i in range(5)])
    twin = track.fork()
    [one] = given_of(track, [seen_at(5, at_centre(65, 60))])
    [two] = given_of(twin, [seen_at(5, at_centre(65, 60), at_centre(200, 60))])
    assert one.track_ids is not None
    assert two.track_ids is not None
    assert one.track_ids[0] == two.track_ids[0] == 1
    [one] = given_of(track, [seen_at(6, at_centre(70, 60))])
    assert one.track_ids is not None
    assert len(one.track_ids) == 1


def test_many_objects_at_once() -> None:
    grid = [at_centre(20 + 30 * x, 20 + 30 * y, 24) for x in range(10) for y in range(6)]
    found = given_of(made("track"), [seen_at(i, *grid) for i in range(4)])
    assert found[-1].track_ids is not None
    assert sorted(found[-1].track_ids.tolist()) == list(range(1, 61))


# --- count ------------------------------------------------------------------------------------------------------------


def test_objects_are_counted_in_the_picture_and_in_zones() -> None:
    scene = seen_at(0, at_centre(50, 60), at_centre(250, 60), at_centre(60, 100))
    [found] = given_of(made("count", {"zones": SQUARE}), [scene])
    assert found.told == {
        "total": 3, "classes": {"car": 3}, "zones": {"door": {"total": 2, "classes": {"car": 2}}},
    }  # fmt: skip
    [people] = given_of(made("count", {"zones": SQUARE, "classes": ["person"]}), [scene])
    assert people.told["total"] == 0
    assert json.dumps(found.told)


def test_where_an_object_stands_is_what_the_anchor_says() -> None:
    zone = {"low": ((0.0, 0.5), (1.0, 0.5), (1.0, 1.0), (0.0, 1.0))}
    scene = seen_at(0, at_centre(100, 90, 40))  # its centre above the zone, its feet in it

    def counted(anchor: str) -> int:
        [found] = given_of(made("count", {"zones": zone, "anchor": anchor}), [scene])
        return int(found.told["zones"]["low"]["total"])

    assert (counted("bottom_center"), counted("center"), counted("corners")) == (1, 0, 0)


def test_zones_reach_to_the_very_edge_of_the_picture() -> None:
    whole = {"all": ((0.0, 0.0), (1.0, 0.0), (1.0, 1.0), (0.0, 1.0))}
    scene = seen_at(0, (0, 0, 20, 20), (300, 180, 320, 200), (300, 0, 320, 200))
    [found] = given_of(made("count", {"zones": whole}), [scene])
    assert found.told["zones"]["all"]["total"] == 3


# --- lines ------------------------------------------------------------------------------------------------------------


LEVEL = {"mid": ((0.0, 0.5), (1.0, 0.5))}


def crossed(transform: Transform, scenes: Sequence[Scene]) -> tuple[int, int]:
    found = given_of(transform, scenes)[-1].told["lines"]["mid"]
    return int(found["in"]), int(found["out"])


def test_up_is_in_and_down_is_out_for_a_line_from_left_to_right() -> None:
    """As the documentation says: from right to left of it is in."""
    up = [tracked_at(i, (1, 100, 150 - 10 * i)) for i in range(10)]
    down = [tracked_at(20 + i, (2, 200, 50 + 10 * i)) for i in range(10)]
    assert crossed(made("lines", {"lines": LEVEL}), [*up, *down]) == (1, 1)
    reverse = {"mid": ((1.0, 0.5), (0.0, 0.5))}
    assert crossed(made("lines", {"lines": reverse}), up) == (0, 1)


def test_crossings_are_told_per_class() -> None:
    lines = made("lines", {"lines": LEVEL})
    people = [tracked_at(i, (1, 100, 150 - 10 * i), class_id=0) for i in range(10)]
    cars = [tracked_at(20 + i, (2, 100, 150 - 10 * i), class_id=2) for i in range(10)]
    found = given_of(lines, [*people, *cars])[-1].told["lines"]["mid"]
    assert found["classes"] == {"in": {"car": 1, "person": 1}, "out": {}}


def test_an_object_that_is_lost_for_a_while_on_the_line_is_counted_once() -> None:
    lines = made("lines", {"lines": LEVEL})
    path = [tracked_at(i, *([(1, 100, 150 - 5 * i)] if not 6 <= i <= 16 else [])) for i in range(25)]
    assert crossed(lines, path) == (1, 0)


def test_one_who_walks_to_and_fro_is_counted_every_time() -> None:
    lines = made("lines", {"lines": LEVEL})
    path = [tracked_at(i, (1, 100, 100 + 40 * np.cos(np.pi * i / 10))) for i in range(41)]  # two and a half turns
    assert crossed(lines, path) == (2, 2)


def test_a_box_that_trembles_on_the_line_does_not_cross_it() -> None:
    trembling = [tracked_at(i, (1, 100, 88 + 4 * (i % 2))) for i in range(20)]  # its feet 2 px above and below
    assert crossed(made("lines", {"lines": LEVEL}), trembling) == (0, 0)
    assert sum(crossed(made("lines", {"lines": LEVEL, "min_frames": 1}), trembling)) == 19


def test_objects_that_pass_beside_the_line_or_have_no_track_do_not_count() -> None:
    short = {"mid": ((0.0, 0.5), (0.3, 0.5))}
    beside = [tracked_at(i, (1, 250, 150 - 10 * i)) for i in range(10)]
    assert crossed(made("lines", {"lines": short}), beside) == (0, 0)
    unknown = [tracked_at(i, (-1, 100, 150 - 10 * i)) for i in range(10)]
    assert crossed(made("lines", {"lines": LEVEL}), unknown) == (0, 0)


def test_crossings_stay_counted_over_an_interruption() -> None:
    lines = made("lines", {"lines": LEVEL})
    up = [tracked_at(i, (1, 100, 150 - 10 * i)) for i in range(10)]
    given_of(lines, up)
    lines.interrupt()
    assert crossed(lines, [tracked_at(20, (1, 100, 150))]) == (1, 0)  # who is where is forgotten: no second crossing
    lines.reset()
    assert crossed(lines, [tracked_at(21, (1, 100, 150))]) == (0, 0)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 1), min_size=1, max_size=30))
def test_in_and_out_add_up(sides: list[int]) -> None:
    """Whoever ends on the side where it began has crossed as often in as out."""
    lines = made("lines", {"lines": LEVEL, "min_frames": 1})
    path = [tracked_at(i, (1, 100, 40 if above else 160)) for i, above in enumerate(sides)]
    into, out = crossed(lines, path)
    assert into - out == sides[-1] - sides[0]
    assert into + out == sum(a != b for a, b in zip(sides, sides[1:], strict=False))


# --- dwell ------------------------------------------------------------------------------------------------------------


def stayed(transform: Transform, scenes: Sequence[Scene]) -> Mapping[str, Any]:
    return given_of(transform, scenes)[-1].told["zones"]["door"]


def test_time_in_a_zone_is_measured_per_track() -> None:
    dwell = made("dwell", {"zones": SQUARE})
    inside = [tracked_at(i, (1, 50, 100), (2, 60 if i > 10 else 300, 100)) for i in range(21)]
    assert stayed(dwell, inside) == {"inside": 2, "longest_now_s": 2.0, "visits": 0, "mean_s": 0.0, "longest_s": 0.0}
    gone = [tracked_at(i, (1, 300, 100)) for i in range(21, 60)]
    assert stayed(dwell, gone) == {"inside": 0, "longest_now_s": 0.0, "visits": 2, "mean_s": 1.45, "longest_s": 2.0}


def test_passing_by_is_no_visit_and_a_short_absence_no_leaving() -> None:
    dwell = made("dwell", {"zones": SQUARE, "least_s": 1.0, "gap_s": 1.0})
    passing = [tracked_at(i, (1, 40 * i, 100)) for i in range(8)]
    assert stayed(dwell, [*passing, *(tracked_at(i, (9, 300, 100)) for i in range(8, 40))])["visits"] == 0
    hidden = [tracked_at(50 + i, *([(2, 50, 100)] if not 10 <= i < 18 else [])) for i in range(30)]
    assert stayed(dwell, hidden)["longest_now_s"] == 2.9


def test_visits_stay_counted_over_an_interruption() -> None:
    dwell = made("dwell", {"zones": SQUARE})
    given_of(dwell, [tracked_at(i, (1, 50, 100)) for i in range(21)])
    dwell.interrupt()
    after = stayed(dwell, [tracked_at(100, (2, 50, 100))])
    assert (after["visits"], after["longest_s"], after["inside"]) == (1, 2.0, 1)


# --- read -------------------------------------------------------------------------------------------------------------


class TellingReader:
    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def read(self, image: np.ndarray) -> list[Text]:
        self.asked.append((image.shape[1], image.shape[0]))
        return [Text(text="AB 123", score=0.95, xyxy=(1, 2, 11, 12)), Text(text="??", score=0.2, xyxy=(0, 0, 5, 5))]


def test_text_is_read_in_its_zone_every_so_often() -> None:
    reader = TellingReader()
    tools, _ = tools_of(read_text=reader.read)
    read = made("read", {"zones": SQUARE}, tools=tools, every=5)
    found = given_of(read, [moving_scene(i) for i in range(11)])
    assert reader.asked == [(160, 200)] * 3
    assert found[7].told == {
        "texts": {"door": [{"text": "AB 123", "score": 0.95, "xyxy": [1, 2, 11, 12]}]}, "read_utc": 1.7e9 + 0.5,
    }  # fmt: skip


def test_where_text_stands_is_told_in_the_cameras_pixels() -> None:
    tools, _ = tools_of(read_text=TellingReader().read)
    half = {"right": ((0.5, 0.5), (1.0, 0.5), (1.0, 1.0), (0.5, 1.0))}
    [small] = given_of(made("decode", height_px=100), [moving_scene(0)])
    [found] = given_of(made("read", {"zones": half}, tools=tools), [small])
    assert found.told["texts"]["right"][0]["xyxy"] == [162, 104, 182, 124]


def test_a_zone_too_small_for_letters_is_not_read() -> None:
    reader = TellingReader()
    tools, _ = tools_of(read_text=reader.read)
    tiny = {"dot": ((0.5, 0.5), (0.51, 0.5), (0.51, 0.51))}
    [found] = given_of(made("read", {"zones": tiny}, tools=tools), [moving_scene(0)])
    assert found.told["texts"] == {"dot": []}
    assert reader.asked == []


@pytest.mark.slow
def test_a_real_sign_is_read() -> None:
    import cv2

    frame = frame_at(0.0, grey=235)
    cv2.putText(frame.image, "DEPOT 17", (40, 120), cv2.FONT_HERSHEY_SIMPLEX, 1.5, (20, 20, 20), 3, cv2.LINE_AA)
    scene = Scene(frame=frame, size_px=(WIDTH, HEIGHT), image=frame.image)
    [found] = given_of(made("read"), [scene])
    assert "".join(text["text"] for text in found.told["texts"]["picture"]).replace(" ", "") == "DEPOT17"
    blank = Scene(frame=frame_at(1.0), size_px=(WIDTH, HEIGHT), image=frame_at(1.0).image)
    [nothing] = given_of(made("read"), [blank])
    assert nothing.told["texts"]["picture"] == []
    assert usual_reader() is usual_reader()
