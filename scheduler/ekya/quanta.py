"""What whole quanta buy: inference its quality, training its speed. What training takes from inference is what training costs.

    s(q)    = relative throughput of one retraining on q quanta, no more than `train_max_pct` of which count
    U(a, q) = max over knobs of sum over streams of phi_v * a_v,   total demand of the knobs at most q quanta

U is a knapsack with one choice per stream, exact by dynamic programming in quanta, for many vectors of models at once. The floor comes
first, as everywhere: of all choices within q the tables take the ones with the fewest streams under `min_quality`, then the most
quality. Ours: the paper shares inference and training in one search; planning ahead needs the inference half by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scheduler.ekya.estimate import QUALITY_TOL, SpeedCurve, StreamEstimator
from scheduler.types import Snapshot


def training_speed(snapshot: Snapshot) -> np.ndarray:
    """(Q+1,) s(q) for q = 0..Q whole quanta of the capacity."""
    speed, step = SpeedCurve.of(snapshot), snapshot.quantum_pct
    return np.array([speed.at(q * step) for q in range(snapshot.capacity_pct // step + 1)])


@dataclass(frozen=True)
class KnobSteps:
    """What a stream can buy: quanta (S,) rising from 0, kept (S,) the quality fraction it then keeps, rising from 0."""

    quanta: np.ndarray
    kept: np.ndarray

    @classmethod
    def of(cls, estimator: StreamEstimator, quanta: int, quantum_pct: int) -> KnobSteps:
        """The steps of `StreamEstimator.frac_at` up to `quanta`."""
        steps = [(need, frac) for need, frac in estimator.rungs(quantum_pct) if need <= quanta]
        return cls(np.array([need for need, _ in steps], np.int64), np.array([frac for _, frac in steps]))


@dataclass(frozen=True)
class InferenceTable:
    """U for K vectors of models and every q = 0..Q. value, below: (K, Q+1), summed over streams; kept: (K, V, Q+1), the phi of each
    stream in the choice that reaches it; quanta: (K, V, Q+1), what that choice gives the stream."""

    value: np.ndarray
    below: np.ndarray
    kept: np.ndarray
    quanta: np.ndarray


class InferenceValue:
    """U(a, q) of one snapshot's streams, knobs and floor.

    A *worth* is value - weight*below in one number: a stream more under the floor outweighs any quality (weight 0: no floor).
    """

    def __init__(self, snapshot: Snapshot, estimators: Sequence[StreamEstimator]) -> None:
        self.quanta = snapshot.capacity_pct // snapshot.quantum_pct
        self._floor = snapshot.min_quality
        self._weight = len(estimators) + 1.0 if snapshot.min_quality > 0 else 0.0
        self.steps = [KnobSteps.of(estimator, self.quanta, snapshot.quantum_pct) for estimator in estimators]
        grid = np.arange(self.quanta + 1)
        # Cells before the padding's end are out of reach: their worth is minus infinity.
        self._cells = [self.quanta + grid[None, :] - steps.quanta[:, None] for steps in self.steps]

    def table(self, quality: np.ndarray) -> InferenceTable:
        """U and the choices behind it. quality: (K, V), 0-1."""
        total = np.zeros((len(quality), self.quanta + 1))
        taken: list[np.ndarray] = []
        for v in range(len(self.steps)):
            trial = self._trial(total, v, quality[:, v])
            taken.append(trial.argmax(axis=1))
            total = trial.max(axis=1)
        return self._read_back(quality, taken)

    def worth(self, quality: np.ndarray) -> np.ndarray:
        """(K, Q+1) worth of U. quality: (K, V)."""
        total = np.zeros((len(quality), self.quanta + 1))
        for v in range(len(self.steps)):
            total = self._joined(total, v, quality[:, v])
        return total

    def worth_without(self, quality: np.ndarray) -> np.ndarray:
        """(V, K, Q+1) worth of U over all streams but one. quality: (K, V). By halving: V log V additions of a stream."""
        found = np.zeros((len(self.steps), len(quality), self.quanta + 1))
        if self.steps:
            self._without(quality, found, range(len(self.steps)), found[0].copy())
        return found

    def _without(self, quality: np.ndarray, found: np.ndarray, streams: range, total: np.ndarray) -> None:
        """total: worth of every stream that is not in `streams`."""
        if len(streams) == 1:
            found[streams[0]] = total
            return
        middle = len(streams) // 2
        for inside, outside in ((streams[:middle], streams[middle:]), (streams[middle:], streams[:middle])):
            joined = total
            for v in outside:
                joined = self._joined(joined, v, quality[:, v])
            self._without(quality, found, inside, joined)

    def worth_with(self, without: np.ndarray, stream: int, quality: np.ndarray) -> np.ndarray:
        """(O, K, Q+1) worth of U when `stream` joins the others with each of the qualities (O,). without: (K, Q+1)."""
        return self._joined(np.broadcast_to(without, (len(quality), *without.shape)), stream, quality[:, None])

    def split(self, worth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(value, streams under the floor) of worths."""
        if self._weight == 0:
            return worth, np.zeros(worth.shape, np.int64)
        below = np.ceil(-worth / self._weight - 1e-9).astype(np.int64)
        return worth + self._weight * below, below

    def _seen(self, stream: int, quality: np.ndarray) -> np.ndarray:
        """(..., S) worth of `stream` alone at each knob step. quality: (...)."""
        seen = quality[..., None] * self.steps[stream].kept
        return seen - self._weight * (seen < self._floor - QUALITY_TOL) if self._weight else seen

    def _joined(self, total: np.ndarray, stream: int, quality: np.ndarray) -> np.ndarray:
        """(..., Q+1) worth when `stream` joins those in `total`, of the same shape. quality: (...)."""
        seen = self._seen(stream, quality)
        joined = total + seen[..., :1]
        for number, need in enumerate(self.steps[stream].quanta.tolist()):
            if number > 0:
                part = joined[..., need:]
                np.maximum(part, total[..., : self.quanta + 1 - need] + seen[..., number : number + 1], out=part)
        return joined

    def _trial(self, total: np.ndarray, stream: int, quality: np.ndarray) -> np.ndarray:
        """(K, S, Q+1) worth with each knob step of `stream`. total: (K, Q+1) of other streams; quality: (K,)."""
        padded = np.full((len(total), 2 * self.quanta + 1), -np.inf)
        padded[:, self.quanta :] = total
        return padded[:, self._cells[stream]] + self._seen(stream, quality)[:, :, None]

    def _read_back(self, quality: np.ndarray, taken: list[np.ndarray]) -> InferenceTable:
        count, streams = quality.shape
        rows = np.arange(count)[:, None]
        left = np.broadcast_to(np.arange(self.quanta + 1), (count, self.quanta + 1)).copy()
        kept = np.zeros((count, streams, self.quanta + 1))
        quanta = np.zeros((count, streams, self.quanta + 1), np.int64)
        for v in range(streams - 1, -1, -1):
            step = taken[v][rows, left]
            kept[:, v] = self.steps[v].kept[step]
            quanta[:, v] = self.steps[v].quanta[step]
            left -= quanta[:, v]
        seen = kept * quality[:, :, None]
        below = (seen < self._floor - QUALITY_TOL).sum(axis=1)
        return InferenceTable(seen.sum(axis=1), below, kept, quanta)
