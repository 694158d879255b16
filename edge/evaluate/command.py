"""What `driftbox evaluate` runs: arguments in, the answer as JSON-ready data out; plot and trace beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from configs.errors import UsageError
from configs.files import atomic_write, storage_errors
from edge.costs import CostProfile, load_costs, measure_costs
from edge.evaluate.golden import in_form
from edge.evaluate.plot import draw
from edge.evaluate.run import PolicyResult, engine_config, fixed_configs, result_json, run_policy
from edge.evaluate.studio import EvaluateOptions, Studio, longest_px, regions_of
from edge.evaluate.trace import trace_of
from edge.footage import Footage, footage_of_videos, load_scenario
from edge.memo import Memo
from edge.plotting import check_plot_path
from models.detector import Detector
from models.labelled import spread
from scheduler.registry import expand_list
from scheduler.types import RetrainConfig

#: Offered when no configuration file says otherwise. The rates were tuned on real clips (docs/evaluation.md): small batches, because a
#: window's sample is small; the first half of the layers stays as it was, which costs less and keeps what COCO taught.
RETRAIN: tuple[RetrainConfig, ...] = (
    RetrainConfig(name="half-short", epochs=5, batch=2, layers_frac=0.5, lr=3e-4),
    RetrainConfig(name="half-long", epochs=15, batch=2, layers_frac=0.5, lr=3e-4),
    RetrainConfig(name="head", epochs=10, batch=2, layers_frac=0.1, lr=6e-4),
)
#: Footage needs at least so many frames per window: some to judge by, some to learn from.
MIN_FRAMES_PER_WINDOW = 4
#: Costs are measured on one picture of at most so many streams.
COST_STREAMS = 4
Log = Callable[[str], None]


def evaluate_command(
    *,
    videos: Sequence[Path] = (),
    scenario: Path | None = None,
    footage_dir: Path | None = None,
    edge: str,
    golden: str,
    policies: str = "lookahead,uniform,no-retrain",
    options: EvaluateOptions,
    retrain: tuple[RetrainConfig, ...] = RETRAIN,
    costs: Path | None = None,
    cache: Path | None = None,
    trace: Path | None = None,
    plot: Path | None = None,
    log: Log = lambda text: None,
    progress: Callable[[str, float], None] = lambda what, done_frac: None,
) -> dict[str, Any]:
    """Evaluates the policies on the footage. Returns the contract of design 3.1: {"policies": [...], "costs": ..., "options": ...}.

    options.engine gives everything of the box's configuration that is not set by the evaluation itself (windows, capacity, costs,
    configurations). costs: a cost file instead of measuring here. cache: keeps labels, predictions and trainings for another run.
    progress: told what is being done and the part of all work that is done.
    Raises UsageError, ConfigError, StreamError or WeightsError before any long work begins.
    """
    names = expand_list(policies)
    if plot is not None:
        check_plot_path(plot)
    footage = _footage(videos, scenario, footage_dir, options)
    if not retrain:
        raise UsageError("there is no retraining configuration to offer", remedy="list some under models.retrain")
    task, memo = options.task, Memo(cache)
    edge_detector, golden_detector = task.load(edge), task.load_golden(golden)
    labeller = in_form(golden_detector, options.golden_runtime)  # its cost is measured, or given, as it is
    with one_thread():
        profile = _costs(costs, edge_detector, golden_detector, footage, options, memo)
        log(profile.describe())
        options = replace(options, engine=engine_config(options, profile, retrain))
        studio = Studio(footage, edge_detector, labeller, profile, options, memo, log)
        log(f"inference on every frame of all streams needs {sum(map(studio.full_pct, studio.footage)):.0f} % of a GPU")
        results = run_all(studio, names, log, progress)
        answer = {
            **result_json(results, studio),
            "fixed_configs": fixed_configs(options.engine),
            "edge": edge,
            "golden": golden,
            "task": task.name,
            "quality": task.quality_name,
        }
        if trace is not None:
            write_file(trace, trace_of(studio, results).model_dump_json(indent=1))
        if plot is not None:
            draw(plot, results, options)
    return answer


def run_all(
    studio: Studio,
    names: Sequence[str],
    log: Log = lambda text: None,
    progress: Callable[[str, float], None] = lambda what, f: None,
) -> list[PolicyResult]:
    """One result per policy, in order."""
    fixed = fixed_configs(studio.options.engine)
    results: list[PolicyResult] = []
    for number, name in enumerate(names):

        def tell(done_frac: float, name: str = name, number: int = number) -> None:
            progress(name, (number + done_frac) / len(names))

        tell(0.0)
        result = run_policy(studio, _with_names(name, fixed), shown_as=name, progress=tell)
        results.append(result)
        studio.forget()
        log(
            f"{name}: mean {studio.task.quality_name} {result.mean_f1:.3f}, {result.retrainings} retrainings, {result.gpu_s:.0f} GPU-s"
        )
    progress("done", 1.0)
    return results


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread of torch: results do not depend on how a sum was split, and costs are those of one core."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _footage(
    videos: Sequence[Path], scenario: Path | None, folder: Path | None, options: EvaluateOptions
) -> tuple[Footage, ...]:
    if bool(videos) == (scenario is not None):
        raise UsageError("evaluate needs either videos or a scenario", remedy="name video files, or --scenario FILE")
    footage = load_scenario(scenario, folder) if scenario is not None else footage_of_videos(videos)
    for stream in footage:
        if stream.frames < MIN_FRAMES_PER_WINDOW * options.windows:
            raise UsageError(
                f"{stream.id} has {stream.frames} frames: too few for {options.windows} windows",
                subject=stream.id, remedy="take fewer --windows, or repeat the clip in a scenario file",
            )  # fmt: skip
    return footage


def _costs(
    path: Path | None, edge: Detector, golden: Detector, footage: Sequence[Footage], options: EvaluateOptions, memo: Memo
) -> CostProfile:
    if path is not None:
        return load_costs(path).scaled(options.gpu_speed)
    size_px = longest_px(options.task, edge, golden)
    chosen = [footage[i] for i in spread(len(footage), COST_STREAMS)]
    measure = _costs_of_regions if options.task.wants_regions else _costs_of_frames
    return measure(edge, golden, chosen, size_px, options, memo).scaled(options.gpu_speed)


def _costs_of_frames(
    edge: Detector, golden: Detector, chosen: Sequence[Footage], size_px: int, options: EvaluateOptions, memo: Memo
) -> CostProfile:
    loaded = [stream.load([0, stream.frames // 2], longest_px=size_px) for stream in chosen]
    return measure_costs(edge, golden, [images[max(images)] for images in loaded if images], task=options.task)


def _costs_of_regions(
    edge: Detector, golden: Detector, chosen: Sequence[Footage], size_px: int, options: EvaluateOptions, memo: Memo
) -> CostProfile:
    """Of frames in which as much moves as on average."""
    images: list[np.ndarray] = []
    regions: list[np.ndarray] = []
    for stream in chosen:
        moving = regions_of(stream, size_px, memo)
        index = usual_frame(moving)
        images += stream.load([index], longest_px=size_px).values()
        regions.append(moving[index])
    return measure_costs(edge, golden, images, task=options.task, regions=regions)


def usual_frame(moving: Mapping[int, np.ndarray]) -> int:
    """The first frame whose number of regions is nearest to the mean of all."""
    counts = np.array([len(regions) for regions in moving.values()])
    return list(moving)[int(np.abs(counts - counts.mean()).argmin())]


def _with_names(policy: str, fixed: dict[str, str]) -> str:
    """uniform(high,50) -> uniform(full-long,50): the fixed configuration is chosen once, beforehand, as the paper does."""
    for role, name in fixed.items():
        policy = policy.replace(f"({role},", f"({name},")
    return policy


def write_file(path: Path, text: str) -> None:
    """Raises StorageError naming the file."""
    with storage_errors(path):
        atomic_write(path, (text + "\n").encode())
