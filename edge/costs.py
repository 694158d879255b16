"""What work costs in virtual time: a cost profile, measured on this machine or read from a file, always printed.

Costs are GPU-seconds at 100 pct. Measured ones are CPU seconds of one core (process time, so a busy machine does not change them);
`scaled` turns them into those of a device that does the work of so many cores.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from configs.errors import ConfigError
from models.detector import Detector
from models.labelled import LabelledImage
from models.retrain import retrain
from models.tasks.base import Picture, Task
from models.tasks.detection import DETECTION
from scheduler.types import RetrainConfig

#: Samples per measurement; the median is kept.
REPEATS = 5


@dataclass(frozen=True, kw_only=True)
class CostProfile:
    """infer/golden: one frame; train: one labelled frame through forward and backward with all layers training, train_head with
    `head_frac` of them; init: preparing a retraining. source: where the figures come from."""

    infer_gpu_s: float
    golden_gpu_s: float
    train_gpu_s: float
    train_head_gpu_s: float
    head_frac: float
    init_gpu_s: float
    source: str

    def sample_gpu_s(self, layers_frac: float) -> float:
        """One training frame; linear in the part of the layers that train, between the two measured points."""
        if layers_frac >= 1.0 or self.head_frac >= 1.0:
            return self.train_gpu_s
        slope = (self.train_gpu_s - self.train_head_gpu_s) / (1.0 - self.head_frac)
        return max(self.infer_gpu_s, self.train_head_gpu_s + slope * (layers_frac - self.head_frac))

    def epoch_gpu_s(self, config: RetrainConfig, frames: int) -> float:
        """One epoch over `frames` frames; replayed frames come on top. A frame that distils (`models.retrain`: the replayed ones, else
        all) is learned from twice and shown to the teacher."""
        replayed = frames * config.replay_frac / max(1e-6, 1.0 - config.replay_frac)
        learned = (frames + replayed) * self.sample_gpu_s(config.layers_frac)
        distilled = (replayed or frames) if config.distill > 0 else 0.0
        return learned + distilled * (self.sample_gpu_s(config.layers_frac) + self.infer_gpu_s)

    def retrain_gpu_s(self, config: RetrainConfig, train: int) -> float:
        """A whole retraining when `train` labelled frames are at hand."""
        return self.init_gpu_s + config.epochs * self.epoch_gpu_s(config, max(1, round(train * config.data_frac)))

    def scaled(self, speed: float) -> CostProfile:
        """The profile of a device that does the work of `speed` cores."""
        if speed == 1.0:
            return self
        costs = {f.name: getattr(self, f.name) / speed for f in fields(self) if f.name.endswith("_gpu_s")}
        return replace(self, **costs, source=f"{self.source}; one GPU = {speed:g} cores")

    def as_dict(self) -> dict[str, Any]:
        return {k: round(v, 6) if isinstance(v, float) else v for k, v in asdict(self).items()}

    def describe(self) -> str:
        return (
            f"costs ({self.source}): inference {1e3 * self.infer_gpu_s:.1f} ms/frame, golden {1e3 * self.golden_gpu_s:.1f} "
            f"ms/frame, training {1e3 * self.train_gpu_s:.1f} ms/frame (all layers), {1e3 * self.train_head_gpu_s:.1f} ms/frame "
            f"({100 * self.head_frac:.0f} % of the layers), start {1e3 * self.init_gpu_s:.0f} ms"
        )


def load_costs(path: Path) -> CostProfile:
    """Reads a profile written as JSON: the fields of CostProfile, or an earlier answer of `evaluate --json` that holds them under
    "costs". Raises ConfigError naming everything that is missing, unknown or out of range."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"cost file {path} cannot be read: {error}", subject=str(path), remedy="give a JSON file with costs"
        ) from error
    if isinstance(data, dict) and "policies" in data:
        data = data.get("costs")
    problems = _cost_problems(data)
    if problems:
        wrong = "; ".join(f"{name}: {text}" for name, text in problems)
        raise ConfigError(
            f"cost file {path} cannot be used: {wrong}", problems=problems, subject=str(path),
            remedy=f"it needs {', '.join(_REQUIRED)} (GPU-seconds above 0; head_frac 0-1) and may have source",
        )  # fmt: skip
    return CostProfile(**{**data, "source": data.get("source") or f"file {path.name}"})


_REQUIRED = tuple(f.name for f in fields(CostProfile) if f.name != "source")


def _cost_problems(data: Any) -> tuple[tuple[str, str], ...]:
    if not isinstance(data, dict):
        return (("costs", "not a table of names and numbers"),)
    problems = [(name, "missing") for name in _REQUIRED if name not in data]
    problems += [(name, "unknown") for name in data if name not in (*_REQUIRED, "source")]
    for name in (name for name in _REQUIRED if name in data):
        value, most = data[name], 1.0 if name == "head_frac" else float("inf")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= most or not math.isfinite(value):
            problems.append((name, f"{value!r} is not a number above 0" + (" and at most 1" if most == 1.0 else "")))
    if not isinstance(data.get("source", ""), str):
        problems.append(("source", "not a text"))
    return tuple(problems)


def _median_cost(work: Callable[[], object], repeats: int = REPEATS) -> float:
    work()  # the first one warms caches
    costs = []
    for _ in range(repeats):
        started_s = time.process_time()
        work()
        costs.append(time.process_time() - started_s)
    return float(np.median(costs))


def measure_costs(
    edge: Detector, golden: Detector, images: Sequence[np.ndarray], *, head_frac: float = 0.3, task: Task = DETECTION,
    regions: Sequence[np.ndarray] | None = None,
) -> CostProfile:  # fmt: skip
    """Runs the real models on real images on this machine; the mean over the images, because a network's work follows their shape,
    and a classifier's what moves in them. images: at least one, uint8 (H, W, 3); regions: of each, where the task wants them."""
    if not len(images):
        raise ValueError("measure_costs needs at least one image")
    pictures = [Picture(image=image, regions=None if regions is None else regions[i]) for i, image in enumerate(images)]
    per_image = [_measured(task, edge, golden, picture, head_frac) for picture in pictures]
    means: dict[str, Any] = {
        f.name: float(np.mean([getattr(c, f.name) for c in per_image]))
        for f in fields(CostProfile)
        if f.name.endswith("_gpu_s")
    }
    return replace(per_image[0], **means)


def _measured(task: Task, edge: Detector, golden: Detector, picture: Picture, head_frac: float) -> CostProfile:
    labels = task.labels(golden, [picture], score_min=0.25)[0]
    sample = LabelledImage(image=picture.image, labels=labels)
    return CostProfile(
        infer_gpu_s=_median_cost(lambda: task.predict(edge, [picture])),
        golden_gpu_s=_median_cost(lambda: task.labels(golden, [picture], score_min=0.25), repeats=3),
        train_gpu_s=_train_cost(task, edge, sample, layers_frac=1.0),
        train_head_gpu_s=_train_cost(task, edge, sample, layers_frac=head_frac),
        head_frac=head_frac,
        init_gpu_s=_median_cost(edge.clone, repeats=3),
        source="measured here, one core",
    )


def _train_cost(task: Task, edge: Detector, sample: LabelledImage, *, layers_frac: float) -> float:
    config = RetrainConfig(name="cost", epochs=2, batch=4, layers_frac=layers_frac)
    data = [sample] * 4

    def run() -> None:
        for _ in retrain(edge.clone(), data, config, seed=0, task=task):
            pass

    return max(1e-6, (_median_cost(run, repeats=2) - _median_cost(edge.clone, repeats=2)) / (config.epochs * len(data)))
