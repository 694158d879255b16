"""From measured throughput to the speed curve that plans use: s(0) = 0, s(100) = 1, never falling, linear in between.

Ekya takes the duration of a retraining under a share g as C / s(g), with s the measured relative throughput (papers/ekya.md, 4.3). Its
authors measured one trainer, alone on its GPU, and warn that such curves are too good when jobs run together: their shares then add
up to more than the device. What we changed, and why:

- Every share is measured several times, in turns, and the median counts: one disturbed measurement moves nothing.
- The medians are made monotone by isotonic regression (pool adjacent violators, weighted by the number of measurements), because more
  share never makes a job slower; how far that moved a point is part of how well the curve is known.
- Jobs of several models are pooled after each was divided by its own speed at 100 pct, so that the curve is about shares.
- The plan uses the curve of jobs that ran *beside* another job, because a retraining always runs beside live inference. Only its shape:
  that a job does less per second of compute beside another is already in the box's costs, which are measured on a box that runs.
  Beside another job nobody can have everything, so the shape is tied to the curve measured alone at the largest share that was
  measured both ways, and continues along it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

import numpy as np
from scipy.optimize import isotonic_regression

FULL_PCT = 100.0
#: Relative errors up to which a curve is known well, and roughly; beyond, a proportional guess is no worse.
WELL_FRAC, ROUGHLY_FRAC = 0.05, 0.15


@dataclass(frozen=True, kw_only=True)
class SpeedSample:
    """A job ran at `share_pct` for a while. throughput: work per second, in any unit, the same for all samples of a job.
    Raises ValueError for a share that is not above 0, or a throughput that is negative or not finite."""

    share_pct: float
    throughput: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.share_pct) and self.share_pct > 0):
            raise ValueError(f"a share must be above 0 percent, got {self.share_pct}")
        if not (math.isfinite(self.throughput) and self.throughput >= 0):
            raise ValueError(f"a throughput must be 0 or more, got {self.throughput}")


@dataclass(frozen=True, kw_only=True)
class SpeedPoint:
    """factor: s(share_pct). spread_frac: median distance of the measurements from their median, relative to it; samples: how many;
    repaired_frac: how far the fit moved their median, relative to it."""

    share_pct: float
    factor: float
    spread_frac: float
    repaired_frac: float
    samples: int


@dataclass(frozen=True, kw_only=True)
class SpeedFit:
    """points: by share. curve: what `Snapshot.speed` takes. full: the throughput at 100 pct that factors are relative to."""

    points: tuple[SpeedPoint, ...]
    curve: tuple[tuple[float, float], ...]
    full: float

    @property
    def error_frac(self) -> float:
        """How well the curve is known: the largest spread or repair of a point."""
        return max((max(p.spread_frac, p.repaired_frac) for p in self.points), default=0.0)

    @property
    def known(self) -> Literal["well", "roughly", "badly"]:
        if self.error_frac <= WELL_FRAC:
            return "well"
        return "roughly" if self.error_frac <= ROUGHLY_FRAC else "badly"

    def at(self, share_pct: float) -> float:
        """s at a share; flat beyond the last point."""
        return float(np.interp(share_pct, [x for x, _ in self.curve], [y for _, y in self.curve]))


def fit(samples: Sequence[SpeedSample], *, along: SpeedFit | None = None) -> SpeedFit:
    """The curve of one job, or of jobs whose throughputs are already relative.

    along: the curve to be tied to, and to continue with, where nothing was measured at 100 pct or more.
    Raises ValueError: no samples; none at 100 pct or more and nothing to be tied to; no throughput where it is tied.
    """
    if not samples:
        raise ValueError("a speed curve needs at least one measurement")
    groups = {x: sorted(s.throughput for s in samples if s.share_pct == x) for x in sorted({s.share_pct for s in samples})}
    shares, medians = list(groups), [median(found) for found in groups.values()]
    fitted = isotonic_regression(medians, weights=[float(len(found)) for found in groups.values()]).x
    full = _full(shares, fitted, along)
    points = tuple(
        SpeedPoint(
            share_pct=x, factor=float(y) / full, spread_frac=_spread_frac(groups[x], m), samples=len(groups[x]),
            repaired_frac=abs(float(y) - m) / m if m > 0 else float(y > 0),
        )
        for x, m, y in zip(shares, medians, fitted, strict=True)
    )  # fmt: skip
    return SpeedFit(points=points, curve=_curve(points, along), full=full)


def pooled(jobs: Sequence[Sequence[SpeedSample]], *, along: SpeedFit | None = None) -> SpeedFit:
    """One curve of several jobs: each is divided by its own throughput at 100 pct, then all measurements of a share count together.
    Raises ValueError as `fit` does."""
    relative: list[SpeedSample] = []
    for samples in jobs:
        full = fit(samples, along=along).full
        relative += [SpeedSample(share_pct=s.share_pct, throughput=s.throughput / full) for s in samples]
    return fit(relative, along=along)


def planned(alone: Sequence[Sequence[SpeedSample]], beside: Sequence[Sequence[SpeedSample]]) -> SpeedFit:
    """The curve for plans: of jobs beside others where that was measured, else of jobs alone. Raises ValueError as `fit` does."""
    lonely = pooled(alone)
    measured = [samples for samples in beside if samples]
    return pooled(measured, along=lonely) if measured else lonely


def _full(shares: Sequence[float], fitted: Sequence[float], along: SpeedFit | None) -> float:
    """The throughput that 100 pct stands for."""
    if shares[-1] >= FULL_PCT:
        full = float(np.interp(FULL_PCT, [0.0, *shares], [0.0, *fitted]))
    elif along is None:
        raise ValueError(f"nothing was measured at 100 pct: the largest share is {shares[-1]:g}")
    else:
        factor = along.at(shares[-1])
        full = float(fitted[-1]) / factor if factor > 0 else 0.0
    if full <= 0:
        raise ValueError("the job did nothing at its largest share: there is no speed to compare with")
    return full


def _curve(points: Sequence[SpeedPoint], along: SpeedFit | None) -> tuple[tuple[float, float], ...]:
    """Points as pairs, with (0, 0), with exactly 1 at 100, and continued along another curve where that goes on."""
    pairs = {0.0: 0.0} | {p.share_pct: p.factor for p in points}
    last_pct, last = points[-1].share_pct, points[-1].factor
    tied = along.at(last_pct) if along is not None else 0.0
    if along is not None and tied > 0:
        pairs |= {x: y * last / tied for x, y in along.curve if x > last_pct}
    pairs[FULL_PCT] = 1.0
    ordered = sorted(pairs.items())
    # Rounding, and the tie to another curve, must not make it fall anywhere.
    factors = np.maximum.accumulate([round(min(y, 1.0) if x < FULL_PCT else max(y, 1.0), 6) for x, y in ordered])
    return tuple((x, float(y)) for (x, _), y in zip(ordered, factors, strict=True))


def _spread_frac(found: Sequence[float], middle: float) -> float:
    away = median(abs(value - middle) for value in found)
    return away / middle if middle > 0 else float(away > 0)
