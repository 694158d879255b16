"""Who gets how many units: the greedy of SLAQ's two objectives, and the fair baseline. Sections 6 and 9 of the chapter.

    sum      maximise  sum_j w_j * gain_j(a_j)              a_j >= min_j, sum a_j <= C
    minmax   minimise  max_j w_j * remaining_frac_j(a_j)

Every job gets its minimum; then one unit at a time goes to the job whose next unit is worth most (sum), or to the job that is worst
off (minmax), while units last. Gains are concave in the units, so the greedy is exactly optimal for `sum`: swapping any unit of
its answer for another replaces a marginal gain by one that is not larger.

What we changed or settled:
  * minmax feeds the *worst* job; the text prints arg min, which would feed the best one.
  * iterations stay fractional: whole ones make marginal gains zero in steps and stall the greedy (worked example S4).
  * units that help nobody stay unassigned; `spread` hands them out when idling would be a waste.
  * fewer units than minimum shares: first the jobs that have waited for a full turn, longest first, then those that gain most per
    unit. A job below its fair share thus waits no longer than about two turns.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

Objective = Literal["sum", "minmax"]

#: A unit worth less than this (normalised gain, or fraction remaining) is worth nothing.
VANISHED = 1e-12


@dataclass(frozen=True, kw_only=True, slots=True)
class Bidder:
    """A job as the allocation sees it.

    gain: units -> predicted normalised reduction, gain(0) = 0, concave, weight included. remaining: units -> what is left, weight
    included (minmax only). least/most: units it must and can have. waited_turns: turns it has waited below its fair share.
    """

    gain: Callable[[int], float]
    remaining: Callable[[int], float] = lambda units: 0.0
    least: int = 1
    most: int | None = None
    waited_turns: float = 0.0

    def cap(self, units: int) -> int:
        """Most units it can have out of `units`."""
        return units if self.most is None else min(units, self.most)


def allocate(bidders: Sequence[Bidder], units: int, objective: Objective = "sum") -> list[int]:
    """Units per bidder, sum <= units; equal to it unless every further unit is worthless or caps bind. Ties: the earlier bidder.

    O((J + C) log J) evaluations of gain or remaining.
    """
    shares = floors(bidders, units)
    free = units - sum(shares)
    worth = _next_gain if objective == "sum" else _next_worst
    heap: list[tuple[float, int]] = []

    def push(j: int) -> None:
        value = worth(bidders[j], shares[j]) if shares[j] < bidders[j].cap(units) else None
        if value is not None:
            heapq.heappush(heap, (-value, j))

    for j in range(len(bidders)):
        push(j)
    while free > 0 and heap:
        _, j = heapq.heappop(heap)
        shares[j] += 1
        free -= 1
        push(j)
    return shares


def floors(bidders: Sequence[Bidder], units: int) -> list[int]:
    """Minimum shares as far as `units` go: all of them, or whole ones to the jobs that come first (see the module's text)."""
    least = [min(max(0, b.least), b.cap(units)) for b in bidders]
    if sum(least) <= units:
        return least
    shares = [0] * len(bidders)
    for j in sorted((j for j in range(len(bidders)) if least[j] > 0), key=lambda j: (*_turn(bidders[j], least[j]), j)):
        shares[j] = min(least[j], units)
        units -= shares[j]
    return shares


def fair(caps: Sequence[int | None], units: int) -> list[int]:
    """The work-conserving baseline in whole units: as equal as caps allow, the remainder to the first ones."""
    return spread([0] * len(caps), caps, units)


def fair_fractional(jobs: int, capacity: float) -> list[float]:
    """The baseline of the evaluation: C/J to each active job, re-divided on arrival and departure."""
    return [capacity / jobs] * jobs


def spread(shares: Sequence[int], caps: Sequence[int | None], units: int) -> list[int]:
    """`shares` plus up to `units` more, one at a time to the job with the least that is below its cap; ties: the earlier job."""
    filled = list(shares)
    heap = [(share, j) for j, (share, cap) in enumerate(zip(shares, caps, strict=True)) if cap is None or share < cap]
    heapq.heapify(heap)
    while units > 0 and heap:
        share, j = heapq.heappop(heap)
        filled[j] = share + 1
        units -= 1
        cap = caps[j]
        if cap is None or filled[j] < cap:
            heapq.heappush(heap, (filled[j], j))
    return filled


def _next_gain(bidder: Bidder, share: int) -> float | None:
    """Worth of one more unit, None when it is worth nothing."""
    gained = bidder.gain(share + 1) - bidder.gain(share)
    return gained if gained > VANISHED else None


def _next_worst(bidder: Bidder, share: int) -> float | None:
    """How badly off the job is, None when one more unit does not help it."""
    left = bidder.remaining(share)
    return left if left - bidder.remaining(share + 1) > VANISHED else None


def _turn(bidder: Bidder, least: int) -> tuple[bool, float, float]:
    """Sort key: who has waited a full turn first, longest first; then the largest gain per unit."""
    overdue = bidder.waited_turns >= 1
    return (not overdue, -bidder.waited_turns if overdue else 0.0, -bidder.gain(least) / least)


def doubled(weight: float, waited_s: float, age_s: float | None) -> float:
    """Ageing: the weight doubles with every `age_s` seconds below the fair share; None: off.

        w(t) = w * 2^(waited_s / age_s)

    Doubling, not growing by a constant: gains of converging jobs fall exponentially, and only this overtakes any of them.
    """
    return weight if age_s is None else weight * 2.0 ** min(60.0, max(0.0, waited_s) / age_s)


def turns(waited_s: float, epoch_s: float, jobs: int, units: int) -> float:
    """Waiting in turns: a turn is as many epochs as it takes to serve every job one unit."""
    return waited_s / (epoch_s * max(1, math.ceil(jobs / max(1, units))))
