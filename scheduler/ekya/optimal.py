"""The exact plan by dynamic programming, milliseconds where the paper's heuristic took seconds. Ours; no paper has it.

Claim: `optimal` maximises, over all allocations in quanta and all configurations, first the number of streams at or above
the floor, then the mean quality.
Proof sketch. A stream's quality and floor flag depend on its own (infer, train) quanta only, given lambda* (with the share
fixed the best knobs are those that keep the most quality, for either estimate, since both are non-decreasing in phi and the
floor test is monotone in phi). So streams couple only through sum(I+R) <= Q. Let best(v, q) be the lexicographic optimum of
stream v over I+R <= q, found by looking at every pair, and F(v, q) the optimum of streams 1..v within q. An optimal
allocation that gives stream v some k quanta must give streams 1..v-1 an optimal allocation of q-k (exchange argument:
counts and sums are additive, and the lexicographic order is preserved by adding the same pair to both sides), hence
F(v, q) = best over k of F(v-1, q-k) + best(v, k), and F(V, Q) is the optimum. Cost: V*|Gamma|*Q^2 array operations.

Ties (within float noise) go to fewer quanta for the stream, then to inference over training; unused quanta stay spare.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduler.ekya.estimate import QUALITY_TOL
from scheduler.ekya.pick_configs import Pair, PickConfigs
from scheduler.types import Plan, Snapshot


@dataclass(frozen=True)
class _StreamTable:
    """best(v, q) for q = 0..Q. below: int (Q+1,); quality: float (Q+1,); pairs: the (infer, train) quanta that reach it."""

    below: np.ndarray
    quality: np.ndarray
    pairs: tuple[Pair, ...]


def optimal(snapshot: Snapshot) -> Plan:
    """The exact optimum of the same estimate that the thief climbs on."""
    picker = PickConfigs(snapshot)
    tables = [_stream_table(picker, number) for number in range(len(picker.estimators))]
    picker.calls = len(tables) * (picker.quanta + 1) * (picker.quanta + 2) // 2
    return picker.plan("optimal", _knapsack(tables, picker.quanta))


def _stream_table(picker: PickConfigs, number: int) -> _StreamTable:
    quanta = picker.quanta
    quality, below_at = picker.estimators[number].table(quanta, picker.quantum_pct)
    total, train = np.arange(quanta + 1)[:, None], np.arange(quanta + 1)[None, :]
    below = below_at[np.maximum(total - train, 0)].astype(np.int64)  # (t, r)
    columns = _first_best(np.where(train <= total, below, 2), quality)
    best_below: list[int] = []
    best_quality: list[float] = []
    pairs: list[Pair] = []
    for t, r in enumerate(columns.tolist()):
        candidate = (int(below[t, r]), float(quality[t, r]))
        if t > 0 and not _better(candidate, (best_below[-1], best_quality[-1])):
            candidate, pair = (best_below[-1], best_quality[-1]), pairs[-1]
        else:
            pair = (t - r, r)
        best_below.append(candidate[0])
        best_quality.append(candidate[1])
        pairs.append(pair)
    return _StreamTable(np.array(best_below), np.array(best_quality), tuple(pairs))


def _better(a: tuple[int, float], b: tuple[int, float]) -> bool:
    return a[0] < b[0] or (a[0] == b[0] and a[1] > b[1] + QUALITY_TOL)


def _first_best(below: np.ndarray, quality: np.ndarray) -> np.ndarray:
    """Per row, the first column that is lexicographically best (fewest below, then most quality within float noise)."""
    fewest = below.min(axis=1, keepdims=True)
    among = np.where(below == fewest, quality, -np.inf)
    return np.argmax(among >= among.max(axis=1, keepdims=True) - QUALITY_TOL, axis=1)


def _knapsack(tables: list[_StreamTable], quanta: int) -> list[Pair]:
    """Pairs in stream order: F(v, q) forwards, then the choices read back from F(V, Q)."""
    total, own = np.arange(quanta + 1)[:, None], np.arange(quanta + 1)[None, :]
    valid = own <= total
    rest = np.maximum(total - own, 0)
    below, quality = np.zeros(quanta + 1, np.int64), np.zeros(quanta + 1)
    taken: list[np.ndarray] = []
    for table in tables:
        all_below = np.where(valid, below[rest] + table.below[None, :], np.iinfo(np.int64).max)
        all_quality = np.where(valid, quality[rest] + table.quality[None, :], -np.inf)
        columns = _first_best(all_below, all_quality)
        rows = np.arange(quanta + 1)
        below, quality = all_below[rows, columns], all_quality[rows, columns]
        taken.append(columns)
    pairs: list[Pair] = []
    left = quanta
    for table, columns in zip(reversed(tables), reversed(taken), strict=True):
        used = int(columns[left])
        pairs.append(table.pairs[used])
        left -= used
    return pairs[::-1]
