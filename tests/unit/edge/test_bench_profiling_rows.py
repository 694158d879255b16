"""`bench profiling` reads its answers right: errors on the labels that the profiler saw, costs side by side, the setting it takes."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from scheduler.ekya.microprofile import families

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "bench_profiling.py"


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_profiling_under_test", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def result(bench: ModuleType, *, promised: float = 0.8, profile_cpu_s: float = 1.0, train_cpu_s: float = 10.0) -> Any:
    """Four held-out pictures of ten regions; every configuration gets 8, 8, 4, 4 of them right; the profiler judges by the first two."""
    trained = tuple(
        bench.Trained(config=c.name, right=(8, 8, 4, 4), regions=(10, 10, 10, 10), cpu_s=train_cpu_s) for c in bench.CONFIGS
    )
    predicted = {c.name: promised for c in bench.CONFIGS}
    profiled = tuple(
        bench.Profiled(setting=s.name, before=0.5, judged=(0, 1), predicted=predicted, cpu_s=profile_cpu_s)
        for s in bench.SETTINGS
    )
    return bench.StreamResult(stream="a", crops=(100, 40), trained=trained, profiled=profiled)


def test_the_configurations_are_ekya_s_eighteen_in_six_families(bench: ModuleType) -> None:
    assert len(bench.CONFIGS) == 18
    assert len({c.name for c in bench.CONFIGS}) == 18
    assert len(families(bench.CONFIGS)) == 6
    assert {(c.epochs, c.data_frac) for c in bench.CONFIGS} == {(e, f) for e in (5, 15, 30) for f in (0.1, 0.5, 1.0)}
    assert {(c.layers_frac == 1.0, c.head_neurons) for c in bench.CONFIGS} == {(False, 64), (True, 1024)}


def test_errors_are_those_on_the_labels_that_the_profiler_saw(bench: ModuleType) -> None:
    found = bench.verdict([result(bench, promised=0.83)], "paper")
    assert found.error_points == pytest.approx(3.0)
    assert found.bias_points == pytest.approx(3.0)
    assert found.all_labels_points == pytest.approx(23.0), "all pictures together are 0.6"
    assert found.unchanged_points == pytest.approx(30.0)
    assert found.n == 18


@pytest.mark.parametrize(("promised", "profile_cpu_s", "reached"), [(0.83, 1.8, True), (0.83, 2.0, False), (0.70, 1.0, False)])
def test_both_figures_must_be_reached(bench: ModuleType, promised: float, profile_cpu_s: float, reached: bool) -> None:
    found = bench.verdict([result(bench, promised=promised, profile_cpu_s=profile_cpu_s)], "paper")
    assert found.times == pytest.approx(180 / profile_cpu_s)
    assert found.reached is reached


def test_the_most_exact_of_the_cheap_enough_is_taken(bench: ModuleType) -> None:
    def verdict(name: str, error: float, cpu_s: float) -> Any:
        return bench.Verdict(
            setting=name, n=1, error_points=error, error_p90_points=0.0, all_labels_points=0.0, bias_points=0.0,
            unchanged_points=0.0, lost_points=0.0, profile_cpu_s=cpu_s, exhaustive_cpu_s=100.0,
        )  # fmt: skip

    exact, cheap, cheaper = verdict("exact", 1.0, 10.0), verdict("cheap", 4.0, 1.0), verdict("cheaper", 9.0, 0.5)
    assert bench.best([exact, cheap, cheaper]) is cheap
    assert bench.best([exact, verdict("half", 3.0, 2.0)]).setting == "half", "none is cheap enough: the cheapest"


def test_what_is_lost_by_a_wrong_choice(bench: ModuleType) -> None:
    good = result(bench)
    better = bench.Trained(config=bench.CONFIGS[3].name, right=(9, 9, 9, 9), regions=(10,) * 4, cpu_s=10.0)
    trained = tuple(better if t.config == better.config else t for t in good.trained)
    missed = bench.StreamResult(stream="a", crops=good.crops, trained=trained, profiled=good.profiled)
    assert bench.verdict([missed], "box").lost_points == pytest.approx(30.0)


def test_the_text_and_the_json_say_the_same(bench: ModuleType) -> None:
    results = [result(bench, promised=0.82)]
    text, data = "\n".join(bench.lines(results)), bench.as_json(results)
    assert "reached: " in text
    assert f"{data['best']}: 2.0 points in the median and 180x cheaper" in text
    assert [row["setting"] for row in data["settings"]] == [s.name for s in bench.SETTINGS]
    assert data["settings"][0]["times"] == pytest.approx(180.0)
