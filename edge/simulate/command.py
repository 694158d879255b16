"""What `driftbox simulate` runs: arguments in, the answer as JSON-ready data out; plot and trace beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from configs.files import atomic_write, storage_errors
from edge.plotting import check_plot_path
from edge.simulate.plots import check_axes, draw_points
from edge.simulate.source import read_source
from edge.simulate.sweep import Point, Setting, fixed_by_hold_out, parse_sweep, run_sweep
from scheduler.registry import expand_list
from scheduler.sim.trace_world import SimResult

DIGITS = 6


def simulate_command(
    path: Path,
    *,
    policies: str = "lookahead,uniform,no-retrain",
    setting: Setting,
    windows: int | None = None,
    sweep: Sequence[str] = (),
    jobs: int = 1,
    plot: Path | None = None,
    save_trace: Path | None = None,
    progress: Callable[[str, float], None] = lambda what, done_frac: None,
) -> dict[str, Any]:
    """Runs the policies over the trace at `path`. The answer holds no time of day and no duration: equal input, equal answer.

    windows: how many after the first (None: all that were recorded). sweep: axes as typed (`parse_sweep`). jobs: processes.
    Returns {"trace", "setting", "fixed_configs", "policies": [...]}, or with a sweep {"trace", "setting", "fixed_configs", "sweep",
    "points": [{"at", "policies"}]}. Raises UsageError, ConfigError or StorageError before any long work begins.
    """
    names, axes = expand_list(policies), parse_sweep(sweep)
    if plot is not None:
        check_plot_path(plot)
        check_axes(axes)
    source = read_source(path, windows)
    if setting.overhead_s is None:
        setting = replace(setting, overhead_s=source.overhead_s)
    trace = source.trace
    if save_trace is not None:
        with storage_errors(save_trace):
            atomic_write(save_trace, (trace.model_dump_json(indent=1) + "\n").encode())
    points = run_sweep(trace, names, setting, axes, jobs=jobs, progress=progress)
    if plot is not None:
        draw_points(plot, points, axes, _title(points, axes))
    answer: dict[str, Any] = {
        "trace": {
            "source": trace.source,
            "streams": len(trace.streams),
            "windows": trace.windows - 1,
            "window_s": trace.window_s,
        },
        "setting": asdict(setting),
        "fixed_configs": fixed_by_hold_out(trace, setting.seed),
    }
    if not axes:
        return answer | {"policies": _rows(points[0].results)}
    listed = [{"at": dict(p.at), "policies": _rows(p.results)} for p in points]
    return answer | {"sweep": {name: list(values) for name, values in axes.items()}, "points": listed}


def _rows(results: Sequence[SimResult]) -> list[dict[str, Any]]:
    return [
        {
            "policy": r.policy, "mean_quality": round(r.mean_quality, DIGITS), "retrainings": r.retrainings, "admitted": r.admitted,
            "gpu_s": round(r.gpu_s, 3), "plans": r.plans, "streams": {s: round(q, DIGITS) for s, q in r.streams.items()},
        }
        for r in results
    ]  # fmt: skip


def _title(points: Sequence[Point], axes: dict[str, tuple[Any, ...]]) -> str:
    setting, streams = points[0].setting, len(points[0].results[0].streams)
    parts = [
        "" if "streams" in axes else f"{streams} streams",
        "" if "gpus" in axes else f"{setting.gpus:g} GPU",
        f"{setting.profiles} profiles",
    ]
    return ", ".join(part for part in parts if part)
