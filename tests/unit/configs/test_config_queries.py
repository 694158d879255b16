"""`cameras[].queries`: short forms and nodes, and everything that is wrong with them named at the door."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.errors import ConfigError
from configs.load import parse_config
from configs.queries import TEMPLATES, TRANSFORMS, expanded, known_transforms, query_problems
from streams.motion import Motion, MotionOptions

ROOT = Path(__file__).parents[3]
ZONE = "[[0.1, 0.1], [0.9, 0.1], [0.9, 0.9]]"
LINE = "[[0.1, 0.5], [0.9, 0.5]]"


NODES = "{name: a, nodes: [{transform: decode}, {transform: detect}, {transform: %s}]}"


def written(*queries: str, task: str = "detection") -> str:
    listed = "".join(f"\n      - {query}" for query in queries)
    return f"cameras:\n  - id: gate\n    url: /v.mp4\n    task: {task}\n    queries:{listed}\n"


def problems_of(*queries: str, task: str = "detection") -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        parse_config(written(*queries, task=task))
    return {path.removeprefix("cameras[0].queries"): text for path, text in caught.value.problems}


def nodes_of(query: str, *, task: str = "detection") -> list[dict]:
    [entry] = parse_config(written(query, task=task)).cameras[0].queries
    return expanded(entry.model_dump(), task)


# --- short forms ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "chain"),
    [
        ("{name: a, template: count}", "decode detect count"),
        (f"{{name: a, template: count, zones: {{door: {ZONE}}}}}", "decode detect count"),
        (f"{{name: a, template: lines, lines: {{door: {LINE}}}}}", "decode detect track lines"),
        (f"{{name: a, template: dwell, zones: {{door: {ZONE}}}}}", "decode detect track dwell"),
        ("{name: a, template: read}", "decode read"),
    ],
)
def test_a_template_is_a_chain_of_nodes(query: str, chain: str) -> None:
    nodes = nodes_of(query)
    assert [node["transform"] for node in nodes] == chain.split()
    assert [list(node["inputs"]) for node in nodes] == [[], *([name] for name in chain.split()[:-1])]


def test_a_camera_that_classifies_what_moves_is_asked_so() -> None:
    nodes = nodes_of(f"{{name: a, template: lines, lines: {{door: {LINE}}}}}", task="classification")
    assert [node["transform"] for node in nodes] == ["decode", "motion", "classify", "track", "lines"]


def test_zones_lines_and_classes_are_said_once() -> None:
    [*_, count] = nodes_of(
        f"{{name: a, template: count, zones: {{door: {ZONE}}}, classes: [person], knobs: {{decode.fps: [2]}}}}"
    )
    assert count["params"]["zones"] == {"door": ((0.1, 0.1), (0.9, 0.1), (0.9, 0.9))}
    assert count["params"]["classes"] == ["person"]
    [decode, detect, *_] = nodes_of("{name: a, template: count, classes: [person], knobs: {decode.fps: [2, 1]}}")
    assert decode["knobs"] == {"fps": (2, 1)}
    assert detect["params"] == {}  # so that other queries can share what was detected


def test_nodes_name_some_of_the_querys_places() -> None:
    query = (
        f"{{name: a, zones: {{x: {ZONE}, y: {ZONE}}}, nodes: [{{transform: decode}}, {{transform: detect}}, "
        "{id: one, transform: count, params: {zones: [y]}}, {id: all, transform: count, inputs: [detect]}]}"
    )
    nodes = {node["id"]: node for node in nodes_of(query)}
    assert set(nodes["one"]["params"]["zones"]) == {"y"}
    assert set(nodes["all"]["params"]["zones"]) == {"x", "y"}
    assert nodes["one"]["inputs"] == ("detect",)  # the node before it


# --- what is wrong ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "path", "says"),
    [
        ("{name: a}", "[0].template", "either a template"),
        ("{name: a, template: count, nodes: [{transform: decode}]}", "[0].template", "either a template"),
        ("{name: a, template: dwel}", "[0].template", "did you mean 'dwell'"),
        ("{name: a, template: lines}", "[0].lines", "at least one line"),
        ("{name: a, template: dwell}", "[0].zones", "at least one zone"),
        ("{name: A b, template: count}", "[0].name", "lower case"),
        ("{name: a, template: count, zones: {z: [[0, 0], [1, 1]]}}", "[0].zones", "zone z needs at least 3 corners"),
        ("{name: a, template: count, zones: {z: [[0, 0], [1, 1], [0.5, 0.5]]}}", "[0].zones", "zone z has no area"),
        ("{name: a, template: count, zones: {z: [[0, 0], [2, 0], [1, 1]]}}", "[0].zones", "outside 0 to 1"),
        ("{name: a, template: count, zones: {z: [[0, 0], [.nan, 0], [1, 1]]}}", "[0].zones.z[1][0]", "finite"),
        ("{name: a, template: lines, lines: {l: [[0, 0], [0, 0]]}}", "[0].lines", "two points that are apart"),
        (f"{{name: a, template: lines, lines: {{l: {ZONE}}}}}", "[0].lines", "two points that are apart"),
        ("{name: a, template: count, classes: [persn]}", "[0].classes", "no class 'persn'"),
        ("{name: a, template: count, quality_goal: 1.5}", "[0].quality_goal", "0 to 1"),
        ("{name: a, template: count, quality_goal: -0.1}", "[0].quality_goal", "0 to 1"),
        ("{name: a, template: count, lag_goal_s: -1}", "[0].lag_goal_s", "0 to 86400"),
        ("{name: a, template: count, speed: 1}", "[0].speed", "unknown key"),
        ("{name: a, template: count, knobs: {decode.speed: [1]}}", "[0].knobs.decode.speed", "no knob 'speed'"),
        ("{name: a, template: count, knobs: {decoder.fps: [1]}}", "[0].knobs.decoder.fps", "did you mean 'decode'"),
        ("{name: a, template: count, knobs: {decode.fps: []}}", "[0].knobs", "needs values"),
        ("{name: a, template: count, knobs: {decode.fps: [1, 1]}}", "[0].knobs", "each once"),
        ("{name: a, template: count, knobs: {decode.fps: [-5]}}", "[0].knobs", "outside 0 to"),
        ("{name: a, nodes: [{transform: detekt}]}", "[0].nodes[0].transform", "did you mean 'detect'"),
        ("{name: a, nodes: [{transform: decode, inputs: [b]}]}", "[0].nodes[0].inputs", "takes no input"),
        ("{name: a, nodes: [{transform: detect, inputs: []}]}", "[0].nodes[0].inputs", "takes 1 input, not 0"),
        ("{name: a, nodes: [{transform: decode}, {transform: detect, inputs: [deco]}]}", "[0].nodes[1].inputs", "no node 'deco'"),
        ("{name: a, nodes: [{transform: decode}, {transform: decode}]}", "[0].nodes[1].id", "another node"),
        ("{name: a, nodes: [{transform: decode}, {transform: track}]}", "[0].nodes[1].inputs", "needs detections"),
        ("{name: a, nodes: [{transform: decode}, {transform: detect}, {transform: dwell}]}", "[0].nodes[2].params.zones", "dwell"),
        ("{name: a, nodes: [{transform: decode}, {transform: classify}]}", "[0].nodes[1].inputs", "regions or detections"),
        ("{name: a, nodes: [{transform: decode, params: {x: 1}}]}", "[0].nodes[0].params.x", "no parameter x"),
        (NODES % "count, params: {anchor: middle}", "[0].nodes[2].params.anchor", "one of: bottom_center, center, corners"),
        (NODES % "count, params: {classes: [dog]}", "[0].nodes[2].params.classes", "list of classes: person"),
        (NODES % "count, params: {classes: person}", "[0].nodes[2].params.classes", "list of classes"),
        (NODES % "track, params: {lost_s: -1}", "[0].nodes[2].params.lost_s", "number from 0 to 86400"),
        (NODES % "track, params: {lost_s: .nan}", "[0].nodes[2].params.lost_s", "number from 0 to 86400"),
        (NODES % "track, params: {min_frames: 1.5}", "[0].nodes[2].params.min_frames", "whole number from 1 to 1000"),
        (NODES % "track, params: {start_score: 2}", "[0].nodes[2].params.start_score", "number from 0 to 1"),
        (NODES % "track, params: {start_score: high}", "[0].nodes[2].params.start_score", "number from 0 to 1"),
        (NODES % "motion, params: {memory_s: 0}", "[0].nodes[2].params.memory_s", "number above 0, at most 86400"),
        (NODES % "motion, params: {memory_s: -60}", "[0].nodes[2].params.memory_s", "number above 0, at most 86400"),
        (NODES % "motion, params: {memory_s: .nan}", "[0].nodes[2].params.memory_s", "number above 0, at most 86400"),
        (NODES % "motion, params: {memory_s: .inf}", "[0].nodes[2].params.memory_s", "number above 0, at most 86400"),
        (NODES % "motion, params: {memory_s: long}", "[0].nodes[2].params.memory_s", "number above 0, at most 86400"),
        (NODES % "motion, params: {max_regions: 0}", "[0].nodes[2].params.max_regions", "whole number from 1 to 1000"),
        (NODES % "motion, params: {max_regions: .nan}", "[0].nodes[2].params.max_regions", "whole number from 1 to 1000"),
        ("{name: a, nodes: [{transform: decode, knobs: {x: [1]}}]}", "[0].nodes[0].knobs.x", "no knob x"),
        (
            "{name: a, nodes: [{transform: decode}, {transform: detect}, {transform: count, params: {zones: [z]}}]}",
            "[0].nodes[2].params.zones",
            "no zone 'z'",
        ),
        (
            "{name: a, nodes: [{transform: decode}, {id: x, transform: detect, inputs: [y]}, {id: y, transform: track}]}",
            "[0].nodes",
            "in a circle: x -> y -> x",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_path(query: str, path: str, says: str) -> None:
    found = problems_of(query)
    assert says in found[path]
    assert len(found) == 1
    assert "(line 6)" in found[path]


#: (node, knob, what it may not be, what is said of it)
BAD_KNOBS = [
    ("decode", "fps", "fast", "must be a number from 0 on, not 'fast'"),
    ("decode", "fps", "true", "must be a number from 0 on, not True"),
    ("decode", "fps", "null", "must be a number from 0 on, not None"),
    ("decode", "height_px", "tall", "must be a whole number from 0 on, not 'tall'"),
    ("decode", "height_px", "0.5", "must be a whole number from 0 on, not 0.5"),
    ("decode", "height_px", "'480'", "must be a whole number from 0 on, not '480'"),
    ("motion", "work_px", "8", "must be a whole number from 16 on, not 8"),
    ("motion", "work_px", "wide", "must be a whole number from 16 on, not 'wide'"),
    ("detect", "model", "8", "must be text, not 8"),
    ("detect", "height_px", "true", "must be a whole number from 0 on, not True"),
    ("classify", "model", "true", "must be text, not True"),
    ("classify", "crop_limit", "0", "must be a whole number from 1 on, not 0"),
    ("classify", "crop_limit", "few", "must be a whole number from 1 on, not 'few'"),
    ("track", "association", "bytetack", "must be one of: bytetrack, ocsort, sort; not 'bytetack'"),
    ("track", "association", "1", "must be one of: bytetrack, ocsort, sort; not 1"),
    ("read", "every", "0", "must be a whole number from 1 on, not 0"),
    ("read", "every", "0.5", "must be a whole number from 1 on, not 0.5"),
    ("read", "every", "true", "must be a whole number from 1 on, not True"),
]
BEFORE = {
    "decode": "", "motion": "{transform: decode}, ", "detect": "{transform: decode}, ", "read": "{transform: decode}, ",
    "classify": "{transform: decode}, {transform: motion}, ", "track": "{transform: decode}, {transform: detect}, ",
}  # fmt: skip


@pytest.mark.parametrize(("node", "knob", "value", "says"), BAD_KNOBS)
def test_a_value_that_a_knob_cannot_have_is_refused_wherever_it_stands(node: str, knob: str, value: str, says: str) -> None:
    """Also behind good ones: a box that is short of compute would turn to it at some time."""
    good = TRANSFORMS[node].knobs[[k.name for k in TRANSFORMS[node].knobs].index(knob)].values[0]
    values = f"[{good!r}, {value}]"
    by_node = f"{{name: a, nodes: [{BEFORE[node]}{{transform: {node}, knobs: {{{knob}: {values}}}}}]}}"
    by_query = f"{{name: a, nodes: [{BEFORE[node]}{{transform: {node}}}], knobs: {{{node}.{knob}: {values}}}}}"
    at = BEFORE[node].count("transform")
    assert problems_of(by_node)[f"[0].nodes[{at}].knobs.{knob}"] == f"{says} (line 6)"
    assert problems_of(by_query)[f"[0].knobs.{node}.{knob}"] == f"{says} (line 6)"


def test_every_knob_of_a_built_in_transform_takes_its_own_values_and_was_tried_with_bad_ones() -> None:
    knobs = {(name, knob.name): knob for name, facts in TRANSFORMS.items() for knob in facts.knobs}
    assert set(knobs) == {(node, knob) for node, knob, _, _ in BAD_KNOBS}
    assert all(knob.wrong(value) == "" for knob in knobs.values() for value in knob.values)


def test_a_rate_may_be_a_fraction_and_a_model_any_name() -> None:
    [decode, detect, _] = nodes_of("{name: a, template: count, knobs: {decode.fps: [0.5, 0], detect.height_px: [480]}}")
    assert decode["knobs"] == {"fps": (0.5, 0)}
    assert detect["knobs"] == {"height_px": (480,)}
    assert TRANSFORMS["detect"].knobs[0].wrong("/models/own.pt") == ""


def test_knobs_of_a_packages_transform_are_its_own_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("configs.queries.known_transforms", lambda: (*TRANSFORMS, "blur"))
    [_, blur] = nodes_of("{name: a, nodes: [{transform: decode}, {transform: blur, knobs: {every: [0, often]}}]}")
    assert blur["knobs"] == {"every": (0, "often")}


@pytest.mark.parametrize("value", [0, 0.001, 0.5, 1, 60, 1000])
@pytest.mark.parametrize("param", ["memory_s", "max_regions"])
def test_what_movement_is_told_passes_here_if_and_only_if_the_live_box_can_use_it(param: str, value: float) -> None:
    try:
        parse_config(written(NODES % f"motion, params: {{{param}: {value}}}"))
    except ConfigError:
        assert value < 1, "what can be used is not refused"
        return
    motion = Motion(MotionOptions(**{param: value}))  # type: ignore[arg-type]
    for at in range(12):
        found = motion.find(np.full((48, 64, 3), 20 * at, np.uint8), at_s=at / 5)
        assert found.shape[1] == 4


CASCADE = "{name: a, nodes: [{transform: decode}, {transform: detect}, {transform: classify}, {transform: count}]}"


@pytest.mark.parametrize(
    ("query", "task", "path"),
    [
        (CASCADE, "detection", "[0].nodes[2]"),
        ("{name: a, template: count, knobs: {detect.model: ['', yolov8s]}}", "detection", "[0].template"),
        ("{name: a, nodes: [{transform: decode}, {transform: detect}, {transform: count}]}", "classification", "[0].nodes[1]"),
    ],
)
def test_a_model_beside_the_cameras_own_needs_the_queue(query: str, task: str, path: str) -> None:
    for first, said in (
        ("scheduler: {serving: own}", "set scheduler.serving to orloj"),
        ("gpus: {device: cuda, backend: mps}", "mps"),
    ):
        with pytest.raises(ConfigError) as caught:
            parse_config(f"{first}\n{written(query, task=task)}")
        assert said in dict(caught.value.problems)[f"cameras[0].queries{path}"]
    for first in ("", "scheduler: {serving: auto}", "scheduler: {serving: orloj}"):
        assert parse_config(f"{first}\n{written(query, task=task)}").cameras[0].queries[0].name == "a"


def test_two_queries_of_one_name() -> None:
    found = problems_of("{name: a, template: count}", "{name: a, template: read}")
    assert "another query of this camera is called 'a'" in found["[1].name"]


def test_all_problems_come_at_once() -> None:
    assert set(problems_of("{name: a}", "{name: b, template: nothing}", "{name: c, template: count, quality_goal: 2}")) == {
        "[0].template", "[1].template", "[2].quality_goal",
    }  # fmt: skip


def test_check_says_it_on_the_command_line(tmp_path: Path) -> None:
    config = tmp_path / "box.yaml"
    config.write_text(written("{name: a, template: lines}"), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "edge", "check", str(config)], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 2
    assert "cameras[0].queries[0].lines: a query of template lines needs at least one line (line 6)" in done.stderr


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None, max_examples=100)
@given(
    st.dictionaries(
        st.sampled_from(["name", "template", "zones", "lines", "classes", "nodes", "knobs"]),
        JSON
        | st.sampled_from(TEMPLATES)
        | st.lists(
            st.dictionaries(
                st.sampled_from(["id", "transform", "inputs", "params", "knobs"]),
                JSON | st.sampled_from([*TRANSFORMS, "a", "b"]) | st.lists(st.sampled_from(["a", "b", "decode"]), max_size=2),
            ),
            max_size=3,
        ),
    )
)
def test_whatever_stands_there_is_reported_and_never_breaks(entry: dict) -> None:
    assert all(isinstance(path, str) and text for path, text in query_problems(entry, "detection"))


def test_the_known_transforms_are_the_built_in_ones() -> None:
    assert known_transforms() == tuple(TRANSFORMS)
