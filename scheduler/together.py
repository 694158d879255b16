"""One lesson for all cameras with one model, and who takes what it made: values in, values out. After ECCO's idea
(arXiv 2512.11727); how it is done is ours.

A camera that learns alone needs eight labels of a window, half of them to judge by, and what it has learned is of one scene. Here a
window's lesson is one training on the labels of all cameras of a customer that have one architecture, one list of retrainings and
labels of the same window, from the version that most of them serve; it costs what their own trainings would have cost together. On
sixteen real videos its models were worth 1.6 points more in the next window than the cameras' own ones of the same labels and epochs,
and 3.2 points more in the one after that (docs/decisions/0116): what one camera sees today another may see tomorrow.

    labels    one of JUDGED_OF of a camera's labels judges: the others' judge with it
    verdict   the model is judged as a whole, by the mean of the cameras' gains, whose error follows from how far they lie apart,
              weighed against what lessons win (EXPECTED) as `scheduler.admission` does it. A camera takes what all are to take, unless
              its own frames, weighed against what all have seen, leave a chance of less than VETO that it is better there; where
              the model finds little on them (`admission.SEEING`) the chance must be larger. One that cannot tell (no object on
              its frames: a street at night) keeps what it has.
    doubt     labels that are there already are a frame or two of each camera. Where models find little, an object more or less is half
              of F1, and what looks better is not yet sure to be (`in_doubt`): all look again, at new labels, and that verdict counts.

So a poisoned camera among good ones keeps its model, and a model that one camera's good luck carries serves nobody. Fewer
than ENOUGH cameras could not judge for each other, so they learn alone. Pure.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from scheduler import admission

#: Of so many labels of a camera one is held out.
JUDGED_OF = 5
#: Fewest labels of a camera that learns with others.
LEAST_LABELS = 5
#: Fewest cameras that learn together.
ENOUGH = 4
#: What a lesson wins a camera in the mean, before anybody has seen it. Of 27 on real videos 25 were truly better, later ones by 0.033
#: (standard deviation 0.025); less than that, and less sure, because a lesson may have been poisoned.
EXPECTED = admission.Belief(mean=0.02, sd=0.05)
#: Chance that is taken of a model being worse for all: half minimises the expected loss (`scheduler.admission`), and the next labels
#: bring back what was better.
RISK = 0.5
#: A model that finds less than LITTLE of what is there in the mean is looked at again where known labels leave a smaller chance than
#: SURE of its being better. Without a second look fourteen in 5,000 bad lessons served a camera that lost by them (docs/decisions/0120).
LITTLE, SURE = 0.6, 0.98
#: How far the gains that cameras have by one model lie apart (standard deviation).
APART_SD = 0.1
#: So far from the middle one a camera counts: a frame or two of it may show anything.
FAR = 2 * APART_SD
#: A camera does not take what all take when its own frames make it less likely than this to be better there: one frame seldom does,
#: five may. A model that finds little on them must be the surer, as at any gate (docs/decisions/0117).
VETO = 0.5


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What one camera's gate saw. serving, candidate: qualities (0-1) on its newest frames; gain, gain_sd, frames: of the candidate
    over all its frames, with the jackknife's error. None: nobody can say."""

    serving: float | None
    candidate: float | None
    gain: float | None
    gain_sd: float | None
    frames: int

    def tells(self) -> bool:
        known = (self.serving, self.candidate, self.gain)
        return self.frames > 0 and all(value is not None and math.isfinite(value) for value in known)


def judges(labels: int) -> int:
    """How many of so many labels of a camera are held out."""
    return max(1, labels // JUDGED_OF) if labels > 1 else 0


def verdicts(seen: Sequence[Seen], *, margin: float, risk: float, seeing: float) -> list[admission.Verdict]:
    """One for each camera, in order (see the top). margin, seeing: as `scheduler.admission.judge` has them; risk: for a camera that is
    the only one that can tell. Raises nothing."""
    known = [s for s in seen if s.tells()]
    if len(known) < 2:
        return [_own(s, admission.REUSED, margin, risk, seeing) for s in seen]
    quality, mean, chance = _of_model(known, margin)
    worth_it = chance >= _needed(quality, seeing)
    expected = admission.Belief(mean=mean, sd=APART_SD)
    return [
        _taken(s, _own(s, expected, margin, risk, seeing), chance, worth_it, seeing) if s.tells() else admission.REFUSED
        for s in seen
    ]


def in_doubt(seen: Sequence[Seen], *, margin: float, seeing: float) -> bool:
    """Whether a model that would be taken by what few frames say should be looked at again, on new labels: see the top."""
    known = [s for s in seen if s.tells()]
    if len(known) < 2:
        return False  # each camera's own gate knows about doubt
    quality, _, chance = _of_model(known, margin)
    return quality < LITTLE and _needed(quality, seeing) <= chance < SURE


def _taken(seen: Seen, own: admission.Verdict, chance: float, worth_it: bool, seeing: float) -> admission.Verdict:
    if not worth_it:
        return replace(own, admitted=False, chance=min(own.chance, chance))
    sure = 1.0 - admission.allowed(1.0 - VETO, seen.candidate or 0.0, seeing)
    return replace(own, admitted=own.chance >= sure)


def _own(seen: Seen, expected: admission.Belief, margin: float, risk: float, seeing: float) -> admission.Verdict:
    return admission.judge(
        seen.serving, seen.candidate, gain=seen.gain, gain_sd=seen.gain_sd, frames=seen.frames, belief=expected, margin=margin,
        risk=risk, seeing=seeing,
    )  # fmt: skip


def _needed(quality: float, seeing: float) -> float:
    """The chance of being better that a model which finds so much in the mean is taken at."""
    return 1.0 - admission.allowed(RISK, quality, seeing)


def _of_model(known: Sequence[Seen], margin: float) -> tuple[float, float, float]:
    """(its quality in the mean, the gain that is expected of it, the chance that this exceeds the margin)."""
    serving, gain, error = _of_all(known)
    mean, sd = admission.posterior(gain, admission.error_of(error, len(known)), EXPECTED)
    return serving + gain, mean, admission.chance_above(margin, mean, sd)


def _of_all(known: Sequence[Seen]) -> tuple[float, float, float]:
    """(quality of what serves, gain, standard error of the gain): means over cameras, each with an equal say, for what frames of one
    camera have in common is no accident that more of them would level out. No camera counts for more than FAR from the middle one."""
    gains = [s.gain or 0.0 for s in known]
    middle = statistics.median(gains)
    near = [min(max(gain, middle - FAR), middle + FAR) for gain in gains]
    return (
        statistics.mean(s.serving or 0.0 for s in known),
        statistics.mean(near),
        statistics.stdev(near) / math.sqrt(len(known)),
    )
