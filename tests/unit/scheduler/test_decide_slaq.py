"""`decide slaq`: the documented example, the contract of its JSON, its refusals."""

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
from scheduler.decide.slaq import JobInput, SlaqAnswer, SlaqInput, decide_slaq, slaq_tables
from tests.support import documented

DOC = Path(__file__).parents[3] / "docs" / "decide.md"


def blocks() -> dict[str, Any]:
    found = re.findall(r"<!-- example: (slaq_\w+) -->\s*```json\n(.*?)```", DOC.read_text("utf-8"), re.DOTALL)
    return {name: json.loads(text) for name, text in found}


near = partial(documented.near, rel=1e-3, abs=2e-6)


def example() -> dict[str, Any]:
    return copy.deepcopy(blocks()["slaq_input"])


def test_the_documented_example() -> None:
    told = blocks()
    near(told["slaq_answer"], decide_slaq(told["slaq_input"]))
    near(told["slaq_explain"], decide_slaq(told["slaq_input"], explain=True)["explain"])
    assert [job["pct"] for job in told["slaq_answer"]["jobs"]] == [100, 600, 100]  # S3 of the card, C = 8


def test_the_document_names_every_key() -> None:
    text = DOC.read_text("utf-8").split("\n## `slaq`")[1]
    for model in (SlaqInput, SlaqAnswer):
        assert [key for key in model.model_fields if f"{key}`" not in text and f"{key}[]." not in text] == []
    assert [key for key in JobInput.model_fields if f"{key}`" not in text] == []


def test_explained_answers_say_what_a_quantum_is_worth() -> None:
    """one_more is what the same job has more in `gain` when it gets one more, all else held still."""
    given_ = example()
    answer = decide_slaq(given_, explain=True)
    worth = {job["id"]: job for job in answer["explain"]["jobs"]}
    more = decide_slaq(given_ | {"total_pct": 900}, explain=True)
    assert more["total_gain"] - answer["total_gain"] == pytest.approx(worth["J2"]["one_more"])
    less = decide_slaq(given_ | {"total_pct": 700})
    assert answer["total_gain"] - less["total_gain"] == pytest.approx(worth["J2"]["one_less"])
    assert "explain" not in decide_slaq(given_)
    titles = [table.title for table in slaq_tables(answer)]
    assert titles[0].startswith("objective sum")
    assert all(len(row) == len(table.columns) for table in slaq_tables(answer) for row in table.rows)


def test_the_callers_clock_measures_and_the_input_is_left_alone() -> None:
    given_, ticks = example(), itertools.count(5.0, 0.5)
    before = copy.deepcopy(given_)
    assert decide_slaq(given_, clock=lambda: next(ticks))["plan_ms"] == 500.0
    assert decide_slaq(given_)["plan_ms"] is None
    assert given_ == before


def test_it_is_one_of_the_systems() -> None:
    assert "slaq" in SYSTEMS
    assert decide("slaq", example()) == decide_slaq(example())
    schema = system("slaq").schema()
    assert schema["input"]["additionalProperties"] is False
    json.dumps(schema)


def test_deadlines_and_targets_reach_the_decision() -> None:
    given_ = example()
    for job, left, ends_s in zip(given_["jobs"], (5, 40, 20), (60.0, 100.0, 10.0), strict=True):
        job |= {"epochs_left": left, "deadline_s": ends_s}
    answer = {job["id"]: job for job in decide_slaq(given_)["jobs"]}
    assert answer["J1"]["need_pct"] == 200  # 100 GPU-seconds in 60 s
    assert answer["J2"]["need_pct"] == 400
    assert (answer["J3"]["can_end"], answer["J3"]["need_pct"], answer["J3"]["pct"]) == (False, None, 0)
    assert "cannot end in time" in answer["J3"]["why"]
    # one after another: J2 removes more in all, but J1's remaining fifth comes sooner per GPU-second
    finish = {job["id"]: job for job in decide_slaq(given_ | {"objective": "finish"})["jobs"]}
    assert (finish["J1"]["pct"], finish["J2"]["pct"], finish["J3"]["can_end"]) == (700, 100, False)
    given_ = example()
    given_["jobs"][0] |= {"curve": "unknown", "target": 0.6}
    assert decide_slaq(given_)["jobs"][0]["curve"]["asymptote"] == 0.6


def problems_of(given_: Any) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        decide_slaq(given_)
    return dict(caught.value.problems)


def test_all_problems_are_listed_at_once_with_their_paths() -> None:
    given_ = example() | {
        "quantum_pct": 0,
        "epoch_s": 0.0,
        "bogus": 1,
        "decay": 1.5,
        "window": 2,
        "speed": [[0, 1.0], [100, 1]],
    }
    given_["jobs"][0]["losses"][3] = math.nan
    given_["jobs"][1]["gpu_s_per_epoch"] = -1.0
    given_["jobs"][1]["deadline_s"] = 5.0
    given_["jobs"][2]["curve"] = "cubic"
    given_["jobs"][2]["weight"] = "1"
    assert set(problems_of(given_)) == {
        "quantum_pct",
        "epoch_s",
        "bogus",
        "decay",
        "window",
        "speed",
        "jobs[0].losses[3]",
        "jobs[1].gpu_s_per_epoch",
        "jobs[1].deadline_s",
        "jobs[2].curve",
        "jobs[2].weight",
    }


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"total_pct": -1}, "total_pct"),
        ({"total_pct": True}, "total_pct"),
        ({"total_pct": 10_000_000, "quantum_pct": 1}, "quantum_pct"),
        ({"quantum_pct": 2.5}, "quantum_pct"),
        ({"now_s": math.inf}, "now_s"),
        ({"age_s": 0.0}, "age_s"),
        ({"jobs": None}, "jobs"),
        ({"objective": "max"}, "objective"),
        ({"objective": "finish"}, "jobs"),
    ],
)
def test_single_problems(change: dict[str, Any], path: str) -> None:
    assert set(problems_of(example() | change)) == {path}


def test_doubles_and_a_cap_below_a_quantum() -> None:
    given_ = example()
    given_["jobs"][1]["id"] = "J1"
    assert problems_of(given_) == {"jobs": "two entries with the id 'J1'"}
    given_ = example()
    given_["jobs"][1]["max_pct"] = 50
    assert "'J2': max_pct 50" in problems_of(given_)["jobs"]


@pytest.mark.parametrize("given_", [None, [], "text", 7])
def test_what_is_no_object_is_refused(given_: Any) -> None:
    assert set(problems_of(given_)) == {"(input)"}


@pytest.mark.parametrize("jobs", [[], [{"id": "a", "losses": [], "gpu_s_per_epoch": 1.0}]])
def test_little_is_divided_correctly(jobs: list[dict[str, Any]]) -> None:
    answer = decide_slaq({"total_pct": 100, "quantum_pct": 30, "epoch_s": 1.0, "jobs": jobs})
    assert answer["spare_pct"] == (10 if jobs else 100)
    assert sum(job["pct"] for job in answer["jobs"]) + answer["spare_pct"] == 100


#: What a careless or hostile sender may put anywhere.
JUNK = st.sampled_from(
    [None, True, -1, 0, 0.0, -0.5, 1, 1e-9, 1e12, 1e308, -1e308, math.nan, math.inf, -math.inf, "", "1", [], {}, [1.0], 10**30]
)


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_mutated_inputs_are_refused_with_a_path_or_decided_correctly(data: st.DataObject) -> None:
    given_ = example()
    given_["jobs"][2]["losses"] = given_["jobs"][2]["losses"][:8]
    for _ in range(data.draw(st.integers(1, 3))):
        _mutate(given_, data)
    answer = _answer_or_refusal(given_)
    if answer is None:
        return
    text = json.dumps(answer)
    assert "NaN" not in text
    assert "Infinity" not in text
    assert sum(job["pct"] for job in answer["jobs"]) + answer["spare_pct"] == given_["total_pct"]
    assert all(job["pct"] >= (job["need_pct"] or 0) for job in answer["jobs"])


def _answer_or_refusal(given_: dict[str, Any]) -> dict[str, Any] | None:
    """The answer, or None after a refusal that names its paths; any other exception passes through."""
    try:
        return decide_slaq(given_, explain=True)
    except ConfigError as error:
        refused = error.problems
    assert refused
    assert all(path for path, _ in refused)
    return None


def _mutate(given_: dict[str, Any], data: st.DataObject) -> None:
    """Put junk at the top, into a job, or into its losses."""
    jobs = given_.get("jobs")
    holds = [job for job in jobs if isinstance(job, dict)] if isinstance(jobs, list) else []
    where = data.draw(st.sampled_from(["top", "job", "loss"] if holds else ["top"]))
    if where == "top":
        given_[data.draw(st.sampled_from(sorted(SlaqInput.model_fields)))] = data.draw(JUNK)
        return
    job = data.draw(st.sampled_from(holds))
    losses = job.get("losses")
    if where == "loss" and isinstance(losses, list) and losses:
        losses[data.draw(st.integers(0, len(losses) - 1))] = data.draw(JUNK)
    else:
        job[data.draw(st.sampled_from(sorted(JobInput.model_fields)))] = data.draw(JUNK)
