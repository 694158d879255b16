"""What the pool's threads are handed: a camera's call with its pictures, the batch in work, and the answers to it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from configs.errors import JobError, redact
from edge.pool.shared import SharedModel
from edge.shadow import is_finite
from models.serving.served import Predicts
from scheduler.orloj.types import Batch, Request
from scheduler.types import Detections

log = logging.getLogger("driftbox")


class Asked:
    """One picture on its way. Its fields belong to the pool's lock."""

    def __init__(self, call: Call, image: np.ndarray, request: Request) -> None:
        self.call, self.image, self.request = call, image, request
        self.state: Literal["waits", "runs", "done"] = "waits"
        self.found: Detections | None = None


class Call:
    """One `predict` of a front: its pictures, and where its camera sleeps."""

    def __init__(self, model: SharedModel, app: str, job: str, score_min: float, lock: threading.Lock) -> None:
        self.model, self.app, self.job, self.score_min = model, app, job, score_min
        self.done = threading.Condition(lock)
        self.asked: list[Asked] = []
        self.left = 0
        self.error: Exception | None = None
        self.spent_s = 0.0

    def waits(self) -> list[Asked]:
        return [asked for asked in self.asked if asked.state == "waits"]


@dataclass(kw_only=True, eq=False)
class Running:
    """A batch in work. asked: none of it is anybody's where it is only measured; beside: what else ran when it began."""

    batch: Batch
    model: SharedModel
    asked: list[Asked]
    since_s: float
    beside: str


@dataclass(kw_only=True, eq=False)
class Answer:
    """What became of one picture. compute_s: what was spent on it."""

    found: Detections | None = None
    error: Exception | None = None
    compute_s: float = 0.0


def answers_of(detector: Predicts, asked: Sequence[Asked], compute_s: Callable[[], float]) -> tuple[list[Answer], bool]:
    """Runs a batch; picture by picture where together they fail, and again alone those whose numbers are none. The second value:
    whether once was enough."""
    try:
        answers = [Answer(found=found) for found in _predicted(detector, asked)]
    except Exception as error:
        if len(asked) == 1:
            return [Answer(error=error)], False
        log.info("a batch of %d failed and is run one by one: %s", len(asked), redact(f"{type(error).__name__}: {error}"))
        return [_alone(detector, one, compute_s) for one in asked], False
    spoilt = [n for n, answer in enumerate(answers) if len(asked) > 1 and answer.found and not is_finite(answer.found)]
    for n in spoilt:
        answers[n] = _alone(detector, asked[n], compute_s)
    return answers, not spoilt


def _alone(detector: Predicts, asked: Asked, compute_s: Callable[[], float]) -> Answer:
    before_s = compute_s()
    try:
        [found] = _predicted(detector, [asked])
    except Exception as error:
        return Answer(error=error, compute_s=compute_s() - before_s)
    return Answer(found=found, compute_s=compute_s() - before_s)


def _predicted(detector: Predicts, asked: Sequence[Asked]) -> list[Detections]:
    """At the lowest threshold that anybody wants; each gets what is above its own. Raises JobError for an answer that is none."""
    lowest = min(one.call.score_min for one in asked)
    found = detector.predict([one.image for one in asked], score_min=lowest)
    if not isinstance(found, list) or len(found) != len(asked) or not all(isinstance(one, Detections) for one in found):
        raise JobError(
            f"{detector.spec.arch} gave no answer for each of {len(asked)} pictures", subject=detector.spec.arch,
            remedy="its `predict` must return one Detections per image", code="exception",
        )  # fmt: skip
    return [
        answer if one.call.score_min <= lowest else answer.above(one.call.score_min)
        for answer, one in zip(found, asked, strict=True)
    ]


def share_out(answers: list[Answer], spent_s: float) -> None:
    """What was spent on all of them together is split evenly: padded to the longest, each takes as long."""
    together_s = max(0.0, spent_s - sum(answer.compute_s for answer in answers))
    for answer in answers:
        answer.compute_s += together_s / len(answers)


def found_of(asked: Asked) -> Detections:
    assert asked.found is not None, "a call that is over has all of its answers"
    return asked.found
