"""A batch policy on a device that is not always its own: what batches cost follows what runs beside them.

The laws of run times are those of the quiet device. As long as something else runs there (`state`, "" when nothing does), the policy is
told costs that are `Slowdown.factor` times as much, and maps the times of its batches back by the same costs. So a law that was learnt
while a training ran does not outlive the training, and one that was learnt before it does not promise too much.
"""

from __future__ import annotations

from collections.abc import Callable

from scheduler.orloj.fit import Slowdown
from scheduler.orloj.types import Batch, BatchPolicy, Decision, ModelCost, Request

#: A factor is told when it has changed by more than this part: every telling renews the policy's tables.
SAME_FRAC = 0.1


class Beside:
    """A `BatchPolicy` around another one. state: what runs beside the worker now; called under the caller's lock, returns at once."""

    def __init__(self, inside: BatchPolicy, state: Callable[[], str]) -> None:
        self.name = inside.name
        self._inside, self._state = inside, state
        self._slow: dict[str, Slowdown] = {}
        self._told: dict[str, float] = {}  # model -> factor that the policy knows
        self._seen = ""  # state at the last decision

    def factor(self, model: str) -> float:
        """By how much a model's batches are taken to be slower just now. KeyError for an unknown model."""
        return self._told[model]

    def add_model(self, model: str, cost: ModelCost) -> None:
        """cost: on the quiet device, or in another state as long as it is not known there."""
        known = self._slow.get(model)
        if known is None:
            self._slow[model] = Slowdown(cost)
        else:
            known.renew(cost)
        self._tell(model)

    def submit(self, request: Request, now_s: float) -> None:
        self._inside.submit(request, now_s)

    def withdraw(self, id: int) -> bool:
        return self._inside.withdraw(id)

    def decide(self, now_s: float) -> Decision:
        self._seen = self._state()
        for model, told in list(self._told.items()):
            if abs(self._factor(model) - told) > SAME_FRAC * told:
                self._tell(model)
        return self._inside.decide(now_s)

    def sample(self, model: str, app: str, alone_s: float, now_s: float) -> None:
        self._inside.sample(model, app, alone_s / self._told.get(model, 1.0), now_s)

    def ran(self, batch: Batch, took_s: float, now_s: float) -> None:
        self._inside.ran(batch, took_s, now_s)
        known = self._slow.get(batch.model)
        if known is None or not self._seen or self._state() != self._seen or batch.expected_s <= 0:
            return  # begun in another state than it ended in: it tells of neither
        known.observe(self._seen, batch.expected_s / self._told[batch.model], took_s)

    def waiting(self) -> int:
        return self._inside.waiting()

    def _factor(self, model: str) -> float:
        return self._slow[model].factor(self._seen) if self._seen else 1.0

    def _tell(self, model: str) -> None:
        self._told[model] = self._factor(model)
        self._inside.add_model(model, self._slow[model].cost(self._seen))
