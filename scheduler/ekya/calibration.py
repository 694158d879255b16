"""What the profiler's predictions are worth: learnt from what came of them, used to correct the next ones. Ours.

Ekya plans on the predictions as they are (its section 5.4 reports a median error of 5.8 points). The planner takes the best of many
noisy numbers, so what it chooses is over-predicted on average (the winner's curse), whatever the errors' mean. The cure is to
plan on the expected gain *given* the prediction:

    g = realised_quality - start_quality        the gain that came
    d = predicted_quality - start_quality       the gain that the profiler promised
    h = 1 - start_quality                       headroom: the errors there are to remove

    g = b0 + bd*d + bh*h + c(camera) + o(option) + noise

a linear model with Gaussian priors on every coefficient (`ErrorPrior`), solved exactly. bd is how much of a promise to believe, bh
how much of the errors a retraining removes whatever was promised, o what this configuration is really good for (long runs are
promised too much: median error -1.0/+2.1/+4.4 points at 5/15/30 epochs in the authors' table). A camera gives one observation a
window, so cameras are pooled: c is shrunk towards the box, the box towards the prior. Without history the answer is the prior:
part of the promised gain, with the error that the authors' profiler has shown.

    robust      Student weights (few degrees of freedom): one wild outcome moves little, and stays in the noise estimate
    fading      an observation's weight halves every `half_life_windows`
    honest sd   noise (learnt per camera, shrunk to the box's) plus what is not known about the coefficients plus the part of
                this one prediction (`quality_sd` of the raw option, from its curve)

Selection. Only options that were chosen are ever observed. The choice looks at predictions only, and the model is conditioned on
the prediction, so that the coefficients of what is chosen are learnt without bias; comparing mean errors instead would take the
winner's curse for a bias of the profiler. What selection does cost is knowledge: an option that is never chosen keeps o near 0 with
its full prior variance. It stays in the race by its predictions, and the planner's expected value of max(present, X) leans
towards what is uncertain, so disappointments lose their place to options not tried yet.

Costs: log(realised / predicted GPU-seconds) by the same solver, with a camera's and an option's part.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from scheduler.types import Observation, RetrainOption

#: Rounds of reweighting; the Student weights have settled by then.
_ROUNDS = 5

#: An option promised this many prior noise sds below the present is never corrected to above it.
_HOPELESS_SDS = 3.0


@dataclass(frozen=True, kw_only=True)
class ErrorPrior:
    """What is believed before anything was observed; every `_sd` is a standard deviation of a Gaussian around its value.

    Qualities are 0-1, gains and sds of gains too. slope: bd, part of a promised gain to believe; headroom: bh, part of the present
    errors that goes whatever is promised; bias: b0; camera_sd, option_sd: of c and o; noise_sd: of what is left, worth
    `noise_weight` observations; gain_sd: spread of true gains (how fast a prediction with an sd of its own is worth less).
    dof: degrees of freedom of the Student weights; half_life_windows: of an observation's weight.
    cost_*: the same for log(realised / predicted GPU-seconds); max_cost_ratio bounds the correction both ways.
    max_observations: of other cameras, the newest are looked at.
    """

    slope: float = 0.6
    slope_sd: float = 0.25
    headroom: float = 0.0
    headroom_sd: float = 0.3
    bias: float = 0.0
    bias_sd: float = 0.05
    camera_sd: float = 0.03
    option_sd: float = 0.05
    noise_sd: float = 0.09
    noise_weight: float = 8.0
    gain_sd: float = 0.09
    dof: float = 4.0
    half_life_windows: float = 30.0
    cost_bias_sd: float = 0.3
    cost_camera_sd: float = 0.2
    cost_option_sd: float = 0.2
    cost_noise_sd: float = 0.15
    max_cost_ratio: float = 4.0
    max_observations: int = 500

    def __post_init__(self) -> None:
        for entry in fields(self):
            if not math.isfinite(getattr(self, entry.name)):
                raise ValueError(f"ErrorPrior.{entry.name} must be finite")


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
    prior: ErrorPrior = ErrorPrior(),  # noqa: B008 - frozen
) -> tuple[RetrainOption, ...]:
    """`options` as they should be planned on: expected end_quality, its honest quality_sd, corrected cost_gpu_s.

    options: as the profiler made them (a quality_sd above 0 is the part of the error known from its curve); quality: of the
    serving model, the number that the planner gets as a0; history: observations of all cameras of the box, in any order.
    Order, names and memory are kept. Errors: ValueError for a number that is not finite, or a cost that is not positive.
    """
    _check(options, quality, history)
    if not options:
        return ()
    past = _looked_at(history, stream, prior)
    names = sorted({o.name for o in options} | {o.option for o in past})
    gain = _fit_gains(past, names, stream, prior)
    cost = _fit_costs(past, names, stream, prior)
    return tuple(_corrected(option, quality, gain, cost, names, prior) for option in options)


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


def _fit_gains(past: Sequence[Observation], names: Sequence[str], stream: str, prior: ErrorPrior) -> _Fit:
    promised = [o.predicted_quality - o.start_quality for o in past]
    base = np.array([[1.0, d, 1.0 - o.start_quality] for d, o in zip(promised, past, strict=True)]).reshape(len(past), 3)
    came = np.array([o.realised_quality - o.start_quality for o in past])
    return _fit(
        _Rows.of(past, names, stream, base, prior), came,
        mean=(prior.bias, prior.slope, prior.headroom), sd=(prior.bias_sd, prior.slope_sd, prior.headroom_sd),
        camera_sd=prior.camera_sd, option_sd=prior.option_sd, noise_sd=prior.noise_sd, prior=prior,
    )  # fmt: skip


def _fit_costs(past: Sequence[Observation], names: Sequence[str], stream: str, prior: ErrorPrior) -> _Fit:
    ratio = np.array([math.log(o.realised_gpu_s / o.predicted_gpu_s) for o in past])
    return _fit(
        _Rows.of(past, names, stream, np.ones((len(past), 1)), prior), ratio, mean=(0.0,), sd=(prior.cost_bias_sd,),
        camera_sd=prior.cost_camera_sd, option_sd=prior.cost_option_sd, noise_sd=prior.cost_noise_sd, prior=prior,
    )  # fmt: skip


def _corrected(
    option: RetrainOption, quality: float, gain: _Fit, cost: _Fit, names: Sequence[str], prior: ErrorPrior
) -> RetrainOption:
    promised = option.end_quality - quality
    # With error variance n2 + s2 instead of n2, the part of a promise to believe falls by this factor (a normal prior of the gain).
    own_var = option.quality_sd**2
    trust = 1.0 / (1.0 + prior.slope * own_var / prior.gain_sd**2)
    number = names.index(option.name)
    mean, var = gain.at((1.0, trust * promised, 1.0 - quality), number)
    lost_var = prior.gain_sd**2 * prior.slope * (1.0 - trust)  # what the prediction does not tell, the gain's spread keeps
    if promised < -_HOPELESS_SDS * prior.noise_sd:
        mean = min(mean, 0.0)
    log_ratio, _ = cost.at((1.0,), number)
    bound = math.log(prior.max_cost_ratio)
    return replace(
        option,
        end_quality=min(1.0, max(0.0, quality + mean)),
        quality_sd=math.sqrt(var + gain.noise_var + lost_var),
        cost_gpu_s=option.cost_gpu_s * math.exp(min(bound, max(-bound, log_ratio))),
    )


# --- linear regression with Gaussian priors, one explicit camera, the others summed out ---------------------------------


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """n observations as a design of k = base + 1 + names columns: base, this camera's part, one part per option name.

    x: (n, k); camera: (n,) number of the row's camera, 0 = this one; fade: (n,) weight by age."""

    x: np.ndarray
    camera: np.ndarray
    fade: np.ndarray

    @classmethod
    def of(cls, past: Sequence[Observation], names: Sequence[str], stream: str, base: np.ndarray, prior: ErrorPrior) -> _Rows:
        numbers = {name: number for number, name in enumerate(names)}
        cameras = {stream: 0}
        camera = np.array([cameras.setdefault(o.stream, len(cameras)) for o in past], int)
        option = np.zeros((len(past), len(names)))
        option[np.arange(len(past)), [numbers[o.option] for o in past]] = 1.0
        newest = max((o.window for o in past), default=0)
        fade = np.array([0.5 ** ((newest - o.window) / prior.half_life_windows) for o in past])
        return cls(x=np.hstack([base, (camera == 0)[:, None], option]), camera=camera, fade=fade)


@dataclass(frozen=True, kw_only=True)
class _Fit:
    """Posterior of the k coefficients, and the noise variance of this camera. base: how many of k are neither camera nor name."""

    mean: np.ndarray
    cov: np.ndarray
    noise_var: float
    base: int

    def at(self, base: Sequence[float], name: int) -> tuple[float, float]:
        """(mean, variance without noise) of this camera's outcome for option number `name`."""
        x = np.zeros(len(self.mean))
        x[: self.base] = base
        x[self.base] = x[self.base + 1 + name] = 1.0
        return float(x @ self.mean), float(x @ self.cov @ x)


def _fit(
    rows: _Rows,
    y: np.ndarray,
    *,
    mean: Sequence[float],
    sd: Sequence[float],
    camera_sd: float,
    option_sd: float,
    noise_sd: float,
    prior: ErrorPrior,
) -> _Fit:
    """The posterior given y (n,), by iteratively reweighted least squares."""
    base = len(mean)
    k = rows.x.shape[1]
    start = np.concatenate([mean, np.zeros(k - base)])
    precision = np.concatenate([sd, [camera_sd], np.full(k - base - 1, option_sd)]) ** -2.0
    beta, cov, box_var, own_var = start, np.diag(1.0 / precision), noise_sd**2, noise_sd**2
    left = y - rows.x @ beta
    for _ in range(_ROUNDS if len(y) else 0):
        student = (prior.dof + 1.0) / (prior.dof + left**2 / box_var)
        weight = rows.fade * student
        gram, moment = _summed(rows, y - rows.x @ start, weight / box_var, camera_sd**-2.0)
        cov = np.linalg.inv(gram + np.diag(precision))
        beta = start + cov @ moment
        left = y - rows.x @ beta - _camera_parts(rows, y - rows.x @ beta, weight / box_var, camera_sd**-2.0)
        spread = weight * left**2
        box_var = (prior.noise_weight * noise_sd**2 + spread.sum()) / (prior.noise_weight + rows.fade.sum())
        mine = rows.camera == 0
        own_var = (prior.noise_weight * box_var + spread[mine].sum()) / (prior.noise_weight + rows.fade[mine].sum())
    return _Fit(mean=beta, cov=cov, noise_var=float(own_var), base=base)


def _summed(rows: _Rows, y: np.ndarray, weight: np.ndarray, camera_precision: float) -> tuple[np.ndarray, np.ndarray]:
    """(X'V^-1 X, X'V^-1 y) where V holds, besides the noise, the other cameras' own parts (Sherman-Morrison per camera)."""
    weighted = rows.x * weight[:, None]
    gram, moment = weighted.T @ rows.x, weighted.T @ y
    cameras = int(rows.camera.max()) + 1
    x_sum = np.zeros((cameras, rows.x.shape[1]))
    np.add.at(x_sum, rows.camera, weighted)
    y_sum = np.bincount(rows.camera, weight * y, cameras)
    share = 1.0 / (camera_precision + np.bincount(rows.camera, weight, cameras))
    share[0] = 0.0  # this camera's part is a column
    return gram - (x_sum * share[:, None]).T @ x_sum, moment - x_sum.T @ (share * y_sum)


def _camera_parts(rows: _Rows, left: np.ndarray, weight: np.ndarray, camera_precision: float) -> np.ndarray:
    """What each row's camera is off by, shrunk to the box; 0 for this camera, whose part is a column."""
    cameras = int(rows.camera.max()) + 1
    parts = np.bincount(rows.camera, weight * left, cameras) / (camera_precision + np.bincount(rows.camera, weight, cameras))
    parts[0] = 0.0
    return parts[rows.camera]


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
        qualities = (seen.start_quality, seen.predicted_quality, seen.realised_quality)
        costs = (seen.predicted_gpu_s, seen.realised_gpu_s)
        if not all(math.isfinite(q) for q in qualities) or not all(math.isfinite(c) and c > 0 for c in costs):
            raise ValueError(f"calibration needs finite qualities and costs above 0, got {seen}")
