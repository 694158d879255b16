"""`decide ekya` and whatever it may be given: refused with the field's path, or planned correctly; never anything else."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.errors import ConfigError
from scheduler.decide import EkyaAnswer, decide_ekya
from scheduler.decide.ekya import MAX_STREAMS
from scheduler.decide.ekya import tables as ekya_tables
from scheduler.decide.inputs import TOLD_MOST, no_doubles
from scheduler.registry import POLICIES

NAN, INF = float("nan"), float("inf")

GOOD: dict[str, Any] = {
    "window": {"seconds": 200.0, "overhead_s": 2.0},
    "capacity_pct": 200,
    "quantum_pct": 10,
    "min_quality": 0.3,
    "estimate": "static",
    "policy": "thief-repeat",
    "gpus": [{"id": "left", "capacity_pct": 100, "memory_mib": 8000}, {"id": "right", "memory_mib": None}],
    "speed": [[0, 0.0], [50, 0.7], [100, 1.0]],
    "train_max_pct": 100,
    "network": {"up_mbps": 10.0, "down_mbps": 20.0, "up_mb": 100.0, "down_mb": 200.0},
    "streams": [
        {
            "id": "A",
            "quality": 0.65,
            "knobs": [
                {"name": "full", "demand_pct": 25, "quality_frac": 1.0, "memory_mib": 1500},
                {"name": "half", "demand_pct": 12, "quality_frac": 0.78},
            ],
            "retrain": [
                {"name": "cfg1", "end_quality": 0.75, "cost_gpu_s": 85.0, "quality_sd": 0.05, "memory_mib": 3000},
                {"name": "cfg2", "end_quality": 0.70, "cost_gpu_s": 15.0},
            ],
            "traits": {"class_frac": [0.5, 0.5], "objects_per_frame": 2.5, "daypart": "am", "place": "gate"},
            "cached": [{"name": "old", "traits": {"daypart": "am"}}],
        },
        {
            "id": "B",
            "quality": 0.5,
            "knobs": [{"name": "full", "demand_pct": 25, "quality_frac": 1.0, "memory_mib": 1500}],
            "retrain": [{"name": "cfg1", "end_quality": 0.8, "cost_gpu_s": 30.0, "memory_mib": 3000}],
            "running": "cfg1",
        },
    ],
}

Path = tuple[str | int, ...]


def changed(path: Path, value: Any) -> dict[str, Any]:
    """A copy of the good input with one value replaced."""
    given_: Any = copy.deepcopy(GOOD)
    inner = given_
    for part in path[:-1]:
        inner = inner[part]
    inner[path[-1]] = value
    return given_


def text_of(path: Path) -> str:
    return "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in path).removeprefix(".")


def problems_of(given_: Any) -> dict[str, str]:
    with pytest.raises(ConfigError) as caught:
        decide_ekya(given_)
    return dict(caught.value.problems)


def check_answer(given_: dict[str, Any], answer: dict[str, Any]) -> None:
    """Everything that a plan promises, from the JSON alone."""
    assert json.loads(json.dumps(answer, allow_nan=False)) == answer
    EkyaAnswer.model_validate(answer)
    streams = {s["id"]: s for s in given_["streams"]}
    assert [s["id"] for s in answer["streams"]] == list(streams)
    shares = [s[kind] for s in answer["streams"] for kind in ("infer_pct", "train_pct")]
    assert min([*shares, answer["spare_pct"]]) >= 0
    assert sum(shares) + answer["spare_pct"] == given_["capacity_pct"]
    left_s = given_["window"]["seconds"] - given_["window"].get("overhead_s", 0.0)
    for entry in answer["streams"]:
        assert 0 <= entry["expected_quality"] <= 1 + 1e-12
        if entry["retrain_s"] is not None:
            assert entry["retrain_s"] <= left_s
        assert entry["source"] != "box" or (entry["retrain"] is None) == (entry["train_pct"] == 0)
    for gpu in given_.get("gpus", ()):
        here = [p["share_pct"] for p in answer["placement"] if p["gpu"] == gpu["id"]]
        assert sum(here) <= gpu.get("capacity_pct", 100)
    if given_.get("gpus"):
        assert sum(p["share_pct"] for p in answer["placement"]) == sum(shares)


# --- refused, with the path -----------------------------------------------------------------------------------------------

NUMBERS: list[tuple[Path, list[Any]]] = [
    (("window", "seconds"), [0, -1.0, 5e-324, 1e10]),
    (("window", "overhead_s"), [-1.0, 200.0, 300.0]),
    (("capacity_pct",), [0, -100, 99.5, 10**30, 1e300]),
    (("quantum_pct",), [0, -5, 2.5, 201]),
    (("min_quality",), [-0.1, 1.1]),
    (("train_max_pct",), [0, -1, 10**9]),
    (("gpus", 0, "capacity_pct"), [0, -1, 101, 50.5]),
    (("gpus", 0, "memory_mib"), [-1.0, 1e30]),
    (("network", "up_mbps"), [0, -1.0]),
    (("network", "down_mb"), [-1.0]),
    (("streams", 0, "quality"), [-0.1, 1.0001]),
    (("streams", 0, "knobs", 1, "demand_pct"), [-1.0, 1e9]),
    (("streams", 0, "knobs", 1, "quality_frac"), [-0.1, 1.1]),
    (("streams", 0, "knobs", 1, "memory_mib"), [-1.0]),
    (("streams", 0, "retrain", 0, "end_quality"), [-0.1, 1.1]),
    (("streams", 0, "retrain", 0, "cost_gpu_s"), [-1.0, 1e300]),
    (("streams", 0, "retrain", 0, "quality_sd"), [-0.1, 1.1]),
    (("streams", 0, "retrain", 0, "memory_mib"), [-1.0]),
    (("streams", 0, "traits", "objects_per_frame"), [-1.0]),
    (("streams", 0, "traits", "class_frac", 1), [-0.5, 1.5]),
]
NEVER_A_NUMBER: list[Any] = [NAN, INF, -INF, "1", "", True, [], {}, [1], 10**400]


@pytest.mark.parametrize(
    ("path", "value"), [(path, value) for path, values in NUMBERS for value in (*values, *NEVER_A_NUMBER)], ids=str
)
def test_a_bad_number_is_refused_by_its_path(path: Path, value: Any) -> None:
    assert text_of(path) in problems_of(changed(path, value))


@pytest.mark.parametrize(
    ("path", "value", "refused"),
    [
        (("speed",), [[0, 0.0], [100, 1.0], [50, 1.2]], "speed"),
        (("speed",), [[0, 0.0], [50, 1.1], [100, 1.0]], "speed"),
        (("speed",), [[0, 0.0], [50, -0.1], [100, 1.0]], "speed"),
        (("speed",), [[0, 0.0], [50, 0.5]], "speed"),
        (("speed",), [[0, NAN], [100, 1.0]], "speed[0][1]"),
        (("speed",), [[]], "speed[0]"),
        (("streams", 0, "knobs"), [], "streams[0].knobs"),
        (("streams", 0, "knobs"), None, "streams[0].knobs"),
        (("streams", 0, "knobs"), {}, "streams[0].knobs"),
        (("streams", 0, "id"), "", "streams[0].id"),
        (("streams", 0, "id"), "B", "streams"),
        (("streams", 0, "id"), "x" * 300, "streams[0].id"),
        (("streams", 0, "id"), 7, "streams[0].id"),
        (("streams", 0, "knobs", 1, "name"), "full", "streams[0].knobs"),
        (("streams", 0, "retrain", 1, "name"), "cfg1", "streams[0].retrain"),
        (("streams", 0, "cached"), [{"name": "m", "traits": {}}] * 2, "streams[0].cached"),
        (("streams", 0, "running"), "cfg1", "streams[0].running"),
        (("streams", 1, "running"), "cfg2", "streams[1].running"),
        (("streams", 1, "retrain"), [], "streams[1].running"),
        (("streams",), [], None),
        (("gpus", 1, "id"), "left", "gpus"),
        (("gpus", 1, "capacity_pct"), 90, "gpus"),
        (("gpus",), [{"id": "left"}], "gpus"),
        (("capacity_pct",), 300, "gpus"),
        (("policy",), "best", "policy"),
        (("policy",), "uniform(high,101)", "policy"),
        (("estimate",), "guess", "estimate"),
        (("window",), None, "window"),
        (("window", "sekunden"), 3, "window.sekunden"),
        (("network",), {"up_mbps": 1.0}, "network.down_mbps"),
    ],
)
def test_a_bad_entry_is_refused_by_its_path(path: Path, value: Any, refused: str | None) -> None:
    given_ = changed(path, value)
    if refused is None:
        check_answer(given_, decide_ekya(given_))
    else:
        assert refused in problems_of(given_)


def test_running_retrainings_that_no_memory_can_hold_are_refused() -> None:
    given_ = changed(("streams", 1, "retrain", 0, "memory_mib"), 9000.0)
    given_["gpus"][1]["memory_mib"] = 8000.0
    assert "do not fit into the memory" in problems_of(given_)["gpus"]


def test_a_long_list_of_problems_is_told_in_part_and_kept_in_full() -> None:
    given_ = copy.deepcopy(GOOD)
    given_["streams"] = [{"id": f"s{n}", "quality": 7, "knobs": []} for n in range(50)]
    with pytest.raises(ConfigError) as caught:
        decide_ekya(given_)
    assert len(caught.value.problems) == 100
    assert f"and {100 - TOLD_MOST} more" in caught.value.message
    assert caught.value.message.count("streams[") == TOLD_MOST


def test_doubles_are_found_in_linear_time() -> None:
    names = [str(n) for n in range(200_000)]  # a quadratic search would take hours
    no_doubles(names, "id")
    with pytest.raises(ValueError, match="two entries with the id '199999'"):
        no_doubles([*names, "199999"], "id")


# --- odd, but planned -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [*POLICIES, "uniform", "cached(time)"])
@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("streams", 0, "knobs", 0, "demand_pct"), 150.0),  # above a GPU, within two
        (("streams", 0, "knobs", 0, "demand_pct"), 900.0),  # above everything
        (("streams", 0, "knobs", 1, "demand_pct"), 0.0),
        (("streams", 0, "retrain", 0, "end_quality"), 0.1),  # below the present
        (("streams", 0, "retrain", 0, "cost_gpu_s"), 0.0),
        (("streams", 0, "retrain", 0, "cost_gpu_s"), 1e12),  # never ends
        (("streams", 1, "retrain", 0, "cost_gpu_s"), 1e9),  # running, and cannot end any more
        (("streams", 0, "retrain"), []),
        (("streams", 0, "quality"), 0.0),
        (("streams", 0, "quality"), 1),
        (("streams", 0, "retrain", 0, "quality_sd"), 1.0),
        (("min_quality",), 1.0),  # nobody reaches it
        (("window",), {"seconds": 0.001}),
        (("window",), {"seconds": 1e9, "overhead_s": 999_999_999.9}),
        (("capacity_pct",), 200.0),
        (("quantum_pct",), 200),
        (("quantum_pct",), 7),
        (("streams", 0, "knobs", 0, "memory_mib"), 50_000.0),
        (("gpus", 0, "memory_mib"), 0.0),
        (("gpus",), []),
        (("network",), None),
        (("train_max_pct",), None),
    ],
    ids=str,
)
def test_odd_inputs_are_planned(path: Path, value: Any, policy: str) -> None:
    given_ = changed(path, value) | {"policy": policy}
    check_answer(given_, decide_ekya(given_))


def test_ten_thousand_cameras_are_planned() -> None:
    stream = {"quality": 0.5, "knobs": [{"name": "full", "demand_pct": 1, "quality_frac": 1.0}]}
    given_ = {
        "window": {"seconds": 100.0},
        "capacity_pct": 1000,
        "quantum_pct": 10,
        "streams": [{"id": f"s{n}", **stream} for n in range(10_000)],
    }
    check_answer(given_, decide_ekya(given_))


def test_more_cameras_than_that_are_refused() -> None:
    stream = {"id": "s", "quality": 0.5, "knobs": [{"name": "full", "demand_pct": 1, "quality_frac": 1.0}]}
    given_ = GOOD | {"streams": [stream] * (MAX_STREAMS + 1)}
    assert "streams" in problems_of(given_)


# --- anything at all ------------------------------------------------------------------------------------------------------

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(-3, 300), st.floats(), st.floats(0, 1), st.text(max_size=5),
    st.sampled_from([10**400, -0.0, 5e-324, 1e308, "A", "cfg1", "full", "optimal", "hand-back", "\ud800"]),
)  # fmt: skip
anything = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=8,
)


def places(value: Any, at: Path = ()) -> list[Path]:
    """Every path into a JSON value."""
    items: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path for key, inner in items for path in ((*at, key), *places(inner, (*at, key)))]


@st.composite
def mutated(draw: st.DrawFn) -> dict[str, Any]:
    """The good input after a few accidents: values replaced, dropped, doubled or added."""
    given_ = copy.deepcopy(GOOD) | {"policy": draw(st.sampled_from([*POLICIES, "uniform(low,30)"]))}
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(places(given_)))
        inner: Any = given_
        for part in path[:-1]:
            inner = inner[part]
        accident = draw(st.sampled_from(["replace", "replace", "drop", "add"]))
        if accident == "replace":
            inner[path[-1]] = draw(anything)
        elif accident == "drop":
            del inner[path[-1]]
        elif isinstance(inner, list):
            inner.append(copy.deepcopy(inner[-1]))
        else:
            inner[draw(st.text(max_size=5))] = draw(anything)
        if not places(given_):
            break
    return given_


def asked(given_: Any) -> tuple[dict[str, Any] | None, tuple[tuple[str, str], ...]]:
    """(answer, no problems) or (None, problems); any other end of the call is the test's."""
    try:
        return decide_ekya(given_, explain=True), ()
    except ConfigError as refused:
        return None, refused.problems


def decided(given_: Any) -> None:
    """A refusal with paths, or an answer that keeps every promise."""
    answer, problems = asked(given_)
    if answer is None:
        assert problems
        assert all(path and text for path, text in problems)
        return
    check_answer(given_, answer)
    for job in answer["explain"]["jobs"]:
        assert all(math.isfinite(job[key]["quality"]) for key in ("one_more", "one_less", "net") if job[key] is not None)
    for table in ekya_tables(answer):
        assert all(len(row) == len(table.columns) for row in table.rows)


@settings(max_examples=100, deadline=None)
@given(given_=anything)
def test_any_json_is_refused_or_planned(given_: Any) -> None:
    decided(given_)


@settings(max_examples=150, deadline=None)
@given(given_=mutated())
def test_any_accident_to_a_good_input_is_refused_or_planned(given_: dict[str, Any]) -> None:
    decided(given_)


# --- every valid input ----------------------------------------------------------------------------------------------------


@st.composite
def valid(draw: st.DrawFn) -> dict[str, Any]:
    quality, seconds = st.floats(0, 1), draw(st.floats(0.001, 1000))
    memory = st.sampled_from([0.0, 2.0, 5.0])
    gpus: list[dict[str, Any]] = [
        {"id": f"g{n}", "capacity_pct": draw(st.integers(1, 100)), "memory_mib": draw(st.sampled_from([None, 6.0, 12.0]))}
        for n in range(draw(st.integers(0, 3)))
    ]
    capacity = sum(gpu["capacity_pct"] for gpu in gpus) or draw(st.integers(1, 300))
    streams = []
    for number in range(draw(st.integers(0, 4))):
        knobs = [
            {"name": f"k{n}", "demand_pct": draw(st.floats(0, 150)), "quality_frac": draw(quality), "memory_mib": draw(memory)}
            for n in range(draw(st.integers(1, 3)))
        ]
        options: list[dict[str, Any]] = [
            {"name": f"o{n}", "end_quality": draw(quality), "cost_gpu_s": draw(st.floats(0, 300)), "memory_mib": draw(memory)}
            | {"quality_sd": draw(st.sampled_from([0.0, 0.1]))}
            for n in range(draw(st.integers(0, 3)))
        ]
        stream = {"id": f"s{number}", "quality": draw(quality), "knobs": knobs, "retrain": options}
        streams.append(stream | ({"running": "o0"} if len(options) == 1 and draw(st.booleans()) else {}))
    return {
        "window": {"seconds": seconds, "overhead_s": draw(st.floats(0, seconds / 2))},
        "capacity_pct": capacity,
        "quantum_pct": draw(st.integers(max(1, capacity // 40), capacity)),
        "min_quality": draw(quality),
        "estimate": draw(st.sampled_from(["static", "hand-back"])),
        "policy": draw(st.sampled_from([*POLICIES, "uniform(high,50)", "uniform(low,0)"])),
        "train_max_pct": draw(st.sampled_from([None, 50, 100])),
        "gpus": gpus,
        "streams": streams,
    }


@settings(max_examples=100, deadline=None)
@given(given_=valid())
def test_every_valid_input_gets_a_plan_that_adds_up_and_ends_in_time(given_: dict[str, Any]) -> None:
    answer, problems = asked(given_)
    if answer is None:
        assert [path for path, _ in problems] == ["gpus"], "only what runs already may not fit"
        assert any("running" in stream for stream in given_["streams"])
        return
    check_answer(given_, answer)
