"""The exact plan, milliseconds where the paper's heuristic took seconds. Ours; no paper has it.

Claim: `optimal` maximises, over all allocations in quanta and all configurations, first the number of streams at or above
the floor, then the mean quality (to within 1e-12, the planners' `QUALITY_TOL`; where some streams must stay below the floor and it
is open which, to within 1e-11 from 1,024 streams on and 1e-9 up to 10,000).

Proof sketch.
1. Per stream. A stream's quality and floor flag depend on its own (infer, train) quanta only, given lambda* (with the share fixed
   the best knobs are those that keep the most quality, for either estimate, since both are non-decreasing in phi and the floor
   test is monotone in phi). So streams couple only through sum(I+R) <= Q. With the total t = I+R fixed, an inference share between
   two rungs of phi shows what the rung below shows and trains with less, and A is non-decreasing in R: looking at the rungs
   is looking at every I. That gives best(v, q) (`StreamEstimator.best_by_total`), and a knapsack with one item per stream.
2. Floors. Let m_v be the floor's quanta, N the largest number of streams that can be kept from being below (`cheapest_floors`), M
   what the N cheapest need. Whoever keeps N has spent at least M on them, so every optimum has at most S = Q - M quanta beyond
   floors: stream v holds at most S, or between m_v and m_v + S. Exchanging one of the N for another costs the difference of
   their floors, so with next = the cheapest floor left out and last = the dearest taken, a floor below next - S is always kept, and
   one above last + S never. Items outside are no part of any optimum; only the streams in between choose ("open").
3. Bound (when no stream is open). For any price p >= 0 of a quantum, U(p) = sum_v max_q [best(v, q) - p*q] + p*Q is at least the
   optimum, because it is at least the value of each allocation within Q, with the capacity's slack priced in. By the
   same inequality an allocation with item q for stream v is worth at most U(p) less what that item falls short of v's maximum. So an
   item that falls short by more than U(p) - L, L being the value of some allocation, is in no optimum. p minimises U.
4. Dynamic program over the items that are left, F(v, q) = max over k of F(v-1, q-k) + best(v, k): an optimal allocation that
   gives stream v some k quanta gives streams 1..v-1 an optimal allocation of q-k. Values are whole numbers of 2^-40 (rounded
   once; coarser where an open stream's floor must count for more than all qualities together), so sums and comparisons are exact.

Ties go to fewer quanta for the later stream, then to inference over training; unused quanta stay spare.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scheduler.ekya.estimate import QUALITY_TOL
from scheduler.ekya.pick_configs import Pair, PickConfigs, cheapest_floors
from scheduler.types import Plan, Snapshot

#: A bound computed in floats is trusted to this; an item is dropped only when it falls short by more.
_BOUND_TOL = 1e-9

#: Tangents looked at for the best price; far fewer are needed.
_PRICE_STEPS = 60
#: Streams that may share what an allocation at the best price leaves; any number gives a valid bound.
_FILL_STEPS = 60

_NEVER = np.iinfo(np.int64).min // 2


@dataclass(frozen=True)
class _Items:
    """What one stream may take: quanta (rising) and what each is worth, quality 0-1. kept: is it not below the floor?"""

    quanta: np.ndarray
    quality: np.ndarray
    kept: np.ndarray


def optimal(snapshot: Snapshot) -> Plan:
    """The exact optimum of the same estimate that the thief climbs on."""
    picker = PickConfigs(snapshot)
    if not picker.estimators:
        return picker.plan("optimal", [])
    factors = np.array([picker.speed.at(q * picker.quantum_pct) for q in range(picker.quanta + 1)])
    table = np.stack([estimator.best_by_total(factors, picker.quantum_pct) for estimator in picker.estimators])
    floors, opened = _within_floors(table, picker)
    if not opened:
        _within_bound(table, picker.quanta)
    totals = _knapsack([_items(row, floor) for row, floor in zip(table, floors, strict=True)], picker.quanta)
    picker.calls = table.size
    return picker.plan("optimal", [_split(picker, v, total, floors[v]) for v, total in enumerate(totals)])


def _within_floors(table: np.ndarray, picker: PickConfigs) -> tuple[list[int], bool]:
    """Step 2: takes out of `table` (-inf) what no optimum holds. Returns each stream's floor quanta (0: it has none, or is never
    kept) and whether any stream is open."""
    floors, quanta = picker.floors(), picker.quanta
    reached = cheapest_floors(floors, quanta)
    costs = [floors[v] or 0 for v in reached]
    spare, last = quanta - sum(costs), max(costs, default=0)
    left_out = set(range(len(floors))) - set(reached)
    following = min((floor for v in left_out if (floor := floors[v]) is not None), default=None)
    if following is None or following > last + spare:
        following = quanta + spare + 1  # nobody can be exchanged: those reached are kept, no other is
    used = [0] * len(floors)
    opened = False
    for v, floor in enumerate(floors):
        if floor is None or (v in left_out and floor > last + spare):
            table[v, spare + 1 :] = -np.inf
            continue
        used[v] = floor
        table[v, floor + spare + 1 :] = -np.inf
        if floor >= following - spare:
            table[v, spare + 1 : floor] = -np.inf
            opened = opened or floor > 0
        else:
            table[v, :floor] = -np.inf
    return used, opened


def _within_bound(table: np.ndarray, quanta: int) -> None:
    """Step 3: takes out of `table` (-inf) what falls too far short at the best price."""
    axis = np.arange(table.shape[1], dtype=np.float64)
    price, fewer, more = _best_price(table, axis, quanta)
    reached = _value_of(table, _filled_up(table, _mixed(fewer, more, quanta), quanta))
    short = table - price * axis
    best = short.max(axis=1, keepdims=True)
    gap = float(best.sum()) + price * quanta - reached
    np.subtract(best, short, out=short)
    table[short > gap + _BOUND_TOL] = -np.inf


def _value_of(table: np.ndarray, totals: np.ndarray) -> float:
    return float(table[np.arange(len(table)), totals].sum())


def _best_price(table: np.ndarray, axis: np.ndarray, quanta: int) -> tuple[float, np.ndarray, np.ndarray]:
    """The price p that minimises U, and the streams' best totals for the prices next to it: within `quanta`, and beyond.

    U is convex and piecewise linear, with slope Q - (quanta asked for). Each step looks at the price where the tangents at the
    interval's two ends meet, until U there lies on them. Any price gives a valid bound, so the steps may be cut short.
    """

    def asked(price: float) -> tuple[float, float, np.ndarray]:
        """The tangent of U at `price` as (value at price 0, slope), and the totals."""
        totals = (table - price * axis).argmax(axis=1)
        return _value_of(table, totals), float(quanta - totals.sum()), totals

    low, high = asked(0.0), asked(2.0)  # for nothing, and for more than all quality there is
    if low[1] >= 0:
        return 0.0, low[2], low[2]
    price = 2.0
    for _ in range(_PRICE_STEPS):
        price = (low[0] - high[0]) / (high[1] - low[1])
        now = asked(price)
        if now[0] + price * now[1] <= low[0] + price * low[1] + _BOUND_TOL:
            break
        low, high = (now, high) if now[1] < 0 else (low, now)
    return price, high[2], low[2]


def _mixed(fewer: np.ndarray, more: np.ndarray, quanta: int) -> np.ndarray:
    """`fewer`, with the first streams taking `more` for as long as that stays within `quanta`."""
    totals = np.minimum(fewer, more)
    steps = more - totals
    return totals + np.where(np.cumsum(steps) <= quanta - totals.sum(), steps, 0)


def _filled_up(table: np.ndarray, totals: np.ndarray, quanta: int) -> np.ndarray:
    """`totals`, and what is left of `quanta` goes, over and over, to the stream that makes most of it."""
    streams, last = np.arange(len(table)), table.shape[1] - 1
    totals, left = totals.copy(), quanta - int(totals.sum())
    for _ in range(_FILL_STEPS):
        gains = table[streams, np.minimum(totals + left, last)] - table[streams, totals]
        stream = int(gains.argmax())
        if left == 0 or not gains[stream] > 0:
            break
        row, held = table[stream], totals[stream]
        best = int(np.searchsorted(row[held : held + left + 1], row[min(held + left, last)]))
        totals[stream] += best
        left -= best
    return totals


def _items(row: np.ndarray, floor: int) -> _Items:
    """The totals of a stream that are left and worth more than every smaller one."""
    quanta = np.flatnonzero(row > -np.inf)
    rises = np.ones(len(quanta), bool)
    rises[1:] = (np.diff(row[quanta]) > 0) | ((quanta[1:] >= floor) & (quanta[:-1] < floor))
    quanta = quanta[rises]
    return _Items(quanta, row[quanta], quanta >= floor)


def _knapsack(items: Sequence[_Items], quanta: int) -> list[int]:
    """Step 4: the quanta of each stream. Every stream's first item is the least it takes, so states count what lies beyond."""
    values = _whole_values(items)
    extras = [i.quanta - i.quanta[0] for i in items]
    states = 1 + min(quanta - sum(int(i.quanta[0]) for i in items), sum(int(e[-1]) for e in extras))
    state = np.arange(states)
    best = np.zeros(states, np.int64)
    taken: list[np.ndarray | None] = []
    for value, extra in zip(values, extras, strict=True):
        if len(extra) == 1:
            best = best + value[0]
            taken.append(None)
            continue
        from_state = state[:, None] - extra[None, :]
        candidates = np.where(from_state >= 0, best[np.maximum(from_state, 0)], _NEVER) + value
        column = candidates.argmax(axis=1)
        best = candidates[state, column]
        taken.append(column.astype(np.int32))
    totals: list[int] = []
    left = states - 1
    for item, extra, column in zip(reversed(items), reversed(extras), reversed(taken), strict=True):
        chosen = 0 if column is None else int(column[left])
        totals.append(int(item.quanta[chosen]))
        left -= int(extra[chosen])
    return totals[::-1]


def _whole_values(items: Sequence[_Items]) -> list[np.ndarray]:
    """Quality in whole numbers; where a stream is open, its floor counts for more than the qualities of all."""
    mixed = any(i.kept[0] != i.kept[-1] for i in items)
    bits = min(40, 60 - 2 * math.ceil(math.log2(len(items) + 1))) if mixed else 40
    floor_value = (2 * len(items) + 1) << bits if mixed else 0
    return [np.rint(i.quality * (1 << bits)).astype(np.int64) + i.kept * floor_value for i in items]


def _split(picker: PickConfigs, stream: int, total: int, floor: int) -> Pair:
    """The (infer, train) quanta that make the most of `total`."""
    best, chosen = -math.inf, (0, 0)
    for infer, _ in reversed(picker.estimators[stream].rungs(picker.quantum_pct)):
        if infer <= total and (infer >= floor or total < floor):
            value = picker.value(stream, (infer, total - infer))
            if value > best + QUALITY_TOL:
                best, chosen = value, (infer, total - infer)
    return chosen
