"""`driftbox decide videostorm`: divide a share between queries and choose their knobs. Input and answer as docs/decide.md has them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from scheduler.decide.inputs import Clock, Name, Quality, Strict, Table, no_doubles, parse
from scheduler.videostorm import Given, Option, Query, Rules, Utility, allocate, fair_allocation
from scheduler.videostorm.allocate import planned_utility
from scheduler.videostorm.outcome import expected

#: Most quanta of capacity: answers come within seconds.
MAX_QUANTA = 1_000_000

#: Seconds, percent and weights: far from where products of them overflow.
Amount = Annotated[float, Field(ge=0, le=1e9)]
Positive = Annotated[float, Field(ge=1e-6, le=1e9)]
Frac = Annotated[float, Field(ge=0, le=1)]


# --- input ------------------------------------------------------------------------------------------------------------


class OptionInput(Strict):
    name: Name
    demand_pct: Amount = Field(description="share that keeps up with the live stream")
    quality: Quality = Field(description="against the golden configuration")


class QueryInput(Strict):
    id: Name
    options: list[OptionInput] = Field(min_length=1, max_length=1000, description="its profile")
    base: float = Field(0.0, ge=-1e9, le=1e9, description="utility where both goals are just met")
    quality_weight: Amount = Field(1.0, description="utility of one unit of quality above its goal")
    quality_goal: Quality = Field(0.0, description="least quality wanted")
    quality_penalty: Amount = Field(0.0, description="utility that one unit of quality below its goal costs")
    lag_weight_per_s: Amount = Field(1.0, description="utility that one second of lag above its goal costs")
    lag_goal_s: Amount = Field(0.0, description="largest lag wanted")
    lag_s: Amount = Field(0.0, description="seconds of video that wait")
    mu: float = Field(1.0, ge=1e-3, le=1e3, description="real over profiled demand")
    current: Name | None = Field(None, description="option it runs with; null: it is new")
    current_pct: Amount = Field(0.0, description="share it has")
    may_lag: bool = Field(True, description="false: a live camera, of which what does not fit is skipped")

    @field_validator("options")
    @classmethod
    def _differ(cls, options: list[OptionInput]) -> list[OptionInput]:
        no_doubles((option.name for option in options), "name")
        return options


class VideostormInput(Strict):
    """What `decide videostorm` reads."""

    capacity_pct: Amount = Field(description="share to divide, percent of one device")
    quantum_pct: Positive = Field(1.0, description="step in which shares move")
    objective: Literal["sum", "maxmin"] = Field("sum", description="the largest sum of utilities, or the smallest one first")
    horizon_s: Positive = Field(3.0, description="T: how far ahead lag is predicted")
    lag_goal_frac: Frac = Field(0.8, description="lag above this part of its goal costs already")
    lag_margin_frac: Frac = Field(0.5, description="that part of lag_weight_per_s")
    lag_cost: Amount = Field(0.05, description="utility that a lag at the reduced goal costs; less below")
    min_gain: Amount = Field(0.02, description="utility that a change of option has to gain")
    printed: bool = Field(False, description="the paper's formulas without our repairs")
    queries: list[QueryInput] = Field(max_length=10_000, description="queries that share it")

    @field_validator("quantum_pct")
    @classmethod
    def _not_too_fine(cls, quantum_pct: float, info: ValidationInfo) -> float:
        if info.data.get("capacity_pct", 0.0) / quantum_pct > MAX_QUANTA:
            raise ValueError(f"capacity_pct must not hold more than {MAX_QUANTA} quanta")
        return quantum_pct

    @field_validator("queries")
    @classmethod
    def _have_own_ids(cls, queries: list[QueryInput]) -> list[QueryInput]:
        no_doubles((query.id for query in queries), "id")
        return queries


# --- answer -----------------------------------------------------------------------------------------------------------


class QueryAnswer(Strict):
    id: str
    option: str | None = Field(description="knobs to run with; null: paused, there is nothing left for it")
    share_pct: float
    quality: float = Field(description="expected; of a live camera, times the part of its frames that fits")
    lag_s: float = Field(description="predicted after horizon_s")
    utility: float = Field(description="then")
    met: bool = Field(description="both goals are met then")
    why: str


class WorthAnswer(Strict):
    id: str
    fair_option: str | None = Field(description="what fair share would run it with")
    fair_pct: float
    over_fair: float = Field(description="utility won, or lost, against fair share")
    over_present: float | None = Field(description="against the present option and share; null: it is new")
    one_more: float = Field(description="planned utility that one quantum more would add")
    one_less: float = Field(description="planned utility that it would lose with one quantum less")


class ExplainAnswer(Strict):
    quantum_pct: float
    fair_utility: float = Field(description="sum under fair share")
    queries: list[WorthAnswer]


class VideostormAnswer(Strict):
    """What `decide videostorm` prints. Sum of share_pct + spare_pct = capacity_pct, always."""

    objective: str
    plan_ms: float | None = Field(description="time to decide; null where no clock was given")
    spare_pct: float
    utility: float = Field(description="sum")
    lowest_utility: float | None = Field(description="null without queries")
    unmet: list[str] = Field(description="queries whose goals cannot be met now")
    queries: list[QueryAnswer]
    explain: ExplainAnswer | None = Field(default=None, description="only when asked for")


def decide_videostorm(data: Any, clock: Clock | None = None, *, explain: bool = False) -> dict[str, Any]:
    """Divide one share between queries, as plain JSON values.

    data: what `json.loads` gave. clock: monotonic seconds, used for `plan_ms` only. explain: the answer says what each query won or
    lost, and what one quantum is worth to it.
    Errors: ConfigError with every problem and its path.
    """
    given = parse(VideostormInput, data)
    rules = Rules(**given.model_dump(exclude={"capacity_pct", "queries"}))
    queries = [_query(query) for query in given.queries]
    started_s = clock() if clock else 0.0
    found = allocate(queries, given.capacity_pct, rules=rules)
    plan_ms = (clock() - started_s) * 1000 if clock else None
    answer = VideostormAnswer(
        objective=given.objective,
        plan_ms=plan_ms,
        spare_pct=found.spare_pct,
        utility=math.fsum(part.utility for part in found.given),
        lowest_utility=min((part.utility for part in found.given), default=None),
        unmet=list(found.unmet),
        queries=[_answer(q, part, part.query not in found.unmet, rules) for q, part in zip(queries, found.given, strict=True)],
        explain=_explained(queries, found.given, given.capacity_pct, rules) if explain else None,
    )
    return answer.model_dump(mode="json", exclude=None if explain else {"explain"})


def videostorm_tables(answer: dict[str, Any]) -> list[Table]:
    """An explained answer for people."""
    told = answer["explain"]
    worth = {query["id"]: query for query in told["queries"]}
    rows = [(query, worth[query["id"]]) for query in answer["queries"]]
    return [
        Table(
            title=f"objective {answer['objective']}: utility {answer['utility']:.4g} (fair share {told['fair_utility']:.4g}), "
            f"spare {answer['spare_pct']:g} pct",
            columns=("query", "pct", "option", "quality", "lag s", "utility", "goals", "why"),
            rows=[
                (
                    query["id"],
                    f"{query['share_pct']:g}",
                    query["option"],
                    f"{query['quality']:.3f}",
                    f"{query['lag_s']:.1f}",
                    f"{query['utility']:.4g}",
                    "met" if query["met"] else "not met",
                    query["why"],
                )
                for query, _ in rows
            ],
        ),
        Table(
            title=f"won and lost, and one quantum ({told['quantum_pct']:g} pct)",
            columns=("query", "fair pct", "fair option", "over fair", "over present", "one more", "one less"),
            rows=[
                (
                    query["id"],
                    f"{own['fair_pct']:g}",
                    own["fair_option"],
                    f"{own['over_fair']:+.4g}",
                    None if own["over_present"] is None else f"{own['over_present']:+.4g}",
                    f"{own['one_more']:+.4g}",
                    f"{-own['one_less']:+.4g}",
                )
                for query, own in rows
            ],
        ),
    ]


_OF_UTILITY = ("base", "quality_weight", "quality_goal", "quality_penalty", "lag_weight_per_s", "lag_goal_s")


def _query(query: QueryInput) -> Query:
    fields = query.model_dump(exclude={"options", *_OF_UTILITY})
    return Query(
        options=tuple(Option(**option.model_dump()) for option in query.options),
        utility=Utility(**{name: getattr(query, name) for name in _OF_UTILITY}),
        **fields,
    )


def _answer(query: Query, part: Given, met: bool, rules: Rules) -> QueryAnswer:
    return QueryAnswer(
        id=part.query,
        option=part.option,
        share_pct=part.share_pct,
        quality=part.quality,
        lag_s=part.lag_s,
        utility=part.utility,
        met=met,
        why=_why(query, part, rules),
    )


def _why(query: Query, part: Given, rules: Rules) -> str:
    if part.option is None:
        return "paused: what there is, is worth more to others"
    option = next(o for o in query.options if o.name == part.option)
    runs = f"'{option.name}' at {part.share_pct:g} pct"
    if query.may_lag:
        if part.share_pct <= 0 < option.demand_pct:
            return f"waits: a lag of {part.lag_s:.1f} s is within its goal; '{option.name}' when it goes on"
        if max(query.lag_s, part.lag_s) < 0.05:
            return f"{runs} keeps up"
        return f"{runs}: lag goes from {query.lag_s:.1f} to {part.lag_s:.1f} s in {rules.horizon_s:g} s"
    if part.quality < option.quality * (1 - 1e-9):
        return f"{runs}: {part.quality / option.quality:.0%} of its frames fit, the others are skipped"
    return f"{runs} keeps up"


def _explained(queries: Sequence[Query], parts: Sequence[Given], capacity_pct: float, rules: Rules) -> ExplainAnswer:
    fair = fair_allocation(queries, capacity_pct, rules=rules).given
    shares = [part.share_pct for part in parts]
    now, more, less = (
        planned_utility(queries, [max(0.0, share + step * rules.quantum_pct) for share in shares], rules) for step in (0, 1, -1)
    )
    return ExplainAnswer(
        quantum_pct=rules.quantum_pct,
        fair_utility=math.fsum(part.utility for part in fair),
        queries=[
            WorthAnswer(
                id=part.query,
                fair_option=even.option,
                fair_pct=even.share_pct,
                over_fair=part.utility - even.utility,
                over_present=_over_present(query, part, rules),
                one_more=more[k] - now[k],
                one_less=now[k] - less[k],
            )
            for k, (query, part, even) in enumerate(zip(queries, parts, fair, strict=True))
        ],
    )


def _over_present(query: Query, part: Given, rules: Rules) -> float | None:
    present = next((o for o in query.options if o.name == query.current), None)
    if present is None:
        return None
    return part.utility - expected([query], [present], [query.current_pct], rules)[0].utility
