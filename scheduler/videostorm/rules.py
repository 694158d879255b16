"""How queries are to be treated by the allocator: objective, horizon, and the repairs of the printed formulas (card, sections 5-7)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

Objective = Literal["sum", "maxmin"]


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What `allocate` follows. The text names neither horizon nor any of the repairs; values are ours.

    objective: "sum" of utilities, or the smallest one first ("maxmin", max-min fairness). horizon_s: T of the predictor; two to five
    times the time between two allocations, since what is won now shows in lag only later. quantum_pct: d, step in which shares are
    given. lag_goal_frac, lag_margin_frac: above this part of its goal, lag costs that part of a_L already: the printed objective spends
    all slack and keeps it spent. (The full a_L from there would starve those beyond their goal for those who are not yet.)
    lag_cost: utility that a lag at the reduced goal costs, linearly less below, so that backlog is worth clearing. min_gain: a knob
    change has to gain more utility than this (hysteresis). exact_steps: while queries * (steps of capacity)^2 is not more, objective
    "sum" is solved exactly by dynamic programming beside the greedy; 0: never.
    printed: the formulas as printed: none of these repairs, no guard by the fair and the previous plan, MAXMIN in unit steps, nothing
    handed to backlog. Errors: ValueError.
    """

    objective: Objective = "sum"
    horizon_s: float = 3.0
    quantum_pct: float = 1.0
    lag_goal_frac: float = 0.8
    lag_margin_frac: float = 0.5
    lag_cost: float = 0.05
    min_gain: float = 0.02
    exact_steps: int = 1_000_000
    printed: bool = False

    def __post_init__(self) -> None:
        if self.objective not in get_args(Objective):
            raise ValueError(f"unknown objective '{self.objective}'; known: {', '.join(get_args(Objective))}")
        for name in ("horizon_s", "quantum_pct"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise ValueError(f"{name} must be a positive number, got {getattr(self, name)}")
        for name in ("lag_cost", "min_gain", "exact_steps"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise ValueError(f"{name} must be a number from 0 on, got {getattr(self, name)}")
        for name in ("lag_goal_frac", "lag_margin_frac"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be from 0 to 1, got {getattr(self, name)}")

    @property
    def goal_frac(self) -> float:
        """lag_goal_frac, as it applies."""
        return 1.0 if self.printed else self.lag_goal_frac

    @property
    def margin_frac(self) -> float:
        """lag_margin_frac, as it applies."""
        return 0.0 if self.printed else self.lag_margin_frac

    @property
    def goal_cost(self) -> float:
        """lag_cost, as it applies."""
        return 0.0 if self.printed else self.lag_cost

    @property
    def change_cost(self) -> float:
        """min_gain, as it applies."""
        return 0.0 if self.printed else self.min_gain
