"""Core types: frozen, keyword-only, the unit in the name. See `configs.units` for the suffixes.

What pixels and tensors need (`Frame`, `Detections`) and what decisions need (`Snapshot`, `Plan`, ...) stand together, because every
layer above speaks in them. Arrays are checked where they are born.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

# --- pixels -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class Frame:
    """One decoded picture of a stream. captured_s: when it was taken, of a live stream when its video came; no earlier than that of the
    picture shown before it. image: uint8 (H, W, 3) RGB, masks already burnt in. regions: float32 (N, 4) xyxy px of what moves in it
    (`streams.motion`), None where nobody looks for movement. camera_s: when it was taken by the camera's own clock (seconds, the same
    for everybody who watches it), None: its stream does not tell."""

    stream: str
    seq: int
    captured_s: float
    captured_utc: float
    image: np.ndarray
    regions: np.ndarray | None = None
    camera_s: float | None = None

    def __post_init__(self) -> None:
        if self.image.dtype != np.uint8 or self.image.ndim != 3 or self.image.shape[2] != 3:
            raise ValueError(f"Frame.image must be uint8 (H, W, 3), got {self.image.dtype} {self.image.shape}")

    @property
    def size_px(self) -> tuple[int, int]:
        """(width, height) of `image`."""
        return self.image.shape[1], self.image.shape[0]

    def halved(self, least_px: int) -> np.ndarray:
        """For who would halve the picture itself: uint8 (h, w, 3) RGB, `image`, or where that is cheaper to make one of a half, a
        quarter, ... of its width and height, of each square the mean, whose longer side is still at least `least_px`."""
        del least_px
        return self.image


@dataclass(frozen=True, kw_only=True, eq=False)
class Detections:
    """N objects. xyxy: float32 (N, 4) px in the frame's own size; score: float32 (N,); class_id: int64 (N,) into CLASSES."""

    xyxy: np.ndarray
    score: np.ndarray
    class_id: np.ndarray

    def __post_init__(self) -> None:
        n = len(self.xyxy)
        if self.xyxy.shape != (n, 4) or self.score.shape != (n,) or self.class_id.shape != (n,):
            raise ValueError(
                f"Detections need (N, 4), (N,), (N,); got {self.xyxy.shape}, {self.score.shape}, {self.class_id.shape}"
            )

    def __len__(self) -> int:
        return len(self.xyxy)

    @staticmethod
    def empty() -> Detections:
        return Detections(xyxy=np.zeros((0, 4), np.float32), score=np.zeros(0, np.float32), class_id=np.zeros(0, np.int64))

    def above(self, score_min: float) -> Detections:
        """The detections whose score is at least `score_min`."""
        keep = self.score >= score_min
        return Detections(xyxy=self.xyxy[keep], score=self.score[keep], class_id=self.class_id[keep])


# --- models -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ModelVersion:
    """One model of one camera. id is unique in the box; parent is None for a camera's first model."""

    id: str
    stream: str
    parent: str | None
    arch: str
    sha256: str
    quality: float | None = None


@dataclass(frozen=True, kw_only=True)
class RetrainConfig:
    """A retraining configuration (Ekya's gamma). layers_frac: share of the layers that train, counted from the output;
    data_frac: share of the labelled sample used; replay_frac: share of each batch drawn from earlier windows.
    head_neurons: width of a layer added before the output, 0: none (classifiers only); distill: weight of staying close to the
    version it starts from (Rebuffi et al., iCaRL); balance: every class counts alike, however rare it is in the sample."""

    name: str
    epochs: int = 5
    batch: int = 8
    layers_frac: float = 1.0
    data_frac: float = 1.0
    lr: float = 1e-3
    replay_frac: float = 0.0
    head_neurons: int = 0
    distill: float = 0.0
    balance: bool = False


# --- what a plan is made of -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class KnobProfile:
    """An inference configuration (Ekya's lambda). demand_pct: GPU share it needs to keep up with the camera;
    quality_frac: what it keeps of the model's quality (1.0 = full). fps/height_px: what the runtime sets (0 = as the camera).
    memory_mib: GPU memory the inference job holds while it runs with these knobs."""

    name: str
    demand_pct: float
    quality_frac: float
    fps: float = 0.0
    height_px: int = 0
    memory_mib: float = 0.0


@dataclass(frozen=True, kw_only=True)
class RetrainOption:
    """A retraining as the planner sees it: predicted end_quality (0-1) for cost_gpu_s GPU-seconds at 100 pct.

    quality_sd: standard deviation of the error of end_quality (0: taken as exact; see `scheduler.ekya.calibration`).
    memory_mib: GPU memory the training job holds from its start to its end, also while it is paused."""

    name: str
    end_quality: float
    cost_gpu_s: float
    quality_sd: float = 0.0
    memory_mib: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What a window of a camera looked like, by its golden labels. class_frac: share of each class among the objects (sum 1, all 0
    without objects); daypart: any label of the time of day ('' unknown); place: any label of where the camera stands."""

    class_frac: tuple[float, ...] = ()
    objects_per_frame: float = 0.0
    daypart: str = ""
    place: str = ""


@dataclass(frozen=True, kw_only=True)
class FrameLook:
    """What one sampled frame of a window looked like, without labels. brightness: mean grey level; contrast: its standard deviation;
    sharpness: variance of the Laplacian, log1p; all of the frame scaled to 160 px. confidence: mean score of the serving model's
    detections (0 without any); objects: how many; class_frac: their classes; embedding: the model's pooled features, projected to a
    few numbers (`models.embedding`); tint: mean red against blue and green against both, 0-1, 0.5 without colour; layout: where the
    picture is light and where edges are, coarsely, 0-1 (`models.embedding`); each empty: unknown. Raises ValueError for a number
    that is not finite."""

    brightness: float
    contrast: float
    sharpness: float
    objects: float
    confidence: float
    class_frac: tuple[float, ...] = ()
    embedding: tuple[float, ...] = ()
    tint: tuple[float, ...] = ()
    layout: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        numbers = (self.brightness, self.contrast, self.sharpness, self.objects, self.confidence)
        if not all(map(math.isfinite, (*numbers, *self.class_frac, *self.embedding, *self.tint, *self.layout))):
            raise ValueError(f"FrameLook must hold finite numbers, got {self}")


@dataclass(frozen=True, kw_only=True)
class Look:
    """A window of a camera seen through the model that served it: a few frames, in time order. version: that model (embeddings and
    confidences of different models do not compare). view: where the picture has edges and where it has none, of all frames together
    (`models.embedding.view`); empty: unknown. Raises ValueError for a number that is not finite."""

    version: str
    frames: tuple[FrameLook, ...]
    view: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not all(map(math.isfinite, self.view)):
            raise ValueError("Look.view must hold finite numbers")


@dataclass(frozen=True, kw_only=True)
class Signature:
    """A window in a few numbers that do not depend on the model that serves, so that windows months apart compare
    (`scheduler.drift.signature`). values: standardised; empty: unknown. view: as in `Look`; only of windows that were looked at since
    the box started."""

    values: tuple[float, ...] = ()
    view: tuple[float, ...] = ()


@dataclass(frozen=True, kw_only=True)
class DriftTest:
    """One drift detector's answer. statistic over threshold: it fired; the threshold is set for a documented false-alarm rate."""

    name: str
    statistic: float
    threshold: float

    @property
    def fired(self) -> bool:
        return self.statistic > self.threshold


@dataclass(frozen=True, kw_only=True)
class Drift:
    """A window against its reference. magnitude: 0 (as before) to 1 (nothing is as it was); tests: what was asked; note: why less
    was asked than could be, '' when all was."""

    drifted: bool
    magnitude: float
    tests: tuple[DriftTest, ...] = ()
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class CachedModel:
    """A model kept from an earlier window. traits, signature: of the window it was trained on."""

    name: str
    traits: Traits
    signature: Signature | None = None


@dataclass(frozen=True, kw_only=True)
class Network:
    """The box's link to a cloud. up_mbps, down_mbps: megabits per second, shared by all cameras; up_mb, down_mb: megabits of video
    up and of model down, per camera and window."""

    up_mbps: float
    down_mbps: float
    up_mb: float
    down_mb: float


@dataclass(frozen=True, kw_only=True)
class StreamView:
    """A stream in a snapshot. quality: of the serving model on current data (a0). running: name of the option in progress, in
    which case `retrain` holds exactly that option with its *remaining* cost (progress and choice are kept, only its share moves).
    traits, cached: the last window's looks and the models kept from earlier ones, newest first (policy `cached` only)."""

    id: str
    quality: float
    knobs: tuple[KnobProfile, ...]
    retrain: tuple[RetrainOption, ...] = ()
    running: str | None = None
    traits: Traits | None = None
    cached: tuple[CachedModel, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One device. capacity_pct: what of it may be given out; memory_mib: what jobs may hold of its memory, None: not limited."""

    id: str
    capacity_pct: int = 100
    memory_mib: float | None = None


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The only input of a plan: complete, serialisable. remaining_s is T' (window seconds minus overhead already spent).
    later_s: of the time after the window, so much counts for what a model that serves at its end is worth (`lookahead` only).
    speed: measured relative throughput at a share, (pct, factor) points, linear between, s(100)=1; empty = proportional.
    train_max_pct: largest share that one retraining can turn into speed, None: no limit.
    gpus: the devices behind capacity_pct (their sum); empty: one pool that any job may share, memory not limited.
    network: the link to a cloud (policy `cloud` only)."""

    remaining_s: float
    capacity_pct: int
    quantum_pct: int
    min_quality: float
    streams: tuple[StreamView, ...]
    estimate: Literal["static", "hand-back"] = "static"
    speed: tuple[tuple[float, float], ...] = ()
    train_max_pct: int | None = None
    gpus: tuple[Gpu, ...] = ()
    network: Network | None = None
    later_s: float = 0.0


@dataclass(frozen=True, kw_only=True)
class StreamPlan:
    """What one stream gets. knobs/retrain are names, None = no inference / no retraining. expected_quality: window average.
    source: where the better model comes from: trained on the box's share, by a cloud (no share), or `retrain` names a cached one."""

    id: str
    knobs: str | None
    infer_pct: int
    retrain: str | None
    train_pct: int
    expected_quality: float
    below_floor: bool = False
    source: Literal["box", "cloud", "cached"] = "box"


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Part of a job's share on one device. A job's share below 100 lies on one device; a larger one may take several."""

    stream: str
    kind: Literal["infer", "train"]
    gpu: str
    share_pct: int


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Shares of all streams; sum of shares + spare_pct = capacity_pct, always (`check`). placement: where each share lies, in stream
    order; empty when the snapshot names no devices. steps: allocations looked at."""

    policy: str
    streams: tuple[StreamPlan, ...]
    spare_pct: int
    expected_quality: float
    steps: int = 0
    placement: tuple[Placement, ...] = ()

    def check(self, capacity_pct: int) -> None:
        total = self.spare_pct + sum(s.infer_pct + s.train_pct for s in self.streams)
        if total != capacity_pct or self.spare_pct < 0 or any(s.infer_pct < 0 or s.train_pct < 0 for s in self.streams):
            raise ValueError(f"plan breaks 'shares + spare = capacity': {total} != {capacity_pct} in {self}")


# --- micro-profiling --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ProfileTrial:
    """One micro-profiling run of a configuration family (configurations that differ only in epochs share it).
    quality[k] is the held-out quality after k epochs, quality[0] before training; gpu_s_per_epoch on n_profiled samples."""

    config: RetrainConfig
    quality: tuple[float, ...]
    init_gpu_s: float
    gpu_s_per_epoch: float
    n_profiled: int
    n_total: int


@dataclass(frozen=True, kw_only=True)
class Observation:
    """A prediction and what came of it: one retraining that reached its gate. Qualities (0-1) are of the new model on labels of the
    window it was made for; start_quality: of the model it started from; predicted_*: as the profiler said, before any correction.
    serving_quality: of the model it started from again, as the gate measured it (start_quality: as measured before the retraining)."""

    stream: str
    window: int
    option: str
    start_quality: float
    predicted_quality: float
    realised_quality: float
    predicted_gpu_s: float
    realised_gpu_s: float
    serving_quality: float | None = None


@dataclass(frozen=True, kw_only=True)
class EpochReport:
    """What a running retraining tells after each epoch (epoch counts from 1; gpu_s: used so far)."""

    job: str
    epoch: int
    loss: float
    gpu_s: float
    quality: float | None = None


# --- window outcome ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class StreamOutcome:
    """A camera's window. drift: against the window its model learned from, None when nobody looked; reused: an earlier version that
    was taken up again in it."""

    id: str
    start_quality: float | None
    end_quality: float | None
    predicted_quality: float | None
    realised_quality: float | None
    retrained: str | None = None
    admitted: bool = False
    note: str = ""
    observation: Observation | None = None
    drift: Drift | None = None
    reused: str | None = None


@dataclass(frozen=True, kw_only=True)
class WindowOutcome:
    """Predicted against realised, per stream and as the mean over streams; qualities are window averages (0-1)."""

    window: int
    opened_s: float
    closed_s: float
    streams: tuple[StreamOutcome, ...]
    predicted_quality: float | None
    realised_quality: float | None
    notes: tuple[str, ...] = field(default=())
