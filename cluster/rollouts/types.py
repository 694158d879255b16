"""Staged rollouts as values. All of them go through JSON and back (`scheduler.fleet.codec.as_dict`, `decode`)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from scheduler.fleet.types import CameraKey, checked

#: running: offers stand; stopped: by a rule or by the owner, nothing is offered, whoever serves the version goes on with it; done: all
#: boxes have answered and have soaked; returning: the version is being taken back; returned: nobody serves it any more.
State = Literal["running", "stopped", "done", "returning", "returned"]
#: What a camera made of its offer; "" is no answer yet.
Answer = Literal["", "serving", "refused", "failed", "withdrawn"]

#: Newest decisions that are kept.
MOST_DECISIONS = 200


@dataclass(frozen=True, kw_only=True)
class RolloutRules:
    """When a rollout goes on and when it stops.

    steps_frac: part of the boxes that has the offer in each step, rising to 1; at least one box. soak_s: how long a step is watched
    after its boxes have answered; answered_frac: part of a step's cameras that must have answered (boxes that are away are waited
    for). refused_frac: more refusals (and failures) than this part of the answers stop it, once `fewest_answers` (or the whole step)
    have answered. margin: fall of quality (0-1), per camera and less what cameras without the version went through, that stops it;
    sigma: standard deviation of what a box's quality changes by itself from one time to another (its scene), at least, where other boxes
    show how much that is; lone_sigma: where too few do, and an evening looks like harm (only measurements on the same pictures
    are free of that); risk: chance that labels stop a version which does no harm, over all looks together.
    low_reports, low_s: where a box tells no measurements, its reports must tell a fall so many times in a row, over so long
    (`evidence`): longer than a box prepares a window."""

    steps_frac: tuple[float, ...] = (0.0, 0.1, 0.5, 1.0)
    soak_s: float = 3600.0
    answered_frac: float = 0.8
    refused_frac: float = 0.5
    fewest_answers: int = 4
    margin: float = 0.03
    sigma: float = 0.02
    lone_sigma: float = 0.15
    risk: float = 0.05
    low_reports: int = 6
    low_s: float = 600.0

    def __post_init__(self) -> None:
        rising = all(a < b for a, b in zip(self.steps_frac, self.steps_frac[1:], strict=False))
        if not self.steps_frac or not rising or self.steps_frac[-1] != 1.0 or self.steps_frac[0] < 0:
            raise ValueError(f"steps_frac must rise from 0 or more to 1, got {self.steps_frac}")
        for name in ("answered_frac", "refused_frac"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} must be in (0, 1], got {getattr(self, name)}")
        for name in ("soak_s", "margin", "sigma", "lone_sigma", "low_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be 0 or more, got {getattr(self, name)}")
        if not 0 < self.risk < 1:
            raise ValueError(f"risk must be above 0 and below 1, got {self.risk}")
        for name in ("fewest_answers", "low_reports"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, got {getattr(self, name)}")


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What was decided when, by whom ("rules", or a person) and why, in words."""

    at_utc_s: float
    what: str
    reason: str
    by: str = "rules"


@dataclass(frozen=True, kw_only=True)
class Watched:
    """A camera of a rollout. group: box that watched it when the rollout began; it has the offer with that box, wherever it is by then.
    step: in which it was offered the version, None not yet; answer: what its box made of it; forgiven: the owner has seen the answer
    and went on. version: what its box calls the version, '' not known. starts: its quality when each step began, None not measured;
    last: newest.

    By labels: error: standard error of `last` (None: by reports), start_error: of what it was when its own step began; told_by, number:
    the box and its newest measurement that was taken in; after: (quality, standard error) of the newest measurements since it serves
    the version, after_count: how many there were (or reports); pair_sum, pair_var, pair_count: gains over what it replaced, on the same
    pictures: sums of them and of their squared errors. By reports: message: the newest that was taken in; low_reports, low_best,
    low_since_utc_s: how many in a row told a fall, the best of them, since when; lasting: that counts (`cluster.rollouts.evidence`)."""

    camera: CameraKey
    group: str = ""
    step: int | None = None
    answer: Answer = ""
    forgiven: bool = False
    problem: str = ""
    version: str = ""
    starts: tuple[float | None, ...] = ()
    last: float | None = None
    error: float | None = None
    start_error: float | None = None
    told_by: str = ""
    number: int = 0
    after: tuple[tuple[float, float], ...] = ()
    after_count: int = 0
    pair_sum: float = 0.0
    pair_var: float = 0.0
    pair_count: int = 0
    message: str = ""
    low_reports: int = 0
    low_best: float = 0.0
    low_since_utc_s: float | None = None
    lasting: bool = False

    @property
    def start(self) -> float | None:
        """Its quality when its own step began; None: not measured."""
        return None if self.step is None or self.step >= len(self.starts) else self.starts[self.step]


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """One version on its way. parcel: name of the signed bundle, the same for all boxes (`rules.parcel_for`); boxes: in the order in
    which they get it, decided once; step: present one, -1 before the first; step_utc_s: when it began; settled_utc_s: since when enough
    of it have answered, None they have not; alarms: (box, sentence) that were there before, or that the owner has seen."""

    id: str
    parcel: str
    cameras: tuple[Watched, ...]
    name: str = ""
    rules: RolloutRules = RolloutRules()
    state: State = "running"
    begun_utc_s: float = 0.0
    boxes: tuple[str, ...] = ()
    step: int = -1
    step_utc_s: float = 0.0
    settled_utc_s: float | None = None
    alarms: tuple[tuple[str, str], ...] = ()
    decisions: tuple[Decision, ...] = ()

    def __post_init__(self) -> None:
        checked(self.id, "a rollout")
        if not self.cameras or len({w.camera for w in self.cameras}) != len(self.cameras):
            raise ValueError(f"rollout {self.id}: its cameras must be some, each once")

    @property
    def reason(self) -> str:
        """Why it is as it is: of the newest decision."""
        return self.decisions[-1].reason if self.decisions else ""

    def counts(self) -> dict[str, int]:
        """Cameras by what became of them: waiting (not offered), offered (no answer), serving, refused, failed, withdrawn."""
        found = dict.fromkeys(("waiting", "offered", "serving", "refused", "failed", "withdrawn"), 0)
        for watched in self.cameras:
            found["waiting" if watched.step is None else watched.answer or "offered"] += 1
        return found
