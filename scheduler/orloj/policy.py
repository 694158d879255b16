"""Orloj: batches by the expected loss they avoid per second of the device, under laws of run times. Card: Orloj, sections 3 to 7.

Printed (algorithm 4.1): each request waits in the queue of every batch size that it can still expect to be ready with; sizes are gone
through by the earliest deadline of their queue, descending; the first whose queue can fill it is taken, and filled by score.

Ours, in both variants:
- A queue per size is a suffix of the one queue in order of deadlines, since all of a size share one estimate; and the best of it are
  found by a plain scan of a score table, not by a dynamic convex hull: faster for thousands, and there are no timestamps to rebase.
- `>=` where the listing has `>`: one request alone is served (1 is always a size), so the device never waits for company.
- Several models on one worker: of the models' candidate batches the one whose scores sum to most runs, that is the largest expected
  loss avoided per second of the device.

Ours, variant "ours" (the default): the last rule decides nearly everything.
- Sizes too: the score already is per second of the device, so a size is worth the sum of its best members' scores. There is no size rule
  and no estimate that a request must meet; a batch need not be full.
- Applications with short run times may run without the long ones: a batch lasts as long as its longest member, so mixing wastes most of
  it. Candidates are all sizes of every group {the shortest application, the two shortest, ...} with the law of that group.
- Of what can be in time the urgent first, in the batch that uses the device best (`backlog`); the score per second decides when that
  would waste the device or lose something.
- What a frame needs after a request (`Request.after_s`) is taken off its slack and counted to its price.
- A request is given up when it is all but hopeless even alone and at once by its own application's law, not when its mean comes too
  late: with nothing better to do the device may as well try.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from scheduler.orloj.backlog import Looked, best_places, choose
from scheduler.orloj.candidates import Candidates, CandidateScores
from scheduler.orloj.law import BatchLaw, Law
from scheduler.orloj.runtimes import LawRules, RunTimes, batch_laws, member_law
from scheduler.orloj.score import ScoreTable
from scheduler.orloj.types import Batch, Decision, ModelCost, Request
from scheduler.orloj.waiting import Queue, QueuedPolicy

#: What a run time is taken for before anything is known of it.
UNKNOWN = Law(edges=np.array([0.0, 1e-6]), mass=np.array([1.0]))


@dataclass(frozen=True, kw_only=True)
class OrlojRules:
    """b_per_s: rate of the anticipated delay (the paper's 1e-4 per ms). prior: law of run times per model before the first sample; a
    model without one is taken for infinitely fast until something has run.

    Printed only: est_quantile, the quantile of L_B that a request must have left to stay in a size's queue, None: its mean.
    Ours only: give_up, the chance to be ready in time below which a request is dropped; look_at: requests in order of deadlines that are
    looked at, at least the largest size; margin: see `backlog.choose`."""

    variant: Literal["printed", "ours"] = "ours"
    b_per_s: float = 0.1
    est_quantile: float | None = None
    give_up: float = 0.01
    look_at: int = 96
    margin: float = 1.25
    laws: LawRules = field(default_factory=LawRules)
    prior: Mapping[str, Law] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, eq=False)
class SizeTables:
    """All that a printed decision needs of one model's batch sizes, ascending. est_s: float64 (S,), what a request must have left."""

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


@dataclass(frozen=True, kw_only=True, eq=False)
class Choice:
    """A model's batch. worth: sum of its members' scores; places: best first."""

    model: str
    worth: float
    places: np.ndarray
    size: int
    expected_s: float


class LawfulPolicy(QueuedPolicy):
    """What both variants have in common: laws that are kept fresh, and the choice among models."""

    name = "orloj"

    def __init__(self, rules: OrlojRules) -> None:
        super().__init__()
        self._rules = rules
        self._times: dict[str, RunTimes] = {}
        self._apps: dict[str, dict[str, int]] = {}
        self._arrivals: dict[str, dict[str, float]] = {}
        self._refreshed_s: dict[str, float] = {}
        self._fresh: set[str] = set()

    def add_model(self, model: str, cost: ModelCost) -> None:
        super().add_model(model, cost)
        self._times.setdefault(model, RunTimes(self._rules.laws, self._rules.prior.get(model)))
        self._apps.setdefault(model, {})
        self._arrivals.setdefault(model, {})
        self._refreshed_s.pop(model, None)

    def _is_due(self, model: str, now_s: float) -> bool:
        since_s = abs(now_s - self._refreshed_s.get(model, math.inf))
        return since_s >= self._rules.laws.refresh_s and (model in self._fresh or math.isinf(since_s))

    def _present_laws(self, model: str, now_s: float) -> tuple[dict[str, Law], dict[str, float]]:
        """The law and the recent share of each application of the model."""
        arrivals = self._arrivals[model]
        shares = {app: arrivals.get(app, 0.0) + 1e-3 for app in self._apps[model]} or {"": 1.0}
        laws = self._times[model].laws(list(shares), now_s) or dict.fromkeys(shares, UNKNOWN)
        self._arrivals[model] = {app: share / 2 for app, share in arrivals.items()}
        self._refreshed_s[model] = now_s
        self._fresh.discard(model)
        return laws, shares

    def _mark(self, request: Request) -> int:
        apps, arrivals = self._apps[request.model], self._arrivals[request.model]
        if request.app not in apps:
            apps[request.app] = len(apps)
            self._refreshed_s.pop(request.model, None)
        arrivals[request.app] = arrivals.get(request.app, 0.0) + 1.0
        return apps[request.app]

    def _learn(self, model: str, app: str, alone_s: float, now_s: float) -> None:
        self._times[model].add(app, alone_s, now_s)
        self._fresh.add(model)

    def _ran(self, batch: Batch, took_s: float, now_s: float) -> None:
        if self._times[batch.model].add_batch(batch, self._cost[batch.model], took_s, now_s):
            self._fresh.add(batch.model)

    def _decide(self, now_s: float) -> Decision:
        dropped: list[Request] = []
        for model, queue in self._queue.items():
            if len(queue):
                self._refresh(model, now_s)
                dropped += self._hopeless(model, queue, now_s)
        best = self._choose(now_s)
        if best is None:
            return Decision(dropped=tuple(dropped))
        requests = self._queue[best.model].take(best.places.tolist())
        batch = Batch(model=best.model, requests=requests, size=best.size, expected_s=best.expected_s)
        return Decision(batch=batch, dropped=tuple(dropped))

    def _refresh(self, model: str, now_s: float) -> None:
        raise NotImplementedError

    def _hopeless(self, model: str, queue: Queue, now_s: float) -> tuple[Request, ...]:
        raise NotImplementedError

    def _choose(self, now_s: float) -> Choice | None:
        """What to run; None: nothing waits."""
        raise NotImplementedError


class PrintedOrloj(LawfulPolicy):
    """Algorithm 4.1."""

    name = "orloj-printed"

    def __init__(self, rules: OrlojRules | None = None) -> None:
        super().__init__(rules or OrlojRules(variant="printed"))
        self._tables: dict[str, SizeTables] = {}

    def _refresh(self, model: str, now_s: float) -> None:
        if self._is_due(model, now_s):
            laws, shares = self._present_laws(model, now_s)
            self._tables[model] = size_tables(batch_laws(member_law(laws, shares), self._cost[model]), self._rules)

    def _hopeless(self, model: str, queue: Queue, now_s: float) -> tuple[Request, ...]:
        return queue.take_before(now_s + self._tables[model].est_s[0])

    def _choose(self, now_s: float) -> Choice | None:
        choices = [self._choice(model, queue, now_s) for model, queue in self._queue.items() if len(queue)]
        return max((c for c in choices if c is not None), key=lambda c: c.worth, default=None)

    def _choice(self, model: str, queue: Queue, now_s: float) -> Choice | None:
        tables = self._tables[model]
        choice = printed_choice(queue.deadline_s, tables.est_s, tables.sizes, now_s)
        if choice is None:
            return None
        i, first = choice
        scores = tables.scores[i].at(queue.deadline_s[first:] - now_s) * queue.penalty[first:]
        best = best_places(scores, tables.sizes[i])
        return Choice(
            model=model,
            worth=float(scores[best].sum()),
            places=best + first,
            size=tables.sizes[i],
            expected_s=tables.laws[i].expected,
        )


class Orloj(LawfulPolicy):
    """Every size of every group of applications is a candidate; the one worth most runs."""

    name = "orloj"

    def __init__(self, rules: OrlojRules | None = None) -> None:
        super().__init__(rules or OrlojRules())
        self._found: dict[str, Candidates] = {}
        self._scores: dict[str, CandidateScores] = {}

    def _refresh(self, model: str, now_s: float) -> None:
        if not self._is_due(model, now_s):
            return
        laws, shares = self._present_laws(model, now_s)
        self._found[model] = Candidates.of(list(laws.values()), list(shares.values()), self._cost[model], self._rules.give_up)
        self._scores[model] = CandidateScores(self._found[model], self._rules.b_per_s)

    def _hopeless(self, model: str, queue: Queue, now_s: float) -> tuple[Request, ...]:
        hopeless_s = self._found[model].hopeless_s
        # In order of deadlines: none behind the first that has more time than anybody needs.
        until_s = now_s + float(hopeless_s.max()) + float(queue.after_s.max())
        some = slice(0, int(np.searchsorted(queue.deadline_s, until_s, side="right")))
        late = queue.deadline_s[some] - queue.after_s[some] - now_s < hopeless_s[queue.mark[some]]
        return queue.take(np.flatnonzero(late).tolist())

    def _choose(self, now_s: float) -> Choice | None:
        looked = [self._look(model, queue, now_s) for model, queue in self._queue.items() if len(queue)]
        if not looked:
            return None
        i, c, best = choose(looked, self._rules.margin)
        part = looked[i]
        best = best[part.scores[c][best] > 0]
        if not len(best):  # worthless (a penalty of 0), but not hopeless: one after the other
            c, best = 0, np.zeros(1, np.int64)
        return Choice(
            model=part.model,
            worth=float(part.sums[c]),
            places=best,
            size=int(part.size[c]),
            expected_s=float(part.expected_s[c]),
        )

    def _look(self, model: str, queue: Queue, now_s: float) -> Looked:
        found = self._found[model]
        first = slice(0, max(self._rules.look_at, int(found.size[-1])))
        apps, after_s, penalty = queue.mark[first], queue.after_s[first], queue.penalty[first]
        slack_s = queue.deadline_s[first] - after_s - now_s
        scores = self._scores[model].at(slack_s)
        scores *= penalty
        if after_s.any():  # k members that each need as much again: k P / (E[L] + k after)
            scores *= found.expected_s[:, None] / (found.expected_s[:, None] + found.size[:, None] * after_s)
        if found.group[-1] > 0:
            scores *= found.app_class[apps] <= found.group[:, None]
        return Looked(
            model=model,
            scores=scores,
            sums=sums_of_best(scores, found.size),
            size=found.size,
            expected_s=found.expected_s,
            careful_s=found.careful_s,
            slack_s=slack_s,
            penalty=penalty,
            own_s=found.work_s[apps],
            after_s=after_s,
            together=queue.together[first],
            chance=self._scores[model].chance,
        )


def sums_of_best(scores: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """float64 (C,): the sum of the `sizes` largest of each row. scores: float64 (C, N), N > 0; sizes: int64 (C,)."""
    falling = -scores
    falling.sort(axis=1)
    sums = falling[:, : sizes.max()].cumsum(axis=1)
    return -sums[np.arange(len(sizes)), np.minimum(sizes, scores.shape[1]) - 1]


def orloj(rules: OrlojRules | None = None) -> LawfulPolicy:
    """The variant that the rules ask for."""
    rules = rules or OrlojRules()
    return PrintedOrloj(rules) if rules.variant == "printed" else Orloj(rules)
