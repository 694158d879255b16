"""What a camera's model answers, summed up for the engine (`scheduler.answers`): a look at every analysed frame that costs nothing."""

from __future__ import annotations

import threading

from scheduler.answers import Answers
from scheduler.types import Detections


class AnswerMeter:
    """Of one camera. Told of each answer in the worker's thread, asked in another."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begin("")

    def _begin(self, version: str) -> None:
        self._version, self._frames, self._boxes, self._score = version, 0, 0, 0.0

    def add(self, version: str, found: Detections) -> None:
        """Of another version than the last one: what was summed up is no longer of interest."""
        score = float(found.score.sum())
        with self._lock:
            if version != self._version:
                self._begin(version)
            self._frames += 1
            self._boxes += len(found)
            self._score += score

    def take(self) -> Answers | None:
        """Since it was last taken, of the version that answered last; None: nothing was answered."""
        with self._lock:
            version, frames, boxes, score = self._version, self._frames, self._boxes, self._score
            self._begin(version)
        if not frames:
            return None
        return Answers(version=version, frames=frames, boxes=boxes / frames, score=score / boxes if boxes else 0.0)
