"""What the engine asks of a driver. The driver does it and answers with an event; commands carry all they need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from scheduler.admission import MIN_KNOWN
from scheduler.types import Plan, RetrainConfig, WindowOutcome

#: Why a version is to serve: it was trained for this window and passed the gate; an earlier one fits the window better; the one that
#: was replaced is better after all; a rule of the policy `cached` names it.
SwapKind = Literal["retrained", "reuse", "rollback", "chosen"]


@dataclass(frozen=True, kw_only=True)
class Command:
    pass


@dataclass(frozen=True, kw_only=True)
class SetTimer(Command):
    """Answer with TimerFired(timer) at at_s. A later SetTimer of the same name replaces the earlier one."""

    timer: str
    at_s: float


@dataclass(frozen=True, kw_only=True)
class SetShares(Command):
    """All shares at once, sorted by job; jobs not named have 0. Sum + spare_pct = capacity."""

    shares_pct: tuple[tuple[str, float], ...]
    spare_pct: float


@dataclass(frozen=True, kw_only=True)
class SetKnobs(Command):
    """knobs: name of a KnobProfile of the stream; None pauses inference."""

    stream: str
    knobs: str | None


@dataclass(frozen=True, kw_only=True)
class TurnToScene(Command):
    """The camera sees another scene since the window opened. scene: a number of its own (`scheduler.scenes`). What its frames say of
    slower rates is known for each scene by itself; answer with KnobsMeasured where that makes a difference."""

    stream: str
    scene: int


@dataclass(frozen=True, kw_only=True)
class StartLabelling(Command):
    """Label up to `frames` sampled frames of window `window`, `holdout_frac` of them held out. Answer: LabelDone or JobFailed.
    remote: it happens in a cloud and costs the box nothing (also in the next three). judges: so many are held out; None: by
    holdout_frac."""

    job: str
    stream: str
    window: int
    frames: int
    holdout_frac: float
    version: str
    remote: bool = False
    judges: int | None = None


@dataclass(frozen=True, kw_only=True)
class StartLook(Command):
    """See what window `window` looked like to `version`, on up to `frames` sampled frames, without labels. Answer: LookDone or
    JobFailed."""

    job: str
    stream: str
    window: int
    version: str
    frames: int


@dataclass(frozen=True, kw_only=True)
class StartProbe(Command):
    """Measure earlier versions (`candidates`) and `version` on the held-out labels of window `window`. Answer: ProbeDone or JobFailed;
    a candidate whose files are gone is left out of the answer."""

    job: str
    stream: str
    window: int
    version: str
    candidates: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class StartProfiling(Command):
    """Try each configuration (one per family, its epochs cut to `epochs`) on `data_frac` of the labelled sample, from `version`;
    stop after budget_gpu_s. lend: families that train more than the head need no trial where the head's can lend to them. Answer:
    ProfileDone or JobFailed."""

    job: str
    stream: str
    window: int
    version: str
    configs: tuple[RetrainConfig, ...]
    epochs: int
    data_frac: float
    budget_gpu_s: float
    remote: bool = False
    lend: bool = False


@dataclass(frozen=True, kw_only=True)
class StartReprofiling(Command):
    """Measure what the stream's knobs are worth, or those of its query `query` ("": its own), spending budget_gpu_s on the search at
    most (golden labels come on top). Answer: Reprofiled or JobFailed."""

    job: str
    stream: str
    budget_gpu_s: float
    query: str = ""


@dataclass(frozen=True, kw_only=True)
class StartRetraining(Command):
    """Answer: EpochDone after each epoch, then RetrainDone or JobFailed. remote_s: trained in a cloud, back after so many seconds.
    members: cameras whose labels are pooled for this one training (`stream` among them), empty: only `stream`."""

    job: str
    stream: str
    window: int
    version: str
    config: RetrainConfig
    remote_s: float | None = None
    members: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class StartGate(Command):
    """Label `frames` frames of the current window and measure `version` and `candidate` on them. Answer: GateDone or JobFailed.
    holdout_frac: part of the window's frames that may be used for it; older: what the last window held out judges too; known: label
    nothing, and measure on the newest held-out frames that are labelled already, `least` of them at least."""

    job: str
    stream: str
    window: int
    version: str
    candidate: str
    frames: int
    holdout_frac: float = 1.0
    remote: bool = False
    older: bool = True
    known: bool = False
    least: int = MIN_KNOWN


@dataclass(frozen=True, kw_only=True)
class CancelJob(Command):
    job: str
    stream: str


@dataclass(frozen=True, kw_only=True)
class SwapModel(Command):
    """Make `version` the serving model of the stream between two frames. Answer: SwapDone or SwapFailed. reason: for people;
    shadow: it first runs beside the serving one on some live frames and must hold its own there (edge.shadow); mean_of: what takes over
    is a new version instead, the mean of the weights of these, where they have one (`scheduler.scenes.to_average`)."""

    stream: str
    version: str
    quality: float | None
    reason: str = ""
    shadow: bool = False
    cause: SwapKind = "retrained"
    mean_of: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RejectModel(Command):
    stream: str
    version: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class ReportPlan(Command):
    """For people and telemetry; no answer. reasons: one line per stream."""

    window: int
    plan: Plan
    reasons: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ReportWindow(Command):
    outcome: WindowOutcome


@dataclass(frozen=True, kw_only=True)
class Note(Command):
    """Something an operator should read. stream is '' when it concerns the box."""

    stream: str
    code: str
    text: str


COMMANDS: tuple[type[Command], ...] = (
    SetTimer,
    SetShares,
    SetKnobs,
    TurnToScene,
    StartLabelling,
    StartLook,
    StartProbe,
    StartProfiling,
    StartReprofiling,
    StartRetraining,
    StartGate,
    CancelJob,
    SwapModel,
    RejectModel,
    ReportPlan,
    ReportWindow,
    Note,
)
