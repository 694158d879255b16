"""Performance over many dimensions: kernel ridge regression with a Matern kernel, nu = 2.5, which is a Gaussian process's mean, with the
process's spread as confidence (card 5.2: the paper has the first, the released code the second, without the Matern kernel)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve, solve_triangular
from scipy.spatial.distance import cdist

from cluster.cilantro.types import FloatArray

#: Length scales (of inputs scaled to a spread of 1) and noise (of values scaled alike) among which the likeliest is taken.
LENGTHS = (0.3, 0.6, 1.2, 2.5, 5.0)
NOISES = (0.01, 0.05, 0.2)
#: Newest points kept: a fit costs their number cubed.
KEPT = 300


@dataclass(frozen=True, kw_only=True)
class _Fit:
    shift: FloatArray
    scale: FloatArray
    mean: float
    spread: float
    length: float
    noise: float
    factor: FloatArray
    weights: FloatArray
    inputs: FloatArray


@dataclass(frozen=True, kw_only=True)
class GaussianProcess:
    """points: (inputs, value), oldest first. Never changes; `updated` copies."""

    points: tuple[tuple[tuple[float, ...], float], ...] = ()

    def updated(self, points: Sequence[tuple[Sequence[float], float]]) -> GaussianProcess:
        """With these points; what is not finite is left out."""
        new = [(tuple(map(float, x)), float(y)) for x, y in points if math.isfinite(y) and all(map(math.isfinite, x))]
        return replace(self, points=(*self.points, *new)[-KEPT:])

    def predict(self, inputs: FloatArray) -> tuple[FloatArray, FloatArray]:
        """(mean, standard deviation) at each row. Nothing known: 0 and 1."""
        if not self.points:
            return np.zeros(len(inputs)), np.ones(len(inputs))
        fit = self._fit
        cross = matern(fit.inputs, (inputs - fit.shift) / fit.scale, fit.length)
        mean = cross.T @ fit.weights
        solved = solve_triangular(fit.factor, cross, lower=True)
        variance = np.maximum(0.0, 1.0 - (solved**2).sum(axis=0))
        return fit.mean + fit.spread * mean, fit.spread * np.sqrt(variance)

    @cached_property
    def _fit(self) -> _Fit:
        """The likeliest length and noise of the grid."""
        inputs = np.array([x for x, _ in self.points])
        values = np.array([y for _, y in self.points])
        shift, scale = inputs.mean(axis=0), inputs.std(axis=0)
        scale = np.where(scale > 1e-12, scale, 1.0) * math.sqrt(inputs.shape[1])
        mean, spread = float(values.mean()), max(float(values.std()), 1e-12)
        scaled, target = (inputs - shift) / scale, (values - mean) / spread
        best: tuple[float, _Fit] | None = None
        for length in LENGTHS:
            kernel = matern(scaled, scaled, length)
            for noise in NOISES:
                found = _factored(kernel, noise, target)
                if found is not None and (best is None or found[0] > best[0]):
                    fit = _Fit(
                        shift=shift, scale=scale, mean=mean, spread=spread, length=length, noise=noise,
                        factor=found[1], weights=found[2], inputs=scaled,
                    )  # fmt: skip
                    best = (found[0], fit)
        assert best is not None, "noise on the diagonal keeps a kernel positive"
        return best[1]

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"points": [[list(x), y] for x, y in self.points]}

    @staticmethod
    def from_dict(data: dict[str, Any]) -> GaussianProcess:
        """Inverse of `as_dict`."""
        return GaussianProcess().updated([(x, y) for x, y in data["points"]])


def matern(left: FloatArray, right: FloatArray, length: float) -> FloatArray:
    """Matern kernel, nu = 2.5: (1 + s + s^2 / 3) exp(-s), s = sqrt(5) distance / length. (rows of left, rows of right)"""
    s = math.sqrt(5) * cdist(left, right) / length
    return np.asarray((1 + s + s**2 / 3) * np.exp(-s), dtype=np.float64)


def _factored(kernel: FloatArray, noise: float, target: FloatArray) -> tuple[float, FloatArray, FloatArray] | None:
    """(log likelihood without its constant, lower Cholesky factor, weights)."""
    try:
        factor, lower = cho_factor(kernel + (noise + 1e-9) * np.eye(len(kernel)), lower=True)
    except LinAlgError:
        return None
    weights = cho_solve((factor, lower), target)
    likelihood = -0.5 * float(target @ weights) - float(np.log(np.diag(factor)).sum())
    return likelihood, np.tril(factor), weights
