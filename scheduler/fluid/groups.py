"""Tuners as sequences of trial groups (papers/fluid.md section 2): what to run next, from what has been told so far.

    grid, random          one group, all with one budget
    successive halving    a group per rung: floor(n / eta^i) trials to r * eta^i; the best go on
    Hyperband             every rung of every bracket; bracket s starts ceil((s_max + 1) / (s + 1) * eta^s) trials at R * eta^-s
    ASHA                  each wave together; concurrency is a number of its own, whatever the GPUs are
    PBT                   the population from one perturbation to the next

A tuner here has no state: `ask` is a function of all reports, so a sequence can be stopped, replayed and continued. What we changed:
ties go to the earlier trial, so that nothing depends on the order in which reports arrive; a trial that failed or was killed is told
with NaN, which is worse than any score and never promoted. Hyperband and successive halving wait for the whole rung, as published.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from configs.errors import UsageError
from scheduler.fluid.types import Trial, TrialGroup


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """A trial has reached `budget` (iterations in all) with `score` (higher is better; NaN: it failed)."""

    trial: str
    budget: float
    score: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Ask:
    """Train `trial` up to `budget` iterations in all, from `done`. like: begin as a copy of that trial's weights and configuration, with
    its continuous parameters multiplied by `factor` (PBT); None: as it is."""

    trial: str
    budget: float
    done: float = 0.0
    like: str | None = None
    factor: float = 1.0

    @property
    def increment(self) -> float:
        """Iterations to do."""
        return self.budget - self.done


class Tuner(Protocol):
    def ask(self, told: Sequence[Report], running: Collection[str] = ()) -> tuple[Ask, ...]:
        """The next group; empty while it must wait for running trials, and when there is nothing more to do."""


def group_of(
    id: str, asks: Sequence[Ask], seconds_per_iteration: Mapping[str, float], *, alpha: float = 1.0, beta: float = 1.0
) -> TrialGroup:
    """What StaticFluid takes: h is the measured seconds per iteration (by trial) times the iterations to do."""
    trials = tuple(Trial(id=a.trial, h_s=seconds_per_iteration[a.trial] * a.increment, alpha=alpha, beta=beta) for a in asks)
    return TrialGroup(id=id, trials=trials)


# --- one group --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Grid:
    """All trials, one budget (grid and random search)."""

    trials: tuple[str, ...]
    budget: float

    def ask(self, told: Sequence[Report], running: Collection[str] = ()) -> tuple[Ask, ...]:
        started = {r.trial for r in told} | set(running)
        return tuple(Ask(trial=t, budget=self.budget) for t in self.trials if t not in started) if not started else ()


def random_search(space: Mapping[str, Sequence[object]], count: int, *, seed: int) -> tuple[dict[str, object], ...]:
    """`count` different configurations drawn from a space of named values (all of them where there are no more). seed: 0 or more."""
    names = sorted(space)
    size = math.prod(len(space[name]) for name in names)
    picks = np.random.default_rng(seed).choice(size, min(count, size), replace=False)
    return tuple(_configuration(space, names, int(index)) for index in picks)


def _configuration(space: Mapping[str, Sequence[object]], names: Sequence[str], index: int) -> dict[str, object]:
    chosen: dict[str, object] = {}
    for name in names:
        index, place = divmod(index, len(space[name]))
        chosen[name] = space[name][place]
    return chosen


# --- rungs ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SuccessiveHalving:
    """trials: n configurations; r: budget of the first rung; eta > 1: the best floor(n / eta^i) go on to r * eta^i, until `budget_max`
    (None: until one is left)."""

    trials: tuple[str, ...]
    r: float
    eta: int = 3
    budget_max: float | None = None

    def __post_init__(self) -> None:
        if self.eta < 2 or not self.r > 0:
            raise UsageError(
                f"successive halving needs eta of 2 or more and r above 0, got {self.eta}, {self.r}", subject="fluid"
            )

    def rungs(self) -> tuple[tuple[int, float], ...]:
        """(trials, budget in all) of every rung."""
        found, rung = [], 0
        while len(self.trials) // self.eta**rung >= 1 and not self._beyond(self.r * self.eta**rung):
            found.append((len(self.trials) // self.eta**rung, self.r * self.eta**rung))
            rung += 1
        return tuple(found)

    def _beyond(self, budget: float) -> bool:
        return self.budget_max is not None and budget > self.budget_max * (1 + 1e-9)

    def ask(self, told: Sequence[Report], running: Collection[str] = ()) -> tuple[Ask, ...]:
        mine = set(self.trials)
        if mine & set(running):
            return ()
        told, alive, done = [r for r in told if r.trial in mine], list(self.trials), 0.0
        for size, budget in self.rungs():
            alive = alive[:size]
            scores = _at(told, budget)
            if not any(t in scores for t in alive):  # nobody has got here (or nobody is left)
                return tuple(Ask(trial=t, budget=budget, done=done) for t in alive)
            alive, done = best_first({t: scores[t] for t in alive if t in scores and not math.isnan(scores[t])}), budget
        return ()


def _at(told: Sequence[Report], budget: float) -> dict[str, float]:
    """Scores at a rung, or at the first one after it: what a trial that went on has reached later must not change who went on."""
    later = sorted((r for r in told if r.budget >= budget * (1 - 1e-9)), key=lambda r: -r.budget)
    return {r.trial: r.score for r in later}


def best_first(scores: Mapping[str, float]) -> list[str]:
    """Names by falling score, of equal ones the earlier first, NaN last."""
    return sorted(scores, key=lambda name: math.inf if math.isnan(scores[name]) else -scores[name])


@dataclass(frozen=True, kw_only=True)
class Hyperband:
    """budget_max: R; eta. Trial names are 'b<bracket>/<number>'; brackets run one after another, s_max first."""

    budget_max: int
    eta: int = 3

    def brackets(self) -> tuple[SuccessiveHalving, ...]:
        s_max = 0
        while self.eta ** (s_max + 1) <= self.budget_max:
            s_max += 1
        return tuple(self._bracket(s, s_max) for s in range(s_max, -1, -1))

    def _bracket(self, s: int, s_max: int) -> SuccessiveHalving:
        n = -(-(s_max + 1) * self.eta**s // (s + 1))
        names = tuple(f"b{s}/{number}" for number in range(n))
        return SuccessiveHalving(trials=names, r=self.budget_max / self.eta**s, eta=self.eta, budget_max=self.budget_max)

    def ask(self, told: Sequence[Report], running: Collection[str] = ()) -> tuple[Ask, ...]:
        if running:
            return ()
        for bracket in self.brackets():
            asks = bracket.ask(told)
            if asks:
                return asks
        return ()


# --- waves ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Asha:
    """Asynchronous successive halving: a trial goes on as soon as it is among the best 1/eta of its rung. trials: new ones, in order.
    concurrency: trials that the tuner wants at once (the text: 8), not a number of GPUs."""

    trials: tuple[str, ...]
    r: float
    budget_max: float
    eta: int = 3
    concurrency: int = 8

    def budgets(self) -> tuple[float, ...]:
        budgets = [self.r]
        while budgets[-1] * self.eta <= self.budget_max * (1 + 1e-9):
            budgets.append(budgets[-1] * self.eta)
        return tuple(budgets)

    def ask(self, told: Sequence[Report], running: Collection[str] = ()) -> tuple[Ask, ...]:
        wave: list[Ask] = []
        while len(running) + len(wave) < self.concurrency:
            ask = self._next(told, {*running, *(a.trial for a in wave)})
            if ask is None:
                break
            wave.append(ask)
        return tuple(wave)

    def _next(self, told: Sequence[Report], busy: Collection[str]) -> Ask | None:
        budgets = self.budgets()
        for rung in range(len(budgets) - 2, -1, -1):
            scores = self._rung(told, budgets[rung])
            higher = self._rung(told, budgets[rung + 1])
            for trial in self._promotable(scores):
                if trial not in higher and trial not in busy:
                    return Ask(trial=trial, budget=budgets[rung + 1], done=budgets[rung])
        known = {r.trial for r in told} | set(busy)
        return next((Ask(trial=t, budget=budgets[0]) for t in self.trials if t not in known), None)

    def _rung(self, told: Sequence[Report], budget: float) -> dict[str, float]:
        """Scores at a rung, in the order of the trials (so that ties do not depend on who reported first)."""
        scores = {r.trial: r.score for r in told if r.budget == budget}
        return {t: scores[t] for t in self.trials if t in scores}

    def _promotable(self, scores: Mapping[str, float]) -> list[str]:
        return [t for t in best_first(scores)[: len(scores) // self.eta] if not math.isnan(scores[t])]


@dataclass(frozen=True, kw_only=True)
class Pbt:
    """Population based training. interval: iterations between two perturbations; budget: of each in all; quantile_frac: the worst part
    copies the best part; factors: what a copy's parameters are multiplied by, drawn from the seed."""

    population: tuple[str, ...]
    interval: float
    budget: float
    seed: int
    quantile_frac: float = 0.25
    factors: tuple[float, ...] = field(default=(1.2, 0.8))

    def ask(self, told: Sequence[Report], running: Collection[str] = ()) -> tuple[Ask, ...]:
        if set(running) & set(self.population):
            return ()
        done = max((r.budget for r in told), default=0.0)
        if done >= self.budget:
            return ()
        like = self._copies(told, done)
        budget = min(self.budget, done + self.interval)
        rng = np.random.default_rng((self.seed, round(1000 * done)))
        return tuple(
            Ask(
                trial=t, budget=budget, done=done, like=like.get(t), factor=float(rng.choice(self.factors)) if t in like else 1.0
            )
            for t in self.population
        )  # fmt: skip

    def _copies(self, told: Sequence[Report], done: float) -> dict[str, str]:
        """The worst -> one of the best each, the best of which is copied first. One that reported nothing is among the worst."""
        scores = dict.fromkeys(self.population, -math.inf) | {r.trial: r.score for r in told if r.budget == done}
        quantile = math.floor(len(self.population) * self.quantile_frac)
        if not done or not quantile:
            return {}
        order = best_first(scores)
        pairs = zip(reversed(order[-quantile:]), order[:quantile], strict=True)
        return {worst: best for worst, best in pairs if math.isfinite(scores[best])}
