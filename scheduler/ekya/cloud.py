"""Retraining in a cloud instead: Ekya section 6.4. All GPUs go to inference; the new model arrives after both transfers.

The paper's rules, kept: retraining itself is free and takes no time, so every stream gets its most accurate configuration; the uplink
and the downlink are shared by all cameras; a model that arrives after the window has ended never does.
"""

from __future__ import annotations

import math
from dataclasses import replace

from scheduler.ekya.baselines import no_retrain
from scheduler.ekya.estimate import QUALITY_TOL
from scheduler.types import Network, Plan, RetrainOption, Snapshot, StreamPlan, StreamView

__all__ = ["Network", "arrival_s", "best_in_cloud", "cloud", "snapshot_arrival_s", "window_quality"]


def arrival_s(*, cameras: int, up_mb: float, down_mb: float, up_mbps: float, down_mbps: float) -> float:
    """Seconds until every camera's model is back. up_mb / down_mb: megabits of video up and of model down, per camera; the
    uplink and downlink (megabits per second) are shared by all; cloud retraining itself is taken as free."""
    return cameras * up_mb / up_mbps + cameras * down_mb / down_mbps


def window_quality(*, quality: float, end_quality: float, arrival_s: float, window_s: float) -> float:
    """Window average of a stream whose retrained model arrives at `arrival_s`; one that is later than the window never does."""
    if arrival_s >= window_s:
        return quality
    return (quality * arrival_s + end_quality * (window_s - arrival_s)) / window_s


def snapshot_arrival_s(snapshot: Snapshot) -> float:
    """When this snapshot's models would be back; never (infinity) without a network."""
    link = snapshot.network
    if link is None or link.up_mbps <= 0 or link.down_mbps <= 0:
        return math.inf
    return arrival_s(
        cameras=len(snapshot.streams), up_mb=link.up_mb, down_mb=link.down_mb, up_mbps=link.up_mbps, down_mbps=link.down_mbps
    )


def best_in_cloud(view: StreamView) -> RetrainOption | None:
    """The most accurate option whatever it costs, if it ends above the serving model; ties to the first."""
    best = max(view.retrain, key=lambda o: o.end_quality, default=None)
    return best if best is not None and best.end_quality > view.quality + QUALITY_TOL else None


def cloud(snapshot: Snapshot) -> Plan:
    """Everything to inference, evenly; each stream that a cloud can help names its option with source `cloud` and no share."""
    plan = no_retrain(snapshot)
    back_s = snapshot_arrival_s(snapshot)
    streams = tuple(
        _from_cloud(view, planned, back_s, snapshot.remaining_s)
        for view, planned in zip(snapshot.streams, plan.streams, strict=True)
    )
    quality = sum(s.expected_quality for s in streams) / len(streams) if streams else 0.0
    return replace(plan, policy="cloud", streams=streams, expected_quality=quality)


def _from_cloud(view: StreamView, planned: StreamPlan, back_s: float, window_s: float) -> StreamPlan:
    option = best_in_cloud(view)
    if option is None or back_s >= window_s:
        return planned
    kept_frac = planned.expected_quality / view.quality if view.quality > 0 else 0.0
    average = window_quality(quality=view.quality, end_quality=option.end_quality, arrival_s=back_s, window_s=window_s)
    return replace(planned, retrain=option.name, source="cloud", expected_quality=kept_frac * average)
