"""The baselines of the paper's experiment as players (card section 8). Rules are in `cluster.cilantro.rules`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from cluster.cilantro import rules
from cluster.cilantro.experiment import RoundPolicy, Told, TrueJob
from cluster.cilantro.fairness import whole_units, with_least
from cluster.cilantro.forecast import forecast
from cluster.cilantro.players import LOOK_BACK, make_learner
from cluster.cilantro.search import Evolution, EvolutionSettings, exchanged, fair_units, random_units
from cluster.cilantro.types import FloatArray, IntArray
from cluster.cilantro.utility import utility


class Baseline:
    """What they share: the last value and load of each job (a silent job keeps its last), and the units in force."""

    def __init__(self, jobs: Sequence[TrueJob], total: int, seed: int) -> None:
        self.jobs, self.total = jobs, total
        self.rng = np.random.default_rng((seed, 99))
        self.now = fair_units(len(jobs), total)
        self.goals = np.array([float(job.goal) for job in jobs])
        self.values = np.full(len(jobs), math.nan)
        self.loads = np.array([float(job.loads[0]) for job in jobs])

    def units(self, round_index: int, told: Sequence[Told]) -> IntArray:
        """Fair first, then by the rule."""
        for number, news in enumerate(told):
            if news.samples:
                self.values[number], self.loads[number] = news.value, news.load
        self.learn(told)
        if round_index > 0 and np.isfinite(self.values).all():
            self.now = self.rule(round_index)
        return self.now

    def learn(self, told: Sequence[Told]) -> None:
        """What else it keeps."""

    def rule(self, round_index: int) -> IntArray:
        """The next units."""
        raise NotImplementedError

    @property
    def utilities(self) -> FloatArray:
        """Of the last values."""
        return np.array([float(utility(v, job.goal, job.shape)) for v, job in zip(self.values, self.jobs, strict=True)])

    @property
    def as_float(self) -> FloatArray:
        """The units in force."""
        return self.now.astype(np.float64)

    @property
    def best_values(self) -> FloatArray:
        """Largest performance there can be."""
        return np.array([math.inf if job.throughput else 1.0 for job in self.jobs])


class ResourceFair(Baseline):
    """Equal parts, always."""

    def rule(self, round_index: int) -> IntArray:
        """The same again."""
        return self.now


class EvolutionBySight(Baseline):
    """EvoAlg: each query of the evolution is a real round."""

    objective = "sw"

    def __init__(self, jobs: Sequence[TrueJob], total: int, seed: int) -> None:
        super().__init__(jobs, total, seed)
        self.search = Evolution(len(jobs), total, EvolutionSettings(), (seed, 98))
        self.now = self.search.ask()

    def rule(self, round_index: int) -> IntArray:
        """Tells what came of the last one."""
        self.search.tell(self.now, rules.measured_welfare(self.utilities.tolist(), self.objective))
        return self.search.ask()


class EvolutionBySightEw(EvolutionBySight):
    """For the smallest utility."""

    objective = "ew"


class GreedyEw(Baseline):
    """A unit from each of the better off half to the worse off."""

    def rule(self, round_index: int) -> IntArray:
        """One step."""
        return exchanged(self.now, self.utilities, len(self.jobs) // 2)


class Minerva(Baseline):
    """Units proportional to units over utility, by the forecast of performance clipped at the goal."""

    def __init__(self, jobs: Sequence[TrueJob], total: int, seed: int) -> None:
        super().__init__(jobs, total, seed)
        self._history: list[list[float]] = [[] for _ in jobs]

    def learn(self, told: Sequence[Told]) -> None:
        """Series of performance."""
        for kept, news in zip(self._history, told, strict=False):
            kept += [sample.value for sample in news.samples]

    def rule(self, round_index: int) -> IntArray:
        """With the released floor."""
        found = [
            float(utility(min(job.goal, forecast(kept[-LOOK_BACK:]).middle), job.goal, job.shape))
            for kept, job in zip(self._history, self.jobs, strict=True)
        ]
        wanted = rules.minerva(self.as_float, np.array(found), self.total, damp=1e-4)
        least = np.full(len(wanted), max(1.0, rules.MINERVA_FLOOR * self.total))
        return whole_units(with_least(wanted, least, float(self.total)), self.total)


class Parties(Baseline):
    """20 up, 5 down."""

    def rule(self, round_index: int) -> IntArray:
        """Demands, then NJC."""
        slacks = rules.slack(self.values, self.goals, self.best_values)
        return rules.share(rules.parties(self.as_float, slacks), self.total)


class Miad(Baseline):
    """Half more under violation, one less otherwise."""

    def rule(self, round_index: int) -> IntArray:
        """Demands, then NJC."""
        return rules.share(rules.miad(self.as_float, self.values < self.goals), self.total)


class Ernest(Baseline):
    """A model of time per job; ten random rounds first."""

    random_rounds = 10

    def __init__(self, jobs: Sequence[TrueJob], total: int, seed: int) -> None:
        super().__init__(jobs, total, seed)
        self._rows: list[list[tuple[float, float, float]]] = [[] for _ in jobs]

    def learn(self, told: Sequence[Told]) -> None:
        """(units, load, time) of each window."""
        for number, news in enumerate(told):
            for s in news.samples:
                rate = s.value if self.jobs[number].throughput else s.value * s.load
                if rate > 0:
                    self._rows[number].append((s.alloc, s.load, 1 / rate))

    def rule(self, round_index: int) -> IntArray:
        """Demands, then NJC."""
        if round_index < self.random_rounds:
            return random_units(len(self.jobs), self.total, 1, self.rng)
        return rules.share(np.array([self._demand(number) for number in range(len(self.jobs))]), self.total)

    def _demand(self, number: int) -> float:
        rows, job, load = np.array(self._rows[number]), self.jobs[number], float(self.loads[number])
        if not len(rows):
            return float(self.total)
        weights = rules.ernest_fit(rows[:, 0], rows[:, 1], rows[:, 2])
        time = 1 / job.goal if job.throughput else 1 / (job.goal * load)
        return rules.ernest_demand(weights, load, time, float(self.total))


class Quasar(Baseline):
    """Collaborative filtering over workload types; two random rounds first. Throughput is divided by the largest that its type has
    shown (the released code clips it to 1, where it saturates)."""

    random_rounds = 2

    def __init__(self, jobs: Sequence[TrueJob], total: int, seed: int) -> None:
        super().__init__(jobs, total, seed)
        self._types = sorted({job.workload for job in jobs})
        self._sums = np.zeros((2, len(self._types), total // 3))

    def learn(self, told: Sequence[Told]) -> None:
        """Mean reward per type and units."""
        for number, news in enumerate(told):
            for s in news.samples:
                at = min(int(s.alloc), self._sums.shape[2]) - 1
                self._sums[:, self._types.index(self.jobs[number].workload), at] += (s.value, 1.0)

    def rule(self, round_index: int) -> IntArray:
        """Demands, then NJC."""
        if round_index <= self.random_rounds:
            return random_units(len(self.jobs), self.total, 1, self.rng)
        with np.errstate(invalid="ignore", divide="ignore"):
            known = self._sums[0] / self._sums[1]
        scale = np.array([self._scale(kind, known) for kind in range(len(self._types))])
        filled = rules.low_rank(known / scale[:, None], self.rng)
        at = [self._types.index(job.workload) for job in self.jobs]
        demands = [rules.quasar_demand(filled[kind], job.goal / scale[kind]) for kind, job in zip(at, self.jobs, strict=True)]
        return rules.share(np.array(demands), self.total)

    def _scale(self, kind: int, known: FloatArray) -> float:
        throughput = any(job.throughput for job in self.jobs if job.workload == self._types[kind])
        return float(np.nanmax(known[kind])) if throughput else 1.0


class KubernetesStyle(Baseline):
    """ceil(replicas * goal / measured), scaled down."""

    def rule(self, round_index: int) -> IntArray:
        """By the rule."""
        return rules.scaled_down(rules.kubernetes_style(self.as_float, self.values, self.goals), self.total)


class Ds2(Baseline):
    """Replicas for the rate asked for, scaled down."""

    def rule(self, round_index: int) -> IntArray:
        """By the rule."""
        return rules.scaled_down(rules.ds2(self.as_float, self.values, self.goals), self.total)


class Pid(Baseline):
    """A controller per job, scaled down."""

    def __init__(self, jobs: Sequence[TrueJob], total: int, seed: int) -> None:
        super().__init__(jobs, total, seed)
        self._before, self._summed = np.zeros(len(jobs)), np.zeros(len(jobs))

    def rule(self, round_index: int) -> IntArray:
        """By the rule."""
        errors = (self.goals - self.values) / self.goals
        self._summed = self._summed + errors
        wanted = rules.pid(self.as_float, errors, self._before, self._summed)
        self._before = errors
        return rules.scaled_down(wanted, self.total)


class OracleUnitDemand(Baseline):
    """Knows every unit demand, not the load; NJC."""

    def rule(self, round_index: int) -> IntArray:
        """Unit demand times the last load."""
        needs = np.array([job.curve.need(job.goal).middle for job in self.jobs])
        return rules.share(np.minimum(needs * self.loads, self.total), self.total)


class BanditUnitDemand(Baseline):
    """The tree's lower, middle and upper demand with chances .1, .8, .1; scaled down."""

    def __init__(self, jobs: Sequence[TrueJob], total: int, seed: int) -> None:
        super().__init__(jobs, total, seed)
        self._learners = [make_learner("tree", job) for job in jobs]

    def learn(self, told: Sequence[Told]) -> None:
        """Into the trees."""
        for number, news in enumerate(told):
            self._learners[number] = self._learners[number].updated(news.samples)

    def rule(self, round_index: int) -> IntArray:
        """By chance."""
        wanted = []
        for job, learner, load in zip(self.jobs, self._learners, self.loads, strict=True):
            need = learner.need(job.goal)
            at = int(self.rng.choice(3, p=(0.1, 0.8, 0.1)))
            wanted.append((need.low, need.middle, need.high)[at] * load)
        return rules.scaled_down(np.array(wanted), self.total)


#: Name in tables -> how to make it. The first block is the paper's, the second in its code only.
BASELINES: Mapping[str, Callable[[Sequence[TrueJob], int, int], RoundPolicy]] = {
    "resource-fair": ResourceFair,
    "evoalg-sw": EvolutionBySight,
    "evoalg-ew": EvolutionBySightEw,
    "greedy-ew": GreedyEw,
    "ernest": Ernest,
    "quasar": Quasar,
    "minerva": Minerva,
    "parties": Parties,
    "miad": Miad,
    "kubernetes-style": KubernetesStyle,
    "pid": Pid,
    "ds2": Ds2,
    "oracle-unit-demand": OracleUnitDemand,
    "bandit-unit-demand": BanditUnitDemand,
}
