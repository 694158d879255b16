"""The greedy profiler: asks `scheduler.videostorm.search` what to measure, measures it, keeps the books. Card: VideoStorm,
section 4.

What we changed from the paper:
  * all settings are measured on the same short clip (the paper: new neighbours on "a small subset of the video"): measured on half of it
    first, they were ranked wrongly too often (docs/serving.md);
  * D(c) is counted in demands of the golden setting, where the first climb begins: so one beta suits every camera and machine; what
    comes after that climb is the search's own choice (`scheduler.videostorm.guide`);
  * what a measured setting has paid for already is measured with it, for nothing (the lower rates of the same model and resolution);
  * a setting that cannot be measured is left out and said.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from edge.profiler.measure import CannotMeasure, Measured, Measurer, name_of
from edge.profiler.profile import LeftOut, MeasuredOption, pareto
from scheduler.videostorm.search import Search

#: Quality that the demand of the golden setting must buy, and the factors of it that climbs take in turn: from where the golden setting
#: is worth its price to where hardly anything is.
BETA, SWEEP = 0.3, (1.0, 0.2, 5.0, 25.0)
#: Starts of a climb that is drawn (the card's k): after the first one, in spaces too large to guide in (`guide.MOST`).
STARTS = 3
#: Settings that a search measures at most, as a part of all there are, and at least.
BUDGET_FRAC, BUDGET_MIN = 0.3, 12
#: (what is being measured, how many were, of at most how many).
Told = Callable[[str, int, int], None]


def silent(what: str, done: int, of: int) -> None:
    """Tells nobody."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How to search. budget: most settings, None: `BUDGET_FRAC` of them; budget_s: stop when measuring has taken so many seconds of
    device and cores, None: no limit; first: where the first climb begins."""

    beta: float = BETA
    sweep: tuple[float, ...] = SWEEP
    starts: int = STARTS
    seed: int = 0
    budget: int | None = None
    budget_s: float | None = None
    first: Mapping[str, Any] | None = None

    def most(self, size: int) -> int:
        """Settings that may be measured of `size`."""
        return min(size, self.budget if self.budget is not None else max(BUDGET_MIN, round(BUDGET_FRAC * size)))


@dataclass(frozen=True, kw_only=True)
class Found:
    """options: all that were measured, in order; left_out: what could not be; spent_s: new work; every_s: measuring every
    setting on the
    whole clip without a cache, guessed from those that were tried; tried: settings, of how many."""

    options: tuple[MeasuredOption, ...]
    left_out: tuple[LeftOut, ...]
    spent_s: float
    every_s: float
    tried: int
    of: int

    def front(self) -> tuple[MeasuredOption, ...]:
        """Dearest first."""
        return pareto(self.options)


@dataclass(kw_only=True)
class _Books:
    options: dict[str, MeasuredOption] = field(default_factory=dict)
    left_out: dict[str, LeftOut] = field(default_factory=dict)
    demands: list[float] = field(default_factory=list)

    def look(self, measurer: Measurer, setting: Mapping[str, Any]) -> Measured | None:
        """None: it could not be measured, and that is noted."""
        try:
            found = measurer.measure(setting)
        except CannotMeasure as error:
            name = name_of(setting)
            self.left_out[name] = LeftOut(name=name, reason=str(error).partition("is left out: ")[2] or str(error))
            return None
        self.options[found.option.name] = found.option
        self.demands.append(found.demand.both_s)
        return found

    def close(self, measurer: Measurer, tried: int, of: int) -> Found:
        """demands: of every setting that was tried."""
        usual = sum(self.demands) / len(self.demands) if self.demands else 0.0
        return Found(
            options=tuple(self.options.values()), left_out=tuple(self.left_out.values()),
            spent_s=measurer.where.spent_s(measurer.ledger.spent), every_s=usual * of * measurer.graph.clip.seconds, tried=tried, of=of,
        )  # fmt: skip


def greedy(measurer: Measurer, plan: Plan, *, told: Told = silent) -> Found:
    """The search. Raises JobCancelled."""
    run = _Run(measurer, plan, told)
    run.search_on()
    return run.books.close(measurer, run.tried, run.size)


class _Run:
    """One search on one measurer. tried: settings that it paid for."""

    def __init__(self, measurer: Measurer, plan: Plan, told: Told) -> None:
        self._measurer, self._plan, self._told = measurer, plan, told
        self._knobs = {name: knob.values for name, knob in measurer.graph.spec.knobs.items()}
        self.size = size_of(self._knobs)
        self.books, self.tried, self._unit = _Books(), 0, 1.0
        self._search = Search(
            self._knobs, plan.beta, starts=plan.starts, seed=plan.seed, sweep=plan.sweep, budget=plan.most(self.size),
            first=plan.first or measurer.graph.spec.golden_setting(),
        )  # fmt: skip

    def search_on(self) -> None:
        """Until the search, or a budget, ends."""
        while (setting := self._search.ask()) is not None:
            self._told(name_of(setting), self.tried, self._plan.most(self.size))
            self.tried += 1
            found = self.books.look(self._measurer, setting)
            if found is None:
                self._search.fail(setting)
                continue
            if len(self.books.options) == 1 and found.demand.both_s > 0:
                self._unit = found.demand.both_s
            self._tell(setting, found)
            self._take_what_is_free(setting)
            if (
                self._plan.budget_s is not None
                and self._measurer.where.spent_s(self._measurer.ledger.spent) >= self._plan.budget_s
            ):
                return

    def _tell(self, setting: Mapping[str, Any], found: Measured) -> None:
        self._search.tell(setting, found.option.quality, found.demand.both_s / self._unit)

    def _take_what_is_free(self, setting: Mapping[str, Any]) -> None:
        """Settings that differ in one knob and whose work was done by now."""
        for name, values in self._knobs.items():
            for value in values:
                near = {**setting, name: value}
                if name_of(near) in self.books.options or not self._measurer.is_free(near):
                    continue
                found = self.books.look(self._measurer, near)
                if found is not None:
                    self._tell(near, found)


def exhaustive(measurer: Measurer, *, told: Told = silent) -> Found:
    """Every setting there is, in order."""
    books = _Books()
    knobs = {name: knob.values for name, knob in measurer.graph.spec.knobs.items()}
    size = size_of(knobs)
    for number, values in enumerate(itertools.product(*knobs.values())):
        setting = dict(zip(knobs, values, strict=True))
        told(name_of(setting), number, size)
        books.look(measurer, setting)
    return books.close(measurer, size, size)


def size_of(knobs: Mapping[str, Sequence[Any]]) -> int:
    """Settings there are."""
    size = 1
    for values in knobs.values():
        size *= len(values)
    return size


def quality_lost(found: Sequence[MeasuredOption], every: Sequence[MeasuredOption]) -> tuple[float, float]:
    """(mean, largest) quality that is missed by choosing among `found` instead of `every`, over the demands at which a scheduler
    would choose: those of `every`'s front. Qualities and demands are those of `every` (measured alike); settings are matched by
    name.
    Where nothing of `found` is cheap enough, its cheapest is what one would run: it counts as missing all."""
    truth = {option.name: option for option in every}
    mine = [truth[option.name] for option in found if option.name in truth]
    lost = []
    for point in pareto(every):
        within = [o.quality for o in mine if o.demand <= point.demand * (1 + 1e-9)]
        lost.append(max(0.0, point.quality - max(within, default=0.0)))
    return (sum(lost) / len(lost), max(lost)) if lost else (0.0, 0.0)
