"""What the profiler's predictions are worth: learnt from what came of them, used to correct the next ones. Ours.

Ekya plans on the predictions as they are (its micro-profiler's median error is 5.8 points). A planner takes the best of many noisy
numbers, so what it chooses is over-predicted on average even where the errors have mean zero (the winner's curse). The cure is to
plan on the expected gain *given* the prediction:

    g = realised_quality - start_quality        the gain that came
    d = predicted_quality - start_quality       the gain that the profiler promised
    r = quality - start_quality                 how much more headroom (1 - quality) there was then than there is now

    g = b + s*d + m*r + c(camera) + f(family) + o(option) + w(camera, window) + noise

a linear model with Gaussian priors on every coefficient (`ErrorPrior`), solved exactly. s is how much of a promise to believe; m
carries what was seen over to the present headroom (retraining mends a part of the errors that are there); o and f are what a
configuration really does here. The prediction is the model at r = 0. A camera gives one observation a window, so cameras are pooled:
c is shrunk towards the box, the box towards the prior. Without history the prior answers: part of the promised gain, with
the error that the authors' profiler has shown; it never makes a gain out of a promised loss.

    robust      Student weights with few degrees of freedom: one wild outcome moves little, and stays in the noise estimate
    fading      an observation's weight halves every `half_life_windows`
    honest sd   noise (learnt per camera, shrunk to the box's) plus what is not known about the coefficients; a prediction whose own
                `quality_sd` (from its curve) exceeds the usual noise is believed less, and its gain is known as much worse

Selection. Only options that were chosen are ever observed. The choice looks at predictions, and the model is conditioned on the
prediction, so what is learnt about the chosen is not biased by the choice; comparing mean errors instead would take the winner's
curse for a bias of the profiler. What selection does cost is knowledge: an option that is never chosen keeps o near 0 with its full
prior variance. It stays in the race by its predictions, and as the planner counts the expected value of max(present, X), it leans
towards what is uncertain: disappointments lose their place to options not tried yet. Observations of several options
of one window (a hold-out camera measured in full) are welcome: w keeps them from counting as so many independent ones.

Costs: log(realised / predicted GPU-seconds) by the same solver, with parts for camera, family and option.

The priors are round numbers, chosen on the authors' table (`bench profile`, 1.0-1.8 points lost per box), with no part of it held back.
There, halving or doubling any one of them moves the points lost by at most .4, but for believing twice as much of a promise (slope .8:
half a point more).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from scheduler.types import Observation, RetrainOption

#: Rounds of reweighting; the Student weights have settled by then.
_ROUNDS = 3

#: An option promised this many prior noise sds below the present is never corrected to above it.
_HOPELESS_SDS = 3.0


@dataclass(frozen=True, kw_only=True)
class ErrorPrior:
    """What is believed before anything was observed; every `_sd` is a standard deviation of a Gaussian around its value.

    Qualities are 0-1; so are gains, biases and their sds. The letters are those of the module's equation.
    slope: s, near gain_sd^2 / (gain_sd^2 + error^2) with the .12 that the authors' table has as error; headroom: m; bias: b.
    camera_sd, window_sd, option_sd, family_sd: of c, w, o, f, all around 0. noise_sd: of the noise, a belief that weighs as
    much as `noise_weight` observations. gain_sd: spread of true gains. dof: degrees of freedom of the Student weights.
    half_life_windows: of an observation's weight. max_observations: how many of the other cameras' are looked at, the newest.
    label_*: of the two coefficients and the noise of `present`.
    cost_*: the same for log(realised / predicted GPU-seconds); max_cost_ratio bounds the correction, both ways.
    Errors: ValueError for a number that is not finite, an sd, weight or life that is not positive, a ratio below 1.
    """

    slope: float = 0.4
    slope_sd: float = 0.3
    headroom: float = 0.4
    headroom_sd: float = 0.5
    bias: float = 0.0
    bias_sd: float = 0.05
    camera_sd: float = 0.03
    window_sd: float = 0.04
    option_sd: float = 0.03
    family_sd: float = 0.04
    noise_sd: float = 0.08
    noise_weight: float = 5.0
    gain_sd: float = 0.09
    dof: float = 4.0
    half_life_windows: float = 30.0
    cost_bias_sd: float = 0.3
    cost_camera_sd: float = 0.2
    cost_window_sd: float = 0.05
    cost_option_sd: float = 0.2
    cost_noise_sd: float = 0.15
    max_cost_ratio: float = 4.0
    label_bias_sd: float = 0.1
    label_slope_sd: float = 0.5
    label_noise_sd: float = 0.1
    max_observations: int = 300

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            positive = entry.name.endswith("_sd") or entry.name in ("noise_weight", "dof", "half_life_windows")
            if not math.isfinite(value) or (positive and value <= 0):
                raise ValueError(f"ErrorPrior.{entry.name} must be a finite number{' above 0' * positive}, got {value}")
        if self.max_cost_ratio < 1 or self.max_observations < 0:
            raise ValueError("ErrorPrior.max_cost_ratio must be at least 1 and max_observations at least 0")


@dataclass(frozen=True, kw_only=True)
class ErrorSummary:
    """For people. bias: mean of predicted - realised quality (0-1; above 0: promised too much); sd: of it, both robust;
    n: observations; cost_ratio: median of realised / predicted GPU-seconds. Without observations 0, 0, 0 and 1."""

    stream: str | None
    n: int
    bias: float
    sd: float
    cost_ratio: float


def correct(
    options: Sequence[RetrainOption],
    *,
    stream: str,
    quality: float,
    history: Sequence[Observation],
    prior: ErrorPrior = ErrorPrior(),
    families: Mapping[str, Hashable] | None = None,
    serving: float | None = None,
) -> tuple[RetrainOption, ...]:
    """`options` as they should be planned on: expected end_quality, its honest quality_sd, corrected cost_gpu_s.

    options: as the profiler made them (a quality_sd above 0 is the part of the error known from its curve); quality: of the
    serving model as it was measured, with which the predictions compare; serving: what the planner gets as a0, when that is not
    the measured one (`present`); history: observations of all cameras of the box, in any order.
    families: option name -> what options that resemble each other share (`microprofile.family_key`): they learn from each other;
    a name that is not in it stands alone.
    Order, names and memory are kept. Errors: ValueError for a number that is not finite, or a cost that is not positive.
    """
    _check(options, quality if serving is None else quality + serving, history)
    if not options:
        return ()
    past = _looked_at(history, stream, prior)
    kinds = _Kinds.of([*(o.name for o in options), *(o.option for o in past)], families or {})
    gain = _fit_gains(past, kinds, stream, quality, prior)
    cost = _fit_costs(past, kinds, stream, prior)
    level = quality if serving is None else serving
    return tuple(_corrected(option, quality, level, gain, cost, prior) for option in options)


def present(measured: float, *, stream: str, history: Sequence[Observation], prior: ErrorPrior = ErrorPrior()) -> float:
    """What the serving model is expected to be worth (0-1), given what few labels say it is.

    A quality measured on a small sample is too extreme as often as not, and a model that seems perfect is never retrained. What the
    gate later measures of the same model (`Observation.serving_quality`) teaches how far to trust the sample:

        serving_quality - start_quality = b + k*(start_quality - measured) + c(camera) + noise

    with b and k around 0: without history the answer is `measured`. Errors: ValueError as in `correct`.
    """
    _check((), measured, history)
    past = [o for o in _looked_at(history, stream, prior) if o.serving_quality is not None]
    base = np.array([[1.0, o.start_quality - measured] for o in past]).reshape(len(past), 2)
    came = np.array([o.serving_quality - o.start_quality for o in past if o.serving_quality is not None])
    believed = _Believed(
        mean=(0.0, 0.0),
        sd=(prior.label_bias_sd, prior.label_slope_sd),
        camera_sd=prior.camera_sd,
        window_sd=prior.window_sd,
        option_sd=prior.option_sd,
        family_sd=prior.family_sd,
        noise_sd=prior.label_noise_sd,
    )
    fit = _fit(_Rows.of(past, _NO_KINDS, stream, base, prior), came, believed, prior)
    return min(1.0, max(0.0, measured + fit.at((1.0, 0.0))[0]))


def summary(history: Sequence[Observation], stream: str | None = None) -> ErrorSummary:
    """What the profiler's errors were for one camera, or for all (None). Errors: ValueError as in `correct`."""
    _check((), 0.0, history)
    own = [o for o in history if stream is None or o.stream == stream]
    if not own:
        return ErrorSummary(stream=stream, n=0, bias=0.0, sd=0.0, cost_ratio=1.0)
    errors = np.array([o.predicted_quality - o.realised_quality for o in own])
    ratios = [o.realised_gpu_s / o.predicted_gpu_s for o in own]
    middle = float(np.median(errors))
    spread = 1.4826 * float(np.median(np.abs(errors - middle)))  # of a Gaussian the median deviation is sd / 1.4826
    return ErrorSummary(stream=stream, n=len(own), bias=middle, sd=spread, cost_ratio=float(np.median(ratios)))


# --- the two models ---------------------------------------------------------------------------------------------------


def _fit_gains(past: Sequence[Observation], kinds: _Kinds, stream: str, quality: float, prior: ErrorPrior) -> _Fit:
    promised = [o.predicted_quality - o.start_quality for o in past]
    base = np.array([[1.0, d, quality - o.start_quality] for d, o in zip(promised, past, strict=True)]).reshape(len(past), 3)
    came = np.array([o.realised_quality - o.start_quality for o in past])
    believed = _Believed(
        mean=(prior.bias, prior.slope, prior.headroom),
        sd=(prior.bias_sd, prior.slope_sd, prior.headroom_sd),
        camera_sd=prior.camera_sd,
        window_sd=prior.window_sd,
        option_sd=prior.option_sd,
        family_sd=prior.family_sd,
        noise_sd=prior.noise_sd,
    )
    return _fit(_Rows.of(past, kinds, stream, base, prior), came, believed, prior)


def _fit_costs(past: Sequence[Observation], kinds: _Kinds, stream: str, prior: ErrorPrior) -> _Fit:
    came = np.array([math.log(o.realised_gpu_s / o.predicted_gpu_s) for o in past])
    if not came.any():  # all as predicted (recorded costs): the prior says the same, at half the work
        past, came = (), came[:0]
    base = np.ones((len(past), 1))
    believed = _Believed(
        mean=(0.0,),
        sd=(prior.cost_bias_sd,),
        camera_sd=prior.cost_camera_sd,
        window_sd=prior.cost_window_sd,
        option_sd=prior.cost_option_sd,
        family_sd=prior.cost_option_sd,
        noise_sd=prior.cost_noise_sd,
    )
    return _fit(_Rows.of(past, kinds, stream, base, prior), came, believed, prior)


def _corrected(option: RetrainOption, quality: float, level: float, gain: _Fit, cost: _Fit, prior: ErrorPrior) -> RetrainOption:
    promised = option.end_quality - quality
    # The usual error is in the noise and the slope; only what this prediction's own exceeds it by makes it worth less
    # (normal prior of the gain, error variance n + excess instead of n).
    excess_var = max(0.0, option.quality_sd**2 - gain.noise_var)
    trust = 1.0 / (1.0 + prior.slope * excess_var / prior.gain_sd**2)
    mean, var = gain.at((1.0, trust * promised, 0.0), option.name)
    lost_var = prior.gain_sd**2 * prior.slope * (1.0 - trust)  # what the prediction does not tell, the gain's spread keeps
    if promised < -_HOPELESS_SDS * prior.noise_sd:
        mean = min(mean, 0.0)
    log_ratio, _ = cost.at((1.0,), option.name)
    bound = math.log(prior.max_cost_ratio)
    return replace(
        option,
        end_quality=min(1.0, max(0.0, level + mean)),
        quality_sd=math.sqrt(var + gain.noise_var + lost_var),
        cost_gpu_s=option.cost_gpu_s * math.exp(min(bound, max(-bound, log_ratio))),
    )


# --- linear regression with Gaussian priors, one explicit camera, the others summed out ---------------------------------


@dataclass(frozen=True, kw_only=True)
class _Kinds:
    """Which coefficients an option name has besides those of everything: its own and its family's, as column numbers."""

    columns: Mapping[str, tuple[int, int]]
    names: int
    families: int

    @classmethod
    def of(cls, names: Iterable[str], families: Mapping[str, Hashable]) -> _Kinds:
        ordered = sorted(set(names))
        keys = list(dict.fromkeys(families[name] for name in ordered if name in families))
        # a name without a family is one of its own
        family = {name: keys.index(families[name]) if name in families else len(keys) + n for n, name in enumerate(ordered)}
        columns = {name: (n, len(ordered) + family[name]) for n, name in enumerate(ordered)}
        return cls(columns=columns, names=len(ordered), families=len(keys) + len(ordered))


_NO_KINDS = _Kinds(columns={}, names=0, families=0)


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """n observations as a design of k columns: base, this camera's part, one part per option name, one per family.

    x: (n, k); cell: (n,) number of the row's camera and window; mine: (n,) of this camera; fade: (n,) weight by age."""

    x: np.ndarray
    cell: np.ndarray
    mine: np.ndarray
    fade: np.ndarray
    kinds: _Kinds

    @classmethod
    def of(cls, past: Sequence[Observation], kinds: _Kinds, stream: str, base: np.ndarray, prior: ErrorPrior) -> _Rows:
        cells: dict[tuple[str, int], int] = {}
        cell = np.array([cells.setdefault((o.stream, o.window), len(cells)) for o in past], int)
        mine = np.array([o.stream == stream for o in past], bool)
        kind = np.zeros((len(past), kinds.names + kinds.families))
        if kinds.columns and past:
            columns = np.array([kinds.columns[o.option] for o in past])
            np.put_along_axis(kind, columns, 1.0, axis=1)
        newest = max((o.window for o in past), default=0)
        age = newest - np.array([o.window for o in past], float)
        fade = 0.5 ** (age / prior.half_life_windows)
        return cls(x=np.hstack([base, mine[:, None], kind]), cell=cell, mine=mine, fade=fade, kinds=kinds)


@dataclass(frozen=True, kw_only=True)
class _Fit:
    """Posterior of the k coefficients, and the noise variance of this camera. base: how many of k come before the camera's."""

    mean: np.ndarray
    cov: np.ndarray
    noise_var: float
    base: int
    kinds: _Kinds

    def at(self, base: Sequence[float], name: str = "") -> tuple[float, float]:
        """(mean, variance without noise) of this camera's outcome, for the option `name` where options have parts."""
        x = np.zeros(len(self.mean))
        x[: self.base] = base
        x[self.base] = 1.0
        x[[self.base + 1 + column for column in self.kinds.columns.get(name, ())]] = 1.0
        return float(x @ self.mean), float(x @ self.cov @ x)


@dataclass(frozen=True, kw_only=True)
class _Believed:
    """Prior of one model's coefficients: mean and sd of the base ones, sd of the parts (all around 0) and of the noise."""

    mean: tuple[float, ...]
    sd: tuple[float, ...]
    camera_sd: float
    window_sd: float
    option_sd: float
    family_sd: float
    noise_sd: float


def _fit(rows: _Rows, y: np.ndarray, believed: _Believed, prior: ErrorPrior) -> _Fit:
    """The posterior given y (n,), by iteratively reweighted least squares."""
    kinds, base = rows.kinds, len(believed.mean)
    kind_sd = [believed.option_sd] * kinds.names + [believed.family_sd] * kinds.families
    precision = np.concatenate([believed.sd, [believed.camera_sd], kind_sd]) ** -2.0
    start = np.concatenate([believed.mean, np.zeros(len(precision) - base)])
    beta, cov = start, np.diag(1.0 / precision)
    box_var = own_var = believed.noise_sd**2
    surprise = left = y - rows.x @ start
    cells = _Cells.of(rows, believed)
    worth, mine = prior.noise_weight, rows.mine
    for _ in range(_ROUNDS if len(y) else 0):
        weight = rows.fade * (prior.dof + 1.0) / (prior.dof + left**2 / box_var)
        gram, moment = cells.summed(rows.x, surprise, weight / box_var)
        cov = np.linalg.inv(gram + np.diag(precision))
        moved = cov @ moment
        beta = start + moved
        left = surprise - rows.x @ moved
        left = left - cells.parts(left, weight / box_var)
        spread = weight * left**2 / _gaussian_part(prior.dof)
        box_var = (worth * believed.noise_sd**2 + spread.sum()) / (worth + rows.fade.sum())
        own_var = (worth * box_var + spread[mine].sum()) / (worth + rows.fade[mine].sum())
    return _Fit(mean=beta, cov=cov, noise_var=float(own_var) + believed.window_sd**2, base=base, kinds=kinds)


def _gaussian_part(dof: float) -> float:
    """E[weight * z^2] of standard normal z under Student weights: what they take from the variance of harmless residuals."""
    if dof > 100:
        return 1.0  # the closed form would overflow; it is 0.98 there
    within = math.sqrt(math.pi * dof / 2) * math.exp(dof / 2) * math.erfc(math.sqrt(dof / 2))  # dof * E[1 / (dof + z^2)]
    return (dof + 1.0) * (1.0 - within)


@dataclass(frozen=True, kw_only=True)
class _Cells:
    """What the observations of one camera in one window have in common, summed out.

    number: (n,) cell of each row; first: (cells,) the first row of each, a cell's rows stand together; precision: (cells,)
    1 / variance of the common part: the window's, for other cameras with the camera's own (this camera's is a column; that several
    windows of another camera share a part is left out, which weighs a camera with many windows a little more)."""

    number: np.ndarray
    first: np.ndarray
    precision: np.ndarray

    @classmethod
    def of(cls, rows: _Rows, believed: _Believed) -> _Cells:
        cells = int(rows.cell.max()) + 1 if len(rows.cell) else 0
        other = np.zeros(cells, bool)
        other[rows.cell] = ~rows.mine
        first = np.flatnonzero(np.diff(rows.cell, prepend=-1))
        return cls(number=rows.cell, first=first, precision=1.0 / (believed.window_sd**2 + other * believed.camera_sd**2))

    def summed(self, x: np.ndarray, y: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(X'V^-1 X, X'V^-1 y), V = noise + common parts; Sherman-Morrison per cell. weight: (n,) 1 / noise variance."""
        cells, weighted = len(self.precision), x * weight[:, None]
        x_sum = np.add.reduceat(weighted, self.first, axis=0)
        y_sum = np.bincount(self.number, weight * y, cells)
        share = 1.0 / (self.precision + np.bincount(self.number, weight, cells))
        return weighted.T @ x - (x_sum * share[:, None]).T @ x_sum, weighted.T @ y - x_sum.T @ (share * y_sum)

    def parts(self, left: np.ndarray, weight: np.ndarray) -> np.ndarray:
        """(n,) what each row's cell is off by, shrunk to 0."""
        cells = len(self.precision)
        total = np.bincount(self.number, weight, cells)
        return (np.bincount(self.number, weight * left, cells) / (self.precision + total))[self.number]


# --- input ------------------------------------------------------------------------------------------------------------


def _looked_at(history: Sequence[Observation], stream: str, prior: ErrorPrior) -> list[Observation]:
    """All of this camera's and the newest of the others', in an order that does not depend on the caller's."""
    ordered = sorted(history, key=lambda o: (-o.window, o.stream, o.option, o.predicted_quality, o.realised_quality))
    others = [o for o in ordered if o.stream != stream][: prior.max_observations]
    return [o for o in ordered if o.stream == stream] + others


def _check(options: Sequence[RetrainOption], quality: float, history: Sequence[Observation]) -> None:
    if not math.isfinite(quality):
        raise ValueError(f"calibration needs a finite serving quality, got {quality}")
    for option in options:
        if not (math.isfinite(option.end_quality) and option.quality_sd >= 0 and math.isfinite(option.quality_sd)):
            raise ValueError(f"calibration needs finite predictions, got {option}")
        if not (math.isfinite(option.cost_gpu_s) and option.cost_gpu_s >= 0):
            raise ValueError(f"calibration needs a finite cost, got {option}")
    for seen in history:
        numbers = seen.start_quality + seen.predicted_quality + seen.realised_quality + (seen.serving_quality or 0.0)
        costs = seen.predicted_gpu_s + seen.realised_gpu_s
        # a sum is finite only if all its parts are
        if not math.isfinite(numbers + costs) or seen.predicted_gpu_s <= 0 or seen.realised_gpu_s <= 0:
            raise ValueError(f"calibration needs finite qualities and costs above 0, got {seen}")
