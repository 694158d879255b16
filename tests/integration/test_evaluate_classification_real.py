"""`driftbox evaluate --task classification` on real video with real models: a head that knew nothing learns the street."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge.evaluate import EvaluateOptions, evaluate_command
from models.tasks.classification import CLASSIFICATION
from scheduler.types import RetrainConfig

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"

pytestmark = [
    pytest.mark.data,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not (DATA / "weights").is_dir(), reason="needs the videos and weights of ../shared/data"),
]


def test_a_classifier_learns_a_real_street(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRIFTBOX_WEIGHTS", str(DATA / "weights"))
    lines: list[str] = []
    answer = evaluate_command(
        videos=[DATA / "videos" / "brt_avenue.mp4"], edge="mobilenetv2", golden="yolo26s@640",
        policies="uniform(high,50),no-retrain", retrain=(RetrainConfig(name="head", epochs=5, batch=8, layers_frac=0.1),),
        options=EvaluateOptions(windows=2, window_s=200.0, fps=2.0, candidates=10, judged=6, task=CLASSIFICATION),
        cache=tmp_path / "cache", log=lines.append,
    )  # fmt: skip
    learnt, never = ({row["policy"]: row for row in answer["policies"]}[p] for p in ("uniform(high,50)", "no-retrain"))
    assert (answer["task"], answer["quality"]) == ("classification", "accuracy")
    assert learnt["finished"] == 1
    assert learnt["admitted"] == 1
    assert learnt["mean_f1"] > never["mean_f1"] + 0.1, lines
    assert any("regions move in a frame" in line for line in lines)
    assert answer["costs"]["infer_gpu_s"] > 0
