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
    """Scores of all candidates over slack, for one rate b of the anticipated delay (per second, > 0)."""

    def __init__(self, found: Candidates, b: float) -> None:
        self._b = b
        edges = np.array([batch.law.edges for batch in found.laws])  # (C, B + 1)
        density = np.array([batch.law.mass for batch in found.laws]) / np.diff(edges)
        self._first, self._step = edges[:, :1], (edges[:, -1:] - edges[:, :1]) / density.shape[1]
        keep = np.exp(-b * self._step[:, 0])
        grown = -np.expm1(-b * self._step[:, 0]) / b
        at = [np.zeros(len(edges))]
        for h in density.T:
            at.append(at[-1] * keep + h * grown)
        # one bin before the first edge, where nothing has been gathered, and one without end behind the last
        zero, expected = np.zeros((len(edges), 1)), found.expected_s[:, None]
        self._bins = density.shape[1]
        self._at = np.concatenate([zero, np.array(at).T], axis=1) / expected
        self._density = np.concatenate([zero, density, zero], axis=1) / expected
        self._row = np.arange(len(edges))[:, None] * (self._bins + 2) + 1
        self._until = np.array([batch.law.at_edges for batch in found.laws])  # F at edges
        over = np.array([batch.law.over for batch in found.laws])
        self._beyond = over
        self._over = (over / found.expected_s)[:, None] if (over > 0).any() else None
        self._over_at = np.array([batch.law.over_at for batch in found.laws])[:, None]

    def chance(self, slack: float) -> np.ndarray:
        """P(a batch ends within `slack`) of all candidates, float64 (C,). No score is: it fades with what is left of the slack."""
        bins = np.clip((slack - self._first[:, 0]) / self._step[:, 0], 0.0, self._bins)
        place = np.minimum(bins.astype(np.int64), self._bins - 1)
        rows = np.arange(len(bins))
        low, high = self._until[rows, place], self._until[rows, place + 1]
        return np.asarray(low + (bins - place) * (high - low) + self._beyond * (slack >= self._over_at[:, 0]))

    def at(self, slack: np.ndarray) -> np.ndarray:
        """Scores for penalty 1, float64 (C, N), of float64 (N,) slacks."""
        since = slack - self._first
        place = np.floor(since / self._step)
        np.maximum(place, -1.0, out=place)
        np.minimum(place, self._bins, out=place)
        flat = place.astype(np.int64)
        flat += self._row
        np.maximum(place, 0.0, out=place)
        place *= self._step
        since -= place
        np.maximum(since, 0.0, out=since)
        since *= -self._b
        faded = np.expm1(since, out=since)
        found = faded + 1.0
        found *= self._at.take(flat)
        faded /= self._b
        faded *= self._density.take(flat)
        found -= faded
        if self._over is None:
            return found
        beyond = slack - self._over_at
        return found + np.where(beyond >= 0, self._over * np.exp(-self._b * np.maximum(beyond, 0.0)), 0.0)
