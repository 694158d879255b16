"""A whole evaluation with the bundled detectors, trained for real, on rendered footage that drifts into the night."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edge.evaluate import EvaluateOptions, evaluate_command
from scheduler.types import RetrainConfig
from streams.encode import write_video
from streams.rendered.conditions import Schedule
from streams.rendered.scene import RenderedScene
from tests.support.evaluation import cost_file

pytestmark = pytest.mark.slow
FRAMES = 96
SECONDS_PER_FRAME = 2.0


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A street at night: the bundled edge model was trained on days."""
    scene = RenderedScene("street", 3, schedule=Schedule.always("night"))
    path = tmp_path_factory.mktemp("rendered") / "street.mp4"
    write_video(path, (scene.render(n * SECONDS_PER_FRAME)[0] for n in range(FRAMES)), fps=10)
    return path


def test_retraining_on_rendered_footage_pays(night: Path, tmp_path: Path) -> None:
    answer = evaluate_command(
        videos=[night], edge="tinydet-edge", golden="tinydet-golden", policies="thief-repeat,no-retrain",
        options=EvaluateOptions(windows=3, candidates=18, judged=12), costs=cost_file(tmp_path),
        retrain=(RetrainConfig(name="all", epochs=8, batch=4, lr=2e-3),), cache=tmp_path / "cache",
    )  # fmt: skip
    thief, never = answer["policies"]
    assert thief["retrainings"] >= 1
    assert thief["mean_f1"] > never["mean_f1"], json.dumps(thief["gates"], indent=1)
    gains = [g["candidate_true_f1"] - g["serving_true_f1"] for g in thief["gates"]]
    assert max(gains) > 0.05
