"""What it is worth to run a request now: expected loss avoided per unit of the device's time. Card: Orloj, section 5 (thesis eq. 4.2).

With slack s = D - t, run time L of the batch and an anticipated delay tau ~ Exp(b) if the request is not chosen now:
p = (E[C(t + tau + L)] - E[C(t + L)]) / E[L] = (c / E[L]) * integral_0^s h(l) e^(-b (s - l)) dl, with h the density of L.

Comfortable requests score about c / E[L], earlier deadlines a little more; requests that may be too late already score less; hopeless
ones 0. For b -> 0 it is (c / E[L]) * P(L <= s). Only the slack matters, never the time of day, so nothing can overflow.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scheduler.orloj.law import BatchLaw, Law


def score(law: Law, expected: float, slack: np.ndarray | float, *, b: float, penalty: np.ndarray | float = 1.0) -> np.ndarray:
    """Eq. 4.2 as printed: the three branches, bin by bin. slack: any shape; b: per unit of time, 0 allowed (the limit). The plain
    reference; `ScoreTable` gives the same numbers faster."""
    s = np.asarray(slack, float)[..., None]
    left, right, width = law.edges[:-1], law.edges[1:], np.diff(law.edges)
    density = law.mass / width
    passed = np.exp(-b * np.maximum(s - right, 0.0)) * _faded(width, b)  # t < D - l2
    within = _faded(np.clip(s - left, 0.0, width), b)  # D - l2 <= t < D - l1
    per_bin = density * np.where(s > right, passed, np.where(s > left, within, 0.0))
    total = per_bin.sum(axis=-1)
    if law.over > 0:
        beyond = s[..., 0] - law.over_at
        total = total + law.over * np.where(beyond >= 0, np.exp(-b * np.maximum(beyond, 0.0)), 0.0)
    return np.asarray(penalty) * total / expected


def score_steps(law: Law, expected: float, now: float, steps: Sequence[tuple[float, float]], *, b: float) -> float:
    """Several deadlines (C.2). steps: (deadline, cost from then on), both ascending; the score is the sum over the single steps."""
    total, level = 0.0, 0.0
    for deadline, cost in steps:
        total += float(score(law, expected, deadline - now, b=b, penalty=cost - level))
        level = cost
    return total


class ScoreTable:
    """The score over slack for one batch law, made once and read for thousands of requests.

    The integral obeys g(s) = g(e) e^(-b (s - e)) + h (1 - e^(-b (s - e))) / b for s in the bin that begins at e, so its values at the
    edges give every other one exactly; nothing is interpolated."""

    def __init__(self, batch: BatchLaw, b: float) -> None:
        law = batch.law
        self._b = b
        self._edges, density = law.edges, law.mass / np.diff(law.edges)
        faded, kept = _faded(np.diff(law.edges), b), np.exp(-b * np.diff(law.edges))
        at_edges = [0.0]
        for h, grown, keep in zip(density, faded, kept, strict=True):
            at_edges.append(at_edges[-1] * keep + h * grown)
        # before the first bin: nothing; beyond the last: what was gathered fades
        self._from = np.concatenate(([law.edges[0]], law.edges))
        self._at = np.concatenate(([0.0], at_edges)) / batch.expected
        self._density = np.concatenate(([0.0], density, [0.0])) / batch.expected
        self._over, self._over_at = law.over / batch.expected, law.over_at

    def at(self, slack: np.ndarray) -> np.ndarray:
        """Scores for penalty 1, float64 (N,), of float64 (N,) slacks."""
        i = np.searchsorted(self._edges, slack, side="right")
        since = np.maximum(slack - self._from[i], 0.0)
        if self._b <= 0:
            found = self._at[i] + self._density[i] * since
        else:
            faded = np.expm1(-self._b * since)
            found = self._at[i] * (1.0 + faded) - self._density[i] * (faded / self._b)
        if self._over <= 0:
            return found
        beyond = slack - self._over_at
        return found + np.where(beyond >= 0, self._over * np.exp(-self._b * np.maximum(beyond, 0.0)), 0.0)


def _faded(width: np.ndarray, b: float) -> np.ndarray:
    """integral_0^width e^(-b x) dx, exact also for a tiny b."""
    return -np.expm1(-b * width) / b if b > 0 else width
