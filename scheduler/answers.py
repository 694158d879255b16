"""What a model's own answers say of what it has lost, where nobody has measured it: boxes become fewer and less sure.

Difference of confidences (Guillory et al., "Predicting with confidence on unseen distributions", ICCV 2021) foretells how much worse a
classifier does on other data by how much less sure it is in the mean. Of a detector, whose unsure boxes fall below the threshold and are
no answers any more, how many boxes are left says as much. Both cost nothing: every analysed frame has them.

    lost = SCORE * max(0, s0 - s1) / s0  +  COUNT * max(0, log((n0 + 0.1) / (n1 + 0.1)))        at most 1

s: mean score of its boxes, n: boxes per frame, 0: when its quality was last measured, 1: now. The two factors are a least-squares fit to
the part of F1 that was lost between two windows under the same model (327 pairs of windows of sixteen real videos). Fitted without a
video they foretell that video's losses with a correlation of 0.76, and rank a loss of more than a quarter above a smaller one in 85 of
100 cases (docs/learning.md). Fewer boxes may also mean an empty street: it is a suspicion, by which a camera has its turn sooner, and no
measurement. Pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

SCORE, COUNT = 0.5, 0.23
#: Fewer frames than this say nothing.
LEAST_FRAMES = 4
#: A model that seems to have lost so much of its quality learns from the window that shows it.
SUSPECT = 0.35
_ROOM = 0.1  # boxes per frame: none at all is no infinite loss


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What a version answered over some frames. boxes: per frame; score: mean of its boxes (0-1), 0 where there were none."""

    version: str
    frames: int
    boxes: float
    score: float

    @property
    def counts(self) -> bool:
        """Whether it says anything."""
        numbers = math.isfinite(self.boxes) and math.isfinite(self.score)
        return numbers and self.frames >= LEAST_FRAMES and self.boxes >= 0 and self.score >= 0


def lost_frac(then: Answers | None, now: Answers | None) -> float:
    """Part of its quality (0-1) that a model seems to have lost; 0 where there is nothing to compare, or another version answered."""
    if then is None or now is None or then.version != now.version or not (then.counts and now.counts):
        return 0.0
    if then.boxes == 0:
        return 0.0
    less_sure = max(0.0, then.score - now.score) / max(then.score, 1e-6) if now.boxes > 0 else 1.0
    fewer = max(0.0, math.log((then.boxes + _ROOM) / (now.boxes + _ROOM)))
    return min(1.0, SCORE * less_sure + COUNT * fewer)
