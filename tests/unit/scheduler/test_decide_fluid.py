"""`decide fluid`: the documented examples, the contract of its JSON, its refusals."""

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
from scheduler.decide.fluid import FluidAnswer, FluidInput, TrialInput, decide_fluid, fluid_tables
from tests.support import documented

DOC = Path(__file__).parents[3] / "docs" / "decide.md"


def blocks() -> dict[str, Any]:
    found = re.findall(r"<!-- example: (fluid_\w+) -->\s*```json\n(.*?)```", DOC.read_text("utf-8"), re.DOTALL)
    return {name: json.loads(text) for name, text in found}


near = partial(documented.near, rel=1e-3, abs=1e-9)


def example() -> dict[str, Any]:
    return copy.deepcopy(blocks()["fluid_input"])


def refused(given_: Any) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        decide_fluid(given_)
    return dict(caught.value.problems)


def test_the_documented_examples() -> None:
    told = blocks()
    near(told["fluid_answer"], decide_fluid(told["fluid_input"]))
    near(told["fluid_explain"], decide_fluid(told["fluid_input"], explain=True)["explain"])
    near(told["fluid_running"], decide_fluid(told["fluid_running_input"])["running"])
    later = decide_fluid(told["fluid_input"] | {"dynamic": True})
    assert later["makespan_s"]["fluid"] == pytest.approx(10.5), "as the text below the example says"


def test_the_document_names_every_key() -> None:
    text = DOC.read_text("utf-8").split("\n## `fluid`")[1]
    for model in (FluidInput, FluidAnswer):
        assert [k for k in model.model_fields if f"{k}`" not in text and f"{k}[]" not in text and f"`{k}." not in text] == []
    assert [k for k in TrialInput.model_fields if f"{k}`" not in text] == []


def test_the_callers_clock_measures_and_the_input_is_left_alone() -> None:
    given_, ticks = example(), itertools.count(5.0, 0.5)
    before = copy.deepcopy(given_)
    assert decide("fluid", given_, lambda: next(ticks))["plan_ms"] == 500.0
    assert given_ == before
    assert "explain" not in decide_fluid(given_)


def test_answers_fit_their_schema_and_tables_their_columns() -> None:
    assert SYSTEMS["fluid"] is system("fluid")
    running = blocks()["fluid_running_input"]
    for given_ in (example(), running):
        answer = decide_fluid(given_, explain=True)
        FluidAnswer.model_validate(answer)
        for table in fluid_tables(answer):
            assert table.rows
            assert all(len(row) == len(table.columns) for row in table.rows)


def test_c_and_d_come_from_what_was_measured_and_from_memory() -> None:
    """F3: c = 3 of the measured times; two GPUs that take 0.6 of one's time make beta 1.2, so that three would still help."""
    given_ = example() | {"sharing": "actual"}
    del given_["share_max"], given_["width_max"]
    bare = decide_fluid(given_)
    assert (bare["share_max"], bare["width_max"]) == (1, 1)
    given_["measured"] = {"packed_iteration_s": [0.100, 0.120, 0.150, 0.210], "scaled_run_s": [10.0, 6.0, 4.8, 4.32, 4.1472]}
    answer = decide_fluid(given_)
    assert (answer["share_max"], answer["width_max"]) == (3, 4)
    assert answer["packing"]["gains"] == pytest.approx([2 / 5, 1 / 6, -1 / 20])
    assert answer["packing"]["alpha"] == pytest.approx(1.5**0.5), "over the c that is used"
    assert answer["packing"]["beta"] == pytest.approx(1.2)
    given_["memory"] = {"capacity_mib": 5000, "persistent_mib": 300, "ephemeral_mib": 2000}
    capped = decide_fluid(given_)
    assert (capped["share_max"], capped["packing"]["memory_share_max"]) == (2, 2)
    given_["memory"]["resident_mib"] = 6000
    assert decide_fluid(given_)["share_max"] == 1


@pytest.mark.parametrize(
    ("second_s", "gain_min", "width"), [(8.0, 0.1, 2), (8.0, 0.25, 1), (9.5, 0.1, 1), (9.5, 0.0, 2), (7.0, 0.5, 2)]
)
def test_two_gpus_are_allowed_where_they_save_as_much_as_is_asked(second_s: float, gain_min: float, width: int) -> None:
    """The text's range ends at beta = 1.5 (7.5 of 10 seconds); a box has the same rule (docs/trials.md)."""
    given_ = example() | {"gain_min": gain_min, "measured": {"scaled_run_s": [10.0, second_s]}}
    del given_["width_max"]
    answer = decide_fluid(given_)
    assert answer["width_max"] == width
    assert answer["packing"]["beta"] == pytest.approx(second_s / 5)


def test_overheads_of_the_trials_themselves_count_too() -> None:
    given_ = example() | {"sharing": "actual"}
    del given_["share_max"], given_["width_max"]
    given_["trials"] = [t | {"alpha": 1.2, "beta": 1.25} for t in given_["trials"]]
    answer = decide_fluid(given_)
    assert (answer["share_max"], answer["width_max"]) == (3, 3)


def test_where_packing_does_not_pay_trials_run_one_per_gpu() -> None:
    given_ = {"gpus": 2, "share_max": 2, "trials": [{"id": str(i), "seconds": 5, "alpha": 2.5} for i in range(4)]}
    answer = decide_fluid(given_)
    assert answer["way"] == "fifo"
    assert {t["width"] for t in answer["trials"]} == {1.0}
    assert (answer["makespan_s"]["fifo"], answer["makespan_s"]["fluid"]) == (10.0, 10.0), "the leftover pass unpacked them all"
    assert decide_fluid(given_ | {"leftover": False})["makespan_s"] == {"one-by-one": 20.0, "fifo": 10.0, "fluid": 12.5}


def test_an_empty_group_is_done_at_once() -> None:
    answer = decide_fluid({"gpus": 2, "trials": []}, explain=True)
    assert (answer["makespan_s"]["fluid"], answer["trials"], answer["busy_frac"]) == (0.0, [], 0.0)
    assert fluid_tables(answer)[0].rows == []


@pytest.mark.parametrize(
    ("changes", "path", "words"),
    [
        ({"gpus": 0}, "gpus", "greater"),
        ({"gpus": 65}, "gpus", "less"),
        ({"share_max": 0}, "share_max", "greater"),
        ({"width_max": 1.5}, "width_max", "integer"),
        ({"gain_min": 1.0}, "gain_min", "less"),
        ({"epsilon_s": -1}, "epsilon_s", "greater"),
        ({"epsilon_s": float("nan")}, "epsilon_s", "finite"),
        ({"sharing": "fair"}, "sharing", "actual"),
        ({"trials": [{"id": "a", "seconds": -1}]}, "trials[0].seconds", "greater"),
        ({"trials": [{"id": "a", "seconds": 1, "alpha": 0.5}]}, "trials[0].alpha", "greater"),
        ({"trials": [{"id": "a", "seconds": 1}] * 2}, "trials", "two entries"),
        ({"trials": [{"id": "a", "seconds": 1, "gpu": 1}]}, "trials[0].gpu", "not permitted"),
        ({"measured": {"packed_iteration_s": [0.0]}}, "measured.packed_iteration_s[0]", "greater"),
        ({"memory": {"capacity_mib": 1}}, "memory.persistent_mib", "required"),
        ({"running": [{"id": "a", "width": 1}]}, "running", "every trial"),
        ({"running": [{"id": t, "width": 0.4} for t in "abcd"]}, "running", "1/p"),
        ({"running": [{"id": t, "width": 2} for t in "abcd"]}, "(input)", "more than 5 GPUs"),
    ],
)
def test_what_is_wrong_is_refused_by_its_path(changes: dict[str, Any], path: str, words: str) -> None:
    problems = refused(example() | changes)
    assert path in problems, problems
    assert words in problems[path]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 99) | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(list(FluidInput.model_fields)), inner, max_size=4)
    ),
    max_leaves=8,
)


@settings(max_examples=60)
@given(JSON)
def test_any_json_is_refused_or_decided(data: Any) -> None:
    try:
        FluidAnswer.model_validate(decide_fluid(data))
    except ConfigError as error:
        told = error.problems
    else:
        told = (("", "decided"),)
    assert told


TRIALS = st.lists(
    st.fixed_dictionaries(
        {"seconds": st.floats(0, 1e3)}, optional={"alpha": st.floats(1, 3), "beta": st.floats(1, 3)}
    ),
    max_size=8,
)  # fmt: skip


@settings(max_examples=60)
@given(TRIALS, st.integers(1, 6), st.booleans(), st.booleans(), st.sampled_from(["actual", "nominal"]), st.floats(0, 5))
def test_every_valid_group_is_decided(
    trials: list[dict[str, Any]], gpus: int, dynamic: bool, leftover: bool, sharing: str, epsilon_s: float
) -> None:
    given_: dict[str, Any] = {
        "gpus": gpus, "dynamic": dynamic, "leftover": leftover, "sharing": sharing, "epsilon_s": epsilon_s,
        "trials": [{"id": f"t{i}", **t} for i, t in enumerate(trials)],
    }  # fmt: skip
    answer = decide_fluid(given_)
    assert [t["id"] for t in answer["trials"]] == [t["id"] for t in given_["trials"]]
    soonest = answer["makespan_s"][answer["way"]]
    assert soonest <= min(answer["makespan_s"].values()) * (1 + 1e-8) + 1e-12
    assert max((t["end_s"] for t in answer["trials"]), default=0.0) == soonest
