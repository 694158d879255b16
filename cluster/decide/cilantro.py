"""`driftbox decide cilantro`: divide a capacity between customers, or between the stages of one application. Input and answer as
docs/decide.md describes them.

Customers: the same functions that the controller's round calls; reports go through `observe`, shares come from `allocate`. Stages:
`cluster.cilantro.pipeline`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, ValidationInfo, field_validator

from cluster.cilantro.allocator import LEARNED_FROM, MOST_UNITS, AllocatorSettings, AllocatorState, Memory, allocate, observe
from cluster.cilantro.fallbacks import Profiled
from cluster.cilantro.pipeline import StageRound, StageSettings, next_units
from cluster.cilantro.policies import Settings
from cluster.cilantro.utility import utility
from cluster.types import Customer, Grant, Performance
from scheduler.decide import System
from scheduler.decide.inputs import Clock, Strict, Table, no_doubles, parse

#: Most reports of one customer that are read.
MAX_REPORTS = 5_000
#: Shares at which an explained answer shows a curve, as parts of the share given.
SHOWN = (0.5, 1.0, 1.5, 2.0)
#: Most rounds of an application that are learned from: the process behind takes the third power of their number.
MAX_ROUNDS = 500

Id = Annotated[str, Field(pattern=r"^[a-z0-9_-]{1,63}$")]
Pct = Annotated[float, Field(gt=0, le=1e9)]
Part = Annotated[float, Field(gt=0, le=1)]
Number = Annotated[float, Field(ge=-1e12, le=1e12)]


class ReportInput(Strict):
    alloc_pct: Pct = Field(description="share received")
    load: Annotated[float, Field(gt=0, le=1e9)] = Field(description="frames due per second")
    value: float = Field(ge=0, le=1, description="measured performance")
    sigma: float = Field(0.05, ge=0, le=1, description="standard deviation of it")
    end_s: Number = Field(description="end of the interval, in the clock of now_s; must rise from report to report")
    proxy: bool = Field(False, description="value was not measured, but stands for it")


class CustomerInput(Strict):
    id: Id
    goal: Part = Field(0.8, description="performance at which it is content (SLO)")
    measure: Literal["quality", "deadline"] = "quality"
    utility: Literal["linear", "quadratic", "sqrt", "identity"] = "linear"
    weight: Annotated[float, Field(gt=0, le=1e6)] = Field(1.0, description="among its siblings")
    path: list[Id] = Field(default_factory=list, max_length=16, description="groups from the root to it")
    stated_pct: Pct | None = Field(None, description="what it says it needs, while nothing can be learned")
    at_least_pct: Pct = Field(1.0, description="never less, as long as there is enough for everybody's")
    reports: list[ReportInput] = Field(default_factory=list, max_length=MAX_REPORTS, description="what it told, oldest first")
    curve: list[Annotated[list[float], Field(min_length=2, max_length=2)]] = Field(
        default_factory=list, max_length=1000, description="known instead of learned: [pct per unit load, performance], rising"
    )
    load: Annotated[float, Field(gt=0, le=1e9)] | None = Field(None, description="load expected, with a curve")
    before_pct: Pct | None = Field(None, description="share of the round before")
    demand_before_pct: Pct | None = Field(None, description="demand of the round before")

    @field_validator("curve")
    @classmethod
    def _rises(cls, curve: list[list[float]], info: ValidationInfo) -> list[list[float]]:
        xs, values = [x for x, _ in curve], [y for _, y in curve]
        if xs != sorted(set(xs)) or values != sorted(values) or any(v < 0 for v in xs + values):
            raise ValueError("must rise in the first number, not fall in the second, and have nothing below 0")
        if curve and info.data.get("reports"):
            raise ValueError("either reports or a curve")
        return curve

    @field_validator("load")
    @classmethod
    def _with_a_curve(cls, load: float | None, info: ValidationInfo) -> float | None:
        if load is not None and not info.data.get("curve", True):
            raise ValueError("load is for a known curve; reports have their own")
        return load


class GroupInput(Strict):
    path: list[Id] = Field(min_length=1, max_length=16)
    weight: Annotated[float, Field(gt=0, le=1e6)]


class StageRoundInput(Strict):
    share_pct: list[Pct] = Field(min_length=2, max_length=64, description="what each stage had")
    value: Number = Field(
        description="what came of it, the more the better, of the whole application: minus its P99 latency, say"
    )
    load: Annotated[float, Field(gt=0, le=1e9)] = Field(1.0, description="what it was asked for meanwhile, per second")


class StagesInput(Strict):
    ids: list[Id] = Field(min_length=2, max_length=64, description="the stages, in any order")
    rounds: list[StageRoundInput] = Field(default_factory=list, max_length=MAX_ROUNDS, description="so far, oldest first")
    load: Annotated[float, Field(gt=0, le=1e9)] = Field(1.0, description="expected in the coming round")
    least_pct: Pct = Field(4.0, description="of each stage")
    seed: int = Field(0, ge=0, le=2**31, description="of what is tried out; the same input gives the same answer")

    @field_validator("ids")
    @classmethod
    def _no_doubles(cls, ids: list[str]) -> list[str]:
        no_doubles(ids, "id")
        return ids

    @field_validator("rounds")
    @classmethod
    def _of_these_stages(cls, rounds: list[StageRoundInput], info: ValidationInfo) -> list[StageRoundInput]:
        count = len(info.data.get("ids", ()))
        if any(len(one.share_pct) != count for one in rounds):
            raise ValueError(f"each round needs a share for each of the {count} stages")
        return rounds


class CilantroInput(Strict):
    """What `decide cilantro` reads: customers, or the stages of one application."""

    capacity_pct: Annotated[float, Field(gt=0, le=1e7)] = Field(description="of all boxes together, percent of one GPU")
    quantum_pct: Pct = Field(1.0, description="unit of a share")
    now_s: Number = Field(0.0, description="present time")
    objective: Literal["sw", "ew", "njc", "fair"] = Field("njc", description="what the shares are for")
    variant: Literal["ours", "published", "released"] = Field("ours", description="how what is uncertain is used")
    box: Annotated[int, Field(gt=0, le=1_000_000)] | None = Field(
        None, description="B: units that a share may move in a round; published: 10 unless given"
    )
    stale_s: Pct = Field(600.0, description="silence after which what was learned is not used")
    groups: list[GroupInput] = Field(default_factory=list, max_length=10_000, description="weights of groups, default 1")
    stages: StagesInput | None = Field(None, description="in place of customers")
    customers: list[CustomerInput] = Field(default_factory=list, max_length=2000, validate_default=True)

    @field_validator("stages")
    @classmethod
    def _fit(cls, stages: StagesInput | None, info: ValidationInfo) -> StagesInput | None:
        if stages is None or not {"capacity_pct", "quantum_pct"} <= info.data.keys():
            return stages
        units = info.data["capacity_pct"] / info.data["quantum_pct"]
        if not len(stages.ids) * _least(stages, info.data["quantum_pct"]) <= units <= MOST_UNITS:
            raise ValueError(
                f"{len(stages.ids)} stages of {stages.least_pct:g} pct or more cannot divide {info.data['capacity_pct']:g} pct"
                f" in units of {info.data['quantum_pct']:g} pct, of which there can be {MOST_UNITS}"
            )
        return stages

    @field_validator("customers")
    @classmethod
    def _no_doubles(cls, customers: list[CustomerInput], info: ValidationInfo) -> list[CustomerInput]:
        no_doubles((customer.id for customer in customers), "id")
        if "stages" in info.data and bool(customers) is (info.data["stages"] is not None):
            raise ValueError("needs at least one customer, or stages in place of all")
        return customers


def _least(stages: StagesInput, quantum_pct: float) -> int:
    """Units of each stage."""
    return max(1, math.ceil(stages.least_pct / quantum_pct - 1e-9))


class CustomerAnswer(Strict):
    id: str
    share_pct: float
    demand_pct: float | None = Field(description="what was thought to be needed for the goal; null: unknown")
    predicted: float | None = Field(description="performance expected with the share; null: nothing is known")
    predicted_utility: float | None
    why: str


class StageAnswer(Strict):
    id: str
    share_pct: float


class CurvePoint(Strict):
    share_pct: float
    low: float
    middle: float
    high: float


class ExplainAnswer(Strict):
    id: str
    curve: list[CurvePoint] = Field(description="performance believed at parts of the share, at the load expected")


class CilantroAnswer(Strict):
    """What `decide cilantro` prints. Sum of share_pct + spare_pct = capacity_pct, always."""

    objective: str
    variant: str
    spare_pct: float
    social: float | None = Field(description="mean of the predicted utilities; null: some are unknown")
    egalitarian: float | None = Field(description="the smallest of them")
    plan_ms: float | None = Field(description="time to learn and to divide; null where no clock was given")
    customers: list[CustomerAnswer]
    stages: list[StageAnswer] | None = Field(default=None, description="only when stages were asked about")
    explain: list[ExplainAnswer] | None = Field(default=None, description="only when asked for")


def decide_cilantro(data: Any, clock: Clock | None = None, *, explain: bool = False) -> dict[str, Any]:
    """One allocation round, as plain JSON values.

    data: what `json.loads` gave. clock: monotonic seconds, used for `plan_ms` only. explain: the answer shows the curves believed.
    Errors: ConfigError with every problem and its path."""
    given = parse(CilantroInput, data)
    if given.stages is not None:
        return _decide_stages(given, given.stages, clock, explain=explain)
    started_s = clock() if clock else 0.0
    settings = AllocatorSettings(
        policy=_policy(given),
        quantum_pct=given.quantum_pct,
        stale_s=given.stale_s,
        group_weights={tuple(group.path): group.weight for group in given.groups},
    )
    customers = [_customer(one) for one in given.customers]
    state = _state(given, settings)
    _, grants = allocate(state, customers, given.capacity_pct, given.now_s, settings)
    took_ms = (clock() - started_s) * 1000 if clock else None
    rows = [_answer(customer, grants[customer.id]) for customer in customers]
    utilities = [row.predicted_utility for row in rows if row.predicted_utility is not None]
    known = len(utilities) == len(rows)
    answer = CilantroAnswer(
        objective=given.objective,
        variant=given.variant,
        spare_pct=max(0.0, given.capacity_pct - sum(grant.share_pct for grant in grants.values())),
        social=float(np.mean(utilities)) if known else None,
        egalitarian=min(utilities) if known else None,
        plan_ms=took_ms,
        customers=rows,
        explain=_explained(state, given.customers, grants) if explain else None,
    )
    return answer.model_dump(mode="json", exclude={"stages"} if explain else {"explain", "stages"})


def _decide_stages(given: CilantroInput, stages: StagesInput, clock: Clock | None, *, explain: bool) -> dict[str, Any]:
    """The next round of one application. There is nothing to explain: no stage has a curve of its own."""
    started_s = clock() if clock else 0.0
    made = {"ours": StageSettings(), "published": StageSettings.published(), "released": StageSettings.released()}[
        given.variant
    ]
    chosen = replace(made, least=_least(stages, given.quantum_pct), box=made.box if given.box is None else given.box)
    history = [
        StageRound(units=tuple(max(1, round(pct / given.quantum_pct)) for pct in one.share_pct), load=one.load, value=one.value)
        for one in stages.rounds
    ]
    units = next_units(
        history,
        stages=len(stages.ids),
        total=int(given.capacity_pct / given.quantum_pct + 1e-9),
        load=stages.load,
        seed=stages.seed,
        settings=chosen,
    )
    took_ms = (clock() - started_s) * 1000 if clock else None
    rows = [StageAnswer(id=id, share_pct=int(u) * given.quantum_pct) for id, u in zip(stages.ids, units, strict=True)]
    answer = CilantroAnswer(
        objective=given.objective, variant=given.variant, social=None, egalitarian=None, plan_ms=took_ms, customers=[], stages=rows,
        spare_pct=max(0.0, given.capacity_pct - sum(row.share_pct for row in rows)), explain=[],
    )  # fmt: skip
    return answer.model_dump(mode="json", exclude=None if explain else {"explain"})


def cilantro_tables(answer: dict[str, Any]) -> list[Table]:
    """An explained answer for people."""
    if answer.get("stages") is not None:
        rows = [(one["id"], f"{one['share_pct']:.0f}") for one in answer["stages"]]
        return [
            Table(
                title=f"stages ({answer['variant']}): spare {answer['spare_pct']:.0f} pct", columns=("stage", "pct"), rows=rows
            )
        ]
    curves = {one["id"]: one["curve"] for one in answer["explain"]}
    return [
        Table(
            title=f"objective {answer['objective']} ({answer['variant']}): spare {answer['spare_pct']:.0f} pct",
            columns=("customer", "pct", "needs", "expected", "why"),
            rows=[
                (one["id"], f"{one['share_pct']:.0f}", _told(one["demand_pct"], 0), _told(one["predicted"], 2), one["why"])
                for one in answer["customers"]
            ],
        ),
        Table(
            title="performance believed: low / expected / high",
            columns=("customer", *(f"{part:g} x share" for part in SHOWN)),
            rows=[
                (name, *(f"{p['low']:.2f} / {p['middle']:.2f} / {p['high']:.2f}" for p in points))
                for name, points in curves.items()
                if points
            ],
        ),
    ]


def _told(value: float | None, digits: int) -> str | None:
    return None if value is None else f"{value:.{digits}f}"


def _policy(given: CilantroInput) -> Settings:
    made = {
        "ours": lambda o: Settings(objective=o, box=given.box),
        "published": Settings.published,
        "released": Settings.released,
    }
    return made[given.variant](given.objective)


def _customer(given: CustomerInput) -> Customer:
    fields = given.model_dump(include={"id", "goal", "measure", "utility", "weight", "stated_pct", "at_least_pct"})
    return Customer(path=tuple(given.path), **fields)


def _state(given: CilantroInput, settings: AllocatorSettings) -> AllocatorState:
    """Reports are learned as the controller learns them; a known curve stands in for a learned one."""
    state = AllocatorState()
    for one in given.customers:
        if one.curve:
            points = Profiled.of([(x, y) for x, y in one.curve])
            memory = Memory(learner=points, loads=(one.load or 1.0,), reports=LEARNED_FROM, last_s=given.now_s)
            state = AllocatorState(customers={**state.customers, one.id: memory})
        reports = [Performance(customer=one.id, end_utc_s=r.end_s, **r.model_dump(exclude={"end_s"})) for r in one.reports]
        state = observe(state, *reports, settings=settings)
        before = state.customers.get(one.id)
        if before is not None:
            kept = replace(before, share_pct=one.before_pct, demand_pct=one.demand_before_pct)
            state = AllocatorState(customers={**state.customers, one.id: kept})
    return state


def _answer(customer: Customer, grant: Grant) -> CustomerAnswer:
    felt = None if grant.predicted is None else float(utility(grant.predicted, customer.goal, customer.utility))
    return CustomerAnswer(
        id=customer.id,
        share_pct=grant.share_pct,
        demand_pct=grant.demand_pct,
        predicted=grant.predicted,
        predicted_utility=felt,
        why=grant.reason,
    )


def _explained(state: AllocatorState, given: Sequence[CustomerInput], grants: dict[str, Grant]) -> list[ExplainAnswer]:
    """Of customers with reports or a curve; at the mean of the loads they told."""
    told = []
    for one in given:
        memory = state.customers.get(one.id)
        points: list[CurvePoint] = []
        if memory is not None and memory.loads:
            shares = np.array(SHOWN) * grants[one.id].share_pct
            found = memory.learner.bounds(shares / float(np.mean(memory.loads)))
            rows = zip(shares, found.low, found.middle, found.high, strict=True)
            points = [CurvePoint(share_pct=float(s), low=float(a), middle=float(b), high=float(c)) for s, a, b, c in rows]
        told.append(ExplainAnswer(id=one.id, curve=points))
    return told


SYSTEM = System(decide=decide_cilantro, input_model=CilantroInput, answer_model=CilantroAnswer, tables=cilantro_tables)
