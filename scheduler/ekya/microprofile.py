"""The micro-profiler's decisions: which runs to make, what they predict, what to stop profiling. Ekya section 4.3.

    one run per family   configurations that differ only in epochs share a run of the longest (18 configurations = 6 runs)
    end quality          Optimus curve through the run's per-epoch qualities, read at the configuration's epochs
    its error            spread of the curves that the points allow, at the configuration's epochs (ours)
    cost                 C = t_init + epochs * tau * n / n_profiled       tau: GPU-seconds per epoch on n_profiled samples
    families not run     borrow the curve of the one that differs least in its knobs (`options(lend=True)`, ours)
    trials that lend     are believed half of what their curve promises beyond their own epochs; of two that differ in their part of
                         the data alone, the one with less does not end better (ours)
    pruning              every two windows, the fifth that lies farthest below its stream's Pareto front, judged on history

What we changed: the curve is fitted to all points (the authors use one); the distance that pruning uses, which the paper does
not define, is the mean shortfall in end quality against the best configuration of the same or lower cost; pruning can drop
whole families, because only a run that nobody needs saves profiling.

Ours too: within a window the runs are rungs of a successive halving (papers/fluid.md section 2), of which no fixed part is dropped but
only families that are clearly worse (`survivors`): the planner wants cheap configurations as well as the best one, so a family goes
only for one that costs no more by its knobs and is better by more than the error of the two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace

from scipy.optimize import isotonic_regression

from scheduler.curves import POINT_SD, LearningCurve, curve_sd, fit_curve
from scheduler.ekya.baselines import pareto_front
from scheduler.types import ProfileTrial, RetrainConfig, RetrainOption

#: What a family has in common: everything but name and epochs.
FamilyKey = tuple[float, ...]


def family_key(config: RetrainConfig) -> FamilyKey:
    """What must be equal for two configurations to share a profiling run."""
    return (
        config.batch, config.layers_frac, config.data_frac, config.lr, config.replay_frac, config.head_neurons, config.distill,
        config.balance,
    )  # fmt: skip


def grouped(configs: Iterable[RetrainConfig]) -> dict[FamilyKey, tuple[RetrainConfig, ...]]:
    """Configurations that differ only in epochs, by epochs, rising; families in order of first appearance."""
    groups: dict[FamilyKey, list[RetrainConfig]] = {}
    for config in configs:
        groups.setdefault(family_key(config), []).append(config)
    return {key: tuple(sorted(group, key=lambda c: c.epochs)) for key, group in groups.items()}


def families(configs: Iterable[RetrainConfig]) -> tuple[RetrainConfig, ...]:
    """The configurations to run: of each family the longest, which speaks for all."""
    return tuple(members[-1] for members in grouped(configs).values())


def speakers(configs: Iterable[RetrainConfig]) -> tuple[RetrainConfig, ...]:
    """Fewer runs than `families`: of families that differ in their part of the data alone, the one with the most speaks for all. The
    others borrow its curve (`options(lend=True)`); by how much less data ends lower is for `calibration.correct` to learn."""
    chosen: dict[FamilyKey, RetrainConfig] = {}
    for config in families(configs):
        alike = family_key(replace(config, data_frac=1.0))
        if alike not in chosen or config.data_frac > chosen[alike].data_frac:
            chosen[alike] = config
    return tuple(chosen.values())


def lenders(configs: Iterable[RetrainConfig], cheap: Callable[[RetrainConfig], bool]) -> tuple[RetrainConfig, ...]:
    """The families to run where the others may borrow (`options(lend=True)`): the ones whose trials are `cheap`. () where none is: then
    all are to be run."""
    return tuple(config for config in families(configs) if cheap(config))


def nearest(config: RetrainConfig, run: Iterable[RetrainConfig]) -> RetrainConfig | None:
    """Of the configurations that were run, the one that tells most about `config`: fewest knobs that differ (the part of the data last),
    then the nearest part of the layers and of the data, then the first."""

    def distance(other: RetrainConfig) -> tuple[float, ...]:
        ours, theirs = family_key(replace(config, data_frac=1.0)), family_key(replace(other, data_frac=1.0))
        differing = sum(a != b for a, b in zip(ours, theirs, strict=True))
        return differing, abs(config.layers_frac - other.layers_frac), abs(config.data_frac - other.data_frac)

    return min(run, key=distance, default=None)


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


#: How far a family's end lies from that of the one whose curve it borrows (0-1, standard deviation; measured: docs/trials.md).
LENT_SD = 0.08

#: Part of what a curve promises beyond its trial's last epoch that is believed of a trial that lends.
BEYOND_FRAC = 0.5


def options(
    trials: Sequence[ProfileTrial], candidates: Sequence[RetrainConfig], *, n_train: int | None = None, lend: bool = False
) -> tuple[RetrainOption, ...]:
    """What the planner may choose from, in candidate order. A candidate whose family has no run is left out; with lend, it borrows the
    `nearest` one's end, its cost by what an epoch of each trains, and is known less well (LENT_SD); what those that lend foretell is
    smoothed, since few trials carry all (`_lent_ends`). Borrowed numbers are to be corrected by history.

    A run without points, or with a number that is not finite or a negative cost, counts as none.

    n_train: as for `cost_gpu_s`. quality_sd is how well the run's points fix the curve at the candidate's epochs
    (`scheduler.curves.curve_sd`); 0 for a run of one point, of which nothing is known.
    """
    speaks = speaking(trials, candidates, lend=lend)
    runs = {family_key(trial.config): trial for trial in speaks.values()}
    asked: dict[FamilyKey, set[int]] = {}
    for config in candidates:
        if trial := speaks.get(config.name):
            asked.setdefault(family_key(trial.config), set()).add(config.epochs)
    curves = {key: trial_curve(runs[key]) for key in asked}
    lent = _lent_ends(trials, {config.epochs for config in candidates}) if lend else {}
    sds = {key: _sds(runs[key], epochs) for key, epochs in asked.items()}

    def option(config: RetrainConfig, trial: ProfileTrial) -> RetrainOption:
        key = family_key(trial.config)
        sd = sds[key][config.epochs]
        return RetrainOption(
            name=config.name, end_quality=lent[key, config.epochs] if lend else curves[key].at(config.epochs),
            cost_gpu_s=cost_gpu_s(trial, config, n_train) * picture_load(config) / picture_load(trial.config),
            quality_sd=sd if key == family_key(config) else math.hypot(sd, LENT_SD),
        )  # fmt: skip

    return tuple(option(config, speaks[config.name]) for config in candidates if config.name in speaks)


def foretold(trial: ProfileTrial, curve: LearningCurve, epoch: int, *, lend: bool) -> float:
    """Quality after `epoch` epochs, by the trial's curve. With lend no more than BEYOND_FRAC of what that promises beyond the trial's
    last epoch: a trial's learning rate has come to its end there, and noise in few points makes a steep curve as often as a flat one."""
    seen = len(trial.quality) - 1
    if not lend or epoch <= seen:
        return curve.at(epoch)
    return curve.at(seen) + BEYOND_FRAC * (curve.at(epoch) - curve.at(seen))


def _lent_ends(trials: Sequence[ProfileTrial], asked: Collection[int]) -> dict[tuple[FamilyKey, int], float]:
    """(family, epochs) -> what its trial foretells, of all that lend. Trials that differ in their part of the data alone are made to
    rise with it (isotonic regression), at each number of epochs."""
    alike: dict[FamilyKey, list[tuple[ProfileTrial, LearningCurve]]] = {}
    for trial in sorted(filter(_tells, trials), key=lambda trial: trial.config.data_frac):
        alike.setdefault(family_key(replace(trial.config, data_frac=1.0)), []).append((trial, trial_curve(trial)))
    ends: dict[tuple[FamilyKey, int], float] = {}
    for runs in alike.values():
        for epochs in asked:
            rising = isotonic_regression([foretold(trial, curve, epochs, lend=True) for trial, curve in runs]).x
            ends.update({(family_key(trial.config), epochs): float(end) for (trial, _), end in zip(runs, rising, strict=True)})
    return ends


def picture_load(config: RetrainConfig) -> float:
    """What a picture of an epoch costs, relative to the forward pass: backward is twice as much, of the layers that train."""
    return 1.0 + 2.0 * config.layers_frac


def speaking(
    trials: Sequence[ProfileTrial], candidates: Iterable[RetrainConfig], *, lend: bool = False
) -> dict[str, ProfileTrial]:
    """Candidate's name -> the run that tells what it will come to: its family's, or with lend the nearest one's. Those of which none
    tells are left out."""
    runs = {family_key(trial.config): trial for trial in trials if _tells(trial)}
    run = [trial.config for trial in runs.values()]
    near = {config.name: nearest(config, run) if lend else config for config in candidates}
    return {name: runs[family_key(one)] for name, one in near.items() if one is not None and family_key(one) in runs}


def borrowers(trials: Sequence[ProfileTrial], candidates: Iterable[RetrainConfig]) -> frozenset[str]:
    """Names of the candidates whose own family was not run: with lend they borrow, without they are not on offer."""
    wanted = tuple(candidates)
    return frozenset(config.name for config in wanted) - frozenset(speaking(trials, wanted))


def family_names(configs: Iterable[RetrainConfig]) -> dict[str, FamilyKey]:
    """Name of each configuration -> its family, as `calibration.correct` takes it."""
    return {config.name: family_key(config) for config in configs}


def _tells(trial: ProfileTrial) -> bool:
    costs = (trial.init_gpu_s, trial.gpu_s_per_epoch)
    return bool(trial.quality) and all(map(math.isfinite, (*trial.quality, *costs))) and min(costs) >= 0


def _sds(trial: ProfileTrial, epochs: set[int]) -> dict[int, float]:
    asked = sorted(epochs)
    return dict(zip(asked, curve_sd(range(len(trial.quality)), trial.quality, asked), strict=True))


# --- dropping families within a window --------------------------------------------------------------------------------

#: Standard deviations by which a family has to be worse before its run is stopped.
CLEARLY_SD = 2.0


def rung_epochs(epochs: int, eta: int = 2) -> tuple[int, ...]:
    """Epochs after which runs are compared: 1, eta, eta^2, ... and the last. Raises ValueError for no epoch, or eta below 2."""
    if epochs < 1 or eta < 2:
        raise ValueError(f"rungs need at least one epoch and eta of 2 or more, got {epochs} and {eta}")
    rungs = [1]
    while rungs[-1] * eta < epochs:
        rungs.append(rungs[-1] * eta)
    return (*rungs, epochs) if rungs[-1] < epochs else tuple(rungs)


def no_dearer(one: RetrainConfig, other: RetrainConfig) -> bool:
    """Whether an epoch of `one` costs no more than one of `other`, whatever the model: judged by the knobs and not by measured times, so
    that what is dropped does not depend on how busy the machine was."""
    return (
        one.data_frac <= other.data_frac
        and one.layers_frac <= other.layers_frac
        and one.replay_frac <= other.replay_frac
        and one.head_neurons <= other.head_neurons
        and (one.distill > 0) <= (other.distill > 0)
    )


def survivors(
    runs: Sequence[tuple[RetrainConfig, Sequence[float]]], *, n_holdout: int, keep_min: int = 2, clearly_sd: float = CLEARLY_SD
) -> tuple[int, ...]:
    """Which runs go on, as indices in the order given.

    runs: (configuration, held-out quality before training and after each epoch so far) of each family; n_holdout: pictures that quality
    was measured on. A run stops when another that costs no more (`no_dearer`) is predicted to end better, at the same number of epochs,
    by more than clearly_sd times the error of the two predictions. At least keep_min go on, the best predictions first."""
    point_sd = max(POINT_SD, 0.5 / math.sqrt(max(1, n_holdout)))
    epochs = max((config.epochs for config, _ in runs), default=0)
    ends = [_end(quality, epochs, point_sd) for _, quality in runs]
    going = [i for i in range(len(runs)) if not any(_clearly_better(runs, ends, j, i, clearly_sd) for j in range(len(runs)))]
    spared = sorted((i for i in range(len(runs)) if i not in going), key=lambda i: -ends[i][0])
    return tuple(sorted([*going, *spared[: max(0, keep_min - len(going))]]))


def _end(quality: Sequence[float], epochs: int, point_sd: float) -> tuple[float, float]:
    """(predicted quality after `epochs`, its standard deviation)."""
    k = range(len(quality))
    return fit_curve(k, quality).at(epochs), curve_sd(k, quality, [epochs], point_sd=point_sd)[0]


def _clearly_better(
    runs: Sequence[tuple[RetrainConfig, Sequence[float]]], ends: Sequence[tuple[float, float]], one: int, other: int,
    clearly_sd: float,
) -> bool:  # fmt: skip
    gap, error = ends[one][0] - ends[other][0], math.hypot(ends[one][1], ends[other][1])
    return one != other and no_dearer(runs[one][0], runs[other][0]) and gap > clearly_sd * error


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


def prune(
    history: Sequence[Sequence[RetrainOption]],
    *,
    drop_frac: float = 0.2,
    keep_min: int = 3,
    families: Mapping[str, Hashable] | None = None,
    spared: Collection[str] = (),
) -> tuple[str, ...]:
    """The names that one stream goes on profiling, in the order of the newest window.

    history: the stream's options per profiled window, oldest first; only names of the newest are judged, each by its mean
    shortfall over the windows that hold it. Give corrected options where there are any (`calibration.correct`): judged on raw
    predictions, pruning drops what the profiler is too modest about.
    At most `drop_frac` of the names go (at least one, while more than `keep_min` remain), the worst first, the costlier first
    among equals; never one on the newest front, never below `keep_min`.
    families: name -> family (`family_names`). A family shares one run, so that dropping some of its names saves nothing; with
    families, whole ones go: judged by their best member, as many as `drop_frac` of the names allows (at least one), none with
    a member on the newest front.
    spared: names that stay, with all that share their family: nothing was spent on them (`borrowers`).
    """
    newest = history[-1] if history else ()
    past: dict[str, list[float]] = {}
    for profile in history:
        for name, shortfall in front_shortfall(profile).items():
            past.setdefault(name, []).append(shortfall)
    groups: dict[Hashable, list[RetrainOption]] = {}
    for option in newest:
        groups.setdefault((families or {}).get(option.name, option.name), []).append(option)
    on_front = {option.name for option in pareto_front(newest)}
    worst_first = sorted(
        (group for group in groups.values() if not any(o.name in on_front or o.name in spared for o in group)),
        key=lambda group: (-min(_mean(past[o.name]) for o in group), -max(o.cost_gpu_s for o in group), group[0].name),
    )
    quota, room = int(drop_frac * len(newest)), len(newest) - keep_min
    dropped: set[str] = set()
    for group in worst_first:
        after = len(dropped) + len(group)
        if after <= room and (after <= quota or not dropped):
            dropped.update(option.name for option in group)
    return tuple(option.name for option in newest if option.name not in dropped)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
