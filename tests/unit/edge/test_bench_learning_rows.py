"""`bench learning` reads its answers right: what counts as reached, what is left out while it is not measured yet."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "bench_learning.py"


@pytest.fixture(scope="module")
def bench_learning() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_learning_under_test", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


VIDEOS = ("wide", "narrow")


def answer(f1: dict[str, float], *, gpu_s: float = 100.0, trainings: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    policy = {
        "policy": "any", "mean_f1": sum(f1.values()) / len(f1), "videos": f1, "gpu_s": gpu_s, "trainings": trainings or [],
        "gpu_s_by_kind": {"label": 10.0, "train": gpu_s, "look": 0.0}, "exhaustive_gpu_s": 20.0, "profiles": 0,
    }  # fmt: skip
    return {"policies": [policy], "undisturbed": {"wide": 0.5, "narrow": 0.9}}


def filled(module: ModuleType, folder: Path, f1_of: dict[str, float], gpus: dict[int, float]) -> Any:
    """A cache with every main and compute run answered: f1_of per policy (all uniform ones by 'uniform')."""
    bench = module.Bench(data=folder, cache=folder)
    for run in module.main_runs():
        policy = run.arguments[run.arguments.index("--policy") + 1]
        f1 = f1_of.get(policy, f1_of["uniform"] + (0.01 if policy == module.UNIFORM[0] else 0.0))
        trainings = [{"predicted_f1": 0.7, "held_out_f1": 0.73}, {"predicted_f1": None, "held_out_f1": 0.1}]
        bench.keep(run, answer(dict.fromkeys(VIDEOS, f1), trainings=trainings))
    for run in module.compute_runs():
        at = int(run.arguments[run.arguments.index("--gpus") + 1])
        bench.keep(run, answer(dict.fromkeys(VIDEOS, gpus[at])))
    return bench


def by_what(module: ModuleType, bench: Any, part: str) -> Any:
    return next(row for row in module.rows(bench) if part in row.what)


def test_nothing_is_said_of_what_was_not_measured(bench_learning: ModuleType, tmp_path: Path) -> None:
    assert list(bench_learning.rows(bench_learning.Bench(data=tmp_path, cache=tmp_path))) == []


def test_only_videos_with_a_wide_gap_count_against_no_retraining(bench_learning: ModuleType, tmp_path: Path) -> None:
    f1_of = {"lookahead": 0.7, "thief-repeat": 0.66, "no-retrain": 0.5, "uniform": 0.6}
    bench = filled(bench_learning, tmp_path, f1_of, {2: 0.65, 4: 0.72})
    row = by_what(bench_learning, bench, "no-retrain")
    assert row.ok
    assert "(1 of 2)" in row.what
    assert row.measured.startswith("+20.0 points")


@pytest.mark.parametrize(("uniform", "ok"), [(0.60, True), (0.65, False)])
def test_best_and_worst_uniform(bench_learning: ModuleType, tmp_path: Path, uniform: float, ok: bool) -> None:
    f1_of = {"lookahead": 0.76, "thief-repeat": 0.76, "no-retrain": 0.5, "uniform": uniform}
    row = by_what(bench_learning, filled(bench_learning, tmp_path, f1_of, {2: 0.7, 4: 0.7}), "lookahead against the best")
    assert f"{100 * (0.76 - uniform - 0.01):+.1f} points" in row.measured
    assert row.ok is ok


@pytest.mark.parametrize(
    ("gpus", "said", "ok"),
    [({2: 0.80, 4: 0.90}, "2x", False), ({2: 0.6, 4: 0.8}, "4x", True), ({2: 0.6, 4: 0.7}, "more than 4x", True)],
)
def test_compute_for_uniform_to_match(
    bench_learning: ModuleType, tmp_path: Path, gpus: dict[int, float], said: str, ok: bool
) -> None:
    f1_of = {"lookahead": 0.76, "thief-repeat": 0.7, "no-retrain": 0.5, "uniform": 0.6}
    row = by_what(bench_learning, filled(bench_learning, tmp_path, f1_of, gpus), "compute for uniform")
    assert row.measured.startswith(said)
    assert row.ok is ok


def test_profile_errors_leave_out_what_was_never_predicted(bench_learning: ModuleType, tmp_path: Path) -> None:
    f1_of = {"lookahead": 0.7, "thief-repeat": 0.66, "no-retrain": 0.5, "uniform": 0.6}
    row = by_what(bench_learning, filled(bench_learning, tmp_path, f1_of, {2: 0.6, 4: 0.7}), "micro-profile error")
    assert row.measured.startswith("3.0 points")
    assert row.ok


@pytest.mark.parametrize(("f1", "gpu_s", "ok"), [(0.64, 100.0, True), (0.61, 100.0, False), (0.60, 45.0, True)])
def test_reuse_wins_by_quality_or_by_compute(
    bench_learning: ModuleType, tmp_path: Path, f1: float, gpu_s: float, ok: bool
) -> None:
    bench = bench_learning.Bench(data=tmp_path, cache=tmp_path)
    alone, reuse = bench_learning.recurring_runs()
    bench.keep(alone, answer({"a": 0.6}))
    bench.keep(reuse, answer({"a": f1}, gpu_s=gpu_s))
    assert by_what(bench_learning, bench, "recurring drift").ok is ok


def test_answers_survive_a_second_look_and_half_written_ones_do_not_count(bench_learning: ModuleType, tmp_path: Path) -> None:
    bench = bench_learning.Bench(data=tmp_path, cache=tmp_path)
    run = bench_learning.main_runs()[0]
    assert bench.answer(run) is None
    (tmp_path / "answers").mkdir()
    (tmp_path / "answers" / f"{run.name}.part").write_text("{")
    assert bench.answer(run) is None
    bench.keep(run, {"a": 1})
    assert bench.answer(run) == {"a": 1}


def test_runs_have_names_of_their_own(bench_learning: ModuleType) -> None:
    runs = [*bench_learning.main_runs(), *bench_learning.compute_runs(), *bench_learning.recurring_runs()]
    assert len({run.name for run in runs}) == len(runs)
