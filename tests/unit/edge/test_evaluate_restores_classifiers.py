"""A trained classifier comes back out of the memo with the head it was given, whatever the first model's head was."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edge.costs import CostProfile
from edge.evaluate.run import engine_config
from edge.evaluate.studio import EvaluateOptions, Studio
from edge.footage import footage_of_videos
from edge.memo import Memo
from models.classifier import Classifier
from models.tasks.classification import CLASSIFICATION
from models.zoo import new_detector, spec_of
from scheduler.types import RetrainConfig
from tests.support.evaluation import COSTS
from tests.support.moving import ColourGolden, write_moving_video

PROFILE = CostProfile(**COSTS, source="test")  # type: ignore[arg-type]
RETRAIN = (RetrainConfig(name="wide", head_neurons=16),)


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_moving_video(tmp_path_factory.mktemp("footage") / "cam.mp4", frames=60)


def studio_of(video: Path, memo: Memo) -> Studio:
    first = new_detector(spec_of("mobilenetv2-0.25", 64))
    options = EvaluateOptions(windows=2, window_s=100.0, candidates=6, judged=4, task=CLASSIFICATION)
    ready = EvaluateOptions(
        windows=2, window_s=100.0, candidates=6, judged=4, task=CLASSIFICATION, engine=engine_config(options, PROFILE, RETRAIN)
    )
    return Studio(footage_of_videos([video]), first, ColourGolden(), PROFILE, ready, memo, lambda text: None)


def test_a_wider_head_is_restored(video: Path, tmp_path: Path) -> None:
    first = studio_of(video, Memo(tmp_path))
    base = first.detector(first.base_version)
    assert isinstance(base, Classifier)
    wide = base.with_head(16, seed=1)
    assert first.train("version", lambda: wide) is None
    again = studio_of(video, Memo(tmp_path))
    assert again.train("version", lambda: pytest.fail("trained again")) is None
    restored = again.detector("version")
    assert isinstance(restored, Classifier)
    assert restored.head_neurons == 16
    crop = np.random.default_rng(0).integers(0, 255, (40, 40, 3), np.uint8)
    assert restored.predict([crop], score_min=0.0)[0].score == pytest.approx(wide.predict([crop], score_min=0.0)[0].score)
