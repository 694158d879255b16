"""Quality over time of every policy, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from edge.evaluate.run import PolicyResult
from edge.evaluate.studio import EvaluateOptions
from edge.plotting import line_style, picture


def draw(path: Path, results: Sequence[PolicyResult], options: EvaluateOptions) -> None:
    """Mean over the streams, window by window. Raises StorageError when the file cannot be written."""
    with picture(path) as (axes,):
        for result in results:
            mean = np.mean(list(result.f1.values()), axis=0)
            times = (np.arange(len(mean)) + 0.5) * options.window_s
            axes.plot(times, mean, label=f"{result.policy} ({result.mean_f1:.3f})", **line_style(result.policy))
        axes.set_xlabel("virtual time, s")
        by = "regions that moved" if options.task.wants_regions else f"IoU {options.scoring.iou_min:g}"
        axes.set_ylabel(f"{options.task.quality_name} against golden labels ({by})")
        axes.set_title(f"{len(results[0].videos)} streams, {options.gpus:g} GPU")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
