"""The paper's searches: evolution over whole allocations and greedy max-min (card 7.3). `cluster.cilantro.welfare` is exact and faster;
these stand beside it to be compared with, and search where welfare is not a sum over jobs (`cluster.cilantro.pipeline`).

Chance comes from a numpy generator with the caller's seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from cluster.cilantro.fairness import whole_units
from cluster.cilantro.types import FloatArray, IntArray

Signal = Callable[[IntArray], float]


@dataclass(frozen=True, kw_only=True)
class EvolutionSettings:
    """fair_first, random_first: queries before evolution begins; explore: chance of a random allocation later; most_steps: a mutation
    moves 1 to so many single units; jitter: chance of Gaussian jitter instead; jitter_sd: on the simplex of what lies above the
    least; least: units nobody goes below."""

    fair_first: int = 2
    random_first: int = 8
    explore: float = 0.1
    most_steps: int = 20
    jitter: float = 0.0
    jitter_sd: float = 0.1
    least: int = 1

    @staticmethod
    def released(jobs: int) -> EvolutionSettings:
        """The authors' code."""
        pool = max(10, 2 * jobs)
        return EvolutionSettings(fair_first=1, random_first=pool - 1, explore=0.0, most_steps=5, jitter=0.75)


def fair_units(jobs: int, total: int) -> IntArray:
    """An equal split; the remainder goes to the first."""
    return whole_units(np.full(jobs, total / jobs), total)


def random_units(jobs: int, total: int, least: int, rng: np.random.Generator) -> IntArray:
    """Uniform over the simplex of what lies above the least."""
    return least + whole_units(rng.dirichlet(np.ones(jobs)) * (total - least * jobs), total - least * jobs)


def sampling_weights(values: Sequence[float] | FloatArray) -> FloatArray:
    """Chances proportional to exp((y - mean) / std), population std; even where all values are equal."""
    given = np.asarray(values, dtype=np.float64)
    spread = float(given.std())
    raised = np.exp((given - given.mean()) / spread) if spread > 1e-12 else np.ones(len(given))
    return raised / raised.sum()


class Evolution:
    """A table {allocation: running mean of its signal}. `ask` for the next allocation to try, `tell` what came of it."""

    def __init__(self, jobs: int, total: int, settings: EvolutionSettings, seed: int | tuple[int, ...]) -> None:
        if total < jobs * settings.least:
            raise ValueError(f"{total} units are not enough for {jobs} jobs with {settings.least} each")
        self._jobs, self._total, self._settings = jobs, total, settings
        self._rng = np.random.default_rng(seed)
        self._asked = 0
        self._means: dict[tuple[int, ...], tuple[float, int]] = {}

    def ask(self) -> IntArray:
        """Fair, then random, then a mutation of one that did well."""
        s = self._settings
        self._asked += 1
        if self._asked <= s.fair_first or (not self._means and s.random_first == 0):
            return fair_units(self._jobs, self._total)
        if self._asked <= s.fair_first + s.random_first or not self._means or self._rng.random() < s.explore:
            return random_units(self._jobs, self._total, s.least, self._rng)
        known = list(self._means)
        chances = sampling_weights([self._means[k][0] for k in known])
        return self._mutated(np.array(known[int(self._rng.choice(len(known), p=chances))], dtype=np.int64))

    def tell(self, units: IntArray, signal: float) -> None:
        """The signal of an allocation; the mean of all of it counts."""
        key = tuple(int(u) for u in units)
        mean, count = self._means.get(key, (0.0, 0))
        self._means[key] = (mean + (signal - mean) / (count + 1), count + 1)

    @property
    def best(self) -> IntArray:
        """The allocation with the largest mean; the first of them."""
        return np.array(max(self._means, key=lambda k: self._means[k][0]), dtype=np.int64)

    def _mutated(self, units: IntArray) -> IntArray:
        if self._rng.random() < self._settings.jitter:
            return self._jittered(units)
        for _ in range(int(self._rng.integers(1, self._settings.most_steps + 1))):
            donors = np.flatnonzero(units > self._settings.least)
            if not len(donors) or self._jobs < 2:
                break
            donor = int(self._rng.choice(donors))
            taker = int(self._rng.integers(self._jobs - 1))
            units[donor] -= 1
            units[taker + (taker >= donor)] += 1
        return units

    def _jittered(self, units: IntArray) -> IntArray:
        room = self._total - self._settings.least * self._jobs
        if room <= 0:
            return units
        moved = np.maximum(
            0.0, (units - self._settings.least) / room + self._settings.jitter_sd * self._rng.normal(size=self._jobs)
        )
        if moved.sum() <= 0:
            return units
        return self._settings.least + whole_units(moved / moved.sum() * room, room)


def evolve(
    signal: Signal, jobs: int, total: int, *, seed: int, iterations: int = 4000, settings: EvolutionSettings | None = None,
    start: Sequence[IntArray] = (),
) -> IntArray:  # fmt: skip
    """Best allocation seen in `iterations` queries. start: allocations that are known to be good."""
    search = Evolution(jobs, total, settings or EvolutionSettings(), seed)
    for units in start:
        search.tell(units, signal(units))
    for _ in range(max(1, iterations)):
        units = search.ask()
        search.tell(units, signal(units))
    return search.best


def greedy_max_min(
    utilities: Callable[[IntArray], FloatArray], jobs: int, total: int, *, most_steps: int = 4000
) -> tuple[IntArray, list[IntArray]]:
    """(best minimum seen, everything seen). From the fair split a unit goes from each of the k best off (who have two) to the k worst
    off; k begins at half of the jobs, and is halved when the search goes to and fro for the fifth time."""
    units = fair_units(jobs, total)
    seen = [units.copy()]
    best, best_value = units.copy(), float(utilities(units).min())
    k, swings = max(1, jobs // 2), 0
    for _ in range(most_steps):
        units = exchanged(units, utilities(units), k)
        seen.append(units.copy())
        value = float(utilities(units).min())
        if value > best_value:
            best, best_value = units.copy(), value
        swings += len(seen) > 2 and bool((seen[-1] == seen[-3]).all())
        if swings >= 5:
            if k == 1:
                break
            k, swings = k // 2, 0
    return best, seen


def exchanged(units: IntArray, utilities: FloatArray, pairs: int) -> IntArray:
    """A unit from each of the `pairs` best off, if it has two, to the worst off, the worst first."""
    order = np.argsort(utilities, kind="stable")
    moved = units.copy()
    for poor, rich in zip(order[:pairs], order[::-1][:pairs], strict=True):
        if poor != rich and moved[rich] >= 2:
            moved[rich] -= 1
            moved[poor] += 1
    return moved
