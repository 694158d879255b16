"""`driftbox decide ekya`: plan one window. Input and answer as docs/decide.md describes them."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from configs.errors import UsageError
from scheduler.decide.inputs import Clock, Name, Quality, Strict, WholePct, no_doubles, parse
from scheduler.ekya.estimate import SpeedCurve, duration_s, speed_problems
from scheduler.ekya.optimal import optimal
from scheduler.registry import known_policies, make_policy
from scheduler.types import KnobProfile, RetrainOption, Snapshot, StreamPlan, StreamView

#: The exact plan's tables grow with the square of this.
MAX_QUANTA = 2000


# --- ekya: input ------------------------------------------------------------------------------------------------------


class WindowInput(Strict):
    seconds: float = Field(gt=0, description="length of the retraining window, seconds")
    overhead_s: float = Field(0.0, ge=0, description="seconds of it already spent on labelling and profiling")

    @field_validator("overhead_s")
    @classmethod
    def _leaves_time(cls, overhead_s: float, info: ValidationInfo) -> float:
        if overhead_s >= info.data.get("seconds", math.inf):
            raise ValueError("nothing of the window is left")
        return overhead_s


class KnobInput(Strict):
    name: Name
    demand_pct: float = Field(ge=0, description="share it needs to keep up with the camera, percent of one GPU")
    quality_frac: float = Field(ge=0, le=1, description="what it keeps of the model's quality, 0-1")


class RetrainInput(Strict):
    name: Name
    end_quality: Quality = Field(description="predicted quality of the retrained model, 0-1")
    cost_gpu_s: float = Field(ge=0, description="GPU-seconds at 100 percent; of a running one, what is left")


class StreamInput(Strict):
    id: Name
    quality: Quality = Field(description="quality of the serving model on current data, 0-1")
    knobs: list[KnobInput] = Field(min_length=1, description="inference configurations; the order breaks ties")
    retrain: list[RetrainInput] = Field(default_factory=list, description="retraining configurations on offer")
    running: Name | None = Field(None, description="name of the retraining in progress; `retrain` then holds exactly that one")

    @field_validator("knobs", "retrain")
    @classmethod
    def _names_differ(cls, entries: list[KnobInput] | list[RetrainInput]) -> list[KnobInput] | list[RetrainInput]:
        no_doubles([e.name for e in entries], "name")
        return entries

    @field_validator("running")
    @classmethod
    def _is_the_one(cls, running: str | None, info: ValidationInfo) -> str | None:
        if running is not None and [r.name for r in info.data.get("retrain", ())] != [running]:
            raise ValueError("`retrain` must hold exactly the retraining in progress")
        return running


class EkyaInput(Strict):
    """What `decide ekya` reads."""

    window: WindowInput
    capacity_pct: WholePct = Field(gt=0, le=100_000, description="all GPUs together, percent of one GPU")
    quantum_pct: WholePct = Field(
        gt=0, description="step in which shares move; what capacity holds beyond whole steps stays spare"
    )
    min_quality: Quality = Field(0.0, description="floor for each stream's quality before its swap, 0-1")
    estimate: Literal["static", "hand-back"] = Field(
        "static", description="what a finished retraining's share does in the estimate: nothing, or serve its own inference"
    )
    policy: Name = Field("thief-repeat", description="one of the policies of docs/decide.md")
    streams: list[StreamInput] = Field(description="cameras; the order breaks ties")
    speed: list[Annotated[list[float], Field(min_length=2, max_length=2)]] = Field(
        default_factory=list,
        description="measured [share percent, relative throughput] points, 1 at 100; empty: proportional",
    )

    @field_validator("quantum_pct")
    @classmethod
    def _fits(cls, quantum_pct: int, info: ValidationInfo) -> int:
        if quantum_pct > info.data.get("capacity_pct", quantum_pct):
            raise ValueError(f"{quantum_pct} is more than capacity_pct ({info.data['capacity_pct']})")
        if info.data.get("capacity_pct", 0) // quantum_pct > MAX_QUANTA:
            raise ValueError(f"capacity_pct must not hold more than {MAX_QUANTA} quanta")
        return quantum_pct

    @field_validator("policy")
    @classmethod
    def _is_known(cls, policy: str) -> str:
        try:
            make_policy(policy)
        except UsageError as error:
            raise ValueError(f"{error.message}; known: {', '.join(known_policies())}") from None
        return policy

    @field_validator("streams")
    @classmethod
    def _ids_differ(cls, streams: list[StreamInput]) -> list[StreamInput]:
        no_doubles([s.id for s in streams], "id")
        return streams

    @field_validator("speed")
    @classmethod
    def _is_a_curve(cls, speed: list[list[float]]) -> list[list[float]]:
        problems = speed_problems([(x, y) for x, y in speed])
        if problems:
            raise ValueError("; ".join(problems))
        return speed


# --- ekya: answer -----------------------------------------------------------------------------------------------------


class StreamAnswer(Strict):
    id: str
    knobs: str | None = Field(description="chosen inference configuration; null: none fits the share")
    infer_pct: int
    retrain: str | None = Field(description="chosen retraining; null: none, or the running one is paused")
    train_pct: int
    expected_quality: float = Field(description="quality averaged over the time left, by the chosen estimate")
    below_floor: bool = Field(description="quality before the swap is under min_quality")
    retrain_s: float | None = Field(description="seconds the chosen retraining takes at its share")
    why: str


class EkyaAnswer(Strict):
    """What `decide ekya` prints. Sum of infer_pct and train_pct + spare_pct = capacity_pct, always."""

    policy: str
    expected_quality: float = Field(description="mean over streams")
    plan_ms: float | None = Field(description="time the policy took; null where no clock was given")
    spare_pct: int
    steps: int = Field(description="allocations looked at")
    optimal_quality: float = Field(description="expected_quality of the exact plan, for comparison")
    streams: list[StreamAnswer]


def decide_ekya(data: Any, clock: Clock | None = None) -> dict[str, Any]:
    """Plan one window: the answer of design section 3.2 for its input, as plain JSON values.

    data: what `json.loads` gave. clock: monotonic seconds, used for `plan_ms` only.
    Errors: ConfigError with every problem and its path.
    """
    given = parse(EkyaInput, data)
    snapshot = to_snapshot(given)
    policy = make_policy(given.policy)
    started_s = clock() if clock else 0.0
    plan = policy(snapshot)
    plan_ms = (clock() - started_s) * 1000 if clock else None
    best = plan if plan.policy == "optimal" else optimal(snapshot)
    views = {view.id: view for view in snapshot.streams}
    speed = SpeedCurve(snapshot.speed)
    answer = EkyaAnswer(
        policy=given.policy,
        expected_quality=plan.expected_quality,
        plan_ms=plan_ms,
        spare_pct=plan.spare_pct,
        steps=plan.steps,
        optimal_quality=best.expected_quality,
        streams=[_stream_answer(views[s.id], s, speed) for s in plan.streams],
    )
    return answer.model_dump(mode="json")


def to_snapshot(given: EkyaInput) -> Snapshot:
    """The snapshot that an input describes."""
    return Snapshot(
        remaining_s=given.window.seconds - given.window.overhead_s,
        capacity_pct=given.capacity_pct,
        quantum_pct=given.quantum_pct,
        min_quality=given.min_quality,
        streams=tuple(_view(s) for s in given.streams),
        estimate=given.estimate,
        speed=tuple((x, y) for x, y in given.speed),
    )


def _view(stream: StreamInput) -> StreamView:
    return StreamView(
        id=stream.id,
        quality=stream.quality,
        knobs=tuple(KnobProfile(**k.model_dump()) for k in stream.knobs),
        retrain=tuple(RetrainOption(**r.model_dump()) for r in stream.retrain),
        running=stream.running,
    )


def _stream_answer(view: StreamView, planned: StreamPlan, speed: SpeedCurve) -> StreamAnswer:
    option = next((o for o in view.retrain if o.name == planned.retrain), None)
    taken_s = duration_s(option.cost_gpu_s, planned.train_pct, speed) if option else None
    return StreamAnswer(
        id=planned.id,
        knobs=planned.knobs,
        infer_pct=planned.infer_pct,
        retrain=planned.retrain,
        train_pct=planned.train_pct,
        expected_quality=planned.expected_quality,
        below_floor=planned.below_floor,
        retrain_s=taken_s,
        why=_why(view, planned, option, taken_s),
    )


def _why(view: StreamView, planned: StreamPlan, option: RetrainOption | None, taken_s: float | None) -> str:
    """One sentence an operator understands."""
    seen = f"'{planned.knobs}' at {planned.infer_pct} pct" if planned.knobs else f"no inference at {planned.infer_pct} pct"
    if option is not None:
        gain = f"'{option.name}' lifts the model from {view.quality:.3f} to {option.end_quality:.3f} in {taken_s:.1f} s"
        return f"{seen}; {gain} at {planned.train_pct} pct"
    if not view.retrain:
        return f"{seen}; no retraining on offer"
    if not any(o.end_quality > view.quality for o in view.retrain):
        return f"{seen}; no retraining on offer ends above {view.quality:.3f}"
    if view.running:
        return f"{seen}; the running retraining is paused"
    return f"{seen}; no retraining raises its average under these shares"
