"""Learning curves: quality after k epochs, in the form of Optimus (EuroSys'18) as Ekya uses it.

    quality(k) = 1 - ( 1/(b0*k + b1) + b2 )        b0, b1, b2 >= 0, k in epochs, quality 0-1

b2 is the error that no training removes, 1/b1 the removable error before training, b0 how fast it goes; with all three
non-negative the curve never falls and never exceeds 1 - b2.

Fit, ours (Optimus fits a loss by bounded least squares, the authors of Ekya correct a seed curve by one point): for a fixed b2,
1/(1 - quality - b2) = b0*k + b1 is linear in (b0, b1). With d = 1 - quality - b2, a row weighted by d^2 has its residual in
quality to first order, and reads  d^2*(b0*k + b1) = d, which needs no division. b2 is scanned over [0, 1 - max quality]; for
each, non-negative least squares in two variables is solved in closed form (all b2 at once); the least squared error in quality
wins, ties to the smallest b2. The constant at the mean competes too: a row near quality 1 weighs almost nothing, so points that
fall from there can leave every scanned curve worse than no curve.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

#: Points of the b2 scan, both ends included.
SCAN_POINTS = 2001

#: Qualities are clipped to below this, so that the removable error is never exactly zero everywhere.
_MOST = 1.0 - 1e-6


@dataclass(frozen=True, kw_only=True)
class LearningCurve:
    """quality(k) = 1 - (1/(b0*k + b1) + b2), clipped to 0-1. sse: squared error of the fit, summed over its points."""

    b0: float
    b1: float
    b2: float
    sse: float = 0.0

    def __post_init__(self) -> None:
        if min(self.b0, self.b1, self.b2) < 0:
            raise ValueError(f"curve parameters must not be negative: {self}")

    def at(self, epochs: float) -> float:
        """Quality after `epochs` epochs."""
        rate = self.b0 * epochs + self.b1
        if rate <= 0:
            return 0.0
        return min(1.0, max(0.0, 1.0 - (1.0 / rate + self.b2)))


def fit_curve(epochs: Sequence[float], quality: Sequence[float]) -> LearningCurve:
    """The curve nearest to the points (epochs[i], quality[i]); include epoch 0 with the quality before training.

    Falling points give a flat curve (b0 = 0). Errors: ValueError for no points, unequal lengths or values that are not finite.
    """
    k = np.asarray(epochs, float)
    acc = np.asarray(quality, float)
    if k.ndim != 1 or k.shape != acc.shape or len(k) == 0:
        raise ValueError(f"fit_curve needs as many qualities as epochs and at least one, got {k.shape} and {acc.shape}")
    if not (np.isfinite(k).all() and np.isfinite(acc).all()):
        raise ValueError("fit_curve needs finite points")
    acc = np.clip(acc, 0.0, _MOST)
    b2 = np.linspace(0.0, 1.0 - float(acc.max()), SCAN_POINTS)  # (S,)
    gap = np.maximum(1.0 - acc[None, :] - b2[:, None], 0.0)  # (S, N): d, the removable error
    b0, b1 = nnls_pair(gap**2 * k[None, :], gap**2, gap)
    rate = b0[:, None] * k[None, :] + b1[:, None]
    with np.errstate(divide="ignore"):
        sse = ((acc[None, :] - (1.0 - (1.0 / rate + b2[:, None]))) ** 2).sum(axis=1)
    best = int(np.argmin(sse))
    mean = float(acc.mean())
    flat_sse = float(((acc - mean) ** 2).sum())
    if flat_sse < sse[best] - 1e-12:
        return LearningCurve(b0=0.0, b1=1.0 / (1.0 - mean), b2=0.0, sse=flat_sse)
    return LearningCurve(b0=float(b0[best]), b1=float(b1[best]), b2=float(b2[best]), sse=float(sse[best]))


def nnls_pair(x: np.ndarray, y: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Non-negative least squares in two variables for many systems at once: min |p*x + q*y - target|, p, q >= 0.

    x, y, target: float (S, N), one system per row. Returns (p, q), each (S,). The problem is convex, so the free solution is
    the answer where it is non-negative, else the better of the two edges.
    """
    xx, yy, xy = (x * x).sum(1), (y * y).sum(1), (x * y).sum(1)
    xt, yt = (x * target).sum(1), (y * target).sum(1)
    det = xx * yy - xy * xy
    # a rank-deficient row (one point, or all at one epoch) is left to its edges
    regular = det > 1e-12 * np.maximum(xx * yy, np.finfo(float).tiny)
    free_p = _ratio(xt * yy - yt * xy, np.where(regular, det, 0.0))
    free_q = _ratio(yt * xx - xt * xy, np.where(regular, det, 0.0))
    inside = regular & (free_p >= 0) & (free_q >= 0)
    edge_p, edge_q = np.maximum(_ratio(xt, xx), 0.0), np.maximum(_ratio(yt, yy), 0.0)
    # |r|^2 - |target|^2 on an edge is -p*xt or -q*yt: the larger product fits better
    on_q = edge_q * yt >= edge_p * xt
    return np.where(inside, free_p, np.where(on_q, 0.0, edge_p)), np.where(inside, free_q, np.where(on_q, edge_q, 0.0))


def _ratio(top: np.ndarray, bottom: np.ndarray) -> np.ndarray:
    return np.divide(top, bottom, out=np.zeros_like(top), where=bottom > 0)
