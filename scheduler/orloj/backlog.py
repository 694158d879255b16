"""What a batch would cost the requests that stay behind. Ours (see `policy`): the printed score knows the chosen ones only.

A fluid picture: the device works off what waits in order of deadlines, each request costing its part of a good batch. Of the work due
by slack s, at most s - L can be done behind a batch of length L; the largest excess over all deadlines is work that is lost.

While nothing would be lost, the most urgent request goes first, in the batch that avoids most loss per second among those that harm
neither it nor the rest; but not in a batch that wastes the device, since more requests will come. When something is lost anyway, or
there is no such batch, the batch that avoids most loss per second of all runs. So a box that keeps up is as good as earliest deadline
first, and one that does not is better: that order would give its time to those that will be late.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

#: An urgent batch must use the device at least this well, against its model's batch of the largest score per second.
USE_MIN = 0.9
#: Chance of the most urgent request that its batch may cost it.
CHANCE_LOST = 0.02


@dataclass(frozen=True, kw_only=True, eq=False)
class Looked:
    """One model's requests that were looked at, in order of deadlines, and its candidate batches. scores: float64 (C, N), worth of each
    request in each candidate per second; sums: float64 (C,), of a candidate's best members; size, expected_s, careful_s: (C,), the last
    a high quantile of the batch's time; slack_s, penalty: float64 (N,); own_s: float64 (N,), a request's part of a good batch; after_s:
    float64 (N,), what its frame needs after it."""

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

    def best(self, row: int) -> np.ndarray:
        """Places of a candidate's members by score, best first."""
        return best_places(self.scores[row], int(self.size[row]))

    def use(self, row: int, places: np.ndarray) -> float:
        """The members' parts of good batches over the time of this one: 1 is as good as it gets for full ones."""
        return float(self.own_s[places].sum() / self.expected_s[row])


def choose(looked: list[Looked], margin: float = 1.0) -> tuple[int, int, np.ndarray]:
    """(index of the model, index of its candidate, places of the members best first). looked: at least one, each with a request;
    margin: waiting work is taken for this many times what it is when it is asked whether something would be lost."""
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
    return np.maximum(excess.max(axis=1, initial=0.0), 0.0)


def best_places(scores: np.ndarray, count: int) -> np.ndarray:
    """Places of the `count` largest of float64 (N,), best first; of equals the first."""
    if count >= len(scores):
        return np.argsort(-scores, kind="stable")
    least = np.partition(scores, len(scores) - count)[len(scores) - count]
    above = np.flatnonzero(scores > least)
    equal = np.flatnonzero(scores == least)[: count - len(above)]
    chosen = np.concatenate([above, equal])
    return chosen[np.argsort(-scores[chosen], kind="stable")]


def _urgent_first(looked: list[Looked], margin: float) -> tuple[int, int, np.ndarray] | None:
    slack_s = np.concatenate([part.slack_s for part in looked])
    order = np.argsort(slack_s, kind="stable")
    slack_s, work_s = slack_s[order], margin * np.concatenate([part.own_s + part.after_s for part in looked])[order]
    if (np.cumsum(work_s) > slack_s).any():
        return None
    i = min(range(len(looked)), key=lambda k: float(looked[k].slack_s[0]))
    part, first = looked[i], sum(len(p.slack_s) for p in looked[:i])
    rows = np.flatnonzero(part.scores[:, 0] > 0)
    if not len(rows):
        return None
    inside = part.scores[rows] > 0
    inside &= np.cumsum(inside, axis=1) <= part.size[rows][:, None]
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    rest_s = np.tile(work_s, (len(rows), 1))
    rest_s[:, place[first : first + len(part.slack_s)]] *= ~inside
    chance = part.scores[rows, 0] * part.expected_s[rows]
    harmless = (lost_s(slack_s, rest_s, part.careful_s[rows]) <= 0) & (chance >= chance.max() - CHANCE_LOST * part.penalty[0])
    if not harmless.any():
        return None
    c = int(np.where(harmless, (part.scores[rows] * inside).sum(axis=1), -1.0).argmax())
    return i, int(rows[c]), np.flatnonzero(inside[c])
