"""Whose turn it is in a window, with how many labels, and on what share: where retrainings begin beside preparation. Ours.

A camera's turn is all that its learning takes: labels, profile, retraining, gate. On a device that is short not everybody can have one,
so turns are what is planned, not labels: an even part of the labels for everybody buys retrainings for nobody. Three things are chosen
together, because each depends on the others: the share of all that learns, the labels of a turn, and how many turns are taken.

With turns in the order of gain per GPU-second, f_i when the i-th of them ends, T the time left and Q(c) the cameras' quality when
inference has c (`scheduler.prep_share`), the choice is the share p, the labels n and the number k that are best in

    sum over i <= k of  g_i(n) * ((T - f_i) / T + later)  -  (Q(capacity) - Q(capacity - p)) * f_k / T

g(n): what n labels win of what all that are wanted win, n / (n + HALF_LABELS) in proportion (docs/retraining.md: where there was much to
win a quarter of the data won all of it, where there was little a third); with `EngineConfig.count_taught` only those count that teach:
of eight labels four do, of twelve eight, since a small sample holds half of its labels out. So one camera with much to win has its
turn with few labels where four of them would have had none, and cameras whose gain is not worth the inference that it costs wait.

Where cameras learn together (`scheduler.together`) a pool of them has one turn, all of it or none: f is when the lesson of all of them
ends, and all win then. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from scheduler import admission, together
from scheduler.prep_share import Watched, shown_quality, windows_served
from scheduler.split import label_split

#: So many labels win half of what endless ones would: of all labels, or of those that teach.
HALF_LABELS, HALF_TAUGHT = 5, 3
#: Steps in which labels are tried.
LABEL_STEP = 2
#: Labels that tell how fast a device is on which no turn is worth it.
TRIED_LABELS = 2
#: What a retraining wins of what is missing to quality 1, for a camera that never had one and before the fleet has shown it; it counts
#: as much as what was seen of so much missing quality (two cameras of quality 0.5).
FIRST_FRAC, FIRST_WEIGHT = 0.25, 1.0
#: What is left to win after a retraining, as a part of what it won: on real cameras the next one wins less than half of it.
LEFT_FRAC = 0.5
#: ... and, with `EngineConfig.left_of_missing`, as a part of what is missing to quality 1 by then. Of 273 retrainings on real cameras
#: that followed one which serves, the gain was 0.13 to 0.19 of that; with what the one before had won it had nothing to do.
LATER_FRAC = 0.15
#: What a model that has learned is taken to lose with every window in which nobody measures it: on real cameras it was shown to be
#: worth 0.07 less than believed beyond what it was in the window of its labels.
UNSEEN_LOSS = 0.07
#: What a retraining wins back of what a model seems to have lost.
REGAINED_FRAC = 0.7
#: What a camera's turn is worth at least, for every window it has waited: a drift that no look has seen is found.
MEASURED_GAIN = 0.004


@dataclass(frozen=True, kw_only=True)
class Turn:
    """What a camera's learning takes and promises. gain: with `most` labels, 0-1; label_gpu_s: of one label and learning from it;
    fixed_gpu_s: of all the rest (profile, gate); holdout_frac: part of the labels that judge and teach nothing (`scheduler.split`),
    None: all of them count. pool: of cameras that learn together (`scheduler.together`), "": it learns alone."""

    id: str
    gain: float
    label_gpu_s: float
    fixed_gpu_s: float
    least: int
    most: int
    holdout_frac: float | None = None
    pool: str = ""

    def frames(self, wanted: int) -> int:
        return min(self.most, max(self.least, wanted))

    def gpu_s(self, wanted: int) -> float:
        return self.fixed_gpu_s + self.frames(wanted) * self.label_gpu_s

    def gain_of(self, wanted: int) -> float:
        return self.gain * self._won(self.frames(wanted)) / max(self._won(self.most), 1e-9)

    def _won(self, labels: int) -> float:
        if self.pool:
            return part_won(labels - together.judges(labels), half=HALF_TAUGHT)
        if self.holdout_frac is None:
            return part_won(labels)
        return part_won(label_split(labels, self.holdout_frac)[0], half=HALF_TAUGHT)


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """frames: (camera, labels) of those whose turn it is, in order; ends_s: when the last one should be through, from now on. tried: no
    turn is worth it or fits, and a few labels of this camera tell how long one takes ('': of nobody)."""

    share_pct: float
    frames: tuple[tuple[str, int], ...] = ()
    ends_s: float = 0.0
    tried: str = ""


def part_won(labels: int, *, half: float = HALF_LABELS) -> float:
    """Of what endless labels would win (0-1)."""
    return labels / (labels + half)


def first_frac(won: Sequence[tuple[float, float]]) -> float:
    """What a first retraining wins of what is missing to quality 1. won: (missing quality, gain) of the first one of every camera of the
    box that had one: the cameras of a site are like each other, so what some have won tells what the next one may."""
    missing = FIRST_WEIGHT + sum(max(0.0, m) for m, _ in won)
    return max(0.0, FIRST_FRAC * FIRST_WEIGHT + sum(gain for _, gain in won)) / missing


def left_to_win(gains: Sequence[float], *, missing: float | None = None, refusals: int = 0) -> float:
    """What a camera's next retraining should win. gains: what its earlier ones won, newest last, at least one. missing: to quality 1;
    None: half of what the newest one won is left. refusals: of the newest ones, in a row: what they have left (`as_if_won`) is there
    still, or half as much again with each as after a model that serves, so that a camera which cannot learn more is settled in the end.
    Where nothing was worth a retraining, nothing is left."""
    half = LEFT_FRAC * max(0.0, gains[-1])
    if missing is None or half <= 0:
        return half
    later = LATER_FRAC * max(0.0, missing)
    return max(half, later * LEFT_FRAC ** (refusals - 1)) if refusals else later


def as_if_won(seen: float, error: float, expected: float) -> float:
    """What a retraining that the gate refused counts as, among what earlier ones won. Nothing of it serves, so all that was to win still
    is; how much that is lies between what was expected of this one and the gain that the gate saw on few frames, by how well it saw
    it (`admission.posterior`). `left_to_win` of the answer is just that. error: the standard error of `seen`."""
    left, _ = admission.posterior(seen, error, admission.Belief(mean=expected, sd=admission.REUSED.sd))
    return max(0.0, left) / LEFT_FRAC


def expected_gain(
    gains: Sequence[float], quality: float, frac: float, *, drifted: bool, of_missing: bool = False, refusals: int = 0,
    lost: float = 0.0,
) -> float:  # fmt: skip
    """What learning from this window should bring a camera that is examined in full. gains: what its retrainings won, newest last;
    frac: what a first one wins of what is missing (`first_frac`). One that has learned has less left to win (`left_to_win`: by what is
    missing, `of_missing`, or by what the newest won), or those that never had their turn would wait behind it for ever; one that has
    drifted since may win again what a first one does, in part; one whose model seems to have lost something, part of that (`lost`)."""
    most = frac * max(0.0, 1.0 - quality)
    if not gains:
        return most
    left = left_to_win(gains, missing=1.0 - quality if of_missing else None, refusals=refusals)
    return min(most, max(left, LEFT_FRAC * most if drifted else 0.0, REGAINED_FRAC * lost))


def choose(
    turns: Sequence[Turn], watched: Sequence[Watched], *, left_s: float, most_s: float, capacity_pct: float, shares_pct: Sequence[float],
    speed_frac: float = 1.0, tries: bool = False,
) -> Chosen:  # fmt: skip
    """The best of all that may be done; of equals the smallest share, then the fewest labels. left_s: until the window ends; most_s: by
    then the last turn must be through; shares_pct: what may be chosen, rising, at least one; speed_frac: part of a promise that this
    machine delivers.

    Where no turn fits, or none is worth it, a machine that seems too slow must still be seen to be faster again. tries: by a few labels
    of the most promising camera, on the least share (none where nobody promises anything). Else by its turn with the fewest labels, on
    the share that would be best if there were time; on a device that is really too slow that is half of it, in every window, for
    nothing."""
    if left_s <= 0 or not turns:
        return Chosen(share_pct=shares_pct[0])

    def found(among: Sequence[Turn], most_s: float) -> Chosen:
        return _best(among, watched, left_s, most_s, capacity_pct, shares_pct, speed_frac)

    best = found(turns, most_s)
    first = _in_order(turns, min(t.least for t in turns))[0]
    if best.frames or first.gain <= 0:
        return best
    if tries:
        return replace(best, tried=first.id)
    return replace(found([replace(first, most=first.least)], math.inf), frames=((first.id, first.least),))


def _best(
    turns: Sequence[Turn], watched: Sequence[Watched], left_s: float, most_s: float, capacity_pct: float, shares_pct: Sequence[float],
    speed_frac: float,
) -> Chosen:  # fmt: skip
    best, best_value = Chosen(share_pct=shares_pct[0]), 0.0
    undisturbed = shown_quality(watched, capacity_pct)
    orders = [(wanted, _in_order(turns, wanted)) for wanted in _labels(turns)]
    for share_pct in shares_pct:
        rate = share_pct / 100 * speed_frac
        lost_per_s = (undisturbed - shown_quality(watched, capacity_pct - share_pct)) / left_s
        for wanted, order in orders:
            best_of = _best_pools if any(turn.pool for turn in order) else _best_count
            value, taken, ends_s = best_of(order, wanted, rate, lost_per_s, left_s=left_s, most_s=most_s)
            if value > best_value + 1e-9:
                best_value = value
                frames = tuple((turn.id, turn.frames(wanted)) for turn in taken)
                best = Chosen(share_pct=share_pct, frames=frames, ends_s=ends_s)
    return best


def _labels(turns: Sequence[Turn]) -> list[int]:
    least, most = min(t.least for t in turns), max(t.most for t in turns)
    return [*range(least, most, LABEL_STEP), most]


def _in_order(turns: Sequence[Turn], wanted: int) -> list[Turn]:
    return sorted(turns, key=lambda t: (-t.gain_of(wanted) / max(t.gpu_s(wanted), 1e-9), t.gpu_s(wanted), t.id))


def _best_count(
    order: Sequence[Turn], wanted: int, rate: float, lost_per_s: float, *, left_s: float, most_s: float
) -> tuple[float, Sequence[Turn], float]:
    """(value, turns, seconds) of the best number of turns from the front. One that does not end in time is left out, with all behind it:
    who comes next is cheaper by chance only."""
    best, gained, ends_s = (0.0, 0, 0.0), 0.0, 0.0
    for number, turn in enumerate(order, start=1):
        ends_s += turn.gpu_s(wanted) / max(rate, 1e-9)
        if ends_s > most_s:
            break
        gained += turn.gain_of(wanted) * windows_served(ends_s, left_s)
        value = gained - lost_per_s * ends_s
        if value > best[0] + 1e-12:
            best = (value, number, ends_s)
    value, count, ends_s = best
    return value, order[:count], ends_s


def _best_pools(
    order: Sequence[Turn], wanted: int, rate: float, lost_per_s: float, *, left_s: float, most_s: float
) -> tuple[float, Sequence[Turn], float]:
    """The same where cameras learn together: pools follow each other, each as a whole, and what it wins it wins when it ends."""
    pools: dict[str, list[Turn]] = {}
    for turn in order:
        pools.setdefault(turn.pool or turn.id, []).append(turn)
    value, begins_s = 0.0, 0.0
    taken: list[Turn] = []
    for members in pools.values():
        ends_s = begins_s + sum(turn.gpu_s(wanted) for turn in members) / max(rate, 1e-9)
        gained = sum(turn.gain_of(wanted) for turn in members)
        worth = gained * windows_served(ends_s, left_s) - lost_per_s * (ends_s - begins_s)
        if ends_s <= most_s and worth > 1e-12:
            value, begins_s, taken = value + worth, ends_s, [*taken, *members]
    return value, taken, begins_s
