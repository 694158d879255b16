"""`decide cilantro`: the documented example, the contract of its JSON, its refusals."""

from __future__ import annotations

import copy
import json
import math
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.cilantro.pipeline import StageRound, next_units
from cluster.decide.cilantro import (
    SYSTEM,
    CilantroAnswer,
    CilantroInput,
    CustomerAnswer,
    CustomerInput,
    StageAnswer,
    StageRoundInput,
    StagesInput,
    cilantro_tables,
    decide_cilantro,
)
from configs.errors import ConfigError
from tests.support import documented

DOC = Path(__file__).parents[4] / "docs" / "decide.md"
near = partial(documented.near, rel=1e-3, abs=1e-4)


def blocks() -> dict[str, Any]:
    found = re.findall(r"<!-- example: (cilantro_\w+) -->\s*```json\n(.*?)```", DOC.read_text("utf-8"), re.DOTALL)
    return {name: json.loads(text) for name, text in found}


def example() -> dict[str, Any]:
    return copy.deepcopy(blocks()["cilantro_input"])


def test_the_documented_example() -> None:
    told = blocks()
    near(told["cilantro_answer"], decide_cilantro(told["cilantro_input"]))
    near(told["cilantro_explain"], decide_cilantro(told["cilantro_input"], explain=True)["explain"])
    assert [c["share_pct"] for c in told["cilantro_answer"]["customers"]] == [10, 25, 25]  # W1 of the card


def test_the_other_objectives_as_the_document_tells() -> None:
    sw, ew = (decide_cilantro(example() | {"objective": o})["customers"] for o in ("sw", "ew"))
    assert [c["share_pct"] for c in sw] == [10, 49, 1]
    felt = [c["predicted_utility"] for c in ew]
    assert max(felt) - min(felt) < 0.06
    assert [c["share_pct"] for c in ew] == [4, 20, 36]


def test_the_document_names_every_key() -> None:
    text = DOC.read_text("utf-8").split("\n## `cilantro`")[1]
    for model in (CilantroInput, CilantroAnswer, CustomerInput, CustomerAnswer, StagesInput, StageRoundInput, StageAnswer):
        assert [key for key in model.model_fields if f"{key}`" not in text and f"{key}[]" not in text] == []


def test_reports_are_learned() -> None:
    """1 - exp(-x) at a load of 10: 0.8 needs 16.1 pct."""
    reports = [
        {"alloc_pct": a, "load": 10.0, "value": 1 - math.exp(-a / 10), "sigma": 0.01, "end_s": float(i)}
        for i, a in enumerate([5.0, 10.0, 15.0, 16.0, 17.0, 20.0] * 3)
    ]
    answer = decide_cilantro(
        {"capacity_pct": 100, "now_s": 20, "customers": [{"id": "a", "goal": 0.8, "reports": reports}]}, explain=True
    )
    assert answer["customers"][0]["share_pct"] == pytest.approx(17, abs=1)
    assert answer["spare_pct"] == pytest.approx(100 - answer["customers"][0]["share_pct"])
    curve = answer["explain"][0]["curve"]
    assert curve[0]["middle"] < curve[1]["middle"] <= curve[2]["middle"]


def test_silence_is_told() -> None:
    reports = [{"alloc_pct": 10.0, "load": 10.0, "value": 0.5, "end_s": float(i)} for i in range(5)]
    given_ = {"capacity_pct": 100, "now_s": 5000, "customers": [{"id": "a", "reports": reports, "stated_pct": 30}]}
    assert "silent for 4996 s" in decide_cilantro(given_)["customers"][0]["why"]


def test_groups_box_and_variants() -> None:
    tree = {
        "capacity_pct": 90, "groups": [{"path": ["x"], "weight": 2}],
        "customers": [{"id": "a", "path": ["x"]}, {"id": "b", "path": ["x"]}, {"id": "c", "path": ["y"]}],
    }  # fmt: skip
    assert [c["share_pct"] for c in decide_cilantro(tree)["customers"]] == pytest.approx([30, 30, 30])
    boxed = example() | {"objective": "sw", "variant": "published"}
    boxed["customers"][2] |= {"curve": [[0, 0], [1, 0.9]], "load": 90, "stated_pct": None}
    for one in boxed["customers"]:
        one["before_pct"] = 20
    assert [c["share_pct"] for c in decide_cilantro(boxed)["customers"]] == [10, 30, 20]  # W1 with the box


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"capacity_pct": 0}, "capacity_pct"),
        ({"capacity_pct": math.nan}, "capacity_pct"),
        ({"objective": "nash"}, "objective"),
        ({"customers": []}, "customers"),
        ({"surprise": 1}, "surprise"),
        ({"customers": [{"id": "a"}, {"id": "a"}]}, "customers"),
        ({"customers": [{"id": "A b"}]}, "customers[0].id"),
        ({"customers": [{"id": "a", "goal": 1.5}]}, "customers[0].goal"),
        ({"customers": [{"id": "a", "load": 3}]}, "customers[0].load"),
        ({"customers": [{"id": "a", "curve": [[1, 0.5], [0, 0.9]]}]}, "customers[0].curve"),
        (
            {"customers": [{"id": "a", "reports": [{"alloc_pct": -1, "load": 1, "value": 0.5, "end_s": 0}]}]},
            "customers[0].reports[0].alloc_pct",
        ),
    ],
)
def test_refusals_name_the_path(change: dict[str, Any], path: str) -> None:
    with pytest.raises(ConfigError) as refused:
        decide_cilantro(example() | change)
    assert path in [where for where, _ in refused.value.problems]


def test_tables_and_schema() -> None:
    tables = cilantro_tables(decide_cilantro(example(), explain=True))
    assert [row[0] for row in tables[0].rows] == ["shop", "car-park", "station"]
    assert len(tables[1].rows) == 2  # the station has no curve
    assert SYSTEM.schema()["input"]["additionalProperties"] is False
    assert decide_cilantro(example(), clock=iter([1.0, 1.5]).__next__)["plan_ms"] == pytest.approx(500)


# --- stages of one application ----------------------------------------------------------------------------------------


def rounds_of(work: list[float], splits: list[list[float]]) -> list[dict[str, Any]]:
    """What each split comes to when a stage takes its work over its share."""
    return [{"share_pct": one, "value": -sum(w / s for w, s in zip(work, one, strict=True))} for one in splits]


def test_the_documented_stages() -> None:
    """The same functions that the benchmark plays; the first rounds are fair, the same input gives the same answer."""
    told = blocks()
    asked = told["cilantro_stages_input"]
    answer = decide_cilantro(asked)
    near(told["cilantro_stages_answer"], answer)
    direct = next_units(
        [StageRound(units=tuple(r["share_pct"]), load=1.0, value=r["value"]) for r in asked["stages"]["rounds"]],
        stages=3, total=60, load=1.0, seed=0,
    )  # fmt: skip
    assert [one["share_pct"] for one in answer["stages"]] == direct.tolist()
    first = decide_cilantro(asked | {"stages": {"ids": ["decode", "detect", "label"]}}, explain=True)
    assert [one["share_pct"] for one in first["stages"]] == [20, 20, 20]
    assert [row[0] for row in cilantro_tables(first)[0].rows] == ["decode", "detect", "label"]


def test_stages_move_to_who_works_most() -> None:
    splits = [[a, 60.0 - a] for a in (30.0, 30.0, 10.0, 50.0, 20.0, 4.0, 56.0, 15.0, 40.0)]
    asked = {"capacity_pct": 60, "stages": {"ids": ["a", "b"], "rounds": rounds_of([1.0, 9.0], splits)}}
    a, b = (one["share_pct"] for one in decide_cilantro(asked)["stages"])
    assert a + b == 60
    assert 8 <= a <= 24  # the best is 15 and 45: shares by the root of the work


@pytest.mark.parametrize(
    ("asked", "path"),
    [
        ({"capacity_pct": 60, "customers": [{"id": "x"}], "stages": {"ids": ["a", "b"]}}, "customers"),
        ({"capacity_pct": 60, "stages": {"ids": ["a"]}}, "stages.ids"),
        ({"capacity_pct": 60, "stages": {"ids": ["a", "a"]}}, "stages.ids"),
        ({"capacity_pct": 7, "stages": {"ids": ["a", "b"]}}, "stages"),
        ({"capacity_pct": 60, "quantum_pct": 0.001, "stages": {"ids": ["a", "b"]}}, "stages"),
        ({"capacity_pct": 60, "stages": {"ids": ["a", "b"], "rounds": [{"share_pct": [1, 2, 3], "value": 1}]}}, "stages.rounds"),
        ({"capacity_pct": 60, "stages": {"ids": ["a", "b"], "rounds": [{"share_pct": [1, 2], "value": math.inf}]}},
         "stages.rounds[0].value"),
    ],
)  # fmt: skip
def test_refusals_of_stages(asked: dict[str, Any], path: str) -> None:
    with pytest.raises(ConfigError) as refused:
        decide_cilantro(asked)
    assert path in [where for where, _ in refused.value.problems]


@settings(max_examples=40, deadline=None)
@given(
    st.floats(1, 1e5), st.sampled_from(["sw", "ew", "njc", "fair"]), st.sampled_from(["ours", "published", "released"]),
    st.lists(st.tuples(st.floats(0.01, 1), st.floats(0.01, 100), st.floats(0.1, 50), st.floats(0.01, 500)), min_size=1, max_size=6),
)  # fmt: skip
def test_the_sum_is_always_the_capacity(
    capacity: float, objective: str, variant: str, customers: list[tuple[float, float, float, float]]
) -> None:
    given_ = {
        "capacity_pct": capacity, "objective": objective, "variant": variant,
        "customers": [
            {"id": f"c{i}", "goal": goal, "load": load, "curve": [[0, 0], [reach, 1]], "at_least_pct": least}
            for i, (goal, reach, load, least) in enumerate(customers)
        ],
    }  # fmt: skip
    answer = decide_cilantro(given_)
    assert math.fsum(c["share_pct"] for c in answer["customers"]) + answer["spare_pct"] == pytest.approx(capacity)
    assert min(c["share_pct"] for c in answer["customers"]) > 0
