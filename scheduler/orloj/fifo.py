"""First come, first served, in the largest batch that can be filled. Nothing is dropped: the baseline of doing nothing."""

from __future__ import annotations

import numpy as np

from scheduler.orloj.types import Batch, Decision, ModelCost, Request
from scheduler.orloj.waiting import QueuedPolicy

#: Weight of the newest sample in the running mean, once there are enough.
MEAN_STEP = 0.02


class InOrder(QueuedPolicy):
    """Base of those that serve in order of arrival, and know a model by the mean of its run times."""

    def __init__(self) -> None:
        super().__init__()
        self._arrival = 0
        self._mean_s: dict[str, float] = {}
        self._samples: dict[str, int] = {}

    def add_model(self, model: str, cost: ModelCost) -> None:
        super().add_model(model, cost)
        self._mean_s.setdefault(model, 0.0)

    def expected_s(self, model: str, size: int) -> float:
        """What a batch is thought to take: c0 + c1 * size * mean, as if every member were average."""
        cost = self._cost[model]
        return cost.c0_s + cost.c1 * size * self._mean_s[model]

    def _mark(self, request: Request) -> int:
        self._arrival += 1
        return self._arrival

    def _learn(self, model: str, app: str, alone_s: float, now_s: float) -> None:
        self._samples[model] = self._samples.get(model, 0) + 1
        step = max(MEAN_STEP, 1 / self._samples[model])
        self._mean_s[model] += step * (alone_s - self._mean_s[model])

    def _oldest_model(self) -> str | None:
        held = [(int(queue.mark.min()), model) for model, queue in self._queue.items() if len(queue)]
        return min(held)[1] if held else None

    def _in_order(self, model: str) -> np.ndarray:
        """Places of the model's queue in order of arrival."""
        return np.argsort(self._queue[model].mark)

    def _batch(self, model: str, places: np.ndarray) -> Batch:
        size = self._fits(model, len(places))
        requests = self._queue[model].take(places.tolist())
        return Batch(model=model, requests=requests, size=size, expected_s=self.expected_s(model, size))


class Fifo(InOrder):
    """In order of arrival, the model of the oldest request, as many as wait up to the largest size."""

    name = "fifo"

    def _decide(self, now_s: float) -> Decision:
        model = self._oldest_model()
        if model is None:
            return Decision()
        return Decision(batch=self._batch(model, self._in_order(model)[: self._cost[model].sizes[-1]]))
