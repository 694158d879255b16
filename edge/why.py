"""Why a plan is as it is: the schema of `/api/v1/plans`, and the seam to whoever knows (`edge.box_why`)."""

from __future__ import annotations

from typing import Protocol

from pydantic import Field

from edge.status import View
from scheduler.decide.ekya import EkyaAnswer


class PlanLine(View):
    """A plan in a list."""

    number: int = Field(description="Rises with time.")
    window: int
    at_utc: float
    policy: str
    expected_quality: float = Field(description="Mean over cameras, averaged over the time that was left of the window (0-1).")
    spare_pct: int = Field(description="What nobody was given, percent of one GPU.")
    reasons: tuple[str, ...] = Field(description="One line per camera; before them what made the plan necessary.")
    explainable: bool = Field(description="What it was made from is still kept: it can be explained.")


class PlanList(View):
    """Newest first."""

    plans: tuple[PlanLine, ...] = ()


class Alternative(View):
    """What another policy would have made of the same snapshot."""

    policy: str
    words: str = Field(description="What that policy does, in one sentence.")
    expected_quality: float | None = Field(default=None, description="Mean over cameras (0-1); null: it made no plan.")
    below_floor: int = Field(default=0, description="Cameras under the quality floor before their swap.")
    retrainings: int = Field(default=0, description="Cameras it would retrain.")
    problem: str = Field(default="", description="Why it made none.")


class WhyView(View):
    """A plan explained by the code that plans."""

    number: int
    window: int
    at_utc: float
    in_force: bool = Field(description="It is the newest plan.")
    remaining_s: float = Field(description="What was left of the window.")
    capacity_pct: int = Field(
        description="What the plan gave out, percent of one GPU; gates and preparation have theirs beside it."
    )
    quantum_pct: int = Field(description="Step in which shares move.")
    min_quality: float = Field(description="Floor of every camera's quality before its swap (0-1).")
    estimate: str = Field(description="What a finished retraining's share does in the estimate: static or hand-back.")
    reasons: tuple[str, ...]
    answer: EkyaAnswer = Field(description="The plan as `driftbox decide ekya --explain` tells it.")
    alternatives: tuple[Alternative, ...] = ()
    took_ms: float = Field(description="Time that explaining took.")


class WhySource(Protocol):
    """Both are called from web threads. Raise UsageError ('not_found'), StorageError."""

    def plans(self, limit: int) -> PlanList: ...

    def why(self, number: int | None) -> WhyView:
        """number: of `PlanLine`; None: the plan in force."""
