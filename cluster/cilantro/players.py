"""Cilantro's policies as players of the experiment: with learned curves, and as oracles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from cluster.cilantro.experiment import ROUND_S, WINDOWS, RoundPolicy, Told, TrueJob
from cluster.cilantro.fairness import Node
from cluster.cilantro.fallbacks import Stated
from cluster.cilantro.forecast import Forecast, forecast
from cluster.cilantro.monotone import MonotoneLearner, MonotoneSettings
from cluster.cilantro.policies import JobView, Objective, Settings, decide
from cluster.cilantro.tree import TreeLearner, TreeSettings
from cluster.cilantro.types import Bounds, FloatArray, IntArray, Learner

LearnerName = Literal["monotone", "tree"]
#: Windows of load that a forecast looks back on: an hour.
LOOK_BACK = 3600 * WINDOWS // ROUND_S


def make_learner(name: LearnerName, job: TrueJob) -> Learner:
    """An empty one. The tree is told range and slope of the curve, as in the released code; the other nothing but that a fraction
    is at most 1."""
    if name == "tree":
        top = 1000.0 if job.throughput else 1.0
        return TreeLearner.empty(TreeSettings(x_max=job.x_max, slope=job.slope, high=top))
    return MonotoneLearner(settings=MonotoneSettings(high=math.inf if job.throughput else 1.0))


def flat(jobs: Sequence[TrueJob]) -> Node:
    """Equal entitlements."""
    return Node(name="", children=tuple(Node(name=job.id) for job in jobs))


@dataclass(kw_only=True)
class Oracle:
    """Knows every curve and every arrival of the coming round: utility of the mean performance over its windows, exactly optimised.
    Nobody who decides once a round can do better in the mean of the chosen objective."""

    jobs: Sequence[TrueJob]
    objective: Objective
    total: int

    def units(self, round_index: int, told: Sequence[Told]) -> IntArray:
        """By the truth."""
        views = []
        for job in self.jobs:
            curve = true_curve(job, round_index, self.total)
            views.append(
                JobView(id=job.id, goal=job.goal, shape=job.shape, curve=Bounds(low=curve, middle=curve, high=curve), least=1)
            )
        found = decide(views, flat(self.jobs), self.total, Settings(objective=self.objective, variant="ours"))
        return np.array([found.units[job.id] for job in self.jobs])


def true_curve(job: TrueJob, round_index: int, total: int) -> FloatArray:
    """Mean performance over a round's windows, at 0 to `total` units."""
    loads = job.loads[round_index * WINDOWS : (round_index + 1) * WINDOWS]
    units = np.arange(total + 1, dtype=np.float64)
    return np.asarray(np.mean([job.performance(units, load) for load in loads], axis=0), dtype=np.float64)


@dataclass(kw_only=True)
class Learned:
    """A learned policy. ahead: windows that the forecast of load is a mean of (the paper: 1); upper: its upper end is taken (the paper
    does), else the middle; stated: unit demand by job, used in place of a learner."""

    jobs: Sequence[TrueJob]
    settings: Settings
    total: int
    learner: LearnerName = "monotone"
    ahead: int = WINDOWS
    upper: bool = True
    stated: dict[str, float] = field(default_factory=dict)
    oracle_load: bool = False

    def __post_init__(self) -> None:
        self._learners: list[Learner] = [self._first(job) for job in self.jobs]
        self._loads: list[list[float]] = [[] for _ in self.jobs]
        self._before: IntArray | None = None
        self._demands: dict[str, float] = {}
        self._known = [job.id in self.stated for job in self.jobs]

    def _first(self, job: TrueJob) -> Learner:
        if job.id in self.stated:
            return Stated(unit_demand=self.stated[job.id], goal=job.goal)
        return make_learner(self.learner, job)

    def units(self, round_index: int, told: Sequence[Told]) -> IntArray:
        """Learns what was told, then decides."""
        for number, news in enumerate(told):
            self._learners[number] = self._learners[number].updated(news.samples)
            self._loads[number] += [sample.load for sample in news.samples]
            self._known[number] |= bool(news.samples)
        views = [self._view(number, round_index) for number in range(len(self.jobs))]
        found = decide(views, flat(self.jobs), self.total, self.settings)
        self._demands = dict(found.demands)
        self._before = np.array([found.units[job.id] for job in self.jobs])
        return self._before

    def _load(self, number: int, round_index: int) -> float:
        job = self.jobs[number]
        if self.oracle_load:
            return float(job.loads[round_index * WINDOWS : (round_index + 1) * WINDOWS].mean())
        if job.throughput:
            return 1.0
        expected: Forecast = forecast(self._loads[number][-LOOK_BACK:], steps=self.ahead)
        return max(1e-6, expected.high if self.upper else expected.middle)

    def _view(self, number: int, round_index: int) -> JobView:
        job, curve = self.jobs[number], None
        if self._known[number]:
            units = np.arange(self.total + 1, dtype=np.float64)
            curve = self._learners[number].bounds(units / self._load(number, round_index))
        return JobView(
            id=job.id,
            goal=job.goal,
            shape=job.shape,
            curve=curve,
            least=1,
            before=None if self._before is None else int(self._before[number]),
            demand_before=self._demands.get(job.id),
        )


@dataclass(kw_only=True)
class Misreported:
    """A policy of whose jobs one lies: it tells its performance times `factor` (the paper's db16: half, twice), a fraction never above
    1, since nobody would believe it. It states nothing else wrongly: a controller knows the share it gave and sees the load."""

    policy: RoundPolicy
    liar: TrueJob
    number: int
    factor: float

    def units(self, round_index: int, told: Sequence[Told]) -> IntArray:
        """Of the policy, which hears the lie."""
        heard = list(told)
        if heard:
            news = heard[self.number]
            heard[self.number] = replace(
                news,
                samples=tuple(replace(sample, value=self._said(sample.value)) for sample in news.samples),
                value=self._said(news.value),
            )
        return self.policy.units(round_index, heard)

    def _said(self, value: float) -> float:
        said = self.factor * value
        return said if self.liar.throughput else float(np.minimum(1.0, said))
