"""Cilantro's second setting: one application of stages that depend on each other (card 7.2, microservices).

Here the stages of a box's own pipeline (decode, detect, track, label, train). One number is measured for the whole, such as minus its
P99 latency; no graph is needed and no stage tells anything. a(r) = argmax of the upper bound over allocations within the box.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from cluster.cilantro.gp import GaussianProcess
from cluster.cilantro.search import Evolution, EvolutionSettings, fair_units, random_units, sampling_weights
from cluster.cilantro.types import FloatArray, IntArray

#: Candidates scored at once: one prediction for many is as cheap as for one.
BATCH = 40


@dataclass(frozen=True, kw_only=True)
class StageRound:
    """What was measured in a round: units per stage, load, and the number to be made large."""

    units: tuple[int, ...]
    load: float
    value: float


@dataclass(frozen=True, kw_only=True)
class StageSettings:
    """least: units of each stage; box: B, units that a stage may change by in a round, None: any (released); optimism: standard
    deviations of the upper bound; in_logs: stages are looked at by the logarithm of their units (ours: what a unit brings falls with
    the units there are), else by the units (released); fair_rounds, random_rounds: before anything is learned; iterations:
    allocations looked at."""

    least: int = 4
    box: int | None = None
    optimism: float = 1.0
    in_logs: bool = True
    fair_rounds: int = 2
    random_rounds: int = 1
    iterations: int = 4000

    @staticmethod
    def released() -> StageSettings:
        """The authors' code."""
        return StageSettings(optimism=2.5, in_logs=False)

    @staticmethod
    def published() -> StageSettings:
        """The paper."""
        return StageSettings(optimism=2.5, in_logs=False, box=10)


def next_units(
    history: Sequence[StageRound], *, stages: int, total: int, load: float, seed: int, settings: StageSettings | None = None
) -> IntArray:
    """Units per stage for the coming round, from all rounds so far. load: expected. Same history and seed, same answer.

    Errors: ValueError for fewer units than the stages' least, or a history of another number of stages."""
    chosen = settings or StageSettings()
    if total < stages * chosen.least or any(len(h.units) != stages for h in history):
        raise ValueError(f"{stages} stages with {chosen.least} units each need a history of theirs and more than {total} units")
    rng = np.random.default_rng((seed, len(history)))
    if len(history) < chosen.fair_rounds:
        return fair_units(stages, total)
    if len(history) < chosen.fair_rounds + chosen.random_rounds:
        return _boxed(random_units(stages, total, chosen.least, rng)[None, :], history, chosen, total)[0]
    scale = max(1e-9, max(h.load for h in history))

    def inputs(units: IntArray, loads: FloatArray) -> FloatArray:
        return np.column_stack([loads / scale, np.log(units) if chosen.in_logs else units])

    rows = inputs(np.array([h.units for h in history]), np.array([h.load for h in history]))
    model = GaussianProcess().updated([(row.tolist(), h.value) for row, h in zip(rows, history, strict=True)])

    def upper(units: IntArray) -> FloatArray:
        mean, sd = model.predict(inputs(units, np.full(len(units), load)))
        return mean + chosen.optimism * sd

    return _searched(upper, history, stages, total, chosen, rng)


def _searched(
    upper: Callable[[IntArray], FloatArray],
    history: Sequence[StageRound],
    stages: int,
    total: int,
    settings: StageSettings,
    rng: np.random.Generator,
) -> IntArray:
    """Evolution in batches: the kept ones are sampled by how good they are, and mutated by moves of single units."""
    kept = np.unique(np.array([fair_units(stages, total), *[np.array(h.units) for h in history[-50:]]]), axis=0)
    kept = _boxed(kept[(kept.min(axis=1) >= settings.least) & (kept.sum(axis=1) <= total)], history, settings, total)
    if not len(kept):
        kept = _boxed(fair_units(stages, total)[None, :], history, settings, total)
    values = upper(kept)
    for _ in range(max(1, settings.iterations // BATCH)):
        parents = kept[rng.choice(len(kept), size=BATCH, p=sampling_weights(values))]
        children = np.array([_moved(p.copy(), settings.least, rng) for p in parents])
        children = _boxed(children, history, settings, total)
        kept, values = np.concatenate([kept, children]), np.concatenate([values, upper(children)])
        order = np.argsort(-values, kind="stable")[: 4 * BATCH]
        kept, values = kept[order], values[order]
    return kept[0]


def _moved(units: IntArray, least: int, rng: np.random.Generator) -> IntArray:
    for _ in range(int(rng.integers(1, 6))):
        donors = np.flatnonzero(units > least)
        if not len(donors):
            return units
        donor, taker = int(rng.choice(donors)), int(rng.integers(len(units)))
        units[donor] -= 1
        units[taker] += 1
    return units


def _boxed(units: IntArray, history: Sequence[StageRound], settings: StageSettings, total: int) -> IntArray:
    """Each row moved into the box around the last round, its sum kept at most at the total."""
    if settings.box is None or not history:
        return units
    before = np.array(history[-1].units)
    inside = np.clip(units, np.maximum(settings.least, before - settings.box), before + settings.box)
    for row in inside:
        while row.sum() > total:
            above = row - np.maximum(settings.least, before - settings.box)
            if above.max() <= 0:
                break
            row[int(np.argmax(above))] -= 1
    return inside


# --- baselines of this setting ----------------------------------------------------------------------------------------


def baseline_units(
    name: Literal["resource-fair", "eps-greedy", "evoalg"], history: Sequence[StageRound], *, stages: int, total: int, seed: int,
    least: int = 3, fair_rounds: int = 2,
) -> IntArray:  # fmt: skip
    """resource-fair: equal; eps-greedy: a random allocation with chance 1/3, else the best so far; evoalg: evolution in which every
    query is a round (card section 8). A function of the history, so nothing needs to be kept between rounds."""
    if name == "resource-fair" or len(history) < fair_rounds:
        return fair_units(stages, total)
    if name == "eps-greedy":
        rng = np.random.default_rng((seed, len(history)))
        if rng.random() < 1 / 3:
            return random_units(stages, total, least, rng)
        return np.array(max(history, key=lambda h: h.value).units, dtype=np.int64)
    search = Evolution(stages, total, EvolutionSettings(least=least, fair_first=fair_rounds), seed)
    for past in history:
        search.ask()
        search.tell(np.array(past.units), past.value)
    return search.ask()
