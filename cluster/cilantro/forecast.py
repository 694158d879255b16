"""Next load of a job: ARMA(1,1), upper end of the interval (card section 6).

Fitted here in a few lines of numpy and scipy instead of statsmodels: a round fits hundreds of series within seconds, statsmodels' state
space takes 50 to 200 ms for one, and pulls pandas and patsy into the controller. Conditional least squares from Hannan and Rissanen's
start; tested against the parameters of series that were made with them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.signal import lfilter

from cluster.cilantro.types import FloatArray

#: Samples kept, and samples from which on a model is fitted (card section 6).
KEPT = 4000
FIT_FROM = 4
#: Standard normal quantile of a two-sided 0.90 interval.
CONFIDENCE = 0.90
Z = 1.6448536269514722
#: |phi| and |theta| stay below it, so that the process is stationary and invertible.
EDGE = 0.98
GAUSS_NEWTON_STEPS = 6


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Load expected next. low, high: ends of the 90 percent interval; policies take the high one, so that load is over-estimated.
    made_by: arma, mean (no fit was possible), none (no data)."""

    low: float
    middle: float
    high: float
    made_by: str


@dataclass(frozen=True, kw_only=True)
class Arma:
    """y_t = mean + phi (y_{t-1} - mean) + e_t + theta e_{t-1}; sigma: of e."""

    mean: float
    phi: float
    theta: float
    sigma: float


NO_DATA = Forecast(low=1.0, middle=1.0, high=1.0, made_by="none")


def forecast(history: Sequence[float], *, steps: int = 1) -> Forecast:
    """Mean load over the next `steps` samples (the paper: one). Without data (1, 1, 1); without a fit mean and m +- 2 * 0.9 * s of
    the history, as published. Never below 0; entries that are no numbers are left out."""
    values = np.asarray([v for v in history[-KEPT:] if math.isfinite(v)], dtype=np.float64)
    if not len(values):
        return NO_DATA
    model = fit(values) if len(values) >= FIT_FROM else None
    if model is None:
        return _interval(float(values.mean()), 2 * CONFIDENCE * float(values.std()), "mean")
    middle, sd = _ahead(values, model, steps)
    if not (math.isfinite(middle) and math.isfinite(sd)):
        return _interval(float(values.mean()), 2 * CONFIDENCE * float(values.std()), "mean")
    return _interval(middle, Z * sd, "arma")


def oracle(true_load: float) -> Forecast:
    """The forecast of who knows."""
    return Forecast(low=true_load, middle=true_load, high=true_load, made_by="oracle")


def _interval(middle: float, half: float, made_by: str) -> Forecast:
    return Forecast(low=max(0.0, middle - half), middle=max(0.0, middle), high=max(0.0, middle + half), made_by=made_by)


def fit(values: FloatArray) -> Arma | None:
    """Conditional least squares. None where there is nothing to fit: too short, constant, or numbers that overflow."""
    mean = float(values.mean())
    centred = values - mean
    spread = float(centred.std())
    if len(values) < FIT_FROM or not math.isfinite(spread) or spread <= 1e-12 * max(1.0, abs(mean)):
        return None
    centred = centred / spread
    phi, theta = _start(centred)
    best = _errors(centred, phi, theta)
    for _ in range(GAUSS_NEWTON_STEPS):
        step = _step(centred, best, theta)
        tried = (_inside(phi + step[0]), _inside(theta + step[1]))
        errors = _errors(centred, *tried)
        if not errors @ errors < best @ best * (1 - 1e-6):
            break
        (phi, theta), best = tried, errors
    sigma = spread * math.sqrt(float(best @ best) / len(best))
    return Arma(mean=mean, phi=phi, theta=theta, sigma=sigma) if math.isfinite(sigma) else None


def _start(centred: FloatArray) -> tuple[float, float]:
    """Hannan and Rissanen: errors of a long autoregression stand for the unknown ones."""
    lags = min(8, len(centred) // 4)
    if lags < 2:
        denominator = float(centred[:-1] @ centred[:-1])
        return (_inside(float(centred[1:] @ centred[:-1]) / denominator) if denominator else 0.0), 0.0
    past = np.column_stack([centred[lags - k - 1 : len(centred) - k - 1] for k in range(lags)])
    weights = np.linalg.lstsq(past, centred[lags:], rcond=None)[0]
    errors = centred[lags:] - past @ weights
    both = np.column_stack([centred[lags:-1], errors[:-1]])
    found = np.linalg.lstsq(both, centred[lags + 1 :], rcond=None)[0]
    return _inside(float(found[0])), _inside(float(found[1]))


def _inside(value: float) -> float:
    return min(EDGE, max(-EDGE, value)) if math.isfinite(value) else 0.0


def _errors(centred: FloatArray, phi: float, theta: float) -> FloatArray:
    """e_t = y_t - phi y_{t-1} - theta e_{t-1}, with zeros before the first."""
    return np.asarray(lfilter([1.0, -phi], [1.0, theta], centred), dtype=np.float64)


def _step(centred: FloatArray, errors: FloatArray, theta: float) -> FloatArray:
    """One Gauss-Newton step: the errors' derivatives follow the same recursion."""
    by_phi = lfilter([0.0, -1.0], [1.0, theta], centred)
    by_theta = lfilter([0.0, -1.0], [1.0, theta], errors)
    slopes = np.column_stack([by_phi, by_theta])
    return np.asarray(np.linalg.lstsq(slopes, -errors, rcond=None)[0], dtype=np.float64)


def _ahead(values: FloatArray, model: Arma, steps: int) -> tuple[float, float]:
    """Mean of the next `steps` values and its standard deviation.

    An error e made k steps before the end moves the sum of what follows by psi_0 + ... + psi_{k-1}, psi_0 = 1,
    psi_i = phi^(i-1) (phi + theta)."""
    centred = values - model.mean
    last_error = float(_errors(centred, model.phi, model.theta)[-1])
    first = model.phi * float(centred[-1]) + model.theta * last_error
    decay = model.phi ** np.arange(steps)
    psi = np.concatenate([[1.0], decay[:-1] * (model.phi + model.theta)]) if steps > 1 else np.ones(1)
    weights = np.cumsum(psi)
    return model.mean + first * float(decay.mean()), model.sigma * math.sqrt(float(weights @ weights)) / steps
