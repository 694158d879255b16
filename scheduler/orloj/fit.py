"""What a batch costs, fitted: c0 and c1 of eq. 4.4, and how much slower everything is beside a training."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import nnls

from scheduler.orloj.types import ModelCost

#: c1 that a fit gives at least: a batch of nothing but fixed cost would make every size look alike.
C1_MIN = 1e-6


@dataclass(frozen=True, kw_only=True)
class BatchRun:
    """A measured batch. size: pictures it was run as; longest_s: the longest stand-alone run time among them; took_s: the batch."""

    size: int
    longest_s: float
    took_s: float


def fit_cost(runs: Sequence[BatchRun], sizes: tuple[int, ...]) -> ModelCost:
    """Least squares of took = c0 + c1 * size * longest with both 0 or more. Raises ValueError without a run or for one that is none."""
    if not runs:
        raise ValueError("a cost needs at least one measured batch")
    table = np.array([[1.0, run.size * run.longest_s, run.took_s] for run in runs])
    if not np.isfinite(table).all() or (table < 0).any() or (table[:, 1] <= 0).any():
        raise ValueError("measured batches need sizes and times above 0")
    (c0_s, c1), _ = nnls(table[:, :2], table[:, 2])
    return ModelCost(c0_s=float(c0_s), c1=max(float(c1), C1_MIN), sizes=sizes)


class Slowdown:
    """How much longer batches take in each co-location state (beside a training, say) than on the device alone.

    Ours: one factor per state on c0 and c1, the median of what recent batches took over what was expected. The laws of stand-alone run
    times stay those of the quiet device, since that is where they are sampled; a histogram per state would need samples of every state,
    and a training slows launch and compute alike. Hand `cost(state)` to `BatchPolicy.add_model` whenever the state changes."""

    def __init__(self, quiet: ModelCost, *, newest: int = 64, at_least: int = 5) -> None:
        self._quiet = quiet
        self._newest, self._at_least = newest, at_least
        self._ratios: dict[str, deque[float]] = {}

    def renew(self, quiet: ModelCost) -> None:
        """The model's cost on the quiet device was measured anew; what states do to it stays."""
        self._quiet = quiet

    def observe(self, state: str, quiet_expected_s: float, took_s: float) -> None:
        """A batch in `state` took so long; quiet_expected_s: what it would be expected to take on the device alone (> 0)."""
        if not (math.isfinite(took_s) and math.isfinite(quiet_expected_s)) or took_s < 0 or quiet_expected_s <= 0:
            raise ValueError(f"a batch needs times above 0, got {took_s} for {quiet_expected_s} expected")
        self._ratios.setdefault(state, deque(maxlen=self._newest)).append(took_s / quiet_expected_s)

    def factor(self, state: str) -> float:
        """1 until enough batches have run in the state."""
        ratios = self._ratios.get(state, ())
        return float(np.median(ratios)) if len(ratios) >= self._at_least else 1.0

    def cost(self, state: str) -> ModelCost:
        """The model's cost in the state."""
        factor = self.factor(state)
        return replace(self._quiet, c0_s=self._quiet.c0_s * factor, c1=max(self._quiet.c1 * factor, C1_MIN))
