"""Which machine a query runs on: the three scores of the card's section 8, and when it moves.

    packing  p = sum_r w_r (d_r / cap_r) (free_r / cap_r) / sum_r w_r (d_r / cap_r)    free where it needs much
    balance  b = 1 - (used + d) / cap, of the resource that is shared out              not too full
    spread   l = mean lag goal of the queries on it with this one / largest lag goal   queries in a hurry apart
    score    = (p + b + l) / 3, each 0-1; a query moves from m0 to m1 only if score(m1) - score(m0) > tau

The text leaves the normalisations and tau open; these are the card's. A query that a machine has no room for has no score there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

#: Free and used amounts may differ from a sum by this part.
_ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class Demand:
    """A query to place. need: amount per resource (any unit, the machines' own); lag_goal_s: L_M."""

    id: str
    need: Mapping[str, float]
    lag_goal_s: float

    def __post_init__(self) -> None:
        if not self.need or not all(0 <= n < math.inf for n in (*self.need.values(), self.lag_goal_s)):
            raise ValueError(f"query {self.id}: needs and lag goal must be numbers from 0 on, got {self}")


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A machine with what runs on it. capacity: per resource; queries: those on it. used: amounts taken, None: the sum of them."""

    id: str
    capacity: Mapping[str, float]
    queries: tuple[Demand, ...] = ()
    used: Mapping[str, float] | None = None

    def __post_init__(self) -> None:
        if not self.capacity or not all(0 < n < math.inf for n in self.capacity.values()):
            raise ValueError(f"machine {self.id}: capacities must be positive numbers, got {dict(self.capacity)}")
        if self.used is not None and not all(0 <= n < math.inf for n in self.used.values()):
            raise ValueError(f"machine {self.id}: used amounts must be numbers from 0 on, got {dict(self.used)}")

    def taken(self, resource: str) -> float:
        """How much of a resource is in use."""
        if self.used is not None:
            return self.used.get(resource, 0.0)
        return math.fsum(q.need.get(resource, 0.0) for q in self.queries)

    def without(self, query: Demand) -> Machine:
        """The machine as if `query` did not run on it."""
        used = {r: max(0.0, self.taken(r) - query.need.get(r, 0.0)) for r in self.capacity}
        return replace(self, queries=tuple(q for q in self.queries if q.id != query.id), used=used)

    def holding(self, query: Demand) -> Machine:
        """The machine with `query` on it."""
        used = {r: self.taken(r) + query.need.get(r, 0.0) for r in self.capacity}
        return replace(self, queries=(*self.queries, query), used=used)


@dataclass(frozen=True, kw_only=True)
class Score:
    """p, b and l of a query on a machine, each 0-1."""

    packing: float
    balance: float
    spread: float

    @property
    def total(self) -> float:
        """The mean of the three."""
        return (self.packing + self.balance + self.spread) / 3


@dataclass(frozen=True, kw_only=True)
class PlacementRules:
    """tau: score that a move has to gain. weights: w_r, 1 where none is given. balanced: the resource that b looks at, None: the
    first one of each query. moves: most migrations at a time."""

    tau: float = 0.15
    balanced: str | None = None
    weights: Mapping[str, float] = field(default_factory=dict)
    moves: int = 2

    def __post_init__(self) -> None:
        if not (0 <= self.tau < math.inf and self.moves >= 0 and all(0 < w < math.inf for w in self.weights.values())):
            raise ValueError(f"tau and moves must be 0 or more, weights positive; got {self}")


@dataclass(frozen=True, kw_only=True)
class Move:
    """A query that belongs on another machine. gain: score won."""

    query: str
    source: str
    target: str
    gain: float


def score(query: Demand, machine: Machine, largest_goal_s: float, rules: PlacementRules) -> Score | None:
    """How well `query`, which does not run on `machine`, would do there; None: no room. largest_goal_s: of all queries of the
    cluster, this one among them. Errors: ValueError for a resource that the machine does not have."""
    balanced = rules.balanced or next(iter(query.need))
    for resource in (*query.need, balanced):
        if resource not in machine.capacity:
            raise ValueError(f"machine {machine.id} has no resource '{resource}', which query {query.id} needs")
    asked_frac = {r: need / machine.capacity[r] for r, need in query.need.items()}
    free_frac = {r: 1 - machine.taken(r) / machine.capacity[r] for r in (*query.need, balanced)}
    if any(asked > free_frac[r] + _ROUNDING for r, asked in asked_frac.items()):
        return None
    weighted = {r: rules.weights.get(r, 1.0) * asked for r, asked in asked_frac.items()}
    total = math.fsum(weighted.values())
    packing = math.fsum(weight * free_frac[r] for r, weight in weighted.items()) / total if total > 0 else 1.0
    goals_s = [q.lag_goal_s for q in (*machine.queries, query)]
    return Score(
        packing=_unit(packing),
        balance=_unit(free_frac[balanced] - asked_frac.get(balanced, 0.0)),
        spread=_unit(math.fsum(goals_s) / len(goals_s) / largest_goal_s) if largest_goal_s > 0 else 1.0,
    )


def place(query: Demand, machines: Sequence[Machine], rules: PlacementRules) -> str | None:
    """The machine with the largest score for a new query, of equal ones the first by id; None: no room anywhere."""
    largest_goal_s = _largest_goal_s(machines, (query,))
    return _best(query, machines, largest_goal_s, rules)[0]


def place_all(
    queries: Sequence[Demand], machines: Sequence[Machine], rules: PlacementRules
) -> tuple[dict[str, str | None], tuple[Machine, ...]]:
    """New queries one by one, those with the largest part of the largest machine first. Returns (machine of each query, the machines
    with them)."""
    largest_goal_s = _largest_goal_s(machines, queries)
    placed: dict[str, str | None] = {}
    now = tuple(machines)
    for query in sorted(queries, key=lambda q: (-_largest_part(q, machines), q.id)):
        target, _ = _best(query, now, largest_goal_s, rules)
        placed[query.id] = target
        now = tuple(m.holding(query) if m.id == target else m for m in now)
    return {q.id: placed[q.id] for q in queries}, now


def migrations(machines: Sequence[Machine], rules: PlacementRules) -> tuple[Move, ...]:
    """Which queries to move now, at most `rules.moves`: each time the one that gains most, scored with all earlier moves done. A query
    moves once at most."""
    largest_goal_s = _largest_goal_s(machines, ())
    now, moves = tuple(machines), list[Move]()
    while len(moves) < rules.moves:
        moved = {move.query for move in moves}
        gains = (best_move(query, m, now, largest_goal_s, rules) for m in now for query in m.queries if query.id not in moved)
        found = min((move for move in gains if move), key=lambda move: (-move.gain, move.query), default=None)
        if found is None:
            break
        moves.append(found)
        now = _moved(now, found)
    return tuple(moves)


def best_move(
    query: Demand, source: Machine, machines: Sequence[Machine], largest_goal_s: float, rules: PlacementRules
) -> Move | None:
    """The best move of `query`, None where none gains more than tau. Its machine is scored without it; one that has become too full
    for it scores 0."""
    here = score(query, source.without(query), largest_goal_s, rules)
    target, there = _best(query, [m for m in machines if m.id != source.id], largest_goal_s, rules)
    gain = there - (here.total if here else 0.0)
    if target is None or gain <= rules.tau:
        return None
    return Move(query=query.id, source=source.id, target=target, gain=gain)


def _best(query: Demand, machines: Sequence[Machine], largest_goal_s: float, rules: PlacementRules) -> tuple[str | None, float]:
    scores = [(m.id, score(query, m, largest_goal_s, rules)) for m in sorted(machines, key=lambda m: m.id)]
    return max(((name, found.total) for name, found in scores if found), key=lambda pair: pair[1], default=(None, 0.0))


def _moved(machines: Sequence[Machine], move: Move) -> tuple[Machine, ...]:
    query = next(q for m in machines for q in m.queries if m.id == move.source and q.id == move.query)
    done = {move.source: Machine.without, move.target: Machine.holding}
    return tuple(done[m.id](m, query) if m.id in done else m for m in machines)


def _largest_goal_s(machines: Sequence[Machine], queries: Sequence[Demand]) -> float:
    return max((q.lag_goal_s for q in (*queries, *(q for m in machines for q in m.queries))), default=0.0)


def _largest_part(query: Demand, machines: Sequence[Machine]) -> float:
    """What the query needs of the resource it needs most of, as a part of the largest machine."""
    capacity = {r: max((m.capacity.get(r, 0.0) for m in machines), default=0.0) for r in query.need}
    return max((need / capacity[r] for r, need in query.need.items() if capacity[r] > 0), default=0.0)


def _unit(number: float) -> float:
    return min(1.0, max(0.0, number))
