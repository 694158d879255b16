"""EstimateAccuracy: what one stream's window average will be under given shares. Ekya (NSDI'22) section 4, Alg. 2.

Symbols of the paper -> names here:
    a0          `StreamView.quality`           quality of the serving model on current data
    phi         `KnobProfile.quality_frac`     what an inference configuration keeps of it
    C_gamma     `RetrainOption.cost_gpu_s`     GPU-seconds at 100 pct
    a_gamma     `expected_end`                 `RetrainOption.end_quality`, and what its error is worth behind a gate
    s(.)        `SpeedCurve.at`                relative throughput at a share, s(100 pct) = 1
    T'          `Snapshot.remaining_s`
    D           `duration_s` = C_gamma / s(R)  infinite at share 0

    static      A = phi * [a0*D + a_gamma*(T'-D)] / T'
    hand-back   A = [phi*a0*D + phi_after*a_gamma*(T'-D)] / T'     phi_after: best knobs at the shares of both jobs
    none        A = phi * a0

What we changed: demand <= share (the listing's strict < refuses a job its exact demand); a retraining that does not end above
a0 is never planned, as in the authors' code (in hand-back mode it could otherwise win for the share that it frees);
speed above one GPU counts whole GPUs linearly and the remainder by the curve. No credit for intermediate checkpoints. Speed and
phi never fall with the share, hence neither does A: the exact plan relies on it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

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
    max_pct: the largest share that one job turns into speed, s(x) = s(max_pct) above it; None: no limit.
    Errors: ConfigError for points that are not such a curve.
    """

    def __init__(self, points: Sequence[tuple[float, float]] = (), *, max_pct: float | None = None) -> None:
        problems = speed_problems(points)
        if problems:
            raise ConfigError(f"speed curve: {'; '.join(problems)}", problems=tuple(("speed", p) for p in problems))
        pairs = [(float(x), float(y)) for x, y in points] or [(0.0, 0.0), (100.0, 1.0)]
        if pairs[0][0] > 0:
            pairs.insert(0, (0.0, 0.0))
        self._x = [x for x, _ in pairs]
        self._y = [y for _, y in pairs]
        self._max_pct = math.inf if max_pct is None else max_pct

    @classmethod
    def of(cls, snapshot: Snapshot) -> SpeedCurve:
        """The curve that a snapshot describes: its points, up to its `train_max_pct`."""
        return cls(snapshot.speed, max_pct=snapshot.train_max_pct)

    def at(self, share_pct: float) -> float:
        """Factor at `share_pct` (0 or below: 0)."""
        share_pct = min(share_pct, self._max_pct)
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
    if any(b < a for a, b in zip(factors, factors[1:], strict=False)):
        problems.append("factors must not fall as the share grows")
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


def expected_end(option: RetrainOption, quality: float) -> float:
    """a_gamma of `option` for a serving model of `quality` (a0): what the retraining is expected to leave in service.

    The prediction is wrong by an error of standard deviation sd = `quality_sd`, and the gate keeps the old model when the new one
    X ~ N(end_quality, sd) is not better. Served after it is max(a0, X), whose mean is

        a0 + sd * (pdf(z) + z * cdf(z)),   z = (end_quality - a0) / sd        (pdf, cdf: of the standard normal)

    and at most 1. With sd = 0 this is `end_quality` for an option that helps. One that does not is returned as predicted, also
    below a0: the listing and the uniform policies of the paper know no gate. Ours; the paper plans on the prediction itself.
    """
    sd = option.quality_sd
    if sd <= 0:
        return option.end_quality
    z = (option.end_quality - quality) / sd
    pdf = math.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    cdf = 0.5 * math.erfc(-z / math.sqrt(2))
    # sd * z, without dividing by a tiny sd; the normal has a tail beyond the best quality there is
    return min(1.0, quality + sd * pdf + (option.end_quality - quality) * cdf)


def is_useful(option: RetrainOption, view: StreamView) -> bool:
    """Does the option end above the serving model, and is it expected to? No other is ever worth its share.

    The error alone makes no option useful: a gate turns any gamble into an expected gain, however bad the prediction.
    """
    return option.end_quality > view.quality and expected_end(option, view.quality) > view.quality + QUALITY_TOL


@dataclass(frozen=True)
class _Term:
    """What the formulas need of an option."""

    cost_gpu_s: float
    end: float
    option: RetrainOption


def _worth_their_cost(options: Sequence[RetrainOption], quality: float) -> tuple[_Term, ...]:
    """Cheapest first, each expected to end above every cheaper one. A is never better for an option that costs more and ends no
    higher, so leaving those out changes no answer; of equals the first listed stays."""
    terms = [_Term(o.cost_gpu_s, expected_end(o, quality), o) for o in options]
    kept: list[_Term] = []
    for term in sorted(terms, key=lambda t: (t.cost_gpu_s, -t.end)):
        if not kept or term.end > kept[-1].end:
            kept.append(term)
    return tuple(kept)


class StreamEstimator:
    """EstimateAccuracy for one stream of a snapshot, for any pair of shares in percent points. Pure.

    terms: the options worth looking at; rungs: (share pct from which they run, knobs, phi), phi rising.
    """

    __slots__ = ("_knobs", "_kept", "_starts", "hand_back", "min_quality", "remaining_s", "speed", "terms", "view")

    def __init__(self, view: StreamView, snapshot: Snapshot, speed: SpeedCurve, options: Sequence[RetrainOption]) -> None:
        self.view = view
        self.remaining_s = max(0.0, snapshot.remaining_s)
        self.min_quality = snapshot.min_quality
        self.hand_back = snapshot.estimate == "hand-back"
        self.speed = speed
        self.terms = _worth_their_cost(options, view.quality)
        self._starts: list[float] = []
        self._knobs: list[KnobProfile] = []
        for knobs in sorted(view.knobs, key=lambda k: (k.demand_pct, -k.quality_frac)):
            if not self._knobs or knobs.quality_frac > self._knobs[-1].quality_frac:
                self._starts.append(knobs.demand_pct - SHARE_TOL_PCT)
                self._knobs.append(knobs)
        self._kept = [k.quality_frac for k in self._knobs]

    @classmethod
    def of(cls, view: StreamView, snapshot: Snapshot, speed: SpeedCurve, *, only_useful: bool = True) -> StreamEstimator:
        """The estimator of `view`. only_useful: leave out options that do not end above the serving model."""
        options = [o for o in view.retrain if is_useful(o, view)] if only_useful else view.retrain
        return cls(view, snapshot, speed, options)

    @property
    def options(self) -> tuple[RetrainOption, ...]:
        """The options worth looking at, cheapest first."""
        return tuple(term.option for term in self.terms)

    def frac_at(self, share_pct: float) -> float:
        """phi of lambda* at a share; 0 at share 0 (nothing runs on nothing)."""
        rung = bisect_right(self._starts, share_pct)
        return self._kept[rung - 1] if rung and share_pct > 0 else 0.0

    def knobs_at(self, share_pct: float) -> tuple[KnobProfile | None, float]:
        """(lambda*, phi) at a share: `best_knobs` and `kept_frac`."""
        rung = bisect_right(self._starts, share_pct)
        return (self._knobs[rung - 1] if rung else None), self.frac_at(share_pct)

    def is_below(self, frac: float) -> bool:
        """Is the instantaneous quality before the swap under the floor?"""
        return self.view.quality * frac < self.min_quality - QUALITY_TOL

    def with_option(self, option: RetrainOption | None, infer_pct: float, train_pct: float) -> Choice | None:
        """The choice of exactly this option; None if it would not end within the window."""
        knobs, frac = self.knobs_at(infer_pct)
        below = self.is_below(frac)
        if option is None:
            return Choice(knobs=knobs, retrain=None, quality=frac * self.view.quality, below_floor=below)
        term = _Term(option.cost_gpu_s, expected_end(option, self.view.quality), option)
        quality, chosen = self._best_of((term,), -math.inf, infer_pct, train_pct)
        return Choice(knobs=knobs, retrain=option, quality=quality, below_floor=below) if chosen else None

    def best(self, infer_pct: float, train_pct: float) -> Choice:
        """PickConfigs for this stream: lambda*, then the cheapest option that beats every cheaper one and doing nothing."""
        knobs, frac = self.knobs_at(infer_pct)
        quality, chosen = self._best_of(self.terms, frac * self.view.quality, infer_pct, train_pct)
        return Choice(knobs=knobs, retrain=chosen, quality=quality, below_floor=self.is_below(frac))

    def value(self, infer_pct: float, train_pct: float) -> tuple[float, bool]:
        """(quality, below_floor) of `best`."""
        frac = self.frac_at(infer_pct)
        return self._best_of(self.terms, frac * self.view.quality, infer_pct, train_pct)[0], self.is_below(frac)

    def _best_of(
        self, terms: Sequence[_Term], quality: float, infer_pct: float, train_pct: float
    ) -> tuple[float, RetrainOption | None]:
        """The first of `terms` that beats every earlier one and `quality`; (`quality`, None) if none does."""
        total_s, factor = self.remaining_s, self.speed.at(train_pct)
        if factor <= 0 or total_s <= 0:
            return quality, None
        chosen = None
        frac = self.frac_at(infer_pct)
        now = frac * self.view.quality
        after = self.frac_at(infer_pct + train_pct) if self.hand_back else frac
        for term in terms:
            taken_s = term.cost_gpu_s / factor
            if taken_s > total_s:
                break  # the others cost more
            candidate = (now * taken_s + after * term.end * (total_s - taken_s)) / total_s
            if candidate > quality + QUALITY_TOL:
                quality, chosen = candidate, term.option
        return quality, chosen

    # --- in quanta: what the exact plan looks at ---

    def rungs(self, quantum_pct: int) -> list[tuple[int, float]]:
        """(quanta, phi): the inference shares at which phi rises, from (0, 0). No share in between is worth more."""
        found: dict[int, float] = {0: 0.0}
        for start_pct, frac in zip(self._starts, self._kept, strict=True):
            quanta = max(1, math.ceil(start_pct / quantum_pct))
            found[quanta + (quanta * quantum_pct < start_pct)] = frac
        return list(found.items())

    def floor_quanta(self, quantum_pct: int) -> int | None:
        """The smallest inference share that keeps the stream from being below the floor; None if no share does."""
        return next((quanta for quanta, frac in self.rungs(quantum_pct) if not self.is_below(frac)), None)

    def best_by_total(self, factors: np.ndarray, quantum_pct: int) -> np.ndarray:
        """The best quality for q = 0, 1, ... quanta to share out between inference and training, floor before quality.

        factors: float (Q+1,), the speed at q quanta. Returns float (Q+1,): entry q < `floor_quanta` is the best over
        infer + train <= q, any other the best of those that are not below the floor; rising on either side.
        """
        size = len(factors)
        floor = self.floor_quanta(quantum_pct)
        rungs = [(start, frac) for start, frac in self.rungs(quantum_pct) if start < size]
        quality = np.full(size, -np.inf)
        before, gained = self._training_parts(factors)
        phi = np.zeros(size)
        for start, frac in rungs:
            phi[start:] = frac
        trained = None if self.hand_back else (before + gained).max(axis=0)  # at phi = 1
        for start, frac in rungs:
            end = size if floor is None or start >= floor else min(floor, size)
            length = end - start
            if trained is None:
                tail = (frac * before[:, :length] + phi[start:end] * gained[:, :length]).max(axis=0)
            else:
                tail = frac * trained[:length]
            np.maximum(quality[start:end], tail, out=quality[start:end])
        if floor is not None and 0 < floor < size:
            np.maximum.accumulate(quality[:floor], out=quality[:floor])
            np.maximum.accumulate(quality[floor:], out=quality[floor:])
            return quality
        return np.maximum.accumulate(quality)

    def _training_parts(self, factors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(a0*D/T', a_gamma*(T'-D)/T') for every option that ends in time, (a0, 0) otherwise and in row 0, which is no option.
        Both float (options + 1, Q+1)."""
        a0, total_s = self.view.quality, self.remaining_s
        cost = np.array([t.cost_gpu_s for t in self.terms])[:, None]
        end = np.array([t.end for t in self.terms])[:, None]
        before, gained = np.full((len(self.terms) + 1, len(factors)), a0), np.zeros((len(self.terms) + 1, len(factors)))
        if total_s > 0 and len(self.terms):
            taken_s = cost / np.where(factors > 0, factors, 1.0)
            fits = (taken_s <= total_s) & (factors > 0)
            before[1:] = np.where(fits, a0 * taken_s / total_s, a0)
            gained[1:] = np.where(fits, end * (total_s - taken_s) / total_s, 0.0)
        return before, gained
