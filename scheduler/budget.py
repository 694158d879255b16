"""Between two plans the training budget moves: running retrainings as SLAQ jobs, and their shares back. See `scheduler.slaq`."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.engine_state import EngineConfig, Running, StreamState
from scheduler.slaq import Forecasts, SlaqJob, reallocate, waited
from scheduler.slaq.reallocate import Goal

#: Gains are predicted over this many epochs of the fastest job (card section 11: a few), and at least so many seconds.
_EPOCHS_AHEAD = 2.0
_MIN_EPOCH_S = 1.0


def groups(streams: Sequence[StreamState], *, apart: bool = False) -> list[list[StreamState]]:
    """Streams whose training shares may be exchanged: all in one pool, or those on the same device. A job that lies on several
    devices keeps what it has. Groups of one are left out. apart: customers have shares of their own and exchange none."""
    found: dict[tuple[str, str], list[StreamState]] = {}
    for stream in streams:
        if len(stream.gpu_pct) <= 1:
            device = stream.gpu_pct[0][0] if stream.gpu_pct else ""
            found.setdefault((device, stream.customer if apart else ""), []).append(stream)
    return [group for group in found.values() if len(group) > 1]


def moved(
    group: Sequence[StreamState],
    config: EngineConfig,
    *,
    objective: Goal,
    now_s: float,
    ends_s: float,
    since_s: float,
    forecasts: Forecasts,
) -> dict[str, int]:
    """New training share per stream id; the sum is what the group had. ends_s: the window's end; since_s: of the last move."""
    shares = {stream.id: round(stream.train_pct) for stream in group}
    running = {stream.id: stream.running for stream in group if stream.running is not None}
    below = waited({id: job.below_fair_s for id, job in running.items()}, shares, elapsed_s=max(0.0, now_s - since_s))
    for id, job in running.items():
        job.below_fair_s = below[id]
    total_pct = sum(shares.values())
    # A baseline's even split is in whole percent points, not in quanta.
    quantum_pct = config.quantum_pct if all(pct % config.quantum_pct == 0 for pct in shares.values()) else 1
    new = reallocate(
        [_job(stream, running[stream.id], config, objective, ends_s, quantum_pct) for stream in group],
        total_pct=total_pct, quantum_pct=quantum_pct, epoch_s=_epoch_s(shares, running), objective=objective,
        min_pct=quantum_pct, now_s=now_s, speed=config.speed, age_s=config.slaq_age_s, forecasts=forecasts,
    )  # fmt: skip
    # What SLAQ leaves unused stays where it was: the plan paid for it.
    spare = total_pct - sum(new.values())
    first = next(iter(new))
    return {id: pct + (spare if id == first else 0) for id, pct in new.items()}


def _epoch_s(shares: dict[str, int], running: dict[str, Running]) -> float:
    fastest_s = min((job.pace_gpu_s() / (shares[id] / 100) for id, job in running.items() if shares[id] > 0), default=0.0)
    return max(_MIN_EPOCH_S, _EPOCHS_AHEAD * fastest_s)


def _job(
    stream: StreamState, running: Running, config: EngineConfig, objective: Goal, ends_s: float, quantum_pct: int
) -> SlaqJob:
    pace_gpu_s = max(running.pace_gpu_s(), 1e-9)
    return SlaqJob(
        id=stream.id, losses=losses(running, objective), gpu_s_per_epoch=pace_gpu_s, epochs_left=running.left_gpu_s() / pace_gpu_s,
        deadline_s=ends_s, planned_pct=round(stream.train_pct), since_s=running.started_s, below_fair_s=running.below_fair_s,
        max_pct=None if config.job_max_pct is None else max(quantum_pct, int(config.job_max_pct)),
        weight=max(0.05, stream.knob_frac()),
    )  # fmt: skip


def losses(running: Running, objective: Goal) -> tuple[float, ...]:
    """1 - quality from the start on where every epoch was measured, which means the same for all jobs; else the training loss, or for
    `finish`, which compares plain losses, the predicted qualities as far as the job has come."""
    measured = [quality for _, quality in running.qualities]
    if running.start_quality is not None and len(measured) == running.epoch:
        return tuple(1 - quality for quality in (running.start_quality, *measured))
    if objective == "finish":
        return tuple(1 - quality for quality in running.expected.path[: running.epoch + 1])
    return tuple(running.losses)
