"""PickConfigs (Ekya Alg. 2): the best configurations under given shares, in integer quanta, with the quality floor.

Streams meet only in the total, so each is solved alone and remembered by its (infer, train) quanta: one steal touches at most
two streams. Allocations are ranked by (streams below the floor ascending, mean quality descending); the paper leaves an empty
pool undefined, a hard minus infinity makes the thief stick, and a floor applied at the end only can be violated. The smallest
possible number of streams below the floor is known beforehand (`cheapest_floors`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from configs.errors import UsageError
from scheduler.ekya.estimate import Choice, SpeedCurve, StreamEstimator
from scheduler.types import Plan, Snapshot, StreamPlan

#: Quanta of one stream: (inference, training).
Pair = tuple[int, int]


@dataclass(frozen=True)
class Rank:
    """How good an allocation is: first fewer streams below the floor, then a higher mean window average."""

    below: int
    quality: float

    def key(self) -> tuple[int, float]:
        """Sorts: the smallest is the best."""
        return self.below, -self.quality


#: Added to a stream's value for each stream below the floor. No steal moves two qualities by as much, and a float near it still
#: resolves 1e-15, so that comparing two sums of two values is comparing their ranks.
BELOW_VALUE = -8.0


class PickConfigs:
    """PickConfigs over one snapshot. `calls` counts the allocations ranked (the paper's measure of work).

    only_useful: leave out retrainings that do not end above the serving model (see `thief` for why not always).

    Errors: UsageError if capacity or quantum is not positive.
    """

    def __init__(self, snapshot: Snapshot, *, only_useful: bool = True) -> None:
        if snapshot.quantum_pct <= 0 or snapshot.capacity_pct < 0:
            raise UsageError(
                f"cannot plan {snapshot.capacity_pct} pct in quanta of {snapshot.quantum_pct} pct",
                remedy="capacity_pct must not be negative and quantum_pct must be at least 1",
            )
        self.snapshot = snapshot
        self.quantum_pct = snapshot.quantum_pct
        #: Whole quanta; what capacity holds beyond them can be owned by nobody and ends up as spare.
        self.quanta = snapshot.capacity_pct // snapshot.quantum_pct
        self.speed = SpeedCurve.of(snapshot)
        self.estimators = tuple(
            StreamEstimator.of(view, snapshot, self.speed, only_useful=only_useful) for view in snapshot.streams
        )
        self._memo: list[dict[Pair, float]] = [{} for _ in self.estimators]
        self.calls = 0

    def choice(self, stream: int, pair: Pair) -> Choice:
        """Best choice of stream number `stream` under `pair` quanta."""
        infer, train = pair
        return self.estimators[stream].best(infer * self.quantum_pct, train * self.quantum_pct)

    def value(self, stream: int, pair: Pair) -> float:
        """The quality of `choice`, plus `BELOW_VALUE` if it is below the floor. Remembered."""
        memo = self._memo[stream]
        found = memo.get(pair)
        if found is None:
            infer, train = pair
            quality, below = self.estimators[stream].value(infer * self.quantum_pct, train * self.quantum_pct)
            found = memo[pair] = quality + BELOW_VALUE if below else quality
        return found

    def rank(self, pairs: Sequence[Pair]) -> Rank:
        """Rank of a whole allocation; pairs in stream order."""
        return rank_of([self.choice(v, pair) for v, pair in enumerate(pairs)])

    def floors(self) -> list[int | None]:
        """Per stream, the smallest inference quanta that keep it from being below the floor; None where nothing does."""
        needed = [estimator.floor_quanta(self.quantum_pct) for estimator in self.estimators]
        return [quanta if quanta is not None and quanta <= self.quanta else None for quanta in needed]

    def plan(self, policy: str, pairs: Sequence[Pair]) -> Plan:
        """The plan of an allocation. What a retraining holds beyond `Snapshot.train_max_pct` becomes spare, unless (hand-back) its
        stream's inference is counted on to use it afterwards."""
        q, most_pct = self.quantum_pct, self.snapshot.train_max_pct
        if most_pct is not None and self.snapshot.estimate == "static":
            pairs = [(infer, min(train, -(-max(0, most_pct) // q))) for infer, train in pairs]
        shares = [(infer * q, train * q) for infer, train in pairs]
        choices = [self.choice(v, pair) for v, pair in enumerate(pairs)]
        return build_plan(self.snapshot, policy, shares, choices, steps=self.calls)


def cheapest_floors(floors: Sequence[int | None], quanta: int, worth: Sequence[float] = ()) -> list[int]:
    """The streams that `quanta` keep from being below the floor when the cheapest go first (ties: the most `worth`, then in
    stream order).

    No allocation keeps more: those that one keeps hold at least their floors, so the k it keeps need at least the k smallest
    floors, and cheapest-first takes as many of the smallest as fit.
    """
    reached: list[int] = []
    needed = [(floor, -worth[v] if worth else 0.0, v) for v, floor in enumerate(floors) if floor is not None]
    for floor, _, stream in sorted(needed):
        quanta -= floor
        if quanta < 0:
            break
        reached.append(stream)
    return reached


def rank_of(choices: Sequence[Choice]) -> Rank:
    """Streams below the floor, and the mean quality (0 without streams)."""
    quality = sum(c.quality for c in choices) / len(choices) if choices else 0.0
    return Rank(sum(c.below_floor for c in choices), quality)


def build_plan(
    snapshot: Snapshot, policy: str, shares_pct: Sequence[tuple[int, int]], choices: Sequence[Choice], *, steps: int
) -> Plan:
    """The plan of shares (infer pct, train pct) and choices in stream order.

    A training share that no retraining uses is owned by nobody: it becomes spare. Errors: ValueError if the shares exceed the
    capacity.
    """
    streams = tuple(
        StreamPlan(
            id=view.id,
            knobs=choice.knobs.name if choice.knobs else None,
            infer_pct=infer_pct,
            retrain=choice.retrain.name if choice.retrain else None,
            train_pct=train_pct if choice.retrain else 0,
            expected_quality=choice.quality,
            below_floor=choice.below_floor,
        )
        for view, (infer_pct, train_pct), choice in zip(snapshot.streams, shares_pct, choices, strict=True)
    )
    spare_pct = snapshot.capacity_pct - sum(s.infer_pct + s.train_pct for s in streams)
    quality = rank_of(choices).quality
    plan = Plan(policy=policy, streams=streams, spare_pct=spare_pct, expected_quality=quality, steps=steps)
    plan.check(snapshot.capacity_pct)
    return plan
