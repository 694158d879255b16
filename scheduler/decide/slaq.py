"""`driftbox decide slaq`: divide a training budget between running jobs. Input and answer as docs/decide.md describes them."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from scheduler.decide.inputs import Clock, Name, Strict, Table, WholePct, no_doubles, parse
from scheduler.ekya.estimate import speed_problems
from scheduler.slaq import Fitting, Forecasts, JobShare, Reallocation, SlaqJob, decide_shares
from scheduler.slaq.forecast import FIT_LOSSES
from scheduler.slaq.history import LOSS_MAX

#: The greedy looks at every quantum.
MAX_QUANTA = 100_000

#: Longest history that is read.
MAX_LOSSES = 10_000

Loss = Annotated[float, Field(ge=-LOSS_MAX, le=LOSS_MAX)]
#: Seconds, costs and weights: far from where products of them overflow.
Amount = Annotated[float, Field(ge=0, le=1e12)]
Positive = Annotated[float, Field(ge=1e-9, le=1e12)]


# --- input ------------------------------------------------------------------------------------------------------------


class JobInput(Strict):
    id: Name
    losses: list[Loss] = Field(max_length=MAX_LOSSES, description="loss after each iteration (epoch), oldest first")
    gpu_s_per_epoch: Positive = Field(description="GPU-seconds at 100 percent that one iteration takes")
    curve: Literal["linear", "sublinear", "unknown"] = Field("unknown", description="convergence class, from the optimiser")
    target: Loss | None = Field(None, description="known loss at convergence, for a job without a convergence model")
    refit_from: int = Field(0, ge=0, description="losses before this one (from 0) are not fitted: the learning rate changed")
    epochs_left: Amount | None = Field(None, description="iterations still to do")
    into_epoch_gpu_s: Amount = Field(0.0, description="GPU-seconds spent on the iteration in progress")
    deadline_s: float | None = Field(None, description="when it must have ended, in the clock of now_s")
    min_pct: WholePct | None = Field(None, ge=0, description="least share; null: the common one")
    max_pct: WholePct | None = Field(None, gt=0, description="largest share it can turn into speed")
    planned_pct: WholePct | None = Field(None, ge=0, description="share to keep until it has two losses; null: the fair one")
    weight: Positive = Field(1.0, description="of its gains")
    since_s: float = Field(0.0, description="when it started; the older job wins a tie")
    below_fair_s: Amount = Field(0.0, description="seconds it has waited below its fair share")

    @field_validator("deadline_s")
    @classmethod
    def _needs_a_length(cls, deadline_s: float | None, info: ValidationInfo) -> float | None:
        # epochs_left is declared before; absent from the data when it was wrong itself
        if deadline_s is not None and info.data.get("epochs_left", 0.0) is None:
            raise ValueError("a deadline needs epochs_left")
        return deadline_s


class SlaqInput(Strict):
    """What `decide slaq` reads."""

    total_pct: WholePct = Field(ge=0, le=100_000_000, description="training budget, percent of one GPU")
    quantum_pct: WholePct = Field(gt=0, le=100_000_000, description="step in which shares move")
    epoch_s: Positive = Field(description="T: seconds over which gains are predicted")
    objective: Literal["sum", "minmax", "finish"] = Field("sum", description="what the shares are for")
    min_pct: WholePct = Field(0, ge=0, description="least share of every job that can end")
    now_s: float = Field(0.0, description="present time")
    decay: float = Field(0.8, gt=0, le=1, description="weight of a loss of age g in the fit is decay^(2 g)")
    window: int = Field(100, ge=FIT_LOSSES, le=MAX_LOSSES, description="newest losses that are fitted")
    age_s: Positive | None = Field(None, description="a job's weight doubles with every age_s below its fair share; null: off")
    speed: list[Annotated[list[float], Field(min_length=2, max_length=2)]] = Field(
        default_factory=list,
        max_length=1000,
        description="measured [share percent, relative throughput] points, 1 at 100; empty: proportional",
    )
    jobs: list[JobInput] = Field(max_length=10_000, description="running jobs")

    @field_validator("quantum_pct")
    @classmethod
    def _not_too_fine(cls, quantum_pct: int, info: ValidationInfo) -> int:
        if info.data.get("total_pct", 0) // quantum_pct > MAX_QUANTA:
            raise ValueError(f"total_pct must not hold more than {MAX_QUANTA} quanta")
        return quantum_pct

    @field_validator("speed")
    @classmethod
    def _is_a_curve(cls, speed: list[list[float]]) -> list[list[float]]:
        problems = speed_problems([(x, y) for x, y in speed])
        if problems:
            raise ValueError("; ".join(problems))
        return speed

    @field_validator("jobs")
    @classmethod
    def _fit_the_question(cls, jobs: list[JobInput], info: ValidationInfo) -> list[JobInput]:
        no_doubles((job.id for job in jobs), "id")
        quantum_pct = info.data.get("quantum_pct", 1)
        problems = [
            f"'{job.id}': max_pct {job.max_pct} is less than a quantum"
            for job in jobs
            if job.max_pct is not None and job.max_pct < quantum_pct
        ]
        if info.data.get("objective") == "finish":
            problems += [f"'{job.id}': objective finish needs epochs_left" for job in jobs if job.epochs_left is None]
        if problems:
            raise ValueError("; ".join(problems))
        return jobs


# --- answer -----------------------------------------------------------------------------------------------------------


class CurveAnswer(Strict):
    kind: str = Field(description="linear, sublinear, or damped (no fit)")
    made_by: str = Field(description="fit, or the fall-back that gave it")
    parameters: dict[str, float] = Field(description="of the curve; k counts from 1 at the first fitted loss")
    asymptote: float = Field(description="loss at which it ends")
    error: float = Field(description="root mean square on the last points, in loss")
    unit: float = Field(description="the job's largest step so far")


class JobAnswer(Strict):
    id: str
    pct: int
    need_pct: int | None = Field(description="least share with which it ends in time; null: none, or it cannot")
    can_end: bool = Field(description="false: no share it can have lets it end in time")
    iterations: float = Field(description="iterations in the next epoch_s")
    predicted_loss: float | None = Field(description="loss after them; null: no forecast")
    gain: float = Field(description="predicted reduction in units of the largest step, times weight (finish: loss)")
    curve: CurveAnswer | None
    why: str


class WorthAnswer(Strict):
    id: str
    one_more: float = Field(description="what one quantum more would be worth, same unit as gain")
    one_less: float = Field(description="what it would lose with one quantum less")


class ExplainAnswer(Strict):
    quantum_pct: int
    jobs: list[WorthAnswer]


class SlaqAnswer(Strict):
    """What `decide slaq` prints. Sum of pct + spare_pct = total_pct, always."""

    objective: str
    plan_ms: float | None = Field(description="time to fit and to divide; null where no clock was given")
    spare_pct: int
    total_gain: float = Field(description="sum of the gains")
    jobs: list[JobAnswer]
    explain: ExplainAnswer | None = Field(default=None, description="only when asked for")


def decide_slaq(data: Any, clock: Clock | None = None, *, explain: bool = False) -> dict[str, Any]:
    """Divide one training budget, as plain JSON values.

    data: what `json.loads` gave. clock: monotonic seconds, used for `plan_ms` only. explain: the answer says what one quantum
    more or less would be worth for each job.
    Errors: ConfigError with every problem and its path.
    """
    given = parse(SlaqInput, data)
    started_s = clock() if clock else 0.0
    found = decide_shares(
        [_job(job) for job in given.jobs],
        total_pct=given.total_pct,
        quantum_pct=given.quantum_pct,
        epoch_s=given.epoch_s,
        objective=given.objective,
        min_pct=given.min_pct,
        now_s=given.now_s,
        speed=[(x, y) for x, y in given.speed],
        age_s=given.age_s,
        forecasts=Forecasts(Fitting(decay=given.decay, window=given.window)),
    )
    answer = SlaqAnswer(
        objective=given.objective,
        plan_ms=(clock() - started_s) * 1000 if clock else None,
        spare_pct=found.spare_pct,
        total_gain=math.fsum(job.gain for job in found.jobs),
        jobs=[_answer(job) for job in found.jobs],
        explain=_worth(found, given.quantum_pct) if explain else None,
    )
    return answer.model_dump(mode="json", exclude=None if explain else {"explain"})


def slaq_tables(answer: dict[str, Any]) -> list[Table]:
    """An explained answer for people."""
    told = answer["explain"]
    worth = {job["id"]: job for job in told["jobs"]}
    return [
        Table(
            title=f"objective {answer['objective']}: gain {answer['total_gain']:.4g}, spare {answer['spare_pct']} pct",
            columns=("job", "pct", "need", "curve", "iterations", "predicted loss", "gain"),
            rows=[
                (
                    job["id"],
                    job["pct"],
                    job["need_pct"],
                    job["curve"] and job["curve"]["kind"],
                    f"{job['iterations']:.3g}",
                    None if job["predicted_loss"] is None else f"{job['predicted_loss']:.4g}",
                    f"{job['gain']:.4g}",
                )
                for job in answer["jobs"]
            ],
        ),
        Table(
            title=f"one quantum ({told['quantum_pct']} pct)",
            columns=("job", "pct", "one more", "one less", "why"),
            rows=[
                (
                    job["id"],
                    job["pct"],
                    _signed(worth[job["id"]]["one_more"]),
                    _signed(-worth[job["id"]]["one_less"]),
                    job["why"],
                )
                for job in answer["jobs"]
            ],
        ),
    ]


def _signed(change: float) -> str:
    return f"{change:+.4g}"


def _job(job: JobInput) -> SlaqJob:
    fields = job.model_dump(exclude={"losses", "curve"})
    return SlaqJob(losses=tuple(job.losses), kind=job.curve, **fields)


def _answer(job: JobShare) -> JobAnswer:
    future = job.forecast
    curve = None
    if future is not None:
        curve = CurveAnswer(
            kind=future.curve.kind,
            made_by=future.made_by,
            parameters=future.curve.parameters,
            asymptote=future.floor,
            error=future.error,
            unit=future.unit,
        )
    return JobAnswer(
        id=job.id,
        pct=job.pct,
        need_pct=job.need_pct,
        can_end=job.can_end,
        iterations=job.iterations,
        predicted_loss=job.predicted_loss,
        gain=job.gain,
        curve=curve,
        why=job.why,
    )


def _worth(found: Reallocation, quantum_pct: int) -> ExplainAnswer:
    jobs = [WorthAnswer(id=job.id, one_more=job.one_more, one_less=job.one_less) for job in found.jobs]
    return ExplainAnswer(quantum_pct=quantum_pct, jobs=jobs)
