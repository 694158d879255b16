"""`decide ekya`: the contract of its JSON, its refusals, and the documented example."""

from __future__ import annotations

import copy
import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from configs.errors import ConfigError, UsageError
from scheduler.decide import SYSTEMS, EkyaAnswer, EkyaInput, decide, decide_ekya, system
from scheduler.registry import known_policies

DOC = Path(__file__).parents[3] / "docs" / "decide.md"

CONTRACT_POLICIES = ("thief", "thief-repeat", "optimal", "uniform", "fixed-resources", "fixed-config", "no-retrain")

CONTRACT_INPUT = """
{"window": {"seconds": 200.0, "overhead_s": 2.0}, "capacity_pct": 300, "quantum_pct": 10, "min_quality": 0.4,
 "estimate": "static", "policy": "thief",
 "streams": [{"id": "A", "quality": 0.65,
   "knobs":   [{"name": "full", "demand_pct": 25, "quality_frac": 1.0},
               {"name": "half", "demand_pct": 12, "quality_frac": 0.78}],
   "retrain": [{"name": "cfg1", "end_quality": 0.75, "cost_gpu_s": 85.0}]}],
 "speed": [[0, 0.0], [100, 1.0]]}
"""


def contract_input(**changes: Any) -> dict[str, Any]:
    return json.loads(CONTRACT_INPUT) | changes


def blocks() -> dict[str, Any]:
    found = re.findall(r"<!-- example: (\w+) -->\s*```json\n(.*?)```", DOC.read_text("utf-8"), re.DOTALL)
    return {name: json.loads(text) for name, text in found}


def near(documented: Any) -> Any:
    """The same, its numbers as printed."""
    if isinstance(documented, dict):
        return {key: near(value) for key, value in documented.items()}
    if isinstance(documented, list):
        return [near(value) for value in documented]
    return pytest.approx(documented, abs=1e-6) if isinstance(documented, float) else documented


@pytest.mark.parametrize("name", ["", "gpus_"])
def test_the_documented_examples(name: str) -> None:
    told = blocks()
    assert decide_ekya(told[f"{name}input"]) == near(told[f"{name}answer"])


def test_the_documented_explanation() -> None:
    told = blocks()
    assert near(told["explain_job"]) in decide_ekya(told["gpus_input"], explain=True)["explain"]["jobs"]


def test_what_the_document_says_about_the_two_gpus() -> None:
    given = blocks()["gpus_input"]
    pool = decide_ekya({key: value for key, value in given.items() if key != "gpus"})
    assert (pool["streams"][2]["retrain"], pool["streams"][2]["expected_quality"]) == ("big batch", pytest.approx(0.74))
    for gpu in given["gpus"]:
        del gpu["memory_mib"]
    assert decide_ekya(given)["streams"] == pool["streams"], "and no word of a pool where the GPUs made no difference"


def test_the_document_names_every_policy_and_key() -> None:
    text = DOC.read_text("utf-8")
    for name in known_policies():
        assert f"`{name}`" in text.replace("uniform(CONFIG,W)", "uniform(CONFIG,INFER_PCT)"), name
    assert all(f"`{name}`" in text for name in SYSTEMS)
    for model in (EkyaInput, EkyaAnswer):
        for key in model.model_fields:
            assert key in text


@pytest.mark.parametrize("policy", CONTRACT_POLICIES)
@pytest.mark.parametrize("estimate", ["static", "hand-back"])
def test_every_policy_of_the_contract_answers(policy: str, estimate: str) -> None:
    answer = decide_ekya(contract_input(policy=policy, estimate=estimate))
    assert answer["policy"] == policy
    assert sum(s["infer_pct"] + s["train_pct"] for s in answer["streams"]) + answer["spare_pct"] == 300
    assert {"id", "knobs", "infer_pct", "retrain", "train_pct", "expected_quality", "below_floor"} <= answer["streams"][
        0
    ].keys()
    assert answer["expected_quality"] <= answer["optimal_quality"] + 1e-9
    json.dumps(answer)


def test_what_is_expected_is_the_formula() -> None:
    answer = decide_ekya(contract_input())
    entry = answer["streams"][0]
    assert (entry["infer_pct"], entry["train_pct"], entry["retrain"]) == (30, 270, "cfg1")
    taken_s = 85 / 2.7
    assert entry["retrain_s"] == pytest.approx(taken_s)
    assert entry["expected_quality"] == pytest.approx((0.65 * taken_s + 0.75 * (198 - taken_s)) / 198)


def test_the_callers_clock_measures_the_policy() -> None:
    ticks = itertools.count(10.0, 0.25)
    assert decide_ekya(contract_input(), clock=lambda: next(ticks))["plan_ms"] == 250.0
    assert decide_ekya(contract_input())["plan_ms"] is None


def test_the_input_is_left_alone() -> None:
    given = contract_input()
    before = copy.deepcopy(given)
    decide_ekya(given)
    assert given == before


def test_only_window_capacity_quantum_and_streams_are_required() -> None:
    given = contract_input()
    for key in ("min_quality", "estimate", "policy", "speed"):
        del given[key]
    assert decide_ekya(given)["policy"] == "thief-repeat"


def test_a_running_retraining_says_that_it_is_paused() -> None:
    given = contract_input(capacity_pct=30)
    given["streams"][0]["running"] = "cfg1"
    entry = decide_ekya(given)["streams"][0]
    assert entry["retrain"] is None
    assert "paused" in entry["why"]


def test_a_whole_number_may_be_written_with_a_point() -> None:
    assert decide_ekya(contract_input(capacity_pct=300.0)) == decide_ekya(contract_input())


def problems_of(given: Any) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        decide_ekya(given)
    assert caught.value.exit_code == 2
    return dict(caught.value.problems)


def test_all_problems_are_listed_at_once_with_their_paths() -> None:
    given = contract_input(policy="theif", bogus=1, quantum_pct=500, speed=[[0, 0.5], [100, 1]], min_quality=float("nan"))
    given["window"]["overhead_s"] = 300.0
    given["streams"][0]["quality"] = "0.5"
    given["streams"][0]["knobs"][1]["name"] = "full"
    given["streams"][0]["retrain"][0]["cost"] = 4
    given["streams"][0]["running"] = "cfg9"
    found = problems_of(given)
    assert set(found) == {
        "policy",
        "bogus",
        "quantum_pct",
        "speed",
        "min_quality",
        "window.overhead_s",
        "streams[0].quality",
        "streams[0].knobs",
        "streams[0].retrain[0].cost",
        "streams[0].running",
    }
    assert "thief-repeat" in found["policy"]
    assert "two entries" in found["streams[0].knobs"]


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"capacity_pct": 0}, "capacity_pct"),
        ({"capacity_pct": 99.5}, "capacity_pct"),
        ({"capacity_pct": True}, "capacity_pct"),
        ({"quantum_pct": 0}, "quantum_pct"),
        ({"capacity_pct": 100_000, "quantum_pct": 1}, "quantum_pct"),
        ({"estimate": "dynamic"}, "estimate"),
        ({"speed": [[0, 0.0, 1.0]]}, "speed[0]"),
        ({"streams": None}, "streams"),
        ({"window": {}}, "window.seconds"),
    ],
)
def test_single_problems(change: dict[str, Any], path: str) -> None:
    assert set(problems_of(contract_input(**change))) == {path}


def test_two_streams_with_one_id() -> None:
    given = contract_input()
    given["streams"] *= 2
    assert problems_of(given) == {"streams": "two entries with the id 'A'"}


@pytest.mark.parametrize("given", [None, [], "text", 7])
def test_what_is_no_object_is_refused(given: Any) -> None:
    assert set(problems_of(given)) == {"(input)"}


def test_systems_and_their_schemas() -> None:
    assert decide("ekya", contract_input()) == decide_ekya(contract_input())
    schema = system("ekya").schema()
    assert schema["input"]["additionalProperties"] is False
    assert set(schema["answer"]["required"]) >= {"policy", "expected_quality", "plan_ms", "spare_pct", "streams"}
    json.dumps(schema)
    with pytest.raises(UsageError, match="unknown system 'eyka'"):
        decide("eyka", {})
