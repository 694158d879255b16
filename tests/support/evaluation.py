"""A small evaluation with scripted detectors: seconds instead of hours, every job real."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edge.costs import CostProfile
from edge.evaluate.command import run_all
from edge.evaluate.run import PolicyResult, engine_config
from edge.evaluate.studio import EvaluateOptions, Studio
from edge.footage import Footage, footage_of_videos
from edge.memo import Memo
from models.detector import Detector
from models.fake import FakeDetector
from scheduler.types import RetrainConfig
from tests.support.scripted_video import write_scripted_video

COSTS = {
    "infer_gpu_s": 0.02, "golden_gpu_s": 0.4, "train_gpu_s": 0.1, "train_head_gpu_s": 0.05, "head_frac": 0.3, "init_gpu_s": 0.3
}  # fmt: skip
RETRAIN = (
    RetrainConfig(name="long", epochs=6, batch=4, lr=0.05),
    RetrainConfig(name="short", epochs=2, batch=4, lr=0.05),
)
OPTIONS = EvaluateOptions(windows=3, window_s=200.0, fps=20.0, candidates=10, judged=6)
POLICIES = ("thief-repeat", "uniform(high,50)", "uniform(low,90)", "no-retrain")


def cost_file(folder: Path, **changes: Any) -> Path:
    path = folder / "costs.json"
    path.write_text(json.dumps({**COSTS, **changes}), encoding="utf-8")
    return path


def scripted_videos(folder: Path, count: int = 3, frames: int = 60) -> list[Path]:
    return [
        write_scripted_video(folder / f"cam{n}.mp4", frames=frames, first_seed=1000 * n, change_every=3) for n in range(count)
    ]


def scripted_studio(
    videos: list[Path], *, options: EvaluateOptions = OPTIONS, edge: Detector | None = None, memo: Memo | None = None,
    costs: dict[str, float] = COSTS, retrain: tuple[RetrainConfig, ...] = RETRAIN, footage: Sequence[Footage] = (),
) -> Studio:  # fmt: skip
    """footage: in place of the videos' own."""
    from dataclasses import replace

    profile = CostProfile(**costs, source="test")  # type: ignore[arg-type]
    ready = replace(options, engine=engine_config(options, profile, retrain))
    golden = FakeDetector(skill=1.0, arch="fake-golden")
    watched = footage or footage_of_videos(videos)
    return Studio(watched, edge or FakeDetector(skill=0.4), golden, profile, ready, memo or Memo(), lambda text: None)


def results_of(studio: Studio, policies: tuple[str, ...] = POLICIES) -> dict[str, PolicyResult]:
    return {r.policy: r for r in run_all(studio, policies)}
