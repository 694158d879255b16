"""Micro-profiling of one camera (`models.microprofile_run`), an iteration at a time or several trials at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edge.gpu.base import Lane
from edge.jobs.base import Samples, Scoring, Steps, no_yield, run_in_lane
from edge.jobs.train import replay_set, training_set
from models.detector import Detector, YieldPoint
from models.labelled import LabelledImage
from models.microprofile_run import ProfileGroup, microprofile
from models.sanity import CheckedSamples
from models.tasks.base import Task
from models.tasks.detection import DETECTION
from models.trial_pack import CurrentGate, PackReport, run_packed
from models.wide_trials import Widths
from scheduler.types import ProfileTrial, RetrainConfig


def profile_steps(
    samples: Samples, serving: Detector, *, stream: str, window: int, configs: Sequence[RetrainConfig], epochs: int,
    data_frac: float, budget_gpu_s: float, seed: int, timer: Callable[[], float], scoring: Scoring,
    task: Task = DETECTION, yield_point: YieldPoint = no_yield, replay_windows: int = 0, halving: bool = False, lend: bool = False,
    widths: Widths | None = None,
) -> Steps[tuple[tuple[ProfileTrial, ...], int]]:  # fmt: skip
    """Micro-profiling trials of one camera; returns (trials, labelled frames a full retraining would use). Trials learn from what a
    retraining would: labels that were looked at, and older pictures where the configuration replays; those that train the head alone
    share the trunk's passes (`models.kept_features`); lend: and only they are tried, where there are any. halving: families that are
    clearly worse stop early. widths: devices for those that do not. Raises JobError for labels that nothing should be trained on
    (`models.sanity`)."""
    holdout = samples.labelled(stream, [window], "holdout")
    if not len(samples.labelled(stream, [window], "train")) or not len(holdout) or not configs:
        return (), len(samples.labelled(stream, [window], "train"))
    found = yield from _prepared(samples, serving, stream, window, configs, timer, replay_windows)
    trials = yield from microprofile(
        serving, found.train, holdout, configs, epochs=epochs, data_frac=data_frac, seed=seed,
        timer=timer, yield_point=yield_point, scoring=scoring, task=task, replay=found.replay, halving=halving,
        budget_gpu_s=budget_gpu_s - found.look_gpu_s - found.choose_gpu_s, look_gpu_s=found.look_gpu_s,
        choose_gpu_s=found.choose_gpu_s, keep_features=True, lend=lend, widths=widths,
    )  # fmt: skip
    return trials, len(found.train)


@dataclass(frozen=True, kw_only=True)
class ProfiledAtOnce:
    """trials, n_train: as `profile_steps` returns them; gpu_s: compute of all lanes; report: how many trials ran at once, and why; None
    when there was nothing to run."""

    trials: tuple[ProfileTrial, ...]
    n_train: int
    gpu_s: float
    report: PackReport | None


def profile_at_once(
    samples: Samples, serving: Detector, lanes: Sequence[Lane], *, stream: str, window: int, configs: Sequence[RetrainConfig],
    epochs: int, data_frac: float, budget_gpu_s: float, seed: int, timer: Callable[[], float], scoring: Scoring,
    task: Task = DETECTION, replay_windows: int = 0, halving: bool = False, lend: bool = False, cap: int | None = None,
    on_turn: Callable[[Sequence[int]], None] | None = None, widths: Widths | None = None,
) -> ProfiledAtOnce:  # fmt: skip
    """The same trials with the same qualities as `profile_steps`, as many at once as there are lanes and as pay. The calling thread uses
    the first lane. timer: compute of the *calling* thread so far (each lane's thread calls it); cap, on_turn: as for
    `models.trial_pack.run_packed`; widths: devices that trials may have.
    Raises JobError as `profile_steps`, JobCancelled out of the lanes."""
    n_train, holdout = len(samples.labelled(stream, [window], "train")), samples.labelled(stream, [window], "holdout")
    if not n_train or not len(holdout) or not configs:
        return ProfiledAtOnce(trials=(), n_train=n_train, gpu_s=0.0, report=None)
    found = run_in_lane(_prepared(samples, serving, stream, window, configs, timer, replay_windows), lanes[0])
    before_gpu_s, current = found.look_gpu_s + found.choose_gpu_s, CurrentGate()
    group = ProfileGroup(
        serving, found.train, holdout, configs, epochs=epochs, data_frac=data_frac, seed=seed, timer=timer, yield_point=current,
        scoring=scoring, task=task, replay=found.replay, halving=halving, budget_gpu_s=budget_gpu_s - before_gpu_s,
        look_gpu_s=found.look_gpu_s, choose_gpu_s=found.choose_gpu_s, keep_features=True, lend=lend,
        apart=len(lanes) > 1, widths=widths, lanes=len(lanes),
    )  # fmt: skip
    try:
        current.enter(lanes[0])
        run_in_lane(group.prelude(), lanes[0])
        report = run_packed(
            group, lanes, cap=cap, seats=widths.devices if widths else None, on_thread=current.enter, on_turn=on_turn
        )  # fmt: skip
    finally:
        group.close()
    return ProfiledAtOnce(
        trials=group.results(), n_train=len(found.train), gpu_s=before_gpu_s + group.spent_gpu_s, report=report
    )


@dataclass(frozen=True, kw_only=True)
class _Prepared:
    train: CheckedSamples
    replay: Sequence[LabelledImage]
    look_gpu_s: float
    choose_gpu_s: float


def _prepared(
    samples: Samples, serving: Detector, stream: str, window: int, configs: Sequence[RetrainConfig], timer: Callable[[], float],
    replay_windows: int,
) -> Steps[_Prepared]:  # fmt: skip
    """What all trials learn from, and what it took to look at it and to choose."""
    started_s = timer()
    train = yield from training_set(samples, [stream], window, subject=stream)
    looked_s = timer()
    replay = yield from replay_set(samples, [stream], window, replay_windows, configs, n_train=len(train), serving=serving)
    return _Prepared(train=train, replay=replay, look_gpu_s=looked_s - started_s, choose_gpu_s=timer() - looked_s)
