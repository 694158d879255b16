"""The queries of one camera together: equal prefixes run once, knobs keep state, and whatever a transform does costs its query only."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.errors import UsageError
from configs.queries import TRANSFORMS
from edge.pool.turn import TooLate
from edge.queries.base import Cost, NodeSpec, QuerySpec, Scene, Tools, scene_of
from edge.queries.checks import TOLD_BYTES_MAX, Nonsense, checked
from edge.queries.facts import knob_of
from edge.queries.registry import BUILT_IN, query_spec
from edge.queries.runner import FaultRules, Outcome, QueryRunner
from tests.support.query_scenes import (
    COUNT,
    DWELL,
    LINES,
    Scripted,
    at_centre,
    boxes,
    entries_of,
    frame_at,
    free_meter,
    moving_scene,
    scripted_spec,
    specs,
    tools_of,
)

Does = Callable[[Any, Scene], Any]


class Now:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.s = 0.0

    def __call__(self) -> float:
        return self.s


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Scripted]]:
    """The transform `scripted`, with a script of this test's own."""

    class Own(Scripted):
        made = 0

        def __init__(self, params: Any, tools: Tools) -> None:
            super().__init__(params, tools)
            type(self).made += 1

    monkeypatch.setitem(BUILT_IN, "scripted", Own)
    return Own


def runner_of(*query_specs: QuerySpec, tools: Tools | None = None, now: Now | None = None, **rules: Any) -> QueryRunner:
    return QueryRunner(query_specs, tools or tools_of()[0], meter=free_meter, clock_s=now or Now(), rules=FaultRules(**rules))


def names(outcomes: list[Outcome]) -> list[str]:
    return [outcome.query for outcome in outcomes]


# --- sharing ----------------------------------------------------------------------------------------------------------


def test_queries_of_one_camera_share_decoding_detection_and_tracks() -> None:
    tools, detector = tools_of(lambda image: boxes(at_centre(100, 100)))
    runner = runner_of(*specs(LINES, COUNT, DWELL), tools=tools)
    assert runner.cells() == 6  # decode, detect, track; lines, count, dwell
    for i in range(10):
        assert names(runner.step(moving_scene(i))) == ["lines", "count", "dwell"]
    assert len(detector.asked) == 10
    stats = {(query, id): stat.runs for query, state in runner.queries.items() for id, stat in state.stats.items()}
    assert set(stats.values()) == {10}


def test_what_is_shared_is_paid_once() -> None:
    ticks = iter(range(10_000))
    runner = QueryRunner(specs(LINES, COUNT, DWELL), tools_of()[0], meter=lambda: Cost(cpu_s=float(next(ticks))), clock_s=Now())
    runner.step(moving_scene(0))
    assert runner.cost == Cost(cpu_s=6.0)
    assert runner.queries["count"].stats["detect"].cost == Cost(cpu_s=1.0)  # shown wherever it is used


def test_other_parameters_or_knobs_are_another_node() -> None:
    other = "{name: other, template: count, knobs: {decode.fps: [5]}}"
    assert runner_of(*specs(COUNT, other)).cells() == 6
    zones = "{name: zones, template: count, zones: {a: [[0, 0], [1, 0], [1, 1]]}}"
    assert runner_of(*specs(COUNT, zones)).cells() == 4


def test_a_query_alone_answers_as_it_does_in_company() -> None:
    def told(*queries: str) -> list[Any]:
        spots = iter(range(20, 190, 8))
        tools, _ = tools_of(lambda image: boxes(at_centre(100, next(spots))))
        runner = runner_of(*specs(*queries), tools=tools)
        return [[o.told for o in runner.step(moving_scene(i)) if o.query == "lines"] for i in range(20)]

    assert told(LINES) == told(LINES, COUNT, DWELL)
    assert told(LINES)[-1][0]["lines"]["lines"]["mid"]["out"] == 1


# --- knobs ------------------------------------------------------------------------------------------------------------


def test_tracks_go_on_when_the_resolution_changes() -> None:
    tools, detector = tools_of(lambda image: boxes(*(np.array(at_centre(100, 100)) * image.shape[0] / 200,)))
    spec = query_spec(
        entries_of("{name: a, template: lines, lines: {m: [[0, 0], [1, 1]]}, knobs: {decode.height_px: [0, 100]}}")[0], task=""
    )
    runner = runner_of(spec, tools=tools)
    for i in range(10):
        if i == 5:
            runner.set_knobs("a", {"decode.height_px": 100})
        [outcome] = runner.step(moving_scene(i))
    assert detector.asked[-1] == (160, 100)
    assert outcome.told["track"] == {"tracks": 1}
    assert outcome.scene is not None
    assert outcome.scene.track_ids is not None
    assert outcome.scene.track_ids.tolist() == [1]


def test_tracks_go_on_when_the_camera_itself_sends_another_size() -> None:
    runner = runner_of(*specs(LINES))
    for i in range(10):
        size = (320, 200) if i < 5 else (640, 400)
        scale = size[0] / 320
        frame = frame_at(i / 10, seq=i, size=size)
        [outcome] = runner.step(scene_of(frame, shown=boxes(np.array(at_centre(100, 100 + 2 * i)) * scale)))
    assert outcome.scene is not None
    assert outcome.scene.size_px == (320, 200)
    assert outcome.scene.track_ids is not None
    assert outcome.scene.track_ids.tolist() == [1]


def test_a_picture_of_another_shape_is_another_stream(scripted: type[Scripted]) -> None:
    runner = runner_of(scripted_spec())
    runner.step(moving_scene(0))
    runner.step(scene_of(frame_at(0.1, size=(200, 320))))
    [cell] = [c for c in runner._cells["odd"].values() if c.node.id == "odd"]
    assert isinstance(cell.transform, Scripted)
    assert cell.transform.interruptions == 1
    runner.step(scene_of(frame_at(0.05, size=(200, 320))))  # time runs backwards
    assert cell.transform.interruptions == 2


def test_two_queries_part_when_their_knobs_do_and_both_keep_what_they_learnt(scripted: type[Scripted]) -> None:
    runner = runner_of(scripted_spec("a"), scripted_spec("b"))
    assert runner.cells() == 2
    for i in range(3):
        runner.step(moving_scene(i))
    runner.set_knobs("b", {"odd.gain": 3})
    assert runner.cells() == 3
    told = {o.query: o.told["odd"]["seen"] for o in runner.step(moving_scene(3))}
    assert told == {"a": 4, "b": 4}
    runner.set_knobs("b", {"decode.fps": 1})  # only what comes to b is thinned out
    for i in range(4, 10):
        runner.step(moving_scene(i))
    last = {o.query: o.told["odd"]["seen"] for o in runner.step(moving_scene(14))}
    assert last["a"] == 11
    assert last["b"] < 8
    assert scripted.made == 1  # the second one is a copy of the first


def test_stateless_nodes_join_again_and_stateful_ones_stay_apart() -> None:
    runner = runner_of(*specs(LINES, DWELL))
    assert runner.cells() == 5
    runner.set_knobs("lines", {"decode.fps": 1})
    assert runner.cells() == 8
    runner.set_knobs("lines", {"decode.fps": 0})
    assert runner.cells() == 6  # decode and detect are one again, the tracks went different ways
    tools, detector = tools_of()
    runner = runner_of(*specs(LINES, DWELL), tools=tools)
    for fps in (1, 0):
        runner.set_knobs("lines", {"decode.fps": fps})
    runner.step(moving_scene(0))
    assert len(detector.asked) == 1


def test_a_frame_left_out_for_one_query_is_not_left_out_for_another() -> None:
    tools, detector = tools_of()
    slow = "{name: slow, template: count, knobs: {decode.fps: [1]}}"
    runner = runner_of(*specs(COUNT, slow), tools=tools)
    answered = [names(runner.step(moving_scene(i))) for i in range(10)]
    assert answered[0] == ["count", "slow"]
    assert answered[1:] == [["count"]] * 9
    assert len(detector.asked) == 11


def test_a_knob_that_is_none_changes_nothing() -> None:
    runner = runner_of(*specs(COUNT))
    before = dict(runner.queries["count"].setting)
    for wrong in ({"decode.fps": 3}, {"decode.speed": 1}, {"nothing": 1}):
        with pytest.raises(UsageError):
            runner.set_knobs("count", {"decode.height_px": 240, **wrong})
        assert runner.queries["count"].setting == before
    with pytest.raises(KeyError):
        runner.set_knobs("nobody", {})


@settings(deadline=None, max_examples=12)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["lines", "count", "dwell"]),
            st.sampled_from([("decode.fps", 1), ("decode.fps", 0), ("decode.height_px", 0), ("decode.height_px", 240)]),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_whatever_knobs_are_turned_each_query_runs_as_if_it_were_alone(turns: list) -> None:
    """Sharing and parting never show in the answers."""

    def answers(only: str | None) -> dict[str, list[Any]]:
        chosen = [q for q in (LINES, COUNT, DWELL) if only is None or f"name: {only}," in q]
        tools, _ = tools_of()
        runner = runner_of(*specs(*chosen), tools=tools)
        found: dict[str, list[Any]] = {}
        for i in range(15):
            if i % 3 == 0 and i // 3 < len(turns):
                query, (knob, value) = turns[i // 3]
                if only in (None, query):
                    runner.set_knobs(query, {knob: value})
            for outcome in runner.step(moving_scene(i, shown=boxes(at_centre(100, 10 + 7 * i)))):
                found.setdefault(outcome.query, []).append((outcome.seq, json.dumps(outcome.told)))
        return found

    together = answers(None)
    for query in ("lines", "count", "dwell"):
        assert together[query] == answers(query)[query]


def test_the_front_of_each_query_is_known_to_who_decodes() -> None:
    runner = runner_of(*specs(LINES, "{name: slow, template: read, knobs: {decode.fps: [1, 2], read.every: [5]}}"))
    assert runner.front()["slow"] == {"decode.fps": 1, "decode.height_px": 0}
    assert runner.front()["lines"]["detect.model"] == ""


# --- faults -----------------------------------------------------------------------------------------------------------


def raises(self: Any, scene: Scene) -> Scene:
    raise RuntimeError("no luck with rtsp://user:secret@host/")


def swapped(**changes: Any) -> Does:
    return lambda self, scene: scene.with_(**changes)


@pytest.mark.parametrize(
    ("does", "kind", "says"),
    [
        (raises, "raised", "RuntimeError: no luck"),
        (lambda self, scene: 17, "nonsense", "gave a int"),
        (lambda self, scene: scene_of(frame_at(0.0)), "nonsense", "another frame"),
        (lambda self, scene: [][0], "raised", "IndexError"),
        (swapped(image=None), "nonsense", "picture"),
        (swapped(image=np.zeros((0, 5, 3), np.uint8)), "nonsense", "picture"),
        (swapped(regions="everywhere"), "nonsense", "no numbers"),
        (swapped(regions=np.full((2, 4), np.nan)), "nonsense", "no finite boxes"),
        (swapped(detections=[1, 2]), "nonsense", "detections are a list"),
        (swapped(detections=boxes((0, 0, np.nan, 5))), "nonsense", "no finite boxes"),
        (swapped(detections=boxes((0, 0, 5, 5), score=np.inf)), "nonsense", "scores"),
        (swapped(detections=boxes((0, 0, 5, 5), score=np.nan)), "nonsense", "scores"),
        (swapped(detections=boxes((0, 0, 5, 5), class_id=99)), "nonsense", "classes"),
        (swapped(detections=boxes((0, 0, 5, 5)), track_ids=np.array([1, 2])), "nonsense", "track numbers"),
        (swapped(track_ids=np.array([1])), "nonsense", "tracks without detections"),
        (swapped(told={"a": float("nan")}), "nonsense", "no JSON"),
        (swapped(told={"a": np.zeros(3)}), "nonsense", "no JSON"),
        (swapped(told=[1]), "nonsense", "no object"),
        (swapped(told={"a": "x" * (TOLD_BYTES_MAX + 1)}), "nonsense", "bytes of one frame"),
    ],
)  # fmt: skip
def test_whatever_a_transform_does_the_others_answer(does: Does, kind: str, says: str, scripted: type[Scripted]) -> None:
    scripted.does = staticmethod(does)
    runner = runner_of(scripted_spec(), *specs(COUNT))
    for i in range(3):
        assert names(runner.step(moving_scene(i))) == ["count"]
    state = runner.queries["odd"]
    assert state.stats["odd"].faults == {kind: 3}
    assert says in state.stats["odd"].last_error
    assert "secret" not in state.stats["odd"].last_error
    assert state.failed_frames == 3
    assert state.outcome is None
    assert not runner.queries["count"].failed_frames


def test_boxes_that_stick_out_are_cut_and_those_outside_left_out(scripted: type[Scripted]) -> None:
    found = boxes((-10, 10, 30, 40), (400, 10, 440, 40), (50, 50, 50, 50), (300, 190, 330, 220))
    scripted.does = staticmethod(swapped(detections=found, track_ids=np.array([1, 2, 3, 4])))
    runner = runner_of(scripted_spec())
    [outcome] = runner.step(moving_scene(0))
    assert outcome.scene is not None
    assert outcome.scene.detections is not None
    assert outcome.scene.detections.xyxy.tolist() == [[0, 10, 30, 40], [300, 190, 320, 200]]
    assert outcome.scene.track_ids is not None
    assert outcome.scene.track_ids.tolist() == [1, 4]
    assert runner.queries["odd"].stats["odd"].boxes_left_out == 2


@settings(deadline=None, max_examples=100)
@given(st.lists(st.lists(st.floats(width=32), min_size=4, max_size=4), max_size=4), st.integers(-3, 9))
def test_detections_are_usable_or_refused(rows: list, class_id: int) -> None:
    scene = moving_scene(0)
    found = boxes(*rows, class_id=class_id)
    try:
        mended, out = checked(scene.with_(detections=found), scene)
    except Nonsense:
        assert not np.isfinite(found.xyxy).all() or not 0 <= class_id < 7
        return
    assert mended is not None
    assert mended.detections is not None
    xyxy = mended.detections.xyxy
    assert len(xyxy) + out == len(rows)
    assert (xyxy >= 0).all()
    assert (xyxy[:, 2:] > xyxy[:, :2]).all()
    assert (xyxy <= np.array([320, 200, 320, 200])).all()


def test_after_some_failures_in_a_row_a_query_rests_and_is_tried_again(scripted: type[Scripted]) -> None:
    scripted.does = staticmethod(raises)
    now = Now()
    runner = runner_of(scripted_spec(), *specs(COUNT), now=now, in_a_row=3, rest_s=10.0, rest_most_s=35.0)
    state = runner.queries["odd"]
    for i in range(10):
        runner.step(moving_scene(i))
    assert state.failed_frames == 3
    assert state.reason == "odd: RuntimeError: no luck with rtsp://***@host/"
    waits = []
    for i in range(10, 14):  # each time it fails again at once it rests twice as long
        waits.append(state.rests_until_s - now.s)
        now.s = state.rests_until_s
        runner.step(moving_scene(i))
        assert state.failed_frames == 3 + len(waits)
    assert waits == [10.0, 20.0, 35.0, 35.0]
    scripted.does = Scripted.does
    now.s = state.rests_until_s
    assert names(runner.step(moving_scene(20))) == ["odd", "count"]
    assert state.reason == ""
    assert state.outcome is not None
    assert state.outcome.told["odd"] == {"seen": 1}  # a fresh transform: what broke the old one is gone


def test_failures_now_and_then_do_not_end_a_query(scripted: type[Scripted]) -> None:
    scripted.does = staticmethod(lambda self, scene: scene.with_() if self.seen % 3 else raises(self, scene))
    runner = runner_of(scripted_spec(), in_a_row=2)
    answered = sum(len(runner.step(moving_scene(i))) for i in range(30))
    assert answered == 20
    assert runner.queries["odd"].reason == ""


def test_good_frames_make_an_earlier_rest_forgotten(scripted: type[Scripted]) -> None:
    now = Now()
    runner = runner_of(scripted_spec(), now=now, in_a_row=1, rest_s=10.0, well_frames=5)
    state = runner.queries["odd"]
    for round_ in range(3):
        scripted.does = staticmethod(raises)
        runner.step(moving_scene(100 * round_))
        assert state.rests_until_s - now.s == 10.0
        now.s = state.rests_until_s
        scripted.does = Scripted.does
        for i in range(6):
            runner.step(moving_scene(100 * round_ + 1 + i))
        assert state.rests == 0


def test_a_node_that_fails_for_two_queries_rests_both_and_leaves_the_third(scripted: type[Scripted]) -> None:
    scripted.does = staticmethod(raises)
    runner = runner_of(scripted_spec("a"), scripted_spec("b"), *specs(COUNT), in_a_row=2)
    for i in range(4):
        assert names(runner.step(moving_scene(i))) == ["count"]
    assert [bool(state.reason) for state in runner.queries.values()] == [True, True, False]
    assert runner.queries["a"].stats["odd"].faults == runner.queries["b"].stats["odd"].faults == {"raised": 2}


def test_a_transform_that_cannot_be_built_rests_its_query(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unbuildable(Scripted):
        def __init__(self, params: Any, tools: Tools) -> None:
            raise OSError("no such device")

    monkeypatch.setitem(BUILT_IN, "scripted", Unbuildable)
    runner = runner_of(scripted_spec(), *specs(COUNT), in_a_row=2)
    for i in range(3):
        assert names(runner.step(moving_scene(i))) == ["count"]
    assert "no such device" in runner.queries["odd"].reason


def test_a_fork_that_fails_begins_anew(scripted: type[Scripted], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Any) -> Any:
        raise TypeError("cannot be copied")

    monkeypatch.setattr(scripted, "fork", broken)
    runner = runner_of(scripted_spec("a"), scripted_spec("b"))
    runner.step(moving_scene(0))
    runner.set_knobs("b", {"odd.gain": 2})
    assert {o.query: o.told["odd"]["seen"] for o in runner.step(moving_scene(1))} == {"a": 2, "b": 1}


def test_a_knob_that_a_transform_chokes_on_costs_a_fresh_one(scripted: type[Scripted], monkeypatch: pytest.MonkeyPatch) -> None:
    def update(self: Any, knob: str, value: Any) -> None:
        if self.seen:
            raise ValueError("not while running")
        self.values[knob] = value

    monkeypatch.setattr(scripted, "update", update)
    scripted.does = staticmethod(lambda self, scene: scene.with_(told={"gain": self.values["gain"]}))
    runner = runner_of(scripted_spec())
    runner.step(moving_scene(0))
    runner.set_knobs("odd", {"odd.gain": 3})
    assert runner.step(moving_scene(1)) == []
    [outcome] = runner.step(moving_scene(2))
    assert outcome.told["odd"] == {"gain": 3}


def test_a_model_that_gives_a_frame_up_is_late_and_no_fault(scripted: type[Scripted]) -> None:
    def late(self: Any, scene: Scene) -> Scene:
        raise TooLate("given up")

    scripted.does = staticmethod(late)
    runner = runner_of(scripted_spec(), *specs(COUNT), in_a_row=2)
    for i in range(5):
        assert names(runner.step(moving_scene(i))) == ["count"]
    state = runner.queries["odd"]
    assert (state.stats["odd"].late, state.failed_frames, state.reason) == (5, 0, "")
    assert not state.stats["odd"].faults
    scripted.does = Scripted.does
    assert names(runner.step(moving_scene(5))) == ["odd", "count"]


def test_two_queries_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two queries are called count"):
        runner_of(*specs(COUNT), *specs(COUNT))


def test_joining_two_branches_waits_for_both(scripted: type[Scripted], monkeypatch: pytest.MonkeyPatch) -> None:
    class Join(Scripted):
        stateful = False

        def process(self, scene: Scene, others: Any) -> Scene:
            return scene.with_(told={"from": [scene.told["seen"], *(other.told["seen"] for other in others)]})

    monkeypatch.setitem(BUILT_IN, "join", Join)
    decode = NodeSpec(id="decode", transform="decode", knobs=tuple(knob_of(f) for f in TRANSFORMS["decode"].knobs))
    slow = NodeSpec(id="slow", transform="decode", inputs=("decode",), knobs=(knob_of(TRANSFORMS["decode"].knobs[0], [5]),))
    nodes = (
        decode, slow,
        NodeSpec(id="one", transform="scripted", inputs=("decode",), params={"tag": "1"}),
        NodeSpec(id="two", transform="scripted", inputs=("slow",), params={"tag": "2"}),
        NodeSpec(id="both", transform="join", inputs=("one", "two")),
    )  # fmt: skip
    runner = runner_of(QuerySpec(name="q", nodes=nodes))
    told = [o.told["both"]["from"] for i in range(6) for o in runner.step(moving_scene(i))]
    assert told == [[1, 1], [3, 2], [5, 3]]
