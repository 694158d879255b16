"""The rows about contention: which answers belong together, what is told of them, and what perfect knowledge is charged."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def contention() -> Iterator[ModuleType]:
    sys.path.insert(0, str(FOLDER))  # as it is for a script
    yield importlib.import_module("learning_contention")
    sys.path.remove(str(FOLDER))


def policy(name: str, f1: float, *, gpu_s: float = 30.0, trainings: int = 1) -> dict[str, Any]:
    return {
        "policy": name, "mean_f1": f1, "gpu_s": gpu_s, "gpu_s_by_kind": {"label": gpu_s / 2, "train": gpu_s / 2},
        "trainings": [{"labels": 10, "gpu_s": 2.0}] * trainings,
    }  # fmt: skip


def answer(*policies: dict[str, Any], speed: float = 1.0, gpus: float = 1.0, version: str = "v1") -> dict[str, Any]:
    """One camera that one lesson of 10 GPU-seconds at 1x takes from 0.4 to 0.8."""
    lesson = {"version": version, "parent": "base", "window": 1, "gpu_s": 10.0 / speed, "quality": [0.0, 0.8, 0.8]}
    knobs = [{"name": "every", "demand_pct": 50.0 / speed, "quality_frac": 1.0, "fps": 10.0}]
    return {
        "policies": list(policies), "costs": {"golden_gpu_s": 0.5 / speed},
        "options": {"gpus": gpus, "gpu_speed": speed, "window_s": 100.0},
        "pupils": [{"id": "a", "base": "base", "quality": [0.4, 0.4, 0.4], "knobs": knobs, "lessons": [lesson]}],
    }  # fmt: skip


def rows(contention: ModuleType, *answers: dict[str, Any]) -> dict[str, str]:
    return dict(contention.told(answers, "box"))


def test_answers_are_sorted_by_compute_whether_by_speed_or_by_number(contention: ModuleType) -> None:
    found = contention.levels(
        [answer(policy("box", 0.7), gpus=2.0), answer(policy("box", 0.5), speed=0.5), answer(policy("box", 0.6))]
    )
    assert [(level.compute, level.f1("box")) for level in found] == [(0.5, 0.5), (1.0, 0.6), (2.0, 0.7)]


def test_the_best_and_the_worst_fixed_split_are_told(contention: ModuleType) -> None:
    split = [policy("uniform(low,30)", 0.5), policy("uniform(low,50)", 0.62), policy("no-retrain", 0.9)]
    told = rows(contention, answer(policy("box", 0.7), *split))
    said = told["box against the best and the worst of 2 uniform at 1x compute"]
    assert said.startswith("+8.0 points / +20.0 points")
    assert "uniform(low,50)" in said


def test_perfect_knowledge_lies_between_the_box_that_pays_and_models_for_nothing(contention: ModuleType) -> None:
    answers = [answer(policy("box", 0.6), speed=0.5)]
    pupils, (level,) = contention.pupils_at_1x(answers), contention.levels(answers)
    room = contention.headroom(pupils, level, "box", window_s=100.0)
    assert room.found_out < room.taught < room.given
    assert room.given == pytest.approx(0.8)


def test_lessons_cost_the_same_work_at_every_speed(contention: ModuleType) -> None:
    slow = contention.pupils_at_1x([answer(policy("box", 0.6), speed=0.5)])
    usual = contention.pupils_at_1x([answer(policy("box", 0.6))])
    assert slow == usual


def test_what_a_retraining_costs_beside_itself(contention: ModuleType) -> None:
    """30 GPU-seconds for two retrainings of 10 labels (5 GPU-seconds) and 2 of training each."""
    (level,) = contention.levels([answer(policy("box", 0.6, trainings=2))])
    assert level.beside_gpu_s("box") == pytest.approx((30 - 2 * 7) / 2)
    (none,) = contention.levels([answer(policy("box", 0.6, trainings=0))])
    assert none.beside_gpu_s("box") == pytest.approx(30.0)


def test_lessons_of_all_answers_count(contention: ModuleType) -> None:
    told = rows(contention, answer(policy("box", 0.6)), answer(policy("other", 0.6), version="v2"))
    assert "perfect knowledge of 2 retrainings at 1x compute" in told


def test_answers_that_hold_no_lessons_are_compared_all_the_same(contention: ModuleType) -> None:
    old = {key: value for key, value in answer(policy("box", 0.6), policy("uniform(low,50)", 0.5)).items() if key != "pupils"}
    assert list(rows(contention, old)) == ["box against the best and the worst of 1 uniform at 1x compute"]


@pytest.mark.parametrize(("at_2x", "times"), [(0.6, None), (0.7, 2.0), (0.9, 2.0)])
def test_the_compute_that_a_fixed_split_needs(contention: ModuleType, at_2x: float, times: float | None) -> None:
    answers = [
        answer(policy("box", 0.7), policy("uniform(low,50)", 0.6)), answer(policy("uniform(low,50)", at_2x), gpus=2.0),
        answer(policy("box", 0.5), speed=0.5),
    ]  # fmt: skip
    found = {compute: (enough, most) for compute, _, enough, most in contention.needed(answers, "box")}
    assert found[1.0] == (times, 2.0)
    assert found[0.5] == (2.0, 4.0), "at 1x a fixed split is better than the box at half of it"


def test_the_script_prints_them(tmp_path: Path) -> None:
    path = tmp_path / "answer.json"
    path.write_text(json.dumps(answer(policy("lookahead", 0.7), policy("uniform(low,50)", 0.6))))
    done = subprocess.run(
        [sys.executable, str(FOLDER / "learning_contention.py"), str(path)], capture_output=True, text=True, check=True,
        env={"PYTHONPATH": str(FOLDER.parents[1])},
    )  # fmt: skip
    assert "+10.0 points" in done.stdout
    assert "all models for nothing 0.800" in done.stdout
