"""Shadow: a model that passed its gate first runs beside the serving one on some live frames, where nobody sees its answers.

The gate judges the trained model on stored frames; the shadow judges what will really serve (another form of it, perhaps) on what the
camera sends now. It looks for what a gate cannot see: a crash, numbers that are none, slowness, a flood of boxes, blindness. How many
boxes more or fewer are still plausible follows from the two models' golden quality, see `plausible_ratio`.

A shadow runs in the camera's inference worker, after the frame that people see is out, and is paid from the camera's own share: its
compute never exceeds `share_frac` of what the serving model used meanwhile, so the frame rate falls by less than that.
"""

from __future__ import annotations

import math
import statistics
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from configs.errors import DriftboxError, redact
from models.detector import Detector
from scheduler.types import Detections

#: Fewer frames than this say nothing about speed and counts.
LEAST_LOOKS = 3
#: A prediction under this is fast enough, whatever the serving one needs.
FAST_S = 0.002
#: A detection of the serving model from this score on is one it is sure of.
SURE_SCORE = 0.5
#: A count that comes about by chance with less than this probability is held against the model (blindness).
CHANCE = 0.1
#: A single prediction that takes this many times what is allowed is broken off, where the model yields in between.
OVERTIME = 4.0


class SwapRefused(DriftboxError):
    """The new model does not take over; the message says why."""

    default_code = "swap_refused"


class Overtime(Exception):
    """Breaks off a prediction that takes too long."""


@dataclass(frozen=True, kw_only=True)
class ShadowRules:
    """frames: live frames that both models must have seen, 0: no shadow. share_frac: compute of the shadow as a part of the serving
    model's. most_s: then it is judged by what there is; a camera that gives no frames holds nothing up. slow_ratio: allowed CPU time
    per frame, relative to the serving model's. count_ratio: allowed ratio of boxes where no golden quality is known."""

    frames: int = 12
    share_frac: float = 0.25
    most_s: float = 20.0
    slow_ratio: float = 2.0
    count_ratio: float = 4.0


@dataclass(frozen=True, kw_only=True)
class Glance:
    """One live frame seen by both models. serving, new: boxes; sure: the serving model's boxes with a score of `SURE_SCORE` or more;
    serving_s, new_s: CPU seconds of the predictions."""

    serving: int
    sure: int
    new: int
    serving_s: float
    new_s: float


class Shadow:
    """One run of a new model beside the serving one. The worker's thread calls `may_look`, `add`, `fail`; another waits for the end
    with `verdict`. qualities: golden quality (0-1) of the serving and of the new model, on the same labels, None: not known."""

    def __init__(
        self, detector: Detector, version: str, rules: ShadowRules, *, serving_quality: float | None = None,
        quality: float | None = None,
    ) -> None:  # fmt: skip
        self.detector, self.version, self.rules = detector, version, rules
        self._qualities = (serving_quality, quality)
        self._credit_s = 0.0
        self._glances: list[Glance] = []
        self._failure = ""
        self._ended = threading.Event()

    @property
    def over(self) -> bool:
        return self._ended.is_set()

    @property
    def glances(self) -> tuple[Glance, ...]:
        return tuple(self._glances)

    def may_look(self, serving_s: float) -> bool:
        """Whether the shadow may look at a frame on which the serving model has just spent `serving_s`. It runs into debt by one
        prediction at most, and rests until that is earned."""
        self._credit_s = min(self._credit_s + self.rules.share_frac * serving_s, self._dearest_s())
        # A clock too coarse to see a prediction says 0: then every frame is affordable.
        return not self.over and (self._credit_s > 0 or serving_s == 0)

    def _dearest_s(self) -> float:
        """Rests are not saved up for more than one prediction."""
        return max((g.new_s for g in self._glances), default=math.inf)

    def limit_s(self, serving_s: float) -> float:
        """CPU seconds after which a single prediction is broken off."""
        return OVERTIME * max(self.rules.slow_ratio * serving_s, 10 * FAST_S)

    def add(self, serving: Detections, new: Detections, *, serving_s: float, new_s: float) -> None:
        """What both said of a frame."""
        self._credit_s -= new_s
        if not is_finite(new):
            self.fail("it gave numbers that are none (NaN or infinite) on a live frame")
            return
        sure = int((serving.score >= SURE_SCORE).sum())
        self._glances.append(Glance(serving=len(serving), sure=sure, new=len(new), serving_s=serving_s, new_s=new_s))
        if len(self._glances) >= self.rules.frames:
            self._ended.set()

    def fail(self, reason: str) -> None:
        """Ends the run; the first reason counts."""
        self._failure = self._failure or reason
        self._ended.set()

    def verdict(self) -> str:
        """Waits for the end, at most `most_s`. Why the new model must not take over, '': it may."""
        self._ended.wait(self.rules.most_s)
        self._ended.set()
        return self._failure or judge(tuple(self._glances), self.rules, *self._qualities)


def judge(
    glances: Sequence[Glance], rules: ShadowRules, serving_quality: float | None = None, quality: float | None = None
) -> str:
    """Why a model that did so beside the serving one must not take over, '': it may. Nothing is said of speed and counts after fewer
    than `LEAST_LOOKS` frames: the gate has found it better, and a camera that gives no frames is no reason to distrust it."""
    if len(glances) < LEAST_LOOKS:
        return ""
    ratio = plausible_ratio(serving_quality, quality) or rules.count_ratio
    return _slow(glances, rules.slow_ratio) or _flood(glances, max(ratio, rules.count_ratio)) or _blind(glances, 1 / ratio)


def plausible_ratio(serving_quality: float | None, quality: float | None) -> float | None:
    """How many times more boxes than the serving model the new one may have (and the other way round), from their F1 on the same
    labels; None where one is not known, infinite where one is 0.

    With T right of P boxes and L labels, F1 = 2T / (P + L). Because T <= L and T <= P, a model of quality f has between f / (2 - f) and
    (2 - f) / f boxes per label; the largest ratio of two such counts is the product of the two upper bounds. Own derivation: what a
    flood is has no source, and a fixed factor would refuse the very models that retraining is for (a serving one that has become nearly
    blind at night has few boxes)."""
    if serving_quality is None or quality is None:
        return None
    if serving_quality <= 0 or quality <= 0:
        return math.inf
    return (2 - serving_quality) / serving_quality * (2 - quality) / quality


def is_finite(found: Detections) -> bool:
    # By sums of squares (finite for pixels below 1e19), which take a third of the time of a look at each: asked of every frame.
    return math.isfinite(np.vdot(found.xyxy, found.xyxy) + np.vdot(found.score, found.score))


def overtime(cpu_s: Callable[[], float], limit_s: float) -> Callable[[], None]:
    """A yield point that raises Overtime once the calling thread has used `limit_s` since now."""
    until_s = cpu_s() + limit_s

    def check() -> None:
        if cpu_s() > until_s:
            raise Overtime

    return check


def said_of(error: Exception) -> str:
    """A failure on a live frame in words."""
    if isinstance(error, Overtime):
        return "it is far slower than the present one: a prediction was broken off"
    return f"it failed on a live frame: {redact(f'{type(error).__name__}: {error}')}"


def _slow(glances: Sequence[Glance], allowed: float) -> str:
    new_s, serving_s = (statistics.median(values) for values in zip(*((g.new_s, g.serving_s) for g in glances), strict=True))
    if new_s <= max(FAST_S, allowed * serving_s):
        return ""
    return f"it is too slow: {1000 * new_s:.0f} ms of compute a frame, the present one needs {1000 * serving_s:.0f} ms"


def _flood(glances: Sequence[Glance], allowed: float) -> str:
    new, serving = sum(g.new for g in glances), sum(g.serving for g in glances)
    # A frame without boxes counts as one with one: small numbers are no floods.
    if new <= allowed * max(serving, len(glances)):
        return ""
    return f"it floods: {new} objects on {len(glances)} live frames, the present one {serving}; its golden quality does not explain it"


def _blind(glances: Sequence[Glance], least_frac: float) -> str:
    looked = [g for g in glances if g.sure]
    sure, new = sum(g.sure for g in looked), sum(g.new for g in looked)
    # Every sure object is found with at least this probability if both qualities are what they were measured to be.
    expected = least_frac * sure
    if expected < -math.log(CHANCE) or new > CHANCE * expected:
        return ""
    return f"it is blind: {new} objects where the present one is sure of {sure}, on {len(looked)} live frames"
