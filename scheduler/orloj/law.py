"""Laws of run times: histograms, the longest of a batch, the batch itself. Card: Orloj, sections 2 and 4 (thesis eq. 4.3 to 4.9).

A law is a histogram whose mass is spread evenly inside each bin, plus one overflow atom for what lies beyond the last bin, so a heavy
tail counts in full. The unit of time is the caller's (the policies use seconds).

Changed against the text: the law of the longest is the product of distribution functions, not a sum over all subsets of the batch
(eq. 4.8 is the derivative of the product, at 2^k terms); the order statistic under the integral of eq. 4.5 and the missing factor
1 / (c1 k) of eq. 4.9 are put right; a batch's members are drawn from the mixture of the applications' laws.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

#: Masses need to sum to 1 this closely.
MASS_TOLERANCE = 1e-6


@dataclass(frozen=True, kw_only=True, eq=False)
class Law:
    """A run time L. edges: float64 (B + 1,), ascending, >= 0; mass: float64 (B,), P(edges[i] <= L < edges[i + 1]), even inside a bin;
    over: mass beyond the last edge, all of it at `over_at`. Raises ValueError when that is no distribution."""

    edges: np.ndarray
    mass: np.ndarray
    over: float = 0.0
    over_at: float = 0.0

    def __post_init__(self) -> None:
        edges, mass = self.edges, self.mass
        if edges.ndim != 1 or len(edges) < 2 or mass.shape != (len(edges) - 1,):
            raise ValueError(f"a law needs (B + 1,) edges and (B,) masses, got {edges.shape} and {mass.shape}")
        if not (
            np.isfinite(edges).all() and np.isfinite(mass).all() and math.isfinite(self.over) and math.isfinite(self.over_at)
        ):
            raise ValueError("a law must hold finite numbers")
        if edges[0] < 0 or (np.diff(edges) <= 0).any():
            raise ValueError("edges of a law must ascend from 0 or more")
        if (mass < 0).any() or self.over < 0 or abs(mass.sum() + self.over - 1) > MASS_TOLERANCE:
            raise ValueError(f"masses of a law must be 0 or more and sum to 1, got {mass.sum() + self.over:g}")
        if self.over > 0 and self.over_at < edges[-1]:
            raise ValueError("the overflow of a law must lie at or beyond its last edge")

    @cached_property
    def at_edges(self) -> np.ndarray:
        """F at each edge, float64 (B + 1,)."""
        return np.concatenate(([0.0], np.cumsum(self.mass)))

    @property
    def top(self) -> float:
        """The longest run time it knows."""
        return self.over_at if self.over > 0 else float(self.edges[-1])

    def cdf(self, at: np.ndarray | float) -> np.ndarray:
        """P(L <= at), same shape as `at`."""
        at = np.asarray(at, float)
        inside = np.interp(at, self.edges, self.at_edges)
        return inside + self.over * (at >= self.over_at) if self.over > 0 else inside

    def mean(self) -> float:
        """E[L]."""
        return self.expected_max(1)

    def expected_max(self, k: int) -> float:
        """E of the longest of k independent ones: the integral of 1 - F^k (eq. 4.5), exact for mass spread evenly inside bins."""
        low, high = self.at_edges[:-1], self.at_edges[1:]
        risen = high - low
        flat = low**k
        sloped = (high ** (k + 1) - low ** (k + 1)) / ((k + 1) * np.where(risen > 1e-12, risen, 1.0))
        below = float(np.sum(np.diff(self.edges) * np.where(risen > 1e-12, sloped, flat)))
        beyond = (1 - self.at_edges[-1] ** k) * (self.over_at - self.edges[-1]) if self.over > 0 else 0.0
        return float(self.edges[-1]) - below + float(beyond)

    def longest_of(self, k: int) -> Law:
        """The law of the longest of k independent ones on the same bins. Spread evenly inside them its mean is a little low: take
        `expected_max` for that."""
        powers = self.at_edges**k
        return Law(
            edges=self.edges, mass=np.diff(powers), over=max(0.0, 1.0 - float(powers[-1])), over_at=max(self.top, self.over_at)
        )

    def mapped(self, offset: float, factor: float) -> Law:
        """The law of offset + factor * L, factor > 0: edges move, masses stay."""
        return Law(
            edges=offset + factor * self.edges, mass=self.mass, over=self.over, over_at=offset + factor * max(self.top, 0.0)
        )

    def quantile(self, q: float) -> float:
        """The smallest time that L stays within with probability q (0-1)."""
        if q >= self.at_edges[-1]:
            return self.top if self.over > 0 or q >= 1 else float(self.edges[-1])
        i = int(np.searchsorted(self.at_edges, q, side="right")) - 1
        return float(self.edges[i] + (q - self.at_edges[i]) / self.mass[i] * (self.edges[i + 1] - self.edges[i]))


def law_of(samples: np.ndarray, edges: np.ndarray) -> Law:
    """The histogram of float64 (N,) samples, N > 0, on these edges. Below the first edge counts in the first bin; beyond the last is
    the overflow, at the mean of what lies there."""
    beyond = samples[samples > edges[-1]]
    inside = np.clip(samples[samples <= edges[-1]], edges[0], edges[-1])
    counted = np.histogram(inside, edges)[0] / len(samples)
    over = len(beyond) / len(samples)
    return Law(edges=edges, mass=counted, over=over, over_at=float(beyond.mean()) if len(beyond) else 0.0)


def edges_for(samples: np.ndarray, bins: int = 64, top_quantile: float = 0.995) -> np.ndarray:
    """Edges that fit float64 (N,) samples, N > 0: even from the smallest to the `top_quantile`; what lies beyond is overflow. A run time
    that never varies gets one narrow bin."""
    low = float(samples.min())
    high = float(np.quantile(samples, top_quantile, method="higher"))
    if high - low <= 1e-3 * high:
        return np.array([0.9995 * low, 1.0005 * max(high, 1e-9)])
    step = (high - low) / bins
    return low + step * np.arange(bins + 1)


def on_even_edges(law: Law, bins: int = 64) -> Law:
    """The same law on bins of one width."""
    edges = np.linspace(law.edges[0], law.edges[-1], bins + 1)
    return Law(edges=edges, mass=np.diff(np.interp(edges, law.edges, law.at_edges)), over=law.over, over_at=law.over_at)


def mixture(laws: Sequence[Law], weights: Sequence[float]) -> Law:
    """sum of w_a F_a: the law of a member whose application is drawn by `weights` (> 0 in sum)."""
    if len(laws) == 1:
        return laws[0]
    share = np.asarray(weights, float) / math.fsum(weights)
    edges = laws[0].edges if all(law.edges is laws[0].edges for law in laws) else _union(laws)
    on_edges = sum(w * np.interp(edges, law.edges, law.at_edges) for w, law in zip(share, laws, strict=True))
    over = float(sum(w * law.over for w, law in zip(share, laws, strict=True)))
    at = float(sum(w * law.over * law.over_at for w, law in zip(share, laws, strict=True))) / over if over > 0 else 0.0
    return Law(edges=edges, mass=np.diff(on_edges), over=over, over_at=max(at, float(edges[-1])) if over > 0 else 0.0)


def longest(laws: Sequence[Law]) -> Law:
    """The law of the longest of independent members with these laws: F_max = product of F_i, differenced over the bins of all."""
    edges = _union(laws)
    on_edges = np.prod([np.interp(edges, law.edges, law.at_edges) for law in laws], axis=0)
    over = 1.0 - float(on_edges[-1])
    mass = np.diff(on_edges)
    if over <= MASS_TOLERANCE:
        return Law(edges=edges, mass=mass / mass.sum())
    return Law(edges=edges, mass=mass, over=over, over_at=max(law.top for law in laws))


def expected_longest(laws: Sequence[Law]) -> float:
    """E of the longest of independent members with these laws, exact: the product of distribution functions is a polynomial between
    edges, and Gauss's rule with enough nodes integrates it without error."""
    tops = np.array([law.top for law in laws])
    edges = np.unique(np.concatenate([_union(laws), tops]))
    nodes, weights = np.polynomial.legendre.leggauss(len(laws) // 2 + 1)
    middle, half = (edges[1:] + edges[:-1]) / 2, np.diff(edges) / 2
    at = middle[:, None] + half[:, None] * nodes
    below = np.prod([law.cdf(at) for law in laws], axis=0) @ weights
    return float(edges[-1] - np.sum(half * below))


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchLaw:
    """How long a batch of `size` takes (L_B). law: of the whole batch; expected: E[L_B], exact (the mean of `law` is a little lower)."""

    size: int
    law: Law
    expected: float


def batch_law(member: Law, size: int, c0: float, c1: float) -> BatchLaw:
    """c0 + c1 * size * (longest of `size` members drawn by `member`): eq. 4.4."""
    if c1 <= 0:
        raise ValueError(f"c1 must be above 0, got {c1:g}")
    law = member.longest_of(size).mapped(c0, c1 * size)
    return BatchLaw(size=size, law=law, expected=c0 + c1 * size * member.expected_max(size))


def _union(laws: Sequence[Law]) -> np.ndarray:
    return np.unique(np.concatenate([law.edges for law in laws]))
