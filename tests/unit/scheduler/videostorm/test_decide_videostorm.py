"""`decide videostorm`: the documented example, the contract of its JSON, its refusals."""

from __future__ import annotations

import copy
import itertools
import json
import math
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.errors import ConfigError
from scheduler.decide import SYSTEMS, decide, system
from scheduler.decide.videostorm import QueryInput, VideostormAnswer, VideostormInput, decide_videostorm, videostorm_tables
from tests.support import documented

DOC = Path(__file__).parents[4] / "docs" / "decide.md"

near = partial(documented.near, rel=1e-3, abs=2e-6)


def blocks() -> dict[str, Any]:
    found = re.findall(r"<!-- example: (videostorm_\w+) -->\s*```json\n(.*?)```", DOC.read_text("utf-8"), re.DOTALL)
    return {name: json.loads(text) for name, text in found}


def example() -> dict[str, Any]:
    return copy.deepcopy(blocks()["videostorm_input"])


def test_the_documented_example() -> None:
    told = blocks()
    near(told["videostorm_answer"], decide_videostorm(told["videostorm_input"]))
    near(told["videostorm_explain"], decide_videostorm(told["videostorm_input"], explain=True)["explain"])


def test_the_document_says_when_the_lent_share_goes_back() -> None:
    """Within half a minute: at a lag of 50 s the recording is served again."""
    later = example()
    later["queries"][2]["lag_s"] = 50
    answer = {query["id"]: query for query in decide_videostorm(later)["queries"]}
    assert answer["yard"]["share_pct"] > 0
    assert answer["door"]["option"] == "5 fps"


def test_the_document_names_every_key() -> None:
    text = DOC.read_text("utf-8").split("\n## `videostorm`")[1]
    for model in (VideostormInput, VideostormAnswer, QueryInput):
        assert [key for key in model.model_fields if f"{key}`" not in text and f"{key}[]" not in text] == []


def test_explained_answers_say_what_was_won_and_what_a_quantum_is_worth() -> None:
    answer = decide_videostorm(example(), explain=True)
    worth = {query["id"]: query for query in answer["explain"]["queries"]}
    fair = sum(query["utility"] - worth[query["id"]]["over_fair"] for query in answer["queries"])
    assert fair == pytest.approx(answer["explain"]["fair_utility"])
    assert worth["door"]["over_present"] == pytest.approx(0.4 - 0.3)  # '10 fps' for '5 fps'
    assert worth["hall"]["over_present"] is None
    # one less: 5 of 10 percent, half of the frames, 0.72 -> 0.36, below the goal of 0.5
    assert worth["hall"]["one_less"] == pytest.approx(0.22 + 4 * 0.14)
    tables = videostorm_tables(answer)
    assert tables[0].title.startswith("objective sum: utility 0.94")
    assert all(len(row) == len(table.columns) for table in tables for row in table.rows)


def test_reasons_tell_what_happens_to_each_query() -> None:
    given_ = example() | {"capacity_pct": 45}
    given_["queries"][2]["lag_s"] = 100
    whys = {query["id"]: query["why"] for query in decide_videostorm(given_)["queries"]}
    assert "keeps up" in whys["door"]
    assert "lag goes from 100.0 to" in whys["yard"]
    little = decide_videostorm(given_ | {"capacity_pct": 5})
    assert any("of its frames fit" in q["why"] for q in little["queries"])
    assert any(q["why"].startswith("paused") for q in little["queries"])
    assert set(little["unmet"]) == {q["id"] for q in little["queries"] if not q["met"]} == {"door", "hall", "yard"}


def test_the_callers_clock_measures_and_the_input_is_left_alone() -> None:
    given_, ticks = example(), itertools.count(5.0, 0.5)
    before = copy.deepcopy(given_)
    assert decide_videostorm(given_, clock=lambda: next(ticks))["plan_ms"] == 500.0
    assert decide_videostorm(given_)["plan_ms"] is None
    assert given_ == before


def test_it_is_one_of_the_systems() -> None:
    assert "videostorm" in SYSTEMS
    assert decide("videostorm", example()) == decide_videostorm(example())
    schema = system("videostorm").schema()
    assert schema["input"]["additionalProperties"] is False
    json.dumps(schema)


def problems_of(given_: Any) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        decide_videostorm(given_)
    return dict(caught.value.problems)


def test_all_problems_are_listed_at_once_with_their_paths() -> None:
    given_ = example() | {"quantum_pct": 0.0, "horizon_s": -1.0, "lag_goal_frac": 1.5, "bogus": 1, "objective": "mean"}
    given_["queries"][0]["options"][1]["quality"] = math.nan
    given_["queries"][0]["mu"] = 0.0
    given_["queries"][1]["lag_s"] = "3"
    given_["queries"][2]["options"] = []
    assert set(problems_of(given_)) == {
        "quantum_pct",
        "horizon_s",
        "lag_goal_frac",
        "bogus",
        "objective",
        "queries[0].options[1].quality",
        "queries[0].mu",
        "queries[1].lag_s",
        "queries[2].options",
    }


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"capacity_pct": -1.0}, "capacity_pct"),
        ({"capacity_pct": True}, "capacity_pct"),
        ({"capacity_pct": math.inf}, "capacity_pct"),
        ({"capacity_pct": 1e9, "quantum_pct": 1.0}, "quantum_pct"),
        ({"queries": None}, "queries"),
        ({"min_gain": -0.1}, "min_gain"),
    ],
)
def test_single_problems(change: dict[str, Any], path: str) -> None:
    assert set(problems_of(example() | change)) == {path}


def test_doubles_are_refused() -> None:
    given_ = example()
    given_["queries"][1]["id"] = "door"
    assert problems_of(given_) == {"queries": "two entries with the id 'door'"}
    given_ = example()
    given_["queries"][1]["options"][1]["name"] = "2 fps"
    assert problems_of(given_) == {"queries[1].options": "two entries with the name '2 fps'"}


@pytest.mark.parametrize("given_", [None, [], "text", 7])
def test_what_is_no_object_is_refused(given_: Any) -> None:
    assert set(problems_of(given_)) == {"(input)"}


def test_nobody_asks() -> None:
    answer = decide_videostorm({"capacity_pct": 100, "queries": []}, explain=True)
    assert (answer["spare_pct"], answer["lowest_utility"], answer["queries"]) == (100, None, [])


JUNK = st.sampled_from([None, True, -1, 0, 0.0, 1, 1e-9, 1e9, 1e308, math.nan, math.inf, "", "1", [], {}, [1.0], 10**30])


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_mutated_inputs_are_refused_with_a_path_or_decided_correctly(data: st.DataObject) -> None:
    given_ = example()
    for _ in range(data.draw(st.integers(1, 3))):
        _mutate(given_, data)
    answer = _answer_or_refusal(given_)
    if answer is None:
        return
    json.dumps(answer, allow_nan=False)
    total = math.fsum(query["share_pct"] for query in answer["queries"]) + answer["spare_pct"]
    assert total == pytest.approx(given_["capacity_pct"])


def _answer_or_refusal(given_: dict[str, Any]) -> dict[str, Any] | None:
    """The answer, or None after a refusal that names its paths; any other exception passes through."""
    try:
        return decide_videostorm(given_, explain=True)
    except ConfigError as error:
        return None if error.problems else {}


def _mutate(given_: dict[str, Any], data: st.DataObject) -> None:
    """Replace one value somewhere by junk."""
    here: Any = given_
    while True:
        keys = list(here) if isinstance(here, dict) else list(range(len(here)))
        if not keys:
            return
        key = data.draw(st.sampled_from(keys))
        if not isinstance(here[key], (dict, list)) or data.draw(st.booleans()):
            here[key] = data.draw(JUNK)
            return
        here = here[key]
