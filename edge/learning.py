"""What a camera's model has learned, and why: the schema of `/api/v1/learning`, and the seam to whoever knows (`edge.box_learning`)."""

from __future__ import annotations

from typing import Protocol

from pydantic import Field

from edge.labels import BoxView
from edge.status import NoteView, QualityPoint, View

#: Most windows of one answer.
MAX_WINDOWS = 500
#: Most pictures of one comparison.
MAX_PICTURES = 6


class DriftSignal(View):
    """One drift detector (docs/drift.md)."""

    name: str
    words: str = Field(description="What it compares, for people.")
    statistic: float = Field(
        description="How far the window is from the one that the model learned from; its own unit, 0: the same."
    )
    threshold: float = Field(description="From here on it is drift; two looks at an unchanged scene rarely differ by more.")
    fired: bool


class DriftView(View):
    """A window against the one that the serving model learned from."""

    drifted: bool
    magnitude: float = Field(description="0: as before, 1: nothing is as it was.")
    signals: tuple[DriftSignal, ...] = ()
    note: str = Field(default="", description="Why less was asked than could be; empty: all was.")


class SceneNumber(View):
    """One number of how a window looked, before any label."""

    name: str
    unit: str
    words: str
    now: float | None = Field(description="In the newest window that was looked at; null: unknown.")
    then: float | None = Field(description="In the window that the serving model learned from; null: unknown.")


class NearVersion(View):
    """An earlier model whose window looked alike."""

    version: str
    distance: float = Field(description="Of the two windows' signatures; 0: the same, around 1 and more: day and night.")


class PredictionError(View):
    """What the micro-profiler's promises were worth, by what came of them (`scheduler.ekya.calibration`)."""

    retrainings: int = Field(description="Retrainings that reached their gate.")
    bias: float = Field(description="Promised less realised quality, middle value; above 0: too much was promised.")
    sd: float = Field(description="Spread of that.")
    cost_ratio: float = Field(description="Real over promised GPU-seconds, middle value.")


class BandCount(View):
    """How many windows were as predicted."""

    windows: int = Field(description="Closed windows of this answer with a prediction and a realised quality.")
    inside: int = Field(description="Those whose realised quality lay within the band.")
    expected_frac: float = Field(description="Part that should, if errors are as they were.")


class LearnedView(View):
    """What came of one retraining's promise."""

    option: str
    start_quality: float = Field(description="Of the model that it started from, as measured before.")
    promised_quality: float = Field(description="As the profiler said, before any correction.")
    realised_quality: float = Field(description="On labels of the window it was made for.")
    promised_gpu_s: float
    realised_gpu_s: float


class WindowLearning(View):
    """One window of one camera. Qualities are 0-1, averaged over the window where nothing else is said."""

    window: int
    opened_utc: float
    closed_utc: float | None = Field(default=None, description="Null: it is still open.")
    start_quality: float | None = Field(default=None, description="Of the serving model when the window was planned.")
    end_quality: float | None = Field(default=None, description="Of the serving model at the end.")
    predicted: float | None = Field(default=None, description="What the plan expected people to see.")
    predicted_low: float | None = Field(default=None, description="Lower end of the prediction's band.")
    predicted_high: float | None = Field(default=None, description="Upper end.")
    realised: float | None = Field(default=None, description="What they saw, as far as it was measured.")
    retrained: str | None = Field(default=None, description="Configuration of its retraining; null: none.")
    admitted: bool = Field(default=False, description="The retrained model passed its gate and serves.")
    reused: str | None = Field(default=None, description="Earlier version that was taken up again.")
    version: str | None = Field(default=None, description="Version that its retraining made.")
    note: str = ""
    drift: DriftView | None = None
    learned: LearnedView | None = None
    why: tuple[str, ...] = Field(default=(), description="What its plans said of this camera, oldest first.")


class RunningView(View):
    """A retraining in progress."""

    job: str
    config: str
    epochs: int
    epoch: int = Field(description="Ended so far.")
    used_gpu_s: float
    left_gpu_s: float = Field(description="What it still needs, gate included.")
    start_quality: float | None = None
    expected_path: tuple[float, ...] = Field(default=(), description="Predicted quality after 0, 1, ... epochs.")
    measured: tuple[tuple[int, float], ...] = Field(default=(), description="(epoch, quality) where it was measured.")
    losses: tuple[float, ...] = Field(default=(), description="Training loss after each epoch; no unit.")
    members: tuple[str, ...] = Field(default=(), description="All cameras that learn from it, when there are several.")


class LearningNow(View):
    """The window in progress."""

    window: int
    phase: str
    examined: bool = Field(description="The window is examined in full: labels, probe, profile.")
    remark: str = ""
    knobs: str | None = None
    infer_pct: float = 0.0
    train_pct: float = 0.0
    options: int = Field(default=0, description="Retrainings on offer to the plan.")
    running: RunningView | None = None


class CameraLearning(View):
    """Everything about one camera's learning."""

    camera: str
    title: str
    task: str
    quality_name: str = Field(description="What quality is for its task: F1, accuracy, ...")
    version: str = Field(description="Serving version.")
    before: str | None = Field(default=None, description="Version that served before it, to compare with; null: there is none.")
    quality: float | None = None
    held_out_frames: int = Field(default=0, description="Labelled frames behind `quality`.")
    history: tuple[QualityPoint, ...] = Field(default=(), description="Measurements of serving models, oldest first.")
    windows: tuple[WindowLearning, ...] = Field(default=(), description="Oldest first; the last one may be open.")
    band: BandCount
    errors: PredictionError
    now: LearningNow | None = None
    drift: DriftView | None = Field(default=None, description="Of the newest window that was looked at.")
    scene: tuple[SceneNumber, ...] = ()
    near: tuple[NearVersion, ...] = Field(
        default=(), description="Earlier models whose windows looked most alike, nearest first."
    )
    notes: tuple[NoteView, ...] = Field(default=(), description="Newest first.")


class LearningLine(View):
    """One camera in the list."""

    camera: str
    title: str
    quality: float | None = None
    quality_name: str = "F1"
    version: str = ""
    drifted: bool | None = Field(default=None, description="Whether its newest window drifted; null: nobody looked.")
    activity: str = Field(default="", description="labelling, profiling, retraining, gate, or empty.")
    retrainings: int = Field(default=0, description="In the newest 50 windows.")
    admitted: int = Field(default=0, description="Of them, those whose model serves or served.")


class LearningList(View):
    cameras: tuple[LearningLine, ...] = ()


class ModelBoxes(View):
    """What one version sees in a picture."""

    version: str
    boxes: tuple[BoxView, ...] = ()
    right: int = Field(description="Boxes that agree with a label (same class, overlap).")
    wrong: int = Field(description="Boxes without a label.")
    missed: int = Field(description="Labels without a box.")


class ComparedPicture(View):
    """One held-out sample; neither model has learned from it."""

    sample: str = Field(description="camera/window/seq; its picture is at /api/v1/labels/SAMPLE/picture.jpg.")
    width_px: int
    height_px: int
    labels: tuple[BoxView, ...] = Field(description="Labels in force, golden or a person's.")
    before: ModelBoxes
    after: ModelBoxes


class BeforeAfter(View):
    """Two versions on the same pictures."""

    camera: str
    before: str
    after: str
    window: int = Field(description="Window the pictures are of.")
    quality_name: str = "F1"
    before_quality: float | None = Field(default=None, description="Over the shown pictures only (0-1).")
    after_quality: float | None = None
    pictures: tuple[ComparedPicture, ...] = ()
    took_s: float = Field(description="Time that it took; it is done slowly on purpose.")


class LearningSource(Protocol):
    """Called from web threads. Raise UsageError ('not_found'), StorageError, WeightsError, JobError ('busy')."""

    def cameras(self) -> LearningList: ...

    def camera(self, camera: str, windows: int) -> CameraLearning: ...

    def before_after(self, camera: str, before: str | None, after: str | None, pictures: int) -> BeforeAfter:
        """before, after: versions of the camera; None: what served before, and what serves."""
