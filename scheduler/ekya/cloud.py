"""Retraining in a cloud instead: Ekya section 6.4. All GPUs go to inference; the new model arrives after both transfers."""

from __future__ import annotations


def arrival_s(*, cameras: int, up_mb: float, down_mb: float, up_mbps: float, down_mbps: float) -> float:
    """Seconds until every camera's model is back. up_mb / down_mb: megabits of video up and of model down, per camera; the
    uplink and downlink (megabits per second) are shared by all; cloud retraining itself is taken as free."""
    return cameras * up_mb / up_mbps + cameras * down_mb / down_mbps


def window_quality(*, quality: float, end_quality: float, arrival_s: float, window_s: float) -> float:
    """Window average of a stream whose retrained model arrives at `arrival_s`; one that is later than the window never does."""
    if arrival_s >= window_s:
        return quality
    return (quality * arrival_s + end_quality * (window_s - arrival_s)) / window_s
