"""The planners written out as plainly as they can be: slow, without memory of what was worked out, for comparison in tests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scheduler.ekya.estimate import SpeedCurve, StreamEstimator
from scheduler.types import Snapshot

Pair = tuple[int, int]
Job = tuple[int, int]


class PlainWorld:
    """(streams below the floor, mean quality) of whole allocations of one snapshot; pairs are (infer, train) quanta."""

    def __init__(self, snapshot: Snapshot, *, only_useful: bool = True) -> None:
        speed = SpeedCurve.of(snapshot)
        self.snapshot = snapshot
        self.quanta = snapshot.capacity_pct // snapshot.quantum_pct
        self.estimators = [StreamEstimator.of(view, snapshot, speed, only_useful=only_useful) for view in snapshot.streams]

    def at(self, stream: int, pair: Pair) -> tuple[bool, float]:
        step = self.snapshot.quantum_pct
        choice = self.estimators[stream].best(pair[0] * step, pair[1] * step)
        return choice.below_floor, choice.quality

    def improves(self, then: Sequence[Pair], now: Sequence[Pair]) -> bool:
        """Fewer streams below the floor, or as many and a higher mean."""
        changed = [v for v, pair in enumerate(then) if pair != now[v]]
        below = sum(self.at(v, then[v])[0] for v in changed) - sum(self.at(v, now[v])[0] for v in changed)
        gain = sum(self.at(v, then[v])[1] for v in changed) - sum(self.at(v, now[v])[1] for v in changed)
        return below < 0 or (below == 0 and gain / len(now) > 1e-12)

    def below(self, pairs: Sequence[Pair]) -> int:
        return sum(self.at(v, pair)[0] for v, pair in enumerate(pairs))

    def least_below(self) -> int:
        """The fewest streams below the floor that any allocation has: how many each number of quanta can keep, stream by stream."""
        most_kept = [0] * (self.quanta + 1)
        for v in range(len(self.estimators)):
            enough = [q for q in range(self.quanta + 1) if not self.at(v, (q, 0))[0]]
            for q in reversed(range(self.quanta + 1)) if enough else ():
                most_kept[q] = max(most_kept[q], 1 + most_kept[q - enough[0]]) if q >= enough[0] else most_kept[q]
        return len(self.estimators) - most_kept[self.quanta]


def plain_sweeps(
    world: PlainWorld, jobs: Sequence[Job], start: Sequence[Pair], steal: int, *, repeat: bool
) -> tuple[list[Pair], int]:
    """The listing from `start`: (allocation, allocations looked at). repeat: sweep until stable, the last steal capped."""
    best, looked_at, moved = [list(pair) for pair in start], 1, True
    while moved:
        moved = False
        for thief in jobs:
            for victim in jobs:
                while thief != victim:
                    held = best[victim[0]][victim[1]]
                    amount = min(steal, held) if repeat else steal
                    if amount == 0 or amount > held:
                        break
                    trial = [list(pair) for pair in best]
                    trial[victim[0]][victim[1]] -= amount
                    trial[thief[0]][thief[1]] += amount
                    looked_at += 1
                    if not world.improves([(i, r) for i, r in trial], [(i, r) for i, r in best]):
                        break
                    best, moved = trial, True
        if not repeat:
            break
    return [(infer, train) for infer, train in best], looked_at


def plain_best_by_total(world: PlainWorld, stream: int) -> tuple[np.ndarray, np.ndarray]:
    """(streams below, quality) of the best pair within q quanta, for every q; fewer below comes first."""
    below, quality = np.ones(world.quanta + 1, np.int64), np.full(world.quanta + 1, -np.inf)
    for infer in range(world.quanta + 1):
        for train in range(world.quanta + 1 - infer):
            is_below, value = world.at(stream, (infer, train))
            for q in range(infer + train, world.quanta + 1):
                if (is_below, -value) < (below[q], -quality[q]):
                    below[q], quality[q] = is_below, value
    return below, quality


def plain_knapsack(tables: Sequence[tuple[np.ndarray, np.ndarray]], quanta: int) -> tuple[int, float]:
    """(fewest below, most summed quality with that many below) over all ways to share `quanta` out."""
    best = [(0, 0.0)] * (quanta + 1)
    for below, quality in tables:
        best = [
            min((best[q - k][0] + int(below[k]), best[q - k][1] - float(quality[k])) for k in range(q + 1))
            for q in range(quanta + 1)
        ]
    return best[quanta][0], -best[quanta][1]
