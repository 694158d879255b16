"""`driftbox decide SYSTEM`: JSON in, JSON out, through the same pure code that the box runs. One documented schema per system.

The scheduler has no clock, so `plan_ms` is measured with the clock the caller hands in and is null without one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from configs.errors import UsageError
from scheduler.decide.ekya import EkyaAnswer, EkyaInput, decide_ekya
from scheduler.decide.inputs import Clock, parse

__all__ = ["SYSTEMS", "Clock", "EkyaAnswer", "EkyaInput", "System", "decide", "decide_ekya", "parse", "system"]


@dataclass(frozen=True, kw_only=True)
class System:
    """One system of `driftbox decide`."""

    decide: Callable[[Any, Clock | None], dict[str, Any]]
    input_model: type[BaseModel]
    answer_model: type[BaseModel]

    def schema(self) -> dict[str, Any]:
        """JSON schemas (draft 2020-12) of what goes in and what comes out."""
        return {
            "input": self.input_model.model_json_schema(),
            "answer": self.answer_model.model_json_schema(mode="serialization"),
        }


#: Every system that can be asked.
SYSTEMS: dict[str, System] = {
    "ekya": System(decide=decide_ekya, input_model=EkyaInput, answer_model=EkyaAnswer),
}


def system(name: str) -> System:
    """The system called `name`. Errors: UsageError listing the known ones."""
    if name not in SYSTEMS:
        raise UsageError(f"unknown system '{name}'", subject=name, remedy=f"known: {', '.join(SYSTEMS)}")
    return SYSTEMS[name]


def decide(name: str, data: Any, clock: Clock | None = None) -> dict[str, Any]:
    """What the system `name` decides on `data`. Errors: UsageError, ConfigError."""
    return system(name).decide(data, clock)
