"""How far a window's predicted quality may be off, from what came of earlier predictions of the same camera. Ours.

The error of a window's prediction is taken as normal around 0. Before anything came of a prediction its variance is the calibration's
noise (`ErrorPrior.noise_sd`), which weighs as much as `ErrorPrior.noise_weight` windows; each window that closed adds the square of
its own error:

    sd^2 = (weight * noise_sd^2 + sum (predicted - realised)^2) / (weight + n)

A band is predicted -+ Z * sd, and holds `COVERS_FRAC` of the windows if the errors are as normal as that. It rests on earlier
windows only, so what it held is an honest count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.ekya.calibration import ErrorPrior

#: Part of the windows whose realised quality a band should hold, and the normal quantile that goes with it.
COVERS_FRAC = 0.8
Z = 1.2816
#: Newest windows that count.
MAX_WINDOWS = 60
PRIOR = ErrorPrior()


@dataclass(frozen=True, kw_only=True)
class Band:
    """Qualities, 0-1."""

    predicted: float
    low: float
    high: float

    def holds(self, realised: float) -> bool:
        return self.low <= realised <= self.high


def error_sd(errors: Sequence[float], prior: ErrorPrior = PRIOR) -> float:
    """Standard deviation of the next prediction's error, from those before it (the newest `MAX_WINDOWS` count; what is no number does
    not)."""
    known = [e for e in errors if math.isfinite(e)][-MAX_WINDOWS:]
    total = prior.noise_weight * prior.noise_sd**2 + sum(e * e for e in known)
    return math.sqrt(total / (prior.noise_weight + len(known)))


def bands(windows: Sequence[tuple[float | None, float | None]], prior: ErrorPrior = PRIOR) -> tuple[Band | None, ...]:
    """The band of each window of a camera. windows: (predicted, realised) in order of time, None: not known; the newest one may still
    be open. None where nothing was predicted."""
    errors: list[float] = []
    found: list[Band | None] = []
    for predicted, realised in windows:
        if predicted is None or not math.isfinite(predicted):
            found.append(None)
            continue
        half = Z * error_sd(errors, prior)
        found.append(Band(predicted=predicted, low=max(0.0, predicted - half), high=min(1.0, predicted + half)))
        if realised is not None:
            errors.append(predicted - realised)
    return tuple(found)
