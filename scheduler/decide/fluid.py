"""`driftbox decide fluid`: how a group of trials runs on some GPUs. Input and answer as docs/decide.md describes them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from scheduler.decide.inputs import Clock, Name, Strict, Table, no_doubles, parse
from scheduler.fluid.layout import Layout
from scheduler.fluid.packing import GAIN_MIN, alpha_of, beta_of, memory_cap, packing_gains, share_max, share_max_of, widest
from scheduler.fluid.plan import GroupPlan, Way, plan_group
from scheduler.fluid.simulate import Rules, Stage
from scheduler.fluid.types import Pool, Trial, Width, time_s
from scheduler.fluid.widths import Verdict, dynamic_widths
from scheduler.salus.lanes import LaneRules, LaneTable
from scheduler.salus.types import MemoryNeed

#: The course of a group is simulated, up to some dozen times.
MAX_TRIALS = 200
MAX_GPUS = 64
#: Widest that is asked for where only beta is known, and most trials at once where only alpha is.
MAX_WIDTH, MAX_SHARE = 64, 64

Seconds = Annotated[float, Field(ge=0, le=1e9)]
Positive = Annotated[float, Field(ge=1e-9, le=1e9)]
Overhead = Annotated[float, Field(ge=1, le=100)]
Mib = Annotated[float, Field(ge=0, le=1e9)]


# --- input ------------------------------------------------------------------------------------------------------------


class TrialInput(Strict):
    id: Name
    seconds: Seconds = Field(description="what is left of its run time on exactly one GPU")
    alpha: Overhead | None = Field(None, description="packing overhead per further co-resident; null: as measured, else 1")
    beta: Overhead | None = Field(None, description="scaling overhead per further GPU; null: as measured, else 1")


class MeasuredInput(Strict):
    packed_iteration_s: list[Positive] = Field(
        default_factory=list, max_length=MAX_SHARE, description="mean seconds of an iteration with 1, 2, ... trials on one GPU"
    )
    scaled_run_s: list[Positive] = Field(
        default_factory=list, max_length=MAX_WIDTH, description="seconds of the same work on 1, 2, ... GPUs"
    )


class MemoryInput(Strict):
    capacity_mib: Mib = Field(description="what jobs may hold of one GPU")
    persistent_mib: Mib = Field(description="what a trial holds as long as it lives; of the hungriest")
    ephemeral_mib: Mib = Field(description="what one of its iterations takes beyond that")
    resident_mib: Mib = Field(0.0, description="what other jobs hold already")


class RunningInput(Strict):
    id: Name
    width: float = Field(gt=0, le=MAX_WIDTH, description="GPUs it has now: 1/p, or a whole number")


class FluidInput(Strict):
    """What `decide fluid` reads."""

    gpus: int = Field(ge=1, le=MAX_GPUS, description="n: identical GPUs (or cores) that are usable now")
    share_max: int | None = Field(
        None, ge=1, le=MAX_SHARE, description="c: most trials on one GPU; null: from what was measured, else 1"
    )
    width_max: int | None = Field(
        None, ge=1, le=MAX_WIDTH, description="d: most GPUs of one trial; null: from what was measured, else 1"
    )
    gain_min: float = Field(
        GAIN_MIN, ge=0, lt=1, description="O_th: least part of the time that a co-resident, or a second GPU, must save"
    )
    measured: MeasuredInput = Field(default_factory=MeasuredInput, description="overheads of these trials, as measured")
    memory: MemoryInput | None = Field(None, description="caps c; null: memory is no limit")
    epsilon_s: Seconds = Field(0.0, description="what a change of width costs a trial")
    dynamic: bool = Field(True, description="DynamicFluid: widths change when a trial has ended and none waits")
    leftover: bool = Field(True, description="whole GPUs that rounding leaves widen the trial that ends last, if that pays")
    sharing: Literal["actual", "nominal"] = Field(
        "actual", description="a packed trial is as fast as its neighbours let it, or always as slow as with c of them"
    )
    trials: list[TrialInput] = Field(max_length=MAX_TRIALS, description="the group; the order breaks ties")
    running: list[RunningInput] = Field(
        default_factory=list, description="empty: the group is new. Else: which of them run, all of them, and how wide"
    )

    @field_validator("trials")
    @classmethod
    def _ids_differ(cls, trials: list[TrialInput]) -> list[TrialInput]:
        no_doubles((t.id for t in trials), "id")
        return trials

    @field_validator("running")
    @classmethod
    def _all_run(cls, running: list[RunningInput], info: ValidationInfo) -> list[RunningInput]:
        no_doubles((r.id for r in running), "id")
        known = {t.id for t in info.data.get("trials", ())}
        if running and {r.id for r in running} != known:
            raise ValueError("must name every trial, and no other: DynamicFluid is asked when none waits")
        wrong = [r.id for r in running if not _is_width(r.width)]
        if wrong:
            raise ValueError(f"'{wrong[0]}': a width is 1/p or a whole number of GPUs")
        return running

    @model_validator(mode="after")
    def _fit_on_the_gpus(self) -> FluidInput:
        if self.running:
            _seated(self)
        return self


def _is_width(width: float) -> bool:
    whole = width if width >= 1 else 1 / width
    return abs(whole - round(whole)) < 1e-3


def _width(width: float) -> Width:
    return Fraction(round(width)) if width >= 1 else Fraction(1, round(1 / width))


# --- answer -----------------------------------------------------------------------------------------------------------


class StageAnswer(Strict):
    at_s: float
    width: float = Field(description="0: it waits")
    gpus: list[int]


class TrialAnswer(Strict):
    id: str
    width: float = Field(description="GPUs at its start: 1/c, or whole ones")
    share: float = Field(description="w*: its part of all GPUs by its part of all work")
    start_s: float
    end_s: float
    why: str


class VerdictAnswer(Strict):
    id: str
    width: float = Field(description="now")
    ideal: float = Field(description="w': by what is left of it")
    pays: bool = Field(description="whether going there passes the test of algorithm 3.2")
    granted: float = Field(description="what it gets")


class PackingAnswer(Strict):
    alpha: float | None = Field(description="as measured; null: not measured")
    beta: float | None = Field(description="as measured; null: not measured")
    gains: list[float] = Field(description="O^2, O^3, ... of eq. 3.1, of what was measured")
    memory_share_max: int | None = Field(description="most trials at once by memory; null: no limit given")


class ExplainAnswer(Strict):
    stages: dict[str, list[StageAnswer]] = Field(description="each trial's widths over time")


class FluidAnswer(Strict):
    """What `decide fluid` prints."""

    plan_ms: float | None = Field(description="time to decide; null where no clock was given")
    share_max: int = Field(description="c")
    width_max: int = Field(description="d")
    packing: PackingAnswer
    way: Way | None = Field(description="how a new group runs; null: it runs already")
    makespan_s: dict[Way, float] = Field(description="predicted, of every way; empty: it runs already")
    busy_frac: float | None = Field(description="part of the GPUs in use until the end of the group")
    trials: list[TrialAnswer] = Field(description="of a new group")
    running: list[VerdictAnswer] = Field(description="DynamicFluid's verdicts on a running one")
    explain: ExplainAnswer | None = Field(default=None, description="only when asked for")


def decide_fluid(data: Any, clock: Clock | None = None, *, explain: bool = False) -> dict[str, Any]:
    """Widths, places and the predicted course of one group, as plain JSON values; or what changes in a running one.

    data: what `json.loads` gave. clock: monotonic seconds, used for `plan_ms` only. explain: the answer holds each trial's widths over
    time. Errors: ConfigError with every problem and its path.
    """
    given = parse(FluidInput, data)
    started_s = clock() if clock else 0.0
    pool, packing = _pool(given)
    trials = _trials(given, packing)
    plan = None if given.running else plan_group(trials, pool, _rules(given), leftover=given.leftover)
    verdicts = _verdicts(given, trials, pool) if given.running else ()
    answer = FluidAnswer(
        plan_ms=(clock() - started_s) * 1000 if clock else None,
        share_max=pool.share_max,
        width_max=pool.width_max,
        packing=packing,
        way=plan.way if plan else None,
        makespan_s=plan.makespan_s if plan else {},
        busy_frac=_busy_frac(plan, pool) if plan else None,
        trials=_answers(trials, plan, pool) if plan else [],
        running=[_verdict(v) for v in verdicts],
        explain=ExplainAnswer(stages=_stages(plan)) if explain else None,
    )
    return answer.model_dump(mode="json", exclude=None if explain else {"explain"})


def fluid_tables(answer: dict[str, Any]) -> list[Table]:
    """An explained answer for people."""
    ways = ", ".join(f"{way} {seconds:.4g} s" for way, seconds in answer["makespan_s"].items())
    tables = [
        Table(
            title=f"{answer['way'] or 'running'}: c {answer['share_max']}, d {answer['width_max']}{'; ' if ways else ''}{ways}",
            columns=("trial", "share", "width", "start s", "end s", "why"),
            rows=[
                (t["id"], f"{t['share']:.3g}", _shown(t["width"]), f"{t['start_s']:.4g}", f"{t['end_s']:.4g}", t["why"])
                for t in answer["trials"]
            ],
        )
    ]
    if answer["running"]:
        tables = [
            Table(
                title=tables[0].title,
                columns=("trial", "width", "ideal", "pays", "granted"),
                rows=[
                    (v["id"], _shown(v["width"]), _shown(v["ideal"]), v["pays"], _shown(v["granted"]))
                    for v in answer["running"]
                ],
            )
        ]
    stages = [
        (id, f"{s['at_s']:.4g}", _shown(s["width"]) if s["width"] else "waits", " ".join(map(str, s["gpus"])))
        for id, found in answer["explain"]["stages"].items()
        for s in found
    ]
    if stages:
        tables.append(Table(title="widths over time", columns=("trial", "from s", "width", "GPUs"), rows=stages))
    return tables


def _shown(width: float) -> str:
    return str(Fraction(width).limit_denominator(MAX_SHARE))


# --- from the one to the other ----------------------------------------------------------------------------------------


def _rules(given: FluidInput) -> Rules:
    return Rules(dynamic=given.dynamic, epsilon_s=given.epsilon_s, sharing=given.sharing)


def _pool(given: FluidInput) -> tuple[Pool, PackingAnswer]:
    """c and d, given or from what was measured, c within memory."""
    packed, scaled = given.measured.packed_iteration_s, given.measured.scaled_run_s
    alphas, betas = [t.alpha for t in given.trials if t.alpha], [t.beta for t in given.trials if t.beta]
    cap = _memory_cap(given.memory) if given.memory else None
    c, d = given.share_max, given.width_max
    if c is None:
        c = share_max(packed, gain_min=given.gain_min) if packed else 1
        c = share_max_of(max(alphas), gain_min=given.gain_min, most=MAX_SHARE) if alphas and not packed else c
    if d is None:
        beta = beta_of(scaled) if len(scaled) > 1 else max(betas, default=None)
        most = min(given.gpus, len(scaled) if scaled else MAX_WIDTH)
        d = 1 if beta is None else widest(beta, most=most, gain_min=given.gain_min)
    pool = Pool(gpus=given.gpus, share_max=min(c, cap or c), width_max=d)
    packing = PackingAnswer(
        alpha=alpha_of(packed[: max(2, pool.share_max)]) if len(packed) > 1 else None,
        beta=beta_of(scaled) if len(scaled) > 1 else None,
        gains=list(packing_gains(packed)),
        memory_share_max=cap,
    )
    return pool, packing


def _memory_cap(memory: MemoryInput) -> int:
    table = LaneTable(rules=LaneRules(capacity_mib=memory.capacity_mib))
    if memory.resident_mib:
        table = table.admit("resident", MemoryNeed(persistent_mib=memory.resident_mib, ephemeral_mib=0.0)).table
        if not table.residents:  # it holds more than there is: nothing fits beside it
            return 1
    need = MemoryNeed(persistent_mib=memory.persistent_mib, ephemeral_mib=memory.ephemeral_mib)
    return memory_cap(need, table, most=MAX_SHARE)


def _trials(given: FluidInput, packing: PackingAnswer) -> list[Trial]:
    return [
        Trial(id=t.id, h_s=t.seconds, alpha=t.alpha or packing.alpha or 1.0, beta=t.beta or packing.beta or 1.0)
        for t in given.trials
    ]


def _seated(given: FluidInput) -> Layout:
    """Who sits where: the widest first, packed ones shelf by shelf. ValueError when they need more GPUs than there are."""
    narrow = [round(1 / r.width) for r in given.running if r.width < 1]
    layout = Layout(range(given.gpus), max(narrow, default=1))
    for running in sorted(given.running, key=lambda r: -r.width):
        if not layout.seat(running.id, _width(running.width), spread=False):
            raise ValueError(f"running: '{running.id}' has no room: these widths need more than {given.gpus} GPUs")
    return layout


def _verdicts(given: FluidInput, trials: Sequence[Trial], pool: Pool) -> list[Verdict]:
    found = dynamic_widths(
        trials, _seated(given), pool, epsilon_s=given.epsilon_s, actual=given.sharing == "actual"
    )  # fmt: skip
    return list(found.verdicts.values())


def _verdict(verdict: Verdict) -> VerdictAnswer:
    return VerdictAnswer(
        id=verdict.trial, width=float(verdict.width), ideal=float(verdict.ideal), pays=verdict.pays,
        granted=float(verdict.granted),
    )  # fmt: skip


def _busy_frac(plan: GroupPlan, pool: Pool) -> float:
    whole_s = plan.course.makespan_s * pool.gpus
    return plan.course.busy_gpu_s / whole_s if whole_s else 0.0


def _answers(trials: Sequence[Trial], plan: GroupPlan, pool: Pool) -> list[TrialAnswer]:
    total_s = math.fsum(t.h_s for t in trials)
    return [
        TrialAnswer(
            id=t.id,
            width=float(plan.widths[t.id]),
            share=t.h_s * pool.gpus / total_s if total_s else 0.0,
            start_s=plan.course.start_s[t.id],
            end_s=plan.course.end_s[t.id],
            why=_why(t, plan, pool),
        )
        for t in trials
    ]


def _why(trial: Trial, plan: GroupPlan, pool: Pool) -> str:
    stages, width = plan.course.stages[trial.id], plan.widths[trial.id]
    if plan.way != "fluid":
        text = "one GPU: " + ("one at a time is soonest" if plan.way == "one-by-one" else "one trial per GPU is soonest")
    elif width < 1:
        text = f"shares a GPU: {time_s(trial, width):.4g} s with {pool.share_max} on it all the time"
    else:
        text = f"{width} GPU{'s' if width > 1 else ''}: {time_s(trial, width):.4g} s"
    if plan.course.start_s[trial.id] > 0:
        text += f"; waits {plan.course.start_s[trial.id]:.4g} s"
    if len(stages) > 1:
        text += f"; ends on {stages[-1].width}"
    return text


def _stages(plan: GroupPlan | None) -> dict[str, list[StageAnswer]]:
    if plan is None:
        return {}
    return {id: [_stage(s) for s in stages] for id, stages in plan.course.stages.items()}


def _stage(stage: Stage) -> StageAnswer:
    return StageAnswer(at_s=stage.at_s, width=float(stage.width), gpus=list(stage.gpus))
