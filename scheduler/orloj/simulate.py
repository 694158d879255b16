"""A device's workers in virtual time: jobs arrive whether or not earlier ones are done, a policy forms batches, the world knows the run
times.

What a policy is told is what it would be told live: requests as they come, how long its batches took, and stand-alone run times from a
profiler that runs a part of the finished requests again, alone, in gaps of all workers that are long enough for it (at a priority so low
that nothing waits for it). The lengths of waiting requests stay hidden.

A job is a request, or a cascade: stages in order, each any number of requests, all with the job's deadline; the requests of a stage
share the penalty of the job. It is finished when its last
request is served in time; when one of its requests is dropped or late the others are withdrawn, as the caller of a pool would do.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from scheduler.orloj.types import Batch, BatchPolicy, ModelCost, Request


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Requests that a job makes at once. alone_s: what each would truly take alone; none at all is allowed; after_s: what each says of
    the time that its job will need after it."""

    model: str
    alone_s: tuple[float, ...]
    after_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Job:
    """Something asked at released_s, wanted by deadline_s."""

    app: str
    released_s: float
    deadline_s: float
    stages: tuple[Stage, ...]


@dataclass(frozen=True, kw_only=True)
class World:
    """workers: who run batches at a time; costs: the true batch law of each model; jitter_frac: standard deviation of a batch's time
    around it; probe_frac: part of the finished requests that the profiler runs again; told: samples (model, app) that the policy has
    from the past; told_costs: what the policy is told of the costs, None: the truth."""

    costs: Mapping[str, ModelCost]
    workers: int = 1
    jitter_frac: float = 0.0
    probe_frac: float = 0.1
    told: Mapping[tuple[str, str], Sequence[float]] = field(default_factory=dict)
    told_costs: Mapping[str, ModelCost] | None = None


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """finished + late + dropped = jobs. late: served to the end, but too late; batches: (size run as, requests in it) -> how many;
    busy_s: device time of batches, probes not counted; probes: requests that were run again."""

    jobs: int
    finished: int
    late: int
    dropped: int
    batches: Counter[tuple[int, int]]
    busy_s: float
    ended_s: float
    probes: int

    @property
    def finish_rate(self) -> float:
        """Jobs finished by their deadline over all jobs."""
        return self.finished / self.jobs if self.jobs else 1.0


@dataclass
class _Open:
    """A job in progress. stage: index of the one that waits; waits: ids of its requests that wait or run."""

    job: Job
    stage: int = -1
    waits: set[int] = field(default_factory=set)


@dataclass(frozen=True, kw_only=True)
class _InWork:
    """A batch that a worker runs."""

    batch: Batch
    took_s: float
    ends_s: float


#: Requests that wait to be run again; more are forgotten, oldest first.
PROBES_WAITING = 64


class Simulation:
    """A policy against a world. Deterministic for a seed."""

    def __init__(self, policy: BatchPolicy, world: World, *, seed: int = 0) -> None:
        self._policy, self._world = policy, world
        self._rng = np.random.default_rng(seed)
        self._now_s = 0.0
        self._next_id = 0
        self._open: dict[int, _Open] = {}
        self._alone_s: dict[int, float] = {}
        self._in_work: list[_InWork] = []
        self._probes: deque[tuple[str, str, float]] = deque(maxlen=PROBES_WAITING)
        self._tally: Counter[str] = Counter()
        self._batches: Counter[tuple[int, int]] = Counter()
        self._busy_s = 0.0

    def run(self, jobs: Sequence[Job]) -> Outcome:
        """All jobs, in order of their release, to the end."""
        arrivals = deque(sorted(jobs, key=lambda job: job.released_s))
        self._now_s = arrivals[0].released_s if arrivals else 0.0
        self._tell_past()
        while arrivals or self._open or self._in_work:
            if len(self._in_work) == self._world.workers:
                self._end_first()
                continue
            while arrivals and arrivals[0].released_s <= self._now_s:
                job = arrivals.popleft()
                self._begin(job)
            self._step(arrivals[0].released_s if arrivals else math.inf)
        return Outcome(
            jobs=len(jobs), finished=self._tally["finished"], late=self._tally["late"], dropped=self._tally["dropped"],
            batches=self._batches, busy_s=self._busy_s, ended_s=self._now_s, probes=self._tally["probes"],
        )  # fmt: skip

    def _tell_past(self) -> None:
        for model, cost in (self._world.told_costs or self._world.costs).items():
            self._policy.add_model(model, cost)
        for (model, app), samples in self._world.told.items():
            for alone_s in samples:
                self._policy.sample(model, app, alone_s, self._now_s)

    def _step(self, next_s: float) -> None:
        """What a free worker does now. next_s: when the next job comes."""
        decision = self._policy.decide(self._now_s)
        for request in decision.dropped:
            self._fail(request.id, "dropped")
        if decision.batch is not None:
            self._start(decision.batch)
            return
        until_s = min(next_s, math.inf if decision.wake_s is None else decision.wake_s)
        if self._in_work and min(work.ends_s for work in self._in_work) <= until_s:
            self._end_first()
            return
        if math.isinf(until_s):
            if self._open:
                raise RuntimeError(f"{self._policy.name} leaves {len(self._open)} jobs waiting for ever")
            return
        if not self._in_work:
            self._probe_until(next_s)
        self._now_s = max(self._now_s, until_s)

    def _start(self, batch: Batch) -> None:
        cost = self._world.costs[batch.model]
        took_s = cost.c0_s + cost.c1 * batch.size * max(self._alone_s[r.id] for r in batch.requests)
        if self._world.jitter_frac:
            took_s *= max(0.2, 1.0 + self._world.jitter_frac * float(self._rng.standard_normal()))
        self._batches[batch.size, len(batch.requests)] += 1
        self._busy_s += took_s
        self._in_work.append(_InWork(batch=batch, took_s=took_s, ends_s=self._now_s + took_s))

    def _end_first(self) -> None:
        """The batch that ends first does."""
        first = min(self._in_work, key=lambda work: work.ends_s)
        self._in_work.remove(first)
        self._now_s = max(self._now_s, first.ends_s)
        self._policy.ran(first.batch, first.took_s, self._now_s)
        for request in first.batch.requests:
            self._served(request)

    def _served(self, request: Request) -> None:
        alone_s = self._alone_s.pop(request.id)
        if self._rng.random() < self._world.probe_frac:
            self._probes.append((request.model, request.app, alone_s))
        held = self._open.pop(request.id, None)
        if held is None:
            return  # its job failed while it ran
        if self._now_s > held.job.deadline_s:
            self._open[request.id] = held
            self._fail(request.id, "late")
            return
        held.waits.discard(request.id)
        if not held.waits:
            self._advance(held)

    def _begin(self, job: Job) -> None:
        self._advance(_Open(job=job))

    def _advance(self, held: _Open) -> None:
        """The next stage that asks for anything; after the last the job is finished."""
        job = held.job
        while not held.waits:
            held.stage += 1
            if held.stage >= len(job.stages):
                self._tally["finished"] += 1
                return
            stage = job.stages[held.stage]
            together = self._next_id + 1  # the number of the first stands for all
            for alone_s in stage.alone_s:
                self._next_id += 1
                request = Request(
                    id=self._next_id,
                    app=job.app,
                    model=stage.model,
                    released_s=job.released_s,
                    deadline_s=job.deadline_s,
                    penalty=1.0 / len(stage.alone_s),
                    after_s=stage.after_s,
                    together=together,
                )
                held.waits.add(request.id)
                self._open[request.id] = held
                self._alone_s[request.id] = alone_s
                self._policy.submit(request, self._now_s)

    def _fail(self, id: int, how: str) -> None:
        held = self._open.pop(id, None)
        self._alone_s.pop(id, None)
        if held is None:
            return
        self._tally[how] += 1
        held.waits.discard(id)
        for other in sorted(held.waits):
            self._open.pop(other, None)
            if self._policy.withdraw(other):
                self._alone_s.pop(other, None)

    def _probe_until(self, until_s: float) -> None:
        while self._probes and self._now_s + self._probes[0][2] <= until_s:
            model, app, alone_s = self._probes.popleft()
            self._now_s += alone_s
            self._policy.sample(model, app, alone_s, self._now_s)
            self._tally["probes"] += 1


def simulate(policy: BatchPolicy, world: World, jobs: Sequence[Job], *, seed: int = 0) -> Outcome:
    """What becomes of these jobs under the policy."""
    return Simulation(policy, world, seed=seed).run(jobs)
