"""Orloj: batches by the expected loss they avoid per second of the device, under laws of run times. Card: Orloj, sections 3 to 7.

Printed (algorithm 4.1): each request waits in the queue of every batch size that it can still expect to be ready with; sizes are gone
through by the earliest deadline of their queue, descending; the first whose queue can fill it is taken, and filled by score.

Ours:
- A queue per size is a suffix of the one queue in order of deadlines, since all of a size share one estimate; and the best of it are
  found by a plain scan of a score table, not by a dynamic convex hull: faster for thousands, and there are no timestamps to rebase.
- `>=` where the listing has `>`: one request alone is served (1 is always a size), so the device never waits for company.
- Several models on one worker: of the models' candidate batches the one whose scores sum to most runs, that is the largest expected
  loss avoided per second of the device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from scheduler.orloj.law import BatchLaw, Law
from scheduler.orloj.runtimes import LawRules, RunTimes, batch_laws, member_law
from scheduler.orloj.score import ScoreTable
from scheduler.orloj.types import Batch, Decision, ModelCost, Request
from scheduler.orloj.waiting import Queue, QueuedPolicy

#: What a run time is taken for before anything is known of it.
UNKNOWN = Law(edges=np.array([0.0, 1e-6]), mass=np.array([1.0]))


@dataclass(frozen=True, kw_only=True)
class OrlojRules:
    """b_per_s: rate of the anticipated delay (the paper's 1e-4 per ms); est_quantile: the quantile of L_B that a request must have left
    to stay in a size's queue, None: its mean; prior: law of run times per model before the first sample."""

    variant: Literal["printed"] = "printed"
    b_per_s: float = 0.1
    est_quantile: float | None = None
    laws: LawRules = field(default_factory=LawRules)
    prior: Mapping[str, Law] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, eq=False)
class SizeTables:
    """All that a decision needs of one model's batch sizes, ascending. est_s: float64 (S,), what a request must have left."""

    sizes: tuple[int, ...]
    laws: tuple[BatchLaw, ...]
    est_s: np.ndarray
    scores: tuple[ScoreTable, ...]


def size_tables(laws: Mapping[int, BatchLaw], rules: OrlojRules) -> SizeTables:
    """The tables of one model."""
    ordered = tuple(laws[size] for size in sorted(laws))
    est_s = [law.expected if rules.est_quantile is None else law.law.quantile(rules.est_quantile) for law in ordered]
    return SizeTables(
        sizes=tuple(law.size for law in ordered),
        laws=ordered,
        est_s=np.maximum.accumulate(est_s),
        scores=tuple(ScoreTable(law, rules.b_per_s) for law in ordered),
    )


def printed_choice(deadline_s: np.ndarray, est_s: np.ndarray, sizes: tuple[int, ...], now_s: float) -> tuple[int, int] | None:
    """Algorithm 4.1 on one queue. deadline_s: float64 (N,), ascending; est_s: float64 (S,), ascending. Returns (index of the size, first
    place of its queue): the queue of a size is everything from there on. None: no request is in any queue."""
    starts = np.searchsorted(deadline_s, now_s + est_s, side="left")
    for i in np.lexsort((np.array(sizes), np.append(deadline_s, np.inf)[starts]))[::-1]:
        if len(deadline_s) - starts[i] >= sizes[i]:
            return int(i), int(starts[i])
    return None


class Orloj(QueuedPolicy):
    """The policy of the paper on one worker with any number of models."""

    name = "orloj"

    def __init__(self, rules: OrlojRules | None = None) -> None:
        super().__init__()
        self._rules = rules or OrlojRules()
        self._times: dict[str, RunTimes] = {}
        self._arrivals: dict[str, dict[str, float]] = {}
        self._tables: dict[str, SizeTables] = {}
        self._refreshed_s: dict[str, float] = {}
        self._fresh: dict[str, bool] = {}

    def add_model(self, model: str, cost: ModelCost) -> None:
        super().add_model(model, cost)
        self._times.setdefault(model, RunTimes(self._rules.laws, self._rules.prior.get(model)))
        self._arrivals.setdefault(model, {})
        self._tables.pop(model, None)

    def tables(self, model: str, now_s: float) -> SizeTables:
        """The model's present tables; new samples are adopted when it is time to."""
        old = self._tables.get(model)
        since_s = abs(now_s - self._refreshed_s.get(model, now_s))
        if old is not None and (not self._fresh.get(model) or since_s < self._rules.laws.refresh_s):
            return old
        shares = self._arrivals[model] or {"": 1.0}
        laws = self._times[model].laws(list(shares), now_s) or dict.fromkeys(shares, UNKNOWN)
        self._arrivals[model] = {app: share / 2 for app, share in shares.items() if share > 1e-3}
        made = size_tables(batch_laws(member_law(laws, shares), self._cost[model]), self._rules)
        self._tables[model], self._refreshed_s[model], self._fresh[model] = made, now_s, False
        return made

    def _arrived(self, request: Request, now_s: float) -> None:
        arrivals = self._arrivals[request.model]
        arrivals[request.app] = arrivals.get(request.app, 0.0) + 1.0

    def _learn(self, model: str, app: str, alone_s: float, now_s: float) -> None:
        self._times[model].add(app, alone_s, now_s)
        self._fresh[model] = True

    def _ran(self, batch: Batch, took_s: float, now_s: float) -> None:
        if self._times[batch.model].add_batch(batch, self._cost[batch.model], took_s, now_s):
            self._fresh[batch.model] = True

    def _decide(self, now_s: float) -> Decision:
        dropped: list[Request] = []
        best: tuple[float, str, int, np.ndarray] | None = None
        for model, queue in self._queue.items():
            if not len(queue):
                continue
            tables = self.tables(model, now_s)
            dropped += queue.take_before(now_s + tables.est_s[0])
            found = self._candidate(queue, tables, now_s)
            if found is not None and (best is None or found[0] > best[0]):
                best = (found[0], model, found[1], found[2])
        if best is None:
            return Decision(dropped=tuple(dropped))
        _, model, i, places = best
        tables = self._tables[model]
        batch = Batch(
            model=model,
            requests=self._queue[model].take(places.tolist()),
            size=tables.sizes[i],
            expected_s=tables.laws[i].expected,
        )
        return Decision(batch=batch, dropped=tuple(dropped))

    def _candidate(self, queue: Queue, tables: SizeTables, now_s: float) -> tuple[float, int, np.ndarray] | None:
        """(sum of scores, index of the size, places best first) of the queue's batch."""
        choice = printed_choice(queue.deadline_s, tables.est_s, tables.sizes, now_s)
        if choice is None:
            return None
        i, first = choice
        scores = tables.scores[i].at(queue.deadline_s[first:] - now_s) * queue.penalty[first:]
        best = best_places(scores, tables.sizes[i])
        return float(scores[best].sum()), i, best + first


def best_places(scores: np.ndarray, count: int) -> np.ndarray:
    """Places of the `count` largest of float64 (N,), best first; of equals the first."""
    if count >= len(scores):
        return np.argsort(-scores, kind="stable")
    least = np.partition(scores, len(scores) - count)[len(scores) - count]
    above = np.flatnonzero(scores > least)
    equal = np.flatnonzero(scores == least)[: count - len(above)]
    chosen = np.concatenate([above, equal])
    return chosen[np.argsort(-scores[chosen], kind="stable")]
