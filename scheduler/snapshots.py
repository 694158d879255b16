"""The state as a policy sees it (`scheduler.types.Snapshot`)."""

from __future__ import annotations

from dataclasses import replace

from scheduler import steps
from scheduler.engine_state import BoxState, EngineConfig, StreamState
from scheduler.fleet.grants import Division
from scheduler.prep_share import LATER_WINDOWS
from scheduler.types import Snapshot, StreamView


def snapshot_of(state: BoxState, config: EngineConfig, remaining_s: float, *, cached: bool, reserved_pct: int = 0) -> Snapshot:
    """cached: the policy wants the models of earlier windows; reserved_pct: what preparation keeps beside the plan."""
    capacity_pct = config.capacity_pct - _gate_pct(state) - reserved_pct
    streams = tuple(view_of(s, config, cached=cached) for s in state.ordered() if s.live)
    return Snapshot(
        remaining_s=remaining_s, capacity_pct=capacity_pct, quantum_pct=_step_pct(streams, state, config, capacity_pct),
        min_quality=config.min_quality, estimate=config.estimate, speed=config.speed, streams=streams,
        train_max_pct=None if config.job_max_pct is None else int(config.job_max_pct),
        gpus=tuple(replace(g, capacity_pct=g.capacity_pct - _gate_pct(state, g.id)) for g in config.gpus),
        network=config.network, later_s=LATER_WINDOWS * config.window_s,
    )  # fmt: skip


def _step_pct(streams: tuple[StreamView, ...], state: BoxState, config: EngineConfig, left_pct: float) -> int:
    """Finer than usual where rounding would waste much; not where shares are placed on devices or divided among customers."""
    if not config.quantum_auto or config.policy not in steps.EXACT or config.gpus or state.shares_pct:
        return config.quantum_pct
    return steps.quantum_pct(
        streams, capacity_pct=config.capacity_pct, most_pct=config.quantum_pct, left_pct=left_pct if config.quantum_fits else None
    )  # fmt: skip


def view_of(stream: StreamState, config: EngineConfig, *, cached: bool = False) -> StreamView:
    running, idle = stream.running, stream.learns and not (stream.done or stream.gating or stream.candidate)
    options = stream.options if idle else ()
    if running is not None:
        options = (replace(running.option, cost_gpu_s=running.left_gpu_s()),)
    return StreamView(
        id=stream.id, quality=max(config.least_quality, stream.believed(config.prior_quality)), knobs=stream.knobs, retrain=options,
        running=running.option.name if running else None, traits=stream.traits,
        cached=stream.cached if cached and stream.learns and not stream.done and not stream.candidate else (),
    )  # fmt: skip


def division_of(state: BoxState) -> Division:
    """Whose the cameras are and what their customers are sure of."""
    gates: dict[str, float] = {}
    for stream in state.streams.values():
        if stream.live and stream.gating:
            gates[stream.customer] = gates.get(stream.customer, 0.0) + stream.train_pct
    return Division(
        shares_pct=dict(state.shares_pct), customers={s.id: s.customer for s in state.streams.values()}, gates_pct=gates
    )


def _gate_pct(state: BoxState, gpu: str | None = None) -> int:
    """Gates that are running keep the share their retraining had; the planner sees what is left (on one device, or in all)."""
    gating = [s for s in state.streams.values() if s.live and s.gating]
    if gpu is None:
        return round(sum(s.train_pct for s in gating))
    return sum(pct for s in gating for id, pct in s.gpu_pct if id == gpu)
