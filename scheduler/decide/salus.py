"""`driftbox decide salus`: which lane each job gets, and in which order iterations run. Input and answer as docs/decide.md has them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from scheduler.decide.inputs import Clock, Name, Strict, Table, no_doubles, parse, refusal
from scheduler.salus.lanes import Decision, LaneEvent, LaneRules, LaneTable, Step, apply, best_cap
from scheduler.salus.policies import POLICIES
from scheduler.salus.simulate import SimJob, SimOutcome, SimResult, SimRules, simulate
from scheduler.salus.types import MemoryNeed, Role

#: A table is made and told for each of them.
MAX_EVENTS = 1_000
#: Jobs for which `--explain` tries every number of lanes, which costs the cube of it.
MAX_CAPS = 150
#: As many as the paper's trace has.
MAX_JOBS = 100
#: The simulation takes a step for each.
MAX_ITERATIONS = 20_000

Mib = Annotated[float, Field(ge=0, le=1e9)]
Seconds = Annotated[float, Field(ge=0, le=1e9)]


# --- input ------------------------------------------------------------------------------------------------------------


class NeedInput(Strict):
    persistent_mib: Mib = Field(description="P: held as long as the job lives")
    ephemeral_mib: Mib = Field(description="E: most that one iteration takes beyond that")

    def need(self) -> MemoryNeed:
        return MemoryNeed(persistent_mib=self.persistent_mib, ephemeral_mib=self.ephemeral_mib)


class EventInput(Strict):
    event: Literal["arrive", "finish", "resize", "expel", "begin", "end"] = Field(
        description="begin and end: of an iteration; resize: its need was measured; expel: it has to go"
    )
    job: Name
    at_s: float = Field(0.0, ge=-1e9, le=1e9, description="when, seconds; for waiting times only")
    need: NeedInput | None = Field(None, description="of arrive (null: not declared) and resize")
    role: Role = Field("learn", description="of arrive")
    live_mib: Mib = Field(0.0, description="of end: ephemeral memory that was not given back")

    @field_validator("need")
    @classmethod
    def _fits_the_event(cls, need: NeedInput | None, info: ValidationInfo) -> NeedInput | None:
        event = info.data.get("event")
        if need is not None and event not in ("arrive", "resize", None):
            raise ValueError(f"{event} has no need")
        return need

    @model_validator(mode="after")
    def _says_what(self) -> EventInput:
        if self.event == "resize" and self.need is None:
            raise ValueError("resize says which need")
        return self


class OrderJobInput(Strict):
    id: Name
    iterations: int = Field(ge=1, le=MAX_ITERATIONS, description="how many it has to run")
    iteration_s: float = Field(ge=1e-6, le=1e6, description="seconds of the device that one takes alone")
    arrives_s: Seconds = 0.0
    gap_s: Seconds = Field(0.0, description="from the end of one until the next is asked for")
    role: Role = "learn"
    share_pct: float = Field(1.0, ge=0.001, le=100, description="weight under fair, share under plan")
    need: NeedInput | None = Field(None, description="declared memory; null: none, of a job that needs none")
    truth: NeedInput | None = Field(None, description="what it really needs; null: what it declares")
    leak_mib: Mib = Field(0.0, description="kept more after each iteration")

    def job(self) -> SimJob:
        nothing = MemoryNeed(persistent_mib=0.0, ephemeral_mib=0.0)
        return SimJob(
            job=self.id,
            iterations=self.iterations,
            iteration_s=self.iteration_s,
            arrives_s=self.arrives_s,
            gap_s=self.gap_s,
            role=self.role,
            declared=self.need.need() if self.need else nothing,
            truth=self.truth.need() if self.truth else None,
            leak_mib=self.leak_mib,
            share_pct=self.share_pct,
        )


class OrderInput(Strict):
    policy: Name = Field("fair", description="one of the policies of docs/decide.md")
    mode: Literal["capped", "work-conserving"] = Field("work-conserving", description="of plan: is an unused share lent")
    work_conserving: bool = Field(
        True, description="of fair and rr: the next one runs when the one whose turn it is is not ready"
    )
    infer_first: bool = Field(True, description="jobs of role infer go before all others at the end of an iteration")
    max_lanes: int | None = Field(1, ge=1, le=100_000, description="most lanes here; null: as many as fit")
    width: float = Field(1.0, ge=1, le=1e6, description="how many lanes the device runs at full speed at the same time")
    until_s: float | None = Field(None, gt=0, le=1e9, description="when to stop; null: when all jobs have ended")
    jobs: list[OrderJobInput] = Field(min_length=1, max_length=MAX_JOBS)

    @field_validator("policy")
    @classmethod
    def _is_known(cls, policy: str) -> str:
        if policy not in POLICIES:
            raise ValueError(f"unknown policy '{policy[:100]}'; known: {', '.join(POLICIES)}")
        return policy

    @field_validator("jobs")
    @classmethod
    def _can_be_run(cls, jobs: list[OrderJobInput]) -> list[OrderJobInput]:
        no_doubles((job.id for job in jobs), "id")
        total = sum(job.iterations for job in jobs)
        if total > MAX_ITERATIONS:
            raise ValueError(f"together they have {total} iterations, at most {MAX_ITERATIONS} are simulated")
        return jobs


class SalusInput(Strict):
    """What `decide salus` reads."""

    capacity_mib: Mib = Field(description="C: memory that jobs may hold in all")
    max_lanes: int | None = Field(None, ge=1, le=100_000, description="most lanes for `events`; null: as many as fit")
    age_limit_s: Seconds | None = Field(None, description="a job that has waited so long is not overtaken; null: it may starve")
    unknown: NeedInput | None = Field(None, description="what a job that declares nothing is charged; null: the whole device")
    apart: bool = Field(False, description="infer and learn share a lane only where they have to")
    events: list[EventInput] | None = Field(
        None, max_length=MAX_EVENTS, description="first question: what is decided on each of them"
    )
    order: OrderInput | None = Field(None, description="second question: in which order iterations run")

    @model_validator(mode="after")
    def _asks_something(self) -> SalusInput:
        if self.events is None and self.order is None:
            raise ValueError("asks nothing: give `events`, or `order`, or both")
        return self

    def rules(self) -> LaneRules:
        return LaneRules(
            capacity_mib=self.capacity_mib,
            max_lanes=self.max_lanes,
            age_limit_s=self.age_limit_s,
            unknown=self.unknown.need() if self.unknown else None,
            apart=self.apart,
        )


# --- answer -----------------------------------------------------------------------------------------------------------


class DecisionAnswer(Strict):
    job: str
    kind: Literal["placed", "queued", "refused", "resized", "moved", "paused", "expelled", "noted", "finished"]
    step: Literal["A", "B", "C"] | None = Field(description="of the search that found the lane")
    lane: int | None
    why: str


class SlideAnswer(Strict):
    lane: int
    from_mib: float | None = Field(description="where it began; null: it lay nowhere")
    to_mib: float = Field(description="where it begins now, counted from the lanes' end of the memory")
    held_mib: float = Field(description="its length there")


class StepAnswer(Strict):
    """The table after an event. persistent_mib + sum of lanes = total_mib <= capacity_mib, always (S1)."""

    event: str
    job: str
    at_s: float
    decisions: list[DecisionAnswer]
    persistent_mib: float = Field(description="sum of P")
    lanes: dict[str, float] = Field(description="L of each lane, MiB")
    total_mib: float
    waiting: list[str] = Field(description="jobs that wait for memory, in the order in which they are tried")
    slides: list[SlideAnswer] = Field(description="lanes that lie elsewhere or have another length now")
    holes: list[list[float]] = Field(description="[from, to] of each unused range between lanes, MiB")


class RunAnswer(Strict):
    job: str
    lane: int
    start_s: float
    end_s: float
    iterations: int


class JobAnswer(Strict):
    id: str
    fate: Literal["done", "crashed", "killed", "removed", "refused", "unfinished"]
    placed_s: float | None = Field(description="when it got a lane")
    ended_s: float | None
    jct_s: float | None = Field(description="from its arrival to its end; null: it was not done")
    iterations: int
    waited_s: float = Field(description="longest from asking for an iteration to its start")
    why: str


class OrderAnswer(Strict):
    policy: str
    runs: list[RunAnswer] = Field(description="who ran when, in order of start")
    jobs: list[JobAnswer]
    mean_jct_s: float | None = Field(description="over the jobs that were done")
    makespan_s: float
    peak_mib: float = Field(description="most that was held")
    out_of_memory: int = Field(description="times that the device had no memory left")


class CapAnswer(Strict):
    max_lanes: int = Field(description="the most lanes with which as many jobs as possible are admitted")
    admitted: int
    tried: list[list[int]] = Field(description="[lanes, jobs admitted] of every number of lanes")


class PolicyAnswer(Strict):
    policy: str
    mean_jct_s: float | None
    makespan_s: float


class ExplainAnswer(Strict):
    best_cap: CapAnswer | None = Field(
        description="for all jobs that arrive in `events`, none leaving; null: no or too many jobs"
    )
    policies: list[PolicyAnswer] = Field(
        description="the same jobs under every policy, pack with a lane for each that fits; empty without `order`"
    )


class SalusAnswer(Strict):
    """What `decide salus` prints."""

    plan_ms: float | None = Field(description="time to decide; null where no clock was given")
    steps: list[StepAnswer] | None = Field(description="one per event; null without `events`")
    order: OrderAnswer | None = Field(description="null without `order`")
    explain: ExplainAnswer | None = Field(default=None, description="only when asked for")


def decide_salus(data: Any, clock: Clock | None = None, *, explain: bool = False) -> dict[str, Any]:
    """Decides on events, or runs jobs on a simulated device, as plain JSON values.

    data: what `json.loads` gave. clock: monotonic seconds, used for `plan_ms` only. explain: the answer says how many lanes would be
    best, and what every policy would make of the same jobs.
    Errors: ConfigError with every problem and its path; of events that cannot happen (an end without a begin) the first.
    """
    given = parse(SalusInput, data)
    started_s = clock() if clock else 0.0
    steps = None if given.events is None else _steps(given)
    order = None if given.order is None else simulate([j.job() for j in given.order.jobs], _sim_rules(given, given.order))
    answer = SalusAnswer(
        plan_ms=(clock() - started_s) * 1000 if clock else None,
        steps=None if steps is None else [_step_answer(e, s) for e, s in zip(given.events or (), steps, strict=True)],
        order=None if order is None or given.order is None else _order_answer(given.order, order),
        explain=_explained(given) if explain else None,
    )
    return answer.model_dump(mode="json", exclude=None if explain else {"explain"})


def _steps(given: SalusInput) -> list[Step]:
    table, steps = LaneTable(rules=given.rules()), []
    for i, event in enumerate(given.events or ()):
        try:
            steps.append(apply(table, _event(event)))
        except (ValueError, RuntimeError) as error:
            raise refusal([(f"events[{i}]", str(error))]) from None
        table = steps[-1].table
    return steps


def _event(event: EventInput) -> LaneEvent:
    return LaneEvent(
        kind="admit" if event.event == "arrive" else event.event,
        job=event.job,
        at_s=event.at_s,
        need=event.need.need() if event.need else None,
        role=event.role,
        live_mib=event.live_mib,
        why="it was told to leave",
    )


def _sim_rules(given: SalusInput, order: OrderInput, policy: str | None = None) -> SimRules:
    own_lanes = policy == "pack" and order.policy != "pack"  # what PACK is; asked for itself, it gets what it asks for
    return SimRules(
        lanes=replace(given.rules(), max_lanes=None if own_lanes else order.max_lanes),
        policy=policy or order.policy,
        mode=order.mode,
        work_conserving=order.work_conserving,
        infer_first=order.infer_first,
        width=order.width,
        until_s=math.inf if order.until_s is None else order.until_s,
    )


def _step_answer(event: EventInput, step: Step) -> StepAnswer:
    table, sums = step.table, step.table.sums()
    return StepAnswer(
        event=event.event,
        job=event.job,
        at_s=event.at_s,
        decisions=[_decision_answer(d) for d in step.decisions],
        persistent_mib=sums.persistent_mib,
        lanes={str(lane): size for lane, size in sums.lanes},
        total_mib=sums.total_mib,
        waiting=[w.job for w in table.waiting],
        slides=[SlideAnswer(**vars(s)) for s in step.slides],
        holes=[list(hole) for hole in table.holes()],
    )


def _decision_answer(decision: Decision) -> DecisionAnswer:
    return DecisionAnswer(
        job=decision.job, kind=decision.kind, step=decision.step or None, lane=decision.lane, why=decision.why
    )


def _order_answer(order: OrderInput, result: SimResult) -> OrderAnswer:
    return OrderAnswer(
        policy=order.policy,
        runs=[RunAnswer(**vars(run)) for run in result.runs],
        jobs=[_job_answer(job) for job in result.jobs],
        mean_jct_s=result.mean_jct_s,
        makespan_s=result.makespan_s,
        peak_mib=result.peak_mib,
        out_of_memory=len(result.out_of_memory),
    )


def _job_answer(job: SimOutcome) -> JobAnswer:
    return JobAnswer(
        id=job.job,
        fate=job.fate,
        placed_s=job.placed_s,
        ended_s=job.ended_s,
        jct_s=job.jct_s,
        iterations=job.iterations,
        waited_s=job.waited_s,
        why=job.why,
    )


def _explained(given: SalusInput) -> ExplainAnswer:
    return ExplainAnswer(
        best_cap=_cap_answer(given),
        policies=[] if given.order is None else [_policy_answer(given, given.order, policy) for policy in POLICIES],
    )


def _cap_answer(given: SalusInput) -> CapAnswer | None:
    charged = given.rules().charged
    needs = [e.need.need() if e.need else charged for e in given.events or () if e.event == "arrive"]
    if not needs or len(needs) > MAX_CAPS:
        return None
    found = best_cap(needs, given.capacity_mib)
    return CapAnswer(max_lanes=found.max_lanes, admitted=found.admitted, tried=[list(pair) for pair in found.tried])


def _policy_answer(given: SalusInput, order: OrderInput, policy: str) -> PolicyAnswer:
    result = simulate([job.job() for job in order.jobs], _sim_rules(given, order, policy))
    return PolicyAnswer(policy=policy, mean_jct_s=result.mean_jct_s, makespan_s=result.makespan_s)


def salus_tables(answer: dict[str, Any]) -> list[Table]:
    """An explained answer for people."""
    return [*_step_tables(answer["steps"] or []), *_order_tables(answer["order"]), *_explain_tables(answer["explain"])]


def _step_tables(steps: list[dict[str, Any]]) -> list[Table]:
    if not steps:
        return []
    rows = []
    for step in steps:
        after = (f"{step['persistent_mib']:.6g}", _lanes(step["lanes"]), f"{step['total_mib']:.6g}")
        decided = step["decisions"] or [{"job": step["job"], "kind": "", "step": None, "lane": None, "why": ""}]
        rows += [(step["event"], d["job"], d["kind"], d["step"], d["lane"], *after, d["why"]) for d in decided]
    columns = ("event", "job", "decision", "step", "lane", "persistent", "lanes", "total", "why")
    return [Table(title="lanes (MiB, after each event)", columns=columns, rows=rows)]


def _order_tables(order: dict[str, Any] | None) -> list[Table]:
    if order is None:
        return []
    runs = [(r["job"], r["lane"], _s(r["start_s"]), _s(r["end_s"]), r["iterations"]) for r in order["runs"]]
    jobs = [(j["id"], j["fate"], _s(j["jct_s"]), _s(j["waited_s"]), j["iterations"], j["why"]) for j in order["jobs"]]
    title = (
        f"{order['policy']}: mean job completion time {_s(order['mean_jct_s'])} s, all done after {_s(order['makespan_s'])} s"
    )
    return [
        Table(title=title, columns=("job", "lane", "from s", "to s", "iterations"), rows=runs),
        Table(title="jobs", columns=("job", "end", "completion s", "longest wait s", "iterations", "why"), rows=jobs),
    ]


def _explain_tables(told: dict[str, Any]) -> list[Table]:
    tables = []
    if told["best_cap"] is not None:
        best = told["best_cap"]
        title = f"best number of lanes: {best['max_lanes']}, which admits {best['admitted']} jobs"
        tables.append(Table(title=title, columns=("lanes", "jobs admitted"), rows=best["tried"]))
    if told["policies"]:
        rows = [(p["policy"], _s(p["mean_jct_s"]), _s(p["makespan_s"])) for p in told["policies"]]
        tables.append(Table(title="the same jobs", columns=("policy", "mean completion s", "all done s"), rows=rows))
    return tables


def _lanes(lanes: dict[str, float]) -> str:
    return ", ".join(f"{lane}: {size:.6g}" for lane, size in lanes.items()) or "none"


def _s(seconds: float | None) -> str | None:
    return None if seconds is None else f"{seconds:.6g}"
