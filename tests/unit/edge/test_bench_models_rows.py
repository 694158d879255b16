"""`bench models` on one rendered street: a row for each form, and no classifier among detectors."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

from models.torch_support import torch_threads
from models.weights import FOLDER_VARIABLE
from tests.support.scripts import benchmark

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "bench_models.py"
VARIANTS = ("torch", "openvino") if find_spec("openvino") else ("torch",)


@pytest.fixture
def bench_models(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """As loaded for one run; what it sets in the environment is undone."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    module = benchmark("bench_models", monkeypatch)
    monkeypatch.setattr(module, "CALIBRATION", 4)
    monkeypatch.setattr(module, "SPEED_FRAMES", 4)
    return module


def test_a_row_for_each_form_without_any_footage(
    bench_models: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = tmp_path / "rows.json"
    words = ["--models", "tinydet-edge", "--variants", ",".join(VARIANTS), "--videos", "1", "--frames", "3"]
    with torch_threads(1):
        bench_models.main([*words, "--data", str(tmp_path), "--json", str(answer)])
    lines = capsys.readouterr().out.splitlines()
    header = next(line for line in lines if line.startswith("model"))
    assert all(word in header for word in ("frames/s", "p50 ms", "p99 ms", "MiB", "F1", "lost"))
    rows = {row["variant"]: row for row in json.loads(answer.read_text(encoding="utf-8"))}
    assert tuple(rows) == VARIANTS
    for variant, row in rows.items():
        assert row["problem"] == ""
        assert 0 < row["p50_ms"] <= row["p99_ms"]
        assert row["fps"] == pytest.approx(1000 / row["p50_ms"])
        assert row["form_mib"] > 0
        assert row["f1"] > 0.5, "it knows rendered streets"
        assert row["f1_lost"] == pytest.approx(rows["torch"]["f1"] - row["f1"])
        printed = next(line for line in lines if line.split()[:2] == ["tinydet-edge", variant]).split()
        expected = (f"{row['fps']:.1f}", f"{row['p50_ms']:.2f}", f"{row['p99_ms']:.2f}", f"{row['ratio']:.2f}")
        assert tuple(printed[2:6]) == expected
        assert printed[6] == f"{row['form_mib']:.1f}"
        assert printed[9] == f"{row['f1']:.3f}"
    assert rows["torch"]["agreement"] == 1.0


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ("tinydet-edge,mobilenetv2", ("mobilenetv2 is a model for classification", "driftbox evaluate --task classification")),
        ("tinydet-edge,tinydett", ("no detector named 'tinydett'", "known: ")),
    ],
)
def test_what_is_no_detector_is_refused_before_any_work(
    bench_models: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], names: str, said: tuple[str, ...]
) -> None:
    (tmp_path / "videos").mkdir()
    with torch_threads(1), pytest.raises(SystemExit) as ended:
        bench_models.main(["--models", names, "--data", str(tmp_path)])
    assert ended.value.code == 2
    printed = capsys.readouterr()
    assert all(text in printed.err for text in said)
    assert printed.out == ""


def test_real_models_need_footage(bench_models: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with torch_threads(1), pytest.raises(SystemExit) as ended:
        bench_models.main(["--models", "tinydet-edge,yolov8n@320", "--data", str(tmp_path / "nowhere")])
    assert ended.value.code == 3
    assert "give --data" in capsys.readouterr().err
