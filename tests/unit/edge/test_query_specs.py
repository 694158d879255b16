"""What a query is: its DAG, its knobs, its keys; and that a node over a clip is a function of its key."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.errors import UsageError
from configs.queries import TRANSFORMS
from edge.queries.base import Cost, Knob, NodeSpec, QuerySpec, node_key, node_keys, run_over, scaled, scene_of, total
from edge.queries.facts import knob_of
from edge.queries.registry import BUILT_IN, build_node, query_spec
from scheduler.types import Detections
from tests.support.query_scenes import at_centre, boxes, entries_of, frame_at, free_meter, moving_scene, tools_of


def chain(*transforms: str, **more: object) -> QuerySpec:
    nodes = tuple(
        NodeSpec(
            id=name, transform=name, inputs=(transforms[at - 1],) if at else (),
            knobs=tuple(knob_of(facts) for facts in TRANSFORMS[name].knobs),
        )
        for at, name in enumerate(transforms)
    )  # fmt: skip
    return QuerySpec(name="q", nodes=nodes, **more)  # type: ignore[arg-type]


def test_a_knob_begins_with_its_first_value_and_has_a_golden_one() -> None:
    knob = Knob(name="fps", values=(5, 2), golden=5)
    assert (knob.default, knob.best) == (5, 5)
    assert Knob(name="a", values=("x", "y")).best == "x"
    for values, golden in (((), None), ((1, 1), None), ((1, 2), 3)):
        with pytest.raises(ValueError, match="knob k"):
            Knob(name="k", values=values, golden=golden)


def test_the_golden_value_of_what_an_operator_allows() -> None:
    facts = {f"{t}.{k.name}": k for t, about in TRANSFORMS.items() for k in about.knobs}
    assert knob_of(facts["decode.fps"], (2, 5)).best == 5
    assert knob_of(facts["decode.fps"], (2, 0, 5)).best == 0  # every frame
    assert knob_of(facts["read.every"], (25, 5)).best == 5
    assert knob_of(facts["detect.model"], ("small", "large")).best == "small"


def test_order_and_sinks() -> None:
    nodes = (
        NodeSpec(id="c", transform="count", inputs=("b",)),
        NodeSpec(id="a", transform="decode"),
        NodeSpec(id="b", transform="detect", inputs=("a",)),
        NodeSpec(id="d", transform="read", inputs=("a",)),
    )
    spec = QuerySpec(name="q", nodes=nodes)
    assert spec.order.index("a") < spec.order.index("b") < spec.order.index("c")
    assert set(spec.order) == {"a", "b", "c", "d"}
    assert spec.sinks == ("c", "d")


@pytest.mark.parametrize(
    ("nodes", "says"),
    [
        ((), "needs nodes"),
        ((("a", ()), ("a", ())), "of their own"),
        ((("a", ("b",)),), "no node for the inputs b of a"),
        ((("a", ("b",)), ("b", ("a",))), "in a circle"),
        ((("a", ("a",)),), "in a circle"),
    ],
)
def test_what_is_no_dag_is_refused(nodes: tuple, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        QuerySpec(name="q", nodes=tuple(NodeSpec(id=id, transform="x", inputs=inputs) for id, inputs in nodes))


def test_settings_are_checked_and_completed() -> None:
    spec = chain("decode", "detect", "track")
    assert spec.default_setting()["decode.fps"] == 0
    assert spec.checked({"decode.fps": 2})["track.association"] == "bytetrack"
    with pytest.raises(UsageError, match=r"no knob decode\.speed"):
        spec.checked({"decode.speed": 1})
    with pytest.raises(UsageError, match=r"decode\.fps cannot be 3.*0, 5, 2, 1"):
        spec.checked({"decode.fps": 3})
    with pytest.raises(UsageError, match="cannot be True"):
        spec.checked({"decode.fps": True})  # equal to 1, but no rate


def test_goals_become_a_utility() -> None:
    utility = chain("decode", quality_goal=0.6, lag_goal_s=1.0, quality_weight=2.5, lag_weight_per_s=0.2).utility(base=1.0)
    assert utility.at(0.7, 12.0) == pytest.approx(-0.95)  # example V2 of the card
    assert utility.at(0.4, 0.5) == pytest.approx(1 - 0.2)  # the card's missing penalty


def test_keys_hold_the_knobs_of_all_ancestors_and_nothing_else() -> None:
    spec = chain("decode", "detect", "track")
    plain, slow = spec.default_setting(), spec.checked({"decode.fps": 1})
    sort = spec.checked({"track.association": "sort"})
    assert node_key(spec, "detect", plain) == node_key(spec, "detect", sort)
    assert node_key(spec, "track", plain) != node_key(spec, "track", sort)
    assert all(node_key(spec, id, plain) != node_key(spec, id, slow) for id in spec.order)
    renamed = QuerySpec(
        name="other",
        nodes=tuple(
            NodeSpec(id=f"n-{n.id}", transform=n.transform, inputs=tuple(f"n-{i}" for i in n.inputs), knobs=n.knobs)
            for n in spec.nodes
        ),
    )
    assert set(node_keys(renamed, renamed.default_setting()).values()) == set(node_keys(spec, plain).values())


def test_the_same_picture_at_another_size() -> None:
    shown = boxes((10, 20, 30, 40))
    scene = scene_of(frame_at(0.0, size=(160, 100)), size_px=(320, 200), shown=shown)
    assert scene.scale == (0.5, 0.5)
    assert scene.shown is not None
    assert scene.shown.xyxy.tolist() == [[20, 40, 60, 80]]
    assert scaled(None, (1, 1), (2, 2)) is None
    assert scaled(np.zeros((0, 4)), (1, 1), (2, 2)).shape == (0, 4)


def test_a_scene_forgets_what_was_told_before() -> None:
    scene = moving_scene(0).with_(told={"a": 1})
    assert scene.with_().told == {}
    assert scene.with_(told={"b": 2}).told == {"b": 2}


# --- a node over a clip ------------------------------------------------------------------------------------------------


def test_a_query_written_as_a_template_runs_over_a_clip() -> None:
    [entry] = entries_of("{name: door, template: lines, lines: {mid: [[0.0, 0.5], [1.0, 0.5]]}}")
    spec = query_spec(entry, task="detection")
    assert spec.order == ("decode", "detect", "track", "lines")
    tops = iter(range(0, 200, 10))
    tools, _ = tools_of(lambda image: boxes(at_centre(100, next(tops))))
    outputs = {}
    frames = [moving_scene(i) for i in range(20)]
    for id in spec.order:
        feeds = [[o.scene for o in outputs[i]] for i in spec.node(id).inputs] or [frames]
        outputs[id] = run_over(build_node(spec.node(id), tools), feeds, meter=free_meter)
    assert outputs["lines"][-1].scene is not None
    assert outputs["lines"][-1].scene.told["lines"]["mid"]["out"] == 1
    assert json.dumps(outputs["lines"][-1].scene.told)


def test_frames_that_a_rate_leaves_out_go_no_further_and_cost_nothing() -> None:
    spent = iter(np.arange(1.0, 1000.0))
    spec = chain("decode", "detect")
    tools, detector = tools_of()
    decode = build_node(spec.node("decode"), tools, {"fps": 2, "height_px": 0})

    def meter() -> Cost:
        return Cost(cpu_s=float(next(spent)), gpu_s=0.5)

    taken = run_over(decode, [[moving_scene(i) for i in range(20)]], meter=meter)
    assert [i for i, output in enumerate(taken) if output.scene is not None] == [0, 5, 10, 15]
    found = run_over(build_node(spec.node("detect"), tools), [[o.scene for o in taken]], meter=meter)
    assert len(detector.asked) == 4
    assert total(output.cost for output in found) == Cost(cpu_s=4.0, gpu_s=0.0)


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 5)), max_size=3), min_size=1, max_size=12),
    st.sampled_from(["bytetrack", "ocsort", "sort"]),
)
def test_a_stateful_node_over_a_clip_is_the_same_however_often_it_is_run(spots: list, association: str) -> None:
    """What lets the profiler cache it: a fresh transform, or the same one after a reset, gives the same outputs."""
    spec = chain("decode", "detect", "track")
    tools, _ = tools_of()
    clip = [
        moving_scene(i).with_(detections=boxes(*(at_centre(30 * x + 20, 30 * y + 20) for x, y in found)))
        for i, found in enumerate(spots)
    ]
    once = build_node(spec.node("track"), tools, {"association": association})
    runs = [run_over(once, [clip], meter=free_meter) for _ in range(2)]
    runs.append(run_over(build_node(spec.node("track"), tools, {"association": association}), [clip], meter=free_meter))
    ids = [[o.scene.track_ids.tolist() for o in run if o.scene is not None and o.scene.track_ids is not None] for run in runs]
    assert ids[0] == ids[1] == ids[2]
    assert all(len(row) == len(found) for row, found in zip(ids[0], spots, strict=True))


def test_every_built_in_transform_is_as_the_table_says() -> None:
    assert set(BUILT_IN) == set(TRANSFORMS)
    for name, kind in BUILT_IN.items():
        assert kind.params == TRANSFORMS[name].params
        assert tuple(knob.name for knob in kind.knobs) == tuple(knob.name for knob in TRANSFORMS[name].knobs)
        assert all(knob.help for knob in kind.knobs)


def test_no_detections_are_detections_too() -> None:
    spec = chain("decode", "detect", "track")
    tools, _ = tools_of()
    clip = [moving_scene(i).with_(detections=Detections.empty()) for i in range(3)]
    outputs = run_over(build_node(spec.node("track"), tools), [clip], meter=free_meter)
    assert [o.scene.told for o in outputs if o.scene is not None] == [{"tracks": 0}] * 3
