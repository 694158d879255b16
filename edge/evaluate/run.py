"""One policy or many over the same footage, and what is printed of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from edge.costs import CostProfile
from edge.evaluate.studio import EvaluateOptions, Studio
from edge.evaluate.world import EvaluateWorld
from scheduler.commands import ReportPlan
from scheduler.engine import BoxEngine, EngineConfig
from scheduler.events import BoxStarted, CameraAdded, Event
from scheduler.sim.driver import VirtualDriver
from scheduler.types import KnobProfile, RetrainConfig, RetrainOption


@dataclass(frozen=True, kw_only=True)
class PolicyResult:
    """mean_f1: over windows 1.. and streams (window 0 has nothing to learn from); videos: the same per stream; f1: all windows."""

    policy: str
    mean_f1: float
    retrainings: int
    admitted: int
    gpu_s: float
    videos: dict[str, float]
    f1: dict[str, list[float]]
    gates: list[dict[str, Any]]
    plans: list[dict[str, Any]]

    def as_dict(self) -> dict[str, Any]:
        return {
            "policy": self.policy, "mean_f1": round(self.mean_f1, 4), "retrainings": self.retrainings,
            "admitted": self.admitted, "gpu_s": round(self.gpu_s, 1),
            "videos": {k: round(v, 4) for k, v in self.videos.items()},
            "f1_per_window": {k: [round(x, 4) for x in v] for k, v in self.f1.items()},
        }  # fmt: skip


def run_policy(studio: Studio, policy: str, shown_as: str) -> PolicyResult:
    """One run of the box over the footage under `policy` (the registry's name)."""
    options = studio.options
    engine = BoxEngine(replace(options.engine, policy=policy))
    knobs = {stream: studio.knobs(stream) for stream in studio.footage}
    world = EvaluateWorld(studio, knobs)
    driver = VirtualDriver(engine, world, options.engine.speed)
    start: list[Event] = [
        CameraAdded(at_s=0.0, stream=s, knobs=knobs[s], version=studio.base_version, quality=studio.window_f1(s, 0, studio.base_version))
        for s in sorted(studio.footage)
    ]  # fmt: skip
    # Without a window's end after the last one the run would begin a window that has no footage.
    driver.run([*start, BoxStarted(at_s=0.0, window=0)], until_s=options.windows * options.window_s - 1e-3)
    f1 = world.shown_f1()
    videos = {stream: float(np.mean(values[1:] or values)) for stream, values in f1.items()}
    return PolicyResult(
        policy=shown_as, mean_f1=float(np.mean(list(videos.values()))), retrainings=world.retrainings,
        admitted=world.admitted, gpu_s=world.gpu_s, videos=videos, f1=f1, gates=world.trace, plans=_plans(driver),
    )  # fmt: skip


def _plans(driver: VirtualDriver) -> list[dict[str, Any]]:
    return [
        {"at_s": round(event.at_s, 3), "window": command.window, "reasons": list(command.reasons)}
        for event, commands in driver.log
        for command in commands
        if isinstance(command, ReportPlan)
    ]


def engine_config(options: EvaluateOptions, costs: CostProfile, retrain: Iterable[RetrainConfig]) -> EngineConfig:
    """The engine's configuration for a virtual box of `gpus` GPUs with these costs."""
    configs = tuple(retrain)
    samples = max(1, round(options.candidates * (1 - options.engine.holdout_frac)))
    reference = tuple(RetrainOption(name=c.name, end_quality=0.0, cost_gpu_s=costs.retrain_gpu_s(c, samples)) for c in configs)
    return replace(
        options.engine, window_s=options.window_s, first_window_s=options.window_s,
        capacity_pct=round(100 * options.gpus), golden_gpu_s=costs.golden_gpu_s, retrain=configs, reference=reference,
        label_frames=options.candidates,
    )  # fmt: skip


def fixed_configs(config: EngineConfig) -> dict[str, str]:
    """The paper's Cfg 1 and Cfg 2 for `uniform`: the dearest and the cheapest configuration by reference cost."""
    by_cost = sorted(config.reference, key=lambda o: (o.cost_gpu_s, o.name))
    return {"high": by_cost[-1].name, "low": by_cost[0].name}


def result_json(results: Sequence[PolicyResult], costs: CostProfile, options: EvaluateOptions) -> dict[str, Any]:
    return {
        "policies": [r.as_dict() for r in results],
        "costs": costs.as_dict(),
        "options": {"windows": options.windows, "window_s": options.window_s, "gpus": options.gpus, "fps": options.fps,
                    "candidates": options.candidates, "judged": options.judged},
    }  # fmt: skip


def write_trace(path: Path, studio: Studio, results: Sequence[PolicyResult]) -> None:
    """A finished evaluation as JSON: F1 over time, gates and plans per policy, knobs and costs."""
    body = {
        "version": 1,
        "costs": studio.costs.as_dict(),
        "knobs": {s: [vars_of(k) for k in studio.knobs(s)] for s in studio.footage},
        "policies": [{**r.as_dict(), "gates": r.gates, "plans": r.plans} for r in results],
    }
    path.write_text(json.dumps(body, indent=1), encoding="utf-8")


def vars_of(knobs: KnobProfile) -> dict[str, Any]:
    return {"name": knobs.name, "demand_pct": knobs.demand_pct, "quality_frac": knobs.quality_frac, "fps": knobs.fps}
