"""What the knob allocator speaks in: options of a query, what quality and lag are worth, allocations. Card: VideoStorm, sections 4-7.

Shares and demands are percent of one device (100: one GPU, or one core), as everywhere in the box; the paper counts cores.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Option:
    """A knob configuration c of a query's profile. demand_pct: D(c), device share that keeps up with the live stream; quality: Q(c), 0-1
    against the golden configuration."""

    name: str
    demand_pct: float
    quality: float

    def __post_init__(self) -> None:
        if not (0 <= self.demand_pct < math.inf and 0 <= self.quality <= 1):
            raise ValueError(
                f"option {self.name}: demand from 0 on and quality 0-1 are needed, got {self.demand_pct}, {self.quality}"
            )


@dataclass(frozen=True, kw_only=True)
class Utility:
    """U(Q, L) = base + quality_weight * max(0, Q - quality_goal) - lag_weight_per_s * max(0, L - lag_goal_s), less
    quality_penalty * max(0, quality_goal - Q) (section 5; the paper has no such penalty: 0 gives the printed formula).

    base: U_B; quality_weight: a_Q; quality_goal: Q_M; lag_weight_per_s: a_L; lag_goal_s: L_M; quality_penalty: b_Q."""

    base: float = 0.0
    quality_weight: float = 1.0
    quality_goal: float = 0.0
    lag_weight_per_s: float = 1.0
    lag_goal_s: float = 0.0
    quality_penalty: float = 0.0

    def __post_init__(self) -> None:
        weights = (self.quality_weight, self.quality_goal, self.lag_weight_per_s, self.lag_goal_s, self.quality_penalty)
        if not (math.isfinite(self.base) and all(0 <= n < math.inf for n in weights)):
            raise ValueError(f"a utility needs finite numbers, weights and goals from 0 on, got {self}")

    def at(self, quality: float, lag_s: float) -> float:
        """U(Q, L)."""
        return (
            self.base
            + self.quality_weight * max(0.0, quality - self.quality_goal)
            - self.quality_penalty * max(0.0, self.quality_goal - quality)
            - self.lag_weight_per_s * max(0.0, lag_s - self.lag_goal_s)
        )


@dataclass(frozen=True, kw_only=True)
class Query:
    """One query as the allocator sees it now. options: its profile, dominated ones may be among them; lag_s: L(t), seconds of video that
    wait in front of it; mu: real over profiled demand; current: name of the option it runs with, None: it is new; current_pct: the share
    it has. may_lag: False for a live camera, of which the newest frame wins: what does not fit is skipped, and never waits."""

    id: str
    options: tuple[Option, ...]
    utility: Utility
    lag_s: float = 0.0
    mu: float = 1.0
    current: str | None = None
    current_pct: float = 0.0
    may_lag: bool = True

    def __post_init__(self) -> None:
        if not self.options:
            raise ValueError(f"query {self.id} has no options")
        if not all(map(math.isfinite, (self.lag_s, self.mu, self.current_pct))):
            raise ValueError(f"query {self.id}: lag, mu and present share must be finite numbers")
        if self.lag_s < 0 or self.mu <= 0 or self.current_pct < 0:
            raise ValueError(f"query {self.id}: no negative lag or share, and a positive mu are needed")
        names = {o.name for o in self.options}
        if len(names) < len(self.options):
            raise ValueError(f"query {self.id}: two options have the same name")


@dataclass(frozen=True, kw_only=True)
class Given:
    """One query's part. option: knobs to run with, None: paused for want of capacity; lag_s: predicted at the horizon; utility: expected
    there; quality: of the option, for a live camera times the part of its frames that fits."""

    query: str
    share_pct: float
    option: str | None
    lag_s: float
    utility: float
    quality: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """All queries' parts, in the order they were given. sum of share_pct <= the capacity. unmet: queries whose goals cannot be met now;
    the operator is told."""

    given: tuple[Given, ...]
    spare_pct: float
    unmet: tuple[str, ...] = ()
