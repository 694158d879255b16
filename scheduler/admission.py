"""When one model may take another's place: the rule of the gate, of reuse and of the rollback.

Ekya swaps in whatever was trained. Here both models are asked about the same n held-out labelled frames, and what few frames say is
weighed against what was expected (ours; the conjugate normal model of any textbook):

    g = candidate_quality - serving_quality        the gain that was seen, on the newest frames and on all
    e = its standard error (`error_of`)            how well it was seen: large for few frames
    true gain ~ N(m, s^2)                          what was expected: 0, or less where the profile promised a loss
    true gain | g ~ N(w*g + (1-w)*m, w*e^2),  w = s^2 / (s^2 + e^2)

    admitted when   g > margin, on the newest frames and on all,   and   P(true gain > margin | g) >= 1 - risk * min(1, q / seeing)

with q the candidate's own quality on the newest frames: of two models that find next to nothing one is ahead by an object or two, and a
normal error says too little of so few (five of 3,000 bad retrainings came in that way, none of them worth 0.2; docs/reuse.md).
So few frames demand more, and nothing is admitted on a promise (`belief.promised`). A risk of 0.5 minimises the expected loss when
a wrong swap costs what a missed one does; less is careful. `bench gate` compares it with a plain margin and a z-test (docs/reuse.md).
A quality that is missing or not a number admits nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

#: What one frame that was not seen could still change in the gain: each of n frames pulls F1 by 1/n, and a candidate is wrong about
#: a frame that the other gets right in about a quarter of them.
UNSEEN = 0.25
#: A candidate of less quality than this must be the surer to be better (docs/decisions/0112).
SEEING = 0.7
#: In so many gates what is labelled already leaves doubt, and new labels are asked for.
DOUBT_FRAC = 0.25
#: On fewer frames that are labelled already nothing is decided, where a camera judges alone.
MIN_KNOWN = 4
#: Standard error of a gain that was seen on one frame only, where frames cannot tell their own spread.
BLIND_SD = 0.5


@dataclass(frozen=True, kw_only=True)
class Belief:
    """What is expected of a gain before it is seen, on the scale of quality (0-1): its mean and standard deviation."""

    mean: float = 0.0
    sd: float = 0.1


#: A model of an earlier window: nobody has predicted it.
REUSED = Belief()


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """gain: seen; expected: mean of the true gain given all that is known; chance: that it exceeds the margin."""

    admitted: bool
    gain: float
    expected: float
    chance: float


REFUSED = Verdict(admitted=False, gain=0.0, expected=0.0, chance=0.0)


def error_of(gain_sd: float | None, frames: int) -> float:
    """Standard error of a gain seen on `frames` frames. gain_sd: the jackknife's (`models.evaluate.gain_sd`), None: not known.

    The jackknife of n frames has n - 1 degrees of freedom; a normal with Student's variance, (n-1)/(n-3) as large, stands in for its
    heavier tails. Frames that agree by chance would show no spread at all, hence `UNSEEN`. A driver that measured frames enough and
    still tells no spread knows the truth (a recorded trace): 0."""
    if gain_sd is None or not math.isfinite(gain_sd):
        return 0.0 if gain_sd is None and frames > 1 else BLIND_SD
    if frames < 2:
        return BLIND_SD
    tails = (frames - 1) / (frames - 3) if frames > 3 else 3.0
    return math.hypot(gain_sd * math.sqrt(tails), UNSEEN / frames)


def judge(
    serving: float | None, candidate: float | None, *, gain_sd: float | None, frames: int, belief: Belief = REUSED,
    margin: float = 0.0, risk: float = 0.5, seeing: float = 0.0, gain: float | None = None,
) -> Verdict:  # fmt: skip
    """May the candidate serve? serving, candidate: qualities (0-1) on the same frames, the newest. gain, gain_sd, frames: of the
    candidate, over all frames that were looked at; gain None: the difference of the two qualities. risk: chance that is taken of a
    swap that does not gain the margin, above 0 and below 1; seeing: a candidate of less quality must be the surer (`SEEING`; 0: none
    must). A belief that is not finite counts as `REUSED`. Raises nothing."""
    if serving is None or candidate is None or not (math.isfinite(serving) and math.isfinite(candidate)):
        return REFUSED
    newest = candidate - serving
    gain = newest if gain is None or not math.isfinite(gain) else gain
    mean, sd = posterior(gain, error_of(gain_sd, frames), belief if _usable(belief) else REUSED)
    chance = chance_above(margin, mean, sd)
    sure = chance >= 1.0 - allowed(risk, candidate, seeing)
    return Verdict(admitted=min(gain, newest) > margin and sure, gain=gain, expected=mean, chance=chance)


def allowed(risk: float, candidate: float, seeing: float) -> float:
    """The chance of being wrong that is taken with a candidate of this quality (0-1): less with one that finds little (`SEEING`)."""
    return risk * min(1.0, max(0.0, candidate) / seeing) if seeing > 0 else risk


def in_doubt(verdict: Verdict) -> bool:
    """Would more frames be worth their labels? Not where the candidate is admitted, or is more likely worse than better; where nothing
    was measured, yes."""
    return not verdict.admitted and (verdict.chance >= 0.5 or verdict == REFUSED)


def posterior(gain: float, error: float, belief: Belief) -> tuple[float, float]:
    """(mean, sd) of the true gain, given what was seen."""
    if error <= 0.0:
        return gain, 0.0
    weight = belief.sd**2 / (belief.sd**2 + error**2)
    return weight * gain + (1.0 - weight) * belief.mean, math.sqrt(weight) * error


def chance_above(margin: float, mean: float, sd: float) -> float:
    """That a normal gain of this mean and standard deviation exceeds the margin; 1 or 0 where it is known."""
    if sd <= 0.0:
        return 1.0 if mean > margin else 0.0
    return 0.5 * math.erfc((margin - mean) / (sd * math.sqrt(2.0)))


def _usable(belief: Belief) -> bool:
    return math.isfinite(belief.mean) and math.isfinite(belief.sd) and belief.sd > 0.0
