"""The micro-profiler's decisions: which runs to make, what they predict, what to stop profiling. Ekya section 4.3.

    one run per family   configurations that differ only in epochs share a run of the longest (18 configurations = 6 runs)
    end quality          Optimus curve through the run's per-epoch qualities, read at the configuration's epochs
    its error            spread of the curves that the points allow, at the configuration's epochs (ours)
    cost                 C = t_init + epochs * tau * n / n_profiled       tau: GPU-seconds per epoch on n_profiled samples
    pruning              every two windows, the fifth that lies farthest below its stream's Pareto front, judged on history

What we changed: the curve is fitted to all points (the authors use one); the distance that pruning uses, which the paper does
not define, is the mean shortfall in end quality against the best configuration of the same or lower cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from scheduler.curves import LearningCurve, curve_sd, fit_curve
from scheduler.ekya.baselines import pareto_front
from scheduler.types import ProfileTrial, RetrainConfig, RetrainOption

#: What a family has in common: everything but name and epochs.
FamilyKey = tuple[int, float, float, float, float]


def family_key(config: RetrainConfig) -> FamilyKey:
    """What must be equal for two configurations to share a profiling run."""
    return (config.batch, config.layers_frac, config.data_frac, config.lr, config.replay_frac)


def grouped(configs: Iterable[RetrainConfig]) -> dict[FamilyKey, tuple[RetrainConfig, ...]]:
    """Configurations that differ only in epochs, by epochs, rising; families in order of first appearance."""
    groups: dict[FamilyKey, list[RetrainConfig]] = {}
    for config in configs:
        groups.setdefault(family_key(config), []).append(config)
    return {key: tuple(sorted(group, key=lambda c: c.epochs)) for key, group in groups.items()}


def families(configs: Iterable[RetrainConfig]) -> tuple[RetrainConfig, ...]:
    """The configurations to run: of each family the longest, which speaks for all."""
    return tuple(members[-1] for members in grouped(configs).values())


def trial_curve(trial: ProfileTrial) -> LearningCurve:
    """The curve through a run's qualities; quality[0] is before training."""
    return fit_curve(range(len(trial.quality)), trial.quality)


def cost_gpu_s(trial: ProfileTrial, config: RetrainConfig, n_train: int | None = None) -> float:
    """GPU-seconds at 100 pct of `config` on its full data.

    n_train: labelled samples that a retraining may draw from (default: the run's n_total); the configuration uses its data
    fraction of them, at least one.
    """
    available = trial.n_total if n_train is None else n_train
    samples = max(1, round(available * config.data_frac))
    return trial.init_gpu_s + config.epochs * trial.gpu_s_per_epoch * samples / max(1, trial.n_profiled)


def options(
    trials: Sequence[ProfileTrial], candidates: Sequence[RetrainConfig], *, n_train: int | None = None
) -> tuple[RetrainOption, ...]:
    """What the planner may choose from, in candidate order. A candidate whose family has no run is left out.

    n_train: as for `cost_gpu_s`. quality_sd is how well the run's points fix the curve at the candidate's epochs
    (`scheduler.curves.curve_sd`); 0 for a run of one point, of which nothing is known.
    """
    runs = {family_key(trial.config): trial for trial in trials if trial.quality}
    curves = {key: trial_curve(trial) for key, trial in runs.items()}
    sds = {key: _sds(trial, {c.epochs for c in candidates if family_key(c) == key}) for key, trial in runs.items()}
    return tuple(
        RetrainOption(
            name=config.name,
            end_quality=curves[family_key(config)].at(config.epochs),
            cost_gpu_s=cost_gpu_s(runs[family_key(config)], config, n_train),
            quality_sd=sds[family_key(config)][config.epochs],
        )
        for config in candidates
        if family_key(config) in curves
    )


def family_names(configs: Iterable[RetrainConfig]) -> dict[str, FamilyKey]:
    """Name of each configuration -> its family, as `calibration.correct` takes it."""
    return {config.name: family_key(config) for config in configs}


def _sds(trial: ProfileTrial, epochs: set[int]) -> dict[int, float]:
    asked = sorted(epochs)
    return dict(zip(asked, curve_sd(range(len(trial.quality)), trial.quality, asked), strict=True))


# --- pruning ----------------------------------------------------------------------------------------------------------


def prune_due(windows_profiled: int, every: int = 2) -> bool:
    """Is it time to prune after so many profiled windows of a stream? The first window profiles everything."""
    return windows_profiled > 0 and windows_profiled % every == 0


def front_shortfall(profile: Sequence[RetrainOption]) -> dict[str, float]:
    """How far each option ends below the best one of the same or lower cost, in quality; 0 on the front."""
    return {
        option.name: max(o.end_quality for o in profile if o.cost_gpu_s <= option.cost_gpu_s) - option.end_quality
        for option in profile
    }


def prune(history: Sequence[Sequence[RetrainOption]], *, drop_frac: float = 0.2, keep_min: int = 3) -> tuple[str, ...]:
    """The names that one stream goes on profiling, in the order of the newest window.

    history: the stream's options per profiled window, oldest first; only names of the newest are judged, each by its mean
    shortfall over the windows that hold it. At most `drop_frac` of them go (at least one, while more than `keep_min` remain),
    the worst first, the costlier first among equals; never one on the newest front, never below `keep_min`.
    """
    newest = history[-1] if history else ()
    past: dict[str, list[float]] = {}
    for profile in history:
        for name, shortfall in front_shortfall(profile).items():
            past.setdefault(name, []).append(shortfall)
    on_front = {option.name for option in pareto_front(newest)}
    worst_first = sorted(
        (o for o in newest if o.name not in on_front),
        key=lambda o: (-sum(past[o.name]) / len(past[o.name]), -o.cost_gpu_s, o.name),
    )
    quota = min(max(1, int(drop_frac * len(newest))), max(0, len(newest) - keep_min))
    dropped = {option.name for option in worst_first[:quota]}
    return tuple(option.name for option in newest if option.name not in dropped)
