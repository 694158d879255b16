"""After Clockwork (Gujarati et al., OSDI 2020, sections 4 and 5): run times are points, so the next action is planned before the present
one has ended, for the moment at which it should end. An action that cannot begin in its time is cancelled, with all its requests."""

from __future__ import annotations

from collections import deque

import numpy as np

from scheduler.orloj.fifo import InOrder
from scheduler.orloj.types import Batch, Decision, ModelCost, Request

#: Newest measurements that a prediction is made of.
NEWEST = 10
#: An action may begin this part of the time of the one before it late: what a constant run time's noise needs.
TOLERANCE = 0.1


class Clockwork(InOrder):
    """Per model and size a point prediction: the mean of the last measured runs. Earliest deadline first, largest size that ends in
    time. With run times that vary, about every other action comes too late to begin (the thesis measured finish rates near 0.5)."""

    name = "clockwork"

    def __init__(self) -> None:
        super().__init__()
        self._measured: dict[tuple[str, int], deque[float]] = {}
        self._next: Batch | None = None
        self._latest_start_s = 0.0

    def expected_s(self, model: str, size: int) -> float:
        """The point prediction."""
        runs = self._measured.get((model, size))
        return sum(runs) / len(runs) if runs else super().expected_s(model, size)

    def add_model(self, model: str, cost: ModelCost) -> None:
        super().add_model(model, cost)
        if self._next is not None and self._next.model == model:  # planned by the old cost
            for request in self._next.requests:
                self._queue[model].add(request, self._mark(request))
            self._next = None

    def withdraw(self, id: int) -> bool:
        if self._next is not None and any(r.id == id for r in self._next.requests):
            rest = tuple(r for r in self._next.requests if r.id != id)
            planned = self._next
            self._next = (
                Batch(model=planned.model, requests=rest, size=planned.size, expected_s=planned.expected_s) if rest else None
            )
            del self._waiting[id]
            return True
        return super().withdraw(id)

    def _ran(self, batch: Batch, took_s: float, now_s: float) -> None:
        self._measured.setdefault((batch.model, batch.size), deque(maxlen=NEWEST)).append(took_s)

    def _decide(self, now_s: float) -> Decision:
        dropped: list[Request] = []
        batch, self._next = self._next, None
        if batch is not None and now_s > self._latest_start_s:
            dropped += batch.requests
            batch = None
        if batch is None:
            batch = self._plan(now_s, dropped)
        if batch is not None:
            ends_s = now_s + batch.expected_s
            self._latest_start_s = ends_s + TOLERANCE * batch.expected_s
            self._next = self._plan(ends_s, [], drop=False)
        return Decision(batch=batch, dropped=tuple(dropped))

    def _plan(self, starts_s: float, dropped: list[Request], *, drop: bool = True) -> Batch | None:
        """The action that begins at `starts_s`; what cannot end in time from there is dropped, or left alone."""
        for model, queue in self._queue.items() if drop else ():
            dropped += queue.take_before(starts_s + self.expected_s(model, 1))
        urgent = []
        for i, (model, queue) in enumerate(self._queue.items()):
            first = int(np.searchsorted(queue.deadline_s, starts_s + self.expected_s(model, 1)))
            if first < len(queue):
                urgent.append((queue.deadline_s[first], i, model, first))
        if not urgent:
            return None
        deadline_s, _, model, first = min(urgent)
        count = len(self._queue[model]) - first
        fits = [k for k in self._cost[model].sizes if k <= count and starts_s + self.expected_s(model, k) <= deadline_s]
        return self._batch(model, np.arange(first, first + max(fits, default=1)))
