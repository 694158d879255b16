"""What the box tells about itself right now: the schema of `/api/v1/status`, of the page and of the MQTT statistics.

Frozen, keyword-only, the unit in the name; everything serialisable, nothing secret (errors are redacted before they get here).
The runtime fills these in; `edge.api` and `edge.telemetry` only read them.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

Phase = Literal["starting", "idle", "prepare", "planned", "stopped"]


class View(BaseModel):
    """Base of all views. extra keys are refused, so that a typo of the writer is found by its test."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class QualityPoint(View):
    """One measurement of a camera's serving model on golden labels."""

    at_utc: float = Field(description="When, seconds since the epoch.")
    f1: float = Field(ge=0, le=1, description="Quality, 0 to 1, against the golden model's labels (see quality_name).")
    version: str = Field(default="", description="Model that was measured.")
    frames: int | None = Field(default=None, description="Held-out pictures behind it; null: not recorded.")
    error: float | None = Field(default=None, description="Standard error of it; null: not known.")


class QueryNodeView(View):
    """One step of a query."""

    id: str
    transform: str
    runs: int = Field(default=0, description="Frames it was asked about.")
    cpu_ms: float = Field(
        default=0.0, description="Mean CPU time of a frame; a step that several queries share shows it in each."
    )
    gpu_ms: float = Field(default=0.0, description="Mean GPU time of a frame.")
    raised: int = Field(default=0, description="Frames on which it failed.")
    hung: int = Field(default=0, description="Frames from which it did not come back; it was replaced.")
    nonsense: int = Field(default=0, description="Frames for which it gave something unusable.")
    late: int = Field(default=0, description="Frames that a model it asks gave up, because the answer would have been late.")
    boxes_left_out: int = Field(default=0, description="Boxes it gave that lie outside the picture or hold nothing.")
    error: str = Field(default="", description="Its last failure.")


class QueryView(View):
    """What is asked of a camera, and the newest answer."""

    name: str
    state: Literal["running", "waiting", "resting", "unusable"] = Field(
        description="waiting: no answer yet; resting: it failed too often and is tried again later; unusable: what it needs is missing."
    )
    reason: str = Field(default="", description="Why it rests or is unusable.")
    again_s: float | None = Field(
        default=None, description="Resting: seconds until it is tried again; null: not before a restart."
    )
    results: dict[str, dict[str, Any]] = Field(
        default={}, description="What each step tells of the newest answered frame (docs/serving.md)."
    )
    at_utc: float | None = Field(default=None, description="When that frame was taken.")
    lag_s: float | None = Field(default=None, description="From then to its answer.")
    frames: int = Field(default=0, description="Frames answered.")
    failed_frames: int = Field(default=0, description="Frames on which a step failed.")
    knobs: dict[str, str | int | float | bool] = Field(default={}, description="Value of each knob, by step and name.")
    nodes: tuple[QueryNodeView, ...] = Field(default=(), description="Its steps.")


class CameraView(View):
    """One camera."""

    id: str
    name: str = ""
    state: str = Field(
        description="connecting, live, stalled, waiting, ended, stopped or quarantined (left alone: error says why)."
    )
    code: str | None = Field(
        default=None, description="Why there are no frames: auth, not_found, timeout, codec, network, ended."
    )
    error: str = Field(default="", description="The same in words, without credentials.")
    since_s: float = Field(default=0.0, description="Seconds in this state.")
    width_px: int = 0
    height_px: int = 0
    camera_fps: float = Field(default=0.0, description="Frames per second that the camera sends.")
    analysed_fps: float = Field(default=0.0, description="Frames per second that are analysed now.")
    wanted_fps: float = Field(default=0.0, description="Frames per second that the plan wants analysed.")
    knobs: str | None = Field(default=None, description="Inference setting in force; null: inference is paused.")
    objects: int = Field(default=0, description="Objects in the newest analysed frame.")
    frames_analysed: int = 0
    frames_dropped: int = Field(default=0, description="Frames given up before analysis since the start; the newest wins.")
    deadline_ms: float = Field(default=0.0, description="From capture to answer; later answers are late.")
    finish_frac: float | None = Field(
        default=None,
        description="Part of the frames due since the window opened that were answered by their deadline; null: none was due.",
    )
    frames_given_up: int = Field(
        default=0, description="Frames given up since the start because they would have been answered too late."
    )
    lag_s: float | None = Field(
        default=None, description="Seconds of a recording that wait to be analysed; null: a camera that may not lag."
    )
    reconnects: int = 0
    task: str = Field(
        default="detection", description="What its model is asked: detection, classification, or a package's task."
    )
    quality: float | None = Field(
        default=None, description="Newest measured quality of the serving model; null: not measured yet."
    )
    quality_name: str = Field(default="F1", description="What quality is for this task: F1, accuracy, ...")
    quality_history: tuple[QualityPoint, ...] = Field(default=(), description="Oldest first.")
    model: str = Field(default="", description="Serving version.")
    queries: tuple[QueryView, ...] = Field(default=(), description="What is asked of it, by name.")
    frames_skipped: int = Field(
        default=0, description="Analysed frames that its queries left out, because a newer one was there."
    )
    present: dict[str, int] = Field(
        default={}, description="Tracked objects that are there now, by class; every class that is told of, also with 0."
    )
    zones: dict[str, dict[str, int]] = Field(default={}, description="The same by zone: every zone, then every class.")
    crossed: dict[str, dict[str, int]] = Field(
        default={},
        description="Tracked objects that have crossed each line since the box started, or the camera changed: in and out. They go on"
        " where the camera changes boxes.",
    )
    learning: bool = Field(default=True, description="Its learning switch: its model may learn, at the times of its schedule.")
    watching: bool = Field(default=True, description="Its watching switch: it is watched, at the times of its schedule.")
    activity: str = Field(default="", description="labelling, profiling, retraining, gate, or empty.")
    activity_frac: float | None = Field(default=None, description="How much of the activity is done, 0 to 1.")


class ShareView(View):
    """One job's share of compute over the last seconds, or over a closed window."""

    job: str
    camera: str | None = Field(default=None, description="Camera it works for; null: for the box.")
    kind: Literal["inference", "retraining", "preparation", "gate", "other"] = "other"
    promised_pct: float = Field(description="Percent of one GPU (on a CPU-only box of one core) that the plan gives.")
    received_pct: float = Field(description="What it got.")
    wanted_frac: float = Field(
        default=1.0, description="Part of the time in which it had work; an idle job gets less than promised."
    )


class CustomerView(View):
    """A customer's cameras on this box together, over the same seconds as `shares`."""

    customer: str
    share_pct: float | None = Field(
        default=None,
        description="What its cameras are sure of, by the fleet; null: nothing was said, all are planned together.",
    )
    promised_pct: float = Field(description="What the plan gives to all their jobs.")
    received_pct: float = Field(description="What they got.")


class JobMemoryView(View):
    """One job's memory on the device that it shares."""

    job: str
    persistent_mib: float | None = Field(default=None, description="What it holds as long as it lives; null: not known yet.")
    ephemeral_mib: float | None = Field(default=None, description="Most that one iteration takes beyond that.")
    measured: bool = Field(default=False, description="Measured over its first iterations; else declared, or not known.")
    lane: int | None = Field(default=None, description="Memory lane it runs in; null: waits for memory, or there are no lanes.")
    lane_mib: float = Field(default=0.0, description="Size of that lane.")
    held_mib: float | None = Field(default=None, description="What it holds now; null: cannot be seen.")


class DeviceView(View):
    """One GPU as its driver reports it; null where it does not say."""

    index: int = Field(description="As nvidia-smi counts.")
    name: str
    memory_total_mib: float
    memory_used_mib: float = Field(description="By everybody, not only this box.")
    utilisation_pct: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    throttled: tuple[str, ...] = Field(default=(), description="Why its clocks are held down, in words; empty: they are not.")
    ecc_errors: int | None = Field(default=None, description="Uncorrected memory errors since the driver was loaded.")
    mig: bool = Field(default=False, description="Divided into partitions.")
    problem: str = Field(default="", description="Why it cannot be used; empty: it can.")


class FaultView(View):
    """What went wrong with a job or a device, and what to do."""

    at_utc: float
    job: str = Field(default="", description="Empty: the device itself.")
    code: str = Field(description="memory, leak, hung, crashed or device.")
    text: str
    remedy: str = ""
    removed: bool = Field(default=False, description="The job was taken off the device; the others go on.")


class StreamPlanView(View):
    """What the plan decided for one camera."""

    camera: str
    knobs: str | None
    infer_pct: float
    retrain: str | None
    train_pct: float
    expected_quality: float = Field(description="Expected quality, averaged over the window.")
    below_floor: bool = False


class PlanView(View):
    """The plan in force."""

    window: int
    policy: str
    at_utc: float
    reason: str = Field(default="", description="Why it was made: window, retrained, camera, ...")
    spare_pct: float
    expected_quality: float
    streams: tuple[StreamPlanView, ...] = ()


class StreamOutcomeView(View):
    """What a window did for one camera."""

    camera: str
    start_quality: float | None = None
    end_quality: float | None = None
    predicted_quality: float | None = None
    realised_quality: float | None = None
    retrained: str | None = None
    admitted: bool = False
    note: str = ""


class OutcomeView(View):
    """A closed window: predicted against realised quality, averaged over the window."""

    window: int
    opened_utc: float
    closed_utc: float
    predicted_quality: float | None = None
    realised_quality: float | None = None
    streams: tuple[StreamOutcomeView, ...] = ()
    notes: tuple[str, ...] = ()
    shares: tuple[ShareView, ...] = Field(
        default=(), description="What each job was promised and received, averaged over the time it ran in the window."
    )


class WindowView(View):
    """The window in progress."""

    number: int = Field(description="Counts from 0 since the data folder was made.")
    phase: Phase = Field(description="prepare: labelling and profiling; planned: retraining beside inference.")
    opened_utc: float = 0.0
    length_s: float = 0.0
    elapsed_s: float = 0.0


class ModelView(View):
    """One stored model version."""

    id: str
    camera: str
    parent: str | None = None
    arch: str = ""
    created_utc: float | None = None
    quality: float | None = Field(default=None, description="Quality on held-out golden labels when it was judged.")
    serving: bool = False
    admitted: bool = False


class NoteView(View):
    """Something an operator should know."""

    at_utc: float
    text: str
    camera: str | None = None


class BoxStatus(View):
    """Everything."""

    schema_version: int = 1
    box: str
    site: str = ""
    software: str = Field(default="", description="Version of Driftbox.")
    now_utc: float
    started_utc: float
    ready: bool = Field(default=False, description="Every camera has been tried and inference runs.")
    degraded: tuple[str, ...] = Field(default=(), description="Why the box is not as it should be; empty: all is well.")
    capacity_pct: float = 100.0
    spare_pct: float = 0.0
    cameras: tuple[CameraView, ...] = ()
    shares: tuple[ShareView, ...] = ()
    customers: tuple[CustomerView, ...] = Field(default=(), description="The same by customer, of all who have cameras here.")
    shares_span_s: float = Field(default=10.0, description="Time over which received shares are measured.")
    backend: str = Field(default="", description="How shares are kept: lanes, mps, green, mig or none.")
    memory: tuple[JobMemoryView, ...] = Field(default=(), description="Memory of the jobs in `shares`.")
    devices: tuple[DeviceView, ...] = Field(default=(), description="The machine's GPUs; empty without a driver.")
    faults: tuple[FaultView, ...] = Field(default=(), description="Of jobs and devices, newest first.")
    window: WindowView | None = None
    plan: PlanView | None = None
    outcomes: tuple[OutcomeView, ...] = Field(default=(), description="Closed windows, newest first.")
    models: tuple[ModelView, ...] = Field(default=(), description="Stored versions, newest first.")
    notes: tuple[NoteView, ...] = Field(default=(), description="Newest first.")


class StatusSource(Protocol):
    """What pages and telemetry ask the box. Both methods are called from other threads and must return at once."""

    def status(self) -> BoxStatus: ...

    def picture(self, camera_id: str, *, width_px: int = 0, boxes: bool = True) -> bytes | None:
        """The newest analysed frame as JPEG with its boxes drawn, or without, masks burnt in; None: no frame yet or no such camera.
        width_px: no wider than needed for it; 0: as the frame is."""
