"""All batches a model could run next, scored in one sweep: every group of applications in every size. Ours (see `policy`).

The score is the card's (section 5), exact for mass spread evenly inside bins. All laws of a model lie on the same even edges, and a
batch's law is those edges stretched by c1 * size and moved by c0, so the bin of a slack is found by arithmetic for all at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scheduler.orloj.law import BatchLaw, Law, batch_law, mixture
from scheduler.orloj.types import ModelCost

#: Applications whose mean run times differ by less than this are one class.
ALIKE = 0.15
#: Groups of classes that are looked at.
GROUPS_MOST = 4
#: What stays behind a batch is planned for a batch this unlucky.
CAREFUL = 0.9
#: See `CandidateScores`.
DELAYS_MOST = 500.0


def classes_of(means: Sequence[float]) -> np.ndarray:
    """int64 (A,): the class of each application, 0 the shortest. A class ends where the mean has grown by `ALIKE` over its first, or
    later when there would be more than `GROUPS_MOST`."""
    order = np.argsort(means, kind="stable")
    sorted_means = np.asarray(means, float)[order]
    alike = ALIKE
    while True:
        found, first, cls = np.zeros(len(order), np.int64), sorted_means[0], 0
        for i, mean in enumerate(sorted_means):
            if mean > first * (1 + alike) + 1e-12:
                cls, first = cls + 1, mean
            found[i] = cls
        if cls < GROUPS_MOST:
            break
        alike *= 1.5
    classes = np.empty(len(order), np.int64)
    classes[order] = found
    return classes


@dataclass(frozen=True, kw_only=True, eq=False)
class Candidates:
    """C candidate batches of one model, groups in the outer order. size: int64 (C,); group: int64 (C,), applications of class <= group
    may be in it; laws: of each; expected_s: float64 (C,). app_class: int64 (A,); hopeless_s: float64 (A,), the slack below which a
    request of an application is given up; careful_s: float64 (C,), the quantile `CAREFUL` of each; work_s: float64 (A,), a request's
    part of the best batch of its own application."""

    size: np.ndarray
    group: np.ndarray
    laws: tuple[BatchLaw, ...]
    expected_s: np.ndarray
    app_class: np.ndarray
    hopeless_s: np.ndarray
    careful_s: np.ndarray
    work_s: np.ndarray

    @staticmethod
    def of(laws: Sequence[Law], shares: Sequence[float], cost: ModelCost, give_up: float) -> Candidates:
        """laws: of each application, on the same edges; shares: their parts of the requests; give_up: a request whose chance to be ready
        in time when run alone at once is less than this is given up."""
        app_class = classes_of([law.mean() for law in laws])
        made: list[tuple[int, BatchLaw]] = []
        for group in range(int(app_class.max()) + 1):
            inside = np.flatnonzero(app_class <= group).tolist()
            member = mixture([laws[i] for i in inside], [shares[i] for i in inside])
            made += [(group, batch_law(member, size, cost.c0_s, cost.c1)) for size in cost.sizes]
        batches = tuple(batch for _, batch in made)
        sizes, expected_s = np.array([b.size for b in batches]), np.array([b.expected for b in batches])
        return Candidates(
            size=sizes,
            group=np.array([group for group, _ in made]),
            laws=batches,
            expected_s=expected_s,
            app_class=app_class,
            careful_s=np.array([b.law.quantile(CAREFUL) for b in batches]),
            work_s=np.array([least_per_request_s(law, cost) for law in laws]),
            hopeless_s=np.array([batch_law(law, 1, cost.c0_s, cost.c1).law.quantile(give_up) for law in laws]),
        )


def least_per_request_s(law: Law, cost: ModelCost) -> float:
    """Device time per request in the batch size that is best for one application."""
    return min((cost.c0_s + cost.c1 * k * law.expected_max(k)) / k for k in cost.sizes)


class CandidateScores:
    """Scores of all candidates over slack, for one rate b of the anticipated delay (per second, > 0; lowered where more than
    `DELAYS_MOST` mean delays would fit into the longest batch l, so that e^(b l) is a number).

    In the bin that begins at e the score is g(e) e^(-b (s - e)) + h (1 - e^(-b (s - e))) / b = h/b + e^(-b s) e^(b e) (g(e) - h/b): two
    numbers of the bin, and one exponential for each request instead of one for each of its candidates. Where b e is small the same is
    told with e^(-b s) - 1, since h/b and what is taken off it would be large and nearly the same."""

    def __init__(self, found: Candidates, b: float) -> None:
        edges = np.array([batch.law.edges for batch in found.laws])  # (C, B + 1)
        over, over_at = (np.array([[getattr(batch.law, of)] for batch in found.laws]) for of in ("over", "over_at"))
        longest = float(max(edges.max(), over_at.max()))
        self._b = b = min(b, DELAYS_MOST / longest)
        self._is_small = b * longest < 1
        density = np.array([batch.law.mass for batch in found.laws]) / np.diff(edges)
        self._first, self._step = edges[:, :1], (edges[:, -1:] - edges[:, :1]) / density.shape[1]
        keep = np.exp(-b * self._step[:, 0])
        grown = -np.expm1(-b * self._step[:, 0]) / b
        at = [np.zeros(len(edges))]
        for h in density.T:
            at.append(at[-1] * keep + h * grown)
        # one bin before the first edge, where nothing has been gathered, and one without end behind the last
        zero, expected = np.zeros((len(edges), 1)), found.expected_s[:, None]
        gathered = np.concatenate([zero, np.array(at).T], axis=1) / expected
        limit = np.concatenate([zero, density, zero], axis=1) / expected / b
        begins = b * np.concatenate([zero, edges], axis=1)
        self._fading = np.exp(begins) * (gathered - limit)
        self._fixed = gathered + np.expm1(begins) * (gathered - limit) if self._is_small else limit
        self._bins = density.shape[1]
        self._row = np.arange(len(edges))[:, None] * (self._bins + 2)
        self._until = np.array([batch.law.at_edges for batch in found.laws])  # F at edges
        self._beyond, self._over_at = over[:, 0], over_at
        self._over = over / found.expected_s[:, None] * np.exp(b * over_at) if (over > 0).any() else None

    def chance(self, slack: float) -> np.ndarray:
        """P(a batch ends within `slack`) of all candidates, float64 (C,). No score is: it fades with what is left of the slack."""
        bins = (slack - self._first[:, 0]) / self._step[:, 0]
        np.minimum(np.maximum(bins, 0.0, out=bins), self._bins, out=bins)
        place = np.minimum(bins.astype(np.int64), self._bins - 1)
        rows = np.arange(len(bins))
        low, high = self._until[rows, place], self._until[rows, place + 1]
        return np.asarray(low + (bins - place) * (high - low) + self._beyond * (slack >= self._over_at[:, 0]))

    def at(self, slack: np.ndarray) -> np.ndarray:
        """Scores for penalty 1, float64 (C, N), of float64 (N,) slacks."""
        place = slack - self._first
        place /= self._step
        place += 1.0
        np.maximum(place, 0.0, out=place)
        np.minimum(place, self._bins + 1, out=place)
        flat = place.astype(np.int64)
        flat += self._row
        passed = -self._b * np.maximum(slack, 0.0)
        passed = np.expm1(passed) if self._is_small else np.exp(passed)
        found = self._fading.take(flat)
        found *= passed
        found += self._fixed.take(flat)
        if self._over is not None:
            found += self._over * (passed + self._is_small) * (slack >= self._over_at)
        return found
