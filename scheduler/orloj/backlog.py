"""What a batch would cost the requests that stay behind. Ours (see `policy`): the printed score knows the chosen ones only.

A fluid picture: the device works off what waits in order of deadlines, each request costing its part of a good batch (times a margin,
since batches are not always good ones). Where that is more than there is time for, what is worth least for its work is left out until
the rest can be in time (Moore and Hodgson's rule; requests that are of use only together stay or go together): what is left is `kept`.

Of what is kept the most urgent goes first, in the batch that uses the device best among those behind which all of the rest can still be
in time. When there is no such batch, or it wastes the device (since more requests will come), the batch that avoids most loss per
second of all runs. So a box that keeps up is as good as earliest deadline first; one that does not gives up what costs most, not what
happens to be late.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

#: An urgent batch must use the device at least this well, against its model's batch of the largest score per second.
USE_MIN = 0.9
#: Chance to be in time that its batch may cost the most urgent request.
CHANCE_LOST = 0.02


@dataclass(frozen=True, kw_only=True, eq=False)
class Looked:
    """One model's requests that were looked at, in order of deadlines, and its candidate batches. scores: float64 (C, N), worth of each
    request in each candidate per second; sums: float64 (C,), of a candidate's best members; size, expected_s, careful_s: (C,), the last
    a high quantile of the batch's time; slack_s, penalty: float64 (N,), slack less after_s; own_s: float64 (N,), a request's part of a
    good batch; after_s: float64 (N,), what its frame needs after it; together: int64 (N,), equal numbers of 0 or more are of use only
    together; chance: float64 (C,) of a slack, that a candidate ends within it."""

    model: str
    scores: np.ndarray
    sums: np.ndarray
    size: np.ndarray
    expected_s: np.ndarray
    careful_s: np.ndarray
    slack_s: np.ndarray
    penalty: np.ndarray
    own_s: np.ndarray
    after_s: np.ndarray
    together: np.ndarray
    chance: Callable[[float], np.ndarray]

    def best(self, row: int) -> np.ndarray:
        """Places of a candidate's members by score, best first."""
        return best_places(self.scores[row], int(self.size[row]))

    def use(self, row: int, places: np.ndarray) -> float:
        """The members' parts of good batches over the time of this one: 1 is as good as it gets for full ones."""
        return float(self.own_s[places].sum() / self.expected_s[row])


def choose(looked: list[Looked], margin: float = 1.0) -> tuple[int, int, np.ndarray]:
    """(index of the model, index of its candidate, places of the members best first). looked: at least one, each with a request;
    margin: waiting work is taken for this many times what it is in good batches."""
    urgent = _urgent_first(looked, margin)
    if urgent is not None:
        i, row, places = urgent
        own = int(looked[i].sums.argmax())
        if looked[i].use(row, places) >= USE_MIN * looked[i].use(own, looked[i].best(own)):
            return urgent
    most = max(range(len(looked)), key=lambda i: float(looked[i].sums.max()))
    row = int(looked[most].sums.argmax())
    return most, row, looked[most].best(row)


def lost_s(slack_s: np.ndarray, work_s: np.ndarray, batch_s: np.ndarray) -> np.ndarray:
    """float64 (C,): device time of waiting work that is lost behind batches. slack_s: float64 (N,) ascending; work_s: float64 (C, N), 0
    for members; batch_s: float64 (C,). Of the work due by a deadline no more than all can be lost: max over j of
    W_j - max(0, s_j - L)."""
    excess = np.cumsum(work_s, axis=1) - np.maximum(slack_s - batch_s[:, None], 0.0)
    return np.asarray(excess.max(axis=1, initial=0.0))


def best_places(scores: np.ndarray, count: int) -> np.ndarray:
    """Places of the `count` largest of float64 (N,), best first; of equals the first."""
    return np.argsort(-scores, kind="stable")[:count]


def kept(due_s: np.ndarray, work_s: np.ndarray, worth: np.ndarray, together: np.ndarray) -> np.ndarray:
    """bool (N,): what to plan with, so that in order of deadlines all of it is in time. due_s, work_s, worth: float64 (N,); together:
    int64 (N,), requests with the same number of 0 or more stay or go together. In order of deadlines, whenever there is too much,
    what is worth least for its work of all so far goes, of equals the latest."""
    order = np.argsort(due_s, kind="stable")
    if (np.cumsum(work_s[order]) <= due_s[order]).all():
        return np.ones(len(due_s), bool)
    item, work, value, due = np.arange(len(due_s)), work_s, worth, due_s
    if (together >= 0).any():
        item = np.unique(np.where(together >= 0, together, -1 - item), return_inverse=True)[1]
        work, value = np.bincount(item, work_s), np.bincount(item, worth)
        due = np.full(len(work), np.inf)
        np.minimum.at(due, item, due_s)
    stays = work <= due  # what has no time even alone must not drive others out
    rate, cost_s, until_s = (value / np.maximum(work, 1e-12)).tolist(), work.tolist(), due.tolist()
    total_s, begun = 0.0, list[tuple[float, int]]()
    for i in [i for i in np.argsort(due, kind="stable").tolist() if stays[i]]:
        heapq.heappush(begun, (rate[i], -i))
        total_s += cost_s[i]
        while begun and total_s > until_s[i]:
            least = -heapq.heappop(begun)[1]
            stays[least] = False
            total_s -= cost_s[least]
    return np.asarray(stays[item])


def _urgent_first(looked: list[Looked], margin: float) -> tuple[int, int, np.ndarray] | None:
    slack_s, after_s, own_s, worth, together = (
        getattr(looked[0], of) if len(looked) == 1 else np.concatenate([getattr(part, of) for part in looked])
        for of in ("slack_s", "after_s", "own_s", "penalty", "together")
    )
    due_s, work_s = slack_s + after_s, margin * (own_s + after_s)
    stays = kept(due_s, work_s, worth, together)
    if not stays.any():
        return None
    begins = list(itertools.accumulate((len(part.slack_s) for part in looked), initial=0))
    first = int(np.where(stays, slack_s, np.inf).argmin())
    i = bisect.bisect_right(begins, first) - 1
    part, own, place = looked[i], slice(begins[i], begins[i + 1]), first - begins[i]
    chance = np.where(part.scores[:, place] > 0, part.chance(float(slack_s[first])), 0.0)
    rows = np.flatnonzero((chance > 0) & (chance >= chance.max() - CHANCE_LOST))
    if not len(rows):
        return None
    inside = (part.scores[rows] > 0) & stays[own]
    inside[:, place] = False
    inside &= np.cumsum(inside, axis=1) < part.size[rows][:, None]
    inside[:, place] = True
    members_s = part.own_s * inside
    rest_s = np.empty((len(rows), len(due_s)))
    rest_s[:] = work_s * stays
    rest_s[:, own] -= margin * members_s  # what its members need afterwards is still to be done
    if len(looked) > 1 or after_s.any():
        order = np.argsort(due_s, kind="stable")
        due_s, rest_s = due_s[order], rest_s[:, order]
    harmless = lost_s(due_s, rest_s, part.careful_s[rows]) <= 0
    if not harmless.any():
        return None
    use = members_s.sum(axis=1) / part.expected_s[rows]
    c = int(np.where(harmless, use, -1.0).argmax())
    return i, int(rows[c]), np.flatnonzero(inside[c])
