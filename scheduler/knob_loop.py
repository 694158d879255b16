"""Knobs between two plans: the plan says how much inference gets together; when what it rests on changes, that is divided anew.

A plan (Ekya, minutes) rests on what a frame costs when it is made. What moves in the picture changes that within seconds: a crowd
comes, and a camera that cuts out what moves needs three times the compute. VideoStorm (`scheduler.videostorm`) then takes share where
it is worth least. Its queries here are the cameras, its capacity is all that is not promised to learning, its options are the same
inference profiles that the plan uses, so that both clocks speak of one quality at one demand: (quality of the serving model) x (what
the knobs leave of it).

The box looks every half second whether anything of that has changed (`seen`) and tells the engine when `reallocated` would change
something, or a lag goal is missed or met again (`due`); the engine asks it again, so a replay finds the same. A plan whose premises
hold is left alone: dividing after every plan was tried on the eight cameras of docs/learning.md and won nothing (mean F1 0.615 against
0.624).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from scheduler.engine_state import BoxState, EngineConfig, StreamState
from scheduler.events import Load
from scheduler.fleet.grants import Division, inference_parts
from scheduler.pricing import ChangePrice
from scheduler.snapshots import division_of
from scheduler.videostorm.allocate import Rules, allocate
from scheduler.videostorm.types import Allocation, Given, Option, Query, Utility

#: A share that is short by less than this many points is enough.
SAME_PCT = 0.5
#: A change of shares that costs more than this is not made every second.
QUICK_S = 0.1


def reallocated(state: BoxState, config: EngineConfig, loads: Iterable[Load] = ()) -> Allocation | None:
    """Every live camera's knobs and inference share for now; None: as they are."""
    if not config.knob_loop or state.phase != "planned" or not _quick(config.change):
        return None
    lags_s = {load.stream: load.lag_s for load in loads}
    queries = [_query(s, config, lags_s.get(s.id, 0.0)) for s in state.ordered() if s.live and s.knobs]
    found = _allocated(queries, inference_pct(state, config), division_of(state), config.knob_rules)
    return found if any(_differs(state.streams[given.query], given) for given in found.given) else None


def _allocated(queries: Sequence[Query], total_pct: float, division: Division, rules: Rules) -> Allocation:
    """Over all cameras, or each customer's within what inference has of its part: what they hold, and of what nobody holds as much as
    their shares are worth."""
    if not division.applies([query.id for query in queries]):
        return allocate(queries, total_pct, rules=rules)
    held = {query.id: query.current_pct for query in queries}
    made = {
        customer: allocate([q for q in queries if division.of(q.id) == customer], pct, rules=rules)
        for customer, pct in inference_parts(held, total_pct, division).items()
    }
    given = {one.query: one for found in made.values() for one in found.given}
    return Allocation(
        given=tuple(given[query.id] for query in queries), spare_pct=sum(found.spare_pct for found in made.values()),
        unmet=tuple(query.id for query in queries if any(query.id in found.unmet for found in made.values())),
    )  # fmt: skip


def seen(state: BoxState, loads: Iterable[Load] = ()) -> Hashable:
    """What a division rests on; as long as it is the same, the plan's own stands."""
    return tuple((s.id, s.knobs) for s in state.ordered() if s.live), tuple(loads)


def due(state: BoxState, config: EngineConfig, loads: Sequence[Load] = ()) -> bool:
    """Whether the engine has anything to do or to say about `loads`."""
    return reallocated(state, config, loads) is not None or bool(turned_late(state, config, loads))


def inference_pct(state: BoxState, config: EngineConfig) -> float:
    """While a window is still prepared: what the plan left to inference. Later also what is left over: all that no retraining and no
    gate was promised."""
    if state.prepares:
        return state.infer_pct
    learning = sum(s.train_pct for s in state.streams.values() if s.live and (s.running is not None or s.gating))
    return max(0.0, config.capacity_pct - learning)


def option_of(given: Given) -> str | None:
    """The knobs to run with. One that may wait is given an option also where it gets no share: it pauses."""
    return given.option if given.share_pct > 0 else None


def together(utilities: Sequence[Utility]) -> Utility | None:
    """What a camera's quality and lag are worth when several ask it something: the strictest goals, and weights that add up. None:
    nobody asks."""
    if not utilities:
        return None
    return Utility(
        base=sum(u.base for u in utilities), quality_weight=sum(u.quality_weight for u in utilities),
        quality_goal=max(u.quality_goal for u in utilities), lag_weight_per_s=sum(u.lag_weight_per_s for u in utilities),
        lag_goal_s=min(u.lag_goal_s for u in utilities), quality_penalty=sum(u.quality_penalty for u in utilities),
    )  # fmt: skip


def unmet(stream: StreamState) -> bool:
    """Whether what people see of the camera is worse than the goal of its queries; unknown quality is not."""
    goal = stream.utility.quality_goal if stream.utility is not None else 0.0
    return stream.live and stream.quality is not None and stream.shown_quality() < goal


def turned_late(state: BoxState, config: EngineConfig, loads: Iterable[Load]) -> dict[str, float]:
    """Cameras that have become late, or are in time again, with the seconds of their recordings that wait."""
    if not config.say_lag:
        return {}
    lags_s = dict.fromkeys(state.streams, 0.0) | {load.stream: load.lag_s for load in loads}
    return {s.id: lags_s[s.id] for s in state.ordered() if _late(s, lags_s[s.id], config.knob_rules) != s.late}


def _late(stream: StreamState, lag_s: float, rules: Rules) -> bool:
    """Whether more of a recording waits than its queries allow; once it is so, until the allocator has brought it where it wants it, a
    part below the goal: a backlog at the goal is not told of with every second. Nothing is known of a camera that gives no frames."""
    if stream.utility is None:
        return False
    if not stream.live:
        return stream.late
    goal_s = stream.utility.lag_goal_s
    return lag_s > (rules.goal_frac * goal_s if stream.late else goal_s)


def _quick(change: ChangePrice) -> bool:
    """Where a new share means a new process, shares change with the plan only."""
    return change.settle_s <= QUICK_S and change.gpu_s <= QUICK_S and change.blind_s <= 0


def _query(stream: StreamState, config: EngineConfig, lag_s: float) -> Query:
    quality = stream.believed(config.prior_quality)
    return Query(
        id=stream.id,
        options=tuple(Option(name=k.name, demand_pct=k.demand_pct, quality=quality * k.quality_frac) for k in stream.knobs),
        utility=stream.utility or config.knob_utility, lag_s=lag_s, current=stream.knob, current_pct=stream.infer_pct, may_lag=lag_s > 0,
    )  # fmt: skip


def _differs(stream: StreamState, given: Given) -> bool:
    """A share that could only be smaller stays: nobody else wants it, and uneven work is glad of it."""
    return stream.knob != option_of(given) or given.share_pct - stream.infer_pct >= SAME_PCT
