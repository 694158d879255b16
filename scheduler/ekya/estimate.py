"""EstimateAccuracy: what one stream's window average will be under given shares. Ekya (NSDI'22) section 4, Alg. 2.

Symbols of the paper -> names here:
    a0          `StreamView.quality`           quality of the serving model on current data
    phi         `KnobProfile.quality_frac`     what an inference configuration keeps of it
    C_gamma     `RetrainOption.cost_gpu_s`     GPU-seconds at 100 pct
    a_gamma     `RetrainOption.end_quality`
    s(.)        `SpeedCurve.at`                relative throughput at a share, s(100 pct) = 1
    T'          `Snapshot.remaining_s`
    D           `duration_s` = C_gamma / s(R)  infinite at share 0

    static      A = phi * [a0*D + a_gamma*(T'-D)] / T'
    hand-back   A = [phi*a0*D + phi_after*a_gamma*(T'-D)] / T'     phi_after: best knobs at the shares of both jobs
    none        A = phi * a0

What we changed: demand <= share (the listing's strict < refuses a job its exact demand); a retraining that does not end above
a0 is never planned, as in the authors' code (in hand-back mode it could otherwise win for the share that it frees);
speed above one GPU counts whole GPUs linearly and the remainder by the curve. No credit for intermediate checkpoints.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from configs.errors import ConfigError
from scheduler.types import KnobProfile, RetrainOption, Snapshot, StreamView

#: An improvement must exceed this, so that float noise never decides; ties keep the incumbent.
QUALITY_TOL = 1e-12

#: demand_pct may come out of a division; a share covers it when it is short by no more than this.
SHARE_TOL_PCT = 1e-9


class SpeedCurve:
    """Relative throughput of a training job at a share: s(0)=0, s(100)=1, linear between measured points.

    points: (share pct, factor) with increasing shares that start at 0 (or have it added) and reach at least 100; empty means
    proportional, s(x) = x/100. Beyond the last point the curve repeats: with points up to 100, s(250) = 2 + s(50).
    Errors: ConfigError for points that are not such a curve.
    """

    def __init__(self, points: Sequence[tuple[float, float]] = ()) -> None:
        problems = speed_problems(points)
        if problems:
            raise ConfigError(f"speed curve: {'; '.join(problems)}", problems=tuple(("speed", p) for p in problems))
        pairs = [(float(x), float(y)) for x, y in points] or [(0.0, 0.0), (100.0, 1.0)]
        if pairs[0][0] > 0:
            pairs.insert(0, (0.0, 0.0))
        self._x = [x for x, _ in pairs]
        self._y = [y for _, y in pairs]

    def at(self, share_pct: float) -> float:
        """Factor at `share_pct` (0 or below: 0)."""
        if share_pct <= 0:
            return 0.0
        whole, rest = divmod(share_pct, self._x[-1])
        return whole * self._y[-1] + self._between(rest)

    def _between(self, share_pct: float) -> float:
        i = bisect_right(self._x, share_pct) - 1
        if i >= len(self._x) - 1:
            return self._y[-1]
        x0, x1, y0, y1 = self._x[i], self._x[i + 1], self._y[i], self._y[i + 1]
        return y0 + (y1 - y0) * (share_pct - x0) / (x1 - x0)


def speed_problems(points: Sequence[tuple[float, float]]) -> list[str]:
    """What keeps `points` from being a speed curve; empty when nothing does (no points at all are fine)."""
    if not points:
        return []
    shares = [float(x) for x, _ in points]
    factors = [float(y) for _, y in points]
    if not all(math.isfinite(v) for v in (*shares, *factors)):
        return ["every point needs two finite numbers"]
    problems = []
    if shares[0] < 0 or any(b <= a for a, b in zip(shares, shares[1:], strict=False)):
        problems.append("shares must increase from 0")
    if any(y < 0 for y in factors):
        problems.append("factors must not be negative")
    if shares[0] == 0 and factors[0] != 0:
        problems.append("the factor at share 0 must be 0")
    if shares[-1] < 100:
        problems.append(f"the last point must be at 100 pct or more, it is at {shares[-1]:g}")
    if not problems and abs(float(np.interp(100.0, [0.0, *shares], [0.0, *factors])) - 1.0) > 1e-6:
        problems.append("the factor at 100 pct must be 1 (costs are GPU-seconds at 100 pct)")
    return problems


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What one stream does under one pair of shares. knobs None: no knobs fit; retrain None: no retraining (or it is paused).
    quality: window average; below_floor: the quality seen *before* the swap is under the snapshot's min_quality."""

    knobs: KnobProfile | None
    retrain: RetrainOption | None
    quality: float
    below_floor: bool


def best_knobs(knobs: Sequence[KnobProfile], share_pct: float) -> KnobProfile | None:
    """lambda*: the affordable knobs that keep the most quality; ties by lower demand, then by list order. None if none fit."""
    fits = [k for k in knobs if k.demand_pct <= share_pct + SHARE_TOL_PCT]
    return min(fits, key=lambda k: (-k.quality_frac, k.demand_pct), default=None)


def kept_frac(knobs: KnobProfile | None, share_pct: float) -> float:
    """phi of the chosen knobs; 0 without knobs, and 0 at share 0 whatever the profile claims (nothing runs on nothing)."""
    return knobs.quality_frac if knobs is not None and share_pct > 0 else 0.0


def duration_s(cost_gpu_s: float, train_pct: float, speed: SpeedCurve) -> float:
    """D: wall seconds of a retraining at a constant share; infinite when the share moves nothing."""
    factor = speed.at(train_pct)
    return cost_gpu_s / factor if factor > 0 else math.inf


def is_useful(option: RetrainOption, view: StreamView) -> bool:
    """Does the option end above the serving model? No other is ever worth its share."""
    return option.end_quality > view.quality


@dataclass
class StreamEstimator:
    """EstimateAccuracy for one stream of a snapshot, for any pair of shares in percent points. Pure; caches what repeats."""

    view: StreamView
    remaining_s: float
    min_quality: float
    hand_back: bool
    speed: SpeedCurve
    options: tuple[RetrainOption, ...] = ()
    _knobs: dict[float, tuple[KnobProfile | None, float]] = field(default_factory=dict)

    @classmethod
    def of(cls, view: StreamView, snapshot: Snapshot, speed: SpeedCurve, *, only_useful: bool = True) -> StreamEstimator:
        """The estimator of `view`. only_useful: leave out options that do not end above the serving model."""
        options = tuple(o for o in view.retrain if not only_useful or is_useful(o, view))
        hand_back = snapshot.estimate == "hand-back"
        return cls(view, max(0.0, snapshot.remaining_s), snapshot.min_quality, hand_back, speed, options)

    def knobs_at(self, share_pct: float) -> tuple[KnobProfile | None, float]:
        """(lambda*, phi) at a share."""
        found = self._knobs.get(share_pct)
        if found is None:
            knobs = best_knobs(self.view.knobs, share_pct)
            found = self._knobs[share_pct] = (knobs, kept_frac(knobs, share_pct))
        return found

    def is_below(self, frac: float) -> bool:
        """Is the instantaneous quality before the swap under the floor?"""
        return self.view.quality * frac < self.min_quality - QUALITY_TOL

    def with_option(self, option: RetrainOption | None, infer_pct: float, train_pct: float) -> Choice | None:
        """The choice of exactly this option; None if it would not end within the window."""
        knobs, frac = self.knobs_at(infer_pct)
        below = self.is_below(frac)
        if option is None:
            return Choice(knobs=knobs, retrain=None, quality=frac * self.view.quality, below_floor=below)
        quality = self._retrained(option, frac, infer_pct, train_pct, self.speed.at(train_pct))
        if quality is None:
            return None
        return Choice(knobs=knobs, retrain=option, quality=quality, below_floor=below)

    def best(self, infer_pct: float, train_pct: float) -> Choice:
        """PickConfigs for this stream: lambda*, then the first option that beats every earlier one and doing nothing."""
        knobs, frac = self.knobs_at(infer_pct)
        quality, chosen = frac * self.view.quality, None
        factor = self.speed.at(train_pct)
        for option in self.options if factor > 0 else ():
            candidate = self._retrained(option, frac, infer_pct, train_pct, factor)
            if candidate is not None and candidate > quality + QUALITY_TOL:
                quality, chosen = candidate, option
        return Choice(knobs=knobs, retrain=chosen, quality=quality, below_floor=self.is_below(frac))

    def _retrained(self, option: RetrainOption, frac: float, infer_pct: float, train_pct: float, factor: float) -> float | None:
        total_s = self.remaining_s
        if factor <= 0 or total_s <= 0:
            return None
        taken_s = option.cost_gpu_s / factor
        if taken_s > total_s:
            return None
        after = self.knobs_at(infer_pct + train_pct)[1] if self.hand_back else frac
        return (frac * self.view.quality * taken_s + after * option.end_quality * (total_s - taken_s)) / total_s

    def table(self, quanta: int, quantum_pct: int) -> tuple[np.ndarray, np.ndarray]:
        """(quality, below) of `best` for every total t and training share r in quanta, inference getting t - r.

        quality: float (quanta+1, quanta+1), -inf where r > t; below: bool (quanta+1,), indexed by the *inference* quanta.
        The same operations in the same order as `best`, so that equal shares give equal bits.
        """
        shares = [q * quantum_pct for q in range(quanta + 1)]
        frac = np.array([self.knobs_at(s)[1] for s in shares])
        factor = np.array([self.speed.at(s) for s in shares])
        total, train = np.arange(quanta + 1)[:, None], np.arange(quanta + 1)[None, :]
        valid = train <= total
        before = frac[np.maximum(total - train, 0)]  # (t, r): phi of the inference share
        after = np.broadcast_to(frac[:, None], before.shape) if self.hand_back else before
        now = before * self.view.quality
        quality = np.where(valid, now, -np.inf)
        if self.remaining_s > 0:
            for option in self.options:
                with np.errstate(divide="ignore"):
                    taken = np.where(factor > 0, option.cost_gpu_s / np.where(factor > 0, factor, 1.0), np.inf)
                fits = taken <= self.remaining_s
                spent = np.where(fits, taken, 0.0)[None, :]
                gained = (now * spent + after * option.end_quality * (self.remaining_s - spent)) / self.remaining_s
                quality = np.where(valid & fits[None, :] & (gained > quality + QUALITY_TOL), gained, quality)
        return quality, np.array([self.is_below(f) for f in frac])
