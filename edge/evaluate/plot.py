"""F1 over time of every policy, as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from configs.errors import UsageError
from configs.files import storage_errors
from edge.evaluate.run import PolicyResult
from edge.evaluate.studio import EvaluateOptions

ENDINGS = (".png", ".svg")


def check_plot_path(path: Path) -> None:
    """Raises UsageError before any work begins when the file could not be drawn."""
    if path.suffix.lower() not in ENDINGS:
        raise UsageError(f"cannot draw {path.name}", subject=str(path), remedy=f"use a name ending in {', '.join(ENDINGS)}")


def draw(path: Path, results: Sequence[PolicyResult], options: EvaluateOptions) -> None:
    """Mean over the streams, window by window. Raises StorageError when the file cannot be written."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "driftbox"  # the same picture gives the same bytes
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5))
    for result in results:
        mean = np.mean(list(result.f1.values()), axis=0)
        times = (np.arange(len(mean)) + 0.5) * options.window_s
        bold = result.policy.startswith("thief")
        axes.plot(
            times, mean, marker="o", ms=4, lw=2.5 if bold else 1.2, ls="-" if bold else "--",
            label=f"{result.policy} ({result.mean_f1:.3f})",
        )  # fmt: skip
    axes.set_xlabel("virtual time, s")
    axes.set_ylabel(f"F1 against golden labels (IoU {options.scoring.iou_min:g})")
    axes.set_title(f"{len(results[0].videos)} streams, {options.gpus:g} GPU")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.tight_layout()
    try:
        with storage_errors(path):
            figure.savefig(path, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)
    finally:
        plt.close(figure)
