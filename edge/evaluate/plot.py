"""Quality over time of every policy, as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from edge.evaluate.run import PolicyResult
from edge.evaluate.studio import EvaluateOptions
from edge.plotting import line_style, picture


def draw(path: Path, results: Sequence[PolicyResult], options: EvaluateOptions) -> None:
    """Mean over the streams, window by window. Raises StorageError when the file cannot be written."""
    by = "regions that moved" if options.task.wants_regions else f"IoU {options.scoring.iou_min:g}"
    draw_lines(
        path, {result.policy: result.f1 for result in results}, window_s=options.window_s,
        y_label=f"{options.task.quality_name} against golden labels ({by})",
        title=f"{len(results[0].videos)} streams, {options.gpus:g} GPU",
    )  # fmt: skip


def draw_lines(
    path: Path, f1: Mapping[str, Mapping[str, Sequence[float]]], *, window_s: float, y_label: str, title: str
) -> None:
    """f1: what a line is called -> stream -> quality (0-1) of each window; drawn is the mean over the streams, and after the name that
    over the windows but the first, which has nothing to learn from. Raises StorageError when the file cannot be written."""
    with picture(path) as (axes,):
        for name, streams in f1.items():
            mean = np.mean(list(streams.values()), axis=0)
            times = (np.arange(len(mean)) + 0.5) * window_s
            axes.plot(times, mean, label=f"{name} ({np.mean(mean[1:] if len(mean) > 1 else mean):.3f})", **line_style(name))
        axes.set_xlabel("virtual time, s")
        axes.set_ylabel(y_label)
        axes.set_title(title)
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
