"""What slower frame rates would leave of a camera's quality, seen on its live frames: for a camera without a stored profile.

It is known for each scene of the camera by itself (`scheduler.scenes`), so it is there at once when a scene comes back.

Each answer of its model is held against the newest one after it has grown old (`scheduler.ekya.staleness`): nothing is computed for that
but overlaps of boxes, and nothing is labelled.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from edge.inference import Shown
from models.evaluate import match_counts
from scheduler.ekya.staleness import Agreement, Fading, fading
from scheduler.scenes import MOST
from scheduler.types import Detections

#: Ages at which answers are compared: what a rate of one in two, three, ... frames shows, for 12 frames a second as for one.
AGES_S = (1 / 12, 1 / 6, 1 / 3, 2 / 3, 4 / 3, 8 / 3)
#: An answer stands for such an age when its own is off by no more than this part of it.
OFF_FRAC = 0.25
#: Answers are kept so long, and not more of them.
KEPT_S, KEPT_MAX = AGES_S[-1] * (1 + OFF_FRAC), 128
#: Between two comparisons: overlaps of 60 cameras' boxes at each frame would take a core.
EVERY_S = 4.0
#: After so long what was seen counts half: scenes change, and models.
HALF_LIFE_S = 300.0


@dataclass(frozen=True, kw_only=True)
class _Answer:
    at_s: float
    version: str
    detections: Detections


@dataclass(kw_only=True)
class _Total:
    """Of one of AGES_S, weighted by how new it is."""

    weight: float = 0.0
    age_s: float = 0.0
    tp: float = 0.0
    fp: float = 0.0
    fn: float = 0.0

    def add(self, *, age_s: float, tp: float, fp: float, fn: float) -> None:
        self.weight, self.age_s = self.weight + 1, self.age_s + age_s
        self.tp, self.fp, self.fn = self.tp + tp, self.fp + fp, self.fn + fn

    def fade(self, part: float) -> None:
        self.weight, self.age_s = self.weight * part, self.age_s * part
        self.tp, self.fp, self.fn = self.tp * part, self.fp * part, self.fn * part


def _nothing_seen() -> dict[float, _Total]:
    return {age_s: _Total() for age_s in AGES_S}


class RateMeter:
    """Of one camera that detects. Told of each analysed frame in the worker's thread, asked in another. score_min: of boxes that
    count."""

    def __init__(self, *, score_min: float) -> None:
        self._score_min = score_min
        self._lock = threading.Lock()
        self._answers: deque[_Answer] = deque(maxlen=KEPT_MAX)
        self._scenes: dict[int, dict[float, _Total]] = {}  # the present one last
        self._totals = self._scenes[0] = _nothing_seen()
        self._looked_s = float("-inf")

    def on_shown(self, shown: Shown) -> None:
        """Returns at once."""
        answer = _Answer(at_s=shown.frame.captured_s, version=shown.version, detections=shown.detections)
        with self._lock:
            self._answers.append(answer)

    def due(self, at_s: float) -> bool:
        """Is it time for a look?"""
        return at_s - self._looked_s >= EVERY_S

    def look(self, at_s: float) -> Fading | None:
        """What has been seen so far, at most every EVERY_S; None: nothing that says more than before."""
        if not self.due(at_s):
            return None
        passed_s = at_s - self._looked_s
        self._looked_s = at_s
        for total in self._totals.values():
            total.fade(0.5 ** (passed_s / HALF_LIFE_S))
        with self._lock:
            answers = [a for a in self._answers if a.at_s >= self._answers[-1].at_s - KEPT_S]
            self._answers.clear()
        if not answers:
            return None
        self._compare(answers)
        return fading(self._agreements())

    def turn_to(self, scene: int) -> Fading | None:
        """The camera sees that scene now (0: the first one). What was seen in it before; None: nothing that says anything."""
        with self._lock:
            self._answers.clear()
        known = self._scenes.pop(scene) if scene in self._scenes else _nothing_seen()
        self._totals = self._scenes[scene] = known
        while len(self._scenes) > MOST:
            del self._scenes[next(iter(self._scenes))]
        return fading(self._agreements())

    def _compare(self, answers: list[_Answer]) -> None:
        newest = answers[-1]
        truth = newest.detections.above(self._score_min)
        older = [a for a in answers[:-1] if a.version == newest.version]
        for age_s, total in self._totals.items():
            old = min(older, key=lambda a: abs(newest.at_s - a.at_s - age_s), default=None)
            if old is None or abs(newest.at_s - old.at_s - age_s) > OFF_FRAC * age_s:
                continue
            seen = match_counts(old.detections, truth, score_min=self._score_min)
            total.add(age_s=newest.at_s - old.at_s, tp=seen.tp, fp=seen.fp, fn=seen.fn)

    def _agreements(self) -> Iterator[Agreement]:
        for total in self._totals.values():
            if total.weight > 0:
                yield Agreement(age_s=total.age_s / total.weight, tp=total.tp, fp=total.fp, fn=total.fn)
