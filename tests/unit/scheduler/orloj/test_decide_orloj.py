"""`decide orloj`: the documented example, the contract of its JSON, its refusals."""

from __future__ import annotations

import copy
import itertools
import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from configs.errors import ConfigError
from scheduler.decide import SYSTEMS, decide, system
from scheduler.decide.orloj import OrlojAnswer, OrlojInput, decide_orloj, orloj_tables
from scheduler.orloj.registry import POLICIES
from tests.support import documented

DOC = Path(__file__).parents[4] / "docs" / "decide.md"
near = partial(documented.near, rel=1e-3, abs=2e-6)


def blocks() -> dict[str, Any]:
    found = re.findall(r"<!-- example: (orloj_\w+) -->\s*```json\n(.*?)```", DOC.read_text("utf-8"), re.DOTALL)
    return {name: json.loads(text) for name, text in found}


def example() -> dict[str, Any]:
    return copy.deepcopy(blocks()["orloj_input"])


def test_the_documented_example() -> None:
    told = blocks()
    near(told["orloj_answer"], decide_orloj(told["orloj_input"]))
    near(told["orloj_explain"], decide_orloj(told["orloj_input"], explain=True)["explain"])


def test_what_the_document_says_of_other_policies() -> None:
    printed = decide_orloj(example() | {"policy": "orloj-printed"})
    assert len(printed["dropped"]) == 5
    assert sum(len(batch["requests"]) for batch in printed["batches"]) == 2
    edf = decide_orloj(example() | {"policy": "edf"})
    assert edf["batches"][0]["requests"] == [7]
    assert sum(len(batch["requests"]) for batch in edf["batches"]) == 4


def test_the_document_names_every_key() -> None:
    text = DOC.read_text("utf-8").split("\n## `orloj`")[1]
    for model in (OrlojInput, OrlojAnswer):
        assert [key for key in model.model_fields if f"{key}`" not in text and f"{key}[]" not in text] == []


def test_the_scores_are_those_of_a_request_alone() -> None:
    told = {r["id"]: r for r in decide_orloj(example(), explain=True)["explain"]}
    assert told[7] == {"id": 7, "slack_s": pytest.approx(0.015), "chance_alone": 0.0, "score_alone": 0.0}
    assert told[2]["score_alone"] > told[3]["score_alone"] > told[5]["score_alone"]  # earlier deadlines a little more
    stranger = example()
    stranger["requests"][0]["app"] = "yard"
    assert decide_orloj(stranger, explain=True)["explain"][0]["chance_alone"] is None


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_accounts_for_every_request(policy: str) -> None:
    answer = decide_orloj(example() | {"policy": policy, "batches": 100})
    ids = [id_ for batch in answer["batches"] for id_ in batch["requests"]] + answer["dropped"] + answer["waiting"]
    assert sorted(ids) == [1, 2, 3, 4, 5, 6, 7]


def test_the_callers_clock_measures_and_the_input_is_left_alone() -> None:
    given, ticks = example(), itertools.count(5.0, 0.5)
    before = copy.deepcopy(given)
    assert decide_orloj(given, clock=lambda: next(ticks))["decide_ms"] == 500.0
    assert given == before


def test_tables_for_people() -> None:
    tables = orloj_tables(decide_orloj(example(), explain=True))
    assert "dropped" in tables[0].title
    assert {row[-1] for row in tables[1].rows} >= {"dropped", "batch 1"}
    assert all(len(row) == len(table.columns) for table in tables for row in table.rows)


def test_it_is_one_of_the_systems() -> None:
    assert "orloj" in SYSTEMS
    assert decide("orloj", example()) == decide_orloj(example())
    json.dumps(system("orloj").schema())


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"now_s": float("nan")}, "now_s"),
        ({"policy": "best"}, "policy"),
        ({"batches": 0}, "batches"),
        ({"speed": 1}, "speed"),
        ({"models": []}, "models"),
    ],
)
def test_wrong_inputs_are_refused_with_their_path(change: dict[str, Any], path: str) -> None:
    with pytest.raises(ConfigError, match=path):
        decide_orloj(example() | change)


def test_wrong_models_and_requests_are_refused() -> None:
    given = example()
    given["models"][0]["sizes"] = [2, 4]
    with pytest.raises(ConfigError, match="ascend from 1"):
        decide_orloj(given)
    given = example()
    given["requests"][1]["id"] = 1
    given["requests"][2]["model"] = "nobody"
    with pytest.raises(ConfigError, match="no model 'nobody'.*1 is there twice"):
        decide_orloj(given)
    given = example()
    given["models"][0]["apps"][1]["app"] = "door"
    with pytest.raises(ConfigError, match="door"):
        decide_orloj(given)
