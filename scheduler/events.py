"""What happens to a box: every change of the world reaches the engine as one of these, failures included.

`at_s` is the driver's monotonic time of the event; the engine has no other clock. Events are frozen, serialisable and journalled.
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.answers import Answers
from scheduler.pricing import ChangePrice
from scheduler.scenes import Scenes
from scheduler.types import (
    CachedModel,
    EpochReport,
    KnobProfile,
    Look,
    Observation,
    ProfileTrial,
    RetrainConfig,
    Signature,
    Traits,
)
from scheduler.videostorm.types import Utility


@dataclass(frozen=True, kw_only=True)
class Event:
    at_s: float


@dataclass(frozen=True, kw_only=True)
class BoxStarted(Event):
    """First event of a session. window: index of the first window to open (goes on after a restart)."""

    window: int = 0


@dataclass(frozen=True, kw_only=True)
class CameraAdded(Event):
    """A camera joins. version: its serving model; quality: last measured quality of that model or None; observations: what came of
    its earlier predictions, newest last; cached: models kept from earlier windows, newest first; retrain: how its model may be
    retrained, empty: as the box's configuration says; replaced: the version that the serving one replaced, if any; arch: of its model,
    '' unknown: then it shares no retraining; offered: those of `cached` that no label of the camera has judged (`ModelsOffered`);
    delivered: the version that it came with, if it is still there, '' unknown; scenes: that it has seen, the one it saw last first;
    utility: what quality and lag are worth to those who ask it something, None: as to everybody; learns: as in `LearningSwitched`;
    customer: whose it is (`SharesOrdered`)."""

    stream: str
    knobs: tuple[KnobProfile, ...]
    version: str
    quality: float | None = None
    observations: tuple[Observation, ...] = ()
    cached: tuple[CachedModel, ...] = ()
    retrain: tuple[RetrainConfig, ...] = ()
    replaced: str | None = None
    offered: tuple[str, ...] = ()
    arch: str = ""
    utility: Utility | None = None
    learns: bool = True
    customer: str = ""
    delivered: str = ""
    scenes: Scenes = Scenes()


@dataclass(frozen=True, kw_only=True)
class SharesOrdered(Event):
    """What customers' cameras are sure of from now on: (customer, percent of one GPU on this box), by customer. Empty: nobody has a
    share of its own, all cameras are planned together (`scheduler.fleet.grants`)."""

    shares_pct: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, kw_only=True)
class CustomerChanged(Event):
    """A camera is another customer's from now on."""

    stream: str
    customer: str


@dataclass(frozen=True, kw_only=True)
class LearningSwitched(Event):
    """Whether a camera's model learns from now on. One that does not is neither looked at, labelled, profiled nor retrained, and what it
    has under way is given up; inference, and its share, go on."""

    stream: str
    learns: bool


@dataclass(frozen=True, kw_only=True)
class AskedAnew(Event):
    """Other things are asked of a camera now. utility: as in `CameraAdded`."""

    stream: str
    utility: Utility | None = None


@dataclass(frozen=True, kw_only=True)
class ModelsOffered(Event):
    """Models came in from outside (imported, copied). cached: all that the camera may choose from now, newest first; offered: those of
    them that no label of the camera has judged yet. They are measured on the next held-out labels, whatever the window looks like, and
    serve or are rejected by that."""

    stream: str
    cached: tuple[CachedModel, ...]
    offered: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class LearnedFrom(Event):
    """The pictures of the window that `version` learned from lie here, in `window`: they came with the camera from another box, or lie
    there still. If it serves and nothing else is known, the next window is compared with that one (docs/drift.md)."""

    stream: str
    version: str
    window: int


@dataclass(frozen=True, kw_only=True)
class CameraRemoved(Event):
    stream: str


@dataclass(frozen=True, kw_only=True)
class CameraHealth(Event):
    """live: whether the camera gives frames now."""

    stream: str
    live: bool


@dataclass(frozen=True, kw_only=True)
class KnobsMeasured(Event):
    """The inference profile of a stream was measured anew (demand in percent of one GPU, quality as a fraction of full)."""

    stream: str
    knobs: tuple[KnobProfile, ...]


@dataclass(frozen=True, kw_only=True)
class Answered(Event):
    """What a stream's serving model answered since this was last told: what it may have lost meanwhile (`scheduler.answers`)."""

    stream: str
    answers: Answers


@dataclass(frozen=True, kw_only=True)
class ChangePriced(Event):
    """What changing the shares of running jobs costs was measured anew; plans reckon with it from now on."""

    price: ChangePrice


@dataclass(frozen=True, kw_only=True)
class Load:
    """How a camera keeps up. lag_s: seconds of its video that wait, 0 for a live one, of which the newest frame wins."""

    stream: str
    lag_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class KnobsDue(Event):
    """Inference is worth dividing anew between two plans (`scheduler.knob_loop`), or a recording has become late or is in time again.
    loads: of cameras that may lag."""

    loads: tuple[Load, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TimerFired(Event):
    timer: str


@dataclass(frozen=True, kw_only=True)
class LabelDone(Event):
    """Golden labels of a stream's last window are there. train/holdout: labelled frames in each split; quality: of the serving
    model on the held-out split, None when the split is empty; gpu_s: what the job cost; golden_gpu_s: cost of one new label, None when
    all were there already; traits: what the labels say the window looked like; corrected: of the frames used, by a person; left_out:
    frames of which the golden model was too unsure (in neither split)."""

    job: str
    stream: str
    train: int
    holdout: int
    quality: float | None
    gpu_s: float
    golden_gpu_s: float | None = None
    traits: Traits | None = None
    corrected: int = 0
    left_out: int = 0


@dataclass(frozen=True, kw_only=True)
class LookDone(Event):
    """What the last window looked like to the serving model, before any label; signature: the same, comparable over months."""

    job: str
    stream: str
    look: Look
    signature: Signature
    gpu_s: float


@dataclass(frozen=True, kw_only=True)
class Probed:
    """An earlier version on the held-out labels that the serving one was measured on. gain_sd: standard error of
    quality - serving_quality over those frames, None when there are too few."""

    version: str
    quality: float
    gain_sd: float | None = None


@dataclass(frozen=True, kw_only=True)
class ProbeDone(Event):
    """Earlier versions measured beside the serving one on the last window's held-out labels."""

    job: str
    stream: str
    serving_quality: float | None
    found: tuple[Probed, ...]
    frames: int
    gpu_s: float


@dataclass(frozen=True, kw_only=True)
class ProfileDone(Event):
    """The micro-profiler's trials of one stream; n_train: labelled frames a full retraining would use; lend: the families that were
    run speak for the others (`StartProfiling.lend`)."""

    job: str
    stream: str
    trials: tuple[ProfileTrial, ...]
    n_train: int
    gpu_s: float
    lend: bool = False


@dataclass(frozen=True, kw_only=True)
class ProfileOld(Event):
    """What a stream's knobs are worth was measured too long ago, or of another scene (`scheduler.videostorm.reprofile`), and is to be
    measured anew when preparation has time. why: for people; query: those of this query, which may never have been measured, "": the
    stream's own."""

    stream: str
    why: str
    query: str = ""


@dataclass(frozen=True, kw_only=True)
class Reprofiled(Event):
    """What a stream's knobs are worth was measured anew, at this cost; what came of it follows as `KnobsMeasured`."""

    job: str
    stream: str
    gpu_s: float


@dataclass(frozen=True, kw_only=True)
class EpochDone(Event):
    stream: str
    report: EpochReport


@dataclass(frozen=True, kw_only=True)
class RetrainDone(Event):
    """A retraining ended well; candidate is the stored, not yet admitted version. notes: what people should know of its labels (dropped
    boxes, one class only, ...; see `models.sanity`). candidates: (camera, its version) of all that shared it, `stream` among them;
    empty: only `stream`."""

    job: str
    stream: str
    candidate: str
    gpu_s: float
    notes: tuple[str, ...] = ()
    candidates: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True)
class GateDone(Event):
    """Serving and candidate model measured on the same held-out golden labels, as far as there are any of the current window. gain:
    of the candidate over `frames` frames, older held-out ones too, None: the difference of the two qualities; gain_sd: its standard
    error, None when there are too few."""

    job: str
    stream: str
    candidate: str
    serving_quality: float | None
    candidate_quality: float | None
    frames: int
    gpu_s: float
    gain_sd: float | None = None
    gain: float | None = None


@dataclass(frozen=True, kw_only=True)
class JobFailed(Event):
    """A labelling, profiling, training or gate job ended badly. code: as in configs.errors.JobError; text is redacted."""

    job: str
    stream: str
    code: str
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class SwapDone(Event):
    """version: that serves now; asked: the one that was asked for, where another was made in its place (`SwapModel.mean_of`)."""

    stream: str
    version: str
    asked: str = ""


@dataclass(frozen=True, kw_only=True)
class SwapFailed(Event):
    stream: str
    version: str
    text: str = ""


@dataclass(frozen=True, kw_only=True)
class ModelRolledBack(Event):
    """An older version serves again: the operator put it back, or (reason: why) the box did, because the new one did not work on live
    frames. Its quality is unknown until it is measured again."""

    stream: str
    version: str
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class StopRequested(Event):
    pass


EVENTS: tuple[type[Event], ...] = (
    BoxStarted,
    CameraAdded,
    ModelsOffered,
    CameraRemoved,
    SharesOrdered,
    CustomerChanged,
    LearnedFrom,
    LearningSwitched,
    AskedAnew,
    CameraHealth,
    KnobsMeasured,
    Answered,
    ChangePriced,
    KnobsDue,
    TimerFired,
    LabelDone,
    LookDone,
    ProbeDone,
    ProfileDone,
    ProfileOld,
    Reprofiled,
    EpochDone,
    RetrainDone,
    GateDone,
    JobFailed,
    SwapDone,
    SwapFailed,
    ModelRolledBack,
    StopRequested,
)
