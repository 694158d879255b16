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

Spread, ours: the same scan tells how well the points fix the curve. Each b2 is weighted by the likelihood of its residuals under
Gaussian noise (posterior of b2 under a flat prior); the spread of the curves at k around the chosen one, and the error of (b0, b1)
given b2, make the standard deviation there. Few points, noise and distance all widen it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

#: Points of the b2 scan, both ends included.
SCAN_POINTS = 2001

#: Qualities are clipped to below this, so that the removable error is never exactly zero everywhere.
_MOST = 1.0 - 1e-6

#: Noise of one held-out quality (some dozens of pictures) and how many points' worth of residuals it weighs.
POINT_SD = 0.02
POINT_WEIGHT = 2.0

#: No more is not known about a quality than that it lies in 0-1 (variance of the uniform distribution).
_MOST_VAR = 1.0 / 12.0


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
    if len(k) == 1:  # what the scan would find too, two hundred times slower; recorded traces have such runs only
        return LearningCurve(b0=0.0, b1=1.0 / (1.0 - min(max(float(acc[0]), 0.0), _MOST)), b2=0.0)
    scan = _Scan.of(k, np.clip(acc, 0.0, _MOST))
    best = int(np.argmin(scan.sse))
    mean, flat_sse = scan.flat()
    if flat_sse < scan.sse[best] - 1e-12:
        return LearningCurve(b0=0.0, b1=1.0 / (1.0 - mean), b2=0.0, sse=flat_sse)
    return LearningCurve(b0=float(scan.b0[best]), b1=float(scan.b1[best]), b2=float(scan.b2[best]), sse=float(scan.sse[best]))


def curve_sd(
    epochs: Sequence[float], quality: Sequence[float], at: Sequence[float], *, point_sd: float = POINT_SD
) -> tuple[float, ...]:
    """Standard deviation (0-1) of what `fit_curve` says at each of the epochs `at`; 0 when there is one point only.

    point_sd: expected noise of one point; the residuals of the fit correct it. Errors: ValueError as `fit_curve`, and for a
    point_sd that is not positive.
    """
    if not point_sd > 0:
        raise ValueError(f"curve_sd needs a positive point_sd, got {point_sd}")
    chosen = fit_curve(epochs, quality)
    if len(quality) < 2:
        return tuple(0.0 for _ in at)
    k, acc = np.asarray(epochs, float), np.clip(np.asarray(quality, float), 0.0, _MOST)
    scan = _Scan.of(k, acc)
    noise_var = (POINT_WEIGHT * point_sd**2 + chosen.sse) / (POINT_WEIGHT + max(0, len(k) - 3))
    fits = np.isfinite(scan.sse)
    if not fits.any():  # no curve passes anywhere near: the constant it is, known as well as a mean
        return tuple(min(noise_var / len(k), _MOST_VAR) ** 0.5 for _ in at)
    excess = np.where(fits, scan.sse, np.inf) - scan.sse[fits].min()
    weight = np.exp(-0.5 * excess / noise_var)
    weight = weight / weight.sum()
    return tuple(float(np.sqrt(weight @ scan.square_error(epoch, chosen.at(epoch), noise_var))) for epoch in at)


@dataclass(frozen=True, kw_only=True)
class _Scan:
    """The best curve for each scanned b2: b0, b1, b2 and sse, each (S,). k: (N,) epochs; acc, (N,), the qualities.
    gap: (S, N) the removable error of each point."""

    k: np.ndarray
    acc: np.ndarray
    b0: np.ndarray
    b1: np.ndarray
    b2: np.ndarray
    gap: np.ndarray
    sse: np.ndarray

    @classmethod
    def of(cls, k: np.ndarray, acc: np.ndarray) -> _Scan:
        b2 = np.linspace(0.0, 1.0 - float(acc.max()), SCAN_POINTS)
        gap = np.maximum(1.0 - acc[None, :] - b2[:, None], 0.0)
        b0, b1 = nnls_pair(gap**2 * k[None, :], gap**2, gap)
        rate = b0[:, None] * k[None, :] + b1[:, None]
        with np.errstate(divide="ignore"):
            sse = ((acc[None, :] - (1.0 - (1.0 / rate + b2[:, None]))) ** 2).sum(axis=1)
        return cls(k=k, acc=acc, b0=b0, b1=b1, b2=b2, gap=gap, sse=sse)

    def flat(self) -> tuple[float, float]:
        """(value, squared error) of the constant."""
        mean = float(self.acc.mean())
        return mean, float(((self.acc - mean) ** 2).sum())

    def at(self, epochs: float) -> np.ndarray:
        """(S,) quality of each curve after `epochs`."""
        rate = self.b0 * epochs + self.b1
        removable = np.divide(1.0, rate, out=np.full_like(rate, np.inf), where=rate > 0)
        return np.clip(1.0 - (removable + self.b2), 0.0, 1.0)

    def square_error(self, epochs: float, chosen: float, noise_var: float) -> np.ndarray:
        """(S,) expected squared distance of the quality after `epochs` from `chosen`, if the curve's b2 is the true one: the curve's
        own distance, and to first order the variance for the error of (b0, b1) given b2 (no more than a quality can have)."""
        x, y = self.gap**2 * self.k[None, :], self.gap**2
        xx, yy, xy = (x * x).sum(1), (y * y).sum(1), (x * y).sum(1)
        det = xx * yy - xy * xy
        rate_var = noise_var * _ratio(epochs * epochs * yy - 2 * epochs * xy + xx, det)
        rate = self.b0 * epochs + self.b1
        return (self.at(epochs) - chosen) ** 2 + np.minimum(_ratio(rate_var, rate**4), _MOST_VAR)


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
