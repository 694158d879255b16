"""Which pictures of earlier windows are replayed: a bounded set whose mean, per class, stays close to the mean of all.

Rebuffi et al., "iCaRL: Incremental Classifier and Representation Learning" (CVPR 2017), algorithm 4 (herding): for each class, pictures
are taken one by one, each time the one that brings the mean feature of those taken closest to the class mean mu:

    p_k = argmin_x || mu - (phi(x) + sum of phi(p_j), j < k) / k ||        phi: features of length 1

What we changed, because a camera's picture holds many classes and the set is chosen anew for every retraining:
- phi is `Detector.embed`, of the whole picture; a picture belongs to every class it shows, and those without objects form a class;
- classes take turns, the rarest first, until the set is full; a picture that two classes pick is taken once. So the first K of a
  longer choice are the choice of K (the paper's algorithm 5);
- at most POOL candidates per wanted exemplar are embedded, spread evenly over time: embedding is paid for in the retraining's own time,
  and memory stays the same whether a camera has two hundred old pictures or fifty thousand;
- pictures that a person labelled are taken before all others;
- a model without embedding takes pictures spread evenly over time.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

import numpy as np

from models.detector import Detector
from models.labelled import LabelledImage, persons_of, presence_row, spread

#: Candidates looked at per exemplar wanted.
POOL = 3
#: More candidates than this are not looked at, however many exemplars are wanted: choosing among n takes n squared steps.
POOL_MAX = 512
#: Pictures per iteration; one, because an iteration is what a cancelled job waits for.
EMBED_BATCH = 1


def exemplars(
    samples: Sequence[LabelledImage], detector: Detector, *, limit: int, pool: int = POOL, batch: int = EMBED_BATCH
) -> Generator[None, None, tuple[int, ...]]:
    """Indices of at most `limit` of the samples, the most telling first; a batch of pictures embedded per `next`. Deterministic.

    All of them, without looking, when there are no more than `limit`. Raises ValueError for a limit below 0."""
    if limit < 0:
        raise ValueError(f"limit must be at least 0, got {limit}")
    if len(samples) <= limit:
        return tuple(range(len(samples)))
    if limit == 0:
        return ()
    embed = getattr(detector, "embed", None)
    if embed is None:
        return tuple(spread(len(samples), limit))
    candidates = sorted({*spread(len(samples), n_candidates(limit, pool)), *persons_of(samples)})
    if len(candidates) <= limit:
        return tuple(candidates)
    features, rows, persons = [], [], []
    for start in range(0, len(candidates), batch):
        loaded = [samples[i] for i in candidates[start : start + batch]]
        features.append(np.asarray(embed([sample.image for sample in loaded]), np.float32))
        rows += [presence_row(sample.labels) for sample in loaded]
        persons += [sample.by_person for sample in loaded]
        yield
    order = herded(np.concatenate(features), np.array(rows, bool))
    order = tuple(
        sorted(order, key=lambda i: not persons[i])
    )  # what a person labelled comes first, each in the order of herding
    return tuple(candidates[i] for i in order[:limit])


def n_candidates(limit: int, pool: int = POOL) -> int:
    """How many pictures are looked at to choose `limit` exemplars."""
    return max(limit, min(pool * limit, POOL_MAX))


def herded(features: np.ndarray, presence: np.ndarray) -> tuple[int, ...]:
    """All rows, the most telling first. features: float32 (N, D); presence: bool (N, C)."""
    phi = unit_rows(features)
    groups = [np.flatnonzero(column) for column in presence.T] + [np.flatnonzero(~presence.any(axis=1))]
    groups = sorted((group for group in groups if len(group)), key=len)
    ranked = [group[list(herding(phi[group]))] for group in groups]
    turns = max((len(group) for group in ranked), default=0)
    in_turn = (int(group[turn]) for turn in range(turns) for group in ranked if turn < len(group))
    return tuple(dict.fromkeys(in_turn))


def herding(phi: np.ndarray) -> tuple[int, ...]:
    """iCaRL's algorithm 4 for one class, run to its end: row indices, each keeping the mean of those before it and itself as close to
    the mean of all as it can. Ties go to the lower index. phi: (N, D)."""
    mean, total = phi.mean(axis=0, dtype=np.float64), np.zeros(phi.shape[1])
    left = np.ones(len(phi), bool)
    order: list[int] = []
    for k in range(1, len(phi) + 1):
        distance = np.linalg.norm(mean - (phi + total) / k, axis=1)
        distance[~left] = np.inf
        best = int(np.argmin(distance))
        left[best] = False
        total += phi[best]
        order.append(best)
    return tuple(order)


def unit_rows(features: np.ndarray) -> np.ndarray:
    """Rows of length 1; rows of length 0, or that are not finite, become 0."""
    clean = np.where(np.isfinite(features).all(axis=1, keepdims=True), features, 0.0).astype(np.float64)
    length = np.linalg.norm(clean, axis=1, keepdims=True)
    return clean / np.where(length > 0, length, 1.0)
