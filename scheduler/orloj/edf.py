"""Earliest deadline first with batches: what is late is dropped, the batch is the largest that by mean run times saves the first."""

from __future__ import annotations

import numpy as np

from scheduler.orloj.fifo import InOrder
from scheduler.orloj.types import Decision, Request


class Edf(InOrder):
    """The model that holds the earliest deadline; its earliest requests, in the largest size that can be filled and by the mean ends
    in time for the earliest of them. One that no size saves is tried alone: by chance it is short."""

    name = "edf"

    def _decide(self, now_s: float) -> Decision:
        dropped: list[Request] = []
        for queue in self._queue.values():
            dropped += queue.take_before(now_s)
        model = self._most_urgent()
        if model is None:
            return Decision(dropped=tuple(dropped))
        queue = self._queue[model]
        left_s = queue.requests[0].deadline_s - now_s
        fitting = [k for k in self._cost[model].sizes if k <= len(queue) and self.expected_s(model, k) <= left_s]
        return Decision(batch=self._batch(model, np.arange(max(fitting, default=1))), dropped=tuple(dropped))
