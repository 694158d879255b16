"""How a camera's labels are divided: some teach, some judge."""

from __future__ import annotations

#: A quality on fewer held-out frames says little: small samples give up to half of their frames for it.
MIN_HOLDOUT = 4


def label_split(frames: int, holdout_frac: float) -> tuple[int, int]:
    """(train, holdout): how `frames` labels are divided. A small sample still holds out MIN_HOLDOUT frames, at most half of all."""
    holdout = max(int(frames * holdout_frac + 1e-9), min(MIN_HOLDOUT, frames // 2))
    return frames - holdout, holdout
