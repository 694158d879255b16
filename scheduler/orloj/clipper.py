"""After Clipper (Crankshaw et al., NSDI 2017, section 4.3): batches in order of arrival, their size found by additive increase,
multiplicative decrease on the latency observed. It reacts; it plans nothing and drops nothing."""

from __future__ import annotations

from scheduler.orloj.fifo import InOrder
from scheduler.orloj.types import Batch, Decision

#: A batch that took longer than its objective makes the size shrink by this.
BACK_OFF = 0.9


class Clipper(InOrder):
    """One size limit per model. A full batch that ended within the objective raises it by 1, one that did not multiplies it by 0.9. The
    objective is the shortest time from release to deadline in the batch."""

    name = "clipper"

    def __init__(self) -> None:
        super().__init__()
        self._limit: dict[str, float] = {}

    def _decide(self, now_s: float) -> Decision:
        model = self._oldest_model()
        if model is None:
            return Decision()
        return Decision(batch=self._batch(model, self._in_order(model)[: int(self._limit.get(model, 1.0))]))

    def _ran(self, batch: Batch, took_s: float, now_s: float) -> None:
        limit = self._limit.get(batch.model, 1.0)
        objective_s = min(r.deadline_s - r.released_s for r in batch.requests)
        if took_s > objective_s:
            limit = max(1.0, limit * BACK_OFF)
        elif len(batch.requests) >= int(limit):
            limit = min(limit + 1.0, float(self._cost[batch.model].sizes[-1]))
        self._limit[batch.model] = limit
