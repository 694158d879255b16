"""`driftbox decide SYSTEM`: JSON in, JSON out, through the same pure code that the box runs. One documented schema per system.

The scheduler has no clock, so `plan_ms` is measured with the clock the caller hands in and is null without one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from configs.errors import UsageError
from scheduler.decide.ekya import EkyaAnswer, EkyaInput, decide_ekya, tables
from scheduler.decide.fluid import FluidAnswer, FluidInput, decide_fluid, fluid_tables
from scheduler.decide.inputs import Clock, Decide, Table, parse
from scheduler.decide.orloj import OrlojAnswer, OrlojInput, decide_orloj, orloj_tables
from scheduler.decide.salus import SalusAnswer, SalusInput, decide_salus, salus_tables
from scheduler.decide.slaq import SlaqAnswer, SlaqInput, decide_slaq, slaq_tables
from scheduler.decide.videostorm import VideostormAnswer, VideostormInput, decide_videostorm, videostorm_tables

__all__ = ["SYSTEMS", "Clock", "EkyaAnswer", "EkyaInput", "System", "decide", "decide_ekya", "parse", "system"]


@dataclass(frozen=True, kw_only=True)
class System:
    """One system of `driftbox decide`."""

    decide: Decide
    input_model: type[BaseModel]
    answer_model: type[BaseModel]
    #: An explained answer as a table for people; None: it is shown as JSON.
    tables: Callable[[dict[str, Any]], Sequence[Table]] | None = None

    def schema(self) -> dict[str, Any]:
        """JSON schemas (draft 2020-12) of what goes in and what comes out."""
        return {
            "input": self.input_model.model_json_schema(),
            "answer": self.answer_model.model_json_schema(mode="serialization"),
        }


#: Every system that can be asked.
SYSTEMS: dict[str, System] = {
    "ekya": System(decide=decide_ekya, input_model=EkyaInput, answer_model=EkyaAnswer, tables=tables),
    "slaq": System(decide=decide_slaq, input_model=SlaqInput, answer_model=SlaqAnswer, tables=slaq_tables),
    "salus": System(decide=decide_salus, input_model=SalusInput, answer_model=SalusAnswer, tables=salus_tables),
    "fluid": System(decide=decide_fluid, input_model=FluidInput, answer_model=FluidAnswer, tables=fluid_tables),
    "orloj": System(decide=decide_orloj, input_model=OrlojInput, answer_model=OrlojAnswer, tables=orloj_tables),
    "videostorm": System(
        decide=decide_videostorm,
        input_model=VideostormInput,
        answer_model=VideostormAnswer,
        tables=videostorm_tables,
    ),
}


def system(name: str, *, also: Sequence[str] = ()) -> System:
    """The system called `name`. also: what the caller knows beside these. Errors: UsageError listing the known ones."""
    if name not in SYSTEMS:
        raise UsageError(f"unknown system '{name}'", subject=name, remedy=f"known: {', '.join((*SYSTEMS, *also))}")
    return SYSTEMS[name]


def decide(name: str, data: Any, clock: Clock | None = None, *, explain: bool = False) -> dict[str, Any]:
    """What the system `name` decides on `data`, and why if it is to `explain`. Errors: UsageError, ConfigError."""
    return system(name).decide(data, clock, explain=explain)
