"""A camera's resource-quality profile as it is kept: what was measured, what it cost, and the menu that a plan may choose from.

Card: VideoStorm, section 4. D(c) is kept in parts, because they are spent in different places: `device_s` inside the camera's
share (a
GPU, or a core on CPU lanes), `cpu_s` beside it (decoding among it). Both are seconds per second of video.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from configs.errors import StorageError
from edge.profiler.chain import CROPS
from scheduler.types import KnobProfile
from scheduler.videostorm.search import pareto as front_of

#: Rate at which a camera is watched that is to be watched as it comes; as the box itself does.
USUAL_FPS = 5.0
#: Share kept on top of the measured demand, so that an average share carries an uneven load; the same as for default profiles.
HEADROOM = 1.15
#: Rates nearer than this to each other are one.
SAME_RATE_FRAC = 0.02
#: Knobs that no live box turns, and what it serves with, also where a profile does not say so: it shows its model every region.
NEVER_TURNED = {CROPS: 0}

KnobValue = str | int | float | bool


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class MeasuredOption(_Part):
    """One setting as measured. setting: `node.knob` -> value; quality: 0-1 against the golden configuration; device_s, cpu_s:
    seconds of
    the device, and of cores beside it, per second of video; decode_s: the part of cpu_s that decoding takes; memory_mib: of the
    models it
    needs; fps: frames analysed per second of video; height_px: to which the model's picture is reduced, 0: not. shown_s: the part of
    device_s that nodes take which a live box does not run again, because the camera's own model has answered already."""

    name: str
    setting: dict[str, KnobValue] = Field(default_factory=dict)
    quality: float = Field(ge=0, le=1)
    device_s: float = Field(ge=0)
    cpu_s: float = Field(ge=0)
    decode_s: float = Field(0.0, ge=0)
    memory_mib: float = Field(0.0, ge=0)
    fps: float = Field(0.0, ge=0)
    height_px: int = Field(0, ge=0)
    shown_s: float = Field(0.0, ge=0)

    @property
    def demand(self) -> float:
        """D(c): seconds of device and cores together per second of video."""
        return self.device_s + self.cpu_s


class ProfilingCost(_Part):
    """What making a profile took, in seconds of device and cores. search_s: settings that the search tried, what they share done once;
    truth_s: golden labels, needed however one searches; settings: tried, of how many; every_s: every one of them, nothing kept, which
    is a guess from those that were tried unless `every_measured`; took_s: on the clock, all of it."""

    search_s: float = Field(ge=0)
    truth_s: float = Field(0.0, ge=0)
    settings: int = Field(ge=0)
    of_settings: int = Field(ge=0)
    every_s: float = Field(0.0, ge=0)
    every_measured: bool = False
    took_s: float = Field(0.0, ge=0)


class LeftOut(_Part):
    """A setting that could not be measured, and why."""

    name: str
    reason: str


class CameraProfile(_Part):
    """See `docs/serving.md`. model: that serves the camera (arch and size); golden: whose labels were the truth; quality_name:
    F1 or
    accuracy; source: where the clip came from; fps: the full rate; watched_fps: at which the camera is to be
    watched (a clip may have less); options: all that were measured, dearest first; machine, device:
    where; assumed: what was not measured but taken from elsewhere, in words; serving: values of the knobs that a live box cannot turn,
    as it serves now (beside `NEVER_TURNED`)."""

    schema_version: Literal[1] = 1
    camera: str
    task: str
    model: str
    golden: str
    quality_name: str = "F1"
    source: str
    clip_s: float = Field(gt=0)
    frames: int = Field(ge=1)
    fps: float = Field(gt=0)
    watched_fps: float = Field(gt=0)
    machine: str = ""
    device: Literal["cpu", "cuda"] = "cpu"
    measured_utc: float = 0.0
    beta: float = Field(0.0, ge=0)
    options: tuple[MeasuredOption, ...]
    cost: ProfilingCost
    left_out: tuple[LeftOut, ...] = ()
    assumed: str = ""
    serving: dict[str, KnobValue] = Field(default_factory=dict)

    def front(self) -> tuple[MeasuredOption, ...]:
        """The Pareto front, dearest first."""
        return pareto(self.options)

    def described(self) -> str:
        """One sentence for people."""
        best = max(self.options, key=lambda o: o.quality, default=None)
        quality = f"best {self.quality_name} {best.quality:.3f}" if best else "nothing could be measured"
        return f"{len(self.options)} settings measured on {self.clip_s:.0f} s of {self.source}, {quality}"


def pareto(options: Iterable[MeasuredOption]) -> tuple[MeasuredOption, ...]:
    """Without those that another one beats or equals in quality at no more demand; of equals the first. Dearest first."""
    given = list(options)
    return tuple(given[i] for i in reversed(front_of([(o.demand, o.quality) for o in given])))


# --- the menu of a live camera ----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Menu:
    """What a plan may choose from for a camera, dearest first, at the cost that was profiled. Qualities are relative to the
    best."""

    knobs: tuple[KnobProfile, ...]

    def expected_cost_s(self, name: str | None) -> float:
        """Profiled seconds of the device for one analysed frame with these knobs; None, or a name that is not here: the
        dearest's."""
        option = next((k for k in self.knobs if k.name == name), self.knobs[0])
        return option.demand_pct / (100 * HEADROOM * option.fps)

    def at(self, mu: float) -> tuple[KnobProfile, ...]:
        """The menu where a frame really costs mu times what was profiled (card, section 9). Raises ValueError unless mu is a number
        above 0."""
        if not (math.isfinite(mu) and mu > 0):
            raise ValueError(f"mu must be above 0, got {mu}")
        return tuple(
            KnobProfile(
                name=k.name, demand_pct=round(mu * k.demand_pct, 4), quality_frac=k.quality_frac, fps=k.fps, height_px=k.height_px,
                memory_mib=k.memory_mib,
            )
            for k in self.knobs
        )  # fmt: skip


def menu_of(profile: CameraProfile) -> Menu | None:
    """What a live box can carry out of a profile: `live_options` on their own Pareto front (of the share that they need of the device).
    None: nothing usable, since nothing was found, or no rate is known."""
    usable = live_options(profile).values()
    best = max((o.quality for o in usable), default=0.0)
    if best <= 0:
        return None
    front = pareto(o.model_copy(update={"cpu_s": 0.0}) for o in usable)
    return Menu(
        knobs=tuple(
            KnobProfile(
                name=knob_name(o.fps, profile.fps, o.height_px), demand_pct=round(100 * HEADROOM * o.device_s, 4),
                quality_frac=round(o.quality / best, 4), fps=o.fps, height_px=o.height_px, memory_mib=o.memory_mib,
            )
            for o in front
        )
    )  # fmt: skip


def live_options(profile: CameraProfile) -> dict[str, MeasuredOption]:
    """What a live box can turn to from what serves, by the name of its knobs, by which a box tells settings apart: of several with one
    name the best, and of equally good ones the cheapest."""
    serving = {**NEVER_TURNED, **profile.serving}
    kept: dict[str, MeasuredOption] = {}
    for option in sorted(profile.options, key=lambda o: (-o.quality, o.device_s)):
        served = all(option.setting.get(knob, value) == value for knob, value in serving.items())
        if served and option.fps > 0 and option.device_s > 0:
            kept.setdefault(knob_name(option.fps, profile.fps, option.height_px), option)
    return kept


def knob_name(fps: float, full_fps: float, height_px: int) -> str:
    """`every`, `1/3`, `1/3@180p`: as fixed profiles are called."""
    stride = full_fps / fps
    rate = "every" if abs(stride - 1) < SAME_RATE_FRAC else f"1/{stride:.3g}"
    return f"{rate}@{height_px}p" if height_px else rate


def read_profile(text: str, *, subject: str) -> CameraProfile:
    """A profile as it was kept. Raises StorageError ('newer', 'corrupt')."""
    try:
        return CameraProfile.model_validate_json(text)
    except ValidationError as error:
        newer = any(part["loc"] == ("schema_version",) for part in error.errors())
        what = "was written by another version of Driftbox" if newer else f"is damaged ({error.errors()[0]['msg'].lower()})"
        raise StorageError(
            f"the profile of {subject} {what}", subject=subject, code="newer" if newer else "corrupt",
            remedy=f"run driftbox profile {subject} again",
        ) from None  # fmt: skip


def refusal(profile: CameraProfile, *, task: str, model: str, fps: float, machine: str, device: str = "cpu") -> str:
    """Why a box must not plan with a profile, in words; empty: it may."""
    if profile.task != task:
        return f"it was made for the task {profile.task}, the camera's is {task}"
    if profile.model != model:
        return f"it was made with {profile.model}, {model} serves"
    if abs(profile.watched_fps - fps) > SAME_RATE_FRAC * fps:
        return f"it was made for {profile.watched_fps:g} frames/s, the camera is watched at {fps:g}"
    if profile.device != device:
        return f"it was made on the {profile.device}, models run on the {device}"
    if profile.machine != machine:
        return f"it was made on another machine ({profile.machine}; this is {machine})"
    return ""


def table(profile: CameraProfile, shown: Sequence[MeasuredOption]) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
    """Columns and rows for people; a star marks the Pareto front."""
    on_front = {o.name for o in profile.front()}
    columns = ("", "setting", profile.quality_name, "frames/s", "device ms/s", "CPU ms/s", "of it decoding", "memory MiB")
    rows: list[tuple[object, ...]] = [
        ("*" if o.name in on_front else "", o.name, f"{o.quality:.3f}", f"{o.fps:.3g}", f"{1000 * o.device_s:.1f}",
         f"{1000 * o.cpu_s:.1f}", f"{1000 * o.decode_s:.1f}", f"{o.memory_mib:.0f}")
        for o in shown
    ]  # fmt: skip
    return columns, rows
