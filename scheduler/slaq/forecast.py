"""What a job's loss will be after n more iterations: the fitted curve, its fall-backs, and the straw men. SLAQ, sections 5 and 7.

A forecast is made of the newest losses, in this order until one is good enough:
    1. the curve of the declared class, weights decay^(2 age), over the window; for an undeclared class both, and the one with the
       smaller weighted error on the last LAST_POINTS points
    2. the same with equal weights (decay 1)
    3. the same with the window doubled until all history is used
    4. the exponentially weighted average of the deltas, damped (`curves.Damped`)
A curve is not good enough when on the last points it is worse than MISFIT times what their own mean would be. Fewer than
FIT_LOSSES losses go straight to 4; fewer than two give no forecast (None): such a job takes its fair share.

Predictions never exceed the last loss and never rise with n. Gains are differences on the curve itself, f(k) - f(k + n), not
last loss - f(k + n): both agree on exact data, but with noise the second jumps at n = 0+, and an outlier would look like work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from configs.errors import UsageError
from scheduler.slaq.curves import Curve, CurveClass, Damped, Linear, Sublinear, fit_curves
from scheduler.slaq.history import check_history, deltas, largest_delta, running_minimum

#: A class, or both are fitted.
Declared = Literal["linear", "sublinear", "unknown"]

#: No curve is fitted to fewer losses (prototype: 5).
FIT_LOSSES = 5

#: Newest points on which curves are compared.
LAST_POINTS = 5

#: A curve's root mean square on the last points may be this many times that of their own mean.
MISFIT = 2.0

#: Weight of the old value in the averaged delta (prototype: 0.75 to 0.9).
EWMA_OLD = 0.75


@dataclass(frozen=True, kw_only=True, slots=True)
class Fitting:
    """How forecasts are made. decay: weight of a point of age g is decay^(2 g), 0 < decay <= 1; window: newest losses used."""

    decay: float = 0.8
    window: int = 100

    def __post_init__(self) -> None:
        if not 0 < self.decay <= 1 or self.window < FIT_LOSSES:
            raise UsageError(f"fitting needs 0 < decay <= 1 and window >= {FIT_LOSSES}, got {self}", subject="slaq")


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """What a forecast is made from; equal sources give equal forecasts, so it is the key of a cache.

    losses: after each iteration, oldest first. kind: convergence class, from the optimiser. target: known loss at convergence, for
    a job that has no convergence model (section 7): the loss is smoothed by its running minimum and A mu^k + target is fitted.
    refit_from: losses before this index (from 0) are not used for the fit (the learning rate changed there).
    """

    losses: tuple[float, ...]
    kind: Declared = "unknown"
    target: float | None = None
    refit_from: int = 0

    def __post_init__(self) -> None:
        check_history(self.losses)
        if self.target is not None:
            check_history((self.target,), "target")
        if self.refit_from < 0:
            raise UsageError(f"refit_from must not be negative, got {self.refit_from}", subject="slaq")

    @property
    def fitted(self) -> tuple[float, ...]:
        """The losses that a curve is fitted to."""
        tail = self.losses[self.refit_from :] or self.losses[-1:]
        return running_minimum(tail) if self.target is not None else tail


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """A job's future. curve counts k from 1 at the first fitted loss; k: where the job stands on it; unit: max d of its history;
    error: root mean square of the curve on the last points, in loss; made_by: which step of the fall-backs gave it."""

    curve: Curve
    k: float
    last: float
    first: float
    unit: float
    floor: float
    error: float
    made_by: str

    def loss_after(self, iterations: float) -> float:
        """Predicted loss after `iterations` >= 0 more: never above the last one, never rising, never below the curve's floor."""
        return min(self.last, max(self.floor, self.curve.at(self.k + iterations)))

    def drop(self, iterations: float) -> float:
        """Predicted reduction by `iterations` >= 0 more, in loss: f(k) - f(k + n) >= 0, concave in n."""
        return max(0.0, self.curve.at(self.k) - self.curve.at(self.k + iterations))

    def gain(self, iterations: float) -> float:
        """The same in units of the job's largest step so far (section 3)."""
        return self.drop(iterations) / self.unit

    def remaining_frac(self, iterations: float) -> float:
        """(l - asymptote) / (l_first - asymptote) after `iterations` more, 0-1: what is left of all that training can remove.
        The correction to the text's min objective, which compares raw losses. 0 when nothing can be removed."""
        span = self.first - self.floor
        return min(1.0, max(0.0, self.loss_after(iterations) - self.floor) / span) if span > 0 else 0.0


def forecast(source: Source, fitting: Fitting = Fitting()) -> Forecast | None:
    """The forecast of one job, None with fewer than two losses. See the module's text; for many jobs use `Forecasts`."""
    return make_forecasts([source], fitting)[0]


class Forecasts:
    """Forecasts with a memory: a job that reported nothing since is not fitted again. Pure but for that."""

    def __init__(self, fitting: Fitting = Fitting(), size: int = 16_384) -> None:
        self.fitting = fitting
        self._size = size
        self._made: dict[Source, Forecast | None] = {}

    def of(self, sources: Sequence[Source]) -> list[Forecast | None]:
        """One forecast per source, in order."""
        new = [s for s in dict.fromkeys(sources) if s not in self._made]
        if len(self._made) + len(new) > self._size:
            self._made.clear()
            new = list(dict.fromkeys(sources))
        self._made.update(zip(new, make_forecasts(new, self.fitting), strict=True))
        return [self._made[s] for s in sources]


def make_forecasts(sources: Sequence[Source], fitting: Fitting = Fitting()) -> list[Forecast | None]:
    """One forecast per source, all curves fitted together; None where there are fewer than two losses."""
    found: dict[int, tuple[Curve, str]] = {}
    open_jobs = [j for j, s in enumerate(sources) if len(s.fitted) >= FIT_LOSSES]
    longest = max((len(sources[j].fitted) for j in open_jobs), default=0)
    for step, (decay, window) in enumerate(_attempts(fitting, longest)):
        # a wider window changes nothing for a job whose history it covered before
        open_jobs = [j for j in open_jobs if step < 2 or len(sources[j].fitted) > window // 2]
        for j, curve in _fit_classes(sources, open_jobs, decay, window):
            if _good_enough(curve, sources[j].fitted):
                found[j] = (curve, "fit" if step == 0 else f"fit with decay {decay:g} over {window} losses")
        open_jobs = [j for j in open_jobs if j not in found]
        if not open_jobs:
            break
    return [_assembled(s, *found.get(j, (None, ""))) for j, s in enumerate(sources)]


def last_delta_repeated(losses: Sequence[float], iterations: float) -> float:
    """Straw man: l_last - n * d_last. Fine for one or two iterations. Errors: UsageError for fewer than two losses."""
    _need_two(losses)
    return losses[-1] - iterations * (losses[-2] - losses[-1])


def ratio_rule(losses: Sequence[float], iterations: float) -> float:
    """Straw man of the published allocator: l_last * (l_last / l_prev)^n, which assumes a floor of 0.

    Kept at the last loss when the loss rose or is not positive. Errors: UsageError for fewer than two losses.
    """
    _need_two(losses)
    before, last = losses[-2], losses[-1]
    return last * (last / before) ** iterations if before >= last > 0 else last


def averaged_delta(losses: Sequence[float]) -> float:
    """Exponentially weighted average of the deltas, at least 0 (the prototype's straw man and our last fall-back)."""
    mean = 0.0
    for i, step in enumerate(deltas(losses)):
        mean = float(step) if i == 0 else EWMA_OLD * mean + (1 - EWMA_OLD) * float(step)
    return max(0.0, mean)


def _need_two(losses: Sequence[float]) -> None:
    check_history(losses)
    if len(losses) < 2:
        raise UsageError("a prediction needs at least two losses", subject="slaq")


def _attempts(fitting: Fitting, longest: int) -> list[tuple[float, int]]:
    """(decay, window) in the order in which they are tried."""
    attempts = [(fitting.decay, fitting.window), (1.0, fitting.window)]
    window = fitting.window
    while window < longest:
        window *= 2
        attempts.append((1.0, window))
    return attempts


def _fit_classes(
    sources: Sequence[Source], chosen: Sequence[int], decay: float, window: int
) -> list[tuple[int, Sublinear | Linear]]:
    """(job, curve) for every chosen job; where the class is not declared, the better curve of the two."""
    best: dict[int, Sublinear | Linear] = {}
    classes: tuple[CurveClass, ...] = ("linear", "sublinear")
    for kind in classes:
        jobs = [j for j in chosen if _may_be(sources[j], kind)]
        curves = fit_curves(
            [sources[j].fitted for j in jobs], kind, decay=decay, window=window, floors=[sources[j].target for j in jobs]
        )
        for j, curve in zip(jobs, curves, strict=True):
            if j not in best or _error(curve, sources[j].fitted, decay) < _error(best[j], sources[j].fitted, decay):
                best[j] = curve
    return list(best.items())


def _may_be(source: Source, kind: CurveClass) -> bool:
    return kind == "linear" if source.target is not None else source.kind in (kind, "unknown")


def _error(curve: Curve, losses: Sequence[float], decay: float = 1.0) -> float:
    """Weighted root mean square of the curve on the last points, in loss. Scaled first: squares of huge losses overflow."""
    seen = losses[-LAST_POINTS:]
    first_k = len(losses) - len(seen) + 1
    misses = [abs(curve.at(first_k + i) - loss) for i, loss in enumerate(seen)]
    top = max(misses)
    if top <= 0:
        return 0.0
    weights = [decay ** (2 * (len(seen) - 1 - i)) for i in range(len(seen))]
    return top * (sum(w * (m / top) ** 2 for w, m in zip(weights, misses, strict=True)) / sum(weights)) ** 0.5


def _good_enough(curve: Curve, losses: Sequence[float]) -> bool:
    seen = losses[-LAST_POINTS:]
    mean = sum(loss / len(seen) for loss in seen)
    spread = _error(Linear(amplitude=0.0, mu=0.5, c=mean), losses)
    error = _error(curve, losses)
    # the mean of equal losses has no error at all; a curve may then be off by rounding
    return bool(np.isfinite(error)) and error <= MISFIT * spread + 1e-6 * max(abs(loss) for loss in seen)


def _assembled(source: Source, curve: Curve | None, made_by: str) -> Forecast | None:
    losses = source.fitted
    if len(source.losses) < 2:
        return None
    if source.target is not None and losses[-1] <= source.target:
        curve, made_by = Linear(amplitude=0.0, mu=0.5, c=losses[-1]), "the target is reached"
    if curve is None:
        # after a change of the learning rate the first loss has no delta of its own yet
        recent = losses if len(losses) > 1 else source.losses[-2:]
        curve = Damped(last=losses[-1], step=averaged_delta(recent), k_last=float(len(losses)))
        made_by = "averaged delta, damped"
    floor = curve.asymptote if source.target is None else min(source.target, losses[-1])
    return Forecast(
        curve=curve,
        k=float(len(losses)),
        last=losses[-1],
        first=max(source.losses[0], losses[-1]),
        unit=largest_delta(source.losses),
        floor=min(floor, losses[-1]),
        error=_error(curve, losses),
        made_by=made_by,
    )
