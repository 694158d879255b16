"""`decide escher`: the documented examples, the card's where it decides them, its refusals."""

from __future__ import annotations

import copy
import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.decide.escher import (
    SYSTEM,
    EscherAnswer,
    EscherInput,
    GangInput,
    NodeInput,
    TaskInput,
    UserInput,
    WishInput,
    decide_escher,
    escher_tables,
)
from cluster.engines.base import Task
from cluster.engines.local import LocalEngine
from configs.errors import ConfigError
from tests.support import documented

DOC = Path(__file__).parents[4] / "docs" / "decide.md"
near = partial(documented.near, rel=1e-6, abs=1e-6)


def blocks() -> dict[str, Any]:
    found = re.findall(r"<!-- example: (escher_\w+) -->\s*```json\n(.*?)```", DOC.read_text("utf-8"), re.DOTALL)
    return {name: json.loads(text) for name, text in found}


def example() -> dict[str, Any]:
    return copy.deepcopy(blocks()["escher_input"])


def test_the_documented_examples() -> None:
    told = blocks()
    near(told["escher_answer"], decide_escher(told["escher_input"]))
    near(told["escher_explain"], decide_escher(told["escher_input"], explain=True)["explain"])
    near(told["escher_shares_users"]["users"], decide_escher(told["escher_shares_input"])["users"])


def test_the_document_names_every_key() -> None:
    text = DOC.read_text("utf-8").split("\n## `escher`")[1]
    for model in (EscherInput, EscherAnswer, NodeInput, WishInput, TaskInput, GangInput, UserInput):
        assert [
            key for key in model.model_fields if f"{key}`" not in text and f"{key}[]" not in text and f"{key}." not in text
        ] == []


def test_the_command_line_finds_it() -> None:
    assert SYSTEM.decide is decide_escher
    assert SYSTEM.schema()["input"]["properties"].keys() == EscherInput.model_fields.keys()


def test_tables_tell_all() -> None:
    tables = escher_tables(decide_escher(example(), explain=True))
    assert [len(t.rows) for t in tables] == [6, 5, 3]
    assert all(len(row) == len(t.columns) for t in tables for row in t.rows)


def test_the_answer_is_what_the_engine_does() -> None:
    """The calls of the answer, made on the local engine: tasks run exactly where there was a node for them."""
    asked = example()
    asked["gangs"] = []
    asked["tasks"] = [t for t in asked["tasks"] if not t.get("preferences")]
    answer = decide_escher(asked)
    engine = LocalEngine({node["id"]: node["total"] for node in asked["nodes"]}, threads=False)
    engine.set_resource("seat", 1, "n1")
    engine.submit(Task(id="holder", demands={"seat": 1}))
    for call in answer["set"]:
        assert engine.set_resource(call["name"], call["capacity"], call["node"]) == call["in_force"]
    for task in asked["tasks"]:
        engine.submit(Task(id=task["id"], demands=task["demands"]))
    states = engine.status([t["id"] for t in asked["tasks"]])
    for told in answer["tasks"]:
        assert (states[told["id"]].state == "running") == (told["node"] is not None)
        assert told["node"] is None or states[told["id"]].node in told["eligible"]


def test_a_shrink_is_clamped_to_what_is_in_use() -> None:
    """Worked example 10, as it is since the resize call: 2 while 4 are held answers 4."""
    asked = {"nodes": [{"id": "n", "in_force": {"e": 5}, "used": {"e": 4}}], "wishes": [{"name": "e", "capacity": 2}]}
    assert decide_escher(asked)["set"] == [{"name": "e", "capacity": 2.0, "node": "n", "in_force": 4.0}]
    asked["wishes"] = []
    assert decide_escher(asked)["set"] == [{"name": "e", "capacity": 0.0, "node": "n", "in_force": 4.0}]


def test_a_lost_nodes_resource_moves_where_the_wish_allows_it() -> None:
    """Worked example 13."""
    asked = {
        "nodes": [{"id": "n1"}, {"id": "n2", "alive": False, "in_force": {"d": 1}}, {"id": "n3"}],
        "wishes": [{"name": "d", "capacity": 1, "nodes": ["n2", "n3"], "count": 1}],
        "tasks": [{"id": "t", "demands": {"d": 1}}],
    }
    answer = decide_escher(asked)
    assert [(c["node"], c["capacity"]) for c in answer["set"]] == [("n3", 1.0)]
    assert answer["tasks"][0]["node"] == "n3"


def test_gangs_hold_what_they_get_and_nothing_when_one_bundle_has_no_room() -> None:
    nodes = [{"id": "n1", "total": {"CPU": 4}}, {"id": "n2", "total": {"CPU": 4}}]
    gangs = [{"id": g, "bundles": [{"CPU": 4}] * size} for g, size in (("a", 3), ("b", 1), ("c", 2))]
    answer = decide_escher({"nodes": nodes, "gangs": gangs}, explain=True)
    assert [g["nodes"] for g in answer["gangs"]] == [None, ["n1"], None]
    assert ["empty" in g["why"] for g in answer["gangs"]] == [True, False, False]
    assert answer["explain"] == {"n1": {"CPU": 0.0}, "n2": {"CPU": 4.0}}


BAD: list[tuple[str, Any]] = [
    ("nodes", []),
    ("nodes", [{"id": "n"}, {"id": "n"}]),
    ("nodes", [{"id": "n", "total": {"made-up": 1}}]),
    ("nodes", [{"id": "n", "total": {"CPU": 1}, "used": {"CPU": 2}}]),
    ("nodes", [{"id": "n", "total": {"CPU": -1}}]),
    ("nodes", [{"id": "n", "in_force": {"CPU": 1}}]),
    ("wishes", [{"name": "GPU", "capacity": 1}]),
    ("wishes", [{"name": "Upper", "capacity": 1}]),
    ("wishes", [{"name": "a", "capacity": 1_000_001}]),
    ("wishes", [{"name": "a"}, {"name": "a"}]),
    ("users", [{"id": "a", "parent": "b"}]),
    ("users", [{"id": "a", "parent": "b"}, {"id": "b", "parent": "a"}]),
    ("users", [{"id": "a", "weight": 0}]),
    ("gangs", [{"id": "g", "bundles": []}]),
    ("gangs", [{"id": "g", "bundles": [{"CPU": 0}]}]),
    ("tasks", [{"id": "t", "demands": {"CPU": "1"}}]),
    ("tasks", [{"id": "t", "demands": {"CPU": True}}]),
    ("tasks", [{"id": "t"}, {"id": "t"}]),
    ("unknown", 1),
]


@pytest.mark.parametrize(("key", "value"), BAD, ids=[f"{k}-{n}" for n, (k, _) in enumerate(BAD)])
def test_what_is_wrong_is_refused_with_its_path(key: str, value: Any) -> None:
    asked = example()
    asked[key] = value
    with pytest.raises(ConfigError) as refused:
        decide_escher(asked)
    assert any(path.startswith(key) for path, _ in refused.value.problems)


bundles_of = st.dictionaries(st.sampled_from(["CPU", "a", "b"]), st.sampled_from([1.0, 2.0, 3.0]), min_size=1, max_size=2)
vectors = st.dictionaries(st.sampled_from(["CPU", "a", "b"]), st.sampled_from([1.0, 2.0, 3.0]), max_size=2)


@given(
    st.lists(st.tuples(st.sampled_from([0.0, 2.0, 4.0]), st.booleans()), min_size=1, max_size=4),
    st.lists(st.tuples(st.sampled_from(["a", "b"]), st.sampled_from([0.0, 1.0, 3.0])), max_size=2, unique_by=lambda w: w[0]),
    st.lists(vectors, max_size=5),
    st.lists(st.lists(bundles_of, min_size=1, max_size=2), max_size=2),
)
def test_nothing_is_given_out_twice(
    nodes: list[tuple[float, bool]], wishes: list[tuple[str, float]], tasks: list[dict], gangs: list[list[dict]]
) -> None:  # type: ignore[type-arg]
    asked = {
        "nodes": [{"id": f"n{n}", "alive": alive, "total": {"CPU": cpu}} for n, (cpu, alive) in enumerate(nodes)],
        "wishes": [{"name": name, "capacity": capacity} for name, capacity in wishes],
        "gangs": [{"id": f"g{n}", "bundles": bundles, "spread": False} for n, bundles in enumerate(gangs)],
        "tasks": [{"id": f"t{n}", "demands": demands} for n, demands in enumerate(tasks)],
    }
    answer = decide_escher(asked, explain=True)
    taken = [(t["node"], demands) for t, demands in zip(answer["tasks"], tasks, strict=True) if t["node"]]
    taken += [
        (node, bundle)
        for g, bundles in zip(answer["gangs"], gangs, strict=True)
        for node, bundle in zip(g["nodes"] or [], bundles, strict=False)
    ]
    for number, (cpu, alive) in enumerate(nodes):
        there = [demands for node, demands in taken if node == f"n{number}"]
        assert alive or not there
        for name, most in (("CPU", cpu), *wishes):
            assert sum(d.get(name, 0.0) for d in there) <= most
