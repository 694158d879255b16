"""Pictures that commands draw: one look, files that are the same bytes for the same data, errors of ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from configs.errors import UsageError
from configs.files import storage_errors

ENDINGS = (".png", ".svg")


def check_plot_path(path: Path) -> None:
    """Raises UsageError before any work begins when the file could not be drawn."""
    if path.suffix.lower() not in ENDINGS:
        raise UsageError(f"cannot draw {path.name}", subject=str(path), remedy=f"use a name ending in {', '.join(ENDINGS)}")


@contextmanager
def picture(path: Path, panels: int = 1) -> Iterator[list[Any]]:
    """The axes of a new figure, side by side; written to `path` at the end. Raises StorageError when it cannot be."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "driftbox"  # the same picture gives the same bytes
    matplotlib.rcParams["svg.fonttype"] = "none"  # text stays text: smaller, and it can be searched
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, panels, figsize=(8 if panels == 1 else 5.5 * panels, 4.5), squeeze=False, sharey=True)
    try:
        yield list(axes[0])
        figure.tight_layout()
        with storage_errors(path):
            figure.savefig(path, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)
    finally:
        plt.close(figure)


def line_style(policy: str) -> dict[str, Any]:
    """How a policy's line looks: planners solid and thick, baselines thin and dashed, the published ones dotted."""
    if policy.startswith("paper"):
        return {"marker": "x", "ms": 5, "lw": 1.2, "ls": ":"}
    planner = policy.startswith(("thief", "optimal", "lookahead", "clairvoyant"))
    return {"marker": "o", "ms": 4, "lw": 2.5 if planner else 1.2, "ls": "-" if planner else "--"}


def finish_panel(panel: Any, x_label: str, title: str) -> None:
    """Labels, grid and legend of a panel that shows mean quality."""
    panel.set_xlabel(x_label)
    panel.set_ylabel("mean quality")
    panel.set_title(title, fontsize=10)
    panel.grid(alpha=0.3)
    panel.legend(fontsize=7)
