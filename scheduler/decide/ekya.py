"""`driftbox decide ekya`: plan one window. Input and answer as docs/decide.md describes them."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from configs.errors import UsageError
from scheduler.decide.inputs import Clock, Name, Quality, Strict, Table, WholePct, no_doubles, parse
from scheduler.ekya.cloud import snapshot_arrival_s
from scheduler.ekya.estimate import SpeedCurve, duration_s, speed_problems
from scheduler.ekya.explain import explain as explain_plan
from scheduler.ekya.optimal import optimal
from scheduler.ekya.placing import Placed
from scheduler.registry import known_policies, make_policy
from scheduler.types import (
    CachedModel,
    Gpu,
    KnobProfile,
    Network,
    Plan,
    RetrainOption,
    Snapshot,
    StreamPlan,
    StreamView,
    Traits,
)

#: The exact plan's tables grow with the square of this.
MAX_QUANTA = 2000

#: More cameras than any box has; what is read and answered grows with them.
MAX_STREAMS = 20_000


# --- ekya: input ------------------------------------------------------------------------------------------------------


class WindowInput(Strict):
    seconds: float = Field(ge=1e-3, le=1e9, description="length of the retraining window, seconds")
    overhead_s: float = Field(0.0, ge=0, description="seconds of it already spent on labelling and profiling")

    @field_validator("overhead_s")
    @classmethod
    def _leaves_time(cls, overhead_s: float, info: ValidationInfo) -> float:
        if overhead_s >= info.data.get("seconds", math.inf):
            raise ValueError("nothing of the window is left")
        return overhead_s


Memory = Annotated[float, Field(ge=0, le=1e9)]


class GpuInput(Strict):
    id: Name
    capacity_pct: WholePct = Field(100, gt=0, le=100, description="what of it may be given out, percent")
    memory_mib: Memory | None = Field(None, description="what jobs may hold of its memory; null: not limited")


class KnobInput(Strict):
    name: Name
    demand_pct: float = Field(ge=0, le=1e6, description="share it needs to keep up with the camera, percent of one GPU")
    quality_frac: float = Field(ge=0, le=1, description="what it keeps of the model's quality, 0-1")
    memory_mib: Memory = Field(0.0, description="GPU memory held while inference runs so")


class RetrainInput(Strict):
    name: Name
    end_quality: Quality = Field(description="predicted quality of the retrained model, 0-1")
    cost_gpu_s: float = Field(ge=0, le=1e12, description="GPU-seconds at 100 percent; of a running one, what is left")
    quality_sd: float = Field(0.0, ge=0, le=1, description="standard deviation of the error of end_quality")
    memory_mib: Memory = Field(0.0, description="GPU memory held from start to end, also while paused")


class TraitsInput(Strict):
    class_frac: list[Quality] = Field(
        default_factory=list, max_length=10_000, description="share of each class among the objects"
    )
    objects_per_frame: float = Field(0.0, ge=0, le=1e9)
    daypart: str = Field("", max_length=200, description="any label of the time of day")
    place: str = Field("", max_length=200, description="any label of where the camera stands")


class CachedInput(Strict):
    name: Name
    traits: TraitsInput = Field(description="of the window it was trained on")


class NetworkInput(Strict):
    up_mbps: float = Field(gt=0, le=1e9, description="uplink, megabits per second, shared by all cameras")
    down_mbps: float = Field(gt=0, le=1e9)
    up_mb: float = Field(ge=0, le=1e9, description="megabits of video up, per camera and window")
    down_mb: float = Field(ge=0, le=1e9, description="megabits of model down, per camera and window")


class StreamInput(Strict):
    id: Name
    quality: Quality = Field(description="quality of the serving model on current data, 0-1")
    knobs: list[KnobInput] = Field(min_length=1, description="inference configurations; the order breaks ties")
    retrain: list[RetrainInput] = Field(default_factory=list, description="retraining configurations on offer")
    running: Name | None = Field(None, description="name of the retraining in progress; `retrain` then holds exactly that one")
    traits: TraitsInput | None = Field(None, description="what the last window looked like (policy cached)")
    cached: list[CachedInput] = Field(
        default_factory=list, description="models kept from earlier windows, newest first (policy cached)"
    )

    @field_validator("knobs", "retrain", "cached")
    @classmethod
    def _names_differ(cls, entries: list[Any]) -> list[Any]:
        no_doubles((e.name for e in entries), "name")
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
    streams: list[StreamInput] = Field(max_length=MAX_STREAMS, description="cameras; the order breaks ties")
    speed: list[Annotated[list[float], Field(min_length=2, max_length=2)]] = Field(
        default_factory=list,
        description="measured [share percent, relative throughput] points, 1 at 100; empty: proportional",
    )
    train_max_pct: WholePct | None = Field(
        None, gt=0, le=100_000, description="largest share that one retraining turns into speed; null: no limit"
    )
    gpus: list[GpuInput] = Field(
        default_factory=list, description="the devices behind capacity_pct (their sum); empty: one pool, memory not limited"
    )
    network: NetworkInput | None = Field(None, description="link to a cloud (policy cloud)")

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
        no_doubles((s.id for s in streams), "id")
        return streams

    @field_validator("gpus")
    @classmethod
    def _add_up(cls, gpus: list[GpuInput], info: ValidationInfo) -> list[GpuInput]:
        no_doubles((g.id for g in gpus), "id")
        total_pct = sum(g.capacity_pct for g in gpus)
        if gpus and total_pct != info.data.get("capacity_pct", total_pct):
            raise ValueError(f"together they have {total_pct} pct, but capacity_pct is {info.data['capacity_pct']}")
        return gpus

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
    source: Literal["box", "cloud", "cached"] = Field(
        description="where `retrain` comes from: trained here, elsewhere, or kept"
    )
    expected_quality: float = Field(description="quality averaged over the time left, by the chosen estimate")
    below_floor: bool = Field(description="quality before the swap is under min_quality")
    retrain_s: float | None = Field(description="seconds until the retrained model serves")
    why: str


class PlacementAnswer(Strict):
    stream: str
    kind: Literal["infer", "train"]
    gpu: str
    share_pct: int = Field(description="0: a paused retraining that keeps its memory here")


class ChangeAnswer(Strict):
    quality: float = Field(description="change of the mean expected quality")
    below: int = Field(description="change of the number of cameras under the floor")


class PayerAnswer(Strict):
    stream: str | None
    kind: Literal["infer", "train", "spare"]


class JobAnswer(Strict):
    stream: str
    kind: Literal["infer", "train"]
    share_pct: int
    one_more: ChangeAnswer = Field(description="if capacity had a quantum more and this job got it")
    one_less: ChangeAnswer | None = Field(description="if it had a quantum less and this job paid; null: it has none")
    payer: PayerAnswer | None = Field(description="the job that would pay a quantum best")
    net: ChangeAnswer | None = Field(description="if it did")
    why: str


class ExplainAnswer(Strict):
    quantum_pct: int
    quantum_worth: ChangeAnswer = Field(description="what the policy makes of one quantum more, planning anew for one pool")
    jobs: list[JobAnswer]


class EkyaAnswer(Strict):
    """What `decide ekya` prints. Sum of infer_pct and train_pct + spare_pct = capacity_pct, always."""

    policy: str
    expected_quality: float = Field(description="mean over streams")
    plan_ms: float | None = Field(description="time the policy took; null where no clock was given")
    spare_pct: int
    steps: int = Field(description="allocations looked at")
    optimal_quality: float = Field(description="expected_quality of the exact plan for one pool, for comparison")
    streams: list[StreamAnswer]
    placement: list[PlacementAnswer] = Field(description="where each share lies; empty without gpus")
    explain: ExplainAnswer | None = Field(default=None, description="only when asked for")


def decide_ekya(data: Any, clock: Clock | None = None, *, explain: bool = False) -> dict[str, Any]:
    """Plan one window: the answer of design section 3.2 for its input, as plain JSON values.

    data: what `json.loads` gave. clock: monotonic seconds, used for `plan_ms` only. explain: the answer says what one quantum
    more or less would be worth for each job.
    Errors: ConfigError with every problem and its path.
    """
    given = parse(EkyaInput, data)
    snapshot = to_snapshot(given)
    policy = make_policy(given.policy)
    started_s = clock() if clock else 0.0
    plan = policy(snapshot)
    plan_ms = (clock() - started_s) * 1000 if clock else None
    answer = answer_of(snapshot, plan, policy, name=given.policy, plan_ms=plan_ms, explain=explain)
    return answer.model_dump(mode="json", exclude=None if explain else {"explain"})


def answer_of(
    snapshot: Snapshot, plan: Plan, policy: Placed, *, name: str, plan_ms: float | None = None, explain: bool = False
) -> EkyaAnswer:
    """A plan that was made from a snapshot, told as `decide ekya` tells it; also one that a running box has made (`edge.box_why`).
    policy: what made it, called `name`."""
    pool = replace(snapshot, gpus=())
    wanted = policy(pool) if snapshot.gpus else plan
    best = wanted if wanted.policy == "optimal" else optimal(pool)
    told = explain_plan(snapshot, plan, policy.policy, policy.latitude) if explain else None
    return EkyaAnswer(
        policy=name,
        expected_quality=plan.expected_quality,
        plan_ms=plan_ms,
        spare_pct=plan.spare_pct,
        steps=plan.steps,
        optimal_quality=best.expected_quality,
        streams=_stream_answers(snapshot, plan, wanted),
        placement=[PlacementAnswer(**vars(p)) for p in plan.placement],
        explain=ExplainAnswer.model_validate(_plain(asdict(told))) if told is not None else None,
    )


def _plain(told: dict[str, Any]) -> dict[str, Any]:
    """JSON has lists only."""
    return told | {"jobs": list(told["jobs"])}


def tables(answer: dict[str, Any]) -> list[Table]:
    """An explained answer for people: what was decided, then each job's share."""
    plan = Table(
        title=f"{answer['policy']}: expected quality {answer['expected_quality']:.4f}, spare {answer['spare_pct']} pct",
        columns=("camera", "knobs", "infer pct", "retraining", "train pct", "expected", "below floor"),
        rows=[
            (s["id"], s["knobs"], s["infer_pct"], s["retrain"], s["train_pct"], s["expected_quality"], s["below_floor"])
            for s in answer["streams"]
        ],
    )
    told = answer["explain"]
    jobs = Table(
        title=f"one quantum ({told['quantum_pct']} pct) more of GPU: {_signed(told['quantum_worth'])}",
        columns=("camera", "job", "pct", "one more", "one less", "paid by", "net", "why"),
        rows=[
            (
                j["stream"],
                j["kind"],
                j["share_pct"],
                *map(_signed, (j["one_more"], j["one_less"])),
                _payer(j),
                _signed(j["net"]),
                j["why"],
            )
            for j in told["jobs"]
        ],
    )
    places = [(p["stream"], p["kind"], p["gpu"], p["share_pct"]) for p in answer["placement"]]
    where = [Table(title="where", columns=("camera", "job", "gpu", "pct"), rows=places)] if places else []
    return [plan, *where, jobs]


def _signed(change: dict[str, Any] | None) -> str | None:
    if change is None:
        return None
    return f"{change['quality']:+.4f}" + (f" ({change['below']:+d} below)" if change["below"] else "")


def _payer(job: dict[str, Any]) -> str | None:
    payer = job["payer"]
    return None if payer is None else "spare" if payer["stream"] is None else f"{payer['stream']} {payer['kind']}"


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
        train_max_pct=given.train_max_pct,
        gpus=tuple(Gpu(**g.model_dump()) for g in given.gpus),
        network=Network(**given.network.model_dump()) if given.network else None,
    )


def _view(stream: StreamInput) -> StreamView:
    return StreamView(
        id=stream.id,
        quality=stream.quality,
        knobs=tuple(KnobProfile(**k.model_dump()) for k in stream.knobs),
        retrain=tuple(RetrainOption(**r.model_dump()) for r in stream.retrain),
        running=stream.running,
        traits=_traits(stream.traits) if stream.traits else None,
        cached=tuple(CachedModel(name=c.name, traits=_traits(c.traits)) for c in stream.cached),
    )


def _traits(given: TraitsInput) -> Traits:
    return Traits(**given.model_dump() | {"class_frac": tuple(given.class_frac)})


def _stream_answers(snapshot: Snapshot, plan: Plan, wanted: Plan) -> list[StreamAnswer]:
    """wanted: what the same policy plans for one pool of all GPUs."""
    speed, back_s = SpeedCurve.of(snapshot), snapshot_arrival_s(snapshot)
    answers = [_stream_answer(view, s, speed, back_s) for view, s in zip(snapshot.streams, plan.streams, strict=True)]
    return [
        answer if pooled == planned else answer.model_copy(update={"why": f"{answer.why}; as one pool: {_wish(pooled)}"})
        for answer, planned, pooled in zip(answers, plan.streams, wanted.streams, strict=True)
    ]


def _wish(planned: StreamPlan) -> str:
    training = f", '{planned.retrain}' at {planned.train_pct} pct" if planned.retrain and planned.source == "box" else ""
    return f"'{planned.knobs}' at {planned.infer_pct} pct{training}" if planned.knobs else f"no inference{training}"


def _stream_answer(view: StreamView, planned: StreamPlan, speed: SpeedCurve, back_s: float) -> StreamAnswer:
    option = next((o for o in view.retrain if o.name == planned.retrain), None) if planned.source != "cached" else None
    taken_s = None
    if option is not None:
        taken_s = back_s if planned.source == "cloud" else duration_s(option.cost_gpu_s, planned.train_pct, speed)
    return StreamAnswer(
        **vars(planned), retrain_s=0.0 if planned.source == "cached" else taken_s, why=_why(view, planned, option, taken_s)
    )


def _why(view: StreamView, planned: StreamPlan, option: RetrainOption | None, taken_s: float | None) -> str:
    """One sentence an operator understands."""
    seen = f"'{planned.knobs}' at {planned.infer_pct} pct" if planned.knobs else f"no inference at {planned.infer_pct} pct"
    if planned.source == "cached":
        return f"{seen}; the kept model '{planned.retrain}' serves again"
    if option is not None:
        gain = f"'{option.name}' lifts the model from {view.quality:.3f} to {option.end_quality:.3f} in {taken_s:.1f} s"
        return f"{seen}; {gain} " + ("in the cloud" if planned.source == "cloud" else f"at {planned.train_pct} pct")
    return f"{seen}; {_why_not(view)}"


def _why_not(view: StreamView) -> str:
    if not view.retrain:
        return "no retraining on offer"
    if not any(o.end_quality > view.quality for o in view.retrain):
        return f"no retraining on offer ends above {view.quality:.3f}"
    if view.running:
        return "the running retraining is paused"
    return "no retraining raises its average under these shares"
