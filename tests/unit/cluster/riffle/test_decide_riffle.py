"""`decide riffle`: the documented example, R4, R7 and R8 through the command's door, its refusals."""

from __future__ import annotations

import copy
import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.decide.riffle import SYSTEM, FetchAnswer, MapInput, RiffleAnswer, RiffleInput, decide_riffle, riffle_tables
from configs.errors import ConfigError
from tests.support import documented

DOC = Path(__file__).parents[4] / "docs" / "decide.md"
near = partial(documented.near, rel=1e-6, abs=1e-6)


def blocks() -> dict[str, Any]:
    found = re.findall(r"<!-- example: (riffle_\w+) -->\s*```json\n(.*?)```", DOC.read_text("utf-8"), re.DOTALL)
    return {name: json.loads(text) for name, text in found}


def example() -> dict[str, Any]:
    return copy.deepcopy(blocks()["riffle_input"])


def test_the_documented_example() -> None:
    told = blocks()
    near(told["riffle_answer"], decide_riffle(told["riffle_input"]))
    near(told["riffle_explain"], decide_riffle(told["riffle_input"], explain=True)["explain"])
    assert told["riffle_answer"]["recompute"] == [6]


def test_the_document_names_every_key() -> None:
    text = DOC.read_text("utf-8").split("\n## `riffle`")[1]
    for model in (RiffleInput, RiffleAnswer, MapInput, FetchAnswer):
        assert [
            key for key in model.model_fields if f"{key}`" not in text and f"{key}[]" not in text and f"{key}." not in text
        ] == []


def maps(count: int, size_bytes: float = 100.0, done_s: float = 100.0) -> list[dict[str, Any]]:
    return [{"id": id, "size_bytes": size_bytes, "done_s": done_s} for id in range(1, count + 1)]


def test_r4() -> None:
    kb = (300, 1200, 400, 200, 150, 900, 100, 50, 700)
    outputs = [{"id": n, "size_bytes": 102_400.0 * k, "done_s": float(n)} for n, k in enumerate(kb, start=1)]
    answer = decide_riffle({"reducers": 100, "block_bytes": 1024.0 * 1024, "gate": False, "maps": outputs})
    assert [m["maps"] for m in answer["merges"]] == [[1, 3, 4, 5], [6, 7, 8]]
    assert (answer["files_per_reducer"], answer["requests"]["plain"]) == (4, 900)


@pytest.mark.parametrize(("threshold", "start", "files"), [(0.95, 400, 10), (0.9, 150, 13), (0.8, 108, 16), (0.5, 100, 25)])
def test_r7(threshold: float, start: float, files: int) -> None:
    asked = {"reducers": 10, "files": 4, "gate": False, "maps": maps(40), "threshold": threshold, "small_counts": False,
             "merged_s": [60.0, 70.0, 80.0, 90.0, 95.0, 102.0, 104.0, 108.0, 150.0, 400.0]}  # fmt: skip
    answer = decide_riffle(asked)
    assert (answer["stage"]["start_s"], answer["files_per_reducer"]) == (start, files)


def test_r8() -> None:
    asked = {"reducers": 10, "files": 4, "gate": False, "maps": maps(8), "merged_s": [100.0, None]}
    for more, files, recompute in (
        ({}, 5, []),
        ({"lost_merges": [0]}, 8, []),
        ({"lost_merges": [0], "lost_maps": [6]}, 8, [6]),
    ):
        answer = decide_riffle(asked | more)
        assert (answer["files_per_reducer"], answer["recompute"]) == (files, recompute)


@pytest.mark.parametrize(
    ("change", "told"),
    [({"files": None}, "files or block_bytes"), ({"block_bytes": 5.0}, "files or block_bytes"), ({"maps": []}, "maps"),
     ({"lost_maps": [99]}, "no map task 99"), ({"reducers": 0}, "reducers"), ({"what": 1}, "what"), ({"threshold": 1.1}, "threshold"),
     ({"maps": maps(2) + maps(1)}, "two entries with the id '1'"), ({"files": 1}, "files"), ({"reducers": "3"}, "reducers")],
)  # fmt: skip
def test_refusals_name_their_place(change: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)):
        decide_riffle(example() | change)


def test_merges_that_never_end_are_said() -> None:
    answer = decide_riffle({"reducers": 2, "files": 2, "gate": False, "maps": maps(4), "merged_s": [5.0], "threshold": 1.0})
    assert answer["stage"] == {"start_s": None, "merged": 1, "cancelled": 1}


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 30), st.integers(2, 6), st.lists(st.one_of(st.none(), st.floats(0, 300)), max_size=15),
    st.lists(st.integers(1, 30), max_size=5), st.lists(st.integers(0, 9), max_size=4), st.booleans(),
)  # fmt: skip
def test_every_map_output_is_read_once_or_made_again(count, files, merged_s, lost_maps, lost_merges, left_overs) -> None:
    asked = {"reducers": 7, "files": files, "gate": False, "left_overs": left_overs, "maps": maps(count), "merged_s": merged_s,
             "lost_maps": [id for id in lost_maps if id <= count], "lost_merges": lost_merges, "max_wait_s": 10.0}  # fmt: skip
    answer = decide_riffle(asked)
    read = [id for fetch in answer["fetch"] for id in fetch["maps"]]
    assert sorted(read) == list(range(1, count + 1))
    assert set(answer["recompute"]) <= set(asked["lost_maps"])


def test_tables_and_schema_hold() -> None:
    answer = decide_riffle(example(), lambda: 1.0, explain=True)
    assert answer["plan_ms"] == 0
    assert [len(t.rows) for t in riffle_tables(answer)] == [2, 6]
    assert SYSTEM.schema()["answer"]["properties"].keys() == answer.keys()
