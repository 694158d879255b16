"""What cameras learn together in a window (`scheduler.together`), on the engine's state: which, when, and by which configuration. Pure.

A lesson is a task of preparation, on the share of all that learns, which was chosen together with its labels (`scheduler.turns`). It
begins when no camera of its pool is being looked at, labelled, probed or profiled any more.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler import pooled, prep, prep_share
from scheduler.belief import LEAST_PROMISE_SD
from scheduler.engine_state import BoxState, EngineConfig, Prep, StreamState
from scheduler.registry import Needs
from scheduler.types import RetrainOption

#: What a camera's pool waits for.
BEFORE = ("look", "label", "probe", "profile")


def wants_profile(stream: StreamState, state: BoxState, config: EngineConfig, needs: Needs) -> bool:
    """Is it to be profiled, so that somebody knows what retrainings of this model cost? One camera of a pool is enough."""
    if prep.known_profiles(stream, state, config, needs):
        return False
    pool = prep.lesson_key(stream, state, config)
    return not any(p.kind == "profile" and prep.lesson_key(state.streams[p.stream], state, config) == pool for p in state.queue)


def due(state: BoxState, config: EngineConfig, needs: Needs, at_s: float) -> Prep | None:
    """The lesson that may begin now; None where there is none, or it would not end in this window."""
    pools: dict[str, list[StreamState]] = {}
    for stream in state.ordered():
        if stream.awaits and stream.live and stream.learns and not stream.done and stream.candidate is None:
            pools.setdefault(prep.lesson_key(stream, state, config), []).append(stream)
    if not pools:
        return None
    busy = {prep.lesson_key(state.streams[p.stream], state, config) for p in state.queue if p.kind in BEFORE}
    busy |= {
        prep.lesson_key(s, state, config) for s in state.ordered() if s.candidate is not None and s.swapping != "retrained"
    }
    lessons = (_lesson(pool, state, config, needs, at_s) for key, pool in pools.items() if key not in busy)
    return next((lesson for lesson in lessons if lesson is not None), None)


def leader_of(members: Sequence[StreamState]) -> StreamState:
    """Whose version all learn from: what most of them serve, of equals that of the camera that sees best by it. A box gives each camera
    a version of its own of what they learned together, so it is the lesson that says who serves the same."""
    served = [s.taught_in or s.version for s in members]
    return min(members, key=lambda s: (-served.count(s.taught_in or s.version), -(s.quality or 0.0), s.id))


def promised(stream: StreamState, state: BoxState, config: EngineConfig, needs: Needs) -> tuple[RetrainOption, ...]:
    """What its part of each configuration's lesson should bring this camera, and cost: gains by its own and the box's history and by
    epochs and layers (`scheduler.pooled`), costs by profiles; without any profile the configuration of the least work, for nothing."""
    configs = prep.config_list(stream, config)
    parts = pooled.by_layers(configs, later=bool(stream.gains), together=True).parts
    costs = pooled.label_gpu_s(prep.known_profiles(stream, state, config, needs))
    if not costs:
        costs = {min(configs, key=lambda c: (c.epochs * c.layers_frac, c.name)).name: 0.0}
    gain, best = prep.expected_gain(stream, state, config), max(parts.values())
    return tuple(
        RetrainOption(
            name=name, end_quality=min(1.0, (stream.quality or 0.0) + gain * parts[name] / best), cost_gpu_s=cost * stream.taught,
            quality_sd=max(LEAST_PROMISE_SD, gain / 2),
        )
        for name, cost in costs.items()
        if name in parts
    )  # fmt: skip


def _lesson(members: list[StreamState], state: BoxState, config: EngineConfig, needs: Needs, at_s: float) -> Prep | None:
    """By the configuration that wins most for all until the window ends and in the next one, less what inference loses meanwhile."""
    left_s, rate = state.ends_s - at_s, max(state.prep_pct, 1.0) / 100 * state.delivered_frac
    if left_s <= 0:
        return None
    lost_per_s = _lost_per_s(state, config, left_s)
    best, best_value = "", 0.0
    for name, (gain, gpu_s) in _sums(members, state, config, needs).items():
        ends_s = gpu_s / rate
        value = gain * prep_share.windows_served(ends_s, left_s) - lost_per_s * ends_s
        if ends_s < left_s and value > best_value:
            best, best_value = name, value
    if not best:
        return None
    leader = leader_of(members)
    return Prep(
        job=state.job(leader.id, "train"), stream=leader.id, kind="lesson", window=state.lesson(leader),
        members=tuple(s.id for s in members), config=best,
    )  # fmt: skip


def _sums(
    members: Sequence[StreamState], state: BoxState, config: EngineConfig, needs: Needs
) -> dict[str, tuple[float, float]]:
    """(gains, GPU-seconds with gates) of all together, by configuration."""
    sums: dict[str, tuple[float, float]] = {}
    for stream in members:
        for option in promised(stream, state, config, needs):
            gain, gpu_s = sums.get(option.name, (0.0, 0.0))
            own_gpu_s = option.cost_gpu_s + prep.GATE_LABELS * state.golden_gpu_s
            sums[option.name] = gain + option.end_quality - (stream.quality or 0.0), gpu_s + own_gpu_s
    return sums


def _lost_per_s(state: BoxState, config: EngineConfig, left_s: float) -> float:
    """Quality that all cameras lose together while the lesson has its share, per second, as a part of the window that is left."""
    watched = [prep_share.Watched(quality=s.believed(config.prior_quality), knobs=s.knobs) for s in state.ordered() if s.live]
    beside = prep_share.shown_quality(watched, config.capacity_pct - state.prep_pct)
    return (prep_share.shown_quality(watched, config.capacity_pct) - beside) / left_s
