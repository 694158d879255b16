"""Has a running retraining left its prediction? Ekya section 4.2 has one sentence on it ("adjust"), the authors' code nothing.

Two signs, looked at after each epoch; the thresholds are `EngineConfig.react_*`:
    quality   measured against the predicted curve at that epoch; without a curve, the end that the measured points now promise
              against the planned one
    time      GPU-seconds of an epoch, the mean since the last surprise, against the predicted ones (the first epoch holds the job's
              start and is not judged)
What has left its prediction is fitted again with the real points, so that the next epoch is judged by what is now believed and the
same surprise counts once. The engine keeps a minimum dwell between plans, so it cannot oscillate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from scheduler.curves import LearningCurve, fit_curve
from scheduler.ekya import microprofile
from scheduler.engine_state import EngineConfig, Expected, Running
from scheduler.types import ProfileTrial, RetrainConfig

#: A curve through fewer measured points than this (the start included) says nothing about the end.
_FIT_POINTS = 3

#: One epoch's time says little on a machine that is shared; the mean of fewer than so many is not judged.
_PACE_EPOCHS = 2


def expectations(
    trials: Sequence[ProfileTrial], configs: Sequence[RetrainConfig], *, n_train: int, lend: bool = False
) -> dict[str, Expected]:
    """What each configuration should look like on its way, by name; with lend also those that borrow (`microprofile.options`). A trial
    of one point has no curve, one without a cost per epoch no pace."""
    speaks = microprofile.speaking(trials, configs, lend=lend)
    runs = {microprofile.family_key(t.config): t for t in speaks.values()}
    curves = {key: microprofile.trial_curve(t) if len(t.quality) > 1 else None for key, t in runs.items()}
    return {
        config.name: _expected(trial, curves[microprofile.family_key(trial.config)], config, n_train, lend=lend)
        for config in configs
        if (trial := speaks.get(config.name))
    }


def _expected(trial: ProfileTrial, curve: LearningCurve | None, config: RetrainConfig, n_train: int, *, lend: bool) -> Expected:
    epochs = range(config.epochs + 1)
    path = tuple(microprofile.foretold(trial, curve, epoch, lend=lend) for epoch in epochs) if curve else ()
    load = microprofile.picture_load(config) / microprofile.picture_load(trial.config)  # 1 but for a trial that is borrowed
    epochs_gpu_s = (microprofile.cost_gpu_s(trial, config, n_train) - trial.init_gpu_s) * load
    return Expected(path=path, epoch_gpu_s=epochs_gpu_s / config.epochs)


def left_prediction(running: Running, config: EngineConfig) -> str:
    """In words, how the newest epoch of `running` left its prediction; '' when it did not."""
    # Two sds: what predictions are usually off by is no surprise, and a few held-out pictures say less than the plan knew.
    most = max(config.react_quality, 2 * running.option.quality_sd)
    return _quality_left(running, most) or _time_left(running, config.react_fast, config.react_slow)


def _quality_left(running: Running, most: float) -> str:
    measured = _measured_now(running)
    if measured is None:
        return ""
    predicted = _path_at(running, running.epoch)
    if predicted is not None:
        off = abs(measured - predicted) > most
        return f"quality {measured:.3f} after epoch {running.epoch}, predicted {predicted:.3f}" if off else ""
    end = _promised_end(running)
    if end is None or abs(end - running.option.end_quality) <= most:
        return ""
    return f"after epoch {running.epoch} the curve promises {end:.3f}, planned {running.option.end_quality:.3f}"


def _time_left(running: Running, fast: float, slow: float) -> str:
    if (
        running.epoch - running.paced_from[0] < _PACE_EPOCHS
        or running.expected.epoch_gpu_s <= 0
        or running.measured_epoch_gpu_s <= 0
    ):
        return ""
    ratio = running.measured_epoch_gpu_s / running.expected.epoch_gpu_s
    if fast <= ratio <= slow:
        return ""
    return f"an epoch takes {running.measured_epoch_gpu_s:.2f} GPU-s, predicted {running.expected.epoch_gpu_s:.2f}"


def refit(running: Running) -> None:
    """Let `running` believe what was measured: end quality and path from the real points, pace from the last epoch."""
    measured = _measured_now(running)
    if measured is not None:
        path = _new_path(running, measured)
        end = path[-1] + running.lift if path else running.option.end_quality
        running.option = replace(running.option, end_quality=min(1.0, max(0.0, end)))
        running.expected = replace(running.expected, path=path)
    if (
        running.epoch - running.paced_from[0] >= _PACE_EPOCHS
        and running.measured_epoch_gpu_s > 0
        and running.expected.epoch_gpu_s > 0
    ):
        # The option's cost moves with the pace, so that what is left is judged by what an epoch really takes.
        scale = running.measured_epoch_gpu_s / running.expected.epoch_gpu_s
        cost_gpu_s = (running.option.cost_gpu_s - running.gate_gpu_s) * scale + running.gate_gpu_s
        running.option = replace(running.option, cost_gpu_s=cost_gpu_s)
        running.expected = replace(running.expected, epoch_gpu_s=running.measured_epoch_gpu_s)
        running.paced_from = (running.epoch, running.used_gpu_s)


def _new_path(running: Running, measured: float) -> tuple[float, ...]:
    curve = _measured_curve(running)
    if curve is not None:
        return tuple(curve.at(epoch) for epoch in range(running.config.epochs + 1))
    predicted = _path_at(running, running.epoch)
    if predicted is None:
        return ()
    # Too few points for a curve of their own: the predicted one, moved to where the job stands.
    return tuple(q + measured - predicted for q in running.expected.path)


def _measured_now(running: Running) -> float | None:
    """Quality after the newest epoch, None when it was not measured."""
    epoch, quality = running.qualities[-1] if running.qualities else (-1, 0.0)
    return quality if epoch == running.epoch else None


def _measured_curve(running: Running) -> LearningCurve | None:
    start = [(0, running.start_quality)] if running.start_quality is not None else []
    points = [*start, *running.qualities]
    if len(points) < _FIT_POINTS:
        return None
    return fit_curve([epoch for epoch, _ in points], [quality for _, quality in points])


def _promised_end(running: Running) -> float | None:
    curve = _measured_curve(running)
    return curve.at(running.config.epochs) + running.lift if curve is not None else None


def _path_at(running: Running, epoch: int) -> float | None:
    path = running.expected.path
    return path[epoch] if epoch < len(path) else None
