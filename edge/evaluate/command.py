"""What `driftbox evaluate` runs: arguments in, the answer as JSON-ready data out; table, plot and trace beside it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from configs.errors import UsageError
from edge.costs import CostProfile, load_costs, measure_costs
from edge.evaluate.run import PolicyResult, engine_config, fixed_configs, result_json, run_policy, write_trace
from edge.evaluate.studio import EvaluateOptions, Studio
from edge.footage import Footage, footage_of_videos, load_scenario
from edge.memo import Memo
from models.detector import Detector
from models.zoo import load_detector
from scheduler.registry import expand_list
from scheduler.types import RetrainConfig

#: Offered when no configuration file says otherwise: a cheap head, all layers briefly, all layers thoroughly.
RETRAIN: tuple[RetrainConfig, ...] = (
    RetrainConfig(name="head", epochs=5, batch=8, layers_frac=0.3, lr=5e-4),
    RetrainConfig(name="full-short", epochs=5, batch=8, lr=4e-4),
    RetrainConfig(name="full-long", epochs=15, batch=8, lr=4e-4),
)
Log = Callable[[str], None]


def evaluate_command(
    *,
    videos: Sequence[Path] = (),
    scenario: Path | None = None,
    edge: str,
    golden: str,
    policies: str = "thief-repeat,uniform,no-retrain",
    options: EvaluateOptions,
    retrain: tuple[RetrainConfig, ...] = RETRAIN,
    costs: Path | None = None,
    gpu_speed: float = 1.0,
    cache: Path | None = None,
    trace: Path | None = None,
    plot: Path | None = None,
    log: Log = lambda text: None,
    progress: Callable[[str, float], None] = lambda what, done_frac: None,
) -> dict[str, Any]:
    """Evaluates the policies on the footage. Returns the contract of design 3.1: {"policies": [...], "costs": ..., "options": ...}.

    options.engine gives everything of the box's configuration that is not set by the evaluation itself (windows, capacity, costs,
    configurations). costs: a cost file instead of measuring here. gpu_speed: cores that one GPU stands for when costs are measured.
    Raises UsageError, ConfigError, StreamError or WeightsError before any long work begins.
    """
    names = expand_list(policies)
    footage = _footage(videos, scenario, options)
    edge_detector, golden_detector = load_detector(edge), load_detector(golden)
    profile = _costs(costs, edge_detector, golden_detector, footage, gpu_speed)
    log(profile.describe())
    options = replace(options, engine=engine_config(options, profile, retrain))
    studio = Studio(footage, edge_detector, golden_detector, profile, options, Memo(cache), log)
    fixed = fixed_configs(options.engine)
    results: list[PolicyResult] = []
    for number, name in enumerate(names):
        progress(name, number / len(names))
        result = run_policy(studio, _with_names(name, fixed), shown_as=name)
        results.append(result)
        log(f"{name}: mean F1 {result.mean_f1:.3f}, {result.retrainings} retrainings, {result.gpu_s:.0f} GPU-s")
    progress("done", 1.0)
    if trace is not None:
        write_trace(trace, studio, results)
    if plot is not None:
        draw(plot, results, options)
    return {**result_json(results, profile, options), "fixed_configs": fixed, "edge": edge, "golden": golden}


def _footage(videos: Sequence[Path], scenario: Path | None, options: EvaluateOptions) -> tuple[Footage, ...]:
    if bool(videos) == (scenario is not None):
        raise UsageError("evaluate needs either videos or a scenario", remedy="name video files, or --scenario FILE")
    footage = load_scenario(scenario) if scenario is not None else footage_of_videos(videos)
    for stream in footage:
        if stream.frames < 4 * options.windows:
            raise UsageError(
                f"{stream.id} has {stream.frames} frames: too few for {options.windows} windows",
                subject=stream.id, remedy="take fewer --windows, or repeat the clip in a scenario file",
            )  # fmt: skip
    return footage


def _costs(path: Path | None, edge: Detector, golden: Detector, footage: Sequence[Footage], gpu_speed: float) -> CostProfile:
    if path is not None:
        return load_costs(path).scaled(gpu_speed)
    longest_px = max(edge.spec.input_px, golden.spec.input_px)
    first = footage[0]
    image = next(iter(first.load([first.frames // 2], longest_px=longest_px).values()))
    return measure_costs(edge, golden, [image]).scaled(gpu_speed)


def _with_names(policy: str, fixed: dict[str, str]) -> str:
    """uniform(high,50) -> uniform(full-long,50): the fixed configuration is chosen once, beforehand, as the paper does."""
    for role, name in fixed.items():
        policy = policy.replace(f"({role},", f"({name},")
    return policy


def save_json(path: Path, answer: dict[str, Any]) -> None:
    path.write_text(json.dumps(answer, indent=1) + "\n", encoding="utf-8")


def draw(path: Path, results: Sequence[PolicyResult], options: EvaluateOptions) -> None:
    """F1 over time (mean over the streams) of every policy, as PNG or SVG by the file's ending."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    import numpy as np

    figure, axes = plt.subplots(figsize=(8, 4.5))
    for result in results:
        mean = np.mean(list(result.f1.values()), axis=0)
        times = (np.arange(len(mean)) + 0.5) * options.window_s
        style = {"lw": 2.5} if result.policy.startswith("thief") else {"lw": 1.2, "ls": "--"}
        axes.plot(times, mean, marker="o", ms=4, label=f"{result.policy} ({result.mean_f1:.3f})", **style)
    axes.set_xlabel("virtual time, s")
    axes.set_ylabel("F1 against golden labels (IoU 0.3)")
    axes.set_title(f"{len(results[0].videos)} streams, {options.gpus:g} GPU")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)
