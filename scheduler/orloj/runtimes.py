"""Laws of run times that live: samples per application in a window, the prior before there are any, what a batch of each size takes.

Card: Orloj, section 3.3 (profiler window, periodic adoption) and the advice [G] on cold starts. Ours: a batch of one counts as a sample,
and while a model has no sample at all the batch law is inverted (its longest member took (took - c0) / (c1 k)).

A batch of one is not inverted so, but compared with what such a one usually takes: most of what run times differ by on a box is the
machine, not the picture, and to subtract c0 would stretch that by 1 / c1. A law that is too wide says that no batch pays, because its
longest member would be long.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scheduler.orloj.law import BatchLaw, Law, batch_law, edges_for, law_of, mixture, on_even_edges
from scheduler.orloj.types import Batch, ModelCost

#: Weight of a new sample in the mean of what is usual.
USUAL_PART = 1 / 16


@dataclass(frozen=True, kw_only=True)
class LawRules:
    """window_s: samples older than this are forgotten (drift), but for the newest `at_least`; most: newest samples kept per application;
    bins: per histogram; refresh_s: how often new samples are adopted; at_least: an application with fewer takes the law of all of its
    model's samples."""

    window_s: float = 600.0
    most: int = 512
    bins: int = 64
    refresh_s: float = 1.0
    at_least: int = 8


class RunTimes:
    """The samples of one model. prior: the law before the first sample, None: a run time is taken as 0 (everything is tried)."""

    def __init__(self, rules: LawRules, prior: Law | None = None) -> None:
        self._rules = rules
        self._prior = None if prior is None else on_even_edges(prior, rules.bins)
        self._samples: dict[str, deque[tuple[float, float]]] = {}
        self._guessed: deque[tuple[float, float]] = deque(maxlen=rules.most)
        self._usual_s = 0.0  # moving mean of the samples, 0: there is none

    def add(self, app: str, alone_s: float, now_s: float) -> None:
        self._usual_s += (alone_s - self._usual_s) * (USUAL_PART if self._usual_s else 1.0)
        self._samples.setdefault(app, deque(maxlen=self._rules.most)).append((now_s, alone_s))

    def add_batch(self, batch: Batch, cost: ModelCost, took_s: float, now_s: float) -> bool:
        """What a served batch tells of stand-alone run times; False: nothing that is used."""
        longest_s = max((took_s - cost.c0_s) / (cost.c1 * batch.size), 0.0)
        if batch.size == 1:
            usual_s = self._usual_s
            alone_s = took_s * usual_s / (cost.c0_s + cost.c1 * usual_s) if usual_s else longest_s
            self.add(batch.requests[0].app, alone_s, now_s)
        elif any(self._samples.values()):
            return False
        else:
            self._guessed.append((now_s, longest_s))
        return True

    def laws(self, apps: Sequence[str], now_s: float) -> dict[str, Law]:
        """The law of each of these applications, all on the same even edges; empty: nothing is known and there is no prior."""
        for held in (*self._samples.values(), self._guessed):
            while len(held) > self._rules.at_least and held[0][0] < now_s - self._rules.window_s:
                held.popleft()
        known = {app: np.array([s for _, s in held]) for app, held in self._samples.items() if held}
        if not known and self._guessed:
            known = {"": np.array([s for _, s in self._guessed])}
        if not known:
            return dict.fromkeys(apps, self._prior) if self._prior is not None else {}
        pooled = np.concatenate(list(known.values()))
        edges = edges_for(pooled, self._rules.bins)
        own = {app: law_of(s, edges) for app, s in known.items() if len(s) >= self._rules.at_least}
        rest = law_of(pooled, edges)
        return {app: own.get(app, rest) for app in apps}


def batch_laws(member: Law, cost: ModelCost) -> dict[int, BatchLaw]:
    """The law of a batch of each of the model's sizes."""
    return {size: batch_law(member, size, cost.c0_s, cost.c1) for size in cost.sizes}


def member_law(laws: dict[str, Law], shares: dict[str, float]) -> Law:
    """The law of one member: the applications' laws, weighted by their recent share of the requests."""
    return mixture(list(laws.values()), [shares[app] for app in laws])
