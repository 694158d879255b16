"""`decide salus`: the documented examples, the contract of its JSON, its refusals."""

from __future__ import annotations

import copy
import itertools
import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.errors import ConfigError
from scheduler.decide import SYSTEMS, decide, system
from scheduler.decide.salus import (
    EventInput,
    OrderAnswer,
    OrderInput,
    OrderJobInput,
    SalusAnswer,
    SalusInput,
    StepAnswer,
    decide_salus,
    salus_tables,
)
from scheduler.salus import POLICIES
from tests.support import documented

DOC = Path(__file__).parents[4] / "docs" / "decide.md"


def section() -> str:
    return DOC.read_text("utf-8").split("\n## `salus`")[1].split("\n## ")[0]


def blocks() -> dict[str, Any]:
    found = re.findall(r"<!-- example: (salus_\w+) -->\s*```json\n(.*?)```", section(), re.DOTALL)
    return {name: json.loads(text) for name, text in found}


near = partial(documented.near, rel=1e-6, abs=1e-6)


def lanes() -> dict[str, Any]:
    return copy.deepcopy(blocks()["salus_lanes_input"])


def order() -> dict[str, Any]:
    return copy.deepcopy(blocks()["salus_order_input"])


def both() -> dict[str, Any]:
    return lanes() | order()


def test_the_documented_examples() -> None:
    told = blocks()
    near(told["salus_lanes_answer"], decide_salus(lanes()))
    near(told["salus_order_answer"], decide_salus(order()))
    near(told["salus_explain"], decide_salus(both(), explain=True)["explain"])


def test_the_lanes_example_is_t1_of_the_card_and_the_order_t4() -> None:
    steps = blocks()["salus_lanes_answer"]["steps"]
    assert [(s["persistent_mib"], s["lanes"], s["total_mib"]) for s in steps] == [
        (1, {"1": 6}, 7),
        (2, {"1": 6, "2": 4}, 12),
        (3, {"1": 6, "2": 4}, 13),
        (4, {"1": 7, "2": 4}, 15),
        (4, {"1": 7, "2": 4}, 15),
        (4.5, {"1": 6, "2": 4}, 14.5),
        (3.5, {"1": 5, "2": 4}, 12.5),
    ]
    told = {p["policy"]: p["mean_jct_s"] for p in blocks()["salus_explain"]["policies"]}
    assert (told["srtf"], told["fifo"]) == (6.6, 10.975)


def test_the_document_names_every_key_and_policy() -> None:
    text = section()
    for model in (SalusInput, EventInput, OrderInput, OrderJobInput, SalusAnswer, StepAnswer, OrderAnswer):
        assert [
            key for key in model.model_fields if f"{key}`" not in text and f"{key}[]" not in text and f"`{key}." not in text
        ] == []
    assert [name for name in POLICIES if f"| `{name}` |" not in text] == []


def test_it_is_one_of_the_systems() -> None:
    assert "salus" in SYSTEMS
    near(decide_salus(both()), decide("salus", both()))
    schema = system("salus").schema()
    assert set(schema["input"]["properties"]) >= {"capacity_mib", "events", "order"}
    assert "steps" in schema["answer"]["properties"]
    json.dumps(schema)


def test_the_callers_clock_measures_and_the_input_is_left_alone() -> None:
    given_, ticks = both(), itertools.count(5.0, 0.5)
    before = copy.deepcopy(given_)
    assert decide_salus(given_, lambda: next(ticks))["plan_ms"] == 500.0
    assert given_ == before
    assert decide_salus(given_)["plan_ms"] is None
    assert "explain" not in decide_salus(given_)


def test_explained_answers_are_tables() -> None:
    for given_ in (lanes(), order(), both()):
        tables = salus_tables(decide_salus(given_, explain=True))
        assert all(len(row) == len(table.columns) for table in tables for row in table.rows)
    titles = [table.title for table in tables]
    assert titles[0].startswith("lanes")
    assert titles[1].startswith("srtf: mean job completion time 6.6 s")
    assert "best number of lanes: 1, which admits 5 jobs" in titles
    rows = tables[0].rows
    assert ("arrive", "H", "placed", "C", 1, "4", "1: 7, 2: 4", "15", "shares lane 1, which grows to 7 MiB") in rows


def test_an_answer_to_one_question_says_null_to_the_other() -> None:
    assert decide_salus(lanes())["order"] is None
    assert decide_salus(order())["steps"] is None
    assert decide_salus({"capacity_mib": 1, "events": []})["steps"] == []
    told = decide_salus({"capacity_mib": 1, "events": []}, explain=True)["explain"]
    assert told == {"best_cap": None, "policies": []}


def test_iterations_resizes_and_slides_can_be_asked_about() -> None:
    need = {"persistent_mib": 1.0, "ephemeral_mib": 4.0}
    events = [
        {"event": "arrive", "job": "A", "need": need},
        {"event": "arrive", "job": "B", "need": need},
        {"event": "begin", "job": "B"},
        {"event": "finish", "job": "A"},
        {"event": "resize", "job": "B", "need": {"persistent_mib": 1.0, "ephemeral_mib": 5.0}},
        {"event": "end", "job": "B"},
    ]
    steps = decide_salus({"capacity_mib": 10, "events": events})["steps"]
    assert steps[3]["holes"] == [[0.0, 4.0]]
    assert steps[4]["decisions"][0]["kind"] == "noted"
    assert steps[5]["slides"] == [{"lane": 2, "from_mib": 4.0, "to_mib": 0.0, "held_mib": 5.0}]
    assert steps[5]["holes"] == []


def test_memory_counts_in_the_order_too() -> None:
    jobs = [
        {"id": "A", "iterations": 5, "iteration_s": 1.0, "need": {"persistent_mib": 4, "ephemeral_mib": 4}},
        {"id": "liar", "iterations": 5, "iteration_s": 1.0, "need": {"persistent_mib": 1, "ephemeral_mib": 1}}
        | {"truth": {"persistent_mib": 1, "ephemeral_mib": 20}},
    ]
    told = decide_salus({"capacity_mib": 10, "order": {"max_lanes": None, "jobs": jobs}})["order"]
    assert [(j["id"], j["fate"]) for j in told["jobs"]] == [("A", "done"), ("liar", "removed")]
    assert "was promised" in told["jobs"][1]["why"]
    assert (told["out_of_memory"], told["peak_mib"] <= 10) == (0, True)


# --- refusals ---------------------------------------------------------------------------------------------------------


def refused(given_: Any) -> dict[str, str]:
    with pytest.raises(ConfigError) as error:
        decide_salus(given_)
    return dict(error.value.problems)


@pytest.mark.parametrize(
    ("path", "value", "where"),
    [
        (("capacity_mib",), -1, "capacity_mib"),
        (("capacity_mib",), "16", "capacity_mib"),
        (("max_lanes",), 0, "max_lanes"),
        (("age_limit_s",), -1.0, "age_limit_s"),
        (("surprise",), 1, "surprise"),
        (("events", 0, "event"), "leave", "events[0].event"),
        (("events", 0, "need", "persistent_mib"), float("nan"), "events[0].need.persistent_mib"),
        (("events", 0, "job"), "", "events[0].job"),
        (("events", 5, "need"), {"persistent_mib": 1, "ephemeral_mib": 1}, "events[5].need"),
        (("order", "policy"), "lottery", "order.policy"),
        (("order", "jobs"), [], "order.jobs"),
        (("order", "jobs", 0, "iterations"), 0, "order.jobs[0].iterations"),
        (("order", "jobs", 0, "iterations"), 30_000, "order.jobs[0].iterations"),
        (("order", "jobs", 0, "iteration_s"), 0.0, "order.jobs[0].iteration_s"),
        (("order", "jobs", 1, "id"), "J0", "order.jobs"),
        (("order", "jobs", 0, "share_pct"), 0, "order.jobs[0].share_pct"),
        (("order", "width"), 0.5, "order.width"),
    ],
)
def test_a_bad_value_is_refused_by_its_path(path: tuple[str | int, ...], value: Any, where: str) -> None:
    given_: Any = both()
    inner = given_
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    problems = refused(given_)
    assert where in problems
    if path[-1] == "policy":
        assert all(name in problems[where] for name in POLICIES)


def test_asking_nothing_is_refused() -> None:
    assert "asks nothing" in refused({"capacity_mib": 1})["(input)"]
    assert "resize says which need" in refused({"capacity_mib": 1, "events": [{"event": "resize", "job": "A"}]})["events[0]"]
    assert (
        "at most 20000"
        in refused(
            {
                "capacity_mib": 1,
                "order": {"jobs": [{"id": f"J{i}", "iterations": 15_000, "iteration_s": 1.0} for i in range(2)]},
            }
        )["order.jobs"]
    )


@pytest.mark.parametrize(
    ("event", "said"),
    [
        ({"event": "finish", "job": "X"}, "'X' is not in the table"),
        ({"event": "end", "job": "A"}, "no iteration of job 'A' is running"),
        ({"event": "begin", "job": "I"}, "waits for memory"),
        ({"event": "expel", "job": "I"}, "holds no memory"),
        ({"event": "arrive", "job": "A"}, "in the table already"),
    ],
)
def test_an_event_that_cannot_happen_is_refused_by_its_place(event: dict[str, Any], said: str) -> None:
    given_ = lanes()
    given_["events"] = [*given_["events"][:5], event]
    assert said in refused(given_)["events[5]"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 40) | st.floats(-1, 1e9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=4,
)


def places(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return (
        [path, *(p for key, item in inner for p in places(item, (*path, key)))]
        if path
        else [p for key, item in inner for p in places(item, (*path, key))]
    )


def answer_or_refusal(given_: Any, *, explain: bool) -> dict[str, Any] | None:
    """None: refused, and every problem has a path."""
    try:
        return decide_salus(given_, explain=explain)
    except ConfigError as error:
        problems = error.problems
    assert problems
    assert all(path for path, _ in problems)
    return None


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_mutated_inputs_are_refused_with_a_path_or_decided_safely(data: st.DataObject) -> None:
    given_: Any = both()
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(places(given_)))
        inner = given_
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = data.draw(JSON)
    answer = answer_or_refusal(given_, explain=data.draw(st.booleans()))
    if answer is None:
        return
    text = json.dumps(answer)
    assert "NaN" not in text
    assert "Infinity" not in text
    for step in answer["steps"] or []:
        assert step["total_mib"] <= given_["capacity_mib"] + 1e-5
        assert step["total_mib"] == pytest.approx(step["persistent_mib"] + sum(step["lanes"].values()))
    assert answer["order"] is None or answer["order"]["out_of_memory"] == 0
