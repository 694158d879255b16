"""Queries in virtual time under an allocator: what the evaluation's experiments need (card, sections 9 and 11).

Every period the policy sees each query's lag, its present option and share, and mu; then video is processed at the rate that the
*real* demand allows, which the policy does not know. The same allocator, predictor and correction as on the box.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from scheduler.videostorm.lag import served_frac
from scheduler.videostorm.mu import Correction
from scheduler.videostorm.types import Allocation, Given, Option, Query, Utility

#: (queries as they stand, capacity percent) -> allocation.
Policy = Callable[[Sequence[Query], float], Allocation]


@dataclass(frozen=True, kw_only=True)
class LoopQuery:
    """A query of an experiment. real: real over profiled demand; it is there from arrives_s to leaves_s."""

    id: str
    options: tuple[Option, ...]
    utility: Utility
    group: str = ""
    real: float = 1.0
    may_lag: bool = True
    arrives_s: float = 0.0
    leaves_s: float = float("inf")


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One period of one query. processed_s: seconds of video; skipped_s: of a live camera, never seen; quality: of what was processed
    (that of the option); lag_s at the end; late: lag above the goal; mu as believed."""

    at_s: float
    query: str
    group: str
    share_pct: float
    processed_s: float
    skipped_s: float
    quality: float
    lag_s: float
    late: bool
    mu: float


@dataclass
class _State:
    lag_s: float = 0.0
    given: Given | None = None
    correction: Correction = field(default_factory=Correction)


def run_loop(
    queries: Sequence[LoopQuery],
    policy: Policy,
    *,
    capacity_pct: Callable[[float], float],
    seconds: float,
    period_s: float = 1.0,
    corrected: bool = True,
) -> list[Sample]:
    """Run `policy` for `seconds`; capacity_pct: of the time. corrected: whether mu is followed. Samples in order of time, then of
    `queries`."""
    states = {q.id: _State() for q in queries}
    samples: list[Sample] = []
    for turn in range(round(seconds / period_s)):
        at_s = turn * period_s
        there = [q for q in queries if q.arrives_s <= at_s < q.leaves_s]
        found = policy([_seen(q, states[q.id]) for q in there], capacity_pct(at_s))
        for query, given in zip(there, found.given, strict=True):
            samples.append(_advance(query, states[query.id], given, at_s, period_s, corrected))
    return samples


def _seen(query: LoopQuery, state: _State) -> Query:
    given = state.given
    return Query(
        id=query.id,
        options=query.options,
        utility=query.utility,
        lag_s=state.lag_s,
        mu=state.correction.mu,
        current=given.option if given else None,
        current_pct=given.share_pct if given else 0.0,
        may_lag=query.may_lag,
    )


def _advance(query: LoopQuery, state: _State, given: Given, at_s: float, period_s: float, corrected: bool) -> Sample:
    option = next((o for o in query.options if o.name == given.option), None)
    processed_s, before_s = 0.0, state.lag_s
    if option is not None:
        can_s = period_s * float(served_frac(given.share_pct, option.demand_pct, query.real))
        processed_s = min(can_s, period_s + before_s)
        used_pct_s = processed_s * option.demand_pct * query.real
        if corrected:
            state.correction = state.correction.after(used_pct_s, processed_s, option.demand_pct)
    if query.may_lag:
        state.lag_s = max(0.0, before_s + period_s - processed_s)
    state.given = given
    return Sample(
        at_s=at_s,
        query=query.id,
        group=query.group,
        share_pct=given.share_pct,
        processed_s=processed_s,
        skipped_s=0.0 if query.may_lag else period_s - processed_s,
        quality=option.quality if option else 0.0,
        lag_s=state.lag_s,
        late=state.lag_s > query.utility.lag_goal_s,
        mu=state.correction.mu,
    )


def seen_quality(samples: Sequence[Sample]) -> float:
    """Mean quality over seconds of video; what was skipped counts 0. 0 for no video."""
    video_s = sum(s.processed_s + s.skipped_s for s in samples)
    return sum(s.processed_s * s.quality for s in samples) / video_s if video_s else 0.0


def late_frac(samples: Sequence[Sample]) -> float:
    """Part of the query-periods that end with more lag than the goal."""
    return sum(s.late for s in samples) / len(samples) if samples else 0.0


def between(samples: Sequence[Sample], from_s: float, to_s: float) -> list[Sample]:
    """Samples of periods that begin in from_s <= t < to_s."""
    return [s for s in samples if from_s <= s.at_s < to_s]
