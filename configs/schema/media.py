"""Sections `cameras[].objects`, `cameras[].recording`, `storage.media`: tracked objects, their pictures and clips."""

from __future__ import annotations

from typing import Literal

from pydantic import field_validator
from pydantic_core import PydanticCustomError

from configs.schema.base import Section, setting
from configs.schema.queries import Point, checked_classes, checked_lines


class ObjectsSection(Section):
    """What is told of tracked objects (docs/events.md)."""

    enabled: bool = setting(True, text="Follow objects and tell them as events.")
    lines: dict[str, tuple[Point, ...]] = setting(
        default_factory=dict, default_text="none",
        text="Lines by name: two [x, y] points as fractions 0-1. Seen from the first to the second, `in` is from right to left of it.",
    )  # fmt: skip
    start_frames: int = setting(3, unit="frames", ge=1, le=100, text="Frames an object is seen in before it is told.")
    start_score: float = setting(0.5, unit="fraction", ge=0, le=1, text="Score that one of them must reach.")
    lost_s: float = setting(4.0, unit="s", ge=0.5, le=600, text="An object that is not seen in frames for so long has ended.")
    snapshots: bool = setting(True, text="Keep the best picture of every object, with its box; privacy masks are burnt in.")

    @field_validator("lines")
    @classmethod
    def _lines(cls, lines: dict[str, tuple[Point, ...]]) -> dict[str, tuple[Point, ...]]:
        return checked_lines(lines)


class RecordingSection(Section):
    """Clips of what objects do (docs/events.md)."""

    clips: bool = setting(True, text="Keep a clip of every object that moves, as the camera sent it.")
    pre_s: float = setting(5.0, unit="s", ge=0, le=60, text="Before the object is first seen; a clip begins with a keyframe.")
    post_s: float = setting(5.0, unit="s", ge=0, le=60, text="After it is last seen or has come to rest.")
    max_s: float = setting(120.0, unit="s", ge=10, le=3600, text="A longer clip goes on in another file.")
    keep_days: float | None = setting(
        None, default_text="as `storage.media`", unit="days", gt=0, le=10_000,
        text="Snapshots and clips of this camera are kept for so long, in place of `clip_days` and `snapshot_days` of `storage.media`; "
        "its `class_days` and `event_days` count all the same.",
    )  # fmt: skip
    with_masks: Literal["reencode", "none"] = setting(
        "reencode",
        text="Cameras with privacy masks: `reencode` decodes their clips, burns the masks in and encodes them at `masked_fps`, which "
        "costs compute while objects are there; `none` keeps no clips of them. Nothing unmasked is stored either way.",
    )
    masked_fps: float = setting(5.0, unit="frames/s", ge=1, le=30, text="Frame rate of clips that are encoded anew.")


class MediaSection(Section):
    """How long events, snapshots and clips are kept. What is marked as a favourite stays."""

    max_gib: float = setting(
        20.0, unit="GiB", gt=0, le=100_000, text="Most that snapshots and clips may take; the oldest go first."
    )
    min_free_mib: int = setting(
        1024, unit="MiB", ge=16, le=1_000_000,
        text="Below this much free disk the oldest snapshots and clips go; when that does not help, recording rests.",
    )  # fmt: skip
    clip_days: float = setting(14.0, unit="days", gt=0, le=10_000, text="Clips older than this are deleted.")
    snapshot_days: float = setting(30.0, unit="days", gt=0, le=10_000, text="Snapshots older than this are deleted.")
    event_days: float = setting(
        90.0, unit="days", gt=0, le=10_000, text="Events older than this are forgotten, with their files."
    )
    max_events: int = setting(1_000_000, unit="events", ge=100, le=100_000_000, text="Most events that are kept.")
    class_days: dict[str, float] = setting(
        default_factory=dict, default_text="none",
        text="Days by class, instead of `clip_days` and `snapshot_days`: `{person: 30, car: 3}`. A clip of several: the longest.",
    )  # fmt: skip

    @field_validator("class_days")
    @classmethod
    def _days(cls, days: dict[str, float]) -> dict[str, float]:
        checked_classes(tuple(days))
        if any(not 0 < value <= 10_000 for value in days.values()):
            raise PydanticCustomError("class_days", "days must be above 0 and at most 10000")
        return days
