"""What the engine believes of its cameras: measurements and predictions, corrected by what came of earlier ones
(`scheduler.ekya.calibration`), and what a retraining will cost this box. Pure; the state is given and not changed, unless said.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import replace

from scheduler import admission
from scheduler import pooled as pooling
from scheduler.ekya import calibration, microprofile
from scheduler.engine_state import BoxState, EngineConfig, Running, StreamState
from scheduler.prep import config_list, expected_gain, gate_gpu_s
from scheduler.split import label_split
from scheduler.turns import left_to_win
from scheduler.types import Observation, RetrainOption

#: Raw profiles that are remembered for pruning.
MAX_PROFILES = 8
#: Frames of earlier windows that still count for the quality of a camera that does not drift.
MAX_HELD_OUT = 32
#: What is believed of a model before it is measured anew counts as so many frames.
BELIEVED_FRAMES = 1.0
#: A promise is never believed to be surer than this (0-1): the gate must have its say.
LEAST_PROMISE_SD = 0.05


def take_measurement(
    stream: StreamState, state: BoxState, config: EngineConfig, measured: float, frames: int, *, calibrate: bool
) -> float:
    """What the serving model is believed to be worth, given what `frames` labels say; changes how many are behind that. Of a camera
    that did not drift, the labels of earlier windows still hold."""
    known = min(stream.held_out, MAX_HELD_OUT)
    if not stream.full and stream.quality is not None and known + frames > 0:
        stream.held_out = known + frames
        return (known * stream.quality + frames * measured) / (known + frames)
    stream.held_out = frames
    measured = weighed(stream.quality, measured, frames, config)
    return calibration.present(measured, stream=stream.id, history=history(state, config)) if calibrate else measured


def weighed(believed: float | None, measured: float, frames: int, config: EngineConfig) -> float:
    """What a model is worth by `frames` labelled frames and by what was believed of it before (None: nobody has measured it)."""
    if not config.weigh_frames:
        return measured
    before = config.prior_quality if believed is None else believed
    return (BELIEVED_FRAMES * before + frames * measured) / (BELIEVED_FRAMES + frames)


def corrected(stream: StreamState, state: BoxState, config: EngineConfig, *, calibrate: bool) -> tuple[RetrainOption, ...]:
    """The camera's raw options as they should be planned on."""
    if not calibrate:
        return stream.raw
    return calibration.correct(
        stream.raw, stream=stream.id, quality=stream.measured or 0.0, serving=stream.quality or 0.0,
        history=history(state, config), families=families(state, config),
    )  # fmt: skip


def history(state: BoxState, config: EngineConfig) -> list[Observation]:
    """What came of all predictions that are remembered."""
    return [*config.hold_out, *(seen for stream in state.ordered() for seen in stream.observations)]


def families(state: BoxState, config: EngineConfig) -> Mapping[str, Hashable]:
    """Name of each configuration, of the box and of single cameras -> what configurations that share a trial have in common."""
    known = dict(config.families) or microprofile.family_names(config.retrain)
    own = [c for stream in state.ordered() for c in stream.retrain]
    return {**microprofile.family_names(own), **known} if own else known


def remember_profile(
    stream: StreamState,
    state: BoxState,
    config: EngineConfig,
    profile: tuple[RetrainOption, ...],
    *,
    spared: Collection[str] = (),
) -> None:
    """Adds to the camera's profiles, and from time to time shortens its list (Ekya section 4.3: history pruning). What is worth
    profiling is judged by what predictions are worth, so corrected ones are remembered; those that share a trial go together. spared:
    names that cost nothing to keep."""
    if not profile:
        return
    stream.profiled += 1
    stream.profiles = [*stream.profiles, profile][-MAX_PROFILES:]
    if config.prune_every and microprofile.prune_due(stream.profiled, config.prune_every):
        stream.kept = microprofile.prune(
            stream.profiles, drop_frac=config.prune_frac, families=families(state, config), spared=spared
        )


def recalled(stream: StreamState, config: EngineConfig) -> tuple[RetrainOption, ...]:
    """The camera's last profile, from today's quality on: each option's gain, scaled so that the best one wins no more than the camera's
    newest retraining left to win (`turns.left_to_win`). Empty when they won nothing, or there is no profile."""
    profile = stream.profiles[-1] if stream.profiles else ()
    best = max((o.end_quality - stream.profiled_from for o in profile), default=0.0)
    if best <= 0:
        return ()
    missing = 1.0 - (stream.quality or 0.0) if config.left_of_missing else None
    scale = min(1.0, left_to_win(stream.gains, missing=missing, refusals=stream.refusals) / best)
    return tuple(
        replace(
            option, end_quality=min(1.0, (stream.quality or 0.0) + scale * (option.end_quality - stream.profiled_from)),
            quality_sd=max(option.quality_sd, LEAST_PROMISE_SD),
        )
        for option in profile
    )  # fmt: skip


def pooled_options(
    stream: StreamState, state: BoxState, config: EngineConfig, known: Sequence[pooling.Profiled]
) -> tuple[RetrainOption, ...]:
    """What the cameras' retrainings have won and their profiles' shape say of this one (`scheduler.pooled`)."""
    configs = config_list(stream, config)
    prior = pooling.by_layers(configs, later=bool(stream.gains)) if config.pool_layers else pooling.by_epochs(configs)
    return pooling.options(
        known, quality=stream.quality or 0.0, gain=expected_gain(stream, state, config), taught=stream.taught,
        least_sd=LEAST_PROMISE_SD, prior=prior,
    )  # fmt: skip


def unprofiled_options(stream: StreamState, state: BoxState, config: EngineConfig) -> tuple[RetrainOption, ...]:
    """For policies that always retrain one fixed configuration: no prediction, so today's quality is stated;
    costs come from `EngineConfig.reference` when somebody measured them beforehand: for as many labels as are wanted, and
    with `plain_splits` for as many as there are, with nothing for a gate that such a policy does not have."""
    quality = stream.believed(config.prior_quality)
    known = {o.name: o.cost_gpu_s for o in config.reference}
    options = (
        RetrainOption(name=c.name, end_quality=quality, cost_gpu_s=known.get(c.name, 0.0)) for c in config_list(stream, config)
    )
    if not config.plain_splits:
        return tuple(priced(option, state, config) for option in options)
    part = min(1.0, stream.taught / max(1, label_split(config.label_frames, config.holdout_frac)[0]))
    return tuple(
        replace(o, cost_gpu_s=o.cost_gpu_s * part / state.delivered_frac, memory_mib=config.train_memory_mib) for o in options
    )


def priced(option: RetrainOption, state: BoxState, config: EngineConfig) -> RetrainOption:
    """With what comes on top of the training itself, on a machine that delivers what this one does."""
    cost = option.cost_gpu_s * (1 + config.cost_margin_frac) + gate_gpu_s(state, config)
    return replace(option, cost_gpu_s=cost / state.delivered_frac, memory_mib=config.train_memory_mib)


def promised(job: Running | None) -> admission.Belief:
    """What a retraining was expected to win when it was begun. A promise may only warn: it was made on the labels that the model learned
    from, so where those are poisoned it says the same as the model, and must not stand in for what the gate sees."""
    if job is None or job.start_quality is None:
        return admission.REUSED
    mean = min(0.0, job.option.end_quality - job.start_quality - job.lift)
    return admission.Belief(mean=mean, sd=max(LEAST_PROMISE_SD, job.option.quality_sd or admission.REUSED.sd))
