"""Sections `window` and `scheduler`: the retraining window and how it is planned (Ekya, NSDI 2022, sections 3 and 4)."""

from __future__ import annotations

import difflib
import re
from typing import Any, Literal, Self

from pydantic import field_validator, model_validator
from pydantic_core import PydanticCustomError

from configs.schema.base import Section, setting

#: Longest default of `window.first_seconds`: a new box should learn something soon.
FIRST_WINDOW_S = 60.0


#: Policies by name that a live box may run: those of `scheduler.registry`, which this layer may not import (a test compares them),
#: without `cloud`, because no video leaves the box.
POLICY_NAMES: tuple[str, ...] = (
    "thief-repeat",
    "thief-thorough",
    "thief",
    "optimal",
    "lookahead",
    "fair",
    "uniform",
    "fixed-resources",
    "fixed-config",
    "no-retrain",
    "cached",
)
#: Ways of serving live frames: `auto`, `own`, and the policies of `scheduler.orloj.registry` (a test compares them).
ServingName = Literal["auto", "own", "orloj", "orloj-printed", "clockwork", "nexus", "clipper", "edf", "fifo"]
#: Rules of `cached(RULE)`; the same as `scheduler.ekya.cached.RULES`.
CACHED_RULES: tuple[str, ...] = ("classes", "time", "count", "place")

_UNIFORM = re.compile(r"uniform\(\s*[^(),\s][^(),]*,\s*(100|\d{1,2})\s*\)")
_CACHED = re.compile(rf"cached\(\s*({'|'.join(CACHED_RULES)})\s*\)")


def _first_seconds(data: dict[str, Any]) -> float:
    return float(min(data.get("seconds", 200.0), FIRST_WINDOW_S))


def _shadow_seconds(data: dict[str, Any]) -> float:
    return float(min(data.get("seconds", 200.0) / 10, 20.0))


class WindowSection(Section):
    """The retraining window: label, profile, plan, retrain, admit, swap; then the next one."""

    seconds: float = setting(200.0, unit="s", ge=10, le=86_400, text="Length of a window (200 s in the Ekya paper).")
    first_seconds: float = setting(
        default_factory=_first_seconds,
        default_text="60, or `seconds` if that is less",
        unit="s",
        ge=5,
        le=86_400,
        text="Length of the first window after a start; shorter, so that a new box learns soon.",
    )
    label_frames: int = setting(
        40, unit="frames", ge=4, le=10_000, text="Frames per camera and window that the golden model labels."
    )
    holdout_frac: float = setting(
        0.4, unit="fraction", ge=0.1, le=0.9, text="Part of the labelled frames kept for measuring, never trained on."
    )
    gate_frames: int = setting(
        16, unit="frames", ge=2, le=10_000, text="Newest held-out frames on which a retrained model must beat the serving one."
    )
    gate_margin: float = setting(
        0.0, unit="F1", ge=0, le=0.5, text="How much better than the serving model a retrained one must be to be admitted."
    )
    gate_risk: float = setting(
        0.4,
        unit="fraction",
        gt=0,
        le=0.5,
        text="Chance that is taken of admitting a model that is not better (docs/reuse.md); less asks more of few frames.",
    )
    shadow: bool = setting(
        True,
        text="An admitted model first runs beside the serving one on some live frames before it takes over (docs/versions.md).",
    )
    shadow_frames: int = setting(
        12, unit="frames", ge=1, le=1000, text="Live frames on which it must hold its own beside the serving one."
    )
    shadow_frac: float = setting(
        0.25, unit="fraction", gt=0, le=1, text="Compute it may use meanwhile, as a part of what the serving model uses."
    )
    shadow_seconds: float = setting(
        default_factory=_shadow_seconds,
        default_text="20, or a tenth of `seconds` if that is less",
        unit="s",
        ge=0.5,
        le=3600,
        text="It is judged after this time by what was seen, so that a camera without frames holds nothing up.",
    )
    prep_pct: int = setting(50, unit="pct", ge=5, le=1600, text="Share that labelling and profiling get while they run.")
    prep_auto: bool = setting(
        True,
        text="Choose that share anew in each window, by what inference loses and what learning brings; `prep_pct` is the first one.",
    )
    overlap: bool = setting(
        True,
        text="Begin a camera's retraining when its own profile is there, beside the preparation of the others (not with `group`).",
    )
    prep_max_frac: float = setting(
        0.4,
        unit="fraction",
        ge=0.05,
        le=0.9,
        text="Labelling and profiling must end within this part of the window; with `overlap` within 0.9 of it, whatever is said here.",
    )
    sample_fps: float = setting(
        1.0, unit="frames/s", gt=0, le=30, text="Rate at which frames of a camera are kept as candidates for labelling."
    )
    profile_every: int = setting(
        1,
        unit="windows",
        ge=1,
        le=100,
        text="A camera is profiled in every so-many-th window; in between its last profile is recalled, scaled to what came of it.",
    )
    profile_epochs: int = setting(
        3, unit="epochs", ge=1, le=50, text="Epochs of a micro-profiling trial; the curve is extrapolated."
    )
    profile_data_frac: float = setting(
        0.5, unit="fraction", gt=0, le=1, text="Part of the training labels that a micro-profiling trial uses."
    )
    profile_at_once: int = setting(
        1, unit="trials", ge=1, le=16,
        text="Most micro-profiling trials at once; fewer where measuring shows that more do not pay (docs/trials.md). 1: one by one, as "
        "with any `gpus.backend` but `lanes`, and with `gpus.policy: srtf`.",
    )  # fmt: skip
    profile_lend: bool = setting(
        True,
        text="Of a classifier, try only retrainings of the head, on all labels; the others borrow from them (docs/trials.md).",
    )
    profile_halving: bool = setting(
        False, text="Stop the trial of a family that is clearly worse than a cheaper one after 1, 2, 4, ... epochs."
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.first_seconds > self.seconds:
            raise PydanticCustomError("window", "first_seconds must not be longer than seconds")
        return self


class DriftSection(Section):
    """Which windows are learned from: a camera that stays as it was is only measured (docs/drift.md)."""

    enabled: bool = setting(
        True, text="Look at every window first; a camera without drift and with nothing more to learn gets the fewest labels."
    )
    look_frames: int = setting(24, unit="frames", ge=16, le=256, text="Frames of a window that are looked at, without labels.")
    false_alarms: float = setting(
        0.05, unit="fraction", ge=0.001, le=0.5, text="Part of the windows without drift that may be taken for drifted."
    )
    drop: float = setting(
        0.2, unit="F1", gt=0, le=1, text="Loss of measured quality that counts as drift when no look has seen one."
    )


class ReuseSection(Section):
    """Earlier models before new ones, and one retraining for several cameras (docs/reuse.md)."""

    enabled: bool = setting(
        True, text="Measure earlier models of a camera before it is retrained; a better one serves at once (also a rollback)."
    )
    nearest: int = setting(3, unit="models", ge=0, le=20, text="Earlier models that are measured when a window drifted.")
    glance: bool = setting(
        True,
        text="Look at the window in progress too, soon after it has begun: what was known of a scene that comes back holds again, and "
        "its model or the mean of its and the newest lessons serves at once; a scene that is new is learned from this window.",
    )
    together: bool = setting(
        True,
        text="Four cameras and more with the same model and retrainings share one lesson a window: it learns from the labels of all of "
        "them, and each takes the result unless its own labels speak against it (docs/reuse.md).",
    )
    group: bool = setting(
        False,
        text="Cameras with the same model that drifted alike in the same window share one retraining; each judges the result.",
    )
    group_distance: float = setting(
        0.3, unit="distance", gt=0, le=10, text="How far apart the windows of a group may be (0: the same, 1: day and night)."
    )
    group_cameras: int = setting(4, unit="cameras", ge=2, le=64, text="Cameras in a group at most.")


class SchedulerSection(Section):
    """Who retrains, with which configuration, and everybody's share."""

    policy: str = setting(
        "lookahead",
        text="The policy that plans (docs/scheduler.md). `lookahead`: retrainings one after another where that is better. "
        "`thief-repeat`: the paper's thief, repeated until nothing improves. "
        "`uniform(CONFIG,PCT)`: CONFIG is `high`, `low` or a retraining's name, PCT goes to inference. "
        "`cached(RULE)`: trains nothing, serves the model of an earlier window chosen by RULE "
        f"({', '.join(CACHED_RULES)}).",
        range_text=", ".join(f"`{name}`" for name in POLICY_NAMES) + ", `uniform(CONFIG,PCT)`, `cached(RULE)`",
    )
    estimate: Literal["static", "hand-back"] = setting(
        "hand-back",
        text="What a plan assumes after a retraining ends: its share lies idle (`static`) or is given on (`hand-back`).",
    )
    quantum_pct: int = setting(5, unit="pct", ge=1, le=100, text="Smallest amount of compute that is moved between jobs.")
    quantum_auto: bool = setting(
        True,
        text="Move smaller amounts where rounding what cameras need up to whole quanta would waste a tenth of the device "
        "(policies `lookahead` and `optimal`, one pool of compute).",
    )
    min_quality: float = setting(
        0.4, unit="F1", ge=0, le=1, text="Floor: no plan may let a camera's quality fall below it if that can be avoided."
    )
    min_gain: float = setting(
        0.01, unit="F1", ge=0, le=0.5, text="Predicted gain below which a retraining is not worth starting."
    )
    calibrate: bool = setting(
        True,
        text="Correct the micro-profiler's predictions by what came of earlier ones, per camera, and plan on the expected gain.",
    )
    prune_every: int = setting(
        2,
        unit="windows",
        ge=0,
        le=1000,
        text="Every so many profiled windows a camera stops profiling its worst configurations. 0: never.",
    )
    prune_frac: float = setting(
        0.2, unit="fraction", gt=0, le=0.9, text="Part of a camera's configurations that a pruning drops."
    )
    react: bool = setting(True, text="Plan anew when a running retraining leaves its prediction (the next four keys).")
    react_quality: float = setting(
        0.05,
        unit="F1",
        gt=0,
        le=1,
        text="Distance of measured from predicted quality after an epoch that calls for a new plan.",
    )
    react_fast: float = setting(
        0.8,
        unit="ratio",
        gt=0,
        le=1,
        text="An epoch that takes less than this part of its predicted compute calls for a new plan.",
    )
    react_slow: float = setting(
        1.25,
        unit="ratio",
        ge=1,
        le=100,
        text="An epoch that takes more than so many times its predicted compute calls for a new plan.",
    )
    react_dwell_s: float = setting(
        10.0, unit="s", gt=0, le=3600, text="Shortest time between a plan and a reactive one, so that shares cannot oscillate."
    )
    slaq: Literal["off", "sum", "minmax", "finish"] = setting(
        "off",
        text="Between plans, move the training budget among running retrainings after each epoch: towards the largest predicted "
        "reduction of loss (`sum`), the worst job (`minmax`), or the gain that is served soonest (`finish`).",
    )
    serving: ServingName = setting(
        "auto",
        text="Who answers live frames. `own`: each camera's thread, under its own share. Else one queue per device, in batches that "
        "cross cameras with the same model, decided by this policy (docs/serving.md); not with `gpus.backend: mps`. `auto`: `orloj` "
        "where a query asks a model beside its camera's own when the box starts, else `own`.",
    )
    knobs: Literal["plan", "seconds"] = setting(
        "seconds",
        text="When knobs and inference shares are chosen: with every plan, or also between plans, when the work in the pictures "
        "changes (`seconds`, docs/serving.md). Not for fixed splits.",
    )
    knob_objective: Literal["sum", "maxmin"] = setting(
        "sum",
        text="What division between plans aims at where there is not enough for all: the largest sum of what quality and lag are worth "
        "(`sum`), or the camera that is worst off first (`maxmin`, docs/serving.md).",
    )
    reprofile: Literal["off", "note", "auto"] = setting(
        "note",
        text="Say so (`note`) when the profile of a camera or a query (`driftbox profile`) has grown old: the scene drifted, or frames "
        "have long cost more than `reprofile_factor` times what was profiled, or as much less. `auto`: and profile it anew in the time "
        "that preparation has left, one a window; a query that has no profile gets one, too.",
    )
    reprofile_factor: float = setting(
        2.0, unit="ratio", gt=1, le=100, text="From which factor on the cost of a frame is another than was profiled."
    )
    reprofile_after_s: float = setting(120.0, unit="s", ge=0, le=86_400, text="For how long it must be so before it is said.")

    drift: DriftSection = setting(default_factory=DriftSection, text="When a camera is examined in full.")
    reuse: ReuseSection = setting(default_factory=ReuseSection, text="Earlier models, and models for several cameras.")

    @field_validator("policy")
    @classmethod
    def _known_policy(cls, value: str) -> str:
        if value in POLICY_NAMES or _UNIFORM.fullmatch(value) or _CACHED.fullmatch(value):
            return value
        if value == "cloud":
            raise PydanticCustomError("policy", "'cloud' is for simulate, evaluate and decide: no video leaves a live box")
        near = difflib.get_close_matches(value, POLICY_NAMES, n=1, cutoff=0.6)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise PydanticCustomError(
            "policy",
            "must be one of: {names}, uniform(CONFIG,PCT), cached(RULE){hint}",
            {"names": ", ".join(POLICY_NAMES), "hint": hint},
        )
