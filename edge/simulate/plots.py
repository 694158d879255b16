"""What `simulate --plot` draws: quality over time for one setting, quality along an axis for a sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from configs.errors import UsageError
from edge.plotting import finish_panel, line_style, picture
from edge.simulate.sweep import Point

LABELS = {
    "streams": "streams", "gpus": "GPUs", "window": "window, s", "quantum": "quantum, % of a GPU",
    "noise": "noise on predictions (standard deviation)",
}  # fmt: skip
#: More axes than these cannot be drawn on one page: the first along, the second as panels.
MAX_AXES = 2


def check_axes(axes: Mapping[str, Sequence[Any]]) -> None:
    """Raises UsageError for more axes than a picture can hold."""
    if len(axes) > MAX_AXES:
        raise UsageError(
            f"plot: a sweep over {len(axes)} axes cannot be drawn", subject="plot", remedy=f"sweep over {MAX_AXES} at most"
        )


def draw_points(path: Path, points: Sequence[Point], axes: Mapping[str, Sequence[Any]], title: str) -> None:
    """One line per policy. Raises StorageError when the file cannot be written."""
    if axes:
        _draw_sweep(path, points, axes, title)
    else:
        _draw_time(path, points[0], title)


def _draw_time(path: Path, point: Point, title: str) -> None:
    with picture(path) as (panel,):
        for result in point.results:
            mean = np.mean(list(result.quality.values()), axis=0)
            label = f"{result.policy} ({result.mean_quality:.3f})"
            panel.plot(np.arange(len(mean)), mean, label=label, **line_style(result.policy))
        finish_panel(panel, "window", title)


def _draw_sweep(path: Path, points: Sequence[Point], axes: Mapping[str, Sequence[Any]], title: str) -> None:
    along, *rest = axes
    across = rest[0] if rest else ""
    with picture(path, len(axes[across]) if across else 1) as panels:
        for panel, value in zip(panels, axes[across] if across else [None], strict=True):
            chosen = [p for p in points if not across or p.at[across] == value]
            for number, result in enumerate(chosen[0].results):
                quality = [p.results[number].mean_quality for p in chosen]
                panel.plot([p.at[along] for p in chosen], quality, label=result.policy, **line_style(result.policy))
            finish_panel(panel, LABELS[along], f"{title}, {across} {value:g}" if across else title)
