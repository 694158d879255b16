"""The paper's experiment in virtual time: 20 jobs, 1000 units, recorded curves and arrivals, any policy (card sections 11, 12).

Truth (curves, arrivals, noise) is kept apart from what a policy is told. Every `WINDOW_S` a job's client reports what the card's client
would (section 3): a latency job the part of its queries that were in time, out of those early enough to be judged, with the released
sigma; a throughput job its rate. A window in which the allocation moved yields nothing. Chance comes from the given seed alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from cluster.cilantro.fallbacks import Profiled
from cluster.cilantro.metrics import Published, Released, mean_of, published, released
from cluster.cilantro.types import FloatArray, IntArray, Sample
from cluster.cilantro.utility import utility

WINDOW_S = 10
ROUND_S = 120
WINDOWS = ROUND_S // WINDOW_S
#: Queries that come this late in a window are not judged in it.
LATENCY_S = 2
#: Relative noise of a throughput window. The paper gives none; the recorded profiles' bounds are 2 to 4 percent apart.
RATE_NOISE = 0.05


@dataclass(frozen=True, kw_only=True)
class TrueJob:
    """curve: true performance against units per unit load; loads: per window, arrivals per second (1 for throughput); slope and x_max:
    what the paper's tree is told of the curve."""

    id: str
    workload: str
    goal: float
    shape: str
    curve: Profiled
    loads: FloatArray
    throughput: bool
    slope: float
    x_max: float

    def performance(self, units: FloatArray, loads: FloatArray | float) -> FloatArray:
        """Without noise."""
        return self.curve.bounds(np.asarray(units, dtype=np.float64) / loads).middle


@dataclass(frozen=True, kw_only=True)
class Told:
    """What a job's client told in one round: its samples, and their means (nan: it was silent)."""

    samples: tuple[Sample, ...]
    value: float
    load: float


class RoundPolicy(Protocol):
    """Decides one round after the other. told: of the round before, per job, empty in the first; round_index counts from 0."""

    def units(self, round_index: int, told: Sequence[Told]) -> IntArray:
        """Whole units per job, at least one each, at most the capacity together."""
        ...


@dataclass(frozen=True, kw_only=True)
class Result:
    """units: (rounds, jobs); true, measured: performance, mean over the windows of each round, without and with noise; loads: the
    same."""

    units: IntArray
    true: FloatArray
    measured: FloatArray
    loads: FloatArray


#: The paper's 20 jobs (card section 11): id -> (workload, goal, utility).
PAPER_JOBS: Mapping[str, tuple[str, float, str]] = {
    "db01": ("craydb0", 0.90, "linear"), "db02": ("craydb0", 0.90, "linear"), "db03": ("craydb0", 0.95, "sqrt"),
    "db11": ("craydb1", 0.90, "linear"), "db12": ("craydb1", 0.90, "quadratic"), "db13": ("craydb1", 0.95, "quadratic"),
    "db14": ("craydb1", 0.95, "linear"), "db15": ("craydb1", 0.95, "quadratic"), "db16": ("craydb1", 0.99, "quadratic"),
    "db17": ("craydb1", 0.99, "sqrt"),
    "mlt1": ("craymltrain", 400, "sqrt"), "mlt2": ("craymltrain", 400, "sqrt"), "mlt3": ("craymltrain", 450, "linear"),
    "mlt4": ("craymltrain", 450, "linear"), "mlt5": ("craymltrain", 500, "quadratic"), "mlt6": ("craymltrain", 500, "quadratic"),
    "mlt7": ("craymltrain", 500, "quadratic"),
    "prs1": ("craypredserv", 0.90, "linear"), "prs2": ("craypredserv", 0.90, "sqrt"), "prs3": ("craypredserv", 0.95, "sqrt"),
}  # fmt: skip
PAPER_UNITS = 1000
#: Arrivals of a workload as a part of the trace (card section 11); absent: an endless backlog.
ARRIVAL_SCALE = {"craydb0": 0.5, "craydb1": 1.05, "craypredserv": 1.0}


def paper_jobs(
    profiles: Mapping[str, Mapping[str, Any]], arrivals: FloatArray, rounds: int, places: float = 0.0
) -> list[TrueJob]:
    """The 20 jobs. profiles: the recorded ones by workload; arrivals: per second; each job reads the trace from a place of its own,
    the n-th after n/20 of it, going round at the end. places: so many twentieths of the trace later: other arrivals for every job."""
    windows = rounds * WINDOWS
    jobs = []
    for number, (name, (workload, goal, shape)) in enumerate(PAPER_JOBS.items()):
        profile = profiles[workload]
        scale = ARRIVAL_SCALE.get(workload)
        start = round((number + places) * len(arrivals)) // len(PAPER_JOBS)
        seconds = np.take(arrivals, np.arange(start, start + windows * WINDOW_S), mode="wrap")
        loads = np.ones(windows) if scale is None else scale * seconds.reshape(windows, WINDOW_S).mean(axis=1)
        curve = Profiled.of(list(zip(profile["grid"], np.maximum.accumulate(profile["ests"]), strict=True)))
        jobs.append(
            TrueJob(
                id=name, workload=workload, goal=goal, shape=shape, curve=curve, loads=loads, throughput=scale is None,
                slope=8 * (profile["ests"][-1] - profile["ests"][0]) / (profile["grid"][-1] - profile["grid"][0]),
                x_max=profile["int_ub"],
            )
        )  # fmt: skip
    return jobs


def play(jobs: Sequence[TrueJob], policy: RoundPolicy, *, total: int, rounds: int, seed: int) -> Result:
    """All rounds. Every policy meets the same noise: it comes from (seed, job, round). ValueError if the policy gives more than there
    is, or less than a unit to anyone."""
    units_seen, true_seen, measured_seen, loads_seen = [], [], [], []
    told: list[Told] = []
    before: IntArray | None = None
    for index in range(rounds):
        units = np.asarray(policy.units(index, told), dtype=np.int64)
        if len(units) != len(jobs) or units.min() < 1 or units.sum() > total:
            raise ValueError(f"round {index}: {units.tolist()} is no allocation of {total} units to {len(jobs)} jobs")
        told, rows = [], []
        for number, job in enumerate(jobs):
            rng = np.random.default_rng((seed, number, index))
            moved = before is None or units[number] != before[number]
            told_one, true, measured = _round(job, int(units[number]), index, moved, rng)
            told.append(told_one)
            rows.append((true, measured, float(job.loads[index * WINDOWS : (index + 1) * WINDOWS].mean())))
        before = units
        units_seen.append(units)
        true_seen.append([row[0] for row in rows])
        measured_seen.append([row[1] for row in rows])
        loads_seen.append([row[2] for row in rows])
    return Result(
        units=np.array(units_seen), true=np.array(true_seen), measured=np.array(measured_seen), loads=np.array(loads_seen)
    )


def _round(job: TrueJob, units: int, index: int, moved: bool, rng: np.random.Generator) -> tuple[Told, float, float]:
    """(what the client tells, true and measured mean performance) of one job in one round."""
    loads = job.loads[index * WINDOWS : (index + 1) * WINDOWS]
    true = job.performance(np.full(WINDOWS, float(units)), loads)
    values, sigmas = _rates(true, units, rng) if job.throughput else _fractions(true, loads, rng)
    samples = tuple(
        Sample(alloc=units, load=float(load), value=float(value), sigma=float(sigma))
        for window, (load, value, sigma) in enumerate(zip(loads, values, sigmas, strict=True))
        if math.isfinite(value) and not (moved and window == 0)
    )
    value = float(np.mean([s.value for s in samples])) if samples else math.nan
    told = Told(samples=samples, value=value, load=float(np.mean([s.load for s in samples])) if samples else math.nan)
    return told, float(true.mean()), float(np.nanmean(values))


def _fractions(true: FloatArray, loads: FloatArray, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Part of the judged queries that were in time; sigma = min(.5, 10 / sqrt(2 N)) (card section 3)."""
    judged = np.maximum(0, np.round(loads * (WINDOW_S - LATENCY_S))).astype(np.int64)
    with np.errstate(invalid="ignore", divide="ignore"):
        return rng.binomial(judged, np.clip(true, 0, 1)) / judged, np.minimum(0.5, 10 / np.sqrt(2 * judged))


def _rates(true: FloatArray, units: int, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Completions per second; sigma as the released client, with a task a second per unit, so 2 * rate where that is less."""
    values = np.maximum(0.0, true * (1 + RATE_NOISE * rng.normal(size=len(true))))
    return values, 0.5 * np.where(units < values, 2 * values, units)


# --- what came of it --------------------------------------------------------------------------------------------------


def scored(
    jobs: Sequence[TrueJob], result: Result, *, total: int, first: int = 0, noisy: bool = False
) -> tuple[Published, Released]:
    """Both kinds of metrics, averaged over rounds from `first` on. A cell of the time grid is a round (120 s; the paper's are 216 s
    live, 22 s in plots). noisy: from what clients measured, as published; else from the truth behind it."""
    performance = (result.measured if noisy else result.true)[first:]
    units = result.units[first:].astype(np.float64)
    utilities = np.stack([utility(performance[:, j], job.goal, job.shape) for j, job in enumerate(jobs)], axis=1)
    entitlement = total / len(jobs)
    by_round = [job.loads.reshape(-1, WINDOWS)[first : len(result.units)] for job in jobs]
    entitled = np.stack(
        [
            utility(job.performance(np.full(loads.shape, entitlement), loads).mean(axis=1), job.goal, job.shape)
            for job, loads in zip(jobs, by_round, strict=True)
        ],
        axis=1,
    )
    demands = np.minimum(
        np.stack(
            [job.curve.need(job.goal).middle * loads.mean(axis=1) for job, loads in zip(jobs, by_round, strict=True)], axis=1
        ),
        float(total),
    )
    as_published = [published(*row, float(total)) for row in zip(utilities, entitled, units, demands, strict=True)]
    entitlements = np.full(len(jobs), entitlement)
    as_released = [released(row, wanted, entitlements, float(total)) for row, wanted in zip(units, demands, strict=True)]
    return mean_of(as_published), mean_of(as_released)
