"""Which knob configurations to measure: hill climbing on X(c) = Q(c) - beta * D(c) (card, section 4), as a machine that asks.

    repeat until the budget is spent:
      draw k configurations that were not measured yet; c = the one with the largest X     (k = 3: no expensive start)
      loop: n = c with one knob changed; if X(n) > X(c): c = n                              (until no neighbour is better)
    profile = Pareto(all that were measured)

Measuring is somebody else's work: `ask` names a configuration, `tell` brings its quality and demand. What we changed:
  * one beta finds one point of the front. After the first climb the rest of the front is looked for where `guide` expects it, and the
    search ends when it expects nothing more (`guided`); as printed, climbs are repeated until the budget is spent, each with the
    next of several betas (`sweep`, times beta);
  * nothing is measured twice; a climb passes over what is known already;
  * a climb may begin at a given configuration (a default profile's best, or what the camera runs with).
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from scheduler.videostorm import guide
from scheduler.videostorm.guide import Key
from scheduler.videostorm.types import Option

#: What X has to be larger by to be larger.
ROUNDING = 1e-9

#: A knob configuration: value per knob.
Config = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Tried:
    """A measured configuration. quality: Q(c), 0-1; demand: D(c), in the unit that beta is per."""

    config: Config
    quality: float
    demand: float


class Search:
    """One profiling run over `knobs` (name -> its values, in the order of the operator's list; of an ordered knob ascending).

    beta: quality that one unit of demand has to buy; sweep: factors of beta, climb by climb. starts: k; budget: most configurations
    that are asked for, None: until all are measured. order: "random" neighbours (seeded), or "listed": knob by knob, value by value.
    first: where the first climb begins, instead of a draw. guided: see above (spaces of more than `guide.MOST` configurations are
    climbed only); least_gain: quality that a further configuration has to promise.

    Same arguments and same answers: same questions. Errors: ValueError for no knobs, a knob without values or with the same twice,
    numbers out of range.
    """

    def __init__(
        self,
        knobs: Mapping[str, Sequence[Any]],
        beta: float,
        starts: int = 3,
        seed: int = 0,
        budget: int | None = None,
        *,
        sweep: Sequence[float] = (1.0,),
        order: Literal["random", "listed"] = "random",
        first: Config | None = None,
        guided: bool = True,
        least_gain: float = 0.01,
    ) -> None:
        self.knobs = {name: tuple(values) for name, values in knobs.items()}
        _check(self.knobs, beta, starts, budget, sweep)
        if not 0 < least_gain <= 1:
            raise ValueError(f"least_gain must be above 0 and at most 1, got {least_gain}")
        self._guided, self._least_gain = guided and self.size <= guide.MOST, least_gain
        self.budget = budget
        self._betas = [beta * factor for factor in sweep]
        self._starts, self._listed = starts, order == "listed"
        self._rng = np.random.default_rng(seed)
        self._first = None if first is None else self._key(first)
        self._tried: dict[Key, Tried] = {}
        self._failed: set[Key] = set()
        self._asked = 0
        self._walk = self._climbs()
        self._pending: Key | None = None

    @property
    def size(self) -> int:
        """Configurations there are."""
        return math.prod(len(values) for values in self.knobs.values())

    @property
    def tried(self) -> tuple[Tried, ...]:
        """All that was told, in order."""
        return tuple(self._tried.values())

    def ask(self) -> Config | None:
        """The configuration to measure next, None: done. Until it was told of, it is asked for again."""
        if self._pending is None and (self.budget is None or self._asked < self.budget):
            self._pending = next(self._walk, None)
            self._asked += self._pending is not None
        return None if self._pending is None else self._config(self._pending)

    def tell(self, config: Config, quality: float, demand: float) -> None:
        """What was measured, also of a configuration that was not asked for. Errors: ValueError for an unknown knob or value, a
        quality outside 0-1, a demand that is negative or not finite."""
        key = self._key(config)
        if not (0 <= quality <= 1 and 0 <= demand < math.inf):
            raise ValueError(f"{dict(config)}: quality must be 0-1 and demand a number from 0 on, got {quality}, {demand}")
        self._tried[key] = Tried(config=self._config(key), quality=float(quality), demand=float(demand))
        self._failed.discard(key)
        self._answered(key)

    def fail(self, config: Config) -> None:
        """It could not be measured (it threw, ran out of memory): it is worse than anything else and not asked for again."""
        key = self._key(config)
        if key not in self._tried:
            self._failed.add(key)
        self._answered(key)

    def profile(self) -> tuple[Tried, ...]:
        """The Pareto front of what was measured, ascending in demand."""
        tried = self.tried
        return tuple(tried[i] for i in pareto([(t.demand, t.quality) for t in tried]))

    # --- the walk: yields what has to be measured; known by the time it goes on ---

    def _climbs(self) -> Generator[Key]:
        turn = 0
        while True:
            beta = self._betas[turn % len(self._betas)]
            start = self._first if turn == 0 else None
            drawn = [start] if start is not None else self._draw()
            if not drawn:
                return
            for key in drawn:
                yield from self._measured(key)
            yield from self._climb(max(drawn, key=lambda key: self._worth(key, beta)), beta)
            if self._guided:
                yield from self._guide()
                return
            turn += 1

    def _guide(self) -> Generator[Key]:
        """What lifts the front most, as long as anything is expected to."""
        shape = [len(values) for values in self.knobs.values()]
        while True:
            tried = {key: (t.demand, t.quality) for key, t in self._tried.items()}
            key = guide.promising(shape, tried, [*tried, *self._failed], self._least_gain)
            if key is None:
                return
            yield key

    def _climb(self, here: Key, beta: float) -> Generator[Key]:
        """From `here` to a configuration without a better neighbour."""
        climbing = True
        while climbing:
            climbing = False
            for near in self._neighbours(here):
                yield from self._measured(near)
                if self._worth(near, beta) > self._worth(here, beta) + ROUNDING:
                    here, climbing = near, True
                    break

    def _measured(self, key: Key) -> Generator[Key]:
        if not self._known(key):
            yield key

    def _known(self, key: Key) -> bool:
        return key in self._tried or key in self._failed

    def _worth(self, key: Key, beta: float) -> float:
        """X(c)."""
        tried = self._tried.get(key)
        return -math.inf if tried is None else tried.quality - beta * tried.demand

    def _draw(self) -> list[Key]:
        """`starts` configurations that are not known, fewer where there are not so many."""
        shape = [len(values) for values in self.knobs.values()]
        drawn: list[Key] = []
        for flat in (
            self._rng.permutation(self.size) if self.size <= _MOST_LISTED else self._rng.integers(0, self.size, _MOST_DRAWS)
        ):
            key = tuple(int(i) for i in np.unravel_index(int(flat), shape))
            if len(drawn) < self._starts and not self._known(key) and key not in drawn:
                drawn.append(key)
        return drawn

    def _neighbours(self, key: Key) -> list[Key]:
        """All that differ in one knob."""
        near = [
            (*key[:i], j, *key[i + 1 :])
            for i, values in enumerate(self.knobs.values())
            for j in range(len(values))
            if j != key[i]
        ]
        return near if self._listed else [near[i] for i in self._rng.permutation(len(near))]

    # --- configurations and keys ---

    def _answered(self, key: Key) -> None:
        if key == self._pending:
            self._pending = None

    def _config(self, key: Key) -> Config:
        return MappingProxyType({name: values[i] for (name, values), i in zip(self.knobs.items(), key, strict=True)})

    def _key(self, config: Config) -> Key:
        if set(config) != set(self.knobs):
            raise ValueError(f"knobs are {', '.join(self.knobs)}; got {', '.join(map(str, config))}")
        for name, values in self.knobs.items():
            if config[name] not in values:
                raise ValueError(f"knob '{name}' has no value {config[name]!r}")
        return tuple(values.index(config[name]) for name, values in self.knobs.items())


#: Spaces up to this size are drawn from without repetition; of larger ones so many draws are made.
_MOST_LISTED = 20_000
_MOST_DRAWS = 200


def pareto(points: Sequence[tuple[float, float]]) -> tuple[int, ...]:
    """Indices of the (demand, quality) `points` that no other one matches or beats in both, ascending in demand; of exact doubles the
    first."""
    front: list[int] = []
    for i in sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1], i)):
        if not front or points[i][1] > points[front[-1]][1]:
            front.append(i)
    return tuple(front)


def pareto_options(options: Sequence[Option]) -> tuple[Option, ...]:
    """The options that are worth running, ascending in demand."""
    return tuple(options[i] for i in pareto([(o.demand_pct, o.quality) for o in options]))


def _check(knobs: Mapping[str, tuple[Any, ...]], beta: float, starts: int, budget: int | None, sweep: Sequence[float]) -> None:
    if not knobs:
        raise ValueError("a search needs a knob")
    for name, values in knobs.items():
        if not values or any(value in values[:i] for i, value in enumerate(values)):
            raise ValueError(f"knob '{name}' needs values, each once; got {values}")
    if starts < 1 or (budget is not None and budget < 0):
        raise ValueError(f"starts must be 1 or more and budget 0 or more, got {starts}, {budget}")
    if not sweep or not all(math.isfinite(beta * factor) and beta * factor >= 0 for factor in sweep):
        raise ValueError(f"beta times every factor of sweep must be a number from 0 on, got {beta}, {tuple(sweep)}")
