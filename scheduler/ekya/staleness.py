"""What slower frame rates leave of a camera's quality, from what its own model says from frame to frame: no labels, nothing to pay.

A knob that analyses every n-th frame shows answers that are up to n - 1 frames old. Ekya and VideoStorm measure what that leaves of the
quality beforehand, against golden labels, and a scene that changes leaves such a profile behind. Here the model's newest answers stand
for the truth and its older ones for what is shown. Two answers of a shaky model differ on a scene that stands still, too; that part, its
*repeatability* r, is the same at every age and is divided out:

    left(age) = agreement(age) / r,    r = agreement within REPEAT_S, where next to nothing moves,
                                       else its continuation to age 0, at least LEAST_REPEAT.

On real clips left(age) follows what golden labels say of the same frames (docs/serving.md). A model that finds nothing says nothing of
this: then what was believed before stays.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from scheduler.types import KnobProfile

#: In so short a time next to nothing moves: what differs is the model's.
REPEAT_S = 0.1
#: Of a model whose answers could only be compared over longer times no less is believed.
LEAST_REPEAT = 0.85
#: What is believed of a camera beforehand weighs as much as so many objects that were seen twice.
BELIEF_OBJECTS = 20.0
#: So many are needed to be listened to at all.
LEAST_OBJECTS = 5.0
#: Of an age at which nothing agrees at all, so that logarithms are numbers.
_NOTHING = 1e-3


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Answers of one age held against the newest ones: objects found again (tp), that are gone (fp), that are new (fn); sums, perhaps
    weighted ones."""

    age_s: float
    tp: float
    fp: float
    fn: float

    @property
    def objects(self) -> float:
        return self.tp + self.fn

    @property
    def f1(self) -> float:
        return 2 * self.tp / (2 * self.tp + self.fp + self.fn) if self.tp > 0 else 0.0


@dataclass(frozen=True, kw_only=True)
class Fading:
    """left: (age in s, what it leaves of the quality 0-1), ages rising from above 0, values falling; objects: that it rests on."""

    left: tuple[tuple[float, float], ...]
    objects: float

    def at(self, age_s: float) -> float:
        """Between two ages on the exponential between them, beyond the last at the same pace."""
        before_s, before = 0.0, 1.0
        for after_s, after in self.left:
            if age_s <= after_s:
                return before * (after / before) ** ((age_s - before_s) / (after_s - before_s))
            before_s, before = after_s, after
        return before ** (age_s / before_s)

    def kept_frac(self, stride: int, frame_s: float) -> float:
        """What analysing every stride-th frame leaves: the mean over the ages that are shown then. frame_s: between two frames."""
        return sum(self.at(age * frame_s) for age in range(stride)) / stride


def fading(seen: Iterable[Agreement]) -> Fading | None:
    """What was seen as a curve; None: too little to say anything. seen: any number of each age; ages from above 0."""
    ages = [total for total in _by_age(seen) if total.objects >= LEAST_OBJECTS]
    if not ages:
        return None
    repeat = _repeatability(ages)
    left, last = [], 1.0
    for total in ages:
        last = max(_NOTHING, min(last, total.f1 / repeat))
        left.append((total.age_s, last))
    return Fading(left=tuple(left), objects=sum(total.objects for total in ages) / len(ages))


def of_all(cameras: Iterable[Fading]) -> Fading | None:
    """What several cameras have seen, for one more of them that has seen little: of each age the mean, every camera weighing by what it
    rests on; None: none of them has seen anything. The usual curve is one camera's; those of a box are nearer to each other than to it
    (docs/decisions/0117)."""
    known = [(one.objects / (one.objects + BELIEF_OBJECTS), one) for one in cameras if one.objects > 0]
    total = sum(weight for weight, _ in known)
    if total <= 0:
        return None
    ages_s = sorted({age_s for _, one in known for age_s, _ in one.left})
    left = tuple((age_s, sum(weight * one.at(age_s) for weight, one in known) / total) for age_s in ages_s)
    return Fading(left=left, objects=sum(one.objects for _, one in known))


def followed(believed: Sequence[KnobProfile], found: Fading | None) -> tuple[KnobProfile, ...]:
    """The knobs with what was found beside what is believed of them beforehand. believed: knobs that differ in their rate alone."""
    if found is None:
        return tuple(believed)
    full_fps = max(knob.fps for knob in believed)
    weight = found.objects / (found.objects + BELIEF_OBJECTS)

    def kept(knob: KnobProfile) -> float:
        measured = found.kept_frac(max(1, round(full_fps / knob.fps)), 1.0 / full_fps)
        return weight * measured + (1 - weight) * knob.quality_frac

    return tuple(replace(knob, quality_frac=round(min(1.0, kept(knob)), 4)) for knob in believed)


def _by_age(seen: Iterable[Agreement]) -> list[Agreement]:
    totals: dict[float, Agreement] = {}
    for one in seen:
        known = totals.get(one.age_s, Agreement(age_s=one.age_s, tp=0.0, fp=0.0, fn=0.0))
        totals[one.age_s] = replace(known, tp=known.tp + one.tp, fp=known.fp + one.fp, fn=known.fn + one.fn)
    return [totals[age_s] for age_s in sorted(totals)]


def _repeatability(ages: Sequence[Agreement]) -> float:
    """r. Where the first age is long, the exponential through the first two is continued to age 0."""
    first = ages[0]
    if first.age_s <= REPEAT_S:
        return max(first.f1, _NOTHING)
    if len(ages) == 1:
        return LEAST_REPEAT
    second = ages[1]
    if second.f1 <= 0:
        return 1.0
    slope = math.log(max(first.f1, second.f1) / second.f1) / (second.age_s - first.age_s)
    return min(1.0, max(LEAST_REPEAT, first.f1 * math.exp(slope * first.age_s)))
